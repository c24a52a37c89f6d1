"""The instruction set of MetaSchedule's traces: one table from which other modules derive theirs.

A row holds the forms in which TVM's releases since 0.8 write an instruction (``UnpackedInstTraits``
in ``src/s_tir/schedule``), the types of its attributes for the allow-list, and the feature that
counts it. A new instruction of a new TVM is a new row; for a new form of an instruction, today's
form moves to ``older``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from ...errors import FormatError

#: Type of an attribute: determines the values that the allow-list permits
#: (:mod:`tunedb.programs.metaschedule.allowlist`), and TVM's object for them.
Type = Literal[
    "annotation",  # key of an annotation
    "bare flag",  # a flag that TVM holds as a plain bool
    "flag",
    "index map",
    "index map or none",
    "integer",
    "integers",
    "intrinsic",
    "probabilities",
    "scope",
    "text",
    "thread",
]

#: Name of an attribute in TVM's Python (``python/tvm/s_tir/schedule/schedule.py``), empty where one
#: argument of Python is several attributes; and its type.
Attribute = tuple[str, Type]

#: Decision of a sampling instruction: lengths of a tile, or one number.
Decision = Literal["tile", "number"]

#: Converts inputs and attributes of an older form to today's.
Upgrade = Callable[[list[Any], list[Any]], tuple[list[Any], list[Any]]]


@dataclass(frozen=True, slots=True)
class InstructionForm:
    """The numbers of inputs and attributes with which some releases write an instruction.

    Parameters
    ----------
    since : str
        The first release of TVM with this form.
    inputs : int or None
        Number of inputs; None for any number.
    attributes : tuple of Attribute
        The attributes, in order.
    upgrade : callable, optional
        Converts the form to today's; None for today's form and for forms without an equivalent.
    lost : str, optional
        Reason why the form has no equivalent today.
    """

    since: str
    inputs: int | None
    attributes: tuple[Attribute, ...] = ()
    upgrade: Upgrade | None = None
    lost: str = ""


@dataclass(frozen=True, slots=True)
class InstructionKind:
    """A kind of instruction.

    Parameters
    ----------
    kind : str
        Name in a trace.
    form : InstructionForm
        The newest form.
    older : tuple of InstructionForm
        Earlier forms, the newest first. The numbers of inputs and attributes identify a form, never
        a version: development builds and merged files mix them.
    counts : str
        Feature of :data:`tunedb.features.steps.columns.COUNTS` that counts it; empty for
        instructions that only look up blocks, loops and values.
    name : str
        Readable name; empty for the kind in snake case.
    decision : Decision, optional
        Type of the decision of a sampling instruction.
    is_unsafe : bool
        It sets a type or a region without a check, so a program may compute or access something
        else. No rule of TVM writes such instructions.
    has_index_map : bool
        An index map may be among its inputs.
    has_expressions : bool
        TVM holds the numbers among its inputs as expressions.
    until : str, optional
        The first release without it.
    becomes : str, optional
        Its kind in today's TVM, if it was renamed.
    """

    kind: str
    form: InstructionForm
    older: tuple[InstructionForm, ...] = ()
    counts: str = ""
    name: str = ""
    decision: Decision | None = None
    is_unsafe: bool = False
    has_index_map: bool = False
    has_expressions: bool = False
    until: str | None = None
    becomes: str | None = None


def _with_input(value: Any) -> Upgrade:
    return lambda inputs, attrs: ([*inputs, value], attrs)


def _with_attributes(*values: Any) -> Upgrade:
    """Return an upgrade that appends the defaults of newer attributes."""
    return lambda inputs, attrs: (inputs, [*attrs, *values])


def _with_map_as_input(inputs: list[Any], attrs: list[Any]) -> tuple[list[Any], list[Any]]:
    buffer, buffer_type, index_map, *padding = attrs
    return [*inputs, index_map], [buffer, buffer_type, *(padding or [None]), False]


def _integers(*names: str) -> tuple[Attribute, ...]:
    return tuple((name, "integer") for name in names)


_READ: tuple[Attribute, ...] = (("read_buffer_index", "integer"), ("storage_scope", "scope"))
_WRITE: tuple[Attribute, ...] = (("write_buffer_index", "integer"), ("storage_scope", "scope"))
_NAMES: tuple[Attribute, ...] = (("name", "text"), ("func_name", "text"))
_UNIT_ITERS: Attribute = ("preserve_unit_iters", "flag")
_UNIT_LOOPS: Attribute = ("preserve_unit_loops", "flag")
_BUFFER = _integers("", "")  # its index, and whether it is read or written
_ALL_CONSUMERS = _with_input([])  # an empty list means all consumers
_NO_INDEX = _with_attributes(-1)

_TABLE = (
    InstructionKind("AddUnitLoop", InstructionForm("0.9", 1), counts="layout"),
    InstructionKind(
        "Annotate", InstructionForm("0.9", 2, (("ann_key", "annotation"),)), counts="annotate"
    ),
    InstructionKind(
        "AnnotateBufferAccess",
        InstructionForm("0.19", 4),
        counts="annotate",
        is_unsafe=True,
        has_expressions=True,
    ),
    InstructionKind("Bind", InstructionForm("0.8", 1, (("thread_axis", "thread"),)), counts="bind"),
    InstructionKind(
        "Blockize",
        InstructionForm("0.11", 1, (_UNIT_ITERS,)),
        older=(InstructionForm("0.9", 1, (), _with_attributes(True)),),
        counts="tensorize",
    ),
    InstructionKind(
        "CacheIndex",
        InstructionForm("0.12", 1, (("storage_scope", "scope"), ("cse_thresh", "integer"))),
        older=(
            InstructionForm(
                "0.11",
                1,
                _integers("buffer_index"),
                lost="CacheIndex of TVM 0.11 caches the index of one buffer, today's all of them",
            ),
        ),
        counts="cache_read",
    ),
    InstructionKind("CacheInplace", InstructionForm("0.11", 1, _READ), counts="cache_read"),
    InstructionKind(
        "CacheRead",
        InstructionForm("0.10", 2, _READ),
        older=(InstructionForm("0.8", 1, _READ, _ALL_CONSUMERS),),
        counts="cache_read",
    ),
    InstructionKind(
        "CacheWrite",
        InstructionForm("0.11", 2, _WRITE),
        older=(InstructionForm("0.8", 1, _WRITE, _ALL_CONSUMERS),),
        counts="cache_write",
    ),
    InstructionKind(
        "ComputeAt",
        InstructionForm("0.10", 2, (_UNIT_LOOPS, ("index", "integer"))),
        older=(InstructionForm("0.8", 2, (_UNIT_LOOPS,), _NO_INDEX),),
        counts="compute_at",
    ),
    InstructionKind("ComputeInline", InstructionForm("0.8", 1), counts="compute_inline"),
    InstructionKind("DecomposePadding", InstructionForm("0.10", 2), counts="decompose"),
    InstructionKind("DecomposeReduction", InstructionForm("0.8", 2), counts="decompose"),
    InstructionKind("EnterPostproc", InstructionForm("0.8", 0)),
    InstructionKind(
        "Fuse",
        InstructionForm("0.9", None, (_UNIT_ITERS,)),
        older=(InstructionForm("0.8", None, (), _with_attributes(1)),),
        counts="fuse",
    ),
    InstructionKind("FuseReductionEpilogue", InstructionForm("0.23", 2), counts="compute_inline"),
    InstructionKind(
        "GetBlock", InstructionForm("0.8", 0, _NAMES), until="0.24", becomes="GetSBlock"
    ),
    InstructionKind("GetChildBlocks", InstructionForm("0.8", 1)),
    InstructionKind("GetConsumers", InstructionForm("0.8", 1)),
    InstructionKind("GetLoops", InstructionForm("0.8", 1)),
    InstructionKind("GetOutputBlocks", InstructionForm("0.12", 1)),
    InstructionKind("GetProducers", InstructionForm("0.8", 1)),
    InstructionKind("GetSBlock", InstructionForm("0.24", 0, _NAMES), name="get_sblock"),
    InstructionKind(
        "LoopPartition",
        InstructionForm("0.16", None, (_UNIT_ITERS,)),
        counts="split",
        has_expressions=True,
    ),
    InstructionKind("Merge", InstructionForm("0.12", None), counts="fuse"),
    InstructionKind(
        "PadEinsum", InstructionForm("0.10", 1, (("padding", "integers"),)), counts="layout"
    ),
    InstructionKind("Parallel", InstructionForm("0.8", 1), counts="bind"),
    InstructionKind(
        "RFactor",
        InstructionForm("0.8", 1, _integers("factor_axis")),
        counts="rfactor",
        name="rfactor",
    ),
    InstructionKind("ReIndex", InstructionForm("0.9", 1, _BUFFER), counts="layout", name="reindex"),
    InstructionKind("ReadAt", InstructionForm("0.12", 2, _READ), counts="cache_read"),
    InstructionKind(
        "ReindexCacheRead",
        InstructionForm("0.12", 2, _READ),
        counts="cache_read",
        has_index_map=True,
    ),
    InstructionKind(
        "ReindexCacheWrite",
        InstructionForm("0.12", 2, _WRITE),
        counts="cache_write",
        has_index_map=True,
    ),
    InstructionKind("Reorder", InstructionForm("0.8", None), counts="reorder"),
    InstructionKind("ReorderBlockIterVar", InstructionForm("0.12", 2), counts="reorder"),
    InstructionKind(
        "ReverseComputeAt",
        InstructionForm("0.10", 2, (_UNIT_LOOPS, ("index", "integer"))),
        older=(InstructionForm("0.8", 2, (_UNIT_LOOPS,), _NO_INDEX),),
        counts="reverse_compute_at",
    ),
    InstructionKind("ReverseComputeInline", InstructionForm("0.8", 1), counts="compute_inline"),
    InstructionKind(
        "RollingBuffer",
        InstructionForm("0.11", 1, _integers("write_buffer_index")),
        counts="layout",
    ),
    InstructionKind(
        "SampleCategorical",
        InstructionForm("0.8", 0, (("candidates", "integers"), ("probs", "probabilities"))),
        counts="category",
        decision="number",
    ),
    InstructionKind(
        "SampleComputeLocation", InstructionForm("0.9", 1), counts="location", decision="number"
    ),
    InstructionKind(
        "SamplePartitionedTile",
        InstructionForm("0.13", 1, _integers("n", "partition_pos", "innerpart_factor")),
        counts="tile",
        decision="tile",
    ),
    InstructionKind(
        "SamplePerfectTile",
        InstructionForm("0.8", 1, _integers("n", "max_innermost_factor")),
        counts="tile",
        decision="tile",
    ),
    InstructionKind(
        "SetAxisSeparator",
        InstructionForm("0.9", 1, (*_BUFFER, ("", "integers"))),
        counts="layout",
        until="0.26",
    ),
    InstructionKind(
        "SetScope",
        InstructionForm("0.9", 1, (("buffer_index", "integer"), ("storage_scope", "scope"))),
        counts="layout",
    ),
    InstructionKind(
        "Split",
        InstructionForm(
            "0.17",
            None,
            (("preserve_unit_iters", "bare flag"), ("disable_predication", "bare flag")),
        ),
        older=(
            InstructionForm(
                "0.9", None, (("preserve_unit_iters", "bare flag"),), _with_attributes(0)
            ),
            InstructionForm("0.8", None, (), _with_attributes(1, 0)),
        ),
        counts="split",
        has_expressions=True,
    ),
    InstructionKind(
        "StorageAlign",
        InstructionForm("0.8", 1, _integers("buffer_index", "axis", "factor", "offset")),
        counts="storage_align",
    ),
    InstructionKind(
        "Tensorize",
        InstructionForm("0.11", 1, (("tensor_intrin", "intrinsic"), _UNIT_ITERS)),
        older=(
            InstructionForm("0.9", 1, (("tensor_intrin", "intrinsic"),), _with_attributes(True)),
        ),
        counts="tensorize",
    ),
    InstructionKind(
        "TransformBlockLayout", InstructionForm("0.9", 1, (("", "index map"),)), counts="layout"
    ),
    InstructionKind(
        "TransformLayout",
        InstructionForm("0.12", 2, (*_BUFFER, ("", "index map or none"), ("", "flag"))),
        older=(
            InstructionForm(
                "0.10",
                1,
                (*_BUFFER, ("", "index map"), ("", "index map or none")),
                _with_map_as_input,
            ),
            InstructionForm("0.9", 1, (*_BUFFER, ("", "index map")), _with_map_as_input),
        ),
        counts="layout",
        has_index_map=True,
    ),
    InstructionKind(
        "Unannotate", InstructionForm("0.9", 1, (("ann_key", "annotation"),)), counts="annotate"
    ),
    InstructionKind("Unroll", InstructionForm("0.8", 1), counts="bind"),
    InstructionKind(
        "UnsafeHideBufferAccess",
        InstructionForm("0.13", 3),
        counts="annotate",
        is_unsafe=True,
        has_expressions=True,
    ),
    InstructionKind(
        "UnsafeSetDType",
        InstructionForm("0.12", 1, (("buffer_index", "integer"), ("dtype", "text"))),
        counts="layout",
        name="unsafe_set_dtype",
        is_unsafe=True,
    ),
    InstructionKind("Vectorize", InstructionForm("0.8", 1), counts="bind"),
    InstructionKind("WriteAt", InstructionForm("0.12", 2, _WRITE), counts="cache_write"),
)

#: All kinds of instruction that TVM 0.8 to 0.27 write, by name.
INSTRUCTIONS = {instruction.kind: instruction for instruction in _TABLE}

#: Kinds of instruction of TVM 0.27.
CURRENT = {kind: value for kind, value in INSTRUCTIONS.items() if value.until is None}

#: Sampling instructions, with the types of their decisions.
SAMPLING = {kind: value.decision for kind, value in INSTRUCTIONS.items() if value.decision}

#: Instructions whose decision is a tile.
TILINGS = frozenset(kind for kind, decision in SAMPLING.items() if decision == "tile")

#: Forms by kind and numbers of inputs and attributes.
_FORMS = {
    (kind, form.inputs, len(form.attributes)): form
    for kind, value in INSTRUCTIONS.items()
    for form in (value.form, *value.older)
}


def find_form(kind: str, n_inputs: int, n_attrs: int) -> InstructionForm | None:
    """Return the form with these numbers of inputs and attributes, or None."""
    return _FORMS.get((kind, n_inputs, n_attrs)) or _FORMS.get((kind, None, n_attrs))


def form_of(kind: str, index: int, n_inputs: int, n_attrs: int) -> InstructionForm:
    """Return the form of an instruction.

    Parameters
    ----------
    kind : str
        Kind of the instruction.
    index : int
        Position in the trace, for the message.
    n_inputs, n_attrs : int
        Numbers of inputs and attributes; n-ary instructions without attributes have [].

    Raises
    ------
    FormatError
        No release has this kind with these numbers of inputs and attributes.
    """
    form = find_form(kind, n_inputs, n_attrs)
    if form is not None:
        return form
    if kind not in INSTRUCTIONS:
        raise FormatError(f"unknown instruction {kind[:80]!r} at {index}")
    newest = INSTRUCTIONS[kind].form
    if newest.inputs not in (None, n_inputs):
        raise FormatError(f"{kind} at {index} takes {newest.inputs} inputs, not {n_inputs}")
    raise FormatError(f"{kind} at {index} takes {len(newest.attributes)} attributes, not {n_attrs}")

"""The instructions of MetaSchedule's traces: one table, from which all other modules derive theirs.

A row says how each release of TVM from 0.8 on writes an instruction (``UnpackedInstTraits`` in
``src/s_tir/schedule``), what strangers may write in it, and how it counts among the features. A new
instruction of a new TVM is a new row; a new form of an old one moves today's form to ``older``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from ...errors import FormatError

#: Type of an attribute. It says which values strangers may write
#: (:mod:`tunedb.programs.metaschedule.allowlist`) and what TVM holds in memory for them.
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

#: Makes inputs and attributes of a newer form from those of an older one.
Upgrade = Callable[[list[Any], list[Any]], tuple[list[Any], list[Any]]]


@dataclass(frozen=True, slots=True)
class Form:
    """How some releases write an instruction.

    Parameters
    ----------
    since : str
        The first release of TVM that writes it so.
    inputs : int or None
        Number of inputs; None for any number.
    attributes : tuple of Attribute
        In their order.
    upgrade : callable, optional
        Makes today's form of it; None for today's, and where nothing of today says the same.
    lost : str, optional
        Why nothing of today says the same.
    """

    since: str
    inputs: int | None
    attributes: tuple[Attribute, ...] = ()
    upgrade: Upgrade | None = None
    lost: str = ""


@dataclass(frozen=True, slots=True)
class Instruction:
    """A kind of instruction.

    Parameters
    ----------
    kind : str
        Its name in a trace.
    form : Form
        Its newest form.
    older : tuple of Form
        Earlier forms, the newest first. Numbers of inputs and attributes tell them apart, never a
        version: development builds and merged files mix them.
    counts : str
        Under which name of :data:`tunedb.features.steps.columns.COUNTS` it counts; empty for what
        only names blocks, loops and values.
    name : str
        In words, where that is not the kind in snake case.
    decision : Decision, optional
        What it decides, of a sampling instruction.
    is_unsafe : bool
        Whether it sets a type or a region without a check, so that a program computes or accesses
        something else. No rule of TVM uses these.
    has_index_map : bool
        Whether an index map may be among its inputs.
    has_expressions : bool
        Whether TVM holds the numbers among its inputs as expressions.
    until : str, optional
        The first release without it.
    becomes : str, optional
        Its kind in today's TVM, where it was renamed.
    """

    kind: str
    form: Form
    older: tuple[Form, ...] = ()
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
    """Return an upgrade that appends the defaults of attributes that a later release added."""
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
_ALL_CONSUMERS = _with_input([])  # all were meant, as an empty list means today
_NO_INDEX = _with_attributes(-1)

_TABLE = (
    Instruction("AddUnitLoop", Form("0.9", 1), counts="layout"),
    Instruction("Annotate", Form("0.9", 2, (("ann_key", "annotation"),)), counts="annotate"),
    Instruction(
        "AnnotateBufferAccess",
        Form("0.19", 4),
        counts="annotate",
        is_unsafe=True,
        has_expressions=True,
    ),
    Instruction("Bind", Form("0.8", 1, (("thread_axis", "thread"),)), counts="bind"),
    Instruction(
        "Blockize",
        Form("0.11", 1, (_UNIT_ITERS,)),
        older=(Form("0.9", 1, (), _with_attributes(True)),),
        counts="tensorize",
    ),
    Instruction(
        "CacheIndex",
        Form("0.12", 1, (("storage_scope", "scope"), ("cse_thresh", "integer"))),
        older=(
            Form(
                "0.11",
                1,
                _integers("buffer_index"),
                lost="CacheIndex of TVM 0.11 caches the index of one buffer, today's all of them",
            ),
        ),
        counts="cache_read",
    ),
    Instruction("CacheInplace", Form("0.11", 1, _READ), counts="cache_read"),
    Instruction(
        "CacheRead",
        Form("0.10", 2, _READ),
        older=(Form("0.8", 1, _READ, _ALL_CONSUMERS),),
        counts="cache_read",
    ),
    Instruction(
        "CacheWrite",
        Form("0.11", 2, _WRITE),
        older=(Form("0.8", 1, _WRITE, _ALL_CONSUMERS),),
        counts="cache_write",
    ),
    Instruction(
        "ComputeAt",
        Form("0.10", 2, (_UNIT_LOOPS, ("index", "integer"))),
        older=(Form("0.8", 2, (_UNIT_LOOPS,), _NO_INDEX),),
        counts="compute_at",
    ),
    Instruction("ComputeInline", Form("0.8", 1), counts="compute_inline"),
    Instruction("DecomposePadding", Form("0.10", 2), counts="decompose"),
    Instruction("DecomposeReduction", Form("0.8", 2), counts="decompose"),
    Instruction("EnterPostproc", Form("0.8", 0)),
    Instruction(
        "Fuse",
        Form("0.9", None, (_UNIT_ITERS,)),
        older=(Form("0.8", None, (), _with_attributes(1)),),
        counts="fuse",
    ),
    Instruction("FuseReductionEpilogue", Form("0.23", 2), counts="compute_inline"),
    Instruction("GetBlock", Form("0.8", 0, _NAMES), until="0.24", becomes="GetSBlock"),
    Instruction("GetChildBlocks", Form("0.8", 1)),
    Instruction("GetConsumers", Form("0.8", 1)),
    Instruction("GetLoops", Form("0.8", 1)),
    Instruction("GetOutputBlocks", Form("0.12", 1)),
    Instruction("GetProducers", Form("0.8", 1)),
    Instruction("GetSBlock", Form("0.24", 0, _NAMES), name="get_sblock"),
    Instruction(
        "LoopPartition", Form("0.16", None, (_UNIT_ITERS,)), counts="split", has_expressions=True
    ),
    Instruction("Merge", Form("0.12", None), counts="fuse"),
    Instruction("PadEinsum", Form("0.10", 1, (("padding", "integers"),)), counts="layout"),
    Instruction("Parallel", Form("0.8", 1), counts="bind"),
    Instruction(
        "RFactor", Form("0.8", 1, _integers("factor_axis")), counts="rfactor", name="rfactor"
    ),
    Instruction("ReIndex", Form("0.9", 1, _BUFFER), counts="layout", name="reindex"),
    Instruction("ReadAt", Form("0.12", 2, _READ), counts="cache_read"),
    Instruction(
        "ReindexCacheRead", Form("0.12", 2, _READ), counts="cache_read", has_index_map=True
    ),
    Instruction(
        "ReindexCacheWrite", Form("0.12", 2, _WRITE), counts="cache_write", has_index_map=True
    ),
    Instruction("Reorder", Form("0.8", None), counts="reorder"),
    Instruction("ReorderBlockIterVar", Form("0.12", 2), counts="reorder"),
    Instruction(
        "ReverseComputeAt",
        Form("0.10", 2, (_UNIT_LOOPS, ("index", "integer"))),
        older=(Form("0.8", 2, (_UNIT_LOOPS,), _NO_INDEX),),
        counts="reverse_compute_at",
    ),
    Instruction("ReverseComputeInline", Form("0.8", 1), counts="compute_inline"),
    Instruction("RollingBuffer", Form("0.11", 1, _integers("write_buffer_index")), counts="layout"),
    Instruction(
        "SampleCategorical",
        Form("0.8", 0, (("candidates", "integers"), ("probs", "probabilities"))),
        counts="category",
        decision="number",
    ),
    Instruction("SampleComputeLocation", Form("0.9", 1), counts="location", decision="number"),
    Instruction(
        "SamplePartitionedTile",
        Form("0.13", 1, _integers("n", "partition_pos", "innerpart_factor")),
        counts="tile",
        decision="tile",
    ),
    Instruction(
        "SamplePerfectTile",
        Form("0.8", 1, _integers("n", "max_innermost_factor")),
        counts="tile",
        decision="tile",
    ),
    Instruction(
        "SetAxisSeparator",
        Form("0.9", 1, (*_BUFFER, ("", "integers"))),
        counts="layout",
        until="0.26",
    ),
    Instruction(
        "SetScope",
        Form("0.9", 1, (("buffer_index", "integer"), ("storage_scope", "scope"))),
        counts="layout",
    ),
    Instruction(
        "Split",
        Form(
            "0.17",
            None,
            (("preserve_unit_iters", "bare flag"), ("disable_predication", "bare flag")),
        ),
        older=(
            Form("0.9", None, (("preserve_unit_iters", "bare flag"),), _with_attributes(0)),
            Form("0.8", None, (), _with_attributes(1, 0)),
        ),
        counts="split",
        has_expressions=True,
    ),
    Instruction(
        "StorageAlign",
        Form("0.8", 1, _integers("buffer_index", "axis", "factor", "offset")),
        counts="storage_align",
    ),
    Instruction(
        "Tensorize",
        Form("0.11", 1, (("tensor_intrin", "intrinsic"), _UNIT_ITERS)),
        older=(Form("0.9", 1, (("tensor_intrin", "intrinsic"),), _with_attributes(True)),),
        counts="tensorize",
    ),
    Instruction("TransformBlockLayout", Form("0.9", 1, (("", "index map"),)), counts="layout"),
    Instruction(
        "TransformLayout",
        Form("0.12", 2, (*_BUFFER, ("", "index map or none"), ("", "flag"))),
        older=(
            Form(
                "0.10",
                1,
                (*_BUFFER, ("", "index map"), ("", "index map or none")),
                _with_map_as_input,
            ),
            Form("0.9", 1, (*_BUFFER, ("", "index map")), _with_map_as_input),
        ),
        counts="layout",
        has_index_map=True,
    ),
    Instruction("Unannotate", Form("0.9", 1, (("ann_key", "annotation"),)), counts="annotate"),
    Instruction("Unroll", Form("0.8", 1), counts="bind"),
    Instruction(
        "UnsafeHideBufferAccess",
        Form("0.13", 3),
        counts="annotate",
        is_unsafe=True,
        has_expressions=True,
    ),
    Instruction(
        "UnsafeSetDType",
        Form("0.12", 1, (("buffer_index", "integer"), ("dtype", "text"))),
        counts="layout",
        name="unsafe_set_dtype",
        is_unsafe=True,
    ),
    Instruction("Vectorize", Form("0.8", 1), counts="bind"),
    Instruction("WriteAt", Form("0.12", 2, _WRITE), counts="cache_write"),
)

#: All kinds of instruction that TVM 0.8 to 0.27 write, by name.
INSTRUCTIONS = {instruction.kind: instruction for instruction in _TABLE}

#: Those of TVM 0.27.
CURRENT = {kind: value for kind, value in INSTRUCTIONS.items() if value.until is None}

#: Sampling instructions and what they decide.
SAMPLING = {kind: value.decision for kind, value in INSTRUCTIONS.items() if value.decision}

#: Instructions whose decision is a tile.
TILINGS = frozenset(kind for kind, decision in SAMPLING.items() if decision == "tile")

#: Forms by kind and numbers of inputs and attributes.
_FORMS = {
    (kind, form.inputs, len(form.attributes)): form
    for kind, value in INSTRUCTIONS.items()
    for form in (value.form, *value.older)
}


def find_form(kind: str, n_inputs: int, n_attrs: int) -> Form | None:
    """Return the form of a kind with so many inputs and attributes, None where there is none."""
    return _FORMS.get((kind, n_inputs, n_attrs)) or _FORMS.get((kind, None, n_attrs))


def form_of(kind: str, index: int, n_inputs: int, n_attrs: int) -> Form:
    """Return the form in which some release wrote an instruction.

    Parameters
    ----------
    kind : str
        Of the instruction.
    index : int
        Where it stands, for the message.
    n_inputs, n_attrs : int
        How many it has; n-ary instructions without attributes write [] for them.

    Raises
    ------
    FormatError
        No release has this kind, or wrote so many inputs and attributes.
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

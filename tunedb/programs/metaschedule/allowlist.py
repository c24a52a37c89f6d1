"""Allow-list for foreign programs of MetaSchedule, applied to their stored parts.

:mod:`.instructions` defines the allowed instructions and the types of their attributes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from reprlib import repr as shown  # bounded: a value may be long and deep
from typing import Any

import orjson

from ... import limits
from ...errors import FormatError
from ...identity import canonical_json
from ..allowlist import check_length, is_int, is_text
from .instructions import INSTRUCTIONS, SAMPLING, InstructionForm, Type, form_of
from .trace import NO_OUTPUT, is_variable

# ---- Allowed kinds, attributes and annotations ---------------------------------------------------
#
# The lists cover the output of the schedule rules, postprocessors and mutators of TVM 0.8 to 0.27
# (``src/s_tir/meta_schedule``, ``include/tvm/s_tir/stmt.h``). A test checks them against the public
# logs and programs that TVM tunes.

#: Allowed kinds of instruction, today's and those of earlier releases.
KINDS = frozenset(kind for kind, value in INSTRUCTIONS.items() if not value.is_unsafe)

_INTRINSIC = re.compile(rf"[A-Za-z0-9_.]{{1,{limits.MAX_FOREIGN_NAME_CHARS}}}")

#: Annotations with a number or a variable.
NUMBERS = frozenset(
    {
        *(
            f"meta_schedule.{name}"
            for name in (
                *("cooperative_fetch", "thread_extent_low_inclusive"),
                *("thread_extent_high_inclusive", "random_compute_producer", "parallel"),
                *("vectorize", "unroll_explicit", "unroll_implicit", "layout_rewrite_preproc"),
                *("cache_type", "tensor_core_enabled"),
            )
        ),
        *("pragma_auto_unroll_max_step", "pragma_unroll_explicit"),
        *("double_buffer_scope", "warp_execution", "auto_copy", "local_stage", "vector_bytes"),
        *(f"{ir}.manifest_shared_memory_local_stage" for ir in ("tir", "tirx", "s_tir")),
        "permuted_layout",
    }
)

#: Annotations with a text → pattern of the allowed texts.
TEXTS: dict[str, re.Pattern[str]] = {
    "meta_schedule.tiling_structure": re.compile(r"[A-Z]{1,32}"),
    "meta_schedule.auto_tensorize": re.compile(rf"|{_INTRINSIC.pattern}"),
    "meta_schedule.auto_tensorize_init": re.compile(rf"|{_INTRINSIC.pattern}"),
    "meta_schedule.tensor_core_enabled": re.compile(r"[01]"),
    "meta_schedule.inline_rule": re.compile(r"[a-z_]{1,32}"),
    "permuted_layout": re.compile(r"[A-Za-z0-9_]{1,32}"),
}

#: Annotations with a list of numbers.
LISTS = frozenset(
    {"software_pipeline_stage", "software_pipeline_order", "software_pipeline_async_stages"}
)

#: Annotations that Unannotate may remove: all of the above, and a workload's schedule rule.
REMOVABLE = NUMBERS | LISTS | TEXTS.keys() | {"schedule_rule"}

_THREADS = frozenset(
    f"{name}.{axis}" for name in ("blockIdx", "threadIdx", "vthread") for axis in "xyz"
) | {"vthread"}

#: Storage scopes: a rank with optional tags (``StorageScope::Create``).
_SCOPE = re.compile(
    r"(global|shared|local|warp|texture)([.:-][a-z0-9_]{1,24}){0,2}"
    r"|wmma\.(matrix_a|matrix_b|accumulator)|m16n8k8\.matrix[ABC]|metal\.simdgroup"
)

#: Node types of an index map: arithmetic on its variables, without calls, loads and operators by
#: name. The prefix before the dot changes from release to release.
_NODE = re.compile(
    r"|(?:(?:tir|tirx|s_tir|ir|prim|ffi|runtime|node)\.)?"
    r"(?:IndexMap|Array|Var|String|PrimType|IntImm|FloatImm|Add|Sub|Mul|Div|Mod|FloorDiv|FloorMod"
    r"|Min|Max|EQ|NE|LT|LE|GT|GE|And|Or|Not|Select|Cast|None|int|float|bool|str|dtype|DataType)"
)
_GRAPH_KEYS = frozenset({"root_index", "root", "nodes", "metadata", "attrs", "b64ndarrays"})
_NODE_KEYS = frozenset({"type", "data", "type_key", "attrs", "repr_str", "keys"})

#: Kinds with an index map among their inputs.
_MAPPED = frozenset(kind for kind, value in INSTRUCTIONS.items() if value.has_index_map)

_MAX_VARIABLE_CHARS = 12


def is_name(value: Any) -> bool:
    """Return True for the name of a variable of plausible length."""
    return is_variable(value) and len(value) <= _MAX_VARIABLE_CHARS


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool) or (type(value) is int and value in (0, 1))


def _is_scope(value: Any) -> bool:
    return isinstance(value, str) and _SCOPE.fullmatch(value) is not None


def _is_intrinsic(value: Any) -> bool:
    return isinstance(value, str) and _INTRINSIC.fullmatch(value) is not None


def _is_thread(value: Any) -> bool:
    return isinstance(value, str) and value in _THREADS


def _is_removable(value: Any) -> bool:
    return isinstance(value, str) and value in REMOVABLE


def _are_ints(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_int, value))


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is float or is_int(item) for item in value)


def _is_map(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    check_index_map("an attribute", value)
    return True


def _is_map_or_none(value: Any) -> bool:
    return value is None or _is_map(value)


#: Type of an attribute → check of its values.
_CHECKS: dict[Type, Callable[[Any], bool]] = {
    "annotation": _is_removable,
    "bare flag": _is_flag,
    "flag": _is_flag,
    "index map": _is_map,
    "index map or none": _is_map_or_none,
    "integer": is_int,
    "integers": _are_ints,
    "intrinsic": _is_intrinsic,
    "probabilities": _are_numbers,
    "scope": _is_scope,
    "text": is_text,
    "thread": _is_thread,
}


def _check_attrs(where: str, form: InstructionForm, attrs: list[Any]) -> None:
    """Raise FormatError for an attribute that does not match the type in its form."""
    for (_, type_), value in zip(form.attributes, attrs, strict=True):
        try:
            is_allowed = _CHECKS[type_](value)
        except FormatError as error:  # of an index map
            raise FormatError(f"{where}: {error}") from None
        if not is_allowed:
            raise FormatError(f"{where} has the attribute {shown(value)}, which is not allowed")


def check_index_map(where: str, text: str) -> None:
    """Raise FormatError unless a text is an index map that holds only arithmetic.

    Parameters
    ----------
    where : str
        Name of the instruction in messages.
    text : str
        The JSON of ``tvm.ir.save_json``. Its objects refer to one another by number; in graphs that
        TVM 0.27 may read, only to earlier objects, which excludes reference cycles.

    Raises
    ------
    FormatError
        The text is not an index map, is too long, or holds another type of object, such as a call.
    """
    if len(text) > limits.MAX_INDEX_MAP_CHARS:
        raise FormatError(f"{where} has an index map of {len(text)} characters")
    find = _index_map_problem if len(text) > limits.MAX_REMEMBERED_BYTES else _cached_problem
    problem = find(text)
    if problem is not None:
        raise FormatError(f"{where} has {problem}")


def _index_map_problem(text: str) -> str | None:
    """Return why a text is not an allowed index map, or None."""
    graph = _graph_of(text)
    nodes = graph.get("nodes")
    if not isinstance(nodes, list) or not graph.keys() <= _GRAPH_KEYS or graph.get("b64ndarrays"):
        return f"{shown(text)} for an index map"
    is_current = "root_index" in graph
    for index, node in enumerate(nodes):
        if not isinstance(node, dict) or not node.keys() <= _NODE_KEYS:
            return f"an index map with the object {shown(node)}"
        type_ = node.get("type", node.get("type_key"))
        if not isinstance(type_, str) or _NODE.fullmatch(type_) is None:
            return f"an index map with the type {shown(type_)}"
        if is_current and "." in type_ and _refers_ahead(index, type_, node.get("data")):
            return "an index map with a reference cycle"
    if is_current and not _is_index_of_map(graph["root_index"], nodes):
        return "a text that is not an index map"
    return None


#: Many tails share a map.
_cached_problem = lru_cache(maxsize=512)(_index_map_problem)


def _graph_of(text: str) -> dict[str, Any]:
    """Return the object of a JSON text; an empty one for any other text."""
    try:
        graph = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return graph if isinstance(graph, dict) else {}


def _refers_ahead(index: int, type_: str, data: Any) -> bool:
    """Return whether an object refers to itself or to a later one."""
    if isinstance(data, dict):
        # Until TVM 0.26 an integer held its value itself (upgrade.is_current_graph).
        fields = data.items()
        numbers = [v for key, v in fields if key != "value" or not type_.endswith(".IntImm")]
    else:
        numbers = data if isinstance(data, list) else []
    return any(type(number) is int and not 0 <= number < index for number in numbers)


def _is_index_of_map(root: Any, nodes: list[Any]) -> bool:
    return (
        type(root) is int
        and 0 <= root < len(nodes)
        and str(nodes[root].get("type")).endswith(".IndexMap")
    )


# ---- Instructions --------------------------------------------------------------------------------

_PLACE: dict[str, Any] = {}
_MAX_NESTING = 3
#: Bytes of an instruction whose facts are cached; those with an index map are longer, and differ.
_MAX_REMEMBERED_BYTES = 512

#: Text between two instructions of a part: the outputs of one end, the next begins with its kind.
_BETWEEN = b']],["'

#: Fast path that matches nearly all valid decisions: pairs of an index and an integer or a list of
#: integers, and two lists of numbers. Numbers of 19 digits may be too long.
_PLAIN = re.compile(
    rb"\[\[(?:\[\d{1,6},(?:-?\d++|\[[-\d,]*+\])\],?)*+\],\[[-+.\deE,]*+\],\[[-+.\deE,]*+\]\]"
)
_LONG = re.compile(rb"\d{19}")


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of a sketch or a tail that a program is checked against.

    Parameters
    ----------
    length : int
        Number of instructions.
    places : int
        Number of placeholders among the inputs.
    sampling : dict
        Index of each sampling instruction → True if its decision is a list.
    defined, free : frozenset of str
        Variables that the part defines, and variables that it uses without defining them.
    """

    length: int
    places: int
    sampling: dict[int, bool]
    defined: frozenset[str]
    free: frozenset[str]


def check_sketch(body: bytes) -> Facts:
    """Check a sketch and return its facts.

    Parameters
    ----------
    body : bytes
        As for :func:`check_tail`.

    Raises
    ------
    FormatError
        The sketch holds an instruction that is not allowed, or uses an undefined variable.
    """
    sketch = check_tail(body)
    if sketch.free:
        raise FormatError(f"{min(sketch.free)!r} is used before it is defined")
    return sketch


def check_tail(body: bytes) -> Facts:
    """Check a tail and return its facts.

    Parameters
    ----------
    body : bytes
        Canonical JSON of its instructions, as stored.

    Raises
    ------
    FormatError
        The tail holds an instruction that is not allowed.
    """
    sampling: dict[int, bool] = {}
    defined: set[str] = set()
    free: set[str] = set()
    places = 0
    instructions = _facts_of_known(body) or _facts_of_all(body)
    for index, facts in enumerate(instructions):
        for name in facts.used:
            if name not in defined:
                free.add(name)
        for name in facts.defined:
            if name in defined:
                raise FormatError(
                    f"{facts.kind} at {index} has the output {shown(name)}, not a new variable"
                )
            defined.add(name)
        places += facts.places
        if facts.is_tile is not None:
            sampling[index] = facts.is_tile
    return Facts(len(instructions), places, sampling, frozenset(defined), frozenset(free))


@dataclass(frozen=True, slots=True)
class _InstructionFacts:
    """The facts of an instruction that do not depend on its position.

    Parameters
    ----------
    kind : str
        The instruction.
    used, defined : tuple of str
        Variables among its inputs, and its outputs.
    places : int
        Number of placeholders among the inputs.
    is_tile : bool or None
        Whether its decision is a list; None without a decision.
    """

    kind: str
    used: tuple[str, ...]
    defined: tuple[str, ...]
    places: int
    is_tile: bool | None


def _facts_of_known(body: bytes) -> list[_InstructionFacts] | None:
    """Return the facts of a part whose instructions are all allowed; None for others.

    Most instructions of a part are those of other parts, too, so it is not parsed: its text is cut
    between instructions. Each piece is an instruction in the canonical form, and so is their list.
    """
    pieces = body[1:-1].split(_BETWEEN)
    if body[:1] + body[-1:] != b"[]" or len(pieces) > limits.MAX_FOREIGN_STEPS:
        return None
    last = len(pieces) - 1
    found = []
    for index, piece in enumerate(pieces):
        text = (b'["' if index else b"") + piece + (b"]]" if index < last else b"")
        facts = (_remembered if len(text) <= _MAX_REMEMBERED_BYTES else _facts_of)(text)
        if facts is None:
            return None
        found.append(facts)
    return found


def _facts_of_all(body: bytes) -> list[_InstructionFacts]:
    """Return the facts of all instructions, or raise FormatError."""
    try:
        instructions = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise FormatError(f"not JSON: {error}") from None
    if not isinstance(instructions, list):
        raise FormatError("no list of instructions")
    if len(instructions) > limits.MAX_FOREIGN_STEPS:
        raise FormatError(f"{len(instructions)} instructions, over {limits.MAX_FOREIGN_STEPS}")
    found = [_checked(index, instruction) for index, instruction in enumerate(instructions)]
    if not _is_canonical(instructions, body):
        raise FormatError("not in the canonical form")
    return found


def _facts_of(text: bytes) -> _InstructionFacts | None:
    """Return the facts of an instruction; None if it is not allowed, or not canonical JSON."""
    try:
        instruction = orjson.loads(text)
        facts = _checked(-1, instruction)
    except (FormatError, orjson.JSONDecodeError):
        return None
    return facts if _is_canonical(instruction, text) else None


_remembered = lru_cache(maxsize=16384)(_facts_of)


def _is_canonical(value: Any, text: bytes) -> bool:
    try:
        return canonical_json(value) == text
    except TypeError:  # nested too deep
        return False


def _checked(index: int, instruction: Any) -> _InstructionFacts:
    """Return the facts of an instruction, or raise FormatError."""
    if not (
        isinstance(instruction, list)
        and len(instruction) == 4
        and isinstance(instruction[0], str)
        and all(isinstance(field, list) for field in instruction[1:])
    ):
        raise FormatError(f"instruction {index} is not [kind, inputs, attrs, outputs]")
    kind, inputs, attrs, outputs = instruction
    if kind not in KINDS:
        raise FormatError(f"instruction {index} is {shown(kind)}, which is not allowed")
    form = form_of(kind, index, len(inputs), len(attrs))
    checker = _InputChecker(kind, f"{kind} at {index}")
    if kind == "Annotate":
        checker.check_annotation(*inputs, *attrs)
    else:
        for value in inputs:
            checker.check(value, _MAX_NESTING)
        _check_attrs(checker.where, form, attrs)
    defined = tuple(name for name in outputs if name != NO_OUTPUT)
    for name in defined:
        if not is_name(name):
            raise FormatError(f"{checker.where} has the output {shown(name)}, not a new variable")
    is_tile = SAMPLING[kind] == "tile" if kind in SAMPLING else None
    return _InstructionFacts(kind, tuple(checker.used), defined, checker.places, is_tile)


class _InputChecker:
    """Checker of the inputs of one instruction, which collects variables and placeholders."""

    def __init__(self, kind: str, where: str) -> None:
        self.kind = kind
        self.where = where
        self.used: list[str] = []
        self.places = 0

    def check(self, value: Any, depth: int) -> None:
        """Check an input of an instruction other than Annotate."""
        if isinstance(value, str):
            if is_name(value):
                self.used.append(value)
            elif value[:1] == "{" and self.kind in _MAPPED:
                check_index_map(self.where, value)
            elif value != "None":
                raise FormatError(f"{self.where} has the text {shown(value)} among its inputs")
        elif value == _PLACE:
            self.places += 1
        elif isinstance(value, list) and depth:
            for item in value:
                self.check(item, depth - 1)
        else:
            raise FormatError(f"{self.where} has {shown(value)} among its inputs")

    def check_annotation(self, place: Any, value: Any, key: Any) -> None:
        """Check an annotation: its block or loop, value and key."""
        if not is_name(place):
            raise FormatError(f"{self.where} annotates {shown(place)}, not a block or loop")
        self.used.append(place)
        if not isinstance(key, str) or key not in REMOVABLE or key == "schedule_rule":
            raise FormatError(f"{self.where}: the annotation {shown(key)} is not allowed")
        if isinstance(value, list):
            if key not in LISTS or any(item != _PLACE for item in value):
                raise FormatError(f"{self.where}: {key} is {shown(value)}, which is not allowed")
            self.places += len(value)
        elif isinstance(value, str) and not is_name(value):
            text = value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else None
            if text is None or key not in TEXTS or TEXTS[key].fullmatch(text) is None:
                raise FormatError(f"{self.where}: {key} is {shown(value)}, which is not allowed")
        elif key not in NUMBERS or not (isinstance(value, bool | str) or value == _PLACE):
            raise FormatError(f"{self.where}: {key} is {shown(value)}, which is not allowed")
        elif isinstance(value, str):
            self.used.append(value)
        elif value == _PLACE:
            self.places += 1


# ---- Decisions -----------------------------------------------------------------------------------


def check_decisions(decisions: bytes) -> None:
    """Raise FormatError unless decisions and literals are well formed.

    Parameters
    ----------
    decisions : bytes
        The decisions as stored.
    """
    before = -1
    for index, value in _read(decisions)[0]:
        if index <= before:
            raise FormatError(f"decisions: {shown([index, value])} is out of order")
        before = index


def check_program(sketch: Facts, tail: Facts | None, decisions: bytes) -> None:
    """Raise FormatError unless checked parts belong together.

    Parameters
    ----------
    sketch, tail : Facts
        Facts from :func:`check_sketch` and :func:`check_tail`.
    decisions : bytes
        The decisions as stored.
    """
    chosen, first, second = _read(decisions)
    sampling, places = sketch.sampling, 0
    if tail is not None:
        places = tail.places
        _check_tail(sketch, tail)
        if tail.sampling:
            more = tail.sampling.items()
            sampling = sampling | {sketch.length + index: is_list for index, is_list in more}
    if len(first) != sketch.places or len(second) != places:
        raise FormatError(
            f"decisions: {len(first)} and {len(second)} numbers for {sketch.places} and {places} "
            "places"
        )
    before = -1
    for index, value in chosen:
        if index <= before:
            raise FormatError(f"decisions: {shown([index, value])} is out of order")
        before = index
        if sampling.get(index) is not (type(value) is list):
            raise FormatError(
                f"decisions: {shown(value)} for instruction {index} is not a decision"
            )


def _check_tail(sketch: Facts, tail: Facts) -> None:
    """Raise FormatError unless a tail continues a sketch."""
    length = sketch.length + tail.length
    if length > limits.MAX_FOREIGN_STEPS:
        raise FormatError(f"{length} instructions, over {limits.MAX_FOREIGN_STEPS}")
    if not tail.free <= sketch.defined:
        name = min(tail.free - sketch.defined)
        raise FormatError(f"tail: {name!r} is used before it is defined")
    if not tail.defined.isdisjoint(sketch.defined):
        raise FormatError("tail: it defines a variable of the sketch again")


def _read(decisions: bytes) -> tuple[list[Any], list[Any], list[Any]]:
    """Return decisions and the numbers of sketch and tail, or raise FormatError."""
    check_length(decisions)
    is_plain = _PLAIN.fullmatch(decisions) is not None and _LONG.search(decisions) is None
    try:
        chosen, first, second = orjson.loads(decisions)
        if not is_plain:
            _check_numbers(chosen, first, second)
    except (TypeError, ValueError) as error:
        raise FormatError(f"decisions: not those of a trace ({error})") from None
    return chosen, first, second


def _check_numbers(chosen: Any, first: Any, second: Any) -> None:
    """Raise FormatError, TypeError or ValueError for an invalid decision or literal."""
    for index, value in chosen:
        values = value if type(value) is list else [value]
        if type(index) is not int or not all(map(is_int, values)):
            raise FormatError(f"decisions: {shown([index, value])} is not a decision")
    for numbers in (first, second):
        if type(numbers) is not list or not all(type(n) is float or is_int(n) for n in numbers):
            raise FormatError(f"decisions: {shown(numbers)} are not numbers")

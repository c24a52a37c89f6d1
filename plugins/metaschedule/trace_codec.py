"""Traces between TVM's objects and their stored form, without replaying them.

The stored form is that of :mod:`tunedb.programs.metaschedule.trace`.

``Trace.as_json`` takes 0.6 ms of Python recursion and TVM reads a trace back by replaying it on a
schedule (1 ms for a matmul, 6 ms for a conv2d). Here a compiled encoder writes the stored form in
some 20 us, and :class:`TraceBuilder` builds the instructions of each sketch once and shares them.

Two details are lost, as in TVM's own file: an annotation 1.0 comes back as the integer 1, and a
bare ``True`` as 1 (an ``IntImm`` of type bool stays one).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, NamedTuple

import orjson
import tvm
import tvm_ffi
from cachetools import LRUCache
from tvm.s_tir.schedule import Schedule
from tvm.s_tir.schedule import _ffi_api as _api
from tvm.tirx import FloatImm, IndexMap, IntImm, Var

from ...errors import FormatError, PluginError
from ...programs.metaschedule.index_maps import NEWEST, written
from ...programs.metaschedule.instructions import CURRENT, Type
from ...programs.metaschedule.trace import NO_OUTPUT, dump_value, join_trace, split_trace
from ...programs.metaschedule.upgrade import as_of, upgrade
from ...records import Trace
from . import compat
from .intrinsics import load_intrinsics, needs_intrinsics

# ---- Instructions of TVM made from the parts of a stored trace -----------------------------------
#
# TVM's own reader needs a schedule (``Trace::ApplyJSONToSchedule``). This module repeats its
# conversions of the JSON, and those of the schedule's primitives, type by type
# (``src/s_tir/schedule/trace.cc``, ``traced_schedule.cc``), because the mutators read attributes
# and decisions without conversions. The tests compare every kind with TVM's own instructions.


class Hole(NamedTuple):
    """An instruction with literals among its inputs, which is built for each trace."""

    position: int
    kind: Any
    literal: Callable[[Any], Any]
    inputs: list[Any]
    attrs: Any
    outputs: list[Any]


class Part(NamedTuple):
    """The instructions of a sketch or tail, shared by all traces that have it.

    Parameters
    ----------
    serial : int
        Number that distinguishes two parts of the same sketch.
    instructions : list
        Instructions of TVM, with None for those with holes.
    holes : list of Hole
        The instructions at those places.
    variables : dict
        Random variables by name, including those of earlier parts.
    """

    serial: int
    instructions: list[Any]
    holes: list[Hole]
    variables: dict[str, Any]


class _Literal:
    """Placeholder in a hole's inputs for a number of the trace."""


_LITERAL = _Literal()


def make_part(serial: int, instructions: list[Any], variables: dict[str, Any]) -> Part:
    """Return the part of a trace whose stored form is `instructions`.

    Parameters
    ----------
    serial : int
        The part's own number.
    instructions : list
        ``[kind, inputs, attrs, outputs]`` with ``{}`` for literals.
    variables : dict
        Random variables of earlier parts.

    Raises
    ------
    ValueError
        TVM 0.27 lacks an instruction, or a variable is undefined.
    """
    part = Part(serial, [], [], dict(variables))
    for kind, inputs, attrs, outputs in instructions:
        _append(part, kind, inputs, attrs, outputs)
    return part


def fill(part: Part, literals: list[Any]) -> list[Any]:
    """Return the part's instructions with the literals of one trace.

    Raises
    ------
    ValueError
        The numbers of places and of literals differ.
    """
    instructions = part.instructions.copy()
    values = iter(literals)
    for hole in part.holes:
        inputs = _put(hole.inputs, values, hole.literal)
        instructions[hole.position] = _api.Instruction(hole.kind, inputs, hole.attrs, hole.outputs)
    if next(values, _LITERAL) is not _LITERAL:
        raise ValueError("more literals than places for them")
    return instructions


def _put(inputs: list[Any], values: Any, convert: Callable[[Any], Any]) -> list[Any]:
    filled = []
    for value in inputs:
        if value is _LITERAL:
            literal = next(values, _LITERAL)
            if literal is _LITERAL:
                raise ValueError("fewer literals than places for them")
            filled.append(convert(literal))
        else:
            filled.append(_put(value, values, convert) if type(value) is list else value)
    return filled


def _append(part: Part, name: str, inputs: Any, attrs: Any, outputs: Any) -> None:
    """Add an instruction to a part under construction."""
    if name not in CURRENT:
        raise ValueError(f"unknown instruction {name!r}")
    form = CURRENT[name].form
    if form.inputs not in (None, len(inputs)) or len(form.attributes) != len(attrs):
        raise ValueError(f"{name} with {len(inputs)} inputs and {len(attrs)} attributes")
    kind = _kind(name)
    found = [_input(value, part.variables) for value in inputs]
    made = _attrs(name, attrs)
    results = [_output(output, part.variables) for output in outputs]
    if _has_literal(found):
        literal = _expression if CURRENT[name].has_expressions else check_int64
        part.holes.append(Hole(len(part.instructions), kind, literal, found, made, results))
        part.instructions.append(None)
    else:
        part.instructions.append(_api.Instruction(kind, found, made, results))


@cache
def _kind(name: str) -> Any:
    return _api.InstructionKindGet(name)


def _has_literal(inputs: list[Any]) -> bool:
    return any(
        _has_literal(value) if type(value) is list else value is _LITERAL for value in inputs
    )


def _input(value: Any, variables: dict[str, Any]) -> Any:
    """Return an input as TVM has it in memory (``TranslateInputRVs`` in ``trace.cc``)."""
    if type(value) is str:
        found = variables.get(value)
        return _named_input(value, variables) if found is None else found
    if type(value) is list:
        return [_input(item, variables) for item in value]
    if type(value) is bool:
        return _bool(value)
    return _LITERAL if value == {} else value


def _named_input(text: str, variables: dict[str, Any]) -> Any:
    """Return the value of a string among inputs that is not a random variable."""
    if text == "None":
        return None
    if len(text) >= 2 and text[0] == text[-1] == '"':
        return text[1:-1]
    if text[:1] == "{" and text[-1:] == "}":
        return _index_map(text, variables)
    raise ValueError(f"{text[:80]!r} is used before it is defined")


def _output(name: str, variables: dict[str, Any]) -> Any:
    """Return the random variable of an output and define it."""
    if name == NO_OUTPUT:
        return None
    made = variables[name] = _variable(name)
    return made


@lru_cache(maxsize=4096)
def _variable(name: str) -> Any:
    """Return a random variable of the kind in its name, as TVM names them.

    Variables need to be distinct inside of one trace only, as names are, and hold no values. So all
    traces share the variable of a name, which halves the time to build a sketch.
    """
    if name[:1] == "b":
        return _api.SBlockRV()
    if name[:1] == "l":
        return _api.LoopRV()
    if name[:1] == "v":
        return Var(name, "int32")
    raise ValueError(f"an output named {name!r}")


def _index_map(text: str, variables: dict[str, Any]) -> Any:
    """Return the index map of its JSON.

    TVM replaces free variables by the random variables of their names. Its Python side has no
    substitution that keeps the expressions unchanged, so TVM's own reader handles such a map.
    """
    graph = orjson.loads(text)
    nodes = graph["nodes"]
    root = nodes[graph["root_index"]]
    if root["type"] != "tirx.IndexMap":
        raise ValueError(f"expected an index map, not an object of type {root['type']}")
    bound = set(nodes[root["data"]["initial_indices"]]["data"])
    for index, node in enumerate(nodes):
        if node["type"] == "ir.Var" and index not in bound:
            name = nodes[node["data"]["name"]]["data"]
            if name in variables:
                raise ValueError(f"an index map over the random variable {name}")
    if compat.number() != NEWEST:
        text = written(graph, compat.number())
    return tvm_ffi.serialization.from_json_graph_str(text)


# ---- attributes and literals, by kind ------------------------------------------------------------


# Numbers are few and small, and expressions are immutable, so traces share them. Booleans and
# integers have separate caches, because True and 1 are one key.
@lru_cache(maxsize=4096)
def _int32(value: int) -> Any:
    return IntImm("int32", value)


@lru_cache(maxsize=2)
def _bool(value: bool) -> Any:
    return IntImm("bool", value)


@lru_cache(maxsize=256)
def _float32(value: float) -> Any:
    return FloatImm("float32", value)


def check_int64(value: Any) -> Any:
    """Return a number; integers beyond int64 are refused, because TVM would accept them.

    Raises
    ------
    ValueError
        The integer is beyond int64.
    """
    if type(value) is int and not -(2**63) <= value < 2**63:
        raise ValueError(f"the number {value} has more than 64 bits")
    return value


def _plain(value: Any) -> Any:
    return value


def _expression(value: int | float) -> Any:
    """Return a number as TVM's conversion to an expression returns it."""
    if type(value) is float:
        return _float32(value)
    if -(2**31) <= value < 2**31:
        return _int32(value)
    return IntImm("int64", check_int64(value))


def _default(value: Any) -> Any:
    """Return an attribute whose type follows from its JSON."""
    if type(value) is bool:
        return _bool(value)
    return _expression(value) if type(value) in (int, float) else value


def _probabilities(value: Any) -> Any:
    # The file has an integral float as an integer.
    return [_float32(float(item)) for item in value]


def _attr_index_map(value: Any) -> Any:
    # TVM substitutes no variables in attributes.
    return None if value is None else _index_map(value, {})


#: Types of attributes whose JSON does not determine their type in memory.
_CONVERSIONS: dict[Type, Callable[[Any], Any]] = {
    "bare flag": bool,
    "index map": _attr_index_map,
    "index map or none": _attr_index_map,
    "integers": _plain,
    "probabilities": _probabilities,
}

_ATTRS = {
    kind: tuple(_CONVERSIONS.get(type_, _default) for _, type_ in value.form.attributes)
    for kind, value in CURRENT.items()
}


def _attrs(name: str, attrs: list[Any]) -> Any:
    """Return the attributes of an instruction as an array of TVM; arrays are immutable."""
    return _attrs_of_json(name, orjson.dumps(attrs))


@lru_cache(maxsize=4096)
def _attrs_of_json(name: str, text: bytes) -> Any:
    values = zip(_ATTRS[name], orjson.loads(text), strict=True)
    return tvm_ffi.convert([convert(value) for convert, value in values])


# ---- Traces --------------------------------------------------------------------------------------

try:
    from ._encode import Encoder
except ImportError:  # not compiled: everything works, slower
    Encoder = None  # type: ignore[assignment,misc]

_log = logging.getLogger("tunedb")

_item = tvm_ffi.get_global_func("ffi.ArrayGetItem")
_to_json_graph = tvm_ffi.get_global_func("ffi.ToJSONGraph")
_stringify = tvm_ffi.get_global_func("ffi.json.Stringify")
#: Errors of TVM and of the conversion to its objects (TVM's own errors are RuntimeErrors).
_ERRORS = (TypeError, ValueError, LookupError, AttributeError, OverflowError, RuntimeError)

_METADATA = {"tvm_version": tvm.__version__}


class UnknownInstructionError(PluginError):
    """A trace that this module cannot convert; TVM's own, slower way may (:func:`replay`)."""


# ---- from TVM to the stored form -----------------------------------------------------------------


def encode(trace: Any) -> Trace:
    """Return the stored form of a trace of TVM.

    Raises
    ------
    UnknownInstructionError
        TVM cannot write the trace as JSON either, e.g. for an annotation that is NaN.
    """
    try:
        tree = _api.TraceAsJSON(trace, False)
    except _ERRORS as error:
        raise UnknownInstructionError(f"TVM cannot write the trace as JSON: {error}") from error
    stored = _encoded(tree)
    # The index maps of an earlier release have another form.
    return stored if compat.number() == NEWEST else upgrade(stored)


def _encoded(tree: Any) -> Trace:
    encoder = _encoder()
    if encoder is not None:
        try:
            return Trace(*encoder.encode(tree))
        except (TypeError, ValueError, FormatError) as error:
            _log.debug("the compiled encoder refused a trace: %s", error)
    return _encode_in_python(tree)


def dumps(value: Any) -> bytes:
    """Return canonical JSON of arrays, maps, strings and numbers of TVM, such as ``args_info``.

    Raises
    ------
    FormatError
        A value has no JSON form.
    """
    encoder = _encoder()
    try:
        if encoder is not None and isinstance(value, tvm_ffi.Array):
            return bytes(encoder.dumps(value))
        return _dumps_in_python(value)
    except FormatError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise FormatError(f"a value has no JSON form: {error}") from error


def items_of(values: Any) -> list[Any]:
    """Return the elements of an array of TVM; iterating over it takes four times as long."""
    return [_item(values, index) for index in range(len(values))]


def floats_of(values: Any) -> tuple[float, ...]:
    """Return the numbers in an array of TVM, such as ``run_secs``, bit for bit."""
    return tuple([float(value) for value in items_of(values)])


def _encode_in_python(tree: Any) -> Trace:
    try:
        instructions, decisions = plain(tree)
        return split_trace(instructions, decisions)
    except (TypeError, ValueError, RecursionError, FormatError) as error:
        raise UnknownInstructionError(f"the trace has no JSON form: {error}") from error


def _dumps_in_python(value: Any) -> bytes:
    return dump_value(plain(value))


def plain(value: Any) -> Any:
    """Return a tree of TVM's objects as JSON values, as TVM's writer for its file sees them."""
    if isinstance(value, tvm_ffi.Array):
        return [plain(item) for item in value]
    if isinstance(value, tvm_ffi.Map):
        return {_key(key): plain(item) for key, item in value.items()}
    if isinstance(value, IntImm):
        return bool(value.value) if compat.dtype_of(value) == "bool" else int(value.value)
    if isinstance(value, FloatImm):
        return float(value.value)
    if isinstance(value, IndexMap):
        return str(_stringify(_to_json_graph(value, _METADATA), 2))
    return _plain_scalar(value)


def _plain_scalar(value: Any) -> Any:
    if isinstance(value, bool):  # a bare one is a number to the writer
        return int(value)
    if isinstance(value, str) and not isinstance(value, tvm_ffi.dtype):
        return str(value)
    if value is None or isinstance(value, int | float):
        return value
    raise TypeError(f"an object of type {type(value).__name__} has no JSON form")


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError(f"a map's key is of type {type(key).__name__}")
    return str(key)


def _offsets(cls: type) -> tuple[int, dict[str, tuple[int, int]]]:
    """Return the type index of a class of TVM, and offset and size of its fields."""
    info = cls.__tvm_ffi_type_info__  # type: ignore[attr-defined]
    index = info.type_index
    fields: dict[str, tuple[int, int]] = {}
    while info is not None:
        fields.update({field.name: (field.offset, field.size) for field in info.fields})
        info = info.parent_type_info
    return index, fields


def _make_encoder() -> Any:
    """Return an encoder for the layout that TVM's reflection tables describe."""
    int_index, integer = _offsets(IntImm)
    float_index, real = _offsets(FloatImm)
    boolean = tvm_ffi.dtype("bool")
    return Encoder(
        tvm_ffi.Object,
        (int_index, *integer["value"], integer["ty" if "ty" in integer else "dtype"][0]),
        (float_index, real["value"][0]),
        _offsets(tvm.ir.PrimType)[1]["dtype"][0] if "ty" in integer else None,
        boolean.type_code | boolean.bits << 8 | boolean.lanes << 16,
        _dumps_in_python,
    )


def _self_test(encoder: Any) -> None:
    """Raise unless the encoder writes a tree with one value of each kind as expected."""
    inputs = ["l1", "a longer name", None, IntImm("int32", -5), 2.0, FloatImm("float32", 0.1)]
    attrs = [IntImm("bool", 1), False, IntImm("int64", 2**40), {"key": [1]}, []]
    tree = tvm_ffi.convert([[["Split", inputs, attrs, ["l2"]], ["EnterPostproc", [], [], []]], []])
    expected = (
        b'[["Split",["l1","a longer name",null,{},{},{}],[true,0,1099511627776,{"key":[1]},[]],'
        b'["l2"]]]',
        b'[["EnterPostproc",[],[],[]]]',
        b"[[],[-5,2,0.1],[]]",
    )
    written = encoder.encode(tree)
    if written != expected:
        raise ValueError(f"wrote {written!r}")


@cache
def _encoder() -> Any:
    """Return the compiled encoder, or None where it does not fit this TVM."""
    if Encoder is None:
        _log.warning("the compiled encoder is missing; traces are encoded in Python, 30x slower")
        return None
    try:
        encoder = _make_encoder()
        _self_test(encoder)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        _log.warning("the compiled encoder does not fit TVM %s: %s", tvm.__version__, error)
        return None
    return encoder


# ---- from the stored form to TVM -----------------------------------------------------------------


class TraceBuilder:
    """Builds traces of TVM from their stored form, without a schedule.

    Instructions are immutable and TVM shares them between traces itself (``Trace.with_decision``,
    ``simplified``), so those of a sketch are built once. Random variables need to be distinct
    inside of one trace only. Only the decisions, the few instructions with numbers among their
    inputs, and the two containers belong to a single trace.

    Parameters
    ----------
    max_sketches, max_tails : int
        Number of cached parts; the least recently used are dropped first. One takes some 20 KB.
    """

    def __init__(self, max_sketches: int = 256, max_tails: int = 1024) -> None:
        self._sketches: LRUCache[bytes, Part] = LRUCache(max_sketches)
        self._tails: LRUCache[tuple[int, bytes], Part] = LRUCache(max_tails)
        self._serial = 0
        self._lock = threading.Lock()

    def build(self, trace: Trace) -> Any:
        """Return a new trace of TVM; its JSON is that of the stored one.

        Raises
        ------
        UnknownInstructionError
            TVM 0.27 lacks an instruction, or the parts do not fit each other.
        """
        try:
            decisions, sketch_literals, tail_literals = orjson.loads(trace.decisions)
            with self._lock:
                sketch = self._sketch(trace.sketch)
                tail = None if trace.tail is None else self._tail(sketch, trace.tail)
            instructions = fill(sketch, sketch_literals)
            if tail is not None:
                instructions += fill(tail, tail_literals)
            chosen = {instructions[_index(i)]: _decision(value) for i, value in decisions}
            return _api.Trace(instructions, chosen)
        except _ERRORS as error:
            raise UnknownInstructionError(f"the trace cannot be built: {error}") from error

    def build_or_replay(self, trace: Trace, mod: Any) -> Any:
        """Return a new trace of TVM, replayed on a module if an instruction is unknown.

        Raises
        ------
        UnknownInstructionError
            TVM cannot replay the trace either.
        """
        try:
            return self.build(trace)
        except UnknownInstructionError:
            return replay(trace, mod)

    def scheduled(self, mod: Any, trace: Trace) -> Any:
        """Return a module as a trace schedules it.

        Parameters
        ----------
        mod : tvm.IRModule
            The untuned module.
        trace : Trace
            Trace in today's instructions.

        Raises
        ------
        Exception
            The trace does not apply to the module; TVM raises several classes.
        """
        if needs_intrinsics(trace):
            load_intrinsics()
        # TVM draws missing decisions; with a fixed seed equal programs get equal ones.
        schedule = Schedule(mod, seed=1, debug_mask="none")
        tvm_trace = self.build_or_replay(trace, mod)
        tvm_trace.apply_to_schedule(schedule, remove_postproc=False)
        return schedule.mod

    def _sketch(self, text: bytes) -> Part:
        part = self._sketches.get(text)
        if part is None:
            part = self._sketches[text] = self._make(text, {})
        return part

    def _tail(self, sketch: Part, text: bytes) -> Part:
        # The serial keeps a cached tail from the variables of a sketch that was built again.
        key = (sketch.serial, text)
        part = self._tails.get(key)
        if part is None:
            part = self._tails[key] = self._make(text, sketch.variables)
        return part

    def _make(self, text: bytes, variables: dict[str, Any]) -> Part:
        self._serial += 1
        return make_part(self._serial, orjson.loads(text), variables)


def replay(trace: Trace, mod: Any) -> Any:
    """Return the trace as TVM itself builds it: by applying its JSON to a schedule of `mod`.

    Raises
    ------
    UnknownInstructionError
        The trace does not fit the module, or TVM does not know one of its instructions.
    """
    schedule = Schedule(mod, debug_mask="none", error_render_level="none")
    try:
        instructions, decisions = join_trace(trace)
        tree = [as_of(compat.number(), instructions), decisions]
        _api.TraceApplyJSONToSchedule(tree, schedule)
    except (*_ERRORS, FormatError) as error:
        raise UnknownInstructionError(f"TVM cannot replay the trace: {error}") from error
    return schedule.trace


def _index(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"a decision for instruction {value!r}")
    return value


def _decision(value: Any) -> Any:
    """Check a decision: TVM takes a plain integer or an array of them, and nothing else."""
    items = value if type(value) is list else [value]
    if not all(type(check_int64(item)) is int for item in items):
        raise ValueError(f"the decision {value!r}")
    return value

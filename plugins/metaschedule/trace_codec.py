"""Traces between TVM's objects and the stored form (:mod:`tunedb.traces`), without replaying them.

``Trace.as_json`` takes 0.6 ms of Python recursion and TVM reads a trace back by replaying it on a
schedule (1 ms for a matmul, 6 ms for a conv2d). Here a compiled encoder writes the stored form in
some 20 us, and :class:`TraceBuilder` makes the instructions of each sketch once and shares them.

Two things are lost on the way exactly as they are in TVM's own file: an annotation 1.0 comes back
as the integer 1, and a bare ``True`` as 1 (an ``IntImm`` of type bool stays one).
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from functools import cache
from typing import Any

import orjson
import tvm
import tvm_ffi
from tvm.s_tir.schedule import Schedule
from tvm.s_tir.schedule import _ffi_api as _api
from tvm.tirx import FloatImm, IndexMap, IntImm

from ...errors import FormatError, PluginError
from ...records import Trace
from ...traces import dump_value, join_trace, split_trace
from .instructions import Part, check_int64, fill, make_part

try:
    from ._encode import Encoder
except ImportError:  # not compiled: everything works, slower
    Encoder = None  # type: ignore[assignment,misc]

_log = logging.getLogger("tunedb")

_item = tvm_ffi.get_global_func("ffi.ArrayGetItem")
_to_json_graph = tvm_ffi.get_global_func("ffi.ToJSONGraph")
_stringify = tvm_ffi.get_global_func("ffi.json.Stringify")
#: What TVM and the conversion to its objects raise (its own errors are RuntimeErrors).
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
        When TVM cannot write the trace as JSON either, e.g. for an annotation that is NaN.
    """
    try:
        tree = _api.TraceAsJSON(trace, False)
    except _ERRORS as error:
        raise UnknownInstructionError(f"TVM cannot write the trace as JSON: {error}") from error
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
        For what has no JSON form.
    """
    encoder = _encoder()
    try:
        if encoder is not None and isinstance(value, tvm_ffi.Array):
            return bytes(encoder.dumps(value))
        return _dumps_in_python(value)
    except FormatError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise FormatError(f"a value that has no JSON form: {error}") from error


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
        return bool(value.value) if str(value.ty) == "bool" else int(value.value)
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
    _, kind = _offsets(tvm.ir.PrimType)
    boolean = tvm_ffi.dtype("bool")
    return Encoder(
        tvm_ffi.Object,
        (int_index, *integer["value"], integer["ty"][0]),
        (float_index, real["value"][0]),
        kind["dtype"][0],
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
    """Makes traces of TVM from their stored form, without a schedule.

    Instructions are immutable and TVM shares them between traces itself (``Trace.with_decision``,
    ``simplified``), so those of a sketch are made once. Random variables only need to be distinct
    inside of one trace. What a trace has of its own is its decisions, the few instructions with
    numbers among their inputs, and the two containers.

    Parameters
    ----------
    max_sketches, max_tails : int
        How many parts are kept, the least recently used going first. One takes some 20 KB.
    """

    def __init__(self, max_sketches: int = 256, max_tails: int = 1024) -> None:
        self._max_sketches = max_sketches
        self._max_tails = max_tails
        self._sketches: OrderedDict[bytes, Part] = OrderedDict()
        self._tails: OrderedDict[tuple[int, bytes], Part] = OrderedDict()
        self._serial = 0
        self._lock = threading.Lock()

    def build(self, trace: Trace) -> Any:
        """Return a new trace of TVM; its JSON is that of the stored one.

        Raises
        ------
        UnknownInstructionError
            For an instruction that TVM 0.27 does not have, or parts that do not fit each other.
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

    def _sketch(self, text: bytes) -> Part:
        part = self._sketches.get(text)
        if part is None:
            part = self._sketches[text] = self._make(text, {})
            if len(self._sketches) > self._max_sketches:
                self._sketches.popitem(last=False)
        else:
            self._sketches.move_to_end(text)
        return part

    def _tail(self, sketch: Part, text: bytes) -> Part:
        # The serial keeps a tail from meeting the variables of a sketch that was made again.
        key = (sketch.serial, text)
        part = self._tails.get(key)
        if part is None:
            part = self._tails[key] = self._make(text, sketch.variables)
            if len(self._tails) > self._max_tails:
                self._tails.popitem(last=False)
        else:
            self._tails.move_to_end(key)
        return part

    def _make(self, text: bytes, variables: dict[str, Any]) -> Part:
        self._serial += 1
        return make_part(self._serial, orjson.loads(text), variables)


def replay(trace: Trace, mod: Any) -> Any:
    """Return the trace as TVM itself makes it: by applying its JSON to a schedule of `mod`.

    Raises
    ------
    UnknownInstructionError
        When the trace does not fit the module, or TVM does not know one of its instructions.
    """
    schedule = Schedule(mod, debug_mask="none", error_render_level="none")
    try:
        _api.TraceApplyJSONToSchedule(list(join_trace(trace)), schedule)
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

"""The compiled encoder against its Python reference, and what happens without it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
import tvm
import tvm_ffi
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from logged import logged
from tvm import s_tir
from tvm.s_tir.schedule import _ffi_api as api
from tvm.script import tirx as T
from tvm.tirx import FloatImm, IntImm

from tunedb.errors import FormatError, TuneDBError
from tunedb.plugins.metaschedule import trace_codec
from tunedb.programs.metaschedule import trace
from tunedb.records import Trace


@T.prim_func(s_tir=True)
def scale(A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "float32")) -> None:
    for i in range(16):
        with T.sblock("B"):
            vi = T.axis.remap("S", [i])
            B[vi] = A[vi] * 2.0


@pytest.fixture
def encoder() -> Any:
    found = trace_codec._encoder()
    assert found is not None
    return found


@pytest.fixture
def fresh_encoder() -> Iterator[None]:
    """Let the test decide how the encoder is made."""
    trace_codec._encoder.cache_clear()
    yield
    trace_codec._encoder.cache_clear()


# Each strategy draws an object of TVM together with its JSON in TVM's file.
int64 = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 300)
reals = (
    st.floats(allow_nan=False, allow_infinity=False)
    | st.integers(-(2**55), 2**55).map(float)
    | st.sampled_from([0.0, -0.0, 0.1, 1e-7, 1e16, 1e22, 2.0**53, 2.0**53 - 1, -(2.0**53)])
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
leaves = st.one_of(
    st.just((None, None)),
    st.booleans().map(lambda v: (v, int(v))),
    st.booleans().map(lambda v: (IntImm("bool", int(v)), v)),
    int64.map(lambda v: (v, v)),
    int64.map(lambda v: (IntImm("int64", v), v)),
    st.integers(-(2**31), 2**31 - 1).map(lambda v: (IntImm("int32", v), v)),
    reals.map(lambda v: (v, v)),
    reals.map(lambda v: (FloatImm("float64", v), v)),
    texts.map(lambda v: (v, v)),
    st.sampled_from(["", "1234567", "12345678", 'a"b', "\\", "\n\x00\x7f", "é" * 9, "😀"]).map(
        lambda v: (v, v)
    ),
)


def pairs_of(items: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    return [a for a, _ in items], [b for _, b in items]


def pairs_in(items: dict[str, tuple[Any, Any]]) -> tuple[Any, Any]:
    return {k: a for k, (a, _) in items.items()}, {k: b for k, (_, b) in items.items()}


trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4).map(pairs_of)
        | st.dictionaries(texts, inner, max_size=6).map(pairs_in)
    ),
    max_leaves=12,
)
tree_lists = st.lists(trees, max_size=4).map(pairs_of)
kinds = st.sampled_from(["Split", "Annotate", trace.POSTPROC]) | texts
instructions = st.lists(
    st.tuples(kinds.map(lambda v: (v, v)), tree_lists, tree_lists, tree_lists).map(pairs_of),
    max_size=5,
).map(pairs_of)
decisions = st.dictionaries(st.integers(0, 99), trees, max_size=4).map(
    lambda chosen: (
        [[i if i % 2 else IntImm("int32", i), a] for i, (a, _) in chosen.items()],
        [[i, b] for i, (_, b) in chosen.items()],
    )
)


@settings(max_examples=examples(300))
@given(instructions, decisions)
def test_encoder_equals_reference(insts: tuple[Any, Any], chosen: tuple[Any, Any]) -> None:
    tree = tvm_ffi.convert([insts[0], chosen[0]])
    stored = trace.split_trace(insts[1], chosen[1])
    assert Trace(*trace_codec._encoder().encode(tree)) == stored
    assert trace_codec._encode_in_python(tree) == stored


@settings(max_examples=examples(200))
@given(tree_lists)
def test_dumps_equals_reference(pair: tuple[Any, Any]) -> None:
    tree, value = tvm_ffi.convert(pair[0]), pair[1]
    written = trace_codec.dumps(tree)
    assert written == trace.dump_value(value) == trace_codec._dumps_in_python(tree)
    assert orjson.loads(written) == orjson.loads(orjson.dumps(value))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        *((math.nan, None), (math.inf, None), (b"bytes", None), (b"long bytes", None)),
        *((tvm_ffi.dtype("int8"), "type index 5"), (tvm.ir.Range(0, 4), "Range")),
        ({1: 2}, "a map's key is of type int"),
    ],
)
def test_encoder_rejects_values_without_json(encoder: Any, value: Any, words: str | None) -> None:
    tree = tvm_ffi.convert([[["Annotate", [[value]], [], []]], []])
    with pytest.raises((TypeError, ValueError)):
        encoder.encode(tree)
    with pytest.raises(TypeError if words else (TypeError, ValueError), match=words):
        encoder.dumps(tree)
    with pytest.raises(FormatError):
        trace_codec.dumps(tree)


@pytest.mark.parametrize("value", [None, 7, [[], []], "text", object()])
def test_encoder_rejects_values_that_are_not_objects_of_tvm(encoder: Any, value: Any) -> None:
    with pytest.raises(TypeError, match="no object of tvm-ffi"):
        encoder.encode(value)


@pytest.mark.parametrize(
    "value",
    [
        *([], [[]], [[], [], []], [1, []], [[], None], [["Split"], []], {}),
        *([[["Split", [], []]], []], [[], [1]], [[], [[1]]], [[], [["a", 1]]], [[], [[1.0, 1]]]),
    ],
)
def test_encoder_rejects_objects_that_are_not_traces(encoder: Any, value: Any) -> None:
    with pytest.raises(ValueError, match=r"is no array|elements, not|index has type"):
        encoder.encode(tvm_ffi.convert(value))


def test_encoder_rejects_too_deep_nesting(encoder: Any) -> None:
    tree = tvm_ffi.convert([])
    for _ in range(100_000):
        tree = tvm_ffi.Array([tree])
    with pytest.raises(ValueError, match="nested too deep"):
        encoder.dumps(tree)
    with pytest.raises(ValueError, match="nested too deep"):
        encoder.encode(tvm_ffi.Array([tvm_ffi.Array([tvm_ffi.Array(["Fuse", tree, [], []])]), []]))
    while len(tree):  # freed from the inside: the destructor of a deep tree is recursive too
        tree = tree[0]


def test_encoder_grows_its_buffers(encoder: Any) -> None:
    value = ["x" * 10_000, list(range(5_000)), ["y"] * 5_000]
    assert encoder.dumps(tvm_ffi.convert(value)) == orjson.dumps(value)
    assert trace_codec.dumps(None) == b"null"


def test_self_test_rejects_encoder_for_another_layout(fresh_encoder: None) -> None:
    index, fields = trace_codec._offsets(IntImm)
    real, real_fields = trace_codec._offsets(FloatImm)
    has_types = "ty" in fields  # 0.25 keeps the dtype in the node
    wrong = trace_codec.Encoder(
        tvm_ffi.Object,
        (index, fields["span"][0], 8, fields["ty" if has_types else "dtype"][0]),
        (real, real_fields["value"][0]),
        trace_codec._offsets(tvm.ir.PrimType)[1]["dtype"][0] if has_types else None,
        0,
        trace_codec._dumps_in_python,
    )
    with pytest.raises(ValueError, match="wrote"):
        trace_codec._self_test(wrong)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_codec, "_make_encoder", lambda: wrong)
        assert_encodes_in_python("does not fit TVM")


def test_missing_extension_falls_back_to_python_with_a_warning(fresh_encoder: None) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_codec, "Encoder", None)
        assert_encodes_in_python("compiled encoder is missing")


def assert_encodes_in_python(warning: str) -> None:
    sch = s_tir.Schedule(scale)
    sch.split(sch.get_loops(sch.get_sblock("B"))[0], [None, 4])
    with logged() as messages:
        stored = trace_codec.encode(sch.trace)
        assert trace_codec.dumps(tvm_ffi.convert([1.0, "a"])) == b'[1,"a"]'
    assert stored == trace.split_trace(*trace_codec.plain(api.TraceAsJSON(sch.trace, False)))
    assert [warning in message for message in messages] == [True]  # once


@pytest.mark.parametrize("value", [math.nan, {"a": math.inf}, tvm_ffi.dtype("int8")])
def test_encode_raises_unknown_instruction_error(value: Any) -> None:
    sch = s_tir.Schedule(scale)
    api.ScheduleAnnotate(sch, sch.get_sblock("B"), "key", value)
    with pytest.raises(trace_codec.UnknownInstructionError) as info:
        trace_codec.encode(sch.trace)
    assert isinstance(info.value, TuneDBError)

"""The stored form of traces: round trips, and hostile input raises only FormatError."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import orjson
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from tunedb import limits
from tunedb.errors import FormatError
from tunedb.programs.metaschedule import trace as traces
from tunedb.programs.metaschedule.instructions import INSTRUCTIONS
from tunedb.records import Trace

VALID: list[Any] = [
    [
        ["GetSBlock", [], ["C", "main"], ["b0"]],
        ["GetLoops", ["b0"], [], ["l1", "l2"]],
        ["SamplePerfectTile", ["l1"], [2, 64], ["v3", "v4"]],
        ["Split", ["l1", "v3", "v4"], [1, 0], ["l5", "l6"]],
        ["Split", ["l2", "None", 4], [1, 0], ["l7", "l8"]],
        ["CacheWrite", ["b0", ["b0"]], [0, "global"], ["b9"]],
        ["SampleCategorical", [], [[0, 16], [0.5, 0.5]], ["v10"]],
        ["Annotate", ["b0", "v10"], ["unroll"], []],
        ["Annotate", ["b0", '"text"'], ["key"], []],
        ["Annotate", ["b0", 0.25], ["key2"], []],
        ["EnterPostproc", [], [], []],
        ["Annotate", ["l5", 16], ["pragma_auto_unroll_max_step"], []],
    ],
    [[2, [4, 32]], [6, 1]],
]


def changed(path: list[Any], value: Any) -> Any:
    """Return the valid trace with one field replaced."""
    result = copy.deepcopy(VALID)
    place = result
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return result


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def test_split_trace_moves_numbers_to_decisions_and_cuts_at_postproc() -> None:
    stored = traces.split_trace(*VALID)
    sketch, decisions = orjson.loads(stored.sketch), orjson.loads(stored.decisions)
    assert sketch[4] == ["Split", ["l2", "None", {}], [1, 0], ["l7", "l8"]]
    assert sketch[6][2] == [[0, 16], [0.5, 0.5]]  # attributes stay
    assert stored.tail is not None
    assert orjson.loads(stored.tail)[0] == ["EnterPostproc", [], [], []]
    assert decisions == [[[2, [4, 32]], [6, 1]], [4, 0.25], [16]]
    # Programs that differ in numbers alone share sketch and tail.
    other = changed([0, 4, 1, 2], 8)
    other[1] = [[6, 0], [2, [2, 64]]]
    second = traces.split_trace(*other)
    assert (second.sketch, second.tail) == (stored.sketch, stored.tail)
    assert second.decisions == b"[[[2,[2,64]],[6,0]],[8,0.25],[16]]"
    # Integral floats are stored as integers.
    whole, live = changed([0, 9, 1, 1], 2), changed([0, 9, 1, 1], 2.0)
    assert traces.split_trace(*live) == traces.split_trace(*whole)


def test_trace_without_postproc_has_no_tail() -> None:
    stored = traces.split_trace(VALID[0][:2], [])
    assert (stored.tail, stored.is_empty) == (None, False)
    assert traces.split_trace([], []).is_empty


@pytest.mark.parametrize("value", [{}, {"a": 1, "b": {}}, [{}], {"a": []}])
def test_trace_with_map_as_annotation_survives_round_trip(value: Any) -> None:
    trace = changed([0, 9, 1, 1], value)
    assert list(traces.join_trace(traces.split_trace(*traces.check_trace(trace)))) == trace


def test_check_accepts_an_empty_output() -> None:
    """TVM names an output that it left empty ``_`` and writes ``None`` where it is used."""
    trace = changed([0, 2, 3, 0], "_")
    trace[0][3][1][1] = "None"
    assert list(traces.check_trace(trace)) == trace


def test_check_rejects_forms_that_no_release_wrote() -> None:
    """The inputs of one release do not go with the attributes of another."""
    for instruction in (
        ["TransformLayout", ["b0", '"x"'], [0, 1, None], []],
        ["TransformLayout", ["b0"], [0, 1, None, None, None], []],
        ["CacheIndex", ["b0"], [], []],
        ["GetBlock", ["b0"], ["C", "main"], []],
    ):
        with pytest.raises(FormatError, match=f"{instruction[0]} at 12 takes"):
            traces.check_trace([[*VALID[0], instruction], VALID[1]])


@pytest.mark.parametrize(
    ("trace", "reason"),
    [
        *((trace, "a trace must be") for trace in (None, [[]], [[], {}])),
        (changed([0, 0], ["GetSBlock", [], []]), r"instruction 0 is not"),
        (changed([0, 0, 0], 1), r"instruction 0 is not"),
        (changed([0, 0, 1], "b0"), r"instruction 0 is not"),
        (changed([0, 0, 0], "System"), "unknown instruction 'System' at 0"),
        (changed([0, 1, 1], []), "GetLoops at 1 takes 1 inputs, not 0"),
        (changed([0, 3, 2], [1, 0, 0]), "Split at 3 takes 2 attributes, not 3"),
        (changed([0, 5, 1], []), "CacheWrite at 5 takes 2 inputs, not 0"),
        (changed([0, 0], ["GetBlock", [], ["C"], ["b0"]]), "GetBlock at 0 takes 2 attributes"),
        *(
            (changed([0, 3, 1, 1], name), f"uses '{name}' before it is defined")
            for name in ("v33", "no name", "", '"')
        ),
        (changed([0, 3, 1, 1], {}), "Split at 3 has an object"),
        *(
            (changed([0, 5, 1, 1], nested(depth)), "CacheWrite at 5 is nested too deep")
            for depth in (100, 100_000)
        ),
        (changed([0, 9, 1, 1], {"a": nested(50_000)}), "Annotate at 9, nested deeper than 32"),
        (changed([0, 6, 2, 0], nested(50_000)), "SampleCategorical at 6, nested deeper than 32"),
        *(
            (changed([0, 1, 3, 0], name), "GetLoops at 1 has an output")
            for name in ("b0", "x1", "l٣", "l", None)
        ),
        *((changed([1, 0], value), "a decision must be") for value in ([2], [True, 1])),
        *(
            (changed([1, 0], [number, 1]), f"instruction {number} takes no decision")
            for number in (12, -1, 0)
        ),
        (changed([1, 0], [6, 1]), "two decisions"),
        *(
            (changed([1, 0], [2, value]), "decision of SamplePerfectTile at 2 has another type")
            for value in (4, [4, 1.5], [[4]])
        ),
        *(
            (changed([1, 1], [6, value]), "decision of SampleCategorical at 6 has another type")
            for value in ([1], None, True)
        ),
    ],
)
def test_check_rejects_invalid_traces_with_a_reason(trace: Any, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        traces.check_trace(trace)


def test_check_bounds_the_number_of_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_INSTRUCTIONS", 3)
    with pytest.raises(FormatError, match="12 instructions is over the limit"):
        traces.check_trace(VALID)


@pytest.mark.parametrize("value", [math.nan, math.inf, 2**70, "\ud800", {1: 2}, {"a": math.nan}])
def test_split_trace_rejects_values_without_a_json_form(value: Any) -> None:
    for path in ([0, 9, 1, 1], [0, 6, 2, 1], [1, 0, 1]):
        with pytest.raises(FormatError):
            traces.split_trace(*changed(path, value))
    with pytest.raises(FormatError):
        traces.dump_value([value])


def test_split_trace_rejects_invalid_traces() -> None:
    for instructions, decisions in (
        ([1], []),
        ([["a"]], []),
        ([{}], []),
        ([[]], []),
        (VALID[0], [1]),
        (VALID[0], [["x", 1]]),
        (nested(100_000), []),
        ([["Annotate", nested(100_000), [], []]], []),
    ):
        with pytest.raises(FormatError):
            traces.split_trace(instructions, decisions)


@pytest.mark.parametrize(
    "stored",
    [
        *(Trace(b"[]", None, decisions) for decisions in (b"[[],[]]", b"{}", b"[[],[1],[]]")),
        *(Trace(sketch, None, b"[[],[],[]]") for sketch in (b"", b"[[1]]")),
        Trace(b"[]", b"{", b"[[],[],[]]"),
        Trace(b'[["Split",[{}],[],[]]]', None, b"[[],[],[]]"),
        Trace(b'[["Split",[{}],[],[]]]', None, b"[[],[1,2],[]]"),
        Trace(b"[" * 2000 + b"]" * 2000, None, b"[[],[],[]]"),
        Trace(b'[["Split",' + b"[" * 1000 + b"]" * 1000 + b",[],[]]]", None, b"[[],[],[]]"),
    ],
)
def test_join_trace_rejects_damaged_parts(stored: Trace) -> None:
    with pytest.raises(FormatError):
        traces.join_trace(stored)


def test_dump_value_is_canonical() -> None:
    value = {"b": [1.0, True, None], "a": "é"}
    assert traces.dump_value(value) == '{"a":"é","b":[1,true,null]}'.encode()


numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
leaves = st.none() | st.booleans() | numbers | texts
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=3)
)
kinds = st.sampled_from([*INSTRUCTIONS]) | texts
instruction = st.tuples(
    kinds, st.lists(values, max_size=4), st.lists(values, max_size=3), st.lists(texts, max_size=3)
).map(list)
instruction_lists = st.lists(instruction, max_size=8)
decision_lists = st.dictionaries(st.integers(0, 50), values, max_size=4).map(
    lambda chosen: [[index, value] for index, value in chosen.items()]
)


def has_number(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(has_number, value))
    return isinstance(value, int | float) and not isinstance(value, bool)


@given(instruction_lists, decision_lists)
def test_stored_trace_survives_round_trip(instructions: list[Any], decisions: list[Any]) -> None:
    """Its sketch and tail hold no number among the inputs."""
    stored = traces.split_trace(instructions, decisions)
    joined = traces.join_trace(stored)
    ordered = sorted(decisions, key=lambda decision: decision[0])
    assert list(joined) == orjson.loads(traces.dump_value([instructions, ordered]))
    assert traces.split_trace(*joined) == stored
    parts = orjson.loads(stored.sketch) + orjson.loads(stored.tail or b"[]")
    assert not any(has_number(inputs) for _, inputs, _, _ in parts)


@settings(max_examples=examples(300))
@given(st.data())
def test_mutated_trace_is_stored_or_rejected(data: st.DataObject) -> None:
    trace = copy.deepcopy(VALID)
    for _ in range(data.draw(st.integers(1, 3))):
        place: Any = trace
        while True:
            index = data.draw(st.integers(0, len(place) - 1))
            inner = place[index]
            if not (isinstance(inner, list) and inner) or data.draw(st.booleans()):
                break
            place = inner
        place[index] = data.draw(values)
    assert_stored_or_rejected(trace)


@given(values)
def test_any_value_is_stored_or_rejected(value: Any) -> None:
    assert_stored_or_rejected(value)


def assert_stored_or_rejected(value: Any) -> None:
    """A trace that passes the check can be stored and comes back; all else is a FormatError."""
    try:
        instructions, decisions = traces.check_trace(value)
        stored = traces.split_trace(instructions, decisions)
    except FormatError:
        return
    joined = traces.join_trace(stored)
    assert traces.check_trace(list(joined)) == joined
    assert json.loads(traces.dump_value(list(joined))) == list(joined)

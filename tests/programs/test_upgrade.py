"""Traces of TVM 0.8 to 0.26 in today's instruction set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from public_logs import DATA, needs_logs

from tunedb.errors import FormatError
from tunedb.features.steps.columns import COUNTS
from tunedb.programs.metaschedule.instructions import CURRENT, INSTRUCTIONS, find_form
from tunedb.programs.metaschedule.trace import check_trace, join_trace, split_trace
from tunedb.programs.metaschedule.upgrade import is_current_graph, upgrade, upgrade_trace
from tunedb.records import Trace

#: A SaveJSON text of each encoding; the old one lacks fields of a map.
OLD_MAP = '{"root":1,"nodes":[{"type_key":""},{"type_key":"tir.IndexMap"}]}'
NEW_MAP = '{"root_index":0,"nodes":[{"type":"tirx.IndexMap","data":{}}]}'


BEGIN: list[list[Any]] = [
    ["GetSBlock", [], ["C", "main"], ["b0"]],
    ["GetLoops", ["b0"], [], ["l1", "l2"]],
    ["SamplePerfectTile", ["l1"], [2, 64], ["v3", "v4"]],
]

# By hand from the arity table: what a release wrote, and what 0.27 writes for it.
FORMS: list[tuple[list[Any], list[Any]]] = [
    (["GetBlock", [], ["C", "main"], ["b8"]], ["GetSBlock", [], ["C", "main"], ["b8"]]),
    (["Split", ["l1", "v3", 4], [], ["l5"]], ["Split", ["l1", "v3", 4], [1, 0], ["l5"]]),
    (["Split", ["l1", "v3", 4], [0], ["l5"]], ["Split", ["l1", "v3", 4], [0, 0], ["l5"]]),
    (["Fuse", ["l1", "l2"], [], ["l9"]], ["Fuse", ["l1", "l2"], [1], ["l9"]]),
    (["ComputeAt", ["b0", "l1"], [0], []], ["ComputeAt", ["b0", "l1"], [0, -1], []]),
    (["ReverseComputeAt", ["b0", "l1"], [1], []], ["ReverseComputeAt", ["b0", "l1"], [1, -1], []]),
    (["CacheRead", ["b0"], [0, "local"], ["b1"]], ["CacheRead", ["b0", []], [0, "local"], ["b1"]]),
    (["CacheWrite", ["b0"], [0, "x"], ["b1"]], ["CacheWrite", ["b0", []], [0, "x"], ["b1"]]),
    (["Blockize", ["l1"], [], ["b1"]], ["Blockize", ["l1"], [True], ["b1"]]),
    (["Tensorize", ["l1"], ["dot"], []], ["Tensorize", ["l1"], ["dot", True], []]),
    (
        ["TransformLayout", ["b0"], [0, 1, NEW_MAP], []],
        ["TransformLayout", ["b0", NEW_MAP], [0, 1, None, False], []],
    ),
    (
        ["TransformLayout", ["b0"], [0, 1, NEW_MAP, "padding"], []],
        ["TransformLayout", ["b0", NEW_MAP], [0, 1, "padding", False], []],
    ),
]

NEWEST: list[list[Any]] = [
    ["Split", ["l1", "None", 4], [1, 0], ["l7", "l8"]],
    ["CacheWrite", ["b0", ["b0"]], [0, "local"], ["b9"]],
    ["ComputeAt", ["b0", "l1"], [1, 2], []],
    ["Annotate", ["b0", 0.25], ["key"], []],
    ["Annotate", ["b0", '"{"'], ["key"], []],
    ["Annotate", ["b0", '"text"'], ["{not json}"], []],
    ["TransformBlockLayout", ["b0"], [NEW_MAP], []],
    ["Teleport", ["b0"], [1, 2, 3], []],  # of a TVM that tunedb does not know
]

#: Instructions without a current equivalent, and the reason in the error.
LOST = [
    (["SetAxisSeparator", ["b0"], [0, 1, [1]], []], "TVM 0.26 removed SetAxisSeparator"),
    (["CacheIndex", ["b0"], [0], []], "CacheIndex of TVM 0.11"),
    (["TransformLayout", ["b0"], [0, 1, OLD_MAP], []], "TransformLayout: cannot read an index map"),
    (["TransformLayout", ["b0", OLD_MAP], [0, 1, None, 0], []], "TransformLayout: cannot read"),
    (["TransformLayout", ["b0", NEW_MAP], [0, 1, OLD_MAP, 0], []], "TransformLayout: cannot"),
    (["ReindexCacheRead", ["b0", OLD_MAP], [0, "local"], []], "ReindexCacheRead: cannot read"),
]


@pytest.mark.parametrize(("old", "new"), FORMS)
def test_each_older_form_is_valid_and_converted(old: list[Any], new: list[Any]) -> None:
    decisions = [[2, [4, 4]]]
    assert upgrade_trace([*BEGIN, old], decisions) == ([*BEGIN, new], decisions)
    assert find_form(new[0], len(new[1]), len(new[2])) is CURRENT[new[0]].form
    assert check_trace([[*BEGIN, old], decisions]) == ([*BEGIN, old], decisions)
    assert join_trace(split_trace([*BEGIN, old], decisions)) == ([*BEGIN, old], decisions)


def test_examples_cover_all_older_forms() -> None:
    forms = {(old[0], len(old[1]), len(old[2])) for old in [pair[0] for pair in (*FORMS, *LOST)]}
    older = {kind: value.older for kind, value in INSTRUCTIONS.items()}
    older |= {kind: (value.form,) for kind, value in INSTRUCTIONS.items() if value.until}
    for kind, written in older.items():
        for form in written:
            assert any(kind == tried[0] and find_form(*tried) is form for tried in forms), kind


def release(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def test_instructions_have_ordered_releases_and_consistent_upgrades() -> None:
    for kind, instruction in INSTRUCTIONS.items():
        forms = (instruction.form, *instruction.older)
        releases = [release(form.since) for form in forms]
        if instruction.until is not None:
            releases.insert(0, release(instruction.until))
        assert releases == sorted(set(releases), reverse=True), kind
        assert releases[-1] >= (0, 8)
        assert releases[0] <= (0, 27)
        assert instruction.counts in {"", *COUNTS}
        assert instruction.becomes is None or instruction.becomes in CURRENT
        assert not (instruction.form.upgrade or instruction.form.lost)
        assert all(bool(form.upgrade) != bool(form.lost) for form in instruction.older)


def test_upgrade_keeps_current_traces() -> None:
    assert upgrade_trace(NEWEST, [[0, 1]]) == (NEWEST, [[0, 1]])
    stored = split_trace([*NEWEST, ["EnterPostproc", [], [], []]], [])
    assert upgrade(stored) is stored


@pytest.mark.parametrize(("instruction", "reason"), LOST)
def test_upgrade_rejects_forms_without_current_equivalent(instruction: Any, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        upgrade_trace([NEWEST[0], instruction], [])
    with pytest.raises(FormatError, match=reason):
        upgrade(split_trace([instruction], []))


def test_check_accepts_lost_instructions() -> None:
    for instruction, _ in LOST[:2]:
        assert check_trace([[*BEGIN, instruction], []]) == ([*BEGIN, instruction], [])


def test_upgrade_rejects_pad_einsum_of_old_traces_only() -> None:
    """Its padding was an amount before TVM 0.14; a trace does not state which one it has."""
    pad = ["PadEinsum", ["b0"], [[0, 3, 3]], []]
    old_split = ["Split", ["l1", 4, 4], [1], ["l2", "l3"]]
    with pytest.raises(FormatError, match=r"PadEinsum of TVM before 0\.17"):
        upgrade_trace([old_split, pad], [])
    assert upgrade_trace([NEWEST[0], pad], [])[0] == [NEWEST[0], pad]
    assert upgrade_trace([["GetBlock", [], ["C", "main"], ["b0"]], pad], [])[0][1] == pad


def test_upgrade_converts_sketch_and_tail_and_keeps_decisions() -> None:
    instructions = [
        ["GetBlock", [], ["C", "main"], ["b0"]],
        ["GetLoops", ["b0"], [], ["l1", "l2"]],
        ["SamplePerfectTile", ["l1"], [2, 64], ["v3", "v4"]],
        ["Split", ["l1", "v3", 4], [1], ["l5", "l6"]],
        ["EnterPostproc", [], [], []],
        ["Split", ["l2", "None", 8], [1], ["l7", "l8"]],
    ]
    stored = split_trace(instructions, [[2, [16, 4]]])
    new = upgrade(stored)
    assert new.decisions is stored.decisions
    instructions[0][0] = "GetSBlock"
    instructions[3][2] = instructions[5][2] = [1, 0]
    assert join_trace(new) == (instructions, [[2, [16, 4]]])
    assert upgrade(new) is new
    # A tail alone may be old, and a trace may have none.
    assert upgrade(Trace(b"[]", stored.tail, b"[[],[],[8]]")).tail == new.tail
    assert upgrade(Trace(stored.sketch, None, b"")).tail is None


@pytest.mark.parametrize(
    "sketch",
    [
        *(b"", b"{", b"[1]", b"{}1", b"[[]]", b'[["Split",1,1,1]]', b'[["Split",[],1,[]]]'),
        b"[[[],1,1,1]]",
    ],
)
def test_upgrade_rejects_damaged_sketches(sketch: bytes) -> None:
    with pytest.raises(FormatError, match="cannot read"):
        upgrade(Trace(sketch, None, b"[[],[],[]]"))


instructions_of_any_age = st.sampled_from([*(old for old, _ in FORMS), *NEWEST])


@given(st.lists(instructions_of_any_age, max_size=12))
def test_upgrade_is_idempotent(instructions: list[Any]) -> None:
    new, _ = upgrade_trace(instructions, [])
    assert upgrade_trace(new, []) == (new, [])
    assert [instruction[3] for instruction in new] == [inst[3] for inst in instructions]
    stored = upgrade(split_trace(instructions, []))
    assert join_trace(stored)[0] == new
    assert upgrade(stored) is stored


@needs_logs
def test_upgrade_converts_traces_of_public_logs_to_current_forms() -> None:
    count = 0
    for file in (DATA / "metaschedule").rglob("*record.json"):
        for line in file.read_bytes().splitlines():
            instructions, decisions = check_trace(orjson.loads(line)[1][0])
            new, _ = upgrade_trace(instructions, decisions)
            for kind, inputs, attrs, _ in new:
                assert find_form(kind, len(inputs), len(attrs)) is CURRENT[kind].form
            count += 1
    assert count == 1092


GOLDENS = Path(__file__).parent / "workload_info" / "goldens"


def test_is_current_graph_distinguishes_releases_by_their_integers():
    names = ("0.25.0.post1", "0.26.0", "0.27.0")
    graphs = [orjson.loads((GOLDENS / f"matmul-{name}.json").read_bytes()) for name in names]
    assert [is_current_graph(graph) for graph in graphs] == [False, False, True]


@pytest.mark.parametrize(
    "graph",
    [
        *({}, {"nodes": {}}, {"nodes": [1]}, {"nodes": [{"type": "ir.IntImm"}]}),
        *({"nodes": [{"type": "ir.IntImm", "data": data}]} for data in (3, {"value": 0})),
        *(
            {"nodes": [{"type": "ir.IntImm", "data": {"value": value}}, {"type": "int", "data": 1}]}
            for value in (True, 9)
        ),
    ],
)
def test_is_current_graph_returns_false_for_other_graphs(graph):
    assert not is_current_graph(graph)

"""Drafts: immutable values made from stored traces."""

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunedb.errors import FormatError, UsageError
from tunedb.programs.metaschedule.trace import join_trace, split_trace
from tunedb.records import Trace
from tunedb.search.draft import Draft

TAIL = [["EnterPostproc", [], [], []], ["SampleCategorical", [], [[1, 2], [0.5, 0.5]], ["v90"]]]


def test_draft_returns_stored_trace_without_its_tail(traces):
    instructions, decisions = join_trace(traces.matmul().trace())
    whole = split_trace([*instructions, *TAIL], [*decisions, [len(instructions) + 1, 1]])
    draft = Draft.from_trace(whole)
    assert draft.trace() == split_trace(instructions, decisions)
    assert draft.trace().tail is None
    assert draft == traces.matmul()


def test_drafts_of_equal_form_share_instructions(traces):
    drafts = [traces.matmul(), traces.matmul(unroll=3), traces.matmul(parallel=8)]
    first, second, other = (Draft.from_trace(draft.trace()) for draft in drafts)
    assert first.instructions is second.instructions
    assert first.instructions is not other.instructions


def test_decisions_are_replaced_and_removed_in_a_new_draft(traces):
    old = traces.matmul()
    new = old.with_decision(3, (2, 8, 2, 2))
    assert (old.decisions[3], new.decisions[3]) == ([4, 4, 2, 2], [2, 8, 2, 2])
    assert old != new
    assert new.with_decision(3, [4, 4, 2, 2]) == old
    assert new.instructions is old.instructions
    bare = old.without_decision(3)
    assert 3 not in bare.decisions
    assert bare == bare.without_decision(3) == Draft.from_trace(bare.trace())


def test_tiles_returns_sampled_tiles_by_instruction_number(traces):
    assert traces.conv(i=(8, 2)).tiles == {4: [8, 2]}


def test_drafts_are_equal_if_their_instructions_and_decisions_are(traces):
    assert len({traces.matmul(), traces.matmul(), traces.matmul(unroll=1)}) == 2
    assert traces.matmul() != "matmul"
    assert pickle.loads(pickle.dumps(traces.conv())) == traces.conv()


@pytest.mark.parametrize("number", [-1, 0, 4, 99])
def test_only_sampling_instructions_take_decisions(traces, number):
    with pytest.raises(UsageError, match=f"instruction {number} "):
        traces.matmul().with_decision(number, 0)


@pytest.mark.parametrize(
    "decisions",
    [
        *(b"[", b"[]", b"[[],[],[],[]]", b"[[1],[],[]]", b"[[],[1,2,3],[]]", b"null"),
        b'[[["a",1]],[],[]]',
    ],
)
def test_damaged_traces_are_refused(traces, decisions):
    with pytest.raises(FormatError):
        Draft.from_trace(replace(traces.conv().trace(), decisions=decisions))


@pytest.mark.parametrize("sketch", [b"", b"[1]", b'[["Fuse"]]', b'[["Fuse",1,1,1]]'])
def test_damaged_sketches_are_refused(sketch):
    with pytest.raises(FormatError):
        Draft.from_trace(Trace(sketch, None, b"[[],[],[]]"))


@given(st.data())
def test_any_instructions_survive_round_trip(data):
    value = st.recursive(
        st.integers(-(2**40), 2**40) | st.text("bl0\"'", max_size=3) | st.booleans(),
        lambda inner: st.lists(inner, max_size=3),
        max_leaves=5,
    )
    values = st.lists(value, max_size=3)
    names = st.lists(st.sampled_from(["b0", "l1", "v2", "_"]), max_size=2)
    instructions = data.draw(
        st.lists(st.tuples(st.just("Annotate"), values, values, names).map(list), max_size=4)
    )
    trace = split_trace(instructions, [])
    draft = Draft.from_trace(trace)
    assert Draft(draft.instructions, {}).trace() == trace


def test_form_key_and_skeleton_depend_on_instructions(traces):
    first, second = traces.matmul(), traces.matmul((8, 2, 2, 2), unroll=3)
    literal, cached = traces.matmul(parallel=8), traces.matmul(cached=True)
    assert first.form == second.form == Draft(first.instructions, {}).form != literal.form
    assert first.key != literal.key
    assert first.skeleton == literal.skeleton != cached.skeleton

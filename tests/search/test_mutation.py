"""Mutations of single traces."""

import random
from itertools import accumulate
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunedb.search.draft import Draft, Instruction
from tunedb.search.operators import (
    mutate_compute_location,
    mutate_parallel,
    mutate_tile_size,
    mutate_unroll,
    neighbours,
    tile_moves,
)


def reached(mutate, draft, times=400):
    """Return the drafts that a mutation makes; assert that the draft itself does not change."""
    before = draft.trace()
    found = {mutate(draft, random.Random(seed)) for seed in range(times)}
    assert draft.trace() == before
    assert draft not in found
    return found - {None}


def changed(old, new):
    """Return the numbers of the decisions that differ; assert that nothing else does."""
    assert new.instructions is old.instructions
    assert new.decisions.keys() == old.decisions.keys()
    return [number for number in old.decisions if old.decisions[number] != new.decisions[number]]


def one_move_apart(old, new):
    """Return whether one divisor has moved from one level to another."""
    ratios = sorted(b / a for a, b in zip(old, new, strict=True) if a != b)
    return len(ratios) == 2 and ratios[0] * ratios[1] == pytest.approx(1) and ratios[1] % 1 == 0


def test_mutate_tile_size_reaches_all_moves(traces):
    draft = traces.conv(i=(4, 6))
    tiles = {tuple(new.decisions[4]) for new in reached(mutate_tile_size, draft)}
    assert tiles == {(8, 3), (12, 2), (24, 1), (2, 12), (1, 24)}


def test_tile_moves_do_not_grow_innermost_level_over_its_bound():
    sample = Instruction("SamplePerfectTile", ("l1",), (3, 16), ("v2", "v3", "v4"))
    assert tile_moves(sample, [1, 1, 32]) == [
        [2, 1, 16], [4, 1, 8], [8, 1, 4], [16, 1, 2], [32, 1, 1],
        [1, 2, 16], [1, 4, 8], [1, 8, 4], [1, 16, 2], [1, 32, 1],
    ]  # fmt: skip
    moves = tile_moves(sample, [24, 2, 6])
    assert [12, 2, 12] in moves
    assert max(move[2] for move in moves) == 12


@given(
    st.lists(st.integers(1, 48), min_size=2, max_size=5), st.integers(1, 64), st.integers(0, 2**32)
)
def test_tile_moves_keep_extent_and_bound(tile, most, seed):
    sample = Instruction("SamplePerfectTile", ("l0",), (len(tile), most), ())
    moves = tile_moves(sample, tile)
    assert len({tuple(move) for move in moves}) == len(moves)
    for move in moves:
        assert prod(move) == prod(tile) and move[-1] <= max(most, tile[-1])
        assert one_move_apart(tile, move)
    draft = Draft((sample,), {0: tile})
    made = mutate_tile_size(draft, random.Random(seed))
    assert (made is None) == (not moves)
    assert made is None or made.decisions[0] in moves


def test_tile_moves_keep_inner_part_of_partitioned_tile_divisible():
    sample = Instruction("SamplePartitionedTile", ("l1",), (3, 1, 8), ("v2", "v3", "v4"))
    moves = tile_moves(sample, [4, 2, 8])
    assert all(move[1] * move[2] % 8 == 0 for move in moves)
    assert {tuple(move) for move in moves} == {
        (2, 4, 8), (1, 8, 8), (2, 2, 16), (1, 2, 32), (8, 1, 8), (8, 2, 4),
        (4, 1, 16), (4, 4, 4), (4, 8, 2), (4, 16, 1),
    }  # fmt: skip


def test_mutate_tile_size_draws_levels_with_equal_probability(traces):
    """A level with many divisors is no likelier to shrink than one with few."""
    draft = traces.conv(i=(64 * 81, 2))
    made = [mutate_tile_size(draft, random.Random(seed)) for seed in range(1000)]
    assert 420 < sum(new.decisions[4][0] > 64 * 81 for new in made) < 580


def test_mutate_tile_size_weighs_moves_by_prior(traces):
    asked = set()

    class Prior:
        def cumulated(self, candidates, place=None):
            asked.add((prod(candidates[0]), len(candidates[0]), place))
            return [*accumulate(1000.0 if one[3] == 16 else 0.001 for one in candidates)]

    draft = traces.matmul(i=(8, 4, 2, 2), k=(1, 1))
    made = [mutate_tile_size(draft, random.Random(seed), prior=Prior()) for seed in range(100)]
    assert {new.decisions[number][3] for new in made for number in changed(draft, new)} == {16}
    assert asked == {(128, 4, 0), (64, 4, 1)}


def test_mutate_tile_size_also_changes_cooperative_fetch(traces):
    draft = traces.gpu(fetch=1)
    made, fetch = reached(mutate_tile_size, draft), max(draft.decisions)
    assert {number for new in made for number in changed(draft, new)} == {3, fetch}
    assert {new.decisions[fetch] for new in made} == {0, 1, 2, 3}


@pytest.mark.parametrize("tile", [[1, 1], [7], [1]])
def test_mutate_tile_size_returns_none_without_moves(tile):
    sample = Instruction("SamplePerfectTile", ("l0",), (len(tile), 64), ("v1",))
    assert mutate_tile_size(Draft((sample,), {0: tile}), random.Random(1)) is None
    assert mutate_tile_size(Draft((sample,), {}), random.Random(1)) is None


def test_mutate_tile_size_tries_another_tile_if_one_has_no_moves():
    """All of the first tile could only go to the innermost level, which is full."""
    stuck = Instruction("SamplePerfectTile", ("l0",), (2, 1), ())
    free = Instruction("SamplePerfectTile", ("l0",), (2, 64), ())
    draft = Draft((stuck, free), {0: [7, 1], 1: [1, 3]})
    assert {tuple(new.decisions[1]) for new in reached(mutate_tile_size, draft)} == {(3, 1)}


def test_mutate_unroll_reaches_all_other_steps(traces):
    draft = traces.matmul(unroll=2)
    made, number = reached(mutate_unroll, draft), max(draft.decisions)
    assert all(changed(draft, new) == [number] for new in made)
    assert {new.decisions[number] for new in made} == {0, 1, 3}


def test_mutate_unroll_never_draws_steps_of_probability_0():
    instructions = (
        Instruction("SampleCategorical", (), ((0, 16, 64), (0.1, 0.9, 0.0)), ("v1",)),
        Instruction("Annotate", ("b0", "v1"), ("meta_schedule.unroll_implicit",), ()),
    )
    for old, new in ((0, {1}), (1, {0}), (2, {0, 1})):
        made = reached(mutate_unroll, Draft(instructions, {0: old}))
        assert {draft.decisions[0] for draft in made} == new


def test_mutate_unroll_returns_none_without_another_choice(traces):
    assert mutate_unroll(traces.gpu(), random.Random(1)) is None
    fixed = Instruction("Annotate", ("b0", 16), ("meta_schedule.unroll_explicit",), ())
    assert mutate_unroll(Draft((fixed,), {}), random.Random(1)) is None
    single = (
        Instruction("SampleCategorical", (), ((16,), (1.0,)), ("v1",)),
        Instruction("Annotate", ("b0", "v1"), ("meta_schedule.unroll_explicit",), ()),
    )
    assert mutate_unroll(Draft(single, {0: 0}), random.Random(1)) is None


def parallel_bounds(draft, nests, most=None):
    """Return the bounds that the mutation reaches; assert that nothing else changes."""
    made = reached(lambda d, r: mutate_parallel(d, r, {"b1": nests}, most=most), draft)
    for new in made:
        pairs = zip(draft.instructions, new.instructions, strict=True)
        assert [old.attrs for old, one in pairs if old != one] == [("meta_schedule.parallel",)]
        assert new.decisions == draft.decisions
        assert Draft.from_trace(new.trace()) == new
    return {new.instructions[-3].inputs[1] for new in made}


@pytest.mark.parametrize(
    ("parallel", "nests", "most", "bounds"),
    [
        # All loops whose product is within the bound are fused, and one more.
        (1, [[4, 8, 2, 16]], None, {4, 32, 64}),
        (64, [[4, 8, 2, 16]], None, {1, 4, 32}),
        (64, [[4, 8, 2, 16]], 31, {1, 4}),
        (5, [[4, 8, 2, 16]], None, {1, 32, 64}),
        # From 8 on two loops of the first nest are fused, from 16 on all three.
        (1, [[2, 8, 4], [8, 8]], None, {2, 8, 16}),
        (9, [[2, 8, 4], [8, 8]], None, {1, 2, 16}),
        (99, [[2, 8, 4], [8]], None, {1, 2}),
        # Unit loops add no bounds.
        (4, [[1, 4, 1, 8]], None, {1}),
        *((64, nests, None, set()) for nests in ([], [[], [16]], [[1, 1]])),
    ],
)
def test_mutate_parallel_has_one_bound_per_set_of_fused_loops(
    traces, parallel, nests, most, bounds
):
    assert parallel_bounds(traces.matmul(parallel=parallel), nests, most) == bounds


def test_mutate_parallel_changes_thread_extents(traces):
    draft = traces.gpu(threads=2)
    made = reached(lambda d, r: mutate_parallel(d, r, {}), draft)
    assert all(changed(draft, new) == [5] for new in made)
    assert {new.decisions[5] for new in made} == {0, 1, 3}
    assert mutate_parallel(traces.matmul(), random.Random(1), {}) is None


def test_mutate_compute_location_reaches_all_other_locations(traces):
    draft = traces.conv(place=2)
    number = max(draft.decisions)
    made = reached(lambda d, r: mutate_compute_location(d, r, {number: [-2, -1, 2, 5]}), draft)
    assert all(changed(draft, new) == [number] for new in made)
    assert {new.decisions[number] for new in made} == {-2, -1, 5}
    for legal in ({}, {number: [2]}, {number: []}):
        assert mutate_compute_location(draft, random.Random(1), legal) is None


def test_mutate_compute_location_moves_only_blocks_with_other_locations(traces):
    draft = traces.softmax((4, 8), (2, 16), places=(0, 1))
    numbers = [n for n in draft.decisions if draft.instructions[n].kind == "SampleComputeLocation"]
    legal = {numbers[0]: [0], numbers[1]: [-1, 0], numbers[2]: [1]}
    made = reached(lambda d, r: mutate_compute_location(d, r, legal), draft)
    assert [changed(draft, new) for new in made] == [[numbers[1]]]


def test_neighbours_returns_all_drafts_that_the_operators_reach(traces):
    nests = {"b1": [[4, 8, 2, 16]]}
    for draft in (traces.matmul(unroll=2, parallel=64), traces.conv(i=(4, 6)), traces.gpu()):
        made = {
            "tile_size": reached(mutate_tile_size, draft, 3000),
            "unroll": reached(mutate_unroll, draft),
            "parallel": reached(lambda d, r: mutate_parallel(d, r, nests, most=31), draft),
        }
        found = neighbours(draft, nests, most=31)
        assert len(set(found)) == len(found) == sum(map(len, made.values()))
        for name, drafts in made.items():
            assert {new for own, new in found if own == name} == drafts

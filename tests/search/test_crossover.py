"""Two traces joined block by block."""

import random

from hypothesis import given
from hypothesis import strategies as st

from tunedb.search.crossover import cross, owners, variables
from tunedb.search.draft import Draft, Instruction

C, ROOT = ("C", "main"), ("root", "main")


def children(first, second, times=60):
    """Return all children of two parents; neither parent is changed or among them."""
    before = first.trace(), second.trace()
    found = {cross(first, second, random.Random(seed)) for seed in range(times)}
    assert (first.trace(), second.trace()) == before
    assert not found & {first, second}
    return found - {None}


def steps(draft):
    """Return kind, literals, attributes and decision of the instructions of each block."""
    found = {}
    for number, (block, one) in enumerate(
        zip(owners(draft.instructions), draft.instructions, strict=True)
    ):
        literals = [value for value in one.inputs if not isinstance(value, str)]
        found.setdefault(block[0], []).append(
            (one.kind, literals, one.attrs, draft.decisions.get(number))
        )
    return found


def defined_before_use(draft):
    """Assert that each variable is defined once, and before its uses; return True."""
    known = set()
    for number, one in enumerate(draft.instructions):
        assert set(variables(one.inputs)) <= known, number
        assert not known & set(one.outputs)
        known.update(one.outputs)
    return True


def test_steps_belong_to_the_block_that_they_change(traces):
    draft = traces.matmul(cached=True)
    found = owners(draft.instructions)
    kinds = {
        block: [one.kind for one, of in zip(draft.instructions, found, strict=True) if of == block]
        for block in set(found)
    }
    assert kinds == {
        C: [
            "GetSBlock", "GetLoops", *["SamplePerfectTile", "Split"] * 3,
            "Reorder", "CacheWrite", "ReverseComputeAt",
        ],
        ROOT: ["GetSBlock", "Annotate", "SampleCategorical", "Annotate"],
    }  # fmt: skip


def test_a_location_belongs_to_the_block_that_moves(traces):
    draft = traces.conv()
    kinds = [one.kind for one in draft.instructions]
    found = dict(zip(kinds, owners(draft.instructions), strict=True))
    assert found["SampleComputeLocation"] == found["ComputeAt"] == ("pad", "main")
    assert found["Split"] == ("conv", "main")


def test_rfactor_and_its_stages_belong_to_the_reduction(traces):
    draft = traces.softmax((4, 8), None)
    blocks = {
        of
        for one, of in zip(draft.instructions, owners(draft.instructions), strict=True)
        if one.kind in ("RFactor", "GetProducers", "Unannotate", "SamplePerfectTile")
    }
    assert blocks == {("max", "main")}


def test_a_category_that_nothing_uses_belongs_to_no_block():
    unused = Instruction("SampleCategorical", (), ((1, 2), (0.5, 0.5)), ("v0",))
    assert owners([unused]) == [None]


def test_a_category_belongs_to_the_block_that_it_splits_or_annotates(traces):
    draft = traces.gpu()
    assert owners(draft.instructions)[5] == C
    fetch = max(draft.decisions)
    assert owners(draft.instructions)[fetch] == ("A_shared", "main")


def test_child_takes_each_block_from_one_parent(traces):
    first = traces.matmul((4, 4, 2, 2), unroll=0)
    second = traces.matmul((8, 2, 2, 2), (2, 4, 1, 8), unroll=3)
    made = children(first, second)
    mine, other = steps(first), steps(second)
    assert [sorted(steps(child)) for child in made] == [["C", "root"]] * 2
    assert {
        tuple("first" if steps(child)[block] == mine[block] else "second" for block in sorted(mine))
        for child in made
        if all(steps(child)[block] in (mine[block], other[block]) for block in mine)
    } == {("first", "second"), ("second", "first")}


def test_child_takes_annotated_numbers_with_their_block(traces):
    first = traces.matmul((4, 4, 2, 2), parallel=64, unroll=1)
    second = traces.matmul((8, 2, 2, 2), parallel=8, unroll=2)
    assert children(first, second) == {
        traces.matmul((4, 4, 2, 2), parallel=8, unroll=2),
        traces.matmul((8, 2, 2, 2), parallel=64, unroll=1),
    }


def test_cross_reaches_all_combinations_of_blocks(traces):
    first = traces.softmax((4, 8), (2, 16), unroll=0)
    second = traces.softmax((8, 4), (16, 2), unroll=3)
    assert len(children(first, second, 200)) == 2**3 - 2


def test_child_keeps_root_annotations_behind_rfactor_steps(traces):
    first = traces.softmax(None, None, parallel=1)
    second = traces.softmax((4, 8), (2, 16), parallel=64)
    made = children(first, second) | children(second, first)
    orders = [[(one.kind, one.attrs) for one in child.instructions] for child in made]
    assert any(step[0] == "RFactor" for order in orders for step in order)
    for order in orders:
        after_root = order[order.index(("Annotate", ("meta_schedule.parallel",))) :]
        assert all(step[0] != "RFactor" for step in after_root)


def test_cross_divides_block_if_parents_differ_in_no_other(traces):
    rows, columns = ((4, 4, 2, 2), (8, 2, 2, 2)), ((1, 8, 1, 8), (8, 1, 8, 1))
    first, second = (traces.matmul(i, j) for i, j in zip(rows, columns, strict=True))
    assert children(first, second) == {
        traces.matmul(rows[0], columns[1]),
        traces.matmul(rows[1], columns[0]),
    }


def test_parents_with_at_most_one_difference_have_no_children(traces):
    assert children(traces.matmul(), traces.matmul()) == set()
    assert children(traces.matmul(unroll=1), traces.matmul(unroll=2)) == set()


def test_child_takes_missing_decisions_of_its_parent(traces):
    first = traces.matmul(unroll=1)
    second = traces.matmul((8, 2, 2, 2), unroll=2).without_decision(3)
    assert any(3 not in child.decisions for child in children(first, second))
    assert any(3 in child.decisions for child in children(first, second))


def test_cross_combines_blocks_of_different_sketches(traces):
    first = traces.matmul(cached=True, unroll=0)
    second = traces.matmul((8, 2, 2, 2), unroll=3)
    assert children(first, second) == {
        traces.matmul(cached=True, unroll=3),
        traces.matmul((8, 2, 2, 2), unroll=0),
    }


def test_cross_reaches_all_combinations_across_sketches(traces):
    """One parent factors the first reduction, the other one the second."""
    first = traces.softmax((4, 8), None, unroll=0, places=(0, 1))
    second = traces.softmax(None, (16, 2), unroll=3, places=(1, 0))
    assert children(first, second, 200) == {
        traces.softmax((4, 8), (16, 2), unroll=unroll, places=(0, 0)) for unroll in (0, 3)
    } | {traces.softmax(None, None, unroll=unroll, places=(1, 1)) for unroll in (0, 3)} | {
        traces.softmax((4, 8), None, unroll=3, places=(0, 1)),
        traces.softmax(None, (16, 2), unroll=0, places=(1, 0)),
    }


def test_children_number_variables_as_tvm_does(traces):
    first = traces.softmax((4, 8), None)
    second = traces.softmax(None, (16, 2), unroll=2)
    for child in children(first, second):
        outputs = [name for one in child.instructions for name in one.outputs]
        assert [int(name[1:]) for name in outputs] == list(range(len(outputs)))


def two_blocks(maker, with_split):
    """Return a trace whose second block is computed at a loop of the first."""
    made = maker()
    first, second = made.block("first"), made.block("second")
    loops = made.add("GetLoops", [first], (), "ll")
    at = made.tile(loops[0], (4, 4))[1] if with_split else loops[0]
    made.tile(made.add("GetLoops", [second], (), "l")[0], (2, 8) if with_split else (8, 2))
    made.add("ComputeAt", [second, at], [1, -1])
    return made.draft()


def test_cross_makes_no_child_with_undefined_variables(traces):
    """The second block of one parent stands at a loop that the other one does not have."""
    split, whole = two_blocks(traces.Maker, True), two_blocks(traces.Maker, False)
    made = children(split, whole)
    assert made
    assert all(defined_before_use(child) for child in made)
    for child in made:
        assert ("first", "SamplePerfectTile") in [
            (of[0], one.kind)
            for of, one in zip(owners(child.instructions), child.instructions, strict=True)
        ]


def test_parents_whose_blocks_need_each_other_have_no_children(traces):
    """Each parent's second block needs a loop of its own first block."""

    def parent(count):
        made = traces.Maker()
        first, second = made.block("first"), made.block("second")
        loop = made.add("GetLoops", [first], (), "l")[0]
        loops = made.tile(loop, [2] * count)
        made.add("ComputeAt", [second, loops[-1]], [1, -1])
        return made.draft()

    assert children(parent(2), parent(3)) == set()


def test_cross_returns_none_for_different_workloads(traces):
    assert children(traces.matmul(), traces.conv()) == set()
    assert children(traces.softmax(), traces.conv()) == set()
    for cached in (False, True):
        other_extent = traces.matmul((8, 4, 2, 2), cached=cached, unroll=2)
        assert children(traces.matmul(unroll=1), other_extent) == set()


def test_cross_returns_none_for_trace_with_undefined_variable(traces):
    broken = Draft((*traces.matmul().instructions, Instruction("Unroll", ("l99",), (), ())), {})
    assert children(broken, traces.matmul(unroll=2)) == set()
    assert children(traces.matmul(unroll=2), broken) == set()


def test_cross_returns_none_for_empty_traces(traces):
    empty = Draft((), {})
    assert children(empty, empty) == children(empty, traces.matmul()) == set()


@st.composite
def parents(draw):
    def one():
        tile = st.sampled_from([None, (4, 8), (8, 4), (2, 16)])
        place = st.integers(-1, 1)
        return (draw(tile), draw(tile)), draw(st.integers(0, 3)), (draw(place), draw(place))

    return one(), one()


@given(parents(), st.integers(0, 2**32))
def test_every_block_of_a_child_comes_from_a_parent(traces, pair, seed):
    first, second = (
        traces.softmax(*tiles, unroll=unroll, places=places) for tiles, unroll, places in pair
    )
    child = cross(first, second, random.Random(seed))
    if child is None:
        return
    assert defined_before_use(child)
    assert child not in (first, second)
    mine, other, made = steps(first), steps(second), steps(child)
    taken = {}
    for block, part in made.items():
        taken[block] = (part == mine[block], part == other[block])
        # If the parents differ in one block only, it is divided.
        assert any(taken[block]) or sum(mine[name] != other[name] for name in mine) == 1
    if all(any(one) for one in taken.values()):
        assert (True, False) in taken.values()
        assert (False, True) in taken.values()


def test_equal_seeds_make_equal_children(traces):
    pair = traces.softmax((4, 8), None), traces.softmax(None, (16, 2), unroll=2)
    for seed in range(3):
        assert cross(*pair, random.Random(seed)) == cross(*pair, random.Random(seed))

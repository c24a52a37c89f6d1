"""Two traces joined block by block."""

import random

from hypothesis import given
from hypothesis import strategies as st

from tunedb.search.crossover import cross, owners, variables
from tunedb.search.draft import Draft, Instruction


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
    for number, one in enumerate(draft.instructions):
        block, _ = owners(draft.instructions)[number]
        literals = [value for value in one.inputs if not isinstance(value, str)]
        step = one.kind, literals, one.attrs, draft.decisions.get(number)
        found.setdefault(block, []).append(step)
    return found


def defined_before_use(draft):
    """Assert that each variable is defined once, and before its uses; return True."""
    known = set()
    for number, one in enumerate(draft.instructions):
        assert set(variables(one.inputs)) <= known, number
        assert not known & set(one.outputs)
        known.update(one.outputs)
    return True


def test_a_category_belongs_to_the_block_that_it_splits_or_annotates(traces):
    draft = traces.gpu()
    found = owners(draft.instructions)
    assert (found[5], found[max(draft.decisions)]) == (("C", "main"), ("A_shared", "main"))
    unused = Instruction("SampleCategorical", (), ((1, 2), (0.5, 0.5)), ("v0",))
    assert owners([unused]) == [None]


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
    orders = [[one.attrs or one.kind for one in child.instructions] for child in made]
    assert any((1,) in order for order in orders)  # RFactor
    for order in orders:
        assert (1,) not in order[order.index(("meta_schedule.parallel",)) :]


def test_cross_divides_block_if_parents_differ_in_no_other(traces):
    rows, columns = ((4, 4, 2, 2), (8, 2, 2, 2)), ((1, 8, 1, 8), (8, 1, 8, 1))
    first, second = (traces.matmul(i, j) for i, j in zip(rows, columns, strict=True))
    assert children(first, second) == {
        traces.matmul(rows[0], columns[1]),
        traces.matmul(rows[1], columns[0]),
    }


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
    made = children(two_blocks(traces.Maker, True), two_blocks(traces.Maker, False))
    assert made and all(defined_before_use(child) for child in made)
    for child in made:
        assert "SamplePerfectTile" in [kind for kind, *_ in steps(child)["first"]]


def test_parents_whose_blocks_need_each_other_have_no_children(traces):
    """Each parent's second block needs a loop of its own first block."""

    def parent(count):
        made = traces.Maker()
        first, second = made.block("first"), made.block("second")
        loops = made.tile(made.add("GetLoops", [first], (), "l")[0], [2] * count)
        made.add("ComputeAt", [second, loops[-1]], [1, -1])
        return made.draft()

    assert children(parent(2), parent(3)) == set()


def test_parents_of_other_workloads_or_with_at_most_one_difference_have_no_children(traces):
    for first, second in (
        (traces.matmul(), traces.matmul()),
        (traces.matmul(unroll=1), traces.matmul(unroll=2)),
        (traces.matmul(), traces.conv()),
        (traces.softmax(), traces.conv()),
        (traces.matmul(unroll=1), traces.matmul((8, 4, 2, 2), unroll=2)),
        (traces.matmul(unroll=1), traces.matmul((8, 4, 2, 2), cached=True, unroll=2)),
    ):
        assert children(first, second) == set()


def test_cross_returns_none_for_broken_and_empty_traces(traces):
    whole = traces.matmul(unroll=2)
    broken = Draft((*traces.matmul().instructions, Instruction("Unroll", ("l99",), (), ())), {})
    assert children(broken, whole) == children(whole, broken) == set()
    empty = Draft((), {})
    assert children(empty, empty) == children(empty, whole) == set()


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
    assert child == cross(first, second, random.Random(seed))
    if child is None:
        return
    assert defined_before_use(child) and child not in (first, second)
    mine, other, made = steps(first), steps(second), steps(child)
    taken = {}
    for block, part in made.items():
        taken[block] = (part == mine[block], part == other[block])
        # If the parents differ in one block only, it is divided.
        assert any(taken[block]) or sum(mine[name] != other[name] for name in mine) == 1
    if all(any(one) for one in taken.values()):
        assert {(True, False), (False, True)} <= set(taken.values())

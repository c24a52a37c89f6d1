import pytest
from hypothesis import given
from hypothesis import strategies as st
from observing import ansor_rows

from tunedb import limits
from tunedb.advisor.tvm_launches import (
    agreed,
    launches_of_rows,
    launches_of_steps,
    launches_of_trace,
)
from tunedb.errors import FormatError
from tunedb.features.ansor import NAMES
from tunedb.launches import Launch
from tunedb.programs.ansor import split_steps
from tunedb.programs.metaschedule.trace import split_trace
from tunedb.records import Trace


def block(name, output):
    return ["GetSBlock", [], [name, "main"], [output]]


def loops(of, *outputs):
    return ["GetLoops", [of], [], list(outputs)]


def tile(loop, *outputs):
    return ["SamplePerfectTile", [loop], [len(outputs), 64], list(outputs)]


def split(loop, factors, *outputs):
    return ["Split", [loop, *factors], [1, 0], list(outputs)]


def fuse(inputs, output):
    return ["Fuse", list(inputs), [1], [output]]


def bind(loop, place):
    return ["Bind", [loop], [place], []]


def read(instructions, decisions=(), order=()):
    trace = split_trace(list(instructions), [list(one) for one in decisions])
    return launches_of_trace(trace, "main", order)


def blocks_and_grids(launches):
    return [(one.block, one.grid) for one in launches]


#: A tiled block of two loops, as MultiLevelTiling makes it, with a cooperative fetch.
TILED = [
    block("C", "b0"),
    loops("b0", "l1", "l2", "l3"),
    tile("l1", "v4", "v5", "v6"),
    split("l1", ["v4", "v5", "v6"], "l7", "l8", "l9"),
    tile("l2", "v10", "v11", "v12"),
    split("l2", ["v10", "v11", "v12"], "l13", "l14", "l15"),
    ["Reorder", ["l7", "l13", "l8", "l14", "l9", "l15", "l3"], [], []],
    fuse(["l7", "l13"], "l16"),
    bind("l16", "blockIdx.x"),
    fuse(["l8", "l14"], "l17"),
    bind("l17", "vthread.x"),
    fuse(["l9", "l15"], "l18"),
    bind("l18", "threadIdx.x"),
    ["CacheRead", ["b0", "b0"], [0, "shared"], ["b19"]],
    ["ComputeAt", ["b19", "l3"], [1, -1], []],
    loops("b19", "l20", "l21", "l22"),
    fuse(["l21", "l22"], "l23"),
    ["EnterPostproc", [], [], []],
    split("l23", ["None", 64], "l24", "l25"),
    bind("l25", "threadIdx.x"),
]
TILES = [(2, [4, 2, 8]), (4, [3, 1, 8])]


def test_tiled_block_is_one_launch_with_block_and_grid():
    (launch,) = read(TILED, TILES)
    assert (launch.kernel, launch.number) == ("main_kernel", 0)
    assert (launch.threads, launch.block, launch.grid) == (64, (64, 1, 1), (12, 1, 1))
    assert (launch.seconds, launch.counter_set) == (None, None)


def test_other_decisions_give_another_block_and_grid_or_none():
    found = read(TILED[:13], [(2, [2, 1, 16]), (4, [1, 1, 4])])
    assert blocks_and_grids(found) == [((64, 1, 1), (2, 1, 1))]
    # The fetch is bound to 64 threads, and the block to 128.
    assert read(TILED, [(2, [4, 2, 16]), (4, [3, 1, 8])]) == ()
    # Unknown extents of threads: no decision, a short one, and one of two.
    for decisions in ([], [(2, [4, 2])], [(2, [4, 2, 8])]):
        assert read(TILED[:13], decisions) == ()


def test_thread_extents_of_three_axes_come_from_literals_and_categories():
    made = [
        *(block("C", "b0"), loops("b0", "l1")),
        ["SampleCategorical", [], [[32, 64, 128], [0.5, 0.25, 0.25]], ["v2"]],
        split("l1", ["None", 4, "v2", 2], "l3", "l4", "l5", "l6"),
        *(bind("l3", "blockIdx.x"), bind("l4", "threadIdx.y")),
        *(bind("l5", "threadIdx.x"), bind("l6", "threadIdx.z")),
    ]
    for decision, extent in enumerate((32, 64, 128)):
        (launch,) = read(made, [(2, decision)])
        # The number of thread blocks depends on the workload.
        assert blocks_and_grids([launch]) == [((extent, 4, 2), None)]
        assert launch.threads == extent * 8


def test_inferred_extent_of_a_known_loop_is_computed():
    made = [
        *(block("C", "b0"), loops("b0", "l1"), split("l1", [10, 30], "l2", "l3")),
        *(fuse(["l2", "l3"], "l4"), split("l4", ["None", 7], "l5", "l6")),
        *(bind("l5", "blockIdx.x"), bind("l6", "threadIdx.x")),
    ]
    assert blocks_and_grids(read(made)) == [((7, 1, 1), (43, 1, 1))]


def bound(name, number, threads, blocks=True):
    """Return the instructions that bind the only loop of a block."""
    at = 10 * number
    made = [
        block(name, f"b{at}"),
        loops(f"b{at}", f"l{at + 1}"),
        split(f"l{at + 1}", ["None", threads], f"l{at + 2}", f"l{at + 3}"),
        bind(f"l{at + 3}", "threadIdx.x"),
    ]
    return [*made, bind(f"l{at + 2}", "blockIdx.x")] if blocks else made


def test_separate_blocks_are_kernels_in_the_given_order():
    made = [*bound("norm", 1, 256), *bound("max", 2, 32), *bound("sum", 3, 64)]
    assert [one.threads for one in read(made)] == [256, 32, 64]
    found = read(made, order=["max", "exp", "sum", "norm"])
    assert [one.kernel for one in found] == ["main_kernel", "main_kernel_1", "main_kernel_2"]
    assert [(one.number, one.threads) for one in found] == [(0, 32), (1, 64), (2, 256)]
    # An rfactor block comes before its reduction.
    made = [*bound("sum", 1, 64), *bound("sum_rf", 2, 32), *bound("max", 3, 16)]
    assert [one.threads for one in read(made, order=["max", "sum"])] == [16, 32, 64]


def test_moved_block_belongs_to_the_kernel_of_its_host():
    made = [*bound("a", 1, 32, blocks=False), *bound("b", 2, 32)]
    for move in ("ComputeAt", "ReverseComputeAt"):
        found = read([*made, [move, ["b10", "l22"], [1, -1], []]])
        assert blocks_and_grids(found) == [((32, 1, 1), None)]
    # If it is not moved, it is a kernel of one thread block.
    assert blocks_and_grids(read(made)) == [((32, 1, 1), (1, 1, 1)), ((32, 1, 1), None)]


def test_block_that_is_fetched_twice_is_one_kernel():
    made = [*bound("a", 1, 32, blocks=False), block("a", "b50"), loops("b50", "l51")]
    made += [split("l51", [9], "l52"), bind("l52", "blockIdx.x")]
    assert blocks_and_grids(read(made)) == [((32, 1, 1), (9, 1, 1))]


CONSUMER = [
    *[block("a", "b1"), ["GetConsumers", ["b1"], [], ["b2"]], loops("b2", "l3")],
    *[split("l3", ["None", 128], "l4", "l5"), bind("l5", "threadIdx.x")],
]


def test_unnamed_consumer_is_taken_for_the_only_other_block():
    made = [*CONSUMER, block("b", "b6"), loops("b6", "l7"), bind("l7", "blockIdx.x")]
    assert blocks_and_grids(read(made)) == [((128, 1, 1), None)]
    # An ambiguous consumer, and a contradictory one.
    assert read([*CONSUMER, *bound("b", 2, 32), *bound("c", 3, 32)]) == ()
    assert read([*CONSUMER, *bound("b", 2, 32, blocks=False)]) == ()


def test_programs_without_threads_have_no_launch():
    assert read([block("a", "b0"), loops("b0", "l1"), ["Parallel", ["l1"], [], []]]) == ()
    assert read([]) == ()


def test_thread_blocks_beyond_the_limit_give_no_launch():
    fits = limits.MAX_BLOCK_THREADS
    assert read(bound("a", 1, fits))[0].threads == fits
    assert read(bound("a", 1, fits + 1)) == ()


@pytest.mark.parametrize(
    "instructions",
    [
        [bind("l9", "threadIdx.x")],
        [loops("b1", "l2")],
        [block("a", "b0"), loops("b0", "l1"), split("l1", [2], "l2", "l3")],
        [block("a", "b0"), fuse([], "l1")],
        [["Bind", [], [], []]],
    ],
)
def test_damaged_traces_are_rejected(instructions):
    with pytest.raises(FormatError, match="cannot read"):
        read(instructions)
    with pytest.raises(FormatError):
        launches_of_trace(Trace(b"{", None, b"[]"), "main")


def of_steps(*steps):
    return launches_of_steps(split_steps(list(steps), 1), "main")


def test_split_stage_of_ansor_is_one_launch_with_block_and_grid():
    made = of_steps(
        *(["FU", 2, [0, 1, 2, 3]], ["SP", 2, 0, 1000, [64], 1], ["AN", 2, 0, 5]),
        *(["AN", 2, 1, 6], ["PR", 2, 0, "auto_unroll_max_step$64"]),
    )
    assert blocks_and_grids(made) == [((64, 1, 1), (16, 1, 1))]


def test_separate_stages_of_ansor_are_kernels():
    """Steps name the last stage first."""
    made = of_steps(
        *(["SP", 3, 0, 512, [32], 1], ["AN", 3, 0, 5], ["AN", 3, 1, 6]),
        *(["SP", 1, 0, 512, [2], 1], ["AN", 1, 0, 5], ["AN", 1, 1, 6]),
    )
    assert blocks_and_grids(made) == [((2, 1, 1), (256, 1, 1)), ((32, 1, 1), (16, 1, 1))]
    assert [one.kernel for one in made] == ["main_kernel", "main_kernel_1"]


FETCHING = (
    ["SP", 1, 0, 128, [4, 8], 1],
    ["SP", 1, 3, 64, [2, 16], 1],
    ["RE", 1, [0, 3, 1, 4, 2, 5]],
    ["CHR", 0, "shared", [1]],
    ["CA", 1, 2, 3],
    ["FU", 2, [0, 1]],
    ["AN", 2, 0, 5],
    ["FU", 2, [1, 2]],
    ["AN", 2, 1, 4],
    ["FU", 2, [2, 3]],
    ["AN", 2, 2, 6],
    ["SP", 1, 0, 256, [4], 1],
    ["AN", 1, 1, 2],
    ["FFSP", 1, 0, [0, 1], 1, 1],
    ["AN", 1, 1, 6],
)


def test_fetching_stage_belongs_to_the_kernel_of_its_consumer():
    assert blocks_and_grids(of_steps(*FETCHING)) == [((128, 1, 1), (8, 1, 1))]


def test_steps_of_ansor_bind_three_axes():
    # Blocks and threads along x, y and z take turns.
    bound_to = [["AN", 0, at, 5 + at] for at in range(6)]
    made = of_steps(["SP", 0, 0, 720 * 7, [2, 3, 4, 5, 6], 1], *bound_to)
    assert blocks_and_grids(made) == [((2, 4, 6), (7, 3, 5))]


@pytest.mark.parametrize(
    "steps",
    [
        [["AN", 0, 0, 6]],
        [["SP", 0, 0, 64, [None], 1], ["AN", 0, 1, 6]],
        [["SP", 0, 0, 64, [8], 1], ["AN", 0, 0, 3]],
        [["SP", 0, 0, 2**40, [2**20], 1], ["AN", 0, 1, 6]],
        [*FETCHING[:11], ["SP", 1, 0, 256, [4], 1], ["AN", 1, 1, 6]],
        [*FETCHING, ["CA", 2, 1, 0]],
    ],
    ids=["no extent", "no length", "a processor", "too many", "two extents", "in each other"],
)
def test_steps_without_definite_thread_extents_give_no_launch(steps):
    assert of_steps(*steps) == ()


extents = st.tuples(st.integers(1, 1024), st.integers(1, 8), st.integers(1, 8))
grids = st.tuples(st.integers(1, 2**18), st.integers(1, 2**16), st.integers(1, 64))


@given(st.lists(st.tuples(extents, grids, st.integers(1, 3)), max_size=4))
def test_launches_of_rows_restores_extents_from_logarithms(kernels):
    stores = [(threads, blocks) for threads, blocks, times in kernels for _ in range(times)]
    runs = [one for at, one in enumerate(stores) if at == 0 or stores[at - 1] != one]
    launches = launches_of_rows(ansor_rows(*stores), NAMES, "main")
    assert blocks_and_grids(launches) == runs
    assert [one.number for one in launches] == list(range(len(runs)))


def test_launches_of_rows_reads_columns_that_tvm_0_26_computed():
    """Block size 32 x 8 as TVM 0.26 gave it: 5.044 and 3.170."""
    made = ansor_rows(((1, 1, 1), (1, 1, 1)))
    made[0, 49:57] = [1.0, 4.0875, 1.0, 1.0, 5.044394, 3.169925, 1.0, 1.0]
    assert blocks_and_grids(launches_of_rows(made, NAMES, "main")) == [((32, 8, 1), (16, 1, 1))]


def test_launches_of_rows_ignores_cpu_rows_and_too_large_extents():
    def told(threads, blocks, gpu=1.0):
        rows = ansor_rows((threads, blocks), gpu=gpu)
        return blocks_and_grids(launches_of_rows(rows, NAMES, "main"))

    one = (1, 1, 1)
    assert told(one, one, gpu=0.0) == []
    assert told((32, 1, 1), (2**20, 1, 1)) == [((32, 1, 1), None)]
    assert told((limits.MAX_BLOCK_THREADS, 2, 1), one) == []


def launches(*threads, grid=None):
    return tuple(Launch(f"k{at}", n, (n, 1, 1), grid, at) for at, n in enumerate(threads))


GRID = (4, 1, 1)


@pytest.mark.parametrize(
    ("steps", "told_by_rows", "expected"),
    [
        ((), [], ()),
        (launches(32), [], launches(32)),
        ((), [launches(32, grid=GRID)], launches(32, grid=GRID)),
        (launches(32), [launches(32, grid=GRID)], launches(32, grid=GRID)),
        (launches(32, 32), [launches(32, grid=GRID)], launches(32, 32)),
        (launches(32, 64), [launches(64, 32, grid=GRID)], launches(64, 32, grid=GRID)),
        (launches(32, 64), [launches(64, grid=GRID)], launches(32, 64)),
        (launches(32), [launches(64)], ()),
        (launches(32), [launches(32, 64)], ()),
        ((), [launches(32), launches(64)], ()),
        (launches(32), [(), launches(32, grid=GRID)], launches(32, grid=GRID)),
    ],
)
def test_agreed_combines_launches_of_steps_and_features(steps, told_by_rows, expected):
    assert agreed(steps, told_by_rows) == expected

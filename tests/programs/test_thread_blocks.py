import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunedb import limits
from tunedb.programs.thread_blocks import axes, block_of, block_parameters, dimensions


@pytest.mark.parametrize(
    ("parameters", "block"),
    [
        ({"block_size_x": 32, "block_size_y": 8, "tile_size_x": 4}, (32, 8, 1)),
        ({"block_size_x": 32, "block_size_y": 8, "block_size_z": 2}, (32, 8, 2)),
        ({"BLOCK_SIZE_X": 64, "TILE_SIZE": 2}, (64, 1, 1)),
        ({"WORK_GROUP_SIZE_X": 16, "WORK_GROUP_SIZE_Y": 4, "Z_ITERATIONS": 32}, (16, 4, 1)),
        ({"LocalSizeX": 16, "LocalSizeY": 2}, (16, 2, 1)),
        ({"block_x": 4, "block_y": 2, "block_z": 8, "maxrregcount": 32}, (4, 2, 8)),
        ({"blockDim.x": 128}, (128, 1, 1)),
        ({"block_size_z": 2, "block_size_x": 8}, (8, 1, 2)),
        ({"MWG": 64, "MDIMC": 16, "NDIMC": 8, "MDIMA": 32}, (16, 8, 1)),
        ({"BLOCK_SIZE": 96, "WORK_PER_THREAD": 2}, (96, 1, 1)),
        ({"threads_per_block": 96}, (96, 1, 1)),
        ({"block_size_x": 32.0}, (32, 1, 1)),
        # Names that do not determine a block.
        ({"multiply_block_size": 32}, None),
        ({"block_size_y": 32}, None),
        ({"MDIMC": 16}, None),
        ({}, None),
        # Contradictory names, of which one must be wrong.
        ({"block_size_x": 32, "BLOCK_SIZE_X": 64}, None),
        ({"BLOCK_SIZE": 32, "WORK_GROUP_SIZE": 64}, None),
        ({"BLOCK_SIZE": 32, "BLOCK_SIZE_Y": 64}, None),
        # Triton's BLOCK_SIZE counts elements.
        ({"BLOCK_SIZE": 1024, "num_warps": 4}, None),
        # Values that are no extents.
        *(({"block_size_x": extent}, None) for extent in (0, -32, 32.5, True, "32", None)),
        *(({"block_size_x": extent}, None) for extent in (float("nan"), float("inf"))),
        ({"block_size_x": 2**15, "block_size_y": 4}, None),
    ],
)
def test_block_of_recognises_conventional_names(parameters, block):
    assert block_of(parameters) == block


def test_block_of_returns_none_above_the_largest_block():
    assert block_of({"block_size": limits.MAX_BLOCK_THREADS})
    assert block_of({"block_size": limits.MAX_BLOCK_THREADS + 1}) is None


@given(st.permutations(["block_size_x", "block_size_y", "tile_size_x", "unroll"]))
def test_axes_do_not_depend_on_the_order_of_parameters(names):
    assert axes(names) == ("block_size_x", "block_size_y", None)


ROWS = [
    ({"a": 32, "b": 1, "c": 4, "w": 8}, 32, (32, 1, 1)),
    ({"a": 64, "b": 1, "c": 4, "w": 8}, 64, (64, 1, 1)),
    ({"a": 64, "b": 2, "c": 2, "w": 16}, 128, (64, 2, 1)),
]


NAMED = [({"block_size_x": 1, "n": 2}, 2, (2, 1, 1))]


@pytest.mark.parametrize(
    ("rows", "stated", "found"),
    [
        # First from the input of the kernel; CLBlast's names parameters that its space has not.
        (NAMED, ["n"], {"n"}),
        (NAMED, ["n", "other"], {"block_size_x"}),
        (NAMED, [], {"block_size_x"}),
        # Then from conventional names.
        ([({"block_size_x": 2, "block_size_y": 1, "other": 2}, 2, (2, 1, 1))] * 2, None,
         {"block_size_x", "block_size_y"}),
        ([({"num_warps": 4, "BLOCK_SIZE": 128}, 128, None)], None, {"num_warps"}),
        # Then from equality with launches: b and the extents along y agree, and z never varies, so
        # no condition names it. One row in which a differs shows that it is another parameter.
        (ROWS, None, {"a", "b"}),
        ([*ROWS, ({"a": 32, "b": 2, "c": 1, "w": 1}, 32, (16, 2, 1))], None, {"b"}),
        # Several rows may tell the number of threads.
        ([({"size": 32, "t": 3}, 32, None), ({"size": 64, "t": 3}, 64, None)], None, {"size"}),
        (ROWS[:1], None, frozenset()),
        ([], None, frozenset()),
    ],
)  # fmt: skip
def test_block_parameters_come_from_the_input_then_names_then_launches(rows, stated, found):
    assert block_parameters(rows, stated) == found


@given(st.tuples(*[st.integers(1, 4)] * 3))
def test_dimensions_counts_up_to_the_last_extent_above_1(block):
    used = dimensions(block)
    assert used in (1, 2, 3)
    assert math.prod(block[used:]) == 1
    assert used == 1 or block[used - 1] > 1

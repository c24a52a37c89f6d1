from math import inf, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunedb.programs.workload_info.distance import distance, distances, log_extents, structure_of
from tunedb.records import Signature


def matmul(n=128, m=128, k=128, *, bias=False, dtype="float32", family="matmul"):
    shapes = [(n, k), (k, m), *([(m,)] if bias else []), (n, m)]
    return Signature("main", tuple((dtype, shape) for shape in shapes), family, 2.0 * n * m * k)


sizes = st.integers(1, 4096)
workloads = st.builds(
    matmul, sizes, sizes, sizes, bias=st.booleans(), dtype=st.sampled_from(["float32", "int8"])
)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        # A, B and C have two extents each, of which one or two differ by 2.
        (matmul(n=256), sqrt(2)),
        (matmul(256, 256, 256), sqrt(6)),
        (matmul(bias=True), 2),
        (matmul(n=256, bias=True), sqrt(4 + 2)),
        # Another data type adds one octave for each argument.
        (matmul(dtype="float16"), sqrt(3)),
        (matmul(dtype=None), 0),
    ],
)
def test_distance_is_that_of_all_extents_in_octaves(other, expected):
    assert distance(matmul(), other) == pytest.approx(expected)


def test_arguments_with_other_numbers_of_dimensions_do_not_match():
    plain = Signature("c", (("float32", (1, 64, 56, 56)),), "conv2d")
    packed = Signature("c", (("float32", (1, 4, 56, 56, 16)),), "conv2d")
    assert distance(plain, packed) == pytest.approx(sqrt(8))


@pytest.mark.parametrize(
    "other",
    [matmul(family="dense"), matmul(family=None), Signature("main", None, "matmul"), Signature()],
)
def test_distance_is_infinite_for_other_families_or_unknown_arguments(other):
    assert distance(matmul(), other) == inf
    assert distance(other, matmul()) == inf


@given(workloads, workloads)
def test_distance_is_symmetric(one, other):
    assert distance(one, other) == pytest.approx(distance(other, one))
    assert distance(one, one) == 0


@given(workloads, st.lists(workloads, max_size=6))
def test_distances_equals_distance_to_each_workload(one, others):
    assert distances(one, others).tolist() == [distance(one, other) for other in others]


def test_extents_below_one_count_as_one():
    assert log_extents([(4, 0), (-1,)]).tolist() == [2, 0, 0]
    assert log_extents([]).shape == (0,)
    assert structure_of("matmul", [(4, 0), (2,)]) == ("matmul", 2, 1)

import pytest
from observing import observe

from tunedb.advisor.analysis.times import comparable_slices, kernel_times, slice_gains


def slice_of(name, *pairs, **fields):
    return [
        observe(threads, seconds, slice=name, record=i, launch=i, **fields)
        for i, (threads, seconds) in enumerate(pairs)
    ]


ONE = slice_of(b"1", (64, 2.0), (128, 1.0), (256, 1.5))
TWO = slice_of(b"2", (64, 3.0), (128, 6.0), (512, 4.5))
ALONE = slice_of(b"3", (64, 9.0))
SHAPES = slice_of(b"4", (64, 1.0), (64, 2.0))


def test_kernel_times_are_relative_to_the_best_of_their_slice():
    (found,) = kernel_times(ONE + TWO + ALONE + SHAPES)
    assert (found.kernel, found.slices, found.launches) == ("k", 2, 6)
    assert [one.threads for one in found.sizes] == [64, 128, 256, 512]
    first, second = found.sizes[:2]
    assert (first.launches, first.best, first.median) == (2, 1, 1.5)
    assert (first.low, first.high) == pytest.approx((1.1, 1.9))
    assert (second.median, second.best) == (1.5, 1)
    assert found.sizes[3].median == pytest.approx(1.5)


def test_kernel_times_separate_kernels_and_devices_by_most_launches():
    other = slice_of(b"5", (32, 1.0), (64, 1.0), (96, 1.0), (128, 1.0), kernel="j")
    there = slice_of(b"6", (32, 1.0), (64, 1.0), device="A100")
    found = [(one.kernel, one.device) for one in kernel_times(ONE + other + there)]
    here = "NVIDIA GeForce RTX 2080 Ti"
    assert found == [("j", here), ("k", here), ("k", "A100")]


def test_slice_gains_compare_with_the_size_nearest_to_256():
    assert [one.gain for one in slice_gains(ONE + TWO + ALONE)] == [1.5, 2.0]
    assert [one.gain for one in slice_gains(ONE, base=64)] == [2.0]
    # 128 and 384 are as near: the smaller one counts.
    assert slice_gains(slice_of(b"t", (384, 1.0), (128, 3.0)))[0].gain == 3.0
    assert slice_gains(slice_of(b"s", (256, 3.0), (256, 2.0), (64, 1.0)))[0].gain == 2.0


def test_slices_of_one_size_and_bad_times_are_left_out():
    assert comparable_slices(ALONE + SHAPES) == []
    assert comparable_slices(slice_of(b"z", (64, 0.0), (128, 1.0))) == []
    assert kernel_times([]) == []

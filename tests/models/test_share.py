"""The shares of the best that predictions are expected to reach."""

import math

import pytest

from tunedb.models.dataset import ExampleWorkload
from tunedb.models.share import (
    FAR,
    FEWEST_OF_FAMILY,
    MeasuredPrediction,
    expected_share,
    nearest,
    shipped,
)


def dense(number, *shape, family="dense"):
    return ExampleWorkload(number, bytes([number] * 16), f"w{number}", family, (shape,), None)


def workloads(sizes):
    return tuple(dense(number, 16, size) for number, size in enumerate(sizes))


def test_expected_share_is_the_mean_of_the_familys_predictions():
    dense_ones = [MeasuredPrediction("dense", 1.0, share) for share in (0.8, 1.0)]
    one = MeasuredPrediction("softmax", 3.0, 0.0)
    measured = [*dense_ones * (FEWEST_OF_FAMILY // 2), one]
    assert expected_share("dense", 0.0, measured) == pytest.approx(0.9)
    assert expected_share("dense", 3.0, measured) == pytest.approx(0.9)
    # Of one prediction alone nothing can be said: those of all families count.
    assert expected_share("softmax", 1.0, measured) == pytest.approx(0.8)


def test_far_predictions_count_apart():
    near = [MeasuredPrediction("dense", FAR, 1.0)] * FEWEST_OF_FAMILY
    far = [MeasuredPrediction("dense", 2 * FAR, 0.2), MeasuredPrediction("softmax", 2 * FAR, 0.4)]
    assert expected_share("dense", FAR, [*near, *far]) == 1.0
    assert expected_share("dense", FAR + 0.1, [*near, *far]) == pytest.approx(0.3)


def test_expected_share_is_none_beyond_all_measured_predictions():
    measured = [MeasuredPrediction("dense", 3.0, 0.5)]
    assert expected_share("dense", 3.0, measured) == 0.5
    assert expected_share("dense", 3.1, measured) is None
    assert expected_share("dense", math.inf, measured) is None
    assert expected_share("dense", 0.0, []) is None


def test_shipped_predictions_have_possible_distances_and_shares():
    known = shipped()
    assert len(known) >= 100
    assert all(0 <= each.octaves < math.inf and 0 < each.share <= 1 for each in known)
    assert 0.5 < expected_share("conv2d", 0.0) < 1


def test_nearest_is_infinite_for_a_family_without_workloads():
    assert nearest(dense(9, 16, 128), workloads([16, 64])) == pytest.approx(1)
    assert nearest(dense(9, 16, 16, family="softmax"), workloads([16])) == math.inf
    assert nearest(dense(9, 16, 16), ()) == math.inf

"""The share of the best that a model's first choice reaches on held-out workloads."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from learnable import learnable

from tunedb.models.dataset import ExampleWorkload
from tunedb.models.share import FOLDS, WORKLOADS, ExpectedShare, expected_share


def dense(number, *shape, family="dense"):
    return ExampleWorkload(number, bytes([number] * 16), f"w{number}", family, (shape,), None)


def workloads(sizes):
    return tuple(dense(number, 16, size) for number, size in enumerate(sizes))


def test_expected_share_averages_held_out_workloads_of_similar_distance():
    distances = np.array([1.0] * WORKLOADS + [3.0] * WORKLOADS)
    shares = np.array([0.9] * WORKLOADS + [0.5] * WORKLOADS)
    expected = ExpectedShare(workloads([16]), distances, shares)
    assert expected.of(dense(1, 16, 32)) == pytest.approx(0.9)
    assert expected.of(dense(1, 16, 128)) == pytest.approx(0.5)


def test_expected_share_is_none_without_enough_comparable_workloads():
    one = ExpectedShare(workloads([16]), np.full(WORKLOADS, 2.0), np.full(WORKLOADS, 0.9))
    assert one.of(dense(1, 16, 64)) == pytest.approx(0.9)
    assert one.of(dense(1, 16, 128)) is None, "farther than all held-out workloads"
    assert one.of(dense(1, 16, 16, family="softmax")) is None, "another family"
    few = ExpectedShare(workloads([16]), one.distances[1:], one.shares[1:])
    assert few.of(dense(1, 16, 64)) is None, "too few held-out workloads"
    untrained = expected_share(learnable(3), lambda _: None)
    assert len(untrained.shares) == 0
    assert untrained.of(dense(1, 16)) is None


@dataclass
class Sum:
    """A model that scores programs of :func:`learnable` rightly, or in the opposite order."""

    sign: int

    def scores(self, rows, starts):
        return self.sign * np.add.reduceat(rows[:, 0] - rows[:, 1], starts[:-1])


def test_expected_share_holds_out_workloads_of_similar_shapes_together():
    examples = replace(learnable(6, failing=0), workloads=workloads([16, 17, 64, 65, 256, 257]))
    trained = []

    def train(part):
        trained.append(frozenset(part.workload.tolist()))
        return Sum(1)

    found = expected_share(examples, train)
    assert len(trained) == FOLDS
    assert set(trained) == {frozenset(range(6)) - held for held in ({0, 1}, {2, 3}, {4, 5})}
    assert found.shares.tolist() == [1.0] * 6
    # 16 and 17 lie two octaves from 64 or 65, and so do 256 and 257.
    np.testing.assert_allclose(found.distances, 2, atol=0.1)
    assert expected_share(examples, lambda _: Sum(-1)).shares.max() < 0.5

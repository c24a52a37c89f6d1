"""Weights of the operators."""

import math
import random
from collections import Counter

import pytest

from tunedb.errors import UsageError
from tunedb.search.operators import Operators

NAMES = ("tile_size", "parallel", "unroll", "compute_location", "crossover")


CPU, GPU = (0.90, 0.01, 0.04, 0.05, 0.05), (0.90, 0.02, 0.10, 0.0, 0.05)


@pytest.mark.parametrize(
    ("kind", "weights"),
    [
        *((kind, CPU) for kind in ("llvm", "c", "hexagon", "something new")),
        *((kind, GPU) for kind in ("cuda", "rocm", "metal", "vulkan", "opencl")),
    ],
)
def test_for_target_returns_weights_of_target_kind(kind, weights):
    """CPUs and unknown targets have Ansor's weights; on GPUs no block is moved."""
    assert Operators.for_target(kind).weights == dict(zip(NAMES, weights, strict=True))


def test_probabilities_are_normalised():
    found = Operators({"tile_size": 2, "unroll": 1, "crossover": 1}).probabilities()
    assert found == dict(zip(NAMES, (0.5, 0.0, 0.25, 0.0, 0.25), strict=True))


def test_operators_are_drawn_by_weight():
    rng = random.Random(1)
    weights = Operators({"tile_size": 3, "unroll": 1})
    drawn = Counter(weights.draw(rng).name for _ in range(2000))
    assert set(drawn) == {"tile_size", "unroll"}
    assert 1400 < drawn["tile_size"] < 1600


@pytest.mark.parametrize(
    "weights",
    [
        *({}, {"tile_size": 0}, {"tile_size": 1, "parallel": -1}),
        *({"tile_size": value, "unroll": 1} for value in (math.nan, math.inf)),
    ],
)
def test_operators_rejects_invalid_weights(weights):
    with pytest.raises(UsageError, match="weight"):
        Operators(weights)


def test_with_weights_replaces_one_weight_and_rejects_unknown_operators():
    weights = Operators.for_target("llvm").with_weights(crossover=0.2)
    assert weights.weights == {**Operators.for_target("llvm").weights, "crossover": 0.2}
    with pytest.raises(UsageError, match="no search operator 'fuse'; there are tile_size"):
        weights.with_weights(fuse=1.0)

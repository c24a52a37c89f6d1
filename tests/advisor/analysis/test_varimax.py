"""The varimax rotation, compared with its definition and a search over all angles."""

import numpy as np
import pytest
from effort import spread
from hypothesis import given
from hypothesis import strategies as st

from tunedb.advisor.analysis.components import varimax


def criterion(loadings):
    """Return the variance of the squared loadings, summed over components (Kaiser 1958)."""
    return float((loadings**2).var(axis=0).sum())


def normalised(loadings):
    return loadings / np.sqrt((loadings**2).sum(axis=1, keepdims=True))


def turn(angle):
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


@given(st.integers(2, 12), st.integers(1, 5), st.integers(0, 2**32 - 1), st.booleans())
def test_rotation_is_orthogonal_and_keeps_communalities(p, k, seed, normalise):
    loadings = np.random.default_rng(seed).normal(size=(p, k))
    rotated, rotation = varimax(loadings, normalise=normalise)
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(k), atol=1e-9)
    np.testing.assert_allclose(rotated, loadings @ rotation, atol=1e-12)
    np.testing.assert_allclose((rotated**2).sum(axis=1), (loadings**2).sum(axis=1), rtol=1e-9)


@pytest.mark.parametrize("seed", spread(range(5), 2))
def test_varimax_is_optimal_for_two_components(seed):
    loadings = np.random.default_rng(seed).normal(size=(9, 2))
    best = max(criterion(loadings @ turn(a)) for a in np.linspace(0, np.pi / 2, 2000))
    assert criterion(varimax(loadings, normalise=False)[0]) >= best - 1e-9
    rows = normalised(loadings)
    best = max(criterion(rows @ turn(a)) for a in np.linspace(0, np.pi / 2, 2000))
    assert criterion(normalised(varimax(loadings)[0])) >= best - 1e-9


def test_varimax_recovers_planted_blocks():
    random = np.random.default_rng(3)
    planted = np.zeros((9, 3))
    for block in range(3):
        planted[3 * block : 3 * block + 3, block] = random.uniform(0.6, 0.95, 3)
    mixed = planted @ np.linalg.qr(random.normal(size=(3, 3)))[0]
    found = np.abs(varimax(mixed)[0])
    order = [int(column) for column in found[[0, 3, 6]].argmax(axis=1)]
    assert sorted(order) == [0, 1, 2]
    np.testing.assert_allclose(found[:, order], planted, atol=1e-5)


def test_varimax_keeps_rows_of_zeros_and_single_components():
    loadings = np.array([[0.0, 0.0], [0.5, 0.5], [0.5, -0.5]])
    rotated, _ = varimax(loadings)
    assert not rotated[0].any()
    assert np.isfinite(rotated).all()
    np.testing.assert_array_equal(varimax(loadings[:, :1])[0], loadings[:, :1])

import numpy as np
import pytest
from observing import inputs

from tunedb.advisor.analysis.components import principal_components, signs_of, standardise
from tunedb.advisor.observations import Inputs

NAN = float("nan")


def mixed(rows=40, seed=0):
    """Return six inputs that follow two random factors, with noise."""
    random = np.random.default_rng(seed)
    one, other = random.normal(size=(2, rows))
    columns = {f"a{i}": one + 0.1 * random.normal(size=rows) for i in range(3)}
    columns |= {f"b{i}": other + 0.1 * random.normal(size=rows) for i in range(3)}
    return inputs(**columns)


def test_standardised_inputs_have_mean_0_and_variance_1():
    found = standardise(mixed())
    np.testing.assert_allclose(found.values.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(found.values.std(axis=0), 1)
    assert found.logarithmic == ()
    assert found.rows.tolist() == list(range(40))


def test_constant_inputs_are_left_out_and_gaps_get_the_median():
    columns = {"constant": [5, 5, 5, 5], "nearly": [1e9, 1e9, 1e9, 1e9 + 1e-6], "never": [NAN] * 4}
    columns |= {"gap": [1, 2, 9, NAN], "infinite": [1, 2, float("inf"), 5]}
    found = standardise(inputs(**columns))
    assert found.names == ("gap", "infinite")
    gap = np.array([1, 2, 9, 2.0])
    np.testing.assert_allclose(found.values[:, 0], (gap - gap.mean()) / gap.std())


def test_standardise_skips_launches_without_half_of_the_inputs():
    columns = {"a": [1, 2, 3, NAN], "b": [1, NAN, 2, NAN]}
    found = standardise(inputs(**columns, c=[3, NAN, 4, 7], d=[0, 1, 5, 2]))
    assert found.rows.tolist() == [0, 1, 2, 3]
    assert standardise(inputs(**columns, c=[3, NAN, 4, NAN])).rows.tolist() == [0, 2]
    assert standardise(inputs(a=[NAN, NAN])).values.shape == (0, 0)


def test_counts_become_logarithms_and_shares_do_not():
    counts = np.array([10, 1000, 100000.0])
    found = standardise(inputs(count=counts, share=[1, 50, 100], signed=[-5000, 0, 5000]))
    assert found.logarithmic == ("count",)
    logs = np.log1p(counts)
    np.testing.assert_allclose(found.values[:, 0], (logs - logs.mean()) / logs.std())


def test_components_equal_those_of_scikit_learn():
    decomposition = pytest.importorskip("sklearn.decomposition")
    values = standardise(mixed())
    found, known = principal_components(values), decomposition.PCA().fit(values.values)
    np.testing.assert_allclose(found.shares, known.explained_variance_ratio_)
    scores = known.transform(values.values)
    np.testing.assert_allclose(np.abs(found.scores), np.abs(scores), atol=1e-9)
    assert found.shares.sum() == pytest.approx(1)


def test_loadings_are_correlations_of_inputs_with_components():
    values = standardise(mixed())
    found = principal_components(values)
    known = np.corrcoef(values.values, found.scores, rowvar=False)[:6, 6:]
    np.testing.assert_allclose(found.loadings, known, atol=1e-9)
    largest = np.abs(found.loadings).argmax(axis=0)
    assert (found.loadings[largest, range(6)] > 0).all()


def test_rotated_components_are_the_two_planted_factors():
    found = principal_components(standardise(mixed()))
    assert found.rotated.shape == (6, 2)
    strong = np.abs(found.rotated) > 0.9
    assert strong.sum(axis=1).tolist() == [1] * 6
    assert len({tuple(row) for row in strong[:3].tolist()}) == 1
    assert strong[0].tolist() != strong[3].tolist()
    kept = (found.loadings[:, :2] ** 2).sum(axis=1)
    np.testing.assert_allclose((found.rotated**2).sum(axis=1), kept)
    assert found.rotated_shares[0] >= found.rotated_shares[1]
    np.testing.assert_allclose(found.rotated_shares, (found.rotated**2).sum(axis=0) / 6)


def test_the_order_of_rows_does_not_flip_components():
    data = mixed()
    turned = Inputs(data.names, data.values[::-1])
    one, other = principal_components(standardise(data)), principal_components(standardise(turned))
    np.testing.assert_allclose(one.scores[:, :2], other.scores[::-1, :2], atol=1e-9)


def test_too_little_data_has_no_components():
    for columns in ({"a": [1, 2], "b": [3, 1]}, {"a": [1, 2, 3]}, {"a": [1] * 3, "b": [1] * 3}):
        assert principal_components(standardise(inputs(**columns))) is None


def test_proportional_inputs_have_two_columns_of_scores():
    found = principal_components(standardise(inputs(a=[1, 2, 3, 5], b=[2, 4, 6, 10])))
    assert found.scores.shape == (4, 2)
    np.testing.assert_allclose(found.scores[:, 1], 0, atol=1e-9)
    assert found.rotated.shape[1] == 1


def test_signs_of_returns_sign_of_the_largest_loading():
    assert signs_of(np.array([[1.0, -3.0], [-2.0, 1.0]])).tolist() == [-1, -1]

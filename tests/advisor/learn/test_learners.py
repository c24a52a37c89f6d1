"""Stored learners predict what scikit-learn predicts, with numpy alone."""

import json

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from tunedb.advisor.learn import boosted, svm
from tunedb.advisor.learn.boosted import Boosted
from tunedb.advisor.learn.model import calibrate, softmax
from tunedb.advisor.learn.preprocessing import Preparation
from tunedb.advisor.learn.svm import SVM
from tunedb.advisor.observations import Inputs
from tunedb.errors import FormatError

pytest.importorskip("sklearn")


def rows(classes=(0, 1, 2), n=150, seed=0):
    rng = np.random.default_rng(seed)
    truth = rng.choice(classes, n).astype(np.int8)
    values = rng.normal(size=(n, 4)) + truth[:, None] * np.array([1, -1, 0.5, 0])
    return values, truth


@pytest.fixture(scope="module")
def trees():
    """Rows, and trees trained on them."""
    values, truth = rows()
    return values, boosted.fit(values, truth, np.ones(len(truth)))


def again(model, columns):
    """Return the model after a round trip through JSON."""
    return type(model).from_json(json.loads(json.dumps(model.to_json())), columns)


@pytest.mark.parametrize("classes", [(0, 1, 2), (0, 2), (1, 2)])
@pytest.mark.parametrize("learner", [svm, boosted])
def test_stored_scores_equal_those_of_scikit_learn(learner, classes):
    values, truth = rows(classes)
    if learner is svm:
        fitted = svm.estimator(C=3.0, gamma=0.2).fit(values, truth)
        model = again(svm.extract(fitted), 4)
    else:
        fitted = boosted.learner().fit(values, truth)
        model = again(boosted.extract(fitted, 4), 4)
    more = np.random.default_rng(9).normal(size=(500, 4)) * 3
    scores, expected = model.scores(more), fitted.decision_function(more)
    assert np.array_equal(scores.argmax(axis=1), fitted.predict(more))
    found = scores[:, list(classes)]
    if len(classes) == 2:
        if learner is svm:
            assert np.abs(found[:, 0] + expected).max() < 1e-9
            found = found[:, 1]
        else:
            found = found[:, 1] - found[:, 0]
    assert np.abs(found - expected).max() < 1e-9


def test_svm_scores_of_repeated_rows_equal_those_of_scikit_learn():
    # The same vector supports a machine several times, once for each row.
    values, truth = rows(n=30)
    values, truth = np.tile(values, (4, 1)), np.tile(truth, 4)
    fitted = svm.estimator(C=0.1, gamma=0.5).fit(values, truth)
    found = svm.extract(fitted)
    assert np.abs(found.scores(values) - fitted.decision_function(values)).max() < 1e-9
    assert len(found.vectors) <= 30


def test_contributions_add_up_to_scores(trees):
    values, model = trees
    added = model.contributions(values)
    assert added.shape == (len(values), 3, 5)
    assert np.abs(model.start + added.sum(axis=2) - model.scores(values)).max() < 1e-9
    # The last column does not depend on the class.
    assert np.abs(added[:, :, 3]).mean() < np.abs(added[:, :, 0]).mean() / 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"left": 0}, "trees are damaged"),  # a node before itself: walking would not end
        ({"feature": 9}, "trees are damaged"),
        ({"right": 10**6}, "trees are damaged"),
        ({"threshold": float("nan")}, "model holds"),
    ],
)
def test_from_json_rejects_invalid_trees(change, message, trees):
    stored = trees[1].to_json()
    inner = next(i for i, feature in enumerate(stored["feature"]) if feature >= 0 and i)
    for name, value in change.items():
        stored[name][inner] = value
    with pytest.raises(FormatError, match=message):
        Boosted.from_json(stored, 4)


@pytest.mark.parametrize(
    "change",
    [{"gamma": -1}, {"vectors": [[1.0]]}, {"weights": [[0.0]]}, {"intercepts": ["a", 0, 0]}],
)
def test_from_json_rejects_invalid_svm(change):
    values, truth = rows(n=40)
    with pytest.raises(FormatError):
        SVM.from_json(svm.fit(values, truth).to_json() | change, 4)


def test_preparation_selects_scales_and_fills_inputs():
    names = ("count", "ratio", "same", "twin", "zero", "gap")
    rng = np.random.default_rng(0)
    ratio = rng.uniform(0, 1, 50)
    gap = np.where(np.arange(50) % 5 == 0, np.nan, rng.uniform(0, 1, 50))
    count = 10.0 ** rng.uniform(3, 9, 50)
    values = np.column_stack([count, ratio, np.full(50, 7.0), 3 * ratio, np.zeros(50), gap])
    found = Preparation.fit(Inputs(names, values))
    assert found.names == ("count", "gap", "ratio")  # twin follows ratio, same and zero say nothing
    assert found.logarithm.tolist() == [True, False, False]
    made = found(Inputs(names, values))
    assert np.allclose(made.mean(axis=0), 0) and np.allclose(made.std(axis=0), 1)
    logs = np.log2(1 + count)
    assert np.allclose(made[:, 0], (logs - logs.mean()) / logs.std())
    # A gap is the median; a column that is not there at all is a gap everywhere.
    filled = (np.nanmedian(gap) - found.mean[1]) / found.scale[1]
    assert np.allclose(made[::5, 1], filled)
    other = found(Inputs(("ratio", "count"), values[:, [1, 0]]))
    assert np.allclose(other[:, [0, 2]], made[:, [0, 2]]) and np.allclose(other[:, 1], filled)
    stored = json.loads(json.dumps(found.to_json()))
    assert np.array_equal(Preparation.from_json(stored)(Inputs(names, values)), made)
    assert Preparation.fit(Inputs(names, values), log_above=0.0).logarithm.tolist() == [True] * 3


@settings(max_examples=examples(50))
@given(st.lists(st.floats(-50, 50), min_size=3, max_size=3), st.floats(0.01, 100))
def test_softmax_returns_probabilities_with_maximum_at_the_largest_score(scores, temperature):
    found = softmax(np.array([scores]), temperature)[0]
    assert found.sum() == pytest.approx(1) and (found >= 0).all()
    assert found[int(np.argmax(scores))] == found.max()


def test_calibrate_recovers_the_temperature_of_held_out_rows():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(4000, 3))
    likely = softmax(scores, 0.5)
    truth = np.array([rng.choice(3, p=p) for p in likely], np.int8)
    assert calibrate(scores, truth) == pytest.approx(0.5, rel=0.3)
    assert calibrate(scores, np.full(4000, -1, np.int8)) == 1.0
    # Twenty right rows do not give certainty.
    right = np.eye(3)[[0, 1, 2, 0] * 5]
    sure = softmax(right, calibrate(right, right.argmax(axis=1).astype(np.int8))).max()
    assert 0.8 < sure < 0.999

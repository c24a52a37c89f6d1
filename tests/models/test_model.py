import struct
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from learnable import learnable, quick
from raising import raises_line

from tunedb import identity, limits
from tunedb.errors import FormatError, LimitError, UsageError
from tunedb.models import model as model_module
from tunedb.models._xgboost import import_xgboost
from tunedb.models.model import Model, joined_scores
from tunedb.models.training import fit

xgboost = import_xgboost()
EXAMPLES = learnable(4, 30, rows=(0, 4))


@pytest.fixture(scope="module")
def model():
    return fit(EXAMPLES, quick(members=2), threads=1).model


@pytest.fixture(scope="module")
def data(model):
    return model.to_bytes()


def constant(value, columns=2):
    """Return a booster with one score for all rows."""
    rows = np.zeros((2, columns), np.float32)
    settings_ = {"base_score": value, "nthread": 1}
    return xgboost.train(settings_, xgboost.DMatrix(rows, [value, value]), 0)


def made_of(*boosters, columns=("a", "b"), **fields):
    return Model(quick(), "small", 3, columns, boosters, **fields)


def test_score_is_the_mean_over_boosters_of_sums_over_rows():
    model = made_of(constant(0.5), constant(0.25))
    rows = np.zeros((6, 2), np.float32)
    scores = model.scores(rows, np.array([0, 1, 1, 4, 6, 6]))
    assert scores.dtype == np.float64
    assert scores.tolist() == [0.375, 0, 3 * 0.375, 2 * 0.375, 0]
    assert model.scores(rows[:0], np.array([0])).tolist() == []
    assert model.scores(rows[:0], np.array([0, 0, 0])).tolist() == [0, 0]
    assert model.score_programs([]).tolist() == []


def test_aggregated_model_scores_programs_without_rows():
    model = made_of(constant(0.5, columns=7), rows="aggregated")
    assert model.tree_columns[:3] == ("a.sum", "b.sum", "a.max")
    rows = np.zeros((3, 2), np.float32)
    assert model.scores(rows, np.array([0, 2, 2, 3])).tolist() == [0.5, 0.5, 0.5]


def test_scores_equal_sums_of_predictions_of_xgboost(model):
    expected = np.zeros(len(EXAMPLES))
    for booster in model.boosters:
        rows = booster.predict(xgboost.DMatrix(EXAMPLES.rows)).astype(float)
        for number, (begin, end) in enumerate(pairwise(EXAMPLES.starts)):
            expected[number] += rows[begin:end].sum() / 2
    assert model.scores(EXAMPLES.rows, EXAMPLES.starts) == pytest.approx(expected, abs=1e-6)


def test_scores_do_not_depend_on_the_batch_the_layout_of_rows_or_threads(model):
    rows, starts = EXAMPLES.rows, EXAMPLES.starts
    whole = model.scores(rows, starts).tolist()
    parts = [rows[a:b] for a, b in pairwise(starts)]
    assert model.score_programs(parts).tolist() == whole
    assert [float(model.score_programs([part])[0]) for part in parts] == whole
    assert model.score_examples(EXAMPLES).tolist() == whole
    every_second = np.repeat(rows, 2, axis=1)[:, ::2]
    for other in (np.asfortranarray(rows), rows.astype(float), every_second):
        assert model.scores(other, starts).tolist() == whole
    for threads in (1, 2, 3):
        model.use_threads(threads)
        assert model.scores(rows, starts).tolist() == whole


def test_model_rejects_rows_of_wrong_shape(model):
    for rows, message in (
        (EXAMPLES.rows[:, :5], r"rows of shape \(\d+, 5\) do not fit a model of features small"),
        (EXAMPLES.rows[0], "which has 6 columns"),
    ):
        with pytest.raises(UsageError, match=message):
            model.scores(rows, EXAMPLES.starts)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"feature_set": "steps"}, "small version 3, not on steps version 3; rebuild: tunedb tra"),
        ({"version": 4}, "small version 3, not on small version 4; rebuild: tunedb train --feat"),
        ({"columns": tuple("abcdef")}, r"small version 3 have other columns .* \(6, 6\); rebuild"),
    ],
)
def test_model_rejects_features_of_other_sets_versions_and_columns(model, change, message):
    with raises_line(UsageError, match=message):
        model.score_examples(replace(EXAMPLES, **change))


@pytest.mark.parametrize("rows", ["pack-sum", "aggregated"])
def test_model_survives_round_trip_through_bytes(rows):
    model = fit(EXAMPLES, quick(members=2, rows=rows), threads=1).model
    data = model.to_bytes()
    again = Model.from_bytes(data, threads=1)
    assert again.to_bytes() == data
    assert (again.recipe, again.columns, again.rows) == (model.recipe, model.columns, rows)
    assert (again.feature_set, again.version, again.rounds) == ("small", 3, 20)
    scores = model.scores(EXAMPLES.rows, EXAMPLES.starts)
    assert again.scores(EXAMPLES.rows, EXAMPLES.starts).tolist() == scores.tolist()


def sealed(header_change=None, bodies=None, of=b""):
    """Return the bytes of a model with another header or boosters, and a digest that fits."""
    payload = of[len(b"tunedb-model\x01") + 16 :]
    (length,) = struct.unpack_from("<I", payload)
    header = payload[4 : 4 + length]
    if header_change:
        assert header_change[0] in header
        header = header.replace(*header_change)
    rest = payload[4 + length :] if bodies is None else bodies
    payload = struct.pack("<I", len(header)) + header + rest
    return b"tunedb-model\x01" + identity.digest("model body", payload) + payload


def test_from_bytes_rejects_models_of_newer_xgboost_and_tunedb(data, monkeypatch):
    newer = sealed((b'"3.', b'"30.'), of=data)
    later = data.replace(b"tunedb-model\x01", b"tunedb-model\x02", 1)
    for message, other in (
        (r"by XGBoost 30\.\S+, but this is 3\.\S+; rebuild: ", newer),
        ("by a newer tunedb; rebuild: tunedb train", later),
        ("a recipe has no etta; rebuild: tunedb train", sealed((b'"eta"', b'"etta"'), of=data)),
    ):
        with pytest.raises(UsageError, match=message):
            Model.from_bytes(other)
    # An older one is read, and so is the same.
    monkeypatch.setattr(xgboost, "__version__", "3.999.0rc1")
    Model.from_bytes(data, threads=1)


@given(drawn=st.data())
@settings(max_examples=examples(60))
def test_from_bytes_rejects_any_damage(data, drawn):
    """XGBoost does not check its input, and may crash."""
    at = drawn.draw(st.integers(13, len(data) - 1))
    flipped = data[:at] + bytes([data[at] ^ drawn.draw(st.integers(1, 255))]) + data[at + 1 :]
    for damaged in (flipped, data[:at], data + b"x"):
        with pytest.raises(FormatError, match="the model is damaged; rebuild: tunedb train"):
            Model.from_bytes(damaged)


def test_from_bytes_rejects_other_formats_and_inconsistent_models(data):
    whole = made_of(constant(0.5))
    junk = b"x" * len(whole.boosters[0].save_raw("ubj"))
    for message, other in (
        ("not a tunedb model", b""),
        ("not a tunedb model", b"tunedb"),
        ("not a tunedb model", b"SQLite format 3\x00" + data),
        ("another header", sealed((b'"rows":', b'"cows":'), of=data)),
        ("other sizes", sealed(bodies=b"x", of=data)),
        ("not JSON", sealed((b"{", b"["), of=data)),
        ("do not have 7 columns", sealed((b'"c5"]', b'"c5","c6"]'), of=data)),
        ("XGBoost cannot read the model", sealed(bodies=junk, of=whole.to_bytes())),
    ):
        with raises_line(FormatError, match=message):
            Model.from_bytes(other)


def test_from_bytes_rejects_models_over_the_limits(data, monkeypatch):
    monkeypatch.setattr(limits, "MAX_BODY_BYTES", len(data) - 1)
    with pytest.raises(LimitError, match=f"a model of {len(data)} bytes; the limit is"):
        Model.from_bytes(data)
    monkeypatch.undo()
    monkeypatch.setattr(model_module, "MOST_MEMBERS", 1)
    with pytest.raises(FormatError, match="other sizes"):
        Model.from_bytes(data)


def test_joined_scores_standardises_scores_before_weighing_them():
    unit = 1.5**0.5
    rising, falling, equal = [1, 2, 3], [30, 20, 10], [5, 5, 5]
    expected = [-0.75 * unit, 0, 0.75 * unit]
    assert joined_scores(rising, falling, 0.25) == pytest.approx(expected)
    assert joined_scores(rising, equal, 0.25) == pytest.approx([-unit, 0, unit])
    assert joined_scores(equal, rising, 0.25) == pytest.approx([-0.25 * unit, 0, 0.25 * unit])
    assert joined_scores([], [], 0.25) == []

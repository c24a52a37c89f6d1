from functools import cache

import numpy as np
import pytest
from learnable import examples_of, quick

from tunedb.features.ansor import per_store_names
from tunedb.models import explain
from tunedb.models.training import fit

COLUMNS = ("B0.lines", "spatial2.outer", "noise", "constant")


@cache
def learnt(rows="pack-sum", members=1):
    """Return a model of 60 programs of three rows; the score is twice column 0 less column 1."""
    made = np.random.default_rng(0).random((180, len(COLUMNS)), dtype=np.float32)
    made[:, 3] = 7
    value = (2 * made[:, 0] - made[:, 1]).reshape(60, 3).sum(axis=1).astype(np.float64)
    throughput = (value - value.min() + 0.1) / (value.max() - value.min() + 0.1)
    group = np.zeros(60, np.int32)
    examples = examples_of(made, [3] * 60, group, throughput, columns=COLUMNS)
    choices = {"rows": rows, "loss": "squared", "rounds": 40, "members": members}
    return fit(examples, quick(**choices), threads=1).model, examples


@pytest.fixture(scope="module", params=["pack-sum", "aggregated"])
def trained(request):
    return learnt(request.param, members=2)


def test_contributions_and_bias_add_up_to_the_score(trained):
    model, examples = trained
    for program in range(5):
        rows = examples.rows[examples.starts[program] : examples.starts[program + 1]]
        told = explain.contributions(model, rows)
        assert told.columns == model.tree_columns
        assert told.rows.shape == told.values.shape == (len(told.by_row), len(told.columns))
        assert told.rows.sum() + told.bias == pytest.approx(told.score, abs=1e-5)
        assert told.by_column.sum() == pytest.approx(told.by_row.sum())
        assert told.score == model.score_programs([rows])[0]


def test_contributions_of_pack_sum_have_one_row_and_bias_per_statement():
    model, examples = learnt()
    one = explain.contributions(model, examples.rows[:1])
    three = explain.contributions(model, examples.rows[:3])
    assert len(one.rows) == 1 and len(three.rows) == 3
    assert three.bias == pytest.approx(3 * one.bias)
    np.testing.assert_allclose(three.rows[0], one.rows[0])
    np.testing.assert_array_equal(three.values, examples.rows[:3])
    none = explain.contributions(model, examples.rows[:0])
    assert (none.score, none.bias, none.rows.shape) == (0.0, 0.0, (0, len(COLUMNS)))


def test_contributions_are_positive_for_fast_and_negative_for_slow_columns():
    model, _ = learnt()
    rows = np.tile(np.float32([[0.5, 0.5, 0.5, 7]]), (3, 1))
    fast, slow = rows.copy(), rows.copy()
    fast[:, 0], slow[:, 1] = 1, 1
    assert explain.contributions(model, fast).by_column[0] > 0.1
    assert explain.contributions(model, slow).by_column[1] < -0.05
    assert explain.contributions(model, fast).by_column[3] == 0


def test_importance_lists_decisive_columns_first(trained):
    model, examples = trained
    found = explain.importance(model, examples)
    names = [one.name for one in found]
    assert names[0].startswith("B0.lines")
    assert any(name.startswith("spatial2.outer") for name in names[:3])
    assert not any(name.startswith("constant") for name in names)
    assert [one.shap for one in found] == sorted((one.shap for one in found), reverse=True)
    assert sum(one.gain for one in found) == pytest.approx(1)
    # The splits are those of all members.
    each = [booster.get_score(importance_type="weight").values() for booster in model.boosters]
    assert len(each) == 2
    assert sum(one.splits for one in found) == sum(map(sum, each))
    assert all(one.splits > 0 for one in found)
    # It is the mean of contributions() over the same programs.
    at, parts = model.tree_columns.index(names[0]), np.split(examples.rows, examples.starts[1:-1])
    each = [explain.contributions(model, rows).by_column[at] for rows in parts]
    assert found[0].shap == pytest.approx(np.abs(each).mean())


def test_by_group_adds_up_importance_of_columns(trained):
    columns = explain.importance(*trained)
    groups = explain.by_group(columns)
    members = [one for one in columns if one.group == "B0"]
    assert groups[0].name == "B0"
    assert groups[0].shap == pytest.approx(sum(one.shap for one in members))
    assert groups[0].splits == sum(one.splits for one in members)
    assert sum(one.gain for one in groups) == pytest.approx(1)


def test_group_of_returns_group_of_each_column():
    groups = {
        "float_mad": "operations",
        "select_op": "operations",
        "vec_type.kPosMixed": "vectorized loops",
        "auto_unroll_max_step": "unrolled loops",
        "vthread_len": "threads",
        "B3.unique_bytes": "B3",
        "B0.lines.log_sum": "B0",
        "arith_intensity_curve_4": "arithmetic intensity",
        "alloc_outer_prod": "allocation",
        "outer_prod": "loops around",
        "spatial2.outer": "spatial",
        "location5.max": "location",
        "vector.length": "vector",
        "rows": "rows",
        "7": "7",
    }
    assert {column: explain.group_of(column) for column in groups} == groups


def test_every_column_of_ansor_has_a_documented_group():
    groups = {explain.group_of(name) for name in per_store_names()}
    assert groups == {
        *("operations", "vectorized loops", "unrolled loops", "parallel loops", "threads"),
        *("B0", "B1", "B2", "B3", "B4", "arithmetic intensity", "allocation", "loops around"),
    }


def test_drawn_returns_the_same_bounded_sample_for_a_seed():
    _, examples = learnt()
    drawn = [explain.drawn(examples, 10, seed=seed).program_ids.tolist() for seed in (0, 0, 1)]
    assert len(drawn[0]) == 10
    assert drawn[0] == drawn[1] != drawn[2]
    assert explain.drawn(examples, 60) is examples

"""Boosting: stable for any number of rows, and the same for any number of threads."""

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from learnable import examples_of, learnable, quick, untrained
from raising import raises_line

from tunedb.errors import UsageError
from tunedb.models import boosting
from tunedb.models.boosting import Matrix, parameters, sample

LOSSES = ["throughput", "squared", "log", "rank", "relative"]


def values(rounds=10, **choices):
    """Return the loss before training and after each round."""
    run, objective = untrained(**choices)
    found = [objective.value(run.scores())]
    for _ in range(rounds):
        run.step()
        found.append(objective.value(run.scores()))
    return np.array(found)


def test_hessian_power_has_no_effect_if_each_program_has_one_row():
    examples = learnable(rows=(1, 1))
    losses = [values(examples=examples, hessian_power=power).tolist() for power in (0.0, 1.0)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("loss", LOSSES)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.1, 0.5, 1.0]), st.booleans())
@settings(max_examples=examples(15))
def test_the_loss_falls_with_programs_of_different_numbers_of_rows(loss, seed, eta, spread):
    """Rows of a program in one leaf or in several, programs of 1 to 64 rows."""
    made = learnable(2, 20, rows=(1, 64), seed=seed)
    losses = values(examples=made, loss=loss, eta=eta, max_depth=3 if spread else 1)
    assert (np.diff(losses) <= 1e-6 * losses[0]).all()
    assert losses[-1] < losses[0]


def test_step_adds_the_newton_step_of_each_leaf():
    """A stump on two programs of two and one rows: base, leaves -G / H · eta."""
    examples = examples_of([[0], [0], [1]], [2, 1], [0, 0], [1.0, 0.25])
    run, _ = untrained(examples, loss="squared", eta=0.5, max_depth=1, reg_lambda=0.0)
    base = 1.25 / 3
    assert run.scores() == pytest.approx([2 * base, base])
    run.step()
    # Gradients 2b - 1 for each of two rows, b - 0.25; Hessians 2 for each of them, 1.
    first, second = (1 - 2 * base) / 2 / 2, (0.25 - base) / 2
    assert run.scores() == pytest.approx([2 * (base + first), base + second], rel=1e-5)


def test_programs_with_count_0_do_not_change_the_scores():
    examples = learnable(3, 30)
    away = examples.workload == 1
    run, _ = untrained(examples, counts=(~away).astype(float))
    throughput = np.where(away, examples.throughput[::-1] * 0.9 + 0.05, examples.throughput)
    changed = examples_of(examples.rows, examples.sizes, examples.group, throughput)
    other, _ = untrained(changed, counts=(~away).astype(float))
    for one in (run, other):
        one.booster.set_param({"base_score": 0.25})
        for _ in range(5):
            one.step()
    assert run.scores().tolist() == other.scores().tolist()


def test_program_with_count_2_acts_like_two_programs():
    examples = learnable(1, 20, rows=(1, 1), failing=0)
    rows = np.concatenate([examples.rows, examples.rows[:5]])
    throughput = np.concatenate([examples.throughput, examples.throughput[:5]])
    twice = examples_of(rows, np.ones(25, int), np.zeros(25, int), throughput)
    counts = np.where(np.arange(20) < 5, 2.0, 1.0)
    one, objective = untrained(examples, loss="squared", counts=counts)
    other, other_objective = untrained(twice, loss="squared")
    assert objective.base(examples.sizes) != other_objective.base(twice.sizes)
    for run in (one, other):
        run.booster.set_param({"base_score": 0.25})
        for _ in range(5):
            run.step()
    assert one.scores() == pytest.approx(other.scores()[:20], rel=1e-5)


@given(st.lists(st.integers(-(10**9), 10**9), min_size=1, max_size=50), st.randoms())
def test_sums_do_not_depend_on_their_order(values, random):
    values = np.array(values) / 7
    short = boosting._summable(values).astype(float).tolist()
    total = sum(short)
    assert np.abs(np.array(short) - values).max() <= 2**-24 * np.abs(values).max()
    random.shuffle(short)
    assert sum(short) == total
    assert sum(short[1::2]) + sum(short[::2]) == total


@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_are_rounded_so_that_their_sums_are_exact(loss, monkeypatch):
    given, to_rows = [], Matrix.to_rows
    monkeypatch.setattr(
        Matrix, "to_rows", lambda self, values: given.append(values) or to_rows(self, values)
    )
    run, _ = untrained(learnable(rows=(1, 5)), loss=loss)
    for _ in range(3):
        run.step()
    assert len(given) == 6  # gradient and Hessian
    for values in given:
        largest = float(np.abs(values).max())
        parts = values.astype(float) / np.ldexp(1.0, int(np.frexp(largest)[1]) - 24)
        assert (parts == np.rint(parts)).all()


def test_bounds_of_bins_come_from_a_sample_of_rows(monkeypatch):
    assert sample(5, 0).tolist() == [0, 1, 2, 3, 4]
    drawn = sample(100_000, 0)
    assert len(drawn) == 64 * boosting.BINS
    assert (np.diff(drawn) > 0).all()
    assert drawn[-1] < 100_000
    assert sample(100_000, 0).tolist() == drawn.tolist() != sample(100_000, 1).tolist()
    # A matrix with bins of a sample trains as well.
    examples = learnable(4, 200, rows=(1, 2))
    monkeypatch.setattr(boosting, "_SAMPLE_ROWS", 256)
    run, objective = untrained(examples)
    before = objective.value(run.scores())
    for _ in range(10):
        run.step()
    assert objective.value(run.scores()) < before / 4
    direct = run.booster.inplace_predict(examples.rows).astype(float)
    assert run.scores() == pytest.approx(np.add.reduceat(direct, examples.starts[:-1]), rel=1e-5)


@pytest.mark.parametrize("choice", [{"eta": -1.0}, {"subsample": 2.0}, {"max_depth": -3}])
def test_errors_of_xgboost_are_reported_in_one_line(choice):
    with raises_line(UsageError, match=r"^XGBoost rejects the recipe: "):
        run, _ = untrained(learnable(), **choice)
        run.step()


def test_parameters_take_values_of_recipe_and_arguments():
    found = parameters(quick(max_depth=9, gamma=0.5), seed=4, threads=2, device="cuda")
    assert (found["max_depth"], found["gamma"], found["seed"], found["nthread"]) == (9, 0.5, 4, 2)

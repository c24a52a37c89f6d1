from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from judged_data import judged
from learnable import quick

from tunedb.errors import NotFoundError, UsageError
from tunedb.models import simulation
from tunedb.models.dataset import ORIGINS
from tunedb.models.simulation import SearchSettings, difference, in_common, simulate
from tunedb.records import Origin

EXAMPLES = judged(programs=60)
RECIPE = quick(rounds=5)
BATCH = SearchSettings(features=("one",), batch=20)
SURE = replace(BATCH, random=0.0)


def search(*settings, examples=EXAMPLES, trials=60, seeds=2, recipe=RECIPE, **options):
    options |= {"recipe": recipe, "trials": trials, "seeds": seeds, "threads": 1}
    return simulate({"one": examples, "two": examples}, settings or [BATCH], **options)


@dataclass
class Oracle:
    """Scores programs by their throughput, and remembers what it was fitted on."""

    sign: float = 1.0
    fitted: list = field(default_factory=list)

    def fit(self, examples, recipe, threads):
        self.fitted.append(examples)
        self.model = self
        return self

    def scores(self, rows, starts):
        return self.sign * EXAMPLES.throughput[rows[starts[:-1], 0].astype(int)]


@pytest.fixture(scope="module")
def numbered():
    """Return examples with one row each: the number of the program."""
    rows = np.arange(len(EXAMPLES), dtype=np.float32)[:, None]
    return replace(EXAMPLES, rows=rows, columns=("number",), starts=np.arange(len(rows) + 1))


@pytest.fixture
def oracle(monkeypatch):
    found = Oracle()
    monkeypatch.setattr(simulation, "fit", found.fit)
    return found


def test_a_perfect_model_finds_the_best_after_the_first_batch(numbered, oracle):
    (found,) = search(SURE, examples=numbered)
    assert (found.curves[:, 20:] == 1.0).all()
    assert (found.found <= 21).all()
    assert found.areas == pytest.approx(found.curves.mean(axis=1))
    # It learnt from the trials so far, relative to their best.
    assert [len(each) for each in oracle.fitted] == [20, 40] * 2 * len(EXAMPLES.workloads)
    assert all(each.throughput.max() == 1.0 for each in oracle.fitted)
    assert all(len(np.unique(each.group)) == 1 for each in oracle.fitted)


def test_search_with_stored_learns_from_other_workloads_first(numbered, oracle):
    """A model of the others orders the first batch already."""
    (found,) = search(replace(SURE, stored=True), examples=numbered, seeds=1, trials=20)
    others = len(EXAMPLES) - 60
    assert [len(each) for each in oracle.fitted] == [others] * len(EXAMPLES.workloads)
    assert (found.curves[:, 0] == 1.0).all()


def test_search_of_only_random_trials_beats_a_misleading_model(numbered, oracle):
    oracle.sign = -1.0
    found, worst = search(replace(BATCH, random=1.0), SURE, examples=numbered)
    assert found.areas.mean() > worst.areas.mean()
    assert (found.curves[:, -1] == 1.0).all()


def test_search_with_smaller_population_finds_good_programs_later(numbered, oracle):
    wide, narrow = search(SURE, replace(SURE, population=20), examples=numbered)
    assert wide.areas.mean() > narrow.areas.mean()


def test_the_second_model_orders_the_finalists_of_the_first(numbered, monkeypatch):
    right, wrong = Oracle(), Oracle(-1.0)

    def fit(examples, recipe, threads):
        one = right if recipe.features == "one" else wrong
        return one.fit(examples, recipe, threads)

    monkeypatch.setattr(simulation, "fit", fit)
    both = replace(BATCH, features=("one", "two"), random=0.0, batch=16, finalists=1)
    # One finalist for each trial: the second model changes nothing that is measured.
    (few,) = search(both, examples=numbered, trials=32)
    assert (few.curves[:, -1] == 1.0).all()
    (many,) = search(replace(both, finalists=4, weight=9.0), examples=numbered, trials=32)
    assert many.curves[:, -1].mean() < 1.0


def test_searches_are_reproducible_and_start_from_the_same_trials(numbered, oracle):
    first, other = search(BATCH, replace(BATCH, weight=1.0), examples=numbered)
    assert (first.curves == other.curves).all()
    assert (search(BATCH, examples=numbered)[0].curves == first.curves).all()
    paired = difference(first, other, "a", "b")
    assert (paired.mean, paired.low, paired.high) == (0.0, 0.0, 0.0)
    assert (paired.one, paired.other, paired.workloads) == ("a", "b", len(EXAMPLES.workloads))


@pytest.mark.parametrize(("loss", "joins"), [("relative", True), ("squared", False)])
def test_regression_joins_the_first_model_only_with_loss_relative(numbered, oracle, loss, joins):
    """Trees that know nothing leave the order to the regression of the numbers."""
    oracle.sign = 0.0
    options = {"recipe": replace(RECIPE, loss=loss), "trials": 40, "examples": numbered}
    joined, alone = search(SURE, replace(SURE, regression=False), **options)
    assert (joined.curves != alone.curves).any() == joins


def test_real_models_beat_a_random_order():
    model, random = search(SURE, replace(BATCH, random=1.0), seeds=1)
    assert model.areas.mean() > random.areas.mean()


def test_curve_of_a_pool_smaller_than_trials_ends_at_its_best(numbered, oracle):
    steps = []
    both = (BATCH, replace(BATCH, batch=30))
    on_step = lambda *step: steps.append(step)  # noqa: E731
    found, _ = search(*both, examples=numbered, trials=80, on_step=on_step)
    assert found.curves.shape == (len(EXAMPLES.workloads), 80)
    assert (found.curves[:, 59:] == 1.0).all()
    total = 2 * 2 * len(EXAMPLES.workloads)
    assert steps == [(done, total) for done in range(1, total + 1)]


def test_simulate_rejects_small_and_non_random_pools():
    with pytest.raises(NotFoundError, match="no workload has 48 random programs to search"):
        search(examples=judged(programs=47))
    origins = map(ORIGINS.index, (Origin.RANDOM, Origin.MUTATED))
    bred = replace(EXAMPLES, origins=np.where(EXAMPLES.trials < 40, *origins))
    with pytest.raises(NotFoundError, match="tunedb tune --strategy replay-trace"):
        search(examples=bred)


def test_in_common_keeps_programs_of_all_feature_sets():
    some = EXAMPLES.take(np.arange(len(EXAMPLES)) % 3 > 0)
    other = EXAMPLES.take(np.arange(len(EXAMPLES)) % 2 > 0)
    shared = in_common({"one": some, "two": other})
    assert shared["one"].program_ids.tolist() == shared["two"].program_ids.tolist()
    assert len(shared["one"]) == sum(i % 3 > 0 and i % 2 > 0 for i in range(len(EXAMPLES)))


@pytest.mark.parametrize(
    "fields",
    [
        *({"features": names} for names in ((), ("a", "b", "c"))),
        *({name: 0} for name in ("batch", "population", "finalists")),
        *({"random": share} for share in (1.5, float("nan"))),
        *({"weight": weight} for weight in (-1.0, float("inf"))),
    ],
)
def test_search_settings_reject_values_out_of_range(fields):
    with pytest.raises(UsageError):
        SearchSettings(**fields)

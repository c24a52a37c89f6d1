import dataclasses
import logging

import numpy as np
import pytest
from builders import OWN, sql
from raising import raises_line
from small_data import (
    SMALL_STEPS,
    WORKLOADS,
    SmallSteps,
    add_rows,
    fill,
    measure,
    sessions_of,
    trials,
)
from small_data import make_tiled as tiled

from tunedb.errors import IntegrityError, NotFoundError, UsageError
from tunedb.features import base
from tunedb.models import cards, training_job
from tunedb.models.dataset import load
from tunedb.models.recipe import Recipe
from tunedb.models.scope import Scope
from tunedb.models.store import (
    are_current,
    body_of,
    choose_features,
    find,
    is_current,
    load_model,
    train,
    training_dataset,
)
from tunedb.results import NewModel
from tunedb.storage.approval import approve
from tunedb.storage.store import Store

RECIPE = Recipe(features="small.steps", rounds=12, patience=4, max_depth=3)


@dataclasses.dataclass(frozen=True)
class Modules:
    """A feature set that needs modules; no test computes it."""

    name: str = "tunedb.scheduled"
    version: int = 1
    columns: tuple = ("one",)
    needs: base.Needs = base.Needs.SCHEDULED

    def nest_rows(self, nest, *, gpu):
        raise NotImplementedError


@pytest.fixture(autouse=True)
def sets(monkeypatch):
    """The feature sets that are installed."""
    known = {
        "small.steps": SMALL_STEPS,
        "tunedb.scheduled": Modules(),
        "varying": SmallSteps("varying", columns=()),
    }
    monkeypatch.setattr(base, "load_feature_sets", lambda: (known, {}))
    return known


@pytest.fixture
def warnings(monkeypatch):
    """The library's warnings."""
    told = []
    log = logging.getLogger("tunedb")
    monkeypatch.setattr(log, "warning", lambda text, *args: told.append(text % args))
    return told


def quick(store, recipe=RECIPE, **options):
    return train(store, recipe, **{"evaluate": False, "threads": 1, **options})


def scores(store, model):
    examples = load(store, SMALL_STEPS)
    return model.scores(examples.rows, examples.starts)


def add_record(store):
    """Add a record of a program that the store did not have."""
    store.records.add([measure(tiled(WORKLOADS[1], 40), 40, (1e-4,))], OWN)


def test_train_returns_stored_model_for_equal_inputs(stored, monkeypatch):
    made = quick(stored)
    assert (made.was_there, made.trained, made.stored.id) == (False, True, 1)
    monkeypatch.setattr(training_job, "fit", None)  # nothing is trained
    again = quick(stored, threads=2)
    assert (again.was_there, again.trained) == (True, False)
    assert again.stored.digest == made.stored.digest
    assert np.array_equal(scores(stored, again.model), scores(stored, made.model))
    assert len(stored.models.all()) == 1


def test_models_are_stored_found_and_rebuilt_on_both_databases(store):
    fill(store)
    made = quick(store, evaluate=True)
    assert quick(store).was_there
    assert is_current(store, made.stored)
    assert find(store, feature_set=SMALL_STEPS, target_ids=[1]).id == made.stored.id
    scope = Scope(workload_ids=[1, 2], target_ids=[1], source_ids=[1])
    part = quick(store, keep_body=False, scope=scope).stored
    assert is_current(store, part) and part.id != made.stored.id
    assert load_model(store, part).to_bytes() != made.model.to_bytes()


def test_new_record_makes_another_model_and_the_stored_one_outdated(stored):
    old = quick(stored)
    add_record(stored)
    new = quick(stored)
    assert not new.was_there
    assert new.stored.training_digest != old.stored.training_digest
    assert are_current(stored, [old.stored, new.stored]) == [False, True]


def test_scope_changes_the_model_only_if_it_changes_the_data(stored):
    everything = quick(stored)
    same = quick(stored, scope=Scope(workload_ids=[one.id for one in stored.workloads.find()]))
    assert same.was_there and same.stored.id == everything.stored.id
    part = quick(stored, scope=Scope(target_ids=[2]))
    assert part.stored.id != everything.stored.id
    assert part.stored.card["scope"]["targets"][0]["digest"] == stored.targets.get(2).digest.hex()
    assert part.stored.card["data"]["workloads"] == 2
    assert is_current(stored, part.stored)


def test_model_digest_covers_kind_recipe_data_and_versions(stored):
    made = quick(stored).stored
    versions = made.card["versions"]
    assert {"numpy", "tunedb", "xgboost"} <= versions.keys()
    data = load(stored, SMALL_STEPS, rows=False).digest
    parts = ["ranker", RECIPE.to_json(), data, versions]
    assert made.digest == cards.model_digest(*parts)
    for at, other in enumerate(["failures", b"{}", b"x", {**versions, "xgboost": "0"}]):
        assert cards.model_digest(*parts[:at], other, *parts[at + 1 :]) != made.digest
    assert cards.model_digest(*parts[:3], {**versions, "python": "2.7"}) == made.digest


def test_model_stored_without_body_is_retrained_to_equal_bytes(stored, warnings):
    made = quick(stored, keep_body=False)
    assert made.stored.size is None
    assert stored.models.body(made.stored.id) is None
    rebuilt = load_model(stored, made.stored, threads=1)
    assert cards.body_digest(rebuilt.to_bytes()).hex() == made.stored.card["body"]["digest"]
    still = quick(stored, keep_body=False)
    assert (still.was_there, still.trained, still.stored.size) == (True, True, None)
    again = quick(stored)
    assert (again.was_there, again.trained) == (True, True)
    assert again.model.to_bytes() == made.model.to_bytes()
    assert (again.stored.id, again.stored.size) == (made.stored.id, len(made.model.to_bytes()))
    assert not quick(stored).trained
    assert warnings == []


def test_outdated_model_without_body_is_neither_found_nor_rebuilt(stored):
    made = quick(stored, keep_body=False)
    assert find(stored, feature_set=SMALL_STEPS).size is None
    add_record(stored)
    add_rows(stored)
    assert find(stored, feature_set=SMALL_STEPS) is None
    with pytest.raises(UsageError, match=r"only its card is stored.*tunedb train"):
        load_model(stored, made.stored)


def test_forced_training_warns_if_the_model_differs(stored, warnings):
    made = quick(stored)
    again = quick(stored, force=True)
    assert (again.was_there, again.trained) == (True, True)
    assert again.model.to_bytes() == made.model.to_bytes()
    assert warnings == []
    old, new = made.stored.card["body"]["digest"], cards.body_digest(b"other").hex()
    statement = "UPDATE model SET card = replace(card, ?, ?), body = ?"
    sql(stored.location, statement, old, new, b"other")
    quick(stored, force=True)
    assert len(warnings) == 1 and "the retrained model differs" in warnings[0]


def test_train_streams_large_data_from_disk_to_the_same_model(stored, monkeypatch):
    monkeypatch.setattr(training_job, "IN_MEMORY_BYTES", 100)
    made = quick(stored, evaluate=True)
    assert made.stored.card["training"]["external"] is True
    assert "do not fit into memory" in made.stored.card["evaluation"]["impossible"]
    assert quick(stored, external=False).was_there
    forced = [quick(stored, force=True, external=external).model for external in (True, False)]
    assert [model.to_bytes() for model in forced] == [made.model.to_bytes()] * 2


def test_train_ignores_records_added_during_training(stored, monkeypatch):
    """The labels are one snapshot; rows are read only of its programs."""
    before = quick(stored, dataclasses.replace(RECIPE, seed=1)).stored.training_digest
    reading = training_job.with_rows

    def busy(store, examples, **options):
        add_record(store)
        add_rows(store)
        return reading(store, examples, **options)

    monkeypatch.setattr(training_job, "with_rows", busy)
    made = quick(stored)
    assert made.stored.training_digest == before
    assert not is_current(stored, made.stored)


def test_train_first_computes_missing_features_from_steps(empty):
    fill(empty, features=SmallSteps("other"))
    seen = []
    made = quick(empty, on_step=lambda *step: seen.append(step))
    programs = empty.features.coverage(SMALL_STEPS).known
    assert made.stored.card["data"]["left_out"]["without features"] == 0
    assert {("features", 0, programs), ("features", programs, programs)} <= set(seen)
    kinds = list(dict.fromkeys(step for step, _, _ in seen))
    assert kinds == ["features", "sessions", "reading", "features read", "training"]
    assert ("training", 0, 24) in seen


def test_train_rejects_features_that_need_modules_or_have_no_fixed_columns(stored):
    with pytest.raises(NotFoundError, match=r"run: tunedb extract --set tunedb\.scheduled"):
        quick(stored, dataclasses.replace(RECIPE, features="tunedb.scheduled"))
    with pytest.raises(UsageError, match="no model can train on"):
        quick(stored, dataclasses.replace(RECIPE, features="varying"))
    assert stored.models.all() == []


def test_train_first_estimates_factors_of_sessions(empty):
    empty.records.add([one for workload in WORKLOADS[:2] for one in sessions_of(workload)], OWN)
    made = quick(empty)
    assert [round(one.factor, 3) for one in empty.runs.factors(1)] == [1.0, 1.3]
    corrected = quick(empty, dataclasses.replace(RECIPE, corrected=True))
    assert corrected.stored.training_digest != made.stored.training_digest


def test_train_rejects_a_single_record_and_stores_nothing(empty):
    empty.records.add([measure(tiled(WORKLOADS[0], 0), 0, (1e-3,))], OWN)
    with raises_line(UsageError, match=r"nothing to learn from.*tunedb train"):
        quick(empty)
    assert empty.models.all() == []


def test_train_on_one_workload_stores_no_evaluation(empty):
    empty.records.add(trials(WORKLOADS[0]), OWN)
    card = quick(empty, evaluate=True).stored.card
    assert card["training"]["rounds"] == RECIPE.rounds
    assert card["evaluation"]["pairwise"] is None
    assert "two workloads" in card["evaluation"]["impossible"]
    assert card["drift"]["pairwise_p5"] is None


def copied(stored, made, name=b"another", **changes):
    """Store a copy of a model with another card, as another database wrote it; return it."""
    row = NewModel(
        digest=name.ljust(16),
        kind=made.kind,
        parameters=made.parameters,
        training_digest=made.training_digest,
        card={**made.card, **changes},
        body=stored.models.body(made.id),
    )
    id_ = stored.models.add(row)
    return next(one for one in stored.models.all() if one.id == id_)


def test_load_model_rejects_models_of_another_database_and_of_newer_xgboost(stored, tmp_path):
    made = quick(stored).stored
    foreign = copied(stored, made, store="0" * 32)
    with pytest.raises(UsageError, match=r"another database.*tunedb train"):
        load_model(stored, foreign)
    with Store(tmp_path / "other.db") as other, pytest.raises(UsageError, match="another"):
        load_model(other, made)
    assert is_current(stored, foreign) is False
    newer = copied(stored, made, b"newer", versions=made.card["versions"] | {"xgboost": "99.1.0"})
    with pytest.raises(UsageError, match=r"XGBoost 99\.1\.0, but this is 3.*tunedb train"):
        load_model(stored, newer)
    assert find(stored, feature_set=SMALL_STEPS).id == made.id


def test_changed_boosters_are_rejected_and_retrained(stored, warnings):
    made = quick(stored).stored
    sql(stored.location, "UPDATE model SET body = ?", b"x" * 100)
    with pytest.raises(IntegrityError, match=r"same options: tunedb train$"):
        body_of(stored, made)
    stored.models.add_predictions(made.id, {1: 0.5})
    again = quick(stored)
    assert (again.stored.id, again.was_there, again.trained) == (made.id, True, True)
    assert warnings == ["model 1: its boosters do not match its card; it is trained again"]
    assert load_model(stored, again.stored).to_bytes() == again.model.to_bytes()
    assert stored.training.predictions() == {made.id: 1}


def test_find_prefers_current_then_large_then_accurate_models(stored, monkeypatch):
    small = quick(stored, scope=Scope(target_ids=[1])).stored
    large = quick(stored).stored
    assert find(stored, feature_set="small.steps").id == large.id
    assert find(stored, feature_set=SMALL_STEPS, target_ids=[1]).id == large.id
    assert find(stored, feature_set=SMALL_STEPS, target_ids=[2]).id == large.id
    # With as many programs, the more accurate model comes first, then the newer one.
    newer = quick(stored, dataclasses.replace(RECIPE, seed=5)).stored
    assert find(stored, feature_set=SMALL_STEPS).id == newer.id
    pairwise = {0: 0.9, 5: 0.8}
    monkeypatch.setattr(cards, "pairwise", lambda card: pairwise[card["recipe"]["seed"]])
    assert find(stored, feature_set=SMALL_STEPS).id == large.id
    # After new records only the small model is current.
    stored.records.add(trials(WORKLOADS[5], target=1), OWN)
    add_rows(stored)
    assert is_current(stored, small)
    assert find(stored, feature_set=SMALL_STEPS).id == small.id
    assert find(stored, feature_set=SMALL_STEPS, target_ids=[2]).id == large.id


def test_find_returns_none_for_targets_or_feature_set_without_model(stored):
    assert find(stored, feature_set=SMALL_STEPS) is None
    quick(stored, scope=Scope(target_ids=[1]))
    for target_ids in ([2], [1, 2]):
        assert find(stored, feature_set=SMALL_STEPS, target_ids=target_ids) is None
    for features in (SmallSteps(version=2), Modules()):
        assert find(stored, feature_set=features) is None


def test_are_current_reads_data_once_for_many_models(stored, monkeypatch):
    for seed in range(2):
        quick(stored, dataclasses.replace(RECIPE, seed=seed))
    calls, read = [], training_job.load_counted
    counting = lambda *a, **k: calls.append(k) or read(*a, **k)  # noqa: E731
    monkeypatch.setattr(training_job, "load_counted", counting)
    assert are_current(stored, stored.models.all()) == [True] * 2
    assert len(calls) == 1


def test_train_does_not_recompute_features_that_failed_before(empty, monkeypatch):
    class Partial(SmallSteps):
        def rows(self, programs):
            rows = super().rows(programs)
            return [None if one.shape[0] == 3 else one for one in rows]

    monkeypatch.setattr(base, "load_feature_sets", lambda: ({"small.steps": Partial()}, {}))
    fill(empty, features=SmallSteps("other"))
    made = quick(empty)
    assert made.stored.card["data"]["left_out"]["without features"] > 0
    seen = []
    assert quick(empty, on_step=lambda *step: seen.append(step[0])).was_there
    assert "features" not in seen
    assert is_current(empty, made.stored)
    add_record(empty)
    assert not is_current(empty, made.stored)


def test_train_rejects_unknown_parts_of_recipe_before_computing_features(empty):
    fill(empty, features=SmallSteps("other"))
    for part in ("loss", "rows", "label", "training_set"):
        with pytest.raises(NotFoundError, match=r"no .* 'x'; there are: "):
            quick(empty, dataclasses.replace(RECIPE, **{part: "x"}))
    assert empty.features.coverage(SMALL_STEPS).known == 0


def test_training_dataset_returns_the_examples_of_a_stored_model(stored):
    recipe = dataclasses.replace(RECIPE, training_set="first:5")
    made = quick(stored, recipe)
    learnt = training_dataset(stored, made.stored)
    assert len(learnt) == made.stored.card["learnt"]["programs"] < 50
    assert learnt.trials.max() < 5


def test_choose_features_prefers_the_set_that_covers_most_programs(stored, sets):
    with Store(":memory:") as empty:
        assert choose_features(empty) == "steps"
    assert choose_features(stored) == "small.steps"
    few = stored.programs.without_features(Modules(), limit=20)
    stored.features.add(Modules(), [(one.id, np.ones((1, 1))) for one in few])
    assert choose_features(stored) == "small.steps"
    rest = stored.programs.without_features(Modules(), limit=1000)
    # All but a few that TVM could not lower.
    stored.features.add(Modules(), [(one.id, np.ones((1, 1))) for one in rest[3:]])
    assert choose_features(stored) == "tunedb.scheduled"
    sets["small.steps"] = SmallSteps(version=2)
    assert choose_features(stored) == "tunedb.scheduled"


def test_approved_copy_of_database_loads_its_models(stored, tmp_path):
    made = quick(stored).stored
    sql(stored.location, "VACUUM INTO ?", str(tmp_path / "copy.db"))
    approve(tmp_path / "copy.db", stored.key)
    with Store(tmp_path / "copy.db") as copy:
        assert is_current(copy, made)
        assert find(copy, feature_set=SMALL_STEPS).digest == made.digest
        found, expected = (scores(one, load_model(one, made)) for one in (copy, stored))
    assert np.array_equal(found, expected)

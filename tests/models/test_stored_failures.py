from dataclasses import replace

import pytest
from small_data import SMALL_STEPS

from tunedb.errors import UsageError
from tunedb.models import training_job
from tunedb.models.failure_store import KIND, load_failures, train_failures
from tunedb.models.failures import RECIPE
from tunedb.models.store import is_current, load_model

SMALL = replace(RECIPE, features=SMALL_STEPS.name, rounds=8)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    """The small feature set is found by its name."""
    monkeypatch.setattr(training_job, "usable", lambda name: {SMALL_STEPS.name: SMALL_STEPS}[name])


def test_train_failures_stores_and_finds_the_classifier(stored):
    steps = []
    made = train_failures(stored, SMALL, threads=1, on_step=lambda *step: steps.append(step))
    assert (made.was_there, made.trained) == (False, True)
    assert made.stored.kind == KIND
    # Five folds, one hardware with enough failures, which takes three, and the model itself.
    assert steps[-1] == ("training", 9, 9)
    again = train_failures(stored, SMALL, threads=1)
    assert (again.was_there, again.trained) == (True, False)
    assert again.stored.digest == made.stored.digest
    assert again.model.to_bytes() == made.model.to_bytes()
    forced = train_failures(stored, SMALL, threads=1, force=True)
    assert (forced.was_there, forced.trained) == (True, True)
    assert forced.model.to_bytes() == made.model.to_bytes()
    assert [one.id for one in stored.models.all()] == [made.stored.id]


def test_card_of_classifier_has_failures_rate_and_costs(stored):
    card = train_failures(stored, SMALL, threads=1).stored.card
    assert card["kind"] == KIND
    learnt, judged = card["learnt"], card["failures"]
    assert learnt["failed"]["compile_error"] == card["data"]["failed"]["compile_error"]
    # The training data have four programs of a workload that never worked.
    assert learnt["workloads"] == 7
    assert judged["rate"] == pytest.approx(sum(learnt["failed"].values()) / learnt["programs"])
    # No group of the small database has five failures, but for the one that has nothing else.
    assert (judged["auroc"], judged["groups"]) == (None, 0)
    assert 0 <= judged["brier"] < 1
    (elsewhere,) = judged["elsewhere"]
    assert elsewhere["target"] in learnt["target_digests"]
    assert elsewhere["programs"] < learnt["programs"]
    assert sum(each["programs"] for each in judged["reliability"]) == learnt["programs"]
    # The kind of the program with the sentinel as its only time is unknown.
    failed = dict.fromkeys(("compile_error", "timeout", "runtime_error"), 2.0)
    assert judged["seconds"] == {"ok": 0.5, "unknown": 0.5, **failed}


def test_retracted_record_makes_classifier_outdated(stored):
    first = train_failures(stored, SMALL, threads=1).stored
    taken = next(r.id for r in stored.records.iterate() if r.measurement.failure is not None)
    stored.trust.retract([taken], "the machine was full")
    assert not is_current(stored, first)
    second = train_failures(stored, SMALL, threads=1).stored
    assert second.digest != first.digest
    assert is_current(stored, second)


def test_load_functions_reject_models_of_another_kind_or_database(stored):
    made = train_failures(stored, SMALL, threads=1).stored
    with pytest.raises(UsageError, match="ranks no programs"):
        load_model(stored, made)
    with pytest.raises(UsageError, match="predicts no failures"):
        load_failures(stored, replace(made, kind="ranker"))
    with pytest.raises(UsageError, match="another database"):
        load_failures(stored, replace(made, card=made.card | {"store": "another"}))

"""``tunedb train``."""

import dataclasses
import sys

import pytest
from builders import OWN, sql
from checks import has, row_has
from effort import long
from small_data import WORKLOADS, SmallSteps, fill, measure, trials
from small_data import make_tiled as tiled

from tunedb.models.recipe import Recipe
from tunedb.records import FailureKind
from tunedb.storage.store import Store

CRASHES = [measure(tiled(WORKLOADS[0], i), i, FailureKind.CRASH) for i in range(3)]
QUICK = ("--threads", 1, "--rounds", 8, "-p", "patience=0")


@pytest.fixture(autouse=True)
def sets(small_sets):
    """Install two feature sets only."""
    small_sets["steps"] = SmallSteps("steps")


def test_train_stores_a_model_and_reuses_it(small, run, run_json):
    made = run("--db", small, "train", *QUICK)
    assert made.stderr.splitlines() == [
        "Features: small.steps (choose another set with --features SET)",
        "Computing the features of 1 program first",
        "Full card: tunedb models show 1",
    ]
    lines = made.stdout.splitlines()
    assert lines[0] == "Model 1: ranker on small.steps version 1"
    words = {line.partition("  ")[0]: line for line in lines}
    assert "loss relative, rows pack-sum, label median, training set first:128" in words["recipe"]
    assert "8 of 8" in words["rounds"]
    has(words, "this model", "nearest neighbour", "random order", "noise floor (measured once)")
    again = run("--db", small, "train", *QUICK)
    assert "Model 1 existed already: no data changed since" in again.stderr
    assert again.stdout == made.stdout
    row = run_json("--db", small, "train", *QUICK)
    row_has(row, id=1, was_there=True, trained=False, current=True)
    assert row["card"]["recipe"]["rounds"] == 8
    forced = run("--db", small, "train", *QUICK, "--force")
    assert "existed already; trained again" in forced.stderr


def test_train_reports_computation_of_missing_features(sqlite_file, run, run_json):
    with Store(sqlite_file) as store:
        fill(store, features=SmallSteps("other"))
    result = run("--db", sqlite_file, "train", *QUICK, "--no-evaluate")
    has(result.stderr, "Features: steps", "Computing the features of")
    quiet = run("--db", sqlite_file, "train", "-q", *QUICK, "--no-evaluate", "--loss", "log")
    assert quiet.stderr == ""


def test_every_option_reaches_the_recipe(small, run_json):
    row = run_json(
        *("--db", small, "train", "--features", "steps", "--rows", "aggregated"),
        *("--loss", "rank:16", "--label", "minimum", "--session-corrected"),
        *("--training-set", "first:20", "--rounds", 5, "--members", 2, "--threads", 1),
        *("-p", "eta=0.3", "-p", "max_depth=2", "-p", "patience=0"),
        *("--no-evaluate", "--external", "yes"),
    )
    expected = Recipe(
        **{"features": "steps", "rows": "aggregated", "loss": "rank:16", "label": "minimum"},
        **{"corrected": True, "training_set": "first:20", "rounds": 5, "patience": 0},
        **{"members": 2, "eta": 0.3, "max_depth": 2},
    )
    assert row["card"]["recipe"] == dataclasses.asdict(expected)
    row_has(row["card"]["training"], members=2, external=True)
    assert row["card"]["evaluation"] is None


def test_default_options_equal_those_of_the_recipe(small, run_json, run):
    row = run_json("--db", small, "train", "--no-evaluate", "--threads", 1)
    assert row["card"]["recipe"] == dataclasses.asdict(Recipe(features="small.steps"))
    text = " ".join(run("train", "--help").stdout.split())
    for field, value in dataclasses.asdict(Recipe()).items():
        if f"--{field.replace('_', '-')} " in text and field not in ("features", "corrected"):
            assert f"Default: {value}." in text, field


def test_train_selects_records_by_workload_source_and_target(small, run_json):
    common = ("--db", small, "train", *QUICK, "--no-evaluate")
    scope = run_json(*common, "--workload", 1, "--workload", 2, "--source", "own")["card"]["scope"]
    assert [one["name"] for one in scope["sources"]] == ["own"] and len(scope["workloads"]) == 2
    row_has(run_json(*common, "--target", 2)["card"]["data"], targets=1, workloads=2)


def test_card_only_stores_no_boosters_until_the_next_training(small, run_json):
    row = run_json("--db", small, "train", *QUICK, "--card-only", "--no-evaluate")
    assert row["size"] is None
    again = run_json("--db", small, "train", *QUICK)
    row_has(again, was_there=True, trained=True, id=row["id"], size=row["card"]["body"]["bytes"])


@pytest.mark.parametrize(
    ("records", "code", "words"),
    [
        ([], 3, "there are no records to train on"),
        ([measure(tiled(WORKLOADS[0], 0), 0, (1e-3,))], 2, "nothing to learn from: 1 program"),
        (CRASHES, 2, "none of 3 programs ran"),
    ],
    ids=["no data", "one record", "only failures"],
)
def test_train_rejects_data_from_which_nothing_can_be_learnt(
    sqlite_file, run, records, code, words
):
    with Store(sqlite_file) as store:
        store.records.add(records, OWN)
    lines = run("--db", sqlite_file, "train", code=code).stderr.splitlines()
    assert words in lines[-1]
    assert "run: tunedb import logs PATH" in lines[-1] or "then: tunedb train" in lines[-1]


def test_an_interrupted_training_leaves_no_model(small, run, run_json, interrupt):
    interrupt("tunedb.models.training_job.fit")
    message = run("--db", small, "train", *QUICK, code=130).stderr
    assert "Interrupted; no model was stored, and computed features stay" in message
    assert run_json("--db", small, "models") == []


def test_without_xgboost_nothing_is_computed(small, run, monkeypatch):
    monkeypatch.setitem(sys.modules, "xgboost", None)
    lines = run("--db", small, "train", *QUICK, code=1).stderr.splitlines()
    assert "XGBoost does not load" in lines[-1] and "pip install 'tunedb[train]'" in lines[-1]
    assert not any(line.startswith("Computing") for line in lines)


@pytest.mark.parametrize(
    "options",
    [(*QUICK, "--no-evaluate"), long(("--failures", "-p", "rounds=5"))],
    ids=("ranker", "failures"),
)
def test_train_replaces_stored_model_that_cannot_be_used(small, run, run_json, options):
    first = run_json("--db", small, "train", *options)
    store = "card = json_set(card, '$.store', '00')"
    for damage in ("body = substr(body, 1, 100)", "card = '{}'", store):
        sql(small, f"UPDATE model SET {damage}")
        message = run("--db", small, "train", *options).stderr
        assert "model 1" in message and "; it is trained again" in message, damage
        again = run_json("--db", small, "train", *options)
        row_has(again, id=1, was_there=True, trained=False)
        assert again["card"]["body"] == first["card"]["body"]


def test_train_stores_classifier_of_failures(small, run, run_json):
    made = run("--db", small, "train", "--failures", "--threads", 1, "-p", "max_depth=2")
    assert made.stdout.startswith("Model 1: failures on small.steps version 1")
    has(
        made.stdout,
        *("AUROC", "Predictions and failures of unseen workloads (calibration error "),
        *("hardware that it did not learn from", "after 32 trials"),
    )
    one = run("--db", small, "train", "--failures", "--threads", 1, "--target", 1)
    assert "On other hardware: unknown" in one.stdout
    row = run_json("--db", small, "train", "--failures", "--threads", 1, "-p", "max_depth=2")
    row_has(row, kind="failures", was_there=True)
    row_has(row["card"]["recipe"], loss="logistic", max_depth=2)


def test_classifier_of_one_workload_is_not_evaluated(sqlite_file, run):
    with Store(sqlite_file) as store:
        store.records.add(trials(WORKLOADS[0]), OWN)
    output = run("--db", sqlite_file, "train", "--failures", "-p", "rounds=5").stdout
    assert "Not evaluated: failures, or working programs, come from one workload only" in output

"""``tunedb models``."""

import pytest
from builders import OWN, key_of, sql
from checks import has, row_has
from small_data import WORKLOADS, measure, trials
from small_data import make_tiled as tiled

from tunedb.models.recipe import Recipe
from tunedb.models.store import train
from tunedb.storage import approval
from tunedb.storage.store import Store


def add_model(path, recipe, **options):
    """Train a model of a database; return what was stored."""
    with Store(path) as store:
        return train(store, recipe, threads=1, evaluate=False, **options).stored


def test_models_lists_models_with_their_figures(learnt, run, run_json):
    add_model(learnt, Recipe(features="small.steps", rounds=3, loss="log"), keep_body=False)
    one, two = run_json("--db", learnt, "models")
    row_has(one, id=1, kind="ranker", features="small.steps", version=1, loss="relative")
    row_has(two, loss="log", pairwise=None, random=None, size=None)
    assert one["targets"] and "skylake" in one["target"]
    assert one["trained_on"] < one["programs"] and one["random"] == 0.5 < one["pairwise"] <= 1
    assert one["size"] > 1000 and one["current"] and two["current"]
    assert run_json("--db", learnt, "models", "list") == [one, two]
    table = run("--db", learnt, "models").stdout.splitlines()
    assert len(table) == 3 and table[0].split()[:3] == ["id", "kind", "features"]


def test_model_is_not_current_after_new_records(learnt, run, run_json):
    with Store(learnt) as store:
        store.records.add([measure(tiled(WORKLOADS[0], 0), 50, (1e-4,))], OWN)
    assert run_json("--db", learnt, "models")[0]["current"] is False
    shown = run("--db", learnt, "models", "show", 1)
    assert "The records changed since the training" in shown.stderr


def test_model_is_not_current_while_features_are_missing(learnt, run_json):
    with Store(learnt) as store:
        store.batches.add([measure(tiled(WORKLOADS[1], 40), 40, (1e-4,))], OWN)
    assert run_json("--db", learnt, "models")[0]["current"] is False


def test_model_with_card_of_another_layout_is_only_listed(learnt, run, run_json):
    sql(learnt, "UPDATE model SET card = '{}'")
    (row,) = run_json("--db", learnt, "models")
    row_has(row, id=1, kind="ranker", current=False, loss=None)
    assert "ranker" in run("--db", learnt, "models").stdout
    message = "Error: model 1: its card has layout None, but this tunedb reads 1; train it again"
    for command in (("models", "show", 1), ("explain", "model", 1)):
        assert run("--db", learnt, *command, code=2).stderr.startswith(message)


def test_card_that_is_not_json_is_reported_as_damaged(learnt, run):
    sql(learnt, "UPDATE model SET card = '{'")
    for command in (("models",), ("models", "show", 1), ("explain", "model")):
        message = run("--db", learnt, *command, code=1).stderr
        has(message, "the card of model 1 is damaged (not JSON", "tunedb db check")


def test_empty_list_of_models_suggests_training(sqlite_file, run):
    assert "no model yet; train one: tunedb train" in run("--db", sqlite_file, "models").stderr
    message = run("--db", sqlite_file, "models", "show", 1, code=3).stderr
    assert message == "Error: no model '1'; no model yet; train one: tunedb train\n"


def test_models_show_prints_the_card(learnt, run, run_json):
    row = run_json("--db", learnt, "models", "show", 1)
    assert row["card"]["recipe"]["rounds"] == 20
    digest = row["digest"]
    assert run_json("--db", learnt, "models", "show", digest[:6]) == row
    shown = run("--db", learnt, "models", "show", 1)
    assert shown.stderr == ""
    has(
        shown.stdout,
        *("Model 1: ranker on small.steps version 1", digest, row["created_at"]),
        *("Full recipe", "hessian_power", "Versions", "xgboost", "compile error"),
        *(row["card"]["data"]["digest"], row["card"]["body"]["digest"]),
        *("Unseen workloads: ", "this model", "nearest neighbour", "random order"),
        *("Spearman", "recall@30", "Drift alarm: pairwise accuracy below"),
    )
    message = run("--db", learnt, "models", "show", "7", code=3).stderr
    assert "no model '7'; there are: 1; see: tunedb models" in message


def test_models_show_rejects_ambiguous_digest(learnt, run):
    assert add_model(learnt, Recipe(features="small.steps", rounds=2)).id == 2
    for id_ in (1, 2):
        sql(learnt, "UPDATE model SET digest = ? WHERE id = ?", b"\xab\xcd\xef%16d" % id_, id_)
    assert "matches 2 models" in run("--db", learnt, "models", "show", "abcdef", code=2).stderr


def test_model_of_another_database_is_shown_but_not_used(learnt, run, run_json):
    sql(learnt, "UPDATE model SET card = replace(card, ?, ?)", key_of(learnt), "0" * 32)
    assert run_json("--db", learnt, "models")[0]["current"] is False
    assert run_json("--db", learnt, "models", "show", 1)["card"]["store"] == "0" * 32
    message = run("--db", learnt, "explain", "model", 1, code=2).stderr
    assert "was trained in another database" in message


def test_model_of_unapproved_database_is_not_loaded(learnt, run, run_json):
    """XGBoost does not check the bytes of a model."""
    approval.forget(learnt)
    assert len(run_json("--db", learnt, "models")) == 1
    message = run("--db", learnt, "explain", "model", 1, code=2).stderr
    assert f"run: tunedb db trust {learnt}" in message
    run("db", "trust", learnt, "--yes")
    run("--db", learnt, "explain", "model", 1)


def test_models_escapes_names(learnt, run):
    sql(learnt, "UPDATE model SET card = replace(card, ?, ?)", '"numpy":"', '"numpy":"\\u001b')
    for command in (["models"], ["models", "show", "1"]):
        assert "\x1b" not in run("--db", learnt, *command).output
    assert "\x1b" not in run("--db", learnt, "models", "show", "\x1b]0;owned\x07", code=3).output


@pytest.fixture
def predicted(learnt):
    """A database with predictions: right for the first workload, wrong for the second."""
    with Store(learnt) as store:
        for sign, workload in ((-1, WORKLOADS[1]), (1, WORKLOADS[4])):
            batch = trials(workload, size=3.0, failing=0)
            ids = store.programs.ids([one.program.digest for one in batch])
            best = {r.measurement.program.digest: r.mean for r in store.records.iterate()}
            scores = [sign * (best[one.program.digest] or 1.0) for one in batch]
            store.models.add_predictions(1, dict(zip(ids, scores, strict=True)))
    return learnt


def test_drift_compares_predictions_with_measurements(predicted, run, run_json):
    right, wrong = run_json("--db", predicted, "models", "drift")
    row_has(right, model=1, trials=24, failed=3, drifted=False, family="matmul")
    row_has(wrong, drifted=True)
    assert right["workload"] == "dense_nopack.x86"
    assert right["pairwise"] > 0.8 > 0.3 > wrong["pairwise"]
    assert right["threshold"] == wrong["threshold"] is not None
    result = run("--db", predicted, "models", "drift", 1)
    assert "1 workload drifted; retrain: tunedb train" in result.stderr
    assert len(result.stdout.splitlines()) == 3
    assert run_json("--db", predicted, "models")[0]["predictions"] == 48
    # The ranks of each trial.
    rows = run_json("--db", predicted, "models", "drift", "--trials")
    assert len(rows) == 48
    first = [row for row in rows if row["workload_id"] == rows[0]["workload_id"]]
    assert sorted(row["predicted_rank"] for row in first) == list(range(1, 25))
    assert sorted(row["measured_rank"] for row in first if row["mean"]) == list(range(1, 22))
    assert [row["measured_rank"] for row in first if row["mean"] is None] == [None] * 3
    assert {"score", "record", "program", "predicted_at"} <= rows[0].keys()


def test_drift_without_predictions_says_what_stores_them(learnt, run):
    advice = "no prediction yet; tuning with tunedb.plugins.metaschedule.CostModel stores them"
    assert advice in run("--db", learnt, "models", "drift").stderr
    assert "no prediction yet" in run("--db", learnt, "models", "drift", 1, "--trials").stderr
    run("--db", learnt, "models", "drift", 9, code=3)

"""``tunedb explain model``."""

import numpy as np
import pytest
from builders import sql
from checks import has, row_has
from small_data import SMALL_STEPS, WORKLOADS, SmallSteps, measure, seconds_of
from small_data import make_tiled as tiled

from tunedb.models.recipe import Recipe
from tunedb.models.sessions import update
from tunedb.models.store import train
from tunedb.records import Source
from tunedb.storage.store import Store


def program_id(path, number):
    """Return the id of a program of the first workload."""
    with Store(path) as store:
        (found,) = store.programs.ids([tiled(WORKLOADS[0], number).digest])
    return found


def test_explain_lists_columns_by_importance(learnt, run, run_json):
    rows = run_json("--db", learnt, "explain", "model")
    assert {row["name"] for row in rows} <= set(SMALL_STEPS.columns)
    assert [row["shap"] for row in rows] == sorted((row["shap"] for row in rows), reverse=True)
    assert sum(row["gain"] for row in rows) == pytest.approx(1)
    # The times depend on tile and vector.
    assert {rows[0]["name"], rows[1]["name"]} == {"tile", "vector"}
    assert run_json("--db", learnt, "explain", "model", 1) == rows
    text = run("--db", learnt, "explain", "model", "--top", 2).stdout
    assert text.startswith("Model 1, features small.steps: groups of columns\n")
    assert f"{len(rows) - 2} more are used (--top)" in text


def test_explain_splits_score_of_a_program_into_contributions(learnt, run, run_json):
    report = run_json("--db", learnt, "explain", "model", "--record", 1)
    total = sum(one["contribution"] for one in report["columns"])
    assert total + report["bias"] == pytest.approx(report["score"], abs=1e-5)
    assert sum(report["rows"]) == pytest.approx(total, abs=1e-5)
    sizes = [abs(one["contribution"]) for one in report["columns"]]
    assert sizes == sorted(sizes, reverse=True)
    row_has(report, model=1, record=1)
    (measured,) = report["measured"]
    # The times of the foreign source count for another machine.
    assert measured["machine"] == "0" and 0 < measured["throughput"] <= 1
    same = run_json("--db", learnt, "explain", "model", "--program", report["program"])
    row_has(same, score=report["score"], record=None, mean=None)
    has(
        run("--db", learnt, "explain", "model", "--record", 1).stdout,
        *(f"Program {report['program']} by model 1", "of the best throughput"),
        f"{report['score']:.4f} = {report['bias']:.4f} (bias)",
    )


def test_program_is_compared_with_the_best_of_each_machine(learnt, run, run_json):
    rng = np.random.default_rng(0)
    slow = [
        measure(tiled(WORKLOADS[0], n), 200 + n, (seconds_of(n) * 10 * float(rng.uniform(1, 3)),))
        for n in range(24)
    ]
    with Store(learnt) as store:
        store.records.add(slow, Source("slow"))
        update(store)
    words = ("--db", learnt, "explain", "model", "--program", program_id(learnt, 11))
    measured = run_json(*words)["measured"]
    assert [one["machine"] for one in measured] == ["0", "1"]
    best = min(one.run_secs[0] for one in slow)
    assert measured[1]["throughput"] == pytest.approx(best / slow[11].run_secs[0])
    assert "of the best throughput on machine 1" in run(*words).stdout


def test_explain_uses_newest_model_with_stored_boosters(learnt, run):
    recipe = Recipe("small.steps", rounds=2, patience=0)
    with Store(learnt) as store:
        train(store, recipe, threads=1, evaluate=False, keep_body=False)
    assert run("--db", learnt, "explain", "model").stdout.startswith("Model 1,")


def test_explain_reports_each_statement_of_a_program(learnt, run, run_json):
    program = ("--program", program_id(learnt, 5 - 3))  # tile 2: three rows
    report = run_json("--db", learnt, "explain", "model", *program)
    assert len(report["rows"]) == 3
    assert all(len(one["values"]) == 3 for one in report["columns"])
    text = run("--db", learnt, "explain", "model", *program).stdout
    has(text, "statement", "largest contributions")


def test_invalid_requests_are_refused(learnt, run, small_sets, sqlite_file):
    message = run("--db", sqlite_file, "explain", "model", code=3).stderr
    assert message == "Error: no model yet; train one: tunedb train\n"

    def fails(*arguments, code):
        (line,) = run("--db", learnt, "explain", "model", *arguments, code=code).stderr.splitlines()
        return line

    assert "no program 999" in fails("--program", 999, code=3)
    assert "no record" in fails("--record", 9999, code=3)
    assert "no model '9'" in fails(9, code=3)
    sql(learnt, "DELETE FROM feature WHERE program_id = 2")
    without = fails("--program", 2, code=3)
    assert "has no rows of small.steps; run: tunedb extract --set small.steps" in without
    small_sets["small.steps"] = SmallSteps(version=2)
    assert "features small.steps version 1, not on" in fails("--program", 1, code=2)

"""``tunedb revalidate`` with a fake builder and runner; tests of the plugin use real ones."""

import json
from dataclasses import replace

import pytest
from checks import has, row_has
from test_apply import OTHER, tune

import tunedb
from tunedb.plugins.metaschedule.deploy import revalidation
from tunedb.plugins.metaschedule.deploy.build_and_run import RunOutcome
from tunedb.records import Failure, FailureKind, Phase, Source, SourceKind, Status, Trust


@pytest.fixture
def runs(monkeypatch):
    """The fake builder and runner; `compared` is the outcome of a comparison."""

    class Runs:
        compared = RunOutcome((1e-7, 1e-4), None)
        settings = None

        def __init__(self, **settings):
            Runs.settings = settings

        def close(self):
            pass

        def outcomes(self, jobs, target, run=None):
            return [RunOutcome((2e-3,), None) if run is None else Runs.compared for _ in jobs]

    monkeypatch.setattr(revalidation, "BuildAndRun", Runs)
    return Runs


def copy_as_foreign(theirs, ours, **fields):
    """Copy the records of a database into another one, as those of a foreign source."""
    with tunedb.open(theirs) as other, tunedb.open(ours) as store:
        records = [replace(record.measurement, **fields) for record in other.records.iterate()]
        store.records.add(records, Source("theirs", SourceKind.FILE, Trust.FOREIGN))


def test_revalidate_checks_records_of_all_workloads(run, run_json, tuned, kernels, runs):
    tune(tuned, kernels, "thrice")
    rows = run_json("--db", tuned, "revalidate", "--repeat", 2, "--seed", 3)
    outcomes = [(row["record"], row["workload_id"], row["outcome"]) for row in rows]
    assert outcomes == [(1, 1, "passed"), (2, 2, "passed")]
    row_has(rows[0], before=1e-3, mean=2e-3, ratio=2.0, deviation=1e-7)
    assert (runs.settings["repeat"], runs.settings["seed"]) == (2, 3)
    has(run("--db", tuned, "revalidate", "twice").stdout, "2.00", "1.0e-07", "passed")


def test_revalidate_retracts_record_with_wrong_result(run, run_json, tuned, kernels, runs):
    runs.compared = RunOutcome((0.5, 1e-4), None)
    message = run("--db", tuned, "revalidate", code=1).stderr
    assert "Warning: record 1 wrong: wrong_result: wrong result: it deviates" in message
    assert "1 record of its program will no longer be served" in message
    assert run_json("--db", tuned, "show", 1)["retracted"] is True
    assert "no record to serve" in run("--db", tuned, "revalidate", code=3).stderr


def test_revalidate_leaves_record_unchecked_if_untuned_program_fails(run, tuned, kernels, runs):
    runs.compared = RunOutcome((), Failure(FailureKind.TIMEOUT, Phase.RUN, "TimeoutError: 3 s"))
    done = run("--db", tuned, "revalidate", code=1)
    assert "record 1 unchecked: timeout: the untuned program does not run" in done.stderr


def test_revalidate_verifies_foreign_records_with_the_users_module(
    run, run_json, sqlite_file, kernels, runs, tmp_path
):
    # Their graph names the same file as ours, else it would need their aliases.
    tune(tmp_path / "theirs.db", kernels, "twice")
    copy_as_foreign(tmp_path / "theirs.db", sqlite_file)
    done = run("--db", sqlite_file, "revalidate", code=3)
    assert (
        "no record to serve, only records of sources that you do not trust (tunedb sources); "
        "measure them: tunedb revalidate --foreign --module MODULE; "
        "or trust one: tunedb trust SOURCE verified" in done.stderr
    )
    done = run("--db", sqlite_file, "apply", kernels, "-o", tmp_path / "kernels.so", code=3)
    assert "tunedb trust SOURCE verified" in done.stderr
    done = run("--db", sqlite_file, "revalidate", "--foreign", code=3)
    assert "tunedb revalidate --module MODULE" in done.stderr
    run("--db", sqlite_file, "revalidate", "--module", kernels, code=3)
    (row,) = run_json("--db", sqlite_file, "revalidate", "--module", kernels, "--foreign")
    row_has(row, source="theirs", outcome="passed")
    assert run_json("--db", sqlite_file, "top", "twice")[0]["trust"] == "verified"


def test_foreign_failures_do_not_count_as_records_to_trust(run, sqlite_file, tuned):
    copy_as_foreign(tuned, sqlite_file, status=Status.FAILED, run_secs=None)
    done = run("--db", sqlite_file, "revalidate", code=3)
    assert "no record to serve; measure some: tunedb tune MODULE" in done.stderr


def test_workload_without_foreign_programs_does_not_stop_the_others(
    run, tuned, kernels, runs, tmp_path
):
    theirs, words = tmp_path / "theirs.db", ("revalidate", "--module", kernels, "--foreign")
    tune(theirs, kernels, "thrice")
    copy_as_foreign(theirs, tuned)
    done = run("--db", tuned, *words)
    has(done.stdout, "thrice", "passed")
    has(done.stderr, "left out:", "no foreign program of workload 1")
    assert "no foreign program" in run("--db", tuned, *words, code=3).stderr


def test_revalidate_selects_workloads_of_a_module(run, run_json, tuned, kernels, runs):
    (row,) = run_json("--db", tuned, "revalidate", "--module", kernels)
    assert row["workload"] == "twice"
    assert "no workload 'nope'" in run("--db", tuned, "revalidate", "nope", code=3).stderr
    done = run("--db", tuned, "revalidate", "--target", json.dumps(OTHER), code=3)
    assert "no program of these workloads for llvm x86-64-v2 8 cores" in done.stderr
    done = run("--db", tuned, "revalidate", "--module", kernels, "thrice", code=3)
    assert "no workload 'thrice'" in done.stderr


def test_interrupted_run_reports_finished_records(run, tuned, kernels, runs, monkeypatch):
    tune(tuned, kernels, "thrice")
    once = revalidation.Revalidation.run
    done = []

    def interrupted(self, *args, **fields):
        if done:
            raise KeyboardInterrupt
        done.append(1)
        return once(self, *args, **fields)

    monkeypatch.setattr(revalidation.Revalidation, "run", interrupted)
    ended = run("--db", tuned, "revalidate", code=130)
    assert "passed" in ended.stdout and "stored measurements stay" in ended.stderr

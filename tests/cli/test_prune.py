"""``tunedb prune`` and ``tunedb vacuum``."""

import os
import pty
import subprocess

import pytest
import workdirs
from builders import FOREIGN, OWN, add, make_measurement
from checks import has, row_has

import tunedb
from tunedb.extraction.extract import rows_of_steps
from tunedb.features.base import feature_set
from tunedb.maintenance.check import check
from tunedb.records import Source

COUNT = 12


@pytest.fixture
def pruned(sqlite_file):
    """A database with twelve records of two workloads, two retracted, and two foreign ones."""
    with tunedb.open(sqlite_file) as store:
        batch = [make_measurement(i, (1e-3 * (i + 1),), workload=i % 2) for i in range(COUNT)]
        ids, _ = store.batches.add(batch, OWN)
        store.batches.add([make_measurement(40, (9e-3,)), make_measurement(41, (8e-3,))], FOREIGN)
        store.trust.retract(ids[:2], "a busy machine")
        steps = feature_set("steps")
        found = rows_of_steps(steps, store.programs.get([1, 2, 3, 4]))
        store.features.add(steps, [(program.id, rows) for program, rows in found])
    return sqlite_file


def size(file):
    """Return the number of records."""
    with tunedb.open(file, read_only=True) as store:
        return store.records.count()


def test_a_dry_run_shows_removed_rows_and_their_cost(run, run_json, pruned):
    before = pruned.read_bytes()
    options = ("--db", pruned, "prune", "--best", 2, "--rest", 0.5, "--retracted", "--features")
    row = run_json(*options, "--dry-run")
    parts = {(part["kind"], part["of"]): part for part in row["parts"]}
    features = next(part for part in row["parts"] if part["kind"] == "features")
    assert features["of"].startswith("steps ") and features["rows"] == 4
    assert features["seconds"][0] > 0 and parts["retracted", None]["rows"] == 2
    assert row["bytes"] == sum(part["bytes"] for part in row["parts"]) > 0
    records = parts["records", None]["rows"] + parts["retracted", None]["rows"]
    assert sum(source["records"] for source in row["sources"]) == records
    assert all(source["store"] is None for source in row["sources"])
    row_has(row, dry_run=True, removed=None, exchanged=[])
    shown = run(*options, "--dry-run")
    has(shown.stdout, "retracted records", "tunedb extract --set steps")
    assert "nothing was changed" in shown.stderr
    assert pruned.read_bytes() == before


def test_prune_needs_yes_without_a_terminal(run, run_json, pruned):
    assert "--yes" in run("--db", pruned, "prune", "--retracted", code=2).stderr
    assert size(pruned) == COUNT + 2
    row = run_json("--db", pruned, "prune", "--retracted", "--yes")
    assert row["removed"] == {
        **{"records": 2, "failures": 0, "launches": 0, "programs": 2},
        **{"features": 2, "predictions": 0, "models": 0},
    }
    assert size(pruned) == COUNT
    again = run("--db", pruned, "prune", "--retracted", "--yes")
    assert "nothing to remove" in again.stderr
    assert check(pruned).problems == []


def test_prune_asks_on_a_terminal(pruned):
    terminal, theirs = pty.openpty()
    os.write(terminal, b"y\n")
    words = [*workdirs.PROGRAM, "--db", pruned, "prune", "--retracted"]
    done = subprocess.run(words, stdin=theirs, capture_output=True, text=True, check=True)
    os.close(terminal)
    os.close(theirs)
    assert "retracted records" in done.stdout and "Remove 2 records" in done.stderr
    assert size(pruned) == COUNT


def test_prune_escapes_names_of_sources(run, sqlite_file):
    with tunedb.open(sqlite_file) as store:
        source = Source("x\x1b[2J")
        add(store, *(make_measurement(i, (1e-3 * (i + 1),)) for i in range(4)), source=source)
    shown = run("--db", sqlite_file, "prune", "--best", 1, "--rest", 0, "--dry-run").stdout
    assert "\x1b" not in shown and "x\\x1b[2J" in shown


def test_vacuum_shrinks_the_file_as_the_dry_run_predicts(run, run_json, sqlite_file):
    with tunedb.open(sqlite_file) as store:
        ids = add(store, *(make_measurement(i, (1e-3 * (i + 1),)) for i in range(500)))
        store.pruning.remove_records(ids[:-1])
    planned = run_json("--db", sqlite_file, "vacuum", "--dry-run")
    row_has(planned, dry_run=True, after=None)
    assert planned["free"] > 50_000 and planned["seconds"] > 0
    assert all(room["bytes"] > 0 and room["free"] > 0 for room in planned["needs"])
    assert "expected time" in run("--db", sqlite_file, "vacuum", "--dry-run").stdout
    done = run_json("--db", sqlite_file, "vacuum")
    # The pages may be one more than those that were in use.
    assert done["after"] <= planned["before"] - planned["free"] + 4096
    assert "new size" in run("--db", sqlite_file, "vacuum").stdout
    assert check(sqlite_file).problems == []

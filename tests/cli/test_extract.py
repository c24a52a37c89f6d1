"""``tunedb extract`` and ``tunedb features``."""

from contextlib import contextmanager

import pytest
from builders import sql
from checks import has, row_has
from fake_sets import Rebuilder, Scheduled, Steps

from tunedb.features import base
from tunedb.storage.store import Store


@pytest.fixture
def sets(monkeypatch):
    """Fake feature sets under the names of the default ones, and one whose columns vary."""
    known = {one.name: one for one in (Steps("steps"), Scheduled("tunedb.scheduled"))}
    known["varying"] = Steps("varying", columns=())
    monkeypatch.setattr(base, "load_feature_sets", lambda: (known, {"broken": "ImportError: x"}))
    return known


@pytest.fixture
def replay(monkeypatch):
    """A fake of the replay in worker processes."""
    rebuilder = Rebuilder()

    @contextmanager
    def make(store, one, workers):
        yield None if isinstance(one, base.StepFeatures) else rebuilder

    monkeypatch.setattr("tunedb.cli.models.extract._rebuilder", make)
    return rebuilder


def by_set(rows):
    return {row["set"]: row for row in rows}


def test_extract_fills_in_missing_rows(filled, run_json, run, sets, replay):
    rows = by_set(run_json("--db", filled, "extract"))
    assert list(rows) == ["steps", "tunedb.scheduled"]
    for row in rows.values():
        row_has(row, programs=6, done=6, known=0, failed=0)
        assert row["seconds"] > 0 and row["rate"] > 0
    again = run_json("--db", filled, "extract")
    assert [(row["done"], row["known"]) for row in again] == [(0, 6), (0, 6)]
    assert len(replay.asked) == 6
    table = run("--db", filled, "extract").stdout
    assert table.split()[:4] == ["set", "version", "programs", "known"]


def test_extract_selects_programs_and_sets(filled, run_json, run, sets, replay):
    for selection in (("--workload", "softmax"), ("--target", "cuda")):
        (row,) = run_json("--db", filled, "extract", "--set", "steps", *selection)
        row_has(row, programs=1, done=1)
    names = ("--set", "steps", "--set", "varying", "--set", "steps")
    rows = run_json("--db", filled, "extract", *names, "--limit", 2)
    assert [(row["set"], row["done"]) for row in rows] == [("steps", 2), ("varying", 2)]
    run("--db", filled, "extract", "--workload", "nothing", code=3)
    assert "no feature set 'x'" in run("--db", filled, "extract", "--set", "x", code=3).stderr
    failed = run("--db", filled, "extract", "--set", "broken", code=1)
    assert "'broken' does not load (ImportError: x)" in failed.stderr
    run("--db", filled, "extract", "--workers", 0, code=2)


def test_failures_are_quarantined_and_retried_on_request(filled, run_json, run, sets, replay):
    replay.fails = {2, 3}
    found = "tunedb.scheduled: 2 programs: RuntimeError: TVM said no"
    has(run("--db", filled, "extract").stderr, found, "in quarantine; see: tunedb quarantine")
    rows = by_set(run_json("--db", filled, "extract"))
    row_has(rows["tunedb.scheduled"], passed=2, failed=0)
    kept = run_json("--db", filled, "quarantine")
    assert {row["line"] for row in kept if row["file"].startswith("features ")} == {2, 3}
    # Reading quarantined lines again leaves them.
    assert run_json("--db", filled, "quarantine", "retry")["left"] == 3
    replay.fails = set()
    rows = by_set(run_json("--db", filled, "extract", "--retry"))
    row_has(rows["tunedb.scheduled"], done=2, passed=0)
    assert len(run_json("--db", filled, "quarantine")) == 1


def test_scheduled_features_need_tvm_of_the_workloads_version(
    filled, run, run_json, sets, replay, monkeypatch
):
    """Features of steps need no module, so they are computed."""
    sql(filled, "UPDATE workload SET tvm_version = '0.26.0'")
    rows = by_set(run_json("--db", filled, "extract"))
    row_has(rows["steps"], done=6, unable=0)
    row_has(rows["tunedb.scheduled"], done=0, unable=6)
    assert replay.asked == []
    monkeypatch.setattr("tunedb.cli.models.extract.find_spec", lambda name: None)
    assert [row["set"] for row in run_json("--db", filled, "extract")] == ["steps"]
    assert "tunedb.scheduled is left out" in run("--db", filled, "extract").stderr


def test_interrupted_extract_keeps_stored_rows(filled, run, run_json, sets, replay):
    def rows(programs):
        raise KeyboardInterrupt
        yield

    replay.rows = rows
    done = run("--db", filled, "extract", code=130)
    assert "Interrupted; stored rows stay" in done.stderr and "steps" in done.stdout
    (row,) = run_json("--db", filled, "extract", "--set", "steps")
    row_has(row, known=6, done=0)


def test_features_shows_sets_and_their_coverage(filled, run_json, run, sets, replay):
    run("--db", filled, "extract", "--set", "tunedb.scheduled", "--limit", 4)
    with Store(filled) as store:
        store.features.add(Steps("gone", version=3), [(1, [[1.0, 2.0]])])
    rows = {row["name"]: row for row in run_json("--db", filled, "features")}
    assert list(rows) == ["steps", "tunedb.scheduled", "varying", "gone"]
    row = rows["tunedb.scheduled"]
    row_has(row, version=1, needs="scheduled", columns=1, without=2, unable=0)
    assert (row["with"], row["rows"]) == (4, sum(i % 3 for i in range(1, 5)))
    assert (rows["steps"]["with"], rows["steps"]["bytes"]) == (0, None)
    assert rows["varying"]["columns"] is None
    gone = rows["gone"]
    assert (gone["installed"], gone["needs"], gone["with"]) == (False, None, 1)
    assert run_json("--db", filled, "features", "tunedb.scheduled") == row
    assert run("--db", filled, "features", row["name"]).stdout.startswith("tunedb.scheduled\n")
    assert "no feature set 'x'" in run("--db", filled, "features", "x", code=3).stderr


def test_features_lists_columns_of_a_set(filled, run_json, run, sets, tmp_path):
    rows = run_json("--db", filled, "features", "steps", "--columns")
    assert rows == [{"index": 0, "name": "id"}, {"index": 1, "name": "decisions"}]
    varying = run("--db", filled, "features", "varying", "--columns")
    assert "depends on the program" in varying.stderr
    assert "--columns needs a set" in run("features", "--columns", code=2).stderr
    # The sets are listed without a database too.
    rows = run_json("features")
    assert (rows[0]["name"], rows[0]["with"]) == ("steps", None)
    run("--db", tmp_path / "none.db", "features", code=3)

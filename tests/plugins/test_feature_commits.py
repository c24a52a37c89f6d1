"""Features that are stored while tuning; their failures never end the run."""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from fake_sets import Scheduled, Steps
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from tunedb.errors import NotFoundError, UsageError
from tunedb.features import base
from tunedb.plugins.metaschedule import Database
from tunedb.plugins.metaschedule.database import feature_commits
from tunedb.plugins.metaschedule.measure.measure_callback import record


@pytest.fixture
def sets(monkeypatch):
    """Fake feature sets in place of the installed ones."""
    known = {"fake.steps": Steps(), "fake.scheduled": Scheduled()}

    def feature_set(name):
        if name not in known:
            raise NotFoundError(f"no feature set {name!r}")
        return known[name]

    monkeypatch.setattr(feature_commits, "feature_set", feature_set)
    return known


@pytest.fixture
def warnings(monkeypatch):
    messages = []

    def log(level, text, *args):
        messages.append((level, text % args))

    monkeypatch.setattr(feature_commits._log, "log", log)
    return messages


@pytest.fixture
def batch(tools):
    """A function that returns what a measure callback gets: a context, candidates, results."""

    def batch(*tiles, n=16):
        mod = tools.matmul(n)
        candidates = []
        for tile in tiles:
            sch = Schedule(mod)
            loops = sch.get_loops(sch.get_sblock("C"))
            sch.split(loops[1], sch.sample_perfect_tile(loops[1], 2, 16, decision=list(tile)))
            args = ms.arg_info.ArgInfo.from_prim_func(mod["main"])
            candidates.append(SimpleNamespace(sch=sch, args_info=args))
        context = SimpleNamespace(mod=mod, target=tools.llvm)
        builds = [SimpleNamespace(error_msg=None, artifact_path="built.tar")] * len(tiles)
        runs = [SimpleNamespace(error_msg=None, run_secs=[1e-3])] * len(tiles)
        return context, candidates, builds, runs

    return batch


def test_record_stores_feature_rows_with_each_batch(sets, batch, tmp_path, opened):
    with_features = opened(tmp_path / "a.db", features=("fake.scheduled", "fake.steps"))
    record(with_features._handle, *batch((4, 4), (2, 8), (4, 4)))
    store = with_features.store
    assert store.counts().measurements == 3
    ids = [program.id for program in store.programs.get([1, 2, 3])]
    assert ids == [1, 2]
    assert [r.tolist() for r in store.features.rows(sets["fake.scheduled"], ids)] == [[[1]], [[1]]]
    assert [r[0, 0] for r in store.features.rows(sets["fake.steps"], ids)] == [1, 2]
    # Programs that TVM's AddToDatabase has stored before get rows too.
    context, candidates, builds, runs = batch((8, 2))
    workload = with_features.commit_workload(context.mod)
    trace = candidates[0].sch.trace
    tuned = ms.database.TuningRecord(trace, workload, [1e-3], context.target)
    with_features.commit_tuning_record(tuned)
    record(with_features._handle, context, candidates, builds, runs)
    assert store.counts().measurements == 4
    assert store.programs.without_features(sets["fake.scheduled"]) == []


def test_failing_features_are_quarantined_with_one_warning(sets, batch, tmp_path, warnings, opened):
    broken = sets["fake.steps"]
    broken.rows = lambda programs: [ValueError("too hard") for _ in programs]
    sets["fake.scheduled"].nest_rows = lambda nest, *, gpu: np.full((1, 1), np.nan)
    database = opened(tmp_path / "a.db", features=("fake.scheduled", "fake.steps"))
    for tile in ((4, 4), (2, 8), (8, 2)):
        record(database._handle, *batch(tile))
    store = database.store
    assert (store.counts().measurements, len(store.quarantine.rows())) == (3, 6)
    reasons = {row.item.reason for row in store.quarantine.rows()}
    assert reasons == {"ValueError: too hard", "fake.scheduled: one is nan in row 0"}
    assert len([text for level, text in warnings if level >= 30]) == 2
    assert len(warnings) == 6


def test_errors_of_features_lose_no_records(sets, batch, tmp_path, warnings, monkeypatch, opened):
    database = opened(tmp_path / "a.db", features=("fake.scheduled",))

    fail = mock.Mock(side_effect=SystemError("no features today"))
    monkeypatch.setattr("tunedb.plugins.metaschedule.features.rows.rows_of", fail)
    record(database._handle, *batch((4, 4)))
    monkeypatch.setattr(database.store.features, "add", fail)
    monkeypatch.setattr(database.store.programs, "ids", fail)
    record(database._handle, *batch((2, 8)))
    assert database.store.counts().measurements == 2
    assert [level for level, _ in warnings] == [30, 30]


def test_default_set_that_does_not_load_is_skipped(sets, batch, tmp_path, warnings, opened):
    database = opened(tmp_path / "a.db")
    record(database._handle, *batch((4, 4)))
    record(database._handle, *batch((2, 8)))
    assert [text.partition(": ")[2] for _, text in warnings] == [
        "features left out: tunedb.scheduled: no feature set 'tunedb.scheduled'"
    ]


def test_database_rejects_invalid_names_of_feature_sets(tmp_path):
    with pytest.raises(NotFoundError, match="no feature set 'nonsense'"):
        Database(tmp_path / "a.db", features=("nonsense",))
    with pytest.raises(UsageError, match="write \\('steps',\\)"):
        Database(tmp_path / "a.db", features="steps")


def test_database_stores_scheduled_features_by_default(batch, tmp_path, opened):
    database = opened(tmp_path / "a.db")
    record(database._handle, *batch((4, 4), (2, 8)))
    (stored,) = database.store.features.sets()
    scheduled = base.feature_set("tunedb.scheduled")
    assert (stored.name, stored.programs) == ("tunedb.scheduled", 2)
    assert (stored.version, stored.columns) == (scheduled.version, scheduled.columns)
    without = opened(tmp_path / "b.db", features=())
    record(without._handle, *batch((4, 4)))
    assert without.store.features.sets() == []

"""Tuning with a team's server: beside the database, or as the database."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
from exchanges import away, digests, fill
from fake_measuring import FakeBuilder, FakeRunner
from logged import logged
from sqlalchemy.engine import make_url

from tunedb import limits
from tunedb.errors import SchemaError, StorageError, UsageError
from tunedb.exchange.sync import push
from tunedb.plugins.metaschedule import Database
from tunedb.plugins.metaschedule.database.handle import Candidate
from tunedb.plugins.metaschedule.tuning import run as tuning_run
from tunedb.plugins.metaschedule.tuning.tune import tune
from tunedb.storage.store import Store

INTRINSICS = "tvm.s_tir.tensor_intrin"
LLVM = {"kind": "llvm", "num-cores": 2, "mcpu": "x86-64-v2"}


@pytest.fixture
def quick(tmp_path, monkeypatch):
    """A function that tunes without compiling into ``quick.path``."""
    if INTRINSICS not in sys.modules:
        # Its import takes seconds of CPU time, and the target here needs no intrinsics.
        monkeypatch.setitem(sys.modules, INTRINSICS, ModuleType(INTRINSICS))

    def quick(mod, database=None, on_run=lambda _: None, **options):
        return tune(
            mod,
            LLVM,
            None,
            8,
            num_trials_per_iter=4,
            builder=FakeBuilder(),
            runner=FakeRunner(on_run=on_run),
            database=quick.path if database is None else database,
            cost_model="random",
            strategy="replay-trace",
            num_tuning_cores=1,
            seed=1,
            warm=False,
            **options,
        )

    quick.path = tmp_path / "tune.db"
    return quick


def test_run_pulls_records_and_delivers_its_own(quick, tools, postgres_url, monkeypatch):
    with Store(postgres_url) as server:
        fill(server, 1, 2)

    def store_more(handle):
        """Store a record after the last batch, as finals and the times of networks are."""
        measurement = list(handle.store.records.iterate())[2].measurement
        handle.record_final([(measurement, (0.5, 0.5))])

    monkeypatch.setattr(tuning_run, "end_run", store_more)
    progresses = []
    result = quick(tools.matmul(32), server=postgres_url, on_progress=progresses.append)
    assert [progress.trials for progress in progresses] == [4, 8]
    with result.database.store as store:
        assert (store.records.count(), digests(store)) == (11, digests(postgres_url))
    assert result.delivery.delivered == 9
    assert result.delivery.is_complete
    assert result.delivery.error is None


def test_writer_of_a_server_can_tune_into_it(quick, tools, team):
    """Its rights are those of docs/sharing.md; another writer's handle reads the record there."""
    mod = tools.matmul(32)
    result = quick(mod, database=team("alice"))
    assert result.trials == 8
    with result.database.store as store:
        assert store.records.count() == 8
        (workload,) = store.workloads.find()
        assert store.workloads.get(workload.id).script is None
    handle = Database(team("bob"), target=LLVM, read_only=True)
    assert len(handle.get_top_k(handle.commit_workload(mod), 1)) == 1
    handle.store.close()


def test_run_continues_without_unreachable_server(quick, tools, postgres_server, postgres_url):
    url = make_url(postgres_url).set(password="hush").render_as_string(hide_password=False)
    with logged() as seen, away(postgres_server, postgres_url):
        result = quick(tools.matmul(32), server=url)
    assert result.trials == 8
    assert (result.delivery.delivered, result.delivery.waiting) == (0, 8)
    assert any("continues without it" in line for line in seen)
    assert not any("hush" in line for line in [*seen, repr(result.delivery)])
    with result.database.store as store:
        assert push(store, postgres_url).new == 8


def test_tune_rejects_unusable_server_before_measuring(quick, tools, bare_postgres_url):
    ran = []
    with pytest.raises(SchemaError, match="tunedb db init"):
        quick(tools.matmul(32), server=bare_postgres_url, on_run=ran.append)
    with pytest.raises(UsageError, match="this is the database itself"):
        quick(tools.matmul(32), server=quick.path, on_run=ran.append)
    assert ran == []


@pytest.mark.stress
def test_run_waits_for_server(quick, tools, postgres_server, postgres_url, tmp_path, monkeypatch):
    """The batch waits, and nothing is spooled to a file."""
    monkeypatch.chdir(tmp_path)
    cuts, ran = [], []

    def on_run(hash_):
        ran.append(hash_)
        if len(ran) in (2, 6):
            block = away(postgres_server, postgres_url, seconds=0.5)
            block.__enter__()
            cuts.append(block)

    result = quick(tools.matmul(32), database=postgres_url, on_run=on_run)
    for block in cuts:
        block.__exit__(None, None, None)
    assert len(cuts) == 2
    with result.database.store as store:
        assert (store._db.retry_timeout, store.records.count()) == (limits.RECONNECT_S, 8)
    assert not list(Path.cwd().glob("*.spool-*.json"))


def test_database_spools_batch_if_its_server_stays_unreachable(
    tools, postgres_server, postgres_url, tmp_path, monkeypatch, opened
):
    """After the last retry the batch is in a file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(limits, "RECONNECT_S", 0.5)
    database = opened(postgres_url, target=tools.llvm)
    mod = tools.matmul(16)
    workload = database.commit_workload(mod)
    made = tools.record(mod, workload, [1.0])
    batch = [Candidate(workload, made.trace, tools.llvm, made.args_info, (0.1,))]
    with (
        away(postgres_server, postgres_url),
        pytest.raises(StorageError, match="the measurements are kept; run: tunedb import logs"),
    ):
        database.record_batch(batch)
    assert list(tmp_path.glob("*.spool-*.json"))

"""Replay of stored programs as modules, and failures of the processes that replay them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import fake_plugin
import numpy as np
import orjson
import psutil
import pytest
import tvm_ffi
from builders import FOREIGN, OWN
from click.testing import CliRunner
from tvm.s_tir import Schedule

from tunedb.cli import main
from tunedb.errors import PluginError, UsageError
from tunedb.extraction.extract import RowError, extract
from tunedb.features import base
from tunedb.plugins.metaschedule import modules, trace_codec
from tunedb.plugins.metaschedule.workers.replay import Replayer
from tunedb.plugins.metaschedule.workers.replay_pool import ReplayPool
from tunedb.records import NO_TARGET, Measurement, Program, Trust
from tunedb.storage.store import Store

TUNEDB = [sys.executable, "-c", "from tunedb.cli import main; main()"]


@pytest.fixture
def loops(tmp_path_factory, monkeypatch):
    """The feature set ``other.loops`` of a package that is installed for the test."""
    fake_plugin.install(tmp_path_factory.mktemp("site"), monkeypatch)
    base.load_feature_sets.cache_clear()
    yield base.feature_set("other.loops")
    base.load_feature_sets.cache_clear()


@pytest.fixture
def make(tools):
    """A function that returns a measurement of a matmul, and its schedule's module."""

    def make(n=16, tile=(4, 4), *, target=None, block="C", fits=True, **fields):
        mod = tools.matmul(n, block=block)
        scheduled = mod if fits else tools.matmul(n, block="other")
        sch = Schedule(scheduled)
        found = sch.get_loops(sch.get_sblock(block if fits else "other"))
        sch.split(found[1], sch.sample_perfect_tile(found[1], 2, n, decision=list(tile)))
        sch.enter_postproc()
        trace = trace_codec.encode(sch.trace)
        target = modules.to_target(tools.llvm if target is None else target)
        program = Program(modules.to_workload(mod), target, trace)
        return Measurement(program, (1e-3,), **fields), sch.mod

    return make


def add(store, *measurements, source=OWN):
    store.batches.add(measurements, source)
    return store.programs.ids([m.program.digest for m in measurements])


def test_replayer_returns_the_modules_that_were_measured(make, tools, sqlite_file):
    made = [make(16, (4, 4)), make(16, (2, 8)), make(32, (8, 4), target=tools.cuda)]
    with Store(sqlite_file) as store:
        ids = add(store, *(measurement for measurement, _ in made))
        replayer = Replayer(store)
        for program, (_, mod) in zip(store.programs.get(ids), made, strict=True):
            assert tvm_ffi.structural_equal(replayer.module(program), mod)
            assert str(replayer.target(program).kind.name) == program.target.kind


def test_replayer_rejects_foreign_programs_before_tvm_reads_them(make, sqlite_file, monkeypatch):
    def read(*_):
        raise AssertionError("TVM was asked")

    with Store(sqlite_file) as store:
        known, other = make(16)[0], make(16, (2, 8))[0]
        (foreign,) = add(store, other, source=FOREIGN)
        (program,) = store.programs.get([foreign])
        with monkeypatch.context() as patched:
            for name in ("to_module", "from_script"):
                patched.setattr(modules, name, read)
            with pytest.raises(PluginError, match="only from foreign sources"):
                Replayer(store).module(program)
        (own,) = add(store, known)
        replayer = Replayer(store)
        replayer.module(store.programs.get([own])[0])
        with pytest.raises(PluginError, match="only from foreign sources"):
            replayer.module(program)
        add(store, other, source=replace(FOREIGN, name="v", trust=Trust.VERIFIED))
        replayer.module(program)


def test_failed_replay_keeps_the_message_of_tvm(make, sqlite_file):
    misfit, good = make(fits=False)[0], make()[0]
    graph = orjson.loads(good.program.workload.body)
    graph["nodes"][0] = {"type": "no.such.Type", "data": {}}
    workload = replace(good.program.workload, body=orjson.dumps(graph), script=None)
    with Store(sqlite_file) as store:
        ids = add(store, misfit)
        ids += add(store, replace(good, program=replace(good.program, workload=workload)))
        program, unreadable = store.programs.get(ids)
        with pytest.raises(Exception, match="other") as caught:
            Replayer(store).module(program)
        assert "block" in str(caught.value)
        with pytest.raises(PluginError, match=r"TVM cannot load the module of workload 2: .{10}"):
            Replayer(store).module(unreadable)


def test_pool_returns_rows_or_error_of_each_program_in_order(make, tools, loops, sqlite_file):
    batch = [make(16, (t, 16 // t))[0] for t in (1, 2, 4, 8, 16)]
    batch += [make(32, (t, 32 // t), target=tools.cuda)[0] for t in (2, 4)]
    batch.insert(3, make(19, (1, 19))[0])
    batch.insert(5, make(fits=False)[0])
    without, _ = make()
    batch.insert(6, replace(without, program=replace(without.program, target=NO_TARGET)))
    with Store(sqlite_file) as store, ReplayPool(store, "other.loops", workers=2) as pool:
        ids = add(store, *batch)
        programs = store.programs.get(ids)
        found = list(pool.rows(iter(programs)))
        assert [program for program, _ in found] == programs
        rows = [r if isinstance(r, Exception) else r.tolist() for _, r in found]
        assert rows[0] == [[4, 16**3, 0]]
        assert rows[-1] == [[4, 32**3, 1]]
        assert isinstance(rows[3], RowError) and "nineteen" in str(rows[3])
        assert isinstance(rows[5], RowError)
        assert len(rows[5].text) > len(str(rows[5])), "TVM's rendered error is kept"
        assert str(rows[6]) == "its record names no target"
        assert sum(isinstance(r, Exception) for r in rows) == 3
        pids = pool.pids()
        assert pids
    for pid in pids:
        assert not Path(f"/proc/{pid}").exists()


@pytest.mark.stress
def test_pool_loses_only_programs_that_crash_or_hang(make, loops, sqlite_file):
    batch = [make(16, (t, 16 // t))[0] for t in (1, 2, 4)]
    batch += [make(13, (1, 13))[0], make(16, (8, 2))[0], make(17, (17, 1))[0], make(32, (4, 8))[0]]
    with Store(sqlite_file) as store:
        ids = add(store, *batch)
        with ReplayPool(store, "other.loops", workers=1, timeout_sec=3) as pool:
            report = extract(store, loops, rebuilder=pool)
        assert (report.done, report.failed) == (5, 2)
        crash, hang = sorted(report.reasons)
        assert crash.startswith("replaying it crashed TVM (signal 6, SIGABRT")
        assert hang == "replaying it took longer than 3 s"
        by_line = {row.item.line: row.item for row in store.quarantine.rows()}
        assert set(by_line) == {ids[3], ids[5]}
        assert "about to crash" in json.loads(by_line[ids[3]].data)["error"]
        known = [rows is not None for rows in store.features.rows(loops, ids)]
        assert known == [True, True, True, False, True, False, True]
        # No program is left to try, so no process is started.
        with ReplayPool(store, "other.loops", workers=1) as pool:
            report = extract(store, loops, rebuilder=pool)
            assert (report.done, report.failed, report.passed) == (0, 0, 2)
            assert pool.pids() == ()


@pytest.mark.stress
def test_pool_reports_why_it_cannot_work(make, loops, sqlite_file, monkeypatch):
    with Store(":memory:") as store, pytest.raises(UsageError, match="in memory"):
        ReplayPool(store, "other.loops")
    with Store(sqlite_file) as store:
        add(store, make()[0])
        with pytest.raises(UsageError, match="positive"):
            ReplayPool(store, "other.loops", workers=0)
        programs = store.programs.get([1])

        def fails(name, reason):
            problem = pytest.raises(PluginError, match=reason)
            with ReplayPool(store, name, workers=1) as pool, problem:
                list(pool.rows(programs))

        fails("no.such", "no feature set 'no.such'")
        fails("steps", "steps is not computed from modules")
        monkeypatch.setenv("TUNEDB_PLUGINS", "")
        fails("other.loops", "a worker process cannot start: no feature set")
        assert store.quarantine.rows() == []


@pytest.fixture
def many(make, sqlite_file):
    """A database with 240 programs of four workloads, one of which does not replay."""
    batch = [make(fits=False)[0]]
    for n in (16, 20, 24, 28):
        measurement, _ = make(n, (1, n))
        program = measurement.program
        for number in range(60):
            # These programs differ only in bytes; their modules may be equal.
            decisions = program.trace.decisions + b" " * number
            trace = replace(program.trace, decisions=decisions)
            batch.append(replace(measurement, program=replace(program, trace=trace)))
    with Store(sqlite_file) as store:
        add(store, *batch)
    return sqlite_file


def printed(path, *words):
    return json.loads(CliRunner().invoke(main, ["--db", str(path), *words, "--json"]).stdout)


SMALL_STEPS = "from tunedb import cli, limits; limits.FEATURE_PROGRAMS = 8; cli.main()"


def children_of(process):
    """Return the processes that a process has started."""
    return {child.pid for child in psutil.Process(process.pid).children()}


def started(path):
    """Start a run that stores little at a time; return it and its workers once there are some."""
    arguments = ("--db", str(path), "extract", "--set", "other.loops", "--workers", "2")
    command, nowhere = [sys.executable, "-c", SMALL_STEPS, *arguments], subprocess.DEVNULL
    run = subprocess.Popen(command, stdout=nowhere, stderr=nowhere)
    # A run that has nothing left to do starts none, and ends.
    while not (pids := children_of(run)) and run.poll() is None:
        time.sleep(0.01)
    return run, pids


def known_in(store):
    """Return how many programs have rows."""
    return sum(stored.programs for stored in store.features.sets())


def kill_one(path, moment):
    """Kill a run a while after its workers began, or when it stores; return their processes."""
    run, pids = started(path)
    if moment is not None:
        time.sleep(moment)
    else:
        with Store(path, read_only=True) as store:
            before = known_in(store)
            while run.poll() is None and known_in(store) == before:
                pass
    if run.poll() is None:
        pids |= children_of(run)
    run.kill()
    run.wait()
    return pids


@pytest.mark.stress
def test_killed_extractions_keep_stored_rows_and_leave_no_workers(many, loops):
    seen, known = 0, []
    for moment in [*np.linspace(0, 1, 4), *[None] * 8]:
        pids = kill_one(many, moment)
        seen += len(pids)
        deadline = time.monotonic() + 60
        while any(Path(f"/proc/{pid}").exists() for pid in pids):
            assert time.monotonic() < deadline, "a worker outlives the run"
            time.sleep(0.05)
        with Store(many, read_only=True) as store:
            known.append(known_in(store))
    assert seen, "no run was killed while its workers ran"
    assert known == sorted(known)
    command = [*TUNEDB, "--db", many, "extract", "--set", "other.loops", "--json"]
    (row,) = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    assert row["known"] + row["done"] == 240
    (row,) = printed(many, "extract", "--set", "other.loops")
    assert (row["known"], row["done"], row["passed"]) == (240, 0, 1)
    listed = printed(many, "features", "other.loops")
    assert (listed["with"], listed["without"], listed["columns"]) == (240, 1, 3)
    with Store(many, read_only=True) as store:
        rows = store.features.rows(loops, range(1, 242))
        assert sum(r is not None for r in rows) == 240
        assert all(r is None or r.shape == (1, 3) for r in rows)

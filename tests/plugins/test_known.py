"""`Known`: programs that need not be measured again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import tvm
import tvm_ffi
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from tunedb.plugins.metaschedule.database.database import handle_of
from tunedb.plugins.metaschedule.database.handle import Candidate
from tunedb.plugins.metaschedule.measure.measured import Known
from tunedb.plugins.metaschedule.threads import inherited_threads
from tunedb.records import Failure, FailureKind, Phase, Session
from tunedb.system.host import new_session

TILES = [(16, 1), (8, 2), (4, 4), (2, 8), (1, 16)]


class Tuner:
    """A handle on a database that stores given measurements."""

    def __init__(self, database, tools, target, session=None):
        self.tools, self.target, self.database = tools, target, database
        self.handle = handle_of(database)
        if session is not None:
            self.handle.use_session(session)

    def measure(self, mod, tile, secs=(0.001,), failure=None, **how):
        """Record a program; return its scheduled module."""
        workload = self.handle.commit_workload(mod)
        record = self.tools.record(mod, workload, [1.0], tile=tile, target=self.target, **how)
        return self.keep(mod, workload, record, secs, failure)

    def keep(self, mod, workload, record, secs, failure=None):
        times = (1e10,) if failure else secs
        self.handle.record_batch(
            [Candidate(workload, record.trace, self.target, record.args_info, times, failure)]
        )
        return scheduled(mod, record.trace)


def scheduled(mod, trace):
    schedule = Schedule(mod)
    trace.apply_to_schedule(schedule, remove_postproc=False)
    return schedule.mod


def known_of(tuner, mod, count, **options):
    """Return what another run knows of a module; assert that these are `count` programs."""
    known = Known(tuner.handle, **options)
    assert known.prepare(mod, tuner.tools.llvm) == count
    return known


@pytest.fixture
def mod(tools):
    return tools.matmul(16)


@pytest.fixture
def tuner(sqlite_file, tools, opened):
    """A function that opens the database once more, as another tuning run would."""

    def tuner(target=tools.llvm, session=None, **options):
        return Tuner(opened(sqlite_file, target=target, **options), tools, target, session)

    return tuner


def test_known_finds_measurements_of_earlier_runs(tuner, tools, mod):
    first, second = tuner(), tuner()
    mods = [first.measure(mod, tile, (0.001 * n, 0.002)) for n, tile in enumerate(TILES[:4], 1)]
    other = first.measure(tools.matmul(32), (4, 8))
    known = Known(second.handle)
    assert known.find(mods[0], tools.llvm) is None  # nobody has asked for the task yet
    assert known.prepare(mod, tools.llvm) == 4
    found = [known.find(one, tools.llvm) for one in mods]
    assert [one.run_secs for one in found] == [(0.001 * n, 0.002) for n in range(1, 5)]
    assert not any(one.failed for one in found)
    digests = {one.measurement.program.digest for one in second.database.store.records.iterate(1)}
    assert {one.digest for one in found} == digests
    record = tools.record(mod, first.handle.commit_workload(mod), [1.0], tile=(1, 16))
    assert known.find(scheduled(mod, record.trace), tools.llvm) is None
    assert known.find(other, tools.llvm) is None
    assert known.find(mods[0], tools.llvm_other) is None
    # Nothing is known where all programs are to be measured again.
    known = known_of(tuner(), mod, 0, remeasure=True)
    known.refresh()
    assert known.find(mods[0], tools.llvm) is None


def test_prepare_accepts_functions_and_modules_that_are_not_stored(tuner, tools, mod):
    one = tuner()
    assert Known(one.handle).prepare(mod, tools.llvm) == 0
    found = one.measure(ms.tune_context._normalize_mod(mod), (4, 4))
    known = Known(tuner().handle)
    assert known.prepare(mod["main"], tools.llvm) == 1
    assert known.find(found, tools.llvm) is not None


def test_known_returns_the_best_record_of_a_program(tuner, tools, mod):
    one = tuner()
    one.measure(mod, (4, 4), failure=Failure(FailureKind.TIMEOUT, Phase.RUN, "busy"))
    found = one.measure(mod, (4, 4), (0.003,))
    one.measure(mod, (4, 4), (0.002,))
    one.measure(mod, (4, 4), failure=Failure(FailureKind.CRASH, Phase.RUN, "once"))
    known = known_of(tuner(), mod, 1)
    assert known.find(found, tools.llvm).run_secs == (0.002,)
    one.measure(mod, (4, 4), (0.001,))
    known.refresh()
    assert known.find(found, tools.llvm).run_secs == (0.001,)


def test_known_finds_another_trace_of_the_same_scheduled_module(tuner, tools, mod):
    """Programs are compared as the modules that a builder gets."""
    one = tuner()
    workload = one.handle.commit_workload(mod)
    record = tools.record(mod, workload, [1.0], tile=(4, 4))
    schedule = Schedule(mod)
    schedule.get_consumers(schedule.get_sblock("C"))  # says nothing about the module
    record.trace.apply_to_schedule(schedule, remove_postproc=False)
    found = one.keep(mod, workload, ms.database.TuningRecord(schedule.trace, workload), (0.001,))
    known = known_of(tuner(), mod, 1)
    assert known.find(scheduled(mod, record.trace), tools.llvm).run_secs == (0.001,)
    one.keep(mod, workload, record, (0.0005,))
    known.refresh()
    assert known.find(found, tools.llvm).run_secs == (0.0005,)


def test_known_finds_failures_except_infrastructure_and_unknown_ones(tuner, tools):
    one, mod = tuner(), tools.matmul(48)
    failures = [Failure(kind, Phase.RUN, "words", 3.0) for kind in FailureKind]
    tiles = iter([(48 // n, n) for n in (1, 2, 3, 4, 6, 8, 12)])
    mods = [one.measure(mod, next(tiles), failure=each) for each in failures]
    known = known_of(tuner(), mod, 5)
    *found, infrastructure, unknown = (known.find(each, tools.llvm) for each in mods)
    assert (infrastructure, unknown) == (None, None)
    expected = [(True, None, each) for each in failures[:5]]
    assert [(each.failed, each.run_secs, each.failure) for each in found] == expected
    # Nor are failures without a cause known.
    tools.commit(one.database, tools.matmul(16), [1e10])
    known_of(tuner(), tools.matmul(16), 0)


def test_known_ignores_times_of_other_machines(tuner, tools, mod):
    elsewhere = Session("elsewhere", 1, b'{"cores":96,"cpu":"another"}')
    found = tuner(session=elsewhere).measure(mod, (4, 4))
    assert known_of(tuner(), mod, 0).find(found, tools.llvm) is None
    known_of(tuner(session=Session("again", 2, elsewhere.fingerprint)), mod, 1)


def test_known_ignores_programs_for_other_targets(tuner, tools, mod):
    found = tuner(target=tools.llvm_other).measure(mod, (4, 4))
    known = known_of(tuner(), mod, 0)
    assert known.prepare(mod, tools.llvm_other) == 1
    assert known.find(found, tools.llvm) is None
    assert known.find(found, tools.llvm_other) is not None


def test_known_skips_programs_that_do_not_replay(tuner, tools, mod):
    one = tuner()
    found = one.measure(mod, (4, 4))
    workload = one.handle.commit_workload(mod)
    renamed = tools.matmul(16, block="another")
    wrong = tools.record(renamed, workload, [1.0], tile=(8, 2), block="another")
    candidate = Candidate(workload, wrong.trace, tools.llvm, wrong.args_info, (0.001,))
    one.handle.record_batch([candidate])
    known = known_of(tuner(), mod, 1)
    assert known.find(found, tools.llvm) is not None
    assert known.prepare(mod, tools.llvm) == 1


def test_known_finds_programs_of_workload_with_other_block_names(tuner, tools, mod):
    found = tuner().measure(tools.matmul(16, block="another"), (4, 4), block="another")
    assert known_of(tuner(), mod, 1).find(found, tools.llvm) is not None


@pytest.mark.parametrize("equality", ["structural", "anchor-block"])
def test_known_compares_scheduled_modules_in_full(equality, tuner, tools, mod, monkeypatch):
    """All schedules of a module have equal anchor blocks, and here an equal hash."""
    one = tuner(module_equality=equality)
    mods = [one.measure(mod, tile, (0.001 * n,)) for n, tile in enumerate(TILES[:3], 1)]
    for _ in range(2):
        known = known_of(tuner(module_equality=equality), mod, 3)
        found = [known.find(each, tools.llvm).run_secs for each in mods]
        assert found == [(0.001,), (0.002,), (0.003,)]
        assert known.find(mod, tools.llvm) is None
        monkeypatch.setattr(Known, "_hash", lambda *_: 7)


def test_refresh_adds_records_of_other_runs_only(tuner, tools, mod):
    mine, theirs = tuner(), tuner(session=new_session_like())
    first = mine.measure(mod, TILES[0])
    mine.handle.use_session(new_session_like())
    known = known_of(mine, mod, 1)
    own, other = mine.measure(mod, TILES[1]), theirs.measure(mod, TILES[2])
    known.refresh()
    found = [known.find(one, tools.llvm) is not None for one in (first, own, other)]
    assert found == [True, False, True]
    assert known.prepare(mod, tools.llvm) == 3
    assert known.find(own, tools.llvm) is not None


def new_session_like():
    """Return another session of this machine, as tunedb's handles make them."""
    return new_session(
        tvm=str(tvm.__version__),
        tvm_ffi=str(tvm_ffi.__version__),
        llvm=str(tvm.target.codegen.llvm_version_major()),
        threads=inherited_threads().as_json(),
    )


def test_known_finds_the_same_programs_with_any_number_of_threads(tuner, tools):
    """Several threads replay, and several threads ask."""
    one, mods = tuner(), []
    tiles = [(2**i, 64 >> i) for i in range(3, 7)]
    for block in ("C", "X"):
        mod = tools.matmul(64, block=block)
        mods += [one.measure(mod, tile, block=block) for tile in tiles]
    known = {n: known_of(tuner(), mod, len(mods), threads=n) for n in (1, 8)}
    with ThreadPoolExecutor(4) as pool:
        asked = [
            list(pool.map(lambda m, k=k: k.find(m, tools.llvm), mods * 4)) for k in known.values()
        ]
    assert asked[0] == asked[1]
    assert None not in asked[0]

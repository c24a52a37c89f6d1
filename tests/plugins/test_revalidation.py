"""Revalidation: programs are measured again, and their results compared."""

import json
import math
from contextlib import closing
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import tvm
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.runner import local_runner

import tunedb
from tunedb.errors import NotFoundError, UsageError
from tunedb.plugins.metaschedule import Database, trace_codec
from tunedb.plugins.metaschedule.deploy import numerics, revalidation
from tunedb.plugins.metaschedule.deploy.build_and_run import RunOutcome
from tunedb.plugins.metaschedule.deploy.revalidation import (
    Revalidation,
    foreign_programs,
    served_programs,
)
from tunedb.records import Failure, FailureKind, Origin, Phase, Source, SourceKind, Status, Trust
from tunedb.storage.exchange_types import ForeignSource, MergeBatch
from tunedb.storage.retractions import Retraction

FOREIGN = Source("theirs", SourceKind.FILE, Trust.FOREIGN)
F32, F16, I32 = "float32", "float16", "int32"


def args(*pairs):
    return [["TENSOR", dtype, list(shape)] for dtype, shape in pairs]


@settings(max_examples=examples(40))
@given(
    shapes=st.lists(st.lists(st.integers(1, 5), max_size=3), min_size=1, max_size=3),
    dtype=st.sampled_from([F32, "float64", F16, "bfloat16", I32, "uint8", "bool"]),
    draw=st.integers(0, 3),
    seed=st.integers(0, 2**31),
)
def test_inputs_are_equal_for_equal_seeds_and_in_their_ranges(shapes, dtype, draw, seed):
    info = args(*((dtype, shape) for shape in shapes))
    values = numerics.drawn(info, draw, seed=seed)
    again = numerics.drawn(info, draw, seed=seed)
    extents = [extent for shape in shapes for extent in shape if extent > 1]
    for array, same, shape in zip(values, again, shapes, strict=True):
        assert array.shape == tuple(shape)
        assert np.array_equal(array, same)
        if "float" in dtype:
            low, high = (0.5, 1.5) if draw % 2 and dtype in (F32, "float64") else (-1, 1)
            assert ((low <= array) & (array <= high)).all()
        else:
            assert (array >= 0).all()
            assert (array < (2 if dtype == "bool" else max(2, min([8, *extents])))).all()


def test_inputs_differ_between_arguments_draws_and_seeds():
    info = args((F32, (4, 4)), (F32, (4, 4)))
    drawn = [numerics.drawn(info, draw, seed=seed) for draw, seed in ((0, 0), (2, 0), (0, 1))]
    arrays = [array for pair in drawn for array in pair]
    assert len({array.tobytes() for array in arrays}) == 6


def test_drawn_rejects_arguments_that_are_not_tensors():
    with pytest.raises(NotImplementedError, match="not a tensor: SCALAR"):
        numerics.drawn([["SCALAR", F32, []]], 0, seed=0)


def test_allocate_fills_tensors_of_every_type():
    dtypes = ("float32", "float16", "bfloat16", "float8_e4m3fn", "int8", "uint16", "bool")
    info = args(*((dtype, (3, 2)) for dtype in dtypes))
    (tensors,) = numerics.allocate(tvm.cpu(), info, 1, seed=3)
    values = numerics.drawn(info, 0, seed=3)
    for tensor, array, dtype in zip(tensors, values, dtypes, strict=True):
        assert str(tensor.dtype) == dtype
        assert np.allclose(tensor.numpy().astype("float64"), array, atol=0.1)


@settings(max_examples=examples(50))
@given(
    values=st.lists(st.floats(-100, 100), min_size=1, max_size=8),
    error=st.floats(1e-3, 1.0),
    where=st.integers(0, 7),
)
def test_deviation_is_relative_to_the_largest_value(values, error, where):
    expected = np.array([*values, 200.0])
    found = expected.copy()
    found[where % len(values)] += error
    assert numerics.deviation(expected, found) == pytest.approx(error / 200, rel=1e-6)
    assert numerics.deviation(expected, expected) == 0.0


@pytest.mark.parametrize(
    ("expected", "found", "deviation"),
    [
        ([math.nan, 1.0], [math.nan, 1.0], 0.0),
        ([math.nan, 1.0], [0.0, 1.0], math.inf),
        ([0.0, 1.0], [math.nan, 1.0], math.inf),
        ([math.inf, 1.0], [math.inf, 1.5], 0.5),
        ([math.inf, 1.0], [-math.inf, 1.0], math.inf),
        ([1.0, 1.0], [math.inf, 1.0], math.inf),
        ([math.nan], [math.nan], 0.0),
        ([0.0], [-0.0], 0.0),
        ([0.0], [1e-300], math.inf),
        ([], [], 0.0),
    ],
)
def test_deviation_handles_nan_infinities_zeros_and_empty_arrays(expected, found, deviation):
    got = numerics.deviation(np.array(expected, "float64"), np.array(found, "float64"))
    assert got == deviation


def test_deviation_of_integers_is_0_or_infinite():
    one = np.arange(4)
    assert numerics.deviation(one, one) == 0.0
    assert numerics.deviation(one, np.array([0, 1, 3, 3])) == math.inf
    assert numerics.deviation(one, np.arange(5)) == math.inf


def test_tolerance_of_follows_the_coarsest_type():
    assert numerics.tolerance_of([F32, "float64"]) == 1e-4
    assert numerics.tolerance_of([F16, F16, F32]) == 1e-2
    assert numerics.tolerance_of(["int8", I32]) == 0.0
    assert numerics.tolerance_of(["float8_e4m3fn"]) == 0.2


def made(mod, target, trace=None, *, keep_preproc=True):
    order = numerics.order_of(trace, keep_preproc=keep_preproc)
    return numerics.build(mod.with_attr(numerics.ORDER, order), target, None)


def elementwise(function, dtype=F32):
    a = te.placeholder((8,), dtype, name="A")
    b = te.compute((8,), lambda i: function(a[i]), name="B")
    return tvm.IRModule({"main": te.create_prim_func([a, b])})


def compared(mod, other, tmp_path, trace=None, info=None):
    """Return deviations of a program's results from the module's own, and the tolerances."""
    target = tvm.target.Target("llvm")
    info = info or [one.as_json() for one in ms.arg_info.ArgInfo.from_entry_func(mod)]
    path, device = str(tmp_path / "reference.npz"), tvm.cpu()
    draws = numerics.allocate(device, info, 2, seed=0)
    assert numerics.run_reference(made(mod, target), device, None, draws, path=path) == [0.0]
    draws = numerics.allocate(device, info, 2, seed=0)
    built = made(other, target, trace)
    return numerics.run_compared(built, device, None, draws, path=path)


def half(mod):
    """Return a schedule of a matmul that sums in float16: legal for TVM, but wrong."""
    sch = Schedule(mod)
    block = sch.get_sblock("C")
    sch.cache_write(block, 0, "global")
    sch.unsafe_set_dtype(block, 0, "float16")
    sch.enter_postproc()
    return sch


def test_comparison_accepts_a_correct_schedule(tools, tmp_path):
    mod = tools.matmul()
    record = tools.record(mod, ms.database.Workload(mod), [1.0])
    costs = compared(mod, mod, tmp_path, trace_codec.encode(record.trace))
    assert len(costs) == 12, "a deviation and what is allowed, of three arguments in two draws"
    assert all(apart <= allowed for apart, allowed in zip(costs[::2], costs[1::2], strict=True))


def test_comparison_finds_changed_inputs(tools, tmp_path):
    mod = elementwise(lambda x: x + 1.0)
    store = "B[v_i] = A[v_i] + T.float32(1.0)"
    script = mod.script().replace(store, f"{store}\n                A[v_i] = T.float32(0.0)")
    script = script.replace("T.writes(B[v_i])", "T.writes(A[v_i], B[v_i])")
    assert compared(mod, tvm.script.from_source(script), tmp_path)[0] > 1e-4


def test_comparison_rewrites_the_layout_of_weights(tools, tmp_path):
    """A tuner measures with rewritten weights; the comparison rewrites them in the program."""
    mod = tools.matmul()
    sch = Schedule(mod)
    cache = sch.cache_read(sch.get_sblock("C"), 1, "global")
    sch.transform_layout(cache, ("write", 0), lambda i, j: (j // 4, i // 4, i % 4, j % 4))
    sch.annotate(cache, "meta_schedule.layout_rewrite_preproc", True)
    sch.enter_postproc()
    trace = trace_codec.encode(sch.trace)
    assert max(compared(mod, mod, tmp_path, trace)[::2]) <= 1e-6
    info = ms.arg_info.ArgInfo.from_entry_func(sch.mod)
    assert [list(one.as_json()[2]) for one in info][1] == [4, 4, 4, 4]
    (values,) = numerics.allocate(tvm.cpu(), [one.as_json() for one in info], 1, seed=0)
    made(mod, tvm.target.Target("llvm"), trace, keep_preproc=False)["main"](*values)


def test_comparison_of_integers_is_exact(tmp_path):
    one, two = (elementwise(lambda x, n=n: x + te.const(n, "int32"), "int32") for n in (1, 2))
    assert max(compared(one, one, tmp_path)) == 0.0
    assert max(compared(one, two, tmp_path)) == numerics.FARTHEST


@pytest.fixture
def theirs(tmp_path):
    """Another database, whose records come from a foreign source."""
    return tmp_path / "theirs.db"


def commit(path, tools, *records, mod=None):
    """Store records, each ``(run_secs, tile)`` or a schedule."""
    mod = mod or tools.matmul()
    with closing(Database(path, target=tools.llvm)) as database:
        workload = database.commit_workload(mod)
        for run_secs, what in records:
            if isinstance(what, Schedule):
                info = ms.arg_info.ArgInfo.from_prim_func(mod["main"])
                record = ms.database.TuningRecord(what.trace, workload, run_secs, tools.llvm, info)
            else:
                record = tools.record(mod, workload, run_secs, tile=what)
            database.commit_tuning_record(record)


def import_as_foreign(path, theirs, tools, *records, **fields):
    commit(theirs, tools, *records, **fields)
    with tunedb.open(theirs) as other, tunedb.open(path) as store:
        store.records.add([record.measurement for record in other.records.iterate()], FOREIGN)


def test_served_programs_lists_the_best_record_of_each_program(path, tools):
    one, two = [([n * 1e-3], (4, 4)) for n in (3, 2)], [([n * 1e-3], (2, 8)) for n in (4, 1, 5)]
    commit(path, tools, *one, *two)
    with tunedb.open(path) as store:
        assert [r.id for r in served_programs(store, [1], 1, 5)] == [4, 2]
        assert [r.id for r in served_programs(store, [1], 1, 1)] == [4]
        store.trust.retract([4], "no")
        assert [r.id for r in served_programs(store, [1], 1, 5)] == [2, 3]


def test_foreign_programs_lists_programs_that_no_other_source_has(path, theirs, tools):
    commit(path, tools, ([1e-3], (4, 4)))
    records = [([9e-4], (4, 4)), ([3e-3], (2, 8)), ([2e-3], (2, 8)), ([5e-3], (8, 2))]
    import_as_foreign(path, theirs, tools, *records)
    with tunedb.open(path) as store:
        found = foreign_programs(store, [1], 1, 5)
        assert [r.mean for r in found] == [2e-3, 5e-3]
        store.trust.retract([found[0].id], "no")
        assert [r.mean for r in foreign_programs(store, [1], 1, 5)] == [5e-3]


def test_retraction_by_a_stranger_hides_no_program_of_others(path, theirs, tools):
    import_as_foreign(path, theirs, tools, ([3e-3], (2, 8)), ([5e-3], (8, 2)))
    thief = ForeignSource("thief", SourceKind.FILE, "c" * 32)
    with tunedb.open(path) as store:
        same = replace(store.records.get(1).measurement, run_secs=(1e-3,), occurrence=9)
        word = Retraction(thief.digest, thief.store, "source", "hidden")
        taken = MergeBatch([thief], [same], [0], retractions=[word])
        assert store.exchange.merge(taken).retractions == 1
        assert store.records.get(3).retracted
        found = foreign_programs(store, [1], 1, 5)
        assert [r.mean for r in found] == [3e-3, 5e-3]
        # A retraction here counts: the program was found to be wrong.
        store.trust.retract([3], "wrong result")
        assert [r.mean for r in foreign_programs(store, [1], 1, 5)] == [5e-3]


class FakeRuns:
    """Replaces the processes; `outcomes_by_tile` has outcomes of programs by their first tile."""

    outcomes_by_tile: dict[tuple[int, ...], Any]
    reference = RunOutcome((0.0,), None)

    def __init__(self, **settings):
        self.settings = settings
        self.closed = False

    def close(self):
        self.closed = True

    def outcomes(self, jobs, target, run=None):
        return [self._one(json.loads(job.order), run) for job in jobs]

    def _one(self, order, run):
        if order["trace"] is None:
            return self.reference
        (_, tile), *_ = json.loads(order["trace"][2])[0]
        found = self.outcomes_by_tile.get(tuple(tile), RunOutcome((0.0, 1e-4), None))
        if isinstance(found, RunOutcome):
            return found if run is not None else RunOutcome((2e-3, 4e-3), None)
        return found[0] if run is not None else found[1]


@pytest.fixture
def runs(monkeypatch):
    kind = type("Runs", (FakeRuns,), {"outcomes_by_tile": {}})
    monkeypatch.setattr(revalidation, "BuildAndRun", kind)
    return kind


def revalidated(path, **fields):
    with tunedb.open(path) as store, Revalidation(store) as run:
        return run.run([1], 1, **fields)


def failed(kind):
    return RunOutcome((), Failure(kind, Phase.RUN, f"Traceback\nValueError: {kind}\n"))


def test_program_that_passes_is_stored_as_own_measurement(path, tools, runs):
    commit(path, tools, ([1e-3], (4, 4)))
    (verdict,) = revalidated(path)
    assert (verdict.outcome, verdict.record.id, verdict.mean) == ("passed", 1, 3e-3)
    assert (verdict.deviation, verdict.reason, verdict.retracted) == (0.0, None, ())
    with tunedb.open(path) as store:
        old, new = (store.records.get(n) for n in (1, 2))
        measured = new.measurement
        assert measured.program == old.measurement.program
        assert measured.origin is Origin.MEASURED
        assert measured.session.digest != old.measurement.session.digest
        assert json.loads(measured.extra)["revalidation"]["deviation"] == 0.0
        assert (new.source.name, new.source.trust) == ("revalidation", Trust.OWN)
        assert [r.id for r in store.records.top_k([1])] == [1, 2]


def test_program_with_wrong_results_is_retracted_and_no_longer_served(path, tools, runs, opened):
    runs.outcomes_by_tile[4, 4] = RunOutcome((0.0, 0.0, 3e-3, 1e-4), None)
    commit(path, tools, ([1e-3], (4, 4)), ([1.5e-3], (4, 4)), ([2e-3], (2, 8)))
    wrong, good = revalidated(path)
    assert (wrong.outcome, wrong.retracted, wrong.mean) == ("wrong", (1, 2), None)
    assert wrong.reason.startswith("wrong result: it deviates by 0.003")
    assert good.outcome == "passed"
    with tunedb.open(path) as store:
        failure = store.records.get(4).measurement
        assert (failure.status, failure.failure.kind) == (Status.FAILED, FailureKind.WRONG_RESULT)
        assert [r.id for r in store.records.top_k([1])] == [3, 5]
        assert store.records.get(1).retracted
    (again,) = revalidated(path)
    assert again.record.id == 3, "what is not served is not tried again"
    database = opened(path, target=tools.llvm)
    found = database.query_tuning_record(tools.matmul(), tools.llvm, "main")
    assert [float(v) for v in found.run_secs] == [2e-3]


@pytest.mark.parametrize("late", [False, True])
def test_program_that_fails_stays_served(path, tools, runs, late):
    """Another machine may run it; the failure is stored."""
    crash = failed(FailureKind.CRASH)
    runs.outcomes_by_tile[4, 4] = (RunOutcome((0.0, 0.0), None), crash) if late else crash
    commit(path, tools, ([1e-3], (4, 4)))
    (verdict,) = revalidated(path)
    found = (verdict.outcome, verdict.reason, verdict.retracted)
    assert found == ("failed", "ValueError: crash", ())
    with tunedb.open(path) as store:
        assert store.records.get(2).measurement.failure.kind is FailureKind.CRASH
        assert [r.id for r in store.records.top_k([1])] == [1]


def test_nothing_is_measured_if_the_untuned_program_fails(path, tools, runs):
    runs.reference = failed(FailureKind.TIMEOUT)
    commit(path, tools, ([1e-3], (4, 4)))
    (verdict,) = revalidated(path)
    assert verdict.outcome == "unchecked"
    assert verdict.reason == "the untuned program does not run: ValueError: timeout"
    with tunedb.open(path) as store:
        assert store.counts().measurements == 1


def test_foreign_programs_that_pass_are_served(path, theirs, tools, runs):
    runs.outcomes_by_tile[2, 8] = RunOutcome((numerics.FARTHEST, 0.0), None)
    runs.outcomes_by_tile[8, 2] = failed(FailureKind.CRASH)
    commit(path, tools, ([9e-3], (1, 16)))
    import_as_foreign(path, theirs, tools, ([1e-3], (4, 4)), ([2e-3], (2, 8)), ([3e-3], (8, 2)))
    verdicts = revalidated(path, foreign=True)
    assert [v.outcome for v in verdicts] == ["passed", "wrong", "failed"]
    assert "other integers, or NaN" in verdicts[1].reason
    with tunedb.open(path) as store:
        served = [(r.mean, r.source.trust) for r in store.records.top_k([1])]
        assert served == [(3e-3, Trust.VERIFIED), (9e-3, Trust.OWN)]
        digests = [store.records.get(n).measurement.program.digest for n in (2, 3, 4)]
        trusted = map(store.provenance.is_trusted_program, store.programs.ids(digests))
        assert list(trusted) == [True, False, False], "TVM never gets what did not pass"
        assert [store.records.get(n).retracted for n in (2, 3, 4)] == [False, True, False]
    # Verified and wrong programs are not tried again; failed ones are.
    assert [v.outcome for v in revalidated(path, foreign=True)] == ["failed"]


def test_revalidation_of_foreign_workload_needs_the_users_module(path, theirs, tools, runs):
    import_as_foreign(path, theirs, tools, ([1e-3], (4, 4)))
    with pytest.raises(NotFoundError, match="give it: tunedb revalidate --module"):
        revalidated(path, foreign=True)
    with tunedb.open(path) as store, Revalidation(store) as run:
        assert run.workloads_of(tools.matmul(), tools.llvm) == []
        (group,) = run.workloads_of(tools.matmul(), tools.llvm, foreign=True)
        (verdict,) = run.run(group, 1, foreign=True)
        assert verdict.outcome == "passed"
        assert store.records.best(group).source.trust is Trust.VERIFIED


def test_revalidation_never_replays_forbidden_foreign_program(path, theirs, tools, runs):
    sch = Schedule(tools.matmul())
    (loop, *_) = sch.get_loops(sch.get_sblock("C"))
    sch.annotate(loop, "pragma_import_llvm", "define void @main() { ret void }")
    sch.enter_postproc()
    commit(path, tools, ([9e-3], (1, 16)))
    import_as_foreign(path, theirs, tools, ([1e-3], sch), ([2e-3], (2, 8)))
    jobs = []
    seen = runs.outcomes
    runs.outcomes = lambda self, given, *rest: jobs.extend(given) or seen(self, given, *rest)
    refused, good = revalidated(path, foreign=True)
    assert (refused.outcome, good.outcome) == ("refused", "passed")
    assert refused.reason.startswith("not allowed: sketch: Annotate at 2: the annotation")
    assert jobs and not any("pragma_import" in job.order for job in jobs)
    with tunedb.open(path) as store:
        assert store.counts().measurements == 4, "nothing is stored of what was refused"
        assert [r.mean for r in store.records.top_k([1])] == [3e-3, 9e-3]


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ([["TENSOR", "float32", [10**6, 10**6]]], "1e+12 values"),
        ([["TENSOR", "float32x65535", [16, 16]]], "the types of its arguments differ"),
        ([["TENSOR", "float32", [-1]]], "the types of its arguments differ"),
        ([["TENSOR", "float32", [1.5]]], "the types of its arguments differ"),
        ([["SCALAR", "float32", []]], "the types of its arguments differ"),
        ([["TENSOR", "float32"]], "not a list of tensors"),
        (5, "not a list of tensors"),
    ],
)
def test_revalidation_rejects_too_large_or_invalid_foreign_arguments(
    path, theirs, tools, runs, described, message
):
    commit(path, tools, ([9e-3], (1, 16)))
    commit(theirs, tools, ([1e-3], (4, 4)))
    with tunedb.open(theirs) as other, tunedb.open(path) as store:
        (record,) = other.records.iterate()
        info = json.dumps(described, separators=(",", ":")).encode()
        store.records.add([replace(record.measurement, args_info=info)], FOREIGN)
    (verdict,) = revalidated(path, foreign=True)
    assert verdict.outcome == "refused"
    assert verdict.reason.startswith("not allowed: ")
    assert message in verdict.reason


def test_revalidation_rejects_invalid_requests(path, tools, runs):
    commit(path, tools, ([1e-3], (4, 4)))
    with tunedb.open(path) as store:
        with pytest.raises(UsageError, match="must be positive"):
            Revalidation(store, draws=0)
        with Revalidation(store) as run, pytest.raises(NotFoundError, match="no foreign program"):
            run.run([1], 1, foreign=True)


def test_programs_are_built_and_run_in_other_processes(path, tools, monkeypatch):
    # One process for all runners of the test.
    monkeypatch.setattr(local_runner, "PopenPoolExecutor", cache(local_runner.PopenPoolExecutor))
    mod = tools.matmul()
    commit(path, tools, ([1e-6], half(mod)), ([1e-3], (4, 4)))
    with tunedb.open(path) as store:
        record = store.records.get(2).measurement
        broken = record.program.trace.sketch.replace(b'"C"', b'"Z"')
        trace = type(record.program.trace)(broken, record.program.trace.tail, b"[[],[],[]]")
        program = type(record.program)(record.program.workload, record.program.target, trace)
        store.records.add([type(record)(program, (2e-3,))], Source("more"))
        with Revalidation(store, repeat=1, max_workers=1) as run:
            wrong, good, bad = run.run([1], 1)
    assert (wrong.record.id, wrong.outcome, wrong.retracted) == (1, "wrong", (1,))
    assert wrong.deviation > 1e-4
    assert good.outcome == "passed" and 0 < good.mean < 1
    assert good.deviation <= 1e-6
    assert (bad.outcome, bad.failure.phase) == ("failed", Phase.BUILD)

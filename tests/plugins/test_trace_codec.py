"""Traces built without a schedule, and what TVM does with those that share instructions."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import matmuls
import orjson
import pytest
import tvm
from effort import spread
from public_logs import MEASURED
from tvm import s_tir, te, tirx
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule import _ffi_api as ms_api
from tvm.s_tir.schedule import _ffi_api as api
from tvm.script import tirx as T
from tvm.tirx import IntImm

from tunedb.plugins.metaschedule import trace_codec
from tunedb.programs.metaschedule import trace as traces
from tunedb.records import Trace

TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 4})


@T.prim_func(s_tir=True)
def dynamic(a: T.handle) -> None:
    n = T.int32()
    A = T.match_buffer(a, (n, 16))
    for i, j in T.grid(n, 16):
        with T.sblock("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            A[vi, vj] = 1.0


MODULE = matmuls.matmul(64, post=lambda value: tirx.Max(value, tirx.const(0.0, "float32")))


def as_json(trace: Any) -> Any:
    return trace_codec.plain(api.TraceAsJSON(trace, False))


def applied(trace: Any, mod: Any, remove_postproc: bool = False) -> Any:
    sch = s_tir.Schedule(mod, debug_mask="none", error_render_level="none")
    trace.apply_to_schedule(sch, remove_postproc)
    return sch


def space_generator() -> Any:
    kinds = dict.fromkeys(("sch_rules", "postprocs", "mutator_probs"), "llvm")
    return ms.space_generator.PostOrderApply(**kinds)


@pytest.fixture(scope="module")
def schedules() -> list[Any]:
    """Schedules of a matmul from TVM's own rules, postprocessed as for measuring."""
    context = ms.TuneContext(
        mod=MODULE, target=TARGET, space_generator=space_generator(), rand_state=3, num_threads=1
    )
    found = context.generate_design_space()
    for sch in found:
        sch.enter_postproc()
        for proc in context.space_generator.postprocs:
            assert proc.apply(sch)
    return list(found)


def test_builder_shares_instructions_without_literals(schedules: list[Any]) -> None:
    builder = trace_codec.TraceBuilder()
    stored = trace_codec.encode(schedules[0].trace)
    first, second = builder.build(stored), builder.build(stored)
    shared = [a.same_as(b) for a, b in zip(first.insts, second.insts, strict=True)]
    literal = [
        any(type(value) in (int, float) or isinstance(value, IntImm) for value in inst.inputs)
        for inst in first.insts
    ]
    assert shared == [not has for has in literal]
    assert set(shared) == {True, False}


def test_changing_a_built_trace_does_not_change_another_one(schedules: list[Any]) -> None:
    builder = trace_codec.TraceBuilder()
    stored = trace_codec.encode(schedules[0].trace)
    first, second = builder.build(stored), builder.build(stored)
    sampling = next(inst for inst in first.insts if inst.kind.name == "SamplePerfectTile")
    changed = first.with_decision(sampling, [1, 1, 1, 64], remove_postproc=True)
    assert list(changed.decisions[sampling]) == [1, 1, 1, 64]
    simple = first.simplified(remove_postproc=True)
    assert len(simple.insts) < len(first.insts)
    applied(simple, MODULE)
    first.append(sampling)
    first.pop()
    while first.pop() is not None:
        pass
    assert len(first.insts) == 0
    assert len(first.decisions) == 0
    for trace in (second, builder.build(stored)):
        assert trace_codec.encode(trace) == stored
        tvm.ir.assert_structural_equal(applied(trace, MODULE).mod, schedules[0].mod)


def test_built_traces_have_decisions_and_literals_of_their_own(schedules: list[Any]) -> None:
    builder = trace_codec.TraceBuilder()
    stored = trace_codec.encode(schedules[0].trace)
    decisions, sketch_literals, tail_literals = orjson.loads(stored.decisions)
    changed = [
        [[i, v[::-1] if isinstance(v, list) else v] for i, v in decisions],
        [value + 1 for value in sketch_literals],
        [value + 1 for value in tail_literals],
    ]
    other = Trace(stored.sketch, stored.tail, orjson.dumps(changed))
    assert other != stored
    for trace in (stored, other, stored):
        assert trace_codec.encode(builder.build(trace)) == trace


def test_builder_bounds_its_caches_of_sketches_and_tails(schedules: list[Any]) -> None:
    builder = trace_codec.TraceBuilder(max_sketches=1, max_tails=2)
    stored = [trace_codec.encode(sch.trace) for sch in schedules]
    assert len({trace.sketch for trace in stored}) == len(stored) > 1
    for _ in range(3):
        for trace, sch in zip(stored, schedules, strict=True):
            built = builder.build(trace)
            # A tail that outlives its sketch would use variables that are not defined.
            tvm.ir.assert_structural_equal(applied(built, MODULE).mod, sch.mod)
    assert len(builder._sketches) == 1
    assert len(builder._tails) == 2


def test_builder_drops_the_least_recently_used_sketch_first() -> None:
    builder = trace_codec.TraceBuilder(max_sketches=2)
    first, second, third = (
        Trace(orjson.dumps([["GetSBlock", [], [name, "main"], ["b0"]]]), None, b"[[],[],[]]")
        for name in "ABC"
    )
    kept, dropped, _, _ = map(builder.build, (first, second, first, third))
    # Traces of a sketch that the builder has share its instructions.
    assert builder.build(first).insts[0].same_as(kept.insts[0])
    assert not builder.build(second).insts[0].same_as(dropped.insts[0])


def test_builder_works_in_several_threads(schedules: list[Any]) -> None:
    builder = trace_codec.TraceBuilder(max_sketches=1, max_tails=1)
    stored = [trace_codec.encode(sch.trace) for sch in schedules] * 50
    with ThreadPoolExecutor(4) as pool:
        built = list(pool.map(builder.build, stored))
    assert [trace_codec.encode(trace) for trace in built] == stored


def test_empty_output_of_dynamic_loop_survives_round_trip() -> None:
    sch = s_tir.Schedule(dynamic)
    loop, _ = sch.get_loops(sch.get_sblock("B"))
    sch.split(loop, sch.sample_perfect_tile(loop, n=2))
    stored = trace_codec.encode(sch.trace)
    assert b'["_","v' in stored.sketch
    assert list(traces.check_trace(list(traces.join_trace(stored)))) == as_json(sch.trace)
    built = trace_codec.TraceBuilder().build(stored)
    assert as_json(built) == as_json(trace_codec.replay(stored, dynamic))


SPLIT = ["Split", ["l1", {}], [1, 0], ["l2"]]
LOOPS = ["GetLoops", ["b0"], [], ["l1"]]
BLOCK = ["GetSBlock", [], ["C", "main"], ["b0"]]
TILE = ["SamplePerfectTile", ["l1"], [2, 64], ["v2", "v3"]]


def stored_of(instructions: list[Any], decisions: Any = None, literals: Any = None) -> Trace:
    parts = [decisions or [], literals or [], []]
    return Trace(orjson.dumps(instructions), None, orjson.dumps(parts))


@pytest.mark.parametrize(
    "stored",
    [
        stored_of([["System", [], [], []]]),
        stored_of([["SetAxisSeparator", ["b0"], [0, 0, []], []]]),
        stored_of([LOOPS]),
        stored_of([BLOCK, ["GetLoops", [], [], []]]),
        stored_of([BLOCK, ["Annotate", ["b0", "free text"], ["k"], []]]),
        stored_of([["GetSBlock", [], ["C"], ["b0"]]]),
        stored_of([[*BLOCK[:3], ["x0"]]]),
        stored_of([BLOCK[:3]]),
        stored_of([BLOCK, LOOPS, SPLIT]),
        stored_of([BLOCK, LOOPS, SPLIT], [], [4, 4]),
        stored_of([BLOCK, LOOPS, SPLIT], [], ["four"]),
        stored_of([BLOCK, LOOPS, SPLIT], [], [2**63]),
        stored_of([BLOCK, ["Annotate", ["b0", {}], ["k"], []]], [], [2**63]),
        stored_of([BLOCK, LOOPS, TILE], [[2, [2**63, 1]]]),
        stored_of([BLOCK, LOOPS, TILE], [[2, "text"]]),
        stored_of([BLOCK, LOOPS, TILE], [[2, [1.5, 2]]]),
        stored_of([BLOCK, LOOPS, TILE], [[9, [1, 2]]]),
        stored_of([BLOCK, LOOPS, TILE], [[-1, [1, 2]]]),
        stored_of([BLOCK, ["TransformBlockLayout", ["b0"], ["{}"], []]]),
        stored_of([BLOCK, ["TransformBlockLayout", ["b0"], ["not json"], []]]),
        stored_of([["SampleCategorical", [], [[1], ["text"]], ["v0"]]]),
        Trace(b"{", None, b"[[],[],[]]"),
        Trace(b"[]", b"[1]", b"[[],[],[]]"),
        Trace(b"[]", None, b"[]"),
        Trace(b"[]", None, b""),
    ],
)
def test_builder_rejects_unknown_and_invalid_instructions(stored: Trace) -> None:
    with pytest.raises(trace_codec.UnknownInstructionError):
        trace_codec.TraceBuilder().build(stored)


def test_builder_rejects_index_map_of_another_type() -> None:
    text = tvm.ir.save_json(tvm.ir.Range(0, 4))
    stored = stored_of([BLOCK, ["TransformBlockLayout", ["b0"], [text], []]])
    with pytest.raises(trace_codec.UnknownInstructionError, match=r"not an object of .*ir\.Range"):
        trace_codec.TraceBuilder().build(stored)


def test_replay_raises_unknown_instruction_error_for_invalid_traces() -> None:
    for stored in (
        stored_of([["System", [], [], []]]),
        stored_of([["GetSBlock", [], ["no such block", "main"], ["b0"]]]),
        Trace(b"{", None, b""),
    ):
        with pytest.raises(trace_codec.UnknownInstructionError):
            trace_codec.replay(stored, MODULE)


def _elementwise() -> Any:
    a = te.placeholder((512, 512), name="A")
    c = te.compute(a.shape, lambda i, j: a[i, j] + 1.0, name="C")
    d = te.compute(a.shape, lambda i, j: c[i, j] * 2.0, name="D")
    return tvm.IRModule({"main": te.create_prim_func([a, d])})


ELEMENTWISE = _elementwise()


def bound(sch: Any) -> None:
    """Apply steps with all kinds of decisions: threads, locations, vectors, tiles, unrolling."""
    first, second = sch.get_sblock("C"), sch.get_sblock("D")
    root = sch.get_sblock("root")
    i, j = sch.get_loops(second)
    threads = sch.sample_categorical([32, 64, 128, 256], [0.25] * 4, decision=1)
    outer, inner = sch.split(sch.fuse(i, j), [None, threads])
    sch.bind(outer, "blockIdx.x")
    sch.bind(inner, "threadIdx.x")
    k, _ = sch.get_loops(first)
    sch.split(k, sch.sample_perfect_tile(k, n=3))
    width = sch.sample_categorical([1, 2, 4], [0.5, 0.25, 0.25], decision=1)
    sch.annotate(first, "meta_schedule.cooperative_fetch", width)
    sch.sample_compute_location(first)
    step = sch.sample_categorical([0, 16, 64, 512], [0.25] * 4)
    sch.annotate(root, "meta_schedule.unroll_explicit", step)


def parallel(sch: Any) -> None:
    root = sch.get_sblock("root")
    sch.annotate(root, "meta_schedule.parallel", 16)
    sch.annotate(root, "meta_schedule.vectorize", 32)
    for name in ("C", "D"):
        sch.split(sch.get_loops(sch.get_sblock(name))[0], [2, 2, 8, 16])


MUTATORS = {
    "tile": (ms.mutator.MutateTileSize, bound),
    "thread": (ms.mutator.MutateThreadBinding, bound),
    "unroll": (ms.mutator.MutateUnroll, bound),
    "location": (ms.mutator.MutateComputeLocation, bound),
    "parallel": (lambda: ms.mutator.MutateParallel(max_jobs_per_core=16), parallel),
}


@pytest.mark.parametrize("name", MUTATORS)
def test_tvms_mutators_treat_built_traces_like_replayed_ones(name: str) -> None:
    make, steps = MUTATORS[name]
    space = ms.space_generator.PostOrderApply(
        sch_rules=[], postprocs=[], mutator_probs={make(): 1.0}
    )
    context = ms.TuneContext(mod=ELEMENTWISE, target=TARGET, space_generator=space)
    (mutator,) = context.space_generator.mutator_probs
    sch = s_tir.Schedule(ELEMENTWISE, seed=5)
    steps(sch)
    stored = trace_codec.encode(sch.trace)
    replayed = trace_codec.replay(stored, ELEMENTWISE)
    built = trace_codec.TraceBuilder().build(stored)
    results = set()
    for seed in range(1, 41):
        expected = ms_api.MutatorApply(mutator, replayed, seed)
        found = ms_api.MutatorApply(mutator, built, seed)
        assert (found is None) == (expected is None)
        if found is not None:
            assert as_json(found) == as_json(expected)
            results.add(trace_codec.encode(found))
    assert len(results - {stored}) > 1
    assert trace_codec.encode(built) == stored


def test_tvms_evolutionary_search_works_with_built_traces(schedules: list[Any]) -> None:
    """Candidates come from many threads that apply and mutate traces with shared instructions."""
    builder = trace_codec.TraceBuilder()
    stored = [trace_codec.encode(sch.trace) for sch in schedules]
    database = ms.database.MemoryDatabase()
    workload = database.commit_workload(MODULE)
    for position in range(24):
        trace, secs = builder.build(stored[position % len(stored)]), [1.0 + position]
        record = ms.database.TuningRecord(trace, workload, secs, TARGET, None)
        database.commit_tuning_record(record)
    strategy = ms.search_strategy.EvolutionarySearch(
        **{"population_size": 32, "init_measured_ratio": 0.75, "init_min_unmeasured": 4},
        **{"max_fail_count": 20, "genetic_num_iters": 2},
    )
    context = ms.TuneContext(
        **{"mod": MODULE, "target": TARGET, "space_generator": space_generator()},
        **{"search_strategy": strategy, "rand_state": 11, "num_threads": 4},
    )
    spaces = context.generate_design_space()
    strategy.pre_tuning(16, 16, spaces, database, ms.cost_model.RandomModel())
    candidates = strategy.generate_measure_candidates()
    strategy.post_tuning()
    assert candidates
    for candidate in candidates:
        again = trace_codec.encode(candidate.sch.trace)
        found = applied(builder.build(again), MODULE).mod
        tvm.ir.assert_structural_equal(found, candidate.sch.mod)
    for trace in stored:  # the search has not changed its traces
        assert trace_codec.encode(builder.build(trace)) == trace


@pytest.mark.parametrize(
    "path",
    spread(sorted(MEASURED.glob("*/database_tuning_record.json")), 4),
    ids=lambda path: path.parent.name,
)
def test_built_traces_of_real_records_equal_replayed_ones(path: Path) -> None:
    line = path.with_name("database_workload.json").read_bytes().splitlines()[0]
    mod = ms.database.Workload.from_json(orjson.loads(line)).mod
    lines = path.read_bytes().splitlines()
    builder = trace_codec.TraceBuilder()
    stored = [traces.split_trace(*traces.check_trace(orjson.loads(text)[1][0])) for text in lines]
    for trace in stored:
        assert trace_codec.encode(builder.build(trace)) == trace
    for trace in stored[:: len(stored) // 3]:
        replayed, built = trace_codec.replay(trace, mod), builder.build(trace)
        assert as_json(built) == as_json(replayed)
        assert trace_codec.encode(replayed) == trace
        tvm.ir.assert_structural_equal(applied(built, mod).mod, applied(replayed, mod).mod)

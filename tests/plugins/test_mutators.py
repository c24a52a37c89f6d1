"""The search operators on real traces, compared with TVM's own mutators."""

from __future__ import annotations

import random
from functools import cache
from itertools import accumulate

import numpy as np
import pytest
import te_programs
import tvm
import tvm_ffi
from effort import long
from tvm import IRModule, te, topi
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule import _ffi_api
from tvm.s_tir.meta_schedule.testing import te_workload

from tunedb.errors import PluginError, UsageError
from tunedb.plugins.metaschedule import Database
from tunedb.plugins.metaschedule.search import mutators, schedule_queries
from tunedb.plugins.metaschedule.search.schedule_queries import from_tvm, replayed, to_tvm
from tunedb.plugins.metaschedule.trace_codec import TraceBuilder
from tunedb.search.crossover import cross
from tunedb.search.draft import Draft, Instruction
from tunedb.search.operators import (
    OPERATORS,
    Operators,
    mutate_compute_location,
    mutate_parallel,
    mutate_tile_size,
    mutate_unroll,
    tile_moves,
)

BUILDER = TraceBuilder()


pytestmark = pytest.mark.usefixtures("intrinsics")


# ---- small workloads -----------------------------------------------------------------------------


def _conv_relu():
    data, weight, conv = te_workload.conv2d_nhwc(1, 8, 8, 4, 8, 3, 1, 1)
    return data, weight, topi.nn.relu(conv)


def _softmax():
    data = te.placeholder((8, 32), name="A")
    return data, topi.nn.softmax(data, axis=1)


def _dense_add():
    a, w = te.placeholder((8, 16), name="A"), te.placeholder((24, 16), name="W")
    bias = te.placeholder((24,), name="bias")
    return a, w, bias, topi.add(topi.nn.dense(a, w), bias)


WORKLOADS = {
    "matmul-relu": lambda: te_workload.matmul_relu(12, 16, 8),
    "conv-relu": _conv_relu,
    "softmax": _softmax,
    "dense-add": _dense_add,
}

PAIRS = pytest.mark.parametrize(
    ("name", "kind"),
    [("matmul-relu", "cuda"), ("conv-relu", "llvm"), ("softmax", "llvm"), ("softmax", "cuda")],
)


@cache
def module(name):
    return IRModule({"main": te.create_prim_func(list(WORKLOADS[name]()))})


@cache
def context(name, kind):
    return te_programs.context(module(name), kind)


@cache
def traces(name, kind, count=24):
    """Return random traces of a workload, of all its sketches."""
    made = te_programs.context(module(name), kind, seed=7)
    made.pre_tuning(count, count, made.generate_design_space())
    found = [one.sch.trace for one in made.generate_measure_candidates() or []]
    made.post_tuning()
    assert len(found) > count // 2
    return found


def drafts(name, kind):
    return [from_tvm(trace) for trace in traces(name, kind)]


def decided(trace):
    return dict(from_tvm(trace).decisions)


def scheduled(name, kind, trace):
    """Return the module of a trace with its post-processing; None if that rejects it."""
    schedule = replayed(trace, module(name))
    schedule.enter_postproc()
    accepted = all(one.apply(schedule) for one in context(name, kind).space_generator.postprocs)
    return schedule.mod if accepted else None


def of_tvm(kind, which, name):
    """Return one of TVM's own mutators, initialised."""
    found = {type(one).__name__: one for one in ms.mutator.Mutator.create(kind)}[f"Mutate{which}"]
    found._initialize_with_tune_context(context(name, kind))
    return found


def neighbours(mutator, trace, times):
    """Return what a mutator makes of a trace."""
    found = [_ffi_api.MutatorApply(mutator, trace, seed) for seed in range(1, 7919 * times, 7919)]
    return [one for one in found if one is not None]


def ours(mutator, name, kind):
    mutator._initialize_with_tune_context(context(name, kind))
    return mutator


# ---- traces as drafts ----------------------------------------------------------------------------


@PAIRS
def test_draft_survives_round_trip_without_postprocessing(name, kind):
    for trace in traces(name, kind)[:4]:
        draft = from_tvm(trace)
        back = to_tvm(draft, BUILDER)
        assert from_tvm(back) == draft
        assert tvm_ffi.structural_equal(scheduled(name, kind, trace), scheduled(name, kind, back))


# ---- queries of schedules ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["conv-relu", "softmax"])
def test_locations_returns_exactly_those_that_tvm_keeps(name):
    """TVM replaces illegal decisions; it keeps each of the returned locations and no other one."""
    for trace in traces(name, "llvm")[:4]:
        draft = from_tvm(trace)
        found = schedule_queries.locations(trace, module(name))
        kinds = [one.kind for one in draft.instructions]
        assert list(found) == [n for n, one in enumerate(kinds) if one == "SampleComputeLocation"]
        number = max(found, key=lambda one: len(found[one]))
        for place in range(-2, 12):
            made = to_tvm(draft.with_decision(number, place), BUILDER)
            kept = decided(replayed(made, module(name)).trace)[number]
            assert (kept == place) == (place in found[number])


def test_locations_with_a_seed_draws_any_other_legal_location():
    trace = traces("softmax", "llvm")[1]
    legal, now = schedule_queries.locations(trace, module("softmax")), decided(trace)
    drawn = set()
    for seed in range(80):
        found = schedule_queries.locations(trace, module("softmax"), seed=seed)
        assert len(found) <= 1
        drawn |= {(number, *places) for number, places in found.items()}
    others = {(number, place) for number in legal for place in legal[number]}
    assert drawn == others - {(number, now[number]) for number in legal}


def test_queries_of_trace_without_compute_locations_and_parallel_annotation_are_empty():
    trace, mod = traces("matmul-relu", "cuda")[0], module("matmul-relu")
    assert schedule_queries.locations(trace, mod) == {}
    assert schedule_queries.locations(trace, mod, seed=1) == {}
    assert schedule_queries.extents(trace, mod) == {}


def test_extents_returns_unbound_outer_loops_of_each_block():
    mod, query = module("dense-add"), schedule_queries.extents
    schedule = Schedule(mod)
    rows, columns, reduced = schedule.get_loops(schedule.get_sblock("T_matmul_NT"))
    outer, inner = schedule.split(rows, [2, 4])
    schedule.reorder(outer, columns, reduced, inner)
    schedule.annotate(schedule.get_sblock("root"), "meta_schedule.parallel", 64)
    variable = from_tvm(schedule.trace).instructions[-1].inputs[0]
    assert query(schedule.trace, mod) == {variable: [[2, 24], [8, 24]]}
    schedule.bind(outer, "blockIdx.x")
    assert query(schedule.trace, mod) == {variable: [[], [8, 24]]}
    # They end where a loop has several statements.
    schedule = Schedule(mod)
    dense, add = schedule.get_sblock("T_matmul_NT"), schedule.get_sblock("T_add")
    schedule.compute_at(dense, schedule.get_loops(add)[0])
    schedule.annotate(schedule.get_sblock("root"), "meta_schedule.parallel", 64)
    assert list(query(schedule.trace, mod).values()) == [[[8], [8]]]


def test_most_parallel_is_16_per_core_and_none_for_gpus():
    most = schedule_queries.most_parallel
    assert most(tvm.target.Target({"kind": "llvm", "num-cores": 3})) == 48
    assert most(tvm.target.Target({"kind": "cuda", "arch": "sm_60"})) is None


# ---- comparison with TVM's mutators --------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llvm", "cuda"])
def test_mutate_tile_size_reaches_tiles_of_tvms_mutator(kind):
    trace = traces("matmul-relu", kind)[0]
    draft = from_tvm(trace)
    moves = {n: tile_moves(draft.instructions[n], tile) for n, tile in draft.tiles.items()}
    reached = {(number, tuple(move)) for number in moves for move in moves[number]}

    def changed(decisions):
        return {
            (number, tuple(value) if isinstance(value, list) else value)
            for number, value in decisions.items()
            if value != draft.decisions[number]
        }

    made = neighbours(of_tvm(kind, "TileSize", "matmul-relu"), trace, 800)
    theirs = set().union(*(changed(decided(one)) for one in made))
    made = [mutate_tile_size(draft, random.Random(seed)) for seed in range(800)]
    assert {one for one in theirs if isinstance(one[1], tuple)} == reached
    assert set().union(*(changed(one.decisions) for one in made)) == theirs


def test_mutate_unroll_reaches_steps_of_tvms_mutator():
    trace = traces("softmax", "llvm")[0]
    draft = from_tvm(trace)
    theirs = {from_tvm(one) for one in neighbours(of_tvm("llvm", "Unroll", "softmax"), trace, 40)}
    assert {mutate_unroll(draft, random.Random(seed)) for seed in range(40)} == theirs
    assert len(theirs) == 3


def test_mutate_parallel_reaches_programs_of_tvms_mutator():
    """Some bounds of both do not change the program, because TVM vectorizes before it fuses."""
    name = "softmax"
    trace = traces(name, "llvm")[2]
    draft, mod = from_tvm(trace), module(name)
    extents = schedule_queries.extents(trace, mod)

    def programs(made):
        found = [scheduled(name, "llvm", to_tvm(one, BUILDER)) for one in set(made)]
        return {tvm_ffi.structural_hash(one) for one in found}

    mutator = of_tvm("llvm", "Parallel", name)
    theirs = programs(from_tvm(one) for one in neighbours(mutator, trace, 30))
    rngs = map(random.Random, range(60))
    mine = programs(mutate_parallel(draft, rng, extents, most=64) for rng in rngs)
    assert theirs - mine <= programs([draft])
    assert mine - programs([draft])


def test_mutate_parallel_makes_another_program_with_each_bound():
    """If nothing is vectorized, TVM fuses loops until their product exceeds the bound."""
    a = te.placeholder((2, 8, 4, 3), name="A")
    b = te.compute((2, 8, 4, 3), lambda *i: a(*i) + 1.0, name="B")
    mod = IRModule({"main": te.create_prim_func([a, b])})
    schedule = Schedule(mod)
    schedule.annotate(schedule.get_sblock("root"), "meta_schedule.parallel", 1)
    draft = from_tvm(schedule.trace)
    extents = schedule_queries.extents(schedule.trace, mod)
    lengths = {}
    for made in {draft, *(mutate_parallel(draft, random.Random(n), extents) for n in range(40))}:
        found = replayed(to_tvm(made, BUILDER), mod)
        assert ms.postproc.RewriteParallelVectorizeUnroll().apply(found)
        (block,) = found.get_child_blocks(found.get_sblock("root"))
        loop = found.get(found.get_loops(block)[0])
        assert loop.kind == tvm.tirx.ForKind.PARALLEL
        lengths[made.instructions[-1].inputs[1]] = int(loop.extent)
    assert lengths == {1: 2, 2: 16, 16: 64, 64: 192}


def test_mutate_parallel_reaches_thread_extents_of_tvms_mutator():
    mutator = of_tvm("cuda", "ThreadBinding", "softmax")
    trace = next(one for one in traces("softmax", "cuda") if neighbours(mutator, one, 4))
    draft = from_tvm(trace)
    theirs = {from_tvm(one) for one in neighbours(mutator, trace, 150)}
    mine = {mutate_parallel(draft, random.Random(seed), {}) for seed in range(300)}
    assert theirs <= mine


# ---- offspring -----------------------------------------------------------------------------------


def mutated(draft, name, rng):
    """Return an offspring of each operator that finds something to change."""
    trace, mod = to_tvm(draft, BUILDER), module(name)
    seed = rng.randint(1, 2**30)
    made = [
        mutate_tile_size(draft, rng),
        mutate_unroll(draft, rng),
        mutate_parallel(draft, rng, schedule_queries.extents(trace, mod), most=64),
        mutate_compute_location(draft, rng, schedule_queries.locations(trace, mod, seed=seed)),
    ]
    return [one for one in made if one is not None]


@PAIRS
def test_mutated_programs_replay(name, kind):
    rng = random.Random(3)
    for draft in drafts(name, kind)[:6]:
        for child in mutated(draft, name, rng):
            back = replayed(to_tvm(child, BUILDER), module(name)).trace
            differing = {n for n, v in decided(back).items() if v != child.decisions[n]}
            # TVM moves a block to the next location if the chosen one is no longer legal.
            kinds = {child.instructions[number].kind for number in differing}
            assert kinds <= {"SampleComputeLocation"}


def crossed(name, kind, pairs, seed=11):
    """Return legal offspring of random pairs, and how many are illegal or cannot be joined."""
    rng = random.Random(seed)
    population = drafts(name, kind)
    legal, illegal, apart = [], 0, 0
    for _ in range(pairs):
        child = cross(*rng.sample(population, 2), rng)
        if child is None:
            apart += 1
            continue
        trace = to_tvm(child, BUILDER)
        try:
            schedule = replayed(trace, module(name))
        except Exception:
            illegal += 1
            continue
        # The steps that were replayed are those of the child.
        steps = from_tvm(schedule.trace).instructions
        assert [one.kind for one in steps] == [one.kind for one in child.instructions]
        legal.append(trace)
    return legal, illegal, apart


@pytest.mark.parametrize("pairs", [30, long(200)])
@PAIRS
def test_crossed_programs_replay(name, kind, pairs):
    legal, illegal, apart = crossed(name, kind, pairs)
    # Not every pair of parents agrees which reductions are fused into consumers on a GPU.
    assert illegal <= (pairs / 2 if (name, kind) == ("softmax", "cuda") else 0)
    assert apart <= pairs / 2
    assert len(legal) >= 0.4 * pairs


def run(mod, inputs):
    target = te_programs.KINDS["llvm"][0] | {"mcpu": "x86-64-v2", "opt-level": 0}
    built = tvm.compile(mod, target=target)
    arrays = [tvm.runtime.tensor(one) for one in inputs]
    built["main"](*arrays)
    return arrays[-1].numpy()


@pytest.mark.parametrize("name", ["matmul-relu", "softmax", long("conv-relu")])
def test_mutated_and_crossed_programs_compute_the_same_as_the_module(name):
    rng = random.Random(5)
    parent = drafts(name, "llvm")[3]
    legal, _, _ = crossed(name, "llvm", 12)
    made = [to_tvm(one, BUILDER) for one in mutated(parent, name, rng)] + legal[:3]
    shapes = [[int(n) for n in tensor.shape] for tensor in WORKLOADS[name]()]
    numbers = np.random.default_rng(1)
    inputs = [numbers.standard_normal(shape).astype("float32") for shape in shapes]
    expected = run(module(name), inputs)
    for trace in made:
        mod = scheduled(name, "llvm", trace)
        np.testing.assert_allclose(run(mod, inputs), expected, rtol=1e-4, atol=1e-5)


# ---- operators as TVM's mutators -----------------------------------------------------------------


def test_each_operator_mutator_changes_only_its_kind_of_instruction():
    trace = traces("conv-relu", "llvm")[0]
    draft = from_tvm(trace)
    kinds = {
        "tile_size": "SamplePerfectTile",
        "unroll": "SampleCategorical",
        "compute_location": "SampleComputeLocation",
    }
    for operator, kind in kinds.items():
        mutator = ours(mutators.OperatorMutator(operator), "conv-relu", "llvm")
        for made in neighbours(mutator, trace, 5):
            new = from_tvm(made).decisions
            differing = {number for number in new if new[number] != draft.decisions[number]}
            assert [draft.instructions[number].kind for number in differing] == [kind]
        assert mutator.counts.made >= 4
    parallel = ours(mutators.OperatorMutator("parallel"), "conv-relu", "llvm")
    for made in neighbours(parallel, trace, 5):
        new = from_tvm(made)
        assert (new.decisions, new.skeleton) == (draft.decisions, draft.skeleton)
        assert new != draft


def test_equal_seeds_make_equal_offspring():
    trace = traces("softmax", "llvm")[0]
    for operator in ("tile_size", "compute_location"):
        pair = [ours(mutators.OperatorMutator(operator), "softmax", "llvm") for _ in range(2)]
        first, second = (neighbours(mutator, trace, 6) for mutator in pair)
        assert list(map(from_tvm, first)) == list(map(from_tvm, second))


def test_tile_size_mutator_weighs_moves_by_prior():
    class Prior:
        def cumulated(self, candidates, place=None):
            return [*accumulate(float(one[0] == 1) or 1e-9 for one in candidates)]

    trace = traces("matmul-relu", "llvm")[0]
    draft = from_tvm(trace)
    mutator = ours(mutators.OperatorMutator("tile_size", prior=Prior()), "matmul-relu", "llvm")
    for made in neighbours(mutator, trace, 20):
        for number, tile in from_tvm(made).tiles.items():
            moves = tile_moves(draft.instructions[number], draft.tiles[number])
            if tile != draft.tiles[number] and any(move[0] == 1 for move in moves):
                assert tile[0] == 1


def test_crossover_mutator_joins_traces_that_it_met_before():
    mutator = ours(mutators.OperatorMutator("crossover"), "softmax", "llvm")
    first, second, *_ = traces("softmax", "llvm")
    assert (neighbours(mutator, first, 1), mutator.counts.unchanged) == ([], 1)
    made = neighbours(mutator, second, 10)
    parents = {from_tvm(first), from_tvm(second)}
    assert made
    assert not parents & set(map(from_tvm, made))


def test_crossover_mutator_joins_stored_programs(tools, sqlite_file):
    """Its first program already has a partner."""
    mod, target = module("softmax"), context("softmax", "llvm").target
    database = Database(str(sqlite_file), target=target)
    workload = database.commit_workload(mod)
    args = ms.arg_info.ArgInfo.from_prim_func(mod["main"])
    stored = traces("softmax", "llvm")[:3]
    for number, trace in enumerate(stored):
        record = ms.database.TuningRecord(trace, workload, [1e-3 + number], target, args)
        database.commit_tuning_record(record)
    mutator = ours(mutators.OperatorMutator("crossover", database=database), "softmax", "llvm")
    assert neighbours(mutator, traces("softmax", "llvm")[5], 5)
    other = ours(mutators.OperatorMutator("crossover", database=database), "conv-relu", "llvm")
    assert neighbours(other, traces("conv-relu", "llvm")[5], 5) == []


def test_illegal_offspring_are_dropped_and_counted():
    mutator = ours(mutators.OperatorMutator("crossover"), "softmax", "cuda")
    tried = traces("softmax", "cuda") * 3
    made = [child for trace in tried for child in neighbours(mutator, trace, 1)]
    counts = mutator.counts
    assert counts.made == len(made) > 20
    assert counts.illegal > 0
    assert counts.made + counts.illegal + counts.unchanged == len(tried)
    for trace in made:
        replayed(trace, module("softmax"))
    # Moving a block replays the trace, which fails for another workload.
    mutator = ours(mutators.OperatorMutator("compute_location"), "conv-relu", "llvm")
    assert neighbours(mutator, traces("softmax", "llvm")[0], 3) == []
    assert mutator.counts.illegal == 3


def test_mutators_count_an_empty_trace_as_unchanged():
    empty = Schedule(module("conv-relu")).trace
    for operator in OPERATORS:
        mutator = ours(mutators.OperatorMutator(operator.name), "conv-relu", "llvm")
        assert (neighbours(mutator, empty, 2), mutator.counts.unchanged) == ([], 2)


def test_mutator_and_replayer_do_not_change_the_module():
    mod = IRModule({"main": te.create_prim_func(list(_softmax()))})
    before = tvm_ffi.structural_hash(mod)
    mutator = mutators.OperatorMutator("parallel")
    mutator._initialize_with_tune_context(ms.TuneContext(mod, target=te_programs.KINDS["llvm"][0]))
    schedule = Schedule(IRModule({"main": te.create_prim_func(list(_softmax()))}))
    schedule.annotate(schedule.get_sblock("root"), "meta_schedule.parallel", 2)
    schedule.split(schedule.get_loops(schedule.get_sblock("T_softmax_expsum"))[1], [4, 8])
    assert mutator.apply(schedule.trace) is not None
    assert tvm_ffi.structural_hash(mod) == before
    del mutator
    replayer = schedule_queries.DraftReplayer(mod, (), threads=1, seed=1)
    (made,) = replayer.schedules([from_tvm(schedule.trace)])
    assert tvm_ffi.structural_equal(made.mod, schedule.mod)
    assert tvm_ffi.structural_hash(mod) == before


# ---- mutators of a target ------------------------------------------------------------------------


def test_mutators_have_operators_and_shares_of_the_target():
    shares = {one.name: share for one, share in mutators.mutators("llvm").items()}
    assert shares == Operators.for_target("llvm").probabilities()
    names = {one.name for one in mutators.mutators({"kind": "cuda", "arch": "sm_60"})}
    assert "compute_location" not in names
    only = mutators.mutators("llvm", operators=Operators({"crossover": 2}))
    assert {one.name: share for one, share in only.items()} == {"crossover": 1}


def test_unknown_operator_or_instruction_and_database_of_tvm_are_rejected():
    with pytest.raises(UsageError, match="no search operator 'fuse'; there are tile_size, "):
        mutators.OperatorMutator("fuse")
    with pytest.raises(PluginError, match="MemoryDatabase"):
        mutators.OperatorMutator("crossover", database=ms.database.MemoryDatabase())
    with pytest.raises(PluginError):
        to_tvm(Draft((Instruction("NoSuchThing", (), (), ()),), {}), BUILDER)


def test_tvms_evolutionary_search_uses_the_mutators(sqlite_file):
    """The search has two threads and two rounds."""
    target = tvm.target.Target(te_programs.KINDS["llvm"][0])
    names = ("tile_size", "parallel", "unroll", "compute_location", "crossover")
    weights = Operators({name: 1 + (name == "crossover") for name in names})
    database = Database(str(sqlite_file), target=target)
    probabilities = mutators.mutators(target, database, operators=weights)
    postprocs = list(context("softmax", "llvm").space_generator.postprocs)
    space = ms.space_generator.PostOrderApply(
        sch_rules="llvm", postprocs=postprocs, mutator_probs=probabilities
    )
    search = ms.search_strategy.EvolutionarySearch(
        population_size=24, init_min_unmeasured=12, genetic_num_iters=2
    )
    tuning = ms.TuneContext(
        **{"mod": module("softmax"), "target": target, "space_generator": space},
        **{"search_strategy": search, "num_threads": 2, "rand_state": 5},
    )
    tuning.pre_tuning(16, 8, tuning.generate_design_space(), database, ms.cost_model.RandomModel())
    batch = tuning.generate_measure_candidates()
    tuning.post_tuning()
    assert len(batch) == 8
    used = {one.name: one.counts.made for one in probabilities}
    assert used["tile_size"] + used["unroll"] > 0
    assert used["crossover"] > 0

from __future__ import annotations

import gc
import weakref
from collections import Counter

import matmuls
import numpy as np
import pytest
import te_programs
import tvm
from effort import long
from fake_measuring import FakeBuilder, FakeRunner, hash_of, seeded_model
from tvm import te
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.runner import RunnerResult
from tvm.s_tir.meta_schedule.testing import te_workload

from tunedb.errors import PluginError, UsageError
from tunedb.models.recipe import Recipe
from tunedb.plugins.metaschedule import CostModel, Database, MeasureCallback
from tunedb.plugins.metaschedule.database.candidates import Lineage
from tunedb.plugins.metaschedule.measure.measured import Known
from tunedb.plugins.metaschedule.search import task_search
from tunedb.plugins.metaschedule.search.schedule_queries import DraftReplayer, from_tvm
from tunedb.plugins.metaschedule.search.search_report import OperatorCounts, TaskReport
from tunedb.plugins.metaschedule.search.strategy import EvolutionarySearch, Shares
from tunedb.plugins.metaschedule.workers.replay import Replayer
from tunedb.records import Origin
from tunedb.search.draft import Draft
from tunedb.search.operators import OPERATORS, Operators

SMALL = {"population_size": 16, "generations": 2}
GPU = te_programs.KINDS["cuda"][0]
NAMES = [operator.name for operator in OPERATORS]


def seconds_of(mod):
    """Return a time that depends on the program: loops make it longer, vectors shorter."""
    text = str(mod.script())
    loops = 2 + text.count("T.grid") + text.count("for ")
    return 1e-4 * (loops + len(text) % 97 / 97) / (1 + text.count("vectorized"))


def tune(database, mod, target, tmp_path, *, trials=16, cost_model=None, **options):
    """Tune without building or running; return the strategy and hashes of what it built."""
    search, builder = EvolutionarySearch(database, **SMALL | options), FakeBuilder()
    made = ms.measure_callback
    callbacks = [MeasureCallback(database), made.RemoveBuildArtifact(), made.UpdateCostModel()]
    ms.tune_tir(
        *(mod, target, str(tmp_path), trials),
        **{"cost_model": cost_model or seeded_model(), "seed": 1, "num_tuning_cores": 1},
        **{"num_trials_per_iter": 8, "builder": builder, "runner": FakeRunner()},
        **{"database": database, "measure_callbacks": callbacks, "strategy": search},
    )
    return search, builder.built


@derived_object
class _Scores(ms.cost_model.PyCostModel):
    """Scores programs, by default by :func:`seconds_of`."""

    def __init__(self, score=lambda _number, mod: 1e-4 / seconds_of(mod)):
        super().__init__()
        self.score = score

    def load(self, path):
        pass

    def save(self, path):
        pass

    def update(self, context, candidates, results):
        pass

    def predict(self, context, candidates):
        return np.array([self.score(n, one.sch.mod) for n, one in enumerate(candidates)])


class Task:
    """The search of one task without TVM's scheduler: generates, and answers with `seconds_of`."""

    def __init__(
        self, database, mod, target, *, trials=16, batch=8, model=None, space=None, **options
    ):
        self.search = EvolutionarySearch(database, **SMALL | options)
        space = space or ms.space_generator.PostOrderApply()
        self.context = ms.TuneContext(
            **{"mod": mod, "target": target, "space_generator": space, "num_threads": 1},
            **{"search_strategy": self.search.clone(), "rand_state": 1},
        )
        self.context.pre_tuning(trials, batch, None, database, model or _Scores())

    def batch(self):
        found = self.context.generate_measure_candidates()
        if found is not None:
            results = [RunnerResult([seconds_of(one.sch.mod)], None) for one in found]
            self.context.notify_runner_results(found, results)
        return found

    def batches(self):
        return list(iter(self.batch, None))


@pytest.fixture
def database(opened):
    return opened(":memory:", target=matmuls.llvm)


@pytest.fixture
def start(database):
    """A function that begins the search of a matrix product on a processor."""
    return lambda n=32, **options: Task(database, matmuls.matmul(n), matmuls.llvm, **options)


def hashes(candidates):
    return [hash_of(one.sch.mod) for one in candidates]


def lineages(database, candidates):
    return [database._handle.candidates.lineage_of(one.sch.trace) for one in candidates]


def origins(database, candidates):
    return [lineage.origin for lineage in lineages(database, candidates)]


def digests(database):
    return {one.measurement.program.digest for one in database.store.records.iterate()}


def replayed(database):
    """Return the hashes of the modules that stored programs replay to."""
    replayer, programs = Replayer(database.store), database.store.programs
    stored = [one.measurement.program.digest for one in database.store.records.iterate()]
    return [hash_of(replayer.module(program)) for program in programs.get(programs.ids(stored))]


# ---- whole runs ----------------------------------------------------------------------------------


def test_run_stores_where_each_candidate_came_from(tools, tmp_path, database):
    model = CostModel(database, recipe=Recipe(rounds=20))
    chosen = {"cost_model": model, "shares": Shares(0.5, 0.0, 0.5)}
    search, built = tune(database, tools.matmul(32), tools.llvm, tmp_path, trials=24, **chosen)
    assert len(set(built)) == len(built) == 24
    records = list(database.store.records.iterate())
    assert [one.measurement.is_valid for one in records] == [True] * 24
    (report,) = search.report().values()
    stored = Counter(one.measurement.origin.value for one in records)
    assert stored == report["proposals"]
    assert stored.keys() <= {"random", "mutated", "crossed"}
    assert stored["mutated"] > 0
    # Operators are stored beside the origin, and donors are programs of the run.
    donors = [one.measurement.donor for one in records if one.measurement.donor is not None]
    assert donors
    assert digests(database).issuperset(donors)
    for one in records:
        needs_operators = one.measurement.origin in (Origin.MUTATED, Origin.CROSSED)
        assert (one.measurement.extra is not None) == needs_operators
    best = min(records, key=lambda one: one.mean)
    assert report["best"] == best.measurement.program.digest.hex()
    assert report["best_seconds"] == best.mean
    assert report["descent"][0]["origin"] == best.measurement.origin.value
    # The stored programs replay to the modules that were built.
    assert replayed(database) == built


def test_each_task_of_a_run_has_a_search_of_its_own(tools, tmp_path, database):
    functions = {f"matmul{n}": tools.matmul(n)["main"] for n in (32, 48)}
    mod = tvm.IRModule({k: f.with_attr("global_symbol", k) for k, f in functions.items()})
    search, _ = tune(database, mod, tools.llvm, tmp_path, trials=16)
    report = search.report()
    assert set(report) == {"matmul32", "matmul48"}
    counted = Counter(one.workload_id for one in database.store.records.iterate())
    assert sorted(counted.values()) == sorted(one["trials"] for one in report.values())
    assert min(counted.values()) >= 4


@pytest.fixture(scope="module")
def measured(tools, tmp_path_factory):
    """A database with 24 programs of a matrix product; nothing is added to it."""
    with Database(":memory:", target=tools.llvm) as database:
        work_dir = tmp_path_factory.mktemp("measured")
        tune(database, tools.matmul(32), tools.llvm, work_dir, trials=24)
        yield database


@pytest.mark.parametrize("remeasure", [False, True])
def test_first_batch_proposes_best_known_program_or_more_with_remeasure(remeasure, tools, measured):
    built = replayed(measured)
    known = Known(measured._handle, remeasure=remeasure)
    options = {"shares": Shares(0.5, 0.0, 0.5), "generations": 0, "warm": False}
    task = Task(measured, tools.matmul(32), tools.llvm, known=known, batch=16, **options)
    first = task.batch()
    again = [one for one in first if hash_of(one.sch.mod) in built]
    assert len(again) == (8 if remeasure else 1)
    assert set(origins(measured, again)) == {Origin.MEASURED}
    assert remeasure or again[0].same_as(first[0])


# ---- the first batch -----------------------------------------------------------------------------


def test_first_batch_of_new_workload_has_programs_of_neighbours(tools, measured):
    task = Task(measured, tools.matmul(64), tools.llvm, batch=12)
    first = task.batch()
    warm = [found for found in lineages(measured, first) if found.origin is Origin.WARM]
    assert len(warm) >= 5
    for found in warm:
        assert found.donor in digests(measured)
        assert found.operators == ()
    (report,) = task.search.report().values()
    assert report["offspring"]["warm"] > 0
    cold = Task(measured, tools.matmul(64), tools.llvm, batch=12, warm=False)
    assert Origin.WARM not in origins(measured, cold.batch())


def test_descendants_of_programs_of_neighbours_name_their_donor(tools, measured):
    options = {"shares": Shares(0.0, 1.0, 0.0), "batch": 12, "population_size": 8}
    task = Task(measured, tools.matmul(64), tools.llvm, **options)
    found = lineages(measured, task.batch())
    bred = [one for one in found if one.origin in (Origin.MUTATED, Origin.CROSSED)]
    assert bred
    assert {one.donor for one in bred} & digests(measured)


@pytest.mark.parametrize(
    ("shares", "drawn"),
    [(Shares(1.0, 0.0, 0.0), 0), (Shares(0.5, 0.0, 0.5), 8), (Shares(0.0, 0.0, 1.0), 16)],
)
def test_first_population_is_drawn_in_the_given_shares(shares, drawn, tools, measured):
    options = {"shares": shares, "generations": 0, "rank_drafts": False}
    task = Task(measured, tools.matmul(32), tools.llvm, **options)
    task.batch()
    (report,) = task.search.report().values()
    assert report["offspring"].get("random", 0) == drawn


def test_search_skips_records_that_do_not_apply(tools, database, start):
    """Block names are outside of the module's hash, but traces refer to blocks by name."""
    variant = tools.matmul(32, block="other")
    tools.commit(database, variant, [1e-06], tile=(8, 4), target=tools.llvm, block="other")
    assert database.has_workload(tools.matmul(32))
    task = start(known=Known(database._handle))
    for batch in iter(task.batch, None):
        assert set(origins(database, batch)) <= {Origin.RANDOM, Origin.MUTATED, Origin.CROSSED}


# ---- batches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llvm", "cuda"])
def test_candidates_are_legal_and_never_repeat(kind, tools, opened):
    target = tools.llvm if kind == "llvm" else tvm.target.Target(GPU)
    task = Task(opened(":memory:", target=target), tools.matmul(64), target, trials=20)
    batches = task.batches()
    assert [len(one) for one in batches] == [8, 8, 4]
    candidates = [candidate for batch in batches for candidate in batch]
    assert len(set(hashes(candidates))) == 20
    for one in candidates:
        assert [str(arg.dtype) for arg in one.args_info] == ["float32"] * 3
        kinds = [str(instruction.kind.name) for instruction in one.sch.trace.insts]
        assert "EnterPostproc" in kinds
        assert kind == "llvm" or "Bind" in kinds
    (report,) = task.search.report().values()
    assert report["trials"] == sum(report["proposals"].values()) == 20
    # Most random programs for a GPU break one of its limits, which is found without a replay.
    assert sum(report["illegal"].values()) <= sum(report["offspring"].values()) / 10
    assert all(report["illegal"][name] <= n for name, n in report["offspring"].items())


def test_equal_seeds_give_equal_candidates_whatever_the_threads(tools, opened):
    one, three = (
        Task(opened(":memory:", target=tools.llvm), tools.matmul(64), tools.llvm, threads=threads)
        for threads in (1, 3)
    )
    assert [hashes(b) for b in one.batches()] == [hashes(b) for b in three.batches()]


@pytest.mark.parametrize("rank_drafts", [long(False), True])
def test_search_returns_empty_batches_before_its_end_as_metaschedule_does(
    rank_drafts, tools, database
):
    x = te.placeholder((2, 2), name="x")
    mod = te.create_prim_func([x, te.compute((2, 2), lambda i, j: x[i, j] + 1.0)])
    rounds = []
    options = {"rank_drafts": rank_drafts, "population_size": 8, "on_round": rounds.append}
    task = Task(database, mod, tools.llvm, trials=1000, batch=64, **options)
    batches = task.batches()
    proposed = [candidate for batch in batches for candidate in batch]
    assert len(set(hashes(proposed))) == len(proposed) < 64
    assert [len(batch) for batch in batches] == [one.proposed for one in rounds[:-1]]
    assert [one.proposed for one in rounds].count(0) == 5
    assert rounds[0].proposed > 0 and rounds[-1].proposed == 0
    assert [one.number for one in rounds] == list(range(1, len(rounds) + 1))
    assert task.batch() is None


@derived_object
class _RejectsAll(ms.postproc.PyPostproc):
    def _initialize_with_tune_context(self, context):
        pass

    def apply(self, sch):
        return False

    def clone(self):
        return _RejectsAll()


@pytest.mark.parametrize("rank_drafts", [long(False), True])
def test_search_returns_no_batch_without_legal_programs(rank_drafts, start):
    rounds = []
    space = ms.space_generator.PostOrderApply(
        sch_rules="from-target", postprocs=[_RejectsAll()], mutator_probs={}
    )
    assert start(rank_drafts=rank_drafts, space=space, on_round=rounds.append).batch() is None
    assert sum(one.replayed for one in rounds) == sum(one.illegal for one in rounds) > 0


def test_search_proposes_candidates_of_the_best_scores(start):
    best = start(64, eps_greedy=0.0, population_size=32)
    by_chance = start(64, eps_greedy=1.0, population_size=32, generations=0)
    chosen, drawn = ([seconds_of(c.sch.mod) for c in task.batch()] for task in (best, by_chance))
    assert max(chosen) < np.median(drawn)
    assert sorted(chosen) == chosen
    assert sorted(drawn) != drawn


def test_search_proposes_whole_batch_despite_nan_and_infinite_scores(start):
    odd = [float("nan"), float("inf"), -1.0, 0.0, 1e300]
    assert len(start(model=_Scores(lambda number, _: odd[number % 5])).batch()) == 8


@pytest.mark.parametrize(
    ("names", "rank_drafts"),
    [(NAMES, True), long(NAMES, False), *(long([name], True, id=name) for name in NAMES)],
)
def test_each_operator_makes_candidates(names, rank_drafts, tools, database):
    options = {"operators": Operators(dict.fromkeys(names, 1.0)), "rank_drafts": rank_drafts}
    mod = te.create_prim_func(te_workload.conv2d_nhwc(1, 14, 14, 8, 8, 3, 1, 1))
    task = Task(database, mod, tools.llvm, trials=60, batch=20, threads=2, **options)
    # The model of drafts learns from the first batch.
    found = [each for _ in range(2) for each in lineages(database, task.batch())]
    (report,) = task.search.report().values()
    assert set(report["offspring"]) == {"random", *names}
    assert {name for one in found for name in one.operators} == set(names)


@pytest.mark.parametrize("crossover", [True, False])
def test_crossover_is_reported_and_can_be_disabled(crossover, start):
    weights = Operators({"tile_size": 0.5, "crossover": 0.5})
    task = start(64, operators=weights, crossover=crossover, rank_drafts=False)
    assert len(task.batches()) == 2
    (report,) = task.search.report().values()
    assert ("crossover" in report["offspring"]) == crossover
    assert ("crossed" in report["proposals"]) == crossover


def test_search_forgets_lineages_of_a_batch_with_the_next_one(database, start):
    task = start()
    first = task.batch()
    assert None not in lineages(database, first)
    second = task.batch()
    assert set(lineages(database, first)) == {None}
    task.context.post_tuning()
    assert set(lineages(database, second)) == {None}


# ---- parts ---------------------------------------------------------------------------------------


def test_replayer_returns_none_for_drafts_that_do_not_apply(tools, start):
    task = start()
    good = from_tvm(task.context.generate_design_space()[0].trace)
    other = ms.TuneContext(
        **{"mod": tools.matmul(32, block="other"), "target": tools.llvm, "num_threads": 1},
        space_generator=ms.space_generator.PostOrderApply(),
    )
    of_another = from_tvm(other.generate_design_space()[0].trace)
    unknown = Draft((*good.instructions, good.instructions[0].__class__("No", (), (), ())), {})
    postprocs = task.context.space_generator.postprocs
    replays = DraftReplayer(task.context.mod, postprocs, threads=2, seed=1)
    made = replays.schedules([good, of_another, unknown, good])
    assert [one is None for one in made] == [False, True, True, False]


def test_search_is_freed_after_the_end_of_its_task(start, monkeypatch):
    made = []
    init = task_search.TaskSearch.__init__

    def watch(self, *args):
        made.append(weakref.ref(self))
        init(self, *args)

    monkeypatch.setattr(task_search.TaskSearch, "__init__", watch)
    ended = start()
    ended.batch()
    ended.context.post_tuning()
    assert made[0]() is None
    # If an exception ends a run, nobody calls post_tuning.
    broken = start()
    broken.batch()
    del broken
    gc.collect()
    assert made[1]() is None


def test_report_follows_descent_of_the_best_program_within_the_run():
    task = TaskReport("main", counts=OperatorCounts())
    task.add(b"a", Lineage(Origin.WARM, b"elsewhere"), 3.0)
    crossed = Lineage(Origin.MEASURED, b"a").child("crossover", Lineage(Origin.WARM, b"e"))
    task.add(b"b", crossed, 2.0)
    task.add(b"c", Lineage(Origin.MUTATED, b"b", ("unroll",)), 1.0)
    task.add(b"d", Lineage(Origin.RANDOM), None)
    report = task.as_dict()
    assert [one["origin"] for one in report["descent"]] == ["mutated", "crossed", "warm"]
    assert report["best_is_crossed"]
    assert (report["best"], report["best_seconds"]) == (b"c".hex(), 1.0)
    # It ends at a program that descends from itself.
    task = TaskReport("main")
    task.add(b"a", Lineage(Origin.MEASURED, b"a"), 1.0)
    assert len(task.descent()) == 1


# ---- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("population_size", 0), ("generations", -1), ("threads", 0)],
        *[("eps_greedy", 1.5), ("eps_greedy", float("nan"))],
    ],
)
def test_evolutionary_search_rejects_parameters_out_of_range(name, value, database):
    with pytest.raises(UsageError):
        EvolutionarySearch(database, **{name: value})


@pytest.mark.parametrize("shares", [(0.5, 0.5, 0.5), (-0.5, 0.5, 1.0), (float("nan"), 0.5, 0.5)])
def test_shares_rejects_values_that_do_not_add_up_to_1(shares):
    with pytest.raises(UsageError, match="add up to 1"):
        Shares(*shares)


def test_search_rejects_databases_of_tvm_and_calls_out_of_order(database, start):
    with pytest.raises(PluginError, match="tunedb database"):
        EvolutionarySearch(ms.database.MemoryDatabase())
    with pytest.raises(UsageError, match="pre_tuning"):
        EvolutionarySearch(database).generate_measure_candidates()
    task = start()
    with pytest.raises(UsageError, match="clone"):
        task.context.pre_tuning(8, 8, None, database, _Scores())
    task.context.post_tuning()
    with pytest.raises(PluginError, match="cost model"):
        task.context.pre_tuning(8, 8, None, database, None)

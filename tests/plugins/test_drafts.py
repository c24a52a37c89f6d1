"""Drafts that a model of their steps compares, and the finalists that TVM replays."""

from __future__ import annotations

import random
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import tvm
from builders import copied
from effort import long
from tvm import te, topi
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.analysis import estimate_tir_flops
from tvm.s_tir.meta_schedule.runner import RunnerResult
from tvm.s_tir.meta_schedule.testing import te_workload

from tunedb.extraction.extract import extract
from tunedb.features.steps import STEPS
from tunedb.models import dataset
from tunedb.models.kernel_regression import KernelRegression
from tunedb.models.scope import Scope
from tunedb.plugins.metaschedule.database.candidates import Lineage
from tunedb.plugins.metaschedule.database.database import Database
from tunedb.plugins.metaschedule.search import draft_model, task_search
from tunedb.plugins.metaschedule.search.draft_model import (
    DraftModel,
    DraftTask,
    Legality,
    can_describe,
)
from tunedb.plugins.metaschedule.search.drafts import Drafts, finalists
from tunedb.plugins.metaschedule.search.population import Individual
from tunedb.plugins.metaschedule.search.schedule_queries import (
    DraftReplayer,
    from_tvm,
    gathers,
    locations,
)
from tunedb.plugins.metaschedule.search.strategy import EvolutionarySearch
from tunedb.plugins.metaschedule.tuning.tvm_logs import logs_in_files
from tunedb.records import Origin
from tunedb.search.draft import Draft, Instruction
from tunedb.search.sampling import decide

pytestmark = pytest.mark.usefixtures("intrinsics")

LLVM = tvm.target.Target({"kind": "llvm", "num-cores": 2})
GPU = {
    **{"kind": "cuda", "arch": "sm_60", "max_threads_per_block": 1024},
    "max_shared_memory_per_block": 49152,
}


def seconds_of(candidate):
    """Return a time that depends on the tiles: wide innermost factors are fast."""
    tiles = from_tvm(candidate.sch.trace).tiles.values()
    return 1e-4 / (1 + sum(np.log2(tile[-1]) for tile in tiles))


class Run:
    """The search of one task; its batches are answered with :func:`seconds_of`."""

    def __init__(self, database, mod, target, *, batch=8, threads=1, trials=1000, **options):
        self.rounds = []
        search = EvolutionarySearch(
            database, on_round=self.rounds.append, **{"population_size": 64} | options
        )
        self.context = ms.TuneContext(
            mod,
            target=target,
            space_generator=ms.space_generator.PostOrderApply(),
            search_strategy=search.clone(),
            rand_state=1,
            num_threads=threads,
        )
        model = ms.cost_model.RandomModel(seed=1)
        self.context.pre_tuning(trials, batch, None, database, model)

    def batch(self):
        candidates = self.context.generate_measure_candidates()
        results = [RunnerResult([seconds_of(each)], None) for each in candidates]
        self.context.notify_runner_results(candidates, results)
        return candidates


def store_time(database, mod, target, candidate):
    """Store the time of a candidate."""
    record = ms.database.TuningRecord(
        *(candidate.sch.trace, database.commit_workload(mod), [seconds_of(candidate)], target),
        candidate.args_info,
    )
    database.commit_tuning_record(record)


def rows_of(task, drafts):
    """Return the rows of drafts, one below the other."""
    return np.concatenate(task.rows(drafts))


def task_of(database, mod, target):
    handle = database._handle
    return DraftTask.of(handle, handle.workloads.commit(mod).record, target)


@pytest.fixture
def product(tools, opened):
    """A matmul that has no records yet: its task, design space, replayer and model."""
    mod, database = tools.matmul(64), opened(":memory:", target=tools.llvm)
    task = task_of(database, mod, tools.llvm)
    replayer, templates = replayer_of(mod, tools.llvm)
    model = DraftModel(database._handle, task.target)
    return SimpleNamespace(task=task, templates=templates, replayer=replayer, model=model)


def space_of(mod, target):
    """Return a tuning context, and the templates of its design space."""
    context = ms.TuneContext(
        mod, target=target, space_generator=ms.space_generator.PostOrderApply(), num_threads=1
    )
    spaces = context.generate_design_space()
    return context, [from_tvm(one.trace.simplified(remove_postproc=True)) for one in spaces]


def replayer_of(work, target=LLVM):
    """Return the replayer of a module or an operator, and the templates of its design space."""
    if not isinstance(work, tvm.IRModule):
        work = tvm.IRModule({"main": te.create_prim_func(work)})
    context, templates = space_of(work, target)
    postprocs = context.space_generator.postprocs
    return DraftReplayer(context.mod, postprocs, threads=1, seed=1), templates


# ---- the search ----------------------------------------------------------------------------------


def test_search_compares_many_drafts_and_replays_few(tools, opened):
    run = Run(opened(":memory:", target=tools.llvm), tools.matmul(64), tools.llvm, eps_greedy=0.0)
    batches = [run.batch() for _ in range(5)]
    assert [len(batch) for batch in batches] == [8] * 5
    # A model needs 16 measured programs; from then on drafts evolve.
    assert [each.programs for each in run.rounds[:2]] == [64, 64]
    assert all(each.programs > 150 for each in run.rounds[2:])
    assert all(each.replayed <= 32 and each.illegal == 0 for each in run.rounds)
    means = [np.mean([seconds_of(each) for each in batch]) for batch in batches]
    assert max(means[3:]) < 0.8 * means[0]


def test_equal_seeds_give_equal_candidates_with_any_number_of_threads(tools, opened):
    def digests(threads):
        database = opened(":memory:", target=tools.llvm)
        run = Run(database, tools.matmul(64), tools.llvm, threads=threads)
        return [[from_tvm(each.sch.trace).key for each in run.batch()] for _ in range(3)]

    assert digests(1) == digests(3)


@pytest.mark.stress
def test_gpu_search_replays_few_drafts_that_tvm_rejects(tools, opened):
    target = tvm.target.Target(GPU)
    shares = []
    for rank_drafts in (True, False):
        database = opened(":memory:", target=target)
        options = {"batch": 4, "population_size": 256, "rank_drafts": rank_drafts}
        run = Run(database, tools.matmul(128), target, **options)
        for _ in range(2):
            assert len(run.batch()) == 4
        replayed = sum(each.replayed for each in run.rounds)
        shares.append(sum(each.illegal for each in run.rounds) / replayed)
    assert shares[0] < 0.3 < shares[1]


def test_can_describe_returns_false_for_unknown_instructions(product):
    templates = product.templates
    assert can_describe(product.task.rows(templates))
    unknown = Instruction("FoldTwice", (), (), ())
    strange = Draft((*templates[0].instructions, unknown), templates[0].decisions)
    assert not can_describe(product.task.rows([*templates, strange]))


@pytest.mark.parametrize("has_xgboost", [True, False])
def test_search_replays_all_on_request_or_without_xgboost(has_xgboost, tools, opened, monkeypatch):
    if not has_xgboost:
        monkeypatch.setattr(task_search, "find_spec", lambda _: None)
    database = opened(":memory:", target=tools.llvm)
    options = {"rank_drafts": not has_xgboost, "population_size": 16}
    run = Run(database, tools.matmul(64), tools.llvm, **options)
    run.batch()
    (only,) = run.rounds
    assert only.replayed >= only.programs > 16


@pytest.mark.parametrize("batch", [2, 8])
def test_predicted_programs_and_those_of_neighbours_take_turns(batch, measured, tools):
    database, _ = measured
    run = Run(database, tools.matmul(96), tools.llvm, batch=batch, eps_greedy=0.0)
    lineage_of = database._handle.candidates.lineage_of
    is_warm = [lineage_of(each.sch.trace).origin is Origin.WARM for each in run.batch()]
    # A program of a neighbour may also be the best predicted one.
    assert [sum(is_warm[:2]), sum(is_warm[:4])] == [1, min(batch, 4) // 2]


# ---- replays -------------------------------------------------------------------------------------


def replays(operator, number):
    """Return the replayer of an operator, and random drafts of it."""
    replayer, templates = replayer_of(operator)
    return replayer, [each.with_decisions({}) for each in templates for _ in range(number)]


def test_drafts_that_repeat_most_of_their_work_are_rejected():
    replayer, drafts = replays(softmax(), 8)
    legal = replayer.schedules(drafts)
    same, _ = replays(softmax(), 0)
    every = same._map(same._postprocessed, drafts)
    counts = [estimate_tir_flops(each.mod) for each in every]
    assert [each is not None for each in legal] == [n <= 4 * min(counts) for n in counts]
    assert 0 < legal.count(None) < len(legal)


def test_drafts_without_operations_are_legal():
    data = te.placeholder((16, 32), name="A")
    replayer, drafts = replays([data, topi.transpose(data)], 4)
    assert None not in replayer.schedules(drafts)


def test_vectors_over_two_axes_are_rejected_where_one_axis_is_possible():
    """The padding is inlined: MetaSchedule then looks at the strides of the result alone."""
    replayer, templates = replayer_of(te_workload.conv2d_nhwc(1, 16, 16, 8, 16, 3, padding=1))
    template = max(templates, key=lambda each: len(each.tiles))
    _, rows, columns, channels, *_ = template.tiles
    draft = template.with_decision(rows, [4, 2, 2, 1]).with_decision(channels, [1, 1, 1, 16])
    for number, instruction in enumerate(draft.instructions):
        if instruction.kind == "SampleComputeLocation":
            draft = draft.with_decision(number, -2)
    drafts = [draft.with_decision(columns, tile) for tile in ([2, 2, 2, 2], [2, 2, 4, 1])]
    # The first one gathers the weights.
    assert [gathers(replayer._postprocessed(one, seed=1).mod) for one in drafts] == [1, 0]
    two_pixels, one_pixel = drafts
    assert replayer.schedules([two_pixels])[0] is not None
    legal = [each is not None for each in replayer.schedules([two_pixels, one_pixel, two_pixels])]
    assert legal == [False, True, False]


def test_vectors_over_two_axes_that_stand_in_a_row_are_no_gathers():
    data = te.placeholder((64, 4, 4), name="A")
    k = te.reduce_axis((0, 64), name="k")
    total = te.compute((4, 4), lambda i, j: te.sum(data[k, i, j], k), name="total")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([data, total]))
    i, j, reduced = schedule.get_loops(schedule.get_sblock("total"))
    schedule.reorder(reduced, i, j)
    schedule.vectorize(schedule.fuse(i, j))
    assert "T.vectorized(16)" in schedule.mod.script().replace("T.int64(16)", "16")
    assert gathers(schedule.mod) == 0


def test_drafts_whose_vectors_reach_several_groups_of_channels_score_less(opened):
    data, weight = te.placeholder((1, 8, 8, 24)), te.placeholder((1, 1, 6, 24))
    convolution = topi.nn.group_conv2d_nhwc(data, weight, 1, 0, 1, groups=4)
    mod = tvm.IRModule({"main": te.create_prim_func([data, weight, convolution])})
    task = task_of(opened(":memory:", target=LLVM), mod, LLVM)
    template = max(replayer_of(mod)[1], key=lambda each: len(each.tiles))
    channels = list(template.tiles)[3]
    # Groups have 6 channels.
    tiles = ([12, 1, 1, 2], [8, 1, 1, 3], [4, 1, 1, 6], [6, 1, 1, 4], [3, 1, 1, 8], [2, 1, 1, 12])
    rows = rows_of(task, [template.with_decision(channels, tile) for tile in tiles])
    trees = SimpleNamespace(scores=lambda rows, _: np.full(len(rows), 0.5), use_threads=int)
    scores = draft_model.TaskModel(trees, None).scores(task, rows, 1)
    assert list(scores == scores.max()) == [True, True, True, False, False, False]
    rows[:, STEPS.columns.index("device.gpu")] = 1
    assert len(set(draft_model.TaskModel(trees, None).scores(task, rows, 1))) == 1


# ---- queries of drafts ---------------------------------------------------------------------------


def test_drafts_query_compute_locations_once_per_sketch(tools, opened, monkeypatch):
    database = opened(":memory:", target=tools.llvm)
    replayer, templates = replayer_of(softmax(), tools.llvm)
    asked, ask = [], replayer.ask
    monkeypatch.setattr(replayer, "ask", lambda query, one: asked.append(one) or ask(query, one))
    task = task_of(database, replayer.mod, tools.llvm)
    drafts = Drafts(DraftModel(database._handle, task.target), task, replayer, 32, 1)
    located = next(one for one in templates if drafts.locations(one))
    asked.clear()
    for number, places in drafts.locations(located).items():
        assert located.instructions[number].kind == "SampleComputeLocation"
        assert set(places) >= {-1}
        moved = located.with_decision(number, places[0])
        assert drafts.locations(moved) == drafts.locations(located)
    assert asked == []


def test_extents_of_a_draft_let_parallel_bounds_double(product):
    drafts = Drafts(product.model, product.task, product.replayer, 32, 1)
    assert list(drafts.extents(product.templates[0]).values()) == [[[2] * 5]]


def test_finalists_include_legal_drafts_of_score_0_but_no_illegal_ones(product, monkeypatch):
    model = product.model
    monkeypatch.setattr(model, "scores", lambda _task, rows, _threads: np.zeros(len(rows)))
    drafts = Drafts(model, product.task, product.replayer, 32, 1)
    pool = [Individual(one, None, Lineage(Origin.RANDOM)) for one in product.templates]
    assert len(finalists(drafts.scored(pool), len(pool), (), [])) == len(pool)
    monkeypatch.setattr(model.legality, "chances", lambda rows: np.zeros(len(rows)))
    assert finalists(drafts.scored(pool), len(pool), (), []) == []


# ---- the model -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def template(tools, tmp_path_factory):
    """The file of a database with 24 measured programs of a matmul."""
    path, mod = tmp_path_factory.mktemp("measured") / "tune.db", tools.matmul(64)
    with logs_in_files(), closing(Database(path, target=tools.llvm)) as database:
        run = Run(database, mod, tools.llvm)
        for _ in range(3):
            for each in run.context.generate_measure_candidates():
                store_time(database, mod, tools.llvm, each)
    return path


@pytest.fixture
def measured(tools, opened, template, path):
    """A database with 24 measured programs of a matmul, and its task."""
    database = opened(copied(template, path), target=tools.llvm)
    return database, task_of(database, tools.matmul(64), tools.llvm)


def test_rows_of_a_draft_equal_those_of_the_program_without_its_tail(measured):
    database, task = measured
    store = database.store
    digests = [record.measurement.program.digest for record in store.records.iterate()]
    programs = store.programs.get(store.programs.ids(digests))
    drafts = [Draft.from_trace(program.trace) for program in programs]
    bare = [replace(each, trace=replace(each.trace, tail=None)) for each in programs]
    assert any(each.trace.tail is not None for each in programs)
    expected = np.concatenate(STEPS.rows(bare))
    # The literals of a tail do not matter without it.
    np.testing.assert_array_equal(rows_of(task, drafts), expected)


def test_load_computed_returns_examples_without_stored_rows(measured):
    database, _ = measured
    computed = dataset.load_computed(database.store, STEPS)
    extract(database.store, STEPS)
    stored = dataset.load(database.store, STEPS, rows=False)
    for name in ("program_ids", "seconds", "throughput", "failures", "trials", "starts"):
        np.testing.assert_array_equal(getattr(computed, name), getattr(stored, name))
    with pytest.raises(Exception, match="no program of these"):
        dataset.load_computed(database.store, STEPS, scope=Scope([10**6], None))


def test_draft_model_trains_on_stored_records_before_the_first_trial(measured):
    database, task = measured
    model = DraftModel(database._handle, task.target)
    assert model.prepare_for(task, 1)
    records = list(database.store.records.iterate())
    rows = rows_of(task, [Draft.from_trace(one.measurement.program.trace) for one in records])
    scores = model.scores(task, rows, 1)
    assert np.corrcoef(scores, 1 / np.array([one.mean for one in records]))[0, 1] > 0.8


def test_regression_of_own_programs_corrects_the_draft_model(measured, monkeypatch):
    database, task = measured
    model = DraftModel(database._handle, task.target)
    assert model.prepare_for(task, 1)
    examples, others = model._learner.own_examples(task.example.digest)
    assert (len(examples), others) == (len(list(database.store.records.iterate())), 0)
    trees = model._learner.scoring.scorer.model.scores(examples.rows, examples.starts)

    def scores(examples, others):
        monkeypatch.setattr(model._learner, "own_examples", lambda digest: (examples, others))
        model._own.clear()
        return np.log(model.scores(task, examples.rows, 1)) * 0.3

    for others, share in ((0, 0.5), (24 * len(examples), 0.75)):
        regression = KernelRegression.fit(examples.rows, examples.throughput, trees, share)
        assert scores(examples, others) == pytest.approx(regression.scores(examples.rows, trees))
    failed = replace(examples, throughput=np.zeros(len(examples)))
    assert scores(failed, 0) == pytest.approx(trees)
    # Only the last programs count, by their trials.
    monkeypatch.setattr(draft_model, "MOST_OWN", 5)
    latest = np.sort(np.argsort(examples.trials)[-5:])
    last = examples.take(latest)
    fitted = KernelRegression.fit(last.rows, last.throughput, trees[latest], 0.5)
    assert scores(examples, 0) == pytest.approx(fitted.scores(examples.rows, trees))


def test_untrained_draft_model_scores_all_drafts_equally(product):
    assert not product.model.prepare_for(product.task, 1)
    rows = np.zeros((3, len(STEPS.columns)), np.float32)
    assert product.model.scores(product.task, rows, 1).tolist() == [1] * 3


def test_legality_learns_from_rejected_drafts():
    rng = np.random.default_rng(1)
    rows = np.zeros((200, 1, len(STEPS.columns)), np.float32)
    rows[:, 0, 2] = rng.random(200)
    legal = rows[:, 0, 2] < 0.6
    legality = Legality()
    legality.add(list(rows[legal][:30]), [True] * 30, 1)
    assert legality.chances(rows[:, 0]).tolist() == [1] * 200
    legality.add([*rows[30:130], ValueError("damaged")], [*legal[30:130], False], 1)
    chances = legality.chances(rows[130:, 0])
    assert np.mean((chances > 0.5) == legal[130:]) > 0.95


def test_untrained_legality_excludes_drafts_over_gpu_limits():
    columns = list(STEPS.columns)

    def row(threads, shared_ratio, least=32, pipelined=0):
        values = np.zeros((1, len(columns)), np.float32)
        values[0, columns.index("grid.threads")] = np.log2(1 + threads)
        values[0, columns.index("grid.least_threads")] = np.log2(1 + least)
        values[0, columns.index("device.threads")] = np.log2(1 + 1024)
        values[0, columns.index("fetch.bytes_ratio")] = shared_ratio
        values[0, columns.index("pipeline.extent")] = np.log2(1 + pipelined)
        return values

    kept = [row(32, 1), row(1024, 0.5), row(256, 0), row(0, 2), row(16, 0.5, least=0)]
    kept.append(row(64, 0.5, pipelined=2))
    broken = [row(16, 0.5), row(1056, 0.5), row(64, 1.1), row(64, 0.5, pipelined=1)]
    chances = Legality().chances(np.concatenate([*kept, *broken]))
    assert chances.tolist() == [1] * 6 + [0] * 4


def softmax():
    data = te.placeholder((16, 200), name="A")
    return [data, topi.nn.softmax(data, axis=1)]


def convolution():
    return te_workload.conv2d_nhwc(1, 14, 14, 32, 64, 3)


def gpu_drafts(opened, operator, arch, number):
    """Return a replayer, random drafts, and which of them an untrained model takes for legal."""
    target = tvm.target.Target(GPU | {"arch": arch})
    replayer, templates = replayer_of(operator, target)
    places = [replayer.ask(locations, template) for template in templates]
    rng = random.Random(1)
    drafts = [
        decide(template.with_decisions({}), template, rng, legal)
        for _ in range(number)
        for template, legal in zip(templates, places, strict=True)
    ]
    task = task_of(opened(":memory:", target=target), replayer.mod, target)
    return replayer, drafts, Legality().chances(rows_of(task, drafts)) > 0.5


@pytest.mark.parametrize(
    ("operator", "arch"),
    [
        long(convolution, "sm_60", id="conv"),
        pytest.param(convolution, "sm_86", id="pipelined"),
        # No warp of threads is demanded.
        pytest.param(lambda: te_workload.matmul(7, 9, 5), "sm_86", id="small"),
        pytest.param(softmax, "sm_86", id="softmax"),
    ],
)
def test_legality_agrees_with_tvm_about_gpu_limits(operator, arch, opened):
    replayer, drafts, within = gpu_drafts(opened, operator(), arch, 300)
    chosen = [*np.flatnonzero(within)[:25], *np.flatnonzero(~within)[:15]]
    replayed = replayer.schedules([drafts[number] for number in chosen])
    assert within.sum() > 10
    for number, schedule in zip(chosen, replayed, strict=True):
        assert (schedule is not None) == within[number], drafts[number].decisions


def test_legality_accepts_all_legal_tensor_core_drafts(opened):
    product = te_workload.matmul(256, 256, 256, in_dtype="float16", out_dtype="float32")
    replayer, drafts, within = gpu_drafts(opened, product, "sm_80", 8)
    assert all("warp_execution" in repr(draft.instructions) for draft in drafts)
    legal = np.array([schedule is not None for schedule in replayer.schedules(drafts)])
    assert legal.sum() > 3
    assert within[legal].all()


# ---- finalists -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pool(tools):
    """Programs of one sketch; their scores fall with their index."""
    _, templates = space_of(tools.matmul(64), tools.llvm)
    sketch = next(one for one in templates if len(one.tiles) > 2)
    first, second, *_ = sketch.tiles
    fours = [[1, 1, 1, 64], [1, 1, 64, 1], [1, 64, 1, 1], [64, 1, 1, 1]]
    drafts = [sketch.with_decision(first, a).with_decision(second, b) for a in fours for b in fours]
    lineage = Lineage(Origin.RANDOM)
    return [Individual(one, None, lineage, 1 - n / 100) for n, one in enumerate(drafts)]


def test_finalists_are_the_best_drafts_that_are_no_neighbours(pool):
    def chosen(drafts, count, spent=(), already=()):
        return [pool.index(each) for each in finalists(drafts, count, set(spent), list(already))]

    # No two of them share the tile of a loop.
    assert chosen(reversed(pool), 4) == [0, 5, 10, 15]
    # Neighbours fill the remaining places.
    assert chosen(pool, 6) == [0, 5, 10, 15, 1, 2]
    assert len(chosen(pool, 100)) == len(pool)
    # Spent and chosen drafts are excluded; neighbours of the chosen one come later.
    assert chosen(pool, 2, [pool[0].draft.key], [pool[1]]) == [4, 10]

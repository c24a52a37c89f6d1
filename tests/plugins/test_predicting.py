"""Programs that are predicted and not measured: ``compile(…, trials=0)``."""

import math
import sys
from pathlib import Path

import networks
import numpy as np
import pytest
import tvm
from logged import logged
from products import assert_multiplies
from tvm.relax.frontend.onnx import from_onnx
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

from tunedb.errors import UsageError
from tunedb.models.share import expected_share
from tunedb.plugins.metaschedule import Database, modules
from tunedb.plugins.metaschedule.deploy import apply
from tunedb.plugins.metaschedule.deploy import predict as prediction
from tunedb.plugins.metaschedule.deploy.network import Lowering, lower
from tunedb.plugins.metaschedule.measure import cold_weights
from tunedb.plugins.metaschedule.prefetch import with_prefetch
from tunedb.plugins.metaschedule.search.draft_model import DraftTask
from tunedb.plugins.metaschedule.search.prediction import Promising, Question, promising
from tunedb.plugins.metaschedule.search.schedule_queries import from_tvm
from tunedb.plugins.metaschedule.search.warm_start import Relatives
from tunedb.plugins.metaschedule.trace_codec import TraceBuilder
from tunedb.search.draft import Draft

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from candidates import random_candidates


def seconds_of(tiles):
    """Return a time that depends on the tiles: wide innermost factors are fast."""
    return 1e-4 / (1 + sum(np.log2(tile[-1]) for tile in tiles.values()))


def product(tools, n, name):
    """Return a matrix product whose function has a name of its own in a library."""
    return tvm.IRModule({name: tools.matmul(n)["main"].with_attr("global_symbol", name)})


@pytest.fixture(scope="module")
def measured(tools, tmp_path_factory):
    """A database with 48 random programs of a matrix product."""
    path = tmp_path_factory.mktemp("measured") / "tune.db"
    database = Database(path, target=tools.llvm)
    (mod,) = apply.tasks_of(product(tools, 64, "known"), tools.llvm).values()
    workload = database.commit_workload(mod)
    args = ms.arg_info.ArgInfo.from_entry_func(mod)
    for each in random_candidates(mod, tools.llvm, 48, 1):
        seconds = [seconds_of(from_tvm(each.trace).tiles)]
        record = ms.database.TuningRecord(each.trace, workload, seconds, tools.llvm, args)
        database.commit_tuning_record(record)
    database.close()
    return path


@pytest.fixture
def builds(monkeypatch):
    """The modules of each batch that is built, by one worker; the first batch fails."""
    batches = []

    class Builder(prediction.WarmBuilder):
        def __init__(self):
            super().__init__(max_workers=1)

        def build(self, inputs):
            batches.append([each.mod for each in inputs])
            if len(batches) == 1:
                return [ms.builder.BuilderResult(None, "it does not build") for _ in inputs]
            return super().build(inputs)

    monkeypatch.setattr(prediction, "WarmBuilder", Builder)
    return batches


def test_function_without_record_gets_best_predicted_program_that_builds(
    measured, opened, tools, builds, monkeypatch
):
    predictions = []

    def predict(*arguments, **options):
        predictions.append(prediction.predict(*arguments, **options))
        return predictions[-1]

    def promising_of_few(question):
        import sys

        from tunedb.plugins.metaschedule.search import prediction

        assert "xgboost" in sys.modules and "sklearn" not in sys.modules
        prediction._DRAFTS = 512
        return prediction.promising(question)

    def ask(question, worker, real=prediction._ask):
        if "96" in question.mod.script():
            raise ChildProcessError("signal 11, SIGSEGV")
        return real(question, worker)

    monkeypatch.setattr(apply, "predict", predict)
    monkeypatch.setattr(prediction, "promising", promising_of_few)
    monkeypatch.setattr(prediction, "_ask", ask)
    database = opened(measured, target=tools.llvm, read_only=True)
    mods = [product(tools, n, name) for n, name in ((64, "known"), (96, "deadly"), (128, "new"))]
    functions = {name: func for mod in mods for name, func in mod.functions.items()}
    mod, steps = tvm.IRModule(functions), []
    with logged() as messages:
        compiled = apply.compile(mod, database, trials=0, on_step=lambda *step: steps.append(step))

    predicting = [(0, 2, "predicting"), (1, 2, "predicting")]
    assert steps == [(0, 1, "lowering"), *predicting, (0, 1, "compiling")]
    uses = {use.function: use for use in compiled.uses}
    kinds = {"known": "measured", "deadly": "default", "new": "predicted"}
    assert {name: use.kind for name, use in uses.items()} == kinds
    # The end of a worker costs only the prediction that it was about.
    assert messages == ["deadly: nothing is predicted: signal 11, SIGSEGV"]
    assert uses["known"].mean == min(record.mean for record in database.store.records.iterate())
    assert (uses["new"].record_id, compiled.notes) == (None, ())

    assert_multiplies(compiled.executable["new"], 128)

    # The second program is used, because the first one did not build.
    assert [len(batch) for batch in builds] == [1, 1]
    (found,) = predictions[0].values()
    # Each side of the known product is half as long.
    assert found.octaves == pytest.approx(math.sqrt(6))
    assert uses["new"].share == expected_share(found.family, found.octaves)
    applied = tvm.s_tir.Schedule(found.record.workload.mod)
    found.record.trace.apply_to_schedule(applied, remove_postproc=False)
    tvm.ir.assert_structural_equal(applied.mod, builds[1][0])
    # The model knows that wide innermost factors are fast.
    drawn = [
        seconds_of(from_tvm(each.trace).tiles)
        for each in random_candidates(mods[-1], tools.llvm, 32, 2)
    ]
    assert seconds_of(from_tvm(found.record.trace).tiles) < np.quantile(drawn, 0.1)


@pytest.mark.stress
def test_function_that_ends_its_worker_costs_only_its_own_prediction(
    measured, opened, tools, monkeypatch
):
    def dies(question):
        import os
        import signal

        from tunedb.plugins.metaschedule.search.prediction import promising

        if "128" in question.mod.script():
            os.kill(os.getpid(), signal.SIGSEGV)
        return promising(question)

    monkeypatch.setattr(prediction, "promising", dies)
    both = [product(tools, n, f"product_{n}").functions for n in (96, 128)]
    mod, database = tvm.IRModule({**both[0], **both[1]}), opened(measured, target=tools.llvm)
    with logged() as messages:
        compiled = apply.compile(mod, database, trials=0)
    uses = {use.function: use.kind for use in compiled.uses}
    assert uses == {"product_96": "predicted", "product_128": "default"}
    assert messages == ["product_128: nothing is predicted: signal 11, SIGSEGV"]


def test_replayed_programs_are_ranked_by_a_model_of_whole_programs(measured, opened, tools):
    """The model knows that wide innermost factors are fast."""
    (mod,) = apply.tasks_of(product(tools, 128, "new"), tools.llvm).values()
    handle = opened(measured, target=tools.llvm)._handle
    task = DraftTask.of(handle, modules.to_workload(mod), tools.llvm)
    question = Question(mod, tools.llvm, task, Relatives.of(handle, mod, tools.llvm), None)
    programs = promising(question)
    ranked = prediction._Models.of(handle, tools.llvm).ranked(task, programs)
    assert set(ranked) == set(programs) and len(ranked) > 16
    times = [seconds_of(Draft.from_trace(program.trace).tiles) for program in ranked]
    assert np.mean(times[:8]) < 0.8 * np.mean(times[-8:])


def weights_of(rows, columns=512):
    """Return a network that multiplies data and a constant with as many rows as columns."""
    builder = networks.Builder()
    out = builder.node("MatMul", ["data", builder.weight(columns, columns)])
    return from_onnx(builder.model(out, {"data": [rows, columns]}, [rows, columns]))


@pytest.mark.parametrize(
    ("rows", "cache", "waits"),
    [(8, 1 << 20, False), (8, (1 << 20) - 1, True), (101, 1 << 10, False), (8, None, False)],
)
def test_programs_that_prefetch_weights_are_preferred_where_others_wait(
    rows, cache, waits, measured, opened, tools, monkeypatch
):
    asked, chosen = [], []

    def ask(question, _worker):
        asked.append(question.waits)
        return [Promising(name, question.waits and name == "ready") for name in ("first", "ready")]

    monkeypatch.setattr(cold_weights, "last_cache", lambda: cache)
    monkeypatch.setattr(prediction, "_ask", ask)
    monkeypatch.setattr(prediction._Models, "of", lambda *_: None)
    monkeypatch.setattr(
        prediction,
        "_built",
        lambda _builder, _mods, ranked, _target: chosen.extend(*ranked.values()) or {},
    )
    apply.compile(weights_of(rows), opened(measured, target=tools.llvm), trials=0)
    assert asked == [waits] and chosen[0] == ("ready" if waits else "first")


def test_promising_programs_tell_whether_they_prefetch(measured, opened, tools):
    target = tools.llvm
    mod = lower(weights_of(8), target, Lowering()).mod
    (mod,) = apply.tasks_of(mod, target).values()
    handle = opened(measured, target=target)._handle
    task, relatives = (
        DraftTask.of(handle, modules.to_workload(mod), target),
        Relatives.of(handle, mod, target),
    )
    model = prediction._Models.of(handle, target).drafts.of_task(task, 1)
    found = promising(Question(mod, target, task, relatives, model, waits=True))
    built = TraceBuilder()
    for each in found:
        packed = RemoveWeightLayoutRewriteBlock(True)(built.scheduled(mod, each.trace))
        assert each.is_ready is not with_prefetch(packed, target).same_as(packed)
    assert {each.is_ready for each in found} == {True, False}


def test_compile_notes_that_an_empty_database_predicts_nothing(opened, tools):
    compiled = apply.compile(tools.matmul(), opened(":memory:", target=tools.llvm), trials=0)
    assert [use.kind for use in compiled.uses] == ["default"]
    (note,) = compiled.notes
    assert "nothing is known" in note


def test_compile_and_schedule_reject_trials_above_0(opened, tools):
    database = opened(":memory:", target=tools.llvm)
    for call in (apply.compile, apply.schedule):
        with pytest.raises(UsageError, match=r"trials=8: .* tune\(mod, max_trials_per_task=8\)"):
            call(tools.matmul(), database, trials=8)


def test_compile_reads_the_default_database(measured, tools, monkeypatch):
    monkeypatch.setenv("TUNEDB_URL", str(measured))
    (use,) = apply.compile(product(tools, 64, "known"), target=tools.llvm).uses
    assert use.kind == "measured"

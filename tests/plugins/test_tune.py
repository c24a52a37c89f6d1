"""`tune()`: one call for a whole tuning run."""

from __future__ import annotations

import io
import logging
import os
import pkgutil
import re
import subprocess
import sys
from collections import Counter
from contextlib import closing, redirect_stdout
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm
from fake_measuring import FakeBuilder, FakeRunner, seconds_of, seeded_model
from products import assert_multiplies
from raising import raises_line
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.runner import EvaluatorConfig

from tunedb import PluginError, TargetError, TuneDBError, UsageError
from tunedb.exchange.database_peer import DatabasePeer
from tunedb.exchange.merge import merge
from tunedb.plugins import metaschedule
from tunedb.plugins.metaschedule import Database, MeasureCallback
from tunedb.plugins.metaschedule.deploy.apply import schedule
from tunedb.plugins.metaschedule.search.strategy import EvolutionarySearch
from tunedb.plugins.metaschedule.tuning.defaults import host_target, target_of
from tunedb.plugins.metaschedule.tuning.tune import tune
from tunedb.records import Origin, Source, Status
from tunedb.storage.store import Store
from tunedb.system.host import fingerprint_of

LLVM = {"kind": "llvm", "num-cores": 2, "mcpu": "x86-64-v2"}


class _Search(EvolutionarySearch):
    """A quick search: few programs, no generation."""

    def __init__(self, database, **options):
        super().__init__(database, population_size=12, generations=0, **options)


@pytest.fixture
def quick(tmp_path, monkeypatch):
    """A function that tunes without compiling; ``quick.path`` is its database."""
    monkeypatch.setattr("tunedb.plugins.metaschedule.tuning.defaults.EvolutionarySearch", _Search)

    def quick(mod, **options):
        defaults = {
            **{"database": quick.path, "target": LLVM, "cost_model": seeded_model()},
            **{"builder": quick.builder, "runner": quick.runner, "num_tuning_cores": 1},
            **{"max_trials_global": 8, "num_trials_per_iter": 4},
        }
        return tune(mod, **(defaults | options))

    quick.path = tmp_path / "tune.db"
    quick.builder, quick.runner = FakeBuilder(), FakeRunner()
    yield quick
    quick.builder.close()


def closed(result):
    result.database.close()
    return result


def stop(_progress):
    raise KeyboardInterrupt


def killed(quick, mod, **options):
    """Tune until the first batch is measured."""
    with pytest.raises(KeyboardInterrupt):
        quick(mod, on_progress=stop, **options)


def test_no_public_name_of_the_plugin_is_also_a_package():
    """The import of such a package would replace the function or class of that name."""
    packages = {module.name for module in pkgutil.iter_modules(metaschedule.__path__)}
    assert not packages & set(metaschedule.__all__)


def test_tune_returns_its_result_and_reports_progress(quick, tools):
    progress = []
    result = quick(tools.matmul(32), on_progress=progress.append)
    (task,) = result.tasks
    assert (result.trials, result.resumed, result.served) == (8, 0, 0)
    assert task.name == "main"
    fastest = min(map(np.mean, map(seconds_of, quick.runner.ran)))
    assert task.seconds == pytest.approx(fastest)
    assert task.progress.best_seconds == pytest.approx(fastest)
    assert task.record.mean == task.seconds
    assert (task.origin, task.donor, task.operators) == (Origin.RANDOM, None, ())
    assert [p.trials for p in progress] == [4, 8]
    assert {p.max_trials for p in progress} == {8}
    first = progress[0].task
    assert first.best_seconds == first.first_seconds == progress[1].task.first_seconds
    assert progress[1].tasks == (progress[1].task,)
    assert progress[0].seconds <= progress[1].seconds <= result.seconds
    costs = progress[1].costs
    parts = (costs.starting, costs.searching, costs.building, costs.running, costs.learning)
    assert all(value >= 0 for value in parts)
    assert sum(parts) == pytest.approx(progress[1].seconds)
    assert costs.starting and costs.searching
    # The database of the result is open.
    assert len(result.database) == 8
    result.database.close()


def test_known_programs_are_not_measured_again_by_the_same_evaluator(quick, tools):
    mod = tools.matmul(32)
    quick.runner.evaluator_config = EvaluatorConfig(repeat=1)
    closed(quick(mod, seed=1))
    first = list(quick.runner.ran)
    again = closed(quick(mod, seed=2))
    measured = quick.runner.ran[len(first) :]
    assert not set(measured) & set(first)
    assert len(quick.builder.built) == len(quick.runner.ran)
    assert again.served >= 1
    assert len(measured) == 8 - again.served
    # The best stored program is in the first batch.
    assert again.tasks[0].progress.first_seconds <= min(map(np.mean, map(seconds_of, first)))
    assert closed(quick(mod, seed=2, remeasure=True)).served == 0
    quick.runner.evaluator_config = EvaluatorConfig(repeat=2)
    assert closed(quick(mod, seed=1)).served == 0
    assert closed(quick(mod, seed=2)).served > 0


def test_attack_4_a_killed_run_does_all_its_trials_whatever_was_merged(quick, tools, tmp_path):
    """A merge had put seven records into its session, and the run ended after one trial."""
    mod = tools.matmul(32)
    killed(quick, mod, seed=3, max_trials_global=12)
    theirs = tmp_path / "theirs.db"
    with Store(theirs) as other, Store(quick.path) as store:
        known = [record.measurement for record in store.records.iterate()]
        assert len(known) == 4
        forged = [replace(known[0], run_secs=(10.0,), occurrence=number) for number in range(4, 11)]
        other.records.add(forged, Source("theirs"))
        with closing(DatabasePeer(theirs)) as peer:
            assert merge(store, peer).new == 7
    rest = closed(quick(mod, seed=3, max_trials_global=12))
    assert (rest.resumed, rest.trials) == (4, 12)
    assert len(quick.runner.ran) + rest.served == 12


def test_killed_second_run_of_a_handle_continues(quick, tools, opened):
    mod, database = tools.matmul(32), opened(quick.path, target=LLVM)
    quick(tools.matmul(16), database=database)
    killed(quick, mod, database=database, seed=3)
    assert quick(mod, database=database, seed=3).resumed == 4


def test_run_with_other_arguments_does_not_continue_a_killed_one(quick, tools):
    mod = tools.matmul(32)
    killed(quick, mod, seed=3)
    assert closed(quick(mod, seed=4)).resumed == 0
    assert closed(quick(tools.matmul(16), seed=3)).resumed == 0


def two(tools):
    functions = {"second": tools.matmul(16)["main"], "first": tools.matmul(32)["main"]}
    return tvm.IRModule({k: f.with_attr("global_symbol", k) for k, f in functions.items()})


def test_each_function_is_a_task(quick, tools):
    reports = []
    result = closed(quick(two(tools), on_progress=reports.append, task_scheduler="round-robin"))
    assert [task.name for task in result.tasks] == ["first", "second"]
    assert [task.progress.trials for task in result.tasks] == [4, 4]
    assert re.fullmatch(r"TuningResult\(tasks=2, trials=8, seconds=[\d.]+\)", repr(result))
    first = r"TaskResult\(name='first', seconds=[^,]+, trials=4\)"
    assert re.fullmatch(rf"\({first}, TaskResult\([^()]+\)\)", repr(result.tasks))
    assert len({task.workload_id for task in result.tasks}) == 2
    assert [progress.task.name for progress in reports] == ["first", "second"]


def test_trials_are_bounded_for_all_tasks_and_for_each(quick, tools):
    assert closed(quick(two(tools), max_trials_global=6, max_trials_per_task=2)).trials == 4
    per_task = closed(quick(two(tools), max_trials_global=None, max_trials_per_task=3, seed=9))
    assert [task.progress.trials for task in per_task.tasks] == [3, 3]


def test_trials_of_a_task_before_a_kill_count_for_its_limit(quick, tools):
    options = {"max_trials_global": None, "max_trials_per_task": 4, "seed": 9}
    killed(quick, two(tools), **options)
    result = closed(quick(two(tools), **options))
    assert 0 < result.resumed < 8
    with Store(quick.path, read_only=True) as store:
        counts = Counter(record.workload_id for record in store.records.iterate())
    assert result.trials == 8
    assert max(counts.values()) == 4


def test_functions_without_a_design_space_are_skipped(quick, tools):
    result = closed(quick(two(tools), special_space={"second": None}))
    assert [task.name for task in result.tasks] == ["first"]


def test_tune_counts_and_stores_failures(quick, tools):
    runner = FakeRunner(errors=lambda hash_: "RPCRunner: Timeout, killed after 10 seconds")
    progress = []
    result = quick(tools.matmul(32), runner=runner, on_progress=progress.append)
    (task,) = result.tasks
    assert (task.progress.failed, task.progress.trials) == (8, 8)
    assert task.workload_id is not None
    assert task.record is task.seconds is task.origin is task.donor is None
    assert progress[-1].task.best_seconds is None
    assert result.database.store.records.failures() == {"timeout": 8}
    result.database.close()


RELAX = """
@I.ir_module
class Model:
    @R.function
    def main(x: R.Tensor((16, 16), "float32"), w: R.Tensor((16, 16), "float32")):
        with R.dataflow():
            y = R.matmul(x, w)
            z = R.nn.softmax(y)
            R.output(z)
        return z
"""


def test_op_names_choose_the_operators_of_a_relax_program(quick):
    """Compiling the program finds the record of the tuned operator."""
    mod = tvm.script.from_source(RELAX)
    result = quick(mod, op_names=["matmul"])
    (task,) = result.tasks
    assert task.name == "matmul"
    _, uses = schedule(mod, result.database, result.target)
    found = {use.function: use.record_id for use in uses}
    assert found == {"matmul": task.record.id, "softmax": None}
    result.database.close()


def test_parameters_of_a_relax_program_become_constants(quick):
    mod = tvm.script.from_source(RELAX)
    weights = tvm.runtime.tensor(np.eye(16, dtype="float32"))
    result = closed(quick(mod, params={"w": weights}, op_names=["matmul"]))
    assert result.tasks[0].record is not None


def test_known_programs_are_served_under_tvms_strategies(quick):
    for _ in range(2):
        mod = tvm.script.from_source(RELAX)
        result = closed(quick(mod, strategy="replay-trace", seed=5))
        assert (len(result.tasks), result.trials) == (2, 8)
    assert result.served == 8
    assert len(quick.runner.ran) == 8


def test_run_takes_the_target_of_a_bound_database_and_a_session_of_its_own(quick, tools, opened):
    quick.runner.evaluator_config = EvaluatorConfig(number=2)
    database = opened(quick.path, target=tools.llvm_other)
    before = database._handle.session()
    result = quick(tools.matmul(32), database=database, target=None)
    assert result.database is database
    assert int(result.target.attrs["num-cores"]) == 8
    fingerprint = fingerprint_of(result.tasks[0].record.measurement.session)
    assert fingerprint["evaluator"]["number"] == 2
    assert fingerprint["run"]["trials"] == 8
    assert result.threads == 2
    assert fingerprint["threads"] == {"count": 2, "pinned": False}
    assert database._handle.session() == before


def test_tune_restores_loggers_of_tvm_prints_nothing_and_removes_its_temporary_files(
    quick, tools, tmp_path, monkeypatch
):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    logger = logging.getLogger("tvm.s_tir.meta_schedule")
    before = logger.level, logger.propagate, list(logger.handlers)
    mine = logging.NullHandler()  # has no name, which TVM's setup of logs cannot handle
    logger.addHandler(mine)
    out = io.StringIO()
    try:
        with redirect_stdout(out):
            closed(quick(tools.matmul(32), work_dir=tmp_path / "logs"))
            closed(quick(tools.matmul(32), seed=2))
        assert logger.handlers == [*before[2], mine]
    finally:
        logger.removeHandler(mine)
    assert (logger.level, logger.propagate, logger.handlers) == before
    assert out.getvalue() == ""
    assert list((tmp_path / "logs" / "logs").glob("*.task_scheduler.log"))
    assert not list(folder.glob("*tuning*"))


def test_given_callbacks_replace_the_default_ones(quick, tools, opened):
    seen = []

    class Watch(ms.measure_callback.measure_callback._PyMeasureCallback):
        __slots__ = ("__dict__",)

        def __init__(self):
            super().__init__(lambda *given: seen.append(len(given[2])))

    result = closed(quick(tools.matmul(32), measure_callbacks=Watch()))
    assert seen == [4, 4]
    assert result.tasks[0].record is None
    assert result.tasks[0].progress.trials == 8
    database = opened(quick.path, target=LLVM)
    callbacks = [MeasureCallback(database), Watch()]
    quick(tools.matmul(32), database=database, measure_callbacks=callbacks)
    assert len(database) == 8


class OwnError(Exception):
    """An error of a user."""


def test_errors_in_a_run_keep_their_class_or_become_plugin_errors_of_one_line(quick, tools):
    def fail(error):
        raise error

    def failing(error):
        return FakeRunner(on_run=lambda _: fail(error))

    with pytest.raises(OwnError, match=r"^no more$"):
        quick(tools.matmul(32), on_progress=lambda _: fail(OwnError("no more")))
    with pytest.raises(PluginError, match=r"^the device is gone$"):
        quick(tools.matmul(32), runner=failing(PluginError("the device is gone")))
    with raises_line(PluginError, match="TVM ended the tuning run: ") as caught:
        quick(tools.matmul(32), runner=failing(OwnError("first line\nsecond line")))
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"database": "json"}, UsageError, "is TVM's; tune.. keeps its records in tunedb"),
        ({"database": ms.database.MemoryDatabase()}, UsageError, "not MemoryDatabase"),
        ({"database": "no/such/folder/x.db"}, TuneDBError, "no/such/folder"),
        ({"target": "no-such-target"}, TargetError, "unknown target"),
        ({"num_tuning_cores": "many"}, UsageError, "physical, logical or a number, not 'many'"),
        ({"num_tuning_cores": 0}, UsageError, "physical, logical or a number, not 0"),
        ({"builder": "remote"}, UsageError, "TVM has no builder 'remote'"),
        ({"runner": 3}, UsageError, "runner must be a word or an object of TVM's, not int"),
        ({"cost_model": "oracle"}, UsageError, "TVM has no cost_model 'oracle'"),
        ({"strategy": "luck"}, UsageError, "TVM has no strategy 'luck'"),
        ({"max_trials_global": 0}, UsageError, "max_trials_global must be 1 or more, not 0"),
        ({"max_trials_per_task": -1}, UsageError, "max_trials_per_task must be 1 or more"),
        ({"num_trials_per_iter": 0}, UsageError, "num_trials_per_iter must be 1 or more"),
        ({"special_space": {"main": None}}, UsageError, "nothing to tune"),
    ],
)
def test_tune_rejects_invalid_arguments(quick, tools, options, kind, words):
    with raises_line(kind, match=words):
        quick(tools.matmul(32), **options)


def test_failing_run_closes_only_a_database_that_it_opened(quick, tools, monkeypatch, opened):
    closed = []
    original = Database.close
    monkeypatch.setattr(Database, "close", lambda self: closed.append(self) or original(self))
    for options in ({}, {"database": opened(quick.path, target=LLVM)}):
        with pytest.raises(UsageError):
            quick(tools.matmul(32), strategy="luck", **options)
        assert len(closed) == 1


def test_tune_rejects_other_types_and_unknown_operator_names(quick):
    with pytest.raises(UsageError, match="a int is not an IRModule"):
        quick(3)
    with pytest.raises(UsageError, match=r"no operator has conv in its name: matmul, softmax$"):
        quick(tvm.script.from_source(RELAX), op_names=["conv"])


def test_tune_rejects_read_only_database_in_one_line(quick, tools, opened):
    closed(quick(tools.matmul(16)))
    database = opened(quick.path, target=LLVM, read_only=True)
    with raises_line(TuneDBError, match="read-only"):
        quick(tools.matmul(32), database=database)


def test_llvm_targets_without_num_cores_get_that_of_this_machine(quick, tools):
    host, cores = host_target(), int(os.environ["TVM_NUM_THREADS"])
    assert (host.kind.name, int(host.attrs["num-cores"])) == ("llvm", cores)
    assert str(host.attrs["mcpu"])
    result = closed(quick(tools.matmul(32), target={"kind": "llvm", "mcpu": "x86-64-v2"}))
    assert int(result.target.attrs["num-cores"]) == cores
    assert str(result.target.attrs["mcpu"]) == "x86-64-v2"


def test_gpu_target_without_limits_gets_those_of_this_machine(monkeypatch):
    complete = tvm.target.Target("nvidia/nvidia-a100")
    assert target_of(complete, is_remote=True).same_as(complete)
    device = {"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024}

    def reported(_device):
        return tvm.target.Target({**device, "max_shared_memory_per_block": 49152})

    monkeypatch.setattr(tvm.target.Target, "from_device", reported)
    target = target_of({"kind": "cuda", "arch": "sm_80"}, is_remote=False)
    limits = ("max_threads_per_block", "max_shared_memory_per_block")
    assert [int(target.attrs[name]) for name in limits] == [1024, 49152]
    assert str(target.attrs["arch"]) == "sm_80"


def test_gpu_target_with_unknown_limits_is_rejected(monkeypatch):
    def absent(_device):
        raise ValueError("no such device")

    monkeypatch.setattr(tvm.target.Target, "from_device", absent)
    for is_remote, reason in ((False, "no such device"), (True, "the device is remote")):
        with pytest.raises(UsageError) as caught:
            target_of("cuda", is_remote=is_remote)
        assert str(caught.value) == (
            f"target cuda: its max_threads_per_block is unknown ({reason}); give a tag such as "
            "nvidia/nvidia-a100 (tvm.target.list_tags()), or max_threads_per_block and "
            "max_shared_memory_per_block"
        )


def test_tune_opens_the_default_database_of_the_user(quick, tools, tmp_path, monkeypatch):
    monkeypatch.setenv("TUNEDB_URL", str(tmp_path / "mine.db"))
    result = closed(quick(tools.matmul(32), database=None))
    assert Path(result.database.url).name == "mine.db"


@pytest.mark.stress
def test_real_run_with_all_defaults_finds_a_correct_program(tools, tmp_path):
    """Programs are compiled and measured here; the best one computes what NumPy computes."""
    mod = tools.matmul(64)
    result = tune(mod, database=tmp_path / "tune.db", max_trials_global=8, seed=0)
    assert result.trials == 8
    (task,) = result.tasks
    records = [record.measurement for record in result.database.store.records.iterate()]
    measured = [one for one in records[:8] if one.status is Status.OK]
    assert {len(one.run_secs) for one in measured} == {3}
    # The best record is that of a trial, or of a final's rounds of three repeats each.
    assert len(task.record.measurement.run_secs) % 3 == 0
    assert task.progress.failed == 0
    assert result.costs.building > 0 and result.costs.running > 0
    with result.target, result.database:
        schedule = ms.tir_integration.compile_tir(result.database, mod, result.target)
    assert_multiplies(tvm.compile(schedule.mod, target=result.target)["main"], 64)
    result.database.close()


KILLED = """
import os, signal, sys
sys.path.insert(0, {folder!r})
from fake_measuring import FakeBuilder, FakeRunner
from matmuls import matmul
from tunedb.plugins.metaschedule.tuning.tune import tune
runner = FakeRunner()
def stop(progress):
    os.kill(os.getpid(), signal.SIGKILL)
tune(matmul(32), {target!r}, None, 8, database={path!r}, builder=FakeBuilder(), runner=runner,
     cost_model="random", num_trials_per_iter=4, num_tuning_cores=1, seed=3, on_progress=stop)
"""


@pytest.mark.stress
def test_run_of_a_killed_process_continues(quick, tools):
    script = KILLED.format(folder=str(Path(__file__).parent), target=LLVM, path=str(quick.path))
    done = subprocess.run([sys.executable, "-c", script], timeout=300, check=False)
    assert done.returncode == -9
    progress = []
    rest = closed(quick(tools.matmul(32), seed=3, on_progress=progress.append))
    assert (rest.resumed, rest.trials) == (4, 8)
    assert progress[-1].trials == progress[-1].max_trials == 8
    # The second part starts with the best program of the first one, without measuring it again.
    assert len(quick.runner.ran) + rest.served == 4
    # The run is complete, so the same arguments start a new one.
    assert closed(quick(tools.matmul(32), seed=3)).resumed == 0

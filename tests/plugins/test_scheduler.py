"""The task scheduler in TVM's own loop."""

import time
from types import SimpleNamespace

import networks
import pytest
import tvm
from fake_measuring import FakeBuilder, FakeRunner, let_batches_take_equal_time, seeded_model
from fake_tuning import tune_quickly
from matmuls import llvm as TARGET
from tvm.relax.frontend.onnx import from_onnx
from tvm.s_tir import meta_schedule as ms

from tunedb.errors import PluginError, UsageError
from tunedb.plugins.metaschedule import Database, MeasureCallback
from tunedb.plugins.metaschedule.search.strategy import EvolutionarySearch
from tunedb.plugins.metaschedule.search.task_search import TaskSearch
from tunedb.plugins.metaschedule.tuning.scheduler import TaskScheduler
from tunedb.search.scheduling import NetworkGoal, TuningGoal


@pytest.fixture
def database(tmp_path):
    with Database(tmp_path / "store.db", target=TARGET) as found:
        yield found


@pytest.fixture
def measuring(monkeypatch):
    let_batches_take_equal_time(monkeypatch)
    builder = FakeBuilder()
    yield {"builder": builder, "runner": FakeRunner(scale=1e-4)}
    builder.close()


def run(database, measuring, mod, **options):
    """Tune without compiling; return the result and the tasks of the batches, in order."""
    batches = []
    options = {"max_trials_global": 24} | measuring | options
    watch = {"on_progress": lambda progress: batches.append(progress.task.name)}
    return tune_quickly(mod, database, **watch, **options), batches


@pytest.fixture
def two(tools):
    return tvm.IRModule({"small": tools.matmul(8)["main"], "large": tools.matmul(32)["main"]})


@ms.space_generator.ScheduleFn
def space(sch):
    """Schedule small matmuls, and fail on larger ones as TVM's rules do."""
    loops = sch.get_loops(sch.get_sblock("C"))
    sch.split(loops[0], sch.sample_perfect_tile(loops[0], 2, 16))
    if int(sch.get(loops[1]).extent) > 16:
        sch.compute_inline(sch.get_sblock("C"))


def test_small_budget_goes_to_the_operators_that_cost_most(database, measuring):
    mod = from_onnx(networks.mobile())
    result, batches = run(database, measuring, mod, max_trials_global=6)
    assert len(batches) == 3 and len(set(batches)) == 3
    assert all("conv2d" in name for name in batches)
    (network,) = result.networks
    assert network.progress.latency is None and network.run is None
    assert result.tasks[0].calls == 1


def test_last_batch_keeps_to_the_budget(database, measuring, two):
    result, batches = run(database, measuring, two, max_trials_global=3)
    assert len(batches) == 2 and result.trials == 3


@pytest.mark.parametrize("scheduler", [{}, {"task_scheduler": "gradient"}])
def test_run_ends_when_the_search_finds_nothing_new(scheduler, database, measuring, tools):
    result, batches = run(database, measuring, tools.matmul(8), space=space, **scheduler)
    # A loop of 8 has four tilings. TVM's schedulers go through empty batches.
    assert result.trials == len(set(measuring["builder"].built)) == 4
    proposed = len(measuring["builder"].batches)
    assert len(batches) == proposed + (4 if scheduler else 0)


def test_early_stopping_and_least_gain_end_a_run_before_its_trials(database, measuring, tools):
    trials = [
        run(database, measuring, tools.matmul(n), max_trials_global=64, **options)[0].trials
        for n, options in ((64, {}), (128, {"early_stopping": 1}), (256, {"least_gain": 0.9}))
    ]
    assert trials[0] == 64 > max(trials[1:])


def test_second_run_spends_most_batches_on_tasks_that_the_first_left_out(database, measuring):
    mod = from_onnx(networks.symbolic(1, 8))
    strategy = EvolutionarySearch(database, population_size=8, generations=0)
    _, first = run(database, measuring, mod, strategy=strategy, max_trials_global=4)
    done, second = run(database, measuring, mod, strategy=strategy, max_trials_global=32)
    assert sum(name not in first for name in second) > len(second) / 2
    measured = all(task.record for task in done.tasks)
    assert (done.networks[0].progress.latency is not None) == measured


def test_run_notes_that_a_layout_rejected_by_tvm_is_kept(database, measuring):
    mod, layout = from_onnx(networks.mobile()), {"relax.nn.conv2d": ["NHWC", "HWIO", "X?"]}
    options = {"op_names": ("matmul",), "max_trials_global": 2}
    result, _ = run(database, measuring, mod, layout=layout, **options)
    (note,) = result.notes
    assert note.startswith("layout of relax.nn.conv2d is kept: ") and "\n" not in note
    assert result.trials == 2


def test_run_skips_task_that_tvm_cannot_tune_and_fails_if_it_is_the_only_one(
    database, measuring, tools
):
    mod = tvm.IRModule({"bad": tools.matmul(32)["main"], "good": tools.matmul()["main"]})
    result, batches = run(database, measuring, mod, space=space)
    problems = {task.name: task.problem for task in result.tasks}
    assert "init statement" in problems["bad"] and "\n" not in problems["bad"]
    assert problems["good"] is None
    assert set(batches) == {"good"}
    assert result.tasks[1].record is not None
    with pytest.raises(PluginError, match="init statement"):
        run(database, measuring, tools.matmul(32), space=space)


def test_search_that_raises_ends_only_its_task(database, measuring, two, monkeypatch):
    generate = TaskSearch.generate

    def flaky(self):
        if self.report.task == "large":
            raise ValueError("no batch")
        return generate(self)

    monkeypatch.setattr(TaskSearch, "generate", flaky)
    result, batches = run(database, measuring, two)
    problems = {task.name: task.problem for task in result.tasks}
    assert problems == {"small": None, "large": "no batch"}
    assert set(batches) == {"small"}


def test_run_ends_after_its_minutes(database, measuring, two, monkeypatch):
    clock = iter(range(0, 10_000, 30))
    fake = SimpleNamespace(monotonic=lambda: next(clock), perf_counter=time.perf_counter)
    monkeypatch.setattr("tunedb.plugins.metaschedule.tuning.scheduler.time", fake)
    _, batches = run(database, measuring, two, max_trials_global=None, minutes=2)
    assert len(batches) == 3


def test_scheduler_ends_tvms_tune_tasks_at_the_latency_goal(database, measuring, tools, tmp_path):
    goal = TuningGoal([NetworkGoal(latency=10.0)])
    scheduler = TaskScheduler(database, goal=goal, seed=1)
    tasks = [
        ms.TuneContext(
            tools.matmul(n),
            **{"target": TARGET, "space_generator": "post-order-apply", "num_threads": 1},
            **{"search_strategy": strategy, "task_name": f"matmul{n}", "rand_state": n},
        )
        for n, strategy in ((8, "replay-trace"), (16, EvolutionarySearch(database)))
    ]
    ms.tune_tasks(
        **{"tasks": tasks, "task_weights": [1.0, 2.0], "task_scheduler": scheduler},
        **{"work_dir": str(tmp_path), "max_trials_global": 32, "database": database},
        **{"measure_callbacks": [MeasureCallback(database)], "cost_model": seeded_model()},
        **measuring,
    )
    # Both times are known, and below 10 s, long before the trials end.
    assert scheduler.problems == {} and 0 < database.store.records.count() < 32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"minutes": 0}, "minutes must be positive"),
        ({"minutes": 1, "task_scheduler": "gradient"}, "minutes need the scheduler"),
        ({"early_stopping": 9, "task_scheduler": "gradient"}, "early_stopping needs the scheduler"),
        ({"early_stopping": 0}, "early stopping needs 1 trial or more, not 0"),
        ({"least_gain": 1.0}, "the least gain must be from 0 to 1"),
        ({"task_scheduler": "fastest"}, "TVM has no task_scheduler"),
        ({"latency_target": 1.0}, "weights and latency targets are for Relax programs"),
        ({"weights": {"network": 2.0}}, "weights and latency targets are for Relax programs"),
    ],
)
def test_tune_rejects_invalid_goals_and_schedulers(database, measuring, tools, options, message):
    with pytest.raises(UsageError, match=message):
        run(database, measuring, tools.matmul(), **options)


def test_scheduler_rejects_goal_of_networks_without_calls_and_database_of_tvm(database):
    with pytest.raises(UsageError, match="needs the calls of each task by each"):
        TaskScheduler(database, goal=TuningGoal([NetworkGoal(), NetworkGoal()]))
    with pytest.raises(PluginError, match="needs a tunedb database"):
        TaskScheduler(ms.database.MemoryDatabase())

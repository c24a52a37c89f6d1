import math
import re
from unittest.mock import MagicMock

import networks
import pytest
from fake_measuring import FakeRunner, let_batches_take_equal_time
from fake_tuning import tune_quickly
from matmuls import llvm
from raising import raises_line
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from tunedb.errors import UsageError
from tunedb.plugins.metaschedule import Database
from tunedb.plugins.metaschedule.deploy import network_times
from tunedb.plugins.metaschedule.deploy.apply import schedule
from tunedb.plugins.metaschedule.deploy.network_times import FunctionTime, NetworkTimer, Times
from tunedb.search.scheduling import NetworkGoal

#: Sequences of 8 and of 4: the classifiers of both networks are equal.
SHARED = {"fused_matmul1_add1", "softmax"}
OF_LONG = {"fused_matmul_add_relu_long", "mean_long"}
OF_SHORT = {"fused_matmul_add_relu_short", "mean_short"}


@pytest.fixture(scope="module")
def mods():
    return {name: from_onnx(networks.symbolic(1, n)) for name, n in (("long", 8), ("short", 4))}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Tune without compiling; return the result, and the progress after each batch."""
    let_batches_take_equal_time(monkeypatch)

    def run(mod, **options):
        history = []
        return tune_quickly(mod, database, **{"on_progress": history.append} | options), history

    with Database(tmp_path / "store.db", target=llvm) as database:
        run.database = database
        yield run


def all_have_records(mod, database):
    _, uses = schedule(mod, database)
    return bool(uses) and all(use.record_id is not None for use in uses)


def test_equal_functions_are_one_task_with_the_sum_of_network_weights(run, mods, monkeypatch):
    weights = []

    def watch(tasks, task_weights, **_):
        weights.extend(zip((str(task.task_name) for task in tasks), task_weights, strict=True))

    monkeypatch.setattr("tunedb.plugins.metaschedule.tuning.run.ms.tune_tasks", watch)
    run(mods, weights={"long": 2.0, "short": 0.5}, max_trials_per_task=1)
    expected = dict.fromkeys(OF_LONG, 2.0) | dict.fromkeys(OF_SHORT, 0.5)
    assert dict(weights) == expected | dict.fromkeys(SHARED, 2.5)


def test_each_network_has_its_own_latency_and_records_of_its_functions(run, mods):
    result, history = run(mods, weights={"short": 3.0}, max_trials_per_task=2)
    calls = {task.name: task.calls for task in result.tasks}
    assert calls == dict.fromkeys(OF_LONG | OF_SHORT, 1) | dict.fromkeys(SHARED, 2)
    assert all(all_have_records(mod, run.database) for mod in mods.values())
    seconds = {task.name: task.seconds for task in result.tasks}
    names, goals = zip(*((n.name, n.progress.goal) for n in result.networks), strict=True)
    assert names == ("long", "short")
    assert goals == (NetworkGoal(), NetworkGoal(weight=3.0))
    for network, own in zip(result.networks, (OF_LONG, OF_SHORT), strict=True):
        expected = sum(seconds[name] for name in own | SHARED)
        assert network.progress.latency == pytest.approx(expected)
        assert (network.progress.tasks, network.progress.tuned) == (4, 4)
        assert network.progress.untuned is network.run is None
    assert history[0].networks[0].latency is None
    assert history[-1].networks == tuple(network.progress for network in result.networks)
    html = result._repr_html_()
    rows = re.findall(r"<tr><td>(\w+)</td><td>([\d.]+)</td>", html.partition("</table>")[0])
    assert rows == [("long", "1"), ("short", "3")]


def test_estimated_latency_includes_measured_time_of_untuned_operators(run, mods, monkeypatch):
    def times(_timer, _executable, _inputs, name):
        latency = {"long": 2.0, "short": 1.0}[name]
        return Times(latency, {"softmax": FunctionTime(1, 0.25)}, 0.0, 1e-4)

    runner = FakeRunner(scale=1e-4)
    monkeypatch.setattr("tunedb.plugins.metaschedule.tuning.defaults.runner_of", lambda *_: runner)
    monkeypatch.setattr(network_times, "PopenPoolExecutor", MagicMock())
    monkeypatch.setattr(NetworkTimer, "times", times)
    monkeypatch.setattr(NetworkTimer, "roofline", lambda *_: None)
    options = {"runner": "local", "op_names": ("softmax",), "latency_target": {"long": 1.9}}
    result, history = run(mods, max_trials_global=2, finals=False, **options)
    seconds = result.tasks[0].seconds
    assert 0 < seconds < 0.1
    for network, rest in zip(result.networks, (1.75, 0.75), strict=True):
        assert network.progress.latency == pytest.approx(rest + seconds)
        assert network.progress.untuned == network.run.untuned
    assert history[0].networks[0].is_reached


def test_batches_go_to_the_network_of_greatest_weight(run, mods):
    _, history = run(mods, weights={"short": 1e9}, max_trials_global=6)
    assert {progress.task.name for progress in history} <= OF_SHORT | SHARED


def test_network_within_its_target_gets_no_more_trials(run, mods):
    result, history = run(mods, latency_target={"long": 10.0}, max_trials_global=40)
    reached = next(n for n, progress in enumerate(history) if progress.networks[0].is_reached)
    assert history[reached].networks[0].latency is not None
    later = {progress.task.name for progress in history[reached + 1 :]}
    assert later and later <= OF_SHORT | SHARED
    assert result.trials == 40 and result.notes == ()


@pytest.mark.stress
def test_run_ends_when_all_networks_are_within_their_targets(run, mods):
    result, history = run(mods, latency_target=10.0, max_trials_global=256)
    assert result.trials < 256
    assert [network.progress.is_reached for network in result.networks] == [True, True]
    assert not all(network.is_reached for network in history[-2].networks)
    assert result.notes == ("the estimated latency of each network is within its target",)
    again, history = run(mods, latency_target=10.0, max_trials_global=256)
    assert (again.trials, again.resumed, history, again.notes) == (0, 0, [], result.notes)
    missed, _ = run(mods, latency_target=1e-12, max_trials_global=8)
    assert missed.trials == 8 and missed.notes == ()


@pytest.mark.stress
def test_killed_run_continues_only_with_equal_weights_and_targets(run, mods):
    def stop(_progress):
        raise KeyboardInterrupt

    options = {"max_trials_global": 12, "weights": {"long": 2.0}, "latency_target": {"short": 1e-9}}
    with pytest.raises(KeyboardInterrupt):
        run(mods, on_progress=stop, **options)
    stored = run.database.store.records.count()
    assert stored
    others = {"weights": {"long": 3.0}}, {"latency_target": {"short": 2e-9}}, {"weights": None}
    for other in others:
        with pytest.raises(KeyboardInterrupt):
            run(mods, on_progress=stop, **(options | other))
    result, _ = run(mods, **options)
    assert (result.resumed, result.trials) == (stored, 12)


def test_sizes_are_bound_in_the_networks_that_have_them(run, mods):
    mods = {"any": from_onnx(networks.symbolic("batch", "length")), "short": mods["short"]}
    weights = {"any": 2.0, "any batch=1 length=4": 5.0}
    goals = {"weights": weights, "latency_target": {"any batch=1 length=8": 0.5}}
    result, _ = run(mods, bind={"batch": 1, "length": [8, 4]}, max_trials_per_task=1, **goals)
    assert {network.name: network.progress.goal for network in result.networks} == {
        "any batch=1 length=8": NetworkGoal(2.0, 0.5),
        "any batch=1 length=4": NetworkGoal(5.0),
        "short": NetworkGoal(),
    }
    # The second and the third network are equal.
    calls = {task.name: task.calls for task in result.tasks}
    assert calls == {
        "fused_matmul_add_relu_any_batch1_length8": 1,
        "mean_any_batch1_length8": 1,
        "fused_matmul_add_relu_any_batch1_length4": 2,
        "mean_any_batch1_length4": 2,
        **dict.fromkeys(SHARED, 3),
    }


def test_params_are_bound_by_name_of_their_network(run):
    mod = from_onnx(networks.symbolic(1, 4), keep_params_in_input=True)
    mod, params = relax.frontend.detach_params(mod)
    names = [str(getattr(p, "name", "") or p.name_hint) for p in mod["main"].params[1:]]
    params = dict(zip(names, params["main"], strict=True))
    result, _ = run({"net": mod}, params={"net": params}, max_trials_per_task=1)
    bound = relax.transform.BindParams("main", params)(mod)
    assert all_have_records(bound, run.database)
    with raises_line(UsageError, match="params: no network 'w'; there are: net"):
        run({"net": mod}, params={"w": 1})
    assert result.networks[0].name == "net"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": {"large": 2.0}}, "weights: no network 'large'; there are: long, short"),
        ({"latency_target": {"x": 1.0}}, "latency_target: no network 'x'; there are: long, short"),
        ({"weights": {"long": 0}}, "long: the weight must be a positive number, not 0"),
        ({"weights": {"long": math.nan}}, "long: the weight must be a positive number, not nan"),
        ({"latency_target": {"short": -1}}, "short: the latency must be a positive number, not -1"),
        ({"latency_target": math.inf}, "long: the latency must be a positive number, not inf"),
        ({"bind": {"n": 1}}, "bind: no network has a symbolic size 'n'; there are: none"),
        ({"latency_target": 1, "task_scheduler": "gradient"}, "latency_target needs the scheduler"),
    ],
)
def test_unknown_networks_and_invalid_goals_are_rejected_in_one_line(run, mods, options, message):
    with raises_line(UsageError, match=message):
        run(mods, **options)
    assert run.database.store.records.count() == 0


def test_functions_cannot_be_tuned_together_with_networks(run, mods, tools):
    with raises_line(UsageError, match="product is no Relax program: tune its functions in a run"):
        run({**mods, "product": tools.matmul()})
    result, _ = run({"product": tools.matmul()}, max_trials_global=2)
    assert result.trials == 2 and result.networks == ()

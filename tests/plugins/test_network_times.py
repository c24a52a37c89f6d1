"""Times of networks, measured in a process of their own."""

from types import SimpleNamespace

import networks
import pytest
import tvm
from raising import raises_line
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.tune_context import _normalize_mod
from tvm.script import relax as R

from tunedb.errors import PluginError
from tunedb.plugins.metaschedule import Database
from tunedb.plugins.metaschedule.deploy.algorithms import key_of, stored_digest
from tunedb.plugins.metaschedule.deploy.apply import compile_lowered, tasks_of
from tunedb.plugins.metaschedule.deploy.network import Lowering, lower
from tunedb.plugins.metaschedule.deploy.network_times import (
    FunctionTime,
    NetworkTimer,
    Times,
    inputs_of,
)
from tunedb.plugins.metaschedule.module_source import prim_funcs
from tunedb.plugins.metaschedule.tuning.network import MeasuredNetwork, tuned_networks
from tunedb.plugins.metaschedule.tuning.tasks import Network
from tunedb.search.scheduling import NetworkGoal

TARGET = tvm.target.Target(networks.LLVM)


@pytest.fixture(scope="module")
def waits():
    """What the timer has waited for."""
    return []


@pytest.fixture(scope="module")
def timer(waits):
    """A timer that measures for a short time."""

    def shorten():
        from tunedb.plugins.metaschedule.deploy import network_times
        from tunedb.plugins.metaschedule.measure import roofline

        network_times._RUNS = 5
        roofline._RUNS, roofline._ROUNDS, roofline._TRAFFIC = 1, 10_000, 1 << 22
        roofline._SIZES = 1 << 14, 1 << 16, 1 << 18

    with NetworkTimer(before=lambda: waits.append("other work"), seconds=60) as made:
        made._pool.submit(shorten).result()
        assert not waits
        yield made


def compiled(mod):
    lowered = lower(mod, TARGET, Lowering())
    return compile_lowered(lowered, None, TARGET, is_timed=True).executable


def test_timer_waits_and_returns_latency_operator_times_and_deviation(timer, waits):
    mod = from_onnx(networks.mobile(), keep_params_in_input=True)
    mod, params = relax.frontend.detach_params(mod)
    inputs = inputs_of(mod)
    waits.clear()
    assert inputs.count == 1 and len(inputs.tensors) == 1 + len(params["main"])
    # Its weights are packed by a function of the library.
    executable = compiled(mod)
    first = timer.times(executable, inputs)
    assert first.latency > 0 and (first.deviation, first.tolerance) == (0.0, 1e-4)
    names = [name for name in first.functions if "conv2d" in name]
    assert sum(first.functions[name].calls for name in names) == 4
    assert len(waits) == 1
    assert not any("builtin" in name for name in first.functions)
    assert timer.times(executable, inputs).deviation == 0.0
    # Another network deviates from the results of the first one.
    other = from_onnx(networks.mobile(channels=16))
    executable, inputs = compiled(other), inputs_of(other)
    found = timer.times(executable, inputs)
    assert found.deviation > found.tolerance
    # Under another name it is a network of its own, in the same process.
    named = [timer.times(executable, inputs, "a/b") for _ in range(2)]
    assert [each.deviation for each in named] == [0.0, 0.0]


def test_timer_reports_network_that_does_not_run_in_one_line(timer):
    @tvm.register_global_func("tunedb.test.nothing", override=True)
    def nothing(*_):
        """Exist in this process only."""

    @tvm.script.ir_module
    class Foreign:
        @R.function
        def main(x: R.Tensor((1,), "float32")) -> R.Tensor((1,), "float32"):
            return R.call_dps_packed("tunedb.test.nothing", x, R.Tensor((1,), "float32"))

    executable = tvm.compile(Foreign, target=TARGET)
    with raises_line(PluginError, match=r"tunedb\.test\.nothing"):
        timer.times(executable, inputs_of(Foreign))


def test_inputs_of_returns_none_for_symbolic_sizes_and_without_main():
    @tvm.script.ir_module
    class Symbolic:
        @R.function
        def main(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
            return x

    assert inputs_of(Symbolic) is None
    main = from_onnx(networks.mobile())["main"].with_attr("global_symbol", "forward")
    assert inputs_of(tvm.IRModule({"forward": main})) is None


def test_timer_waits_and_measures_roofline_of_this_machine(timer, waits):
    waits.clear()
    found = timer.roofline(TARGET)
    assert len(waits) == 1
    assert found.flops > 1e8
    sizes = [size for size, _ in found.bandwidths]
    assert sizes == sorted(sizes) and all(rate > 1e7 for _, rate in found.bandwidths)


def test_operator_keeps_default_program_if_that_is_faster_in_the_network(tmp_path):
    mod = from_onnx(networks.mobile())
    lowered = lower(mod, TARGET, Lowering())
    tasks = [SimpleNamespace(name=name, mod=one) for name, one in tasks_of(mod, TARGET).items()]
    keys = {name: key_of(_normalize_mod(func)) for name, func in prim_funcs(lowered.mod).items()}
    untuned = Times(1.0, {name: FunctionTime(2, 1e-3) for name in keys}, 0.0, 1e-4)

    def measure(executable):
        times = {name: FunctionTime(2, 2e-3 if name in slow else 1e-4) for name in keys}
        return Times(1.0, times, 0.0, 1e-4)

    given = Network("mobile", mod, lowered, NetworkGoal(2.0, 5e-3))
    network = MeasuredNetwork(given, TARGET, keys, measure, untuned, None)
    convs = [task for task in tasks if "conv2d" in task.name]
    slow = [name for name, key in keys.items() if key in [key_of(t.mod) for t in convs[:2]]]
    with Database(tmp_path / "tune.db", target=TARGET) as database:
        for task, seconds in zip(convs, (1e-3, 1e-5, 1e-3), strict=False):
            schedule = Schedule(task.mod)
            block = schedule.get_child_blocks(schedule.get_sblock("root"))[-1]
            schedule.unroll(schedule.get_loops(block)[-1])
            parts = schedule.trace, database.commit_workload(task.mod), [seconds], TARGET, None
            database.commit_tuning_record(ms.database.TuningRecord(*parts))
        run = network.finish(database, 2, tasks)
        assert (run.name, run.weight, run.latency_target) == ("mobile", 2.0, 5e-3)
        digests = {stored_digest(database._handle, task.mod) for task in convs[:2]}
        assert {each.workload for each in run.slower} == digests
        assert network.keep_untuned(database, run, tasks) == {key_of(convs[0].mod)}
        first, second = (
            database.query_tuning_record(task.mod, TARGET, "main") for task in convs[:2]
        )
        # 1e-3 s for two calls in the untuned network.
        assert [float(each) for each in first.run_secs] == [5e-4]
        applied = database.query_schedule(convs[0].mod, TARGET, "main").mod
        tvm.ir.assert_structural_equal(applied, convs[0].mod)
        # The record of the second one stays: it is faster than the default program.
        assert [float(each) for each in second.run_secs] == [1e-5]
        assert not network.keep_untuned(database, run, tasks)


class FakeNetwork:
    """A network of one operator, whose default program may be faster than the tuned one."""

    def __init__(self, name, workload, *, changes=False, fails=False):
        self.network = SimpleNamespace(name=name)
        self.functions = {"main": workload}
        self.changes, self.fails, self.measured = changes, fails, 0

    def finish(self, *_):
        self.measured += 1
        if self.fails:
            raise PluginError("no device")
        return f"{self.network.name} {self.measured}"

    def keep_untuned(self, *_):
        return set(self.functions.values()) if self.changes else set()


def test_networks_that_share_a_changed_operator_are_measured_again():
    networks = [
        FakeNetwork("first", "shared"),
        FakeNetwork("second", "shared", changes=True),
        FakeNetwork("third", "own"),
        FakeNetwork("broken", "shared", fails=True),
    ]
    notes = []
    runs = list(tuned_networks(networks, None, 2, [], notes))
    assert runs == ["first 2", "second 2", "third 1"]
    assert notes == ["broken: the tuned network is not measured: no device"]

"""Weights of large networks are not in the caches when a program is measured."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import MagicMock

import networks
import numpy as np
import pytest
import tvm
from fake_measuring import FakeBuilder, FakeRunner
from tvm.relax.frontend.onnx import from_onnx
from tvm.s_tir.meta_schedule.runner import EvaluatorConfig

from tunedb.plugins.metaschedule.measure import cold_weights as cold
from tunedb.plugins.metaschedule.measure import racing
from tunedb.plugins.metaschedule.measure.racing import Race, RacingRunner
from tunedb.plugins.metaschedule.tuning import run as tuning_run
from tunedb.plugins.metaschedule.tuning import tune as tuning
from tunedb.plugins.metaschedule.tuning.defaults import prefetches
from tunedb.plugins.metaschedule.workers import warm_builder
from tunedb.plugins.metaschedule.workers.warm_builder import WarmBuilder
from tunedb.system.host import fingerprint_of

CONFIG = EvaluatorConfig(number=1, repeat=3, min_repeat_ms=30)
TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 2, "mcpu": "x86-64-v2"})
GPU = tvm.target.Target("nvidia/nvidia-a100")


class FakeProgram:
    """A compiled function whose n-th run takes n milliseconds.

    `calls` has the number of runs of each call of TVM's evaluator.
    """

    entry_name = "main"

    def __init__(self):
        self.calls, self.ran = [], 0

    def time_evaluator(self, _name, _device, *, number, repeat, f_preproc):
        assert number == 1

        def evaluate(*arguments):
            self.calls.append(repeat)
            results = []
            for _ in range(repeat):
                tvm.get_global_func(f_preproc)(*arguments)
                self.ran += 1
                results.append(1e-3 * self.ran)
            return SimpleNamespace(results=results)

        return evaluate


@pytest.fixture
def flushed(monkeypatch):
    """The arguments that TVM's function flushes from the caches; it skips its first argument."""
    found, real = [], tvm.get_global_func

    def get(name):
        if name == "cache_flush_cpu_non_first_arg":
            return lambda _first, *others: found.append(others)
        return real(name)

    monkeypatch.setattr(cold.tvm, "get_global_func", get)
    return found


def test_cold_repeats_flushes_weights_before_each_run(flushed):
    arguments, weights = ["x", "w", "bias", "v", "out"], (1, 3)

    def measured(already=0, **changes):
        """Measure a program that has run some times; return its calls and its seconds."""
        flushed.clear()
        program = FakeProgram()
        program.ran = already
        seconds = cold.cold_repeats(program, None, CONFIG._replace(**changes), arguments, weights)
        return program.calls, seconds

    # The median of the first three runs is 2 ms, so a repeat has 15 runs: runs 4 to 18, 19 to 33
    # and 34 to 48.
    assert measured() == ([1, 2, 45], pytest.approx([11e-3, 26e-3, 41e-3]))
    assert flushed == [("w", "v")] * 48
    # A slow program runs once before its repeats.
    assert measured(299) == ([1, 3], [0.301, 0.302, 0.303])
    # Without min_repeat_ms the number of runs is the given one.
    calls, seconds = measured(number=7, repeat=2, min_repeat_ms=0)
    assert (calls, len(seconds)) == ([14], 2)
    # All arguments but the first are flushed on request.
    measured(enable_cpu_cache_flush=True, repeat=1, min_repeat_ms=0)
    assert flushed == [("w", "bias", "v", "out")]


def test_cold_repeats_measures_compiled_program():
    a, w = (tvm.te.placeholder((n,), "float32", name) for n, name in ((64, "a"), (1 << 17, "w")))
    total = tvm.te.compute((64,), lambda i: a[i] + w[i * 2048], "total")
    mod = tvm.IRModule({"main": tvm.te.create_prim_func([a, w, total])})
    arrays = [tvm.runtime.tensor(np.ones(n, "float32")) for n in (64, 1 << 17, 64)]
    library = tvm.compile(mod, target="llvm")
    config = CONFIG._replace(min_repeat_ms=1)
    seconds = cold.cold_repeats(library.mod, tvm.cpu(), config, arrays, (1,))
    assert len(seconds) == 3 and all(0 < each < 1 for each in seconds)
    assert (arrays[2].numpy() == 2).all()


@pytest.mark.parametrize("free", [None, [1], [1, 2]])
def test_cold_weights_returns_large_layout_free_parameters(free):
    shapes = {"x": (512, 512), "w": (512, 512), "bias": (512,)}
    tensors = [tvm.te.placeholder(shape, "float32", name) for name, shape in shapes.items()]
    x, w, bias = tensors
    total = tvm.te.compute((512, 512), lambda i, j: x[i, j] + w[j, i] + bias[j], "total")
    function = tvm.te.create_prim_func([*tensors, total])
    if free is not None:
        function = function.with_attr("layout_free_buffers", free)
    mod = tvm.IRModule({"main": function})
    assert cold.cold_weights(mod) == (() if free is None else (1,))
    assert cold.weight_bytes(mod) == sum([4 * 512 * 512, 4 * 512][: len(free or ())])


def test_racing_runner_passes_weights_of_the_current_task(monkeypatch):
    seen = []

    class Inner:
        def __init__(self, evaluator_config):
            pass

        def run(self, inputs):
            seen.append(self.f_run_evaluator.keywords["weights"])
            result = SimpleNamespace(error_msg="stop", run_secs=None)
            return [SimpleNamespace(result=lambda: result) for _ in inputs]

    monkeypatch.setattr(racing, "LocalRunner", Inner)
    race = Race()
    runner = RacingRunner(CONFIG, race, [(1,), (), (2, 3)])
    runner.run(["a"])
    for task, is_whole in ((0, False), (1, False), (2, False), (2, True)):
        race.begin(task, is_whole=is_whole)
        runner.run(["a"])
    assert seen == [(), (1,), (), (2, 3), (2, 3)]
    RacingRunner(CONFIG, race).run(["a"])
    assert seen[-1] == ()


def test_run_race_measures_all_repeats_with_cold_weights(monkeypatch):
    calls = []

    def measure(_module, _device, config, arguments, weights):
        calls.append((config.number, config.repeat, config.min_repeat_ms, arguments, weights))
        return [1e-3] * config.repeat

    monkeypatch.setattr(racing, "cold_repeats", measure)
    assert racing.run_race(None, None, CONFIG, [["x", "w"]], bound=1.0, weights=(1,)) == [1e-3] * 3
    # The first repeat determines how many runs take as long.
    assert calls == [(1, 1, 30, ["x", "w"], (1,)), (30, 2, 0, ["x", "w"], (1,))]


@pytest.mark.parametrize(
    ("cache", "changes", "is_cold"),
    [
        (0, {}, True),
        (1 << 40, {}, False),
        (None, {}, False),  # unknown
        (0, {"racing": False, "builder": "warm"}, True),
        (0, {"runner": FakeRunner()}, False),
        (0, {"prepack": False}, False),  # weights are not known
        (0, {"target": GPU, "prepack": True}, False),
    ],
)
def test_run_has_cold_weights_beyond_the_caches(cache, changes, is_cold, tmp_path, monkeypatch):
    """A run begins; another builder than the warm one does not prefetch."""
    monkeypatch.setattr(warm_builder, "WorkerPool", MagicMock())  # nothing is built
    monkeypatch.setattr(cold, "_LEAST_BYTES", 1024)
    monkeypatch.setattr(cold, "last_cache", lambda: cache)
    builder = networks.Builder()
    out = builder.bare_convolution("image", 8, 64, 1)
    mod = from_onnx(builder.model(out, {"image": [1, 8, 4, 4]}, [1, 64, 4, 4]))
    options = {"target": TARGET, "measure_network": False, "builder": FakeBuilder(), **changes}
    seen, begin = [], tuning_run.Run.begin

    def keep(options, stack):
        run = begin(options, stack)
        seen.extend([run, fingerprint_of(run.database._handle.session())])
        raise StopIteration

    with monkeypatch.context() as context, pytest.raises(StopIteration):
        context.setattr(tuning_run.Run, "begin", keep)
        tuning.tune(mod, database=tmp_path / "tune.db", **options)
    run, fingerprint = seen
    assert any(run.cold) is is_cold
    evaluator = fingerprint.get("evaluator") or {}
    assert evaluator.get("cold_weights", False) is is_cold
    assert evaluator.get("prefetch") is ((changes.get("builder") == "warm") if is_cold else None)


def test_builds_of_warm_builder_prefetch_unless_the_user_has_a_build_function(monkeypatch):
    monkeypatch.setattr(warm_builder, "WorkerPool", MagicMock())  # nothing is built
    assert prefetches("warm") and not prefetches("local")
    with WarmBuilder(max_workers=1) as builder:
        assert prefetches(builder)
    with WarmBuilder(max_workers=1, f_build="mine") as builder:
        assert not prefetches(builder)


@pytest.mark.parametrize(
    ("choices", "found"),
    [
        ((), [(1,), (), (), ()]),
        ((({0: 1.0}, {2: 1.0}),), [(1,), (), (1,), ()]),  # of two algorithms
    ],
)
def test_only_tasks_of_networks_beyond_the_caches_are_cold(choices, found, monkeypatch):
    sizes = iter([1, 1 << 40])
    monkeypatch.setattr(tuning_run, "_weight_bytes", lambda _: next(sizes))
    monkeypatch.setattr(cold, "last_cache", lambda: 1 << 20)
    monkeypatch.setattr(tuning_run, "cold_weights", lambda _: (1,))
    tasks = [SimpleNamespace(mod=None, calls=calls) for calls in ((0, 1), *[(1, 0)] * 3)]
    small, large = (SimpleNamespace(goal=SimpleNamespace(choices=one)) for one in ((), choices))
    assert tuning_run._cold(tasks, [small, large], TARGET) == found


def test_weight_bytes_counts_largest_algorithm_of_each_operator():
    def operator(size, weight=1):
        x = tvm.te.placeholder((size,), "float32", "x")
        function = tvm.te.create_prim_func([x, tvm.te.compute((size,), lambda i: x[i] + 1)])
        mod = tvm.IRModule({"main": function.with_attr("layout_free_buffers", [0])})
        return SimpleNamespace(dispatched=[mod], weight=weight)

    network = SimpleNamespace(
        operators=[operator(10, weight=3), operator(100)],
        algorithms=[
            [("F2", [operator(10, weight=3), operator(178)]), ("F4", [operator(400)])],
            [("F2", [operator(5)])],
        ],
    )
    # 130 numbers, and 270 more for F4 in place of both.
    assert tuning_run._weight_bytes(network) == 4 * (130 + 270)

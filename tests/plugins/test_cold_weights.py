"""Weights of large networks are not in the caches when a program is measured."""

from __future__ import annotations

from types import SimpleNamespace

import networks
import numpy as np
import pytest
import tvm
from tvm.relax.frontend.onnx import from_onnx
from tvm.s_tir.meta_schedule.runner import EvaluatorConfig

from tunedb.plugins.metaschedule.deploy.network import Lowering, lower, weight_bytes
from tunedb.plugins.metaschedule.measure import cold_weights as cold
from tunedb.plugins.metaschedule.measure import racing
from tunedb.plugins.metaschedule.measure.racing import Race, RacingRunner
from tunedb.plugins.metaschedule.tuning import run as tuning_run
from tunedb.plugins.metaschedule.tuning import tune as tuning
from tunedb.system.host import fingerprint_of

CONFIG = EvaluatorConfig(number=1, repeat=3, min_repeat_ms=30)
TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 2, "mcpu": "x86-64-v2"})


class FakeProgram:
    """A compiled function whose n-th run takes n milliseconds.

    It notes what TVM's evaluator would do: the runs of each call, and the flushed arguments.
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
    """Arguments that TVM's function removes from the caches, the first of which it skips."""
    found, real = [], tvm.get_global_func

    def get(name):
        if name == "cache_flush_cpu_non_first_arg":
            return lambda _first, *others: found.append(others)
        return real(name)

    monkeypatch.setattr(cold.tvm, "get_global_func", get)
    return found


def test_each_run_begins_with_cold_weights(flushed):
    program = FakeProgram()
    seconds = cold.cold_repeats(program, None, CONFIG, ["x", "w", "bias", "v", "out"], (1, 3))
    # The first run takes 1 ms, so 30 of them are a repeat.
    assert program.calls == [1, 90]
    assert flushed == [("w", "v")] * 91
    # Runs 2 to 31, 32 to 61 and 62 to 91.
    assert seconds == pytest.approx([16.5e-3, 46.5e-3, 76.5e-3])


@pytest.mark.parametrize(("number", "calls"), [(1, [2]), (7, [14])])
def test_short_looks_have_the_given_runs(number, calls, flushed):
    program = FakeProgram()
    config = CONFIG._replace(number=number, repeat=2, min_repeat_ms=0)
    assert len(cold.cold_repeats(program, None, config, ["x", "w"], (1,))) == 2
    assert program.calls == calls


def test_a_real_program_is_measured():
    a, w = (tvm.te.placeholder((n,), "float32", name) for n, name in ((64, "a"), (1 << 17, "w")))
    total = tvm.te.compute((64,), lambda i: a[i] + w[i * 2048], "total")
    mod = tvm.IRModule({"main": tvm.te.create_prim_func([a, w, total])})
    arrays = [tvm.runtime.tensor(np.ones(n, "float32")) for n in (64, 1 << 17, 64)]
    library = tvm.compile(mod, target="llvm")
    config = CONFIG._replace(min_repeat_ms=1)
    seconds = cold.cold_repeats(library.mod, tvm.cpu(), config, arrays, (1,))
    assert len(seconds) == 3
    assert all(0 < each < 1 for each in seconds)
    assert (arrays[2].numpy() == 2).all()


@pytest.mark.parametrize("free", [None, [1], [1, 2]])
def test_weights_are_large_parameters_of_free_layout(free):
    shapes = {"x": (512, 512), "w": (512, 512), "bias": (512,)}
    tensors = [tvm.te.placeholder(shape, "float32", name) for name, shape in shapes.items()]
    x, w, bias = tensors
    total = tvm.te.compute((512, 512), lambda i, j: x[i, j] + w[j, i] + bias[j], "total")
    function = tvm.te.create_prim_func([*tensors, total])
    if free is not None:
        function = function.with_attr("layout_free_buffers", free)
    assert cold.cold_weights(tvm.IRModule({"main": function})) == (() if free is None else (1,))


def test_bytes_of_weights_are_those_of_constants_and_of_weight_parameters():
    lowered = lower(from_onnx(networks.mobile()), TARGET, Lowering())
    expected = sum(
        np.prod(tensor.dims, dtype=int) * 4 for tensor in networks.mobile().graph.initializer
    )
    # Batch norms are folded into weights and biases.
    assert 0 < weight_bytes(lowered.mod) <= expected
    kept = from_onnx(networks.mobile(), keep_params_in_input=True)
    assert weight_bytes(lower(kept, TARGET, Lowering()).mod) == pytest.approx(expected, rel=0.2)


def test_the_runner_takes_the_weights_of_the_task(monkeypatch):
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


def test_a_race_measures_cold_weights_in_all_its_parts(monkeypatch):
    calls = []

    def measure(_module, _device, config, arguments, weights):
        calls.append((config.number, config.repeat, config.min_repeat_ms, arguments, weights))
        return [1e-3] * config.repeat

    monkeypatch.setattr(racing, "cold_repeats", measure)
    lists = [["x", "w"]]
    assert racing.run_race(None, None, CONFIG, lists, bound=1.0, weights=(1,)) == [1e-3] * 3
    assert calls == [(1, 1, 30, ["x", "w"], (1,)), (30, 2, 30, ["x", "w"], (1,))]


@pytest.mark.parametrize(
    ("cache", "changes", "is_cold"),
    [
        (0, {}, True),
        (1 << 40, {}, False),
        (None, {}, False),  # unknown
        (0, {"racing": False}, False),  # another runner
        (0, {"prepack": False}, False),  # weights are not told apart
    ],
)
def test_networks_that_exceed_the_caches_are_measured_so(
    cache, changes, is_cold, tmp_path, monkeypatch
):
    monkeypatch.setattr(tuning_run, "last_cache", lambda: cache)
    monkeypatch.setattr(cold, "_LEAST_BYTES", 1024)
    seen = []

    def keep(options, stack):
        run = begin(options, stack)
        fingerprint = fingerprint_of(run.database._handle.session())
        seen.append((any(run.cold), fingerprint["evaluator"].get("cold_weights", False)))
        raise StopIteration

    begin = tuning_run.Run.begin
    monkeypatch.setattr(tuning_run.Run, "begin", keep)
    arguments = {"measure_network": False, "database": tmp_path / "tune.db", **changes}
    with pytest.raises(StopIteration):
        tuning.tune(from_onnx(networks.mobile()), TARGET, **arguments)
    assert seen == [(is_cold, is_cold)]

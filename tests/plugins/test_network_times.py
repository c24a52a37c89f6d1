"""Times of networks, measured in a process of their own."""

import networks
import pytest
import tvm
from raising import raises_line
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx
from tvm.script import relax as R

from tunedb.errors import PluginError
from tunedb.plugins.metaschedule.deploy.apply import compile_lowered
from tunedb.plugins.metaschedule.deploy.network import Lowering, lower
from tunedb.plugins.metaschedule.deploy.network_times import NetworkTimer, inputs_of

TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 2, "mcpu": "x86-64-v2"})


@pytest.fixture(scope="module")
def timer():
    with NetworkTimer(seconds=60) as made:
        yield made


def compiled(mod):
    lowered = lower(mod, TARGET, Lowering())
    return compile_lowered(lowered, None, TARGET).executable


def test_a_network_and_its_operators(timer):
    mod = from_onnx(networks.mobile(), keep_params_in_input=True)
    mod, params = relax.frontend.detach_params(mod)
    inputs = inputs_of(mod)
    assert inputs.count == 1 and len(inputs.tensors) == 1 + len(params["main"])
    # Its weights are packed by a function of the library.
    first = timer.times(compiled(mod), inputs)
    assert first.latency > 0 and (first.deviation, first.tolerance) == (0.0, 1e-4)
    names = [name for name in first.functions if "conv2d" in name]
    assert sum(first.functions[name].calls for name in names) == 4
    assert not any("builtin" in name for name in first.functions)
    again = timer.times(compiled(mod), inputs)
    assert again.deviation == 0.0
    # The network with other weights.
    other = from_onnx(networks.mobile(channels=16))
    found = timer.times(compiled(other), inputs_of(other))
    assert found.deviation > found.tolerance


def test_a_network_that_does_not_run_is_reported_in_one_line(timer):
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


def test_sizes_that_are_variables_are_unknown():
    @tvm.script.ir_module
    class Symbolic:
        @R.function
        def main(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
            return x

    assert inputs_of(Symbolic) is None


def test_limits_of_this_machine(timer):
    found = timer.roofline(TARGET)
    assert found.flops > 1e8
    sizes = [size for size, _ in found.bandwidths]
    assert sizes == sorted(sizes) and all(rate > 1e7 for _, rate in found.bandwidths)

"""Tensors that are quantised and dequantised by constants are computed as rounded floats."""

import networks
import numpy as np
import onnx
import pytest
import tvm
from modern_networks import quantised_mobilenet
from onnx.reference import ReferenceEvaluator
from tvm import relax

from tunedb.plugins.metaschedule.deploy.apply import compile_lowered
from tunedb.plugins.metaschedule.deploy.network import Lowering, lower
from tunedb.plugins.metaschedule.module_source import load_module

TARGET = tvm.target.Target(networks.LLVM)


@pytest.fixture
def lowered(tmp_path):
    """A function that lowers a model."""

    def lowered(model):
        onnx.save(model, str(tmp_path / "m.onnx"))
        return lower(load_module(tmp_path / "m.onnx"), TARGET, Lowering())

    return lowered


def results(network, array):
    executable = compile_lowered(network, None, TARGET).executable
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(array))
    return found.numpy()


def expected(model, array):
    model.opset_import[0].version = 19  # the first version of which it has these operators
    (found,) = ReferenceEvaluator(model).run(None, {model.graph.input[0].name: array})
    return found


def chain(dtype, scale, zero, other=None, axis=1):
    """Return a model that quantises and dequantises, the latter with another scale and zero."""
    b = networks.Builder()
    data = "x"
    for kind, (size, place) in (
        ("QuantizeLinear", (scale, zero)),
        ("DequantizeLinear", other or (scale, zero)),
    ):
        data = b.node(kind, [data, b.constant(size), b.constant(place, dtype)], axis=axis)
    return b.model(data, {"x": [2, 64]}, [2, 64])


#: Multiples of a half, with ties and numbers beyond the range of eight bits.
HALVES = (np.arange(128, dtype="float32").reshape(2, 64) - 64) * 0.5


@pytest.mark.parametrize(
    ("dtype", "scale", "zero", "other"),
    [
        ("uint8", 1.0, 0, None),
        ("uint8", 0.25, 128, None),
        ("int8", 0.0625, -3, None),
        ("int8", 0.3, 5, (0.7, -4)),
    ],
)
def test_quantisation_by_constants_is_rounding_to_even(dtype, scale, zero, other, lowered):
    model = chain(dtype, scale, zero, other)
    network = lowered(model)
    assert dtype not in str(network.mod.script())
    assert (results(network, HALVES) == expected(model, HALVES)).all()


@pytest.mark.parametrize("zero", [0, 7])
def test_quantised_results_stay_integers(zero, lowered):
    b = networks.Builder()
    data = b.node("QuantizeLinear", ["x", b.constant(0.5), b.constant(zero, "uint8")])
    model = b.model(data, {"x": [2, 64]}, [2, 64])
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.UINT8
    found = results(lowered(model), HALVES)
    assert found.dtype == "uint8"
    assert (found == expected(model, HALVES)).all()


def test_scales_of_channels_stay_with_tvm(lowered):
    scales = np.linspace(0.3, 0.9, 64)
    model = chain("uint8", scales, np.arange(64))
    network = lowered(model)
    assert "quantize" in str(network.mod.script())
    numbers = np.random.default_rng(0).normal(size=(2, 64)).astype("float32") * 20
    np.testing.assert_allclose(results(network, numbers), expected(model, numbers), rtol=1e-6)


def test_quantised_networks_are_fused_without_transpositions(lowered):
    model = quantised_mobilenet(32, width=4, blocks=2)
    network = lowered(model)
    assert network.notes == ()
    names = [str(task.task_name) for task in network.tasks(TARGET)]
    transposed = [name for name in names if "transpose" in name]
    assert len(transposed) <= 2  # of the image and the pooled tensor
    assert not any("quantize" in name for name in names)
    image = np.random.default_rng(0).normal(size=(1, 3, 32, 32)).astype("float32")
    found, reference = results(network, image), expected(model, image)
    # A sum near a tie may be rounded to the other neighbour: a step of a few activations.
    np.testing.assert_allclose(found, reference, atol=0.1 * np.abs(reference).max())

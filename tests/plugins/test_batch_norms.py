"""Batch norms disappear in the convolutions before them."""

import networks
import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from tunedb.plugins.metaschedule.deploy.batch_norms import fold_batch_norms
from tunedb.plugins.metaschedule.deploy.folding import fold_constants
from tunedb.plugins.metaschedule.deploy.layouts import operators_of

TARGET = tvm.target.Target(networks.LLVM)


def network(kind, axes, groups, *, bias=False, users=1):
    """Return a convolution and its batch norm; with two users, both results are added."""
    b = networks.Builder()
    shape = (8, 8 // groups, *[3] * axes)
    weights = [b.weight(*shape), *([b.weight(8)] if bias else [])]
    data = b.node(kind, ["data", *weights], group=groups, pads=[1] * (2 * axes))
    result = b.norm(data, 8)
    result = b.node("Add", [data, result]) if users == 2 else b.node("Relu", [result])
    extents = [1, 8, *[5] * axes]
    return from_onnx(b.model(result, {"data": extents}, extents))


def result_of(mod, data):
    machine = relax.VirtualMachine(tvm.compile(mod, target=TARGET), tvm.cpu())
    return machine["main"](tvm.runtime.tensor(data)).numpy()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("kind", "axes"), [("Conv", 1), ("Conv", 2), ("ConvTranspose", 2)])
def test_a_folded_network_computes_the_same(kind, axes, groups, bias):
    mod = network(kind, axes, groups, bias=bias)
    # The importer reshapes the bias.
    folded = fold_batch_norms(fold_constants(mod))
    assert "relax.nn.batch_norm" in operators_of(mod)
    assert len(operators_of(folded)) == 3
    assert {"relax.add", "relax.nn.relu"} < operators_of(folded)
    assert str(folded).count("R.add") == 1
    data = np.random.default_rng(0).normal(size=(1, 8, *[5] * axes)).astype("float32")
    np.testing.assert_allclose(result_of(folded, data), result_of(mod, data), rtol=1e-4, atol=1e-5)


def test_a_convolution_with_another_user_is_not_computed_twice():
    folded = fold_batch_norms(network("Conv", 2, 1, users=2))
    assert "relax.nn.batch_norm" in operators_of(folded)
    assert str(folded).count("nn.conv2d") == 1

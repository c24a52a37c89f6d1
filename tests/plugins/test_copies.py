"""Many small tensors are joined and divided by copies."""

import networks
import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx
from tvm.script import relax as R

from tunedb.plugins.metaschedule.deploy.apply import compile_lowered
from tunedb.plugins.metaschedule.deploy.copies import copy_many
from tunedb.plugins.metaschedule.deploy.network import Lowering, lower
from tunedb.plugins.metaschedule.module_source import prim_funcs

TARGET = tvm.target.Target(networks.LLVM)


def divided(sizes, axis, shape):
    """Return a model that divides a tensor, and joins the parts in the opposite order."""
    b = networks.Builder()
    parts = b.several(
        "Split", [b.node("Relu", ["x"]), b.constant(sizes, "int64")], len(sizes), axis
    )
    joined = b.node("Concat", parts[::-1], axis=axis)
    return b.model(b.node("Neg", [joined]), {"x": shape}, shape)


def lowered(sizes, axis, shape):
    return lower(from_onnx(divided(sizes, axis, shape)), TARGET, Lowering())


@pytest.mark.parametrize(
    ("sizes", "axis", "shape"),
    [([1] * 20, 0, [20, 3, 4]), ([1, 2] * 9, 1, [2, 27, 3]), ([3] * 16, -1, [2, 48])],
)
def test_many_parts_are_copied(sizes, axis, shape):
    network = lowered(sizes, axis, shape)
    names = [str(task.task_name) for task in network.tasks(TARGET)]
    assert sorted(names) == ["relu", "tir_negative"]
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    machine = relax.VirtualMachine(compile_lowered(network, None, TARGET).executable, tvm.cpu())
    found = machine["main"](tvm.runtime.tensor(x)).numpy()
    parts = np.split(np.maximum(x, 0), np.cumsum(sizes)[:-1], axis)
    np.testing.assert_array_equal(found, -np.concatenate(parts[::-1], axis))


@pytest.mark.parametrize(
    ("sizes", "shape"), [([1] * 15, [15, 4]), ([1] * 16, [16, 1 << 15])], ids=["few", "large"]
)
def test_few_and_large_parts_are_left_to_tvm(sizes, shape):
    assert not any("copied" in name for name in prim_funcs(lowered(sizes, 0, shape).mod))


def test_a_division_into_one_part_stays():
    """Its result is a tensor: PyTorch's ``x.split(5)`` of five rows."""
    b = relax.BlockBuilder()
    x = relax.Var("x", R.Tensor((5, 4), "float32"))
    with b.function("main", [x]):
        with b.dataflow():
            result = b.emit_output(relax.op.split(x, 1, 0))
        b.emit_func_output(result)
    mod = b.finalize()
    assert tvm_ffi.structural_equal(copy_many(mod), mod)

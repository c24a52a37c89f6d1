"""Transposed convolutions become convolutions whose results are interleaved."""

from itertools import product

import networks
import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx
from tvm.script import ir as I
from tvm.script import relax as R

from tunedb.plugins.metaschedule.compat import arguments_of
from tunedb.plugins.metaschedule.deploy.apply import compile_lowered
from tunedb.plugins.metaschedule.deploy.network import Lowering, lower
from tunedb.plugins.metaschedule.module_source import prim_funcs
from tunedb.plugins.metaschedule.modules import FREE_LAYOUTS

TARGET = tvm.target.Target(networks.LLVM)

#: Extents, weights, strides, dilations, paddings before and after, more results at the end, groups.
CASES = {
    "2x2, stride 2, as in U-Net": ((5, 4), (2, 2), (2, 2), (1, 1), (0, 0, 0, 0), (0, 0), 1),
    "4x4, stride 2, as in DCGAN": ((4, 4), (4, 4), (2, 2), (1, 1), (1, 1, 1, 1), (0, 0), 1),
    "3x3, stride 2": ((4, 3), (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), (1, 1), 2),
    "fewer weights than strides": ((3, 4), (1, 2), (3, 3), (1, 1), (0, 0, 0, 0), (2, 1), 1),
    "unequal": ((4, 5), (5, 2), (2, 3), (1, 1), (3, 0, 2, 1), (0, 2), 3),
    "stride 1": ((5, 5), (3, 2), (1, 1), (2, 1), (1, 0, 3, 1), (0, 0), 2),
    "one axis": ((7,), (5,), (3,), (1,), (2, 1), (1,), 2),
    "three axes": ((2, 3, 2), (2, 3, 4), (2, 1, 2), (1, 1, 1), (0, 1, 1, 0, 1, 1), (0, 0, 1), 1),
}


def reference(data, weights, strides, dilations, padding, more, groups):
    """Return the transposed convolution by its definition: each element adds its products."""
    inputs, outputs, *sizes = weights.shape
    extents, number = data.shape[2:], len(sizes)
    whole = [
        (extent - 1) * stride + dilation * (size - 1) + 1 + end
        for extent, stride, dilation, size, end in zip(
            extents, strides, dilations, sizes, more, strict=True
        )
    ]
    result = np.zeros((1, groups * outputs, *whole))
    for channel, place, tap in product(range(inputs), np.ndindex(*extents), np.ndindex(*sizes)):
        group = channel // (inputs // groups)
        at = tuple(np.array(place) * strides + np.array(tap) * dilations)
        channels = slice(group * outputs, (group + 1) * outputs)
        products = data[(0, channel, *place)] * weights[(channel, slice(None), *tap)]
        result[(0, channels, *at)] += products
    ends = zip(whole, padding[:number], padding[number:], strict=True)
    return result[(..., *(slice(first, extent - last) for extent, first, last in ends))]


def network(data, weights, strides, dilations, padding, more, groups, shape):
    b = networks.Builder()
    node = b.node(
        *("ConvTranspose", ["data", b.constant(weights)]),
        **{"kernel_shape": weights.shape[2:], "strides": strides, "dilations": dilations},
        **{"pads": padding, "output_padding": more, "group": groups},
    )
    return from_onnx(b.model(node, {"data": data.shape}, shape))


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_the_definition(name):
    extents, sizes, strides, dilations, padding, more, groups = CASES[name]
    rng = np.random.default_rng(0)
    data = rng.normal(size=(1, 2 * groups, *extents)).astype("float32")
    weights = rng.normal(size=(2 * groups, 3, *sizes)).astype("float32")
    options = (strides, dilations, padding, more, groups)
    expected = reference(data, weights, *options)
    mod = network(data, weights, *options, expected.shape)
    for layout in ("auto", "keep"):
        lowered = lower(mod, TARGET, Lowering(layout))
        names = prim_funcs(lowered.mod)
        assert not any("conv" in each and "transpose" in each for each in names), names
        machine = relax.VirtualMachine(compile_lowered(lowered, None, TARGET).executable, tvm.cpu())
        found = machine["main"](tvm.runtime.tensor(data)).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_an_upsampled_network_has_channels_last_throughout():
    """A decoder as U-Net has it: transposed convolution, activation, concatenation."""
    b = networks.Builder()
    skipped = b.convolution("image", 3, 8, 3)
    down = b.node("MaxPool", [skipped], kernel_shape=[2, 2], strides=[2, 2])
    up = b.node("ConvTranspose", [down, b.weight(8, 8, 2, 2), b.weight(8)], strides=[2, 2])
    up = b.node("Relu", [b.norm(up, 8)])
    data = b.convolution(b.node("Concat", [up, skipped], axis=1), 16, 8, 3)
    mod = from_onnx(b.model(data, {"image": [1, 3, 8, 8]}, [1, 8, 8, 8]))
    names = list(prim_funcs(lower(mod, TARGET, Lowering()).mod))
    # Into and out of the layout, and the interleaving.
    assert sum(name.count("transpose") for name in names) == 3, names
    assert not any("subtract" in name or "divide" in name for name in names), names
    assert any("reshape" in name and "add" in name and "relu" in name for name in names), names


@I.ir_module
class Computed:
    """A transposed and a usual convolution whose weights are parameters."""

    @R.function
    def main(
        x: R.Tensor((1, 4, 8, 8), "float32"),
        w: R.Tensor((4, 4, 4, 4), "float32"),
        v: R.Tensor((4, 4, 3, 3), "float32"),
    ) -> R.Tensor((1, 4, 14, 14), "float32"):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            a = R.nn.conv2d_transpose(x, w, strides=[2, 2], padding=[1, 1, 1, 1])
            b = R.nn.conv2d(a, v)
            R.output(b)
        return b


def test_tvm_chooses_no_layout_for_weights_that_are_read_backwards():
    lowered = lower(Computed, TARGET, Lowering("keep", prepack=True))
    free = {
        name: list(func.attrs[FREE_LAYOUTS])
        for name, func in prim_funcs(lowered.mod).items()
        if func.attrs and FREE_LAYOUTS in func.attrs
    }
    assert "conv2d_transpose" in prim_funcs(lowered.mod)
    assert "conv2d_transpose" not in free
    assert free["conv2d"] == [1]


@I.ir_module
class Sliced:
    """Weights that are read in part by their own or by a later step, backwards, and whole."""

    @R.function
    def main(
        x: R.Tensor((4, 128), "float32"),
        u: R.Tensor((128,), "float32"),
        v: R.Tensor((64,), "float32"),
        w: R.Tensor((64,), "float32"),
        z: R.Tensor((128,), "float32"),
    ) -> R.Tensor((4, 64), "float32"):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            s = R.strided_slice(R.add(x, z), [1], [64], [128])
            a = R.add(s, R.strided_slice(u, [0], [64], [128]))
            b = R.multiply(a, R.flip(v, 0))
            c = R.subtract(b, R.add(w, R.const(1, "float32")))
            R.output(c)
        return c


def test_tvm_chooses_no_layout_for_weights_that_are_read_in_part_or_backwards():
    (func,) = prim_funcs(lower(Sliced, TARGET, Lowering("keep", prepack=True)).mod).values()
    free = [str(arguments_of(func)[index].name) for index in func.attrs[FREE_LAYOUTS]]
    assert free == ["w"]


def test_layouts_of_transposed_convolutions_that_stay_are_those_of_tvms_code():
    layouts = {"relax.nn.conv2d": ["NHWC", "HWIO"]}
    lowered = lower(Computed, TARGET, Lowering(layouts))
    assert lowered.notes == ()
    # Layouts without code are kept, and a line says so.
    wanted = {"relax.nn.conv2d_transpose": ["NHWC", "IOHW"]}
    (note,) = lower(Computed, TARGET, Lowering(layouts | wanted)).notes
    assert note == "layouts are kept: TVM has no code for relax.nn.conv2d_transpose in others"

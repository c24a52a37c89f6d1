"""Channels come last in whole networks: operators without a layout do not interrupt them."""

import networks
import numpy as np
import onnx
import pytest
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from tunedb.plugins.metaschedule.deploy.apply import compile_lowered
from tunedb.plugins.metaschedule.deploy.importer_functions import restore_operators
from tunedb.plugins.metaschedule.deploy.layouts import convert_layouts, operators_of
from tunedb.plugins.metaschedule.deploy.network import Lowering, lower
from tunedb.plugins.metaschedule.deploy.simplify import simplify
from tunedb.plugins.metaschedule.module_source import prim_funcs

TARGET = tvm.target.Target(networks.LLVM)
FLOAT = onnx.TensorProto.FLOAT
TENTH = onnx.helper.make_tensor("value", FLOAT, [1], [0.1])
LAYOUTS = {"relax.nn.conv2d": ["NHWC", "HWIO"]}
IMAGE = np.random.default_rng(0).normal(size=(1, 3, 8, 8)).astype("float32") * 4


def clip(*bounds):
    """Return a clip whose bounds are inputs of the node."""
    return lambda b, data: b.node("Clip", [data, *(b.constant(np.float32(x)) for x in bounds)])


def leaky(alpha):
    return lambda b, data: b.node("LeakyRelu", [data], alpha=alpha)


def layer_norm(b, data):
    data = b.node("Transpose", [data], perm=[0, 2, 3, 1])
    data = b.node("LayerNormalization", [data, b.weight(8), b.weight(8)], axis=-1)
    return b.node("Transpose", [data], perm=[0, 3, 1, 2])


def residual(kind):
    """Return an operator of several inputs, which TVM's importer stacks."""
    return lambda b, data: b.node(kind, [data, b.node("Relu", [data]), b.node("Neg", [data])])


def padded(*pads):
    """Return a convolution whose input a node of its own pads."""

    def middle(b, data):
        data = b.node("Pad", [data, b.constant([0, 0, *pads[:2], 0, 0, *pads[2:]], "int64")])
        return b.node("Conv", [data, b.weight(8, 8, 3, 3)])

    return middle


def scaled(b, data):
    """Return a product with a constant of channels, which stands first, and a sum."""
    data = b.node("Mul", [b.weight(8, 1, 1), data])
    return b.node("Add", [data, b.weight(8, 1, 1)])


def subtracted(b, data):
    """Return differences from constants: of channels, and of one element."""
    data = b.node("Sub", [b.weight(8, 1, 1), data])
    return b.node("Sub", [b.constant([0.5]), data])


def shuffle(b, data):
    data = b.node("Reshape", [data, b.constant([1, 2, 4, 8, 8], "int64")])
    data = b.node("Transpose", [data], perm=[0, 2, 1, 3, 4])
    return b.node("Reshape", [data, b.constant([1, 8, 8, 8], "int64")])


ACTIVATIONS = {
    "Clip": clip(-0.5, 1.0),
    "Clip of one bound": clip(0.25),
    "Clip with NaN": clip(np.nan, 1.0),
    "Clip of opset 6": lambda b, data: b.node("Clip", [data], min=-0.5, max=1.0),
    "HardSigmoid": lambda b, data: b.node("HardSigmoid", [data]),
    "HardSwish": lambda b, data: b.node("HardSwish", [data]),
    "LeakyRelu": leaky(0.1),
    "LayerNormalization between transpositions": layer_norm,
    "Dropout": lambda b, data: b.node("Dropout", [data]),
    "auto_pad": lambda b, data: b.node("Conv", [data, b.weight(8, 8, 3, 3)], auto_pad="SAME_UPPER"),
    **{f"Pad of {pads}": padded(*pads) for pads in ((1, 1, 1, 1), (1, 0, 1, 2), (0, 2, 2, 0))},
    "constants of channels": scaled,
    "differences from constants": subtracted,
    "Pow": lambda b, data: b.node("Pow", [data, b.constant(np.float32(3))]),
    **{kind: residual(kind) for kind in ("Sum", "Mean", "Max", "Min")},
}


def network(*middles, opset=17):
    """Return convolutions with something between them, as a Relax program."""
    b = networks.Builder()
    data = b.convolution("image", 3, 8, 3, relu=False)
    for middle in middles:
        data = b.convolution(middle(b, data), 8, 8, 1, relu=False)
    return from_onnx(b.model(data, {"image": [1, 3, 8, 8]}, [1, 8, 8, 8], opset))


def run(mod, layout):
    lowered = lower(mod, TARGET, Lowering(layout))
    return result_of(compile_lowered(lowered, None, TARGET).executable), lowered


def result_of(executable, image=IMAGE):
    return relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(image)).numpy()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_nothing_is_transposed_between_two_convolutions(name):
    mod = network(ACTIVATIONS[name], opset=6 if "opset 6" in name else 17)
    names = sorted(prim_funcs(lower(mod, TARGET, Lowering()).mod))
    assert not any("pad" in each or "power" in each for each in names)
    # The network's image and its result.
    assert sum("transpose" in each for each in names) == 2, names
    assert len(names) <= len(prim_funcs(lower(mod, TARGET, Lowering("keep")).mod)) + 2


def test_results_are_those_of_tvms_pipeline():
    # TVM 0.25 does not import a Dropout; powers and differences leave the range of exact sums.
    special = ("Clip of opset 6", "Dropout", "Pow", "differences from constants")
    middles = [middle for name, middle in ACTIVATIONS.items() if name not in special]
    for mod in (
        network(*middles, shuffle, leaky(2.0)),
        network(ACTIVATIONS["Pow"]),
        network(ACTIVATIONS["differences from constants"]),
        network(ACTIVATIONS["Clip of opset 6"], opset=6),
    ):
        expected = result_of(tvm.compile(mod, target=TARGET))
        for layout in ("auto", "keep"):
            result = run(mod, layout)[0]
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
            assert len(np.unique(result)) > 100


@I.ir_module
class Similar:
    """Functions that resemble those of a Clip."""

    @T.prim_func(private=True, s_tir=True)
    def mirrored(
        a: T.Buffer((T.int64(1), T.int64(4)), "float32"),
        bound: T.Buffer((), "float32"),
        b: T.Buffer((T.int64(1), T.int64(4)), "float32"),
    ):
        T.func_attr({"tirx.noalias": True})
        for i, j in T.grid(T.int64(1), T.int64(4)):
            with T.sblock("T_maximum"):
                vi, vj = T.axis.remap("SS", [i, j])
                b[vi, vj] = T.max(a[vi, T.int64(3) - vj], bound[()])

    @T.prim_func(private=True, s_tir=True)
    def elementwise(
        a: T.Buffer((T.int64(1), T.int64(4)), "float32"),
        bound: T.Buffer((T.int64(1), T.int64(4)), "float32"),
        b: T.Buffer((T.int64(1), T.int64(4)), "float32"),
    ):
        T.func_attr({"tirx.noalias": True})
        for i, j in T.grid(T.int64(1), T.int64(4)):
            with T.sblock("T_maximum"):
                vi, vj = T.axis.remap("SS", [i, j])
                b[vi, vj] = T.max(a[vi, vj], bound[vi, vj])

    @R.function
    def main(x: R.Tensor((1, 4), "float32")) -> R.Tensor((1, 4), "float32"):
        cls = Similar
        with R.dataflow():
            y = R.call_tir(cls.mirrored, (x, R.const(0.0, "float32")), R.Tensor((1, 4), "float32"))
            z = R.call_tir(cls.elementwise, (y, x), R.Tensor((1, 4), "float32"))
            R.output(z)
        return z


def test_only_functions_of_a_clip_become_operators():
    assert sorted(prim_funcs(restore_operators(Similar))) == ["elementwise", "mirrored"]


@I.ir_module
class Stacked:
    """Convolutions between operators that TVM's ConvertLayout rejects."""

    @R.function
    def main(
        x: R.Tensor((1, 4, 8, 8), "float32"),
        w: R.Tensor((4, 4, 3, 3), "float32"),
    ) -> R.Tensor((2, 1, 4, 8, 8), "float32"):
        with R.dataflow():
            a = R.nn.relu(R.nn.conv2d(x, w, padding=[1, 1, 1, 1]))
            b = R.nn.conv2d(a, w, padding=[1, 1, 1, 1])
            p = R.nn.dropout(b)
            c = p[0]
            d = R.nn.conv2d(c, w, padding=[1, 1, 1, 1])
            e = R.nn.softmax(R.stack((a, d), axis=0), axis=2)
            R.output(e)
        return e


def test_operators_that_tvm_rejects_keep_their_layout_alone():
    mod, (note,) = convert_layouts(Stacked, LAYOUTS)
    reason = note.removeprefix("layouts of relax.nn.dropout, relax.stack are kept: ")
    assert reason != note and "\n" not in reason
    assert str(mod).count('data_layout="NHWC"') == 3
    assert {"relax.nn.relu", "relax.nn.softmax"} <= operators_of(mod)
    assert operators_of(mod).isdisjoint({"relax.nn.dropout", "relax.stack"})


def test_computed_weights_are_folded_into_convolutions():
    """Weights that a network broadcasts, converts or transposes are constants; so are biases."""
    b = networks.Builder()
    weights = [
        b.node("ConstantOfShape", [b.constant([8, 3, 3, 3], "int64")], value=TENTH),
        b.node("Cast", [b.constant(np.full((8, 8, 1, 1), 0.1), "float16")], to=FLOAT),
        b.node("Transpose", [b.weight(1, 1, 8, 8)], perm=[3, 2, 0, 1]),
    ]
    data = "image"
    for weight in weights:
        size, biases = (3, [b.weight(8)]) if data == "image" else (1, [])
        data = b.node(
            "Conv", [data, weight, *biases], pads=[size // 2] * 4, kernel_shape=[size, size]
        )
        data = b.node("Relu", [b.norm(data, 8)])
    mod = from_onnx(b.model(data, {"image": [1, 3, 8, 8]}, [1, 8, 8, 8]))
    result, lowered = run(mod, "auto")
    names = prim_funcs(lowered.mod)
    assert all("divide" not in name and "broadcast" not in name for name in names), names
    expected = result_of(tvm.compile(mod, target=TARGET))
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("width", "mode", "value", "is_merged"),
    [
        ((0, 0, 0, 0, 1, 2, 0, 1), "constant", 0.0, True),
        ((0, 0, 0, 0, 1, 2, 0, 1), "constant", 1.0, False),
        ((0, 0, 0, 0, 1, 1, 1, 1), "reflect", 0.0, False),
        ((0, 0, 1, 0, 1, 1, 1, 1), "constant", 0.0, False),
    ],
)
def test_convolutions_pad_with_zeros_themselves(width, mode, value, is_merged):
    """As PyTorch's programs have it: an operator pads."""
    b = relax.BlockBuilder()
    channels = 3 + sum(width[2:4])
    x = relax.Var("x", R.Tensor((1, 3, 8, 8), "float32"))
    weight = relax.const(np.ones((4, channels, 3, 3), "float32"))
    with b.function("main", [x]):
        with b.dataflow():
            padded = b.emit(relax.op.nn.pad(x, width, mode, value))
            result = b.emit_output(relax.op.nn.conv2d(padded, weight, padding=(1, 0), strides=2))
        b.emit_func_output(result)
    mod = b.finalize()
    operators = operators_of(simplify(mod))
    assert operators == ({"relax.nn.conv2d"} if is_merged else {"relax.nn.conv2d", "relax.nn.pad"})
    found, expected = (result_of(tvm.compile(each, target=TARGET)) for each in (simplify(mod), mod))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@I.ir_module
class Half:
    """A batch norm of half precision, which TVM cannot decompose."""

    @R.function
    def main(
        x: R.Tensor((1, 3, 8, 8), "float16"),
        gamma: R.Tensor((3,), "float16"),
        beta: R.Tensor((3,), "float16"),
        mean: R.Tensor((3,), "float16"),
        variance: R.Tensor((3,), "float16"),
    ) -> R.Tensor((1, 3, 8, 8), "float16"):
        with R.dataflow():
            normalized = R.nn.batch_norm(x, gamma, beta, mean, variance, axis=1, epsilon=0.5)
            y = normalized[0]
            R.output(y)
        return y


def test_batch_norms_of_half_precision_compile():
    image = IMAGE.astype("float16")
    values = [np.array(value, "float16") for value in ([1, 2, 3], [0, 1, -1], [2, 0, 1], [4, 1, 9])]
    names = ("gamma", "beta", "mean", "variance")
    mod = relax.transform.BindParams("main", dict(zip(names, values, strict=True)))(Half)
    lowered = lower(mod, TARGET, Lowering())
    found = result_of(compile_lowered(lowered, None, TARGET).executable, image)
    gamma, beta, mean, variance = (value.reshape(1, 3, 1, 1).astype(float) for value in values)
    expected = (image - mean) / np.sqrt(variance + 0.5) * gamma + beta
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize(
    ("axes", "layouts"),
    [(1, {"relax.nn.conv1d": ["NWC", "WIO"]}), (3, {"relax.nn.conv3d": ["NDHWC", "DHWIO"]})],
)
def test_transposed_convolutions_follow_the_layout_of_others(axes, layouts):
    b = networks.Builder()
    data = b.node("Conv", ["data", b.weight(8, 3, *[3] * axes)], pads=[1] * (2 * axes))
    data = b.node("ConvTranspose", [data, b.weight(8, 8, *[2] * axes)], strides=[2] * axes)
    data = b.node("Conv", [b.node("Relu", [data]), b.weight(4, 8, *[1] * axes)])
    mod = from_onnx(b.model(data, {"data": [1, 3, *[4] * axes]}, [1, 4, *[8] * axes]))
    lowered = lower(mod, TARGET, Lowering(layouts))
    assert lowered.notes == ()
    # Into and out of the layout, and the interleaving.
    assert sum(name.count("transpose") for name in prim_funcs(lowered.mod)) == 3


def test_channels_of_three_dimensional_convolutions_come_last():
    b = networks.Builder()
    data = b.node("Conv", ["video", b.weight(8, 3, 3, 3, 3)], pads=[1] * 6)
    data = b.node("Conv", [b.node("Relu", [data]), b.weight(4, 8, 1, 1, 1)])
    mod = from_onnx(b.model(data, {"video": [1, 3, 4, 8, 8]}, [1, 4, 4, 8, 8]))
    functions = prim_funcs(lower(mod, TARGET, Lowering()).mod)
    assert sum("transpose" in name for name in functions) == 2
    # The image and the first result.
    of = tvm.s_tir.meta_schedule.arg_info.ArgInfo.from_prim_func
    shapes = [tuple(each.as_json()[2]) for func in functions.values() for each in of(func)]
    assert {(1, 4, 8, 8, 3), (1, 4, 8, 8, 8)} <= set(shapes)


def test_importing_an_old_opset_makes_functions_of_a_clip():
    """If this fails, the importer makes operators now, and one case above tests nothing."""
    mod = network(ACTIVATIONS["Clip of opset 6"], opset=6)
    assert sorted(prim_funcs(mod)) == ["maximum", "minimum"]
    assert onnx.defs.get_schema("Clip", 6).attributes.keys() == {"min", "max"}

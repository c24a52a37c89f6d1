"""Transpositions move behind operators to others that they cancel, and change no result."""

import networks
import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx
from tvm.script import relax as R

from tunedb.plugins.metaschedule.compat import constant_value, relax_type
from tunedb.plugins.metaschedule.deploy.apply import compile_lowered
from tunedb.plugins.metaschedule.deploy.network import Lowering, lower
from tunedb.plugins.metaschedule.deploy.transpositions import cancel_transpositions, transposed_axes
from tunedb.plugins.metaschedule.module_source import prim_funcs
from tunedb.plugins.metaschedule.modules import call_name, calls_of

TARGET = tvm.target.Target(networks.LLVM)
SHAPE = (2, 4, 6, 3)
OP = relax.op


def numbers(*shape, seed=0):
    return relax.const(np.random.default_rng(seed).normal(size=shape).astype("float32"))


def with_other(operator):
    """Return an operator of the tensor and another one that is transposed from the same layout."""
    return lambda b, x: operator(x, b.emit(OP.permute_dims(OTHER, PLACES)))


#: Channels first, of a tensor with channels last.
PLACES = (0, 3, 1, 2)
OTHER = numbers(2, 6, 3, 4, seed=1)

#: Operators behind which a transposition moves.
MOVES = {
    "an operator of one element": lambda _, x: OP.nn.relu(x),
    "a scalar": lambda _, x: OP.add(x, relax.const(1.0)),
    "a constant of channels": lambda _, x: OP.multiply(x, numbers(4, 1, 1)),
    "a constant that stands first": lambda _, x: OP.subtract(numbers(1, 4, 1, 1), x),
    "a constant of all elements": lambda _, x: OP.add(x, numbers(*SHAPE)),
    "a tensor of the same layout": with_other(OP.maximum),
    "a condition": lambda b, x: OP.where(b.emit(OP.greater(x, relax.const(0.0))), x, numbers(1)),
    "a mean of pixels": lambda b, x: OP.subtract(x, b.emit(OP.mean(x, [2, 3], keepdims=True))),
    "a sum that drops an axis": lambda b, x: OP.reshape(b.emit(OP.sum(x, [-1])), [2, 4, 6, 1]),
    "a softmax of channels": lambda _, x: OP.nn.softmax(x, 1),
    "a logarithm of it": lambda _, x: OP.nn.log_softmax(x, -3),
    "a cumulated sum": lambda _, x: OP.cumsum(x, 2),
    "a pad": lambda _, x: OP.nn.pad(x, [0, 0, 1, 0, 0, 0, 2, 1], "constant", 3.0),
    "reflections": lambda _, x: OP.nn.pad(x, [0, 0, 0, 0, 1, 2, 2, 1], "reflect"),
    "a lookup": lambda _, x: OP.take(x, relax.const(np.array([3, 0, 0, 1])), 1),
    "a slice": lambda _, x: OP.strided_slice(x, [1, -2], [3, 1], [-5, 6], [-1, 2]),
    "a broadcast": lambda b, x: OP.broadcast_to(b.emit(OP.mean(x, [2], keepdims=True)), SHAPE),
    "repeats": lambda _, x: OP.tile(x, [1, 2, 1, 3]),
    "a concatenation": with_other(lambda x, y: OP.concat([x, y, numbers(2, 1, 6, 3)], 1)),
    "a division": lambda b, x: b.emit(OP.split(x, 2, 1))[1],
    "uneven divisions": lambda b, x: b.emit(OP.split(x, [1, 4], -2))[2],
    "a division of channels": lambda _, x: OP.reshape(x, [2, 2, 2, 6, 3]),
    "joined pixels": lambda _, x: OP.reshape(x, [2, 4, 18]),
    "axes of one element": lambda _, x: OP.reshape(x, [1, 2, 4, 1, 6, 3, 1]),
}

#: Operators that need the order of elements, or another layout of an argument.
KEEPS = {
    "a tensor of another layout": lambda b, x: OP.add(
        x, b.emit(OP.permute_dims(numbers(4, 2, 6, 3), [1, 0, 2, 3]))
    ),
    "a broadcast to more axes": lambda _, x: OP.broadcast_to(x, (1, *SHAPE)),
    "an order": lambda _, x: OP.sort(x, 1),
    "a product of matrices": lambda _, x: OP.matmul(x, numbers(3, 3)),
}


def program(make, *more):
    """Return a program that transposes its input, applies an operator, and transposes back."""
    b = relax.BlockBuilder()
    y = relax.Var("y", R.Tensor([SHAPE[place] for place in (0, 2, 3, 1)], "float32"))
    with b.function("main", [y]):
        with b.dataflow():
            results = []
            for operator in (make, *more):
                x = b.emit(OP.permute_dims(y, PLACES))
                x = b.emit(operator(b, b.emit(OP.nn.relu(x))))
                axes = list(range(relax_type(x).ndim))
                back = [axes[0], *axes[2:], axes[1]] if len(axes) > 1 else axes
                results.append(b.emit(OP.permute_dims(x, back)))
            result = b.emit_output(relax.Tuple(results))
        b.emit_func_output(result)
    return b.finalize()


def transposed(mod):
    """Return the number of transpositions of tensors that are no constants."""
    calls = [call for call in calls_of(mod) if call_name(call) == "relax.permute_dims"]
    return sum(constant_value(call.args[0]) is None for call in calls)


def results_of(mod):
    machine = relax.VirtualMachine(tvm.compile(mod, target=TARGET), tvm.cpu())
    image = np.random.default_rng(2).normal(size=[SHAPE[place] for place in (0, 2, 3, 1)])
    return [each.numpy() for each in machine["main"](tvm.runtime.tensor(image.astype("float32")))]


@pytest.mark.parametrize("name", MOVES)
def test_transpositions_cancel_behind(name):
    mod = program(MOVES[name])
    assert transposed(mod) >= 2
    left = transposed(cancel_transpositions(mod))
    # Channels are the second axis of two there, which the last transposition moves.
    expected = {"a division of channels": 1, "axes of one element": 1}
    assert left <= expected.get(name, 0), cancel_transpositions(mod)


@pytest.mark.parametrize("name", KEEPS)
def test_other_operators_keep_their_transpositions(name):
    mod = program(KEEPS[name])
    before, after = (map(call_name, calls_of(each)) for each in (mod, cancel_transpositions(mod)))
    assert sorted(after) == sorted(before)


def test_results_stay_the_same():
    mod = program(*MOVES.values(), *KEEPS.values())
    expected, found = results_of(mod), results_of(cancel_transpositions(mod))
    assert len(expected) == len(MOVES) + len(KEEPS)
    for name, left, right in zip([*MOVES, *KEEPS], expected, found, strict=True):
        assert left.shape == right.shape, name
        np.testing.assert_allclose(right, left, rtol=1e-5, atol=1e-6, err_msg=name)


def changed(shape, operators):
    """Return the operators of a program of one tensor after the cancellation."""
    b = relax.BlockBuilder()
    y = relax.Var("y", R.Tensor(shape, "float32"))
    with b.function("main", [y]):
        with b.dataflow():
            result = b.emit_output(operators(b, y))
        b.emit_func_output(result)
    return list(calls_of(cancel_transpositions(b.finalize())))


def test_transpositions_of_results_that_nobody_transposes_stay_where_they_are():
    found = changed(
        (2, 6, 3, 4),
        lambda b, y: OP.nn.pad(b.emit(OP.permute_dims(y, PLACES)), [0, 0, 0, 0, 9, 9, 9, 9]),
    )
    assert list(map(call_name, found)) == ["relax.permute_dims", "relax.nn.pad"]


def test_axes_may_count_from_the_last():
    (call,) = changed((1, 2, 3, 4), lambda b, y: OP.permute_dims(y, [0, -2, -1, 1]))
    assert transposed_axes(call) == [0, 2, 3, 1]


def test_constants_are_no_reason_to_transpose_others():
    """The bias of a convolution of one pixel, whose result can take any order of axes."""

    def operators(b, y):
        bias = b.emit(OP.permute_dims(numbers(1, 8, 1, 1), (0, 2, 3, 1)))
        return OP.permute_dims(b.emit(OP.add(b.emit(OP.nn.relu(y)), bias)), PLACES)

    names = list(map(call_name, changed((1, 1, 1, 8), operators)))
    assert names == ["relax.reshape", "relax.nn.relu", "relax.add", "relax.reshape"]


def test_random_reshapes_between_transpositions():
    """Extents are divided and joined anew, also those of one element."""
    rng = np.random.default_rng(3)
    operators = []
    for _ in range(60):
        factors = rng.permutation([2, 2, 2, 2, 3, 3, 1, 1])
        bounds = sorted(rng.choice(np.arange(1, 8), rng.integers(1, 6), replace=False))
        shape = [int(np.prod(part)) for part in np.split(factors, bounds)]
        operators.append(lambda _, x, shape=shape: OP.reshape(x, shape))
    mod = program(*operators)
    moved = cancel_transpositions(mod)
    assert transposed(moved) < transposed(mod)
    for left, right in zip(results_of(mod), results_of(moved), strict=True):
        np.testing.assert_array_equal(left, right)


def pixels(kind, **attributes):
    return lambda b, data: b.node(kind, [data], **attributes)


def padded(mode):
    return lambda b, data: b.node(
        "Pad", [data, b.constant([0, 0, 1, 2, 0, 0, 2, 1], "int64")], mode=mode
    )


def shuffle(b, data):
    data = b.reshape(data, 1, 2, 4, 8, 8)
    return b.reshape(b.node("Transpose", [data], perm=[0, 2, 1, 3, 4]), 1, 8, 8, 8)


def norm_of_groups(b, data):
    """As PyTorch exports it: a norm of instances, whose weights are ones and zeros."""
    ones, zeros = b.constant(np.ones(2)), b.constant(np.zeros(2))
    normal = b.node("InstanceNormalization", [b.reshape(data, 1, 2, -1), ones, zeros])
    scaled = b.node("Mul", [b.reshape(normal, 1, 8, 8, 8), b.weight(8, 1, 1)])
    return b.node("Add", [scaled, b.weight(8, 1, 1)])


def norm_of_instances(b, data):
    return b.node("InstanceNormalization", [data, b.weight(8), b.weight(8)])


def excitation(b, data):
    pooled = b.node("Flatten", [b.node("GlobalAveragePool", [data])])
    share = b.node("Sigmoid", [b.dense(pooled, 8, 8)])
    return b.node("Mul", [data, b.reshape(share, 1, 8, 1, 1)])


def positive(b, data):
    zero = b.constant(0.0)
    return b.node("Where", [b.node("Greater", [data, zero]), data, zero])


#: What exporters put between convolutions, and the transpositions that compute something.
BETWEEN = {
    "Where": (positive, 0),
    "Gather": (
        lambda b, data: b.node("Gather", [data, b.constant([*range(7, -1, -1)], "int64")], axis=1),
        0,
    ),
    "CumSum": (lambda b, data: b.node("CumSum", [data, b.constant(2, "int64")]), 0),
    "GroupNorm of PyTorch": (norm_of_groups, 0),
    "InstanceNormalization": (norm_of_instances, 0),
    "SqueezeExcitation": (excitation, 0),
    "ChannelShuffle": (shuffle, 1),
    "Pad by reflection": (padded("reflect"), 0),
    "Pad by edges": (padded("edge"), 0),
    "Tile": (lambda b, data: b.node("Tile", [data, b.constant([1, 1, 2, 1], "int64")]), 0),
    "DepthToSpace": (
        lambda b, data: b.node(
            "Concat", [pixels("DepthToSpace", blocksize=2)(b, data)] * 4, axis=1
        ),
        1,
    ),
}


def network(*middles):
    b = networks.Builder()
    data = b.convolution("image", 3, 8, 3)
    for middle in middles:
        data = b.convolution(middle(b, data), 8, 8, 3)
    return from_onnx(b.model(data, {"image": [1, 3, 8, 8]}, [1, 8, None, None]))


@pytest.mark.parametrize("name", BETWEEN)
def test_channels_stay_last_between_convolutions(name):
    middle, own = BETWEEN[name]
    functions = prim_funcs(lower(network(middle), TARGET, Lowering()).mod)
    # The network's image and its result.
    assert sum(each.count("transpose") for each in functions) == 2 + own, sorted(functions)


def test_networks_compute_the_same():
    mod = network(*(middle for middle, _ in BETWEEN.values()))
    image = np.random.default_rng(0).normal(size=(1, 3, 8, 8)).astype("float32")
    lowered = compile_lowered(lower(mod, TARGET, Lowering()), None, TARGET).executable
    expected, found = (
        relax.VirtualMachine(each, tvm.cpu())["main"](tvm.runtime.tensor(image)).numpy()
        for each in (tvm.compile(mod, target=TARGET), lowered)
    )
    assert len(np.unique(expected)) > 100
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)

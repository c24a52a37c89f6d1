"""Networks of 16 bits are computed in float32 where the processor has no vectors of 16 bits."""

import networks  # adds the folder of modern_networks to the path

# isort: split
import modern_networks as modern
import numpy as np
import onnx
import pytest
import tvm
import tvm_ffi
from onnx import numpy_helper
from tvm import relax
from tvm.script import relax as R

from tunedb.plugins.metaschedule.compat import relax_type
from tunedb.plugins.metaschedule.deploy.apply import compile
from tunedb.plugins.metaschedule.deploy.half_precision import widen_halves
from tunedb.plugins.metaschedule.deploy.network import Lowering, lower
from tunedb.plugins.metaschedule.module_source import load_module
from tunedb.plugins.metaschedule.modules import calls_of

TARGET = tvm.target.Target(networks.LLVM)
#: Intel's Sapphire Rapids computes with vectors of float16.
NATIVE = tvm.target.Target({"kind": "llvm", "mcpu": "sapphirerapids"})
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(4, 64)).astype("float16")
WEIGHTS = RANDOM.normal(size=(64, 64)).astype("float16")


def program(operator, *params):
    """Return a program of an operator on parameters, by default on one like `X`."""
    b = relax.BlockBuilder()
    params = params or (relax.Var("x", R.Tensor(X.shape, "float16")),)
    with b.function("main", [*params]):
        with b.dataflow():
            result = b.emit_output(operator(*params))
        b.emit_func_output(result)
    return b.finalize()


def widened(mod, target=TARGET):
    """Return a program after `widen_halves`, whose function keeps its type."""
    result, _ = widen_halves(mod, target)
    tvm.ir.assert_structural_equal(relax_type(result["main"]), relax_type(mod["main"]))
    return result


def types(mod):
    """Return the element types of the tensors that a program computes, conversions left out."""
    return {
        str(relax_type(call).dtype)
        for call in calls_of(mod)
        if call.op.name not in ("relax.astype", "relax.call_tir")
    }


def computed(executable, *args):
    machine = relax.VirtualMachine(executable, tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, args)).numpy()


def run(mod, x=X):
    return computed(tvm.compile(mod, target=TARGET), x)


def product(x):
    return relax.op.matmul(x, relax.const(WEIGHTS, "float16"))


def test_operators_and_constants_become_float32():
    mod = widened(program(lambda x: relax.op.nn.softmax(product(x))))
    assert types(mod) == {"float32"}
    exact = X.astype("float32") @ WEIGHTS.astype("float32")
    exact = np.exp(exact - exact.max(-1, keepdims=True))
    exact /= exact.sum(-1, keepdims=True)
    np.testing.assert_allclose(run(mod), exact.astype("float16"), atol=1e-3)


def test_a_parameter_is_converted_once():
    mod = widened(program(lambda x: relax.op.add(relax.op.tanh(x), relax.op.exp(x))))
    assert sum(call.op.name == "relax.astype" for call in calls_of(mod)) == 2  # and the result


def test_sums_beyond_float16_do_not_overflow():
    """The mean of 4 x 30,000, which TVM sums as float16."""
    big = np.full((1, 4), 30_000, "float16")
    mod = program(lambda x: relax.op.mean(x, 1), relax.Var("x", R.Tensor((1, 4), "float16")))
    assert run(widened(mod), big) == [30_000]


#: Operators that name their type, or compute with several.
NAMED = {
    "a conversion to float16": (lambda x: relax.op.astype(relax.op.tanh(x), "float16"), np.tanh),
    "a constant of float16": (
        lambda x: relax.op.add(x, relax.op.full(X.shape, relax.const(2, "float16"), "float16")),
        lambda x: x + 2,
    ),
    "a product of float16": (
        lambda x: relax.op.matmul(x, relax.const(WEIGHTS, "float16"), out_dtype="float16"),
        lambda x: x @ WEIGHTS.astype("float32"),
    ),
    "float32 in between": (
        lambda x: relax.op.astype(relax.op.exp(relax.op.astype(x, "float32")), "float16"),
        np.exp,
    ),
    "integers": (
        lambda x: relax.op.take(x, relax.op.astype(relax.const([1.0, 0.0], "float16"), "int32"), 0),
        lambda x: x[[1, 0]],
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_operators_that_name_a_type(name):
    operator, expected = NAMED[name]
    mod = widened(program(operator))
    assert "float16" not in types(mod)
    np.testing.assert_allclose(run(mod), expected(X.astype("float32")), rtol=1e-3, atol=2e-2)


def test_tuples_keep_their_types():
    """Of parameters and results, also one within another."""
    pair = relax.Var("pair", R.Tuple(R.Tensor(X.shape, "float16"), R.Tensor(X.shape, "int32")))
    nested = program(lambda pair: relax.Tuple([pair, relax.Tuple([pair[0]])]), pair)
    widened(nested)
    halves = relax.Var("halves", R.Tuple(R.Tensor(X.shape, "float16")))
    split = program(lambda t: relax.op.split(relax.op.tanh(relax.TupleGetItem(t, 0)), 2), halves)
    mod = widened(split)
    machine = relax.VirtualMachine(tvm.compile(mod, target=TARGET), tvm.cpu())
    left, right = machine["main"]([tvm.runtime.tensor(X)])
    joined = np.concatenate([left.numpy(), right.numpy()])
    np.testing.assert_allclose(joined, np.tanh(X.astype("float32")), rtol=1e-3)


def test_called_functions_keep_their_types():
    """A PrimFunc takes and returns what its signature says."""
    b = relax.BlockBuilder()
    x = relax.Var("x", R.Tensor(X.shape, "float16"))
    with b.function("main", [x]):
        with b.dataflow():
            doubled = b.emit_te(lambda x: tvm.topi.add(x, x), b.emit(relax.op.tanh(x)))
            result = b.emit_output(relax.op.exp(doubled))
        b.emit_func_output(result)
    mod = widened(b.finalize())
    assert types(mod) == {"float32"}
    np.testing.assert_allclose(run(mod), np.exp(2 * np.tanh(X.astype("float32"))), rtol=4e-3)


def test_a_program_of_functions_alone_stays_as_it_is():
    """Nothing is converted between two functions of float16."""
    mod = relax.transform.LegalizeOps()(program(lambda x: relax.op.nn.softmax(relax.op.tanh(x))))
    names = [call.op.name for call in calls_of(widened(mod))]
    assert names == ["relax.call_tir"] * 2


def test_several_results_of_which_one_is_used_by_another():
    def states(x):
        state = relax.op.concat([x, relax.op.tanh(x)])
        return relax.Tuple([relax.op.astype(state, "float32"), state])

    mod = widened(program(states))
    machine = relax.VirtualMachine(compile(mod, ":memory:", TARGET).executable, tvm.cpu())
    single, half = (each.numpy() for each in machine["main"](tvm.runtime.tensor(X)))
    expected = np.concatenate([X, np.tanh(X.astype("float32"))])
    assert (single.dtype, half.dtype) == (np.float32, np.float16)
    np.testing.assert_allclose(single, expected, rtol=1e-5)
    np.testing.assert_allclose(half, expected, rtol=1e-3)


def test_branches():
    x = relax.Var("x", R.Tensor(X.shape, "float16"))
    is_first = relax.Var("is_first", R.Tensor((), "bool"))
    b = relax.BlockBuilder()
    with b.function("main", [x, is_first]):
        b.emit_func_output(b.emit(relax.If(is_first, relax.op.tanh(x), relax.op.exp(x))))
    mod = b.finalize()
    assert types(widened(mod)) == {"float32"}
    executable = compile(mod, ":memory:", TARGET).executable
    for first, function in ((True, np.tanh), (False, np.exp)):
        result = computed(executable, X, np.array(first))
        np.testing.assert_allclose(result, function(X.astype("float32")), rtol=1e-3)


@pytest.mark.parametrize(
    ("dtype", "target", "expected"),
    [
        ("float16", TARGET, ["float16"]),
        ("float16", NATIVE, []),
        ("bfloat16", NATIVE, ["bfloat16"]),
        ("float32", TARGET, []),
        ("float16", tvm.target.Target({"kind": "c"}), []),
    ],
)
def test_types_that_a_processor_lacks(dtype, target, expected):
    mod = program(relax.op.tanh, relax.Var("x", R.Tensor((8,), dtype)))
    result, notes = widen_halves(mod, target)
    assert [note.split(":")[0] for note in notes] == expected
    assert result.same_as(mod) is not bool(expected)


def test_functions_that_are_tuned_equal_those_of_float32():
    """So records of float32, and the prior, serve them, but for those that make results."""

    def network(dtype):
        x = relax.Var("x", R.Tensor(X.shape, dtype))
        weights = relax.const(WEIGHTS.astype(dtype), dtype)
        product = relax.op.matmul(x, weights)
        return program(lambda x: relax.op.nn.softmax(relax.op.nn.relu(product)), x)

    of_halves, of_singles = (lower(network(t), TARGET, Lowering()) for t in ("float16", "float32"))
    assert of_halves.notes == ("float16: computed in float32, which this processor has vectors of",)
    tasks = of_halves.tasks(TARGET)
    (expected,) = (task for task in of_singles.tasks(TARGET) if "matmul" in task.task_name)
    assert any(tvm_ffi.structural_equal(task.mod, expected.mod) for task in tasks)


@pytest.mark.parametrize(
    "network",
    [lambda: modern.whisper(12, width=64, layers=1), lambda: modern.mobilenet_v3(32)],
    ids=["whisper", "mobilenet_v3"],
)
def test_networks_of_onnx_compute_what_they_compute_in_float32(network, tmp_path):
    """The weights have the digits of float16 in both."""
    halved = modern.halved(network())
    onnx.save(halved, str(tmp_path / "halved.onnx"))
    single = network()
    for weight, rounded in zip(single.graph.initializer, halved.graph.initializer, strict=True):
        array = numpy_helper.to_array(rounded).astype(numpy_helper.to_array(weight).dtype)
        weight.CopyFrom(numpy_helper.from_array(array, weight.name))
    onnx.save(single, str(tmp_path / "single.onnx"))
    (given,) = single.graph.input
    shape = [axis.dim_value for axis in given.type.tensor_type.shape.dim]
    x = RANDOM.normal(size=shape).astype("float16")
    found, expected = (
        computed(compile(load_module(tmp_path / name), ":memory:", TARGET).executable, value)
        for name, value in (("halved.onnx", x), ("single.onnx", x.astype("float32")))
    )
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-3 * np.abs(expected).max())

"""What TVM's importers write badly or wrongly is rewritten, with the results of the definitions."""

import networks
import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx
from tvm.script import relax as R

from tunedb.plugins.metaschedule.deploy.folding import fold_all_constants
from tunedb.plugins.metaschedule.deploy.importer_functions import restore_operators
from tunedb.plugins.metaschedule.deploy.layouts import operators_of
from tunedb.plugins.metaschedule.deploy.simplify import simplify
from tunedb.plugins.metaschedule.module_source import prim_funcs

TARGET = tvm.target.Target(networks.LLVM)
IMAGE = np.random.default_rng(0).normal(size=(2, 8, 3, 5)).astype("float32")


def program(operator):
    b = relax.BlockBuilder()
    x = relax.Var("x", R.Tensor(IMAGE.shape, "float32"))
    with b.function("main", [x]):
        with b.dataflow():
            result = b.emit_output(operator(x))
        b.emit_func_output(result)
    return b.finalize()


def result_of(mod):
    machine = relax.VirtualMachine(tvm.compile(mod, target=TARGET), tvm.cpu())
    return machine["main"](tvm.runtime.tensor(IMAGE)).numpy()


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("index", [0, 1, -1, -2])
def test_one_index_is_a_slice(axis, index):
    """PyTorch's ``x[:, -1]``; TVM reads before the tensor for it."""
    mod = simplify(program(lambda x: relax.op.take(x, relax.const(index, "int64"), axis)))
    assert operators_of(mod) == {"relax.strided_slice", "relax.reshape"}
    np.testing.assert_array_equal(result_of(mod), np.take(IMAGE, index, axis))


#: Operators, those that take their place, and the results.
REWRITTEN = {
    "dropped axes are reshapes": (
        lambda x: relax.op.squeeze(relax.op.expand_dims(x, 1), [1]),
        {"relax.expand_dims", "relax.reshape"},
        IMAGE,
    ),
    "indices count from the end": (
        lambda x: relax.op.take(x, relax.const(np.array([2, -1, 0, -3]), "int64"), 2),
        {"relax.take"},
        IMAGE[:, :, [2, -1, 0, -3]],
    ),
    # TVM 0.27 has no code for its own operator.
    "a pixel shuffle is a transposition": (
        lambda x: relax.op.nn.pixel_shuffle(x, 2),
        {"relax.reshape", "relax.permute_dims"},
        IMAGE.reshape(2, 2, 2, 2, 3, 5).transpose(0, 1, 4, 2, 5, 3).reshape(2, 2, 6, 10),
    ),
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_operators_are_rewritten(name):
    operator, operators, expected = REWRITTEN[name]
    mod = simplify(program(operator))
    assert operators_of(mod) == operators
    np.testing.assert_array_equal(result_of(mod), expected)


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_lookups_in_constants_count_from_the_end_too(dtype):
    """TVM folds them, and reads before the constant then."""
    table = np.arange(12, dtype=dtype).reshape(4, 3)

    def added(x):
        row = relax.op.take(relax.const(table, dtype), relax.const(-1, "int64"), 0)
        return relax.op.add(relax.op.sum(x), relax.op.astype(row, "float32"))

    result = result_of(fold_all_constants(simplify(program(added))))
    np.testing.assert_allclose(result, IMAGE.sum() + table[-1], rtol=1e-5)


@pytest.mark.parametrize(
    ("indices", "options"),
    [(3, {"axis": 2}), (-4, {"axis": 2}), (-1, {"axis": 2, "mode": "wrap"})],
)
def test_other_lookups_stay(indices, options):
    mod = program(lambda x: relax.op.take(x, relax.const(indices, "int64"), **options))
    assert operators_of(simplify(mod)) == {"relax.take"}


#: Operators of two truth values, which TVM cannot compile.
TRUTH = {"add": np.logical_or, "multiply": np.logical_and}
TRUTH |= {"equal": np.equal, "not_equal": np.not_equal}


@pytest.mark.parametrize("name", TRUTH)
def test_operators_of_truth_values_compile(name):
    def operator(x):
        return getattr(relax.op, name)(*(relax.op.greater(x, relax.const(n)) for n in (0.0, 1.0)))

    result = result_of(simplify(program(operator)))
    assert result.dtype == bool
    np.testing.assert_array_equal(result, TRUTH[name](IMAGE > 0, IMAGE > 1))


def pad(mode="constant", value=None):
    def make(b):
        values = [] if value is None else [b.constant(value)]
        pads = b.constant([0, 0, 1, 2, 0, 0, 2, 1], "int64")
        return b.node("Pad", ["image", pads, *values], mode=mode)

    return make


#: Operators for which the importer makes functions, and those of Relax.
FUNCTIONS = {
    "zeros": (pad(), "relax.nn.pad"),
    "another number": (pad(value=-1.5), "relax.nn.pad"),
    "an infinity": (pad(value=-np.inf), "relax.nn.pad"),
    "reflections": (pad("reflect"), "relax.nn.pad"),
    "edges": (pad("edge"), "relax.nn.pad"),
    "repeats": (
        lambda b: b.node("Tile", ["image", b.constant([1, 2, 1, 3], "int64")]),
        "relax.tile",
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_the_importer_become_operators(name):
    make, operator = FUNCTIONS[name]
    b = networks.Builder()
    mod = from_onnx(b.model(make(b), {"image": list(IMAGE.shape)}, [None] * 4))
    assert len(prim_funcs(mod)) == 1
    restored = restore_operators(mod)
    assert prim_funcs(restored) == {}
    assert operators_of(restored) == {operator}
    np.testing.assert_array_equal(result_of(restored), result_of(mod))

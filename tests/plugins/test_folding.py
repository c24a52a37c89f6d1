"""Operators on constants: NumPy computes what TVM computes, to the bit."""

import numpy as np
import tvm
from networks import LLVM
from tvm import relax
from tvm.script import relax as R

from tunedb.plugins.metaschedule.deploy.folding import fold_constants
from tunedb.plugins.metaschedule.modules import call_name, calls_of, constant_of

TARGET = tvm.target.Target(LLVM)
OP = relax.op


def constant(values, dtype):
    return constant_of(np.array(values, dtype))


INTEGERS = constant([-7, -3, 0, 3, 7], "int64")
OTHERS = constant([3, -2, 5, -2, 4], "int64")
FLOATS = constant(np.linspace(-1, 1, 12).reshape(3, 4), "float32")
TRUTH = [constant(values, "bool") for values in ([True, False], [True, True])]
PAIRS = ("add", "equal", "floor_divide", "floor_mod", "greater", "less_equal", "mod", "multiply")

FOLDED = {
    **{f"{name} of integers": getattr(OP, name)(INTEGERS, OTHERS) for name in PAIRS},
    "overflow": OP.multiply(constant([100, -128], "int8"), constant([3, -1], "int8")),
    "comparison of floats": OP.less(FLOATS, constant(0, "float32")),
    "choice of integers": OP.where(TRUTH[0], constant([1, 2], "int32"), constant([3, 4], "int32")),
    "both": OP.logical_and(*TRUTH),
    "not": OP.logical_not(TRUTH[0]),
    "both bits": OP.bitwise_and(*TRUTH),
    "a smaller type": OP.astype(constant([1 << 40, -5, 300], "int64"), "int8"),
    "numbers of truth values": OP.astype(TRUTH[0], "int64"),
    "sums": OP.cumsum(INTEGERS, 0),
    "one number": OP.full((2, 3), constant(1.7, "float32"), "float16"),
    "range": OP.arange(2, 11, 3, "int64"),
    "range down": OP.arange(9, 0, -2, "int32"),
    "lookup": OP.take(FLOATS, constant([[1], [3]], "int32"), -1),
    "indices": OP.index_tensor(FLOATS, [constant([2, 0], "int64"), constant([[1], [3]], "int64")]),
    "concatenation": OP.concat([FLOATS, FLOATS], -1),
    "another slice": OP.slice_scatter(FLOATS, constant(np.ones((3, 2)), "float32"), 0, 4, 2, 1),
}

#: What stays a call: integers that a float would round, and elements that are not there.
KEPT = {
    "no element": OP.take(FLOATS, constant([4], "int64"), 1),
    "no elements": OP.arange(0, 0, 1, "int64"),
    "a range of floats": OP.arange(0, 1, 0.1, "float32"),
    "a rounded float": OP.astype(FLOATS, "int32"),
    "sums of floats": OP.cumsum(FLOATS, 0),
    "quotients of integers": OP.divide(INTEGERS, OTHERS),
}


def program(values):
    b = relax.BlockBuilder()
    with b.function("main", []):
        with b.dataflow():
            result = b.emit_output(relax.Tuple([b.emit(value) for value in values]))
        b.emit_func_output(result)
    return b.finalize()


def results_of(mod):
    machine = relax.VirtualMachine(tvm.compile(mod, TARGET), tvm.cpu())
    return [result.numpy() for result in machine["main"]()]


def test_operators_on_constants_equal_tvm_to_the_bit():
    """They are in one program because each compilation takes long."""
    mod = program(FOLDED.values())
    folded = fold_constants(mod)
    assert [call_name(call) for call in calls_of(folded)] == []
    both = zip(results_of(folded), results_of(mod), strict=True)
    for name, (found, expected) in zip(FOLDED, both, strict=True):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), name
        assert found.tobytes() == expected.tobytes(), name


def test_parts_of_a_division_are_no_constants():
    b = relax.BlockBuilder()
    x = relax.Var("x", R.Tensor((4, 2), "float32"))
    with b.function("main", [x]):
        with b.dataflow():
            result = b.emit_output(OP.concat(b.emit(OP.split(x, 2)), 1))
        b.emit_func_output(result)
    names = [call_name(call) for call in calls_of(fold_constants(b.finalize()))]
    assert names == ["relax.split", "relax.concat"]


def test_other_operators_are_left_to_tvm():
    mod = program(KEPT.values())
    names = [call_name(call) for call in calls_of(mod)]
    assert len(names) == len(KEPT)
    assert [call_name(call) for call in calls_of(fold_constants(mod))] == names

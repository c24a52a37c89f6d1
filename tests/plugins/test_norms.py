"""Norms of groups and instances are computed from sums of channels where these come last."""

import networks
import numpy as np
import pytest
import tvm
from test_transpositions import network, norm_of_groups, norm_of_instances
from tvm import relax

from tunedb.plugins.metaschedule.compat import relax_type
from tunedb.plugins.metaschedule.deploy.folding import fold_constants
from tunedb.plugins.metaschedule.deploy.network import Lowering, lower
from tunedb.plugins.metaschedule.deploy.norms import divide_groups, sum_by_channels
from tunedb.plugins.metaschedule.module_source import prim_funcs
from tunedb.plugins.metaschedule.modules import call_name, calls_of, extents_of

TARGET = tvm.target.Target(networks.LLVM)
OP = relax.op
EPSILON = 1e-5


def norm(shape, axes, *, groups=None, joins=True, dtype="float32", spread=None):
    """Return a program with a norm of a tensor, whose last axis may be divided into groups.

    They are joined after the norm, or stay.
    """
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax_type(relax.const(np.zeros(shape, dtype))))
    with builder.function("main", [x]):
        with builder.dataflow():
            emit, data = builder.emit, x
            if groups is not None:
                data = emit(OP.reshape(x, [*shape[:-1], groups, shape[-1] // groups]))
            difference = emit(OP.subtract(data, emit(OP.mean(data, axes, True))))
            variance = emit(OP.variance(data, spread or axes, True))
            root = emit(OP.sqrt(emit(OP.add(variance, relax.const(EPSILON, dtype)))))
            result = OP.divide(difference, root)
            if groups is not None and joins:
                result = OP.reshape(emit(result), shape)
            result = builder.emit_output(result)
        builder.emit_func_output(result)
    return builder.get()


def names(mod):
    return [call_name(call).removeprefix("relax.") for call in calls_of(mod)]


#: Shape, axes and groups.
FROM_CHANNELS = {
    "instances": ((2, 4, 6, 8), [1, 2], None),
    "instances of frames": ((3, 20, 5), [1], None),
    "instances of one axis": ((2, 4, 6, 8), [2], None),
    "groups": ((2, 4, 6, 12), [1, 2, 4], 3),
    "groups by axes from the end": ((2, 4, 6, 12), [1, 2, -1], 3),
    "groups in another order": ((2, 4, 6, 12), [4, 1, 2], 3),
    "one group": ((1, 5, 8), [1, 3], 1),
    "groups of one": ((1, 5, 8), [1, 3], 8),
}


@pytest.mark.parametrize("offset", [0, 1000])
@pytest.mark.parametrize("name", FROM_CHANNELS)
def test_norm_from_channels_is_the_norm(name, offset):
    shape, axes, groups = FROM_CHANNELS[name]
    values = np.random.default_rng(0).normal(offset, 1, shape).astype("float32")
    mod = sum_by_channels(norm(shape, axes, groups=groups))
    assert not {"mean", "variance", "reshape"} & {*names(mod)}
    executable = tvm.compile(mod, target=TARGET)
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(values)).numpy()
    exact = values.astype("float64")
    if groups is not None:
        exact = exact.reshape([*shape[:-1], groups, -1])
    mean, variance = (each(axis=tuple(axes), keepdims=True) for each in (exact.mean, exact.var))
    expected = ((exact - mean) / np.sqrt(variance + EPSILON)).reshape(shape)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 + 1e-6 * offset)


@pytest.mark.parametrize("name", [name for name, (*_, groups) in FROM_CHANNELS.items() if groups])
def test_groups_stay_divided_where_nothing_joins_them(name):
    shape, axes, groups = FROM_CHANNELS[name]
    found = sum_by_channels(norm(shape, axes, groups=groups, joins=False))["main"].body
    assert extents_of(relax_type(found)) == [*shape[:-1], groups, shape[-1] // groups]


OTHERS = {
    "of rows": norm((2, 6, 8), [2]),
    "of pixels and channels": norm((2, 4, 6, 8), [1, 2, 3]),
    "groups before pixels": norm((2, 3, 6, 8), [3, 4], groups=4),
    "of halves": norm((2, 6, 8), [1], dtype="float16"),
    "mean and variance over other axes": norm((2, 6, 8), [1], spread=[2]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_norms_stay(name):
    assert names(sum_by_channels(OTHERS[name])) == names(OTHERS[name])


def test_norms_of_groups_have_axes_of_their_own():
    mod = divide_groups(fold_constants(network(norm_of_groups, norm_of_instances)))
    shapes = [
        tuple(map(int, relax_type(call.args[0]).shape))
        for call in calls_of(mod)
        if call_name(call) == "relax.variance"
    ]
    assert shapes == [(1, 2, 4, 8, 8), (1, 8, 8, 8)]
    assert names(mod).count("multiply") == 2


@pytest.mark.parametrize(
    ("target", "layout", "number"),
    [
        (TARGET, "auto", 4),
        (TARGET, "keep", 0),
        (tvm.target.Target({"kind": "cuda", "arch": "sm_80"}), "auto", 0),
    ],
)
def test_networks_on_processors_with_channels_last_sum_by_channels(target, layout, number):
    mod = lower(network(norm_of_groups, norm_of_instances), target, Lowering(layout=layout)).mod
    assert sum("of_channels" in each for each in prim_funcs(mod)) == number

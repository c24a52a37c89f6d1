"""Packing of weights into the layouts that schedules chose.

The search may choose the layout of constants, and of parameters that are weights. A compiled
program has packed constants, and a function that packs its parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax, tirx

from ..compat import (
    analyzer,
    arguments_of,
    buffer_of,
    constant_value,
    load_type,
    sblock_types,
    walk,
)
from ..modules import FREE_LAYOUTS, call_name, calls_of, constant_of, rewrite_functions

__all__ = [
    "mark_weights",
    "pack_weights",
    "packing_functions",
    "without_free_layouts",
    "without_packing",
    "without_preparations",
]

#: Operations of the index maps with which MetaSchedule packs.
_OPERATIONS: dict[Any, Any] = {
    tirx.Add: np.add,
    tirx.Mul: np.multiply,
    tirx.FloorDiv: np.floor_divide,
    tirx.FloorMod: np.remainder,
}


def mark_weights(mod: Any) -> Any:
    """Let the tuner choose the layout of parameters that are weights in every call of a function.

    What a program computes from weights alone is a weight, too. TVM's
    ``AttachAttrLayoutFreeBuffers`` would create a function for each set of weights, under new
    names. Weights keep their layout that are read in part, or backwards as the kernel of a
    transposed convolution: TVM packs them wrongly.
    """
    weights, preparations = set[Any](), set[Any]()
    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            own, values = _weights(func)
            weights |= own
            preparations |= values
    free: dict[Any, set[int]] = {}
    for call in calls_of(mod):
        if call_name(call) == "relax.call_tir" and call not in preparations:
            indices = {
                index
                for index, argument in enumerate(call.args[1])
                if constant_value(argument) is not None or argument in weights
            }
            free[call.args[0]] = free.get(call.args[0], indices) & indices
    marked = dict(mod.functions_items())
    for var, indices in free.items():
        if indices := indices & _read_whole(marked[var]):
            marked[var] = marked[var].with_attr(FREE_LAYOUTS, sorted(indices))
    return tvm.IRModule(marked, attrs=mod.attrs)


def pack_weights(mod: Any) -> Any:
    """Return a scheduled program with packed weights.

    Constant weights are packed now. A Relax function whose weights are parameters takes packed
    ones from now on; the function ``NAME_transform_params`` of the compiled program packs them.
    """
    mod = _with_packing_apart(mod)
    if packing_functions(mod):
        mod = relax.transform.LiftTransformParams()(mod)
    mod = rewrite_functions(mod, _ConstantPacker)
    # Without the last two, the virtual machine would create and unpack a tuple of packed constants
    # in each run.
    passes = [
        relax.transform.FoldConstant(),
        relax.transform.CanonicalizeBindings(),
        relax.transform.DeadCodeElimination(),
    ]
    return tvm.transform.Sequential(passes)(mod)


def _with_packing_apart(mod: Any) -> Any:
    """Return a program in which functions of their own pack the weights of others.

    TVM's pass fails where any function of a program has no block, as that of ``scatter_elements``.
    """
    others = {
        var: func
        for var, func in mod.functions_items()
        if isinstance(func, tirx.PrimFunc) and not _packs(func)
    }
    packing = {var: func for var, func in mod.functions_items() if var not in others}
    mod = relax.transform.SplitLayoutRewritePreproc()(tvm.IRModule(packing, attrs=mod.attrs))
    mod.update(tvm.IRModule(others))
    return mod


def _packs(func: Any) -> bool:
    """Tell whether a scheduled function packs its weights itself."""
    block, _ = sblock_types()
    blocks: list[Any] = []
    walk(func, block, blocks.append)
    return any("meta_schedule.layout_rewrite_preproc" in each.annotations for each in blocks)


def packing_functions(mod: Any) -> list[str]:
    """Return the names of the functions that pack a program's weight parameters."""
    return [
        f"{var.name_hint}_transform_params"
        for var, func in mod.functions_items()
        if isinstance(func, relax.Function) and _weight_parameters(func)
    ]


def without_packing(mod: Any) -> Any | None:
    """Return a module of one function without free layouts; None if all its layouts are fixed."""
    var, func = next(iter(mod.functions_items()))
    if not (func.attrs and FREE_LAYOUTS in func.attrs):
        return None
    return tvm.IRModule({var: without_free_layouts(func)})


def without_free_layouts(func: Any) -> Any:
    """Return a PrimFunc whose weights keep their layout."""
    return func.without_attr(FREE_LAYOUTS)


def _read_whole(func: Any) -> set[int]:
    """Return the indices of the parameters of which each block of a PrimFunc reads all elements.

    TVM packs no others right. Where a block reads a part, the packed tensor is as small as that
    part, and the rest overwrites it; ``(3 - w) // 2``, as kernels of transposed convolutions are
    read, becomes ``w // -2 + 1`` (``IterMapSimplify``). A block may be inlined into those that read
    its result, and then reads what they read.
    """
    kind, _ = sblock_types()
    read, parts, inlined = set[Any](), set[Any](), list[tuple[Any, Any]]()

    def visit(block: Any) -> None:
        if not block.iter_vars:
            return
        bounds = analyzer()
        for each in block.iter_vars:
            bounds.bind(each.var, each.dom)
        loads, stores = list[Any](), list[Any]()
        walk(block.body, load_type(), loads.append)
        walk(block.body, tirx.BufferStore, stores.append)
        for load in loads:
            buffer = buffer_of(load)
            read.add(buffer)
            if not _is_whole(load, buffer, bounds):
                parts.add(buffer)
            if not any(each.iter_type for each in block.iter_vars):  # no reduction
                inlined.extend((buffer, store.buffer) for store in stores)

    walk(func, kind, visit)
    # Consumers follow producers.
    for buffer, result in reversed(inlined):
        if result in parts:
            parts.add(buffer)
    buffers = enumerate(arguments_of(func))
    return {number for number, buffer in buffers if buffer in read - parts}


def _is_whole(load: Any, buffer: Any, bounds: Any) -> bool:
    """Tell whether a block reads all elements of a buffer, and none by a variable's negative."""
    signs: list[bool] = []
    for index, extent in zip(load.indices, buffer.shape, strict=True):
        walk(index, tirx.Sub, lambda node: signs.append(not isinstance(node.b, tirx.IntImm)))
        walk(index, tirx.Mul, lambda node: signs.append(_is_negative(node.a, node.b)))
        bound = bounds.const_int_bound(index)
        if (bound.min_value, bound.max_value + 1) != (0, getattr(extent, "value", None)):
            return False
    return not any(signs)


def _is_negative(*factors: Any) -> bool:
    """Tell whether one of the factors is a negative number."""
    return any(isinstance(each, tirx.IntImm) and int(each) < 0 for each in factors)


def _weight_parameters(func: Any) -> list[Any]:
    """Return the parameters of a Relax function that are weights."""
    inputs = func.attrs.get("num_input", len(func.params)) if func.attrs else len(func.params)
    return list(func.params)[int(inputs) :]


def _weights(func: Any) -> tuple[set[Any], set[Any]]:
    """Return the variables that depend on weights alone, and the values that compute them."""
    weights, values = set(_weight_parameters(func)), set[Any]()
    if weights:
        for block in func.body.blocks:
            for binding in block.bindings:
                if (used := set(relax.analysis.free_vars(binding.value))) and used <= weights:
                    weights.add(binding.var)
                    values.add(binding.value)
    return weights, values


def without_preparations(mod: Any) -> Any:
    """Return a program without the functions that depend on weights alone, and run once."""
    names = packing_functions(mod)
    if not names:
        return mod
    mod = relax.transform.LiftTransformParams()(mod)
    for name in names:
        del mod[name]
    return mod


@relax.expr_functor.mutator
class _ConstantPacker(relax.PyExprMutator):
    """Replaces calls that copy constants into other layouts by their results.

    TVM's ``FoldConstant`` compiles a function for each, which takes seconds.
    """

    def __init__(self, mod: Any) -> None:
        super().__init__(mod)
        self._functions = dict(mod.functions_items())

    def visit_call_(self, call: Any) -> Any:
        """Return the packed constants, or the call itself if it does more than copy constants."""
        call = self.visit_expr_post_order(call)
        if call_name(call) != "relax.call_tir":
            return call
        func, arguments = self._functions.get(call.args[0]), call.args[1]
        if func is None or not isinstance(arguments, relax.Tuple):
            return call
        values = [constant_value(argument) for argument in arguments]
        if not values or not all(isinstance(value, tvm.runtime.Tensor) for value in values):
            return call
        packed = _packed(func, values)
        if packed is None:
            return call
        results = [constant_of(one) for one in packed]
        return results[0] if len(results) == 1 else relax.Tuple(results)


def _packed(func: Any, values: Sequence[Any]) -> list[NDArray[Any]] | None:
    """Return the results of a function that copies whole tensors; None for other functions."""
    buffers = arguments_of(func)
    try:
        sources = {buffer: value.numpy() for buffer, value in zip(buffers, values, strict=False)}
        results = {
            buffer: np.empty([int(extent) for extent in buffer.shape], str(buffer.dtype))
            for buffer in buffers[len(values) :]
        }
    except (TypeError, ValueError):  # a symbolic shape, or a dtype that numpy lacks
        return None
    _, realize = sblock_types()
    blocks: list[Any] = []
    walk(func, realize, blocks.append)
    written = [_copy(each, sources, results) for each in blocks if each.iter_values]
    is_whole = len(written) == len(results) and set(written) == results.keys()
    return list(results.values()) if is_whole else None


def _copy(
    realize: Any, sources: Mapping[Any, NDArray[Any]], results: Mapping[Any, NDArray[Any]]
) -> Any:
    """Do what a block does and return the buffer of its result; None if it copies no tensor."""
    block = realize.block
    store, variables = block.body, [one.var for one in block.iter_vars]
    load = getattr(store, "value", None)
    if not (isinstance(store, tirx.BufferStore) and isinstance(load, load_type())):
        return None
    source, result = sources.get(buffer_of(load)), results.get(store.buffer)
    if (
        source is None
        or result is None
        # numpy has no sub-byte dtypes.
        or (source.size, source.dtype) != (result.size, result.dtype)
        or not all(isinstance(value, tirx.Var) for value in realize.iter_values)
        or not getattr(realize.predicate, "value", False)
        or [int(one.dom.extent) for one in block.iter_vars] != list(source.shape)
        or not all(map(tirx.Var.same_as, load.indices, variables))
    ):
        return None
    grid = np.ogrid[tuple(slice(extent) for extent in source.shape)]
    axes = dict(zip(variables, grid, strict=True))
    try:
        result[tuple([_index(one, axes) for one in store.indices])] = source
    except KeyError:  # another operation
        return None
    return store.buffer


def _index(expression: Any, axes: Mapping[Any, NDArray[Any]]) -> Any:
    """Return the values of an index for those of the variables."""
    if isinstance(expression, tirx.IntImm):
        return int(expression.value)
    if isinstance(expression, tirx.Var):
        return axes[expression]
    operation = _OPERATIONS[type(expression)]
    return operation(_index(expression.a, axes), _index(expression.b, axes))

"""Transpositions of a Relax program: merged, and moved down to where they cancel.

TVM's ``ConvertLayout`` puts a transposition before and after each operator that it does not know.
Most of these operators compute the same on the other layout: reshapes that divide or join adjacent
axes (a shuffle of channels, a norm of groups), pads, lookups, sums along an axis. The first
transposition moves behind them, where it cancels the second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
from tvm import relax

from ..compat import constant_value, relax_type
from ..modules import (
    bound_to,
    call_name,
    calls_of,
    constant_array,
    constant_of,
    extents_of,
    operator_of,
    rewrite_functions,
)

__all__ = ["cancel_transpositions", "reshaped_once", "transposed_axes"]

#: A moved call, whose result is transposed by axes afterwards.
_Moved = tuple[Any, list[int]]

#: Operators of one element at a time, of one and of several tensors.
_UNARY = (
    *("abs", "acos", "acosh", "asin", "asinh", "astype", "atan", "atanh", "ceil", "cos", "cosh"),
    *("erf", "exp", "floor", "isfinite", "isinf", "isnan", "log", "logical_not", "negative"),
    *("round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "square", "tan", "tanh", "trunc"),
    *("nn.gelu", "nn.gelu_tanh", "nn.leakyrelu", "nn.relu", "nn.selu", "nn.silu", "nn.softplus"),
)
_OF_SEVERAL = (
    *("add", "divide", "floor_divide", "floor_mod", "maximum", "minimum", "mod", "multiply"),
    *("power", "subtract", "where", "logical_and", "logical_or", "logical_xor"),
    *("equal", "greater", "greater_equal", "less", "less_equal", "not_equal"),
)
_ELEMENTWISE = tuple(f"relax.{name}" for name in (*_UNARY, *_OF_SEVERAL))

#: Operators along one axis.
_ALONG_AXIS = ("relax.nn.softmax", "relax.nn.log_softmax")
_CUMULATIVE = ("relax.cumsum", "relax.cumprod")

_REDUCTIONS = tuple(
    f"relax.{name}" for name in ("max", "mean", "min", "prod", "std", "sum", "variance")
)


def cancel_transpositions(mod: Any) -> Any:
    """Merge transpositions that follow each other, and move them to others that they cancel.

    Parameters
    ----------
    mod : tvm.IRModule
        A Relax program.

    Returns
    -------
    tvm.IRModule
        The program. Transpositions that change no order of elements are reshapes in it;
        transpositions of constants are not folded.
    """
    mover = relax.expr_functor.mutator(_Mover)
    programs = [
        relax.transform.DeadCodeElimination()(rewrite_functions(mod, partial(mover, between=found)))
        for found in (_between(mod), set())
    ]
    return min(programs, key=_transposed_elements)


def _transposed_elements(mod: Any) -> int:
    """Return the number of elements that a program copies in another order."""
    return sum(
        prod(extents_of(relax_type(call)) or ())
        for call in calls_of(mod)
        if transposed_axes(call) is not None and constant_value(call.args[0]) is None
    )


def transposed_axes(call: Any) -> list[int] | None:
    """Return the axes of a transposition; None for other expressions."""
    if call_name(call) != "relax.permute_dims":
        return None
    rank = relax_type(call).ndim
    if call.attrs.axes is None:
        return list(reversed(range(rank)))
    return [int(axis) % rank for axis in call.attrs.axes]


def reshaped_once(mutator: Any, call: Any) -> Any:
    """Return one reshape for two, or the argument of one that changes nothing.

    Parameters
    ----------
    mutator : PyExprMutator
        Mutator of the program of `call`.
    call : relax.Call
        A reshape; others than to known extents are returned as they are.
    """
    x, extents = call.args[0], extents_of(relax_type(call.args[1]))
    before = bound_to(mutator, x)
    if call_name(before) == "relax.reshape":
        x = before.args[0]
    if extents is None:
        return call
    return x if extents == extents_of(relax_type(x)) else relax.op.reshape(x, extents)


class _Mover(relax.PyExprMutator):
    """Merges transpositions, and moves them behind the operators between them and others.

    In all methods a tensor `x` is the transposition of `y` by `axes`: axis ``i`` of `x` is axis
    ``axes[i]`` of `y`.

    Parameters
    ----------
    mod : tvm.IRModule
        The program.
    between : set of relax.Expr
        Expressions behind which transpositions move.
    """

    def __init__(self, mod: Any, between: set[Any]) -> None:
        super().__init__(mod)
        self._between = between
        #: What reshapes that move axes of one element are transpositions of, with the axes.
        self._reshapes: dict[Any, _Moved] = {}
        #: Divisions of untransposed tensors, with the axes of their parts, by the variables of
        #: divisions.
        self._divided: dict[Any, _Moved] = {}

    def visit_call_(self, call: Any) -> Any:
        """Return the transposition of a call on other layouts, or the call itself."""
        kind, is_between = relax_type(call), call in self._between
        call = self.visit_expr_post_order(call)
        if (axes := transposed_axes(call)) is not None:
            return self._merged(call.args[0], axes, extents_of(kind))
        name = call_name(call)
        move = _MOVES.get(name) if is_between else None
        moved = move(self, call, kind) if move is not None else None
        if moved is None:
            return reshaped_once(self, call) if name == "relax.reshape" else call
        value, axes = moved
        return self._merged(self.builder_.emit(value), axes, extents_of(kind))

    def visit_tuple_getitem_(self, item: Any) -> Any:
        """Return the transposition of a part of a divided tensor, or the item itself."""
        kind, is_between = relax_type(item), item in self._between
        item = self.visit_expr_post_order(item)
        whole = item.tuple_value
        call = bound_to(self, whole)
        if not is_between or call_name(call) != "relax.split":
            return item
        if whole not in self._divided:
            if (source := self._source(call.args[0])) is None:
                return item
            y, axes = source
            sections = call.attrs.indices_or_sections
            parts = [*map(int, sections)] if isinstance(sections, Sequence) else int(sections)
            divided = relax.op.split(y, parts, axes[_axis_of(call, axes)])
            self._divided[whole] = (self.builder_.emit(divided), axes)
        parts, axes = self._divided[whole]
        part = self.builder_.emit(relax.TupleGetItem(parts, item.index))
        return self._merged(part, axes, extents_of(kind))

    def _merged(self, x: Any, axes: list[int], extents: list[int] | None) -> Any:
        """Return a transposition to some extents: one for two, a reshape, or `x`."""
        if (source := self._source(x)) is not None:
            x, before = source
            axes = [before[axis] for axis in axes]
        if axes == sorted(axes):
            return x
        if extents is not None and _keeps_order(axes, extents):
            reshaped = self.builder_.emit(reshaped_once(self, relax.op.reshape(x, extents)))
            self._reshapes[reshaped] = (x, axes)
            return reshaped
        return relax.op.permute_dims(x, axes)

    def _source(self, value: Any) -> _Moved | None:
        """Return what a value is the transposition of, and its axes; None for other values."""
        while isinstance(value, relax.Var) and value not in self._reshapes:
            value = self.lookup_binding(value)
        axes = transposed_axes(value)
        return self._reshapes.get(value) if axes is None else (value.args[0], axes)

    def _elementwise(self, call: Any, _kind: Any) -> _Moved | None:
        if (restored := self._restored(call.args)) is None:
            return None
        arguments, axes = restored
        return relax.Call(call.op, arguments, call.attrs), axes

    def _concatenated(self, call: Any, _kind: Any) -> _Moved | None:
        parts = call.args[0]
        if not isinstance(parts, relax.Tuple) or call.attrs.axis is None:
            return None
        if (restored := self._restored(parts.fields)) is None:
            return None
        arguments, axes = restored
        return relax.op.concat(arguments, axes[_axis_of(call, axes)]), axes

    def _reshaped(self, call: Any, kind: Any) -> _Moved | None:
        source = self._source(call.args[0])
        before, after = extents_of(relax_type(call.args[0])), extents_of(kind)
        if source is None or before is None or after is None:
            return None
        y, axes = source
        groups = _groups(before, after)
        if groups is None:
            return None
        # The axes of a group become adjacent, at the place of the largest: channels stay last
        # where pixels and channels become each other.
        groups.sort(key=lambda group: axes[max(group[0], key=before.__getitem__)])
        placed = [axis for joined, _ in groups for axis in joined]
        single = [axis for axis in _inverse(axes) if before[axis] == 1]
        chosen = [axes[axis] for axis in single + placed]
        if not _keeps_order(chosen, [before[axis] for axis in single + placed]):
            y = self.builder_.emit(relax.op.permute_dims(y, chosen))
        order = [axis for _, divided in groups for axis in divided]
        for axis, extent in enumerate(after):
            if extent == 1:
                order.insert(order.index(axis - 1) + 1 if axis else 0, axis)
        return relax.op.reshape(y, [after[axis] for axis in order]), _inverse(order)

    def _padded(self, call: Any, _kind: Any) -> _Moved | None:
        if (source := self._source(call.args[0])) is None:
            return None
        (y, axes), attrs = source, call.attrs
        width = [int(number) for number in attrs.pad_width]
        ends = _to_source(list(zip(width[::2], width[1::2], strict=True)), axes)
        width = [number for pair in ends for number in pair]
        return relax.op.nn.pad(y, width, attrs.pad_mode, attrs.pad_value), axes

    def _broadcast(self, call: Any, kind: Any) -> _Moved | None:
        source, extents = self._source(call.args[0]), extents_of(kind)
        if source is None or extents is None or len(extents) != len(source[1]):
            return None
        y, axes = source
        return relax.op.broadcast_to(y, _to_source(extents, axes)), axes

    def _tiled(self, call: Any, _kind: Any) -> _Moved | None:
        source, repeats = self._source(call.args[0]), [int(n) for n in call.attrs.repeats]
        if source is None or len(repeats) != len(source[1]):
            return None
        y, axes = source
        return relax.op.tile(y, _to_source(repeats, axes)), axes

    def _taken(self, call: Any, _kind: Any) -> _Moved | None:
        source, indices = self._source(call.args[0]), call.args[1]
        if source is None or call.attrs.axis is None or relax_type(indices).ndim != 1:
            return None
        y, axes = source
        return relax.op.take(y, indices, axes[_axis_of(call, axes)], call.attrs.mode), axes

    def _along_axis(self, call: Any, _kind: Any) -> _Moved | None:
        if (source := self._source(call.args[0])) is None:
            return None
        y, axes = source
        return operator_of(call)(y, axes[_axis_of(call, axes)]), axes

    def _cumulated(self, call: Any, kind: Any) -> _Moved | None:
        source, attrs = self._source(call.args[0]), call.attrs
        if source is None or attrs.axis is None:
            return None
        y, axes = source
        axis, dtype = axes[_axis_of(call, axes)], str(kind.dtype)
        return operator_of(call)(y, axis, dtype=dtype, exclusive=bool(attrs.exclusive)), axes

    def _reduced(self, call: Any, _kind: Any) -> _Moved | None:
        source, attrs = self._source(call.args[0]), call.attrs
        if source is None or not attrs.axis:
            return None
        y, axes = source
        reduced = {int(axis) % len(axes) for axis in attrs.axis}
        value = operator_of(call)(y, [axes[axis] for axis in sorted(reduced)], bool(attrs.keepdims))
        if attrs.keepdims:
            return value, axes
        left = [place for axis, place in enumerate(axes) if axis not in reduced]
        return value, [sorted(left).index(place) for place in left]

    def _sliced(self, call: Any, _kind: Any) -> _Moved | None:
        source, bounds = self._source(call.args[0]), call.args[1:]
        if source is None or not all(isinstance(each, relax.Tuple) for each in bounds):
            return None
        y, axes = source
        numbers: list[list[Any]] = [[*map(constant_value, each.fields)] for each in bounds]
        if any(number is None for each in numbers for number in each):
            return None
        places, *ends = ([int(number) for number in each] for each in numbers)
        places = [axes[place % len(axes)] for place in places]
        inbound = bool(call.attrs.assume_inbound)
        return relax.op.strided_slice(y, places, *ends, assume_inbound=inbound), axes

    def _restored(self, values: Sequence[Any]) -> tuple[list[Any], list[int]] | None:
        """Return values before a transposition that all have, or take for nothing; else None.

        One of them is no constant: the axes of constants alone are no reason to move others'.
        """
        for source in map(self._source, values):
            if source is not None and constant_value(source[0]) is None:
                restored = [self._before(value, source[1]) for value in values]
                if not any(each is None for each in restored):
                    return restored, source[1]
        return None

    def _before(self, value: Any, axes: list[int]) -> Any:
        """Return what a value is the transposition of, if only by the order of its axes."""
        source, extents = self._source(value), extents_of(relax_type(value))
        if source is not None and source[1] == axes:
            return source[0]
        if extents is None or len(extents) > len(axes):
            return None
        if not extents:
            return value
        extents = [1] * (len(axes) - len(extents)) + extents
        inverse = _inverse(axes)
        array = constant_array(value)
        if array is not None:
            return constant_of(np.transpose(array.reshape(extents), inverse).copy())
        before = [extents[axis] for axis in inverse]
        if not _keeps_order(inverse, before):
            return None
        return self.builder_.emit(relax.op.reshape(value, before))


_MOVES: dict[str, Callable[[_Mover, Any, Any], _Moved | None]] = {
    **dict.fromkeys(_ELEMENTWISE, _Mover._elementwise),
    **dict.fromkeys(_ALONG_AXIS, _Mover._along_axis),
    **dict.fromkeys(_CUMULATIVE, _Mover._cumulated),
    **dict.fromkeys(_REDUCTIONS, _Mover._reduced),
    "relax.broadcast_to": _Mover._broadcast,
    "relax.concat": _Mover._concatenated,
    "relax.nn.pad": _Mover._padded,
    "relax.reshape": _Mover._reshaped,
    "relax.strided_slice": _Mover._sliced,
    "relax.take": _Mover._taken,
    "relax.tile": _Mover._tiled,
}


def _between(mod: Any) -> set[Any]:
    """Return the expressions whose results reach a transposition through others of them alone."""
    found: set[Any] = set()
    functions = (func for func in mod.functions.values() if isinstance(func, relax.Function))
    for func in functions:
        wanted: set[Any] = set()
        bindings = [binding for block in func.body.blocks for binding in block.bindings]
        for binding in reversed(bindings):
            value = binding.value
            if transposed_axes(value) is not None:
                wanted.update(_variables_of(value))
            elif binding.var in wanted and _passes(value):
                found.add(value)
                wanted.update(_variables_of(value))
    return found


def _passes(value: Any) -> bool:
    """Tell whether a transposition may move behind an expression of a binding."""
    name = call_name(value)
    return (
        name in _MOVES or name == "relax.split" or isinstance(value, relax.Var | relax.TupleGetItem)
    )


def _variables_of(value: Any) -> list[Any]:
    """Return the variables that an expression of a binding takes as tensors."""
    if isinstance(value, relax.Var):
        return [value]
    if isinstance(value, relax.TupleGetItem):
        return [value.tuple_value]
    arguments = [
        each
        for argument in value.args
        for each in (argument.fields if isinstance(argument, relax.Tuple) else (argument,))
    ]
    return [each for each in arguments if isinstance(each, relax.Var)]


def _keeps_order(axes: Sequence[int], extents: Sequence[int]) -> bool:
    """Tell whether a transposition to some extents moves axes of one element alone."""
    places = [axis for axis, extent in zip(axes, extents, strict=True) if extent != 1]
    return places == sorted(places)


def _axis_of(call: Any, axes: Sequence[int]) -> int:
    """Return the axis of an operator, from the first."""
    return int(call.attrs.axis) % len(axes)


def _inverse(axes: Sequence[int]) -> list[int]:
    """Return the axes of the inverse of a transposition."""
    return sorted(range(len(axes)), key=axes.__getitem__)


def _to_source(values: Sequence[Any], axes: Sequence[int]) -> list[Any]:
    """Return values of the axes of a transposed tensor in the order of the tensor before."""
    return [values[axis] for axis in _inverse(axes)]


def _groups(
    before: Sequence[int], after: Sequence[int]
) -> list[tuple[list[int], list[int]]] | None:
    """Return the smallest groups of axes that a reshape turns into other axes.

    Axes of one element belong to none; without elements there are no groups.
    """
    if 0 in before:
        return None
    left, right = ([axis for axis, n in enumerate(each) if n != 1] for each in (before, after))
    groups = []
    while left:
        joined, divided = [left.pop(0)], [right.pop(0)]
        sizes = [before[joined[0]], after[divided[0]]]
        while sizes[0] != sizes[1]:
            side = int(sizes[0] > sizes[1])
            axis = (left, right)[side].pop(0)
            (joined, divided)[side].append(axis)
            sizes[side] *= (before, after)[side][axis]
        groups.append((joined, divided))
    return groups

"""Batch norms of inference, folded into the convolutions before them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax

from ..compat import relax_type
from ..modules import call_name, constant_array, constant_of, rewrite_functions

__all__ = ["fold_batch_norms"]


@tvm.transform.module_pass(opt_level=0, name="tunedb.FoldBatchNorms")
def fold_batch_norms(mod: Any, _context: Any) -> Any:
    """Fold batch norms of constants into convolutions, transposed ones too.

    TVM's ``FoldBatchnormToConv2D`` knows ``conv2d`` without a bias alone. A batch norm stays where
    its convolution has other users, which would need a second convolution. One of half precision
    that stays becomes a product and a sum: TVM cannot decompose it.
    """
    return relax.transform.DeadCodeElimination()(rewrite_functions(mod, _Folder))


@dataclass(frozen=True, slots=True, eq=False)
class _BatchNorm:
    """A batch norm as a product and a sum.

    Parameters
    ----------
    factors, terms : ndarray of float64, shape (channels,)
        What a channel is multiplied with, and what is added then.
    axis : int
        Axis of the channels.
    """

    factors: NDArray[np.float64]
    terms: NDArray[np.float64]
    axis: int

    @classmethod
    def of(cls, call: Any) -> _BatchNorm | None:
        """Return the batch norm of a call; None if its parameters are no constants."""
        attrs = call.attrs
        if not (attrs.center and attrs.scale) or attrs.training:
            return None
        arrays = [constant_array(parameter) for parameter in call.args[1:]]
        values = [array.astype("float64") for array in arrays if array is not None]
        if len(values) < len(arrays):
            return None
        gamma, beta, mean, variance = values
        factors = gamma / np.sqrt(variance + float(attrs.epsilon))
        return cls(factors, beta - mean * factors, int(attrs.axis))

    def shape(self, x: Any) -> list[int]:
        """Return the shape of constants of channels beside a tensor."""
        shape = [1] * int(relax_type(x).ndim)
        shape[self.axis] = len(self.factors)
        return shape

    def constant(self, values: NDArray[np.float64], x: Any) -> Any:
        """Return a value for each channel as a constant beside a tensor."""
        return constant_of(values.reshape(self.shape(x)).astype(str(relax_type(x).dtype)))


@relax.expr_functor.mutator
class _Folder(relax.PyExprMutator):
    """Replaces the results of batch norms."""

    def __init__(self, mod: Any) -> None:
        super().__init__(mod)
        self._values: dict[Any, Any] = {}
        self._users: Counter[Any] = Counter()
        for func in mod.functions.values():
            if isinstance(func, relax.Function):
                self._read(func)

    def _read(self, func: Any) -> None:
        """Remember what the variables of a function are, and how many expressions use each."""

        def visit(node: Any) -> None:
            if isinstance(node, relax.Var):
                used.add(node)

        values = dict(relax.analysis.get_var2val(func).items())
        self._values |= values
        for value in (*values.values(), func.body.body):
            used: set[Any] = set()
            relax.analysis.post_order_visit(value, visit)
            self._users.update(used)

    def visit_tuple_getitem_(self, item: Any) -> Any:
        """Return a folded batch norm, or the item itself."""
        call: Any = self._values.get(item.tuple_value)
        if call_name(call) != "relax.nn.batch_norm" or int(item.index) > 0:
            return self.visit_expr_post_order(item)
        norm = _BatchNorm.of(call)
        folded = None if norm is None else self._folded(call.args[0], norm)
        if folded is None and norm is not None and str(relax_type(item).dtype) == "float16":
            x = self.visit_expr(call.args[0])
            product = self.builder_.emit(relax.op.multiply(x, norm.constant(norm.factors, x)))
            folded = relax.op.add(product, norm.constant(norm.terms, x))
        return self.visit_expr_post_order(item) if folded is None else folded

    def _folded(self, x: Any, norm: _BatchNorm) -> Any | None:
        """Return a convolution that computes the batch norm of another one, and a sum."""
        value: Any = self._values.get(x)
        terms = norm.terms
        if self._users[x] != 1:
            return None
        if call_name(value) == "relax.add":
            before, bias = value.args
            array = constant_array(bias)
            if array is None or list(array.shape) != norm.shape(x):
                return None
            terms = terms + array.reshape(-1).astype("float64") * norm.factors
            if self._users[before] != 1:
                return None
            value = self._values.get(before)
        weights = _scaled(value, norm)
        if weights is None:
            return None
        data = self.visit_expr(value.args[0])
        call = relax.Call(value.op, [data, constant_of(weights)], value.attrs)
        return relax.op.add(self.builder_.emit(call), norm.constant(terms, x))


def _scaled(call: Any, norm: _BatchNorm) -> NDArray[Any] | None:
    """Return the weights of a convolution times the factors of its outputs; None for others."""
    name = call_name(call)
    if not name.startswith("relax.nn.conv"):
        return None
    weights, attrs = constant_array(call.args[1]), call.attrs
    if weights is None or str(attrs.data_layout).find("C") != norm.axis:
        return None
    layout = str(attrs.kernel_layout)
    places = [layout.index(letter) for letter in "OI"]
    moved = np.moveaxis(weights, places, (0, 1))
    if name.endswith("_transpose"):
        # The outputs of a group share the first axis with those of others.
        outputs, _, *taps = moved.shape
        divided = moved.reshape(outputs, int(attrs.groups), -1, *taps)
        shape = (int(attrs.groups), outputs, *[1] * (1 + len(taps)))
        factors = np.swapaxes(norm.factors.reshape(shape), 0, 1)
        scaled = (divided * factors).reshape(moved.shape)
    else:
        scaled = moved * norm.factors.reshape(-1, *[1] * (moved.ndim - 1))
    return np.ascontiguousarray(np.moveaxis(scaled, (0, 1), places).astype(weights.dtype))

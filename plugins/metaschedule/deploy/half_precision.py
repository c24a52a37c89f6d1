"""Tensors of 16 bits on processors that compute with 32.

LLVM converts each operand and each result of an operation that a processor lacks, and sums of 16
bits lose digits. ONNX Runtime computes such networks in float32, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import tvm
from tvm import relax

from ..compat import relax_type, type_arguments
from ..modules import (
    bound_to,
    call_name,
    constant_array,
    constant_of,
    nodes_of,
    rewrite_functions,
)

__all__ = ["widen_halves"]

#: Floating types of 16 bits, and the features of processors that compute with vectors of them.
_HALVES: dict[str, tuple[str, ...]] = {
    "float16": ("avx512fp16", "fullfp16", "zvfh"),
    "bfloat16": (),
}

#: Attributes of operators that name the type of their results.
_RESULTS = ("dtype", "out_dtype")


def widen_halves(mod: Any, target: Any) -> tuple[Any, list[str]]:
    """Compute in float32 what a processor would convert from and to 16 bits in each operation.

    Parameters and results of functions keep their types, and so does what PrimFuncs and packed
    functions compute for the program.

    Parameters
    ----------
    mod : tvm.IRModule
        A Relax program.
    target : tvm.target.Target
        Target of the compilation; LLVM's targets alone change anything.

    Returns
    -------
    tvm.IRModule
        The program, which is the given one where nothing changes.
    list of str
        The types that became float32, in one line each.
    """
    if target.kind.name != "llvm":
        return mod, []
    lacking = {half for half, features in _HALVES.items() if not _computes(target, features)}
    halves = sorted(lacking & _dtypes(mod))
    if not halves:
        return mod, []
    transform = relax.transform
    # Outside of dataflow blocks each variable is defined wherever what it is bound to is.
    mod = transform.ToNonDataflow()(mod)
    mod = rewrite_functions(mod, partial(_Widener, halves=halves))
    # Each use of a parameter converts it, and each result of a function that another one takes.
    for clean in (
        transform.ConvertToDataflow(min_size=1),
        transform.DeadCodeElimination(),
        transform.EliminateCommonSubexpr(),
    ):
        mod = clean(mod)
    note = "computed in float32, which this processor has vectors of"
    return mod, [f"{half}: {note}" for half in halves]


def _computes(target: Any, features: Iterable[str]) -> bool:
    """Tell whether a processor has one of the features."""
    return any(tvm.target.codegen.target_has_features(feature, target) for feature in features)


def _dtypes(mod: Any) -> set[str]:
    """Return the element types of the variables in the Relax functions of a program."""
    variables = (node for node in nodes_of(mod) if isinstance(node, relax.Var))
    return {str(each.dtype) for variable in variables for each in _tensors(relax_type(variable))}


def _tensors(type_: Any) -> list[Any]:
    """Return the types of the tensors in a type."""
    if hasattr(type_, "fields"):
        return [tensor for field in type_.fields for tensor in _tensors(field)]
    return [type_] if hasattr(type_, "ndim") and hasattr(type_, "dtype") else []


@relax.expr_functor.mutator
class _Widener(relax.PyExprMutator):
    """Makes float32 of halves, except those of parameters, results and called functions.

    Parameters
    ----------
    mod : tvm.IRModule
        The program.
    halves : sequence of str
        Types that become float32.
    """

    def __init__(self, mod: Any, halves: Sequence[str]) -> None:
        super().__init__(mod)
        self._halves = frozenset(halves)

    def visit_function_(self, func: Any) -> Any:
        """Return a function whose parameters and results keep their types."""
        body, type_ = self.visit_with_new_scope(func.body), relax_type(func.body)
        result = relax.SeqExpr(body.blocks, self._converted(body.body, type_))
        changed = relax.Function(func.params, result, type_, func.is_pure, func.attrs)
        return self.builder_.normalize(changed)

    def visit_var_(self, var: Any) -> Any:
        """Return a variable, which is converted if it is a parameter."""
        var = self.visit_expr_post_order(var)
        return self._converted(var, relax_type(var), "float32")

    def visit_generic_const_(self, constant: Any) -> Any:
        """Return a constant of float32 for one of halves."""
        array = constant_array(constant)
        if array is None or str(relax_type(constant).dtype) not in self._halves:
            return constant
        return constant_of(array.astype("float32"))

    visit_constant_ = visit_generic_const_  # until 0.26

    def visit_call_(self, call: Any) -> Any:
        """Return a call of an operator on float32, or of a function on the types that it takes."""
        args = [self.visit_expr(arg) for arg in call.args]
        if isinstance(call.op, tvm.ir.Op) and not type_arguments(call):
            return relax.Call(call.op, args, self._attributes(call.attrs))
        args = [
            self._converted(*pair) for pair in zip(args, map(relax_type, call.args), strict=True)
        ]
        called = self.builder_.emit(relax.Call(call.op, args, call.attrs, type_arguments(call)))
        return self._converted(called, relax_type(call), "float32")

    def _attributes(self, attrs: Any) -> Any:
        """Return the attributes of an operator whose results are float32 instead of halves."""
        if attrs is None:
            return None
        info = type(attrs).__tvm_ffi_type_info__
        values = {field.name: getattr(attrs, field.name) for field in info.fields}
        named = [name for name in _RESULTS if str(values.get(name)) in self._halves]
        if not named:
            return attrs
        return tvm.ir.make_node(info.type_key, **{**values, **dict.fromkeys(named, "float32")})

    def _converted(self, value: Any, type_: Any, dtype: str | None = None) -> Any:
        """Return a value whose tensors of halves have another type.

        Parameters
        ----------
        value : relax.Expr
            The value.
        type_ : relax.Type
            Type of the value in the program.
        dtype : str, optional
            The other type. None: the tensors are float32, and become halves again.
        """
        if not any(str(each.dtype) in self._halves for each in _tensors(type_)):
            return value
        if hasattr(type_, "fields"):
            source = bound_to(self, value)
            items = (
                source.fields
                if isinstance(source, relax.Tuple)
                else [relax.TupleGetItem(value, index) for index in range(len(type_.fields))]
            )
            given = zip(items, type_.fields, strict=True)
            return relax.Tuple([self._converted(item, field, dtype) for item, field in given])
        if dtype is not None:
            return relax.op.astype(value, dtype)
        source, half = bound_to(self, value), str(type_.dtype)
        if call_name(source) == "relax.astype" and str(relax_type(source.args[0]).dtype) == half:
            return source.args[0]
        return relax.op.astype(value, half)

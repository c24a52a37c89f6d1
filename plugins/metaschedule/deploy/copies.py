"""Concatenations and divisions of many small tensors, as copies of one tensor after the other.

TVM chooses the input of a concatenation by a condition for each element, and makes a block for each
part of a division. Both take a minute to search and compile where an unrolled recurrent network has
a hundred of them, and are fused with the last step.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import tvm
from tvm import relax, te, tirx

from ..compat import relax_type
from ..modules import IS_SCHEDULED, UNFUSED, call_name, extents_of, rewrite_functions

__all__ = ["copy_many"]

#: Least number of tensors, and most elements, that are copied in one thread.
_LEAST, _MOST = 16, 1 << 18


@tvm.transform.module_pass(opt_level=0, name="tunedb.CopyMany")
def copy_many(mod: Any, _context: Any) -> Any:
    """Replace concatenations and divisions of many small tensors by functions that copy."""
    return rewrite_functions(mod, _Copier)


@relax.expr_functor.mutator
class _Copier(relax.PyExprMutator):
    """Replaces what :func:`copy_many` names."""

    def visit_call_(self, call: Any) -> Any:
        """Return a call of a function that copies, or the call itself."""
        kind = relax_type(call)
        call = self.visit_expr_post_order(call)
        name = call_name(call)
        if name == "relax.concat" and isinstance(call.args[0], relax.Tuple):
            parts = list(call.args[0].fields)
            types, whole = [relax_type(part) for part in parts], kind
        elif name == "relax.split" and hasattr(kind, "fields"):
            parts, types, whole = [call.args[0]], list(kind.fields), relax_type(call.args[0])
        else:
            return call
        shapes, extents = [extents_of(each) for each in types], extents_of(whole)
        if len(types) < _LEAST or extents is None or prod(extents) > _MOST or None in shapes:
            return call
        axis, dtype = int(call.attrs.axis or 0) % len(extents), str(whole.dtype)
        func = _copies([shape for shape in shapes if shape], extents, axis, dtype, name)
        function = self.builder_.add_func(func, f"copied_{name.removeprefix('relax.')}")
        return relax.call_tir(function, relax.Tuple(parts), kind if len(parts) > 1 else types)


def _copies(
    shapes: Sequence[Sequence[int]], extents: Sequence[int], axis: int, dtype: str, name: str
) -> Any:
    """Return a function that copies parts into a tensor, or a tensor into parts."""
    joins = name == "relax.concat"

    def copies(inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
        (whole,), parts = (outputs, inputs) if joins else (inputs, outputs)
        offset, loops = 0, []
        for part, shape in zip(parts, shapes, strict=True):
            indices = [tirx.Var(f"i{place}", "int64") for place in range(len(shape))]
            moved = [index + offset if k == axis else index for k, index in enumerate(indices)]
            offset += shape[axis]
            load = tirx.BufferLoad(part, indices) if joins else tirx.BufferLoad(whole, moved)
            body: Any = tirx.BufferStore(
                *((whole, load, moved) if joins else (part, load, indices))
            )
            for index, extent in reversed(list(zip(indices, shape, strict=True))):
                body = tirx.For(index, 0, extent, tirx.ForKind.SERIAL, body)
            loops.append(body)
        return tirx.SeqStmt(loops)

    sources, results = (shapes, [extents]) if joins else ([extents], shapes)
    inputs = [te.placeholder(shape, dtype, f"x{k}") for k, shape in enumerate(sources)]
    outputs = te.extern(results, inputs, copies, name="copied", dtype=[dtype] * len(results))
    outputs = outputs if isinstance(outputs, list) else [outputs]
    func = te.create_prim_func([*inputs, *outputs], "int64").without_attr("global_symbol")
    # Neither fused nor searched.
    return func.with_attrs({**UNFUSED, IS_SCHEDULED: True})

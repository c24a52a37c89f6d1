"""Lower a scheduled module as TVM does for its ``PerStoreFeature``, without its deep copy.

TVM copies every candidate through a JSON graph before it lowers it (350 us for a matmul, 650 us
for a conv2d). Passes change TVM's objects in place only without a second reference, and copy them
otherwise, so the copy is not needed.

TVM does not export one of its passes, ``SimplifyForFeatureExtraction``
(``src/s_tir/meta_schedule/feature_extractor/per_store_feature.cc``). This module builds it from
tvm-ffi's structural mutation with compiled callbacks (``_simplify.pyx``). TVM 0.25 and tvm-ffi
before 0.1.14 lack that mutation: there Python callbacks of TVM's ``ir_transform`` do the same,
slower, and all of TVM's passes run.

Work that changes no statement is left out: simplifying the regions that blocks read and write,
which no extractor reads; the passes for automatic copies, thread bindings and windows into buffers
if a program has none; and TVM's second simplification if all index arithmetic is simple.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from importlib import util
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.transform import Sequential
from tvm.s_tir import transform as s_tir
from tvm.tirx.transform import prim_func_pass

from ....errors import PluginError
from .. import compat
from ..targets import first_line
from . import _simplify, ir
from .ir import fields as fields_of
from .ir import type_indices

_again = compat.stmt_simplify()

#: Instructions after which TVM's second simplification is always needed.
_CHANGED = _simplify.MATCHED | _simplify.COPIED
#: Functions of tvm-ffi that the compiled callbacks call, in the order of ``_simplify.prepare``.
_FUNCTIONS = (
    "ffi.StructuralMutatorMutate",
    "ffi.StructuralMutatorDefaultMutate",
    "ffi.StructuralMutatorVarRemapSet",
    "ffi.MapSize",
    "ffi.MapCount",
)
_SYMBOLS = (
    *("TVMFFIFunctionCall", "TVMFFIObjectIncRef", "TVMFFIObjectDecRef"),
    "TVMFFIErrorSetRaisedFromCStr",
)
_LOOP = ("loop_var", "min", "extent", "kind", "body", "annotations")
_BLOCK = (
    *("iter_vars", "name_hint", "body", "init", "alloc_buffers", "match_buffers", "annotations"),
    "span",
)
#: Fields that the callbacks read, in the same order.
_FIELDS = (
    *(("For", name) for name in _LOOP),
    *(("SBlock", name) for name in _BLOCK),
    ("IntImm", "value"),
    ("Var", "ty"),
    ("PrimType", "dtype"),
)
#: Roles of types that the callbacks are called with or meet.
_CALLED = ("For", "SBlock", "AttrStmt", "Select", "Load", "BufferStore", "Evaluate", "IntImm")
#: Types of loop variables, in the order of ``_simplify.prepare``.
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def lower(mod: Any) -> Any:
    """Return a module as TVM lowers it before it computes its features; `mod` is not changed.

    Parameters
    ----------
    mod : tvm.IRModule
        A scheduled module.

    Returns
    -------
    tvm.IRModule
        Equal (``structural_equal`` with ``map_free_vars``) to the result of the passes of TVM's
        ``PerStoreFeature``, but blocks lack the regions that they read and write. The GIL is
        released meanwhile.

    Raises
    ------
    PluginError
        TVM cannot lower the program (the message has TVM's reason), or the compiled callbacks do
        not fit this TVM.
    """
    first, rest = _passes()
    _simplify.begin()
    try:
        mod = first(mod)
        if rest is None:
            return mod
        found = _simplify.found()
        last = rest[found]
        if last is not None:
            mod = last(mod)
        # TVM's simplifier is not idempotent.
        if found & _CHANGED or not _simplify.is_settled(ir.read(mod)):
            mod = _again(mod)
        return mod
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise PluginError(f"TVM cannot lower the program: {first_line(error)}") from error


@cache
def is_compiled() -> bool:
    """Return whether compiled callbacks lower programs; otherwise Python does, slower.

    Raises
    ------
    PluginError
        Neither works with this TVM.
    """
    return _passes()[1] is not None


@cache
def _passes() -> tuple[Any, tuple[Any, ...] | None]:
    """Return the passes for all programs, and the later passes by the findings of `_simplify`.

    The latter are None if the former are all that TVM has.
    """
    try:
        entries, leaving_out = _entries()
        mutate = tvm_ffi.get_global_func("ffi.StructuralMutate")
        _self_test(lambda body: mutate(body, entries))
    except (PluginError, RuntimeError, ValueError, TypeError, AttributeError) as error:
        if util.find_spec("tvm.tirx.stmt_functor") is None:
            raise PluginError(
                f"lowering does not fit apache-tvm {tvm.__version__}: {first_line(error)}"
            ) from error
        _self_test(_simplify_in_python)
        return Sequential([*_first_passes(_simplify_in_python), *_last_passes()]), None

    def leave_regions_out(function: Any, _mod: Any, _context: Any) -> Any:
        if _simplify.found() & _simplify.COPIED:  # LowerAutoCopy needs them
            return function
        return function.with_body(mutate(function.body, leaving_out))

    first = Sequential(
        [
            *_first_passes(lambda body: mutate(body, entries)),
            prim_func_pass(leave_regions_out, 0, "tunedb.LeaveRegionsOut"),
            compat.stmt_simplify(),
        ]
    )
    return first, tuple(_later_passes(found) for found in range((_simplify.BOUND | _CHANGED) + 1))


def _first_passes(change: Callable[[Any], Any]) -> list[Any]:
    def simplify(function: Any, _mod: Any, _context: Any) -> Any:
        body = function.body
        simple = change(body)
        return function if simple.same_as(body) else function.with_body(simple)

    return [
        s_tir.RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True),
        prim_func_pass(simplify, 0, "tunedb.SimplifyForFeatureExtraction"),
        s_tir.LowerCrossThreadReduction(),
        s_tir.LowerInitBlock(),
        s_tir.PlanAndUpdateBufferAllocationLocation(),
        s_tir.ConvertBlocksToOpaque(),
        s_tir.CompactBufferAllocation(),
    ]


def _last_passes() -> list[Any]:
    """Return the passes after `_first_passes`, all as TVM has them."""
    return [
        compat.stmt_simplify(),
        s_tir.LowerAutoCopy(),
        s_tir.UnifyThreadBinding(),
        s_tir.LowerMatchBuffer(),
        compat.stmt_simplify(),
    ]


def _later_passes(found: int) -> Any:
    """Return the passes between TVM's two simplifications that a program needs, or None."""
    passes = []
    if found & _simplify.COPIED:
        passes.append(s_tir.LowerAutoCopy())
    if found & (_simplify.COPIED | _simplify.BOUND):  # lowering a copy may bind loops to threads
        passes.append(s_tir.UnifyThreadBinding())
    if found & _CHANGED:
        passes.append(s_tir.LowerMatchBuffer())
    return Sequential(passes) if passes else None


def _entries() -> tuple[Any, Any]:
    """Return the callbacks of ``ffi.StructuralMutate`` by type, for each of two passes."""
    indices = {role: type_indices()[compat.key_of(role)] for role in _CALLED}
    block = compat.key_of("SBlock")
    library = ctypes.CDLL(tvm_ffi.libinfo.find_libtvm_ffi())
    zeros = [tirx.IntImm(dtype, 0) for dtype in _INTEGERS]
    try:
        _simplify.prepare(
            [ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in _SYMBOLS],
            [tvm_ffi.get_global_func(name) for name in (*_FUNCTIONS, block)],
            [fields_of(compat.key_of(role))[name][0] for role, name in _FIELDS],
            indices["IntImm"],
            fields_of("ir.IntImm")["value"][1] == 16,
            tvm_ffi.convert([tirx.Evaluate(0), "auto_copy", [], *zeros]),
        )
        made = [tvm_ffi.core.Function.__from_extern_c__(at) for at in _simplify.addresses()]
        entries = [
            (indices["For"], made[0], False),
            (indices["SBlock"], made[1], False),
            (indices["AttrStmt"], made[2], False),
            (indices["Select"], _select(indices["Load"]), False),
        ]
        leaving_out = [
            (indices["SBlock"], made[3], False),
            (indices["BufferStore"], made[4], False),
            (indices["Evaluate"], made[4], False),
        ]
    except (AttributeError, KeyError, ValueError) as error:
        raise PluginError(f"lowering does not fit apache-tvm {tvm.__version__}: {error}") from error
    return tvm_ffi.convert(entries), tvm_ffi.convert(leaving_out)


def _select(load: int) -> Any:
    """Return the callback for ``Select``: a constant 1 for one without a load.

    Like TVM, it does not replace loops' variables inside of a ``Select`` that stays.
    """
    walk = tvm_ffi.get_global_func("ffi.StructuralWalk")
    preorder = int(tvm_ffi.WalkOrder.PREORDER)

    def callback(node: Any, _mutator: Any) -> Any:
        stop = [(load, lambda _node: tvm_ffi.VisitInterrupt(None))]
        for part in (node.condition, node.true_value, node.false_value):
            if walk(part, stop, [], preorder) is not None:
                return node
        return tirx.const(1, node.ty.dtype)

    return callback


def _simplify_in_python(body: Any) -> Any:
    """Return a body as TVM's ``SimplifyForFeatureExtraction`` leaves it."""
    from tvm.tirx.stmt_functor import ir_transform

    zeros: dict[Any, Any] = {}
    keys = [key for role in ("For", "Select", "Var") for key in compat.types()[role][0]]

    def change(node: Any) -> Any:
        if isinstance(node, tirx.Var):
            return zeros.get(node)
        if isinstance(node, tirx.Select):
            loads: list[Any] = []
            compat.walk(node, tirx.BufferLoad, loads.append)
            return node if loads else tirx.const(1, compat.dtype_of(node))
        if _is_number(node.extent, 0):
            return tirx.Evaluate(0)
        is_unit = _is_number(node.extent, 1) and _is_number(node.min, 0)
        if is_unit and node.kind == tirx.ForKind.SERIAL and not node.annotations:
            variable = node.loop_var
            zeros[variable] = tirx.const(0, compat.dtype_of(variable))
            return ir_transform(node.body, change, None, keys)
        return None

    return ir_transform(body, change, None, keys)


def _is_number(value: Any, number: int) -> bool:
    return isinstance(value, tirx.IntImm) and value.value == number


def _self_test(change: Callable[[Any], Any]) -> None:
    """Raise PluginError unless `change` transforms a small program as expected."""
    i, j = (tirx.Var(name, "int64") for name in "ij")
    buffer = tirx.decl_buffer((8, 8), "float32")
    serial = tirx.ForKind.SERIAL

    def store(column: Any) -> Any:
        return tirx.BufferStore(buffer, tirx.const(1.0, "float32"), [i, column])

    def outer(body: Any, extent: int = 8) -> Any:
        return tirx.For(i, 0, extent, serial, body)

    kept = outer(tirx.For(j, 0, 1, serial, store(j), annotations={"pragma": 1}))
    for before, after in (
        (outer(tirx.For(j, 0, 1, serial, store(j))), outer(store(tirx.IntImm("int64", 0)))),
        (kept, kept),
        (outer(kept, 0), tirx.Evaluate(0)),
    ):
        if not tvm_ffi.structural_equal(change(before), after, map_free_vars=True):
            raise PluginError(
                f"lowering does not fit apache-tvm {tvm.__version__}: its self-test failed"
            )

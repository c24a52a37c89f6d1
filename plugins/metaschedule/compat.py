"""Supported versions of TVM, the differences between them, and errors that cross TVM.

apache-tvm and apache-tvm-ffi are bound by ABI, but apache-tvm's metadata says only ``>=``: a plain
``pip install apache-tvm`` takes apache-tvm-ffi 0.1.15, with which ``tvm.ir.save_json`` segfaults.

This module imports TVM only inside of functions: the check of the versions comes first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import metadata, util
from typing import TYPE_CHECKING, Any

from ... import errors
from ...errors import PluginError, TuneDBError

if TYPE_CHECKING:
    from collections.abc import Callable

#: Types that have a role for the reader, and fields with another name; a field that a release lacks
#: is empty. A role without types does not exist in a release.
Types = dict[str, tuple[tuple[str, ...], dict[str, str]]]

#: Names of the types with two operands, and with one.
BINARY = (
    *("Add", "Sub", "Mul", "Div", "Mod", "FloorDiv", "FloorMod", "Min", "Max", "EQ", "NE", "LT"),
    *("LE", "GT", "GE", "And", "Or", "LShift", "RShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor"),
)
NOT = ("Not", "BitwiseNot")
#: Until 0.26, operations on bits are calls.
_BITWISE = {"LShift", "RShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"}


def _prefixed(prefix: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{prefix}.{name}" for name in names)


_TYPES_027: Types = {
    "For": (("tirx.For",), {}),
    "BufferStore": (("tirx.BufferStore",), {}),
    "SBlockRealize": (("s_tir.SBlockRealize",), {}),
    "SBlock": (("s_tir.SBlock",), {}),
    "SeqStmt": (("tirx.SeqStmt",), {}),
    "IfThenElse": (("tirx.IfThenElse",), {}),
    "Evaluate": (("tirx.Evaluate",), {}),
    "AttrStmt": (("tirx.AttrStmt",), {}),
    "AllocBuffer": (("tirx.AllocBuffer",), {}),
    "DeclBuffer": (("tirx.DeclBuffer",), {}),
    "Bind": (("tirx.Bind",), {}),
    "While": (("tirx.While",), {}),
    "AssertStmt": (("tirx.AssertStmt",), {}),
    "End": (("tirx.Break", "tirx.Continue"), {}),
    "IntImm": (("ir.IntImm",), {}),
    "FloatImm": (("ir.FloatImm",), {}),
    "StringImm": (("ir.StringImm",), {}),
    "Var": (("ir.Var",), {"type_annotation": ""}),
    "Load": (("ir.TensorLoad",), {}),
    "Call": (("ir.Call",), {}),
    "Binary": (_prefixed("prim", BINARY), {}),
    "Not": (_prefixed("prim", NOT), {}),
    "Select": (("prim.Select",), {}),
    "Cast": (("prim.Cast",), {}),
    "Ramp": (("prim.Ramp",), {}),
    "Broadcast": (("prim.Broadcast",), {}),
    "Shuffle": (("prim.Shuffle",), {}),
    "Let": (("prim.Let",), {}),
    "IterVar": (("tirx.IterVar",), {}),
    "Range": (("ir.Range",), {}),
    "MatchBufferRegion": (("s_tir.MatchBufferRegion",), {}),
    "Region": (("ir.TensorRegion",), {}),
    "PrimType": (("ir.PrimType",), {}),
    "BufferType": (("tirx.BufferType",), {}),
    "PrimFunc": (("tirx.PrimFunc",), {"buffer_map": ""}),
    "IRModule": (("ir.IRModule",), {}),
    "GlobalVar": (("ir.GlobalVar",), {}),
    "Buffer": ((), {}),
    "PointerType": ((), {}),
}
#: 0.27 gave expressions of primitive type, blocks and tensors homes of their own.
_TYPES_026: Types = {
    **_TYPES_027,
    **{
        name: ((f"tirx.{name}",), {})
        for name in ("SBlockRealize", "SBlock", "StringImm", "Select", "Cast", "Ramp", "Broadcast")
    },
    **{name: ((f"tirx.{name}",), {}) for name in ("Shuffle", "Let", "MatchBufferRegion")},
    "Load": (("tirx.BufferLoad",), {"source": "buffer"}),
    "Region": (("tirx.BufferRegion",), {"source": "buffer"}),
    "Binary": (_prefixed("tirx", tuple(name for name in BINARY if name not in _BITWISE)), {}),
    "Not": (("tirx.Not",), {}),
}
#: 0.26 made buffers variables whose type says what a buffer is, and gave variables one class.
_TYPES_025: Types = {
    **_TYPES_026,
    "Var": (("tirx.Var", "tirx.SizeVar"), {}),
    "Call": (("tirx.Call",), {}),
    "BufferType": ((), {}),
    "PrimFunc": (("tirx.PrimFunc",), {}),
    "Buffer": (("tirx.Buffer",), {}),
    "PointerType": (("ir.PointerType",), {}),
}


@dataclass(frozen=True, slots=True)
class Release:
    """A minor release of TVM.

    Parameters
    ----------
    ffi : tuple of tuple of int
        Releases of apache-tvm-ffi that work with it (measured: import, save_json,
        Workload.as_json and an 8-trial tune_tir for each pair).
    requirements : str
        The pair for pip.
    types : Types
        The types of its IR.
    integers_are_nodes : bool
        Whether constants of a graph refer to nodes that hold their values.
    builds_modules : bool
        Whether it has the constructors by which graphs of other releases become modules
        (:mod:`.graph_module`).
    """

    ffi: tuple[tuple[int, ...], ...]
    requirements: str
    types: Types
    integers_are_nodes: bool = False
    builds_modules: bool = False


#: Supported releases, by the first two numbers of their version; the newest is last.
RELEASES: dict[tuple[int, ...], Release] = {
    (0, 25): Release(
        ((0, 1, 12),),
        "'apache-tvm>=0.25,<0.26' 'apache-tvm-ffi>=0.1.12,<0.1.13'",
        _TYPES_025,
    ),
    (0, 26): Release(
        ((0, 1, 13), (0, 1, 14)),
        "'apache-tvm>=0.26,<0.27' 'apache-tvm-ffi>=0.1.14.post0,<0.1.15'",
        _TYPES_026,
    ),
    (0, 27): Release(
        ((0, 1, 14),),
        "'apache-tvm>=0.27,<0.28' 'apache-tvm-ffi>=0.1.14.post0,<0.1.15'",
        _TYPES_027,
        integers_are_nodes=True,
        builds_modules=True,
    ),
}
NEWEST = max(RELEASES)


#: A version of development or with a local part.
_DEVELOPMENT = re.compile(r"dev|\+")


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def check_versions() -> None:
    """Raise PluginError, naming the command to run, unless TVM and its ffi fit.

    A TVM built from source without package metadata is not checked.
    """
    tvm, ffi = _installed("apache-tvm"), _installed("apache-tvm-ffi")
    if tvm is None:
        if util.find_spec("tvm") is None:
            raise PluginError("TVM is not installed; run: pip install 'tunedb[tvm]'")
        return
    check_pair(tvm, ffi)


def check_pair(tvm: str, ffi: str | None) -> None:
    """Raise PluginError unless these versions of apache-tvm and apache-tvm-ffi fit.

    A development version of an unknown release was built from source, together with its tvm-ffi:
    the self-tests of reader, encoder and lowering decide what works with it.

    Parameters
    ----------
    tvm, ffi : str
        Versions, e.g. ``0.27.0.post1`` and ``0.1.14.post1``; None if not installed.
    """
    known_release = RELEASES.get(_numbers(tvm)[:2])
    if known_release is None:
        if _DEVELOPMENT.search(tvm) and _numbers(tvm)[:2] > NEWEST:
            return
        known = ", ".join(".".join(map(str, numbers)) for numbers in RELEASES)
        raise PluginError(
            f"apache-tvm {tvm} is not supported (known: {known}); run: "
            f"pip install {RELEASES[NEWEST].requirements}"
        )
    if ffi is None or _numbers(ffi)[:3] not in known_release.ffi:
        raise PluginError(
            f"apache-tvm {tvm} does not work with apache-tvm-ffi {ffi} (it crashes or does not "
            f"load); run: pip install {known_release.requirements}"
        )


@cache
def number() -> tuple[int, ...]:
    """Return the first two numbers of the installed TVM, of the newest for an unknown one."""
    import tvm

    installed = _numbers(str(tvm.__version__))[:2]
    return installed if installed in RELEASES else NEWEST


def release() -> Release:
    """Return the installed release of TVM, for an unknown one the newest that is known."""
    return RELEASES[number()]


def lacking() -> str | None:
    """Return what the installed release lacks, in words; None for nothing."""
    if release().builds_modules:
        return None
    return "builds no modules from graphs of other releases; their records need a stored script"


def types() -> Types:
    """Return the types of the installed TVM's IR."""
    return release().types


def key_of(role: str) -> str:
    """Return the key of the one type that has a role, e.g. ``tirx.SBlock`` of ``SBlock``."""
    (key,) = types()[role][0]
    return key


@cache
def sblock_types() -> tuple[Any, Any]:
    """Return TVM's classes ``SBlock`` and ``SBlockRealize``."""
    from tvm import s_tir, tirx

    home: Any = s_tir if hasattr(s_tir, "SBlock") else tirx  # since 0.27 in s_tir
    return home.SBlock, home.SBlockRealize


def stmt_simplify() -> Any:
    """Return TVM's pass ``StmtSimplify`` over scheduled programs."""
    from tvm import s_tir, tirx

    if hasattr(s_tir.transform, "StmtSimplify"):  # since 0.27 with its own for blocks
        return s_tir.transform.StmtSimplify()
    return tirx.transform.StmtSimplify()


def dtype_of(expression: Any) -> str:
    """Return the data type of an expression of primitive type."""
    return str(expression.ty.dtype if hasattr(expression, "ty") else expression.dtype)


def arguments_of(function: Any) -> list[Any]:
    """Return the parameters of a PrimFunc; the buffer in place of its handle."""
    buffers = getattr(function, "buffer_map", {})  # until 0.25
    return [buffers.get(parameter, parameter) for parameter in function.params]


def buffer_of(region: Any) -> Any:
    """Return the buffer of a region."""
    return region.source if hasattr(region, "source") else region.buffer  # until 0.26


def load_type() -> Any:
    """Return TVM's class of loads from buffers."""
    from tvm import ir, tirx

    return ir.TensorLoad if hasattr(ir, "TensorLoad") else tirx.BufferLoad  # since 0.27


def linear_equation(expression: Any, variables: list[Any]) -> list[Any]:
    """Return the coefficients of variables and the rest; nothing for an expression not linear."""
    if number() >= (0, 27):
        from tvm.sym.pattern import detect_linear_equation
    else:
        from tvm.arith import detect_linear_equation
    return list(detect_linear_equation(expression, variables))


def relax_type(expression: Any) -> Any:
    """Return the type of an expression of Relax: of a tensor, with ``shape`` and ``dtype``."""
    return expression.ty if hasattr(expression, "ty") else expression.struct_info  # until 0.25


def type_arguments(call: Any) -> Any:
    """Return the types among the arguments of a call of Relax."""
    return call.ty_args if hasattr(call, "ty_args") else call.sinfo_args  # until 0.25


def symbols_of(parameter: Any) -> Any:
    """Return the variables in the type of a parameter of a Relax function."""
    from tvm.relax import analysis

    if hasattr(analysis, "tir_vars_in_type"):
        return analysis.tir_vars_in_type(relax_type(parameter))
    return analysis.tir_vars_in_struct_info(relax_type(parameter))  # until 0.25


def constant_value(expression: Any) -> Any | None:
    """Return the value of a constant of Relax, a tensor or a number; None for other expressions."""
    from tvm import ir, relax, tirx

    if hasattr(ir, "Constant"):  # since 0.27
        return expression.value if isinstance(expression, ir.Constant) else None
    if isinstance(expression, relax.Constant):
        return expression.data
    wrapped = isinstance(expression, getattr(relax, "PrimValue", ()))  # until 0.25
    number = expression.value if wrapped else expression
    return number.value if isinstance(number, tirx.IntImm | tirx.FloatImm) else None


def prim_func(buffers: list[Any], body: Any) -> Any:
    """Return a function whose parameters are buffers."""
    from tvm import tirx

    if types()["Buffer"][0]:  # until 0.25 a parameter is a handle
        handles = [tirx.Var(buffer.name, "handle") for buffer in buffers]
        return tirx.PrimFunc(handles, body, buffer_map=dict(zip(handles, buffers, strict=True)))
    return tirx.PrimFunc(buffers, body)


def analyzer() -> Any:
    """Return an analyzer of integer expressions, which knows no variable yet."""
    import tvm

    home: Any = tvm.sym if hasattr(tvm, "sym") else tvm.arith  # since 0.27 in sym
    return home.Analyzer()


def map_loops(mod: Any, change: Callable[[Any], Any]) -> Any:
    """Return a module whose loops are what `change` returns of them, from the inside outwards."""
    import tvm_ffi
    from tvm import tirx

    if hasattr(tvm_ffi, "structural_map"):
        return tvm_ffi.structural_map(mod, (tirx.For, change))
    from tvm.tirx.stmt_functor import ir_transform

    mod = type(mod)(mod.functions, attrs=mod.attrs)
    for name, function in mod.functions.items():
        mod[name] = function.with_body(ir_transform(function.body, None, change, ["tirx.For"]))
    return mod


def walk(node: Any, type_: Any, visit: Callable[[Any], Any]) -> None:
    """Call `visit` for each object of a type in a function, statement or expression."""
    import tvm_ffi

    if hasattr(tvm_ffi, "structural_walk"):
        tvm_ffi.structural_walk(node, (type_, visit))
        return
    from tvm.tirx import PrimFunc
    from tvm.tirx.stmt_functor import post_order_visit

    body = node.body if isinstance(node, PrimFunc) else node
    post_order_visit(body, lambda one: visit(one) if isinstance(one, type_) else None)


def register_rule(name: str, rule: Callable[[Any, Any], list[Any]]) -> None:
    """Register MetaSchedule's rule for CPUs of blocks that name it, unless it has one.

    Parameters
    ----------
    name : str
        The value of the blocks' attribute ``schedule_rule``.
    rule : callable
        Takes a schedule and a block; returns schedules.
    """
    import tvm_ffi

    for prefix in ("s_tir.meta_schedule", "meta_schedule"):  # the first one since 0.26
        full = f"{prefix}.cpu.{name}"
        if tvm_ffi.get_global_func(full, allow_missing=True) is None:
            tvm_ffi.register_global_func(full, rule)


def register_errors() -> None:
    """Let tunedb's errors and Ctrl-C keep their type when they cross TVM's C++.

    Without this, every exception that is not one of tvm-ffi's own kinds arrives as RuntimeError.
    """
    from tvm_ffi import register_error

    for name in errors.__dict__:
        value = getattr(errors, name)
        if isinstance(value, type) and issubclass(value, TuneDBError):
            register_error(f"tunedb.{name}", value)
    register_error("KeyboardInterrupt", KeyboardInterrupt)

"""IRModules as workloads: their stored form, and the names of equal modules."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache, reduce
from math import prod
from typing import Any

import orjson
import tvm
import tvm_ffi
from numpy.typing import NDArray
from tvm import relax
from tvm.tirx import PrimFunc, SeqStmt

from ...identity import canonical_json, digest
from ...programs.metaschedule.graph_text import stored_text, text_of_tvm
from ...programs.metaschedule.upgrade import is_current_graph
from ...programs.workload_info.structure import Structure, structure_of
from ...records import Alias, Target, Workload, WorkloadFormat
from . import compat

#: TVM's module equalities (``src/s_tir/meta_schedule/module_equality.cc``).
EQUALITIES = ("structural", "ignore-tensor", "anchor-block")

#: Attribute with the indices of a function's parameters whose layout the tuner may choose.
FREE_LAYOUTS = "layout_free_buffers"

#: Attribute of functions that are not to be scheduled.
IS_SCHEDULED = "tirx.is_scheduled"

#: Attribute of functions that are not fused: ``kOpaque`` of TVM's ``op_attr_types.h``.
UNFUSED = {"op_pattern": 8}

#: Scheme of the name that modules with equal TVMScript share in every release.
SCRIPT = "script"

#: Attributes of statements that are statements.
_PARTS = ("body", "block", "init", "then_case", "else_case")

_find_anchor = tvm_ffi.get_global_func("s_tir.analysis.find_anchor_sblock")


def bytes_of(shape: Iterable[int], dtype: Any) -> int:
    """Return the bytes of a tensor."""
    return prod(shape) * ((int(tvm.DataType(str(dtype)).bits) + 7) // 8)


def tvm_version() -> str:
    """Return TVM's version without post-release, development and local parts.

    Releases 0.27.0 and 0.27.0.post1 have the same hashes and read each other's graphs.
    """
    return release_of(str(tvm.__version__))


def llvm_version() -> str | None:
    """Return the major version of TVM's LLVM, or None."""
    try:
        return str(tvm.target.codegen.llvm_version_major())
    except Exception:  # TVM built without LLVM
        return None


def release_of(version: str) -> str:
    """Return the first three numbers of a version: ``0.27.0`` of ``0.27.0.post1``."""
    return ".".join(version.split("+", maxsplit=1)[0].split(".")[:3])


def shield(mod: Any) -> list[Any]:
    """Return references that keep schedules of a module from changing the module itself.

    TVM 0.27 copies a statement of a module before it changes it, unless only one reference to it
    exists. After a schedule has annotated the root block, it does not see that the module shares
    the statements of a sequence, and a split of a loop among them changes the caller's module.
    Statements with a second reference are copied always.

    Parameters
    ----------
    mod : IRModule
        Module of PrimFuncs; other functions are left out.

    Returns
    -------
    list of tvm Stmt
        Statements of all sequences; to be kept while the module is scheduled.
    """
    held: list[Any] = []
    waiting = [func.body for func in mod.functions.values() if isinstance(func, PrimFunc)]
    while waiting:
        statement = waiting.pop()
        parts = [getattr(statement, name, None) for name in _PARTS]
        waiting += [part for part in parts if part is not None]
        if isinstance(statement, SeqStmt):
            held.extend(statement.seq)
            waiting.extend(statement.seq)
    return held


def structural_hash(mod: Any, equality: str) -> int:
    """Return the hash of a module under one of TVM's equalities."""
    if equality == "anchor-block":
        anchor = _find_anchor(mod)
        return int(
            tvm_ffi.structural_hash(mod if anchor is None else anchor, skip_tensor_content=True)
        )
    return int(tvm_ffi.structural_hash(mod, skip_tensor_content=equality == "ignore-tensor"))


def modules_equal(left: Any, right: Any, equality: str) -> bool:
    """Tell whether two modules are equal under one of TVM's equalities."""
    if left.same_as(right):
        return True
    if equality == "anchor-block":
        anchors = _find_anchor(left), _find_anchor(right)
        if all(anchor is not None for anchor in anchors):
            left, right = anchors
    return bool(tvm_ffi.structural_equal(left, right, skip_tensor_content=equality != "structural"))


def rewrite_functions(mod: Any, mutator: Callable[[Any], Any]) -> Any:
    """Return a program after a mutator of its Relax functions.

    Parameters
    ----------
    mod : tvm.IRModule
        The program.
    mutator : callable
        Class of a ``PyExprMutator``, which is made of the program.
    """
    rewriter = mutator(mod)
    for var, func in mod.functions_items():
        if isinstance(func, relax.Function):
            rewriter.builder_.update_func(var, rewriter.visit_expr(func))
    return relax.transform.CanonicalizeBindings()(rewriter.builder_.get())


def call_name(node: Any) -> str:
    """Return the name of the operator that a node of Relax calls; empty for other nodes."""
    return str(getattr(getattr(node, "op", None), "name", ""))


def operator_of(call: Any) -> Any:
    """Return the function of ``relax.op`` that makes calls of the same operator."""
    return reduce(getattr, call_name(call).split(".")[1:], relax.op)


def bound_to(mutator: Any, value: Any) -> Any:
    """Return what a variable is bound to in a mutator's program, or a value that is none."""
    while isinstance(value, relax.Var):
        bound = mutator.lookup_binding(value)
        if bound is None:
            return value
        value = bound
    return value


def nodes_of(mod: Any) -> list[Any]:
    """Return the expressions in the Relax functions of a program, operands first."""
    nodes: list[Any] = []
    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func, nodes.append)
    return nodes


def calls_of(mod: Any) -> list[Any]:
    """Return the calls of operators in the Relax functions of a program."""
    return [
        node
        for node in nodes_of(mod)
        if isinstance(node, relax.Call) and isinstance(node.op, tvm.ir.Op)
    ]


def has_branches(mod: Any) -> bool:
    """Tell whether a program computes one of two branches."""
    return any(isinstance(node, relax.If) for node in nodes_of(mod))


def extents_of(type_: Any) -> list[int] | None:
    """Return the extents of a tensor's or a shape's type; None if one is unknown or a symbol."""
    extents = getattr(getattr(type_, "shape", type_), "values", None)
    if extents is None or not all(isinstance(extent, tvm.tirx.IntImm) for extent in extents):
        return None
    return [int(extent) for extent in extents]


def is_scheduled(func: Any) -> bool:
    """Tell whether a function is not to be scheduled."""
    return bool(func.attrs and func.attrs.get(IS_SCHEDULED, False))


def constant_array(expression: Any) -> NDArray[Any] | None:
    """Return the elements of a constant tensor of Relax; None for other expressions."""
    value = compat.constant_value(expression)
    return value.numpy() if isinstance(value, tvm.runtime.Tensor) else None


def constant_of(array: Any) -> Any:
    """Return an array as a constant of its dtype; ``relax.const`` makes float32 of float64."""
    return relax.const(array, str(array.dtype))


def scalar_like(number: Any, x: Any) -> Any:
    """Return a number, or that of a node of TVM, as a constant of the dtype of a tensor."""
    return relax.const(getattr(number, "value", number), str(compat.relax_type(x).dtype))


def without_attributes(func: Any) -> Any:
    """Return a PrimFunc without attributes."""
    for name in func.attrs.keys() if func.attrs else ():
        func = func.without_attr(name)
    return func


def alias(mod: Any, equality: str) -> Alias:
    """Return the name that a module shares with those that are equal under an equality."""
    return Alias(f"tvm:{tvm_version()}:{equality}", f"{structural_hash(mod, equality):016x}")


def aliases(mod: Any, script: str) -> list[Alias]:
    """Return all names of a module with a script."""
    hashes = [alias(mod, equality) for equality in EQUALITIES]
    return [*hashes, script_alias(script)]


def script_alias(script: str) -> Alias:
    """Return the name of modules with this TVMScript text in every release."""
    return Alias(SCRIPT, digest("script", script.encode()).hex())


def script_of(record: Workload, mod: Any) -> str:
    """Return the script of a stored workload with the module `mod`.

    A script that this release has stored is reused, because printing takes ten times as long.
    """
    if record.script is not None and record.tvm_version == str(tvm.__version__):
        return record.script
    return str(mod.script(show_meta=True))


def to_workload(mod: Any) -> Workload:
    """Return the stored form of a module: its graph, and its script for other versions."""
    graph = orjson.loads(_graph_of(mod))
    graph.pop("metadata", None)
    return Workload(
        WorkloadFormat.GRAPH,
        canonical_json(graph),
        name=name_of(mod),
        tvm_version=str(tvm.__version__),
        script=str(mod.script(show_meta=True)),
    )


def structure_of_module(mod: Any) -> Structure:
    """Return the structure of a module, as one reads it from the graph of a stored workload."""
    return _structure_of_graph(_graph_of(mod))


# A question asks several times for that of its module: to find rows, and to fit their traces to it.
@lru_cache(maxsize=128)
def _structure_of_graph(graph: bytes) -> Structure:
    return structure_of(Workload(WorkloadFormat.GRAPH, graph))


def _graph_of(mod: Any) -> bytes:
    return stored_text(str(tvm.ir.save_json(mod)).encode())


def to_module(workload: Workload) -> Any:
    """Return the module of a stored graph, which must be of an own source.

    Parameters
    ----------
    workload : Workload
        A workload with a graph.

    Raises
    ------
    ValueError
        TVM 0.27 could crash on the graph; its version label is not trusted.
    """
    if compat.release().integers_are_nodes and not is_current_graph(orjson.loads(workload.body)):
        raise ValueError("a graph of another TVM")
    return tvm.ir.load_json(text_of_tvm(workload.body).decode())


def is_readable(workload: Workload) -> bool:
    """Tell whether a workload's body is a graph of the TVM that runs."""
    return (
        workload.format == WorkloadFormat.GRAPH
        and workload.tvm_version is not None
        and release_of(workload.tvm_version) == tvm_version()
    )


def from_script(script: str) -> Any:
    """Return the module of a TVMScript text, which TVM evaluates like a program.

    The script must be of an own source.

    Parameters
    ----------
    script : str
        TVMScript of an IRModule.

    Raises
    ------
    Exception
        TVM's parser, or the text itself, raises any class.
    """
    mod = tvm.script.from_source(script)
    if not isinstance(mod, tvm.IRModule):
        raise ValueError(f"a script of a {type(mod).__name__}, not of an IRModule")
    return mod


def name_of(mod: Any) -> str:
    """Return a module's name for reports: its function's symbol, or that of its anchor block.

    Tuning renames every function to ``main``, so the name of the anchor block is used for that.
    """
    names = [str(var.name_hint) for var in mod.get_global_vars()]
    symbol = names[0] if names else "main"
    if len(names) == 1:
        attrs = mod[mod.get_global_vars()[0]].attrs
        symbol = str(attrs.get("global_symbol", symbol)) if attrs else symbol
    if symbol != "main":
        return symbol
    anchor = _find_anchor(mod)
    return symbol if anchor is None else str(anchor.name_hint)


def to_target(target: Any) -> Target:
    """Return the stored form of a TVM target."""
    return Target.from_config(None if target is None else plain(target.export()))


def plain(value: Any) -> Any:
    """Return TVM's containers as plain JSON values."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool | int | float) or value is None:
        return value
    if hasattr(value, "items"):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "__iter__"):
        return [plain(item) for item in value]
    return plain(value.value)

"""TVM's IR in the flat form that the extractors read (docs/features.md).

The compiled reader (``tunedb/features/_reader.pyx``) walks TVM's objects through tvm-ffi's C ABI.
This module gives it the facts of the installed TVM: the roles of types (``compat.types``, a
table per release, because TVM renames types and fields between minor releases) and the offsets of
their fields (TVM's reflection tables). The reader tests itself before its first use.
"""

from __future__ import annotations

import ctypes
import json
from functools import cache
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Op
from tvm.tirx import For, IntImm

from ....errors import PluginError, TuneDBError
from ....features._nest import Call as Known
from ....features._nest import Nest
from ....features._nest import Op as Node
from ....features._reader import ROLES, Reader
from .. import compat

#: Type name without its prefix → node.
_NODES = dict(
    zip(
        (*compat.BINARY, *compat.NOT),
        (
            *(Node.OP_ADD, Node.OP_SUB, Node.OP_MUL, Node.OP_DIV, Node.OP_MOD, Node.OP_FLOORDIV),
            *(Node.OP_FLOORMOD, Node.OP_MIN, Node.OP_MAX, Node.OP_EQ, Node.OP_NE, Node.OP_LT),
            *(Node.OP_LE, Node.OP_GT, Node.OP_GE, Node.OP_AND, Node.OP_OR, Node.OP_SHL),
            *(Node.OP_SHR, Node.OP_BITAND, Node.OP_BITOR, Node.OP_BITXOR, Node.OP_NOT),
            Node.OP_BITNOT,
        ),
        strict=True,
    )
)

#: Calls that the arithmetic on indices handles, in any release.
_CALLS = {
    "prim.if_then_else": Known.CALL_IF_THEN_ELSE,
    "prim.likely": Known.CALL_LIKELY,
    "tirx.if_then_else": Known.CALL_IF_THEN_ELSE,  # until 0.26
    "tirx.likely": Known.CALL_LIKELY,
}
#: Operations on bits are calls until 0.26, and nodes later.
_BITS = {
    "tirx.shift_left": Node.OP_SHL,
    "tirx.shift_right": Node.OP_SHR,
    "tirx.bitwise_and": Node.OP_BITAND,
    "tirx.bitwise_or": Node.OP_BITOR,
    "tirx.bitwise_xor": Node.OP_BITXOR,
    "tirx.bitwise_not": Node.OP_BITNOT,
}
#: Effects of calls that count as pure (``CallEffectKind``): an annotation, a pure function.
_PURE = (0, 1)
#: Types of the fields to follow in a walk over an unknown type.
_WALKED = ("ir.", "prim.", "tirx.", "s_tir.")


def read(mod: Any, nest: Nest | None = None) -> Nest:
    """Return the flat form of a module.

    Parameters
    ----------
    mod : tvm.IRModule or tvm.tirx.PrimFunc
        A module, lowered or not; nobody may change it meanwhile, because the GIL is released.
    nest : Nest, optional
        A nest to clear and fill, instead of a new one.

    Raises
    ------
    PluginError
        The reader does not know or does not fit this TVM.
    LimitError
        The program is nested too deep.
    FormatError
        A node lacks a part that TVM requires.
    """
    return reader().read(mod, nest)


def unknown_types(nest: Nest) -> dict[str, int]:
    """Return the number of nodes of unknown types, by type."""
    keys = {index: key for key, index in type_indices().items()}
    return {keys.get(index, str(index)): count for index, count in reader().unknown(nest).items()}


@cache
def reader() -> Reader:
    """Return the reader for the installed TVM, after its self-test.

    Raises
    ------
    PluginError
        The reader does not know or does not fit this TVM.
    """
    try:
        made = _make_reader(compat.types())
        _self_test(made)
    except (AttributeError, KeyError, TypeError, ValueError, TuneDBError) as error:
        raise PluginError(
            f"the IR reader does not fit apache-tvm {tvm.__version__}: {error}; "
            'pip install "tunedb[tvm]"'
        ) from error
    return made


def fields(key: str) -> dict[str, tuple[int, int, str]]:
    """Return offset, size and type of each field of a type, including those of its bases."""
    info = tvm_ffi.core._lookup_or_register_type_info_from_type_key(key)
    found = {}
    while info is not None:
        for field in info.fields:
            schema = json.loads(field.metadata["type_schema"]) if field.metadata else {}
            found[field.name] = (field.offset, field.size, _schema_type(schema))
        info = info.parent_type_info
    return found


def _schema_type(schema: dict[str, Any]) -> str:
    name = str(schema.get("type", ""))
    return _schema_type(schema["args"][0]) if name == "Optional" else name


@cache
def type_indices() -> dict[str, int]:
    """Return the type index of each of TVM's IR types by its key."""
    keys = (str(key) for key in tvm_ffi.get_global_func("ffi.GetRegisteredTypeKeys")())
    lookup = tvm_ffi.core._lookup_or_register_type_info_from_type_key
    return {key: lookup(key).type_index for key in keys if key.startswith(_WALKED)}


def _bases(key: str) -> set[str]:
    info = tvm_ffi.core._lookup_or_register_type_info_from_type_key(key)
    found = set()
    while info is not None:
        found.add(info.type_key)
        info = info.parent_type_info
    return found


def _describe(key: str) -> tuple[bool, bool, list[tuple[int, bool]]]:
    """Return whether a type is a statement or an expression, and the fields to follow."""
    bases = _bases(key)
    children = [
        (offset, name == "ffi.Array")
        for field, (offset, size, name) in fields(key).items()
        if size == 8 and (name == "ffi.Array" or name.startswith(_WALKED)) and field != "ty"
    ]
    return "tirx.Stmt" in bases, _expression() in bases, children


def _expression() -> str:
    """Return the key of the base of expressions that have a data type."""
    return "ir.Expr" if "ir.Expr" in type_indices() else "ir.PrimExpr"


def _make_reader(names: compat.Types) -> Reader:
    indices = type_indices()
    inline = not names["BufferType"][0]  # until 0.25 an expression holds its data type itself
    types: dict[str, list[tuple[int, dict[str, int]]]] = {}
    for role, (keys, renamed) in names.items():
        types[role] = []
        for key in keys:
            at = fields(key)
            fields_of = {field: renamed.get(field, field) for field in ROLES[role]}
            offsets = {field: at[name][0] if name else 0 for field, name in fields_of.items()}
            types[role].append((indices[key], offsets))
    ops = {
        indices[key]: int(_NODES[key.rpartition(".")[2]])
        for role in ("Binary", "Not")
        for key in names[role][0]
    }
    library = ctypes.CDLL(tvm_ffi.libinfo.find_libtvm_ffi())
    map_get = _map_get()
    return Reader(
        tvm_ffi.Object,
        types,
        ops,
        {index: _describe(key) for key, index in indices.items()},
        fields(_expression())["dtype" if inline else "ty"][0],
        inline,
        fields("ir.IntImm")["value"][1],
        _operators(),
        _address(library.TVMFFIFunctionCall),
        _address(library.TVMFFIObjectDecRef),
        map_get.__chandle__(),
        _functions,
    )


def _address(function: Any) -> int:
    found = ctypes.cast(function, ctypes.c_void_p).value
    if found is None:
        raise ValueError("tvm-ffi lacks a function of its C ABI")
    return found


@cache  # the reader keeps its address
def _map_get() -> Any:
    return tvm_ffi.get_global_func("ffi.MapGetItemOrMissing")


def _functions(mod: Any) -> list[tuple[str, Any]]:
    return [(name.name_hint, function) for name, function in mod.functions.items()]


def _operators() -> dict[int, tuple[int, bool, int]]:
    """Return what a call of each operator is read as, by its address; operators live forever."""
    found = {}
    for name in Op.list_op_names():
        operator = Op.get(str(name))
        effect = operator.get_attr("TCallEffectKind")
        pure = effect is not None and int(effect) in _PURE
        found[operator.__chandle__()] = (
            int(_CALLS.get(str(name), Known.CALL_OTHER)),
            not pure,
            int(_BITS.get(str(name), Node.OP_CALL)),
        )
    return found


def _self_test(made: Reader) -> None:
    """Raise ValueError if the reader misreads a program with every layout it relies on."""
    for more in (0, 5):  # four entries and fewer have another layout than more
        annotations = {"pragma_auto_unroll_max_step": IntImm("int32", 16)}
        annotations |= {f"a long enough name {i}": IntImm("int32", i) for i in range(more)}
        i = tirx.Var("a_variable_with_a_long_name", "int32")
        buffer = tirx.decl_buffer((8, 4), "float32", name="B")
        value = buffer[i, 0] * tirx.const(2.0, "float32")
        store = tirx.BufferStore(buffer, value, [i, 3])
        loop = For(i, 0, 8, tirx.ForKind.UNROLLED, store, annotations=annotations)
        nest = made.read(compat.prim_func([buffer], loop))
        found = nest.dump()
        one = found["loops"][0]
        seen = (
            [(b["name"], b["bits"], b["scope"], len(b["shape"])) for b in found["buffers"]],
            [found["vars"][one["var"]]["name"], one["extent"], one["kind"], one["auto_unroll"]],
            [found["nodes"][k]["op"] for k in found["stmts"][0]["indices"]],
            found["nodes"][found["stmts"][0]["value"]]["op"],
            made.unknown(nest),
        )
        wanted: tuple[Any, ...] = (
            [("B", 32, "global", 2)],
            ["a_variable_with_a_long_name", 8, 3, 16],
            [Node.OP_VAR, Node.OP_INT],
            Node.OP_MUL,
            {},
        )
        if seen != wanted:
            raise ValueError(f"self-test: {seen} instead of {wanted}")

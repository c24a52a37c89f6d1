"""Generated programs: the features of ``ansor.per_store/tvm`` equal TVM's own.

The loop nests of tests/features/nests.py are written as TVM's IR, with casts where types differ.
Both extractors then start from the same module.
"""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from effort import examples
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from nests import nests
from te_programs import candidate, per_store
from tvm import tirx
from tvm.s_tir import meta_schedule as ms

from tunedb.errors import TuneDBError
from tunedb.features._nest import BufferKind, ForKind, Op, StmtKind, Tag, VarKind
from tunedb.features.ansor import NAMES, per_store_tvm
from tunedb.plugins.metaschedule.compat import dtype_of, sblock_types
from tunedb.plugins.metaschedule.features import ir
from tunedb.plugins.metaschedule.features.lowering import lower

_OPS = {
    getattr(Op, f"OP_{name}"): made
    for name, made in {
        **{"ADD": tirx.Add, "SUB": tirx.Sub, "MUL": tirx.Mul, "DIV": tirx.Div, "MOD": tirx.Mod},
        **{"FLOORDIV": tirx.FloorDiv, "FLOORMOD": tirx.FloorMod, "MIN": tirx.Min, "MAX": tirx.Max},
        **{"EQ": tirx.EQ, "LT": tirx.LT},
        # Up to TVM 0.26, bitwise operations are calls.
        "SHL": getattr(tirx, "LShift", tirx.shift_left),
        "SHR": getattr(tirx, "RShift", tirx.shift_right),
        "BITAND": getattr(tirx, "BitwiseAnd", tirx.bitwise_and),
        "BITXOR": getattr(tirx, "BitwiseXor", tirx.bitwise_xor),
    }.items()
}
_BITS = (Op.OP_SHL, Op.OP_SHR, Op.OP_BITAND, Op.OP_BITXOR)
_TAGS = {
    getattr(Tag, f"{kind.upper()}_{axis.upper()}"): f"{kind}Idx.{axis}"
    for kind in ("block", "thread")
    for axis in "xyz"
} | {Tag.VTHREAD: "vthread.x"}
_DTYPES = {(2, 32): "float32", (2, 16): "float16", (4, 16): "bfloat16", (10, 8): "float8_e4m3fn"}
_DTYPES |= {(0, 32): "int32", (0, 8): "int8", (1, 8): "uint8", (6, 8): "bool", (0, 4): "int4"}
_DTYPES |= {(0, 64): "int64"}


def _cast(value, dtype):
    return value if dtype_of(value) == dtype else tirx.Cast(dtype, value)


class Writer:
    """Writes the functions of a dumped nest as TVM's IR."""

    def __init__(self, dump):
        self.dump = dump
        self.vars = [tirx.Var(var["name"], "int32") for var in dump["vars"]]
        self.buffers = {}

    # ---- expressions

    def expr(self, number):
        node = self.dump["nodes"][number]
        op = Op(node["op"])
        dtype = _DTYPES[node["code"], node["bits"]]
        if op == Op.OP_INT:
            return tirx.IntImm(dtype, node["value"])
        if op == Op.OP_FLOAT:
            return tirx.const(1.5, dtype)
        if op == Op.OP_VAR:
            return self.vars[node["value"]]
        if op == Op.OP_LOAD:
            indices = [_cast(self.expr(one), "int32") for one in node["arguments"]]
            return tirx.BufferLoad(self.buffers[node["value"]], indices)
        if op == Op.OP_CALL:
            made = tirx.call_extern if node["c"] == 1 else tirx.call_pure_extern
            return made(dtype, "f", *[self.expr(one) for one in node["arguments"]])
        if op == Op.OP_CAST:
            return tirx.Cast(dtype, self.expr(node["a"]))
        if op == Op.OP_NOT:
            return tirx.Not(_cast(self.expr(node["a"]), "bool"))
        if op == Op.OP_SELECT:
            test, left, right = (self.expr(node[side]) for side in "abc")
            return tirx.Select(_cast(test, "bool"), left, _cast(right, dtype_of(left)))
        left, right = self.expr(node["a"]), self.expr(node["b"])
        if op == Op.OP_AND:
            return tirx.And(_cast(left, "bool"), _cast(right, "bool"))
        dtype = "int32" if op in _BITS else dtype_of(left)
        return _OPS[op](_cast(left, dtype), _cast(right, dtype))

    # ---- statements

    def buffer(self, number):
        one = self.dump["buffers"][number]
        shape = [_cast(self.expr(node), "int32") for node in one["shape"]]
        dtype = _DTYPES[one["code"], one["bits"]]
        self.buffers[number] = tirx.decl_buffer(shape, dtype, one["name"])
        return self.buffers[number]

    def store(self, stmt):
        if stmt["kind"] != StmtKind.STMT_STORE:
            return tirx.Evaluate(self.expr(stmt["value"]))
        buffer = self.buffers[stmt["buffer"]]
        value = _cast(self.expr(stmt["value"]), str(buffer.dtype))
        indices = [_cast(self.expr(node), "int32") for node in stmt["indices"]]
        return tirx.BufferStore(buffer, value, indices)

    def loop(self, number, body):
        one = self.dump["loops"][number]
        low, extent = (_cast(self.expr(one[key]), "int32") for key in ("min_node", "extent_node"))
        binding = None
        if one["kind"] == ForKind.THREAD_BINDING:
            binding = tirx.IterVar(None, tirx.Var("t", "int32"), 1, _TAGS[one["tag"]])
        steps = one["auto_unroll"]
        notes = {"pragma_auto_unroll_max_step": tirx.IntImm("int32", steps)} if steps >= 0 else {}
        kind = tirx.ForKind(one["kind"])
        return tirx.For(self.vars[one["var"]], low, extent, kind, body, binding, notes)

    def block(self, number, body):
        allocated = [
            self.buffers[i]
            for i, one in enumerate(self.dump["buffers"])
            if one["kind"] == BufferKind.BUFFER_ALLOCATED and one["alloc_block"] == number
        ]
        sblock, realize = sblock_types()
        return realize([], True, sblock([], [], [], "block", body, None, allocated))

    def scope(self, loop, block, function):
        """Return the statements right under a loop and a block, in source order."""
        dump = self.dump
        if block >= 0 and dump["blocks"][block]["loop"] == loop:
            for i, one in enumerate(dump["buffers"]):
                if one["kind"] == BufferKind.BUFFER_ALLOCATED and one["alloc_block"] == block:
                    self.buffer(i)
        found = []
        for i, one in enumerate(dump["stmts"]):
            inside = function["first_stmt"] <= i < function["end_stmt"]
            if inside and (one["loop"], one["block"]) == (loop, block):
                found.append((i, 2, i))
        for i, one in enumerate(dump["blocks"]):
            inside = function["first_stmt"] <= one["first_stmt"] < function["end_stmt"]
            if inside and (one["loop"], one["parent"]) == (loop, block):
                found.append((one["first_stmt"], 0, i))
        for i, one in enumerate(dump["loops"]):
            inside = function["first_loop"] <= i < function["end_loop"]
            if inside and (one["parent"], one["block"]) == (loop, block):
                found.append((one["first_stmt"], 1, i))
        body = []
        for _, kind, i in sorted(found):
            if kind == 0:
                body.append(self.block(i, self.scope(loop, i, function)))
            elif kind == 1:
                body.append(self.loop(i, self.scope(i, block, function)))
            else:
                body.append(self.store(dump["stmts"][i]))
        if not body:
            return tirx.Evaluate(0)
        return tirx.SeqStmt(body) if len(body) > 1 else body[0]

    def function(self, number):
        parameters = [
            self.buffer(i)
            for i, one in enumerate(self.dump["buffers"])
            if one["kind"] == BufferKind.BUFFER_PARAMETER and one["function"] == number
        ]
        body = self.scope(-1, -1, self.dump["functions"][number])
        sblock, realize = sblock_types()
        body = realize([], True, sblock([], [], [], "root", body))
        free = [
            var
            for var, one in zip(self.vars, self.dump["vars"], strict=True)
            if one["kind"] == VarKind.VAR_FREE
        ]
        made = tirx.PrimFunc([*parameters, *free], body)
        return made.with_attr("global_symbol", f"f{number}").with_attr("s_tir", True)


def _theirs(mod, target):
    """Return what TVM computes, or None if it raises an error."""
    made = ms.TuneContext(mod=mod, target=tvm.target.Target(target))
    try:
        return per_store(made, [candidate(mod)])[0]
    except (RuntimeError, ValueError, TypeError):
        return None


@settings(
    max_examples=examples(100),
    derandomize=True,  # a run that finds a program takes minutes to say which
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],  # shrinking takes minutes
)
@given(nests(fixed=True), st.sampled_from(["llvm", {"kind": "cuda", "arch": "sm_80"}]))
def test_features_of_generated_programs_equal_tvms(nest, target):
    # Extents are constant: TVM divides by them, and an extent of 0 ends the process.
    dump = nest.dump()
    writer = Writer(dump)
    try:
        functions = [writer.function(i) for i in range(len(dump["functions"]))]
        mod = tvm.IRModule({f"f{i}": one for i, one in enumerate(functions)})
    except (ValueError, TypeError, RuntimeError):
        return  # TVM rejects it
    theirs = _theirs(mod, target)
    if theirs is None:
        return
    try:
        ours = per_store_tvm(ir.read(lower(mod)), gpu=target != "llvm")
    except TuneDBError as error:
        pytest.fail(f"{error}\n{mod}")
    assert ours.shape == theirs.shape, mod
    wrong = np.argwhere(~np.isclose(ours, theirs, rtol=1e-9, atol=1e-9, equal_nan=True))
    assert not wrong.size, (*((NAMES[k], ours[r, k], theirs[r, k]) for r, k in wrong[:5]), mod)

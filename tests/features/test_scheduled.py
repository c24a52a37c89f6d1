"""Rewriting a scheduled program (tunedb/features/_scheduled.pyx, _linear.pyx)."""

from __future__ import annotations

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreter import Interpreter
from nests import Build, with_array

from tunedb.features._nest import BufferKind, ForKind, IterKind, Op, Tag
from tunedb.features._scheduled import Scheduler
from tunedb.features.scheduled import SCHEDULED, scheduled_rows

ALLOCATED = BufferKind.BUFFER_ALLOCATED


def expression(dump, number):
    """Return an expression as text."""
    node = dump["nodes"][number]
    signs = {8: "+", 9: "-", 10: "*", 13: "//", 14: "%"}
    match node["op"]:
        case Op.OP_INT:
            return str(node["value"])
        case Op.OP_VAR:
            return dump["vars"][node["value"]]["name"]
        case Op.OP_LOAD:
            inside = ", ".join(expression(dump, one) for one in node["arguments"])
            return f"{dump['buffers'][node['value']]['name']}[{inside}]"
    left, right = expression(dump, node["a"]), expression(dump, node["b"])
    return f"({left} {signs[node['op']]} {right})"


def statement(dump, stmt):
    """Return a store as text."""
    index = ", ".join(expression(dump, one) for one in stmt["indices"])
    name = dump["buffers"][stmt["buffer"]]["name"]
    return f"{name}[{index}] = {expression(dump, stmt['value'])}"


def one_index(extents, make):
    """Return the text of an index over loops of given extents, as it is rewritten."""
    build, a = with_array(1 << 20, function=True)
    loops = [build.loop("ijkl"[i], n, kind=ForKind.PARALLEL) for i, n in enumerate(extents)]
    index = make(build, *loops)
    a[index] = a[index]
    nest = build.done()
    before = [access[:2] for access in Interpreter(nest).accesses]
    out = Scheduler().rewrite(nest)
    assert [access[:2] for access in Interpreter(out).accesses] == before
    dump = out.dump()
    return expression(dump, dump["stmts"][0]["indices"][0])


@pytest.mark.parametrize(
    ("extents", "make", "text"),
    [
        ((4, 8), lambda b, i, j: i * 8 + j, "((i * 8) + j)"),
        # The factor is multiplied into each term of the sum.
        ((4, 8), lambda b, i, j: (i * 8 + j) * 2, "((i * 16) + (j * 2))"),
        ((4, 8), lambda b, i, j: (i * 8 + j) // 8, "i"),
        ((4, 8), lambda b, i, j: (i * 8 + j) % 8, "j"),
        ((4, 8), lambda b, i, j: (i * 8 + j) // 4, "((i * 2) + (j // 4))"),
        # v < 2 cannot reach the next multiple of 2, so it does not change the quotient.
        ((2, 128, 2), lambda b, i, t, v: (i * 256 + t * 2 + v) // 32, "((i * 8) + (j // 16))"),
        ((2, 128, 2), lambda b, i, t, v: (i * 256 + t * 2 + v) % 32, "(((j % 16) * 2) + k)"),
        ((4, 8), lambda b, i, j: i + j - i, "j"),
        ((4,), lambda b, i: b.op(Op.OP_MIN, i, 9), "i"),
        ((4,), lambda b, i: b.op(Op.OP_MAX, i, 9), "9"),
        ((4, 1), lambda b, i, j: j * 7 + i, "i"),
        ((12,), lambda b, i: i % 8 % 4, "((i % 8) % 4)"),
    ],
)
def test_rewrite_simplifies_indices(extents, make, text):
    assert one_index(extents, make) == text


def test_predicate_bounds_the_shape_of_a_compacted_buffer():
    """Of 4 * 3 iterations those below 10 write; a quotient by 5 is then 0 or 1."""
    build, a = with_array(64, function=True)
    build.open("block", "root")
    cache = build.array("cache", 64, kind=ALLOCATED)
    outer = build.loop("o", 2)
    fused = build.loop("i", 4) * 3 + build.loop("j", 3)
    build.open("block", "copy")
    build.set_predicate(build.op(Op.OP_LT, fused, 10, code=6, bits=1))
    cache[fused // 5] = a[fused]
    build.close(3)
    a[outer] = cache[build.loop("k", 2)]
    dump = Scheduler().rewrite(build.done()).dump()
    (shape,) = [buffer["shape"] for buffer in dump["buffers"] if buffer["name"] == "cache"]
    assert [expression(dump, one) for one in shape] == ["2"]


@pytest.mark.parametrize(
    ("scope", "tag", "shape", "index", "alloc_loop"),
    [
        ("global", Tag.TAG_NONE, "8", "i", 0),
        ("local", Tag.THREAD_X, "8", "i", 0),
        # All threads of a block share it; a buffer in global memory is outside of the kernel.
        ("shared", Tag.THREAD_X, "32", "((t * 8) + i)", 0),
        ("shared", Tag.BLOCK_X, "8", "i", 0),
        ("global", Tag.BLOCK_X, "32", "((t * 8) + i)", -1),
    ],
)
def test_rewrite_compacts_buffers_by_their_scope(scope, tag, shape, index, alloc_loop):
    """4 tiles of 8 elements are copied through a cache; the tile loop is bound to `tag`."""
    build = Build(function=True)
    a, b = build.array("A", 32), build.array("B", 32)
    build.open("block", "root")
    cache = build.array("cache", 32, kind=ALLOCATED, scope=scope)
    tile = build.loop("t", 4, kind=ForKind.THREAD_BINDING if tag else ForKind.SERIAL, tag=tag)
    i = build.loop("i", 8)
    cache[tile * 8 + i] = a[tile * 8 + i]
    build.close()
    j = build.loop("j", 8)
    b[tile * 8 + j] = cache[tile * 8 + j]
    dump = Scheduler().rewrite(build.done()).dump()
    found = dump["buffers"][2]
    assert [expression(dump, one) for one in found["shape"]] == [shape]
    assert found["alloc_loop"] == alloc_loop
    assert expression(dump, dump["stmts"][0]["indices"][0]) == index


def test_rewrite_removes_unit_loops_and_merges_threads():
    build, a = with_array(64, function=True)
    build.loop("b", 2, kind=ForKind.THREAD_BINDING, tag=Tag.BLOCK_X)
    build.loop("one", 1)
    for name in ("first", "second"):
        build.loop("s" + name, 3)
        thread = build.loop(name, 4, kind=ForKind.THREAD_BINDING, tag=Tag.THREAD_X)
        a[thread] = a[thread]
        build.close(2)
    dump = Scheduler().rewrite(build.done()).dump()
    names = [dump["vars"][loop["var"]]["name"] for loop in dump["loops"]]
    # The threads of a kernel are around everything in it, as UnifyThreadBinding leaves them.
    assert names == ["b", "first", "sfirst", "ssecond"]
    assert [loop["depth"] for loop in dump["loops"]] == [0, 1, 2, 2]
    assert [expression(dump, stmt["indices"][0]) for stmt in dump["stmts"]] == ["first", "first"]


IN_THREAD = "in_thread_B[0] = (in_thread_B[0] + A[r, {}])"


@pytest.mark.parametrize(
    ("serial", "predicate", "stores"),
    [
        (4, None, [IN_THREAD.format("((k * 16) + t)"), "B[r] = cross_thread_B[0]"]),
        (1, None, ["B[r] = cross_thread_B[0]"]),
        # Some threads have nothing to add, so each has a sum of its own.
        (1, 10, [IN_THREAD.format("t"), "B[r] = cross_thread_B[0]"]),
    ],
)
def test_reduction_over_threads_becomes_in_and_cross_thread_stores(serial, predicate, stores):
    build = Build(function=True)
    a, b = build.array("A", 8, 64), build.array("B", 8)
    i = build.loop("r", 8, kind=ForKind.THREAD_BINDING, tag=Tag.BLOCK_X)
    k = build.loop("k", serial)
    reduced = k * 16 + build.loop("t", 16, kind=ForKind.THREAD_BINDING, tag=Tag.THREAD_X)
    axes = [(IterKind.ITER_SPATIAL, 8, i), (IterKind.ITER_REDUCE, 64, reduced)]
    build.open("block", "B", axes)
    if predicate is not None:
        build.set_predicate(build.op(Op.OP_LT, reduced, predicate, code=6, bits=1))
    build.set_init(True)
    b[i] = 0.0
    build.set_init(False)
    b[i] += a[i, reduced]
    nest = build.done()
    dump = Scheduler().rewrite(nest).dump()
    assert [statement(dump, stmt) for stmt in dump["stmts"]] == stores
    assert len(scheduled_rows(nest, gpu=True)) == len(stores)


def test_access_of_matched_buffer_becomes_access_of_its_source():
    build, a = with_array(4, 32, function=True)
    i = build.loop("i", 4)
    window = build.array("W", 8, kind=ALLOCATED)
    build.match(window, a, build.constants([i, 1, 16, 8]))
    j = build.loop("j", 8)
    window[j] = window[j]
    dump = Scheduler().rewrite(build.done()).dump()
    (stmt,) = dump["stmts"]
    assert statement(dump, stmt) == "A[i, (j + 16)] = A[i, (j + 16)]"


def test_loops_without_iterations_have_no_rows():
    build, a = with_array(8, function=True)
    i = build.loop("i", 0)
    a[i] = a[i]
    assert scheduled_rows(build.done(), gpu=False).shape == (0, 164)


def test_sums_of_many_terms_are_counted_completely():
    build, a = with_array(100, code=0, function=True)
    i = build.loop("i", 4)
    a[i] = sum((a[i + k] for k in range(1, 40)), start=a[i])
    rows = scheduled_rows(build.done(), gpu=False)
    # 39 sums of the value and 39 in its indices, four times each; log2p of the columns.
    assert rows[0, SCHEDULED.columns.index("int_addsub")] == pytest.approx(np.log2(4 * 78 + 1))


# ------------------------------------------------------------------ any program means the same


@st.composite
def indices(draw, build, loops, depth=2):
    """Return a node over the variables of loops."""
    kinds = ["loop", "loop", "constant"] if depth == 0 else ["add", "mul", "div", "mod", "minmax"]
    kind = draw(st.sampled_from(kinds))
    if kind == "loop":
        return draw(st.sampled_from(loops))
    if kind == "constant":
        return build.constant(draw(st.integers(0, 9)))
    left = draw(indices(build, loops, depth - 1))
    if kind == "mul":
        return left * draw(st.integers(0, 12))
    if kind == "div":
        return left // draw(st.integers(1, 12))
    if kind == "mod":
        return left % draw(st.integers(1, 12))
    pairs = {"add": [Op.OP_ADD, Op.OP_ADD, Op.OP_SUB], "minmax": [Op.OP_MIN, Op.OP_MAX]}
    op = draw(st.sampled_from(pairs[kind]))
    return build.op(op, left, draw(indices(build, loops, depth - 1)))


@st.composite
def programs(draw):
    """Return a program of some nested loops with stores between them, CPU or GPU."""
    build = Build(function=True)
    buffers = [build.array("A", 1 << 30, 1 << 30)]
    build.open("block", "root")
    for name in "BC":
        scope = draw(st.sampled_from(["global", "shared", "local"]))
        buffers.append(build.array(name, 1 << 30, 1 << 30, kind=ALLOCATED, scope=scope))
    budget, threads = 300, {}

    def body(loops, used, depth, extent):
        for _ in range(draw(st.integers(1, 2))):
            if depth < 4 and draw(st.booleans()):
                size = draw(st.integers(1, 5))
                tags = [tag for tag in (Tag.BLOCK_X, Tag.THREAD_X) if tag not in used]
                tag = draw(st.sampled_from([Tag.TAG_NONE, *tags])) if depth < 2 else Tag.TAG_NONE
                kind = ForKind.THREAD_BINDING if tag else ForKind.SERIAL
                if tag:  # all loops of a thread have one extent
                    size = threads.setdefault(tag, size)
                elif size * extent > budget:
                    size = 1
                loop = build.loop(f"l{build.nest.n_loops}", size, kind=kind, tag=tag)
                body([*loops, loop], used | {tag}, depth + 1, extent * size)
                build.close()
            elif loops:
                target, source = (draw(st.sampled_from(buffers)) for _ in range(2))
                to, of = ([draw(indices(build, loops)) for _ in range(2)] for _ in range(2))
                target[to] = source[of]

    body([build.loop("top", draw(st.integers(1, 4)))], frozenset(), 0, 4)
    return build.done()


@settings(max_examples=examples(300))
@given(programs())
def test_rewrite_keeps_the_accessed_elements(nest):
    """Parameters are accessed at the same places; caches too, from where their scope begins."""
    out = Scheduler().rewrite(nest)
    before, after = Interpreter(nest).accesses, Interpreter(out).accesses
    # Loops of threads move around their whole kernel: the order of the accesses changes, and each
    # thread runs statements that were outside of these loops.
    assert {a[:2] for a in before if a[0] == "A"} == {a[:2] for a in after if a[0] == "A"}
    dump = out.dump()
    sizes = {
        b["name"]: [dump["nodes"][one]["value"] for one in b["shape"]] for b in dump["buffers"]
    }
    for name, place, _ in after:
        if name != "A" and all(size < 1 << 30 for size in sizes[name]):
            assert all(0 <= index < size for index, size in zip(place, sizes[name], strict=True))
    if not any(loop["tag"] for loop in dump["loops"]):
        starts = {}
        for (name, place, _), (_, moved, scope) in zip(before, after, strict=True):
            start = tuple(old - new for old, new in zip(place, moved, strict=True))
            assert starts.setdefault((name, scope), start) == start
    scheduled_rows(nest, gpu=True)

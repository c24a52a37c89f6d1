"""Rewriting a scheduled program (tunedb/features/_scheduled.pyx, _linear.pyx)."""

from __future__ import annotations

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreter import Interpreter
from nests import closed

from tunedb.features._nest import BufferKind, ForKind, IterKind, NestBuilder, Op, Tag
from tunedb.features._scheduled import Scheduler
from tunedb.features.scheduled import SCHEDULED, scheduled_rows

PARAMETER, ALLOCATED = BufferKind.BUFFER_PARAMETER, BufferKind.BUFFER_ALLOCATED


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


class Build(NestBuilder):
    """A builder of expressions in few characters."""

    def add(self, a, b):
        return self.node(Op.OP_ADD, [a, b])

    def mul(self, a, factor):
        return self.node(Op.OP_MUL, [a, self.int_(factor)])

    def div(self, a, by):
        return self.node(Op.OP_FLOORDIV, [a, self.int_(by)])

    def mod(self, a, by):
        return self.node(Op.OP_FLOORMOD, [a, self.int_(by)])


def one_index(extents, make):
    """Return the text of an index over loops of given extents, as it is rewritten."""
    build = Build()
    build.open_function()
    buffer = build.buffer("A", [1 << 20], kind=PARAMETER)
    loops = [
        build.open_loop("ijkl"[i], extent, kind=ForKind.PARALLEL)
        for i, extent in enumerate(extents)
    ]
    index = make(build, *(build.loop_var(loop) for loop in loops))
    build.store(buffer, [index], build.load(buffer, [index]))
    nest = closed(build, len(loops), function=True)
    before = [access[:2] for access in Interpreter(nest).accesses]
    out = Scheduler().rewrite(nest)
    assert [access[:2] for access in Interpreter(out).accesses] == before
    dump = out.dump()
    return expression(dump, dump["stmts"][0]["indices"][0])


@pytest.mark.parametrize(
    ("extents", "make", "text"),
    [
        ((4, 8), lambda b, i, j: b.add(b.mul(i, 8), j), "((i * 8) + j)"),
        # The factor is multiplied into each term of the sum.
        ((4, 8), lambda b, i, j: b.mul(b.add(b.mul(i, 8), j), 2), "((i * 16) + (j * 2))"),
        ((4, 8), lambda b, i, j: b.div(b.add(b.mul(i, 8), j), 8), "i"),
        ((4, 8), lambda b, i, j: b.mod(b.add(b.mul(i, 8), j), 8), "j"),
        ((4, 8), lambda b, i, j: b.div(b.add(b.mul(i, 8), j), 4), "((i * 2) + (j // 4))"),
        # v < 2 cannot reach the next multiple of 2, so it does not change the quotient.
        (
            (16, 128, 2),
            lambda b, i, t, v: b.div(b.add(b.add(b.mul(i, 256), b.mul(t, 2)), v), 32),
            "((i * 8) + (j // 16))",
        ),
        (
            (16, 128, 2),
            lambda b, i, t, v: b.mod(b.add(b.add(b.mul(i, 256), b.mul(t, 2)), v), 32),
            "(((j % 16) * 2) + k)",
        ),
        ((4, 8), lambda b, i, j: b.node(Op.OP_SUB, [b.add(i, j), i]), "j"),
        ((4,), lambda b, i: b.node(Op.OP_MIN, [i, b.int_(9)]), "i"),
        ((4,), lambda b, i: b.node(Op.OP_MAX, [i, b.int_(9)]), "9"),
        ((4, 1), lambda b, i, j: b.add(b.mul(j, 7), i), "i"),
        ((12,), lambda b, i: b.mod(b.mod(i, 8), 4), "((i % 8) % 4)"),
    ],
)
def test_rewrite_simplifies_indices(extents, make, text):
    assert one_index(extents, make) == text


def test_predicate_bounds_the_shape_of_a_compacted_buffer():
    """Of 4 * 3 iterations those below 10 write; a quotient by 5 is then 0 or 1."""
    build = Build()
    build.open_function()
    a = build.buffer("A", [64], kind=PARAMETER)
    build.open_block("root")
    cache = build.buffer("cache", [64])
    outer = build.open_loop("o", 2)
    i, j = build.open_loop("i", 4), build.open_loop("j", 3)
    fused = build.add(build.mul(build.loop_var(i), 3), build.loop_var(j))
    bound = build.node(Op.OP_LT, [fused, build.int_(10)], code=6, bits=1)
    build.open_block("copy")
    build.set_predicate(bound)
    build.store(cache, [build.div(fused, 5)], build.load(a, [fused]))
    build.close_block()
    build.close_loop()
    build.close_loop()
    k = build.open_loop("k", 2)
    build.store(a, [build.loop_var(outer)], build.load(cache, [build.loop_var(k)]))
    build.close_loop()
    build.close_loop()
    build.close_block()
    build.close_function()
    dump = Scheduler().rewrite(build.nest).dump()
    (shape,) = [buffer["shape"] for buffer in dump["buffers"] if buffer["name"] == "cache"]
    assert [expression(dump, one) for one in shape] == ["2"]


def cached_copy(scope, tag):
    """Copy 4 tiles of 8 elements through a cache; the tile loop is bound to `tag`."""
    build = Build()
    build.open_function()
    a = build.buffer("A", [32], kind=PARAMETER)
    b = build.buffer("B", [32], kind=PARAMETER)
    build.open_block("root")
    cache = build.buffer("cache", [32], scope=scope)
    kind = ForKind.THREAD_BINDING if tag else ForKind.SERIAL
    tile = build.open_loop("t", 4, kind=kind, tag=tag)
    start = build.mul(build.loop_var(tile), 8)
    i = build.open_loop("i", 8)
    index = build.add(start, build.loop_var(i))
    build.store(cache, [index], build.load(a, [index]))
    build.close_loop()
    j = build.open_loop("j", 8)
    index = build.add(start, build.loop_var(j))
    build.store(b, [index], build.load(cache, [index]))
    build.close_loop()
    build.close_loop()
    build.close_block()
    build.close_function()
    return build.nest


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
    dump = Scheduler().rewrite(cached_copy(scope, tag)).dump()
    cache = dump["buffers"][2]
    assert [expression(dump, one) for one in cache["shape"]] == [shape]
    assert cache["alloc_loop"] == alloc_loop
    assert expression(dump, dump["stmts"][0]["indices"][0]) == index


def test_rewrite_removes_unit_loops_and_merges_threads():
    build = Build()
    build.open_function()
    a = build.buffer("A", [64], kind=PARAMETER)
    thread = {"kind": ForKind.THREAD_BINDING, "tag": Tag.THREAD_X}
    build.open_loop("b", 2, kind=ForKind.THREAD_BINDING, tag=Tag.BLOCK_X)
    build.open_loop("one", 1)
    for name in ("first", "second"):
        build.open_loop("s" + name, 3)
        loop = build.open_loop(name, 4, **thread)
        build.store(a, [build.loop_var(loop)], build.load(a, [build.loop_var(loop)]))
        build.close_loop()
        build.close_loop()
    build.close_loop()
    build.close_loop()
    build.close_function()
    dump = Scheduler().rewrite(build.nest).dump()
    names = [dump["vars"][loop["var"]]["name"] for loop in dump["loops"]]
    # The threads of a kernel are around everything in it, as UnifyThreadBinding leaves them.
    assert names == ["b", "first", "sfirst", "ssecond"]
    assert [loop["depth"] for loop in dump["loops"]] == [0, 1, 2, 2]
    assert [expression(dump, stmt["indices"][0]) for stmt in dump["stmts"]] == ["first", "first"]


def reduction_over_threads(serial, predicate=None):
    build = Build()
    build.open_function()
    a = build.buffer("A", [8, 64], kind=PARAMETER)
    b = build.buffer("B", [8], kind=PARAMETER)
    row = build.open_loop("r", 8, kind=ForKind.THREAD_BINDING, tag=Tag.BLOCK_X)
    k = build.open_loop("k", serial)
    t = build.open_loop("t", 16, kind=ForKind.THREAD_BINDING, tag=Tag.THREAD_X)
    reduced = build.add(build.mul(build.loop_var(k), 16), build.loop_var(t))
    i = build.loop_var(row)
    build.open_block("B", [(IterKind.ITER_SPATIAL, 8, i), (IterKind.ITER_REDUCE, 64, reduced)])
    if predicate is not None:
        bound = [reduced, build.int_(predicate)]
        build.set_predicate(build.node(Op.OP_LT, bound, code=6, bits=1))
    build.set_init(True)
    build.store(b, [i], build.float_(0.0))
    build.set_init(False)
    total = build.node(Op.OP_ADD, [build.load(b, [i]), build.load(a, [i, reduced])], code=2)
    build.store(b, [i], total)
    build.close_block()
    return closed(build, 3, function=True)


@pytest.mark.parametrize(
    ("serial", "predicate", "stores"),
    [
        (
            4,
            None,
            [
                "in_thread_B[0] = (in_thread_B[0] + A[r, ((k * 16) + t)])",
                "B[r] = cross_thread_B[0]",
            ],
        ),
        (1, None, ["B[r] = cross_thread_B[0]"]),
        # Some threads have nothing to add, so each has a sum of its own.
        (1, 10, ["in_thread_B[0] = (in_thread_B[0] + A[r, t])", "B[r] = cross_thread_B[0]"]),
    ],
)
def test_reduction_over_threads_becomes_in_and_cross_thread_stores(serial, predicate, stores):
    dump = Scheduler().rewrite(reduction_over_threads(serial, predicate)).dump()
    found = []
    for stmt in dump["stmts"]:
        index = ", ".join(expression(dump, one) for one in stmt["indices"])
        name = dump["buffers"][stmt["buffer"]]["name"]
        found.append(f"{name}[{index}] = {expression(dump, stmt['value'])}")
    assert found == stores
    assert len(scheduled_rows(reduction_over_threads(serial, predicate), gpu=True)) == len(stores)


def test_access_of_matched_buffer_becomes_access_of_its_source():
    build = Build()
    build.open_function()
    a = build.buffer("A", [4, 32], kind=PARAMETER)
    i = build.open_loop("i", 4)
    window = build.buffer("W", [8])
    region = [build.loop_var(i), build.int_(1), build.int_(16), build.int_(8)]
    build.match(window, a, region)
    j = build.open_loop("j", 8)
    build.store(window, [build.loop_var(j)], build.load(window, [build.loop_var(j)]))
    dump = Scheduler().rewrite(closed(build, 2, function=True)).dump()
    (stmt,) = dump["stmts"]
    assert dump["buffers"][stmt["buffer"]]["name"] == "A"
    assert [expression(dump, one) for one in stmt["indices"]] == ["i", "(j + 16)"]
    assert expression(dump, stmt["value"]) == "A[i, (j + 16)]"


def test_loops_without_iterations_have_no_rows():
    build = Build()
    build.open_function()
    a = build.buffer("A", [8], kind=PARAMETER)
    i = build.open_loop("i", 0)
    build.store(a, [build.loop_var(i)], build.load(a, [build.loop_var(i)]))
    assert scheduled_rows(closed(build, function=True), gpu=False).shape == (0, 164)


def test_sums_of_many_terms_are_counted_completely():
    build = Build()
    build.open_function()
    a = build.buffer("A", [100], kind=PARAMETER, code=0)
    i = build.open_loop("i", 4)
    total = build.load(a, [build.loop_var(i)])
    for k in range(1, 40):
        total = build.add(total, build.load(a, [build.add(build.loop_var(i), build.int_(k))]))
    build.store(a, [build.loop_var(i)], total)
    rows = scheduled_rows(closed(build, function=True), gpu=False)
    # 39 sums of the value and 39 in its indices, four times each; log2p of the columns.
    assert rows[0, SCHEDULED.columns.index("int_addsub")] == pytest.approx(np.log2(4 * 78 + 1))


# ------------------------------------------------------------------ any program means the same


@st.composite
def indices(draw, build, loops, depth=2):
    """Return a node over the variables of loops."""
    kinds = ["loop", "loop", "constant"] if depth == 0 else ["add", "mul", "div", "mod", "minmax"]
    match draw(st.sampled_from(kinds)):
        case "loop":
            return build.loop_var(draw(st.sampled_from(loops)))
        case "constant":
            return build.int_(draw(st.integers(0, 9)))
        case "add":
            op = draw(st.sampled_from([Op.OP_ADD, Op.OP_ADD, Op.OP_SUB]))
            parts = [draw(indices(build, loops, depth - 1)) for _ in range(2)]
            return build.node(op, parts)
        case "mul":
            return build.mul(draw(indices(build, loops, depth - 1)), draw(st.integers(0, 12)))
        case "div":
            return build.div(draw(indices(build, loops, depth - 1)), draw(st.integers(1, 12)))
        case "mod":
            return build.mod(draw(indices(build, loops, depth - 1)), draw(st.integers(1, 12)))
    op = draw(st.sampled_from([Op.OP_MIN, Op.OP_MAX]))
    return build.node(op, [draw(indices(build, loops, depth - 1)) for _ in range(2)])


@st.composite
def programs(draw):
    """Return a program of some nested loops with stores between them, CPU or GPU."""
    build = Build()
    build.open_function()
    buffers = [build.buffer("A", [1 << 30, 1 << 30], kind=PARAMETER)]
    build.open_block("root")
    for name in "BC":
        scope = draw(st.sampled_from(["global", "shared", "local"]))
        buffers.append(build.buffer(name, [1 << 30, 1 << 30], scope=scope))
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
                loop = build.open_loop(f"l{build.nest.n_loops}", size, kind=kind, tag=tag)
                body([*loops, loop], used | {tag}, depth + 1, extent * size)
                build.close_loop()
            elif loops:
                target, source = (draw(st.sampled_from(buffers)) for _ in range(2))
                places = [[draw(indices(build, loops)) for _ in range(2)] for _ in range(2)]
                build.store(target, places[0], build.load(source, places[1]))

    loop = build.open_loop("top", draw(st.integers(1, 4)))
    body([loop], frozenset(), 0, 4)
    build.close_loop()
    build.close_block()
    build.close_function()
    return build.nest


@settings(max_examples=examples(300))
@given(programs())
def test_rewrite_keeps_the_accessed_elements(nest):
    """Parameters are accessed at the same places; caches too, from where their scope begins."""
    before, after = Interpreter(nest).accesses, Interpreter(Scheduler().rewrite(nest)).accesses
    # Loops of threads move around their whole kernel: the order of the accesses changes, and each
    # thread runs statements that were outside of these loops.
    assert {a[:2] for a in before if a[0] == "A"} == {a[:2] for a in after if a[0] == "A"}
    dump = Scheduler().rewrite(nest).dump()
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

"""Programs fetch the next block of a large argument while they reuse the present one."""

from __future__ import annotations

import re
from itertools import groupby

import networks
import numpy as np
import pytest
import tvm
from effort import long
from tvm import relax, s_tir, te, tirx
from tvm.relax.frontend.onnx import from_onnx
from tvm.script import relax as R

from tunedb.plugins.metaschedule import compat, prefetch
from tunedb.plugins.metaschedule.deploy import apply
from tunedb.plugins.metaschedule.deploy.apply import compile
from tunedb.plugins.metaschedule.deploy.network import Lowering, lower
from tunedb.plugins.metaschedule.prefetch import with_prefetch
from tunedb.plugins.metaschedule.tuning.defaults import host_target
from tunedb.plugins.metaschedule.workers.build_worker import default_build

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})
#: Floats of a vector, which is a cache line here.
LANES = 16


@pytest.fixture(autouse=True)
def small_arguments_are_large(monkeypatch):
    monkeypatch.setattr(prefetch, "_LEAST_BYTES", 1 << 14)
    monkeypatch.setattr(prefetch, "_LEAST_BLOCK", 1 << 10)


def product(rows=8, columns=64, inner=128, *, is_packed=True, dtype="int32", element="float32"):
    """Return a schedule of a product with weights whose columns lie in vectors, and its block."""
    data = te.placeholder((rows, inner), element, name="A")
    shape = (columns // LANES, inner, LANES) if is_packed else (inner, columns)
    weights = te.placeholder(shape, element, name="W")
    k = te.reduce_axis((0, inner), name="k")

    def dot(i, j):
        weight = weights[j // LANES, k, j % LANES] if is_packed else weights[k, j]
        return te.sum(data[i, k] * weight, axis=k)

    function = te.create_prim_func(
        [data, weights, te.compute((rows, columns), dot, name="C")], index_dtype_override=dtype
    )
    schedule = s_tir.Schedule(tvm.IRModule({"main": function}))
    return schedule, schedule.get_sblock("C")


def tiled(schedule, block, *, tile=2, steps=(2, 64), order="jktki"):
    """Tile a product: `order` names its loops, from the outside inwards, before the vector.

    t : over tiles of rows; k : over the sums, outer loops first; i : over the rows of a tile.
    """
    i, j, k = schedule.get_loops(block)
    vectors, lanes = schedule.split(j, [None, LANES])
    *tiles, rows = schedule.split(i, [None, *[2] * (order.count("t") - 1), tile])
    sums = schedule.split(k, list(steps))
    loops = {"j": iter([vectors]), "t": iter(tiles), "k": iter(sums), "i": iter([rows])}
    schedule.reorder(*(next(loops[name]) for name in order), lanes)
    schedule.vectorize(lanes)
    schedule.unroll(rows)
    return schedule.mod


def sums_of_rows(*, second=None, has_two_results=False):
    """Return scheduled sums of the rows of one tensor, which TVM may take for a reshape.

    The function has a second argument that is `unused`, or `used` as the weights of columns.
    """
    data, k = te.placeholder((64, 128), name="A"), te.reduce_axis((0, 128), name="k")
    weights = te.placeholder((128,), name="W")

    def total(i):
        return te.sum(data[i, k] * weights[k] if second == "used" else data[i, k], axis=k)

    sums = te.compute((64,), total, name="C")
    results = [sums, te.compute((64,), lambda i: -sums[i])] if has_two_results else [sums]
    function = te.create_prim_func([data, *([weights] if second else []), *results])
    schedule = s_tir.Schedule(tvm.IRModule({"main": function}))
    block = schedule.get_sblock("C")
    _, k = schedule.get_loops(block)
    schedule.split(k, [None, LANES])
    schedule.decompose_reduction(block, schedule.get_loops(block)[1])
    return schedule.mod


def value(expression, variables):
    """Return the value of an index."""
    kind = type(expression).__name__
    if kind == "IntImm":
        return int(expression)
    if kind == "Cast":
        return value(expression.value, variables)
    if kind in ("Add", "Sub", "Mul"):
        a, b = value(expression.a, variables), value(expression.b, variables)
        return {"Add": a + b, "Sub": a - b, "Mul": a * b}[kind]
    return next(number for variable, number in variables if variable.same_as(expression))


def events(function, name="W"):
    """Yield the lines of an argument that a lowered function fetches and uses, in its order."""

    def line(load, variables):
        flat = 0
        for index, extent in zip(load.indices, compat.buffer_of(load).shape, strict=True):
            flat = flat * int(extent) + value(index, variables)
        return flat // LANES

    def visit(statement, variables):
        if isinstance(statement, tirx.For):
            first, extent = value(statement.min, variables), int(statement.extent)
            # The rows of a tile use the same line, as the lanes of a vector do.
            is_serial = statement.kind == tirx.ForKind.SERIAL
            for number in range(first, first + (extent if is_serial else 1)):
                yield from visit(statement.body, ((statement.loop_var, number), *variables))
        for part in getattr(statement, "seq", ()):
            yield from visit(part, variables)
        if isinstance(statement, tirx.IfThenElse):
            condition = statement.condition
            if value(condition.a, variables) < value(condition.b, variables):
                yield from visit(statement.then_case, variables)
        if isinstance(statement, tirx.Evaluate | tirx.BufferStore):
            loads = []
            compat.walk(statement.value, compat.load_type(), loads.append)
            is_fetch = isinstance(statement, tirx.Evaluate)
            for load in loads:
                if compat.buffer_of(load).name == name:
                    yield "fetch" if is_fetch else "use", line(load, variables)

    yield from visit(function.body, ())


def uses(happened):
    return [number for kind, number in happened if kind == "use"]


@pytest.mark.parametrize(
    ("sizes", "tiling", "block"),
    [
        *(({"dtype": dtype}, {}, 64) for dtype in ("int32", "int64")),
        # More lines than may be fetched at a time: each loop over the weights is split.
        ({}, {"steps": (1, 128)}, 128),
        # Several loops over a block.
        ({"inner": 192}, {"steps": (2, 3, 32), "order": "jktkki"}, 96),
        # The outer of two loops that reuse weights has a block that is large enough.
        ({"rows": 16}, {"steps": (2, 8, 8), "order": "jktktki"}, 64),
        # More loops over a block than it has lines.
        ({"rows": 20, "columns": 128, "inner": 32}, {"tile": 1, "steps": (2, 16)}, 16),
    ],
)
def test_next_block_is_fetched_while_the_present_one_is_used(sizes, tiling, block):
    mod = tiled(*product(**sizes), **tiling)
    (function,) = with_prefetch(mod, TARGET).functions.values()
    happened = list(events(function))
    assert uses(happened) == uses(events(prefetch._lowered(mod["main"], TARGET)))
    fetched, blocks = set(), []
    for kind, number in happened:
        if kind == "fetch":
            fetched.add(number)
            # At most the next block, or the one after it before the present one's last use.
            assert number // block <= len(blocks) + 1
        elif number // block not in blocks:
            blocks.append(number // block)
            assert blocks == [*range(len(blocks))]
            assert blocks == [0] or {*range(number, number + block)} <= fetched
    assert len(blocks) >= 4
    runs = [len(list(run)) for kind, run in groupby(happened, lambda event: event[0])]
    fetches = runs[0::2] if happened[0][0] == "fetch" else runs[1::2]
    assert max(fetches) <= prefetch._MOST_LINES
    # A line is fetched once for each block, and a few behind its end.
    assert sum(fetches) <= 1.3 * len(blocks) * block


def test_outermost_loop_fetches():
    (function,) = with_prefetch(sums_of_rows(second="used"), TARGET).functions.values()
    lines = [number for kind, number in events(function, "A") if kind == "fetch"]
    ahead = prefetch._AHEAD // prefetch._LINE
    assert lines == [*range(ahead, ahead + 64 * 128 // LANES)]


@pytest.mark.parametrize(
    "steps",
    [
        (64, 16),
        (1, 1024),  # the loop has more lines than may be fetched at a time
        (16, 4, 16),  # lines of two loops
        (1024, 1),
    ],
)
def test_weights_that_are_used_once_are_fetched_ahead(steps):
    order = "j" + "k" * len(steps) + "i"
    mod = tiled(*product(rows=1, inner=1024), tile=1, steps=steps, order=order)
    (function,) = with_prefetch(mod, TARGET).functions.values()
    happened = list(events(function))
    assert uses(happened) == [*range(4 * 1024)]
    ahead = prefetch._AHEAD // prefetch._LINE
    fetched = set()
    for kind, number in happened:
        if kind == "fetch":
            assert number not in fetched
            fetched.add(number)
        else:
            assert number < ahead or number in fetched
            assert max(fetched) <= number + ahead + prefetch._MOST_LINES
    runs = [len(list(run)) for kind, run in groupby(happened, lambda event: event[0])]
    assert max(runs[0::2]) <= prefetch._MOST_LINES and sum(runs[0::2]) == 4 * 1024


@pytest.mark.parametrize(
    "mod",
    [
        tiled(*product(rows=2)),  # two rows use a weight one after the other
        tiled(*product(rows=2), tile=1, order="tjkki"),  # weights are read twice
        tiled(*product(rows=1, is_packed=False), tile=1, order="jkki"),  # lines are not neighbours
        tiled(*product(is_packed=False), order="jktki"),  # lines are far from one another
        tiled(*product(), order="tjkki"),  # no block is used again before the next one
        tiled(*product(rows=4, inner=122), steps=(1, 122)),  # no parts with few lines
        tiled(*product(columns=16)),  # a small argument
        product()[0].mod,  # not scheduled
        sums_of_rows(),
        sums_of_rows(second="unused"),
        sums_of_rows(has_two_results=True),
    ],
)
def test_functions_without_blocks_to_fetch_stay_as_they_are(mod):
    assert with_prefetch(mod, TARGET).same_as(mod)


@pytest.mark.parametrize(
    ("element", "is_fetched"),
    [("float16", True), ("int8", True), ("bfloat16", False), ("float8_e4m3fn", False)],
)
def test_elements_of_most_types_are_fetched(element, is_fetched):
    mod = tiled(*product(inner=1024, element=element), steps=(2, 512))
    assert with_prefetch(mod, TARGET).same_as(mod) is not is_fetched


def test_blocks_that_leave_the_caches_are_not_fetched(monkeypatch):
    mod = tiled(*product())
    monkeypatch.setattr(prefetch, "_MOST_BLOCK", 64 * 64)
    assert not with_prefetch(mod, TARGET).same_as(mod)
    monkeypatch.setattr(prefetch, "_MOST_BLOCK", 64 * 64 - 1)
    assert with_prefetch(mod, TARGET).same_as(mod)


def test_blocks_at_an_index_that_is_read_from_memory_are_not_fetched():
    """The index of the next block may be unknown, or not to be read yet."""
    data, k = te.placeholder((8, 128), name="A"), te.reduce_axis((0, 128), name="k")
    weights = te.placeholder((9, 128, LANES), name="W")
    order = te.placeholder((4,), "int32", name="order")

    def dot(i, j):
        return te.sum(data[i, k] * weights[order[j // LANES], k, j % LANES], axis=k)

    out = te.compute((8, 64), dot, name="C")
    mod = tvm.IRModule({"main": te.create_prim_func([data, weights, order, out])})
    schedule = s_tir.Schedule(mod)
    mod = tiled(schedule, schedule.get_sblock("C"))
    assert with_prefetch(mod, TARGET).same_as(mod)


def test_functions_of_numbers_and_symbolic_sizes_stay_as_they_are():
    n = te.var("n", "int64")
    data = te.placeholder((n, 1 << 14), name="A")
    function = te.create_prim_func([data, te.compute(data.shape, lambda i, j: data[i, j] + n)])
    mod = tvm.IRModule({"main": function})
    assert with_prefetch(mod, TARGET).same_as(mod)
    with_number = te.create_prim_func([n, data, te.compute((1 << 14,), lambda j: data[n - 1, j])])
    mod = tvm.IRModule({"main": with_number})
    assert with_prefetch(mod, TARGET).same_as(mod)


@pytest.mark.parametrize(
    ("mod", "sizes", "count"),
    [
        (sums_of_rows(), [(64, 128)], 1),
        (sums_of_rows(second="unused"), [(64, 128), (128,)], 1),
        (sums_of_rows(second="used"), [(64, 128), (128,)], 1),
        (sums_of_rows(has_two_results=True), [(64, 128)], 2),
    ],
)
def test_programs_with_sums_of_rows_compile(mod, sizes, count, opened, tmp_path):
    attributes = {"global_symbol": "sums", "tirx.is_scheduled": True}
    builder = relax.BlockBuilder()
    name = builder.add_func(mod["main"].with_attrs(attributes), "sums")
    data = [relax.Var(f"data{n}", R.Tensor(size, "float32")) for n, size in enumerate(sizes)]
    kind = R.Tensor((64,), "float32")
    with builder.function("main", data):
        with builder.dataflow():
            call = relax.call_tir(name, data, kind if count == 1 else [kind] * count)
            first = call if count == 1 else relax.TupleGetItem(builder.emit(call), 0)
            sums = builder.emit_output(first)
        builder.emit_func_output(sums)
    target = host_target()
    made = compile(builder.finalize(), opened(tmp_path / "tune.db", target=target))
    values = [np.ones(size, "float32") for size in sizes]
    run = relax.VirtualMachine(made.executable, tvm.cpu())["main"]
    found = run(*map(tvm.runtime.tensor, values))
    np.testing.assert_array_equal(found.numpy(), values[0].sum(axis=1))


def test_other_devices_fetch_nothing():
    mod = tiled(*product())
    for target in ("nvidia/nvidia-a100", {"kind": "c"}):
        assert with_prefetch(mod, tvm.target.Target(target)).same_as(mod)


def instructions(library):
    return len(re.findall(r"call void @llvm\.prefetch", library.inspect_source("ll")))


def computed(library, rows=8, columns=64, inner=128):
    """Return the product of random numbers."""
    rng = np.random.default_rng(0)
    shapes = [(rows, inner), (columns // LANES, inner, LANES), (rows, columns)]
    arrays = [tvm.runtime.tensor(rng.random(shape).astype("float32")) for shape in shapes]
    library["main"](*arrays)
    return arrays[-1].numpy()


@pytest.mark.parametrize("rows", [8, 1])
@pytest.mark.parametrize("is_parallel", [long(False), True])
def test_builds_prefetch_and_compute_the_same_to_the_bit(is_parallel, rows):
    schedule, block = product(rows)
    mod = tiled(schedule, block, tile=min(2, rows))
    if is_parallel:
        schedule.parallel(schedule.get_loops(block)[0])
        mod = schedule.mod
    target = host_target()
    built = default_build(mod, target, None)
    plain = tvm.tirx.build(mod, target=target)
    assert instructions(built.mod if hasattr(built, "mod") else built) >= 16
    assert instructions(plain.mod if hasattr(plain, "mod") else plain) == 0
    expected = computed(tvm.compile(mod, target=target), rows)
    found = computed(tvm.compile(with_prefetch(mod, target), target), rows)
    np.testing.assert_array_equal(found, expected)


def test_compiled_networks_prefetch_unless_they_are_untuned(opened, tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(apply, "with_prefetch", lambda mod, _: given.append(mod) or mod)
    mod, target = from_onnx(networks.symbolic(1, 4)), host_target()
    database = opened(tmp_path / "tune.db", target=target)
    compile(mod, database)
    assert len(given) == 1
    apply.compile_lowered(lower(mod, target, Lowering()), None, target)
    assert len(given) == 1


def test_compiled_functions_prefetch(opened, tmp_path):
    target = host_target()
    database = opened(tmp_path / "tune.db", target=target)
    made = compile(tiled(*product()), database)
    assert instructions(made.executable.mod) >= 16
    expected = computed(tvm.compile(tiled(*product()), target=target))
    np.testing.assert_array_equal(computed(made.executable), expected)

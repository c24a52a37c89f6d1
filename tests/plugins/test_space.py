"""The design space for CPUs: programs of TVM's space, and tiles of columns for reductions."""

from functools import cache

import numpy as np
import pytest
import tvm
from fake_tuning import tune_quickly
from tvm import te, tirx, topi
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import Trace

from tunedb.plugins.metaschedule import Database, compat
from tunedb.plugins.metaschedule.space import SPACE, TileColumns, space_of

TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 2, "mcpu": "x86-64-v3"})


def program(compute, *shapes):
    """Return the module of a function of tensors of these shapes."""
    inputs = [te.placeholder(shape, name=f"x{n}") for n, shape in enumerate(shapes)]
    func = te.create_prim_func([*inputs, compute(*inputs)], "int64")
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


def pool(x, layout="NHWC"):
    return topi.nn.pool2d(x, (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), "max", layout=layout)


def transposed_sum(x):
    """Return sums of columns whose neighbours are not neighbours in the result."""
    k = te.reduce_axis((0, x.shape[1]), name="k")
    shape = (x.shape[2], x.shape[0])
    return te.compute(shape, lambda c, n: te.sum(x[n, k, c], k), name="transposed")


COLUMNS = {
    "sums of rows": lambda: program(lambda x: topi.sum(x, 1), (2, 30, 48)),
    "means of pixels": lambda: program(lambda x: topi.sum(x, (1, 2), True) / 35, (2, 5, 7, 24)),
    "pooled pixels": lambda: program(pool, (1, 9, 9, 16)),
    "windows without pads": lambda: program(
        lambda x: topi.nn.pool2d(x, (2, 2), (2, 2), (1, 1), (0,) * 4, "avg", layout="NHWC"),
        (1, 8, 8, 6),
    ),
    "squared distances": lambda: program(
        lambda x, y: topi.sum((x - y) * (x - y), 1), (1, 21, 32), (1, 1, 32)
    ),
}

OTHERS = {
    "sums along rows": lambda: program(lambda x: topi.sum(x, 2), (2, 30, 48)),
    "channels before pixels": lambda: program(lambda x: pool(x, "NCHW"), (1, 16, 9, 9)),
    "one sum of all": lambda: program(topi.sum, (30, 48)),
    "two results": lambda: program(lambda x: topi.argmax(x, 1), (2, 30, 48)),
    "a transposed result": lambda: program(transposed_sum, (2, 30, 48)),
    "a product": lambda: program(topi.matmul, (16, 16), (16, 16)),
    "no reduction": lambda: program(topi.nn.relu, (30, 48)),
}

FUNCTIONS = COLUMNS | OTHERS


@cache
def designs(name, space):
    """Return the traces of a design space, and its postprocessors."""
    context = ms.TuneContext(
        FUNCTIONS[name](),
        target=TARGET,
        space_generator=space_of(space, TARGET),
        num_threads=1,
        rand_state=1,
    ).clone()
    traces = [one.trace for one in context.generate_design_space()]
    return traces, list(context.space_generator.postprocs)


def kinds(trace):
    """Return the instructions of a trace, without decisions."""
    return tuple(str(instruction.kind.name) for instruction in trace.insts)


@pytest.mark.parametrize("name", COLUMNS)
def test_reduction_of_columns_has_one_more_design(name):
    default, _ = designs(name, "post-order-apply")
    ours, _ = designs(name, SPACE)
    assert len(ours) == len(default) + 1
    assert {*map(kinds, default)} < {*map(kinds, ours)}


@pytest.mark.parametrize("name", OTHERS)
def test_other_functions_have_the_designs_of_tvm(name):
    default, ours = (designs(name, space)[0] for space in ("post-order-apply", SPACE))
    assert sorted(map(kinds, ours)) == sorted(map(kinds, default))


def tiled(name, seed):
    """Return a random program of the design that TVM does not have, postprocessed."""
    known = {*map(kinds, designs(name, "post-order-apply")[0])}
    traces, postprocs = designs(name, SPACE)
    (trace,) = (one for one in traces if kinds(one) not in known)
    schedule = Schedule(FUNCTIONS[name](), seed=seed, debug_mask="none")
    # A trace of TVM's instructions alone: no rule is asked.
    Trace(trace.insts, {}).apply_to_schedule(schedule, remove_postproc=True)
    schedule.enter_postproc()
    assert all(each.apply(schedule) for each in postprocs)
    return schedule.mod


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", COLUMNS)
def test_programs_compute_the_same(name, seed):
    mod = FUNCTIONS[name]()
    rng = np.random.default_rng(seed)
    shapes = [[int(n) for n in one.shape] for one in compat.arguments_of(mod["main"])]
    *inputs, _ = (rng.normal(size=shape).astype("float32") for shape in shapes)
    results = []
    for each in (mod, tiled(name, seed)):
        result = tvm.runtime.tensor(np.zeros(shapes[-1], "float32"))
        library = tvm.compile(each, target=TARGET)
        library["main"](*map(tvm.runtime.tensor, inputs), result)
        results.append(result.numpy())
    assert np.ptp(results[0]) > 0
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-5)


def test_columns_are_vectors():
    """The loop over the tile stands inside those that reduce, and is vectorised."""
    found = set()
    for seed in range(1, 20):
        kinds_of_loops = []
        compat.walk(
            tiled("sums of rows", seed)["main"].body,
            tirx.For,
            lambda loop, kinds=kinds_of_loops: kinds.append(loop.kind),
        )
        found.add(kinds_of_loops.count(tirx.ForKind.VECTORIZED))
    assert max(found) >= 2, "the sum and its initial value"


def with_producer(schedule, block):
    schedule.compute_at(schedule.get_producers(block)[0], schedule.get_loops(block)[-1])


def without_loops(schedule, block):
    schedule.fuse(*schedule.get_loops(block))


def in_another_order(schedule, block):
    schedule.reorder(*schedule.get_loops(block)[::-1])


@pytest.mark.parametrize("change", [with_producer, without_loops, in_another_order])
def test_rule_leaves_changed_blocks(change):
    def scheduled():
        mod = program(lambda x: topi.sum(topi.nn.relu(x), 1), (2, 30, 48))
        schedule = Schedule(mod, debug_mask="none")
        return schedule, schedule.get_sblock("compute_red")

    schedule, block = scheduled()
    assert len(TileColumns().apply(schedule, block)) == 2
    schedule, block = scheduled()
    change(schedule, block)
    assert len(TileColumns().apply(schedule, block)) == 1


@pytest.mark.parametrize("space", [SPACE, "post-order-apply"])
@pytest.mark.parametrize("name", ["pooled pixels", "windows without pads"])
def test_poolings_are_scheduled_without_warnings(name, space, capfd):
    traces, _ = designs.__wrapped__(name, space)
    assert capfd.readouterr().err == ""
    # As TVM does where a rule is not registered.
    assert all("Unannotate" in kinds(trace) for trace in traces)


def test_space_of_other_targets_and_other_spaces_stay():
    cuda = tvm.target.Target({"kind": "cuda", "arch": "sm_80"})
    assert space_of(SPACE, cuda) == "post-order-apply"
    own = ms.space_generator.PostOrderApply()
    assert space_of(own, TARGET) is own
    assert space_of("union", TARGET) == "union"


@pytest.mark.parametrize(
    ("options", "is_tiled"),
    [
        ({}, True),
        ({"space": "post-order-apply"}, False),
        ({"space": "post-order-apply", "special_space": {"main": SPACE}}, True),
    ],
)
def test_tune_measures_tiles_of_columns(options, is_tiled):
    with Database(":memory:", target=TARGET) as database:
        mod = COLUMNS["sums of rows"]()
        tune_quickly(
            mod, database, target=TARGET, max_trials_global=24, num_trials_per_iter=8, **options
        )
        records = database.get_top_k(database.commit_workload(mod), 100)
    assert len(records) > 8
    assert any("Reorder" in kinds(one.trace) for one in records) == is_tiled

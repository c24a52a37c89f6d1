"""Configurations of AutoTVM as starting points of MetaSchedule's search."""

import json
from contextlib import closing
from math import prod

import pytest
import tvm
from effort import long
from public_logs import DATA, needs_logs
from tvm import te, topi
from tvm.s_tir import meta_schedule as ms

from tunedb.formats.find import find_logs
from tunedb.formats.importer import import_log
from tunedb.plugins.metaschedule import Database
from tunedb.plugins.metaschedule.database.database import handle_of
from tunedb.plugins.metaschedule.search.schedule_queries import DraftReplayer, from_tvm
from tunedb.plugins.metaschedule.search.warm_start import Relatives
from tunedb.search.knobs import knob_draft
from tunedb.storage.store import Store

CPU = tvm.target.Target({"kind": "llvm", "num-cores": 2, "mcpu": "x86-64-v3"})
GPU_LIMITS = {"max_threads_per_block": 1024, "max_shared_memory_per_block": 49152}
GPU = tvm.target.Target({"kind": "cuda", "arch": "sm_70"} | GPU_LIMITS)
DIRECT = [
    *(["tile_f", "sp", [2, 1, 16, 2]], ["tile_y", "sp", [14, 1, 1, 4]]),
    *(["tile_x", "sp", [2, 1, 28, 1]], ["tile_rc", "sp", [8, 8]]),
    *(["tile_ry", "sp", [3, 1]], ["tile_rx", "sp", [1, 3]]),
    *(["auto_unroll_max_step", "ot", 1500], ["unroll_explicit", "ot", 1]),
]
PACKED = [
    *(["tile_ic", "sp", [4, 16]], ["tile_oc", "sp", [2, 32]]),
    *(["tile_ow", "sp", [8, 7]], ["unroll_kw", "ot", True]),
]


def program(*tensors):
    return tvm.IRModule({"main": te.create_prim_func(list(tensors))})


def tensor(name, *shape):
    return te.placeholder(shape, "float32", name)


def convolution(layout, size=56, channels=64, filters=64, kernel=3):
    if layout == "NHWC":
        data = tensor("data", 1, size, size, channels)
        weight = tensor("weight", kernel, kernel, channels, filters)
        return program(data, weight, topi.nn.conv2d_nhwc(data, weight, 1, kernel // 2, 1))
    data = tensor("data", 1, channels, size, size)
    weight = tensor("weight", filters, channels, kernel, kernel)
    return program(data, weight, topi.nn.conv2d_nchw(data, weight, 1, kernel // 2, 1))


def product(rows=128, inner=512, columns=1024):
    a, b = tensor("a", rows, inner), tensor("b", inner, columns)
    return program(a, b, topi.nn.matmul(a, b))


def space(mod, target):
    context = ms.TuneContext(
        mod, target=target, space_generator="post-order-apply", num_threads=1, rand_state=1
    )
    spaces = context.generate_design_space()
    templates = [from_tvm(one.trace.simplified(remove_postproc=True)) for one in spaces]
    return templates, DraftReplayer(mod, context.space_generator.postprocs, threads=1, seed=1)


def decisions(found):
    return [found.draft.decisions[number] for number in sorted(found.draft.decisions)]


def test_gpu_knobs_become_tiles_of_blocks_threads_and_registers():
    (sketch,), replayer = space(convolution("NCHW"), GPU)
    found = knob_draft("conv2d_nchw.cuda", None, "conv2d", DIRECT, sketch)
    # n, f, y, x, rc, ry, rx; the seventh candidate of unrolling is 1,024 steps.
    assert decisions(found) == [
        *([1, 1, 1, 1, 1], [2, 1, 16, 1, 2], [14, 1, 1, 1, 4], [2, 1, 28, 1, 1]),
        *([8, 8, 1], [3, 1, 1], [1, 3, 1], 7),
    ]
    assert (found.kept, found.distance) == (6 / 7, 0.0)
    (schedule,) = replayer.schedules([found.draft])
    assert schedule is not None
    assert 'T.thread_binding(448, thread="threadIdx.x")' in schedule.mod.script()


def test_knob_draft_maps_axes_by_layout_and_repairs_extents():
    (sketch,), replayer = space(convolution("NHWC", size=28, filters=96), GPU)
    found = knob_draft("topi_nn_conv2d", "direct", "conv2d", DIRECT, sketch)
    n, y, x, f, ry, rx, rc, _ = decisions(found)
    assert [prod(tile) for tile in (n, y, x, f, ry, rx, rc)] == [1, 28, 28, 96, 3, 3, 64]
    assert (y[4], x[2], f[2] * f[4], rc) == (4, 28, 32, [8, 8, 1])
    # Half of the rows and columns, and 1.5 times the channels.
    assert found.distance == pytest.approx((1 + 1 + 0.585**2) ** 0.5, abs=1e-3)
    assert replayer.schedules([found.draft])[0] is not None


def test_knobs_of_packed_convolution_tile_channels_and_columns():
    templates, replayer = space(convolution("NHWC"), CPU)
    found = knob_draft("conv2d_NCHWc.x86", None, "conv2d", PACKED, templates[0])
    n, y, x, f, ry, rx, rc = decisions(found)
    assert (x, f, rc) == ([8, 1, 1, 7], [2, 1, 1, 32], [4, 16])
    # Axes without a knob stay in the outermost loops.
    assert (n, y, ry, rx) == ([1, 1, 1, 1], [56, 1, 1, 1], [3, 1], [3, 1])
    assert (found.kept, found.distance) == (3 / 7, 0.0)
    assert replayer.schedules([found.draft])[0] is not None


def test_tile_x_means_rows_only_in_template_for_large_batches():
    (sketch,), replayer = space(product(), GPU)
    tiles = {"tile_x": [-1, 4, 8, 1], "tile_y": [-1, 1, 16, 4], "tile_k": [-1, 8, 4]}
    entity = [[name, "sp", tile] for name, tile in tiles.items()]
    found = knob_draft("dense_large_batch.gpu", None, "matmul", entity, sketch)
    # -1 is the factor that the others leave.
    assert decisions(found) == [[4, 4, 8, 1, 1], [16, 1, 16, 1, 4], [16, 8, 4]]
    assert found.distance == 0.0
    assert replayer.schedules([found.draft])[0] is not None
    (cpu, *_), _ = space(product(), CPU)
    entity = [["tile_y", "sp", [16, 8]], ["tile_x", "sp", [64, 16]], ["tile_k", "sp", [128, 4]]]
    found = knob_draft("dense_nopack.x86", None, "matmul", entity, cpu)
    assert decisions(found) == [[16, 1, 1, 8], [64, 1, 1, 16], [128, 4]]


def test_knob_draft_fits_batch_matmul_of_relax():
    """Relax calls the block matmul, whatever the number of axes."""
    a, b, k = tensor("a", 16, 128, 64), tensor("b", 16, 64, 128), te.reduce_axis((0, 64), "k")
    out = te.compute((16, 128, 128), lambda n, i, j: te.sum(a[n, i, k] * b[n, k, j], k), "matmul")
    (sketch,), replayer = space(program(a, b, out), GPU)
    tiles = {"tile_y": [-1, 16, 4], "tile_x": [-1, 8, 2], "tile_k": [-1, 8]}
    entity = [[name, "sp", tile] for name, tile in tiles.items()]
    found = knob_draft("batch_matmul.cuda", None, "batch_matmul", entity, sketch)
    assert decisions(found) == [[16, 1, 1, 1, 1], [2, 1, 16, 1, 4], [8, 1, 8, 1, 2], [8, 8, 1]]
    assert replayer.schedules([found.draft])[0] is not None


def test_knob_draft_returns_none_for_other_templates_families_and_invalid_knobs():
    (sketch,), _ = space(convolution("NCHW"), GPU)

    def has_draft(task="conv2d_nchw.cuda", template=None, family="conv2d", knobs=DIRECT):
        return knob_draft(task, template, family, knobs, sketch) is not None

    assert has_draft("topi_nn_conv2d", "direct")
    assert not has_draft("topi_nn_conv2d", "winograd")
    assert not has_draft("topi_nn_conv2d", "int8")
    for other in ("conv2d_nchw_winograd", "conv2d_NCHWc_int8", "conv2d_nhwc_tensorcore"):
        assert not has_draft(f"{other}.cuda"), other
    assert not has_draft(family="softmax") and not has_draft(knobs=[])
    for knob in (
        *(["tile_f", "ot", [2, 1, 16, 2]], ["tile_f", "sp", [2, 0, 16, 2]]),
        *(["tile_f", "sp", [-2, 1, 16, 2]], ["tile_f", "sp", [-1]]),
        *(["tile_f", "sp", ["1", 2, 3, 4]], ["tile_f", "sp", [1, 2, 3, 4, 5]]),
        ["tile_g", "sp", [2, 1, 16, 2]],
    ):
        assert not has_draft(knobs=[knob]), knob


def test_knob_draft_returns_none_for_sketch_that_it_does_not_fit():
    # Of another operator.
    data = tensor("data", 64, 64)
    templates, _ = space(program(data, topi.nn.softmax(data)), CPU)
    for sketch in templates:
        assert knob_draft("conv2d_nchw.cuda", None, "conv2d", DIRECT, sketch) is None
    # The template of another device has other levels.
    (sketch, *_), _ = space(convolution("NCHW"), CPU)
    assert knob_draft("conv2d_nchw.cuda", None, "conv2d", DIRECT[:3], sketch) is None
    # No output axis is tiled.
    (sketch,), _ = space(product(), GPU)
    entity = [["tile_k", "sp", [-1, 64]]]
    assert knob_draft("dense_small_batch.gpu", None, "matmul", entity, sketch) is None


def old_line(seconds, template, entity):
    """Return a line of v0.1, where a task has several templates."""
    tensors = [["TENSOR", [1, 64, 56, 56], "float32"], ["TENSOR", [64, 64, 3, 3], "float32"]]
    arguments = [*tensors, [1, 1], [1, 1], [1, 1], "NCHW", "float32"]
    workload = ["conv2d", [1, 64, 56, 56, "float32"], [64, 64, 3, 3, "float32"], *arguments[2:]]
    config = {"i": 1, "t": template, "c": None, "e": entity}
    return {
        "i": ["cuda -model=v100", "topi_nn_conv2d", arguments, {}, workload, config],
        "r": [[seconds], 0, 1.0, 1.6e9],
        "v": 0.1,
    }


@pytest.fixture
def imported(tmp_path, path, opened):
    """A function that opens a database with lines of AutoTVM's log."""

    def imported(target, *lines):
        log = tmp_path / "tuned.log"
        log.write_text("".join(json.dumps(each) + "\n" for each in lines))
        database = opened(path, target=target, prior="none")
        import_log(database.store, *find_logs([log]), source="tuned")
        return database

    return imported


def test_warm_drafts_use_best_direct_record_even_if_winograd_is_faster(imported):
    winograd = [
        *(["tile_b", "sp", [36, 1, 1, 1]], ["tile_y", "sp", [2, 1, 16, 2]]),
        *(["tile_x", "sp", [7, 1, 28, 1]], ["tile_rc", "sp", [8, 8]]),
    ]
    database = imported(GPU, old_line(0.01, "winograd", winograd), old_line(0.02, "direct", DIRECT))
    mod = convolution("NCHW")
    templates, _ = space(mod, GPU)
    (warm,) = Relatives.of(handle_of(database), mod, GPU).adapted(templates, 8)
    expected = knob_draft("topi_nn_conv2d", "direct", "conv2d", DIRECT, templates[0])
    assert (warm.seconds, warm.draft.key) == (0.02, expected.draft.key)


def line(seconds, entity=PACKED):
    arguments = [
        *(["TENSOR", [1, 64, 56, 56], "float32"], ["TENSOR", [64, 64, 3, 3], "float32"]),
        *([1, 1], [1, 1, 1, 1], [1, 1], "NCHW", "NCHW", "float32"),
    ]
    return {
        "input": ["llvm -keys=cpu", "conv2d_NCHWc.x86", arguments, {}],
        "config": {"index": 1, "code_hash": None, "entity": entity},
        "result": [[seconds], 0, 1.0, 1.6e9],
        "version": 0.2,
        "tvm_version": "0.8.0",
    }


def test_warm_drafts_use_the_best_configuration_of_a_log(imported):
    slower = [["tile_ic", "sp", [64, 1]], ["tile_oc", "sp", [64, 1]], *PACKED[2:]]
    database, mod = imported(CPU, line(0.1, slower), line(0.01)), convolution("NHWC")
    templates, _ = space(mod, CPU)
    (warm,) = Relatives.of(handle_of(database), mod, CPU).adapted(templates, 8)
    expected = knob_draft("conv2d_NCHWc.x86", None, "conv2d", PACKED, templates[0])
    assert warm.draft.key == expected.draft.key
    assert (warm.seconds, warm.kept) == (0.01, 3 / 7)
    records = database.store.records.iterate(1)
    (best,) = [one.measurement for one in records if one.mean == 0.01]
    assert best.program.digest == warm.donor


@needs_logs
@pytest.mark.parametrize(("name", "target"), [("llvm_v0.04", CPU), long("cuda_v0.10", GPU)])
def test_drafts_of_public_tophub_configurations_replay(sqlite_file, name, target):
    """All drafts for the CPU replay, and nearly all for the V100."""
    with Store(sqlite_file) as store:
        log = DATA / "autotvm" / "tophub" / f"{name}.log"
        import_log(store, *find_logs([log]), source="tophub")
    with closing(Database(sqlite_file, target=target, prior="none")) as database:
        counts = []
        for layout, size, channels, filters in (("NHWC", 56, 64, 64), ("NCHW", 14, 256, 512)):
            mod = convolution(layout, size, channels, filters)
            templates, replayer = space(mod, target)
            warm = Relatives.of(handle_of(database), mod, target).adapted(templates, 16)
            schedules = replayer.schedules([each.draft for each in warm])
            counts.append((len(warm), sum(schedule is not None for schedule in schedules)))
    assert all(drafts >= 8 and legal >= drafts - 3 for drafts, legal in counts), counts
    if target is CPU:
        assert all(drafts == legal for drafts, legal in counts)

"""Features of steps: rows computed by hand for each tool, and errors for damaged programs."""

import math
from dataclasses import replace

import numpy as np
import orjson
import pytest
from by_hand import DIALECTS, contraction

from tunedb.errors import FormatError
from tunedb.features.steps import STEPS, Steps
from tunedb.features.steps.columns import COLUMNS
from tunedb.programs.ansor import split_steps
from tunedb.programs.autotvm import split_knobs
from tunedb.programs.metaschedule.trace import join_trace, split_trace
from tunedb.programs.workload_info import signature_of
from tunedb.records import Target, Trace, Workload, WorkloadFormat
from tunedb.results import StoredProgram

LLVM = Target.from_config({"kind": "llvm", "mcpu": "znver4", "num-cores": 2})
CUDA = Target.from_config({"kind": "cuda", "max_threads_per_block": 1024, "thread_warp_size": 32})


def program(workload, target, trace):
    return StoredProgram(1, 1, workload, signature_of(workload), 1, target, 1, None, trace)


def columns(found):
    """Return the columns of one program by name."""
    if isinstance(found, Exception):
        raise found
    assert found.shape == (1, len(COLUMNS))
    assert found.dtype == np.float32
    assert np.isfinite(found).all()
    return dict(zip(COLUMNS, found[0].tolist(), strict=True))


def row(*args):
    return columns(STEPS.rows([program(*args)])[0])


def ansor_row(steps, key=None, target=None):
    workload = Workload(WorkloadFormat.ANSOR, key or CONV)
    return row(workload, target or CUDA, split_steps(steps, None))


def cuda_row(*added, change=lambda attrs: attrs):
    """Return the row of the CUDA trace with instructions more, and other attributes."""
    instructions, decisions = join_trace(cuda_trace())
    changed = [[*one[:2], change(one[2]), one[3]] for one in instructions]
    at = next(n for n, one in enumerate(changed) if one[0] == "EnterPostproc")
    changed[at:at] = added
    return row(matmul(1024, 1024, 1024), CUDA, split_trace(changed, decisions))


def check(found, expected, *, logs=()):
    """Compare some columns; those of `logs` are given without the logarithm."""
    expected = expected | {name: math.log2(1 + value) for name, value in dict(logs).items()}
    wrong = {k: (found[k], v) for k, v in expected.items() if found[k] != pytest.approx(v, 1e-5)}
    assert not wrong


def group(prefix, **values):
    """Return columns whose names begin alike."""
    return {f"{prefix}.{name}": value for name, value in values.items()}


def levels(axis, *lengths):
    """Return the columns of an axis' tiles, from the innermost one."""
    return {f"{axis}.level{number}": length for number, length in enumerate(lengths)}


# ---- MetaSchedule -------------------------------------------------------------------------------


def matmul(i=128, j=128, k=128, dialect="boxed"):
    return contraction(dialect, {"i": i, "j": j}, {"k": k}, ["i", "k"], ["k", "j"], name="C")


def tiled(loops, parts, block="b0"):
    """Return the instructions that tile a block's loops, and the loops that they make."""
    made, lists, number = [], [], 100
    for loop, count in zip(loops, parts, strict=True):
        values = [f"v{number + n}" for n in range(count)]
        new = [f"l{number + count + n}" for n in range(count)]
        number += 2 * count
        made.append(["SamplePerfectTile", [loop], [count, 64], values])
        made.append(["Split", [loop, *values], [1, 0], new])
        lists.append(new)
    return made, lists


def cpu_trace(tiles=((2, 1, 8, 8), (4, 4, 2, 4), (8, 16)), unroll=1, parallel=4):
    """Return the trace of a multi-level tiled product with a cached write."""
    splits, (i, j, k) = tiled(["l2", "l3", "l4"], [4, 4, 2])
    order = [i[0], j[0], i[1], j[1], k[0], i[2], j[2], k[1], i[3], j[3]]
    instructions = [
        ["GetSBlock", [], ["C", "main"], ["b0"]],
        ["GetSBlock", [], ["root", "main"], ["b1"]],
        ["Annotate", ["b0", '"SSRSRS"'], ["meta_schedule.tiling_structure"], []],
        ["GetLoops", ["b0"], [], ["l2", "l3", "l4"]],
        *splits,
        ["Reorder", order, [], []],
        ["CacheWrite", ["b0", []], [0, "global"], ["b5"]],
        ["ReverseComputeAt", ["b5", j[1]], [1, -1], []],
        ["Annotate", ["b1", 32], ["meta_schedule.parallel"], []],
        ["Annotate", ["b1", 64], ["meta_schedule.vectorize"], []],
        ["SampleCategorical", [], [[0, 16, 64, 512], [0.25] * 4], ["v6"]],
        ["Annotate", ["b1", "v6"], ["meta_schedule.unroll_explicit"], []],
        ["EnterPostproc", [], [], []],
        ["GetSBlock", [], ["root", "main"], ["b7"]],
        ["GetChildBlocks", ["b7"], [], ["b8", "b9"]],
        ["GetLoops", ["b8"], [], [f"l{200 + n}" for n in range(10)]],
        ["Fuse", [f"l{200 + n}" for n in range(parallel)], [1], ["l210"]],
        ["Parallel", ["l210"], [], []],
        ["Fuse", ["l209"], [1], ["l211"]],
        ["Vectorize", ["l211"], [], []],
        ["Annotate", ["l210", 16], ["pragma_auto_unroll_max_step"], []],
        ["GetSBlock", [], ["C", "main"], ["b10"]],
        ["GetLoops", ["b10"], [], [f"l{220 + n}" for n in range(7)]],
        ["DecomposeReduction", ["b10", "l221"], [], ["b11"]],
    ]
    sampled = [n for n, one in enumerate(instructions) if one[0].startswith("Sample")]
    decided = [*map(list, tiles), unroll]
    return split_trace(instructions, [list(pair) for pair in zip(sampled, decided, strict=True)])


@pytest.mark.parametrize("dialect", DIALECTS)
def test_cpu_trace_has_columns_computed_by_hand(dialect):
    check(
        row(matmul(dialect=dialect), LLVM, cpu_trace()),
        {
            **group("tool", metaschedule=1, ansor=0),
            **group("family", matmul=1),
            **group("device", cores=2, lanes=16),
            **group("steps", split=3, tile=3, category=1, cache_write=1, unknown=0),
            "steps.total": 14,  # of 18; GetSBlock and GetLoops only name
            "cache.global": 1,
            **group("tail", parallel_loops=4, parallel=1, vectorize=1, loops=10, all_loops=17),
            "tail.decompose_depth": 1,
            **group("axes", spatial=2, reduction=1, spatial_levels=4),
            "spatial0.inner_ratio": 32 / 128,
            "spatial1.inner_ratio": 64 / 128,
            "tile.spatial.ratio1": 512 / 16384,
            "parallel.waste": 0,  # 32 tasks on 2 cores
            "inner.lanes_waste": 3,  # 4 of 16 lanes
            "inner.is_reduction": 0,
            "inner.contiguous": 1,  # B moves by one element along j
            "inner.broadcast": 1,  # A does not
            **group("inner", strided=0, writes_contiguous=1),
            "unroll.explicit": 1,
            **group("write", count=1, depth=4),
        },
        logs={
            "task.flops": 2 * 128**3,
            **group("axes", output=128 * 128, reduced=128),
            **group("spatial0", extent=128, inner=32),
            **levels("spatial0", 4, 2, 4, 4, 0),
            **group("spatial1", level0=8, level2=1),
            "spatial2.extent": 0,
            **levels("reduction0", 16, 8),
            **group("tile.spatial", level0=8 * 4, inner1=8 * 8 * 4 * 2),
            "tile.reduction.inner0": 16,
            **group("tile", squareness=2, inner_work=8 * 4 * 16),
            **group("nest0", work=32, output=8 * 4, input=8 * 1 + 1 * 4),
            **group("nest0", bytes=4 * (8 * 4 + 8 + 4), intensity=32 / 176),
            **group("nest1", work=32 * 16, outer=128**3 / 512, input=8 * 16 + 16 * 4),
            "nest2.output": 64 * 8,
            "nest3.input": 64 * 128 + 128 * 8,
            **group("nest5", extent=8, outer=1),  # the outermost tiles of i and j
            "nest6.extent": 0,
            **group("inner", extent=4, odd=1),
            **group("parallel", extent=2 * 4 * 1 * 4, per_core=16, limit=32),
            "parallel.flops": 2 * 128**3 / 32,
            **group("vector", limit=64, extent=4, odd=1),
            # 8 times the body of 4 lanes; the loop around it would make 8 * 16 copies.
            **group("unroll", steps=16, covers=16 / 512, copies=8),
            "write.elements": 64 * 8,
            "grid.blocks": 0,
        },
    )


@pytest.mark.parametrize(("of", "groups"), [(64, 1), (4, 1), (6, 2), (3, 4)])
def test_inner_loop_crosses_groups_of_channels(of, groups):
    """4 lanes need the inputs of 2 groups of 6 channels; within a group all need the same."""
    indices = ["i", f"j//{of}*8+k"]
    grouped = contraction("boxed", {"i": 128, "j": 128}, {"k": 128}, indices, ["k", "j"], name="C")
    found = row(grouped, LLVM, cpu_trace())
    values = group("inner", contiguous=1, broadcast=1, strided=0)
    check(found, values, logs={"inner.groups": groups, "nest0.input": 8 + 4})
    check(row(matmul(), LLVM, cpu_trace()), {"inner.groups": 0})


def test_cpu_trace_has_odd_divisors_and_copies_of_unrolled_loops():
    found = row(matmul(), LLVM, cpu_trace(((2, 1, 8, 8), (4, 1, 2, 12), (8, 16)), unroll=3))
    # 8 * 16 * 2 times the body of 12 lanes; the loop around it would make 8 times as many.
    check(found, {}, logs={**group("inner", extent=12, odd=3), "unroll.copies": 256})


def cuda_trace():
    """Return a tiled product for CUDA, with its inputs fetched into shared memory."""
    splits, (i, j, k) = tiled(["l2", "l3", "l4"], [5, 5, 3])
    levels = [[i[0], j[0]], [i[1], j[1]], [i[2], j[2]]]
    inner = [k[0], k[1], i[3], j[3], k[2], i[4], j[4]]
    bindings = ["blockIdx.x", "vthread.x", "threadIdx.x"]
    instructions = [
        ["GetSBlock", [], ["C", "main"], ["b0"]],
        ["GetSBlock", [], ["root", "main"], ["b1"]],
        ["Annotate", ["b0", '"SSSRRSRS"'], ["meta_schedule.tiling_structure"], []],
        ["GetLoops", ["b0"], [], ["l2", "l3", "l4"]],
        *splits,
        ["Reorder", [*levels[0], *levels[1], *levels[2], *inner], [], []],
    ]
    for number, (pair, binding) in enumerate(zip(levels, bindings, strict=True)):
        instructions.append(["Fuse", pair, [1], [f"l{50 + number}"]])
        instructions.append(["Bind", [f"l{50 + number}"], [binding], []])
    instructions += [
        ["CacheWrite", ["b0", []], [0, "local"], ["b6"]],
        ["ReverseComputeAt", ["b6", "l52"], [1, -1], []],
    ]
    for number in range(2):
        block, vector = f"b{20 + number}", f"v{60 + number}"
        instructions += [
            ["CacheRead", ["b0", []], [number, "shared"], [block]],
            ["ComputeAt", [block, k[0]], [1, -1], []],
            ["SampleCategorical", [], [[1, 2, 3, 4], [0.25] * 4], [vector]],
            ["Annotate", [block, vector], ["meta_schedule.cooperative_fetch"], []],
        ]
    instructions += [
        ["SampleCategorical", [], [[0, 16, 64, 512, 1024], [0.2] * 5], ["v70"]],
        ["Annotate", ["b1", "v70"], ["meta_schedule.unroll_explicit"], []],
        ["EnterPostproc", [], [], []],
    ]
    sampled = [n for n, one in enumerate(instructions) if one[0].startswith("Sample")]
    decided = [[1, 32, 16, 2, 1], [32, 1, 2, 16, 1], [512, 2, 1], 3, 0, 4]
    return split_trace(instructions, [list(pair) for pair in zip(sampled, decided, strict=True)])


def test_cuda_trace_has_columns_computed_by_hand():
    check(
        cuda_row(),
        {
            **group("device", gpu=1, warp=32),
            **group("cache", local=1, shared=2),
            "steps.bind": 3,
            **group("axes", spatial_levels=5, reduction_levels=3),
            **group("grid", threads_ratio=32 / 1024, warps=1, warp_waste=0),
            **group("fetch", count=2, vector=4, vector_least=1, depth=4),
            "fetch.bytes_ratio": 2112 * 4 / 49152,
            # Rows of 2 and of 32 elements: 1024 sectors that hold 8 bytes, 2 * 4 that are full.
            "fetch.sectors_share": 2112 * 4 / ((1024 + 8) * 32),
            "write.depth": 3,
            "bound.vthread_count": 1,
        },
        logs={
            **group("bound", **{"blockIdx.x": 1 * 32, "threadIdx.x": 16 * 2}),
            **group("bound", vthread=32 * 1, parallel=0),
            **group("grid", blocks=32, threads=32, work_per_thread=1024**3 / 1024),
            **group("grid", output_per_thread=1024**2 / 1024, flops_per_thread=2 * 1024**3 / 1024),
            "unroll.steps": 1024,
            # What a block needs in one step of the first loop of the reduction: 1024 of i, 32 of
            # j and 2 of k. Each of the 32 blocks makes 512 such steps.
            **group("fetch", elements=1024 * 2 + 2 * 32, largest=2048, per_thread=2112 / 32),
            **group("fetch", times=32 * 512, traffic=32 * 512 * 2112, run=2),
            "fetch.reuse": 1024**3 / (32 * 512 * 2112),
            "fetch.repeated": 32 * 512 * 2112 / (2 * 1024**2),
            "write.elements": 2 * 16,
            "nest6.extent": 32,  # vthreads; the eighth group, the blocks, has no columns
        },
    )


def test_warp_execution_adds_32_threads_along_x():
    found = cuda_row(
        ["Annotate", ["b0", 1], ["warp_execution"], []],
        ["Annotate", ["b0", 64], ["meta_schedule.thread_extent_low_inclusive"], []],
        change=lambda attrs: ["threadIdx.y"] if attrs == ["threadIdx.x"] else attrs,
    )
    logs = group("bound", **{"threadIdx.x": 32, "threadIdx.y": 32})
    check(found, {}, logs={**logs, **group("grid", threads=32 * 32, least_threads=64)})


#: The loop in which the CUDA trace fetches its inputs: the outermost one of the reduction.
FETCHES = next(one[1][1] for one in join_trace(cuda_trace())[0] if one[0] == "ComputeAt")


def test_a_software_pipeline_keeps_a_buffer_for_each_stage():
    """TVM's rules fuse the loop of the fetches and give it stages afterwards."""
    for stages, buffers in (([0, 0, 2], 3), ([1, 1, 2], 2), ([0, 2, 2], (3 * 2048 + 64) / 2112)):
        found = cuda_row(
            ["Fuse", ["l51", "l52", FETCHES], [1], ["l90"]],
            ["Annotate", ["l90", stages], ["software_pipeline_stage"], []],
        )
        expected = {
            # Three loops became one; the fetches stay inside it.
            **group("fetch", count=2, depth=2, bytes_ratio=buffers * 2112 * 4 / 49152),
            "pipeline.buffers": max(stages[-1] - stage + 1 for stage in stages[:-1]),
            "write.depth": 2,
        }
        check(found, expected, logs={"fetch.elements": 2112, "pipeline.extent": 32 * 32 * 512})


def test_pipeline_of_other_statements_has_unknown_buffers():
    """Pipelines of tensor cores have more statements; another loop has no fetches."""

    def annotated(loop, stages):
        return cuda_row(["Annotate", [loop, stages], ["software_pipeline_stage"], []])

    expected = {**group("pipeline", extent=0, buffers=0), "fetch.bytes_ratio": 2112 * 4 / 49152}
    cases = [(FETCHES, stages) for stages in ([0, 2], [0, 0, 0, 2], [])]
    for loop, stages in [*cases, ("l52", [0, 0, 2]), ("l52", [0])]:
        check(annotated(loop, stages), expected)
    with pytest.raises(FormatError, match="cannot read a sketch"):
        annotated(FETCHES, 2)


def test_location_columns_follow_compute_location_of_producer():
    """In the outermost loop of the consumer, which runs 4 times over 2 rows and a window of 3."""
    workload = contraction("boxed", {"h": 8, "c": 4}, {"r": 3}, ["h+r", "c"], ["r", "c"], name="C")
    splits, _ = tiled(["l2"], [2])
    instructions = [
        ["GetSBlock", [], ["C", "main"], ["b0"]],
        ["GetSBlock", [], ["pad", "main"], ["b1"]],
        ["GetLoops", ["b0"], [], ["l2", "l3", "l4"]],
        *splits,
        ["SampleComputeLocation", ["b1"], [], ["l9"]],
        ["ComputeAt", ["b1", "l9"], [1, -1], []],
    ]
    whole = (8 + 2) * 4 + 3 * 4
    for place, logs in (
        (0, {"outer": 4, "elements": (2 + 2) * 4 + 3 * 4, "repeated": 4 * 28 / whole}),
        (-1, {"outer": 1, "repeated": 0}),
        (-2, {"elements": 0, "repeated": 0}),
        (99, {"repeated": 0}),
    ):
        found = row(workload, LLVM, split_trace(instructions, [[3, [4, 2]], [5, place]]))
        expected = {"location0": place + 3, "location.total": place + 3, "location1": 0}
        check(found, expected, logs=group("location", **logs))


def test_literal_factors_of_splits_are_lengths():
    """A split by a number, and one whose outer length follows from the others."""
    instructions = [
        ["GetSBlock", [], ["C", "main"], ["b0"]],
        ["GetLoops", ["b0"], [], ["l1", "l2", "l3"]],
        ["Fuse", ["l1", "l2"], [1], ["l4"]],
        ["Split", ["l4", "None", 100], [1, 0], ["l5", "l6"]],
        ["Bind", ["l5"], ["blockIdx.x"], []],
        ["Bind", ["l6"], ["threadIdx.x"], []],
    ]
    check(
        row(matmul(), CUDA, split_trace(instructions, [])),
        {"axes.spatial": 1, "grid.warps": 4, "grid.warp_waste": 28 / 100},
        logs={
            **group("grid", blocks=164, threads=100),  # 16384 / 100, rounded up
            **group("spatial0", extent=128 * 128, level0=100),
            "reduction0.extent": 128,
        },
    )


# ---- auto_scheduler -----------------------------------------------------------------------------

CONV = b'["conv2d_layer",128,1008,21,21,168,1,1,1,"SAME"]'
CONV_STEPS = orjson.loads(
    '[["CHW",3,"local"],["SP",3,0,128,[1,8,1,1],1],["SP",3,5,168,[2,1,84,1],1],'
    '["SP",3,10,21,[1,7,3,1],1],["SP",3,15,21,[1,1,1,3],1],["SP",3,20,1008,[1,6],1],'
    '["SP",3,23,1,[1,1],1],["SP",3,26,1,[1,1],1],'
    '["RE",3,[0,5,10,15,1,6,11,16,2,7,12,17,20,23,26,21,24,27,3,8,13,18,22,25,28,4,9,14,19]],'
    '["FSP",4,0,1,3],["FSP",4,4,2,3],["FSP",4,8,3,3],["FSP",4,12,4,3],'
    '["RE",4,[0,4,8,12,1,5,9,13,2,6,10,14,3,7,11,15]],["CA",3,4,11],["CHR",2,"shared",[3]],'
    '["CA",3,4,14],["CHR",1,"shared",[4]],["CA",2,5,14],["CI",1],["FU",6,[0,1,2,3]],["AN",6,0,5],'
    '["FU",6,[1,2,3,4]],["AN",6,1,4],["FU",6,[2,3,4,5]],["AN",6,2,6],["FU",4,[0,1,2,3]],'
    '["SP",4,0,504,[1],1],["AN",4,1,2],["FFSP",4,0,[4,3,2,1],1,1],["AN",4,1,6],'
    '["FU",2,[0,1,2,3]],["SP",2,0,18,[1],1],["AN",2,1,2],["FFSP",2,0,[4,3,2,1],1,1],["AN",2,1,6],'
    '["PR",5,0,"auto_unroll_max_step$512"]]'
)


def test_ansor_record_has_columns_computed_by_hand():
    """The first record of a public log (nnfusion, V100): a 1x1 convolution with four axes."""
    blocks, threads = 16 * 1 * 1 * 7, 8 * 1 * 7 * 1
    check(
        ansor_row(CONV_STEPS),
        {
            **{"tool.ansor": 1, "family.conv": 1},
            **group("steps", total=len(CONV_STEPS), split=9 + 4 + 2, fuse=5, cache_read=2),
            **group("cache", shared=2, local=1),
            **group("axes", spatial=4, reduction=3),
            "spatial2.inner_ratio": 1,
            "spatial3.inner_ratio": 8 / 128,
            **group("grid", warps=2, warp_waste=64 / 56 - 1),
            **group("fetch", count=2, vector=1, depth=15),
            "write.depth": 12,
            **group("inner", contiguous=1, broadcast=1),  # the kernel
        },
        logs={
            "task.flops": 2 * 128 * 168 * 21 * 21 * 1008,
            **group("spatial0", extent=21, level0=3, level4=7),
            **{"spatial1.level1": 3, "spatial2.level1": 84, "spatial3.level4": 16},
            **group("reduction2", extent=1008, level0=6, level2=168),
            **group("bound", **{"blockIdx.x": blocks, "vthread": 2, "threadIdx.x": threads}),
            **group("grid", blocks=blocks, threads=threads),
            "grid.work_per_thread": 128 * 168 * 21 * 21 * 1008 / (blocks * threads),
            # A step of the reduction takes 6 channels: 8 images of 21 rows and 3 columns, and 168
            # kernels. The log's 504 and 18 are those of neither this program nor one thread's tile.
            "fetch.elements": 6 * (8 * 21 * 3 + 168),
            "fetch.largest": 6 * 8 * 21 * 3,
            "fetch.times": blocks * 168,
            "fetch.traffic": blocks * 168 * 6 * (8 * 21 * 3 + 168),
            "fetch.repeated": 16 * 7 * 168 * 4032 / (128 * 1008 * 21 * 21 + 168 * 1008),
            "fetch.run": 1,  # the kernel's, which is of one place; 3 of the input
            "unroll.steps": 512,
            "write.elements": 84 * 3 * 3,
            # The innermost tiles: n 1, c 1, h 1, w 3, and of the input 3 places, of the kernel 1.
            **group("nest0", output=3, input=3 + 1),
        },
    )


def test_extents_of_cache_stages_are_ignored():
    """In five of six records these extents do not fit the tiles."""
    changed = [[7 if field in (504, 18) else field for field in step] for step in CONV_STEPS]
    assert changed != CONV_STEPS
    assert ansor_row(changed) == ansor_row(CONV_STEPS)


def test_unknown_operators_have_no_fetch_sizes():
    found = ansor_row(CONV_STEPS, b'["secret_layer",1]')
    assert (found["fetch.count"], found["fetch.depth"]) == (2, 15)
    names = ("elements", "largest", "per_thread", "bytes_ratio", "times", "traffic", "run")
    assert not any(found[f"fetch.{name}"] for name in names)


def test_unknown_split_length_gives_0():
    found = ansor_row([["SP", 0, 0, 64, [None, 4], 1], ["AN", 0, 0, 3]], b'["x"]', LLVM)
    check(
        found,
        {"steps.split": 1, "bound.parallel": 0, "bound.parallel_count": 1},
        logs=group("spatial0", extent=64, level0=4, level1=0),
    )


# ---- AutoTVM ------------------------------------------------------------------------------------

DENSE = (
    b'["dense_large_batch.gpu",[["TENSOR",[65536,1024],"float32"],'
    b'["TENSOR",[1024,512],"float32"]],{}]'
)


def test_autotvm_record_has_columns_computed_by_hand():
    task = DENSE.replace(b"[1024,512]", b"[512,1024]")
    entity = [
        ["tile_x", "sp", [-1, 2, 1, 2048]],
        ["tile_y", "sp", [-1, 2, 2, 64]],
        ["tile_k", "sp", [-1, 32, 2]],
        ["ann", "an", ["unroll", "vec"]],
        ["auto_unroll_max_step", "ot", 1500],
        ["unroll_explicit", "ot", 1],
        ["free", "ot", 7],
    ]
    trace = split_knobs(entity, {"index": 5, "code_hash": None})
    check(
        row(Workload(WorkloadFormat.AUTOTVM, task), CUDA, trace),
        {
            **{"tool.autotvm": 1, "family.matmul": 1},
            **group("steps", tile=3, knob=3, annotate=1),
            "knob.annotations": 1 + 2,
            "unroll.explicit": 1,
            **group("axes", spatial=2, reduction=1),
            "spatial1.inner_ratio": 4096 / 65536,  # tile_x is the batch
            "spatial0.inner_ratio": 256 / 512,
        },
        logs={
            # -1 in the log: 65536 / (2 * 1 * 2048)
            **group("spatial1", extent=65536, level3=16),
            **group("spatial0", extent=512, level3=2),
            **group("reduction0", extent=1024, level2=16),
            **group("bound", **{"blockIdx.x": 16 * 2, "vthread": 2 * 2, "threadIdx.x": 1 * 2}),
            **group("grid", blocks=32, threads=2),
            "tile.inner_work": 2048 * 64 * 2,
            **group("nest0", output=2048 * 64, input=2048 + 64),
            "nest1.input": (2048 + 64) * 2,
            "unroll.steps": 1500,
            "knob.greatest": 7,
        },
    )


def test_knobs_of_unknown_task_give_lengths_without_bindings():
    entity = [["tile_q", "sp", [-1, 8]], ["tile_z", "sp", [4, 8]], ["ax", "re", [1, 0]]]
    trace = split_knobs(entity, {"index": 1})
    check(
        row(Workload(WorkloadFormat.AUTOTVM, b'["mine",[],{}]'), LLVM, trace),
        {"axes.spatial": 2, "steps.reorder": 1, "bound.blockIdx.x": 0},
        logs={
            **group("spatial0", extent=32, level1=4, level0=8),
            **group("spatial1", extent=0, level1=0, level0=8),
        },
    )


def test_damaged_programs_do_not_affect_other_programs():
    good = cpu_trace()
    bad = [
        *(replace(good, sketch=sketch) for sketch in (b"{", b"[3]", b'[["Split",3,[],[]]]')),
        *(replace(good, tail=tail) for tail in (b"[[]]", b"no")),
        *(replace(good, decisions=d) for d in (good.decisions[:-1], b"", b"[[],[],[]]")),
        replace(good, sketch=good.sketch[:-1] + b"," * 10),
        Trace(b'[["Fuse",["l1"],[],[{"a":1}]]]', None, b"[[],[],[]]"),
    ]
    programs = [program(matmul(), LLVM, trace) for trace in [good, *bad, good]]
    first, *found, last = Steps().rows(programs)
    assert [type(one) for one in found] == [FormatError] * len(bad)
    assert columns(first) == columns(last)
    damaged, short = (
        Trace(b'{"steps":[["SP",0,0,null,[null],1]]}', None, end) for end in (b"\x80", b"\x04")
    )
    ansor = Workload(WorkloadFormat.ANSOR, CONV)
    knobs = Trace(b'{"knobs":[["a","sp",99999]]}', None, b"[1]")
    others = [
        program(ansor, CUDA, damaged),
        program(ansor, CUDA, short),
        program(Workload(WorkloadFormat.AUTOTVM, DENSE), CUDA, knobs),
        program(Workload("new-format", b"{}"), CUDA, short),
    ]
    rows = STEPS.rows(others)
    assert [type(one) for one in rows] == [FormatError] * 4
    assert "upgrade" in str(rows[3])


def test_unknown_instructions_are_counted():
    trace = Trace(b'[["New",["b9"],[1],["b3"]],["New",[],[],[]]]', None, b"[[],[],[]]")
    check(row(matmul(), LLVM, trace), {"steps.unknown": 2, "steps.total": 2})
    steps = Trace(b'{"steps":[["NEW",1,2]]}', None, b"")
    check(row(Workload(WorkloadFormat.ANSOR, CONV), LLVM, steps), {"steps.unknown": 1})


def test_hostile_decisions_give_bounded_columns():
    for tiles in (
        [[0, 0, 0, 0], [-1, -(2**63), 5, 5], [2**63 - 1] * 2],
        [[2**62] * 4] * 2 + [[1, 1]],
    ):
        found = row(matmul(), LLVM, cpu_trace(tiles, unroll=2**40))
        assert max(map(abs, found.values())) < 1e31


def test_hostile_sketches_are_rejected():
    block = ["GetSBlock", [], ["C", "main"], ["b0"]]
    many = [block, ["GetLoops", ["b0"], [], [f"l{n}" for n in range(300)]]]
    wide = [block, ["GetLoops", ["b0"], [], ["l0"]]]
    wide += [
        ["Split", [f"l{n}", *[2] * 60], [1, 0], [f"l{60 * n + m}" for m in range(1, 61)]]
        for n in range(30)
    ]
    deep = [["Annotate", ["b0", [[[[[]]]]]], ["x"], []]] * 3000
    blocks = [["GetConsumers", ["b0"], [], [f"b{n}" for n in range(1000)]]]
    for instructions in (many, wide, deep, blocks):
        with pytest.raises(FormatError):
            row(matmul(), LLVM, split_trace(instructions, []))
    for step in (
        *(["FU", 0, [2**62]], ["SP", 0, 1, 2, [2] * 1000, 1], ["CA", 2**40, 0, 0]),
        *(["FSP", 0, 0, 0, 1], ["FFSP", 0, 0, [7], 0, 1], ["RE", 0, [0, 0]]),
        ["CHR", 5000, "shared", []],
    ):
        with pytest.raises(FormatError):
            ansor_row([step])


def test_rows_depend_on_content_and_not_on_ids():
    """Different programs of two databases may have equal ids."""
    own = Steps()

    def computed(*args):
        return columns(own.rows([program(*args)])[0])

    first = computed(matmul(), LLVM, cpu_trace())
    assert computed(matmul(1024, 1024, 1024), CUDA, cuda_trace())["device.gpu"] == 1
    other = computed(matmul(256), LLVM, cpu_trace())
    assert other["spatial1.extent"] == pytest.approx(math.log2(257))
    assert computed(matmul(), LLVM, cpu_trace()) == first


def test_the_cache_of_formulas_is_bounded(monkeypatch):
    monkeypatch.setattr("tunedb.features.steps._MOST_KEY_BYTES", 20_000)
    own = Steps()
    for number in range(40):
        trace = split_steps([["AN", 0, number, 3], *[["CI", 1]] * 300], None)
        (found,) = own.rows([program(Workload("ansor-key", CONV), LLVM, trace)])
        assert not isinstance(found, Exception)
        assert len(own._formulas) < 10


def test_workloads_that_differ_in_extents_share_a_formula():
    own = Steps()
    for extent in (128, 256, 512):
        own.rows([program(matmul(extent), LLVM, cpu_trace())])
    assert len(own._formulas) == 1
    assert len(own._tasks) == 3

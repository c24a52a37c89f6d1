import math

import numpy as np

from tunedb.advisor.observations import Inputs, Observation
from tunedb.features.ansor import NAMES
from tunedb.formats.gpu.kernels import gpu_target, kernel_workload
from tunedb.launches import CounterSet, Launch
from tunedb.programs.kernel import split_parameters
from tunedb.programs.metaschedule.trace import split_trace
from tunedb.records import Measurement, Program, Status

#: Real files with all runs of KTT with counters on one RTX 2080 Ti; not part of the project.
PROFILED = ("coulomb_2080_full_search_space", "KTConvolutionOutput_2080Ti", "KTPnpolyOutput_2080Ti")

NCU = CounterSet("ncu", None, "7.5", (("smsp__inst_executed.sum", "inst"),))


def observe(threads=256, seconds=1.0, *, slice=b"a", **fields):
    """Return an observation; a block gives its threads."""
    if "block" in fields and fields["block"] is not None:
        threads = math.prod(fields["block"])
    known = {
        "record": 1,
        "launch": 1,
        "kernel": "k",
        "workload": "k",
        "device": "NVIDIA GeForce RTX 2080 Ti",
        "compute_capability": "7.5",
        "block": (threads, 1, 1),
        "grid": None,
        "registers": None,
        "static_shared": None,
        "dynamic_shared": None,
    }
    return Observation(slice=slice, threads=threads, seconds=seconds, **{**known, **fields})


def measure(parameters, secs, block, **fields):
    """Return a measurement of a kernel with one launch, or with `launches`."""
    kernel = fields.pop("kernel", "scale")
    target = gpu_target("cuda", fields.pop("device", "NVIDIA GeForce RTX 2080 Ti"))
    launch = {"kernel": kernel, **fields.pop("launch", {})}
    fields.setdefault("launches", (Launch(threads=math.prod(block), block=block, **launch),))
    return Measurement(
        Program(kernel_workload(kernel), target, split_parameters(parameters)),
        None if secs is None else tuple(secs),
        fields.pop("status", Status.OK),
        context=b'{"log":"%s"}' % fields.pop("log", "ktt").encode(),
        **fields,
    )


def blocks_of_kernels(*kernels, **fields):
    """Return measurements of kernels with six blocks each, of which 128 threads are the best."""
    rows = []
    for n, kernel in enumerate(kernels):
        for tile in range(4):
            for threads in (32, 64, 128, 256, 512, 1024):
                apart = abs(math.log2(threads / 128)) * 0.2
                launch = {"registers": 32, "static_shared": 0, "grid": (4096, 1, 1)}
                launch |= {"counter_set": NCU, "values": (1e6 + n + threads,)}
                parameters = {"block_size_x": threads, "tile": tile}
                seconds = [1e-3 * (tile + 1) * math.exp(apart)]
                made = fields | {"kernel": kernel, "launch": launch}
                rows.append(measure(parameters, seconds, (threads, 1, 1), **made))
    return rows


def counted(value=1.0):
    """Return the fields of a launch with one counter."""
    return {"counter_set": NCU, "values": (value,)}


def inputs(**columns):
    """Return inputs with some columns."""
    return Inputs(tuple(columns), np.array(list(columns.values()), float).T)


def ansor_rows(*kernels, gpu=1.0):
    """Return a row of Ansor's features for each pair of extents of threads and of blocks."""
    made = np.zeros((len(kernels), len(NAMES)), np.float32)
    made[:, NAMES.index("is_gpu")] = gpu
    for row, (threads, blocks) in zip(made, kernels, strict=True):
        for kind, extents in (("threadIdx", threads), ("blockIdx", blocks)):
            for axis, extent in zip("xyz", extents, strict=True):
                row[NAMES.index(f"{kind}_{axis}_len")] = np.log2(extent + 1)
    return made


def elementwise(threads, tile=4, unroll=16):
    """Return a trace as MetaSchedule makes for a GPU: tiles fused, split and bound."""
    instructions = [
        ["GetSBlock", [], ["T", "main"], ["b0"]],
        ["GetLoops", ["b0"], [], ["l1", "l2"]],
        ["SamplePerfectTile", ["l2"], [3, 64], ["v3", "v4", "v5"]],
        ["Split", ["l2", "v3", "v4", "v5"], [1, 0], ["l6", "l7", "l8"]],
        ["Fuse", ["l1", "l6"], [1], ["l9"]],
        ["Bind", ["l9"], ["blockIdx.x"], []],
        ["SampleCategorical", [], [[32, 64, 128], [0.3, 0.3, 0.4]], ["v10"]],
        ["Split", ["l7", None, "v10", 2], [1, 0], ["l11", "l12", "l13"]],
        ["Bind", ["l12"], ["threadIdx.x"], []],
        ["Bind", ["l13"], ["vthread.x"], []],
        ["SampleCategorical", [], [[0, 16], [0.5, 0.5]], ["v14"]],
        ["Annotate", ["b0", "v14"], ["pragma_auto_unroll_max_step"], []],
        ["EnterPostproc", [], [], []],
        ["Split", ["l8", None, threads], [1, 0], ["l15", "l16"]],
        ["SampleCategorical", [], [[1, 2], [0.5, 0.5]], ["v17"]],
    ]
    choice = {32: 0, 64: 1, 128: 2}[threads]
    decisions = [[2, [256 // tile, 1, tile]], [6, choice], [10, unroll // 16], [14, choice % 2]]
    return split_trace(instructions, decisions)

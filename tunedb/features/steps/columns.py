"""The columns of the feature set ``steps``.

Programs of all tools have all columns, so that one model serves all tools. Extents, sizes and
counts of operations are ``log2(1 + x)``; ratios, flags and counts of steps are unscaled. 0 stands
for missing and unknown values.

Spatial axes and tile levels are numbered from the innermost one, because the innermost levels have
the same meaning in schedules of three and of five levels.
"""

from __future__ import annotations

TOOLS = ("metaschedule", "ansor", "autotvm")

#: Operator families (:mod:`tunedb.programs.workload_info.families`) without the number of
#: dimensions.
FAMILIES = (
    "attention",
    "conv",
    "conv_winograd",
    "conv_transpose",
    "depthwise_conv",
    "group_conv",
    "sparse_dense",
    "batch_matmul",
    "matmul",
    "softmax",
    "normalization",
    "pooling",
    "reduction",
    "elementwise",
    "data_movement",
)

#: Facts of a target: ``gpu`` is 0 or 1, ``lanes`` the float32 numbers of a vector register.
DEVICE = ("gpu", "cores", "lanes", "threads", "warp", "shared_bytes", "registers")

#: Facts of a workload besides its tool and family.
_SIZES = ("flops", "bytes", "largest_bytes", "last_bytes", "arguments", "intensity", "element_bits")

#: All facts of a workload, by the names of their columns.
TASK = (
    *(f"tool.{name}" for name in TOOLS),
    *(f"family.{name}" for name in FAMILIES),
    *(f"task.{name}" for name in _SIZES),
)

#: Facts of a trace's tail: the effects of MetaSchedule's postprocessors.
TAIL = (
    "instructions",
    "blocks",
    "loops",  # of the deepest block
    "all_loops",  # of all blocks
    "parallel_loops",  # fused into the parallel loop of the deepest parallel block
    "parallel",  # blocks that have a parallel loop
    "vectorize",
    "vector_loops",  # most that were fused into one vector loop
    "inner_vector_loops",  # those of the deepest block
    "unroll",  # blocks with a pragma to unroll
    "bind",
    "split",
    "decompose",
    "decompose_depth",  # deepest, in loops
    "decompose_depths",  # of all, summed
    "tensorize",
)

#: Number of further facts of a tail: per depth of a block, its loops fused into a vector loop.
TAIL_DEPTHS = 32

#: Kinds of steps, under one name for all tools.
COUNTS = (
    "split",
    "fuse",
    "reorder",
    "annotate",
    "pragma",
    "bind",
    "cache_read",
    "cache_write",
    "compute_at",
    "reverse_compute_at",
    "compute_inline",
    "rfactor",
    "storage_align",
    "layout",
    "tensorize",
    "decompose",
    "tile",  # sampled tiles
    "category",  # sampled categories
    "location",  # sampled places
    "knob",  # AutoTVM's "other"
    "unknown",
)

SCOPES = ("global", "local", "shared", "matrix", "other")

#: Bindings and annotations of loops, over all stages.
BINDINGS = (
    "blockIdx.x",
    "blockIdx.y",
    "blockIdx.z",
    "threadIdx.x",
    "threadIdx.y",
    "threadIdx.z",
    "vthread",
    "parallel",
    "vectorize",
    "unroll",
)

SPATIAL_AXES, SPATIAL_LEVELS = 4, 5
REDUCTION_AXES, REDUCTION_LEVELS = 3, 3
GROUPS = 7
LOCATIONS = 6


def _axes(kind: str, axes: int, levels: int) -> tuple[str, ...]:
    names = []
    for axis in range(axes):
        names.append(f"{kind}{axis}.extent")
        names += [f"{kind}{axis}.level{level}" for level in range(levels)]
        names += [f"{kind}{axis}.inner", f"{kind}{axis}.inner_ratio"]
    return tuple(names)


def _levels(kind: str, levels: int) -> tuple[str, ...]:
    names = []
    for level in range(levels):
        names += [f"tile.{kind}.level{level}", f"tile.{kind}.inner{level}"]
        names += [f"tile.{kind}.ratio{level}"]
    return tuple(names)


_GROUP = ("extent", "outer", "work", "output", "input", "bytes", "intensity")

COLUMNS = (
    *TASK,
    *(f"device.{name}" for name in DEVICE),
    "steps.total",
    *(f"steps.{name}" for name in COUNTS),
    *(f"cache.{name}" for name in SCOPES),
    *(f"tail.{name}" for name in TAIL),
    "axes.spatial",
    "axes.reduction",
    "axes.spatial_levels",
    "axes.reduction_levels",
    "axes.output",
    "axes.reduced",
    *_axes("spatial", SPATIAL_AXES, SPATIAL_LEVELS),
    *_axes("reduction", REDUCTION_AXES, REDUCTION_LEVELS),
    *_levels("spatial", SPATIAL_LEVELS),
    *_levels("reduction", REDUCTION_LEVELS),
    "tile.squareness",
    "tile.inner_work",
    *(f"nest{group}.{name}" for group in range(GROUPS) for name in _GROUP),
    "inner.extent",
    "inner.is_reduction",
    "inner.lanes_ratio",
    "inner.lanes_waste",
    "inner.odd",
    "inner.contiguous",
    "inner.broadcast",
    "inner.strided",
    "inner.groups",
    "inner.writes_contiguous",
    *(f"bound.{name}" for name in BINDINGS),
    *(f"bound.{name}_count" for name in ("vthread", "parallel", "vectorize", "unroll")),
    "grid.blocks",
    "grid.threads",
    "grid.least_threads",
    "grid.vthreads",
    "grid.threads_ratio",
    "grid.warps",
    "grid.warp_waste",
    "grid.work_per_thread",
    "grid.output_per_thread",
    "grid.flops_per_thread",
    "parallel.extent",
    "parallel.per_core",
    "parallel.waste",
    "parallel.limit",
    "parallel.flops",
    "vector.limit",
    "vector.extent",
    "vector.lanes_ratio",
    "vector.odd",
    "unroll.steps",
    "unroll.explicit",
    "unroll.covers",
    "unroll.copies",
    "fetch.count",
    "fetch.elements",
    "fetch.largest",
    "fetch.bytes_ratio",
    "fetch.per_thread",
    "fetch.vector",
    "fetch.vector_least",
    "fetch.depth",
    "fetch.times",
    "fetch.traffic",
    "fetch.reuse",
    "fetch.repeated",
    "fetch.run",
    "fetch.sectors_share",
    "pipeline.extent",
    "pipeline.buffers",
    "write.count",
    "write.depth",
    "write.elements",
    "location.greatest",
    "location.least",
    "location.total",
    "location.outer",
    "location.elements",
    "location.repeated",
    *(f"location{number}" for number in range(LOCATIONS)),
    "factored.extent",
    "factored.is_inner",
    "others.count",
    "others.inner",
    "others.inner_least",
    "others.outer",
    "knob.greatest",
    "knob.total",
    "knob.annotations",
)

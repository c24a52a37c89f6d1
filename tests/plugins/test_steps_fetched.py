"""Elements that cache stages of a GPU fetch: features of steps equal TVM's schedules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te
from tvm.s_tir import meta_schedule
from tvm.s_tir.meta_schedule.testing import te_workload

from tunedb.features.steps import STEPS
from tunedb.features.steps.columns import COLUMNS
from tunedb.plugins.metaschedule import modules, trace_codec
from tunedb.programs.workload_info import signature_of
from tunedb.results import StoredProgram

SHARED_BYTES = 49152
LIMITS = {"max_threads_per_block": 1024, "max_shared_memory_per_block": SHARED_BYTES}
#: An architecture that pipelines some of its sketches.
TARGET = tvm.target.Target({"kind": "cuda", "arch": "sm_80", "thread_warp_size": 32, **LIMITS})
WORKLOADS = {
    "matmul": lambda: te_workload.matmul(128, 256, 512),
    "batch_matmul": lambda: te_workload.batch_matmul_nkkm(4, 64, 128, 32),
    # Their index of the input's channel has a division by the size of a group, which is always 0.
    "conv2d_nhwc": lambda: te_workload.conv2d_nhwc(1, 28, 28, 32, 64, 3, 2, 1),
    "conv2d_nchw": lambda: te_workload.conv2d_nchw(1, 28, 28, 32, 64, 3, 3, 1, 1),
    "dilated": lambda: te_workload.conv2d_nhwc(1, 28, 28, 16, 32, 3, 1, 2, 2),
    "depthwise": lambda: te_workload.depthwise_conv2d_nhwc(1, 28, 28, 32, 3, 2, 1),
}


def schedules(mod: Any) -> Iterator[Any]:
    """Yield programs of the rules for CUDA with random tiles."""
    for seed in range(1, 7):
        context = meta_schedule.TuneContext(
            **{"mod": mod, "target": TARGET, "num_threads": 1, "rand_state": seed},
            space_generator=meta_schedule.space_generator.PostOrderApply(),
        )
        yield from context.generate_design_space()


def fetched(sch: Any) -> list[int]:
    """Return the extents of the fused loops that fill shared memory."""
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    filling = [block for block in blocks if sch.get(block).name_hint.endswith("_shared")]
    return [int(sch.get(sch.get_loops(block)[-1]).extent) for block in filling]


@pytest.mark.parametrize("name", WORKLOADS)
def test_fetch_features_equal_extents_of_tvms_schedules(name: str) -> None:
    function = te.create_prim_func(WORKLOADS[name]()).with_attr("global_symbol", "main")
    mod = tvm.IRModule({"main": function})
    workload = modules.to_workload(mod)
    signature, target = signature_of(workload), modules.to_target(TARGET)
    seen = []
    for sch in schedules(mod):
        sizes = fetched(sch)
        if not sizes:
            continue
        trace = trace_codec.encode(sch.trace)
        found = STEPS.rows([StoredProgram(1, 1, workload, signature, 1, target, 1, None, trace)])
        columns = dict(zip(COLUMNS, np.asarray(found[0])[0].tolist(), strict=True))
        assert 2 ** columns["fetch.elements"] - 1 == pytest.approx(sum(sizes), 1e-5)
        assert 2 ** columns["fetch.largest"] - 1 == pytest.approx(max(sizes), 1e-5)
        buffers = columns["pipeline.buffers"] or 1
        shared = 4 * buffers * sum(sizes)
        assert columns["fetch.bytes_ratio"] == pytest.approx(shared / SHARED_BYTES, 1e-5)
        seen.append(buffers)
    assert len(seen) >= 18
    assert set(seen) == {1, 3, 4}

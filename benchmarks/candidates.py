"""TVM's test workloads by name, and random candidates of them."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import te, tirx
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.testing import te_workload


def dense_relu(n: int, m: int, k: int) -> tuple[Any, ...]:
    """Return a dense layer with bias and ReLU; ``te_workload.matmul_relu`` has no bias."""
    a = te.placeholder((n, k), name="A")
    b = te.placeholder((k, m), name="B")
    bias = te.placeholder((m,), name="bias")
    r = te.reduce_axis((0, k), name="k")
    c = te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="matmul")
    zero = tirx.const(0, "float32")
    d = te.compute((n, m), lambda i, j: tirx.max(c[i, j] + bias[j], zero), name="relu")
    return a, b, bias, d


#: How names begin → what makes the workload of the numbers that follow.
FAMILIES = {
    "bmm": te_workload.batch_matmul_nkkm,
    "capsule": te_workload.conv2d_capsule_nhwijc,
    "cbr": te_workload.conv2d_nhwc_bn_relu,
    "conv1d": te_workload.conv1d_nlc,
    "conv2d": te_workload.conv2d_nhwc,
    "conv3d": te_workload.conv3d_ndhwc,
    "dense_relu": dense_relu,
    "dep": te_workload.depthwise_conv2d_nhwc,
    "matmul": te_workload.matmul,
    "norm": te_workload.norm_bmn,
    "softmax": te_workload.softmax_mn,
    "t2d": te_workload.conv2d_transpose_nhwc,
    "tbg": te_workload.transpose_batch_matmul,
}


def make_module(name: str) -> Any:
    """Return the module of a workload such as ``matmul_32_768_768``.

    Raises
    ------
    SystemExit
        It has no family, or other numbers than its family takes.
    """
    try:
        family = next(family for family in FAMILIES if name.startswith(f"{family}_"))
        numbers = map(int, name[len(family) + 1 :].split("_"))
        return tvm.IRModule({"main": te.create_prim_func(list(FAMILIES[family](*numbers)))})
    except (StopIteration, TypeError, ValueError) as error:
        known = ", ".join(FAMILIES)
        raise SystemExit(f"{name}: not one of {known} with the numbers it takes") from error


def random_candidates(mod: Any, target: Any, number: int, seed: int) -> list[Any]:
    """Return schedules that TVM draws at random from the space of a module.

    They are the candidates of its replay-trace strategy: post-processed, without those that the
    target cannot run. Fewer are returned if drawing fails too often.
    """
    context = ms.TuneContext(
        mod=mod,
        target=target,
        space_generator="post-order-apply",
        search_strategy="replay-trace",
        num_threads=1,
        rand_state=seed,
    )
    context.pre_tuning(number, number, context.generate_design_space())
    found = [candidate.sch for candidate in context.generate_measure_candidates() or ()]
    context.post_tuning()
    return found

"""Random scheduled programs of TVM's own test workloads, and small ones written by hand.

One space generation (10 to 50 ms) gives any number of candidates (1 to 20 ms each). TVM's
``VerifyGPUCode`` is left out: it refuses nine of ten random candidates after lowering them, and
features are defined for those too.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import tvm
from tvm import te, topi
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.testing import te_workload

_GPU = {"kind": "cuda", "max_threads_per_block": 1024, "max_shared_memory_per_block": 49152}
#: Target and schedule rules of each kind of device.
KINDS = {
    "llvm": ({"kind": "llvm", "num-cores": 4, "mcpu": "znver3"}, "llvm"),
    "vnni": ({"kind": "llvm", "num-cores": 4, "mcpu": "cascadelake"}, "vnni"),
    "cuda": ({**_GPU, "arch": "sm_60"}, "cuda"),
    "tensorcore": ({**_GPU, "arch": "sm_80"}, "cuda-tensorcore"),
}


def _function(*tensors: Any) -> Any:
    return te.create_prim_func(list(tensors))


def vnni_dense(n: int = 128) -> Any:
    """A dense layer of 8-bit integers whose weights are packed for VNNI."""
    a = te.placeholder((n, n), name="A", dtype="uint8")
    w = te.placeholder((n // 16, n // 4, 16, 4), name="W", dtype="int8")
    k = te.reduce_axis((0, n), name="k")
    c = te.compute(
        (n, n),
        lambda i, j: te.sum(
            a[i, k].astype("int32") * w[j // 16, k // 4, j % 16, k % 4].astype("int32"), axis=k
        ),
        name="C",
    )
    return _function(a, w, c)


def winograd() -> Any:
    """A Winograd convolution; TVM's te_workload has one that no longer builds."""
    data = te.placeholder((1, 14, 14, 32), name="data")
    weight = te.placeholder((3, 3, 32, 32), name="weight")
    # topi.nn.conv2d is a function that hides its module
    build = importlib.import_module("tvm.topi.nn.conv2d")._conv2d_winograd_nhwc_impl
    return _function(data, weight, build(data, weight, 1, 1, 1, "float32", 4))


def attention(n: int = 64) -> Any:
    """Two matrix products with a softmax between them: many stages."""
    q, k, v = (te.placeholder((4, n, 32), name=name) for name in "QKV")
    scores = topi.nn.batch_matmul(q, k)
    out = topi.nn.batch_matmul(topi.nn.softmax(scores, axis=2), v, transpose_b=False)
    return _function(q, k, v, out)


@contextmanager
def _named_placeholders() -> Iterator[None]:
    """Give placeholders without a name different names.

    TVM orders buffers of equal size and equal name by their address, differently in each run.
    """
    placeholder, numbers = te.placeholder, itertools.count()

    def named(shape: Any, dtype: Any = "float32", name: str | None = None) -> Any:
        return placeholder(shape, dtype, name or f"placeholder{next(numbers)}")

    with mock.patch.object(te, "placeholder", named):
        yield


def _te_workloads() -> dict[str, Callable[[], Any]]:
    def configured(name: str, index: int) -> Callable[[], Any]:
        def build() -> Any:
            with _named_placeholders():
                return te_workload.create_te_workload(name, index)

        return build

    found = {
        f"{name}-{index}": configured(name, index)
        for name, (_, shapes) in te_workload.CONFIGS.items()
        for index in range(len(shapes))
        if name != "C2D_WIN_NHWC"  # "LEGACY-FLOW triggered, to be removed"
    }
    others = {
        "matmul": (te_workload.matmul, (127, 65, 33)),
        "matmul-f16": (te_workload.matmul, (256, 256, 256, "float16", "float32")),
        "matmul-bf16": (te_workload.matmul, (128, 128, 128, "bfloat16", "float32")),
        "matmul-i8": (te_workload.matmul, (256, 256, 256, "int8", "int32")),
        "matmul-relu": (te_workload.matmul_relu, (256, 256, 256)),
        "matmul-relu-f16": (te_workload.matmul_relu, (256, 256, 256, "float16", "float16")),
        "conv2d-nchw": (te_workload.conv2d_nchw, (1, 28, 28, 64, 64, 3, 3, 1, 1)),
        "conv2d-nchw-bn": (te_workload.conv2d_nchw_bias_bn_relu, (1, 28, 28, 64, 64, 3, 3, 1, 1)),
        "conv2d-f16": (
            te_workload.conv2d_nhwc,
            (1, 28, 28, 64, 64, 3, 1, 1, 1, 1, "float16", "float32"),
        ),
        "max-pool": (te_workload.max_pool2d_nchw, (1, 28, 28, 64, 1)),
    }

    def plain(function: Callable[..., Any], shape: tuple[Any, ...]) -> Callable[[], Any]:
        return lambda: _function(*function(*shape))

    return found | {name: plain(*what) for name, what in others.items()}


#: Name → function that builds it.
WORKLOADS: dict[str, Callable[[], Any]] = _te_workloads() | {
    "vnni-dense": vnni_dense,
    "winograd": winograd,
    "attention": attention,
}
#: TVM's CrossThreadReduction ends in "Index 3 out of bounds" where these have been tiled.
_INDEX_ERRORS = ("winograd", "attention")


def context(
    mod: Any, kind: str, seed: int = 1, *, num_threads: int = 1, without: Sequence[str] = ()
) -> Any:
    """Return a tuning context that samples a workload's space at random.

    `without` names classes of schedule rules.
    """
    target, rules = KINDS[kind]
    rule_list = _vnni_rules() if rules == "vnni" else list(ms.ScheduleRule.create(rules))
    postprocs = [
        one
        for one in ms.postproc.Postproc.create("llvm" if rules == "vnni" else rules)
        if not isinstance(one, ms.postproc.VerifyGPUCode)
    ]
    space = ms.space_generator.PostOrderApply(
        sch_rules=[one for one in rule_list if type(one).__name__ not in without],
        postprocs=[*postprocs, *([ms.postproc.RewriteTensorize()] if rules == "vnni" else [])],
        mutator_probs={},
    )
    return ms.TuneContext(
        mod=mod,
        target=tvm.target.Target(target),
        space_generator=space,
        search_strategy=ms.search_strategy.ReplayTrace(max_fail_count=20),
        num_threads=num_threads,
        rand_state=seed,
    )


def _vnni_rules() -> list[Any]:
    tiling = ms.schedule_rule.MultiLevelTilingWithIntrin(
        "dot_16x4_vnni",
        structure="SSRSRS",
        max_innermost_factor=64,
        reuse_write=ms.schedule_rule.ReuseType(req="may", levels=[1, 2], scope="global"),
    )
    rules = list(ms.ScheduleRule.create("llvm"))
    at = [isinstance(one, ms.schedule_rule.MultiLevelTiling) for one in rules].index(True)
    return [*rules[:at], tiling, *rules[at:]]


def sample(name: str, kind: str, count: int, seed: int = 1) -> tuple[Any, list[Any]]:
    """Return a context and up to `count` random candidates of a workload."""
    without = ["CrossThreadReduction"] if name in _INDEX_ERRORS else []
    made = context(tvm.IRModule({"main": WORKLOADS[name]()}), kind, seed, without=without)
    made.pre_tuning(count, count, made.generate_design_space())
    found = list(made.generate_measure_candidates() or [])
    made.post_tuning()
    return made, found


def candidate(mod: Any) -> Any:
    """Return a module as a candidate that needs no schedule."""
    return ms.MeasureCandidate(Schedule(mod, debug_mask="none", enable_check=False), [])


def per_store(made: Any, candidates: list[Any], **options: Any) -> list[Any]:
    """Return what TVM's own extractor makes of candidates."""
    extractor = ms.feature_extractor.PerStoreFeature(**options)
    return [found.numpy() for found in extractor.extract_from(made, candidates)]

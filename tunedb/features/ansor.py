"""Ansor's features, a row for each stored buffer (docs/features.md, "ansor.per_store").

Two feature sets: ``ansor.per_store/tvm`` has the values of TVM 0.27's ``PerStoreFeature``
(``src/s_tir/meta_schedule/feature_extractor/per_store_feature.cc``), ``ansor.per_store/ansor``
those that Ansor describes ("Ansor: Generating High-Performance Tensor Programs for Deep
Learning", OSDI 2020, and ``src/auto_scheduler/feature.cc`` of TVM 0.8 to 0.19). Both read a
program as TVM lowers it for its own extractor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from . import _per_store
from .base import Needs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ._nest import Nest

#: Buffers with columns of their own, samples of the curve of arithmetic intensity, and bytes of a
#: cache line, by default.
BUFFERS_PER_STORE, CURVE_SAMPLES, CACHE_LINE = 5, 10, 64

_OPERATIONS = ("mad", "addsub", "mul", "divmod", "cmp", "mathfunc", "otherfunc")
_POSITIONS = (
    *("kPosNone", "kPosInnerSpatial", "kPosMiddleSpatial", "kPosOuterSpatial"),
    *("kPosInnerReduce", "kPosMiddleReduce", "kPosOuterReduce", "kPosMixed"),
)
_THREADS = (
    *("blockIdx_x_len", "blockIdx_y_len", "blockIdx_z_len"),
    *("threadIdx_x_len", "threadIdx_y_len", "threadIdx_z_len", "vthread_len"),
)
_ACCESS = (
    *("acc_type.kRead", "acc_type.kWrite", "acc_type.kReadWrite"),
    *("bytes", "unique_bytes", "lines", "unique_lines"),
    *("reuse_type.kLoopMultipleRead", "reuse_type.kSerialMultipleReadWrite"),
    *("reuse_type.kNoReuse", "reuse_dis_iter", "reuse_dis_bytes", "reuse_ct"),
    *("bytes_d_reuse_ct", "unique_bytes_d_reuse_ct"),
    *("lines_d_reuse_ct", "unique_lines_d_reuse_ct", "stride"),
)
_SCOPE = (
    *("alloc_size", "alloc_prod", "alloc_outer_prod", "alloc_inner_prod"),
    *("outer_prod", "num_loops", "auto_unroll_max_step"),
)
#: Words in a block's name that identify the workload; the first match counts.
_WORKLOADS = (
    ("softmax", ("softmax",)),
    ("max_min", ("max", "min")),
    ("add", ("add",)),
    ("batch_matmul", ("batch_matmul",)),
    ("matmul", ("matmul",)),
    ("depthwiseconv2d", ("depthwiseconv2d",)),
    ("conv2d_winograd", ("conv2d_winograd",)),
    ("conv2d", ("conv2d",)),
)


@cache
def per_store_names(
    buffers_per_store: int = BUFFERS_PER_STORE,
    curve_samples: int = CURVE_SAMPLES,
    workload: bool = False,
) -> tuple[str, ...]:
    """Return the names of the columns in their order, as Ansor calls them.

    Parameters
    ----------
    buffers_per_store, curve_samples : int, optional
        The options of the features.
    workload : bool, optional
        Whether the eight columns of `workload_embedding` follow.

    Returns
    -------
    tuple of str
        164 names with the default options.
    """
    kinds = (
        f"{kind}_{column}"
        for kind in ("vec", "unroll", "parallel")
        for column in ("num", "prod", "len", *(f"type.{name}" for name in _POSITIONS))
    )
    return (
        *(f"{dtype}_{name}" for dtype in ("float", "int") for name in _OPERATIONS),
        *("bool_op", "select_op"),
        *kinds,
        *("is_gpu", *_THREADS),
        *(f"B{i}.{name}" for i in range(buffers_per_store) for name in _ACCESS),
        *(f"arith_intensity_curve_{i}" for i in range(curve_samples)),
        *_SCOPE,
        *(f"workload.{name}" for name, _ in _WORKLOADS if workload),
    )


#: Names of the 164 columns.
NAMES = per_store_names()


def per_store_tvm(
    nest: Nest,
    *,
    gpu: bool,
    buffers_per_store: int = BUFFERS_PER_STORE,
    curve_samples: int = CURVE_SAMPLES,
    cache_line: int = CACHE_LINE,
) -> NDArray[np.float64]:
    """Return the features that TVM's ``PerStoreFeature`` computes.

    Parameters
    ----------
    nest : Nest
        A program as TVM lowers it for its extractor.
    gpu : bool
        Whether the target is a GPU (``gpu`` is among its keys).
    buffers_per_store, curve_samples : int, optional
        Numbers of buffers and of samples that have columns, 0 to 1000.
    cache_line : int, optional
        Bytes of a cache line.

    Returns
    -------
    ndarray of float64, (buffers stored, columns)
        Rows in the order of the first stores; stores of constants are skipped.

    Raises
    ------
    UsageError
        An option is out of range.
    FormatError, LimitError
        The program cannot be measured; the message says why.
    """
    return _per_store.per_store(
        nest,
        flavour="tvm",
        gpu=gpu,
        buffers_per_store=buffers_per_store,
        curve_samples=curve_samples,
        cache_line=cache_line,
    )


def per_store_ansor(
    nest: Nest,
    *,
    gpu: bool,
    buffers_per_store: int = BUFFERS_PER_STORE,
    curve_samples: int = CURVE_SAMPLES,
    cache_line: int = CACHE_LINE,
) -> NDArray[np.float64]:
    """Return the features that Ansor describes.

    Parameters and errors are those of `per_store_tvm`.

    Returns
    -------
    ndarray of float64, (buffers stored or allocated, columns)
        Rows in the order of the first stores, then buffers that are only allocated, in the order of
        the program, with values in the columns of their allocation alone.
    """
    return _per_store.per_store(
        nest,
        flavour="ansor",
        gpu=gpu,
        buffers_per_store=buffers_per_store,
        curve_samples=curve_samples,
        cache_line=cache_line,
    )


def workload_embedding(names: Sequence[str]) -> NDArray[np.float64]:
    """Return the workload embedding from the names of a module's blocks.

    Parameters
    ----------
    names : sequence of str
        Names of all blocks of the module before it was scheduled.

    Returns
    -------
    ndarray of float64, (8,)
        1 for each kind of block in the module: softmax, max or min, add, batch_matmul, matmul,
        depthwiseconv2d, conv2d_winograd and conv2d. A block has the first kind whose word is in its
        name in lower case (group 6 of TVM's ``PerStoreFeature``).
    """
    found = np.zeros(len(_WORKLOADS))
    for name in names:
        low = name.lower()
        for i, (_, words) in enumerate(_WORKLOADS):
            if any(word in low for word in words):
                found[i] = 1.0
                break
    return found


@dataclass(frozen=True, slots=True)
class PerStoreSet:
    """One of the two feature sets, with its options.

    Parameters
    ----------
    flavour : {"tvm", "ansor"}
        The definitions.
    buffers_per_store, curve_samples, cache_line : int, optional
        As for `per_store_tvm`.
    """

    flavour: str
    buffers_per_store: int = BUFFERS_PER_STORE
    curve_samples: int = CURVE_SAMPLES
    cache_line: int = CACHE_LINE

    #: Kind of program from which the rows are computed.
    needs = Needs.LOWERED
    #: Changes whenever a value may change, other than by the release of TVM (docs/features.md).
    version = 1

    @property
    def name(self) -> str:
        """``ansor.per_store/tvm``, with the options that differ from the default."""
        options = (
            ("buffers_per_store", self.buffers_per_store, BUFFERS_PER_STORE),
            ("curve_samples", self.curve_samples, CURVE_SAMPLES),
            ("cache_line", self.cache_line, CACHE_LINE),
        )
        other = ",".join(f"{name}={value}" for name, value, usual in options if value != usual)
        return f"ansor.per_store/{self.flavour}" + (f";{other}" if other else "")

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return per_store_names(self.buffers_per_store, self.curve_samples)

    def nest_rows(self, nest: Nest, *, gpu: bool) -> NDArray[np.float64]:
        """Return the rows of a lowered program."""
        return _per_store.per_store(
            nest,
            flavour=self.flavour,
            gpu=gpu,
            buffers_per_store=self.buffers_per_store,
            curve_samples=self.curve_samples,
            cache_line=self.cache_line,
        )


#: Features of TVM's ``PerStoreFeature``.
PER_STORE_TVM = PerStoreSet("tvm")
#: Features that Ansor describes.
PER_STORE_ANSOR = PerStoreSet("ansor")

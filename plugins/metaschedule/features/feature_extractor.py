"""Feature extractors for TVM's cost models, computed by tunedb's kernels."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm_ffi
from tvm.s_tir.meta_schedule.feature_extractor.feature_extractor import _PyFeatureExtractor

from ....errors import PluginError, UsageError
from ....features.ansor import PerStoreSet, per_store_names, workload_embedding
from ....features.base import Needs, NestFeatures, feature_set
from ..compat import register_errors
from . import ir
from .rows import rows_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["FeatureExtractor", "PerStoreFeature"]

register_errors()

_log = logging.getLogger("tunedb")


class PerStoreFeature(_PyFeatureExtractor):
    """TVM's ``PerStoreFeature`` with the same values, faster.

    Parameters
    ----------
    buffers_per_store : int
        Buffers of a store that have columns; others are dropped, missing ones are zeros.
    arith_intensity_curve_num_samples : int
        Samples of the curve of arithmetic intensity.
    cache_line_bytes : int
        Bytes in a cache line.
    extract_workload : bool
        Whether to add the eight columns of the workload embedding.

    Attributes
    ----------
    feature_vector_length : int
        Columns: 164 with the options' defaults, 172 with `extract_workload`.

    Notes
    -----
    TVM ends the search if it cannot lower a candidate. This extractor logs a warning and gives the
    candidate one row of zeros. (A candidate without any row makes TVM's ``XGBModel`` fail.)

    Examples
    --------
    >>> model = ms.cost_model.XGBModel(extractor=PerStoreFeature())
    """

    # TVM's objects lack an instance dictionary.
    __slots__ = ("__dict__", "__weakref__")

    def __init__(
        self,
        buffers_per_store: int = 5,
        arith_intensity_curve_num_samples: int = 10,
        cache_line_bytes: int = 64,
        extract_workload: bool = False,
    ) -> None:
        features = PerStoreSet(
            "tvm", buffers_per_store, arith_intensity_curve_num_samples, cache_line_bytes
        )
        names = per_store_names(
            buffers_per_store, arith_intensity_curve_num_samples, extract_workload
        )

        def extract(context: Any, candidates: Any) -> list[Any]:
            embedding = None
            if extract_workload:
                blocks = ir.read(context.mod).dump()["blocks"]
                embedding = workload_embedding([block["name"] for block in blocks])
            return _extract(context, candidates, features, embedding)

        super().__init__(extract)
        self.buffers_per_store = buffers_per_store
        self.arith_intensity_curve_num_samples = arith_intensity_curve_num_samples
        self.cache_line_bytes = cache_line_bytes
        self.extract_workload = extract_workload
        self.feature_vector_length: int = len(names)


class FeatureExtractor(_PyFeatureExtractor):
    """Any feature set that is computed from IR, as an extractor for TVM's cost models.

    Parameters
    ----------
    set : str
        Name of the feature set (``tunedb features`` lists them).

    Raises
    ------
    NotFoundError
        There is no such feature set.
    UsageError
        The set is not computed from IR, or its number of columns depends on the program.

    Notes
    -----
    A candidate that has no features gets one row of zeros, and a warning is logged.

    Examples
    --------
    >>> model = ms.cost_model.XGBModel(extractor=FeatureExtractor())
    """

    __slots__ = ("__dict__", "__weakref__")

    def __init__(self, set: str = "tunedb.scheduled") -> None:
        features = feature_set(set)
        if features.needs == Needs.STEPS or not isinstance(features, NestFeatures):
            raise UsageError(f"{set} is not computed from IR: a cost model of TVM cannot use it")
        if not features.columns:
            raise UsageError(f"{set} has a varying number of columns")
        chosen = features

        def extract(context: Any, candidates: Any) -> list[Any]:
            return _extract(context, candidates, chosen)

        super().__init__(extract)
        self.set = set
        self.feature_vector_length: int = len(features.columns)


def _extract(
    context: Any,
    candidates: Sequence[Any],
    features: NestFeatures,
    embedding: NDArray[np.float64] | None = None,
) -> list[Any]:
    """Return a tensor of each candidate's rows, `embedding` behind each row."""
    if context.target is None:
        raise PluginError("the tuning context has no target; give TuneContext one")
    modules = [candidate.sch.mod for candidate in candidates]
    found = rows_of(modules, context.target, features, int(context.num_threads))
    failures = [rows for rows in found if isinstance(rows, Exception)]
    if failures:
        _log.warning(
            "%d of %d candidates have no features and get zeros: %s",
            *(len(failures), len(found), failures[0]),
        )
    zeros = np.zeros((1, len(features.columns)))
    return [
        _tensor(zeros.copy() if isinstance(rows, Exception) else rows, embedding) for rows in found
    ]


def _tensor(rows: NDArray[np.float64], embedding: NDArray[np.float64] | None) -> Any:
    """Return rows as a tensor that shares their memory."""
    if embedding is not None:
        rows = np.hstack([rows, np.broadcast_to(embedding, (len(rows), len(embedding)))])
    return tvm_ffi.from_dlpack(rows)

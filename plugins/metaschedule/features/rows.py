"""Rows of a feature set for modules of TVM."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from ....errors import PluginError, TuneDBError
from ....features._batch import Batch
from ....features._nest import Nest
from ....features.base import Needs
from ....features.scheduled import SCHEDULED
from ..targets import first_line
from . import ir
from .lowering import lower

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ....features.base import NestFeatures

#: Parts into which the work of one thread is cut, so that threads end at about the same time.
_PARTS = 8

_log = logging.getLogger("tunedb")

_reported: set[str] = set()
#: Batches that are not in use: their memory is kept, and list methods are atomic.
_idle: list[Batch] = []


def rows_of(
    modules: Sequence[Any], target: Any, feature_set: NestFeatures, num_threads: int = 1
) -> list[NDArray[np.float64] | Exception]:
    """Return the rows of a feature set for each module.

    Parameters
    ----------
    modules : sequence of tvm.IRModule
        Scheduled modules; they stay as they are.
    target : tvm.target.Target
        What they were scheduled for.
    feature_set : NestFeatures
        What is computed; its ``needs`` say on which form of a module.
    num_threads : int
        Threads that work at a time. Lowering, reading and the kernels release the GIL.

    Returns
    -------
    list of ndarray of float64 (rows, columns) or Exception
        In the order of `modules`. Where a program has no features, the reason: a
        :class:`tunedb.errors.TuneDBError` in one line.

    Raises
    ------
    PluginError
        The feature set is computed from no IR, or the plugin does not fit this TVM.
    """
    prepare = _preparation(feature_set.needs)
    gpu = is_gpu(target)
    ir.reader()  # what does not fit TVM is no fault of a program

    def work(part: Sequence[Any]) -> list[NDArray[np.float64] | Exception]:
        nest = Nest()  # its arrays serve all programs of the part
        quick = _quick_rows(part, gpu) if feature_set is SCHEDULED else [None] * len(part)
        return [
            _rows(mod, prepare, feature_set, nest, gpu) if rows is None else rows
            for mod, rows in zip(part, quick, strict=True)
        ]

    if num_threads <= 1 or len(modules) <= 1:
        return work(modules)
    size = max(1, len(modules) // (num_threads * _PARTS))
    parts = [modules[start : start + size] for start in range(0, len(modules), size)]
    with ThreadPoolExecutor(min(num_threads, len(parts))) as pool:
        return [rows for part in pool.map(work, parts) for rows in part]


def _quick_rows(modules: Sequence[Any], gpu: bool) -> list[NDArray[np.float64] | None]:
    """Return the rows of ``tunedb.scheduled``, computed in one stretch without the GIL."""
    batch = _idle.pop() if _idle else Batch(ir.reader())
    try:
        return batch.rows_of(list(modules), gpu)
    finally:
        _idle.append(batch)


def is_gpu(target: Any) -> bool:
    """Tell whether TVM's extractor takes a target for a GPU: ``gpu`` is among its keys."""
    return "gpu" in [str(key) for key in target.keys]


def _rows(
    mod: Any,
    prepare: Callable[[Any], Any],
    feature_set: NestFeatures,
    nest: Nest,
    gpu: bool,
) -> NDArray[np.float64] | Exception:
    try:
        ir.read(prepare(mod), nest)
        _report_unknown(nest)
        return feature_set.nest_rows(nest, gpu=gpu)
    except TuneDBError as error:
        return error
    except Exception as error:  # one program is not the end of the batch
        return PluginError(f"{feature_set.name}: {first_line(error)}")


def _report_unknown(nest: Nest) -> None:
    """Log once for each type of node that the reader walked without understanding it."""
    if not ir.reader().unknown(nest):
        return
    for name in ir.unknown_types(nest).keys() - _reported:
        _reported.add(name)
        _log.warning("programs have nodes of type %s; only their parts are read", name)


def _preparation(needs: Needs) -> Callable[[Any], Any]:
    """Return what makes the form of a module that a feature set needs."""
    if needs == Needs.SCHEDULED:
        return _as_it_is
    if needs == Needs.LOWERED:
        return lower
    if needs == Needs.FLAT:
        from .flat import flatten

        return flatten
    raise PluginError(f"features from {needs} are not computed from a module")


def _as_it_is(mod: Any) -> Any:
    return mod

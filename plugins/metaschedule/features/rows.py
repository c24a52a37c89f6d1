"""Rows of a feature set for modules of TVM."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from ....errors import PluginError, TuneDBError
from ....features._batch import Batch
from ....features._nest import Nest
from ....features.ansor import PerStoreSet
from ....features.base import Needs
from ....features.scheduled import SCHEDULED
from .. import compat
from ..targets import first_line
from . import ir
from .lowering import lower

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ....features.base import NestFeatures

#: Parts of one thread's work, so that threads end at about the same time.
_PARTS = 8

_log = logging.getLogger("tunedb")

_reported: set[str] = set()
#: Idle batches, which keep their memory; list methods are atomic.
_idle: list[Batch] = []


def rows_of(
    modules: Sequence[Any], target: Any, feature_set: NestFeatures, num_threads: int = 1
) -> list[NDArray[np.float64] | Exception]:
    """Return the rows of a feature set for each module.

    Parameters
    ----------
    modules : sequence of tvm.IRModule
        Scheduled modules; they are not changed.
    target : tvm.target.Target
        Target of the schedules.
    feature_set : NestFeatures
        Feature set of the rows; its ``needs`` select the form of a module.
    num_threads : int
        Threads that work at a time. Lowering, reading and the kernels release the GIL.

    Returns
    -------
    list of ndarray of float64 (rows, columns) or Exception
        In the order of `modules`; for a program without features the reason, a
        :class:`tunedb.errors.TuneDBError` in one line.

    Raises
    ------
    PluginError
        The feature set is not computed from IR, or the plugin does not fit this TVM.
    """
    prepare = _preparation(feature_set.needs)
    gpu = is_gpu(target)
    is_tvms = isinstance(feature_set, PerStoreSet) and feature_set.flavour == "tvm"
    follows_025 = is_tvms and compat.number() == (0, 25)
    ir.reader()  # raises here if it does not fit this TVM, which is no fault of a program

    def work(part: Sequence[Any]) -> list[NDArray[np.float64] | Exception]:
        nest = Nest()  # its arrays serve all programs of the part
        nest.follows_025 = follows_025
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
    """Return the rows of ``tunedb.scheduled``, computed with one release of the GIL."""
    batch = _idle.pop() if _idle else Batch(ir.reader())
    try:
        return batch.rows_of(list(modules), gpu)
    finally:
        _idle.append(batch)


def is_gpu(target: Any) -> bool:
    """Tell whether a target is a GPU for TVM's extractor: ``gpu`` is among its keys."""
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
    except Exception as error:  # an error of one program does not end the batch
        return PluginError(f"{feature_set.name}: {first_line(error)}")


def _report_unknown(nest: Nest) -> None:
    """Log each unknown type of node once."""
    if not ir.reader().unknown(nest):
        return
    for name in ir.unknown_types(nest).keys() - _reported:
        _reported.add(name)
        _log.warning("programs have nodes of type %s; only their parts are read", name)


def _preparation(needs: Needs) -> Callable[[Any], Any]:
    """Return the function that converts a module to the form that a feature set needs."""
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

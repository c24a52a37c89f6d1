"""Predicted programs of functions that were never measured.

Nothing is run. Worker processes compare drafts of each function
(:mod:`..search.prediction`); the best one that replays and builds is the prediction.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.builder import BuilderInput

from ....features.steps import STEPS
from ....models.share import nearest
from ....records import Trace
from .. import modules
from ..database.handle import Handle
from ..measure.cold_weights import cold_weights, weight_bytes
from ..search.draft_model import DraftModel, DraftTask, can_describe
from ..search.prediction import Promising, Question, prepare, promising
from ..search.warm_start import Relatives
from ..threads import usable_cpus
from ..trace_codec import TraceBuilder
from ..workers.warm_builder import WarmBuilder
from ..workers.worker_pool import Retried, Worker

if TYPE_CHECKING:
    from ....models.evaluation import OnStep

__all__ = ["Predicted", "predict"]

_log = logging.getLogger("tunedb")

#: Seconds for one function, whose design space may hang TVM; one takes 1 to 5 seconds.
_LIMIT_SEC = 120.0

#: Operations for each byte of weights that hide its reading: those of some hundred rows of data.
_HIDDEN = 50
#: Most programs of a function that are built, until one works.
_BUILT = 4


@dataclass(frozen=True, slots=True, eq=False)
class Predicted:
    """The predicted program of a function.

    Parameters
    ----------
    record : tvm TuningRecord
        Its trace, without run times.
    family : str or None
        Family of the function's workload.
    octaves : float
        Distance from the nearest workload that the model knows; infinity for none of the family.
    """

    record: Any
    family: str | None
    octaves: float


def predict(
    handle: Handle,
    mods: Mapping[bytes, Any],
    target: Any,
    on_step: OnStep,
    *,
    weights_are_cold: bool,
) -> dict[bytes, Predicted]:
    """Return the predicted programs of functions.

    Parameters
    ----------
    handle : Handle
        Handle of the database. Nothing is written.
    mods : mapping of bytes to tvm.IRModule
        Normalised modules of one function by any key.
    target : tvm.target.Target
        Target of the programs.
    on_step : callable
        Called before each function.
    weights_are_cold : bool
        Whether all weights come from memory. A program that prefetches them is then preferred if
        it has few operations for each (:data:`_HIDDEN`). The models do not see that: most of their
        programs were measured with weights in the caches.

    Returns
    -------
    dict of bytes to Predicted
        By the keys of `mods`. Functions are missing of which nothing is known, whose design space
        cannot be made or ends the process, or none of whose programs builds.
    """
    has_records = handle.store.records.count() > 0 or any(handle.layers)
    if not mods or not (has_records or handle.prior is not None):
        return {}
    with WarmBuilder() as builder:
        models = _Models.of(handle, target)
        asked: dict[bytes, Future[list[Promising]]] = {}
        tasks: dict[bytes, DraftTask] = {}
        for key, mod in mods.items():
            task = tasks[key] = DraftTask.of(handle, modules.to_workload(mod), target)
            model = None if models is None else models.drafts.of_task(task, usable_cpus())
            relatives = Relatives.of(handle, mod, target)
            waits = weights_are_cold and _waits(mod, task)
            question = Question(mod, target, task, relatives, model, waits)
            (asked[key],) = builder.pool.submit([Retried(partial(_ask, question))])
        ranked = {}
        for done, (key, future) in enumerate(asked.items()):
            on_step(done, len(asked), "predicting")
            builder.pool.wait(future.done)
            found = _answer(tasks[key], future)
            if models is not None:
                found = models.ranked(tasks[key], found)
            ready = sorted(found, key=lambda each: not each.is_ready)
            ranked[key] = [each.trace for each in ready]
        built = _built(builder, mods, ranked, target)
    known = () if models is None else models.drafts.workloads
    return {
        key: Predicted(
            ms.database.TuningRecord(trace, ms.database.Workload(mods[key]), None, target, None),
            tasks[key].example.family,
            nearest(tasks[key].example, known),
        )
        for key, trace in built.items()
    }


@dataclass(frozen=True, slots=True, eq=False)
class _Models:
    """Models of drafts and of replayed programs for a target."""

    drafts: DraftModel
    programs: DraftModel

    @classmethod
    def of(cls, handle: Handle, target: Any) -> Self | None:
        if find_spec("xgboost") is None:
            return None
        stored = handle.targets.stored(target)
        groups = [handle.targets.group(stored, level) for level in (0, 1)]
        return cls(DraftModel(handle, stored, groups), DraftModel(handle, stored, groups, STEPS))

    def ranked(self, task: DraftTask, programs: Sequence[Promising]) -> Sequence[Promising]:
        """Return programs by score, the highest first; as they are where nothing scores them."""
        model = self.programs.of_task(task, usable_cpus())
        rows = task.rows_of_traces([each.trace for each in programs])
        if model is None or not programs or not can_describe(rows):
            return programs
        stacked = np.concatenate([own for own in rows if not isinstance(own, Exception)])
        scores = model.scores(task, stacked, usable_cpus())
        return [programs[number] for number in np.argsort(-scores, kind="stable")]


def _waits(mod: Any, task: DraftTask) -> bool:
    """Return whether a function's operations are too few to hide the reading of its weights."""
    flops = task.signature.flops
    return bool(cold_weights(mod)) and flops is not None and flops < _HIDDEN * weight_bytes(mod)


def _ask(question: Question, worker: Worker) -> list[Promising]:
    """Return the answer of a worker; run in a thread of the pool."""
    worker.call_once(prepare)
    found: list[Promising] = worker.call(promising, question, limit=_LIMIT_SEC)
    return found


def _answer(task: DraftTask, future: Future[list[Promising]]) -> Sequence[Promising]:
    """Return the programs of a function; none, and a warning, if it ended its worker."""
    try:
        return future.result()
    except TimeoutError:
        reason = "TVM hangs"
    except ChildProcessError as error:
        reason = str(error)
    _log.warning("%s: nothing is predicted: %s", task.workload.name, reason)
    return []


def _built(
    builder: WarmBuilder,
    mods: Mapping[bytes, Any],
    traces: Mapping[bytes, Sequence[Trace]],
    target: Any,
) -> dict[bytes, Any]:
    """Return the first trace of each function whose program builds."""
    traces_of_tvm = TraceBuilder()
    built: dict[bytes, Any] = {}
    for place in range(_BUILT):
        turn = {
            key: found[place]
            for key, found in traces.items()
            if key not in built and place < len(found)
        }
        inputs = [
            BuilderInput(traces_of_tvm.scheduled(mods[key], trace), target)
            for key, trace in turn.items()
        ]
        results = builder.build(inputs) if inputs else []
        for (key, trace), result in zip(turn.items(), results, strict=True):
            if result.error_msg is None:
                built[key] = traces_of_tvm.build_or_replay(trace, mods[key])
    return built

"""Drafts of a task → scheduled candidates, on threads."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from tvm.s_tir.schedule import _ffi_api as _api

from ....search.draft import Draft
from .. import trace_codec
from ..trace_codec import TraceBuilder
from . import schedule_queries

#: Seeds of TVM's random states.
_MOST_SEED = 2**31 - 1

#: No verification after each step, and no text of errors (``ScheduleErrorRenderLevel``).
_NO_CHECKS = 0
_SILENT = 2


class Replays:
    """Applies drafts to the module of one task, as MetaSchedule does with its own traces.

    A draft is legal if all its instructions apply and every postprocessor accepts the result.

    Parameters
    ----------
    mod : tvm IRModule
        The module of the task.
    postprocs : sequence of tvm Postproc
        Those of the task's space generator, initialised.
    threads : int
        How many replay at a time; TVM releases the GIL while it does.
    seed : int
        Of what a draft leaves to TVM. Equal calls in equal order give equal schedules, whatever
        the number of threads.
    """

    def __init__(self, mod: Any, postprocs: Sequence[Any], *, threads: int, seed: int) -> None:
        self.mod = mod
        self._postprocs = list(postprocs)
        self._threads = threads
        self._random = random.Random(seed)  # noqa: S311  chance, not security
        self._builder = TraceBuilder()

    def schedules(self, drafts: Sequence[Draft]) -> list[Any]:
        """Return the schedule of each draft, postprocessed; None for one that is illegal."""
        seeds = [self._random.randint(1, _MOST_SEED) for _ in drafts]
        return self._map(self._schedule, drafts, seeds)

    def again(self, traces: Sequence[Any]) -> list[Any]:
        """Return the schedules of whole traces, with the postprocessing that they name.

        Parameters
        ----------
        traces : sequence of tvm Trace
            Those of stored records. None stands for the schedule of one that does not apply.
        """
        seeds = [self._random.randint(1, _MOST_SEED) for _ in traces]
        return self._map(self._repeat, traces, seeds)

    def location(self, draft: Draft) -> dict[int, list[int]]:
        """Return another legal decision of one ``SampleComputeLocation`` of a draft, drawn."""
        seed = self._random.randint(1, _MOST_SEED)
        return self._told(partial(schedule_queries.locations, seed=seed), draft)

    def extents(self, draft: Draft) -> dict[str, list[list[int]]]:
        """Return the extents of the loops over blocks that are annotated to be parallel."""
        return self._told(schedule_queries.extents, draft)

    def _told(self, ask: Callable[[Any, Any], dict[Any, Any]], draft: Draft) -> dict[Any, Any]:
        try:
            return ask(self._trace(draft), self.mod)
        except Exception:  # what TVM raises on a draft that does not apply: nothing can be changed
            return {}

    def _map(self, apply: Callable[[Any, int], Any], items: Sequence[Any], seeds: Any) -> list[Any]:
        if self._threads == 1 or len(items) < 2:
            return [apply(*pair) for pair in zip(items, seeds, strict=True)]
        with ThreadPoolExecutor(min(self._threads, len(items))) as threads:
            return list(threads.map(apply, items, seeds))

    def _trace(self, draft: Draft) -> Any:
        try:
            return schedule_queries.to_tvm(draft, self._builder)
        except trace_codec.UnknownInstructionError:
            return trace_codec.replay(draft.trace(), self.mod)

    def _schedule(self, draft: Draft, seed: int) -> Any:
        try:
            schedule = self._new(seed)
            self._trace(draft).apply_to_schedule(schedule, remove_postproc=True)
            schedule.enter_postproc()
            return schedule if all(one.apply(schedule) for one in self._postprocs) else None
        except Exception:  # TVM raises ScheduleError, InternalError, ValueError, …
            return None

    def _repeat(self, trace: Any, seed: int) -> Any:
        try:
            schedule = self._new(seed)
            trace.apply_to_schedule(schedule, remove_postproc=False)
            return schedule
        except Exception:  # as above
            return None

    def _new(self, seed: int) -> Any:
        # Schedule(...) checks the types of its arguments, which takes a tenth of a replay.
        return _api.TracedSchedule(self.mod, seed, _NO_CHECKS, _SILENT, True)

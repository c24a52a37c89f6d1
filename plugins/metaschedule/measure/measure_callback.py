"""The measure callback, which keeps the facts that TVM's ``AddToDatabase`` drops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.s_tir.meta_schedule.measure_callback.measure_callback import _PyMeasureCallback

from ....errors import PluginError
from ....records import Failure, FailureKind, Phase
from ....run_times import NO_TIME, is_cut_short
from ..compat import register_errors
from ..database.database import Database, handle_of
from ..database.handle import Candidate, Handle
from ..failures import classify
from ..trace_codec import floats_of
from .measured import is_served

__all__ = ["MeasureCallback"]

register_errors()


class MeasureCallback(_PyMeasureCallback):
    """Record every measured candidate of a batch in one transaction.

    Besides times it records the phase of a failure (building or running), its kind (compile error,
    timeout, crash, wrong result, error while running, infrastructure), its message and duration,
    and the session. What a :class:`~.racing.RacingRunner` cut short is recorded as such. It works
    with TVM's ``AddToDatabase`` in any order: each candidate is recorded once. The
    database's features are stored with the batch. The callback passes candidates that failed to
    build to each :class:`CostModel` of the database, which TVM's ``UpdateCostModel`` leaves out.

    Parameters
    ----------
    database : Database or None
        Database of the records; None for the database of the tuning run.

    Raises
    ------
    tunedb.PluginError
        While tuning, when the run's database is not tunedb's.

    Examples
    --------
    >>> ms.tune_tir(mod, target, work_dir, 64, database=database, measure_callbacks=[
    ...     MeasureCallback(database), ms.measure_callback.RemoveBuildArtifact(),
    ...     ms.measure_callback.UpdateCostModel()])
    """

    __slots__ = ("__dict__", "__weakref__")

    def __init__(self, database: Database | None = None) -> None:
        # Holds the database, so that a run can own the only other reference to it.
        def apply(scheduler: Any, task_id: int, candidates: Any, builds: Any, runs: Any) -> None:
            handle = handle_of(scheduler.database_ if database is None else database)
            if handle is None:
                raise PluginError(
                    "MeasureCallback needs a tunedb database; pass it: MeasureCallback(database)"
                )
            record(handle, scheduler.tasks_[task_id].ctx, candidates, builds, runs)

        super().__init__(apply)


def record(
    handle: Handle,
    context: Any,
    candidates: Sequence[Any],
    builds: Sequence[Any],
    runs: Sequence[Any],
) -> None:
    """Record one batch of a task.

    Parameters
    ----------
    handle : Handle
        Handle of the database.
    context : tvm TuneContext
        The task: its module and target.
    candidates, builds, runs : sequence
        ``MeasureCandidate``, ``BuilderResult`` and ``RunnerResult`` of each candidate.
    """
    workload = handle.commit_workload(context.mod)
    failures = [failure_of(build, run) for build, run in zip(builds, runs, strict=True)]
    programs = handle.record_batch(
        [
            Candidate(
                workload=workload,
                trace=candidate.sch.trace,
                target=context.target,
                args_info=candidate.args_info,
                run_secs=run_secs_of(run),
                failure=failure,
                is_served=is_served(build),
                is_cut_short=is_cut_short(run_secs_of(run)),
            )
            for candidate, build, run, failure in zip(
                candidates, builds, runs, failures, strict=True
            )
        ]
    )
    if handle.features.wanted:
        handle.features.commit(programs, candidates, context.target)
    failed = [
        (program, candidate)
        for program, candidate, failure in zip(programs, candidates, failures, strict=True)
        if program is not None
        and failure is not None
        and failure.phase is Phase.BUILD
        and failure.kind is not FailureKind.INFRASTRUCTURE
    ]
    for model in list(handle.models) if failed else ():
        model.not_built(failed, handle.batch_began)


def run_secs_of(run: Any) -> tuple[float, ...]:
    """Return all repeats in seconds; TVM's sentinel if no run succeeded, as in TVM's database."""
    if run.run_secs is None:
        return (NO_TIME,)
    return floats_of(run.run_secs)


def failure_of(build: Any, run: Any) -> Failure | None:
    """Return the failure of a candidate, or None."""
    if build.error_msg is not None:
        return classify(Phase.BUILD, str(build.error_msg))
    if run.error_msg is not None:
        return classify(Phase.RUN, str(run.error_msg))
    return None

"""Building and running of programs in other processes, one program after another."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import psutil  # noqa: F401  TVM imports it first inside of the garbage collector
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.builder import BuilderInput
from tvm.s_tir.meta_schedule.runner import EvaluatorConfig, RunnerInput

from ....records import Failure, Phase
from ..failures import classify
from ..measure.measure_callback import failure_of, run_secs_of
from ..targets import device_of
from ..threads import use_threads
from ..workers.warm_builder import WarmBuilder
from . import numerics

Evaluator = Callable[..., list[float]]


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A program to build and run.

    Parameters
    ----------
    mod : tvm.IRModule
        The untuned module.
    order : str
        Order of a worker for the module (:func:`.numerics.order_of`).
    args_info : list of ArgInfo or None
        Arguments of the program; None for those of the module.
    """

    mod: Any
    order: str
    args_info: Any = None


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """Results of the evaluator, or the failure."""

    costs: tuple[float, ...]
    failure: Failure | None


class BuildAndRun:
    """Builds with :class:`~.warm_builder.WarmBuilder` and runs with TVM's ``LocalRunner``.

    Programs run on the threads of :func:`~.threads.use_threads`.

    Parameters
    ----------
    repeat : int
        Number of measurements; each is the mean over at least three runs and 100 ms.
    draws : int
        Number of argument lists for an evaluator of :meth:`outcomes`.
    seed : int
        Seed of these arguments.
    timeout_sec : float
        Time limit of one build and of one run in seconds.
    max_workers : int or None
        Processes that build; one for each processor by default.
    """

    def __init__(
        self, *, repeat: int, draws: int, seed: int, timeout_sec: float, max_workers: int | None
    ) -> None:
        use_threads()
        self._timeout = timeout_sec
        self._config = EvaluatorConfig(number=3, repeat=repeat, min_repeat_ms=100)
        self._arguments = {
            "f_alloc_argument": partial(numerics.allocate, seed=seed),
            "alloc_repeat": draws,
        }
        self._max_workers = max_workers

    @cached_property
    def _builder(self) -> WarmBuilder:
        """Processes that build; they start with the first job."""
        return WarmBuilder(
            max_workers=self._max_workers, timeout_sec=self._timeout, f_build=numerics.build
        )

    def close(self) -> None:
        """End the processes that build."""
        if "_builder" in vars(self):
            self._builder.close()

    def outcomes(
        self, jobs: Sequence[Job], target: Any, run: Evaluator | None = None
    ) -> list[RunOutcome]:
        """Build all programs, then run one after another.

        Parameters
        ----------
        jobs : sequence of Job
            Programs to build and run.
        target : tvm.target.Target
            Target of the builds; its device must be in this machine.
        run : callable or None
            Evaluator that replaces TVM's, with equal random arguments.

        Returns
        -------
        list of RunOutcome
            In order of the jobs. The results of TVM's evaluator are times in seconds.
        """
        if not jobs:
            return []
        built = self._builder.build(
            [BuilderInput(job.mod.with_attr(numerics.ORDER, job.order), target) for job in jobs]
        )
        options = {} if run is None else {"f_run_evaluator": run, **self._arguments}
        device = str(device_of(target).type)
        runner = ms.runner.LocalRunner(self._timeout, self._config, **options)
        return [
            self._outcome(runner, job, result, device)
            for job, result in zip(jobs, built, strict=True)
        ]

    def _outcome(self, runner: Any, job: Job, result: Any, device: str) -> RunOutcome:
        if result.error_msg is not None:
            return RunOutcome((), classify(Phase.BUILD, str(result.error_msg)))
        args = job.args_info
        if args is None:
            args = ms.arg_info.ArgInfo.from_entry_func(job.mod)
        (future,) = runner.run([RunnerInput(result.artifact_path, device, args)])
        shutil.rmtree(Path(str(result.artifact_path)).parent, ignore_errors=True)
        run = future.result()
        failure = failure_of(result, run)
        return RunOutcome(() if failure else run_secs_of(run), failure)

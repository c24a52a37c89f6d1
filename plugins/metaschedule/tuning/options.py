"""Arguments of a tuning run in one object."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tvm.s_tir.meta_schedule.runner import EvaluatorConfig, LocalRunner, RPCConfig

from ....errors import UsageError
from ....search.scheduling import NetworkGoal, TuningGoal
from ..database.database import Database
from ..deploy.network import Algorithms, Layout
from ..measure.racing import LEAST_REPEATS, Race
from ..threads import usable_cpus, whole_cores
from .progress import Progress

__all__ = ["EVALUATOR", "TRIALS_PER_BATCH", "TRIALS_PER_TASK", "TuneOptions"]

#: Default measurement of a program: about as long as TVM's (100 ms in one repeat), but in three
#: repeats, whose median is robust to one disturbance.
EVALUATOR = EvaluatorConfig(number=1, repeat=3, min_repeat_ms=30)

#: Maximum trials of a batch. TVM's 64 keep a farm of devices busy; on one machine they gain
#: nothing, and with 16 the cost model learns four times as often.
TRIALS_PER_BATCH = 16

#: Default trials of each task, without and with a time budget.
TRIALS_PER_TASK = 64
TIMED_TRIALS_PER_TASK = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """Arguments of :func:`.tuning.tune`, which documents them."""

    mod: Any
    target: Any
    work_dir: str | Path | None
    max_trials_global: int | None
    max_trials_per_task: int | None
    num_trials_per_iter: int
    builder: Any
    runner: Any
    database: Database | str | Path | None
    cost_model: Any
    measure_callbacks: Any
    task_scheduler: Any
    space: Any
    strategy: Any
    minutes: float | None
    num_tuning_cores: int | str
    seed: int | None
    module_equality: str
    special_space: Mapping[str, Any] | None
    params: Mapping[str, Any] | None
    op_names: Sequence[str] | None
    evaluator: EvaluatorConfig
    warm: bool
    remeasure: bool
    racing: bool
    finals: bool
    layout: Layout
    prepack: bool | None
    algorithms: Algorithms
    weights: Mapping[str, float] | None
    latency_target: float | Mapping[str, float] | None
    least_gain: float
    early_stopping: int | None
    measure_network: bool
    bind: Mapping[str, int | Sequence[int]] | None
    layers: Sequence[str | Path] | None
    prior: str | Path
    server: str | Path | None
    on_progress: Callable[[Progress], object] | None

    def measures_network(self) -> bool:
        """Return whether a network is measured as a whole: only if programs run on this machine."""
        is_local = self.runner == "local" or isinstance(self.runner, LocalRunner)
        return self.measure_network and is_local

    def goal(self, networks: Sequence[NetworkGoal]) -> TuningGoal:
        """Return the goal of the run, with those of its networks if it has any."""
        goal = TuningGoal(least_gain=self.least_gain, early_stopping=self.early_stopping)
        return replace(goal, networks=tuple(networks)) if networks else goal

    def race(self) -> Race | None:
        """Return the race of the run; None where the parts of the run do not know of it.

        It needs a task scheduler that tells the task of a batch, and callbacks that know what was
        cut short.
        """
        is_possible = (
            self.runner == "local"
            and self.task_scheduler == "tunedb"
            and self.measure_callbacks == "default"
            and self.evaluator.repeat >= LEAST_REPEATS
        )
        return Race(stops=self.racing) if is_possible else None

    def has_finals(self) -> bool:
        """Return whether the best programs are measured again: with runners of this package."""
        is_ours = isinstance(self.runner, RPCConfig) or self.runner in ("local", "rpc")
        return self.finals and is_ours and self.measure_callbacks == "default"

    def search_threads(self) -> int:
        """Return the number of search threads; TVM's words count CPUs that this process may use.

        Raises
        ------
        UsageError
            `num_tuning_cores` is another word, or less than 1.
        """
        cores = self.num_tuning_cores
        if cores == "physical":
            return whole_cores()
        if cores == "logical":
            return usable_cpus()
        if not isinstance(cores, int) or cores < 1:
            raise UsageError(
                f"num_tuning_cores must be physical, logical or a number, not {cores!r}"
            )
        return cores

    def trials(self, tasks: int) -> int:
        """Return the maximum number of trials for a number of tasks.

        Raises
        ------
        UsageError
            A limit is not positive.
        """
        for name in ("max_trials_global", "max_trials_per_task", "num_trials_per_iter"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} must be 1 or more, not {value}")
        per_task = self.max_trials_per_task
        default = TRIALS_PER_TASK if self.minutes is None else TIMED_TRIALS_PER_TASK
        bound = tasks * (default if per_task is None else per_task)
        if self.max_trials_global is None:
            return bound
        return self.max_trials_global if per_task is None else min(self.max_trials_global, bound)

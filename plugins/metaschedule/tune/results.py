"""Results of a tuning run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ....exchange.outbox import Delivery
from ....json_checks import parse_json
from ....records import Origin
from ....results import Record
from ....storage.network_runs import NetworkRun
from ....system.notebook import rows_html
from ..database.database import Database
from .progress import Costs, TaskProgress, total_seconds

__all__ = ["TaskResult", "TuningResult"]


@dataclass(frozen=True, slots=True)
class TaskResult:
    """Result of one task.

    Parameters
    ----------
    progress : TaskProgress
        Trials of this run.
    workload_id : int or None
        Local number of the workload; None where it is not stored.
    record : Record or None
        Best record that the database serves for the task, of this run or an earlier one; None
        where it has none.
    calls : int or None
        Number of calls in one run of the network; None outside of a Relax program.
    problem : str or None
        Error of TVM that ended the search of this task, in one line.
    """

    progress: TaskProgress
    workload_id: int | None
    record: Record | None
    calls: int | None = None
    problem: str | None = None

    def __repr__(self) -> str:
        trials = self.progress.trials
        return f"TaskResult(name={self.name!r}, seconds={self.seconds}, trials={trials})"

    @property
    def name(self) -> str:
        """Name of the task."""
        return self.progress.name

    @property
    def seconds(self) -> float | None:
        """Mean run time of the best record in seconds."""
        return None if self.record is None else self.record.mean

    @property
    def origin(self) -> Origin | None:
        """Origin of the best program."""
        return None if self.record is None else self.record.measurement.origin

    @property
    def donor(self) -> bytes | None:
        """Digest of the stored program that the best one descends from."""
        return None if self.record is None else self.record.measurement.donor

    @property
    def operators(self) -> tuple[str, ...]:
        """Search operators that led from the donor to the best program, oldest first."""
        extra = None if self.record is None else self.record.measurement.extra
        fields = parse_json(extra) if extra else None
        search = fields.get("search") if isinstance(fields, dict) else None
        names = search.get("operators") if isinstance(search, dict) else None
        return tuple(map(str, names)) if isinstance(names, list) else ()


@dataclass(frozen=True, slots=True)
class TuningResult:
    """Result of :func:`tune`.

    Parameters
    ----------
    database : Database
        Database of the records. Inside ``with result.database:`` TVM takes programs from it.
    target : tvm.target.Target
        Target of the programs.
    tasks : tuple of TaskResult
        Results of the tasks, in the order of the run.
    trials : int
        Number of trials, including those of an earlier, unfinished run with the same arguments.
    resumed : int
        Number of trials of that earlier run.
    seconds : float
        Wall time.
    costs : Costs
        Wall time by activity.
    threads : int or None
        Threads of TVM's runtime that programs were measured with; None on GPUs, and where unknown.
    networks : tuple of NetworkRun
        Times of a Relax program as a whole, before and after, for each combination of its sizes;
        empty where they were not measured.
    notes : tuple of str
        Notes on the program for the user, in one line each.
    delivery : Delivery or None
        State of the records on the server; None without a server.
    """

    database: Database
    target: Any
    tasks: tuple[TaskResult, ...]
    trials: int
    resumed: int
    seconds: float
    costs: Costs
    threads: int | None = None
    networks: tuple[NetworkRun, ...] = ()
    notes: tuple[str, ...] = ()
    delivery: Delivery | None = None

    def __repr__(self) -> str:
        tasks, seconds = len(self.tasks), round(self.seconds, 1)
        return f"TuningResult(tasks={tasks}, trials={self.trials}, seconds={seconds})"

    def _repr_html_(self) -> str:
        rows = [
            (task.name, task.calls, task.progress.trials, task.seconds, task.origin, task.problem)
            for task in self.tasks
        ]
        title = f"{self.trials:,} trials in {self.seconds:.1f} s for {self.target}"
        names = ("task", "calls", "trials", "best (s)", "origin", "problem")
        return rows_html(title, names, rows, len(rows))

    @property
    def latency(self) -> float | None:
        """Seconds of all calls of a Relax program's operators; None where a time is unknown.

        The calls and allocations of the runtime itself are not included.
        """
        return total_seconds((task.calls, task.seconds) for task in self.tasks)

    @property
    def served(self) -> int:
        """Number of known programs, whose stored results replaced a build and a run."""
        return sum(task.progress.served for task in self.tasks)

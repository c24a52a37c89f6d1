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
from .progress import Costs, NetworkProgress, TaskProgress

__all__ = ["NetworkResult", "TaskResult", "TuningResult"]


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
        Number of calls in one run of all networks, with the algorithms that are fastest by the best
        programs: 0 for a part of another one; None outside of a Relax program.
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
class NetworkResult:
    """Result of one network, for one combination of its sizes.

    Parameters
    ----------
    progress : NetworkProgress
        Its weight and latency target, and its estimated latency after the run.
    run : NetworkRun or None
        Measured latency before and after the run, and time of each operator; None where it was not
        measured.
    """

    progress: NetworkProgress
    run: NetworkRun | None = None

    @property
    def name(self) -> str:
        """Name with the sizes."""
        return self.progress.name


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
    networks : tuple of NetworkResult
        Results of Relax programs as a whole, for each combination of sizes; empty for PrimFuncs.
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
    networks: tuple[NetworkResult, ...] = ()
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
        return self._networks_html() + rows_html(title, names, rows, len(rows))

    def _networks_html(self) -> str:
        rows = [
            (
                network.name,
                network.progress.goal.weight,
                network.progress.goal.latency,
                network.progress.untuned,
                network.progress.latency,
                None if network.run is None else network.run.latency,
            )
            for network in self.networks
        ]
        names = ("network", "weight", "target (s)", "untuned (s)", "estimated (s)", "measured (s)")
        return rows_html("Networks", names, rows, len(rows)) if rows else ""

    @property
    def served(self) -> int:
        """Number of known programs, whose stored results replaced a build and a run."""
        return sum(task.progress.served for task in self.tasks)

"""What a tuning run came to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ....exchange.outbox import Delivery
from ....json_checks import parse_json
from ....records import Origin
from ....results import Record
from ....storage.network_runs import NetworkRun
from ..database.database import Database
from .progress import Costs, TaskProgress

__all__ = ["TaskResult", "TuningResult"]


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a run came to for one task.

    Parameters
    ----------
    progress : TaskProgress
        What was tried in this run.
    workload_id : int or None
        Local number of the workload; None where nothing is stored of it.
    record : Record or None
        The best one that the database serves for it, whoever measured it; None for none.
    calls : int or None
        Times that the network calls the function; None outside of a Relax program.
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
        """The task's name."""
        return self.progress.name

    @property
    def seconds(self) -> float | None:
        """Mean run time of the best record."""
        return None if self.record is None else self.record.mean

    @property
    def origin(self) -> Origin | None:
        """Where the best program came from."""
        return None if self.record is None else self.record.measurement.origin

    @property
    def donor(self) -> bytes | None:
        """Digest of the stored program that the best one descends from."""
        return None if self.record is None else self.record.measurement.donor

    @property
    def operators(self) -> tuple[str, ...]:
        """What was done to the donor, oldest first."""
        extra = None if self.record is None else self.record.measurement.extra
        said = parse_json(extra) if extra else None
        search = said.get("search") if isinstance(said, dict) else None
        names = search.get("operators") if isinstance(search, dict) else None
        return tuple(map(str, names)) if isinstance(names, list) else ()


@dataclass(frozen=True, slots=True)
class TuningResult:
    """What :func:`tune` came to.

    Parameters
    ----------
    database : Database
        Where the records are. ``with result.database:`` makes TVM take programs from it.
    target : tvm.target.Target
        What was tuned for.
    tasks : tuple of TaskResult
        In the order of the run.
    trials : int
        Trials of the run, those of an earlier, unfinished run with the same arguments too.
    resumed : int
        The latter.
    seconds : float
        Wall time.
    costs : Costs
        Where it went.
    threads : int or None
        Threads of TVM's runtime that programs were measured with; None on GPUs, and where nobody
        knows.
    networks : tuple of NetworkRun
        Times of a Relax program as a whole, before and after, for each combination of its sizes;
        empty where they were not measured.
    notes : tuple of str
        What users should know of the program, in one line each.
    delivery : Delivery or None
        What the server has of it; None where none was named.
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

    @property
    def latency(self) -> float | None:
        """Seconds of all operators of a Relax program, by their calls; None where one is unknown.

        The runtime's own calls and allocations come on top.
        """
        total = 0.0
        for task in self.tasks:
            if task.calls is None or task.seconds is None:
                return None
            total += task.calls * task.seconds
        return total

    @property
    def served(self) -> int:
        """Trials that were known, so that nobody built or ran them again."""
        return sum(task.progress.served for task in self.tasks)

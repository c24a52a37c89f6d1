"""What a page shows of a database, read once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import NotFoundError
from ..records import Session
from ..results import Counts
from ..storage.network_runs import NetworkRun, OperatorTime
from ..storage.sources import SourceRow

if TYPE_CHECKING:
    from ..storage.store import Store
    from ..storage.tables import TableName

Row = dict[str, Any]

#: Columns of :class:`Trials` → columns of the table ``records``.
_TRIALS = (
    *("record_id", "workload_id", "target_id", "status", "mean_seconds", "run_seconds"),
    *("measured_at", "session_id", "trust", "served"),
)


@dataclass(frozen=True, slots=True, eq=False)
class Trials:
    """Measurements as columns, in order of insertion.

    Parameters
    ----------
    record_id, workload_id, target_id, session_id : ndarray of int64, shape (n,)
        Ids; session 0 is unknown.
    seconds : ndarray of float64, shape (n,)
        Mean run time in seconds; NaN unless the program worked.
    spread : ndarray of float64, shape (n,)
        Ratio of the slowest to the fastest repeat; NaN for fewer than two.
    measured_at : ndarray of float64, shape (n,)
        Seconds since 1970, UTC; NaN if unknown.
    status, trust : ndarray of str, shape (n,)
        As in the table ``records``.
    served : ndarray of bool, shape (n,)
        Whether top-k may return it.
    """

    record_id: npt.NDArray[np.int64]
    workload_id: npt.NDArray[np.int64]
    target_id: npt.NDArray[np.int64]
    session_id: npt.NDArray[np.int64]
    seconds: npt.NDArray[np.float64]
    spread: npt.NDArray[np.float64]
    measured_at: npt.NDArray[np.float64]
    status: npt.NDArray[np.str_]
    trust: npt.NDArray[np.str_]
    served: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.record_id)

    def where(self, chosen: Any) -> Trials:
        """Return the trials that a mask or indices choose."""
        return Trials(*(getattr(self, name)[chosen] for name in self.__slots__))

    def of(self, task: Row) -> Trials:
        """Return the trials of a task."""
        chosen = self.workload_id == task["workload_id"]
        return self.where(chosen & (self.target_id == task["target_id"]))

    def in_time(self) -> Trials:
        """Return the trials in order of measurement; of insertion where times are unknown."""
        times = self.measured_at
        return self if np.isnan(times).any() else self.where(np.argsort(times, kind="stable"))


@dataclass(frozen=True, slots=True, eq=False)
class Contents:
    """What a page shows of a database.

    Parameters
    ----------
    store : Store
        The database.
    counts : Counts
        Numbers of rows of the whole database.
    sources : list of SourceRow
        All sources.
    tasks, failures, sessions : list of dict
        Rows of the tables of these names; tasks and failures are chosen ones.
    trials : Trials
        Measurements of the chosen tasks.
    networks : list of (Session, NetworkRun)
        The last run of each chosen network on each target.
    calls : dict of int to float
        Workload → calls in one run of each network, times the network's weight in its run.
    is_whole : bool
        Whether all tasks are chosen.
    """

    store: Store
    counts: Counts
    sources: list[SourceRow]
    tasks: list[Row]
    failures: list[Row]
    sessions: list[Row]
    trials: Trials
    networks: list[tuple[Session, NetworkRun]]
    calls: dict[int, float]
    is_whole: bool

    def weight(self, task: Row) -> float:
        """Return the calls of a task in the networks, 1 without networks."""
        return self.calls.get(task["workload_id"], 0 if self.calls else 1)


def read(
    store: Store,
    *,
    workload: str | None = None,
    target: str | None = None,
    network: str | None = None,
) -> Contents:
    """Read what a page shows.

    Parameters
    ----------
    store : Store
        The database.
    workload, target : str, optional
        Only these tasks, as for :meth:`tunedb.storage.records.Records.top_k`.
    network : str, optional
        Only this network and its tasks.

    Raises
    ------
    NotFoundError
        No workload, target or network has that name.
    """
    runs = {(run.name, run.target): (session, run) for session, run in store.runs.networks()}
    networks = [pair for pair in runs.values() if network in (None, pair[1].name)]
    if network is not None and not networks:
        names = ", ".join(sorted({run.name for _, run in runs.values()}))
        there = f"there are: {names}" if names else "tune one: tunedb tune network.onnx"
        raise NotFoundError(f"no tuning run of the network {network}; {there}")
    calls = _calls(store, [run for _, run in networks])
    workloads: Sequence[int] | None = None if network is None else sorted(calls)
    if workload is not None:
        named = store.lookup.require_workloads(workload)
        workloads = [id_ for id_ in named if workloads is None or id_ in workloads]
    targets = None if target is None else store.lookup.require_targets(target)
    chosen = (workloads, targets)
    return Contents(
        store=store,
        counts=store.counts(),
        sources=store.sources.summaries(),
        tasks=_rows(store, "tasks", *chosen),
        failures=_rows(store, "failures", *chosen),
        sessions=_rows(store, "sessions"),
        trials=_trials(store, *chosen),
        networks=networks,
        calls=calls,
        is_whole=workloads is None and targets is None,
    )


def _calls(store: Store, networks: Sequence[NetworkRun]) -> dict[int, float]:
    """Return the weighted calls of each workload of networks, by its id."""
    calls: dict[int, float] = {}
    for network in networks:
        for operator in network.operators:
            id_ = workload_of(store, operator)
            if id_ is not None:
                calls[id_] = calls.get(id_, 0) + network.weight * operator.calls
    return calls


def workload_of(store: Store, operator: OperatorTime) -> int | None:
    """Return the id of an operator's workload; None if it is not tuned or not stored."""
    digest = operator.workload
    return None if digest is None else store.workloads.id_of(bytes.fromhex(digest))


def _rows(store: Store, name: TableName, *chosen: Sequence[int] | None) -> list[Row]:
    """Return a table as rows."""
    columns = store.table(name, *chosen).to_pydict()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _trials(store: Store, workloads: Sequence[int] | None, targets: Sequence[int] | None) -> Trials:
    columns = store.table("records", workloads, targets).to_pydict(*_TRIALS)

    def numbers(name: str) -> npt.NDArray[np.float64]:
        return np.array(columns[name], dtype=float)

    return Trials(
        record_id=np.array(columns["record_id"], np.int64),
        workload_id=np.array(columns["workload_id"], np.int64),
        target_id=np.array(columns["target_id"], np.int64),
        session_id=np.nan_to_num(numbers("session_id")).astype(np.int64),
        seconds=numbers("mean_seconds"),
        spread=np.array([_spread(runs) for runs in columns["run_seconds"]], float),
        measured_at=np.array(
            [np.nan if at is None else at.timestamp() for at in columns["measured_at"]], float
        ),
        status=np.array(columns["status"], str),
        trust=np.array(columns["trust"], str),
        served=np.array(columns["served"], bool),
    )


def _spread(runs: Sequence[float] | None) -> float:
    if not runs or len(runs) < 2:
        return float("nan")
    fastest = min(runs)
    return max(runs) / fastest if fastest > 0 else float("nan")

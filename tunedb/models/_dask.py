"""What is asked of Dask: tasks that run at the same time, one on each worker, and need one another.

This much of :mod:`xgboost.dask` is needed, without data frames.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from threading import Thread
from typing import Any

from ..errors import PluginError, StorageError, TuneDBError, UsageError
from ._xgboost import import_xgboost

#: How long a lost worker may go unnoticed.
_POLL_SECONDS = 1

#: How long workers wait for one that is busy before they give up.
_MEETING_SECONDS = 300


def import_distributed() -> Any:
    """Return the module ``distributed``.

    Raises
    ------
    PluginError
        It is not installed.
    """
    try:
        import distributed
    except ImportError as error:
        raise PluginError(
            f"Dask does not load ({error}); run: pip install 'tunedb[dask]'"
        ) from None
    return distributed


@dataclass(frozen=True, slots=True)
class Cluster:
    """The workers of a Dask cluster.

    Parameters
    ----------
    client : distributed.Client
        Of the cluster.
    distributed : module
        Dask's, most of which has no types.
    """

    client: Any
    distributed: Any

    @property
    def scheduler(self) -> str:
        """Its address."""
        return str(self.client.scheduler.address)

    def workers(self, asked: Sequence[str] | None = None) -> list[str]:
        """Return the addresses of all workers, or of those that are asked for, in order.

        Raises
        ------
        UsageError
            There is none, or not one that is asked for.
        """
        known = sorted(self.client.scheduler_info(n_workers=-1)["workers"])
        if not known:
            raise UsageError(f"no worker at {self.scheduler}; run: dask worker {self.scheduler}")
        for address in asked or ():
            if address not in known:
                raise UsageError(f"no worker {address}; there are: {', '.join(known)}")
        return sorted(set(asked)) if asked else known

    def only(self, addresses: list[str]) -> AbstractContextManager[Any]:
        """Return a lock of some workers."""
        lock: AbstractContextManager[Any] = self.distributed.MultiLock(
            addresses, client=self.client
        )
        return lock

    def start_tracker(self, workers: int) -> dict[str, Any]:
        """Start what XGBoost's workers meet by, beside the scheduler, which all of them reach."""
        host = self.distributed.comm.get_address_host(self.scheduler)
        found: dict[str, Any] = self.client.run_on_scheduler(_run_tracker, workers, host)
        return found

    def send(self, value: Any, addresses: list[str]) -> Any:
        """Return a value as tasks take it, after some workers got it.

        Raises
        ------
        StorageError
            A worker was lost.
        """
        try:
            return self.client.scatter(value, workers=addresses, broadcast=True, hash=False)
        except (KeyError, OSError):  # the scheduler knows it no more, or not yet
            raise self._lost() from None

    def run(self, address: str, work: Callable[..., Any], *arguments: Any) -> Any:
        """Return a task of one worker."""
        # A task that may go nowhere else waits for ever for a worker that was lost.
        return self.client.submit(
            work, *arguments, workers=[address], allow_other_workers=True, pure=False
        )

    def results(self, tasks: list[Any]) -> list[Any]:
        """Return what tasks that need one another return, or raise it where it is an error of ours.

        Raises
        ------
        StorageError
            A worker was lost.
        """
        lost = self._lost()
        try:
            # Dask's own waiting does not always end where a task's data went with its worker.
            while _some(tasks, "pending") and not _some(tasks, "cancelled"):
                with suppress(TimeoutError):
                    self.distributed.wait(tasks, timeout=_POLL_SECONDS)
            if _some(tasks, "cancelled"):
                raise lost
            done = list(self.client.gather(tasks))
        except self.distributed.CancelledError:
            raise lost from None
        finally:
            self.client.cancel(tasks)
        for error in done:
            if isinstance(error, TuneDBError):
                raise error
        return done

    def _lost(self) -> StorageError:
        return StorageError(f"{self.scheduler}: a worker was lost while it trained; run it again")


def _some(tasks: list[Any], status: str) -> bool:
    return any(task.status == status for task in tasks)


def _run_tracker(workers: int, host: str) -> dict[str, Any]:
    """Start a tracker in this process and return what workers need to know of it."""
    tracker = import_xgboost("xgboost.tracker").RabitTracker(
        n_workers=workers, host_ip=host, sortby="task", timeout=_MEETING_SECONDS
    )
    tracker.start()
    # Until the last worker has left.
    Thread(target=_wait, args=[tracker], daemon=True).start()
    found: dict[str, Any] = tracker.worker_args()
    return found


def _wait(tracker: Any) -> None:
    """Keep a tracker alive until its workers have left, or it gave up on one that was lost."""
    # Who trains hears of a lost worker from Dask; a scheduler's terminal is no place for it.
    with suppress(import_xgboost().core.XGBoostError):
        tracker.wait_for()
    with suppress(import_xgboost().core.XGBoostError):
        tracker.free()

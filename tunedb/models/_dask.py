"""What is asked of Dask, and of XGBoost on it; nothing of it waits for a worker that is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from ..errors import PluginError, StorageError, TuneDBError, UsageError
from ._xgboost import import_xgboost

#: How long a lost worker may go unnoticed.
_POLL_SECONDS = 1

#: How long workers wait for one that is busy, when they begin a training, before they give up.
_MEETING_SECONDS = 60


def import_xgboost_dask() -> Any:
    """Return the module ``xgboost.dask``.

    Raises
    ------
    PluginError
        It, Dask or what its data frames need is not installed.
    """
    import_xgboost()
    try:
        import_module("distributed")
        # XGBoost needs no more of it than that it is there.
        import_module("dask.dataframe")
        return import_module("xgboost.dask")
    except ImportError as error:
        # Dask has many lines to say where pandas is missing.
        reason = str(error).partition("\n")[0].rstrip(".")
        raise PluginError(
            f"xgboost.dask does not load ({reason}); run: pip install 'tunedb[dask]'"
        ) from None


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows of a matrix, on a worker.

    Parameters
    ----------
    rows : distributed.Future
        Of an ndarray of float32, shape (n, columns).
    labels : distributed.Future
        Of an ndarray of float32, shape (n,).
    shape : tuple of int
        Of the rows.
    """

    rows: Any
    labels: Any
    shape: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Cluster:
    """Some workers of a Dask cluster.

    Parameters
    ----------
    client : distributed.Client
        Of the cluster.
    addresses : list of str
        Where the workers are.
    """

    client: Any
    addresses: list[str]

    @classmethod
    def of(cls, client: Any, asked: Sequence[str] | None = None) -> Cluster:
        """Return all workers of a cluster, or those that are asked for, in the order of addresses.

        Raises
        ------
        UsageError
            There is none, or not one that is asked for.
        """
        scheduler = client.scheduler.address
        known = sorted(client.scheduler_info(n_workers=-1)["workers"])
        if not known:
            raise UsageError(f"no worker at {scheduler}; run: dask worker {scheduler}")
        for address in asked or ():
            if address not in known:
                raise UsageError(f"no worker {address}; there are: {', '.join(known)}")
        return cls(client, sorted(set(asked)) if asked else known)

    def first(self, count: int) -> Cluster:
        """Return the first workers."""
        return Cluster(self.client, self.addresses[:count])

    def threads(self) -> int:
        """Return how many threads Dask gives a worker."""
        workers = self.client.scheduler_info(n_workers=-1)["workers"]
        known = [workers[one]["nthreads"] for one in self.addresses if one in workers]
        return max(map(int, known), default=1)

    def send(self, value: Any, address: str | None = None) -> Any:
        """Return a value as tasks take it, after a worker got it."""
        to = [address or self.addresses[0]]
        # Dask would look into all of it to find out whether it was sent before.
        return self._await(lambda: self.client.scatter(value, workers=to, hash=False))

    def run(self, address: str, work: Callable[..., Any], *arguments: Any) -> Any:
        """Return a task of a worker."""
        # A task that may go nowhere else waits for ever for a worker that was lost.
        return self.client.submit(
            work, *arguments, workers=[address], allow_other_workers=True, pure=False
        )

    def wait(self, tasks: Sequence[Any]) -> None:
        """Return when tasks are done; what they return stays on the workers."""
        from distributed import wait

        self._await(lambda: wait(tasks))  # type: ignore[no-untyped-call]

    def results(self, tasks: Sequence[Any]) -> list[Any]:
        """Return what tasks return, or raise it where it is an error of ours.

        They return errors because Dask logs what a task raises.
        """
        done: list[Any] = self._await(lambda: self.client.gather(tasks))
        for error in done:
            if isinstance(error, TuneDBError):
                raise error
        return done

    def matrix(self, parts: Sequence[Part], bins: int) -> Any:
        """Return an ``xgboost.dask.DaskQuantileDMatrix`` of the rows that workers have."""
        from dask import array

        def one_of(futures: list[tuple[Any, tuple[int, ...]]]) -> Any:
            arrays = [array.from_delayed(*one, np.float32) for one in futures]  # type: ignore[no-untyped-call]
            return array.concatenate(arrays)  # type: ignore[no-untyped-call]

        matrix = import_xgboost_dask().DaskQuantileDMatrix
        rows = one_of([(part.rows, part.shape) for part in parts])
        labels = one_of([(part.labels, part.shape[:1]) for part in parts])
        return self._await(lambda: matrix(self.client, rows, label=labels, max_bin=bins))

    def train(self, settings: dict[str, Any], matrix: Any, rounds: int, **options: Any) -> Any:
        """Return the booster that ``xgboost.dask.train`` makes of a matrix."""
        from distributed import MultiLock

        config = import_xgboost("xgboost.collective").Config
        train = import_xgboost_dask().train
        # XGBoost has such a lock too, but lets workers begin to wait for each other before it.
        names = [f"tunedb {address}" for address in self.addresses]

        async def start() -> Any:
            async with MultiLock(names, client=self.client):
                # The workers take over how much XGBoost says here.
                with import_xgboost().config_context(verbosity=0):
                    trained = train(
                        self.client,
                        settings,
                        matrix,
                        rounds,
                        verbose_eval=False,
                        # Without it, workers wait for ever for one that is lost before they meet.
                        coll_cfg=config(tracker_timeout=_MEETING_SECONDS),
                        **options,
                    )
                return (await trained)["booster"]

        return self._await(start)

    def _await(self, start: Callable[[], Awaitable[Any]]) -> Any:
        """Return what is started returns, while all workers are there.

        Raises
        ------
        StorageError
            A worker was lost, or does not reach the others.
        """
        return self.client.sync(self._watched, start)

    async def _watched(self, start: Callable[[], Awaitable[Any]]) -> Any:
        from dask.base import annotate

        # XGBoost asks Dask for the client, and lets Dask choose where parts of a matrix are.
        with (
            self.client.as_current(),
            annotate(workers=self.addresses, allow_other_workers=True),
        ):
            running = asyncio.ensure_future(_awaited(start))
        # Where a lost worker is noticed first, nobody asks what else went wrong, and asyncio tells.
        running.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            # Neither Dask nor XGBoost always ends where a task's data, or a neighbour, is lost.
            while not (await asyncio.wait({running}, timeout=_POLL_SECONDS))[0]:
                if await self._are_missing():
                    raise self._lost()
            return running.result()
        except Exception as error:  # whatever it is, a lost worker is why
            if await self._are_missing():
                raise self._lost() from None
            if not isinstance(error, import_xgboost().core.XGBoostError):
                raise
            # Neighbours notice a loss before the scheduler does.
            await asyncio.sleep(_POLL_SECONDS)
            raise await self._why(error) from None
        finally:
            if running.cancel():
                # XGBoost gives the workers that it has reserved back.
                await asyncio.wait({running}, timeout=_POLL_SECONDS)

    async def _why(self, error: Exception) -> StorageError:
        if await self._are_missing():
            return self._lost()
        # From what failed to why it did, a line each, and where in XGBoost.
        lines = str(error).partition("Stack trace")[0].split("\n")
        reason = next((line.strip(" -") for line in reversed(lines) if line.strip()), "")
        return StorageError(
            f"{self.client.scheduler.address}: XGBoost failed on its workers ({reason}); "
            "check that they run and reach one another"
        )

    async def _are_missing(self) -> bool:
        """Return whether workers were lost."""
        known = await self.client.scheduler.identity()
        return not set(self.addresses) <= set(known["workers"])

    def _lost(self) -> StorageError:
        return StorageError(
            f"{self.client.scheduler.address}: a worker was lost during training; run it again"
        )


async def _awaited(start: Callable[[], Awaitable[Any]]) -> Any:
    return await start()

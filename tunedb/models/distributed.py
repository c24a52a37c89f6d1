"""Training on several machines, the workers of a Dask cluster, through :mod:`xgboost.dask`.

The rows of some workloads, whole ones, are the partition of a worker, so that no program and no
group is divided. XGBoost finds the bounds of bins and adds up histograms over all workers. The loss
is one of all programs: in each round workers add up the programs' scores, so they take the same
gradients, see the same accuracy on held-out workloads, and stop together.

The bounds of bins are sketches that depend on which worker has which rows, so the model is not that
of one machine to the byte. It is as good, and the same workers make the same model again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import PluginError, StorageError, TuneDBError, UsageError
from ._xgboost import import_xgboost
from .base import Floats
from .boosting import BINS, Matrix, OnFigure, check_parameters
from .dataset import with_rows
from .external import check_any_rows
from .training import Fitted, fit

if TYPE_CHECKING:
    from distributed import Client

    from ..storage.store import Store
    from .base import RowModel
    from .boosting import EarlyStopping, ObjectiveGradients
    from .dataset import Dataset
    from .recipe import Recipe

#: How long a lost worker may go unnoticed.
_POLL_SECONDS = 1

#: How long workers wait for one another when they begin a training, before they give up.
_MEETING_SECONDS = 60

#: Attribute of a booster that carries the accuracy after each round to the client.
_HISTORY = "tunedb.history"


def fit_on_cluster(
    client: Client,
    examples: Dataset,
    recipe: Recipe,
    *,
    url: str | None = None,
    workers: Sequence[str] | None = None,
    threads: int | None = None,
) -> Fitted:
    """Train a model on the workers of a Dask cluster, as good as that of one machine.

    Scheduler and workers need tunedb with the extra ``dask``, all of the same versions. Two
    trainings that share a worker wait for each other.

    Parameters
    ----------
    client : distributed.Client
        Not an asynchronous one.
    examples : Dataset
        What is measured. With rows, each worker is sent those of its workloads. Without
        (``load(..., rows=False)``) each reads them from the database.
    recipe : Recipe
        All choices.
    url : str, optional
        The database that the examples were loaded from, as the workers reach it: PostgreSQL's URL,
        or the path of a file that all machines share. A password in it goes to the workers as Dask
        sends everything: in the clear, unless the cluster has TLS.
    workers : sequence of str, optional
        Addresses of those to use; without, all of the cluster. No more are used than there are
        workloads.
    threads : int, optional
        Threads of XGBoost on each worker; without, as many as Dask gives it.

    Raises
    ------
    UsageError
        As :func:`tunedb.models.training.fit`; or a worker is not there, or neither rows nor a URL.
    StorageError
        The workers' database is not that of the examples, a worker was lost, or the scheduler does
        not answer.
    PluginError
        The extra is not installed.
    """
    _import_xgboost_dask()
    if url is not None:
        examples = replace(examples, rows=examples.rows[:0])
    elif not len(examples.rows):
        raise UsageError("examples have no rows; give workers the url to read them from")
    scheduler: Any = client.scheduler
    if scheduler is None:  # the client is closed, or has given it up
        raise StorageError("Dask's scheduler does not answer; start it and connect again")
    cluster = _Cluster(client, scheduler, url, threads, [])
    known = cluster.sync(scheduler.identity)["workers"]
    if not known:
        raise UsageError(f"no worker at {scheduler.address}; run: dask worker {scheduler.address}")
    for address in workers or ():
        if address not in known:
            raise UsageError(f"no worker {address}; there are: {', '.join(sorted(known))}")
    addresses = sorted(set(workers or known))
    return fit(
        examples,
        recipe,
        threads=threads or max(known[address]["nthreads"] for address in addresses),
        make_matrix=replace(cluster, addresses=addresses).matrix,
    )


def divide(examples: Dataset, workers: int) -> list[NDArray[np.int64]]:
    """Return which workloads each worker has: all of them, each once, none without any.

    The workload with most rows goes first, to the worker with fewest (Graham's LPT rule: the
    fullest has at most 4/3 of what the best division gives it).

    Parameters
    ----------
    examples : Dataset
        What is learnt from.
    workers : int
        How many there are at most.

    Returns
    -------
    list of ndarray of int64
        Indices into :attr:`Dataset.workloads`, ascending.
    """
    rows = np.bincount(examples.workload, examples.sizes, len(examples.workloads))
    present = np.unique(examples.workload)
    shares: list[list[int]] = [[] for _ in range(min(workers, len(present)))]
    loads = np.zeros(len(shares))
    for workload in present[np.argsort(-rows[present], kind="stable")].tolist():
        # The number of workloads decides where rows do not, so that nobody goes without.
        least = min(range(len(shares)), key=lambda one: (loads[one], len(shares[one])))
        shares[least].append(workload)
        loads[least] += rows[workload]
    return [np.sort(np.array(share, np.int64)) for share in shares]


# ---- The client's side ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Cluster:
    """Some workers of a Dask cluster; nothing waits for one that is lost."""

    client: Any
    #: The client's; a client that gives up forgets it.
    scheduler: Any
    url: str | None
    threads: int | None
    addresses: list[str]

    def matrix(self, chosen: Dataset, row_model: RowModel, _: int, seed: int) -> _ClusterMatrix:
        """Return the matrix of some programs (:data:`tunedb.models.training.MakeMatrix`)."""
        check_any_rows(chosen)
        shares = divide(chosen, len(self.addresses))
        cluster = replace(self, addresses=self.addresses[: len(shares)])
        programs = [np.flatnonzero(np.isin(chosen.workload, share)) for share in shares]
        made = []
        for address, own in zip(cluster.addresses, programs, strict=True):
            sent = cluster.send(chosen.take(own), address)
            made.append((address, cluster.run(address, _make, sent, self.url, row_model)))
        sizes = np.zeros(len(chosen), np.int64)
        counts = cluster.results([cluster.run(address, _sizes, task) for address, task in made])
        for own, count in zip(programs, counts, strict=True):
            sizes[own] = count
        width = len(row_model.columns(chosen.columns))
        rows, labels = [], []
        for number, (address, task) in enumerate(made):
            # XGBoost takes no part of no rows.
            if count := int(sizes[programs[number]].sum()):
                part = cluster.run(address, itemgetter(0), task)
                rows.append((part, (count, width), np.float32))
                part = cluster.run(address, np.full, count, number, np.float32)
                labels.append((part, (count,), np.float32))
        data = cluster.quantile_matrix(rows, labels)
        return _ClusterMatrix(cluster, data, sizes, programs)

    def send(self, value: Any, address: str) -> Any:
        """Return a value as tasks take it, once a worker has it."""
        # Dask would look into all of it to find out whether it was sent before.
        return self.sync(lambda: self.client.scatter(value, workers=[address], hash=False))

    def run(self, address: str, work: Callable[..., Any], *arguments: Any) -> Any:
        """Return a task of a worker."""
        # A task that may go nowhere else waits for ever for a worker that was lost.
        return self.client.submit(
            work, *arguments, workers=[address], allow_other_workers=True, pure=False
        )

    def results(self, tasks: Sequence[Any]) -> list[Any]:
        """Return the tasks' results; raise an error that a task returns."""
        results: list[Any] = self.sync(lambda: self.client.gather(tasks))
        for result in results:
            if isinstance(result, TuneDBError):
                raise result
        return results

    def quantile_matrix(self, rows: list[Any], labels: list[Any]) -> Any:
        """Return an ``xgboost.dask.DaskQuantileDMatrix`` of tasks with shapes and dtypes."""
        from dask import array

        matrix = _import_xgboost_dask().DaskQuantileDMatrix
        data, label = (
            array.concatenate([array.from_delayed(*part) for part in parts])  # type: ignore[no-untyped-call]
            for parts in (rows, labels)
        )
        return self.sync(lambda: matrix(self.client, data, label=label, max_bin=BINS))

    def train(self, settings: dict[str, Any], data: Any, rounds: int, calls: Any) -> Any:
        """Return the booster that ``xgboost.dask.train`` makes of a matrix."""
        from distributed import MultiLock

        # Without it, workers wait for ever for one that is lost before they meet.
        config = import_xgboost("xgboost.collective").Config(tracker_timeout=_MEETING_SECONDS)
        train = _import_xgboost_dask().train
        # XGBoost has such a lock too, but that time passes while a training waits for it.
        names = [f"tunedb {address}" for address in self.addresses]
        options = {"obj": calls, "callbacks": [calls], "coll_cfg": config, "verbose_eval": False}

        async def start() -> Any:
            async with MultiLock(names, client=self.client):
                # The workers take over how much XGBoost says here.
                with import_xgboost().config_context(verbosity=0):
                    training = train(self.client, settings, data, rounds, **options)
                return (await training)["booster"]

        return self.sync(start)

    def sync(self, start: Callable[[], Awaitable[Any]]) -> Any:
        """Return the result of what is started, while all workers are there.

        Raises
        ------
        StorageError
            A worker was lost or does not reach the others, or the scheduler does not answer.
        """
        return self.client.sync(self._watched, start)

    async def _watched(self, start: Callable[[], Awaitable[Any]]) -> Any:
        from dask.base import annotate

        async def awaited() -> Any:
            return await start()

        # XGBoost asks Dask for the client, and lets Dask choose where parts of a matrix are.
        with (
            self.client.as_current(),
            annotate(workers=self.addresses, allow_other_workers=True),
        ):
            running = asyncio.ensure_future(awaited())
        # Where a lost worker is noticed first, nobody asks what else went wrong, and asyncio tells.
        running.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            # Neither Dask nor XGBoost always ends where a task's data, or a neighbour, is lost.
            while not (await asyncio.wait({running}, timeout=_POLL_SECONDS))[0]:
                await self._check_workers()
            return running.result()
        except StorageError:
            raise
        except Exception as error:  # whatever it is, a lost worker is why
            await self._check_workers()
            if not isinstance(error, import_xgboost().core.XGBoostError):
                raise
            # Neighbours notice a loss before the scheduler does.
            await asyncio.sleep(_POLL_SECONDS)
            await self._check_workers()
            # From what failed to why it did, a line each, and where in XGBoost.
            lines = str(error).partition("Stack trace")[0].split("\n")
            reason = next((line.strip(" -") for line in reversed(lines) if line.strip()), "")
            raise StorageError(
                f"{self.scheduler.address}: XGBoost failed on its workers ({reason}); "
                "check that they run and reach one another"
            ) from None
        finally:
            if running.cancel():
                # XGBoost gives the workers that it has reserved back.
                await asyncio.wait({running}, timeout=_POLL_SECONDS)

    async def _check_workers(self) -> None:
        """Raise StorageError where workers were lost, or the scheduler."""
        scheduler = self.scheduler.address
        try:
            known = await self.scheduler.identity()
        except (OSError, RuntimeError):  # a client that has given up closes its connections
            raise StorageError(
                f"{scheduler}: the scheduler does not answer; start it and run it again"
            ) from None
        if not set(self.addresses) <= set(known["workers"]):
            raise StorageError(
                f"{scheduler}: a worker was lost during training; run it again"
            ) from None


@dataclass(frozen=True, slots=True, eq=False)
class _ClusterMatrix:
    """The rows of some programs on the workers of a cluster (:class:`boosting.TrainingMatrix`)."""

    cluster: _Cluster
    #: The ``xgboost.dask.DaskQuantileDMatrix``.
    data: Any
    sizes: NDArray[np.int64]
    #: Numbers of the programs of each partition.
    partitions: list[NDArray[np.int64]]

    def boost(
        self,
        gradients: ObjectiveGradients,
        settings: dict[str, Any],
        rounds: int,
        *,
        stopping: EarlyStopping | None = None,
        on_figure: OnFigure | None = None,
    ) -> tuple[Any, list[float]]:
        """Train a booster (:meth:`boosting.TrainingMatrix.boost`); without progress."""
        # Dask would log what workers raise.
        check_parameters(settings)
        cluster, shared = self.cluster, _Shared(gradients, stopping, self.sizes, self.partitions)
        sent = cluster.send(shared, cluster.addresses[0])
        # Dask drops copies of what was sent, but not the result of a task.
        there = [cluster.run(address, _same, sent) for address in cluster.addresses]
        cluster.sync(lambda: import_module("distributed").wait(there))
        keys = {to: task.key for to, task in zip(cluster.addresses, there, strict=True)}
        settings = settings | {"base_score": gradients.base, "nthread": cluster.threads or 0}
        booster = cluster.train(settings, self.data, rounds, _round_calls(keys))
        history: list[float] = json.loads(booster.attr(_HISTORY))
        booster.set_attr(**{_HISTORY: None})
        return booster, history


# ---- The workers' side ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Shared:
    """What every worker knows of a training."""

    gradients: ObjectiveGradients
    stopping: EarlyStopping | None
    sizes: NDArray[np.int64]
    #: Numbers of the programs of each partition, in the order of their rows. A row's label is the
    #: number of its partition: XGBoost says nothing else of what a worker has, in which order.
    partitions: list[NDArray[np.int64]]

    def here(self, data: Any) -> tuple[Matrix, NDArray[np.int64]]:
        """Return a worker's matrix, and the numbers of the programs whose rows are in it."""
        labels = data.get_label().astype(np.int64)
        begins = np.flatnonzero(np.diff(labels, prepend=-1))
        numbers = np.concatenate([self.partitions[label] for label in labels[begins].tolist()])
        return Matrix(data, np.concatenate(([0], np.cumsum(self.sizes[numbers])))), numbers

    def scores(self, sums: Floats, numbers: NDArray[np.int64]) -> Floats:
        """Return the scores of all programs, given those of a worker's."""
        scores = np.zeros(len(self.sizes))
        scores[numbers] = sums
        # Each program is on one worker and 0 on the others.
        collective = import_xgboost("xgboost.collective")
        return np.asarray(collective.allreduce(scores, collective.Op.SUM))


def _round_calls(keys: dict[str, Any]) -> Any:
    """Return the objective of a booster that is its callback too.

    XGBoost pickles it for each worker. The keys say under what Dask keeps each worker's
    :class:`_Shared`, which is too large to go with a task.
    """
    callback = import_xgboost("xgboost.callback").TrainingCallback

    class RoundCalls(callback):  # type: ignore[misc, valid-type]
        """What XGBoost calls on each worker, in each round."""

        def __init__(self) -> None:
            super().__init__()
            self.history: list[float] = []
            #: What the worker knows and has, from the first round on.
            self.here: tuple[_Shared, Matrix, NDArray[np.int64]] | None = None

        def __call__(self, margins: NDArray[np.float32], data: Any) -> tuple[Any, Any]:
            if self.here is None:
                worker = import_module("distributed").get_worker()
                shared: _Shared = worker.data[keys[worker.address]]
                self.here = (shared, *shared.here(data))
            shared, matrix, numbers = self.here
            scores = shared.scores(matrix.sums(margins), numbers)
            gradient, hessian = shared.gradients.derivatives(scores)
            return matrix.to_rows(gradient[numbers]), matrix.to_rows(hessian[numbers])

        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            if self.here is None or (stopping := self.here[0].stopping) is None:
                return False
            shared, matrix, numbers = self.here
            scores = shared.scores(matrix.scores(model), numbers)
            self.history.append(stopping.accuracy(scores))
            return stopping.stops(self.history)

        def after_training(self, model: Any) -> Any:
            # XGBoost's own log of a training has six digits.
            model.set_attr(**{_HISTORY: json.dumps(self.history)})
            return model

    return RoundCalls()


def _make(
    examples: Dataset, url: str | None, row_model: RowModel
) -> tuple[NDArray[np.float32], NDArray[np.int64]] | TuneDBError:
    """Return the rows that trees see, and how many each program has.

    Errors are returned because Dask logs what a task raises.
    """
    try:
        _import_xgboost_dask()
        if url is not None:
            from ..storage.store import Store

            with Store(url, read_only=True) as store:
                _check_workloads(store, examples)
                examples = with_rows(store, examples)
    except TuneDBError as error:
        return error
    rows, starts = row_model.rows(examples.rows, examples.starts)
    return rows, np.diff(starts)


def _sizes(
    made: tuple[NDArray[np.float32], NDArray[np.int64]] | TuneDBError,
) -> NDArray[np.int64] | TuneDBError:
    return made if isinstance(made, TuneDBError) else made[1]


def _same(shared: _Shared) -> _Shared:
    return shared


def _check_workloads(store: Store, examples: Dataset) -> None:
    """Raise StorageError where local numbers mean something else in another database."""
    named = {examples.workloads[one] for one in np.unique(examples.workload)}
    ids = [workload.id for workload in named]
    there = {id_: digest for id_, digest, *_ in store.training.workloads(ids)}
    if there != {workload.id: workload.digest for workload in named}:
        raise StorageError(f"{store.location} is not the database of the labels")


def _import_xgboost_dask() -> Any:
    """Return the module ``xgboost.dask``, or raise PluginError where a package is missing."""
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

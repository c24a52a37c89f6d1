"""Training on the workers of a Dask cluster, with :mod:`xgboost.dask`.

The partition of a worker has the rows of whole workloads, so that no program and no group is
divided. XGBoost computes the bounds of bins and sums histograms over all workers. The loss is a
function of all programs: in each round the workers sum the programs' scores, so that they compute
the same gradients and the same accuracy on held-out workloads, and stop together.

The bounds of bins are sketches that depend on the division of rows, so the bytes of the model
differ from those of a single machine. Its quality is equal, and the same workers give the same
model again.
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

#: Interval of the checks for lost workers.
_POLL_SECONDS = 1

#: Timeout of workers that wait for each other at the start of a training.
_MEETING_SECONDS = 60

#: Attribute of a booster with the accuracy after each round, for the client.
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
    """Train a model on the workers of a Dask cluster, with the quality of a single machine.

    Scheduler and workers need tunedb with the extra ``dask``, in equal versions. Trainings that
    share a worker wait for each other.

    Parameters
    ----------
    client : distributed.Client
        A synchronous client.
    examples : Dataset
        With rows, each worker receives the rows of its workloads. Without rows
        (``load(..., rows=False)``) each worker reads them from the database.
    recipe : Recipe
        Recipe of the model.
    url : str, optional
        URL of the examples' database, as reachable by the workers: a PostgreSQL URL, or the path of
        a file on a shared file system. Dask sends a password in it in the clear, unless the cluster
        has TLS.
    workers : sequence of str, optional
        Addresses of the workers to use; by default all. At most one worker per workload is used.
    threads : int, optional
        Threads of XGBoost on each worker; by default the threads of the Dask worker.

    Raises
    ------
    UsageError
        As :func:`tunedb.models.training.fit`; or a worker does not exist, or there are neither rows
        nor a URL.
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
    if scheduler is None:  # the client is closed
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
    """Return the workloads of each worker: each workload once, no worker without any.

    Workloads are assigned by descending rows to the least loaded worker (Graham's LPT rule: the
    maximum load is at most 4/3 of the optimum).

    Parameters
    ----------
    examples : Dataset
        Training programs.
    workers : int
        Maximum number of workers.

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
        # Ties go to the worker with fewer workloads, so that no worker is without any.
        least = min(range(len(shares)), key=lambda share: (loads[share], len(shares[share])))
        shares[least].append(workload)
        loads[least] += rows[workload]
    return [np.sort(np.array(share, np.int64)) for share in shares]


# ---- The client's side ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Cluster:
    """The workers of a Dask cluster used for a training; a lost worker raises an error."""

    client: Any
    #: Scheduler of the client; kept here, because a closed client drops it.
    scheduler: Any
    url: str | None
    threads: int | None
    addresses: list[str]

    def matrix(self, chosen: Dataset, row_model: RowModel, _: int, seed: int) -> _ClusterMatrix:
        """Return the matrix of training programs (:data:`tunedb.models.training.MakeMatrix`)."""
        check_any_rows(chosen)
        shares = divide(chosen, len(self.addresses))
        cluster = replace(self, addresses=self.addresses[: len(shares)])
        programs = [np.flatnonzero(np.isin(chosen.workload, share)) for share in shares]
        tasks = []
        for address, own in zip(cluster.addresses, programs, strict=True):
            sent = cluster.send(chosen.take(own), address)
            tasks.append((address, cluster.run(address, _make_rows, sent, self.url, row_model)))
        sizes = np.zeros(len(chosen), np.int64)
        counts = cluster.results([cluster.run(address, _sizes, task) for address, task in tasks])
        for own, count in zip(programs, counts, strict=True):
            sizes[own] = count
        width = len(row_model.columns(chosen.columns))
        rows, labels = [], []
        for number, (address, task) in enumerate(tasks):
            # XGBoost rejects empty partitions.
            if count := int(sizes[programs[number]].sum()):
                partition = cluster.run(address, itemgetter(0), task)
                rows.append((partition, (count, width), np.float32))
                partition = cluster.run(address, np.full, count, number, np.float32)
                labels.append((partition, (count,), np.float32))
        data = cluster.quantile_matrix(rows, labels)
        return _ClusterMatrix(cluster, data, sizes, programs)

    def send(self, value: Any, address: str) -> Any:
        """Send a value to a worker; return its future."""
        # Without `hash=False` Dask would hash the whole value.
        return self.sync(lambda: self.client.scatter(value, workers=[address], hash=False))

    def run(self, address: str, work: Callable[..., Any], *arguments: Any) -> Any:
        """Submit a call to a worker; return its future."""
        # A task restricted to a lost worker would wait forever.
        return self.client.submit(
            work, *arguments, workers=[address], allow_other_workers=True, pure=False
        )

    def results(self, tasks: Sequence[Any]) -> list[Any]:
        """Return the results of tasks; raise a returned error."""
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
            array.concatenate([array.from_delayed(*partition) for partition in parts])  # type: ignore[no-untyped-call]
            for parts in (rows, labels)
        )
        return self.sync(lambda: matrix(self.client, data, label=label, max_bin=BINS))

    def train(self, settings: dict[str, Any], data: Any, rounds: int, calls: Any) -> Any:
        """Train a booster with ``xgboost.dask.train``."""
        from distributed import MultiLock

        # Without a timeout, workers wait forever for a worker that was lost before they connect.
        config = import_xgboost("xgboost.collective").Config(tracker_timeout=_MEETING_SECONDS)
        train = _import_xgboost_dask().train
        # XGBoost has such a lock too, but its timeout also runs while a training waits for it.
        names = [f"tunedb {address}" for address in self.addresses]
        options = {"obj": calls, "callbacks": [calls], "coll_cfg": config, "verbose_eval": False}

        async def start() -> Any:
            async with MultiLock(names, client=self.client):
                # The workers inherit the verbosity of the client.
                with import_xgboost().config_context(verbosity=0):
                    training = train(self.client, settings, data, rounds, **options)
                return (await training)["booster"]

        return self.sync(start)

    def sync(self, start: Callable[[], Awaitable[Any]]) -> Any:
        """Run a coroutine to its end; raise StorageError if workers or the scheduler are lost."""
        return self.client.sync(self._watched, start)

    async def _watched(self, start: Callable[[], Awaitable[Any]]) -> Any:
        from dask.base import annotate

        async def awaited() -> Any:
            return await start()

        # XGBoost gets the client from Dask, and Dask places the partitions of a matrix.
        with (
            self.client.as_current(),
            annotate(workers=self.addresses, allow_other_workers=True),
        ):
            running = asyncio.ensure_future(awaited())
        # Retrieves the exception, which asyncio would otherwise log if a lost worker raises first.
        running.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            # Neither Dask nor XGBoost always ends if the data of a task, or a worker, is lost.
            while not (await asyncio.wait({running}, timeout=_POLL_SECONDS))[0]:
                await self._check_workers()
            return running.result()
        except StorageError:
            raise
        except Exception as error:  # a lost worker may cause any exception
            await self._check_workers()
            if not isinstance(error, import_xgboost().core.XGBoostError):
                raise
            # Workers notice a loss before the scheduler does.
            await asyncio.sleep(_POLL_SECONDS)
            await self._check_workers()
            # XGBoost's error has one line per cause, the root cause last, then a stack trace.
            lines = str(error).partition("Stack trace")[0].split("\n")
            reason = next((line.strip(" -") for line in reversed(lines) if line.strip()), "")
            raise StorageError(
                f"{self.scheduler.address}: XGBoost failed on its workers ({reason}); "
                "check that they run and reach one another"
            ) from None
        finally:
            if running.cancel():
                # Lets XGBoost release the workers that it has reserved.
                await asyncio.wait({running}, timeout=_POLL_SECONDS)

    async def _check_workers(self) -> None:
        """Raise StorageError if workers or the scheduler were lost."""
        scheduler = self.scheduler.address
        try:
            known = await self.scheduler.identity()
        except (OSError, RuntimeError):  # the client has closed its connections
            raise StorageError(
                f"{scheduler}: the scheduler does not answer; start it and run it again"
            ) from None
        if not set(self.addresses) <= set(known["workers"]):
            raise StorageError(
                f"{scheduler}: a worker was lost during training; run it again"
            ) from None


@dataclass(frozen=True, slots=True, eq=False)
class _ClusterMatrix:
    """The rows of programs on the workers of a cluster (:class:`boosting.TrainingMatrix`)."""

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
        """Train a booster (:meth:`boosting.TrainingMatrix.boost`), without progress."""
        # Checked here, because Dask would log an error of the workers.
        check_parameters(settings)
        cluster, shared = (
            self.cluster,
            _TrainingState(gradients, stopping, self.sizes, self.partitions),
        )
        sent = cluster.send(shared, cluster.addresses[0])
        # Dask may drop copies of scattered data, but keeps the result of a task.
        copies = [cluster.run(address, _identity, sent) for address in cluster.addresses]
        cluster.sync(lambda: import_module("distributed").wait(copies))
        keys = {to: task.key for to, task in zip(cluster.addresses, copies, strict=True)}
        settings = settings | {"base_score": gradients.base, "nthread": cluster.threads or 0}
        booster = cluster.train(settings, self.data, rounds, _round_calls(keys))
        history: list[float] = json.loads(booster.attr(_HISTORY))
        booster.set_attr(**{_HISTORY: None})
        return booster, history


# ---- The workers' side ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _TrainingState:
    """The state of a training, equal on all workers."""

    gradients: ObjectiveGradients
    stopping: EarlyStopping | None
    sizes: NDArray[np.int64]
    #: Numbers of the programs of each partition, in the order of their rows. The label of a row is
    #: the number of its partition, by which a worker identifies its partitions and their order.
    partitions: list[NDArray[np.int64]]

    def here(self, data: Any) -> tuple[Matrix, NDArray[np.int64]]:
        """Return the matrix of a worker, and the numbers of its programs."""
        labels = data.get_label().astype(np.int64)
        begins = np.flatnonzero(np.diff(labels, prepend=-1))
        numbers = np.concatenate([self.partitions[label] for label in labels[begins].tolist()])
        return Matrix(data, np.concatenate(([0], np.cumsum(self.sizes[numbers])))), numbers

    def scores(self, sums: Floats, numbers: NDArray[np.int64]) -> Floats:
        """Return the scores of all programs, given those of the worker's programs."""
        scores = np.zeros(len(self.sizes))
        scores[numbers] = sums
        # Each program has its score on one worker, and 0 on the others.
        collective = import_xgboost("xgboost.collective")
        return np.asarray(collective.allreduce(scores, collective.Op.SUM))


def _round_calls(keys: dict[str, Any]) -> Any:
    """Return the objective of a booster, which is also its callback.

    XGBoost pickles it for each worker. `keys` are Dask's keys of the :class:`_TrainingState` of
    each worker, which is too large to pickle.
    """
    callback = import_xgboost("xgboost.callback").TrainingCallback

    class RoundCalls(callback):  # type: ignore[misc, valid-type]
        """Objective and callback of XGBoost on each worker."""

        def __init__(self) -> None:
            super().__init__()
            self.history: list[float] = []
            #: State, matrix and program numbers of the worker, from the first round on.
            self.here: tuple[_TrainingState, Matrix, NDArray[np.int64]] | None = None

        def __call__(self, margins: NDArray[np.float32], data: Any) -> tuple[Any, Any]:
            if self.here is None:
                worker = import_module("distributed").get_worker()
                shared: _TrainingState = worker.data[keys[worker.address]]
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
            # XGBoost's own history has six digits only.
            model.set_attr(**{_HISTORY: json.dumps(self.history)})
            return model

    return RoundCalls()


def _make_rows(
    examples: Dataset, url: str | None, row_model: RowModel
) -> tuple[NDArray[np.float32], NDArray[np.int64]] | TuneDBError:
    """Return rows for the trees and the size of each program; errors too: Dask logs raised ones."""
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
    partition: tuple[NDArray[np.float32], NDArray[np.int64]] | TuneDBError,
) -> NDArray[np.int64] | TuneDBError:
    return partition if isinstance(partition, TuneDBError) else partition[1]


def _identity(shared: _TrainingState) -> _TrainingState:
    return shared


def _check_workloads(store: Store, examples: Dataset) -> None:
    """Raise StorageError if local numbers mean other workloads in this database."""
    named = {examples.workloads[index] for index in np.unique(examples.workload)}
    ids = [workload.id for workload in named]
    stored = {id_: digest for id_, digest, *_ in store.training.workloads(ids)}
    if stored != {workload.id: workload.digest for workload in named}:
        raise StorageError(f"{store.location} is not the database of the labels")


def _import_xgboost_dask() -> Any:
    """Return the module ``xgboost.dask``, or raise PluginError if a package is missing."""
    import_xgboost()
    try:
        import_module("distributed")
        # XGBoost only checks that it can be imported.
        import_module("dask.dataframe")
        return import_module("xgboost.dask")
    except ImportError as error:
        # Dask's error for missing pandas has many lines.
        reason = str(error).partition("\n")[0].rstrip(".")
        raise PluginError(
            f"xgboost.dask does not load ({reason}); run: pip install 'tunedb[dask]'"
        ) from None

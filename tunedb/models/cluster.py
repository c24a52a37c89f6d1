"""Training on several machines, the workers of a Dask cluster.

Each worker has the rows of some workloads, whole ones, so that no program and no group is divided,
and runs :func:`tunedb.models.training.fit` beside the others. All of them know all labels. In each
round they add up the scores of the programs, so they take the same gradients, see the same accuracy
on held-out workloads, and stop together; XGBoost adds up the histograms of their rows. The bounds
of bins come from the same sample of rows as on one machine, and sums of gradients are exact in
every order. So the model is that of one machine, to the byte, however many workers there are; but
``subsample`` below 1 draws other rows, because XGBoost draws them on each worker.

What runs is what :func:`xgboost.dask.train` runs: a tracker on the scheduler, and on each worker a
task inside of one communicator (:mod:`xgboost.collective`). :mod:`xgboost.dask` itself is not
imported: its ``DaskDMatrix`` gives an objective the rows that a worker happens to hold, with
neither programs nor groups, and the module needs pandas and PyArrow for data frames that nobody has
here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import StorageError, TuneDBError, UsageError
from ._dask import Cluster, import_distributed
from ._xgboost import import_xgboost
from .boosting import BINS, Matrix, sample
from .external import check_any_rows
from .loading import with_rows
from .training import Fitted, check_finite, fit, select

if TYPE_CHECKING:
    from distributed import Client

    from ..store import Store
    from .base import Floats, RowModel
    from .examples import Examples
    from .recipe import Recipe

T = TypeVar("T")


def fit_on_cluster(
    client: Client,
    examples: Examples,
    recipe: Recipe,
    *,
    url: str | None = None,
    workers: Sequence[str] | None = None,
    threads: int | None = None,
) -> Fitted:
    """Train a model on the workers of a Dask cluster, with the same result as on one machine.

    (With ``recipe.subsample`` 1, or on one worker.) Scheduler and workers need tunedb with the
    extra ``dask``, all of the same versions. Two trainings that share a worker wait for each other.

    Parameters
    ----------
    client : distributed.Client
        Not an asynchronous one.
    examples : Examples
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
        The workers' database is not that of the examples, or a worker was lost.
    PluginError
        The extra is not installed.
    """
    cluster = Cluster(client, import_distributed())
    if url is None and not len(examples.rows):
        raise UsageError("examples without rows; say by url where workers can read them")
    addresses = cluster.workers(workers)
    chosen = select(examples, recipe)
    check_any_rows(chosen)
    shares = divide(chosen, len(addresses))
    addresses = addresses[: len(shares)]
    labels = replace(examples, rows=examples.rows[:0])
    # Two trainings that each hold some of the workers and wait for the others' would hang.
    with cluster.only(addresses):
        communicator = cluster.start_tracker(len(shares))
        everywhere = cluster.send(labels, addresses)
        tasks = []
        for rank, (address, workloads) in enumerate(zip(addresses, shares, strict=True)):
            own = url or examples.take(np.isin(examples.workload, workloads))
            place = _Place(address, rank, workloads, communicator, threads)
            sent = cluster.send(own, [address])
            tasks.append(cluster.run(address, _train, place, everywhere, sent, recipe))
        fitted: Fitted = cluster.results(tasks)[0]
        return fitted


def divide(examples: Examples, workers: int) -> list[NDArray[np.int64]]:
    """Return which workloads each worker has: all of them, each once, none without any.

    The workload with most rows goes first, to the worker with fewest (Graham's LPT rule: the
    fullest has at most 4/3 of what the best division gives it).

    Parameters
    ----------
    examples : Examples
        What is learnt from.
    workers : int
        How many there are at most.

    Returns
    -------
    list of ndarray of int64
        Indices into :attr:`Examples.workloads`, ascending.
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


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """A worker's place among the others.

    Parameters
    ----------
    address : str
        Where the task must run.
    rank : int
        Its number, from 0.
    workloads : ndarray of int64
        Of which it has the rows.
    communicator : dict
        How it finds the tracker.
    threads : int or None
        Of XGBoost; None for as many as Dask gives the worker.
    """

    address: str
    rank: int
    workloads: NDArray[np.int64]
    communicator: dict[str, Any]
    threads: int | None


class _ElsewhereError(TuneDBError):
    """Another worker has failed, and tells why."""


def _train(
    place: _Place, labels: Examples, own: Examples | str, recipe: Recipe
) -> Fitted | TuneDBError | None:
    """Train on a worker, beside the others; the first returns the result.

    What cannot be trained is returned: Dask logs what a task raises.
    """
    from distributed import get_worker

    worker = get_worker()
    if worker.address != place.address:
        return StorageError(f"worker {place.address} was lost while it trained; run it again")
    xgboost = import_xgboost()
    threads = place.threads or worker.state.nthreads
    identity = {"dmlc_task_id": f"{place.rank:06}"}
    make_matrix = _Local(place, own).matrix
    try:
        with (
            # It warns of the empty matrices that those have who say nothing about bins.
            xgboost.config_context(verbosity=0),
            xgboost.collective.CommunicatorContext(**place.communicator, **identity),
        ):
            fitted = fit(labels, recipe, threads=threads, make_matrix=make_matrix)
    except _ElsewhereError:
        return None
    except TuneDBError as error:
        return error
    except xgboost.core.XGBoostError:
        return StorageError(
            f"worker {place.address} does not reach the others; are they up, and free?"
        )
    return fitted if place.rank == 0 else None


@dataclass(frozen=True, slots=True, eq=False)
class _Local:
    """Makes the matrix of a worker.

    Parameters
    ----------
    place : _Place
        Where it is.
    own : Examples or str
        The examples of the worker's workloads, with rows, or the database that has them.
    """

    place: _Place
    own: Examples | str

    def matrix(self, examples: Examples, row_model: RowModel, threads: int, seed: int) -> Matrix:
        """Return the matrix of some programs (:data:`tunedb.models.training.MakeMatrix`)."""
        xgboost = import_xgboost()
        here = np.flatnonzero(np.isin(examples.workload, self.place.workloads))
        rows, starts = _together(lambda: row_model.rows(*self._rows(examples.take(here))))
        sizes = np.zeros(len(examples), np.int64)
        sizes[here] = np.diff(starts)
        everywhere = np.concatenate(([0], np.cumsum(_sum(sizes))))
        # XGBoost merges what the workers say of quantiles: one says all, and the others nothing.
        some = self._sample(rows, _numbers(everywhere, here), int(everywhere[-1]), seed)
        bins = xgboost.QuantileDMatrix(some, max_bin=BINS, nthread=threads)
        data = xgboost.QuantileDMatrix(rows, max_bin=BINS, nthread=threads, ref=bins)
        return _SharedMatrix(data, everywhere, here)

    def _rows(self, examples: Examples) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the rows of programs that are here, and where those of each begin."""
        if isinstance(self.own, str):
            from ..store import Store

            with Store(self.own, read_only=True) as store:
                _check_workloads(store, examples)
                found = with_rows(store, examples)
        else:
            # A program may be one of several groups.
            mine, asked = (o.program_ids * len(o.groups) + o.group for o in (self.own, examples))
            found = self.own.take(np.isin(mine, asked))
            check_finite(found)
        return found.rows, found.starts

    def _sample(
        self, rows: NDArray[np.float32], numbers: NDArray[np.int64], count: int, seed: int
    ) -> NDArray[np.float32]:
        """Return the rows that bounds of bins are taken from, on the first worker; else none."""
        chosen = sample(count, seed)
        found = np.zeros((len(chosen), rows.shape[1]), np.float32)
        _, at, local = np.intersect1d(chosen, numbers, assume_unique=True, return_indices=True)
        found[at] = rows[local]
        found = _sum(found)
        return found if self.place.rank == 0 else found[:0]


@dataclass(frozen=True, slots=True, eq=False)
class _SharedMatrix(Matrix):
    """The rows of some programs, among others that know the rest.

    Parameters
    ----------
    data : xgboost.DMatrix
        The rows that are here.
    starts : ndarray of int64, shape (n + 1,)
        Where the rows of all programs would begin, were they in one matrix.
    here : ndarray of int64
        Numbers of the programs whose rows are here.
    """

    here: NDArray[np.int64]

    def to_rows(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the value of its program for each row that is here."""
        return np.repeat(values[self.here], self.sizes[self.here])

    def sums(self, margins: NDArray[np.float32]) -> Floats:
        """Return the scores of all programs, given what trees say of each row that is here."""
        starts = np.zeros(len(self.here) + 1, np.int64)
        np.cumsum(self.sizes[self.here], out=starts[1:])
        scores = np.zeros(len(self.starts) - 1)
        scores[self.here] = Matrix(self.data, starts).sums(margins)
        return _sum(scores)


def _check_workloads(store: Store, examples: Examples) -> None:
    """Raise StorageError where local numbers mean something else in another database."""
    named = {examples.workloads[one] for one in np.unique(examples.workload)}
    ids = [workload.id for workload in named]
    there = {id_: digest for id_, digest, *_ in store.query.training_workloads(ids)}
    if there != {workload.id: workload.digest for workload in named}:
        raise StorageError(f"{store.location} is not the database that the labels came from")


def _numbers(starts: NDArray[np.int64], here: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers of the rows of some programs, among those of all."""
    sizes = np.diff(starts)[here]
    shift: NDArray[np.int64] = np.repeat(starts[here] - (np.cumsum(sizes) - sizes), sizes)
    return np.arange(sizes.sum()) + shift


def _sum(values: NDArray[Any]) -> NDArray[Any]:
    """Return the sum over all workers, of an array of the same shape on each."""
    collective = import_xgboost("xgboost.collective")

    return np.asarray(collective.allreduce(values, collective.Op.SUM)).reshape(values.shape)


def _together(work: Callable[[], T]) -> T:
    """Return what work returns; where it fails on one worker, all of them fail.

    The others would wait for that one as long as XGBoost lets them.
    """
    failed: Exception | None = None
    try:
        done = work()
    except Exception as error:  # whatever it is, the others must hear of it
        failed = error
    if _sum(np.array([failed is not None], np.int32))[0]:
        raise failed or _ElsewhereError("another worker has failed")
    return done

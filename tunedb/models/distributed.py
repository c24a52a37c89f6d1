"""Training on several machines, the workers of a Dask cluster, through :mod:`xgboost.dask`.

The rows of some workloads, whole ones, are a partition, so that no program and no group is divided;
each worker has one. XGBoost adds up the histograms of their rows. Three things make the model that
of one machine, to the byte, however many workers there are:

* The bounds of bins come from the same sample of rows. XGBoost finds bounds itself, so values are
  first rounded down to the bound below (:mod:`tunedb.models.distributed`).
* The loss is one of all programs. In each round workers add up the programs' scores, so they take
  the same gradients, see the same accuracy on held-out workloads, and stop together
  (:mod:`tunedb.models.distributed_rounds`).
* Sums of gradients are exact in every order.

But ``subsample`` below 1 draws other rows, because XGBoost draws them on each worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import StorageError, TuneDBError, UsageError
from ._dask import Cluster, Part, import_xgboost_dask
from ._xgboost import import_xgboost, interrupt_later, threads_to_use
from .boosting import BINS, OnFigure, check_parameters, sample
from .dataset import with_rows
from .distributed_rounds import Everywhere, Rounds, take_history
from .external import check_any_rows
from .training import Fitted, check_finite, fit

if TYPE_CHECKING:
    from distributed import Client

    from ..storage.store import Store
    from .base import RowModel
    from .boosting import Descent, Watch
    from .examples import Examples
    from .recipe import Recipe

# ---- Bins of columns, as values that stand for them ----------------------------------------------
#
# XGBoost finds the bounds of bins itself wherever it trains on several machines, from sketches that
# depend on who has which rows. Of a column with no more values than bins, though, sketches are
# exact: the least value is in the first bin, and each further one is the bound that begins the
# next. So values that are first rounded down to the bound that begins their bin are put into the
# same bins by any number of machines, and split at the same bounds.


@dataclass(frozen=True, slots=True, eq=False)
class Bins:
    """The bins of some columns.

    Parameters
    ----------
    least : tuple of ndarray of float32
        For each column the least value in each bin, ascending: the bounds between bins, and before
        them the least value of all.
    """

    least: tuple[NDArray[np.float32], ...]

    @classmethod
    def of(cls, rows: NDArray[np.float32], most: int, *, threads: int) -> Bins:
        """Return the bins that XGBoost puts rows into on one machine.

        Parameters
        ----------
        rows : ndarray of float32, shape (n, columns)
            One at least; finite.
        most : int
            Bins of a column (``max_bin``).
        threads : int
            Of XGBoost; they change nothing.
        """
        with interrupt_later():
            matrix = import_xgboost().QuantileDMatrix(rows, max_bin=most, nthread=threads)
        begins, values = matrix.get_quantile_cut()
        # Of each column something below its values, the bounds, and something above its values.
        bounds = (
            values[first + 1 : end - 1]
            for first, end in zip(begins[:-1].tolist(), begins[1:].tolist(), strict=True)
        )
        lowest = rows.min(axis=0)
        return cls(
            tuple(np.append(one, inside) for one, inside in zip(lowest, bounds, strict=True))
        )

    def round_down(self, rows: NDArray[np.float32]) -> None:
        """Put the least value of its bin in the place of each value.

        A value below all that the bins were made of is rounded up, to the least of these.

        Parameters
        ----------
        rows : ndarray of float32, shape (n, columns)
            What is changed; rounding it again changes nothing.
        """
        for number, least in enumerate(self.least):
            column = rows[:, number]
            # XGBoost: the first bin whose upper bound is above the value, or the last one.
            column[:] = least[np.searchsorted(least[1:], column, side="right")]


# ---- Training ------------------------------------------------------------------------------------


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
    import_xgboost_dask()
    if url is None and not len(examples.rows):
        raise UsageError("examples without rows; say by url where workers can read them")
    cluster = Cluster.of(client, workers)
    labels = replace(examples, rows=examples.rows[:0])
    make_matrix = _Distribution(cluster, examples, url, threads).matrix
    return fit(labels, recipe, threads=threads or cluster.threads(), make_matrix=make_matrix)


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
class _Distribution:
    """Puts rows on the workers of a cluster.

    Parameters
    ----------
    cluster : Cluster
        The workers.
    examples : Examples
        With rows, unless there is a database.
    url : str or None
        The database that has the rows.
    threads : int or None
        Of XGBoost on each worker; None for as many as Dask gives it.
    """

    cluster: Cluster
    examples: Examples
    url: str | None
    threads: int | None

    def matrix(self, chosen: Examples, row_model: RowModel, _: int, seed: int) -> _ClusterMatrix:
        """Return the matrix of some programs (:data:`tunedb.models.training.MakeMatrix`)."""
        check_any_rows(chosen)
        shares = divide(chosen, len(self.cluster.addresses))
        cluster = self.cluster.first(len(shares))
        partitions = []
        for address, share in zip(cluster.addresses, shares, strict=True):
            here = np.flatnonzero(np.isin(chosen.workload, share))
            sent = cluster.send(self._part(chosen.take(here)), address)
            made = cluster.run(address, _make, sent, self.url, row_model)
            partitions.append(_Partition(address, here, made))
        sizes = np.zeros(len(chosen), np.int64)
        found = cluster.results([cluster.run(one.address, _sizes, one.made) for one in partitions])
        for one, rows in zip(partitions, found, strict=True):
            sizes[one.programs] = rows
        starts = np.concatenate(([0], np.cumsum(sizes)))
        filled = [one for one in partitions if sizes[one.programs].any()]
        width = len(row_model.columns(chosen.columns))
        bins = Bins.of(_sampled(cluster, filled, starts, seed), BINS, threads=threads_to_use())
        data = cluster.matrix(_parts(cluster, filled, sizes, bins, width), BINS)
        return _ClusterMatrix(cluster, data, starts, [one.programs for one in filled], self.threads)

    def _part(self, chosen: Examples) -> Examples:
        """Return what a worker is sent of some programs: their rows too, unless it reads them."""
        if self.url is not None:
            return chosen
        # A program may be one of several groups.
        mine, asked = (
            one.program_ids * len(one.groups) + one.group for one in (self.examples, chosen)
        )
        return self.examples.take(np.isin(mine, asked))


@dataclass(frozen=True, slots=True, eq=False)
class _Partition:
    """Whole workloads on a worker.

    Parameters
    ----------
    address : str
        The worker's.
    programs : ndarray of int64
        Numbers of the programs, ascending.
    made : distributed.Future
        What :func:`_make` returns.
    """

    address: str
    programs: NDArray[np.int64]
    made: Any


@dataclass(frozen=True, slots=True, eq=False)
class _ClusterMatrix:
    """The rows of some programs on the workers of a cluster (:class:`boosting.Boostable`).

    Parameters
    ----------
    cluster : Cluster
        The workers.
    data : xgboost.dask.DaskQuantileDMatrix
        The rows.
    starts : ndarray of int64, shape (n + 1,)
        Where the rows of all programs would begin, were they in one matrix.
    partitions : list of ndarray of int64
        The programs of each partition.
    threads : int or None
        Of XGBoost on each worker; None for as many as Dask gives it.
    """

    cluster: Cluster
    data: Any
    starts: NDArray[np.int64]
    partitions: list[NDArray[np.int64]]
    threads: int | None

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Rows of each program, shape (n,)."""
        return np.diff(self.starts)

    def boost(
        self,
        descent: Descent,
        settings: dict[str, Any],
        rounds: int,
        *,
        watch: Watch | None = None,
        tell: OnFigure | None = None,
    ) -> tuple[Any, list[float]]:
        """Train a booster (:meth:`boosting.Boostable.boost`); nothing is told of its rounds."""
        # Dask would log what workers raise.
        check_parameters(settings)
        cluster = self.cluster
        sent = cluster.send(Everywhere(descent, watch, self.starts, self.partitions))
        # Dask drops copies of what was sent, but not the result of a task.
        there = [cluster.run(address, _same, sent) for address in cluster.addresses]
        cluster.wait(there)
        calls = Rounds({to: task.key for to, task in zip(cluster.addresses, there, strict=True)})
        settings = settings | {"base_score": descent.base, "nthread": self.threads or 0}
        booster = cluster.train(
            settings, self.data, rounds, obj=calls, callbacks=[calls.callback()]
        )
        return booster, take_history(booster)


def _sampled(
    cluster: Cluster, partitions: Sequence[_Partition], starts: NDArray[np.int64], seed: int
) -> NDArray[np.float32]:
    """Return the rows that bounds of bins are taken from on one machine."""
    chosen = sample(int(starts[-1]), seed)
    owner = np.searchsorted(starts, chosen, side="right") - 1
    places, asked = [], []
    for one in partitions:
        at = np.flatnonzero(np.isin(owner, one.programs))
        sizes = np.diff(starts)[one.programs]
        firsts = np.cumsum(sizes) - sizes
        local = firsts[np.searchsorted(one.programs, owner[at])] + chosen[at] - starts[owner[at]]
        places.append(at)
        asked.append(cluster.run(one.address, _take, one.made, local))
    rows = np.concatenate(cluster.results(asked))
    return np.asarray(rows[np.argsort(np.concatenate(places))], np.float32)


def _parts(
    cluster: Cluster,
    partitions: Sequence[_Partition],
    sizes: NDArray[np.int64],
    bins: Bins,
    width: int,
) -> list[Part]:
    """Return what XGBoost gets: rounded rows, each with the number of its partition."""
    sent = cluster.send(bins)
    parts = []
    for number, one in enumerate(partitions):
        count = int(sizes[one.programs].sum())
        rows = cluster.run(one.address, _rounded, one.made, sent)
        labels = cluster.run(one.address, np.full, count, number, np.float32)
        parts.append(Part(rows, labels, (count, width)))
    return parts


# ---------------------------------------------------------------------- tasks


def _make(
    examples: Examples, url: str | None, row_model: RowModel
) -> tuple[NDArray[np.float32], NDArray[np.int64]] | TuneDBError:
    """Return the rows that trees see, and how many each program has."""
    try:
        # Here, where an error is told, and before workers wait for one another.
        import_xgboost_dask()
        if url is not None:
            from ..storage.store import Store

            with Store(url, read_only=True) as store:
                _check_workloads(store, examples)
                examples = with_rows(store, examples)
        check_finite(examples)
    except TuneDBError as error:
        return error
    rows, starts = row_model.rows(examples.rows, examples.starts)
    # What came over the network may be fixed, and is to be rounded.
    return np.require(rows, np.float32, "W"), np.diff(starts)


def _sizes(
    made: tuple[NDArray[np.float32], NDArray[np.int64]] | TuneDBError,
) -> NDArray[np.int64] | TuneDBError:
    return made if isinstance(made, TuneDBError) else made[1]


def _take(
    made: tuple[NDArray[np.float32], NDArray[np.int64]], numbers: NDArray[np.int64]
) -> NDArray[np.float32]:
    return made[0][numbers]


def _rounded(
    made: tuple[NDArray[np.float32], NDArray[np.int64]], bins: Bins
) -> NDArray[np.float32]:
    """Return the rows with values that stand for their bins."""
    # In their place: they may be most of the worker's memory. Twice is as good as once.
    bins.round_down(made[0])
    return made[0]


def _same(value: Everywhere) -> Everywhere:
    return value


def _check_workloads(store: Store, examples: Examples) -> None:
    """Raise StorageError where local numbers mean something else in another database."""
    named = {examples.workloads[one] for one in np.unique(examples.workload)}
    ids = [workload.id for workload in named]
    there = {id_: digest for id_, digest, *_ in store.training.workloads(ids)}
    if there != {workload.id: workload.digest for workload in named}:
        raise StorageError(f"{store.location} is not the database that the labels came from")

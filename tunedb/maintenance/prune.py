"""Pruning: a plan of the rows to remove and its cost, and the removal.

:func:`plan` computes a :class:`PrunePlan` without writing. :func:`prune` removes the planned rows
in bounded transactions, so that other processes can write in between and a killed run has removed
whole batches. Rows that were added or changed after the plan stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from .. import limits
from ..errors import NotFoundError, UsageError
from ..exchange.selection import Ranks, chosen_ids
from ..features.base import FeatureSet, Needs, feature_sets
from ..identity import DIGEST_BYTES
from ..results import Exchanged
from ..storage.exchange_types import EVERYTHING, Selection
from ..storage.pruning import RemovedRows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..storage.store import Store

    Ids = NDArray[np.int64]

# ---- Rows to remove, counted by kind, and the cost of computing them again -----------------------

#: Seconds for one program's rows on one core, least and most (docs/features.md: steps from the
#: database, or 1 to 6 ms of replay and then the feature set itself).
SECONDS = {
    Needs.STEPS: (13e-6, 13e-6),
    Needs.SCHEDULED: (1e-3, 6e-3),
    Needs.LOWERED: (1.6e-3, 12e-3),
    Needs.FLAT: (3e-3, 36e-3),
}


@dataclass(frozen=True, slots=True)
class PlannedRows:
    """Rows of one kind to remove.

    Parameters
    ----------
    kind : str
        ``records``, ``retracted``, ``failures``, ``launches``, ``programs``, ``features``,
        ``models`` or ``predictions``.
    of : str or None
        Set and version of features.
    rows : int
        Number of rows.
    bytes : int
        Their approximate size, including indexes.
    seconds : tuple of float or None
        Least and most time to compute features again, on one core; None if no installed set can.
    """

    kind: str
    of: str | None
    rows: int
    bytes: int
    seconds: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class RemovedSource:
    """A source with records to remove; a source of another database may provide them again.

    Parameters
    ----------
    name : str
        Name of the source.
    store : str or None
        Key of its database; None for this one.
    records : int
        Number of its records to remove.
    """

    name: str
    store: str | None
    records: int


class PrunedRows:
    """Rows to remove, counted by kind.

    Parameters
    ----------
    store : Store
        The database.
    gone : array of int64
        Ids of measurements to remove.
    features : dict
        Id of each feature set whose rows are removed → name and version.
    models : tuple of int
        Ids of models to remove.
    """

    def __init__(
        self,
        store: Store,
        gone: Ids,
        features: dict[int, tuple[str, int]],
        models: tuple[int, ...],
    ) -> None:
        self._store, self.gone, self._sets, self._models = store, gone, features, models
        self._bytes = store.pruning.table_bytes()
        self._measurements = store.pruning.measurement_numbers()
        self._failures = store.pruning.failure_numbers() if len(gone) else None
        self._launches = store.pruning.launch_numbers() if len(gone) else None
        self._features = store.pruning.feature_numbers()
        self._predictions = store.pruning.prediction_numbers()
        mine = np.isin(self._measurements[:, 0], gone, assume_unique=True)
        self._sources = self._measurements[mine, 1]
        staying = np.unique(self._measurements[~mine, 2])
        going = np.unique(self._measurements[mine, 2])
        self._programs = np.setdiff1d(going, staying, assume_unique=True)
        self._all_programs = len(staying) + len(self._programs)

    def programs_of(self, set_id: int) -> Ids:
        """Return the programs that have rows of a feature set."""
        programs: Ids = self._features[self._features[:, 1] == set_id, 0]
        return programs

    def parts(self, records: int, retracted: int) -> Iterator[PlannedRows]:
        """Yield the rows to remove, kind by kind, each row counted once."""
        each = self._each("measurement", len(self._measurements))
        for kind, number in (("records", records), ("retracted", retracted)):
            if number:
                yield PlannedRows(kind, None, number, round(number * each))
        yield from self._with_records()
        installed = feature_sets()
        for id_, (name, version) in self._sets.items():
            mine = self._features[self._features[:, 1] == id_]
            if len(mine):
                seconds = _seconds(installed.get(name), version, len(mine))
                yield PlannedRows("features", f"{name} {version}", *self._size(mine), seconds)
        yield from self._with_models()

    def _with_records(self) -> Iterator[PlannedRows]:
        """Yield the rows that are removed together with records."""
        if self._failures is not None:
            failed = int(np.isin(self._failures[:, 1], self.gone).sum())
            yield from self._part("failures", "failure", failed, len(self._failures))
        if self._launches is not None:
            number = int(np.isin(self._launches[:, 1], self.gone).sum())
            yield from self._part("launches", "launch", number, len(self._launches))
        yield from self._part("programs", "program", len(self._programs), self._all_programs)
        loose = ~np.isin(self._features[:, 1], list(self._sets))
        mine = self._features[loose & np.isin(self._features[:, 0], self._programs)]
        if len(mine):
            yield PlannedRows("features", None, *self._size(mine))

    def _with_models(self) -> Iterator[PlannedRows]:
        """Yield the models and predictions to remove."""
        if self._models:
            sizes = {model.id: model.size or 0 for model in self._store.models.all()}
            total = sum(sizes[id_] for id_ in self._models)
            yield PlannedRows("models", None, len(self._models), total)
        going = np.isin(self._predictions[:, 0], self._models)
        going |= np.isin(self._predictions[:, 1], self._programs)
        yield from self._part("predictions", "prediction", int(going.sum()), len(going))

    def _part(self, kind: str, table: str, number: int, total: int) -> Iterator[PlannedRows]:
        if number:
            yield PlannedRows(kind, None, number, round(number * self._each(table, total)))

    def _each(self, table: str, rows: int) -> float:
        """Return the bytes of one row of a table."""
        return self._bytes.get(table, 0) / max(rows, 1)

    def _size(self, features: Ids) -> tuple[int, int]:
        """Return the number and the approximate bytes of some rows of features."""
        packed = int(self._features[:, 2].sum())
        share = int(features[:, 2].sum()) / max(packed, 1)
        return len(features), round(share * self._bytes.get("feature", packed))

    def origins(self) -> Iterator[RemovedSource]:
        """Yield the sources of the records to remove, those with the most records first."""
        ids, counts = np.unique(self._sources, return_counts=True)
        summaries = {row.id: row for row in self._store.sources.summaries()}
        for id_, number in sorted(zip(ids, counts, strict=True), key=lambda pair: -pair[1]):
            row = summaries[int(id_)]
            is_local = row.store == self._store.key
            yield RemovedSource(row.name, None if is_local else row.store, int(number))


def _seconds(
    installed: FeatureSet | None, version: int, programs: int
) -> tuple[float, float] | None:
    """Return the least and most time to compute features again."""
    if installed is None or installed.version != version or installed.needs not in SECONDS:
        return None
    least, most = SECONDS[installed.needs]
    return programs * least, programs * most


def total_bytes(parts: Iterable[PlannedRows]) -> int:
    """Return the approximate bytes of all rows to remove."""
    return sum(part.bytes for part in parts)


# ---- Rules and pruning ---------------------------------------------------------------------------

#: Records per ranking step: lists take ten times the memory of arrays.
_PAGE = 20_000


@dataclass(frozen=True, slots=True)
class PruneRules:
    """The rules of a pruning.

    Parameters
    ----------
    selection : Selection
        The records to which the rules apply. With a `best`, the records that it selects stay, and
        the others are removed.
    retracted : bool
        Remove retracted records.
    features : str or None
        Remove features of the set of this name; ``""`` for all sets.
    outdated : bool
        Remove features of sets, or of versions, that are not installed.
    models : int or None
        Keep only this number of the newest models of each kind; at least 1.
    """

    selection: Selection = EVERYTHING
    retracted: bool = False
    features: str | None = None
    outdated: bool = False
    models: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class PrunePlan:
    """The rows to remove, by local ids, and the cost.

    Parameters
    ----------
    records, retracted : array of int64
        Records to remove because others are better, and because they are retracted.
    features : dict
        Feature set → programs whose rows are removed.
    models : tuple of int
        Models to remove.
    lasting : int
        Retracted records that stay (:func:`tunedb.storage.pruning.is_pinned`).
    parts : tuple of PlannedRows
        Rows to remove, kind by kind, including those that depend on records and models.
    origins : tuple of RemovedSource
        Sources of the records to remove, those with the most records first.
    exchanges : tuple of Exchanged
        Databases that may have the records.
    """

    records: Ids
    retracted: Ids
    features: dict[int, Ids]
    models: tuple[int, ...]
    lasting: int
    parts: tuple[PlannedRows, ...]
    origins: tuple[RemovedSource, ...]
    exchanges: tuple[Exchanged, ...]

    @property
    def rows(self) -> int:
        """Number of records, features and models to remove: the steps of :func:`prune`."""
        features = sum(map(len, self.features.values()))
        return len(self.records) + len(self.retracted) + features + len(self.models)


def plan(store: Store, wanted: PruneRules) -> PrunePlan:
    """Plan a pruning; nothing is written.

    Parameters
    ----------
    store : Store
        The database.
    wanted : PruneRules
        The rules.

    Returns
    -------
    PrunePlan

    Raises
    ------
    NotFoundError
        A workload, target, source or feature set does not exist.
    UsageError
        There is no rule, or no model would stay.
    """
    _check(wanted)
    records, retracted, lasting = _records(store, wanted)
    features = _features(store, wanted)
    models = _models(store, wanted.models)
    rows = PrunedRows(store, np.union1d(records, retracted), features, models)
    return PrunePlan(
        records=records,
        retracted=retracted,
        features={id_: rows.programs_of(id_) for id_ in features},
        models=models,
        lasting=lasting,
        parts=tuple(rows.parts(len(records), len(retracted))),
        origins=tuple(rows.origins()),
        exchanges=tuple(store.pruning.exchanges()) if len(rows.gone) else (),
    )


def prune(
    store: Store, chosen: PrunePlan, *, on_progress: Callable[[int], None] | None = None
) -> RemovedRows:
    """Remove the rows of a plan, batch by batch.

    Parameters
    ----------
    store : Store
        The database of the plan.
    chosen : PrunePlan
        The plan.
    on_progress : callable or None
        Called with the number of finished steps, of :attr:`PrunePlan.rows`.

    Returns
    -------
    RemovedRows
        The removed rows; fewer than planned if other processes removed some first.
    """
    done, removed = 0, RemovedRows()

    def step(number: int, went: RemovedRows) -> None:
        nonlocal done, removed
        done, removed = done + number, removed + went
        if on_progress is not None:
            on_progress(done)

    # Records last: their removal would have to look up features in all sets.
    for set_id, programs in chosen.features.items():
        for batch in _batches(programs):
            step(len(batch), store.pruning.remove_features(set_id, batch))
    for model in chosen.models:
        step(1, store.pruning.remove_model(model))
    for batch in _batches(chosen.retracted):
        step(len(batch), store.pruning.remove_records(batch, if_retracted=True))
    for batch in _batches(chosen.records):
        step(len(batch), store.pruning.remove_records(batch))
    return removed


def _batches(ids: Ids) -> Iterator[list[int]]:
    for start in range(0, len(ids), limits.BATCH_ROWS):
        yield ids[start : start + limits.BATCH_ROWS].tolist()


def _check(wanted: PruneRules) -> None:
    """Raise UsageError if there is no rule, or no model would stay."""
    rules = (wanted.selection.best, wanted.features, wanted.models)
    if not wanted.retracted and not wanted.outdated and rules == (None, None, None):
        raise UsageError("nothing to remove; choose features, retracted, best or models")
    if wanted.models is not None and wanted.models < 1:
        raise UsageError("prune keeps the newest model of each kind; keep 1 or more")


# ---------------------------------------------------------------------- rows to remove


def _records(store: Store, wanted: PruneRules) -> tuple[Ids, Ids, int]:
    """Return worse and retracted records to remove, and the number of retracted ones that stay."""
    selection = wanted.selection
    records = retracted = np.empty(0, np.int64)
    if selection.best is None and not wanted.retracted:
        return records, retracted, 0
    pinned = np.array(store.pruning.pinned_ids(), np.int64)
    selected = chosen_ids(store, replace(selection, best=None), store.batches.last_id())
    lasting = 0
    if wanted.retracted:
        every = np.intersect1d(store.pruning.retracted_ids(), selected, assume_unique=True)
        retracted = np.setdiff1d(every, pinned, assume_unique=True)
        lasting = len(every) - len(retracted)
        selected = np.setdiff1d(selected, retracted, assume_unique=True)
    if selection.best is not None:
        selected = np.setdiff1d(selected, pinned, assume_unique=True)
        ranked = np.setdiff1d(selected, store.pruning.superseded_ids(), assume_unique=True)
        best = _best(store, ranked, selection.best, selection.rest)
        records = np.setdiff1d(selected, best, assume_unique=True)
    return records, retracted, lasting


def _best(store: Store, selected: Ids, best: int, rest: float) -> Ids:
    """Return the best records of each workload and target and a rest, as an exchange selects them.

    Served records rank first and retracted ones last, so that the answers to TVM do not change.
    """
    table = store.pruning.measurement_ranks()
    table = table[np.isin(table[:, 0].astype(np.int64), selected, assume_unique=True)]
    ids, workloads, targets, statuses, served = table[:, :5].astype(np.int64).T
    worth = 1 - served + np.isin(ids, store.pruning.retracted_ids(), assume_unique=True)
    order = np.lexsort((ids, table[:, 5], worth))
    places = np.empty(len(ids))
    places[order] = np.arange(len(ids))
    ranks = Ranks()
    # Places are unique, so digests never break ties.
    digest = bytes(DIGEST_BYTES)
    for start in range(0, len(ids), _PAGE):
        page = slice(start, start + _PAGE)
        numbers = ids[page].tolist()
        groups = list(zip(workloads[page].tolist(), targets[page].tolist(), strict=True))
        outcomes, means = statuses[page].tolist(), places[page].tolist()
        ranks.add(numbers, groups, outcomes, means, [digest] * len(numbers))
    return ranks.chosen(best, rest)


def _features(store: Store, wanted: PruneRules) -> dict[int, tuple[str, int]]:
    """Return the feature sets whose rows are removed: id → name and version."""
    stored, installed = store.pruning.feature_set_ids(), feature_sets()
    names = {name for name, _ in stored.values()} | installed.keys()
    if wanted.features and wanted.features not in names:
        raise NotFoundError(
            f"no feature set {wanted.features!r}; there are: {', '.join(sorted(names))}"
        )

    def is_removed(name: str, version: int) -> bool:
        if wanted.features is not None and wanted.features in ("", name):
            return True
        current = installed.get(name)
        return wanted.outdated and (current is None or current.version != version)

    return {id_: label for id_, label in stored.items() if is_removed(*label)}


def _models(store: Store, keep: int | None) -> tuple[int, ...]:
    """Return the models that are not among the newest of their kind."""
    if keep is None:
        return ()
    newest: dict[str, int] = {}
    older = []
    for model in reversed(store.models.all()):
        newest[model.kind] = newest.get(model.kind, 0) + 1
        if newest[model.kind] > keep:
            older.append(model.id)
    return tuple(sorted(older))

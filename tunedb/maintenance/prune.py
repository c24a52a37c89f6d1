"""Which rows a database can do without, what that costs, and removing them.

A :class:`Plan` is made first and says everything; carrying it out is one bounded transaction after
another, so that other processes get their turn, and a run that is killed leaves whole batches.
What came in or changed since the plan was made stays.
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
from ..storage.exchanged import EVERYTHING, Selection
from ..storage.pruning import RemovedRows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..storage.store import Store

    Ids = NDArray[np.int64]

# ---- The rows that a pruning removes, counted by kind, and what it costs to do without them ------

#: Seconds that one program's rows take on one core, least and most (docs/features.md: the steps
#: from the database, or 1 to 6 ms of replay and then what the set itself takes).
SECONDS = {
    Needs.STEPS: (13e-6, 13e-6),
    Needs.SCHEDULED: (1e-3, 6e-3),
    Needs.LOWERED: (1.6e-3, 12e-3),
    Needs.FLAT: (3e-3, 36e-3),
}


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one kind that go.

    Parameters
    ----------
    kind : str
        ``records``, ``retracted``, ``failures``, ``launches``, ``programs``, ``features``,
        ``models`` or ``predictions``.
    of : str or None
        Features: their set and version.
    rows : int
        How many.
    bytes : int
        About what they take, indexes included.
    seconds : tuple of float or None
        Features: least and most time to compute them again, on one core; None where nobody can.
    """

    kind: str
    of: str | None
    rows: int
    bytes: int
    seconds: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """A source whose records go: to be had again where it is from, if that is another database.

    Parameters
    ----------
    name : str
        The source.
    store : str or None
        The database that it is of; None for this one.
    records : int
        How many of its records go.
    """

    name: str
    store: str | None
    records: int


class GoingRows:
    """The rows that go, counted by kind.

    Parameters
    ----------
    store : Store
        The database.
    gone : array of int64
        Measurements that go.
    features : dict
        Feature set → name and version, of those whose rows go.
    models : tuple of int
        Models that go.
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

    def parts(self, records: int, retracted: int) -> Iterator[Part]:
        """Yield what goes, kind by kind; nothing is counted twice."""
        each = self._each("measurement", len(self._measurements))
        for kind, number in (("records", records), ("retracted", retracted)):
            if number:
                yield Part(kind, None, number, round(number * each))
        yield from self._with_records()
        installed = feature_sets()
        for id_, (name, version) in self._sets.items():
            mine = self._features[self._features[:, 1] == id_]
            if len(mine):
                seconds = _seconds(installed.get(name), version, len(mine))
                yield Part("features", f"{name} {version}", *self._size(mine), seconds)
        yield from self._with_models()

    def _with_records(self) -> Iterator[Part]:
        """Yield what goes along with records."""
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
            yield Part("features", None, *self._size(mine))

    def _with_models(self) -> Iterator[Part]:
        """Yield models and predictions that go."""
        if self._models:
            sizes = {one.id: one.size or 0 for one in self._store.models.all()}
            taken = sum(sizes[id_] for id_ in self._models)
            yield Part("models", None, len(self._models), taken)
        going = np.isin(self._predictions[:, 0], self._models)
        going |= np.isin(self._predictions[:, 1], self._programs)
        yield from self._part("predictions", "prediction", int(going.sum()), len(going))

    def _part(self, kind: str, table: str, number: int, total: int) -> Iterator[Part]:
        if number:
            yield Part(kind, None, number, round(number * self._each(table, total)))

    def _each(self, table: str, rows: int) -> float:
        """Return the bytes of one row of a table."""
        return self._bytes.get(table, 0) / max(rows, 1)

    def _size(self, features: Ids) -> tuple[int, int]:
        """Return the number of some features, and what they take."""
        packed = int(self._features[:, 2].sum())
        share = int(features[:, 2].sum()) / max(packed, 1)
        return len(features), round(share * self._bytes.get("feature", packed))

    def origins(self) -> Iterator[Origin]:
        """Yield whose records go, those with the most first."""
        ids, counts = np.unique(self._sources, return_counts=True)
        named = {row.id: row for row in self._store.sources.summaries()}
        for id_, number in sorted(zip(ids, counts, strict=True), key=lambda pair: -pair[1]):
            row = named[int(id_)]
            here = row.store == self._store.key
            yield Origin(row.name, None if here else row.store, int(number))


def _seconds(
    installed: FeatureSet | None, version: int, programs: int
) -> tuple[float, float] | None:
    """Return how long it takes to compute features again, least and most."""
    if installed is None or installed.version != version or installed.needs not in SECONDS:
        return None
    least, most = SECONDS[installed.needs]
    return programs * least, programs * most


def total_bytes(parts: Iterable[Part]) -> int:
    """Return about what all parts take together."""
    return sum(part.bytes for part in parts)


# ---- Rules and pruning ---------------------------------------------------------------------------

#: Records that are ranked at a time: lists take ten times what arrays take.
_PAGE = 20_000


@dataclass(frozen=True, slots=True)
class Wanted:
    """What shall go.

    Parameters
    ----------
    selection : Selection
        Which records are meant. Where it has a `best`, what stays of them is what it selects, and
        the others go.
    retracted : bool
        Records that were taken back.
    features : str or None
        Features of the set of that name; ``""`` for those of all sets.
    outdated : bool
        Features of sets, or versions of them, that are not installed.
    models : int or None
        Models but for so many of the newest of each kind; at least 1.
    """

    selection: Selection = EVERYTHING
    retracted: bool = False
    features: str | None = None
    outdated: bool = False
    models: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What goes, in local numbers, and what that costs.

    Parameters
    ----------
    records, retracted : array of int64
        Records that go because others are better, and because they were taken back.
    features : dict
        Feature set → programs whose rows go.
    models : tuple of int
        Models that go.
    lasting : int
        Records that were taken back but stay (:func:`tunedb.storage.pruning.is_pinned`).
    parts : tuple of Part
        What goes, kind by kind; what goes along with records and models is among it.
    origins : tuple of Origin
        Whose records go, those with the most first.
    exchanges : tuple of Exchanged
        Databases that may have the records.
    """

    records: Ids
    retracted: Ids
    features: dict[int, Ids]
    models: tuple[int, ...]
    lasting: int
    parts: tuple[Part, ...]
    origins: tuple[Origin, ...]
    exchanges: tuple[Exchanged, ...]

    @property
    def rows(self) -> int:
        """Records, programs' features and models that go: the steps of :func:`prune`."""
        features = sum(map(len, self.features.values()))
        return len(self.records) + len(self.retracted) + features + len(self.models)


def plan(store: Store, wanted: Wanted) -> Plan:
    """Find out what would go; nothing is written.

    Parameters
    ----------
    store : Store
        The database.
    wanted : Wanted
        What shall go.

    Returns
    -------
    Plan

    Raises
    ------
    NotFoundError
        There is no such workload, target, source or feature set.
    UsageError
        Nothing was asked for, or no model would stay.
    """
    _check(wanted)
    records, retracted, lasting = _records(store, wanted)
    features = _features(store, wanted)
    models = _models(store, wanted.models)
    rows = GoingRows(store, np.union1d(records, retracted), features, models)
    return Plan(
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
    store: Store, chosen: Plan, *, on_progress: Callable[[int], None] | None = None
) -> RemovedRows:
    """Remove what a plan says, batch by batch.

    Parameters
    ----------
    store : Store
        The database that the plan is of.
    chosen : Plan
        What goes.
    on_progress : callable or None
        Called with the number of steps that were done, of :attr:`Plan.rows`.

    Returns
    -------
    RemovedRows
        What went; less than planned where other processes were there first.
    """
    done, removed = 0, RemovedRows()

    def step(number: int, went: RemovedRows) -> None:
        nonlocal done, removed
        done, removed = done + number, removed + went
        if on_progress is not None:
            on_progress(done)

    # Records last: a program's features would have to be found among all sets.
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


def _check(wanted: Wanted) -> None:
    """Raise UsageError where nothing is wanted, or too much."""
    asked = (wanted.selection.best, wanted.features, wanted.models)
    if not wanted.retracted and not wanted.outdated and asked == (None, None, None):
        raise UsageError("nothing to remove; choose features, retracted, best or models")
    if wanted.models is not None and wanted.models < 1:
        raise UsageError("prune keeps the newest model of each kind; keep 1 or more")


# ---------------------------------------------------------------------- what goes


def _records(store: Store, wanted: Wanted) -> tuple[Ids, Ids, int]:
    """Return the records that go, those that go because they were taken back, and who stays."""
    selection = wanted.selection
    records = retracted = np.empty(0, np.int64)
    if selection.best is None and not wanted.retracted:
        return records, retracted, 0
    stay = np.array(store.pruning.pinned_ids(), np.int64)
    meant = chosen_ids(store, replace(selection, best=None), store.batches.last_id())
    staying = 0
    if wanted.retracted:
        every = np.intersect1d(store.pruning.retracted_ids(), meant, assume_unique=True)
        retracted = np.setdiff1d(every, stay, assume_unique=True)
        staying = len(every) - len(retracted)
        meant = np.setdiff1d(meant, retracted, assume_unique=True)
    if selection.best is not None:
        meant = np.setdiff1d(meant, stay, assume_unique=True)
        kept = _kept(store, meant, selection.best, selection.rest)
        records = np.setdiff1d(meant, kept, assume_unique=True)
    return records, retracted, staying


def _kept(store: Store, meant: Ids, best: int, rest: float) -> Ids:
    """Return the best records of each workload and target and a rest, as an exchange chooses them.

    But those that are served come before others, and those that were taken back last: what TVM
    gets must not change.
    """
    table = store.pruning.measurement_ranks()
    table = table[np.isin(table[:, 0].astype(np.int64), meant, assume_unique=True)]
    ids, workloads, targets, statuses, served = table[:, :5].astype(np.int64).T
    worth = 1 - served + np.isin(ids, store.pruning.retracted_ids(), assume_unique=True)
    order = np.lexsort((ids, table[:, 5], worth))
    places = np.empty(len(ids))
    places[order] = np.arange(len(ids))
    ranks = Ranks()
    # Places differ, so digests decide nothing.
    digest = bytes(DIGEST_BYTES)
    for start in range(0, len(ids), _PAGE):
        page = slice(start, start + _PAGE)
        numbers = ids[page].tolist()
        groups = list(zip(workloads[page].tolist(), targets[page].tolist(), strict=True))
        outcomes, means = statuses[page].tolist(), places[page].tolist()
        ranks.add(numbers, groups, outcomes, means, [digest] * len(numbers))
    return ranks.chosen(best, rest)


def _features(store: Store, wanted: Wanted) -> dict[int, tuple[str, int]]:
    """Return the feature sets whose rows go: local number → name and version."""
    stored, installed = store.pruning.feature_set_ids(), feature_sets()
    named = {name for name, _ in stored.values()} | installed.keys()
    if wanted.features and wanted.features not in named:
        raise NotFoundError(
            f"no feature set {wanted.features!r}; there are: {', '.join(sorted(named))}"
        )

    def goes(name: str, version: int) -> bool:
        if wanted.features is not None and wanted.features in ("", name):
            return True
        current = installed.get(name)
        return wanted.outdated and (current is None or current.version != version)

    return {id_: label for id_, label in stored.items() if goes(*label)}


def _models(store: Store, keep: int | None) -> tuple[int, ...]:
    """Return the models that are not among the newest of their kind."""
    if keep is None:
        return ()
    newest: dict[str, int] = {}
    going = []
    for one in reversed(store.models.all()):
        newest[one.kind] = newest.get(one.kind, 0) + 1
        if newest[one.kind] > keep:
            going.append(one.id)
    return tuple(sorted(going))

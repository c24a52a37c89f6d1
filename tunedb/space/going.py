"""The rows that a pruning removes, counted by kind, and what it costs to do without them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..features.base import FeatureSet, Needs, feature_sets

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..query import Query

    Ids = NDArray[np.int64]

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
    query : Query
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
        query: Query,
        gone: Ids,
        features: dict[int, tuple[str, int]],
        models: tuple[int, ...],
    ) -> None:
        self._query, self.gone, self._sets, self._models = query, gone, features, models
        self._bytes = query.table_bytes()
        self._measurements = query.measurement_numbers()
        self._failures = query.failure_numbers() if len(gone) else None
        self._launches = query.launch_numbers() if len(gone) else None
        self._features = query.feature_numbers()
        self._predictions = query.prediction_numbers()
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
            sizes = {one.id: one.size or 0 for one in self._query.models()}
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
        named = {row.id: row for row in self._query.source_rows()}
        for id_, number in sorted(zip(ids, counts, strict=True), key=lambda pair: -pair[1]):
            row = named[int(id_)]
            here = row.store == self._query.store_key
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

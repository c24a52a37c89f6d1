"""Writing what comes from other databases."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Connection, select

from ..errors import UsageError
from ..records import Trust
from . import schema, statements
from .exchanged import (
    FeatureRows,
    ForeignSource,
    Incoming,
    Launched,
    Learnt,
    Merged,
    Named,
    Standing,
    refuses,
)
from .guards import Guards
from .queries import Query
from .retractions import Retraction
from .rows import Rows, failure_row_of, now

if TYPE_CHECKING:
    from .exchanged import Position

T = TypeVar("T", Learnt, Launched, Named, FeatureRows)

#: Direction (``pull``, ``push``), key of the other database, key of the selection, how far it came.
Watermark = tuple[str, str, str, "Position"]


@dataclass(frozen=True, slots=True)
class _Set:
    """A feature set as its rows name it."""

    name: str
    version: int
    columns: tuple[str, ...]


class Merging(ABC):
    """The part of :class:`tunedb.storage.store.Store` that merges; its guarantees hold."""

    query: Query
    _rows: Rows
    _guards: Guards

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[Connection]:
        """Yield the writer's connection inside one write transaction."""

    @abstractmethod
    def add_retractions(self, connection: Connection, rows: Sequence[Retraction]) -> int:
        """Add retractions inside a transaction; return how many were new."""

    @abstractmethod
    def _insert_launches(self, connection: Connection, launches: Sequence[Any]) -> int:
        """Insert launches inside a transaction; return how many were new."""

    def merge_batch(self, incoming: Incoming, *, watermark: Watermark | None = None) -> Merged:
        """Write what was verified of another database, in one transaction.

        New sources are foreign. Measurements and retractions in the name of somebody who is trusted
        here are not taken unless `incoming` says that they are believed. A known record stays as it
        is; it belongs to the source that is trusted most, of equal ones to that of the smallest
        digest. Scripts of workloads, and whatever else a source says of itself, are not taken.

        Parameters
        ----------
        incoming : Incoming
            Rows whose digests were computed (:mod:`tunedb.exchange.verify`).
        watermark : tuple or None
            How far the exchange has come with it; committed together with the rows.

        Returns
        -------
        Merged
        """
        with self._transaction() as connection:
            merged = self._merge(connection, incoming)
            if watermark is not None:
                _note(connection, watermark)
        if incoming.retractions or incoming.claims:
            self.query.forget_sources()
        return merged

    def set_watermark(self, direction: str, peer: str, selection: str, position: Position) -> None:
        """Remember how far an exchange has come; :meth:`Query.watermark` reads it."""
        with self._transaction() as connection:
            _note(connection, (direction, peer, selection, position))

    def _merge(self, connection: Connection, incoming: Incoming) -> Merged:
        """Write rows inside a transaction."""
        owners = _Owners(connection, self._rows, self.query.store_key, incoming)
        refused: Counter[int] = Counter()
        new: Counter[int] = Counter()
        taken = []
        for measurement, source in zip(incoming.measurements, incoming.source_of, strict=True):
            if owners.refused[source]:
                refused[source] += 1
            else:
                taken.append((measurement, source))
        owners.make()
        added = self._insert_foreign(connection, taken, owners)
        for measurement, source in taken:
            new[source] += measurement.digest in added
        moved = _attribute(connection, incoming, taken, added, owners)
        refused_words: Counter[tuple[str, int]] = Counter()

        def believed_of(table: str, words: Sequence[T]) -> list[tuple[T, int]]:
            refused_words.update((table, one.source) for one in words if owners.refused[one.source])
            return [
                (one, owners.of(one.source)[0]) for one in words if not owners.refused[one.source]
            ]

        failures = [
            failure_row_of(one.program, one.measurement, one.failure, source_id)
            for one, source_id in believed_of("failure", incoming.failures)
        ]
        launches = [
            (one.program, one.measurement, one.launch, source_id)
            for one, source_id in believed_of("launch", incoming.launches)
        ]
        aliases: Counter[int] = Counter()
        for one, source_id in believed_of("workload_alias", incoming.aliases):
            aliases[one.source] += statements.alias_of(
                connection,
                workload=one.workload,
                scheme=one.alias.scheme,
                key=one.alias.key,
                source_id=source_id,
            ).rowcount
        features, refused_sets = self._insert_features(
            connection, believed_of("feature", incoming.features)
        )
        believed, others = _sorted_out(connection, incoming, self.query.store_key)
        relayed: list[Retraction] = []
        if believed and not self._guards.is_owner:
            ours = set(statements.own_stores(connection).scalars())
            relayed = [one for one in believed if one.store not in ours]
            believed = [one for one in believed if one.store in ours]
        return Merged(
            new=new,
            refused=refused,
            moved=moved,
            failures=statements.insert["failure"].many(connection, failures),
            aliases=aliases,
            features=features,
            retractions=self.add_retractions(connection, believed) if believed else 0,
            launches=self._insert_launches(connection, launches),
            refused_words=refused_words,
            refused_retractions=others,
            relayed_retractions=relayed,
            refused_sets=refused_sets,
        )

    def _insert_foreign(
        self, connection: Connection, taken: Sequence[Any], owners: _Owners
    ) -> set[bytes]:
        """Insert measurements with all that they name; return the digests of the new ones."""
        if not taken:
            return set()
        last = statements.last_measurement(connection).scalar() or 0
        rows = [
            self._rows.measurement(connection, measurement, *owners.of(source))
            for measurement, source in taken
        ]
        programs = {row["program"]: row["_program"] for row in rows}
        statements.insert["program"].many(connection, list(programs.values()))
        new = statements.insert["measurement"].many(connection, rows)
        if new == len(rows):
            return {row["digest"] for row in rows}
        # Another process has added some of them since they were looked up.
        after: Sequence[Any] = statements.measurements_after(connection, id=last).all()
        return {digest for _, digest in after}

    def _insert_features(
        self, connection: Connection, features: Sequence[tuple[FeatureRows, int]]
    ) -> tuple[int, Counter[str]]:
        """Insert rows of features for programs that are there; return how many were new.

        Parameters
        ----------
        connection : Connection
            The writer's.
        features : sequence of (FeatureRows, int)
            Rows, and the source with whose record they came.
        """
        new = 0
        refused: Counter[str] = Counter()
        sets: dict[tuple[str, int, tuple[str, ...]], list[tuple[FeatureRows, int]]] = {}
        for one, source_id in features:
            sets.setdefault((one.name, one.version, one.columns), []).append((one, source_id))
        for key, found in sets.items():
            named = _Set(*key)
            try:
                set_id = self._rows.feature_set(connection, named)
            except UsageError:
                refused[f"{named.name} version {named.version}"] += len(found)
                continue
            rows = [
                {
                    "program": one.program,
                    "feature_set_id": set_id,
                    "source_id": source_id,
                    "n_rows": one.n_rows,
                    "n_columns": one.n_columns,
                    "data": one.data,
                }
                for one, source_id in found
            ]
            # First, because only programs without rows are marked.
            statements.foreign_feature_of.many(connection, rows)
            new += statements.feature_of.many(connection, rows)
        return new, refused


class _Owners:
    """Local numbers of the sources of a batch, made where they are needed.

    Attributes
    ----------
    refused : list of bool
        Whether new records of each are not taken.
    """

    def __init__(self, connection: Connection, rows: Rows, ours: str, incoming: Incoming) -> None:
        self._connection = connection
        self._rows = rows
        self.sources = incoming.sources
        # Read here and not before: somebody may have changed the trust of one meanwhile.
        self._standing = {source.digest: self._find(source) for source in incoming.sources}
        self.refused = [
            refuses(source, self._standing[source.digest], ours, incoming.believe)
            for source in incoming.sources
        ]

    def _find(self, source: ForeignSource) -> Standing | None:
        s = schema.source.c
        row = self._connection.execute(
            select(s.id, s.digest, s.trust).where(s.digest == source.digest)
        ).one_or_none()
        return None if row is None else Standing(*row)

    def make(self) -> None:
        """Add what is missing, but for those of which nothing is taken."""
        for number, refused in enumerate(self.refused):
            if not refused:
                self.of(number)

    def of(self, number: int) -> tuple[int, int]:
        """Return the local number and the trust of a source, added where it is missing."""
        source = self.sources[number]
        standing = self._standing[source.digest]
        if standing is None:
            id_ = self._rows.foreign_source(self._connection, source)
            standing = Standing(id_, source.digest, int(Trust.FOREIGN))
            self._standing[source.digest] = standing
        return standing.id, standing.trust


def _attribute(
    connection: Connection,
    incoming: Incoming,
    taken: Sequence[Any],
    added: set[bytes],
    owners: _Owners,
) -> int:
    """Give known records to better sources; return how many have another one now."""
    claims = [
        (claim.program, claim.measurement, claim.source, claim.valid)
        for claim in incoming.claims
        if not owners.refused[claim.source]
    ]
    # What another process has added meanwhile is known now.
    claims += [
        (one.program.digest, one.digest, source, one.is_valid)
        for one, source in taken
        if one.digest not in added
    ]
    rows = []
    for program, measurement, source, valid in claims:
        id_, trust = owners.of(source)
        rows.append(
            {
                "program": program,
                "measurement": measurement,
                "source": id_,
                "trust": trust,
                "owner": owners.sources[source].digest,
                "valid": int(valid and trust >= Trust.VERIFIED),
            }
        )
    return statements.attribute.many(connection, rows)


def _sorted_out(
    connection: Connection, incoming: Incoming, ours: str
) -> tuple[list[Retraction], list[Retraction]]:
    """Return the retractions that are taken, and those in the name of somebody trusted here."""
    if not incoming.retractions:
        return [], []
    return incoming.sorted_out({ours, *statements.trusted_stores(connection).scalars()})


def _note(connection: Connection, watermark: Watermark) -> None:
    """Write how far an exchange has come."""
    direction, peer, selection, position = watermark
    key = {"direction": direction, "peer": peer, "selection": selection}
    statements.forget_watermark(connection, **key)
    statements.insert["watermark"](
        connection,
        **key,
        measurement_id=position.measurement_id,
        measurement_digest=position.measurement_digest,
        failure_id=position.failure_id,
        launch_id=position.launch_id,
        retractions=position.retractions,
        exchanged_at=now(),
    )

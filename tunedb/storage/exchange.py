"""Exchange: lookup of stored rows by digest, and writing of another database's rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import (
    Connection,
    Select,
    Table,
    and_,
    bindparam,
    column,
    func,
    literal_column,
    select,
    values,
)

from ..errors import StorageError, UsageError
from ..records import Alias, Trust
from . import schema, statements
from .batches import Batches
from .database import Database
from .engine import Prepared
from .exchange_types import (
    ForeignAlias,
    ForeignFailure,
    ForeignFeatures,
    ForeignLaunch,
    ForeignSource,
    KnownSource,
    MergeBatch,
    MergeResult,
    Position,
    is_rejected,
)
from .loader import Loader
from .retractions import Retraction
from .rows import Rows, failure_row, now
from .statements import trusted_stores
from .trust import insert_retractions

T = TypeVar("T")
S = TypeVar("S", ForeignFailure, ForeignLaunch, ForeignAlias, ForeignFeatures)

#: Direction (``pull``, ``push``), key of the other database, key of the selection, progress.
Watermark = tuple[str, str, str, Position]

_m, _p, _s, _w = schema.measurement.c, schema.program.c, schema.source.c, schema.watermark.c

#: Keys per statement. SQLite takes 32,766 parameters; more keys than this gain little.
_KEYS = 250


@dataclass(frozen=True, slots=True)
class _FeatureSet:
    """A feature set as merged rows name it."""

    name: str
    version: int
    columns: tuple[str, ...]


def _keys_table(kinds: str) -> Any:
    """Return a table of :data:`_KEYS` rows of parameters ``a0, b0, a1, …``.

    Parameters
    ----------
    kinds : str
        Type of each column: ``b`` bytes, ``t`` text or ``i`` integer.
    """
    types: dict[str, Any] = {"b": schema.Blob, "t": schema.Text, "i": schema.Int}
    columns: list[Any] = [
        column(name, types[kind]) for name, kind in zip("abc", kinds, strict=False)
    ]
    rows = [
        tuple(bindparam(f"{c.name}{row}", type_=c.type) for c in columns) for row in range(_KEYS)
    ]
    return values(*columns, name="given").data(rows).cte("keys")


def _known_measurements() -> Prepared:
    """Return the query of stored programs and measurements; a new measurement has a None digest."""
    keys = _keys_table("bb")
    return Prepared(
        select(_p.digest, _m.digest, _m.source_id)
        .select_from(keys)
        .join(schema.program, _p.digest == keys.c.a)
        .outerjoin(schema.measurement, and_(_m.program_id == _p.id, _m.digest == keys.c.b))
    )


def _known_statements(table: Table) -> Prepared:
    """Return the query of stored (digest, digest of the source that states it)."""
    keys = _keys_table("bb")
    digest = table.c.digest
    return Prepared(
        select(digest, _s.digest)
        .join_from(keys, schema.source, _s.digest == keys.c.b)
        .join(table, and_(digest == keys.c.a, table.c.source_id == _s.id))
    )


def _known_features() -> Prepared:
    keys = _keys_table("bti")
    f, s = schema.feature.c, schema.feature_set.c
    return Prepared(
        select(keys.c.a, keys.c.b, keys.c.c)
        .join_from(keys, schema.program, _p.digest == keys.c.a)
        .join(schema.feature_set, and_(s.name == keys.c.b, s.version == keys.c.c))
        .join(schema.feature, and_(f.program_id == _p.id, f.feature_set_id == s.id))
    )


def _trusted_programs() -> Prepared:
    """Return the query of programs that a trusted source has measured."""
    keys = _keys_table("b")
    measured = (
        select(_m.id)
        .join_from(schema.measurement, schema.source, _s.id == _m.source_id)
        .where(_m.program_id == _p.id, _s.trust >= int(Trust.VERIFIED))
    )
    return Prepared(
        select(keys.c.a)
        .join_from(keys, schema.program, _p.digest == keys.c.a)
        .where(measured.exists())
    )


_MEASUREMENTS, _FEATURES = _known_measurements(), _known_features()
_TRUSTED = _trusted_programs()
_FAILURES, _LAUNCHES = _known_statements(schema.failure), _known_statements(schema.launch)


class Exchange:
    """``store.exchange``, for the package that merges databases."""

    def __init__(self, db: Database, loader: Loader, rows: Rows, batches: Batches) -> None:
        self._db = db
        self._loader = loader
        self._rows = rows
        self._batches = batches

    # ------------------------------------------------------------------ reading

    def _looked_up(
        self, statement: Prepared, keys: Sequence[tuple[Any, ...]], make: Callable[[Any], T]
    ) -> Iterator[T]:
        """Yield the rows of a statement over :func:`_wanted`, converted."""
        for start in range(0, len(keys), _KEYS):
            batch = list(keys[start : start + _KEYS])
            # The statement has a fixed number of parameters.
            batch += [batch[-1]] * (_KEYS - len(batch))
            parameters = {
                f"{name}{row}": value
                for row, key in enumerate(batch)
                for name, value in zip("abc", key, strict=False)
            }
            yield from map(make, self._db.fetch(statement, **parameters))

    def known_measurements(
        self, keys: Sequence[tuple[bytes, bytes]]
    ) -> tuple[dict[bytes, int], set[bytes]]:
        """Return which measurements and programs are stored.

        Parameters
        ----------
        keys : sequence of (bytes, bytes)
            Digests of program and measurement.

        Returns
        -------
        sources : dict
            Source id of each stored measurement, by its digest.
        programs : set of bytes
            Digests of the stored programs.
        """
        sources: dict[bytes, int] = {}
        programs: set[bytes] = set()
        # In the order of the index, so that neighbours are on one page.
        for program, measurement, source in self._looked_up(_MEASUREMENTS, sorted(keys), tuple):
            programs.add(program)
            if measurement is not None:
                sources[measurement] = source
        return sources, programs

    def known_failures(self, keys: Sequence[tuple[bytes, bytes]]) -> set[tuple[bytes, bytes]]:
        """Return the stored ones of (digest of a failure, digest of the source that states it)."""
        return set(self._looked_up(_FAILURES, keys, tuple))

    def known_launches(self, keys: Sequence[tuple[bytes, bytes]]) -> set[tuple[bytes, bytes]]:
        """Return the stored ones of (digest of a launch, digest of the source that states it)."""
        return set(self._looked_up(_LAUNCHES, keys, tuple))

    def known_aliases(self, workload_id: int) -> set[tuple[Alias, bytes]]:
        """Return the aliases of a workload, each with the digest of the source that states it."""
        a = schema.workload_alias.c
        rows = self._db.select(
            select(a.scheme, a.key, _s.digest)
            .join_from(schema.workload_alias, schema.source, _s.id == a.source_id)
            .where(a.workload_id == workload_id)
        )
        return {(Alias(row.scheme, row.key), bytes(row.digest)) for row in rows}

    def known_features(self, keys: Sequence[tuple[bytes, str, int]]) -> set[tuple[bytes, str, int]]:
        """Return those of (digest of a program, name and version of a set) that have rows."""
        return set(self._looked_up(_FEATURES, keys, tuple))

    def trusted_programs(self, digests: Sequence[bytes]) -> set[bytes]:
        """Return the digests of the programs that a trusted source has measured."""
        return {
            row[0] for row in self._looked_up(_TRUSTED, [(digest,) for digest in digests], tuple)
        }

    def known_retractions(self, rows: Sequence[Retraction]) -> set[tuple[bytes, str, str]]:
        """Return (digest, store, subject) of the stored ones of these retractions."""
        r = schema.retraction.c
        known = self._db.select(
            select(r.digest, r.store, r.subject).where(r.digest.in_({row.digest for row in rows}))
        )
        return set(map(tuple, known))

    def sources(self) -> dict[bytes, KnownSource]:
        """Return all sources by digest."""
        rows = self._db.select(select(_s.id, _s.digest, _s.trust))
        return {row.digest: KnownSource(*row) for row in rows}

    def trusted_stores(self) -> set[str]:
        """Return the keys of the databases with a source that is trusted here, ours included."""
        return {self._db.key, *(row.store for row in self._db.fetch(trusted_stores))}

    def account(self, store_key: str) -> tuple[str, str | None]:
        """Return this account of a server, and the one under which a database pushes, or None."""
        a = schema.account.c
        known = select(a.role).where(a.store == store_key).scalar_subquery()
        ((ours, role),) = self._db.select(select(literal_column("session_user"), known))
        return ours, role

    def select(self, statement: Select[Any]) -> Sequence[Any]:
        """Return all rows of a statement of package exchange."""
        return self._db.select(statement)

    def watermark(self, direction: str, peer: str, selection: str) -> Position | None:
        """Return the progress of an exchange, or None if there was none.

        Parameters
        ----------
        direction : str
            ``pull`` or ``push``.
        peer : str
            Key of the other database.
        selection : str
            :attr:`tunedb.storage.exchange_types.Selection.key`.
        """
        rows = self._db.select(
            select(
                *(_w.measurement_id, _w.failure_id, _w.measurement_digest),
                *(_w.retractions, _w.launch_id),
            ).where(_w.direction == direction, _w.peer == peer, _w.selection == selection)
        )
        return Position(*rows[0]) if rows else None

    def size_after(self, measurement_id: int) -> int:
        """Return the number of measurements with a greater id."""
        counted = select(func.count()).select_from(schema.measurement)
        return int(self._db.select(counted.where(schema.measurement.c.id > measurement_id))[0][0])

    # ------------------------------------------------------------------ writing

    def merge(self, batch: MergeBatch, *, watermark: Watermark | None = None) -> MergeResult:
        """Write verified rows of another database, in one transaction.

        New sources are foreign. Measurements and retractions in the name of a source or database
        that is trusted here are rejected unless `batch` accepts them. A known record is not
        changed; it is assigned to the source with the most trust, among equals to that with the
        smallest digest. Scripts of workloads are not merged.

        Parameters
        ----------
        batch : MergeBatch
            Verified rows (:mod:`tunedb.exchange.verify`).
        watermark : tuple or None
            Progress of the exchange, committed together with the rows.

        Returns
        -------
        MergeResult
        """
        with self._db.transaction() as connection:
            merged = self._merge(connection, batch)
            if watermark is not None:
                _store_watermark(connection, watermark)
        self._db.analyze_if_grown(sum(merged.new.values()))
        if batch.retractions or batch.claims:
            self._loader.forget_sources()
        return merged

    def set_watermark(self, direction: str, peer: str, selection: str, position: Position) -> None:
        """Store the progress of an exchange; :meth:`watermark` reads it."""
        with self._db.transaction() as connection:
            _store_watermark(connection, (direction, peer, selection, position))

    def _merge(self, connection: Connection, batch: MergeBatch) -> MergeResult:
        """Write rows inside a transaction."""
        sources = _BatchSources(connection, self._rows, self._db.key, batch)
        rejected: Counter[int] = Counter()
        new: Counter[int] = Counter()
        accepted = []
        for measurement, source in zip(batch.measurements, batch.source_of, strict=True):
            if sources.is_rejected[source]:
                rejected[source] += 1
            else:
                accepted.append((measurement, source))
        sources.insert()
        added = self._insert_foreign(connection, accepted, sources)
        for measurement, source in accepted:
            new[source] += measurement.digest in added
        moved = _assign_sources(connection, batch, accepted, added, sources)
        rejected_statements: Counter[tuple[str, int]] = Counter()

        def accepted_of(table: str, rows: Sequence[S]) -> list[tuple[S, int]]:
            rejected_statements.update(
                (table, row.source) for row in rows if sources.is_rejected[row.source]
            )
            return [
                (row, sources.row(row.source)[0])
                for row in rows
                if not sources.is_rejected[row.source]
            ]

        failures = [
            failure_row(row.program, row.measurement, row.failure, source_id)
            for row, source_id in accepted_of("failure", batch.failures)
        ]
        launches = [
            (row.program, row.measurement, row.launch, source_id)
            for row, source_id in accepted_of("launch", batch.launches)
        ]
        aliases: Counter[int] = Counter()
        for row, source_id in accepted_of("workload_alias", batch.aliases):
            aliases[row.source] += statements.insert_alias(
                connection,
                workload=row.workload,
                scheme=row.alias.scheme,
                key=row.alias.key,
                source_id=source_id,
            ).rowcount
        features, rejected_sets = self._insert_features(
            connection, accepted_of("feature", batch.features)
        )
        retractions, rejected_retractions = _split_retractions(connection, batch, self._db.key)
        relayed: list[Retraction] = []
        if retractions and not self._db.is_owner:
            own_stores = set(statements.own_stores(connection).scalars())
            relayed = [row for row in retractions if row.store not in own_stores]
            retractions = [row for row in retractions if row.store in own_stores]
        return MergeResult(
            new=new,
            rejected=rejected,
            moved=moved,
            failures=statements.insert["failure"].many(connection, failures),
            aliases=aliases,
            features=features,
            retractions=insert_retractions(connection, retractions)[0] if retractions else 0,
            launches=self._batches.insert_launches(connection, launches),
            rejected_statements=rejected_statements,
            rejected_retractions=rejected_retractions,
            relayed_retractions=relayed,
            rejected_sets=rejected_sets,
        )

    def _insert_foreign(
        self, connection: Connection, accepted: Sequence[Any], sources: _BatchSources
    ) -> set[bytes]:
        """Insert measurements and the rows that they refer to; return the new digests."""
        if not accepted:
            return set()
        last = statements.last_measurement(connection).scalar() or 0
        rows = [
            self._rows.measurement(connection, measurement, *sources.row(source))
            for measurement, source in accepted
        ]
        programs = {row["program"]: row["_program"] for row in rows}
        statements.insert["program"].many(connection, list(programs.values()))
        new = statements.insert["measurement"].many(connection, rows)
        if new == len(rows):
            return {row["digest"] for row in rows}
        # Another process has added some of them since the lookup.
        after: Sequence[Any] = statements.measurements_after(connection, id=last).all()
        return {digest for _, digest in after}

    def _insert_features(
        self, connection: Connection, features: Sequence[tuple[ForeignFeatures, int]]
    ) -> tuple[int, Counter[str]]:
        """Insert rows of stored programs; return the numbers of new rows and of rejected ones."""
        new = 0
        rejected: Counter[str] = Counter()
        sets: dict[tuple[str, int, tuple[str, ...]], list[tuple[ForeignFeatures, int]]] = {}
        for item, source_id in features:
            sets.setdefault((item.name, item.version, item.columns), []).append((item, source_id))
        for key, items in sets.items():
            named = _FeatureSet(*key)
            try:
                set_id = self._rows.feature_set(connection, named)
            except UsageError:
                rejected[f"{named.name} version {named.version}"] += len(items)
                continue
            rows = [
                {
                    "program": item.program,
                    "feature_set_id": set_id,
                    "source_id": source_id,
                    "n_rows": item.n_rows,
                    "n_columns": item.n_columns,
                    "data": item.data,
                }
                for item, source_id in items
            ]
            # Marked first, because only programs without rows are.
            statements.mark_foreign_feature.many(connection, rows)
            new += statements.insert_feature.many(connection, rows)
        return new, rejected

    def register(self, store_key: str) -> None:
        """Register the account of a server under which a database pushes; the first one counts.

        From then on only this account may write in its name there. A file has no accounts.

        Parameters
        ----------
        store_key : str
            Key of the database.

        Raises
        ------
        StorageError
            It is registered with another account.
        """
        if self._db.is_file:
            return
        own, registered = self.account(store_key)
        if registered is None:
            with self._db.transaction() as connection:
                statements.insert["account"](
                    connection, store=store_key, role=own, registered_at=now()
                )
            own, registered = self.account(store_key)
        if registered != own and not self._db.is_owner:
            change = f"account SET role = '{own}' WHERE store = '{store_key}'"
            raise StorageError(
                f"{self._db.location}: database {store_key} pushes as {registered}, but this "
                f"account is {own}; use that one, or ask the server's owner to run: UPDATE {change}"
            )


class _BatchSources:
    """Rows of a batch's sources, inserted when they are needed.

    Attributes
    ----------
    is_rejected : list of bool
        True for each source whose new records are rejected.
    """

    def __init__(
        self, connection: Connection, rows: Rows, store_key: str, batch: MergeBatch
    ) -> None:
        self._connection = connection
        self._rows = rows
        self.sources = batch.sources
        # Read inside the transaction: the trust in a source may have changed since the lookup.
        self._known = {source.digest: self._find(source) for source in batch.sources}
        self.is_rejected = [
            is_rejected(source, self._known[source.digest], store_key, batch.accept_trusted_names)
            for source in batch.sources
        ]

    def _find(self, source: ForeignSource) -> KnownSource | None:
        s = schema.source.c
        row = self._connection.execute(
            select(s.id, s.digest, s.trust).where(s.digest == source.digest)
        ).one_or_none()
        return None if row is None else KnownSource(*row)

    def insert(self) -> None:
        """Insert the missing sources, except rejected ones."""
        for position, is_rejected_ in enumerate(self.is_rejected):
            if not is_rejected_:
                self.row(position)

    def row(self, position: int) -> tuple[int, int]:
        """Return the id and the trust of a source, inserting it if missing."""
        source = self.sources[position]
        known = self._known[source.digest]
        if known is None:
            id_ = self._rows.foreign_source(self._connection, source)
            known = self._known[source.digest] = KnownSource(id_, source.digest, int(Trust.FOREIGN))
        return known.id, known.trust


def _assign_sources(
    connection: Connection,
    batch: MergeBatch,
    accepted: Sequence[Any],
    added: set[bytes],
    sources: _BatchSources,
) -> int:
    """Assign known records to better sources; return the number of changed records."""
    claims = [
        (claim.program, claim.measurement, claim.source, claim.valid)
        for claim in batch.claims
        if not sources.is_rejected[claim.source]
    ]
    # Records that another process has added meanwhile are known now.
    claims += [
        (measurement.program.digest, measurement.digest, source, measurement.is_valid)
        for measurement, source in accepted
        if measurement.digest not in added
    ]
    rows = []
    for program, measurement, source, valid in claims:
        id_, trust = sources.row(source)
        rows.append(
            {
                "program": program,
                "measurement": measurement,
                "source": id_,
                "trust": trust,
                "owner": sources.sources[source].digest,
                "valid": int(valid and trust >= Trust.VERIFIED),
            }
        )
    return statements.claim_record.many(connection, rows)


def _split_retractions(
    connection: Connection, batch: MergeBatch, store_key: str
) -> tuple[list[Retraction], list[Retraction]]:
    """Return the accepted and the rejected retractions."""
    if not batch.retractions:
        return [], []
    return batch.split_retractions({store_key, *statements.trusted_stores(connection).scalars()})


def _store_watermark(connection: Connection, watermark: Watermark) -> None:
    """Replace a watermark."""
    direction, peer, selection, position = watermark
    key = {"direction": direction, "peer": peer, "selection": selection}
    statements.delete_watermark(connection, **key)
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

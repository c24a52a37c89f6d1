"""Exchange: which rows of another database are known here, and writing the others."""

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
from .exchanged import (
    FeatureRows,
    ForeignSource,
    Incoming,
    Launched,
    Learnt,
    Merged,
    Named,
    Position,
    Standing,
    refuses,
)
from .loader import Loader
from .retractions import Retraction
from .rows import Rows, failure_row, now
from .statements import trusted_stores
from .trust import insert_retractions

T = TypeVar("T")
W = TypeVar("W", Learnt, Launched, Named, FeatureRows)

#: Direction (``pull``, ``push``), key of the other database, key of the selection, how far it came.
Watermark = tuple[str, str, str, Position]

_m, _p, _s, _w = schema.measurement.c, schema.program.c, schema.source.c, schema.watermark.c

#: Keys in one statement. SQLite takes 32,766 parameters; more keys than this gain little.
_KEYS = 250


@dataclass(frozen=True, slots=True)
class _Set:
    """A feature set as its rows name it."""

    name: str
    version: int
    columns: tuple[str, ...]


def _wanted(kinds: str) -> Any:
    """Return a table of :data:`_KEYS` rows of parameters ``a0, b0, a1, …``.

    Parameters
    ----------
    kinds : str
        ``b`` bytes, ``t`` text or ``i`` integer for each column.
    """
    types: dict[str, Any] = {"b": schema.Blob, "t": schema.Text, "i": schema.Int}
    columns: list[Any] = [
        column(name, types[kind]) for name, kind in zip("abc", kinds, strict=False)
    ]
    rows = [
        tuple(bindparam(f"{c.name}{row}", type_=c.type) for c in columns) for row in range(_KEYS)
    ]
    return values(*columns, name="given").data(rows).cte("wanted")


def _known_measurements() -> Prepared:
    """Return the query of (program, measurement) digests; the latter is None where it is new."""
    wanted = _wanted("bb")
    return Prepared(
        select(_p.digest, _m.digest, _m.source_id)
        .select_from(wanted)
        .join(schema.program, _p.digest == wanted.c.a)
        .outerjoin(schema.measurement, and_(_m.program_id == _p.id, _m.digest == wanted.c.b))
    )


def _known_words(table: Table) -> Prepared:
    """Return the query of (digest, digest of the source that says it)."""
    wanted = _wanted("bb")
    digest = table.c.digest
    return Prepared(
        select(digest, _s.digest)
        .join_from(wanted, schema.source, _s.digest == wanted.c.b)
        .join(table, and_(digest == wanted.c.a, table.c.source_id == _s.id))
    )


def _known_features() -> Prepared:
    wanted = _wanted("bti")
    f, s = schema.feature.c, schema.feature_set.c
    return Prepared(
        select(wanted.c.a, wanted.c.b, wanted.c.c)
        .join_from(wanted, schema.program, _p.digest == wanted.c.a)
        .join(schema.feature_set, and_(s.name == wanted.c.b, s.version == wanted.c.c))
        .join(schema.feature, and_(f.program_id == _p.id, f.feature_set_id == s.id))
    )


def _trusted_programs() -> Prepared:
    """Return the query of those programs that a trusted source has measured."""
    wanted = _wanted("b")
    measured = (
        select(_m.id)
        .join_from(schema.measurement, schema.source, _s.id == _m.source_id)
        .where(_m.program_id == _p.id, _s.trust >= int(Trust.VERIFIED))
    )
    return Prepared(
        select(wanted.c.a)
        .join_from(wanted, schema.program, _p.digest == wanted.c.a)
        .where(measured.exists())
    )


_MEASUREMENTS, _FEATURES = _known_measurements(), _known_features()
_TRUSTED = _trusted_programs()
_FAILURES, _LAUNCHES = _known_words(schema.failure), _known_words(schema.launch)


class Exchange:
    """``store.exchange``, for the room that merges databases."""

    def __init__(self, db: Database, loader: Loader, rows: Rows, batches: Batches) -> None:
        self._db = db
        self._loader = loader
        self._rows = rows
        self._batches = batches

    # ------------------------------------------------------------------ reading

    def _looked_up(
        self, statement: Prepared, keys: Sequence[tuple[Any, ...]], make: Callable[[Any], T]
    ) -> Iterator[T]:
        """Yield what a statement over :func:`_wanted` finds, made of its rows."""
        for start in range(0, len(keys), _KEYS):
            part = list(keys[start : start + _KEYS])
            # The statement has so many parameters, whatever is asked for.
            part += [part[-1]] * (_KEYS - len(part))
            parameters = {
                f"{name}{row}": value
                for row, key in enumerate(part)
                for name, value in zip("abc", key, strict=False)
            }
            yield from map(make, self._db.fetch(statement, **parameters))

    def known_measurements(
        self, keys: Sequence[tuple[bytes, bytes]]
    ) -> tuple[dict[bytes, int], set[bytes]]:
        """Tell which measurements are stored.

        Parameters
        ----------
        keys : sequence of (bytes, bytes)
            Digests of program and measurement.

        Returns
        -------
        sources : dict
            Digest of a measurement that is stored → local number of its source.
        programs : set of bytes
            Digests of the programs that are stored.
        """
        sources: dict[bytes, int] = {}
        programs: set[bytes] = set()
        # In order of the index that is read: neighbours are on one page.
        for program, measurement, source in self._looked_up(_MEASUREMENTS, sorted(keys), tuple):
            programs.add(program)
            if measurement is not None:
                sources[measurement] = source
        return sources, programs

    def known_failures(self, keys: Sequence[tuple[bytes, bytes]]) -> set[tuple[bytes, bytes]]:
        """Return those of (digest of a failure, of the source that says it) that are stored."""
        return set(self._looked_up(_FAILURES, keys, tuple))

    def known_launches(self, keys: Sequence[tuple[bytes, bytes]]) -> set[tuple[bytes, bytes]]:
        """Return those of (digest of a launch, of the source that says it) that are stored."""
        return set(self._looked_up(_LAUNCHES, keys, tuple))

    def known_aliases(self, workload_id: int) -> set[tuple[Alias, bytes]]:
        """Return the names of a workload, each with the digest of the source that says it."""
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
        """Return the digests of those of some programs that a trusted source has measured."""
        return {row[0] for row in self._looked_up(_TRUSTED, [(one,) for one in digests], tuple)}

    def known_retractions(self, rows: Sequence[Retraction]) -> set[tuple[bytes, str, str]]:
        """Return (digest, store, subject) of those of these retractions that are stored."""
        r = schema.retraction.c
        found = self._db.select(
            select(r.digest, r.store, r.subject).where(r.digest.in_({row.digest for row in rows}))
        )
        return set(map(tuple, found))

    def standings(self) -> dict[bytes, Standing]:
        """Return digest → what this database makes of that source."""
        rows = self._db.select(select(_s.id, _s.digest, _s.trust))
        return {row.digest: Standing(*row) for row in rows}

    def trusted_stores(self) -> set[str]:
        """Return the keys of the databases with a source that is trusted here, our own included."""
        return {self._db.key, *(row.store for row in self._db.fetch(trusted_stores))}

    def account(self, store_key: str) -> tuple[str, str | None]:
        """Return which account of a server this is, and under which one a database pushes.

        The latter is None where it never did. Only a server has accounts.
        """
        a = schema.account.c
        known = select(a.role).where(a.store == store_key).scalar_subquery()
        ((ours, role),) = self._db.select(select(literal_column("session_user"), known))
        return ours, role

    def select(self, statement: Select[Any]) -> Sequence[Any]:
        """Return all rows of a statement of the exchange room."""
        return self._db.select(statement)

    def watermark(self, direction: str, peer: str, selection: str) -> Position | None:
        """Return how far an exchange has come, or None where there was none.

        Parameters
        ----------
        direction : str
            ``pull`` or ``push``.
        peer : str
            Key of the other database.
        selection : str
            :attr:`tunedb.storage.exchanged.Selection.key`.
        """
        rows = self._db.select(
            select(
                *(_w.measurement_id, _w.failure_id, _w.measurement_digest),
                *(_w.retractions, _w.launch_id),
            ).where(_w.direction == direction, _w.peer == peer, _w.selection == selection)
        )
        return Position(*rows[0]) if rows else None

    def size_after(self, measurement_id: int) -> int:
        """Return how many measurements came after the one with that number."""
        counted = select(func.count()).select_from(schema.measurement)
        return int(self._db.select(counted.where(schema.measurement.c.id > measurement_id))[0][0])

    # ------------------------------------------------------------------ writing

    def merge(self, incoming: Incoming, *, watermark: Watermark | None = None) -> Merged:
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
        with self._db.transaction() as connection:
            merged = self._merge(connection, incoming)
            if watermark is not None:
                _note(connection, watermark)
        if incoming.retractions or incoming.claims:
            self._loader.forget_sources()
        return merged

    def set_watermark(self, direction: str, peer: str, selection: str, position: Position) -> None:
        """Remember how far an exchange has come; :meth:`watermark` reads it."""
        with self._db.transaction() as connection:
            _note(connection, (direction, peer, selection, position))

    def _merge(self, connection: Connection, incoming: Incoming) -> Merged:
        """Write rows inside a transaction."""
        owners = _Owners(connection, self._rows, self._db.key, incoming)
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

        def believed_of(table: str, words: Sequence[W]) -> list[tuple[W, int]]:
            refused_words.update((table, one.source) for one in words if owners.refused[one.source])
            return [
                (one, owners.of(one.source)[0]) for one in words if not owners.refused[one.source]
            ]

        failures = [
            failure_row(one.program, one.measurement, one.failure, source_id)
            for one, source_id in believed_of("failure", incoming.failures)
        ]
        launches = [
            (one.program, one.measurement, one.launch, source_id)
            for one, source_id in believed_of("launch", incoming.launches)
        ]
        aliases: Counter[int] = Counter()
        for one, source_id in believed_of("workload_alias", incoming.aliases):
            aliases[one.source] += statements.insert_alias(
                connection,
                workload=one.workload,
                scheme=one.alias.scheme,
                key=one.alias.key,
                source_id=source_id,
            ).rowcount
        features, refused_sets = self._insert_features(
            connection, believed_of("feature", incoming.features)
        )
        believed, others = _sorted_out(connection, incoming, self._db.key)
        relayed: list[Retraction] = []
        if believed and not self._db.is_owner:
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
            retractions=insert_retractions(connection, believed)[0] if believed else 0,
            launches=self._batches.insert_launches(connection, launches),
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
            statements.mark_foreign_feature.many(connection, rows)
            new += statements.insert_feature.many(connection, rows)
        return new, refused

    def register(self, store_key: str) -> None:
        """Register a database that pushes with this account of a server; the first one counts.

        From then on this account alone speaks for it there. A file has no accounts.

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
        ours, known = self.account(store_key)
        if known is None:
            with self._db.transaction() as connection:
                statements.insert["account"](
                    connection, store=store_key, role=ours, registered_at=now()
                )
            ours, known = self.account(store_key)
        if known != ours and not self._db.is_owner:
            mended = f"account SET role = '{ours}' WHERE store = '{store_key}'"
            raise StorageError(
                f"{self._db.location}: database {store_key} pushes as {known}, but this account is "
                f"{ours}; use that account, or ask the server's owner to run: UPDATE {mended}"
            )


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
    return statements.claim_record.many(connection, rows)


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

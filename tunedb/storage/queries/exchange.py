"""What a merge asks before it writes: which rows are known, and whose they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from sqlalchemy import Table, and_, bindparam, column, func, literal_column, select, values

from ...records import Alias, Trust
from .. import schema
from ..engine import Prepared
from ..exchanged import Position, Standing
from ..retractions import Retraction
from ..statements import trusted_stores
from .reader import Reader

T = TypeVar("T")

_m, _p, _s, _w = schema.measurement.c, schema.program.c, schema.source.c, schema.watermark.c

#: Keys in one statement. SQLite takes 32,766 parameters; more keys than this gain little.
_KEYS = 250


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


class Sharing(Reader):
    """Reads what an exchange with another database needs."""

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
            yield from map(make, self._rows(statement, **parameters))

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
        rows = self._select(
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
        found = self._select(
            select(r.digest, r.store, r.subject).where(r.digest.in_({row.digest for row in rows}))
        )
        return set(map(tuple, found))

    def standings(self) -> dict[bytes, Standing]:
        """Return digest → what this database makes of that source."""
        rows = self._select(select(_s.id, _s.digest, _s.trust))
        return {row.digest: Standing(*row) for row in rows}

    def trusted_stores(self) -> set[str]:
        """Return the keys of the databases with a source that is trusted here, our own included."""
        return {self.store_key, *(row.store for row in self._rows(trusted_stores))}

    def account(self, store_key: str) -> tuple[str, str | None]:
        """Return which account of a server this is, and under which one a database pushes.

        The latter is None where it never did. Only a server has accounts.
        """
        a = schema.account.c
        known = select(a.role).where(a.store == store_key).scalar_subquery()
        ((ours, role),) = self._select(select(literal_column("session_user"), known))
        return ours, role

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
        rows = self._select(
            select(
                *(_w.measurement_id, _w.failure_id, _w.measurement_digest),
                *(_w.retractions, _w.launch_id),
            ).where(_w.direction == direction, _w.peer == peer, _w.selection == selection)
        )
        return Position(*rows[0]) if rows else None

    def size_after(self, measurement_id: int) -> int:
        """Return how many measurements came after the one with that number."""
        counted = select(func.count()).select_from(schema.measurement)
        return int(self._select(counted.where(schema.measurement.c.id > measurement_id))[0][0])

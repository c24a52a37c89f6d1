"""Sources: where records came from, how far they are believed, and what was taken back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    ScalarSelect,
    and_,
    case,
    func,
    literal_column,
    or_,
    select,
)

from ... import identity
from ...errors import FormatError, LimitError
from ...records import SourceKind, Trace, Trust
from .. import schema
from ..retractions import ALIASES, is_retracted
from .ledger import Ledger

_m, _p, _w = schema.measurement.c, schema.program.c, schema.workload.c
_s, _r, _t = schema.source.c, schema.retraction.c, schema.session.c
_a = schema.workload_alias.c

#: Records whose traces are checked at a time.
_PAGE = 2_000


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A source with what the database knows of it.

    Parameters
    ----------
    id : int
        Local number.
    digest : bytes
        Its identity: the database that it is of, and its name there.
    name : str
        A user's word, or the path of a file.
    kind : SourceKind
        How its rows came in.
    trust : Trust
        How far it is believed here.
    store : str
        Key of the database that it is of.
    records : int
        How many records are its own.
    served : int
        How many of them may be answers.
    retracted : int
        How many of them were taken back, by themselves or with their session or source.
    created_at : int
        Since when it is known here, in microseconds since 1970, UTC.
    reason : str or None
        Why all of it was taken back; None where it was not.
    aliases : int
        How many names of workloads it says.
    aliases_reason : str or None
        Why these alone were taken back; None where they were not.
    """

    id: int
    digest: bytes
    name: str
    kind: SourceKind
    trust: Trust
    store: str
    records: int
    served: int
    retracted: int
    created_at: int
    reason: str | None = None
    aliases: int = 0
    aliases_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """A record whose trace must not reach TVM.

    Parameters
    ----------
    record_id : int
        Local number.
    reason : str
        The first thing that is not allowed.
    """

    record_id: int
    reason: str


class Sources(Ledger):
    """Reads of sources and of what retractions mean."""

    def source_rows(self) -> list[SourceRow]:
        """Return all sources, first known first. Reads all records."""

        def why(condition: ColumnElement[bool]) -> ScalarSelect[str]:
            by = or_(_r.store == self.store_key, _r.store == _s.store)
            return (
                select(_r.reason)
                .where(_r.digest == _s.digest, by, condition)
                .order_by(_r.created_at, _r.store)
                .limit(literal_column("1"))
                .correlate(schema.source)
                .scalar_subquery()
            )

        named = (
            select(_a.source_id, func.count().label("n")).group_by(_a.source_id).subquery("named")
        )
        taken = case((is_retracted(_m, many=True), literal_column("1")), else_=literal_column("0"))
        rows = self._select(
            select(
                *(_s.id, _s.digest, _s.name, _s.kind, _s.trust, _s.store, _s.created_at),
                func.count(_m.id).label("records"),
                func.coalesce(func.sum(_m.served), 0).label("served"),
                func.sum(taken).label("retracted"),
                why(_r.subject != ALIASES).label("reason"),
                why(_r.subject == ALIASES).label("aliases_reason"),
                func.coalesce(named.c.n, 0).label("aliases"),
            )
            .select_from(
                schema.source.outerjoin(schema.measurement, _m.source_id == _s.id).outerjoin(
                    named, named.c.source_id == _s.id
                )
            )
            .group_by(_s.id, named.c.n)
            .order_by(_s.id)
        )
        return [_source_row(row) for row in rows]

    def source_digest(self, id_: int) -> bytes:
        """Return the digest of the source with this id.

        Raises
        ------
        NotFoundError
            There is none.
        """
        return bytes(self._one("source", id_).digest)

    def trust_of(self, name: str) -> Trust | None:
        """Return how far this database's own source of a name is believed; None: there is none."""
        named = identity.clean_text(name).encode()
        digest = identity.digest("source", self.store_key.encode(), named)
        rows = self._select(select(_s.trust).where(_s.digest == digest))
        return Trust(rows[0].trust) if rows else None

    def forget_sources(self) -> None:
        """Read sources anew: their trust has changed."""
        self._sources.clear()

    def find_sessions(self, text: str) -> list[int]:
        """Return the ids of sessions that a text means: a key, an id, or a digest from its start.

        Parameters
        ----------
        text : str
            A key, an id, or at least four hexadecimal digits.
        """
        if found := [row.id for row in self._select(select(_t.id).where(_t.key == text))]:
            return found
        number = int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else 0
        if found := [row.id for row in self._select(select(_t.id).where(_t.id == number))]:
            return found
        digits = 2 * identity.DIGEST_BYTES
        if not 4 <= len(text) <= digits or not set(text.lower()) <= set("0123456789abcdef"):
            return []
        low, high = (bytes.fromhex(text.ljust(digits, filler)) for filler in "0f")
        chosen = select(_t.id).where(_t.digest.between(low, high)).order_by(_t.id)
        return [row.id for row in self._select(chosen)]

    def served_of(
        self,
        record_ids: Sequence[int] = (),
        source_ids: Sequence[int] = (),
        session_ids: Sequence[int] = (),
    ) -> int:
        """Return how many served records are these, or of these sources or sessions.

        Made of a statement for every 2,000 of the records, and one more.
        """
        served = (
            select(func.count())
            .select_from(schema.measurement)
            .where(_m.served == literal_column("1"))
        )
        of_session = and_(_m.session_id.is_not(None), _m.session_id.in_(session_ids))
        whole = or_(_m.source_id.in_(source_ids), of_session)
        ids = sorted(set(record_ids))
        statements = [served.where(whole)]
        for start in range(0, len(ids), _PAGE):
            statements.append(served.where(_m.id.in_(ids[start : start + _PAGE]), ~whole))
        return sum(int(self._select(statement)[0][0]) for statement in statements)

    def last_record(self) -> int:
        """Return the greatest id of a record, 0 where there is none."""
        return self._select(select(func.max(_m.id).label("id")))[0].id or 0

    def refused_records(self, source_id: int, *, after: int = 0) -> Iterator[Refused]:
        """Yield a source's records whose traces must not reach TVM, in order of insertion.

        Those that were taken back are left out. Made of many statements.

        Parameters
        ----------
        source_id : int
            Local number of the source.
        after : int
            Only records with a greater id.
        """
        statement = (
            select(_m.id, _w.format, _p.sketch_id, _p.tail_id, _p.decisions)
            .select_from(
                schema.measurement.join(schema.program, _p.id == _m.program_id).join(
                    schema.workload, _w.id == _p.workload_id
                )
            )
            .where(_m.source_id == source_id, ~is_retracted(_m, many=True))
            .order_by(_m.id)
            .limit(_PAGE)
        )
        rows: Sequence[Any] = [None]
        while rows:
            rows = self._select(statement.where(_m.id > after))
            for row in rows:
                reason = self._refusal(row)
                if reason is not None:
                    yield Refused(row.id, reason)
                after = row.id

    def _refusal(self, row: Any) -> str | None:
        """Return the first thing in a program that is not allowed, or None."""
        from ...programs.allowlist import check_trace

        tail = None if row.tail_id is None else self._trace_body("tail", row.tail_id)
        trace = Trace(self._trace_body("sketch", row.sketch_id), tail, bytes(row.decisions))
        try:
            check_trace(trace, row.format)
        except (FormatError, LimitError) as error:
            return str(error)
        return None


def _source_row(row: Any) -> SourceRow:
    return SourceRow(
        id=row.id,
        digest=bytes(row.digest),
        name=row.name,
        kind=SourceKind(row.kind),
        trust=Trust(row.trust),
        store=row.store,
        records=row.records,
        served=int(row.served),
        retracted=int(row.retracted),
        created_at=row.created_at,
        reason=row.reason,
        aliases=int(row.aliases),
        aliases_reason=row.aliases_reason,
    )

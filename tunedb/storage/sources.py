"""Sources: where records came from, how far they are believed, and what was taken back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, ScalarSelect, case, func, literal_column, or_, select

from .. import identity
from ..records import Source, SourceKind, Trust
from ..system.one_line import one_line
from . import read_statements as st
from . import schema
from .database import Database
from .loader import Loader
from .retractions import ALIASES, is_retracted

_m, _a = schema.measurement.c, schema.workload_alias.c
_s, _r = schema.source.c, schema.retraction.c


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

    __repr__ = one_line


class Sources:
    """``store.sources``: reads sources; ``store.trust`` decides about them."""

    def __init__(self, db: Database, loader: Loader) -> None:
        self._db = db
        self._loader = loader

    def __repr__(self) -> str:
        return f"<sources of {self._db.location}>"

    def get(self, id_: int) -> Source:
        """Return a source by its id, with the trust that it has now.

        Raises
        ------
        NotFoundError
            There is none.
        """
        return self._loader.read_source(id_)

    def numbered(self, ids: Sequence[int] | None = None) -> list[tuple[int, bytes, Source]]:
        """Return sources with their numbers and digests, all or those with some numbers."""
        statement = select(_s.id, _s.digest, _s.name, _s.kind, _s.trust).order_by(_s.id)
        if ids is not None:
            statement = statement.where(_s.id.in_(ids))
        return [
            (row.id, bytes(row.digest), Source(row.name, SourceKind(row.kind), Trust(row.trust)))
            for row in self._db.select(statement)
        ]

    def counts(self) -> list[tuple[Source, int]]:
        """Return all sources with their numbers of records."""
        t = schema.source.c
        rows = self._db.select(
            select(t.name, t.kind, t.trust, func.count(_m.id).label("records"))
            .select_from(schema.source.outerjoin(schema.measurement, _m.source_id == t.id))
            .group_by(t.id, t.name, t.kind, t.trust)
            .order_by(t.id)
        )
        return [
            (Source(row.name, SourceKind(row.kind), Trust(row.trust)), row.records) for row in rows
        ]

    def summaries(self) -> list[SourceRow]:
        """Return all sources, first known first. Reads all records."""

        def why(condition: ColumnElement[bool]) -> ScalarSelect[str]:
            by = or_(_r.store == self._db.key, _r.store == _s.store)
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
        rows = self._db.select(
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


class Provenance:
    """``store.provenance``, for rooms that ask whether somebody here vouches for a thing."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def is_own_workload(self, workload_id: int) -> bool:
        """Tell whether a workload has a record of an own source that can be served.

        A source that was merged is another database's, however far it is trusted.
        """
        return bool(self._db.fetch(st.own_records, workload=workload_id, store=self._db.key))

    def own_workloads(self) -> set[int]:
        """Return the ids of the workloads with a record of an own source, failed ones too.

        Looks at all measurements; :meth:`is_own_workload` does not.
        """
        return {row[0] for row in self._db.fetch(st.own_workloads, store=self._db.key)}

    def local_workloads(self) -> set[int]:
        """Return the ids of the workloads that a source of this database has records of.

        The others came by merges alone: nobody here has said that their bodies are harmless.
        """
        return {row[0] for row in self._db.fetch(st.local_workloads, store=self._db.key)}

    def is_trusted_program(self, program_id: int) -> bool:
        """Tell whether a program has a record of a source whose programs TVM may get."""
        return bool(self._db.fetch(st.trusted_records, program=program_id))

    def is_own_program(self, program_id: int) -> bool:
        """Tell whether a program has a record of an own source of this database."""
        return bool(self._db.fetch(st.own_programs, program=program_id, store=self._db.key))

    def trust_of(self, name: str) -> Trust | None:
        """Return how far this database's own source of a name is believed; None: there is none."""
        named = identity.clean_text(name).encode()
        digest = identity.digest("source", self._db.key.encode(), named)
        rows = self._db.select(select(_s.trust).where(_s.digest == digest))
        return Trust(rows[0].trust) if rows else None


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

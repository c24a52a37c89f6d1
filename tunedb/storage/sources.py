"""Sources: origins of records, with their trust and retractions."""

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
    """A source with its statistics.

    Parameters
    ----------
    id : int
        Row id.
    digest : bytes
        Identity: the database to which it belongs, and its name there.
    name : str
        A name that the user gives, or the path of a file.
    kind : SourceKind
        Way in which its rows came in.
    trust : Trust
        Trust in it here.
    store : str
        Key of the database to which it belongs.
    records : int
        Number of its records.
    served : int
        Number of its records that are served.
    retracted : int
        Number of its records that are retracted, themselves or with their session or source.
    created_at : int
        Time of its first row here, in microseconds since 1970, UTC.
    reason : str or None
        Reason for which all of it was retracted; None if it was not.
    aliases : int
        Number of aliases that it states.
    aliases_reason : str or None
        Reason for which only its aliases were retracted; None if they were not.
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
    """``store.sources``: reads sources; ``store.trust`` changes the trust in them."""

    def __init__(self, db: Database, loader: Loader) -> None:
        self._db = db
        self._loader = loader

    def __repr__(self) -> str:
        return f"<sources of {self._db.location}>"

    def get(self, id_: int) -> Source:
        """Return a source by its id, with its present trust.

        Parameters
        ----------
        id_ : int
            Id of the source.

        Returns
        -------
        Source

        Raises
        ------
        NotFoundError
            The database has no such source.
        """
        return self._loader.read_source(id_)

    def numbered(self, ids: Sequence[int] | None = None) -> list[tuple[int, bytes, Source]]:
        """Return sources with their ids and digests.

        Parameters
        ----------
        ids : sequence of int or None
            Only these sources.

        Returns
        -------
        list of (int, bytes, Source)
            Id, digest and source, in order of ids.
        """
        statement = select(_s.id, _s.digest, _s.name, _s.kind, _s.trust).order_by(_s.id)
        if ids is not None:
            statement = statement.where(_s.id.in_(ids))
        return [
            (row.id, bytes(row.digest), Source(row.name, SourceKind(row.kind), Trust(row.trust)))
            for row in self._db.select(statement)
        ]

    def summaries(self) -> list[SourceRow]:
        """Return all sources with their statistics, in order of ids; reads all records.

        Returns
        -------
        list of SourceRow
        """

        def reason(condition: ColumnElement[bool]) -> ScalarSelect[str]:
            counts = or_(_r.store == self._db.key, _r.store == _s.store)
            return (
                select(_r.reason)
                .where(_r.digest == _s.digest, counts, condition)
                .order_by(_r.created_at, _r.store)
                .limit(literal_column("1"))
                .correlate(schema.source)
                .scalar_subquery()
            )

        aliases = (
            select(_a.source_id, func.count().label("n")).group_by(_a.source_id).subquery("aliases")
        )
        retracted = case(
            (is_retracted(_m, many=True), literal_column("1")), else_=literal_column("0")
        )
        rows = self._db.select(
            select(
                *(_s.id, _s.digest, _s.name, _s.kind, _s.trust, _s.store, _s.created_at),
                func.count(_m.id).label("records"),
                func.coalesce(func.sum(_m.served), 0).label("served"),
                func.sum(retracted).label("retracted"),
                reason(_r.subject != ALIASES).label("reason"),
                reason(_r.subject == ALIASES).label("aliases_reason"),
                func.coalesce(aliases.c.n, 0).label("aliases"),
            )
            .select_from(
                schema.source.outerjoin(schema.measurement, _m.source_id == _s.id).outerjoin(
                    aliases, aliases.c.source_id == _s.id
                )
            )
            .group_by(_s.id, aliases.c.n)
            .order_by(_s.id)
        )
        return [_source_row(row) for row in rows]


class Provenance:
    """``store.provenance``, for packages that need rows of own or trusted sources."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def is_own_workload(self, workload_id: int) -> bool:
        """Return true if a workload has a served record of an own source.

        Merged sources belong to other databases, however far they are trusted.
        """
        return bool(self._db.fetch(st.own_records, workload=workload_id, store=self._db.key))

    def own_workloads(self) -> set[int]:
        """Return the ids of the workloads with a record of an own source, including failed ones.

        Reads all measurements; :meth:`is_own_workload` does not.
        """
        return {row[0] for row in self._db.fetch(st.own_workloads, store=self._db.key)}

    def local_workloads(self) -> set[int]:
        """Return the ids of the workloads with records of this database's sources.

        The others came by merges alone: no own source vouches for their bodies.
        """
        return {row[0] for row in self._db.fetch(st.local_workloads, store=self._db.key)}

    def is_trusted_program(self, program_id: int) -> bool:
        """Return true if a program has a record of a trusted source."""
        return bool(self._db.fetch(st.trusted_records, program=program_id))

    def is_own_program(self, program_id: int) -> bool:
        """Return true if a program has a record of an own source."""
        return bool(self._db.fetch(st.own_programs, program=program_id, store=self._db.key))

    def trust_of(self, name: str) -> Trust | None:
        """Return the trust in this database's own source of a name; None if there is none."""
        digest = identity.digest(
            "source", self._db.key.encode(), identity.clean_text(name).encode()
        )
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

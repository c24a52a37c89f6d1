"""Names of workloads: which of them are the same computation.

Workloads are known by names (:class:`tunedb.records.Alias`), and each name is the word of a source.
A name of a foreign source never makes a workload answer; where programs are only proposed, and
measured before they count, it may be asked for. A name of a source that is trusted here counts if
what the workload *is* confirms it: TVM's equality where TVM may read both modules, otherwise their
structures (:mod:`tunedb.programs.workload_info.structure`). A ``link`` that this database made
itself is its user's word and needs no confirmation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Any

from sqlalchemy import Connection, and_, case, func, literal_column, or_, select

from .. import identity
from ..programs.workload_info.structure import Structure, structure_of
from ..records import Alias, Source, Trust
from . import read_statements as st
from . import schema, statements
from .attribution import is_trusted
from .database import Database
from .engine import Prepared
from .loader import Cache, Loader
from .read_statements import parameter
from .retry import retried
from .rows import Rows, label

#: Scheme of the names by which a user says that workloads are the same.
LINK = "link"

#: Names that are asked for in one statement.
_MOST_NAMES = 2

_a, _s = schema.workload_alias.c, schema.source.c


class Standing(IntEnum):
    """How far a name counts."""

    FOREIGN = 0
    TRUSTED = 1
    LINKED = 2


def _standing() -> Any:
    """Return the best standing that a name has through one of the sources that say it."""
    linked = and_(
        _a.scheme == literal_column(f"'{LINK}'"),
        _s.trust >= literal_column(str(int(Trust.OWN))),
        _s.store == parameter("store", _s.store),
    )
    return func.max(
        case(
            (~is_trusted(_a.source_id, aliases=True), literal_column("0")),
            (linked, literal_column("2")),
            else_=literal_column("1"),
        )
    )


_SAID = schema.workload_alias.join(schema.source, _s.id == _a.source_id)
_BY_NAME = Prepared(
    select(_a.workload_id, _standing())
    .select_from(_SAID)
    .where(
        or_(
            *(
                and_(
                    _a.scheme == parameter(f"scheme{place}", _a.scheme),
                    _a.key == parameter(f"key{place}", _a.key),
                )
                for place in range(_MOST_NAMES)
            )
        )
    )
    .group_by(_a.workload_id)
    .order_by(_a.workload_id)
)
_NAMES = Prepared(
    select(_a.scheme, _a.key, _standing())
    .select_from(_SAID)
    .where(_a.workload_id == parameter("workload", _a.workload_id))
    .group_by(_a.scheme, _a.key)
    .order_by(_a.scheme, _a.key)
)


class Names:
    """``store.names``, for rooms that look workloads up by TVM's hashes."""

    def __init__(self, db: Database, loader: Loader, rows: Rows) -> None:
        self._db = db
        self._loader = loader
        self._structures: Cache[Structure] = Cache()
        self._rows = rows

    @retried
    def add(self, workload_id: int, aliases: Iterable[Alias], source: Source) -> None:
        """Add names of a stored workload, of which nothing else is said.

        Parameters
        ----------
        workload_id : int
            Local number of the workload.
        aliases : iterable of Alias
            Its names.
        source : Source
            The source of this database that gives them.
        """
        with self._db.transaction() as connection:
            self.insert(connection, workload_id, aliases, source)

    def insert(
        self, connection: Connection, workload_id: int, aliases: Iterable[Alias], source: Source
    ) -> None:
        """Insert the names that a source of this database gives a workload."""
        found = list(aliases)
        if not found:
            return
        source_id, _ = self._rows.source(connection, source)
        statements.insert["workload_alias"].many(
            connection,
            [
                {
                    "scheme": label(alias.scheme),
                    "key": label(alias.key),
                    "workload_id": workload_id,
                    "source_id": source_id,
                }
                for alias in found
            ],
        )

    def of(self, workload_id: int) -> list[tuple[Alias, Standing]]:
        """Return the names of a workload, and how far each counts."""
        rows = self._db.fetch(_NAMES, workload=workload_id, store=self._db.key)
        return [(Alias(scheme, key), Standing(standing)) for scheme, key, standing in rows]

    def standings(self, names: Sequence[Alias]) -> list[tuple[int, Standing]]:
        """Return the workloads under one or two names, and how far the name of each counts.

        In the order of their ids; made of one statement.
        """
        padded = [*names, *names][:_MOST_NAMES]
        given = {f"scheme{at}": identity.clean_text(one.scheme) for at, one in enumerate(padded)}
        given |= {f"key{at}": identity.clean_text(one.key) for at, one in enumerate(padded)}
        rows = self._db.tuples(_BY_NAME, store=self._db.key, **given)
        return [(id_, Standing(standing)) for id_, standing in rows]

    def structure(self, workload_id: int) -> Structure:
        """Return the structure of a stored workload."""
        return self._structures.fetch(
            workload_id, lambda id_: structure_of(self._loader.workload(id_))
        )

    def named(
        self,
        names: Sequence[Alias],
        confirm: Callable[[int], bool],
        *,
        foreign: bool = False,
        links: bool = True,
    ) -> list[int]:
        """Return the workloads that answer for a computation, first committed first.

        Parameters
        ----------
        names : sequence of Alias
            One or two names that were made of the computation itself.
        confirm : callable
            Tells of a workload under one of the names whether it is that computation.
        foreign : bool
            Names that only foreign sources say count too: for proposing programs that are
            measured before they count.
        links : bool
            A link that this database made itself needs no confirmation.
        """
        least = Standing.FOREIGN if foreign else Standing.TRUSTED
        return [
            id_
            for id_, standing in self.standings(names)
            if standing >= least and ((links and standing == Standing.LINKED) or confirm(id_))
        ]

    def workloads_without(self, scheme: str, tvm_version: str, after: int) -> list[int]:
        """Return ids above `after` of served modules without such an alias.

        Those whose graph a TVM release wrote, and those with a script, which outlives releases.
        """
        return [
            row[0]
            for row in self._db.fetch(
                st.workloads_without,
                scheme=scheme,
                version=tvm_version + "%",
                after=after,
                store=self._db.key,
            )
        ]

    def last_workload(self) -> int:
        """Return the highest id of a workload, or 0."""
        return int(self._db.fetch(st.last_workload)[0][0] or 0)

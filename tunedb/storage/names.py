"""Aliases of workloads: which of them are the same computation.

Workloads have aliases (:class:`tunedb.records.Alias`), each stated by a source. An alias of a
foreign source never makes a workload answer; it may only propose programs that are measured before
they are used. An alias of a trusted source counts if the workloads themselves confirm it: by TVM's
equality if TVM may read both modules, otherwise by their structures
(:mod:`tunedb.programs.workload_info.structure`). A ``link`` of this database's own user needs no
confirmation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Any

from sqlalchemy import Connection, and_, case, func, literal_column, or_, select

from .. import identity
from ..programs.workload_info.structure import Structure, structure_of
from ..records import LOOSE, Alias, Source, Trust
from . import read_statements as st
from . import schema, statements
from .attribution import is_trusted
from .database import Database
from .engine import Prepared
from .loader import Cache, Loader
from .read_statements import parameter
from .retry import retried
from .rows import Rows, label

#: Scheme of aliases by which a user declares workloads equal.
LINK = "link"

#: Aliases of one query.
_MAX_ALIASES = 2

_a, _s = schema.workload_alias.c, schema.source.c


class AliasTrust(IntEnum):
    """Trust in an alias."""

    FOREIGN = 0
    TRUSTED = 1
    LINKED = 2


def _alias_trust() -> Any:
    """Return the greatest trust in an alias among the sources that state it."""
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


_STATED = schema.workload_alias.join(schema.source, _s.id == _a.source_id)
_BY_ALIAS = Prepared(
    select(_a.workload_id, _alias_trust())
    .select_from(_STATED)
    .where(
        or_(
            *(
                and_(
                    _a.scheme == parameter(f"scheme{number}", _a.scheme),
                    _a.key == parameter(f"key{number}", _a.key),
                )
                for number in range(_MAX_ALIASES)
            )
        )
    )
    .group_by(_a.workload_id)
    .order_by(_a.workload_id)
)
_ALIASES = Prepared(
    select(_a.scheme, _a.key, _alias_trust())
    .select_from(_STATED)
    .where(_a.workload_id == parameter("workload", _a.workload_id))
    .group_by(_a.scheme, _a.key)
    .order_by(_a.scheme, _a.key)
)


class Names:
    """``store.names``, for packages that look workloads up by TVM's hashes."""

    def __init__(self, db: Database, loader: Loader, rows: Rows) -> None:
        self._db = db
        self._loader = loader
        self._structures: Cache[Structure] = Cache()
        self._rows = rows

    @retried
    def add(self, workload_id: int, aliases: Iterable[Alias], source: Source) -> None:
        """Add aliases of a stored workload.

        Parameters
        ----------
        workload_id : int
            Id of the workload.
        aliases : iterable of Alias
            Its aliases.
        source : Source
            Own source that states them.
        """
        with self._db.transaction() as connection:
            self.insert(connection, workload_id, aliases, source)

    def insert(
        self, connection: Connection, workload_id: int, aliases: Iterable[Alias], source: Source
    ) -> None:
        """Insert aliases that an own source states of a workload."""
        rows = list(aliases)
        if not rows:
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
                for alias in rows
            ],
        )

    def aliases(self, workload_id: int) -> list[tuple[Alias, AliasTrust]]:
        """Return the aliases of a workload with the trust in each."""
        rows = self._db.fetch(_ALIASES, workload=workload_id, store=self._db.key)
        return [(Alias(scheme, key), AliasTrust(trust)) for scheme, key, trust in rows]

    def workloads(self, aliases: Sequence[Alias]) -> list[tuple[int, AliasTrust]]:
        """Return the workloads with one of up to two aliases, and the trust in the alias of each.

        In the order of their ids, by one statement.
        """
        padded = [*aliases, *aliases][:_MAX_ALIASES]
        schemes = {f"scheme{i}": identity.clean_text(a.scheme) for i, a in enumerate(padded)}
        keys = {f"key{i}": identity.clean_text(a.key) for i, a in enumerate(padded)}
        rows = self._db.tuples(_BY_ALIAS, store=self._db.key, **schemes, **keys)
        return [(id_, AliasTrust(trust)) for id_, trust in rows]

    def structure(self, workload_id: int) -> Structure:
        """Return the structure of a stored workload."""
        return self._structures.fetch(
            workload_id, lambda id_: structure_of(self._loader.workload(id_))
        )

    def confirmed(
        self,
        aliases: Sequence[Alias],
        confirm: Callable[[int], bool],
        *,
        foreign: bool = False,
        links: bool = True,
    ) -> list[int]:
        """Return the workloads that answer for a computation, in order of insertion.

        Parameters
        ----------
        aliases : sequence of Alias
            One or two aliases computed from the computation itself.
        confirm : callable
            Returns true if the workload with this id is that computation.
        foreign : bool
            Include aliases of foreign sources, to propose programs that are measured before use.
        links : bool
            Accept a link of this database's own user without confirmation.
        """
        least = AliasTrust.FOREIGN if foreign else AliasTrust.TRUSTED
        return [
            id_
            for id_, trust in self.workloads(aliases)
            if trust >= least and ((links and trust == AliasTrust.LINKED) or confirm(id_))
        ]

    def equivalent(self, workload_id: int, *, foreign: bool = False) -> list[int]:
        """Return the ids of the workloads equal to one, itself included (:class:`Workloads`)."""

        def confirm(id_: int) -> bool:
            if id_ == workload_id:
                return True
            return self.structure(id_).agrees(self.structure(workload_id))

        ids = {workload_id}
        for alias, trust in self.aliases(workload_id):
            if alias.scheme.endswith(LOOSE) or (trust == AliasTrust.FOREIGN and not foreign):
                continue
            links = trust == AliasTrust.LINKED
            ids.update(self.confirmed([alias], confirm, foreign=foreign, links=links))
        return sorted(ids)

    def workloads_without(self, scheme: str, after: int) -> list[int]:
        """Return ids above `after` of served modules without an own alias of this scheme."""
        rows = self._db.fetch(st.workloads_without, scheme=scheme, after=after, store=self._db.key)
        return [row[0] for row in rows]

    def last_workload(self) -> int:
        """Return the greatest id of a workload; 0 if there is none."""
        return int(self._db.fetch(st.last_workload)[0][0] or 0)

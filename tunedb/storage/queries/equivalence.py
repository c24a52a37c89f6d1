"""Which workloads are the same computation: the one place that decides it.

Workloads are known by names (:class:`tunedb.records.Alias`), and each name is the word of a source.
A name of a foreign source never makes a workload answer; where programs are only proposed, and
measured before they count, it may be asked for. A name of a source that is trusted here counts if
what the workload *is* confirms it: TVM's equality where TVM may read both modules, otherwise their
structures (:mod:`tunedb.programs.workload_info.structure`). A ``link`` that this database made
itself is its user's word and needs no confirmation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

from sqlalchemy import and_, case, func, literal_column, or_, select

from ... import identity
from ...programs.workload_info.structure import Structure, structure_of
from ...records import LOOSE, Alias, Trust
from .. import schema
from ..attribution import is_trusted
from ..engine import Prepared
from .catalog import Catalog
from .statements import parameter

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


class Equivalence(Catalog):
    """Decides which workloads answer for another."""

    def names(self, workload_id: int) -> list[tuple[Alias, Standing]]:
        """Return the names of a workload, and how far each counts."""
        rows = self._rows(_NAMES, workload=workload_id, store=self.store_key)
        return [(Alias(scheme, key), Standing(standing)) for scheme, key, standing in rows]

    def standings_of(self, names: Sequence[Alias]) -> list[tuple[int, Standing]]:
        """Return the workloads under one or two names, and how far the name of each counts.

        In the order of their ids; made of one statement.
        """
        padded = [*names, *names][:_MOST_NAMES]
        given = {f"scheme{at}": identity.clean_text(one.scheme) for at, one in enumerate(padded)}
        given |= {f"key{at}": identity.clean_text(one.key) for at, one in enumerate(padded)}
        rows = self._tuples(_BY_NAME, store=self.store_key, **given)
        return [(id_, Standing(standing)) for id_, standing in rows]

    def structure(self, workload_id: int) -> Structure:
        """Return the structure of a stored workload."""
        return self._structures.fetch(workload_id, lambda id_: structure_of(self.workload(id_)))

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
            for id_, standing in self.standings_of(names)
            if standing >= least and ((links and standing == Standing.LINKED) or confirm(id_))
        ]

    def equivalent(self, workload_id: int, *, foreign: bool = False) -> list[int]:
        """Return the ids of the workloads that are the same computation, itself included.

        Those that share a structural hash, a script or a link, as :meth:`named` decides. TVM's
        looser equalities (``ignore-tensor``, ``anchor-block``) are for a handle that asks for
        them.

        Parameters
        ----------
        workload_id : int
            Local number of the workload.
        foreign : bool
            As for :meth:`named`.
        """

        def confirm(id_: int) -> bool:
            if id_ == workload_id:
                return True
            return self.structure(id_).agrees(self.structure(workload_id))

        found = {workload_id}
        for name, standing in self.names(workload_id):
            if name.scheme.endswith(LOOSE) or (standing == Standing.FOREIGN and not foreign):
                continue
            links = standing == Standing.LINKED
            found.update(self.named([name], confirm, foreign=foreign, links=links))
        return sorted(found)

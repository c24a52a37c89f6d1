"""Workloads: computations, their equivalents, and similar ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from sqlalchemy import and_, case, func, literal_column, or_, select

from .. import identity
from ..programs.workload_info import is_rebuildable
from ..records import (
    MODULES,
    TUNING,
    Alias,
    Signature,
    Source,
    Status,
    Target,
    Workload,
)
from ..results import WorkloadSummary
from ..system.one_line import one_line
from . import read_statements as st
from . import schema
from .database import Database
from .loader import Loader
from .lookup import Lookup
from .names import Names
from .programs import among
from .retry import retried
from .rows import Rows
from .superseded import is_ranked

_m, _w, _t = schema.measurement.c, schema.workload.c, schema.target.c

Level = Literal["exact", "compatible", "kind"]

#: Distance added for another target, in octaves. On CPUs with the same instructions the five best
#: programs of one contain an optimum of the other, on others of that kind mostly a program near it.
TARGET_DISTANCE: dict[Level, float] = {"exact": 0.0, "compatible": 0.5, "kind": 2.0}


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A similar workload, whose programs may be adapted.

    Parameters
    ----------
    workload_id : int
        Id of the workload.
    target_ids : tuple of int
        Targets of `level` for which it has served records.
    distance : float
        Distance of the signatures in octaves (:mod:`tunedb.programs.workload_info.distance`).
    level : {"exact", "compatible", "kind"}
        The requested target itself, targets of its kind and architecture, or targets of its kind.
    """

    workload_id: int
    target_ids: tuple[int, ...]
    distance: float
    level: Level

    __repr__ = one_line

    @property
    def far(self) -> float:
        """Distance of workload and target together, in octaves."""
        return self.distance + TARGET_DISTANCE[self.level]


class Workloads:
    """``store.workloads``: adds, finds and compares workloads."""

    def __init__(
        self, db: Database, loader: Loader, rows: Rows, names: Names, lookup: Lookup
    ) -> None:
        self._db = db
        self._loader = loader
        self._rows = rows
        self._names = names
        self._lookup = lookup

    def __repr__(self) -> str:
        return f"<workloads of {self._db.location}>"

    @retried
    def add(
        self, workload: Workload, aliases: Iterable[Alias] = (), source: Source = TUNING
    ) -> int:
        """Add a workload and its aliases.

        A workload that was imported without a script gets it.

        Parameters
        ----------
        workload : Workload
            The workload.
        aliases : iterable of Alias
            Its aliases.
        source : Source
            Own source that states the aliases.

        Returns
        -------
        int
            Id of the workload.
        """
        with self._db.transaction() as connection:
            id_ = self._rows.workload(connection, workload)
            self._rows.own(connection, workload)
            self._names.insert(connection, id_, aliases, source)
        return id_

    def get(self, id_: int) -> Workload:
        """Return a workload by its id.

        Parameters
        ----------
        id_ : int
            Id of the workload.

        Returns
        -------
        Workload

        Raises
        ------
        NotFoundError
            The database has no such workload.
        """
        return self._loader.workload(id_)

    def id_of(self, digest: bytes) -> int | None:
        """Return the id of the workload with a digest.

        Parameters
        ----------
        digest : bytes
            Digest of the workload.

        Returns
        -------
        int or None
        """
        rows = self._db.fetch(st.workload_by_digest, digest=digest)
        return rows[0][0] if rows else None

    def find(self, text: str = "", *, family: str | None = None) -> list[WorkloadSummary]:
        """Return workloads with their statistics, in order of insertion.

        Parameters
        ----------
        text : str
            An id, a name or a part of one, or the first four or more digits of a digest; empty for
            all. A workload of exactly that id or name is returned alone. A FAIR T1 input has the
            name of the kernel that it describes; it is found by its id or digest only.
        family : str or None
            Only workloads of this operator family (``matmul``, ``conv2d``, …).

        Returns
        -------
        list of WorkloadSummary
            :class:`Records` takes them where it takes ids. Reads all measurements.

        Examples
        --------
        >>> store.workloads.find("matmul")
        [Workload(1, 'matmul_0', 2 records, best 0.001 s)]
        """
        if not text and family is None:
            return self._summaries(None)
        ids = self._lookup.workloads(text, family)
        return self._summaries(ids) if ids else []

    def _summaries(self, ids: Sequence[int] | None) -> list[WorkloadSummary]:
        """Return the summaries of these workloads, or of all."""
        stats = select(
            _m.workload_id,
            func.count().label("records"),
            func.sum(case((_m.status == int(Status.FAILED), 1), else_=0)).label("failed"),
            func.min(case((and_(_m.served == 1, is_ranked(_m)), _m.mean))).label("best"),
            func.count(_m.target_id.distinct()).label("targets"),
        ).group_by(_m.workload_id)
        if ids is not None:
            stats = stats.where(among(_m.workload_id, ids))
        counted = stats.subquery()
        statement = (
            select(
                *(_w.id, _w.digest, _w.name, _w.format, _w.tvm_version),
                *(_w.function, _w.arguments, _w.family, _w.flops),
                _w.script.is_not(None).label("has_script"),
                counted,
            )
            .select_from(schema.workload.outerjoin(counted, counted.c.workload_id == _w.id))
            .order_by(_w.id)
        )
        if ids is not None:
            statement = statement.where(among(_w.id, ids))
        return [
            WorkloadSummary(
                id=row.id,
                digest=row.digest,
                name=row.name,
                format=row.format,
                tvm_version=row.tvm_version,
                signature=self._loader.signature(row),
                rebuildable=is_rebuildable(
                    row.format, row.tvm_version, has_script=bool(row.has_script)
                ),
                records=row.records or 0,
                failed=row.failed or 0,
                best=row.best,
                targets=row.targets or 0,
            )
            for row in self._db.select(statement)
        ]

    # ------------------------------------------------------------------ equivalents

    def equivalent(self, workload_id: int, *, foreign: bool = False) -> list[int]:
        """Return the ids of the workloads that are the same computation, itself included.

        They share a structural hash, a script or a link, by a trusted source, and their structures
        agree. TVM's looser equalities (``ignore-tensor``, ``anchor-block``) do not count; a handle
        of the plugin can ask for them.

        Parameters
        ----------
        workload_id : int
            Id of the workload.
        foreign : bool
            Include aliases of foreign sources, to propose programs that are measured before use.

        Returns
        -------
        list of int
        """
        return self._names.equivalent(workload_id, foreign=foreign)

    # ------------------------------------------------------------------ neighbours

    def neighbours(
        self,
        workload: int | Signature,
        target: Target,
        limit: int = 8,
        *,
        exclude: Collection[int] = (),
        formats: Collection[str] | None = MODULES,
        compatible: Collection[int] = (),
    ) -> list[Neighbour]:
        """Return the nearest workloads of the same operator family, nearest first.

        They have served records for a target of the same kind. The workload itself and its
        equivalents are neighbours through other targets only. Runs two statements, or some more for
        a stored workload.

        Parameters
        ----------
        workload : int or Signature
            Id of a workload, or the signature of one that need not be stored.
        target : Target
            Target for which programs are needed.
        limit : int
            Maximum number of neighbours.
        exclude : collection of int
            Further equivalents, which the database does not know as such.
        formats : collection of str or None
            Only workloads of these formats; None for any. By default those of MetaSchedule.
        compatible : collection of int
            Targets that count as compatible beside those of the same architecture.

        Returns
        -------
        list of Neighbour

        Raises
        ------
        NotFoundError
            The database has no such workload.
        """
        from ..programs.workload_info.distance import distances

        equivalents = set(exclude)
        if isinstance(workload, Signature):
            signature = workload
        else:
            signature = self._loader.workload_with_signature(workload)[1]
            equivalents.update(self.equivalent(workload))
        if signature.family is None or limit < 1:
            return []
        levels_of = self._target_levels(target, compatible)
        relatives = self._served_relatives(signature.family, levels_of, formats)
        away = distances(signature, [relative for relative, _ in relatives.values()])
        neighbours = []
        for (id_, (_, by_level)), distance in zip(relatives.items(), away.tolist(), strict=True):
            levels = [level for level in by_level if id_ not in equivalents or level != "exact"]
            if levels and distance < inf:
                best = min(levels, key=lambda level: TARGET_DISTANCE[level])
                neighbours.append(Neighbour(id_, tuple(by_level[best]), distance, best))
        neighbours.sort(key=lambda n: (n.far, n.workload_id))
        return neighbours[:limit]

    def _target_levels(self, target: Target, compatible: Collection[int]) -> dict[int, Level]:
        """Return the targets of a target's kind, with the nearness of each."""
        rows = self._db.select(
            select(_t.id, _t.digest, _t.architecture).where(_t.kind == target.kind).order_by(_t.id)
        )
        architecture = identity.clean_text(target.architecture)
        levels: dict[int, Level] = {}
        for row in rows:
            if bytes(row.digest) == target.digest:
                levels[row.id] = "exact"
            else:
                is_compatible = row.architecture == architecture or row.id in compatible
                levels[row.id] = "compatible" if is_compatible else "kind"
        return levels

    def _served_relatives(
        self, family: str, levels: dict[int, Level], formats: Collection[str] | None
    ) -> dict[int, tuple[Signature, dict[Level, list[int]]]]:
        """Return a family's workloads with served records, by id, with their targets by level."""
        served = (
            select(literal_column("1"))
            .where(
                _m.workload_id == _w.id,
                _m.target_id == _t.id,
                _m.served == literal_column("1"),
            )
            .exists()
        )
        # Rows of revision 0001 have no signature; it is computed from their body.
        is_unsigned = and_(_w.function.is_(None), _w.arguments.is_(None), _w.flops.is_(None))
        statement = (
            select(_w.id, _w.function, _w.arguments, _w.family, _w.flops, _t.id.label("target_id"))
            .join_from(schema.workload, schema.target, _t.id.in_(levels))
            .where(
                or_(_w.family == family, and_(_w.family.is_(None), is_unsigned)),
                served,
            )
            .order_by(_w.id, _t.id)
        )
        if formats is not None:
            statement = statement.where(_w.format.in_(formats))
        relatives: dict[int, tuple[Signature, dict[Level, list[int]]]] = {}
        for row in self._db.select(statement):
            if row.id not in relatives:
                relatives[row.id] = (self._loader.signature(row), {})
            relatives[row.id][1].setdefault(levels[row.target_id], []).append(row.target_id)
        return relatives

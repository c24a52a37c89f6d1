"""Workloads: what is computed, which of them are the same, and which are near."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import inf
from typing import Literal

from sqlalchemy import and_, case, func, literal_column, or_, select

from .. import identity
from ..programs.workload_info import is_rebuildable
from ..records import (
    LOOSE,
    MODULES,
    TUNING,
    Alias,
    Signature,
    Source,
    Status,
    Target,
    Workload,
    WorkloadFormat,
)
from ..results import WorkloadSummary
from ..system.one_line import one_line
from . import read_statements as st
from . import schema
from .database import Database
from .loader import Loader
from .names import AliasTrust, Names
from .retry import retried
from .rows import Rows

_m, _w, _t = schema.measurement.c, schema.workload.c, schema.target.c

Level = Literal["exact", "compatible", "kind"]

#: What another target adds to the distance of a workload, in octaves. On CPUs with equal
#: instructions the five best programs of one hold an optimum of the other, on others of that kind
#: mostly a program near to it.
TARGET_DISTANCE: dict[Level, float] = {"exact": 0.0, "compatible": 0.5, "kind": 2.0}


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A workload whose programs may serve another one.

    Parameters
    ----------
    workload_id : int
        Local number.
    target_ids : tuple of int
        Targets for which it has records to serve, those of `level` alone.
    distance : float
        Of the signatures, in octaves (:mod:`tunedb.programs.workload_info.distance`).
    level : {"exact", "compatible", "kind"}
        Whether these are the target that was asked for, ones of its kind and architecture, or of
        its kind.
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

    def __init__(self, db: Database, loader: Loader, rows: Rows, names: Names) -> None:
        self._db = db
        self._loader = loader
        self._rows = rows
        self._names = names

    def __repr__(self) -> str:
        return f"<workloads of {self._db.location}>"

    @retried
    def add(
        self, workload: Workload, aliases: Iterable[Alias] = (), source: Source = TUNING
    ) -> int:
        """Add a workload and the names under which it is known; return its id.

        A workload that is known without its script, because it was imported, gets it.

        Parameters
        ----------
        workload : Workload
            What to add.
        aliases : iterable of Alias
            Its names.
        source : Source
            The source of this database that gives these names.
        """
        with self._db.transaction() as connection:
            id_ = self._rows.workload(connection, workload)
            self._rows.own(connection, workload)
            self._names.insert(connection, id_, aliases, source)
        return id_

    def get(self, id_: int) -> Workload:
        """Return a workload by its id.

        Raises
        ------
        NotFoundError
            There is none.
        """
        return self._loader.workload(id_)

    def id_of(self, digest: bytes) -> int | None:
        """Return the id of the workload with this digest, or None."""
        rows = self._db.fetch(st.workload_by_digest, digest=digest)
        return rows[0][0] if rows else None

    def find(self, text: str = "", *, family: str | None = None) -> list[int]:
        """Return the ids of workloads, in order of insertion.

        Parameters
        ----------
        text : str
            A name or part of one, an id, or the start of a digest. A workload of exactly that name
            or id is found alone. A FAIR T1 input has the name of the kernel that it describes, and
            is meant by its number or digest alone.
        family : str or None
            Only workloads of this operator family (``matmul``, ``conv2d``, …).
        """
        rows = self._db.select(
            select(
                *(_w.id, _w.name, _w.digest, _w.format),
                *(_w.function, _w.arguments, _w.family, _w.flops),
            ).order_by(_w.id)
        )
        if family is not None:
            rows = [row for row in rows if self._loader.signature(row).family == family]
        names = {row.id: "" if row.format == WorkloadFormat.T1 else row.name for row in rows}
        exact = [row.id for row in rows if text and text in (names[row.id], str(row.id))]
        if exact:
            return exact
        short = text.lower()
        return [
            row.id
            for row in rows
            if text in names[row.id] or (len(short) >= 4 and row.digest.hex().startswith(short))
        ]

    def summaries(self) -> list[WorkloadSummary]:
        """Return all workloads with their numbers of records and best times."""
        stats = (
            select(
                _m.workload_id,
                func.count().label("records"),
                func.sum(case((_m.status == int(Status.FAILED), 1), else_=0)).label("failed"),
                func.min(case((_m.served == 1, _m.mean), else_=None)).label("best"),
                func.count(_m.target_id.distinct()).label("targets"),
            )
            .group_by(_m.workload_id)
            .subquery()
        )
        w = schema.workload.c
        rows = self._db.select(
            select(
                *(w.id, w.digest, w.name, w.format, w.tvm_version),
                *(w.function, w.arguments, w.family, w.flops),
                w.script.is_not(None).label("has_script"),
                stats,
            )
            .select_from(schema.workload.outerjoin(stats, stats.c.workload_id == w.id))
            .order_by(w.id)
        )
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
            for row in rows
        ]

    # ------------------------------------------------------------------ equal ones

    def equivalent(self, workload_id: int, *, foreign: bool = False) -> list[int]:
        """Return the ids of the workloads that are the same computation, itself included.

        Those that share a structural hash, a script or a link, as :meth:`.names.Names.named`
        decides. TVM's looser equalities (``ignore-tensor``, ``anchor-block``) are for a handle
        that asks for them.

        Parameters
        ----------
        workload_id : int
            Local number of the workload.
        foreign : bool
            As for :meth:`Names.named`.
        """

        def confirm(id_: int) -> bool:
            if id_ == workload_id:
                return True
            return self._names.structure(id_).agrees(self._names.structure(workload_id))

        found = {workload_id}
        for name, standing in self._names.aliases(workload_id):
            if name.scheme.endswith(LOOSE) or (standing == AliasTrust.FOREIGN and not foreign):
                continue
            links = standing == AliasTrust.LINKED
            found.update(self._names.confirmed([name], confirm, foreign=foreign, links=links))
        return sorted(found)

    # ------------------------------------------------------------------ near ones

    def neighbours(
        self,
        of: int | Signature,
        target: Target,
        most: int = 8,
        *,
        but: Collection[int] = (),
        formats: Collection[str] | None = MODULES,
    ) -> list[Neighbour]:
        """Return the workloads of the same operator family that are nearest, nearest first.

        Only those with records to serve, for a target of the same kind. A workload itself, and
        those that are the same computation, are neighbours through other targets alone. Made of
        two statements, or some more for a workload.

        Parameters
        ----------
        of : int or Signature
            A workload of the database, or what can be told of one that need not be in it.
        target : Target
            Where programs are to run.
        most : int
            How many at most.
        but : collection of int
            Workloads that are the same computation, besides those that the database knows as such.
        formats : collection of str or None
            Only workloads of these formats; None for any. By default those whose programs are
            MetaSchedule's.

        Raises
        ------
        NotFoundError
            The database has no such workload.
        """
        from ..programs.workload_info.distance import distances

        signature = of if isinstance(of, Signature) else self._loader.workload_with_signature(of)[1]
        if signature.family is None or most < 1:
            return []
        same = {*but, *(() if isinstance(of, Signature) else self.equivalent(of))}
        found = self._served_relatives(signature.family, self._target_levels(target), formats)
        far = distances(signature, [signature_ for signature_, _ in found.values()])
        near = []
        for (id_, (_, by_level)), distance in zip(found.items(), far.tolist(), strict=True):
            levels = [level for level in by_level if id_ not in same or level != "exact"]
            if levels and distance < inf:
                best = min(levels, key=lambda level: TARGET_DISTANCE[level])
                near.append(Neighbour(id_, tuple(by_level[best]), distance, best))
        near.sort(key=lambda one: (one.far, one.workload_id))
        return near[:most]

    def _target_levels(self, target: Target) -> dict[int, Level]:
        """Return the targets of a target's kind, and how near to it each is."""
        rows = self._db.select(
            select(_t.id, _t.digest, _t.architecture).where(_t.kind == target.kind).order_by(_t.id)
        )
        architecture = identity.clean_text(target.architecture)
        found: dict[int, Level] = {}
        for row in rows:
            if bytes(row.digest) == target.digest:
                found[row.id] = "exact"
            else:
                found[row.id] = "compatible" if row.architecture == architecture else "kind"
        return found

    def _served_relatives(
        self, family: str, levels: dict[int, Level], formats: Collection[str] | None
    ) -> dict[int, tuple[Signature, dict[Level, list[int]]]]:
        """Return the workloads of a family with records to serve, and for which targets."""
        served = (
            select(literal_column("1"))
            .where(
                _m.workload_id == _w.id,
                _m.target_id == _t.id,
                _m.served == literal_column("1"),
            )
            .exists()
        )
        # Rows of revision 0001 say nothing; their signature is made now.
        unsaid = and_(_w.function.is_(None), _w.arguments.is_(None), _w.flops.is_(None))
        statement = (
            select(_w.id, _w.function, _w.arguments, _w.family, _w.flops, _t.id.label("target_id"))
            .join_from(schema.workload, schema.target, _t.id.in_(levels))
            .where(
                or_(_w.family == family, and_(_w.family.is_(None), unsaid)),
                served,
            )
            .order_by(_w.id, _t.id)
        )
        if formats is not None:
            statement = statement.where(_w.format.in_(formats))
        found: dict[int, tuple[Signature, dict[Level, list[int]]]] = {}
        for row in self._db.select(statement):
            if row.id not in found:
                found[row.id] = (self._loader.signature(row), {})
            found[row.id][1].setdefault(levels[row.target_id], []).append(row.target_id)
        return found

"""Workloads that are like another one, and what was learnt of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from sqlalchemy import and_, case, literal_column, or_, select

from ... import identity
from ...records import MODULES, Signature, Status, Target, Trace, Trust
from .. import schema
from . import statements as st
from .records import Query as Records

_m, _p, _w, _t = (
    schema.measurement.c,
    schema.program.c,
    schema.workload.c,
    schema.target.c,
)

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

    @property
    def far(self) -> float:
        """Distance of workload and target together, in octaves."""
        return self.distance + TARGET_DISTANCE[self.level]


@dataclass(frozen=True, slots=True)
class Donor:
    """A good program of a workload.

    Parameters
    ----------
    digest : bytes
        Of the program.
    trace : Trace
        Its steps.
    seconds : float
        Its best mean run time.
    is_own : bool
        Whether an own source of the database vouches for it.
    """

    digest: bytes
    trace: Trace
    seconds: float
    is_own: bool


class Neighbours(Records):
    """Reads across similar workloads."""

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
        from ...programs.workload_info.distance import distances

        signature = of if isinstance(of, Signature) else self._describe(of)[1]
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
        rows = self._select(
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
        for row in self._select(statement):
            if row.id not in found:
                found[row.id] = (self._signature(row), {})
            found[row.id][1].setdefault(levels[row.target_id], []).append(row.target_id)
        return found

    def donors(self, neighbour: Neighbour, most: int) -> list[Donor]:
        """Return the best programs of a neighbour, best first; each once.

        Those whose digests are not of what is stored are left out. Made of several statements.

        Parameters
        ----------
        neighbour : Neighbour
            One of :meth:`neighbours`.
        most : int
            How many at most.
        """
        ranked: list[tuple[float, int]] = []
        for target in neighbour.target_ids:
            rows = self._rows(st.top_k, workload=neighbour.workload_id, target=target, k=2 * most)
            ranked += [(row[0], row[1]) for row in rows]
        seconds = {id_: mean for mean, id_ in sorted(ranked)[: 2 * most]}
        rows = self._select(st.answer_query().where(_m.id.in_(seconds)))
        found: dict[bytes, Donor] = {}
        for row in sorted(rows, key=lambda row: (seconds[row.id], row.id)):
            answer = self._answer(row)
            if self.is_whole(answer) and answer.is_trusted and answer.program not in found:
                found[answer.program] = Donor(
                    answer.program, answer.trace, seconds[row.id], answer.is_own
                )
        return list(found.values())[:most]

    def courses(self, neighbours: Iterable[Neighbour]) -> list[list[float]]:
        """Return the course of the search of each neighbour: the mean time of each trial.

        In order of time of measurement, then of insertion; infinity for a trial that failed or was
        retracted. Records of sources that are not trusted are left out. Made of one statement for
        each neighbour.

        Parameters
        ----------
        neighbours : iterable of Neighbour
            Some of :meth:`neighbours`.
        """
        return [self._course(one.workload_id, one.target_ids) for one in neighbours]

    def _course(self, workload_id: int, target_ids: Sequence[int]) -> list[float]:
        trusted = select(schema.source.c.id).where(schema.source.c.trust >= int(Trust.VERIFIED))
        rows = self._select(
            select(case((_m.served == 1, _m.mean)))
            .where(
                _m.workload_id == workload_id,
                _m.target_id.in_(target_ids),
                _m.status.in_((int(Status.OK), int(Status.FAILED))),
                _m.source_id.in_(trusted),
            )
            .order_by(_m.measured_at, _m.id)
        )
        return [inf if row[0] is None else float(row[0]) for row in rows]

"""What a machine has measured already: programs that need not be measured again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import case, func, literal_column, select

from ... import identity
from ...records import Failure, FailureKind, Phase, Session, Status, Trust
from ...results import Record
from ...system.host import fingerprint_of, session_class
from .. import schema
from ..attribution import last_word
from ..retractions import is_retracted
from . import statements as st
from .records import Query as Records

_m, _p, _f = schema.measurement.c, schema.program.c, schema.failure.c
_s, _d = schema.source.c, schema.session_factor.c

#: Sessions of one class whose factors differ by more are not comparable: repeats inside of a
#: session agree to a few percent, a machine that throttles is off by tens.
COMPARABLE = 0.1


@dataclass(frozen=True, slots=True)
class MeasuredProgram:
    """One measurement, as far as it says whether its program need be measured again.

    Parameters
    ----------
    id : int
        Local number of the measurement.
    program_id : int
        Local number of its program.
    digest : bytes
        Identity of the program.
    run_secs : tuple of float or None
        All repeats in seconds; None for one that failed.
    mean : float
        Their mean in seconds, by which records are ranked; infinite for one that failed.
    failure : Failure or None
        What was learnt last about why it failed.
    """

    id: int
    program_id: int
    digest: bytes
    run_secs: tuple[float, ...] | None
    mean: float
    failure: Failure | None = None


class KnownPrograms(Records):
    """Reads what need not be measured again."""

    def comparable_sessions(self, session: Session, target_id: int) -> list[int]:
        """Return the ids of the sessions whose times stand beside those of a session.

        Those of its class (:func:`tunedb.system.host.session_class`). Where factors between
        sessions are known (:mod:`tunedb.models.sessions`), those whose factor is within
        :data:`COMPARABLE` of the newest one's, on the same machine; sessions of strangers are no
        measure for others. Made of two statements.

        Parameters
        ----------
        session : Session
            The one that runs; it need not be stored.
        target_id : int
            The target whose factors count.
        """
        wanted = session_class(session)
        ids = [id_ for id_, other in self._all_sessions() if session_class(other) == wanted]
        rows = self._select(
            select(_d.subject_id, _d.machine, _d.factor).where(
                _d.target_id == target_id, _d.subject == "session", _d.machine >= 0
            )
        )
        factors = {row.subject_id: (row.machine, math.log(row.factor)) for row in rows}
        told = [factors[id_] for id_ in ids if id_ in factors]
        if not told:
            return ids
        machine, factor = told[-1]
        bound = math.log1p(COMPARABLE)
        return [
            id_
            for id_ in ids
            for own, log in [factors.get(id_, (machine, factor))]
            if own == machine and abs(log - factor) <= bound
        ]

    def _all_sessions(self) -> list[tuple[int, Session]]:
        """Return all sessions with their ids, in the order of their start."""
        s = schema.session.c
        rows = self._select(select(schema.session).order_by(s.started_at, s.id))
        made = {row.id: row for row in rows}

        def make(id_: int) -> Session:
            return Session(made[id_].key, made[id_].started_at, made[id_].fingerprint.encode())

        return [(id_, self._sessions.fetch(id_, make)) for id_ in made]

    def measured_programs(
        self,
        workload_ids: Sequence[int],
        target_id: int,
        session_ids: Sequence[int],
        after: int = 0,
    ) -> list[MeasuredProgram]:
        """Return what sessions measured of workloads, in order of insertion.

        Records that are served, and failures whose cause is known; those that were retracted and
        those of sources that are not trusted are left out. Made of three statements.

        Parameters
        ----------
        workload_ids : sequence of int
            Workloads that count as one.
        target_id : int
            The target.
        session_ids : sequence of int
            The sessions.
        after : int
            Only measurements with a greater id.
        """
        # What is added between the statements is for the next call, which begins after the last.
        newest = self._select(select(func.max(_m.id).label("id")))[0].id or 0
        chosen = (
            _m.workload_id.in_(workload_ids),
            _m.target_id == target_id,
            _m.session_id.in_(session_ids),
        )
        joined = schema.measurement.join(schema.program, _p.id == _m.program_id)
        # By the index of top-k.
        ran = self._select(
            select(_m.id, _m.program_id, _p.digest, _m.run_secs, _m.mean)
            .select_from(joined)
            .where(*chosen, _m.served == literal_column("1"), _m.id.between(after + 1, newest))
        )
        # From the failures, which are few, to their measurements.
        failed = self._select(
            select(_m.id, _m.program_id, _p.digest, _f.kind, _f.phase, _f.message, _f.seconds)
            .select_from(
                schema.failure.join(joined, _m.id == _f.measurement_id).join(
                    schema.source, _s.id == _m.source_id
                )
            )
            .where(
                *chosen,
                _f.measurement_id.between(after + 1, newest),
                _f.id == last_word(schema.failure, _m),
                _m.status == int(Status.FAILED),
                _s.trust >= int(Trust.VERIFIED),
                ~is_retracted(_m),
            )
        )
        found = {row.id: _ran(row) for row in ran} | {row.id: _failed(row) for row in failed}
        return [found[id_] for id_ in sorted(found)]

    def run_sessions(self, key: str) -> list[tuple[int, Session]]:
        """Return the sessions of a tuning run with their ids, in the order of their start.

        Those that only records of others name are none of this database's runs. Made of two
        statements.
        """
        named = [
            (id_, session)
            for id_, session in self._all_sessions()
            if _run_key(fingerprint_of(session)) == key
        ]
        is_own = _m.source_id.in_(self._own_sources())
        rows = self._select(
            select(_m.session_id, func.max(case((is_own, 1), else_=0)).label("own"))
            .where(_m.session_id.in_([id_ for id_, _ in named]))
            .group_by(_m.session_id)
        )
        others = {row.session_id for row in rows if not row.own}
        return [(id_, session) for id_, session in named if id_ not in others]

    def _own_sources(self) -> Any:
        """Return the query of the numbers of this database's own sources."""
        return select(_s.id).where(_s.trust >= int(Trust.OWN), _s.store == self.store_key)

    def session_trials(self, session_id: int) -> tuple[int, int]:
        """Return how many measurements a session has, and the highest number of its trials.

        Those of this database's own sources count: others may name any session. Trials are
        numbered from 0, also those that were not measured again; -1 where there is none.
        """
        rows = self._select(
            select(_m.session_id, func.count().label("n"), func.max(_m.occurrence).label("last"))
            .where(_m.session_id == session_id, _m.source_id.in_(self._own_sources()))
            .group_by(_m.session_id)
        )
        return (rows[0].n, rows[0].last) if rows else (0, -1)

    def session_records(self, session: Session) -> list[Record]:
        """Return the records of a session that are this database's own, in order of insertion."""
        s = schema.session.c
        own = select(s.id).where(s.digest == session.digest).scalar_subquery()
        query = (
            st.record_query()
            .where(_m.session_id == own, _m.source_id.in_(self._own_sources()))
            .order_by(_m.id)
        )
        return [self._record(row) for row in self._select(query)]


def _run_key(fingerprint: dict[str, Any]) -> Any:
    """Return the key of the tuning run that a fingerprint names, or None."""
    run = fingerprint.get("run")
    if isinstance(run, dict) and type(run.get("trials")) is int:
        return run.get("key")
    return None


def _ran(row: Any) -> MeasuredProgram:
    times = identity.unpack_floats(row.run_secs)
    return MeasuredProgram(row.id, row.program_id, bytes(row.digest), times, row.mean)


def _failed(row: Any) -> MeasuredProgram:
    failure = Failure(FailureKind(row.kind), Phase(row.phase), row.message, row.seconds)
    return MeasuredProgram(row.id, row.program_id, bytes(row.digest), None, math.inf, failure)

"""Runs: what sessions measured, what several of them measured alike, and their factors."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import and_, case, func, literal_column, select

from ..json_checks import parse_json
from ..records import Session, Source, Status, Trust
from ..results import Record, SessionFactor
from ..system.host import fingerprint_of, session_class
from ..system.one_line import one_line
from . import read_statements as st
from . import schema, statements
from .database import Database
from .loader import Loader
from .retractions import is_retracted
from .rows import now

_m, _p, _s = schema.measurement.c, schema.program.c, schema.source.c
_f = schema.session_factor.c

#: The session, or for records without one their source, as one number: ids begin at 1.
_SUBJECT = func.coalesce(_m.session_id, -_m.source_id)

#: Sessions of one class whose factors differ by more are not comparable: repeats inside of a
#: session agree to a few percent, a machine that throttles is off by tens.
COMPARABLE = 0.1


@dataclass(frozen=True, slots=True)
class MeasuredSession:
    """What a session measured for a target.

    Parameters
    ----------
    target_id : int
        Local number of the target.
    subject : str
        ``session``, or ``source`` for the records of a source that have no session.
    subject_id : int
        Local number of that session or source.
    origin : Session or Source
        What stands behind that number.
    started_at : int or None
        Microseconds since 1970, UTC: of the session's start, or of the first record of a source;
        None where no record says it.
    first : int
        Id of its first record.
    records : int
        Its records for this target, failed ones too.
    failed : int
        Those of them that failed.
    is_trusted : bool
        Whether a source that is trusted here has measured it.
    """

    target_id: int
    subject: Literal["session", "source"]
    subject_id: int
    origin: Session | Source
    started_at: int | None
    first: int
    records: int
    failed: int
    is_trusted: bool

    __repr__ = one_line

    @property
    def hardware(self) -> tuple[str, str]:
        """The processor and the GPU that its fingerprint names; empty where it names none."""
        if not isinstance(self.origin, Session):
            return "", ""
        named = parse_json(self.origin.fingerprint)
        named = named if isinstance(named, dict) else {}
        return str(named.get("cpu") or ""), str(named.get("gpu") or "")


@dataclass(frozen=True, slots=True)
class CorrectedRecord:
    """A record by its time without its session's factor.

    Parameters
    ----------
    id : int
        Local number of the record.
    machine : int
        Of its session (:class:`tunedb.results.SessionFactor`).
    factor : float
        Of its session.
    seconds : float
        Mean of its run times / factor.
    """

    id: int
    machine: int
    factor: float
    seconds: float


class Runs:
    """``store.runs``, for rooms that compare sessions or continue a tuning run.

    A session is what its records name, and anybody can name one. So records of sources that are
    not trusted count as their source's where a trusted source has measured in the session that
    they name.
    """

    def __init__(self, db: Database, loader: Loader) -> None:
        self._db = db
        self._loader = loader

    def subject(self) -> Any:
        """Return the session of a record, or its source, as one number (:data:`_SUBJECT`)."""
        # Most databases have trusted sources alone, and then no record need be asked.
        if not self._db.fetch(st.untrusted_sources):
            return _SUBJECT
        other, s = schema.measurement.alias().c, schema.source.c
        trusted = select(s.id).where(s.trust >= int(Trust.VERIFIED))
        spoken_for = select(other.session_id).where(
            other.session_id.is_not(None), other.source_id.in_(trusted)
        )
        usurped = and_(_m.source_id.not_in(trusted), _m.session_id.in_(spoken_for))
        return case((usurped, -_m.source_id), else_=_SUBJECT)

    def sessions(self, target_ids: Sequence[int] | None = None) -> dict[int, list[MeasuredSession]]:
        """Return the sessions of each target, in the order of their start, then of insertion.

        Parameters
        ----------
        target_ids : sequence of int or None
            Only these targets; None for all that have records.
        """
        failed = case((_m.status == int(Status.FAILED), 1), else_=0)
        subject = self.subject().label("subject")
        statement = (
            select(
                _m.target_id,
                subject,
                # 0 stands for an unknown time.
                func.min(case((_m.measured_at > 0, _m.measured_at))).label("measured_at"),
                func.min(_m.id).label("first"),
                func.count().label("records"),
                func.sum(failed).label("failed"),
                func.max(schema.source.c.trust).label("trust"),
            )
            .join_from(schema.measurement, schema.source, schema.source.c.id == _m.source_id)
            .group_by(_m.target_id, subject)
        )
        if target_ids is not None:
            statement = statement.where(_m.target_id.in_(target_ids))
        found: dict[int, list[MeasuredSession]] = {}
        for row in self._db.select(statement):
            found.setdefault(row.target_id, []).append(self._measured_session(row))
        for sessions in found.values():
            sessions.sort(key=lambda one: (one.started_at is None, one.started_at or 0, one.first))
        return dict(sorted(found.items()))

    def _measured_session(self, row: Any) -> MeasuredSession:
        origin: Session | Source
        if row.subject > 0:
            origin = self._loader.session(row.subject)
            started_at = origin.started_at
        else:
            origin = self._loader.source(-row.subject)
            started_at = row.measured_at
        return MeasuredSession(
            target_id=row.target_id,
            subject="session" if row.subject > 0 else "source",
            subject_id=abs(row.subject),
            origin=origin,
            started_at=started_at,
            first=row.first,
            records=row.records,
            failed=int(row.failed),
            is_trusted=row.trust >= Trust.VERIFIED,
        )

    def shared_times(self, target_id: int) -> list[tuple[int, int, bytes]]:
        """Return the run times of programs that several sessions measured for a target.

        Returns
        -------
        list of (int, int, bytes)
            Local number of a program, its session (positive) or source (negative), and all run
            times of one record (:func:`tunedb.identity.unpack_floats`); ordered by program. Failed
            and retracted records are left out.
        """
        counts = (
            _m.target_id == target_id,
            _m.status == int(Status.OK),
            ~is_retracted(_m, many=True),
        )
        subject = self.subject()
        shared = (
            select(_m.program_id)
            .where(*counts)
            .group_by(_m.program_id)
            .having(func.count(subject.distinct()) > 1)
        )
        rows = self._db.select(
            select(_m.program_id, subject, _m.run_secs)
            .where(*counts, _m.program_id.in_(shared))
            .order_by(_m.program_id, _m.id)
        )
        return [(row[0], row[1], bytes(row[2])) for row in rows]

    def top_k_corrected(
        self,
        workload_ids: Sequence[int],
        target_id: int,
        k: int,
        structures: Container[tuple[int, int | None]] | None = None,
    ) -> list[CorrectedRecord]:
        """Return the best served records of each machine by corrected time, machine by machine.

        Parameters
        ----------
        workload_ids : sequence of int
            Workloads that count as one.
        target_id : int
            The target.
        k : int
            How many at most of each machine.
        structures : container or None
            Only programs with one of these sketches and tails.
        """
        factor = func.coalesce(_f.factor, 1.0)
        machine = func.coalesce(_f.machine, 0)
        joined = schema.measurement.join(schema.program, _p.id == _m.program_id).outerjoin(
            schema.session_factor,
            (_f.target_id == _m.target_id)
            & (_f.subject == case((_m.session_id.is_(None), "source"), else_="session"))
            & (_f.subject_id == func.coalesce(_m.session_id, _m.source_id)),
        )
        seconds = _m.mean / factor
        rows = self._db.select(
            select(_m.id, machine, factor, seconds, _p.sketch_id, _p.tail_id)
            .select_from(joined)
            .where(
                _m.workload_id.in_(workload_ids),
                _m.target_id == target_id,
                _m.served == literal_column("1"),
            )
            .order_by(machine, seconds, _m.id)
        )
        taken: dict[int, int] = {}
        best = []
        for id_, machine_, factor_, seconds_, sketch, tail in rows:
            if structures is not None and (sketch, tail) not in structures:
                continue
            taken[machine_] = taken.get(machine_, 0) + 1
            if taken[machine_] <= k:
                best.append(CorrectedRecord(id_, machine_, factor_, seconds_))
        return best

    # ------------------------------------------------------------------ factors

    def factors(self, target_id: int) -> list[SessionFactor]:
        """Return the factors of a target's sessions, as they were estimated last."""
        rows = self._db.select(
            select(schema.session_factor)
            .where(_f.target_id == target_id)
            .order_by(_f.subject, _f.subject_id)
        )
        return [
            SessionFactor(
                row.subject, row.subject_id, row.machine, row.factor, row.spread, row.programs
            )
            for row in rows
        ]

    def set_factors(self, target_id: int, factors: Sequence[SessionFactor]) -> None:
        """Replace the factors of a target's sessions."""
        moment = now()
        rows = [
            {
                "target_id": target_id,
                "subject": factor.subject,
                "subject_id": factor.subject_id,
                "machine": factor.machine,
                "factor": factor.factor,
                "spread": factor.spread,
                "programs": factor.programs,
                "estimated_at": moment,
            }
            for factor in factors
        ]
        with self._db.transaction() as connection:
            statements.forget_factors(connection, target=target_id)
            statements.insert["session_factor"].many(connection, rows)

    def comparable(self, session: Session, target_id: int) -> list[int]:
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
        ids = [id_ for id_, other in self._loader.all_sessions() if session_class(other) == wanted]
        rows = self._db.select(
            select(_f.subject_id, _f.machine, _f.factor).where(
                _f.target_id == target_id, _f.subject == "session", _f.machine >= 0
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

    # ------------------------------------------------------------------ tuning runs

    def of_key(self, key: str) -> list[tuple[int, Session]]:
        """Return the sessions of a tuning run with their ids, in the order of their start.

        Those that only records of others name are none of this database's runs. Made of two
        statements.
        """
        named = [
            (id_, session)
            for id_, session in self._loader.all_sessions()
            if _run_key(fingerprint_of(session)) == key
        ]
        is_own = _m.source_id.in_(self._own_sources())
        rows = self._db.select(
            select(_m.session_id, func.max(case((is_own, 1), else_=0)).label("own"))
            .where(_m.session_id.in_([id_ for id_, _ in named]))
            .group_by(_m.session_id)
        )
        others = {row.session_id for row in rows if not row.own}
        return [(id_, session) for id_, session in named if id_ not in others]

    def _own_sources(self) -> Any:
        """Return the query of the numbers of this database's own sources."""
        return select(_s.id).where(_s.trust >= int(Trust.OWN), _s.store == self._db.key)

    def trials(self, session_id: int) -> tuple[int, int]:
        """Return how many measurements a session has, and the highest number of its trials.

        Those of this database's own sources count: others may name any session. Trials are
        numbered from 0, also those that were not measured again; -1 where there is none.
        """
        rows = self._db.select(
            select(_m.session_id, func.count().label("n"), func.max(_m.occurrence).label("last"))
            .where(_m.session_id == session_id, _m.source_id.in_(self._own_sources()))
            .group_by(_m.session_id)
        )
        return (rows[0].n, rows[0].last) if rows else (0, -1)

    def records(self, session: Session) -> list[Record]:
        """Return the records of a session that are this database's own, in order of insertion."""
        s = schema.session.c
        own = select(s.id).where(s.digest == session.digest).scalar_subquery()
        query = (
            st.record_query()
            .where(_m.session_id == own, _m.source_id.in_(self._own_sources()))
            .order_by(_m.id)
        )
        return [self._loader.record(row) for row in self._db.select(query)]


def _run_key(fingerprint: dict[str, Any]) -> Any:
    """Return the key of the tuning run that a fingerprint names, or None."""
    run = fingerprint.get("run")
    if isinstance(run, dict) and type(run.get("trials")) is int:
        return run.get("key")
    return None

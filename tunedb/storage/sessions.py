"""Sessions: runs on one machine, what they measured, their overlap, and their factors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import and_, case, func, literal_column, or_, select

from ..records import Session, Source, Status, Trust
from ..results import Record, SessionFactor
from ..system.host import fingerprint_of, session_class
from ..system.one_line import one_line
from . import read_statements as st
from . import schema, statements
from .database import Database
from .loader import Loader
from .lookup import Lookup
from .network_runs import NetworkRun
from .retractions import is_retracted
from .retry import retried
from .rows import Rows, now
from .superseded import is_ranked

_m, _p, _s = schema.measurement.c, schema.program.c, schema.source.c
_f = schema.session_factor.c

#: Session of a record, or for records without one the negated id of their source.
_SUBJECT = func.coalesce(_m.session_id, -_m.source_id)

#: Greatest difference in factors of comparable sessions of one class: repeats within a session
#: agree to a few percent, a throttled machine is off by tens.
COMPARABLE = 0.1


@dataclass(frozen=True, slots=True)
class MeasuredSession:
    """Measurements of a session for one target.

    Parameters
    ----------
    target_id : int
        Id of the target.
    subject : str
        ``session``, or ``source`` for the records of a source without session.
    subject_id : int
        Id of that session or source.
    origin : Session or Source
        That session or source.
    started_at : int or None
        Microseconds since 1970, UTC: start of the session, or time of the source's first record;
        None if unknown.
    first : int
        Id of its first record.
    records : int
        Number of its records for this target, including failed ones.
    failed : int
        Number of its failed records.
    is_trusted : bool
        True if a trusted source measured in it.
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
        """Processor and GPU in its fingerprint; empty if unknown."""
        if not isinstance(self.origin, Session):
            return "", ""
        fingerprint = fingerprint_of(self.origin)
        return str(fingerprint.get("cpu") or ""), str(fingerprint.get("gpu") or "")


@dataclass(frozen=True, slots=True)
class CorrectedRecord:
    """A record with its time divided by the factor of its session.

    Parameters
    ----------
    id : int
        Id of the record.
    machine : int
        Machine of its session (:class:`tunedb.results.SessionFactor`).
    factor : float
        Factor of its session.
    seconds : float
        Mean run time divided by the factor.
    """

    id: int
    machine: int
    factor: float
    seconds: float


class Sessions:
    """``store.sessions``: adds and finds sessions."""

    def __init__(self, db: Database, loader: Loader, rows: Rows, lookup: Lookup) -> None:
        self._db = db
        self._loader = loader
        self._rows = rows
        self._lookup = lookup

    def __repr__(self) -> str:
        return f"<sessions of {self._db.location}>"

    @retried
    def add(self, session: Session) -> None:
        """Add a session that has no measurements yet.

        Parameters
        ----------
        session : Session
            The session.
        """
        with self._db.transaction() as connection:
            self._rows.session(connection, session)

    def get(self, id_: int) -> Session:
        """Return a session by its id.

        Parameters
        ----------
        id_ : int
            Id of the session.

        Returns
        -------
        Session

        Raises
        ------
        NotFoundError
            The database has no such session.
        """
        return self._loader.session(id_)

    def find(self, text: str) -> list[int]:
        """Return the ids of sessions with this key, id or digest.

        Parameters
        ----------
        text : str
            A key, an id, or the first four or more hexadecimal digits of a digest.

        Returns
        -------
        list of int

        Examples
        --------
        >>> store.sessions.find("session-0")
        [1]
        """
        return self._lookup.sessions(text)


class Runs:
    """``store.runs``, for packages that compare sessions or continue a tuning run.

    Records name their session, and strangers can name any session. Records of untrusted sources
    therefore count as their source's if a trusted source measured in the session that they name.
    """

    def __init__(self, db: Database, loader: Loader) -> None:
        self._db = db
        self._loader = loader

    def subject(self) -> Any:
        """Return the session of a record, or its source, as one number (:data:`_SUBJECT`)."""
        # Most databases have only trusted sources; these need no check per record.
        if not self._db.fetch(st.untrusted_sources):
            return _SUBJECT
        other, s = schema.measurement.alias().c, schema.source.c
        trusted = select(s.id).where(s.trust >= int(Trust.VERIFIED))
        trusted_sessions = select(other.session_id).where(
            other.session_id.is_not(None), other.source_id.in_(trusted)
        )
        is_claimed = and_(_m.source_id.not_in(trusted), _m.session_id.in_(trusted_sessions))
        return case((is_claimed, -_m.source_id), else_=_SUBJECT)

    def sessions(self, target_ids: Sequence[int] | None = None) -> dict[int, list[MeasuredSession]]:
        """Return the sessions of each target, in the order of their start, then of insertion.

        Parameters
        ----------
        target_ids : sequence of int or None
            Only these targets.
        """
        failed = case((_m.status == int(Status.FAILED), 1), else_=0)
        subject = self.subject().label("subject")
        statement = (
            select(
                _m.target_id,
                subject,
                # 0 is an unknown time.
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
        by_target: dict[int, list[MeasuredSession]] = {}
        for row in self._db.select(statement):
            by_target.setdefault(row.target_id, []).append(self._measured_session(row))
        for sessions in by_target.values():
            sessions.sort(key=lambda s: (s.started_at is None, s.started_at or 0, s.first))
        return dict(sorted(by_target.items()))

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
            Program id, session id (or negated source id), and all run times of one record
            (:func:`tunedb.identity.unpack_floats`); ordered by program. Failed and retracted
            records are omitted.
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
        """Return the best served records by corrected time, machine by machine.

        Parameters
        ----------
        workload_ids : sequence of int
            Workloads to search.
        target_id : int
            Id of the target.
        k : int
            Maximum number of records per machine.
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
                is_ranked(_m),
            )
            .order_by(machine, seconds, _m.id)
        )
        per_machine: Counter[int] = Counter()
        best = []
        for id_, machine_, factor_, seconds_, sketch, tail in rows:
            if structures is not None and (sketch, tail) not in structures:
                continue
            per_machine[machine_] += 1
            if per_machine[machine_] <= k:
                best.append(CorrectedRecord(id_, machine_, factor_, seconds_))
        return best

    def newest_of_others(self, session: Session) -> int:
        """Return the id of the newest measurement that is not of a session; 0 for none."""
        s = schema.session.c
        own = select(s.id).where(s.digest == session.digest).scalar_subquery()
        rows = self._db.select(
            select(_m.id)
            .where(or_(_m.session_id.is_(None), own.is_(None), _m.session_id != own))
            .order_by(_m.id.desc())
            .limit(1)
        )
        return rows[0].id if rows else 0

    # ------------------------------------------------------------------ factors

    def factors(self, target_id: int) -> list[SessionFactor]:
        """Return the last estimated factors of a target's sessions."""
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
            statements.delete_factors(connection, target=target_id)
            statements.insert["session_factor"].many(connection, rows)

    def comparable(self, session: Session, target_id: int) -> list[int]:
        """Return the ids of the sessions whose times are comparable to those of a session.

        They are of the same class (:func:`tunedb.system.host.session_class`). If factors are known
        (:mod:`tunedb.models.sessions`), they are also of the same machine as the newest one, and
        their factors differ by at most :data:`COMPARABLE`; sessions of strangers are left out then.
        Runs two statements.

        Parameters
        ----------
        session : Session
            The running session; it need not be stored.
        target_id : int
            Target whose factors are used.
        """
        class_ = session_class(session)
        ids = [id_ for id_, other in self._loader.all_sessions() if session_class(other) == class_]
        rows = self._db.select(
            select(_f.subject_id, _f.machine, _f.factor).where(
                _f.target_id == target_id, _f.subject == "session", _f.machine >= 0
            )
        )
        factors = {row.subject_id: (row.machine, math.log(row.factor)) for row in rows}
        estimated = [factors[id_] for id_ in ids if id_ in factors]
        if not estimated:
            return ids
        newest = machine, log_factor = estimated[-1]
        bound = math.log1p(COMPARABLE)
        return [
            id_
            for id_ in ids
            for own_machine, log in [factors.get(id_, newest)]
            if own_machine == machine and abs(log - log_factor) <= bound
        ]

    # ------------------------------------------------------------------ tuning runs

    def sessions_of_run(self, key: str) -> list[tuple[int, Session]]:
        """Return the sessions of a tuning run with their ids, in the order of their start.

        Sessions that only records of others name are omitted. Runs two statements.
        """
        return self._own(
            [
                (id_, session)
                for id_, session in self._loader.all_sessions()
                if _run_key(fingerprint_of(session)) == key
            ]
        )

    def networks(self) -> list[tuple[Session, NetworkRun]]:
        """Return the tuning runs of networks that ended here, oldest first, with their sessions."""
        found = [
            (id_, session, network)
            for id_, session in self._loader.all_sessions()
            if (network := NetworkRun.from_session(session)) is not None
        ]
        own = {id_ for id_, _ in self._own([(id_, session) for id_, session, _ in found])}
        return [(session, network) for id_, session, network in found if id_ in own]

    def _own(self, sessions: list[tuple[int, Session]]) -> list[tuple[int, Session]]:
        """Return the sessions without those that only records of others name."""
        is_own = _m.source_id.in_(self._own_sources())
        rows = self._db.select(
            select(_m.session_id, func.max(case((is_own, 1), else_=0)).label("own"))
            .where(_m.session_id.in_([id_ for id_, _ in sessions]))
            .group_by(_m.session_id)
        )
        others = {row.session_id for row in rows if not row.own}
        return [(id_, session) for id_, session in sessions if id_ not in others]

    def _own_sources(self) -> Any:
        """Return the query of the ids of this database's own sources."""
        return select(_s.id).where(_s.trust >= int(Trust.OWN), _s.store == self._db.key)

    def trials(self, session_id: int) -> tuple[int, int]:
        """Return the number of measurements of a session, and the greatest number of its trials.

        Only records of own sources count: others may name any session. Trials are numbered from 0,
        including those that were not measured again; -1 if there is none.
        """
        rows = self._db.select(
            select(_m.session_id, func.count().label("n"), func.max(_m.occurrence).label("last"))
            .where(_m.session_id == session_id, _m.source_id.in_(self._own_sources()))
            .group_by(_m.session_id)
        )
        return (rows[0].n, rows[0].last) if rows else (0, -1)

    def trials_by_workload(self, session_ids: Sequence[int]) -> Counter[int]:
        """Return the number of measurements of each workload in sessions, by its local number.

        Only records of own sources count.
        """
        rows = self._db.select(
            select(_m.workload_id, func.count().label("n"))
            .where(_m.session_id.in_(session_ids), _m.source_id.in_(self._own_sources()))
            .group_by(_m.workload_id)
        )
        return Counter({row.workload_id: row.n for row in rows})

    def records(self, session: Session) -> list[Record]:
        """Return the own records of a session, in order of insertion."""
        s = schema.session.c
        own = select(s.id).where(s.digest == session.digest).scalar_subquery()
        query = (
            st.record_query()
            .where(_m.session_id == own, _m.source_id.in_(self._own_sources()))
            .order_by(_m.id)
        )
        return [self._loader.record(row) for row in self._db.select(query)]


def _run_key(fingerprint: dict[str, Any]) -> Any:
    """Return the key of the tuning run in a fingerprint, or None."""
    run = fingerprint.get("run")
    if isinstance(run, dict) and type(run.get("trials")) is int:
        return run.get("key")
    return None

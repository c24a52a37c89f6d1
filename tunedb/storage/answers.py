"""Answers: served records, as tuning loops and TVM read them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from math import inf
from typing import Any

from sqlalchemy import and_, case, func, literal_column, not_, or_, select

from .. import identity
from ..errors import FormatError, LimitError, NotFoundError
from ..records import MODULES, Alias, Status, Trace, Trust
from ..results import Answer
from ..run_times import NO_TIME, mean_of
from ..system.one_line import one_line
from . import columns, schema
from . import read_statements as st
from .database import Database
from .loader import Loader
from .names import Names
from .programs import among
from .retractions import is_retracted
from .superseded import is_of_final, is_ranked
from .workloads import Neighbour

_m, _p, _w = schema.measurement.c, schema.program.c, schema.workload.c

#: Positions of some fields among those of a measurement's digest.
_STATUS, _RUN_SECS, _ARGS_INFO = (
    columns.IDENTITY_AT[n] for n in ("status", "run_secs", "args_info")
)

#: Rows per statement.
_PAGE = 500

#: Records per statement of checks.
_CHECKED = 2_000


@dataclass(frozen=True, slots=True)
class Donor:
    """A good program of a similar workload.

    Parameters
    ----------
    digest : bytes
        Digest of the program.
    trace : Trace
        Its trace.
    seconds : float
        Its best mean run time.
    is_own : bool
        True if an own source measured it.
    """

    digest: bytes
    trace: Trace
    seconds: float
    is_own: bool

    __repr__ = one_line


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """A record whose trace must not reach TVM.

    Parameters
    ----------
    record_id : int
        Id of the record.
    reason : str
        First content that is not allowed.
    """

    record_id: int
    reason: str


class Answers:
    """``store.answers``, for tuning loops: served records with few statements."""

    def __init__(self, db: Database, loader: Loader, names: Names) -> None:
        self._db = db
        self._loader = loader
        self._names = names

    def prepare(self) -> None:
        """Run each statement of a tuning loop once, so that its first query is fast.

        SQLite parses and plans a statement when a connection first runs it: 40 to 100 µs each.
        """
        self._names.workloads([Alias("", "")])
        self._db.fetch(st.top_k, workload=0, target=0, k=0)
        self._db.fetch(st.answer, id=0)

    def best_ids(self, workload_ids: Sequence[int], target_ids: Sequence[int], k: int) -> list[int]:
        """Return the ids of the best served records, best first.

        Ascending mean run time, ties in order of insertion; failed, retracted and untrusted records
        are not served, and superseded ones (:mod:`.superseded`) do not rank. One index lookup per
        workload and target.
        """
        if len(workload_ids) == len(target_ids) == 1:
            rows = self._db.tuples(st.top_k, workload=workload_ids[0], target=target_ids[0], k=k)
            return [row[1] for row in rows]
        ranked = [
            [tuple(row) for row in self._db.tuples(st.top_k, workload=w, target=t, k=k)]
            for w in workload_ids
            for t in target_ids
        ]
        return [id_ for _, id_ in islice(merge(*ranked), k)]

    def best_ids_with(
        self,
        workload_ids: Sequence[int],
        target_ids: Sequence[int],
        k: int,
        structures: Container[tuple[int, int | None]],
    ) -> list[int]:
        """Return the ids of the best served records with one of these sketches and tails."""
        p = schema.program.c
        rows = self._db.select(
            select(_m.id, p.sketch_id, p.tail_id)
            .join_from(schema.measurement, schema.program, p.id == _m.program_id)
            .where(
                _m.workload_id.in_(workload_ids),
                _m.target_id.in_(target_ids),
                _m.served == 1,
                is_ranked(_m),
            )
            .order_by(_m.mean, _m.id)
        )
        return [row.id for row in rows if (row.sketch_id, row.tail_id) in structures][:k]

    def get(self, id_: int) -> Answer:
        """Return a record for a tuning loop, by one statement (:meth:`Records.get` runs six).

        Raises
        ------
        NotFoundError
            The database has no such record.
        """
        rows = self._db.tuples(st.answer, id=id_)
        if not rows:
            raise NotFoundError(f"{self._db.location}: no record {id_}")
        return self.from_row(rows[0])

    def from_row(self, row: Sequence[Any]) -> Answer:
        """Return the answer of a row of :func:`st.answer_query`."""
        id_, workload_id, target_id, sketch_id, sketch_body, tail_id, tail_body, decisions = row[:8]
        program, digest, mean, trust, store_key = row[8:13]
        bodies = self._loader.bodies
        sketch = bodies["sketch"].fetch(sketch_id, lambda _: self._db.unpack(sketch_body))
        tail = None
        if tail_id is not None:
            tail = bodies["tail"].fetch(tail_id, lambda _: self._db.unpack(tail_body))
        trace = Trace(sketch, tail, decisions)
        covered = columns.covered(row[13:])
        run_secs, is_whole = _checked_times(program, covered, digest, mean)
        if covered[_STATUS] == Status.CUT_SHORT:  # to TVM it has no time
            run_secs = (NO_TIME,)
        return Answer(
            id=id_,
            workload_id=workload_id,
            target_id=target_id,
            trace=trace,
            run_secs=run_secs,
            args_info=covered[_ARGS_INFO],
            program=program,
            is_whole=is_whole,
            is_trusted=trust >= Trust.VERIFIED,
            is_own=trust >= Trust.OWN and store_key == self._db.key,
        )

    def is_whole(self, answer: Answer, workload: bytes | None = None) -> bool:
        """Return true if an answer's digests and mean match the stored content.

        Parameters
        ----------
        answer : Answer
            Answer of this database.
        workload : bytes or None
            Digest of the workload to which the program is applied; None for that of the stored one.
        """
        if not answer.is_whole:
            return False
        trace = answer.trace
        program = identity.program_digest(
            self._loader.workload_digests(answer.workload_id)[0] if workload is None else workload,
            self._loader.target(answer.target_id).digest,
            identity.shared_digest("sketch", trace.sketch),
            None if trace.tail is None else identity.shared_digest("tail", trace.tail),
            trace.decisions,
        )
        return program == answer.program

    def iterate(self, target_ids: Sequence[int] | None = None) -> Iterator[Answer]:
        """Yield all records that TVM may see, in order of insertion, including failed ones.

        These are records of modules, from trusted sources and not retracted.
        """
        modules = select(schema.workload.c.id).where(schema.workload.c.format.in_(MODULES))
        trusted = select(schema.source.c.id).where(schema.source.c.trust >= int(Trust.VERIFIED))
        statement = (
            select(_m.id)
            .where(
                ~is_retracted(_m, many=True), _m.source_id.in_(trusted), _m.workload_id.in_(modules)
            )
            .order_by(_m.id)
            .limit(_PAGE)
        )
        if target_ids is not None:
            statement = statement.where(_m.target_id.in_(target_ids))
        after, ids = 0, [0]
        while ids:
            ids = [row.id for row in self._db.select(statement.where(_m.id > after))]
            yield from map(self.get, ids)
            after = ids[-1] if ids else 0

    def workload_digests(self, workload_id: int) -> tuple[bytes, bytes]:
        """Return the digest computed from a workload's body, and the digest stored in its row."""
        return self._loader.workload_digests(workload_id)

    def targets(self, workload_ids: Iterable[int]) -> list[int]:
        """Return the ids of the targets for which these workloads have served records."""
        return sorted(
            {row[0] for w in workload_ids for row in self._db.fetch(st.served_targets, workload=w)}
        )

    def foreign(self, workload_ids: Sequence[int]) -> bool:
        """Tell whether foreign sources have measured these workloads; such times are not served."""
        rows = self._db.select(
            select(_m.id)
            .join_from(schema.measurement, schema.source, schema.source.c.id == _m.source_id)
            .where(
                among(_m.workload_id, workload_ids),
                _m.status == int(Status.OK),
                schema.source.c.trust == int(Trust.FOREIGN),
                not_(is_retracted(_m)),
            )
            .limit(literal_column("1"))
        )
        return any(rows)

    def count(
        self,
        record_ids: Sequence[int] = (),
        source_ids: Sequence[int] = (),
        session_ids: Sequence[int] = (),
    ) -> int:
        """Return the number of served records with these ids, or of these sources or sessions.

        Runs one statement per 2,000 ids, and one more.
        """
        served = (
            select(func.count())
            .select_from(schema.measurement)
            .where(_m.served == literal_column("1"))
        )
        of_session = and_(_m.session_id.is_not(None), _m.session_id.in_(session_ids))
        whole = or_(_m.source_id.in_(source_ids), of_session)
        ids = sorted(set(record_ids))
        statements = [served.where(whole)]
        for start in range(0, len(ids), _CHECKED):
            statements.append(served.where(_m.id.in_(ids[start : start + _CHECKED]), ~whole))
        return sum(int(self._db.select(statement)[0][0]) for statement in statements)

    # ------------------------------------------------------------------ records of neighbours

    def donors(self, neighbour: Neighbour, limit: int) -> list[Donor]:
        """Return the best programs of a neighbour, best first and without duplicates.

        Programs whose digests do not match their content are omitted. Runs several statements.

        Parameters
        ----------
        neighbour : Neighbour
            A result of :meth:`Workloads.neighbours`.
        limit : int
            Maximum number of programs.
        """
        ranked: list[tuple[float, int]] = []
        for target in neighbour.target_ids:
            rows = self._db.fetch(
                st.top_k, workload=neighbour.workload_id, target=target, k=2 * limit
            )
            ranked += [(row[0], row[1]) for row in rows]
        seconds = {id_: mean for mean, id_ in sorted(ranked)[: 2 * limit]}
        rows = self._db.select(st.answer_query().where(_m.id.in_(seconds)))
        donors: dict[bytes, Donor] = {}
        for row in sorted(rows, key=lambda row: (seconds[row.id], row.id)):
            answer = self.from_row(row)
            if self.is_whole(answer) and answer.is_trusted and answer.program not in donors:
                donors[answer.program] = Donor(
                    answer.program, answer.trace, seconds[row.id], answer.is_own
                )
        return list(donors.values())[:limit]

    def courses(self, neighbours: Iterable[Neighbour]) -> list[list[float]]:
        """Return the mean time of each trial in the search of each neighbour.

        In order of time of measurement, then of insertion; infinite for trials that failed, were
        cut short or retracted. Records of untrusted sources and of finals are omitted. Runs one
        statement per neighbour.

        Parameters
        ----------
        neighbours : iterable of Neighbour
            Results of :meth:`Workloads.neighbours`.
        """
        return [self._course(n.workload_id, n.target_ids) for n in neighbours]

    def _course(self, workload_id: int, target_ids: Sequence[int]) -> list[float]:
        trusted = select(schema.source.c.id).where(schema.source.c.trust >= int(Trust.VERIFIED))
        rows = self._db.select(
            select(case((_m.served == 1, _m.mean)))
            .where(
                _m.workload_id == workload_id,
                _m.target_id.in_(target_ids),
                _m.status != int(Status.UNMEASURED),
                _m.source_id.in_(trusted),
                or_(_m.extra.is_(None), ~is_of_final(_m)),
            )
            .order_by(_m.measured_at, _m.id)
        )
        return [inf if row[0] is None else float(row[0]) for row in rows]

    # ------------------------------------------------------------------ rejected records

    def rejected(self, source_id: int, *, after: int = 0) -> Iterator[RejectedRecord]:
        """Yield a source's records whose traces must not reach TVM, in order of insertion.

        Retracted records are omitted. Runs many statements.

        Parameters
        ----------
        source_id : int
            Id of the source.
        after : int
            Only records with a greater id.
        """
        statement = (
            select(_m.id, _w.format, _p.sketch_id, _p.tail_id, _p.decisions)
            .select_from(
                schema.measurement.join(schema.program, _p.id == _m.program_id).join(
                    schema.workload, _w.id == _p.workload_id
                )
            )
            .where(_m.source_id == source_id, ~is_retracted(_m, many=True))
            .order_by(_m.id)
            .limit(_CHECKED)
        )
        rows: Sequence[Any] = [None]
        while rows:
            rows = self._db.select(statement.where(_m.id > after))
            for row in rows:
                reason = self._rejection(row)
                if reason is not None:
                    yield RejectedRecord(row.id, reason)
                after = row.id

    def _rejection(self, row: Any) -> str | None:
        """Return the first content of a program that is not allowed, or None."""
        from ..programs.allowlist import check_trace

        tail = None if row.tail_id is None else self._loader.body("tail", row.tail_id)
        trace = Trace(self._loader.body("sketch", row.sketch_id), tail, bytes(row.decisions))
        try:
            check_trace(trace, row.format)
        except (FormatError, LimitError) as error:
            return str(error)
        return None


def _checked_times(
    program: bytes, covered: Sequence[Any], digest: bytes, mean: float | None
) -> tuple[tuple[float, ...] | None, bool]:
    """Return a measurement's run times, and true if its digest and mean match them."""
    status, secs = covered[_STATUS], covered[_RUN_SECS]
    if not 0 <= status < 256 or (secs is not None and len(secs) % 8):
        return None, False
    computed = identity.measurement_digest(program, *covered)
    run_secs = None if secs is None else identity.unpack_floats(secs)
    is_mean = not run_secs or mean == mean_of(run_secs)
    return run_secs, is_mean and computed == digest

"""Records: the best, all, one."""

from collections.abc import Container, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import Any

from sqlalchemy import func, select

from ... import identity
from ...errors import NotFoundError, UsageError
from ...records import (
    MODULES,
    Alias,
    Failure,
    FailureKind,
    Measurement,
    Origin,
    Phase,
    Program,
    Status,
    Trace,
    Trust,
)
from ...results import Answer, Record
from ...run_times import mean_of
from .. import columns, schema
from ..columns import Form
from ..retractions import is_retracted
from . import statements as st
from .ledger import Ledger

_m = schema.measurement.c

#: Fields of a record that need no other row; those of JSON are texts in a row.
_TEXTS = columns.names_of(Form.JSON, Form.SHARED_JSON)
_FIELDS = (*columns.names_of(Form.PLAIN), *_TEXTS)

#: Rows fetched at a time by iterating methods.
_PAGE = 500


class Query(Ledger):
    """Reads of one database. Made by :class:`tunedb.storage.store.Store` as its ``query``."""

    # ------------------------------------------------------------------ records

    def prepare(self) -> None:
        """Let the database prepare what a tuning loop asks, so that no first query waits for it.

        SQLite parses and plans a statement when a connection first runs it: 40 to 100 µs each.
        """
        self.standings_of([Alias("", "")])
        self._rows(st.top_k, workload=0, target=0, k=0)
        self._rows(st.answer, id=0)

    def top_k_ids(
        self, workload_ids: Sequence[int], target_ids: Sequence[int], k: int
    ) -> list[int]:
        """Return the ids of the best records, best first.

        Ascending mean of run times, ties in order of insertion; failed, retracted and untrusted
        records are left out. One index lookup for each workload and target.
        """
        if len(workload_ids) == len(target_ids) == 1:
            rows = self._tuples(st.top_k, workload=workload_ids[0], target=target_ids[0], k=k)
            return [row[1] for row in rows]
        parts = [
            [tuple(row) for row in self._tuples(st.top_k, workload=w, target=t, k=k)]
            for w in workload_ids
            for t in target_ids
        ]
        return [id_ for _, id_ in islice(merge(*parts), k)]

    def top_k(
        self,
        workload_ids: Sequence[int],
        target_ids: Sequence[int] | None = None,
        k: int = 10,
    ) -> list[Record]:
        """Return the best records of workloads, best first (see :meth:`top_k_ids`).

        Parameters
        ----------
        workload_ids : sequence of int
            Workloads that count as one.
        target_ids : sequence of int or None
            Targets that count as one; None for all.
        k : int
            How many at most.

        Raises
        ------
        UsageError
            `k` is negative.
        """
        if k < 0:
            raise UsageError(f"k must not be negative, got {k}")
        if target_ids is None:
            target_ids = self.targets_of(workload_ids)
        return [self.record(i) for i in self.top_k_ids(workload_ids, target_ids, k)]

    def structures(self) -> Iterator[tuple[int, int | None, Program]]:
        """Yield each sketch and tail that programs have together, with one of these programs."""
        p = schema.program.c
        first = select(func.min(p.id)).group_by(p.sketch_id, p.tail_id).scalar_subquery()
        for row in self._select(select(schema.program).where(p.id.in_(first))):
            yield row.sketch_id, row.tail_id, self._program(row)

    def top_k_with(
        self,
        workload_ids: Sequence[int],
        target_ids: Sequence[int],
        k: int,
        structures: Container[tuple[int, int | None]],
    ) -> list[int]:
        """Return the ids of the best records whose program has one of these sketches and tails."""
        p = schema.program.c
        rows = self._select(
            select(_m.id, p.sketch_id, p.tail_id)
            .join_from(schema.measurement, schema.program, p.id == _m.program_id)
            .where(_m.workload_id.in_(workload_ids), _m.target_id.in_(target_ids), _m.served == 1)
            .order_by(_m.mean, _m.id)
        )
        return [row.id for row in rows if (row.sketch_id, row.tail_id) in structures][:k]

    def best(
        self, workload_ids: Sequence[int], target_ids: Sequence[int] | None = None
    ) -> Record | None:
        """Return the best record of workloads, or None."""
        return next(iter(self.top_k(workload_ids, target_ids, 1)), None)

    def record(self, id_: int) -> Record:
        """Return a record by its id.

        Raises
        ------
        NotFoundError
            There is none.
        """
        rows = self._rows(st.record_by_id, id=id_)
        if not rows:
            raise NotFoundError(f"{self._location}: no record {id_}")
        return self._record(rows[0])

    def find_records(self, text: str, most: int = 10) -> list[int]:
        """Return the ids of records whose id, or whose digest from its start, is `text`.

        Parameters
        ----------
        text : str
            An id, or at least four hexadecimal digits.
        most : int
            How many at most.
        """
        if text.isascii() and text.isdecimal() and len(text) < 19:
            found = self._select(select(_m.id).where(_m.id == int(text)))
            if found:
                return [found[0].id]
        digits = 2 * identity.DIGEST_BYTES
        if not 4 <= len(text) <= digits or not set(text.lower()) <= set("0123456789abcdef"):
            return []
        # No index has digests alone, so this reads all of one.
        low, high = (bytes.fromhex(text.ljust(digits, filler)) for filler in "0f")
        rows = self._select(select(_m.id).where(_m.digest.between(low, high)).limit(most))
        return sorted(row.id for row in rows)

    def answer(self, id_: int) -> Answer:
        """Return what a tuning loop needs of a record, in one statement (:meth:`record`: six).

        Raises
        ------
        NotFoundError
            There is none.
        """
        rows = self._tuples(st.answer, id=id_)
        if not rows:
            raise NotFoundError(f"{self._location}: no record {id_}")
        return self._answer(rows[0])

    def _answer(self, row: Sequence[Any]) -> Answer:
        """Return the answer of a row of :func:`st.answer_query`."""
        id_, workload_id, target_id, sketch_id, sketch_body, tail_id, tail_body, decisions = row[:8]
        program, digest, mean, trust, store = row[8:13]
        bodies = self._bodies
        sketch = bodies["sketch"].fetch(sketch_id, lambda _: self._unpack(sketch_body))
        tail = None
        if tail_id is not None:
            tail = bodies["tail"].fetch(tail_id, lambda _: self._unpack(tail_body))
        trace = Trace(sketch, tail, decisions)
        covered = columns.covered(row[13:])
        run_secs, is_whole = _times(program, covered, digest, mean)
        return Answer(
            id=id_,
            workload_id=workload_id,
            target_id=target_id,
            trace=trace,
            run_secs=run_secs,
            args_info=covered["args_info"],
            program=program,
            is_whole=is_whole,
            is_trusted=trust >= Trust.VERIFIED,
            is_own=trust >= Trust.OWN and store == self.store_key,
        )

    def is_whole(self, answer: Answer, workload: bytes | None = None) -> bool:
        """Tell whether an answer's digests are those of what is stored, and its mean of its times.

        Parameters
        ----------
        answer : Answer
            One of this database.
        workload : bytes or None
            Digest of what its program is put on; None for that of the stored workload.
        """
        if not answer.is_whole:
            return False
        trace = answer.trace
        program = identity.program_digest(
            self.workload_digests(answer.workload_id)[0] if workload is None else workload,
            self.target(answer.target_id).digest,
            identity.shared_digest("sketch", trace.sketch),
            None if trace.tail is None else identity.shared_digest("tail", trace.tail),
            trace.decisions,
        )
        return program == answer.program

    def answers(self, target_ids: Sequence[int] | None = None) -> Iterator[Answer]:
        """Yield what TVM may see of all records, in order of insertion, failed ones too.

        Those of trusted sources and of modules, if they were not retracted.
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
            ids = [row.id for row in self._select(statement.where(_m.id > after))]
            yield from map(self.answer, ids)
            after = ids[-1] if ids else 0

    def knows(self, measurement: Measurement) -> bool:
        """Tell whether a measurement is stored."""
        digests = {"measurement": measurement.digest, "program": measurement.program.digest}
        return bool(self._rows(st.measurement_by_digest, **digests))

    def digest_of(self, id_: int) -> bytes:
        """Return the digest of the measurement with this id."""
        return self.record(id_).measurement.digest

    def iterate(
        self, workload_id: int | None = None, target_ids: Sequence[int] | None = None
    ) -> Iterator[Record]:
        """Yield records in order of insertion, failed and retracted ones included.

        Each page of 500 is a snapshot; records that are added meanwhile come at the end.

        Parameters
        ----------
        workload_id : int or None
            Only this workload's.
        target_ids : sequence of int or None
            Only these targets'.
        """
        statement = st.record_query().order_by(_m.id).limit(_PAGE)
        if workload_id is not None:
            statement = statement.where(_m.workload_id == workload_id)
        if target_ids is not None:
            statement = statement.where(_m.target_id.in_(target_ids))
        after = 0
        while True:
            rows = self._select(statement.where(_m.id > after))
            for row in rows:
                yield self._record(row)
            if len(rows) < _PAGE:
                return
            after = rows[-1].id

    def history(
        self, workload_ids: Sequence[int], target_ids: Sequence[int] | None = None
    ) -> list[tuple[int, float, float]]:
        """Return the course of a search: ``(id, mean, best so far)`` of the served records.

        In order of time of measurement, then of insertion; times in seconds.
        """
        statement = select(_m.id, _m.mean).where(_m.workload_id.in_(workload_ids), _m.served == 1)
        if target_ids is not None:
            statement = statement.where(_m.target_id.in_(target_ids))
        best = float("inf")
        course = []
        for id_, mean in self._select(statement.order_by(_m.measured_at, _m.id)):
            best = min(best, mean)
            course.append((id_, mean, best))
        return course

    def _program(self, row: Any) -> Program:
        """Return the program of a row with the columns of one."""
        tail = None if row.tail_id is None else self._trace_body("tail", row.tail_id)
        trace = Trace(self._trace_body("sketch", row.sketch_id), tail, bytes(row.decisions))
        return Program(self.workload(row.workload_id), self.target(row.target_id), trace)

    def _record(self, row: Any) -> Record:
        """Return the record of a row of :func:`st.record_query`."""
        failure = None
        if row.failure_kind is not None:
            failure = Failure(
                FailureKind(row.failure_kind), Phase(row.phase), row.message, row.seconds
            )
        measurement = Measurement(
            program=self._program(row),
            run_secs=None if row.run_secs is None else identity.unpack_floats(row.run_secs),
            status=Status(row.status),
            session=None if row.session_id is None else self.session(row.session_id),
            origin=Origin.UNKNOWN if row.origin is None else Origin(row.origin),
            failure=failure,
            **_plain_of(row),
        )
        source = self._sources.fetch(row.source_id, self.source)
        return Record(
            id=row.id,
            workload_id=row.workload_id,
            target_id=row.target_id,
            measurement=measurement,
            source=source,
            mean=row.mean,
            retracted=bool(row.retracted),
        )


def _plain_of(row: Any) -> dict[str, Any]:
    """Return the fields of a record that need no other row, of a row of :func:`st.record_query`."""
    fields = {name: getattr(row, name) for name in _FIELDS}
    for name in _TEXTS:
        if fields[name] is not None:
            fields[name] = fields[name].encode()
    return fields


def _times(
    program: bytes, covered: dict[str, Any], digest: bytes, mean: float | None
) -> tuple[tuple[float, ...] | None, bool]:
    """Return the run times of a measurement, and whether its digest and its mean are theirs."""
    secs = covered["run_secs"]
    if not 0 <= covered["status"] < 256 or (secs is not None and len(secs) % 8):
        return None, False
    computed = identity.measurement_digest(program, *covered.values())
    run_secs = None if secs is None else identity.unpack_floats(secs)
    is_mean = not run_secs or mean == mean_of(run_secs)
    return run_secs, is_mean and computed == digest

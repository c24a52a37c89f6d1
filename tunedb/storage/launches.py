"""Launches of GPU kernels with their counters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from sqlalchemy import Select, literal, select, tuple_

from .. import identity
from ..errors import FormatError, NotFoundError
from ..launches import CounterSet, Extents, Launch, counters_of, values_of
from ..records import Measurement, Status, Trace, Trust, Workload
from ..results import LaunchRow
from . import schema
from .attribution import is_preferred
from .batches import Batches
from .database import Database
from .loader import Loader
from .retractions import is_retracted
from .retry import retried

T = TypeVar("T")

_l, _m, _p, _w = schema.launch.c, schema.measurement.c, schema.program.c, schema.workload.c

#: Launches per statement: with 33 counters each they take 1.3 MB.
_PAGE = 5_000


class Launches:
    """``store.launches``: adds and reads launches of records."""

    def __init__(self, db: Database, loader: Loader, batches: Batches) -> None:
        self._db = db
        self._loader = loader
        self._batches = batches

    def __repr__(self) -> str:
        return f"<launches of {self._db.location}>"

    @retried
    def add(self, launches: Iterable[tuple[Measurement, Launch]]) -> int:
        """Add launches of stored measurements, stated by this database.

        Parameters
        ----------
        launches : iterable of (Measurement, Launch)
            Launches with their measurements; those of a measurement that is not stored are ignored.

        Returns
        -------
        int
            Number of launches that were not stored before.
        """
        with self._db.transaction() as connection:
            rows = [
                (measurement.program.digest, measurement.digest, launch, source_id)
                for measurement, launch, source_id in self._batches.attributed(connection, launches)
            ]
            return self._batches.insert_launches(connection, rows)

    def iterate(
        self,
        *,
        workload_ids: Sequence[int] | None = None,
        target_ids: Sequence[int] | None = None,
        counted: bool | None = None,
        statuses: Sequence[Status] | None = (Status.OK,),
    ) -> Iterator[LaunchRow]:
        """Yield launches in the order of their records, then of insertion.

        Launches of retracted records are omitted. For records of foreign sources, launches stated
        by these sources are included (:func:`tunedb.storage.attribution.is_preferred`). Each page
        of 5,000 launches is a snapshot.

        Parameters
        ----------
        workload_ids, target_ids : sequence of int or None
            Only launches of records of these workloads and targets.
        counted : bool or None
            True for launches with counters only, false for launches without only.
        statuses : sequence of Status or None
            Only launches of records with one of these outcomes; None for all.

        Yields
        ------
        LaunchRow

        Raises
        ------
        FormatError
            A launch is damaged (``tunedb db check``).
        """
        statement = _launches().limit(_PAGE)
        if workload_ids is not None:
            statement = statement.where(_m.workload_id.in_(workload_ids))
        if target_ids is not None:
            statement = statement.where(_m.target_id.in_(target_ids))
        if statuses is not None:
            statement = statement.where(_m.status.in_([int(status) for status in statuses]))
        if counted is not None:
            has_counters = _l.counter_set_id.is_not(None)
            statement = statement.where(has_counters if counted else ~has_counters)
        sets, workloads = _ReadCache(self._counter_set), _ReadCache(self._scriptless_workload)
        after: tuple[int, int] | None = None
        while True:
            page = statement
            if after is not None:
                page = statement.where(
                    tuple_(_l.measurement_id, _l.id) > tuple_(*map(literal, after))
                )
            rows = self._db.select(page)
            for row in rows:
                yield self._launch_row(row, sets, workloads)
            if len(rows) < _PAGE:
                return
            after = rows[-1].measurement_id, rows[-1].id

    def for_record(self, record_id: int) -> list[Launch]:
        """Return the accepted launches of a record, in their order.

        Parameters
        ----------
        record_id : int
            Id of the record.

        Returns
        -------
        list of Launch
        """
        statement = (
            select(schema.launch)
            .join_from(schema.launch, schema.measurement, _m.id == _l.measurement_id)
            .where(_m.id == record_id, is_preferred(schema.launch, _m))
        )
        sets = _ReadCache(self._counter_set)
        rows = self._db.select(statement.order_by(_l.number, _l.id))
        return [launch_from_row(row, sets[row.counter_set_id]) for row in rows]

    def _counter_set(self, id_: int | None) -> CounterSet | None:
        return counter_set(self._db, id_)

    def _scriptless_workload(self, id_: int | None) -> Workload:
        """Return a workload without its script, which is not part of its identity."""
        rows = self._db.select(
            select(_w.format, _w.body, _w.name, _w.tvm_version).where(_w.id == id_)
        )
        if not rows:
            raise NotFoundError(f"{self._db.location}: no workload {id_}")
        row = rows[0]
        return Workload(row.format, self._db.unpack(row.body), row.name, row.tvm_version)

    def _launch_row(
        self, row: Any, sets: _ReadCache[CounterSet | None], workloads: _ReadCache[Workload]
    ) -> LaunchRow:
        """Return the object of a row of :func:`_launches`."""
        bodies = self._loader.bodies
        sketch = bodies["sketch"].fetch(row.sketch_id, lambda _: self._db.unpack(row.sketch))
        tail = None
        if row.tail_id is not None:
            tail = bodies["tail"].fetch(row.tail_id, lambda _: self._db.unpack(row.tail))
        return LaunchRow(
            id=row.id,
            launch=launch_from_row(row, sets[row.counter_set_id]),
            record_id=row.measurement_id,
            digest=bytes(row.record_digest),
            program_id=row.program_id,
            workload_id=row.workload_id,
            workload=workloads[row.workload_id],
            target_id=row.target_id,
            target=self._loader.target(row.target_id),
            trace=Trace(sketch, tail, bytes(row.decisions)),
            status=Status(row.status),
            run_secs=None if row.run_secs is None else identity.unpack_floats(row.run_secs),
            mean=row.mean,
            measured_at=row.measured_at,
            context=None if row.context is None else row.context.encode(),
            source_id=row.source_id,
            trust=Trust(row.trust),
        )


class _ReadCache(dict[int | None, T]):
    """Values read once per call, by row id: many launches share few counter sets and workloads."""

    def __init__(self, read: Callable[[int | None], T]) -> None:
        super().__init__()
        self._read = read

    def __missing__(self, key: int | None) -> T:
        value = self[key] = self._read(key)
        return value


def _launches() -> Select[Any]:
    """Return the query whose rows :meth:`Launches._launch_row` reads."""
    return (
        select(
            schema.launch,
            _m.digest.label("record_digest"),
            *(_m.program_id, _m.workload_id, _m.target_id, _m.source_id),
            *(_m.status, _m.run_secs, _m.mean, _m.measured_at),
            *(_p.sketch_id, _p.tail_id, _p.decisions),
            schema.sketch.c.body.label("sketch"),
            schema.tail.c.body.label("tail"),
            schema.context.c.body.label("context"),
            schema.source.c.trust,
        )
        .join_from(schema.launch, schema.measurement, _m.id == _l.measurement_id)
        .join(schema.program, _p.id == _m.program_id)
        .join(schema.sketch, schema.sketch.c.id == _p.sketch_id)
        .join(schema.source, schema.source.c.id == _m.source_id)
        .outerjoin(schema.tail, schema.tail.c.id == _p.tail_id)
        .outerjoin(schema.context, schema.context.c.id == _m.context_id)
        .where(~is_retracted(_m, many=True), is_preferred(schema.launch, _m))
        .order_by(_l.measurement_id, _l.id)
    )


def counter_set(db: Database, id_: int | None) -> CounterSet | None:
    """Return a counter set by its id; None for None.

    Raises
    ------
    NotFoundError
        The database has no such counter set.
    """
    return None if id_ is None else counter_set_from_row(db.row_by_id("counter_set", id_))


def counter_set_from_row(row: Any) -> CounterSet:
    """Return the counter set of a row.

    Raises
    ------
    FormatError
        Its names and units cannot be read.
    """
    return CounterSet(
        row.tool, row.tool_version, row.compute_capability, counters_of(row.counters.encode())
    )


def launch_from_row(row: Any, counter_set: CounterSet | None) -> Launch:
    """Return the launch of a row.

    Raises
    ------
    FormatError
        A number is out of bounds, or the number of values is not that of the counters.
    """
    return Launch(
        kernel=row.kernel,
        threads=row.threads,
        block=_extents(row.block_x, row.block_y, row.block_z),
        grid=_extents(row.grid_x, row.grid_y, row.grid_z),
        number=row.number,
        registers=row.registers,
        static_shared=row.static_shared,
        dynamic_shared=row.dynamic_shared,
        seconds=row.seconds,
        counter_set=counter_set,
        values=values_of(row.counters),
    )


def _extents(x: int | None, y: int | None, z: int | None) -> Extents | None:
    """Return the extents of three columns as one value."""
    if x is None and y is None and z is None:
        return None
    if x is None or y is None or z is None:
        raise FormatError("a block or grid without one of its extents")
    return x, y, z

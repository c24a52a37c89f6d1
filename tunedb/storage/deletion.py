"""Removing what a database need not keep, and giving its space back."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    Connection,
    Engine,
    Select,
    bindparam,
    delete,
    exists,
    func,
    insert,
    literal_column,
    or_,
    select,
)

from .. import limits
from ..errors import StorageError
from . import schema
from .deadlines import unhurried
from .engine import Prepared, connect_reader, converted_errors
from .retractions import is_retracted

_m, _p, _x = schema.measurement.c, schema.program.c, schema.failure.c
_f, _d, _k = schema.feature.c, schema.prediction.c, schema.model.c
_l, _foreign = schema.launch.c, schema.foreign_feature.c

#: Seconds that a vacuum waits for its turn: whoever writes now will write again.
_VACUUM_TURN_MS = 5_000
_PATIENCE = f"PRAGMA busy_timeout={_VACUUM_TURN_MS}"

#: PostgreSQL vacuums what it is told, not what others keep beside it.
_VACUUM_TABLES = "VACUUM (ANALYZE) " + ", ".join(sorted(schema.metadata.tables))


def _id(name: str) -> Any:
    return bindparam(name, type_=schema.Int)


_failures_of = Prepared(delete(schema.failure).where(_x.measurement_id == _id("measurement")))
_launches_of = Prepared(delete(schema.launch).where(_l.measurement_id == _id("measurement")))
_measurement = Prepared(delete(schema.measurement).where(_m.id == _id("measurement")))
_features_of = Prepared(delete(schema.feature).where(_f.program_id == _id("program")))
_foreign_features_of = Prepared(
    delete(schema.foreign_feature).where(_foreign.program_id == _id("program"))
)
_predictions_of = Prepared(delete(schema.prediction).where(_d.program_id == _id("program")))
_program = Prepared(delete(schema.program).where(_p.id == _id("program")))
_feature = Prepared(
    delete(schema.feature).where(
        _f.program_id == _id("program"), _f.feature_set_id == _id("feature_set")
    )
)
_foreign_feature = Prepared(
    delete(schema.foreign_feature).where(
        _foreign.program_id == _id("program"), _foreign.feature_set_id == _id("feature_set")
    )
)
_predictions_by = Prepared(
    select(_d.program_id).where(_d.model_id == _id("model")).limit(_id("most"))
)
_prediction = Prepared(
    delete(schema.prediction).where(_d.model_id == _id("model"), _d.program_id == _id("program"))
)
_model = Prepared(delete(schema.model).where(_k.id == _id("model")))


@dataclass(frozen=True, slots=True)
class Removed:
    """How many rows went, of each kind."""

    records: int = 0
    failures: int = 0
    programs: int = 0
    features: int = 0
    predictions: int = 0
    models: int = 0
    launches: int = 0

    def __add__(self, other: Removed) -> Removed:
        return Removed(*(getattr(self, n) + getattr(other, n) for n in self.__slots__))


def lasting() -> Any:
    """Return the condition for measurements that are never removed.

    The last measurement, those of the last program, and those of the last failure and the last
    launch: SQLite gives the number of a last row again, and other processes may remember it, or
    have written it down as how far they have read.
    """
    other = schema.measurement.alias().c
    failure = select(_x.measurement_id).order_by(_x.id.desc()).limit(literal_column("1"))
    launch = select(_l.measurement_id).order_by(_l.id.desc()).limit(literal_column("1"))
    return or_(
        _m.id == _or_zero(select(func.max(other.id))),
        _m.program_id == _or_zero(select(func.max(_p.id))),
        _m.id == _or_zero(failure),
        _m.id == _or_zero(launch),
    )


def _or_zero(number: Select[Any]) -> Any:
    """Return a number that is looked up; 0, which no row has, where there is none."""
    return func.coalesce(number.scalar_subquery(), literal_column("0"))


class Removing(ABC):
    """The part of :class:`tunedb.storage.store.Store` that removes; its guarantees hold.

    What many records share stays: workloads, targets, sketches, tails, sessions, sources,
    descriptions of arguments, contexts and sets of counters. Other processes remember the numbers
    of those rows (:class:`tunedb.storage.rows.Ids`), and there are few. Retractions stay, because
    they only ever grow and what they mean may come again; so does how far exchanges have come.
    """

    lock: threading.RLock
    location: str
    read_only: bool
    _engine: Engine

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[Connection]:
        """Yield the writer's connection inside one write transaction."""

    @abstractmethod
    def _check_open(self) -> None:
        """Raise UsageError for a store that was closed."""

    def remove_records(self, ids: Sequence[int], *, if_retracted: bool = False) -> Removed:
        """Remove measurements with their failures and launches, in one transaction.

        A program that has no measurement left goes too, with its features and predictions. What
        must stay does (:func:`lasting`), and so does what is gone already.

        Parameters
        ----------
        ids : sequence of int
            Local numbers; at most :data:`tunedb.limits.BATCH_ROWS`, so that others get their turn.
        if_retracted : bool
            Leave what is not, or no longer, retracted.

        Returns
        -------
        Removed
        """
        found = select(_m.id, _m.program_id).where(_m.id.in_(ids), ~lasting())
        if if_retracted:
            found = found.where(is_retracted(_m))
        with self._transaction() as connection:
            rows = connection.execute(found).all()
            measurements = [{"measurement": row.id} for row in rows]
            failures = _failures_of.many(connection, measurements)
            launches = _launches_of.many(connection, measurements)
            records = _measurement.many(connection, measurements)
            bare = _bare(connection, sorted({row.program_id for row in rows}))
            _foreign_features_of.many(connection, bare)
            features = _features_of.many(connection, bare)
            predictions = _predictions_of.many(connection, bare)
            programs = _program.many(connection, bare)
            if records:
                _note_pruned(connection)
        return Removed(records, failures, programs, features, predictions, launches=launches)

    def remove_features(self, feature_set_id: int, program_ids: Sequence[int]) -> Removed:
        """Remove the rows that programs have of a feature set, in one transaction.

        Parameters
        ----------
        feature_set_id : int
            Local number of the set.
        program_ids : sequence of int
            Local numbers; at most :data:`tunedb.limits.BATCH_ROWS`.
        """
        rows = [{"program": id_, "feature_set": feature_set_id} for id_ in program_ids]
        with self._transaction() as connection:
            _foreign_feature.many(connection, rows)
            return Removed(features=_feature.many(connection, rows))

    def remove_model(self, id_: int) -> Removed:
        """Remove a model and what it predicted, in transactions of bounded size."""
        removed = Removed()
        while True:
            with self._transaction() as connection:
                page = _predictions_by(connection, model=id_, most=limits.BATCH_ROWS).scalars()
                rows = [{"model": id_, "program": program} for program in page]
                removed += Removed(predictions=_prediction.many(connection, rows))
                if len(rows) < limits.BATCH_ROWS:
                    return removed + Removed(models=_model(connection, model=id_).rowcount)

    def vacuum(self) -> None:
        """Give space back: SQLite writes the file anew, PostgreSQL marks it as free to use again.

        Raises
        ------
        BusyError
            Another process is writing.
        StorageError
            The disk has no room for a copy, the database is read-only, or not of this account.
        """
        if self.read_only:
            raise StorageError(f"{self.location}: it was opened read-only")
        with self.lock, converted_errors(self.location):
            self._check_open()
            # Neither database vacuums inside a transaction.
            with connect_reader(self._engine) as connection:
                if connection.dialect.name == "sqlite":
                    _vacuum_file(connection)
                else:
                    _vacuum_server(connection, self.location)


def _note_pruned(connection: Connection) -> None:
    """Write down up to where records may be missing, for those who remember how far they read."""
    last = connection.execute(select(func.max(_m.id))).scalar()
    connection.execute(delete(schema.meta).where(schema.meta.c.key == schema.PRUNED))
    connection.execute(insert(schema.meta).values(key=schema.PRUNED, value=str(last or 0)))


def _bare(connection: Connection, program_ids: Sequence[int]) -> list[dict[str, int]]:
    """Return those of the programs that have no measurement."""
    measured = exists(select(literal_column("1")).where(_m.program_id == _p.id))
    bare = select(_p.id).where(_p.id.in_(program_ids), ~measured)
    return [{"program": id_} for id_ in connection.execute(bare).scalars()]


def _vacuum_file(connection: Connection) -> None:
    """Write a file of SQLite anew."""
    # The first, because the copy would be made in memory, as our temporary tables are.
    for pragma in ("PRAGMA temp_store=FILE", _PATIENCE):
        connection.exec_driver_sql(pragma).close()
    connection.exec_driver_sql("VACUUM")
    # The new file is in the log until then.
    connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").close()


def _vacuum_server(connection: Connection, where: str) -> None:
    """Vacuum our tables; those of somebody else PostgreSQL only warns of and leaves out."""
    warnings: list[str] = []

    def note(told: Any) -> None:
        if told.severity_nonlocalized == "WARNING":
            warnings.append(str(told.message_primary))

    driver: Any = connection.connection.driver_connection
    driver.add_notice_handler(note)
    try:
        with unhurried(connection):
            connection.exec_driver_sql(_VACUUM_TABLES)
    finally:
        driver.remove_notice_handler(note)
    if warnings:
        raise StorageError(f"{where}: the server skips tables; ask its owner ({warnings[0]})")

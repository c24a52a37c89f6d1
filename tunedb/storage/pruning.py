"""Pruning: what a database takes, removing what it need not keep, and giving its space back.

What many records share stays: workloads, targets, sketches, tails, sessions, sources,
descriptions of arguments, contexts and sets of counters. Other processes remember the numbers
of those rows (:class:`tunedb.storage.rows.IdCache`), and there are few. Retractions stay, because
they only ever grow and what they mean may come again; so does how far exchanges have come.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    Connection,
    Select,
    Table,
    bindparam,
    column,
    delete,
    exists,
    func,
    insert,
    literal,
    literal_column,
    or_,
    select,
    table,
    tuple_,
)

from .. import limits
from ..errors import StorageError
from ..results import Exchanged, FileSpace, TableSpace
from . import schema
from .database import Database
from .deadlines import long_statements
from .engine import Prepared, connect_reader, converted_errors
from .retractions import is_retracted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_m, _p, _x = schema.measurement.c, schema.program.c, schema.failure.c
_f, _d, _k = schema.feature.c, schema.prediction.c, schema.model.c
_l, _foreign = schema.launch.c, schema.foreign_feature.c
_mark = schema.watermark.c

#: Rows that are read at a time.
_PAGE = 20_000

#: Rows that say how long the others are, where the database does not.
_SAMPLE = 1_000

#: Bytes of a row besides its texts: numbers, lengths, its place in a page and in the indexes.
_ROW_BYTES = 60

#: Seconds that a vacuum waits for its turn: whoever writes now will write again.
_VACUUM_TURN_MS = 5_000
_PATIENCE = f"PRAGMA busy_timeout={_VACUUM_TURN_MS}"

#: PostgreSQL vacuums what it is told, not what others keep beside it.
_VACUUM_TABLES = "VACUUM (ANALYZE) " + ", ".join(sorted(schema.metadata.tables))

_ONE: Any = literal_column("1")

#: SQLite's table of pages, where it was built with it.
_pages = table("dbstat", column("name"), column("pgsize"), column("aggregate"))
_objects = table("sqlite_schema", column("name"), column("tbl_name")).alias("object")
_statistics = table(
    "pg_stat_user_tables", column("relid"), column("n_live_tup"), column("n_dead_tup")
)


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


class Pruning:
    """``store.pruning``, for the room that removes records and gives space back."""

    def __init__(self, db: Database) -> None:
        self._db = db

    # ------------------------------------------------------------------ numbers of rows

    def measurement_numbers(self) -> NDArray[np.int64]:
        """Return id, source and program of all measurements: shape (n, 3), in order of ids."""
        return self._numbers(schema.measurement, _m.source_id, _m.program_id)

    def failure_numbers(self) -> NDArray[np.int64]:
        """Return id and measurement of all failures: shape (n, 2)."""
        return self._numbers(schema.failure, schema.failure.c.measurement_id)

    def launch_numbers(self) -> NDArray[np.int64]:
        """Return id and measurement of all launches: shape (n, 2)."""
        return self._numbers(schema.launch, schema.launch.c.measurement_id)

    def feature_numbers(self) -> NDArray[np.int64]:
        """Return program, feature set and bytes of all programs' features: shape (n, 3)."""
        return self._numbers(schema.feature, func.length(_f.data))

    def prediction_numbers(self) -> NDArray[np.int64]:
        """Return model and program of all predictions: shape (n, 2)."""
        return self._numbers(schema.prediction)

    def measurement_ranks(self) -> NDArray[np.float64]:
        """Return what orders measurements: shape (n, 6), in order of ids.

        Columns are id, workload, target, status, served, and the mean in seconds, NaN where there
        is none.
        """
        columns = (_m.workload_id, _m.target_id, _m.status, _m.served, _m.mean)
        return self._values(schema.measurement, columns, float)

    def retracted_ids(self) -> NDArray[np.int64]:
        """Return the ids of measurements that were taken back, in order."""
        import numpy as np

        rows = self._db.select(select(_m.id).where(is_retracted(_m, many=True)).order_by(_m.id))
        return np.array([row.id for row in rows], np.int64)

    def lasting_ids(self) -> list[int]:
        """Return the ids of measurements that stay (:func:`lasting`)."""
        return [row.id for row in self._db.select(select(_m.id).where(lasting()).order_by(_m.id))]

    def feature_set_ids(self) -> dict[int, tuple[str, int]]:
        """Return the name and version of each feature set that has a place here."""
        return {
            row.id: (row.name, row.version) for row in self._db.select(select(schema.feature_set))
        }

    def exchanges(self) -> list[Exchanged]:
        """Return with which databases records were exchanged, the latest first."""
        rows = self._db.select(
            select(_mark.direction, _mark.peer, func.max(_mark.exchanged_at).label("at"))
            .group_by(_mark.direction, _mark.peer)
            .order_by(func.max(_mark.exchanged_at).desc(), _mark.direction, _mark.peer)
        )
        return [Exchanged(row.direction, row.peer, row.at) for row in rows]

    def _numbers(self, one: Table, *columns: Any) -> NDArray[np.int64]:
        """Return the key and some columns of all rows of a table, in order of the key."""
        return self._values(one, columns, int)

    def _values(self, one: Table, columns: tuple[Any, ...], kind: type) -> NDArray[Any]:
        import numpy as np

        pages: list[NDArray[Any]] = [np.array(page, kind) for page in self._key_pages(one, columns)]
        width = len(one.primary_key.columns) + len(columns)
        return np.concatenate(pages) if pages else np.empty((0, width), kind)

    def _key_pages(self, one: Table, columns: tuple[Any, ...]) -> Iterator[list[tuple[int, ...]]]:
        key = list(one.primary_key.columns)
        statement = select(*key, *columns).order_by(*key).limit(_PAGE)
        rows = self._db.select(statement)
        while rows:
            yield [tuple(row) for row in rows]
            last = tuple_(*map(literal, rows[-1][: len(key)]))
            rows = self._db.select(statement.where(tuple_(*key) > last))

    # ------------------------------------------------------------------ bytes

    @property
    def is_file(self) -> bool:
        """Whether this is SQLite, whose space is that of a file."""
        return self._db.is_file

    def file_space(self) -> FileSpace:
        """Return the pages of a SQLite file, and how many of them are free."""
        with self._db.lock, converted_errors(self._db.location):
            connection = self._db.reader()
            return FileSpace(
                connection.exec_driver_sql("PRAGMA page_size").scalar_one(),
                connection.exec_driver_sql("PRAGMA page_count").scalar_one(),
                connection.exec_driver_sql("PRAGMA freelist_count").scalar_one(),
            )

    def table_spaces(self) -> list[TableSpace]:
        """Return what PostgreSQL's statistics say of the tables; they lag a little behind."""
        found = []
        for name in sorted(schema.metadata.tables):
            place = func.to_regclass(name)
            counted = select(_statistics.c.n_live_tup, _statistics.c.n_dead_tup)
            rows = self._db.select(
                counted.add_columns(func.pg_total_relation_size(place).label("size")).where(
                    _statistics.c.relid == place
                )
            )
            found += [TableSpace(name, row.n_live_tup, row.n_dead_tup, row.size) for row in rows]
        return found

    def table_bytes(self) -> dict[str, int]:
        """Return what each table takes with its indexes; an estimate where nobody knows."""
        if not self._db.is_file:
            return {one.name: one.bytes for one in self.table_spaces()}
        if self._db.select(select(func.sqlite_compileoption_used("ENABLE_DBSTAT_VTAB")))[0][0]:
            rows = self._db.select(
                select(_objects.c.tbl_name, func.sum(_pages.c.pgsize).label("size"))
                .select_from(_pages.join(_objects, _objects.c.name == _pages.c.name))
                .where(_pages.c.aggregate == _ONE)
                .group_by(_objects.c.tbl_name)
            )
            return {row.tbl_name: int(row.size) for row in rows}
        return {one.name: self._estimated(one) for one in schema.metadata.sorted_tables}

    def _estimated(self, one: Table) -> int:
        """Return about what a table takes, from the lengths of its first rows."""
        kinds = (schema.Blob, schema.Text)
        lengths = [func.coalesce(func.length(c), 0) for c in one.c if c.type in kinds]
        number = int(self._db.select(select(func.count()).select_from(one))[0][0])
        if not lengths or not number:
            return number * _ROW_BYTES
        sample = select(sum(lengths[1:], start=lengths[0]).label("size")).limit(_SAMPLE).subquery()
        mean = self._db.select(select(func.avg(sample.c.size)))[0][0]
        return round(number * (_ROW_BYTES + float(mean or 0)))

    # ------------------------------------------------------------------ removing

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
        with self._db.transaction() as connection:
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
        with self._db.transaction() as connection:
            _foreign_feature.many(connection, rows)
            return Removed(features=_feature.many(connection, rows))

    def remove_model(self, id_: int) -> Removed:
        """Remove a model and what it predicted, in transactions of bounded size."""
        removed = Removed()
        while True:
            with self._db.transaction() as connection:
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
        if self._db.read_only:
            raise StorageError(f"{self._db.location}: it was opened read-only")
        with self._db.lock, converted_errors(self._db.location):
            self._db.check_open()
            # Neither database vacuums inside a transaction.
            with connect_reader(self._db.engine) as connection:
                if connection.dialect.name == "sqlite":
                    _vacuum_file(connection)
                else:
                    _vacuum_server(connection, self._db.location)


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
        with long_statements(connection):
            connection.exec_driver_sql(_VACUUM_TABLES)
    finally:
        driver.remove_notice_handler(note)
    if warnings:
        raise StorageError(f"{where}: the server skips tables; ask its owner ({warnings[0]})")

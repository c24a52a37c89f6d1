"""Pruning: space used by a database, removal of rows, and release of space.

Rows shared by many records stay: workloads, targets, sketches, tails, sessions, sources,
descriptions of arguments, contexts and counter sets. There are few, and other processes cache their
ids (:class:`tunedb.storage.rows.IdCache`). Retractions stay, because their set only grows and the
retracted rows may come again; so does the progress of exchanges.
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
from .database import ALL_TABLES, Database
from .deadlines import long_statements
from .engine import Prepared, connect_reader, converted_errors
from .retractions import is_retracted
from .superseded import superseded_ids

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_m, _p, _x = schema.measurement.c, schema.program.c, schema.failure.c
_f, _d, _k = schema.feature.c, schema.prediction.c, schema.model.c
_l, _foreign = schema.launch.c, schema.foreign_feature.c
_mark = schema.watermark.c

#: Rows per statement.
_PAGE = 20_000

#: Rows from whose length that of a table is estimated, if the database does not tell.
_SAMPLE = 1_000

#: Bytes of a row besides texts and blobs: numbers, lengths, entries in pages and indexes.
_ROW_BYTES = 60

#: Time for which a vacuum waits for writers: a process that writes now will write again.
_VACUUM_TIMEOUT = "PRAGMA busy_timeout=5000"

_ONE: Any = literal_column("1")

#: SQLite's table of pages, present if it was built in.
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
class RemovedRows:
    """Numbers of removed rows of each kind."""

    records: int = 0
    failures: int = 0
    programs: int = 0
    features: int = 0
    predictions: int = 0
    models: int = 0
    launches: int = 0

    def __add__(self, other: RemovedRows) -> RemovedRows:
        return RemovedRows(*(getattr(self, n) + getattr(other, n) for n in self.__slots__))


def is_pinned() -> Any:
    """Return the condition for measurements that are never removed.

    These are the last measurement and those of the last program, failure and launch: SQLite would
    give their ids again, and other processes may have cached them or stored them as watermarks.
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
    """Return a scalar subquery, or 0, which no row has as id."""
    return func.coalesce(number.scalar_subquery(), literal_column("0"))


class Pruning:
    """``store.pruning``, for the package that removes records and releases space."""

    def __init__(self, db: Database) -> None:
        self._db = db

    # ------------------------------------------------------------------ ids of rows

    def measurement_numbers(self) -> NDArray[np.int64]:
        """Return id, source id and program id of all measurements: shape (n, 3), sorted by id."""
        return self._numbers(schema.measurement, _m.source_id, _m.program_id)

    def failure_numbers(self) -> NDArray[np.int64]:
        """Return ids and measurement ids of all failures: shape (n, 2)."""
        return self._numbers(schema.failure, schema.failure.c.measurement_id)

    def launch_numbers(self) -> NDArray[np.int64]:
        """Return ids and measurement ids of all launches: shape (n, 2)."""
        return self._numbers(schema.launch, schema.launch.c.measurement_id)

    def feature_numbers(self) -> NDArray[np.int64]:
        """Return program id, feature set id and bytes of all features: shape (n, 3)."""
        return self._numbers(schema.feature, func.length(_f.data))

    def prediction_numbers(self) -> NDArray[np.int64]:
        """Return model ids and program ids of all predictions: shape (n, 2)."""
        return self._numbers(schema.prediction)

    def measurement_ranks(self) -> NDArray[np.float64]:
        """Return the ranking columns of all measurements: shape (n, 6), in order of ids.

        Columns are id, workload id, target id, status, served, and the mean in seconds (NaN without
        times).
        """
        columns = (_m.workload_id, _m.target_id, _m.status, _m.served, _m.mean)
        return self._values(schema.measurement, columns, float)

    def retracted_ids(self) -> NDArray[np.int64]:
        """Return the ids of retracted measurements, in order."""
        import numpy as np

        rows = self._db.select(select(_m.id).where(is_retracted(_m, many=True)).order_by(_m.id))
        return np.array([row.id for row in rows], np.int64)

    def superseded_ids(self) -> NDArray[np.int64]:
        """Return the ids of superseded measurements (:mod:`.superseded`)."""
        import numpy as np

        ids = {row.id for row in self._db.select(superseded_ids())}
        return np.fromiter(ids, np.int64)

    def pinned_ids(self) -> list[int]:
        """Return the ids of measurements that are never removed (:func:`is_pinned`)."""
        return [row.id for row in self._db.select(select(_m.id).where(is_pinned()).order_by(_m.id))]

    def feature_set_ids(self) -> dict[int, tuple[str, int]]:
        """Return the name and version of each feature set, by its id."""
        return {
            row.id: (row.name, row.version) for row in self._db.select(select(schema.feature_set))
        }

    def exchanges(self) -> list[Exchanged]:
        """Return the databases with which records were exchanged, the latest first."""
        rows = self._db.select(
            select(_mark.direction, _mark.peer, func.max(_mark.exchanged_at).label("at"))
            .group_by(_mark.direction, _mark.peer)
            .order_by(func.max(_mark.exchanged_at).desc(), _mark.direction, _mark.peer)
        )
        return [Exchanged(row.direction, row.peer, row.at) for row in rows]

    def _numbers(self, table_: Table, *columns: Any) -> NDArray[np.int64]:
        """Return the key and some columns of all rows of a table, in order of the key."""
        return self._values(table_, columns, int)

    def _values(self, table_: Table, columns: tuple[Any, ...], kind: type) -> NDArray[Any]:
        import numpy as np

        pages: list[NDArray[Any]] = [
            np.array(page, kind) for page in self._key_pages(table_, columns)
        ]
        width = len(table_.primary_key.columns) + len(columns)
        return np.concatenate(pages) if pages else np.empty((0, width), kind)

    def _key_pages(
        self, table_: Table, columns: tuple[Any, ...]
    ) -> Iterator[list[tuple[int, ...]]]:
        key = list(table_.primary_key.columns)
        statement = select(*key, *columns).order_by(*key).limit(_PAGE)
        rows = self._db.select(statement)
        while rows:
            yield [tuple(row) for row in rows]
            last = tuple_(*map(literal, rows[-1][: len(key)]))
            rows = self._db.select(statement.where(tuple_(*key) > last))

    # ------------------------------------------------------------------ bytes

    @property
    def is_file(self) -> bool:
        """True for SQLite, False for a server."""
        return self._db.is_file

    def file_space(self) -> FileSpace:
        """Return the pages of a SQLite file, and the number of free ones."""
        with self._db.lock, converted_errors(self._db.location):
            connection = self._db.reader()
            return FileSpace(
                connection.exec_driver_sql("PRAGMA page_size").scalar_one(),
                connection.exec_driver_sql("PRAGMA page_count").scalar_one(),
                connection.exec_driver_sql("PRAGMA freelist_count").scalar_one(),
            )

    def table_spaces(self) -> list[TableSpace]:
        """Return PostgreSQL's statistics of the tables, which lag a little behind."""
        spaces = []
        for name in sorted(schema.metadata.tables):
            relation = func.to_regclass(name)
            rows = self._db.select(
                select(
                    _statistics.c.n_live_tup,
                    _statistics.c.n_dead_tup,
                    func.pg_total_relation_size(relation).label("size"),
                ).where(_statistics.c.relid == relation)
            )
            spaces += [TableSpace(name, row.n_live_tup, row.n_dead_tup, row.size) for row in rows]
        return spaces

    def table_bytes(self) -> dict[str, int]:
        """Return the bytes of each table with its indexes; an estimate if they are unknown."""
        if not self._db.is_file:
            return {space.name: space.bytes for space in self.table_spaces()}
        if self._db.select(select(func.sqlite_compileoption_used("ENABLE_DBSTAT_VTAB")))[0][0]:
            rows = self._db.select(
                select(_objects.c.tbl_name, func.sum(_pages.c.pgsize).label("size"))
                .select_from(_pages.join(_objects, _objects.c.name == _pages.c.name))
                .where(_pages.c.aggregate == _ONE)
                .group_by(_objects.c.tbl_name)
            )
            return {row.tbl_name: int(row.size) for row in rows}
        return {t.name: self._estimated_bytes(t) for t in schema.metadata.sorted_tables}

    def _estimated_bytes(self, table_: Table) -> int:
        """Return the approximate bytes of a table, from the lengths of its first rows."""
        kinds = (schema.Blob, schema.Text)
        lengths = [func.coalesce(func.length(c), 0) for c in table_.c if c.type in kinds]
        number = int(self._db.select(select(func.count()).select_from(table_))[0][0])
        if not lengths or not number:
            return number * _ROW_BYTES
        sample = select(sum(lengths[1:], start=lengths[0]).label("size")).limit(_SAMPLE).subquery()
        mean = self._db.select(select(func.avg(sample.c.size)))[0][0]
        return round(number * (_ROW_BYTES + float(mean or 0)))

    # ------------------------------------------------------------------ removal

    def remove_records(self, ids: Sequence[int], *, if_retracted: bool = False) -> RemovedRows:
        """Remove measurements with their failures and launches, in one transaction.

        A program without a measurement left is removed too, with its features and predictions.
        Pinned records (:func:`is_pinned`) and missing ids are skipped.

        Parameters
        ----------
        ids : sequence of int
            Record ids; at most :data:`tunedb.limits.BATCH_ROWS`, so that other writers get their
            turn.
        if_retracted : bool
            Skip records that are not, or no longer, retracted.
        """
        removable = select(_m.id, _m.program_id).where(_m.id.in_(ids), ~is_pinned())
        if if_retracted:
            removable = removable.where(is_retracted(_m))
        with self._db.transaction() as connection:
            rows = connection.execute(removable).all()
            measurements = [{"measurement": row.id} for row in rows]
            failures = _failures_of.many(connection, measurements)
            launches = _launches_of.many(connection, measurements)
            records = _measurement.many(connection, measurements)
            unmeasured = _unmeasured(connection, sorted({row.program_id for row in rows}))
            _foreign_features_of.many(connection, unmeasured)
            features = _features_of.many(connection, unmeasured)
            predictions = _predictions_of.many(connection, unmeasured)
            programs = _program.many(connection, unmeasured)
            if records:
                _note_pruned(connection)
        return RemovedRows(records, failures, programs, features, predictions, launches=launches)

    def remove_features(self, feature_set_id: int, program_ids: Sequence[int]) -> RemovedRows:
        """Remove programs' rows of a feature set, in one transaction.

        Parameters
        ----------
        feature_set_id : int
            Id of the feature set.
        program_ids : sequence of int
            Program ids; at most :data:`tunedb.limits.BATCH_ROWS`.
        """
        rows = [{"program": id_, "feature_set": feature_set_id} for id_ in program_ids]
        with self._db.transaction() as connection:
            _foreign_feature.many(connection, rows)
            return RemovedRows(features=_feature.many(connection, rows))

    def remove_model(self, id_: int) -> RemovedRows:
        """Remove a model and its predictions, in transactions of bounded size."""
        removed = RemovedRows()
        while True:
            with self._db.transaction() as connection:
                page = _predictions_by(connection, model=id_, most=limits.BATCH_ROWS).scalars()
                rows = [{"model": id_, "program": program} for program in page]
                removed += RemovedRows(predictions=_prediction.many(connection, rows))
                if len(rows) < limits.BATCH_ROWS:
                    return removed + RemovedRows(models=_model(connection, model=id_).rowcount)

    def vacuum(self) -> None:
        """Release space: SQLite rewrites the file, PostgreSQL marks it as free.

        Raises
        ------
        BusyError
            Another process is writing.
        StorageError
            The disk has no room for a copy, or the database is read-only or belongs to another
            account.
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
    """Store the last id up to which records may be missing, for watermarks of other databases."""
    last = connection.execute(select(func.max(_m.id))).scalar()
    connection.execute(delete(schema.meta).where(schema.meta.c.key == schema.PRUNED))
    connection.execute(insert(schema.meta).values(key=schema.PRUNED, value=str(last or 0)))


def _unmeasured(connection: Connection, program_ids: Sequence[int]) -> list[dict[str, int]]:
    """Return those programs that have no measurement."""
    is_measured = exists(select(literal_column("1")).where(_m.program_id == _p.id))
    unmeasured = select(_p.id).where(_p.id.in_(program_ids), ~is_measured)
    return [{"program": id_} for id_ in connection.execute(unmeasured).scalars()]


def _vacuum_file(connection: Connection) -> None:
    """Rewrite a file of SQLite."""
    # Our connections keep temporary tables in memory; the copy must not be there.
    for pragma in ("PRAGMA temp_store=FILE", _VACUUM_TIMEOUT):
        connection.exec_driver_sql(pragma).close()
    connection.exec_driver_sql("VACUUM")
    # The new content is in the log until then.
    connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").close()


def _vacuum_server(connection: Connection, where: str) -> None:
    """Vacuum our tables; PostgreSQL skips tables of others with a warning."""
    warnings: list[str] = []

    def note(diagnostic: Any) -> None:
        if diagnostic.severity_nonlocalized == "WARNING":
            warnings.append(str(diagnostic.message_primary))

    driver: Any = connection.connection.driver_connection
    driver.add_notice_handler(note)
    try:
        with long_statements(connection):
            connection.exec_driver_sql(f"VACUUM (ANALYZE) {ALL_TABLES}")
    finally:
        driver.remove_notice_handler(note)
    if warnings:
        raise StorageError(f"{where}: the server skips tables; ask its owner ({warnings[0]})")

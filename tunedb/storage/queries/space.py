"""What a database takes, table by table, and the numbers by which rows are removed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sqlalchemy import Table, column, func, literal, literal_column, select, table, tuple_

from ...results import Exchanged, FileSpace, TableSpace
from .. import schema
from ..deletion import lasting
from ..engine import converted_errors
from ..retractions import is_retracted
from .reader import Reader

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_m, _f, _s, _k = (
    schema.measurement.c,
    schema.feature.c,
    schema.feature_set.c,
    schema.watermark.c,
)

#: Rows that are read at a time.
_PAGE = 20_000

#: Rows that say how long the others are, where the database does not.
_SAMPLE = 1_000

#: Bytes of a row besides its texts: numbers, lengths, its place in a page and in the indexes.
_ROW_BYTES = 60

_ONE: Any = literal_column("1")

#: SQLite's table of pages, where it was built with it.
_pages = table("dbstat", column("name"), column("pgsize"), column("aggregate"))
_objects = table("sqlite_schema", column("name"), column("tbl_name")).alias("object")
_statistics = table(
    "pg_stat_user_tables", column("relid"), column("n_live_tup"), column("n_dead_tup")
)


class Space(Reader):
    """Reads for :mod:`tunedb.pruning` and :mod:`tunedb.vacuuming`."""

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

        rows = self._select(select(_m.id).where(is_retracted(_m, many=True)).order_by(_m.id))
        return np.array([row.id for row in rows], np.int64)

    def lasting_ids(self) -> list[int]:
        """Return the ids of measurements that stay (:func:`tunedb.storage.deletion.lasting`)."""
        return [row.id for row in self._select(select(_m.id).where(lasting()).order_by(_m.id))]

    def feature_set_ids(self) -> dict[int, tuple[str, int]]:
        """Return the name and version of each feature set that has a place here."""
        return {row.id: (row.name, row.version) for row in self._select(select(schema.feature_set))}

    def exchanges(self) -> list[Exchanged]:
        """Return with which databases records were exchanged, the latest first."""
        rows = self._select(
            select(_k.direction, _k.peer, func.max(_k.exchanged_at).label("at"))
            .group_by(_k.direction, _k.peer)
            .order_by(func.max(_k.exchanged_at).desc(), _k.direction, _k.peer)
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
        rows = self._select(statement)
        while rows:
            yield [tuple(row) for row in rows]
            last = tuple_(*map(literal, rows[-1][: len(key)]))
            rows = self._select(statement.where(tuple_(*key) > last))

    # ------------------------------------------------------------------ bytes

    @property
    def is_file(self) -> bool:
        """Whether this is SQLite, whose space is that of a file."""
        with self._lock, converted_errors(self._location):
            return self._connected().dialect.name == "sqlite"

    def file_space(self) -> FileSpace:
        """Return the pages of a SQLite file, and how many of them are free."""
        with self._lock, converted_errors(self._location):
            connection = self._connected()
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
            rows = self._select(
                counted.add_columns(func.pg_total_relation_size(place).label("size")).where(
                    _statistics.c.relid == place
                )
            )
            found += [TableSpace(name, row.n_live_tup, row.n_dead_tup, row.size) for row in rows]
        return found

    def table_bytes(self) -> dict[str, int]:
        """Return what each table takes with its indexes; an estimate where nobody knows."""
        if not self.is_file:
            return {one.name: one.bytes for one in self.table_spaces()}
        if self._select(select(func.sqlite_compileoption_used("ENABLE_DBSTAT_VTAB")))[0][0]:
            rows = self._select(
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
        number = int(self._select(select(func.count()).select_from(one))[0][0])
        if not lengths or not number:
            return number * _ROW_BYTES
        sample = select(sum(lengths[1:], start=lengths[0]).label("size")).limit(_SAMPLE).subquery()
        mean = self._select(select(func.avg(sample.c.size)))[0][0]
        return round(number * (_ROW_BYTES + float(mean or 0)))

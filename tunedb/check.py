"""Whether a database is whole: what SQLite says, every digest, and every derived column.

Reads rows as they lie in the tables, because :mod:`tunedb.query` derives what is checked here.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Select, Table, bindparam, case, func, literal, select, tuple_

from . import identity, schema, versions
from .compression import decompress
from .engine import connect_reader, converted_errors, make_engine, parse_url, show_url
from .errors import TuneDBError
from .query import Query
from .records import (
    Failure,
    FailureKind,
    Phase,
    Session,
    Status,
    Target,
    Trust,
    Workload,
)
from .results import Record
from .store import Store
from .times import mean_of
from .values import parse_json

#: Problems that are kept with their words; the others are counted.
MOST_PROBLEMS = 100

_PAGE = 1000

#: What a damaged row may raise while it is turned into a record.
_DAMAGE = (TuneDBError, ValueError, TypeError, KeyError, IndexError, struct.error)


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong.

    Parameters
    ----------
    check : str
        Which check found it: ``integrity``, ``foreign keys``, ``schema``, ``digest``, ``derived``
        or ``readable``.
    table : str or None
        The table.
    id : int or None
        The row.
    message : str
        What is wrong.
    """

    check: str
    table: str | None
    id: int | None
    message: str


@dataclass
class CheckReport:
    """What a check looked at and found."""

    location: str
    rows: int = 0
    measurements: int = 0
    found: int = 0
    problems: list[Problem] = field(default_factory=list)

    def add(self, check: str, table: str | None, id_: int | None, message: str) -> None:
        """Count a problem, and keep it while there is room."""
        self.found += 1
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(Problem(check, table, id_, message))


def check(
    url: str | Path, *, sample: int | None = None, on_row: Callable[[int, int], None] | None = None
) -> CheckReport:
    """Check a database; nothing is written.

    Parameters
    ----------
    url : str or Path
        See :func:`tunedb.open`; it must exist and have this version's schema.
    sample : int or None
        Measurements whose digest and derived columns are computed anew, drawn at random; all
        where None.
    on_row : callable or None
        Called with the number of rows that were looked at and the number to look at.

    Returns
    -------
    CheckReport

    Raises
    ------
    NotFoundError, SchemaError, StorageError
        It cannot be opened.
    """
    parsed = parse_url(url)
    where = show_url(parsed)
    report = CheckReport(where)
    versions.check_file(parsed, create=False)
    engine = make_engine(parsed, read_only=True)
    try:
        versions.prepare(engine, parsed, create=False)
        with converted_errors(where), connect_reader(engine) as connection:
            if engine.dialect.name == "sqlite":
                _check_sqlite(connection, report)
            with Store(url, create=False, read_only=True) as store:
                _check_rows(connection, store.query, report, sample, on_row)
    finally:
        engine.dispose()
    return report


# ---------------------------------------------------------------------- what SQLite says


def _check_sqlite(connection: Connection, report: CheckReport) -> None:
    """Run SQLite's own checks and compare the schema with a new database's."""
    for (message,) in connection.exec_driver_sql(f"PRAGMA integrity_check({MOST_PROBLEMS})"):
        if message != "ok":
            report.add("integrity", None, None, str(message))
    for table, rowid, parent, _ in connection.exec_driver_sql("PRAGMA foreign_key_check"):
        report.add("foreign keys", table, rowid, f"it refers to a row of {parent} that is missing")
    application = connection.exec_driver_sql("PRAGMA application_id").scalar()
    if application != schema.APPLICATION_ID:
        report.add("schema", None, None, f"its application id is {application}")
    have, wanted = _objects(connection), _objects_of_new()
    for name in sorted(wanted.keys() - have.keys()):
        report.add("schema", name, None, "it is missing")
    for name in sorted(have.keys() - wanted.keys()):
        report.add("schema", name, None, "it is not part of tunedb's schema")
    for name in sorted(have.keys() & wanted.keys()):
        if have[name] != wanted[name]:
            report.add("schema", name, None, "its definition is another one")


def _objects(connection: Connection) -> dict[str, str]:
    """Return the tables, indexes, views and triggers with their definitions."""
    rows = connection.exec_driver_sql(
        "SELECT type, name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite%'"
    )
    return {row.name: f"{row.type} {' '.join((row.sql or '').split())}" for row in rows}


def _objects_of_new() -> dict[str, str]:
    """Return the objects of a database as this version makes it."""
    engine = make_engine(parse_url(":memory:"))
    try:
        with engine.begin() as connection:
            versions.create_schema(connection)
            return _objects(connection)
    finally:
        engine.dispose()


# ---------------------------------------------------------------------- rows


def _check_rows(
    connection: Connection,
    query: Query,
    report: CheckReport,
    sample: int | None,
    on_row: Callable[[int, int], None] | None,
) -> None:
    """Compute digests and derived columns anew."""
    ids = _sampled(connection, sample)
    sizes = [
        int(connection.execute(select(func.count()).select_from(table)).scalar_one())
        for table in _CONTENT
    ]
    total = sum(sizes) + (query.size() if ids is None else len(ids)) + _n_features(connection, ids)

    def step() -> None:
        report.rows += 1
        if on_row is not None:
            on_row(report.rows, total)

    for table, digest_of in _CONTENT.items():
        for row in _pages(connection, _statement(table), table.c.id):
            _check_content(table, row, digest_of, report)
            step()
    for row in _measurements(connection, ids):
        _check_measurement(row, query, report)
        report.measurements += 1
        step()
    for row in _features(connection, ids):
        _check_features(row, report)
        step()


def _sampled(connection: Connection, sample: int | None) -> list[int] | None:
    """Return the ids of the measurements to look at; None for all."""
    if sample is None:
        return None
    ids = list(connection.execute(select(schema.measurement.c.id)).scalars())
    # Not for secrets: any sample will do, and the next run should draw another.
    return sorted(random.sample(ids, min(sample, len(ids))))


def _pages(connection: Connection, statement: Select[Any], key: Any) -> Iterator[Any]:
    """Yield the rows of a statement in order of `key`, a page at a time."""
    after = 0
    while True:
        rows = connection.execute(statement.where(key > after).order_by(key).limit(_PAGE)).all()
        yield from rows
        if len(rows) < _PAGE:
            return
        after = rows[-1].id


def _workload_digest(row: Any) -> bytes:
    if row.script is not None:
        decompress(row.script).decode()
    return Workload(row.format, decompress(row.body)).digest


def _failure_digest(row: Any) -> bytes:
    failure = Failure(FailureKind(row.kind), Phase(row.phase), row.message, row.seconds)
    return failure.digest(bytes(row.measurement))


def _quarantine_digest(row: Any) -> bytes:
    line = identity.pack_int(row.line)
    return identity.digest("quarantine", row.file.encode(), line, bytes(row.data))


#: Tables whose digest follows from their own columns (for failures, from the measurement's too).
_CONTENT: dict[Table, Callable[[Any], bytes]] = {
    schema.workload: _workload_digest,
    schema.target: lambda row: Target(row.kind, row.config.encode()).digest,
    schema.sketch: lambda row: identity.digest("sketch", decompress(row.body)),
    schema.tail: lambda row: identity.digest("tail", decompress(row.body)),
    schema.args_info: lambda row: identity.digest("args_info", row.body.encode()),
    schema.context: lambda row: identity.digest("context", row.body.encode()),
    schema.session: lambda row: Session(row.key, row.started_at, row.fingerprint.encode()).digest,
    schema.source: lambda row: identity.digest("source", row.store.encode(), row.name.encode()),
    schema.failure: _failure_digest,
    schema.quarantine: _quarantine_digest,
}


def _statement(table: Table) -> Select[Any]:
    if table is not schema.failure:
        return select(table)
    measurement = schema.measurement.c
    return select(table, measurement.digest.label("measurement")).join_from(
        table, schema.measurement, measurement.id == table.c.measurement_id
    )


def _check_content(
    table: Table, row: Any, digest_of: Callable[[Any], bytes], report: CheckReport
) -> None:
    """Check one row of a table whose digest follows from its own columns."""
    try:
        digest = digest_of(row)
        if table is schema.target:
            name = identity.clean_text(Target(row.kind, row.config.encode()).architecture)
            if row.architecture != name:
                report.add("derived", table.name, row.id, f"architecture should be {name!r}")
    except _DAMAGE as error:
        report.add("readable", table.name, row.id, _words(error))
        return
    if digest != bytes(row.digest):
        report.add("digest", table.name, row.id, "its digest does not fit what it holds")


def _measurements(connection: Connection, ids: Sequence[int] | None) -> Iterator[Any]:
    """Yield the columns of measurements that another value determines."""
    m, p, r = schema.measurement.c, schema.program.c, schema.retraction.c
    retracted = select(r.reason).where(r.subject == "measurement", r.digest == m.digest).exists()
    statement = (
        select(
            *(m.id, m.digest, m.workload_id, m.target_id, m.mean, m.served),
            *(p.id.label("program_id"), p.digest.label("program_digest")),
            *(p.workload_id.label("program_workload"), p.target_id.label("program_target")),
            schema.source.c.trust,
            case((retracted, 1), else_=0).label("retracted"),
        )
        .join_from(schema.measurement, schema.program, p.id == m.program_id)
        .join(schema.source, schema.source.c.id == m.source_id)
    )
    if ids is None:
        yield from _pages(connection, statement, m.id)
        return
    for start in range(0, len(ids), _PAGE):
        page = ids[start : start + _PAGE]
        yield from connection.execute(statement.where(m.id.in_(page)).order_by(m.id)).all()


def _check_measurement(row: Any, query: Query, report: CheckReport) -> None:
    """Check one measurement and its program."""
    try:
        record = query.record(row.id)
    except _DAMAGE as error:
        report.add("readable", "measurement", row.id, _words(error))
        return
    measurement = record.measurement
    if measurement.program.digest != bytes(row.program_digest):
        report.add("digest", "program", row.program_id, "its digest does not fit what it holds")
    if measurement.digest != bytes(row.digest):
        report.add("digest", "measurement", row.id, "its digest does not fit what it holds")
    for name, value in _derived(record, row).items():
        if getattr(row, name) != value:
            report.add(
                "derived", "measurement", row.id, f"{name} is {getattr(row, name)}, not {value}"
            )


def _derived(record: Record, row: Any) -> dict[str, Any]:
    """Return what the derived columns of a measurement must hold."""
    measurement = record.measurement
    times = measurement.run_secs
    served = measurement.is_valid and row.trust >= Trust.VERIFIED and not row.retracted
    return {
        "workload_id": row.program_workload,
        "target_id": row.program_target,
        "mean": mean_of(times) if times else None,
        "served": int(served and measurement.status is Status.OK),
    }


# ---------------------------------------------------------------------- features


def _of_sample(statement: Select[Any], ids: Sequence[int] | None) -> Select[Any]:
    """Return a query of features that asks only for the programs of some measurements."""
    if ids is None:
        return statement
    measured = select(schema.measurement.c.program_id).where(
        schema.measurement.c.id.in_(bindparam(None, ids, expanding=True, literal_execute=True))
    )
    return statement.where(schema.feature.c.program_id.in_(measured))


def _n_features(connection: Connection, ids: Sequence[int] | None) -> int:
    """Return the number of rows of features to look at."""
    counted = select(func.count()).select_from(schema.feature)
    return int(connection.execute(_of_sample(counted, ids)).scalar_one())


def _features(connection: Connection, ids: Sequence[int] | None) -> Iterator[Any]:
    """Yield rows of features with the columns of their set, a page at a time."""
    f, s = schema.feature.c, schema.feature_set.c
    statement = (
        select(f.program_id, f.feature_set_id, f.n_rows, f.n_columns, f.data)
        .add_columns(s.name, s.version, s.columns)
        .join_from(schema.feature, schema.feature_set, s.id == f.feature_set_id)
        .order_by(f.program_id, f.feature_set_id)
        .limit(_PAGE)
    )
    statement = _of_sample(statement, ids)
    after = (0, 0)
    while True:
        key = tuple_(f.program_id, f.feature_set_id)
        rows = connection.execute(statement.where(key > tuple_(*map(literal, after)))).all()
        yield from rows
        if len(rows) < _PAGE:
            return
        after = rows[-1].program_id, rows[-1].feature_set_id


def _check_features(row: Any, report: CheckReport) -> None:
    """Check that a program's rows are as many numbers as they say, under as many names."""
    from .features import blobs

    label = f"{row.name} version {row.version}"
    try:
        columns = parse_json(row.columns.encode())
        blobs.unpack(row.n_rows, row.n_columns, bytes(row.data))
    except _DAMAGE as error:
        report.add("readable", "feature", row.program_id, f"{label}: {_words(error)}")
        return
    if columns and len(columns) != row.n_columns:
        words = f"{label}: {row.n_columns} columns, not {len(columns)}"
        report.add("derived", "feature", row.program_id, words)


def _words(error: Exception) -> str:
    return f"it cannot be read ({type(error).__name__}: {error})"

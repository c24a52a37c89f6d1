"""Check of a database: SQLite's own checks, every digest, and every derived column.

Reads the tables directly, because a store would derive the columns that are checked here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Select, Table, case, func, select

from .. import identity
from ..records import Failure, FailureKind, Phase, Session, Status, Target, Trust, Workload
from ..results import Record
from ..run_times import mean_of
from ..storage import guards, schema, versions
from ..storage.engine import connect_reader, converted_errors, make_engine, parse_url, show_url
from ..storage.retractions import is_retracted
from ..storage.store import Store
from ..system.compression import decompress
from .check_derived import (
    DAMAGE,
    DETERMINED,
    PAGE,
    check_features,
    counter_set_digest,
    feature_rows,
    launch_digest,
    launches_to_check,
    model_digest,
    n_features,
    unreadable,
)
from .check_plain import PLAIN, check_tables, rows_of

#: Problems that a report lists; it only counts the others.
MOST_PROBLEMS = 100

#: Characters of a value that a problem shows.
_MOST_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem in a database.

    Parameters
    ----------
    check : str
        The failed check: ``integrity``, ``foreign keys``, ``schema``, ``digest``, ``derived`` or
        ``readable``.
    table : str or None
        Name of the table.
    id : int or None
        Id of the row.
    message : str
        Description of the problem.
    """

    check: str
    table: str | None
    id: int | None
    message: str


@dataclass
class CheckReport:
    """Counts of checked rows and of problems, and the first problems."""

    location: str
    rows: int = 0
    measurements: int = 0
    found: int = 0
    problems: list[Problem] = field(default_factory=list)

    def add(self, check: str, table: str | None, id_: int | None, message: str) -> None:
        """Count a problem, and list it up to the limit."""
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
        As for :func:`tunedb.open`; the database must exist and have this version's schema.
    sample : int or None
        Number of random measurements whose digests and derived columns are checked; None for all.
    on_row : callable or None
        Called with the number of checked rows and the number of rows to check.

    Returns
    -------
    CheckReport

    Raises
    ------
    NotFoundError, SchemaError, StorageError
        The database cannot be opened.
    """
    parsed = parse_url(url)
    where = show_url(parsed)
    report = CheckReport(where)
    versions.check_file(parsed, create=False)
    engine = make_engine(parsed, read_only=True)
    try:
        with converted_errors(where), connect_reader(engine) as connection:
            versions.prepare(connection, where, create=False)
            if engine.dialect.name == "sqlite":
                _check_sqlite(connection, report)
            for missing in guards.inspect(connection).missing:
                report.add("schema", None, None, f"{missing} is missing or off")
            with Store(url, create=False, read_only=True) as store:
                _check_rows(connection, store, report, sample, on_row)
    finally:
        engine.dispose()
    return report


def quick_check(url: str | Path) -> list[str]:
    """Return the problems of a database that show without reading each row.

    Runs SQLite's ``quick_check``, which reads the file once, or looks for the guards of a server.

    Raises
    ------
    NotFoundError, SchemaError, StorageError
        The database cannot be opened.
    """
    parsed = parse_url(url)
    where = show_url(parsed)
    versions.check_file(parsed, create=False)
    engine = make_engine(parsed, read_only=True)
    try:
        with converted_errors(where), connect_reader(engine) as connection:
            if engine.dialect.name != "sqlite":
                missing = guards.inspect(connection).missing
                return [f"{guard} is missing or off" for guard in missing]
            rows = connection.exec_driver_sql(f"PRAGMA quick_check({MOST_PROBLEMS})")
            lines = [line for (message,) in rows for line in str(message).splitlines()]
            return [line for line in lines if line != "ok" and not line.startswith("***")]
    finally:
        engine.dispose()


# ---------------------------------------------------------------------- SQLite's own checks


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
            report.add("schema", name, None, "its definition differs")


def _objects(connection: Connection) -> dict[str, str]:
    """Return the tables, indexes, views and triggers with their definitions."""
    rows = connection.exec_driver_sql(
        "SELECT type, name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite%'"
    )
    return {row.name: f"{row.type} {' '.join((row.sql or '').split())}" for row in rows}


def _objects_of_new() -> dict[str, str]:
    """Return the objects of a new database of this version."""
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
    store: Store,
    report: CheckReport,
    sample: int | None,
    on_row: Callable[[int, int], None] | None,
) -> None:
    """Recompute digests and derived columns."""
    ids = _sampled(connection, sample)
    sizes = [_n_rows(connection, table) for table in _CONTENT]
    total = (
        sum(sizes)
        + (store.records.count() if ids is None else len(ids))
        + n_features(connection, ids)
    )
    total += sum(_n_rows(connection, table) for table in PLAIN)

    def step() -> None:
        report.rows += 1
        if on_row is not None:
            on_row(report.rows, total)

    for table, digest_of in _CONTENT.items():
        for row in _pages(connection, _statement(table), table.c.id):
            _check_content(table, row, digest_of, store, report)
            step()
    for row in _measurements(connection, ids):
        _check_measurement(row, store, report)
        report.measurements += 1
        step()
    for row in feature_rows(connection, ids):
        check_features(row, report)
        step()
    for table, problem_of in PLAIN.items():
        for row in rows_of(connection, table):
            if (words := problem_of(row, store)) is not None:
                number = row[0] if isinstance(row[0], int) else None
                report.add("readable", table.name, number, words)
            step()
    check_tables(connection, store, report)


def _n_rows(connection: Connection, table: Table) -> int:
    return int(connection.execute(select(func.count()).select_from(table)).scalar_one())


def _sampled(connection: Connection, sample: int | None) -> list[int] | None:
    """Return the ids of the measurements to check; None for all."""
    if sample is None:
        return None
    ids = list(connection.execute(select(schema.measurement.c.id)).scalars())
    # Not for secrets: any sample will do, and the next run should draw another.
    return sorted(random.sample(ids, min(sample, len(ids))))


def _pages(connection: Connection, statement: Select[Any], key: Any) -> Iterator[Any]:
    """Yield the rows of a statement in order of `key`, a page at a time."""
    after = 0
    while True:
        rows = connection.execute(statement.where(key > after).order_by(key).limit(PAGE)).all()
        yield from rows
        if len(rows) < PAGE:
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


#: Tables whose digest follows from their own columns (for failures and launches, from the
#: measurement's too).
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
    schema.model: model_digest,
    schema.counter_set: counter_set_digest,
    schema.launch: launch_digest,
}


def _statement(table: Table) -> Select[Any]:
    if table is schema.launch:
        return launches_to_check()
    if table is not schema.failure:
        return select(table)
    measurement = schema.measurement.c
    return select(table, measurement.digest.label("measurement")).join_from(
        table, schema.measurement, measurement.id == table.c.measurement_id
    )


def _check_content(
    table: Table,
    row: Any,
    digest_of: Callable[[Any], bytes],
    store: Store,
    report: CheckReport,
) -> None:
    """Check one row of a table whose digest follows from its own columns."""
    try:
        digest = digest_of(row)
        determined = DETERMINED[table](row, store) if table in DETERMINED else {}
    except DAMAGE as error:
        report.add("readable", table.name, row.id, unreadable(error))
        return
    if digest != bytes(row.digest):
        report.add("digest", table.name, row.id, "its digest does not match its contents")
    for name, value in determined.items():
        found = getattr(row, name, value)
        if found != value:
            report.add("derived", table.name, row.id, f"{name} should be {_shown(value)}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 1]}…"


def _measurements(connection: Connection, ids: Sequence[int] | None) -> Iterator[Any]:
    """Yield the derived columns of measurements, with the columns that determine them."""
    m, p = schema.measurement.c, schema.program.c
    statement = (
        select(
            *(m.id, m.digest, m.workload_id, m.target_id, m.mean, m.served),
            *(p.id.label("program_id"), p.digest.label("program_digest")),
            *(p.workload_id.label("program_workload"), p.target_id.label("program_target")),
            schema.source.c.trust,
            case((is_retracted(m, many=True), 1), else_=0).label("retracted"),
        )
        .join_from(schema.measurement, schema.program, p.id == m.program_id)
        .join(schema.source, schema.source.c.id == m.source_id)
    )
    if ids is None:
        yield from _pages(connection, statement, m.id)
        return
    for start in range(0, len(ids), PAGE):
        page = ids[start : start + PAGE]
        yield from connection.execute(statement.where(m.id.in_(page)).order_by(m.id)).all()


def _check_measurement(row: Any, store: Store, report: CheckReport) -> None:
    """Check one measurement and its program."""
    try:
        record = store.records.get(row.id)
    except DAMAGE as error:
        report.add("readable", "measurement", row.id, unreadable(error))
        return
    measurement = record.measurement
    if measurement.program.digest != bytes(row.program_digest):
        report.add("digest", "program", row.program_id, "its digest does not match its contents")
    if measurement.digest != bytes(row.digest):
        report.add("digest", "measurement", row.id, "its digest does not match its contents")
    for name, value in _derived(record, row).items():
        if getattr(row, name) != value:
            report.add(
                "derived", "measurement", row.id, f"{name} is {getattr(row, name)}, not {value}"
            )


def _derived(record: Record, row: Any) -> dict[str, Any]:
    """Return the derived columns of a measurement, recomputed."""
    measurement = record.measurement
    times = measurement.run_secs
    served = measurement.is_valid and row.trust >= Trust.VERIFIED and not row.retracted
    return {
        "workload_id": row.program_workload,
        "target_id": row.program_target,
        "mean": mean_of(times) if times else None,
        "served": int(served and measurement.status is Status.OK),
    }

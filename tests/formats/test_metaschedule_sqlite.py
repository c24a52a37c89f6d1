"""The SQLite layout of mshr-h, and SQLite files of other tools."""

import json
import sqlite3
from contextlib import closing

import pytest
import workdirs

from tunedb import limits
from tunedb.errors import FormatError
from tunedb.formats.base import LogFile
from tunedb.formats.metaschedule import record_fields
from tunedb.formats.metaschedule_sqlite import MetaScheduleSQLiteFormat
from tunedb.formats.reading import read_log
from tunedb.records import Measurement, Quarantined, Source, Status, Workload, WorkloadFormat
from tunedb.results import Record

FORMAT = MetaScheduleSQLiteFormat()

WORKLOAD = "CREATE TABLE workload(shash text, mod text)"
RECORD = (
    "CREATE TABLE tuning_record(workload_index int, trace text, run_secs text, target text,"
    " args_info text)"
)
TRACE = json.dumps(workdirs.old_trace())
TARGET = json.dumps(workdirs.CUDA)
ARGS = json.dumps(workdirs.ARGS)


def row_of(graph):
    return tuple(json.loads(workdirs.workload_line(graph)))


MODULE = row_of(workdirs.node_list())
GOOD = (0, TRACE, "[0.25, 0.5]", TARGET, ARGS)


def make(path, *, workloads=None, records=None, script=()):
    """Write a file with the tables for which rows are given, after some statements."""
    with closing(sqlite3.connect(path)) as connection:
        for statement in script:
            connection.execute(statement)
        if workloads is not None:
            connection.execute(WORKLOAD)
            connection.executemany("INSERT INTO workload VALUES (?, ?)", workloads)
        if records is not None:
            connection.execute(RECORD)
            connection.executemany("INSERT INTO tuning_record VALUES (?, ?, ?, ?, ?)", records)
        connection.commit()
    return path


def change(path, statement):
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


def read(path):
    return list(FORMAT.read_file(LogFile(path, str(path))))


@pytest.fixture
def write_tables(tmp_path):
    """A function that writes one file with both tables."""

    def write(records=(GOOD,), workloads=(MODULE,), **more):
        return make(tmp_path / "log.sqlite", workloads=workloads, records=records, **more)

    return write


def test_reader_reads_both_tables_of_one_file(write_tables, tmp_path):
    workload, found = read(write_tables())
    assert (workload.format, workload.name) == (WorkloadFormat.NODES, "matmul")
    assert found.program.workload == workload
    assert (found.run_secs, found.status) == ((0.25, 0.5), Status.OK)
    line = [0, [json.loads(TRACE), [0.25, 0.5], workdirs.CUDA, workdirs.ARGS]]
    assert record_fields(Record(1, 1, 1, found, Source("own"), None)) == line[1]
    # The reader of JSON returns the same.
    folder = workdirs.write(tmp_path / "json", [line], [workdirs.node_list()])
    path = folder / "database_tuning_record.json"
    assert [one.item for one in read_log(LogFile(path, str(path)))] == [workload, found]


def test_reader_takes_workloads_from_separate_file(tmp_path):
    rows = [row_of(workdirs.node_list(name)) for name in ("x", "y")]
    workloads = make(tmp_path / "database_workload.sqlite", workloads=rows)
    records = make(tmp_path / "database_tuning_record.sqlite", records=[(1, *GOOD[1:])])
    assert [item.name for item in read(workloads)] == ["x", "y"]
    *found, measurement = read(records)
    assert [item.name for item in found] == ["x", "y"]
    assert measurement.program.workload.name == "y"
    workloads.unlink()
    (alone,) = read(records)
    assert alone.program.workload.format == WorkloadFormat.ARGUMENTS


@pytest.mark.parametrize("null", ["None", "null", None])
def test_reader_accepts_all_spellings_of_null(write_tables, null):
    _, found = read(write_tables([(0, TRACE, null, null, null)]))
    assert (found.run_secs, found.status) == (None, Status.FAILED)
    assert found.program.target.kind == "none"
    assert found.args_info is None


def test_workload_index_counts_rows_and_ignores_rowids(write_tables):
    """Rows that were deleted leave gaps in ``rowid``, not in the numbers."""
    path = write_tables([(1, *GOOD[1:])], [row_of(workdirs.node_list(n)) for n in "xyz"])
    change(path, "DELETE FROM workload WHERE rowid = 2")
    assert read(path)[-1].program.workload.name == "z"


def test_reader_does_not_change_file_whose_path_has_special_characters(tmp_path):
    folder = tmp_path / "a b?c#d%20"
    folder.mkdir()
    path = make(folder / "é?mode=rw.sqlite", workloads=[row_of(workdirs.graph())])
    before = path.read_bytes()
    path.chmod(0o444)
    assert len(read(path)) == 1
    assert path.read_bytes() == before
    assert list(folder.iterdir()) == [path]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ((5, *GOOD[1:]), "its workload 5 is not in the workload file"),
        *(((index, *GOOD[1:]), "line number") for index in (-1, "zero", 0.5, None, b"\0")),
        ((0, None, *GOOD[2:]), "a trace must be"),
        ((0, "{", *GOOD[2:]), "not JSON"),
        ((0, TRACE.encode(), *GOOD[2:]), "not text"),
        ((0, TRACE, "[NaN]", *GOOD[3:]), "not JSON"),
        ((0, TRACE, "[1.0]", "llvm", ARGS), "not JSON"),
        ((0, TRACE, "[1.0]", TARGET, "[1]"), "args_info must be"),
    ],
)
def test_reader_quarantines_only_the_bad_row(write_tables, row, reason):
    path = write_tables([row, GOOD])
    _, bad, good = read(path)
    assert isinstance(good, Measurement)
    assert (bad.file, bad.line) == (str(path), 1)
    assert reason in bad.reason
    assert bad.data


def test_reader_quarantines_only_bad_workloads_and_their_records(write_tables):
    rows = [("0", "broken"), ("0", b"\xff"), (None, None), row_of(workdirs.node_list())]
    records = [(index, *GOOD[1:]) for index in range(4)]
    found = read(write_tables(records, rows))
    assert [type(item) for item in found[:4]] == [Quarantined] * 3 + [Workload]
    assert [type(item) for item in found[4:]] == [Quarantined] * 3 + [Measurement]
    assert "its workload (line 2) is quarantined" in found[5].reason


def test_reader_accepts_utf16_and_quarantines_row_that_is_not_utf8(write_tables, tmp_path):
    assert len(read(write_tables(script=["PRAGMA encoding='UTF-16le'"]))) == 2
    path = make(tmp_path / "other", workloads=[MODULE], records=[GOOD])
    change(path, "UPDATE tuning_record SET target = CAST(x'7bff7d' AS TEXT)")
    _, bad = read(path)
    assert "not UTF-8" in bad.reason


def test_reader_quarantines_row_over_the_size_limit(write_tables, monkeypatch):
    path = write_tables([(0, TRACE, "[1.0]", TARGET, json.dumps(["x" * 50_000])), GOOD])
    monkeypatch.setattr(limits, "MAX_LINE_BYTES", 20_000)
    monkeypatch.setattr(limits, "MAX_QUARANTINE_BYTES", 100)
    _, bad, good = read(path)
    assert "SQLite cannot read the row" in bad.reason
    assert len(bad.data) <= 100
    assert isinstance(good, Measurement)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE notes(text text)",
        "CREATE TABLE workload(id int, body blob)",
        "CREATE TABLE workload(shash text, mod text, more text)",
        "CREATE VIEW workload AS SELECT 'x' AS shash, 'y' AS mod",
        "CREATE TABLE workload(shash text PRIMARY KEY, mod text) WITHOUT ROWID",
        "CREATE TABLE workload(shash text, mod text AS (printf('%.*c', 1000000000, 'x')))",
        "CREATE VIRTUAL TABLE workload USING fts5(shash, mod)",
        "CREATE VIEW tuning_record AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1"
        " FROM n) SELECT i AS workload_index, 'x' AS trace, 'x' AS run_secs, 'x' AS target,"
        " 'x' AS args_info FROM n",
    ],
)
def test_reader_rejects_databases_without_metaschedule_tables(tmp_path, statement):
    path = make(tmp_path / "other.sqlite", script=[statement])
    with pytest.raises(FormatError, match="without MetaSchedule's tables") as caught:
        read(path)
    assert "\n" not in str(caught.value)


def test_reader_ignores_other_tables_views_and_triggers(write_tables):
    more = [
        "CREATE TABLE other(x)",
        "CREATE VIEW v AS SELECT load_extension('x') FROM other",
        "CREATE TRIGGER t INSTEAD OF INSERT ON v BEGIN SELECT 1; END",
    ]
    assert len(read(write_tables(script=more))) == 2


def test_reader_rejects_database_with_unfinished_changes(write_tables):
    """The reader would miss the changes in the file beside it."""
    path = write_tables()
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("PRAGMA journal_mode=WAL")
        writer.execute("INSERT INTO workload VALUES ('0', 'x')")
        writer.commit()
        with pytest.raises(FormatError, match=r"log\.sqlite-wal holds unfinished changes"):
            read(path)
    assert len(read(path)) == 3


def test_reader_rejects_standard_input_and_damaged_files(tmp_path):
    with pytest.raises(FormatError, match="give its path"):
        list(FORMAT.read_file(LogFile(None, "<stdin>")))
    path = tmp_path / "log.sqlite"
    path.write_bytes(b"SQLite format 3\0" + b"\xff" * 5_000)
    with pytest.raises(FormatError, match="SQLite cannot read it"):
        read(path)

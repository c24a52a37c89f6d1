"""An import that is killed at any moment and run again ends as one that was left alone."""

import gzip
from pathlib import Path

import pytest
import small_logs
from effort import long
from kills import lines_of

from tunedb.formats.base import LogFile
from tunedb.formats.find import find_logs
from tunedb.formats.importer import import_log
from tunedb.maintenance.check import check
from tunedb.storage import schema
from tunedb.storage.store import Store

WORKER = Path(__file__).with_name("import_worker.py")

#: Columns that say when a row came in, that number rows, or that say which database it is.
LOCAL = {"id", "created_at", "store"}


@pytest.fixture
def names():
    """The names of the logs that are imported."""
    return list(small_logs.LOGS)


@pytest.fixture
def folder(tmp_path, names):
    """Small logs below one folder, one of them compressed."""
    for name in names:
        files = small_logs.LOGS[name]
        small_logs.write(tmp_path / "logs" / name, files)
    packed = tmp_path / "logs" / "ansor v0.6" / "records.json"
    packed.with_name("records.json.gz").write_bytes(gzip.compress(packed.read_bytes()))
    packed.unlink()
    return tmp_path / "logs"


def contents(url):
    """Return all rows of all tables; for keys, what they point to."""
    with Store(url, read_only=True) as store:
        rows = {
            table.name: [dict(row._mapping) for row in store._db.select(table.select())]
            for table in schema.metadata.sorted_tables
            if table.name not in ("meta", "alembic_version")
        }
    # The digest of a source covers the database.
    names = {
        table: {row["id"]: row["name" if table == "source" else "digest"] for row in found}
        for table, found in rows.items()
        if found and "id" in found[0]
    }
    return {
        table: sorted(
            repr([(name, _named(table, name, value, names)) for name, value in row.items()])
            for row in found
        )
        for table, found in rows.items()
    }


def _named(table, column, value, names):
    if column in LOCAL or (table, column) == ("source", "digest"):
        return None
    for key in schema.metadata.tables[table].c[column].foreign_keys:
        return value and names[key.column.table.name][value]
    return value


def import_once(url, folder):
    with Store(url) as store:
        for file in find_logs([folder]):
            import_log(store, file, source=Path(file.name).parent.name)


@pytest.fixture
def alone(folder, tmp_path):
    """What one import of everything stores."""
    import_once(tmp_path / "alone.db", folder)
    return contents(tmp_path / "alone.db")


def test_comparison_of_databases_detects_a_missing_row(folder, alone, tmp_path):
    """The small logs have as many records and bad lines as they state."""
    assert contents(tmp_path / "alone.db") == alone
    # MetaSchedule's records come in twice: the new ones as a stream, the old ones in SQLite.
    assert len(alone["measurement"]) == small_logs.RECORDS * (len(small_logs.LOGS) - 2)
    assert len(alone["quarantine"]) == 3 * len(small_logs.LOGS)
    assert len(alone["source"]) == len(small_logs.LOGS)
    path = tmp_path / "logs" / "autotvm v0.1" / "tuned.log"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:5] + lines[6:]))
    import_once(tmp_path / "other.db", folder)
    other = contents(tmp_path / "other.db")
    assert other != alone
    assert len(other["measurement"]) == len(alone["measurement"]) - 1


#: Logs of each tool, of which one is compressed and one is a database.
SOME = ["autotvm v0.2", "ansor v0.6", "metaschedule sqlite"]


@pytest.mark.parametrize(
    ("names", "kills", "seed"),
    [(SOME, 1, 1), *(long(list(small_logs.LOGS), 10, seed) for seed in range(40))],
)
def test_killed_imports_store_the_same_as_one_import(store_url, folder, alone, kills, seed):
    sizes = lines_of(WORKER, store_url, folder, kills, seed, 1)
    assert sizes == sorted(sizes)
    assert contents(store_url) == alone
    assert check(store_url).problems == []


#: Logs that share no record: in a shared import either of two is its source.
APART = [
    name for name in small_logs.LOGS if name not in ("metaschedule stream", "metaschedule sqlite")
]


@pytest.mark.parametrize(
    ("names", "seed"), [(APART, 1), *(long(APART, seed) for seed in range(20))]
)
def test_killed_imports_of_several_processes_store_the_same(store_url, folder, alone, seed):
    lines_of(WORKER, store_url, folder, 3, seed, 3)
    assert contents(store_url) == alone
    assert check(store_url).problems == []


#: A SQLite file is written whole, not line by line.
LINES = [name for name in small_logs.LOGS if "sqlite" not in name]


@pytest.mark.parametrize("name", LINES)
def test_repeated_import_of_growing_log_stores_each_record_once(name, sqlite_file, tmp_path):
    """The log is cut off at several bytes, imported, and imported again when it has grown."""
    files = small_logs.LOGS[name]
    records = next(iter(files))
    whole = files[records]
    with Store(sqlite_file) as store:
        for part in (0.1, 0.35, 0.351, 0.36, 0.7, 0.999, 1):
            grown = {**files, records: whole[: int(part * len(whole))]}
            path = small_logs.write(tmp_path, grown)
            report = import_log(store, LogFile(path, "log"), source="mine")
        assert report.total.read == small_logs.RECORDS
        assert store.counts().measurements == small_logs.RECORDS

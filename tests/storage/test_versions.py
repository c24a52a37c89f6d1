"""Creation of databases, and files that are not a database of this version."""

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from builders import OWN, copied, make_batch, make_measurement
from effort import EFFORT, long
from processes import printed
from raising import raises_line
from sqlalchemy.engine import make_url

from tunedb.errors import NotFoundError, SchemaError, StorageError, TuneDBError, UsageError
from tunedb.storage import schema, versions
from tunedb.storage.describe import describe
from tunedb.storage.engine import parse_url
from tunedb.storage.store import Store

WORKERS = Path(__file__).parents[1] / "stress" / "workers.py"


def sql(path, *statements):
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            rows = connection.execute(statement).fetchall()
    return rows


def is_whole(path):
    """Assert that SQLite finds no damage in a file; return whether it is a database of tunedb."""
    assert sql(path, "PRAGMA integrity_check") == [("ok",)]
    assert sql(path, "PRAGMA foreign_key_check") == []
    with Store(path, create=False) as store:
        return store.meta()["format"] == "tunedb"


def put(url, number=0, **options):
    with Store(url, **options) as store:
        store.records.add([make_measurement(number)], OWN)


def count(url, **options):
    with Store(url, **options) as store:
        return store.records.count()


def assert_rejected(kind, match, *stores, **options):
    """Assert that opening each database raises one line of error of the given class."""
    for url in stores:
        with raises_line(kind, match=match) as caught:
            Store(url, **options)
        assert not isinstance(caught.value.__cause__, TuneDBError)


def assert_never_opened(kind, match, url, *, create=True):
    """Assert that stores of any options reject a database, and an upgrade does so too."""
    for options in (*([{}] if create else []), {"create": False}, {"read_only": True}):
        assert_rejected(kind, match, url, **options)
    with pytest.raises(kind, match=match):
        versions.upgrade(parse_url(url))


def test_store_creates_the_target_of_a_dangling_link(tmp_path):
    target, link = tmp_path / "target.db", tmp_path / "link.db"
    link.symlink_to(target)
    put(link)
    assert link.is_symlink()
    assert {p.name for p in tmp_path.iterdir()} == {"link.db", "target.db"}
    assert is_whole(target)
    assert sql(target, "PRAGMA application_id") == [(schema.APPLICATION_ID,)]
    assert sql(target, "PRAGMA page_size") == [(4096,)]
    assert sql(target, "PRAGMA journal_mode") == [("wal",)]
    assert count(target) == 1


def test_only_a_creating_store_fills_an_empty_server_database(bare_postgres_url):
    assert_rejected(
        SchemaError, "an empty database; run: tunedb db init", bare_postgres_url, create=False
    )
    assert_rejected(SchemaError, "an empty database", bare_postgres_url, read_only=True)
    put(bare_postgres_url)
    assert count(bare_postgres_url, create=False) == 1


def test_missing_file_is_reported_and_not_created(tmp_path):
    path = tmp_path / "missing.db"
    command = re.escape(f"{path}: no such database; run: tunedb db init {path}")
    assert_never_opened(NotFoundError, command, path, create=False)
    assert_rejected(NotFoundError, "its folder does not exist", tmp_path / "no" / "x.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("what", ["file", "database"])
def test_only_a_creating_store_fills_an_empty_file_or_one_without_tables(tmp_path, what):
    path = tmp_path / "empty.db"
    path.touch()
    if what == "database":
        sql(path, "PRAGMA user_version=1")
    before = path.read_bytes()
    words = f"an empty {what}; run: tunedb db init"
    assert_never_opened(SchemaError, words, path, create=False)
    assert path.read_bytes() == before
    Store(path).close()
    assert is_whole(path)


def test_memory_database_cannot_be_opened_without_creating_it():
    assert_rejected(SchemaError, "tunedb db init", ":memory:", create=False)
    assert_rejected(SchemaError, "tunedb db init", ":memory:", read_only=True)
    with pytest.raises(UsageError, match="only files"):
        versions.create_file(parse_url(":memory:"))


@pytest.mark.parametrize(
    ("content", "kind", "match"),
    [
        (b"no database\n" * 100, SchemaError, "not a SQLite file; give another path"),
        (b"x", SchemaError, "not a database"),
        (b'{"workload": 1}\n', SchemaError, "not a database"),
        (b"SQLite format 3\0", SchemaError, "not a database"),
        (b"SQLite format 3\0" + b"\xff" * 8192, (SchemaError, StorageError), "SQLite|damaged"),
        (b"SQLite format 3\0" + bytes(8192), (SchemaError, StorageError), "SQLite|damaged"),
    ],
)
def test_store_rejects_other_files_without_changing_them(tmp_path, content, kind, match):
    path = tmp_path / "x.db"
    path.write_bytes(content)
    assert_never_opened(kind, match, path)
    assert path.read_bytes() == content
    assert [p.name for p in tmp_path.iterdir() if not p.name.startswith("x.db")] == []


def test_store_rejects_a_folder_and_a_path_below_a_file(tmp_path):
    (tmp_path / "file").touch()
    assert_rejected(StorageError, "cannot be read", tmp_path, tmp_path / "file" / "x.db")


ALEMBIC = (
    "CREATE TABLE alembic_version (version_num VARCHAR(32))",
    "INSERT INTO alembic_version VALUES ('0001')",
)
OTHERS = {
    "plain": ["CREATE TABLE users (id INTEGER)"],
    "alembic": ["CREATE TABLE users (id INTEGER)", *ALEMBIC],
    "alembic and a meta table": [
        "CREATE TABLE meta (key TEXT, value TEXT)",
        "INSERT INTO meta VALUES ('format', 'other')",
        *ALEMBIC,
    ],
    "alembic and another meta table": ["CREATE TABLE meta (name TEXT, data TEXT)", *ALEMBIC],
}


@pytest.mark.parametrize("kind", OTHERS)
def test_database_of_another_program_is_rejected(tmp_path, bare_postgres_url, kind):
    """Switching a file to WAL mode would already change it."""
    path = tmp_path / "other.db"
    sql(path, *OTHERS[kind])
    before = path.read_bytes()
    plain = make_url(bare_postgres_url).set(drivername="postgresql")
    uri = plain.render_as_string(hide_password=False)
    with closing(psycopg.connect(uri, autocommit=True)) as connection:
        for statement in OTHERS[kind]:
            connection.execute(statement)
    for url in (path, bare_postgres_url):
        assert describe(url).state == "foreign"
        assert_never_opened(SchemaError, "a database of another program", url)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_database_of_a_newer_or_unknown_schema_is_rejected(store, store_url):
    with store._db.transaction() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0999'")
    words = r"schema 0999.* run: pip install --upgrade tunedb$"
    assert_never_opened(SchemaError, words, store_url)
    with store._db.transaction() as connection:
        connection.exec_driver_sql("DELETE FROM alembic_version")
    assert_rejected(SchemaError, "it does not state its schema", store_url)


@pytest.fixture(scope="module")
def filled_template(sqlite_template, tmp_path_factory):
    path = copied(sqlite_template, tmp_path_factory.mktemp("filled") / "store.db")
    with Store(path) as store:
        for marker in range(1, 5):
            store.batches.add(make_batch(marker, 300), OWN)
    return path


@pytest.fixture
def filled(filled_template, tmp_path):
    return copied(filled_template, tmp_path / "store.db")


def use(path):
    """Read everything and write something; return whether all went well."""
    try:
        with Store(path) as store:
            records = list(store.records.iterate())
            store.workloads.find(), store.counts(), store.records.top_k([1], None, 500)
            for marker in (1, 2, 3, 4, 9):  # known records too, so that every index is read
                store.batches.add(make_batch(marker, 300), OWN)
            return len(records) == 1200
    except TuneDBError as error:
        assert "\n" not in str(error)
        assert str(path) in str(error)
        return False


@pytest.mark.parametrize("share", [0.0005, 0.1, 0.5, 0.99])
def test_truncated_file_raises_an_error_of_tunedb(filled, share):
    data = filled.read_bytes()
    filled.write_bytes(data[: int(len(data) * share)])
    assert not use(filled)


@pytest.mark.stress
def test_file_with_a_random_page_raises_only_errors_of_tunedb(filled):
    data = filled.read_bytes()
    good = 0
    for page in range(0, len(data) // 4096, 3):
        noisy = bytearray(data)
        noisy[page * 4096 + 100 : (page + 1) * 4096] = os.urandom(4096 - 100)
        for suffix in ("-wal", "-shm"):
            Path(f"{filled}{suffix}").unlink(missing_ok=True)
        filled.write_bytes(noisy)
        good += use(filled)
    assert good < len(data) // 4096 / 3
    filled.write_bytes(data)
    assert use(filled)


def test_the_log_of_a_deleted_database_is_not_replayed(tmp_path):
    """SQLite would put the old pages into the new file: the deleted records came back."""
    path = tmp_path / "x.db"
    store = Store(path)
    store.batches.add(make_batch(1, 64), OWN)
    log = Path(f"{path}-wal").read_bytes()
    store.close()
    path.unlink()
    Path(f"{path}-wal").write_bytes(log)
    assert_rejected(StorageError, r"x\.db-wal: left over from a missing database", path)
    assert Path(f"{path}-wal").read_bytes() == log
    assert not path.exists()
    Path(f"{path}-wal").unlink()
    assert count(path) == 0


def test_read_only_medium_can_be_read_and_rejects_writes(mount):
    folder = mount()
    path = folder / "x.db"
    put(path)
    before = path.read_bytes()
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    with raises_line(StorageError, match="permissions"):
        Store(folder / "new.db")
    with raises_line(StorageError, match="permissions"):
        put(path, 1)
    assert count(path, read_only=True) == 1
    with pytest.raises(StorageError, match="opened read-only"):
        put(path, 1, read_only=True)
    assert path.read_bytes() == before
    assert [p.name for p in folder.iterdir()] == ["x.db"]
    subprocess.run(["mount", "-o", "remount,rw", folder], check=True)
    assert count(path) == 1


def test_read_only_file_can_be_read_and_rejects_writes(mount, tmp_path):
    folder = mount()
    put(folder / "x.db")
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    path = tmp_path / "link.db"
    path.touch()
    subprocess.run(["mount", "--bind", folder / "x.db", path], check=True)
    try:
        with raises_line(StorageError, match="permissions"):
            put(path, 1)
        assert count(path, read_only=True) == 1
    finally:
        subprocess.run(["umount", path], check=True)


def fill_up(store):
    """Add batches until the disk is full; return the number of stored ones, and the error."""
    for marker in range(1, 10_000):
        try:
            store.batches.add(make_batch(marker, 64), OWN)
        except StorageError as error:
            return marker - 1, str(error)
    raise AssertionError("the disk is never full")


def test_full_disk_raises_one_error_and_keeps_stored_batches(mount):
    folder = mount("3m")
    path, ballast = folder / "x.db", folder / "ballast"
    ballast.write_bytes(bytes(1_000_000))
    with Store(path) as store:
        added, error = fill_up(store)
        assert added > 3
        assert "the disk is full; free some space and repeat" in error
        assert error.startswith(str(path)) and "\n" not in error
        assert store.records.count() == 64 * added
        with pytest.raises(StorageError, match="free some space"):
            store.batches.add(make_batch(added + 1, 5000), OWN)
        assert store.records.count() == 64 * added
        ballast.unlink()
        store.batches.add(make_batch(added + 1, 64), OWN)
        assert store.records.count() == 64 * (added + 1)
    assert is_whole(path)
    with Store(path) as store:
        markers = [record.measurement.measured_at for record in store.records.iterate()]
    assert markers == [m for m in range(1, added + 2) for _ in range(64)]


def test_new_database_on_a_too_small_disk_fails_and_leaves_no_file(mount):
    folder = mount("128k")
    assert_rejected(StorageError, "free some space", folder / "x.db")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("there", ["nothing", long("an empty file")])
def test_many_processes_create_one_file(tmp_path, there):
    folder = tmp_path / "made"
    folder.mkdir()
    path = folder / "x.db"
    rounds, processes = (1, 3) if EFFORT == "few" else (3, 8)
    for round_ in range(rounds):
        if there == "an empty file":
            path.touch()
        ids = printed(WORKERS, "create", path, processes, round_)
        assert len(set(ids.split())) == 1  # one store, not several
        assert is_whole(path)
        # No record went into a file that was replaced.
        assert count(path) == processes
        assert [p.name for p in folder.iterdir()] == ["x.db"]
        path.unlink()


@pytest.mark.stress
def test_eight_processes_create_one_schema_on_a_server(bare_postgres_url):
    ids = printed(WORKERS, "create", bare_postgres_url, 8, 0)
    assert len(set(ids.split())) == 1
    assert count(bare_postgres_url, create=False) == 8


@pytest.mark.stress
def test_killed_creator_leaves_no_file_or_a_whole_one(tmp_path):
    """It does so at whatever moment the process dies."""
    start = time.perf_counter()
    Store(tmp_path / "timed.db").close()
    takes = time.perf_counter() - start
    made = 0
    rounds = range(0, 20, 3 if EFFORT == "few" else 1)
    for round_ in rounds:
        path = tmp_path / f"{round_}.db"
        child = os.fork()
        if child == 0:
            try:
                Store(path)
            finally:
                time.sleep(60)
                os._exit(0)
        if round_ < 15:
            time.sleep(takes * round_ / 10)
        else:
            # The last rounds die as soon as there is a file.
            deadline = time.monotonic() + 300
            while not path.exists() and time.monotonic() < deadline:
                time.sleep(0.0005)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if path.exists():
            made += 1
            assert is_whole(path)
        assert count(path) == 0
    assert sum(round_ >= 15 for round_ in rounds) <= made < len(rounds)


def test_store_creates_files_where_hard_links_are_unsupported(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    put(tmp_path / "x.db")
    assert [p.name for p in tmp_path.iterdir()] == ["x.db"]
    assert is_whole(tmp_path / "x.db")


def test_a_second_handle_does_not_drop_the_locks_of_the_first(sqlite_file):
    """POSIX drops all locks of a process on a file when any descriptor of it is closed.

    Another process then took itself for the last one and deleted the log, into which the first
    handle went on writing: its commits were gone.
    """
    with Store(sqlite_file) as first:
        first.batches.add(make_batch(1, 1), OWN)
        Store(sqlite_file).close()
        Store(sqlite_file, read_only=True).close()
        assert versions.upgrade(parse_url(sqlite_file)) == (schema.HEAD, schema.HEAD)
        versions.back_up(sqlite_file, schema.HEAD)
        printed(WORKERS, "write", sqlite_file, 2, 1, 1)
        first.batches.add(make_batch(3, 1), OWN)
        printed(WORKERS, "write", sqlite_file, 4, 1, 1)
        assert first.records.count() == 4
    assert is_whole(sqlite_file)
    assert count(sqlite_file) == 4


def test_backup_is_whole_while_another_store_writes(filled):
    with Store(filled) as store, store._db.transaction() as connection:
        connection.exec_driver_sql("DELETE FROM retraction")
        backup = versions.back_up(filled, "0001")
    assert backup.name == "store.db.bak-0001"
    assert is_whole(backup)
    assert count(backup) == 1200
    shutil.rmtree(filled.parent)

import sqlite3
import sys
import traceback
from pathlib import Path

import pytest
from builders import OWN, make_measurement, sql
from raising import raises_line
from sqlalchemy import bindparam, exc, literal, select, text

from tunedb.errors import BusyError, FormatError, SchemaError, StorageError, UsageError
from tunedb.storage import engine, schema
from tunedb.storage.engine import Prepared, convert, parse_url, same_database, show_url, sqlite_path
from tunedb.storage.store import Store


@pytest.mark.parametrize(
    ("given", "driver", "database"),
    [
        (":memory:", "sqlite", ":memory:"),
        ("sqlite://", "sqlite", ":memory:"),
        ("sqlite:///:memory:", "sqlite", ":memory:"),
        ("tuning.db", "sqlite", "tuning.db"),
        ("a b?c#d%41.db", "sqlite", "a b?c#d%41.db"),
        ("sqlite:///rel/x.db", "sqlite", "rel/x.db"),
        ("sqlite:////abs/x.db", "sqlite", "/abs/x.db"),
        (Path("/abs/x.db"), "sqlite", "/abs/x.db"),
        ("postgresql://h/d", "postgresql+psycopg", "d"),
        ("postgres://h/d", "postgresql+psycopg", "d"),
        ("postgresql+psycopg://u:p@h:1/d", "postgresql+psycopg", "d"),
    ],
)
def test_parse_url_returns_driver_and_database(given, driver, database):
    url = parse_url(given)
    assert (url.drivername, url.database) == (driver, database)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "empty database URL"),
        ("mysql://u:s3cret@h/d", r"cannot use mysql://"),
        ("postgresql+psycopg2://u:s3cret@h/d", r"cannot use postgresql\+psycopg2://"),
        ("postgresql://u:s3cret@h:port/d", "unreadable database URL"),
        ("://s3cret", "unreadable database URL"),
        ("x\0y.db", "NUL"),
    ],
)
def test_store_rejects_unusable_urls_without_showing_passwords(url, message):
    with raises_line(UsageError, match=message) as caught:
        Store(url)
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:s3cret@127.0.0.1:1/d",
        "postgresql://user@127.0.0.1:1/d?password=s3cret",
        "postgresql://user@127.0.0.1:1/d?sslpassword=s3cret&connect_timeout=2",
        "postgresql://user:s3cret@127.0.0.1:1/d?no_such_option=1",
        "postgresql://user:s3cret@no-such-host.invalid/d",
    ],
)
def test_a_password_is_never_shown(url):
    with raises_line(StorageError) as caught:
        Store(url)
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert "s3cret" not in shown + show_url(parse_url(url))


def test_show_url_hides_passwords_and_sqlite_path_returns_files_only():
    assert show_url(parse_url("sqlite:///a/b.db")) == "a/b.db"
    assert show_url(parse_url("postgresql://u:p@h:5/d")) == "postgresql+psycopg://u:***@h:5/d"
    assert show_url(parse_url("postgresql://h/d?host=%2Ftmp")).endswith("://h/d?host=%2Ftmp")
    assert sqlite_path(parse_url("a/b.db")) == Path("a/b.db")
    assert sqlite_path(parse_url(":memory:")) is sqlite_path(parse_url("postgresql://h/d")) is None


@pytest.mark.parametrize("name", ["a b#c 50%41 é漢 'x\".db", "a?mode=memory.db", "\udcff.db"])
def test_store_accepts_any_file_name(tmp_path, name):
    with Store(tmp_path / name) as store:
        store.records.add([make_measurement()], OWN)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    with Store(tmp_path / name, read_only=True) as store:
        assert store.records.count() == 1


PRAGMAS = {
    "journal_mode": "wal",
    "synchronous": 1,  # NORMAL
    "foreign_keys": 1,
    "trusted_schema": 0,
    "application_id": 0x746E6462,
    "busy_timeout": 30_000,
}


def pragmas(connection):
    return {name: connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in PRAGMAS}


@pytest.mark.parametrize("read_only", [False, True])
def test_opening_takes_one_connection_which_reads_later(sqlite_file, monkeypatch, read_only):
    connections = []
    connect = engine._connect_sqlite

    def counted(*args, **options):
        connections.append(connect(*args, **options))
        return connections[-1]

    monkeypatch.setattr(engine, "_connect_sqlite", counted)
    with Store(sqlite_file, read_only=read_only) as opened:
        assert opened.counts().measurements == 0
        assert len(connections) == 1


def test_sqlite_connections_have_expected_pragmas_and_strict_tables(sqlite_file):
    with Store(sqlite_file) as store:
        assert pragmas(store._db.reader()) == PRAGMAS
        with store._db.transaction() as connection:
            assert pragmas(connection) == PRAGMAS
            # BEGIN IMMEDIATE: the lock is taken before the first write.
            other = sqlite3.connect(sqlite_file, timeout=0)
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                other.execute("BEGIN IMMEDIATE")
            other.close()
    with Store(sqlite_file, read_only=True) as store:
        reading = pragmas(store._db.reader())
        assert reading == {**PRAGMAS, "synchronous": reading["synchronous"]}
    tables = sql(sqlite_file, "PRAGMA table_list")
    for _, name, kind, *_, strict in tables:
        if name.startswith("v_"):
            assert (name, kind) == (name, "view")
        elif not name.startswith(("sqlite_", "alembic_")):
            assert (name, kind, strict) == (name, "table", 1)
    assert {row[1] for row in tables} >= set(schema.metadata.tables)


def test_foreign_keys_and_types_are_enforced(store):
    feature = schema.feature.insert().values(
        program_id=77, feature_set_id=77, n_rows=1, n_columns=1, data=b""
    )
    wrong = "INSERT INTO feature_set (name, version, columns) VALUES ('x', 'no number', '[]')"
    for statement, words in ((feature, "(?i)foreign key"), (text(wrong), "no number|TEXT value")):
        with pytest.raises(StorageError, match=words), store._db.transaction() as connection:
            connection.execute(statement)


@pytest.mark.parametrize(
    ("message", "kind", "advice"),
    [
        ("database is locked", BusyError, "try again"),
        ("database or disk is full", StorageError, "free some space"),
        ("could not extend file: No space left on device", StorageError, "free some space"),
        ("attempt to write a readonly database", StorageError, "permissions"),
        ("cannot execute INSERT in a read-only transaction", StorageError, "read-only"),
        ("unable to open database file", StorageError, "check the path"),
        ("file is not a database", SchemaError, "another path"),
        ("database disk image is malformed", StorageError, "damaged"),
        ("disk I/O error", StorageError, "disk"),
        ("no such table: program", SchemaError, "tunedb db check"),
        ("canceling statement due to lock timeout", BusyError, "try again"),
        ("bigint out of range", UsageError, "smaller"),
        ("something\nnew", StorageError, "something new"),
    ],
)
def test_convert_maps_driver_errors_to_classes_and_advice(message, kind, advice):
    error = convert(exc.OperationalError("SQL", {}, sqlite3.OperationalError(message)), "x.db")
    assert type(error) is kind
    assert str(error).startswith("x.db: ")
    assert advice in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (sqlite3.DatabaseError("file is not a database"), SchemaError),
        (exc.PendingRollbackError("x"), StorageError),
        (UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed"), FormatError),
        (OverflowError("too large"), UsageError),
    ],
)
def test_converted_errors_raises_errors_of_tunedb(raised, kind):
    with pytest.raises(kind), engine.converted_errors("x.db"):
        raise raised


def test_converted_errors_does_not_convert_other_errors():
    """A defect must not look like a database's."""
    for error in (KeyError("x"), FormatError("ours")):
        with pytest.raises(type(error)) as caught, engine.converted_errors("x.db"):
            raise error
        assert caught.value is error


def test_prepared_statement_binds_parameters_and_constants(store):
    key = bindparam("key", type_=schema.Text)
    columns = schema.meta.c.value, literal("constant").label("c"), literal(7).label("n")
    found = Prepared(select(*columns).where(schema.meta.c.key == key))
    connection = store._db.reader()
    assert found(connection, key="format").all() == [("tunedb", "constant", 7)]
    assert found(connection, key="'; DROP TABLE meta;--").all() == []
    insert = Prepared(schema.meta.insert().values(key=key, value="fixed by the statement"))
    with store._db.transaction() as writer:
        insert.many(writer, [])
        insert.many(writer, [{"key": "a"}, {"key": "b"}])
        insert(writer, key="c")
    assert [store.meta()[key] for key in "abc"] == ["fixed by the statement"] * 3


def test_prepared_statements_render_once_per_dialect(sqlite_file, postgres_url):
    statement = Prepared(select(schema.meta.c.value).where(schema.meta.c.key == "format"))
    for url in (sqlite_file, postgres_url, sqlite_file):
        with Store(url) as store:
            assert statement(store._db.reader()).scalar() == "tunedb"
    assert statement._rendered.keys() == {"sqlite", "postgresql"}


def test_store_names_the_pip_command_if_psycopg_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(UsageError, match=r"pip install 'tunedb\[postgres\]'"):
        Store("postgresql://h/d")


def test_same_database_recognises_other_names_of_one_database(tmp_path):
    file, link, copy = tmp_path / "a.db", tmp_path / "link.db", tmp_path / "copy.db"
    file.write_bytes(b"x")
    copy.write_bytes(b"x")
    link.symlink_to(file)
    (tmp_path / "hard.db").hardlink_to(file)

    def same(one, other):
        return same_database(parse_url(one), parse_url(other))

    for name in (file, link, tmp_path / "hard.db", f"sqlite:///{file}"):
        assert same(file, name)
    assert same(tmp_path / "missing.db", f"{tmp_path}/./missing.db")
    assert not same(file, copy)
    server = "postgresql://host/db"
    assert same(server, "postgresql://user:secret@host/db")
    for other in ("postgresql://host/other", "postgresql://host/db?options=-csearch_path=x", file):
        assert not same(server, other)

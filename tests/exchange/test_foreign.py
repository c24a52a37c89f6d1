"""Foreign SQLite files: the peer reads known ones, rejects others, and changes none.

    python tests/exchange/test_foreign.py

prints the definitions for tunedb/exchange/foreign_file.py.
"""

import hashlib
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import pytest
from builders import OWN, make_measurement
from builders import sql as rows_of
from effort import examples, long
from gathering import digests, gather, measurements
from processes import printed

import tunedb.migrations
from tunedb import limits
from tunedb.errors import (
    FormatError,
    LimitError,
    NotFoundError,
    SchemaError,
    StorageError,
    TuneDBError,
)
from tunedb.exchange.database_peer import DatabasePeer, first_chunk
from tunedb.exchange.foreign_file import (
    Watch,
    definition,
    foreign_errors,
    is_sqlite,
    objects_of,
    open_file,
)
from tunedb.exchange.peers import open_layer
from tunedb.storage import schema, versions
from tunedb.storage.engine import make_engine, parse_url
from tunedb.storage.exchange_types import Selection
from tunedb.storage.store import Store
from tunedb.system.compression import compress, zstd
from tunedb.system.one_line import printable

TESTS = Path(__file__).parents[1]
FROZEN = sorted((TESTS / "migrations" / "frozen").glob("*.db"))


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def sql(path, *statements):
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def definitions(path):
    """Return the definitions of a file by name, as tunedb.exchange.foreign_file hashes them."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema").fetchall()
    return {row[1]: definition(*row) for row in rows if row[3] is not None}


def make_revisions(folder):
    """Return a new database of each revision."""
    made = {}
    for revision in schema.REVISIONS:
        path = folder / f"{revision}.db"
        sql(path, f"PRAGMA application_id={schema.APPLICATION_ID}")
        engine = make_engine(parse_url(path))
        with engine.begin() as connection:
            versions.create_schema(connection)
            if revision != schema.HEAD:
                tunedb.migrations.downgrade(connection, revision)
        engine.dispose()
        made[revision] = path
    return made


@pytest.fixture(params=FROZEN, ids=lambda path: path.stem)
def frozen(request, tmp_path):
    return Path(shutil.copyfile(request.param, tmp_path / "frozen.db"))


@pytest.fixture
def filled(sqlite_file):
    """A small database that nobody has open."""
    with Store(sqlite_file) as store:
        store.batches.add([make_measurement(n, (1e-3 * (n + 1),)) for n in range(5)], OWN)
    sql(sqlite_file, "PRAGMA wal_checkpoint(TRUNCATE)")
    return sqlite_file


def refused(kind, match, path, **options):
    """Assert that opening raises an error of one printable line, and changes nothing."""
    before = sha256(path)
    with pytest.raises(kind, match=match) as caught:
        DatabasePeer(path, **options)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400
    assert sha256(path) == before


def read(path, **options):
    """Return all rows that a file gives, each with its table."""
    with DatabasePeer(path, **options) as peer:
        return [(c.table, row) for c in peer.chunks(Selection(features=True)) for row in c.rows]


def test_definitions_match_frozen_new_and_downgraded_databases(sqlite_file, tmp_path):
    for path in FROZEN:
        assert objects_of(path.stem) == definitions(path), path.stem
    assert objects_of(schema.HEAD) == definitions(sqlite_file)
    for revision, path in make_revisions(tmp_path).items():
        assert objects_of(revision) == definitions(path), revision


def test_definition_ignores_white_space_between_words():
    one = definition("table", "t", "t", "CREATE TABLE t (\n\ta INTEGER, \n\tb TEXT\n)\n STRICT\n\n")
    assert one == definition("table", "t", "t", "CREATE TABLE t(a INTEGER,b TEXT)STRICT")
    assert one != definition("table", "t", "t", "CREATE TABLE t(a INTEGER,b\u00a0TEXT)STRICT")
    assert one != definition("table", "t", "t", "CREATE TABLE t(aINTEGER,b TEXT)STRICT")


def test_file_of_each_revision_is_read_and_not_changed(frozen, request):
    before = sha256(frozen)
    revision = request.node.callspec.params["frozen"].stem
    with DatabasePeer(frozen) as peer:
        assert (peer.revision, len(peer.store_key)) == (revision, 32)
        found = gather(peer, Selection(features=True))
        assert len(measurements(found)) == peer.total
        for selection in (Selection(best=2), Selection(sources=("own",)), Selection(since=1)):
            assert digests(gather(peer, selection)) <= digests(found)
    assert sha256(frozen) == before
    for table in ("source", "workload", "sketch", "measurement", "failure", "feature"):
        assert found[table], table
    known, failures = (
        {digest for (digest,) in rows_of(frozen, f"SELECT digest FROM {table}")}
        for table in ("measurement", "failure")
    )
    assert digests(found) == known
    assert {row["digest"] for row in found["failure"]} == failures
    assert peer.store_key in {row["store"] for row in found["retraction"]}
    if revision < "0002":
        assert {row["origin"] for row in found["measurement"]} == {None, "random", "mutated"}
        assert found["context"] == []


def test_missing_files_are_refused(tmp_path):
    with pytest.raises(NotFoundError, match=r"gone\.db: no such file$"):
        DatabasePeer(tmp_path / "gone.db")
    with pytest.raises(StorageError, match="Is a directory"):
        DatabasePeer(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_peer_reads_file_while_its_owner_writes(sqlite_file):
    """Committed rows are in the write-ahead log alone; the peer reads and leaves them there."""
    with Store(sqlite_file) as store:
        store.records.add([make_measurement(0)], OWN)
        before = sha256(sqlite_file)
        with DatabasePeer(sqlite_file) as peer:
            assert peer.position().measurement_id == 1
            store.records.add([make_measurement(1)], OWN)
            assert peer.position().measurement_id == 2
        assert len([1 for table, _ in read(sqlite_file) if table == "measurement"]) == 2
        assert sha256(sqlite_file) == before


def test_peer_reads_from_read_only_file_system(filled, mount):
    folder = mount()
    path = Path(shutil.copyfile(filled, folder / "store.db"))
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    assert read(path) == read(filled)
    assert [p.name for p in folder.iterdir()] == ["store.db"]


def test_peer_accepts_statistics_of_analyze(filled):
    sql(filled, "ANALYZE", "PRAGMA wal_checkpoint(TRUNCATE)")
    assert ("sqlite_stat1" in definitions(filled)) and read(filled)
    sql(filled, "DELETE FROM sqlite_stat1", "PRAGMA wal_checkpoint(TRUNCATE)")


def test_peer_rejects_files_that_are_not_of_tunedb(tmp_path):
    path = tmp_path / "other.db"
    sql(path, "CREATE TABLE meta (key, value)", "CREATE TABLE alembic_version (version_num)")
    refused(SchemaError, "a database of another program; give one of tunedb", path)
    sql(path, f"PRAGMA application_id={schema.APPLICATION_ID}")
    refused(SchemaError, "a database of another program; give one of tunedb", path)
    assert is_sqlite(path)
    path.write_text("x" * 5000)
    refused(SchemaError, "it is not a SQLite file", path)
    assert not is_sqlite(path)
    path.write_bytes(b"SQLite format 3\0")
    refused(SchemaError, r"not a database \(16 bytes\)", path)
    for other in (path, tmp_path / "gone", tmp_path):
        assert not is_sqlite(other)


REVISION = "UPDATE alembic_version SET version_num = "
HOSTILE = {
    "one more table": ("evil is not part of it", "CREATE TABLE evil (x)"),
    "a name with an escape": (r"\\x1b\[2Jevil is not part of it", 'CREATE TABLE "\x1b[2Jevil" (x)'),
    "one more index": ("evil is not part of it", "CREATE INDEX evil ON measurement (mean)"),
    "a trigger": (
        "its evil is a trigger",
        "CREATE TRIGGER evil AFTER INSERT ON meta BEGIN SELECT 1; END",
    ),
    "a view": ("its evil is a view", "CREATE VIEW evil AS SELECT 1"),
    "a virtual table": ("its evil is a virtual", "CREATE VIRTUAL TABLE evil USING rtree(a, b, c)"),
    "a missing index": ("ix_measurement_top_k is missing", "DROP INDEX ix_measurement_top_k"),
    "a column more": (
        "the definition of source differs",
        "ALTER TABLE source ADD COLUMN evil TEXT",
    ),
    "a computed column": (
        "the definition of source differs",
        "ALTER TABLE source ADD COLUMN evil TEXT AS (hex(zeroblob(400000000)))",
    ),
    "another revision's name": ("do not match schema 0001", REVISION + "'0001'"),
    "a newer revision": (
        r"written by a newer tunedb \(schema 0099, .*pip install --upgrade",
        REVISION + "'0099'",
    ),
    "a revision with escapes": (
        r"schema \\x1b\[2J\\nx",
        REVISION + "char(27) || '[2J' || char(10) || 'x'",
    ),
    "no revision": ("it does not state its schema", "DELETE FROM alembic_version"),
    "no key": ("it has no store key", "DELETE FROM meta WHERE key = 'store'"),
    "an odd key": (
        "it has no store key",
        "UPDATE meta SET value = char(27) || '[2J' WHERE key = 'store'",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_peer_rejects_file_with_other_definitions(filled, name):
    match, statement = HOSTILE[name]
    sql(filled, statement, "PRAGMA wal_checkpoint(TRUNCATE)")
    refused(SchemaError, match, filled)
    refused(SchemaError, match, filled, check=False)


@pytest.mark.parametrize("table", ["measurement", "alembic_version", "meta"])
def test_peer_rejects_endless_view_in_place_of_a_table(filled, table):
    sql(
        filled,
        "PRAGMA foreign_keys=OFF",
        f"DROP TABLE {table}",
        f"CREATE VIEW {table} AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) "
        "SELECT x AS id, x AS key, x AS value, x AS version_num FROM n",
        "PRAGMA wal_checkpoint(TRUNCATE)",
    )
    refused(SchemaError, f"its {table} is a view, which tunedb databases lack", filled)


@pytest.mark.parametrize(
    ("change", "kind", "match"),
    [
        ("sql = 'CREATE TABLE x' || char(27)", StorageError, "damaged; ask for another copy"),
        # SQLite quotes the name in its message, which then is not UTF-8 either.
        ("name = CAST(x'd173' AS TEXT), sql = 'CREATE'", FormatError, "text that is not UTF-8"),
    ],
    ids=["damaged", "not UTF-8"],
)
def test_peer_rejects_damaged_definitions(filled, change, kind, match):
    changed = f"UPDATE sqlite_schema SET {change} WHERE name = 'source'"
    sql(filled, "PRAGMA writable_schema=ON", changed)
    assert is_sqlite(filled)
    refused(kind, match, filled)


def test_peer_rejects_file_with_too_many_tables(filled):
    """FOREIGN_OBJECTS"""
    sql(filled, "BEGIN", *(f"CREATE TABLE t{n} (x)" for n in range(limits.FOREIGN_OBJECTS)), "END")
    refused(SchemaError, f"more than {limits.FOREIGN_OBJECTS} tables, indexes and views", filled)


def test_peer_rejects_definitions_that_take_too_long_to_read(filled, monkeypatch):
    """FOREIGN_OPEN_STEPS: SQLite reads all definitions before the first statement."""
    sql(filled, "BEGIN", *(f"CREATE TABLE t{n} (x)" for n in range(400)), "END")
    monkeypatch.setattr(limits, "FOREIGN_OPEN_STEPS", 1)
    refused(LimitError, "reading it takes too long", filled)


def test_statement_over_its_deadline_is_stopped(filled):
    """FOREIGN_STATEMENT_S, FOREIGN_CHECK_RATE"""
    assert limits.FOREIGN_STATEMENT_S < 600
    assert limits.FOREIGN_CHECK_RATE > 2**20
    file = open_file(filled)
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT sum(x) FROM n"
    file.watch.restart(0.2)
    with pytest.raises(LimitError, match="takes too long"), foreign_errors(str(filled)):
        file.connection.execute(endless).fetchall()
    file.connection.close()


def test_the_watch_is_restarted_for_each_statement(filled, monkeypatch):
    started = []
    monkeypatch.setattr(Watch, "restart", lambda self, *_, **__: started.append(self))
    monkeypatch.setattr(Watch, "__call__", lambda _: False)
    with DatabasePeer(filled) as peer:
        before = len(started)
        peer.digest_at(1)
    assert len(started) > before


def test_peer_rejects_truncated_files(filled, tmp_path):
    data = filled.read_bytes()
    path = tmp_path / "cut.db"
    # SQLite reads a missing byte as zero.
    for size in (512, 4096, 5000, 40_000, len(data) // 2, len(data) - 4096, len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(TuneDBError) as caught:
            read(path)
        assert str(caught.value).isprintable()


@pytest.mark.examples
def test_peer_reads_or_rejects_damaged_files(filled, tmp_path):
    """Any changed bytes give rows, or an error of one line."""
    data = filled.read_bytes()
    path = tmp_path / "damaged.db"
    random_, refused_ = random.Random(7), 0
    count = examples(200)
    for _ in range(count):
        changed = bytearray(data)
        for _ in range(random_.randint(1, 8)):
            changed[random_.randrange(len(data))] = random_.randrange(256)
        path.write_bytes(changed)
        try:
            read(path, check=random_.random() < 0.5)
        except TuneDBError as error:
            refused_ += 1
            assert str(error).isprintable(), ascii(str(error))
    assert refused_ > count / 10


def test_peer_rejects_value_over_the_limit(filled):
    """MAX_FOREIGN_BYTES"""
    size = limits.MAX_FOREIGN_BYTES + 1
    sql(filled, f"UPDATE measurement SET extra = hex(zeroblob({size // 2 + 1})) WHERE id = 3")
    with pytest.raises(LimitError, match=f"a value of over {limits.MAX_FOREIGN_BYTES} bytes"):
        read(filled, check=False)


BOMB = """
import sys
from memory import peak_bytes
from tunedb.errors import TuneDBError
from tunedb.exchange.database_peer import DatabasePeer
from tunedb.storage.exchange_types import Selection
before = peak_bytes()
rows = 0
try:
    with DatabasePeer(sys.argv[1]) as peer:
        for chunk in peer.chunks(Selection(features=True)):
            rows += len(chunk.rows)
except TuneDBError as error:
    print(error)
print(rows, peak_bytes() - before)
"""


@pytest.mark.parametrize("where", ["extra", *map(long, ("run_secs", "body", "message"))])
def test_huge_values_take_little_memory(filled, where):
    """CHUNK_BYTES: many rows of 12 MB each, or bodies that would unpack to a gigabyte each."""
    text = "hex(zeroblob(6000000))"
    with closing(sqlite3.connect(filled, isolation_level=None)) as connection:
        if where == "body":
            bomb = zstd.compress(bytes(2**30))
            connection.execute("UPDATE sketch SET body = ?", (bomb,))
            connection.execute("UPDATE workload SET body = ?", (bomb,))
        elif where == "message":
            connection.executemany(
                f"INSERT INTO failure VALUES (?, ?, 1, 'timeout', 'run', {text}, 1, 1)",
                [(n, bytes([n] * 16)) for n in range(1, 13)],
            )
        else:
            extra, run_secs = (text, "NULL") if where == "extra" else ("NULL", "zeroblob(12000000)")
            connection.executemany(
                "INSERT INTO measurement SELECT ?, randomblob(16), program_id, workload_id, "
                f"target_id, status, {run_secs}, mean, 0, 0, NULL, source_id, NULL, NULL, "
                f"NULL, 0, NULL, NULL, {extra} FROM measurement WHERE id = 1",
                [(n,) for n in range(10, 18)],
            )
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    environment = {"PYTHONPATH": str(TESTS), "PATH": ""}
    rows, grown = map(int, printed("-c", BOMB, filled, cwd=TESTS, env=environment).split())
    assert rows > 5
    assert grown < 80 * 2**20, "of 91 MB"


def test_a_damaged_body_is_read_as_none_and_text_that_is_not_utf8_as_bytes(filled):
    sql(filled, "UPDATE sketch SET body = x'00'", "UPDATE tail SET body = x''")
    sql(filled, "UPDATE source SET name = CAST(x'ff1b' AS TEXT)")
    found = {table: row[2] for table, row in read(filled) if table in ("sketch", "tail", "source")}
    assert found == {"sketch": None, "tail": None, "source": b"\xff\x1b"}


def test_first_chunk_rejects_rows_out_of_order():
    """A B-tree with a loop would be read for ever."""
    for numbers in ([1, 3, 2], [1, 1], [1, None], [0]):
        with pytest.raises(StorageError, match="x: damaged: its rows are out of order"):
            first_chunk(((number, b"") for number in numbers), 0, "x")


def test_printable_escapes_and_cuts_text():
    assert printable("a\x1b[2J\n\u202eb\udcff") == r"a\x1b[2J\n\u202eb\udcff"
    assert len(printable("x" * 1000)) == 201


def test_foreign_file_cannot_be_written(filled):
    file = open_file(filled)
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        file.connection.execute("DELETE FROM measurement")
    file.connection.close()
    assert len([1 for table, _ in read(filled) if table == "measurement"]) == 5


def generate():
    """Return the text of DEFINITIONS."""
    with tempfile.TemporaryDirectory() as folder:
        found = {rev: definitions(path) for rev, path in make_revisions(Path(folder)).items()}
    lines = []
    for name in sorted({name for objects in found.values() for name in objects}):
        steps, last = [], None
        for revision, objects in found.items():
            if objects.get(name) != last:
                last = objects.get(name)
                steps.append((revision, last))
        parts = [f'("{r}", {chr(34) + d + chr(34) if d else None})' for r, d in steps]
        lines.append(f'    "{name}": ({", ".join(parts)},),')
    return "\n".join(["{", *lines, "}"])


def test_layer_rejects_body_over_the_limit(filled):
    """MAX_FOREIGN_BYTES"""
    body = compress(bytes(limits.MAX_FOREIGN_BYTES + 1))
    with closing(sqlite3.connect(filled)) as connection, connection:
        connection.execute("UPDATE workload SET body = ?", (body,))
    with (
        Store(":memory:") as own,
        open_layer(filled, own) as layer,
        pytest.raises(LimitError, match="larger than"),
    ):
        layer.workloads.get(1)
    with Store(filled) as own:
        assert len(own.workloads.get(1).body) > limits.MAX_FOREIGN_BYTES


if __name__ == "__main__":
    print(generate())

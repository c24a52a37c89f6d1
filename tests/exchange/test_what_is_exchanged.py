"""Data that a database never gives away: models, trust, notes, scripts, passwords."""

import sqlite3
from contextlib import closing

import pytest
from builders import OWN, make_measurement, make_workload, sql
from bundle_bytes import bundle_of, take_apart
from click.testing import CliRunner

from tunedb.cli import main
from tunedb.exchange.bundle import BundlePeer
from tunedb.exchange.database_peer import DatabasePeer
from tunedb.exchange.merge import merge
from tunedb.formats.export import export_metaschedule
from tunedb.records import Source, SourceKind, Trust
from tunedb.storage import exchange_types, schema
from tunedb.storage.exchange_types import EVERYTHING, Selection
from tunedb.storage.store import Store

MARK = b"SECRET-BOOSTERS"
NOTE = "a word about a colleague"

#: Tables that stay where they are.
AT_HOME = {
    *("account", "foreign_feature", "meta", "model", "prediction", "session_factor"),
    *("quarantine", "watermark"),
}


@pytest.fixture
def theirs(makes):
    """A database with a model, a note, a script and a quarantined line."""
    path = makes.empty("a" * 32)
    with Store(path) as store:
        workload = make_workload(script="# a script of ours")
        store.records.add([make_measurement(1, workload=workload)], Source("nightly"))
    model = "INSERT INTO model VALUES (1, ?, 'ranker', '{}', ?, '{}', 1, ?)"
    sql(path, model, b"m" * 16, b"t" * 16, MARK)
    sql(path, "INSERT INTO prediction VALUES (1, 1, 0.5, 1)")
    sql(path, "UPDATE source SET note = ?", NOTE)
    sql(path, "INSERT INTO quarantine VALUES (1, ?, 1, 'log', 1, 'bad', ?, 1)", b"q" * 16, MARK)
    return path


def test_local_tables_and_columns_are_not_exchanged():
    tables = set(schema.metadata.tables)
    # Programs go with their measurements.
    assert tables - set(exchange_types.COLUMNS) == AT_HOME | {"program"}
    columns = {column for names in exchange_types.COLUMNS.values() for column in names}
    assert not columns & {"trust", "note", "served", "script", "card", "score", "factor"}


def test_models_notes_and_scripts_are_not_exchanged(theirs, makes, tmp_path):
    """Nor are predictions, trust and quarantined lines."""
    packed = tmp_path / "x.tunedb"
    with closing(DatabasePeer(theirs)) as peer:
        packed.write_bytes(bundle_of(peer.chunks(Selection(features=True))))
    head, frame = take_apart(packed.read_bytes())
    for secret in (MARK, NOTE.encode(), b"a script of ours"):
        assert secret not in head + frame
    for peer in (DatabasePeer(theirs), BundlePeer(packed)):
        path = makes.empty("b" * 32)
        with closing(peer), Store(path) as store:
            assert merge(store, peer, selection=EVERYTHING).new == 1
            assert store.counts().measurements == 1
        with closing(sqlite3.connect(path)) as connection:
            for query, rows in (
                *((f"SELECT * FROM {table}", []) for table in AT_HOME - {"meta", "watermark"}),
                ("SELECT script FROM workload", [(None,)]),
                ("SELECT DISTINCT trust FROM source", [(0,)]),
            ):
                assert connection.execute(query).fetchall() == rows, query
            dump = "\n".join(connection.iterdump())
            assert (NOTE in dump, MARK.hex().upper() in dump) == (False, False)


def test_exchange_commands_do_not_print_passwords(theirs, tmp_path):
    """The server is not reachable, so each command fails with a message."""
    url = "postgresql+psycopg://team:hunter2@127.0.0.1:1/none"
    bundle = [url, "bundle", "-o", str(tmp_path / "x.tunedb")]
    for command in (bundle, *([str(theirs), name, url] for name in ("merge", "pull", "push"))):
        result = CliRunner().invoke(main, ["--db", *command])
        assert result.exit_code != 0, result.output
        assert "hunter2" not in result.output


def test_modules_of_others_are_not_exported(tmp_path, makes):
    """TVM would parse every module of an exported file."""
    theirs, ours = makes.empty("a" * 32), makes.empty("b" * 32)
    with Store(theirs) as store:
        store.records.add([make_measurement(0), make_measurement(1, workload=1)], OWN)
    with Store(ours) as store, closing(DatabasePeer(theirs)) as peer:
        merge(store, peer)
        (source,) = store.sources.summaries()
        store.trust.set(source.id, Trust.VERIFIED)
        store.records.add([make_measurement(2, workload=1)], OWN)
        revalidated = Source("revalidation", SourceKind.LIVE, Trust.VERIFIED)
        store.records.add([make_measurement(0, measured_at=1)], revalidated)
        report = export_metaschedule(store, tmp_path / "json")
    assert report.records == 2
    assert report.left_out == {"module of another database; tune or import an equal one": 2}

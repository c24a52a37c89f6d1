"""Databases that exchange records, for tests."""

from contextlib import closing, contextmanager
from threading import Timer

from builders import make_measurement, sql
from sqlalchemy.engine import make_url

from tunedb.exchange.bundle import new_manifest, write_bundle
from tunedb.exchange.database_peer import DatabasePeer
from tunedb.records import Source
from tunedb.storage import approval, schema, versions
from tunedb.storage.exchange_types import COLUMNS, EVERYTHING, Chunk
from tunedb.storage.store import Store

OWN = Source("nightly")

#: Key of the database that :class:`Given` says it is.
THEIRS = "b" * 32


class Given:
    """A peer that gives fixed chunks."""

    location = "given"

    def __init__(self, chunks, store_key=THEIRS):
        self.given = chunks
        self.store_key = store_key
        self.total = sum(len(c.rows) for c in chunks if c.table == "measurement")

    def chunks(self, selection, since=None, until=None):
        yield from self.given

    def close(self):
        pass


def given_by(url, selection=EVERYTHING):
    """Return the chunks that a database gives."""
    with closing(DatabasePeer(url, own=True)) as peer:
        return list(peer.chunks(selection))


def bundled(path, selection=EVERYTHING):
    """Write a database as a bundle beside it; return its path."""
    bundle = path.with_suffix(".tunedb")
    with closing(DatabasePeer(path, own=True)) as peer:
        manifest = new_manifest(peer.store_key, selection)
        write_bundle(bundle, peer.chunks(selection), manifest, force=True)
    return bundle


def changed(chunks, table, *, row=0, **values):
    """Return chunks with other values in the row of that position in a table."""
    found = [Chunk(c.table, list(c.rows)) for c in chunks]
    for chunk in found:
        if chunk.table != table:
            continue
        if row < len(chunk.rows):
            old = dict(zip(COLUMNS[table], chunk.rows[row], strict=True))
            chunk.rows[row] = tuple((old | values).values())
            return found
        row -= len(chunk.rows)
    raise AssertionError(f"no such row of {table}")


def rename(path, key):
    """Give a file a key of its own, as copies of a template have equal keys; return its path."""
    sql(path, "UPDATE meta SET value = ? WHERE key = 'store'", key)
    sql(path, f"PRAGMA user_version = {versions.store_mark(key)}")
    approval.approve(path, key)
    return path


def fill(store, *numbers, source=OWN, **fields):
    """Store and return measurements with those numbers."""
    made = [make_measurement(n, (1e-3 * (n + 1),), **fields) for n in numbers]
    store.records.add(made, source)
    return made


def digests(store):
    """Return the digests of program and measurement of each record of a database."""
    if not isinstance(store, Store):
        with Store(store, read_only=True) as opened:
            return digests(opened)
    return {
        (one.measurement.program.digest, one.measurement.digest) for one in store.records.iterate()
    }


def forget(url, above):
    """Remove the records above a number, as if an older backup had been restored."""
    with Store(url) as store, store._db.transaction() as connection:
        for table, column in (
            (schema.failure, schema.failure.c.measurement_id),
            (schema.launch, schema.launch.c.measurement_id),
            (schema.measurement, schema.measurement.c.id),
        ):
            connection.execute(table.delete().where(column > above))


@contextmanager
def away(server, url, seconds=None):
    """Close a database of a server to all, for the whole block or for some seconds."""
    name = make_url(url).database

    def allow(yes):
        server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS {yes}")

    allow("false")
    server.terminate(url)
    timer = None if seconds is None else Timer(seconds, allow, ["true"])
    if timer is not None:
        timer.start()
    try:
        yield
    finally:
        if timer is not None:
            timer.join()
        allow("true")

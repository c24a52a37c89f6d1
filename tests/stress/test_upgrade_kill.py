"""An upgrade that is killed at any moment leaves the old database or the new one."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from kills import output_of
from sqlalchemy import select

from tunedb import identity
from tunedb.maintenance.check import check
from tunedb.storage import schema, versions
from tunedb.storage.engine import parse_url
from tunedb.storage.store import Store

HERE = Path(__file__).parent
WORKER = HERE / "upgrade_worker.py"
FROZEN = HERE.parent / "migrations" / "frozen" / "0001.db"
RECORDS = 3_000


@pytest.fixture
def old(tmp_path):
    """A database of the first revision with records enough for a migration to take a while."""
    path = shutil.copyfile(FROZEN, tmp_path / "old.db")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        parts = [
            connection.execute(f"SELECT digest FROM {table} WHERE id = 1").fetchone()[0]
            for table in ("workload", "target", "sketch", "tail")
        ]
        connection.execute("BEGIN")
        for number in range(1_000, 1_000 + RECORDS):
            decisions = f"[[{number},[{number},4]]]"
            program = identity.program_digest(*parts, decisions.encode())
            times = identity.pack_floats([0.25])
            measured = (0, times, number, 0, None, None, "unknown", None, None, None, None)
            digest = identity.measurement_digest(program, *measured)
            connection.execute(
                "INSERT INTO program VALUES (?, ?, 1, 1, 1, 1, ?)", (number, program, decisions)
            )
            connection.execute(
                "INSERT INTO measurement VALUES"
                " (?, ?, ?, 1, 1, 0, ?, 0.25, 0.25, 0.25, ?, 0, NULL, 1, NULL, 'unknown', NULL, 1)",
                (number, digest, number, times, number),
            )
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


def rows_of(path):
    """Return all rows but for the times at which the upgrade ran."""
    with Store(path, create=False, read_only=True) as store:
        return {
            table.name: sorted(map(repr, store._db.select(select(*columns))))
            for table in schema.metadata.sorted_tables
            # An upgrade may make a source for rows that named none.
            if (columns := [c for c in table.c if c is not schema.source.c.created_at])
        }


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(1, 7))
def test_repeated_upgrade_completes_killed_one_and_backups_are_complete(old, seed):
    kills = 10
    alone = shutil.copyfile(old, old.with_name("alone.db"))
    versions.upgrade(parse_url(alone))
    wanted = rows_of(alone)
    assert len(wanted["measurement"]) > RECORDS
    output = output_of(WORKER, old.parent, kills, seed)
    lines = [line.rsplit(" ", 1) for line in output.splitlines()]
    assert len(lines) == kills
    for number, (path, _) in enumerate(lines):
        assert rows_of(path) == wanted
        if not number:
            # The model in the frozen file is not a real one: both databases report it.
            assert check(path).problems == check(alone).problems
        # Each backup has all records from before the upgrade.
        backups = sorted(Path(path).parent.glob(f"{Path(path).name}.bak-0001*"))
        backups = [b for b in backups if not b.name.endswith(("-wal", "-shm", "-journal"))]
        assert backups
        for backup in backups:
            with closing(sqlite3.connect(backup)) as one, closing(sqlite3.connect(old)) as other:
                count = "SELECT count(*), sum(id) FROM measurement"
                assert one.execute(count).fetchone() == other.execute(count).fetchone()
    # The next backup removes the files of a killed one.
    assert list(old.parent.glob(".tunedb-new-*")) == []
    assert sum(int(ended) for _, ended in lines) < kills

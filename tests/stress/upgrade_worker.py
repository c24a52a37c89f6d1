"""Upgrades that are killed. Run as a script; tests read what it prints.

python upgrade_worker.py FOLDER KILLS SEED

upgrades copies of FOLDER/old.db with the command line, each in a process that is killed at a
random moment, and then again to its end. Prints the path of each copy and whether its first
upgrade had come to its end.
"""

import os
import random
import shutil
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

import alembic.autogenerate  # noqa: F401  not while others wait
from kills import in_child, killed_or_done

from tunedb.cli import main as command
from tunedb.storage import schema


def upgrade(path, began=lambda: None):
    """Run the command in this process."""
    began()
    command(["--quiet", "db", "upgrade", str(path), "--json"], standalone_mode=False)


def revision(path):
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return connection.execute("SELECT version_num FROM alembic_version").fetchone()[0]


def silent(work):
    """Return work whose output goes nowhere."""

    def quiet(began):
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - until the process ends
        work(began)

    return quiet


def main(folder, kills, seed):
    old = Path(folder) / "old.db"
    rng = random.Random(int(seed))
    longest = 0.0
    for number in range(int(kills) + 2):
        path = shutil.copyfile(old, old.with_name(f"{seed}-{number}.db"))
        work = silent(lambda began, path=path: upgrade(path, began))
        if number < 2:
            # The first loads what is needed; the second says how long one takes.
            started = time.perf_counter()
            assert in_child(work) == 0
            longest = time.perf_counter() - started
            continue
        assert killed_or_done(in_child(work, rng.uniform(0, longest)))
        first = revision(path)
        assert first in ("0001", schema.HEAD), first
        assert in_child(work) == 0
        assert revision(path) == schema.HEAD
        print(path, int(first == schema.HEAD), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

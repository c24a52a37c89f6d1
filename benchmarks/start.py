"""Start: commands that open no database beside a bare click program, and opening with a prior.

Each command runs in a fresh process, the click program and ``tunedb`` in turn; the best of many
runs counts. An editable installation, which is what a clone has, costs both some 20 ms. A database
is opened in turn without and with the prior of the package, of which the import of the plugin
reads nothing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import Row, run

RUNS = 20
MS = 1e3
BAR_MS = 150
#: Times that a database is opened, and the most that a prior may add.
OPENINGS, PRIOR_MS = 50, 5

#: What any program with click does for ``--help``.
BARE = "import click; click.Group('bare')(['--help'], prog_name='bare')"

OURS = "from tunedb.cli import main; main({!r}, prog_name='tunedb')"
COMMANDS = (["--help"], ["--version"], ["top", "--help"], ["import", "logs", "--help"])


def seconds(code: str) -> float:
    """Return the wall time of a program in a fresh process."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def opening(file: Path, prior: str) -> float:
    """Return the seconds in which a database is opened."""
    from tunedb.plugins.metaschedule import Database

    start = time.perf_counter()
    with Database(file, target={"kind": "llvm"}, prior=prior):
        return time.perf_counter() - start


def measure(_: argparse.Namespace) -> list[Row]:
    """Return the time of each command, and of opening a database."""
    rows = []
    for command in COMMANDS:
        code = OURS.format(command)
        timed = [(seconds(BARE), seconds(code)) for _ in range(RUNS)]
        bare, ours = (min(times) * MS for times in zip(*timed, strict=True))
        name = " ".join(["tunedb", *command])
        rows.append(Row(name, "ms", ours, bare, f"<= {BAR_MS}", ours <= BAR_MS))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tune.db"
        opening(file, "none")  # creates it
        timed = [(opening(file, "none"), opening(file, "auto")) for _ in range(OPENINGS)]
    without, with_prior = (min(times) * MS for times in zip(*timed, strict=True))
    is_ok = with_prior <= without + PRIOR_MS
    name = "opening a database with the prior, without"
    rows.append(Row(name, "ms", with_prior, without, f"<= {PRIOR_MS} ms more", is_ok))
    return rows


if __name__ == "__main__":
    run("Start", "click, none", measure)

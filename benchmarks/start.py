"""Starting the CLI: the time of commands that open no database, beside a bare click program.

Each command runs in a fresh process, the click program and ``tunedb`` in turn; the best of many
runs counts. An editable installation, which is what a clone has, costs both some 20 ms.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from common import Row, run

RUNS = 20
MS = 1e3
BAR_MS = 150

#: What any program with click does for ``--help``.
BARE = "import click; click.Group('bare')(['--help'], prog_name='bare')"

OURS = "from tunedb.cli import main; main({!r}, prog_name='tunedb')"
COMMANDS = (["--help"], ["--version"], ["top", "--help"], ["import", "logs", "--help"])


def seconds(code: str) -> float:
    """Return the wall time of a program in a fresh process."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def measure(_: argparse.Namespace) -> list[Row]:
    """Return the time of each command."""
    rows = []
    for command in COMMANDS:
        code = OURS.format(command)
        timed = [(seconds(BARE), seconds(code)) for _ in range(RUNS)]
        bare, ours = (min(times) * MS for times in zip(*timed, strict=True))
        name = " ".join(["tunedb", *command])
        rows.append(Row(name, "ms", ours, bare, f"<= {BAR_MS}", ours <= BAR_MS))
    return rows


if __name__ == "__main__":
    run("Starting the CLI", "click", measure)

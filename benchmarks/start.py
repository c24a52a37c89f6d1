"""Start: commands that open no database beside a bare click program, and opening with a prior.

Each command runs in a fresh process, the click program and ``tunedb`` in turn; the best of many
runs counts. An editable installation, which is what a clone has, costs both some 20 ms. A database
is opened in turn without and with the prior of the package, of which the import of the plugin
reads nothing. A network is tuned until its first trials are done: with the prior unpacked in the
user's cache, and with one that still has to be.
"""

from __future__ import annotations

import argparse
import os
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
#: Networks that are tuned until their first trials, for each state of the cache.
NETWORKS = 3

#: What any program with click does for ``--help``.
BARE = "import click; click.Group('bare')(['--help'], prog_name='bare')"

OURS = "from tunedb.cli import main; main({!r}, prog_name='tunedb')"
COMMANDS = (["--help"], ["--version"], ["top", "--help"], ["import", "logs", "--help"])


#: Tunes a network in a new database until its first trials are done.
FIRST_TRIALS = """
import contextlib, sys
sys.path.append({folder!r})
from onnx_networks import NETWORKS
from tvm.relax.frontend.onnx import from_onnx
from tunedb.plugins.metaschedule import tune
class End(Exception):
    pass
def stop(_):
    raise End
mod = from_onnx(NETWORKS["mobilenet_v2"]["quick"]())
with contextlib.suppress(End):
    tune(mod, database={database!r}, max_trials_per_task=16, on_progress=stop)
"""

#: Unpacks the prior of the package.
UNPACK = "from tunedb.exchange.prior import IN_WHEEL, unpacked; unpacked(IN_WHEEL)"


def seconds(code: str, cache: Path | None = None) -> float:
    """Return the wall time of a program in a fresh process, with another folder for its cache."""
    changed = {} if cache is None else {"XDG_CACHE_HOME": str(cache)}
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, **changed},
    )
    return time.perf_counter() - start


def first_trials(folder: Path) -> tuple[float, float, float]:
    """Return seconds to the first trials, prior not unpacked and unpacked, and of unpacking."""
    codes = [
        FIRST_TRIALS.format(folder=str(Path(__file__).parent), database=str(folder / name))
        for name in ("first.db", "later.db")
    ]
    first, later = (seconds(code, folder / "cache") for code in codes)
    return first, later, seconds(UNPACK, folder / "empty")


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
    found = []
    for _ in range(NETWORKS):
        with tempfile.TemporaryDirectory() as folder:
            found.append(first_trials(Path(folder)))
    first, later, unpacking = (min(times) for times in zip(*found, strict=True))
    rows.append(Row("first trials of a network, prior not unpacked, unpacked", "s", first, later))
    rows.append(Row("unpacking the prior alone", "s", unpacking))
    return rows


if __name__ == "__main__":
    run("Start", "click, none", measure)

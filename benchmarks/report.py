"""The page about 100,000 records, beside one object per record into pandas.

The records are those of tables.py. Each figure comes from a process of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tables import fill, naive

RECORDS = 100_000


def page(path: str) -> dict[str, float]:
    """Write the page of a database."""
    from tunedb.cli import main

    output = f"{path}.html"
    began = time.perf_counter()
    main(["--db", path, "report", "-o", output], standalone_mode=False)
    seconds = time.perf_counter() - began
    return {"s": seconds, "mb": Path(output).stat().st_size / 1e6}


def in_process(*arguments: Any) -> dict[str, float]:
    """Run one of the functions of this file in a process of its own."""
    print(f"  {arguments[0]} …", file=sys.stderr)
    command = [sys.executable, __file__, *map(str, arguments)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(output.stdout.splitlines()[-1])
    return figures


def measure(options: argparse.Namespace) -> list[Any]:
    """Return the rows of the table."""
    from common import Row

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "some.db"
        in_process("fill", path, options.records)
        ours, theirs = in_process("page", path), in_process("naive", path)
    title, full = f"{options.records:,} records", options.records == RECORDS
    return [
        Row(
            f"{title}: page", "s", ours["s"], theirs["s"], "<= 5", ours["s"] <= 5 if full else None
        ),
        Row(f"{title}: size of the page", "MB", ours["mb"], bar="<= 2", ok=ours["mb"] <= 2),
    ]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--records", type=int, default=RECORDS, help="records of the database")


RUNS = {one.__name__: one for one in (fill, naive, page)}

if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] in RUNS:
        print(json.dumps(RUNS[sys.argv[1]](*sys.argv[2:])))
    else:
        from common import run

        run("Page of a database", "objects", measure, add_options)

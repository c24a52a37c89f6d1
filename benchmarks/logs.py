"""Importing auto_scheduler logs: time, memory and size, beside ``json.loads`` of the same lines.

The logs are those of Roller's artifact (microsoft/nnfusion, branch ``osdi22_artifact``, MIT):
88,210 records of a V100 and 93,076 of a K80, one JSON line each, as xz archives in DIR. Every
figure is taken in a fresh process that may use one core, ``json.loads`` and the import in turn,
the best of five runs of each.
The million are these records five times over, one tile size of each changed, so that every
program is new.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import re
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from common import Row, run

Figures = dict[str, float]

ARCHIVES = {"V100": "v100.jsonl.xz", "K80": "k80.jsonl.xz"}
REPEATS = 5
MILLION = 1_000_000
LAST = 100_000

#: The first tile size of a record's first split.
TILE = re.compile(rb'(\["SP", \d+, \d+, \d+, \[)(\d+)')

#: What is added to it in each repetition: more than any extent, so that no two programs meet.
OFFSET = 100_000

US = 1e6
MB = 2**20


def to_one_core() -> None:
    """Leave this process one core."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def parse_only(path: str) -> Figures:
    """Measure ``json.loads`` over the lines of an archive, unpacking included."""
    number = size = 0
    start = time.perf_counter()
    with lzma.open(path) as file:
        for line in file:
            json.loads(line)
            number += 1
            size += len(line)
    return {
        "us": (time.perf_counter() - start) / number * US,
        "records": number,
        "json": size / number,
        "packed": Path(path).stat().st_size / number,
    }


def import_one(path: str, database: str) -> Figures:
    """Measure the import of a log, and again, when all is known."""
    from tunedb.formats.base import LogFile
    from tunedb.formats.importer import import_log
    from tunedb.storage.store import Store

    file = LogFile(Path(path), path)
    ends: list[float] = []
    with Store(database) as store:
        start = time.perf_counter()
        report = import_log(
            store, file, source="benchmark", on_batch=lambda: ends.append(time.perf_counter())
        )
        seconds = time.perf_counter() - start
        total = report.total
        assert total.new == total.read > 0, report
        figures = {"us": seconds / total.read * US, "records": total.read}
        if total.read < MILLION:
            start = time.perf_counter()
            again = import_log(store, file, source="benchmark").total
            figures["known us"] = (time.perf_counter() - start) / total.read * US
            assert (again.new, again.known) == (0, total.read), again
        else:
            batches = LAST * len(ends) // total.read
            rows = batches * total.read / len(ends)
            figures["last us"] = (ends[-1] - ends[-1 - batches]) / rows * US
    figures["rss"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MB
    figures["bytes"] = Path(database).stat().st_size / total.read
    with closing(sqlite3.connect(database)) as connection:
        steps = sum(
            connection.execute(query).fetchone()[0] or 0
            for query in (
                "SELECT sum(length(decisions)) FROM program",
                "SELECT sum(length(body)) FROM sketch",
                "SELECT sum(length(body)) FROM tail",
            )
        )
    figures["steps"] = steps / total.read
    return figures


def write_million(folder: Path, target: Path) -> None:
    """Write a million records, each program once, as one plain file."""
    number = 0
    with target.open("wb") as out:
        for repetition in range(1, 100):
            offset = repetition * OFFSET
            for name in ARCHIVES.values():
                with lzma.open(folder / name) as file:
                    for line in file:
                        changed, done = TILE.subn(
                            lambda m, o=offset: m[1] + str(int(m[2]) + o).encode(), line, count=1
                        )
                        if not done:
                            continue
                        out.write(changed)
                        number += 1
                        if number == MILLION:
                            return


def in_process(*arguments: str) -> Figures:
    """Run one of the functions above in a process of its own."""
    command = [sys.executable, __file__, "--child", *arguments]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    figures: Figures = json.loads(output)
    return figures


def measure_archive(folder: Path, scratch: Path, device: str) -> list[Row]:
    path = str(folder / ARCHIVES[device])
    parsed, imported = [], []
    for repeat in range(REPEATS):
        parsed.append(in_process("parse", path))
        imported.append(in_process("import", path, str(scratch / f"{device}-{repeat}.db")))

    def best(runs: list[Figures], name: str) -> float:
        return min(figures[name] for figures in runs)

    us, known = best(imported, "us"), best(imported, "known us")
    steps, size = imported[0]["steps"], imported[0]["bytes"]
    rss = max(figures["rss"] for figures in imported)
    title = f"{device}, {int(imported[0]['records']):,} records"
    parse_us, json_bytes = best(parsed, "us"), parsed[0]["json"]
    return [
        Row(f"{title}: import", "us/record", us, parse_us, "<= 40 (25,000/s)", us <= 40),
        Row(f"{title}: import again", "us/record", known, parse_us),
        Row(f"{title}: whole file", "bytes/record", size, json_bytes, "<= 300", size <= 300),
        Row(f"{title}: steps", "bytes/record", steps, None, "<= 60", steps <= 60),
        Row(f"{title}: as xz", "bytes/record", parsed[0]["packed"]),
        Row(f"{title}: memory", "MB", rss, None, "<= 300", rss <= 300),
    ]


def measure_million(folder: Path, scratch: Path) -> list[Row]:
    path = scratch / "million.json"
    write_million(folder, path)
    figures = in_process("import", str(path), str(scratch / "million.db"))
    path.unlink()
    last, rss = figures["last us"], figures["rss"]
    return [
        Row("1,000,000 records: import", "us/record", figures["us"]),
        Row("1,000,000 records: last 100,000", "us/record", last, None, "<= 100", last <= 100),
        Row("1,000,000 records: whole file", "bytes/record", figures["bytes"]),
        Row("1,000,000 records: memory", "MB", rss, None, "<= 300", rss <= 300),
    ]


def measure(options: argparse.Namespace) -> list[Row]:
    folder = options.data
    for name in ARCHIVES.values():
        if not (folder / name).exists():
            raise SystemExit(f"{folder / name}: missing; give the archives' directory with --data")
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        rows = [row for device in ARCHIVES for row in measure_archive(folder, scratch, device)]
        if not options.quick:
            rows += measure_million(folder, scratch)
    return rows


def add_options(parser: argparse.ArgumentParser) -> None:
    default = Path(__file__).resolve().parents[2] / "shared/data/costmodel/roller_ansor"
    parser.add_argument("--data", type=Path, default=default, metavar="DIR", help="the archives")
    parser.add_argument("--quick", action="store_true", help="leave out the million")


def child(name: str, *arguments: str) -> None:
    to_one_core()
    functions: dict[str, Any] = {"parse": parse_only, "import": import_one}
    print(json.dumps(functions[name](*arguments)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        run("Importing auto_scheduler logs, one core", "json.loads", measure, add_options)

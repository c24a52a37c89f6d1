"""Ten million records in folders like TenSet's: import, top-k and training.

The records are made from public auto_scheduler logs for CPUs (``ansor`` below DIR): tasks with
other hashes, programs with other tile sizes of the same extents, and times that differ as much as
those of schedules do; one in twenty failed. Their folder and the model of their processor are
`generated`. A task has 4,000 records in a file of its own, as most of TenSet's.

The import and the training are the commands of tunedb, each in a process of its own; ``json.loads``
parses the lines of some of the files before the import.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from hashlib import sha256
from math import prod
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from common import Row, run
from multiplied import split

RECORDS, PER_TASK = 10_000_000, 4_000
#: Records of the whole dataset of TenSet.
TENSET = 51_600_000
#: One record in so many failed.
FAILED = 20
#: Tilings of a loop that a task has, and files of which ``json.loads`` parses the lines.
TILINGS, PARSED = 100, 10
#: Workloads that are asked for their 10 best records.
ASKED = 500
#: Bars, with 10 million records.
IMPORT_MINUTES, TOP_K_MS, TRAIN_MINUTES, TRAIN_GB = 7, 1, 20, 4

Template = tuple[str, list[list[str]], float, int]


def public_tasks(folder: Path) -> list[tuple[str, list[str]]]:
    """Return keys and lines of public tasks of CPUs that can be tiled in many ways."""
    tasks: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(folder.glob("ansor/*/*.json")):
        for line in path.read_text().splitlines():
            if not line.startswith('{"i": [["[\\"'):
                continue
            value = json.loads(line)
            (key, target, *_), _ = value["i"]
            if target.startswith("llvm") and value["r"][1] == 0:
                tasks[key].append(line)
    return [
        (key, lines)
        for key, lines in sorted(tasks.items())
        if sum(prod(map(len, _template(line, "")[1])) for line in lines) > 10 * PER_TASK
    ]


def _template(line: str, key: str) -> Template:
    """Return a line with places for sizes and its result, their choices, its time and repeats."""
    value = json.loads(line)
    (task, (_, steps)), (costs, *_) = value["i"], value["r"]
    task[0], task[1] = key, f"{task[1]} -model=generated"
    choices = []
    for step in steps:
        if step[0] == "SP" and step[3]:
            choices.append(_tilings(step[3], len(step[4])))
            step[4] = "\0"
    text = json.dumps({"i": value["i"], "r": "\0", "v": value["v"]})
    text = text.replace("%", "%%").replace(json.dumps("\0"), "%s")
    return text, choices, min(costs), len(costs)


@cache
def _tilings(extent: int, number: int) -> list[str]:
    """Return texts of random sizes of the inner loops of a split."""
    rng, factors = random.Random(extent), dict[int, list[int]]()
    whole = [extent, *[1] * number]
    found = (json.dumps(split(whole, rng, factors)[1:]) for _ in range(TILINGS))
    return list(dict.fromkeys(found))


def write_task(folder: Path, number: int, key: str, lines: list[str]) -> int:
    """Write the file of a task; return its size."""
    rng = random.Random(number)
    hash_, *arguments = json.loads(key)
    hash_ = sha256(f"generated {number} {hash_}".encode()).hexdigest()[:32]
    key = json.dumps([hash_, *arguments])
    templates = [_template(line, key) for line in lines]
    seen, written = set(), list[str]()
    while len(written) < PER_TASK:
        place = rng.randrange(len(templates))
        text, choices, base, repeats = templates[place]
        sizes = tuple([each[int(rng.random() * len(each))] for each in choices])
        if (place, sizes) in seen:
            continue
        seen.add((place, sizes))
        time_ = base * rng.lognormvariate(1, 0.7)
        costs = ", ".join([f"{time_ * (1 + 0.02 * rng.random()):.6g}" for _ in range(repeats)])
        error = 0
        if len(written) % FAILED == 0:
            costs, error = "10000000000.0", 6
        result = f"[[{costs}], {error}, {rng.random():.6f}, {1_600_000_000 + len(written)}]"
        written.append(text % (*sizes, result))
    flat = ",".join(str(one) for one in _flattened(arguments))
    path = folder / f"([{hash_},{flat}"[:200].rstrip(",")
    path = path.with_name(path.name + "],llvm).json")
    path.write_text("\n".join(written) + "\n")
    return path.stat().st_size


def _flattened(values: list[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list):
            yield from _flattened(value)
        else:
            yield value


def generate(data: Path, folder: Path, records: int) -> int:
    """Write the files of the tasks; return the size of all."""
    folder.mkdir(parents=True)
    tasks, numbers = public_tasks(data), range(-(-records // PER_TASK))
    if not tasks:
        raise SystemExit(f"{data / 'ansor'}: no logs of auto_scheduler; give their folder: --data")
    with ProcessPoolExecutor() as pool:
        sizes = [
            pool.submit(write_task, folder, number, *tasks[number % len(tasks)])
            for number in numbers
        ]
        return sum(size.result() for size in sizes)


def parse(folder: Path) -> float:
    """Return the seconds of ``json.loads`` for each line of some of the files."""
    seconds = number = 0.0
    for path in sorted(folder.iterdir())[:PARSED]:
        lines = path.read_bytes().splitlines()
        start = time.perf_counter()
        for line in lines:
            json.loads(line)
        seconds += time.perf_counter() - start
        number += len(lines)
    return seconds / number


def command(*arguments: str) -> tuple[float, float]:
    """Run a command of tunedb; return its seconds and the GB of its memory."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [Path(sys.executable).with_name("tunedb"), *arguments], stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"tunedb {' '.join(arguments)}: failed")
    return time.perf_counter() - start, usage.ru_maxrss / 2**20


def ask(database: Path) -> tuple[list[float], list[float]]:
    """Return the milliseconds of the first and of later questions for the best records."""
    from tunedb.storage.store import Store

    with Store(database, read_only=True) as store:
        ids = [workload.id for workload in store.workloads.find()]
        chosen = random.Random(0).sample(ids, min(ASKED, len(ids)))
        passes = []
        for _ in range(2):
            times = []
            for id_ in chosen:
                start = time.perf_counter()
                assert len(store.records.top_k(id_, k=10)) == 10
                times.append((time.perf_counter() - start) * 1e3)
            passes.append(times)
    return passes[0], passes[1]


def measure(options: argparse.Namespace) -> list[Row]:
    """Generate the logs, import them, ask for the best, and train."""
    records = -(-options.records // PER_TASK) * PER_TASK
    with tempfile.TemporaryDirectory(prefix="tunedb-tenset-", dir=options.scratch) as scratch:
        folder, database = Path(scratch, "measure_records", "generated"), Path(scratch, "tune.db")
        size = generate(options.data, folder, records)
        parsed = parse(folder)
        log = ("logs", str(folder), "--source", "generated")
        seconds, memory = command("import", *log, "--db", str(database), "-q")
        first, later = ask(database)
        minutes, least = seconds / 60, parsed * records / 60
        rows = [
            _row("import", "minutes", minutes, IMPORT_MINUTES * records / RECORDS, least),
            Row("import: each record", "us", seconds / records * 1e6, parsed * 1e6),
            Row("import: memory", "GB", memory),
            Row(f"import of {TENSET:,}, projected", "minutes", minutes * TENSET / records),
            Row("file", "bytes/record", database.stat().st_size / records, size / records),
            _row("best 10 of a workload, new: median", "ms", median(first), TOP_K_MS),
            Row("best 10 of a workload, new: 99 of 100 within", "ms", quantiles(first, n=100)[-1]),
            _row("best 10 of a workload, again: median", "ms", median(later), TOP_K_MS),
        ]
        seconds, memory = command("train", "--features", "steps", "--db", str(database), "-q")
        rows += [
            _row("training", "minutes", seconds / 60, TRAIN_MINUTES),
            _row("training: memory", "GB", memory, TRAIN_GB),
        ]
    return [replace(row, name=f"{records:,} records: {row.name}") for row in rows]


def _row(name: str, unit: str, value: float, most: float, baseline: float | None = None) -> Row:
    return Row(name, unit, value, baseline, f"<= {most:.3g}", value <= most)


def _options(parser: argparse.ArgumentParser) -> None:
    default = Path(__file__).resolve().parents[2] / "shared/data"
    parser.add_argument("--data", type=Path, default=default, metavar="DIR", help="the public logs")
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument(
        "--scratch",
        type=Path,
        help="a folder on a disk with 25 GB; default: the system's for temporary files",
    )


if __name__ == "__main__":
    run(__doc__ or "", "json.loads", measure, _options)

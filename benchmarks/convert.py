"""Converting auto_scheduler's logs: how many records replay, and how fast.

Each file under the paths is read line by line; records that were measured without error are
replayed on the installed definitions in this process, and nothing is stored. A table has the counts
of each file, and below it the reason of each refusal and the keys without a definition. With
`--generated N`, N records with other tiles are made of a program of a matrix product, which differ
in decisions alone, and replayed as those of a log.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tunedb.formats.base import LogFile
from tunedb.formats.find import find_logs
from tunedb.formats.reading import read_log
from tunedb.plugins.metaschedule.convert import convert_worker
from tunedb.programs.ansor import split_steps
from tunedb.records import Measurement, Status, WorkloadFormat

CHUNK = 256


@dataclass
class Figures:
    """Counts of one file."""

    records: int = 0
    failed: int = 0
    replayed: int = 0
    seconds: float = 0.0
    undefined: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    def line(self, name: str) -> str:
        """Return a row of the table."""
        defined = self.replayed + self.refused.total()
        share = f"{self.replayed / defined:7.2%}" if defined else "      -"
        rate = f"{defined / self.seconds:6.0f}" if self.seconds else "     -"
        return (
            f"{name[-60:]:60} {self.records:7} {self.failed:6} {self.undefined.total():7} "
            f"{self.replayed:7} {self.refused.total():7} {share} {rate}"
        )


def measurements(file: LogFile, figures: Figures, every: int) -> Iterator[Measurement]:
    """Yield every n-th record of a file that was measured without error."""
    for read in read_log(file):
        item = read.item
        if (
            not isinstance(item, Measurement)
            or item.program.workload.format != WorkloadFormat.ANSOR
        ):
            continue
        figures.records += 1
        if item.status is not Status.OK:
            figures.failed += 1
        elif (figures.records - 1) % every == 0:
            yield item


def convert(file: LogFile, every: int) -> Figures:
    """Replay a file's records, a workload at a time."""
    figures = Figures()
    waiting: dict[bytes, list[Measurement]] = {}
    for item in measurements(file, figures, every):
        chunk = waiting.setdefault(item.program.workload.body, [])
        chunk.append(item)
        if len(chunk) == CHUNK:
            replay(item.program.workload.body, waiting.pop(item.program.workload.body), figures)
    for key, chunk in waiting.items():
        replay(key, chunk, figures)
    return figures


def replay(key: bytes, items: list[Measurement], figures: Figures) -> None:
    """Replay records of one workload."""
    if convert_worker.define(key) == 0:
        figures.undefined[json.loads(key)[0]] += len(items)
        return
    started = time.perf_counter()
    _, answers = convert_worker.replay(key, [item.program.trace for item in items])
    figures.seconds += time.perf_counter() - started
    figures.refused.update(answer for answer in answers if isinstance(answer, str))
    figures.replayed += sum(not isinstance(answer, str) for answer in answers)


def generated(number: int) -> float:
    """Return the records per second of programs that differ in tiles and unrolling alone."""
    rng = random.Random(1)
    size, key = 512, json.dumps(["matmul_add", 512, 512, 512, "float32"]).encode()
    exponents = range(4)

    def program() -> list[Any]:
        outer, inner, rows, columns = (2 ** rng.choice(exponents) for _ in range(4))
        return [
            *(["SP", 2, 0, size, [outer, rows, 1], 1], ["SP", 2, 4, size, [inner, 1, columns], 1]),
            *(["SP", 2, 8, size, [4], 1], ["RE", 2, [0, 4, 1, 5, 8, 2, 6, 9, 3, 7]]),
            *(["FSP", 4, 0, 0, 2], ["FSP", 4, 3, 1, 2], ["RE", 4, [0, 3, 1, 4, 2, 5]]),
            *(["CA", 2, 4, 3], ["FU", 4, [0, 1]], ["AN", 4, 0, 3], ["AN", 2, 9, 2]),
            ["PR", 2, 0, f"auto_unroll_max_step${rng.choice((0, 16, 64, 512))}"],
        ]

    traces = [split_steps(program(), None) for _ in range(number)]
    started = time.perf_counter()
    for begin in range(0, number, CHUNK):
        _, answers = convert_worker.replay(key, traces[begin : begin + CHUNK])
        if any(isinstance(answer, str) for answer in answers):
            raise SystemExit(next(answer for answer in answers if isinstance(answer, str)))
    return number / (time.perf_counter() - started)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", metavar="PATH")
    parser.add_argument("--generated", type=int, metavar="N", help="programs of one sketch")
    parser.add_argument("--every", type=int, default=1, help="only each n-th record of a file")
    options = parser.parse_args()
    problem = convert_worker.prepare((), {})
    if problem is not None:
        parser.error(problem)
    if options.generated:
        rate = generated(options.generated)
        print(f"{options.generated} generated programs of one sketch: {rate:,.0f}/s")
    if not options.paths:
        return
    print(
        f"{'file':60} {'records':>7} {'failed':>6} {'no def.':>7} {'replay':>7} {'refused':>7} "
        f"{'share':>7} {'1/s':>6}"
    )
    undefined: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for file in find_logs(options.paths):
        figures = convert(file, options.every)
        print(figures.line(str(Path(file.name))), flush=True)
        undefined += figures.undefined
        refused += figures.refused
    for title, counter in (("refused", refused), ("no definition", undefined)):
        for reason, number in counter.most_common():
            print(f"{title}: {number:7} {reason}")


if __name__ == "__main__":
    main()

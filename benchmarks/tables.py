"""The table of a million records, beside one object per record into pandas.

The records are made up: 24 workloads, two in three programs of MetaSchedule with six decisions and
one in three of auto_scheduler, three repeats, one in twenty failed, in sessions of 10,000. Each
figure is that of the fastest of three processes, each on one core.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sharing_runs import Figures, peak_mb, to_one_core

from tunedb import limits
from tunedb.identity import canonical_json
from tunedb.records import (
    Failure,
    FailureKind,
    Measurement,
    Origin,
    Phase,
    Program,
    Session,
    Source,
    Status,
    Target,
    Trace,
    Workload,
    WorkloadFormat,
)
from tunedb.storage.store import Store

RECORDS, NAIVE, RUNS = 1_000_000, 50_000, 3
WORKLOADS, FAILED, PER_SESSION = 24, 20, 10_000
START = 1_700_000_000_000_000
FAILURE = Failure(FailureKind.TIMEOUT, Phase.RUN, "timed out after 30 s", 30.0)


@dataclass(frozen=True)
class Made:
    """What all made-up records share."""

    target: Target
    graphs: list[Workload]
    keys: list[Workload]
    sketch: bytes
    steps: bytes


def shared() -> Made:
    """Return workloads, a target and sketches."""
    loops = [["SamplePerfectTile", [f"l{n}"], [4, 16], [f"v{n}"]] for n in range(6)]
    splits = [["SP", 2, n, None, [None, None, None], 1] for n in range(6)]
    return Made(
        Target.from_config({"kind": "llvm", "mcpu": "skylake", "num-cores": 8}),
        [
            Workload(WorkloadFormat.GRAPH, b'{"nodes":[%d]}' % n, f"fused_conv2d_add_relu_{n}")
            for n in range(WORKLOADS)
        ],
        [
            Workload(WorkloadFormat.ANSOR, b'["matmul",%d,64,64]' % n, f"matmul_{n}")
            for n in range(WORKLOADS)
        ],
        canonical_json(loops),
        canonical_json({"layout_rewrite": 0, "steps": splits}),
    )


def make_up(number: int) -> Iterator[Measurement]:
    """Yield made-up records."""
    made, rng = shared(), random.Random(0)
    for n in range(number):
        if n % PER_SESSION == 0:
            session = Session(f"session-{n}", START + n, b'{"cores":8,"cpu":"made up"}')
        tiles = [[1 << rng.randrange(5) for _ in range(4)] for _ in range(6)]
        if n % 3:
            decisions = canonical_json([[[2 + i, tile] for i, tile in enumerate(tiles)], [n], []])
            trace = Trace(made.sketch, None, decisions)
            workload = made.graphs[n % WORKLOADS]
        else:
            numbers = bytes([size for tile in tiles for size in tile]) + bytes(
                [n >> 14 & 127 | 128, n >> 7 & 127 | 128, n & 127]
            )
            trace, workload = Trace(made.steps, None, numbers), made.keys[n % WORKLOADS]
        best, failed = rng.lognormvariate(-8, 1), n % FAILED == 0
        yield Measurement(
            Program(workload, made.target, trace),
            None if failed else tuple(best * rng.uniform(1, 1.1) for _ in range(3)),
            Status.FAILED if failed else Status.OK,
            measured_at=START + n * 1000,
            occurrence=n,
            session=session,
            origin=rng.choice(list(Origin)),
            failure=FAILURE if failed else None,
        )


def fill(path: str, number: str) -> Figures:
    """Write a database of made-up records."""
    batch: list[Measurement] = []
    with Store(path) as store:
        for measurement in make_up(int(number)):
            batch.append(measurement)
            if len(batch) == limits.IMPORT_ROWS:
                store.batches.add(batch, Source("benchmark"))
                batch = []
        store.batches.add(batch, Source("benchmark"))
    return {}


def measured(path: str, read: Callable[[Store], Any], total: Callable[[Any], Any]) -> Figures:
    """Return time and memory of reading, with the sum of all mean times as a check."""
    import tunedb.storage.arrow  # noqa: F401 - not what is measured

    to_one_core()
    with Store(path, create=False, read_only=True) as store:
        store.counts()
        before = peak_mb()
        began = time.perf_counter()
        value = read(store)
        seconds = time.perf_counter() - began
    figures = {"s": seconds, "mb": peak_mb(), "before": before}
    return figures | {"sum": float(total(value))}


def table(path: str) -> Figures:
    """Read the table of records."""
    return measured(path, lambda store: store.table("records"), _sum)


def frame(path: str) -> Figures:
    """Read the table of records into pandas."""
    import pandas  # noqa: F401 - not what is measured
    import pyarrow  # noqa: F401

    return measured(path, lambda store: store.table("records").to_pandas(), _sum_of_frame)


def naive(path: str) -> Figures:
    """Put one object per record into pandas, as a user of a library of objects would."""
    import pandas as pd

    def read(store: Store) -> Any:
        rows = [
            {
                "record_id": record.id,
                "workload": record.measurement.program.workload.name,
                "target": record.measurement.program.target.label,
                "status": record.measurement.status.name.lower(),
                "mean_seconds": record.mean if record.measurement.status is Status.OK else None,
                "run_seconds": record.measurement.run_secs,
                "measured_at": record.measurement.measured_at,
                "source": record.source.name,
                "decisions": record.measurement.program.trace.decisions,
            }
            for record in store.records.iterate()
        ]
        return pd.DataFrame(rows)

    return measured(path, read, _sum_of_frame)


def _sum_of_frame(values: Any) -> Any:
    return values["mean_seconds"].sum()


def _sum(columns: Any) -> Any:
    """Return the sum of the column mean_seconds by pyarrow, a batch at a time."""
    import pyarrow as pa
    import pyarrow.compute as pc

    reader = pa.RecordBatchReader.from_stream(columns)
    return sum(pc.sum(batch["mean_seconds"]).as_py() or 0.0 for batch in reader)


def in_process(*arguments: Any) -> Figures:
    """Run one of the functions above in a process of its own."""
    print(f"  {arguments[0]} …", file=sys.stderr)
    command = [sys.executable, __file__, *map(str, arguments)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: Figures = json.loads(output.stdout.splitlines()[-1])
    return figures


def fastest(*arguments: Any) -> Figures:
    """Return the figures of the fastest of several processes."""
    return min((in_process(*arguments) for _ in range(RUNS)), key=lambda figures: figures["s"])


def measure(options: argparse.Namespace) -> list[Any]:
    """Return the rows of the table."""
    from common import Row

    with tempfile.TemporaryDirectory() as folder:
        path, small = Path(folder) / "all.db", Path(folder) / "some.db"
        in_process("fill", path, options.records)
        some = min(options.records, NAIVE)
        in_process("fill", small, some)
        ours, pandas = fastest("table", path), fastest("frame", path)
        ours_some, theirs = fastest("table", small), fastest("naive", small)
    assert abs(theirs["sum"] - ours_some["sum"]) <= 1e-9 * ours_some["sum"]
    assert abs(pandas["sum"] - ours["sum"]) <= 1e-9 * ours["sum"]
    title, us = f"{options.records:,} records", 1e6 / options.records
    beside = theirs["s"] * 1e6 / some
    full = options.records == RECORDS
    return [
        Row(f"{title}: table", "s", ours["s"], bar="<= 3", ok=ours["s"] <= 3 if full else None),
        Row(f"{title}: table, per record", "us", ours["s"] * us, beside),
        Row(f"{title}: table and pandas, per record", "us", pandas["s"] * us, beside),
        Row(
            f"{title}: memory of the process with the table",
            "MB",
            ours["mb"],
            bar="<= 600",
            ok=ours["mb"] <= 600 if full else None,
        ),
        Row(
            f"{some:,} records: memory that was added",
            "MB",
            ours_some["mb"] - ours_some["before"],
            theirs["mb"] - theirs["before"],
        ),
    ]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--records", type=int, default=RECORDS, help="records of the database")


COMMANDS = {one.__name__: one for one in (fill, table, frame, naive)}

if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] in COMMANDS:
        print(json.dumps(COMMANDS[sys.argv[1]](*sys.argv[2:])))
    else:
        from common import run

        run("Tables of records", "objects", measure, add_options)

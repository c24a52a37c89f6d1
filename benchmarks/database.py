"""tunedb beside TVM's JSONDatabase: open, top-k, commit, memory and size.

Each figure is taken in a fresh process, the two databases in turn. `--quick` leaves out 100,000
records (TVM needs minutes to open them) and checks no bar that names them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import Row, approve, run

#: Name of a figure → its value.
Figures = dict[str, float]

SIZES = (10_000, 100_000)
WORKLOADS = (1, 100)
MISSING = 3
BATCHES = 25

#: Microseconds per second.
US = 1e6


def timed(function: Callable[[], Any], repeat: int) -> float:
    """Return the median time of a call in microseconds."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * US


def rss_mb() -> float:
    """Return this process's resident memory in MB."""
    text = Path("/proc/self/statm").read_text(encoding="ascii")
    return int(text.split()[1]) * resource.getpagesize() / 1e6


# ---- one process, one database -----------------------------------------------------------------


def child(kind: str, path: str, operator: str, workloads: int, synchronous: str) -> None:
    """Measure one database and print the figures as JSON."""
    import records
    import tvm
    from tvm.s_tir import meta_schedule as ms

    from tunedb.plugins.metaschedule import Database
    from tunedb.storage import engine

    engine.SYNCHRONOUS = synchronous
    make = {"matmul": records.matmul, "conv2d": records.conv2d}[operator]
    mods = [make(tag=tag) for tag in range(workloads + MISSING)]
    target = tvm.target.Target(records.TARGET)
    # Everything that either needs is loaded before the clock starts.
    Database(":memory:", target=target).close()

    def open_it() -> Any:
        if kind == "json":
            return ms.database.JSONDatabase(work_dir=path)
        return Database(path, target=target)

    figures: Figures = {}
    before, start = rss_mb(), time.perf_counter()
    database = open_it()
    figures["open_s"] = time.perf_counter() - start
    figures["open_mb"] = rss_mb() - before
    tokens = [database.commit_workload(mod) for mod in mods]
    if kind == "tunedb":
        figures |= cold(open_it, mods[:workloads])
    figures |= warm(database, tokens, mods, workloads, target)
    if kind == "tunedb":
        figures |= commits(database, mods[0], tokens[0])
    figures["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(json.dumps(figures))


def cold(open_it: Callable[[], Any], mods: list[Any]) -> Figures:
    """Return times of the first top-k of a new handle, whose caches are empty."""
    figures = {}
    for k in (1, 32):
        times = []
        for index in range(21):
            handle = open_it()
            mod = mods[index % len(mods)]
            token = handle.commit_workload(mod)
            start = time.perf_counter()
            found = handle.get_top_k(token, k)
            times.append(time.perf_counter() - start)
            if len(found) != k:
                raise AssertionError(f"{len(found)} records instead of {k}")
            handle.close()
        figures[f"cold_{k}_us"] = statistics.median(times[1:]) * US
    return figures


def warm(database: Any, tokens: list[Any], mods: list[Any], workloads: int, target: Any) -> Figures:
    """Return times of queries whose records are TVM objects already."""
    figures = {}
    for k in (1, 10, 32):
        for token in tokens[:workloads]:
            database.get_top_k(token, k)
        turn = iter(tokens[i % workloads] for i in range(10**9))
        figures[f"live_{k}_us"] = timed(
            lambda k=k, turn=turn: database.get_top_k(next(turn), k), 400
        )
    missing = tokens[-1]
    figures["missing_us"] = timed(lambda: database.get_top_k(missing, 1), 20)
    figures["has_workload_us"] = timed(lambda: database.has_workload(mods[0]), 200)
    figures["query_record_us"] = timed(
        lambda: database.query_tuning_record(mods[0], target, "main"), 100
    )
    figures["query_schedule_us"] = timed(
        lambda: database.query_schedule(mods[0], target, "main"), 10
    )
    return figures


def commits(database: Any, mod: Any, token: Any) -> Figures:
    """Return the time of a commit alone and per record of a batch of 64, JSONDatabase in turn.

    Its own is empty, which is its best case; it has no batches, so one is as many commits.
    """
    import records
    from tvm.s_tir import meta_schedule as ms

    from tunedb.plugins.metaschedule.database.handle import Candidate
    from tunedb.plugins.metaschedule.trace_codec import floats_of

    drawn = records.draw(mod)
    times: dict[str, list[float]] = {name: [] for name in ("alone", "batch", "theirs")}

    def clock(name: str, function: Callable[[], Any], n: int = 1) -> None:
        start = time.perf_counter()
        function()
        times[name].append((time.perf_counter() - start) / n)

    def with_workload(workload: Any) -> list[Any]:
        fields = [(r.trace, workload, r.run_secs, r.target, r.args_info) for r in drawn]
        return [ms.database.TuningRecord(*field) for field in fields]

    def batch() -> None:
        database.record_batch(
            [Candidate(token, r.trace, r.target, r.args_info, floats_of(r.run_secs)) for r in ours]
        )

    def one_by_one() -> None:
        for record in theirs:
            other.commit_tuning_record(record)

    ours = with_workload(token)
    with tempfile.TemporaryDirectory() as folder:
        other = ms.database.JSONDatabase(work_dir=folder)
        theirs = with_workload(other.commit_workload(mod))
        for record in ours:
            clock("alone", lambda record=record: database.commit_tuning_record(record))
        for _ in range(BATCHES):
            database.record_batch([])  # forget that these traces were committed
            clock("batch", batch, len(ours))
            clock("theirs", one_by_one, len(theirs))
    medians = {name: statistics.median(values) * US for name, values in times.items()}
    return {
        "commit_alone_us": medians["alone"],
        "commit_batch_us": medians["batch"],
        "json_commit_us": medians["theirs"],
    }


# ---- the parent ---------------------------------------------------------------------------------


def measure_child(
    kind: str, path: Path, operator: str, workloads: int, synchronous: str = "NORMAL"
) -> Figures:
    """Return the figures of one database, measured in a fresh process on a copy of it."""
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        copy = Path(scratch) / path.name
        if path.is_dir():
            shutil.copytree(path, copy)
        else:
            approve(Path(shutil.copy(path, copy)))
        command = [sys.executable, __file__, "--child", kind, str(copy), operator]
        command += [str(workloads), synchronous]
        print(f"  {kind} {path.name} {synchronous} …", file=sys.stderr)
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def prepare(scratch: Path, operator: str, n: int, workloads: int) -> tuple[Path, Path]:
    """Write the same records as a JSON work directory and as a tunedb file."""
    import records

    import tunedb
    from tunedb.formats.find import find_logs
    from tunedb.formats.importer import import_log
    from tunedb.plugins.metaschedule import Database

    make = {"matmul": records.matmul, "conv2d": records.conv2d}[operator]
    mods = [make(tag=tag) for tag in range(workloads)]
    name = f"{operator}-{n}-{workloads}"
    folder, file = scratch / name, scratch / f"{name}.db"
    records.write_json_database(folder, mods, n, records.draw(mods[0]))
    # Workloads as a tuning run commits them, records through the importer.
    database = Database(file, target=records.TARGET)
    for mod in mods:
        database.commit_workload(mod)
    database.close()
    with tunedb.open(str(file)) as store:
        for log in find_logs([folder]):
            report = import_log(store, log, source=log.name)
            if report.total.new != n:
                raise AssertionError(report)
    return folder, file


def rows_of(
    name: str,
    n: int,
    workloads: int,
    theirs: Figures,
    ours: Figures,
    full: Figures,
) -> list[Row]:
    """Return the table's lines for one database, with the bars that apply to it."""
    big = n == 100_000 and name.startswith("matmul")
    many = big and workloads == 100

    def row(
        label: str, unit: str, key: str, base: str | None = None, bar: str = "", ok: Any = None
    ) -> Row:
        return Row(f"{name}: {label}", unit, ours[key], theirs.get(base or key), bar, ok)

    ratio = theirs["open_s"] / ours["open_s"]
    mb = ours["open_mb"]
    rows = [
        row(
            "open", "s", "open_s", bar=">= 1,000x" if big else "", ok=ratio >= 1000 if big else None
        ),
        row(
            "memory of open",
            "MB",
            "open_mb",
            bar="< 60 MB" if big else "",
            ok=mb < 60 if big else None,
        ),
        row("peak memory", "MB", "peak_mb"),
    ]
    bars: dict[str, tuple[str, bool]] = {}
    if many:
        live_1, live_32 = ours["live_1_us"], ours["live_32_us"]
        bars = {
            "cold_1_us": ("< 600 µs", ours["cold_1_us"] < 600),
            "cold_32_us": ("<= 2x", ours["cold_32_us"] <= 2 * theirs["live_32_us"]),
            "live_1_us": ("<= 1x", live_1 <= theirs["live_1_us"]),
            "live_32_us": ("5x faster", live_32 * 5 <= theirs["live_32_us"]),
            "missing_us": ("< 1,000 µs", ours["missing_us"] < 1000),
            "commit_alone_us": ("< 1,000 µs", ours["commit_alone_us"] < 1000),
            "commit_batch_us": ("<= 1x", ours["commit_batch_us"] <= ours["json_commit_us"]),
        }
    labels = {
        "cold_1_us": ("top-1, new handle", "live_1_us"),
        "cold_32_us": ("top-32, new handle", "live_32_us"),
        "live_1_us": ("top-1, live", None),
        "live_10_us": ("top-10, live", None),
        "live_32_us": ("top-32, live", None),
        "missing_us": ("top-1, no records", None),
        "has_workload_us": ("has_workload", None),
        "query_record_us": ("query_tuning_record", None),
        "query_schedule_us": ("query_schedule", None),
        "commit_alone_us": ("commit alone", None),
        "commit_batch_us": ("commit in a batch of 64", None),
    }
    for key, (label, base) in labels.items():
        bar, ok = bars.get(key, ("", None))
        if key.startswith("commit"):
            rows.append(Row(f"{name}: {label}", "µs", ours[key], ours["json_commit_us"], bar, ok))
        else:
            rows.append(row(label, "µs", key, base, bar, ok))
    for key in ("commit_alone_us", "commit_batch_us"):
        label = f"{name}: {labels[key][0]}, synchronous=FULL"
        rows.append(Row(label, "µs", full[key], full["json_commit_us"]))
    return rows


def measure(options: argparse.Namespace) -> list[Row]:
    """Return all lines of the table."""
    rows = []
    plan = [("matmul", n, w) for n in SIZES for w in WORKLOADS] + [("conv2d", 1_000, 1)]
    if options.quick:
        plan = [("matmul", 1_000, 10), ("conv2d", 200, 1)]
    with tempfile.TemporaryDirectory(dir=options.directory) as scratch:
        for operator, n, workloads in plan:
            folder, file = prepare(Path(scratch), operator, n, workloads)
            theirs = measure_child("json", folder, operator, workloads)
            ours = measure_child("tunedb", file, operator, workloads)
            full = measure_child("tunedb", file, operator, workloads, "FULL")
            name = f"{operator} {n:,} in {workloads}"
            rows += rows_of(name, n, workloads, theirs, ours, full)
            sizes = [sum(f.stat().st_size for f in folder.iterdir()), file.stat().st_size]
            rows.append(Row(f"{name}: file per record", "B", sizes[1] / n, sizes[0] / n))
            shutil.rmtree(folder)
            file.unlink()
    if not options.no_tuning:
        rows.append(tuning_row())
    return rows


def tuning_row() -> Row:
    """Return the line of the builders (see benchmarks/warm_builder.py)."""
    import warm_builder

    figures = warm_builder.measure()
    ours, theirs = (statistics.median(figures["seconds"][name]) for name in ("warm", "local"))
    return Row(
        "tune matmul, 64 trials in 4 batches (LocalBuilder / WarmBuilder)",
        "s",
        ours,
        theirs,
        f"<= {warm_builder.LIMIT} of LocalBuilder",
        figures["ratio"] <= warm_builder.LIMIT,
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add this script's options."""
    parser.add_argument("--quick", action="store_true", help="small databases, no bars")
    parser.add_argument("--no-tuning", action="store_true", help="leave out the builders")
    parser.add_argument("--directory", default=os.environ.get("TMPDIR"), help="where to put files")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]), sys.argv[6])
    else:
        run(
            "Databases of MetaSchedule: TVM's JSONDatabase and tunedb",
            "JSONDatabase",
            measure,
            add_options,
        )

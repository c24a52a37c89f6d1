"""What ``sharing.py`` measures, each in a process of its own."""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

#: Name of a figure → its value.
Figures = dict[str, float]

#: Records that a tuner adds at once.
BATCH = 64

US, MB = 1e6, 2**20


def to_one_core() -> None:
    """Leave this process one core."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def peak_mb() -> float:
    """Return the most memory that this process has held, in MB."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / MB
    raise AssertionError("no VmHWM")


def make(data: str, database: str, number: str, seed: str, start: str) -> Figures:
    """Make a database, or add to one."""
    from multiplied import fill, measured, multiply

    began = time.perf_counter()
    records = multiply(measured(Path(data)), int(number), int(seed), start=int(start))
    new = fill(Path(database), records)
    return {"new": new, "s": time.perf_counter() - began}


def merge(source: str, database: str) -> Figures:
    """Merge a database into another, and once more, when all is known."""
    from tunedb.exchange.merge import merge as merge_all
    from tunedb.exchange.peers import open_peer
    from tunedb.storage.store import Store

    to_one_core()
    figures: Figures = {}
    for name in ("new", "known"):
        with Store(database) as store:
            began = time.perf_counter()
            peer = open_peer(source)
            try:
                report = merge_all(store, peer)
            finally:
                peer.close()
            seconds = time.perf_counter() - began
            number = getattr(report, name)
            figures |= {f"{name} us": seconds / max(number, 1) * US, f"{name} s": seconds}
            figures[name] = number
    return figures | {"mb": peak_mb()}


def pull(source: str, database: str) -> Figures:
    """Pull what is new."""
    from tunedb.exchange.sync import pull as pull_new
    from tunedb.storage.store import Store

    to_one_core()
    began = time.perf_counter()
    with Store(database) as store:
        report = pull_new(store, source)
    return {"s": time.perf_counter() - began, "new": report.new, "mb": peak_mb()}


def export_and_import(source: str, folder: str) -> Figures:
    """Write a database as JSON and import that into another one, and once more."""
    from tunedb.formats.export import export_metaschedule
    from tunedb.formats.find import find_logs
    from tunedb.formats.importer import import_log
    from tunedb.storage.store import Store

    to_one_core()
    out = Path(folder)
    began = time.perf_counter()
    with Store(source, read_only=True) as store:
        export_metaschedule(store, out)
    figures: Figures = {}
    # The first time the export counts too: it is how the records get there.
    for name in ("new", "known"):
        with Store(out.with_suffix(".db")) as store:
            totals = [import_log(store, log, source=log.name).total for log in find_logs([out])]
        read = sum(getattr(total, name) for total in totals)
        figures[f"{name} us"] = (time.perf_counter() - began) / max(read, 1) * US
        began = time.perf_counter()
    return figures


def join(data: str) -> Figures:
    """Load JSONDatabases and commit their records to another one, as TVM's users do.

    The measured records themselves: TVM replays what it loads, and not all tile sizes fit.
    """
    from tvm.s_tir import meta_schedule as ms

    to_one_core()
    number = 0
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as other:
        mine = ms.database.JSONDatabase(work_dir=other)
        for path in sorted(Path(data).rglob("database_tuning_record.json")):
            theirs = ms.database.JSONDatabase(work_dir=str(path.parent))
            for record in theirs.get_all_tuning_records():
                workload = mine.commit_workload(record.workload.mod)
                mine.commit_tuning_record(
                    ms.database.TuningRecord(
                        record.trace, workload, record.run_secs, record.target, record.args_info
                    )
                )
                number += 1
    return {"us": (time.perf_counter() - began) / max(number, 1) * US}


def bundle(source: str, file: str) -> Figures:
    """Write a bundle, and merge it into an empty database."""
    from tunedb.exchange.bundle import new_manifest, write_bundle
    from tunedb.exchange.database_peer import DatabasePeer
    from tunedb.storage.exchange_types import EVERYTHING

    to_one_core()
    began = time.perf_counter()
    peer = DatabasePeer(source, own=True)
    try:
        chunks = peer.chunks(EVERYTHING)
        write_bundle(file, chunks, new_manifest(peer.store_key, EVERYTHING))
    finally:
        peer.close()
    return {"s": time.perf_counter() - began, "bytes": Path(file).stat().st_size, "mb": peak_mb()}


def write(data: str, url: str, seed: str, batches: str, gate: str) -> Figures:
    """Add batches as a tuner does, when the gate opens; say how long each took."""
    from multiplied import SOURCE, measured, multiply

    from tunedb.errors import TuneDBError
    from tunedb.storage.store import Store

    known = measured(Path(data))
    random.Random(int(seed)).shuffle(known)
    made = list(multiply(known, int(batches) * BATCH, int(seed)))
    waits, errors = [], 0
    with Store(url) as store:
        Path(gate, seed).touch()
        while not Path(gate, "open").exists():
            time.sleep(0.01)
        began = time.time()
        for at in range(0, len(made), BATCH):
            start = time.perf_counter()
            try:
                store.batches.add(made[at : at + BATCH], SOURCE)
            except TuneDBError:
                errors += 1
            waits.append(time.perf_counter() - start)
    return {
        "began": began,
        "ended": time.time(),
        "longest": max(waits),
        "median": statistics.median(waits),
        "errors": errors,
    }


FUNCTIONS: dict[str, Callable[..., Figures]] = {
    one.__name__: one for one in (make, merge, pull, export_and_import, join, bundle, write)
}

if __name__ == "__main__":
    print(json.dumps(FUNCTIONS[sys.argv[1]](*sys.argv[2:])))

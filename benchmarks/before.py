"""The hot paths of this checkout beside those of an earlier one, in turn.

    git worktree add ../before COMMIT && make -C ../before setup
    .venv/bin/python benchmarks/before.py ../before --check

Both run the same work on the same records, each with the interpreter of its own checkout, one after
the other. Processor time counts, and the median of the ratios of neighbouring runs: a machine that
is busy slows both. Each checkout runs its own copy of this file, in the words of its own interface.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RUNS = 7
RECORDS, WORKLOADS, BATCHES = 20_000, 16, 100

#: What may be slower, and by how much; a merge looks at more than before.
ALLOWED = {"merge": 1.10}
ALLOWED_ELSE = 1.03


def work(n_records: int = RECORDS, n_batches: int = BATCHES) -> dict[str, float]:
    """Return the seconds of processor time of each hot path, in this process."""
    from builders import OWN, make_measurement, make_session

    from tunedb.exchange.database_peer import DatabasePeer
    from tunedb.exchange.merge import merge
    from tunedb.records import Alias, Failure, FailureKind, Phase
    from tunedb.storage.store import Store

    why = Failure(FailureKind.TIMEOUT, Phase.RUN, "killed", 10.0)
    sessions = [make_session(number) for number in range(4)]

    def record(number: int) -> Any:
        of = {"workload": number % WORKLOADS, "occurrence": number, "session": sessions[number % 4]}
        if number % 8 == 7:
            return make_measurement(number, None, failure=why, **of)
        return make_measurement(number, (1e-3 + 1e-7 * number,), **of)

    records = [record(number) for number in range(n_records)]
    live = [
        make_measurement(
            n_records + number, (2e-3,), workload=number % WORKLOADS, occurrence=number
        )
        for number in range(64 * n_batches)
    ]
    found: dict[str, float] = {}

    def timed(name: str, path: Callable[[], object]) -> None:
        begin = time.process_time()
        path()
        found[name] = time.process_time() - begin

    with tempfile.TemporaryDirectory(prefix="tunedb-benchmark-") as folder:
        os.environ["XDG_CONFIG_HOME"] = folder
        ours, theirs = Path(folder) / "ours.db", Path(folder) / "theirs.db"
        ids = range(1, WORKLOADS + 1)
        with Store(ours) as store:
            timed("import", lambda: store.records.add(records, OWN))
            for id_ in ids:
                names = [
                    Alias("script", f"{id_:032x}"),
                    Alias("tvm:0.27.0:structural", f"{id_:016x}"),
                ]
                store.workloads.add(store.workloads.get(id_), names)
            batches = [live[at : at + 64] for at in range(0, len(live), 64)]
            timed("commit", lambda: [store.batches.add(batch, OWN) for batch in batches])
            timed(
                "top-k ids",
                lambda: [store.answers.best_ids([w], [1], 64) for _ in range(60) for w in ids],
            )
            timed(
                "top-k records",
                lambda: [store.records.top_k([w], [1], 8) for _ in range(20) for w in ids],
            )
            timed(
                "answer",
                lambda: [store.answers.get(1 + 8 * n % (n_records // 2)) for n in range(2_000)],
            )
        with Store(theirs) as store:
            peer = DatabasePeer(ours, own=True)
            timed("merge", lambda: merge(store, peer))
            peer.close()
    return found


def run_in(checkout: Path) -> dict[str, float]:
    """Return :func:`work` of a checkout."""
    interpreter, script = (checkout / ".venv/bin/python", checkout / "benchmarks/before.py")
    command = [str(interpreter), str(script), "--work"]
    paths = os.pathsep.join(str(checkout / name) for name in ("tests", "benchmarks"))
    done = subprocess.run(
        command,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def measure(options: argparse.Namespace) -> list[Row]:
    """Return the times of each path, and the median of the ratios."""
    here, before = Path(__file__).resolve().parents[1], options.before.resolve()
    pairs = [(run_in(before), run_in(here)) for _ in range(RUNS)]
    rows = []
    for name in pairs[0][0]:
        old, new = (
            statistics.median(run[name] for run in runs) for runs in zip(*pairs, strict=True)
        )
        ratio = statistics.median(b[name] / a[name] for a, b in pairs)
        allowed = ALLOWED.get(name, ALLOWED_ELSE)
        bar = f"{ratio:.3f} of before <= {allowed:.2f}"
        rows.append(Row(name, "ms of CPU", new * 1e3, old * 1e3, bar, ratio <= allowed))
    return rows


if __name__ == "__main__":
    if "--work" in sys.argv:
        work(200, 1)  # loads what is imported late: the time of a command, not of a path
        print(json.dumps(work()))
    else:
        from common import Row, run

        run(
            "The hot paths before and now",
            "before",
            measure,
            lambda parser: parser.add_argument("before", type=Path, help="the earlier checkout"),
        )

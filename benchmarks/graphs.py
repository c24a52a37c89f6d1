"""Workloads of earlier TVMs: how many graphs become modules, and how many traces replay.

Each log below DATA is imported into a database of its own. Of every workload whose graph is not of
the TVM that runs, the script rebuilds the module from the graph, compares its structure with the
graph's (extents and kinds of all loops, shapes and types of all arguments), and replays the traces
of all its programs on it. Each refusal is printed with its reason.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from common import Row, run

#: Least share of workloads rebuilt, and of traces replayed.
BAR = 0.95

#: Programs read at once.
PAGE = 512


def tried(refusals: Counter[str], what: str, action: Callable[[], object]) -> bool:
    """Return whether an action succeeds; count the reason if it does not."""
    from tunedb.plugins.metaschedule.targets import first_line

    try:
        action()
    except Exception as error:  # TVM raises any class
        refusals[f"{what}: {first_line(error)}"] += 1
        return False
    return True


def count(path: Path, log: object, refusals: Counter[str]) -> tuple[Counter[str], Counter[str]]:
    """Import a log; return the numbers of its old workloads and traces, and of those that work."""
    from tunedb.formats.importer import import_log
    from tunedb.plugins.metaschedule import modules
    from tunedb.plugins.metaschedule.database.workloads import WorkloadTable
    from tunedb.plugins.metaschedule.workers.replay import Replayer
    from tunedb.programs.workload_info.structure import structure_of
    from tunedb.records import MODULES
    from tunedb.storage.store import Store

    total: Counter[str] = Counter()
    done: Counter[str] = Counter()
    with Store(path) as store:
        import_log(store, log, source="benchmark")
        table, replayer = WorkloadTable(store, "structural"), Replayer(store)

        def require_rebuilt(id_: int) -> None:
            known = table.get(id_)
            if known is None:
                raise ValueError(table.why_lost(id_))
            if structure_of(known.record) != modules.structure_of_module(known.workload.mod):
                raise ValueError("the module has another structure than the graph")

        seen = set()
        first = 1
        while programs := store.programs.get(range(first, first + PAGE)):
            first += PAGE
            for program in programs:
                record = program.workload
                if record.format not in MODULES or modules.is_readable(record):
                    continue
                if program.workload_id not in seen:
                    seen.add(program.workload_id)
                    total["workloads"] += 1
                    done["workloads"] += tried(
                        refusals, "workload", partial(require_rebuilt, program.workload_id)
                    )
                total["traces"] += 1
                done["traces"] += tried(refusals, "trace", partial(replayer.module, program))
    return total, done


def measure(options: argparse.Namespace) -> list[Row]:
    """Return the counts of each log, and of all."""
    from tunedb.formats.find import find_logs

    rows = []
    totals: Counter[str] = Counter()
    dones: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for number, log in enumerate(find_logs([options.data])):
            total, done = count(Path(folder) / f"{number}.db", log, refusals)
            name = str(Path(log.name).parent.relative_to(options.data))
            rows += [Row(name, what, done[what], total[what]) for what in total]
            totals += total
            dones += done
    for what in ("workloads", "traces"):
        holds = dones[what] >= BAR * totals[what] > 0
        rows.append(Row("all", what, dones[what], totals[what], f">= {BAR:.0%}", holds))
    for reason, number in refusals.most_common():
        print(f"{number:6} {reason}")
    return rows


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", metavar="DATA", help="folder of MetaSchedule's databases")


if __name__ == "__main__":
    run("Workloads and traces of earlier TVMs", "stored", measure, add_options)

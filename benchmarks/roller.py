"""The public logs that `cost_model.py` trains and evaluates on, as examples and splits.

Roller's artifact (OSDI 2022, MIT licence) has Ansor's logs of the same operators on a V100 and a
K80. Both name the same target, so the times of common programs distinguish the two machines, as in
any database (`tunedb sessions`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tunedb.extraction.extract import extract
from tunedb.features.steps import STEPS
from tunedb.formats.base import LogFile
from tunedb.formats.importer import import_log
from tunedb.models import dataset, sessions, splits
from tunedb.models.dataset import Dataset
from tunedb.models.splits import NEW_HARDWARE, Split, SplitPlan
from tunedb.storage.store import Store

#: Archives in DATA/costmodel/roller_ansor; the numbers are all records after it.
ARCHIVES = {"V100": ("v100.jsonl.xz", 88_210), "K80": ("k80.jsonl.xz", 181_286)}

#: Workloads of fewer records are no tasks: they were tuned for a moment.
FEWEST = 200
#: A family of which Ansor has next to nothing to choose.
TRIVIAL = "elementwise"

#: How many workloads no split ever holds out; recipes are chosen on them.
DEVELOPMENT = 35
#: What each of so many seeds holds out of the others.
SEEDS, HELD_OUT = 5, 19


@dataclass(frozen=True)
class Roller:
    """The records of both machines, and which workloads are tasks.

    Parameters
    ----------
    examples : Dataset
        Of the tasks, on both machines.
    machine : dict
        ``V100`` and ``K80`` → whether each example is of it, shape (n,).
    development : frozenset of int
        Workloads that recipes are chosen on.
    """

    examples: Dataset
    machine: dict[str, Any]
    development: frozenset[int]

    def first_trials(self, name: str) -> Dataset:
        """Return the first round of each task on a machine."""
        return self.examples.take(self.machine[name] & (self.examples.trials < splits.FIRST_ROUND))


def import_archives(store: Store, data: Path) -> None:
    """Import both archives, and extract features."""
    for name, (file, expected) in ARCHIVES.items():
        path = data / "costmodel" / "roller_ansor" / file
        if not path.exists():
            raise SystemExit(f"{path} is missing")
        import_log(store, LogFile(path, file), source=name)
        new = store.records.count()
        if new != expected:
            raise SystemExit(f"{path}: {new} records instead of {expected}")
    extract(store, STEPS)


def read(store: Store) -> Roller:
    """Return the tasks of a database with both archives."""
    (estimate,) = sessions.update(store)
    everything = dataset.load(store, STEPS)
    machines = np.array([group.machine for group in everything.groups])[everything.group]
    is_machine = {
        store.sources.get(one.subject_id).name: machines == str(one.machine)
        for one in estimate.factors
    }
    tasks = np.bincount(everything.workload[is_machine["V100"]]) >= FEWEST
    tasks &= np.array([workload.family != TRIVIAL for workload in everything.workloads])
    chosen = tasks[everything.workload]
    examples = everything.take(chosen)
    return Roller(
        examples,
        {name: told[chosen] for name, told in is_machine.items()},
        splits.development(examples, DEVELOPMENT),
    )


def unseen_workloads(roller: Roller) -> list[Split]:
    """Return the splits by workload on the V100."""
    v100 = roller.machine["V100"]
    plan = SplitPlan(seeds=SEEDS, held_out=HELD_OUT, never=roller.development)
    return [
        Split(one.regime, one.name, one.train[v100[one.train]], one.test[v100[one.test]])
        for one in splits.new_workload(roller.examples, plan)
    ]


def unseen_hardware(roller: Roller) -> list[Split]:
    """Return what the same splits hold out on the V100, learnt from all tasks on the K80."""
    known = np.flatnonzero(roller.machine["K80"])
    return [Split(NEW_HARDWARE, one.name, known, one.test) for one in unseen_workloads(roller)]

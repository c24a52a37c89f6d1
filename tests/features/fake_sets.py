"""Small feature sets for tests of extraction and storage."""

from dataclasses import dataclass, field

import numpy as np

from tunedb.features.base import Needs


@dataclass
class Steps:
    """Features of steps: a row with the id of a program and the length of its decisions."""

    name: str = "fake.steps"
    version: int = 1
    columns: tuple[str, ...] = ("id", "decisions")
    needs: Needs = Needs.STEPS
    calls: list[int] = field(default_factory=list)
    fails: frozenset[int] = frozenset()

    def rows(self, programs):
        self.calls.append(len(programs))
        return [
            ValueError(f"no rows\nof {program.id}")
            if program.id in self.fails
            else np.array([[program.id, len(program.trace.decisions)]], np.float32)
            for program in programs
        ]


@dataclass
class Scheduled:
    """Features of scheduled modules: one row with one column."""

    name: str = "fake.scheduled"
    version: int = 1
    columns: tuple[str, ...] = ("one",)
    needs: Needs = Needs.SCHEDULED

    def nest_rows(self, nest, *, gpu):
        return np.ones((1, 1))


class Rebuilder:
    """Returns rows as a replay would, and records the ids of the requested programs."""

    def __init__(self, fails=()):
        self.fails = set(fails)
        self.asked = []

    def rows(self, programs):
        for program in programs:
            self.asked.append(program.id)
            if program.id in self.fails:
                yield program, RuntimeError("TVM said no")
            else:
                yield program, np.full((program.id % 3, 1), program.id, np.float64)

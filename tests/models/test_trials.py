"""Datasets of records, compared with those of a plain loop."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from small_data import SMALL_STEPS

from tunedb.errors import NotFoundError
from tunedb.models.dataset import FAILURES, dataset_of
from tunedb.records import NO_TARGET, FailureKind, Signature
from tunedb.results import SessionFactor
from tunedb.storage.training import TrainingRecords

INFRASTRUCTURE = FAILURES.index(FailureKind.INFRASTRUCTURE)
UNKNOWN = FAILURES.index(FailureKind.UNKNOWN)

#: Digests, not in the order of ids.
WORKLOADS = {1: b"c" * 16, 2: b"a" * 16, 3: b"b" * 16}
TARGETS = {1: b"y" * 16, 2: b"x" * 16}
#: Target 2 has two machines.
FACTORS = {(1, 1): (0, 2.0), (1, -1): (0, 4.0), (2, 1): (1, 1.0), (2, 2): (0, 0.5)}


class Catalog:
    """The methods of a store that `dataset_of` calls."""

    location = "here"

    def __init__(self):
        self.training = self.runs = self.targets = self

    def get(self, _id):
        return NO_TARGET

    def workloads(self, ids):
        found = [(i, d, f"w{i}", Signature()) for i, d in WORKLOADS.items() if i in ids]
        return sorted(found, key=lambda one: one[1])

    def target_digests(self):
        return TARGETS

    def factors(self, target_id):
        return [
            SessionFactor("session" if s > 0 else "source", abs(s), machine, factor, None, 0)
            for (target, s), (machine, factor) in FACTORS.items()
            if target == target_id
        ]


@dataclass(frozen=True)
class Row:
    """One record; its id is its place."""

    program: int
    subject: int
    failed: bool
    failure: int
    measured_at: int
    cost: float
    origin: int
    times: tuple[float, ...]
    all_have_features: bool = True
    cut_short: bool = False

    @property
    def workload(self):
        return 1 + self.program % 3

    @property
    def target(self):
        return 1 + self.program // 3 % 2

    @property
    def digest(self):
        # High numbers first, and some that differ in their second half alone.
        return (2**64 - 1 - self.program // 8, self.program * 2**60 % 2**64)

    @property
    def n_rows(self):
        return self.program % 4 if self.all_have_features else self.program % 4 - 1

    @property
    def good(self):
        """The valid run times of a successful record."""
        return [] if self.failed else [t for t in self.times if t > 0 and t != 1e10]

    @property
    def counts(self):
        return bool(self.good) or (self.failed and self.failure != INFRASTRUCTURE)


TIMES = st.sampled_from([1e10, 0.0, -1.0, 1.0, 2.0, 4.0, 8.0])
ROWS = st.lists(
    st.builds(
        Row,
        program=st.integers(1, 14),
        subject=st.sampled_from([1, 2, -1, -2]),
        failed=st.booleans(),
        failure=st.integers(0, len(FAILURES) - 1),
        measured_at=st.sampled_from([0, *range(1, 40)]),
        cost=st.sampled_from([np.nan, 0.5, 1.0, 2.0]),
        origin=st.integers(0, 5),
        cut_short=st.booleans(),
        times=st.lists(TIMES, max_size=4).map(tuple),
    ),
    max_size=25,
)


def read(rows, corrected=False):
    """Return the dataset of rows, and the counts."""
    store = Catalog()
    return dataset_of(store, SMALL_STEPS, columns(rows), "median", corrected=corrected)


def columns(rows):
    return TrainingRecords(
        ids=np.arange(len(rows)),
        program_ids=np.array([r.program for r in rows], np.int64),
        workload_ids=np.array([r.workload for r in rows], np.int64),
        target_ids=np.array([r.target for r in rows], np.int64),
        digests=np.array([r.digest for r in rows], np.uint64).reshape(-1, 2),
        subjects=np.array([r.subject for r in rows], np.int64),
        failed=np.array([r.failed for r in rows], bool),
        cut_short=np.array([r.cut_short and not r.failed for r in rows], bool),
        failures=np.array([r.failure if r.failed else 0 for r in rows], np.int8),
        measured_at=np.array([r.measured_at for r in rows], np.int64),
        costs=np.array([r.cost for r in rows], np.float64),
        origins=np.array([r.origin for r in rows], np.int8),
        n_times=np.array([len(r.times) for r in rows], np.int64),
        times=np.array([t for r in rows for t in r.times], np.float64),
        n_rows=np.array([r.n_rows for r in rows], np.int64),
        n_columns=np.array([4 if r.n_rows >= 0 else -1 for r in rows], np.int64),
    )


def machine_of(row):
    return FACTORS.get((row.target, row.subject), (0, 1.0))


def reference(rows, corrected):
    """Return the outcome of each program by (workload, target, machine) and its digest."""
    groups = {}
    for id_, row in enumerate(rows):
        if row.counts:
            key = (WORKLOADS[row.workload], TARGETS[row.target], machine_of(row)[0])
            groups.setdefault(key, []).append((id_, row))
    found = {}
    for key, records in groups.items():
        if all(row.measured_at for _, row in records):
            records.sort(key=lambda pair: (pair[1].measured_at, pair[0]))
        programs = {}
        for _, row in records:
            programs.setdefault(row.digest, []).append(row)
        found[key] = {
            digest: outcome(mine, trial, corrected)
            for trial, (digest, mine) in enumerate(programs.items())
        }
    return {key: examples for key, programs in found.items() if (examples := learnable(programs))}


def learnable(programs):
    """Return the programs of a group; without those cut short if no program ran to its end."""
    if any(p["seconds"] and not p["cut_short"] for p in programs.values()):
        return programs
    return {digest: program for digest, program in programs.items() if not program["cut_short"]}


def outcome(mine, trial, corrected):
    """Return the expected outcome of a program from its records in order."""
    good = [row for row in mine if row.good]
    worked = [row for row in good if not row.cut_short] or good
    telling = worked or mine
    times = [t / (machine_of(row)[1] if corrected else 1) for row in worked for t in row.good]
    costs = [row.cost for row in telling if not np.isnan(row.cost)]
    return {
        "program": mine[0].program,
        "seconds": float(np.median(times)) if times else None,
        "failure": 0 if worked else (mine[-1].failure or UNKNOWN),
        "trial": trial,
        "origin": mine[0].origin,
        "cost": float(np.mean(costs)) if costs else None,
        "cut_short": bool(worked) and all(row.cut_short for row in worked),
    }


def number(value):
    return None if np.isnan(value) else float(value)


@given(ROWS, st.booleans())
def test_dataset_equals_that_of_a_plain_loop_over_records(rows, corrected):
    expected = reference(rows, corrected)
    if not expected:
        with pytest.raises(NotFoundError):
            read(rows, corrected)
        return
    trials, counts = read(rows, corrected)
    digests = {row.program: row.digest for row in rows}
    found = {}
    for i in range(len(trials)):
        group = trials.groups[trials.group[i]]
        machine = int(group.machine or 0)
        workload = trials.workloads[group.workload]
        assert WORKLOADS[workload.id] == workload.digest
        assert TARGETS[group.target_id] == group.target
        # Only target 2 has several machines.
        assert bool(group.machine) == (group.target_id == 2)
        programs = found.setdefault((workload.digest, group.target, machine), {})
        programs[digests[trials.program_ids[i]]] = {
            "program": int(trials.program_ids[i]),
            "seconds": number(trials.seconds[i]),
            "failure": int(trials.failures[i]),
            "trial": int(trials.trials[i]),
            "origin": int(trials.origins[i]),
            "cost": number(trials.costs[i]),
            "cut_short": bool(trials.cut_short[i]),
        }
    assert found == expected
    # Groups and programs are in the order of their digests.
    assert list(found) == sorted(expected)
    for programs in found.values():
        assert list(programs) == sorted(programs)
    # Throughput is relative to the best measurement that was not cut short.
    whole = ~trials.failed & ~trials.cut_short
    for index in range(len(trials.groups)):
        mine = trials.group == index
        best = trials.seconds[mine & whole].min(initial=np.inf)
        ratios = np.where(trials.failed[mine], 0, np.minimum(best / trials.seconds[mine], 1))
        assert np.array_equal(trials.throughput[mine], ratios)
    assert len(trials) == sum(map(len, expected.values()))
    assert counts.infrastructure == sum(r.failed and r.failure == INFRASTRUCTURE for r in rows)
    assert counts.timeless == sum(not r.failed and not r.good for r in rows)


@given(ROWS)
def test_dataset_omits_programs_without_features_but_counts_their_trials(rows):
    rows = [replace(row, cut_short=False) for row in rows]
    assume(any(row.counts and row.program % 4 for row in rows))
    trials, _ = read(rows)
    examples, counts = read([replace(row, all_have_features=False) for row in rows])
    kept = trials.program_ids % 4 != 0
    assert examples.program_ids.tolist() == trials.program_ids[kept].tolist()
    # Trials count programs without features too.
    assert examples.trials.tolist() == trials.trials[kept].tolist()
    assert counts.programs == len(np.unique(trials.program_ids))
    assert counts.without_features == len(np.unique(trials.program_ids[~kept]))
    assert examples.sizes.tolist() == (examples.program_ids % 4 - 1).tolist()
    # Groups and workloads are those of the examples alone, in their order.
    assert np.unique(examples.group).tolist() == list(range(len(examples.groups)))
    assert {group.workload for group in examples.groups} == set(range(len(examples.workloads)))
    digests = [workload.digest for workload in examples.workloads]
    assert digests == sorted(digests)
    ids = [examples.workloads[w].id for w in examples.workload]
    assert ids == (1 + examples.program_ids % 3).tolist()
    for index in range(len(examples.groups)):
        mine = examples.group == index
        seconds = examples.seconds[mine & ~examples.failed]
        expected = np.zeros(mine.sum())
        expected[~examples.failed[mine]] = seconds.min(initial=np.inf) / seconds
        assert np.array_equal(examples.throughput[mine], expected)

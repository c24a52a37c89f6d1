from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from tunedb.models.dataset import FAILURES, ExampleWorkload, Group
from tunedb.models.run_trials import RunTrial, RunTrials, join
from tunedb.records import FailureKind

NAN = float("nan")
TIMEOUT = FAILURES.index(FailureKind.TIMEOUT)


@dataclass(frozen=True)
class Set:
    name: str = "two"
    version: int = 1
    columns: tuple[str, ...] = ("program", "row")


def workload(number):
    return ExampleWorkload(number, b"workload %d" % number, f"w{number}", None, (), None)


def trial(number, seconds, *, rows=1, failure=0, cut_short=False, id_=None):
    """Return the trial of a program; each of its rows has its number."""
    made = np.array([[number, row] for row in range(rows)], np.float32)
    id_ = number if id_ is None else id_
    return RunTrial(b"program %d" % number, id_, made, seconds, failure, cut_short)


def timeout(number):
    return trial(number, NAN, failure=TIMEOUT)


def examples(*trials, base=None, target=b"t"):
    """Return examples of (workload, trial)."""
    made = RunTrials(1, target)
    for number, one in trials:
        made.add(workload(number), one)
    return made.dataset(Set(), "median", base)


def seconds_of(found):
    """Return the run times of programs by their ids."""
    return dict(zip(found.program_ids.tolist(), found.seconds.tolist(), strict=True))


def test_dataset_orders_programs_by_digest_and_numbers_trials():
    found = examples(
        (2, trial(5, 2.0)), (1, trial(9, 4.0, rows=2)), (1, trial(3, 1.0)), (2, trial(4, 6.0))
    )
    assert found.program_ids.tolist() == [3, 9, 4, 5]
    assert found.group.tolist() == [0, 0, 1, 1]
    assert found.trials.tolist() == [1, 0, 1, 0]
    assert found.starts.tolist() == [0, 1, 3, 4, 5]
    assert found.rows[:, 0].tolist() == [3, 9, 9, 4, 5]
    assert found.throughput.tolist() == [1.0, 0.25, 1 / 3, 1.0]
    assert [group.workload for group in found.groups] == [0, 1]
    assert [one.id for one in found.workloads] == [1, 2]
    assert found.failed.tolist() == [False] * 4


def test_the_last_measurement_of_a_program_counts_unless_it_failed():
    trials = [trial(1, 1.0), trial(1, 2.0), trial(2, 4.0), timeout(2), timeout(3), trial(3, 8.0)]
    found = examples(*((1, one) for one in (*trials, timeout(4))))
    assert found.seconds.tolist()[:3] == [2.0, 4.0, 8.0]
    assert found.throughput.tolist() == [1.0, 0.5, 0.25, 0.0]
    assert found.failures.tolist() == [0, 0, 0, TIMEOUT]


def test_dataset_of_failures_has_throughput_0_and_that_of_no_trials_is_empty():
    assert examples((1, timeout(1)), (1, timeout(2))).throughput.tolist() == [0.0, 0.0]
    found = examples()
    assert len(found) == 0
    assert found.rows.shape == (0, 2)
    assert found.starts.tolist() == [0]


def test_trials_join_the_stored_group_of_their_workload():
    base = examples((1, trial(1, 4.0, rows=2)), (1, trial(2, 8.0)), (3, trial(7, 1.0)))
    found = examples((1, trial(9, 2.0)), (2, trial(5, 3.0, rows=3)), base=base)
    assert found.program_ids.tolist() == [1, 2, 9, 7, 5]
    assert found.group.tolist() == [0, 0, 0, 1, 2]
    # The run found a faster program, so stored throughputs become smaller.
    assert found.throughput.tolist() == [0.5, 0.25, 1.0, 1.0, 1.0]
    assert found.trials.tolist() == [0, 1, 2, 0, 0]
    assert found.rows[:, 0].tolist() == [1, 1, 2, 9, 7, 5, 5, 5]
    assert [found.workloads[g.workload].id for g in found.groups] == [1, 3, 2]


def test_throughput_stays_relative_to_best_program_outside_of_training_set():
    base = examples((1, trial(1, 1.0)), (1, trial(2, 4.0)), (3, trial(7, 2.0)), (3, trial(8, 8.0)))
    chosen = base.take(np.array([False, True, False, True]))
    found = examples((1, trial(9, 2.0)), base=chosen)
    assert found.program_ids.tolist() == [2, 9, 8]
    assert found.throughput.tolist() == [0.25, 0.5, 0.25]


def test_program_measured_in_store_and_run_becomes_one_example():
    stored = [trial(1, 4.0), trial(2, 8.0), timeout(3), trial(4, 5.0)]
    base = examples(*((1, one) for one in stored))
    found = examples((1, trial(2, 6.0)), (1, trial(3, 3.0)), (1, timeout(4)), base=base)
    assert seconds_of(found) == {1: 4.0, 2: 6.0, 3: 3.0, 4: 5.0}


def test_programs_with_id_0_stay_separate_examples():
    """Programs that are not stored have the id 0."""
    base = examples((1, trial(1, 4.0, id_=0)))
    found = examples((1, trial(2, 2.0, id_=0)), (1, trial(3, 1.0, id_=0)), base=base)
    assert sorted(found.seconds.tolist()) == [1.0, 2.0, 4.0]


def test_run_gets_its_own_group_if_the_target_has_several_machines():
    base = examples((1, trial(1, 4.0)), (1, trial(2, 8.0)))
    other = Group(0, 1, b"t", "1")
    base = replace(base, groups=(*base.groups, other), group=np.array([0, 1], np.int32))
    found = examples((1, trial(9, 1.0)), base=base)
    assert found.group.tolist() == [0, 1, 2]
    assert found.throughput.tolist()[2] == 1.0
    assert len({group.machine for group in found.groups}) == 3


def test_join_keeps_groups_of_stored_machines():
    base = examples((1, trial(1, 4.0)), (1, trial(2, 8.0)), (1, trial(3, 2.0)))
    groups = (replace(base.groups[0], machine="0"), Group(0, 1, b"t", "1"))
    base = replace(base, groups=groups, group=np.array([0, 0, 1], np.int32))
    # The other dataset adds a program, and the group of a machine that the first one lacks.
    for chosen in (base.take([0, 2]), replace(base.take([0]), groups=groups[:1])):
        found = join(chosen, base)
        assert found.groups == groups
        assert found.group.tolist() == [0, 0, 1]
        assert found.program_ids.tolist() == [1, 2, 3]


def test_trials_for_another_target_get_their_own_group():
    base = examples((1, trial(1, 4.0)))
    found = examples((1, trial(9, 1.0)), base=base, target=b"other")
    assert found.throughput.tolist() == [1.0, 1.0]
    assert found.groups[1].target == b"other"
    assert found.groups[1].machine == ""


ONES = [(1, trial(1, 1.0)), (1, trial(2, 2.0))]


@pytest.mark.parametrize(
    ("trials", "base", "target"),
    [
        *(([(1, one), ONES[1]], 4.0, b"t") for one in (trial(1, 1.5), trial(3, 1.0), timeout(1))),
        *((ONES[::-1], 4.0, b"t"), (ONES, 5.0, b"t"), (ONES, 4.0, b"u")),
    ],
    ids=["seconds", "program", "failure", "order", "base", "target"],
)
def test_the_digest_covers_all_training_data(trials, base, target):
    def digest(trials, seconds, target):
        return examples(*trials, base=examples((1, trial(8, seconds))), target=target).digest

    before = digest(ONES, 4.0, b"t")
    assert before == digest(ONES, 4.0, b"t") != digest(trials, base, target)


def test_measurement_cut_short_is_never_best_and_is_replaced_by_complete_one():
    base = examples((1, trial(1, 4.0)), (1, trial(2, 8.0)), (1, trial(3, 9.0, cut_short=True)))
    assert not base.cut_short[0]
    assert base.throughput.tolist() == [1.0, 0.5, 4 / 9]
    run = [
        *(trial(2, 1.0, cut_short=True), trial(3, 16.0), trial(4, 2.0, cut_short=True)),
        *(trial(5, 32.0), trial(5, 3.0, cut_short=True)),
    ]
    found = examples(*((1, one) for one in run), base=base)
    assert seconds_of(found) == {1: 4.0, 2: 8.0, 3: 16.0, 4: 2.0, 5: 32.0}
    assert found.program_ids[found.cut_short].tolist() == [4]
    assert found.throughput.max() == 1.0
    assert found.throughput[found.program_ids == 1] == 1.0
    digests = {examples((1, trial(1, 4.0, cut_short=short))).digest for short in (False, True)}
    assert len(digests) == 2


def test_measurement_cut_short_keeps_throughput_if_best_is_not_in_dataset():
    base = examples((1, trial(1, 4.0)), (1, trial(2, 8.0, cut_short=True)))
    found = examples((2, trial(3, 1.0)), base=base.take([1]))
    assert found.program_ids.tolist() == [2, 3]
    assert found.throughput.tolist() == [0.5, 1.0]
    trials = RunTrials(1, b"t")
    trials.add(workload(1), trial(1, 2.0, cut_short=True))
    assert trials.best(workload(1).digest) == float("inf")
    assert trials.dataset(Set(), "median").throughput.tolist() == [0.0]

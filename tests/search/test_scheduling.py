"""Choice of the task that gets the next batch."""

import math
import random

import pytest

from tunedb.errors import UsageError
from tunedb.search.forecast import Curve
from tunedb.search.scheduling import (
    NetworkGoal,
    TaskState,
    TuningGoal,
    batch_size,
    next_task,
    total_seconds,
)
from tunedb.system.roofline import Roofline


def task(*calls, flop=1e9, size=1e6, **options):
    return TaskState(calls or (1,), flop, size, **options)


def choose(tasks, goal=TuningGoal()):  # noqa: B008
    return next_task(tasks, 4, goal, random.Random(0), epsilon=0.0)


def draws(tasks, count, goal=TuningGoal()):  # noqa: B008
    """Return the numbers of tasks that are chosen at random."""
    rng = random.Random(1)
    return [next_task(tasks, 4, goal, rng, epsilon=1.0) for _ in range(count)]


def order(tasks, batches, times=lambda task: [task.latency / 30]):
    """Give batches to the tasks that are chosen; return their numbers."""
    chosen = []
    for _ in range(batches):
        chosen.append(choose(tasks))
        tasks[chosen[-1]].add(times(tasks[chosen[-1]]), 4, 1.0)
    return chosen


def test_the_largest_task_is_first_and_each_gets_one_batch_before_any_gets_two():
    tasks = [task(flop=flop) for flop in (1e8, 4e9, 1e9)]
    assert order(tasks, 3) == [1, 2, 0]


def test_task_choice_weighs_calls_and_networks():
    assert choose([task(), task(3), task(2)]) == 1
    both = TuningGoal((NetworkGoal(weight=4.0), NetworkGoal()))
    assert both.weights([task(1, 2), task(0, 3)]) == [6.0, 3.0]
    assert choose([task(0, 3), task(1, 0)], goal=both) == 1


def test_latency_is_estimated_from_roofline_until_something_is_measured():
    roofline = Roofline(1e11, ((1e7, 1e11), (1e8, 1e10)))
    seconds = [roofline.seconds(*one) for one in ((1e9, 1e6), (1e3, 1e7), (1e6, 1e9))]
    assert seconds == pytest.approx([1e-2, 1e-4, 1e-1])
    unknown = task(2, roofline=roofline)
    assert unknown.latency == pytest.approx(30 * 1e-2) and unknown.seconds is None
    untuned = task(2, roofline=roofline, untuned=0.1)
    assert untuned.latency == untuned.seconds == 0.1
    untuned.add([0.05], 4, 1.0)
    assert untuned.latency == untuned.seconds == 0.05


def test_network_latency_is_unknown_while_that_of_any_operator_is():
    assert total_seconds([(2, 0.1), (1, 0.05)]) == pytest.approx(0.25)
    assert total_seconds([(2, 0.1), (0, None)]) == pytest.approx(0.2)
    assert total_seconds([(2, 0.1), (1, None)]) is None
    goal = NetworkGoal(rest=0.5)
    known = [goal.estimate([2], [0.1]), goal.estimate([2, 0], [0.1, None])]
    assert known == pytest.approx([0.7, 0.7])
    assert goal.estimate([2], [None]) is None


#: An operator that task 0 computes alone, or tasks 1 and 2 together; task 3 is another one.
CHOICES = (({0: 2.0}, {1: 2.0, 2: 1.0}),)


def test_a_network_is_estimated_with_the_fastest_algorithms():
    goal = NetworkGoal(choices=CHOICES)
    calls = [2, 0, 0, 1]
    assert goal.estimate(calls, [1.0, 0.25, 0.5, 0.1]) == pytest.approx(2 * 0.25 + 0.5 + 0.1)
    assert goal.fastest_calls(calls, [1.0, 0.25, 0.5, 0.1]) == [0, 2, 1, 1]
    assert goal.estimate(calls, [1.0, 0.9, 0.5, 0.1]) == pytest.approx(2.1)
    # What is not known as a whole is not the fastest.
    assert goal.estimate(calls, [1.0, 0.25, None, 0.1]) == pytest.approx(2.1)
    assert goal.estimate(calls, [None, 0.25, 0.5, 0.1]) == pytest.approx(1.1)
    assert goal.estimate(calls, [None, 0.25, None, 0.1]) is None


def with_algorithms(exact, *parts):
    """Return the tasks of :data:`CHOICES`; `exact` and `parts` are numbers of operations."""
    return [task(2, flop=exact), *(task(0, flop=flop) for flop in parts), task(1, flop=1e8)]


GOAL, LATE_GOAL = (
    TuningGoal((NetworkGoal(latency=latency, choices=CHOICES),)) for latency in (None, 10.0)
)


def test_the_most_promising_algorithm_is_tuned_first():
    tasks = with_algorithms(4e9, 1e9, 1e8)
    assert GOAL.weights(tasks) == [0, 2, 1, 1] and not GOAL.hopes(tasks, 4)
    assert GOAL.weights(with_algorithms(1e9, 4e9, 1e8)) == [2, 0, 0, 1]


def test_another_algorithm_is_tuned_while_it_may_become_the_fastest():
    tasks = with_algorithms(4e9, 3e9, 1e8)
    tasks[1].best, tasks[2].best = 1.5 * tasks[1].limit, tasks[2].limit
    # The exact one may take 1.25 times its limit after four batches of four trials.
    assert list(GOAL.hopes(tasks, 4)) == []
    tasks[1].best = 2 * tasks[1].limit
    assert list(GOAL.hopes(tasks, 4)) == [0]
    tasks[3].is_finished = tasks[1].is_finished = tasks[2].is_finished = True
    assert choose(tasks, GOAL) == 0
    # Once it is measured, what batches are expected to gain decides.
    tasks[0].best = 10 * tasks[0].limit
    assert not GOAL.hopes(tasks, 4) and choose(tasks, GOAL) is None
    tasks[0].best = 1.01 * (tasks[1].best + tasks[2].best / 2)
    assert list(GOAL.hopes(tasks, 4)) == [0]
    # It leads when it is the fastest.
    tasks[0].best *= 0.9
    assert GOAL.weights(tasks) == [2, 0, 0, 1]


def test_hopes_halve_after_a_batch_without_a_program_and_skip_networks_within_their_latency():
    tasks = with_algorithms(4e9, 3e9, 1e8)
    for one in tasks[1:]:
        one.best = 3 * one.limit
    before = GOAL.hopes(tasks, 4)[0]
    assert not LATE_GOAL.hopes(tasks, 4)
    tasks[0].add([], 4, 1.0)
    assert GOAL.hopes(tasks, 4)[0] == pytest.approx(before / 2)


def test_network_fast_enough_untuned_has_no_hopes_and_no_weight_for_known_tasks():
    tasks = with_algorithms(4e9, 1e9, 1e8)
    tasks[0].untuned = tasks[3].untuned = 0.1
    goal = TuningGoal((NetworkGoal(latency=1.0, choices=CHOICES),))
    # Only guesses are left, of an algorithm that nobody needs.
    assert not goal.hopes(tasks, 4)
    assert goal.weights(tasks)[3] == 0


def test_an_algorithm_that_stopped_without_a_program_does_not_lead():
    goal = TuningGoal((NetworkGoal(choices=CHOICES),), early_stopping=4)
    tasks = with_algorithms(4e9, 1e9, 1e8)
    tasks[1].add([], 4, 1.0)
    assert goal.weights(tasks) == [2, 0, 0, 1]
    assert choose(tasks, goal) == 0
    tasks = with_algorithms(4e9, 1e9, 1e8)
    tasks[1].is_finished = True  # its design space cannot be generated
    assert GOAL.weights(tasks) == [2, 0, 0, 1]
    tasks[0].best = 10 * tasks[0].limit
    assert not GOAL.hopes(tasks, 4)


def test_a_task_with_a_stored_program_waits_for_those_without():
    tuned = task(flop=2e9, best=2 * task(flop=2e9).limit, known_trials=64)
    assert choose([tuned, task(flop=1e9)]) == 1


def test_task_choice_compares_gains_per_second_of_tuning():
    slow, quick = task(best=1.0), task(best=1.0)
    slow.add([0.9], 4, 10.0)
    quick.add([0.9], 4, 1.0)
    assert choose([slow, quick]) == 1


def test_each_batch_without_a_gain_halves_the_expected_gain():
    one, expected = task(best=1.0, known_trials=64), []
    for _ in range(3):
        one.add([1.0], 0, 1.0)
        expected.append(one.expected_gain(4, 0.0))
    assert expected[1:] == pytest.approx([expected[0] / 2, expected[0] / 4])
    one.add([0.5], 0, 1.0)
    assert one.misses == 0 and one.best == 0.5


def test_failing_task_does_not_block_other_tasks():
    tasks = [task(flop=4e9), task(flop=1e9)]
    assert order(tasks, 6, times=lambda t: [] if t.flop > 2e9 else [t.latency / 30]).count(1) >= 1
    assert tasks[0].best is None and tasks[0].misses == tasks[0].batches


def test_expected_gain_follows_stored_curves():
    courses = [1.0] * 4 + [0.5] * 4, [1.0] * 8
    tasks = [task(best=1.0, known_trials=4, curves=[Curve(one)]) for one in courses]
    assert [one.expected_gain(4, 0.0) for one in tasks] == pytest.approx([0.5, 0.0])


def test_a_task_that_is_slower_than_similar_ones_is_expected_to_catch_up():
    fast = task(flop=1e9, best=0.02, known_trials=64, family="conv2d")
    slow = task(flop=1e9, best=0.08, known_trials=64, family="conv2d")
    other = task(flop=1e9, best=0.08, known_trials=64, family="mean")
    assert choose([fast, other, slow]) == 2
    assert slow.expected_gain(4, 1e9 / 0.02) == pytest.approx(0.04)


def test_expected_gain_stays_within_limit_of_the_machine():
    limit = task().limit
    assert task(best=limit, known_trials=4).expected_gain(4, 0.0) == 0
    assert task(best=limit * 1.01, known_trials=1).expected_gain(4, 0.0) <= limit * 0.0101


def goal(*latencies):
    return TuningGoal([NetworkGoal(latency=latency) for latency in latencies])


def test_run_ends_when_tasks_finish_latency_suffices_or_gains_are_small():
    done = task(best=0.5)
    done.is_finished = True
    assert choose([done]) is None
    assert choose([task(best=0.5)], goal(0.5)) is None
    assert choose([task(best=0.5)], goal(0.4)) == 0
    # The time outside of tasks counts.
    networks = NetworkGoal(latency=0.9, rest=0.3), NetworkGoal(latency=0.9, rest=0.45)
    assert [choose([task(best=0.5)], TuningGoal([one])) for one in networks] == [None, 0]
    late = task(best=0.5, known_trials=10_000)
    assert choose([late], TuningGoal(least_gain=0.1)) is None
    assert choose([late], TuningGoal(least_gain=1e-9)) == 0


def test_a_network_within_its_latency_gets_no_batch():
    # 4.1 s and 0.3 s.
    tasks = [task(8, 0, best=0.5), task(1, 1, best=0.1), task(0, 1, best=0.2)]
    assert goal(4.0, None).weights(tasks) == [8, 2, 1]
    assert goal(4.2, None).weights(tasks) == [0, 1, 1]
    goals = goal(4.0, None), goal(4.2, None), goal(4.0, 0.35), goal(4.2, 0.35)
    assert [choose(tasks, one) for one in goals] == [0, 2, 0, None]


def test_guessed_latency_does_not_end_the_run():
    tasks = [task(best=0.1), task(flop=1e3, size=1e3)]
    assert tasks[1].latency < 1e-3
    assert [choose(tasks, goal(latency)) for latency in (0.1, 1.0)] == [0, 1]
    tasks[1].add([1e-3], 4, 1.0)
    assert choose(tasks, goal(1.0)) is None


def test_random_choice_is_proportional_to_latency_and_skips_network_within_its_latency():
    tasks = [task(flop=4e9, best=0.4), task(flop=1e9, best=0.1)]
    assert 350 < draws(tasks, 500).count(0) < 450
    tasks = [task(1, 0, best=9.0), task(0, 1, best=0.1)]
    assert set(draws(tasks, 50, goal(10.0, None))) == {1}


@pytest.mark.parametrize(
    ("trials", "tasks", "seconds", "expected"),
    [
        *((64, 33, None, 2), (528, 33, None, 5), (10_000, 33, None, 16), (8, 1, None, 16)),
        *((1, 5, None, 2), (33_000, 33, 600, 12), (33_000, 33, 60, 2), (528, 33, 6_000, 5)),
    ],
)
def test_batch_size_follows_trials_and_time_of_each_task(trials, tasks, seconds, expected):
    assert batch_size(trials, tasks, 16, seconds=seconds) == expected


def test_early_stopping_ends_task_after_trials_without_a_gain():
    goal = TuningGoal(early_stopping=8)
    one = task(best=1.0)
    for times, trials, chosen in (
        ([0.9], 4, 0),  # a gain
        ([0.895], 4, 0),  # less than 1 %
        ([], 3, 0),  # all failed
        ([0.8], 4, 0),  # a gain begins anew
        ([0.8], 8, None),
    ):
        one.add(times, trials, 1.0)
        assert choose([one], goal) == chosen
    assert choose([one, task(best=0.5)], goal) == 1
    assert choose([one]) == 0


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        (TuningGoal, {"early_stopping": 0}, "early stopping needs 1 trial or more, not 0"),
        *(
            (TuningGoal, {"least_gain": gain}, "the least gain must be from 0 to 1, not ")
            for gain in (1.0, -0.1)
        ),
        *(
            (NetworkGoal, {name: value}, f"the {name} must be a positive number, not {value}")
            for name in ("latency", "weight")
            for value in (0.0, -1.0, math.inf, math.nan)
        ),
    ],
)
def test_goals_reject_values_out_of_range(kind, options, reason):
    with pytest.raises(UsageError, match=reason):
        kind(**options)

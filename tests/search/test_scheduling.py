"""Choice of the task that gets the next batch."""

import random

import pytest

from tunedb.errors import UsageError
from tunedb.search.forecast import Curve
from tunedb.search.scheduling import TaskState, TuningGoal, batch_size, estimated_latency, next_task
from tunedb.system.roofline import Roofline


def task(weight=1.0, flop=1e9, size=1e6, **options):
    return TaskState(weight, flop, size, **options)


def choose(tasks, batch=4, goal=TuningGoal(), epsilon=0.0):  # noqa: B008
    return next_task(tasks, batch, goal, random.Random(0), epsilon=epsilon)


def order(tasks, batches, seconds=1.0, times=lambda task: [task.latency / 30]):
    """Give batches to the tasks that are chosen; return their numbers."""
    chosen = []
    for _ in range(batches):
        number = choose(tasks)
        if number is None:
            break
        chosen.append(number)
        tasks[number].add(times(tasks[number]), 4, seconds)
    return chosen


def test_the_largest_task_is_first_and_each_gets_one_batch_before_any_gets_two():
    tasks = [task(flop=flop) for flop in (1e8, 4e9, 1e9)]
    assert order(tasks, 3) == [1, 2, 0]


def test_weights_count():
    assert choose([task(), task(weight=3.0), task(weight=2.0)]) == 1


def test_operations_and_bytes_are_estimates_until_something_is_measured():
    roofline = Roofline(1e11, ((1e7, 1e11), (1e8, 1e10)))
    assert roofline.seconds(1e9, 1e6) == pytest.approx(1e-2)
    assert roofline.seconds(1e3, 1e7) == pytest.approx(1e-4)
    assert roofline.seconds(1e6, 1e9) == pytest.approx(1e-1)
    unknown = task(weight=2.0, roofline=roofline)
    assert unknown.latency == pytest.approx(30 * 1e-2)
    untuned = task(weight=2.0, roofline=roofline, untuned=0.1)
    assert estimated_latency([untuned, task(best=0.05)]) == pytest.approx(0.25)


def test_a_task_with_a_stored_program_waits_for_those_without():
    tuned = task(flop=2e9, best=2 * task(flop=2e9).limit, known_trials=64)
    assert choose([tuned, task(flop=1e9)]) == 1


def test_gains_are_taken_per_second_of_tuning():
    slow, quick = task(best=1.0), task(best=1.0)
    slow.add([0.9], 4, 10.0)
    quick.add([0.9], 4, 1.0)
    assert choose([slow, quick]) == 1


def test_each_batch_without_a_gain_halves_what_is_expected():
    one = task(best=1.0, known_trials=64)
    expected = []
    for _ in range(3):
        one.add([1.0], 0, 1.0)
        expected.append(one.expected_gain(4, 0.0))
    assert expected[1] == pytest.approx(expected[0] / 2)
    assert expected[2] == pytest.approx(expected[0] / 4)
    one.add([0.5], 0, 1.0)
    assert one.misses == 0 and one.best == 0.5


def test_batches_that_all_fail_do_not_hold_the_others_up():
    tasks = [task(flop=4e9), task(flop=1e9)]
    assert order(tasks, 6, times=lambda t: [] if t.flop > 2e9 else [t.latency / 30]).count(1) >= 1
    assert tasks[0].best is None and tasks[0].misses == tasks[0].batches


def test_stored_courses_say_what_a_batch_gains():
    falling, flat = [1.0] * 4 + [0.5] * 4, [1.0] * 8
    gains = [
        task(best=1.0, known_trials=4, curves=[Curve(course)]).expected_gain(4, 0.0)
        for course in (falling, flat)
    ]
    assert gains == pytest.approx([0.5, 0.0])


def test_a_task_that_is_slower_than_similar_ones_is_expected_to_catch_up():
    fast = task(flop=1e9, best=0.02, known_trials=64, family="conv2d")
    slow = task(flop=1e9, best=0.08, known_trials=64, family="conv2d")
    other = task(flop=1e9, best=0.08, known_trials=64, family="mean")
    assert choose([fast, other, slow]) == 2
    assert slow.expected_gain(4, 1e9 / 0.02) == pytest.approx(0.04)


def test_nothing_is_expected_beyond_the_limit_of_the_machine():
    limit = task().limit
    assert task(best=limit, known_trials=4).expected_gain(4, 0.0) == 0
    assert task(best=limit * 1.01, known_trials=1).expected_gain(4, 0.0) <= limit * 0.0101


def test_a_run_ends_with_its_tasks_its_latency_or_its_gains():
    done = task(best=0.5)
    done.is_finished = True
    assert choose([done]) is None
    assert choose([task(best=0.5)], goal=TuningGoal(latency=0.6)) is None
    assert choose([task(best=0.5)], goal=TuningGoal(latency=0.4)) == 0
    late = task(best=0.5, known_trials=10_000)
    assert choose([late], goal=TuningGoal(least_gain=0.1)) is None
    assert choose([late], goal=TuningGoal(least_gain=1e-9)) == 0


def test_chance_chooses_in_proportion_to_the_latency():
    tasks = [task(flop=4e9, best=0.4), task(flop=1e9, best=0.1)]
    rng = random.Random(1)
    chosen = [next_task(tasks, 4, TuningGoal(), rng, epsilon=1.0) for _ in range(500)]
    assert 350 < chosen.count(0) < 450


@pytest.mark.parametrize(
    ("trials", "tasks", "expected"),
    [(64, 33, 2), (528, 33, 5), (10_000, 33, 16), (8, 1, 16), (1, 5, 2)],
)
def test_batches_are_as_small_as_the_budget_asks_for(trials, tasks, expected):
    assert batch_size(trials, tasks, 16) == expected


def test_batches_are_as_small_as_the_time_asks_for():
    assert batch_size(33_000, 33, 16, seconds=600) == 12
    assert batch_size(33_000, 33, 16, seconds=60) == 2
    assert batch_size(528, 33, 16, seconds=6_000) == 5


@pytest.mark.parametrize("options", [{"latency": 0.0}, {"least_gain": 1.0}, {"least_gain": -0.1}])
def test_goals_out_of_range(options):
    with pytest.raises(UsageError):
        TuningGoal(**options)

"""Choice of the task that gets the next batch of a tuning run.

Ansor's task scheduler (arXiv 2006.06762, section 6 and appendix A) with three changes: every task
begins with an estimate, so that no round goes once around all tasks; gains are taken per second of
tuning; and they come from the courses of similar searches where a database has them.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf
from statistics import median
from typing import TypeVar

from ..errors import UsageError
from ..system.roofline import Roofline
from .forecast import Curve

__all__ = [
    "NetworkGoal",
    "TaskState",
    "TuningGoal",
    "batch_size",
    "costs_of",
    "fastest_option",
    "next_task",
    "total_seconds",
]

Key = TypeVar("Key", bound=Hashable)

#: Share of the recent gain in what is expected of the next batch; Ansor's alpha.
_RECENT = 0.2
#: Share of the throughput of similar tasks that a task is expected to reach; 1 / Ansor's beta.
_SIMILAR = 0.5
#: A batch without a gain of this share is a miss; each miss halves what is expected.
_LEAST_GAIN = 0.01
#: Limits of a machine that nobody has measured.
_USUAL = Roofline(1e11, ((inf, 1e10),))
#: How much slower than the machine's limit untuned loops are.
_UNTUNED = 30.0
#: Run time of a program after n random trials, over that of the best: 1 + n ** -0.5.
_EXPONENT = 0.5
#: How much slower than the machine's limit the best program of a first batch is expected to be.
_FIRST = 2.0
#: Batches that an algorithm is expected to need before it is faster than the fastest one.
_HOPE = 4
#: Batches of each task for which the budget has room.
_BATCHES = 3
#: Trials of a second on two cores, for the batches of a run that time limits.
_TRIALS_PER_SECOND = 2
#: Trials of the smallest batch: builders work beside each other.
_LEAST_BATCH = 2


@dataclass(frozen=True, slots=True)
class NetworkGoal:
    """Goal of one network of a run, after section 6.1 of Ansor's paper.

    Parameters
    ----------
    weight : float
        Weight of its latency in the sum over all networks (f1).
    latency : float or None
        Seconds that suffice (f2): a network that is as fast gets no more trials.
    rest : float
        Seconds of one run outside of the tasks.
    choices : sequence of sequence of mapping of int to float
        Operators that several algorithms compute: for each algorithm the number of each of its
        tasks, and their calls in one run of the network. The calls of a :class:`TaskState` are
        those with the first algorithm of each.

    Raises
    ------
    UsageError
        A value is out of its range.
    """

    weight: float = 1.0
    latency: float | None = None
    rest: float = 0.0
    choices: Sequence[Sequence[Mapping[int, float]]] = ()

    def __post_init__(self) -> None:
        if not 0 < self.weight < inf:
            raise UsageError(f"the weight must be a positive number, not {self.weight}")
        if self.latency is not None and not 0 < self.latency < inf:
            raise UsageError(f"the latency must be a positive number, not {self.latency}")

    def calls(self, calls: Sequence[float], chosen: Sequence[int]) -> list[float]:
        """Return the calls of tasks with an algorithm for each operator.

        Parameters
        ----------
        calls : sequence of float
            Calls of each task with the first algorithms.
        chosen : sequence of int
            Number of the algorithm of each operator.
        """
        changed = list(calls)
        for algorithms, number in zip(self.choices, chosen, strict=True):
            for task, count in algorithms[0].items():
                changed[task] -= count
            for task, count in algorithms[number].items():
                changed[task] += count
        return changed

    def fastest_calls(self, calls: Sequence[float], seconds: Sequence[float | None]) -> list[float]:
        """Return the calls of tasks with the fastest algorithms by the seconds of each task."""
        times = {n: time for n, time in enumerate(seconds) if time is not None}
        return self.calls(calls, [fastest_option(each, times) for each in self.choices])

    def estimate(self, calls: Sequence[float], seconds: Sequence[float | None]) -> float | None:
        """Return the seconds of one run with the fastest algorithms.

        Parameters
        ----------
        calls : sequence of float
            Calls of each task with the first algorithms.
        seconds : sequence of float or None
            Seconds of a call.

        Returns
        -------
        float or None
            None where the time of a task is unknown.
        """
        fastest = self.fastest_calls(calls, seconds)
        total = total_seconds(zip(fastest, seconds, strict=True))
        return None if total is None else self.rest + total

    def is_reached(self, estimate: float | None) -> bool:
        """Return whether an estimated latency suffices."""
        return self.latency is not None and estimate is not None and estimate <= self.latency


@dataclass(frozen=True, slots=True)
class TuningGoal:
    """Goal of a run.

    Parameters
    ----------
    networks : sequence of NetworkGoal
        Goals of its networks.
    least_gain : float
        Share of the estimated latency; the run ends where no batch is expected to gain as much.
    early_stopping : int or None
        Trials without a gain of 1 % that end a task, as Ansor's f4.

    Raises
    ------
    UsageError
        A value is out of its range.
    """

    networks: Sequence[NetworkGoal] = (NetworkGoal(),)
    least_gain: float = 0.0
    early_stopping: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.least_gain < 1:
            raise UsageError(f"the least gain must be from 0 to 1, not {self.least_gain}")
        if self.early_stopping is not None and self.early_stopping < 1:
            raise UsageError(f"early stopping needs 1 trial or more, not {self.early_stopping}")

    def is_open(self, task: TaskState) -> bool:
        """Return whether a task may get more trials."""
        return not task.is_finished and not (
            self.early_stopping is not None and task.idle_trials >= self.early_stopping
        )

    def weights(self, tasks: Sequence[TaskState]) -> list[float]:
        """Return the weight of one call of each task: that of all networks that call it.

        A network calls the tasks of the algorithms that lead (:func:`_leader`). One whose latency
        suffices counts only for its tasks of unknown time: a guess is no evidence.
        """
        weights = [0.0] * len(tasks)
        for number, network in enumerate(self.networks):
            calls = _leading_calls(number, network, tasks, self)
            suffices = _suffices(number, network, tasks, calls)
            for n, task in enumerate(tasks):
                if not suffices or task.seconds is None:
                    weights[n] += network.weight * calls[n]
        return weights

    def hopes(self, tasks: Sequence[TaskState], batch: int) -> dict[int, float]:
        """Return the tasks of algorithms that may become the fastest, and what a batch may gain.

        Parameters
        ----------
        tasks : sequence of TaskState
            All tasks of the run.
        batch : int
            Trials of a batch.

        Returns
        -------
        dict of int to float
            Weighted seconds of one run, by number of the task.
        """
        hopes: dict[int, float] = {}
        for index, network in enumerate(self.networks):
            calls = _leading_calls(index, network, tasks, self)
            if _suffices(index, network, tasks, calls):
                continue
            for algorithms in network.choices:
                leader = _leader(algorithms, tasks, self)
                least = _measured(algorithms[leader], tasks)
                for number, algorithm in enumerate(algorithms):
                    if number == leader or least == inf:
                        continue
                    gain = least - _within_reach(algorithm, tasks, self, _HOPE * batch)
                    open_tasks = [n for n in algorithm if self.is_open(tasks[n])]
                    new = [n for n in open_tasks if tasks[n].best is None] or open_tasks
                    for n in new if gain > 0 else ():
                        share: float = network.weight * gain / (_HOPE * len(new))
                        # Batches without a program halve it, as they halve an expected gain.
                        hopes[n] = hopes.get(n, 0.0) + share * 0.5 ** tasks[n].misses
        return hopes


@dataclass(slots=True)
class TaskState:
    """State of one task.

    Parameters
    ----------
    calls : sequence of float
        Calls in one run of each network.
    flop, size : float
        Operations and bytes of one call.
    roofline : Roofline
        Limits of the machine.
    untuned : float or None
        Seconds of the untuned program; None takes an estimate.
    family : str
        Tasks of one family are similar.
    curves : sequence of Curve
        Courses of stored searches for similar workloads.
    best : float or None
        Seconds of the best program: stored before the run, or measured by it.
    known_trials : int
        Trials of earlier runs.
    """

    calls: Sequence[float]
    flop: float
    size: float
    roofline: Roofline = _USUAL
    untuned: float | None = None
    family: str = ""
    curves: Sequence[Curve] = ()
    best: float | None = None
    known_trials: int = 0
    trials: int = 0
    batches: int = 0
    tuning_seconds: float = 0.0
    misses: int = 0
    idle_trials: int = 0
    recent: float = 0.0
    is_finished: bool = False
    _courses: list[list[float]] = field(init=False)

    def __post_init__(self) -> None:
        self._courses = [list(accumulate(curve.seconds, min)) for curve in self.curves]

    @property
    def seconds(self) -> float | None:
        """Seconds of one call of the best program; without one, of the untuned program."""
        return self.untuned if self.best is None else self.best

    @property
    def latency(self) -> float:
        """The same, or a guess where both are unknown."""
        return _UNTUNED * self.limit if self.seconds is None else self.seconds

    @property
    def limit(self) -> float:
        """Least seconds of one call on this machine."""
        return self.roofline.seconds(self.flop, self.size)

    def add(self, times: Sequence[float], trials: int, tuning_seconds: float) -> None:
        """Add a batch.

        Parameters
        ----------
        times : sequence of float
            Mean seconds of the programs that ran.
        trials : int
            Programs that were proposed.
        tuning_seconds : float
            Wall time of the batch.
        """
        before = self.latency
        self.trials += trials
        self.batches += 1
        self.tuning_seconds += tuning_seconds
        if times:
            self.best = min(times) if self.best is None else min(self.best, *times)
        self.recent = max(before - self.latency, 0.0)
        is_gain = self.recent >= _LEAST_GAIN * before
        self.misses = 0 if is_gain else self.misses + 1
        self.idle_trials = 0 if is_gain else self.idle_trials + trials

    def expected_gain(self, batch: int, fastest: float) -> float:
        """Return the expected decrease of the latency of one call by a batch, in seconds.

        Parameters
        ----------
        batch : int
            Trials of the batch.
        fastest : float
            Operations per second of the fastest similar task; 0 for none.
        """
        halved: float = 0.5**self.misses
        if self.best is None:
            return max(self.latency - _FIRST * self.limit, 0.0) * halved
        course = self.best * self._relative_gain(batch)
        similar = self.best - self.flop / (fastest * _SIMILAR) if fastest > 0 else 0.0
        expected = max(course, similar)
        if self.batches:
            expected = _RECENT * self.recent + (1 - _RECENT) * expected
        return min(expected * halved, max(self.best - self.limit, 0.0))

    def _relative_gain(self, batch: int) -> float:
        """Return the share of the run time that a batch is expected to gain."""
        done = self.known_trials + self.trials
        gains = [
            1 - course[min(done + batch, len(course)) - 1] / course[done - 1]
            for course in self._courses
            if 0 < done < len(course) and course[done - 1] < inf
        ]
        if gains:
            return float(median(gains))
        before, after = (1 + float(n) ** -_EXPONENT for n in (max(done, 1), done + batch))
        return float(1 - after / before)


def costs_of(options: Sequence[Mapping[Key, float]], seconds: Mapping[Key, float]) -> list[float]:
    """Return the seconds of each option; infinity where the time of a task is unknown.

    Parameters
    ----------
    options : sequence of mapping of Key to float
        Calls of each task.
    seconds : mapping of Key to float
        Seconds of a call.
    """
    totals = [
        total_seconds((calls, seconds.get(key)) for key, calls in option.items())
        for option in options
    ]
    return [inf if total is None else total for total in totals]


def fastest_option(options: Sequence[Mapping[Key, float]], seconds: Mapping[Key, float]) -> int:
    """Return the number of the fastest option; 0 where no option has all times.

    Parameters
    ----------
    options, seconds
        As for :func:`costs_of`.
    """
    costs = costs_of(options, seconds)
    return costs.index(min(costs))


def _leader(
    algorithms: Sequence[Mapping[int, float]], tasks: Sequence[TaskState], goal: TuningGoal
) -> int:
    """Return the number of the fastest algorithm; while none is measured, of the most promising."""
    costs = [_measured(algorithm, tasks) for algorithm in algorithms]
    if min(costs) == inf:
        costs = [_within_reach(algorithm, tasks, goal, 0) for algorithm in algorithms]
    return costs.index(min(costs))


def _leading_calls(
    index: int, network: NetworkGoal, tasks: Sequence[TaskState], goal: TuningGoal
) -> list[float]:
    """Return the calls of tasks in a network with the algorithms that lead."""
    chosen = [_leader(algorithms, tasks, goal) for algorithms in network.choices]
    return network.calls([task.calls[index] for task in tasks], chosen)


def _suffices(
    index: int, network: NetworkGoal, tasks: Sequence[TaskState], calls: Sequence[float]
) -> bool:
    """Return whether a network's latency suffices: with the leading algorithms, or by known times.

    Tasks of unknown time have guesses.
    """
    if network.latency is None:
        return False
    latency = network.rest + sum(n * each.latency for n, each in zip(calls, tasks, strict=True))
    seconds = [each.seconds for each in tasks]
    known = network.estimate([each.calls[index] for each in tasks], seconds)
    return network.is_reached(latency) or network.is_reached(known)


def _measured(algorithm: Mapping[int, float], tasks: Sequence[TaskState]) -> float:
    """Return the seconds of an algorithm; infinity while a task has no program."""
    total = total_seconds((calls, tasks[n].best) for n, calls in algorithm.items())
    return inf if total is None else total


def _within_reach(
    algorithm: Mapping[int, float], tasks: Sequence[TaskState], goal: TuningGoal, trials: int
) -> float:
    """Return the seconds of an algorithm that are expected after some trials of each task.

    Infinity where a task without a program gets no more trials.
    """
    total = 0.0
    for n, calls in algorithm.items():
        task = tasks[n]
        if task.best is not None:
            seconds = task.best - (task.expected_gain(trials, 0.0) if trials else 0.0)
        elif goal.is_open(task):
            seconds = task.limit * (1 + max(trials, 1) ** -_EXPONENT)
        else:
            seconds = inf
        total += calls * seconds
    return total


def total_seconds(tasks: Iterable[tuple[float, float | None]]) -> float | None:
    """Return the seconds of all calls of tasks, or None if one is unknown.

    Parameters
    ----------
    tasks : iterable of (float, float or None)
        Number of calls of each task, and seconds of a call.
    """
    total = 0.0
    for calls, seconds in tasks:
        if not calls:
            continue
        if seconds is None:
            return None
        total += calls * seconds
    return total


def batch_size(trials: int, tasks: int, most: int, seconds: float | None = None) -> int:
    """Return the trials of a batch: two or more, with room for three batches of each task."""
    if tasks == 1:
        return most
    if seconds is not None:
        trials = min(trials, int(seconds * _TRIALS_PER_SECOND))
    return min(most, max(_LEAST_BATCH, trials // (_BATCHES * tasks)))


def next_task(
    tasks: Sequence[TaskState],
    batch: int,
    goal: TuningGoal,
    rng: random.Random,
    *,
    epsilon: float = 0.05,
) -> int | None:
    """Return the number of the task whose next batch is worth most per second of tuning.

    Parameters
    ----------
    tasks : sequence of TaskState
        All tasks of the run.
    batch : int
        Trials of a batch.
    goal : TuningGoal
        Goal of the run.
    rng : random.Random
        Source of chance.
    epsilon : float
        Probability that chance chooses, in proportion to the tasks' shares of the latency.

    Returns
    -------
    int or None
        None when the run is done.
    """
    weights, hopes = goal.weights(tasks), goal.hopes(tasks, batch)
    open_tasks = [
        n for n, task in enumerate(tasks) if (weights[n] or n in hopes) and goal.is_open(task)
    ]
    if not open_tasks:
        return None
    fastest: dict[str, float] = {}
    for task in tasks:
        if task.best:
            fastest[task.family] = max(fastest.get(task.family, 0.0), task.flop / task.best)
    gains = {
        n: weights[n] * tasks[n].expected_gain(batch, fastest.get(tasks[n].family, 0.0))
        + hopes.get(n, 0.0)
        for n in open_tasks
    }
    shares = [weight * task.latency for weight, task in zip(weights, tasks, strict=True)]
    if max(gains.values()) < goal.least_gain * sum(shares):
        return None
    if rng.random() < epsilon:
        parts = [shares[n] for n in open_tasks]
        return rng.choices(open_tasks, parts)[0] if any(parts) else rng.choice(open_tasks)
    spent = [task.tuning_seconds / task.batches for task in tasks if task.batches]
    usual = median(spent) if spent else 1.0

    def worth(n: int) -> float:
        task = tasks[n]
        seconds = task.tuning_seconds / task.batches if task.batches else usual
        return gains[n] / max(seconds, 1e-9)

    return max(open_tasks, key=worth)

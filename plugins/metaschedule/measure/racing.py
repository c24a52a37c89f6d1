"""Racing: candidates that are clearly slower than the best of their task get no more repeats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from tvm.s_tir.meta_schedule.runner import EvaluatorConfig, LocalRunner, RunnerFuture
from tvm.s_tir.meta_schedule.runner.runner import _PyRunner
from tvm.s_tir.meta_schedule.runner.utils import run_evaluator_common

from ....run_times import NO_TIME, is_cut_short, mean_of
from .cold_weights import cold_repeats
from .measure_callback import run_secs_of

__all__ = ["LEAST_REPEATS", "Race", "RacingRunner"]

#: Least repeats of a measurement that may be cut short: it keeps two of them.
LEAST_REPEATS = 3

#: Share of whole measurements whose repeats may range more widely than :meth:`Race.ratio` assumes,
#: and the fewest measurements that have such a quantile.
_WIDER = 0.05
_LEAST_RANGES = math.ceil(1 / _WIDER) - 1
#: Latest measurements of a task that count: a machine does not stay as quiet as it was.
_MOST_RANGES = 200

#: Ratio while nothing is known of the spread.
_UNKNOWN = 2.0
#: Least ratio. The repeats of one measurement follow one another; within minutes, the speed of a
#: shared machine drifts by more than they show.
_LEAST = 1.25

#: Share of a repeat's time for the second look at a candidate, and the ratio of its first repeat to
#: the bound from which no second look is needed.
LOOK = 1 / 6
FAR = 2.0


class Race:
    """The best times of a run's tasks, and the bound above which a repeat loses.

    Only measurements of this run count, because other sessions may have had a faster machine.

    Parameters
    ----------
    stops : bool
        Whether candidates that lose are stopped.

    Attributes
    ----------
    task : int or None
        Number of the task that is measured.

    Notes
    -----
    The range of a measurement is its longest repeat divided by its shortest. Let Q be the quantile
    of ranges that a new one exceeds with a probability of at most 5 %, whatever their distribution:
    of m ranges the ⌈0.95 (m + 1)⌉-th. A repeat of a candidate is then at most Q times the
    candidate's own time, and the best mean of the task, the luckiest of many, is at least 1/Q of
    the best program's own time. So a repeat above Q² times the best mean means a slower program.
    A candidate is cut short if two of its repeats, the second one short, are above: a disturbance
    must last to lose a winner.

    Q is that of the task's last 200 measurements, or of all tasks' while the task has fewer than
    19. Without 19 in all, the ratio is 2; it is never below 1.25.
    """

    def __init__(self, *, stops: bool = True) -> None:
        self.task: int | None = None
        self._stops = stops
        self._is_whole = False
        self._best: dict[int, float] = {}
        self._ranges: dict[int, list[float]] = {}

    def begin(self, task: int, *, is_whole: bool = False) -> None:
        """Begin measurements of a task, to which all candidates belong until the next call.

        Parameters
        ----------
        task : int
            Number of the task.
        is_whole : bool
            Whether no candidate is stopped.
        """
        self.task, self._is_whole = task, is_whole

    def add(self, run_secs: Sequence[float]) -> None:
        """Add the repeats of a candidate that was not cut short."""
        # Against a candidate of 0 s every other one would lose.
        if self.task is None or self._is_whole or min(run_secs) <= 0:
            return
        best = self._best.get(self.task, math.inf)
        self._best[self.task] = min(best, mean_of(run_secs))
        ranges = self._ranges.setdefault(self.task, [])
        ranges.append(max(run_secs) / min(run_secs))
        del ranges[:-_MOST_RANGES]

    def ratio(self) -> float:
        """Return the ratio to the best mean above which a repeat means a slower program."""
        spread = self.spread(self.task)
        return _UNKNOWN if spread is None else max(spread, _LEAST)

    def spread(self, task: int | None) -> float | None:
        """Return Q² of a task, or of all while it has few measurements; None without enough."""
        ranges = [] if task is None else self._ranges.get(task, [])
        if len(ranges) < _LEAST_RANGES:
            ranges = [value for values in self._ranges.values() for value in values]
        if len(ranges) < _LEAST_RANGES:
            return None
        rank = math.ceil((1 - _WIDER) * (len(ranges) + 1))
        return float(sorted(ranges)[rank - 1] ** 2)

    def bound(self) -> float:
        """Return the seconds above which a repeat loses.

        They are infinite without a task, until it has a whole measurement, and where no candidate
        is stopped.
        """
        if self.task is None or self._is_whole or not self._stops:
            return math.inf
        return self._best.get(self.task, math.inf) * self.ratio()


class RacingRunner(_PyRunner):
    """TVM's ``LocalRunner``, which stops candidates that lose the race of their task.

    The missing repeats of such a candidate have TVM's sentinel for no time, 1e10: its mean ranks
    behind all others wherever it goes, and :class:`~.measure_callback.MeasureCallback` stores the
    repeats that ran as a measurement that was cut short.

    Parameters
    ----------
    evaluator_config : EvaluatorConfig
        Settings of a whole measurement, of at least three repeats.
    race : Race
        Race of the run; the task scheduler begins its batches.
    cold : sequence of sequence of int
        Numbers of the parameters of each task that are not in the caches when a program runs
        (:mod:`.cold_weights`).
    """

    # Objects of tvm-ffi lack an instance dictionary.
    __slots__ = ("__dict__", "__weakref__")

    def __init__(
        self, evaluator_config: EvaluatorConfig, race: Race, cold: Sequence[Sequence[int]] = ()
    ) -> None:
        inner = LocalRunner(evaluator_config=evaluator_config)

        # TVM keeps this function: a reference to `self` would be a cycle through C++.
        def run(runner_inputs: Sequence[Any]) -> list[Any]:
            weights = cold[race.task] if cold and race.task is not None else ()
            return [_run(inner, race, weights, item) for item in runner_inputs]

        super().__init__(run)
        self.run = run
        self.evaluator_config = evaluator_config


def _run(inner: Any, race: Race, weights: Sequence[int], runner_input: Any) -> RunnerFuture:
    """Run one candidate in the worker, and add its times to the race."""
    inner.f_run_evaluator = partial(run_race, bound=race.bound(), weights=tuple(weights))
    (future,) = inner.run([runner_input])
    result = future.result()
    if result.error_msg is None:
        run_secs = run_secs_of(result)
        if not is_cut_short(run_secs):
            race.add(run_secs)
    return RunnerFuture(lambda: True, lambda: result)


def run_race(
    module: Any,
    device: Any,
    config: EvaluatorConfig,
    arguments: list[Any],
    *,
    bound: float,
    weights: Sequence[int] = (),
) -> list[float]:
    """Evaluate a program in the worker; stop it after its first repeat if that is above the bound.

    Parameters
    ----------
    module, device, config, arguments
        As TVM's evaluator gets them.
    bound : float
        Seconds above which a repeat loses.
    weights : sequence of int
        Numbers of the arguments that are not in the caches when the program runs.

    Returns
    -------
    list of float
        Seconds of each repeat. Of a program that loses, these are the first repeat and, unless
        that is twice the bound, a second one of a sixth of its length; then TVM's sentinel.
    """

    def repeats(number: int, repeat: int, milliseconds: int) -> list[float]:
        settings = config._replace(
            number=max(number, config.number), repeat=repeat, min_repeat_ms=milliseconds
        )
        if weights:
            return cold_repeats(module, device, settings, arguments[0], weights)
        seconds: list[float] = run_evaluator_common(module, device, settings, arguments)
        return seconds

    times = repeats(config.number, 1, config.min_repeat_ms)
    runs = config.min_repeat_ms / 1000 / max(times[0], 1e-9)  # in one repeat
    if times[0] > bound:
        looked = repeats(math.ceil(LOOK * runs), 1, 0) if times[0] <= FAR * bound else []
        if all(seconds > bound for seconds in looked):
            times += looked
            return times + [NO_TIME] * (config.repeat - len(times))
    # The first repeat knows the number of runs. TVM replaces a repeat that is a little shorter than
    # the limit by one of 1.6 times as many runs, as it does with half of them at the full limit.
    milliseconds = 0 if weights else config.min_repeat_ms // 2
    return times + repeats(math.ceil(runs), config.repeat - 1, milliseconds)

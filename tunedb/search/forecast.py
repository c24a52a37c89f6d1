"""Forecast of the trials that a search will take, from searches for similar workloads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..records import Signature, Target
    from ..storage.store import Store

#: Share of the best throughput at which a search has arrived.
SHARE = 0.95

#: Least number of curves for a forecast, and of trials for a curve: a log of winners alone has few.
_LEAST_CURVES = 3
_LEAST_TRIALS = 16

#: Most curves for a forecast.
_MOST_CURVES = 32

#: Distance at which a curve counts half, in octaves.
_HALF = 2.0


@dataclass(frozen=True, slots=True)
class Curve:
    """Run times of one search in the order of its trials.

    Parameters
    ----------
    seconds : sequence of float
        Run time of each trial; infinity for a failure.
    weight : float
        Weight among the curves of a forecast.
    """

    seconds: Sequence[float]
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Forecast:
    """Expected trials until a search arrives at 95 % of the best throughput it would ever find.

    Parameters
    ----------
    trials : int
        Trials from the beginning: the median of similar searches, or the number of trials done
        where that is greater.
    earliest, latest : int
        The tenth and the ninetieth percentile of them.
    is_bound : bool
        Whether `trials` is a lower bound only, because too many searches ended before they settled.
    best_seconds : float or None
        Expected time of the best program in the end; None before a program has worked.
    curves : int
        Searches that it was made from.
    """

    trials: int
    earliest: int
    latest: int
    is_bound: bool
    best_seconds: float | None
    curves: int


def similar_curves(store: Store, workload: int | Signature, target: Target) -> list[Curve]:
    """Return the curves of searches for similar workloads, the most similar ones first.

    They are those of the nearest 32 workloads of the family, of all tools; a curve counts half for
    each two octaves of distance. Runs that tuned one workload after another make one curve.

    Parameters
    ----------
    store : Store
        Store of a database.
    workload : int or Signature
        A workload of the database, or the signature of any other.
    target : Target
        Target of the tuning run.

    Raises
    ------
    NotFoundError
        The database has no such workload.
    """
    near = store.workloads.neighbours(workload, target, _MOST_CURVES, formats=None)
    courses = store.answers.courses(near)
    return [
        Curve(course, 0.5 ** (neighbour.far / _HALF))
        for neighbour, course in zip(near, courses, strict=True)
        if len(course) >= _LEAST_TRIALS
    ]


def forecast(
    curves: Sequence[Curve], *, trials: int = 0, best_seconds: float | None = None
) -> Forecast | None:
    """Forecast the trials until a search arrives at 95 % of its best throughput.

    A curve arrives at the first trial whose program has 95 % of the throughput of its best one. It
    has settled if it went on for at least as many trials again. Of other curves it is only known
    that they take longer, so the distribution is Kaplan and Meier's for censored data
    (J. Am. Stat. Assoc. 53, 1958), each curve counting by its weight.

    Parameters
    ----------
    curves : sequence of Curve
        Searches for similar workloads.
    trials : int
        Trials that the search has done.
    best_seconds : float or None
        Best time of the search so far.

    Returns
    -------
    Forecast or None
        None where fewer than three curves have a program that works.
    """
    arrived = [(curve, arrival) for curve in curves if (arrival := _arrival(curve)) is not None]
    if len(arrived) < _LEAST_CURVES:
        return None
    weighted = [(at, settled, curve.weight) for curve, (at, settled) in arrived]
    (earliest, _), (middle, is_bound), (latest, _) = (
        _quantile(weighted, share) for share in (0.1, 0.5, 0.9)
    )
    expected = None
    if best_seconds is not None:
        expected = best_seconds * _gain([curve for curve, _ in arrived], trials)
    return Forecast(
        trials=max(middle, trials),
        earliest=max(earliest, trials),
        latest=max(latest, trials),
        is_bound=is_bound,
        best_seconds=expected,
        curves=len(arrived),
    )


def _arrival(curve: Curve) -> tuple[int, bool] | None:
    """Return the trials until a curve arrives, and whether it has settled there."""
    best = min(curve.seconds, default=inf)
    if not 0 < best < inf:
        return None
    at = next(n for n, time in enumerate(curve.seconds, 1) if time * SHARE <= best)
    return at, len(curve.seconds) >= 2 * at


def _quantile(arrivals: Sequence[tuple[int, bool, float]], share: float) -> tuple[int, bool]:
    """Return the trials by which a share has arrived, and whether that is a bound only."""
    remaining = 1.0
    at_risk = sum(weight for _, _, weight in arrivals)
    for at in sorted({at for at, _, _ in arrivals}):
        here = [(settled, weight) for when, settled, weight in arrivals if when == at]
        arrived = sum(weight for settled, weight in here if settled)
        remaining *= 1 - min(arrived / at_risk, 1.0) if arrived else 1.0
        # Sums of weights are not exact.
        if remaining <= 1 - share + 1e-9:
            return at, False
        at_risk -= sum(weight for _, weight in here)
    return max(at for at, _, _ in arrivals), True


def _gain(curves: Sequence[Curve], trials: int) -> float:
    """Return the weighted median of the ratio of the last best time to that after some trials."""
    ratios = []
    for curve in curves:
        best = list(accumulate(curve.seconds, min))
        now = best[min(max(trials, 1), len(best)) - 1]
        if now < inf:
            ratios.append((best[-1] / now, curve.weight))
    half = sum(weight for _, weight in ratios) / 2
    passed = list(accumulate(weight for _, weight in sorted(ratios)))
    middle = next((n for n, weight in enumerate(passed) if weight >= half), None)
    return 1.0 if middle is None else sorted(ratios)[middle][0]

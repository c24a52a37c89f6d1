"""Ratios of the times of programs that two sessions measured, and what they say of the pair."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..times import NO_TIME

if TYPE_CHECKING:
    from ..query.sessions import MeasuredSession

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Programs that two sessions must share for anything to be said of them.
LEAST_SHARED = 5

#: Spread up to which two sessions are one machine. An i7-3770 nine days apart has 0.013; a V100 and
#: a K80 under one target have 0.21.
MOST_SPREAD = 0.1

#: Probability that an interval misses its factor.
_MISSES = 0.05

#: Of the sessions that measured a program, each is compared with so many that began after it: all
#: pairs of 1,000 sessions with five anchors would be 2.5 million ratios.
_NEAREST = 16


@dataclass(frozen=True, slots=True)
class Pair:
    """Two sessions that measured the same programs.

    Of the logarithms of the ratios, the median is that of the factor; its interval supposes no
    distribution (order statistics).

    Parameters
    ----------
    first, second : int
        Indices into :attr:`Estimate.sessions`.
    programs : int
        How many programs both measured.
    factor : float
        Median of the second's times / the first's.
    low, high : float
        Interval that has the median with 95 % probability; below six programs their range.
    spread : float
        Half of the range from the 10th to the 90th percentile of the ratios' logarithms.
    """

    first: int
    second: int
    programs: int
    factor: float
    low: float
    high: float
    spread: float

    @property
    def verdict(self) -> bool | None:
        """Whether both are one machine; None where they share too few programs to tell."""
        return None if self.programs < LEAST_SHARED else self.spread <= MOST_SPREAD


@dataclass(frozen=True, slots=True, eq=False)
class Ratios:
    """What pairs of sessions measured alike: one entry for each pair and program.

    Sorted by `first`, `second` and `log`; all of shape (n,).
    """

    first: Ints
    second: Ints
    program: Ints
    log: Floats

    def starts(self) -> Ints:
        """Return where each pair begins, and the number of entries."""
        return starts_of(self.first, self.second)


def ratios_of(
    sessions: Sequence[MeasuredSession], rows: Sequence[tuple[int, int, bytes]]
) -> Ratios:
    """Return the ratios of what any two sessions measured, from rows ordered by program."""
    program, session, log = _medians(sessions, rows)
    found = []
    at = np.arange(len(program))
    for offset in range(1, _NEAREST + 1):
        at = at[at + offset < len(program)]
        at = at[program[at] == program[at + offset]]
        found.append((session[at], session[at + offset], program[at], log[at + offset] - log[at]))
    first, second, programs, logs = (np.concatenate(part) for part in zip(*found, strict=True))
    order = np.lexsort((logs, second, first))
    return Ratios(first[order], second[order], programs[order], logs[order])


def _medians(
    sessions: Sequence[MeasuredSession], rows: Sequence[tuple[int, int, bytes]]
) -> tuple[Ints, Ints, Floats]:
    """Return program, index of the session, and log median time, sorted by the first two."""
    index = {
        one.subject_id if one.subject == "session" else -one.subject_id: number
        for number, one in enumerate(sessions)
    }
    # A session that began after the sessions were read is left out.
    rows = [row for row in rows if row[1] in index]
    sizes = [len(row[2]) // 8 for row in rows]
    times = np.frombuffer(b"".join(row[2] for row in rows), "<f8")
    program = np.repeat(np.array([row[0] for row in rows], np.int64), sizes)
    session = np.repeat(np.array([index[row[1]] for row in rows], np.int64), sizes)
    # No clock gives others; 1e10 is TVM's word for a repeat that failed.
    valid = (times > 0) & (times < NO_TIME)
    program, session, log = program[valid], session[valid], np.log(times[valid])
    order = np.lexsort((log, session, program))
    program, session, log = program[order], session[order], log[order]
    starts = starts_of(program, session)
    return program[starts[:-1]], session[starts[:-1]], quantile(log, starts, 0.5)


def starts_of(*keys: Ints) -> Ints:
    """Return where each stretch of equal keys begins, and their number; keys are sorted."""
    if not len(keys[0]):
        return np.zeros(1, np.int64)
    changes = np.logical_or.reduce([np.diff(key) != 0 for key in keys])
    return np.concatenate(([0], np.flatnonzero(changes) + 1, [len(keys[0])]))


def quantile(values: Floats, starts: Ints, share: float) -> Floats:
    """Return a quantile of each stretch of values, which are sorted in it (numpy's ``linear``)."""
    position = share * (np.diff(starts) - 1)
    below = np.floor(position).astype(np.int64)
    above = np.ceil(position).astype(np.int64)
    low, high = values[starts[:-1] + below], values[starts[:-1] + above]
    found: Floats = low + (high - low) * (position - below)
    return found


def pairs_of(ratios: Ratios) -> list[Pair]:
    """Return what the ratios of each pair say of it."""
    starts = ratios.starts()
    sizes = np.diff(starts)
    cut = {int(size): _cut(int(size)) for size in np.unique(sizes)}
    cuts = np.array([cut[int(size)] for size in sizes], np.int64)
    spread = (quantile(ratios.log, starts, 0.9) - quantile(ratios.log, starts, 0.1)) / 2
    columns = (
        ratios.first[starts[:-1]],
        ratios.second[starts[:-1]],
        sizes,
        np.exp(quantile(ratios.log, starts, 0.5)),
        np.exp(ratios.log[starts[:-1] + cuts]),
        np.exp(ratios.log[starts[1:] - 1 - cuts]),
        spread,
    )
    return [Pair(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _cut(size: int) -> int:
    """Return how many values at each end the interval of a median leaves out.

    From the k-th lowest to the k-th highest of n values the median is missed with the probability
    of at most k - 1 heads, or tails, in n tosses (e.g. Conover, Practical Nonparametric
    Statistics, 3.2).
    """
    heads = np.arange(1, size // 2 + 1)
    logs = np.concatenate(([0.0], np.cumsum(np.log((size + 1 - heads) / heads))))
    misses = 2 * np.cumsum(np.exp(logs - size * math.log(2)))
    return max(int(np.count_nonzero(misses <= _MISSES)) - 1, 0)

"""Factors between sessions, estimated where several of them measured the same programs.

Repeats inside a record agree although the machine was slower that day: on a public i7-3770 they
agree to 0.04 %, and the same 362 programs took 1.32 times as long nine days later. Such a factor
cancels where a session is compared with itself and decides where sessions are compared.

Sessions of one target whose ratios scatter little are one *machine* up to their factors; those
that scatter are different hardware under the same words for a target, and nothing makes their
times comparable. Raw times are never changed: factors stand beside them.

Of a pair of sessions, the logarithms of the ratios of what both measured are looked at: their
median is the logarithm of the factor, with an interval that supposes no distribution (order
statistics), and half of the range from their 10th to their 90th percentile is their spread. The
factors of a machine are the weighted least-squares solution over its pairs.

Sessions that only strangers have measured in are compared among themselves: whatever they say, it
moves no factor and no machine of the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..results import SessionFactor
from ..run_times import NO_TIME

if TYPE_CHECKING:
    from ..storage.sessions import MeasuredSession
    from ..storage.store import Store

# ---- Ratios of the times of programs that two sessions measured, and what they say of the pair ---

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


# ---- Factors of sessions -------------------------------------------------------------------------


#: A factor nearer to 1 is told as no drift, however many programs show it.
NEGLIGIBLE = 0.01

#: No pair is believed more closely than this.
_FINEST = 1e-4


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the sessions of a target have to do with each other.

    Parameters
    ----------
    target_id : int
        Local number of the target.
    sessions : tuple of MeasuredSession
        All that measured for it, in the order of their start.
    factors : tuple of SessionFactor
        One of each session.
    errors : tuple of float or None
        Half the width of the 95 % interval of each factor's logarithm; None where it was not
        estimated: a machine's first session, and those that share too little.
    pairs : tuple of Pair
        All pairs that share a program, but for those of a trusted session with one that is not.
    """

    target_id: int
    sessions: tuple[MeasuredSession, ...]
    factors: tuple[SessionFactor, ...]
    errors: tuple[float | None, ...]
    pairs: tuple[Pair, ...]

    @property
    def machines(self) -> int:
        """How many machines there are."""
        return len({factor.machine for factor in self.factors})

    def drifted(self, index: int) -> bool:
        """Tell whether a session was slower or faster than noise explains.

        Its factor's interval leaves out 1, and the factor is :data:`NEGLIGIBLE` away from it.
        """
        error, factor = self.errors[index], self.factors[index].factor
        return error is not None and abs(math.log(factor)) > max(error, math.log1p(NEGLIGIBLE))


def update(store: Store, target_ids: Sequence[int] | None = None) -> list[Estimate]:
    """Store the factors that :func:`estimates` returns, where they changed; return them.

    Of targets with one session nothing is stored.
    """
    found = estimates(store, target_ids)
    for one in found:
        factors = one.factors if len(one.sessions) > 1 else ()
        if set(factors) != set(store.runs.factors(one.target_id)):
            store.runs.set_factors(one.target_id, factors)
    return found


def estimates(store: Store, target_ids: Sequence[int] | None = None) -> list[Estimate]:
    """Return what the sessions of each target have to do with each other; nothing is written.

    Sessions that share fewer than :data:`~tunedb.models.sessions.LEAST_SHARED` programs with
    any other have factor 1. They count as of the machine whose hardware their fingerprint names
    (``cpu`` and ``gpu``); where theirs or a machine's names none, as of the largest machine that
    it does not contradict.

    Parameters
    ----------
    store : Store
        The database.
    target_ids : sequence of int or None
        Only these targets; None for all that have records.
    """
    return [
        _estimate(id_, sessions, store.runs.shared_times(id_) if len(sessions) > 1 else [])
        for id_, sessions in store.runs.sessions(target_ids).items()
    ]


def _estimate(
    target_id: int, sessions: Sequence[MeasuredSession], rows: Sequence[tuple[int, int, bytes]]
) -> Estimate:
    """Return what trusted sessions have to do with each other, and what the others have.

    The machines of the others count from -1 down.
    """
    factors: dict[int, SessionFactor] = {}
    errors: dict[int, float | None] = {}
    pairs: list[Pair] = []
    for is_trusted in (True, False):
        places = [n for n, one in enumerate(sessions) if one.is_trusted is is_trusted]
        if not places:
            continue
        found = _estimate_alike(target_id, [sessions[place] for place in places], rows)
        for place, factor, error in zip(places, found.factors, found.errors, strict=True):
            machine = factor.machine if is_trusted else -1 - factor.machine
            factors[place] = replace(factor, machine=machine)
            errors[place] = error
        pairs += [
            replace(pair, first=places[pair.first], second=places[pair.second])
            for pair in found.pairs
        ]
    order = range(len(sessions))
    return Estimate(
        target_id,
        tuple(sessions),
        tuple(factors[place] for place in order),
        tuple(errors[place] for place in order),
        tuple(pairs),
    )


def _estimate_alike(
    target_id: int, sessions: Sequence[MeasuredSession], rows: Sequence[tuple[int, int, bytes]]
) -> Estimate:
    """Return what sessions have to do with each other; rows of others are left out."""
    ratios = ratios_of(sessions, rows)
    pairs = pairs_of(ratios)
    machines, joined = _machines(sessions, pairs)
    logs, errors = _solve(len(sessions), joined)
    spreads, shared = _residuals(ratios, joined, logs)
    factors = tuple(
        SessionFactor(
            subject=one.subject,
            subject_id=one.subject_id,
            machine=machines[index],
            factor=math.exp(logs[index]),
            spread=spreads[index],
            programs=shared[index],
        )
        for index, one in enumerate(sessions)
    )
    return Estimate(target_id, tuple(sessions), factors, tuple(errors), tuple(pairs))


# ---------------------------------------------------------------------- machines


def _machines(
    sessions: Sequence[MeasuredSession], pairs: Sequence[Pair]
) -> tuple[list[int], list[Pair]]:
    """Return each session's machine, and the pairs that tell factors inside one."""
    label = _joined(len(sessions), pairs)
    told = np.zeros(len(sessions), bool)
    for pair in pairs:
        if pair.verdict is not None:
            told[[pair.first, pair.second]] = True
    known = [np.flatnonzero(told & (label == one)).tolist() for one in np.unique(label[told])]
    for index in sorted(np.flatnonzero(~told).tolist(), key=lambda i: -sessions[i].records):
        _place(index, sessions, known)
    known.sort(key=lambda group: (-sum(sessions[i].records for i in group), min(group)))
    machine = {index: number for number, group in enumerate(known) for index in group}
    inside = [pair for pair in pairs if pair.verdict and label[pair.first] == label[pair.second]]
    return [machine[index] for index in range(len(sessions))], inside


def _joined(number: int, pairs: Sequence[Pair]) -> Ints:
    """Return a label for each session, equal where pairs make one machine of them, shape (n,).

    What most programs say counts first. A pair that tells two sessions apart keeps all apart that
    is joined to either: a few programs that two GPUs happen to run alike do not make one of them.
    """
    label = np.arange(number)
    apart = np.array([(p.first, p.second) for p in pairs if p.verdict is False], np.int64)
    one_side, other_side = apart.reshape(-1, 2).T
    for pair in sorted((pair for pair in pairs if pair.verdict), key=lambda pair: -pair.programs):
        one, other = label[pair.first], label[pair.second]
        left, right = label[one_side], label[other_side]
        against = ((left == one) & (right == other)) | ((left == other) & (right == one))
        if one != other and not against.any():
            label[label == other] = one
    return label


def _place(index: int, sessions: Sequence[MeasuredSession], known: list[list[int]]) -> None:
    """Put a session that shares too little into the machine that its hardware speaks for."""
    own = sessions[index].hardware
    candidates = []
    for group in known:
        named = {sessions[i].hardware for i in group} - {("", "")}
        if not any(own) or not named or own in named:
            records = sum(sessions[i].records for i in group)
            candidates.append((own in named, records, -min(group), group))
    if candidates:
        max(candidates, key=lambda item: item[:3])[3].append(index)
    else:
        known.append([index])


# ---------------------------------------------------------------------- factors


def _solve(number: int, pairs: Sequence[Pair]) -> tuple[list[float], list[float | None]]:
    """Return the logarithm of each session's factor, and half the width of its interval.

    Weighted least squares over the pairs of a machine, whose first session has the factor 1; a
    pair's weight is that of its interval.
    """
    laplacian, right = np.zeros((number, number)), np.zeros(number)
    for pair in pairs:
        width = max(math.log(pair.high / pair.low) / 2, _FINEST)
        ends, signs = [pair.first, pair.second], np.array([-1.0, 1.0])
        laplacian[np.ix_(ends, ends)] += np.outer(signs, signs) / width**2
        right[ends] += signs * math.log(pair.factor) / width**2
    linked = np.diagonal(laplacian) > 0
    firsts = np.unique(_joined(number, pairs)[linked], return_index=True)[1]
    free = np.delete(np.flatnonzero(linked), firsts)
    inverse = np.linalg.inv(laplacian[np.ix_(free, free)])
    logs: list[float] = [0.0] * number
    errors: list[float | None] = [None] * number
    solved, widths = inverse @ right[free], np.sqrt(np.diagonal(inverse))
    for index, log, width in zip(free.tolist(), solved.tolist(), widths.tolist(), strict=True):
        logs[index], errors[index] = log, width
    return logs, errors


def _residuals(
    ratios: Ratios, pairs: Sequence[Pair], logs: Sequence[float]
) -> tuple[list[float | None], list[int]]:
    """Return each session's spread and programs shared, over pairs of its machine."""
    number = len(logs)
    key = ratios.first * number + ratios.second
    kept = np.isin(key, [pair.first * number + pair.second for pair in pairs])
    first, second, program = ratios.first[kept], ratios.second[kept], ratios.program[kept]
    effect = np.array(logs)
    residual = ratios.log[kept] - (effect[second] - effect[first])
    session = np.concatenate((first, second))
    both = np.unique(np.stack((session, np.tile(program, 2))), axis=1)
    shared = np.bincount(both[0], minlength=number)
    values = np.concatenate((residual, -residual))
    order = np.lexsort((values, session))
    session, values = session[order], values[order]
    starts = starts_of(session)
    half = (quantile(values, starts, 0.9) - quantile(values, starts, 0.1)) / 2
    spreads: list[float | None] = [None] * number
    for index, value in zip(session[starts[:-1]].tolist(), half.tolist(), strict=True):
        spreads[index] = value
    return spreads, shared.tolist()

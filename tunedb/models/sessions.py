"""Speed factors of sessions, estimated from programs that several sessions measured.

The repeats of a record agree even if the machine was slower that day: on a public i7-3770 they
agree to 0.04 %, but the same 362 programs took 1.32 times as long nine days later. Such a factor
cancels within a session, and biases comparisons between sessions.

Sessions of a target whose time ratios scatter little are one *machine*, up to their factors. A
large scatter shows different hardware under the same target description, whose times are not
comparable. Raw times never change: factors are stored beside them.

For each pair of sessions, the median of the logarithms of the time ratios of common programs is the
logarithm of the factor, with a distribution-free interval (order statistics); half of the range
from their 10th to their 90th percentile is the spread. The factors of a machine are the weighted
least-squares solution over its pairs.

Sessions with measurements of untrusted sources only are compared among themselves, so that they
affect no factor and no machine of trusted sessions.
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

# ---- Time ratios of pairs of sessions ------------------------------------------------------------

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Minimum number of common programs for a verdict on two sessions.
LEAST_SHARED = 5

#: Maximum spread of two sessions of the same machine. An i7-3770 nine days apart has 0.013; a V100
#: and a K80 under the same target have 0.21.
MOST_SPREAD = 0.1

#: Probability that an interval misses the factor.
_MISSES = 0.05

#: Number of later sessions that each session of a program is compared with: all pairs of 1,000
#: sessions with five common programs would be 2.5 million ratios.
_NEAREST = 16


@dataclass(frozen=True, slots=True)
class Pair:
    """The comparison of two sessions by their common programs.

    The interval of the factor is distribution-free (order statistics).

    Parameters
    ----------
    first, second : int
        Indices into :attr:`Estimate.sessions`.
    programs : int
        Number of common programs.
    factor : float
        Median ratio of the second session's times to the first's.
    low, high : float
        95 % interval of the median; below six programs the range of the ratios.
    spread : float
        Half of the range from the 10th to the 90th percentile of the log ratios.
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
        """True if both sessions are the same machine; None if they share too few programs."""
        return None if self.programs < LEAST_SHARED else self.spread <= MOST_SPREAD


@dataclass(frozen=True, slots=True, eq=False)
class Ratios:
    """The time ratios of pairs of sessions, one entry for each pair and common program.

    Sorted by `first`, `second` and `log`; all of shape (n,).
    """

    first: Ints
    second: Ints
    program: Ints
    log: Floats

    def starts(self) -> Ints:
        """Return the start of each pair, and the number of entries."""
        return starts_of(self.first, self.second)


def ratios_of(
    sessions: Sequence[MeasuredSession], rows: Sequence[tuple[int, int, bytes]]
) -> Ratios:
    """Return the time ratios of pairs of sessions, from rows ordered by program."""
    program, session, log = _medians(sessions, rows)
    offsets = []
    at = np.arange(len(program))
    for offset in range(1, _NEAREST + 1):
        at = at[at + offset < len(program)]
        at = at[program[at] == program[at + offset]]
        offsets.append((session[at], session[at + offset], program[at], log[at + offset] - log[at]))
    first, second, programs, logs = (
        np.concatenate(column) for column in zip(*offsets, strict=True)
    )
    order = np.lexsort((logs, second, first))
    return Ratios(first[order], second[order], programs[order], logs[order])


def _medians(
    sessions: Sequence[MeasuredSession], rows: Sequence[tuple[int, int, bytes]]
) -> tuple[Ints, Ints, Floats]:
    """Return program, index of the session and log median time, sorted by the first two."""
    index = {
        session_.subject_id if session_.subject == "session" else -session_.subject_id: number
        for number, session_ in enumerate(sessions)
    }
    # A session that began after the sessions were read is left out.
    rows = [row for row in rows if row[1] in index]
    sizes = [len(row[2]) // 8 for row in rows]
    times = np.frombuffer(b"".join(row[2] for row in rows), "<f8")
    program = np.repeat(np.array([row[0] for row in rows], np.int64), sizes)
    session = np.repeat(np.array([index[row[1]] for row in rows], np.int64), sizes)
    # Other times are invalid; 1e10 is TVM's sentinel of a failed repeat.
    valid = (times > 0) & (times < NO_TIME)
    program, session, log = program[valid], session[valid], np.log(times[valid])
    order = np.lexsort((log, session, program))
    program, session, log = program[order], session[order], log[order]
    starts = starts_of(program, session)
    return program[starts[:-1]], session[starts[:-1]], quantile(log, starts, 0.5)


def starts_of(*keys: Ints) -> Ints:
    """Return the start of each run of equal keys, and the number of keys; keys are sorted."""
    if not len(keys[0]):
        return np.zeros(1, np.int64)
    changes = np.logical_or.reduce([np.diff(key) != 0 for key in keys])
    return np.concatenate(([0], np.flatnonzero(changes) + 1, [len(keys[0])]))


def quantile(values: Floats, starts: Ints, share: float) -> Floats:
    """Return a quantile (numpy's ``linear``) of each segment of values, sorted within segments."""
    position = share * (np.diff(starts) - 1)
    below = np.floor(position).astype(np.int64)
    above = np.ceil(position).astype(np.int64)
    low, high = values[starts[:-1] + below], values[starts[:-1] + above]
    quantiles: Floats = low + (high - low) * (position - below)
    return quantiles


def pairs_of(ratios: Ratios) -> list[Pair]:
    """Return the comparison of each pair of sessions."""
    starts = ratios.starts()
    sizes = np.diff(starts)
    cut = {int(size): _outside(int(size)) for size in np.unique(sizes)}
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


def _outside(size: int) -> int:
    """Return the number of values outside the interval of a median, at each end.

    The interval from the k-th lowest to the k-th highest of n values misses the median with the
    probability of at most k - 1 heads, or tails, in n tosses (e.g. Conover, Practical Nonparametric
    Statistics, 3.2).
    """
    heads = np.arange(1, size // 2 + 1)
    logs = np.concatenate(([0.0], np.cumsum(np.log((size + 1 - heads) / heads))))
    misses = 2 * np.cumsum(np.exp(logs - size * math.log(2)))
    return max(int(np.count_nonzero(misses <= _MISSES)) - 1, 0)


# ---- Factors of sessions -------------------------------------------------------------------------


#: Minimum relative deviation of a factor from 1 for drift, however significant.
NEGLIGIBLE = 0.01

#: Lower bound of the interval's half width of a pair.
_FINEST = 1e-4


@dataclass(frozen=True, slots=True)
class Estimate:
    """The machines and factors of the sessions of a target.

    Parameters
    ----------
    target_id : int
        Local number of the target.
    sessions : tuple of MeasuredSession
        Sessions of the target, in the order of their start.
    factors : tuple of SessionFactor
        Factor of each session.
    errors : tuple of float or None
        Half the width of the 95 % interval of each factor's logarithm; None for factors that were
        not estimated: of the first session of a machine, and of sessions that share too few
        programs.
    pairs : tuple of Pair
        All pairs with a common program, except pairs of a trusted and an untrusted session.
    """

    target_id: int
    sessions: tuple[MeasuredSession, ...]
    factors: tuple[SessionFactor, ...]
    errors: tuple[float | None, ...]
    pairs: tuple[Pair, ...]

    @property
    def machines(self) -> int:
        """Number of machines."""
        return len({factor.machine for factor in self.factors})

    def drifted(self, index: int) -> bool:
        """Return whether the speed of a session differs significantly from its machine's.

        The interval of the factor excludes 1, and the factor differs by :data:`NEGLIGIBLE` or more.
        """
        error, factor = self.errors[index], self.factors[index].factor
        return error is not None and abs(math.log(factor)) > max(error, math.log1p(NEGLIGIBLE))


def update(store: Store, target_ids: Sequence[int] | None = None) -> list[Estimate]:
    """Store the changed factors of :func:`estimates`, and return the estimates.

    Targets with one session have no stored factors.
    """
    all_estimates = estimates(store, target_ids)
    for estimate in all_estimates:
        factors = estimate.factors if len(estimate.sessions) > 1 else ()
        if set(factors) != set(store.runs.factors(estimate.target_id)):
            store.runs.set_factors(estimate.target_id, factors)
    return all_estimates


def estimates(store: Store, target_ids: Sequence[int] | None = None) -> list[Estimate]:
    """Estimate the machines and factors of the sessions of each target; nothing is written.

    Sessions that share fewer than :data:`~tunedb.models.sessions.LEAST_SHARED` programs with every
    other session have factor 1. They join the machine with the hardware of their fingerprint
    (``cpu`` and ``gpu``); if either has no fingerprint, the largest machine that does not
    contradict it.

    Parameters
    ----------
    store : Store
        Store of the database.
    target_ids : sequence of int or None
        Targets to estimate; None for all with records.
    """
    return [
        _estimate(id_, sessions, store.runs.shared_times(id_) if len(sessions) > 1 else [])
        for id_, sessions in store.runs.sessions(target_ids).items()
    ]


def _estimate(
    target_id: int, sessions: Sequence[MeasuredSession], rows: Sequence[tuple[int, int, bytes]]
) -> Estimate:
    """Estimate trusted and untrusted sessions separately; untrusted machines count from -1 down."""
    factors: dict[int, SessionFactor] = {}
    errors: dict[int, float | None] = {}
    pairs: list[Pair] = []
    for is_trusted in (True, False):
        places = [n for n, session in enumerate(sessions) if session.is_trusted is is_trusted]
        if not places:
            continue
        estimate = _estimate_alike(target_id, [sessions[place] for place in places], rows)
        for place, factor, error in zip(places, estimate.factors, estimate.errors, strict=True):
            machine = factor.machine if is_trusted else -1 - factor.machine
            factors[place] = replace(factor, machine=machine)
            errors[place] = error
        pairs += [
            replace(pair, first=places[pair.first], second=places[pair.second])
            for pair in estimate.pairs
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
    """Estimate the machines and factors of the given sessions; rows of others are ignored."""
    ratios = ratios_of(sessions, rows)
    pairs = pairs_of(ratios)
    machines, joined = _machines(sessions, pairs)
    logs, errors = _solve(len(sessions), joined)
    spreads, shared = _residuals(ratios, joined, logs)
    factors = tuple(
        SessionFactor(
            subject=session.subject,
            subject_id=session.subject_id,
            machine=machines[index],
            factor=math.exp(logs[index]),
            spread=spreads[index],
            programs=shared[index],
        )
        for index, session in enumerate(sessions)
    )
    return Estimate(target_id, tuple(sessions), factors, tuple(errors), tuple(pairs))


# ---------------------------------------------------------------------- machines


def _machines(
    sessions: Sequence[MeasuredSession], pairs: Sequence[Pair]
) -> tuple[list[int], list[Pair]]:
    """Return the machine of each session, and the pairs within machines."""
    label = _joined(len(sessions), pairs)
    has_verdict = np.zeros(len(sessions), bool)
    for pair in pairs:
        if pair.verdict is not None:
            has_verdict[[pair.first, pair.second]] = True
    machines = [
        np.flatnonzero(has_verdict & (label == machine_label)).tolist()
        for machine_label in np.unique(label[has_verdict])
    ]
    for index in sorted(np.flatnonzero(~has_verdict).tolist(), key=lambda i: -sessions[i].records):
        _place(index, sessions, machines)
    machines.sort(key=lambda group: (-sum(sessions[i].records for i in group), min(group)))
    machine = {index: number for number, group in enumerate(machines) for index in group}
    inside = [pair for pair in pairs if pair.verdict and label[pair.first] == label[pair.second]]
    return [machine[index] for index in range(len(sessions))], inside


def _joined(number: int, pairs: Sequence[Pair]) -> Ints:
    """Return a label for each session, equal for sessions of the same machine, shape (n,).

    Pairs are joined by descending number of programs, unless a pair of sessions of the two
    clusters has the opposite verdict: a few programs may run equally fast on two different GPUs.
    """
    label = np.arange(number)
    apart = np.array([(p.first, p.second) for p in pairs if p.verdict is False], np.int64)
    one_side, other_side = apart.reshape(-1, 2).T
    for pair in sorted((pair for pair in pairs if pair.verdict), key=lambda pair: -pair.programs):
        first, second = label[pair.first], label[pair.second]
        left, right = label[one_side], label[other_side]
        against = ((left == first) & (right == second)) | ((left == second) & (right == first))
        if first != second and not against.any():
            label[label == second] = first
    return label


def _place(index: int, sessions: Sequence[MeasuredSession], machines: list[list[int]]) -> None:
    """Add a session with too few common programs to the machine that its hardware suggests."""
    hardware = sessions[index].hardware
    candidates = []
    for group in machines:
        named = {sessions[i].hardware for i in group} - {("", "")}
        if not any(hardware) or not named or hardware in named:
            records = sum(sessions[i].records for i in group)
            candidates.append((hardware in named, records, -min(group), group))
    if candidates:
        max(candidates, key=lambda item: item[:3])[3].append(index)
    else:
        machines.append([index])


# ---------------------------------------------------------------------- factors


def _solve(number: int, pairs: Sequence[Pair]) -> tuple[list[float], list[float | None]]:
    """Return the log factor of each session, and half the width of its interval.

    Weighted least squares over the pairs of a machine, whose first session has the factor 1. The
    weight of a pair is the inverse square of its interval's half width.
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
    """Return the spread and the number of shared programs of each session within its machine."""
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

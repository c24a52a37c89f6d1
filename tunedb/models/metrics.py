"""How well scores rank the programs of one pool, beside what a random order is expected to reach.

A pool is what candidates a search could choose from: programs of one workload on one machine, with
their throughputs (failed ones have 0) and a model's scores. Definitions follow specs of Ansor
(Zheng et al., OSDI 2020, section 2), TenSet (Zheng et al., NeurIPS 2021, ``metric.py``) and TLP.

Programs with equal scores are in random order: each figure is the expected value over all orders
of them, in closed form. So no figure depends on the order in which programs were stored, and a
model that says the same of all programs reaches exactly what a random order is expected to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError

Floats = NDArray[np.float64]

#: Length of the peak-score curve: candidates that MetaSchedule measures in a round.
PEAK = 64

#: Programs that recall looks at, as in Ansor; fewer in a pool of fewer than four times as many,
#: because a random order would find most of them.
RECALL = 30


@dataclass(frozen=True, slots=True)
class Figures:
    """How well one pool is ranked; 1 is perfect in all of them.

    Parameters
    ----------
    pairwise : float
        Share of the pairs of programs that are ordered as they were measured. Pairs with equal
        throughput are left out; a pair with equal scores counts one half.
    top1, top5 : float
        Best throughput among the one or five programs of highest score / best of the pool.
    recall30 : float
        Share of the 30 programs of highest score that are no slower than the thirtieth fastest;
        of fewer where the pool has fewer than 120 programs (:func:`recall_size`).
    trials90, trials95 : float
        How many programs, in the order of scores, until one reaches 90 or 95 % of the pool's best.
        The only figures of which less is better.
    spearman : float
        Correlation of the ranks; equal values share the mean of their ranks. 0 where all scores are
        equal.
    """

    pairwise: float
    top1: float
    top5: float
    recall30: float
    trials90: float
    trials95: float
    spearman: float


#: Names of all figures, in the order of :func:`row`.
FIGURES = tuple(field.name for field in fields(Figures))

#: Figures of which less is better.
TRIALS = frozenset({"trials90", "trials95"})


def row(figures: Figures) -> Floats:
    """Return the figures as an array of shape (len(FIGURES),)."""
    return np.array(astuple(figures))


def is_rankable(throughput: Floats) -> bool:
    """Tell whether a pool can be ranked well or badly: some program is faster than another."""
    return len(throughput) > 1 and float(throughput.min()) < float(throughput.max())


def measure(throughput: Floats, scores: Floats) -> Figures:
    """Return the figures of a pool.

    Parameters
    ----------
    throughput : ndarray of float64, shape (n,)
        Of each program, up to any factor; 0 where it failed.
    scores : ndarray of float64, shape (n,)
        The higher, the faster the program is said to be.

    Raises
    ------
    UsageError
        The pool is not rankable (:func:`is_rankable`), or a number is NaN or infinite.
    """
    throughput, scores = _checked(throughput, scores)
    best = _best_so_far(throughput, scores, 5)
    return Figures(
        pairwise=pairwise_accuracy(throughput, scores),
        top1=float(best[0]),
        top5=float(best[4]),
        recall30=recall(throughput, scores, recall_size(throughput)),
        trials90=trials_to(throughput, scores, 0.90),
        trials95=trials_to(throughput, scores, 0.95),
        spearman=spearman(throughput, scores),
    )


def chance(throughput: Floats) -> Figures:
    """Return what a random order of a pool is expected to reach; exact, nothing is drawn.

    Raises
    ------
    UsageError
        The pool is not rankable.
    """
    return measure(throughput, np.zeros(len(throughput)))


def skill(value: Floats, random: Floats) -> Floats:
    """Return (value - random) / (1 - random): 0 for a random order, 1 for a perfect one.

    So for trials too, of which the perfect number is 1. NaN where random order is perfect.
    """
    room = 1.0 - np.asarray(random, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Floats = np.where(room == 0, np.nan, (value - random) / room)
    return found


def pairwise_accuracy(throughput: Floats, scores: Floats) -> float:
    """Return the share of pairs in the measured order, in O(n log² n); NaN where none differs.

    It is (1 + Somers' D) / 2, and counted as by Knight (1966): the pairs in wrong order are the
    inversions of the scores among programs sorted by throughput.
    """
    true = np.unique(throughput, return_inverse=True)[1]
    told = np.unique(scores, return_inverse=True)[1]
    differ = _pairs(np.array([len(true)])) - _pairs(np.bincount(true))
    if not differ:
        return float("nan")
    # Scores ascend among equal throughputs, so that no such pair is an inversion.
    wrong = _inversions(told[np.lexsort((told, true))])
    both = np.unique(true.astype(np.int64) * len(told) + told, return_counts=True)[1]
    undecided = _pairs(np.bincount(told)) - _pairs(both)
    return (differ - wrong - undecided / 2) / differ


def peak_curve(throughput: Floats, scores: Floats, most: int = PEAK) -> Floats:
    """Return a-peak@k for k from 1 to `most`, shape (most,): TenSet's ``metric_peak_score``.

    a-peak@k is the mean, over i from 1 to k, of the best throughput among the i programs of highest
    score / best of the pool. A pool of fewer programs is at 1 after its last.

    Raises
    ------
    UsageError
        The pool is not rankable.
    """
    best = _best_so_far(*_checked(throughput, scores), most)
    found: Floats = np.cumsum(best) / np.arange(1, most + 1)
    return found


def trials_to(throughput: Floats, scores: Floats, share: float) -> float:
    """Return after how many programs one has reached a share of the pool's best.

    In a random order of n programs, of which g are good enough, the first of them is expected at
    (n + 1) / (g + 1).
    """
    good = throughput / throughput.max() >= share
    tied = scores == scores[good].max()
    before = np.count_nonzero(scores > scores[good].max())
    return float(before + (np.count_nonzero(tied) + 1) / (np.count_nonzero(tied & good) + 1))


def recall_size(throughput: Floats) -> int:
    """Return how many programs recall looks at: 30, a quarter of the pool, or all that worked."""
    return max(1, min(RECALL, len(throughput) // 4, int(np.count_nonzero(throughput))))


def recall(throughput: Floats, scores: Floats, k: int) -> float:
    """Return the share of the k of highest score that are no slower than the k-th fastest."""
    best = throughput >= np.partition(throughput, -k)[-k]
    edge = np.partition(scores, -k)[-k]
    sure, tied = scores > edge, scores == edge
    places = (k - np.count_nonzero(sure)) / np.count_nonzero(tied)
    return float((np.count_nonzero(sure & best) + places * np.count_nonzero(tied & best)) / k)


def spearman(throughput: Floats, scores: Floats) -> float:
    """Return the correlation of ranks; 0 where all values of one side are equal."""
    true, told = (ranks - ranks.mean() for ranks in map(mean_ranks, (throughput, scores)))
    scale = np.sqrt((true @ true) * (told @ told))
    return float(true @ told / scale) if scale else 0.0


def mean_ranks(values: Floats) -> Floats:
    """Return ranks from 0, the least first; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    found: Floats = (np.cumsum(counts) - (counts + 1) / 2)[inverse]
    return found


def noise_floor(
    throughput: Floats, deviations: Floats, *, draws: int = 20, seed: int = 0
) -> Figures:
    """Return the figures of an oracle that sees each program measured once more.

    On these labels no model can be shown to be better than that.

    Parameters
    ----------
    throughput : ndarray of float64, shape (n,)
        Of each program; 0 where it failed, which the oracle knows.
    deviations : ndarray of float64, shape (m,)
        Logarithms of how far run times are off, as repeats show them; drawn from for each program,
        because they are not normal: many are small, and a few are large.
    draws : int
        Re-measurements that are simulated.
    seed : int
        Of the simulation.

    Raises
    ------
    UsageError
        The pool is not rankable.
    """
    random = np.random.default_rng(seed)
    factors = np.exp(random.choice(deviations, (draws, len(throughput))))
    return mean_figures([measure(throughput, throughput * one) for one in factors])


def mean_figures(many: Sequence[Figures]) -> Figures:
    """Return the mean of each figure."""
    return Figures(*map(float, np.mean([row(one) for one in many], axis=0)))


def _checked(throughput: Floats, scores: Floats) -> tuple[Floats, Floats]:
    throughput, scores = np.asarray(throughput, np.float64), np.asarray(scores, np.float64)
    if throughput.shape != scores.shape or throughput.ndim != 1:
        raise UsageError(f"{len(scores)} scores for {len(throughput)} programs of a pool")
    if not (np.isfinite(throughput).all() and np.isfinite(scores).all()):
        raise UsageError("a throughput or score in a pool is NaN or infinite")
    if not is_rankable(throughput):
        raise UsageError("no program of a pool is faster than another: nothing to rank")
    return throughput, scores


def _pairs(counts: NDArray[np.int64]) -> int:
    """Return how many pairs there are within groups of so many."""
    return int((counts * (counts - 1) // 2).sum())


def _inversions(ranks: NDArray[np.int64]) -> int:
    """Return how many pairs i < j have ``ranks[i] > ranks[j]``: a merge sort, level by level.

    All merges of a level are one call of searchsorted, each block shifted into a range of its own.
    `scipy.stats.kendalltau` counts the same, but takes a second to import and 0.7 ms a call; early
    stopping looks at each held-out workload after each round.
    """
    n = len(ranks)
    values = np.full(1 << (n - 1).bit_length(), n)  # what fills up comes last: no inversion
    values[:n] = ranks
    found, width = 0, 1
    while width < len(values):
        blocks = values.reshape(-1, 2 * width)
        number = np.arange(len(blocks))
        shifted = blocks + (n + 1) * number[:, None]
        left, right = shifted[:, :width].ravel(), shifted[:, width:].ravel()
        not_above = np.searchsorted(left, right, side="right")
        found += int((np.repeat((number + 1) * width, width) - not_above).sum())
        values = np.sort(blocks, axis=1).ravel()
        width *= 2
    return found


def _best_so_far(throughput: Floats, scores: Floats, most: int) -> Floats:
    """Return the expected best share among the k first by score, for k from 1 to `most`."""
    order = np.argsort(-scores, kind="stable")
    true, told = throughput[order] / throughput.max(), scores[order]
    curve = np.maximum.accumulate(true)
    edges = np.flatnonzero(np.diff(told)) + 1
    starts, ends = np.append(0, edges), np.append(edges, len(told))
    found = np.ones(most)
    found[: len(curve)] = curve[:most]
    for start, end in zip(starts, ends, strict=True):
        if start >= most:
            break
        if end - start > 1:
            least = curve[start - 1] if start else 0.0
            taken = min(end, most) - start
            tied = np.maximum(true[start:end], least)
            found[start : start + taken] = _expected_best(tied, taken)
    return found


def _expected_best(values: Floats, most: int) -> Floats:
    """Return the expected greatest of r of the values, drawn at random, for r from 1 to `most`."""
    m = len(values)
    r, i = np.arange(1, most + 1)[:, None], np.arange(m)[None]
    # None of the i + 1 greatest is among r of m: C(m - i - 1, r) / C(m, r), as a product.
    missed = np.cumprod(np.maximum(m - r - i, 0) / (m - i), axis=1)
    first = -np.diff(missed, axis=1, prepend=1.0)
    found: Floats = first @ np.sort(values)[::-1]
    return found

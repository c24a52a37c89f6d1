"""Ranking metrics of a pool, with the expected values of a random order.

A pool has the candidates of a search: programs of one workload on one machine, with their
throughputs (0 for failed programs) and a model's scores. Definitions follow Ansor (Zheng et al.,
OSDI 2020, section 2), TenSet (Zheng et al., NeurIPS 2021, ``metric.py``) and TLP.

Programs with equal scores count as randomly ordered: each figure is the expected value over all
their orders, in closed form. So figures do not depend on the order of storage, and a model with
constant scores has exactly the expected figures of a random order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError

Floats = NDArray[np.float64]

#: Length of the peak-score curve: the candidates of a round of MetaSchedule.
PEAK = 64

#: k of recall@k, as in Ansor; smaller for pools of fewer than 4k programs, where a random order
#: would have a high recall.
RECALL = 30


@dataclass(frozen=True, slots=True)
class Figures:
    """The ranking metrics of a pool; 1 is perfect in all of them.

    Parameters
    ----------
    pairwise : float
        Share of correctly ordered pairs of programs. Pairs with equal throughput are left out; a
        pair with equal scores counts one half.
    top1, top5 : float
        Best throughput among the one or five programs of highest score / best of the pool.
    recall30 : float
        Share of the 30 programs of highest score that are no slower than the thirtieth fastest;
        of fewer programs in pools of fewer than 120 (:func:`recall_size`).
    trials90, trials95 : float
        Number of trials, in the order of scores, until a program reaches 90 or 95 % of the best
        throughput. Lower is better, unlike in all other figures.
    spearman : float
        Spearman's rank correlation; equal values share the mean of their ranks. 0 if all scores
        are equal.
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

#: Figures for which lower is better.
TRIALS = frozenset({"trials90", "trials95"})


def row(figures: Figures) -> Floats:
    """Return the figures as an array of shape (len(FIGURES),)."""
    return np.array(astuple(figures))


def is_rankable(throughput: Floats) -> bool:
    """Return whether some program of a pool is faster than another."""
    return len(throughput) > 1 and float(throughput.min()) < float(throughput.max())


def measure(throughput: Floats, scores: Floats) -> Figures:
    """Return the figures of a pool.

    Parameters
    ----------
    throughput : ndarray of float64, shape (n,)
        Throughput of each program, up to a common factor; 0 if it failed.
    scores : ndarray of float64, shape (n,)
        Score of each program; a higher score predicts a faster program.

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
    """Return the expected figures of a random order of a pool, in closed form.

    Raises
    ------
    UsageError
        The pool is not rankable.
    """
    return measure(throughput, np.zeros(len(throughput)))


def skill(value: Floats, random: Floats) -> Floats:
    """Return (value - random) / (1 - random): 0 for a random order, 1 for a perfect one.

    This holds for numbers of trials too, whose optimum is 1. NaN if a random order is perfect.
    """
    room = 1.0 - np.asarray(random, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        skills: Floats = np.where(room == 0, np.nan, (value - random) / room)
    return skills


def pairwise_accuracy(throughput: Floats, scores: Floats) -> float:
    """Return the share of correctly ordered pairs, in O(n log² n); NaN without any pair.

    This is (1 + Somers' D) / 2, counted by the method of Knight (1966): the misordered pairs are
    the inversions of the scores of programs sorted by throughput.
    """
    true = np.unique(throughput, return_inverse=True)[1]
    predicted = np.unique(scores, return_inverse=True)[1]
    differ = _pairs(np.array([len(true)])) - _pairs(np.bincount(true))
    if not differ:
        return float("nan")
    # Scores ascend within equal throughputs, so that such pairs are no inversions.
    wrong = _inversions(predicted[np.lexsort((predicted, true))])
    both = np.unique(true.astype(np.int64) * len(predicted) + predicted, return_counts=True)[1]
    undecided = _pairs(np.bincount(predicted)) - _pairs(both)
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
    curve: Floats = np.cumsum(best) / np.arange(1, most + 1)
    return curve


def trials_to(throughput: Floats, scores: Floats, share: float) -> float:
    """Return the expected number of trials until a share of the best throughput is reached.

    In a random order of n programs, g of which are good enough, the expected place of the first is
    (n + 1) / (g + 1).
    """
    good = throughput / throughput.max() >= share
    tied = scores == scores[good].max()
    before = np.count_nonzero(scores > scores[good].max())
    return float(before + (np.count_nonzero(tied) + 1) / (np.count_nonzero(tied & good) + 1))


def recall_size(throughput: Floats) -> int:
    """Return the k of recall@k: 30, but at most a quarter of the pool and all that succeeded."""
    return max(1, min(RECALL, len(throughput) // 4, int(np.count_nonzero(throughput))))


def recall(throughput: Floats, scores: Floats, k: int) -> float:
    """Return the share of the k programs of highest score no slower than the k-th fastest."""
    best = throughput >= np.partition(throughput, -k)[-k]
    edge = np.partition(scores, -k)[-k]
    sure, tied = scores > edge, scores == edge
    places = (k - np.count_nonzero(sure)) / np.count_nonzero(tied)
    return float((np.count_nonzero(sure & best) + places * np.count_nonzero(tied & best)) / k)


def spearman(throughput: Floats, scores: Floats) -> float:
    """Return Spearman's rank correlation; 0 if all scores or all throughputs are equal."""
    true, predicted = (ranks - ranks.mean() for ranks in map(mean_ranks, (throughput, scores)))
    scale = np.sqrt((true @ true) * (predicted @ predicted))
    return float(true @ predicted / scale) if scale else 0.0


def mean_ranks(values: Floats) -> Floats:
    """Return ascending ranks from 0; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(counts) - (counts + 1) / 2)[inverse]
    return ranks


def noise_floor(
    throughput: Floats, deviations: Floats, *, draws: int = 20, seed: int = 0
) -> Figures:
    """Return the figures of an oracle that ranks by one more measurement of each program.

    On labels with this noise no model can be shown to be better.

    Parameters
    ----------
    throughput : ndarray of float64, shape (n,)
        Throughput of each program; 0 if it failed, which the oracle knows.
    deviations : ndarray of float64, shape (m,)
        Logarithmic errors of run times, estimated from repeats. The simulation draws from them,
        because they are heavy-tailed, not normal.
    draws : int
        Number of simulated measurements.
    seed : int
        Seed of the simulation.

    Raises
    ------
    UsageError
        The pool is not rankable.
    """
    random = np.random.default_rng(seed)
    factors = np.exp(random.choice(deviations, (draws, len(throughput))))
    return mean_figures([measure(throughput, throughput * factor) for factor in factors])


def mean_figures(all_figures: Sequence[Figures]) -> Figures:
    """Return the mean of each figure."""
    return Figures(*map(float, np.mean([row(figures) for figures in all_figures], axis=0)))


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
    """Return the number of pairs within groups of these sizes."""
    return int((counts * (counts - 1) // 2).sum())


def _inversions(ranks: NDArray[np.int64]) -> int:
    """Return the number of pairs i < j with ``ranks[i] > ranks[j]``, by merge sort.

    All merges of a level are one call of searchsorted, each block shifted into a separate range.
    `scipy.stats.kendalltau` gives the same count, but takes a second to import and 0.7 ms a call,
    and early stopping needs it for each held-out workload after each round.
    """
    n = len(ranks)
    values = np.full(1 << (n - 1).bit_length(), n)  # padding comes last: no inversions
    values[:n] = ranks
    inversions, width = 0, 1
    while width < len(values):
        blocks = values.reshape(-1, 2 * width)
        number = np.arange(len(blocks))
        shifted = blocks + (n + 1) * number[:, None]
        left, right = shifted[:, :width].ravel(), shifted[:, width:].ravel()
        not_above = np.searchsorted(left, right, side="right")
        inversions += int((np.repeat((number + 1) * width, width) - not_above).sum())
        values = np.sort(blocks, axis=1).ravel()
        width *= 2
    return inversions


def _best_so_far(throughput: Floats, scores: Floats, most: int) -> Floats:
    """Return the expected best share among the k first by score, for k from 1 to `most`."""
    order = np.argsort(-scores, kind="stable")
    true, ordered_scores = throughput[order] / throughput.max(), scores[order]
    curve = np.maximum.accumulate(true)
    edges = np.flatnonzero(np.diff(ordered_scores)) + 1
    starts, ends = np.append(0, edges), np.append(edges, len(ordered_scores))
    best_shares = np.ones(most)
    best_shares[: len(curve)] = curve[:most]
    for start, end in zip(starts, ends, strict=True):
        if start >= most:
            break
        if end - start > 1:
            least = curve[start - 1] if start else 0.0
            taken = min(end, most) - start
            tied = np.maximum(true[start:end], least)
            best_shares[start : start + taken] = _expected_best(tied, taken)
    return best_shares


def _expected_best(values: Floats, most: int) -> Floats:
    """Return the expected maximum of r random values of `values`, for r from 1 to `most`."""
    m = len(values)
    r, i = np.arange(1, most + 1)[:, None], np.arange(m)[None]
    # P(none of the i + 1 greatest among r of m) = C(m - i - 1, r) / C(m, r), as a product.
    missed = np.cumprod(np.maximum(m - r - i, 0) / (m - i), axis=1)
    first = -np.diff(missed, axis=1, prepend=1.0)
    best: Floats = first @ np.sort(values)[::-1]
    return best

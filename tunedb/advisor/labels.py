"""Labels of thread blocks, from the run times of their slices.

Two methods. ``paper`` is Algorithm 1 of Connors and Qasem (HPCC 2017) to the letter, which depends
on the order of the variants and accepts every block that beats the baseline. ``slice-best``
compares every observation with the best of its slice, within a tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from .observations import LABELS, Label, Labels, Observation

#: Threads of the baseline's block for a kernel without a stated one: the usual default.
BASE_THREADS = 256

#: Times that differ by less count as equal, without repeats that show their variation.
TOLERANCE = 0.05

Order = Literal["ascending", "given"]


@dataclass(frozen=True, slots=True, eq=False)
class PaperRun:
    """Result of Algorithm 1.

    Parameters
    ----------
    labels : sequence of (Label or None)
        One per observation.
    bases : tuple of int
        Positions of the baselines, one per slice.
    overwrites : int
        Number of replacements of a baseline's label by another one.
    unlabelled : int
        Observations without a label.
    """

    labels: Labels
    bases: tuple[int, ...]
    overwrites: int
    unlabelled: int


@dataclass(frozen=True, slots=True)
class BlockVerdict:
    """An observation beside the best of its slice.

    Parameters
    ----------
    label : Label or None
        Direction of the best block; None if the slice has no other block.
    shape : bool
        Whether the best has as many threads in another shape, and is faster than the tolerance.
    best : int
        Position of the best of the slice.
    gain : float
        Time of the observation / time of the best, at least 1.
    """

    label: Label | None
    shape: bool
    best: int
    gain: float


def by_slice(observations: Sequence[Observation]) -> list[list[int]]:
    """Return the positions of each slice's observations, slices in the order they first occur."""
    slices: dict[bytes, list[int]] = {}
    for position, observation in enumerate(observations):
        slices.setdefault(observation.slice, []).append(position)
    return list(slices.values())


def baseline(observations: Sequence[Observation], positions: Iterable[int], base: int) -> int:
    """Return the position whose block has the number of threads nearest to `base`.

    Of several it is the one with fewer threads, then the smaller extents along x, y and z, then the
    one stored first.
    """
    return min(
        positions,
        key=lambda i: (abs(observations[i].threads - base), *_rank(observations[i])),
    )


def paper(
    observations: Sequence[Observation], *, base: int = BASE_THREADS, order: Order = "ascending"
) -> Labels:
    """Return the labels of Algorithm 1 to the letter.

    Parameters
    ----------
    observations : sequence of Observation
        Of any number of slices.
    base : int
        Threads of the baseline: the observation nearest to it (:func:`baseline`).
    order : {"ascending", "given"}
        The order in which variants write the label of their baseline; the last one wins. The
        algorithm leaves it open. Ascending is by threads, then extents along x, y and z, then
        storage.

    Returns
    -------
    sequence of (Label or None)
        None for variants with as many threads as the baseline or exactly its time, and for a
        baseline without other variants.
    """
    return run_paper(observations, base=base, order=order).labels


def run_paper(
    observations: Sequence[Observation], *, base: int = BASE_THREADS, order: Order = "ascending"
) -> PaperRun:
    """Return the labels of :func:`paper` with counts of the algorithm's steps.

    Raises
    ------
    ValueError
        The order is unknown.
    """
    if order not in ("ascending", "given"):
        raise ValueError(f"order is {order!r}; expected ascending or given")
    labels: list[Label | None] = [None] * len(observations)
    bases, overwrites = [], 0
    for positions in by_slice(observations):
        original = baseline(observations, positions, base)
        bases.append(original)
        if order == "ascending":
            positions.sort(key=lambda i: _rank(observations[i]))
        for new in positions:
            pair = algorithm_1(observations[original], observations[new])
            if new == original or pair is None:
                continue
            labels[new], of_original = pair
            overwrites += labels[original] not in (None, of_original)
            labels[original] = of_original
    return PaperRun(labels, tuple(bases), overwrites, labels.count(None))


def algorithm_1(original: Observation, new: Observation) -> tuple[Label, Label] | None:
    """Return the labels of a variant and of its original by one turn of Algorithm 1's loop.

    None if no branch applies: equal blocks, or a speed-up (time of the original / time of the
    variant) of exactly 1.
    """
    speedup = original.seconds / new.seconds
    if speedup == 1 or new.threads == original.threads:
        return None
    smaller = new.threads < original.threads
    if speedup < 1:
        return (Label.INCREASE if smaller else Label.DECREASE), Label.NO_CHANGE
    return Label.NO_CHANGE, (Label.DECREASE if smaller else Label.INCREASE)


def slice_best(
    observations: Sequence[Observation], *, tolerance: float | None = TOLERANCE
) -> Labels:
    """Return the direction from every observation to the best of its slice.

    ``noChange`` if the time is at most (1 + tolerance) times the best one, or if the best has as
    many threads in another shape (:func:`verdicts` distinguishes those). None if the slice has one
    block only.

    Parameters
    ----------
    observations : sequence of Observation
        Of any number of slices.
    tolerance : float or None
        Share of the best time; None for twice the median coefficient of variation of the slice's
        repeats, and 5 % without repeats.
    """
    return [verdict.label for verdict in verdicts(observations, tolerance=tolerance)]


def verdicts(
    observations: Sequence[Observation], *, tolerance: float | None = TOLERANCE
) -> list[BlockVerdict]:
    """Return every observation beside the best of its slice; see :func:`slice_best`.

    Raises
    ------
    ValueError
        The tolerance is negative or not finite.
    """
    if tolerance is not None and not (math.isfinite(tolerance) and tolerance >= 0):
        raise ValueError(f"a tolerance of {tolerance}; expected a number from 0 on")
    found: dict[int, BlockVerdict] = {}
    for positions in by_slice(observations):
        best = min(positions, key=lambda i: (observations[i].seconds, *_rank(observations[i])))
        within = _noise(observations, positions) if tolerance is None else tolerance
        alone = len({(observations[i].threads, observations[i].block) for i in positions}) == 1
        for i in positions:
            found[i] = _verdict(observations[i], observations[best], best, within, alone=alone)
    return [found[i] for i in range(len(observations))]


def _verdict(
    observation: Observation, best: Observation, position: int, tolerance: float, *, alone: bool
) -> BlockVerdict:
    gain = observation.seconds / best.seconds
    if alone:
        return BlockVerdict(None, False, position, gain)
    if observation.seconds <= (1 + tolerance) * best.seconds:
        return BlockVerdict(Label.NO_CHANGE, False, position, gain)
    if best.threads == observation.threads:
        return BlockVerdict(Label.NO_CHANGE, True, position, gain)
    larger = best.threads > observation.threads
    return BlockVerdict(Label.INCREASE if larger else Label.DECREASE, False, position, gain)


def _noise(observations: Sequence[Observation], positions: Sequence[int]) -> float:
    spreads = [observations[i].spread for i in positions]
    known = [spread for spread in spreads if spread is not None and math.isfinite(spread)]
    return 2 * float(np.median(known)) if known else TOLERANCE


def _rank(observation: Observation) -> tuple[int, tuple[int, ...], int, int]:
    return (
        observation.threads,
        observation.block or (),
        observation.record,
        observation.launch,
    )


#: Name of a method → function.
METHODS: dict[str, Callable[..., Labels]] = {"slice-best": slice_best, "paper": paper}


# ---- Labels as small numbers, for counting -------------------------------------------------------

#: Code of a row without a label or without advice.
NONE = -1
DECREASE, NO_CHANGE, INCREASE = range(3)

Codes = npt.NDArray[np.int8]
Floats = npt.NDArray[np.float64]


def to_codes(labels: Labels) -> Codes:
    """Return labels as positions in :data:`LABELS`; :data:`NONE` for None."""
    position = {label: i for i, label in enumerate(LABELS)}
    found = [NONE if label is None else position[label] for label in labels]
    return np.asarray(found, np.int8)


def to_labels(codes: Sequence[int] | Codes) -> list[Label | None]:
    """Return the labels of codes."""
    return [None if code == NONE else LABELS[code] for code in codes]


def accuracy(truth: Codes, advice: Codes) -> float:
    """Return the share of right advice over rows with both codes; NaN without any."""
    compared = (truth != NONE) & (advice != NONE)
    return float(np.mean(truth[compared] == advice[compared])) if compared.any() else float("nan")


def balanced_accuracy(truth: Codes, advice: Codes) -> float:
    """Return the mean over occurring classes of the share of right advice; NaN without any."""
    compared = (truth != NONE) & (advice != NONE)
    truth, advice = truth[compared], advice[compared]
    shares = [np.mean(advice[truth == code] == code) for code in np.unique(truth)]
    return float(np.mean(shares)) if shares else float("nan")


def confusion(truth: Codes, advice: Codes) -> npt.NDArray[np.int64]:
    """Return the count of each advice for each true label.

    Returns
    -------
    ndarray, shape (3, 3), int64
        Rows are true labels and columns advice, in the order of ``LABELS``.
    """
    compared = (truth != NONE) & (advice != NONE)
    table = np.zeros((len(LABELS), len(LABELS)), np.int64)
    np.add.at(table, (truth[compared], advice[compared]), 1)
    return table

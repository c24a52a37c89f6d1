"""Results of an evaluation of the advisor: plain data, for tables, JSON and the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with its 95 % bootstrap interval over slices.

    Parameters
    ----------
    value, low, high : float
        ``low`` and ``high`` equal ``value`` for a single slice.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Score:
    """Result of one method on the held-out rows of one split.

    Parameters
    ----------
    method : str
        ``svm``, ``boosted``, ``gain``, or a baseline: ``majority``, ``rule``, ``occupancy``,
        ``nothing``.
    split : str
        ``random``, ``slice``, ``kernel`` or ``device``.
    held_out : str
        Kernel of the held-out launches; the empty string for all of the split together.
    device : str
        Their device; the empty string for all of the split together.
    rows : int
        Evaluated launches: those with a label.
    advised : int
        Launches with advice; the others are unsure.
    measured : int
        Of them, launches whose advice comes from measurements on other devices.
    right : int
        Launches whose advice is the label; the other advised ones are wrong.
    accuracy, balanced : float
        Share of the advised rows whose label is right; its mean over occurring classes. NaN without
        advice.
    regret : Interval or None
        Geometric mean of time after the advice over the best time of the slice, over all rows (a
        row without advice keeps its time); 1 is perfect. None if slices were not evaluated.
    against_nothing : Interval or None
        Geometric mean of time after the advice over the time before; below 1 is a gain.
    advised_regret : float or None
        ``regret`` over the advised rows alone.
    worst_loss : float or None
        Largest time after the advice over the time before, of one launch.
    """

    method: str
    split: str
    held_out: str
    device: str
    rows: int
    advised: int
    measured: int
    right: int
    accuracy: float
    balanced: float
    regret: Interval | None = None
    against_nothing: Interval | None = None
    advised_regret: float | None = None
    worst_loss: float | None = None

    @property
    def coverage(self) -> float:
        """Share of the rows with advice."""
        return self.advised / self.rows if self.rows else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class AdvisorFindings:
    """Results of a comparison of advice.

    Parameters
    ----------
    labels : str
        Method of the labels: ``paper`` or ``slice-best``.
    inputs : str
        ``raw`` or ``ratios``.
    tolerance : float
        Tolerance of ``slice-best``.
    classes : tuple of str
        The labels, in the order of the matrix.
    counts : tuple of int
        Rows of each label.
    observations, unlabelled, slices : int
        Read rows, those without label, and their slices.
    kernels : tuple of str
        Kernels that were held out in turn.
    scores : tuple of Score
        The comparison table: methods by splits.
    confusion : mapping of str to ndarray, shape (3, 3), int64
        Method → matrix of the held-out kernels; rows are true labels, columns advice.
    gains : ndarray, shape (g,), float64
        Per slice: time at the size nearest 256 threads over the best time (what is at stake).
    gain_kernels : tuple of str
        Kernel of each of the gains.
    kept : tuple of str
        Inputs that the selection over all rows keeps.
    dropped : tuple of (str, str, float)
        Inputs that were dropped as correlated: input, kept input, their correlation.
    correlation : ndarray, shape (len(kept), len(kept)), float64
        Correlations of the inputs that remain.
    notes : tuple of str
        Notes for readers: too few kernels, a missing class.
    """

    labels: str
    inputs: str
    tolerance: float
    classes: tuple[str, ...]
    counts: tuple[int, ...]
    observations: int
    unlabelled: int
    slices: int
    kernels: tuple[str, ...]
    scores: tuple[Score, ...]
    confusion: dict[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    gains: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    gain_kernels: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    dropped: tuple[tuple[str, str, float], ...] = ()
    correlation: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    notes: tuple[str, ...] = ()

    def scores_of(self, split: str, held_out: str = "") -> Sequence[Score]:
        """Return the scores of a split, of one held-out kernel or of all together."""
        return [one for one in self.scores if (one.split, one.held_out) == (split, held_out)]

    def to_json(self) -> dict[str, Any]:
        """Return the findings as JSON values; NaN becomes None."""
        found = {name: _plain(getattr(self, name)) for name in self.__slots__}
        return dict(found)


def _plain(value: Any) -> Any:
    """Return a value of the fields as a JSON value."""
    if isinstance(value, Score | Interval):
        return _plain(asdict(value))
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value

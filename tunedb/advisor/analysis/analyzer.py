"""Everything that the page shows, as numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ... import limits
from ...errors import UsageError
from .. import inputs as columns
from .. import labels as labelling
from ..observations import LABELS, Inputs, Label, Labels, Observation
from ..selection import Selection, select
from .clusters import Clusters, Ellipse, cluster, ellipse
from .components import Components, components, standardise
from .times import Stake, Times, stakes, times
from .trees import Node, grow

if TYPE_CHECKING:
    from collections.abc import Callable

Floats = npt.NDArray[np.float64]

#: How observations become numbers.
INPUTS: dict[str, Callable[[Sequence[Observation]], Inputs]] = {
    "ratios": columns.ratios,
    "raw": columns.raw,
}

#: What a launch has besides its inputs: name → value.
_OWN: dict[str, Callable[[Observation], float | None]] = {
    "threads": lambda one: one.threads,
    "registers": lambda one: one.registers,
    "seconds": lambda one: one.seconds,
}

#: Share of the launches that must have an input.
_LEAST_SHARE = 0.5

#: Name of the time over the best of the slice.
RELATIVE = "time / best"


@dataclass(frozen=True, slots=True)
class Threshold:
    """A number that divides the launches.

    Parameters
    ----------
    name : str
        Of an input; or ``threads``, ``registers``, ``seconds``, ``time / best``.
    value : float
        Where they are divided.
    """

    name: str
    value: float


@dataclass(frozen=True, slots=True, eq=False)
class Analysis:
    """What the launches of a database have in common, and what tells them apart.

    Parameters
    ----------
    observations : tuple of Observation
        All launches.
    method : str
        Name of the labels' method.
    tolerance : float
        Of ``slice-best``.
    labels : sequence of Label or None
        One for each.
    threshold : Threshold
        That divides them, and `over`: which are above it; None where it is not known.
    times, stakes : tuple
        Run time against block size, and what the block alone buys.
    kind : str
        Name of the inputs.
    inputs : Inputs
        Those of `sample` that the selection keeps.
    selection : Selection
        Which those are, and why not the others.
    rare : tuple of str
        Inputs that fewer than half of the launches have: other tools measure them.
    subject : int
        How many launches the inputs are of: those with counters, or all where none has some.
    correlation : ndarray, shape (kept, kept), float64
        Of the inputs.
    sample : ndarray, shape (s,), int64
        Which launches the following are about: those, or a part of them drawn by lot.
    components, clusters, ellipses
        Of `rows`; None where there are too few launches or inputs.
    rows : ndarray, shape (m,), int64
        Which launches have enough inputs.
    logarithmic : tuple of str
        Inputs of which logarithms were taken.
    tree : Node or None
        None where there are fewer than two labels.
    """

    observations: tuple[Observation, ...]
    method: str
    tolerance: float
    labels: Labels
    threshold: Threshold
    over: tuple[bool | None, ...]
    times: tuple[Times, ...]
    stakes: tuple[Stake, ...]
    kind: str
    inputs: Inputs
    selection: Selection
    rare: tuple[str, ...]
    subject: int
    correlation: Floats
    sample: npt.NDArray[np.int64]
    components: Components | None
    clusters: Clusters | None
    ellipses: tuple[Ellipse | None, ...]
    rows: npt.NDArray[np.int64]
    logarithmic: tuple[str, ...]
    tree: Node | None

    @property
    def counts(self) -> dict[Label | None, int]:
        """How many launches have each label; None is no label."""
        found = Counter(self.labels)
        return {label: found[label] for label in (*LABELS, None)}


def analyse(
    observations: Sequence[Observation],
    *,
    kind: str = "ratios",
    method: str = "slice-best",
    tolerance: float = 0.05,
    correlated: float = 0.9,
    threshold: Threshold | None = None,
    seed: int = 0,
) -> Analysis:
    """Analyse launches: labels, inputs that remain, components, clusters, tree, run times.

    Parameters
    ----------
    observations : sequence of Observation
        One at least.
    kind : str
        Name of the inputs, of :data:`INPUTS`.
    method : str
        Name of the labels' method, of :data:`tunedb.advisor.labels.METHODS`.
    tolerance : float
        Of ``slice-best``: what counts as fast as the best.
    correlated : float
        |r| from which of two inputs one is dropped.
    threshold : Threshold or None
        What divides the launches; None takes twice the tolerance above the best time.
    seed : int
        Of everything that is drawn by lot.

    Returns
    -------
    Analysis
        What was found.

    Raises
    ------
    UsageError
        There are no launches, or no input has the threshold's name.
    PluginError
        scikit-learn is not installed.
    """
    if not observations:
        raise UsageError(
            "no launch with a run time to analyse; import profiles with: tunedb import logs PATH"
        )
    options = {"tolerance": tolerance} if method == "slice-best" else {}
    labels = labelling.METHODS[method](observations, **options)
    every = INPUTS[kind](observations)
    chosen = threshold or Threshold(RELATIVE, 1 + 2 * tolerance)
    over = _over(observations, every, chosen)
    subject = _subject(observations)
    common, rare = _common(Inputs(every.names, every.values[subject]))
    selection = select(common, threshold=correlated)
    sample = subject[draw(len(subject), limits.MAX_ANALYSED_LAUNCHES, seed)]
    kept = [every.names.index(name) for name in selection.kept]
    inputs = Inputs(selection.kept, every.values[sample][:, kept])
    standardised = standardise(inputs)
    found = components(standardised)
    clusters = None if found is None else cluster(standardised.values, seed=seed)
    return Analysis(
        observations=tuple(observations),
        method=method,
        tolerance=tolerance,
        labels=labels,
        threshold=chosen,
        over=over,
        times=tuple(times(observations)),
        stakes=tuple(stakes(observations)),
        kind=kind,
        inputs=inputs,
        selection=selection,
        rare=rare,
        subject=len(subject),
        correlation=correlation(inputs, selection.kept),
        sample=sample,
        components=found,
        clusters=clusters,
        ellipses=_ellipses(found, clusters),
        rows=sample[standardised.rows],
        logarithmic=standardised.logarithmic,
        tree=grow(inputs, [labels[row] for row in sample.tolist()]),
    )


def _subject(observations: Sequence[Observation]) -> npt.NDArray[np.int64]:
    """Return the launches with counters; all where none has some.

    Of a launch without counters little but its geometry is known: it would resemble all others.
    """
    profiled = [index for index, one in enumerate(observations) if one.counters]
    return np.array(profiled or range(len(observations)), dtype=np.int64)


def _common(inputs: Inputs) -> tuple[Inputs, tuple[str, ...]]:
    """Return the inputs that at least half of the launches have, and the names of the others.

    Tools name different counters. Where most launches come of one tool, those that only another
    one reads would be filled with medians for nearly all.
    """
    known = np.isfinite(inputs.values).mean(axis=0)
    # What nobody has is left to the selection, which says so.
    rare = (known > 0) & (known < _LEAST_SHARE)
    names = np.array(inputs.names, dtype=object)
    common = Inputs(tuple(names[~rare]), inputs.values[:, ~rare])
    return common, tuple(names[rare])


def draw(count: int, most: int, seed: int) -> npt.NDArray[np.int64]:
    """Return which of `count` are taken, ascending: all, or `most` of them drawn by lot."""
    if count <= most:
        return np.arange(count, dtype=np.int64)
    drawn = np.random.default_rng(seed).choice(count, most, replace=False)
    return np.sort(drawn).astype(np.int64)


def _ellipses(found: Components | None, clusters: Clusters | None) -> tuple[Ellipse | None, ...]:
    if found is None or clusters is None or found.scores.shape[1] < 2:
        return ()
    places = found.scores[:, :2]
    return tuple(ellipse(places[clusters.of == one]) for one in range(clusters.count))


def _over(
    observations: Sequence[Observation], inputs: Inputs, threshold: Threshold
) -> tuple[bool | None, ...]:
    """Return which launches are above a threshold.

    Raises
    ------
    UsageError
        No input has its name.
    """
    values: Sequence[float | None]
    if threshold.name == RELATIVE:
        values = [one.gain for one in labelling.verdicts(observations)]
    elif threshold.name in _OWN:
        values = [_OWN[threshold.name](one) for one in observations]
    elif threshold.name in inputs.names:
        values = inputs.values[:, inputs.names.index(threshold.name)].tolist()
    else:
        known = ", ".join([RELATIVE, *_OWN, *inputs.names])
        raise UsageError(f"{threshold.name!r} is not an input that could be marked; known: {known}")
    return tuple(
        None if value is None or np.isnan(value) else bool(value > threshold.value)
        for value in values
    )


# ---- How inputs go together: Pearson's coefficient of each pair ----------------------------------


def correlation(inputs: Inputs, names: tuple[str, ...]) -> Floats:
    """Return the correlation matrix of some inputs.

    A pair is compared on the launches that have both.

    Parameters
    ----------
    inputs : Inputs
        The launches as numbers.
    names : tuple of str
        Which of them, in which order.

    Returns
    -------
    ndarray, shape (len(names), len(names)), float64
        1 on the diagonal; NaN for pairs that fewer than two launches have, or of which one does
        not vary on those.
    """
    columns = [inputs.names.index(name) for name in names]
    values = inputs.values[:, columns]
    known = np.isfinite(values)
    matrix = np.eye(len(names))
    for i in range(len(names)):
        for j in range(i):
            both = known[:, i] & known[:, j]
            matrix[i, j] = matrix[j, i] = _pearson(values[both, i], values[both, j])
    return matrix


def _pearson(one: Floats, other: Floats) -> float:
    if len(one) < 2:
        return float("nan")
    # Counts reach 1e12: their squares still fit, those of their sums would lose digits.
    one, other = one - one.mean(), other - other.mean()
    lengths = float(np.sqrt((one**2).sum()) * np.sqrt((other**2).sum()))
    if not lengths > 0:
        return float("nan")
    return float(np.clip((one * other).sum() / lengths, -1, 1))

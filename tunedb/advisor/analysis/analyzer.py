"""All numbers of the advisor's page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ... import limits
from ...errors import UsageError
from .. import labels as labelling
from ..inputs import read_inputs
from ..observations import LABELS, Inputs, Label, Labels, Observation
from ..selection import LaunchSelection, correlations, select
from .clusters import Clusters, Ellipse, cluster, ellipse
from .components import Components, principal_components, standardise
from .times import KernelTimes, SliceGain, kernel_times, slice_gains
from .trees import TreeNode, grow

if TYPE_CHECKING:
    from collections.abc import Callable

Floats = npt.NDArray[np.float64]

#: Values of a launch besides its inputs, by name.
_VALUES: dict[str, Callable[[Observation], float | None]] = {
    "threads": lambda launch: launch.threads,
    "registers": lambda launch: launch.registers,
    "seconds": lambda launch: launch.seconds,
}

#: Smallest share of the launches that have an input.
_LEAST_SHARE = 0.5

#: Name of the time over the best of the slice.
RELATIVE = "time / best"


@dataclass(frozen=True, slots=True)
class Threshold:
    """Threshold of a value, which divides the launches.

    Parameters
    ----------
    name : str
        Of an input; or ``threads``, ``registers``, ``seconds``, ``time / best``.
    value : float
        Largest value of the lower part.
    """

    name: str
    value: float


@dataclass(frozen=True, slots=True, eq=False)
class Analysis:
    """Numbers of the launches of a database.

    Parameters
    ----------
    observations : tuple of Observation
        All launches.
    method : str
        Name of the labels' method.
    tolerance : float
        Of ``slice-best``.
    labels : sequence of Label or None
        One for each launch.
    threshold : Threshold
        Divides the launches.
    over : tuple of (bool or None)
        Whether each launch is above the threshold; None if its value is unknown.
    times : tuple of KernelTimes
        Run time against block size.
    gains : tuple of SliceGain
        Gain from the block alone.
    kind : str
        Name of the inputs.
    inputs : Inputs
        Selected inputs of `sample`.
    selection : LaunchSelection
        Kept inputs, and the others with the reason.
    rare : tuple of str
        Inputs that fewer than half of the launches have: other tools measure them.
    subject : int
        Number of launches whose inputs are analysed: those with counters, or all without any.
    correlation : ndarray, shape (kept, kept), float64
        Of the inputs.
    sample : ndarray, shape (s,), int64
        Positions of those launches, or of a random sample of them.
    components, clusters, ellipses
        Results for `rows`; None with too few launches or inputs.
    rows : ndarray, shape (m,), int64
        Positions of the launches with enough inputs.
    logarithmic : tuple of str
        Inputs of which logarithms were taken.
    tree : TreeNode or None
        None with fewer than two labels.
    """

    observations: tuple[Observation, ...]
    method: str
    tolerance: float
    labels: Labels
    threshold: Threshold
    over: tuple[bool | None, ...]
    times: tuple[KernelTimes, ...]
    gains: tuple[SliceGain, ...]
    kind: str
    inputs: Inputs
    selection: LaunchSelection
    rare: tuple[str, ...]
    subject: int
    correlation: Floats
    sample: npt.NDArray[np.int64]
    components: Components | None
    clusters: Clusters | None
    ellipses: tuple[Ellipse | None, ...]
    rows: npt.NDArray[np.int64]
    logarithmic: tuple[str, ...]
    tree: TreeNode | None

    @property
    def counts(self) -> dict[Label | None, int]:
        """Number of launches with each label; None is no label."""
        counts = Counter(self.labels)
        return {label: counts[label] for label in (*LABELS, None)}


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
        Name of the inputs, of :data:`tunedb.advisor.inputs.INPUTS`.
    method : str
        Name of the labels' method, of :data:`tunedb.advisor.labels.METHODS`.
    tolerance : float
        Of ``slice-best``: share of the best time within which a time counts as best.
    correlated : float
        |r| above which one of two inputs is dropped.
    threshold : Threshold or None
        Divides the launches; None takes twice the tolerance above the best time.
    seed : int
        Of all random draws.

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
    inputs = read_inputs(kind, observations)
    threshold = threshold or Threshold(RELATIVE, 1 + 2 * tolerance)
    over = _over(observations, inputs, threshold)
    subject = _subject(observations)
    common, rare = _common(Inputs(inputs.names, inputs.values[subject]))
    selection = select(common, threshold=correlated)
    sample = subject[draw(len(subject), limits.MAX_ANALYSED_LAUNCHES, seed)]
    columns = [inputs.names.index(name) for name in selection.kept]
    selected = Inputs(selection.kept, inputs.values[sample][:, columns])
    standardised = standardise(selected)
    components = principal_components(standardised)
    clusters = None if components is None else cluster(standardised.values, seed=seed)
    return Analysis(
        observations=tuple(observations),
        method=method,
        tolerance=tolerance,
        labels=labels,
        threshold=threshold,
        over=over,
        times=tuple(kernel_times(observations)),
        gains=tuple(slice_gains(observations)),
        kind=kind,
        inputs=selected,
        selection=selection,
        rare=rare,
        subject=len(subject),
        correlation=correlations(selected.values),
        sample=sample,
        components=components,
        clusters=clusters,
        ellipses=_ellipses(components, clusters),
        rows=sample[standardised.rows],
        logarithmic=standardised.logarithmic,
        tree=grow(selected, [labels[row] for row in sample.tolist()]),
    )


def _subject(observations: Sequence[Observation]) -> npt.NDArray[np.int64]:
    """Return the launches with counters; all launches if none has counters.

    A launch without counters has little more than its geometry: it would resemble all others.
    """
    profiled = [index for index, launch in enumerate(observations) if launch.counters]
    return np.array(profiled or range(len(observations)), dtype=np.int64)


def _common(inputs: Inputs) -> tuple[Inputs, tuple[str, ...]]:
    """Return the inputs that at least half of the launches have, and the names of the others.

    Tools read different counters. If most launches come from one tool, the counters of another one
    would be medians for nearly all.
    """
    known = np.isfinite(inputs.values).mean(axis=0)
    # The selection reports inputs that no launch has.
    rare = (known > 0) & (known < _LEAST_SHARE)
    names = np.array(inputs.names, dtype=object)
    common = Inputs(tuple(names[~rare]), inputs.values[:, ~rare])
    return common, tuple(names[rare])


def draw(count: int, most: int, seed: int) -> npt.NDArray[np.int64]:
    """Return all numbers below `count`, or a random sample of `most` of them, ascending."""
    if count <= most:
        return np.arange(count, dtype=np.int64)
    drawn = np.random.default_rng(seed).choice(count, most, replace=False)
    return np.sort(drawn).astype(np.int64)


def _ellipses(
    components: Components | None, clusters: Clusters | None
) -> tuple[Ellipse | None, ...]:
    if components is None or clusters is None or components.scores.shape[1] < 2:
        return ()
    points = components.scores[:, :2]
    return tuple(ellipse(points[clusters.assignment == n]) for n in range(clusters.count))


def _over(
    observations: Sequence[Observation], inputs: Inputs, threshold: Threshold
) -> tuple[bool | None, ...]:
    """Return whether each launch is above the threshold; UsageError for an unknown name."""
    values: Sequence[float | None]
    if threshold.name == RELATIVE:
        values = [verdict.gain for verdict in labelling.verdicts(observations)]
    elif threshold.name in _VALUES:
        values = [_VALUES[threshold.name](launch) for launch in observations]
    elif threshold.name in inputs.names:
        values = inputs.values[:, inputs.names.index(threshold.name)].tolist()
    else:
        known = ", ".join([RELATIVE, *_VALUES, *inputs.names])
        raise UsageError(f"{threshold.name!r} is not an input that could be marked; known: {known}")
    return tuple(
        None if value is None or np.isnan(value) else bool(value > threshold.value)
        for value in values
    )

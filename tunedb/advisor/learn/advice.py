"""Advice on a launch: direction, probability, next block, reasons, and expected gain."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...formats.gpu.t1 import T1Input
from ...launches import Extents
from ..inputs import read_inputs
from ..labels import Codes, Floats
from ..legality import fits, legal_blocks, next_block
from ..loading import t1_of
from ..observations import LABELS, Label, Observation
from . import geometry
from .boosted import Boosted
from .gain import Gain
from .measured import Measured
from .model import LEARNT, SOURCES, Advisor, margins, softmax
from .regret import StepOutcomes

#: Number of reasons in advice.
REASONS = 3

#: Launches are of like size if one has at most so many times the threads of the other.
_ALIKE = 2.0


@dataclass(frozen=True, slots=True)
class Reason:
    """Evidence for an answer.

    Parameters
    ----------
    name : str
        A counter, a ratio or a property of the launch.
    value : float
        Present value; NaN if it was not measured.
    weight : float
        Contribution to the score of the answer; the largest count most.
    """

    name: str
    value: float
    weight: float


@dataclass(frozen=True, slots=True)
class Expected:
    """Gains of the same advice in measured slices, to blocks of like size.

    Parameters
    ----------
    low, middle, high : float
        Quartiles of time before / time after: above 1 is a gain.
    slices : int
        Number of these slices.
    """

    low: float
    middle: float
    high: float
    slices: int


@dataclass(frozen=True, slots=True, eq=False)
class Advice:
    """Advice on one launch.

    Parameters
    ----------
    observation : Observation
    label : Label or None
        None without advice: at this confidence, advice on held-out kernels and devices was no
        better than none.
    probability : float
        Probability of the label; of the likeliest one without advice.
    probabilities : tuple of float
        In the order of ``LABELS``.
    block : tuple of int or None
        The next legal block in the direction.
    reasons : tuple of Reason
        The strongest first.
    expected : Expected or None
        None for no change, and without a slice of like size in that direction.
    stake : float or None
        Time now / best measured time of the launch's slice; None if the slice has one block.
    source : str
        Of :data:`tunedb.advisor.learn.model.SOURCES`: ``measured`` (the same program on other
        devices), ``kernel`` (other programs of the kernel on other devices), or ``learnt`` (a model
        of other kernels).
    """

    observation: Observation
    label: Label | None
    probability: float
    probabilities: tuple[float, ...]
    block: Extents | None
    reasons: tuple[Reason, ...]
    expected: Expected | None
    stake: float | None
    source: str


def advise(
    advisor: Advisor,
    known: Sequence[Observation],
    wanted: Sequence[int],
    *,
    stated: Mapping[str, T1Input] | None = None,
) -> list[Advice]:
    """Return advice on some launches of a database.

    Parameters
    ----------
    advisor : Advisor
    known : sequence of Observation
        All known launches, whole slices.
    wanted : sequence of int
        Positions of the launches to advise on.
    stated : mapping of str to T1Input, optional
        Kernel → its FAIR T1 input (:func:`tunedb.advisor.loading.t1_inputs`), which determines the
        legal blocks.
    """
    slices: dict[bytes, list[int]] = defaultdict(list)
    for position, one in enumerate(known):
        slices[one.slice].append(position)
    outcomes, measured = StepOutcomes.from_observations(known), Measured.from_observations(known)
    advised, _ = advisor.advise(known, measured, outcomes.after)
    found = []
    for i in wanted:
        others = [known[j] for j in slices[known[i].slice] if j != i]
        t1 = t1_of(stated or {}, known[i].workload, known[i].kernel)
        found.append(_one(advisor, known, measured, (outcomes, advised), i, others, t1))
    return found


def _one(
    advisor: Advisor,
    known: Sequence[Observation],
    measured: Measured,
    steps: tuple[StepOutcomes, Codes],
    position: int,
    others: Sequence[Observation],
    t1: T1Input | None,
) -> Advice:
    one = known[position]
    blocks = tuple(other.block for other in others if other.block is not None)
    elsewhere = [block for block in measured.blocks(one) if fits(one, block)]
    ran = [one, *others, *_launches(one, elsewhere, blocks)]
    scores, sources = (each[0] for each in advisor.all_scores(ran, measured))
    seen = tuple({*blocks, *elsewhere})
    if sources == LEARNT:
        untried = _launches(one, legal_blocks(one, seen=seen, t1=t1), seen)
        ran = [*ran, *untried]
        if advisor.preparation is None:
            scores = advisor.scores(ran)[0]
    confidence = advisor.confidence(int(sources))
    likely = softmax(scores[None], confidence.temperature)[0]
    code = int(scores.argmax())
    label = LABELS[code] if margins(scores[None])[0] > confidence.least else None
    block = None
    if label not in (None, Label.NO_CHANGE):
        block = next_block(one, LABELS[code], seen=seen, t1=t1)
    best = min((other.seconds for other in others), default=None)
    is_learnt = label is not None and sources == LEARNT
    return Advice(
        observation=one,
        label=label,
        probability=float(likely[code]),
        probabilities=tuple(float(p) for p in likely),
        block=block,
        reasons=_reasons(advisor, one, code, block, ran) if is_learnt else (),
        expected=None if label is None else _expected(known, *steps, position, code),
        stake=None if best is None else max(1.0, one.seconds / best),
        source=SOURCES[int(sources)],
    )


def _launches(
    one: Observation, blocks: Sequence[Extents], there: Sequence[Extents]
) -> list[Observation]:
    """Return unmeasured launches: blocks that are not there, with the known facts of this one."""
    return [
        replace(one, block=block, threads=int(np.prod(block)), grid=None)
        for block in blocks
        if block not in {*there, one.extents}
    ]


def _reasons(
    advisor: Advisor,
    one: Observation,
    code: int,
    block: Extents | None,
    candidates: Sequence[Observation],
) -> tuple[Reason, ...]:
    if isinstance(advisor.estimator, Gain):
        found = _of_launch(advisor.estimator, one, block, candidates)
    else:
        found = _of_inputs(advisor, one, code)
    strongest = sorted(found, key=lambda reason: -reason.weight)
    return tuple(reason for reason in strongest if reason.weight > 0)[:REASONS]


def _of_launch(
    model: Gain, one: Observation, block: Extents | None, candidates: Sequence[Observation]
) -> list[Reason]:
    """Return the columns of the launch that change with the next block, and their savings."""
    then = next((other for other in candidates[1:] if other.block == block), None)
    if block is None or then is None:
        return []
    columns = geometry.columns([one, then])
    saved = model.contributions(columns[:1], columns[1:])[0]
    at = [geometry.NAMES.index(name) for name in model.columns]
    return [
        Reason(name, float(columns[0, i]), float(weight))
        for name, i, weight in zip(model.columns, at, saved, strict=True)
    ]


def _of_inputs(advisor: Advisor, one: Observation, code: int) -> list[Reason]:
    """Return the contribution of each input to a score.

    For trees it is exact along their paths. For machines it is the decrease of the score when one
    input at a time is set to its mean (0, standardised).
    """
    preparation = advisor.preparation
    if preparation is None:
        return []
    inputs = read_inputs(advisor.inputs, [one])
    values = preparation(inputs)
    if isinstance(advisor.estimator, Boosted):
        added: Floats = advisor.estimator.contributions(values)[0, code, :-1]
    else:
        without = np.repeat(values, values.shape[1], axis=0)
        np.fill_diagonal(without, 0.0)
        added = (
            advisor.estimator.scores(values)[0, code] - advisor.estimator.scores(without)[:, code]
        )
    position = {name: i for i, name in enumerate(inputs.names)}
    return [
        Reason(
            name,
            float(inputs.values[0, position[name]]) if name in position else float("nan"),
            float(weight),
        )
        for name, weight in zip(preparation.names, added, strict=True)
    ]


def _expected(
    known: Sequence[Observation], outcomes: StepOutcomes, advised: Codes, position: int, code: int
) -> Expected | None:
    """Return the gains of the same advice in other slices, for blocks of like size."""
    if LABELS[code] == Label.NO_CHANGE:
        return None
    threads = np.array([one.threads for one in known])
    after = outcomes.after[:, code]
    size = known[position].threads
    alike = (advised == code) & (threads <= _ALIKE * size) & (threads * _ALIKE >= size)
    alike &= (after != np.arange(len(known))) & (outcomes.slice != outcomes.slice[position])
    if not alike.any():
        return None
    gains: dict[int, list[float]] = defaultdict(list)
    for i in np.flatnonzero(alike):
        gains[int(outcomes.slice[i])].append(
            float(outcomes.seconds[i] / outcomes.seconds[after[i]])
        )
    low, middle, high = np.quantile([np.median(one) for one in gains.values()], (0.25, 0.5, 0.75))
    return Expected(float(low), float(middle), float(high), len(gains))

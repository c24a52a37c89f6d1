"""Evaluation of advice on held-out launches, beside baselines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import UsageError
from ..inputs import read_inputs
from ..labels import (
    BASE_THREADS,
    NONE,
    Codes,
    accuracy,
    balanced_accuracy,
    by_slice,
    confusion,
    to_codes,
)
from ..observations import LABELS, Inputs, Labels, Observation
from ..scikit_learn import import_sklearn
from ..selection import correlations, select
from . import baselines
from .findings import AdvisorFindings, Score
from .measured import Measured, devices
from .model import LEARNT
from .regret import StepOutcomes
from .splits import Mask, by_group, families, group_folds, slice_numbers
from .ten_splits import ten_splits
from .training import calibrated, check, fit, learnable, material

#: Units that can be held out.
SPLITS = ("kernel", "device", "slice", "random")

#: Methods that learn.
METHODS = ("gain", "svm", "boosted")

#: Parts into which slices are divided.
FOLDS = 5

Step = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Case:
    """Data that methods are evaluated on."""

    observations: Sequence[Observation]
    truth: Codes
    outcomes: StepOutcomes
    subject: Mask
    methods: Sequence[str]
    inputs: str
    step: Step


@dataclass(slots=True)
class _Told:
    """Advice of the methods for the rows of one split."""

    advice: dict[str, Codes]
    judged: Mask
    measured: dict[str, Mask] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def evaluate(
    observations: Sequence[Observation],
    labels: Labels,
    *,
    splits: Sequence[str] = ("kernel",),
    methods: Sequence[str] = METHODS,
    inputs: str = "ratios",
    name: str = "slice-best",
    tolerance: float = 0.05,
    on_step: Step | None = None,
) -> AdvisorFindings:
    """Evaluate methods and baselines on held-out launches.

    With ``kernel`` all kernels of a family (:func:`.splits.family`) are held out together, with
    ``device`` all launches of a device, and everything is chosen on the others. The splits
    ``slice`` and ``random`` evaluate profiled launches alone, if there are any.

    Parameters
    ----------
    observations : sequence of Observation
        Whole slices.
    labels : sequence of (Label or None)
    splits : sequence of {"kernel", "device", "slice", "random"}
    methods : sequence of str
        Of :data:`METHODS`; the baselines are always there.
    inputs : {"ratios", "raw"}
    name, tolerance : str, float
        Method of the labels, for the findings.
    on_step : callable, optional
        Called with the description of each step.

    Raises
    ------
    UsageError
        There are no rows to evaluate, or a name does not exist.
    PluginError
        scikit-learn is not installed.
    """
    _check_names(splits, methods)
    if set(methods) - {"gain"} or "random" in splits:
        import_sklearn()
    step = on_step or (lambda what: None)
    truth = to_codes(labels)
    notes = list(check(observations, truth))
    profiled = np.array([bool(one.counters) for one in observations])
    subject = profiled if profiled.any() else np.ones(len(observations), bool)
    if (truth[subject] == NONE).all():
        raise UsageError("no profiled launch has a label; import kernels with several block sizes")
    outcomes, groups = StepOutcomes.from_observations(observations), families(observations)
    case = _Case(observations, truth, outcomes, subject, methods, inputs, step)
    sets = np.char.add(np.char.add(groups, "\n"), devices(observations))
    scores: list[Score] = []
    tables = {}
    for split in splits:
        split_advice = _SPLITS[split](case)
        notes.extend(split_advice.notes)
        for method, advice in split_advice.advice.items():
            rows = split_advice.judged & (truth != NONE)
            measured = split_advice.measured.get(method, np.zeros(len(rows), bool))
            told = truth, advice, measured, outcomes
            scores.append(_score(method, split, "", *told, rows))
            if split == "kernel":
                tables[method] = confusion(truth[rows], advice[rows])
            if split not in ("kernel", "device"):
                continue
            for held_out, those in by_group(sets):
                if (rows & those).any():
                    scores.append(_score(method, split, held_out, *told, rows & those))
    return _findings(case, scores, tables, name, tolerance, notes)


def _check_names(splits: Sequence[str], methods: Sequence[str]) -> None:
    for given, known in ((splits, SPLITS), (methods, METHODS)):
        for one in given:
            if one not in known:
                raise UsageError(f"no {one!r}; there are: {', '.join(known)}")


def _by_kernel(case: _Case) -> _Told:
    return _leaving_out(case, families(case.observations))


def _by_device(case: _Case) -> _Told:
    return _leaving_out(case, devices(case.observations))


def _leaving_out(case: _Case, groups: np.ndarray[Any, Any]) -> _Told:
    """Return advice for each group by an advisor of the others, silent where it is unsure."""
    truth = case.truth
    told = _told(case, np.ones(len(truth), bool))
    for name, rows in by_group(groups):
        # Profiles have dozens of kernels with one block, which cannot be evaluated.
        if (truth[rows] == NONE).all():
            continue
        held, left = np.flatnonzero(rows), np.flatnonzero(~rows)
        rest = [case.observations[i] for i in left.tolist()]
        told.advice["majority"][held] = baselines.majority(truth[left])
        subjects, after = (
            [case.observations[i] for i in held.tolist()],
            case.outcomes.part(rows).after,
        )
        known = Measured.from_observations(rest)
        for method in case.methods:
            case.step(f"holding out {name}: {method}")
            if not learnable(truth[left[material(rest, method)]]):
                told.notes.append(f"{name}: the other launches have too few labels to learn from")
                continue
            outcomes = case.outcomes.part(~rows)
            advisor = calibrated(rest, truth[left], method, case.inputs, outcomes=outcomes)
            told.advice[method][held], source = advisor.advise(subjects, known, after)
            told.measured[method][held] = source != LEARNT
    return told


def _by_slice(case: _Case) -> _Told:
    told = _told(case, case.subject)
    for i, rows in enumerate(
        group_folds(slice_numbers(case.observations), FOLDS, np.random.default_rng(0))
    ):
        held, left = np.flatnonzero(rows & case.subject), np.flatnonzero(~rows)
        rest = [case.observations[j] for j in left.tolist()]
        told.advice["majority"][held] = baselines.majority(case.truth[left[case.subject[left]]])
        for method in case.methods:
            case.step(f"holding out slices {i + 1}/{FOLDS}: {method}")
            those = material(rest, method)
            codes = case.truth[left[those]]
            if not len(held) or not learnable(codes):
                continue
            model = fit([rest[j] for j in those], codes, method, case.inputs)
            scores = model.scores([case.observations[j] for j in held.tolist()])
            told.advice[method][held] = scores.argmax(axis=1)
    return told


def _told(case: _Case, judged: Mask) -> _Told:
    """Return the advice of the baselines, and none of the methods yet."""
    rows = len(case.truth)
    advice = {name: np.full(rows, NONE, np.int8) for name in (*case.methods, "majority")}
    measured = {name: np.zeros(rows, bool) for name in case.methods}
    return _Told(advice | _untrained(case.observations), judged, measured)


def _at_random(case: _Case) -> _Told:
    rows = np.flatnonzero(case.subject & (case.truth != NONE))
    chosen = [case.observations[int(i)] for i in rows]
    codes, columns = case.truth[rows], read_inputs(case.inputs, chosen)
    advice: dict[str, Codes] = {}
    judged = np.zeros(len(case.observations), bool)
    notes = []
    for method in (one for one in case.methods if one != "gain"):
        case.step(f"ten random splits: {method}")
        found = ten_splits(columns, codes, families(chosen), method, case.inputs)
        advice[method] = np.full(len(judged), NONE, np.int8)
        advice[method][rows[found.test]] = found.advice
        judged[rows[found.test]] = True
        notes.append(
            f"{method}, {len(found.validation)} random splits, {name_of(case.inputs)}: accuracy "
            f"{np.mean(found.validation):.3f} ± {np.std(found.validation):.3f} (best "
            f"{max(found.validation):.3f}), on the untouched test set "
            f"{accuracy(codes[found.test], found.advice):.3f}"
        )
        majority = baselines.majority(codes[~found.test])
        advice["majority"] = np.full(len(judged), majority, np.int8)
    return _Told(advice | _untrained(case.observations), judged, notes=notes)


def name_of(inputs: str) -> str:
    """Return the name of inputs in a sentence."""
    return {"raw": "raw counters"}.get(inputs, inputs)


_SPLITS: dict[str, Callable[[_Case], _Told]] = {
    "kernel": _by_kernel,
    "device": _by_device,
    "slice": _by_slice,
    "random": _at_random,
}


def _untrained(observations: Sequence[Observation]) -> dict[str, Codes]:
    return {name: method(observations) for name, method in baselines.UNTRAINED.items()}


def _score(
    method: str,
    split: str,
    name: str,
    truth: Codes,
    advice: Codes,
    measured: Mask,
    outcomes: StepOutcomes,
    rows: Mask,
) -> Score:
    has_advice = rows & (advice != NONE)
    alone = outcomes.regret(advice, has_advice)
    held_out, _, device = name.partition("\n")
    return Score(
        method=method,
        split=split,
        held_out=held_out,
        device=device,
        rows=int(rows.sum()),
        advised=int(has_advice.sum()),
        measured=int((measured & has_advice).sum()),
        right=int((has_advice & (advice == truth)).sum()),
        accuracy=accuracy(truth[rows], advice[rows]),
        balanced=balanced_accuracy(truth[rows], advice[rows]),
        regret=outcomes.regret(advice, rows),
        against_nothing=outcomes.against_nothing(advice, rows),
        advised_regret=None if alone is None else alone.value,
        worst_loss=float(np.exp(-outcomes.savings(advice)[rows].min())) if rows.any() else None,
    )


def _findings(
    case: _Case,
    scores: list[Score],
    tables: dict[str, np.ndarray[Any, Any]],
    name: str,
    tolerance: float,
    notes: Sequence[str],
) -> AdvisorFindings:
    judged = [case.observations[i] for i in np.flatnonzero(case.subject).tolist()]
    codes = case.truth[case.subject]
    columns = read_inputs(case.inputs, judged)
    selection = select(columns)
    at = [columns.names.index(one) for one in selection.kept]
    gains, kernels = stakes(judged)
    return AdvisorFindings(
        labels=name,
        inputs=case.inputs,
        tolerance=tolerance,
        classes=tuple(map(str, LABELS)),
        counts=tuple(int((codes == code).sum()) for code in range(len(LABELS))),
        observations=len(judged),
        unlabelled=int((codes == NONE).sum()),
        slices=len(gains),
        kernels=tuple(name for name, _ in by_group(families(judged))),
        scores=tuple(scores),
        confusion=tables,
        gains=gains,
        gain_kernels=kernels,
        kept=selection.kept,
        dropped=selection.correlated,
        correlation=_correlation(columns, at),
        notes=tuple(dict.fromkeys(notes)),
    )


def _correlation(columns: Inputs, at: Sequence[int]) -> np.ndarray[Any, Any]:
    return correlations(columns.values[:, list(at)]) if at else np.zeros((0, 0))


def stakes(
    observations: Sequence[Observation],
) -> tuple[np.ndarray[Any, Any], tuple[str, ...]]:
    """Return the gain of the best block size in each slice.

    Returns
    -------
    gains : ndarray, shape (slices,), float64
        Time of the block nearest 256 threads (of several the fastest) / best time.
    kernels : tuple of str
        Family of each slice's kernel.
    """
    gains, kernels = [], []
    groups = families(observations)
    for positions in by_slice(observations):
        base = min(
            positions,
            key=lambda i: (abs(observations[i].threads - BASE_THREADS), observations[i].seconds),
        )
        best = min(observations[i].seconds for i in positions)
        gains.append(observations[base].seconds / best)
        kernels.append(str(groups[positions[0]]))
    return np.array(gains, np.float64), tuple(kernels)

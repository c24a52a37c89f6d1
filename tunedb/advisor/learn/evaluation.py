"""Evaluation of advice on held-out launches, beside baselines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import UsageError
from ..inputs import ratios, read_inputs
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
from .regret import StepOutcomes
from .splits import Mask, by_group, families, group_folds, slice_numbers
from .ten_splits import ten_splits
from .training import check, fit, learnable, material, reach

#: Units that can be held out.
SPLITS = ("kernel", "slice", "random")

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
    subject: Mask
    methods: Sequence[str]
    inputs: str
    step: Step


@dataclass(slots=True)
class _Told:
    """Advice of the methods for the rows of one split."""

    advice: dict[str, Codes]
    judged: Mask
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

    If some launches are profiled, only those are evaluated; launches without counters are training
    data of ``gain`` alone. With ``kernel`` all kernels of a family (:func:`.splits.family`) are
    held out together, and everything is chosen on the others.

    Parameters
    ----------
    observations : sequence of Observation
        Whole slices.
    labels : sequence of (Label or None)
    splits : sequence of {"kernel", "slice", "random"}
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
    case = _Case(observations, truth, subject, methods, inputs, step)
    outcomes, groups = StepOutcomes.from_observations(observations), families(observations)
    scores: list[Score] = []
    tables = {}
    for split in splits:
        split_advice = _SPLITS[split](case)
        notes.extend(split_advice.notes)
        for method, advice in split_advice.advice.items():
            rows = split_advice.judged & (truth != NONE)
            scores.append(_score(method, split, "", truth, advice, outcomes, rows))
            if split != "kernel":
                continue
            tables[method] = confusion(truth[rows], advice[rows])
            for group, those in by_group(groups):
                if (rows & those).any():
                    held = rows & those
                    scores.append(_score(method, split, group, truth, advice, outcomes, held))
    return _findings(case, scores, tables, name, tolerance, notes)


def _check_names(splits: Sequence[str], methods: Sequence[str]) -> None:
    for given, known in ((splits, SPLITS), (methods, METHODS)):
        for one in given:
            if one not in known:
                raise UsageError(f"no {one!r}; there are: {', '.join(known)}")


def _by_kernel(case: _Case) -> _Told:
    groups = families(case.observations)
    # Profiles have dozens of kernels with one block, which cannot be evaluated.
    judged = case.subject & (case.truth != NONE)
    held_out = [(name, rows) for name, rows in by_group(groups) if (rows & judged).any()]
    return _fold_by_fold(case, held_out, abstain=True)


def _by_slice(case: _Case) -> _Told:
    parts = group_folds(slice_numbers(case.observations), FOLDS, np.random.default_rng(0))
    held_out = [(f"slices {i + 1}/{FOLDS}", rows) for i, rows in enumerate(parts)]
    return _fold_by_fold(case, held_out, abstain=False)


def _fold_by_fold(case: _Case, held_out: Sequence[tuple[str, Mask]], *, abstain: bool) -> _Told:
    """Return advice for each held-out part by a model of the rest."""
    truth, subject = case.truth, case.subject
    advice = {name: np.full(len(truth), NONE, np.int8) for name in (*case.methods, "majority")}
    for name, rows in held_out:
        held = np.flatnonzero(rows & subject)
        left = np.flatnonzero(~rows)
        training = truth[left[subject[left]]]
        advice["majority"][held] = baselines.majority(training)
        for method in case.methods:
            case.step(f"holding out {name}: {method}")
            part_advice = _advice(case, held, left, method, abstain)
            if part_advice is not None:
                advice[method][held] = part_advice
    notes = [
        f"{name}: the other kernels have too few labels to learn from"
        for name, rows in held_out
        if not learnable(truth[~rows])
    ]
    return _Told(advice | _untrained(case.observations), subject, notes)


def _advice(
    case: _Case,
    held: np.ndarray[Any, Any],
    left: np.ndarray[Any, Any],
    method: str,
    abstain: bool,
) -> Codes | None:
    """Return advice for held-out rows by a model of others; None if no model can be trained.

    With held-out kernels, launches out of reach get no advice: the reach is then the distance of
    the training kernels from one another.
    """
    rest = [case.observations[i] for i in left]
    rows = material(rest, method)
    chosen, codes = [rest[i] for i in rows], case.truth[left[rows]]
    if not len(held) or not learnable(codes):
        return None
    model = fit(chosen, codes, method, case.inputs)
    subjects = [case.observations[i] for i in held]
    advised = np.asarray(model.scores(subjects).argmax(axis=1), np.int8)
    if abstain:
        labelled = [one for one, code in zip(chosen, codes, strict=True) if code != NONE]
        advised[~reach(labelled).near(ratios(subjects))] = NONE
    return advised


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
    return _Told(advice | _untrained(case.observations), judged, notes)


def name_of(inputs: str) -> str:
    """Return the name of inputs in a sentence."""
    return {"raw": "raw counters"}.get(inputs, inputs)


_SPLITS: dict[str, Callable[[_Case], _Told]] = {
    "kernel": _by_kernel,
    "slice": _by_slice,
    "random": _at_random,
}


def _untrained(observations: Sequence[Observation]) -> dict[str, Codes]:
    return {name: method(observations) for name, method in baselines.UNTRAINED.items()}


def _score(
    method: str,
    split: str,
    held_out: str,
    truth: Codes,
    advice: Codes,
    outcomes: StepOutcomes,
    rows: Mask,
) -> Score:
    has_advice = rows & (advice != NONE)
    alone = outcomes.regret(advice, has_advice)
    return Score(
        method=method,
        split=split,
        held_out=held_out,
        rows=int(rows.sum()),
        advised=int(has_advice.sum()),
        accuracy=accuracy(truth[rows], advice[rows]),
        balanced=balanced_accuracy(truth[rows], advice[rows]),
        regret=outcomes.regret(advice, rows),
        against_nothing=outcomes.against_nothing(advice, rows),
        advised_regret=None if alone is None else alone.value,
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

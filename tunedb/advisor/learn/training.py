"""Training of an advisor on observations.

The caller (:mod:`.evaluation`) leaves held-out rows out. All choices - columns, their scale,
parameters of a learner, the learner itself - are made on the training rows, by holding out their
kernels in turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...errors import UsageError
from ..inputs import INPUTS, read_inputs
from ..labels import NONE, Codes, Floats, balanced_accuracy, to_codes
from ..observations import LABELS, Labels, Observation
from ..scikit_learn import import_sklearn
from . import boosted, gain, svm
from .measured import Measured, devices
from .model import LEARNERS, Advisor, Confidence
from .preprocessing import COUNTS_ABOVE, Preparation, transformer
from .regret import StepOutcomes
from .splits import Mask, by_group, families, family_weight, slice_numbers, thin, weights

#: Training programs of a family: more teach nothing about other kernels.
MOST_PROGRAMS = 25

#: Training rows of machines and trees, and rows for tuning: training time grows with their square,
#: and the document's own set was smaller.
MOST_ROWS, TUNED_ROWS = 3_000, 1_200

#: Least labelled launches of a training set.
LEAST_ROWS = 10

#: Order in which ``auto`` tries learners; the first of equal ones wins.
AUTO = ("gain", "svm", "boosted")

Step = Callable[[str], None]


@dataclass(frozen=True, slots=True, eq=False)
class AdvisorTraining:
    """Result of a training.

    Parameters
    ----------
    advisor : Advisor
    rows : int
        Training launches; those without a label do not count.
    kernels : tuple of str
        Families of them.
    marks : mapping of str to float
        Learner → balanced accuracy on training kernels that were held out in turn, the mean over
        kernels; empty with one kernel.
    notes : tuple of str
        Notes for readers.
    """

    advisor: Advisor
    rows: int
    kernels: tuple[str, ...]
    marks: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def check(observations: Sequence[Observation], truth: Codes) -> tuple[str, ...]:
    """Return notes about a training set.

    Raises
    ------
    UsageError
        There are too few training launches.
    """
    known = truth[truth != NONE]
    if not len(observations):
        raise UsageError("no launch has a run time; import some: tunedb import logs FILE")
    if len(known) < LEAST_ROWS:
        raise UsageError(
            f"{len(known)} of {len(observations)} launches have a label, "
            f"but training needs {LEAST_ROWS}; "
            "import kernels that were measured with several block sizes"
        )
    missing = [str(label) for code, label in enumerate(LABELS) if code not in known]
    if len(missing) == len(LABELS) - 1:
        only = LABELS[int(known[0])]
        raise UsageError(
            f"all {len(known)} labels are {only}, so there is only one class; "
            "use a smaller --tolerance, or import other kernels"
        )
    notes = [f"no launch is labelled {name}: it is never advised" for name in missing]
    groups = np.unique(families(observations))
    if len(groups) == 1:
        notes.append(
            f"all launches are of one kernel ({groups[0]}), so nothing shows how well the "
            "advice holds for others"
        )
    return tuple(notes)


def train(
    observations: Sequence[Observation],
    labels: Labels,
    *,
    learner: str = "auto",
    inputs: str = "ratios",
    on_step: Step | None = None,
) -> AdvisorTraining:
    """Return an advisor trained on labelled observations.

    Parameters
    ----------
    observations : sequence of Observation
        Whole slices.
    labels : sequence of (Label or None)
        One per observation.
    learner : {"auto", "gain", "svm", "boosted"}
        ``auto`` takes the best learner on training kernels that are held out in turn.
    inputs : {"ratios", "raw"}
        Inputs of machines and trees.
    on_step : callable, optional
        Called with the description of each step.

    Raises
    ------
    UsageError
        There are too few training launches, or a choice does not exist.
    PluginError
        scikit-learn is not installed.
    """
    if learner not in (*LEARNERS, "auto") or inputs not in INPUTS:
        raise UsageError(f"no learner {learner!r} on inputs {inputs!r}")
    step = on_step or (lambda what: None)
    truth = to_codes(labels)
    notes = check(observations, truth)
    if learner != "gain":
        import_sklearn()
    marks, held = {}, {}
    for name in AUTO if learner == "auto" else (learner,):
        step(f"holding kernels out: {name}")
        held[name] = held_out_scores(observations, truth, name, inputs)
        mark = mean_balanced(*held[name], truth, families(observations))
        if mark is not None:
            marks[name] = mark
    chosen = learner
    if learner == "auto":
        chosen = max(AUTO, key=lambda name: marks.get(name, -1.0))
    step(f"training: {chosen}")
    advisor = calibrated(observations, truth, chosen, inputs, held=held[chosen])
    rows = material(observations, chosen)
    known = [observations[i] for i in rows if truth[i] != NONE]
    kernels = tuple(dict.fromkeys(families(known).tolist()))
    return AdvisorTraining(advisor, len(known), kernels, marks, notes)


def calibrated(
    observations: Sequence[Observation],
    truth: Codes,
    learner: str,
    inputs: str,
    *,
    outcomes: StepOutcomes | None = None,
    held: tuple[Floats, Mask] | None = None,
) -> Advisor:
    """Return an advisor whose confidence comes from held-out kernels and devices.

    Measurements know nothing of a launch's own device, so all of them are held out.

    Parameters
    ----------
    observations : sequence of Observation
        Whole slices.
    truth : ndarray, shape (n,), int8
    learner, inputs : str
    outcomes : StepOutcomes, optional
        Of the observations, if already computed.
    held : tuple, optional
        Result of :func:`held_out_scores`, if already computed.
    """
    outcomes = outcomes or StepOutcomes.from_observations(observations)
    scores, judged = held or held_out_scores(observations, truth, learner, inputs)
    kernels, number = families(observations), devices(observations)
    sets = np.char.add(np.char.add(kernels, "\n"), number)
    rows = material(observations, learner)
    known, source = Measured.from_observations(observations).scores(observations, outcomes.after)
    return replace(
        fit(_pick(observations, rows), truth[rows], learner, inputs),
        measured=Confidence.fit(known, truth, outcomes, sets, (source >= 0) & (truth != NONE)),
        learnt=Confidence.fit(scores, truth, outcomes, sets, judged),
    )


def material(observations: Sequence[Observation], learner: str) -> list[int]:
    """Return the positions of the observations that a learner uses.

    ``gain`` reads launches, so it learns from kernels without counters too; the others learn from
    profiled launches alone, if there are any.
    """
    rows = thin(observations, MOST_PROGRAMS)
    if learner != "gain" and any(observations[i].counters for i in rows):
        rows = [i for i in rows if observations[i].counters]
    return rows


def fit(observations: Sequence[Observation], truth: Codes, learner: str, inputs: str) -> Advisor:
    """Return an advisor trained on some rows, without calibration.

    Raises
    ------
    UsageError
        All inputs are constant.
    """
    if learner == "gain":
        return Advisor("gain", inputs, None, gain.choose(observations, truth))
    known = np.flatnonzero(truth != NONE)
    rows = known[spread(truth[known], MOST_ROWS)]
    chosen = _pick(observations, rows)
    columns, codes = read_inputs(inputs, chosen), truth[rows]
    above = log_above(inputs)
    preparation = Preparation.fit(columns, log_above=above)
    if not preparation.names:
        raise UsageError(
            f"all {len(columns.names)} inputs are constant over {len(rows)} launches: "
            "there is nothing to learn; import kernels with other counters or blocks"
        )
    values = preparation(columns)
    groups = families(chosen)
    if learner == "boosted":
        model: Any = boosted.fit(values, codes, weights(groups, codes))
    else:
        folds = groups if len(np.unique(groups)) > 1 else slice_numbers(chosen)
        tuned = tune(columns.names, columns.values, codes, folds, above)
        model = svm.fit(values, codes, **tuned)
    return Advisor(learner, inputs, preparation, model)


def log_above(inputs: str) -> float:
    """Return the magnitude from which logarithms are taken: always for raw counters."""
    return 0.0 if inputs == "raw" else COUNTS_ABOVE


def tune(
    names: tuple[str, ...],
    values: Floats,
    truth: Codes,
    groups: np.ndarray[Any, Any] | None,
    above: float,
) -> dict[str, float]:
    """Return the parameters of machines with the best balanced accuracy on held-out groups.

    Preparation and selection are fitted to each fold.

    Parameters
    ----------
    groups : ndarray, shape (n,) or None
        Rows of a group are held out together, in at most five folds; None holds rows out at
        random.
    """
    selection = import_sklearn("sklearn.model_selection")
    rows = spread(truth, TUNED_ROWS)
    truth, values = truth[rows], values[rows]
    fewest = min(Counter(truth.tolist()).values())
    folds: Any
    if groups is not None:
        groups = groups[rows]
        number = min(5, len(np.unique(groups)))
        folds = selection.GroupKFold(number) if number > 1 else None
    else:
        several = selection.StratifiedKFold(max(2, min(3, fewest)), shuffle=True, random_state=0)
        folds = several if fewest > 1 else None
    if folds is None:
        return {}
    steps = [("prepare", transformer(names, above)), ("svm", svm.estimator())]
    pipeline = import_sklearn("sklearn.pipeline").Pipeline(steps)
    # A fold may lack a class, or have constant inputs alone: its score is then the worst.
    search = selection.GridSearchCV(
        pipeline, svm.GRID, cv=folds, scoring=_scorer, error_score=0.0, refit=False
    )
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search.fit(values, truth, groups=groups)
    return {name.rpartition("__")[2]: value for name, value in search.best_params_.items()}


def held_out_scores(
    observations: Sequence[Observation], truth: Codes, learner: str, inputs: str
) -> tuple[Floats, Mask]:
    """Return scores of rows by models trained without their kernel.

    Returns
    -------
    scores : ndarray, shape (n, 3), float64
    judged : ndarray, shape (n,), bool
        Mask of rows with scores: labelled rows that the learner uses, if a second family can be
        trained on.
    """
    scores = np.zeros((len(observations), len(LABELS)))
    judged = np.zeros(len(observations), bool)
    used = np.zeros(len(observations), bool)
    used[material(observations, learner)] = True
    groups = families(observations)
    for _, rows in by_group(groups):
        left = np.flatnonzero(used & ~rows)
        held = np.flatnonzero(used & rows)
        # A kernel without labels cannot be evaluated; profiles have dozens of them.
        if (truth[held] == NONE).all() or not learnable(truth[left]):
            continue
        model = fit(_pick(observations, left), truth[left], learner, inputs)
        scores[held] = model.scores(_pick(observations, held))
        judged[held] = truth[held] != NONE
    return scores, judged


def learnable(truth: Codes) -> bool:
    """Tell whether rows have enough labels, of two classes at least."""
    known = truth[truth != NONE]
    return len(known) >= LEAST_ROWS and len(np.unique(known)) > 1


def mean_balanced(
    scores: Floats,
    judged: np.ndarray[Any, np.dtype[np.bool_]],
    truth: Codes,
    groups: np.ndarray[Any, np.dtype[np.str_]],
) -> float | None:
    """Return the mean over families of the balanced accuracy of scores; None without any.

    A family of few rows counts less (:func:`.splits.family_weight`).
    """
    advice = scores.argmax(axis=1).astype(np.int8)
    those = [rows & judged for _, rows in by_group(groups) if (rows & judged).any()]
    if not those:
        return None
    marks = [balanced_accuracy(truth[rows], advice[rows]) for rows in those]
    return float(np.average(marks, weights=[family_weight(int(rows.sum())) for rows in those]))


def _scorer(model: Any, values: Floats, truth: Codes) -> float:
    return balanced_accuracy(truth, np.asarray(model.predict(values), np.int8))


def _pick(observations: Sequence[Observation], rows: Any) -> list[Observation]:
    return [observations[int(i)] for i in rows]


def spread(truth: Codes, most: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return so many rows at equal steps through the rows sorted by class."""
    order = np.argsort(truth, kind="stable")
    if len(order) <= most:
        return np.sort(order)
    return np.sort(order[np.linspace(0, len(order) - 1, most).round().astype(int)])

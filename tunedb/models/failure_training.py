"""Training of failure classifiers, and their evaluation on workloads and hardware held out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from ..records import FailureKind
from ._xgboost import import_xgboost, interrupt_later, threads_to_use
from .aggregation import row_model
from .base import Floats, TrainingSet, recipe_part
from .boosting import parameters
from .dataset import FAILURES, Dataset
from .failures import RECIPE, FailureModel, Scaling, TrialCosts, mean_margin
from .metrics import pairwise_accuracy
from .model import Model
from .recipe import Recipe
from .splits import shape_classes
from .target_scaling import CalibrationBin, TargetScaling, calibration_bins, calibration_error

#: Folds of the cross-validation over workloads.
FOLDS = 5

#: Minimum number of failures of a kind to become a class.
LEAST_OF_KIND = 20

#: Minimum number of failures of a group for an AUROC.
LEAST_FAILURES = 5

#: Trials on held-out hardware that calibrate its predictions, draws of them, and most hardware.
_CALIBRATED_BY, _DRAWS, _MOST_HARDWARE = 32, 20, 4

#: Share of successful programs lost at the threshold of :attr:`FailureEvaluation.avoided`.
_LOST = 0.02

#: Progress callback; takes the number of trained classifiers, and of all.
OnStep = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class FailureEvaluation:
    """The cross-validated accuracy of failure predictions over workloads.

    Classifiers and scaling of each workload were trained without it and without workloads of
    nearly the same shapes.

    Parameters
    ----------
    auroc : float or None
        Area under the ROC curve within a workload, target and machine: mean over groups with at
        least five failures.
    aurocs : dict
        Index of a group (:attr:`Dataset.groups`) → AUROC.
    brier : float
        Brier score, the mean of (probability - outcome)².
    brier_of_rate : float
        Brier score of a constant prediction: the failure rate of the other workloads.
    avoided : float or None
        Share of failures above the threshold that loses 2 % of the successful programs.
    reliability : tuple of CalibrationBin
        Predictions and failure rates, in bins of equally many programs.
    elsewhere : tuple of HardwareEvaluation
        Calibration on hardware that is held out, one at a time; empty for one hardware.
    """

    auroc: float | None
    aurocs: dict[int, float]
    brier: float
    brier_of_rate: float
    avoided: float | None
    reliability: tuple[CalibrationBin, ...]
    elsewhere: tuple[HardwareEvaluation, ...] = ()

    @property
    def error(self) -> float:
        """Expected calibration error."""
        return calibration_error(self.reliability)


@dataclass(frozen=True, slots=True)
class HardwareEvaluation:
    """The calibration on hardware that a classifier did not learn from.

    Parameters
    ----------
    target : bytes
        Digest of the target.
    machine : str
        Number of the machine (:attr:`Group.machine`).
    programs : int
        Programs there.
    rate : float
        Share of them that failed.
    predicted : float
        Mean prediction with the scaling of the training.
    error : float
        Expected calibration error with that scaling.
    error_after : float
        The same after some trials there, on the other programs: mean of :data:`_DRAWS` draws.
    trials : int
        These trials.
    """

    target: bytes
    machine: str
    programs: int
    rate: float
    predicted: float
    error: float
    error_after: float
    trials: int


@dataclass(frozen=True, slots=True, eq=False)
class FittedFailures:
    """A trained classifier, with its evaluation and the facts of its training.

    Parameters
    ----------
    model : FailureModel
        Trained classifier.
    evaluation : FailureEvaluation or None
        None if all failures, or all successes, are of the same workload: nothing can be held out,
        and the scaling only corrects for the weights.
    chosen : Dataset
        Training programs, without rows.
    left_out : int
        Programs of the examples outside the training set.
    seconds : float
        Wall time.
    threads : int
        Threads of XGBoost; they do not affect the model.
    """

    model: FailureModel
    evaluation: FailureEvaluation | None
    chosen: Dataset
    left_out: int
    seconds: float
    threads: int


def fit_failures(
    examples: Dataset,
    recipe: Recipe = RECIPE,
    *,
    threads: int | None = None,
    read: Callable[[Dataset], Dataset] | None = None,
    on_step: OnStep | None = None,
) -> FittedFailures:
    """Train a classifier of failures.

    All groups are used, including those whose programs all failed. Cross-validation in
    :data:`FOLDS` folds over workloads, those of nearly the same shapes together, yields the scaling
    and the evaluation; the classifier itself is trained on all workloads.

    Parameters
    ----------
    examples : Dataset
        Examples, with rows unless `read` is given.
    recipe : Recipe
        Features, rows, training set, rounds, members, seed and XGBoost's parameters are used.
        ``rows`` must give one row for each program.
    threads : int, optional
        See :func:`tunedb.models._xgboost.threads_to_use`.
    read : callable, optional
        Function that returns examples with rows; called with the training set only.
    on_step : callable, optional
        Progress callback.

    Raises
    ------
    UsageError
        No program failed, or none succeeded; a program has several rows; or the recipe has another
        loss, or early stopping.
    NotFoundError, PluginError
        A part that the recipe names does not exist or load; XGBoost is not installed.
    """
    began = perf_counter()
    check_recipe(recipe)
    policy: TrainingSet
    policy, argument = recipe_part("training set", recipe.training_set)
    chosen = examples.take(policy.choose(examples, argument, recipe.seed))
    _check(chosen, examples)
    if read is not None:
        chosen = read(chosen)
    rows = row_model(recipe.rows, examples.sizes)
    seen, starts = rows.rows(chosen.rows, chosen.starts)
    if not (np.diff(starts) == 1).all():
        raise UsageError(
            f"rows {recipe.rows!r} give a program several rows, but a model of failures needs one; "
            "use rows 'aggregated'"
        )
    folds = _folds(chosen)
    hardware = _held_out_hardware(chosen, folds)
    steps = len(folds) + 1 + _TRAININGS_OF_HARDWARE * len(hardware)
    run = _FailureTraining(seen, chosen.failed, recipe, threads_to_use(threads), on_step, steps)
    margins = run.held_out(folds)
    elsewhere = tuple(_on_hardware(run, chosen, here, parts) for here, parts in hardware)
    boosters = run.boosters(np.arange(len(chosen)))
    kinds, kind_boosters = _kinds(run, chosen)
    model = FailureModel(
        model=Model(
            recipe=recipe,
            feature_set=examples.feature_set,
            version=examples.version,
            columns=examples.columns,
            boosters=(*boosters, *kind_boosters),
            rows=rows.name,
        ),
        scaling=_unweighted(chosen) if margins is None else scaled(margins, chosen.failed),
        rate=float(chosen.failed.mean()),
        kinds=tuple(kind for number in kinds if (kind := FAILURES[number]) is not None),
        shares=_shares(chosen),
        costs=TrialCosts.from_examples(examples),
    )
    return FittedFailures(
        model=model,
        evaluation=(
            None
            if margins is None
            else replace(evaluate_margins(chosen, margins, folds), elsewhere=elsewhere)
        ),
        chosen=replace(chosen, rows=np.empty((0, len(chosen.columns)), np.float32)),
        left_out=len(examples) - len(chosen),
        seconds=perf_counter() - began,
        threads=run.threads,
    )


def check_recipe(recipe: Recipe) -> None:
    """Raise UsageError for a loss or patience that the classifier would not use."""
    recipe.check()
    for name in ("loss", "patience"):
        required, value = getattr(RECIPE, name), getattr(recipe, name)
        if value != required:
            raise UsageError(
                f"models of failures need {name} {required}, not {value}; leave out that option"
            )


def _check(chosen: Dataset, examples: Dataset) -> None:
    """Raise UsageError if there is only one class."""
    count = int(chosen.failed.sum())
    total = f"{len(chosen)} program{'' if len(chosen) == 1 else 's'}"
    if len(chosen) < len(examples):
        total += f" of the training set (of {len(examples)})"
    if count == 0:
        raise UsageError(f"none of {total} failed, so there are no failures to learn from")
    if count == len(chosen):
        raise UsageError(
            f"all of {total} failed, so there is only one class; measure or import some that work"
        )


def _unweighted(chosen: Dataset) -> Scaling:
    """Return the scaling that corrects the rate for the class weights (King and Zeng 2001, 4.1)."""
    rate = chosen.failed.mean()
    return Scaling(1.0, float(np.log(rate / (1 - rate))))


def _shares(chosen: Dataset) -> dict[FailureKind, float]:
    """Return the share of each kind among the failures."""
    counts = np.bincount(chosen.failures, minlength=len(FAILURES)).tolist()
    total = sum(counts[1:])
    return {
        kind: count / total
        for kind, count in zip(FAILURES, counts, strict=True)
        if kind is not None and count
    }


def _folds(chosen: Dataset) -> list[NDArray[np.int64]]:
    """Return the programs of each fold; shape classes are dealt out by their failures.

    The list is empty if there is only one shape class, or a fold would leave only one outcome.
    """
    present = np.unique(chosen.workload)
    classes = shape_classes([chosen.workloads[i] for i in present])
    of_workload = np.bincount(chosen.workload[chosen.failed], minlength=len(chosen.workloads))
    members = [present[numbers] for numbers in classes]
    members.sort(
        key=lambda workloads: (
            -int(of_workload[workloads].sum()),
            min(chosen.workloads[i].digest for i in workloads),
        )
    )
    number = min(FOLDS, len(members))
    held = [np.concatenate(members[start::number]) for start in range(number)]
    folds = [np.flatnonzero(np.isin(chosen.workload, workloads)) for workloads in held]
    # The programs outside of each fold must have both outcomes.
    able = all(0 < np.delete(chosen.failed, fold).sum() < len(chosen) - len(fold) for fold in folds)
    return folds if number > 1 and able else []


@dataclass(slots=True)
class _FailureTraining:
    """The data and settings that all classifiers of a training share."""

    seen: NDArray[np.float32]
    failed: NDArray[np.bool_]
    recipe: Recipe
    threads: int
    on_step: OnStep | None
    steps: int
    done: int = 0

    def held_out(self, folds: list[NDArray[np.int64]]) -> Floats | None:
        """Return each program's margin by classifiers trained without its fold, or None."""
        if not folds:
            return None
        margins = np.empty(len(self.seen))
        for fold in folds:
            boosters = self.boosters(np.delete(np.arange(len(self.seen)), fold))
            margins[fold] = mean_margin(boosters, self.seen[fold])
        return margins

    def boosters(self, chosen: NDArray[np.int64]) -> tuple[Any, ...]:
        """Return classifiers of failure, one for each member."""
        failed = self.failed[chosen]
        # Both classes have equal total weight, as with scikit-learn's class_weight="balanced".
        weights = np.where(failed, 0.5 / failed.mean(), 0.5 / (1 - failed.mean()))
        settings = {"objective": "binary:logistic"}
        boosters = tuple(
            self.booster(chosen, failed.astype(np.float32), settings, member, weights)
            for member in range(self.recipe.members)
        )
        self.done += 1
        if self.on_step is not None:
            self.on_step(self.done, self.steps)
        return boosters

    def booster(
        self,
        chosen: NDArray[np.int64],
        labels: NDArray[np.float32],
        settings: dict[str, Any],
        member: int,
        weights: Floats | None = None,
    ) -> Any:
        """Return a booster trained on the chosen programs."""
        xgboost = import_xgboost()
        seed = int(np.random.SeedSequence([self.recipe.seed, member]).generate_state(1)[0] >> 1)
        defaults = parameters(self.recipe, seed=seed, threads=self.threads)
        with interrupt_later():
            matrix = xgboost.QuantileDMatrix(
                self.seen[chosen], labels, weight=weights, nthread=self.threads
            )
        try:
            return xgboost.train(defaults | settings, matrix, self.recipe.rounds)
        except xgboost.core.XGBoostError as error:
            reason = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
            raise UsageError(f"XGBoost rejects the recipe: {reason}") from None


def _kinds(run: _FailureTraining, chosen: Dataset) -> tuple[list[int], tuple[Any, ...]]:
    """Return the kinds of failure that are classes, and their classifier if there is any."""
    counts = np.bincount(chosen.failures, minlength=len(FAILURES))
    kinds = [number for number in range(1, len(FAILURES)) if counts[number] >= LEAST_OF_KIND]
    if len(kinds) < 2:
        return [], ()
    failed = np.flatnonzero(np.isin(chosen.failures, kinds))
    labels = np.searchsorted(kinds, chosen.failures[failed]).astype(np.float32)
    settings = {"objective": "multi:softprob", "num_class": len(kinds)}
    return kinds, (run.booster(failed, labels, settings, member=run.recipe.members),)


def scaled(margins: Floats, failed: NDArray[np.bool_]) -> Scaling:
    """Fit the Platt scaling of margins to outcomes.

    Logistic regression by Newton's method, with targets (n₊ + 1) / (n₊ + 2) and 1 / (n₋ + 2)
    instead of 1 and 0, which keeps it finite (Platt 1999, 2.2). If the slope would be negative it
    is 0, and every program gets the failure rate.
    """
    positive, negative = int(failed.sum()), int((~failed).sum())
    target = np.where(failed, (positive + 1) / (positive + 2), 1 / (negative + 2))
    rate = target.mean()
    flat = Scaling(0.0, float(np.log(rate / (1 - rate))))
    spread = margins.std()
    if spread == 0:
        return flat
    # Standardised margins make the problem well conditioned.
    inputs = np.stack(((margins - margins.mean()) / spread, np.ones(len(margins))))
    weights = np.array([0.0, flat.intercept])
    for _ in range(_NEWTON):
        predicted = Scaling(1.0, 0.0)(weights @ inputs)
        hessian = (inputs * (predicted * (1 - predicted))) @ inputs.T + 1e-9 * np.eye(2)
        step = np.linalg.solve(hessian, inputs @ (target - predicted))
        # Bounded steps, because the curvature vanishes far from the minimum.
        weights = weights + np.clip(step, -1, 1)
        if np.abs(step).max() < 1e-9:
            break
    if weights[0] <= 0:
        return flat
    slope = float(weights[0] / spread)
    return Scaling(slope, float(weights[1] - slope * margins.mean()))


#: Maximum number of Newton steps; seven suffice.
_NEWTON = 50


def evaluate_margins(
    chosen: Dataset, margins: Floats, folds: list[NDArray[np.int64]]
) -> FailureEvaluation:
    """Evaluate cross-validated margins against the failures of held-out workloads."""
    failed = chosen.failed
    predicted, rate = np.empty(len(chosen)), np.empty(len(chosen))
    for fold in folds:
        others = np.delete(np.arange(len(chosen)), fold)
        predicted[fold] = scaled(margins[others], failed[others])(margins[fold])
        rate[fold] = failed[others].mean()
    aurocs = {}
    for group in np.unique(chosen.group).tolist():
        in_group = chosen.group == group
        if LEAST_FAILURES <= failed[in_group].sum() < in_group.sum():
            # The AUROC is the share of correctly ordered pairs of a failure and a success.
            aurocs[group] = pairwise_accuracy(
                failed[in_group].astype(np.float64), predicted[in_group]
            )
    threshold = np.quantile(predicted[~failed], 1 - _LOST)
    return FailureEvaluation(
        auroc=float(np.mean(list(aurocs.values()))) if aurocs else None,
        aurocs=aurocs,
        brier=float(np.mean((predicted - failed) ** 2)),
        brier_of_rate=float(np.mean((rate - failed) ** 2)),
        avoided=float((predicted[failed] > threshold).mean()),
        reliability=calibration_bins(predicted, failed),
    )


#: Classifiers that one held-out hardware takes: two for the scaling, and that of all others.
_TRAININGS_OF_HARDWARE = 3


def _held_out_hardware(
    chosen: Dataset, folds: list[NDArray[np.int64]]
) -> list[tuple[NDArray[np.int64], list[NDArray[np.int64]]]]:
    """Return the programs of each hardware that can be held out, and two halves of all others.

    They are the four with the most programs. Each needs failures, and programs besides those that
    calibrate; each half must have both outcomes.
    """
    machines = [(group.target, group.machine) for group in chosen.groups]
    names = sorted(set(machines))
    of = np.array([names.index(machine) for machine in machines])[chosen.group]
    found = []
    for number in range(len(names)):
        here = np.flatnonzero(of == number)
        parts = _halves(chosen, here, folds)
        is_enough = chosen.failed[here].sum() >= LEAST_FAILURES and len(here) > 2 * _CALIBRATED_BY
        if is_enough and parts and all(0 < chosen.failed[p].sum() < len(p) for p in parts):
            found.append((here, parts))
    return sorted(found, key=lambda each: len(each[0]), reverse=True)[:_MOST_HARDWARE]


def _halves(
    chosen: Dataset, here: NDArray[np.int64], folds: list[NDArray[np.int64]]
) -> list[NDArray[np.int64]]:
    """Return all programs of other hardware in two halves, each of other workloads."""
    if not folds:
        return []
    others = np.delete(np.arange(len(chosen)), here)
    return [np.intersect1d(np.concatenate(folds[start::2]), others) for start in range(2)]


def _on_hardware(
    run: _FailureTraining,
    chosen: Dataset,
    here: NDArray[np.int64],
    halves: list[NDArray[np.int64]],
) -> HardwareEvaluation:
    """Evaluate the calibration on hardware by classifiers that did not learn from it."""
    others = np.concatenate(halves)
    held = [
        mean_margin(run.boosters(one), run.seen[other]) for one, other in (halves, halves[::-1])
    ]
    trained = scaled(np.concatenate(held[::-1]), chosen.failed[others])
    margins = mean_margin(run.boosters(others), run.seen[here])
    failed, rate = chosen.failed[here], float(chosen.failed[others].mean())
    predicted = trained(margins)
    rng = np.random.default_rng(run.recipe.seed)
    errors = []
    for _ in range(_DRAWS):
        tried = rng.permutation(len(here)) < _CALIBRATED_BY
        scaling = TargetScaling.fitted(
            trained, rate, margins[tried], failed[tried], is_trained=False
        )
        bins = calibration_bins(scaling(margins[~tried]), failed[~tried])
        errors.append(calibration_error(bins))
    group = chosen.groups[chosen.group[here[0]]]
    return HardwareEvaluation(
        target=group.target,
        machine=group.machine,
        programs=len(here),
        rate=float(failed.mean()),
        predicted=float(predicted.mean()),
        error=calibration_error(calibration_bins(predicted, failed)),
        error_after=float(np.mean(errors)),
        trials=_CALIBRATED_BY,
    )

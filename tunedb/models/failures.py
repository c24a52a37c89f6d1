"""Classifiers of failures: the probability that a program fails, and the cost of its trial.

A failing trial takes 3 to 8 times as long as a successful one (timeouts, restarts of devices) and
yields no time, so a search gains by leaving out programs that will probably fail.

There are two classifiers on the features of rankers: one of failure (``binary:logistic`` over all
programs), and one of the kind of failure (``multi:softprob`` over the failed programs; rare kinds
have a constant share). Failures are few, so training weights them up, and Platt scaling (Platt
1999; Lin, Lin and Weng, A note on Platt's probabilistic outputs, 2007) of the margins on held-out
workloads calibrates the probabilities: uncalibrated trees are overconfident on unseen workloads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from math import isfinite
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from .. import identity
from ..errors import FormatError, UsageError
from ..json_checks import parse_json
from ..records import FailureKind
from ._xgboost import import_xgboost, interrupt_later, threads_to_use
from .aggregation import row_model, segmented
from .base import Floats, TrainingSet, recipe_part
from .boosting import parameters
from .dataset import FAILURES, Dataset
from .metrics import pairwise_accuracy
from .model import Model
from .recipe import Recipe
from .splits import shape_classes

if TYPE_CHECKING:
    from ..features.base import NamedSet

#: Default recipe. The training set is the first round of each workload, whose candidates are
#: random: later candidates rarely fail, because the evolutionary search has left failing regions.
RECIPE = Recipe(
    rows="aggregated",
    loss="logistic",
    training_set="first:64",
    rounds=300,
    patience=0,
    max_depth=4,
    eta=0.05,
    min_child_weight=1.0,
    reg_lambda=5.0,
    subsample=0.7,
    colsample_bytree=0.3,
)

#: Cost of a wasted trial in normalised throughput (:func:`penalty`).
WEIGHT = 0.1

#: Default cost of a failing trial in successful ones: 3.0 (Radeon MI50), 4.0 (V100) and 7.7 (K80)
#: in the logs of Roller's artifact.
_COST_OF_FAILURE = 4.0

#: Attribute of the first booster with the other fields of the model as JSON.
_ATTRIBUTE = "tunedb"


@dataclass(frozen=True, slots=True)
class TrialCosts:
    """The seconds of a trial by outcome, from the build to the last run.

    Parameters
    ----------
    ok : float
        Median of successful trials.
    failed : tuple of float
        Median of each kind of failure, in the order of :data:`~tunedb.models.dataset.FAILURES`
        (`ok` first); the median of all failures for a kind without trials.
    """

    ok: float
    failed: tuple[float, ...]

    @classmethod
    def from_examples(cls, examples: Dataset) -> Self:
        """Return the costs estimated from examples.

        Without any known cost, a successful trial takes 1 s and a failing one 4 s.
        """
        has_cost = np.isfinite(examples.costs) & (examples.costs > 0)
        worked, failed = has_cost & ~examples.failed, has_cost & examples.failed
        ok = float(np.median(examples.costs[worked])) if worked.any() else None
        failure_cost = float(np.median(examples.costs[failed])) if failed.any() else None
        if ok is None:
            ok = 1.0 if failure_cost is None else failure_cost / _COST_OF_FAILURE
        kinds = [ok]
        for number in range(1, len(FAILURES)):
            of_kind = failed & (examples.failures == number)
            if of_kind.any():
                kinds.append(float(np.median(examples.costs[of_kind])))
            else:
                kinds.append(ok * _COST_OF_FAILURE if failure_cost is None else failure_cost)
        return cls(ok, tuple(kinds))


def expected_cost(probabilities: Floats, costs: TrialCosts) -> Floats:
    """Return the expected seconds of a trial of each program.

    Parameters
    ----------
    probabilities : ndarray of float64, shape (n, len(FAILURES))
        Probabilities from :meth:`FailureModel.by_kind`; each row sums to 1.
    costs : TrialCosts
        Seconds of each outcome.

    Returns
    -------
    ndarray of float64, shape (n,)
    """
    seconds: Floats = probabilities @ np.array(costs.failed)
    return seconds


def penalty(probabilities: Floats, costs: TrialCosts, weight: float = WEIGHT) -> Floats:
    """Return the penalty of each program for its expected failures, in normalised throughput.

    The penalty is the expected time of failures, in successful trials, times `weight`. With 0.1
    and failures that take four successful trials, a program that certainly fails loses 0.4, and one
    that fails as often as any first candidate (4 %) loses a negligible 0.016. The unit is that of
    losses whose score is a throughput (``throughput``, ``squared``); for other losses `weight` is
    in the unit of their scores.

    Parameters
    ----------
    probabilities : ndarray of float64, shape (n, len(FAILURES))
        Probabilities from :meth:`FailureModel.by_kind`.
    costs : TrialCosts
        Seconds of each outcome.
    weight : float
        Throughput that one wasted trial is worth.

    Returns
    -------
    ndarray of float64, shape (n,)
    """
    wasted: Floats = probabilities[:, 1:] @ np.array(costs.failed[1:]) / costs.ok
    return weight * wasted


@dataclass(frozen=True, slots=True)
class Scaling:
    """Platt scaling of margins to probabilities: sigmoid(slope · margin + intercept)."""

    slope: float
    intercept: float

    def __call__(self, margins: Floats) -> Floats:
        """Return probabilities of the shape of `margins`."""
        # tanh, because exp overflows for margins below -700.
        return 0.5 + 0.5 * np.tanh(0.5 * (self.slope * margins + self.intercept))


@dataclass(frozen=True, slots=True, eq=False)
class FailureModel:
    """A calibrated classifier of failures and of their kinds.

    Parameters
    ----------
    model : Model
        Boosters: ``recipe.members`` classifiers of failure, then optionally one of the kind.
    scaling : Scaling
        Calibration of the mean margin of the classifiers of failure.
    rate : float
        Share of failures among the training programs: the probability of a program without rows.
    kinds : tuple of FailureKind
        Classes of the last booster, in its order; empty without a classifier of kinds.
    shares : dict
        Kind of failure → share of the training failures.
    costs : TrialCosts
        Seconds of trials by outcome.
    """

    model: Model
    scaling: Scaling
    rate: float
    kinds: tuple[FailureKind, ...]
    shares: Mapping[FailureKind, float]
    costs: TrialCosts

    @property
    def recipe(self) -> Recipe:
        """Recipe of the model."""
        return self.model.recipe

    def check(self, feature_set: NamedSet | Dataset) -> None:
        """Raise UsageError if the feature set is not that of the training."""
        self.model.check(feature_set)

    def probabilities(self, rows: NDArray[np.float32], starts: NDArray[np.int64]) -> Floats:
        """Return the probability that each program fails.

        Parameters
        ----------
        rows : ndarray of float32, shape (m, columns)
            Rows of the model's feature set.
        starts : ndarray of int64, shape (n + 1,)
            The rows of program i are ``rows[starts[i]:starts[i + 1]]``.

        Returns
        -------
        ndarray of float64, shape (n,)

        Raises
        ------
        UsageError
            The rows have another number of columns.
        """
        return self._predict(rows, starts)[0]

    def by_kind(self, rows: NDArray[np.float32], starts: NDArray[np.int64]) -> Floats:
        """Return the probability of each outcome, shape (n, len(FAILURES)); rows sum to 1.

        Columns are in the order of :data:`~tunedb.models.dataset.FAILURES`; the first is success.
        Parameters and errors are those of :meth:`probabilities`.
        """
        failing, (seen, at), filled = self._predict(rows, starts)
        outcomes = np.empty((len(failing), len(FAILURES)))
        outcomes[:, 0] = 1 - failing
        shares = np.array([self.shares.get(kind, 0.0) if kind else 0.0 for kind in FAILURES])
        outcomes[:, 1:] = failing[:, None] * shares[1:]
        if self.kinds and filled.any():
            booster = self.model.boosters[-1]
            columns = np.array([FAILURES.index(kind) for kind in self.kinds])
            kind_probabilities = booster.inplace_predict(seen, validate_features=False).astype(
                np.float64
            )
            kind_probabilities = segmented(np.add, kind_probabilities, at)
            # Kinds without a class keep their constant share.
            kind_probabilities *= shares[columns].sum() / kind_probabilities.sum(
                axis=1, keepdims=True
            )
            outcomes[np.ix_(np.flatnonzero(filled), columns)] = (
                failing[filled, None] * kind_probabilities
            )
        return outcomes

    def _predict(
        self, rows: NDArray[np.float32], starts: NDArray[np.int64]
    ) -> tuple[Floats, tuple[NDArray[np.float32], NDArray[np.int64]], NDArray[np.bool_]]:
        """Return P(failure), the rows for the trees, and the mask of programs with rows."""
        if rows.ndim != 2 or rows.shape[1] != len(self.model.columns):
            raise UsageError(
                f"rows of shape {rows.shape} do not fit a model of features "
                f"{self.model.feature_set} "
                f"version {self.model.version}, which has {len(self.model.columns)} columns"
            )
        filled = np.diff(starts) > 0
        kept = np.concatenate((starts[:-1][filled], starts[-1:]))
        seen, at = self.model.row_model.rows(rows, kept)
        failing = np.full(len(filled), self.rate)
        if filled.any():
            margins = mean_margin(self.model.boosters[: -1 if self.kinds else None], seen)
            # Training programs had one row each. A program with several fails if any row does.
            worst = np.asarray(segmented(np.maximum, margins, at), np.float64)
            failing[filled] = self.scaling(worst)
        return failing, (seen, at), filled

    def to_bytes(self) -> bytes:
        """Return the model without pickle (:meth:`tunedb.models.model.Model.to_bytes`)."""
        values = {
            "scaling": asdict(self.scaling),
            "rate": self.rate,
            "kinds": list(self.kinds),
            "shares": {kind.value: share for kind, share in self.shares.items()},
            "costs": asdict(self.costs),
        }
        self.model.boosters[0].set_attr(**{_ATTRIBUTE: identity.canonical_json(values).decode()})
        return self.model.to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes, *, threads: int | None = None) -> Self:
        """Return the model of :meth:`to_bytes`; raises as :meth:`Model.from_bytes`.

        Raises
        ------
        FormatError
            The model is a ranker.
        """
        model = Model.from_bytes(data, threads=threads)
        text = model.boosters[0].attr(_ATTRIBUTE)
        if text is None:
            raise FormatError("the model predicts no failures; train one: tunedb train --failures")
        return cls(model, **_parsed(parse_json(text.encode())))


def mean_margin(boosters: tuple[Any, ...], seen: NDArray[np.float32]) -> Floats:
    """Return the mean over boosters of each row's margin, shape (n,)."""
    total = np.zeros(len(seen))
    for booster in boosters:
        total += booster.inplace_predict(seen, predict_type="margin", validate_features=False)
    return total / len(boosters)


def _parsed(values: Any) -> dict[str, Any]:
    """Return the fields of :meth:`FailureModel.to_bytes`."""
    try:
        fields = {
            "scaling": Scaling(**values["scaling"]),
            "rate": values["rate"],
            "kinds": tuple(map(FailureKind, values["kinds"])),
            "shares": {FailureKind(kind): share for kind, share in values["shares"].items()},
            "costs": TrialCosts(values["costs"]["ok"], tuple(values["costs"]["failed"])),
        }
        numbers = (*values["scaling"].values(), fields["rate"], *fields["shares"].values())
        if len(fields["costs"].failed) != len(FAILURES) or not all(
            isfinite(number) for number in (*numbers, *fields["costs"].failed)
        ):
            raise ValueError("its numbers")
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"a failure model is damaged ({error}); rebuild it") from None
    return fields


# ---- Training, and evaluation on held-out workloads ----------------------------------------------

#: Folds of the cross-validation over workloads.
FOLDS = 5

#: Minimum number of failures of a kind to become a class.
LEAST_OF_KIND = 20

#: Minimum number of failures of a group for an AUROC.
LEAST_FAILURES = 5

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
    """

    auroc: float | None
    aurocs: dict[int, float]
    brier: float
    brier_of_rate: float
    avoided: float | None


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
    run = _FailureTraining(
        seen, chosen.failed, recipe, threads_to_use(threads), on_step, len(folds) + 1
    )
    margins = run.held_out(folds)
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
        evaluation=None if margins is None else evaluate_margins(chosen, margins, folds),
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
    )

"""Which programs will fail, and what their trials cost: a classifier of the same features.

Failures are what a database knows that a tuning log's winners do not. A failing trial takes 3 to 8
times as long as a good one (a timeout is waited for, a broken device is started again), and brings
nothing; so a search gains by leaving out what will probably fail.

Two questions have a classifier each: whether a program fails (``binary:logistic`` over all
programs), and of which kind the failure is (``multi:softprob`` over those that failed; kinds that
are too rare have their share). Failures are few, so they are weighted up while trees grow, and
probabilities are put right afterwards by Platt's scaling (Platt 1999; Lin, Lin and Weng, A note on
Platt's probabilistic outputs, 2007) of what held-out workloads were told: by themselves, trees are
far too sure of workloads that they have not seen.
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
from .base import Floats, TrainingSet, part
from .boosting import parameters
from .dataset import FAILURES, Dataset
from .metrics import pairwise_accuracy
from .model import Model
from .recipe import Recipe
from .splits import shape_classes

if TYPE_CHECKING:
    from ..features.base import NamedSet

#: What the classifier is made with unless told otherwise. It learns from the first round of each
#: workload, whose candidates nobody chose: later ones hardly fail, because evolution has left
#: failing regions by then.
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

#: How much a wasted trial is worth in normalised throughput (:func:`penalty`).
WEIGHT = 0.1

#: A failing trial's cost in good ones where no trial says it: 3.0 (Radeon MI50), 4.0 (V100) and
#: 7.7 (K80) in the logs of Roller's artifact.
_COST_OF_FAILURE = 4.0

#: Attribute of the first booster that has what no booster knows.
_ATTRIBUTE = "tunedb"


@dataclass(frozen=True, slots=True)
class TrialCosts:
    """Seconds that a trial takes, from building to the last run.

    Parameters
    ----------
    ok : float
        Median of those that gave a time.
    failed : tuple of float
        Median of each kind of failure, in the order of :data:`~tunedb.models.dataset.FAILURES`
        (`ok` first); that of all failures where a kind has none.
    """

    ok: float
    failed: tuple[float, ...]

    @classmethod
    def from_examples(cls, examples: Dataset) -> Self:
        """Return the costs that examples tell.

        Where no trial says what it took, a good one has 1 s, and a failing one four times that.
        """
        known = np.isfinite(examples.costs) & (examples.costs > 0)
        worked, failed = known & ~examples.failed, known & examples.failed
        ok = float(np.median(examples.costs[worked])) if worked.any() else None
        any_ = float(np.median(examples.costs[failed])) if failed.any() else None
        if ok is None:
            ok = 1.0 if any_ is None else any_ / _COST_OF_FAILURE
        kinds = [ok]
        for number in range(1, len(FAILURES)):
            mine = failed & (examples.failures == number)
            if mine.any():
                kinds.append(float(np.median(examples.costs[mine])))
            else:
                kinds.append(ok * _COST_OF_FAILURE if any_ is None else any_)
        return cls(ok, tuple(kinds))


def expected_cost(probabilities: Floats, costs: TrialCosts) -> Floats:
    """Return the seconds that a trial of each program is expected to take.

    Parameters
    ----------
    probabilities : ndarray of float64, shape (n, len(FAILURES))
        Of :meth:`FailureModel.by_kind`; each row sums to 1.
    costs : TrialCosts
        Seconds of each outcome.

    Returns
    -------
    ndarray of float64, shape (n,)
    """
    found: Floats = probabilities @ np.array(costs.failed)
    return found


def penalty(probabilities: Floats, costs: TrialCosts, weight: float = WEIGHT) -> Floats:
    """Return what expected failures cost each program, in normalised throughput.

    The expected time that a trial spends on failing, in good trials, times `weight`: the
    normalised throughput at which one trial more or less is worth the same. With 0.1 and failures
    that take four good trials, a program that surely fails loses 0.4, and one that fails as often
    as any first candidate (4 %) 0.016, which decides nothing. It is in the units of losses whose
    score is a throughput (``throughput``, ``squared``); for others the weight has their unit.

    Parameters
    ----------
    probabilities : ndarray of float64, shape (n, len(FAILURES))
        Of :meth:`FailureModel.by_kind`.
    costs : TrialCosts
        Seconds of each outcome.
    weight : float
        See above.

    Returns
    -------
    ndarray of float64, shape (n,)
    """
    wasted: Floats = probabilities[:, 1:] @ np.array(costs.failed[1:]) / costs.ok
    return weight * wasted


@dataclass(frozen=True, slots=True)
class Scaling:
    """What makes a margin of the trees a probability: sigmoid(slope · margin + intercept)."""

    slope: float
    intercept: float

    def __call__(self, margins: Floats) -> Floats:
        """Return probabilities of the shape of `margins`."""
        # By tanh: exp would overflow for margins below -700.
        return 0.5 + 0.5 * np.tanh(0.5 * (self.slope * margins + self.intercept))


@dataclass(frozen=True, slots=True, eq=False)
class FailureModel:
    """Tells which programs will probably fail, and how.

    Parameters
    ----------
    model : Model
        The boosters: first ``recipe.members`` that tell whether a program fails; another one after
        them, where there is any, tells which of `kinds` it is.
    scaling : Scaling
        Of the mean margin of the first boosters.
    rate : float
        Share of failures among the programs that were learnt from: the probability of a program
        without rows, of which nothing is known.
    kinds : tuple of FailureKind
        Classes of the last booster, in its order; empty where there is none.
    shares : dict
        Kind of failure → its share of all failures that were learnt from.
    costs : TrialCosts
        What trials took.
    """

    model: Model
    scaling: Scaling
    rate: float
    kinds: tuple[FailureKind, ...]
    shares: Mapping[FailureKind, float]
    costs: TrialCosts

    @property
    def recipe(self) -> Recipe:
        """How it was made."""
        return self.model.recipe

    def check(self, feature_set: NamedSet | Dataset) -> None:
        """Raise UsageError where rows are not of the feature set that it was trained on."""
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
            Rows of another number of columns.
        """
        return self._told(rows, starts)[0]

    def by_kind(self, rows: NDArray[np.float32], starts: NDArray[np.int64]) -> Floats:
        """Return the probability of each outcome, shape (n, len(FAILURES)); rows sum to 1.

        Columns are in the order of :data:`~tunedb.models.dataset.FAILURES`: the first is that
        the program works. Parameters and errors are those of :meth:`probabilities`.
        """
        any_, (seen, at), filled = self._told(rows, starts)
        found = np.empty((len(any_), len(FAILURES)))
        found[:, 0] = 1 - any_
        shares = np.array([self.shares.get(kind, 0.0) if kind else 0.0 for kind in FAILURES])
        found[:, 1:] = any_[:, None] * shares[1:]
        if self.kinds and filled.any():
            booster = self.model.boosters[-1]
            columns = np.array([FAILURES.index(kind) for kind in self.kinds])
            told = booster.inplace_predict(seen, validate_features=False).astype(np.float64)
            told = segmented(np.add, told, at)
            # Kinds without a class keep their share.
            told *= shares[columns].sum() / told.sum(axis=1, keepdims=True)
            found[np.ix_(np.flatnonzero(filled), columns)] = any_[filled, None] * told
        return found

    def _told(
        self, rows: NDArray[np.float32], starts: NDArray[np.int64]
    ) -> tuple[Floats, tuple[NDArray[np.float32], NDArray[np.int64]], NDArray[np.bool_]]:
        """Return P(fails), the rows that trees see, and which programs have some."""
        if rows.ndim != 2 or rows.shape[1] != len(self.model.columns):
            raise UsageError(
                f"rows of shape {rows.shape} do not fit a model of features "
                f"{self.model.feature_set} "
                f"version {self.model.version}, which has {len(self.model.columns)} columns"
            )
        filled = np.diff(starts) > 0
        kept = np.concatenate((starts[:-1][filled], starts[-1:]))
        seen, at = self.model.row_model.rows(rows, kept)
        found = np.full(len(filled), self.rate)
        if filled.any():
            margins = mean_margin(self.model.boosters[: -1 if self.kinds else None], seen)
            # Where every program that was learnt from had one row, another one may have several:
            # it fails where one of its statements does.
            worst = np.asarray(segmented(np.maximum, margins, at), np.float64)
            found[filled] = self.scaling(worst)
        return found, (seen, at), filled

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
            It ranks programs and predicts no failures.
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
        found = {
            "scaling": Scaling(**values["scaling"]),
            "rate": values["rate"],
            "kinds": tuple(map(FailureKind, values["kinds"])),
            "shares": {FailureKind(kind): share for kind, share in values["shares"].items()},
            "costs": TrialCosts(values["costs"]["ok"], tuple(values["costs"]["failed"])),
        }
        numbers = (*values["scaling"].values(), found["rate"], *found["shares"].values())
        if len(found["costs"].failed) != len(FAILURES) or not all(
            isfinite(number) for number in (*numbers, *found["costs"].failed)
        ):
            raise ValueError("its numbers")
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"a failure model is damaged ({error}); rebuild it") from None
    return found


# ---- Training the classifier of failures, and judging it on workloads that it has not seen -------

#: Parts that workloads are held out in.
FOLDS = 5

#: Failures that a kind needs to be told from the others.
LEAST_OF_KIND = 20

#: Failures that a workload needs for its AUROC to say something.
LEAST_FAILURES = 5

#: Share of good programs that a threshold may cost (:attr:`Judgement.avoided`).
_LOST = 0.02

#: Called with the number of classifiers that are trained, and of all.
OnStep = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Judgement:
    """How well failures of held-out workloads are foreseen.

    Each workload was told by classifiers, and scaled by a scaling, that had not seen it, nor any
    of nearly its shapes.

    Parameters
    ----------
    auroc : float or None
        Probability that a failing program is told a higher probability than a good one of its
        workload, target and machine: mean over those with five failures at least.
    aurocs : dict
        Index of a group (:attr:`Dataset.groups`) → its AUROC.
    brier : float
        Mean of (probability - outcome)².
    brier_of_rate : float
        The same where every program is told the rate of the other workloads.
    avoided : float or None
        Share of the failures that a threshold avoids which costs 2 % of the good programs.
    """

    auroc: float | None
    aurocs: dict[int, float]
    brier: float
    brier_of_rate: float
    avoided: float | None


@dataclass(frozen=True, slots=True, eq=False)
class FittedFailures:
    """A classifier, and how it came to be.

    Parameters
    ----------
    model : FailureModel
        What was trained.
    judgement : Judgement or None
        None where failures, or good programs, are of one workload alone: nothing can be held out,
        and probabilities are only put right for the weights.
    chosen : Dataset
        What was learnt from, without rows.
    left_out : int
        Programs of the examples that are not in the training set.
    seconds : float
        Wall time.
    threads : int
        Threads of XGBoost. The model does not depend on it.
    """

    model: FailureModel
    judgement: Judgement | None
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

    All groups teach it, also those of which every program failed. Workloads are held out in
    :data:`FOLDS` parts first, those of nearly the same shapes together, to scale and to judge its
    probabilities; the classifier itself is trained on all.

    Parameters
    ----------
    examples : Dataset
        With rows, unless `read` is given.
    recipe : Recipe
        Its features, rows, training set, rounds, members, seed and XGBoost's parameters count.
        ``rows`` must give one row for each program.
    threads : int, optional
        See :func:`tunedb.models._xgboost.threads_to_use`.
    read : callable, optional
        Returns examples with their rows; called with the training set alone.
    on_step : callable, optional
        For progress.

    Raises
    ------
    UsageError
        No program failed, or none worked; rows are not one for each program; or the recipe is of
        another loss, or stops early.
    NotFoundError, PluginError
        A part that the recipe names does not exist or load; XGBoost is not installed.
    """
    began = perf_counter()
    check_recipe(recipe)
    policy: TrainingSet
    policy, argument = part("training set", recipe.training_set)
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
    run = _Run(seen, chosen.failed, recipe, threads_to_use(threads), on_step, len(folds) + 1)
    margins = run.held_out(folds)
    boosters = run.boosters(np.arange(len(chosen)))
    kinds, teller = _kinds(run, chosen)
    model = FailureModel(
        model=Model(
            recipe=recipe,
            feature_set=examples.feature_set,
            version=examples.version,
            columns=examples.columns,
            boosters=(*boosters, *teller),
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
        judgement=None if margins is None else judge(chosen, margins, folds),
        chosen=replace(chosen, rows=np.empty((0, len(chosen.columns)), np.float32)),
        left_out=len(examples) - len(chosen),
        seconds=perf_counter() - began,
        threads=run.threads,
    )


def check_recipe(recipe: Recipe) -> None:
    """Raise UsageError for a recipe that would not be the classifier's.

    A card would say what nothing was trained with.
    """
    recipe.check()
    for name in ("loss", "patience"):
        mine, given = getattr(RECIPE, name), getattr(recipe, name)
        if given != mine:
            raise UsageError(
                f"models of failures need {name} {mine}, not {given}; leave out that option"
            )


def _check(chosen: Dataset, examples: Dataset) -> None:
    """Raise UsageError where there is only one outcome."""
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
    """Return the scaling that takes back what weights did to the rate (King and Zeng 2001, 4.1)."""
    rate = chosen.failed.mean()
    return Scaling(1.0, float(np.log(rate / (1 - rate))))


def _shares(chosen: Dataset) -> dict[FailureKind, float]:
    """Return each kind's share of the failures."""
    counts = np.bincount(chosen.failures, minlength=len(FAILURES)).tolist()
    total = sum(counts[1:])
    return {
        kind: count / total
        for kind, count in zip(FAILURES, counts, strict=True)
        if kind is not None and count
    }


def _folds(chosen: Dataset) -> list[NDArray[np.int64]]:
    """Return the programs of each part that is held out; none where there is one class of shapes.

    Classes are dealt out by their number of failures, so that no part has them all.
    """
    present = np.unique(chosen.workload)
    classes = shape_classes([chosen.workloads[i] for i in present])
    of_workload = np.bincount(chosen.workload[chosen.failed], minlength=len(chosen.workloads))
    members = [present[numbers] for numbers in classes]
    members.sort(
        key=lambda one: (
            -int(of_workload[one].sum()),
            min(chosen.workloads[i].digest for i in one),
        )
    )
    number = min(FOLDS, len(members))
    held = [np.concatenate(members[start::number]) for start in range(number)]
    parts = [np.flatnonzero(np.isin(chosen.workload, one)) for one in held]
    # A part is of use where what remains has both outcomes.
    able = all(0 < np.delete(chosen.failed, one).sum() < len(chosen) - len(one) for one in parts)
    return parts if number > 1 and able else []


@dataclass(slots=True)
class _Run:
    """What all classifiers of one training share."""

    seen: NDArray[np.float32]
    failed: NDArray[np.bool_]
    recipe: Recipe
    threads: int
    on_step: OnStep | None
    steps: int
    done: int = 0

    def held_out(self, folds: list[NDArray[np.int64]]) -> Floats | None:
        """Return each program's margin by classifiers that did not see its part; None for none."""
        if not folds:
            return None
        margins = np.empty(len(self.seen))
        for fold in folds:
            boosters = self.boosters(np.delete(np.arange(len(self.seen)), fold))
            margins[fold] = mean_margin(boosters, self.seen[fold])
        return margins

    def boosters(self, chosen: NDArray[np.int64]) -> tuple[Any, ...]:
        """Return classifiers of whether programs fail, one for each member."""
        failed = self.failed[chosen]
        # Both outcomes weigh alike together, as scikit-learn's class_weight="balanced".
        weights = np.where(failed, 0.5 / failed.mean(), 0.5 / (1 - failed.mean()))
        settings = {"objective": "binary:logistic"}
        found = tuple(
            self.booster(chosen, failed.astype(np.float32), settings, member, weights)
            for member in range(self.recipe.members)
        )
        self.done += 1
        if self.on_step is not None:
            self.on_step(self.done, self.steps)
        return found

    def booster(
        self,
        chosen: NDArray[np.int64],
        labels: NDArray[np.float32],
        settings: dict[str, Any],
        member: int,
        weights: Floats | None = None,
    ) -> Any:
        """Return a booster of some programs."""
        xgboost = import_xgboost()
        seed = int(np.random.SeedSequence([self.recipe.seed, member]).generate_state(1)[0] >> 1)
        own = parameters(self.recipe, seed=seed, threads=self.threads)
        with interrupt_later():
            matrix = xgboost.QuantileDMatrix(
                self.seen[chosen], labels, weight=weights, nthread=self.threads
            )
        try:
            return xgboost.train(own | settings, matrix, self.recipe.rounds)
        except xgboost.core.XGBoostError as error:
            reason = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
            raise UsageError(f"XGBoost refuses the recipe: {reason}") from None


def _kinds(run: _Run, chosen: Dataset) -> tuple[list[int], tuple[Any, ...]]:
    """Return which kinds of failure can be told apart, and what tells them."""
    counts = np.bincount(chosen.failures, minlength=len(FAILURES))
    kinds = [number for number in range(1, len(FAILURES)) if counts[number] >= LEAST_OF_KIND]
    if len(kinds) < 2:
        return [], ()
    some = np.flatnonzero(np.isin(chosen.failures, kinds))
    labels = np.searchsorted(kinds, chosen.failures[some]).astype(np.float32)
    settings = {"objective": "multi:softprob", "num_class": len(kinds)}
    return kinds, (run.booster(some, labels, settings, member=run.recipe.members),)


def scaled(margins: Floats, failed: NDArray[np.bool_]) -> Scaling:
    """Return the scaling under which margins foresaw outcomes best.

    Logistic regression by Newton's method, with targets (n₊ + 1) / (n₊ + 2) and 1 / (n₋ + 2)
    instead of 1 and 0, which keeps it finite (Platt 1999, 2.2). Where margins foresee less than
    nothing, the slope is 0: every program is told the rate.
    """
    positive, negative = int(failed.sum()), int((~failed).sum())
    target = np.where(failed, (positive + 1) / (positive + 2), 1 / (negative + 2))
    rate = target.mean()
    flat = Scaling(0.0, float(np.log(rate / (1 - rate))))
    spread = margins.std()
    if spread == 0:
        return flat
    # Of standardised margins, so that the problem is well conditioned.
    inputs = np.stack(((margins - margins.mean()) / spread, np.ones(len(margins))))
    found = np.array([0.0, flat.intercept])
    for _ in range(_NEWTON):
        told = Scaling(1.0, 0.0)(found @ inputs)
        hessian = (inputs * (told * (1 - told))) @ inputs.T + 1e-9 * np.eye(2)
        step = np.linalg.solve(hessian, inputs @ (target - told))
        # Bounded: far from the minimum the curvature vanishes.
        found = found + np.clip(step, -1, 1)
        if np.abs(step).max() < 1e-9:
            break
    if found[0] <= 0:
        return flat
    slope = float(found[0] / spread)
    return Scaling(slope, float(found[1] - slope * margins.mean()))


#: Steps of Newton's method; it takes seven.
_NEWTON = 50


def judge(chosen: Dataset, margins: Floats, folds: list[NDArray[np.int64]]) -> Judgement:
    """Return how well margins of held-out workloads foresee their failures."""
    failed = chosen.failed
    told, rate = np.empty(len(chosen)), np.empty(len(chosen))
    for fold in folds:
        others = np.delete(np.arange(len(chosen)), fold)
        told[fold] = scaled(margins[others], failed[others])(margins[fold])
        rate[fold] = failed[others].mean()
    aurocs = {}
    for group in np.unique(chosen.group).tolist():
        mine = chosen.group == group
        if LEAST_FAILURES <= failed[mine].sum() < mine.sum():
            # The area is the share of pairs, one of each outcome, that are told in order.
            aurocs[group] = pairwise_accuracy(failed[mine].astype(np.float64), told[mine])
    threshold = np.quantile(told[~failed], 1 - _LOST)
    return Judgement(
        auroc=float(np.mean(list(aurocs.values()))) if aurocs else None,
        aurocs=aurocs,
        brier=float(np.mean((told - failed) ** 2)),
        brier_of_rate=float(np.mean((rate - failed) ** 2)),
        avoided=float((told[failed] > threshold).mean()),
    )

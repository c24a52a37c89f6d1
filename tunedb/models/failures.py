"""Classifiers of failures: the probability that a program fails, and the cost of its trial.

A failing trial takes 3 to 8 times as long as a successful one (timeouts, restarts of devices) and
yields no time, so a search gains by leaving out programs that will probably fail.

There are two classifiers on the features of rankers: one of failure (``binary:logistic`` over all
programs), and one of the kind of failure (``multi:softprob`` over the failed programs; rare kinds
have a constant share). Failures are few, so training weights them up, and Platt scaling (Platt
1999; Lin, Lin and Weng, A note on Platt's probabilistic outputs, 2007) of the margins on held-out
workloads calibrates the probabilities: uncalibrated trees are overconfident on unseen workloads. On
a target, trials there calibrate them again (:mod:`tunedb.models.target_scaling`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import isfinite
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from .. import identity
from ..errors import FormatError, UsageError
from ..json_checks import parse_json
from ..records import FailureKind
from .aggregation import segmented
from .base import Floats
from .dataset import FAILURES, Dataset
from .model import Model
from .recipe import Recipe
from .target_scaling import TargetScaling, sigmoid

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

    def log_odds(self, margins: Floats) -> Floats:
        """Return log odds of the shape of `margins`."""
        return self.slope * margins + self.intercept

    def __call__(self, margins: Floats) -> Floats:
        """Return probabilities of the shape of `margins`."""
        return sigmoid(self.log_odds(margins))


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
    target : TargetScaling or None
        Calibration by the trials on a target (:meth:`on_target`), which is not stored.
    """

    model: Model
    scaling: Scaling
    rate: float
    kinds: tuple[FailureKind, ...]
    shares: Mapping[FailureKind, float]
    costs: TrialCosts
    target: TargetScaling | None = None

    @property
    def recipe(self) -> Recipe:
        """Recipe of the model."""
        return self.model.recipe

    def check(self, feature_set: NamedSet | Dataset) -> None:
        """Raise UsageError if the feature set is not that of the training."""
        self.model.check(feature_set)

    def margins(self, rows: NDArray[np.float32], starts: NDArray[np.int64]) -> Floats:
        """Return the margin of each program, shape (n,), before any scaling; NaN without rows.

        Parameters and errors are those of :meth:`probabilities`.
        """
        return self._margins(rows, starts)[0]

    def on_target(
        self, margins: Floats, failed: NDArray[np.bool_], *, is_trained: bool
    ) -> FailureModel:
        """Return the model with the calibration of a target, after some trials there.

        Parameters
        ----------
        margins : ndarray of float64, shape (n,)
            Margins (:meth:`margins`) of the programs that were tried there; NaN counts for nothing.
        failed : ndarray of bool, shape (n,)
            Their outcomes.
        is_trained : bool
            Whether the model was trained on the target.
        """
        known = np.isfinite(margins)
        target = TargetScaling.fitted(
            self.scaling, self.rate, margins[known], failed[known], is_trained=is_trained
        )
        return replace(self, target=target)

    def probabilities(
        self,
        rows: NDArray[np.float32],
        starts: NDArray[np.int64],
        *,
        cautious: bool = False,
    ) -> Floats:
        """Return the probability that each program fails.

        Parameters
        ----------
        rows : ndarray of float32, shape (m, columns)
            Rows of the model's feature set.
        starts : ndarray of int64, shape (n + 1,)
            The rows of program i are ``rows[starts[i]:starts[i + 1]]``.
        cautious : bool
            With the calibration of a target, return the lower end of the interval instead: what is
            not sure to fail is not avoided.

        Returns
        -------
        ndarray of float64, shape (n,)

        Raises
        ------
        UsageError
            The rows have another number of columns.
        """
        return self._scaled(self._margins(rows, starts)[0], cautious=cautious)

    def by_kind(
        self,
        rows: NDArray[np.float32],
        starts: NDArray[np.int64],
        *,
        cautious: bool = False,
    ) -> Floats:
        """Return the probability of each outcome, shape (n, len(FAILURES)); rows sum to 1.

        Columns are in the order of :data:`~tunedb.models.dataset.FAILURES`; the first is success.
        Parameters and errors are those of :meth:`probabilities`.
        """
        margins, (seen, at) = self._margins(rows, starts)
        failing, filled = self._scaled(margins, cautious=cautious), np.isfinite(margins)
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

    def _scaled(self, margins: Floats, *, cautious: bool) -> Floats:
        """Return probabilities; the failure rate of the training where there is no margin."""
        failing, filled = np.full(len(margins), self.rate), np.isfinite(margins)
        known = margins[filled]
        if self.target is None:
            failing[filled] = self.scaling(known)
        else:
            failing[filled] = self.target.interval(known)[0] if cautious else self.target(known)
        return failing

    def _margins(
        self, rows: NDArray[np.float32], starts: NDArray[np.int64]
    ) -> tuple[Floats, tuple[NDArray[np.float32], NDArray[np.int64]]]:
        """Return the margins of programs, and the rows for the trees of those with rows."""
        if rows.ndim != 2 or rows.shape[1] != len(self.model.columns):
            raise UsageError(
                f"rows of shape {rows.shape} do not fit a model of features "
                f"{self.model.feature_set} "
                f"version {self.model.version}, which has {len(self.model.columns)} columns"
            )
        filled = np.diff(starts) > 0
        kept = np.concatenate((starts[:-1][filled], starts[-1:]))
        seen, at = self.model.row_model.rows(rows, kept)
        margins = np.full(len(filled), np.nan)
        if filled.any():
            found = mean_margin(self.model.boosters[: -1 if self.kinds else None], seen)
            # Training programs had one row each. A program with several fails if any row does.
            margins[filled] = np.asarray(segmented(np.maximum, found, at), np.float64)
        return margins, (seen, at)

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

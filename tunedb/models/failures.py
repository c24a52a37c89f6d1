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

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from .. import identity
from ..errors import FormatError, UsageError
from ..records import FailureKind
from ..values import parse_json
from .base import Floats
from .examples import FAILURES, Examples
from .model import Model
from .recipe import Recipe
from .row_models import segmented

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
        Median of each kind of failure, in the order of :data:`~tunedb.models.examples.FAILURES`
        (`ok` first); that of all failures where a kind has none.
    """

    ok: float
    failed: tuple[float, ...]

    @classmethod
    def of(cls, examples: Examples) -> Self:
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

    def check(self, feature_set: NamedSet | Examples) -> None:
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

        Columns are in the order of :data:`~tunedb.models.examples.FAILURES`: the first is that
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
                f"rows of shape {rows.shape} for a model of features {self.model.feature_set} "
                f"version {self.model.version}, which have {len(self.model.columns)} columns"
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
            raise FormatError(
                "a model that predicts no failures; make one: tunedb train --failures"
            )
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
        raise FormatError(f"a failure model that is damaged ({error}); rebuild it") from None
    return found

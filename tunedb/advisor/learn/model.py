"""An advisor: its inputs, its models, its confidence and the launches on which it abstains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from ...errors import FormatError
from ...json_checks import parse_json
from ..inputs import INPUTS, ratios, read_inputs
from ..labels import NONE, Codes, Floats
from ..observations import Inputs, Observation
from .boosted import Boosted
from .gain import Gain
from .preprocessing import Preparation, numbers
from .splits import by_group
from .svm import SVM

# ---- Distance of a launch from the training data -------------------------------------------------
#
# A model answers for any launch, but far from its training data the answers are worth nothing. So
# the advisor withholds advice on launches that are farther from the training rows than kernels
# usually are from one another.

#: Exemplar rows of a family.
EXEMPLARS = 100

#: Share of the rows of held-out families that is within reach.
SHARE = 0.9

_BLOCK = 2_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Reach:
    """Exemplar rows of the training set, and the largest distance with advice.

    Parameters
    ----------
    preparation : Preparation
        Preparation that makes columns comparable.
    exemplars : ndarray, shape (e, k), float64
        Standardised rows; NaN for values that were not measured.
    threshold : float or None
        Largest distance with advice; None (no limit) if no family could be held out to find it.
    """

    preparation: Preparation
    exemplars: Floats
    threshold: float | None

    @classmethod
    def fit(cls, inputs: Inputs, groups: np.ndarray[Any, np.dtype[np.str_]]) -> Reach:
        """Return the reach of training rows.

        The threshold is the distance within which :data:`SHARE` of a family's rows lie from the
        other families; of several families the largest such distance.
        """
        preparation = Preparation.fit(inputs)
        values = preparation.standardise(inputs)
        chosen = {name: _spread(values[rows]) for name, rows in by_group(groups)}
        reached = []
        for name, rows in by_group(groups):
            others = [one for other, one in chosen.items() if other != name]
            if others:
                apart = distances(_spread(values[rows], 1_000), np.concatenate(others))
                reached.append(float(np.quantile(apart, SHARE)))
        return cls(preparation, np.concatenate(list(chosen.values())), max(reached, default=None))

    def distance(self, inputs: Inputs) -> Floats:
        """Return the distance of each row from the nearest exemplar."""
        return distances(self.preparation.standardise(inputs), self.exemplars)

    def near(self, inputs: Inputs) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return which rows are within reach."""
        if self.threshold is None:
            return np.ones(len(inputs.values), bool)
        return np.asarray(self.distance(inputs) <= self.threshold + 1e-12)

    def to_json(self) -> dict[str, Any]:
        """Return the reach as JSON values; None replaces NaN."""
        rows = [[None if np.isnan(x) else float(x) for x in row] for row in self.exemplars]
        return {
            "preparation": self.preparation.to_json(),
            "exemplars": rows,
            "threshold": self.threshold,
        }

    @classmethod
    def from_json(cls, values: Any) -> Reach:
        """Return the reach of :meth:`to_json`; FormatError for anything else."""
        preparation = Preparation.from_json(values["preparation"])
        given = values["exemplars"]
        known = [[x is not None for x in row] for row in given]
        filled = [[0.0 if x is None else x for x in row] for row in given]
        exemplars = numbers(filled, (None, len(preparation.names)))
        threshold = values["threshold"]
        return cls(
            preparation,
            np.where(np.array(known, bool).reshape(exemplars.shape), exemplars, np.nan),
            None if threshold is None else float(numbers(threshold, ())),
        )


def distances(values: Floats, exemplars: Floats) -> Floats:
    """Return each row's distance from the nearest exemplar.

    The root of the mean squared difference over the columns that both have; infinite for a row that
    shares no column with any exemplar.

    Parameters
    ----------
    values : ndarray, shape (n, k), float64
    exemplars : ndarray, shape (e, k), float64

    Returns
    -------
    ndarray, shape (n,), float64
    """
    if not len(exemplars):
        return np.full(len(values), np.inf)
    known, filled = ~np.isnan(exemplars), np.nan_to_num(exemplars)
    found = []
    step = max(1, _BLOCK // max(1, exemplars.size))
    for at in range(0, len(values), step):
        part = values[at : at + step]
        have, full = (~np.isnan(part)).astype(np.float64), np.nan_to_num(part)
        # Σ (x - e)² over shared columns, as three products.
        shared = have @ known.T
        square = (full**2) @ known.T - 2 * full @ filled.T + have @ (filled**2).T
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = np.where(shared > 0, np.maximum(square, 0.0) / shared, np.inf)
        found.append(np.sqrt(mean.min(axis=1)))
    return np.concatenate(found) if found else np.zeros(0)


def _spread(values: Floats, number: int = EXEMPLARS) -> Floats:
    """Return so many rows at equal steps."""
    if len(values) <= number:
        return values
    return np.asarray(values[np.linspace(0, len(values) - 1, number).round().astype(int)])


# ---- The advisor ---------------------------------------------------------------------------------

#: Layout of a stored advisor.
VERSION = 1

#: Learner → class of its model.
LEARNERS: dict[str, Any] = {"svm": SVM, "boosted": Boosted, "gain": Gain}

#: Lower scores belong to impossible labels: no block in that direction.
_IMPOSSIBLE = -100.0


@dataclass(frozen=True, slots=True, eq=False)
class Advisor:
    """A model that advises.

    Parameters
    ----------
    learner : str
        Of :data:`LEARNERS`.
    inputs : str
        Of :data:`INPUTS`; ``gain`` reads the launch alone.
    preparation : Preparation or None
        None for ``gain``.
    estimator : SVM, Boosted or Gain
    temperature : float
        Scores are divided by it before they become probabilities.
    reach : Reach or None
        None advises on everything.
    """

    learner: str
    inputs: str
    preparation: Preparation | None
    estimator: Any
    temperature: float = 1.0
    reach: Reach | None = None

    def scores(self, observations: Sequence[Observation], inputs: Inputs | None = None) -> Floats:
        """Return a score per label; the largest is the answer.

        Parameters
        ----------
        observations : sequence of Observation
            Whole slices: ``gain`` compares their blocks, without their run times.
        inputs : Inputs, optional
            Their inputs, if already computed.

        Returns
        -------
        ndarray, shape (n, 3), float64
        """
        if self.preparation is None:
            return np.asarray(self.estimator.scores(observations))
        if inputs is None:
            inputs = read_inputs(self.inputs, observations)
        return np.asarray(self.estimator.scores(self.preparation(inputs)))

    def probabilities(
        self, observations: Sequence[Observation], inputs: Inputs | None = None
    ) -> Floats:
        """Return the probability of each label, calibrated on held-out kernels."""
        return softmax(self.scores(observations, inputs), self.temperature)

    def near(self, observations: Sequence[Observation]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return the mask of launches near the training data."""
        if self.reach is None:
            return np.ones(len(observations), bool)
        return self.reach.near(ratios(observations))

    def advise(self, observations: Sequence[Observation]) -> Codes:
        """Return a label for each launch within reach, and :data:`NONE` for others."""
        best = self.scores(observations).argmax(axis=1).astype(np.int8)
        return np.where(self.near(observations), best, NONE).astype(np.int8)

    def to_bytes(self) -> bytes:
        """Return the model as JSON; equal models have equal bytes."""
        values = {
            "advisor": VERSION,
            "learner": self.learner,
            "inputs": self.inputs,
            "preparation": self.preparation and self.preparation.to_json(),
            "estimator": self.estimator.to_json(),
            "temperature": self.temperature,
            "reach": self.reach and self.reach.to_json(),
        }
        return orjson.dumps(values, option=orjson.OPT_SORT_KEYS)

    @classmethod
    def from_bytes(cls, body: bytes) -> Advisor:
        """Return the model of :meth:`to_bytes`.

        Raises
        ------
        FormatError
            The bytes are no advisor, or have another layout.
        """
        values = parse_json(body)
        if not isinstance(values, dict) or values.get("advisor") != VERSION:
            raise FormatError(f"no advisor of layout {VERSION}; make one: tunedb advise train")
        try:
            return cls._from_json(values)
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"the advisor is damaged: {error!r}") from None

    @classmethod
    def _from_json(cls, values: dict[str, Any]) -> Advisor:
        learner, inputs = values["learner"], values["inputs"]
        if learner not in LEARNERS or inputs not in INPUTS:
            raise FormatError(f"unknown advisor {learner!r} on {inputs!r}")
        prepared, reach = values["preparation"], values["reach"]
        if (prepared is None) != (learner == "gain"):
            raise FormatError("the advisor's inputs are not its learner's")
        preparation = None if prepared is None else Preparation.from_json(prepared)
        columns = 0 if preparation is None else len(preparation.names)
        temperature = float(numbers(values["temperature"], ()))
        if temperature <= 0:
            raise FormatError(f"the advisor's temperature is {temperature}")
        return cls(
            learner,
            inputs,
            preparation,
            LEARNERS[learner].from_json(values["estimator"], columns),
            temperature,
            None if reach is None else Reach.from_json(reach),
        )


def softmax(scores: Floats, temperature: float) -> Floats:
    """Return ``exp(s/T) / Σ exp(s/T)`` of each row."""
    scaled = scores / temperature
    raised = np.exp(scaled - scaled.max(axis=1, keepdims=True, initial=-np.inf))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))


def calibrate(scores: Floats, truth: Codes) -> float:
    """Return the temperature under which held-out labels are most likely.

    One number changes the confidence of a row, never its answer. The search uses a grid from 0.001
    to 1,000, a tenth of a decade apart; 1 without held-out rows. An additional row, equally likely
    to have any label, keeps probabilities below 1.
    """
    known = truth != NONE
    if not known.any():
        return 1.0
    scores, truth = scores[known], truth[known]
    grid, possible = np.logspace(-3, 3, 61), scores > _IMPOSSIBLE

    def loss(temperature: float) -> float:
        scaled = scores / temperature
        scaled = scaled - scaled.max(axis=1, keepdims=True)
        logs = scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True))
        right = logs[np.arange(len(truth)), truth].sum()
        return -float(right + logs[possible].mean())

    return float(min(grid, key=loss))

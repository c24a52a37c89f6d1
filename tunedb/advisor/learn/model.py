"""An advisor: its inputs, its model, and the confidence that its advice needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from ...errors import FormatError
from ...json_checks import parse_json
from ..inputs import INPUTS, read_inputs
from ..labels import NONE, Codes, Floats
from ..observations import Inputs, Observation
from .boosted import Boosted
from .gain import Gain
from .measured import Measured
from .preprocessing import Preparation, numbers
from .regret import StepOutcomes, one_step
from .splits import FEW
from .svm import SVM

# ---- Confidence: the advice that held-out kernels and devices support ----------------------------

#: Sources of advice: the same program on other devices, other programs of the kernel on other
#: devices, and a model of other kernels.
SOURCES = ("measured", "kernel", "learnt")
LEARNT = SOURCES.index("learnt")

#: Largest loss of a held-out kernel on a device, in the logarithm of the time.
LOSS = 0.005

#: Candidate margins: so many quantiles of those of held-out launches.
_QUANTILES = 20


@dataclass(frozen=True, slots=True)
class Confidence:
    """Calibration of one source of advice.

    Parameters
    ----------
    temperature : float
        Scores are divided by it before they become probabilities.
    least : float
        Margin of the best score over the second best above which there is advice; infinite if held
        out launches support none.
    """

    temperature: float = 1.0
    least: float = 0.0

    @classmethod
    def fit(
        cls,
        scores: Floats,
        truth: Codes,
        outcomes: StepOutcomes,
        sets: np.ndarray[Any, Any],
        rows: np.ndarray[Any, np.dtype[np.bool_]],
    ) -> Confidence:
        """Return the calibration by held-out launches.

        The smallest margin above which the advice saves time on average over sets, and on no set
        loses more than :data:`LOSS`.

        Parameters
        ----------
        scores : ndarray, shape (n, 3), float64
        truth : ndarray, shape (n,), int8
        outcomes : StepOutcomes
        sets : ndarray, shape (n,)
            Kernel and device of each row. A set of few rows counts less.
        rows : ndarray, shape (n,), bool
            Mask of the rows that are held out, each with a label.
        """
        if not rows.any():
            return cls(least=np.inf)
        margin, best = margins(scores), scores.argmax(axis=1).astype(np.int8)
        number = np.unique(sets[rows], return_inverse=True)[1]
        size = np.maximum(np.bincount(number), FEW)
        least = np.inf
        quantiles = np.quantile(margin[rows], np.arange(_QUANTILES) / _QUANTILES)
        for candidate in (0.0, *quantiles[quantiles > 0]):
            advice = np.where(margin > candidate, best, NONE).astype(np.int8)
            saved = np.bincount(number, outcomes.savings(advice)[rows]) / size
            if saved.min() >= -LOSS and saved.mean() > 0:
                least = float(candidate)
                break
        return cls(calibrate(scores[rows], truth[rows]), least)

    def to_json(self) -> dict[str, Any]:
        """Return the calibration as JSON values; None is an infinite margin."""
        least = None if np.isinf(self.least) else self.least
        return {"temperature": self.temperature, "least": least}

    @classmethod
    def from_json(cls, values: Any) -> Confidence:
        """Return the calibration of :meth:`to_json`; FormatError for anything else."""
        temperature, least = float(numbers(values["temperature"], ())), values["least"]
        if temperature <= 0:
            raise FormatError(f"the advisor's temperature is {temperature}")
        return cls(temperature, np.inf if least is None else float(numbers(least, ())))


def margins(scores: Floats) -> Floats:
    """Return the distance of each row's best score from its second best."""
    ranked = np.sort(scores, axis=1)
    return np.asarray(ranked[:, -1] - ranked[:, -2])


# ---- The advisor ---------------------------------------------------------------------------------

#: Layout of a stored advisor.
VERSION = 2

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
    measured, learnt : Confidence
        Calibrations of advice from other devices, and of the model.
    """

    learner: str
    inputs: str
    preparation: Preparation | None
    estimator: Any
    measured: Confidence = field(default_factory=Confidence)
    learnt: Confidence = field(default_factory=Confidence)

    def scores(self, observations: Sequence[Observation], inputs: Inputs | None = None) -> Floats:
        """Return a score per label by the model; the largest is the answer.

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
        scores = np.asarray(self.estimator.scores(self.preparation(inputs)))
        at = [inputs.names.index(name) for name in self.preparation.names if name in inputs.names]
        known = (~np.isnan(inputs.values[:, at])).sum(axis=1)
        # Of a launch without most inputs the model knows nothing.
        scores[2 * known < len(self.preparation.names)] = 0.0
        return scores

    def all_scores(
        self,
        observations: Sequence[Observation],
        measured: Measured,
        after: np.ndarray[Any, np.dtype[np.int64]] | None = None,
    ) -> tuple[Floats, Codes]:
        """Return scores by measurements on other devices, else by the model.

        Parameters
        ----------
        observations : sequence of Observation
            Whole slices.
        measured : Measured
        after : ndarray, shape (n, 3), int64, optional
            Their :func:`.regret.one_step`, if already computed.

        Returns
        -------
        scores : ndarray, shape (n, 3), float64
        source : ndarray, shape (n,), int8
            Position in :data:`SOURCES`.
        """
        after = one_step(observations) if after is None else after
        scores, source = measured.scores(observations, after)
        new = source < 0
        if new.any():
            # A slice is compared as a whole, although other devices know some of its blocks.
            scores[new] = self.scores(observations)[new]
        return scores, np.where(new, LEARNT, source).astype(np.int8)

    def advise(
        self,
        observations: Sequence[Observation],
        measured: Measured,
        after: np.ndarray[Any, np.dtype[np.int64]] | None = None,
    ) -> tuple[Codes, Codes]:
        """Return a label for each launch, :data:`NONE` where it is unsure, and its source.

        Parameters and source as :meth:`all_scores`.
        """
        scores, source = self.all_scores(observations, measured, after)
        least = np.where(source == LEARNT, self.learnt.least, self.measured.least)
        sure = margins(scores) > least
        return np.where(sure, scores.argmax(axis=1), NONE).astype(np.int8), source

    def confidence(self, source: int) -> Confidence:
        """Return the calibration of a source."""
        return self.learnt if source == LEARNT else self.measured

    def to_bytes(self) -> bytes:
        """Return the model as JSON; equal models have equal bytes."""
        values = {
            "advisor": VERSION,
            "learner": self.learner,
            "inputs": self.inputs,
            "preparation": self.preparation and self.preparation.to_json(),
            "estimator": self.estimator.to_json(),
            "measured": self.measured.to_json(),
            "learnt": self.learnt.to_json(),
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
        prepared = values["preparation"]
        if (prepared is None) != (learner == "gain"):
            raise FormatError("the advisor's inputs are not its learner's")
        preparation = None if prepared is None else Preparation.from_json(prepared)
        columns = 0 if preparation is None else len(preparation.names)
        return cls(
            learner,
            inputs,
            preparation,
            LEARNERS[learner].from_json(values["estimator"], columns),
            Confidence.from_json(values["measured"]),
            Confidence.from_json(values["learnt"]),
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

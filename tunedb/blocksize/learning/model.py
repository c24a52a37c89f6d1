"""An advisor: what it reads, what it learnt, how sure it is and what it keeps silent about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from ...errors import FormatError
from ...values import parse_json
from .. import inputs as inputs_module
from ..observations import Inputs, Observation
from .boosted import Boosted
from .codes import NONE, Codes, Floats
from .gain import Gain
from .preparing import Preparation, numbers
from .reach import Reach
from .svm import SVM

#: Layout of a stored advisor.
VERSION = 1

#: Learner → what its model is.
LEARNERS: dict[str, Any] = {"svm": SVM, "boosted": Boosted, "gain": Gain}

#: Scores below it are of labels that nothing stands for: a block that is not there.
_IMPOSSIBLE = -100.0

#: Names of inputs, as the command line takes them.
INPUTS = ("ratios", "raw")


def read_inputs(name: str, observations: Sequence[Observation]) -> Inputs:
    """Return observations as the columns of one of :data:`INPUTS`."""
    methods: dict[str, Callable[[Sequence[Observation]], Inputs]] = {
        "ratios": inputs_module.ratios,
        "raw": inputs_module.raw,
    }
    return methods[name](observations)


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
        """Return a score per label, the largest of which is the answer.

        Parameters
        ----------
        observations : sequence of Observation
            Whole slices: ``gain`` compares their blocks, without their run times.
        inputs : Inputs, optional
            Their inputs, where they are there already.

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
        """Return how likely each label is right, as kernels that were held out showed."""
        return softmax(self.scores(observations, inputs), self.temperature)

    def near(self, observations: Sequence[Observation]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return which launches are like something that was learnt from."""
        if self.reach is None:
            return np.ones(len(observations), bool)
        return self.reach.near(inputs_module.ratios(observations))

    def advise(self, observations: Sequence[Observation]) -> Codes:
        """Return a label for each launch that is within reach, and :data:`NONE` for others."""
        told = self.scores(observations).argmax(axis=1).astype(np.int8)
        return np.where(self.near(observations), told, NONE).astype(np.int8)

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
            They are none, or of another layout.
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
            raise FormatError(f"an advisor by {learner!r} on {inputs!r} is not known")
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

    One number, so that the answer of a row never changes, only how sure it is. Searched on a grid
    from 0.001 to 1,000, a tenth of a decade apart; 1 where nothing was held out. One row more is
    counted whose label might be any: no number of rows makes certain.
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

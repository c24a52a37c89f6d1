"""Which operator makes the next program, and how often."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, fields

from ..errors import UsageError

#: Kinds of targets whose programs are bound to blocks of threads.
_GPUS = frozenset({"cuda", "metal", "nvptx", "opencl", "rocm", "vulkan", "webgpu"})


@dataclass(frozen=True, slots=True)
class Operators:
    """Relative weights of the five operators.

    Parameters
    ----------
    tile_size, parallel, unroll, compute_location, crossover : float
        Weights, not negative; one of them is positive.

    Raises
    ------
    UsageError
        A weight that is negative or no number, or all of them are 0.
    """

    tile_size: float
    parallel: float
    unroll: float
    compute_location: float
    crossover: float

    def __post_init__(self) -> None:
        weights = list(self.weights().values())
        if not all(math.isfinite(weight) and weight >= 0 for weight in weights):
            raise UsageError(f"weights of operators must be 0 or more, not {weights}")
        if not any(weights):
            raise UsageError("the weight of one operator at least must be positive")

    @classmethod
    def for_target(cls, kind: str) -> Operators:
        """Return the weights for a kind of target.

        Parameters
        ----------
        kind : str
            TVM's target kind, e.g. ``llvm``.

        Notes
        -----
        Those of Ansor (``sketch_policy_rules.h`` of TVM 0.8 to 0.19). It mutates neither locations
        nor parallelism on a GPU; binding to threads has the weight that MetaSchedule gives it. Its
        releases have no crossover; 0.05 is the ratio that Ansor had set aside for one.
        """
        if kind in _GPUS:
            return cls(
                tile_size=0.90, parallel=0.02, unroll=0.10, compute_location=0.0, crossover=0.05
            )
        return cls(
            tile_size=0.90, parallel=0.01, unroll=0.04, compute_location=0.05, crossover=0.05
        )

    def weights(self) -> dict[str, float]:
        """Return the weights by the names of the operators."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def probabilities(self) -> dict[str, float]:
        """Return the weights, their sum made 1."""
        weights = self.weights()
        total = sum(weights.values())
        return {name: weight / total for name, weight in weights.items()}

    def draw(self, rng: random.Random) -> str:
        """Return the name of an operator, drawn by weight."""
        weights = self.weights()
        return rng.choices(list(weights), list(weights.values()))[0]

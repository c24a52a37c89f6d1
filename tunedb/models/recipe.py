"""Recipes: all hyperparameters of a model."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from math import isfinite
from typing import Any, Self

from ..errors import UsageError
from ..identity import canonical_json

#: Name of a part of the recipe, optionally with an argument: ``first:64``.
Choice = str

#: Maximum number of boosters of a model.
MOST_MEMBERS = 1_000

#: Field → minimum and maximum, for fields that XGBoost does not check, or checks too loosely: with
#: `eta` above 1 steps overshoot the minimum of the loss.
_BOUNDS: dict[str, tuple[float, float]] = {
    "rounds": (1, 1_000_000),
    "patience": (0, 1_000_000),
    "members": (1, MOST_MEMBERS),
    "eta": (1e-6, 1),
    "hessian_power": (0, 2),
    "seed": (0, 2**64 - 1),
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """The hyperparameters of a training; equal recipes, data and versions give equal models.

    Parameters
    ----------
    features : str
        Feature set.
    rows : str
        Row model: the score of a program from its rows (``tunedb.row_models``).
    loss : str
        Loss function (``tunedb.losses``).
    label : str
        Label policy: the run time of a program from its repeats (``tunedb.labels``).
    corrected : bool
        Divide run times by the factors of their sessions (:mod:`tunedb.models.sessions`).
    training_set : str
        Selection of the training programs (``tunedb.training_sets``).
    rounds : int
        Maximum number of boosting rounds.
    patience : int
        Rounds without a better accuracy on held-out workloads after which boosting stops; 0 trains
        all rounds on all workloads.
    members : int
        Number of boosters, whose mean is the score; several train on bootstrap samples of the
        workloads.
    max_depth, eta, min_child_weight, reg_lambda, gamma, subsample, colsample_bytree
        XGBoost's parameters of the same names.
    hessian_power : float
        The Hessian of a program with k rows is multiplied by k to this power. Below 1 boosting
        may diverge where many rows of a program share a leaf.
    seed : int
        Seed of all samples.
    """

    features: str = "tunedb.scheduled"
    rows: str = "pack-sum"
    loss: Choice = "relative"
    label: Choice = "median"
    corrected: bool = False
    training_set: Choice = "first:128"
    rounds: int = 400
    patience: int = 30
    members: int = 1
    max_depth: int = 6
    eta: float = 0.1
    min_child_weight: float = 4.0
    reg_lambda: float = 1.0
    gamma: float = 0.0
    subsample: float = 1.0
    colsample_bytree: float = 1.0
    hessian_power: float = 1.0
    seed: int = 0

    def to_json(self) -> bytes:
        """Return the recipe as canonical JSON."""
        return canonical_json(asdict(self))

    def check(self) -> None:
        """Raise UsageError for an invalid number; XGBoost checks the other fields."""
        for name, value in asdict(self).items():
            if isinstance(value, float) and not isfinite(value):
                raise UsageError(f"a recipe with {name} {value}; give a number")
        for name, (least, greatest) in _BOUNDS.items():
            value = getattr(self, name)
            if value < least:
                raise UsageError(f"a recipe with {name} {value}; the least is {least}")
            if value > greatest:
                raise UsageError(f"a recipe with {name} {value}; the greatest is {greatest}")

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return the recipe of the values of :meth:`to_json`.

        Raises
        ------
        UsageError
            A field is unknown to this version.
        """
        unknown = values.keys() - {field.name for field in fields(cls)}
        if unknown:
            raise UsageError(f"a recipe has no {', '.join(sorted(unknown))}; rebuild: tunedb train")
        return cls(**values)

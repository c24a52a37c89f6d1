"""All choices that make a model, in one value."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from math import isfinite
from typing import Any, Self

from ..errors import UsageError
from ..identity import canonical_json

#: What `training_set`, `loss` and `label` take: a name, or a name with an argument, ``first:64``.
Choice = str

#: Most boosters of one model.
MOST_MEMBERS = 1_000

#: Field → its least and its greatest value, where XGBoost does not see the number, or takes too
#: much: with `eta` above 1 a step goes further than the loss falls.
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
    """How to train a model; equal recipes, data and versions give equal models.

    Parameters
    ----------
    features : str
        Feature set.
    rows : str
        Row model: how the rows of a program make its score (``tunedb.row_models``).
    loss : str
        What is minimised (``tunedb.losses``).
    label : str
        Which of a program's run times counts (``tunedb.labels``).
    corrected : bool
        Divide run times by the factors of their sessions (:mod:`tunedb.models.sessions`).
    training_set : str
        Which programs are learnt from (``tunedb.training_sets``).
    rounds : int
        Most rounds of boosting.
    patience : int
        Rounds without a better figure on held-out workloads after which boosting stops; 0 trains
        all rounds on all workloads.
    members : int
        Boosters whose mean is the score; each sees a bootstrap sample of the workloads if there
        are several.
    max_depth, eta, min_child_weight, reg_lambda, gamma, subsample, colsample_bytree
        XGBoost's parameters of the same names.
    hessian_power : float
        The Hessian of a program with k rows is multiplied by k to this power. Below 1 boosting
        may diverge where many rows of a program share a leaf.
    seed : int
        Of all samples.
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
        """Return canonical JSON."""
        return canonical_json(asdict(self))

    def check(self) -> None:
        """Raise UsageError for a number that nothing can be trained with; XGBoost checks others."""
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
        """Return the recipe of :meth:`to_json`'s values.

        Raises
        ------
        UsageError
            A field that this version does not know.
        """
        unknown = values.keys() - {field.name for field in fields(cls)}
        if unknown:
            raise UsageError(f"a recipe has no {', '.join(sorted(unknown))}; rebuild: tunedb train")
        return cls(**values)

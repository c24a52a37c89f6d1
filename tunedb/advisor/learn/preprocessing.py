"""Preparation of inputs for a learner: filled gaps, logarithms, selected columns, scale.

All of it is fitted to the training rows and stored with the model, so that held-out rows have no
part in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import FormatError
from ..labels import Floats
from ..observations import Inputs
from ..scikit_learn import import_sklearn
from ..selection import select

#: Correlations above it drop a column, as the document does.
THRESHOLD = 0.9

#: A column of ratios whose largest value is above this is a count after all.
COUNTS_ABOVE = 1_000.0


@dataclass(frozen=True, slots=True, eq=False)
class Preparation:
    """How columns become a learner's.

    Parameters
    ----------
    names : tuple of str
        The columns that are kept, in order.
    logarithm : ndarray, shape (k,), bool
        Whether ``sign(x) · log2(1 + |x|)`` is taken.
    median, mean, scale : ndarray, shape (k,), float64
        What stands for a value that was not measured; what is subtracted, and divided by; after
        the logarithm.
    """

    names: tuple[str, ...]
    logarithm: np.ndarray[Any, np.dtype[np.bool_]]
    median: Floats
    mean: Floats
    scale: Floats

    @classmethod
    def fit(cls, inputs: Inputs, *, log_above: float = COUNTS_ABOVE) -> Preparation:
        """Return the preparation that training rows ask for.

        Parameters
        ----------
        inputs : Inputs
            Training rows; NaN for values that were not measured.
        log_above : float
            Logarithms are taken of columns whose largest magnitude is above it.
        """
        magnitude = np.nanmax(np.abs(_finite(inputs.values)), axis=0, initial=0.0)
        logarithm = magnitude > log_above
        values = _logarithms(_finite(inputs.values), logarithm)
        kept = select(Inputs(inputs.names, values), threshold=THRESHOLD).kept
        at = [inputs.names.index(name) for name in kept]
        chosen = values[:, at]
        # Selected columns have known values that differ, so neither warns nor divides by zero.
        median = np.nanmedian(chosen, axis=0) if at else np.zeros(0)
        filled = np.where(np.isnan(chosen), median, chosen)
        scale = filled.std(axis=0) if at else np.zeros(0)
        return cls(
            kept,
            logarithm[at],
            median,
            filled.mean(axis=0) if at else np.zeros(0),
            np.where(scale > 0, scale, 1.0),
        )

    def standardise(self, inputs: Inputs) -> Floats:
        """Return the kept columns, scaled, NaN where a value was not measured or is no column."""
        values = np.full((len(inputs.values), len(self.names)), np.nan)
        position = {name: i for i, name in enumerate(inputs.names)}
        for i, name in enumerate(self.names):
            if name in position:
                values[:, i] = inputs.values[:, position[name]]
        return np.asarray((_logarithms(_finite(values), self.logarithm) - self.mean) / self.scale)

    def __call__(self, inputs: Inputs) -> Floats:
        """Return :meth:`standardise` with the median where a value was not measured."""
        values = self.standardise(inputs)
        return np.where(np.isnan(values), (self.median - self.mean) / self.scale, values)

    def to_json(self) -> dict[str, Any]:
        """Return the preparation as JSON values."""
        return {
            "names": list(self.names),
            "logarithm": self.logarithm.tolist(),
            "median": self.median.tolist(),
            "mean": self.mean.tolist(),
            "scale": self.scale.tolist(),
        }

    @classmethod
    def from_json(cls, values: Any) -> Preparation:
        """Return the preparation of :meth:`to_json`; FormatError for anything else."""
        names = tuple(map(str, values["names"]))
        n = len(names)
        return cls(
            names,
            numbers(values["logarithm"], (n,)).astype(bool),
            *(numbers(values[key], (n,)) for key in ("median", "mean", "scale")),
        )


def numbers(values: Any, shape: Sequence[int | None]) -> Floats:
    """Return finite numbers of a stored model as an array of that shape; None fits any length.

    Raises
    ------
    FormatError
        They are something else.
    """
    try:
        found = np.array(values, np.float64)
    except (TypeError, ValueError):
        raise FormatError("the model holds values that are not numbers") from None
    if found.size == 0:
        found = found.reshape([0 if n is None else n for n in shape])
    fits = found.ndim == len(shape) and all(
        want in (None, have) for want, have in zip(shape, found.shape, strict=True)
    )
    if not fits or not np.isfinite(found).all():
        raise FormatError(
            f"the model holds an array of shape {found.shape}; expected {tuple(shape)}"
        )
    return found


def transformer(names: tuple[str, ...], log_above: float) -> Any:
    """Return a step of a scikit-learn pipeline that fits a :class:`Preparation` to each fold."""
    mixin: Any = import_sklearn("sklearn.base").TransformerMixin
    estimator: Any = import_sklearn("sklearn.base").BaseEstimator

    class Prepare(mixin, estimator):  # type: ignore[misc]
        def __init__(self, names: tuple[str, ...], log_above: float) -> None:
            self.names, self.log_above = names, log_above

        def fit(self, values: Floats, y: object = None) -> Prepare:
            self.preparation_ = Preparation.fit(
                Inputs(self.names, values), log_above=self.log_above
            )
            return self

        def transform(self, values: Floats) -> Floats:
            return self.preparation_(Inputs(self.names, values))

    return Prepare(names, log_above)


def _finite(values: Floats) -> Floats:
    return np.where(np.isfinite(values), values, np.nan)


def _logarithms(values: Floats, logarithm: np.ndarray[Any, np.dtype[np.bool_]]) -> Floats:
    taken = np.sign(values) * np.log2(1 + np.abs(values))
    return np.where(logarithm, taken, values)

"""The document's learner: support vector machines with a radial kernel, one against all.

scikit-learn trains it; a model is arrays that numpy alone evaluates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import FormatError
from ..labels import Codes, Floats
from ..scikit_learn import import_sklearn
from .preprocessing import numbers

#: Values that tuning chooses from.
GRID = {"svm__estimator__C": (1.0, 10.0), "svm__estimator__gamma": (0.01, 0.03, 0.1)}

#: Score of a class without training rows: it never wins.
_NEVER = -1e3

#: Rows times support vectors in memory at once.
_BLOCK = 4_000_000


@dataclass(frozen=True, slots=True, eq=False)
class SVM:
    """Three binary machines.

    Parameters
    ----------
    gamma : float
        Of ``exp(-gamma |x - v|²)``.
    vectors : ndarray, shape (s, k), float64
        Support vectors, shared by the machines.
    weights : ndarray, shape (3, s), float64
        Dual coefficients times labels; 0 where a vector is not one of the machine's.
    intercepts : ndarray, shape (3,), float64
    """

    gamma: float
    vectors: Floats
    weights: Floats
    intercepts: Floats

    def scores(self, values: Floats) -> Floats:
        """Return the distances from the three boundaries.

        Parameters
        ----------
        values : ndarray, shape (n, k), float64
            Prepared inputs.

        Returns
        -------
        ndarray, shape (n, 3), float64
            ``Σ w_i exp(-gamma |x - v_i|²) + b`` per class; the largest is the answer.
        """
        step = max(1, _BLOCK // max(1, len(self.vectors)))
        found = [self._scores(values[at : at + step]) for at in range(0, len(values), step)]
        return np.concatenate(found) if found else np.zeros((0, 3))

    def _scores(self, values: Floats) -> Floats:
        square = (values**2).sum(axis=1)[:, None] + (self.vectors**2).sum(axis=1)
        apart = np.maximum(square - 2 * values @ self.vectors.T, 0.0)
        return np.asarray(np.exp(-self.gamma * apart) @ self.weights.T + self.intercepts)

    def to_json(self) -> dict[str, Any]:
        """Return the machines as JSON values."""
        return {
            "gamma": self.gamma,
            "vectors": self.vectors.tolist(),
            "weights": self.weights.tolist(),
            "intercepts": self.intercepts.tolist(),
        }

    @classmethod
    def from_json(cls, values: Any, columns: int) -> SVM:
        """Return the machines of :meth:`to_json`; FormatError for anything else."""
        vectors = numbers(values["vectors"], (None, columns))
        gamma = float(numbers(values["gamma"], ()))
        if gamma < 0:
            raise FormatError(f"the model's gamma is {gamma}")
        return cls(
            gamma,
            vectors,
            numbers(values["weights"], (3, len(vectors))),
            numbers(values["intercepts"], (3,)),
        )


def estimator(**given: Any) -> Any:
    """Return the untrained learner of scikit-learn."""
    machine = import_sklearn("sklearn.svm").SVC(kernel="rbf", class_weight="balanced", **given)
    return import_sklearn("sklearn.multiclass").OneVsRestClassifier(machine)


def extract(fitted: Any) -> SVM:
    """Return the arrays of a trained ``OneVsRestClassifier(SVC)`` whose classes are codes."""
    machines = list(fitted.estimators_)
    columns = machines[0].support_vectors_.shape[1]
    vectors = np.unique(np.concatenate([one.support_vectors_ for one in machines]), axis=0)
    number = {row.tobytes(): i for i, row in enumerate(vectors)}
    weights = np.zeros((3, len(vectors)))
    intercepts = np.full(3, _NEVER)
    # Of two classes scikit-learn trains one machine, whose positive side is the second class.
    machine_votes = [
        (int(fitted.classes_[-1]), machines[0], 1.0),
        (int(fitted.classes_[0]), machines[0], -1.0),
    ]
    if len(machines) > 1:
        machine_votes = [
            (int(c), one, 1.0) for c, one in zip(fitted.classes_, machines, strict=True)
        ]
    for code, one, sign in machine_votes:
        # np.add.at: the same vector may support a machine several times.
        at = [number[row.tobytes()] for row in one.support_vectors_]
        np.add.at(weights[code], at, sign * one.dual_coef_[0])
        intercepts[code] = sign * one.intercept_[0]
    return SVM(float(machines[0].gamma), vectors.reshape(-1, columns), weights, intercepts)


def fit(values: Floats, truth: Codes, *, C: float = 10.0, gamma: float = 0.03) -> SVM:
    """Return machines trained on prepared rows with at least two classes."""
    return extract(estimator(C=C, gamma=gamma).fit(values, truth))

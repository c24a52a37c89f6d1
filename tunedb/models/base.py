"""The parts of a recipe: losses, row models, label policies and training sets.

Each part is an object registered by its own name under an entry point; other packages register
theirs in the same way. A choice is a name, optionally with an argument after a colon:
``first:64``.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from .. import extensions
from ..errors import NotFoundError, PluginError

if TYPE_CHECKING:
    from .dataset import Dataset

Floats = NDArray[np.float64]


class RecipePart(Protocol):
    """A part of a recipe."""

    @property
    def name(self) -> str:
        """Name of the entry point."""


class Objective(Protocol):
    """A loss over the programs of a training set."""

    @property
    def labels(self) -> Floats:
        """Target score of each program, shape (n,)."""

    @property
    def weights(self) -> Floats:
        """Weight of each program, shape (n,)."""

    def base(self, sizes: NDArray[np.int64]) -> float:
        """Return the base score of each row; `sizes` are the rows of each program, shape (n,)."""

    def derivatives(self, scores: Floats) -> tuple[Floats, Floats]:
        """Return the gradient and the diagonal of the Hessian by score, each of shape (n,)."""

    def value(self, scores: Floats) -> float:
        """Return the total loss."""


@runtime_checkable
class Loss(RecipePart, Protocol):
    """A loss function of the scores of programs; a higher score means a faster program."""

    def objective(self, examples: Dataset, argument: str, seed: int) -> Objective:
        """Return the loss over the programs of a dataset.

        Raises
        ------
        UsageError
            The loss does not take this argument.
        """


@runtime_checkable
class RowModel(RecipePart, Protocol):
    """A map from feature rows to the rows that trees score; the program's score is their sum."""

    def rows(
        self, rows: NDArray[np.float32], starts: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the rows for the trees, and the start of each program, as in a Dataset."""

    def columns(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names of the columns of :meth:`rows`."""


@runtime_checkable
class LabelPolicy(RecipePart, Protocol):
    """A label policy: the run time of a program, from all its repeats."""

    def seconds(self, times: NDArray[np.float64], starts: NDArray[np.int64]) -> Floats:
        """Return the run time of each program in seconds, shape (n,).

        The repeats of program i, at least one, are ``times[starts[i]:starts[i + 1]]``.
        """


@runtime_checkable
class TrainingSet(RecipePart, Protocol):
    """A selection of training programs."""

    def choose(self, examples: Dataset, argument: str, seed: int) -> NDArray[np.int64]:
        """Return the numbers of the training programs, ascending.

        Raises
        ------
        UsageError
            The training set does not take this argument.
        """


#: Kind of part → its group of entry points, and its protocol.
GROUPS: dict[str, tuple[str, type[Any]]] = {
    "loss": ("tunedb.losses", Loss),
    "row model": ("tunedb.row_models", RowModel),
    "label": ("tunedb.labels", LabelPolicy),
    "training set": ("tunedb.training_sets", TrainingSet),
}


@cache
def load_parts(kind: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return all parts of a kind, and the load errors of others, by name."""
    group, protocol = GROUPS[kind]

    def checked(name: str, candidate: Any) -> Any:
        if not isinstance(candidate, protocol):
            raise TypeError(f"it is not a {protocol.__name__} (tunedb.models.base)")
        if candidate.name != name:
            raise TypeError(f"it calls itself {candidate.name!r}")
        return candidate

    return extensions.load(group, kind, checked)


def recipe_part(kind: str, choice: str) -> tuple[Any, str]:
    """Return the part that a choice names, and the argument of the choice (or '').

    Raises
    ------
    NotFoundError
        No part has this name.
    PluginError
        The part does not load.
    """
    name, _, argument = choice.partition(":")
    parts, errors = load_parts(kind)
    if name in errors:
        raise PluginError(f"{kind} {name!r} does not load ({errors[name]}); reinstall it")
    if name not in parts:
        raise NotFoundError(f"no {kind} {name!r}; there are: {', '.join(parts)}")
    return parts[name], argument

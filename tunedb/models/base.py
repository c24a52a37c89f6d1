"""What a model is put together from, and which parts there are.

Each part is an object registered under an entry point by its own name; those of other packages
are found in the same way. A choice is written as a name, or as a name and an argument after a
colon: ``first:64``.
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


class Part(Protocol):
    """What all parts have."""

    @property
    def name(self) -> str:
        """The name of its entry point."""


class Objective(Protocol):
    """A loss over the programs of a training set."""

    @property
    def labels(self) -> Floats:
        """What the score of each program should be, shape (n,)."""

    @property
    def weights(self) -> Floats:
        """How much each program counts, shape (n,)."""

    def base(self, sizes: NDArray[np.int64]) -> float:
        """Return what each row should score before any tree, for programs of so many rows."""

    def derivatives(self, scores: Floats) -> tuple[Floats, Floats]:
        """Return the gradient and the Hessian's diagonal by score, each of shape (n,)."""

    def value(self, scores: Floats) -> float:
        """Return the loss of all programs together."""


@runtime_checkable
class Loss(Part, Protocol):
    """What is minimised, by the scores of programs: a higher score means a faster program."""

    def objective(self, examples: Dataset, argument: str, seed: int) -> Objective:
        """Return the loss over some programs.

        Raises
        ------
        UsageError
            The argument is none of this loss.
        """


@runtime_checkable
class RowModel(Part, Protocol):
    """How the rows of a program make its score: the sum over the rows that :meth:`rows` returns."""

    def rows(
        self, rows: NDArray[np.float32], starts: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the rows that trees see, with where each program's begin (as in a Dataset)."""

    def columns(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names of the columns of what :meth:`rows` returns."""


@runtime_checkable
class Label(Part, Protocol):
    """Which of a program's run times counts."""

    def seconds(self, times: NDArray[np.float64], starts: NDArray[np.int64]) -> Floats:
        """Return one time for each program; its times are ``times[starts[i]:starts[i + 1]]``.

        Each program has one at least; all of shape (n,).
        """


@runtime_checkable
class TrainingSet(Part, Protocol):
    """Which programs are learnt from."""

    def choose(self, examples: Dataset, argument: str, seed: int) -> NDArray[np.int64]:
        """Return numbers of programs, ascending.

        Raises
        ------
        UsageError
            The argument is none of this training set.
        """


#: Kind of part → its group of entry points, and what it must be.
GROUPS: dict[str, tuple[str, type[Any]]] = {
    "loss": ("tunedb.losses", Loss),
    "row model": ("tunedb.row_models", RowModel),
    "label": ("tunedb.labels", Label),
    "training set": ("tunedb.training_sets", TrainingSet),
}


@cache
def load_parts(kind: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return all parts of a kind by name, and why others do not load."""
    group, protocol = GROUPS[kind]

    def checked(name: str, candidate: Any) -> Any:
        if not isinstance(candidate, protocol):
            raise TypeError(f"it is not a {protocol.__name__} (tunedb.models.base)")
        if candidate.name != name:
            raise TypeError(f"it calls itself {candidate.name!r}")
        return candidate

    return extensions.load(group, kind, checked)


def part(kind: str, choice: str) -> tuple[Any, str]:
    """Return the part that a choice names, and the choice's argument ('' where it has none).

    Raises
    ------
    NotFoundError
        There is none of this name.
    PluginError
        It does not load.
    """
    name, _, argument = choice.partition(":")
    found, broken = load_parts(kind)
    if name in broken:
        raise PluginError(f"{kind} {name!r} does not load ({broken[name]}); reinstall it")
    if name not in found:
        raise NotFoundError(f"no {kind} {name!r}; there are: {', '.join(found)}")
    return found[name], argument

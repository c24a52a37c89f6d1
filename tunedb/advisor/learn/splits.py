"""Held-out units: rows at random, whole slices, whole kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ..labels import Codes
from ..observations import Observation

Mask = npt.NDArray[np.bool_]

#: Words in kernels' names that do not describe the computation.
_EMPTY = frozenset(
    ("cn", "cuda", "gpu", "hip", "kernel", "kernels", "krnl", "milo", "nv", "ocl", "opencl")
)

#: With fewer rows a family counts less: single rows would dominate.
FEW = 30

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def family(kernel: str) -> str:
    """Return the family of a kernel: its name without decoration.

    ``Pnpoly`` and ``cn_pnpoly`` are one algorithm by two tools; a model of one knows the other.
    Case, digits, and words such as ``kernel`` and ``cn`` do not count.
    """
    words = [word.lower() for word in _WORD.findall(kernel)]
    kept = [word for word in words if word not in _EMPTY]
    return "".join(kept or words) or kernel


def families(observations: Sequence[Observation]) -> npt.NDArray[np.str_]:
    """Return the family of each observation's kernel."""
    known = {kernel: family(kernel) for kernel in {one.kernel for one in observations}}
    return np.array([known[one.kernel] for one in observations], np.str_)


def slice_numbers(observations: Sequence[Observation]) -> npt.NDArray[np.int64]:
    """Return a number for each observation; observations of a slice share it."""
    found: dict[bytes, int] = {}
    numbers = [found.setdefault(one.slice, len(found)) for one in observations]
    return np.array(numbers, np.int64)


def by_group(groups: npt.NDArray[np.generic]) -> Iterator[tuple[str, Mask]]:
    """Yield each group's name and its rows, in the order in which groups first occur."""
    names, first = np.unique(groups, return_index=True)
    for name in names[np.argsort(first)]:
        yield str(name), groups == name


def group_folds(
    groups: npt.NDArray[np.int64], folds: int, rng: np.random.Generator
) -> Iterator[Mask]:
    """Yield the rows of each fold; a group is never divided."""
    order = rng.permutation(np.unique(groups))
    for part in np.array_split(order, min(folds, len(order))):
        yield np.isin(groups, part)


def stratified(truth: Codes, share: float, rng: np.random.Generator) -> Mask:
    """Return a random share of rows, nearly the same share of each class.

    A class with one row stays outside, so no class is in the held-out rows alone.
    """
    held = np.zeros(len(truth), bool)
    for code in np.unique(truth):
        rows = rng.permutation(np.flatnonzero(truth == code))
        held[rows[: min(round(share * len(rows)), len(rows) - 1)]] = True
    return held


def family_weight(rows: int) -> float:
    """Return the weight of a family of so many rows: 1 from :data:`FEW` on."""
    return min(rows, FEW) / FEW


def weights(groups: npt.NDArray[np.str_], truth: Codes) -> npt.NDArray[np.float64]:
    """Return weights that are equal for families, and for classes inside a family.

    A class of a family with fewer than 30 rows counts less, because single rows would dominate. The
    mean weight is 1.
    """
    found = np.zeros(len(truth), np.float64)
    for name in np.unique(groups):
        for code in np.unique(truth[groups == name]):
            rows = (groups == name) & (truth == code)
            found[rows] = 1 / max(int(rows.sum()), FEW)
    mean = found.mean() if len(found) else 1.0
    return np.asarray(found / mean)


def thin(observations: Sequence[Observation], programs: int) -> list[int]:
    """Return the positions of a limited number of observations for training.

    At most so many programs of a family, on all their devices: those with the first digests, which
    is as random as a draw and reproducible.
    """
    keys = [one.program or one.slice for one in observations]
    chosen: list[int] = []
    for _, rows in by_group(families(observations)):
        positions = np.flatnonzero(rows).tolist()
        wanted = set(sorted({keys[i] for i in positions})[:programs])
        chosen.extend(i for i in positions if keys[i] in wanted)
    return sorted(chosen)

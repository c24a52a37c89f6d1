"""The distance between two workloads by their signatures.

Distances are in octaves: 1 between workloads that differ by a factor of 2 in one extent of one
argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, log2, sqrt

import numpy as np
from numpy.typing import NDArray

from ...records import Signature

Shapes = Sequence[Sequence[int]]
Argument = tuple[str | None, tuple[int, ...]]

#: Squared distance for an argument that the other workload lacks: two octaves.
_MISSING = 4.0

#: Squared distance for an argument of another type: one octave.
_OTHER_TYPE = 1.0


def structure_of(family: str | None, shapes: Shapes) -> tuple[object, ...]:
    """Return the family and the number of dimensions of each argument.

    Shapes of equal structures can be compared extent by extent.
    """
    return (family, *map(len, shapes))


def log_extents(shapes: Shapes) -> NDArray[np.float64]:
    """Return the base-2 logarithms of all extents, shape (extents,); 0 for an extent below 1."""
    return np.array([log2(max(extent, 1)) for shape in shapes for extent in shape])


def distances(one: Signature, others: Sequence[Signature]) -> NDArray[np.float64]:
    """Return the distances of some workloads from one.

    Between workloads of equal structure it is the Euclidean distance of the logarithms of all
    extents; each argument of another type adds an octave, as a further dimension. Otherwise the
    arguments are aligned in their order with the least distance; only arguments of equally many
    dimensions match, and each unmatched one adds two octaves.

    Parameters
    ----------
    one : Signature
        A workload.
    others : sequence of Signature
        Workloads, of any family.

    Returns
    -------
    ndarray of float64, shape (len(others),)
        In octaves; infinity if the families differ, or family or arguments are unknown.
    """
    found = np.full(len(others), inf)
    if one.family is None or one.arguments is None:
        return found
    structure = structure_of(one.family, _shapes(one.arguments))
    same, extents, types = [], [], []
    for number, other in enumerate(others):
        if other.family != one.family or other.arguments is None:
            continue
        shapes = _shapes(other.arguments)
        if structure_of(other.family, shapes) == structure:
            same.append(number)
            extents.append(log_extents(shapes))
            types.append(_other_types(one.arguments, other.arguments))
        else:
            found[number] = _aligned(one.arguments, other.arguments)
    if same:
        differences = np.array(extents) - log_extents(_shapes(one.arguments))
        found[same] = np.sqrt(np.square(differences).sum(axis=1) + np.array(types))
    return found


def distance(one: Signature, other: Signature) -> float:
    """Return the distance between two workloads, in octaves (:func:`distances`)."""
    return float(distances(one, [other])[0])


def _shapes(arguments: Sequence[Argument]) -> list[tuple[int, ...]]:
    return [shape for _, shape in arguments]


def _other_types(left: Sequence[Argument], right: Sequence[Argument]) -> float:
    """Return the squared distance of the types of arguments; an unknown type equals any."""
    pairs = zip(left, right, strict=True)
    return _OTHER_TYPE * sum(
        one is not None and other is not None and one != other for (one, _), (other, _) in pairs
    )


def _aligned(left: Sequence[Argument], right: Sequence[Argument]) -> float:
    """Return the distance of argument lists of different structure: their edit distance."""
    row = [_MISSING * count for count in range(len(right) + 1)]
    for number, one in enumerate(left, 1):
        above, row = row, [_MISSING * number]
        for column, other in enumerate(right, 1):
            best = _MISSING + min(above[column], row[-1])
            if len(one[1]) == len(other[1]):
                best = min(best, above[column - 1] + _squared(one, other))
            row.append(best)
    return sqrt(row[-1])


def _squared(one: Argument, other: Argument) -> float:
    difference = log_extents([one[1]]) - log_extents([other[1]])
    return float(np.square(difference).sum()) + _other_types([one], [other])

"""AutoTVM's loop features, ``autotvm.itervar`` (docs/features.md, "autotvm.itervar").

For each axis of a program: its attributes, the float arithmetic directly in it, and how each access
under it touches its buffer. The values equal those of AutoTVM's C++ (TVM v0.5 to v0.19,
``src/autotvm/touch_extractor.cc``); the functions have the names of ``tvm.autotvm.feature``.

The axes are those of the flat form after ``tunedb.plugins.metaschedule.features.flat.flatten``:
blocks lowered, buffers of one dimension, unit loops kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _itervar
from .base import Needs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ._nest import Nest

#: Annotations of an axis in the order of the one-hot code (v0.19 ``feature_visitor.h``).
ANNOTATIONS = (
    "BLOCK_X",
    "BLOCK_Y",
    "BLOCK_Z",
    "THREAD_X",
    "THREAD_Y",
    "THREAD_Z",
    "UNROLLED",
    "VECTORIZED",
    "PARALLEL",
    "SERIAL",
    "VTHREAD",
)

#: One axis: ``("_itervar_", name)``, ``("_attr_", …)``, ``("_arith_", …)`` and one tuple for each
#: access, its name first.
Row = tuple[tuple[Any, ...], ...]

_FIELDS = {
    "_attr_": (
        *("length", "nest_level", "topdown", "bottomup"),
        *(f"ann_{i}" for i in range(len(ANNOTATIONS))),
    ),
    "_arith_": ("add", "mul", "div"),
}
_TOUCH = ("stride", "mod", "count", "reuse", "T_count", "T_reuse")


def get_itervar_feature(nest: Nest, take_log: bool = False) -> list[Row]:
    """Return the features of every axis of a program, in order of appearance.

    Parameters
    ----------
    nest : Nest
        A program with flat buffers.
    take_log : bool
        Scale all values but nest_level and the annotation: ``log2(x + 1)``, and
        ``-log2(1 - x)`` below 0.

    Returns
    -------
    list of tuple of tuple
        A row for each axis: ``("_itervar_", name)``, ``("_attr_", length, nest_level, topdown,
        bottomup, *one_hot)`` with the 11 places of `ANNOTATIONS`, ``("_arith_", add, mul, div)``,
        and for each access under the axis, sorted by name as text, ``("<buffer>_<n>", stride,
        mod, count, reuse, T_count, T_reuse)``. Integers, with `take_log` floats.

    Raises
    ------
    UsageError
        A buffer is accessed with several indices, or a loop is bound to a thread that AutoTVM
        does not know.
    LimitError
        The program is too large.
    """
    scaled = _log if take_log else int
    rows = []
    for name, length, level, topdown, bottomup, slot, arithmetic, touches in _itervar.axes(nest):
        one_hot = (int(i == slot) for i in range(len(ANNOTATIONS)))
        attributes = (scaled(length), level, scaled(topdown), scaled(bottomup), *one_hot)
        rows.append(
            (
                ("_itervar_", name),
                ("_attr_", *attributes),
                ("_arith_", *map(scaled, arithmetic)),
                *((touch[0], *map(scaled, touch[1:])) for touch in touches),
            )
        )
    return rows


def get_itervar_feature_flatten(nest: Nest, take_log: bool = True) -> NDArray[np.float64]:
    """Return the features of every axis in one vector.

    Equal to :func:`get_itervar_feature` and :func:`flatten_itervar_feature`, without Python objects
    in between.

    Parameters
    ----------
    nest : Nest
        A program with flat buffers.
    take_log : bool
        As in :func:`get_itervar_feature`, but True by default, as in AutoTVM.

    Returns
    -------
    numpy.ndarray
        float64 of shape (n,): 18 values for each axis and 6 for each access under it.

    Raises
    ------
    UsageError, LimitError
        As :func:`get_itervar_feature`.
    """
    return _itervar.flat(nest, take_log)


def flatten_itervar_feature(fea: Sequence[Row]) -> NDArray[np.float64]:
    """Return the rows of :func:`get_itervar_feature` in one vector, without names.

    Parameters
    ----------
    fea : sequence of rows
        What :func:`get_itervar_feature` returned.

    Returns
    -------
    numpy.ndarray
        float64 of shape (n,).
    """
    values = [value for axis in fea for pair in axis[1:] for value in pair[1:]]
    return np.array(values, np.float64)


def get_flatten_name(fea: Sequence[Row]) -> list[str]:
    """Return the name of each place of the vector of :func:`flatten_itervar_feature`.

    Parameters
    ----------
    fea : sequence of rows
        What :func:`get_itervar_feature` returned.

    Returns
    -------
    list of str
        ``f<place>.<axis>.<_attr_, _arith_ or access>.<field>``.
    """
    names: list[str] = []
    for axis in fea:
        for pair in axis[1:]:
            for field in _FIELDS.get(pair[0], _TOUCH):
                names.append(f"f{len(names)}.{axis[0][1]}.{pair[0]}.{field}")
    return names


def get_buffer_curve_sample_flatten(nest: Nest, sample_n: int = 30) -> NDArray[np.float64]:
    """Return AutoTVM's curve samples, whose number does not depend on the loops.

    Each buffer that the deepest axes touch has curves of count and reuse, and of count and topdown,
    from the innermost axis to the outermost, both ways.

    Parameters
    ----------
    nest : Nest
        A program with flat buffers.
    sample_n : int
        Points in each curve.

    Returns
    -------
    numpy.ndarray
        float64 of shape (8 * sample_n * buffers,), buffers in order of their names. Each curve is
        `sample_n` pairs of a value and its distance, in log2.

    Notes
    -----
    The first access by name to a buffer counts; AutoTVM takes the first of a hash map. A value
    below 1 (an extent that is 0 or unknown) counts as 1; AutoTVM has a NaN or an infinity there.

    Raises
    ------
    UsageError, LimitError
        As :func:`get_itervar_feature`.
    """
    axes = _itervar.axes(nest)
    deepest = max((axis[2] for axis in axes), default=0)
    chosen: dict[str, str] = {}
    for axis in reversed(axes):
        if axis[2] == deepest:
            for touch in axis[7]:
                chosen.setdefault(_raw_name(touch[0]), touch[0])
    values: list[float] = []
    for name in sorted(chosen.values()):
        found = [(axis[3], touch) for axis in axes for touch in axis[7] if touch[0] == name]
        count = [0.0, *sorted(_log2(touch[3]) for _, touch in found)]
        reuse = [0.0, *sorted(_log2(touch[4]) for _, touch in found)]
        topdown = [0.0, *sorted(_log2(product) for product, _ in found)]
        for x, y in ((count, reuse), (reuse, count), (count, topdown), (topdown, count)):
            values += _sample(x, y, sample_n)
    return np.array(values, np.float64)


def _raw_name(access: str) -> str:
    """Return the buffer of an access: without its number, and without a scope as in A.local."""
    return access.rpartition("_")[0].partition(".")[0]


def _sample(x: list[float], y: list[float], count: int) -> list[float]:
    """Sample one curve: at each i the last point at or left of it."""
    found = []
    for i in range(count):
        last = max(j for j, left in enumerate(x) if i > left - 1e-6)
        found += [y[last], i - x[last]]
    return found


def _log2(value: int) -> float:
    return math.log(max(value, 1)) / math.log(2)


def _log(value: int) -> float:
    """Return a value on AutoTVM's scale (v0.19 ``touch_extractor.cc``, ``trans``)."""
    scaled = math.log(1 + abs(value)) / math.log(2)
    return -scaled if value < 0 else scaled


@dataclass(frozen=True, slots=True)
class ItervarFeatures:
    """The feature set ``autotvm.itervar``: one row, whose length depends on the program."""

    name: str = "autotvm.itervar"
    version: int = 1
    columns: tuple[str, ...] = ()
    needs: Needs = Needs.FLAT

    def nest_rows(self, nest: Nest, *, gpu: bool) -> NDArray[np.float64]:
        """Return the features of every axis in one row, on AutoTVM's logarithmic scale.

        Parameters
        ----------
        nest : Nest
            A program with flat buffers.
        gpu : bool
            Unused: the axes have their bindings.

        Returns
        -------
        numpy.ndarray
            float64 of shape (1, n).

        Raises
        ------
        UsageError, LimitError
            As :func:`get_itervar_feature`.
        """
        return get_itervar_feature_flatten(nest).reshape(1, -1)


ITERVAR = ItervarFeatures()

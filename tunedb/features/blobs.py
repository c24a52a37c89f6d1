"""Stored form of features: one zstd frame of float32, little endian, by rows.

The numbers of rows and columns are stored beside the frame. A frame with another number of values
is damaged.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import limits
from ..errors import FormatError, LimitError, StorageError
from ..system.compression import compress_all, decompress
from .base import NamedSet

_FLOAT = np.dtype("<f4")


def checked(feature_set: NamedSet, rows: Any) -> NDArray[np.float32]:
    """Return rows as a float32 array that can be stored.

    Parameters
    ----------
    feature_set : FeatureSet
        The feature set of the rows.
    rows : array of shape (rows, columns), any type of real numbers
        The computed rows.

    Returns
    -------
    array of float32, shape (rows, columns)
        In C order; `rows` itself if it is such an array.

    Raises
    ------
    FormatError
        The shape is wrong, or a value is not finite as float32: no model can train on it.
    LimitError
        The rows exceed :data:`tunedb.limits.MAX_FEATURE_BYTES`.
    """
    array = np.asarray(rows)
    name = feature_set.name
    if array.ndim != 2 or array.dtype.kind not in "fiub":
        raise FormatError(f"{name}: rows of shape {array.shape} and type {array.dtype}")
    columns = feature_set.columns
    if columns and array.shape[1] != len(columns):
        raise FormatError(f"{name}: {array.shape[1]} columns, not {len(columns)}")
    if array.size * _FLOAT.itemsize > limits.MAX_FEATURE_BYTES:
        raise LimitError(f"{name}: {array.shape[0]} rows are over {limits.MAX_FEATURE_BYTES} bytes")
    if array.dtype == _FLOAT:  # entering errstate takes 4 us
        stored = np.ascontiguousarray(array)
    else:
        with np.errstate(over="ignore"):
            stored = np.ascontiguousarray(array, _FLOAT)
    if not np.isfinite(stored).all():
        row, column = (int(i) for i in np.argwhere(~np.isfinite(stored))[0])
        label = columns[column] if columns else str(column)
        raise FormatError(f"{name}: {label} is {array[row, column]} in row {row}")
    return stored


def pack(
    feature_set: NamedSet, programs: Iterable[tuple[int, NDArray[Any]]]
) -> list[dict[str, Any]]:
    """Return rows for table ``feature``, without the feature set's id.

    Parameters
    ----------
    feature_set : FeatureSet
        The feature set of the rows.
    programs : iterable of (int, array)
        Id of each program, and its rows (:func:`checked`).

    Raises
    ------
    FormatError, LimitError
        As :func:`checked`.
    """
    arrays = [(id_, checked(feature_set, rows)) for id_, rows in programs]
    frames = compress_all(array.tobytes() for _, array in arrays)
    return [
        {"program_id": id_, "n_rows": len(array), "n_columns": array.shape[1], "data": data}
        for (id_, array), data in zip(arrays, frames, strict=True)
    ]


def unpack(n_rows: int, n_columns: int, data: bytes) -> NDArray[np.float32]:
    """Return the rows that :func:`pack` stored; the array is read-only.

    Raises
    ------
    LimitError
        The rows exceed :data:`tunedb.limits.MAX_FEATURE_BYTES`.
    StorageError
        The frame is damaged, or has another number of values.
    """
    most = limits.MAX_FEATURE_BYTES
    size = n_rows * n_columns * _FLOAT.itemsize
    if not (0 <= n_rows <= most and 0 <= n_columns <= most and size <= most):
        raise LimitError(f"features of {n_rows} rows and {n_columns} columns are over {most} bytes")
    body = decompress(data, size)
    if len(body) != size:
        raise StorageError(f"features of {len(body)} bytes, not {size}: they are damaged")
    return np.frombuffer(body, _FLOAT).reshape(n_rows, n_columns)

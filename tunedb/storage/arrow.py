"""Tables of Arrow arrays, and their columns made from the values of many rows at once.

Every function takes one column of a batch; no object stands for a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import nanoarrow as na
import numpy as np
from nanoarrow.c_array_stream import CArrayStream
from numpy.typing import NDArray

from .. import identity
from ..errors import LimitError, UsageError
from ..system.notebook import rows_html
from ._lists import LIST, hex_texts, join_bytes, name_texts, pack_numbers, split_lists

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from .tables import TableColumn

#: Greatest offset of Arrow's ``string`` and ``list``.
_MAX_BYTES = 2**31 - 1

#: Type of a column (:class:`tunedb.storage.tables.TableColumn`) → type of Arrow.
_TYPES: dict[str, Any] = {
    "int": na.int64(),
    "float": na.float64(),
    "float32": na.float32(),
    "bool": na.bool_(),
    "time": na.timestamp("us", "UTC"),
    "text": na.string(),
    "texts": na.list_(na.string()),
    "floats": na.list_(na.float64()),
}


class Table:
    """Rows as columns, readable by pandas, polars, DuckDB and pyarrow without a copy.

    Each of them takes the object itself: ``pl.DataFrame(table)``, ``pa.table(table)``,
    ``duckdb.sql("SELECT count(*) FROM table_variable")``.

    Attributes
    ----------
    name : str
        Name of the table.
    columns : tuple of TableColumn
        Names, types and units of the columns (docs/tables.md).
    """

    def __init__(self, name: str, columns: Sequence[TableColumn], width: int = 0) -> None:
        self.name = name
        self.columns: tuple[TableColumn, ...] = tuple(columns)
        self._types = {
            column.name: _TYPES.get(column.type) or na.fixed_size_list(na.float32(), width)
            for column in columns
        }
        self._schema = na.c_schema(na.struct(self._types))
        self._batches: list[Any] = []
        self._rows = 0

    def append(self, rows: int, values: Sequence[Any]) -> None:
        """Append a batch: the values of each column, as :func:`_array` takes them."""
        children = [
            _array(column.type, self._types[column.name], rows, column_values)
            for column, column_values in zip(self.columns, values, strict=True)
        ]
        batch = na.c_array_from_buffers(self._schema, rows, [None], children=children, move=True)
        self._batches.append(batch)
        self._rows += rows

    def __len__(self) -> int:
        return self._rows

    def __repr__(self) -> str:
        return f"<table {self.name}: {self._rows:,} rows, {len(self.columns)} columns>"

    def _repr_html_(self) -> str:
        names = [column.name for column in self.columns]
        rows = na.Array(self._batches[0]).iter_tuples() if self._batches else ()
        return rows_html(f"Table {self.name}", names, rows, self._rows)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the rows as a stream of Arrow (the Arrow PyCapsule interface)."""
        stream = CArrayStream.from_c_arrays(self._batches, self._schema, validate=False)
        return stream.__arrow_c_stream__(requested_schema)

    def to_pydict(self, *names: str) -> dict[str, list[Any]]:
        """Return columns as lists, with None for missing values.

        Parameters
        ----------
        *names : str
            Names of columns; all without one.
        """
        places = {column.name: place for place, column in enumerate(self.columns)}
        batches = [na.Array(batch) for batch in self._batches]
        return {
            name: [v for batch in batches for v in batch.child(places[name]).to_pylist()]
            for name in names or places
        }

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a DataFrame of pandas.

        Raises
        ------
        UsageError
            pandas or pyarrow is not installed.
        """
        try:
            import pandas  # noqa: F401
            import pyarrow as pa
        except ImportError:
            raise UsageError("to_pandas needs them; run: pip install pandas pyarrow") from None
        frame: pd.DataFrame = pa.table(self).to_pandas()
        return frame

    def to_polars(self) -> pl.DataFrame:
        """Return the rows as a DataFrame of polars.

        Raises
        ------
        UsageError
            polars is not installed.
        """
        try:
            import polars as pl
        except ImportError:
            raise UsageError("to_polars needs it; run: pip install polars") from None
        return pl.DataFrame(self)


# ---- Columns -------------------------------------------------------------------------------------


def _array(type_: str, arrow_type: Any, rows: int, values: Any) -> Any:
    """Return the array of a column, given as values (None for missing ones) or as buffers."""
    if isinstance(values, _Buffers):
        return na.c_array_from_buffers(arrow_type, rows, values.buffers, children=values.children)
    return _MAKERS[type_](arrow_type, values)


class _Buffers:
    """Buffers and children of a column that needs no conversion."""

    def __init__(self, buffers: Sequence[Any], children: Sequence[Any] = ()) -> None:
        self.buffers = buffers
        self.children = children


def _integers(arrow_type: Any, values: Sequence[int | None]) -> Any:
    numbers, valid = pack_numbers(values, is_float=False)
    return na.c_array_from_buffers(arrow_type, len(values), [valid, numbers])


def _floats(arrow_type: Any, values: Sequence[float | None]) -> Any:
    numbers, valid = pack_numbers(values, is_float=True)
    return na.c_array_from_buffers(arrow_type, len(values), [valid, numbers])


def _floats32(arrow_type: Any, values: NDArray[np.float32]) -> Any:
    return na.c_array_from_buffers(arrow_type, len(values), [None, values])


def _bools(arrow_type: Any, values: Sequence[Any]) -> Any:
    bits = np.packbits(np.fromiter(values, bool, len(values)), bitorder="little")
    return na.c_array_from_buffers(arrow_type, len(values), [None, bits])


def _offsets(lengths: Any, count: int) -> NDArray[np.int32]:
    """Return the offsets of lengths, with the first 0; LimitError if they do not fit."""
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] > _MAX_BYTES:
        raise LimitError(f"a column of {offsets[-1]:,} bytes in one batch is over {_MAX_BYTES:,}")
    return offsets.astype(np.int32)


def _texts(arrow_type: Any, values: Sequence[str | None]) -> Any:
    encoded = [None if v is None else str(v).encode(errors="replace") for v in values]
    lengths, valid, data = join_bytes(encoded)
    offsets = _offsets(np.frombuffer(lengths, np.int64), len(encoded))
    return na.c_array_from_buffers(arrow_type, len(values), [valid, offsets, data])


def _float_lists(arrow_type: Any, values: Sequence[bytes | None]) -> Any:
    """Return an array of lists, given as packed float64; damaged ones are missing."""
    lengths, valid, data = join_bytes(values)
    sizes = np.frombuffer(lengths, np.int64)
    if (sizes % 8).any():
        values = [None if value is None or len(value) % 8 else value for value in values]
        return _float_lists(arrow_type, values)
    floats = np.frombuffer(data, "<f8")
    child = na.c_array_from_buffers(na.float64(), len(floats), [None, floats])
    offsets = _offsets(sizes // 8, len(values))
    return na.c_array_from_buffers(arrow_type, len(values), [valid, offsets], children=[child])


def _json_lists(arrow_type: Any, values: Sequence[str | None]) -> Any:
    """Return an array of lists of texts, given as JSON lists."""
    texts = lists(bytes([LIST]) * len(values), [None if v is None else v.encode() for v in values])
    return na.c_array_from_buffers(arrow_type, len(values), texts.buffers, children=texts.children)


_MAKERS: dict[str, Callable[[Any, Any], Any]] = {
    "int": _integers,
    "time": _integers,
    "float": _floats,
    "float32": _floats32,
    "bool": _bools,
    "text": _texts,
    "texts": _json_lists,
    "floats": _float_lists,
}


# ---- Columns that are read faster than by the functions above ------------------------------------


def hexadecimal(digests: Sequence[bytes]) -> Any:
    """Return a column of digests as hexadecimal text."""
    texts = hex_texts(digests, identity.DIGEST_BYTES)
    if texts is None:
        return [digest.hex() for digest in digests]
    size = 2 * identity.DIGEST_BYTES
    offsets = np.arange(0, (len(digests) + 1) * size, size, dtype=np.int32)
    return _Buffers([None, offsets, texts])


def named(ids: Sequence[Any], names: dict[Any, bytes]) -> Any:
    """Return a column of texts that few ids name; ``unknown`` for other ids."""
    lengths, texts = name_texts(ids, names)
    return _Buffers([None, _offsets(np.frombuffer(lengths, np.int64), len(ids)), texts])


def lists(kinds: bytes, rows: Sequence[bytes | None]) -> Any:
    """Return a column of lists of texts from decisions as stored (:func:`split_lists`)."""
    counts_, lengths_, texts = split_lists(rows, kinds)
    counts, lengths = np.frombuffer(counts_, np.int64), np.frombuffer(lengths_, np.int64)
    valid = None
    if counts.size and counts.min() < 0:
        valid = np.packbits(counts >= 0, bitorder="little")
        counts = np.maximum(counts, 0)
    child = na.c_array_from_buffers(
        na.string(), len(lengths), [None, _offsets(lengths, len(lengths)), texts]
    )
    return _Buffers([valid, _offsets(counts, len(counts))], [child])


def vectors(rows: NDArray[np.float32]) -> Any:
    """Return a column of lists of equal length."""
    flat = rows.reshape(-1)
    return _Buffers([None], [na.c_array_from_buffers(na.float32(), len(flat), [None, flat])])

"""Tables of Arrow arrays, and their columns made from the values of many rows at once.

Every function takes one column of a batch; no object stands for a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import nanoarrow as na
import numpy as np
import orjson
from nanoarrow.c_array_stream import CArrayStream
from numpy.typing import NDArray

from ..errors import LimitError, UsageError

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from .tables import TableColumn

#: Greatest offset of Arrow's ``string`` and ``list``.
_MAX_BYTES = 2**31 - 1

_QUOTE, _COMMA, _OPEN, _CLOSE, _OPEN_OBJECT, _CLOSE_OBJECT = b'",[]{}'

#: Type of a column (:class:`tunedb.storage.tables.TableColumn`) → type of Arrow.
_TYPES: dict[str, Any] = {
    "int": na.int64(),
    "float": na.float64(),
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
        self.columns = tuple(columns)
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

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the rows as a stream of Arrow (the Arrow PyCapsule interface)."""
        stream = CArrayStream.from_c_arrays(self._batches, self._schema, validate=False)
        return stream.__arrow_c_stream__(requested_schema)

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
    """Return the array of a column: of Python's values, None for missing ones, or a made one."""
    if isinstance(values, _Made):
        return na.c_array_from_buffers(arrow_type, rows, values.buffers, children=values.children)
    return _MAKERS[type_](arrow_type, values)


class _Made:
    """Buffers and children of a column that needs no conversion."""

    def __init__(self, buffers: Sequence[Any], children: Sequence[Any] = ()) -> None:
        self.buffers = buffers
        self.children = children


def _validity(values: Sequence[Any]) -> Any:
    """Return the bits of the values that are not None; None if all are."""
    if None not in values:
        return None
    return np.packbits([value is not None for value in values], bitorder="little")


def _numbers(arrow_type: Any, values: Sequence[Any], dtype: Any) -> Any:
    """Return an array of numbers."""
    valid = _validity(values)
    if valid is not None:
        values = [0 if value is None else value for value in values]
    return na.c_array_from_buffers(arrow_type, len(values), [valid, np.array(values, dtype)])


def _integers(arrow_type: Any, values: Sequence[int | None]) -> Any:
    return _numbers(arrow_type, values, np.int64)


def _floats(arrow_type: Any, values: Sequence[float | None]) -> Any:
    return _numbers(arrow_type, values, np.float64)


def _bools(arrow_type: Any, values: Sequence[Any]) -> Any:
    bits = np.packbits(np.array(values, bool), bitorder="little")
    return na.c_array_from_buffers(arrow_type, len(values), [None, bits])


def _offsets(lengths: Any, count: int) -> NDArray[np.int32]:
    """Return the offsets of lengths, with the first 0; LimitError if they do not fit."""
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] > _MAX_BYTES:
        raise LimitError(f"a column of {offsets[-1]:,} bytes in one batch is over {_MAX_BYTES:,}")
    return offsets.astype(np.int32)


def _strings(arrow_type: Any, encoded: Sequence[bytes], valid: Any = None) -> Any:
    """Return an array of texts that are UTF-8 already."""
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    buffers = [valid, _offsets(lengths, len(encoded)), b"".join(encoded)]
    return na.c_array_from_buffers(arrow_type, len(encoded), buffers)


def _texts(arrow_type: Any, values: Sequence[str | None]) -> Any:
    encoded = [b"" if v is None else str(v).encode(errors="replace") for v in values]
    return _strings(arrow_type, encoded, _validity(values))


def _float_lists(arrow_type: Any, values: Sequence[bytes | None]) -> Any:
    """Return an array of lists, given as packed float64."""
    valid = _validity(values)
    packed = [value or b"" for value in values]
    floats = np.frombuffer(b"".join(packed), "<f8")
    counts = np.fromiter(map(len, packed), np.int64, len(packed)) // 8
    child = na.c_array_from_buffers(na.float64(), len(floats), [None, floats])
    offsets = _offsets(counts, len(packed))
    return na.c_array_from_buffers(arrow_type, len(packed), [valid, offsets], children=[child])


def _json_lists(arrow_type: Any, values: Sequence[Any]) -> Any:
    """Return an array of lists of texts, given as JSON lists."""
    encoded = [v.encode() if isinstance(v, str) else v for v in values]
    return json_lists(encoded, np.ones(len(encoded), np.int8)).array(arrow_type)


_MAKERS: dict[str, Callable[[Any, Any], Any]] = {
    "int": _integers,
    "time": _integers,
    "float": _floats,
    "bool": _bools,
    "text": _texts,
    "texts": _json_lists,
    "floats": _float_lists,
}


# ---- Columns that are read faster than by the functions above ------------------------------------


def hexadecimal(digests: Sequence[bytes]) -> Any:
    """Return a column of digests of one length as hexadecimal text."""
    data = b"".join(digests)
    size = 2 * len(data) // max(len(digests), 1)
    offsets = np.arange(len(digests) + 1, dtype=np.int32) * np.int32(size)
    return _Made([None, offsets, data.hex().encode()])


def named(ids: Sequence[Any], names: Mapping[Any, bytes]) -> Any:
    """Return a column of texts that few ids name."""
    encoded = [names[id_] for id_ in ids]
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    return _Made([None, _offsets(lengths, len(encoded)), b"".join(encoded)])


def decisions(kinds: Sequence[int], rows: Sequence[bytes]) -> Any:
    """Return a column of decisions as lists of texts.

    Parameters
    ----------
    kinds : sequence of int
        Of each row 0 for packed numbers, or the level of :func:`json_lists`.
    rows : sequence of bytes
        Decisions as stored.
    """
    levels = np.array(kinds, np.int8)
    packed = np.flatnonzero(levels == 0)
    if len(packed):
        rows = list(rows)
        for place, text in zip(packed, varint_lists([rows[i] for i in packed]), strict=True):
            rows[place] = text
        levels[packed] = 1
    return json_lists(rows, levels).column()


def vectors(rows: NDArray[np.float32]) -> Any:
    """Return a column of lists of equal length."""
    flat = rows.reshape(-1)
    return _Made([None], [na.c_array_from_buffers(na.float32(), len(flat), [None, flat])])


class JSONLists:
    """Lists of texts: of each list the number of elements, and their texts one after another."""

    def __init__(self, counts: Any, lengths: Any, data: Any, valid: Any = None) -> None:
        self._counts, self._lengths, self._data, self._valid = counts, lengths, data, valid

    def array(self, arrow_type: Any) -> Any:
        """Return the array."""
        made = self.column()
        rows = len(self._counts)
        return na.c_array_from_buffers(arrow_type, rows, made.buffers, children=made.children)

    def column(self) -> Any:
        """Return the column."""
        count = len(self._lengths)
        buffers = [None, _offsets(self._lengths, count), self._data]
        child = na.c_array_from_buffers(na.string(), count, buffers)
        return _Made([self._valid, _offsets(self._counts, len(self._counts))], [child])


def json_lists(rows: Sequence[bytes | None], levels: NDArray[np.int8]) -> JSONLists:
    """Split lists, given as compact JSON, into the texts of their elements.

    Parameters
    ----------
    rows : sequence of bytes or None
        JSON texts.
    levels : array of int8
        1 for a row whose elements are wanted, 2 for the elements of its first element.
    """
    split = None
    # Brackets and commas count outside of texts only, and a backslash may hide the end of one.
    if None not in rows:
        joined = b"".join(rows)  # type: ignore[arg-type]
        if rows and b"\\" not in joined:
            split = _split_bytes(rows, joined, levels)  # type: ignore[arg-type]
    return _split_one_by_one(rows, levels) if split is None else split


def _split_bytes(
    rows: Sequence[bytes], joined: bytes, levels: NDArray[np.int8]
) -> JSONLists | None:
    """Return the elements of lists, by arithmetic on all bytes; None if one is no such list."""
    data = np.frombuffer(joined, np.uint8)
    sizes = np.fromiter(map(len, rows), np.int64, len(rows))
    if not sizes.all():
        return None
    ends = np.cumsum(sizes)
    starts = ends - sizes
    opens = (data == _OPEN) | (data == _OPEN_OBJECT)
    closes = (data == _CLOSE) | (data == _CLOSE_OBJECT)
    commas = data == _COMMA
    quotes = data == _QUOTE
    if quotes.any():
        outside = (np.cumsum(quotes, dtype=np.int32) & 1) == 0
        opens, closes, commas = opens & outside, closes & outside, commas & outside
    depth = np.cumsum(opens.view(np.int8) - closes.view(np.int8), dtype=np.int32)
    deep = levels == 2
    # A batch has one kind of rows as a rule.
    is_mixed = deep.any() and not deep.all()
    level = np.repeat(levels, sizes) if is_mixed else levels[0]
    second = np.minimum(starts + 1, len(data) - 1)
    if (
        (data[starts] != _OPEN).any()
        or depth[ends - 1].any()
        or (deep & (data[second] != _OPEN) & (sizes != 2)).any()
    ):
        return None
    inside = depth >= level
    if deep.any():
        # Only the first element of a row of level 2.
        top = np.cumsum(commas & (depth == 1), dtype=np.int32)
        before = np.repeat(top[starts], sizes)
        is_first = (top == before) | (level == 1)
        inside &= is_first
    separators = commas & (depth == level) & inside
    kept = inside & ~separators & ~(opens & (depth == level))
    closing = closes & (depth == level - 1)
    if deep.any():
        closing &= is_first
    # An opening bracket just before a closing one: an empty list.
    closing[1:] &= data[:-1] != _OPEN
    places = np.flatnonzero(separators | closing)
    element_ends = np.cumsum(kept, dtype=np.int64)[places]
    lengths = np.diff(element_ends, prepend=0)
    counts = np.bincount(np.searchsorted(ends, places, side="right"), minlength=len(rows))
    return JSONLists(counts, lengths, data[kept])


def _split_one_by_one(rows: Sequence[bytes | None], levels: NDArray[np.int8]) -> JSONLists:
    """Return the elements of lists with any JSON in them; a row that is no list is missing."""
    texts: list[bytes] = []
    counts: list[int] = []
    valid: list[bool] = []
    for row, level in zip(rows, levels.tolist(), strict=True):
        elements = _elements(row, level)
        valid.append(elements is not None)
        counts.append(len(elements or ()))
        texts += map(orjson.dumps, elements or ())
    lengths = [*map(len, texts)]
    return JSONLists(counts, lengths, b"".join(texts), np.packbits(valid, bitorder="little"))


def _elements(row: bytes | None, level: int) -> list[Any] | None:
    """Return the elements of a JSON list; None if it is none."""
    try:
        value = orjson.loads(row or b"")
        if level == 2 and value:
            value = value[0]
    except (ValueError, KeyError, TypeError):
        return None
    return value if isinstance(value, list) else None


def varint_lists(rows: Sequence[bytes]) -> list[bytes]:
    """Return lists of numbers as JSON, given as unsigned LEB128 (:mod:`tunedb.programs.ansor`)."""
    data = np.frombuffer(b"".join(rows), np.uint8)
    is_end = data < 128
    ends = np.flatnonzero(is_end) + 1
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    number: NDArray[np.int64] = np.cumsum(is_end, dtype=np.int64) - is_end
    if not len(ends):
        return [b"[]"] * len(rows)
    known = number < len(ends)
    place = np.arange(len(data))[known] - starts[number[known]]
    parts = (data[known] & 127).astype(np.int64) << np.minimum(7 * place, 63)
    texts = [b"%d" % value for value in np.add.reduceat(parts, starts).tolist()]
    sizes = np.fromiter(map(len, rows), np.int64, len(rows))
    last = np.searchsorted(ends, np.cumsum(sizes), side="right").tolist()
    first = [0, *last[:-1]]
    return [b"[%b]" % b",".join(texts[a:b]) for a, b in zip(first, last, strict=True)]

"""Tables of a store as files: Parquet, Arrow and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any

import orjson

from ..errors import UsageError

if TYPE_CHECKING:
    from ..storage.arrow import Table

#: Formats of :func:`write_table`.
TABLE_FORMATS = ("parquet", "arrow", "csv")


def require_format(format_: str) -> None:
    """Raise UsageError if the package that writes a format is not installed."""
    if format_ == "parquet":
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError:
            raise UsageError("Parquet needs PyArrow; run: pip install pyarrow") from None


def write_table(table: Table, format_: str, out: IO[bytes]) -> None:
    """Write a table.

    Parameters
    ----------
    table : Table
        The table.
    format_ : str
        ``parquet``, ``arrow`` (a stream of Arrow's IPC format) or ``csv`` (UTF-8, with a line of
        names; lists are JSON, and control characters are escaped).
    out : binary file
        Destination.

    Raises
    ------
    UsageError
        The format needs a package that is not installed.
    """
    require_format(format_)
    if format_ == "parquet":
        _write_parquet(table, out)
    elif format_ == "arrow":
        _write_arrow(table, out)
    else:
        _write_csv(table, out)


def _write_parquet(table: Table, out: IO[bytes]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    read = pa.table(table)
    units = {column.name: {b"unit": column.unit.encode()} for column in table.columns}
    fields = [f.with_metadata(units[f.name]) if units[f.name][b"unit"] else f for f in read.schema]
    pq.write_table(read.cast(pa.schema(fields)), out, compression="zstd")


class _Destination:
    """A file that keeps its error, of which nanoarrow's own error has the text alone."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return self._out.write(data)
        except OSError as error:
            self.error = error
            raise


def _write_arrow(table: Table, out: IO[bytes]) -> None:
    from nanoarrow.ipc import StreamWriter

    destination = _Destination(out)
    try:
        with StreamWriter.from_writable(destination) as writer:
            writer.write_stream(table)
    except RuntimeError:
        if destination.error is None:
            raise
        raise destination.error from None


def _write_csv(table: Table, out: IO[bytes]) -> None:
    import nanoarrow as na

    stream = io.TextIOWrapper(out, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([column.name for column in table.columns])
    rows: Iterable[tuple[Any, ...]] = na.ArrayStream(table).iter_tuples()
    writer.writerows([_cell(value) for value in row] for row in rows)
    stream.detach()


def _cell(value: Any) -> Any:
    """Return a value as CSV holds it."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, list):
        value = orjson.dumps(value).decode()
    if isinstance(value, str) and not value.isprintable():
        # The file may be shown in a terminal, and strangers choose names and messages.
        escaped = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in value)
        return "".join(escaped)
    return value

"""Output of data: tables for people; JSON, JSON Lines and CSV for programs.

Data goes to stdout, messages go to stderr. A table has borders and colours on a terminal and is
plain aligned text elsewhere, never shortened. The keys of JSON and CSV are API, under test.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import click

from ..system.one_line import shorten
from ..system.text import clean, plain
from .options import Settings, settings_of

F = TypeVar("F", bound=Callable[..., Any])
Row = Mapping[str, Any]

#: Least width of a flexible column in a table that is too wide for the terminal.
_LEAST = 8


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a command's output.

    Parameters
    ----------
    key : str
        Key in JSON and CSV.
    title : str or None
        Title in a table; None hides the column there.
    show : callable
        Value → text in a table.
    right : bool
        Align the column right.
    flexible : bool
        Shorten the column if the terminal is too narrow.
    keep_end : bool
        Keep the end of a shortened value, as for paths.
    fold : bool
        On a terminal, print a value that all rows share above the table.
    least : int
        Least width of a terminal that shows the column.
    """

    key: str
    title: str | None = None
    show: Callable[[Any], str] = plain
    right: bool = False
    flexible: bool = False
    keep_end: bool = False
    fold: bool = False
    least: int = 0


def _set_output(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if not value:
        return
    settings = settings_of(context)
    if settings.output not in ("table", parameter.name):
        raise click.UsageError("give only one of --json, --jsonl and --csv", context)
    settings.output = str(parameter.name)


_OUTPUT = {
    "json": "Print JSON; times in seconds.",
    "jsonl": "Print one JSON object in each line.",
    "csv": "Print CSV; times in seconds.",
}


def output_options(function: F) -> F:
    """Add ``--json``, ``--jsonl`` and ``--csv`` to a command."""
    for name, text in reversed(_OUTPUT.items()):
        function = click.option(
            f"--{name}",
            is_flag=True,
            expose_value=False,
            callback=_set_output,
            help=text,
        )(function)
    return function


def print_rows(
    settings: Settings,
    columns: Sequence[Column],
    rows: Iterable[Row],
    *,
    empty: str = "nothing",
    total: Row | None = None,
    show: Callable[[], None] | None = None,
) -> None:
    """Print rows in the format of the options.

    Parameters
    ----------
    settings : Settings
        The output format.
    columns : sequence of Column
        The data, in order.
    rows : iterable of mapping
        Key → value.
    empty : str
        Message on stderr instead of an empty table.
    total : mapping or None
        A last row for tables.
    show : callable or None
        Prints the rows for people, if that is not one table of them.
    """
    if settings.output == "csv":
        _print_csv(columns, rows)
    elif settings.output == "jsonl":
        for row in rows:
            click.echo(json.dumps(_values(columns, row)))
    elif settings.output == "json":
        _print_json([_values(columns, row) for row in rows])
    elif show is not None:
        show()
    else:
        table = list(rows)
        if not table:
            settings.note(empty)
            return
        print_table(columns, table, total)


def print_object(
    settings: Settings, columns: Sequence[Column], row: Row, show: Callable[[], None]
) -> None:
    """Print one object in the format of the options; `show` prints it for people."""
    if settings.output == "csv":
        _print_csv(columns, [row])
    elif settings.output == "jsonl":
        click.echo(json.dumps(_values(columns, row)))
    elif settings.output == "json":
        _print_json(_values(columns, row))
    else:
        show()


def _values(columns: Sequence[Column], row: Row) -> dict[str, Any]:
    return {column.key: row[column.key] for column in columns}


def _print_json(value: Any) -> None:
    # ASCII output escapes control characters and what the terminal cannot encode.
    click.echo(json.dumps(value, indent=2))


def _print_csv(columns: Sequence[Column], rows: Iterable[Row]) -> None:
    writer = csv.writer(_ClickStream(), lineterminator="\n")
    writer.writerow([column.key for column in columns])
    for row in rows:
        writer.writerow([_csv_cell(row[column.key]) for column in columns])


class _ClickStream:
    """Stream for the CSV writer that prints through click."""

    def write(self, text: str) -> int:
        """Print one row."""
        click.echo(text, nl=False)
        return len(text)


def _csv_cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | dict | tuple):
        return json.dumps(value, separators=(",", ":"))
    return repr(value) if isinstance(value, float) else clean(str(value))


def is_terminal() -> bool:
    """Return True if stdout is a terminal."""
    return sys.stdout.isatty()


def print_table(columns: Sequence[Column], rows: Sequence[Row], total: Row | None = None) -> None:
    """Print a table for people."""
    visible = [column for column in columns if column.title is not None]
    if is_terminal():
        from shutil import get_terminal_size

        width = get_terminal_size().columns
        visible = _fold([column for column in visible if column.least <= width], rows)
    cells = [[column.show(row[column.key]) for column in visible] for row in rows]
    last = None if total is None else [_total_cell(column, total) for column in visible]
    if is_terminal():
        _print_rich(visible, cells, last)
    else:
        _print_plain(visible, cells if last is None else [*cells, last])


def _fold(columns: list[Column], rows: Sequence[Row]) -> list[Column]:
    """Print the values that all rows share, and return the other columns."""
    common = [
        column
        for column in columns
        if column.fold and all(row[column.key] == rows[0][column.key] for row in rows)
    ]
    known = [column for column in common if rows[0][column.key] is not None]
    if known:
        width = max(len(column.title or "") for column in known)
        for column in known:
            label = bold((column.title or "").ljust(width))
            click.echo(f"{label}  {column.show(rows[0][column.key])}")
        click.echo()
    return [column for column in columns if column not in common]


def _total_cell(column: Column, total: Row) -> str:
    return column.show(total[column.key]) if column.key in total else ""


def _widths(columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> list[int]:
    return [
        max(len(column.title or ""), *(len(row[i]) for row in cells))
        for i, column in enumerate(columns)
    ]


def _print_plain(columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> None:
    widths = _widths(columns, cells)
    for row in [[column.title or "" for column in columns], *cells]:
        parts = [
            cell.rjust(width) if column.right else cell.ljust(width)
            for column, cell, width in zip(columns, row, widths, strict=True)
        ]
        click.echo("  ".join(parts).rstrip())


#: rich's "box": a line under the titles and one above the totals.
_BOX = "    \n    \n ── \n    \n ── \n    \n    \n    \n"


def _print_rich(columns: Sequence[Column], cells: list[list[str]], last: list[str] | None) -> None:
    from rich.box import Box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    rows = cells if last is None else [*cells, last]
    widths = _fit(columns, _widths(columns, rows), console.width)
    visible = [i for i, width in enumerate(widths) if width]
    columns, widths = [columns[i] for i in visible], [widths[i] for i in visible]
    rows = [[row[i] for i in visible] for row in rows]
    table = Table(
        box=Box(_BOX),
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        header_style="bold",
        border_style="dim",
    )
    for column, width in zip(columns, widths, strict=True):
        justify: Literal["left", "right"] = "right" if column.right else "left"
        table.add_column(
            shorten(column.title or "", width), justify=justify, width=width, no_wrap=True
        )
    for i, row in enumerate(rows):
        parts = zip(columns, row, widths, strict=True)
        table.add_row(
            *(
                Text(shorten(cell, width, "end" if column.keep_end else "start"))
                for column, cell, width in parts
            ),
            style="bold" if i == len(cells) else None,
            end_section=last is not None and i == len(cells) - 1,
        )
    console.print(table)


def _fit(columns: Sequence[Column], widths: list[int], available: int) -> list[int]:
    """Return the widths, with flexible columns narrowed so that the table fits.

    If that is not enough, the last flexible columns get width 0; numbers are never cut.
    """
    # Two spaces separate columns.
    over = sum(widths) + 2 * (len(widths) - 1) - available
    flexible = [i for i, column in enumerate(columns) if column.flexible]
    while over > 0 and flexible:
        widest = max(flexible, key=lambda i: widths[i])
        if widths[widest] > _LEAST:
            widths[widest] -= 1
            over -= 1
        else:
            dropped = flexible.pop()
            over -= widths[dropped] + 2
            widths[dropped] = 0
    return widths


def print_fields(fields: Sequence[tuple[str, str]], *, heading: str | None = None) -> None:
    """Print labelled values for people, labels in bold on a terminal."""
    if heading is not None:
        click.echo(bold(heading))
    width = max((len(label) for label, _ in fields), default=0)
    for label, value in fields:
        click.echo(f"{bold(label.ljust(width))}  {value}")


def bold(text: str) -> str:
    """Return text in bold if stdout is a terminal that supports it."""
    import os

    if not is_terminal() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return click.style(text, bold=True)

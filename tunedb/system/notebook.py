"""HTML of objects in notebooks: plain tables without script, style or link.

Names and messages may be a stranger's, so every text is escaped and cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from .one_line import printable, short

#: Rows of a table; the others are counted.
_ROWS = 20


def facts_html(title: str, facts: Iterable[tuple[str, Any]]) -> str:
    """Return a table of names and values; values that are None are left out."""
    rows = "".join(
        f"<tr><th>{_cell(name)}</th><td>{_cell(value)}</td></tr>"
        for name, value in facts
        if value is not None
    )
    return f"<table><caption>{_cell(title)}</caption>{rows}</table>"


def rows_html(title: str, names: Sequence[str], rows: Iterable[Sequence[Any]], total: int) -> str:
    """Return a table of the first rows of `total`."""
    head = "".join(f"<th>{_cell(name)}</th>" for name in names)
    shown = [
        f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in row)}</tr>"
        for row in islice(rows, _ROWS)
    ]
    more = total - len(shown)
    foot = f"<p>{more:,} more rows</p>" if more > 0 else ""
    return f"<table><caption>{_cell(title)}</caption><tr>{head}</tr>{''.join(shown)}</table>{foot}"


def _cell(value: Any) -> str:
    """Return a value as HTML."""
    # A command that prints no HTML need not load the tables of entities.
    from html import escape

    if value is None:
        return ""
    if isinstance(value, str):
        return escape(printable(value))
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return escape(short(value))

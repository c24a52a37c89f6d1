"""What ``tunedb push`` and ``tunedb pull`` have in common: options, the other side, the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .. import text
from ..options import Settings, reading, updating, writing
from ..output import Column, print_object, print_table
from ..progress import progress_bar

if TYPE_CHECKING:
    from ...exchange.merge import MergeReport
    from ...storage.store import Store

F = TypeVar("F", bound=Callable[..., Any])

#: Characters of a database's key in a table.
_SHORT = 8

#: Reasons for which records were refused that are named for people; JSON has all.
_MOST_REASONS = 10

_NUMBERS = ("new", "known", "rejected")
#: Number of a merge → what it is of, for the sentence that says what came.
_NOUNS = {
    "aliases": "alias",
    "failures": "failure",
    "launches": "launch",
    "retractions": "retraction",
    "features": "feature",
}

_OTHERS = (
    *("workloads", "programs", "failures", "launches", "aliases", "features", "retractions"),
    "moved",
)

COLUMNS = tuple(
    map(
        Column,
        (
            *("location", "store", "dry_run", "read", *_NUMBERS, "sources", "reasons"),
            *(*_OTHERS, "bytes", "seconds"),
        ),
    )
)

_OPTIONS = (
    click.option("--dry-run", is_flag=True, help="Report what would be exchanged; write nothing."),
    click.option(
        "--full", is_flag=True, help="Compare all records, not only those since the last exchange."
    ),
)


def exchange_options(function: F) -> F:
    """Give a command ``--dry-run`` and ``--full``."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def exchange(
    settings: Settings,
    url: str | None,
    work: Callable[[Store, str, Callable[[MergeReport], None]], MergeReport],
    *,
    is_pull: bool,
    dry_run: bool,
) -> None:
    """Exchange records with the other side, and tell what came of it.

    The command ends with 1 if some were refused.

    Parameters
    ----------
    settings : Settings
        Which database, and how to print.
    url : str or None
        The other side, where the command names it.
    work : callable
        Called with the database, the other side, and what shows progress.
    is_pull : bool
        Whether records come here; then the database is made where it is missing.
    dry_run : bool
        Whether nothing is written.
    """
    from ...storage.config import locate_server

    there = locate_server(url).url
    opened = receiving(settings, dry_run=dry_run) if is_pull else updating(settings)
    with opened as store, progress_bar(settings, None) as progress:

        def show(report: MergeReport) -> None:
            progress.resize(report.total)
            progress.update(report.read)

        report = work(store, there, show)
        ours = store.key
    row = report_row(report)
    print_object(settings, COLUMNS, row, lambda: show_sources([row], ours))
    tell(settings, row, is_pull=is_pull)
    if row["rejected"]:
        raise click.exceptions.Exit(1)


@contextmanager
def receiving(settings: Settings, *, dry_run: bool) -> Iterator[Store]:
    """Open the database; a dry run compares with an empty one where there is none."""
    from ...storage.engine import parse_url, sqlite_path
    from ...storage.store import Store

    path = sqlite_path(parse_url(settings.locate().url))
    if dry_run and path is not None and not path.exists():
        settings.note(f"{path} does not exist yet: everything is new")
        with Store(":memory:") as store:
            yield store
        return
    with (reading if dry_run else writing)(settings) as store:
        yield store


def report_row(report: MergeReport) -> dict[str, Any]:
    """Return a report as JSON has it."""
    return {
        "location": report.location,
        "store": report.store_key,
        "sources": [
            {"digest": digest.hex(), **asdict(tally)} for digest, tally in report.sources.items()
        ],
        "reasons": [
            {"reason": reason, **asdict(found)} for reason, found in report.reasons.items()
        ],
        **{
            name: getattr(report, name)
            for name in ("dry_run", "read", *_NUMBERS, *_OTHERS, "bytes", "seconds")
        },
    }


def show_sources(rows: Sequence[dict[str, Any]], ours: str) -> None:
    """Print the sources of reports for people; those of several name their databases."""
    found = [{**source, "location": row["location"]} for row in rows for source in row["sources"]]
    if not found:
        return
    columns = [
        Column("name", "source", _source_name, flexible=True, keep_end=True),
        Column("store", "of", lambda key: "ours" if key == ours else text.clean(key[:_SHORT])),
        *(Column(name, name, text.number, right=True) for name in _NUMBERS),
    ]
    if len(rows) > 1:
        columns.insert(0, Column("location", "from", text.short_path, flexible=True, keep_end=True))
    numbers: tuple[str, ...] = _NUMBERS
    if any(row["aliases"] for row in found):
        numbers = (*numbers, "aliases")
        columns.append(Column("aliases", "aliases", text.number, right=True))
    total = {name: sum(row[name] for row in found) for name in numbers} | {columns[0].key: "total"}
    print_table(columns, found, total if len(found) > 1 else None)


def _source_name(name: str) -> str:
    """Return a source's name; records whose source was not taken have none."""
    return text.short_path(name) if name else text.NOTHING


def tell(settings: Settings, row: dict[str, Any], *, is_pull: bool) -> None:
    """Say in a sentence what came of it, and what was refused."""
    other = f"{'from' if is_pull else 'to'} {row['location']}"
    would = "would be " if row["dry_run"] else ""
    parts = [text.count(row[name], noun) for name, noun in _NOUNS.items() if row[name]]
    if row["new"]:
        parts.insert(0, text.count(row["new"], "new record"))
    if parts:
        settings.note(f"{', '.join(parts)} {would}{other} in {text.span(row['seconds'])}")
    else:
        settings.note(f"nothing new {'from' if is_pull else 'for'} {row['location']}")
    for reason in row["reasons"][:_MOST_REASONS]:
        settings.warn(
            f"{text.count(reason['count'], 'row')} rejected: {reason['reason']}"
            f" (the first: {reason['example']})"
        )
    if len(row["reasons"]) > _MOST_REASONS:
        settings.warn(f"and {len(row['reasons']) - _MOST_REASONS} more reasons (--json has all)")

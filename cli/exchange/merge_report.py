"""Reports of ``tunedb merge``, ``tunedb push`` and ``tunedb pull``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ...system import text
from ..options import Settings
from ..output import Column, print_table
from ..progress import ProgressBar

if TYPE_CHECKING:
    from ...exchange.merge import MergeReport

#: Characters of a database's key in a table.
_SHORT = 8

#: Largest number of printed reasons for rejections; JSON has all.
_MAX_REASONS = 10

_NUMBERS = ("new", "known", "rejected")
#: Key of a count → its noun in the summary.
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


def show_progress(progress: ProgressBar) -> Callable[[MergeReport], None]:
    """Return a callback that moves a bar to a report's position."""

    def show(report: MergeReport) -> None:
        progress.resize(report.total)
        progress.update(report.read)

    return show


def report_row(report: MergeReport) -> dict[str, Any]:
    """Return a report as JSON."""
    return {
        "location": report.location,
        "store": report.store_key,
        "sources": [
            {"digest": digest.hex(), **asdict(tally)} for digest, tally in report.sources.items()
        ],
        "reasons": [
            {"reason": reason, **asdict(tally)} for reason, tally in report.reasons.items()
        ],
        **{
            name: getattr(report, name)
            for name in ("dry_run", "read", *_NUMBERS, *_OTHERS, "bytes", "seconds")
        },
    }


def print_sources(rows: Sequence[dict[str, Any]], key: str) -> None:
    """Print the sources of reports; `key` is that of the user's own database."""
    sources = [{**source, "location": row["location"]} for row in rows for source in row["sources"]]
    if not sources:
        return
    columns = [
        Column("name", "source", _source_name, flexible=True, keep_end=True),
        Column("store", "database", lambda k: "ours" if k == key else text.clean(k[:_SHORT])),
        *(Column(name, name, text.number, right=True) for name in _NUMBERS),
    ]
    if len(rows) > 1:
        columns.insert(0, Column("location", "from", text.short_path, flexible=True, keep_end=True))
    numbers: tuple[str, ...] = _NUMBERS
    if any(row["aliases"] for row in sources):
        numbers = (*numbers, "aliases")
        columns.append(Column("aliases", "aliases", text.number, right=True))
    total = {name: sum(row[name] for row in sources) for name in numbers} | {
        columns[0].key: "total"
    }
    print_table(columns, sources, total if len(sources) > 1 else None)


def _source_name(name: str) -> str:
    """Return a source's name; the source of rejected records has none."""
    return text.short_path(name) if name else text.NOTHING


def print_notes(settings: Settings, row: dict[str, Any], *, is_pull: bool) -> None:
    """Print a summary and the reasons for rejections on stderr."""
    other = f"{'from' if is_pull else 'to'} {row['location']}"
    would = "would be " if row["dry_run"] else ""
    counts = [text.count(row[name], noun) for name, noun in _NOUNS.items() if row[name]]
    if row["new"]:
        counts.insert(0, text.count(row["new"], "new record"))
    if counts:
        settings.note(f"{', '.join(counts)} {would}{other} in {text.span(row['seconds'])}")
    else:
        settings.note(f"nothing new {'from' if is_pull else 'for'} {row['location']}")
    for reason in row["reasons"][:_MAX_REASONS]:
        settings.warn(
            f"{text.count(reason['count'], 'row')} rejected: {reason['reason']}"
            f" (first: {reason['example']})"
        )
    if len(row["reasons"]) > _MAX_REASONS:
        settings.warn(f"and {len(row['reasons']) - _MAX_REASONS} more reasons (--json has all)")

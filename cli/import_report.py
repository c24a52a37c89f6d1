"""What ``tunedb import logs`` tells when it ends."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from . import text
from .options import Settings
from .output import Column, print_rows, print_table

if TYPE_CHECKING:
    from ..logs.base import LogFile
    from ..logs.importer import ImportReport, Tally
    from ..records import Quarantined

#: Bad lines that are named on stderr; the others are counted.
_MOST_LINES = 5
#: Reasons and files that are named there.
_MOST_REASONS = 10
_MOST_FILES = 50

#: Files that a table has a row each for; those of more are summed up.
_FEW_FILES = 20

#: Columns that a table has only where there is something to count.
_RARE = ("failed", "unmeasured", "launches", "quarantined")

_NUMBERS = ("read", "new", "known", "failed", "unmeasured", "launches")

COLUMNS = tuple(
    map(
        Column,
        (
            *("path", "source", *_NUMBERS, "workloads", "skipped", "quarantined"),
            *("groups", "reasons", "remarks", "refused", "dry_run"),
        ),
    )
)

_TABLE = (
    Column("path", "file", flexible=True, keep_end=True),
    Column("format", "format"),
    Column("target", "target", flexible=True),
    Column("files", "files", text.number, right=True),
    *(Column(name, name, text.number, right=True) for name in (*_NUMBERS, "quarantined")),
)


@dataclass
class Run:
    """What happened so far, also when it is interrupted."""

    dry_run: bool = False
    files: list[LogFile] = field(default_factory=list)
    results: list[tuple[ImportReport, str]] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    bad: list[Quarantined] = field(default_factory=list)
    read: int = 0
    new: int = 0
    quarantined: int = 0
    started: float = field(default_factory=time.monotonic)

    def skip(self, name: str, reason: str) -> None:
        """Remember what a search could not look at."""
        self.skipped.append((name, reason))

    def begin(self, file: LogFile, source: str) -> ImportReport:
        """Return the report of a file that is imported now."""
        from ..logs.importer import ImportReport

        report = ImportReport(file.name)
        self.results.append((report, source))
        return report

    def finish(self, report: ImportReport) -> None:
        """Count what a file held."""
        total = report.total
        self.read += total.read
        self.new += total.new
        self.quarantined += report.quarantined
        self.bad += report.bad[: _MOST_LINES - len(self.bad)]
        # Each may have a mebibyte, and there may be thousands of files.
        report.bad.clear()

    @property
    def refused(self) -> list[tuple[str, str]]:
        """Files that were not read, or not to their end, with the reason."""
        reports = ((report.file, report.refused) for report, _ in self.results)
        return [(file, reason) for file, reason in reports if reason is not None]

    @property
    def imported(self) -> int:
        """How many files held something, be it known."""
        return sum(bool(report.groups or report.workloads) for report, _ in self.results)

    @property
    def is_empty(self) -> bool:
        """Whether there was nothing to import in any file."""
        return not self.imported

    def check(self) -> None:
        """Raise FormatError if files were refused and there was nothing in any other."""
        from ..errors import FormatError

        refused = self.refused
        if refused and self.is_empty:
            if len(self.results) == 1:
                raise FormatError(": ".join(refused[0]))
            raise FormatError(f"nothing to import in {text.count(len(self.results), 'file')}")

    def stopped_at(self) -> str:
        """Return where an interrupt came, what is stored and how to go on."""
        where = "before the first file"
        if self.results:
            where = f"in file {len(self.results):,} of {len(self.files):,}"
        kept = "nothing was written"
        if not self.dry_run:
            kept = f"{text.count(self.new, 'new record')} stored"
        return f"{where}: {kept}; the same command goes on from there"


def tell(settings: Settings, run: Run) -> None:
    """Print the summary, and on stderr what was not understood."""
    reports = [_row(report, source, dry_run=run.dry_run) for report, source in run.results]
    print_rows(settings, COLUMNS, reports, show=lambda: _show(run))
    refused = run.refused
    if not run.is_empty:
        _tell_rate(settings, run)
    if refused and (len(run.results) > 1 or not run.is_empty):
        _tell_files(settings, refused, "not read, or not to the end")
    if run.skipped:
        _tell_files(settings, run.skipped, "not looked at")
    remarks = [(report.file, text_) for report, _ in run.results for text_ in report.remarks]
    if remarks:
        _tell_files(settings, remarks, "to know of", "thing")
    _tell_lines(settings, run)
    if run.dry_run:
        settings.note("dry run: nothing was written")


def _row(report: ImportReport, source: str, *, dry_run: bool) -> dict[str, Any]:
    return {
        "path": report.file,
        "source": source,
        **_numbers(report.total),
        "workloads": report.workloads,
        "skipped": report.skipped,
        "quarantined": report.quarantined,
        "groups": [
            {"format": format_, "target": target, **_numbers(tally)}
            for (format_, target), tally in report.groups.items()
        ],
        "reasons": report.reasons,
        "remarks": report.remarks,
        "refused": report.refused,
        "dry_run": dry_run,
    }


def _numbers(tally: Tally) -> dict[str, int]:
    return {name: getattr(tally, name) for name in _NUMBERS}


def _show(run: Run) -> None:
    """Print a row for each file, format and target, or without the files if they are many."""
    rows = [row for report, _ in run.results for row in _rows_of(report)]
    if not rows:
        return
    total = {key: sum(row[key] for row in rows) for key in (*_NUMBERS, "quarantined")}
    total["files"] = run.imported
    columns = _TABLE
    if len(run.results) > _FEW_FILES:
        rows = _without_files(rows)
        columns = tuple(column for column in columns if column.key != "path")
        label = {"format": "total"}
    else:
        columns = tuple(column for column in columns if column.key != "files")
        label = {"path": "total"}
    unused = [k for k in _RARE if not total[k]]
    columns = tuple(column for column in columns if column.key not in unused)
    print_table(columns, rows, total | label if len(rows) > 1 else None)


def _rows_of(report: ImportReport) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file: one for each format and target.

    A line that was not understood has neither, so those of a file with several have a row.
    """
    bad = report.quarantined
    for (format_, target), tally in report.groups.items():
        alone = bad if len(report.groups) == 1 else 0
        yield {
            **{"path": report.file, "format": format_, "target": target, "files": 1},
            **_numbers(tally),
            "quarantined": alone,
        }
    if (bad and len(report.groups) != 1) or (report.workloads and not report.groups):
        yield {
            **{"path": report.file, "format": None, "target": None, "files": 1},
            **dict.fromkeys(_NUMBERS, 0),
            "quarantined": bad,
        }


def _without_files(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the sums of the rows of each format and target, most records first."""
    sums: dict[tuple[str | None, str | None], dict[str, Any]] = {}
    formats: Counter[str | None] = Counter()
    for row in rows:
        if row["format"] is None and not row["quarantined"]:
            continue  # a file of workloads
        found = sums.setdefault((row["format"], row["target"]), {**row, **_ZERO})
        for key in _ZERO:
            found[key] += row[key]
        formats[row["format"]] += row["read"]
    return sorted(sums.values(), key=lambda row: (-formats[row["format"]], -row["read"]))


_ZERO = dict.fromkeys(("files", *_NUMBERS, "quarantined"), 0)


def _tell_rate(settings: Settings, run: Run) -> None:
    seconds = time.monotonic() - run.started
    rate = f" ({run.read / seconds:,.0f}/s)" if seconds >= 1 else ""
    read = f"{text.count(run.read, 'record')} in {text.count(run.imported, 'file')}"
    new = "would be new" if run.dry_run else "new"
    settings.note(f"{read}, {run.new:,} {new}, in {text.span(seconds)}{rate}")


def _tell_files(
    settings: Settings, files: list[tuple[str, str]], what: str, of: str = "file"
) -> None:
    settings.warn(f"{text.count(len(files), of)} {what}")
    for name, reason in files[:_MOST_FILES]:
        click.echo(text.clean(f"  {name}: {reason}"), err=True)
    _tell_rest(len(files) - _MOST_FILES)


def _tell_lines(settings: Settings, run: Run) -> None:
    """Say how many lines were not understood, the first of them, all reasons, how to go on."""
    if not run.quarantined:
        return
    settings.warn(f"{text.count(run.quarantined, 'line')} not understood")
    for row in run.bad:
        click.echo(text.clean(f"  {row.file}:{row.line}: {row.reason}"), err=True)
    rest = run.quarantined - len(run.bad)
    _tell_rest(rest)
    if rest > 0:
        reasons: Counter[str] = Counter()
        for report, _ in run.results:
            reasons.update(report.reasons)
        click.echo("  Reasons of all of them:", err=True)
        width = len(f"{max(reasons.values()):,}")
        for reason, number in reasons.most_common(_MOST_REASONS):
            click.echo(text.clean(f"  {number:>{width},}  {reason}"), err=True)
        _tell_rest(len(reasons) - _MOST_REASONS, " reasons")
    kept = "would be kept" if run.dry_run else "are kept: tunedb quarantine"
    click.echo(f"  The lines {kept}", err=True)


def _tell_rest(number: int, what: str = "") -> None:
    if number > 0:
        click.echo(f"  and {number:,} more{what}", err=True)

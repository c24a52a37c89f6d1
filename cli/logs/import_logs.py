"""``tunedb import logs``."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from ...system import text
from ..interrupt import interrupted
from ..lazy import LazyGroup
from ..options import Settings, common_options, pass_settings, receiving
from ..output import Column, output_options, print_rows, print_table
from ..progress import ProgressBar, progress_bar

if TYPE_CHECKING:
    from ...formats.base import LogFile
    from ...formats.importer import ImportReport, Tally
    from ...records import Quarantined, Trust
    from ...storage.store import Store

# ---- Report --------------------------------------------------------------------------------------

#: Largest number of quarantined lines on stderr; the others are counted.
_MAX_LINES = 5
#: Largest numbers of reasons and files on stderr.
_MAX_REASONS = 10
_MAX_FILES = 50

#: Largest number of files with a row each; a table of more files sums them up.
_MAX_FILE_ROWS = 20

#: Columns that a table shows only if they are not all 0.
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
class ImportRun:
    """State of a run of ``tunedb import logs``, which an interrupt may end."""

    dry_run: bool = False
    files: list[LogFile] = field(default_factory=list)
    results: list[tuple[ImportReport, str]] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    bad: list[Quarantined] = field(default_factory=list)
    read: int = 0
    new: int = 0
    quarantined: int = 0
    started: float = field(default_factory=time.monotonic)
    _unfinished: dict[int, ImportReport] = field(default_factory=dict)

    def skip(self, name: str, reason: str) -> None:
        """Record a path that the search could not read."""
        self.skipped.append((name, reason))

    def begin(self, file: LogFile, source: str) -> ImportReport:
        """Start a file; return its report."""
        from ...formats.importer import ImportReport

        report = ImportReport(file.name)
        self.results.append((report, source))
        self._unfinished[id(report)] = report
        return report

    def finish(self, report: ImportReport) -> None:
        """Add the report of a finished file to the totals."""
        del self._unfinished[id(report)]
        total = report.total
        self.read += total.read
        self.new += total.new
        self.quarantined += report.quarantined
        self.bad += report.bad[: _MAX_LINES - len(self.bad)]
        # A line may have a mebibyte, and there may be thousands of files.
        report.bad.clear()

    def close(self) -> None:
        """Finish the files of which a part is stored."""
        for report in list(self._unfinished.values()):
            self.finish(report)

    @property
    def stored(self) -> int:
        """Number of records that are stored so far, new or known."""
        return self.read + sum(report.total.read for report in self._unfinished.values())

    @property
    def refused(self) -> list[tuple[str, str]]:
        """Files that were not read completely, with the reason."""
        reports = ((report.file, report.refused) for report, _ in self.results)
        return [(file, reason) for file, reason in reports if reason is not None]

    @property
    def imported(self) -> int:
        """Number of files with records or workloads, new or known."""
        return sum(bool(report.groups or report.workloads) for report, _ in self.results)

    @property
    def is_empty(self) -> bool:
        """True if no file had a record or workload."""
        return not self.imported

    def check(self) -> None:
        """Raise FormatError if files were refused and no other file had a record or workload."""
        from ...errors import FormatError

        refused = self.refused
        if refused and self.is_empty:
            if len(self.results) == 1:
                raise FormatError(": ".join(refused[0]))
            raise FormatError(f"nothing to import in {text.count(len(self.results), 'file')}")

    def stopped_at(self) -> str:
        """Return the place of an interrupt, the number of stored records and how to continue."""
        place = "before the first file"
        if self.results:
            place = f"in file {len(self.results):,} of {len(self.files):,}"
        stored = "nothing was written"
        if not self.dry_run:
            stored = f"{text.count(self.new, 'new record')} stored"
        return f"{place}: {stored}; run the same command again to continue there"


def print_report(settings: Settings, run: ImportRun) -> None:
    """Print the summary, and problems on stderr."""
    reports = [_row(report, source, dry_run=run.dry_run) for report, source in run.results]
    print_rows(settings, COLUMNS, reports, show=lambda: _show(run))
    refused = run.refused
    if not run.is_empty:
        _note_rate(settings, run)
    if refused and (len(run.results) > 1 or not run.is_empty):
        _warn_of_files(settings, refused, "not read completely")
    if run.skipped:
        _warn_of_files(settings, run.skipped, "skipped")
    remarks = [(report.file, text_) for report, _ in run.results for text_ in report.remarks]
    if remarks:
        _warn_of_files(settings, remarks, "on imported files", "remark")
    _warn_of_lines(settings, run)
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


def _show(run: ImportRun) -> None:
    """Print a row for each file, format and target; sum up the files if they are many."""
    rows = [row for report, _ in run.results for row in _rows_of(report)]
    if not rows:
        return
    total = {key: sum(row[key] for row in rows) for key in (*_NUMBERS, "quarantined")}
    total["files"] = run.imported
    columns = _TABLE
    if len(run.results) > _MAX_FILE_ROWS:
        rows = _sum_files(rows)
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

    Quarantined lines have neither; in a file with several rows they have their own.
    """
    quarantined = report.quarantined
    for (format_, target), tally in report.groups.items():
        is_only = len(report.groups) == 1
        yield {
            **{"path": report.file, "format": format_, "target": target, "files": 1},
            **_numbers(tally),
            "quarantined": quarantined if is_only else 0,
        }
    if (quarantined and len(report.groups) != 1) or (report.workloads and not report.groups):
        yield {
            **{"path": report.file, "format": None, "target": None, "files": 1},
            **dict.fromkeys(_NUMBERS, 0),
            "quarantined": quarantined,
        }


def _sum_files(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the sums of the rows of each format and target, most records first."""
    sums: dict[tuple[str | None, str | None], dict[str, Any]] = {}
    formats: Counter[str | None] = Counter()
    for row in rows:
        if row["format"] is None and not row["quarantined"]:
            continue  # a file with workloads alone
        total = sums.setdefault((row["format"], row["target"]), {**row, **_ZERO})
        for key in _ZERO:
            total[key] += row[key]
        formats[row["format"]] += row["read"]
    return sorted(sums.values(), key=lambda row: (-formats[row["format"]], -row["read"]))


_ZERO = dict.fromkeys(("files", *_NUMBERS, "quarantined"), 0)


def _note_rate(settings: Settings, run: ImportRun) -> None:
    seconds = time.monotonic() - run.started
    rate = f" ({run.read / seconds:,.0f}/s)" if seconds >= 1 else ""
    read = f"{text.count(run.read, 'record')} in {text.count(run.imported, 'file')}"
    new = "would be new" if run.dry_run else "new"
    settings.note(f"{read}, {run.new:,} {new}, in {text.span(seconds)}{rate}")


def _warn_of_files(
    settings: Settings, files: list[tuple[str, str]], problem: str, noun: str = "file"
) -> None:
    settings.warn(f"{text.count(len(files), noun)} {problem}")
    for name, reason in files[:_MAX_FILES]:
        click.echo(text.clean(f"  {name}: {reason}"), err=True)
    _count_rest(len(files) - _MAX_FILES)


def _warn_of_lines(settings: Settings, run: ImportRun) -> None:
    """Print the number of quarantined lines, the first ones, all reasons and the next command."""
    if not run.quarantined:
        return
    settings.warn(f"{text.count(run.quarantined, 'line')} not understood")
    for row in run.bad:
        click.echo(text.clean(f"  {row.file}:{row.line}: {row.reason}"), err=True)
    rest = run.quarantined - len(run.bad)
    _count_rest(rest)
    if rest > 0:
        reasons: Counter[str] = Counter()
        for report, _ in run.results:
            reasons.update(report.reasons)
        click.echo("  Reasons of all of them:", err=True)
        width = len(f"{max(reasons.values()):,}")
        for reason, number in reasons.most_common(_MAX_REASONS):
            click.echo(text.clean(f"  {number:>{width},}  {reason}"), err=True)
        _count_rest(len(reasons) - _MAX_REASONS, " reasons")
    storage = "would be quarantined" if run.dry_run else "are quarantined: tunedb quarantine"
    click.echo(f"  The lines {storage}", err=True)


def _count_rest(number: int, noun: str = "") -> None:
    if number > 0:
        click.echo(f"  and {number:,} more{noun}", err=True)


# ---- Command ------------------------------------------------------------------------------------

#: Bytes of several files that processes share, and the most processes: they write in turns.
_SHARED_BYTES = 64 * 2**20
_MOST_PROCESSES = 3

_STOPPING = b"\r\x1b[2KStopping after this batch; Ctrl-C again stops at once\n"


@click.group(
    cls=LazyGroup,
    lazy={"logs": ("logs.import_logs", "logs", "Import logs of tuners and of GPU profilers.")},
    name="import",
)
@common_options
def command() -> None:
    """Import logs of other tools into the database.

    Example:
      tunedb import logs ./work_dir
    """


def _name(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """Return a valid name from the command line; it becomes part of names in the database."""
    from ... import limits
    from ...identity import clean_text

    if value is None:
        return None
    name = clean_text(value).strip()
    if not name or len(name) > limits.MAX_NAME_CHARS:
        raise click.BadParameter(f"expected a name of 1 to {limits.MAX_NAME_CHARS} characters")
    return name


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--source", metavar="NAME", help="Name of the source. Default: the file's path.")
@click.option(
    "--trust",
    type=click.Choice(["own", "verified", "foreign"]),
    help="Trust in a new source. Default: own. TVM never uses foreign records.",
)
@click.option(
    "--trace",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="GPU trace with the times of a profile. Default for nvprof: the trace beside it.",
)
@click.option(
    "--device",
    callback=_name,
    metavar="NAME",
    help="Device of files that name none: T4 results, Nsight Compute.",
)
@click.option(
    "--kernel",
    callback=_name,
    metavar="NAME",
    help="Kernel, or profiled program, of files that name none.",
)
@click.option("--dry-run", is_flag=True, help="Read and compare; write nothing.")
@click.option("--strict", is_flag=True, help="Exit with 1 if a line or file was not understood.")
@output_options
@common_options
@pass_settings
def logs(
    settings: Settings,
    paths: tuple[str, ...],
    source: str | None,
    trust: str | None,
    trace: Path | None,
    device: str | None,
    kernel: str | None,
    dry_run: bool,
    strict: bool,
) -> None:
    """Import logs of tuners and of GPU profilers.

    tunedb reads logs of MetaSchedule, Ansor, AutoTVM, Kernel Tuner, KTT, CLTune and Triton, T1
    inputs and T4 results, and tables of nvprof, Nsight Compute and Nsight Systems.

    PATH is a file, a directory (searched recursively), a pattern, or - for standard input. The
    content of each line decides its format, not the file's name; gzip, bzip2, xz and Zstandard are
    unpacked. A second import of a file adds only its new lines. Lines that no format understands
    are quarantined (tunedb quarantine). Ctrl-C keeps the finished batches.

    Example:
      tunedb import logs ./work_dir tuning.json autotvm.log.xz
      tunedb import logs 'runs/2026-*/' --source nightly
      tunedb import logs ./dataset --trust foreign --dry-run
      ssh board cat tuning.log | tunedb import logs - --source board
      tunedb import logs metrics.csv --trace trace.csv
      tunedb import logs results_T4.json --kernel gemm --device 'NVIDIA A100'
    """
    from ...formats.find import find_logs

    run = ImportRun(dry_run=dry_run)
    files = find_logs(paths, run.skip)
    if trace is not None and len(files) != 1:
        raise click.UsageError(f"--trace belongs to one profile, but PATH holds {len(files)} files")
    run.files = [replace(file, trace=trace, device=device, kernel=kernel) for file in files]
    importer = _FileImporter(run, source, trust)
    try:
        with receiving(settings, dry_run=dry_run) as store:
            importer.check_trust(store)
            importer.add_all(settings, store)
    except KeyboardInterrupt:
        run.close()
        print_report(settings, run)
        raise interrupted(f"Interrupted {run.stopped_at()}") from None
    except Exception:
        # Finished batches are stored, so the report precedes the error.
        run.close()
        if run.results:
            print_report(settings, run)
        raise
    print_report(settings, run)
    run.check()
    if strict and (run.quarantined or run.refused):
        raise click.exceptions.Exit(1)


def _size(file: LogFile) -> int:
    """Return the size of a file; 0 if it no longer exists."""
    try:
        return 0 if file.path is None else file.path.stat().st_size
    except OSError:
        return 0


def _total(files: list[LogFile]) -> int | None:
    """Return the number of bytes to read; None if it is unknown."""
    return None if any(file.path is None for file in files) else sum(map(_size, files))


class _FileImporter:
    """Imports one file after another."""

    def __init__(self, run: ImportRun, source: str | None, trust: str | None) -> None:
        self._run = run
        self._source = source
        self._trust = trust

    def source_of(self, file: LogFile) -> str:
        """Return the name of a file's source: the absolute path, unless ``--source`` names it."""
        from ...identity import clean_text

        if self._source is not None:
            return clean_text(self._source)
        # A file name may hold any bytes; the database holds only text.
        return "stdin" if file.path is None else clean_text(str(file.path.resolve()))

    @property
    def trust(self) -> Trust:
        """Trust of new sources."""
        from ...records import Trust

        return Trust[(self._trust or "own").upper()]

    def check_trust(self, store: Store) -> None:
        """Raise UsageError if a source exists with another trust than ``--trust``.

        A source keeps its trust, so records imported as foreign would be served.
        """
        from ...errors import UsageError

        if self._trust is None:
            return
        known = {source.name: source.trust for _, _, source in store.sources.numbered()}
        for name in dict.fromkeys(map(self.source_of, self._run.files)):
            trust = known.get(name)
            if trust is not None and trust is not self.trust:
                raise UsageError(
                    f"source {name!r} exists with trust {trust.name.lower()}; "
                    "choose another --source for these records"
                )

    def add_all(self, settings: Settings, store: Store) -> None:
        """Import all files; KeyboardInterrupt after a Ctrl-C."""
        total = _total(self._run.files)
        with (
            progress_bar(settings, total, counts="records") as progress,
            _interruptible() as is_interrupted,
        ):
            if (processes := self._processes(store, total or 0)) > 1:
                self._share(settings, processes, progress, is_interrupted)
            else:
                self._add_in_turn(settings, store, progress, is_interrupted)
            if is_interrupted():
                raise KeyboardInterrupt

    def _processes(self, store: Store, total: int) -> int:
        """Return the number of processes that share the files, of so many bytes in all."""
        from ...storage.engine import sqlite_path
        from ...system.cpus import allowed_cpus

        url, files = store.url, self._run.files
        is_in_memory = url.get_backend_name() == "sqlite" and sqlite_path(url) is None
        if is_in_memory or self._run.dry_run or total < _SHARED_BYTES:
            return 1
        return min(len(files), len(allowed_cpus()), _MOST_PROCESSES)

    def _share(
        self,
        settings: Settings,
        processes: int,
        progress: ProgressBar,
        is_interrupted: Callable[[], bool],
    ) -> None:
        """Let several processes import the files."""
        from ...formats.import_processes import ImportJob, Stored, import_in_processes

        run, positions = self._run, Counter[int]()
        reports: dict[int, ImportReport] = {}
        jobs = [ImportJob(file, self.source_of(file), self.trust) for file in run.files]

        def begin(number: int) -> None:
            reports[number] = run.begin(jobs[number].file, jobs[number].source)

        def update(stored: Stored) -> None:
            report, file = reports[stored.number], jobs[stored.number].file
            vars(report).update(vars(stored.report))
            positions[stored.number] = _size(file) if stored.is_complete else stored.position
            if stored.is_complete:
                run.finish(report)
            progress.update(positions.total())
            progress.count(run.stored)

        import_in_processes(
            settings.locate().url,
            jobs,
            processes,
            on_begin=begin,
            on_stored=update,
            is_stopped=is_interrupted,
        )

    def _add_in_turn(
        self,
        settings: Settings,
        store: Store,
        progress: ProgressBar,
        is_interrupted: Callable[[], bool],
    ) -> None:
        """Import one file after another in this process."""
        from ...formats.importer import LogImporter

        run = self._run

        def after_batch() -> None:
            progress.count(run.stored)
            if is_interrupted():
                raise KeyboardInterrupt

        with LogImporter(
            store, dry_run=run.dry_run, on_batch=after_batch, on_file=run.finish
        ) as importer:
            for file in run.files:
                progress.describe(file.name if file.path is None else file.path.name)
                if file.path is None and sys.stdin.isatty():
                    settings.note("Reading a log from the terminal; end it with Ctrl-D")
                source = self.source_of(file)
                importer.add(
                    file,
                    source=source,
                    trust=self.trust,
                    on_position=progress.update,
                    report=run.begin(file, source),
                )
                progress.finish(_size(file))
                if is_interrupted():
                    break


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Delay Ctrl-C to the end of a batch, so that the report equals the stored records.

    Yields a function that returns True after a Ctrl-C. A second Ctrl-C is immediate.
    """
    is_interrupted = False

    def handle(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_interrupted
        if is_interrupted:
            raise KeyboardInterrupt
        is_interrupted = True
        if sys.stderr.isatty():
            # Not through sys.stderr, which may be in the middle of a write.
            os.write(2, _STOPPING)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: is_interrupted
        return
    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield lambda: is_interrupted
    finally:
        signal.signal(signal.SIGINT, previous)

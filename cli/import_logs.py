"""``tunedb import logs``."""

from __future__ import annotations

import glob
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import click

from . import text
from .lazy import LazyGroup
from .options import Settings, common_options, pass_settings, reading, writing
from .output import Column, output_options, print_rows
from .progress import Bar, bar

if TYPE_CHECKING:
    from ..logs.base import LogFormat, Parsed
    from ..logs.importer import ImportReport
    from ..records import Quarantined, Trust
    from ..store import Store

#: Bad lines that are named on stderr; the others are counted.
_MOST_NAMED = 5

_INTERRUPTED = 130

COLUMNS = (
    Column("path", "log", flexible=True, keep_end=True),
    Column("format"),
    Column("source"),
    Column("read", "read", right=True),
    Column("new", "new", right=True),
    Column("known", "known", right=True),
    Column("failed", "failed", right=True),
    Column("quarantined", "quarantined", right=True),
    Column("reasons"),
    Column("dry_run"),
)


@click.group(
    cls=LazyGroup,
    lazy={"logs": ("import_logs", "logs", "Import tuning logs of MetaSchedule.")},
    name="import",
)
@common_options
def command() -> None:
    """Bring other tools' logs into the database.

    Example:
      tunedb import logs ./work_dir
    """


@dataclass
class _Options:
    """What the command line asks for."""

    source: str | None
    trust: str | None
    dry_run: bool


@dataclass
class _Run:
    """What happened so far, also when it is interrupted."""

    reports: list[ImportReport] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    bad: list[Quarantined] = field(default_factory=list)

    @property
    def quarantined(self) -> int:
        return sum(report.quarantined for report in self.reports)


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--source", metavar="NAME", help="Name of the source; by default the log's path.")
@click.option(
    "--trust",
    type=click.Choice(["own", "verified", "foreign"]),
    help="How far a new source is trusted (default: own). TVM never gets foreign records.",
)
@click.option("--dry-run", is_flag=True, help="Read and compare, write nothing.")
@click.option("--strict", is_flag=True, help="Exit with 1 if any line was not understood.")
@output_options
@common_options
@pass_settings
def logs(
    settings: Settings,
    paths: tuple[str, ...],
    source: str | None,
    trust: str | None,
    dry_run: bool,
    strict: bool,
) -> None:
    """Import tuning logs of MetaSchedule.

    PATH is a work directory, a directory that holds some, a record file or a pattern. Importing a
    log twice adds nothing. Lines that are not understood are kept aside (tunedb quarantine).
    Ctrl-C keeps the batches that are finished.

    Example:
      tunedb import logs ./work_dir
      tunedb import logs 'runs/2026-*/' --source nightly
      tunedb import logs ./from_a_colleague --trust foreign --dry-run
    """
    from ..logs.importer import find_logs

    found = list(find_logs(_expand(paths)))
    run = _Run()
    options = _Options(source, trust, dry_run)
    try:
        with _store(settings, dry_run=dry_run) as store:
            _check_trust(store, found, options)
            total = sum(_size(path, log_format) for path, log_format in found)
            with bar(settings, total, in_bytes=True) as shown, _stopping() as stop:
                for path, log_format in found:
                    _import(store, path, log_format, options, run, shown, stop)
    except KeyboardInterrupt:
        _tell(settings, run, dry_run=dry_run)
        _end_interrupted(run, len(found), dry_run=dry_run)
    except Exception:
        # What was finished stays, so it is told before the error is.
        if run.reports:
            _tell(settings, run, dry_run=dry_run)
        raise
    _tell(settings, run, dry_run=dry_run)
    if strict and run.quarantined:
        raise click.exceptions.Exit(1)


def _expand(paths: tuple[str, ...]) -> Iterator[Path]:
    """Yield the paths, patterns that a shell left alone expanded."""
    from ..errors import NotFoundError, UsageError

    for given in paths:
        if given == "-":
            raise UsageError(
                "a MetaSchedule log is two files, so it cannot come from a pipe; give its directory"
            )
        if not Path(given).exists() and glob.has_magic(given):
            # Path.glob takes no absolute pattern.
            matches = sorted(glob.glob(given, recursive=True))  # noqa: PTH207
            if not matches:
                raise NotFoundError(f"{given}: nothing matches this pattern")
            yield from map(Path, matches)
        else:
            yield Path(given)


@contextmanager
def _store(settings: Settings, *, dry_run: bool) -> Iterator[Store]:
    """Open the database; a dry run compares with an empty one where there is none."""
    from ..engine import parse_url, sqlite_path
    from ..store import Store

    if not dry_run:
        with writing(settings) as store:
            yield store
        return
    path = sqlite_path(parse_url(settings.locate().url))
    if path is not None and not path.exists():
        settings.note(f"{path} does not exist yet: everything is new")
        with Store(":memory:") as store:
            yield store
        return
    with reading(settings) as store:
        yield store


def _size(path: Path, log_format: LogFormat) -> int:
    return sum(file.stat().st_size for file in log_format.files(path))


def _source_name(path: Path, options: _Options) -> str:
    """Return the name of a log's source: absolute, so that it means one place only."""
    from ..identity import clean_text

    # A file name need not be text; the database holds only text.
    return clean_text(options.source if options.source is not None else str(path.resolve()))


def _trust(options: _Options) -> Trust:
    from ..records import Trust

    return Trust[(options.trust or "own").upper()]


def _check_trust(store: Store, found: list[tuple[Path, LogFormat]], options: _Options) -> None:
    """Raise UsageError where a source exists with another trust than the one asked for.

    A source keeps its trust, so what was meant as foreign would be served to TVM.
    """
    from ..errors import UsageError

    if options.trust is None:
        return
    known = {source.name: source.trust for source, _ in store.query.sources()}
    for path, _ in found:
        name = _source_name(path, options)
        trust = known.get(name)
        if trust is not None and trust is not _trust(options):
            raise UsageError(
                f"the source {name!r} is known as {trust.name.lower()} and stays so; "
                "give these records another --source"
            )


def _import(
    store: Store,
    path: Path,
    log_format: LogFormat,
    options: _Options,
    run: _Run,
    shown: Bar,
    stop: Callable[[], None],
) -> None:
    """Import one log; `stop` is called between its batches."""
    from ..errors import FormatError
    from ..logs.importer import ImportReport, import_log

    name = _source_name(path, options)
    report = ImportReport(str(path), log_format.name)
    run.reports.append(report)
    run.sources.append(name)
    shown.describe(path.name)

    def follow(position: int) -> None:
        shown.at(position)
        stop()

    try:
        import_log(
            store,
            path,
            _Watched(log_format, run.bad),
            source=name,
            trust=_trust(options),
            dry_run=options.dry_run,
            on_progress=follow,
            report=report,
        )
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error
    shown.finish(_size(path, log_format))
    stop()


@contextmanager
def _stopping() -> Iterator[Callable[[], None]]:
    """Let Ctrl-C wait for the end of a batch, so that what is told is what was stored.

    Yields a function that raises KeyboardInterrupt once it was pressed; a second Ctrl-C does not
    wait.
    """
    asked = False

    def ask(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    def stop() -> None:
        if asked:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = signal.signal(signal.SIGINT, ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


class _Watched:
    """A log format that remembers the first lines that were not understood."""

    def __init__(self, log_format: LogFormat, bad: list[Quarantined]) -> None:
        self._format = log_format
        self._bad = bad
        self.name = log_format.name

    def matches(self, path: Path) -> bool:
        return self._format.matches(path)

    def files(self, path: Path) -> list[Path]:
        return self._format.files(path)

    def read(self, path: Path) -> Iterator[Parsed]:
        from ..records import Quarantined

        for parsed in self._format.read(path):
            if isinstance(parsed.item, Quarantined) and len(self._bad) < _MOST_NAMED:
                self._bad.append(parsed.item)
            yield parsed


def _tell(settings: Settings, run: _Run, *, dry_run: bool) -> None:
    """Say what happened to each log, and what was not understood."""
    _print_report(settings, run, dry_run=dry_run)
    _tell_bad(settings, run, dry_run=dry_run)


def _print_report(settings: Settings, run: _Run, *, dry_run: bool) -> None:
    numbers = ("read", "new", "known", "failed", "quarantined")
    rows: list[dict[str, Any]] = []
    for report, source in zip(run.reports, run.sources, strict=True):
        values = {key: getattr(report, key) for key in (*numbers, "path", "format", "reasons")}
        rows.append({**values, "source": source, "dry_run": dry_run})
    total = None
    if len(rows) > 1:
        total = {key: sum(row[key] for row in rows) for key in numbers}
        total["path"] = "total"
    print_rows(settings, COLUMNS, rows, total=total)
    if dry_run:
        settings.note("dry run: nothing was written")


def _tell_bad(settings: Settings, run: _Run, *, dry_run: bool) -> None:
    """Say how many lines were not understood, the first reasons, and how to go on."""
    number = run.quarantined
    if not number:
        return
    settings.warn(f"{text.count(number, 'line')} not understood")
    for row in run.bad:
        click.echo(text.clean(f"  {row.file}:{row.line}: {row.reason}"), err=True)
    if number > len(run.bad):
        click.echo(f"  and {number - len(run.bad):,} more", err=True)
    kept = "would be kept" if dry_run else "are kept (tunedb quarantine lists them)"
    click.echo(f"  The lines {kept}; repair the file and import it again.", err=True)


def _end_interrupted(run: _Run, logs_: int, *, dry_run: bool) -> NoReturn:
    new = text.count(sum(report.new for report in run.reports), "new record")
    kept = "nothing was written" if dry_run else f"the finished batches stay, {new}"
    where = f"in log {len(run.reports)} of {logs_}" if run.reports else "before the first log"
    click.echo(f"Interrupted {where}: {kept}; the same command goes on from there", err=True)
    raise click.exceptions.Exit(_INTERRUPTED)

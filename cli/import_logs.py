"""``tunedb import logs``."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from .import_report import Run, tell
from .lazy import LazyGroup
from .options import Settings, common_options, pass_settings, reading, writing
from .output import output_options
from .progress import Bar, bar

if TYPE_CHECKING:
    from ..logs.base import LogFile
    from ..records import Trust
    from ..store import Store

_INTERRUPTED = 130
_STOPPING = b"\r\x1b[2KStopping after this batch; Ctrl-C again stops at once\n"


@click.group(
    cls=LazyGroup,
    lazy={"logs": ("import_logs", "logs", "Import logs of tuners and of GPU profilers.")},
    name="import",
)
@common_options
def command() -> None:
    """Bring other tools' logs into the database.

    Example:
      tunedb import logs ./work_dir
    """


def _said(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """Return what the user says of a file; it becomes a part of names in the database."""
    from .. import limits
    from ..identity import clean_text

    if value is None:
        return None
    name = clean_text(value).strip()
    if not name or len(name) > limits.MAX_NAME_CHARS:
        raise click.BadParameter(f"a name of 1 to {limits.MAX_NAME_CHARS} characters is due")
    return name


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--source", metavar="NAME", help="Name of the source; by default each file's path.")
@click.option(
    "--trust",
    type=click.Choice(["own", "verified", "foreign"]),
    help="How far a new source is trusted (default: own). TVM never gets foreign records.",
)
@click.option(
    "--trace",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="GPU trace with the times of a profile; for nvprof by default the one beside it.",
)
@click.option(
    "--device",
    callback=_said,
    metavar="NAME",
    help="Device of files that do not name theirs: T4 results, Nsight Compute.",
)
@click.option(
    "--kernel",
    callback=_said,
    metavar="NAME",
    help="Kernel, or profiled program, of files that do not name theirs.",
)
@click.option("--dry-run", is_flag=True, help="Read and compare, write nothing.")
@click.option("--strict", is_flag=True, help="Exit with 1 if any line or file was not understood.")
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

    Known are logs of MetaSchedule, Ansor, AutoTVM, Kernel Tuner, KTT, CLTune and Triton, T1
    inputs and T4 results, and tables of nvprof, Nsight Compute and Nsight Systems.

    PATH is a file, a directory that is searched to its bottom, a pattern, or - for standard
    input. What a file holds is found out line by line, whatever its name; gzip, bzip2, xz and
    Zstandard are unpacked. Importing a file twice adds nothing, and one that grew adds its new
    lines. Lines that are not understood are kept aside (tunedb quarantine). Ctrl-C keeps the
    batches that are finished.

    Example:
      tunedb import logs ./work_dir tuning.json autotvm.log.xz
      tunedb import logs 'runs/2026-*/' --source nightly
      tunedb import logs ./dataset --trust foreign --dry-run
      ssh board cat tuning.log | tunedb import logs - --source board
      tunedb import logs metrics.csv --trace trace.csv
      tunedb import logs results_T4.json --kernel gemm --device 'NVIDIA A100'
    """
    from ..logs.find import find_logs

    run = Run(dry_run=dry_run)
    found = find_logs(paths, run.skip)
    if trace is not None and len(found) != 1:
        raise click.UsageError(f"--trace belongs to one profile, and there are {len(found)} files")
    run.files = [replace(file, trace=trace, device=device, kernel=kernel) for file in found]
    importer = _Importer(run, source, trust)
    try:
        with _store(settings, dry_run=dry_run) as store:
            importer.check_trust(store)
            with bar(settings, _total(run.files), counts="records") as shown, _stopping() as stop:
                for file in run.files:
                    importer.add(settings, store, file, shown, stop)
    except KeyboardInterrupt:
        tell(settings, run)
        click.echo(f"Interrupted {run.stopped_at()}", err=True)
        raise click.exceptions.Exit(_INTERRUPTED) from None
    except Exception:
        # What was finished stays, so it is told before the error is.
        if run.results:
            tell(settings, run)
        raise
    tell(settings, run)
    run.check()
    if strict and (run.quarantined or run.refused):
        raise click.exceptions.Exit(1)


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


def _size(file: LogFile) -> int:
    """Return the size of a file as it lies there; 0 where it is gone meanwhile."""
    try:
        return 0 if file.path is None else file.path.stat().st_size
    except OSError:
        return 0


def _total(files: list[LogFile]) -> int | None:
    """Return how much there is to read, or None where nobody knows."""
    return None if any(file.path is None for file in files) else sum(map(_size, files))


class _Importer:
    """Imports one file after another."""

    def __init__(self, run: Run, source: str | None, trust: str | None) -> None:
        self._run = run
        self._source = source
        self._trust = trust

    def source_of(self, file: LogFile) -> str:
        """Return the name of a file's source: absolute, so that it means one place only."""
        from ..identity import clean_text

        if self._source is not None:
            return clean_text(self._source)
        # A file name need not be text; the database holds only text.
        return "stdin" if file.path is None else clean_text(str(file.path.resolve()))

    @property
    def trust(self) -> Trust:
        """The trust of new sources."""
        from ..records import Trust

        return Trust[(self._trust or "own").upper()]

    def check_trust(self, store: Store) -> None:
        """Raise UsageError where a source exists with another trust than the one asked for.

        A source keeps its trust, so what was meant as foreign would be served to TVM.
        """
        from ..errors import UsageError

        if self._trust is None:
            return
        known = {source.name: source.trust for source, _ in store.query.sources()}
        for name in dict.fromkeys(map(self.source_of, self._run.files)):
            trust = known.get(name)
            if trust is not None and trust is not self.trust:
                raise UsageError(
                    f"the source {name!r} is known as {trust.name.lower()} and stays so; "
                    "give these records another --source"
                )

    def add(
        self,
        settings: Settings,
        store: Store,
        file: LogFile,
        shown: Bar,
        stop: Callable[[], None],
    ) -> None:
        """Import one file; `stop` is called between its batches."""
        from ..logs.importer import import_log

        source = self.source_of(file)
        report = self._run.begin(file, source)
        shown.describe(file.name if file.path is None else file.path.name)
        if file.path is None and sys.stdin.isatty():
            settings.note("Reading a log from the terminal; Ctrl-D ends it")
        before = self._run.read

        def after_batch() -> None:
            shown.count(before + report.total.read)
            stop()

        try:
            import_log(
                store,
                file,
                source=source,
                trust=self.trust,
                dry_run=self._run.dry_run,
                on_position=shown.at,
                on_batch=after_batch,
                report=report,
            )
        finally:
            self._run.finish(report)
        shown.finish(_size(file))
        shown.count(self._run.read)
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
        if sys.stderr.isatty():
            # Not through sys.stderr: it may be in the middle of a write.
            os.write(2, _STOPPING)

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

"""Import of many files by several processes, each of which writes into the database by itself.

Half of the time of an import is parsing, which they share; they write in turns.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from ..errors import StorageError, TuneDBError
from ..records import Trust
from ..storage.store import Store
from .base import LogFile
from .importer import ImportReport, LogImporter

#: Seconds between two questions whether the import is to stop.
_POLL_SECS = 0.2
#: Seconds for a process to end by itself.
_END_SECS = 10.0


@dataclass(frozen=True, slots=True)
class ImportJob:
    """A file to import; parameters as of :meth:`LogImporter.add`."""

    file: LogFile
    source: str
    trust: Trust = Trust.OWN


@dataclass(eq=False, slots=True)
class Stored:
    """What a process has stored of a file; a process sends it again after each batch.

    Parameters
    ----------
    number : int
        Number of the file.
    report : ImportReport
        Its report so far.
    position : int
        Bytes that were read.
    is_complete : bool
        Whether all of the file is stored.
    """

    number: int
    report: ImportReport
    position: int = 0
    is_complete: bool = False

    def read_to(self, position: int) -> None:
        """Note the bytes that were read."""
        self.position = position


def import_in_processes(
    url: str,
    jobs: Sequence[ImportJob],
    processes: int,
    *,
    on_begin: Callable[[int], None],
    on_stored: Callable[[Stored], None],
    is_stopped: Callable[[], bool],
) -> None:
    """Import files in several processes.

    Parameters
    ----------
    url : str
        URL of the database, which must exist.
    jobs : sequence of ImportJob
        The files; processes take the next one each.
    processes : int
        Number of processes.
    on_begin : callable
        Called with the number of each file that a process begins.
    on_stored : callable
        Called after each batch for each file that it has records of.
    is_stopped : callable
        Asked several times a second; after True, each process ends with its next batch.

    Raises
    ------
    TuneDBError
        The first error of a process; the others stop.
    """
    context = multiprocessing.get_context("spawn")
    numbers = iter(range(len(jobs)))
    running: dict[Connection, BaseProcess] = {}
    try:
        for _ in range(processes):
            here, there = context.Pipe()
            process: BaseProcess = context.Process(target=_run, args=(url, there), daemon=True)
            process.start()
            there.close()
            running[here] = process
        _serve(running, jobs, numbers, on_begin, on_stored, is_stopped)
    finally:
        for connection, process in running.items():
            connection.close()
            process.join(_END_SECS)
            process.kill()


def _serve(
    running: dict[Connection, BaseProcess],
    jobs: Sequence[ImportJob],
    numbers: Iterator[int],
    on_begin: Callable[[int], None],
    on_stored: Callable[[Stored], None],
    is_stopped: Callable[[], bool],
) -> None:
    """Give files to processes, and receive what they stored, until all have ended."""
    stops = False
    while running:
        ready = wait(list(running), timeout=_POLL_SECS)
        for connection in [one for one in running if one in ready]:
            try:
                message = connection.recv()
            except (EOFError, OSError):
                process = running.pop(connection)
                connection.close()
                process.join()
                if process.exitcode:
                    raise StorageError(
                        f"a process of the import ended with exit code {process.exitcode}; its "
                        "finished batches are stored; run the same command again to continue"
                    ) from None
                continue
            if isinstance(message, Exception):
                raise message
            if isinstance(message, Stored):
                on_stored(message)
            elif stops or (number := next(numbers, None)) is None:
                _send(connection, None)
            else:
                on_begin(number)
                _send(connection, (number, jobs[number]))
        if not stops and is_stopped():
            stops = True
            for connection in running:
                _send(connection, None)


def _send(connection: Connection, message: object) -> None:
    """Send a message; a process that has ended is noticed when it is received from."""
    with suppress(OSError):
        connection.send(message)


class _StoppedError(Exception):
    """The import is to stop, or the process that started it has ended."""


def _run(url: str, connection: Connection) -> None:
    """Import the files that a connection names, until it names none; run in a process."""
    # Ctrl-C reaches all processes of a terminal; the one that started this one decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(_StoppedError, EOFError, BrokenPipeError, ConnectionResetError):
        try:
            with Store(url, create=False) as store:
                _import(store, connection)
        except TuneDBError as error:
            connection.send(error)


def _import(store: Store, connection: Connection) -> None:
    """Import the files that a connection names."""
    files: dict[int, Stored] = {}  # by the id() of their reports

    def complete(report: ImportReport) -> None:
        files[id(report)].is_complete = True

    def send() -> None:
        for file in list(files.values()):
            connection.send(file)
            if file.is_complete:
                del files[id(file.report)]

    def after_batch() -> None:
        send()
        if connection.poll():
            connection.recv()
            raise _StoppedError

    with LogImporter(store, on_batch=after_batch, on_file=complete) as importer:
        while True:
            connection.send(None)
            message: tuple[int, ImportJob] | None = connection.recv()
            if message is None:
                break
            number, job = message
            file = Stored(number, ImportReport(job.file.name))
            files[id(file.report)] = file
            importer.add(
                job.file,
                source=job.source,
                trust=job.trust,
                on_position=file.read_to,
                report=file.report,
            )
    send()

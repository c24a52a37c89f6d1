"""The runs of one variant's program."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from ... import limits
from ...records import Failure, FailureKind, Phase
from .building import digest_of
from .commands import command_for
from .configuration import UNITS, Clock, Program
from .profiler import LOCALE, complaint
from .running import Ran, run
from .variants import Variant

#: How much longer than alone a run may take under a profiler, which runs each kernel once for each
#: pass, and saves and restores its memory in between.
_UNDER_PROFILER = 10


class Failed(Exception):
    """A run of a variant failed; `failure` says why."""

    def __init__(self, kind: FailureKind, message: str, seconds: float | None = None) -> None:
        super().__init__(message)
        self.failure = Failure(kind, Phase.RUN, message, seconds)


class Runner:
    """Runs the program of one variant.

    Parameters
    ----------
    program : Program
        What is run.
    variant : Variant
        Whose values its command gets.
    folder : Path
        Where it was built.
    work : Path
        Work folder; what the runs print goes into a folder there.
    environment : mapping
        Of each run.
    """

    def __init__(
        self,
        program: Program,
        variant: Variant,
        folder: Path,
        work: Path,
        environment: Mapping[str, str],
    ) -> None:
        self._program = program
        self._folder = folder
        self._environment = environment
        self._command = command_for(program.run, variant)
        name = digest_of(list(variant.block), variant.registers, variant.input)
        self._logs = work / program.name / f"{variant.label.split()[0]}-{name}"
        self._logs.mkdir(parents=True, exist_ok=True)

    def log(self, name: str) -> Path:
        """Return the file for what a profiler writes in a run; it does not exist."""
        path = self._logs / f"{name}.csv"
        path.unlink(missing_ok=True)
        return path

    def start(self, before: list[str], name: str) -> Ran:
        """Run the program once, below a profiler if `before` says so."""
        try:
            ran = run(
                [*before, *self._command],
                folder=self._folder,
                environment={**self._environment, **(LOCALE if before else {})},
                timeout=self._program.timeout * (_UNDER_PROFILER if before else 1),
                logs=self._logs / name,
            )
        except OSError as error:
            first = (before or self._command)[0]
            raise Failed(FailureKind.INFRASTRUCTURE, f"{first}: {error.strerror}") from None
        if ran.is_ok:
            return ran
        if before:
            # It ran well without: that is the profiler's doing.
            kind = FailureKind.INFRASTRUCTURE
        elif ran.code is None:
            kind = FailureKind.TIMEOUT
        else:
            kind = FailureKind.CRASH if ran.code < 0 else FailureKind.RUNTIME_ERROR
        told = complaint(self._logs / f"{name}.csv") if before else None
        raise Failed(kind, f"{name}: {told or 'the run ' + ran.reason}", ran.seconds)

    def output(self, name: str) -> bytes:
        """Return what the program computes: what it prints, or the file that it writes."""
        source = self._program.output.source
        written = self._folder / source
        if source not in ("stdout", "none"):
            # An earlier run's must not be taken for this one's.
            written.unlink(missing_ok=True)
        ran = self.start([], name)
        try:
            return ran.stdout.read_bytes() if source in ("stdout", "none") else written.read_bytes()
        except OSError as error:
            raise Failed(
                FailureKind.RUNTIME_ERROR, f"it wrote no {source}: {error.strerror}"
            ) from None

    def timed(self, number: int) -> float:
        """Return the seconds of one run."""
        ran = self.start([], f"time{number}")
        clock = self._program.timing
        return ran.seconds if clock.source == "wall" else printed_time(ran.stdout, clock)


def printed_time(stdout: Path, clock: Clock) -> float:
    """Return the seconds that a program printed, all matches of the pattern added up."""
    with stdout.open("rb") as file:
        text = file.read(limits.MAX_PRINTED_BYTES).decode(errors="replace")
    found = [match[1] for match in re.finditer(clock.pattern or "", text)]
    try:
        seconds = sum(float(number) for number in found) * UNITS[clock.unit]
    except (TypeError, ValueError):
        raise Failed(FailureKind.RUNTIME_ERROR, "the time that it prints is no number") from None
    if not 0 < seconds < limits.MAX_PRINTED_SECONDS:
        told = f"{seconds} s" if found else "no time"
        raise Failed(FailureKind.RUNTIME_ERROR, f"it prints {told}; the pattern is {clock.pattern}")
    return seconds

"""The runs of one variant's program."""

from __future__ import annotations

import hashlib
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ... import limits
from ...errors import NotFoundError, StorageError
from ...identity import canonical_json
from ...records import Failure, FailureKind, Phase
from .configuration import PLACEHOLDER, UNITS, Clock, Command, Environment, Program
from .profiler import LOCALE, complaint
from .state import State
from .variants import Variant

# ---- Commands as processes of their own, with a time limit and without survivors -----------------

#: What runs a line of the configuration.
SHELL = "/bin/sh"

_BY_SIGNAL = 128

#: Seconds that processes get to end after they were asked to.
_GRACE_S = 1.0


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of a command.

    Parameters
    ----------
    code : int or None
        Its exit status, negative for a signal; None where it ran past its limit.
    seconds : float
        Wall-clock seconds.
    stdout, stderr : Path
        Files with what it printed.
    """

    code: int | None
    seconds: float
    stdout: Path
    stderr: Path

    @property
    def is_ok(self) -> bool:
        """Whether it ended by itself and says that all is well."""
        return self.code == 0

    @property
    def reason(self) -> str:
        """Say how it ended, with the last words that it printed."""
        if self.code is None:
            told = f"ran past its limit and was killed after {self.seconds:.3g} s"
        elif self.code < 0:
            told = f"was ended by {_signal_name(-self.code)}"
        else:
            told = f"ended with status {self.code}"
        words = tail(self.stderr) or tail(self.stdout)
        return f"{told}: {words}" if words else told


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def tail(path: Path) -> str:
    """Return the end of what a command printed."""
    try:
        with path.open("rb") as file:
            length = file.seek(0, os.SEEK_END)
            file.seek(max(0, length - limits.MAX_TAIL_BYTES))
            return file.read().decode(errors="backslashreplace").strip()
    except OSError:
        return ""


def environment_of(environment: Environment, base: Path, own: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a command.

    Parameters
    ----------
    environment : Environment
        What the configuration adds.
    base : Path
        Its folder, to which folders of ``path`` are relative.
    own : mapping
        Variables that win over all others.
    """
    made = {**os.environ, **environment.variables}
    folders = [str(base / Path(folder).expanduser()) for folder in environment.path]
    made["PATH"] = os.pathsep.join([*folders, made.get("PATH", os.defpath)])
    return {**made, **own}


def run(
    command: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str],
    timeout: float,
    logs: Path,
) -> Ran:
    """Run a command, and end everything that it started.

    Parameters
    ----------
    command : sequence of str
        Words.
    folder : Path
        Where it runs.
    environment : mapping
        Its whole environment.
    timeout : float
        Seconds.
    logs : Path
        Beginning of the paths of the files that take what it prints: files and not pipes, so that
        neither a child that lives on nor a long output makes anybody wait.

    Raises
    ------
    OSError
        The command does not exist or cannot be started.
    """
    stdout, stderr = logs.with_name(logs.name + ".out"), logs.with_name(logs.name + ".err")
    with stdout.open("wb") as out, stderr.open("wb") as err:
        begun = time.perf_counter()
        process = subprocess.Popen(  # noqa: S603 - the user's own commands
            list(command),
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            # A group of its own, so that its children are ended with it.
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            seconds = time.perf_counter() - begun
            _end_group(process)
    if code is not None and command[0] == SHELL and _BY_SIGNAL < code <= 2 * _BY_SIGNAL:
        # So a shell says by which signal its command was ended.
        code = _BY_SIGNAL - code
    return Ran(code, seconds, stdout, stderr)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a command and what it left behind in its group."""
    if process.poll() is None:
        _signal_group(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
    # The group lives as long as one of its processes does; its number cannot be another's
    # while that is so, and where none lives there is nobody to hear.
    _signal_group(process.pid, signal.SIGKILL)
    process.wait()


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


# ---- Commands of a configuration with a variant's values in them ---------------------------------


def values_of(variant: Variant) -> dict[str, str]:
    """Return what the words in braces stand for.

    ``maxrregcount`` is missing where the compiler's default is meant.
    """
    x, y, z = variant.block
    values = {
        "block_x": str(x),
        "block_y": str(y),
        "block_z": str(z),
        "threads": str(math.prod(variant.block)),
        "register_flag": "",
        "input": variant.input or "",
    }
    if variant.registers is not None:
        values["maxrregcount"] = str(variant.registers)
        values["register_flag"] = f"-maxrregcount={variant.registers}"
    return values


def command_for(command: Command, variant: Variant) -> tuple[str, ...]:
    """Return the words of a command, ready to be run.

    Parameters
    ----------
    command : tuple of str or str
        Words, each of which stays one argument whatever is put into it; a word that names a limit
        of registers is left out where there is none, and so is ``{register_flag}``. Or a line for
        the shell, into which values are put quoted.
    variant : Variant
        Whose values.
    """
    values = values_of(variant)
    if isinstance(command, str):

        def quoted(name: str) -> str:
            value = values[name]
            return "" if name == "register_flag" and not value else shlex.quote(value)

        return (SHELL, "-c", PLACEHOLDER.sub(lambda match: quoted(match[1]), command))
    words = []
    for word in command:
        names = {match[1] for match in PLACEHOLDER.finditer(word)}
        if "maxrregcount" in names and "maxrregcount" not in values:
            continue
        if word == "{register_flag}" and not values["register_flag"]:
            continue
        words.append(PLACEHOLDER.sub(lambda match: values[match[1]], word))
    return tuple(words)


# ---- Copies of a program's folder, each built once -----------------------------------------------


def digest_of(*values: object) -> str:
    """Return a short name for JSON values, equal for equal ones."""
    return hashlib.blake2b(canonical_json(list(values)), digest_size=8).hexdigest()


def source_folder(program: Program, base: Path) -> Path:
    """Return a program's folder; `base` is that of the configuration.

    Raises
    ------
    NotFoundError
        There is none.
    """
    folder = (base / Path(program.directory).expanduser()).resolve()
    if not folder.is_dir():
        raise NotFoundError(f"programs.{program.name}.directory: {folder} is not a folder")
    return folder


def fingerprint(folder: Path, apart: Path) -> str:
    """Return a name for what a folder holds, without what lies in `apart`.

    By names, sizes and times of change, as make does it: a program may come with gigabytes.
    """
    found = []
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if Path(root, name) != apart)
        for name in sorted(names):
            path = Path(root, name)
            about = path.lstat()
            found.append([str(path.relative_to(folder)), about.st_size, about.st_mtime_ns])
    # A name of a file need not be text.
    return hashlib.blake2b(repr(found).encode(), digest_size=8).hexdigest()


class Builder:
    """Builds the variants of one program in copies of its folder.

    Parameters
    ----------
    program : Program
        What is built.
    base : Path
        Folder of the configuration.
    work : Path
        Work folder.
    environment : Environment
        What the configuration sets.
    device_variables : dict
        Variables that choose the device.
    state : State
        What is finished.
    """

    def __init__(
        self,
        program: Program,
        base: Path,
        work: Path,
        environment: Environment,
        device_variables: dict[str, str],
        state: State,
    ) -> None:
        self._program = program
        self._source = source_folder(program, base)
        self._work = work
        self._state = state
        self._environment = environment_of(environment, base, device_variables)
        #: Changes with the program's folder, so that an edited program is built and run anew.
        self.source = fingerprint(self._source, work)

    def build(self, variant: Variant) -> tuple[Path, Failure | None]:
        """Return the folder in which a variant was built, and why that failed.

        Variants whose build command is the same share a folder.
        """
        program = self._program
        command = None if program.build is None else command_for(program.build, variant)
        key = digest_of(program.name, self.source, command, program.build_timeout)
        folder = self._work / program.name / f"build-{key}"
        done = self._state.get(f"build {key}")
        if done is not None and (folder.is_dir() or done["failure"]):
            return folder, None if done["failure"] is None else _failure(done["failure"])
        self._copy(folder)
        failure = None
        if command is not None:
            failure = self._run(command, folder)
        told = None if failure is None else [failure.kind.value, failure.message, failure.seconds]
        self._state.finish(f"build {key}", {"kind": "build", "failure": told})
        return folder, failure

    def _copy(self, folder: Path) -> None:
        try:
            if folder.exists():
                # Nobody wrote that it was finished: its run was killed.
                shutil.rmtree(folder)
            folder.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(self._source, folder, symlinks=True, ignore=self._ignored)
        except (OSError, shutil.Error) as error:
            raise StorageError(f"{folder}: {error}") from error

    def _ignored(self, root: str, names: Iterable[str]) -> set[str]:
        # The work folder may lie inside the program's own.
        return {name for name in names if Path(root, name).resolve() == self._work}

    def _run(self, command: tuple[str, ...], folder: Path) -> Failure | None:
        try:
            ran = run(
                command,
                folder=folder,
                environment=self._environment,
                timeout=self._program.build_timeout,
                logs=folder.with_name(folder.name + ".log"),
            )
        except OSError as error:
            reason = f"{command[0]}: {error.strerror}"
            return Failure(FailureKind.INFRASTRUCTURE, Phase.BUILD, reason)
        if ran.is_ok:
            return None
        kind = FailureKind.TIMEOUT if ran.code is None else FailureKind.COMPILE_ERROR
        return Failure(kind, Phase.BUILD, f"the build {ran.reason}", ran.seconds)


def _failure(told: list[Any]) -> Failure:
    kind, message, seconds = told
    return Failure(FailureKind(kind), Phase.BUILD, message, seconds)


# ---- Runs of one variant -------------------------------------------------------------------------

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
        raise Failed(FailureKind.RUNTIME_ERROR, "the time that it prints is not a number") from None
    if not 0 < seconds < limits.MAX_PRINTED_SECONDS:
        told = f"{seconds} s" if found else "no time"
        raise Failed(FailureKind.RUNTIME_ERROR, f"it prints {told}; the pattern is {clock.pattern}")
    return seconds

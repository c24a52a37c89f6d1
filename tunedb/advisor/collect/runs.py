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
from typing import Any, Final

from ... import limits
from ...errors import NotFoundError, StorageError
from ...identity import canonical_json
from ...records import Failure, FailureKind, Phase
from .configuration import (
    PLACEHOLDER,
    UNITS,
    Command,
    EnvironmentConfig,
    ProgramConfig,
    TimingConfig,
)
from .profiler import LOCALE, error_message
from .state import CollectState
from .variants import Variant

# ---- Processes with a time limit, ended with all their children ----------------------------------

#: Shell for the lines of a configuration.
SHELL = "/bin/sh"

_BY_SIGNAL = 128

#: Seconds between SIGTERM and SIGKILL.
_GRACE_S = 1.0


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """Result of a command.

    Parameters
    ----------
    code : int or None
        Its exit status, negative for a signal; None if it ran past its limit.
    seconds : float
        Wall-clock seconds.
    stdout, stderr : Path
        Files with its output.
    """

    code: int | None
    seconds: float
    stdout: Path
    stderr: Path

    @property
    def is_ok(self) -> bool:
        """It ended by itself with status 0."""
        return self.code == 0

    @property
    def reason(self) -> str:
        """How it ended, with the end of its output."""
        if self.code is None:
            ending = f"ran past its limit and was killed after {self.seconds:.3g} s"
        elif self.code < 0:
            ending = f"was ended by {_signal_name(-self.code)}"
        else:
            ending = f"ended with status {self.code}"
        words = tail(self.stderr) or tail(self.stdout)
        return f"{ending}: {words}" if words else ending


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def tail(path: Path) -> str:
    """Return the end of a command's output."""
    try:
        with path.open("rb") as file:
            length = file.seek(0, os.SEEK_END)
            file.seek(max(0, length - limits.MAX_TAIL_BYTES))
            return file.read().decode(errors="backslashreplace").strip()
    except OSError:
        return ""


def environment_of(
    environment: EnvironmentConfig, base: Path, own: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of a command.

    Parameters
    ----------
    environment : EnvironmentConfig
        Environment of the configuration.
    base : Path
        Its folder, to which folders of ``path`` are relative.
    own : mapping
        Variables that override all others.
    """
    variables = {**os.environ, **environment.variables}
    folders = [str(base / Path(folder).expanduser()) for folder in environment.path]
    variables["PATH"] = os.pathsep.join([*folders, variables.get("PATH", os.defpath)])
    return {**variables, **own}


def run(
    command: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str],
    timeout: float,
    logs: Path,
) -> ProcessResult:
    """Run a command, and end all processes that it started.

    Parameters
    ----------
    command : sequence of str
        Words.
    folder : Path
        Its working folder.
    environment : mapping
        Its whole environment.
    timeout : float
        Seconds.
    logs : Path
        Prefix of the files for its output: files and not pipes, so that neither a living child nor
        a long output blocks.

    Raises
    ------
    OSError
        The command does not exist or cannot be started.
    """
    stdout, stderr = logs.with_name(logs.name + ".out"), logs.with_name(logs.name + ".err")
    with stdout.open("wb") as out, stderr.open("wb") as err:
        start = time.perf_counter()
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
            seconds = time.perf_counter() - start
            _end_group(process)
    if code is not None and command[0] == SHELL and _BY_SIGNAL < code <= 2 * _BY_SIGNAL:
        # The exit status of a shell whose command was ended by a signal.
        code = _BY_SIGNAL - code
    return ProcessResult(code, seconds, stdout, stderr)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a command and all other processes of its group."""
    if process.poll() is None:
        _signal_group(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
    # A group keeps its number while one of its processes lives; without one the signal reaches
    # nothing.
    _signal_group(process.pid, signal.SIGKILL)
    process.wait()


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


# ---- Commands of a configuration with a variant's values -----------------------------------------


def values_of(variant: Variant) -> dict[str, str]:
    """Return the values of the words in braces.

    ``maxrregcount`` is missing for the compiler's default.
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
        Words, each of which stays one argument whatever its value is; a word with a limit of
        registers is left out without a limit, and so is ``{register_flag}``. Or a line for the
        shell, with quoted values.
    variant : Variant
        The variant.
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


# ---- Builds in copies of a program's folder ------------------------------------------------------


def digest_of(*values: object) -> str:
    """Return a short digest of JSON values."""
    return hashlib.blake2b(canonical_json(list(values)), digest_size=8).hexdigest()


def source_folder(program: ProgramConfig, base: Path) -> Path:
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
    """Return a digest of the files in a folder, without those in the folder `apart`.

    It is of names, sizes and times of change, as in make: a program may come with gigabytes.
    """
    files = []
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if Path(root, name) != apart)
        for name in sorted(names):
            path = Path(root, name)
            status = path.lstat()
            files.append([str(path.relative_to(folder)), status.st_size, status.st_mtime_ns])
    # A name of a file need not be text.
    return hashlib.blake2b(repr(files).encode(), digest_size=8).hexdigest()


class VariantBuilder:
    """Builder of the variants of one program, in copies of its folder.

    Parameters
    ----------
    program : ProgramConfig
        The program.
    base : Path
        Folder of the configuration.
    work : Path
        Work folder.
    environment : EnvironmentConfig
        Environment of the configuration.
    device_variables : dict
        Variables that choose the device.
    state : CollectState
        Finished steps.
    """

    def __init__(
        self,
        program: ProgramConfig,
        base: Path,
        work: Path,
        environment: EnvironmentConfig,
        device_variables: dict[str, str],
        state: CollectState,
    ) -> None:
        self._program = program
        self._source = source_folder(program, base)
        self._work = work
        self._state = state
        self._environment = environment_of(environment, base, device_variables)
        #: Changes with the program's folder, so that an edited program is built and run again.
        self.source: str = fingerprint(self._source, work)

    def build(self, variant: Variant) -> tuple[Path, Failure | None]:
        """Return the folder in which a variant was built, and the failure if there is one.

        Variants whose build command is the same share a folder.
        """
        program = self._program
        command = None if program.build is None else command_for(program.build, variant)
        key = digest_of(program.name, self.source, command, program.build_timeout)
        folder = self._work / program.name / f"build-{key}"
        step = self._state.get(f"build {key}")
        if step is not None and (folder.is_dir() or step["failure"]):
            return folder, None if step["failure"] is None else _failure(step["failure"])
        self._copy(folder)
        failure = None if command is None else self._run(command, folder)
        row = None if failure is None else [failure.kind.value, failure.message, failure.seconds]
        self._state.finish(f"build {key}", {"kind": "build", "failure": row})
        return folder, failure

    def _copy(self, folder: Path) -> None:
        try:
            if folder.exists():
                # The build is not finished: its run was killed.
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
            result = run(
                command,
                folder=folder,
                environment=self._environment,
                timeout=self._program.build_timeout,
                logs=folder.with_name(folder.name + ".log"),
            )
        except OSError as error:
            reason = f"{command[0]}: {error.strerror}"
            return Failure(FailureKind.INFRASTRUCTURE, Phase.BUILD, reason)
        if result.is_ok:
            return None
        kind = FailureKind.TIMEOUT if result.code is None else FailureKind.COMPILE_ERROR
        return Failure(kind, Phase.BUILD, f"the build {result.reason}", result.seconds)


def _failure(row: list[Any]) -> Failure:
    kind, message, seconds = row
    return Failure(FailureKind(kind), Phase.BUILD, message, seconds)


# ---- Runs of one variant -------------------------------------------------------------------------

#: Factor of the time limit under a profiler, which runs each kernel once for each pass, and saves
#: and restores its memory in between.
_PROFILER_FACTOR = 10


class VariantError(Exception):
    """A run of a variant failed; `failure` has the cause."""

    def __init__(self, kind: FailureKind, message: str, seconds: float | None = None) -> None:
        super().__init__(message)
        self.failure: Final = Failure(kind, Phase.RUN, message, seconds)


class VariantRunner:
    """Runner of the program of one variant.

    Parameters
    ----------
    program : ProgramConfig
        The program.
    variant : Variant
        Its values go into the command.
    folder : Path
        Folder of its build.
    work : Path
        Work folder; the output of the runs goes into a folder there.
    environment : mapping
        Environment of each run.
    """

    def __init__(
        self,
        program: ProgramConfig,
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
        """Return the path of a profiler's file for a run; an earlier file is removed."""
        path = self._logs / f"{name}.csv"
        path.unlink(missing_ok=True)
        return path

    def start(self, profiler: list[str], name: str) -> ProcessResult:
        """Run the program once, under a profiler if its command line is not empty."""
        try:
            result = run(
                [*profiler, *self._command],
                folder=self._folder,
                environment={**self._environment, **(LOCALE if profiler else {})},
                timeout=self._program.timeout * (_PROFILER_FACTOR if profiler else 1),
                logs=self._logs / name,
            )
        except OSError as error:
            first = (profiler or self._command)[0]
            raise VariantError(FailureKind.INFRASTRUCTURE, f"{first}: {error.strerror}") from None
        if result.is_ok:
            return result
        if profiler:
            # The program ran well without the profiler.
            kind = FailureKind.INFRASTRUCTURE
        elif result.code is None:
            kind = FailureKind.TIMEOUT
        else:
            kind = FailureKind.CRASH if result.code < 0 else FailureKind.RUNTIME_ERROR
        message = error_message(self._logs / f"{name}.csv") if profiler else None
        raise VariantError(kind, f"{name}: {message or 'the run ' + result.reason}", result.seconds)

    def output(self, name: str) -> bytes:
        """Return the program's output: printed, or in the file that it writes."""
        source = self._program.output.source
        is_printed = source in ("stdout", "none")
        path = self._folder / source
        if not is_printed:
            # A file of an earlier run is not this run's output.
            path.unlink(missing_ok=True)
        result = self.start([], name)
        try:
            return (result.stdout if is_printed else path).read_bytes()
        except OSError as error:
            raise VariantError(
                FailureKind.RUNTIME_ERROR, f"it wrote no {source}: {error.strerror}"
            ) from None

    def timed(self, number: int) -> float:
        """Return the seconds of one run."""
        result = self.start([], f"time{number}")
        timing = self._program.timing
        return result.seconds if timing.source == "wall" else printed_time(result.stdout, timing)


def printed_time(stdout: Path, timing: TimingConfig) -> float:
    """Return the printed seconds, the sum of all matches of the pattern."""
    with stdout.open("rb") as file:
        text = file.read(limits.MAX_PRINTED_BYTES).decode(errors="replace")
    numbers = [match[1] for match in re.finditer(timing.pattern or "", text)]
    try:
        seconds = sum(map(float, numbers)) * UNITS[timing.unit]
    except (TypeError, ValueError):
        raise VariantError(
            FailureKind.RUNTIME_ERROR, "the time that it prints is not a number"
        ) from None
    if not 0 < seconds < limits.MAX_PRINTED_SECONDS:
        printed = f"{seconds} s" if numbers else "no time"
        raise VariantError(
            FailureKind.RUNTIME_ERROR, f"it prints {printed}; the pattern is {timing.pattern}"
        )
    return seconds

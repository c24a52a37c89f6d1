"""Commands as processes of their own, with a time limit and without survivors."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ... import limits
from .configuration import Environment

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

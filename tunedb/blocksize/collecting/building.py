"""Copies of a program's folder, each built once."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...errors import NotFoundError, StorageError
from ...identity import canonical_json
from ...records import Failure, FailureKind, Phase
from .commands import command_for
from .configuration import Environment, Program
from .running import environment_of, run
from .state import State
from .variants import Variant


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
        raise NotFoundError(f"programs.{program.name}.directory: {folder} is no folder")
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

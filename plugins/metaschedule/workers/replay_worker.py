"""Code of the worker processes of :class:`~.replay_pool.ReplayPool`.

A worker opens the database itself, read-only, and gets ids of programs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from tvm.target import Target

from ....errors import BusyError, PluginError, SchemaError, StorageError, TuneDBError
from ....extraction.extract import reason_of
from ....features.base import NestFeatures, feature_set
from ....features.blobs import checked
from ....results import StoredProgram
from ....storage.store import Store
from ..failures import tidy
from ..targets import first_line
from .replay import Replayer

#: Rows of a program: number of rows and columns, and float32; or the reason in one line, and whole.
Answer = tuple[int, int, bytes] | tuple[str, str]

#: Errors that are no fault of a program.
_DATABASE = (BusyError, SchemaError, StorageError)


class _Worker:
    """The database, the replayer, and the feature set."""

    def __init__(self, url: str, name: str) -> None:
        from ..features.rows import rows_of

        features = feature_set(name)
        if not isinstance(features, NestFeatures):
            raise TypeError(f"{name} is not computed from modules")
        # Raises here if the set does not fit this TVM, which is no fault of a program.
        rows_of([], Target("llvm"), features)
        self.features = features
        self.store = Store(url, create=False, read_only=True)
        self.replayer = Replayer(self.store)
        self._rows_of = rows_of

    def rows(self, ids: Sequence[int]) -> Iterator[Answer]:
        """Yield the outcome of each program."""
        programs = self.store.programs.get(ids)
        for _, group in groupby(programs, key=lambda program: program.target_id):
            yield from self._of_target(list(group))

    def _of_target(self, programs: Sequence[StoredProgram]) -> Iterator[Answer]:
        try:
            target = self.replayer.target(programs[0])
            if target is None:
                raise PluginError("its record names no target")
        except TuneDBError as error:
            yield from [self._answer(error)] * len(programs)
            return
        replayed = [self._module(program) for program in programs]
        modules = [mod for mod in replayed if not isinstance(mod, Exception)]
        computed = iter(self._rows_of(modules, target, self.features, num_threads=1))
        for mod in replayed:
            yield self._answer(mod if isinstance(mod, Exception) else next(computed))

    def _module(self, program: StoredProgram) -> Any:
        try:
            return self.replayer.module(program)
        except _DATABASE:
            raise
        except Exception as error:  # TVM raises any class
            return error

    def _answer(self, rows: Any) -> Answer:
        try:
            if isinstance(rows, Exception):
                raise rows
            array = checked(self.features, rows)
        except TuneDBError as error:
            return reason_of(error), tidy(str(error))
        except Exception as error:
            return first_line(error), tidy(str(error))
        return (*array.shape, array.tobytes())


_worker: _Worker | None = None


def prepare(url: str, name: str) -> str | None:
    """Open the database and load the feature set; return the problem, or None."""
    global _worker  # noqa: PLW0603 - a process is one worker
    # Output of TVM must not mix with the data on the command's stdout.
    os.dup2(2, 1)
    try:
        _worker = _Worker(url, name)
    except Exception as error:
        return f"a worker process cannot start: {reason_of(error)}"
    return None


def rows(ids: Sequence[int]) -> list[Answer] | str:
    """Return the outcome of each program, in their order; or the error of the database."""
    if _worker is None:
        raise RuntimeError("not prepared")
    try:
        return list(_worker.rows(ids))
    except _DATABASE as error:
        return str(error)

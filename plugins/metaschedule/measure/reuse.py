"""A builder and a runner that neither build nor run known programs.

They wrap any builder and any runner, so they work under every search strategy: the strategy, the
cost model and the task scheduler get ordinary results.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
from tvm.s_tir.meta_schedule.builder.builder import BuilderResult, _PyBuilder
from tvm.s_tir.meta_schedule.runner.runner import RunnerFuture, RunnerResult, _PyRunner

from ....errors import PluginError
from ....records import Phase
from ....system.temporary import TemporaryFolder
from ..compat import register_errors
from .measured import ARTIFACT, KNOWN_TO_FAIL, Known, KnownProgram

__all__ = ["ReusingBuilder", "ReusingRunner"]

register_errors()


class ReusingBuilder(_PyBuilder):
    """A builder that skips known programs.

    A known program that ran gets a small file in place of an artifact, in a directory of its own,
    for a :class:`ReusingRunner` with the same :class:`~.measured.Known`; one that could not be
    built fails again with the stored message. All others go to the inner builder in one call and in
    their order. Before each batch it reads the new records of other tuning runs.

    Parameters
    ----------
    builder : tvm Builder
        Builder of the other programs.
    known : Known
        Known programs.

    Raises
    ------
    PluginError
        From :meth:`build`: the inner builder gave another number of results.

    Notes
    -----
    ``RemoveBuildArtifact`` removes the files; :meth:`close`, or the end of the builder, removes the
    others. Record with ``MeasureCallback``, which recognises these results; TVM's ``AddToDatabase``
    would store them again.
    """

    # Objects of tvm-ffi lack an instance dictionary.
    __slots__ = ("__dict__", "__weakref__")

    def __init__(self, builder: Any, known: Known) -> None:
        # The function holds the inner object and not `self`: a cycle through C++ is beyond the
        # garbage collector.
        inner = _Builds(builder, known)
        super().__init__(inner.build)
        self._inner = inner

    def build(self, build_inputs: Sequence[Any]) -> list[Any]:
        """Build a batch; one ``BuilderResult`` for each ``BuilderInput``, in their order."""
        return self._inner.build(build_inputs)

    def close(self) -> None:
        """Remove the files in place of artifacts and stop building; repeated calls do no harm."""
        self._inner.close()


class ReusingRunner(_PyRunner):
    """A runner that answers for known programs with their stored times.

    Parameters
    ----------
    runner : tvm Runner
        Runner of the other programs.
    known : Known
        Known programs of the :class:`ReusingBuilder`; it counts the reused results.

    Raises
    ------
    PluginError
        From :meth:`run`: the inner runner gave another number of results.
    """

    __slots__ = ("__dict__", "__weakref__")

    def __init__(self, runner: Any, known: Known) -> None:
        inner = _Runs(runner)
        super().__init__(inner.run)
        self._inner = inner
        self._known = known

    def run(self, runner_inputs: Sequence[Any]) -> list[Any]:
        """Run a batch; one future for each ``RunnerInput``, in their order."""
        return self._inner.run(runner_inputs)

    @property
    def served(self) -> int:
        """Number of candidates with reused results, known failures included."""
        return self._known.served

    @property
    def measured(self) -> int:
        """Number of candidates that went to the inner runner."""
        return self._inner.measured


class _Builds:
    """State of a builder."""

    def __init__(self, builder: Any, known: Known) -> None:
        self._builder = builder
        self._known = known
        self._folder = TemporaryFolder("known")
        self._numbers = itertools.count()

    def build(self, build_inputs: Sequence[Any]) -> list[Any]:
        inputs = list(build_inputs)
        self._known.refresh()
        programs = [self._known.find(item.mod, item.target) for item in inputs]
        fresh = [item for item, known in zip(inputs, programs, strict=True) if known is None]
        built = iter(_results(self._builder.build, fresh, "builder"))
        return [next(built) if known is None else self._reused(known) for known in programs]

    def close(self) -> None:
        self._folder.close()

    def _reused(self, known: KnownProgram) -> Any:
        """Return the build result of a known program."""
        self._known.served += 1
        if known.failure is not None and known.failure.phase is Phase.BUILD:
            return BuilderResult(None, _message(known))
        directory = self._folder.path / f"{next(self._numbers):06d}"
        directory.mkdir()
        path = directory / ARTIFACT
        error = _message(known) if known.failed else None
        path.write_bytes(orjson.dumps([known.run_secs, error]))
        return BuilderResult(str(path), None)


class _Runs:
    """State of a runner."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self.measured = 0

    def run(self, runner_inputs: Sequence[Any]) -> list[Any]:
        inputs = list(runner_inputs)
        paths = [Path(str(item.artifact_path)) for item in inputs]
        fresh = [i for i, path in zip(inputs, paths, strict=True) if path.name != ARTIFACT]
        self.measured += len(fresh)
        running = iter(_results(self._runner.run, fresh, "runner"))
        return [_stored(path) if path.name == ARTIFACT else next(running) for path in paths]


def _results(call: Any, inputs: list[Any], role: str) -> list[Any]:
    """Return the results of a builder or runner for all inputs, from one call."""
    results = list(call(inputs)) if inputs else []
    if len(results) != len(inputs):
        raise PluginError(f"the {role} gave {len(results)} results for {len(inputs)} candidates")
    return results


def _stored(path: Path) -> Any:
    """Return a finished future with the stored result of a known program."""
    run_secs, error = orjson.loads(path.read_bytes())
    result = RunnerResult(run_secs, error)
    return RunnerFuture(lambda: True, lambda: result)


def _message(known: KnownProgram) -> str:
    """Return the error message of a program that is known to fail."""
    if known.failure is None:
        return KNOWN_TO_FAIL
    return f"{KNOWN_TO_FAIL} ({known.failure.kind.value})\n{known.failure.message}"

"""A builder and a runner for which programs that are known need neither be built nor run.

They stand before any builder and any runner, so they work under every search strategy: what the
strategy, the cost model and the task scheduler get are ordinary results.
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
from .measured import ARTIFACT, SPEAKER, Known, KnownProgram

__all__ = ["ReusingBuilder", "ReusingRunner"]

register_errors()


class ReusingBuilder(_PyBuilder):
    """A builder that leaves known programs out.

    Those that ran get a small file in place of an artifact, in a directory of its own, which a
    :class:`ReusingRunner` with the same :class:`~.known.Known` takes; those that could not be
    built fail again with the message that is stored. All others go to the inner builder in one
    call and in their order. Before each batch it reads what other tuning runs have stored
    meanwhile.

    Parameters
    ----------
    builder : tvm Builder
        What builds.
    known : Known
        What need not be built.

    Raises
    ------
    PluginError
        From :meth:`build`: the inner builder gave another number of results.

    Notes
    -----
    ``RemoveBuildArtifact`` removes the files; what is left goes with :meth:`close`, or with the
    builder. Record with
    ``MeasureCallback``, which knows these results; TVM's ``AddToDatabase`` would store them again.
    """

    # Objects of tvm-ffi have no instance dictionary of their own.
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
        """Remove what stands in for artifacts; it builds no more. May be called again."""
        self._inner.close()


class ReusingRunner(_PyRunner):
    """A runner that answers for known programs with the times that are stored.

    Parameters
    ----------
    runner : tvm Runner
        What runs the others.
    known : Known
        That of the :class:`ReusingBuilder`; counts what was served.

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
        """Candidates for which known results stood in, those that are known to fail too."""
        return self._known.served

    @property
    def measured(self) -> int:
        """Candidates that went to the inner runner."""
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
        found = [self._known.find(item.mod, item.target) for item in inputs]
        fresh = [item for item, known in zip(inputs, found, strict=True) if known is None]
        built = iter(_asked(self._builder.build, fresh, "builder"))
        return [next(built) if known is None else self._stand_in(known) for known in found]

    def close(self) -> None:
        self._folder.close()

    def _stand_in(self, known: KnownProgram) -> Any:
        """Return the result of a program that is not built."""
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
        running = iter(_asked(self._runner.run, fresh, "runner"))
        return [_answer(path) if path.name == ARTIFACT else next(running) for path in paths]


def _asked(ask: Any, inputs: list[Any], what: str) -> list[Any]:
    """Return the results for all inputs, which are asked for in one call."""
    results = list(ask(inputs)) if inputs else []
    if len(results) != len(inputs):
        raise PluginError(f"the {what} gave {len(results)} results for {len(inputs)} candidates")
    return results


def _answer(path: Path) -> Any:
    """Return a future that is done, with what is known."""
    run_secs, error = orjson.loads(path.read_bytes())
    result = RunnerResult(run_secs, error)
    return RunnerFuture(lambda: True, lambda: result)


def _message(known: KnownProgram) -> str:
    """Return what a program that is known to fail says."""
    if known.failure is None:
        return SPEAKER
    return f"{SPEAKER} ({known.failure.kind.value})\n{known.failure.message}"

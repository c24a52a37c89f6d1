"""Code of the worker processes that run definitions and replay steps."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from cachetools import LRUCache

from ....errors import FormatError
from ....identity import canonical_json
from ....programs.ansor import join_steps
from ....programs.workload_info import signature_of
from ....records import Alias, Trace, Workload, WorkloadFormat
from .. import modules
from ..targets import first_line
from ..trace_codec import encode
from .definitions import Definition, Definitions
from .schedules import scheduled
from .stages import ReplayError, plan_of
from .workloads import DefinedWorkload

#: Workloads whose modules a process keeps.
_MAX_WORKLOADS = 64


class ModuleParts(NamedTuple):
    """A module as the database stores it.

    Parameters
    ----------
    workload : Workload
        The workload.
    aliases : list of Alias
        Its names.
    args_info : bytes
        TVM's description of its arguments.
    definition : str
        Name of the definition.
    """

    workload: Workload
    aliases: list[Alias]
    args_info: bytes
    definition: str


class Answer(NamedTuple):
    """A replayed record: the number of its module among the parts, and its trace."""

    module: int
    trace: Trace


class _Variant:
    """A workload as one definition computes it."""

    def __init__(self, name: str, definition: Definition, key: bytes) -> None:
        try:
            tensors = definition(*orjson.loads(key)[1:])
        except Exception as error:  # a definition may raise anything
            raise ReplayError(f"definition {name} raises: {first_line(error)}") from None
        try:
            self.defined = DefinedWorkload.from_tensors(tensors)
            _check_shapes(self.defined, key)
        except ReplayError as error:
            raise ReplayError(f"definition {name}: {error}") from None
        except Exception as error:  # TVM raises any class
            raise ReplayError(f"definition {name}: {first_line(error)}") from None
        self._shield = modules.shield(self.defined.mod)
        workload = modules.to_workload(self.defined.mod)
        arguments = [
            ["TENSOR", dtype, list(shape)]
            for dtype, shape in zip(self.defined.dtypes, self.defined.shapes, strict=True)
        ]
        self.parts = ModuleParts(
            workload,
            modules.aliases(self.defined.mod, workload.script or ""),
            canonical_json(arguments),
            name,
        )

    def replay(self, trace: Trace) -> Trace:
        """Return the trace of a program of today."""
        steps, layout_rewrite = join_steps(trace)
        plan = plan_of(self.defined.stages(), steps)
        schedule = scheduled(self.defined, plan, rewrites_layout=bool(layout_rewrite))
        return encode(schedule.trace)


def _check_shapes(defined: DefinedWorkload, key: bytes) -> None:
    """Raise ReplayError unless the arguments have the shapes in the log."""
    signature = signature_of(Workload(WorkloadFormat.ANSOR, key))
    if signature.arguments is not None:
        # A variant may have more arguments than the key tells.
        shapes = iter(defined.shapes)
        fits = all(shape in shapes for _, shape in signature.arguments)
    else:
        dimensions = orjson.loads(key)[1:]
        is_flat = all(type(value) is int for value in dimensions)
        # Behind a hash there are the dimensions of all arguments.
        fits = (
            not is_flat
            or not dimensions
            or signature.function is not None
            or dimensions == list(chain.from_iterable(defined.shapes))
        )
    if not fits:
        raise ReplayError("its arguments have other shapes than the log says")


class _Worker:
    """The definitions, and the workloads that they computed."""

    def __init__(self, statements: Sequence[str]) -> None:
        self.definitions = Definitions(statements)
        self._variants: LRUCache[bytes, list[_Variant | str]] = LRUCache(_MAX_WORKLOADS)

    def define(self, key: bytes) -> list[_Variant | str]:
        """Return the variants of a workload, with the reason for each that fails."""
        variants = self._variants.get(key)
        if variants is None:
            variants = self._variants[key] = []
            for name, definition in self.definitions.variants(orjson.loads(key)[0]):
                try:
                    variants.append(_Variant(name, definition, key))
                except ReplayError as error:
                    variants.append(str(error))
        return variants

    def replay(self, key: bytes, traces: Sequence[Trace]) -> tuple[list[ModuleParts], list[Any]]:
        parts: list[ModuleParts] = []
        answers = [self._replay_one(self.define(key), trace, parts) for trace in traces]
        return parts, answers

    def _replay_one(
        self, variants: list[_Variant | str], trace: Trace, parts: list[ModuleParts]
    ) -> Answer | str:
        """Return the answer of the first variant that fits the steps, or the reason for none."""
        reasons = []
        for variant in variants:
            if isinstance(variant, str):
                reasons.append(variant)
                continue
            try:
                replayed = variant.replay(trace)
            except FormatError as error:
                reasons.append(f"{variant.parts.definition}: {error}")
            except Exception as error:  # TVM raises any class
                reasons.append(f"{variant.parts.definition}: {first_line(error)}")
            else:
                if variant.parts not in parts:
                    parts.append(variant.parts)
                return Answer(parts.index(variant.parts), replayed)
        return "; ".join(reasons)


_worker: _Worker | None = None


def prepare(statements: Sequence[str]) -> str | None:
    """Load the definitions; return the problem, or None."""
    global _worker  # noqa: PLW0603 - a process is one worker
    # Output of TVM and of definitions must not mix with the data on the command's stdout.
    os.dup2(2, 1)
    # Modules beside the user, as ``python -m`` finds them.
    sys.path.insert(0, str(Path.cwd()))
    try:
        _worker = _Worker(statements)
    except Exception as error:
        return f"a definition does not load: {first_line(error)}"
    return None


def define(key: bytes) -> int:
    """Return the number of definitions of a workload, after they ran."""
    return len(_the_worker().define(key))


def replay(key: bytes, traces: Sequence[Trace]) -> tuple[list[ModuleParts], list[Answer | str]]:
    """Return modules, and for each program its answer or the reason for none."""
    return _the_worker().replay(key, traces)


def _the_worker() -> _Worker:
    if _worker is None:
        raise RuntimeError("not prepared")
    return _worker

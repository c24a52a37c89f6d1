"""Code of the worker processes that run definitions and replay steps.

A workload whose log has a hash in place of a name is compared with the user's own functions: one
whose arguments have the shapes in the log, and on whose stages the steps replay, is that workload.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from string import hexdigits
from typing import Any, NamedTuple, TypeAlias

import orjson
import tvm
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
from .translation import Translation
from .workloads import DefinedWorkload

#: Workloads whose modules a process keeps.
_MAX_WORKLOADS = 64
#: Sketches whose translations it keeps.
_MAX_SKETCHES = 1_024
_HASH_DIGITS = 32


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
        Name of the definition or function.
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
    """A workload as a definition or a function of the user computes it.

    Parameters
    ----------
    name : str
        Name of the definition or function.
    defined : DefinedWorkload
        The workload.
    is_guess : bool
        Whether shapes alone say that it is the workload of the log. auto_scheduler transforms every
        stage, so a stage that no step is about shows that it is not.
    """

    def __init__(self, name: str, defined: DefinedWorkload, *, is_guess: bool = False) -> None:
        self.defined = defined
        self.is_guess = is_guess
        self._shield = modules.shield(defined.mod)
        workload = modules.to_workload(defined.mod)
        arguments = [
            ["TENSOR", dtype, list(shape)]
            for dtype, shape in zip(defined.dtypes, defined.shapes, strict=True)
        ]
        self.parts = ModuleParts(
            workload,
            modules.aliases(defined.mod, workload.script or ""),
            canonical_json(arguments),
            name,
        )

    def replay(self, trace: Trace) -> tuple[Trace, Translation | None]:
        """Return the trace of a program of today, and the translation of its sketch, if any."""
        steps, layout_rewrite = join_steps(trace)
        plan = plan_of(self.defined.stages(), steps)
        if self.is_guess:
            for stage in plan.stages:
                if not (stage.is_input or stage.is_touched):
                    raise ReplayError(f"no step is about {stage.name}")
        replayed = scheduled(self.defined, plan, rewrites_layout=bool(layout_rewrite))
        made = encode(replayed.schedule.trace)
        if replayed.choices is None:
            return made, None
        return made, Translation.learnt(trace, made, replayed.choices)


def _defined(name: str, definition: Definition, key: bytes) -> _Variant:
    """Return a workload as a definition computes it."""
    try:
        tensors = definition(*orjson.loads(key)[1:])
    except Exception as error:  # a definition may raise anything
        raise ReplayError(f"definition {name} raises: {first_line(error)}") from None
    try:
        defined = DefinedWorkload.from_tensors(tensors)
        _check_shapes(defined, key)
    except ReplayError as error:
        raise ReplayError(f"definition {name}: {error}") from None
    except Exception as error:  # TVM raises any class
        raise ReplayError(f"definition {name}: {first_line(error)}") from None
    return _Variant(name, defined)


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


def have_dimensions(shapes: Sequence[tuple[int, ...]], dimensions: Sequence[Any]) -> bool:
    """Return whether arguments of these shapes have the dimensions in a workload key.

    The order of the arguments is free: that of a network is not the one of auto_scheduler.

    Parameters
    ----------
    shapes : sequence of tuple of int
        Shapes of the arguments, the output last.
    dimensions : sequence of int, or of list of int
        What follows the hash in the key: the dimensions of all arguments, in one list or one list
        for each, the output last. Keys of old releases have none.
    """
    if not dimensions:
        return True
    parts: list[tuple[Any, ...]]
    if all(type(value) is int for value in dimensions):
        given, parts = tuple(dimensions), [tuple(shape) for shape in shapes]
    else:
        given = tuple(tuple(each) if isinstance(each, list) else each for each in dimensions)
        parts = [(tuple(shape),) for shape in shapes]
    *inputs, output = parts
    end = len(given) - len(output)
    if end < 0 or given[end:] != output:
        return False
    # Arguments that are left at a place; a shape that several have is one way on.
    places: dict[tuple[int, tuple[Any, ...]], None] = {(0, tuple(sorted(inputs))): None}
    while places:
        (place, left), _ = places.popitem()
        if not left and place == end:
            return True
        for number, part in enumerate(left):
            after = place + len(part)
            if part not in left[:number] and given[place:after] == part:
                places[after, left[:number] + left[number + 1 :]] = None
    return False


#: Module and translation of a sketch.
_Known: TypeAlias = "tuple[ModuleParts, Translation] | None"


class _Worker:
    """The definitions and functions, and the workloads that they computed."""

    def __init__(self, statements: Sequence[str], functions: Mapping[str, str]) -> None:
        self.definitions = Definitions(statements)
        self._functions: list[_Variant] = []
        for name, text in functions.items():
            # A function that auto_scheduler cannot have tuned, such as one of opaque blocks.
            with suppress(Exception):
                defined = DefinedWorkload.from_module(tvm.ir.load_json(text))
                self._functions.append(_Variant(name, defined, is_guess=True))
        self._variants: LRUCache[bytes, list[_Variant | str]] = LRUCache(_MAX_WORKLOADS)
        #: By workload and sketch, with the parts of the module; None where records of the sketch
        #: differ in more than decisions.
        self._translations: LRUCache[tuple[bytes, bytes], _Known] = LRUCache(_MAX_SKETCHES)

    def define(self, key: bytes) -> list[_Variant | str]:
        """Return the variants of a workload, with the reason for each that fails."""
        variants = self._variants.get(key)
        if variants is None:
            variants = self._variants[key] = []
            function, *arguments = orjson.loads(key)
            for name, definition in self.definitions.variants(function):
                try:
                    variants.append(_defined(name, definition, key))
                except ReplayError as error:
                    variants.append(str(error))
            if _is_hash(function):
                variants += [
                    each
                    for each in self._functions
                    if have_dimensions(each.defined.shapes, arguments)
                ]
        return variants

    def replay(self, key: bytes, traces: Sequence[Trace]) -> tuple[list[ModuleParts], list[Any]]:
        """Return modules, and for each record its answer or the reason for none.

        Records of a sketch are translated after the first one is replayed. The last of them here is
        replayed, too: if it differs, so are all others of the sketch.
        """
        parts: list[ModuleParts] = []
        answers: list[Answer | str | None] = [None] * len(traces)
        translated: dict[bytes, list[int]] = {}
        for number, trace in enumerate(traces):
            answers[number] = self._translate(key, trace, parts)
            if answers[number] is None:
                answers[number] = self._replay_one(key, trace, parts)
            else:
                translated.setdefault(trace.sketch, []).append(number)
        for sketch, numbers in translated.items():
            last = self._replay_one(key, traces[numbers[-1]], parts)
            if last != answers[numbers[-1]]:
                self._translations[key, sketch] = None
                for number in numbers:
                    answers[number] = self._replay_one(key, traces[number], parts)
        return parts, answers

    def _translate(self, key: bytes, trace: Trace, parts: list[ModuleParts]) -> Answer | None:
        known = self._translations.get((key, trace.sketch))
        if known is None:
            return None
        module, translation = known
        translated = translation.of(trace)
        return None if translated is None else _answer(module, translated, parts)

    def _replay_one(self, key: bytes, trace: Trace, parts: list[ModuleParts]) -> Answer | str:
        """Return the answer of the first variant that fits the steps, or the reason for none.

        The reason is empty where only functions of the user were tried: none of them is it.
        """
        reasons = []
        for variant in self.define(key):
            if isinstance(variant, str):
                reasons.append(variant)
                continue
            try:
                replayed, translation = variant.replay(trace)
            except Exception as error:  # TVM raises any class
                message = str(error) if isinstance(error, FormatError) else first_line(error)
                if not variant.is_guess:
                    reasons.append(f"{variant.parts.definition}: {message}")
            else:
                if translation is not None:
                    self._translations.setdefault((key, trace.sketch), (variant.parts, translation))
                return _answer(variant.parts, replayed, parts)
        return "; ".join(reasons)


def _answer(module: ModuleParts, trace: Trace, parts: list[ModuleParts]) -> Answer:
    if module not in parts:
        parts.append(module)
    return Answer(parts.index(module), trace)


def _is_hash(function: str) -> bool:
    """Return whether a workload is named by the MD5 of its computation."""
    return len(function) == _HASH_DIGITS and set(function) <= set(hexdigits)


_worker: _Worker | None = None


def prepare(statements: Sequence[str], functions: Mapping[str, str]) -> str | None:
    """Load the definitions, and functions from TVM's JSON by name; return the problem, or None."""
    global _worker  # noqa: PLW0603 - a process is one worker
    # Output of TVM and of definitions must not mix with the data on the command's stdout.
    os.dup2(2, 1)
    # Modules beside the user, as ``python -m`` finds them.
    sys.path.insert(0, str(Path.cwd()))
    try:
        _worker = _Worker(statements, functions)
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

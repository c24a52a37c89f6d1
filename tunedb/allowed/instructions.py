"""Programs of MetaSchedule that a foreign source may give, by their stored parts.

What may stand in them is listed in :mod:`tunedb.allowed.values`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from reprlib import repr as shown  # bounded: a value may be long and deep
from typing import Any

import orjson

from .. import limits
from ..errors import FormatError
from ..identity import canonical_json
from ..traces import INSTRUCTIONS, NO_OUTPUT, check_arity
from .values import (
    KINDS,
    LISTS,
    MAPPED,
    NUMBERS,
    REMOVABLE,
    TEXTS,
    check_attrs,
    check_index_map,
    is_int,
    is_name,
)

_PLACE: dict[str, Any] = {}
_MAX_NESTING = 3
_TILINGS = frozenset({"SamplePartitionedTile", "SamplePerfectTile"})

#: What nearly all decisions look like, once they are known to be JSON: pairs of an index and an
#: integer or a list of them, and two lists of numbers. Numbers of 19 digits may be too long.
_PLAIN = re.compile(
    rb"\[\[(?:\[\d{1,6},(?:-?\d++|\[[-\d,]*+\])\],?)*+\],\[[-+.\deE,]*+\],\[[-+.\deE,]*+\]\]"
)
_LONG = re.compile(rb"\d{19}")


@dataclass(frozen=True, slots=True)
class Facts:
    """What a sketch or a tail has.

    Parameters
    ----------
    length : int
        Instructions.
    places : int
        Numbers among the inputs, which stand with the decisions.
    sampling : dict
        Index of each sampling instruction → whether its decision is a list.
    defined, free : frozenset of str
        Variables that it defines, and those that it uses without.
    """

    length: int
    places: int
    sampling: dict[int, bool]
    defined: frozenset[str]
    free: frozenset[str]


def part(body: bytes) -> Facts:
    """Return what a sketch or tail has.

    Parameters
    ----------
    body : bytes
        Canonical JSON of its instructions, as it is stored.

    Raises
    ------
    FormatError
        It holds what is not allowed.
    """
    try:
        instructions = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise FormatError(f"not JSON: {error}") from None
    if not isinstance(instructions, list):
        raise FormatError("no list of instructions")
    if len(instructions) > limits.MAX_FOREIGN_STEPS:
        raise FormatError(f"{len(instructions)} instructions, over {limits.MAX_FOREIGN_STEPS}")
    looked = _Part()
    for index, instruction in enumerate(instructions):
        looked.take(index, instruction)
    if canonical_json(instructions) != body:
        raise FormatError("not in the canonical form")
    return Facts(
        len(instructions),
        looked.places,
        looked.sampling,
        frozenset(looked.defined),
        frozenset(looked.free),
    )


class _Part:
    """One part while it is looked at."""

    def __init__(self) -> None:
        self.places = 0
        self.sampling: dict[int, bool] = {}
        self.defined: set[str] = set()
        self.free: set[str] = set()

    def take(self, index: int, instruction: Any) -> None:
        """Look at an instruction."""
        if not (
            isinstance(instruction, list)
            and len(instruction) == 4
            and isinstance(instruction[0], str)
            and all(isinstance(field, list) for field in instruction[1:])
        ):
            raise FormatError(f"instruction {index} is not [kind, inputs, attrs, outputs]")
        kind, inputs, attrs, outputs = instruction
        if kind not in KINDS:
            raise FormatError(f"instruction {index} is {shown(kind)}, which is not allowed")
        check_arity(kind, index, len(inputs), len(attrs))
        where = f"{kind} at {index}"
        if kind == "Annotate":
            self._annotation(where, *inputs, *attrs)
        else:
            for value in inputs:
                self._input(where, kind, value, _MAX_NESTING)
            check_attrs(where, kind, inputs, attrs)
        if kind in INSTRUCTIONS and INSTRUCTIONS[kind][2]:
            self.sampling[index] = kind in _TILINGS
        for name in outputs:
            if name == NO_OUTPUT:
                continue
            if not is_name(name) or name in self.defined:
                raise FormatError(f"{where} has the output {shown(name)}, which is no new variable")
            self.defined.add(name)

    def _use(self, name: str) -> None:
        if name not in self.defined:
            self.free.add(name)

    def _input(self, where: str, kind: str, value: Any, depth: int) -> None:
        """Look at an input that is no annotation's."""
        if isinstance(value, str):
            if is_name(value):
                self._use(value)
            elif value[:1] == "{" and kind in MAPPED:
                check_index_map(where, value)
            elif value != "None":
                raise FormatError(f"{where} has the text {shown(value)} among its inputs")
        elif value == _PLACE:
            self.places += 1
        elif isinstance(value, list) and depth:
            for item in value:
                self._input(where, kind, item, depth - 1)
        else:
            raise FormatError(f"{where} has {shown(value)} among its inputs")

    def _annotation(self, where: str, place: Any, value: Any, key: Any) -> None:
        """Look at an annotation: of what, with what value, under which key."""
        if not is_name(place):
            raise FormatError(f"{where} annotates {shown(place)}")
        self._use(place)
        if not isinstance(key, str) or key not in REMOVABLE or key == "schedule_rule":
            raise FormatError(f"{where}: the annotation {shown(key)} is not allowed")
        if isinstance(value, list):
            if key not in LISTS or any(item != _PLACE for item in value):
                raise FormatError(f"{where}: {key} is {shown(value)}, which is not allowed")
            self.places += len(value)
        elif isinstance(value, str) and not is_name(value):
            text = value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else None
            if text is None or key not in TEXTS or TEXTS[key].fullmatch(text) is None:
                raise FormatError(f"{where}: {key} is {shown(value)}, which is not allowed")
        elif key not in NUMBERS or not (isinstance(value, bool | str) or value == _PLACE):
            raise FormatError(f"{where}: {key} is {shown(value)}, which is not allowed")
        elif isinstance(value, str):
            self._use(value)
        elif value == _PLACE:
            self.places += 1


# ---- decisions ----------------------------------------------------------------------------------


def check_begins(sketch: Facts) -> None:
    """Raise FormatError for a sketch that uses a variable before it is defined."""
    if sketch.free:
        raise FormatError(f"sketch: {min(sketch.free)!r} is used before it is defined")


def check_decisions(decisions: bytes) -> None:
    """Raise FormatError unless these are decisions and numbers.

    Parameters
    ----------
    decisions : bytes
        As they are stored.
    """
    before = -1
    for index, value in _read(decisions)[0]:
        if index <= before:
            raise FormatError(f"decisions: {shown([index, value])} is out of order")
        before = index


def check_program(sketch: Facts, tail: Facts | None, decisions: bytes) -> None:
    """Raise FormatError unless allowed parts belong together.

    Parameters
    ----------
    sketch, tail : Facts
        What :func:`part` said of them.
    decisions : bytes
        As they are stored.
    """
    if sketch.free:
        check_begins(sketch)
    chosen, first, second = _read(decisions)
    sampling, places = sketch.sampling, 0
    if tail is not None:
        places = tail.places
        _check_tail(sketch, tail)
        if tail.sampling:
            more = tail.sampling.items()
            sampling = sampling | {sketch.length + index: is_list for index, is_list in more}
    if len(first) != sketch.places or len(second) != places:
        raise FormatError(
            f"decisions: {len(first)} and {len(second)} numbers for {sketch.places} and {places} "
            "places"
        )
    before = -1
    for index, value in chosen:
        if index <= before:
            raise FormatError(f"decisions: {shown([index, value])} is out of order")
        before = index
        if sampling.get(index) is not (type(value) is list):
            raise FormatError(f"decisions: {shown(value)} for instruction {index} is none")


def _check_tail(sketch: Facts, tail: Facts) -> None:
    """Raise FormatError unless a tail goes on where a sketch ends."""
    length = sketch.length + tail.length
    if length > limits.MAX_FOREIGN_STEPS:
        raise FormatError(f"{length} instructions, over {limits.MAX_FOREIGN_STEPS}")
    if not tail.free <= sketch.defined:
        name = min(tail.free - sketch.defined)
        raise FormatError(f"tail: {name!r} is used before it is defined")
    if not tail.defined.isdisjoint(sketch.defined):
        raise FormatError("tail: it defines a variable of the sketch again")


def _read(decisions: bytes) -> tuple[list[Any], list[Any], list[Any]]:
    """Return decisions and the numbers of sketch and tail, or raise FormatError."""
    if len(decisions) > limits.MAX_FOREIGN_DECISION_BYTES:
        raise FormatError(
            f"decisions of {len(decisions)} bytes, over {limits.MAX_FOREIGN_DECISION_BYTES}"
        )
    is_plain = _PLAIN.fullmatch(decisions) is not None and _LONG.search(decisions) is None
    try:
        chosen, first, second = orjson.loads(decisions)
        if not is_plain:
            _check_numbers(chosen, first, second)
    except (TypeError, ValueError) as error:
        raise FormatError(f"decisions: not those of a trace ({error})") from None
    return chosen, first, second


def _check_numbers(chosen: Any, first: Any, second: Any) -> None:
    """Raise FormatError, TypeError or ValueError for what is no decision or no number."""
    for index, value in chosen:
        values = value if type(value) is list else [value]
        if type(index) is not int or not all(map(is_int, values)):
            raise FormatError(f"decisions: {shown([index, value])} is none")
    for numbers in (first, second):
        if type(numbers) is not list or not all(type(n) is float or is_int(n) for n in numbers):
            raise FormatError(f"decisions: {shown(numbers)} are no numbers")

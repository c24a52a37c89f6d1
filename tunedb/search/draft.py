"""Drafts: traces that are being changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from .. import identity
from ..errors import FormatError, UsageError
from ..programs.metaschedule.instructions import SAMPLING, TILINGS
from ..programs.metaschedule.trace import dump_value, join_trace, split_trace
from ..records import Trace


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction as a stored trace has it, with the literals put back.

    Parameters
    ----------
    kind : str
        One of :data:`tunedb.programs.metaschedule.instructions.INSTRUCTIONS`.
    inputs : tuple
        Variables (``b0`` a block, ``l3`` a loop, ``v2`` a number), ``"None"``, numbers, and text
        in quotes of its own; lists are tuples.
    attrs : tuple
        Values that the schedule rule fixes; lists are tuples.
    outputs : tuple of str
        Variables that it defines.
    """

    kind: str
    inputs: tuple[Any, ...]
    attrs: tuple[Any, ...]
    outputs: tuple[str, ...]

    @property
    def is_sampling(self) -> bool:
        """True if the instruction takes a decision."""
        return self.kind in SAMPLING


class StoredForm(NamedTuple):
    """Instructions in their stored form.

    Parameters
    ----------
    sketch : bytes
        Canonical JSON of the instructions without the numbers among their inputs.
    literals : bytes
        Canonical JSON of those numbers.
    """

    sketch: bytes
    literals: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """A trace that is being changed: instructions and decisions, without post-processing.

    Drafts are values: every change makes another one, which shares what is equal. Two drafts are
    equal if their instructions and decisions are.

    Parameters
    ----------
    instructions : tuple of Instruction
        Those before ``EnterPostproc``.
    decisions : mapping of int to list of int or int
        Decisions by the number of the sampling instruction; never changed in place. TVM draws
        those that are missing when it replays the trace.
    """

    instructions: tuple[Instruction, ...]
    decisions: Mapping[int, Any]
    _form: StoredForm | None = field(default=None, repr=False)
    _key: bytes | None = field(default=None, repr=False)
    _trace: Trace | None = field(default=None, repr=False)

    @classmethod
    def from_trace(cls, trace: Trace) -> Draft:
        """Return a stored trace as a draft; its post-processing is dropped.

        Parsed sketches are cached, because few of them serve many programs.

        Parameters
        ----------
        trace : Trace
            Trace in the instructions of today's TVM
            (:func:`tunedb.programs.metaschedule.upgrade.upgrade`).

        Raises
        ------
        FormatError
            The parts of the trace are damaged or do not belong together.
        """
        try:
            numbered, literals, _ = orjson.loads(trace.decisions)
            form = StoredForm(trace.sketch, identity.canonical_json(literals))
            instructions = instructions_of(form)
            decisions = {number: value for number, value in numbered if number < len(instructions)}
        except (TypeError, ValueError) as error:
            raise FormatError(f"cannot read a stored trace: {error}") from error
        return cls(instructions, decisions, form)

    def trace(self) -> Trace:
        """Return the stored form, without a tail.

        Raises
        ------
        FormatError
            A decision or an input has no JSON form.
        """
        trace = self._trace
        if trace is None:
            form = self.form
            ordered = [[number, self.decisions[number]] for number in sorted(self.decisions)]
            trace = Trace(form.sketch, None, b"[%b,%b,[]]" % (_dumped(ordered), form.literals))
            object.__setattr__(self, "_trace", trace)
        return trace

    def with_decision(self, number: int, value: Any) -> Draft:
        """Return the draft with another decision of one instruction.

        Parameters
        ----------
        number : int
            Position of a sampling instruction.
        value : sequence of int or int
            Factors of a tile, outermost first, or the number of a category or location.

        Returns
        -------
        Draft
            A new draft, which shares the instructions.

        Raises
        ------
        UsageError
            The instruction takes no decision.
        """
        if not (0 <= number < len(self.instructions) and self.instructions[number].is_sampling):
            raise UsageError(f"instruction {number} of the trace takes no decision")
        decision = value if isinstance(value, int) else list(value)
        return self.with_decisions({**self.decisions, number: decision})

    def with_decisions(self, decisions: Mapping[int, Any]) -> Draft:
        """Return the draft with these decisions instead of its own."""
        return Draft(self.instructions, decisions, self.form)

    def without_decision(self, number: int) -> Draft:
        """Return the draft with one decision left to TVM, which draws it when it replays."""
        return self.with_decisions(
            {key: value for key, value in self.decisions.items() if key != number}
        )

    @property
    def tiles(self) -> dict[int, Sequence[int]]:
        """Decisions of the sampled tiles by number: factors, outermost first."""
        tilings = _tilings_of(self.form)
        return {n: value for n, value in self.decisions.items() if n in tilings}

    @property
    def skeleton(self) -> bytes:
        """The sketch without its numbers; drafts of one skeleton take the same decisions."""
        return self.form.sketch

    @property
    def key(self) -> bytes:
        """Digest of instructions and decisions, 16 bytes."""
        key = self._key
        if key is None:
            trace = self.trace()
            sketch = identity.shared_digest("sketch", trace.sketch)
            key = identity.digest("draft", sketch, trace.decisions)
            object.__setattr__(self, "_key", key)
        return key

    @property
    def form(self) -> StoredForm:
        """The instructions in their stored form; a key for everything that follows from them."""
        form = self._form
        if form is None:
            form = _form_of(self.instructions)
            object.__setattr__(self, "_form", form)
        return form

    def __eq__(self, other: object) -> bool:
        return self.key == other.key if isinstance(other, Draft) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.key)


@lru_cache(maxsize=512)
def instructions_of(form: StoredForm) -> tuple[Instruction, ...]:
    """Return instructions from their stored form; those of the latest forms are shared.

    Parameters
    ----------
    form : StoredForm
        Sketch and literals.

    Raises
    ------
    FormatError, TypeError, ValueError
        The stored form is damaged.
    """
    listed, _ = join_trace(Trace(form.sketch, None, b"[[],%b,[]]" % form.literals))
    instructions = tuple([Instruction(*_frozen(fields)) for fields in listed])
    for each in instructions:
        if not all(isinstance(field, tuple) for field in (each.inputs, each.attrs, each.outputs)):
            raise ValueError("an instruction is not [kind, inputs, attrs, outputs]")
    return instructions


@lru_cache(maxsize=512)
def _tilings_of(form: StoredForm) -> frozenset[int]:
    """Return the numbers of the instructions that sample a tile."""
    listed = enumerate(instructions_of(form))
    return frozenset(number for number, each in listed if each.kind in TILINGS)


def _dumped(decisions: list[Any]) -> bytes:
    """Return decisions as canonical JSON; nearly all are integers."""
    try:
        data = orjson.dumps(decisions)
    except TypeError:  # an integer of more than 64 bits, or no JSON value
        return dump_value(decisions)
    return dump_value(decisions) if data.translate(None, b"0123456789[],-") else data


def _form_of(instructions: tuple[Instruction, ...]) -> StoredForm:
    listed = [
        [each.kind, _thawed(each.inputs), _thawed(each.attrs), list(each.outputs)]
        for each in instructions
    ]
    trace = split_trace(listed, [])
    return StoredForm(trace.sketch, identity.canonical_json(orjson.loads(trace.decisions)[1]))


def _frozen(value: Any) -> Any:
    """Return a JSON value with tuples for lists, because it is shared."""
    return tuple([_frozen(item) for item in value]) if isinstance(value, list) else value


def _thawed(value: Any) -> Any:
    """Undo :func:`_frozen`."""
    return [_thawed(item) for item in value] if isinstance(value, list | tuple) else value

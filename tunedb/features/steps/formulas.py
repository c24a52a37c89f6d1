"""Builder of formulas, the arithmetic that computes columns from a program's decisions."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from enum import IntEnum

from ...errors import FormatError
from .._steps import Formula
from .columns import COLUMNS, DEVICE, TAIL, TAIL_DEPTHS, TASK

#: A number of a formula: the operation that makes it.
Value = int

#: Most operations of one formula, and most values in its lists. Those of real sketches stay below
#: 1,500.
MAX_OPERATIONS = 20_000
_TOO_LARGE = f"a sketch that takes more than {MAX_OPERATIONS} operations"

#: Largest magnitude of a column, so that float32 holds it (``_steps.BOUND``).
BOUND = 1e30

#: Messages for programs whose status is not 0 (``_steps``).
COMPLAINTS = (
    "",
    "decisions that are damaged",
    "a decision for an instruction that takes none, or out of order",
    "more or fewer numbers than the steps have places",
    "no memory",
)

_COLUMN = {name: number for number, name in enumerate(COLUMNS)}
_TAIL = {name: number for number, name in enumerate(TAIL)}
_DEVICE = {name: number for number, name in enumerate(DEVICE)}
_TASK = {name: number for number, name in enumerate(TASK)}


#: To here float64 holds every whole number.
_WHOLE = 2.0**53


class Op(IntEnum):
    """Operations, numbered as in ``_steps``."""

    CONST = 0
    SLOT = 1
    TAIL = 2
    DEVICE = 3
    TASK = 4
    ADD = 5
    SUB = 6
    MUL = 7
    DIV = 8
    CEILDIV = 9
    GCD = 10
    LEAST = 11
    GREATEST = 12
    SUM = 13
    PRODUCT = 14
    PREFIX = 15
    PICK = 16
    WITHIN = 17


class Stored(IntEnum):
    """How decisions are stored, numbered as in ``_steps``."""

    TRACE = 0
    VARINTS = 1
    KNOBS = 2


class Builder:
    """Collects operations and columns, and builds the :class:`~tunedb.features._steps.Formula`.

    Any method raises FormatError for a sketch that takes too many operations.

    A method takes values and returns one. None is an unknown number: results computed from it are
    None too, but :meth:`greatest`, :meth:`least` and :meth:`total` skip it. The column of an
    unknown number is 0.

    Parameters
    ----------
    stored : Stored
        Storage form of the decisions.
    n_extents : int
        Number of extents of the workload.
    """

    def __init__(self, stored: Stored, n_extents: int) -> None:
        self.stored = stored
        self.n_extents = n_extents
        self.n_slots: int = 0
        self.decisions: list[tuple[int, int, int]] = []
        self.n_literals: int = 0
        self._constants: list[float] = []
        self._lists: list[int] = []
        self._operations: list[tuple[int, int, int, int]] = []
        self._memo: dict[tuple[int, ...], Value] = {}
        self._known: dict[Value, float] = {}
        self._numbers: dict[float, Value] = {}
        self._outputs: list[tuple[int, int, int]] = []
        self._row = array("f", bytes(4 * len(COLUMNS)))

    # ------------------------------------------------------------------ inputs

    def slots(self, count: int) -> list[Value]:
        """Return the next `count` numbers of the decisions."""
        first = self.n_slots
        self.n_slots += count
        return [self._operation(Op.SLOT, slot) for slot in range(first, self.n_slots)]

    def decision(self, instruction: int, count: int | None) -> list[Value]:
        """Return the decision of a trace's instruction: `count` numbers, None for a single one."""
        first = self.n_slots
        values = self.slots(1 if count is None else count)
        self.decisions.append((instruction, first, -1 if count is None else count))
        return values

    def literals(self, count: int) -> list[Value]:
        """Return the literals of a trace's sketch; no other numbers may follow."""
        self.n_literals = count
        return self.slots(count)

    def const(self, number: float) -> Value:
        """Return a number."""
        number = float(number)
        found = self._numbers.get(number)
        if found is None:
            self._constants.append(number)
            found = self._operation(Op.CONST, len(self._constants) - 1)
            self._numbers[number] = found
            self._known[found] = number
        return found

    def tail(self, name: str) -> Value:
        """Return the tail's fact of a name in :data:`.columns.TAIL`."""
        return self._operation(Op.TAIL, _TAIL[name])

    def vector_loops(self, depth: int) -> Value | None:
        """Return the number of loops of a block of that depth that the tail vectorised."""
        return self._operation(Op.TAIL, len(TAIL) + depth) if depth < TAIL_DEPTHS else None

    def device(self, name: str) -> Value:
        """Return the target's fact of a name in :data:`.columns.DEVICE`."""
        return self._operation(Op.DEVICE, _DEVICE[name])

    def task(self, name: str) -> Value:
        """Return the workload's fact of a name in :data:`.columns.TASK`."""
        return self._operation(Op.TASK, _TASK[name])

    def extent(self, number: int) -> Value:
        """Return one of the workload's extents, which follow its other numbers."""
        return self._operation(Op.TASK, len(TASK) + number)

    # ------------------------------------------------------------------ arithmetic

    def add(self, a: Value | None, b: Value | None) -> Value | None:
        """Return ``a + b``."""
        return self._binary(Op.ADD, a, b)

    def sub(self, a: Value | None, b: Value | None) -> Value | None:
        """Return ``a - b``."""
        return self._binary(Op.SUB, a, b)

    def mul(self, a: Value | None, b: Value | None) -> Value | None:
        """Return ``a * b``."""
        return self._binary(Op.MUL, a, b)

    def div(self, a: Value | None, b: Value | None) -> Value | None:
        """Return ``a / b``; unknown if b is 0."""
        return self._binary(Op.DIV, a, b)

    def ceildiv(self, a: Value | None, b: Value | None) -> Value | None:
        """Return ``a / b``, rounded up; unknown if b is 0."""
        return self._binary(Op.CEILDIV, a, b)

    def gcd(self, a: Value | None, b: Value | None) -> Value | None:
        """Return the greatest common divisor; unknown unless both are whole numbers from 1 on."""
        return self._binary(Op.GCD, a, b)

    def product(self, values: Iterable[Value | None]) -> Value | None:
        """Return the product, 1 of no values."""
        factor = 1.0
        rest: list[Value] = []
        for value in values:
            if value is None:
                return None
            if value in self._known:
                factor *= self._known[value]
            else:
                rest.append(value)
        if not rest:
            return self.const(factor)
        found = rest[0] if len(rest) == 1 else self._listed(Op.PRODUCT, rest)
        return found if factor == 1.0 else self.mul(found, self.const(factor))

    def greatest(self, values: Iterable[Value | None]) -> Value | None:
        """Return the greatest of the known values."""
        return self._of_known(Op.GREATEST, values)

    def least(self, values: Iterable[Value | None]) -> Value | None:
        """Return the least of the known values."""
        return self._of_known(Op.LEAST, values)

    def total(self, values: Iterable[Value | None]) -> Value | None:
        """Return the sum of the known values."""
        return self._of_known(Op.SUM, values)

    def prefix(self, values: Sequence[Value | None], count: Value | None) -> Value | None:
        """Return the product of the first `count` of the values."""
        if count is None:
            return None
        return self._listed(Op.PREFIX, self._with_unknown(values), count)

    def within(self, values: Sequence[Value | None], limit: Value | None) -> Value | None:
        """Return the longest product of first values that is at most `limit`."""
        if limit is None:
            return None
        return self._listed(Op.WITHIN, self._with_unknown(values), limit)

    def pick(self, values: Sequence[Value | None], number: Value | None) -> Value | None:
        """Return the value with that index, from 0; unknown if there is none."""
        if number is None:
            return None
        return self._listed(Op.PICK, self._with_unknown(values), number)

    def _with_unknown(self, values: Sequence[Value | None]) -> list[Value]:
        unknown = None if None not in values else self.const_unknown()
        return [unknown if value is None else value for value in values]  # type: ignore[misc]

    def const_unknown(self) -> Value:
        """Return the unknown number, 0 / 0."""
        zero = self.const(0)
        return self._operation(Op.DIV, zero, zero)

    def _of_known(self, op: Op, values: Iterable[Value | None]) -> Value | None:
        rest = [value for value in values if value is not None]
        if len(rest) <= 1:
            return rest[0] if rest else None
        return self._listed(op, rest)

    def _binary(self, op: Op, a: Value | None, b: Value | None) -> Value | None:
        if a is None or b is None:
            return None
        if a in self._known and b in self._known:
            folded = _fold(op, self._known[a], self._known[b])
            return None if folded is None else self.const(folded)
        return self._operation(op, a, b)

    def _listed(self, op: Op, values: list[Value], count: Value = 0) -> Value:
        key = (op, count, -1, *values)
        found = self._memo.get(key)
        if found is None:
            if len(self._lists) + len(values) > MAX_OPERATIONS:
                raise FormatError(_TOO_LARGE)
            first = len(self._lists)
            self._lists += values
            found = self._memo[key] = self._operation(op, first, len(values), count)
        return found

    def _operation(self, op: Op, a: int, b: int = 0, c: int = 0) -> Value:
        key = (op, a, b, c)
        found = self._memo.get(key)
        if found is None:
            if len(self._operations) >= MAX_OPERATIONS:
                raise FormatError(_TOO_LARGE)
            found = self._memo[key] = len(self._operations)
            self._operations.append(key)
        return found

    # ------------------------------------------------------------------ columns

    def emit(self, column: str, value: Value | None, *, log: bool = False) -> None:
        """Store a value in a column; with `log` as ``log2(1 + value)``, with its sign."""
        if value is None:
            return
        number = _COLUMN[column]
        if value in self._known:
            self._row[number] = _stored(self._known[value], log)
        else:
            self._outputs.append((number, value, int(log)))

    def emit_number(self, column: str, number: float, *, log: bool = False) -> None:
        """Store a number that all programs of the formula share."""
        self._row[_COLUMN[column]] = _stored(number, log)

    def formula(self) -> Formula:
        """Return the formula."""
        return Formula(
            int(self.stored),
            self.n_slots,
            self.decisions,
            self.n_literals,
            self._constants,
            self._lists,
            self._operations,
            self._outputs,
            self._row.tobytes(),
            len(TAIL) + TAIL_DEPTHS,
            len(DEVICE),
            len(TASK) + self.n_extents,
        )


def _fold(op: Op, a: float, b: float) -> float | None:
    """Carry out an operation on two constants while the formula is built."""
    if op is Op.ADD:
        return a + b
    if op is Op.SUB:
        return a - b
    if op is Op.MUL:
        return a * b
    if op is Op.GCD:
        are_whole = all(1 <= one <= _WHOLE and one == int(one) for one in (a, b))
        return float(math.gcd(int(a), int(b))) if are_whole else None
    if b == 0:
        return None
    quotient = a / b
    return float(math.ceil(quotient)) if op is Op.CEILDIV and math.isfinite(quotient) else quotient


def _stored(number: float, log: bool) -> float:
    """Return the column's value of a number (``_steps.column_of``)."""
    if math.isnan(number):
        return 0.0
    number = max(-BOUND, min(BOUND, number))
    return math.copysign(math.log2(1 + abs(number)), number) if log else number

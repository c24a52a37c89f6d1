"""Expressions of FAIR T1 inputs, which are Python's: values, conditions and sizes.

``"[2**i for i in range(0, 6)]"`` comes from a foreign file, so Python never runs it. This module
parses and evaluates a subset: numbers, texts and truth values, arithmetic, comparisons, ``and``,
``or``, ``not``, ``in``, lists, list comprehensions, and calls of the functions in
:data:`FUNCTIONS`. Anything else is rejected by its name, and every evaluation is bounded.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from reprlib import repr as short
from typing import Any

from ... import limits
from ...errors import FormatError
from ...json_checks import INT64

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}

_LIST_FUNCTIONS: dict[str, Callable[[Sequence[Any]], Any]] = {
    "min": min,
    "max": max,
    "sorted": sorted,
    "list": list,
    "len": len,
}
_NUMBER_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "abs": abs,
    "int": int,
    "float": float,
    "round": round,
}

#: Functions that an expression may call.
FUNCTIONS = ("range", "sum", *_LIST_FUNCTIONS, *_NUMBER_FUNCTIONS)

#: Allowed nodes besides calls; the evaluation itself rejects some operators.
_KNOWN = (
    *(ast.Constant, ast.Name, ast.List, ast.Tuple, ast.ListComp, ast.GeneratorExp),
    *(ast.comprehension, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp),
    *(ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)

#: Largest shift of an integer: results have 64 bits.
_BITS = 64


def values(text: str) -> list[Any]:
    """Return the values that a parameter may take.

    Parameters
    ----------
    text : str
        An expression for a list, such as ``"[1] + list(range(32, 1024 + 1, 32))"``.

    Raises
    ------
    FormatError
        The expression is not a list, or holds a node that is not allowed.
    """
    result = _Evaluation(text, {}).result()
    if not isinstance(result, list | tuple | range):
        raise FormatError(f"the expression {short(text)} is {short(result)}, which is not a list")
    return list(result)


def holds(condition: str, parameters: Mapping[str, Any]) -> bool:
    """Return True if a configuration fulfils a condition.

    Parameters
    ----------
    condition : str
        An expression such as ``"block_size_x * block_size_y <= 1024"``.
    parameters : mapping
        Parameter → value.

    Raises
    ------
    FormatError
        The condition names an unknown parameter, divides by zero, or holds a node that is not
        allowed.
    """
    return bool(_Evaluation(condition, parameters).result())


def number(text: str, parameters: Mapping[str, Any]) -> int | float:
    """Return the number that an expression computes, such as an extent of ``LocalSize``.

    Raises
    ------
    FormatError
        As for :func:`holds`, or the result is not a number.
    """
    result = _Evaluation(text, parameters).result()
    if isinstance(result, bool) or not isinstance(result, int | float):
        raise FormatError(f"the expression {short(text)} is {short(result)}, which is not a number")
    return result


def names(text: str) -> frozenset[str]:
    """Return the parameters that an expression names.

    Raises
    ------
    FormatError
        The text is not an expression.
    """
    used = {node.id for node in ast.walk(_parsed(text)) if isinstance(node, ast.Name)}
    bound = {
        node.id
        for node in ast.walk(_parsed(text))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    return frozenset(used - bound - set(FUNCTIONS))


@lru_cache(maxsize=512)
def _parsed(text: str) -> ast.expr:
    """Return an expression as a tree, or raise FormatError."""
    if len(text) > limits.MAX_EXPRESSION_CHARS:
        raise FormatError(
            f"an expression of {len(text)} characters, over the limit of "
            f"{limits.MAX_EXPRESSION_CHARS}"
        )
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else "nested too deep"
        raise FormatError(f"no expression: {short(text)} ({reason})") from None
    # All nodes are checked: other parameters may reach what "False and …" skips.
    for node in ast.walk(tree):
        rejection = _reason_to_reject(node)
        if rejection is not None:
            raise FormatError(f"the expression {short(text)} {rejection}")
    return tree


def _reason_to_reject(node: ast.AST) -> str | None:
    """Return why a node is not allowed, or None."""
    if isinstance(node, ast.Call):
        if not isinstance(node.func, ast.Name):
            return "holds Call, which is never evaluated"
        if node.func.id not in FUNCTIONS or node.keywords:
            return f"calls {node.func.id[:40]!r}; it may call {', '.join(FUNCTIONS)}"
    elif not isinstance(node, _KNOWN) or (
        isinstance(node, ast.Constant) and not isinstance(node.value, int | float | str)
    ):
        return f"holds {type(node).__name__}, which is never evaluated"
    return None


class _Evaluation:
    """Evaluation of one expression."""

    def __init__(self, text: str, parameters: Mapping[str, Any]) -> None:
        self._text = text
        self._names: dict[str, Any] = dict(parameters)
        self._steps = 0
        self._depth = 0

    def result(self) -> Any:
        """Return the value of the expression, or raise FormatError."""
        try:
            return self._value(_parsed(self._text))
        except (ArithmeticError, TypeError, ValueError) as error:
            raise FormatError(f"the expression {short(self._text)}: {error}") from None

    def _value(self, node: ast.expr) -> Any:
        self._steps += 1
        if self._steps > limits.MAX_EXPRESSION_STEPS:
            raise self._refusal(f"takes more than {limits.MAX_EXPRESSION_STEPS} operations")
        if self._depth >= limits.MAX_EXPRESSION_DEPTH:
            raise self._refusal(f"is nested deeper than {limits.MAX_EXPRESSION_DEPTH}")
        self._depth += 1
        try:
            return self._bounded(self._compute(node))
        finally:
            self._depth -= 1

    def _compute(self, node: ast.expr) -> Any:  # noqa: PLR0911, PLR0912 - one for each kind
        match node:
            case ast.Constant(value=bool() | int() | float() | str() as value):
                return value
            case ast.Name(id=name) if name in self._names:
                return self._names[name]
            case ast.Name(id=name):
                raise self._refusal(f"names {name[:40]!r}, which is not a parameter")
            case ast.List(elts=items) | ast.Tuple(elts=items):
                return [self._item(item) for item in items]
            case ast.ListComp(elt=item, generators=loops):
                return self._comprehended(item, loops)
            case ast.GeneratorExp(elt=item, generators=loops):
                return self._comprehended(item, loops)
            case ast.BinOp(left=left, op=operation, right=right):
                return self._binary(type(operation), self._value(left), self._value(right))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not self._value(operand)
            case ast.UnaryOp(op=sign, operand=operand) if type(sign) in _UNARY:
                return _UNARY[type(sign)](self._number(self._value(operand)))
            case ast.BoolOp(op=word, values=items):
                return self._joined(items, ends=isinstance(word, ast.Or))
            case ast.Compare(left=left, ops=comparisons, comparators=others):
                return self._compared(left, comparisons, others)
            case ast.IfExp(test=test, body=yes, orelse=no):
                return self._value(yes if self._value(test) else no)
            case ast.Call(func=ast.Name(id=name), args=items):
                return self._called(name, [self._value(item) for item in items])
            case _:
                raise self._refusal(f"holds {type(node).__name__}, which is never evaluated")

    def _item(self, node: ast.expr) -> Any:
        """Return an item of a list; nested lists may share items, and compare in 2**depth steps."""
        value = self._value(node)
        if isinstance(value, list | range):
            raise self._refusal("has a list in a list")
        return value

    def _binary(self, operation: type[ast.operator], left: Any, right: Any) -> Any:
        if operation is ast.Add and isinstance(left, list) and isinstance(right, list):
            if len(left) + len(right) > limits.MAX_EXPRESSION_VALUES:
                raise self._refusal(f"has more than {limits.MAX_EXPRESSION_VALUES} values")
            self._steps += len(left) + len(right)
            return left + right
        left, right = self._number(left), self._number(right)
        if operation in _BINARY:
            return _BINARY[operation](left, right)
        if operation is ast.Pow:
            whole = isinstance(left, int) and isinstance(right, int) and right >= 0
            if whole and (abs(left) > 1 and (abs(left).bit_length() - 1) * right >= _BITS):
                raise self._refusal("has an integer beyond 64 bits")
            power = left**right
            if isinstance(power, complex):
                raise self._refusal("has a root of a negative number")
            return power
        if operation is ast.LShift and isinstance(right, int) and right < _BITS:
            return left << right
        if operation is ast.RShift:
            return left >> right
        raise self._refusal(f"has the operation {operation.__name__}, which is never evaluated")

    def _joined(self, items: list[ast.expr], *, ends: bool) -> Any:
        """Return the value that decides ``and`` or ``or``, or the last value."""
        for item in items:
            value = self._value(item)
            if bool(value) is ends:
                break
        return value

    def _compared(
        self, left: ast.expr, comparisons: list[ast.cmpop], others: list[ast.expr]
    ) -> bool:
        before = self._value(left)
        for comparison, other in zip(comparisons, others, strict=True):
            if type(comparison) not in _COMPARE:
                raise self._refusal(f"compares with {type(comparison).__name__}")
            after = self._value(other)
            self._steps += len(after) if isinstance(after, list | range) else 0
            if not _COMPARE[type(comparison)](before, after):
                return False
            before = after
        return True

    def _called(self, name: str, arguments: list[Any]) -> Any:
        self._steps += sum(len(item) for item in arguments if isinstance(item, list | range))
        if name == "range":
            numbers = range(*arguments)
            # len() raises OverflowError for ranges of 2**63 values.
            if len(numbers) > limits.MAX_EXPRESSION_VALUES:
                raise self._refusal(f"has more than {limits.MAX_EXPRESSION_VALUES} values")
            return numbers
        if name == "sum" or name in _LIST_FUNCTIONS:
            if name in ("min", "max") and len(arguments) > 1:
                return (min if name == "min" else max)(arguments)
            (items,) = arguments
            if not isinstance(items, list | range):
                raise self._refusal(f"calls {name} of {short(items)}, which is not a list")
            return sum(map(self._number, items)) if name == "sum" else _LIST_FUNCTIONS[name](items)
        (value,) = map(self._number, arguments)
        return _NUMBER_FUNCTIONS[name](value)

    def _comprehended(self, item: ast.expr, loops: list[ast.comprehension]) -> list[Any]:
        """Return the list of a comprehension; its variables are local."""
        outer = dict(self._names)
        items: list[Any] = []
        for _ in self._bindings(loops):
            if len(items) >= limits.MAX_EXPRESSION_VALUES:
                raise self._refusal(f"has more than {limits.MAX_EXPRESSION_VALUES} values")
            items.append(self._item(item))
        self._names = outer
        return items

    def _bindings(self, loops: list[ast.comprehension]) -> Iterator[None]:
        """Bind the variables of a comprehension to each of their values in turn."""
        loop, *rest = loops
        if loop.is_async or not isinstance(loop.target, ast.Name):
            raise self._refusal("has a comprehension over more than one name")
        items = self._value(loop.iter)
        if not isinstance(items, list | range):
            raise self._refusal(f"goes over {short(items)}, which is not a list")
        for value in items:
            self._names[loop.target.id] = value
            if all(self._value(test) for test in loop.ifs):
                if rest:
                    yield from self._bindings(rest)
                else:
                    yield

    def _number(self, value: Any) -> Any:
        if not isinstance(value, int | float):
            raise self._refusal(f"computes with {short(value)}, which is not a number")
        return value

    def _bounded(self, value: Any) -> Any:
        """Return a value, or raise FormatError for a number that is too large."""
        if isinstance(value, int) and not -INT64 <= value < INT64:
            raise self._refusal("has an integer beyond 64 bits")
        if isinstance(value, float) and not math.isfinite(value):
            raise self._refusal("has a number that is not finite")
        return value

    def _refusal(self, reason: str) -> FormatError:
        return FormatError(f"the expression {short(self._text)} {reason}")

"""Expressions of FAIR T1 inputs, which are Python's: values, conditions and sizes.

``"[2**i for i in range(0, 6)]"`` comes from a stranger's file, so it is never run. It is parsed,
and what stands in it is computed here: numbers, texts and truth values, arithmetic, comparisons,
``and``, ``or``, ``not``, ``in``, lists, list comprehensions, and calls of the few functions in
:data:`FUNCTIONS`. Everything else is refused by its name, and all of it is bounded.
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

_OF_LISTS: dict[str, Callable[[Sequence[Any]], Any]] = {
    "min": min,
    "max": max,
    "sorted": sorted,
    "list": list,
    "len": len,
}
_OF_NUMBERS: dict[str, Callable[[Any], Any]] = {
    "abs": abs,
    "int": int,
    "float": float,
    "round": round,
}

#: What an expression may call.
FUNCTIONS = ("range", "sum", *_OF_LISTS, *_OF_NUMBERS)

#: Parts of an expression besides calls; operators have reasons of their own.
_KNOWN = (
    *(ast.Constant, ast.Name, ast.List, ast.Tuple, ast.ListComp, ast.GeneratorExp),
    *(ast.comprehension, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp),
    *(ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)

#: How far an integer may be shifted or raised: a result has 64 bits.
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
        It is no list, or holds what an expression may not.
    """
    found = _Evaluation(text, {}).result()
    if not isinstance(found, list | tuple | range):
        raise FormatError(f"the expression {short(text)} is {short(found)}, which is not a list")
    return list(found)


def holds(condition: str, parameters: Mapping[str, Any]) -> bool:
    """Tell whether a configuration fulfils a condition.

    Parameters
    ----------
    condition : str
        An expression such as ``"block_size_x * block_size_y <= 1024"``.
    parameters : mapping
        Parameter → value.

    Raises
    ------
    FormatError
        It names what is no parameter, divides by zero, or holds what an expression may not.
    """
    return bool(_Evaluation(condition, parameters).result())


def number(text: str, parameters: Mapping[str, Any]) -> int | float:
    """Return a number that is computed of parameters, such as an extent of ``LocalSize``.

    Raises
    ------
    FormatError
        As :func:`holds`; also where the result is no number.
    """
    found = _Evaluation(text, parameters).result()
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise FormatError(f"the expression {short(text)} is {short(found)}, which is not a number")
    return found


def names(text: str) -> frozenset[str]:
    """Return the parameters that an expression names.

    Raises
    ------
    FormatError
        It is no expression.
    """
    found = {node.id for node in ast.walk(_parsed(text)) if isinstance(node, ast.Name)}
    bound = {
        node.id
        for node in ast.walk(_parsed(text))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    return frozenset(found - bound - set(FUNCTIONS))


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
    # What "False and …" passes over would be met with other parameters: all of it is looked at.
    for node in ast.walk(tree):
        refused = _refused(node)
        if refused is not None:
            raise FormatError(f"the expression {short(text)} {refused}")
    return tree


def _refused(node: ast.AST) -> str | None:
    """Return why a part of an expression is never computed, or None."""
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
    """Computes one expression."""

    def __init__(self, text: str, parameters: Mapping[str, Any]) -> None:
        self._text = text
        self._names: dict[str, Any] = dict(parameters)
        self._steps = 0
        self._depth = 0

    def result(self) -> Any:
        """Return its value, or raise FormatError."""
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
            case ast.ListComp(elt=item, generators=parts):
                return self._listed(item, parts)
            case ast.GeneratorExp(elt=item, generators=parts):
                return self._listed(item, parts)
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
        """Return an item of a list, which is none itself.

        Lists in lists may share them, and a comparison then takes 2**depth steps.
        """
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
            found = left**right
            if isinstance(found, complex):
                raise self._refusal("has a root of a negative number")
            return found
        if operation is ast.LShift and isinstance(right, int) and right < _BITS:
            return left << right
        if operation is ast.RShift:
            return left >> right
        raise self._refusal(f"has the operation {operation.__name__}, which is never evaluated")

    def _joined(self, items: list[ast.expr], *, ends: bool) -> Any:
        """Return the first value that ends ``and`` or ``or``, or the last."""
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
            found = range(*arguments)
            # len() itself refuses ranges of 2**63 values with an OverflowError.
            if len(found) > limits.MAX_EXPRESSION_VALUES:
                raise self._refusal(f"has more than {limits.MAX_EXPRESSION_VALUES} values")
            return found
        if name == "sum" or name in _OF_LISTS:
            if name in ("min", "max") and len(arguments) > 1:
                return (min if name == "min" else max)(arguments)
            (items,) = arguments
            if not isinstance(items, list | range):
                raise self._refusal(f"calls {name} of {short(items)}, which is not a list")
            return sum(map(self._number, items)) if name == "sum" else _OF_LISTS[name](items)
        (value,) = map(self._number, arguments)
        return _OF_NUMBERS[name](value)

    def _listed(self, item: ast.expr, parts: list[ast.comprehension]) -> list[Any]:
        """Return the list that a comprehension makes; its variables end with it."""
        before = dict(self._names)
        found: list[Any] = []
        for _ in self._bindings(parts):
            if len(found) >= limits.MAX_EXPRESSION_VALUES:
                raise self._refusal(f"has more than {limits.MAX_EXPRESSION_VALUES} values")
            found.append(self._item(item))
        self._names = before
        return found

    def _bindings(self, parts: list[ast.comprehension]) -> Iterator[None]:
        """Bind the variables of a comprehension to each of their values in turn."""
        part, *rest = parts
        if part.is_async or not isinstance(part.target, ast.Name):
            raise self._refusal("has a comprehension over more than one name")
        items = self._value(part.iter)
        if not isinstance(items, list | range):
            raise self._refusal(f"goes over {short(items)}, which is not a list")
        for value in items:
            self._names[part.target.id] = value
            if all(self._value(test) for test in part.ifs):
                if rest:
                    yield from self._bindings(rest)
                else:
                    yield

    def _number(self, value: Any) -> Any:
        if not isinstance(value, int | float):
            raise self._refusal(f"computes with {short(value)}, which is not a number")
        return value

    def _bounded(self, value: Any) -> Any:
        """Return a value, or raise FormatError for a number that cannot be kept."""
        if isinstance(value, int) and not -INT64 <= value < INT64:
            raise self._refusal("has an integer beyond 64 bits")
        if isinstance(value, float) and not math.isfinite(value):
            raise self._refusal("has a number that is not finite")
        return value

    def _refusal(self, reason: str) -> FormatError:
        return FormatError(f"the expression {short(self._text)} {reason}")

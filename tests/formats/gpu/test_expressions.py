"""Expressions of T1 inputs are evaluated as in Python; all other code is rejected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunedb import limits
from tunedb.errors import FormatError
from tunedb.formats.gpu import expressions

#: Values as in the inputs of the benchmark hub and of BAT.
VALUES = [
    "[0]",
    "[2**i for i in range(0, 6)]",
    "[1] + [2*i for i in range(1,11)]",
    "list(range(32, 1024+1, 32))",
    "[1, 2, 4, 8, 16] + list(range(32, 1024+1, 32))",
    "[i for i in range(3,35,2)]",
    "[i*j for i in range(4) for j in range(i) if i != 2]",
    "(1, 2.5, 'float4', True)",
    "range(3)",
    "[min(i, 3) for i in range(6)] + [max([1, 5]), len([1, 2]), abs(-3), int(7/2), 1 << 4, 9 >> 1]",
]


@pytest.mark.parametrize("text", VALUES)
def test_values_evaluates_lists_like_python(text):
    assert expressions.values(text) == list(eval(text))


PARAMETERS = {"x": 32, "y": 4, "kind": "float4", "fast": True, "ratio": 0.5}

CONDITIONS = [
    *("x * y <= 1024", "fast == 0 or x % 32 != 0", "not (x == 32 and y == 4)", "x % (y * 8) == 0"),
    *("x % ((x * y) / y) == 0", "kind in ['float', 'float4']", "x not in [1, 2]", "1 < y < x"),
    *("1 < y > x", "y if fast else 0", "x // 3 + -y ** 2 > +ratio"),
    "sum([x, y]) == 36 and sorted([y, x])",
]


@pytest.mark.parametrize("text", CONDITIONS)
def test_holds_evaluates_conditions_like_python(text):
    assert expressions.holds(text, PARAMETERS) == bool(eval(text, {}, PARAMETERS))


@st.composite
def arithmetic(draw, depth=3):
    """Return an expression of parameters and small numbers."""
    if depth == 0 or draw(st.booleans()):
        return draw(st.sampled_from(["x", "y", "ratio", "7", "2", "1.5", "0"]))
    left, right = draw(arithmetic(depth - 1)), draw(arithmetic(depth - 1))
    sign = draw(st.sampled_from(["+", "-", "*", "/", "//", "%", "**", "<", ">=", "and", "or"]))
    return f"({left} {sign} {right})"


@given(arithmetic())
def test_number_evaluates_arithmetic_like_python_or_rejects_it(text):
    """An expression without a result in 64 bits raises an error of one line."""
    try:
        found = expressions.number(f"{text} + 0", PARAMETERS)
    except FormatError as error:
        assert "\n" not in str(error)
        return
    assert found == eval(text, {}, PARAMETERS) + 0


REFUSED = {
    "holds Call": ["__import__('os').system('true')"],
    "calls '__import__'": ["__import__('os')", "False and __import__('os')"],
    "holds Attribute": ["1 if True else x.real", "(1).__class__"],
    "holds (Call|Attribute)": ["[__import__('os').x for i in []]"],
    "holds Constant": ["0 or 1 or None", "None", "b'x'", "1j"],
    **{"names '__builtins__'": ["__builtins__"], "calls 'open'": ["open('/etc/passwd')"]},
    **{"calls 'eval'": ["eval('1')"], "calls 'min'": ["min(1, 2, key=3)"]},
    **{"holds Lambda": ["lambda: 1"], "holds NamedExpr": ["(y := 3)"]},
    **{"holds JoinedStr": ["f'{1}'"], "holds Subscript": ["[1, 2][0]"]},
    **{"holds Dict": ["{1: 2}"], "holds Set": ["{1}"], "compares with Is": ["1 is 1"]},
    "names 'z', which is not a parameter": ["z"],
    "names 'i'": ["[i for i in range(3)] + i"],
    **{"the operation BitAnd": ["1 & 2"], "the operation LShift": ["1 << 64"]},
    "computes with 'a'": ["'a' * 9", "'a' % 9"],
    **{"computes with [0]": ["[0] * 9"], "computes with '3'": ["int('3')"]},
    "a list in a list": ["[[1], [2]]", "[[i] for i in range(2)]"],
    "more than one name": ["[i for i, j in range(3)]"],
    "which is not a list": ["[i for i in 'ab']", "sum('ab')"],
    **{"division by zero": ["1 / 0"], "must not be zero": ["range(1, 2, 0)"]},
    **{"not supported": ["1 < 'a'"], "a root of a negative number": ["(-8) ** 0.5"]},
    "beyond 64 bits": ["9 ** 9 ** 9", "1 << 63", "2 ** 63"],
    **{"out of range": ["10.0 ** 400"], "not finite": ["1e308 * 10"]},
    "is not a number": ["[1, 2]", "x == 1"],
    "no expression": ["1 if", "x = 1", "import os", "\0", "", "(" * 3000],
    "no expression|nested deeper": ["-" * 4000 + "1"],
}


@pytest.mark.parametrize(
    ("text", "reason"), [(text, reason) for reason, texts in REFUSED.items() for text in texts]
)
def test_number_rejects_unsafe_and_invalid_expressions(text, reason):
    with pytest.raises(FormatError, match=reason.replace("[", r"\[")) as caught:
        expressions.number(text, {"x": 1})
    assert "\n" not in str(caught.value)


def test_expressions_over_the_limits_are_rejected(monkeypatch):
    """MAX_EXPRESSION_CHARS, MAX_EXPRESSION_VALUES, MAX_EXPRESSION_STEPS, MAX_EXPRESSION_DEPTH"""
    fits = "1" + " " * (limits.MAX_EXPRESSION_CHARS - 1)
    assert expressions.number(fits, {}) == 1
    with pytest.raises(FormatError, match="4097 characters"):
        expressions.number(fits + " ", {})
    monkeypatch.setattr(limits, "MAX_EXPRESSION_VALUES", 1_000)
    monkeypatch.setattr(limits, "MAX_EXPRESSION_STEPS", 10_000)
    assert len(expressions.values("range(1000)")) == 1_000
    many = "list(range(600))"
    twice = "[1 for i in range(999) for j in range(999)"
    for text in ("range(1001)", "range(10**18)", f"{many} + {many}", f"{twice}]"):
        with pytest.raises(FormatError, match="more than 1000 values"):
            expressions.values(text)
    with pytest.raises(FormatError, match="more than 10000 operations"):
        expressions.values(f"{twice} if j < 0]")
    depth = limits.MAX_EXPRESSION_DEPTH
    assert expressions.number("+".join("1" * depth), {}) == depth
    with pytest.raises(FormatError, match="nested deeper than 64"):
        expressions.number("+".join("1" * (depth + 1)), {})
    monkeypatch.setattr(limits, "MAX_EXPRESSION_STEPS", 40)
    with pytest.raises(FormatError, match="more than 40 operations"):
        expressions.holds("[1 for i in range(20) if len(range(20)) > 30] == []", {})


def test_loop_variable_is_local_to_its_list_comprehension():
    assert expressions.number("sum([i for i in range(4)]) + i", {"i": 10}) == 16
    assert expressions.names("x * max(y, 2) + len([i for i in range(z)])") == {"x", "y", "z"}
    assert expressions.names("1") == frozenset()


def test_holds_rejects_comparison_of_nested_lists():
    """Lists that share lists would make one comparison take 2**depth steps."""
    doubled = "[1, 1]"
    for name in "abcdefgh":
        doubled = f"[[{name}, {name}] for {name} in [{doubled}]]"
    with pytest.raises(FormatError, match="a list in a list"):
        expressions.holds(f"{doubled} == {doubled}", {})

"""docs/security.md names a test for each promise, and each test that it names exists."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROW = re.compile(r"\| (\d+) \| (.+) \| (.+) \|")
PROMISES = 27


def rows():
    """Return promise → the tests that hold it."""
    found = {}
    for line in (ROOT / "docs" / "security.md").read_text(encoding="utf-8").splitlines():
        if match := ROW.fullmatch(line):
            number = int(match[1])
            assert number not in found
            found[number] = re.findall(r"`([^`]+::[^`]+)`", match[3])
    return found


def attacks():
    """Return attack → its tests."""
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| (\d)\. .+ \| (.+) \|$", text, re.MULTILINE)
    return {int(number): re.findall(r"`([^`]+::[^`]+)`", tests) for number, tests in found}


@cache
def names_in(path):
    """Return the names of the test functions of a file, without importing it."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"), path)
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_every_promise_has_a_row():
    assert list(rows()) == list(range(1, PROMISES + 1))


@pytest.mark.parametrize("number", range(1, 9))
def test_every_attack_has_a_test(number):
    named = attacks()[number]
    assert named
    for test in named:
        path, _, name = test.partition("::")
        assert name in names_in(path), test


@pytest.mark.parametrize("number", range(1, PROMISES + 1))
def test_every_promise_has_a_test(number):
    named = rows()[number]
    assert named
    for test in named:
        path, _, name = test.partition("::")
        assert (ROOT / path).is_file(), test
        assert name in names_in(path), test

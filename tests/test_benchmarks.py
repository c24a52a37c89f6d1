"""Benchmarks take hours, so no test runs them; what they import of the project must be there."""

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[1] / "benchmarks").glob("*.py"))


def imported(path):
    """Return modules of the project and the names that a script takes from them, anywhere in it."""
    return [
        (node.module, alias.name)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tunedb"
        for alias in node.names
    ]


def test_there_are_scripts():
    assert any(imported(path) for path in SCRIPTS)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_what_a_script_imports_is_there(path):
    for module, name in imported(path):
        if "plugins" in module:
            pytest.importorskip("tvm")
        assert hasattr(import_module(module), name) or find_spec(f"{module}.{name}"), name

"""Benchmarks and tools take hours to run; the names that they import must at least exist."""

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = [path for folder in ("benchmarks", "tools") for path in (ROOT / folder).glob("*.py")]


def test_names_imported_by_benchmarks_and_tools_exist():
    pytest.importorskip("tvm")
    names = {
        (node.module, alias.name)
        for path in SCRIPTS
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tunedb"
        for alias in node.names
    }
    assert names
    for module, name in names:
        assert hasattr(import_module(module), name) or find_spec(f"{module}.{name}"), name

"""Checks of databases that make neither the schema nor the statements anew for each."""

from functools import cache

import pytest

from tunedb.maintenance import check
from tunedb.storage import store
from tunedb.storage.engine import make_engine


@pytest.fixture(scope="session")
def objects_of_new():
    return check._objects_of_new()


@pytest.fixture(scope="session")
def engine_of():
    """Engines by URL: each new one compiles all statements, half of the time of a check."""
    return cache(make_engine)


@pytest.fixture
def quick_checks(monkeypatch, objects_of_new, engine_of):
    """Make the schema of a new database once, and one engine for each path."""
    monkeypatch.setattr(check, "_objects_of_new", lambda: objects_of_new)
    for module in (check, store):
        monkeypatch.setattr(module, "make_engine", engine_of)

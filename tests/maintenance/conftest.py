"""Checks of databases without making a new schema for each."""

import pytest

from tunedb.maintenance import check


@pytest.fixture(scope="session")
def objects_of_new():
    return check._objects_of_new()


@pytest.fixture
def known_objects(monkeypatch, objects_of_new):
    """Make the schema of a new database once: it takes longer than the rest of a check."""
    monkeypatch.setattr(check, "_objects_of_new", lambda: objects_of_new)

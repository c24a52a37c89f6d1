"""Databases that exchange records."""

import shutil

import pytest
from unions import Makes

from tunedb.storage.store import Store


@pytest.fixture
def makes(sqlite_template, tmp_path):
    """A maker of databases."""
    return Makes(sqlite_template, tmp_path)


@pytest.fixture
def here(sqlite_template, tmp_path):
    """A store of the database that pulls and pushes."""
    with Store(shutil.copyfile(sqlite_template, tmp_path / "here.db")) as store:
        yield store

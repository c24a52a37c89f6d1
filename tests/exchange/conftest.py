"""Databases that exchange records."""

import pytest
from unions import Makes


@pytest.fixture
def makes(sqlite_template, tmp_path):
    return Makes(sqlite_template, tmp_path)

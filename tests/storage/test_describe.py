"""Descriptions of databases: state, metadata and advice."""

import pytest

import tunedb
from tunedb.errors import NotFoundError, SchemaError
from tunedb.storage import describe


def test_describe_returns_state_and_metadata_of_current_database(store_url):
    found = describe.describe(store_url)
    assert (found.state, found.advice) == ("current", None)
    assert found.meta["created_by"] == tunedb.__version__


def test_describe_reports_an_empty_server_database(bare_postgres_url):
    found = describe.describe(bare_postgres_url)
    assert (found.state, found.size) == ("empty", None)
    assert "tunedb db init" in found.advice


def test_describe_changes_no_file_and_rejects_invalid_or_missing_databases(sqlite_file, tmp_path):
    before = sqlite_file.read_bytes()
    describe.describe(sqlite_file)
    assert sqlite_file.read_bytes() == before
    (tmp_path / "text").write_text("no database " * 100)
    with pytest.raises(SchemaError):
        describe.describe(tmp_path / "text")
    for url in (tmp_path / "missing.db", ":memory:"):
        with pytest.raises(NotFoundError):
            describe.describe(url)

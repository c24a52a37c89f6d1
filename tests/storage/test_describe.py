"""Descriptions of databases: state, metadata and advice."""

import pytest
from builders import sql

import tunedb
from tunedb.errors import NotFoundError, SchemaError
from tunedb.storage import describe, versions
from tunedb.storage.engine import parse_url


def test_describe_returns_state_and_metadata_of_current_database(store_url):
    found = describe.describe(store_url)
    assert (found.state, found.advice) == ("current", None)
    assert found.meta["created_by"] == tunedb.__version__


def test_describe_reports_an_empty_server_database(bare_postgres_url):
    found = describe.describe(bare_postgres_url)
    assert (found.state, found.size) == ("empty", None)
    assert "tunedb db init" in found.advice


@pytest.mark.parametrize(
    "use",
    [
        tunedb.open,
        lambda path: tunedb.open(path, read_only=True),
        lambda path: versions.upgrade(parse_url(path)),
    ],
)
def test_another_programs_file_is_never_changed(use, tmp_path):
    """Switching the file to WAL mode would already change it."""
    path = tmp_path / "other.db"
    sql(path, "CREATE TABLE x (y)")
    before = path.read_bytes()
    assert describe.describe(path).state == "foreign"
    with pytest.raises(SchemaError, match="another program"):
        use(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["other.db"]


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

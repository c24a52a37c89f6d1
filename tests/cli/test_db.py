"""``tunedb db init``, ``upgrade``, ``check`` and ``info``."""

import pytest
import workdirs
from builders import sql
from checks import has, row_has

import tunedb
from tunedb.storage import schema


def test_init_creates_a_database_once(run, run_json, tmp_path):
    path = tmp_path / "new.db"
    made = run_json("db", "init", path)
    assert made == {"location": str(path), "revision": schema.HEAD, "created": True}
    before = path.read_bytes()
    assert run_json("--db", path, "db", "init")["created"] is False
    assert "nothing was changed" in run("db", "init", path).stdout
    assert path.read_bytes() == before
    run("db", "init", tmp_path / "mistyped" / "new.db", code=3)
    run("db", "init")
    assert (tmp_path / "data" / "tunedb" / "tune.db").is_file()
    run("workloads")


def test_init_creates_database_in_empty_file(run_json, tmp_path):
    path = tmp_path / "empty.db"
    path.touch()
    assert run_json("db", "info", path)["state"] == "empty"
    assert run_json("db", "init", path)["created"] is True
    assert run_json("db", "info", path)["state"] == "current"


def test_upgrade_leaves_current_schema_as_it_is(run, run_json, filled, tmp_path):
    shown = run_json("--db", filled, "db", "upgrade")
    row_has(shown, before=schema.HEAD, after=schema.HEAD, backup=None)
    assert "up to date" in run("db", "upgrade", filled, "--dry-run").stdout
    run("db", "upgrade", tmp_path / "missing.db", code=3)


@pytest.fixture
def older(filled, monkeypatch):
    """A database whose schema is older than this version's."""
    monkeypatch.setattr(schema, "REVISIONS", (*schema.REVISIONS, "0099"))
    monkeypatch.setattr(schema, "HEAD", "0099")

    def migrate(connection):
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0099'")

    monkeypatch.setattr("tunedb.migrations.upgrade", migrate)
    return filled


def test_upgrade_migrates_older_database_and_writes_backup(run, run_json, older):
    first = schema.REVISIONS[-2]
    assert "tunedb db upgrade" in run("--db", older, "top", code=4).stderr
    before = older.read_bytes()
    shown = run_json("--db", older, "db", "upgrade", "--dry-run")
    assert shown == {
        **{"location": str(older), "before": first, "after": "0099"},
        **{"backup": None, "restored": [], "dry_run": True},
    }
    assert older.read_bytes() == before
    text = run("--db", older, "db", "upgrade").stdout
    backup = older.with_name(f"{older.name}.bak-{first}")
    has(text, f"backup: {backup}", f"from schema {first} to 0099")
    assert sql(backup, "SELECT count(*) FROM measurement") == [(7,)]
    run("--db", older, "top")


def test_info_recognises_older_and_newer_schemas(run, run_json, older):
    shown = run_json("db", "info", older)
    row_has(shown, state="older", counts=None)
    assert "tunedb db upgrade" in shown["advice"]
    sql(older, "UPDATE alembic_version SET version_num = '1234'")
    shown = run_json("db", "info", older)
    row_has(shown, state="newer", revision="1234", created_by=tunedb.__version__)
    assert "pip install --upgrade tunedb" in run("db", "info", older).stdout


def test_info_recognises_database_of_another_program(run, run_json, tmp_path):
    path = tmp_path / "bookmarks.db"
    sql(path, "CREATE TABLE bookmark (url TEXT)")
    before = path.read_bytes()
    row_has(run_json("db", "info", path), state="foreign", revision=None, size=len(before))
    assert "another program" in run("db", "info", path).stdout
    assert path.read_bytes() == before


def test_info_shows_state_counts_and_sources(run, run_json, filled):
    shown = run_json("--db", filled, "db", "info")
    row_has(shown, location=str(filled), state="current", revision=schema.HEAD)
    assert shown["size"] >= filled.stat().st_size
    assert shown["created_by"] == tunedb.__version__ and shown["created_at"].endswith("Z")
    row_has(shown["counts"], measurements=7, failed=1, quarantined=1)
    assert shown["sources"] == [{"name": "nightly", "kind": "file", "trust": "own", "records": 7}]
    assert "nightly  file  own          7" in run("--db", filled, "db", "info").stdout
    run("db", "info", ":memory:", code=3)


def test_info_lists_the_largest_sources(run, run_json, tmp_path):
    for number in range(22):
        times = [[1e-3], [2e-3]] if number == 3 else [[number]]
        workdirs.write(tmp_path / f"{number}", [workdirs.record(one) for one in times])
    run("--db", "a.db", "import", "logs", *(tmp_path / f"{number}" for number in range(22)))
    listed = run("--db", "a.db", "db", "info").stdout.split("Sources")[1].splitlines()
    assert len(run_json("--db", "a.db", "db", "info")["sources"]) == 22
    assert len(listed) == 23 and "/3/" in listed[2]
    assert listed[-1] == "and 2 more sources; see: tunedb sources"


def test_check_reports_changed_mean(run, run_json, filled):
    row_has(run_json("--db", filled, "db", "check"), ok=True, measurements=7, problems=[])
    assert "no problem" in run("--db", filled, "db", "check").stdout
    assert run_json("--db", filled, "db", "check", "--sample", 2)["measurements"] == 2
    sql(filled, "UPDATE measurement SET mean = 1e-9 WHERE id = 3")
    shown = run_json("--db", filled, "db", "check", code=1)
    (problem,) = shown["problems"]
    row_has(problem, check="derived", table="measurement", id=3)
    assert shown["found"] == 1
    has(run("--db", filled, "db", "check", code=1).stdout, "1 problem", "mean is 1e-09")

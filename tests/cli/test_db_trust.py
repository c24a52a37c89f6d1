"""``tunedb db trust``, and commands that reject a database without approval."""

import shutil
from pathlib import Path

import pytest
from builders import key_of

from tunedb.storage import approval


@pytest.fixture(autouse=True)
def configuration(tmp_path, monkeypatch):
    """Keep approvals in a folder of the test."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))


@pytest.fixture
def theirs(filled_template, tmp_path):
    """A database that somebody gave us."""
    return Path(shutil.copyfile(filled_template, tmp_path / "theirs.db"))


def is_approved(path):
    """Return whether a database is the only approved one."""
    return [one.location for one in approval.approvals()[0]] == [str(path)]


def test_dry_run_shows_the_database_without_approval(run, theirs):
    shown = run("db", "trust", theirs, "--dry-run")
    assert shown.stdout == ""
    assert shown.stderr.splitlines() == [
        f"{theirs}: store {key_of(theirs)}, file of {theirs.owner()}",
        "  7 records of nightly (own)",
    ]
    assert approval.approvals() == ([], [])


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 1), ("", 1)])
def test_trust_asks_for_confirmation_on_a_terminal(run, theirs, answer, code, terminal):
    shown = run("-q", "db", "trust", theirs, code=code, input=answer)
    assert "7 records of nightly" in shown.stderr
    assert is_approved(theirs) == (code == 0)


def test_trust_approves_a_database_and_needs_yes_without_a_terminal(run, run_json, theirs):
    shown = run("db", "trust", theirs, code=2)
    assert shown.stderr.splitlines()[-1].startswith("Error: cannot ask for confirmation without")
    assert approval.approvals() == ([], [])
    assert run("db", "trust", theirs, "--yes").stdout == f"{theirs}: approved\n"
    assert is_approved(theirs)
    again = run_json("db", "trust", theirs, "--yes")
    assert (again["location"], again["store"]) == (str(theirs), key_of(theirs))


def test_list_shows_approved_databases_and_forget_removes_them(run, run_json, theirs, tmp_path):
    run("db", "init", tmp_path / "mine.db")
    run("db", "trust", theirs, "--yes")
    listed = run_json("db", "trust", "--list")
    assert [row["location"] for row in listed] == [f"{tmp_path}/mine.db", str(theirs)]
    assert listed[1]["store"] == key_of(theirs)
    assert str(theirs) in run("db", "trust", "--list").stdout
    theirs.unlink()  # a deleted file can be forgotten
    run("db", "trust", "--forget", theirs)
    assert is_approved(tmp_path / "mine.db")
    shown = run("db", "trust", "--forget", theirs, code=3)
    assert "is not approved; see: tunedb db trust --list" in shown.stderr


def test_a_damaged_approval_is_reported_in_one_line(run, theirs):
    run("db", "trust", theirs, "--yes")
    (path,) = approval.folder().glob("*.json")
    path.write_bytes(b"{")
    empty = "no database is approved; see: tunedb db trust --help"
    assert run("db", "trust", "--list").stderr == f"Warning: {path}: not JSON\n{empty}\n"


def test_missing_and_invalid_databases_are_not_approved(run, tmp_path):
    assert "no such database" in run("db", "trust", tmp_path / "no.db", "--yes", code=3).stderr
    (tmp_path / "text.db").write_text("no database " * 99)
    run("db", "trust", tmp_path / "text.db", "--yes", code=4)
    assert approval.approvals() == ([], [])


def test_trust_approves_a_server(run, run_json, postgres_url):
    shown = run_json("db", "trust", postgres_url, "--yes")
    assert shown["location"].startswith("postgresql://")
    assert shown in run_json("db", "trust", "--list")


def test_configuration_needs_approved_layers_and_counts_if_only_its_owner_may_write(
    run, theirs, filled
):
    project = Path.cwd().parent / "tunedb.toml"
    project.write_text('layers = ["theirs.db"]')
    (line,) = run("top", "--db", filled, code=2).stderr.splitlines()
    assert line.endswith(f"run: tunedb db trust {theirs}")
    run("db", "trust", theirs, "--yes")
    run("top", "--db", filled)
    project.write_text('url = "theirs.db"')
    run("top")
    project.chmod(0o666)
    (line,) = run("top", code=2).stderr.splitlines()
    assert line.startswith(f"Error: {project}: others may write it, so it is ignored; ")
    assert line.endswith(f"run: chmod go-w {project}")
    assert "its layers are ignored" in run("top", "--db", filled).stderr


def test_named_databases_need_no_approval_to_be_read(run, run_json, theirs, tmp_path):
    mine = tmp_path / "mine.db"
    assert run_json("top", "--db", theirs)
    for words in (["workloads"], ["sources"], ["show", "1"], ["db", "info"], ["db", "check"]):
        run(*words, "--db", theirs)
    run("export", tmp_path / "work", "--db", theirs)
    run("bundle", "--db", theirs, "-o", tmp_path / "x.bundle")
    run("merge", theirs, "--db", mine)
    assert is_approved(mine)

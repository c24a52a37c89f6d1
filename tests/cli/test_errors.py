"""Errors are one line and an exit code."""

import sqlite3
import subprocess
from contextlib import closing

import pytest
import workdirs
from builders import sql
from checks import one_line
from click.testing import CliRunner

from tunedb import limits
from tunedb.cli import app, main
from tunedb.errors import StorageError
from tunedb.storage.batches import Batches

READS = [
    *(["top"], ["workloads"], ["targets"], ["show", "1"], ["history", "1"], ["quarantine"]),
    *(["train"], ["evaluate"], ["simulate"]),
    *(["export", "out"], ["db", "info"], ["db", "check"], ["bundle", "-o", "x"], ["vacuum"]),
    *(["prune", "--retracted", "--yes"], ["trust", "x", "own"], ["retract", "1", "--reason", "x"]),
    *(["sessions", "--update"], ["sources"], ["report", "-o", "r.html"]),
]


@pytest.mark.parametrize("command", READS, ids=" ".join)
def test_commands_reject_missing_database(command, run, tmp_path):
    for database in (["--db", tmp_path / "missing.db"], []):
        assert "tunedb db init" in one_line(run(*database, *command, code=3))
    assert not (tmp_path / "missing.db").exists()


#: A command that reads a database, and one that updates it.
OPENS = (["top"], ["train"])


def test_commands_reject_newer_schema(run, filled):
    sql(filled, "UPDATE alembic_version SET version_num = '9999'")
    for command in OPENS:
        assert "newer tunedb" in one_line(run("--db", filled, *command, code=4))


def test_commands_reject_files_of_other_programs(run, log, tmp_path):
    path = tmp_path / "bookmarks.db"
    sql(path, "CREATE TABLE bookmark (url TEXT)")
    before = path.read_bytes()
    databases = (["db", word] for word in ("init", "check", "upgrade"))
    for command in (*OPENS, ["import", "logs", log], *databases):
        assert "another program" in one_line(run("--db", path, *command, code=4)), command
        assert path.read_bytes() == before
    path.write_text("not a database at all, but long enough to look at " * 40)
    for command in (*OPENS, ["db", "info"], ["db", "check"]):
        one_line(run("--db", path, *command, code=4))


def test_passwords_are_never_printed(run, log):
    for url in ("", "mysql://host/x", "postgresql://user:hunter2@host:port/x"):
        for command in (["top"], ["import", "logs", log]):
            assert "hunter2" not in run("--db", url, *command, code=2).stderr
    url = "postgresql://user:hunter2@127.0.0.1:1/none"
    for command in (["top"], ["top", "--debug"], ["db", "info"], ["db", "init"]):
        assert "hunter2" not in run("--db", url, *command, "-vv", code=5).output


@pytest.mark.parametrize(
    "words", ["x'; DROP TABLE program;--", 'x"; --', "%", "_", "\\", "' OR 1=1"]
)
def test_arguments_are_never_executed_as_sql(words, run, filled, log):
    with closing(sqlite3.connect(filled)) as connection:
        before = list(connection.iterdump())
    for command in ("top", "top --target", "history", "show", "export out --workload"):
        run("--db", filled, *command.split(), words, code=3)
    with closing(sqlite3.connect(filled)) as connection:
        assert list(connection.iterdump()) == before
    folder = workdirs.write(log.parent / "n", [workdirs.record([9.0])], [workdirs.graph(words)])
    run("--db", filled, "import", "logs", folder, "--source", words)
    assert run("--db", filled, "top", words, "--csv").stdout.count("\n") == 2
    run("--db", filled, "db", "check")


def test_history_prints_to_an_ascii_stream(filled):
    done = CliRunner(charset="ascii").invoke(main, ["--db", str(filled), "history", "matmul"])
    assert done.exit_code == 0 and "3.00x" in done.output, done.output


def test_debug_shows_the_traceback(run, tmp_path):
    for arguments in (["--debug", "top"], ["top", "--debug"]):
        result = run("--db", tmp_path / "x.db", *arguments, code=3)
        assert "Traceback" in result.stderr
        assert result.stderr.splitlines()[-1].startswith("Error: ")


def test_unexpected_error_is_one_escaped_line(run, filled, monkeypatch):
    def fail(*_):
        raise ZeroDivisionError("one\ntwo\x1b[2J")

    monkeypatch.setattr("tunedb.storage.workloads.Workloads.find", fail)
    message = one_line(run("--db", filled, "workloads", code=1))
    assert "ZeroDivisionError: one\\ntwo\\x1b[2J" in message and "--debug" in message


def test_imported_records_are_reported_before_an_error(run, filled, tmp_path, monkeypatch):
    load, calls = Batches.load_all, []

    def fail(*args, **kwargs):
        calls.append(1)
        if len(calls) > 1:
            raise StorageError("disk full")
        return load(*args, **kwargs)

    monkeypatch.setattr(Batches, "load_all", fail)
    monkeypatch.setattr(limits, "IMPORT_ROWS", 1)
    for name in ("a", "b"):
        workdirs.write(tmp_path / "logs" / name, [workdirs.record([0.25])])
    result = run("--db", filled, "import", "logs", tmp_path / "logs", "--csv", code=1)
    assert result.stdout.splitlines()[1].split(",")[2:4] == ["1", "1"]
    assert result.stderr.splitlines()[-1] == "Error: disk full"


def test_interrupt_is_reported_with_its_own_exit_code(run, filled, interrupt):
    interrupt("tunedb.storage.workloads.Workloads.find")
    assert "Interrupted" in run("--db", filled, "workloads", code=app.INTERRUPTED).stderr


def test_read_only_file_system_allows_reads_and_rejects_writes(run, filled, log, mount):
    folder = mount()
    path = folder / "shared.db"
    path.write_bytes(filled.read_bytes())
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    run("--db", path, "db", "info")
    assert run("--db", path, "top", "matmul", "--csv").stdout.count("\n") == 6
    assert "Error: " in run("--db", path, "import", "logs", log, code=1).stderr
    run("--db", path, "import", "logs", log, "--dry-run")
    run("--db", filled, "export", folder / "out", code=1)

"""``tunedb import logs``: stored records, bad lines, bad paths and interruptions."""

import os
import signal
import sqlite3
import time
from contextlib import closing

import pytest
import workdirs
from checks import has, one_line, row_has

import tunedb
from tunedb.records import Status


def test_import_makes_the_database(run, run_json, log, tmp_path):
    path = tmp_path / "new.db"
    (row,) = run_json("--db", path, "import", "logs", log)
    file = str(log / "database_tuning_record.json")
    row_has(row, read=7, new=7, known=0, failed=1, quarantined=0, path=file, source=file)
    groups = [(group["format"], group["read"]) for group in row["groups"]]
    assert groups == [("metaschedule", 5), ("metaschedule", 1), ("metaschedule", 1)]
    with tunedb.open(path, create=False) as store:
        assert store.counts().measurements == 7
        assert [r.id for r in store.records.iterate() if r.measurement.status is Status.FAILED]
    # The folder of the default database is made, but not that of a named one.
    run("import", "logs", log, env={"XDG_DATA_HOME": str(tmp_path / "elsewhere")})
    assert len(workdirs.contents(tmp_path / "elsewhere" / "tunedb" / "tune.db")) == 7
    run("--db", tmp_path / "mistyped" / "x.db", "import", "logs", log, code=3)
    assert not (tmp_path / "mistyped").exists()


def test_import_searches_directories_and_patterns_and_reports_other_files(
    run, run_json, sqlite_file, tmp_path
):
    for i, name in enumerate(("runs/a", "runs/b/c/d", "runs/b")):
        workdirs.write(tmp_path / name, [workdirs.record([1e-3 * (i + 1)])])
    notes = tmp_path / "runs" / "notes.txt"
    notes.write_text("nothing")
    words = ("--db", sqlite_file, "import", "logs")
    rows = run_json(*words, tmp_path / "runs")
    assert [row["new"] for row in rows if row["refused"] is None] == [1, 1, 1]
    # Files that are no logs are reported, and the others are imported.
    assert [row["path"] for row in rows if row["refused"] is not None] == [str(notes)]
    result = run(*words, tmp_path / "runs")
    assert result.stdout.splitlines()[-1].split() == ["total", "3", "0", "3"]
    assert "notes.txt: no tuning log" in result.stderr
    run(*words, tmp_path / "runs", "--strict", code=1)
    assert len(run_json(*words, f"{tmp_path}/runs/[ab]")) == 3
    file = tmp_path / "runs" / "a" / "database_tuning_record.json"
    assert run_json(*words, file)[0]["known"] == 1


def test_processes_that_share_files_report_as_one_does(run, run_json, tmp_path, monkeypatch):
    for i in range(3):
        workdirs.write(tmp_path / f"runs/{i}", [workdirs.record([1e-3 * (i + 1)])], end="\njunk\n")
    alone = run_json("--db", tmp_path / "alone.db", "import", "logs", tmp_path / "runs")
    monkeypatch.setattr("tunedb.cli.logs.import_logs._SHARED_BYTES", 1)
    shared = run_json("--db", tmp_path / "shared.db", "import", "logs", tmp_path / "runs")
    assert [row["path"] for row in alone] == [row["path"] for row in shared]
    assert shared == alone and [row["quarantined"] for row in shared] == [1, 1, 1]
    again = run("--db", tmp_path / "shared.db", "import", "logs", tmp_path / "runs")
    assert "3 records in 3 files, 0 new" in again.stderr and "3 lines not under" in again.stderr


def test_import_refuses_invalid_paths(run, sqlite_file, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("nothing")
    for path, code in (
        *((tmp_path / "missing", 3), (tmp_path / "empty", 3), (tmp_path / "none-*", 3)),
        *((tmp_path / "notes.txt", 1), ("-", 1)),
    ):
        one_line(run("--db", sqlite_file, "import", "logs", path, code=code))
    run("--db", sqlite_file, "import", "logs", code=2)


BAD_LINES = [
    ('[0, [[[["NoSuchInstruction",[],[],[]]],[]],[1],null,null]]', "unknown instruction"),
    (b'[0, "\xff\xfe"]', "not JSON"),
    ("[-1" + str(workdirs.encode(workdirs.record()), "utf-8")[2:], "must be a line number"),
]


@pytest.mark.parametrize(("line", "reason"), BAD_LINES, ids=range(len(BAD_LINES)))
def test_import_quarantines_only_the_bad_line(line, reason, run, run_json, sqlite_file, tmp_path):
    good = [workdirs.record([1e-3]), workdirs.record([2e-3])]
    folder = workdirs.write(tmp_path / "log", [good[0], line, good[1]])
    result = run("--db", sqlite_file, "import", "logs", folder)
    file = folder / "database_tuning_record.json"
    has(result.stderr, "1 line not understood", f"{file}:2: ", reason, "tunedb quarantine")
    assert len(workdirs.contents(sqlite_file)) == 2
    (kept,) = run_json("--db", sqlite_file, "quarantine")
    row_has(kept, file=str(file), line=2, size=len(workdirs.encode(line)))
    run("--db", sqlite_file, "import", "logs", folder, "--strict", code=1)
    assert run_json("--db", sqlite_file, "quarantine") == [kept]


def test_import_counts_bad_lines_by_reason(run, sqlite_file, tmp_path):
    folder = workdirs.write(tmp_path / "log", [workdirs.record(), *["{"] * 9, *["[0]"] * 3])
    message = run("--db", sqlite_file, "import", "logs", folder).stderr
    has(message, "12 lines not understood", "and 7 more")
    # All reasons are counted, the most frequent one first.
    reasons = message.partition("Reasons of all of them:\n")[2].splitlines()
    assert reasons[0].split()[:2] == ["9", "not"]
    assert reasons[1].strip() == "3  its JSON is not a record of a known format"


def test_dry_run_and_second_import_change_nothing(run, run_json, log, sqlite_file, tmp_path):
    before = sqlite_file.read_bytes()
    (row,) = run_json("--db", sqlite_file, "import", "logs", log, "--dry-run")
    row_has(row, new=7, dry_run=True)
    assert sqlite_file.read_bytes() == before
    missing = tmp_path / "missing.db"
    assert "nothing was written" in run("--db", missing, "import", "logs", log, "--dry-run").stderr
    assert not missing.exists()
    run("--db", sqlite_file, "import", "logs", log)
    before = workdirs.contents(sqlite_file)
    for words in (["--dry-run"], []):
        (row,) = run_json("--db", sqlite_file, "import", "logs", log, *words)
        row_has(row, read=7, new=0, known=7)
    assert workdirs.contents(sqlite_file) == before


def test_source_keeps_its_trust_and_foreign_records_are_not_served(
    run, run_json, log, sqlite_file, tmp_path
):
    words = ("--db", sqlite_file, "import", "logs")
    run(*words, log, "--source", "them", "--trust", "foreign")
    assert run_json("--db", sqlite_file, "top", "matmul") == []
    (source,) = run_json("--db", sqlite_file, "sources")
    row_has(source, name="them", trust="foreign", records=7)
    # A source keeps its trust, and a request for another one is an error.
    before = workdirs.contents(sqlite_file)
    other = workdirs.write(tmp_path / "other", [workdirs.record([7e-3])])
    again = (*words, other, "--source", "them")
    assert "exists with trust foreign" in run(*again, "--trust", "own", code=2).stderr
    assert workdirs.contents(sqlite_file) == before
    run(*again)
    assert run_json("--db", sqlite_file, "top", "matmul") == []
    verified = workdirs.write(tmp_path / "verified", [workdirs.record([8e-3])])
    run(*words, verified, "--trust", "verified")
    assert len(run_json("--db", sqlite_file, "top", "matmul")) == 1


def test_quiet_import_prints_no_messages(run, log, sqlite_file):
    assert run("--db", sqlite_file, "-q", "import", "logs", log).stderr == ""
    run("--db", sqlite_file, "import", "logs", log, "-vv", "--strict")


@pytest.fixture(scope="module")
def large_log(tmp_path_factory):
    """A log that takes seconds to import."""
    folder = tmp_path_factory.mktemp("large")
    lines = [workdirs.record([1e-3 + i * 1e-9], tile=(i % 64, 2)) for i in range(40_000)]
    return workdirs.write(folder / "log", lines)


@pytest.mark.stress
def test_ctrl_c_keeps_finished_batches(start, sqlite_file, large_log, run):
    process = start("--db", sqlite_file, "import", "logs", large_log)
    with closing(sqlite3.connect(sqlite_file)) as connection:
        deadline = time.monotonic() + 300
        while not connection.execute("SELECT count(*) FROM measurement").fetchone()[0]:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 130, errors
    assert len(workdirs.contents(sqlite_file)) == 20_000
    assert "Traceback" not in errors
    assert "in file 1 of 1: 20,000 new records stored; run the same command again" in errors
    assert "20,000" in output
    run("--db", sqlite_file, "db", "check", "--sample", 100)


def test_import_accepts_file_names_that_are_not_utf8(run, sqlite_file, tmp_path):
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    workdirs.write(folder, [workdirs.record(), "bad"])
    done = run("--db", sqlite_file, "import", "logs", folder)
    assert "caf\\udce9" in done.stdout

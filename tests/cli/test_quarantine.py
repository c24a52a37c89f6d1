"""``tunedb quarantine list``, ``show`` and ``retry``."""

import json

import pytest
from checks import has, row_has
from legacy import ANSOR

import tunedb
from tunedb.records import Quarantined, Source, SourceKind

BAD = b'{"junk\x1b[2J": "\xff"'


@pytest.fixture
def kept(sqlite_file):
    """A database with a bad line of ``a.log``, and a line of ``b.log`` that is understood now."""
    good = json.dumps(ANSOR[0]).encode()
    with tunedb.open(sqlite_file) as store:
        source = Source("old", SourceKind.FILE)
        store.quarantine.add([Quarantined("/logs/a.log", 3, "not JSON", BAD)], source)
        store.quarantine.add([Quarantined("/logs/b.log", 8, "unknown", good)], source)
    return sqlite_file


def test_quarantine_without_subcommand_lists_lines(run, run_json, kept):
    rows = run_json("--db", kept, "quarantine")
    found = [(row["id"], row["line"], row["size"], row["source"]) for row in rows]
    assert found == [(2, 8, len(json.dumps(ANSOR[0])), "old"), (1, 3, len(BAD), "old")]
    assert rows == run_json("--db", kept, "quarantine", "list")
    assert run_json("--db", kept, "quarantine", "--limit", 1) == rows[:1]
    assert run_json("--db", kept, "quarantine", "--file", "/logs/a.log") == rows[1:]
    limited = run("--db", kept, "quarantine", "--limit", 1)
    assert limited.stdout.count("\n") == 2 and "1 of 2" in limited.stderr


def test_show_prints_bad_line_escaped_or_raw(run, run_json, kept):
    text = run("--db", kept, "quarantine", "show", 1).stdout
    has(text, '{"junk\\x1b[2J": "\\xff"', "/logs/a.log", "old (own)")
    assert run("--db", kept, "quarantine", "show", 1, "--raw").stdout_bytes == BAD
    assert run_json("--db", kept, "quarantine", "show", 1)["reason"] == "not JSON"


def test_long_lines_are_shown_whole(run, sqlite_file):
    for words in (["quarantine"], ["quarantine", "retry"]):
        result = run("--db", sqlite_file, *words)
        assert (result.stdout, result.stderr) == ("", "nothing is quarantined\n")
    data = bytes(range(48, 58)) * 25
    with tunedb.open(sqlite_file) as store:
        store.quarantine.add([Quarantined("x", 1, "long", data)], Source("s"))
    shown = run("--db", sqlite_file, "quarantine", "show", 1).stdout.partition("Bytes\n")[2]
    assert [len(line) for line in shown.splitlines()] == [100, 100, 50]
    assert shown.replace("\n", "").encode() == data


def test_retry_imports_lines_that_are_understood_now(run, run_json, kept):
    assert run_json("--db", kept, "quarantine", "retry", 1)["left"] == 1
    report = run_json("--db", kept, "quarantine", "retry")
    row_has(report, tried=2, recovered=1, known=0, left=1)
    assert [row["id"] for row in run_json("--db", kept, "quarantine")] == [1]
    shown = run_json("--db", kept, "show", 1)
    assert (shown["mean"], shown["source"]["name"]) == (0.003, "old")
    text = run("--db", kept, "quarantine", "retry", "--file", "/logs/a.log").stdout
    assert text.splitlines()[1].startswith("left: not JSON")

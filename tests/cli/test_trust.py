"""``tunedb sources``, ``tunedb trust`` and ``tunedb retract``."""

import csv
import io
import json
from dataclasses import replace
from types import SimpleNamespace

import builders
import pytest

import tunedb
from tunedb.cli import confirm
from tunedb.records import Alias, Program, Source, SourceKind, Trace, Trust

STRANGER = Source("stranger", SourceKind.FILE, Trust.FOREIGN)
HOSTILE = "x\x1b[31m\u202e'; DROP TABLE source;--"


@pytest.fixture
def file(sqlite_file):
    """A database with own records 1 to 3, the last two of a session; 4 and 5 are a stranger's."""
    session = builders.make_session()
    with tunedb.open(sqlite_file) as store:
        store.records.add([builders.make_measurement(0)], builders.OWN)
        store.records.add(
            [builders.make_measurement(n, session=session) for n in (1, 2)], builders.OWN
        )
        store.records.add([builders.make_measurement(3), builders.make_measurement(4)], STRANGER)
    return sqlite_file


def evil(path, number=50, source=STRANGER):
    """Store a record whose trace imports LLVM code."""
    measurement = builders.make_measurement(number)
    trace = measurement.program.trace
    trace = Trace(b'[["Annotate",["l1",{}],["pragma_import_llvm"],[]]]', trace.tail, b"[[],[],[]]")
    program = Program(measurement.program.workload, measurement.program.target, trace)
    with tunedb.open(path) as store:
        store.records.add([replace(measurement, program=program)], source)


def served(path):
    """Return the ids of the records that are served."""
    with tunedb.open(path, read_only=True) as store:
        return sorted(record.id for record in store.records.top_k([1], None, 100))


def test_sources_lists_each_source_with_its_counts(run, run_json, file):
    own, stranger = run_json("--db", file, "sources")
    assert own == {
        **{"id": 1, "digest": own["digest"], "name": "own", "kind": "api", "trust": "own"},
        **{"store": own["store"], "records": 3, "served": 3, "retracted": 0, "aliases": 0},
        **{"since": own["since"], "reason": None, "aliases_reason": None, "card": None},
    }
    assert (len(own["digest"]), len(own["store"])) == (32, 32)
    assert (stranger["trust"], stranger["kind"]) == ("foreign", "file")
    assert (stranger["records"], stranger["served"]) == (2, 0)
    table = run("--db", file, "sources").stdout
    titles = ["id", "name", "kind", "trust", "database", "records", "served", "retracted"]
    titles += ["aliases", "since"]
    assert table.splitlines()[0].split() == titles
    assert table.splitlines()[1].split()[:8] == ["1", "own", "api", "own", "ours", "3", "3", "0"]
    rows = list(csv.DictReader(io.StringIO(run("--db", file, "sources", "--csv").stdout)))
    assert [row["name"] for row in rows] == ["own", "stranger"]


def test_sources_shows_key_of_other_databases_and_escapes_names(run, file):
    change = "UPDATE source SET store = ?, name = ? WHERE id = 2"
    builders.sql(file, change, "deadbeef" * 4, HOSTILE)
    table = run("--db", file, "sources").stdout
    assert "deadbeef " in table
    assert "deadbeefd" not in table
    assert not {"\x1b", "\u202e"} & set(table)
    assert "\\x1b[31m" in table


def test_sources_of_empty_database_is_empty(run, run_json, sqlite_file):
    assert "no source yet" in run("--db", sqlite_file, "sources").stderr
    assert run_json("--db", sqlite_file, "sources") == []


def test_retract_aliases_undoes_equivalence_of_workloads(run, run_json, file):
    name = Alias("script", "ab" * 16)
    with tunedb.open(file) as store:
        same = [builders.make_graph((8, 8), salt=n) for n in range(2)]
        own, other = (store.workloads.add(one, [name], Source("own")) for one in same)
        assert store.workloads.equivalent(own) == [own, other]
    assert [row["aliases"] for row in run_json("--db", file, "sources")] == [2, 0]
    words = ("--db", file, "sources", "--retract-aliases", "own")
    assert "--reason" in run(*words, code=2).stderr
    done = run(*words, "--reason", "wrong", "--yes")
    assert "Sources with retracted aliases: 1" in done.stderr
    (row, _) = run_json("--db", file, "sources")
    assert (row["aliases_reason"], row["reason"], row["served"]) == ("wrong", None, 3)
    with tunedb.open(file) as store:
        assert store.workloads.equivalent(own) == [own]


def test_sources_reports_retracted_source_with_reason(run, run_json, file):
    run("--db", file, "retract", "--source", "own", "--reason", "busy", "--yes")
    assert "Retracted sources: 1" in run("--db", file, "sources").stderr
    assert run_json("--db", file, "sources")[0]["reason"] == "busy"


def test_trust_finds_source_by_id_name_and_digest(run_json, file):
    digest = run_json("--db", file, "sources")[1]["digest"]
    before = file.read_bytes()
    for words in ("2", "stranger", digest[:6], digest.upper()):
        row = run_json("--db", file, "trust", words, "verified", "--dry-run")
        assert row == {
            **{"id": 2, "name": "stranger", "before": "foreign", "trust": "verified"},
            **{"changed": 2, "dry_run": True},
        }
    assert file.read_bytes() == before


def test_trust_changes_a_source_and_its_served_records(run, file):
    def trust(*words):
        return run("--db", file, "trust", "stranger", *words).stdout.removeprefix("2 (stranger): ")

    assert trust("verified", "--dry-run") == (
        "foreign → verified; 2 records would start being served\n"
    )
    assert trust("verified") == "foreign → verified; 2 records start being served\n"
    assert served(file) == [1, 2, 3, 4, 5]
    assert trust("own") == "verified → own; served records stay the same\n"
    assert trust("foreign") == "own → foreign; 2 records stop being served\n"
    assert served(file) == [1, 2, 3]


def test_trust_finds_source_by_end_of_its_path(run, file):
    with tunedb.open(file) as store:
        for name in ("/logs/a/tuning.json", "/logs/b/tuning.json"):
            store.records.add(
                [builders.make_measurement(9)], Source(name, SourceKind.FILE, Trust.FOREIGN)
            )
    run("--db", file, "trust", "b/tuning.json", "verified")
    with tunedb.open(file, read_only=True) as store:
        trusted = {row.name: row.trust for row in store.sources.summaries()}
    assert trusted["/logs/b/tuning.json"] is Trust.VERIFIED
    assert trusted["/logs/a/tuning.json"] is Trust.FOREIGN
    done = run("--db", file, "trust", "tuning.json", "verified", code=2)
    assert "'tuning.json' matches 2 sources" in done.stderr


@pytest.mark.parametrize("words", ["nobody", "9", "abc", HOSTILE, ""])
def test_trust_and_retract_reject_unknown_sources(run, file, words):
    for command in (
        ("trust", words, "own"),
        ("retract", "--source", words, "--reason", "x", "--yes"),
    ):
        line = run("--db", file, *command, code=3).stderr
        assert "there are: 1 (own), 2 (stranger); see: tunedb sources" in line
        assert not {"\x1b", "\u202e"} & set(line)
    assert served(file) == [1, 2, 3]


def test_trust_retract_and_sources_create_no_database(run, tmp_path):
    for command in (["trust", "x", "own"], ["retract", "1", "--reason", "x"], ["sources"]):
        run("--db", tmp_path / "typo.db", *command, code=3)
    assert not (tmp_path / "typo.db").exists()


def test_trust_rejects_source_with_forbidden_trace_until_retracted(run, run_json, file):
    evil(file)
    for more in ([], ["--dry-run"]):
        line = run("--db", file, "trust", "stranger", "own", *more, code=1).stderr
        assert "1 of its records must not reach TVM; the first is 6" in line
        assert line.count("\n") == 1
    command = "tunedb retract --source 2 --not-allowed --reason TEXT"
    assert command in line
    words = command.replace("TEXT", "evil").split()[1:]
    assert run_json("--db", file, *words, "--dry-run")["records"] == [6]
    row = run_json("--db", file, *words, "--yes")
    assert (row["records"], row["sources"], row["stopped"]) == ([6], [], 0)
    output = run("--db", file, *words).stdout
    assert output == "Nothing to retract: all traces of these sources are allowed\n"
    assert run_json("--db", file, *words)["records"] == []
    run("--db", file, "trust", "stranger", "own")
    assert served(file) == [1, 2, 3, 4, 5]


def test_completion_suggests_sources(run, file):
    words = {"COMP_WORDS": "tunedb --db {} trust st", "COMP_CWORD": "4"}
    words["COMP_WORDS"] = words["COMP_WORDS"].format(file)
    environment = {"_TUNEDB_COMPLETE": "bash_complete", **words}
    shown = run(prog_name="tunedb", env=environment).stdout
    assert shown.splitlines() == ["plain,stranger"]


def test_retracted_records_are_no_longer_served(run, run_json, file):
    with tunedb.open(file, read_only=True) as store:
        digest = store.records.get(3).measurement.digest.hex()
    row = run_json("--db", file, "retract", 1, digest[:10], 4, "--reason", "busy", "--dry-run")
    assert row == {
        **{"records": [1, 3, 4], "sources": [], "sessions": []},
        **{"reason": "busy", "stopped": 2, "dry_run": True},
    }
    assert served(file) == [1, 2, 3]
    output = run("--db", file, "retract", 1, 3, 4, "--reason", "busy", "--yes").stdout
    assert output == "Retracted 3 records; 2 records stopped being served\n"
    assert served(file) == [2]
    assert run_json("--db", file, "show", 4)["retracted"] is True
    again = run("--db", file, "retract", 1, "--reason", "x", "--dry-run").stdout
    assert again == "Would retract 1 record; 0 records would stop being served\n"


def test_records_of_retracted_session_and_source_are_no_longer_served(run, run_json, file):
    key = builders.make_session().key
    output = run("--db", file, "retract", "--session", key, "--reason", "hot", "--yes").stdout
    assert output == "Retracted 1 session; 2 records stopped being served\n"
    assert served(file) == [1]
    row = run_json("--db", file, "retract", "--source", 1, "--reason", "all", "--yes")
    assert (row["sources"], row["stopped"]) == ([1], 1)
    assert served(file) == []
    with tunedb.open(file) as store:
        store.records.add([builders.make_measurement(30)], builders.OWN)
    assert served(file) == []


def test_retract_asks_on_a_terminal_and_needs_yes_elsewhere(run, file, monkeypatch):
    line = run("--db", file, "retract", 1, "--reason", "x", code=2).stderr
    assert "give --yes, or preview with --dry-run" in line
    assert served(file) == [1, 2, 3]
    terminal = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(confirm, "sys", terminal)
    arguments = ["--db", file, "retract", 1, "--reason", "x"]
    asked = run(*arguments, code=1, input="n\n")
    assert "Retract 1 record? 1 record would no longer be served, for good" in asked.stderr
    assert served(file) == [1, 2, 3]
    run(*arguments, input="y\n")
    assert served(file) == [2, 3]


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["--reason", "x"], 2, "choose what to retract"),
        (["1"], 2, "Missing option '--reason'"),
        (["1", "--reason", "", "--yes"], 2, "a retraction needs a reason"),
        (["99", "--reason", "x"], 3, "no record '99'"),
        (["--session", "nope", "--reason", "x"], 3, "no session 'nope'"),
        (["1", "--not-allowed", "--reason", "x"], 2, "--not-allowed needs --source"),
    ],
)
def test_invalid_retractions_are_refused(run, file, arguments, code, line):
    assert line in run("--db", file, "retract", *arguments, code=code).stderr
    assert served(file) == [1, 2, 3]


def test_names_and_reasons_of_strangers_are_escaped(run, run_json, file):
    with tunedb.open(file) as store:
        store.records.add(
            [builders.make_measurement(9)], Source(HOSTILE, SourceKind.FILE, Trust.FOREIGN)
        )
    output = run("--db", file, "trust", "3", "own").stdout
    assert not {"\x1b", "\u202e"} & set(output)
    assert run_json("--db", file, "trust", HOSTILE, "foreign")["id"] == 3
    run("--db", file, "retract", "--source", "3", "--reason", HOSTILE, "--yes")
    rows = json.loads(run("--db", file, "sources", "--json").stdout)
    assert (rows[2]["name"], rows[2]["reason"]) == (HOSTILE, HOSTILE)

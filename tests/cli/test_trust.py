"""``tunedb sources``, ``tunedb trust`` and ``tunedb retract``."""

from dataclasses import replace

import pytest
from builders import OWN, make_graph, make_measurement, make_session, sql
from checks import one_line, row_has

import tunedb
from tunedb.records import Alias, Program, Source, SourceKind, Trace, Trust

STRANGER = Source("stranger", SourceKind.FILE, Trust.FOREIGN)
HOSTILE = "x\x1b[31m\u202e'; DROP TABLE source;--"


@pytest.fixture
def file(sqlite_file):
    """A database with own records 1 to 3, the last two of a session; 4 and 5 are a stranger's."""
    session = make_session()
    with tunedb.open(sqlite_file) as store:
        store.records.add([make_measurement(0)], OWN)
        store.records.add([make_measurement(n, session=session) for n in (1, 2)], OWN)
        store.records.add([make_measurement(3), make_measurement(4)], STRANGER)
    return sqlite_file


def evil(path):
    """Store a record of the stranger whose trace imports LLVM code."""
    measurement = make_measurement(50)
    trace = measurement.program.trace
    trace = Trace(b'[["Annotate",["l1",{}],["pragma_import_llvm"],[]]]', trace.tail, b"[[],[],[]]")
    program = Program(measurement.program.workload, measurement.program.target, trace)
    with tunedb.open(path) as store:
        store.records.add([replace(measurement, program=program)], STRANGER)


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
    row_has(stranger, trust="foreign", kind="file", records=2, served=0)
    titles, first, _ = run("--db", file, "sources").stdout.splitlines()
    assert titles.split() == [
        *("id", "name", "kind", "trust", "database", "records", "served", "retracted"),
        *("aliases", "since"),
    ]
    assert first.split()[:8] == ["1", "own", "api", "own", "ours", "3", "3", "0"]


def test_sources_shows_key_of_other_databases_and_escapes_names(run, run_json, file, tmp_path):
    sql(file, "UPDATE source SET store = ?, name = ? WHERE id = 2", "deadbeef" * 4, HOSTILE)
    table = run("--db", file, "sources").stdout
    assert "deadbeef " in table and "\\x1b[31m" in table
    assert not {"\x1b", "\u202e"} & set(table)
    empty = tmp_path / "empty.db"
    run("db", "init", empty)
    assert "no source yet" in run("--db", empty, "sources").stderr
    assert run_json("--db", empty, "sources") == []


def test_retract_aliases_undoes_equivalence_of_workloads(run, run_json, file):
    name = Alias("script", "ab" * 16)
    with tunedb.open(file) as store:
        same = [make_graph((8, 8), salt=n) for n in range(2)]
        own, other = (store.workloads.add(one, [name], Source("own")) for one in same)
        assert store.workloads.equivalent(own) == [own, other]
    assert [row["aliases"] for row in run_json("--db", file, "sources")] == [2, 0]
    words = ("--db", file, "sources", "--retract-aliases", "own")
    assert "--reason" in run(*words, code=2).stderr
    done = run(*words, "--reason", "wrong", "--yes")
    assert "Sources with retracted aliases: 1" in done.stderr
    row_has(run_json("--db", file, "sources")[0], aliases_reason="wrong", reason=None, served=3)
    with tunedb.open(file) as store:
        assert store.workloads.equivalent(own) == [own]


def test_trust_finds_source_by_id_name_digest_and_end_of_path(run, run_json, file):
    before = file.read_bytes()
    digest = run_json("--db", file, "sources")[1]["digest"]
    for words in ("2", "stranger", digest[:6], digest.upper()):
        assert run_json("--db", file, "trust", words, "verified", "--dry-run") == {
            **{"id": 2, "name": "stranger", "before": "foreign", "trust": "verified"},
            **{"changed": 2, "dry_run": True},
        }
    assert file.read_bytes() == before
    with tunedb.open(file) as store:
        for name in ("/logs/a/tuning.json", "/logs/b/tuning.json"):
            store.records.add([make_measurement(9)], replace(STRANGER, name=name))
    run("--db", file, "trust", "b/tuning.json", "verified")
    trusted = {row["name"]: row["trust"] for row in run_json("--db", file, "sources")}
    row_has(trusted, **{"/logs/b/tuning.json": "verified", "/logs/a/tuning.json": "foreign"})
    done = run("--db", file, "trust", "tuning.json", "verified", code=2)
    assert "'tuning.json' matches 2 sources" in done.stderr


def test_trust_changes_a_source_and_its_served_records(run, file):
    def trust(*words):
        return run("--db", file, "trust", "stranger", *words).stdout.removeprefix("2 (stranger): ")

    shown = trust("verified", "--dry-run")
    assert shown == "foreign → verified; 2 records would start being served\n"
    assert trust("verified") == "foreign → verified; 2 records start being served\n"
    assert served(file) == [1, 2, 3, 4, 5]
    assert trust("own") == "verified → own; served records stay the same\n"
    assert trust("foreign") == "own → foreign; 2 records stop being served\n"
    assert served(file) == [1, 2, 3]


def test_trust_and_retract_reject_unknown_sources(run, file):
    for words in ("nobody", "9", "abc", HOSTILE, ""):
        retract = ("retract", "--source", words, "--reason", "x", "--yes")
        for command in (("trust", words, "own"), retract):
            line = run("--db", file, *command, code=3).stderr
            assert "there are: 1 (own), 2 (stranger); see: tunedb sources" in line
            assert not {"\x1b", "\u202e"} & set(line)
    assert served(file) == [1, 2, 3]


def test_trust_rejects_source_with_forbidden_trace_until_retracted(run, run_json, file):
    evil(file)
    for more in ([], ["--dry-run"]):
        line = one_line(run("--db", file, "trust", "stranger", "own", *more, code=1))
        assert "1 of its records must not reach TVM; the first is 6" in line
    command = "tunedb retract --source 2 --not-allowed --reason TEXT"
    assert command in line
    words = command.replace("TEXT", "evil").split()[1:]
    assert run_json("--db", file, *words, "--dry-run")["records"] == [6]
    row_has(run_json("--db", file, *words, "--yes"), records=[6], sources=[], stopped=0)
    output = run("--db", file, *words).stdout
    assert output == "Nothing to retract: all traces of these sources are allowed\n"
    assert run_json("--db", file, *words)["records"] == []
    run("--db", file, "trust", "stranger", "own")
    assert served(file) == [1, 2, 3, 4, 5]


def test_retracted_records_are_no_longer_served(run, run_json, file):
    digest = run_json("--db", file, "show", 3)["digest"]
    words = ("retract", 1, digest[:10], 4, "--reason", "busy", "--dry-run")
    assert run_json("--db", file, *words) == {
        **{"records": [1, 3, 4], "sources": [], "sessions": []},
        **{"reason": "busy", "stopped": 2, "dry_run": True},
    }
    assert served(file) == [1, 2, 3]
    output = run("--db", file, "retract", 1, 3, 4, "--reason", "busy", "--yes").stdout
    assert output == "Retracted 3 records; 2 records stopped being served\n"
    assert served(file) == [2]
    assert run_json("--db", file, "show", 4)["retracted"] is True
    assert "ok (retracted)" in run("--db", file, "show", 4).stdout
    assert [row["id"] for row in run_json("--db", file, "top", "matmul_0", "-k", 9)] == [2]
    again = run("--db", file, "retract", 1, "--reason", "x", "--dry-run").stdout
    assert again == "Would retract 1 record; 0 records would stop being served\n"


def test_records_of_retracted_session_and_source_are_no_longer_served(run, run_json, file):
    key = make_session().key
    output = run("--db", file, "retract", "--session", key, "--reason", "hot", "--yes").stdout
    assert output == "Retracted 1 session; 2 records stopped being served\n"
    assert served(file) == [1]
    row = run_json("--db", file, "retract", "--source", "own", "--reason", "all", "--yes")
    row_has(row, sources=[1], stopped=1)
    assert "Retracted sources: 1" in run("--db", file, "sources").stderr
    assert run_json("--db", file, "sources")[0]["reason"] == "all"
    assert served(file) == []
    with tunedb.open(file) as store:
        store.records.add([make_measurement(30)], OWN)
    assert served(file) == []


def test_retract_asks_on_a_terminal(run, file, terminal):
    words = ["--db", file, "retract", 1, "--reason", "x"]
    asked = run(*words, code=1, input="n\n")
    assert "Retract 1 record? 1 record would no longer be served, for good" in asked.stderr
    assert served(file) == [1, 2, 3]
    run(*words, input="y\n")
    assert served(file) == [2, 3]
    terminal.stdin = None  # some services start programs so
    line = run("--db", file, "retract", 2, "--reason", "x", code=2).stderr
    assert "give --yes, or preview with --dry-run" in line
    assert served(file) == [2, 3]


def test_names_and_reasons_of_strangers_are_escaped(run, run_json, file):
    with tunedb.open(file) as store:
        store.records.add([make_measurement(9)], replace(STRANGER, name=HOSTILE))
    assert not {"\x1b", "\u202e"} & set(run("--db", file, "trust", "3", "own").stdout)
    assert run_json("--db", file, "trust", HOSTILE, "foreign")["id"] == 3
    run("--db", file, "retract", "--source", "3", "--reason", HOSTILE, "--yes")
    row_has(run_json("--db", file, "sources")[2], name=HOSTILE, reason=HOSTILE)

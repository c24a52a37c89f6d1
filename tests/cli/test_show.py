"""``tunedb show`` and the rendering of traces."""

import json
from contextlib import closing
from dataclasses import replace

import pytest
import workdirs
from builders import OWN, make_target, make_workload
from checks import has

import tunedb
from tunedb.errors import StorageError
from tunedb.exchange import prior
from tunedb.exchange.database_peer import DatabasePeer
from tunedb.exchange.merge import merge
from tunedb.launches import Launch
from tunedb.programs.metaschedule.steps import steps_of
from tunedb.programs.metaschedule.trace import split_trace
from tunedb.programs.step_text import line_of
from tunedb.records import (
    Failure,
    FailureKind,
    Measurement,
    Origin,
    Phase,
    Program,
    Session,
    Source,
    Status,
)
from tunedb.storage.store import Store


def test_show_finds_record_by_id_and_by_digest(run, run_json, filled):
    shown = run_json("--db", filled, "show", 2)
    assert (shown["id"], shown["run_secs"]) == (2, [1e-3, 1.1e-3])
    assert (shown["trace"], shown["decisions"]) == (workdirs.trace(2, 32), [[2, 32]])
    assert shown["target"]["config"] == workdirs.LLVM
    assert shown["workload"]["arguments"] == workdirs.ARGS
    for words in (shown["digest"], shown["digest"][:8], shown["digest"][:9].upper()):
        assert run_json("--db", filled, "show", words) == shown
    for words in ("99", "ffffffff", "zz", "1e", "9" * 40, "-", "½"):
        assert "no record" in run("--db", filled, "show", words, code=3).stderr


def test_show_omits_post_processing_without_trace_option(run, filled):
    text = run("--db", filled, "show", 2).stdout
    has(text, "Record 2", "1.050 ms ± 6.7 %", "1.000 ms, 1.100 ms", "nightly (file, own)")
    step = "2  v3, v4 = sample_perfect_tile(l1, n=2, max_innermost_factor=64, decision=[2, 32])"
    has(text, "f32 128x64, 64", step, "3 steps of post-processing (--trace)")
    assert "annotate" not in text
    text = run("--db", filled, "show", 2, "--trace").stdout
    assert '6  annotate(b7, 1, ann_key="pragma_unroll_explicit")' in text
    assert "--trace" not in text


def test_record_cut_short_has_repeats_and_no_mean(run, run_json, filled):
    with Store(filled) as store:
        measured = store.records.get(2).measurement
        (id_,), _ = store.batches.add([replace(measured, status=Status.CUT_SHORT)], OWN)
    shown = run_json("--db", filled, "show", id_)
    assert (shown["status"], shown["mean"], shown["median"]) == ("cut_short", None, None)
    assert shown["run_secs"] == [1e-3, 1.1e-3]
    has(run("--db", filled, "show", id_).stdout, "cut_short", "repeats    1.000 ms, 1.100 ms")


MESSAGE = "the runner said:\n\ttoo slow\x1b[2J"


@pytest.fixture
def rich_file(filled):
    """A database with a failed live record that has a session, an origin and a failure."""
    with tunedb.open(filled) as store:
        known = store.records.get(1).measurement.program
        script = "\n".join(f"line {i}" for i in range(30))
        workload = replace(known.workload, body=b'{"nodes":[]}', script=script)
        program = replace(known, workload=workload)
        session = Session("key", 1_799_999_999_000_000, b'{"cpu":"EPYC","cores":2}')
        fields = {"session": session, "measured_at": 1_800_000_000_000_000, "donor": known.digest}
        fields["failure"] = Failure(FailureKind.TIMEOUT, Phase.RUN, MESSAGE, 2.5)
        fields["origin"] = Origin.MUTATED
        store.records.add([Measurement(program, None, Status.FAILED, **fields)], Source("live"))
    return filled


def test_foreign_statements_about_a_record_are_marked(run, run_json, rich_file, tmp_path):
    """An earlier release showed them as the record's own failure and launch."""
    theirs = tmp_path / "theirs.db"
    with Store(rich_file) as store, Store(theirs) as other:
        record = store.records.get(8)
        other.records.add([record.measurement], Source("x"))
        lie = Failure(FailureKind.CRASH, Phase.BUILD, "not shown", 9.0)
        kernel = Launch("evil\x1b[2J", 64, (64, 1, 1), (1, 1, 1), seconds=1e-9)
        failures = [lie] + [replace(lie, message=f"{n}") for n in range(10)]
        other.batches.add_failures([(record.measurement, one) for one in failures])
        other.launches.add([(record.measurement, kernel)])
        with closing(DatabasePeer(theirs)) as peer:
            assert merge(store, peer).failures == 12  # the record's own too
    shown = run_json("--db", rich_file, "show", 8)
    assert (shown["failure"]["kind"], shown["launches"]) == ("timeout", [])
    assert len(shown["others"]) == 12
    first, last = shown["others"][0], shown["others"][-1]
    assert (first["source"], first["trust"], first["failure"]["kind"]) == ("x", "foreign", "crash")
    assert (first["launch"], last["failure"]) == (None, None)
    assert last["launch"]["seconds"] == 1e-9
    text = run("--db", rich_file, "show", 8).stdout
    has(text, "timeout in run after 2.500 s", "not trusted  failure crash", "… 2 more (--json)")
    assert text.count("failure crash in build after 9.000 s, according to x (foreign)\n") == 10
    assert "Launches" not in text and "\x1b" not in text


def test_show_prints_failure_and_script_of_a_record(run, run_json, rich_file):
    shown = run_json("--db", rich_file, "show", 8)
    failure = {"kind": "timeout", "phase": "run", "seconds": 2.5, "message": MESSAGE}
    assert shown["failure"] == failure
    session = {"fingerprint": {"cpu": "EPYC", "cores": 2}, "started_at": "2027-01-15T07:59:59Z"}
    assert session.items() <= shown["session"].items()
    assert shown["measured_at"] == "2027-01-15T08:00:00Z"
    assert (shown["mean"], shown["run_secs"], shown["status"]) == (None, None, "failed")
    text = run("--db", rich_file, "show", 8).stdout
    has(text, "timeout in run after 2.500 s", "    too slow\\x1b[2J", "cpu EPYC, cores 2")
    assert "origin     mutated from record 1 of workload 1\n" in text
    assert run_json("--db", rich_file, "db", "info")["failures"] == {"timeout": 1}
    # A long script is cut.
    has(text, "line 19", "10 lines more (--script)")
    assert "line 20" not in text
    assert "line 29" in run("--db", rich_file, "show", 8, "--script").stdout
    assert shown["script"].endswith("line 29")


def made(number, workload=0):
    """Return a program that has a number among its decisions."""
    return Program(make_workload(workload), make_target(), split_trace(*workdirs.trace(number, 64)))


def descend(path, number, origin, donor=None, *, workload=0, operators=(), other=None, **fields):
    """Store a record of a program of its own, and return the program's digest."""
    program = made(number, workload)
    search = {"operators": list(operators)}
    if other is not None:
        search["other"] = other.hex()
    extra = json.dumps({"search": search}).encode() if operators or other else None
    measurement = Measurement(program, (1e-3,), origin=origin, donor=donor, extra=extra, **fields)
    with tunedb.open(path) as store:
        store.records.add([measurement], OWN)
    return program.digest


def test_show_prints_lineage_of_a_program(run, run_json, sqlite_file):
    best = descend(sqlite_file, 1, Origin.RANDOM, workload=3)
    warm = descend(sqlite_file, 2, Origin.WARM, best)
    near = descend(sqlite_file, 3, Origin.MUTATED, warm, operators=["tile_size", "unroll"])
    descend(sqlite_file, 4, Origin.CROSSED, near, operators=["crossover"], other=warm)
    text = run("--db", sqlite_file, "show", 4).stdout
    lines = [line.strip() for line in text.splitlines()]
    start = lines.index("origin     crossed from record 3 with record 2,")
    assert lines[start + 1 : start + 4] == [
        "which was mutated twice (tile_size, unroll) from record 2,",
        "which was warm-started from record 1 of workload 1,",
        "which was drawn at random",
    ]
    assert "search" not in text
    shown = run_json("--db", sqlite_file, "show", 4)
    assert [step["record"] for step in shown["lineage"]] == [4, 3, 2, 1]
    other = {"program": warm.hex(), "record": 2, "workload_id": 2, "layer": None}
    assert shown["lineage"][0]["other"] == other
    assert shown["lineage"][1]["operators"] == ["tile_size", "unroll"]


def test_a_donor_of_the_prior_is_named(run, run_json, sqlite_file, tmp_path, monkeypatch):
    """The search began with a program that the own database does not have."""
    other = tmp_path / "team.db"
    with tunedb.open(other) as store:
        store.records.add([Measurement(made(1), (1e-3,)), Measurement(made(7), (1e-3,))], OWN)
    gone = made(7).digest
    descend(sqlite_file, 1, Origin.WARM, gone)
    # The database of the team stands for an unpacked bundle.
    monkeypatch.setattr(prior, "prior_path", lambda _: tmp_path / "team.prior")
    monkeypatch.setattr(prior, "unpacked", lambda _: other)
    assert "warm-started from record 2 of the prior\n" in run("--db", sqlite_file, "show", 1).stdout
    (step,) = run_json("--db", sqlite_file, "show", 1)["lineage"]
    assert (step["donor"]["record"], step["donor"]["layer"]) == (2, "shipped")
    assert step["donor"]["program"] == gone.hex()

    def broken(_):
        raise StorageError("broken")

    monkeypatch.setattr(prior, "unpacked", broken)
    text = run("--db", sqlite_file, "show", 1).stdout
    assert f"program {gone.hex()}, which is not in this database" in text


def test_lineage_ends_at_missing_unknown_or_repeated_program(run, sqlite_file):
    """A program may be missing, have no origin, or be its own ancestor."""
    gone = b"\x07" * 16
    descend(sqlite_file, 1, Origin.MUTATED, gone, operators=["unroll"])
    text = run("--db", sqlite_file, "show", 1).stdout
    assert f"mutated (unroll) from program {gone.hex()}, which is not in this database\n" in text
    old = descend(sqlite_file, 2, Origin.UNKNOWN)
    descend(sqlite_file, 3, Origin.MUTATED, old, operators=["a", "b", "c"])
    assert "mutated 3 times (a, b, c) from record 2\n" in run("--db", sqlite_file, "show", 3).stdout
    descend(sqlite_file, 4, Origin.MUTATED)
    assert "mutated from a random program\n" in run("--db", sqlite_file, "show", 4).stdout
    one, two = (made(number).digest for number in (5, 6))
    descend(sqlite_file, 5, Origin.MUTATED, two)
    descend(sqlite_file, 6, Origin.MUTATED, one)
    assert "mutated from record 6,\n" in run("--db", sqlite_file, "show", 5).stdout


def test_lineage_takes_the_record_of_a_donor_that_names_an_origin(run_json, sqlite_file):
    """A record of another measurement of a program does not tell its origin."""
    for origin, at in ((Origin.UNKNOWN, 1), (Origin.MEASURED, 2), (Origin.RANDOM, 3)):
        donor = descend(sqlite_file, 1, origin, measured_at=at)
    descend(sqlite_file, 2, Origin.MUTATED, donor, operators=["unroll"])
    lineage = run_json("--db", sqlite_file, "show", 4)["lineage"]
    assert [step["record"] for step in lineage] == [4, 3]
    assert run_json("--db", sqlite_file, "show", 2)["origin"] == "measured"


def test_lineage_ignores_invalid_search_data_of_logs(run_json, sqlite_file):
    extras = (b"[1]", b'{"search":3}', b'{"search":{"operators":"x","other":"zz"}}', b'{"a":1}')
    with tunedb.open(sqlite_file) as store:
        store.records.add([Measurement(made(1), (1e-3,), extra=extra) for extra in extras], OWN)
    for number in range(1, 5):
        (step,) = run_json("--db", sqlite_file, "show", number)["lineage"]
        assert (step["operators"], step["other"]) == ([], None)


STEPS = {
    'b0 = get_sblock(name="C", func_name="main")': ["GetSBlock", [], ["C", "main"], ["b0"]],
    "l1, l2 = get_loops(b0)": ["GetLoops", ["b0"], [], ["l1", "l2"]],
    "l6, l7 = split(l2, [v4, None, 5], preserve_unit_iters=1, disable_predication=0)": [
        *("Split", ["l2", "v4", "None", 5], [1, 0], ["l6", "l7"])
    ],
    'annotate(b0, "SSRSRS", ann_key="meta")': ["Annotate", ["b0", '"SSRSRS"'], ["meta"], []],
    'annotate(b0, {"a": [1]}, ann_key="k")': ["Annotate", ["b0", {"a": [1]}], ["k"], []],
    'b1 = cache_read(b0, [], read_buffer_index=0, storage_scope="shared")': [
        *("CacheRead", ["b0", []], [0, "shared"], ["b1"])
    ],
    "v5 = sample_categorical(candidates=[0, 16], probs=[0.5, 0.5], decision=1)": [
        *("SampleCategorical", [], [[0, 16], [0.5, 0.5]], ["v5"])
    ],
    "b3 = rfactor(l1, factor_axis=0)": ["RFactor", ["l1"], [0], ["b3"]],
    'unsafe_set_dtype(b1, buffer_index=0, dtype="int8")': [
        *("UnsafeSetDType", ["b1"], [0, "int8"], [])
    ],
    'l9 = brand_new(b1, "x", 2)': ["BrandNew", ["b1"], ["x", 2], ["l9"]],
    "split()": ["Split", [], [], []],
    'annotate(b0, "\\u001b[2J", ann_key="k")': ["Annotate", ["b0", "\x1b[2J"], ["k"], []],
}


def test_line_of_formats_each_instruction():
    for line, step in STEPS.items():
        decisions = [[0, 1]] if "decision=1" in line else []
        assert [line_of(one) for one in steps_of(split_trace([step], decisions))] == [line]

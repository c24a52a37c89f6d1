"""``tunedb show`` and the rendering of traces."""

import pytest
import workdirs

import tunedb
from tunedb.cli.steps import line_of
from tunedb.records import (
    Failure,
    FailureKind,
    Measurement,
    Origin,
    Phase,
    Session,
    Source,
    Status,
    Workload,
)
from tunedb.steps.metaschedule import steps_of
from tunedb.traces import split_trace


def test_a_record_by_id_and_by_digest(run, run_json, filled):
    shown = run_json("--db", filled, "show", 2)
    assert shown["id"] == 2
    assert shown["run_secs"] == [1e-3, 1.1e-3]
    assert shown["trace"] == workdirs.trace(2, 32)
    assert shown["decisions"] == [[2, 32]]
    assert shown["target"]["config"] == workdirs.LLVM
    assert shown["workload"]["arguments"] == workdirs.ARGS
    for words in (shown["digest"], shown["digest"][:8], shown["digest"][:9].upper()):
        assert run_json("--db", filled, "show", words) == shown
    text = run("--db", filled, "show", 2).stdout
    assert "Record 2" in text
    assert "1.050 ms ± 6.7 %" in text
    assert "1.000 ms, 1.100 ms" in text
    assert "nightly (file, own)" in text


def test_unknown_records(run, filled):
    for words in ("99", "ffffffff", "zz", "1e", "9" * 40, "-", "½"):
        assert "no record" in run("--db", filled, "show", words, code=3).stderr
    run("--db", filled, "show", code=2)


def test_steps_stop_at_post_processing(run, filled):
    text = run("--db", filled, "show", 2).stdout
    assert (
        "2  v3, v4 = sample_perfect_tile(l1, n=2, max_innermost_factor=64, decision=[2, 32])"
        in (text)
    )
    assert "annotate" not in text
    assert "3 steps of post-processing (--trace)" in text
    text = run("--db", filled, "show", 2, "--trace").stdout
    assert '6  annotate(b7, 1, ann_key="pragma_unroll_explicit")' in text
    assert "--trace" not in text


@pytest.fixture
def rich_file(filled):
    """A database with a failed live record that has everything."""
    with tunedb.open(filled) as store:
        known = store.query.record(1).measurement.program
        workload = Workload(
            known.workload.format,
            b'{"nodes":[]}',
            "with script",
            "0.27.0",
            "\n".join(f"line {i}" for i in range(30)),
        )
        program = type(known)(workload, known.target, known.trace)
        measurement = Measurement(
            program,
            None,
            Status.FAILED,
            measured_at=1_800_000_000_000_000,
            session=Session("key", 1_799_999_999_000_000, b'{"cpu":"EPYC","cores":2}'),
            origin=Origin.MUTATED,
            donor=known.digest,
            failure=Failure(
                FailureKind.TIMEOUT, Phase.RUN, "the runner said:\n\ttoo slow\x1b[2J", 2.5
            ),
        )
        store.add([measurement], Source("live"))
    return filled


def test_a_failed_record_tells_why(run, run_json, rich_file):
    shown = run_json("--db", rich_file, "show", 8)
    assert shown["failure"] == {
        "kind": "timeout",
        "phase": "run",
        "message": "the runner said:\n\ttoo slow\x1b[2J",
        "seconds": 2.5,
    }
    assert shown["session"]["fingerprint"] == {"cpu": "EPYC", "cores": 2}
    assert shown["session"]["started_at"] == "2027-01-15T07:59:59Z"
    assert shown["measured_at"] == "2027-01-15T08:00:00Z"
    assert (shown["mean"], shown["run_secs"], shown["status"]) == (None, None, "failed")
    text = run("--db", rich_file, "show", 8).stdout
    assert "timeout in run after 2.500 s" in text
    assert "    too slow\\x1b[2J" in text
    assert "cpu EPYC, cores 2" in text
    assert f"mutated of program {shown['donor']}" in text
    assert run_json("--db", rich_file, "db", "info")["failures"] == {"timeout": 1}


def test_scripts_are_cut_unless_asked_for(run, run_json, rich_file):
    text = run("--db", rich_file, "show", 8).stdout
    assert "line 19" in text
    assert "line 20" not in text
    assert "10 lines more (--script)" in text
    assert "line 29" in run("--db", rich_file, "show", 8, "--script").stdout
    assert run_json("--db", rich_file, "show", 8)["script"].endswith("line 29")


def test_retracted_records_say_so(run, run_json, filled):
    with tunedb.open(filled) as store:
        store.retract([2], "measured under load")
    assert run_json("--db", filled, "show", 2)["retracted"] is True
    assert "ok (retracted)" in run("--db", filled, "show", 2).stdout
    assert run_json("--db", filled, "top", "1", "--target", "llvm")[0]["id"] == 3


@pytest.mark.parametrize(
    ("instruction", "decision", "line"),
    [
        (
            ["GetSBlock", [], ["C", "main"], ["b0"]],
            None,
            'b0 = get_sblock(name="C", func_name="main")',
        ),
        (["GetLoops", ["b0"], [], ["l1", "l2"]], None, "l1, l2 = get_loops(b0)"),
        (
            ["Split", ["l2", "v4", "None", 5], [1, 0], ["l6", "l7"]],
            None,
            "l6, l7 = split(l2, [v4, None, 5], preserve_unit_iters=1, disable_predication=0)",
        ),
        (
            ["Annotate", ["b0", '"SSRSRS"'], ["meta"], []],
            None,
            'annotate(b0, "SSRSRS", ann_key="meta")',
        ),
        (
            ["Annotate", ["b0", {"a": [1]}], ["k"], []],
            None,
            'annotate(b0, {"a": [1]}, ann_key="k")',
        ),
        (
            ["CacheRead", ["b0", []], [0, "shared"], ["b1"]],
            None,
            'b1 = cache_read(b0, [], read_buffer_index=0, storage_scope="shared")',
        ),
        (
            ["SampleCategorical", [], [[0, 16], [0.5, 0.5]], ["v5"]],
            1,
            "v5 = sample_categorical(candidates=[0, 16], probs=[0.5, 0.5], decision=1)",
        ),
        (["RFactor", ["l1"], [0], ["b3"]], None, "b3 = rfactor(l1, factor_axis=0)"),
        (
            ["UnsafeSetDType", ["b1"], [0, "int8"], []],
            None,
            'unsafe_set_dtype(b1, buffer_index=0, dtype="int8")',
        ),
        (["BrandNew", ["b1"], ["x", 2], ["l9"]], None, 'l9 = brand_new(b1, "x", 2)'),
        (["Split", [], [], []], None, "split()"),
        (
            ["Annotate", ["b0", "\x1b[2J"], ["k"], []],
            None,
            'annotate(b0, "\\u001b[2J", ann_key="k")',
        ),
    ],
)
def test_steps(instruction, decision, line):
    trace = split_trace([instruction], [] if decision is None else [[0, decision]])
    assert [line_of(step) for step in steps_of(trace)] == [line]

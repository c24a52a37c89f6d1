"""Logs of auto_scheduler: lines written by hand, generated lines and damaged lines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from broken_lines import read_mutations
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from tool_steps import ANSOR_STEPS

from tunedb import limits
from tunedb.errors import FormatError
from tunedb.formats import ansor
from tunedb.formats.ansor import AnsorFormat
from tunedb.formats.base import Line, LogFile
from tunedb.formats.error_numbers import failure_of
from tunedb.records import Failure, FailureKind, Measurement, Phase, Source, Status, Workload
from tunedb.results import Record

FORMAT = AnsorFormat()

KEY = '["matmul_add", 128, 128, 128, "float32"]'
TARGET = "llvm -keys=cpu -mcpu=skylake-avx512"
HARDWARE = [18, 64, 64, 0, 0, 0, 0, 0]
STEPS = [
    ["SP", 2, 0, 128, [4, 2, 4], 1],
    ["FU", 4, [0, 1]],
    ["AN", 4, 0, 3],
    ["PR", 2, 0, "auto_unroll_max_step$64"],
]


def make(task=(KEY, TARGET), steps=STEPS, result=([0.5], 0, 0.25, 1603402396), version="v0.2"):
    return {"i": [list(task), [[], steps]], "r": list(result), "v": version}


def parse(value, reader=None, raw=b"{"):
    assert FORMAT.matches(value)
    reader = reader or FORMAT.reader(LogFile(None, "<stdin>"))
    assert list(reader.begin()) == []
    return reader.parse(value, Line(1, raw, 0))


def write(measurement):
    return FORMAT.write_line(Record(1, 1, 1, measurement, Source("x"), None))


def assert_round_trip(value):
    measurement = parse(value)
    line = write(measurement)
    assert line.endswith(b"}\n")
    assert orjson.loads(line) == value
    return measurement


def refuse(value, message):
    with pytest.raises(FormatError, match=message):
        parse(value)


@pytest.mark.parametrize(
    ("value", "matches"),
    [
        (make(), True),
        ({"v": "v0.6", "r": 1, "i": 2}, True),
        ({"i": ["llvm", "conv2d", [], {}, None, {}], "r": [[1], 0, 1, 1], "v": 0.1}, False),
        ({"input": [], "config": {}, "result": [], "version": 0.2}, False),
        ({"i": [], "v": "v0.6"}, False),
        *(([0, [[], [], None, None]], False), ("v", False), (None, False)),
    ],
)
def test_matches_recognises_lines_by_their_shape(value, matches):
    assert FORMAT.matches(value) is matches


def test_line_is_parsed_into_measurement_and_written_back():
    measurement = assert_round_trip(
        make((KEY, TARGET, HARDWARE, "llvm -mcpu=host", 2, ["W"]), version="v0.6")
    )
    program = measurement.program
    assert program.workload == Workload("ansor-key", KEY.encode(), "matmul_add")
    assert program.workload.name == "matmul_add"
    assert (program.target.kind, program.target.text) == ("llvm", TARGET)
    assert program.trace.sketch == (
        b'{"layout_rewrite":2,"steps":[["SP",2,0,null,[null,null,null],1],["FU",4,[0,1]],'
        b'["AN",4,0,3],["PR",2,0,"auto_unroll_max_step$",null]]}'
    )
    assert program.trace.decisions == bytes([128, 1, 4, 2, 4, 64])
    assert (measurement.status, measurement.failure) == (Status.OK, None)
    assert (measurement.run_secs, measurement.all_cost) == ((0.5,), 0.25)
    assert measurement.measured_at == 1603402396_000000
    assert measurement.extra is None
    assert orjson.loads(measurement.context) == {
        "log": "ansor",
        "version": "v0.6",
        "target": TARGET,
        "hardware_params": HARDWARE,
        "target_host": "llvm -mcpu=host",
        "task_input_names": ["W"],
    }


@pytest.mark.parametrize(
    ("task", "layout_rewrite"),
    [
        ([KEY, TARGET], b"null"),  # v0.2
        ([KEY, TARGET, HARDWARE], b"null"),  # v0.3, and v0.4 without a host
        ([KEY, TARGET, HARDWARE, "llvm"], b"null"),  # v0.4
        ([KEY, TARGET, HARDWARE, "", 0], b"0"),  # v0.5
        ([KEY, TARGET, HARDWARE, "", 2, []], b"2"),  # v0.6
        ([KEY, TARGET, 1, HARDWARE, ""], b"1"),  # v0.5 as it was written for five days
    ],
)
def test_task_of_each_log_version_survives_round_trip(task, layout_rewrite):
    measurement = assert_round_trip(make(task, version="v0.3"))  # edited logs mix versions
    assert measurement.program.trace.sketch.startswith(
        b'{"layout_rewrite":' + layout_rewrite + b',"steps":'
    )


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ('["conv2d_layer", 1, [1, 1], "SAME", ["TENSOR", [1, 2], "float32"]]', "conv2d_layer"),
        ('["module.Class.<locals>.f"]', "module.Class.<locals>.f"),
        ('["d7b65649a4dd54becea0a52aabbc5af5"]', "d7b65649"),
        ('["d7b65649a4dd54becea0a52aabbc5af5", 1, 1000, 1, 1000]', "d7b65649 1,1000,1,1000"),
        ('["d7b65649a4dd54becea0a52aabbc5af5", [1, 1000], []]', "d7b65649"),
        ('["my hash", [1, 1000]]', "my hash"),
        ('["a\\u0000b"]', "a\\0b"),
        ('[  "spaces"  ,1.50 ]', "spaces"),
    ],
)
def test_reader_names_workload_after_each_form_of_key(key, name):
    workload = assert_round_trip(make([key, TARGET])).program.workload
    assert (workload.body, workload.name) == (key.encode(), name)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("matmul", "a workload key is not JSON"),
        ("", "a workload key is not JSON"),
        ('["f", NaN]', "a workload key is not JSON"),
        ('["f"', "a workload key is not JSON"),
        ("[]", "a workload key must be"),
        ('{"f": 1}', "a workload key must be"),
        ("[1, 2]", "a workload key must be"),
        ('["f", ' + "[" * 40 + "]" * 40 + "]", "nested deeper than 32"),
    ],
)
def test_reader_rejects_invalid_workload_keys(key, message):
    refuse(make([key, TARGET]), message)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ([KEY], "a task must have 2 to 6 items, not 1"),
        ([], "a task must have 2 to 6 items, not 0"),
        ([KEY, TARGET, HARDWARE, "", 0, [], 1], "a task must have 2 to 6 items, not 7"),
        ([1, TARGET], "workload_key cannot be 1"),
        ([KEY, None], "target cannot be None"),
        ([KEY, TARGET, [1.5]], r"hardware_params cannot be \[1.5\]"),
        ([KEY, TARGET, [True]], r"hardware_params cannot be \[True\]"),
        ([KEY, TARGET, [2**63]], "hardware_params cannot be"),
        ([KEY, TARGET, "llvm"], "hardware_params cannot be 'llvm'"),
        ([KEY, TARGET, HARDWARE, None], "target_host cannot be None"),
        ([KEY, TARGET, HARDWARE, "", 3], "layout_rewrite_option cannot be 3"),
        ([KEY, TARGET, HARDWARE, "", True], "layout_rewrite_option cannot be True"),
        ([KEY, TARGET, HARDWARE, "", 0, [1]], r"task_input_names cannot be \[1\]"),
        ([KEY, TARGET, True, HARDWARE, ""], "hardware_params cannot be True"),
        ([KEY, ""], "a target without a kind"),
    ],
)
def test_reader_rejects_invalid_tasks(task, message):
    refuse(make(task), message)


UNNAMED = Failure(FailureKind.UNKNOWN, Phase.UNKNOWN, "")


@pytest.mark.parametrize(
    ("result", "status", "failure"),
    [
        ([[0.5, 0.25], 0, 1.5, 1], Status.OK, None),
        ([[0.5, 0], 0, 1.5, 1], Status.OK, None),
        ([[1e10], 4, 1.5, 1], Status.FAILED, failure_of(4)),
        ([[10000000000], 5, 1.5, 1], Status.FAILED, failure_of(5)),
        ([[], 2, 0, 1], Status.FAILED, failure_of(2)),
        ([[0.5], 7, 0, 1], Status.FAILED, failure_of(7)),
        ([[1e10], 0, 0, 1], Status.FAILED, UNNAMED),
        ([[10000000000, 1e10], 0, 0, 1], Status.FAILED, UNNAMED),
        ([[0], 0, 0, 1], Status.UNMEASURED, None),
        ([[0.0, -0.0], 0, 0, 1], Status.UNMEASURED, None),
        ([[], 0, 0, 1], Status.UNMEASURED, None),
    ],
)
def test_reader_derives_status_and_failure_from_result(result, status, failure):
    measurement = assert_round_trip(make(result=result))
    assert (measurement.status, measurement.failure) == (status, failure)
    assert measurement.run_secs == tuple(result[0])
    assert all(type(value) is float for value in (*measurement.run_secs, measurement.all_cost))


def test_reader_recognises_sentinel_cost_in_each_spelling():
    for text in (b"10000000000", b"1e10", b"1e+10", b"1E10", b"10000000000.0"):
        line = orjson.dumps(make(result=([0.5], 0, 1, 1))).replace(b"0.5", text)
        assert parse(orjson.loads(line)).status is Status.FAILED


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([[0.5, 1e10], 0, 1, 1], "costs of runs that failed and of others"),
        ([[0, 1e10], 0, 1, 1], "costs of runs that failed and of others"),
        ([[-1e-9], 0, 1, 1], "cost -1e-09 is not a time in seconds"),
        ([[float("nan")], 0, 1, 1], "cost nan is not a time in seconds"),
        ([[float("inf")], 4, 1, 1], "cost inf is not a time in seconds"),
        ([[True], 0, 1, 1], "cost True is not a time in seconds"),
        ([["0.5"], 0, 1, 1], "cost '0.5' is not a time in seconds"),
        ([[None], 0, 1, 1], "cost None is not a time in seconds"),
        ([[2**53 + 1], 0, 1, 1], "cost 9007199254740993 is not a time in seconds"),
        ([[0.5], 9, 1, 1], "error number 9"),
        ([[0.5], -1, 1, 1], "error number -1"),
        ([[0.5], 0.0, 1, 1], "error number 0.0 is not an integer"),
        ([[0.5], False, 1, 1], "error number False is not an integer"),
        ([[0.5], None, 1, 1], "error number None is not an integer"),
        ([[0.5], 0, -1, 1], "all_cost -1 is not a time in seconds"),
        ([[0.5], 0, None, 1], "all_cost None is not a time in seconds"),
        ([[0.5], 0, 1, -1], "timestamp -1 is not a time"),
        ([[0.5], 0, 1, 2**63], "timestamp 9223372036854775808 is not a time"),
        ([[0.5], 0, 1, 1e30], "timestamp 1e.30 is not a time"),
        ([[0.5], 0, 1, "1"], "timestamp '1' is not a time"),
        ([[0.5], 0, 1, True], "timestamp True is not a time"),
        ([0.5, 0, 1, 1], "a line is"),
        (["0.5", 0, 1, 1], "a line is"),
        ([[0.5], 0, 1], "a line is"),
        ([[0.5], 0, 1, 1, 1], "a line is"),
    ],
)
def test_reader_rejects_invalid_results(result, message):
    refuse(make(result=result), message)


def test_reader_rejects_more_costs_than_the_limit(monkeypatch):
    monkeypatch.setattr(limits, "MAX_RUN_SECS", 2)
    parse(make(result=([1, 2], 0, 1, 1)))
    refuse(make(result=([1, 2, 3], 0, 1, 1)), "3 costs are over the limit of 2")


@pytest.mark.parametrize(
    "fields",
    [
        *({"i": value} for value in (5, [], {"a": 1, "b": 2}, "ab")),
        {"i": [[KEY, TARGET], [[], STEPS], 3]},
        *({"i": [[KEY, TARGET], state]} for state in ([[1], STEPS], [None, STEPS], [STEPS])),
        {"i": [[KEY, TARGET], {"a": 1, "b": 2}]},
        *({"i": [task, [[], STEPS]]} for task in ({"a": 1}, "ab")),
        *({"r": value} for value in (None, {"a": 1, "b": 2, "c": 3, "d": 4}, "abcd")),
    ],
)
def test_lines_of_another_shape_are_refused(fields):
    refuse({**make(), **fields}, "a line is {i:")


def test_reader_rejects_invalid_steps():
    refuse(make(steps=[["CI", 1], ["XX", 1]]), "step 1 has the unknown code 'XX'")
    refuse(make(steps={"CI": 1}), "the steps are not a list")


def test_a_line_that_starts_with_a_space_is_a_comment():
    reader = FORMAT.reader(LogFile(None, "<stdin>"))
    assert parse(make(), reader, b' {"i"') is None
    assert isinstance(parse(make(), reader, b'{"i"'), Measurement)


def test_reader_stores_unknown_keys_in_extra():
    value = {**make(), "py_code": "s[C].split()", "w": [1, {"a": None}]}
    measurement = assert_round_trip(value)
    assert orjson.loads(measurement.extra) == {
        "keys": {"py_code": "s[C].split()", "w": [1, {"a": None}]}
    }
    # They do not change the program.
    assert measurement.program.digest == parse(make()).program.digest
    assert_round_trip({**make(), "timestamp": 5, "keys": {"i": 1}})  # names that extra uses
    deep = [1]
    for _ in range(40):
        deep = [deep]
    refuse({**make(), "w": deep}, "nested deeper than 32")


@pytest.mark.parametrize("others", [{}, {"key": 1}])
@pytest.mark.parametrize(
    ("timestamp", "measured_at", "is_extra"),
    [
        (0, 0, False),
        (1603402396, 1603402396_000000, False),
        (9223372036853, 9223372036853_000000, False),
        (1603402396.0, 1603402396_000000, False),
        (1603402396.25, 1603402396_250000, False),
        (0.1234567, 123457, True),
    ],
)
def test_timestamps_survive_round_trip(timestamp, measured_at, is_extra, others):
    measurement = assert_round_trip({**make(result=([0.5], 0, 1, timestamp)), **others})
    assert measurement.measured_at == measured_at
    assert ("timestamp" in orjson.loads(measurement.extra or b"{}")) is is_extra


def reader_of(path):
    """Return a reader of the file at a path."""
    return FORMAT.reader(LogFile(Path(path), path))


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("/d/measure_records/e5-2673/([ab,1],llvm).json", "e5-2673"),
        ("/d/measure_records/t4/sub/x.json", "t4"),
        ("/d/measure_records/x.json", None),
        ("/d/to_measure_programs/x.json", None),
        ("/d/other/e5-2673/x.json", None),
    ],
)
def test_reader_takes_model_from_folder_of_tenset(path, model):
    measurement = parse(make(), reader_of(path))
    target = measurement.program.target
    assert target.attributes.get("model") == model
    assert target.text == TARGET
    assert orjson.loads(write(measurement)) == make()


def test_a_model_in_the_target_counts_more_than_the_folder():
    value = make([KEY, "llvm -model=epyc-7452"])
    measurement = parse(value, reader_of("/d/measure_records/e5-2673/x.json"))
    assert measurement.program.target.attributes["model"] == "epyc-7452"


def test_reader_rejects_invalid_task_that_equals_a_cached_one():
    reader = FORMAT.reader(LogFile(None, "<stdin>"))
    parse(make([KEY, TARGET, [1], "", 1]), reader)
    for hardware, rewrite in (([1.0], 1), ([True], 1), ([1], True)):
        with pytest.raises(FormatError, match="cannot be"):
            parse(make([KEY, TARGET, hardware, "", rewrite]), reader)


def test_reader_bounds_its_cache_of_tasks(monkeypatch):
    monkeypatch.setattr(ansor, "_MAX_TASKS", 4)
    monkeypatch.setattr(ansor, "_MAX_TASK_BYTES", 200)
    reader = FORMAT.reader(LogFile(None, "<stdin>"))
    for number in range(20):
        measurement = parse(make([f'["f", {number}]', TARGET]), reader)
        assert measurement.program.workload.body == f'["f", {number}]'.encode()
        assert len(reader._tasks) <= 4
    known = dict(reader._tasks)
    parse(make([f'["{"f" * 200}"]', TARGET]), reader)
    assert reader._tasks == known


def test_reader_rejects_deeply_nested_lines():
    for depth in (300, 900):
        deep = orjson.loads(b"[" * depth + b"]" * depth)
        for value in (
            make([KEY, TARGET, deep]),
            make([KEY, TARGET, HARDWARE, deep]),
            make(deep),
            make(steps=deep),
            make(steps=[["SP", 0, 0, 8, deep, 1]]),
            make(steps=[["CI", deep]]),
            make(steps=[deep]),
            make(result=([deep], 0, 1, 1)),
            make(result=(deep, 0, 1, 1)),
            make(result=([1], deep, 1, 1)),
            make(result=([1], 0, deep, 1)),
            make(result=([1], 0, 1, deep)),
            {**make(), "w": deep},
        ):
            with pytest.raises(FormatError):
                parse(value)


GOOD = parse(make())


@pytest.mark.parametrize(
    "change",
    [
        *({field: None} for field in ("run_secs", "all_cost", "context")),
        *({"context": text} for text in (b"[1]", b"{", b'{"log":"autotvm","target":"llvm"}')),
        {"context": b'{"log":"ansor"}'},
        {"context": b'{"log":"ansor","target":"llvm","target_host":""}'},
        {"context": b'{"log":"ansor","target":"llvm","task_input_names":[]}'},
        {"context": b'{"log":"ansor","target":' + b"[" * 400 + b"]" * 400 + b"}"},
        *({"extra": b"7"}, {"extra": b'{"keys":[]}'}),
    ],
)
def test_writer_rejects_damaged_records(change):
    assert orjson.loads(write(GOOD)) == make()
    with pytest.raises(FormatError):
        write(replace(GOOD, **change))


# ---- generated lines -----------------------------------------------------------------------------

keys = st.builds(
    lambda head, rest: orjson.dumps([head, *rest]).decode(),
    st.text(),
    st.lists(st.integers(0, 4096) | st.lists(st.integers(0, 99)) | st.text() | st.none()),
)
targets = st.sampled_from(
    ["cuda", "llvm -mcpu=core-avx2", "opencl -device=mali", "metal -keys=metal,gpu", "x -1 \t -y"]
)
hardware = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=8, max_size=8)
hosts, rewrites, names = st.text(), st.integers(0, 2), st.lists(st.text())
tasks = st.one_of(
    *(st.tuples(keys, targets, *([hardware, hosts, rewrites, names][:n])) for n in range(5)),
    st.tuples(keys, targets, rewrites, hardware, hosts),
)
seconds = st.floats(0, 1e9, exclude_max=True) | st.integers(0, 10**9)
times = (
    st.lists(seconds, max_size=4)
    | st.just([1e10])
    | st.lists(st.just(10000000000), max_size=3)
    | st.just([0])
)
stamps = st.integers(0, 2**43) | st.floats(0, 2e9)
results = st.tuples(times, st.integers(0, 8), seconds, stamps)
values = st.builds(
    lambda task, steps, result, version, extra: {**extra, **make(task, steps, result, version)},
    tasks,
    ANSOR_STEPS,
    results,
    st.sampled_from(["v0.2", "v0.3", "v0.4", "v0.5", "v0.6"]),
    st.just({}) | st.dictionaries(st.text(), st.integers(0, 9) | st.text(), max_size=2),
)


@settings(max_examples=examples(300))
@given(values)
def test_generated_lines_survive_round_trip(value):
    read = orjson.loads(orjson.dumps(value))
    measurement = assert_round_trip(read)
    failed = value["r"][1] != 0 or (value["r"][0] and set(value["r"][0]) == {1e10})
    assert (measurement.status is Status.FAILED) is bool(failed)


def test_mutated_lines_are_read_or_refused():
    values = [
        make(),
        make([KEY, TARGET, HARDWARE, "llvm"], result=([1e10], 4, 0, 5)),
        make(
            [KEY, TARGET, HARDWARE, "", 1, ["W"]],
            [["CHR", 2, "shared", [3]], ["RF", 1, 2, 3]],
            ([0], 0, 0, 7),
        ),
    ]
    outcomes = read_mutations(FORMAT, values)
    assert min(outcomes["read"], outcomes["refused"]) > 300

from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from tool_steps import ANSOR_STEPS

from tunedb import limits
from tunedb.errors import FormatError
from tunedb.formats import ansor
from tunedb.formats.ansor import AnsorFormat
from tunedb.formats.base import Line, LogFile
from tunedb.formats.error_numbers import failed_context, failure_of
from tunedb.records import Failure, FailureKind, Phase, Source, Status, Workload
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


def new_reader(path=None):
    return FORMAT.reader(LogFile(path, str(path)))


def parse(value, reader=None, raw=b"{"):
    assert FORMAT.matches(value)
    reader = reader or new_reader()
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
    assert (measurement.all_cost, measurement.measured_at) == (0.25, 1603402396_000000)
    assert measurement.extra is None
    assert orjson.loads(measurement.context) == {
        **{"log": "ansor", "version": "v0.6", "target": TARGET, "hardware_params": HARDWARE},
        **{"target_host": "llvm -mcpu=host", "task_input_names": ["W"]},
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
    ("task", "message"),
    [
        *(
            ([key, TARGET], "a workload key is not JSON")
            for key in ("matmul", "", '["f", NaN]', '["f"')
        ),
        *(([key, TARGET], "a workload key must be") for key in ("[]", '{"f": 1}', "[1, 2]")),
        (['["f", ' + "[" * 40 + "]" * 40 + "]", TARGET], "nested deeper than 32"),
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


@pytest.mark.parametrize(
    ("result", "status", "failure"),
    [
        ([[0.5, 0.25], 0, 1.5, 1], Status.OK, None),
        ([[0.5, 0], 0, 1.5, 1], Status.OK, None),
        ([[1e10], 4, 1.5, 1], Status.FAILED, failure_of(4)),
        ([[10000000000], 5, 1.5, 1], Status.FAILED, failure_of(5)),
        ([[], 2, 0, 1], Status.FAILED, failure_of(2)),
        ([[0.5], 7, 0, 1], Status.FAILED, failure_of(7)),
        *(
            ([costs, 0, 0, 1], Status.FAILED, Failure(FailureKind.UNKNOWN, Phase.UNKNOWN, ""))
            for costs in ([1e10], [10000000000, 1e10])
        ),
        *(([costs, 0, 0, 1], Status.UNMEASURED, None) for costs in ([0], [0.0, -0.0], [])),
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
        *(
            ([[cost, 1e10], 0, 1, 1], "costs of runs that failed and of others")
            for cost in (0.5, 0)
        ),
        ([[float("inf")], 4, 1, 1], "cost inf is not a time in seconds"),
        *(
            ([[cost], 0, 1, 1], f"cost {cost!r} is not a time in seconds")
            for cost in (-1e-9, float("nan"), True, "0.5", None, 2**53 + 1)
        ),
        ([[0.5], 9, 1, 1], "error number 9"),
        ([[0.5], -1, 1, 1], "error number -1"),
        *(
            ([[0.5], number, 1, 1], f"error number {number} is not an integer")
            for number in (0.0, False, None)
        ),
        *(([[0.5], 0, v, 1], f"all_cost {v} is not a time in seconds") for v in (-1, None)),
        ([[0.5], 0, 1, 1e30], "timestamp 1e.30 is not a time"),
        *(
            ([[0.5], 0, 1, stamp], f"timestamp {stamp!r} is not a time")
            for stamp in (-1, 2**63, "1", True)
        ),
        *(([costs, 0, 1, 1], "a line is") for costs in (0.5, "0.5")),
        *((result, "a line is") for result in ([[0.5], 0, 1], [[0.5], 0, 1, 1, 1])),
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


def test_reader_stores_unknown_keys_in_extra():
    more = {"py_code": "s[C].split()", "w": [1, {"a": None}]}
    measurement = assert_round_trip({**make(), **more})
    assert orjson.loads(measurement.extra) == {"keys": more}
    # They do not change the program.
    assert measurement.program.digest == parse(make()).program.digest
    assert_round_trip({**make(), "timestamp": 5, "keys": {"i": 1}})  # names that extra uses
    deep = orjson.loads("[" * 40 + "]" * 40)
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


@pytest.mark.parametrize(
    ("target", "path", "model"),
    [
        (TARGET, "/d/measure_records/e5-2673/([ab,1],llvm).json", "e5-2673"),
        (TARGET, "/d/measure_records/t4/sub/x.json", "t4"),
        (TARGET, "/d/measure_records/x.json", None),
        (TARGET, "/d/to_measure_programs/x.json", None),
        (TARGET, "/d/other/e5-2673/x.json", None),
        # A model in the target counts more.
        ("llvm -model=epyc-7452", "/d/measure_records/e5-2673/x.json", "epyc-7452"),
    ],
)
def test_reader_takes_model_from_folder_of_tenset(target, path, model):
    value = make([KEY, target])
    measurement = parse(value, new_reader(Path(path)))
    assert measurement.program.target.attributes.get("model") == model
    assert measurement.program.target.text == target
    assert orjson.loads(write(measurement)) == value


def test_reader_rejects_invalid_task_that_equals_a_cached_one():
    reader = new_reader()
    parse(make([KEY, TARGET, [1], "", 1]), reader)
    for hardware, rewrite in (([1.0], 1), ([True], 1), ([1], True)):
        with pytest.raises(FormatError, match="cannot be"):
            parse(make([KEY, TARGET, hardware, "", rewrite]), reader)


def test_reader_bounds_its_cache_of_tasks(monkeypatch):
    monkeypatch.setattr(ansor, "_MAX_TASKS", 4)
    monkeypatch.setattr(ansor, "_MAX_TASK_BYTES", 200)
    reader = new_reader()
    for number in range(20):
        measurement = parse(make([f'["f", {number}]', TARGET]), reader)
        assert measurement.program.workload.body == f'["f", {number}]'.encode()
        assert len(reader._tasks) <= 4
    known = dict(reader._tasks)
    parse(make([f'["{"f" * 200}"]', TARGET]), reader)
    assert reader._tasks == known


@pytest.mark.parametrize("depth", [300, 900])
def test_reader_rejects_deeply_nested_lines(depth):
    deep = orjson.loads(b"[" * depth + b"]" * depth)
    tasks = ([KEY, TARGET, deep], [KEY, TARGET, HARDWARE, deep], deep)
    steps = (deep, [["SP", 0, 0, 8, deep, 1]], [["CI", deep]], [deep])
    results = (([deep], 0, 1, 1), (deep, 0, 1, 1), ([1], deep, 1, 1), ([1], 0, deep, 1))
    lines = [*map(make, tasks), *(make(steps=some) for some in steps)]
    lines += [make(result=result) for result in (*results, ([1], 0, 1, deep))]
    for value in (*lines, {**make(), "w": deep}):
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


@pytest.mark.parametrize(
    ("number", "kind", "phase", "name"),
    [
        (1, "compile_error", "build", "INSTANTIATION_ERROR"),
        (2, "compile_error", "build", "COMPILE_HOST"),
        (3, "compile_error", "build", "COMPILE_DEVICE"),
        (4, "runtime_error", "run", "RUNTIME_DEVICE"),
        (5, "wrong_result", "run", "WRONG_ANSWER"),
        (6, "timeout", "build", "BUILD_TIMEOUT"),
        (7, "timeout", "run", "RUN_TIMEOUT"),
        (8, "unknown", "unknown", "UNKNOWN_ERROR"),
    ],
)
def test_failure_of_maps_each_error_number_to_kind_and_phase(number, kind, phase, name):
    failure = failure_of(number)
    assert (failure.kind, failure.phase, failure.message) == (kind, phase, name)
    assert failed_context(b'{"log":"ansor"}', number) == b'{"error_no":%d,"log":"ansor"}' % number


@pytest.mark.parametrize("number", [0, 9, -1, 2**70, True, 1.0, "1", None, [1]])
def test_failure_of_rejects_unknown_error_numbers(number):
    with pytest.raises(FormatError, match="0 \\(none\\) to 8"):
        failure_of(number)


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
times = st.one_of(
    st.lists(seconds, max_size=4),
    st.sampled_from([[1e10], [], [10000000000] * 2, [10000000000] * 3, [0]]),
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


@settings(max_examples=examples(150))
@given(values)
def test_generated_lines_survive_round_trip(value):
    read = orjson.loads(orjson.dumps(value))
    measurement = assert_round_trip(read)
    failed = value["r"][1] != 0 or (value["r"][0] and set(value["r"][0]) == {1e10})
    assert (measurement.status is Status.FAILED) is bool(failed)

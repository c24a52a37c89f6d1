import copy
import json
from dataclasses import replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tool_steps import INT64, knobs

from tunedb import limits
from tunedb.errors import FormatError
from tunedb.formats.autotvm import AutoTVMFormat
from tunedb.formats.base import Line, LogFile
from tunedb.programs.autotvm import join_knobs
from tunedb.records import NO_TARGET, Program, Source, Status, Trace, Workload
from tunedb.results import Record

FORMAT = AutoTVMFormat()

CUDA = "cuda -keys=cuda,gpu -max_num_threads=1024 -model=v100"
TENSORS = [["TENSOR", [1, 3, 32, 32], "float32"], ["TENSOR", [8, 3, 3, 3], "float32"]]
KNOBS_1 = [
    *(["tile_co", "sp", [-1, 4]], ["reorder_0", "re", [0, 1, 2]]),
    ["ann_spatial", "an", ["unroll", "vec"]],
]
V1 = {
    "i": [
        "llvm -device=arm_cpu -model=pynq -target=armv7a-linux-eabi",
        *("topi_nn_conv2d", [*TENSORS, [1, 1], None], {}),
        ["conv2d", [1, 3, 32, 32, "float32"], [8, 3, 3, 3, "float32"], [1, 1], 0],
        {"i": 812, "t": "direct", "c": None, "e": KNOBS_1},
    ],
    "r": [[0.0021, 0.0023], 0, 0.75, 1530000000.25],
    "v": 0.1,
}
V2 = {
    "input": [CUDA, "dense_small_batch.cuda", [*TENSORS, None, "float32"], {}],
    "config": {
        **{"index": 30, "code_hash": None},
        "entity": [["tile_k", "sp", [-1, 128]], ["unroll_explicit", "ot", True]],
    },
    "result": [[3.5e-06], 0, 2, 1600000000.5],
    **{"version": 0.2, "tvm_version": "0.8.dev0"},
}


def parse(value, reader=None):
    assert FORMAT.matches(value)
    return (reader or FORMAT.reader(LogFile(None, "<stdin>"))).parse(value, Line(1, b"", 0))


def write(measurement):
    data = FORMAT.write_line(Record(1, 1, 1, measurement, Source("test"), None))
    assert data.endswith(b"\n")
    assert data.count(b"\n") == 1
    return orjson.loads(data)


def typed(value):
    """Return canonical text in which true is not 1, but 2 is 2.0, as Python compares them."""
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [typed(item) for item in value]
    return float(value) if type(value) is int and abs(value) < 2**53 else value


def assert_lossless(value):
    again = json.dumps(typed(write(parse(value))), sort_keys=True)
    assert again == json.dumps(typed(value), sort_keys=True)


def changed(value, path, new):
    """Return a copy of a line with one field replaced."""
    value = place = copy.deepcopy(value)
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = new
    return value


def refuse(value, message=None):
    with pytest.raises(FormatError, match=message) as caught:
        parse(value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_reader_parses_line_of_version_0_1():
    measurement = parse(V1)
    program = measurement.program
    workload = program.workload
    assert (workload.format, workload.name) == ("autotvm-task", "topi_nn_conv2d")
    assert json.loads(workload.body) == V1["i"][1:4]
    assert workload.tvm_version is None
    assert (program.target.kind, program.target.text) == ("llvm", V1["i"][0])
    assert program.target.attributes["mtriple"] == "armv7a-linux-eabi"
    template = {"index": 812, "template_key": "direct", "code_hash": None}
    assert join_knobs(program.trace) == (KNOBS_1, template)
    assert measurement.run_secs == (0.0021, 0.0023)
    assert (measurement.status, measurement.failure) == (Status.OK, None)
    assert (measurement.all_cost, measurement.measured_at) == (0.75, 1_530_000_000_250_000)
    assert measurement.is_valid
    context = {"log": "autotvm", "version": 0.1, "target": V1["i"][0], "workload": V1["i"][4]}
    assert json.loads(measurement.context) == context
    assert measurement.extra is None


def test_reader_parses_line_of_version_0_2():
    measurement = parse(V2)
    program = measurement.program
    assert json.loads(program.workload.body) == V2["input"][1:]
    assert program.workload.tvm_version == "0.8.dev0"
    target = {"kind": "cuda", "keys": ["cuda", "gpu"], "max_num_threads": 1024, "model": "v100"}
    assert program.target.attributes == target
    assert measurement.all_cost == 2.0
    context = {"log": "autotvm", "version": 0.2, "target": CUDA, "tvm_version": "0.8.dev0"}
    assert json.loads(measurement.context) == context


@pytest.mark.parametrize("value", [V1, V2], ids=["v0.1", "v0.2"])
def test_lines_survive_round_trip_in_any_order_of_keys(value):
    assert_lossless(value)
    reordered = {key: value[key] for key in reversed(value)}
    assert write(parse(reordered)) == value


@pytest.mark.parametrize(
    ("value", "path", "new"),
    [
        *((V1, ["i", 4], workload) for workload in (None, [])),
        (V1, ["i", 3], {"layout": "NCHW", "n": 1.5}),
        *((V1, ["i", 2], args) for args in (None, [])),
        (V1, ["i", 2, 0], 1.0),
        (V1, ["i", 5], {"e": []}),
        (V1, ["i", 5], {"i": 3, "c": "direct", "e": []}),
        *((V1, ["i", 5, "t"], template) for template in ("", None)),
        (V1, ["i", 5, "c"], "0123abcd"),
        (V1, ["i", 5, "new"], {"a": [1]}),
        (V1, ["i", 5, "entity"], []),
        *((V1, ["v"], version) for version in (0, 0.2)),
        (V1, ["note"], "hand made"),
        *((V1, ["input"], 5), (V1, ["tvm_version"], "0.6"), (V1, ["version"], 0.1)),
        *((V2, ["input", 3], kwargs) for kwargs in ({"out_dtype": "int32"}, None)),
        (V2, ["input", 2], [None, True, 1, 1.0, -0.5, [[[]]], {"a": {}}]),
        (V2, ["config", "entity"], []),
        (V2, ["config", "code_hash"], "abc"),
        *((V2, ["config", "index"], index) for index in (None, 2**63 - 1)),
        (V2, ["config"], {"entity": [["k", "ot", None], ["k", "ot", 0.25], ["k", "ot", ""]]}),
        (V2, ["config", "t"], "direct"),
        (V2, ["version"], 0.3),
        (V2, ["tvm_version"], None),
        (V2, ["extra"], {"timestamp": 5}),
        *((V2, ["i"], 1), (V2, ["v"], 0.1)),
    ],
)
def test_unusual_lines_survive_round_trip(value, path, new):
    assert_lossless(changed(value, path, new))


@pytest.mark.parametrize(
    ("result", "status", "name"),
    [
        ([[1e9], 0, 1.5, 1.0], Status.FAILED, ""),
        ([[1e9, 1000000000], 0, 1.5, 1.0], Status.FAILED, ""),
        ([[1e9], 1, 1.5, 1.0], Status.FAILED, "INSTANTIATION_ERROR"),
        ([[0.5], 4, 1.5, 1.0], Status.FAILED, "RUNTIME_DEVICE"),
        ([[], 6, 10, 1], Status.FAILED, "BUILD_TIMEOUT"),
        ([[0.5, 1e9], 8, 1e9, 1], Status.FAILED, "UNKNOWN_ERROR"),
        ([[0], 0, 0, 1], Status.UNMEASURED, None),
        ([[0, 0.0], 0, 0, 1], Status.UNMEASURED, None),
        ([[], 0, None, 0], Status.UNMEASURED, None),
        ([[0, 1e-3], 0, 1, 0], Status.OK, None),
        ([[1e10], 0, 1, 0], Status.FAILED, ""),
        ([[1e11], 0, 1, 0], Status.OK, None),
        ([[1], 0, 1, 0], Status.OK, None),
    ],
)
def test_reader_derives_status_and_failure_from_result(result, status, name):
    value = changed(V2, ["result"], result)
    measurement = parse(value)
    assert measurement.status is status
    assert (measurement.failure and measurement.failure.message) == name
    assert measurement.run_secs == tuple(result[0])
    assert_lossless(value)


@pytest.mark.parametrize(
    ("given_", "microseconds", "exact"),
    [
        (1600000000, 1_600_000_000_000_000, True),
        (1600000000.123456, 1_600_000_000_123_456, True),
        # The nearest double of .1234567 has no whole microseconds.
        (1600000000.1234567, 1_600_000_000_123_457, False),
        (1e-7, 0, False),
        (0, 0, True),
    ],
)
def test_timestamps_survive_round_trip(given_, microseconds, exact):
    value = changed(V1, ["r", 3], given_)
    measurement = parse(value)
    assert measurement.measured_at == microseconds
    extra = None if exact else {"timestamp": given_}
    assert (measurement.extra and json.loads(measurement.extra)) == extra
    assert_lossless(value)


def bad_results():
    good = V2["result"]
    for position, values in [
        (0, [None, 1.0, "x", ["1"], [True], [-1e-9], [float("nan")], [1e400]]),
        (0, [[1e9, 0.5], [1.7e308, 1.7e308], [2**64], [2**53 + 1]]),
        (1, [None, True, 0.0, "0", 9, -1]),
        (2, ["1", True, -1, float("inf"), float("nan")]),
        (3, [None, True, -1, -1e-9, float("nan"), 253_402_300_800, 2**64]),
    ]:
        for value in values:
            yield [*good[:position], value, *good[position + 1 :]]
    yield from ([], None, {}, good[:3], [*good, 1])


@pytest.mark.parametrize("result", list(bad_results()), ids=repr)
def test_bad_results_are_refused(result):
    refuse(changed(V1, ["r"], result))
    refuse(changed(V2, ["result"], result))


def test_too_many_costs_are_refused(monkeypatch):
    monkeypatch.setattr(limits, "MAX_RUN_SECS", 3)
    parse(changed(V2, ["result", 0], [0.5] * 3))
    refuse(changed(V2, ["result", 0], [0.5] * 4), "at most 3")


DEEP = json.loads("[" * 900 + "]" * 900)
NESTED = json.loads("[" * 33 + "]" * 33)


BAD_FIELDS = [
    *((V1, ["i"], value) for value in (None, V1["i"][:5], [*V1["i"], 1])),
    *((V1, ["i", 5], value) for value in (None, [], {})),
    *((V1, ["i", 5, "t"], 1), (V1, ["i", 5, "i"], "1"), (V1, ["i", 5, "e"], None)),
    *((V1, ["i", 4], DEEP), (V1, ["more"], DEEP), (V1, ["more"], NESTED)),
    *((V2, ["input"], value) for value in (None, V2["input"][:3], [*V2["input"], 1])),
    *((V2, ["input", 0], value) for value in (None, {"kind": "llvm"}, "", "cuda\0")),
    *((V2, ["input", 1], value) for value in (None, "a\0b")),
    *((V2, ["input", 2], value) for value in (NESTED, DEEP, [2**63], [2**64])),
    (V2, ["input", 3], {"n": -(2**63) - 1}),
    *((V2, ["config"], value) for value in (None, {"index": 1})),
    *((V2, ["config", "index"], value) for value in (1.5, 2**63)),
    *((V2, ["config", "entity"], DEEP), (V2, ["config", "entity", 0], DEEP)),
    (V2, ["config", "more"], 2**63),
    *((V2, ["version"], value) for value in ("0.2", None, True, 2**63)),
    *((V2, ["tvm_version"], value) for value in (1, "0.8\0", DEEP)),
]


@pytest.mark.parametrize(("value", "path", "new"), BAD_FIELDS, ids=lambda value: str(value)[:20])
def test_bad_lines_are_refused(value, path, new):
    refuse(changed(value, path, new))


GOOD = parse(V2)


@pytest.mark.parametrize(
    "fields",
    [
        *({"context": text} for text in (None, b'{"log":"auto_scheduler"}', b'{"log":"autotvm"}')),
        *({"context": text} for text in (b"[]", b"{")),
        *({"extra": text} for text in (b"[]", b'{"config":3}')),
        {"program": Program(GOOD.program.workload, NO_TARGET, Trace(b"[]", None, b"[]"))},
        {"program": Program(Workload("autotvm-task", b"[1]"), NO_TARGET, GOOD.program.trace)},
    ],
)
def test_writer_rejects_records_that_have_no_line_form(fields):
    with pytest.raises(FormatError):
        write(replace(GOOD, **fields))


TEXT = st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
FINITE = st.floats(allow_nan=False, allow_infinity=False)
INDEX, MAYBE = st.none() | INT64, st.none() | TEXT
JSON = st.recursive(
    st.none() | st.booleans() | INT64 | FINITE | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
TARGETS = st.sampled_from(["cuda", "llvm -mcpu=x", "opencl -device=mali --a b", '{"kind":"c"}'])
KNOBS = knobs(TEXT, JSON)
SECONDS = st.integers(0, 10**6) | st.floats(0, 1e6)
RESULTS = st.tuples(
    st.lists(SECONDS, max_size=4) | st.just([1e9]),
    st.integers(0, 8),
    st.none() | SECONDS,
    st.floats(0, 4e9) | st.integers(0, 4 * 10**9),
).map(list)
LINES_1 = st.builds(
    lambda inputs, config, result, other: other | {"i": [*inputs, config], "r": result, "v": 0.1},
    st.tuples(TARGETS, TEXT, JSON, JSON, JSON),
    st.fixed_dictionaries(
        {"e": st.lists(KNOBS, max_size=4)},
        optional={"i": INDEX, "t": MAYBE, "c": MAYBE, "timestamp": JSON},
    ),
    RESULTS,
    st.dictionaries(st.sampled_from(["input", "line", "timestamp"]), JSON, max_size=1),
)
LINES_2 = st.fixed_dictionaries(
    {
        "input": st.tuples(TARGETS, TEXT, JSON, JSON).map(list),
        "config": st.fixed_dictionaries(
            {"entity": st.lists(KNOBS, max_size=4)},
            optional={"index": INDEX, "code_hash": MAYBE, "e": JSON},
        ),
        "result": RESULTS,
    },
    optional={"version": st.just(0.2) | st.integers(0, 9), "tvm_version": MAYBE, "config_": JSON},
)


@given(LINES_1 | LINES_2)
def test_generated_lines_survive_round_trip(value):
    assert_lossless(value)

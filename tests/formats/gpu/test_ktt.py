import dataclasses
import json
import math

import ktt_files as ktt
import orjson
import pytest
from effort import examples, long
from gpu_logs import counters_of, read
from hypothesis import given, settings
from hypothesis import strategies as st
from public_logs import GPU, needs_gpu_logs
from workdirs import items_and_error

from tunedb import limits
from tunedb.errors import FormatError
from tunedb.formats.base import LogFile
from tunedb.formats.find import find_logs
from tunedb.formats.importer import import_log
from tunedb.programs.kernel import join_parameters
from tunedb.records import Failure, FailureKind, Phase, Quarantined, Status, WorkloadFormat


def read_json(tmp_path, *results, **metadata):
    return read(ktt.write_json(tmp_path / "results.json", *results, **metadata))


def test_reader_converts_result_to_measurement(tmp_path):
    made = ktt.computation(16.5, counters=ktt.COUNTERS, PowerUsage=90)
    (item,) = read_json(tmp_path, ktt.result(made))
    assert item.run_secs == (16.5e-6,)
    assert (item.status, item.failure, item.measured_at) == (Status.OK, None, 1_654_091_707_000_000)
    workload, target = item.program.workload, item.program.target
    assert workload.format == WorkloadFormat.KERNEL
    assert orjson.loads(workload.body) == {"kernel": "sum_kernel", "problem": None}
    assert target.attributes == {"kind": "cuda", "model": "NVIDIA GeForce RTX 2080 Ti"}
    assert join_parameters(item.program.trace) == {"WORK_GROUP_SIZE_X": 16, "UNROLL": 4}
    (launch,) = item.launches
    assert (launch.kernel, launch.threads, launch.block) == ("sum", 64, (16, 4, 1))
    assert (launch.grid, launch.number, launch.seconds) == ((8, 4, 2), 0, 16.5e-6)
    assert (launch.registers, launch.static_shared, launch.dynamic_shared) == (66, 2048, None)
    assert launch.counter_set.tool == "ncu"
    assert [unit for _, unit in launch.counter_set.counters] == ["", "%"]
    assert counters_of(item) == {name: value for name, _, value in ktt.COUNTERS}
    extra = orjson.loads(item.extra)
    assert {name: extra[name] for name in ktt.OVERHEADS} == ktt.OVERHEADS
    sizes = {"ConstantMemorySize": 0, "MaxWorkGroupSize": 896, "PrivateMemorySize": 0}
    computation = {"Overhead": 5.5, "CompilationData": sizes, "PowerUsage": 90}
    assert extra["ComputationResults"] == [computation]
    assert orjson.loads(item.context) == {"log": "ktt", "metadata": ktt.METADATA}


@pytest.mark.parametrize(
    ("unit", "seconds"),
    [("Nanoseconds", 3e-9), ("Microseconds", 3e-6), ("Milliseconds", 3e-3), ("Seconds", 3.0)],
)
def test_reader_converts_all_time_units_to_seconds(tmp_path, unit, seconds):
    (item,) = read_json(tmp_path, ktt.result(ktt.computation(3.0)), TimeUnit=unit)
    assert item.run_secs == (item.launches[0].seconds,) == (seconds,)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        *((name, v, f"{name} is") for name in ("TimeUnit", "GlobalSizeType") for v in ({}, 5)),
        ("TimeUnit", "Minutes", "TimeUnit is 'Minutes'; KTT has Nanoseconds"),
        *(("Timestamp", v, "Timestamp is") for v in ("2022-13-01 1:1:1 UTC", "yesterday", 5)),
    ],
)
def test_reader_rejects_bad_metadata(tmp_path, name, value, reason):
    with pytest.raises(FormatError, match=reason):
        read_json(tmp_path, ktt.result(ktt.computation()), **{name: value})


def test_reader_accepts_counters_without_text_type_or_value(tmp_path):
    """A counter whose type is not text is a count; a missing value is NaN and not 0."""
    counters = [("a", {}, 2.0), ("b", "Double", None), ("c", "Double", 0.0)]
    (item,) = read_json(tmp_path, ktt.result(ktt.computation(counters=counters)))
    assert item.launches[0].counter_set.counters == (("a", ""), ("b", ""), ("c", ""))
    assert item.launches[0].values == (2.0, pytest.approx(math.nan, nan_ok=True), 0.0)


@pytest.mark.parametrize(
    ("counts", "size", "grid"),
    [
        *((counts, (64, 8, 2), (64, 8, 2)) for counts in ("CUDA", "Vulkan")),
        *(("OpenCL", (64, 8, 2), (4, 2, 2)), ("OpenCL", (65, 1, 1), (5, 1, 1))),
    ],
)
def test_reader_returns_grid_in_blocks_for_each_type_of_global_size(tmp_path, counts, size, grid):
    made = ktt.computation(block=(16, 4, 1), grid=size)
    (item,) = read_json(tmp_path, ktt.result(made), GlobalSizeType=counts)
    assert item.launches[0].grid == grid


@pytest.mark.parametrize(
    ("counter", "api", "tool", "unit"),
    [
        (("inst_executed", "UnsignedInt", 5), "CUDA", "nvprof", ""),
        (("sm_efficiency", "Percent", 83.5), "CUDA", "nvprof", "%"),
        (("dram_read_throughput", "Throughput", 7), "CUDA", "nvprof", "byte/s"),
        (("dram_utilization", "UtilizationLevel", 2), "CUDA", "nvprof", "level"),
        (("smsp__inst_executed.sum", "Double", 5.0), "CUDA", "ncu", ""),
        (("Wavefronts", "Double", 5.0), "OpenCL", "gpa", ""),
        (("Wavefronts", "Double", 5.0), "Vulkan", "gpa", ""),
    ],
)
def test_reader_derives_target_profiler_and_unit_from_api_and_counter(
    tmp_path, counter, api, tool, unit
):
    (item,) = read_json(tmp_path, ktt.result(ktt.computation(counters=[counter])), ComputeApi=api)
    assert item.program.target.kind == api.lower()
    (launch,) = item.launches
    found = launch.counter_set
    assert (found.tool, found.counters) == (tool, ((counter[0], unit),))
    assert launch.values == (float(counter[2]),)


def test_unfinished_profiles_and_register_counts_of_0_are_unknown(tmp_path):
    made = ktt.computation(ProfilingData={"Counters": [], "RemainingProfilingRuns": 3})
    made["CompilationData"]["RegistersCount"] = 0
    (item,) = read_json(tmp_path, ktt.result(made))
    (launch,) = item.launches
    assert (launch.registers, launch.static_shared, launch.counter_set) == (None, 2048, None)
    extra = orjson.loads(item.extra)
    assert extra["ComputationResults"][0]["RemainingProfilingRuns"] == 3
    assert "profiled" not in extra


def test_composite_kernels_have_several_launches(tmp_path):
    parts = [
        ktt.computation(10.0, block=(32, 1, 1)),
        ktt.computation(20.0, block=(8, 8, 2), KernelFunction="reduce"),
    ]
    (item,) = read_json(tmp_path, ktt.result(*parts, duration=35.0, ExtraDuration=5.0))
    assert item.run_secs == (35e-6,)
    told = [(one.number, one.kernel, one.threads, one.seconds) for one in item.launches]
    assert told == [(0, "sum", 32, 10e-6), (1, "reduce", 128, 20e-6)]


def test_values_of_parameters_keep_their_types(tmp_path):
    parameters = [
        *(ktt.pair("a", 3), ktt.pair("b", -3, "Int"), ktt.pair("c", 2, "Double")),
        *(ktt.pair("d", True, "Bool"), ktt.pair("e", "row", "String")),
        {"Name": "f", "IsDouble": True, "Value": 1},
    ]
    (item,) = read_json(tmp_path, ktt.result(ktt.computation(), parameters=parameters))
    expected = {"a": 3, "b": -3, "c": 2.0, "d": True, "e": "row", "f": 1.0}
    assert repr(join_parameters(item.program.trace)) == repr(expected)


@pytest.mark.parametrize(
    ("status", "kind", "phase"),
    [
        ("ComputationFailed", FailureKind.RUNTIME_ERROR, Phase.RUN),
        ("ValidationFailed", FailureKind.WRONG_RESULT, Phase.RUN),
        ("CompilationFailed", FailureKind.COMPILE_ERROR, Phase.BUILD),
        ("DeviceLimitsExceeded", FailureKind.RUNTIME_ERROR, Phase.RUN),
    ],
)
def test_reader_maps_status_to_failure_kind_and_phase(tmp_path, status, kind, phase):
    made = ktt.result(ktt.computation(9.5), status=status)
    bare, launched = read_json(tmp_path, ktt.failed(status), made)
    for item in (bare, launched):
        assert (item.status, item.run_secs) == (Status.FAILED, None)
        assert item.failure == Failure(kind, phase, status)
    assert bare.launches == ()
    assert (launched.launches[0].threads, launched.launches[0].seconds) == (64, None)
    assert orjson.loads(launched.extra)["TotalDuration"] == 9.5


def test_import_stores_equal_results_as_separate_records(tmp_path, memory):
    plain = ktt.result(ktt.computation(16.5))
    profiled = ktt.result(ktt.computation(16.5, counters=ktt.COUNTERS))
    path = ktt.write_json(tmp_path / "a.json", plain, profiled, plain)
    first, second, third = read(path)
    assert first.digest == third.digest
    assert first.digest != second.digest
    for new in (3, 0):
        report = import_log(memory, LogFile(path, "a"), source="a")
        assert (report.total.read, report.total.new) == (3, new)


def test_options_name_kernel_and_device_only_if_the_file_does_not(tmp_path):
    for kernel, device, *expected in (("", "", "mine", "GPU"), ("k", "RTX", "k", "RTX")):
        made = ktt.result(ktt.computation(), KernelName=kernel)
        path = ktt.write_json(tmp_path / "a.json", made, Device=device)
        (item,) = read(path, kernel="mine", device="GPU")
        program = item.program
        assert [program.workload.name, program.target.attributes["model"]] == expected


names = st.text("abcXYZ_09.", min_size=1, max_size=8)
texts = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=5)
values = st.one_of(
    st.tuples(st.just("UnsignedInt"), st.integers(0, 2**62)),
    st.tuples(st.just("Int"), st.integers(-(2**62), 2**62)),
    st.tuples(st.just("Double"), st.floats(-1e9, 1e9)),
    st.tuples(st.just("Bool"), st.booleans()),
    st.tuples(st.just("String"), texts),
)
counters = st.one_of(
    st.tuples(st.just("Double"), st.floats(0, 1e15) | st.none()),
    st.tuples(st.just("UnsignedInt"), st.integers(0, 2**53)),
    st.tuples(st.just("Percent"), st.floats(0, 100)),
    st.tuples(st.just("UtilizationLevel"), st.integers(0, 10)),
)
extents = st.tuples(*[st.integers(1, 16)] * 3)


@st.composite
def some_results(draw):
    parameters = draw(st.dictionaries(names, values, max_size=4))
    pairs = [ktt.pair(name, value, kind) for name, (kind, value) in parameters.items()]
    status = draw(st.sampled_from(["Ok", "Ok", "ComputationFailed", "ValidationFailed"]))
    if status == "ComputationFailed":
        return ktt.failed(status, parameters=pairs)
    made = []
    for _ in range(draw(st.integers(1, 2))):
        counted = draw(st.dictionaries(names, counters, max_size=3))
        rows = [(name, *value) for name, value in counted.items()]
        made.append(ktt.computation(draw(st.floats(0.5, 1e6)), draw(extents), draw(extents), rows))
    overhead = draw(st.floats(0, 1e9))
    return ktt.result(*made, parameters=pairs, status=status, TotalOverhead=overhead)


def digests_and_launches(path):
    """Return digest and launches of each measurement of a file; as text NaN equals itself."""
    return [
        (item.digest, repr([dataclasses.astuple(launch) for launch in item.launches]))
        for item in read(path)
    ]


@settings(max_examples=examples(60))
@given(
    results=st.lists(some_results(), max_size=3),
    unit=st.sampled_from(["Nanoseconds", "Seconds"]),
    counts=st.sampled_from(["CUDA", "OpenCL", "Vulkan"]),
)
def test_xml_reader_returns_the_same_records_as_json_reader(
    tmp_path_factory, results, unit, counts
):
    folder = tmp_path_factory.mktemp("ktt")
    fields = {"TimeUnit": unit, "GlobalSizeType": counts}
    path = ktt.write_json(folder / "a.json", *results, **fields)
    other = ktt.write_xml(folder / "a.xml", *results, **fields)
    assert digests_and_launches(path) == digests_and_launches(other)
    # Reading the text in pieces gives what reading all of it gives.
    whole = json.loads(path.read_text())["Results"]
    assert [item.run_secs is None for item in read(path)] == [r["Status"] != "Ok" for r in whole]


@pytest.mark.parametrize("chunk", [1, 64])
def test_readers_return_the_same_records_for_any_chunk_size(tmp_path, monkeypatch, chunk):
    made = [ktt.result(ktt.computation(2.0 + n, counters=ktt.COUNTERS)) for n in range(5)]
    paths = [ktt.write_json(tmp_path / "a.json", *made), ktt.write_xml(tmp_path / "a.xml", *made)]
    whole = digests_and_launches(paths[0])
    for module in ("ktt", "ktt_xml"):
        monkeypatch.setattr(f"tunedb.formats.gpu.{module}._CHUNK_BYTES", chunk)
    assert [digests_and_launches(path) for path in paths] == [whole, whole]


def test_reader_accepts_old_xml_without_value_types(tmp_path):
    path = ktt.write_xml(tmp_path / "a.xml", ktt.result(ktt.computation()))
    text = path.read_text().replace('ValueType="UnsignedInt"', 'IsDouble="false"')
    path.write_text(text.replace('Value="4" IsDouble="false"', 'Value="4.5" IsDouble="true"'))
    (item,) = read(path)
    assert join_parameters(item.program.trace) == {"WORK_GROUP_SIZE_X": 16, "UNROLL": 4.5}


#: The largest block.
MOST = ktt.computation(block=(limits.MAX_BLOCK_THREADS, 1, 1))
OVER = ktt.computation(block=(limits.MAX_BLOCK_THREADS, 2, 1))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"Status": "Fine"}, "status 'Fine'; KTT has Ok, ComputationFailed"),
        (
            {"TotalDuration": 0.0, "ComputationResults": []},
            "a result that is Ok took no time; it was not measured",
        ),
        ({"TotalDuration": -1.0}, "TotalDuration is -1.0; a time must be finite"),
        *(({"TotalDuration": value}, f"TotalDuration is {value!r}") for value in ("1", True)),
        ({"KernelName": 5}, "the name of a kernel is 5"),
        *(({"KernelName": name}, "the name of a kernel is") for name in ("\0", "\ud800")),
        ({"KernelName": "k" * (limits.MAX_KERNEL_CHARS + 1)}, "has over 16384 characters"),
        ({"Configuration": None}, "Configuration is not a list"),
        ({"Configuration": [{"Name": "a"}]}, "expected Name and Value"),
        ({"Configuration": [ktt.pair("a", 1), ktt.pair("a", 2)]}, "'a' occurs twice"),
        ({"Configuration": [ktt.pair("a", [1])]}, "expected a number or text"),
        ({"Configuration": [ktt.pair("a", 2**64)]}, "an integer beyond 64 bits"),
        ({"ComputationResults": {}}, "ComputationResults is not a list"),
        *(
            ({"ComputationResults": made}, reason)
            for made, reason in (
                ([3], "a computation is 3"),
                ([ktt.computation(block=(0, 1, 1))], "LocalSize has the extent 0"),
                ([ktt.computation(block=(1.5, 1, 1))], "the extent 1.5"),
                ([OVER], "a block of 131072 threads"),
                ([ktt.computation(GlobalSize=None)], "GlobalSize is None"),
                ([ktt.computation(CompilationData=3)], "must be objects"),
                ([ktt.computation(KernelFunction="")], "KernelFunction is ''"),
                ([MOST] * (limits.MAX_LAUNCHES + 1), "at most 4096"),
            )
        ),
        *(
            ({"ComputationResults": [ktt.computation(counters=counters)]}, reason)
            for counters, reason in (
                ([("a", "Double", "n/a")], "counter 'a' is 'n/a'; expected a number"),
                ([("a", "Double", 1.0)] * 2, "occurs twice"),
                ([("", "Double", 1.0)], "the name of a counter is ''"),
                ([("x" * (limits.MAX_COUNTER_CHARS + 1), "Int", 1)], "has over 256 characters"),
                (
                    [(f"c{n}", "Int", n) for n in range(limits.MAX_COUNTERS + 1)],
                    "at most 4096 counters",
                ),
            )
        ),
        ({"Unknown": 2**70}, "an integer beyond 64 bits"),
        ({"Unknown": "\ud800"}, "has no JSON form"),
    ],
)
def test_bad_results_are_quarantined(tmp_path, fields, reason):
    good = ktt.result(MOST)
    bad, other = read_json(tmp_path, good | fields, good)
    assert isinstance(bad, Quarantined)
    assert reason in bad.reason
    assert "\n" not in bad.reason
    assert (bad.line, bad.data[:1]) == (1, b"{")
    assert other.run_secs


@pytest.mark.parametrize("writer", ["write_json", "write_xml"])
def test_reader_returns_results_before_truncation(tmp_path, writer):
    made = [ktt.result(ktt.computation(1.0 + number)) for number in range(4)]
    path = getattr(ktt, writer)(tmp_path / "a", *made)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 3 // 4])
    found, reason = items_and_error(path)
    assert [one.item.run_secs for one in found] in ([(1e-6,), (2e-6,)], [(1e-6,), (2e-6,), (3e-6,)])
    assert "the results before it were read" in reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"Metadata": %s, "Results": [}', "Expecting value"),
        ('{"Metadata": %s, "Results": {}}', "expected '['"),
        ('{"Metadata": %s "Results": []}', "expected '}'"),
        ('{"Metadata": %s, 5: []}', "expected a name"),
        ('{"Metadata": %s, "Results": []} x', "text follows the document"),
        ('{"Metadata": %s, "Results": [1, 2', "ends too early"),
        ('{"Results": [], "Metadata": %s}', "Results come before its Metadata"),
        ('{"Metadata": "KttVersion", "Results": []}', "KTT's Metadata is not an object"),
    ],
)
def test_reader_rejects_damaged_documents(tmp_path, text, reason):
    path = tmp_path / "a.json"
    path.write_text(text.replace("%s", json.dumps(ktt.METADATA)))
    assert reason in items_and_error(path)[1]


def test_reader_rejects_result_over_size_or_nesting_limit(tmp_path, monkeypatch):
    """MAX_LINE_BYTES, MAX_VALUES and nesting bound one result."""
    path = tmp_path / "a.json"
    for name, most, body, reason in (
        ("MAX_LINE_BYTES", 2**20, "[" * 100_000, "recursion"),
        ("MAX_LINE_BYTES", 2**20, '"' + "x" * 2**22, "a value of more than 1048576 characters"),
        ("MAX_VALUES", 100_000, "[0" + ",0" * 1_200_000 + "]]}", "more than 100000 values"),
    ):
        path.write_text('{"Metadata": ' + json.dumps(ktt.METADATA) + ', "Results": [' + body)
        with monkeypatch.context() as patch:
            patch.setattr(limits, name, most)
            assert reason in items_and_error(path)[1]


@pytest.mark.parametrize(
    "prologue",
    [
        '<!DOCTYPE TuningData [<!ENTITY a "b">]>',
        '<!DOCTYPE TuningData SYSTEM "file:///etc/passwd">',
        '<!DOCTYPE t [<!ENTITY % x SYSTEM "http://example.org/x">%x;]>',
    ],
)
def test_xml_reader_rejects_document_type_declarations(tmp_path, prologue):
    path = ktt.write_xml(tmp_path / "a.xml", ktt.result(ktt.computation()))
    path.write_text(f"{prologue}<TuningData>" + path.read_text().split("<TuningData>", 1)[1])
    found, reason = items_and_error(path)
    assert found == []
    assert "KTT never writes a document type; it is rejected" in reason


def test_xml_reader_rejects_malformed_or_too_large_documents(tmp_path, monkeypatch):
    path = tmp_path / "a.xml"
    monkeypatch.setattr(limits, "MAX_INSTRUCTIONS", 1000)
    monkeypatch.setattr(limits, "MAX_LINE_BYTES", 2**19)
    for body, reason in (
        ("<a>" * (limits.MAX_DEPTH + 1), "nested deeper than 32"),
        ("<KernelResult>" + "<a/>" * (limits.MAX_INSTRUCTIONS + 1), "more than 1000 elements"),
        ("<KernelResult></Results>", "not XML (mismatched tag"),
        ("&unknown;", "not XML (undefined entity"),
        ("<KernelResult a='" + "x" * 2**20, "an element of more than 524288 bytes"),
    ):
        path.write_text(f"<TuningData><Results>{body}")
        assert reason in items_and_error(path)[1]


def test_xml_reader_quarantines_result_with_bad_number(tmp_path):
    path = ktt.write_xml(tmp_path / "a.xml", *[ktt.result(ktt.computation())] * 2)
    path.write_text(path.read_text().replace('RegistersCount="66"', 'RegistersCount="6,6"', 1))
    bad, good = read(path)
    assert bad.reason == "'6,6' is not a whole number"
    assert orjson.loads(bad.data)["tag"] == "KernelResult"
    assert good.run_secs


#: File → results, failed ones, results with counters (section "gpu" of SOURCES.md).
REAL = {
    "ktt/KTConvolutionOutput_2080Ti.json.gz": (6768, 1488, 5280),
    "ktt/KTPnpolyOutput_2080Ti.json.gz": (4092, 277, 3815),
    "ktt/KTPnpolyOutput_3090.json.gz": (4092, 274, 0),
    "ktt/SimulationInput.json.gz": (4, 0, 4),
    "ktt/TuningOutput.json.gz": (475, 0, 67),
    "ktt/TuningOutput_exp1.json.gz": (463, 0, 66),
    "ktt/coulomb_2080_full_search_space.json.gz": (210, 0, 210),
    "ktt/ktt_convolution_profile_searcher_run0.json.gz": (600, 4, 200),
    "bat/ktt_triad_TuningOutput.json": (10, 0, 0),
}


@needs_gpu_logs
@pytest.mark.parametrize("name", [long(name) if REAL[name][0] > 1000 else name for name in REAL])
def test_import_stores_all_results_of_real_file_once_with_their_launches(name, memory):
    results, failures, profiled = REAL[name]
    (file,) = find_logs([GPU / name])
    for new in (results, 0):
        report = import_log(memory, file, source=file.name)
        total = report.total
        assert (total.read, total.failed, total.new) == (results, failures, new)
        assert (report.refused, report.quarantined) == (None, 0)
    items = read(GPU / name)
    launches = [launch for item in items for launch in item.launches]
    assert len(launches) == results - failures
    assert sum(launch.counter_set is not None for launch in launches) == profiled
    sets = {launch.counter_set.digest for launch in launches if launch.counter_set}
    assert len(sets) == bool(profiled)
    for item in items:
        assert (item.run_secs is None) == (item.status is Status.FAILED)
        parameters = join_parameters(item.program.trace)
        for launch in item.launches:
            assert launch.threads == math.prod(launch.block)
            assert launch.seconds == item.run_secs[0]
            x = parameters.get("BLOCK_SIZE_X", parameters.get("WORK_GROUP_SIZE_X"))
            if x is not None:
                assert launch.block[0] == x

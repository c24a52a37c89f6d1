import io
import json

import gpu_logs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunedb import limits
from tunedb.errors import FormatError, UsageError
from tunedb.formats.base import Remark
from tunedb.formats.export import export_document
from tunedb.formats.gpu.file_metadata import FileMetadata, device_of_name, metadata_of
from tunedb.formats.gpu.kernels import gpu_target, kernel_workload
from tunedb.formats.gpu.t4 import T4Format, _milliseconds
from tunedb.formats.importer import import_log
from tunedb.programs.kernel import join_parameters, split_parameters
from tunedb.records import (
    Failure,
    FailureKind,
    Measurement,
    Phase,
    Program,
    Quarantined,
    Status,
    Trust,
)
from tunedb.storage.store import Store

CONFIGURATION = {"block_size_x": 32, "block_size_y": 4, "tile": 1}


def row(**others):
    """Return a result as the benchmark hub has it."""
    return {
        **{"timestamp": "2023-12-22 09:54:05.502007+00:00", "configuration": dict(CONFIGURATION)},
        "times": {"compilation": 900.0, "framework": 1, "runtimes": [3.0, 1.0, 2.0]},
        **{"invalidity": "correct", "correctness": 1, "objectives": ["time"]},
        "measurements": [time_of(2.0)],
        **others,
    }


def time_of(value, unit=""):
    return {"name": "time", "value": value, "unit": unit}


def ktt(value=1500.0, **others):
    """Return a result as KTT's converter has it."""
    return row(
        times={"compilation_time": 1e6, "runtimes": [value], "validation": 5e5},
        measurements=[
            {"name": "TotalDuration", "value": value, "unit": "Microseconds"},
            {"name": "dram__sectors_read.sum", "value": 7.0, "unit": ""},
            {"name": "sm__warps_active.avg.pct", "value": 50.5, "unit": "%"},
        ],
        objectives=["TotalDuration"],
        **others,
    )


def failed(invalidity, **others):
    measurements = [time_of("RuntimeFailedConfig", "miliseconds")]
    times = {"compilation": 1.0}
    return row(times=times, invalidity=invalidity, measurements=measurements, **others)


def document(*rows, **others):
    metadata = {"timeunit": "miliseconds"}
    return {"schema_version": "1.0.0", "metadata": metadata, "results": list(rows), **others}


def write(folder, content, name="gemm__A100_T4.json", **words):
    return gpu_logs.write(folder, content, name, **words)


def read(file):
    return list(T4Format().read_file(file))


def read_rows(folder, *rows, **others):
    """Return the items of a document with some rows."""
    return read(write(folder, document(*rows, **others)))


def test_reader_reads_rows_of_the_benchmark_hub(tmp_path):
    (found,) = read_rows(tmp_path, row())
    assert join_parameters(found.program.trace) == CONFIGURATION
    assert (found.run_secs, found.status, found.all_cost) == ((0.003, 0.001, 0.002), 0, 0.9)
    assert found.measured_at == 1703238845502007
    assert found.program.workload.name == "gemm"
    assert found.program.target.label == "unknown A100"
    assert (found.launches[0].threads, found.launches[0].block) == (128, (32, 4, 1))
    assert orjson.loads(found.extra) == {"times": {"compilation": 900.0, "framework": 1}}


def test_reader_reads_rows_of_ktts_converter(tmp_path):
    found, blockless = read_rows(tmp_path, ktt(), ktt(configuration={"P": 1}), metadata={})
    assert (found.run_secs, found.all_cost) == ((0.0015,), 1.5)
    (launch,) = found.launches
    assert launch.counter_set.tool == "ncu"
    assert dict(zip(launch.counter_set.counters, launch.values, strict=True)) == {
        ("dram__sectors_read.sum", ""): 7.0,
        ("sm__warps_active.avg.pct", "%"): 50.5,
    }
    # Without a block there is no launch, so the counters are kept beside.
    assert blockless.launches == ()
    kept = orjson.loads(blockless.extra)["measurements"]
    assert [item["name"] for item in kept] == ["dram__sectors_read.sum", "sm__warps_active.avg.pct"]


@pytest.mark.parametrize(
    ("unit", "timeunit", "seconds"),
    [
        ("", "miliseconds", 0.002),
        ("", "milliseconds", 0.002),
        ("Microseconds", "milliseconds", 2e-6),
        ("ns", None, 2e-9),
        ("s", "milliseconds", 2.0),
        ("GFLOP/s", "s", 2.0),
    ],
)
def test_reader_prefers_time_unit_of_row_to_that_of_file(tmp_path, unit, timeunit, seconds):
    result = row(times={"runtimes": [2.0]}, measurements=[time_of(2, unit)])
    (found,) = read_rows(tmp_path, result, metadata={"timeunit": timeunit})
    assert found.run_secs == (seconds,)


@pytest.mark.parametrize(
    ("invalidity", "kind", "phase", "launches"),
    [
        ("timeout", FailureKind.TIMEOUT, Phase.RUN, 1),
        ("compile", FailureKind.COMPILE_ERROR, Phase.BUILD, 0),
        ("runtime", FailureKind.RUNTIME_ERROR, Phase.RUN, 1),
        ("correctness", FailureKind.WRONG_RESULT, Phase.RUN, 1),
        ("constraints", FailureKind.UNKNOWN, Phase.UNKNOWN, 0),
    ],
)
def test_reader_maps_invalidity_to_failure_whatever_correctness_says(
    tmp_path, invalidity, kind, phase, launches
):
    times = {"times": {"runtimes": [3.0]}}
    rows = [failed(invalidity, correctness=correctness) | times for correctness in (0, 1)]
    for correctness, found in enumerate(read_rows(tmp_path, *rows)):
        assert (found.status, found.run_secs) == (Status.FAILED, None)
        assert (found.failure.kind, found.failure.phase) == (kind, phase)
        assert len(found.launches) == launches
        extra = orjson.loads(found.extra)
        assert (extra["invalidity"], extra["time"]) == (invalidity, "RuntimeFailedConfig")
        assert extra["runtimes"] == [3.0]
        assert extra.get("correctness", 1) == correctness


@pytest.mark.parametrize(
    ("value", "is_apart"),
    [(2.0, False), (2.039, False), (1.961, False), (2.041, True), (1.959, True), (0.0, True)],
)
def test_row_with_time_over_2_percent_from_mean_is_failed(tmp_path, value, is_apart):
    """The record keeps its data; its time is never the best one."""
    file = write(tmp_path, document(row(measurements=[time_of(value, "ms")]), row()))
    found, other, *remarks = read(file)
    assert other.status is Status.OK
    if not is_apart:
        assert (found.status, found.run_secs, remarks) == (Status.OK, other.run_secs, [])
        return
    assert (found.status, found.run_secs) == (Status.FAILED, None)
    assert found.failure.kind == FailureKind.INFRASTRUCTURE
    extra = orjson.loads(found.extra)
    assert (extra["time"], extra["runtimes"]) == (value, [3.0, 1.0, 2.0])
    (remark,) = remarks
    assert isinstance(remark, Remark)
    assert remark.text.startswith("inconsistent: 1 of 2 rows have a time over 2% from the mean")
    with Store(":memory:") as store:
        report = import_log(store, file, source="x")
        assert report.remarks == [remark.text]
        assert [summary.best for summary in store.workloads.find()] == [0.002]


COUNTED = [time_of(1.0) | {"name": f"c{number}"} for number in range(limits.MAX_COUNTERS + 1)]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ([], "an object with a configuration"),
        ({"configuration": {}, "times": {}}, "the invalidity of a result is None"),
        (row(invalidity="lost"), "the invalidity of a result is 'lost'"),
        (row(times=[]), "the times of a result are not an object"),
        (row(measurements=[{"value": 1}]), "objects with a name"),
        (row(measurements=[], times={}), "the time is None"),
        (row(times={"runtimes": ["x"]}), "not a number"),
        (row(configuration={"a": [1]}), "expected a number or text"),
        (row(measurements=[{"name": "n", "value": 1}] * 2), "a measurement occurs twice"),
        # A time of 0 would beat all others.
        (row(times={}, measurements=[time_of(0.0, "ms")]), "not measured"),
        (row(times={"runtimes": [0.0, 0]}, measurements=[time_of(0.0, "ms")]), "not measured"),
        # Comparing each measurement with all others would take too long.
        (row(measurements=[time_of(2.0), *COUNTED]), "counters of one launch"),
    ],
)
def test_reader_quarantines_only_the_bad_row(tmp_path, bad, reason):
    items = read_rows(tmp_path, bad, row())
    assert [type(item) for item in items] == [Quarantined, Measurement]
    assert reason in items[0].reason


def test_reader_quarantines_row_without_time_unit(tmp_path):
    (item,) = read_rows(tmp_path, row(), metadata={})
    assert "neither its time nor metadata.timeunit" in item.reason


def test_reader_rejects_documents_that_are_not_t4_version_1(tmp_path):
    for content in (document(schema_version="2.0.0"), document(results={}), [document()]):
        with pytest.raises(FormatError, match="no results of FAIR T4, version 1"):
            read(write(tmp_path, content))


T1 = {
    "ConfigurationSpace": {"TuningParameters": [{"Name": "x", "Values": "[1]"}]},
    "KernelSpecification": {"KernelName": "Xgemm", "ProblemSize": [64, 64]},
}


@pytest.mark.parametrize(
    ("name", "words", "expected"),
    [
        ("gemm__A100_T4.json", {}, ("gemm", "A100")),
        ("gemm__A100_T4.json.gz", {}, ("gemm", "A100")),
        ("gemm__RTX_3090_T4.json", {"kernel": "k"}, ("k", "RTX_3090")),
        ("gemm__A100_T4.json", {"device": "d"}, ("gemm", "d")),
        ("gemm/A100_T4.json", {}, ("gemm", "A100")),
        ("gemm/A100-results.json", {}, (None, None)),
        ("results.json", {"kernel": "k", "device": "d"}, ("k", "d")),
    ],
)
def test_metadata_of_takes_kernel_and_device_from_options_or_file_name(
    tmp_path, name, words, expected
):
    place = metadata_of(write(tmp_path, document(), name, **words))
    assert (place.kernel, place.device) == expected


def test_reader_takes_kernel_and_problem_from_t1_input_in_same_folder(tmp_path, monkeypatch):
    """MAX_NEIGHBOUR_BYTES"""
    file = write(tmp_path, document(row()))
    write(tmp_path, T1, "gemm__T1.json")
    write(tmp_path, T1, "other__T1.json")
    (found,) = read(file)
    assert found.program.workload.body == b'{"kernel":"Xgemm","problem":[64,64]}'
    (found,) = read(write(tmp_path, document(row()), kernel="mine"))
    assert found.program.workload.body == b'{"kernel":"mine","problem":null}'
    lone = write(tmp_path, document(row()), "runs/A100_T4.json")
    assert metadata_of(lone) == FileMetadata("runs", "A100")
    write(tmp_path, T1, "runs/gemm-T1.json")
    assert metadata_of(lone) == FileMetadata("Xgemm", "A100", "unknown", [64, 64])
    write(tmp_path, T1, "runs/conv-T1.json")
    assert metadata_of(lone) == FileMetadata("runs", "A100")
    write(tmp_path, T1, "runs/T1.json")
    assert metadata_of(lone).kernel == "Xgemm"
    monkeypatch.setattr(limits, "MAX_NEIGHBOUR_BYTES", 50)
    assert metadata_of(file).kernel == "gemm"


def test_reader_takes_kernel_and_device_from_original_ktt_file(tmp_path):
    metadata = {"ComputeApi": "CUDA", "Device": "NVIDIA TITAN RTX"}
    original = {"Metadata": metadata, "Results": [{"KernelName": "coulomb"}]}
    file = write(tmp_path, document(ktt()), "run_converted.json")
    with pytest.raises(FormatError, match="does not say its kernel and device; give --kernel and"):
        read(file)
    write(tmp_path, original, "run.json")
    (found,) = read(file)
    assert found.program.workload.name == "coulomb"
    assert found.program.target.attributes == {"kind": "cuda", "model": "NVIDIA TITAN RTX"}


def test_options_do_not_rename_kernel_and_device_of_the_file(tmp_path):
    said = {"timeunit": "s", "kernel_name": "k", "device_name": "d", "target": "opencl"}
    unsaid = said | {"kernel_name": "", "device_name": None}
    for metadata, expected in ((said, ("k", "opencl d")), (unsaid, ("mine", "opencl dev"))):
        content = document(row(), metadata=metadata)
        (found,) = read(write(tmp_path, content, kernel="mine", device="dev"))
        assert (found.program.workload.name, found.program.target.label) == expected


def test_reader_accepts_many_measurements_that_are_texts(tmp_path):
    texts = [{"name": "t", "value": "x"}] * 1_000
    (found,) = read_rows(tmp_path, row(measurements=[time_of(2.0), *texts]))
    assert len(orjson.loads(found.extra)["measurements"]) == 1_000


def test_reader_asks_for_device_that_file_does_not_name(tmp_path):
    with pytest.raises(FormatError) as caught:
        read(write(tmp_path, document(row()), "results.json", kernel="k"))
    assert str(caught.value) == "the file does not say its device; give --device"


def test_device_of_name_returns_text_after_two_underscores(tmp_path):
    assert device_of_name(tmp_path / "a__B.json.gz") == "B"
    assert device_of_name(tmp_path / "B_T4.json") is None
    assert device_of_name(None) is None


#: What the schema of T4 results 1.0.0 asks of each of them.
REQUIRED = {"configuration": dict, "times": dict, "invalidity": str, "correctness": int}
INVALIDITY = {"timeout", "compile", "runtime", "correctness", "constraints", "correct"}
OPTIONAL = {"timestamp": str, "objectives": list, "measurements": list}


def check_schema(found):
    """Assert that a document follows the schema of T4 results."""
    assert found["schema_version"] == "1.0.0"
    assert type(found["results"]) is list
    for result in found["results"]:
        for name, kind in REQUIRED.items():
            assert isinstance(result[name], kind)
        for name, kind in OPTIONAL.items():
            assert isinstance(result.get(name, kind()), kind)
        assert result["invalidity"] in INVALIDITY
        assert type(result["times"].get("runtimes", [])) is list
        for name in ("compilation_time", "framework", "search_algorithm", "validation"):
            assert type(result["times"].get(name, 0)) in (int, float)
        for measurement in result.get("measurements", []):
            assert isinstance(measurement["name"], str)
            assert isinstance(measurement["value"], int | float | str | list)
            assert isinstance(measurement["unit"], str)


def export(store, **chosen):
    out = io.BytesIO()
    report = export_document(store, "t4", out, **chosen)
    return report, out.getvalue()


def test_export_and_import_keep_records(tmp_path):
    rows = [row(), ktt(), failed("compile"), failed("correctness"), failed("constraints")]
    for number, result in enumerate(rows):
        result["configuration"]["tile"] = number
    content = document(*rows)
    content["metadata"]["problem_size"] = [64]
    with Store(":memory:") as store, Store(":memory:") as other:
        import_log(store, write(tmp_path, content), source="x")
        report, data = export(store)
        assert (report.records, report.workloads, report.left_out) == (5, 1, {})
        found = json.loads(data)
        check_schema(found)
        assert found["metadata"]["kernel_name"] == "gemm"
        assert [r["invalidity"] for r in found["results"]] == [r["invalidity"] for r in rows]
        again = import_log(other, write(tmp_path, found, "results.json"), source="x")
        assert (again.total.new, again.remarks, again.quarantined) == (5, [], 0)
        for one, two in zip(store.records.iterate(), other.records.iterate(), strict=True):
            for field in ("program", "run_secs", "measured_at", "status"):
                assert getattr(one.measurement, field) == getattr(two.measurement, field)
            assert one.measurement.all_cost in (two.measurement.all_cost, None)
            for before, after in zip(
                store.launches.for_record(one.id), other.launches.for_record(two.id), strict=True
            ):
                assert (before.block, before.values) == (after.block, after.values)
                assert before.counter_set == after.counter_set


def test_export_rejects_records_of_several_kernels_or_devices(tmp_path, memory):
    for name in ("gemm__A100", "gemm__V100", "conv__V100"):
        import_log(memory, write(tmp_path, document(row()), f"{name}_T4.json"), source=name)
    for chosen in ({}, {"workload_ids": [1]}, {"target_ids": [2]}):
        with pytest.raises(UsageError, match="choose with --workload and --target"):
            export(memory, **chosen)
    report, data = export(memory, workload_ids=[1], target_ids=[2])
    assert (report.records, report.left_out) == (1, {"other workload": 1})
    assert json.loads(data)["metadata"]["device_name"] == "V100"
    report, data = export(memory, target_ids=[99])
    assert (report.records, data) == (0, b"")
    with pytest.raises(UsageError, match="not a format of documents"):
        export_document(memory, "ansor", io.BytesIO())


def test_export_skips_inconsistent_and_foreign_records(tmp_path, memory):
    apart = row(measurements=[time_of(9.0)])
    import_log(memory, write(tmp_path, document(apart, row())), source="x")
    other = row(configuration=CONFIGURATION | {"tile": 5})
    import_log(memory, write(tmp_path, document(other)), source="y", trust=Trust.FOREIGN)
    report, data = export(memory)
    assert report.records == 1
    assert report.left_out == {"T4 has no name for its failure": 1, "foreign source": 1}
    check_schema(json.loads(data))


@given(st.floats(0, 1e6, allow_subnormal=False))
def test_milliseconds_convert_back_to_the_same_seconds(value):
    seconds = value / 1000
    assert _milliseconds(seconds) / 1000 == seconds


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (FailureKind.TIMEOUT, "timeout"),
        (FailureKind.COMPILE_ERROR, "compile"),
        (FailureKind.WRONG_RESULT, "correctness"),
        (FailureKind.CRASH, "runtime"),
    ],
)
def test_result_maps_failure_kinds_to_invalidity(kind, word):
    program = Program(kernel_workload("k"), gpu_target("cuda", "d"), split_parameters({"a": 1}))
    failure = Failure(kind, Phase.RUN, "why")
    measurement = Measurement(program, None, Status.FAILED, failure=failure)
    result = json.loads(T4Format().result(measurement, []))
    assert (result["invalidity"], result["correctness"]) == (word, 0)
    assert result["measurements"][0]["value"] == "why"

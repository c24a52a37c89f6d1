"""nvprof's metrics and events, joined with the GPU trace of another run."""

import gzip
import math
import re
from collections import Counter, defaultdict
from pathlib import Path

import profiles
import pytest
from effort import EFFORT
from gpu_logs import counters_of, problem
from gpu_logs import read_kinds as read
from hypothesis import given
from hypothesis import strategies as st
from profiles import ADD, COPY, launch, metric, nsys, nsys_launch
from public_logs import GPU, needs_gpu_logs, sources

from tunedb.errors import FormatError
from tunedb.formats.find import find_logs
from tunedb.formats.gpu.nvprof import NvprofFormat, parse_profile, parse_value
from tunedb.formats.gpu.profiler_tables import read_rows, rows_of
from tunedb.formats.importer import Tally, import_log
from tunedb.programs.kernel import join_parameters
from tunedb.records import Measurement, Status

NVPROF = GPU / "nvprof"


def write(folder, **files):
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text)
    return folder


def read_trace(folder, *rows, **options):
    """Return the items of a trace with these rows."""
    (folder / "trace.csv").write_text(profiles.trace(*rows, **options))
    return read(folder / "trace.csv")


def test_metrics_and_trace_become_one_record(tmp_path):
    rows = (metric("sm_efficiency", "54.06%"), metric("dram_utilization", "Mid (4)"))
    write(
        tmp_path,
        metrics64=profiles.metrics(*rows),
        trace64=profiles.trace(COPY, launch("4.512000"), COPY, launch("4.480000")),
    )
    (record,), remarks, bad = read(tmp_path / "metrics64.csv")
    assert (remarks, bad) == ([], [])
    assert record.run_secs == pytest.approx((4.512e-6, 4.48e-6), rel=1e-12)
    assert record.status is Status.OK
    assert record.program.workload.name == "vectorAdd"
    assert problem(record) == {"application": "vectorAdd"}
    assert record.program.target.label == "cuda GeForce GTX 950"
    assert list(join_parameters(record.program.trace).items()) == [
        *(("block_size_x", 64), ("block_size_y", 1), ("block_size_z", 1))
    ]
    (one,) = record.launches
    assert (one.kernel, one.threads, one.block, one.grid) == (ADD, 64, (64, 1, 1), (782, 1, 1))
    assert (one.registers, one.static_shared, one.dynamic_shared) == (8, 0, 0)
    assert counters_of(record) == {"sm_efficiency": 54.06, "dram_utilization": 4.0}
    assert one.counter_set.counters == (("sm_efficiency", "%"), ("dram_utilization", ""))
    assert one.counter_set.tool == "nvprof"
    # The path of the trace gives the same.
    (other,), _, _ = read(tmp_path / "trace64.csv")
    assert (other.digest, other.launches) == (record.digest, record.launches)
    (tmp_path / "metrics64.csv").unlink()
    (alone,), remarks, bad = read(tmp_path / "trace64.csv")
    assert (counters_of(alone), remarks, bad) == (None, [], [])


def test_folder_import_reads_each_pair_of_files_once(tmp_path, memory):
    write(
        tmp_path,
        metrics16=profiles.metrics(metric("ipc", "1.3"), process=1),
        trace16=profiles.trace(launch(block=(16, 1, 1), grid=(3126, 1, 1)), process=2),
        metrics64=profiles.metrics(metric("ipc", "1.4"), process=3),
        trace64=profiles.trace(launch(), process=4),
    )
    with gzip.open(tmp_path / "trace128.csv.gz", "wt") as packed:
        packed.write(profiles.trace(launch(block=(128, 1, 1), grid=(391, 1, 1)), process=5))
    files = find_logs([tmp_path])
    names = [Path(file.name).name for file in files]
    assert names == ["metrics16.csv", "metrics64.csv", "trace128.csv.gz"]
    for new in (1, 0):
        totals = [import_log(memory, file, source=file.name).total for file in files]
        assert totals == [Tally(read=1, new=new, known=1 - new, launches=1)] * 3


def test_block_sizes_of_one_program_share_one_workload(tmp_path):
    programs = []
    for block in (32, 64, 1024):
        row = launch(block=(block, 1, 1), grid=(-(-50_000 // block), 1, 1))
        (record,), _, _ = read_trace(tmp_path, row, command=f"./vectorAdd_bs{block}")
        programs.append(record.program)
    assert len({program.workload.digest for program in programs}) == 1
    assert len({program.digest for program in programs}) == 3


def test_kernels_of_one_name_in_two_applications_are_different_workloads(tmp_path):
    for application in ("simpleHyperQ", "concurrent -n 3"):
        row = launch(name="sum(long*, int) [9]")
        (record,), _, _ = read_trace(tmp_path, row, command=f"../x/{application}")
        assert record.program.workload.name == "sum"
        assert problem(record) == {"application": application}


def test_reader_separates_grid_sizes_of_one_kernel_and_omits_averaged_counters(tmp_path):
    rows = [launch(grid=(grid, 1, 1)) for grid in (4608, 2560, 4608)]
    metrics = profiles.metrics(metric("ipc", "1.3", calls=3))
    write(tmp_path, metrics=metrics, trace=profiles.trace(*rows))
    records, (remark,), _ = read(tmp_path / "metrics.csv")
    assert [len(record.run_secs) for record in records] == [2, 1]
    assert [problem(record)["launch"] for record in records] == [[1, 2], [2, 2]]
    assert [counters_of(record) for record in records] == [None, None]
    assert remark.text.startswith("counters of 1 kernel left out: averages")


def test_launch_keeps_template_arguments_that_workload_name_omits(tmp_path):
    names = [f"void matrixMulCUDA<int={n}>(float*, float*)" for n in (8, 16)]
    records, _, _ = read_trace(
        tmp_path,
        launch(block=(8, 8, 1), grid=(80, 40, 1), name=f"{names[0]} [8]"),
        launch(block=(16, 16, 1), grid=(40, 20, 1), name=f"{names[1]} [16]"),
    )
    assert len({record.program.workload.digest for record in records}) == 1
    assert [record.launches[0].kernel for record in records] == names
    assert records[0].program.workload.name == "matrixMulCUDA"


@pytest.mark.parametrize(
    ("start", "unit", "time", "smem", "size"),
    [
        *(("s", "s", "0.004512", "B", "4096"), ("s", "ms", "4.512", "KB", "4.000000")),
        *(("ms", "us", "4512", "B", "4096"), ("ms", "ns", "4512000", "KB", "4.000000")),
    ],
)
def test_reader_converts_all_units_of_trace_alike(tmp_path, start, unit, time, smem, size):
    units = f"{start},{unit},,,,,,,,{smem},{smem},MB,GB/s,,,,"
    (record,), _, bad = read_trace(tmp_path, launch(time, smem=f"{size},{size}"), units=units)
    assert not bad
    assert record.run_secs == pytest.approx((4.512e-3,), rel=1e-12)
    assert record.launches[0].static_shared == record.launches[0].dynamic_shared == 4096


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        *((text, float(text), "") for text in ("15562500", "1.336275", "1e-06")),
        *((text, math.nan, "") for text in ("<OVERFLOW>", "nan", "inf", "-nan")),
        *(("54.060368%", 54.060368, "%"), ("inf%", math.nan, "%")),
        *(("2.000000GB/s", 2.0 * 2**30, "byte/s"), ("2.5MB/s", 2.5 * 2**20, "byte/s")),
        *(("7KB/s", 7168.0, "byte/s"), ("0.000000B/s", 0.0, "byte/s")),
        *(("Idle (0)", 0.0, ""), ("Low (3)", 3.0, ""), ("Mid (4)", 4.0, "")),
        *(("High (9)", 9.0, ""), ("Max (10)", 10.0, "")),
    ],
)
def test_parse_value_splits_number_and_unit(text, value, unit):
    assert parse_value(text) == (pytest.approx(value, rel=0, abs=0, nan_ok=True), unit)


@pytest.mark.parametrize("text", ["fast", "12 furlongs/s", "1.2.3", "12,5%", "Low"])
def test_parse_value_rejects_other_text(text):
    with pytest.raises(FormatError):
        parse_value(text)


@given(st.text(max_size=30))
def test_parse_value_returns_value_or_format_error_for_any_text(text):
    try:
        value, unit = parse_value(text)
    except FormatError:
        return
    assert isinstance(value, float)
    assert unit in ("", "%", "byte/s")


def test_reader_joins_events_and_metrics_of_one_file(tmp_path):
    text = "\n".join(
        (
            *("==1== NVPROF is profiling process 1, command: ./a", "==1== Event result:"),
            *(profiles.EVENTS_HEADER, profiles.event("inst_executed", 9)),
            *("==1== Metric result:", profiles.METRICS_HEADER, metric("ipc", "1.5")),
        )
    )
    write(tmp_path, events=text, trace=profiles.trace(launch()))
    (record,), _, _ = read(tmp_path / "events.csv")
    assert counters_of(record) == {"inst_executed": 9.0, "ipc": 1.5}


def test_metrics_and_events_of_two_runs_become_one_launch(tmp_path):
    events = [profiles.event("inst_executed", 9), profiles.event("gld_request", 3)]
    write(
        tmp_path,
        metrics64=profiles.metrics(metric("ipc", "1.5"), metric("inst_executed", "8")),
        events64="\n".join(("==1== Event result:", profiles.EVENTS_HEADER, *events)),
        trace64=profiles.trace(launch()),
    )
    assert [Path(file.name).name for file in find_logs([tmp_path])] == ["metrics64.csv"]
    launches = set()
    for name in ("metrics64", "trace64", "events64"):
        (record,), remarks, _ = read(tmp_path / f"{name}.csv")
        assert counters_of(record) == {"ipc": 1.5, "inst_executed": 8.0, "gld_request": 3.0}
        assert not remarks
        launches.add(record.launches[0].digest(record.digest))
    assert len(launches) == 1


def test_parser_accepts_events_without_total_column_and_skips_output_of_the_program():
    """nvprof before CUDA 8 wrote no such column."""
    rows = f'{profiles.EVENTS_HEADER[:-8]}\n"GTX (0)","k(int)",1,"gld_request",1,3,2'
    (found,) = parse_profile(rows_of(rows)).counters.values()
    assert (found.names, found.values) == ([("gld_request", "")], [2.0])
    found = parse_profile(rows_of('starting, "really"\n1,2,3\n' + profiles.trace(launch())))
    assert (len(found.launched), found.bad) == (1, [])


def test_reader_reads_trace_of_nsight_systems(tmp_path):
    write(tmp_path, gpu=nsys(nsys_launch(), nsys_launch(time=4880)))
    (record,), _, _ = read(tmp_path / "gpu.csv")
    assert record.run_secs == pytest.approx((5.12e-6, 4.88e-6))
    assert record.launches[0].static_shared is None  # rounded to megabytes
    assert record.launches[0].registers == 16
    assert record.program.target.label == "cuda NVIDIA H200"


def test_reader_quarantines_damaged_rows(tmp_path):
    blocks = [launch(block=(size, 1, 1)) for size in (0, 70_000)]
    (record,), _, bad = read_trace(
        tmp_path, launch("fast"), *blocks, '514.6,4.5,"unclosed', launch()
    )
    assert len(record.run_secs) == 1
    assert [row.line for row in bad] == [5, 6, 7, 8]
    assert all(row.data for row in bad)


@pytest.mark.parametrize(
    ("metrics", "remark"),
    [
        ("==5== NVPROF is profiling process 5, command: ./sort\n", "no metrics"),
        (
            profiles.metrics(metric("ipc", "1.3", kernel="other(int)")),
            "the trace has no such launch",
        ),
    ],
)
def test_reader_remarks_on_missing_metrics_and_launches(tmp_path, metrics, remark):
    write(tmp_path, metrics=metrics, trace=profiles.trace(launch()))
    (record,), (found,), bad = read(tmp_path / "metrics.csv")
    assert counters_of(record) is None
    assert remark in found.text
    assert not bad


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (profiles.metrics(metric("ipc", "1.3")), "metrics need a GPU trace"),
        ("==5== NVPROF is profiling process 5, command: ./a\n", "profiled nothing"),
        ("kern_name,duration_ms,gridx\nadd,1.0,3\n", "made of several files"),
        (
            '==5== Profiling result:\n"Device","Context","Stream","Kernel","Correlation_ID","ipc"\n'
            '"GTX (0)","1","7","k(int)",9,1.5\n',
            "counters of each launch without times",
        ),
    ],
)
def test_import_rejects_incomplete_profiles(tmp_path, memory, text, reason):
    write(tmp_path, metrics=text)
    (file,) = find_logs([tmp_path])
    report = import_log(memory, file, source="x")
    assert reason in report.refused
    assert "\n" not in report.refused
    assert report.total.read == 0


def test_reader_uses_the_given_trace_path_and_rejects_trace_without_kernels(tmp_path):
    metrics = profiles.metrics(metric("ipc", "1.3"))
    write(tmp_path, metrics=metrics, trace=profiles.trace(COPY), other=profiles.trace(launch()))
    (record,), _, _ = read(tmp_path / "metrics.csv", trace=tmp_path / "other.csv")
    assert counters_of(record) == {"ipc": 1.3}
    with pytest.raises(FormatError, match="no GPU trace with kernels"):
        read(tmp_path / "metrics.csv")


def test_two_devices_are_two_targets(tmp_path):
    records, _, _ = read_trace(tmp_path, launch(), launch().replace("GTX 950 (0)", "GTX 960 (1)"))
    labels = [record.program.target.label for record in records]
    assert labels == ["cuda GeForce GTX 950", "cuda GeForce GTX 960"]


def test_parser_rejects_profile_with_too_many_kernels_or_launches(monkeypatch):
    monkeypatch.setattr("tunedb.limits.MAX_PROFILED_KERNELS", 3)
    rows = [launch(grid=(grid, 1, 1)) for grid in range(1, 9)]
    with pytest.raises(FormatError, match="too many kernels"):
        parse_profile(rows_of(profiles.trace(*rows)))
    monkeypatch.setattr("tunedb.limits.MAX_TRACE_ROWS", 3)
    with pytest.raises(FormatError, match="too many kernels or launches"):
        parse_profile(rows_of(profiles.trace(*([launch()] * 5))))


# Real files


def expected_rows():
    """Return the rows of each application, as `SOURCES.md` counts them; a short run takes a few."""
    tables = [cells for _, part, cells in sources() if part.startswith("4. nvprof")]
    expected = {app: int(rows) for app, _, _, rows in tables[1:]}
    return dict([*expected.items()][:: 4 if EFFORT == "few" else 1])


@needs_gpu_logs
def test_all_rows_of_the_real_files_are_read():
    """Each file has the 113 metrics, but for one kernel, which lacks one."""
    expected, found, widths = expected_rows(), Counter(), Counter()
    for app in expected:
        for path in (NVPROF / app).rglob("*.csv*"):
            if re.match("results|kernel_st", path.name):
                found[app] += len(path.read_text().splitlines()) - 1
                continue
            profile = parse_profile(read_rows(path))
            found[app] += profile.metric_rows + profile.trace_rows
            assert not profile.bad, path
            widths.update(len(kernel.names) for kernel in profile.counters.values())
    assert found == expected
    assert set(widths) <= {112, 113}
    assert widths[113] > 0
    assert widths[112] == 1 or EFFORT == "few"


@needs_gpu_logs
@pytest.mark.stress
def test_real_files_import_and_a_second_import_adds_nothing(memory):
    files = find_logs([NVPROF])
    for new in (442, 0):
        reports = [import_log(memory, file, source=file.name) for file in files]
        assert sum(report.total.new for report in reports) == new
        assert sum(report.total.launches for report in reports) == 442
        refused = {Path(r.file).name: r.refused for r in reports if r.refused}
        assert sum(report.quarantined for report in reports) == 0
        assert "metrics need a GPU trace" in refused.pop("bs256.csv")
        assert "metrics need a GPU trace" in refused.pop("metrics_1e6.csv")
        assert refused.pop("LICENSE_blocksizemodel.txt")
        assert all("made of several files" in reason for reason in refused.values())
        assert sum("made of several" in (r.refused or "") for r in reports) == 10


@needs_gpu_logs
def test_reader_finds_all_block_sizes_of_real_programs():
    blocks = defaultdict(set)
    for file in find_logs([NVPROF / "vector_add", NVPROF / "BlackScholes", NVPROF / "mergeSort"]):
        try:
            for found in NvprofFormat().read_file(file):
                if isinstance(found, Measurement):
                    blocks[found.program.workload.name].add(found.launches[0].threads)
        except FormatError:
            continue
    assert blocks["vectorAdd"] == {32, 64, 128, 256, 512, 1024}
    assert blocks["BlackScholesGPU"] == {16, 32, 64, 128}
    # metrics128.csv has a block of 64: the reader does not trust names of files.
    assert blocks["mergeSortSharedKernel"] == {64, 128, 256, 512}


@needs_gpu_logs
def test_times_of_real_traces_equal_those_of_published_table():
    """Others made `results.csv` from the same traces: block → milliseconds."""
    lines = (NVPROF / "vector_add" / "results.csv").read_text().splitlines()
    columns = lines[0].split(",")
    expected = {}
    for line in lines[1:]:
        # The name has commas and is not quoted.
        cells = line.rsplit(",", len(columns) - 1)
        row = dict(zip(columns, cells, strict=True))
        expected[int(float(row["blkx"]))] = float(row["duration_ms"]) / 1e3
    for block, seconds in expected.items():
        (record,), _, _ = read(NVPROF / "vector_add" / f"trace{block}.csv")
        assert record.run_secs == pytest.approx((seconds,), rel=1e-3)

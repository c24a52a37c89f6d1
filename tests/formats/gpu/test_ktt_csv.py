import json
import math

import orjson
import pytest
from gpu_logs import read
from public_logs import GPU, needs_gpu_logs
from workdirs import encode

from tunedb import limits
from tunedb.errors import FormatError
from tunedb.formats.base import LogFile, Remark
from tunedb.formats.find import find_logs
from tunedb.formats.gpu.ktt_csv import KTTCSVFormat
from tunedb.formats.importer import import_log
from tunedb.programs.kernel import join_parameters
from tunedb.records import FailureKind, Quarantined, Status

HEAD = "Kernel name,Computation duration (us),Global size,Local size"
AFTER = (
    "Maximum work-group size,Local memory size,Private memory size,Constant memory size,"
    "Registers count"
)
COUNTERS = "dram__sectors_read.sum,smsp__inst_executed.avg.pct_of_peak_sustained_active"


def write(path, *lines):
    path.write_text("\n".join(lines) + "\n")
    return path


def read_csv(tmp_path, *lines, **fields):
    return read(write(tmp_path / "a.csv", *lines), **fields)


def test_reader_converts_row_to_measurement(tmp_path):
    (item,) = read_csv(
        tmp_path,
        f"{HEAD},BLOCK_SIZE_X,BLOCK_SIZE_Y,UNROLL,{COUNTERS},{AFTER}",
        "conv,77.5,4096,64,16,4,2.5,262299,52.25,1024,128,0,4356,12",
    )
    assert (item.run_secs, item.status, item.measured_at) == ((77.5e-6,), Status.OK, 0)
    assert item.program.workload.name == "conv"
    assert item.program.target.attributes == {"kind": "cuda"}
    parameters = join_parameters(item.program.trace)
    assert list(parameters.items()) == [("BLOCK_SIZE_X", 16), ("BLOCK_SIZE_Y", 4), ("UNROLL", 2.5)]
    (launch,) = item.launches
    assert (launch.kernel, launch.threads, launch.block) == ("conv", 64, (16, 4, 1))
    assert launch.grid is None
    assert (launch.registers, launch.static_shared, launch.seconds) == (12, 128, None)
    assert launch.values == (262299.0, 52.25)
    assert launch.counter_set.tool == "ncu"
    assert [unit for _, unit in launch.counter_set.counters] == ["", "%"]
    assert orjson.loads(item.context) == {"log": "ktt-csv"}
    sizes = {"Maximum work-group size": 1024, "Private memory size": 0}
    others = {"Constant memory size": 4356, "Global size": [4096], "profiled": True}
    assert orjson.loads(item.extra) == sizes | others


@pytest.mark.parametrize(
    ("column", "seconds"),
    [
        ("Computation duration (ns)", 3e-9),
        *((f"{name} duration (us)", 3e-6) for name in ("Computation", "Kernel")),
        ("Kernel duration (ms)", 3e-3),
        ("Computation duration (s)", 3.0),
    ],
)
def test_reader_accepts_all_names_and_units_of_duration(tmp_path, column, seconds):
    head = HEAD.replace("Computation duration (us)", column)
    (item,) = read_csv(tmp_path, f"{head},A", "k,3,64,32,1")
    assert item.run_secs == (seconds,)


def test_reader_takes_block_from_parameters_only_if_product_is_local_size(tmp_path):
    """The file has only the number of threads of a block."""
    rows = [f"k,3,640,64,16,{y}" for y in (4, 2, 0)]
    items = read_csv(tmp_path, f"{HEAD},WORK_GROUP_SIZE_X,WORK_GROUP_SIZE_Y", *rows)
    assert [one.launches[0].block for one in items] == [(16, 4, 1), None, None]
    assert {one.launches[0].threads for one in items} == {64}


@pytest.mark.parametrize(
    ("counter", "tool", "kind"),
    [
        ("dram__sectors_read.sum", "ncu", "cuda"),
        ("inst_executed", "nvprof", "cuda"),
        ("Wavefronts", "gpa", "unknown"),
    ],
)
def test_reader_recognises_counters_and_profiler_by_name(tmp_path, counter, tool, kind):
    (item,) = read_csv(tmp_path, f"{HEAD},my__block,{counter},other_counter", "k,3,64,32,7,1,2")
    assert join_parameters(item.program.trace) == {"my__block": 7}
    found = item.launches[0].counter_set
    assert [name for name, _ in found.counters] == [counter, "other_counter"]
    assert (found.tool, item.program.target.kind) == (tool, kind)


def test_reader_takes_roles_of_columns_from_metadata_file(tmp_path):
    roles = {"cc": 7.5, "tp": ["A", "inst_executed"], "pc": ["B"]}
    for name in ("a.metadata.json", "a_DT.sav.metadata.json"):
        beside = tmp_path / name
        beside.write_text(json.dumps(roles))
        (item,) = read_csv(tmp_path, f"{HEAD},A,inst_executed,B", "k,3,64,32,1,2,3")
        assert join_parameters(item.program.trace) == {"A": 1, "inst_executed": 2}
        found = item.launches[0].counter_set
        assert (found.counters, found.compute_capability) == ((("B", ""),), "7.5")
        assert [file.path.name for file in find_logs([tmp_path])] == ["a.csv"]
        (remark,) = read(beside)
        assert isinstance(remark, Remark)
        beside.unlink()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"tp": ["A"', "a.metadata.json beside it: not JSON"),
        ('{"tp": 5}', "a.metadata.json beside it has no list 'tp'"),
        ("[]", "has no list 'tp'"),
    ],
)
def test_reader_rejects_damaged_metadata_file(tmp_path, text, reason):
    (tmp_path / "a.metadata.json").write_text(text)
    with pytest.raises(FormatError) as caught:
        read_csv(tmp_path, f"{HEAD},A", "k,3,64,32,1")
    assert reason in str(caught.value)


def test_reader_accepts_rows_and_tables_without_counters_and_compiler_cells(tmp_path):
    rows = ("k,3,64,32,1,5,nan,1024,0,0,0,12", "k,3,64,32,1,1024,0,0,0,12")
    counted, plain = read_csv(tmp_path, f"{HEAD},A,{COUNTERS},{AFTER}", *rows)
    assert counted.program.digest == plain.program.digest
    assert counted.digest != plain.digest
    assert counted.launches[0].values == (5.0, pytest.approx(math.nan, nan_ok=True))
    (launch,) = plain.launches
    assert (launch.registers, launch.values, launch.counter_set) == (12, (), None)
    (item,) = read_csv(tmp_path, f"{HEAD},A,B", "k,3,64,32,1,x")
    (launch,) = item.launches
    assert (launch.registers, launch.static_shared, launch.counter_set) == (None, None, None)
    assert join_parameters(item.program.trace) == {"A": 1, "B": "x"}
    assert item.program.target.attributes == {"kind": "unknown"}


def test_composite_kernels_have_one_launch_per_local_size(tmp_path):
    sizes = "Global size 0,Local size 0,Global size 1,Local size 1"
    head = HEAD.replace("Global size,Local size", sizes)
    (item,) = read_csv(tmp_path, f"{head},BLOCK_SIZE_X", "k,3,64,32,256,128,32")
    told = [(one.number, one.kernel, one.threads, one.block) for one in item.launches]
    assert told == [(0, "k 0", 32, None), (1, "k 1", 128, None)]
    assert orjson.loads(item.extra)["Global size"] == [64, 256]


def test_reader_reads_failed_results_below_second_header(tmp_path):
    lines = (
        f"{HEAD},A",
        "k,300,64,32,1",
        "",
        "Kernel name,Error message,Global size,Local size,A",
        "k,Program build failed,64,32,2",
        "k,Results differ: validation failed,64,32,3",
        "k,CUDA_ERROR_INVALID_VALUE,64,32,4",
    )
    ok, *failed = read_csv(tmp_path, *lines)
    assert ok.run_secs == (300e-6,)
    kinds = [item.failure.kind for item in failed]
    assert kinds == [FailureKind.COMPILE_ERROR, FailureKind.WRONG_RESULT, FailureKind.RUNTIME_ERROR]
    assert all((item.status, item.run_secs) == (Status.FAILED, None) for item in failed)
    assert failed[2].failure.message == "CUDA_ERROR_INVALID_VALUE"
    assert join_parameters(failed[2].program.trace) == {"A": 4}


def test_options_name_missing_kernel_and_device_of_table_with_semicolons(tmp_path):
    head = f"{HEAD},A".replace(",", ";")
    (item,) = read_csv(tmp_path, head, ";3;64;32;5", kernel="mine", device="RTX")
    assert item.program.workload.name == "mine"
    assert item.program.target.attributes == {"kind": "unknown", "model": "RTX"}
    assert join_parameters(item.program.trace) == {"A": 5}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("k,3,64,32", "a row of 4 cells does not match the header"),
        ("k,3,64,32,1,2,3,4", "a row of 8 cells"),
        ("k", "a row of 1 cell"),
        ("k,n/a,64,32,1,5", "the duration is 'n/a'; expected a number"),
        ("k,0,64,32,1,5", "a duration of '0'; it was not measured"),
        *((f"k,{text},64,32,1,5", f"a duration of '{text}'") for text in ("-1", "nan", "inf")),
        ('k,"1.234,5",64,32,1,5', "the duration is '1.234,5'"),
        ("k,3,64,0,1,5", "a block of [0] threads"),
        ("k,3,64,x,1,5", "Local size is 'x'; expected a whole number"),
        ("k,3,6.4,32,1,5", "Global size is '6.4'"),
        ("k,3,64,32,1,n/a", "inst_executed is 'n/a'; expected a number"),
        ("k,3,64,32,1,inf", "counter 'inst_executed' is inf"),
        (f"k,3,64,{limits.MAX_BLOCK_THREADS + 1},1,5", "a block of [65537] threads"),
        (b"k,3,64,32,\xff,5", "can't decode"),
    ],
)
def test_bad_rows_are_quarantined(tmp_path, row, reason):
    row = encode(row)
    path = tmp_path / "a.csv"
    # With a byte order mark and line ends of Windows.
    head = f"\ufeff{HEAD},A,inst_executed".encode()
    path.write_bytes(b"\r\n".join((head, row, b"k,3,64,32,1,5", b"")))
    bad, good = read(path)
    assert isinstance(bad, Quarantined)
    assert reason in bad.reason
    assert (bad.line, bad.data) == (2, row)
    assert good.launches[0].values == (5.0,)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([f"{HEAD},A,A"], "a column occurs twice"),
        ([f"{HEAD}," + ",".join(f"m__{n}.sum" for n in range(5000))], "more than 4096 counters"),
        ([f"{HEAD},{'m' * 300}__x.sum"], "has over 256 characters"),
        (["conv,77.5,4096,64", HEAD], "a row before the header"),
    ],
)
def test_bad_headers_are_refused(tmp_path, lines, reason):
    path = write(tmp_path / "a.csv", *lines, "k,3")
    with pytest.raises(FormatError) as caught:
        list(KTTCSVFormat().read_file(LogFile(path, path.name)))
    assert reason in str(caught.value)


@needs_gpu_logs
def test_import_stores_all_rows_of_real_file_once(memory):
    names = ("2080-vectorAdd_output.csv", "1070_profile_counters.pc.txt")
    file, listing = find_logs([GPU / "ktt" / name for name in names])
    for new in (4, 0):
        report = import_log(memory, file, source=file.name)
        assert (report.total.read, report.total.new, report.total.failed) == (4, new, 0)
        assert (report.refused, report.quarantined) == (None, 0)
    items = read(file.path)
    launches = [item.launches[0] for item in items]
    assert [one.threads for one in launches] == [32, 64, 128, 256]
    parameters = [join_parameters(item.program.trace) for item in items]
    assert parameters == [{"multiply_block_size": one.threads} for one in launches]
    assert {(len(one.values), one.registers) for one in launches} == {(33, 12)}
    sets = {(one.counter_set.tool, one.counter_set.compute_capability) for one in launches}
    assert sets == {("ncu", "7.5")}
    assert isinstance(read(listing.path)[0], Remark)
    names = [file.path.name for file in find_logs([GPU / "ktt"])]
    assert not [name for name in names if name.endswith("metadata.json")]

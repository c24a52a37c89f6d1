import math

import profiles
import pytest
from gpu_logs import counters_of, problem, read_kinds
from profiles import detail, ncu, nsys, nsys_launch, raw

from tunedb.errors import FormatError
from tunedb.formats.base import formats
from tunedb.formats.find import find_logs
from tunedb.formats.gpu.ncu import parse_report
from tunedb.formats.gpu.profiler_tables import rows_of
from tunedb.formats.importer import import_log
from tunedb.records import Status

OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
TIME = "gpu__time_duration.sum"


def read(tmp_path, text, **said):
    path = tmp_path / "profile.csv"
    path.write_text(text)
    assert formats()["ncu"].matches_file(text.encode()[:4096], path)
    return read_kinds(path, **said)


def read_one(tmp_path, text, **said):
    """Return the one record of a file without bad rows."""
    (record,), _, bad = read(tmp_path, text, **said)
    assert not bad
    return record


def units_of(record):
    return dict(record.launches[0].counter_set.counters)


def test_reader_converts_launch_to_unmeasured_record(tmp_path):
    text = ncu(detail(OCCUPANCY, "54.06", "%"), detail(TIME, "4.48", "usecond"))
    record = read_one(tmp_path, text, device="NVIDIA A100")
    assert (record.status, record.run_secs) == (Status.UNMEASURED, None)
    (launch,) = record.launches
    assert launch.seconds is None
    assert (launch.threads, launch.block, launch.grid) == (256, (256, 1, 1), (128, 1, 1))
    assert launch.counter_set.compute_capability == "8.6"
    assert counters_of(record) == pytest.approx({OCCUPANCY: 54.06, TIME: 4.48e-6})
    assert units_of(record) == {OCCUPANCY: "%", TIME: "second"}
    assert record.program.target.label == "cuda NVIDIA A100"
    assert problem(record) == {"application": "app"}


def test_reader_returns_nan_for_unmeasured_counters(tmp_path):
    texts = {"a__x.sum": "n/a", "b__x.sum": "", "c__x.sum": "0", "d__x.sum": "(!) n/a"}
    record = read_one(tmp_path, ncu(*(detail(name, text) for name, text in texts.items())))
    expected = dict.fromkeys(texts, math.nan) | {"c__x.sum": 0.0}
    assert counters_of(record) == pytest.approx(expected, nan_ok=True)


def test_reader_finds_columns_by_name_among_nvtx_columns(tmp_path):
    header = profiles.DETAILS.replace(
        '"Kernel Name",',
        '"thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg",'
        '"Id:Domain:Start/Stop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg","Kernel Name",',
    )
    row = detail(OCCUPANCY, "12.5", "%").replace('"127.0.0.1",', '"127.0.0.1","a,b","",')
    assert counters_of(read_one(tmp_path, ncu(row, header=header))) == {OCCUPANCY: 12.5}


def test_reader_skips_rule_rows_and_accepts_rows_without_rule_cells(tmp_path):
    header = profiles.DETAILS + ',"Rule Name","Rule Type","Rule Description"'
    rule = detail("", "", section="Occupancy") + ',"Occ","WRN","1.234 is 27.595.520, roughly"'
    whole = detail("x__y.sum", "7.25") + ',"","",""'
    record = read_one(tmp_path, ncu(rule, whole, detail(OCCUPANCY, "9.5"), header=header))
    assert counters_of(record) == {"x__y.sum": 7.25, OCCUPANCY: 9.5}


def test_reader_prefixes_labels_with_section_and_separates_launch_statistics(tmp_path):
    speed, memory = "GPU Speed Of Light Throughput", "Memory Workload Analysis"
    rows = [
        (speed, "Memory Throughput", "61.20", "%"),
        (memory, "Memory Throughput", "310.55", "Gbyte/second"),
        ("Launch Statistics", "Registers Per Thread", "40", "register/thread"),
        ("Launch Statistics", "Static Shared Memory Per Block", "8.19", "Kbyte/block"),
        ("Launch Statistics", "Function Cache Configuration", "CachePreferNone"),
    ]
    record = read_one(tmp_path, ncu(*(detail(*row, section=section) for section, *row in rows)))
    assert counters_of(record) == pytest.approx(
        {f"{speed}: Memory Throughput": 61.2, f"{memory}: Memory Throughput": 310.55e9}
    )
    assert units_of(record)[f"{memory}: Memory Throughput"] == "byte/second"
    assert (record.launches[0].registers, record.launches[0].static_shared) == (40, 8190)


def test_reader_takes_block_size_of_old_files_from_launch_statistics_alone(tmp_path):
    """An old ncu wrote no columns of block and grid."""
    header = profiles.DETAILS.replace('"Block Size","Grid Size","Device","CC",', "")

    def old_ncu(*rows):
        extents = '"(256, 1, 1)","(128, 1, 1)","0","8.6",'
        return ncu(*(row.replace(extents, "") for row in rows), header=header)

    said = {"Block Size": "192", "Grid Size": "4,096", "Waves Per SM": "1.25"}
    rows = [detail(name, value, section="Launch Statistics") for name, value in said.items()]
    record = read_one(tmp_path, old_ncu(*rows))
    assert (record.launches[0].threads, record.launches[0].block) == (192, None)
    records, _, (bad,) = read(tmp_path, old_ncu(detail(OCCUPANCY, "9.5")))
    assert not records
    assert "no block size" in bad.reason


def test_reader_reads_raw_page_with_row_of_units(tmp_path):
    columns = [
        *("gpu__time_duration.sum", "launch__registers_per_thread"),
        *("launch__shared_mem_per_block_dynamic", "dram__bytes.sum", "device__attribute_warp_size"),
        "device__attribute_display_name",
    ]
    units = ["usecond", "register/thread", "Kbyte/block", "Mbyte", "", ""]
    text = raw(
        columns,
        units,
        (64, 512, "3.52", "16", "1.02", "12.50", "32", "NVIDIA H200"),
        (128, 256, "2.88", "16", "2.05", "12.50", "32", "NVIDIA H200"),
    )
    records, _, bad = read(tmp_path, text)
    assert not bad
    assert [record.launches[0].threads for record in records] == [64, 128]
    assert counters_of(records[0]) == pytest.approx({TIME: 3.52e-6, "dram__bytes.sum": 12.5e6})
    assert records[0].launches[0].dynamic_shared == 1020
    assert records[0].program.target.label == "cuda NVIDIA H200"
    # As many threads in other blocks: one size, so one slice.
    assert records[0].program.workload.digest == records[1].program.workload.digest
    assert records[0].program.workload.name == "vecAdd"


@pytest.mark.parametrize(
    "units", [["usecond", "Kbyte", "Gbyte/second"], ["us", "KB", "GB/s"]], ids=["long", "short"]
)
def test_reader_converts_long_and_short_unit_names_alike(tmp_path, units):
    text = raw(["a__t.sum", "b__b.sum", "c__r.sum"], units, (64, 8, *["1.25"] * 3))
    record = read_one(tmp_path, text)
    assert record.launches[0].values == pytest.approx((1.25e-6, 1250.0, 1.25e9))
    assert list(units_of(record).values()) == ["second", "byte", "byte/second"]


def test_reader_takes_averages_from_summary_page(tmp_path):
    header = (
        '"Process ID","Kernel Name","Invocations","Section Name","Metric Name","Metric Unit",'
        '"Minimum","Maximum","Average"'
    )
    rows = [
        f'"9","k(int)","12","Launch Statistics","{name}","","1","9","{value}"'
        for name, value in (("Block Size", "128.00"), ("Waves Per SM", "0.75"))
    ]
    record = read_one(tmp_path, "\n".join((header, *rows)))
    assert record.launches[0].threads == 128
    assert counters_of(record) == {"Launch Statistics: Waves Per SM": 0.75}


@pytest.mark.parametrize(
    "value",
    [
        *("27.595.520", "12,5", "1.234,56", "0,75", "0,123", "1234,567", "27 595 520", "12,3456"),
        "1'024'000",
    ],
)
def test_import_rejects_numbers_of_other_locales(tmp_path, memory, value):
    (tmp_path / "p.csv").write_text(ncu(detail("a__b.sum", value), detail("c__d.sum", "5.25")))
    (file,) = find_logs([tmp_path])
    report = import_log(memory, file, source="x")
    for text in ("another locale", "LC_ALL=C"):
        assert text in report.refused
    assert "\n" not in report.refused
    assert report.total.read == 0


@pytest.mark.parametrize("value", ["117.344", "1,024"])
def test_reader_rejects_ambiguous_number_unless_others_show_the_locale(tmp_path, value):
    with pytest.raises(FormatError, match="is ambiguous"):
        read(tmp_path, ncu(detail("a__b.sum", value), detail("c__d.sum", "12")))
    record = read_one(tmp_path, ncu(detail("a__b.sum", value), detail("c__d.sum", "12.5")))
    assert counters_of(record)["a__b.sum"] == float(value.replace(",", ""))


def test_launches_of_equal_grid_size_share_one_workload(tmp_path):
    rows = [
        detail(OCCUPANCY, f"{number}.5", number=number, grid=f"({grid}, 1, 1)")
        for number, grid in enumerate((128, 64, 128))
    ]
    # Another process has numbers of its own.
    records, _, _ = read(tmp_path, ncu(*rows, rows[0].replace('"4711"', '"4712"')))
    assert [problem(record)["launch"] for record in records] == [[1, 2], [2, 2], [1, 2], [1, 2]]
    assert [counters_of(record)[OCCUPANCY] for record in records] == [0.5, 1.5, 2.5, 0.5]


def test_reader_takes_run_times_from_trace(tmp_path):
    (tmp_path / "trace.txt").write_text(nsys(nsys_launch(), nsys_launch(time=4880)))
    text = raw([OCCUPANCY], ["%"], (256, 128, "40.50"), (256, 128, "41.50"))
    (record,), remarks, _ = read(tmp_path, text, trace=tmp_path / "trace.txt")
    assert not remarks
    assert record.status is Status.OK
    assert record.run_secs == pytest.approx((5.12e-6, 4.88e-6))
    assert counters_of(record) == {OCCUPANCY: 41.0}
    assert record.program.target.label == "cuda NVIDIA H200"


def test_launches_that_the_trace_lacks_stay_unmeasured(tmp_path):
    (tmp_path / "trace.txt").write_text(nsys(nsys_launch(block=64)))
    text = raw([OCCUPANCY], ["%"], (256, 128, "40.50"))
    (record,), (remark,), _ = read(tmp_path, text, trace=tmp_path / "trace.txt")
    assert record.status is Status.UNMEASURED
    assert remark.text.startswith("1 launches without a time")


def test_reader_remarks_on_empty_profile_and_rejects_file_without_table(tmp_path):
    _, (remark,), _ = read(tmp_path, ncu())
    assert "profiled nothing" in remark.text
    with pytest.raises(FormatError, match="has no table"):
        read(tmp_path, "==PROF== Connected to process 1\n==ERROR== No kernels were profiled.\n")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (detail("a__b.sum", "1.2.3.4"), "not a number"),
        (detail("a__b.sum", "1", block="256"), "not a block or grid"),
        (detail("a__b.sum", "1", kernel=""), "without a name"),
        (detail("a__b.sum", "1", number="x"), "number of its launch"),
        (detail("a__b.sum", "1") + ',"more","cells"', "cells under a header"),
        (detail("a" * 300 + "__b", "1"), "too long"),
    ],
)
def test_reader_quarantines_damaged_rows(tmp_path, row, reason):
    records, _, (bad,) = read(tmp_path, ncu(detail("z__z.sum", "1.5", number=7), row))
    counted = [record for record in records if record.launches[0].counter_set]
    assert [counters_of(record) for record in counted] == [{"z__z.sum": 1.5}]
    assert reason in bad.reason
    assert bad.line == 8


def test_reader_quarantines_excess_counters_and_rejects_excess_launches(tmp_path, monkeypatch):
    monkeypatch.setattr("tunedb.limits.MAX_COUNTERS", 2)
    rows = [detail(f"a__{n}.sum", "1.5") for n in range(3)]
    _, _, (bad,) = read(tmp_path, ncu(*rows))
    assert "more than 2 counters" in bad.reason
    monkeypatch.setattr("tunedb.limits.MAX_PROFILED_KERNELS", 2)
    with pytest.raises(FormatError, match="too many launches"):
        parse_report(rows_of(ncu(*(detail("a__b.sum", "1", number=n) for n in range(4)))))

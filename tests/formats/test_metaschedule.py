import base64
import copy
import gzip
import json
import struct

import orjson
import pytest
import workdirs
from effort import examples
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tunedb import limits
from tunedb.errors import FormatError
from tunedb.formats import metaschedule
from tunedb.formats.base import LogFile, Remark
from tunedb.formats.export import export_metaschedule
from tunedb.formats.find import find_logs
from tunedb.formats.importer import import_log
from tunedb.formats.metaschedule import (
    RECORDS,
    WORKLOADS,
    MetaScheduleFormat,
    parse_workload,
    record_fields,
    workload_line,
)
from tunedb.formats.reading import read_log
from tunedb.identity import canonical_numbers
from tunedb.records import Alias, Measurement, Quarantined, Source, Status, Workload, WorkloadFormat
from tunedb.results import Record
from tunedb.storage.store import Store
from tunedb.system.compression import compress

FORMAT = MetaScheduleFormat()
quick = settings(
    max_examples=examples(80), suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def read(path):
    """Return what a file holds, in its order."""
    return [found.item for found in read_log(LogFile(path, str(path))) if found.item is not None]


def items(path):
    """Return the records and the quarantined lines of a work directory or file."""
    path = path / RECORDS if path.is_dir() else path
    return [item for item in read(path) if not isinstance(item, Workload | Remark)]


def read_all(path):
    """Return the lines of a file as JSON with canonical numbers."""
    return [canonical_numbers(orjson.loads(line)) for line in path.read_bytes().splitlines()]


def import_all(store, path, source="own", **options):
    return [import_log(store, log, source=source, **options) for log in find_logs([path])]


def fields_of(measurement):
    return record_fields(Record(1, 1, 1, measurement, Source("own"), None))


@pytest.mark.parametrize(
    ("record", "workload"),
    [
        ("database_tuning_record.json", "database_workload.json"),
        ("conv_tuning_record_2.json", "conv_workload_2.json"),
        ("task_candidates.json", "task_workload.json"),
        ("database_tuning_record.json.gz", "database_workload.json.gz"),
        ("database_tuning_record.json.xz", "database_workload.json"),
        ("database_tuning_record.json", "database_workload.json.zst"),
        ("candidates_tuning_record.json", "candidates_workload.json"),
        ("database_workload.json", None),
        ("database_tuning_record.sqlite", None),
    ],
)
def test_companions_finds_workload_file_by_name(record, workload, tmp_path):
    for name in (record, "x_workload.json"):
        (tmp_path / name).touch()
    assert FORMAT.companions(tmp_path / record) == []
    if workload is not None:
        (tmp_path / workload).touch()
        assert FORMAT.companions(tmp_path / record) == [tmp_path / workload]


def test_companions_prefers_workload_file_with_same_compression(tmp_path):
    for name in (WORKLOADS, f"{WORKLOADS}.gz"):
        (tmp_path / name).touch()
    assert FORMAT.companions(tmp_path / f"{RECORDS}.gz") == [tmp_path / f"{WORKLOADS}.gz"]


def test_reader_converts_record_to_measurement(tmp_path):
    (found,) = items(workdirs.write(tmp_path, [workdirs.record([1e-3, 3e-3])]))
    assert (found.run_secs, found.status) == ((1e-3, 3e-3), Status.OK)
    workload = found.program.workload
    assert workload.name == "matmul"
    assert (workload.format, workload.tvm_version) == ("tvm-graph", "0.27.0")
    assert found.program.target.attributes == workdirs.LLVM
    assert json.loads(found.args_info) == workdirs.ARGS
    assert (found.measured_at, found.occurrence, found.session) == (0, 0, None)
    assert (found.context, found.extra, found.all_cost, found.failure) == (None, None, None, None)


def test_reader_keeps_old_encodings_of_modules_and_traces(tmp_path):
    """A module as a list of nodes, and instructions with fewer attributes."""
    line = [0, [workdirs.old_trace(), [2e-3], workdirs.CUDA, None]]
    (found,) = items(workdirs.write(tmp_path, [line], [workdirs.node_list()]))
    workload = found.program.workload
    assert (workload.format, workload.name) == ("tvm-nodes", "matmul")
    assert workload.tvm_version == "0.13.dev0"
    assert b"GetBlock" in found.program.trace.sketch
    assert fields_of(found) == line[1]


@pytest.mark.parametrize(
    ("times", "status"),
    [
        *((times, Status.FAILED) for times in (None, [], [1e10], [10000000000, 10000000000])),
        ([1e10, 1.0], Status.OK),  # as TVM sees it
    ],
)
def test_reader_derives_status_from_run_times(times, status, tmp_path):
    (found,) = items(workdirs.write(tmp_path, [workdirs.record(times)]))
    assert found.status is status
    assert found.run_secs == (None if times is None else tuple(times))
    assert fields_of(found)[1] == times


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[1.0]", "[1]"),
        (", 0]", ", 0.0]"),
        ("[1.0]", "[1.0000000000000000208]"),  # C++ writes 20 digits,
        (", ", ","),  # and Python wrote spaces until mid-2022
    ],
)
def test_reader_returns_equal_records_for_each_spelling_of_numbers(old, new, tmp_path):
    line = json.dumps(workdirs.record([1.0]))
    first, second = items(workdirs.write(tmp_path, [line, line.replace(old, new)]))
    assert line.replace(old, new) != line
    assert first == second


def parsed(graph):
    return parse_workload(json.loads(workdirs.workload_line(graph)))


def test_workload_digest_does_not_depend_on_tvm_version():
    versions = ("0.26.0", "0.9.dev0", None)
    for graph, key in ((workdirs.graph(), "metadata"), (workdirs.node_list(), "attrs")):
        metadata = [{"tvm_version": version} if version else {} for version in versions]
        found = [parsed({**graph, key: value}) for value in metadata]
        assert len({workload.digest for workload in found}) == 1
        assert [workload.tvm_version for workload in found] == list(versions)
    assert b"attrs" in found[0].body  # of nodes
    assert "attrs" not in json.loads(found[0].body)
    other = parsed(workdirs.node_list(author="me"))
    assert json.loads(other.body)["attrs"] == {"author": "me"}
    assert other.digest != found[0].digest


@pytest.mark.parametrize(
    "graph",
    [
        workdirs.node_list("root"),
        workdirs.node_list(5),
        {"root": 0, "nodes": [{"type_key": "tir.Block"}, None, 5, {"type_key": []}]},
        *(
            {"root": 0, "nodes": [{"type_key": "tir.Block", "attrs": attrs}]}
            for attrs in (5, *({"name_hint": name} for name in ("9", 0, "x")))
        ),
        {"root_index": 0, "nodes": []},
        {"root_index": 0, "nodes": [None, 5, "x", {"type": "x.SBlock"}]},
        {"root_index": 0, "nodes": [{"type": ["SBlock"], "data": [1]}], "metadata": 7},
        *(
            {"root_index": 0, "nodes": [{"type": "x.SBlock", "data": {"name_hint": name}}]}
            for name in (10**9, True, 0)
        ),
    ],
)
def test_module_without_named_block_gets_the_name_main(graph):
    assert parsed(graph).name == "main"


def test_module_takes_the_name_of_its_reduction_block():
    graph = workdirs.node_list()
    strings = [{"type_key": "runtime.String", "repr_str": name} for name in ("pad", "conv", "relu")]
    blocks = [
        {"type_key": "tir.Block", "attrs": {"name_hint": str(4 + i), "init": init}}
        for i, init in enumerate(("0", "2", "0"))
    ]
    graph["nodes"] += [*strings, *blocks]
    assert parsed(graph).name == "conv"
    graph["nodes"][-2]["attrs"]["init"] = "0"
    assert parsed(graph).name == "relu"


graphs_of_both_kinds = st.builds(
    lambda graph, version, value: {**graph, "metadata": {**version, **value}},
    st.sampled_from([workdirs.graph(), workdirs.graph("x", 2**62)]),
    st.sampled_from([{"tvm_version": "0.27.0"}, {"tvm_version": "0.24.dev0"}]),
    st.sampled_from([{}, {"note": [1, {"a": None}]}]),
) | st.builds(workdirs.node_list, st.text(max_size=5), st.sampled_from(["0", "2"]))


@given(graphs_of_both_kinds)
def test_workload_survives_round_trip(graph):
    try:
        workload = parsed(graph)
    except FormatError:  # a name that is no Unicode
        return
    line = orjson.loads(workload_line(workload))
    assert orjson.loads(base64.b64decode(line[1])[8:]) == graph
    assert parse_workload(line) == workload


@pytest.mark.parametrize(
    "workload",
    [
        Workload("ansor-key", b'["x"]'),
        Workload("tvm-graph", b"{"),
        Workload("tvm-graph", b"[]", tvm_version="0.27.0"),
        Workload("tvm-nodes", b'{"attrs":7}', tvm_version="0.13"),
    ],
)
def test_workload_line_rejects_damaged_modules(workload):
    with pytest.raises(FormatError, match="not an IRModule, or damaged"):
        workload_line(workload)


def test_reader_identifies_missing_workloads_by_index_and_arguments(tmp_path):
    lines = [
        workdirs.record(),
        workdirs.record([5.0], tile=(2**63 - 1, -(2**63))),
        workdirs.record(workload=7),
        workdirs.record(args=None),
        [0, [workdirs.old_trace(), [1.0], None, []]],
    ]
    folder = workdirs.write(tmp_path, lines)
    (folder / WORKLOADS).unlink()
    found = items(folder)
    workloads = [measurement.program.workload for measurement in found]
    assert {workload.format for workload in workloads} == {WorkloadFormat.ARGUMENTS}
    assert workloads[0].digest == workloads[1].digest
    assert len({workload.digest for workload in workloads}) == 4
    assert workloads[0].body == b'[0,[["TENSOR","float32",[128,64]],["TENSOR","float32",[64]]]]'
    assert workloads[3].body == b"[0,null]"
    assert {workload.name for workload in workloads} == {"matmul"}
    assert [fields_of(m) for m in found] == [line[1] for line in lines]


@pytest.mark.parametrize("index", ["-1", "1.0", "true", '"0"', "null", str(2**63), str(2**70)])
def test_reader_quarantines_record_with_invalid_workload_index(index, tmp_path):
    lines = [json.dumps(workdirs.record()).replace("[0,", f"[{index},", 1), workdirs.record()]
    folder = workdirs.write(tmp_path, lines)
    for _ in range(2):
        bad, good = items(folder)
        assert isinstance(bad, Quarantined)
        assert isinstance(good, Measurement)
        (folder / WORKLOADS).unlink(missing_ok=True)


def test_reader_reads_workloads_and_records_of_several_directories_from_one_stream(tmp_path):
    """``cat workload.json record.json``; workloads in the stream precede a workload file."""
    workdirs.write(tmp_path, [], [workdirs.graph("beside")])
    graphs = [workdirs.workload_line(workdirs.graph(name)).encode() for name in "xyz"]
    first, second = (workdirs.encode(workdirs.record(workload=number)) for number in (0, 1))
    for name in ("stream.json", RECORDS):
        lines = (*graphs[:2], second, first, graphs[2], first)
        found = read(workdirs.write_lines(tmp_path / name, *lines))
        names = [item.program.workload.name for item in found if isinstance(item, Measurement)]
        assert names == ["y", "x", "z"]


def damaged_workloads():
    good = workdirs.workload_line(workdirs.graph())
    number, body = json.loads(good)
    raw = base64.b64decode(body)

    def encoded(text):
        return json.dumps([number, base64.b64encode(struct.pack("<q", len(text)) + text).decode()])

    yield "[]", "a workload must be"
    yield "{", "not JSON"
    yield json.dumps([number, 5]), "a workload must be"
    yield json.dumps(["x", body]), "a workload must be"
    yield json.dumps([number, body[:-1]]), "base64"
    yield json.dumps([number, "!" + body]), "base64"
    yield good.replace('"0", "', '"0", "é'), "base64"
    yield json.dumps([number, base64.b64encode(raw[:4]).decode()]), "length"
    yield json.dumps([number, base64.b64encode(raw[:-1]).decode()]), "length"
    yield encoded(b"\xff"), "not JSON"
    yield encoded(b"[]"), "not a graph"
    yield encoded(b"{}"), "root_index"
    yield encoded(b'{"root_index": 0, "nodes": 5}'), "root_index"
    yield encoded(b'{"root_index": true, "nodes": []}'), "root_index"
    yield encoded(b'{"root": 1, "attrs": {"tvm_version": "0.16.0"}}'), "root_index"
    yield encoded(b'{"root": 1, "nodes": [%s]}' % (b"9" * 25)), "64 bits"


@pytest.mark.parametrize(("line", "reason"), list(damaged_workloads()))
def test_reader_quarantines_only_bad_workload_and_its_records(line, reason, tmp_path):
    records = [workdirs.record(workload=number) for number in (0, 1)]
    folder = workdirs.write(tmp_path, records, [line, workdirs.graph("other")])
    bad, orphan, found = items(folder)
    assert (bad.file, bad.line, bad.data) == (str(folder / WORKLOADS), 1, line.encode())
    assert reason in bad.reason
    assert "its workload (line 1) is quarantined" in orphan.reason
    assert found.program.workload.name == "other"


def test_reader_counts_blank_lines_of_workload_file_and_quarantines_its_truncated_end(tmp_path):
    """Blank lines crash TVM; tunedb only counts them."""
    folder = workdirs.write(tmp_path, [workdirs.record(workload=n) for n in (2, 1, 4)])
    line = workdirs.workload_line(workdirs.graph("other"))
    (folder / WORKLOADS).write_text(f"{line}\n\n{line}\n\n{line[:-5]}")
    truncated, found, *orphans = items(folder)
    assert truncated.line == 5
    assert "(the line is truncated: its writer was killed)" in truncated.reason
    assert found.program.workload.name == "other"
    for orphan, number in zip(orphans, (2, 5), strict=True):
        assert f"line {number}" in orphan.reason


def test_reader_reads_workloads_before_damage_of_compressed_file(tmp_path):
    folder = workdirs.write(tmp_path, [workdirs.record()])
    data = gzip.compress((folder / WORKLOADS).read_bytes() * 500)
    (folder / WORKLOADS).unlink()
    (folder / f"{WORKLOADS}.gz").write_bytes(data[:-20])
    bad, good = items(folder)
    assert (bad.file, bad.data) == (str(folder / f"{WORKLOADS}.gz"), b"")
    assert isinstance(good, Measurement)


def test_reader_truncates_and_quarantines_too_long_workload_line(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "MAX_LINE_BYTES", 2_000)
    monkeypatch.setattr(limits, "MAX_QUARANTINE_BYTES", 100)
    bad, *_ = items(workdirs.write(tmp_path, [workdirs.record()], ["x" * 9_999]))
    assert (bad.line, bad.data, bad.reason) == (1, b"x" * 100, "longer than 2000 bytes")


def test_reader_quarantines_workloads_over_the_memory_limit(tmp_path, monkeypatch):
    size = len(compress(parsed(workdirs.graph()).body)) + metaschedule._ENTRY_BYTES
    monkeypatch.setattr(limits, "MAX_WORKLOADS_BYTES", 2 * size - 1)
    lines = [workdirs.record(workload=index) for index in range(3)]
    folder = workdirs.write(tmp_path, lines, [workdirs.graph()] * 3)
    bad, *good, orphan = items(folder)
    assert "too many workloads to hold in memory" in bad.reason
    assert len(good) == 2
    assert "its workload 2 is not in the workload file" in orphan.reason


LINE = workdirs.encode(workdirs.record())
WORKLOAD = workdirs.workload_line(workdirs.graph()).encode()
NODES = workdirs.workload_line(workdirs.node_list()).encode()


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b"[0.001, 0.0011]", b"[1.7e308, 1.7e308]", "mean that is not finite"),
        (b"[0.001, 0.0011]", b"[-1.0]", "not a time"),
        (b"[0.001, 0.0011]", b"[NaN]", "not JSON"),
        (b"[0.001, 0.0011]", b"[1e999]", "not JSON: number is infinity"),
        (b"[0.001, 0.0011]", b"[true]", "not a number"),
        (b"[0.001, 0.0011]", b'["0.1"]', "not a number"),
        (b"[0.001, 0.0011]", b"0.001", "list of numbers"),
        (b"[0.001, 0.0011]", b"[9007199254740993]", "not a time"),  # no float64
        (b"[0.001, 0.0011]", b"[123456789012345678901234567890]", "64 bits"),
        (b"[4, 16]", b"[4, 9223372036854775808]", "64 bits"),
        (b"[128, 64]", b"[128, 123456789012345678901]", "64 bits"),
        (b'"num-cores": 2', b'"num-cores": -9223372036854775809', "64 bits"),
        (b'"kind": "llvm"', b'"kind": "ll\\u0000vm"', "NUL"),
        (b'"kind": "llvm"', b'"kind": 5', "a configuration with a kind"),
        (b'{"kind": "llvm"', b'["kind", {"kind": "llvm"', "not JSON"),
        (b'[["TENSOR"', b'["TENSOR", ["TENSOR"', "argument descriptions"),
        (b'"GetLoops"', b'"GetLops"', "unknown instruction 'GetLops'"),
    ],
)
def test_reader_quarantines_only_the_bad_record(old, new, reason, tmp_path):
    assert old in LINE
    line = LINE.replace(old, new)
    found = items(workdirs.write(tmp_path, [line, workdirs.record([7.0])]))
    assert [type(item) for item in found] == [Quarantined, Measurement]
    assert reason in found[0].reason


FILLERS = [
    *(b"null", b"true", b"-1", b"1e999", b"NaN", b"9" * 30, b"1e308,1e308", b"[]", b"{}", b'""'),
    *(b'"v3"', b'"None"', b'"\\ud800"', b'"\\u0000"'),
]


@st.composite
def mutated(draw, line):
    """A line with some of its bytes changed, removed, repeated or added."""
    data = bytearray(line)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        to = min(len(data), at + draw(st.integers(0, 12)))
        repeated = st.just(bytes(data[at:to]) * 3)
        data[at:to] = draw(st.binary(max_size=4) | repeated | st.sampled_from(FILLERS))
    return bytes(data).replace(b"\n", b" ")


def replaced(value, draw_path, new):
    """Return JSON with the value at a path of numbers replaced."""
    value = place = copy.deepcopy(value)
    for step in draw_path:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            break
        key = keys[step % len(keys)]
        if not isinstance(place[key], list | dict) or step % 5 == 0:
            place[key] = new
            break
        place = place[key]
    return value


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def shared():
    """One database for many examples: making one takes longer than they do."""
    with Store(":memory:") as store:
        yield store


def check_import(store, folder):
    """Import and read a log; assert that each of its measurements can be written as a line."""
    (log,) = find_logs([folder])
    report = import_log(store, log, source="own")
    if report.refused is not None:
        return report
    found = items(folder)
    assert report.total.read + report.quarantined == len(found)
    for item in found:
        if isinstance(item, Measurement):
            orjson.dumps(fields_of(item))
    return report


@settings(quick, max_examples=examples(240))
@given(
    mutated(LINE)
    | mutated(workdirs.encode([0, [workdirs.old_trace(), [1.0], None, None]]))
    | st.builds(
        lambda path, value: json.dumps(replaced(workdirs.record(), path, value)),
        st.lists(st.integers(0, 60), max_size=6),
        json_values,
    )
)
def test_import_stores_good_record_after_mutated_one_or_rejects_file(
    shared, tmp_path_factory, line
):
    folder = workdirs.write(tmp_path_factory.mktemp("log"), [line, workdirs.record([7.0])])
    report = check_import(shared, folder)
    # A file that begins like an archive is refused as a whole.
    assert report.total.read >= 1 or report.refused


@quick
@given(st.binary(min_size=1, max_size=200))
@example(b"Profiling counter")  # as a file beside a result of KTT begins
def test_import_reads_quarantines_or_rejects_any_bytes(shared, tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("log")
    for name in (WORKLOADS, RECORDS):
        (folder / name).write_bytes(data)
    check_import(shared, folder)


@pytest.mark.parametrize("depth", [100, 900, 5_000])
def test_import_quarantines_deeply_nested_records_and_graphs(shared, depth, tmp_path):
    deep = b"[" * depth + b"]" * depth
    lines = [
        LINE.replace(b'"tag": ""', b'"tag": ' + deep),
        LINE.replace(b"[128, 64]", deep),
        LINE.replace(b'["b0"], []', deep + b", []"),
        LINE.replace(b"0.0011", deep),
    ]
    assert LINE not in lines
    report = check_import(shared, workdirs.write(tmp_path, [*lines, workdirs.record([7.0])]))
    assert (report.total.read, report.quarantined) == (1, 4)
    text = json.dumps(workdirs.graph()).encode().replace(b'"value": 16', b'"v": ' + deep)
    graphs = [workdirs.workload_line(text)]
    report = check_import(shared, workdirs.write(tmp_path, [workdirs.record()], graphs))
    assert (report.total.read, report.quarantined) == (0, 2)


def test_import_accepts_nul_characters_outside_of_names(shared, tmp_path):
    line = LINE
    for text in (b'"float32"', b'"matmul", "main"', b'"znver4"'):
        assert text in line
        line = line.replace(text, text[:3] + b"\\u0000" + text[3:])
    report = check_import(shared, workdirs.write(tmp_path, [line]))
    assert (report.total.read, report.quarantined) == (1, 0)


numbers = st.integers(0, 3)
records = st.builds(
    workdirs.record,
    st.none() | st.lists(st.floats(1e-9, 1e3) | st.just(1e10), max_size=3),
    workload=st.integers(0, 2),
    target=st.sampled_from([None, workdirs.LLVM, workdirs.CUDA]),
    tile=st.tuples(numbers, numbers),
    args=st.sampled_from([None, [], workdirs.ARGS]),
)
GRAPHS = [workdirs.graph(name) for name in ("x", "y", "z")]


@settings(quick, max_examples=examples(12))
@given(st.lists(records, min_size=1, max_size=8))
def test_import_export_import_loses_nothing(tmp_path_factory, lines):
    folder = tmp_path_factory.mktemp("logs")
    workdirs.write(folder / "in", lines, GRAPHS)
    with Store(":memory:") as first, Store(":memory:") as second:
        import_all(first, folder / "in")
        report = export_metaschedule(first, folder / "out")
        assert report.records == len(lines)
        import_all(second, folder / "out")
        assert workdirs.digests(second) == workdirs.digests(first)
        assert len(workdirs.digests(first)) == len(lines)
    written = read_all(folder / "out" / RECORDS)
    # Workloads are numbered anew; everything else is as it was, in its order.
    assert [line[1] for line in written] == [canonical_numbers(line[1]) for line in lines]


def test_export_writes_equal_workloads_to_separate_directories(memory, tmp_path):
    """TVM's loader takes them for one workload and refuses its second line."""
    lines = [workdirs.record([1.0 + i], workload=i) for i in range(3)]
    import_all(memory, workdirs.write(tmp_path / "log", lines, GRAPHS))
    for id_ in (1, 3):
        memory.workloads.add(memory.workloads.get(id_), [Alias("link", "same")])
    report = export_metaschedule(memory, tmp_path / "out")
    assert report.directories == [str(tmp_path / "out"), str(tmp_path / "out" / "variant-1")]
    assert len(read_all(tmp_path / "out" / WORKLOADS)) == 2
    with Store(":memory:") as copy_:
        import_all(copy_, tmp_path / "out")
        assert workdirs.digests(copy_) == workdirs.digests(memory)


def stream(tmp_path, *lines):
    """Write lines into one file; return its items."""
    return read(workdirs.write_lines(tmp_path / "stream.json", *lines))


def initials(found):
    """Return the initials of the types: workload, measurement, quarantined."""
    return [type(item).__name__[0] for item in found]


def test_reader_quarantines_records_after_a_lost_workload(tmp_path):
    """Each later number would refer to another workload, and nobody would notice."""
    a, b = WORKLOAD, NODES
    rows = [LINE, workdirs.encode(workdirs.record([2.0], workload=1))]
    assert initials(stream(tmp_path, a, b, *rows)) == list("WWMM")
    cut = a[:40]
    found = stream(tmp_path, cut, b, *rows)
    assert initials(found) == list("QWQQ")
    assert "may be missing" in found[-1].reason
    # A record that was cut off is glued to the first workload of the next directory.
    glued = rows[1][:-9] + a
    assert initials(stream(tmp_path, a, b, rows[0], glued, b, *rows)) == list("WWMQWQQ")
    # Junk before the workloads quarantines no record.
    assert initials(stream(tmp_path, b"junk", a, b, rows[0], b"[0, [", rows[1])) == list("QWWMQM")
    # In the middle of workloads its number is known.
    third = workdirs.encode(workdirs.record(workload=2))
    found = stream(tmp_path, a, cut, b, third, rows[1])
    assert initials(found) == list("WQWMQ")
    assert "its workload (line 2) is quarantined" in found[-1].reason


def test_truncated_first_record_ends_the_workloads_of_its_part(tmp_path):
    """The numbers of the next part would count from the workloads of this one."""
    a, b, row = WORKLOAD, NODES, LINE
    for cut in (row[:-9], row[:2]):
        found = stream(tmp_path, a, cut, b, row)
        assert initials(found) == list("WQWM")
        assert found[3].program.workload == found[2]
    # A glued workload is lost, and "[" may have been one.
    for cut in (row[:-9] + a, b"["):
        assert initials(stream(tmp_path, a, cut, b, row)) == list("WQWQ")

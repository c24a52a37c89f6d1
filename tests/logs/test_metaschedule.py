"""Reading and writing MetaSchedule's work directories."""

import base64
import copy
import json
import struct

import orjson
import pytest
import workdirs
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tunedb import limits
from tunedb.errors import FormatError, NotFoundError, StorageError, UsageError
from tunedb.identity import canonical_numbers
from tunedb.logs import base
from tunedb.logs.export import export_metaschedule
from tunedb.logs.importer import find_logs, import_log
from tunedb.logs.metaschedule import RECORDS, WORKLOADS, MetaScheduleFormat, parse_workload
from tunedb.records import (
    Alias,
    Measurement,
    Program,
    Quarantined,
    Source,
    Status,
    Trust,
    Workload,
)
from tunedb.store import Store

FORMAT = MetaScheduleFormat()
quick = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def items(folder):
    return [parsed.item for parsed in FORMAT.read(folder)]


def read_all(path):
    """Return the lines of a file as JSON with canonical numbers."""
    return [canonical_numbers(orjson.loads(line)) for line in path.read_bytes().splitlines()]


def import_all(store, folder, **options):
    return [import_log(store, path, fmt, **options) for path, fmt in find_logs([folder])]


# ---------------------------------------------------------------------- what is recognised


def test_what_looks_like_a_work_directory(tmp_path):
    folder = workdirs.write(tmp_path / "log", [workdirs.record()])
    assert FORMAT.matches(folder)
    assert FORMAT.matches(folder / RECORDS)
    assert not FORMAT.matches(folder / WORKLOADS)
    assert not FORMAT.matches(tmp_path)
    assert not FORMAT.matches(tmp_path / "missing")
    assert FORMAT.files(folder) == FORMAT.files(folder / RECORDS)
    assert base.format_of(folder).name == "metaschedule"
    with pytest.raises(FormatError, match="metaschedule"):
        base.format_of(tmp_path)


def test_positions_end_at_the_sizes(tmp_path):
    folder = workdirs.write(tmp_path, [workdirs.record(), "bad", workdirs.record()])
    positions = [parsed.position for parsed in FORMAT.read(folder)]
    assert positions == sorted(positions)
    assert positions[-1] == sum(path.stat().st_size for path in FORMAT.files(folder))


def test_searching(tmp_path):
    with pytest.raises(NotFoundError):
        list(find_logs([tmp_path / "missing"]))
    with pytest.raises(NotFoundError):
        list(find_logs([tmp_path]))
    for name in ("b", "a/x"):
        workdirs.write(tmp_path / name, [workdirs.record()])
    assert [path for path, _ in find_logs([tmp_path])] == [tmp_path / "a" / "x", tmp_path / "b"]


# ---------------------------------------------------------------------- what is read


def test_a_record(tmp_path):
    (found,) = items(workdirs.write(tmp_path, [workdirs.record([1e-3, 3e-3])]))
    assert found.run_secs == (1e-3, 3e-3)
    assert found.status is Status.OK
    assert found.program.workload.name == "matmul"
    assert found.program.workload.tvm_version == "0.27.0"
    assert found.program.target.attributes == workdirs.LLVM
    assert json.loads(found.args_info) == workdirs.ARGS
    assert (found.measured_at, found.occurrence, found.session) == (0, 0, None)


@pytest.mark.parametrize("times", [None, [], [1e10], [1e10, 1e10]])
def test_failed_records(times, tmp_path):
    (found,) = items(workdirs.write(tmp_path, [workdirs.record(times)]))
    assert found.status is Status.FAILED
    assert found.run_secs == (None if times is None else tuple(times))


def test_equal_lines_are_as_many_measurements(tmp_path):
    line = workdirs.record()
    found = items(workdirs.write(tmp_path, [line, workdirs.record([5.0]), line, line]))
    assert [m.occurrence for m in found] == [0, 0, 1, 2]
    assert len({m.digest for m in found}) == 4
    assert len({m.program.digest for m in found}) == 1


def test_numbers_are_read_as_tvm_writes_them(tmp_path):
    """1 and 1.0 are one number to TVM's writer, so they are one measurement."""
    line = json.dumps(workdirs.record([1.0]))
    for number, text in enumerate(
        (line, line.replace("[1.0]", "[1]"), line.replace(", 0]", ", 0.0]"))
    ):
        workdirs.write(tmp_path / str(number), [text])
    assert len({items(tmp_path / str(number))[0].digest for number in range(3)}) == 1


def test_the_version_is_no_part_of_a_workload():
    lines = []
    for version in ("0.26.0", "0.27.0", None):
        graph = workdirs.graph()
        graph["metadata"] = {"tvm_version": version} if version else {}
        lines.append(parse_workload(workdirs.workload_line(graph).encode()))
    assert len({workload.digest for workload in lines}) == 1
    assert [workload.tvm_version for workload in lines] == ["0.26.0", "0.27.0", None]


def test_one_workload_in_two_files_is_one(memory, tmp_path):
    for name, graphs, index in (
        ("a", [workdirs.graph("x"), workdirs.graph("y")], 1),
        ("b", [workdirs.graph("y")], 0),
    ):
        import_all(
            memory, workdirs.write(tmp_path / name, [workdirs.record(workload=index)], graphs)
        )
    assert [w.name for w in memory.query.workloads()] == ["y"]
    assert memory.query.counts().measurements == 1


def test_a_directory_without_workloads(tmp_path):
    folder = workdirs.write(tmp_path, [workdirs.record()])
    (folder / WORKLOADS).unlink()
    (found,) = items(folder)
    assert "its workload 0" in found.reason


# ---------------------------------------------------------------------- what is not understood


def damaged_workloads():
    good = workdirs.workload_line(workdirs.graph())
    number, body = json.loads(good)
    raw = base64.b64decode(body)

    def encoded(text):
        return json.dumps([number, base64.b64encode(struct.pack("<q", len(text)) + text).decode()])

    yield "[]", "a workload is"
    yield "{", "not JSON"
    yield json.dumps([number, 5]), "a workload is"
    yield json.dumps([number, body[:-1]]), "base64"
    yield json.dumps([number, "!" + body]), "base64"
    yield json.dumps([number, base64.b64encode(raw[:4]).decode()]), "length"
    yield json.dumps([number, base64.b64encode(raw[:-1]).decode()]), "length"
    yield encoded(b"[]"), "no graph"
    yield encoded(b"{}"), "root_index"
    yield encoded(b'{"root_index": 0, "nodes": 5}'), "root_index"
    yield encoded(b'{"root": 1, "attrs": {"tvm_version": "0.16.0"}}'), "0.16.0"


@pytest.mark.parametrize(("line", "reason"), list(damaged_workloads()))
def test_a_bad_workload_costs_only_its_records(line, reason, tmp_path):
    folder = workdirs.write(
        tmp_path,
        [workdirs.record(workload=0), workdirs.record(workload=1)],
        [workdirs.graph(), workdirs.graph()],
    )
    good = workdirs.workload_line(workdirs.graph("other"))
    (folder / WORKLOADS).write_text(f"{line}\n{good}\n")
    bad, orphan, found = items(folder)
    assert (bad.file, bad.line) == (str(folder / WORKLOADS), 1)
    assert reason in bad.reason
    assert "its workload (line 1) was not understood" in orphan.reason
    assert found.program.workload.name == "other"


@pytest.mark.parametrize(
    "graph",
    [
        {"root_index": 0, "nodes": []},
        {"root_index": 0, "nodes": [None, 5, "x", {"type": "x.SBlock"}]},
        {"root_index": 0, "nodes": [{"type": "x.SBlock", "data": {"name_hint": 10**9}}]},
        {"root_index": 0, "nodes": [{"type": "x.SBlock", "data": {"name_hint": True}}]},
        {"root_index": 0, "nodes": [{"type": ["SBlock"], "data": [1]}], "metadata": 7},
        {"root_index": 0, "nodes": [{"type": "x.SBlock", "data": {"name_hint": 0}}]},
    ],
)
def test_strange_graphs_have_a_name(graph):
    assert parse_workload(workdirs.workload_line(graph).encode()).name == "main"


def test_long_lines_are_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "MAX_LINE_BYTES", 2_000)
    monkeypatch.setattr(limits, "MAX_QUARANTINE_BYTES", 100)
    long = b'"' + b"x" * 9_999 + b'"'
    folder = workdirs.write(tmp_path, [workdirs.record(), long, workdirs.record([2.0])])
    first, bad, last = items(folder)
    assert isinstance(first, Measurement)
    assert isinstance(last, Measurement)
    assert (bad.line, len(bad.data)) == (2, 100)
    assert "longer than 2000 bytes" in bad.reason


def test_a_truncated_last_line(tmp_path):
    line = workdirs.encode(workdirs.record())
    folder = workdirs.write(tmp_path, [line, line[:-1]], end="")
    _, bad = items(folder)
    assert bad.line == 2
    assert "cut off" in bad.reason
    assert bad.data == line[:-1]
    # A whole last line without its line break is whole.
    assert len(items(workdirs.write(tmp_path, [line], end=""))) == 1


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n\n", " \n"])
def test_line_ends(end, tmp_path):
    folder = workdirs.write(tmp_path, [])
    line = workdirs.encode(workdirs.record())
    (folder / RECORDS).write_bytes((line + end.encode()) * 3)
    assert [m.occurrence for m in items(folder)] == [0, 1, 2]


def test_files_that_cannot_be_read(tmp_path):
    folder = workdirs.write(tmp_path, [workdirs.record()])
    (folder / WORKLOADS).unlink()
    (folder / WORKLOADS).mkdir()
    (folder / RECORDS).unlink()
    with pytest.raises(StorageError, match="cannot be read"):
        items(folder)


# ---------------------------------------------------------------------- hostile input

LINE = workdirs.encode(workdirs.record())
WORKLOAD = workdirs.workload_line(workdirs.graph()).encode()


def nested(depth):
    """Return JSON text that is nested so deep."""
    return b"[" * depth + b"]" * depth


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
        filler = draw(
            st.one_of(
                st.binary(max_size=4),
                st.just(bytes(data[at:to]) * 3),
                st.sampled_from(FILLERS),
            )
        )
        data[at:to] = filler
    return bytes(data).replace(b"\n", b" ")


def replaced(value, draw_path, new):
    """Return JSON with what a path of numbers leads to replaced."""
    value = copy.deepcopy(value)
    place = value
    for step in draw_path:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            break
        key = keys[step % len(keys)]
        if not isinstance(place[key], list | dict) or step % 5 == 0:
            place[key] = new
            return value
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
    """Read and import a log; only measurements and quarantined lines may come of it."""
    found = items(folder)
    assert all(isinstance(item, Measurement | Quarantined) for item in found)
    report = import_log(store, folder, FORMAT)
    assert report.read + report.quarantined == len(found)
    return report


@quick
@given(mutated(LINE))
def test_mutated_records(shared, tmp_path_factory, line):
    folder = workdirs.write(tmp_path_factory.mktemp("log"), [line, workdirs.record([7.0])])
    assert check_import(shared, folder).read >= 1


@quick
@given(st.lists(st.integers(0, 60), max_size=6), json_values)
def test_records_with_parts_replaced(shared, tmp_path_factory, path, value):
    line = json.dumps(replaced(workdirs.record(), path, value))
    folder = workdirs.write(tmp_path_factory.mktemp("log"), [line, workdirs.record([7.0])])
    assert check_import(shared, folder).read >= 1


@quick
@given(mutated(WORKLOAD))
@example(WORKLOAD.replace(b'"0", "', '"0", "é'.encode()))
def test_mutated_workloads(shared, tmp_path_factory, line):
    folder = workdirs.write(tmp_path_factory.mktemp("log"), [workdirs.record()])
    (folder / WORKLOADS).write_bytes(line + b"\n")
    check_import(shared, folder)


@quick
@given(st.lists(st.integers(0, 60), max_size=5), json_values)
def test_graphs_with_parts_replaced(shared, tmp_path_factory, path, value):
    graph = replaced(workdirs.graph(), path, value)
    text = json.dumps(graph).encode()
    body = base64.b64encode(struct.pack("<q", len(text)) + text).decode()
    folder = workdirs.write(tmp_path_factory.mktemp("log"), [workdirs.record()])
    (folder / WORKLOADS).write_text(json.dumps(["0", body]) + "\n")
    check_import(shared, folder)


@quick
@given(st.binary(max_size=200))
def test_any_bytes(shared, tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("log")
    for name in (WORKLOADS, RECORDS):
        (folder / name).write_bytes(data)
    check_import(shared, folder)


BOMBS = {
    "deep target": lambda n: LINE.replace(b'"tag": ""', b'"tag": ' + nested(n)),
    "deep arguments": lambda n: LINE.replace(b"[128, 64]", nested(n)),
    "deep trace": lambda n: LINE.replace(b'["b0"], []', nested(n) + b", []"),
    "deep times": lambda n: LINE.replace(b"0.0011", nested(n)),
}


@pytest.mark.parametrize("depth", [100, 400, 900, 5_000])
@pytest.mark.parametrize("kind", BOMBS)
def test_deep_nesting(shared, kind, depth, tmp_path):
    line = BOMBS[kind](depth)
    assert line != LINE
    assert check_import(shared, workdirs.write(tmp_path, [line, workdirs.record([7.0])])).read >= 1


@pytest.mark.parametrize("depth", [100, 400, 900, 5_000])
def test_deep_graphs(shared, depth, tmp_path):
    text = json.dumps(workdirs.graph()).encode().replace(b'"value": 16', b'"v": ' + nested(depth))
    folder = workdirs.write(tmp_path, [workdirs.record()])
    body = base64.b64encode(struct.pack("<q", len(text)) + text).decode()
    (folder / WORKLOADS).write_text(json.dumps(["0", body]) + "\n")
    check_import(shared, folder)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"[0.001, 0.0011]", b"[1.7e308, 1.7e308]"),
        (b'"kind": "llvm"', b'"kind": "ll\\u0000vm"'),
        (b'"float32"', b'"float\\u000032"'),
        (b'"matmul", "main"', b'"mat\\u0000mul", "main"'),
        (b"[0.001, 0.0011]", b"[-1.0]"),
        (b"[0.001, 0.0011]", b"[123456789012345678901234567890]"),
    ],
)
def test_what_the_store_refuses_costs_only_its_line(shared, old, new, tmp_path):
    line = LINE.replace(old, new)
    assert line != LINE
    assert check_import(shared, workdirs.write(tmp_path, [line, workdirs.record([7.0])])).read >= 1


# ---------------------------------------------------------------------- importing


def test_import_counts(memory, tmp_path):
    lines = [workdirs.record(), workdirs.record(), workdirs.record(None), "bad", "worse", "bad"]
    folder = workdirs.write(tmp_path, lines)
    report = import_log(memory, folder, FORMAT)
    assert (report.read, report.new, report.known, report.failed) == (3, 3, 0, 1)
    assert report.quarantined == 3
    assert sum(report.reasons.values()) == 3
    again = import_log(memory, folder, FORMAT)
    assert (again.read, again.new, again.known) == (3, 0, 3)
    assert memory.query.counts().quarantined == 3


def test_batches(memory, tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "BATCH_ROWS", 4)
    lines = [workdirs.record([i + 1.0]) for i in range(10)]
    seen = []

    def follow(position):
        seen.append((position, memory.query.size()))

    import_log(memory, workdirs.write(tmp_path, lines), FORMAT, on_progress=follow)
    assert [stored for _, stored in seen] == [0, 0, 0, 4, 4, 4, 4, 8, 8, 8]
    assert memory.query.size() == 10


def test_an_interrupted_import_goes_on(tmp_path, monkeypatch):
    """Stopped after any record and run again, it ends as one run does."""
    monkeypatch.setattr(limits, "BATCH_ROWS", 3)
    lines = [workdirs.record([1.0 + i % 4]) for i in range(8)]
    folder = workdirs.write(tmp_path, [*lines, "bad"])
    with Store(":memory:") as whole:
        import_log(whole, folder, FORMAT)
        wanted = workdirs.digests(whole)
    for stop in range(9):
        with Store(":memory:") as store:
            count = 0

            def follow(_position, stop=stop):
                nonlocal count
                count += 1
                if count > stop:
                    raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                import_log(store, folder, FORMAT, on_progress=follow)
            import_log(store, folder, FORMAT)
            assert workdirs.digests(store) == wanted
            assert store.query.counts().quarantined == 1


def test_dry_run(memory, tmp_path):
    folder = workdirs.write(tmp_path, [workdirs.record(), "bad"])
    report = import_log(memory, folder, FORMAT, dry_run=True)
    assert (report.new, report.quarantined) == (1, 1)
    assert memory.query.counts().measurements == 0
    assert memory.query.counts().sources == 0
    import_log(memory, folder, FORMAT)
    assert import_log(memory, folder, FORMAT, dry_run=True).new == 0


def test_sources(memory, tmp_path):
    folder = workdirs.write(tmp_path, [workdirs.record()])
    import_log(memory, folder, FORMAT, source="them", trust=Trust.FOREIGN)
    assert [(s.name, s.trust) for s, _ in memory.query.sources()] == [("them", Trust.FOREIGN)]
    assert memory.query.best([1]) is None


# ---------------------------------------------------------------------- exporting


def export(store, folder, **options):
    return export_metaschedule(store.query, folder, **options)


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


@settings(quick, max_examples=40)
@given(st.lists(records, min_size=1, max_size=8))
def test_import_export_import_loses_nothing(tmp_path_factory, lines):
    folder = tmp_path_factory.mktemp("logs")
    workdirs.write(folder / "in", lines, GRAPHS)
    with Store(":memory:") as first, Store(":memory:") as second:
        import_log(first, folder / "in", FORMAT)
        report = export(first, folder / "out")
        assert report.records == len(lines)
        import_log(second, folder / "out", FORMAT)
        assert workdirs.digests(second) == workdirs.digests(first)
        assert len(workdirs.digests(first)) == len(lines)
    written = read_all(folder / "out" / RECORDS)
    # Workloads are numbered anew; everything else is as it was, in its order.
    assert [line[1] for line in written] == [canonical_numbers(line[1]) for line in lines]


def test_real_records(measured_cpu, tmp_path):
    """Real files come out as they went in, number for number."""
    folders = sorted(path for path in measured_cpu.iterdir() if path.is_dir())
    with Store(":memory:") as store, Store(":memory:") as copy_:
        for folder in folders[::3]:
            out = tmp_path / folder.name
            with Store(":memory:") as alone:
                report = import_log(alone, folder, FORMAT)
                assert report.quarantined == 0
                export(alone, out)
            assert read_all(out / RECORDS) == read_all(folder / RECORDS)
            assert graphs(out) == graphs(folder)
            import_log(store, folder, FORMAT)
            import_log(copy_, out, FORMAT)
        assert workdirs.digests(copy_) == workdirs.digests(store)
        assert len(workdirs.digests(store)) == 96 * len(folders[::3])


def graphs(folder):
    """Return the graphs of a work directory; TVM computes their hashes anew."""
    lines = (folder / WORKLOADS).read_bytes().splitlines()
    return [orjson.loads(base64.b64decode(orjson.loads(line)[1])[8:]) for line in lines]


def test_what_is_left_out(memory, tmp_path):
    import_log(memory, workdirs.write(tmp_path / "own", [workdirs.record()] * 3), FORMAT)
    foreign = workdirs.write(tmp_path / "foreign", [workdirs.record([7.0])])
    import_log(memory, foreign, FORMAT, trust=Trust.FOREIGN)
    memory.retract([2], "measured under load")
    report = export(memory, tmp_path / "out")
    assert report.records == 2
    assert report.left_out == {"retracted": 1, "foreign source": 1}
    report = export(memory, tmp_path / "none", workload_ids=[99])
    assert report.left_out["other workload"] == 4
    assert not (tmp_path / "none").exists()


def test_equal_workloads_go_to_directories_of_their_own(memory, tmp_path):
    """To TVM they are one workload, of which its loader refuses a second line."""
    lines = [workdirs.record([1.0 + i], workload=i) for i in range(3)]
    import_log(memory, workdirs.write(tmp_path / "log", lines, GRAPHS), FORMAT)
    for id_ in (1, 3):
        memory.add_workload(memory.query.workload(id_), [Alias("script", "same")])
    report = export(memory, tmp_path / "out")
    assert report.directories == [str(tmp_path / "out"), str(tmp_path / "out" / "variant-1")]
    assert len(read_all(tmp_path / "out" / WORKLOADS)) == 2
    with Store(":memory:") as copy_:
        import_all(copy_, tmp_path / "out")
        assert workdirs.digests(copy_) == workdirs.digests(memory)


def test_nothing_is_overwritten_and_nothing_stays_half(memory, tmp_path, monkeypatch):
    import_log(memory, workdirs.write(tmp_path / "log", [workdirs.record()]), FORMAT)
    out = tmp_path / "out"
    export(memory, out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(UsageError, match="--force"):
        export(memory, out)

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tunedb.logs.export.os.fsync", fail)
    with pytest.raises(StorageError, match="No space left"):
        export(memory, out, force=True)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_no_blank_line_is_written(memory, tmp_path):
    """A blank line crashes TVM's loader."""
    import_log(memory, workdirs.write(tmp_path / "log", [workdirs.record()] * 2), FORMAT)
    export(memory, tmp_path / "out")
    for path in (tmp_path / "out").iterdir():
        data = path.read_bytes()
        assert data.endswith(b"\n")
        assert b"\n\n" not in data


def test_records_of_other_formats_are_left_out(memory, tmp_path):
    import_log(memory, workdirs.write(tmp_path / "log", [workdirs.record()]), FORMAT)
    known = memory.query.record(1).measurement.program
    # What has no graph of an IRModule has no place in a work directory.
    other = Program(Workload("autotvm", b"[]"), known.target, known.trace)
    memory.add([Measurement(other, (1.0,))], Source("own"))
    report = export(memory, tmp_path / "out")
    assert (report.records, report.left_out) == (1, {"no MetaSchedule workload": 1})

import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import small_logs
import workdirs
from builders import make_measurement, make_workload
from effort import long
from workdirs import ansor, autotvm, canonical, pairs, write_lines

from tunedb.errors import FormatError, StorageError, UsageError
from tunedb.formats import base, export
from tunedb.formats.export import export_lines, export_metaschedule
from tunedb.formats.metaschedule import record_fields
from tunedb.programs.metaschedule.trace import split_trace
from tunedb.records import Measurement, Source, Trace, Trust
from tunedb.storage.store import Store

RECORDS, WORKLOADS = "database_tuning_record.json", "database_workload.json"
ANSOR = [
    ansor(tile=1),
    ansor(tile=1, target="cuda"),
    *(ansor(tile=tile, target="cuda", key='["f", 1]') for tile in (1, 2)),
    *(ansor(tile=tile) for tile in range(2, 6)),
]
AUTOTVM = [autotvm(tile=1), autotvm(tile=2)]


def changed(line, **fields):
    return json.dumps({**json.loads(line), **fields})


#: Lines of edited logs that no TVM writes, and unmeasured programs.
ODD = {
    "ansor": [
        changed(ansor(0.5, time=1610000000.1234567), k=1.0, z=False, note={"a": [None]}),
        changed(ansor(key=' [ "g" ,7] ', target=" llvm"), v="v0.6-fork"),
        changed(ansor(), i=[['["g", 7]', "llvm", 1, [1, 2], "llvm"], [[], []]]),  # the first v0.5
        *(ansor([0]), ansor([]), ansor(0.25, 4)),
    ],
    "autotvm": [
        changed(autotvm(time=1600000000.1234567), extra="é", tvm_version=None),
        autotvm().replace(', "tvm_version": "0.8.0"', ""),
        *(autotvm([0.0]), autotvm([]), autotvm([1e9, 1e9]), autotvm(0.25, 4)),
    ],
}


def bring(store, path, **options):
    report = workdirs.bring(store, path, **options)
    assert report.refused is None
    return report


def written_lines(store, name, **options):
    out = io.BytesIO()
    report = export_lines(store, name, out, **options)
    lines = out.getvalue().splitlines(keepends=True)
    assert report.records == len(lines)
    assert all(line.endswith(b"\n") and b"\n" not in line[:-1] for line in lines)
    return lines, report


def exported(store, name, **options):
    """Return the canonical lines of an export and its report."""
    lines, report = written_lines(store, name, **options)
    return canonicals(lines), report


def canonicals(lines):
    return [canonical(line) for line in lines]


@pytest.mark.parametrize(
    "name",
    [
        *("autotvm v0.1", "autotvm v0.2", "ansor v0.2", "ansor v0.6"),
        *(long(f"ansor v0.{version}") for version in (3, 4, 5)),
    ],
)
def test_export_writes_the_lines_that_were_imported(name, store, tmp_path):
    path = small_logs.write(tmp_path, small_logs.LOGS[name])
    name = name.split()[0]
    odd = write_lines(tmp_path / "odd", *ODD[name])
    bad = {row.line for row in bring(store, path).bad}
    assert bring(store, odd).quarantined == 0
    data = [line for n, line in enumerate(path.read_bytes().splitlines(), 1) if n not in bad]
    lines = [line for line in data if line.strip() and not line.startswith(b"#")] + ODD[name]
    written, report = written_lines(store, name)
    assert canonicals(written) == canonicals(lines)
    assert (report.left_out, report.workloads) == ({}, store.counts().workloads)
    # The other database gets the same records, occurrences and failures included.
    (tmp_path / "again").write_bytes(b"".join(written))
    with Store(":memory:") as other:
        assert bring(other, tmp_path / "again").total.new == len(lines)
        assert workdirs.digests_in_order(other) == workdirs.digests_in_order(store)
        assert written_lines(other, name)[0] == written
        assert {r.measurement.occurrence for r in other.records.iterate()} >= {0, 1}
        causes = [[r.measurement.failure for r in s.records.iterate()] for s in (store, other)]
        assert causes[0] == causes[1]


def test_export_writes_only_records_of_the_chosen_format(memory, tmp_path):
    bring(memory, write_lines(tmp_path / "a", *ANSOR[:3]))
    bring(memory, workdirs.write(tmp_path / "work", [workdirs.record()]) / RECORDS)
    bring(memory, write_lines(tmp_path / "b", *AUTOTVM))
    for name, lines in (("ansor", ANSOR[:3]), ("autotvm", AUTOTVM)):
        written, report = exported(memory, name)
        assert written == canonicals(lines)
        assert report.left_out == {f"no {name} workload": 6 - len(lines)}
    report = export_metaschedule(memory, tmp_path / "out")
    assert (report.records, report.left_out) == (1, {"no MetaSchedule workload": 5})


def test_export_leaves_out_retracted_and_foreign_records(store, tmp_path):
    bring(store, write_lines(tmp_path / "a", *ANSOR[:4]))
    bring(store, write_lines(tmp_path / "b", *ANSOR[4:7]), source="a friend", trust=Trust.FOREIGN)
    bring(store, write_lines(tmp_path / "c", *ANSOR[7:8]), source="checked", trust=Trust.VERIFIED)
    store.trust.retract([2], "wrong machine")
    calls = []
    written, report = exported(store, "ansor", on_record=lambda: calls.append(1))
    assert written == canonicals([ANSOR[0], *ANSOR[2:4], ANSOR[7]])
    assert report.left_out == {"retracted": 1, "foreign source": 3}
    assert len(calls) == 8


def test_export_filters_by_target_and_workload(memory, tmp_path):
    bring(memory, write_lines(tmp_path / "a", *ANSOR[:4]))
    records = list(memory.records.iterate())
    (target,) = {records[1].target_id, records[2].target_id}
    written, report = exported(memory, "ansor", target_ids=[target])
    assert (written, report.left_out) == (canonicals(ANSOR[1:4]), {})
    chosen = [records[2].workload_id]
    written, report = exported(memory, "ansor", target_ids=[target], workload_ids=chosen)
    assert written == canonicals(ANSOR[2:4])
    assert (report.workloads, report.left_out) == (1, {"other workload": 1})
    assert exported(memory, "ansor", target_ids=[], workload_ids=[])[0] == []


@pytest.mark.parametrize("version", ["0.25.0.post1", "0.26.0", "0.27.0"])
def test_record_fields_writes_index_map_of_workloads_tvm_version(version):
    written = index_map(version)
    stored = ["TransformLayout", ["b0", index_map("0.27.0")], [0, 1, None, False], []]
    trace = split_trace([["GetSBlock", [], ["C", "main"], ["b0"]], stored], [])
    workload = replace(make_workload(1), tvm_version=version)
    program = replace(make_measurement(1).program, workload=workload, trace=trace)
    measurement = replace(make_measurement(1), program=program)
    ((instructions, _), *_) = record_fields(SimpleNamespace(measurement=measurement))
    found = json.loads(instructions[1][1][1])
    assert found["nodes"] == json.loads(written)["nodes"]


def index_map(version):
    """Return an index map as a version of TVM writes it."""
    folder = Path(__file__).parents[1] / "programs" / "index_maps"
    return (folder / f"{version[:4]}.jsonl").read_text().splitlines()[0]


@pytest.mark.parametrize(("name", "line"), [("ansor", ANSOR[0]), ("autotvm", AUTOTVM[0])])
def test_damaged_records_are_left_out(name, line, memory, tmp_path):
    bring(memory, write_lines(tmp_path / "log", line))
    good = memory.records.get(1).measurement
    damaged = [Measurement(good.program, good.run_secs, measured_at=1)]
    for sketch in (b"{}", b'[["SP"]]', b"[[]]", b"junk"):
        program = replace(good.program, trace=Trace(sketch, None, b""))
        damaged.append(replace(good, program=program, measured_at=0))
    memory.records.add(damaged, Source("damage"))
    written, report = exported(memory, name)
    assert written == [canonical(line)]
    assert sum(report.left_out.values()) == 5


@pytest.mark.parametrize("name", ["metaschedule", "metaschedule-sqlite", "nonsense", ""])
def test_export_lines_rejects_formats_that_are_not_lines(name, memory):
    with pytest.raises(UsageError, match=r"not a format of lines \(.*ansor.*\)"):
        export_lines(memory, name, io.BytesIO())


def test_export_to_full_disk_raises_storage_error(memory, tmp_path):
    bring(memory, write_lines(tmp_path / "log", *ANSOR[:1]))

    class Full(io.BytesIO):
        def write(self, data):
            raise OSError(28, "No space left on device")

    with pytest.raises(StorageError, match="No space left on device"):
        export_lines(memory, "ansor", Full())


def test_export_uses_format_of_another_package(memory, tmp_path, monkeypatch):
    class Other:
        name = "other"

        def writes(self, workload):
            return workload.name == "add"

        def write_line(self, record):
            return b"%d\n" % record.id

    bring(memory, write_lines(tmp_path / "log", ANSOR[0], ANSOR[2]))
    monkeypatch.setattr("tunedb.formats.export.formats", lambda: {"other": Other()})
    assert isinstance(Other(), base.LineWriter)
    written, report = written_lines(memory, "other")
    assert (written, report.left_out) == ([b"1\n"], {"no other workload": 1})


def write_all(store, folder):
    """Export all records of MetaSchedule; return the one directory that they need."""
    report = export_metaschedule(store, folder)
    (directory,) = report.directories
    return Path(directory), report


@pytest.mark.parametrize("name", ["metaschedule old", "metaschedule new"])
def test_export_writes_the_work_directory_that_was_imported(name, store, tmp_path):
    path = small_logs.write(tmp_path / "in", small_logs.LOGS[name])
    bad = {row.line for row in bring(store, path).bad}
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(line for n, line in enumerate(lines, 1) if n not in bad))
    out, report = write_all(store, tmp_path / "out")
    assert (report.records, report.workloads, report.left_out) == (small_logs.RECORDS, 2, {})
    # Records that today's TVM cannot load go to a folder of their own.
    assert out == tmp_path / ("out" if name.endswith("new") else "out/tvm-0.9.dev0")
    assert pairs(out / RECORDS) == pairs(tmp_path / "in" / RECORDS)
    with Store(":memory:") as other:
        bring(other, out / RECORDS)
        assert workdirs.digests_in_order(other) == workdirs.digests_in_order(store)


@pytest.mark.parametrize("name", ["stream", "sqlite"])
def test_other_layouts_are_written_as_work_directories(name, memory, tmp_path):
    same = "metaschedule " + ("old" if name == "sqlite" else "new")
    bring(memory, small_logs.write(tmp_path / "in", small_logs.LOGS[f"metaschedule {name}"]))
    out, _ = write_all(memory, tmp_path / "out")
    with Store(":memory:") as other:
        bring(other, small_logs.write(tmp_path / "same", small_logs.LOGS[same]))
        expected, _ = write_all(other, tmp_path / "expected")
        assert pairs(out / RECORDS) == pairs(expected / RECORDS)
        assert workdirs.digests_in_order(memory) == workdirs.digests_in_order(other)


def test_export_writes_records_without_workload_file_to_separate_folder(memory, tmp_path):
    """The folder has no workload file, and its records are those that were imported."""
    args = [["TENSOR", "float32", [7]]]
    lines = [workdirs.record([1.0]), workdirs.record([2.0], workload=4, args=args)]
    folder = workdirs.write(tmp_path / "in", [*lines, workdirs.record([3.0], args=args)])
    (folder / WORKLOADS).unlink()
    bring(memory, workdirs.write(tmp_path / "whole", [workdirs.record([4.0])]) / RECORDS)
    assert bring(memory, folder / RECORDS).total.new == 3
    report = export_metaschedule(memory, tmp_path / "out")
    assert (report.records, report.workloads, report.left_out) == (4, 4, {})
    lost = tmp_path / "out" / "without-workloads"
    assert sorted(report.directories) == [str(tmp_path / "out"), str(lost)]
    assert [path.name for path in lost.iterdir()] == [RECORDS]
    came, written = ((path / RECORDS).read_bytes().splitlines() for path in (folder, lost))
    assert canonicals(written) == canonicals(came)
    assert pairs(tmp_path / "out" / RECORDS) == pairs(tmp_path / "whole" / RECORDS)
    with Store(":memory:") as other:
        bring(other, tmp_path / "out" / RECORDS)
        bring(other, lost / RECORDS)
        assert workdirs.digests_in_order(other) == workdirs.digests_in_order(memory)


def test_work_directories_leave_out_retracted_and_foreign_records(memory, tmp_path):
    lines = [workdirs.record([float(n)]) for n in range(1, 6)]
    own = workdirs.write(tmp_path / "own", lines[:3])
    friend = workdirs.write(tmp_path / "friend", lines[3:])
    bring(memory, own / RECORDS)
    bring(memory, friend / RECORDS, source="a friend", trust=Trust.FOREIGN)
    memory.trust.retract([1], "wrong machine")
    report = export_metaschedule(memory, tmp_path / "out")
    assert report.left_out == {"retracted": 1, "foreign source": 2}
    written = [record for _, record in pairs(tmp_path / "out" / RECORDS)]
    assert written == [canonical(line[1]) for line in lines[1:3]]
    report = export_metaschedule(memory, tmp_path / "none", workload_ids=[99])
    assert report.left_out["other workload"] == 5
    assert not (tmp_path / "none").exists()


def test_damaged_workload_does_not_change_workloads_of_other_records(memory, tmp_path, monkeypatch):
    """Records refer to workloads by number of line."""
    graphs = [workdirs.graph(name) for name in "abc"]
    lines = [workdirs.record([float(n + 1)], workload=n % 3) for n in range(6)]
    folder = workdirs.write(tmp_path / "in", lines, graphs)
    bring(memory, folder / RECORDS)
    damaged = memory.workloads.get(memory.workloads.find()[0].id)
    real = export.workload_line

    def workload_line(workload):
        if workload == damaged:
            raise FormatError("damaged")
        return real(workload)

    monkeypatch.setattr(export, "workload_line", workload_line)
    report = export_metaschedule(memory, tmp_path / "out")
    assert (report.records, report.workloads) == (4, 2)
    assert sum(report.left_out.values()) == 2
    bad = "abc".index(damaged.name)
    expected = [pair for n, pair in enumerate(pairs(folder / RECORDS)) if n % 3 != bad]
    assert pairs(tmp_path / "out" / RECORDS) == expected


def test_export_keeps_existing_files_without_force_and_after_failure(memory, tmp_path, monkeypatch):
    folder = workdirs.write(tmp_path / "in", [workdirs.record()])
    bring(memory, folder / RECORDS)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(UsageError, match="--force"):
        export_metaschedule(memory, folder)

    def fail(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("tunedb.formats.export.os.fsync", fail)
        with pytest.raises(StorageError, match="No space left"):
            export_metaschedule(memory, folder, force=True)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    export_metaschedule(memory, folder, force=True)
    assert {path.name for path in folder.iterdir()} == {RECORDS, WORKLOADS}


def test_a_killed_export_leaves_no_records_of_other_workloads(memory, tmp_path, monkeypatch):
    """A pair of files cannot appear at once: records without their workloads are the worst."""
    folder = workdirs.write(tmp_path / "in", [workdirs.record()])
    bring(memory, folder / RECORDS)
    real, moved = Path.replace, []

    def die(path, target):
        moved.append(Path(target).name)
        if moved == [WORKLOADS, RECORDS]:
            raise KeyboardInterrupt
        return real(path, target)

    monkeypatch.setattr(Path, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        export_metaschedule(memory, folder, force=True)
    assert moved == [WORKLOADS, RECORDS]
    assert {path.name for path in folder.iterdir()} == {WORKLOADS}

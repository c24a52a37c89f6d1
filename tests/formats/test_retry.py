from collections import Counter

import pytest
import workdirs
from workdirs import ansor, bring
from workdirs import digests_in_order as digests
from workdirs import write_lines as write

from tunedb import limits
from tunedb.errors import FormatError
from tunedb.formats import importer
from tunedb.formats.ansor import AnsorReader
from tunedb.formats.importer import RetryReport, retry_quarantine
from tunedb.formats.metaschedule import RecordParser
from tunedb.records import Quarantined, Source, Trust, WorkloadFormat
from tunedb.storage.store import Store


def lines_left(store):
    """Return file and line of each quarantined line."""
    return sorted((row.item.file, row.item.line) for row in store.quarantine.rows())


def numbers(report):
    return report.tried, report.recovered, report.known, report.left


@pytest.fixture
def old_reader(monkeypatch):
    """An older reader, which rejects tiles of 50 and more; `undo()` gives today's one back."""
    parse = AnsorReader.parse

    def refuse(self, value, line):
        tile = value["i"][1][1][0][4][0]
        if tile >= 50:
            raise FormatError(f"a tile of {tile}")
        return parse(self, value, line)

    with monkeypatch.context() as patch:
        patch.setattr(AnsorReader, "parse", refuse)
        patch.setattr(AnsorReader, "parse_text", lambda self, data: None)
        yield patch


def test_retry_stores_lines_that_the_new_reader_understands(store, old_reader, tmp_path):
    tiles = [ansor(tile=tile) for tile in (1, 50, 60, 2)]
    path = write(tmp_path / "log", *tiles[:2], "junk", *tiles[2:])
    bring(store, path, source="a friend", trust=Trust.FOREIGN)
    assert (store.records.count(), store.counts().quarantined) == (2, 3)
    # With the old reader, nothing changes.
    report = retry_quarantine(store)
    assert numbers(report) == (3, 0, 0, 3)
    assert report.reasons["a tile of 50"] == 1
    assert lines_left(store) == [(str(path), line) for line in (2, 3, 4)]
    old_reader.undo()
    calls = []
    report = retry_quarantine(store, on_row=lambda: calls.append(1))
    assert numbers(report) == (3, 2, 0, 1)
    (reason,) = report.reasons
    assert reason.startswith("not JSON")
    assert len(calls) == 3
    assert lines_left(store) == [(str(path), 3)]
    records = list(store.records.iterate())
    assert len(records) == 4
    assert {(r.source.name, r.source.trust) for r in records} == {("a friend", Trust.FOREIGN)}
    # An import with today's reader stores the same records.
    with Store(":memory:") as fresh:
        bring(fresh, path)
        assert sorted(digests(fresh)) == sorted(digests(store))
    assert bring(store, path).total.new == 0


def test_retry_reads_only_the_chosen_rows(store, old_reader, tmp_path):
    assert retry_quarantine(store) == RetryReport()
    bring(store, write(tmp_path / "log", *(ansor(tile=tile) for tile in (1, 50, 60, 70))))
    old_reader.undo()
    first, second, third = store.quarantine.ids()
    assert retry_quarantine(store, []) == RetryReport()
    assert numbers(retry_quarantine(store, [third, first, first])) == (2, 2, 0, 0)
    assert store.quarantine.ids() == [second]
    assert retry_quarantine(store, [first]) == RetryReport()
    assert retry_quarantine(store, [second]).recovered == 1


def test_retry_removes_lines_that_were_imported_meanwhile(store, old_reader, tmp_path):
    path = write(tmp_path / "log", ansor(tile=1), ansor(tile=50))
    bring(store, path)
    old_reader.undo()
    bring(store, write(tmp_path / "copy", ansor(tile=1), ansor(tile=50)))
    assert numbers(retry_quarantine(store)) == (1, 0, 1, 0)
    assert (store.counts().quarantined, store.records.count()) == (0, 2)


def test_retry_stores_equal_lines_as_separate_records(store, old_reader, tmp_path):
    path = write(tmp_path / "log", ansor(tile=50), ansor(tile=1), ansor(tile=50), ansor(tile=50))
    other = write(tmp_path / "copy", ansor(tile=50), ansor(tile=1))
    bring(store, path)
    bring(store, other)
    old_reader.undo()
    assert retry_quarantine(store).recovered == 3
    assert store.records.count() == 4
    assert bring(store, path).total.new == 0
    assert bring(store, other).total.new == 0


def test_retry_reads_more_rows_than_one_page(store, old_reader, tmp_path, monkeypatch):
    monkeypatch.setattr(importer, "_PAGE", 3)
    path = write(tmp_path / "log", ansor(tile=1), *[ansor(tile=50 + n % 5) for n in range(10)])
    bring(store, path)
    old_reader.undo()
    assert numbers(retry_quarantine(store)) == (10, 10, 0, 0)
    assert bring(store, path).total.new == 0


def test_retry_takes_model_from_folder_of_deleted_file(store, old_reader, tmp_path):
    """TenSet's folders name the processor; the line needs nothing else."""
    folder = tmp_path / "measure_records" / "e5-2673"
    folder.mkdir(parents=True)
    path = write(folder / "log.json", ansor(tile=1), ansor(tile=50))
    bring(store, path)
    path.unlink()
    old_reader.undo()
    retry_quarantine(store)
    models = [r.measurement.program.target.attributes["model"] for r in store.records.iterate()]
    assert models == ["e5-2673", "e5-2673"]


def test_retry_leaves_truncated_lines_in_quarantine(store, tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "MAX_QUARANTINE_BYTES", 40)
    path = write(tmp_path / "log", ansor(tile=1), "[1] " + "x" * 60, "[2]")
    bring(store, path)
    report = retry_quarantine(store)
    assert (report.tried, report.left) == (2, 2)
    assert report.reasons["only its beginning is stored; import the file again"] == 1
    assert lines_left(store) == [(str(path), 2), (str(path), 3)]


def test_retry_does_not_store_truncated_line_that_parses_as_record(store, monkeypatch):
    """The first bytes of a line may be a whole record, but not the one that was written."""
    data = ansor(tile=1).encode()
    monkeypatch.setattr(limits, "MAX_QUARANTINE_BYTES", len(data))
    store.quarantine.add(
        [Quarantined("log", 1, "longer than 9 bytes", data + b" more")], Source("s")
    )
    assert retry_quarantine(store).left == 1
    assert store.records.count() == 0


def test_retry_recovers_lines_of_standard_input(store):
    row = Quarantined("<stdin>", 7, "a tile of 50", ansor(tile=50).encode())
    store.quarantine.add([row], Source("s"))
    assert retry_quarantine(store).recovered == 1


@pytest.fixture
def old_records(monkeypatch):
    """An older reader, which rejects times of 5 s and more; `undo()` gives today's one back."""
    parse = RecordParser.parse

    def refuse(self, value):
        if value[1][1][0] >= 5:
            raise FormatError("too slow")
        return parse(self, value)

    with monkeypatch.context() as patch:
        patch.setattr(RecordParser, "parse", refuse)
        yield patch


def workload_formats(store):
    """Return the number of records by format of their workloads."""
    return Counter(r.measurement.program.workload.format for r in store.records.iterate())


def test_retry_takes_workloads_from_workload_file(store, old_records, tmp_path):
    graphs = [workdirs.graph("a"), workdirs.graph("b")]
    lines = [workdirs.record([1.0]), workdirs.record([5.0], workload=1), workdirs.record([2.0])]
    path = workdirs.write(tmp_path / "log", lines, graphs) / "database_tuning_record.json"
    bring(store, path)
    old_records.undo()
    assert numbers(retry_quarantine(store)) == (1, 1, 0, 0)
    assert workload_formats(store) == {WorkloadFormat.GRAPH: 3}
    names = [r.measurement.program.workload.name for r in store.records.iterate()]
    assert names == ["a", "a", "b"]
    assert bring(store, path).total.new == 0


@pytest.mark.parametrize("gone", ["all", "workloads"])
def test_retry_leaves_records_in_quarantine_if_workload_file_is_missing(
    gone, store, old_records, tmp_path
):
    folder = workdirs.write(tmp_path / "log", [workdirs.record([1.0]), workdirs.record([5.0])])
    bring(store, folder / "database_tuning_record.json")
    (folder / "database_workload.json").unlink()
    if gone == "all":
        (folder / "database_tuning_record.json").unlink()
    old_records.undo()
    report = retry_quarantine(store)
    assert numbers(report) == (1, 0, 0, 1)
    assert "its workload" in next(iter(report.reasons))
    assert store.counts().quarantined == 1
    assert workload_formats(store) == {WorkloadFormat.GRAPH: 1}


def test_retry_leaves_records_of_mixed_stream_for_a_new_import(store, old_records, tmp_path):
    """The line of a record does not tell its workload, which precedes it in the file."""
    lines = [workdirs.workload_line(workdirs.graph()), workdirs.record(), workdirs.record([5.0])]
    path = write(tmp_path / "both.json", *lines)
    bring(store, path)
    old_records.undo()
    report = retry_quarantine(store)
    assert (report.recovered, report.left) == (0, 1)
    assert bring(store, path).total.new == 1
    assert workload_formats(store) == {WorkloadFormat.GRAPH: 2}


@pytest.fixture
def old_workloads(monkeypatch):
    """An older reader, which rejects all workloads; `undo()` gives today's one back."""

    def refuse(self, index, value):
        raise FormatError("an unknown graph")

    with monkeypatch.context() as patch:
        patch.setattr(RecordParser, "add_workload", refuse)
        yield patch


def test_retry_recovers_workload_line_and_its_record(store, old_workloads, tmp_path):
    folder = workdirs.write(tmp_path / "log", [workdirs.record([1.0])])
    path, beside = folder / "database_tuning_record.json", folder / "database_workload.json"
    bring(store, path)
    old_workloads.undo()
    assert lines_left(store) == [(str(path), 1), (str(beside), 1)]
    report = retry_quarantine(store)
    # The record brings its workload along, so the workload's own line is known then.
    assert (*numbers(report), report.workloads) == (2, 1, 1, 0, 1)
    assert workload_formats(store) == {WorkloadFormat.GRAPH: 1}
    assert store.counts().quarantined == 0
    assert bring(store, path).total.new == 0


def test_retry_counts_recovered_workload_without_records(store, old_workloads, tmp_path):
    bring(store, write(tmp_path / "w.json", workdirs.workload_line(workdirs.graph()), "junk"))
    old_workloads.undo()
    report = retry_quarantine(store)
    assert (*numbers(report), report.workloads) == (2, 0, 0, 1, 1)
    assert store.counts().workloads == 1

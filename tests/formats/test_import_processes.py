"""Imports that several processes share, and files that share batches."""

from collections import Counter

import pytest
from processes import end
from workdirs import ansor
from workdirs import write_lines as write

from tunedb import limits
from tunedb.errors import BusyError, NotFoundError, StorageError
from tunedb.formats import import_processes
from tunedb.formats.find import find_logs
from tunedb.formats.import_processes import ImportJob, import_in_processes
from tunedb.formats.importer import LogImporter, Tally
from tunedb.storage.batches import Batches
from tunedb.storage.store import Store


@pytest.fixture
def files(tmp_path):
    """Four logs of three records each, one of which has a bad line too."""
    (tmp_path / "logs").mkdir()
    for number in range(4):
        lines = [ansor(1.0 + number, tile=2**place) for place in range(3)]
        write(tmp_path / "logs" / f"{number}.json", *lines, *["junk"] * (number == 2))
    return find_logs([tmp_path / "logs"])


def bring(url, files, *, is_stopped=lambda: False):
    """Import files in two processes; return the last report of each, by its file."""
    begun, stored = [], {}
    jobs = [ImportJob(file, f"source {number}") for number, file in enumerate(files)]

    def update(one):
        assert one.number in begun
        stored[one.number] = one

    import_in_processes(
        str(url), jobs, 2, on_begin=begun.append, on_stored=update, is_stopped=is_stopped
    )
    return stored


def test_processes_store_what_one_stores(files, store_url):
    with Store(store_url) as store:
        found = bring(store_url, files)
        assert sorted(found) == [0, 1, 2, 3]
        assert all(one.is_complete and one.report.total == Tally(3, 3) for one in found.values())
        assert [one.report.quarantined for _, one in sorted(found.items())] == [0, 0, 1, 0]
        records = Counter(record.measurement.digest for record in store.records.iterate())
        sources = {source.name: source.trust.name for _, _, source in store.sources.numbered()}
        assert sources == {f"source {number}": "OWN" for number in range(4)}
        again = bring(store_url, files)
        assert all(one.report.total == Tally(3, 0, 3) for one in again.values())
    with Store(":memory:") as memory, LogImporter(memory) as importer:
        for file in files:
            importer.add(file, source="x")
        importer.flush()
        assert records == Counter(r.measurement.digest for r in memory.records.iterate())


def test_processes_stop_when_they_are_told_to(files, store_url):
    with Store(store_url):
        assert len(bring(store_url, files, is_stopped=lambda: True)) <= 2


def test_errors_of_processes_are_raised(files, tmp_path, monkeypatch):
    with pytest.raises(NotFoundError, match="no such database"):
        bring(tmp_path / "none.db", files)
    monkeypatch.setattr(import_processes, "_run", end)
    with pytest.raises(StorageError, match="exit code 9; its finished batches are stored; run the"):
        bring(tmp_path / "none.db", files)


def test_files_share_batches(files, memory, monkeypatch):
    load_all, batches, events = Batches.load_all, [], []

    def load(self, contents):
        batches.append([(one.source.name, len(one.measurements)) for one in contents])
        return load_all(self, contents)

    monkeypatch.setattr(Batches, "load_all", load)
    monkeypatch.setattr(limits, "IMPORT_ROWS", 5)
    with LogImporter(
        memory,
        on_batch=lambda: events.append("batch"),
        on_file=lambda report: events.append((report.total.new, report.quarantined)),
    ) as importer:
        for number, file in enumerate(files):
            importer.add(file, source=str(number))
    assert batches == [[("0", 3), ("1", 2)], [("1", 1), ("2", 3), ("3", 1)], [("3", 2)]]
    assert events == [(3, 0), "batch", (3, 0), (3, 1), "batch", (3, 0)]


def test_batch_of_a_failed_import_is_not_stored(files, memory):
    with pytest.raises(BusyError), LogImporter(memory) as importer:
        importer.add(files[0], source="x")
        raise BusyError("locked")
    assert memory.records.count() == 0
    with LogImporter(memory) as importer:
        importer.add(files[0], source="x")
    assert memory.records.count() == 3

"""Imports into both databases: counts, stored rows, interruptions, damage and trust."""

import gzip
import json
import tracemalloc
from functools import cache

import pytest
import small_logs
import workdirs
from effort import long
from workdirs import ansor, autotvm, bring
from workdirs import digests_in_order as digests
from workdirs import write_lines as write

from tunedb import limits
from tunedb.formats import importer
from tunedb.formats.importer import ImportReport, Tally, retry_quarantine
from tunedb.maintenance.check import check
from tunedb.records import Trust
from tunedb.storage.store import Store

#: One log of each reader and layout; the long run takes other versions too.
ALL = [
    *("autotvm v0.2", "ansor v0.6", "metaschedule new", "metaschedule stream"),
    *map(long, ("autotvm v0.1", "ansor v0.2", "metaschedule old")),
]
#: Versions that differ in the number of fields of a task alone.
VERSIONS = ("ansor v0.3", "ansor v0.4", "ansor v0.5")


def quarantined_lines(store):
    """Return the quarantined lines, oldest first."""
    items = [row.item for row in store.quarantine.rows()]
    return [(item.line, item.data, item.reason) for item in reversed(items)]


@pytest.fixture(scope="session")
def expected(tmp_path_factory):
    """A function that returns the rows which an import of a small log stores."""

    @cache
    def expected(name):
        path = small_logs.write(tmp_path_factory.mktemp("expected"), small_logs.LOGS[name])
        with Store(":memory:") as store:
            bring(store, path)
            return digests(store), quarantined_lines(store)

    return expected


def test_report_counts_records_by_format_and_target(store, tmp_path):
    path = write(
        tmp_path / "log",
        *("# comment", ansor(1.0, tile=1), ansor(1e10, 6, tile=2), "", ansor([0], tile=4)),
        *(ansor(1.0, target="cuda -arch=sm_70"), autotvm(1.0), autotvm(1e9, 4, tile=2), "junk"),
        *(autotvm(1.0, tile=4), workdirs.workload_line(workdirs.graph())),
    )
    report = bring(store, path)
    assert report.groups == {
        ("ansor", "llvm"): Tally(read=3, new=3, failed=1, unmeasured=1),
        ("ansor", "cuda sm_70"): Tally(read=1, new=1),
        ("autotvm", "cuda"): Tally(read=3, new=3, failed=1),
    }
    assert report.total == Tally(read=7, new=7, failed=2, unmeasured=1)
    assert (report.workloads, report.skipped, report.quarantined) == (1, 2, 1)
    assert (report.refused, report.file) == (None, str(path))
    counts = store.counts()
    assert (counts.measurements, counts.failed, counts.quarantined) == (7, 2, 1)
    grown = write(tmp_path / "log", path.read_bytes().rstrip(), ansor(3.0, tile=1))
    report = bring(store, grown)
    assert report.groups[("ansor", "llvm")] == Tally(read=4, new=1, known=3, failed=1, unmeasured=1)
    assert report.total == Tally(read=8, new=1, known=7, failed=2, unmeasured=1)
    assert store.counts().quarantined == 1
    assert check(store.url).problems == []


@pytest.mark.parametrize(
    "name", [long(name) if name in VERSIONS else name for name in small_logs.LOGS]
)
def test_import_stores_each_kind_of_log_once(name, store, expected, tmp_path):
    path = small_logs.write(tmp_path, small_logs.LOGS[name])
    # A record of MetaSchedule without times is a failed one besides.
    failed = small_logs.FAILED + name.startswith("metaschedule")
    for known in (0, small_logs.RECORDS):
        report = bring(store, path)
        new = small_logs.RECORDS - known
        assert report.total == Tally(small_logs.RECORDS, new, known, failed)
        assert report.quarantined == 3
        assert (digests(store), quarantined_lines(store)) == expected(name)
    assert len(set(digests(store))) == small_logs.RECORDS


def test_report_bounds_reasons_and_named_lines(store, tmp_path, monkeypatch):
    for name, most in (("MAX_REASONS", 3), ("MAX_NAMED_LINES", 2), ("PROGRESS_LINES", 4)):
        monkeypatch.setattr(limits, name, most)  # PROGRESS_LINES: several batches
    bad = [ansor(1.0, error) for error in range(10, 20)]
    report = bring(store, write(tmp_path / "log", ansor(), *bad, *bad))
    assert report.quarantined == sum(report.reasons.values()) == 20
    assert (len(report.reasons), report.reasons["other reasons"]) == (4, 14)
    assert [row.line for row in report.bad] == [2, 3]
    assert [line for line, _, _ in quarantined_lines(store)] == list(range(2, 22))


def occurrences(store):
    return [record.measurement.occurrence for record in store.records.iterate()]


@pytest.mark.parametrize(
    ("between", "told_apart"), [(0, True), (2, True), (3, True), (8, False), (20, False)]
)
def test_import_separates_equal_lines_only_within_a_distance(
    between, told_apart, memory, tmp_path, monkeypatch
):
    """The distance is at least EQUAL_LINES other lines, and at most twice as many."""
    monkeypatch.setattr(limits, "EQUAL_LINES", 4)
    others = [ansor(tile=tile) for tile in range(2, 2 + between)]
    path = write(tmp_path / "log", ansor(tile=1), *others, ansor(tile=1), ansor(tile=1))
    assert bring(memory, path).total.read == between + 3
    expected = [0] * (between + 1) + ([1, 2] if told_apart else [1])
    assert occurrences(memory) == expected


def test_import_recognises_equal_lines_of_another_file(store, tmp_path):
    a, b = ansor(tile=1), ansor(tile=2)
    path = write(tmp_path / "log", a, a, b, a, b, autotvm())
    assert bring(store, path).total == Tally(read=6, new=6)
    assert occurrences(store) == [0, 1, 0, 2, 1, 0]
    assert len(set(digests(store))) == 6
    report = bring(store, write(tmp_path / "copy", a, b, b, b), source="copy")
    assert report.total == Tally(read=4, new=1, known=3)
    sources = [record.source.name for record in store.records.iterate()]
    assert sorted(sources) == ["copy", *["mine"] * 6]


@pytest.mark.parametrize("name", ALL)
def test_repeated_import_of_growing_log_stores_each_record_once(
    name, sqlite_file, expected, tmp_path
):
    """A tuner appends while a watcher imports; a truncated line is complete in a later import."""
    path = small_logs.write(tmp_path, small_logs.LOGS[name])
    whole = path.read_bytes()
    with Store(sqlite_file) as store:
        for part in range(6):
            path.write_bytes(whole[: len(whole) * part // 5])
            bring(store, path)
        assert sorted(digests(store)) == sorted(expected(name)[0])
        assert bring(store, path).total.new == 0


@pytest.mark.parametrize("size", [long(1), 2, long(7)])
@pytest.mark.parametrize("name", ALL)
def test_import_stores_the_same_rows_for_any_batch_size(
    name, size, sqlite_file, expected, tmp_path, monkeypatch
):
    path = small_logs.write(tmp_path, small_logs.LOGS[name])
    monkeypatch.setattr(limits, "IMPORT_ROWS", size)
    batches = []
    with Store(sqlite_file) as store:
        report = bring(store, path, on_batch=lambda: batches.append(store.records.count()))
        assert (digests(store), quarantined_lines(store)) == expected(name)
    assert report.total.new == small_logs.RECORDS
    assert batches == list(range(size, small_logs.RECORDS + 1, size))


def test_import_stores_workloads_and_bad_lines_in_batches(store, tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "PROGRESS_LINES", 3)
    graphs = [workdirs.workload_line(workdirs.graph(extent=n)) for n in range(8)]
    batches = []

    def on_batch():
        counts = store.counts()
        batches.append((counts.workloads, counts.quarantined))

    report = bring(store, write(tmp_path / "log", *graphs, *["junk"] * 4), on_batch=on_batch)
    assert (report.workloads, report.quarantined) == (8, 4)
    assert batches == [(3, 0), (6, 0), (8, 1), (8, 4)]


def long_lines(kind, number):
    """Return lines of about 100 kB."""
    long = "x" * 100_000
    junk = [f"{n} {long}" for n in range(number)]
    if kind == "junk":
        return [ansor(), *junk]
    if kind == "leading junk":
        return [*junk, ansor()]
    if kind == "keys":
        return [ansor(key=json.dumps(["add", n, long])) for n in range(number)]
    if kind == "tasks":
        line = json.loads(autotvm())
        tasks = [["cuda", "dense", [n, long], {}] for n in range(2 * number)]
        return [json.dumps({**line, "input": task}) for task in tasks]
    return [json.dumps({**json.loads(ansor(tile=n)), "note": long}) for n in range(number)]


@pytest.mark.parametrize("kind", ["junk", "leading junk", "keys", "tasks", "unknown fields"])
def test_import_takes_less_memory_than_half_of_the_file(kind, sqlite_file, tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "IMPORT_BYTES", 10**6)
    path = write(tmp_path / "log", *long_lines(kind, 120))
    with Store(sqlite_file) as store:
        bring(store, write(tmp_path / "first", ansor(tile=10_000)))
        monkeypatch.setattr(limits, "MAX_LINE_BYTES", 10**6)  # bounds the lines held in memory
        tracemalloc.start()
        try:
            report = bring(store, path)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert (report.refused is not None) == (kind == "leading junk")
    assert peak < 0.5 * path.stat().st_size


@pytest.mark.parametrize("stop", [1, 4])
@pytest.mark.parametrize("name", ["autotvm v0.2", "ansor v0.6", "metaschedule new"])
def test_repeated_import_completes_a_stopped_one(
    name, stop, store, expected, tmp_path, monkeypatch
):
    path = small_logs.write(tmp_path, small_logs.LOGS[name])
    monkeypatch.setattr(limits, "IMPORT_ROWS", 5)
    calls = []

    def on_batch():
        calls.append(1)
        if len(calls) == stop:
            raise KeyboardInterrupt

    report = ImportReport(str(path))
    with pytest.raises(KeyboardInterrupt):
        bring(store, path, on_batch=on_batch, report=report)
    # The report counts what is stored.
    assert report.total.new == store.records.count() == 5 * stop
    assert digests(store) == expected(name)[0][: 5 * stop]
    second = bring(store, path)
    assert (second.total.known, second.total.new) == (5 * stop, small_logs.RECORDS - 5 * stop)
    assert (digests(store), quarantined_lines(store)) == expected(name)


@pytest.mark.parametrize("cut", [30, -30])
def test_import_stores_records_before_damage_of_compressed_file(cut, store, tmp_path):
    lines = [ansor(tile=tile, time=1700000000 + tile**3) for tile in range(1, 1000)]
    packed = gzip.compress("\n".join(lines).encode())
    path = tmp_path / "log.gz"
    path.write_bytes(packed[:cut])
    report = bring(store, path)
    assert "truncated (the gzip data has no end)" in report.refused
    assert report.total.read == store.records.count()
    if cut < 0:
        assert report.total.read > 600
        times = [r.measurement.measured_at for r in store.records.iterate()]
        assert times[:2] == [1700000001000000, 1700000008000000]
    path.write_bytes(packed)
    again = bring(store, path)
    assert (again.refused, again.total.read, store.records.count()) == (None, 999, 999)


def test_import_rejects_files_that_are_not_logs(store, sqlite_file, tmp_path):
    report = bring(store, write(tmp_path / "table.tsv", "a\tb", "1\t2"))
    assert report.refused.startswith("no tuning log that tunedb knows")
    assert report.total == Tally()
    (tmp_path / "other.db").write_bytes(sqlite_file.read_bytes())
    assert "a database of tunedb, not a log" in bring(store, tmp_path / "other.db").refused
    counts = store.counts()
    assert (counts.measurements, counts.quarantined, counts.sources) == (0, 0, 0)


ODD = [
    *(ansor([1e308, 1e308]), ansor(float("nan")), ansor(1.0, target="llvm -keys=\0")),
    *(autotvm([1e308, 1e308]), autotvm(target="\0"), ansor(key='["\\u0000", 64]')),
    autotvm().replace("dense", r"den\u0000se"),
    autotvm().replace('"0.8.0"', r'"\u0000"'),
    autotvm().replace('"float32"', r'"\u0000"'),
    ansor().replace('"v0.2"', r'"\u0000"'),
    ansor().replace('"v":', r'"\u0000": 1, "v":'),
    ansor(key=json.dumps(["x" * 30_000, 64])),
    autotvm(target="cuda -model=" + "y" * 10_000),
    json.dumps(workdirs.record([1e308, 1e308])),
    json.dumps(workdirs.record(target={"kind": "\0"})),
    json.dumps(workdirs.record(target={"kind": "llvm", "mcpu": "\0"})),
]


def test_import_stores_other_lines_of_batch_with_an_odd_line(store, tmp_path):
    """Both databases store every line that a reader accepts."""
    for number, line in enumerate(ODD):
        before = store.records.count()
        first, last = ansor(tile=10_000 + number), autotvm(tile=10_000 + number)
        report = bring(store, write(tmp_path / "log", first, line, last))
        assert report.refused is None
        assert report.total.new + report.quarantined == 3, line[:300]
        assert report.quarantined <= 1
        assert store.records.count() == before + report.total.new
    assert len(digests(store)) == store.records.count()
    assert check(store.url).problems == []


@pytest.mark.parametrize("name", ["autotvm v0.1", "ansor v0.6", "metaschedule stream"])
def test_dry_run_reports_counts_and_writes_nothing(name, store, tmp_path):
    path = small_logs.write(tmp_path, small_logs.LOGS[name])
    tables = store.counts()
    dry = bring(store, path, dry_run=True)
    assert store.counts() == tables
    assert dry == bring(store, path)
    with Store(store.url, create=False, read_only=True) as reader:
        known = bring(reader, path, dry_run=True)
    assert known.total.known == small_logs.RECORDS
    assert known == bring(store, path)


def served(store):
    """Return the digests of the records that queries serve."""
    ids = [workload.id for workload in store.workloads.find()]
    return [record.measurement.digest for record in store.records.top_k(ids, k=100)]


def test_foreign_records_are_stored_but_not_served(store, tmp_path):
    path = write(tmp_path / "log", ansor(0.5, tile=1), ansor(0.25, tile=2), ansor(1e10, 2))
    bring(store, path, source="a friend", trust=Trust.FOREIGN)
    assert store.records.count() == 3
    assert served(store) == []
    assert {r.source.trust for r in store.records.iterate()} == {Trust.FOREIGN}
    report = bring(store, write(tmp_path / "own", ansor(0.25, tile=2)), source="own")
    assert report.total == Tally(read=1, known=1)
    assert served(store) == [digests(store)[1]]
    assert [r.source.name for r in store.records.iterate()] == ["a friend", "own", "a friend"]
    # A second import from the friend does not change that.
    bring(store, path, source="a friend", trust=Trust.FOREIGN)
    assert served(store) == [digests(store)[1]]
    assert check(store.url).problems == []


def test_import_quarantines_foreign_trace_with_forbidden_annotation(store, tmp_path):
    """It is quarantined with the reason, and imported once its source is trusted."""
    evil = workdirs.record()
    evil[1][0][0].append(["Annotate", ["b7", '"x.ll"'], ["pragma_import_llvm"], []])
    folder = workdirs.write(tmp_path / "log", [workdirs.record(), evil, workdirs.record([2.0])])
    report = bring(store, folder / "database_tuning_record.json", trust=Trust.FOREIGN)
    assert (report.total.new, report.quarantined) == (2, 1)
    (row,) = store.quarantine.rows()
    assert (row.item.line, row.source.trust) == (2, Trust.FOREIGN)
    assert row.item.reason == (
        "not allowed from a foreign source: tail: Annotate at 3: the annotation "
        "'pragma_import_llvm' is not allowed"
    )
    # A known source keeps its trust, whatever a later import says.
    again = bring(store, folder / "database_tuning_record.json", trust=Trust.OWN)
    assert (again.total.new, again.quarantined) == (0, 1)
    assert retry_quarantine(store).left == 1
    (source,) = store.sources.summaries()
    store.trust.set(source.id, Trust.OWN)
    assert retry_quarantine(store).recovered == 1
    assert store.counts().quarantined == 0


def test_import_quarantines_forbidden_steps_of_foreign_sources_only(store, tmp_path):
    evil = json.loads(ansor(tile=2))
    evil["i"][1][1].append(["PR", 2, 0, "import_llvm$1"])
    path = write(tmp_path / "log", ansor(tile=1), evil)
    assert bring(store, path, source="theirs", trust=Trust.FOREIGN).quarantined == 1
    assert bring(store, path, source="mine").quarantined == 0


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
def test_import_does_not_open_the_database_that_it_writes_to(
    suffix, sqlite_file, tmp_path, monkeypatch
):
    log = write(tmp_path / "log", ansor())
    with Store(sqlite_file) as store:
        bring(store, log)
        own = sqlite_file.with_name(sqlite_file.name + suffix)
        assert own.exists()
        (tmp_path / "link").symlink_to(own)
        (tmp_path / "hard").hardlink_to(own)

        def opened(*_, **__):
            raise AssertionError("it was opened")

        monkeypatch.setattr(importer, "read_log", opened)
        for path in (own, tmp_path / "link", tmp_path / "hard", tmp_path / "." / own.name):
            report = bring(store, path)
            assert report.refused == "it is the database that is written to"
            assert report.total == Tally()
        with pytest.raises(AssertionError):
            bring(store, log)


def test_workloads_without_records_are_stored(store, tmp_path):
    graphs = [workdirs.graph(name) for name in "abc"]
    folder = workdirs.write(tmp_path, [workdirs.record(workload=1)], graphs)
    report = bring(store, folder / "database_tuning_record.json")
    assert (report.workloads, report.total.read) == (3, 1)
    found = sorted((w.name, w.records) for w in store.workloads.find())
    assert found == [("a", 0), ("b", 1), ("c", 0)]
    report = bring(store, folder / "database_workload.json")
    assert (report.workloads, report.total.read) == (3, 0)
    assert store.counts().workloads == 3


NEVER_TIMES = [
    *(line(cost, error) for line, cost in ((ansor, 1e10), (autotvm, 1e9)) for error in range(9)),
    *(ansor([1e10, 1e10], error) for error in (0, 7)),
    *(autotvm([1e9, 1e9], error) for error in (0, 7)),
    *(line(cost, error) for line in (ansor, autotvm) for cost in (0, []) for error in (0, 4)),
    *(ansor([0.0, 0, 0], 0), ansor(0.001, 7), ansor([1e10, 0.001], 6), ansor([1e10, 0.001], 0)),
    *(ansor(-1.0), ansor(0.001, 99), ansor(0.001, True)),
    *(autotvm(1000000000, 0), autotvm(0.001, 7), autotvm([1e9, 0.001], 0), autotvm(-1.0)),
    *(workdirs.record([1e10]), workdirs.record([10000000000]), workdirs.record([1e10, 1e10])),
    *(workdirs.record(None), workdirs.record([]), workdirs.record([-1.0])),
]


def test_sentinels_are_never_a_best_time(store, tmp_path):
    report = bring(store, write(tmp_path / "log", *NEVER_TIMES))
    assert report.total.read + report.quarantined == len(NEVER_TIMES)
    assert report.total.failed + report.total.unmeasured == report.total.read
    assert served(store) == []
    for workload in store.workloads.find():
        assert workload.best is store.records.best([workload.id]) is None
        assert store.records.history([workload.id]) == []


@pytest.mark.parametrize("make", [ansor, autotvm, workdirs.record])
def test_the_worst_time_beats_all_sentinels(make, store, tmp_path):
    bring(store, write(tmp_path / "log", *NEVER_TIMES, make([123.0]), *NEVER_TIMES))
    (workload,) = [w for w in store.workloads.find() if w.best is not None]
    assert workload.best == store.records.best([workload.id]).mean == 123.0
    assert len(store.records.top_k([workload.id], k=100)) == 1


def test_complete_line_removes_its_truncated_version_from_quarantine(store, tmp_path):
    """A killed import and a second one end as one import of the whole log does."""
    path = write(tmp_path / "log", *(ansor(time) for time in (1, 2, 3)), end=b"")
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    report = bring(store, path)
    assert (report.total.new, report.quarantined) == (2, 1)
    again = bring(store, path, dry_run=True)
    assert again.quarantined == store.counts().quarantined == 1
    path.write_bytes(whole)
    report = bring(store, path)
    assert (report.total.new, report.total.known, report.quarantined) == (1, 2, 0)
    assert store.counts().quarantined == 0

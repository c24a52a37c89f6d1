"""Public logs of other people: the import stores all records, and the export writes them back.

The tables of ``SOURCES.md`` beside the files have the expected numbers.
"""

import io
import json
import lzma
import sqlite3
from collections import Counter, defaultdict, deque
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import orjson
import pytest
from effort import EFFORT, long
from public_logs import DATA, MEASURED, needs_logs, sources
from workdirs import canonical, graph_of, pairs

from tunedb.formats.export import export_lines, export_metaschedule
from tunedb.formats.find import find_logs
from tunedb.formats.importer import Tally, import_log
from tunedb.records import Status
from tunedb.storage.store import Store

SECTIONS = ("autotvm", "ansor", "tenset", "metaschedule")
ARCHIVES = DATA / "costmodel" / "roller_ansor"
TENSET = "tenset/derived_layout_sample"

pytestmark = [needs_logs, pytest.mark.examples]


class Expected(NamedTuple):
    """The row of a file in SOURCES.md."""

    records: int
    outcomes: dict[str, int]  # number of error → records; of MetaSchedule "ok" and "inf"
    kinds: dict[str, int]  # kind of target → records

    @property
    def failed(self):
        return sum(number for code, number in self.outcomes.items() if code not in ("0", "ok"))


def numbers(text):
    """Return ``{"0": 12, "4": 3}`` of ``0:12 4:3``."""
    pairs = (item.rsplit(":", 1) for item in text.split())
    return {key: int(number) for key, number in pairs}


def read_sources():
    """Return the rows of the tables by path below the folder of data."""
    found, columns = {}, []
    for _, section, cells in sources():
        if cells[0] == "file":
            columns = cells
        elif section in SECTIONS:
            row = dict(zip(columns, cells, strict=False))
            records, outcomes = row["records"].split()[0], row["error codes (code:count)"]
            kinds = row["targets"] if ":" in row["targets"] else ""
            found[f"{section}/{row['file']}"] = Expected(
                int(records), numbers(outcomes), numbers(kinds)
            )
    return found


SOURCES = read_sources() if DATA.is_dir() else {}


def below(path):
    """Return a path relative to the folder of data."""
    return str(Path(path).resolve().relative_to(DATA))


def import_file(store, file):
    return import_log(store, file, source=file.name)


def is_tried(path):
    """Return whether this run reads a file; a short run reads small and SQLite files alone."""
    is_small = path.suffix == ".sqlite" or path.stat().st_size < 40_000
    return EFFORT != "few" or is_small or path.is_relative_to(MEASURED)


def find(*names):
    return [file for file in find_logs([DATA / name for name in names]) if is_tried(file.path)]


def add_up(reports):
    total = Tally()
    for report in reports:
        total += report.total
    return total


@pytest.fixture(scope="module")
def everything():
    """All logs in one database, as a user would import them, and the reports."""
    with Store(":memory:") as store:
        yield store, {below(file.name): import_file(store, file) for file in find(*SECTIONS)}


def test_import_counts_match_source_tables(everything):
    store, reports = everything
    assert store.counts().quarantined == 0
    formats = defaultdict(Counter)
    for path, report in reports.items():
        assert (path, report.refused, report.quarantined) == (path, None, 0)
        kinds = Counter()
        for (format_, label), tally in report.groups.items():
            kinds[label.split()[0]] += tally.read
            formats[path.split("/")[0]][format_] += tally.read
        if path.startswith(TENSET) or path.endswith("database_workload.sqlite"):
            continue
        expected = SOURCES[path]
        found = report.total.read, report.total.failed, report.total.unmeasured
        assert (path, *found) == (path, expected.records, expected.failed, 0)
        assert not expected.kinds or (path, kinds) == (path, expected.kinds)
    assert {section: set(found) for section, found in formats.items()} == {
        **{"autotvm": {"autotvm"}, "ansor": {"ansor"}, "tenset": {"ansor"}},
        "metaschedule": {"metaschedule", "metaschedule-sqlite"},
    }
    assert formats["metaschedule"]["metaschedule-sqlite"] == 506


def test_source_tables_list_every_log(everything):
    # A workload file is read with the records beside it.
    listed = {path for path in SOURCES if not path.endswith("_workload.json") and "*" not in path}
    assert len(listed) > 70
    read = {path for path in everything[1] if not path.startswith(TENSET)}
    assert read == {path for path in listed if is_tried(DATA / path)}
    assert sum(expected.records for expected in SOURCES.values()) > 28_000


def test_import_reads_measured_and_unmeasured_programs_of_tenset(everything):
    store, reports = everything
    found = {path: report for path, report in reports.items() if path.startswith(TENSET)}
    assert len(found) == SOURCES[f"{TENSET}/**"].records == 12
    assert add_up(found.values()) == Tally(read=12, new=12, unmeasured=6)
    for path, report in found.items():
        assert report.total.unmeasured == ("to_measure_programs" in path)
        # Only measured programs have a folder with the processor's name.
        model = "core-avx2" if "to_measure_programs" in path else "e5-2673"
        assert {label for _, label in report.groups} == {f"llvm {model}"}
    counts = Counter(r.measurement.status for r in store.records.iterate())
    assert counts[Status.UNMEASURED] == 6


@pytest.mark.stress
def test_a_second_import_adds_nothing(everything):
    store, reports = everything
    before = store.counts()
    first = add_up(reports.values())
    second = add_up(import_file(store, file) for file in find(*SECTIONS))
    assert second == Tally(first.read, 0, first.read, first.failed, first.unmeasured)
    assert store.counts() == before


def test_no_sentinel_is_a_best_time(everything):
    best = [w.best for w in everything[0].workloads.find() if w.best is not None]
    assert len(best) > (200 if EFFORT == "few" else 2000)
    assert min(best) > 0
    assert max(best) < 1e6


def test_import_rejects_files_that_are_not_logs(everything):
    store, _ = everything
    before = store.counts()
    tables = [file for file in find("costmodel", "SOURCES.md") if not file.name.endswith(".xz")]
    assert {file.path.suffix for file in tables} == {".tsv", ".md"}
    assert len(tables) > 10
    for file in tables:
        report = import_file(store, file)
        assert report.refused.startswith("no tuning log that tunedb knows (line ")
        assert "\n" not in report.refused
        assert report.total.read == report.quarantined == 0
    assert store.counts() == before


def logs_below(*sections):
    """Return the logs in some folders, for parameters of tests; a short run takes a third."""
    if not DATA.is_dir():
        return []
    # A file of workloads alone is read with the records beside it.
    files = [file for file in find(*sections) if file.path.name != "database_workload.sqlite"]
    found = []
    for number, file in enumerate(files):
        is_long = number % 3 or file.path.suffix == ".sqlite"
        found.append((long if is_long else pytest.param)(file, id=below(file.name)[:100]))
    return found


def lines_of(data):
    """Return the records in a text log: JSON values without comments and blank lines."""
    return [orjson.loads(x) for x in data.splitlines() if x.strip() and not x.startswith(b"#")]


def assert_export_equals(store, name, data):
    """Assert that the export has the lines of a log; return it."""
    out = io.BytesIO()
    report = export_lines(store, name, out)
    lines = lines_of(data)
    assert (report.records, report.left_out) == (len(lines), {})
    for number, (written, read) in enumerate(zip(lines_of(out.getvalue()), lines, strict=True)):
        assert written == read, number
    return out.getvalue()


@pytest.mark.parametrize("file", logs_below("autotvm", "ansor", "tenset"))
def test_export_writes_the_lines_that_were_imported(file):
    name = "autotvm" if "autotvm" in below(file.name).split("/") else "ansor"
    with Store(":memory:") as store:
        import_file(store, file)
        written = assert_export_equals(store, name, file.path.read_bytes())
    expected = SOURCES.get(below(file.name))
    if expected is not None:
        results = [line.get("r") or line["result"] for line in lines_of(written)]
        assert Counter(str(result[1]) for result in results) == expected.outcomes


def pairs_of_sqlite(records):
    beside = records.with_name("database_workload.sqlite")
    with closing(sqlite3.connect(beside)) as file:
        rows = file.execute("SELECT mod FROM workload ORDER BY rowid").fetchall()
    graphs = [graph_of(mod) for (mod,) in rows]
    with closing(sqlite3.connect(records)) as file:
        rows = file.execute(
            "SELECT workload_index, trace, run_secs, target, args_info"
            " FROM tuning_record ORDER BY rowid"
        ).fetchall()
    return [
        (graphs[index], canonical([None if x == "None" else json.loads(x) for x in fields]))
        for index, *fields in rows
    ]


@pytest.mark.parametrize("file", [*logs_below("metaschedule"), *logs_below("measured_cpu")[::7]])
def test_export_writes_the_records_of_imported_work_directories(file, tmp_path):
    with Store(":memory:") as store:
        import_file(store, file)
        report = export_metaschedule(store, tmp_path / "out")
    is_sqlite = file.path.suffix == ".sqlite"
    expected = pairs_of_sqlite(file.path) if is_sqlite else pairs(file.path)
    assert (report.records, report.left_out) == (len(expected), {})
    written = [
        deque(pairs(Path(folder) / "database_tuning_record.json")) for folder in report.directories
    ]
    for number, pair in enumerate(expected):
        # Modules may go to directories of their own; the records of each stay in order.
        folder = next((folder for folder in written if folder and folder[0] == pair), None)
        assert folder is not None, number
        folder.popleft()
    assert not any(written)


@pytest.mark.stress
@pytest.mark.parametrize(
    ("name", "records", "workloads"), [("v100", 88_210, 124), ("k80", 93_076, 117)]
)
def test_archive_of_100_mb_survives_import_and_export(name, records, workloads, sqlite_file):
    lines = (DATA / "SOURCES.md").read_text().splitlines()
    row = next(line for line in lines if line.startswith(f"| roller_ansor/{name}.jsonl.xz"))
    assert f"{records:,}" in row
    assert f"{workloads} workloads" in row
    (file,) = find_logs([ARCHIVES / f"{name}.jsonl.xz"])
    data = lzma.decompress(file.path.read_bytes())
    failed = sum(1 for line in lines_of(data) if line["r"][1])
    with Store(sqlite_file) as store:
        assert import_file(store, file).total == Tally(records, records, 0, failed)
        counts = store.counts()
        found = counts.measurements, counts.workloads, counts.quarantined
        assert found == (records, workloads, 0)
        assert import_file(store, file).total == Tally(records, 0, records, failed)
        assert_export_equals(store, "ansor", data)

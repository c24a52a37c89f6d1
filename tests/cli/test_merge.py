"""``tunedb merge``."""

import json
import shutil
from contextlib import closing

import pytest
from builders import make_measurement, sql
from checks import has, one_line, row_has
from exchanges import rename

from tunedb.exchange.bundle import new_manifest, write_bundle
from tunedb.exchange.database_peer import DatabasePeer
from tunedb.maintenance.check import check
from tunedb.records import Source, Trust
from tunedb.storage.exchange_types import EVERYTHING
from tunedb.storage.store import Store


@pytest.fixture
def theirs(sqlite_template, tmp_path):
    """A database of another team."""
    path = rename(shutil.copyfile(sqlite_template, tmp_path / "theirs.db"), "b" * 32)
    four = [make_measurement(n, (1e-3 * (n + 1),)) for n in range(4)]
    with Store(path) as store:
        store.records.add(four, Source("nightly"))
        store.records.add([make_measurement(9, workload=1)], Source("board"))
    return path


@pytest.fixture
def bundle(theirs, tmp_path):
    """A bundle of that database."""
    path = tmp_path / "theirs.tunedb"
    with closing(DatabasePeer(theirs, own=True)) as peer:
        write_bundle(path, peer.chunks(EVERYTHING), new_manifest(peer.store_key, EVERYTHING))
    return path


def test_merge_reports_new_records_by_source(run, theirs, store_url):
    done = run("--db", store_url, "merge", theirs)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0] == ["source", "database", "new", "known", "rejected"]
    for name, new in (("nightly", "4"), ("board", "1")):
        assert [name, "bbbbbbbb", new, "0", "0"] in lines
    assert lines[-1] == ["total", "5", "0", "0"] and "5 new records" in done.stderr
    assert "nothing new" in run("--db", store_url, "merge", theirs).stderr
    with Store(store_url) as store:
        assert {row.trust for row in store.sources.summaries()} == {Trust.FOREIGN}
    assert check(store_url).problems == []


def test_json_reports_each_file_and_its_sources(run_json, theirs, bundle, sqlite_file):
    first, second = run_json("--db", sqlite_file, "merge", theirs, bundle)
    row_has(first, new=5, known=0, rejected=0, workloads=2, programs=5, reasons=[], store="b" * 32)
    row_has(second, new=0, known=5, store="b" * 32)
    new = {source["name"]: source["new"] for source in first["sources"]}
    assert new == {"nightly": 4, "board": 1}


def test_merge_selects_records_of_a_bundle(run, run_json, bundle, sqlite_file):
    (row,) = run_json("--db", sqlite_file, "merge", bundle, "--source", "board")
    assert (row["new"], [source["name"] for source in row["sources"]]) == (1, ["board"])
    (row,) = run_json("--db", sqlite_file, "merge", bundle, "--workload", "matmul_0")
    assert row["new"] == 4
    done = run("--db", sqlite_file, "merge", bundle, "--workload", "conv2d", code=3)
    assert "conv2d" in done.stderr


def test_merge_reads_bundle_from_standard_input(run_json, bundle, sqlite_file):
    (row,) = run_json("--db", sqlite_file, "merge", "-", input=bundle.read_bytes())
    assert row["new"] == 5


def test_a_dry_run_writes_nothing(run_json, run, theirs, sqlite_file, tmp_path):
    before = sqlite_file.read_bytes()
    (row,) = run_json("--db", sqlite_file, "merge", theirs, "--dry-run")
    row_has(row, new=5, dry_run=True)
    assert sqlite_file.read_bytes() == before
    missing = tmp_path / "missing.db"
    done = run("--db", missing, "merge", theirs, "--dry-run")
    has(done.stderr, "does not exist yet", "dry run: nothing was written")
    assert not missing.exists()


def test_rejected_records_are_reported(run, theirs, sqlite_file):
    """The time of a record is forged, and the name of a source has terminal codes."""
    sql(theirs, "UPDATE measurement SET run_secs = ? WHERE id = 2", bytes(8))
    sql(theirs, "UPDATE source SET name = ? WHERE name = 'board'", "\x1b[31mevil")
    done = run("--db", sqlite_file, "merge", theirs, code=1)
    reasons = ("its digest does not match its contents", "its source was rejected")
    has(done.stderr, "record 2 of nightly", *reasons)
    assert "\x1b" not in done.output
    with Store(sqlite_file) as store:
        assert store.records.count() == 3
        assert [row.name for row in store.sources.summaries()] == ["nightly"]


def test_merge_rejects_names_of_trusted_sources_unless_accepted(run, run_json, theirs, sqlite_file):
    run("--db", sqlite_file, "merge", theirs)
    run("--db", sqlite_file, "trust", "nightly", "verified")
    with Store(theirs) as store:
        store.records.add([make_measurement(77, (1e-9,))], Source("nightly"))
    done = run("--db", sqlite_file, "merge", theirs, code=1)
    assert "give --accept-trusted-names if this really comes from it" in done.stderr
    (row,) = run_json("--db", sqlite_file, "merge", theirs, "--accept-trusted-names")
    row_has(row, new=1, rejected=0)


def test_merge_rejects_invalid_files(run, sqlite_file, bundle, theirs, tmp_path):
    """Each error is one line and changes nothing; records of files merged before stay."""
    before = sqlite_file.read_bytes()
    cut = tmp_path / "cut.tunedb"
    cut.write_bytes(bundle.read_bytes()[:-1])
    other = tmp_path / "other.db"
    sql(other, "CREATE TABLE t (a)")
    for path, code in ((cut, 1), (other, 4), (tmp_path / "none.db", 3), (tmp_path, 1)):
        one_line(run("--db", sqlite_file, "merge", path, code=code))
    assert sqlite_file.read_bytes() == before
    done = run("--db", sqlite_file, "merge", "--json", theirs, cut, code=1)
    assert [row["new"] for row in json.loads(done.stdout)] == [5]

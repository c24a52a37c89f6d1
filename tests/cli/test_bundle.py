"""``tunedb bundle``: selections, files, pipes and priors."""

import json
import lzma

import pytest
import workdirs
from checks import has, row_has
from public_logs import DATA

from tunedb.cli.exchange.selection import moment
from tunedb.exchange.bundle import BundlePeer

KEYS = [
    *("file", "records", "workloads", "bytes", "bytes_per_record", "digest"),
    *("store", "tunedb", "revision", "created_at", "selection", "counts", "card"),
]


def test_bundle_reports_its_contents_and_info_returns_the_same(run_json, run, filled, tmp_path):
    path = tmp_path / "all.tunedb"
    made = run_json("--db", filled, "bundle", "-o", path)
    assert list(made) == KEYS
    row_has(made, records=7, workloads=2, bytes=path.stat().st_size)
    assert (made["counts"]["target"], made["digest"]) == (3, path.read_bytes()[-32:].hex())
    # --info needs no database.
    assert run_json("--db", tmp_path / "none.db", "bundle", "--info", path) == made
    has(
        run("bundle", "--info", path).stdout,
        *("7 records of 2 workloads in ", f"digest     {made['digest']}", "selection  everything"),
    )


def test_bundle_options_select_records(run_json, run, filled, tmp_path):
    path = tmp_path / "x.tunedb"
    words = ("--db", filled, "bundle", "-o", path, "--force")
    for options, records in (
        (("--workload", "softmax"), 1),
        (("--target", "cuda"), 1),
        (("--target", "cuda", "--workload", "softmax", "--workload", "matmul"), 1),
        (("--source", "nightly"), 7),
    ):
        assert run_json(*words, *options)["records"] == records
    made = run_json(*words, "--best", "1", "--rest", "0")
    assert made["records"] < 7 and made["selection"]["best"] == 1
    assert "best" in run("bundle", "--info", path).stdout


def test_moment_converts_dates_and_time_zones_to_microseconds():
    assert moment("1970-01-01") == 0
    assert moment("1970-01-01T00:00:01") == moment("1970-01-01T02:00:01+02:00") == 1_000_000
    assert moment("2026-11-22T08:30:00.000001Z") == 1_795_336_200_000_001


def test_bundle_replaces_a_file_only_by_force(run, filled, tmp_path):
    path = tmp_path / "x.tunedb"
    path.write_bytes(b"mine")
    assert "--force" in run("--db", filled, "bundle", "-o", path, code=2).stderr
    assert path.read_bytes() == b"mine"
    run("--db", filled, "bundle", "-o", path, "--force")
    run("bundle", "--info", path)


def test_bundle_writes_to_stdout_and_info_reads_from_stdin(run, run_json, filled, tmp_path):
    """The bytes of standard output are a complete bundle."""
    path = tmp_path / "x.tunedb"
    made = run("--db", filled, "bundle", "-o", "-")
    assert "7 records of 2 workloads" in made.stderr
    path.write_bytes(made.stdout_bytes)
    assert run_json("bundle", "--info", "-", input=path.read_bytes())["records"] == 7
    with BundlePeer(path) as peer:
        assert peer.total == 7


def test_info_escapes_names_of_files_and_sources(run, tmp_path):
    folder = workdirs.write(tmp_path / "log", [workdirs.record()], [workdirs.graph()])
    db = tmp_path / "x.db"
    run("--db", db, "import", "logs", folder, "--source", "\x1b[31mred")
    name = tmp_path / "\x1b[31m.tunedb"
    run("--db", db, "bundle", "-o", name, "--source", "\x1b[31mred")
    assert "\x1b" not in run("bundle", "--info", name).stdout


def test_real_records_take_a_tenth_of_their_json(run, run_json, tmp_path):
    """They take less than 100 bytes each, and less than the export compressed by xz -9."""
    folder = DATA / "metaschedule" / "mlc-learning_matmul"
    if not folder.is_dir():
        pytest.skip("the public logs are not here")
    db = tmp_path / "real.db"
    run("--db", db, "import", "logs", folder)
    made = run_json("--db", db, "bundle", "-o", tmp_path / "real.tunedb")
    exported = run_json("--db", db, "export", tmp_path / "json")
    assert made["records"] == exported["records"] > 100
    assert made["bytes_per_record"] < 100
    text = b"".join(path.read_bytes() for path in sorted((tmp_path / "json").rglob("*.json")))
    assert made["bytes"] < min(len(text) / 10, len(lzma.compress(text, preset=9)))
    run("--db", tmp_path / "copy.db", "merge", tmp_path / "real.tunedb")
    assert workdirs.contents(tmp_path / "copy.db") == workdirs.contents(db)


def test_bundle_writes_prior_and_sources_shows_its_card(
    run, run_json, filled, tmp_path, monkeypatch
):
    path = tmp_path / "team.prior"
    made = run_json("--db", filled, "bundle", "-o", path, "--as-prior", "--licence", "MIT")
    assert made["card"]["licence"] == "MIT" and made["card"]["workloads"] == 2
    assert run_json("bundle", "--info", path)["card"] == made["card"]
    done = run("--db", filled, "bundle", "-o", path, "--as-prior", "--force", code=2)
    assert "--licence" in done.stderr
    own = run_json("--db", filled, "sources", "--no-prior")
    *rest, last = run_json("--db", filled, "sources", "--prior", path)
    assert rest == own and all(row["card"] is None for row in own)
    row_has(last, trust="shipped", records=7, digest=made["digest"])
    assert last["card"]["licence"] == "MIT"
    monkeypatch.chdir(tmp_path)
    alone = run("sources", "--prior", path, "--json")
    assert json.loads(alone.stdout) == [last]
    assert "no such database" in alone.stderr
    run("sources", "--no-prior", code=3)
    run("--db", tmp_path / "typo.db", "sources", "--prior", path, code=3)
    path.write_bytes(path.read_bytes()[:-1])
    done = run("--db", filled, "sources", "--prior", path)
    assert done.stderr.count("this layer is left out") == 1
    run("--db", filled, "sources", "--prior", path, "--no-prior", code=2)

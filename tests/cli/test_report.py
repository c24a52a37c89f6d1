"""``tunedb report``: the page of a database, of a bundle, and of a tuning run in progress."""

import re
from types import SimpleNamespace

import pytest
from builders import OWN, add, make_measurement

from tunedb.cli.options import Settings
from tunedb.cli.report.page import LivePage
from tunedb.storage.store import Store


@pytest.fixture
def database(sqlite_file):
    """A database with nine records of a workload."""
    with Store(sqlite_file) as store:
        add(store, *(make_measurement(n, (1e-3 * (n + 1),)) for n in range(9)), source=OWN)
    return sqlite_file


def test_report_writes_page_of_the_database(database, run, tmp_path):
    page = tmp_path / "report.html"
    assert "Wrote" in run("--db", database, "report", "-o", page).stderr
    text = page.read_text()
    assert "9 records of 1 workload" in text and "store.db" in text
    assert str(tmp_path) not in text.split("</h1>")[0]


def test_report_compares_bundle_and_database(database, run, tmp_path):
    bundle, page = tmp_path / "b.tunedb", tmp_path / "report.html"
    run("--db", database, "bundle", "-o", bundle)
    run("--db", database, "report", "-o", page, "--bundle", bundle, "--against", database)
    text = page.read_text()
    assert "Tuning database" in text and "b.tunedb" in text and "1.000 ms" in text
    assert re.search(r"1 common task: 0 faster here, 0 slower", text)
    assert "9 records" in text
    run("--db", database, "report", "-o", page, "--against", bundle)
    assert "Against" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([], 2, "give the page a file: tunedb report -o report.html"),
        (["-o", "no/report.html"], 3, "folder"),
        (["-o", "r.html", "--workload", "conv"], 3, "no workload"),
        (["-o", "r.html", "--network", "net"], 3, "tune one: tunedb tune network.onnx"),
        (["-o", "r.html", "--against", "no.db"], 3, "no.db"),
        (["-o", "r.html", "--bundle", "no.tunedb"], 3, "no.tunedb"),
        (["--network", "net", "advisor", "-o", "r.html"], 2, "give the options to advisor"),
    ],
)
def test_report_rejects_invalid_options(database, run, tmp_path, arguments, code, says):
    result = run("--db", database, "report", *arguments, code=code)
    assert says in result.stderr.splitlines()[-1]
    assert not (tmp_path / "work" / "r.html").exists()


def test_old_page_stays_if_a_new_one_cannot_be_written(database, run, mount):
    folder = mount("64k")
    page = folder / "report.html"
    page.write_text("old")
    (folder / "filler").write_bytes(bytes(40_000))
    result = run("--db", database, "report", "-o", page, code=1)
    assert "cannot be written" in result.stderr
    assert page.read_text() == "old" and len(list(folder.iterdir())) == 2


def progress(trials, seconds, latency):
    """Return the progress of a run."""
    networks = [SimpleNamespace(name="net", latency=latency)] if latency else []
    task = SimpleNamespace(name="matmul", best_seconds=1e-3)
    return SimpleNamespace(
        trials=trials, max_trials=64, seconds=seconds, networks=networks, task=task
    )


@pytest.fixture
def live(database, monkeypatch):
    """A function that returns the page of a run on the database."""
    monkeypatch.setenv("TUNEDB_URL", str(database))
    states = [("net", "about 2 ms", False)]
    return lambda path: LivePage(Settings(), path, lambda progress: states)


def test_live_page_refreshes_until_the_run_ends(live, tmp_path):
    path = tmp_path / "live.html"
    page = live(path)
    page.update(progress(8, 6.0, 3e-3))
    first = path.read_text()
    assert (
        'http-equiv="refresh"' in first
        and "8 of 64 trials." in first
        and "net: about 2 ms" in first
    )
    # The next page is due seconds later, so that pages do not slow the run.
    page.update(progress(16, 12.0, 2e-3))
    assert path.read_text() == first
    page.close()
    last = path.read_text()
    assert 'http-equiv="refresh"' not in last and "This run" not in last


def test_a_page_that_cannot_be_written_does_not_stop_the_run(live, tmp_path, capsys):
    path = tmp_path / "live.html"
    page = live(path)
    path.mkdir()
    page.update(progress(8, 6.0, None))
    page.close()
    assert capsys.readouterr().err.count("the page of this run is not written") == 1


def test_a_run_without_a_batch_writes_no_page(live, tmp_path):
    live(tmp_path / "live.html").close()
    assert not (tmp_path / "live.html").exists()

"""``tunedb report``: the page of a database, of a bundle, and of a tuning run in progress."""

from types import SimpleNamespace

import pytest
from builders import OWN, add, make_measurement
from checks import has

from tunedb.cli.options import Settings
from tunedb.cli.report.page import LivePage
from tunedb.storage.store import Store


@pytest.fixture
def database(sqlite_file):
    """A database with nine records of a workload."""
    with Store(sqlite_file) as store:
        add(store, *(make_measurement(n, (1e-3 * (n + 1),)) for n in range(9)), source=OWN)
    return sqlite_file


def test_report_writes_page_of_a_database_and_compares_it_with_a_bundle(database, run, tmp_path):
    bundle, page = tmp_path / "b.tunedb", tmp_path / "report.html"

    def report(*options):
        assert "Wrote" in run("--db", database, "report", "-o", page, *options).stderr
        return page.read_text()

    text = report()
    has(text, "9 records of 1 workload", "store.db")
    assert str(tmp_path) not in text.split("</h1>")[0]
    run("--db", database, "bundle", "-o", bundle)
    text = report("--bundle", bundle, "--against", database)
    has(text, "Tuning database", "b.tunedb", "1.000 ms", "9 records")
    has(text, "1 common task: 0 faster here, 0 slower")
    assert "Against" in report("--against", bundle)


def test_old_page_stays_if_a_new_one_cannot_be_written(database, run, mount):
    folder = mount("64k")
    page = folder / "report.html"
    page.write_text("old")
    (folder / "filler").write_bytes(bytes(40_000))
    assert "cannot be written" in run("--db", database, "report", "-o", page, code=1).stderr
    assert page.read_text() == "old" and len(list(folder.iterdir())) == 2


def progress(trials, seconds, latency):
    """Return the progress of a run."""
    networks = [SimpleNamespace(name="net", latency=latency)] if latency else []
    task = SimpleNamespace(name="matmul", best_seconds=1e-3)
    state = {"trials": trials, "max_trials": 64, "seconds": seconds}
    return SimpleNamespace(**state, networks=networks, task=task)


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
    has(first, 'http-equiv="refresh"', "8 of 64 trials.", "net: about 2 ms")
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
    live(tmp_path / "unused.html").close()
    assert not (tmp_path / "unused.html").exists()

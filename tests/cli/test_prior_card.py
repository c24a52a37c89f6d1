"""``tunedb models card``."""

from dataclasses import replace

import pytest
from builders import OWN
from checks import has, row_has
from small_data import SMALL_STEPS, WORKLOADS, trials

from tunedb.exchange import prior as exchange
from tunedb.models import prior_card
from tunedb.storage.store import Store


@pytest.fixture(autouse=True)
def sets(monkeypatch, sqlite_file, small_sets):
    monkeypatch.setattr(prior_card, "STEPS", SMALL_STEPS)
    quick = lambda recipe, _: replace(recipe, rounds=40, patience=0)  # noqa: E731
    monkeypatch.setattr(prior_card, "tuning_recipe", quick)
    # These programs are of no tool, so their bundle cannot be unpacked.
    monkeypatch.setattr(exchange, "unpacked", lambda path: sqlite_file)


@pytest.fixture
def prior(sqlite_file, tmp_path, run):
    """A function that makes a prior of records and returns its path."""

    def make(records):
        with Store(sqlite_file) as store:
            store.records.add(records, OWN)
        file = tmp_path / "team.prior"
        run("--db", sqlite_file, "bundle", "-o", file, "--as-prior", "--licence", "MIT")
        return file

    return make


def card(run, file, *words, code=0):
    """Run the command for a prior; return the result."""
    return run("models", "card", "--prior", file, "--threads", 1, *words, code=code)


def test_card_reports_held_out_workloads_families_and_hardware(prior, run_json):
    records = [m for target in (0, 1) for one in WORKLOADS for m in trials(one, target=target)]
    found = run_json("models", "card", "--prior", prior(records), "--threads", 1)
    row_has(found, records=len(records), workloads=6, licence="MIT", impossible={})
    rows = {row["regime"]: row for row in found["held_out"]}
    assert list(rows) == ["new-workload", "new-family", "new-hardware"]
    for row in rows.values():
        assert row["pairwise"]["random"] == 0.5
        assert 0 <= row["worst_share"] <= row["top1"]["mean"] <= row["top5"]["mean"] <= 1
        assert "matmul" in row["worst"] or "x86" in row["worst"]
    # The features determine the speed of the programs on any machine.
    hardware = rows["new-hardware"]
    assert hardware["pairwise"]["mean"] > 0.9 and hardware["workloads"] == 6
    assert found["right"] + found["wrong"] + found["unsure"] == 12 and found["right"] > 0


def test_card_reports_regimes_that_cannot_be_held_out(prior, run, run_json):
    file = prior([one for workload in WORKLOADS[:3] for one in trials(workload)])
    printed = card(run, file).stdout
    has(printed, "new-family was left out: ", "new-hardware was left out: ", "new-workload")
    assert "first choice" in printed.lower()
    assert printed.count("in random order") == 1
    found = run_json("models", "card", "--prior", file, "--threads", 1)
    assert f"right {found['right']}, wrong {found['wrong']}, unsure {found['unsure']}" in printed


def test_card_rejects_prior_of_one_workload_in_one_line(prior, run):
    error = card(run, prior(trials(WORKLOADS[0])), code=2).stderr
    assert error.count("\n") == 1 and "nothing can be evaluated" in error


def test_card_needs_a_prior(run, monkeypatch):
    monkeypatch.setenv("TUNEDB_PRIOR", "none")
    error = run("models", "card", code=3).stderr
    assert error == "Error: there is no prior; name one: tunedb models card --prior FILE\n"

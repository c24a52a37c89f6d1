"""``tunedb simulate``."""

import pytest
from builders import OWN
from small_data import SMALL_STEPS, WORKLOADS, trials

from tunedb.cli.models import simulate as module
from tunedb.features import base
from tunedb.models import simulation
from tunedb.records import Origin
from tunedb.storage.store import Store

QUICK = ("--features", "small.steps", "--threads", 1, "--seeds", 1, "-p", "rounds=5")


@pytest.fixture(autouse=True)
def sets(monkeypatch):
    monkeypatch.setattr(base, "load_feature_sets", lambda: ({"small.steps": SMALL_STEPS}, {}))


@pytest.fixture
def pools(sqlite_file):
    """A database with 60 random programs of each of two workloads, without features."""
    with Store(sqlite_file) as store:
        for workload in WORKLOADS[:2]:
            store.records.add(trials(workload, count=60, origin=Origin.RANDOM), OWN)
    return sqlite_file


def simulate(run, path, *arguments, code=0):
    """Run the command; return the result."""
    return run("--db", path, "simulate", *QUICK, *arguments, code=code)


def test_settings_are_compared_with_the_first(pools, run):
    found = simulate(run, pools, "--batch", 16, "--batch", 32, "--random", 0.5)
    lines = found.stdout.splitlines()
    assert lines[0].split("  ")[0] == "settings"
    assert [line.split()[0] for line in lines[1:]] == ["batch=16", "batch=32"]
    assert lines[1].split()[1] == "2"
    assert "(" not in lines[1]
    assert "(" in lines[2]


def test_json_has_every_column(pools, run_json):
    row, other = run_json(
        *("--db", pools, "simulate", *QUICK, "--trials", 40),
        *("--learn-from", "trials", "--learn-from", "all"),
    )
    assert [row["settings"], other["settings"]] == ["learn-from=trials", "learn-from=all"]
    assert set(row) == {column.key for column in module.COLUMNS}
    assert row["difference"] is None
    assert set(other["difference"]) == {"mean", "low", "high"}
    for one in (row, other):
        assert one["workloads"] == 2
        assert 0 < one["early"] <= one["last"] <= 1
        assert 1 <= one["found"] <= 41


def test_single_setting_is_named_as_given(pools, run_json):
    (row,) = run_json("--db", pools, "simulate", *QUICK, "--workload", 1, "--trials", 8)
    assert (row["settings"], row["workloads"]) == ("as given", 1)


def test_simulate_accepts_two_feature_sets(pools, run_json):
    features = ("--features", "small.steps+small.steps", "--weight", 0.0)
    rows = run_json("--db", pools, "simulate", *QUICK, *features)
    assert [row["settings"] for row in rows] == [
        "features=small.steps",
        "features=small.steps+small.steps",
    ]


def test_small_pools_are_refused(small, run):
    found = simulate(run, small, code=3)
    assert f"no workload has {simulation.FEWEST} random programs to search" in found.stderr


def test_interrupted_simulation_is_discarded(pools, run, monkeypatch):
    def interrupt(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(simulation, "simulate", interrupt)
    found = simulate(run, pools, code=130)
    assert "Interrupted; the simulation was discarded" in found.stderr


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        (("--features", "a+b+c"), "one or two feature sets", 2),
        (("--features", "unknown"), "no feature set", 3),
        (("-p", "nothing=1"), "give NAME=VALUE", 2),
        (("--batch", 0), "0 is not in the range", 2),
    ],
)
def test_simulate_rejects_invalid_arguments(pools, run, arguments, words, code):
    assert words in simulate(run, pools, *arguments, code=code).stderr

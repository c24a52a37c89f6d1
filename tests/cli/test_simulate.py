"""``tunedb simulate``."""

import pytest
from builders import OWN
from checks import row_has
from small_data import WORKLOADS, trials

from tunedb.cli.models import simulate as module
from tunedb.records import Origin
from tunedb.storage.store import Store

QUICK = ("--features", "small.steps", "--threads", 1, "--seeds", 1, "-p", "rounds=5")


pytestmark = pytest.mark.usefixtures("small_sets")


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
    assert "(" not in lines[1] and "(" in lines[2]


def test_json_has_every_column(pools, run_json):
    row, other = run_json(
        *("--db", pools, "simulate", *QUICK, "--trials", 40),
        *("--learn-from", "trials", "--learn-from", "all"),
    )
    assert [row["settings"], other["settings"]] == ["learn-from=trials", "learn-from=all"]
    assert set(row) == {column.key for column in module.COLUMNS}
    assert row["difference"] is None and set(other["difference"]) == {"mean", "low", "high"}
    (alone,) = run_json("--db", pools, "simulate", *QUICK, "--workload", 1, "--trials", 8)
    row_has(alone, settings="as given", workloads=1)
    for one in (row, other):
        assert one["workloads"] == 2 and 1 <= one["found"] <= 41
        assert 0 < one["early"] <= one["last"] <= 1


def test_simulate_accepts_two_feature_sets(pools, run_json):
    features = ("--features", "small.steps+small.steps", "--weight", 0.0)
    rows = run_json("--db", pools, "simulate", *QUICK, *features)
    names = ["features=small.steps", "features=small.steps+small.steps"]
    assert [row["settings"] for row in rows] == names


def test_interrupted_simulation_is_discarded(pools, run, interrupt):
    interrupt("tunedb.models.simulation.simulate")
    found = simulate(run, pools, code=130)
    assert "Interrupted; the simulation was discarded" in found.stderr

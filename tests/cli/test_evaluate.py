"""``tunedb evaluate``."""

import json

import pytest
from builders import OWN
from checks import has
from small_data import SMALL_STEPS, WORKLOADS, matmul, measure, sessions_of, trials
from small_data import make_tiled as tiled

from tunedb.cli.models import evaluate as module
from tunedb.models import baselines, splits
from tunedb.models.metrics import FIGURES
from tunedb.models.recipe import Recipe
from tunedb.records import FailureKind
from tunedb.storage.store import Store

QUICK = ("--threads", 1, "--seeds", 2, "-p", "rounds=5", "-p", "patience=0", "-p", "members=1")
LOSS = Recipe().loss

pytestmark = pytest.mark.usefixtures("small_sets")


def made_of(path, batch):
    """Store records and their features in a database; return its path."""
    with Store(path) as store:
        store.records.add(batch, OWN)
        programs = store.programs.without_features(SMALL_STEPS)
        rows = SMALL_STEPS.rows(programs)
        store.features.add(SMALL_STEPS, [(p.id, r) for p, r in zip(programs, rows, strict=True)])
    return path


def test_option_choices_match_the_library():
    assert list(splits.REGIMES) == list(module.REGIMES)
    assert list(splits.POOLS) == list(module.POOLS)
    assert list(baselines.BASELINES) == list(module.BASELINES)


def test_evaluate_prints_figures_differences_and_warnings(small, run):
    found = run("--db", small, "evaluate", *QUICK, "--regime", "new-family", "--pool", "search")
    lines = found.stdout.splitlines()
    assert lines[0].split()[:4] == ["held", "out", "pool", "model"]
    models = [line[len("new-family  search  ") :].split("  ")[0] for line in lines[1:6]]
    assert models == [LOSS, "random", "nearest", "tvm", "(measured once)"]
    assert "0.500 ±0.000" in lines[2] and "±" not in lines[5] and lines[6] == ""
    assert f"{LOSS} - tvm" in found.stdout and f"{LOSS} - random" not in found.stdout
    features, sessions, few = found.stderr.splitlines()
    assert features == "Features: small.steps (choose another set with --features SET)"
    # One record is of a foreign source.
    assert sessions.startswith("Warning: target 1: 2 sessions count as one machine until they")
    warning = "Warning: new-family, search pools: with 6 workloads the means are uncertain by ±"
    assert few.startswith(warning)


def test_json_has_every_figure_with_interval_random_and_skill(small, run):
    found = run("--db", small, "evaluate", *QUICK, "--baseline", "random", "--json")
    rows = json.loads(found.stdout)
    # Neither a fifth of 24 programs nor the eight of random origin make a pool of 10.
    assert {row["pool"] for row in rows} == {"search"}
    assert {row["regime"] for row in rows} == set(module.REGIMES[1:])
    assert "new-family, random pools was left out: none has 10 held-out" in found.stderr
    keys = {"regime", "pool", "model", "workloads", "pools", "programs"}
    for row in rows:
        assert set(row) == keys | set(FIGURES)
        for figure in FIGURES:
            assert set(row[figure]) == {"mean", "low", "high", "tenth", "random", "skill"}
    random = next(row for row in rows if row["model"] == "random")["top5"]
    assert (random["mean"], random["skill"]) == (random["random"], 0.0)
    assert next(row for row in rows if row["model"] == "(measured once)")["top5"]["low"] is None


def test_losses_and_training_sets_are_compared(small, run, run_json):
    only = ("--regime", "new-workload", "--pool", "search")
    words = ("--db", small, "evaluate", *QUICK, *only, "--baseline")
    losses = ("nearest", "--loss", "squared", "--loss", "throughput", "--training-set", "first:8")
    assert "squared - throughput" in run(*words, *losses).stdout
    rows = run_json(*words, *losses, "--training-set", "all")
    assert [row["model"] for row in rows] == [
        *("squared, first:8", "squared, all", "throughput, first:8", "throughput, all"),
        *("nearest", "(measured once)"),
    ]
    rows = run_json(*words, "nearest", "--training-set", "all", "--training-set", "first:8")
    assert [row["model"] for row in rows[:2]] == ["all", "first:8"]
    assert [row["model"] for row in run_json(*words, "none")] == [LOSS, "(measured once)"]


def test_evaluate_writes_report_and_plot(small, run, tmp_path):
    report, plot = tmp_path / "all.json", tmp_path / "all.svg"
    found = run(
        *("--db", small, "evaluate", *QUICK, "--leave-one-out", "--regime", "new-workload"),
        *("--baseline", "random", "--report", report, "--plot", plot),
    )
    has(found.stderr, f"Wrote {report}", f"Wrote {plot}")
    document = json.loads(report.read_text())
    # Two of the six have shapes that are nearly equal.
    assert document["splits"]["new-workload"]["splits"] == 5
    assert len(document["results"][0]["workloads"]) == 6
    assert document["recipes"][LOSS]["rounds"] == 5 and document["noise"] > 0
    assert plot.read_text().startswith("<?xml")


def test_evaluate_rejects_report_or_plot_that_cannot_be_written(small, run, tmp_path):
    for option, name in (("--report", "all.json"), ("--plot", "all.svg")):
        path = tmp_path / "nowhere" / name
        # The folder is checked before the database, which does not exist either.
        found = run("--db", "nowhere.db", "evaluate", *QUICK, option, path, code=3)
        assert f"{path}: folder {path.parent} does not exist; create it" in found.output
    # So is the type of a plot.
    found = run("--db", "nowhere.db", "evaluate", "--plot", "figure.txt", code=2)
    assert "figure.txt: a plot's file ends in .png" in found.output
    options = ("--regime", "new-workload", "--baseline", "random", "--report", "/dev/full")
    found = run("--db", small, "evaluate", *QUICK, *options, code=1)
    assert "No space left on device" in found.output


def test_few_workloads_get_a_warning(sqlite_file, run):
    path = made_of(sqlite_file, [m for one in WORKLOADS[:2] for m in trials(one)])
    message = run("--db", path, "evaluate", *QUICK, "--regime", "new-workload").stderr
    assert "with 1 workload, means and intervals say little about other data" in message
    assert "uncertain by" not in message


def test_impossible_regimes_are_left_out_and_reported(sqlite_file, run, run_json):
    batch = [m for i, one in enumerate(WORKLOADS[:3]) for m in trials(one, size=1 + i)]
    path = made_of(sqlite_file, batch)
    found = run("--db", path, "evaluate", *QUICK)
    has(
        found.stderr.splitlines(),
        "new-family was left out: workloads of two families are needed; there is matmul",
        "new-hardware was left out: two targets, or two machines of one (tunedb sessions), "
        "are needed; there is target 1",
    )
    error = run("--db", path, "evaluate", *QUICK, "--regime", "new-family", code=2)
    assert "Error: nothing can be evaluated (new-family: workloads of two families" in error.output


def test_evaluate_warns_until_sessions_are_compared(sqlite_file, run):
    path = made_of(sqlite_file, [m for one in WORKLOADS[:3] for m in sessions_of(one, 1.3)])
    words = ("--db", path, "evaluate", *QUICK, "--regime", "new-workload")
    warning = "Warning: target 1: 2 sessions count as one machine until they are compared"
    assert warning in run(*words).stderr
    run("--db", path, "sessions", "--update")
    assert "count as one machine" not in run(*words).stderr


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        ([], 3),
        ([measure(tiled(matmul(0), 1), 1, (1e-3,))], 2),
        ([measure(tiled(matmul(0), i), i, FailureKind.TIMEOUT) for i in range(30)], 2),
    ],
    ids=["none", "one", "failures"],
)
def test_evaluate_rejects_too_few_records_in_one_line(sqlite_file, run, batch, code):
    path = made_of(sqlite_file, batch)
    message = run("--db", path, "evaluate", "--features", "small.steps", code=code).stderr
    assert message.count("Error: ") == 1 and message.splitlines()[-1].startswith("Error: ")


def test_interrupted_evaluation_is_discarded(small, run, interrupt):
    interrupt("tunedb.models.evaluation.evaluate")
    message = run("--db", small, "evaluate", code=130).output
    assert "Interrupted; the evaluation was discarded" in message


def test_evaluate_ranks_one_database_by_models_of_another(small, run, run_json, tmp_path):
    theirs = tmp_path / "theirs.db"
    with Store(theirs) as store:
        store.records.add([m for i in (7, 20) for m in trials(matmul(i))], OWN)
    options = (*QUICK, "--features", "small.steps", "--pool", "search", "--baseline", "tvm")
    between = ("--train-db", small, "--test-db", theirs)
    found = run("evaluate", *between, *options, "--json")
    assert "new-hardware was left out: the training database has all targets" in found.stderr
    rows = json.loads(found.stdout)
    assert {(row["regime"], row["model"], row["workloads"]) for row in rows} == {
        # matmul(7) has nearly the shapes of matmul(9), whose programs failed in ours.
        (regime, model, workloads)
        for regime, workloads in (("new-workload", 1), ("new-family", 2))
        for model in (LOSS, "tvm", "(measured once)")
    }
    assert run_json("--db", small, "evaluate", "--test-db", theirs, *options) == rows

"""``tunedb evaluate``."""

import json

import pytest
from builders import OWN
from click.testing import CliRunner
from small_data import SMALL_STEPS, WORKLOADS, matmul, measure, sessions_of, trials
from small_data import make_tiled as tiled

from tunedb.cli import main
from tunedb.cli.models import evaluate as module
from tunedb.features import base
from tunedb.models import baselines, evaluation, splits
from tunedb.models.metrics import FIGURES
from tunedb.models.recipe import Recipe
from tunedb.records import FailureKind
from tunedb.storage.store import Store

QUICK = ("--threads", 1, "--seeds", 2, "-p", "rounds=5", "-p", "patience=0", "-p", "members=1")
LOSS = Recipe().loss


@pytest.fixture(autouse=True)
def sets(monkeypatch):
    monkeypatch.setattr(base, "load_feature_sets", lambda: ({"small.steps": SMALL_STEPS}, {}))


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
    assert "0.500 ±0.000" in lines[2]
    assert "±" not in lines[5]
    assert lines[6] == ""
    assert f"{LOSS} - tvm" in found.stdout
    assert f"{LOSS} - random" not in found.stdout
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
    for row in rows:
        assert set(row) == {
            *("regime", "pool", "model", "workloads", "pools", "programs"),
            *FIGURES,
        }
        for figure in FIGURES:
            assert set(row[figure]) == {"mean", "low", "high", "tenth", "random", "skill"}
    random = next(row for row in rows if row["model"] == "random")
    assert random["top5"]["mean"] == random["top5"]["random"]
    assert random["top5"]["skill"] == 0.0
    assert next(row for row in rows if row["model"] == "(measured once)")["top5"]["low"] is None


def test_losses_and_training_sets_are_compared(small, run, run_json):
    options = ("--loss", "squared", "--loss", "throughput", "--training-set", "first:8")
    only = ("--regime", "new-workload", "--pool", "search", "--baseline", "nearest")
    found = run("--db", small, "evaluate", *QUICK, *options, *only)
    assert "squared - throughput" in found.stdout
    more = ("--training-set", "all")
    rows = run_json("--db", small, "evaluate", *QUICK, *options, *more, *only)
    assert [row["model"] for row in rows] == [
        *("squared, first:8", "squared, all", "throughput, first:8", "throughput, all"),
        *("nearest", "(measured once)"),
    ]
    rows = run_json("--db", small, "evaluate", *QUICK, *more, "--training-set", "first:8", *only)
    assert [row["model"] for row in rows[:2]] == ["all", "first:8"]
    none = run_json("--db", small, "evaluate", *QUICK, *only[:4], "--baseline", "none")
    assert [row["model"] for row in none] == [LOSS, "(measured once)"]


def test_evaluate_writes_report_and_plot(small, run, tmp_path):
    report, plot = tmp_path / "all.json", tmp_path / "all.svg"
    found = run(
        *("--db", small, "evaluate", *QUICK, "--leave-one-out", "--regime", "new-workload"),
        *("--baseline", "random", "--report", report, "--plot", plot),
    )
    assert f"Wrote {report}" in found.stderr
    assert f"Wrote {plot}" in found.stderr
    document = json.loads(report.read_text())
    # Two of the six have shapes that are nearly equal.
    assert document["splits"]["new-workload"]["splits"] == 5
    assert len(document["results"][0]["workloads"]) == 6
    assert document["recipes"][LOSS]["rounds"] == 5
    assert document["noise"] > 0
    assert plot.read_text().startswith("<?xml")


def test_evaluate_rejects_unknown_plot_type_before_it_starts(small, run, monkeypatch):
    monkeypatch.setattr(module, "_evaluate", lambda *_: pytest.fail("too late"))
    found = run("--db", small, "evaluate", "--plot", "figure.txt", code=2)
    assert "figure.txt: a plot's file ends in .png" in found.output


def test_evaluate_rejects_report_or_plot_that_cannot_be_written(small, run, tmp_path):
    path = tmp_path / "nowhere" / "all.json"
    for option in ("--report", "--plot"):
        named = path.with_suffix(".svg") if option == "--plot" else path
        # The folder is checked before the database, which does not exist either.
        found = run("--db", "nowhere.db", "evaluate", *QUICK, option, named, code=3)
        assert f"{named}: folder {path.parent} does not exist; create it" in found.output
    found = run(
        *("--db", small, "evaluate", *QUICK, "--regime", "new-workload", "--baseline", "random"),
        *("--report", "/dev/full"),
        code=1,
    )
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
    lines = [line for line in found.stderr.splitlines() if "left out" in line]
    assert lines[:2] == [
        "new-family was left out: workloads of two families are needed; there is matmul",
        "new-hardware was left out: two targets, or two machines of one (tunedb sessions), "
        "are needed; there is target 1",
    ]
    error = run("--db", path, "evaluate", *QUICK, "--regime", "new-family", code=2)
    assert "Error: nothing can be evaluated (new-family: workloads of two families" in error.output


def test_evaluate_warns_until_sessions_are_compared(sqlite_file, run, run_json):
    path = made_of(sqlite_file, [m for one in WORKLOADS[:3] for m in sessions_of(one, 1.3)])
    found = run("--db", path, "evaluate", *QUICK, "--regime", "new-workload")
    assert "Warning: target 1: 2 sessions count as one machine until they are compared" in (
        found.stderr
    )
    run("--db", path, "sessions", "--update")
    found = run("--db", path, "evaluate", *QUICK, "--regime", "new-workload")
    assert "count as one machine" not in found.stderr


@pytest.mark.parametrize("records", ["none", "one", "failures"])
def test_evaluate_rejects_too_few_records_in_one_line(sqlite_file, run, records):
    program = tiled(matmul(0), 1)
    batch = {
        "none": [],
        "one": [measure(program, 1, (1e-3,))],
        "failures": [measure(tiled(matmul(0), i), i, FailureKind.TIMEOUT) for i in range(30)],
    }[records]
    path = made_of(sqlite_file, batch)
    result = CliRunner().invoke(main, ["--db", str(path), "evaluate", "--features", "small.steps"])
    assert result.exit_code in (2, 3)
    errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("options", "code", "why"),
    [
        (("--features", "no.such"), 3, "no feature set 'no.such'"),
        (("--loss", "no"), 3, "no loss 'no'; there are: "),
        (("--training-set", "first:x"), 2, "first"),
        (("--target", "cuda"), 3, "no target 'cuda'"),
        (("--workload", "nothing"), 3, "no workload 'nothing'"),
        (("--source", "nobody"), 3, "no source 'nobody'"),
        (("-p", "colour=red"), 2, "give NAME=VALUE"),
        (("--held-out", "6"), 2, "6 of 6 workloads cannot be held out"),
        (("--regime", "new-moon"), 2, "'new-moon' is not one of"),
    ],
)
def test_invalid_options_are_refused(small, run, options, code, why):
    only = () if "--regime" in options else ("--regime", "new-workload")
    found = run("--db", small, "evaluate", *QUICK, *only, *options, code=code)
    assert why in found.output


def test_interrupted_evaluation_is_discarded(small, run, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluation, "evaluate", interrupt)
    assert (
        "Interrupted; the evaluation was discarded"
        in run("--db", small, "evaluate", code=130).output
    )


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


def test_train_db_option_needs_test_db(small, run):
    found = run("--db", small, "evaluate", "--train-db", small, code=2)
    assert "give the database to rank too: --test-db OTHER" in found.output
    found = run("--db", small, "evaluate", "--test-db", "nowhere.db", code=3)
    assert "nowhere.db" in found.output

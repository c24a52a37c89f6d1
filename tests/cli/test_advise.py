"""``tunedb advise train``, ``show`` and ``evaluate``."""

import json
import math
import sys

import pytest
from builders import OWN, copied
from checks import one_line, row_has
from click.testing import CliRunner
from observing import blocks_of_kernels

from tunedb.cli import main
from tunedb.storage.store import Store


def fill(path):
    """Put three kernels whose best block has 128 threads into a database; return its path."""
    with Store(path) as store:
        store.records.add(blocks_of_kernels("saxpy", "stencil", "reduce"), OWN)
    return path


@pytest.fixture
def launches(sqlite_file):
    return fill(sqlite_file)


@pytest.fixture(scope="module")
def trained_template(sqlite_template, tmp_path_factory):
    """The database that :func:`trained` copies."""
    path = fill(copied(sqlite_template, tmp_path_factory.mktemp("trained") / "trained.db"))
    arguments = ["--db", str(path), "advise", "train", "--learner", "gain"]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    return path


@pytest.fixture
def trained(trained_template, tmp_path):
    """The same with model 1."""
    return copied(trained_template, tmp_path / "trained.db")


def test_train_show_and_evaluate_find_the_best_block(launches, run, run_json):
    trained = run_json("--db", launches, "advise", "train", "--learner", "gain")
    row_has(trained, learner="gain", launches=72, kernels=["saxpy", "stencil", "reduce"])
    assert trained["balanced_accuracy"]["gain"] > 0.9
    assert trained["margins"]["measured"] is None and trained["margins"]["learnt"] >= 0
    rows = run_json("--db", launches, "advise", "show", "saxpy", "-k", "100")
    assert len(rows) == 24 and {row["source"] for row in rows} == {"learnt"}
    for row in rows:
        threads = row["threads"]
        due = "increase" if threads < 128 else "noChange" if threads == 128 else "decrease"
        assert row["label"] == due
        step = {"increase": threads * 2, "decrease": threads // 2}.get(due)
        assert row["next_block"] == (step and [step, 1, 1])
        assert row["stake"] == pytest.approx(math.exp(0.2 * abs(math.log2(threads / 128))))
        assert (row["expected"] is None) is (row["reasons"] == []) is (due == "noChange")
    record = rows[5]["record"]
    one = run_json("--db", launches, "advise", "show", "SAX", "--record", record)
    assert [row["record"] for row in one] == [record]
    table = run("--db", launches, "advise", "show", "saxpy", "-k", "3")
    assert len(table.stdout.splitlines()) == 4 and "21 more launches" in table.stderr
    found = run_json("--db", launches, "advise", "evaluate", "--learner", "gain")
    rows = [row for row in found if row["split"] == "kernel" and not row["held_out"]]
    methods = {row["method"]: row for row in rows}
    assert set(methods) == {"gain", "majority", "rule", "occupancy", "nothing"}
    assert methods["nothing"]["against_nothing"] == pytest.approx(1)
    ours = methods["gain"]
    assert ours["regret"] < methods["rule"]["regret"]
    assert ours["right"] > ours["wrong"] and ours["measured"] == 0 and ours["worst_loss"] <= 1.01
    assert ours["right"] + ours["wrong"] + ours["unsure"] == ours["rows"] == 72
    assert {row["device"] for row in found if row["held_out"]} == {"RTX 2080 Ti"}


def test_models_lists_an_advisor(trained, run, run_json):
    (row,) = run_json("--db", trained, "models")
    assert row["kind"] == "advisor" and row["size"] > 0 and row["current"] is None
    card = run_json("--db", trained, "models", "show", "1")["card"]
    assert card["learner"] == "gain" and card["learnt"] == 72
    shown = run("--db", trained, "models", "show", "1").stdout
    assert "saxpy, stencil, reduce" in shown and "model 1" in shown
    run("--db", trained, "db", "check")


def test_evaluate_writes_json_report_and_rejects_missing_folder(launches, run, tmp_path):
    path = tmp_path / "all.json"
    options = ("--learner", "gain", "--split", "slice", "--report", path)
    run("--db", launches, "advise", "evaluate", *options)
    assert json.loads(path.read_text())["slices"] == 12
    missing = tmp_path / "no" / "all.json"
    result = run("--db", launches, "advise", "evaluate", "--report", missing, code=3)
    assert "does not exist; create it" in result.stderr


def test_advise_rejects_bad_input(launches, run):
    for args, code, message in (
        (("show", "saxpy"), 3, "make one: tunedb advise train"),
        (("train", "--tolerance", "2"), 2, "--tolerance"),
        (("train", "--learner", "forest"), 2, "forest"),
        (("evaluate", "--split", "row"), 2, "row"),
    ):
        result = run("--db", launches, "advise", *args, code=code)
        assert message in result.stderr.splitlines()[-1]


def test_train_and_evaluate_reject_empty_database(sqlite_file, run):
    for command in ("train", "evaluate"):
        result = run("--db", sqlite_file, "advise", command, "--learner", "gain", code=2)
        assert "tunedb import logs" in result.stderr


def test_show_rejects_unknown_kernel_device_and_model(trained, run):
    for words, message in (
        (("fft",), "there are: reduce, saxpy, stencil"),
        (("saxpy", "--device", "A100"), "--device"),
        (("a", "--model", 9), "model 9"),
    ):
        assert message in run("--db", trained, "advise", "show", *words, code=3).stderr


def test_train_and_evaluate_need_scikit_learn_but_show_does_not(trained, run, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    for command in ("train", "evaluate"):
        line = one_line(run("--db", trained, "advise", command, code=1))
        assert "pip install 'tunedb[advise]'" in line
    run("--db", trained, "advise", "show", "saxpy")

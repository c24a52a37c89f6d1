"""Commands refuse invalid arguments in one line, and leave the database as it was."""

from pathlib import Path

import pytest
from small_data import SmallSteps

TRAIN = ("train", "--threads", 1, "--rounds", 8, "-p", "patience=0")
EVALUATE = ("evaluate", "--threads", 1, "--seeds", 2, "--regime", "new-workload")
SIMULATE = ("simulate", "--features", "small.steps", "--threads", 1, "--seeds", 1)
BUNDLE = ("bundle", "-o", "x")
WORK_DIR = "tunedb export ./work_dir"
NUMBER = "expected a number from 0 on"
RANGE = "is not in the range"

#: Arguments of a command on a database with records, exit code and words of the message.
REFUSED = [
    (("retract", "--reason", "x"), 2, "choose what to retract"),
    (("retract", "1"), 2, "Missing option '--reason'"),
    (("retract", "1", "--reason", "", "--yes"), 2, "a retraction needs a reason"),
    (("retract", "99", "--reason", "x"), 3, "no record '99'"),
    (("retract", "--session", "nope", "--reason", "x"), 3, "no session 'nope'"),
    (("retract", "1", "--not-allowed", "--reason", "x"), 2, "--not-allowed needs --source"),
    (("prune", "--yes"), 2, "--retracted"),
    (("prune", "--yes", "--rest", 1), 2, "--best"),
    (("prune", "--yes", "--rest", "nan", "--best", 1), 2, NUMBER),
    (("prune", "--yes", "--features", "--workload", "matmul"), 2, "--best"),
    (("prune", "--yes", "--best", 0), 2, RANGE),
    (("prune", "--yes", "--best", 10**30), 2, RANGE),
    (("prune", "--yes", "--models", 0), 2, RANGE),
    (("prune", "--yes", "--features", "none.such"), 3, "there are: "),
    (("prune", "--yes", "--best", 1, "--workload", "none"), 3, "no workload 'none'"),
    (("report",), 2, "give the page a file: tunedb report -o report.html"),
    (("report", "-o", "no/report.html"), 3, "folder"),
    (("report", "-o", "r.html", "--workload", "conv"), 3, "no workload"),
    (("report", "-o", "r.html", "--network", "net"), 3, "tune one: tunedb tune network.onnx"),
    (("report", "-o", "r.html", "--against", "no.db"), 3, "no.db"),
    (("report", "-o", "r.html", "--bundle", "no.tunedb"), 3, "no.tunedb"),
    (("report", "--network", "x", "advisor", "-o", "r.html"), 2, "give the options to advisor"),
    (("bundle",), 2, "tunedb bundle -o FILE"),
    ((*BUNDLE, "--info", "x"), 2, "give one of them"),
    ((*BUNDLE, "--rest", "2"), 2, "--best K"),
    ((*BUNDLE, "--best", "0"), 2, RANGE),
    ((*BUNDLE, "--best", "2", "--rest", "nan"), 2, NUMBER),
    ((*BUNDLE, "--best", "2", "--rest", "inf"), 2, NUMBER),
    ((*BUNDLE, "--since", "yesterday"), 2, "2026-11-22"),
    ((*BUNDLE, "--since", "0000-00-00"), 2, "2026-11-22"),
    ((*BUNDLE, "--since", "2020-01-01"), 3, "no record to bundle; nothing was written"),
    ((*BUNDLE, "--workload", "conv"), 3, "no workload 'conv'"),
    ((*BUNDLE, "--source", "weekly"), 3, "no source 'weekly'"),
    ((*BUNDLE, "--target", "hexagon"), 3, "no target 'hexagon'"),
    (("bundle", "-o", "-", "--json"), 2, "-o FILE"),
    (("bundle", "-o", "."), 2, "a directory"),
    (("bundle", "--info", "."), 2, "a directory"),
    (("bundle", "--info", "none.tunedb"), 3, "none.tunedb: no such file"),
    (("export",), 2, WORK_DIR),
    (("export", "-o", "x"), 2, WORK_DIR),
    (("export", "--format", "ansor", "x"), 2, "tunedb export --format ansor -o x"),
    (("export", "--format", "ansor", "--json"), 2, "-o FILE"),
    (("export", "--format", "metaschedule-sqlite", "x"), 2, "ansor, arrow, autotvm, csv, meta"),
    (("export", "--format", "csv", "x"), 2, "tunedb export --format csv -o x"),
    (("export", "--format", "csv", "-o", "x", "--table", "features"), 3, "run: tunedb extract"),
    (("export", "--format", "csv", "-o", "x", "--table", "trials"), 2, "'trials' is not one of"),
    (("export", "--format", "ansor", "-o", "x", "--table", "best"), 2, "has no tables"),
    (("export", "--format", "xls", "-o", "x"), 2, "there are: ansor, arrow, autotvm, csv, "),
    (("export", "x", "--target", "hexagon"), 3, "no target 'hexagon'"),
    (("export", "x", "--workload", "conv"), 3, "no workload 'conv'"),
    (("top", "--json", "--csv"), 2, "only one"),
    (("top", "-k", "0"), 2, RANGE),
    (("top", "matmull"), 3, "nearest: matmul"),
    (("top", "--target", "lvm"), 3, "nearest: llvm"),
    (("top", "--target", "lvm"), 3, "2 (cuda sm_90)"),
    (("top", "zzzz"), 3, "tunedb workloads"),
    (("top", "--target", "{nonsense"), 2, "{nonsense"),
    (("top", "--network"), 3, "no network was tuned yet; tune one: tunedb tune network.onnx"),
    (("top", "matmul", "--network", "net"), 2, "--network shows a whole run"),
    (("history",), 2, "Missing argument"),
    (("history", "nothing"), 3, "no workload 'nothing'"),
    (("quarantine", "show", 9), 3, "tunedb quarantine list"),
    (("quarantine", "show", 1, "--raw", "--json"), 2, "give only one of --raw and --json"),
    (("quarantine", "list", "--file", "c.log"), 3, "tunedb quarantine list"),
    (("quarantine", "retry", 1, 7), 3, "7"),
    (("quarantine", "retry", 1, "--file", "a.log"), 2, "--file"),
    (("quarantine", "--file", "a.log", "retry"), 2, "tunedb quarantine retry"),
    (("sessions", "--target", "hexagon"), 3, "no target 'hexagon'"),
    (("db", "trust"), 2, "name the database"),
    (("db", "trust", "--forget"), 2, "name the database"),
    (("db", "trust", "--list", "x.db"), 2, "--list takes no URL and no other option"),
    (("db", "trust", "--list", "--yes"), 2, "--list takes no URL and no other option"),
    (("convert", "--define", "matmul"), 2, "NAME=package.module:function, not 'matmul'"),
    (("convert", "--bind", "batch=1"), 2, "need --module MODULE"),
    (("convert", "--no-prepack"), 2, "need --module MODULE"),
    (("convert", "--layout", "keep"), 2, "need --module MODULE"),
]

#: The same on a database to learn from.
TRAINING_REFUSED = [
    ((*TRAIN, "--loss", "nothing"), 3, "'nothing'; there are: log, rank, relative, squared"),
    ((*TRAIN, "--rows", "x"), 3, "no row model 'x'; there are: aggregated, pack-sum"),
    ((*TRAIN, "--label", "x"), 3, "no label 'x'; there are: mean, median, minimum"),
    ((*TRAIN, "--training-set", "x"), 3, "no training set 'x'"),
    ((*TRAIN, "--training-set", "first:x"), 2, "takes a number of programs"),
    ((*TRAIN, "--features", "x"), 3, "no feature set 'x'"),
    ((*TRAIN, "--source", "x"), 3, "no source 'x'; there are: 1 (own), 2 (foreign)"),
    ((*TRAIN, "--target", "x"), 3, "no target 'x'"),
    ((*TRAIN, "--workload", "zzz"), 3, "no workload 'zzz'"),
    ((*TRAIN, "-p", "eta"), 2, "-p eta: give NAME=VALUE of one of: features, rows"),
    ((*TRAIN, "-p", "speed=1"), 2, "give NAME=VALUE"),
    ((*TRAIN, "-p", "rounds=1.5"), 2, "rounds takes a whole number"),
    ((*TRAIN, "-p", "eta=fast"), 2, "eta takes a number"),
    ((*TRAIN, "-p", "corrected=perhaps"), 2, "corrected takes yes or no"),
    ((*TRAIN, "-p", "gamma=-1"), 2, "XGBoost rejects the recipe"),
    ((*TRAIN, "-p", "eta=0"), 2, "a recipe with eta 0.0; the least is 1e-06"),
    ((*TRAIN, "-p", "members=2000"), 2, "a recipe with members 2000; the greatest is 1000"),
    ((*TRAIN, "-p", f"seed={10**20}"), 2, "the greatest is 18446744073709551615"),
    ((*TRAIN, "--failures", "--loss", "squared"), 2, "need loss logistic, not squared; leave out"),
    ((*TRAIN, "--failures", "-p", "patience=5"), 2, "models of failures need patience 0, not 5"),
    ((*TRAIN, "--failures", "--card-only"), 2, "--failures takes no"),
    ((*TRAIN, "--threads", 0), 2, RANGE),
    ((*TRAIN, "--external", "x"), 2, "'x' is not one of"),
    ((*EVALUATE, "--features", "no.such"), 3, "no feature set 'no.such'"),
    ((*EVALUATE, "--loss", "no"), 3, "no loss 'no'; there are: "),
    ((*EVALUATE, "--training-set", "first:x"), 2, "first"),
    ((*EVALUATE, "--target", "cuda"), 3, "no target 'cuda'"),
    ((*EVALUATE, "--workload", "nothing"), 3, "no workload 'nothing'"),
    ((*EVALUATE, "--source", "nobody"), 3, "no source 'nobody'"),
    ((*EVALUATE, "-p", "colour=red"), 2, "give NAME=VALUE"),
    ((*EVALUATE, "--held-out", "6"), 2, "6 of 6 workloads cannot be held out"),
    ((*EVALUATE, "--regime", "new-moon"), 2, "'new-moon' is not one of"),
    ((*EVALUATE, "--train-db", "x.db"), 2, "give the database to rank too: --test-db OTHER"),
    ((*EVALUATE, "--test-db", "nowhere.db"), 3, "nowhere.db"),
    ((*SIMULATE, "--features", "a+b+c"), 2, "one or two feature sets"),
    ((*SIMULATE, "--features", "unknown"), 3, "no feature set"),
    ((*SIMULATE, "-p", "nothing=1"), 2, "give NAME=VALUE"),
    ((*SIMULATE, "--batch", 0), 2, RANGE),
    (SIMULATE, 3, "no workload has"),
]


def named(rows):
    return [pytest.param(*row, id=" ".join(map(str, row[0]))) for row in rows]


def refuse(run, path, words, code, message):
    """Run a command that must refuse its arguments."""
    result = run("--db", path, *words, code=code)
    last = result.stderr.splitlines()[-1]
    assert last.startswith("Error: ") and message in last
    assert result.stdout == ""
    assert "Computing" not in result.stderr or code == 2
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(("words", "code", "message"), named(REFUSED))
def test_commands_refuse_invalid_arguments(words, code, message, run, filled):
    before = filled.read_bytes()
    refuse(run, filled, words, code, message)
    assert filled.read_bytes() == before


@pytest.mark.parametrize(("words", "code", "message"), named(TRAINING_REFUSED))
def test_training_commands_refuse_invalid_arguments(words, code, message, run, small, small_sets):
    """A wrong name is found before anything is computed."""
    small_sets["steps"] = SmallSteps("steps")
    refuse(run, small, words, code, message)

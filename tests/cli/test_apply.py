"""``tunedb apply`` and ``tunedb explain module``."""

import json
from contextlib import closing

import numpy as np
import tvm
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from twice import KERNELS

from tunedb.plugins.metaschedule import Database
from tunedb.plugins.metaschedule.deploy.apply import tasks_of
from tunedb.plugins.metaschedule.module_source import load_module

TARGET = {"kind": "llvm", "num-cores": 2, "mcpu": "x86-64-v2"}
OTHER = {**TARGET, "num-cores": 8}


def tune(path, kernels, function, target=None, run_secs=(1e-3,)):
    """Store a record for a function of a module, as tuning would do."""
    target = target or TARGET
    (task,) = tasks_of(load_module(kernels, function=function), target).values()
    sch = Schedule(task)
    sch.parallel(sch.get_loops(sch.get_sblock("B"))[0])
    commit(path, target, task, sch, list(run_secs))


def commit(path, target, task, sch, run_secs):
    """Store a record of a schedule."""
    with closing(Database(path, target=target)) as database:
        info = ms.arg_info.ArgInfo.from_entry_func(task)
        workload = database.commit_workload(task)
        database.commit_tuning_record(
            ms.database.TuningRecord(sch.trace, workload, run_secs, database.tvm_target, info)
        )


def test_apply_compiles_library_from_stored_records(run, run_json, tuned, kernels, tmp_path):
    library = tmp_path / "kernels.so"
    rows = run_json("--db", tuned, "apply", kernels, "-o", library)
    assert [(row["function"], row["record"], row["mean"]) for row in rows] == [
        ("thrice", None, None),
        ("twice", 1, 1e-3),
    ]
    assert {row["target"] for row in rows} == {"llvm x86-64-v2 2 cores"}
    assert [row["threads"] for row in rows] == [None, 2]
    made = tvm.runtime.load_module(str(library))
    for name, factor, extent in (("twice", 2, 32), ("thrice", 3, 48)):
        a = np.arange(extent, dtype="float32")
        b = tvm.runtime.tensor(np.zeros_like(a))
        made[name](tvm.runtime.tensor(a), b)
        assert np.array_equal(b.numpy(), factor * a)


def test_apply_prints_records_and_advice(run, tuned, kernels, tmp_path):
    script = tmp_path / "scheduled.py"
    done = run("--db", tuned, "apply", kernels, "-o", script)
    assert "twice" in done.stdout and "1.000 ms" in done.stdout
    assert f"Wrote {script} for llvm x86-64-v2 2 cores" in done.stderr
    assert (
        f"1 function without a record; for the reason, run: tunedb explain module {kernels}"
        in done.stderr
    )
    assert "The records were measured with TVM_NUM_THREADS=2; set it where" in done.stderr


def test_apply_writes_scheduled_module_as_script(run, tuned, kernels, tmp_path):
    script = tmp_path / "scheduled.py"
    run("--db", tuned, "apply", kernels, "-o", script, "--function", "twice")
    mod = load_module(script)
    assert "T.parallel(32)" in mod["twice"].script()
    other = tmp_path / "scheduled.txt"
    run("--db", tuned, "apply", kernels, "-o", other, "--script")
    assert "T.parallel(32)" in other.read_text()


def test_apply_writes_nothing_if_a_required_function_has_no_record(run, tuned, kernels, tmp_path):
    library = tmp_path / "kernels.so"
    for options in (["--function", "thrice"], ["--all"]):
        done = run("--db", tuned, "apply", kernels, "-o", library, *options, code=3)
        assert "no record for thrice; nothing was written" in done.stderr
        assert f"tunedb explain module {kernels}" in done.stderr
    assert not library.exists()


def test_apply_selects_target_and_rejects_missing_or_ambiguous_one(
    run, sqlite_file, tuned, kernels, tmp_path
):
    out = ["-o", tmp_path / "scheduled.py"]
    done = run("--db", sqlite_file, "apply", kernels, *out, code=3)
    assert (
        "no record to serve; measure some: tunedb tune MODULE; or measure nothing: "
        "tunedb apply MODULE -o FILE --predict" in done.stderr
    )
    tune(tuned, kernels, "twice", OTHER)
    done = run("--db", tuned, "apply", kernels, *out, code=2)
    assert (
        "several targets; choose one with --target: 1 (llvm x86-64-v2 2 cores), 2 (llvm x86-64-v2 8"
        in done.stderr
    )
    done = run("--db", tuned, "apply", kernels, *out, "--target", "2")
    assert "for llvm x86-64-v2 8 cores" in done.stderr
    # A target that is not stored, without and with compatible ones.
    other = ["--target", json.dumps({**TARGET, "num-cores": 4})]
    run("--db", tuned, "apply", kernels, *out, *other, code=3)
    assert run("--db", tuned, "apply", kernels, *out, *other, "--compatible").exit_code == 0
    done = run("--db", tuned, "apply", kernels, *out, "--target", "9", code=3)
    assert "no target '9'" in done.stderr


def test_apply_refuses_invalid_outputs(run, tuned, kernels, tmp_path):
    for name, words, code in (
        ("kernels.exe", "a library's name ends in one of .so", 2),
        ("nowhere/kernels.so", "kernels.so: cannot be written", 1),
        ("nowhere/kernels.py", "kernels.py: cannot be written", 1),
    ):
        done = run("--db", tuned, "apply", kernels, "-o", tmp_path / name, code=code)
        assert words in done.stderr
    for spec in (kernels, f"{kernels}:Kernels"):
        done = run("--db", tuned, "apply", spec, "-o", kernels, code=2)
        assert "is the module itself" in done.stderr
    assert kernels.read_text() == KERNELS
    done = run("--db", tuned, "apply", "none.py", "-o", tmp_path / "x.so", code=3)
    assert "none.py: no such file" in done.stderr
    run("--db", tuned, "apply", kernels, code=2)


def test_explain_reports_record_or_reason_for_each_function(
    run, run_json, tuned, kernels, monkeypatch
):
    thrice, twice = run_json("--db", tuned, "explain", "module", kernels)
    assert (twice["record"], twice["mean"], twice["reasons"]) == (1, 1e-3, [])
    assert (thrice["function"], thrice["record"]) == ("thrice", None)
    assert [reason["code"] for reason in thrice["reasons"]] == ["unknown"]
    (near,) = thrice["nearest"]
    assert near["workload_id"] == 1
    # The name differs too, but is not reported.
    assert near["difference"]["where"] == "argument 1 (A), shape[0]"
    # As an object of a Python module, too.
    monkeypatch.chdir(kernels.parent)
    text = run("--db", tuned, "explain", "module", "kernels:Kernels").stdout
    assert "twice: record 1 of workload 1, 1.000 ms" in text
    assert "thrice: no record for llvm x86-64-v2 2 cores" in text
    assert "argument 1 (A), shape[0] is 48 here, 32 there" in text


def test_explain_names_the_layer_that_answers(
    run, run_json, sqlite_file, tuned, kernels, tmp_path, monkeypatch
):
    made = tmp_path / "team.prior"
    run("--db", tuned, "bundle", "-o", made, "--as-prior", "--licence", "MIT")
    words = ("--db", sqlite_file, "explain", "module", kernels, "--target", json.dumps(TARGET))
    for others, layer in ((("--layer", tuned), str(tuned)), (("--prior", made), "shipped")):
        _, twice = run_json(*words, *others)
        assert (twice["record"], twice["workload_id"], twice["mean"]) == (1, None, 1e-3)
        assert twice["layer"] == layer
    monkeypatch.setenv("TUNEDB_PRIOR", str(made))
    assert "twice: record 1 of shipped, 1.000 ms" in run(*words).stdout
    _, twice = run_json(*words, "--no-prior")
    assert (twice["record"], twice["layer"]) == (None, None)


def test_explain_reports_differing_target_unless_compatible(run, run_json, tuned, kernels):
    other = ["--target", json.dumps(OTHER)]
    _, twice = run_json("--db", tuned, "explain", "module", kernels, *other)
    assert [reason["code"] for reason in twice["reasons"]] == ["target"]
    assert "num-cores 8 here, 2 there" in twice["reasons"][0]["text"]
    _, twice = run_json("--db", tuned, "explain", "module", kernels, *other, "--compatible")
    assert twice["record"] == 1


def test_predict_without_database_compiles_default_schedules(run, tmp_path, kernels):
    library = tmp_path / "kernels.tar"
    done = run("--db", tmp_path / "none.db", "apply", kernels, "-o", library, "--predict", "--json")
    rows = json.loads(done.stdout)
    assert {(row["function"], row["kind"], row["share"]) for row in rows} == {
        ("twice", "default", None),
        ("thrice", "default", None),
    }
    assert done.stderr.count("nothing is known") == 1
    assert library.exists() and not (tmp_path / "none.db").exists()
    library.unlink()
    words = ["apply", kernels, "-o", library, "--predict", "--all"]
    run("--db", tmp_path / "none.db", *words, code=3)
    assert not library.exists()

"""``tunedb apply`` and ``tunedb explain module``."""

import json
from contextlib import closing

import numpy as np
import pytest
import tvm
from checks import has, row_has
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
    found = [(row["function"], row["record"], row["mean"], row["threads"]) for row in rows]
    assert found == [("thrice", None, None, None), ("twice", 1, 1e-3, 2)]
    assert {row["target"] for row in rows} == {"llvm x86-64-v2 2 cores"}
    made = tvm.runtime.load_module(str(library))
    for name, factor, extent in (("twice", 2, 32), ("thrice", 3, 48)):
        a = np.arange(extent, dtype="float32")
        b = tvm.runtime.tensor(np.zeros_like(a))
        made[name](tvm.runtime.tensor(a), b)
        assert np.array_equal(b.numpy(), factor * a)


def test_apply_verify_leaves_out_a_program_with_wrong_results(run, run_json, kernels, tmp_path):
    path, library = tmp_path / "store.db", tmp_path / "kernels.so"
    tune(path, kernels, "thrice")
    (task,) = tasks_of(load_module(kernels, function="twice"), TARGET).values()
    sch = Schedule(task)
    block = sch.get_sblock("B")
    sch.cache_write(block, 0, "global")
    # Legal for TVM, but rounded.
    sch.unsafe_set_dtype(block, 0, "float16")
    sch.enter_postproc()
    commit(path, TARGET, task, sch, [1e-3])
    command = ("--db", path, "apply", kernels, "-o", library, "--verify")
    thrice, twice = run_json(*command)
    row_has(thrice, record=1, doubt=None)
    assert twice["record"] is None and twice["doubt"].startswith("it deviates by ")
    note = f"twice: {twice['doubt']}; its program is left out"
    has(run(*command).stderr, note, "1 program verified")


def test_apply_writes_scheduled_module_as_script(run, tuned, kernels, tmp_path):
    script = tmp_path / "scheduled.py"
    done = run("--db", tuned, "apply", kernels, "-o", script)
    has(done.stdout, "twice", "1.000 ms")
    has(
        done.stderr,
        f"Wrote {script} for llvm x86-64-v2 2 cores",
        f"1 function without a record; for the reason, run: tunedb explain module {kernels}",
        "The records were measured with TVM_NUM_THREADS=2; set it where",
    )
    assert "T.parallel(32)" in load_module(script)["twice"].script()
    other = tmp_path / "scheduled.txt"
    run("--db", tuned, "apply", kernels, "-o", other, "--script", "--function", "twice")
    assert "T.parallel(32)" in other.read_text()


def test_apply_writes_nothing_if_a_required_function_has_no_record(run, tuned, kernels, tmp_path):
    library = tmp_path / "kernels.so"
    for options in (["--function", "thrice"], ["--all"]):
        message = run("--db", tuned, "apply", kernels, "-o", library, *options, code=3).stderr
        advice = f"tunedb explain module {kernels}"
        has(message, "no record for thrice; nothing was written", advice)
    assert not library.exists()


def test_apply_selects_target_and_rejects_missing_or_ambiguous_one(
    run, sqlite_file, tuned, kernels, tmp_path
):
    words = ("apply", kernels, "-o", tmp_path / "scheduled.py")
    message = run("--db", sqlite_file, *words, code=3).stderr
    advice = "measure some: tunedb tune MODULE; or measure nothing: tunedb apply MODULE -o FILE"
    assert f"no record to serve; {advice} --predict" in message
    tune(tuned, kernels, "twice", OTHER)
    words = ("--db", tuned, *words)
    both = "1 (llvm x86-64-v2 2 cores), 2 (llvm x86-64-v2 8"
    assert f"several targets; choose one with --target: {both}" in run(*words, code=2).stderr
    assert "for llvm x86-64-v2 8 cores" in run(*words, "--target", "2").stderr
    # A target that is not stored, without and with compatible ones.
    other = ("--target", json.dumps({**TARGET, "num-cores": 4}))
    run(*words, *other, code=3)
    run(*words, *other, "--compatible")
    assert "no target '9'" in run(*words, "--target", "9", code=3).stderr


def test_apply_refuses_invalid_outputs(run, tuned, kernels, tmp_path):
    def refused(module, *options, code):
        return run("--db", tuned, "apply", module, *options, code=code).stderr

    for name, words, code in (
        ("kernels.exe", "a library's name ends in one of .so", 2),
        ("nowhere/kernels.so", "kernels.so: cannot be written", 1),
        ("nowhere/kernels.py", "kernels.py: cannot be written", 1),
    ):
        assert words in refused(kernels, "-o", tmp_path / name, code=code)
    for spec in (kernels, f"{kernels}:Kernels"):
        assert "is the module itself" in refused(spec, "-o", kernels, code=2)
    assert kernels.read_text() == KERNELS
    assert "none.py: no such file" in refused("none.py", "-o", tmp_path / "x.so", code=3)
    assert "Missing option '-o'" in refused(kernels, code=2)


def test_explain_reports_record_or_reason_for_each_function(
    run, run_json, tuned, kernels, monkeypatch
):
    thrice, twice = run_json("--db", tuned, "explain", "module", kernels)
    row_has(twice, record=1, mean=1e-3, reasons=[])
    row_has(thrice, function="thrice", record=None)
    assert [reason["code"] for reason in thrice["reasons"]] == ["unknown"]
    (near,) = thrice["nearest"]
    # The name differs too, but is not reported.
    assert (near["workload_id"], near["difference"]["where"]) == (1, "argument 1 (A), shape[0]")
    # As an object of a Python module, too.
    monkeypatch.chdir(kernels.parent)
    has(
        run("--db", tuned, "explain", "module", "kernels:Kernels").stdout,
        "twice: record 1 of workload 1, 1.000 ms",
        "thrice: no record for llvm x86-64-v2 2 cores",
        "argument 1 (A), shape[0] is 48 here, 32 there",
    )


def test_explain_names_the_layer_that_answers(
    run, run_json, sqlite_file, tuned, kernels, tmp_path, monkeypatch
):
    made = tmp_path / "team.prior"
    run("--db", tuned, "bundle", "-o", made, "--as-prior", "--licence", "MIT")
    words = ("--db", sqlite_file, "explain", "module", kernels, "--target", json.dumps(TARGET))
    for others, layer in ((("--layer", tuned), str(tuned)), (("--prior", made), "shipped")):
        _, twice = run_json(*words, *others)
        row_has(twice, record=1, workload_id=None, mean=pytest.approx(1e-3), layer=layer)
    monkeypatch.setenv("TUNEDB_PRIOR", str(made))
    assert "twice: record 1 of shipped, 1.000 ms" in run(*words).stdout
    _, twice = run_json(*words, "--no-prior")
    row_has(twice, record=None, layer=None)


def test_explain_reports_differing_target_unless_compatible(run_json, tuned, kernels):
    words = ("--db", tuned, "explain", "module", kernels, "--target", json.dumps(OTHER))
    _, twice = run_json(*words)
    (reason,) = twice["reasons"]
    assert reason["code"] == "target" and "num-cores 8 here, 2 there" in reason["text"]
    _, twice = run_json(*words, "--compatible")
    assert twice["record"] == 1


def test_predict_without_database_compiles_default_schedules(run, tmp_path, kernels):
    library = tmp_path / "kernels.tar"
    words = ("--db", tmp_path / "none.db", "apply", kernels, "-o", library, "--predict")
    done = run(*words, "--json")
    rows = json.loads(done.stdout)
    found = {(row["function"], row["kind"], row["share"]) for row in rows}
    assert found == {("twice", "default", None), ("thrice", "default", None)}
    assert done.stderr.count("nothing is known") == 1
    assert library.exists() and not (tmp_path / "none.db").exists()
    library.unlink()
    run("--db", ":memory:", *words[2:])
    library.unlink()
    run(*words, "--all", code=3)
    assert not library.exists()

"""Records of auto_scheduler and AutoTVM: import, show, top, workloads and export."""

import gzip
import json

import pytest
from checks import has, row_has
from legacy import ANSOR, AUTOTVM

from tunedb.system.text import NOTHING


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def many(count):
    """Return lines of auto_scheduler with different times."""
    times = ([[0.001 + number], 0, 1.0, 1700000000] for number in range(count))
    return [json.dumps({**ANSOR[0], "r": result}) + "\n" for result in times]


def test_import_reads_lines_of_two_tools_in_one_file(run, run_json, sqlite_file, tmp_path):
    log = tmp_path / "log"
    log.write_text("# a comment\n" + "\n".join(map(json.dumps, [*ANSOR, *AUTOTVM, {"v": 1}])))
    command = ["--db", sqlite_file, "import", "logs", log]
    (row,) = run_json(*command, "--dry-run")
    row_has(row, read=4, new=4, failed=2, skipped=1)
    text = run(*command).stdout.splitlines()
    assert [line.split()[1:] for line in text[1:]] == [
        ["ansor", "llvm", "core-avx2", "2", "2", "0", "1", "0"],
        ["autotvm", "cuda", "2", "2", "0", "1", "0"],
        # A line that was not understood has no target.
        [NOTHING, NOTHING, "0", "0", "0", "0", "1"],
        ["4", "4", "0", "2", "1"],
    ]


def test_import_reads_gzip_from_standard_input(run_json, sqlite_file):
    data = gzip.compress("\n".join(map(json.dumps, ANSOR)).encode())
    (row,) = run_json("--db", sqlite_file, "import", "logs", "-", input=data)
    row_has(row, path="<stdin>", source="stdin", new=2)


def test_import_sums_up_many_files(run, sqlite_file, tmp_path):
    (tmp_path / "logs").mkdir()
    for number, line in enumerate(many(30)):
        (tmp_path / "logs" / f"{number}.json").write_text(line)
    for number in range(3):
        (tmp_path / "logs" / f"{number}.txt").write_text("no log")
    result = run("--db", sqlite_file, "import", "logs", tmp_path / "logs")
    heading, row = result.stdout.splitlines()
    assert heading.split() == ["format", "target", "files", "read", "new", "known"]
    assert row.split() == ["ansor", "llvm", "core-avx2", "30", "30", "30", "0"]
    has(result.stderr, "30 records in 30 files, 30 new", "3 files not read", "2.txt: no tuning log")


def test_import_rejects_files_without_any_log(run, sqlite_file, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text("no log")
    command = ["--db", sqlite_file, "import", "logs", tmp_path / "a", tmp_path / "b"]
    result = run(*command, code=1)
    assert result.stderr.splitlines()[-1] == "Error: nothing to import in 2 files"
    assert result.stdout == ""
    # With a log among them the import succeeds.
    (tmp_path / "c").write_text(json.dumps(ANSOR[0]))
    run(*command, tmp_path / "c")


def test_show_prints_steps_of_ansor_record(run, run_json, legacy_file):
    shown = run_json("--db", legacy_file, "show", 1)
    keys = ("number", "code", "name", "stage", "loop", "arguments")
    split = {"extent": 128, "lengths": [4, 8], "inner_to_outer": True}
    assert shown["steps"] == [
        dict(zip(keys, values, strict=True))
        for values in (
            (0, "SP", "split", 2, 0, split),
            (1, "RF", "rfactor", 2, 1, {"factor_iter": 0}),
            (2, "AN", "annotate", 3, 0, {"annotation": "parallel"}),
            (3, "PR", "pragma", 2, 0, {"pragma": "auto_unroll_max_step", "value": 64}),
        )
    ]
    row_has(shown, mean=0.003, all_cost=1.5, trace=None, decisions=[[4, 8], 64])
    assert shown["context"]["hardware_params"] == [8, 64, 64, 0, 0, 0, 0, 0]
    has(
        run("--db", legacy_file, "show", 1).stdout,
        "0  split(stage=2, loop=0, extent=128, lengths=[4, 8], inner_to_outer=true)",
        *("1  rfactor(stage=2, loop=1, factor_iter=0)", "ansor v0.6"),
        "layout rewrite   rewrite_for_pre_transformed",
        *("cores 8, vector bytes 64, cache line bytes 64\n", "llvm -keys=cpu -mcpu=core-avx2\n"),
        *("whole trial      1.500 s", "2.000 ms, 4.000 ms"),
    )


def test_show_prints_knobs_of_autotvm_record(run, run_json, legacy_file):
    shown = run_json("--db", legacy_file, "show", 3)
    assert [(step["name"], step["arguments"]) for step in shown["steps"]] == [
        ("split", {"knob": "tile_k", "size": [-1, 64]}),
        ("other", {"knob": "unroll", "val": 0}),
    ]
    row_has(shown["context"], index=7, tvm_version="0.8.0")
    assert shown["workload"]["arguments"][0] == ["TENSOR", "float32", [1, 512]]
    text = run("--db", legacy_file, "show", 3).stdout
    has(text, "0  tile_k = split(size=[-1, 64])", "autotvm 0.2", "tvm version  0.8.0")


def test_show_prints_no_mean_for_failed_records(run, run_json, legacy_file):
    # The sentinel stays as the log has it.
    for id_, sentinel, words in ((2, 1e10, ("compile_error", "COMPILE_HOST")), (4, 1e9, ())):
        shown = run_json("--db", legacy_file, "show", id_)
        row_has(shown, status="failed", run_secs=[sentinel], mean=None, median=None, minimum=None)
        text = run("--db", legacy_file, "show", id_).stdout
        assert "mean" not in text
        has(text, *words)


def test_top_selects_programs_by_step(run_json, run, legacy_file, filled):
    for word in ("rfactor", "RF", "rf"):
        assert [row["id"] for row in run_json("--db", legacy_file, "top", "--step", word)] == [1]
    rows = run_json("--db", filled, "top", "matmul", "--step", "SamplePerfectTile", "-k", 1)
    assert [row["id"] for row in rows] == [2, 6, 7]
    result = run("--db", filled, "top", "--step", "splt")
    assert result.stdout == ""
    assert "no program with the step 'splt'; there are: annotate, " in result.stderr


def test_workloads_lists_workloads_of_all_tools(run, run_json, legacy_file, log):
    run("--db", legacy_file, "import", "logs", log)
    rows = run_json("--db", legacy_file, "workloads")
    formats = ["ansor-key", "autotvm-task", "tvm-graph", "tvm-graph"]
    assert [row["format"] for row in rows] == formats
    assert not any(row["rebuildable"] for row in rows[:2])
    has(run("--db", legacy_file, "workloads").stdout, "Ansor", "AutoTVM", "MetaSchedule")
    (dense,) = run_json("--db", legacy_file, "workloads", "--format", "autotvm")
    # 2 * 1 * 1000 * 512 operations in 15 us.
    row_has(dense, records=2, failed=1, best=1.5e-05, flops=1_024_000)
    assert dense["flops_per_second"] == pytest.approx(1_024_000 / 1.5e-05)
    arguments = [["TENSOR", "float32", [1, 512]], ["TENSOR", "float32", [1000, 512]]]
    assert dense["arguments"][:2] == arguments
    family = ("workloads", "--family", dense["family"], "--format", "autotvm")
    assert run_json("--db", legacy_file, *family) == [dense]
    result = run("--db", legacy_file, "workloads", "--family", "nosuch")
    assert f"there are: {dense['family']}" in result.stderr


def test_export_writes_lines_of_one_tool(run, run_json, legacy_file, tmp_path):
    report = run_json("--db", legacy_file, "export", "--format", "ansor", "-o", tmp_path / "a")
    row_has(report, records=2, file=str(tmp_path / "a"))
    assert lines(tmp_path / "a") == ANSOR and sum(report["left_out"].values()) == 2
    result = run("--db", legacy_file, "export", "--format", "autotvm")
    assert [json.loads(line) for line in result.stdout.splitlines()] == AUTOTVM
    has(result.stderr, "2 records written to standard output", "left out")
    quiet = run("--db", legacy_file, "export", "--format", "autotvm", "-o", "-", "-q")
    assert quiet.stderr == ""


@pytest.mark.stress
def test_export_into_closed_pipe_prints_no_error(start, run, sqlite_file, tmp_path):
    log = tmp_path / "log"
    log.write_text("".join(many(600)))
    run("--db", sqlite_file, "import", "logs", log)
    process = start("--db", sqlite_file, "export", "--format", "ansor")
    assert json.loads(process.stdout.readline())["v"] == "v0.6"
    process.stdout.close()
    assert (process.stderr.read(), process.wait()) == ("", 1)


def test_export_replaces_a_file_only_by_force(run, legacy_file, tmp_path):
    file = tmp_path / "log"
    file.write_text("mine")
    command = ["--db", legacy_file, "export", "--format", "ansor", "-o", file]
    assert "--force" in run(*command, code=2).stderr
    assert file.read_text() == "mine"
    run(*command, "--force")
    assert lines(file) == ANSOR
    # Without records the old file stays, and no temporary file is left.
    run(*command, "--force", "--workload", "dense_small_batch.gpu", code=3)
    assert lines(file) == ANSOR
    assert not list(tmp_path.glob(".log*"))
    run("--db", legacy_file, "export", "--format", "ansor", "-o", file / "x", code=1)

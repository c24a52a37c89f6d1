"""Records of auto_scheduler and AutoTVM: import, show, top, workloads and export."""

import gzip
import json

import pytest
from legacy import ANSOR, AUTOTVM

from tunedb.system.text import NOTHING


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_import_reads_lines_of_two_tools_in_one_file(run, run_json, sqlite_file, tmp_path):
    log = tmp_path / "log"
    log.write_text("# a comment\n" + "\n".join(map(json.dumps, [*ANSOR, *AUTOTVM, {"v": 1}])))
    command = ["--db", sqlite_file, "import", "logs", log]
    (row,) = run_json(*command, "--dry-run")
    assert (row["read"], row["new"], row["failed"], row["skipped"]) == (4, 4, 2, 1)
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
    assert (row["path"], row["source"], row["new"]) == ("<stdin>", "stdin", 2)


def test_import_sums_up_many_files(run, sqlite_file, tmp_path):
    (tmp_path / "logs").mkdir()
    for number in range(30):
        line = {**ANSOR[0], "r": [[0.001 + number], 0, 1.0, 1700000000]}
        (tmp_path / "logs" / f"{number}.json").write_text(json.dumps(line) + "\n")
    for number in range(3):
        (tmp_path / "logs" / f"{number}.txt").write_text("no log")
    result = run("--db", sqlite_file, "import", "logs", tmp_path / "logs")
    heading, row = result.stdout.splitlines()
    assert heading.split() == ["format", "target", "files", "read", "new", "known"]
    assert row.split() == ["ansor", "llvm", "core-avx2", "30", "30", "30", "0"]
    assert "30 records in 30 files, 30 new" in result.stderr
    assert "3 files not read" in result.stderr
    assert "2.txt: no tuning log" in result.stderr


def test_import_rejects_files_without_any_log(run, sqlite_file, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text("no log")
    command = ["--db", sqlite_file, "import", "logs", tmp_path / "a", tmp_path / "b"]
    result = run(*command, code=1)
    assert result.stdout == ""
    assert result.stderr.splitlines()[-1] == "Error: nothing to import in 2 files"
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
    assert (shown["mean"], shown["all_cost"], shown["trace"]) == (0.003, 1.5, None)
    assert shown["decisions"] == [[4, 8], 64]
    assert shown["context"]["hardware_params"] == [8, 64, 64, 0, 0, 0, 0, 0]
    text = run("--db", legacy_file, "show", 1).stdout
    for part in (
        "0  split(stage=2, loop=0, extent=128, lengths=[4, 8], inner_to_outer=true)",
        "1  rfactor(stage=2, loop=1, factor_iter=0)",
        "ansor v0.6",
        "layout rewrite   rewrite_for_pre_transformed",
        "cores 8, vector bytes 64, cache line bytes 64\n",
        "llvm -keys=cpu -mcpu=core-avx2\n",
        "whole trial      1.500 s",
        "2.000 ms, 4.000 ms",
    ):
        assert part in text


def test_show_prints_knobs_of_autotvm_record(run, run_json, legacy_file):
    shown = run_json("--db", legacy_file, "show", 3)
    assert [(step["name"], step["arguments"]) for step in shown["steps"]] == [
        ("split", {"knob": "tile_k", "size": [-1, 64]}),
        ("other", {"knob": "unroll", "val": 0}),
    ]
    assert shown["context"]["index"] == 7
    assert shown["context"]["tvm_version"] == "0.8.0"
    assert shown["workload"]["arguments"][0] == ["TENSOR", "float32", [1, 512]]
    text = run("--db", legacy_file, "show", 3).stdout
    assert "0  tile_k = split(size=[-1, 64])" in text
    assert "autotvm 0.2" in text
    assert "tvm version  0.8.0" in text


@pytest.mark.parametrize(
    ("id_", "kind", "name"), [(2, "compile_error", "COMPILE_HOST"), (4, "", "")]
)
def test_show_prints_no_mean_for_failed_records(id_, kind, name, run, run_json, legacy_file):
    shown = run_json("--db", legacy_file, "show", id_)
    assert (shown["status"], shown["mean"], shown["median"], shown["minimum"]) == (
        *("failed", None, None, None),
    )
    # The sentinel stays as the log has it.
    assert shown["run_secs"] == ([1e10] if id_ == 2 else [1e9])
    text = run("--db", legacy_file, "show", id_).stdout
    assert "mean" not in text
    assert kind in text
    assert name in text


@pytest.mark.parametrize("word", ["rfactor", "RF", "rf"])
def test_top_selects_programs_by_step(word, run_json, legacy_file):
    assert [row["id"] for row in run_json("--db", legacy_file, "top", "--step", word)] == [1]


def test_top_finds_metaschedule_steps_and_reports_unknown_ones(run_json, run, filled):
    rows = run_json("--db", filled, "top", "matmul", "--step", "SamplePerfectTile", "-k", 1)
    assert [row["id"] for row in rows] == [2, 6, 7]
    result = run("--db", filled, "top", "--step", "splt")
    assert result.stdout == ""
    assert "no program with the step 'splt'; there are: annotate, " in result.stderr


def test_workloads_lists_workloads_of_all_tools(run, run_json, legacy_file, log):
    run("--db", legacy_file, "import", "logs", log)
    rows = run_json("--db", legacy_file, "workloads")
    assert [row["format"] for row in rows] == [
        *("ansor-key", "autotvm-task", "tvm-graph", "tvm-graph"),
    ]
    assert not any(row["rebuildable"] for row in rows[:2])
    text = run("--db", legacy_file, "workloads").stdout
    assert all(name in text for name in ("Ansor", "AutoTVM", "MetaSchedule"))
    rows = run_json("--db", legacy_file, "workloads", "--format", "autotvm")
    (dense,) = rows
    assert (dense["records"], dense["failed"], dense["best"]) == (2, 1, 1.5e-05)
    assert dense["arguments"][:2] == [
        *(["TENSOR", "float32", [1, 512]], ["TENSOR", "float32", [1000, 512]]),
    ]


def test_workloads_selects_family_and_computes_flops(run, run_json, legacy_file):
    family = run_json("--db", legacy_file, "workloads", "--format", "autotvm")[0]["family"]
    (row,) = run_json("--db", legacy_file, "workloads", "--family", family, "--format", "autotvm")
    # 2 * 1 * 1000 * 512 operations in 15 us.
    assert row["flops"] == 1_024_000
    assert row["flops_per_second"] == pytest.approx(1_024_000 / 1.5e-05)
    result = run("--db", legacy_file, "workloads", "--family", "nosuch")
    assert f"there are: {family}" in result.stderr


def test_export_writes_lines_of_one_tool(run, run_json, legacy_file, tmp_path):
    report = run_json("--db", legacy_file, "export", "--format", "ansor", "-o", tmp_path / "a")
    assert (report["records"], report["file"]) == (2, str(tmp_path / "a"))
    assert lines(tmp_path / "a") == ANSOR
    assert sum(report["left_out"].values()) == 2
    result = run("--db", legacy_file, "export", "--format", "autotvm")
    assert [json.loads(line) for line in result.stdout.splitlines()] == AUTOTVM
    assert "2 records written to standard output" in result.stderr
    assert "left out" in result.stderr
    result = run("--db", legacy_file, "export", "--format", "autotvm", "-o", "-", "-q")
    assert result.stderr == ""


def test_export_into_closed_pipe_prints_no_error(start, run, sqlite_file, tmp_path):
    log = tmp_path / "log"
    with log.open("w") as file:
        for number in range(600):
            line = {**ANSOR[0], "r": [[0.001 + number], 0, 1.0, 1700000000]}
            file.write(json.dumps(line) + "\n")
    run("--db", sqlite_file, "import", "logs", log)
    process = start("--db", sqlite_file, "export", "--format", "ansor")
    assert json.loads(process.stdout.readline())["v"] == "v0.6"
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 1


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


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ([], "tunedb export ./work_dir"),
        (["-o", "x"], "tunedb export ./work_dir"),
        (["--format", "ansor", "x"], "tunedb export --format ansor -o x"),
        (["--format", "ansor", "--json"], "-o FILE"),
        (["--format", "metaschedule-sqlite", "x"], "ansor, arrow, autotvm, csv, metaschedule"),
        (["--format", "csv", "x"], "tunedb export --format csv -o x"),
    ],
)
def test_export_rejects_invalid_options(arguments, advice, run, legacy_file):
    assert advice in run("--db", legacy_file, "export", *arguments, code=2).stderr

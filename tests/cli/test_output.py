"""Output formats: fixed keys, raw values, and names that are escaped."""

import csv
import io
import json
import os
import pty
import re
import subprocess

import pytest
import workdirs
from checks import has

from tunedb.system import text
from tunedb.system.one_line import shorten

EVIL = "mat\x1b[31mmul\x9b2J\u202ecod\n"
EVIL_SHOWN = "mat\\x1b[31mmul\\x9b2J\\u202ecod\\n"

KEYS = {
    "top": "rank id digest workload_id workload arguments target_id target mean median minimum "
    "repeats spread threads source trust layer decisions",
    "workloads": "id digest name function family arguments flops format tvm_version records failed "
    "best flops_per_second targets rebuildable",
    "targets": "id digest kind architecture config records workloads",
    "history matmul": "target_id target step id mean best",
    "quarantine": "id created_at source file line reason size data",
    "quarantine list": "id created_at source file line reason size data",
    "sources": "id digest name kind trust store records served retracted aliases since reason "
    "aliases_reason card",
    "plugins": "kind name reads exports needs package entry_point loads reason",
    "features": "name version needs columns installed with without unable rows bytes",
    "features steps --columns": "index name",
    "extract --set steps": "set version programs known done failed passed unable seconds rate "
    "reasons",
    "import logs LOG": "path source read new known failed unmeasured launches workloads skipped "
    "quarantined groups reasons remarks refused dry_run",
}
OBJECT_KEYS = {
    "features steps": "name version needs columns installed with without unable rows bytes",
    "show 1": "id digest status mean median minimum spread run_secs measured_at all_cost "
    "occurrence retracted failure workload target program origin donor lineage source session "
    "context extra launches others decisions steps trace script",
    "trust nightly own": "id name before trust changed dry_run",
    "retract 1 --reason x --yes": "records sources sessions reason stopped dry_run",
    "quarantine show 1": "id created_at source file line reason size data",
    "quarantine retry": "tried recovered workloads known left reasons",
    "db info": "location state advice revision head size created_by created_at store counts "
    "failures sources",
    "db check": "location ok rows measurements found problems",
    "db init": "location revision created",
    "db upgrade": "location before after backup restored dry_run",
    "export OUT": "format directories file workloads records left_out",
    "advise launches": "records known filled unknown launches",
}


@pytest.fixture
def words(filled, log, tmp_path):
    """A function that turns a command's words into arguments."""
    paths = {"LOG": str(log), "OUT": str(tmp_path / "out")}

    def words(command, *more):
        return ["--db", str(filled), *(paths.get(word, word) for word in command.split()), *more]

    return words


@pytest.mark.parametrize("command", [*KEYS, *OBJECT_KEYS])
def test_output_has_the_same_keys_in_json_jsonl_and_csv(command, run, words):
    is_object = command in OBJECT_KEYS
    keys = (OBJECT_KEYS if is_object else KEYS)[command].split()
    force = ["--force"] if command.startswith("export") else []
    shown = json.loads(run(*words(command, "--json")).stdout)
    rows = [shown] if is_object else shown
    lines = run(*words(command, "--jsonl", *force)).stdout.splitlines()
    table = list(csv.reader(io.StringIO(run(*words(command, "--csv", *force)).stdout)))
    found = [[*row] for row in rows], [[*json.loads(line)] for line in lines], table[:1]
    assert rows and found == ([keys] * len(rows), [keys] * len(rows), [keys])
    assert len(table) == len(rows) + 1


def test_nested_objects_have_fixed_keys(run_json, filled):
    shown = run_json("--db", filled, "show", 1)
    assert list(shown["workload"]) == [
        *("id", "name", "digest", "format", "tvm_version", "arguments"),
    ]
    assert list(shown["target"]) == ["id", "kind", "config"]
    assert list(shown["source"]) == ["name", "kind", "trust"]
    assert [list(step) for step in shown["steps"]] == [
        ["number", "code", "name", "stage", "loop", "arguments"]
    ] * 7
    info = run_json("--db", filled, "db", "info")
    assert list(info["counts"]) == [
        *("workloads", "targets", "programs", "sketches", "tails", "measurements", "failed"),
        *("launches", "sessions", "sources", "quarantined", "retracted"),
    ]
    assert list(info["sources"][0]) == ["name", "kind", "trust", "records"]


def test_times_are_seconds_in_json_and_csv_and_have_units_in_tables(run, run_json, filled):
    assert run_json("--db", filled, "top", "matmul")[0]["mean"] == (1e-3 + 1.1e-3) / 2
    rows = csv.DictReader(io.StringIO(run("--db", filled, "top", "matmul", "--csv").stdout))
    assert float(next(rows)["mean"]) == (1e-3 + 1.1e-3) / 2
    has(run("--db", filled, "top", "matmul").stdout, "1.050 ms", "5.000 µs")


def test_empty_list_prints_valid_output_in_each_format(run, sqlite_file):
    for command in ("top", "workloads", "targets", "quarantine"):
        words = ("--db", sqlite_file, command)
        assert json.loads(run(*words, "--json").stdout) == []
        assert run(*words, "--csv").stdout.count("\n") == 1
        assert (run(*words, "--jsonl").stdout, run(*words, "-q").output) == ("", "")
        result = run(*words)
        assert (result.stdout, result.stderr.count("\n")) == ("", 1)


def test_a_pipe_gets_whole_aligned_lines(run, filled):
    lines = run("--db", filled, "workloads").stdout.splitlines()
    assert lines[0].split() == [
        *("id", "name", "family", "arguments", "flop", "format", "records", "failed", "best"),
        *("flop/s", "TVM", "0.27"),
    ]
    assert not any("\x1b" in line or "…" in line for line in lines)
    start = lines[0].index("records") + len("records")
    assert [line[start - 1] for line in lines[1:]] == ["6", "1"]


def test_control_characters_of_names_are_escaped(run, filled, tmp_path):
    folder = workdirs.write(tmp_path / "evil", [workdirs.record()], [workdirs.graph(EVIL)])
    assert "\x1b" not in run("--db", filled, "import", "logs", folder, "--source", EVIL).output
    for command in (["top"], ["workloads"], ["show", "8"], ["db", "info"], ["top", "3"]):
        for option in ([], ["--json"], ["--jsonl"], ["--csv"]):
            output = run("--db", filled, *command, *option).output
            assert not any(text._is_unsafe(char) for char in output.replace("\n", "")), command
        if command == ["workloads"]:
            assert EVIL_SHOWN in run("--db", filled, *command).output
    names = [row["name"] for row in json.loads(run("--db", filled, "workloads", "--json").stdout)]
    assert EVIL in names


def test_control_characters_of_bad_lines_are_escaped(run, sqlite_file, tmp_path):
    bad = b'[0, "\x1b]0;owned\x07'
    folder = workdirs.write(tmp_path / "log", [workdirs.record(), bad])
    assert "\x1b" not in run("--db", sqlite_file, "import", "logs", folder).output
    for option in ([], ["--json"], ["--csv"]):
        assert "\x1b" not in run("--db", sqlite_file, "quarantine", *option).output
        assert "\x1b" not in run("--db", sqlite_file, "quarantine", "show", "1", *option).output
    assert "\x1b" not in run("--db", sqlite_file, "top", "\x1b[2J", code=3).output


def on_terminal(arguments, columns=100, **environment):
    """Run a command on a pseudo-terminal and return what it printed."""
    master, slave = pty.openpty()
    command = [*workdirs.PROGRAM, *map(str, arguments)]
    variables = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns), **environment}
    process = subprocess.Popen(command, stdout=slave, stderr=slave, env=variables)
    os.close(slave)
    parts = []
    try:
        while part := os.read(master, 65536):
            parts.append(part)
    except OSError:  # Linux reports so that the other side is closed
        pass
    os.close(master)
    assert process.wait() == 0
    return b"".join(parts).decode().replace("\r\n", "\n")


def plain(shown):
    """Return the lines without the codes of bold and dim text."""
    return re.sub("\x1b\\[[0-9;]*m", "", shown).splitlines()


def test_a_terminal_gets_a_table_that_fits(filled):
    """A narrow terminal keeps the main columns, and NO_COLOR leaves no colour and no bold text."""
    narrow = on_terminal(["--db", filled, "workloads"], 80, NO_COLOR="1", TERM="dumb")
    assert "\x1b" not in narrow and "────" in narrow
    wide = on_terminal(["--db", filled, "workloads"], 120)
    assert "\x1b[1m" in wide
    titles = {}
    for columns, lines in ((80, narrow.splitlines()), (120, plain(wide))):
        # A column with one value in all rows is printed above the table.
        assert lines[0].split() == ["format", "MetaSchedule"]
        assert max(map(len, lines)) <= columns
        titles[columns] = next(line.split() for line in lines if line.lstrip().startswith("id"))
    assert titles[80] == ["id", "name", "arguments", "records", "best", "flop/s"]
    assert {"flop", "failed"} <= set(titles[120])


@pytest.mark.stress
def test_no_color_variable_disables_colors_and_bold(filled):
    shown = on_terminal(["--db", filled, "top", "matmul"], 60, NO_COLOR="1")
    folded, table = shown.split("\n\n", 1)
    assert "nightly" in folded and "\x1b" not in folded and "\x1b[3" not in shown
    lines = plain(table)
    assert max(map(len, lines)) <= 60
    assert any(line.split()[0] == "2" and "1.050 ms" in line for line in lines[2:])


def test_closed_pipe_ends_command_without_message(start, run, sqlite_file, tmp_path):
    lines = [workdirs.record([1e-3 + i * 1e-6]) for i in range(400)]
    run("--db", sqlite_file, "import", "logs", workdirs.write(tmp_path / "log", lines))
    process = start("--db", sqlite_file, "top", "1", "-k", 400, "--jsonl")
    process.stdout.readline()
    process.stdout.close()
    assert (process.stderr.read(), process.wait()) == ("", 1)


def test_text_formats_seconds_operations_and_durations():
    for value, shown in (
        *((value, text.NOTHING) for value in (None, 1e10, -1.0, float("nan"))),
        *((0.0, "0 s"), (1.0, "1.000 s"), (123.4, "123.4 s"), (0.012345, "12.35 ms")),
        *((1e-3, "1.000 ms"), (0.99999e-3, "1.000 ms"), (0.0009999, "999.9 µs")),
        *((2.2527e-6, "2.253 µs"), (3.2e-8, "32.00 ns"), (1e-12, "0.001 ns")),
    ):
        assert text.seconds(value) == shown
    for value, shown in (
        *((None, text.NOTHING), (0, "0"), (999.4, "999"), (999.6, "1.0 k"), (27_648.0, "27.6 k")),
        *((1.25e9, "1.2 G"), (231_211_008, "231 M"), (6.4e12, "6.4 T"), (3e16, "30,000 T")),
    ):
        assert text.operations(value) == shown
    spans = ["0.0 s", "9.9 s", "12 s", "3 min 20 s", "1 h 00 min", "26 h 05 min"]
    assert [text.span(one) for one in (0.04, 9.94, 12.4, 200, 3599.7, 93_900)] == spans


def test_clean_escapes_unsafe_characters():
    unsafe = "a\nb\tc\x1b\x7f\x9b\u202e\u2028\ud800"
    assert text.clean(unsafe) == "a\\nb\\tc\\x1b\\x7f\\x9b\\u202e\\u2028\\ud800"
    assert text.clean("größe 矩阵 plain") == "größe 矩阵 plain"


def test_text_formats_arguments_sparklines_cuts_and_sizes():
    for value, shown in (
        ([["TENSOR", "float32", [1, 2]], ["TENSOR", "int8", []]], "f32 1x2, i8 scalar"),
        ([["TENSOR", None, [4]], ["TENSOR", None, [2, 2]]], "4, 2x2"),
        *(("strange", "strange"), (None, text.NOTHING)),
    ):
        assert text.arguments(value) == shown
    assert [*map(text.sparkline, ([], [1.0, 1.0], [2.0, 1.0]))] == ["", "▁▁", "█▁"]
    assert len(text.sparkline([float(i) for i in range(1000)], 30)) == 30
    assert (shorten("abcdef", 4), shorten("abcdef", 4, "end")) == ("abc…", "…def")
    assert text.size(1_605_632) == "1.6 MB"

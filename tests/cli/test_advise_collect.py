"""``tunedb advise collect``: plans, runs, what they store and report."""

import json
import os
import signal
import sys
import time

import pytest
import toy_gpu
from checks import has, one_line

from tunedb.advisor.loading import load
from tunedb.storage.store import Store

KEYS = {
    *("program", "block", "threads", "registers", "input", "original", "mean", "speedup"),
    *("counters", "compared", "failure", "message", "run_secs", "notes", "new"),
}


@pytest.fixture
def collect(run, sqlite_file):
    """A function that collects into a database and returns the rows."""

    def collect(path, *args, **options):
        done = run("--db", sqlite_file, "advise", "collect", path, "--json", *args, **options)
        return json.loads(done.stdout), done.stderr

    return collect


@pytest.mark.stress
def test_collect_stores_observations_of_configured_program(run, collect, sqlite_file, tmp_path):
    toy_gpu.program(tmp_path / "toy")
    toy_gpu.install(tmp_path / "bin")
    path = tmp_path / "advise.toml"
    run(
        "advise", "configure", path, "--device", "Tesla K40c", "--profiler", "nvprof",
        *("--path", "bin", "--program", "toy", "--directory", "toy", "--kernel", "step"),
        *("--build", f"{sys.executable} -IS build.py {{register_flag}}", "--registers", "32"),
        *("--run", f"{sys.executable} -IS app.py {{block_x}} {{block_y}} {{input}} wrong"),
        *("--block", "32x2", "--blocks", "32x2,16x4,64x2", "--input", "500"),
        *("--tolerance", "1e-6", "--time", "kernel time: ([0-9.]+) us", "--unit", "us"),
        *("--repeats", "2"),
    )  # fmt: skip
    rows, messages = collect(path)
    assert set(rows[0]) == KEYS
    has(messages, "6 variants run, 0 of an earlier run", "toy: 2 variants failed")
    seen = [(tuple(row["block"][:2]), row["registers"], row["failure"]) for row in rows]
    assert seen == [
        (block, limit, "wrong_result" if block == (16, 4) else None)
        for limit in (None, 32)
        for block in ((32, 2), (16, 4), (64, 2))
    ]
    assert (rows[0]["speedup"], rows[2]["counters"]) == (1, 44)
    assert rows[2]["speedup"] == pytest.approx(33.25 / 17.625)
    with Store(sqlite_file, create=False) as store:
        observations = load(store)
        assert store.counts().measurements == 6
    assert [len(one.counters) for one in observations] == [26] * 4
    assert len({one.slice for one in observations}) == 2


def test_the_plan_needs_no_gpu_and_runs_nothing(run, tmp_path):
    path = toy_gpu.configuration(tmp_path, tool="ncu")
    rows = json.loads(run("advise", "collect", path, "--dry-run", "--json").stdout)
    assert [row["block"][:2] for row in rows] == [[32, 2], [16, 4], [32, 4], [64, 2]]
    assert all(row["block"][2] == 1 and row["runs"] > 5 for row in rows)
    done = run("advise", "collect", path, "--plan", tmp_path / "plan.json", "--profiler", "none")
    assert "4 variants, 13 runs; none: 0 counters in 0 groups; GeForce RTX 2080 Ti" in done.stderr
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["variants"][0]["original"] and plan["groups"] == []
    assert toy_gpu.lines(tmp_path / "runs") == []
    assert not (tmp_path / "advise.toml.work").exists()


def test_device_option_selects_profiler_and_illegal_blocks_are_left_out(run, tmp_path):
    path = toy_gpu.configuration(tmp_path, tool="auto")
    path.write_text(path.read_text().replace("[64, 2]", "[64, 64]"))
    left_out = "toy: 64x64x1 is left out: 4096 threads; the device takes 1024"
    for device, tool in (("NVIDIA H100", "ncu"), ("Tesla K40c", "nvprof"), ("X:9.0", "ncu")):
        done = run("advise", "collect", path, "--dry-run", "--device", device)
        has(done.stderr, f" runs; {tool}: ", left_out)
    done = run("advise", "collect", path, "--dry-run", "--device", "X", code=2)
    assert "'X' is not a device that tunedb knows" in done.stderr


def test_second_collect_runs_nothing_again(run, collect, sqlite_file, tmp_path):
    """In another database it stores them, as after a run that was killed before it stored them."""
    path = toy_gpu.configuration(tmp_path)
    first, _ = collect(path)
    runs = toy_gpu.lines(tmp_path / "runs")
    again, messages = collect(path)
    assert "0 variants run, 4 of an earlier run" in messages
    assert toy_gpu.lines(tmp_path / "runs") == runs
    assert [row.pop("new") for row in first + again] == [True] * 4 + [False] * 4
    assert first == again
    other = tmp_path / "other.db"
    run("--db", other, "advise", "collect", path)
    for database in (sqlite_file, other):
        with Store(database, create=False) as store:
            assert store.counts().measurements == 4
    assert toy_gpu.lines(tmp_path / "runs") == runs


def test_collect_reports_original_program_that_fails_or_varies_in_output(collect, tmp_path):
    path = toy_gpu.configuration(tmp_path, rest="random")
    rows, messages = collect(path)
    differ = "toy: two runs of the original program differ in their output"
    assert f"{differ}, so no output was compared" in messages
    assert not any(row["compared"] for row in rows)
    path.write_text(path.read_text().replace("app.py", "app.py x"))
    rows, messages = collect(path)
    fails = "toy: the original program fails, so no variant was run"
    assert f"{fails}: check: the run ended with" in messages
    assert len(rows) == 1


def wait_for(path, count):
    """Wait until a file has so many lines."""
    for _ in range(6000):
        if len(toy_gpu.lines(path)) >= count:
            return
        time.sleep(0.05)
    raise AssertionError("it does not run")


@pytest.mark.stress
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_collect_continues_a_stopped_run(start, collect, sqlite_file, tmp_path, number):
    path = toy_gpu.configuration(tmp_path, rest="slow")
    process = start("--db", sqlite_file, "advise", "collect", path)
    # Four runs of the original program, three of the next variant, one of the third.
    wait_for(tmp_path / "runs", 8)
    os.kill(process.pid, number)
    _, stderr = process.communicate(timeout=300)
    if number == signal.SIGINT:
        assert process.returncode == 130, stderr
        assert "of 4 variants; run the same command again to continue" in stderr
    rows, messages = collect(path)
    assert "2 variants run, 2 of an earlier run" in messages
    assert all(row["failure"] is None for row in rows)
    with Store(sqlite_file, create=False) as store:
        assert store.counts().measurements == 4


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("none.toml",), 3, "none.toml: no such file; write it with: tunedb advise configure"),
        (("FILE", "--program", "nn"), 3, "program 'nn' is not configured; there is: toy"),
        (("FILE", "--profiler", "ncu"), 2, "ncu reads no counters on compute capability 3.5"),
        (("FILE", "--dry-run", "--plan", "no/x"), 1, "no/x: cannot be written (No such file"),
    ],
)
def test_collect_rejects_bad_input_in_one_line(run, tmp_path, arguments, code, message):
    path = toy_gpu.configuration(tmp_path)
    arguments = [path if word == "FILE" else word for word in arguments]
    assert message in one_line(run("advise", "collect", *arguments, code=code))


def test_collect_escapes_output_of_failed_program(run, sqlite_file, tmp_path):
    """The message of a failed program quotes its output."""
    path = toy_gpu.configuration(tmp_path)
    script = "import sys; sys.exit('\\x1b[31mred\\u202e')"
    (tmp_path / "toy" / "build.py").write_text(script)
    done = run("--db", sqlite_file, "advise", "collect", path)
    assert not {"\x1b", "\u202e"} & set(done.output)
    assert "\\x1b[31mred" in done.stderr

"""``tunedb tune``."""

import json
import os
import re
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import networks
import onnx
import pytest
import workdirs
from exchanges import away
from fake_measuring import FakeBuilder, FakeRunner, let_batches_take_equal_time

from tunedb.errors import PluginError
from tunedb.plugins.metaschedule.deploy import network_times
from tunedb.plugins.metaschedule.deploy.network_times import NetworkTimer
from tunedb.plugins.metaschedule.search.strategy import EvolutionarySearch
from tunedb.plugins.metaschedule.tuning import defaults as tuning_parts
from tunedb.plugins.metaschedule.tuning.options import EVALUATOR, TuneOptions
from tunedb.storage.store import Store
from tunedb.system.roofline import Roofline

MODULE = """\
from tvm import te
from tvm.script import tirx as T

def product(n=32):
    a, b = (te.placeholder((n, n), name=name) for name in "AB")
    k = te.reduce_axis((0, n), name="k")
    c = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    return te.create_prim_func([a, b, c])

matmul, small = product(32), product(16)
"""

LLVM = '{"kind": "llvm", "num-cores": 2, "mcpu": "x86-64-v2"}'


class _Search(EvolutionarySearch):
    """A quick search: few programs, no generation."""

    def __init__(self, database, **options):
        super().__init__(database, population_size=12, generations=0, **options)


@pytest.fixture
def module(tmp_path):
    path = tmp_path / "work" / "m.py"
    path.write_text(MODULE)
    return path


@pytest.fixture
def fakes(monkeypatch, tmp_path):
    """The fake runner of tuning runs, which have a fake builder, fake limits and no finals."""
    builder, runner = FakeBuilder(), FakeRunner()
    monkeypatch.setattr(tuning_parts, "builder_of", lambda *_: builder)
    monkeypatch.setattr(tuning_parts, "runner_of", lambda *_: runner)
    monkeypatch.setattr(tuning_parts, "EvolutionarySearch", _Search)
    # Networks run in this process.
    monkeypatch.setattr(network_times, "PopenPoolExecutor", lambda **_: ThreadPoolExecutor(1))
    monkeypatch.setattr(NetworkTimer, "roofline", lambda *_: Roofline(1e11, ((1e9, 1e10),)))
    monkeypatch.setattr(TuneOptions, "has_finals", lambda _: False)
    monkeypatch.setenv("TUNEDB_URL", str(tmp_path / "tune.db"))
    yield runner
    builder.close()


LATENCY = "--latency-target"
TWO = ("long.onnx", "short.onnx")
TRACKER = ("--tracker", "localhost:1", "--key", "x")
SHORT = ("--target", LLVM, "--batch", 4, "--seed", 1, "--jobs", 1)
MORE = "give more --trials or --minutes, or run the same command again"


def save_networks():
    """Save two networks whose classifiers are equal, and a copy of the second."""
    Path("a").mkdir()
    for name, length in (("long", 8), ("short", 4), ("a/short", 4)):
        onnx.save(networks.symbolic(1, length), f"{name}.onnx")


def test_each_function_of_a_file_is_tuned(module, fakes, run, tmp_path):
    result = run("tune", module, "--trials", 8, *SHORT, "-v")
    lines = result.stdout.splitlines()
    titles = ("task", "record", "best", "first batch", "trials", "known", "failed", "origin")
    assert lines[0].split() == " ".join((*titles, "95 % at")).split()
    assert [line.split()[0] for line in lines[1:]] == ["matmul", "small"]
    message = result.stderr
    assert re.search(
        r"8 trials on 2 threads in .*: starting .*, searching .*, building .*, running ", message
    )
    record = lines[1].split()[1]
    assert f"Show the best record: tunedb show {record}" in message
    assert f"Compile the module: tunedb apply {module} -o lib.so" in message
    progress = r"^(?:matmul|small): (. of 8) trials, best [0-9.]+ m?s$"
    assert re.findall(progress, message, re.MULTILINE) == [f"{n} of 8" for n in (2, 4, 6, 8)]
    with Store(str(tmp_path / "tune.db")) as store:
        assert store.records.count() == 8


def test_json_has_fixed_keys_and_a_second_run_measures_nothing_twice(module, fakes, run):
    done = run("tune", f"{module}:matmul", "--trials", 8, *SHORT, "--json", "-q")
    assert done.stderr == ""
    (row,) = json.loads(done.stdout)
    assert set(row) == {
        *("task", "workload_id", "record", "best", "first", "trials", "served", "failed"),
        *("origin", "operators", "donor", "forecast", "calls", "problem"),
        *("network", "kind", "untuned", "seconds", "share", "flops", "limit"),
        *("weight", "target"),
    }
    assert (row["kind"], row["network"]) == ("task", None)
    assert (row["task"], row["trials"], row["served"], row["failed"]) == ("matmul", 8, 0, 0)
    assert row["origin"] == "random"
    assert (row["donor"], row["operators"], row["forecast"]) == (None, [], None)
    assert 0 < row["best"] <= row["first"]
    again = run("tune", f"{module}:matmul", "--trials", 8, *SHORT, "--seed", 2)
    assert len(set(fakes.ran)) == len(fakes.ran)
    assert re.search(r"\d known programs? not measured again", again.stderr)
    forced = run("tune", f"{module}:matmul", "--trials", 4, *SHORT, "--remeasure")
    assert "not measured again" not in forced.stderr


def test_every_option_reaches_tune(module, run, monkeypatch, tmp_path):
    from tunedb.plugins.metaschedule.tuning import tune as tuning

    given = {}

    def tune(mod, *arguments, **options):
        given.update(options, mod=mod, arguments=arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning, "tune", tune)
    run(
        *("tune", module, "--db", tmp_path / "x.db", "--function", "small"),
        *("--target", "nvidia/nvidia-a100", "--trials", 100, "--per-task", 50, "--batch", 10),
        *("--seed", 7, "--repeat", 5, "--min-repeat-ms", 11, "--no-warm", "--remeasure"),
        *("--no-racing", "--no-finals"),
        *("--jobs", 3, "--work-dir", tmp_path / "logs", "--op", "conv", "--op", "dense"),
        *("--tracker", "10.0.0.1:9190", "--key", "board"),
        *("--bind", "a=1", "--bind", "b=2", "--bind", "b=3"),
        *("--weight", "m=2.5", "--latency-target", "m=5ms"),
        *("--early-stopping", 9, "--least-gain", 0.01),
        code=130,
    )
    assert [str(var.name_hint) for var in given["mod"]["m"].get_global_vars()] == ["small"]
    assert given["arguments"] == ("nvidia/nvidia-a100",)
    assert given["database"] == str(tmp_path / "x.db")
    expected = {
        **{"work_dir": str(tmp_path / "logs"), "max_trials_global": 100, "seed": 7},
        **{"max_trials_per_task": 50, "num_trials_per_iter": 10, "num_tuning_cores": 3},
        **{"op_names": ("conv", "dense"), "warm": False, "racing": False, "finals": False},
        **{"remeasure": True, "bind": {"a": 1, "b": [2, 3]}, "weights": {"m": 2.5}},
        **{"latency_target": {"m": pytest.approx(5e-3)}, "early_stopping": 9, "least_gain": 0.01},
    }
    assert {name: given[name] for name in expected} == expected
    assert (given["evaluator"].repeat, given["evaluator"].min_repeat_ms) == (5, 11)
    config = given["runner"]
    tracker = (config.tracker_host, config.tracker_port, config.tracker_key)
    assert tracker == ("10.0.0.1", 9190, "board")
    run("tune", module, code=130)
    assert given["runner"] == "local"
    assert given["arguments"] == (None,)
    assert given["work_dir"] is given["max_trials_global"] is given["latency_target"] is None
    assert given["num_tuning_cores"] == "physical"
    assert (given["warm"], given["racing"], given["finals"]) == (True, True, True)
    assert (given["remeasure"], given["evaluator"]) == (False, EVALUATOR)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("matmul",), 2, "matmul: not a module; give a TVMScript file"),
        (("m.py:large",), 3, "no 'large'; there are: matmul, small"),
        (("m.py", "--target", "{"), 2, "--target: "),
        (("m.py", *TRACKER, "--target", '{"kind": "llvm"}'), 2, "give its number of cores"),
        (("m.py", "--trials", "0"), 2, "--trials"),
        (("m.py", "--runner", "local", "--key", "x"), 2, "are for --runner rpc"),
        (("model.onnx",), 3, "model.onnx: no such file"),
        ((*TWO, "--weight", "long"), 2, "'long' is not NAME=NUMBER, e.g. bert=2"),
        ((*TWO, "--weight", "=2"), 2, "'=2' is not NAME=NUMBER"),
        ((*TWO, LATENCY, "long=5"), 2, "'long=5' needs a unit (ns, us, µs, ms, s), e.g. bert=5ms"),
        ((*TWO, LATENCY, "5"), 2, "'5' needs a unit"),
        ((*TWO, LATENCY, "long=ms"), 2, "'long=ms' is not [NAME=]TIME"),
        ((*TWO, LATENCY, "5 minutes"), 2, "'5 minutes' is not [NAME=]TIME"),
        ((*TWO, LATENCY, "5ms", LATENCY, "long=2ms"), 2, "a time without a name is that of all"),
        ((*TWO, "long.onnx"), 2, "long.onnx is given twice"),
        ((*TWO, "m.py", *SHORT), 2, "m is no Relax program: tune its functions in a run alone"),
        ((TWO[1], "a/short.onnx", "--weight", "x=2", *SHORT), 2, "there are: short.onnx, a/short"),
    ],
)
def test_invalid_arguments_are_refused_in_one_line(module, fakes, run, arguments, code, words):
    """Networks of one name are called by their paths."""
    if "short.onnx" in arguments:
        save_networks()
    result = run("tune", *arguments, code=code)
    last = result.stderr.splitlines()[-1]
    assert last.startswith("Error: ") and words in last
    assert result.stdout == ""


def test_a_failed_run_is_reported_and_keeps_its_records(module, fakes, run, monkeypatch):
    def on_run(_hash):
        if len(runner.ran) > 4:
            raise PluginError("the device is gone")

    runner = FakeRunner(on_run=on_run)
    monkeypatch.setattr(tuning_parts, "runner_of", lambda *_: runner)
    result = run("tune", f"{module}:matmul", "--trials", 8, *SHORT, code=1)
    assert result.stderr.splitlines()[-1] == "Error: the device is gone"
    monkeypatch.setattr(tuning_parts, "runner_of", lambda *_: fakes)
    rest = run("tune", f"{module}:matmul", "--trials", 8, *SHORT)
    assert "4 trials of these in an earlier run" in rest.stderr
    assert not set(runner.ran[:4]) & set(fakes.ran)


def test_apply_and_explain_find_records_of_tuned_network(fakes, run, run_json, tmp_path):
    """They find them only with the same options of lowering; ``top --network`` shows the run."""
    b = networks.Builder()
    data = b.node("GlobalAveragePool", [b.convolution("image", 3, 8, 1)])
    onnx.save(b.model(data, {"image": [1, 3, 8, 8]}, [1, 8, 1, 1]), "net.onnx")
    keep = ("--layout", "keep", "--no-prepack")
    tuned = run_json("tune", "net.onnx", "--per-task", 1, "--op", "conv2d", *SHORT, *keep)
    *operators, runtime, network = run_json("top", "--network", "net")
    assert [row["kind"] for row in operators] == ["operator"] * len(operators)
    assert runtime["kind"] == "runtime" and network["operator"] == "net"
    assert network["seconds"] > 0 and network["untuned"] > 0
    by_name = {row["operator"]: row for row in operators}
    convolutions = [row for row in tuned if row["kind"] == "task"]
    assert len(convolutions) == 1
    for row in convolutions:
        operator = by_name[row["task"]]
        assert row["record"] is not None and row["calls"] == operator["calls"] == 1
        assert operator["flops"] > 0 and operator["limit"] > 0
    # Rows of the operators, the runtime and the network follow.
    keys = ("network", "kind", "seconds", "untuned", "share", "flops")
    rows = tuned[len(convolutions) :]
    assert [(row["task"], *(row[key] for key in keys)) for row in rows] == [
        (row["operator"], *(row[key] for key in keys)) for row in (*operators, runtime, network)
    ]
    top = run("top", "--network").stderr
    assert re.search(r"net on 2 threads: .* untuned, .* tuned \(.*x\); sum of the operators", top)
    assert "Limit of this machine: " in top
    none = run("top", "--network", "other", code=3)
    assert "no tuning run of the network other; there are: net" in none.stderr
    rows = run_json("apply", "net.onnx", "-o", tmp_path / "net.so", *keep)
    found = [row["function"] for row in rows if row["record"] is not None]
    assert len(found) == 1 and "conv2d" in found[0]
    rows = run_json("explain", "module", "net.onnx", *keep)
    assert [row["function"] for row in rows if row["record"] is not None] == found
    done = run("apply", "net.onnx", "-o", tmp_path / "net.so", code=3)
    assert "no record for " in done.stderr
    assert "; more functions have a record with --layout keep; for the reason" in done.stderr


def test_tune_and_apply_use_other_algorithms_of_a_network(fakes, run, run_json, monkeypatch):
    let_batches_take_equal_time(monkeypatch)
    b = networks.Builder()
    data = b.node("Relu", [b.bare_convolution("image", 8, 8, 3)])
    onnx.save(b.model(data, {"image": [1, 8, 8, 8]}, [1, 8, 8, 8]), "net.onnx")
    winograd = ("--algorithms", "winograd")
    done = run("tune", "net.onnx", "--trials", 8, "--no-latency", *SHORT, *winograd)
    assert "tunedb apply net.onnx --algorithms winograd -o lib.so" in done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    # A part of an algorithm that got no trial is not shown.
    shown = [row for row in rows if "_f" in row[0]]
    assert shown and all(row[1].isdecimal() for row in shown)
    rows = run_json("apply", "net.onnx", "-o", "scheduled.py", *winograd)
    functions = [row for row in rows if "transpose" not in row["function"]]
    assert len(functions) in (1, 3) and all(row["record"] is not None for row in functions)


def test_network_with_symbolic_sizes_needs_bind_option(fakes, run, run_json):
    onnx.save(networks.symbolic("batch", "length"), "net.onnx")
    asked = run("tune", "net.onnx", *SHORT, code=2).stderr.splitlines()[-1]
    assert asked == (
        "Error: the program has symbolic sizes: batch, length; give a number for batch and length, "
        "e.g. --bind batch=1, in Python bind={...}"
    )
    assert run_json("sessions") == []
    both = ("--bind", "length=8", "--bind", "length=4", "--bind", "batch=1")
    done = run("tune", "net.onnx", "--per-task", 1, "--op", "matmul", "--no-latency", *SHORT, *both)
    tasks = [line.split()[0] for line in done.stdout.splitlines()[1:]]
    relu = "fused_matmul_add_relu_length{}_batch1"
    assert sorted(tasks) == ["fused_matmul1_add1", relu.format(4), relu.format(8)]
    assert "tunedb apply net.onnx --bind length=8 --bind batch=1 -o lib.so" in done.stderr
    sizes = ("--bind", "batch=1", "--bind", "length=4")
    for command in (("apply", "net.onnx", "-o", "scheduled.py"), ("explain", "module", "net.onnx")):
        rows = run_json(*command, *sizes)
        assert sum(row["record"] is not None for row in rows) == 2
    message = run("apply", "net.onnx", "-o", "scheduled.py", *both, code=2).stderr
    assert "bind: one number is expected for length, not [8, 4]" in message
    for command in (("explain", "module", "net.onnx"), ("revalidate", "--module", "net.onnx")):
        message = run(*command, "--bind", "n=1", code=2).stderr
        assert "no symbolic size 'n'; there are: batch, length" in message
    assert "'batch' is not NAME=NUMBER" in run("tune", "net.onnx", "--bind", "batch", code=2).stderr


@pytest.mark.stress
def test_tune_shares_equal_operators_of_several_networks(fakes, run, run_json):
    """Each network is measured, stored and printed; equal operators are one task."""
    save_networks()
    tuned = run_json("tune", *TWO, "--weight", "long=2", "--per-task", 1, *SHORT)
    tasks = {row["task"]: row["calls"] for row in tuned if row["kind"] == "task"}
    assert len(tasks) == 6 and tasks["softmax"] == tasks["fused_matmul1_add1"] == 2
    totals = [row for row in tuned if row["kind"] == "network"]
    found = [(row["network"], row["weight"], row["target"]) for row in totals]
    assert found == [("long", 2.0, None), ("short", 1.0, None)]
    for network in ("long", "short"):
        (softmax,) = (row for row in tuned if (row["network"], row["task"]) == (network, "softmax"))
        assert softmax["calls"] == 1 and softmax["seconds"] > 0
    # All networks of the last run, or one.
    both = run_json("top", "--network")
    assert [row["operator"] for row in both if row["kind"] == "network"] == ["long", "short"]
    short = run_json("top", "--network", "short")
    assert short == [row for row in both if row["network"] == "short"]
    shown = run("top", "--network")
    assert [line.split()[0] for line in shown.stdout.splitlines()].count("operator") == 2
    assert re.search(r"^long on 2 threads: .*\nLimit .*\n(.*\n)?short on 2 threads: ", shown.stderr)


@pytest.mark.stress
def test_run_ends_when_networks_are_within_latency_targets(fakes, run, run_json):
    save_networks()
    targets = (LATENCY, "long=1000s", LATENCY, "short=2000 ms")
    done = run("tune", *TWO, *targets, "--trials", 64, *SHORT)
    assert re.search(r"^0 trials on 2 threads", done.stderr)
    assert re.search(r"^long on 2 threads: .* tuned \(.*x, target 1000 s\); ", done.stderr, re.M)
    assert "the estimated latency of each network is within its target" in done.stderr
    missed = run("tune", *TWO, LATENCY, "1ns", "--trials", 12, *SHORT, "-v")
    estimate = "short: the estimated latency is not within its target of 1.000 ns"
    assert f"{estimate}; {MORE}" in missed.stderr
    # Both networks are measured, so that their estimates are known from the first batch on.
    state = r"about [0-9.]+ .?s \([0-9.]+x\), target 1.000 ns, \d of 4 operators tuned"
    assert re.search(rf"^\w+: 4 of 12 trials, long {state}; short {state}$", missed.stderr, re.M)
    for number, module in enumerate(TWO, 1):
        assert f"Compile the module: tunedb apply {module} -o lib{number}.so" in missed.stderr
    totals = [row for row in run_json("top", "--network") if row["kind"] == "network"]
    assert [row["target"] for row in totals] == [pytest.approx(1e-9)] * 2


def test_function_that_kills_the_process_is_skipped_and_reported(module, fakes, run, monkeypatch):
    reason = "its design space kills the process (signal 11, SIGSEGV)"
    monkeypatch.setattr(tuning_parts, "space_trial", lambda *_: {0: reason, 1: None}.get)
    done = run("tune", module, "--trials", 4, *SHORT, "--json", code=1)
    assert f"Warning: TVM cannot tune matmul, apply uses its default: {reason}" in done.stderr
    matmul, small = json.loads(done.stdout)
    assert (matmul["problem"], matmul["trials"], matmul["record"]) == (reason, 0, None)
    assert small["problem"] is None and small["record"] is not None


def test_tune_rejects_network_without_anything_to_tune(run):
    builder = networks.Builder()
    model = builder.model(builder.node("Identity", ["x"]), {"x": [1, 4]}, [1, 4])
    onnx.save(model, "net.onnx")
    lines = run("tune", "net.onnx", *SHORT, code=2).stderr.splitlines()
    assert lines[-1] == "Error: nothing to tune: the module has no unscheduled function"


def test_tune_reports_operators_without_a_trial(fakes, run):
    onnx.save(networks.symbolic(1, 8), "net.onnx")
    message = run("tune", "net.onnx", "--trials", 2, "--no-latency", *SHORT).stderr
    assert f"3 operators without a trial; {MORE}" in message.splitlines()


def start_tuning(module, path, **options):
    """Start a run of 400 trials in a session of its own; return its process after a batch."""
    words = [*workdirs.PROGRAM, "tune", f"{module}:matmul", "--seed", "1", "-v", "--db", str(path)]
    options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([*words, "--trials", "400"], start_new_session=True, **options)
    next(line for line in process.stderr if re.match(r"matmul: \d+ of 400 trials", line))
    return process


@pytest.mark.stress
def test_ctrl_c_keeps_stored_records(tmp_path, module):
    """As in a terminal, the whole process group gets the signal."""
    path = tmp_path / "tune.db"
    process = start_tuning(module, path)
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (130, ""), err
    assert re.search(r"Interrupted after \d+ of 400 trials; measurements are stored", err)
    assert "Traceback" not in err
    with Store(str(path)) as store:
        assert store.records.count() >= 16


@pytest.mark.stress
def test_the_next_run_removes_files_of_a_killed_run(tmp_path, module):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with start_tuning(module, tmp_path / "tune.db", env=environment) as process:
        process.kill()
    assert list(temporary.glob("tunedb-*"))
    again = [*process.args[:-1], "8"]
    subprocess.run(again, env=environment, check=True, capture_output=True, timeout=300)
    assert list(temporary.glob("tunedb-*")) == []


def test_tune_pushes_to_server_and_continues_without_it(
    module, fakes, run, tmp_path, postgres_server, postgres_url
):
    tune = ("tune", f"{module}:small", "--trials", 4, *SHORT, "--server", postgres_url)
    assert "4 records pushed to postgresql+psycopg://" in run(*tune).stderr
    with Store(postgres_url) as store:
        assert store.records.count() == 4
    with away(postgres_server, postgres_url):
        message = run(*tune, "--remeasure").stderr
    assert "the run continues without it and pushes later" in message
    assert "Warning: up to 8 records not pushed yet" in message
    assert "push later with: tunedb push postgresql+psycopg://" in message
    run("push", postgres_url)
    with Store(postgres_url) as store:
        assert store.records.count() == 8

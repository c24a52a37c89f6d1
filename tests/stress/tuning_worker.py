"""Tuning runs in processes of their own. Run as a script; tests read what it prints.

python tuning_worker.py pair URL                 two runs of equal seed on one database at once
python tuning_worker.py kill URL LOG KILLS SEED  a run that is killed KILLS times and then ends

Nothing is measured: what a program takes follows from its module. Prints a line of JSON for each
run that ended. LOG gets a line for each program that was run, which survives a kill.
"""

import json
import os
import random
import signal
import sys
import time
import types
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins"))

import tvm
from fake_measuring import FakeBuilder, FakeRunner
from matmuls import matmul
from tvm.s_tir import meta_schedule as ms

from tunedb.plugins.metaschedule.database.database import Database
from tunedb.plugins.metaschedule.tuning.tune import tune

TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 2, "mcpu": "x86-64-v2"})
TRIALS, BATCH = 24, 4


def small_evolution():
    return ms.search_strategy.EvolutionarySearch(
        population_size=8, genetic_num_iters=1, init_min_unmeasured=4
    )


def run(url, strategy, seed, on_run=lambda _: None, *, trials=TRIALS):
    """Tune once; print what was done."""
    builder, runner = FakeBuilder(), FakeRunner(on_run=on_run)
    result = tune(
        matmul(64),
        TARGET,
        None,
        trials,
        num_trials_per_iter=BATCH,
        builder=builder,
        runner=runner,
        database=url,
        cost_model="random",
        strategy=strategy,
        num_tuning_cores=1,
        seed=seed,
        warm=False,
    )
    with result.database.store:
        told = {"resumed": result.resumed, "trials": result.trials, "ran": runner.ran}
        # One write: a kill between a line and its end would join it to the next process's line.
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()


def forked(function, *arguments):
    """Call a function in a process of its own; return the process's id."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            function(*arguments)
            status = 0
        finally:
            sys.stdout.flush()
            os._exit(status)
    return child


def stored(url):
    database = Database(url, read_only=True)
    try:
        return len(database)
    finally:
        database.close()


def pair(url):
    """Let one run begin, and another with the same candidates while it goes on."""
    Database(url).close()
    first = forked(run, url, "replay-trace", 7, lambda _: time.sleep(0.05))
    deadline = time.monotonic() + 300
    while stored(url) < 2 * BATCH:
        assert time.monotonic() < deadline, "the first run stores nothing"
        time.sleep(0.01)
    second = forked(run_longer, url)
    assert [os.waitpid(child, 0)[1] for child in (first, second)] == [0, 0]


def run_longer(url):
    """Tune with the same candidates, and some more: with equal arguments it would go on."""
    run(url, "replay-trace", 7, trials=TRIALS + BATCH)


def end_of(child, log, lines, moment):
    """Kill a process a moment after a file has some more lines; return how it ended."""
    aim = Path(log).read_bytes().count(b"\n") + lines
    while Path(log).read_bytes().count(b"\n") < aim:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.005)
    time.sleep(moment)
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def kill(url, log, kills, seed):
    """Kill a run several times, let it end, and run another one."""
    rng = random.Random(int(seed))
    Database(url).close()
    opened = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(hash_):
        os.write(opened, f"{hash_}\n".encode())
        time.sleep(0.01)

    for _ in range(int(kills)):
        child = forked(run, url, small_evolution(), 1, note)
        # Kills follow the number of measurements, so that a slow machine gets to some.
        status = end_of(child, log, rng.randrange(TRIALS), rng.uniform(0, 0.3))
        assert status in (0, signal.SIGKILL), status
        print(json.dumps({"stored": stored(url), "killed": status != 0}), flush=True)
    for _ in range(2):
        assert os.waitpid(forked(run, url, small_evolution(), 1, note), 0)[1] == 0
        print(json.dumps({"stored": stored(url), "killed": False}), flush=True)


if __name__ == "__main__":
    # TVM imports its tensor intrinsics for every tuning run: seconds of CPU time. The target here
    # has none of them.
    sys.modules["tvm.s_tir.tensor_intrin"] = types.ModuleType("tvm.s_tir.tensor_intrin")
    {"pair": pair, "kill": kill}[sys.argv[1]](*sys.argv[2:])

"""Tuning with a team's server, in processes of their own. Run as a script; tests read what it says.

python server_worker.py URL FOLDER WORKERS TRIALS

forks WORKERS tuning runs, every other one directly into the server at URL and the rest into files
of FOLDER with the server beside them. Nothing is measured: what a program takes follows from its
module. FOLDER/acknowledged gets a line for each measurement, its program's and its own digest,
after the commit that stored it. Prints a line of JSON for each run that ended.
"""

import json
import os
import sys
import time
import types
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins"))

import tvm
from fake_measuring import FakeBuilder, FakeRunner
from matmuls import matmul

from tunedb.plugins.metaschedule.tuning.tune import tune
from tunedb.storage.batches import Batches

TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 2, "mcpu": "x86-64-v2"})
BATCH = 4


def note_commits(path):
    """Let stores log each batch after its commit."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    add_batch = Batches.add

    def noted(self, batch, source):
        stored = add_batch(self, batch, source)
        lines = (f"{m.program.digest.hex()} {m.digest.hex()}\n" for m in batch)
        os.write(log, "".join(lines).encode())
        return stored

    Batches.add = noted


def run(number, url, folder, trials):
    is_local = number % 2 == 1
    result = tune(
        matmul(64),
        TARGET,
        None,
        trials,
        num_trials_per_iter=BATCH,
        builder=FakeBuilder(),
        runner=FakeRunner(on_run=lambda _: time.sleep(0.05)),
        database=str(folder / f"{number}.db") if is_local else url,
        server=url if is_local else None,
        cost_model="random",
        strategy="replay-trace",
        num_tuning_cores=1,
        seed=number + 1,
        warm=False,
    )
    with result.database.store:
        told = {"number": number, "trials": result.trials}
        if result.delivery is not None:
            told["waiting"] = result.delivery.waiting
        print(json.dumps(told), flush=True)


def main(url, folder, workers, trials):
    folder = Path(folder)
    note_commits(folder / "acknowledged")
    children = []
    for number in range(int(workers)):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                run(number, url, folder, int(trials))
                status = 0
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    sys.exit(f"statuses: {statuses}" if any(statuses) else 0)


if __name__ == "__main__":
    # TVM imports its tensor intrinsics for every tuning run: seconds of CPU time. The target here
    # has none of them.
    sys.modules["tvm.s_tir.tensor_intrin"] = types.ModuleType("tvm.s_tir.tensor_intrin")
    main(*sys.argv[1:])

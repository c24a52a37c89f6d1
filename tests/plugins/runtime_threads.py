"""Prints how a fresh process uses TVM's threads, as JSON; run by test_threads.py.

``python runtime_threads.py [[{...}, [...]], ...]`` prints the decision with some variables of the
environment on some CPUs, a line for each; with ``pinned`` as a second argument, it then lets TVM
pin the main thread, and tunes on.
"""

import ctypes
import importlib
import json
import os
import sys
import threading
from pathlib import Path

import tvm
import tvm_ffi
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.runner import EvaluatorConfig, RunnerInput
from tvm.script import tirx as T

import tunedb.system.cpus
from tunedb.models._xgboost import threads_to_use
from tunedb.plugins.metaschedule import WarmBuilder
from tunedb.plugins.metaschedule.threads import (
    inherited_threads,
    note_on_threads,
    runtime_threads,
    usable_cpus,
    use_threads,
    whole_cores,
)
from tunedb.plugins.metaschedule.tuning.defaults import host_target


@T.prim_func(s_tir=True)
def twice(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
    T.func_attr({"global_symbol": "main", "tirx.noalias": True})
    for i in T.parallel(64):
        with T.sblock("B"):
            vi = T.axis.remap("S", [i])
            B[vi] = A[vi] * T.float32(2)


def pool_threads():
    """Return how many threads a parallel loop gets in the calling thread; starts its pool."""

    # A class of the function's: a runner pickles this module's objects.
    class GroupEnvironment(ctypes.Structure):
        _fields_ = (("sync", ctypes.c_void_p), ("tasks", ctypes.c_int32))

    counts = []
    kind = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_int, ctypes.POINTER(GroupEnvironment), ctypes.c_void_p
    )

    @kind
    def body(task, environment, _):
        if task == 0:
            counts.append(environment.contents.tasks)
        return 0

    folder = Path(tvm.__file__).parent
    (library,) = folder.rglob("libtvm_runtime.so")
    ctypes.CDLL(str(library)).TVMBackendParallelLaunch(body, None, 0)
    return counts[0]


def report(*_):
    """Return what a runner's process has: threads of a loop, and CPUs before and after it."""
    before = len(os.sched_getaffinity(0))
    return [float(pool_threads()), float(before), float(len(os.sched_getaffinity(0)))]


def counts():
    threads = runtime_threads()
    return {
        "threads": threads.as_json(),
        "cores": whole_cores(),
        "cpus": usable_cpus(),
        "num-cores": int(host_target().attrs["num-cores"]),
        "note": note_on_threads(),
    }


def pinned():
    tvm_ffi.get_global_func("runtime.config_threadpool")(1, 1)
    found = {"pinned": len(os.sched_getaffinity(0)), "inherited": inherited_threads().as_json()}
    threads = use_threads()
    found |= {
        "threads": threads.as_json(),
        "now inherited": inherited_threads().as_json(),
        "released": len(os.sched_getaffinity(0)),
        "xgboost": threads_to_use(),
    }
    other = []
    thread = threading.Thread(target=lambda: other.extend(report()))
    thread.start()
    thread.join()
    found["thread"] = other
    mod = tvm.IRModule({"main": twice})
    with WarmBuilder(max_workers=1) as builder:
        target = tvm.target.Target({"kind": "llvm", "num-cores": 2})
        (built,) = builder.build([ms.builder.BuilderInput(mod, target)])
        found["builder"] = [len(os.sched_getaffinity(pid)) for pid in builder.worker_pids()]
        runner = ms.runner.LocalRunner(
            evaluator_config=EvaluatorConfig(number=1, repeat=1), f_run_evaluator=report
        )
        info = ms.arg_info.ArgInfo.from_entry_func(mod)
        (future,) = runner.run([RunnerInput(built.artifact_path, "cpu", info)])
        result = future.result()
        found["runner"] = result.error_msg or [float(value) for value in result.run_secs]
    return found


def counts_of_each(environments):
    """Print the thread counts of a new process for each environment; TVM has no thread yet."""
    for variables, cpus in environments:
        child = os.fork()
        if not child:
            os.environ.update(variables)
            os.sched_setaffinity(0, cpus)
            importlib.reload(tunedb.system.cpus)  # it reads them when it is imported
            print(json.dumps(counts()), flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


if __name__ == "__main__":
    counts_of_each(json.loads(sys.argv[1]))
    if sys.argv[2:] == ["pinned"]:
        print(json.dumps(pinned()))

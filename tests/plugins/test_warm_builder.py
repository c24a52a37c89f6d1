"""WarmBuilder: its workers are real processes, so tests share builders and use large batches."""

import contextlib
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cloudpickle
import psutil
import pytest
import tvm
from effort import long
from matmuls import matmul
from products import assert_multiplies
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.utils import remove_build_dir

from tunedb.errors import PluginError, UsageError
from tunedb.limits import MAX_MESSAGE_CHARS
from tunedb.plugins.metaschedule.failures import classify
from tunedb.plugins.metaschedule.workers import build_worker
from tunedb.plugins.metaschedule.workers.warm_builder import WarmBuilder
from tunedb.records import FailureKind, Phase

TIMEOUT = 2.5


def functions():
    """Return nested functions, which cloudpickle sends by value: workers cannot import tests."""

    def f_build(mod, _target, _params):
        import ctypes
        import os
        import signal
        import sys
        import time

        match str(mod.attrs["behaviour"]):
            case "abort":
                os.abort()
            case "_exit":
                os._exit(3)
            case "sys.exit":
                sys.exit(4)
            case "sleep":
                time.sleep(60)
            case "hold the GIL":
                ctypes.PyDLL(None).sleep(60)
            case "raise":
                raise ValueError("no such loop")
            case "raise much":
                raise ValueError("a\0b\udc80" * 10**6 + "the end")
            case name if name.startswith("SIG"):
                os.write(2, b"last words\n")
                os.kill(os.getpid(), getattr(signal, name))
                time.sleep(60)
        return {"pid": os.getpid(), "candidate": str(mod.attrs["candidate"])}

    def f_export(built):
        import json
        import tempfile
        from pathlib import Path

        path = Path(tempfile.mkdtemp(), "artifact.json")
        path.write_text(json.dumps(built))
        return str(path)

    return {"f_build": f_build, "f_export": f_export}


MODULE = matmul(16)
TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 2})


def candidates(*behaviours):
    made = [MODULE.with_attr("behaviour", one) for one in behaviours]
    made = [mod.with_attr("candidate", str(number)) for number, mod in enumerate(made)]
    return [ms.builder.BuilderInput(mod, TARGET) for mod in made]


def read(result):
    assert result.error_msg is None, result.error_msg
    return json.loads(Path(result.artifact_path).read_text())


def pids(results):
    return [read(result)["pid"] for result in results]


def is_alive(pid):
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def wait_for(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def builder():
    with WarmBuilder(max_workers=2, timeout_sec=TIMEOUT, **functions()) as builder:
        yield builder


@pytest.fixture
def ready(builder):
    """The builder when both of its workers run."""
    wait_for(lambda: len(builder.worker_pids()) == 2)
    return builder


def test_batches_share_workers_but_no_artifacts(ready):
    before = ready.worker_pids()
    results = [result for _ in range(4) for result in ready.build(candidates(*["ok"] * 4))]
    assert set(pids(results)) <= set(before)
    assert ready.worker_pids() == before
    remove_build_dir(results[0].artifact_path)
    assert not Path(results[0].artifact_path).exists()
    assert [read(result)["candidate"] for result in results[1:]] == (list("0123") * 4)[1:]


def test_tvm_calls_the_builder_through_the_ffi(ready):
    assert isinstance(ready, ms.builder.Builder)
    results = ms.builder.Builder.build(ready, candidates("ok", "raise"))
    assert pids(results[:1])[0] in ready.worker_pids()
    assert results[1].artifact_path is None


CRASHES = {
    **{"SIGSEGV": "signal 11, SIGSEGV", "_exit": "exit status 3", "abort": "signal 6, SIGABRT"},
    **{"SIGKILL": "signal 9, SIGKILL", "sys.exit": "exit status 4"},
}


@pytest.mark.parametrize("crashes", [list(CRASHES)[:2], long(list(CRASHES))], ids=len)
def test_crash_fails_only_its_candidate(ready, crashes):
    behaviours = ["ok", *crashes, "ok", "raise", "ok"]
    results = ready.build(candidates(*behaviours))
    for number, (result, behaviour) in enumerate(zip(results, behaviours, strict=True)):
        if behaviour == "ok":
            assert read(result)["candidate"] == str(number)
        elif behaviour == "raise":
            assert "no such loop" in result.error_msg
        else:
            failure = classify(Phase.BUILD, result.error_msg)
            assert failure.kind is FailureKind.CRASH
            assert failure.message.splitlines()[0].endswith(f"({CRASHES[behaviour]})")
            assert failure.seconds >= 0
    assert "\nlast words\n" in results[1].error_msg


@pytest.mark.parametrize("more", [[], long(["SIGSTOP", "sleep", "ok"])], ids=len)
def test_timeout_fails_only_its_candidate_and_removes_its_files(ready, more):
    directory = Path(ready.build(candidates("ok"))[0].artifact_path).parents[2]
    before, stopped = set(directory.iterdir()), ready.worker_pids()
    behaviours = ["hold the GIL", "ok", *more]
    results = ready.build(candidates(*behaviours))
    built = set()
    for number, (result, behaviour) in enumerate(zip(results, behaviours, strict=True)):
        if behaviour == "ok":
            assert read(result)["candidate"] == str(number)
            built.add(Path(result.artifact_path).parents[1])
            continue
        failure = classify(Phase.BUILD, result.error_msg)
        assert failure.kind is FailureKind.TIMEOUT
        assert failure.seconds >= TIMEOUT
    assert set(directory.iterdir()) == before | built
    assert sum(map(is_alive, stopped)) == (0 if more else 1)


def test_worker_survives_exceptions(ready):
    before = ready.worker_pids()
    short, long = ready.build(candidates("raise", "raise much"))
    assert classify(Phase.BUILD, short.error_msg).kind is FailureKind.COMPILE_ERROR
    assert short.error_msg.startswith("tunedb WarmBuilder: compile error after 0.")
    assert short.error_msg.splitlines()[1].startswith("Traceback")
    assert "ValueError: no such loop" in short.error_msg
    assert len(long.error_msg) <= MAX_MESSAGE_CHARS
    assert long.error_msg.rstrip().endswith("the end")
    assert ready.worker_pids() == before


@pytest.mark.parametrize("number", [signal.SIGKILL, long(signal.SIGSTOP)])
def test_killed_or_stopped_idle_workers_fail_no_candidate(ready, number):
    before = ready.worker_pids()
    for pid in before:
        os.kill(pid, number)
    # The parent notices it before or after it sends the candidates.
    after = pids(ready.build(candidates("ok", "ok", "ok")))
    assert not set(after) & set(before)
    wait_for(lambda: not any(is_alive(pid) for pid in before))


def test_threads_get_their_own_results(ready):
    def build(start):
        return ready.build(candidates(*["ok"] * 6)[start:] + candidates("raise"))

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(build, range(4)))
    for start, (*good, bad) in enumerate(answers):
        assert [read(result)["candidate"] for result in good] == list("012345")[start:]
        assert bad.artifact_path is None


def test_builder_lives_while_tvm_holds_it_and_is_freed_without_the_collector():
    """Its process is replaced after its last use."""
    gc.collect()
    gc.disable()
    try:
        builder = WarmBuilder(max_workers=1, maximum_uses=2, **functions())
        dead = weakref.ref(builder)
        held = tvm.ffi.Array([builder]) if hasattr(tvm, "ffi") else tvm.runtime.convert([builder])
        del builder
        results = held[0].build(candidates("ok", "ok", "ok"))
        first, second, third = pids(results)
        assert first == second != third
        directory = Path(results[0].artifact_path).parents[2]
        assert is_alive(third)
        del held
        assert dead() is None
        assert not is_alive(third)
        assert not directory.exists()
    finally:
        gc.enable()


ORPHANS = """
import threading, time
from tunedb.plugins.metaschedule.workers.warm_builder import WarmBuilder
from tvm import te
import tvm
from tvm.s_tir import meta_schedule as ms

def functions():
    def f_build(mod, target, params):
        import ctypes
        ctypes.PyDLL(None).sleep(600)
    return f_build

builder = WarmBuilder(max_workers=2, f_build=functions(), timeout_sec=60)
a = te.placeholder((4,), name="A")
mod = tvm.IRModule({"main": te.create_prim_func([a, te.compute((4,), lambda i: a[i], name="B")])})
item = ms.builder.BuilderInput(mod, tvm.target.Target("llvm"))
while len(builder.worker_pids()) < 2:
    time.sleep(0.01)
threading.Thread(target=builder.build, args=([item],), daemon=True).start()
time.sleep(0.3)
print(*builder.worker_pids(), flush=True)
time.sleep(600)
"""


@pytest.mark.stress
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a busy worker ends after its build")
def test_no_worker_outlives_a_killed_parent(tmp_path):
    command, environment = [sys.executable, "-c", ORPHANS], {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        workers = [int(word) for word in parent.stdout.readline().split()]
        assert len(workers) == 2
        assert all(is_alive(pid) for pid in workers)
        parent.kill()
    wait_for(lambda: not any(is_alive(pid) for pid in workers))


def test_builder_rejects_invalid_options_at_once():
    with pytest.raises(UsageError, match="max_workers must be positive, not 0"):
        WarmBuilder(max_workers=0)
    with pytest.raises(UsageError, match="f_build must be a function, not 3"):
        WarmBuilder(f_build=3)
    lock = threading.Lock()
    with pytest.raises(UsageError, match="f_export cannot be sent to a worker process"):
        WarmBuilder(f_export=lambda _: lock)


def test_first_build_reports_errors_of_workers():
    with WarmBuilder(max_workers=1, f_build="no.such.function") as builder:
        with pytest.raises(PluginError, match=r"f_build: .*'no\.such\.function' is not registered"):
            builder.wait_until_ready()
        # Through C++, as a tuning run calls it.
        with pytest.raises(PluginError, match=r"'no\.such\.function' is not registered"):
            ms.builder.Builder.build(builder, candidates("ok"))


def test_worker_reports_failing_initializer():
    def initializer():
        raise OSError("no licence")

    setup = cloudpickle.dumps([cloudpickle.dumps(one) for one in (initializer, None, None)])
    assert build_worker.prepare(setup) == "initializer failed: OSError: no licence"


def test_builder_reports_workers_that_cannot_start(monkeypatch):
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    problem = pytest.raises(PluginError, match="cannot start a worker")
    with WarmBuilder(max_workers=2) as builder, problem:
        builder.build(candidates("ok"))


def test_worker_builds_real_candidate_without_unneeded_imports_and_close_ends_everything():
    def f_export(module):
        import sys
        from pathlib import Path

        from tunedb.plugins.metaschedule.workers.build_worker import default_export

        path = default_export(module)
        Path(path).with_name("modules").write_text("\n".join(sys.modules))
        return path

    def initializer():
        import tvm

        @tvm.register_global_func("tunedb.test.build")
        def build(mod, target, params):
            from tunedb.plugins.metaschedule.workers.build_worker import default_build

            return default_build(mod, target, params)

    item = ms.builder.BuilderInput(matmul(32), TARGET)
    options = {"max_workers": 1, "f_export": f_export, "timeout_sec": 60}
    with WarmBuilder(**options, f_build="tunedb.test.build", initializer=initializer) as builder:
        (result,) = builder.build([item])
        assert result.error_msg is None, result.error_msg
        (pid,) = builder.worker_pids()
        modules = Path(result.artifact_path).with_name("modules").read_text().splitlines()
        assert "tvm.driver" in modules
        for name in ("tvm.s_tir.tensor_intrin", "sqlalchemy", "xgboost", "tunedb.storage.store"):
            assert name not in modules
        # As LocalRunner loads it.
        assert_multiplies(tvm.runtime.load_module(result.artifact_path)["main"], 32)
        parent = Path(result.artifact_path).parent
        remove_build_dir(result.artifact_path)
        assert not parent.exists()
        assert parent.parent.exists()
        assert parent.parent != Path(tempfile.gettempdir())
        assert is_alive(pid)
    builder.close()
    assert not is_alive(pid)
    assert not parent.parent.exists()
    with pytest.raises(PluginError, match="the builder is closed"):
        builder.build([item])


@pytest.mark.stress
def test_one_builder_serves_several_tuning_runs(tmp_path):
    runner = ms.runner.LocalRunner(
        evaluator_config=ms.runner.EvaluatorConfig(number=1, repeat=1, min_repeat_ms=0)
    )
    with WarmBuilder(max_workers=2, timeout_sec=60) as builder:
        options = {
            **{"max_trials_global": 2, "num_trials_per_iter": 1, "num_tuning_cores": 1, "seed": 1},
            **{"cost_model": "random", "strategy": "replay-trace"},
            **{"builder": builder, "runner": runner, "database": ms.database.MemoryDatabase()},
        }
        workers = []
        for n, known in ((16, 2), (32, 4)):
            database = ms.tune_tir(matmul(n), TARGET, str(tmp_path), **options)
            records = database.get_all_tuning_records()
            assert len(records) == known
            assert all(float(record.run_secs[0]) < 1 for record in records)
            workers.append(set(builder.worker_pids()))
        assert workers[0] == workers[1]
        assert len(workers[0]) == 2

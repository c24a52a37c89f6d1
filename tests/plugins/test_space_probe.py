"""Design spaces that crash the process or hang."""

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
import tvm
import tvm_ffi
from fake_tuning import tune_quickly
from matmuls import llvm as TARGET
from tvm.s_tir import meta_schedule as ms

from tunedb.errors import PluginError
from tunedb.plugins.metaschedule import Database, WarmBuilder
from tunedb.plugins.metaschedule.workers import space_probe
from tunedb.plugins.metaschedule.workers.space_probe import try_spaces

LIMIT = 5.0
KILLS = "its design space kills the process (signal 11, SIGSEGV)"
HANGS = "its design space hangs for more than 5 s"


def make_space(kills=32, hangs=48):
    """Return a schedule function that is fatal for two extents in every other process."""
    here = os.getpid()

    def space(sch):
        import os
        import signal
        import time

        loops = sch.get_loops(sch.get_sblock("C"))
        extent = int(sch.get(loops[0]).extent)
        if extent in (kills, hangs):
            if os.getpid() == here:
                raise RuntimeError("the tuning process got a fatal function")
            if extent == hangs:
                time.sleep(60)
            os.kill(os.getpid(), signal.SIGSEGV)
        sch.split(loops[0], sch.sample_perfect_tile(loops[0], 2, 16))

    return space


@pytest.fixture(scope="module")
def builder():
    """A builder whose workers do not compile: an artifact is the hash of its module."""

    def export(mod):
        path = Path(tempfile.mkdtemp(), "artifact")
        path.write_text(str(tvm_ffi.structural_hash(mod)))
        return str(path)

    functions = {"f_build": lambda mod, *_: mod, "f_export": export}
    with WarmBuilder(max_workers=1, timeout_sec=LIMIT, **functions) as found:
        yield found


def run(path, builder, mod, space):
    with Database(path, target=TARGET) as database:
        return tune_quickly(mod, database, max_trials_global=4, builder=builder, space=space)


@pytest.mark.stress
def test_run_skips_functions_whose_design_space_crashes_or_hangs(tmp_path, builder, tools):
    sizes = {"good": 16, "hanging": 48, "killing": 32}
    mod = tvm.IRModule({name: tools.matmul(n)["main"] for name, n in sizes.items()})
    result = run(tmp_path / "store.db", builder, mod, make_space())
    problems = {task.name: task.problem for task in result.tasks}
    assert problems == {"good": None, "hanging": HANGS, "killing": KILLS}
    assert [task.progress.trials for task in result.tasks] == [4, 0, 0]
    assert result.tasks[0].record is not None


def test_run_fails_if_design_space_of_its_only_function_crashes(
    tmp_path, builder, tools, monkeypatch
):
    monkeypatch.setattr(space_probe, "Retried", lambda job: job)
    with pytest.raises(PluginError) as caught:
        run(tmp_path / "store.db", builder, tools.matmul(32), make_space())
    assert str(caught.value) == f"TVM ended the tuning run: {KILLS}"


def test_try_spaces_reports_no_problem_of_spaces_that_cannot_be_sent(builder, tools):
    lock = threading.Lock()

    def locked(sch):
        with lock:
            make_space()(sch)

    spaces = [ms.space_generator.ScheduleFn(make_space()), locked, "no such space"]
    problem = try_spaces(builder, [(tools.matmul(32), TARGET, one) for one in spaces], seed=1)
    assert [problem(number) for number in range(3)] == [None] * 3


@pytest.mark.parametrize("space", ["tunedb", "post-order-apply"])
def test_space_loads_only_intrinsics_of_its_target(space):
    code = """
import sys
import cloudpickle, tvm
from tvm import te
from tvm.s_tir import meta_schedule as ms
from tunedb.plugins.metaschedule.workers import space_worker
a, b = (te.placeholder((16, 16), name=name) for name in "AB")
k = te.reduce_axis((0, 16), name="k")
c = te.compute((16, 16), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
mod = tvm.IRModule({"main": te.create_prim_func([a, b, c])})
generated = []
real = ms.TuneContext.generate_design_space
ms.TuneContext.generate_design_space = lambda self: generated.append(real(self)) or generated[-1]
for cpu in ("x86-64-v2", "cascadelake"):
    target = tvm.target.Target({"kind": "llvm", "num-cores": 2, "mcpu": cpu})
    space_worker.try_space(cloudpickle.dumps((mod, target, sys.argv[1], 1)))
    loaded = [name.rpartition(".")[2] for name in sys.modules if "s_tir.tensor_intrin" in name]
    print(len(generated), sorted(loaded))
"""
    command = [sys.executable, "-c", code, space]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["1 []", "2 ['arm_cpu', 'dot_product_common', 'x86']"]

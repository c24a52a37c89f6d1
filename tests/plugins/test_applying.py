"""Compiling with stored records: by TVM's own functions, and by those that report the records."""

from unittest import mock

import numpy as np
import pytest
import tvm
from products import assert_multiplies
from tvm import relax
from tvm.s_tir import meta_schedule as ms
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from tunedb.errors import NotFoundError, PluginError, StorageError, UsageError
from tunedb.plugins.metaschedule import Database
from tunedb.plugins.metaschedule.deploy import apply
from tunedb.plugins.metaschedule.deploy.apply import compile, schedule, tasks_of, write_library
from tunedb.plugins.metaschedule.module_source import as_module

TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 2})


@I.ir_module
class Model:
    """Two TensorIR functions, and the Relax function that calls them."""

    @T.prim_func(private=True, s_tir=True)
    def product(
        A: T.Buffer((16, 16), "float32"),
        B: T.Buffer((16, 16), "float32"),
        C: T.Buffer((16, 16), "float32"),
    ):
        T.func_attr({"tirx.noalias": True})
        for i, j, k in T.grid(16, 16, 16):
            with T.sblock("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    C[vi, vj] = T.float32(0)
                C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]

    @T.prim_func(private=True, s_tir=True)
    def twice(A: T.Buffer((16, 16), "float32"), C: T.Buffer((16, 16), "float32")):
        T.func_attr({"tirx.noalias": True})
        for i, j in T.grid(16, 16):
            with T.sblock("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = A[vi, vj] * T.float32(2)

    @R.function
    def main(x: R.Tensor((16, 16), "float32"), w: R.Tensor((16, 16), "float32")) -> R.Tensor(
        (16, 16), "float32"
    ):
        cls = Model
        with R.dataflow():
            y = R.call_tir(cls.product, (x, w), R.Tensor((16, 16), "float32"))
            z = R.call_tir(cls.twice, (y,), R.Tensor((16, 16), "float32"))
            R.output(z)
        return z


@pytest.fixture
def database(path, opened):
    return opened(path, target=TARGET)


def commit(database, tools, mod, run_secs=(1e-3,), **fields):
    """Store a record of a normalised module, as a tuning run does."""
    tools.commit(database, mod, list(run_secs), target=TARGET, **fields)


def is_parallel(mod, name="main"):
    return "T.parallel" in mod[name].script()


def test_schedule_applies_records_as_tvms_pass_does_and_names_them(database, tools):
    tuned, other = tools.matmul(), tools.matmul(8)
    commit(database, tools, tuned, [2e-3, 4e-3])
    with TARGET, database:
        theirs = relax.transform.MetaScheduleApplyDatabase()(tuned)
        tvm.ir.assert_structural_equal(relax.transform.MetaScheduleApplyDatabase()(other), other)
    assert is_parallel(theirs) and not is_parallel(tuned)
    assert theirs["main"].attrs["tirx.is_scheduled"]
    tvm.ir.assert_structural_equal(schedule(tuned, database)[0], theirs)
    applied, uses = schedule(tvm.IRModule({"a": tuned["main"], "b": other["main"]}), database)
    found = [(use.function, use.record_id, use.workload_id) for use in uses]
    assert found == [("a", 1, 1), ("b", None, None)]
    assert uses[0].mean == pytest.approx(3e-3)
    assert is_parallel(applied, "a") and not is_parallel(applied, "b")


def test_written_library_computes_the_right_product(database, tools, tmp_path):
    commit(database, tools, tools.matmul())
    made, names = compile(tools.matmul(), database), ["kernels.so", "kernels.tar"]
    assert [use.record_id for use in made.uses] == [1]
    for name in names:
        write_library(made.executable, tmp_path / name)
    assert sorted(path.name for path in tmp_path.glob("kernels*")) == names
    for name in names:
        assert_multiplies(tvm.runtime.load_module(str(tmp_path / name))["main"], 16)


def test_compile_finds_record_of_private_function_and_exports_its_name(database, tools, tmp_path):
    func = tools.matmul()["main"].without_attr("global_symbol")
    commit(database, tools, tools.matmul())
    made = compile(tvm.IRModule({"product": func}), database)
    assert made.uses[0].record_id == 1, "TVM calls a function without a symbol main when it asks"
    write_library(made.executable, tmp_path / "kernels.so")
    assert tvm.runtime.load_module(str(tmp_path / "kernels.so"))["product"] is not None
    with pytest.raises(UsageError, match=r"ends in one of \.so"):
        write_library(made.executable, tmp_path / "kernels.exe")
    with pytest.raises(StorageError, match="cannot be written"):
        write_library(made.executable, tmp_path / "nowhere" / "kernels.so")


@pytest.mark.parametrize("largest", [-1, 300], ids=["bytecode", "compiled"])
def test_branches_share_no_storage(largest, monkeypatch):
    """TVM's plan of the memory would let a run of the second branch end the process."""
    monkeypatch.setattr(apply, "_COMPILED_CALLS", largest)
    x = relax.Var("x", R.Tensor((4, 16), "float32"))
    is_first = relax.Var("is_first", R.Tensor((), "bool"))
    b = relax.BlockBuilder()
    with b.function("main", [x, is_first]):
        branches = (function(relax.op.cos(x)) for function in (relax.op.tanh, relax.op.exp))
        b.emit_func_output(b.emit(relax.If(is_first, *branches)))
    executable = compile(b.finalize(), ":memory:", TARGET).executable
    machine = relax.VirtualMachine(executable, tvm.cpu())
    value = np.random.default_rng(0).uniform(size=(4, 16)).astype("float32")
    for first, function in ((False, np.exp), (True, np.tanh), (False, np.exp)):
        found = machine["main"](tvm.runtime.tensor(value), tvm.runtime.tensor(np.array(first)))
        np.testing.assert_allclose(found.numpy(), function(np.cos(value)), rtol=1e-5)


def test_compile_takes_the_name_of_a_database(database, path, tools):
    commit(database, tools, tools.matmul())
    for name, found in ((path, [1]), (str(path), [1]), (":memory:", [None])):
        assert [use.record_id for use in compile(tools.matmul(), name, TARGET).uses] == found
    with pytest.raises(NotFoundError, match=r"no such database; run: tunedb db init"):
        compile(tools.matmul(), path.with_name("none.db"), TARGET)


def test_compile_and_tvms_compile_relax_apply_records_to_relax_program(database, tools, tmp_path):
    # product and twice are fused into one function.
    (mod,) = tasks_of(Model, TARGET).values()
    commit(database, tools, mod)
    applied, (use,) = schedule(Model, database)
    assert use.record_id == 1 and is_parallel(applied, use.function)
    made = compile(Model, database)
    assert (made.uses, repr(made)) == ((use,), "Compiled(functions=1, with_record=1)")
    write_library(made.executable, tmp_path / "model.so")
    theirs = ms.relax_integration.compile_relax(database, Model, TARGET, params=None)
    a, b = np.random.default_rng(0).uniform(size=(2, 16, 16)).astype("float32")
    for executable in (tvm.runtime.load_module(str(tmp_path / "model.so")), theirs):
        machine = relax.VirtualMachine(executable, tvm.cpu())
        found = machine["main"](tvm.runtime.tensor(a), tvm.runtime.tensor(b))
        np.testing.assert_allclose(found.numpy(), 2 * (a @ b), rtol=1e-5)


def test_tasks_of_names_each_task_by_function_and_its_function_main(tools):
    ((name, task),) = tasks_of(as_module(tools.matmul()["main"], "product"), TARGET).items()
    assert name == "product"
    assert [str(var.name_hint) for var in task.get_global_vars()] == ["main"]


def test_gpu_functions_without_a_record_get_a_default_schedule(path, tools, monkeypatch):
    """Nothing can be compiled without a GPU; the test checks the module before that."""
    compiler = mock.Mock(side_effect=RuntimeError("no compiler for it"))
    monkeypatch.setattr(tvm, "compile", compiler)
    with pytest.raises(PluginError, match=r"TVM cannot compile it: .*no compiler for it"):
        compile(tools.matmul(), Database(path, target=tools.cuda))
    assert "threadIdx.x" in compiler.call_args.args[0].script()


def test_schedule_rejects_database_without_target(path, tools):
    with pytest.raises(UsageError, match="no target: give one"):
        schedule(tools.matmul(), Database(path))

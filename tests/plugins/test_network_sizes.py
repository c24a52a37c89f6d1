"""Networks with symbolic sizes."""

import networks
import numpy as np
import pytest
import tvm
from fake_tuning import tune_quickly
from raising import raises_line
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from tunedb.errors import UsageError
from tunedb.plugins.metaschedule import Database, compile
from tunedb.plugins.metaschedule.deploy.apply import schedule, tasks_of
from tunedb.plugins.metaschedule.deploy.explain import explain
from tunedb.plugins.metaschedule.deploy.network import Lowering, bind_sizes, bindings
from tunedb.plugins.metaschedule.modules import modules_equal

TARGET = tvm.target.Target(networks.LLVM)


@pytest.fixture(scope="module")
def mod():
    return from_onnx(networks.symbolic("batch", "length"))


@pytest.fixture
def database(tmp_path):
    with Database(tmp_path / "store.db", target=TARGET) as found:
        yield found


def test_bound_network_has_the_tasks_of_one_exported_with_these_sizes(mod):
    bound = tasks_of(mod, TARGET, Lowering(bind={"batch": 2, "length": 8}))
    static = tasks_of(from_onnx(networks.symbolic(2, 8)), TARGET)
    assert bound.keys() == static.keys()
    assert all(modules_equal(bound[name], static[name], "structural") for name in bound)


def test_records_are_found_only_with_the_same_sizes(mod, database):
    sizes = {"batch": 2, "length": 8}
    result = tune_quickly(mod, database, target=TARGET, bind=sizes, max_trials_per_task=1)
    assert all(task.record is not None for task in result.tasks)
    made = compile(mod, database, bind=sizes)
    assert made.uses and all(use.record_id is not None for use in made.uses)
    data = np.random.default_rng(0).normal(size=(2, 8, 16)).astype("float32")
    plain = tvm.compile(bind_sizes(mod, sizes), target=TARGET)
    machines = [relax.VirtualMachine(one, tvm.cpu()) for one in (made.executable, plain)]
    found, expected = (machine["main"](tvm.runtime.tensor(data)).numpy() for machine in machines)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    _, uses = schedule(mod, database, bind=sizes)
    assert [use.record_id for use in uses] == [use.record_id for use in made.uses]
    findings = explain(database.store, mod, TARGET, bind=sizes)
    assert all(finding.use is not None for finding in findings)
    others = explain(database.store, mod, TARGET, bind={"batch": 3, "length": 8})
    assert any(finding.use is None for finding in others)


def test_tune_tunes_each_combination_of_sizes_and_equal_operators_once(mod, database):
    sizes = {"batch": 1, "length": [8, 4]}
    result = tune_quickly(mod, database, target=TARGET, bind=sizes, max_trials_per_task=1)
    calls = {task.name: task.calls for task in result.tasks}
    own = [f"{op}_batch1_length{n}" for op in ("fused_matmul_add_relu", "mean") for n in (8, 4)]
    assert calls == dict.fromkeys(own, 1) | {"fused_matmul1_add1": 2, "softmax": 2}
    for length in (8, 4):
        _, uses = schedule(mod, database, bind={"batch": 1, "length": length})
        assert uses and all(use.record_id is not None for use in uses)


def test_bindings_returns_each_combination_once():
    assert bindings(None) == [{}]
    found = bindings({"a": [1, 2, 1], "b": (3, 4)})
    assert found == [{"a": a, "b": b} for a in (1, 2) for b in (3, 4)]
    with pytest.raises(UsageError, match="a name without a number"):
        bindings({"a": []})


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (None, "symbolic sizes: batch, length; give a number for batch and length, e.g. --bind"),
        ({"batch": 1}, "symbolic sizes: batch, length; give a number for length, e.g. --bind len"),
        ({"n": 1}, "no symbolic size 'n'; there are: batch, length"),
        ({"batch": 0, "length": 8}, "bind: batch must be 1 or more, not 0"),
    ],
)
def test_missing_unknown_and_invalid_sizes_are_rejected_in_one_line(mod, database, sizes, message):
    for call in (
        lambda: compile(mod, database, bind=sizes),
        lambda: schedule(mod, database, bind=sizes),
        lambda: explain(database.store, mod, TARGET, bind=sizes),
        lambda: tune_quickly(mod, database, bind=sizes),
    ):
        with raises_line(UsageError, match=message):
            call()
    assert database.store.records.count() == 0


def test_compile_rejects_several_numbers_for_one_size(mod, database):
    with pytest.raises(UsageError, match=r"one number is expected for batch, not \[1, 2\]"):
        compile(mod, database, bind={"batch": [1, 2], "length": 8})


def test_bind_is_rejected_for_functions_without_symbolic_sizes(database, tools):
    for call in (compile, schedule, tune_quickly):
        with pytest.raises(UsageError, match="no symbolic size 'n'; there are: none"):
            call(tools.matmul(), database, bind={"n": 4})

"""Schedules do not change the modules that they are made of."""

import tvm
import tvm_ffi
from tvm import te
from tvm.s_tir import Schedule

from tunedb.plugins.metaschedule import Database
from tunedb.plugins.metaschedule.modules import shield


def mean():
    """Return two blocks, the first of which reduces."""
    a = te.placeholder((16, 64), name="a")
    k = te.reduce_axis((0, 64), name="k")
    total = te.compute((16,), lambda i: te.sum(a[i, k], axis=k), name="total")
    mean_ = te.compute((16,), lambda i: total[i] / 64.0, name="mean")
    return tvm.IRModule({"main": te.create_prim_func([a, mean_])})


def is_changed_by_a_schedule(mod):
    before = tvm_ffi.structural_hash(mod)
    schedule = Schedule(mod)
    schedule.annotate(schedule.get_sblock("root"), "meta_schedule.parallel", 32)
    schedule.split(schedule.get_loops(schedule.get_sblock("total"))[1], [16, 4])
    assert tvm_ffi.structural_hash(schedule.mod) != before
    return tvm_ffi.structural_hash(mod) != before


def test_schedule_does_not_change_shielded_module():
    mod = mean()
    held = shield(mod)
    assert len(held) == 2
    assert not is_changed_by_a_schedule(mod)
    # A TVM that does not change shared statements needs no shield.
    del held
    assert is_changed_by_a_schedule(mod)


def test_schedule_does_not_change_committed_module():
    mod = mean()
    with Database(":memory:", target="llvm") as database:
        database.commit_workload(mod)
        assert not is_changed_by_a_schedule(mod)


def test_shield_ignores_functions_of_relax():
    mod = mean()
    mod["relax"] = tvm.relax.Function([], tvm.relax.Tuple([]), is_pure=True)
    assert len(shield(mod)) == 2

"""Matrix products, records of their programs, and what a database answers for them."""

from tvm import IRModule, te
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target


def matmul(n=16, block="C", post=None):
    a = te.placeholder((n, n), name="A")
    b = te.placeholder((n, n), name="B")
    k = te.reduce_axis((0, n), name="k")
    c = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name=block)
    out = c if post is None else te.compute((n, n), lambda i, j: post(c[i, j]), name="D")
    return IRModule({"main": te.create_prim_func([a, b, out])})


def _llvm(cores=2, level=2):
    return Target({"kind": "llvm", "num-cores": cores, "mcpu": f"x86-64-v{level}"})


llvm, llvm_other, llvm_newer = _llvm(), _llvm(cores=8), _llvm(level=4)
cuda = Target({"kind": "cuda", "arch": "sm_80", "max_threads_per_block": 1024})


def record(mod, workload, run_secs, *, tile=(4, 4), target=None, block="C", postproc=True):
    sch = Schedule(mod)
    loops = sch.get_loops(sch.get_sblock(block))
    factors = sch.sample_perfect_tile(loops[1], 2, 16, decision=list(tile))
    outer, inner = sch.split(loops[1], factors)
    sch.reorder(loops[0], outer, loops[2], inner)
    if postproc:
        sch.enter_postproc()
        sch.parallel(loops[0])
    args = ms.arg_info.ArgInfo.from_prim_func(mod["main"])
    return ms.database.TuningRecord(sch.trace, workload, run_secs, target or llvm, args)


def commit(database, mod, run_secs, **options):
    """Commit a record of a module; return its workload."""
    workload = database.commit_workload(mod)
    database.commit_tuning_record(record(mod, workload, run_secs, **options))
    return workload


def seconds(records):
    return [None if r.run_secs is None else [float(v) for v in r.run_secs] for r in records]


def top(database, workload, k=5):
    """Return the times of the best records of a module or a workload."""
    if isinstance(workload, IRModule):
        workload = database.commit_workload(workload)
    return seconds(database.get_top_k(workload, k))


def best(database, mod, target=None):
    """Return the times of the record that answers for a module, or None."""
    found = database.query_tuning_record(mod, target or llvm, "main")
    return None if found is None else seconds([found])[0]

"""Records of GPU kernels beside those of modules: TVM's handle never gets them."""

import tunedb
from tunedb.formats.gpu.kernels import kernel_workload
from tunedb.launches import Launch
from tunedb.plugins.metaschedule import Database
from tunedb.programs.kernel import split_parameters
from tunedb.records import Measurement, Program, Source, Target, Workload, WorkloadFormat


def test_kernels_never_reach_tvm(path, tools):
    """The kernel is for the target of the handle, and faster than all other records."""
    mod = tools.matmul()
    with Database(path, target=tools.llvm) as database:
        workload = tools.commit(database, mod, [0.25])
        with tunedb.open(path) as store:
            (target_id,) = store.lookup.targets()
            program = Program(
                kernel_workload("main", [64]),
                store.targets.get(target_id),
                split_parameters({"block_size_x": 32}),
            )
            fast = Measurement(program, (1e-9,), launches=(Launch("main", 32),))
            store.records.add([fast], Source("kernels"))
            store.workloads.add(Workload(WorkloadFormat.T1, b"{}", "main"))
        assert tools.seconds(database.get_all_tuning_records()) == [[0.25]]
        assert (tools.top(database, workload), tools.best(database, mod)) == ([[0.25]], [0.25])
    with Database(path) as unbound:
        assert tools.best(unbound, mod) == [0.25]


def test_kernels_do_not_bind_a_handle_to_their_target(path, tools):
    """An unbound handle is bound by the modules of a database alone."""
    gpu = Target.from_config({"kind": "cuda", "model": "Tesla K40c"})
    program = Program(kernel_workload("main"), gpu, split_parameters({"block_size_x": 32}))
    with tunedb.open(path) as store:
        store.records.add([Measurement(program, (1e-9,))], Source("kernels"))
    with Database(path) as database:
        assert database.get_all_tuning_records() == []
        assert tools.top(database, tools.commit(database, tools.matmul(), [0.25])) == [[0.25]]

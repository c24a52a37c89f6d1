import pytest
from builders import FOREIGN, OWN, add, make_measurement, make_target, make_workload
from observing import ansor_rows

from tunedb import limits
from tunedb.advisor.tvm_launches import FillReport, fill_launches, gpu_targets
from tunedb.features.base import feature_set
from tunedb.programs.ansor import split_steps
from tunedb.programs.kernel import split_parameters
from tunedb.programs.metaschedule.trace import split_trace
from tunedb.records import Measurement, Program, Status, Target, Workload, WorkloadFormat
from tunedb.storage.store import Store

CUDA = Target.from_config({"kind": "cuda", "arch": "sm_80"})


def measured(threads, *, target=CUDA, workload=None, secs=(0.5,), **fields):
    """Return a record that binds two loops; the outer extent depends on the workload."""
    instructions = [
        ["GetSBlock", [], ["matmul", "main"], ["b0"]],
        ["GetLoops", ["b0"], [], ["l1"]],
        ["Split", ["l1", "None", threads or "None"], [1, 0], ["l2", "l3"]],
        ["Bind", ["l2"], ["blockIdx.x"], []],
        ["Bind", ["l3"], ["threadIdx.x"], []],
    ]
    program = Program(workload or make_workload(1), target, split_trace(instructions, []))
    return Measurement(program, secs, **fields)


def ansor(threads):
    steps = [["SP", 0, 0, 512, [threads], 1], ["AN", 0, 0, 5], ["AN", 0, 1, 6]]
    workload = Workload(WorkloadFormat.ANSOR, b'["f"]', "f")
    return Measurement(Program(workload, CUDA, split_steps(steps, 0)), (0.5,))


@pytest.fixture
def memory():
    with Store(":memory:") as store:
        yield store


def blocks_and_grids(store):
    """Return the blocks and grids of each record."""
    return [
        [(one.block, one.grid) for one in store.launches.for_record(record.id)]
        for record in store.records.iterate()
    ]


def test_fill_launches_adds_launches_of_tvm_gpu_programs(store):
    kernel = Workload(WorkloadFormat.KERNEL, b'{"kernel":"k","problem":null}', "k")
    tuner = Program(kernel, CUDA, split_parameters({"block_size_x": 32}))
    add(store, measured(64), ansor(128), measured(0), measured(32, target=make_target(0)))
    add(store, Measurement(tuner, (0.5,)), measured(256, secs=None, status=Status.FAILED))
    first = fill_launches(store)
    assert first == FillReport(records=4, known=0, filled=3, unknown=1, launches=3)
    expected = [[((64, 1, 1), None)], [((128, 1, 1), (4, 1, 1))], [], [], [], [((256, 1, 1), None)]]
    assert blocks_and_grids(store) == expected
    again = fill_launches(store)
    assert again == FillReport(records=4, known=3, filled=0, unknown=1, launches=0)
    assert blocks_and_grids(store) == expected
    assert [one.kernel for one in store.launches.for_record(1)] == ["matmul_1_kernel"]


def test_fill_launches_takes_grids_from_stored_features(memory):
    add(memory, *map(measured, (64, 0, 32)))
    rows = ansor_rows(*[((64, 1, 1), (9, 1, 1))] * 2)
    digests = [record.measurement.program.digest for record in memory.records.iterate()]
    one = feature_set("ansor.per_store/tvm")
    memory.features.add(one, [(id_, rows) for id_ in memory.programs.ids(digests)])
    report = fill_launches(memory)
    # The third program's rows contradict its trace.
    assert (report.filled, report.unknown) == (2, 1)
    assert blocks_and_grids(memory) == [[((64, 1, 1), (9, 1, 1))], [((64, 1, 1), (9, 1, 1))], []]


def test_fill_launches_fills_each_record_of_a_program_but_retracted_ones(memory):
    for number in range(4):
        add(memory, measured(64, secs=(0.5 + number,)), source=OWN if number else FOREIGN)
    memory.trust.retract([2], reason="wrong")
    assert fill_launches(memory).launches == 3


def test_fill_launches_stores_batches_and_resumes_after_interrupt(memory, monkeypatch):
    monkeypatch.setattr(limits, "FEATURE_PROGRAMS", 4)
    add(memory, *map(measured, range(2, 12)))
    seen = []
    report = FillReport()

    def stop(number):
        seen.append((number, report.launches))
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill_launches(memory, on_record=stop, report=report)
    assert seen == [(4, 4), (8, 8)]
    report = fill_launches(memory, on_record=seen.append)
    assert (report.known, report.filled) == (8, 2)
    assert seen[2:] == [4, 8, 10]


def test_fill_launches_follows_workloads_and_targets(memory):
    add(memory, measured(64), measured(32, workload=make_workload(2)))
    add(memory, measured(16, target=Target.from_config({"kind": "rocm"})), make_measurement())
    assert {memory.targets.get(id_).kind for id_ in gpu_targets(memory)} == {"cuda", "rocm"}
    workloads, targets = memory.lookup.workloads, memory.lookup.targets
    assert fill_launches(memory, workload_ids=workloads("matmul_2")).filled == 1
    assert fill_launches(memory, target_ids=targets("rocm")).filled == 1
    assert fill_launches(memory, target_ids=targets("llvm")) == FillReport()
    assert blocks_and_grids(memory) == [[], [((32, 1, 1), None)], [((16, 1, 1), None)], []]


def test_fill_launches_counts_damaged_programs_as_unknown(memory):
    bad = split_trace([["Bind", ["l9"], ["threadIdx.x"], []]], [])
    add(memory, Measurement(Program(make_workload(1), CUDA, bad), (0.5,)), measured(64))
    report = fill_launches(memory)
    assert (report.filled, report.unknown) == (1, 1)

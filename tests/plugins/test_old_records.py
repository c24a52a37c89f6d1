"""Records of older releases and other tools beside a tuning handle of today."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
import tvm
from old_graphs import matmul
from old_traces import as_of_0_13, without_upgrade
from tvm.s_tir import Schedule

import tunedb
from tunedb.plugins.metaschedule import Database, modules
from tunedb.plugins.metaschedule.graph_module import module_of
from tunedb.records import (
    Measurement,
    Program,
    Source,
    SourceKind,
    Target,
    Trace,
    Trust,
    Workload,
    WorkloadFormat,
)

OWN = Source("own", SourceKind.FILE)
VERIFIED = Source("verified", SourceKind.FILE, Trust.VERIFIED)
FOREIGN = Source("foreign", SourceKind.FILE, Trust.FOREIGN)

#: A graph whose types TVM 0.27 does not have, and a module in the encoding before 0.22.
GRAPH = b'{"nodes":[{"type":"None"},{"type":"tirx.SBlockRealize","data":{}}],"root_index":1}'
NODES = b'{"b64ndarrays":[],"nodes":[{"type_key":""},{"type_key":"IRModule"}],"root":1}'

OLD = [(WorkloadFormat.GRAPH, GRAPH, "0.26.0"), (WorkloadFormat.NODES, NODES, "0.13.dev0")]


def old_measurement(live, form, *, seconds=0.5, script=True):
    """Return the measurement as an older release would have stored it."""
    mod, measurement = live
    format_, body, version = form
    text = str(mod.script(show_meta=True)) if script is True else script
    workload = Workload(format_, body, "matmul", version, text)
    trace = as_of_0_13(measurement.program.trace)
    program = replace(measurement.program, workload=workload, trace=trace)
    return replace(measurement, program=program, run_secs=(seconds,), session=None)


def add(path, measurements, source=OWN):
    with tunedb.open(path) as store:
        store.records.add(measurements, source)


@pytest.mark.parametrize(
    ("form", "read_only"), [(OLD[0], False), (OLD[1], True)], ids=["graph", "nodes, read-only"]
)
def test_old_own_workload_is_rebuilt_from_its_script(path, live, tools, form, read_only):
    mod, _ = live
    add(path, [old_measurement(live, form)])
    for _ in range(2):  # the second handle finds the names that the first wrote
        database = Database(path, target=tools.llvm, read_only=read_only)
        assert database.has_workload(mod)
        assert not database.has_workload(tools.matmul(8))
        assert tools.seconds(database.get_all_tuning_records()) == [[0.5]]
        (record,) = database.get_top_k(database.commit_workload(mod), 5)
        tvm.ir.assert_structural_equal(record.workload.mod, mod)
        assert record.trace.insts[0].kind.name == "GetSBlock"
        record.trace.apply_to_schedule(Schedule(record.workload.mod), remove_postproc=False)
        schedule = database.query_schedule(mod, tools.llvm, "main")
        expected = Schedule(mod)
        trace = tools.record(mod, record.workload, None).trace
        trace.apply_to_schedule(expected, remove_postproc=False)
        tvm.ir.assert_structural_equal(schedule.mod, expected.mod)
        assert database.query_ir_module(mod, tools.llvm, "main") is not None
        assert len(database) == 1
        database.close()
    with tunedb.open(path) as store:
        assert store.quarantine.rows() == []
        # The stored record is not changed.
        (record,) = store.records.iterate()
        assert b"GetBlock" in record.measurement.program.trace.sketch
        assert record.measurement.program.workload.body == form[1]


def test_old_records_are_ranked_together_with_live_ones(path, live, tools, opened):
    mod, measurement = live
    add(path, [old_measurement(live, OLD[0], seconds=0.25), measurement])
    database = opened(path, target=tools.llvm)
    assert tools.top(database, mod) == [[0.25], [0.5]]
    assert tools.seconds(database.get_all_tuning_records()) == [[0.25], [0.5]]


#: Forms, scripts and sources of old records.
UNREAD = {
    "verified graph": [(OLD[0], True, VERIFIED)],
    "verified nodes": [(OLD[1], True, VERIFIED)],
    "foreign graph": [(OLD[0], True, FOREIGN)],
    "foreign nodes": [(OLD[1], True, FOREIGN)],
    # The own record is of the same workload and has no script.
    "foreign beside an own one": [(OLD[0], True, FOREIGN), (OLD[0], None, OWN)],
    "own without script": [(form, None, OWN) for form in OLD],
}


@pytest.mark.parametrize("records", UNREAD.values(), ids=UNREAD)
@pytest.mark.usefixtures("no_parser")
def test_scripts_of_others_are_never_parsed(path, live, tools, records):
    for number, (form, script, source) in enumerate(records, 1):
        seconds = 0.25 * number
        add(path, [old_measurement(live, form, seconds=seconds, script=script)], source)
    assert_serves_nothing(path, live[0], tools, len(records))


def assert_serves_nothing(path, mod, tools, records=1):
    """Assert that no method of a handle fails or returns a record."""
    for read_only in (True, False):
        with Database(path, target=tools.llvm, read_only=read_only) as database:
            assert not database.has_workload(mod)
            assert database.get_all_tuning_records() == []
            assert database.query_tuning_record(mod, tools.llvm, "main") is None
            assert database.query_schedule(mod, tools.llvm, "main") is None
            assert len(database) == records
            assert database.store.quarantine.rows() == []
            if not read_only:
                assert database.get_top_k(database.commit_workload(mod), 5) == []
                assert database.has_workload(mod)


@pytest.mark.parametrize("script", ["", "x = 1", "def f(:", "import os"])
def test_old_workload_with_invalid_script_answers_nothing(path, live, tools, script):
    mod, _ = live
    add(path, [old_measurement(live, OLD[0], script=script)])
    assert_serves_nothing(path, mod, tools)


def test_record_with_trace_that_cannot_be_upgraded_is_quarantined(path, live, tools, opened):
    mod, measurement = live
    program = replace(measurement.program, trace=without_upgrade(measurement.program.trace))
    add(path, [measurement, replace(measurement, program=program, run_secs=(0.25,))])
    database = opened(path, target=tools.llvm)
    assert tools.top(database, mod) == [[0.5]]
    assert tools.seconds(database.get_all_tuning_records()) == [[0.5]]
    (row,) = database.store.quarantine.rows()
    assert "SetAxisSeparator" in row.item.reason


def legacy(target):
    """Return records of AutoTVM, auto_scheduler, and of MetaSchedule without a workload file."""
    other = Target.from_config({"kind": "opencl", "model": "unknown-to-tvm"})
    bodies = {
        WorkloadFormat.AUTOTVM: b'["dense.x86",[["TENSOR",[16,16],"float32"]],{}]',
        WorkloadFormat.ANSOR: b'["d41d8cd98f00b204e9800998ecf8427e",16,16]',
        WorkloadFormat.ARGUMENTS: b'[0,[["TENSOR","float32",[16,16]]]]',
    }
    trace = Trace(b'[["knobs"]]', None, b"\xff\x00\x80")
    return [
        Measurement(Program(Workload(format_, body), target_, trace), (1e-3,))
        for format_, body in bodies.items()
        for target_ in (target, other)
    ]


@pytest.mark.usefixtures("no_parser")
def test_records_of_other_tools_answer_nothing(path, live, tools, opened):
    mod, measurement = live
    add(path, legacy(measurement.program.target))
    database = opened(path, target=tools.llvm)
    assert not database.has_workload(mod)
    assert tools.top(database, mod) == []
    assert database.get_all_tuning_records() == []
    assert database.query_schedule(mod, tools.llvm, "main") is None
    tools.commit(database, mod, [0.5])
    assert tools.top(database, mod) == [[0.5]]
    assert tools.seconds(database.get_all_tuning_records()) == [[0.5]]
    assert len(database) == 4
    assert database.store.quarantine.rows() == []


def test_targets_of_other_tools_do_not_make_unbound_handle_ambiguous(path, live, tools, opened):
    """Half of these records are of another device."""
    mod, measurement = live
    add(path, [measurement, *legacy(measurement.program.target)])
    database = opened(path)
    assert tools.seconds(database.get_all_tuning_records()) == [[0.5]]
    assert tools.top(database, mod) == [[0.5]]


@pytest.mark.usefixtures("no_parser")
def test_all_records_exclude_foreign_ones(path, live, tools, opened):
    _, measurement = live
    add(path, [measurement], FOREIGN)
    database = opened(path, target=tools.llvm)
    assert database.get_all_tuning_records() == []
    assert database.store.quarantine.rows() == []


GOLDEN = Path(__file__).parents[1] / "programs" / "workload_info" / "goldens" / "matmul-0.26.0.json"


def test_graph_of_0_26_labelled_as_todays_is_rebuilt_without_tvms_loader(path, live, tools, opened):
    """TVM 0.27 follows some graphs of 0.26 in circles until the process ends."""
    mod, measurement = live
    graph = orjson.loads(GOLDEN.read_bytes())
    graph.pop("metadata", None)
    wrong = Workload(WorkloadFormat.GRAPH, orjson.dumps(graph), tvm_version=str(tvm.__version__))
    add(path, [replace(measurement, program=replace(measurement.program, workload=wrong))])
    with tunedb.open(path) as store:
        assert modules.is_readable(store.workloads.get(1))
    database = opened(path, target=tools.llvm)
    assert not database.has_workload(mod)
    (record,) = database.get_all_tuning_records()
    tvm.ir.assert_structural_equal(record.workload.mod, module_of(graph))


@pytest.mark.parametrize("read_only", [False, True])
def test_old_own_workload_without_script_is_rebuilt_from_its_graph(path, live, tools, read_only):
    graph = matmul()
    graph.pop("attrs")
    mod = module_of(graph)
    form = (WorkloadFormat.NODES, orjson.dumps(graph), "0.13.dev0")
    add(path, [old_measurement(live, form, script=None)])
    for _ in range(2):  # the second handle finds the names that the first wrote
        with closing(Database(path, target=tools.llvm, read_only=read_only)) as database:
            assert tools.best(database, mod) == [0.5]
            assert "T.parallel" in database.query_schedule(mod, tools.llvm, "main").mod.script()
            assert database.store.quarantine.rows() == []


def test_own_source_corrects_tvm_version_of_foreign_workload(path, live, tools, opened):
    """The version decides whether TVM reads a graph, and is not part of the digest."""
    mod, measurement = live
    workload = measurement.program.workload

    def labelled(version):
        labelled = replace(workload, tvm_version=version, script=None)
        return replace(measurement, program=replace(measurement.program, workload=labelled))

    for number, (version, source, known) in enumerate(
        [("0.1.0", FOREIGN, "0.1.0"), ("0.27.0", OWN, "0.27.0"), ("0.2.0", FOREIGN, "0.27.0")], 1
    ):
        add(path, [replace(labelled(version), measured_at=number)], source)
        with tunedb.open(path) as store:
            assert store.workloads.get(1).tvm_version == known
    database = opened(path, target=tools.llvm)
    assert database.has_workload(mod)


def test_script_that_embeds_a_graph_is_never_parsed(path, live, tools, monkeypatch, opened):
    mod, measurement = live
    script = 'metadata = tvm.ir.load_json("""{}""")\n' + measurement.program.workload.script
    old = replace(measurement.program.workload, body=GRAPH, tvm_version="0.26.0", script=script)
    monkeypatch.setattr(modules, "from_script", lambda text: pytest.fail("it was read"))
    add(path, [replace(measurement, program=replace(measurement.program, workload=old))])
    database = opened(path, target=tools.llvm)
    assert not database.has_workload(mod)


def test_queries_for_tvm_skip_workloads_of_other_tools(path, live):
    _, measurement = live
    key = Workload(WorkloadFormat.ANSOR, b'["matmul", 1, 2, 3]')
    program = Program(key, measurement.program.target, Trace(b'{"steps":[]}', None, b"\x80"))
    add(path, [Measurement(program, (0.5,)), measurement])
    with tunedb.open(path) as store:
        assert store.names.workloads_without("any", 0) == [2]
        assert [answer.workload_id for answer in store.answers.iterate()] == [2]
        assert [store.provenance.is_own_workload(n) for n in (1, 3)] == [True, False]

"""tunedb's MetaSchedule database, compared with TVM's own ones."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from unittest import mock

import pytest
import tvm
import tvm_ffi
from effort import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from raising import raises_line
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.database.database import _PyDatabase

import tunedb
from tunedb.formats.export import export_metaschedule
from tunedb.formats.find import find_logs
from tunedb.formats.importer import import_log
from tunedb.plugins.metaschedule import Database, compat
from tunedb.plugins.metaschedule.database.database import handle_of
from tunedb.plugins.metaschedule.database.handle import Candidate
from tunedb.records import Source, SourceKind, Trust

BAD = 1e10


@pytest.fixture
def database(path, tools, opened):
    return opened(path, target=tools.llvm)


@pytest.fixture
def mod(tools):
    return tools.matmul()


def test_empty_database_answers_no_query(database, tools, mod):
    assert (len(database), database.get_all_tuning_records()) == (0, [])
    assert database.has_workload(mod) is False
    queries = (database.query_tuning_record, database.query_schedule, database.query_ir_module)
    assert [query(mod, tools.llvm, "main") for query in queries] == [None] * 3


def test_record_survives_round_trip_live_and_after_reopening(tools, database, path, opened, mod):
    workload = database.commit_workload(mod)
    record = tools.record(mod, workload, [0.25, 0.5])
    database.commit_tuning_record(record)
    assert database.get_top_k(workload, 1)[0].same_as(record)
    again = opened(path, target=tools.llvm)
    workload = again.commit_workload(mod)
    (rebuilt,) = again.get_top_k(workload, 1)
    assert rebuilt.as_json() == record.as_json()
    assert isinstance(rebuilt, ms.database.TuningRecord)
    assert rebuilt.workload.same_as(workload)
    schedules = [Schedule(mod), Schedule(mod)]
    for one, made in zip((record, rebuilt), schedules, strict=True):
        one.trace.apply_to_schedule(made, remove_postproc=False)
    tvm.ir.assert_structural_equal(*(made.mod for made in schedules))


_time = st.sampled_from([BAD, 0.0, -1.0, 1e11, 0.5, 0.25, 1.0 / 3, 1e-9, 5e-324])
_times = st.none() | st.lists(_time, max_size=4)
_commit = st.tuples(st.integers(0, 1), st.sampled_from(["full", "empty", "post"]), _times)


@settings(max_examples=examples(25))
@given(commits=st.lists(_commit, max_size=12))
@example(commits=[(0, "full", [0.5])] * 2)
def test_database_agrees_with_tvms_memory_database(commits, tools):
    """Both agree on validity, order, ties, edge values of k and sizes."""
    mods = [tools.matmul(16), tools.matmul(8)]
    ours, theirs = Database(":memory:"), ms.database.MemoryDatabase()
    tokens = [[db.commit_workload(mod) for mod in mods] for db in (ours, theirs)]
    for which, kind, run_secs in commits:
        for db, workloads in zip((ours, theirs), tokens, strict=True):
            given = (mods[which], workloads[which], run_secs, (16, 8)[which])
            db.commit_tuning_record(_of_kind(tools, kind, *given))
    mine, other = ((len(db), tools.seconds(db.get_all_tuning_records())) for db in (ours, theirs))
    assert mine == other
    for mine, other in zip(*tokens, strict=True):
        for k in (0, 1, 2, 5, 100):
            assert tools.top(ours, mine, k) == tools.top(theirs, other, k)
        for db, token in ((ours, mine), (theirs, other)):
            with pytest.raises(ValueError):
                db.get_top_k(token, -1)
    ours.close()


def _of_kind(tools, kind, mod, workload, run_secs, n):
    if kind == "full":
        return tools.record(mod, workload, run_secs, tile=(n // 4, 4))
    sch = Schedule(mod)
    if kind == "post":
        sch.enter_postproc()
        sch.parallel(sch.get_loops(sch.get_sblock("C"))[0])
    return ms.database.TuningRecord(sch.trace, workload, run_secs, tools.llvm, None)


def test_ties_keep_the_order_of_insertion_after_reopening(path, tools, database, opened, mod):
    tiles = [(1, 16), (2, 8), (4, 4), (8, 2), (16, 1)]
    for tile in tiles:
        tools.commit(database, mod, [2.0, 1.0], tile=tile)
    database = opened(path, target=tools.llvm)
    top = database.get_top_k(database.commit_workload(mod), 10)
    assert [tuple(int(v) for v in next(iter(r.trace.decisions.values()))) for r in top] == tiles


def test_commit_of_record_also_commits_its_workload(database, tools, mod):
    database.commit_tuning_record(tools.record(mod, ms.database.Workload(mod), [1.0]))
    database.commit_tuning_record(tools.record(mod, ms.database.Workload(tools.matmul()), [0.5]))
    assert database.has_workload(tools.matmul())
    top = database.get_top_k(ms.database.Workload(mod), 5)
    assert tools.seconds(top) == [[0.5], [1.0]]
    # One object per row: dump_pruned groups records by it.
    assert top[0].workload.same_as(top[1].workload)


def test_dump_pruned_copies_best_record_of_each_workload(database, tools, tmp_path, opened):
    for n in (16, 8):
        for seconds in (3.0, 1.0, 2.0):
            tools.commit(database, tools.matmul(n), [seconds], tile=(n // 4, 4))
    other = opened(tmp_path / "pruned.db", target=tools.llvm)
    database.dump_pruned(other)
    assert tools.seconds(other.get_all_tuning_records()) == [[1.0], [1.0]]


@pytest.mark.parametrize("equality", ["structural", "ignore-tensor", "anchor-block"])
def test_module_equality_decides_as_in_tvms_memory_database(equality, tools, path, opened):
    """With anchor-block a fused module is answered with the record of its anchor."""
    plain, fused = tools.matmul(), tools.matmul(post=lambda x: x * 2.0)
    theirs = ms.database.MemoryDatabase(module_equality=equality)
    ours = opened(path, target=tools.llvm, module_equality=equality)
    for db in (theirs, ours):
        tools.commit(db, plain, [1.0])
    assert ours.has_workload(fused) == theirs.has_workload(fused) == (equality == "anchor-block")
    for mod in (plain, fused):
        mine, other = (db.query_tuning_record(mod, tools.llvm, "main") for db in (ours, theirs))
        assert (mine is None) == (other is None)
        if mine is not None:
            tvm.ir.assert_structural_equal(mine.workload.mod, other.workload.mod)
    assert not opened(path, target=tools.llvm).has_workload(fused)


def test_unknown_options_are_rejected():
    """C++ builds its own module equality from the name; a wrong one must be refused there."""
    with pytest.raises(Exception, match="nonsense"):
        _PyDatabase(module_equality="nonsense")
    with pytest.raises(tunedb.UsageError, match="module_equality must be one of"):
        Database(":memory:", module_equality="nonsense")
    with raises_line(tunedb.TargetError, match="unknown target"):
        Database(":memory:", target={"kind": "no-such-device"})


def test_database_passes_module_equality_to_cpp():
    """EvolutionarySearch takes the database's equality, as C++ knows it, for its own dedup."""
    original = _PyDatabase.__init__
    with mock.patch.object(_PyDatabase, "__init__", autospec=True, side_effect=original) as spy:
        Database(":memory:", module_equality="anchor-block").close()
    assert spy.call_args.args[10] == "anchor-block"


def test_commit_skips_trace_without_json_form(database, tools, mod):
    """TVM itself cannot write such a trace; the batch is stored without it."""
    workload = database.commit_workload(mod)
    sch = Schedule(mod)
    sch.annotate(sch.get_sblock("C"), "strange", float("nan"))
    bad = ms.database.TuningRecord(sch.trace, workload, [0.1], tools.llvm, None)
    traces = {0.1: sch.trace, 0.2: tools.record(mod, workload, [0.2]).trace}
    with pytest.warns(RuntimeWarning, match="record left out"):
        database.record_batch(
            [Candidate(workload, one, tools.llvm, None, (time,)) for time, one in traces.items()]
        )
    with pytest.warns(RuntimeWarning, match="record left out"):
        database.commit_tuning_record(bad)
    assert tools.top(database, workload) == [[0.2]]


def test_records_replay_on_the_module_with_their_block_names(path, tools, database, opened):
    """Block names are not part of the structural hash."""
    first, second = tools.matmul(block="C"), tools.matmul(block="Product")
    assert tvm_ffi.structural_hash(first) == tvm_ffi.structural_hash(second)
    for mod, block, seconds in ((first, "C", 2.0), (second, "Product", 1.0)):
        tools.commit(database, mod, [seconds], block=block)
    database = opened(path, target=tools.llvm)
    for mod in (first, second):
        records = database.get_top_k(database.commit_workload(mod), 5)
        assert tools.seconds(records) == [[1.0], [2.0]]
        for record in records:
            record.trace.apply_to_schedule(Schedule(record.workload.mod), remove_postproc=False)
        assert database.query_schedule(mod, tools.llvm, "main") is not None


def test_database_works_in_unions_and_as_current_database(database, tools, mod):
    tools.commit(database, mod, [1.0])
    other = ms.database.MemoryDatabase()
    tools.commit(other, mod, [0.5])
    assert tools.best(ms.database.UnionDatabase(database, other), mod) == [0.5]
    assert tools.best(ms.database.OrderedUnionDatabase(database, other), mod) == [1.0]
    with database:
        current = ms.database.Database.current()
        assert current.same_as(database) and handle_of(current) is handle_of(database)
        assert len(current) == 1
    assert ms.database.Database.current() is None


def test_bound_handle_serves_only_records_of_its_target(database, tools, mod):
    for target, seconds in ((tools.cuda, 0.1), (tools.llvm_other, 0.2), (tools.llvm, 0.3)):
        tools.commit(database, mod, [seconds], target=target)
    assert (tools.top(database, mod, 9), tools.best(database, mod)) == ([[0.3]], [0.3])
    assert tools.best(database, mod, tools.cuda) is None
    assert (tools.seconds(database.get_all_tuning_records()), len(database)) == ([[0.3]], 1)


def test_fallback_compatible_serves_records_of_compatible_targets(path, tools, opened, mod):
    database = opened(path, target=tools.llvm_other)
    tools.commit(database, mod, [0.2], target=tools.llvm_other)
    tools.commit(database, mod, [0.1], target=tools.cuda)
    exact = opened(path, target=tools.llvm)
    assert (tools.top(exact, mod), tools.best(exact, mod)) == ([], None)
    loose = opened(path, target=tools.llvm, fallback="compatible")
    assert tools.top(loose, mod) == [[0.2]]
    assert loose.query_schedule(mod, tools.llvm, "main") is not None
    assert tools.best(loose, mod, tools.cuda) is None
    assert tools.top(opened(path, target=tools.llvm_newer, fallback="compatible"), mod) == []


def test_unbound_handle_is_bound_by_first_commit_or_asks_for_a_target(path, tools, opened):
    mod, database = tools.matmul(), opened(path)
    tools.commit(database, mod, [0.3])
    tools.commit(database, mod, [0.1], target=tools.cuda)
    # The first commit has bound the handle.
    assert (tools.top(database, mod), database.tvm_target.kind.name) == ([[0.3]], "llvm")
    database = opened(path)
    with pytest.raises(tunedb.TargetError, match=r"cuda, llvm.*target="):
        tools.top(database, mod)
    with pytest.raises(tunedb.TargetError, match="target="):
        database.get_all_tuning_records()
    # A query names its target.
    assert (tools.best(database, mod, tools.cuda), tools.best(database, mod)) == ([0.1], [0.3])


def test_unbound_handle_serves_all_targets_of_a_single_kind(path, tools, database, opened):
    for target, seconds in ((tools.llvm, 0.3), (tools.llvm_other, 0.2)):
        tools.commit(database, tools.matmul(), [seconds], target=target)
    assert tools.top(opened(path), tools.matmul()) == [[0.2], [0.3]]


def test_foreign_records_do_not_reach_tvm(path, tools, database, opened, mod):
    tools.commit(database, mod, [0.1])
    (own,) = database.store.records.iterate()
    other = path.with_name("other.db")
    with tunedb.open(other) as store:
        store.records.add([own.measurement], Source("stranger", SourceKind.FILE, Trust.FOREIGN))
    foreign = opened(other, target=tools.llvm)
    assert tools.top(foreign, mod) == []
    assert foreign.query_schedule(mod, tools.llvm, "main") is None


def test_record_that_does_not_replay_is_skipped_and_quarantined(path, tools, database, opened, mod):
    workload = tools.commit(database, mod, [0.2])
    # A trace of another module: its block does not exist here.
    database.commit_tuning_record(tools.record(tools.matmul(block="Z"), workload, [0.1], block="Z"))
    for _ in range(2):
        database = opened(path, target=tools.llvm)
        assert "T.parallel" in database.query_schedule(mod, tools.llvm, "main").mod.script()
        # From then on the handle skips the record.
        assert tools.top(database, mod) == [[0.2]]
    (row,) = database.store.quarantine.rows()
    assert "cannot be rebuilt" in row.item.reason
    assert database.store.records.count() == 2


def test_unknown_instruction_is_skipped_and_quarantined(database, tools):
    workload = tools.commit(database, tools.matmul(), [0.2])
    (record,) = database.store.records.iterate()
    program = record.measurement.program
    trace = replace(program.trace, sketch=b'[["Teleport",[],[],[]]]')
    unknown = replace(record.measurement, program=replace(program, trace=trace), run_secs=(0.1,))
    database.store.records.add([unknown], Source("file"))
    assert tools.top(database, workload) == [[0.2]]
    assert "record 2 cannot be rebuilt" in database.store.quarantine.rows()[0].item.reason


@pytest.mark.parametrize("value", [float("nan"), -float("inf")])
def test_times_that_are_not_finite_are_quarantined(database, tools, value, mod):
    workload = database.commit_workload(mod)
    record = tools.record(mod, workload, [1.0, value])
    with pytest.warns(RuntimeWarning, match="not finite; measure the program again"):
        database.commit_tuning_record(record)
    assert len(database) == 0
    (row,) = database.store.quarantine.rows()
    assert "not finite" in row.item.reason
    database.commit_tuning_record(tools.record(mod, workload, [1.0]))
    assert len(database) == 1


def test_read_only_database_answers_queries_and_rejects_commits(path, tools, database, opened, mod):
    tools.commit(database, mod, [0.2])
    database = opened(path, target=tools.llvm, read_only=True)
    assert tools.top(database, mod) == [[0.2]]
    assert database.query_schedule(mod, tools.llvm, "main") is not None
    with pytest.raises(tunedb.StorageError, match="read-only"):
        tools.commit(database, mod, [0.1])
    with pytest.raises(tunedb.StorageError, match="has no such workload"):
        database.commit_workload(tools.matmul(8))
    assert len(database) == 1


def test_errors_keep_their_type_through_cpp(tmp_path):
    for error in (tunedb.BusyError("busy"), tunedb.StorageError("full"), KeyboardInterrupt("stop")):

        def fail(error=error):
            raise error

        with pytest.raises(type(error), match=str(error)):
            tvm_ffi.convert(fail)()
    (tmp_path / "note.txt").write_text("no database, but longer than a SQLite header")
    with pytest.raises(tunedb.SchemaError):
        Database(tmp_path / "note.txt")


def test_database_is_freed_without_garbage_collection(path, tools, mod):
    database = Database(path, target=tools.llvm)
    tools.commit(database, mod, [1.0])
    references = [weakref.ref(database), weakref.ref(handle_of(database))]
    # A union keeps the handle although Python has dropped the wrapper.
    union = ms.database.UnionDatabase(database)
    gc.disable()
    try:
        del database
        assert tools.best(union, mod) == [1.0]
        del union
        assert [reference() for reference in references] == [None, None]
    finally:
        gc.enable()


def test_database_cannot_be_copied_or_pickled(database):
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="open it again"):
            attempt(database)


def test_database_accepts_commits_from_several_threads(database, tools, mod):
    workload = database.commit_workload(mod)
    records = [tools.record(mod, workload, [1.0 + n]) for n in range(40)]

    def work(mine):
        for record in mine:
            database.commit_tuning_record(record)
            assert database.get_top_k(workload, 3)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, (records[at::4] for at in range(4))))
    assert (len(database), tools.top(database, workload, 1)) == (40, [[1.0]])


def test_number_of_live_records_is_bounded(path, tools, opened, mod):
    database = opened(path, target=tools.llvm, live_records=8)
    for n in range(30):
        tools.commit(database, mod, [float(30 - n)])
    assert len(handle_of(database).records) == 8
    assert tools.top(database, mod, 30) == [[float(n)] for n in range(1, 31)]
    assert len(handle_of(database).records) == 8


def test_database_sees_commits_of_other_handles(path, tools, opened, mod):
    first, second = (opened(path, target=tools.llvm) for _ in range(2))
    assert tools.top(second, mod) == []
    tools.commit(first, mod, [1.0])
    assert tools.top(second, mod) == [[1.0]]


def import_json(path, folder, tools, mod, run_secs, **options):
    """Import a log of TVM's own database."""
    folder.mkdir()
    tools.commit(ms.database.JSONDatabase(work_dir=str(folder)), mod, run_secs, **options)
    with tunedb.open(path) as store:
        (log,) = find_logs([folder])
        return import_log(store, log, source="file")


def test_database_serves_imported_records_for_a_live_module(tmp_path, path, tools, opened, mod):
    """A workload imported without TVM gets its aliases when the plugin first sees it."""
    report = import_json(path, tmp_path / "w", tools, mod, [0.5])
    assert (report.total.new, report.quarantined) == (1, 0)
    for equality in ("structural", "anchor-block"):
        assert tools.top(opened(path, target=tools.llvm, module_equality=equality), mod) == [[0.5]]
    assert tools.best(opened(path, target=tools.llvm), tools.matmul(block="Product")) == [0.5]


def test_database_serves_imported_records_with_other_block_names(tmp_path, path, tools, opened):
    """The live workload was stored first; a read-only database answers too."""
    live, variant = tools.matmul(), tools.matmul(block="Product")
    tools.commit(opened(path, target=tools.llvm), live, [2.0])
    import_json(path, tmp_path / "w", tools, variant, [1.0], block="Product")
    for read_only in (True, False):
        database = opened(path, target=tools.llvm, read_only=read_only)
        assert tools.top(database, live) == [[1.0], [2.0]]
        assert "Product" in database.query_schedule(live, tools.llvm, "main").mod.script()


def test_tvms_json_database_answers_from_the_export_like_tunedb(tmp_path, database, tools):
    modules = {n: tools.matmul(n) for n in (16, 8)}
    for n, mod in modules.items():
        for tile, seconds in (((n // 4, 4), [0.3, 0.1]), ((n // 2, 2), [0.2]), ((1, n), [BAD])):
            tools.commit(database, mod, seconds, tile=tile)
    report = export_metaschedule(database.store, tmp_path / "out")
    assert (report.records, report.workloads, report.left_out) == (6, 2, {})
    (folder,) = report.directories
    assert compat.number() < (0, 27) or folder == str(tmp_path / "out")
    theirs = ms.database.JSONDatabase(work_dir=folder)
    assert len(theirs) == 6
    for mod in modules.values():
        for k in (1, 10):
            mine, other = (db.get_top_k(db.commit_workload(mod), k) for db in (database, theirs))
            assert [r.as_json() for r in mine] == [r.as_json() for r in other]

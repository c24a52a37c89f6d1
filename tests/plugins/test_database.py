"""The MetaSchedule database against TVM's own and against the data contract."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref

import pytest
import tvm
import tvm_ffi
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

import tunedb
from tunedb.plugins.metaschedule import Database
from tunedb.plugins.metaschedule.database.database import handle_of
from tunedb.plugins.metaschedule.database.handle import Candidate
from tunedb.records import Source, SourceKind, Trust

BAD = 1e10


@pytest.fixture
def database(path, tools):
    db = Database(path, target=tools.llvm)
    yield db
    db.close()


# ---- TVM's semantics ------------------------------------------------------------------------


def test_empty_database(database, tools):
    mod = tools.matmul()
    assert len(database) == 0
    assert database.has_workload(mod) is False
    assert database.get_all_tuning_records() == []
    assert database.query_tuning_record(mod, tools.llvm, "main") is None
    assert database.query_schedule(mod, tools.llvm, "main") is None
    assert database.query_ir_module(mod, tools.llvm, "main") is None


def test_record_round_trip_live_and_reopened(path, tools):
    mod = tools.matmul()
    with_handle = Database(path, target=tools.llvm)
    workload = with_handle.commit_workload(mod)
    record = tools.record(mod, workload, [0.25, 0.5], target=tools.llvm)
    with_handle.commit_tuning_record(record)
    live = with_handle.get_top_k(workload, 1)[0]
    assert live.same_as(record)
    with_handle.close()

    again = Database(path, target=tools.llvm)
    workload = again.commit_workload(mod)
    (rebuilt,) = again.get_top_k(workload, 1)
    assert rebuilt.as_json() == record.as_json()
    assert isinstance(rebuilt, ms.database.TuningRecord)
    assert rebuilt.workload.same_as(workload)
    original, replayed = Schedule(mod), Schedule(mod)
    record.trace.apply_to_schedule(original, remove_postproc=False)
    rebuilt.trace.apply_to_schedule(replayed, remove_postproc=False)
    tvm.ir.assert_structural_equal(original.mod, replayed.mod)
    again.close()


_times = st.one_of(
    st.none(),
    st.just([]),
    st.lists(
        st.sampled_from([BAD, 0.0, -1.0, 1e11, 0.5, 0.25, 1.0 / 3, 1e-9, 5e-324]),
        min_size=1,
        max_size=4,
    ),
)


@settings(
    max_examples=examples(25),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    commits=st.lists(
        st.tuples(st.integers(0, 1), st.sampled_from(["full", "empty", "post"]), _times),
        max_size=12,
    )
)
def test_agrees_with_tvm(commits, tools):
    """Validity, order, ties, edge values of k and sizes are those of TVM's MemoryDatabase."""
    mods = [tools.matmul(16), tools.matmul(8)]
    ours, theirs = Database(":memory:"), ms.database.MemoryDatabase()
    tokens = [[db.commit_workload(mod) for mod in mods] for db in (ours, theirs)]
    for which, kind, run_secs in commits:
        for db, workloads in ((ours, tokens[0]), (theirs, tokens[1])):
            mod = mods[which]
            record = _of_kind(tools, kind, mod, workloads[which], run_secs, 16 if which == 0 else 8)
            db.commit_tuning_record(record)
    assert len(ours) == len(theirs)
    assert tools.seconds(ours.get_all_tuning_records()) == tools.seconds(
        theirs.get_all_tuning_records()
    )
    for mine, other in zip(*tokens, strict=True):
        for k in (0, 1, 2, 5, 100):
            assert tools.seconds(ours.get_top_k(mine, k)) == tools.seconds(
                theirs.get_top_k(other, k)
            )
        for db, token in ((ours, mine), (theirs, other)):
            with pytest.raises(ValueError):
                db.get_top_k(token, -1)
    ours.close()


def _of_kind(tools, kind, mod, workload, run_secs, n):
    if kind == "full":
        return tools.record(mod, workload, run_secs, tile=(n // 4, 4), target=tools.llvm)
    sch = Schedule(mod)
    if kind == "post":
        sch.enter_postproc()
        sch.parallel(sch.get_loops(sch.get_sblock("C"))[0])
    return ms.database.TuningRecord(sch.trace, workload, run_secs, tools.llvm, None)


def test_ties_keep_the_order_of_insertion_after_reopening(path, tools):
    mod = tools.matmul()
    database = Database(path, target=tools.llvm)
    workload = database.commit_workload(mod)
    tiles = [(1, 16), (2, 8), (4, 4), (8, 2), (16, 1)]
    for tile in tiles:
        database.commit_tuning_record(
            tools.record(mod, workload, [2.0, 1.0], tile=tile, target=tools.llvm)
        )
    database.close()
    database = Database(path, target=tools.llvm)
    top = database.get_top_k(database.commit_workload(mod), 10)
    found = [tuple(int(v) for v in next(iter(r.trace.decisions.values()))) for r in top]
    assert found == tiles
    database.close()


def test_one_record_per_commit(database, tools):
    mod = tools.matmul()
    workload = database.commit_workload(mod)
    record = tools.record(mod, workload, [1.0], target=tools.llvm)
    database.commit_tuning_record(record)
    database.commit_tuning_record(record)
    assert len(database) == 2
    assert len(database.get_top_k(workload, 10)) == 2


def test_fresh_workload_and_automatic_commit(database, tools):
    mod = tools.matmul()
    database.commit_tuning_record(
        tools.record(mod, ms.database.Workload(mod), [1.0], target=tools.llvm)
    )
    fresh = ms.database.Workload(tools.matmul())
    database.commit_tuning_record(tools.record(mod, fresh, [0.5], target=tools.llvm))
    assert database.has_workload(tools.matmul())
    top = database.get_top_k(ms.database.Workload(mod), 5)
    assert tools.seconds(top) == [[0.5], [1.0]]
    # One object per row: dump_pruned groups records by it.
    assert top[0].workload.same_as(top[1].workload)
    pruned = ms.database.MemoryDatabase()
    database.dump_pruned(pruned)
    assert tools.seconds(pruned.get_all_tuning_records()) == [[0.5]]


def test_dump_pruned_into_tunedb_from_another(database, tools, tmp_path):
    mods = [tools.matmul(16), tools.matmul(8)]
    for n, mod in zip((16, 8), mods, strict=True):
        workload = database.commit_workload(mod)
        for seconds in (3.0, 1.0, 2.0):
            database.commit_tuning_record(
                tools.record(mod, workload, [seconds], tile=(n // 4, 4), target=tools.llvm)
            )
    other = Database(tmp_path / "pruned.db", target=tools.llvm)
    database.dump_pruned(other)
    assert sorted(tools.seconds(other.get_all_tuning_records())) == [[1.0], [1.0]]
    other.close()


@pytest.mark.parametrize("equality", ["structural", "ignore-tensor", "anchor-block"])
def test_module_equalities(equality, tools, path):
    """Under anchor-block a fused module answers with the record of its anchor."""
    plain, fused = tools.matmul(), tools.matmul(post=lambda x: x * 2.0)
    theirs = ms.database.MemoryDatabase(module_equality=equality)
    ours = Database(path, target=tools.llvm, module_equality=equality)
    for db in (theirs, ours):
        tools.commit(db, plain, [1.0], target=tools.llvm)
    assert ours.has_workload(fused) == theirs.has_workload(fused) == (equality == "anchor-block")
    for mod in (plain, fused):
        mine = ours.query_tuning_record(mod, tools.llvm, "main")
        other = theirs.query_tuning_record(mod, tools.llvm, "main")
        assert (mine is None) == (other is None)
        if mine is not None:
            tvm.ir.assert_structural_equal(mine.workload.mod, other.workload.mod)
    ours.close()
    # The same after reopening, and in another equality mode.
    strict = Database(path, target=tools.llvm)
    assert not strict.has_workload(fused)
    strict.close()


def test_equality_reaches_cpp():
    """C++ builds its own module equality from the name; a wrong one must be refused there."""
    from tvm.s_tir.meta_schedule.database.database import _PyDatabase

    with pytest.raises(Exception, match="nonsense"):
        _PyDatabase(module_equality="nonsense")
    with pytest.raises(tunedb.UsageError, match="module_equality must be one of"):
        Database(":memory:", module_equality="nonsense")


@pytest.mark.parametrize("equality", ["structural", "ignore-tensor", "anchor-block"])
def test_cpp_is_told_the_equality(equality, monkeypatch):
    """EvolutionarySearch takes the database's equality, as C++ knows it, for its own dedup."""
    from tvm.s_tir.meta_schedule.database.database import _PyDatabase

    told = []
    original = _PyDatabase.__init__

    def spy(self, *args, **kwargs):
        told.append(args[9])
        original(self, *args, **kwargs)

    monkeypatch.setattr(_PyDatabase, "__init__", spy)
    Database(":memory:", module_equality=equality).close()
    assert told == [equality]


def test_trace_without_a_json_form_is_left_out(database, tools):
    """TVM itself cannot write such a trace; the batch and the tuning go on without it."""
    mod = tools.matmul()
    workload = database.commit_workload(mod)
    sch = Schedule(mod)
    sch.annotate(sch.get_sblock("C"), "strange", float("nan"))
    bad = ms.database.TuningRecord(sch.trace, workload, [0.1], tools.llvm, None)
    good = tools.record(mod, workload, [0.2], target=tools.llvm)
    candidates = [
        Candidate(workload, r.trace, tools.llvm, None, (seconds,))
        for r, seconds in ((bad, 0.1), (good, 0.2))
    ]
    with pytest.warns(RuntimeWarning, match="record left out"):
        database.record_batch(candidates)
    with pytest.warns(RuntimeWarning, match="record left out"):
        database.commit_tuning_record(bad)
    assert tools.seconds(database.get_top_k(workload, 5)) == [[0.2]]


def test_block_names_outside_the_hash(path, tools):
    """Two modules that differ in block names alone: each record replays on its own module."""
    first, second = tools.matmul(block="C"), tools.matmul(block="Product")
    assert tvm_ffi.structural_hash(first) == tvm_ffi.structural_hash(second)
    database = Database(path, target=tools.llvm)
    for mod, block, seconds in ((first, "C", 2.0), (second, "Product", 1.0)):
        tools.commit(database, mod, [seconds], target=tools.llvm, block=block)
    database.close()
    database = Database(path, target=tools.llvm)
    for mod in (first, second):
        records = database.get_top_k(database.commit_workload(mod), 5)
        assert tools.seconds(records) == [[1.0], [2.0]]
        for record in records:
            record.trace.apply_to_schedule(Schedule(record.workload.mod), remove_postproc=False)
        assert database.query_schedule(mod, tools.llvm, "main") is not None
    database.close()


def test_unions_and_current(database, tools):
    mod = tools.matmul()
    tools.commit(database, mod, [1.0], target=tools.llvm)
    other = ms.database.MemoryDatabase()
    tools.commit(other, mod, [0.5], target=tools.llvm)
    union = ms.database.UnionDatabase(database, other)
    assert tools.seconds([union.query_tuning_record(mod, tools.llvm, "main")]) == [[0.5]]
    ordered = ms.database.OrderedUnionDatabase(database, other)
    assert tools.seconds([ordered.query_tuning_record(mod, tools.llvm, "main")]) == [[1.0]]
    with database:
        current = ms.database.Database.current()
        assert current.same_as(database)
        assert handle_of(current) is handle_of(database)
        assert len(current) == 1
    assert ms.database.Database.current() is None


def test_relax_pass_uses_the_stored_schedule(database, tools):
    mod = tools.matmul()
    tools.commit(database, mod, [1.0], target=tools.llvm)
    scheduled = ms.tir_integration.compile_tir(database, mod, tools.llvm)
    assert "T.parallel" in scheduled.mod.script()


# ---- targets --------------------------------------------------------------------------------


def _commit(tools, database, target, seconds):
    mod = tools.matmul()
    workload = tools.commit(database, mod, [seconds], target=target)
    return mod, workload


def test_bound_handle_serves_its_target_alone(path, tools, opened):
    database = opened(path, target=tools.llvm)
    for target, seconds in ((tools.cuda, 0.1), (tools.llvm_other, 0.2), (tools.llvm, 0.3)):
        mod, workload = _commit(tools, database, target, seconds)
    assert tools.seconds(database.get_top_k(workload, 9)) == [[0.3]]
    assert tools.seconds([database.query_tuning_record(mod, tools.llvm, "m")]) == [[0.3]]
    assert database.query_tuning_record(mod, tools.cuda, "m") is None
    assert tools.seconds(database.get_all_tuning_records()) == [[0.3]]
    assert len(database) == 1


def test_compatible_targets_only_when_told(path, tools):
    database = Database(path, target=tools.llvm_other)
    _commit(tools, database, tools.llvm_other, 0.2)
    _commit(tools, database, tools.cuda, 0.1)
    database.close()
    exact = Database(path, target=tools.llvm)
    mod, workload = tools.matmul(), exact.commit_workload(tools.matmul())
    assert exact.get_top_k(workload, 5) == []
    assert exact.query_tuning_record(mod, tools.llvm, "main") is None
    exact.close()
    loose = Database(path, target=tools.llvm, fallback="compatible")
    workload = loose.commit_workload(mod)
    assert tools.seconds(loose.get_top_k(workload, 5)) == [[0.2]]
    assert loose.query_schedule(mod, tools.llvm, "main") is not None
    assert loose.query_tuning_record(mod, tools.cuda, "main") is None
    loose.close()
    newer = Database(path, target=tools.llvm_newer, fallback="compatible")
    assert newer.get_top_k(newer.commit_workload(mod), 5) == []
    newer.close()


def test_unbound_handle(path, tools):
    database = Database(path)
    mod, workload = _commit(tools, database, tools.llvm, 0.3)
    _commit(tools, database, tools.cuda, 0.1)
    # Bound by its first commit.
    assert tools.seconds(database.get_top_k(workload, 5)) == [[0.3]]
    assert database.tvm_target.kind.name == "llvm"
    database.close()
    database = Database(path)
    workload = database.commit_workload(mod)
    with pytest.raises(tunedb.TargetError, match=r"cuda, llvm.*target="):
        database.get_top_k(workload, 5)
    with pytest.raises(tunedb.TargetError, match="target="):
        database.get_all_tuning_records()
    # The target of a query says what is wanted.
    assert tools.seconds([database.query_tuning_record(mod, tools.cuda, "m")]) == [[0.1]]
    assert tools.seconds([database.query_tuning_record(mod, tools.llvm, "m")]) == [[0.3]]
    database.close()


def test_unbound_handle_serves_one_kind(path, tools):
    database = Database(path, target=tools.llvm)
    for target, seconds in ((tools.llvm, 0.3), (tools.llvm_other, 0.2)):
        mod, _ = _commit(tools, database, target, seconds)
    database.close()
    database = Database(path)
    assert tools.seconds(database.get_top_k(database.commit_workload(mod), 5)) == [[0.2], [0.3]]
    database.close()


def test_unknown_target():
    with pytest.raises(tunedb.TargetError, match="unknown target") as caught:
        Database(":memory:", target={"kind": "no-such-device"})
    assert "\n" not in str(caught.value)


# ---- what is broken, hostile or read-only ------------------------------------------------------


def test_foreign_records_do_not_reach_tvm(path, tools):
    mod, _ = tools.matmul(), None
    database = Database(path, target=tools.llvm)
    workload = database.commit_workload(mod)
    record = tools.record(mod, workload, [0.1], target=tools.llvm)
    database.commit_tuning_record(record)
    (own,) = database.store.records.iterate()
    database.close()
    other = path.with_name("other.db")
    with tunedb.open(other) as store:
        store.records.add([own.measurement], Source("stranger", SourceKind.FILE, Trust.FOREIGN))
    foreign = Database(other, target=tools.llvm)
    assert foreign.get_top_k(foreign.commit_workload(mod), 5) == []
    assert foreign.query_schedule(mod, tools.llvm, "main") is None
    foreign.close()


def test_record_that_does_not_replay_is_skipped_and_quarantined(path, tools):
    mod = tools.matmul()
    database = Database(path, target=tools.llvm)
    workload = database.commit_workload(mod)
    # A trace of another module: its block does not exist here.
    stranger = tools.matmul(block="Elsewhere")
    broken = tools.record(stranger, workload, [0.1], target=tools.llvm, block="Elsewhere")
    good = tools.record(mod, workload, [0.2], target=tools.llvm)
    database.commit_tuning_record(broken)
    database.commit_tuning_record(good)
    database.close()
    for _ in range(2):
        database = Database(path, target=tools.llvm)
        schedule = database.query_schedule(mod, tools.llvm, "main")
        assert schedule is not None
        assert "T.parallel" in schedule.mod.script()
        # From then on the handle passes over it.
        assert tools.seconds(database.get_top_k(database.commit_workload(mod), 5)) == [[0.2]]
        database.close()
    with tunedb.open(path) as store:
        (row,) = store.quarantine.rows()
        assert "cannot be rebuilt" in row.item.reason
        assert store.records.count() == 2


def test_unknown_instruction_is_skipped_and_quarantined(path, tools, opened):
    mod = tools.matmul()
    database = opened(path, target=tools.llvm)
    workload = tools.commit(database, mod, [0.2], target=tools.llvm)
    (record,) = database.store.records.iterate()
    _add_with_unknown_instruction(database.store, record.measurement)
    assert tools.seconds(database.get_top_k(workload, 5)) == [[0.2]]
    assert "record 2 cannot be rebuilt" in database.store.quarantine.rows()[0].item.reason


def _add_with_unknown_instruction(store, measurement):
    from dataclasses import replace

    trace = replace(measurement.program.trace, sketch=b'[["Teleport",[],[],[]]]')
    program = replace(measurement.program, trace=trace)
    store.records.add([replace(measurement, program=program, run_secs=(0.1,))], Source("file"))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_times_that_are_not_finite_are_quarantined(database, tools, value):
    mod = tools.matmul()
    workload = database.commit_workload(mod)
    record = tools.record(mod, workload, [1.0, value], target=tools.llvm)
    with pytest.warns(RuntimeWarning, match="not finite; measure the program again"):
        database.commit_tuning_record(record)
    assert len(database) == 0
    (row,) = database.store.quarantine.rows()
    assert "not finite" in row.item.reason
    database.commit_tuning_record(tools.record(mod, workload, [1.0], target=tools.llvm))
    assert len(database) == 1


def test_read_only(path, tools):
    mod = tools.matmul()
    database = Database(path, target=tools.llvm)
    workload = tools.commit(database, mod, [0.2], target=tools.llvm)
    database.close()
    database = Database(path, target=tools.llvm, read_only=True)
    workload = database.commit_workload(tools.matmul())
    assert tools.seconds(database.get_top_k(workload, 5)) == [[0.2]]
    assert database.query_schedule(mod, tools.llvm, "main") is not None
    with pytest.raises(tunedb.StorageError, match="read-only"):
        database.commit_tuning_record(tools.record(mod, workload, [0.1], target=tools.llvm))
    with pytest.raises(tunedb.StorageError, match="has no such workload"):
        database.commit_workload(tools.matmul(8))
    assert len(database) == 1
    database.close()


def test_errors_keep_their_type_through_cpp(tmp_path):
    for error in (tunedb.BusyError("busy"), tunedb.StorageError("full"), KeyboardInterrupt("stop")):

        def fail(error=error):
            raise error

        with pytest.raises(type(error), match=str(error)):
            tvm_ffi.convert(fail)()
    (tmp_path / "note.txt").write_text("no database, but longer than a SQLite header")
    with pytest.raises(tunedb.SchemaError):
        Database(tmp_path / "note.txt")


# ---- objects, threads ------------------------------------------------------------------------


def test_freed_without_cycles(path, tools):
    database = Database(path, target=tools.llvm)
    mod = tools.matmul()
    tools.commit(database, mod, [1.0], target=tools.llvm)
    references = [weakref.ref(database), weakref.ref(handle_of(database))]
    gc.disable()
    try:
        del database
        assert [reference() for reference in references] == [None, None]
    finally:
        gc.enable()


def test_lives_on_inside_cpp(tools):
    """A union keeps the handle although Python has dropped the wrapper."""
    database = Database(":memory:", target=tools.llvm)
    mod = tools.matmul()
    tools.commit(database, mod, [1.0], target=tools.llvm)
    union = ms.database.UnionDatabase(database)
    del database
    assert tools.seconds([union.query_tuning_record(mod, tools.llvm, "main")]) == [[1.0]]


def test_no_copies(database):
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="open it again"):
            attempt(database)


def test_used_from_other_threads(database, tools):
    mod = tools.matmul()
    workload = database.commit_workload(mod)
    records = [
        [tools.record(mod, workload, [1.0 + n + 100 * t], target=tools.llvm) for n in range(25)]
        for t in range(4)
    ]
    errors = []

    def work(mine):
        try:
            for record in mine:
                database.commit_tuning_record(record)
                assert database.get_top_k(workload, 3)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in records]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(database) == 100
    assert tools.seconds(database.get_top_k(workload, 1)) == [[1.0]]


def test_live_records_are_bounded(path, tools, opened):
    database = opened(path, target=tools.llvm, live_records=8)
    mod = tools.matmul()
    workload = database.commit_workload(mod)
    for n in range(30):
        database.commit_tuning_record(
            tools.record(mod, workload, [float(30 - n)], target=tools.llvm)
        )
    assert len(handle_of(database).records) == 8
    top = database.get_top_k(workload, 30)
    assert tools.seconds(top) == [[float(n)] for n in range(1, 31)]
    assert len(handle_of(database).records) == 8


def test_sees_what_other_handles_commit(path, tools):
    mod = tools.matmul()
    first, second = (Database(path, target=tools.llvm) for _ in range(2))
    workload = second.commit_workload(mod)
    assert second.get_top_k(workload, 1) == []
    tools.commit(first, mod, [1.0], target=tools.llvm)
    assert tools.seconds(second.get_top_k(workload, 1)) == [[1.0]]
    first.close()
    second.close()


def test_imported_workload_answers_a_live_one(tmp_path, path, tools):
    """A workload imported without TVM gets its names when the plugin first sees it."""
    from tunedb.formats.find import find_logs
    from tunedb.formats.importer import import_log

    mod = tools.matmul()
    (tmp_path / "w").mkdir()
    json_db = ms.database.JSONDatabase(work_dir=str(tmp_path / "w"))
    tools.commit(json_db, mod, [0.5], target=tools.llvm)
    with tunedb.open(path) as store:
        (log,) = find_logs([tmp_path / "w"])
        report = import_log(store, log, source="file")
        assert (report.total.new, report.quarantined) == (1, 0)
    for equality in ("structural", "anchor-block"):
        database = Database(path, target=tools.llvm, module_equality=equality)
        assert tools.seconds(database.get_top_k(database.commit_workload(mod), 5)) == [[0.5]]
        database.close()
    variant = tools.matmul(block="Product")
    database = Database(path, target=tools.llvm)
    assert database.query_tuning_record(variant, tools.llvm, "main") is not None
    database.close()


def test_imported_variant_answers_beside_a_live_workload(tmp_path, path, tools):
    """Also where the live workload came first, and from a store that cannot be written."""
    from tunedb.formats.find import find_logs
    from tunedb.formats.importer import import_log

    live, variant = tools.matmul(), tools.matmul(block="Product")
    database = Database(path, target=tools.llvm)
    tools.commit(database, live, [2.0], target=tools.llvm)
    database.close()
    (tmp_path / "w").mkdir()
    json_db = ms.database.JSONDatabase(work_dir=str(tmp_path / "w"))
    record = tools.record(
        variant, json_db.commit_workload(variant), [1.0], target=tools.llvm, block="Product"
    )
    json_db.commit_tuning_record(record)
    with tunedb.open(path) as store:
        (log,) = find_logs([tmp_path / "w"])
        import_log(store, log, source="file")
    for read_only in (True, False):
        database = Database(path, target=tools.llvm, read_only=read_only)
        workload = database.commit_workload(live)
        assert tools.seconds(database.get_top_k(workload, 5)) == [[1.0], [2.0]]
        best = database.query_schedule(live, tools.llvm, "main")
        assert "Product" in best.mod.script()
        database.close()


def test_export_is_what_tvm_reads(tmp_path, path, tools, opened):
    from tunedb.formats.export import export_metaschedule

    database = opened(path, target=tools.llvm)
    for n in (16, 8):
        mod = tools.matmul(n)
        workload = database.commit_workload(mod)
        for tile, seconds in (((n // 4, 4), [0.3, 0.1]), ((n // 2, 2), [0.2]), ((1, n), [BAD])):
            if tile[1] > 16:
                continue
            database.commit_tuning_record(
                tools.record(mod, workload, seconds, tile=tile, target=tools.llvm)
            )
    report = export_metaschedule(database.store, tmp_path / "out")
    assert (report.records, report.workloads, report.left_out) == (6, 2, {})
    theirs = ms.database.JSONDatabase(work_dir=str(tmp_path / "out"))
    assert len(theirs) == 6
    for n in (16, 8):
        mod = tools.matmul(n)
        for k in (1, 10):
            mine = database.get_top_k(database.commit_workload(mod), k)
            other = theirs.get_top_k(theirs.commit_workload(mod), k)
            assert [r.as_json() for r in mine] == [r.as_json() for r in other]

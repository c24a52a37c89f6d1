"""TVM gets no row that contradicts its digests, its source or its marks."""

from __future__ import annotations

import shutil

import pytest
from builders import sql as run_sql
from logged import logged
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from tunedb.errors import FormatError, IntegrityError
from tunedb.plugins.metaschedule import Database, modules
from tunedb.plugins.metaschedule.database.layers import donors_of
from tunedb.plugins.metaschedule.deploy.revalidation import Revalidation
from tunedb.plugins.metaschedule.workers.replay import Replayer
from tunedb.storage.store import Store
from tunedb.storage.workloads import Neighbour
from tunedb.system.compression import compress

OTHER = "f" * 32


@pytest.fixture
def path(tmp_path, tools):
    """A database whose records 1 and 2 take 1 and 2 seconds, of two sketches."""
    path, mod = tmp_path / "tune.db", tools.matmul()
    with Database(path, target=tools.llvm) as database:
        workload = database.commit_workload(mod)
        for seconds, postproc in ((1.0, True), (2.0, False)):
            database.commit_tuning_record(tools.record(mod, workload, [seconds], postproc=postproc))
    return path


def change(path, sql, *values):
    """Change a row of a database without computing its digests again."""
    assert len(run_sql(path, f"{sql} RETURNING 1", *values)) == 1


def served(path, tools, **options):
    """Return the times of the records that TVM gets from a new handle."""
    mod = tools.matmul()
    with Database(path, target=tools.llvm, **options) as database:
        found = tools.top(database, mod, 9)
        best = database.query_tuning_record(mod, tools.llvm, "main")
        assert tools.seconds([best] if best else []) == found[:1]
        assert (database.query_schedule(mod, tools.llvm, "main") is None) == (not found)
    return [times[0] for times in found]


SKETCH = b'[["GetSBlock",[],["C","main"],["b0"]],["Annotate",["b0","\\"evil\\""],["evil"],[]]]'

OF_PROGRAM = "UPDATE {0} SET body = ? WHERE id = (SELECT {0}_id FROM program WHERE id = 1)"
CHANGES = {
    "times": ("UPDATE measurement SET run_secs = ? WHERE id = 1", b"\0" * 8),
    "more times": ("UPDATE measurement SET run_secs = ? WHERE id = 1", b"\0" * 16),
    "half a time": ("UPDATE measurement SET run_secs = ? WHERE id = 1", b"\0" * 9),
    "mean": ("UPDATE measurement SET mean = 1e-9 WHERE id = 1",),
    "time of day": ("UPDATE measurement SET measured_at = 7 WHERE id = 1",),
    "occurrence": ("UPDATE measurement SET occurrence = 7 WHERE id = 1",),
    "status": ("UPDATE measurement SET status = 1 WHERE id = 1",),
    "no status": ("UPDATE measurement SET status = 1000 WHERE id = 1",),
    "session": ("UPDATE measurement SET session_id = NULL WHERE id = 1",),
    "arguments": ("UPDATE measurement SET args_info_id = NULL WHERE id = 1",),
    "origin": ("UPDATE measurement SET origin = 'warm' WHERE id = 1",),
    "donor": ("UPDATE measurement SET donor = ? WHERE id = 1", b"d" * 16),
    "seconds of the trial": ("UPDATE measurement SET all_cost = 1.5 WHERE id = 1",),
    "extra": ("UPDATE measurement SET extra = '{}' WHERE id = 1",),
    "digest": ("UPDATE measurement SET digest = ? WHERE id = 1", b"d" * 16),
    "program": ("UPDATE measurement SET program_id = 2 WHERE id = 1",),
    "decisions": ("UPDATE program SET decisions = ? WHERE id = 1", b"[[[1,[16,1]]],[],[]]"),
    "digest of the program": ("UPDATE program SET digest = ? WHERE id = 1", b"d" * 16),
    "sketch": (OF_PROGRAM.format("sketch"), compress(SKETCH)),
    "tail": (OF_PROGRAM.format("tail"), compress(b'[["EnterPostproc",[],[],[]]]')),
}


def test_change_of_any_column_breaks_a_digest(path, tmp_path):
    for name, words in CHANGES.items():
        copy = shutil.copyfile(path, tmp_path / f"{name}.db")
        with Store(copy) as store:
            assert store.answers.is_whole(store.answers.get(1))
        change(copy, *words)
        with Store(copy) as store:
            assert not store.answers.is_whole(store.answers.get(1)), name


@pytest.mark.parametrize("name", ["times", "mean", "status", "decisions", "sketch"])
def test_row_that_contradicts_its_digest_is_skipped_with_a_warning(path, tools, name):
    """The next best record answers."""
    assert served(path, tools) == [1.0, 2.0]
    change(path, *CHANGES[name])
    others = [] if name == "sketch" else [2.0]  # both have it
    with logged() as warnings:
        assert served(path, tools) == others
    with Store(path) as store:
        rows = store.quarantine.rows()
    assert len(warnings) == len(rows) == 2 - len(others)
    reason = "its digest does not match its"
    assert warnings[0].startswith(f"{path}: record 1 cannot be rebuilt: {reason}")
    assert reason in rows[0].item.reason


def test_row_of_a_layer_that_contradicts_its_digest_is_skipped(path, tools, tmp_path):
    """A layer that the user names needs no approval."""
    forgotten = path.rename(tmp_path / "theirs.db")
    assert served(tmp_path / "own.db", tools, layers=[forgotten]) == [1.0, 2.0]
    change(forgotten, *CHANGES["decisions"])
    assert served(tmp_path / "own.db", tools, layers=[forgotten]) == [2.0]


def test_target_that_contradicts_its_digest_serves_no_records(path, tools):
    """The digests of programs include that of their target."""
    change(path, "UPDATE target SET config = replace(config, '\"num-cores\":2', '\"num-cores\":3')")
    with logged():
        assert served(path, tools) == []


def test_workload_that_contradicts_its_digest_is_never_read_by_tvm(path, tools, monkeypatch):
    """The records still answer for the module that they were measured on."""
    monkeypatch.setattr(modules, "to_module", lambda _: pytest.fail("TVM must not read it"))
    monkeypatch.setattr(modules, "from_script", lambda _: pytest.fail("TVM must not read it"))
    body = modules.to_workload(tools.matmul(32)).body
    change(path, "UPDATE workload SET body = ?", compress(body))
    with logged() as warnings, Database(path, target=tools.llvm, read_only=True) as database:
        assert not database.has_workload(tools.matmul(32))
        assert database.has_workload(tools.matmul())
    assert any("its digest does not match its body" in line for line in warnings)
    assert served(path, tools) == [1.0, 2.0]


def test_foreign_record_marked_as_served_is_not_served(path, tools):
    values = "9, ?, 'evil', 'file', 0, store, 0, '', ''"
    change(path, f"INSERT INTO source SELECT {values} FROM source", b"s" * 16)
    change(path, "UPDATE measurement SET source_id = 9 WHERE id = 1")
    with logged() as warnings:
        assert served(path, tools) == [2.0]
    assert "its source is foreign" in warnings[0]


@pytest.fixture
def annotated(path, tools):
    """The database with a best record 3, whose annotation TVM's rules never write."""
    mod = tools.matmul()
    with Database(path, target=tools.llvm) as database:
        schedule = Schedule(mod)
        loops = schedule.get_loops(schedule.get_sblock("C"))
        schedule.annotate(loops[0], "pragma_import_llvm", "evil.ll")
        info = ms.arg_info.ArgInfo.from_prim_func(mod["main"])
        workload = database.commit_workload(mod)
        record = ms.database.TuningRecord(schedule.trace, workload, [0.5], tools.llvm, info)
        database.commit_tuning_record(record)
    return path


@pytest.mark.parametrize("column", ["trust", "store"])
def test_other_sources_may_not_use_annotations_outside_of_the_allowlist(annotated, tools, column):
    """The source is verified, or an own one of another database; an own source of this one may."""
    assert served(annotated, tools) == [0.5, 1.0, 2.0]
    value = {"trust": 1, "store": OTHER}[column]
    change(annotated, f"UPDATE source SET {column} = ?", value)
    with logged() as warnings:
        assert served(annotated, tools) == [1.0, 2.0]
    assert any("pragma_import_llvm" in line for line in warnings)


def donors(path):
    with Store(path, read_only=True) as store:
        near = Neighbour(1, (1,), 0.0, "exact")
        return [one.seconds for one in donors_of(store, near, 9, is_layer=False)]


def test_donors_exclude_changed_programs_and_forbidden_ones_of_others(annotated):
    assert donors(annotated) == [0.5, 1.0, 2.0]
    change(annotated, *CHANGES["decisions"])
    assert donors(annotated) == [0.5, 2.0]
    change(annotated, "UPDATE source SET trust = 1")
    assert donors(annotated) == [2.0]


def test_replayer_rejects_changed_programs_and_forbidden_ones_of_others(annotated):
    change(annotated, *CHANGES["decisions"])
    with Store(annotated) as store:
        replayer = Replayer(store)
        wrong, whole, evil = store.programs.get([1, 2, 3])
        with pytest.raises(IntegrityError, match="program 1: its digest"):
            replayer.module(wrong)
        assert replayer.module(whole)
        assert replayer.module(evil)
    change(annotated, "UPDATE source SET trust = 1")
    with Store(annotated) as store, pytest.raises(FormatError, match="pragma_import_llvm"):
        Replayer(store).module(evil)


def test_revalidation_rejects_changed_programs_and_forbidden_ones_of_others(annotated, monkeypatch):
    monkeypatch.setattr(Revalidation, "_has_reference", lambda *_: pytest.fail("it is run"))
    for number in (1, 2):
        change(annotated, "UPDATE measurement SET measured_at = 7 WHERE id = ?", number)
    change(annotated, "UPDATE source SET trust = 1")
    with Store(annotated) as store, Revalidation(store, repeat=1) as revalidation:
        found = revalidation.run([1], 1)
    assert [one.outcome for one in found] == ["refused"] * 3
    assert "pragma_import_llvm" in found[0].reason
    assert all("its digest does not match" in one.reason for one in found[1:])

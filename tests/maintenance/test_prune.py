"""Prune and vacuum: what they remove, what they keep, and that the database stays sound."""

import shutil
import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import FOREIGN, add, make_measurement, make_session
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from tunedb import limits
from tunedb.errors import BusyError, NotFoundError, StorageError, UsageError
from tunedb.features.base import Needs, feature_set
from tunedb.maintenance.check import check
from tunedb.maintenance.prune import SECONDS, PruneRules, plan, prune
from tunedb.maintenance.vacuum import Room, plan_vacuum, require_room, vacuum
from tunedb.models.cards import model_digest
from tunedb.records import Failure, FailureKind, Phase
from tunedb.results import NewModel
from tunedb.storage import schema
from tunedb.storage.exchange_types import Selection
from tunedb.storage.pruning import RemovedRows
from tunedb.storage.store import Store
from tunedb.storage.superseded import extra_of_final

TIMEOUT = Failure(FailureKind.TIMEOUT, Phase.RUN, "30 s")

#: Tables whose rows many records share.
SHARED = ("source", "session", "workload", "target", "sketch", "tail", "args_info", "context")


class Rows:
    """A feature set that is not installed."""

    def __init__(self, name="own.rows", version=1):
        self.name, self.version, self.columns = name, version, ("a", "b")
        self.needs = Needs.STEPS


def add_model(store, marker, kind="ranker"):
    card = {"versions": {"numpy": "2", "tunedb": "0", "xgboost": "3"}}
    training = bytes([marker]) * 16
    digest = model_digest(kind, b"{}", training, card["versions"])
    return store.models.add(NewModel(digest, kind, b"{}", training, card, None))


def fill(store, times):
    """Add one record for each time, None for one that failed; all have features."""
    batch = (
        make_measurement(n, secs and (secs,), workload=n % 2, failure=None if secs else TIMEOUT)
        for n, secs in enumerate(times)
    )
    ids = add(store, *batch)
    programs = store.pruning.measurement_numbers()[:, 2].tolist()
    store.features.add(Rows(), [(id_, np.ones((2, 2))) for id_ in programs])
    return ids


def rising(count):
    """Return times of so many records: 1 ms, 2 ms and so on."""
    return [1e-3 * (i + 1) for i in range(count)]


def url_of(store):
    return store.url.render_as_string(hide_password=False)


def everything(store):
    """Return all rows of all tables."""
    return {
        table.name: [tuple(row) for row in store._db.select(select(table))]
        for table in schema.metadata.sorted_tables
    }


def rows_of(store):
    """Return the number of rows of each table."""
    return {name: len(rows) for name, rows in everything(store).items()}


def kept(store):
    """Return (workload, target) → means of its records, failed ones as None."""
    m = schema.measurement.c
    found = defaultdict(list)
    for row in store._db.select(select(m.workload_id, m.target_id, m.mean).order_by(m.id)):
        found[row.workload_id, row.target_id].append(row.mean)
    return found


def rows_of_programs(store):
    return [row.id for row in store._db.select(select(schema.program.c.id))]


def do(store, **wanted):
    return prune(store, plan(store, PruneRules(**wanted)))


def best_of(number, rest=0.0, **wanted):
    return PruneRules(Selection(best=number, rest=rest), **wanted)


def test_prune_keeps_best_records_as_ranked_after_a_final(store):
    """The lucky record is removed first: without that of the lost final it would rank again."""
    lucky = make_measurement(0, (0.1,), session=make_session(), measured_at=1)
    lost = replace(lucky, run_secs=(0.5,), measured_at=2, extra=extra_of_final(None, won=False))
    ids = add(store, lucky, lost, *(make_measurement(n, (0.2 * n,)) for n in range(1, 4)))
    top = store.answers.best_ids([1], [1], 2)
    assert top == [ids[2], ids[3]]
    prune(store, plan(store, best_of(2)))
    assert store.answers.best_ids([1], [1], 2) == top
    assert ids[0] not in [record.id for record in store.records.iterate()]


def test_prune_keeps_best_records_and_a_share_of_the_rest(store):
    fill(store, [1e-3 + 1e-6 * i for i in range(39)] + [None])
    before = rows_of(store)
    chosen = plan(store, best_of(5, 0.4))
    removed = prune(store, chosen)
    for means in kept(store).values():
        numbers = sorted(round(mean * 1e6) - 1000 for mean in means if mean is not None)
        assert len(numbers) >= 5
        assert numbers[4] <= 9  # the five best of every second record
        assert 7 <= len(means) <= 8  # the last record of all stays too
    # Each had a program of its own.
    after = rows_of(store)
    assert removed.records == removed.programs == removed.features == 40 - after["measurement"]
    assert removed.failures == before["failure"] - after["failure"]
    assert {name: after[name] for name in SHARED} == {name: before[name] for name in SHARED}
    assert len(chosen.records) == removed.records
    assert check(url_of(store)).problems == []


@settings(max_examples=examples(40))
@given(data=st.data())
def test_prune_keeps_top_records_and_a_sound_database(data, sqlite_template):
    """A plain reference gives the best records; a second prune removes nothing."""
    times = st.one_of(st.none(), st.integers(1, 10**6))
    drawn = data.draw(st.lists(times, min_size=1, max_size=40, unique_by=lambda t: t or object()))
    taken = data.draw(st.sets(st.integers(0, len(drawn) - 1)))
    best, rest = data.draw(st.integers(1, 6)), data.draw(st.sampled_from([0.0, 0.5, 1.0, 3.0]))
    with tempfile.TemporaryDirectory() as folder:
        path = shutil.copyfile(sqlite_template, Path(folder) / "store.db")
        with Store(path) as store:
            ids = fill(store, [None if t is None else t * 1e-6 for t in drawn])
            if taken:
                store.trust.retract([ids[i] for i in taken], "why")
            tops = {w: store.answers.best_ids([w], [1], best) for w in (1, 2)}
            wanted = best_of(best, rest, retracted=True)
            chosen = plan(store, wanted)
            removed = prune(store, chosen)
            assert removed.records == chosen.rows
            assert {w: store.answers.best_ids([w], [1], best) for w in (1, 2)} == tops
            left = set(store.pruning.measurement_numbers()[:, 0].tolist())
            must = set(store.pruning.pinned_ids())
            for number, id_ in enumerate(ids):
                others = [
                    t
                    for i, t in enumerate(drawn)
                    if t is not None and i % 2 == number % 2 and i not in taken
                ]
                if number in taken:
                    assert (id_ in left) == (id_ in must)
                elif drawn[number] in sorted(others)[:best]:
                    assert id_ in left
            for group in kept(store).values():
                assert len(group) <= best + round(best * rest) + 1 + len(must)
            assert set(rows_of_programs(store)) == set(
                store.pruning.measurement_numbers()[:, 2].tolist()
            )
            assert prune(store, plan(store, wanted)) == RemovedRows()
        assert check(path).problems == []


def test_prune_keeps_a_share_of_failed_records(store):
    """Failed records count among the rest."""
    fill(store, [1e-3, 2e-3] + [None] * 20)
    prune(store, plan(store, best_of(2, 2.0)))
    assert 2 <= sum(mean is None for means in kept(store).values() for mean in means) <= 9


def test_program_is_removed_with_its_last_record(store):
    first, slow = (make_measurement(1, (1e-3 * n,), measured_at=n) for n in (1, 2))
    ids = add(store, first, slow, make_measurement(9, (1e-6,)))
    assert store.pruning.remove_records(ids[1:2]) == RemovedRows(records=1)
    assert store.pruning.remove_records(ids[:2]) == RemovedRows(records=1, programs=1)
    assert store.records.count() == 1


def test_prune_keeps_last_rows_so_that_ids_are_never_reused(store):
    """The last rows stay, so that new ones are numbered after them."""
    ids = fill(store, [1e-3, None, None, 2e-3, 3e-3])
    store.batches.add_failures([(make_measurement(1, None, workload=1), TIMEOUT)])
    store.trust.retract(ids, "all of it")
    chosen = plan(store, PruneRules(retracted=True))
    removed = prune(store, chosen)
    left = store.pruning.measurement_numbers()
    assert len(left) == chosen.lasting == 2 and ids[-1] in left[:, 0]
    assert removed.records + len(left) == 5
    last = max(left[:, 0]), max(rows_of_programs(store))
    (new,) = add(store, make_measurement(50, (1e-3,)))
    assert new > last[0] and max(rows_of_programs(store)) > last[1]
    store.pruning.remove_records(ids)
    assert do(store, retracted=True) == RemovedRows()


def test_prune_removes_retracted_records_and_keeps_retractions(store):
    ids = fill(store, rising(4))
    assert store.pruning.remove_records(ids, if_retracted=True) == RemovedRows()
    store.trust.retract(ids[:2], "a busy machine")
    assert do(store, retracted=True).records == 2
    assert rows_of(store)["retraction"] == 2
    # A record that is added again is still retracted.
    (again,) = add(store, make_measurement(0, (1e-3,), workload=0))
    assert store.records.get(again).retracted


def test_prune_removes_only_records_of_selected_workloads_and_sources(store):
    fill(store, rising(8))
    add(store, *(make_measurement(90 + i, (1e-3,)) for i in range(4)), source=FOREIGN)
    wanted = PruneRules(Selection(workloads=("matmul_0",), sources=("foreign",), best=1, rest=0))
    chosen = plan(store, wanted)
    assert [(one.name, one.records) for one in chosen.origins] == [("foreign", len(chosen.records))]
    assert prune(store, chosen).records == len(chosen.records) > 0
    assert len([m for means in kept(store).values() for m in means]) == 12 - len(chosen.records)
    with pytest.raises(NotFoundError):
        plan(store, PruneRules(Selection(workloads=("none such",), best=1)))


def test_prune_removes_records_in_batches_and_reports_progress(store, monkeypatch):
    monkeypatch.setattr(limits, "BATCH_ROWS", 3)
    fill(store, rising(20))
    chosen = plan(store, best_of(1))
    steps = []
    prune(store, chosen, on_progress=steps.append)
    assert steps == [*range(3, chosen.rows, 3), chosen.rows]
    assert len(kept(store)) == 2


def test_prune_removes_features_of_the_chosen_set(store):
    fill(store, rising(3))
    steps = feature_set("steps")
    row = np.ones((1, len(steps.columns)))
    store.features.add(steps, [(1, row), (2, row)])
    chosen = plan(store, PruneRules(features="steps"))
    (part,) = chosen.parts
    assert (part.kind, part.of, part.rows) == ("features", f"steps {steps.version}", 2)
    assert part.bytes > 0 and part.seconds == (2 * SECONDS[Needs.STEPS][0],) * 2
    assert prune(store, chosen) == RemovedRows(features=2)
    # Features of a set that is not installed cannot be computed again.
    (part,) = plan(store, PruneRules(outdated=True)).parts
    assert (part.of, part.rows, part.seconds) == ("own.rows 1", 3, None)
    assert do(store, features="") == RemovedRows(features=3)
    assert plan(store, PruneRules(features="")).parts == ()
    with pytest.raises(NotFoundError, match="steps"):
        plan(store, PruneRules(features="none such"))


def test_prune_keeps_newest_models_of_each_kind(store, monkeypatch):
    monkeypatch.setattr(limits, "BATCH_ROWS", 2)
    fill(store, rising(5))
    ids = [*(add_model(store, marker) for marker in range(3)), add_model(store, 9, "failures")]
    for id_ in ids:
        store.models.add_predictions(id_, dict.fromkeys(range(1, 6), 0.5))
    assert do(store, models=2) == RemovedRows(models=1, predictions=5)
    assert [one.id for one in store.models.all()] == ids[1:]
    assert do(store, models=1) == RemovedRows(models=1, predictions=5)
    assert do(store, models=1) == RemovedRows()
    with pytest.raises(UsageError):
        plan(store, PruneRules(models=0))


def test_removed_programs_have_no_predictions_and_get_no_features(store):
    """A run that extracts or tunes meanwhile can continue."""
    ids = fill(store, rising(3))
    store.models.add_predictions(add_model(store, 1), {1: 0.5, 2: 0.25, 3: 0.125})
    assert store.pruning.remove_records(ids[:1]).predictions == 1
    assert rows_of(store)["prediction"] == 2
    features = [(1, np.ones((1, 2))), (2, np.ones((1, 2)))]
    assert store.features.add(Rows(version=2), features) == 1
    assert store.models.add_predictions(add_model(store, 2), {1: 0.5, 3: 0.5}) == 1


def test_plan_writes_nothing_and_counts_all_that_prune_removes(store):
    ids = fill(store, [*rising(10), None, None])
    store.trust.retract(ids[:1], "why")
    add_model(store, 1)
    before = everything(store)
    chosen = plan(store, best_of(1, retracted=True, models=1, features=""))
    assert everything(store) == before
    parts = {(part.kind, part.of): part.rows for part in chosen.parts}
    removed = prune(store, chosen)
    assert parts["records", None] + parts["retracted", None] == removed.records
    assert parts["failures", None] == removed.failures
    assert parts["programs", None] == removed.programs
    assert parts["features", "own.rows 1"] == removed.features == 12
    assert all(part.bytes > 0 for part in chosen.parts if part.rows)
    assert [one.records for one in chosen.origins] == [removed.records]


def test_plan_rejects_empty_rules_and_read_only_store_rejects_removal(store):
    fill(store, [1e-3])
    with pytest.raises(UsageError):
        plan(store, PruneRules())
    with Store(url_of(store), read_only=True) as other, pytest.raises(StorageError):
        other.pruning.remove_records([1])


def test_estimated_bytes_are_within_3_times_of_dbstat_bytes(sqlite_file):
    """A SQLite that was built without the table dbstat estimates the bytes."""
    with Store(sqlite_file) as store:
        fill(store, rising(500))
        real = store.pruning.table_bytes()
        tables = schema.metadata.sorted_tables
        estimates = {one.name: store.pruning._estimated_bytes(one) for one in tables}
    for name in ("measurement", "program", "feature"):
        assert real[name] / 3 < estimates[name] < real[name] * 3, name


def test_vacuum_shrinks_the_file_and_keeps_all_rows(sqlite_file):
    with Store(sqlite_file) as store:
        fill(store, rising(600))
        prune(store, plan(store, best_of(1)))
        planned = plan_vacuum(store)
        before = everything(store)
        done = vacuum(store)
        assert everything(store) == before
        assert done.before == planned.bytes and planned.freed > 100_000
        # Rows that are written in order may need one page more than before.
        assert done.after <= planned.bytes - planned.freed + 4096
        assert sqlite_file.stat().st_size == done.after
        add(store, make_measurement(9000))
    assert check(sqlite_file).problems == []


def test_vacuum_of_postgresql_keeps_all_rows(postgres_url):
    with Store(postgres_url) as store:
        fill(store, rising(40))
        prune(store, plan(store, best_of(1)))
        planned = plan_vacuum(store)
        assert (planned.is_file, planned.rooms) == (False, ()) and planned.bytes > 0
        before = everything(store)
        vacuum(store)
        assert everything(store) == before


def test_vacuum_raises_busy_error_while_another_process_writes(sqlite_file, monkeypatch):
    monkeypatch.setattr("tunedb.storage.pruning._VACUUM_TIMEOUT", "PRAGMA busy_timeout=100")
    with Store(sqlite_file) as store, Store(sqlite_file) as other:
        with other._db.transaction(), pytest.raises(BusyError, match="another process is writing"):
            store.pruning.vacuum()
        store.pruning.vacuum()
    with Store(sqlite_file, read_only=True) as store, pytest.raises(StorageError):
        store.pruning.vacuum()


def test_vacuum_rejects_too_little_room_and_keeps_all_rows(
    sqlite_file, tmp_path, mount, monkeypatch
):
    with pytest.raises(StorageError, match="SQLITE_TMPDIR"):
        require_room("x", [Room(tmp_path, 2, 1)])
    small = mount("256k")
    monkeypatch.setenv("SQLITE_TMPDIR", str(small))
    with Store(sqlite_file) as store:
        fill(store, rising(2000))
        before = everything(store)
        with pytest.raises(StorageError, match=str(small)):
            vacuum(store)
        assert everything(store) == before

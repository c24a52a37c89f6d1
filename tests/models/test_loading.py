import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from builders import FOREIGN, OWN, make_session, make_target, sql
from raising import raises_line
from small_data import (
    SMALL_STEPS,
    WORKLOADS,
    SmallSteps,
    add_rows,
    fill,
    make_tiled,
    matmul,
    measure,
    seconds_of,
    trials,
)

from tunedb import limits
from tunedb.errors import FormatError, NotFoundError, PluginError, StorageError, UsageError
from tunedb.extraction.extract import extract
from tunedb.models.dataset import FAILURES, ORIGINS, DataCounts, load, load_counted, with_rows
from tunedb.models.labels import TimeLabel
from tunedb.models.scope import Scope
from tunedb.records import FailureKind, Origin, Session, Status
from tunedb.results import SessionFactor
from tunedb.storage.store import Store
from tunedb.system import compression


def find(store, examples, program, machine=""):
    """Return the number of the example of a program."""
    (id_,) = store.programs.ids([program.digest])
    found = [
        i
        for i in np.flatnonzero(examples.program_ids == id_)
        if examples.groups[examples.group[i]].machine == machine
    ]
    assert len(found) == 1, f"{len(found)} examples"
    return found[0]


def kind(examples, number):
    return FAILURES[examples.failures[number]]


def fill_with(store, batch):
    store.records.add(batch, OWN)
    add_rows(store)


FIRST = WORKLOADS[0]


def test_load_counted_returns_examples_and_counts_of_a_store(stored):
    examples, counts = load_counted(stored, SMALL_STEPS)
    assert counts == DataCounts(
        records=202,  # 204 without the unmeasured and the retracted one
        infrastructure=1,
        timeless=0,
        programs=198,
        without_features=1,
        workloads=7,
        failed_workloads=1,
        targets=2,
    )
    assert (len(examples), len(examples.groups), examples.rows.shape) == (197, 9, (0, 4))
    assert (examples.feature_set, examples.version) == ("small.steps", 1)
    assert examples.columns == SMALL_STEPS.columns
    families = {w.name: w.family for w in examples.workloads}
    assert families == {"dense_nopack.x86": "matmul", "conv2d_NCHWc.x86": "conv2d"}
    (one,) = (w for w in examples.workloads if w.digest == matmul(1).digest)
    assert (one.shapes, one.flops) == (((128, 256), (192, 256)), 2 * 128 * 256 * 192)


def test_load_reads_the_stored_rows_of_each_program_page_by_page(stored, monkeypatch):
    pages = []
    options = {"on_read": lambda *page: pages.append(page)}
    examples = load(stored, SMALL_STEPS, **options)
    assert examples.rows.dtype == np.float32
    assert len(examples.rows) == examples.starts[-1]
    expected = stored.features.rows(SMALL_STEPS, examples.program_ids.tolist())
    for rows, first, end in zip(expected, examples.starts[:-1], examples.starts[1:], strict=True):
        assert np.array_equal(examples.rows[first:end], rows)
    monkeypatch.setattr(limits, "FEATURE_PROGRAMS", 10)
    assert np.array_equal(load(stored, SMALL_STEPS, **options).rows, examples.rows)
    assert pages == [(197, 197), *((n, 197) for n in range(10, 197, 10)), (197, 197)]
    labels, chosen = load(stored, SMALL_STEPS, rows=False), np.arange(3, 197, 7)
    some = with_rows(stored, labels.take(chosen))
    assert np.array_equal(some.rows, examples.take(chosen).rows)
    assert np.array_equal(some.starts, examples.take(chosen).starts)
    assert with_rows(stored, labels.take([])).rows.shape == (0, 4)


def test_label_covers_times_of_all_records_of_a_program(stored):
    for label, times in (("median", 1.2), ("mean", 5.3 / 4), ("minimum", 0.9)):
        examples = load(stored, SMALL_STEPS, label=label, rows=False)
        assert examples.label == label
        number = find(stored, examples, make_tiled(FIRST, 0))
        # 0.9, 1, 1.4 and, measured again, 2.
        assert examples.seconds[number] == pytest.approx(times * seconds_of(0))


def test_programs_are_labelled_some_at_a_time(stored, monkeypatch):
    (together, _), most = load_counted(stored, SMALL_STEPS), 7
    monkeypatch.setattr("tunedb.models.dataset._PROGRAMS", most)
    assert len(together) > 20 * most
    assert load_counted(stored, SMALL_STEPS)[0].digest == together.digest


def test_failures_keep_their_kind_unless_the_program_worked_once(stored):
    examples = load(stored, SMALL_STEPS, rows=False)
    for number in (1, 7):  # failed later, and worked later
        found = find(stored, examples, make_tiled(FIRST, number))
        assert examples.failures[found] == 0
        assert examples.seconds[found] == pytest.approx(seconds_of(number))
        assert examples.trials[found] == number  # number 5, which has no rows, counts too
        assert examples.costs[found] == 0.5
    assert ORIGINS[examples.origins[found]] is Origin.MUTATED
    for number, expected in ((15, FailureKind.TIMEOUT), (23, FailureKind.RUNTIME_ERROR)):
        found = find(stored, examples, make_tiled(FIRST, number))
        assert kind(examples, found) is expected
        assert np.isnan(examples.seconds[found])
        assert examples.throughput[found] == 0
        assert examples.costs[found] == 2.0
    # The sentinel as time, without a failure.
    found = find(stored, examples, make_tiled(FIRST, 32))
    assert kind(examples, found) is FailureKind.UNKNOWN
    assert (examples.failed == np.isnan(examples.seconds)).all()
    # Without rows, of the infrastructure, not measured, retracted; and of a foreign source.
    gone = stored.programs.ids([make_tiled(FIRST, n).digest for n in (5, 30, 31, 34)])
    assert not np.isin(examples.program_ids, gone).any()
    assert find(stored, examples, make_tiled(FIRST, 33)) is not None


def test_programs_without_rows_are_examples(empty):
    """A module without stores has no rows."""
    empty.records.add(trials(FIRST, count=3, failing=0), OWN)
    ids = empty.programs.ids([make_tiled(FIRST, n).digest for n in range(3)])
    shapes = [np.ones((2, 4)), np.zeros((0, 4)), np.full((1, 4), 7.0)]
    empty.features.add(SMALL_STEPS, list(zip(ids, shapes, strict=True)))
    examples = load(empty, SMALL_STEPS)
    assert sorted(examples.sizes.tolist()) == [0, 1, 2]
    (one,) = np.flatnonzero(examples.sizes == 1)
    assert (examples.rows[examples.starts[one]] == 7).all()


def test_load_with_scope_returns_only_its_workloads_targets_and_sources(stored):
    workload = stored.workloads.id_of(WORKLOADS[3].digest)
    target = stored.targets.id_of(make_target(1).digest)
    (foreign,) = [id_ for id_, _, source in stored.sources.numbered() if source == FOREIGN]

    def scoped(**ids):
        return load(stored, SMALL_STEPS, scope=Scope(**ids))

    examples = scoped(workload_ids=[workload])
    assert [w.digest for w in examples.workloads] == [WORKLOADS[3].digest]
    assert len(examples) == 48
    examples = scoped(target_ids=[target])
    assert {g.target for g in examples.groups} == {make_target(1).digest}
    assert len(examples.workloads) == 2
    assert len(scoped(workload_ids=[workload], target_ids=[target])) == 24
    examples = scoped(source_ids=[foreign])
    assert (examples.throughput.tolist(), examples.trials.tolist()) == ([1.0], [0])


def digest_of(*given, **choices):
    return load(*given, rows=False, **choices).digest


def test_digest_does_not_depend_on_loading_rows(stored):
    whole = load(stored, SMALL_STEPS)
    assert digest_of(stored, SMALL_STEPS) == whole.digest
    target = [stored.targets.id_of(make_target(1).digest)]
    given = {"scope": Scope(target_ids=target), "label": "mean", "corrected": True}
    some = load(stored, SMALL_STEPS, **given).digest
    assert digest_of(stored, SMALL_STEPS, **given) == some
    assert len({some, digest_of(stored, SMALL_STEPS, scope=given["scope"]), whole.digest}) == 3
    assert len(whole.digest) == 16


def test_the_digest_changes_with_the_training_data(stored):
    def add(number, at, secs):
        stored.records.add([measure(make_tiled(FIRST, number), at, secs)], OWN)

    digests = [digest_of(stored, SMALL_STEPS), digest_of(stored, SMALL_STEPS, label="minimum")]
    add_rows(stored)  # number 5 gets its rows
    digests.append(digest_of(stored, SMALL_STEPS))
    add(40, 900, (1e-3,))
    assert digest_of(stored, SMALL_STEPS) == digests[-1]  # it has no rows yet
    add(40, 901, FailureKind.CRASH)
    add_rows(stored)
    digests.append(digest_of(stored, SMALL_STEPS))
    add(15, 902, FailureKind.CRASH)
    digests.append(digest_of(stored, SMALL_STEPS))
    newer = SmallSteps(version=2)
    add_rows(stored, newer)
    digests.append(digest_of(stored, newer))
    assert len(set(digests)) == len(digests)


def test_dataset_does_not_depend_on_order_of_insertion(empty, sqlite_template, tmp_path):
    batch = [*trials(FIRST), *trials(WORKLOADS[3]), *trials(FIRST, target=1)]
    again = make_tiled(FIRST, 0)
    batch += [measure(again, 50 + n, (1e-3 * n, 0.3 + n)) for n in range(1, 6)]
    fill_with(empty, batch)
    expected = load(empty, SMALL_STEPS, label="mean")
    path = shutil.copyfile(sqlite_template, tmp_path / "other.db")
    with Store(path) as other:
        shuffled = [batch[i] for i in np.random.default_rng(0).permutation(len(batch))]
        fill_with(other, shuffled)
        found = load(other, SMALL_STEPS, label="mean")
    assert found.digest == expected.digest
    assert not np.array_equal(found.program_ids, expected.program_ids)
    for name in ("rows", "starts", "group", "seconds", "throughput", "failures", "trials"):
        assert np.array_equal(getattr(found, name), getattr(expected, name), equal_nan=True), name
    assert [g.target for g in found.groups] == [g.target for g in expected.groups]


def test_both_databases_give_the_same_dataset(store, stored):
    fill(store)
    expected, found = (load(one, SMALL_STEPS) for one in (stored, store))
    assert found.digest == expected.digest
    assert np.array_equal(found.rows, expected.rows)
    assert np.array_equal(found.costs, expected.costs, equal_nan=True)


def two_sessions(store, factor=1.5):
    """Measure a workload in two sessions, the second slower, and a third program in none."""
    sessions = [make_session(n) for n in range(2)]
    for session, slow in zip(sessions, (1.0, factor), strict=True):
        store.records.add(trials(FIRST, count=4, failing=0, session=session, size=slow), OWN)
    store.records.add([measure(make_tiled(FIRST, 9), 9, (seconds_of(9),))], OWN)
    add_rows(store, SMALL_STEPS)
    (target,) = store.lookup.targets()
    return target


def factor_of(subject, id_, machine=0, factor=1.0):
    return SessionFactor(subject, id_, machine, factor, None, 0)


def test_each_machine_of_a_target_has_its_own_group(empty):
    target = two_sessions(empty, factor=3.0)
    factors = [factor_of("session", 1), factor_of("session", 2, machine=1)]
    empty.runs.set_factors(target, factors)
    examples = load(empty, SMALL_STEPS)
    assert [group.machine for group in examples.groups] == ["0", "1"]
    assert len(examples) == 9
    program = make_tiled(FIRST, 2)
    here, there = (find(empty, examples, program, machine) for machine in "01")
    assert examples.seconds[there] == pytest.approx(3 * examples.seconds[here])
    # The best program is 9 on the first machine and 3 on the second.
    assert examples.throughput[here] == pytest.approx(seconds_of(9) / seconds_of(2))
    assert examples.throughput[there] == pytest.approx(seconds_of(3) / seconds_of(2))
    # The same program's rows, twice.
    rows = [examples.rows[examples.starts[n] : examples.starts[n + 1]] for n in (here, there)]
    assert len(rows[0]) > 0 and np.array_equal(*rows)
    # A record of a source without an estimate is the first machine's.
    assert find(empty, examples, make_tiled(FIRST, 9), "0") is not None
    empty.runs.set_factors(target, [*factors, factor_of("source", 1, 2, 2.0)])
    examples = load(empty, SMALL_STEPS, corrected=True)
    number = find(empty, examples, make_tiled(FIRST, 9), "2")
    assert examples.seconds[number] == pytest.approx(seconds_of(9) / 2)


def test_sessions_with_different_numbers_of_threads_have_their_own_groups(empty):
    """No factor compares them, and one of them does not state its number."""
    threads = [{}, *({"threads": {"count": n, "pinned": False}} for n in (1, 2))]
    for number, fields in enumerate(threads, start=1):
        session = Session(f"{number}", number, json.dumps({"cpu": "x", **fields}).encode())
        empty.records.add(trials(FIRST, count=4, failing=0, session=session, size=number), OWN)
    add_rows(empty, SMALL_STEPS)
    examples = load(empty, SMALL_STEPS)
    machines = ["0", "0, TVM_NUM_THREADS=1", "0, TVM_NUM_THREADS=2"]
    assert [one.machine for one in examples.groups] == machines
    best = [examples.throughput[examples.group == number].max() for number in range(3)]
    assert best == [1.0, 1.0, 1.0]


def test_scope_does_not_change_names_of_machines(empty):
    target = two_sessions(empty)
    empty.records.add([measure(make_tiled(FIRST, 11), 11, (1e-3,))], FOREIGN)
    add_rows(empty, SMALL_STEPS)
    before = digest_of(empty, SMALL_STEPS, scope=Scope(source_ids=[2]))
    empty.runs.set_factors(target, [factor_of("session", 1), factor_of("source", 2, machine=1)])
    examples = load(empty, SMALL_STEPS, scope=Scope(source_ids=[2]))
    assert [group.machine for group in examples.groups] == ["1"]
    assert examples.digest != before


def test_load_rejects_scope_without_programs(stored):
    for given in ({"workload_ids": [99]}, {"target_ids": []}, {"source_ids": [99]}):
        with raises_line(NotFoundError, match="no program of these workloads.*tunedb workloads"):
            load(stored, SMALL_STEPS, scope=Scope(**given))


def test_load_rejects_database_without_measured_records(empty):
    with raises_line(NotFoundError) as raised:
        load(empty, SMALL_STEPS)
    words = "there are no records to train on; run: tunedb import logs PATH"
    assert str(raised.value) == f"{empty.location}: {words}"
    program = make_tiled(FIRST, 0)
    empty.records.add([measure(program, 0, None, status=Status.UNMEASURED)], OWN)
    with pytest.raises(NotFoundError, match="none of its records was measured"):
        load(empty, SMALL_STEPS)
    failed = measure(program, 1, FailureKind.INFRASTRUCTURE)
    empty.records.add([failed, measure(program, 2, (0.0,))], OWN)
    with pytest.raises(NotFoundError, match="2 records have neither a run time nor a failure"):
        load(empty, SMALL_STEPS)


def test_load_rejects_database_without_features_of_the_set(empty):
    empty.records.add(trials(FIRST, count=3), OWN)
    with raises_line(NotFoundError) as raised:
        load(empty, SMALL_STEPS)
    assert str(raised.value) == (
        f"{empty.location}: none of 3 measured programs has features of small.steps version 1; "
        "run: tunedb extract --set small.steps"
    )
    add_rows(empty)
    words = r"version 2 \(3 have those of version 1\); run: tunedb extract --set small.steps"
    for reading in (load, digest_of):
        with pytest.raises(NotFoundError, match=words):
            reading(empty, SmallSteps(version=2))


def test_load_reports_that_extraction_failed_for_all_programs(empty):
    """Another extraction would skip programs that failed."""

    class Broken(SmallSteps):
        def rows(self, programs):
            return [ValueError("no such step")] * len(programs)

    empty.records.add(trials(FIRST, count=3), OWN)
    extract(empty, Broken())
    with pytest.raises(NotFoundError, match=r"version 1; all failed; see: tunedb quarantine$"):
        load(empty, Broken())


def test_load_rejects_feature_set_with_other_or_varying_columns(stored):
    for columns, message in (
        ((*SMALL_STEPS.columns, "more"), "stored with 4 columns and has 5; raise its version"),
        ((), r"small\.steps depends on the program.*tunedb features"),
    ):
        with pytest.raises(UsageError, match=message):
            load(stored, replace(SMALL_STEPS, columns=columns))


def test_load_returns_examples_of_failures_with_the_kind_stored_last(empty):
    """A failure classifier trains on them; a ranker rejects them itself."""
    failed = [measure(make_tiled(FIRST, n), n, FailureKind.CRASH) for n in range(3)]
    fill_with(empty, failed)
    wrong = [(one, replace(one.failure, kind=FailureKind.WRONG_RESULT)) for one in failed]
    empty.batches.add_failures(wrong)
    examples, counts = load_counted(empty, SMALL_STEPS)
    assert examples.throughput.tolist() == [0, 0, 0]
    assert counts.failed_workloads == counts.workloads == 1
    assert [kind(examples, n) for n in range(3)] == [FailureKind.WRONG_RESULT] * 3


def overwrite(store, program_id, rows):
    """Put rows into the file that the store would reject."""
    data = compression.compress(np.asarray(rows, "<f4").tobytes())
    sql(store.location, "UPDATE feature SET data = ? WHERE program_id = ?", data, program_id)


def test_load_rejects_rows_that_are_not_finite(stored):
    examples = load(stored, SMALL_STEPS, rows=False)
    id_ = int(examples.program_ids[examples.sizes == 2][3])
    overwrite(stored, id_, [[1, 2, 3, 4], [5, 6, np.nan, 8]])
    words = f"vector of program {id_} is nan in small.steps version 1; .*"
    words += r" run: tunedb extract --set small\.steps$"
    with raises_line(FormatError, match=words):
        load(stored, SMALL_STEPS)
    # The other rows load.
    others = with_rows(stored, examples.take(examples.program_ids != id_))
    assert len(others) == len(examples) - 1


def test_load_reports_damaged_and_deleted_rows(stored):
    examples = load(stored, SMALL_STEPS, rows=False)
    overwrite(stored, int(examples.program_ids[0]), [[1.0]])
    with pytest.raises(StorageError, match="damaged"):
        load(stored, SMALL_STEPS)
    id_ = int(examples.program_ids[-1])
    sql(stored.location, "DELETE FROM feature WHERE program_id = ?", id_)
    with pytest.raises(StorageError, match=f"features of program {id_} changed during the"):
        with_rows(stored, examples.take(examples.program_ids == id_))


@pytest.mark.parametrize("answer", [lambda t, s: t, lambda t, s: np.full(len(s) - 1, np.nan)])
def test_load_reports_label_that_returns_invalid_times(stored, monkeypatch, answer):
    broken = TimeLabel("broken", answer)
    monkeypatch.setattr("tunedb.models.dataset.recipe_part", lambda kind, choice: (broken, ""))
    with pytest.raises(PluginError, match="label 'broken' gave no time above 0"):
        load(stored, SMALL_STEPS, label="broken")

"""The guarantees of tunedb.storage.store.Store, on SQLite and PostgreSQL alike."""

import math
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count

import pytest
from builders import (
    FOREIGN,
    OWN,
    add,
    make_batch,
    make_measurement,
    make_program,
    make_session,
    make_target,
    make_workload,
)
from effort import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from raising import raises_line
from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError

from tunedb import limits
from tunedb.errors import (
    BusyError,
    FormatError,
    LimitError,
    NotFoundError,
    StorageError,
    TuneDBError,
    UsageError,
)
from tunedb.records import (
    NO_TARGET,
    Alias,
    Failure,
    FailureKind,
    Measurement,
    Origin,
    Phase,
    Program,
    Quarantined,
    Session,
    Source,
    Status,
    Target,
    Trace,
    Trust,
    Workload,
)
from tunedb.results import AddReport
from tunedb.run_times import mean_of
from tunedb.storage import engine, schema
from tunedb.storage.names import AliasTrust
from tunedb.storage.store import Store

# Every example uses workloads of its own, so one store serves them all.
ONE_STORE = settings(max_examples=examples(40))
_fresh = count(1_000)

NASTY = [
    "'; DROP TABLE program;--",
    'x"y`z]',
    "nul\0in the middle",
    "\udcff\ud800 surrogates",
    "two\nlines\ttab\x1b[31m",
    "%s %(name)s :name ? {0}",
    "é 漢字 😀 \u202e",
    "",
    "x" * 100_000,
]


def served(store, *ids):
    """Return which of the records a top-k query serves."""
    workloads = {store.records.get(id_).workload_id for id_ in ids}
    found = {record.id for record in store.records.top_k(sorted(workloads), None, 1_000)}
    return [id_ in found for id_ in ids]


def full_measurement():
    return make_measurement(
        3,
        (0.5, 0.25),
        workload=make_workload(1, tvm_version="0.27.0", script="@T.prim_func\n…"),
        target=make_target(1, text="llvm -mcpu=skylake"),
        measured_at=1_700_000_000_000_001,
        occurrence=2,
        session=make_session(),
        args_info=b'[["TENSOR","float32",[128,128]]]',
        origin=Origin.MUTATED,
        donor=make_program(2).digest,
    )


FAILED = replace(
    full_measurement(),
    status=Status.FAILED,
    failure=Failure(FailureKind.TIMEOUT, Phase.RUN, "killed", 10.0),
)
BARE = Measurement(
    Program(Workload("json", b""), NO_TARGET, Trace(b"[]", None, b"[]")), None, Status.FAILED
)


@pytest.mark.parametrize(
    "given_", [full_measurement(), FAILED, BARE], ids=["full", "failed", "bare"]
)
def test_get_returns_the_complete_stored_record(store, store_url, given_):
    (id_,) = add(store, given_)
    with Store(store_url) as other:
        record = other.records.get(id_)
    found = record.measurement
    assert found == given_
    assert found.program.workload.script == given_.program.workload.script
    assert found.program.target.text == given_.program.target.text
    assert record.mean == (None if given_.run_secs is None else 0.375)
    assert record.source == OWN
    assert (record.id, record.retracted) == (id_, False)


def test_add_failures_ignores_a_record_that_succeeded(store):
    good = make_measurement()
    (id_,) = add(store, good)
    store.batches.add_failures([(good, Failure(FailureKind.TIMEOUT, Phase.RUN, "a lie"))])
    assert store.records.get(id_).measurement.failure is None
    assert store.records.failures() == {}


def test_adding_known_records_changes_nothing(store):
    batch = [make_measurement(i, workload=i % 2, failure=None) for i in range(5)]
    assert store.records.add(batch, OWN) == AddReport(new=5, known=0)
    before = list(store.records.iterate())
    counts = store.counts()
    assert store.records.add(batch, OWN) == AddReport(new=0, known=5)
    assert store.records.add(batch, Source("other name")) == AddReport(new=0, known=5)
    assert list(store.records.iterate()) == before
    assert replace(store.counts(), sources=1) == counts


def test_a_batch_may_hold_the_same_record_twice(store):
    one, other = make_measurement(0), make_measurement(1)
    ids, new = store.batches.add([one, other, one], OWN)
    assert ids[0] == ids[2] != ids[1]
    assert new == 2
    assert store.records.count() == 2
    ids_again, new = store.batches.add([other, one], OWN)
    assert ids_again == [ids[1], ids[0]]
    assert new == 0


def test_add_reads_its_iterable_lazily_and_stores_in_batches(store, monkeypatch):
    monkeypatch.setattr(limits, "BATCH_ROWS", 4)
    seen = []

    def produce():
        for i in range(10):
            seen.append((i, store.records.count()))
            yield make_measurement(i)

    assert store.records.add(produce(), OWN) == AddReport(new=10, known=0)
    # It asks for the fifth record when the first four are stored.
    assert seen[4] == (4, 4)
    assert seen[9] == (9, 8)


def test_ids_grow_in_order_of_insertion(store):
    batch = [make_measurement(i, (1.0 / (i + 1),), workload=i % 3) for i in range(20)]
    ids = add(store, *batch[:10]) + add(store, *batch[10:])
    assert ids == sorted(ids)
    assert [r.measurement for r in store.records.iterate()] == batch


def test_shared_rows_are_stored_once(store):
    batch = [
        make_measurement(i, session=make_session(), args_info=b"[1]", occurrence=n)
        for i in range(3)
        for n in range(2)
    ]
    assert store.records.add(batch, OWN) == AddReport(new=6, known=0)
    assert store.records.add(batch, OWN) == AddReport(new=0, known=6)
    counts = store.counts()
    assert (counts.measurements, counts.programs) == (6, 3)
    assert (counts.sketches, counts.tails, counts.sessions) == (1, 1, 1)
    assert (counts.workloads, counts.targets, counts.sources) == (1, 1, 1)


def test_adding_a_known_workload_or_target_returns_its_id(store):
    id_ = store.workloads.add(make_workload(4), [Alias("script", "abc"), Alias("script", "abc")])
    assert store.workloads.add(make_workload(4), [Alias("link", "x")]) == id_
    assert store.names.aliases(id_) == [
        (Alias("link", "x"), AliasTrust.LINKED),
        (Alias("script", "abc"), AliasTrust.TRUSTED),
    ]
    assert store.workloads.get(id_) == make_workload(4)
    target = store.targets.add(make_target(2))
    assert store.targets.add(make_target(2)) == target
    assert store.targets.get(target) == make_target(2)
    (record,) = add(store, make_measurement(workload=4, target=2))
    found = store.records.get(record)
    assert (found.workload_id, found.target_id) == (id_, target)


times = st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=True)


@ONE_STORE
@example((5e-324,))
@example((2.2250738585072014e-308, 5e-324))
@example((0.0, -0.0))
@example((1e308,))
@example((1.7976931348623157e308,))
@example((1.7e308, 1.7e308))
@example((1e10, 1e-9))
@example((0.1, 0.2, 0.30000000000000004))
@example(())
@given(run_secs=st.none() | st.lists(times, max_size=6).map(tuple))
def test_any_run_times_are_stored_bit_for_bit_or_rejected(store, run_secs):
    measurement = make_measurement(0, run_secs, workload=next(_fresh))
    if run_secs and not math.isfinite(mean_of(run_secs)):
        with pytest.raises(FormatError, match="not finite"):
            add(store, measurement)
        return
    (id_,) = add(store, measurement)
    record = store.records.get(id_)
    assert record.measurement.digest == measurement.digest
    if run_secs is None:
        assert record.measurement.run_secs is record.mean is None
    else:
        assert list(map(float.hex, record.measurement.run_secs)) == list(map(float.hex, run_secs))
        assert record.mean == (mean_of(run_secs) if run_secs else None)


@pytest.mark.parametrize(
    "secs", [(math.nan, 0.2, 0.3), (0.1, math.inf, 0.3), (0.1, 0.2, -math.inf)]
)
def test_infinite_or_nan_run_time_rejects_the_whole_batch(store, secs):
    good = [make_measurement(i) for i in range(3)]
    with raises_line(FormatError, match=r"run time .*inf|run time nan"):
        add(store, *good, make_measurement(9, secs))
    counts = store.counts()
    assert (counts.measurements, counts.programs, counts.sources) == (0, 0, 0)
    assert add(store, *good)


def test_too_many_run_times_are_rejected(store, monkeypatch):
    monkeypatch.setattr(limits, "MAX_RUN_SECS", 3)
    assert add(store, make_measurement(0, (0.1,) * 3))
    with pytest.raises(FormatError, match="4 run times"):
        add(store, make_measurement(1, (0.1,) * 4))


def test_an_error_in_add_keeps_earlier_batches(store, monkeypatch):
    monkeypatch.setattr(limits, "BATCH_ROWS", 2)
    batch = [make_measurement(i) for i in range(5)] + [make_measurement(9, (math.nan,))]
    with pytest.raises(FormatError):
        store.records.add(batch, OWN)
    assert store.records.count() == 4
    assert store.records.add(batch[:5], OWN) == AddReport(new=1, known=4)


def test_a_broken_iterable_leaves_the_store_usable(store):
    def broken():
        yield make_measurement(0)
        raise RuntimeError("the importer failed")

    with pytest.raises(RuntimeError, match="the importer failed"):
        store.records.add(broken(), OWN)
    assert store.records.add([make_measurement(1)], OWN) == AddReport(1, 0)


def test_workload_body_over_the_limit_is_rejected(store, monkeypatch):
    monkeypatch.setattr(limits, "MAX_BODY_BYTES", 1000)
    with pytest.raises(LimitError, match="1001"):
        store.workloads.add(Workload("json", bytes(1001)))
    assert store.counts().workloads == 0


def test_failed_foreign_and_empty_records_are_not_served(store):
    ids = add(
        store,
        make_measurement(0, (0.5,)),
        make_measurement(1, (0.1,), status=Status.FAILED),
        make_measurement(2, None),
        make_measurement(3, (0.1,), empty=True),
        make_measurement(4, (), status=Status.FAILED),
    )
    ids += add(store, make_measurement(5, (0.1,)), source=FOREIGN)
    ids += add(store, make_measurement(6, (0.6,)), source=Source("v", trust=Trust.VERIFIED))
    assert served(store, *ids) == [True, False, False, False, False, False, True]
    assert store.records.best([1]).id == ids[0]
    assert store.records.count() == len(ids)
    assert [i for i, _, _ in store.records.history([1])] == [ids[0], ids[6]]
    (summary,) = store.workloads.find()
    assert (summary.best, summary.records, summary.failed) == (0.5, 7, 3)


def test_adding_records_does_not_change_the_trust_of_their_source(store):
    (foreign,) = add(store, make_measurement(0), source=FOREIGN)
    (still,) = add(store, make_measurement(1), source=replace(FOREIGN, trust=Trust.OWN))
    assert served(store, foreign, still) == [False, False]
    assert store.records.get(still).source == FOREIGN
    assert store.counts().sources == 1


def test_retracted_records_are_not_served(store):
    ids = add(store, *(make_measurement(i, (0.1 * (i + 1),)) for i in range(3)))
    assert store.trust.retract([ids[0]], "wrong machine") == 1
    assert served(store, *ids) == [False, True, True]
    assert [store.records.get(i).retracted for i in ids] == [True, False, False]
    assert store.trust.retract([ids[0], ids[1], ids[1]], "again") == 1
    counts = store.counts()
    assert (counts.measurements, counts.retracted) == (3, 2)


def test_a_retracted_record_stays_retracted_when_it_is_added_again(store, store_url):
    (id_,) = add(store, make_measurement(0))
    store.trust.retract([id_], "wrong")
    assert store.batches.add([make_measurement(0)], Source("other")) == ([id_], 0)
    assert served(store, id_) == [False]
    with Store(store_url) as other:
        assert served(other, id_) == [False]


def test_retracting_unknown_records_is_refused(store):
    add(store, make_measurement(0))
    for ids in ([99], [1, 99]):
        with pytest.raises(NotFoundError, match="no record 99"):
            store.trust.retract(ids, "x")
    assert store.counts().retracted == 0
    assert served(store, 1) == [True]


def test_a_retraction_needs_a_reason(store):
    (id_,) = add(store, make_measurement(0))
    with pytest.raises(UsageError, match="reason"):
        store.trust.retract([id_], "")
    assert store.trust.retract([], "nothing") == 0


def test_get_returns_the_last_failure_of_a_record(store):
    failed = make_measurement(0, None)
    (id_,) = add(store, failed)
    assert store.records.get(id_).measurement.failure is None
    assert store.records.failures() == {}
    first = Failure(FailureKind.UNKNOWN, Phase.RUN, "it failed")
    store.batches.add_failures([(failed, first), (failed, first)])
    assert store.records.get(id_).measurement.failure == first
    last = Failure(FailureKind.TIMEOUT, Phase.RUN, "killed after 10 s", 10.5)
    store.batches.add_failures([(failed, last)])
    assert store.records.get(id_).measurement.failure == last
    assert store.records.failures() == {"unknown": 1, "timeout": 1}
    assert store.records.count() == 1


def test_adding_a_known_measurement_adds_its_failure(store):
    failed = make_measurement(0, None)
    (id_,) = add(store, failed)
    why = Failure(FailureKind.CRASH, Phase.BUILD, "segfault")
    assert store.batches.add([replace(failed, failure=why)], OWN) == ([id_], 0)
    assert store.records.get(id_).measurement.failure == why


def test_a_failure_of_an_unknown_measurement_is_dropped(store):
    why = Failure(FailureKind.CRASH, Phase.BUILD, "segfault")
    store.batches.add_failures([(make_measurement(0, None), why)])
    assert store.records.failures() == {}


def test_infinite_or_nan_seconds_of_a_failure_are_dropped(store):
    failures = [Failure(FailureKind.CRASH, Phase.RUN, "m", math.nan)]
    failures += [Failure(FailureKind.CRASH, Phase.RUN, "m", math.inf)]
    ids = add(store, *(make_measurement(n, None, failure=f) for n, f in enumerate(failures)))
    assert [store.records.get(id_).measurement.failure.seconds for id_ in ids] == [None, None]


def test_digest_of_a_stored_failure_matches_its_row(store):
    """A merge recomputes digests and refuses rows whose digest does not match."""
    failures = [Failure(FailureKind.CRASH, Phase.RUN, message, 1.0) for message in NASTY]
    add(store, *(make_measurement(n, None, failure=f) for n, f in enumerate(failures)))
    found = [record.measurement for record in store.records.iterate()]
    stored = store._db.select(
        select(schema.failure.c.digest).order_by(schema.failure.c.measurement_id)
    )
    assert [bytes(row.digest) for row in stored] == [
        one.failure.digest(one.digest) for one in found
    ]
    assert len(found) == len(NASTY)


def test_quarantine_stores_rows_once_and_truncates_their_data(store, monkeypatch):
    monkeypatch.setattr(limits, "MAX_QUARANTINE_BYTES", 8)
    rows = [
        Quarantined("a.json", 1, "not JSON", b"{\xff\0"),
        Quarantined("a.json", 2, "not JSON", b"{\xff\0"),
        Quarantined("a.json", 3, "too long", b"0123456789"),
    ]
    assert store.quarantine.add([*rows, rows[0]], OWN) == 3
    assert store.quarantine.add(rows, OWN) == 0
    assert store.quarantine.add([], OWN) == 0
    kept = [*rows[:2], replace(rows[2], data=b"01234567")]
    assert [row.item for row in store.quarantine.rows()] == kept[::-1]
    assert [row.item for row in store.quarantine.rows(limit=1)] == kept[2:]
    assert store.counts().quarantined == 3


def test_add_stores_quarantined_rows(store):
    bad = []

    def parse():
        yield make_measurement(0)
        bad.append(Quarantined("f", 2, "cut", b"{"))

    assert store.records.add(parse(), OWN, quarantined=bad) == AddReport(1, 0)
    assert [row.item for row in store.quarantine.rows()] == bad


def try_name(store, text):
    add(store, make_measurement(workload=make_workload(next(_fresh), name=text)))


def try_workload(store, text):
    store.workloads.add(make_workload(next(_fresh), tvm_version=text))


def try_script(store, text):
    id_ = store.workloads.add(make_workload(next(_fresh), script=text))
    store._loader._workloads.clear()
    assert store.workloads.get(id_).script == text


def try_format(store, text):
    text = text.replace("\udcff\ud800", "")  # no digest, so no record: UnicodeEncodeError there
    store.workloads.add(Workload(text, b"body"))


def try_target(store, text):
    target = Target.from_config({"kind": "llvm", "mcpu": text.replace("\udcff\ud800", "")}, text)
    id_ = store.targets.add(target)
    assert store.targets.compatible(target) == [id_]


def try_source(store, text):
    add(store, make_measurement(next(_fresh)), source=Source(text))
    add(store, make_measurement(next(_fresh)), source=Source(text))


def try_message(store, text):
    why = Failure(FailureKind.CRASH, Phase.RUN, text)
    (id_,) = add(store, make_measurement(next(_fresh), None, failure=why))
    assert "\0" not in store.records.get(id_).measurement.failure.message


def try_quarantine(store, text):
    row = Quarantined(text, next(_fresh), text, text.encode(errors="surrogatepass"))
    assert store.quarantine.add([row], Source(text)) == 1
    assert store.quarantine.add([row], Source(text)) == 0
    assert store.quarantine.rows(1)[0].item.data == row.data


def try_alias(store, text):
    id_ = store.workloads.add(make_workload(next(_fresh)), [Alias(text, text)])
    assert [found for found, _ in store.names.workloads([Alias(text, text)])] == [id_]
    assert id_ in store.workloads.equivalent(id_)


def try_reason(store, text):
    assert store.trust.retract([1], text) == 1
    with store._db.transaction() as connection:
        connection.execute(schema.retraction.delete())
        connection.execute(schema.measurement.update().values(served=1))


def try_session(store, text):
    text = text.replace("\udcff\ud800", "")
    session = Session(text, 1, text.encode())
    (id_,) = add(store, make_measurement(next(_fresh), session=session))
    assert store.records.get(id_).measurement.session == session


def try_decisions(store, text):
    body = text.encode(errors="surrogatepass")
    program = Program(make_workload(), make_target(), Trace(body, body, body))
    (id_,) = add(store, Measurement(program, (1.0,), args_info=body))
    assert store.records.get(id_).measurement.program == program


def try_searching(store, text):
    store.workloads.find(text)
    store.targets.find(text)
    with pytest.raises(UsageError, match="is not JSON"):
        store.targets.find("{" + text)
    store.names.workloads_without(text, 0)


ATTEMPTS = [value for name, value in sorted(globals().items()) if name.startswith("try_")]


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda a: a.__name__)
def test_any_text_is_stored_or_rejected(store, attempt):
    add(store, make_measurement(0))
    accepted = 0
    for text in NASTY:
        before = store.records.count()
        try:
            attempt(store, text)
            accepted += 1
        except TuneDBError as error:
            assert "\n" not in str(error)
            assert store.records.count() == before
    # All but NUL, surrogates and nothing at all are plain text.
    assert accepted >= len(NASTY) - 3
    assert store.records.best([1]).measurement == make_measurement(0)
    with store._db.transaction() as connection:
        for table in schema.metadata.sorted_tables:
            connection.execute(select(func.count()).select_from(table))


def test_read_only_store_reads_and_rejects_writes(store_url):
    with Store(store_url) as store:
        (id_,) = add(store, make_measurement(0))
    with Store(store_url, read_only=True) as store:
        assert store.records.get(id_).measurement == make_measurement(0)
        assert store.records.best([1]).id == id_
        for write in (
            lambda: store.records.add([make_measurement(1)], OWN),
            lambda: store.batches.add([], OWN),
            lambda: store.workloads.add(make_workload(7)),
            lambda: store.targets.add(make_target(7)),
            lambda: store.batches.add_failures([]),
            lambda: store.quarantine.add([], OWN),
            lambda: store.trust.retract([id_], "x"),
            lambda: store.trust.retract_source(1, "x"),
            lambda: store.trust.set(1, Trust.FOREIGN),
        ):
            with pytest.raises(StorageError, match="it was opened read-only") as caught:
                write()
            assert str(caught.value).startswith(store.location)
            assert "\n" not in str(caught.value)
        # The database itself rejects a write that bypasses our check.
        with (
            pytest.raises(DBAPIError, match=r"read-?only"),
            store._db.engine.connect() as connection,
        ):
            connection.execution_options(tunedb_reads=True)
            connection.execute(schema.meta.insert().values(key="x", value="y"))
        assert store.records.count() == 1


def test_closed_store_raises_usage_error(store_url):
    store = Store(store_url)
    add(store, make_measurement(0))
    store.close()
    store.close()
    for work in (store.records.count, lambda: add(store, make_measurement(1))):
        with pytest.raises(UsageError, match="the store is closed; open it again"):
            work()
    with Store(store_url) as again:
        assert again.records.count() == 1


def test_repr_shows_the_location_of_the_store(store, store_url):
    assert repr(store) == f"Store({store.location!r})"
    if "://" not in store_url:
        assert store.location == store_url


def test_databases_in_memory_work_and_are_separate():
    with Store(":memory:") as one, Store("sqlite://") as other:
        (id_,) = add(one, full_measurement())
        assert one.records.get(id_).measurement == full_measurement()
        assert one.records.best([1]).id == id_
        assert other.records.count() == 0
        assert one.key != other.key
        with pytest.raises(FormatError):
            add(one, make_measurement(1), make_measurement(2, (math.nan,)))
        assert one.records.count() == 1
        assert one.trust.retract([id_], "x") == 1
        assert repr(one) == "Store(':memory:')"
    with pytest.raises(UsageError, match="closed"):
        add(one, make_measurement(3))


def test_equal_sources_of_two_stores_have_different_digests(store):
    """Otherwise a merge would take the source "own" of another machine for our own."""
    with Store(":memory:") as other:
        digests = []
        for one in (store, other):
            with one._db.transaction() as connection:
                one.batches._rows.source(connection, OWN)
                digests.append(bytes(connection.execute(select(schema.source.c.digest)).scalar()))
    # The SQLite database and the PostgreSQL one are copies of templates, the other one is not.
    assert digests[0] != digests[1]


def test_a_reader_does_not_wait_for_a_writer_nor_see_its_rows(store, store_url):
    add(store, make_measurement(0))
    with Store(store_url) as writer, writer._db.transaction() as connection:
        connection.execute(schema.meta.insert().values(key="half", value="done"))
        assert "half" not in store.meta()
        assert store.records.count() == 1


def test_second_writer_waits_and_then_raises_busy_error(store_url, monkeypatch):
    monkeypatch.setattr(engine, "BUSY_TIMEOUT_S", 0.2)
    monkeypatch.setattr(limits, "LOCK_S", 0.2)
    with Store(store_url) as holder, Store(store_url) as waiter:
        with holder._db.transaction() as connection:
            connection.execute(schema.meta.insert().values(key="half", value="done"))
            with pytest.raises(BusyError, match="another process is writing; try again") as caught:
                add(waiter, make_measurement(0))
        assert "\n" not in str(caught.value)
        assert add(waiter, make_measurement(0)) == [1]
        assert add(holder, make_measurement(1)) == [2]


@pytest.mark.examples
def test_threads_share_a_store(store, monkeypatch):
    """Many threads on one handle, with caches that are too small for what they read."""
    monkeypatch.setattr(store._loader._workloads, "_max_size", 2)
    for cache in store._loader.bodies.values():
        monkeypatch.setattr(cache, "_max_size", 1)
    add(store, *(make_measurement(i, workload=i) for i in range(8)))
    threads, rounds = examples(8), examples(12)
    ids, barrier = [], threading.Barrier(threads)

    def work(number):
        barrier.wait()
        for i in range(rounds):
            common = make_measurement(i, measured_at=7)
            ids.extend(add(store, replace(common), make_measurement(i, occurrence=number)))
            for workload in range(1, 9):
                best = store.records.best([workload])
                assert best.workload_id == workload
                assert best.measurement.program.workload.name == f"matmul_{workload - 1}"

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, range(1, threads + 1)))
    finally:
        sys.setswitchinterval(interval)
    assert store.records.count() == 8 + rounds + threads * rounds
    assert len(set(ids)) == rounds + threads * rounds


def test_concurrent_writers_count_each_new_row_once(store_url):
    """Four handles add the same rows in different order: nobody deadlocks, each row is new once."""
    batch = make_batch(1, 60)
    orders = [batch, batch[::-1], batch[30:] + batch[:30], batch[::2] + batch[1::2]]
    new, barrier = [], threading.Barrier(4)

    def work(order):
        with Store(store_url) as store:
            barrier.wait()
            for start in range(0, 60, 10):
                new.append(store.batches.add(order[start : start + 10], OWN)[1])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, orders))
    assert sum(new) == 60


def test_store_reconnects_after_one_error_per_cut_connection(postgres_server, postgres_url):
    with Store(postgres_url) as store:
        add(store, make_measurement(0))
        # Its reader and its writer; those of an earlier test may linger.
        assert postgres_server.terminate(postgres_url) >= 2
        with raises_line(StorageError):
            store.records.count()
        with raises_line(StorageError):
            add(store, make_measurement(1))
        assert store.records.count() == 1
        add(store, make_measurement(1))
        assert store.records.count() == 2


def test_workload_keeps_its_first_script(store):
    """A workload that was imported without TVM has none; the first script stays."""
    bare = make_measurement().program.workload
    store.workloads.add(replace(bare, script=None))
    for script in ("# first", "# second", None):
        store.workloads.add(replace(bare, script=script))
    store._loader._workloads.clear()
    assert store.workloads.get(1).script == "# first"
    assert store.workloads.get(1).digest == bare.digest


def test_queries_for_fast_programs_leave_out_records_cut_short(store):
    """Its times are the fastest of all, and no query for fast programs finds it."""
    measured = [
        make_measurement(0, (1e-9, 2e-9), status=Status.CUT_SHORT, session=make_session()),
        make_measurement(1, (0.5,), session=make_session()),
    ]
    (cut, whole), _ = store.batches.add(measured, OWN)
    assert [record.id for record in store.records.top_k([1], None, 9)] == [whole]
    assert store.records.best([1]).id == whole
    assert store.answers.best_ids([1], [1], 9) == [whole]
    assert [row.id for row in store.programs.measured([1], 1, [1])] == [whole]
    assert store.workloads.find()[0].best == 0.5
    assert store.counts().failed == store.workloads.find()[0].failed == 0
    # TVM gets it without its time when it gets all records.
    assert store.answers.get(cut).run_secs == (1e10,)
    # The record itself keeps its times and its status.
    found = store.records.get(cut)
    assert found.measurement.run_secs == (1e-9, 2e-9)
    assert found.measurement.status is Status.CUT_SHORT
    store.batches.add_failures(
        [(found.measurement, Failure(FailureKind.TIMEOUT, Phase.RUN, "a lie"))]
    )
    assert store.records.get(cut).measurement.failure is None

"""The guarantees of tunedb.storage.store.Store, on SQLite and PostgreSQL alike."""

import math
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count

import pytest
from builders import (
    OWN,
    add,
    make_batch,
    make_measurement,
    make_session,
    make_target,
    make_workload,
)
from effort import examples
from every_kind import measurements
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
    UnreachableError,
    UsageError,
)
from tunedb.records import (
    NO_TARGET,
    Alias,
    Failure,
    FailureKind,
    Measurement,
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


def test_get_returns_the_complete_stored_record(store, store_url):
    workload = make_workload(7, tvm_version="0.27.0", script="@T.prim_func\n…")
    target = make_target(1, text="llvm -mcpu=skylake")
    fields = {"workload": workload, "target": target, "session": make_session()}
    full = make_measurement(9, (0.5, 0.25), occurrence=2, args_info=b'["TENSOR"]', **fields)
    bare = Program(Workload("json", b""), NO_TARGET, Trace(b"[]", None, b"[]"))
    # Launches are read separately.
    others = [replace(one, launches=()) for one in measurements()]
    given_ = [full, Measurement(bare, None, Status.FAILED), *others]
    ids = add(store, *given_)
    with Store(store_url) as other:
        records = [other.records.get(id_) for id_ in ids]
    assert [record.measurement for record in records] == given_
    assert [record.mean for record in records[:2]] == [0.375, None]
    first = records[0]
    program = first.measurement.program
    assert (program.workload.script, program.target.text) == (workload.script, target.text)
    assert (first.source, first.id, first.retracted) == (OWN, ids[0], False)


def test_records_and_their_shared_rows_are_stored_once(store):
    batch = [
        make_measurement(i, (1 / (1 + i + n),), session=make_session(), occurrence=n)
        for i in range(3)
        for n in range(2)
    ]
    ids, new = store.batches.add([*batch, batch[0]], OWN)
    assert (ids, new) == ([*sorted(ids[:6]), ids[0]], 6)
    assert store.batches.add(batch[::-1], OWN) == (ids[5::-1], 0)
    before = list(store.records.iterate())
    assert [record.measurement for record in before] == batch
    counts = store.counts()
    assert (counts.measurements, counts.programs) == (6, 3)
    assert (counts.sketches, counts.tails, counts.sessions) == (1, 1, 1)
    assert (counts.workloads, counts.targets, counts.sources) == (1, 1, 1)
    assert store.records.add(batch, OWN) == AddReport(new=0, known=6)
    assert store.records.add(batch, Source("other name")) == AddReport(new=0, known=6)
    assert list(store.records.iterate()) == before
    assert replace(store.counts(), sources=1) == counts


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


def test_adding_a_known_workload_or_target_returns_its_id(store):
    id_ = store.workloads.add(make_workload(4), [Alias("script", "abc"), Alias("script", "abc")])
    assert store.workloads.add(make_workload(4), [Alias("link", "x")]) == id_
    assert store.names.aliases(id_) == [
        (Alias("link", "x"), AliasTrust.LINKED),
        (Alias("script", "abc"), AliasTrust.TRUSTED),
    ]
    target = store.targets.add(make_target(2))
    assert store.targets.add(make_target(2)) == target
    for rows, make, number in (
        (store.workloads, make_workload(4), id_),
        (store.targets, make_target(2), target),
    ):
        assert rows.get(number) == make
        assert (rows.id_of(make.digest), rows.id_of(bytes(16))) == (number, None)
    assert store.names.last_workload() == id_
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


def test_invalid_run_times_reject_the_whole_batch(store, monkeypatch):
    monkeypatch.setattr(limits, "MAX_RUN_SECS", 3)
    good = [make_measurement(i, (0.1,) * 3) for i in range(3)]
    for secs, message in (
        ((math.nan, 0.2, 0.3), "run time nan"),
        ((0.1, math.inf, 0.3), "run time .*inf"),
        ((0.1, 0.2, -math.inf), "run time .*inf"),
        ((0.1,) * 4, "4 run times"),
    ):
        with raises_line(FormatError, match=message):
            add(store, *good, make_measurement(9, secs))
        counts = store.counts()
        assert (counts.measurements, counts.programs, counts.sources) == (0, 0, 0)
    assert add(store, *good)


def test_an_error_in_add_keeps_earlier_batches(store, monkeypatch):
    """So does an error of the iterable."""
    monkeypatch.setattr(limits, "BATCH_ROWS", 2)
    batch = [make_measurement(i) for i in range(5)]

    def broken():
        yield make_measurement(8)
        raise RuntimeError("the importer failed")

    with pytest.raises(FormatError):
        store.records.add([*batch, make_measurement(9, (math.nan,))], OWN)
    with pytest.raises(RuntimeError, match="the importer failed"):
        store.records.add(broken(), OWN)
    assert store.records.count() == 4
    assert store.records.add(batch, OWN) == AddReport(new=1, known=4)


def test_workload_body_over_the_limit_is_rejected(store, monkeypatch):
    monkeypatch.setattr(limits, "MAX_BODY_BYTES", 1000)
    with pytest.raises(LimitError, match="1001"):
        store.workloads.add(Workload("json", bytes(1001)))
    assert store.counts().workloads == 0


def test_retracted_records_are_not_served(store, store_url):
    """They stay retracted when they are added again."""
    batch = [make_measurement(i, (0.1 * (i + 1),)) for i in range(3)]
    ids = add(store, *batch)
    for unknown in ([99], [1, 99]):
        with pytest.raises(NotFoundError, match="no record 99"):
            store.trust.retract(unknown, "x")
    with pytest.raises(UsageError, match="reason"):
        store.trust.retract(ids, "")
    assert store.trust.retract([], "nothing") == store.counts().retracted == 0
    assert store.trust.retract([ids[0]], "wrong machine") == 1
    assert store.trust.retract([ids[0], ids[1], ids[1]], "again") == 1
    assert store.batches.add(batch, Source("other")) == (ids, 0)
    assert store.counts().retracted == 2
    with Store(store_url) as other:
        for one in (store, other):
            assert [one.records.get(i).retracted for i in ids] == [True, True, False]
            assert [record.id for record in one.records.top_k([1])] == ids[2:]


def test_get_returns_the_last_failure_of_a_record(store):
    failed = make_measurement(0, None)
    (id_,) = add(store, failed)

    def shown():
        return store.records.get(id_).measurement.failure

    assert (shown(), store.records.failures()) == (None, {})
    first = Failure(FailureKind.UNKNOWN, Phase.RUN, "it failed")
    store.batches.add_failures([(failed, first), (failed, first)])
    assert shown() == first
    last = Failure(FailureKind.TIMEOUT, Phase.RUN, "killed after 10 s", 10.5)
    store.batches.add_failures([(failed, last), (make_measurement(1, None), last)])
    assert shown() == last
    assert store.records.failures() == {"unknown": 1, "timeout": 1}
    for seconds in (math.nan, math.inf):
        again = Failure(FailureKind.CRASH, Phase.BUILD, f"segfault {seconds}", seconds)
        assert store.batches.add([replace(failed, failure=again)], OWN) == ([id_], 0)
        assert shown() == replace(again, seconds=None)
    assert store.records.count() == 1


def test_add_failures_ignores_a_record_that_succeeded(store):
    """It also ignores one that was cut short, whose times stay as they are."""
    given_ = [make_measurement(0), make_measurement(1, (1e-9, 2e-9), status=Status.CUT_SHORT)]
    ids = add(store, *given_)
    lie = Failure(FailureKind.TIMEOUT, Phase.RUN, "a lie")
    store.batches.add_failures([(one, lie) for one in given_])
    found = [store.records.get(id_).measurement for id_ in ids]
    assert found == given_
    assert [measurement.failure for measurement in found] == [None, None]
    assert store.records.failures() == {}
    assert store.counts().failed == store.workloads.find()[0].failed == 0
    # TVM gets it without its time when it gets all records.
    assert store.answers.get(ids[1]).run_secs == (1e10,)


def test_digest_of_a_stored_failure_matches_its_row(store):
    """A merge recomputes digests and refuses rows whose digest does not match."""
    failures = [Failure(FailureKind.CRASH, Phase.RUN, message, 1.0) for message in NASTY]
    add(store, *(make_measurement(n, None, failure=f) for n, f in enumerate(failures)))
    found = [record.measurement for record in store.records.iterate()]
    table = schema.failure.c
    stored = store._db.select(select(table.digest).order_by(table.measurement_id))
    digests = [one.failure.digest(one.digest) for one in found]
    assert [bytes(row.digest) for row in stored] == digests
    assert len(found) == len(NASTY)


def test_quarantine_stores_rows_once_and_truncates_their_data(store, monkeypatch):
    monkeypatch.setattr(limits, "MAX_QUARANTINE_BYTES", 8)
    rows = [
        Quarantined("a.json", 1, "not JSON", b"{\xff\0"),
        Quarantined("a.json", 2, "not JSON", b"{\xff\0"),
        Quarantined("a.json", 3, "too long", b"0123456789"),
    ]
    assert [store.quarantine.add(one, OWN) for one in ([*rows, rows[0]], rows, [])] == [3, 0, 0]
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


def try_version(store, text):
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
        assert repr(store) == f"Store({store.location!r})"
        for write, *arguments in (
            (store.records.add, [make_measurement(1)], OWN),
            (store.batches.add, [], OWN),
            (store.workloads.add, make_workload(7)),
            (store.targets.add, make_target(7)),
            (store.batches.add_failures, []),
            (store.quarantine.add, [], OWN),
            (store.trust.retract, [id_], "x"),
            (store.trust.retract_source, 1, "x"),
            (store.trust.set, 1, Trust.FOREIGN),
        ):
            with raises_line(StorageError, match="it was opened read-only") as caught:
                write(*arguments)
            assert str(caught.value).startswith(store.location)
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


def test_databases_in_memory_work_and_are_separate():
    with Store(":memory:") as one, Store("sqlite://") as other:
        (id_,) = add(one, make_measurement(0))
        with pytest.raises(FormatError):
            add(one, make_measurement(1), make_measurement(2, (math.nan,)))
        assert one.records.best([1]).id == id_
        assert (one.records.count(), other.records.count()) == (1, 0)
        assert one.key != other.key
        assert repr(one) == "Store(':memory:')"
    with pytest.raises(UsageError, match="closed"):
        add(one, make_measurement(3))


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
            with raises_line(BusyError, match="another process is writing; try again"):
                add(waiter, make_measurement(0))
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


def test_store_replaces_a_connection_that_stays_in_pipeline_mode(postgres_url):
    """psycopg leaves one behind if a server ends between two statements of a batch."""
    with Store(postgres_url) as store:
        add(store, make_measurement(0))
        for connection in (store._db._writer, store._db.reader()):
            connection.connection.driver_connection.pgconn.enter_pipeline_mode()
        with raises_line(UnreachableError):
            add(store, make_measurement(1))
        with raises_line(UnreachableError):
            store.records.count()
        add(store, make_measurement(1))
        assert store.records.count() == 2


def test_workload_keeps_its_first_script(store):
    """A workload that was imported without TVM has none; the first script stays."""
    bare = make_measurement().program.workload
    for script in (None, "# first", "# second", None):
        store.workloads.add(replace(bare, script=script))
    store._loader._workloads.clear()
    found = store.workloads.get(1)
    assert (found.script, found.digest) == ("# first", bare.digest)

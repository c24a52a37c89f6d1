"""Trust in sources, and the effects of changing it."""

from dataclasses import replace

import pytest
from builders import FOREIGN, OWN, add, make_measurement, make_session, make_trace, make_workload
from raising import raises_line
from sqlalchemy import select

from tunedb.errors import FormatError, NotFoundError, UsageError
from tunedb.records import Source, SourceKind, Status, Trace, Trust
from tunedb.storage import schema
from tunedb.storage.store import Store

EVIL = b'[["Annotate",["l1",{}],["pragma_import_llvm"],[]]]'


def with_sketch(number, sketch, **fields):
    """Return a measurement whose trace has another sketch."""
    measurement = make_measurement(number, **fields)
    trace = Trace(sketch, make_trace().tail, b'[[],["x"],[]]')
    return replace(measurement, program=replace(measurement.program, trace=trace))


def served(store):
    rows = store._db.select(select(schema.measurement.c.served).order_by(schema.measurement.c.id))
    return [row.served for row in rows]


def test_raising_trust_serves_valid_records_and_lowering_it_stops_that(store):
    workload = make_workload(0, script="# from tvm.script import tirx as T")
    add(
        store,
        make_measurement(0, (0.2,), workload=workload),
        make_measurement(1, None),
        make_measurement(3, (0.1,)),
        make_measurement(4, status=Status.UNMEASURED),
        source=FOREIGN,
    )
    add(store, make_measurement(9, (0.3,)))
    store.trust.retract([3], "wrong")
    assert served(store) == [0, 0, 0, 0, 1]
    assert store.trust.set(1, Trust.VERIFIED, dry_run=True) == 1
    assert served(store) == [0, 0, 0, 0, 1]
    assert store.records.get(1).source.trust is store.sources.get(1).trust is Trust.FOREIGN
    assert store.trust.set(1, Trust.VERIFIED) == 1
    assert served(store) == [1, 0, 0, 0, 1]
    assert store.records.get(1).source.trust is store.sources.get(1).trust is Trust.VERIFIED
    assert store.trust.set(1, Trust.OWN) == 0
    # A script is code, which a foreign source does not bring.
    store._loader._workloads.clear()
    assert store.workloads.get(1).script is None
    assert store.trust.set(1, Trust.FOREIGN) == 1
    assert served(store) == [0, 0, 0, 0, 1]
    assert store.trust.set(2, Trust.FOREIGN) == 1
    assert store.records.best([1]) is None


@pytest.mark.parametrize("trust", [Trust.OWN, Trust.VERIFIED])
def test_trust_cannot_be_raised_while_a_source_has_forbidden_traces(store, trust):
    # A JSON export and `get_all_tuning_records` have failed records too.
    failed = with_sketch(2, b'[["Evil",[],[],[]]]', secs=None)
    add(store, make_measurement(0), with_sketch(1, EVIL), failed, source=FOREIGN)
    words = (
        r"^source 'foreign': 2 of its records must not reach TVM.*the first is 2 \(.*"
        "tunedb retract --source 1 --not-allowed --reason TEXT"
    )
    with raises_line(FormatError, match=words):
        store.trust.set(1, trust)
    assert store.sources.get(1).trust is Trust.FOREIGN
    assert served(store) == [0, 0, 0]
    refused = list(store.answers.rejected(1))
    assert [one.record_id for one in refused] == [2, 3]
    assert "Evil" in refused[1].reason
    store.trust.retract([one.record_id for one in refused], "not allowed")
    assert store.trust.set(1, trust) == 1
    assert served(store) == [1, 0, 0]


def test_raising_trust_also_checks_records_added_meanwhile(store, store_url, monkeypatch):
    store.records.add([make_measurement(0)], FOREIGN)
    calls = []
    last_record, refused_records = store.batches.last_id, store.answers.rejected

    def then_another_comes():
        last = last_record()
        with Store(store_url) as other:
            other.records.add([with_sketch(1, EVIL)], FOREIGN)
        return last

    def only_later(source_id, *, after=0):
        calls.append(after)
        return refused_records(source_id, after=after) if after else iter(())

    monkeypatch.setattr(store.batches, "last_id", then_another_comes)
    monkeypatch.setattr(store.answers, "rejected", only_later)
    with pytest.raises(FormatError, match="the first is 2"):
        store.trust.set(1, Trust.OWN)
    assert calls == [0, 1]
    assert store.sources.get(1).trust is Trust.FOREIGN


def test_changing_trust_of_an_own_source_checks_no_traces(store):
    """The list of allowed instructions is for traces of foreign sources."""
    add(store, with_sketch(1, EVIL))
    assert [store.trust.set(1, trust) for trust in (Trust.VERIFIED, Trust.OWN)] == [0, 0]


def test_own_source_overrides_tvm_version_of_a_merged_source(store):
    """It does so however trusted the merged source is."""
    old, new = (make_workload(1, tvm_version=version) for version in ("0.25.0", "0.27.0"))
    store.records.add([make_measurement(0, workload=old)], FOREIGN)
    with store._db.transaction() as connection:
        connection.execute(schema.source.update().values(store="f" * 32))
    store.trust.set(1, Trust.OWN)
    store.records.add([make_measurement(1, workload=new)], OWN)
    store._loader._workloads.clear()
    assert store.workloads.get(1).tvm_version == "0.27.0"
    # Among own sources the first one decides.
    with Store(":memory:") as other:
        for version in ("0.27.0", "0.26.0"):
            workload = make_workload(1, tvm_version=version)
            other.records.add([make_measurement(0, workload=workload)], Source(version))
        assert other.workloads.get(1).tvm_version == "0.27.0"


def test_source_summaries_count_records(store):
    add(store, *(make_measurement(n) for n in range(3)))
    foreign = [make_measurement(5, None), make_measurement(6, session=make_session())]
    add(store, *foreign, source=FOREIGN)
    store.records.add([], Source("nothing"))
    store.batches.add([], Source("empty", SourceKind.LIVE, Trust.VERIFIED))
    store.trust.retract([1, 5], "wrong")
    rows = store.sources.summaries()
    assert [(row.name, row.records, row.served, row.retracted) for row in rows] == [
        ("own", 3, 2, 1),
        ("foreign", 2, 0, 1),
        ("empty", 0, 0, 0),
    ]
    assert [row.reason for row in rows] == [None] * 3
    own, _, empty = rows
    digest = store.sources.numbered([own.id])[0][1]
    assert (own.trust, own.store, own.digest) == (Trust.OWN, store.key, digest)
    assert (empty.kind, empty.trust) == (SourceKind.LIVE, Trust.VERIFIED)
    assert store.trust.retract_source(own.id, "busy machine") == 2
    own = store.sources.summaries()[0]
    assert (own.served, own.retracted, own.reason) == (0, 3, "busy machine")


def test_count_returns_number_of_served_records_of_ids_sources_and_sessions(store):
    session = make_session()
    add(store, *(make_measurement(n, session=session if n > 2 else None) for n in range(5)))
    add(store, make_measurement(9), source=FOREIGN)
    count = store.answers.count
    assert (count(), count([1, 1, 6]), count([1], [1]), count([], [2])) == (0, 1, 5, 0)
    assert (count([], [], [1]), count([1, 4], [], [1])) == (2, 3)
    # More records than a statement takes parameters.
    assert count(range(1, 40_000)) == 5
    assert store.trust.retract_session(1, "x") == 2
    assert count(range(1, 40_000)) == 3
    assert store.trust.retract_session(1, "again") == 0


def test_find_returns_sessions_by_key_id_or_digest(store):
    session = make_session()
    store.sessions.add(session)
    store.sessions.add(make_session(1))
    digest = session.digest.hex()
    for text in (session.key, "1", digest, digest[:8].upper()):
        assert store.sessions.find(text) == [1]
    for text in ("", "9", "no", "zzzz", digest + "00", "²", "9" * 30):
        assert store.sessions.find(text) == []


def test_missing_sources_and_sessions_are_reported(store):
    store.records.add([make_measurement(session=make_session())], OWN)
    with pytest.raises(NotFoundError, match="7"):
        store.trust.set(7, Trust.OWN)
    for retract in (store.trust.retract_source, store.trust.retract_session):
        with pytest.raises(NotFoundError, match="7"):
            retract(7, "x")
        with pytest.raises(UsageError, match="reason"):
            retract(1, "")
    assert served(store) == [1]

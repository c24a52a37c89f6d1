"""Retractions and served records, compared with a model after random changes."""

from itertools import count, product

import pytest
from builders import make_measurement, make_session, make_target, make_trace, make_workload
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from tunedb import identity
from tunedb.maintenance import check
from tunedb.records import Measurement, Program, Session, Source, SourceKind, Status, Trace, Trust
from tunedb.storage import schema, statements
from tunedb.storage.retractions import ALIASES, SUBJECTS, Retraction, is_retracted
from tunedb.storage.store import Store
from tunedb.storage.trust import insert_retractions

#: Keys of other databases: one that a source comes from, and one that nothing comes from.
THEIRS, OTHERS = "f" * 32, "e" * 32

_fresh = count(1)

#: Subjects of retractions of records.
OF_RECORDS = [subject for subject in SUBJECTS if subject != ALIASES]


def add_source(store, name, *, key=None, trust=Trust.OWN):
    """Add a source, also of another database as a merge would; return its id and digest."""
    key = key or store.key
    digest = identity.digest("source", key.encode(), name.encode())
    with store._db.transaction() as connection:
        row = {"digest": digest, "name": name, "kind": SourceKind.FILE.value, "store": key}
        row |= {"trust": int(trust), "created_at": 1, "tunedb_version": "0"}
        inserted = connection.execute(schema.source.insert().values(row))
    return inserted.inserted_primary_key[0], digest


def add_under(store, measurement, source_id, trust):
    """Insert a measurement under any source, unless it is known; return its id."""
    with store._db.transaction() as connection:
        row = store.batches._rows.measurement(connection, measurement, source_id, int(trust))
        statements.insert["program"].many(connection, [row["_program"]])
        statements.insert["measurement"].many(connection, [row])
        m = schema.measurement.c
        return connection.scalars(select(m.id).where(m.digest == measurement.digest)).one()


def add_retraction(store, digest, key, subject="measurement"):
    with store._db.transaction() as connection:
        return insert_retractions(connection, [Retraction(digest, key, subject, "why")])[0]


def served(store, id_):
    m = schema.measurement.c
    return bool(store._db.select(select(m.served).where(m.id == id_))[0].served)


@pytest.mark.parametrize(
    ("of", "by", "counts"),
    [
        ("ours", "ours", True),
        ("theirs", "ours", True),
        ("theirs", "theirs", True),
        ("ours", "theirs", False),
        ("ours", "others", False),
        ("theirs", "others", False),
    ],
)
def test_retraction_counts_if_issued_by_us_or_by_the_database_of_the_source(store, of, by, counts):
    """It does not matter whether the record or the retraction comes first."""
    keys = {"ours": store.key, "theirs": THEIRS, "others": OTHERS}
    ids = []
    for number, (subject, later) in enumerate(product(OF_RECORDS, [False, True]), 1):
        session = make_session(number)
        measurement = make_measurement(0, workload=number, session=session)
        source_id, digest = add_source(store, f"them {number}", key=keys[of])
        named = {"measurement": measurement.digest, "source": digest, "session": session.digest}
        if later:
            assert add_retraction(store, named[subject], keys[by], subject) == 1
        id_ = add_under(store, measurement, source_id, Trust.OWN)
        if not later:
            assert served(store, id_)
            assert add_retraction(store, named[subject], keys[by], subject) == 1
        ids.append(id_)
        assert (served(store, id_), store.records.get(id_).retracted) == (not counts, counts)
        assert store.counts().retracted == (number if counts else 0)
        assert [r.id for r in store.records.top_k([number])] == ([] if counts else [id_])
        assert [a.id for a in store.answers.iterate()] == ([] if counts else ids)


def test_retraction_is_stored_once_per_database_and_counts_under_any_subject(store):
    """The subject is a label: databases that state it differently must serve the same records."""
    source_id, digest = add_source(store, "us")
    id_ = add_under(store, make_measurement(), source_id, Trust.OWN)
    assert add_retraction(store, digest, THEIRS, "session") == 1
    assert add_retraction(store, digest, THEIRS, "session") == 0
    assert served(store, id_)
    assert add_retraction(store, digest, store.key, "session") == 1
    assert not served(store, id_)
    assert store.counts().retracted == 1


def test_better_source_restores_a_record_of_a_retracted_source(store):
    """Nobody retracted the record itself; the retraction of its session stays."""
    plain, throttled = make_measurement(0), make_measurement(1, session=make_session())
    stranger = Source("stranger", SourceKind.FILE, Trust.FOREIGN)
    ids, _ = store.batches.add([plain, throttled], stranger)
    store.trust.retract_source(1, "who is that?")
    store.trust.retract_session(1, "throttled")
    assert store.batches.add([plain, throttled], Source("mine"))[1] == 0
    assert [served(store, id_) for id_ in ids] == [True, False]
    assert [store.records.get(id_).retracted for id_ in ids] == [False, True]
    store.trust.retract_source(2, "mine, too")
    assert not served(store, ids[0])


def test_empty_table_of_retractions_costs_one_lookup():
    """Without retractions a query looks up no source and no session of a record."""
    statement = select(schema.measurement.c.id).where(~is_retracted(schema.measurement.c))

    def steps(store):
        taken = []
        driver = store._db.reader().connection.driver_connection
        driver.set_progress_handler(lambda: taken.append(1), 1)
        assert len(store._db.select(statement)) == 50
        driver.set_progress_handler(None, 1)
        return len(taken)

    with Store(":memory:") as store:
        store.records.add([make_measurement(number) for number in range(50)], Source("us"))
        empty = steps(store)
        add_retraction(store, b"x" * 16, OTHERS)
        assert steps(store) > empty + 50 * 20


class Universe:
    """Sources, sessions and measurements that no other example has, and a model of the rules."""

    def __init__(self, store):
        self.store, self.number = store, next(_fresh)
        ours = store.key
        self.keys = {"ours": ours, "theirs": THEIRS, "others": OTHERS}
        self.trust = [Trust.OWN, Trust.VERIFIED, Trust.FOREIGN, Trust.FOREIGN]
        self.stores = [ours, ours, ours, THEIRS]
        self.names = [f"{self.number}/{index}" for index in range(4)]
        self.sources = [
            add_source(store, *named, key=key, trust=trust)
            for *named, key, trust in zip(self.names, self.stores, self.trust, strict=True)
        ]
        self.sessions = [Session(f"{self.number}/{n}", n, b"{}") for n in range(2)]
        self.measurements = [self.make(index) for index in range(8)]
        #: Index of a measurement → its source; retractions with their issuers.
        self.known, self.retractions = {}, set()

    def make(self, index):
        """Return a measurement: of two targets, of no or either session, some not valid."""
        trace = make_trace(index)
        if index == 6:
            trace = Trace(b"[]", trace.tail, b"[[],[],[]]")
        program = Program(make_workload(self.number), make_target(index % 2), trace)
        return Measurement(
            program,
            None if index == 5 else (0.1 + index % 3,),
            Status.FAILED if index == 5 else Status.OK,
            session=[None, *self.sessions][index % 3],
        )

    def add(self, index, source):
        """Add a measurement, as an import does for our sources."""
        before = self.known.get(index)
        if self.stores[source] == THEIRS:
            if before is None:
                id_, trust = self.sources[source][0], self.trust[source]
                add_under(self.store, self.measurements[index], id_, trust)
                self.known[index] = source
            return
        self.store.batches.add([self.measurements[index]], Source(self.names[source]))
        if before is None or (
            self.trust[source] >= Trust.VERIFIED and self.trust[before] < self.trust[source]
        ):
            self.known[index] = source

    def retract(self, subject, index, by):
        """Add a retraction of a row that need not exist."""
        digest = {
            "measurement": lambda: self.measurements[index].digest,
            "source": lambda: self.sources[index % 4][1],
            "session": lambda: self.sessions[index % 2].digest,
        }[subject]()
        new = add_retraction(self.store, digest, self.keys[by], subject)
        assert new == ((digest, self.keys[by]) not in self.retractions)
        self.retractions.add((digest, self.keys[by]))

    def believe(self, source, trust):
        """Change the trust of a source; assert that it returns the number of changed records."""
        before = self.all_served()
        changed = self.store.trust.set(self.sources[source][0], trust)
        self.trust[source] = trust
        assert changed == len(before ^ self.all_served())

    def is_retracted(self, index):
        source, session = self.known[index], self.measurements[index].session
        named = {self.measurements[index].digest, self.sources[source][1]}
        named |= {session.digest} if session is not None else set()
        heard = {self.keys["ours"], self.stores[source]}
        return any((digest, key) in self.retractions for digest in named for key in heard)

    def all_served(self):
        """Return the measurements that must be served."""
        return {
            index
            for index, source in self.known.items()
            if self.measurements[index].is_valid
            and self.trust[source] >= Trust.VERIFIED
            and not self.is_retracted(index)
        }

    def check(self):
        """Assert that the database agrees with the model."""
        store = self.store
        workload = store.workloads.id_of(make_workload(self.number).digest)
        if workload is None:
            assert not self.known
            return
        by_digest = {m.digest: index for index, m in enumerate(self.measurements)}
        ids = {}
        for record in store.records.iterate(workload):
            index = by_digest[record.measurement.digest]
            ids[index] = record.id
            assert record.source.name == self.names[self.known[index]]
            assert record.source.trust == self.trust[self.known[index]]
            assert record.retracted == self.is_retracted(index)
            assert served(self.store, record.id) == (index in self.all_served())
        assert ids.keys() == self.known.keys()
        for target in range(2):
            target_id = store.targets.id_of(make_target(target).digest)
            expected = [index for index in self.all_served() if index % 2 == target]
            means = {index: self.measurements[index].run_secs[0] for index in expected}
            order = sorted(expected, key=lambda index: (means[index], ids[index]))
            found = [] if target_id is None else store.answers.best_ids([workload], [target_id], 10)
            assert found == [ids[index] for index in order]


changes = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 7), st.integers(0, 3)),
        st.tuples(
            st.just("retract"),
            st.sampled_from(OF_RECORDS),
            st.integers(0, 7),
            st.sampled_from(["ours", "theirs", "others"]),
        ),
        st.tuples(st.just("believe"), st.integers(0, 3), st.sampled_from(Trust)),
    ),
    max_size=20,
)


@settings(max_examples=examples(80))
@given(changes=changes)
def test_top_k_never_returns_untrusted_retracted_failed_or_other_targets_records(store, changes):
    """Promise 11; after any changes `served` also equals a derivation from scratch."""
    universe = Universe(store)
    for what, *arguments in changes:
        getattr(universe, what)(*arguments)
    universe.check()


def test_check_finds_no_problems_after_retractions_and_changes_of_trust(store, store_url):
    universe = Universe(store)
    for index in range(8):
        universe.add(index, index % 4)
    for of in (("session", 0, "ours"), ("measurement", 3, "theirs"), ("measurement", 0, "theirs")):
        universe.retract(*of)
    for source in (2, 3):
        universe.believe(source, Trust.VERIFIED)
    universe.check()
    assert check.check(store_url).problems == []


def test_check_finds_a_served_record_of_a_retracted_session(store, store_url):
    store.records.add([make_measurement(0, session=make_session())], Source("us"))
    store.trust.retract_session(1, "throttled")
    with store._db.transaction() as connection:
        # As if somebody wrote before the server had guards.
        trigger = "ALTER TABLE measurement {} TRIGGER tunedb_guard"
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql(trigger.format("DISABLE"))
        connection.execute(schema.measurement.update().values(served=1))
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql(trigger.format("ENABLE"))
    (problem,) = check.check(store_url).problems
    assert "served is 1, not 0" in str(problem)


def test_queries_leave_out_records_of_retracted_sessions_and_sources(store):
    """Models do not learn from them, and sessions are not compared by them."""
    first, second = make_session(0), make_session(1)
    for session in (first, second):
        store.records.add([make_measurement(n, session=session) for n in range(3)], Source("us"))
    assert len(store.runs.shared_times(1)) == 6
    assert len(store.programs.measured([1], 1, [1, 2])) == 6
    store.trust.retract_session(2, "throttled")
    assert store.runs.shared_times(1) == []
    assert len(store.programs.measured([1], 1, [1, 2])) == 3
    store.trust.retract_source(1, "all of it")
    assert store.programs.measured([1], 1, [1, 2]) == []
    assert list(store.answers.iterate()) == []

"""Statements of strangers about own records and sessions do not change own facts."""

from contextlib import closing

import pytest
from builders import OWN, make_measurement, make_session
from exchanges import THEIRS, Given
from fake_sets import Steps

from tunedb.exchange.database_peer import DatabasePeer
from tunedb.exchange.merge import merge
from tunedb.exchange.sync import pull
from tunedb.launches import Launch
from tunedb.models import sessions
from tunedb.records import Failure, FailureKind, Phase, Session, Source, Trust
from tunedb.results import NewModel
from tunedb.storage import schema
from tunedb.storage.exchange_types import Chunk
from tunedb.storage.store import Store

CRASH = Failure(FailureKind.CRASH, Phase.RUN, "illegal instruction")
#: The number of that kind among failures to train on.
CRASHED = list(FailureKind).index(CRASH.kind) + 1
TIMEOUT = Failure(FailureKind.TIMEOUT, Phase.RUN, "a lie", 9.0)
CABLE = Failure(FailureKind.INFRASTRUCTURE, Phase.RUN, "a lie about a cable")
FAST = Launch("fast_kernel", 64, (64, 1, 1), (1, 1, 1), seconds=1e-9)
SLOW = Launch("my_kernel", 32, (32, 1, 1), (4, 1, 1), seconds=1e-3)

RUN = b'{"cpu":"mine","run":{"key":"run","trials":12}}'
MODEL = NewModel(b"m" * 16, "ranker", b"{}", b"t" * 16, {}, None)

#: A feature set without rows.
NO_FEATURES = Steps("none", columns=("a",))


def take(store, path, **options):
    with closing(DatabasePeer(path)) as peer:
        return merge(store, peer, **options)


@pytest.fixture
def stranger(makes):
    """A function that makes a stranger's database with our records and statements about them."""

    def make(store, *, failures=(), launches=(), records=()):
        path = makes.empty(THEIRS)
        with Store(path) as theirs:
            theirs.records.add(list(records), Source("liar"))
            if store.url.drivername.startswith("sqlite"):
                take(theirs, store.url.database)
            else:
                pull(theirs, store.url.render_as_string(hide_password=False))
            theirs.batches.add_failures(failures)
            theirs.launches.add(launches)
        return path

    return make


def trust(store, name, trust):
    sources = store.sources.summaries()
    (source,) = [row for row in sources if (row.name, row.store) == (name, THEIRS)]
    store.trust.set(source.id, trust)
    return source.id


def test_attack_5_foreign_failures_do_not_replace_failure_of_own_record(store, stranger):
    """An earlier release showed them, and used them for training and for known programs."""
    failed = make_measurement(1, None, failure=CRASH, session=make_session())
    store.records.add([failed], OWN)
    path = stranger(store, failures=[(failed, TIMEOUT), (failed, CABLE)])
    assert take(store, path).failures == 2
    assert store.records.get(1).measurement.failure == CRASH
    assert [row.failure for row in store.programs.measured([1], 1, [1])] == [CRASH]
    assert store.training.records(NO_FEATURES).failures.tolist() == [CRASHED]
    assert store.records.failures() == {"crash": 1}
    # They are stored, and shown with their source.
    assert [(row.content, row.source.trust) for row in store.records.unaccepted(1)] == [
        (TIMEOUT, Trust.FOREIGN),
        (CABLE, Trust.FOREIGN),
    ]


def test_attack_5_foreign_failure_explains_own_record_only_if_trusted(store, stranger):
    failed = make_measurement(1, None, session=make_session())
    store.records.add([failed], OWN)
    take(store, stranger(store, failures=[(failed, TIMEOUT)]))

    def assert_unexplained():
        assert store.records.get(1).measurement.failure is None
        assert store.programs.measured([1], 1, [1]) == []
        assert store.training.records(NO_FEATURES).failures.tolist() == [0]

    assert_unexplained()
    # It counts once its source is trusted.
    source = trust(store, "tuning", Trust.VERIFIED)
    assert store.records.get(1).measurement.failure == TIMEOUT
    assert [row.failure for row in store.programs.measured([1], 1, [1])] == [TIMEOUT]
    assert store.records.unaccepted(1) == []
    # It no longer counts after its source was retracted.
    store.trust.retract_source(source, "it lies")
    assert_unexplained()
    assert store.records.failures() == {}
    assert [row.content for row in store.records.unaccepted(1)] == [TIMEOUT]


def test_attack_5_foreign_infrastructure_failure_does_not_hide_own_trial(store, stranger):
    """A prediction for a failed program is evaluated, whatever a stranger calls the failure."""
    failed = make_measurement(1, None, failure=CRASH, measured_at=5)
    store.records.add([failed], OWN)
    store.models.add_predictions(store.models.add(MODEL), {1: 2.0})
    take(store, stranger(store, failures=[(failed, CABLE)]))
    assert [trial.mean for trial in store.training.trials()] == [None]
    assert store.training.measured_before([1], 10) == {1}


def test_foreign_failures_and_launches_of_their_own_records_count(store, stranger):
    theirs = make_measurement(2, None, failure=CRASH)
    ran = make_measurement(3)
    path = stranger(store, records=[theirs, ran], launches=[(ran, FAST)])
    take(store, path)
    assert [record.measurement.failure for record in store.records.iterate()] == [CRASH, None]
    assert store.records.failures() == {"crash": 1}
    assert store.training.records(NO_FEATURES).failures.tolist()[0] == CRASHED
    assert [row.launch for row in store.launches.iterate()] == [FAST]
    assert store.launches.for_record(2) == [FAST]
    assert store.records.unaccepted(1) == store.records.unaccepted(2) == []


def test_attack_5_foreign_launch_does_not_count_for_own_record(store, stranger):
    """An earlier release showed, exported and learnt from a kernel of 1 ns."""
    bare, launched = make_measurement(1), make_measurement(2)
    store.records.add([bare, launched], OWN)
    store.launches.add([(launched, SLOW)])
    path = stranger(store, launches=[(bare, FAST), (launched, FAST)])
    assert take(store, path).launches == 2
    assert (store.launches.for_record(1), store.launches.for_record(2)) == ([], [SLOW])
    assert [(row.record_id, row.launch) for row in store.launches.iterate()] == [(2, SLOW)]
    assert [row.content for row in store.records.unaccepted(2)] == [FAST]
    # That of a trusted source counts if the record has no own launch.
    source = trust(store, "tuning", Trust.VERIFIED)
    assert (store.launches.for_record(1), store.launches.for_record(2)) == ([FAST], [SLOW])
    assert [row.launch for row in store.launches.iterate()] == [FAST, SLOW]
    store.trust.retract_source(source, "it lies")
    assert [row.launch for row in store.launches.iterate()] == [SLOW]


def killed_run(store):
    """Store 4 records of a run of 12 trials; return their session."""
    session = Session("mine", 1_700_000_000_000_000, RUN)
    store.batches.add([make_measurement(n, session=session, occurrence=n) for n in range(4)], OWN)
    return session


def test_attack_4_merged_records_do_not_count_as_trials_of_own_session(store, stranger):
    session = killed_run(store)
    forged = [make_measurement(n, (0.1,), session=session, occurrence=n) for n in range(4, 11)]
    assert take(store, stranger(store, records=forged)).new == 7
    assert store.runs.trials(1) == (4, 3)
    assert [record.measurement.occurrence for record in store.runs.records(session)] == [0, 1, 2, 3]
    assert [id_ for id_, _ in store.runs.sessions_of_run("run")] == [1]


def test_attack_4_foreign_session_does_not_belong_to_own_run(store, stranger):
    """Such a session could end the run, or state fewer trials."""
    session = killed_run(store)
    ended = Session("theirs", session.started_at + 1, RUN.replace(b'":12', b'":12,"ended":true'))
    assert ended.fingerprint != RUN
    take(store, stranger(store, records=[make_measurement(99, session=ended)]))
    assert store.counts().sessions == 2
    assert store.runs.sessions_of_run("run") == [(1, session)]
    # A session without any record is an own one.
    own = Session("own", session.started_at + 2, ended.fingerprint)
    store.sessions.add(own)
    assert store.runs.sessions_of_run("run") == [(1, session), (3, own)]


def measured(session, factor, numbers):
    return [
        make_measurement(n, (1e-3 * (n + 1) * factor,), session=session, occurrence=17)
        for n in numbers
    ]


#: Sessions of two days on one machine.
DAYS = [Session(f"day {n}", 1_700_000_000_000_000 + n, b'{"cpu":"mine"}') for n in (0, 1)]


def test_attack_4_foreign_records_in_own_sessions_do_not_change_factors(store, stranger):
    store.records.add(measured(DAYS[0], 1.0, range(8)), OWN)
    store.records.add(measured(DAYS[1], 1.3, range(8)), OWN)
    before = sessions.update(store)[0]
    lies = [
        make_measurement(n, (1e-3 * (n + 1) * 5**n,), session=DAYS[1], occurrence=n)
        for n in range(8)
    ]
    take(store, stranger(store, records=lies))
    (after,) = sessions.update(store)
    assert (after.factors[:2], after.sessions[:2]) == (before.factors, before.sessions)
    # They count separately, for their source.
    (other,) = after.sessions[2:]
    assert (other.subject, other.is_trusted, other.records) == ("source", False, 8)
    assert after.factors[2].machine < 0
    subjects = store.training.records(NO_FEATURES).subjects.tolist()
    assert subjects[:16] == [1] * 8 + [2] * 8
    assert set(subjects[16:]) == {-other.subject_id}


def test_attack_4_foreign_sessions_do_not_split_an_own_machine(store, stranger):
    """One fits the first day and contradicts the second; it must not separate the days."""
    store.records.add(measured(DAYS[0], 1.0, range(100)), OWN)
    store.records.add(measured(DAYS[1], 1.3, range(8)), OWN)
    before = sessions.update(store)[0]
    lie = Session("theirs", DAYS[0].started_at, b'{"cpu":"mine"}')
    lies = [
        make_measurement(n, (1e-3 * (n + 1) * (3**n if n < 8 else 1),), session=lie)
        for n in range(100)
    ]
    take(store, stranger(store, records=lies))
    (after,) = sessions.update(store)
    own = [n for n, one in enumerate(after.sessions) if one.is_trusted]
    assert tuple(after.factors[n] for n in own) == before.factors
    assert {after.factors[n].machine for n in own} == {0}
    # Known programs are looked for in the sessions of the own machine, not in those of a stranger.
    running = Session("now", DAYS[1].started_at + 9, b'{"cpu":"mine"}')
    assert set(store.runs.comparable(running, 1)) >= {2}


def test_merge_never_stores_predictions_or_models(store, stranger):
    """Peers do not give them, and a merge rejects rows of tables that are not exchanged."""
    path = stranger(store, records=[make_measurement(1)])
    with Store(path) as other:
        other.models.add_predictions(other.models.add(MODEL), {1: 9.0})
    take(store, path)
    assert store.training.trials() == []
    report = merge(store, Given([Chunk("prediction", [(1, 1, 9.0, 5)]), Chunk("model", [(1,)])]))
    assert report.rejected == 2
    assert store._db.select(schema.prediction.select()) == store.models.all() == []

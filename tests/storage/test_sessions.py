"""Sessions: which are comparable, and what they measured."""

from dataclasses import replace

import pytest
from builders import FOREIGN, add, make_measurement, make_session

from tunedb.identity import canonical_json
from tunedb.records import Failure, FailureKind, Phase, Session, Status
from tunedb.results import SessionFactor
from tunedb.storage.network_runs import NetworkRun, OperatorTime
from tunedb.system.host import session_class
from tunedb.system.roofline import Roofline


def session(number=0, text=b'{"cpu":"x","cores":2,"os":"a","tvm":"0.27"}'):
    return Session(f"session-{number}", 1_700_000_000_000_000 + number, text)


def test_session_class_ignores_os_python_tunedb_and_run():
    same = (
        b'{"cores":2,"cpu":"x","os":"b","tvm":"0.27"}',
        b'{"cores":2,"cpu":"x","os":"a","tvm":"0.27","python":"3.12","tunedb":"9"}',
        b'{"cores":2,"cpu":"x","run":{"key":"k","trials":64},"tvm":"0.27"}',
    )
    others = (
        b'{"cores":4,"cpu":"x","tvm":"0.27"}',
        b'{"cores":2,"cpu":"y","tvm":"0.27"}',
        b'{"cores":2,"cpu":"x","tvm":"0.28"}',
        b'{"cores":2,"cpu":"x","gpu":"z","tvm":"0.27"}',
        b'{"cores":2,"cpu":"x","evaluator":{"repeat":3},"tvm":"0.27"}',
        b'{"cores":2,"cpu":"x","remote":{"key":"pi"},"tvm":"0.27"}',
        b"{}",
    )
    assert {session_class(session(1, text)) for text in same} == {session_class(session())}
    assert session_class(session()) not in {session_class(session(1, text)) for text in others}
    # A session without a device has a class of its own.
    one, other = session(1, b'{"tvm":"0.27"}'), session(2, b'{"tvm":"0.27"}')
    assert session_class(one) != session_class(other)
    assert session_class(one) == session_class(replace(one))


NETWORK = NetworkRun(
    name="net",
    target="llvm",
    threads=2,
    untuned=2e-2,
    latency=1e-3,
    deviation=2e-4,
    tolerance=1e-4,
    operators=(OperatorTime("conv2d", "ab" * 16, 2, 1.5e-2, 7e-4, 1e7, 1e5),),
    roofline=Roofline(1e11, ((1e6, 1e11), (1e8, 1e10))),
)


def end_of_run(number, network):
    fingerprint = {"cpu": "x", "run": {"key": "k", "trials": 8, "network": network}}
    return session(number, canonical_json(fingerprint))


def test_networks_returns_runs_as_they_were_stored(store):
    later = replace(NETWORK, name="later", roofline=None, weight=2.0, latency_target=5e-3)
    for number, network in ((2, later), (1, NETWORK)):
        store.sessions.add(end_of_run(number, network.as_json()))
    assert [network for _, network in store.runs.networks()] == [NETWORK, later]
    assert repr(NETWORK).startswith("NetworkRun(name='net'") and "\n" not in repr(NETWORK)
    assert NETWORK.runtime == pytest.approx(3e-4) and not NETWORK.is_accurate
    (operator,) = NETWORK.operators
    assert operator.limit_share(NETWORK.roofline) == pytest.approx(2e-4 / 7e-4)
    assert operator.limit_share(None) is None
    assert NETWORK.slower == ()
    slow = replace(operator, untuned=6e-4)
    assert replace(NETWORK, operators=(operator, slow)).slower == (slow,)


def test_invalid_or_foreign_network_runs_are_left_out(store):
    slow = NETWORK.as_json() | {"latency": "fast"}
    for number, network in enumerate((None, 3, {}, slow, {"name": "net"})):
        store.sessions.add(end_of_run(number, network))
    store.sessions.add(session(9, b'{"run":[]}'))
    foreign = end_of_run(10, NETWORK.as_json())
    add(store, make_measurement(session=foreign), source=FOREIGN)
    assert store.runs.networks() == []


def test_sessions_are_comparable_unless_a_factor_separates_them(store):
    sessions = [session(number) for number in range(4)] + [session(9, b'{"cpu":"other"}')]
    add(store, *(make_measurement(n, session=one) for n, one in enumerate(sessions)))
    assert store.runs.comparable(session(99), 1) == [1, 2, 3, 4]
    assert store.runs.comparable(sessions[4], 1) == [5]
    assert store.runs.comparable(session(99, b'{"cpu":"third"}'), 1) == []
    # The newest is the reference: 1 is slower, 2 is another machine, 3 has no factor.
    rows = [(1, 0, 1.3), (2, 1, 1.0), (4, 0, 1.05)]
    factors = [SessionFactor("session", *row, 0.01, 40) for row in rows]
    store.runs.set_factors(1, factors)
    assert store.runs.comparable(session(99), 1) == [3, 4]
    assert store.runs.comparable(session(99), 2) == [1, 2, 3, 4]


def test_measured_returns_trusted_times_and_known_failures_of_sessions(store):
    failure = Failure(FailureKind.CRASH, Phase.RUN, "gone")
    here, elsewhere = session(0), session(1, b'{"cpu":"other"}')
    ids = add(
        store,
        make_measurement(0, (0.002,), session=here),
        make_measurement(0, (0.001, 0.003), session=here, occurrence=1),
        make_measurement(1, (1e10,), session=here, status=1, failure=failure),
        make_measurement(2, (1e10,), session=here, status=1),
        make_measurement(3, session=elsewhere),
        make_measurement(4),
        make_measurement(5, workload=1, session=here),
        make_measurement(6, target=1, session=here),
        make_measurement(7, session=here),
        make_measurement(9, (1e-9,), session=here, status=Status.CUT_SHORT),
    )
    timeout = Failure(FailureKind.TIMEOUT, Phase.RUN, "too long", 1.0)
    failed = make_measurement(10, (1e10,), session=here, status=1, failure=timeout)
    add(store, make_measurement(8, session=here, occurrence=8), failed, source=FOREIGN)
    store.trust.retract([ids[8]], "wrong")
    found = store.programs.measured([1], 1, [1])
    assert [(one.id, one.run_secs, one.mean, one.failure) for one in found] == [
        (ids[0], (0.002,), 0.002, None),
        (ids[1], (0.001, 0.003), 0.002, None),
        (ids[2], None, float("inf"), failure),
    ]
    assert found[0].digest == make_measurement(0).program.digest
    assert found[0].program_id == found[1].program_id
    assert [one.id for one in store.programs.measured([1], 1, [1], after=ids[1])] == [ids[2]]
    learnt = Failure(FailureKind.INFRASTRUCTURE, Phase.RUN, "it was the cable", 2.0)
    again = make_measurement(1, (1e10,), session=here, status=1, failure=failure)
    store.batches.add_failures([(again, learnt)])
    assert store.programs.measured([1], 1, [1])[2].failure == learnt
    assert store.programs.measured([1], 1, []) == []
    # A failed record counts once an own source has it.
    add(store, failed)
    assert store.programs.measured([1], 1, [1])[3].failure == timeout


def test_runs_returns_sessions_trials_and_records_of_a_run(store):
    mine = [
        session(number, b'{"cpu":"x","run":{"key":"%s","trials":8}}' % key)
        for number, key in enumerate([b"one", b"two", b"one"])
    ]
    add(
        store,
        *(make_measurement(n, session=one) for n, one in enumerate(mine)),
        make_measurement(9, session=mine[0], occurrence=3),
        make_measurement(9, session=mine[0], occurrence=5, workload=1),
        make_measurement(9, session=make_session()),
    )
    assert [id_ for id_, _ in store.runs.sessions_of_run("one")] == [1, 3]
    assert store.runs.sessions_of_run("three") == []
    assert store.runs.trials(1) == (3, 5)
    assert store.runs.trials(99) == (0, -1)
    assert [r.measurement.occurrence for r in store.runs.records(mine[0])] == [0, 3, 5]
    assert store.runs.records(session(77)) == []


def test_newest_of_others_returns_newest_record_of_other_sessions(store):
    mine, other = session(1), session(2)
    assert store.runs.newest_of_others(mine) == 0
    add(store, make_measurement(1, session=mine), make_measurement(2, session=mine))
    assert store.runs.newest_of_others(mine) == 0
    assert store.runs.newest_of_others(other) == 2
    add(store, make_measurement(3, session=other), make_measurement(4, session=mine))
    assert store.runs.newest_of_others(mine) == 3
    add(store, make_measurement(5, session=None))
    assert store.runs.newest_of_others(mine) == 5

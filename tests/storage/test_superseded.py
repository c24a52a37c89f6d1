"""Records that lost their rank in a final, on SQLite and PostgreSQL alike."""

import random
from dataclasses import replace

import orjson
import pytest
from builders import FOREIGN, OWN, add, make_measurement, make_session, make_target, make_workload
from effort import spread

from tunedb.records import Session, Source, Status, Trust
from tunedb.run_times import mean_of
from tunedb.storage.superseded import extra_of_final
from tunedb.storage.workloads import Neighbour
from tunedb.system.host import machine_class

LOST, WON = extra_of_final(None, won=False), extra_of_final(None, won=True)

SOURCES = {
    "own": OWN,
    "other": Source("other"),
    "verified": Source("verified", trust=Trust.VERIFIED),
    "foreign": FOREIGN,
}

#: Fingerprints of sessions; the first four and the next two are of one machine each.
FINGERPRINTS = (
    *({"cpu": "x", "cores": 2, "os": "a"}, {"cpu": "x", "cores": 2, "run": {"key": "k"}}),
    {"cores": 2, "cpu": "x", "tunedb": "2", "python": "3.13"},
    {"cores": 2, "cpu": "x", "evaluator": {"cold_weights": True, "repeat": 3}},
    *({"gpu": "g", "threads": {"count": 4, "pinned": False}}, {"os": 1, "gpu": "g"}),
    {"gpu": "g", "threads": {"count": 4, "pinned": False}, "tvm_ffi": "1"},
    *({"cpu": "x", "cores": 4}, {"cpu": None, "cores": 2}, {"cpu": "x", "cores": "2"}),
    # Without a device each is a class by itself.
    *({"cores": 2}, {"cores": 2}, {}),
)
SESSIONS = tuple(
    Session(f"class-{number}", number, orjson.dumps(fingerprint, option=orjson.OPT_SORT_KEYS))
    for number, fingerprint in enumerate(FINGERPRINTS)
)


def random_row(rng):
    """Return the fields of a record, its source, and true if it is to be retracted."""
    secs = rng.choice([(0.1,), (0.2, 0.3), (0.2,), (0.1, 0.1, 0.4)])
    fields = {
        "target": rng.choice([0, 0, 0, 1]),
        "status": rng.choice([Status.OK] * 8 + [Status.FAILED, Status.CUT_SHORT]),
        "session": rng.choice([*SESSIONS, *3 * SESSIONS[:6], None]),
        "extra": rng.choice([None, None, LOST, WON, b'{"search":{"other":"aa"}}']),
        "measured_at": rng.randrange(4),
    }
    source = rng.choice(["own", "verified", *SOURCES])
    return make_measurement(rng.randrange(3), secs, **fields), source, rng.random() < 0.1


def supersedes(final, earlier):
    """Say in Python what :mod:`tunedb.storage.superseded` says in SQL."""
    (one, its_source), (other, other_source) = final, earlier
    return (
        one.extra == LOST
        and one.program == other.program
        and one.measured_at > other.measured_at
        and (its_source == other_source or SOURCES[its_source].trust == Trust.OWN)
        and None not in (one.session, other.session)
        and machine_class(one.session) == machine_class(other.session)
    )


@pytest.mark.parametrize("seed", spread(range(12), 2))
def test_best_records_are_those_that_no_final_superseded(store, seed):
    rng = random.Random(seed)
    workload, k = make_workload(seed), rng.randrange(20)
    batches = {source: [] for source in SOURCES}
    for occurrence in range(120):
        measurement, source, is_retracted = random_row(rng)
        program = replace(measurement.program, workload=workload)
        measurement = replace(measurement, program=program, occurrence=occurrence)
        batches[source].append((measurement, is_retracted))
    served, retracted = {}, []
    for source, batch in batches.items():
        ids = add(store, *(measurement for measurement, _ in batch), source=SOURCES[source])
        for id_, (measurement, is_retracted) in zip(ids, batch, strict=True):
            if is_retracted:
                retracted.append(id_)
            elif source != "foreign" and measurement.is_valid:
                served[id_] = measurement, source
    store.trust.retract(retracted, "model")
    ranked = [
        (mean_of(record[0].run_secs), id_)
        for id_, record in served.items()
        if not any(supersedes(final, record) for final in served.values())
    ]
    expected = [id_ for _, id_ in sorted(ranked)]
    workload_id = store.workloads.id_of(workload.digest)
    assert 0 < len(expected) < len(served)
    assert [record.id for record in store.records.top_k(workload_id, None, k)] == expected[:k]
    structures = {(sketch, tail) for sketch, tail, _ in store.programs.structures()}
    for number in (0, 1):
        digest = make_target(number).digest
        target_id = store.targets.id_of(digest)
        of_target = [id_ for id_ in expected if served[id_][0].program.target.digest == digest]
        assert store.answers.best_ids([workload_id], [target_id], k) == of_target[:k]
        ids = store.answers.best_ids_with([workload_id], [target_id], k, structures)
        assert ids == of_target[:k]
        corrected = store.runs.top_k_corrected([workload_id], target_id, 99)
        assert [record.id for record in corrected] == of_target
        where = f"WHERE workload_id = {workload_id} AND target_id = {target_id}"
        best = store._db.plain(f"SELECT record_id FROM v_best {where}")
        assert [row[0] for row in best] == of_target[:1]
        (task,) = store._db.plain(f"SELECT best_seconds FROM v_tasks {where}") or [(None,)]
        assert task[0] == min((mean for mean, id_ in ranked if id_ in of_target), default=None)
    (summary,) = (row for row in store.workloads.find() if row.id == workload_id)
    assert summary.best == min((mean for mean, _ in ranked), default=None)
    # They stay valid.
    assert {id_ for id_, _, _ in store.records.history(workload_id)} == set(served)
    assert store.answers.count(record_ids=list(served)) == len(served)


def test_the_outcome_of_a_final_is_beside_what_a_search_noted():
    before = b'{"search":{"operators":["tile"]}}'
    won = extra_of_final(before, won=True)
    assert won == b'{"final":"won","search":{"operators":["tile"]}}'
    assert extra_of_final(won, won=False) == b'{"final":"lost","search":{"operators":["tile"]}}'


def test_only_what_is_measured_before_a_final_is_superseded_until_it_is_retracted(store):
    def ranked():
        return [record.id for record in store.records.top_k(1)]

    one = make_measurement(0, session=make_session(), measured_at=1)
    lucky, final = add(store, one, replace(one, run_secs=(0.5,) * 3, measured_at=2, extra=LOST))
    assert ranked() == [final]
    # A known program has the times by which it ranks.
    assert [row.id for row in store.programs.measured([1], 1, [1])] == [final]
    (later,) = add(store, make_measurement(0, session=make_session(), measured_at=3))
    assert ranked() == [later, final]
    # Trials of a search are without finals.
    add(store, make_measurement(1, (0.75,), measured_at=4, extra=b'{"search":{}}'))
    assert store.answers.courses([Neighbour(1, (1,), 0.0, "exact")]) == [[0.001, 0.001, 0.75]]
    store.trust.retract([final], "throttled")
    assert ranked()[:2] == [lucky, later]


@pytest.mark.parametrize("trust", [Trust.FOREIGN, Trust.VERIFIED])
def test_others_do_not_demote_an_own_record(store, trust):
    """Whoever can add records could otherwise take the best one away."""
    lucky = make_measurement(0, session=make_session(), measured_at=1)
    (id_,) = add(store, lucky)
    final = replace(lucky, run_secs=(9.0,) * 99, measured_at=2, extra=LOST)
    add(store, final, source=Source("other", trust=trust))
    assert store.records.best(1).id == id_

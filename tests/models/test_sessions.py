import math
from dataclasses import dataclass

import numpy as np
import orjson
import pytest
from builders import FOREIGN, OWN, make_measurement
from hypothesis import given
from hypothesis import strategies as st

from tunedb.models import sessions
from tunedb.models.sessions import LEAST_SHARED, Pair, estimates, update
from tunedb.records import Session, Source

DAY = 86_400_000_000
START = 1_700_000_000_000_000


def make_session(number, cpu="x", **named):
    """Return a session of the day with that number."""
    fingerprint = orjson.dumps({"cpu": cpu} | named)
    return Session(f"session-{number}", START + DAY * number, fingerprint)


def measure(session, factor, numbers):
    """Return three repeats of each program, `factor` times as long, or by its own factor."""
    factors = np.broadcast_to(factor, len(numbers))
    times = [float(1e-3 * (1 + n) * x) for n, x in zip(numbers, factors, strict=True)]
    return [
        make_measurement(n, (time, 0.9 * time, 1.5 * time), session=session)
        for n, time in zip(numbers, times, strict=True)
    ]


def estimate(store, *parts, source=OWN):
    """Store (day, or a session or None, factor or factors, numbers); return the estimates."""
    for session, factor, numbers in parts:
        made = make_session(session) if isinstance(session, int) else session
        store.records.add(measure(made, factor, numbers), source)
    (found,) = estimates(store, [1])
    return found


def factors_of(estimated):
    return [factor.factor for factor in estimated.factors]


def machines_of(estimated):
    return [factor.machine for factor in estimated.factors]


def test_factor_of_slower_session_is_the_ratio_of_medians(store):
    # By hand: medians 1 : 1.32 for each program, so no spread; seven programs of eight are shared.
    found = estimate(store, (0, 1.0, range(8)), (9, 1.32, range(1, 10)))
    assert factors_of(found) == pytest.approx([1.0, 1.32])
    assert [factor.programs for factor in found.factors] == [7, 7]
    assert [factor.spread for factor in found.factors] == pytest.approx([0, 0], abs=1e-9)
    assert machines_of(found) == [0, 0]
    assert found.errors[0] is None
    assert found.errors[1] == pytest.approx(1e-4)
    assert [found.drifted(i) for i in range(2)] == [False, True]
    assert [one.started_at for one in found.sessions] == [START, START + 9 * DAY]


def test_pair_has_median_range_and_spread_of_ratios(empty):
    """Ratios of five programs by hand: median, range, and half of the 10th to 90th percentile."""
    ratios = [1.0, 1.1, 1.2, 1.3, 1.4]
    (pair,) = estimate(empty, (0, 1.0, range(5)), (1, ratios, range(5))).pairs
    assert (pair.first, pair.second, pair.programs) == (0, 1, 5)
    assert (pair.low, pair.factor, pair.high) == pytest.approx((1.0, 1.2, 1.4))
    assert pair.spread == pytest.approx(np.ptp(np.quantile(np.log(ratios), [0.1, 0.9])) / 2)


def test_times_of_repeated_records_of_a_session_are_pooled(empty):
    # The median of 0.9, 1, 1.5 and twice 2 is 1.5.
    again = [(n, (2e-3 * (1 + n),) * 2) for n in range(6)]
    other = {"session": make_session(1), "occurrence": 1}
    empty.records.add((make_measurement(*m, **other) for m in again), OWN)
    found = estimate(empty, *((day, 1.0, range(6)) for day in range(2)))
    assert factors_of(found) == pytest.approx([1.0, 1.5])


def test_update_stores_no_factors_for_one_session(empty):
    estimate(empty, (0, 1.0, range(6)))
    (found,) = update(empty)
    assert factors_of(found) == [1.0]
    assert empty.runs.factors(1) == []
    assert estimates(empty, [7]) == []


def test_update_replaces_factors_only_if_they_changed_and_no_records(store, monkeypatch):
    estimate(store, (0, 1.0, range(6)), (1, 1.3, range(6)))
    before = list(store.records.iterate())
    (found,) = update(store)
    assert list(store.records.iterate()) == before
    assert store.runs.factors(1) == list(found.factors)
    written = []
    monkeypatch.setattr(store.runs, "set_factors", lambda *args: written.append(args))
    update(store)
    assert written == [], "equal factors are not written again"
    monkeypatch.undo()
    taken = [r.id for r in before if r.measurement.session.key == "session-1"]
    store.trust.retract(taken, "the machine was throttled")
    update(store)
    assert [f.factor for f in store.runs.factors(1)] == [1.0, 1.0]


def test_records_without_session_get_a_factor_for_their_source(store):
    estimate(store, (None, 1.0, range(6)), source=Source("monday.json"))
    estimate(store, (None, 0.5, range(6)), source=Source("tuesday.json"))
    found = estimate(store, (0, 2.0, range(6)))
    # The start of the session is known; that of the logs is not.
    assert [factor.subject for factor in found.factors] == ["session", "source", "source"]
    assert factors_of(found) == pytest.approx([1.0, 0.5, 0.25])


def test_factors_are_estimated_separately_for_each_target(store):
    estimate(store, (0, 1.0, range(6)))
    times = [(number, (2e-3 * (1 + number),)) for number in range(6)]
    store.records.add([make_measurement(*m, target=1, session=make_session(1)) for m in times], OWN)
    assert [factors_of(one) for one in update(store)] == [[1.0], [1.0]]
    assert store.runs.factors(2) == []


def test_estimates_ignore_failed_and_invalid_times(store):
    times = [None] * 3 + [(0.0, 1e10)] * 3
    other = make_session(1)
    store.records.add([make_measurement(*m, session=other) for m in enumerate(times)], OWN)
    found = estimate(store, (0, 1.0, range(6)))
    assert found.pairs == ()
    assert factors_of(found) == [1.0, 1.0]


def test_sources_whose_ratios_scatter_become_different_machines(empty):
    """Ratios of two GPUs scatter: no factor makes their times comparable."""
    scatter = np.exp(np.random.default_rng(0).normal(1.2, 0.25, 40))
    estimate(empty, (None, 1.0, range(40)), source=Source("v100"))
    k80 = (None, scatter, range(40)), (None, 1.0, range(90, 95))
    found = estimate(empty, *k80, source=Source("k80"))
    # The larger one is machine 0.
    assert machines_of(found) == [1, 0]
    assert factors_of(found) == [1.0, 1.0]
    assert [f.spread for f in found.factors] == [None, None]
    assert not any(found.drifted(i) for i in range(2))


def test_few_similar_programs_do_not_join_machines(empty):
    """Two days on each of two GPUs: five programs that both happen to run alike join none."""
    scatter = np.exp(np.random.default_rng(1).normal(0, 0.4, 60))
    scatter[:LEAST_SHARED] = 1
    first = (0, 1.0, range(60)), (2, 1.1, range(5, 60))
    second = (1, scatter, range(60)), (3, 1.2 * scatter, range(60))
    found = estimate(empty, *first, *second, (4, 1.3, range(LEAST_SHARED)))
    assert machines_of(found)[:4] in ([0, 1, 0, 1], [1, 0, 1, 0])
    assert factors_of(found)[2:4] == pytest.approx([1.1, 1.2])


@pytest.mark.parametrize(
    ("third", "machines"),
    [
        # Without a fingerprint it joins the machine with most records.
        (None, [0, 0, 0]),
        (make_session(2, cpu="x"), [0, 0, 0]),
        (make_session(2, cpu="y"), [0, 0, 1]),
        (make_session(2, cpu="x", gpu="K80"), [0, 0, 1]),
        (Session("session-2", START + 2 * DAY, b"[1]"), [0, 0, 0]),
    ],
)
def test_sessions_with_few_shared_programs_are_assigned_by_hardware(third, machines, empty):
    few = third, 5.0, range(LEAST_SHARED - 1)
    found = estimate(empty, (0, 1.0, range(10)), (1, 1.3, range(10)), few)
    assert machines_of(found) == machines
    last = found.factors[2]
    assert (last.factor, last.programs, last.spread) == (1.0, 0, None)


def test_sessions_without_shared_programs_form_one_machine_per_hardware(empty):
    parts = [(make_session(number, cpu), 1.0, [number]) for number, cpu in enumerate("xyxyy")]
    assert machines_of(estimate(empty, *parts)) == [1, 0, 1, 0, 0]


@dataclass
class Fake:
    """The fields of a MeasuredSession that the arithmetic reads."""

    subject_id: int
    records: int
    subject: str = "session"
    hardware: tuple = ("", "")
    is_trusted: bool = True


@given(factors=st.lists(st.floats(0.2, 5.0), min_size=2, max_size=6), seed=st.integers(0, 1000))
def test_factors_of_a_chain_of_sessions_are_exact_without_noise(factors, seed):
    """Each session shares programs with its neighbours alone; without noise all is exact."""
    rng = np.random.default_rng(seed)
    rows = [
        (program, index + 1, np.float64(1e-3 * (1 + program) * factor).tobytes())
        for index, factor in enumerate(factors)
        for program in range(index * LEAST_SHARED, (index + 2) * LEAST_SHARED)
    ]
    days = [Fake(index + 1, int(rng.integers(1, 99))) for index in range(len(factors))]
    found = sessions._estimate(1, days, sorted(rows))
    assert set(machines_of(found)) == {0}
    assert factors_of(found) == pytest.approx(np.array(factors) / factors[0])


def test_factors_of_noisy_sessions_have_small_errors_and_correct_spread(empty):
    """Three sessions with 5 % noise share 200 programs."""
    truth, rng = [1.0, 1.2, 0.9], np.random.default_rng(0)
    noise = np.exp(0.05 * rng.standard_normal((3, 200)))
    days = enumerate(zip(truth, noise, strict=True))
    found = estimate(empty, *((day, one * factors, range(200)) for day, (one, factors) in days))
    assert factors_of(found) == pytest.approx(truth, rel=0.02)
    for index in (1, 2):
        assert 0.001 < found.errors[index] < 0.02
        assert found.drifted(index)
        # Of two sessions with 5 % each: 1.28 standard deviations of 7 %.
        assert found.factors[index].spread == pytest.approx(1.28 * 0.0707, rel=0.15)


def test_equal_noisy_sessions_are_rarely_reported_as_drift():
    rng = np.random.default_rng(0)
    told = 0
    for _ in range(200):
        times = np.exp(rng.normal(0, 0.03, (30, 2)))
        rows = [(p, s + 1, times[p, s].tobytes()) for p in range(30) for s in range(2)]
        told += sessions._estimate(1, [Fake(1, 1), Fake(2, 1)], rows).drifted(1)
    assert told <= 0.08 * 200


def test_significant_but_tiny_factor_is_not_drift(empty):
    found = estimate(empty, (0, 1.0, range(50)), (1, 1.005, range(50)))
    assert found.errors[1] < math.log(1.005)
    assert not found.drifted(1)


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=9),
    share=st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]),
)
def test_quantile_equals_numpy_quantile_of_each_part(sizes, share):
    rng = np.random.default_rng(len(sizes))
    parts = [np.sort(rng.standard_normal(size)) for size in sizes]
    starts = np.concatenate(([0], np.cumsum(sizes)))
    found = sessions.quantile(np.concatenate(parts), starts, share)
    assert found == pytest.approx([np.quantile(part, share) for part in parts])


def test_each_session_is_paired_with_at_most_16_later_ones():
    """100 sessions that measured five anchors: pairs with the next 16, and all factors."""
    factors = np.exp(np.linspace(0, 0.5, 100))
    days = [Fake(i + 1, 5) for i in range(100)]
    times = np.outer(np.arange(1.0, 6), factors)
    rows = [(p, s + 1, times[p, s].tobytes()) for p in range(5) for s in range(100)]
    found = sessions._estimate(1, days, rows)
    assert len(found.pairs) == sum(min(16, 99 - s) for s in range(100))
    assert factors_of(found) == pytest.approx(factors)


def test_verdict_depends_on_number_of_programs_and_spread():
    pairs = [(LEAST_SHARED - 1, 0.0), (LEAST_SHARED, 0.1), (LEAST_SHARED, 0.11)]
    verdicts = [Pair(0, 1, programs, 1.0, 1.0, 1.0, spread).verdict for programs, spread in pairs]
    assert verdicts == [None, True, False]


def test_sessions_returns_counts_of_sessions_and_sources(store):
    store.records.add(measure(make_session(3), 1.0, range(2)), OWN)
    store.records.add([make_measurement(5, None, session=make_session(3))], OWN)
    store.records.add([make_measurement(7, (1.0,), measured_at=START)], OWN)
    (found,) = store.runs.sessions().values()
    fields = ("subject", "subject_id", "started_at", "first", "records", "failed", "origin")
    assert [tuple(getattr(one, field) for field in fields) for one in found] == [
        ("source", 1, START, 4, 1, 0, OWN),
        ("session", 1, START + 3 * DAY, 1, 3, 1, make_session(3)),
    ]
    assert store.runs.sessions([2]) == {}


def test_top_k_corrected_orders_records_by_time_divided_by_factor(store):
    """Each record divided by the factor of its session, or of its source; others as they are."""
    estimate(store, (0, 1.0, range(1, 7)), (1, 2.0, range(7)))
    estimate(store, (None, 4.0, range(1, 7)), source=Source("log"))
    estimate(store, (0, 1.0, [0]), source=FOREIGN)
    update(store)
    found = store.runs.top_k_corrected([1], 1, 4)
    # Means are 1.133 of the median. Number 0 was measured by the second session alone, but for a
    # foreign source's record, which is never served.
    mean = 1e-3 * (1 + 0.9 + 1.5) / 3
    assert [one.seconds for one in found] == pytest.approx([mean, *[2 * mean] * 3])
    assert [one.factor for one in found] == pytest.approx([2.0, 1.0, 2.0, 4.0])
    assert [one.id for one in found] == [7, 1, 8, 14]
    assert {one.machine for one in found} == {0}
    assert store.runs.top_k_corrected([1], 1, 2) == found[:2]
    (structure,) = {(sketch, tail) for sketch, tail, _ in store.programs.structures()}
    assert store.runs.top_k_corrected([1], 1, 4, {structure}) == found
    assert store.runs.top_k_corrected([1], 1, 4, set()) == []
    store.runs.set_factors(1, [])
    raw = store.runs.top_k_corrected([1], 1, 2)
    assert [(one.id, one.factor, one.machine) for one in raw] == [(1, 1.0, 0), (7, 1.0, 0)]

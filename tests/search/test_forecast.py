"""Forecasts of the trials that a search takes."""

from math import inf

from builders import OWN, make_target
from hypothesis import given
from hypothesis import strategies as st
from small_data import matmul, trials

from tunedb.records import Signature
from tunedb.search.forecast import Curve, forecast, similar_curves


def falling(arrival, length, weight=1.0):
    """Return a curve that falls from 2 ms to 1 ms at the trial `arrival`."""
    return Curve([2e-3] * (arrival - 1) + [1e-3] + [3e-3] * (length - arrival), weight)


curves = st.builds(
    Curve,
    st.lists(st.one_of(st.just(inf), st.floats(1e-6, 1.0)), min_size=1, max_size=80),
    st.floats(1e-3, 1.0),
)


def test_forecast_returns_percentiles_of_settled_searches():
    told = forecast([falling(at, 100) for at in (10, 20, 30, 40, 50)])
    assert (told.earliest, told.trials, told.latest) == (10, 30, 50)
    assert (told.is_bound, told.curves, told.best_seconds) == (False, 5, None)


def test_search_arrives_within_5_percent_of_its_best_time():
    nearly, hardly = (
        Curve([2.0, second, *[1.5] * 20, 1.0, *[1.5] * 40]) for second in (1.04, 1.06)
    )
    assert (forecast([nearly] * 3).trials, forecast([hardly] * 3).trials) == (2, 23)


def test_forecast_counts_unsettled_search_only_up_to_its_arrival():
    told = forecast([falling(40, 50), falling(10, 100), falling(90, 200)])
    # At 10 a third has arrived. Of the two other searches one no longer counts from 40 on.
    assert (told.trials, told.is_bound) == (90, False)
    assert forecast([falling(10, 100), falling(40, 100), falling(90, 200)]).trials == 40


def test_forecast_is_a_bound_if_most_searches_have_not_settled():
    told = forecast([falling(10, 100), falling(40, 50), falling(45, 50), falling(48, 50)])
    assert (told.is_bound, told.trials) == (True, 48)


def test_forecast_counts_curves_by_weight():
    near, far = falling(10, 100, 1.0), falling(40, 100, 0.2)
    assert forecast([near, far, far, far]).trials == 10
    assert forecast([near, *[far] * 6]).trials == 40


def test_forecast_is_never_below_the_trials_so_far():
    some = [falling(at, 100) for at in (10, 20, 30)]
    told = forecast(some, trials=25, best_seconds=2e-3)
    assert (told.earliest, told.trials, told.latest) == (25, 25, 30)
    # Two of three had found their best by then.
    assert told.best_seconds == 2e-3
    assert forecast(some, trials=15, best_seconds=2e-3).best_seconds == 1e-3


def test_forecast_of_gain_ignores_curves_without_success_so_far():
    lame = Curve([inf] * 20 + [1e-3] * 40)
    told = forecast([lame, lame, falling(30, 100)], trials=5, best_seconds=4e-3)
    assert told.best_seconds == 2e-3
    assert forecast([lame] * 3, trials=5, best_seconds=4e-3).best_seconds == 4e-3


def test_forecast_returns_none_for_fewer_than_three_successful_searches():
    assert forecast([falling(10, 100)] * 2) is None
    assert forecast([falling(10, 100), falling(10, 100), Curve([inf] * 50), Curve([])]) is None
    assert forecast([]) is None


@given(st.lists(curves, max_size=8), st.integers(0, 100), st.sampled_from([None, 1e-3]))
def test_forecast_orders_its_percentiles(some, trials, best):
    told = forecast(some, trials=trials, best_seconds=best)
    if told is None:
        assert sum(min(one.seconds) < inf for one in some) < 3
        return
    assert max(trials, 1) <= told.earliest <= told.trials <= told.latest
    assert told.latest <= max(trials, *(len(one.seconds) for one in some))
    assert (told.best_seconds is None) == (best is None)
    assert best is None or 0 < told.best_seconds <= best


def test_similar_curves_returns_curves_of_similar_workloads_nearest_first(store):
    for number in range(5):
        store.records.add(trials(matmul(number), count=20 if number else 8), OWN)
    asked = store.workloads.id_of(matmul(1).digest)
    found = similar_curves(store, asked, make_target(0))
    # Number 0 has too few trials, number 1 is the one that was asked for.
    assert [len(one.seconds) for one in found] == [20] * 3
    # Number 2 is nearest.
    weights = [one.weight for one in found]
    assert weights == sorted(weights, reverse=True) and len(set(weights)) == 3
    assert found[0].seconds.count(inf) == 2
    assert forecast(found) is not None
    assert similar_curves(store, Signature("f", None, "softmax"), make_target(0)) == []

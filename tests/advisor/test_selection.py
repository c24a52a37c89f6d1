import gzip
import math

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from observing import PROFILED, inputs
from public_logs import GPU, needs_gpu_logs

from tunedb.advisor.inputs import raw
from tunedb.advisor.observations import Inputs
from tunedb.advisor.selection import correlations, select

X = np.array([1.0, 2, 3, 4, 5])
NOISE = np.array([1.0, -1, 1, -1, 0.5])


def test_select_reports_why_it_drops_inputs():
    found = select(inputs(d=NOISE, zero=0 * X, b=2 * X + 1, flat=0 * X + 7, a=X, none=math.nan * X))
    assert found.kept == ("a", "d")
    assert found.zero == ("zero",)
    assert found.constant == ("flat", "none")
    ((dropped, kept, r),) = found.correlated
    assert (dropped, kept) == ("b", "a")
    assert r == pytest.approx(1.0)


def test_select_ignores_sign_of_correlation_unless_signed():
    table = inputs(a=X, b=-X)
    assert select(table).kept == ("a",)
    assert select(table).correlated == (("b", "a", pytest.approx(-1.0)),)
    assert select(table, signed=True).kept == ("a", "b")


def test_only_kept_inputs_drop_correlated_ones():
    """c follows b, b follows a, but c does not follow a: b is gone, so c stays."""
    table = inputs(a=X, b=X + 0.9 * NOISE, c=X + 1.8 * NOISE)
    r = correlations(table.values)
    threshold = (min(r[0, 1], r[1, 2]) + r[0, 2]) / 2
    assert r[0, 2] < threshold
    assert select(table, threshold=threshold).kept == ("a", "c")


def test_select_keeps_correlation_equal_to_the_threshold():
    table = inputs(a=X, b=X + NOISE)
    r = float(correlations(table.values)[0, 1])
    assert select(table, threshold=r).kept == ("a", "b")
    assert select(table, threshold=np.nextafter(r, 0)).kept == ("a",)


@pytest.mark.parametrize("threshold", [-0.1, 1.1, math.nan])
def test_select_rejects_invalid_thresholds(threshold):
    with pytest.raises(ValueError, match="expected a number from 0 to 1"):
        select(inputs(a=X), threshold=threshold)


def test_select_keeps_nothing_without_columns_or_with_one_row_or_rounding_errors_alone():
    assert select(Inputs((), np.empty((3, 0)))).kept == ()
    assert select(Inputs(("a",), np.empty((0, 1)))).constant == ("a",)
    assert select(inputs(a=np.array([3.0]))).constant == ("a",)
    # Sums of counters may differ in their last bits only.
    assert select(inputs(a=np.array([1e12, 1e12 + 1e-4, 1e12, 1e12, 1e12]))).constant == ("a",)


def test_correlations_use_only_rows_with_both_values():
    partial = np.array([1.0, 2, math.nan, 4, 100])
    other = np.array([1.0, 2, 3, 4, math.inf])
    table = select(inputs(a=partial, b=other))
    assert table.correlated == (("b", "a", pytest.approx(1.0)),)
    apart = correlations(np.array([[1.0, math.nan], [math.nan, 1.0], [2.0, 3.0]]))
    assert math.isnan(apart[0, 1])


@given(arrays(np.float64, (6, 3), elements=st.floats(-1e6, 1e6)))
def test_correlations_equal_those_of_numpy(values):
    found = correlations(values)
    spread = np.ptp(values, axis=0) > 1e-3
    with np.errstate(all="ignore"):
        expected = np.corrcoef(values, rowvar=False)
    both = spread[:, None] & spread
    assert found[both] == pytest.approx(expected[both], abs=1e-6)


@given(st.permutations(["a", "b", "c", "d"]))
def test_select_does_not_depend_on_the_order_of_columns(order):
    columns = {"a": X, "b": X**2, "c": NOISE, "d": -X}
    assert select(inputs(**{name: columns[name] for name in order})) == select(inputs(**columns))


@needs_gpu_logs
@pytest.mark.stress
def test_select_keeps_21_of_33_counters_of_real_runs():
    """``specs/block-size.md`` 1.7: of 33 counters 5 are zero, and 21 are kept."""
    rows = []
    for name in PROFILED:
        document = orjson.loads(gzip.decompress((GPU / "ktt" / f"{name}.json.gz").read_bytes()))
        for result in document["Results"]:
            for computation in result["ComputationResults"]:
                counters = computation["ProfilingData"]["Counters"]
                rows.append({counter["Name"]: counter["Value"] for counter in counters})
    names = tuple(rows[0])
    found = select(Inputs(names, np.array([[row[name] for name in names] for row in rows])))
    assert (len(rows), len(names)) == (9305, 33)
    assert (len(found.zero), len(found.constant), len(found.kept)) == (5, 0, 21)


@needs_gpu_logs
@pytest.mark.stress
def test_select_keeps_22_neutral_counters_of_real_runs(profiled_runs):
    """With neutral names the alphabetical order keeps other counters of correlated pairs."""
    found = select(raw(profiled_runs))
    assert (len(found.zero), len(found.constant), len(found.kept)) == (5, 0, 22)
    assert "achieved_occupancy" in found.kept

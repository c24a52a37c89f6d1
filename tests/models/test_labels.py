import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunedb.models.base import recipe_part

TIMES = st.lists(
    st.lists(st.floats(1e-9, 1e3, allow_subnormal=False), min_size=1, max_size=7), max_size=9
)
REFERENCES = {"mean": np.mean, "median": np.median, "minimum": np.min}


@pytest.mark.parametrize("name", sorted(REFERENCES))
@given(programs=TIMES)
def test_seconds_applies_label_to_times_of_each_program(name, programs):
    label, _ = recipe_part("label", name)
    starts = np.cumsum([0, *map(len, programs)])
    times = np.array([time for program in programs for time in program], np.float64)
    times.flags.writeable = False
    found = label.seconds(times, starts)
    assert found.dtype == np.float64
    expected = [REFERENCES[name](program) for program in programs]
    assert found == pytest.approx(expected, rel=1e-12)

import array
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunedb import limits
from tunedb.advisor.collect.configuration import OutputConfig, TimingConfig
from tunedb.advisor.collect.output_check import difference


@given(st.binary(max_size=40), st.sampled_from(["text", "bytes", "float32", "int32"]))
def test_difference_of_equal_bytes_is_none(data, kind):
    assert difference(data, data, OutputConfig(type=kind, tolerance=0.5)) is None


@pytest.mark.parametrize(
    ("expected", "found", "message"),
    [
        ("sum 1.0000", "sum 1.0005", None),
        ("sum=1.0000;", "sum=1.0005;", None),
        ("a 1 2", "a\n1   2\n", None),
        ("nan", "NaN", None),
        ("inf", "inf ", None),
        ("sum 1.0", "sum 1.002", "word 2 is 1.002 instead of 1.0"),
        ("inf", "1e300", "word 1 is 1e300 instead of inf"),
        ("inf", "-inf", "word 1 is -inf instead of inf"),
        ("nan", "0", "word 1 is 0 instead of nan"),
        ("0", "1e-9", "word 1 is 1e-9 instead of 0"),
        ("ok 1", "no 1", "word 1 is no instead of ok"),
        ("1 2", "1 2 3", "more words: 2 are equal"),
        ("1 2 3", "1 2", "fewer words: 2 are equal"),
        ("1000", "1_000", "word 1 is 1_000 instead of 1000"),
    ],
)
def test_difference_compares_words_within_the_tolerance(expected, found, message):
    assert difference(expected.encode(), found.encode(), OutputConfig(tolerance=1e-3)) == message


@pytest.mark.parametrize(
    ("expected", "found", "output", "message"),
    [
        (b"1.0", b"1.00", {}, "other bytes from byte 3 on"),
        (b"1.0", b"1.1", {}, "other bytes from byte 2 on"),
        (b"1", b"12", {"type": "bytes", "tolerance": 1}, "2 bytes instead of 1"),
        (b"1\n# took 3\n", b"1\n# took 4\n", {"ignore": "^#"}, None),
        (b"1\ntook 3\n", b"1\ntook 4\n", {"ignore": "^#"}, "other bytes from byte 7 on"),
        (b"123", b"124", {"type": "int32", "tolerance": 1}, "3 bytes are not an array of int32"),
    ],
)
def test_difference_compares_bytes_outside_ignored_lines(expected, found, output, message):
    assert difference(expected, found, OutputConfig(**output)) == message


def test_difference_ignores_printed_times():
    timing = TimingConfig("output", "took (.*)")
    assert difference(b"1\ntook 3\n", b"1\ntook 4\n", OutputConfig(), timing) is None
    assert difference(b"1\ntook 3\n", b"2\ntook 4\n", OutputConfig(), timing) is not None


def floats(*values):
    return array.array("f", values).tobytes()


@pytest.mark.parametrize(
    ("expected", "found", "message"),
    [
        ((1, 2), (1, 2.001), None),
        ((1, 2), (1, 2.01), "1 of 2 numbers differ; number 2 is 2.01 instead of 2"),
        ((math.nan, 1), (math.nan, 1.0005), None),
        ((math.inf, 1), (math.inf, 1.0005), None),
        ((math.inf,), (-math.inf,), "1 of 1 numbers differ; number 1 is -inf instead of inf"),
        ((math.inf,), (3,), "1 of 1 numbers differ; number 1 is 3 instead of inf"),
        ((3,), (math.nan,), "1 of 1 numbers differ; number 1 is nan instead of 3"),
        ((1,), (1, 2), "8 bytes instead of 4"),
    ],
)
def test_difference_compares_arrays_within_the_tolerance(expected, found, message):
    output = OutputConfig(type="float32", tolerance=1e-3)
    assert difference(floats(*expected), floats(*found), output) == message


@given(st.lists(st.floats(width=32), min_size=1, max_size=8), st.floats(0.001, 1), st.data())
def test_difference_of_arrays_agrees_with_math_isclose(expected, tolerance, data):
    found = data.draw(st.lists(st.floats(width=32), min_size=len(expected), max_size=len(expected)))
    message = difference(floats(*expected), floats(*found), OutputConfig("f", "float32", tolerance))
    same = all(
        (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=tolerance)
        for a, b in zip(expected, found, strict=True)
    )
    assert (message is None) == same


def test_long_outputs_are_compared_byte_by_byte(monkeypatch):
    close = OutputConfig(tolerance=1e-3)
    assert difference(b"1.0000 1", b"1.0001 1", close) is None
    monkeypatch.setattr(limits, "MAX_COMPARED_BYTES", 7)
    assert difference(b"1.0000 1", b"1.0001 1", close) == "other bytes from byte 5 on"

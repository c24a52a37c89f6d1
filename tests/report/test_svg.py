"""Scales, ticks and text of pictures."""

import math
from xml.etree.ElementTree import Element, fromstring, tostring

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tunedb.report.svg import (
    Scale,
    add,
    linear_ticks,
    number,
    padded,
    percent,
    polyline,
    significant,
    visible,
)
from tunedb.system.text import clean

finite = st.floats(-1e12, 1e12)


@example(-492581209244.231, 0.001, 2)
@given(finite, st.floats(1e-3, 1e12), st.integers(2, 10))
def test_linear_ticks_are_evenly_spaced_and_in_range(low, width, count):
    high = low + width
    ticks = linear_ticks(low, high, count)
    # The slack allows for rounding: numbers around 5e11 are 6e-5 apart.
    slack = (high - low) * 1e-6 + 2 * math.ulp(max(abs(low), abs(high)))
    assert all(low - slack <= tick <= high + slack for tick in ticks)
    assert len(ticks) <= count + 2
    gaps = np.diff(ticks)
    if len(gaps) > 1:
        # Ticks of 1e12 are rounded to 1e-4.
        np.testing.assert_allclose(gaps, gaps[0], rtol=1e-3, atol=1e-3)


def test_ticks_are_round_numbers():
    assert linear_ticks(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    assert linear_ticks(-3, 9) == pytest.approx([-2.5, 0, 2.5, 5, 7.5])
    assert linear_ticks(2, 2) == [2]
    assert Scale(30, 1100, 0, 1, logarithmic=True).ticks() == [32, 64, 128, 256, 512, 1024]
    assert Scale(1, 2.0**20, 0, 1, logarithmic=True).ticks()[:3] == [1, 8, 64]


@given(st.floats(0.1, 1e6), st.floats(1.01, 1e6), st.floats(0, 1), st.booleans())
def test_scale_maps_its_range_onto_its_coordinates(low, factor, part, logarithmic):
    scale = Scale(low, low * factor, 300, 20, logarithmic)
    assert scale(low) == 300
    assert scale(low * factor) == pytest.approx(20)
    middle = low + part * (low * factor - low)
    assert 20 - 1e-6 <= scale(middle) <= 300 + 1e-6


def test_formatters_round_numbers_and_accept_edge_cases():
    assert [number(one) for one in (1.0, 1.234, -0.001, 10.5)] == ["1", "1.23", "0", "10.5"]
    shown = [significant(one) for one in (0.25, 1234567890.0, -0.0, 1e-9, float("nan"))]
    assert shown == ["0.25", "1.235e9", "0", "1e-9", "–"]  # noqa: RUF001
    assert percent(0.444) == "44 %"
    assert padded(np.array([])) == (-1, 1)
    assert padded(np.array([2.0, 2.0])) == (1, 3)
    assert polyline([(0, 1), (2, 3.5)], closed=True) == "M0 1L2 3.5Z"


# XML, unlike HTML, has no noncharacters.
@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cn"])))
def test_add_escapes_invisible_characters_so_that_xml_can_be_written(text):
    element = Element("p")
    add(element, "b", text)
    shown = fromstring(tostring(element, encoding="utf-8")).find("b").text or ""
    assert shown == clean(text)
    assert not {"\x1b", "\u202e", "\n"} & set(shown)


def test_visible_text_is_shortened_in_the_middle():
    assert visible("abcdefghij", 10) == "abcdefghij"
    assert visible("abcdefghijk", 7) == "abcd…jk"
    assert visible("a\nb", 20) == "a\\nb"

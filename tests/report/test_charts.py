"""Charts and tables of any page: their shapes equal their numbers, for any numbers."""

import base64
import hashlib
import json
import math
import re
from functools import partial
from html import unescape
from itertools import pairwise
from pathlib import Path
from xml.etree.ElementTree import tostring

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pages import EVIL, Tables, all_of, axis, boxes_of, corners, curves, shades

from tunedb.report import page as page_module
from tunedb.report.charts import Axis, Box, Mark, chart, heat_map, tree, zoomable
from tunedb.report.page import Section, Shown, Table, operations, render, seconds, share
from tunedb.system.text import clean, clean_lines

TEMPLATES = Path(page_module.__file__).parent / "templates"

NOWHERE = st.sampled_from([math.nan, math.inf, -math.inf])


@st.composite
def axes(draw):
    """Return an axis whose ticks are its ends."""
    low, factor = draw(st.floats(0.01, 1e3)), draw(st.floats(1.1, 1e3))
    logarithmic = draw(st.booleans())
    high = low * factor
    if not logarithmic:
        low, high = (end - draw(st.floats(0, 1e3)) for end in (low, high))
        low, high = min(low, high - 0.01), high
    return Axis("quantity", low, high, logarithmic, ticks=(low, high), show=repr)


def numbers_on(axis):
    """Return numbers in steps of 1 % of an axis, and numbers that have no place on it."""
    nowhere = NOWHERE | st.sampled_from([-1.0, 0.0]) if axis.logarithmic else NOWHERE
    return st.integers(0, 100).map(lambda n: axis.low + n / 100 * (axis.high - axis.low)) | nowhere


def has_place(value, axis):
    return math.isfinite(value) and (value > 0 or not axis.logarithmic)


def inverse(svg, name, axis_):
    """Return a function from coordinates to numbers, and the largest error of its numbers."""
    to_number = axis(svg, name, logarithmic=axis_.logarithmic)
    width, share_ = axis_.high - axis_.low, 1e-3
    return to_number, {
        "atol": 0 if axis_.logarithmic else share_ * width,
        "rtol": (axis_.high / axis_.low) ** share_ - 1 if axis_.logarithmic else 0,
    }


def check(drawn, expected, inverses):
    """Check that drawn coordinates equal the expected numbers."""
    assert len(drawn) == len(expected)
    for at, (to_number, tolerance) in enumerate(inverses):
        found = [to_number(place[at]) for place in drawn]
        np.testing.assert_allclose(found, [point[at] for point in expected], **tolerance)


def draw_one(*args, **options):
    return chart("key", "Title", "Description", *args, **options)


def drawn_places(svg, kind):
    if kind == "dots":
        (path,) = all_of(svg, "path", kind)
        return corners(path)
    if kind in ("points", "labels"):
        (group,) = all_of(svg, "g", kind)
        return [(float(each.get("x")), float(each.get("y"))) for each in group]
    return [corner for path in all_of(svg, "path", kind) for corner in corners(path)]


@pytest.mark.parametrize(
    "kind", ["line", "step", "dots", "points", "labels", "outline", "reference", "band"]
)
@given(data=st.data())
def test_shapes_are_drawn_at_their_numbers(kind, data):
    both = data.draw(axes()), data.draw(axes())
    rows = data.draw(
        st.lists(st.tuples(*map(numbers_on, (*both, both[1]))), max_size=8), label="rows"
    )
    x, y, to = ([row[i] for row in rows] for i in range(3))
    texts = [f"text {i}" for i in range(len(rows))]
    mark = Mark(kind, x, y, to if kind == "band" else (), texts=texts, colour="c3")
    svg = draw_one(both, [mark])
    used = 3 if kind == "band" else 2
    places = [zip(row[:used], (*both, both[1])[:used], strict=True) for row in rows]
    kept = [i for i, pairs in enumerate(places) if all(has_place(*pair) for pair in pairs)]
    expected = [(x[i], y[i]) for i in kept]
    if kind == "step":
        steps = [each for a, b in pairwise(expected) for each in (a, (b[0], a[1]))]
        expected = steps + expected[-1:]
    if kind == "band":
        expected += [(x[i], to[i]) for i in reversed(kept)]
    found = drawn_places(svg, kind)
    check(found, expected, [inverse(svg, name, a) for name, a in zip("xy", both, strict=True)])
    for path in all_of(svg, "path", kind):
        assert "c3" in path.get("class").split()
        assert path.get("d").endswith("Z") == (kind in ("outline", "band"))
    if kind == "labels":
        assert [each.text for each in all_of(svg, "text", "c3")] == [texts[i] for i in kept]
    if kind == "points":
        titles = [each.find("title").text for each in svg.iter("use")]
        assert titles == [texts[i] for i in kept]


def ends_of(shape, along):
    """Return the ends of a bar or an interval along an axis, and its place across it."""
    across = "y" if along == "x" else "x"
    if shape.tag == "line":
        assert shape.get(f"{across}1") == shape.get(f"{across}2")
        places = shape.get(f"{along}1"), shape.get(f"{along}2")
        return *sorted(map(float, places)), float(shape.get(f"{across}1"))
    start, across_start = float(shape.get(along)), float(shape.get(across))
    sizes = {"x": float(shape.get("width")), "y": float(shape.get("height"))}
    assert sizes[across] > 0
    return start, start + sizes[along], across_start + sizes[across] / 2


def places_of_names(svg, names, across):
    """Return the coordinates of the names of an axis."""
    texts = {each.text: each for each in svg.iter("text")}
    shift = 4 if across == "y" else 0
    return [float(texts[name].get(across)) - shift for name in names]


@pytest.mark.parametrize("is_horizontal", [False, True], ids=["vertical", "horizontal"])
@pytest.mark.parametrize("kind", ["bars", "intervals"])
@given(data=st.data())
def test_bars_and_intervals_end_at_their_numbers(kind, is_horizontal, data):
    values = data.draw(axes())
    rows = data.draw(
        st.lists(st.tuples(numbers_on(values), numbers_on(values)), min_size=1, max_size=8)
    )
    from_zero = data.draw(st.booleans())
    ends, to = ([row[i] for row in rows] for i in range(2))
    if from_zero:
        to = [max(values.low, 0.0)] * len(rows)
    names = [f"name {i}" for i in range(len(rows))]
    named, places = Axis.named("names", names), range(len(rows))
    along, across = ("x", "y") if is_horizontal else ("y", "x")
    both, numbers = (named, values), (places, ends)
    if is_horizontal:
        both, numbers = both[::-1], numbers[::-1]
    svg = draw_one(both, [Mark(kind, *numbers, () if from_zero else to, texts=names)])
    shapes = all_of(svg, "rect", "bar") + all_of(svg, "line", "interval")
    kept = [i for i in places if has_place(ends[i], values) and has_place(to[i], values)]
    if kind == "bars":
        kept = [i for i in kept if ends[i] != to[i]]
        assert [each.find("title").text for each in shapes] == [names[i] for i in kept]
    to_number, tolerance = inverse(svg, along, values)
    assert len(shapes) == len(kept)
    at = places_of_names(svg, names, across)
    for shape, i in zip(shapes, kept, strict=True):
        start, end, place = ends_of(shape, along)
        found = sorted(map(to_number, (start, end)))
        np.testing.assert_allclose(found, sorted((ends[i], to[i])), **tolerance)
        assert place == pytest.approx(at[i], abs=0.02)


@given(st.integers(1, 12), st.booleans())
def test_axis_spaces_names_evenly_and_bars_do_not_overlap(count, is_horizontal):
    names, places = [f"name {i}" for i in range(count)], range(count)
    numbers = range(1, count + 1)
    both = Axis.named("names", names), Axis.from_zero("count", numbers)
    mark, across, side = Mark("bars", places, numbers), "x", "width"
    if is_horizontal:
        both, mark, across, side = both[::-1], Mark("bars", numbers, places), "y", "height"
    svg = draw_one(both, [mark])
    distances = np.diff(places_of_names(svg, names, across))
    assert all(distances > 0)
    np.testing.assert_allclose(distances, distances[:1].repeat(count - 1), atol=0.02)
    for a, b in pairwise(all_of(svg, "rect", "bar")):
        assert float(a.get(across)) + float(a.get(side)) < float(b.get(across))


def test_axis_cuts_long_names_and_shows_hostile_ones_as_text():
    names = [EVIL, "x" * 99]
    axes_ = Axis("time", 0, 1), Axis.named("kernel", names)
    shown = [each.text for each in draw_one(axes_, []).iter("text")][:2]
    assert max(map(len, shown)) <= 34
    assert shown[0].startswith("<script>alert(1)</scri")
    assert shown[1].startswith("xxx") and "…" in shown[1]
    flat = draw_one((Axis.named("kernel", [EVIL]), axes_[0]), [])
    assert clean(EVIL) in [each.text for each in flat.iter("text")]


RANGES = {
    "linear": Axis.around,
    "logarithmic": partial(Axis.around, logarithmic=True),
    "from zero": Axis.from_zero,
}


@pytest.mark.parametrize("name", RANGES)
@given(st.lists(st.floats(), max_size=6))
def test_charts_of_any_numbers_contain_no_nan_or_infinity(name, values):
    up = RANGES[name]("quantity", values)
    assert up.low < up.high
    shown = [v for v in values if has_place(v, up) and 1e-250 < abs(v) < 1e250]
    if name == "from zero":
        assert up.low == 0
        shown = [v for v in shown if v > 0]
    assert all(up.low <= v <= up.high for v in shown)
    across = Axis.named("n", list(map(str, range(len(values)))))
    kinds = ("line", "step", "band", "dots", "points", "intervals", "outline")
    marks = [Mark(kind, values, values) for kind in kinds]
    pictures = [
        draw_one((up, up), marks),
        draw_one((across, up), [Mark("bars", range(len(values)), values)]),
        draw_one((up, across), [Mark("bars", values, range(len(values)))]),
    ]
    for element in (each for svg in pictures for each in svg.iter()):
        for attribute, text in element.items():
            if attribute not in ("class", "id", "aria-labelledby"):
                assert not re.search("nan|inf", text), attribute


@given(
    st.integers(1, 6).flatmap(
        lambda columns: st.lists(
            st.lists(st.floats(-1, 1) | st.just(math.nan), min_size=columns, max_size=columns),
            max_size=6,
        )
    ),
    st.booleans(),
)
def test_squares_of_heat_map_equal_its_matrix(rows, with_texts):
    matrix = np.array(rows).reshape(len(rows), len(rows[0]) if rows else 0)
    names = [[f"{kind} {i}" for i in range(n)] for kind, n in zip("rc", matrix.shape, strict=True)]
    texts = [[f"{i}.{j}\nbelow" for j in range(len(row))] for i, row in enumerate(rows)]
    texts = texts if with_texts else ()
    titles = ("label", "advice")
    svg = heat_map("key", "Title", "Description", names, matrix, texts=texts, titles=titles)
    cells = all_of(svg, "rect", "cell")
    np.testing.assert_allclose(shades(svg), matrix[~np.isnan(matrix)], atol=0.0051)
    assert len(all_of(svg, "path", "cross")) == np.isnan(matrix).sum()
    shown = {each.text: each for each in svg.iter("text")}
    assert {*titles, *names[0], *names[1]} <= set(shown)
    for (i, j), cell in zip(np.argwhere(~np.isnan(matrix)).tolist(), cells, strict=True):
        x, y, width, height = (float(cell.get(name)) for name in ("x", "y", "width", "height"))
        assert x < float(shown[f"c {j}"].get("x")) < x + width
        assert y < float(shown[f"r {i}"].get("y")) < y + height
        if with_texts:
            for text in all_of(svg, "text", "strong"):
                at = float(text.get("x")), float(text.get("y"))
                inside = x < at[0] < x + width and y < at[1] < y + height
                assert inside == (text.text == f"{i}.{j}")
    if with_texts:
        assert sum(each.text == "below" for each in svg.iter("text")) == matrix.size


words = st.text(max_size=30)
leaves = words.map(lambda text: Box((text,), "7", (("c1", 0.25), ("c2", 0.5))))
boxes = st.recursive(
    leaves,
    lambda children: st.builds(
        lambda text, below: Box((text, "question?"), "8", children=tuple(below)),
        words,
        st.lists(children, min_size=1, max_size=3),
    ),
    max_leaves=12,
)


@given(boxes)
def test_tree_places_boxes_beside_their_children(root):
    svg = tree("key", "Title", "Description", root)
    groups = boxes_of(svg)
    by_path = dict(root.paths())
    assert set(groups) == set(by_path)
    places = {}
    for path, group in groups.items():
        box = by_path[path]
        assert group.get("class") == ("node" if box.children else "leaf")
        frame = all_of(group, "rect", "box")[0]
        places[path] = float(frame.get("x")), float(frame.get("y"))
        assert max(len(each.text or "") for each in group.iter("text")) <= 25
        if len(clean(box.lines[0])) <= 25:
            assert (group.find("text").text or "") == clean(box.lines[0])
        widths = [float(each.get("width")) for each in all_of(group, "rect", "bar")]
        shares = [length for _, length in box.shares]
        np.testing.assert_allclose(widths, np.array(shares) * (float(frame.get("width")) - 18))
    for path, box in by_path.items():
        x, y = places[path]
        below = [places[f"{path}.{i}"] for i in range(1, len(box.children) + 1)]
        assert all(each_x > x + 176 for each_x, _ in below)
        assert all(a < b for (_, a), (_, b) in pairwise(below))
        if below:
            assert y == pytest.approx((below[0][1] + below[-1][1]) / 2, abs=0.02)
    columns = {}
    for x, y in places.values():
        columns.setdefault(x, []).append(y)
    for column in columns.values():
        assert all(b - a >= 36 for a, b in pairwise(sorted(column)))
    assert len(all_of(svg, "path", "branch")) == len(by_path) - 1
    width, height = map(float, svg.get("viewBox").split()[2:])
    assert max(x for x, _ in places.values()) + 176 <= width
    assert max(y for _, y in places.values()) + 36 <= height


@given(data=st.data())
def test_zoomable_curves_equal_the_drawn_ones(data):
    both = data.draw(axes()), data.draw(axes())
    kinds = data.draw(st.lists(st.sampled_from(["line", "step", "dots", "points", "band"])))
    points = st.lists(st.tuples(*map(numbers_on, both)), max_size=6)
    marks = []
    for number, kind in enumerate(kinds):
        rows = data.draw(points)
        x, y = ([row[i] for row in rows] for i in range(2))
        marks.append(Mark(kind, x, y, y, f"c{number}", f"{EVIL}{number}"))
    zoom = zoomable(both, marks)
    text = str(page_module._data(zoom))
    assert "<" not in text
    assert json.loads(text) == zoom
    assert zoom["logs"] == [each.logarithmic for each in both]
    shown = [mark for mark in marks if mark.kind in ("line", "step", "dots")]
    assert [one["name"] for one in zoom["series"]] == [clean(mark.name) for mark in shown]
    for mark, one in zip(shown, zoom["series"], strict=True):
        assert (one["kind"], one["colour"]) == (mark.kind, mark.colour)
        drawn = drawn_places(draw_one(both, [mark]), mark.kind)
        assert len(one["x"]) == len(drawn[:: 2 if mark.kind == "step" else 1])
        for name, values in (("x", mark.x), ("y", mark.y)):
            points_ = zip(values, mark.x, mark.y, strict=True)
            kept = [value for value, *point in points_ if all(map(has_place, point, both))]
            assert one[name] == pytest.approx(kept, rel=1e-5)


cells = (
    st.none()
    | st.text(max_size=4)
    | st.integers()
    | st.floats()
    | st.builds(Shown, st.none() | st.floats(), st.text(max_size=4))
)


@given(st.lists(st.tuples(cells, st.integers() | st.none()), max_size=5), st.integers(0, 6))
def test_a_table_shows_its_first_rows_and_counts_the_rest(rows, most):
    table = Table(("any", "number"), rows, most, more="tunedb show")
    assert [*table.shown, *rows[most:]] == rows
    assert (table.left, len(table.shown)) == (len(rows) - len(table.shown), min(most, len(rows)))
    texts = [any(isinstance(row[0], str) for row in table.shown), False]
    assert table.numeric == [bool(rows) and not text for text in texts]
    page = render("Page", "", [Section("Rows", tables={"all": table})], "")
    parsed = Tables(page)
    assert len(parsed.tables["Rows: all"]) == 1 + len(table.shown)
    assert (f"{table.left} more: tunedb show" in parsed.text) == (table.left > 0)
    for row, shown, values in zip(
        table.shown, parsed.tables["Rows: all"][1:], parsed.values["Rows: all"][1:], strict=True
    ):
        cell, (text, _), (value, no_value) = row[0], shown, values
        assert no_value is None
        if isinstance(cell, Shown):
            assert text == clean(cell.text)
            assert value == (None if cell.value is None else str(cell.value))
        else:
            assert value is None
        if isinstance(cell, str | int):
            assert text == clean(str(cell))
        if isinstance(cell, float) and math.isfinite(cell):
            assert float(text) == pytest.approx(cell, rel=1e-5)


def test_seconds_share_and_operations_add_units_and_keep_numbers():
    assert seconds(1.5e-3) == Shown(1.5e-3, "1.500 ms")
    assert share(0.125) == Shown(0.125, "12.5 %")
    assert operations(1.2e9) == Shown(1.2e9, "1.2 GFLOP/s")
    assert [make(None).text for make in (seconds, share, operations)] == ["–"] * 3  # noqa: RUF001


def policy(page):
    (content,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    return {name: rest for name, *rest in (each.split() for each in unescape(content).split(";"))}


@pytest.mark.parametrize("name", ["curve", EVIL, "</script><script>alert(1)</script>", "<!--"])
def test_policy_allows_only_the_script_of_the_page(name):
    page = curves(name)
    tables = Tables(page)
    assert tables.opened == []
    scripts = [(kind, "".join(parts)) for kind, parts in tables.scripts]
    (script,) = [text for kind, text in scripts if kind is None]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy(page)["script-src"] == [f"'sha256-{digest}'"]
    assert policy(page)["default-src"] == ["'none'"]
    assert (TEMPLATES / "uplot.js").read_text().strip() in script
    blocks = [text for kind, text in scripts if kind == "application/json"]
    assert len(blocks) == len(scripts) - 1 == 2
    for block in blocks:
        assert "<" not in block
        (_, step, model, empty) = json.loads(block)["series"]
        assert step["name"] == clean(f"best {name}")
        assert (model["x"], model["y"]) == ([5, 20], [9, 4])
        assert empty["x"] == empty["y"] == []
    assert not {"\x1b", "\u202e"} & set(page)
    for text in ("Page of", "Lead of", "Caption of", "Program of", "Footer of", "tunedb show"):
        assert f"{text} {clean(name)}" in tables.text
    assert "\n".join(clean_lines(f"for i:\n    {name}")) in tables.text
    assert page == curves(name)


def test_a_page_without_curves_has_no_script_and_may_reload():
    sections = [Section("Rows", tables={"all": Table(("a",), [(1,)])})]
    page = render("Page", "Lead", sections, "End")
    assert Tables(page).scripts == []
    assert "script-src" not in policy(page) and "refresh" not in page
    page = render("Page", "Lead", [], "End", reload_after=30)
    assert '<noscript><meta http-equiv="refresh" content="30"></noscript>' in page
    assert "Loads again every 30 s." in Tables(page).text


def test_parts_of_sections_have_lower_heading_levels():
    section = Section("One", parts=(Section("Two", parts=(Section("Three"),)),))
    page = render("Zero", "", [section], "")
    headings = re.findall(r"<h(\d)[^>]*>(.*?)</h\d>", page)
    assert headings == [("1", "Zero"), ("2", "One"), ("3", "Two"), ("4", "Three")]


def test_chart_has_title_description_and_size():
    svg = draw_one((Axis("x"), Axis("y")), [], size=(300, 200))
    assert svg.get("viewBox") == "0 0 300 200"
    assert (svg.find("title").text, svg.find("desc").text) == ("Title", "Description")
    assert [each.text for each in all_of(svg, "text", "name")] == ["y", "x"]
    assert tostring(svg)

"""The page of the advisor: its pictures equal its tables, for any data and any names."""

import re
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from observing import observe
from pages import EVIL, Tables, all_of, axis, boxes_of, corners, findings, launches, picture, shades

from tunedb import limits
from tunedb.advisor.analysis.analyzer import Threshold, analyse
from tunedb.errors import PluginError, UsageError
from tunedb.report import page as render_module
from tunedb.report.advisor import write

pytest.importorskip("sklearn")

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
EXTRAS = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]


@pytest.fixture(scope="module")
def page():
    return write(analyse(launches()), findings())


@pytest.fixture(scope="module")
def tables(page):
    return Tables(page)


def numbers(rows, *names):
    return [tuple(float(row[name]) for name in names) for row in rows]


def column(rows, name):
    return [float(row[name]) for row in rows]


def places(shapes, axis, name):
    """Return the numbers of an axis at which shapes are drawn."""
    return [axis(float(one.get(name))) for one in shapes]


def near(found, expected, tolerance=0.005):
    np.testing.assert_allclose(found, expected, atol=tolerance)


def test_page_has_sections_pictures_and_references_but_no_scripts_or_resources(page, tables):
    assert page.startswith('<!DOCTYPE html>\n<html lang="en">') and tables.opened == []
    for title in ("Measured launches", "Time against block size", "Possible gain"):
        assert title in tables.text
    assert "3 launches" not in tables.text
    assert tables.rows("Measured launches: Kernels")[0]["launches"] == "20"
    assert "default-src 'none'" in page
    assert not re.search(r"<script|<link|<img|<iframe|https?:|url\(|@import|\son\w+=", page)
    assert all(one.startswith("#") for one in re.findall(r'href="([^"]*)"', page))
    pictures = re.findall(r"<svg [^>]*role=\"img\".*?</svg>", page, re.DOTALL)
    assert len(pictures) == 12
    for svg in map(ElementTree.fromstring, pictures):
        assert svg.find("title").text and svg.find("desc").text
    for reference in re.findall(r'(?:href="#|for="|aria-labelledby=")([^"]*)"', page):
        assert set(reference.split()) <= set(tables.headings)


def test_equal_launches_give_equal_pages(page):
    assert write(analyse(launches()), findings()) == page
    assert write(analyse(launches(seed=1)), findings()) != page


def test_points_equal_the_table_of_groups(page, tables):
    svg, rows = picture(page, "kinds"), tables.rows("Groups of launches")
    points = list(next(g for g in svg.iter("g") if g.get("class") == "points"))
    drawn = [*zip(*(places(points, axis(svg, name), name) for name in "xy"), strict=True)]
    assert len(drawn) == 60
    near(drawn, numbers(rows, "component 1", "component 2"), 0.03)
    labels = {"decrease": "b-c1", "noChange": "b-c2", "increase": "b-c0"}
    over = {"yes": "c-c1", "no": "c-c0"}
    looks = {}
    for row, one in zip(rows, points, strict=True):
        colour, *others = one.get("class").split()
        looks[row["kernel"]] = colour, one.get("href")
        assert others == [labels[row["label"]], over[row["time / best > 1.1"]]]
    colours, shapes = zip(*looks.values(), strict=True)
    assert sorted(colours) == ["a-c0", "a-c1", "a-c2"] and len(set(shapes)) == 3
    clusters = {row["cluster"] for row in rows}
    assert {one.text for one in all_of(svg, "text", "cluster")} <= clusters
    assert len(all_of(svg, "path", "outline")) == len(clusters)


def test_curve_of_times_equals_its_table(page, tables):
    svg = picture(page, "time0")
    rows, y = tables.rows(svg.find("title").text), axis(svg, "y")
    (points,) = all_of(svg, "g", "points")
    medians = places(points, y, "y")
    near(medians, column(rows, "median"))
    (band,), (line,) = all_of(svg, "path", "band"), all_of(svg, "path", "line")
    near([y(at) for _, at in corners(band)], column(rows, "10 %") + column(rows, "90 %")[::-1])
    near([y(at) for _, at in corners(line)], medians)
    assert sum(int(row["best of slices"]) for row in rows) == 4


def test_bars_of_gains_and_silhouettes_equal_their_tables(page, tables):
    svg, rows = picture(page, "gains"), tables.rows("Gain from the best block")
    y = axis(svg, "y")
    for kernel, colour in zip(("sum", "blur", "sort"), ("c0", "c1", "c2"), strict=True):
        ends = [(float(b.get("y")), float(b.get("height"))) for b in all_of(svg, "rect", colour)]
        heights = [y(top) - y(top + height) for top, height in ends]
        near(heights, [float(row[kernel]) for row in rows if row[kernel] != "0"], 0.02)
    assert sum(int(row["all"]) for row in rows) == 12
    svg, rows = picture(page, "silhouette"), tables.rows("Number of clusters")
    near(places(all_of(svg, "rect", "bar"), axis(svg, "y"), "y"), column(rows, "silhouette"))


@pytest.mark.parametrize(
    ("key", "title"), [("corr", "Correlation of the inputs"), ("rotated", "Rotated components")]
)
def test_squares_of_matrix_equal_its_table(page, tables, key, title):
    svg, rows = picture(page, key), tables.rows(title)
    expected = [float(row[name]) for row in rows for name in list(row)[1:]]
    assert min(expected) < 0 < max(expected)
    near(shades(svg), expected, 0.0051)
    texts = [one.text or "" for one in all_of(svg, "text", "tiny")][len(rows[0]) - 1 :]
    assert [text.split()[0] for text in texts] == [row["input"] for row in rows]


def test_picture_of_decision_tree_equals_its_table(page, tables):
    groups, rows = boxes_of(picture(page, "tree")), tables.rows("Decision tree")
    assert sorted(groups) == [row["box"] for row in rows]
    for row in rows:
        group = groups[row["box"]]
        text = f"{row['box']}: {row['question or label']} {row['launches']}"
        assert group.find("title").text == text
        counts = [int(row[name]) for name in ("decrease", "noChange", "increase")]
        assert sum(counts) == int(row["launches"])
        if group.get("class") == "leaf":
            bars = all_of(group, "rect", "bar")
            widths = np.array([float(one.get("width")) for one in bars])
            near(widths / widths.sum(), [count / sum(counts) for count in counts if count], 0.001)
            colours = [c for c, n in zip(("c1", "c2", "c0"), counts, strict=True) if n]
            assert [one.get("class") for one in bars] == [f"bar {c}" for c in colours]
    assert "→" in tables.text


def test_pictures_of_evaluation_equal_their_tables(page, tables):
    rows = tables.rows("Advice of svm")
    assert [row["advice decrease"] for row in rows] == ["10", "0", "7"]
    svg = picture(page, "confusion0")
    assert [one.text for one in svg.iter("text") if one.text.isdigit()][:3] == ["10", "5", "5"]
    svg, rows = picture(page, "regret"), tables.rows("Time after advice")
    x = axis(svg, "x")
    near(places(svg.iter("use"), x, "x"), column(rows, "time / best"), 0.003)
    lines = all_of(svg, "line", "interval")
    ends = [*zip(places(lines, x, "x1"), places(lines, x, "x2"), strict=True)]
    near(ends, numbers(rows, "low", "high"), 0.003)
    svg, rows = picture(page, "accuracy"), tables.rows("Balanced accuracy")
    drawn = places(svg.iter("use"), axis(svg, "x"), "x")
    near(sorted(drawn), sorted(column(rows, "balanced")), 0.003)
    assert "svm is best: its advice leads to 1.1 times the best time" in tables.text
    assert "times the best time, no change to 1.33" in tables.text
    assert "Three kernels are few." in tables.text


def test_page_shows_hostile_names_as_text():
    made = []
    for one in launches(slices=2):
        counters = dict(one.counters) | {EVIL: one.counters["dram_utilization"] ** 2}
        made.append(replace(one, kernel=EVIL + one.kernel, device=EVIL, counters=counters))
    page = write(analyse(made, kind="raw", threshold=Threshold(EVIL, 1.0)))
    assert not re.search("<script|<b>|\x1b|\u202e", page)
    tables = Tables(page)
    assert tables.opened == []
    shown = tables.rows("Measured launches: Kernels")[0]["kernel"]
    assert shown.startswith("<script>alert(1)</script>&\"'\\u202ekernel\\x1b[31m]]>\\n<b>")
    assert page.encode()


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (launches(slices=1, sizes=(64, 128), kernels=("sum",)), "Components need three launches"),
        (launches(slices=1, sizes=(64,), kernels=("sum",)), "No slice has two block sizes"),
        (launches(kernels=("sum",)), "20 launches of 1 kernel"),
        ([observe(t, 1.0, record=t) for t in (32, 64, 128, 256)], "No launch has the label"),
        (
            [observe(t, 1.0 + t / 512, record=t, counters={"c": 5.0}) for t in (32, 64, 128)],
            "constant or never measured",
        ),
        ([observe(t, 1.0 + abs(t - 64), record=t) for t in (32, 64, 128)], "Time against block"),
    ],
    ids=["two", "one", "one kernel", "one label", "constant", "no counters"],
)
def test_page_of_little_data_says_what_is_missing(made, says):
    for kind in ("ratios", "raw") if len(made) < 20 else ("ratios",):
        page = Tables(write(analyse(made, kind=kind)))
        assert page.opened == [] and says in page.text


def test_page_counts_launches_without_a_label_and_says_why_nothing_was_evaluated():
    made = [*launches(), observe(256, 1.0, slice=b"alone", record=999)]
    analysis = analyse(made, method="paper")
    assert analysis.labels[-1] is None and analysis.counts[None] >= 1
    page = write(analysis, "there is one kernel")
    assert f"; {analysis.counts[None]:,} without a label." in Tables(page).text
    assert "Not evaluated: there is one kernel." in page


def test_analysis_leaves_out_launches_without_common_counters():
    made = launches()
    alone = [observe(64, 1.0, slice=b"x", record=900 + i) for i in range(100)]
    rare = [{"record": 800 + i, "counters": {"sm_efficiency": float(i)}} for i in range(9)]
    other = [observe(64, 1.0, slice=b"y", **fields) for fields in rare]
    analysis = analyse([*made, *alone, *other], kind="raw")
    assert (analysis.rare, analysis.subject) == (("sm_efficiency",), 69)
    assert analysis.rows.tolist() == list(range(60))
    text = Tables(write(analysis)).text
    assert "See: tunedb advise evaluate" in text
    assert "100 launches without counters are left out. 9 launches lack more than half" in text
    assert "rarely measured" in text


def test_missing_jinja_raises_error_with_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    render_module._environment.cache_clear()
    with pytest.raises(PluginError, match="Jinja does not load") as error:
        write(analyse(launches(slices=1)))
    (extra,) = re.findall(r"pip install 'tunedb\[(\w+)\]'", str(error.value))
    assert any(need.startswith("jinja2") for need in EXTRAS[extra])


def test_analyse_rejects_unknown_thresholds_and_empty_lists():
    analysis = analyse(launches(), threshold=Threshold("registers", 32))
    assert analysis.over.count(True) == 20
    assert "by registers over 32" in write(analysis)
    analysis = analyse(launches(), threshold=Threshold("dram_utilization", 49))
    assert analysis.over.count(True) >= 20
    with pytest.raises(UsageError, match=r"'nothing' is not an input .* time / best, threads"):
        analyse(launches(), threshold=Threshold("nothing", 1))
    with pytest.raises(UsageError, match=r"no launch with a run time .* tunedb import logs"):
        analyse([])


def test_page_groups_many_kernels_and_counts_those_left_out():
    names = tuple(f"kernel{i}" for i in range(30))
    page = Tables(write(analyse(launches(names, slices=1, sizes=(64, 128, 256)))))
    assert "22 other kernels" in page.text
    assert f"{30 - limits.MAX_DRAWN_KERNELS} kernels with fewer launches are left out" in page.text


def test_page_draws_a_random_sample_of_many_launches(monkeypatch):
    """MAX_DRAWN_LAUNCHES and MAX_ANALYSED_LAUNCHES"""
    monkeypatch.setattr(limits, "MAX_DRAWN_LAUNCHES", 20)
    monkeypatch.setattr(limits, "MAX_ANALYSED_LAUNCHES", 50)
    page = write(analyse(launches()))
    tables = Tables(page)
    assert len(tables.rows("Groups of launches")) == 20
    assert "a random 20 of 50" in tables.text
    assert "50 of 60 launches were sampled at random" in tables.text
    assert page == write(analyse(launches()))


def luminance(colour):
    """Return the relative luminance of WCAG 2."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def mixed(colour, ground, opacity):
    parts = [
        round(opacity * int(colour[i : i + 2], 16) + (1 - opacity) * int(ground[i : i + 2], 16))
        for i in (1, 3, 5)
    ]
    return f"#{bytes(parts).hex()}"


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [0, 1, 2], ids=["day", "night", "paper"])
def test_colours_meet_wcag_contrast(page, theme):
    css = re.findall(r":root {(.*?)}", page, re.DOTALL)[theme]
    values = dict(re.findall(r"--(\w+): (#\w+)", css))
    for ground in ("paper", "card"):
        for text in ("ink", "muted", "link"):
            assert contrast(values[text], values[ground]) >= 4.5, text
        for name in (*(f"c{i}" for i in range(8)), "other"):
            assert contrast(values[name], values[ground]) >= 3, name
    for cell in all_of(picture(page, "confusion0"), "rect", "cell"):
        name = "c0" if "positive" in cell.get("class") else "c1"
        square = mixed(values[name], values["card"], float(cell.get("fill-opacity")))
        assert contrast(values["ink"], square) >= 4.5, name


def test_each_colour_class_of_each_marking_has_a_css_rule(page):
    for name in set(re.findall(r'class="([a-c]-\w+ [^"]*)"', page)):
        for one in name.split():
            assert f".frame .{one} {{" in page

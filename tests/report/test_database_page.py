"""The page about a database: its numbers equal the database's, for any names."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from builders import add, copied, make_measurement, make_workload, sql
from databases import START, fill, network, run_of
from pages import EVIL, Tables, all_of, axis, picture
from raising import raises_line

from tunedb.errors import NotFoundError
from tunedb.identity import canonical_json
from tunedb.records import Failure, FailureKind, Phase, Session, Source
from tunedb.report.contents import read
from tunedb.report.database import Running, write
from tunedb.report.tasks import _factors, in_unit
from tunedb.results import NewModel
from tunedb.storage.store import Store
from tunedb.system.text import NOTHING


@pytest.fixture(scope="module")
def template(sqlite_template, tmp_path_factory):
    path = copied(sqlite_template, tmp_path_factory.mktemp("template") / "filled.db")
    fill(path)
    return path


@pytest.fixture
def filled(template, tmp_path):
    return copied(template, tmp_path / "filled.db")


def page_of(path, *, name="tuning.db", **chosen):
    with Store(path, create=False, read_only=True) as store:
        return write(read(store, **chosen), name)


def curve(page, title, name):
    """Return the points of a zoomable curve."""
    figure = re.search(rf">{title}</h\d>.*?json\">(.*?)</script>", page, re.DOTALL)
    data = json.loads(figure[1])
    found = next(one for one in data["series"] if one["name"] == name)
    return [list(pair) for pair in zip(found["x"], found["y"], strict=True)]


@pytest.fixture(scope="module")
def page(template):
    return page_of(template)


@pytest.fixture(scope="module")
def tables(page):
    return Tables(page)


def test_page_has_all_sections_and_valid_references(page, tables, template):
    assert page.startswith('<!DOCTYPE html>\n<html lang="en">') and tables.opened == []
    for reference in re.findall(r'(?:href="#|aria-labelledby=")([^"]*)"', page):
        assert set(reference.split()) <= set(tables.headings)
    assert page == page_of(template)
    sections = re.findall(r'<li><a href="#section\d">([^<]*)</a>', page)
    expected = "Overview, Networks, Tasks, Failures, Models, Machines and sessions"
    assert ", ".join(sections) == expected


def test_tables_have_the_numbers_of_the_database(tables, template):
    with Store(template, read_only=True) as store:
        best = store.records.best("matmul_0")
        assert store.counts().measurements == 48
    first, second, third = tables.rows("Tasks: All tasks")
    assert first["best"] == "2.050 ms" and best.mean == pytest.approx(2.05e-3)
    assert first["weight"] == "2" and first["weight * best"] == "4.100 ms"
    counts = [first[name] for name in ("trials", "failed", "cut short", "foreign")]
    assert counts == ["7", "1", "1", "1"]
    assert first["state"] == "improving" and first["share"] == "100.0 %"
    assert second["state"] == "settled at trial 1" and third["state"] == "no program yet"
    (failed,) = [row for row in tables.rows("Failures: Messages") if row["message"]]
    assert failed["message"] == "timed out after 30 s" and failed["records"] == "1"
    by_machine = {row["machine"]: row for row in tables.rows("Failures: By machine")}
    assert by_machine["made up"]["failed"] == "1" and by_machine["made up"]["records"] == "6"
    (session,) = tables.rows("Machines and sessions: Sessions")
    assert session["factor"] == "1.250" and session["threads"] == "2"
    spreads = sorted([9.2 / 9, 4.4 / 4, 5.1 / 5, 2.1 / 2])
    assert session["noise"] == f"{100 * (np.median(spreads) - 1):.1f} %"
    sources = {row["source"]: row for row in tables.rows("Overview: Sources")}
    assert sources["foreign"]["served"] == "0" and "1 record of foreign sources" in tables.text


def test_page_shows_latency_over_time_and_operators_of_network(page, tables):
    (row,) = tables.rows("Networks: Latency")
    assert row["target"] == "llvm skylake" and row["speed-up"] == "4"
    assert (row["untuned"], row["tuned"], row["outputs equal"]) == ("20.00 ms", "5.000 ms", "yes")
    matmul, reshape = tables.rows("net on llvm skylake: Operators")
    assert matmul["share"] == "80.0 %" and matmul["FLOP/s"] == "5.0 GFLOP/s"
    assert matmul["of the limit"] == "5.0 %" and reshape["of the limit"] == NOTHING
    # 1 ms of the reshape, and 2 calls of the best program so far: 9.1, 4.2 and 2.05 ms.
    course = curve(page, "Latency over time", "estimated latency")
    last = [4.0, pytest.approx(5.1)]
    assert course == [[0.0, 17.0], [2.0, pytest.approx(9.4)], last, last]
    (point,) = picture(page, "network0-roof").iter("use")
    assert point.find("title").text == "matmul: 5 GFLOP/s"


def test_page_shows_search_best_programs_and_lineage_of_task(page, tables):
    best = curve(page, "Best so far over trials", "best so far")
    assert best == [[1, 9.1], [3, 4.2], [5, 2.05], [7, 2.05]]
    assert curve(page, "Best so far over trials", "failed")[0][0] == 2
    # The foreign record of one nanosecond is in no plot.
    assert len(curve(page, "Best so far over trials", "time of a trial")) == 4
    task = "Task 1: matmul_0 on llvm skylake"
    rows = tables.rows(f"{task}: Best programs")
    assert [row["mean"] for row in rows] == ["2.050 ms", "4.200 ms", "5.050 ms"]
    (differing,) = tables.rows(f"{task}: Decisions that differ")
    assert differing["decision"] == "step 2: sample_perfect_tile"
    assert list(differing.values())[1:] == ["[4, 4]", "[2, 4]", "[3, 4]"]
    lineage = [one.text for one in picture(page, "task0-lineage").iter("text") if one.text]
    assert lineage == ["record 1, 9.100 ms", "random", "record 5, 2.050 ms", "mutated"]
    assert "sample_perfect_tile(l1, n=2, max_innermost_factor=16, decision=[4, 4])" in tables.text


def test_squares_of_tile_factors_show_their_speeds(page, tables):
    rows = tables.rows("Tile decisions and speed")
    assert list(rows[0]) == ["factor", "2.1"]
    # Program n of workload 1 has the tile [n, 4] and takes n + 1 ms.
    speeds = {int(row["factor"]): float(row["2.1"]) for row in rows}
    assert speeds == {n: pytest.approx(1 / (n + 1), rel=1e-5) for n in speeds} and len(speeds) > 4
    squares = all_of(picture(page, "task1-tiles"), "rect", "cell")
    drawn = [float(one.get("fill-opacity")) for one in squares]
    np.testing.assert_allclose(drawn, list(speeds.values()), atol=0.0051)


@pytest.mark.parametrize(
    ("decision", "is_numbered", "found"),
    [
        ("[7,[4,2]]", True, (7, [4, 2])),
        ("[7,3]", True, (7, [])),
        ("[4,2]", False, (1, [4, 2])),
        ("3", False, (1, [3])),
        ("true", False, (1, [])),
        ('[7,["a"]]', True, (7, [])),
    ],
)
def test_factors_returns_number_and_tile_of_decision(decision, is_numbered, found):
    assert _factors(decision, 1, is_numbered=is_numbered) == found


def test_in_unit_returns_unit_of_the_least_time():
    assert in_unit([2e-3, 5.0, float("inf")]) == (1e-3, "ms")
    assert in_unit([float("inf")]) == (1.0, "s") and in_unit([3e-10]) == (1e-9, "ns")


@pytest.mark.parametrize(
    ("chosen", "tasks"),
    [
        ({"workload": "matmul_1"}, {"2"}),
        ({"target": "llvm skylake 1 cores"}, {"1", "3"}),
        ({"network": "net"}, {"1"}),
        ({"network": "net", "workload": "matmul_1"}, set()),
    ],
)
def test_page_shows_only_chosen_tasks(template, chosen, tasks):
    found = Tables(page_of(template, **chosen))
    rows = found.rows("Tasks: All tasks") if tasks else []
    assert {row["task"] for row in rows} == tasks
    assert len(found.rows("Networks: Latency")) == 1
    assert "This page is about" in found.text


@pytest.mark.parametrize("chosen", [{"workload": "conv"}, {"target": "cuda"}, {"network": "x"}])
def test_unknown_names_raise_error_of_one_line(template, chosen):
    with raises_line(NotFoundError):
        page_of(template, **chosen)


def test_page_of_empty_database_says_what_is_missing(store):
    page = write(read(store), "empty")
    for text in ("No task yet", "No network was tuned", "No record failed", "No model yet"):
        assert text in page
    assert "<script" not in page and "0 records of 0 workloads" in page
    add(store, *(make_measurement(n, (1e-3 * (n + 1),)) for n in range(9)))
    assert Tables(write(read(store), "x")).rows("Tasks: All tasks")[0]["best"] == "1.000 ms"


def test_page_escapes_hostile_names(sqlite_file):
    workload = make_workload(1, name=EVIL, script=f"# {EVIL}</pre><script>alert(2)</script>")
    failure = Failure(FailureKind.RUNTIME_ERROR, Phase.RUN, EVIL * 1000, 1.0)
    session = Session("s", START, canonical_json({"cpu": EVIL, "tvm": EVIL}))
    fields = {"workload": workload, "session": session}
    failed = make_measurement(1, None, failure=failure, **fields)
    with Store(sqlite_file) as store:
        add(store, make_measurement(0, (1e-3,), **fields), failed, source=Source(EVIL))
        store.sessions.add(run_of(replace(network(EVIL), target=EVIL)))
    page = page_of(sqlite_file, name=EVIL)
    tables = Tables(page)
    assert tables.opened == []
    assert not re.search(r"<script>alert|<b>|\x1b|\u202e", page)
    assert [kind for kind, _ in tables.scripts].count(None) == 1
    assert not re.search(r"<link|<img|<iframe|\son\w+=\"", page)
    assert len(page) < 300_000


def test_page_without_timestamps_has_no_plot_over_time(sqlite_file):
    with Store(sqlite_file) as store:
        add(store, make_measurement(0, (1e-3,), measured_at=START), make_measurement(1, (2e-3,)))
    page = page_of(sqlite_file)
    assert "Best so far over trials" in page and "Best so far over time" not in page
    assert "foreign sources: nobody" not in page


def test_comparison_counts_faster_slower_and_unmatched_tasks(filled, sqlite_template, tmp_path):
    other = copied(sqlite_template, tmp_path / "other.db")
    with Store(other) as store:
        add(store, make_measurement(0, (4.1e-3,)))
        add(store, make_measurement(0, (5e-4,), workload=1, target=1))
        add(store, make_measurement(0, (1e-3,), workload=9))
    with Store(filled) as store, Store(other) as against:
        page = write(read(store), "here", against=(against, "there"))
    tables = Tables(page)
    rows = {row["name"]: row for row in tables.rows("Against there: Tasks")}
    assert rows["matmul_0"]["here / there"] == "0.500" and rows["matmul_0"]["verdict"] == "faster"
    assert rows["matmul_1"]["here / there"] == "2.000" and rows["matmul_1"]["verdict"] == "slower"
    assert "2 common tasks: 1 faster here, 1 slower" in tables.text
    assert "0 only here, 1 only there" in tables.text


def test_page_of_running_search_reloads_itself_and_that_of_damaged_trace_is_complete(filled):
    running = Running(("8 of 64 trials",), {"net": [(0.0, 3e-3), (1.0, 2e-3)]})
    with Store(filled) as store:
        page = write(read(store), "x", running=running, reload_after=5)
    assert '<meta http-equiv="refresh" content="5">' in page and "8 of 64 trials" in page
    assert [y for _, y in curve(page, "Time over the run", "net")] == [3, 2]
    sql(filled, "UPDATE program SET decisions = X'00' WHERE id = 5")
    page = page_of(filled)
    assert "refresh" not in page and Tables(page).opened == []


def test_page_shows_card_and_predictions_of_model(filled):
    figures = {"programs": 40, "workloads": 2, "target_digests": []}
    card = {
        **{"card": 1, "kind": "ranker", "data": figures, "learnt": figures},
        **{"features": {"name": "steps", "version": 1}, "recipe": {"loss": "rank"}},
        **{"evaluation": {"pairwise": 0.75}, "drift": {"pairwise_p5": 0.9}},
    }
    model = NewModel(b"m" * 16, "ranker", b"{}", b"t" * 16, card, None)
    with Store(filled) as store:
        id_ = store.models.add(model)
        store.models.add_predictions(id_, {n: -float(n) for n in range(8, 40)})
        store.models.add(replace(model, digest=b"o" * 16, card={"card": 0}))
    page = page_of(filled)
    tables = Tables(page)
    (row,) = tables.rows("Models: Cards")
    assert row["pairs in order"] == "75.0 %" and row["programs"] == "40"
    ranks = tables.rows("Predicted against measured")
    assert ranks and all(row["measured rank"] == row["predicted rank"] for row in ranks)
    svg = picture(page, f"model{id_}-ranks")
    x, y = axis(svg, "x"), axis(svg, "y")
    path = all_of(svg, "path", "dots")[0].get("d")
    drawn = [(x(float(a)), y(float(b))) for a, b in re.findall(r"M([\d.]+) ([\d.]+)h0", path)]
    expected = [tuple(map(float, row.values())) for row in ranks]
    np.testing.assert_allclose(drawn, expected, atol=0.002)

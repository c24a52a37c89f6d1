"""Pages in a real browser: at two widths, by day and by night, with and without scripts."""

import json
from importlib.resources import files
from itertools import product

import pytest
from browser import CHROMIUM, Browser
from databases import fill
from effort import long
from observing import observe
from pages import EVIL, Tables, curves, findings, launches
from public_logs import DATA

from tunedb.advisor.analysis.analyzer import analyse
from tunedb.formats.find import find_logs
from tunedb.formats.importer import import_log
from tunedb.report import database
from tunedb.report.advisor import write
from tunedb.report.contents import read
from tunedb.report.page import render
from tunedb.storage.store import Store
from tunedb.system.text import clean

pytest.importorskip("sklearn")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

WIDTHS = 390, 1280

#: The narrow window by day; a long run takes all windows.
WINDOWS = [
    (long if width > 390 or night else pytest.param)(width, night, id=f"{width} {time}")
    for width, (night, time) in product(WIDTHS, ((False, "day"), (True, "night")))
]

in_windows = pytest.mark.parametrize(("width", "night"), WINDOWS)

#: Returns the texts that overlap, are cut off or too small, how much wider than the window the page
#: is, and the links that lead nowhere.
MEASURE = """(() => {
const found = {wide: document.documentElement.scrollWidth - innerWidth, texts: 0,
  overlaps: [], outside: [], small: [], lost: []};
for (const svg of document.querySelectorAll('svg[role=img]')) {
  const frame = svg.getBoundingClientRect();
  if (!frame.width) continue;
  const texts = [...svg.querySelectorAll('text:not(.cluster)')].filter(one => one.textContent);
  const boxes = texts.map(one => one.getBoundingClientRect());
  found.texts += texts.length;
  boxes.forEach((a, i) => {
    const name = svg.id + ': ' + texts[i].textContent;
    if (a.left < frame.left - 1 || a.right > frame.right + 1 || a.top < frame.top - 1
        || a.bottom > frame.bottom + 1) found.outside.push(name);
    if (a.height < 8) found.small.push(name);
    boxes.slice(i + 1).forEach((b, j) => {
      const x = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const y = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (x > 1 && y > 3) found.overlaps.push(name + ' | ' + texts[i + j + 1].textContent);
    });
  });
}
for (const one of document.querySelectorAll('[href^="#"]'))
  if (!document.getElementById(one.getAttribute('href').slice(1))) found.lost.push(one.outerHTML);
return found;
})()"""

#: What is visible, and how many pixels of each chart have the colour c0.
CURVES = """(() => {
const seen = one => one.getClientRects().length > 0;
const colour = getComputedStyle(document.documentElement).getPropertyValue('--c0').trim();
const parts = [1, 3, 5].map(i => parseInt(colour.slice(i, i + 2), 16));
const pixels = canvas => {
  const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  let count = 0;
  for (let i = 0; i < data.length; i += 4)
    count += parts.every((part, k) => data[i + k] == part) && data[i + 3] == 255;
  return count;
};
return {
  canvases: [...document.querySelectorAll('canvas')].filter(seen).map(pixels),
  frames: [...document.querySelectorAll('.frame')].filter(seen).length,
  legends: [...document.querySelectorAll('.legend')].filter(seen).length,
};
})()"""

PROBLEMS = ("overlaps", "outside", "small", "lost")

READ_LEGEND = """Object.fromEntries([...document.querySelectorAll('.zoom')][0]
  .querySelectorAll('.u-series').values()
  .map(row => [...row.cells].map(cell => cell.textContent)))"""

PICTURE = "document.querySelector('canvas').toDataURL()"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("browser"))
    yield browser
    browser.close()


def check(tab):
    """Check that nothing overlaps, is cut off, too wide, or leads nowhere; return the measures."""
    found = tab.evaluate(MEASURE)
    assert {name: found[name] for name in PROBLEMS if found[name]} == {}
    assert found["wide"] <= 0
    assert tab.complaints == []
    return found


@pytest.fixture(scope="module")
def page():
    """The page of the advisor with long names and all of its sections."""
    made = launches(("sum", "void convolution<float, 8, 16>(float const*, float*, int)", "sort"))
    return write(analyse(made), findings())


@in_windows
def test_advisor_page_has_no_overlapping_or_cut_off_texts(browser, page, width, night):
    tab = browser.open(page, width, night=night)
    assert check(tab)["texts"] > 100
    paper = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(18, 22, 27)" if night else "rgb(246, 247, 249)")


def test_colours_of_launches_switch_without_scripts(browser, page):
    tab = browser.open(page, scripts=False)

    def seen():
        shown = tab.evaluate(
            "[...document.querySelectorAll('.legend')].filter(one => one.getClientRects().length)"
            ".map(one => one.className).filter(name => name.includes('for-'))"
        )
        fills = "[...document.querySelectorAll('#kinds .points use')]"
        return shown, tab.evaluate(f"{fills}.map(one => getComputedStyle(one).fill)")

    shown, before = seen()
    assert shown == ["legend for-a"]
    kernels = before[::20]
    assert len(set(kernels)) == 3
    assert before == [colour for colour in kernels for _ in range(20)]
    tab.click("label[for=mark-b]")
    shown, after = seen()
    assert shown == ["legend for-b"]
    # Blocks of 64 threads, then of 512.
    assert after[1] != after[4]


@pytest.mark.parametrize("width", [390, long(1280)])
def test_layout_holds_for_distant_block_sizes_and_large_numbers(browser, width):
    made = [
        observe(threads, 1e-2 if threads == 1 else 1e-3, slice=bytes([part]), record=part + 1)
        for part in range(30)
        for threads in (1, 2, 7, 33, 224, 1024)
    ]
    check(browser.open(write(analyse(made), findings()), width))


@in_windows
def test_script_of_the_page_draws_curves(browser, width, night):
    tab = browser.open(curves(), width, night=night)
    check(tab)
    found = tab.evaluate(CURVES)
    assert len(found["canvases"]) == 2
    assert min(found["canvases"]) > 100
    assert (found["frames"], found["legends"]) == (0, 0)


def test_page_shows_static_pictures_without_scripts(browser):
    tab = browser.open(curves(), 390, scripts=False)
    assert check(tab)["texts"] > 20
    assert tab.evaluate(CURVES) == {"canvases": [], "frames": 2, "legends": 2}


def test_policy_blocks_changed_script(browser):
    tab = browser.open(curves().replace('"use strict";', '"use strict"; '))
    assert any("Content Security Policy" in str(each) for each in tab.complaints)
    assert tab.evaluate(CURVES)["canvases"] == []


@pytest.mark.parametrize("name", [EVIL, long("</script><script>alert(1)</script><!--")])
def test_script_shows_hostile_names_as_text(browser, name):
    tab = browser.open(curves(name), 390)
    check(tab)
    assert len(tab.evaluate(CURVES)["canvases"]) == 2
    assert clean(f"best {name}") in tab.evaluate(READ_LEGEND)
    assert tab.evaluate("document.scripts.length") == 3


def test_arrow_keys_read_values_and_mouse_zooms(browser):
    page = curves()
    tab = browser.open(page)
    tab.evaluate("document.querySelector('.zoom').focus()")
    rows = Tables(page).rows("Rows of curve: curve")
    for row in rows:
        tab.press("ArrowRight")
        shown = tab.evaluate(READ_LEGEND)
        assert shown["trial curve"] == row["trial"]
        assert float(shown["best curve"]) == pytest.approx(float(row["ms"]), rel=1e-3)
    for row in rows[-2:0:-1]:
        tab.press("ArrowLeft")
        assert tab.evaluate(READ_LEGEND)["trial curve"] == row["trial"]
    whole = tab.evaluate(PICTURE)
    tab.drag(".zoom .u-over", (0.2, 0.2), (0.6, 0.9))
    tab.wait_until(f"{PICTURE} != {json.dumps(whole)}")
    tab.evaluate("document.querySelector('.zoom').focus()")
    tab.press("Escape")
    tab.wait_until(f"{PICTURE} == {json.dumps(whole)}")
    assert tab.complaints == []


def test_curves_adapt_to_resizing_dark_mode_and_printing(browser):
    tab = browser.open(curves())
    tab.resize(390)
    tab.wait_until("document.querySelector('canvas').clientWidth < 390")
    check(tab)
    tab.show(night=True)
    tab.wait_until(f"Math.min(...{CURVES}.canvases) > 100")
    tab.evaluate(f"addEventListener('beforeprint', () => {{ window.printed = {CURVES} }})")
    tab.call("Page.printToPDF")
    assert tab.evaluate("window.printed") == {"canvases": [], "frames": 2, "legends": 2}
    assert len(tab.evaluate(CURVES)["canvases"]) == 2
    assert tab.complaints == []


def test_reloading_can_be_paused(browser):
    timers = """
        window.timers = {};
        window.setTimeout = (run, delay) => { timers[delay] = run; return delay; };
        window.clearTimeout = delay => { delete timers[delay]; };
    """
    tab = browser.open(render("Page", "Lead", [], "End", reload_after=30), 390, before=timers)
    check(tab)
    assert tab.evaluate("Object.keys(timers)") == ["30000"]
    tab.evaluate("timers[30000]()")
    tab.wait_for_load(2)
    tab.click("#pause")
    assert tab.evaluate("Object.keys(timers)") == []
    assert tab.evaluate("document.querySelector('#pause').ariaPressed") == "true"
    tab.click("#pause")
    tab.wait_for_load(3)
    assert tab.evaluate("document.querySelector('#pause').ariaPressed") == "false"


def test_click_on_header_sorts_table_by_its_values(browser):
    tab = browser.open(curves())
    table = "section[aria-labelledby=section2] table"

    def sort_by(column):
        head, cells = (f"{table} {tag}:nth-child({column})" for tag in ("th", "td"))
        tab.click(f"{head} button")
        texts = f"[...document.querySelectorAll('{cells}')].map(one => one.textContent)"
        return tab.evaluate(f"[document.querySelector('{head}').ariaSort, {texts}]")

    _, names = sort_by(1)
    assert names == sorted(names)
    direction, times = sort_by(4)
    assert (direction, times[0], times[-1]) == ("ascending", "50.00 µs", "80.00 ms")
    assert {each.split()[1] for each in times} == {"ms", "µs"}
    direction, other = sort_by(4)
    assert (direction, other) == ("descending", times[::-1])
    _, numbers = sort_by(2)
    assert numbers == [str(n) for n in range(1, 41)]
    assert tab.evaluate(f"document.querySelectorAll('{table} th[aria-sort]').length") == 1


#: Unfolds all, and removes the shades of backgrounds, over which axe measures no contrast.
UNFOLD = """
const style = document.createElement('style');
style.textContent = '.frame, .scroll { background: var(--card) !important }';
document.head.append(style);
for (const one of document.querySelectorAll('details')) one.open = true;
"""


@pytest.fixture(scope="module")
def databases(tmp_path_factory):
    """Pages of a tuned network, and of public logs if they are on this machine."""
    folder = tmp_path_factory.mktemp("databases")
    paths = [folder / "network.db"]
    fill(paths[0])
    if DATA.is_dir():
        paths.append(folder / "logs.db")
        with Store(paths[-1]) as store:
            for log in find_logs([DATA / "ansor" / "lprnet_llvm", DATA / "gpu" / "ktt"]):
                import_log(store, log, source=log.name)
    pages = []
    for path in paths:
        with Store(path) as store:
            pages.append(database.write(read(store), path.name))
    return pages


@pytest.mark.stress
@pytest.mark.parametrize(("width", "night"), [*product(WIDTHS, (False, True))])
def test_database_pages_pass_layout_checks_with_and_without_scripts(
    browser, databases, width, night
):
    for page in databases:
        tab = browser.open(page, width, night=night)
        check(tab)
        assert min(tab.evaluate(CURVES)["canvases"]) > 50
        assert check(browser.open(page, width, night=night, scripts=False))["texts"] > 50
        # A page of logs keeps axe busy for a minute, and has nothing that differs by window.
        if page is databases[0]:
            check_with_axe(tab)


@in_windows
@pytest.mark.parametrize("kind", ["curves", long("advisor")])
def test_axe_finds_no_accessibility_problem(browser, page, kind, width, night):
    page = page if kind == "advisor" else curves(reload_after=3600)
    check_with_axe(browser.open(page, width, night=night))


def check_with_axe(tab):
    """Check that axe finds nothing on a page whose parts are unfolded."""
    pytest.importorskip("axe_core_python")
    tab.evaluate(UNFOLD)
    tab.evaluate(files("axe_core_python").joinpath("axe.min.js").read_text())
    found = tab.evaluate("axe.run(document, {resultTypes: ['passes', 'violations']})")
    problems = [
        (each["id"], each["impact"], [node["html"][:200] for node in each["nodes"][:3]])
        for each in found["violations"]
    ]
    assert problems == []
    (contrast,) = (each for each in found["passes"] if each["id"] == "color-contrast")
    assert len(contrast["nodes"]) > 150

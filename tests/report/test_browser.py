"""The page in a real browser: nothing overlaps, nothing is cut off, at two widths and by night."""

import html
import json
import os
import re
import shutil
import subprocess

import pytest
from observing import observe
from pages import findings, launches

from tunedb.advisor.analysis.analyzer import analyse
from tunedb.report.advisor import write

pytest.importorskip("sklearn")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

#: Says what overlaps, what is cut off, and whether the page is wider than the window.
MEASURE = """
const found = {wide: document.documentElement.scrollWidth - window.innerWidth, texts: 0,
  overlaps: [], outside: [], small: [], shown: []};
for (const svg of document.querySelectorAll('svg[role=img]')) {
  const frame = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll('text:not(.cluster)')];
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
for (const one of document.querySelectorAll('.legend'))
  if (getComputedStyle(one).display !== 'none') found.shown.push(one.className);
const fills = () => [...document.querySelectorAll('.points use')]
  .map(one => getComputedStyle(one).fill);
found.before = fills();
document.querySelector('#mark-b').checked = true;
found.after = fills();
found.paper = getComputedStyle(document.body).backgroundColor;
parent.document.body.textContent = 'measured' + JSON.stringify(found) + 'measured';
"""


def measure(page, tmp_path, width, *, night=False):
    """Return what a browser says of a page in a window of some width."""
    page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    if night:
        page = page.replace("prefers-color-scheme:dark", "min-width:1px")
    page = page.replace("</body>", f"<script>{MEASURE}</script></body>")
    # Windows have a least width; frames have none.
    style = f"border:0;width:{width}px;height:900px"
    whole = f'<body><iframe style="{style}" srcdoc="{html.escape(page)}"></iframe></body>'
    path = tmp_path / "page.html"
    path.write_text(f"<!DOCTYPE html><meta charset=utf-8>{whole}", encoding="utf-8")
    done = subprocess.run(
        [
            CHROMIUM,
            *("--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"),
            *(f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1300,1000"),
            *("--virtual-time-budget=5000", path.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "HOME": str(tmp_path)},
        check=True,
    )
    return json.loads(html.unescape(done.stdout.split("measured")[1]))


@pytest.fixture(scope="module")
def page():
    """A page with long names, and all that may be on it."""
    made = launches(("sum", "void convolution<float, 8, 16>(float const*, float*, int)", "sort"))
    return write(analyse(made), findings())


@pytest.mark.parametrize("width", [1280, 400])
def test_nothing_overlaps_or_is_cut_off(page, tmp_path, width):
    found = measure(page, tmp_path, width)
    assert found["texts"] > 100
    assert found["wide"] <= 0
    assert found["overlaps"] == []
    assert found["outside"] == []
    assert found["small"] == []


def test_markings_switch_without_scripts(page, tmp_path):
    found = measure(page, tmp_path, 1280)
    shown = [name for name in found["shown"] if "for-" in name]
    assert shown == ["legend for-a"]
    kernels = found["before"][::20]
    assert len(set(kernels)) == 3
    assert found["before"] == [colour for colour in kernels for _ in range(20)]
    # Blocks of 64 threads, then of 512.
    assert found["after"][1] != found["after"][4]


def test_night(page, tmp_path):
    assert measure(page, tmp_path, 1280)["paper"] == "rgb(246, 247, 249)"
    assert measure(page, tmp_path, 1280, night=True)["paper"] == "rgb(18, 22, 27)"


def test_sizes_far_apart_and_large_numbers(tmp_path):
    sizes = (1, 2, 7, 33, 224, 1024)
    made = [
        observe(threads, 1e-3 * (1 + 9 * (threads == 1)), slice=bytes([part]), record=part + 1)
        for part in range(30)
        for threads in sizes
    ]
    page = write(analyse(made), findings())
    for width in (1280, 400):
        found = measure(page, tmp_path, width)
        assert (found["overlaps"], found["outside"], found["wide"] > 0) == ([], [], False)

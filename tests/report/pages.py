"""Made-up launches and evaluations of advice, and a parser of pages."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
from observing import observe

from tunedb.advisor.learn.findings import AdvisorFindings, Interval, Score
from tunedb.report.charts import Axis, Mark, chart, zoomable
from tunedb.report.page import Key, Plot, Section, Table, render, seconds

#: A name with markup, control characters and a line break.
EVIL = "<script>alert(1)</script>&\"'\u202ekernel\x1b[31m]]>\n<b>"

VOID = {"meta", "input", "br"}


def launches(kernels=("sum", "blur", "sort"), slices=4, sizes=(32, 64, 128, 256, 512), seed=0):
    """Return launches whose counters follow kernel and block, with some noise."""
    random = np.random.default_rng(seed)
    made = []
    for number, kernel in enumerate(kernels):
        for part in range(slices):
            for threads in sizes:
                record = len(made) + 1
                time = 1 + 0.2 * abs(np.log2(threads) - 6 - number) + 0.02 * random.random()
                memory = 20.0 + 30 * number + 5 * random.random()
                counters = {
                    "dram_utilization": memory,
                    "l2_utilization": memory * 0.5 + 10 * random.random(),
                    "achieved_occupancy": min(100.0, threads / 8 + 3 * random.random()),
                    "inst_executed": float(10 ** (4 + number) * (1 + random.random())),
                    "gld_request": float(10 ** (3 + number) * (1 + random.random())),
                    "shared_load_replay": 0.0,
                }
                names = {"kernel": kernel, "slice": bytes([number, part])}
                fields = {"record": record, "launch": record, "registers": 24 + 8 * number}
                one = observe(threads, float(1e-3 * time), counters=counters, **names, **fields)
                made.append(one)
    return made


def findings():
    """Return a made-up evaluation of advice."""
    scores = []
    for split, factor in (("random", 1.0), ("kernel", 0.7)):
        for method, value in (("svm", 0.8), ("rule", 0.5), ("nothing", 1 / 3)):
            regret = Interval(*(end - value / 2 for end in (1.5, 1.45, 1.58)))
            figures = (60, 45, 0, 32, 0.7, value * factor, regret, regret, 1.1)
            scores.append(Score(method, split, "", "", *figures))
    return AdvisorFindings(
        labels="slice-best",
        inputs="ratios",
        tolerance=0.05,
        classes=("decrease", "noChange", "increase"),
        counts=(20, 20, 20),
        observations=60,
        unlabelled=0,
        slices=12,
        kernels=("sum", "blur", "sort"),
        scores=tuple(scores),
        confusion={"svm": np.array([[10, 5, 5], [0, 20, 0], [7, 0, 13]])},
        notes=("Three kernels are few.",),
    )


def curves(name="curve", **options):
    """Return a page with two zoomable charts, tables, a long text and a nested section."""
    trials = list(range(1, 41))
    axes = Axis.around(f"trial {name}", trials), Axis.around("time", [0.5, 80], logarithmic=True)
    marks = [
        Mark("dots", trials, [80 / n + n % 3 for n in trials], colour="other", name="trials"),
        Mark("step", trials, [80 / n for n in trials], name=f"best {name}"),
        Mark("line", [5, 10, 20], [9.0, float("nan"), 4.0], colour="c1", name="model"),
        Mark("line", [], [], colour="c2", name="no point"),
    ]
    parity = [None if n % 2 else "even" for n in trials]
    rows = [(f"{name} {n}", n, 80 / n, seconds(0.08 / n**2), parity[n - 1]) for n in trials]
    table = Table(("name", "trial", "ms", "time", "parity"), rows, 3, more=f"tunedb show {name}")
    plots = [
        Plot(
            f"Search {key} of {name}",
            f"Caption of {name}",
            chart(key, f"Search {key} of {name}", f"Description of {name}", axes, marks),
            table,
            keys=(Key(name, "c0"), Key("trials", "other")),
            zoom=zoomable(axes, marks),
        )
        for key in ("first", "second")
    ]
    part = Section("Part", notes=(name,), texts={f"Program of {name}": f"for i:\n    {name}"})
    sections = [
        Section("Curves", (name,), plots=(plots,), parts=(part,)),
        Section(f"Rows of {name}", tables={name: replace(table, most=len(rows))}),
    ]
    return render(f"Page of {name}", f"Lead of {name}", sections, f"Footer of {name}", **options)


class Tables(HTMLParser):
    """The tables of a page by their title; its text, identifiers and scripts."""

    def __init__(self, page):
        super().__init__()
        self.tables, self.values, self.words, self.opened = {}, {}, [], []
        self.headings, self.scripts = {}, []
        self._title = self._cell = self._heading = None
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if tag not in VOID:
            self.opened.append(tag)
        if "id" in values:
            assert values["id"] not in self.headings
            self._heading = values["id"]
            self.headings[self._heading] = ""
        if tag == "script":
            self.scripts.append((values.get("type"), []))
        elif tag == "div" and values.get("class") == "scroll":
            self._title = values.get("aria-label") or self.headings[values["aria-labelledby"]]
            self.tables[self._title], self.values[self._title] = [], []
        elif tag == "tr":
            self.tables[self._title].append([])
            self.values[self._title].append([])
        elif tag in ("td", "th"):
            self._cell = []
            self.values[self._title][-1].append(values.get("data-value"))

    def handle_endtag(self, tag):
        assert self.opened.pop() == tag
        self._heading = None
        if tag in ("td", "th"):
            self.tables[self._title][-1].append("".join(self._cell))
            self._cell = None

    def handle_data(self, data):
        if self.opened and self.opened[-1] == "script":
            self.scripts[-1][1].append(data)
            return
        self.words.append(data)
        if self._heading is not None:
            self.headings[self._heading] += data
        if self._cell is not None:
            self._cell.append(data)

    def rows(self, title):
        """Return the rows of a table as dictionaries."""
        head, *rows = self.tables[title]
        return [dict(zip(head, row, strict=True)) for row in rows]

    @property
    def text(self):
        return "".join(self.words)


def picture(page, key):
    """Return one of the pictures of a page."""
    found = re.search(rf'<svg [^>]*id="{key}".*?</svg>', page, re.DOTALL)
    return ElementTree.fromstring(found[0])


def axis(svg, name, *, logarithmic=False):
    """Return a function from coordinates to numbers, read from the ticks of an axis."""
    group = next(one for one in svg.iter("g") if one.get("class") == f"axis {name}")
    texts = [one for one in group.iter("text") if one.get("class") != "name"]
    shift = 0 if name == "x" else -4
    ticks = [(float(one.get(name)) + shift, float(one.text)) for one in texts]
    (p0, v0), (p1, v1) = ticks[0], ticks[-1]
    if logarithmic:
        return lambda at: v0 * (v1 / v0) ** ((at - p0) / (p1 - p0))
    return lambda at: v0 + (at - p0) / (p1 - p0) * (v1 - v0)


def corners(path):
    """Return the points of a path of straight lines, or of dots."""
    found = re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", path.get("d"))
    return [(float(x), float(y)) for x, y in found]


def all_of(svg, tag, kind):
    """Return the elements of a picture that have a class."""
    return [one for one in svg.iter(tag) if kind in (one.get("class") or "").split()]


def shades(svg):
    """Return the opacities of the squares of a heat map, with their signs."""
    return [
        float(one.get("fill-opacity")) * (1 if "positive" in one.get("class") else -1)
        for one in all_of(svg, "rect", "cell")
    ]


def boxes_of(svg):
    """Return the boxes of a picture of a tree by their paths."""
    groups = [one for one in svg.iter("g") if one.get("class") in ("node", "leaf")]
    return {one.find("title").text.split(":")[0]: one for one in groups}

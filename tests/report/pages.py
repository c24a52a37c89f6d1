"""Made-up launches, judgements of advice, and reading a page again."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
from observing import observe

from tunedb.advisor.learn.findings import AdvisorFindings, Interval, Score

#: A name that would run, hide or break something.
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
                made.append(
                    observe(
                        threads,
                        float(1e-3 * time),
                        slice=bytes([number, part]),
                        record=record,
                        launch=record,
                        kernel=kernel,
                        counters=counters,
                        registers=24 + 8 * number,
                    )
                )
    return made


def findings():
    """Return what judging advice may come to."""
    scores = []
    for split, factor in (("random", 1.0), ("kernel", 0.7)):
        for method, value in (("svm", 0.8), ("rule", 0.5), ("nothing", 1 / 3)):
            regret = Interval(1.5 - value / 2, 1.45 - value / 2, 1.58 - value / 2)
            score = Score(
                method, split, "", "", 60, 45, 0, 32, 0.7, value * factor, regret, regret, 1.1
            )
            scores.append(score)
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


class Tables(HTMLParser):
    """The tables of a page by the title of what they belong to; and its text."""

    def __init__(self, page):
        super().__init__()
        self.tables, self.words, self.opened, self.ids = {}, [], [], []
        self._title = self._cell = None
        self._heading = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if "id" in values:
            self.ids.append(values["id"])
        if tag not in VOID:
            self.opened.append(tag)
        if tag in ("h3", "h4"):
            self._heading = []
        elif tag == "div" and values.get("class") == "scroll":
            self._title = values.get("aria-label") or "".join(self._heading)
            self.tables[self._title] = []
        elif tag == "tr":
            self.tables[self._title].append([])
        elif tag in ("td", "th"):
            self._cell = []

    def handle_endtag(self, tag):
        assert self.opened.pop() == tag
        if tag in ("td", "th"):
            self.tables[self._title][-1].append("".join(self._cell))
            self._cell = None

    def handle_data(self, data):
        self.words.append(data)
        if self.opened and self.opened[-1] in ("h3", "h4"):
            self._heading.append(data)
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


def axis(svg, name):
    """Return a function from places to numbers, read from the ticks of an axis."""
    group = next(one for one in svg.iter("g") if one.get("class") == f"axis {name}")
    texts = [one for one in group.iter("text") if one.get("class") != "name"]
    place = "x" if name == "x" else "y"
    shift = 0 if name == "x" else -4
    ticks = [(float(one.get(place)) + shift, float(one.text)) for one in texts]
    (p0, v0), (p1, v1) = ticks[0], ticks[-1]
    return lambda at: v0 + (at - p0) / (p1 - p0) * (v1 - v0)


def all_of(svg, tag, kind):
    """Return the elements of a picture that have a class."""
    return [one for one in svg.iter(tag) if kind in (one.get("class") or "").split()]

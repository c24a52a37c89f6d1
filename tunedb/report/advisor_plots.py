"""Plots of the advisor's page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from xml.etree.ElementTree import Element

import numpy as np
import numpy.typing as npt

from ..advisor.analysis.clusters import NO_STRUCTURE, Clusters, Ellipse
from ..advisor.analysis.components import Components
from ..advisor.analysis.times import KernelTimes, SliceGain
from ..advisor.analysis.trees import TreeNode
from ..advisor.learn.findings import AdvisorFindings, Interval, Score
from ..advisor.observations import LABELS
from .page import COLOURS, LETTERS, SHAPES, Cell, Key, Marking, Plot, Table, colour
from .svg import (
    Scale,
    add,
    cut,
    figure,
    number,
    padded,
    percent,
    polyline,
    significant,
    text_width,
    visible,
    x_axis,
    y_axis,
)

Floats = npt.NDArray[np.float64]

#: Longest name of a kernel in a title or legend.
KERNEL_CHARS = 60

#: Longest name of an input beside a plot.
INPUT_CHARS = 34

# ---- Inputs: correlation, components, clusters ---------------------------------------------------

#: Minus sign; unlike a hyphen, it never ends a line.
_MINUS = "\u2212"

#: Loading from which an input belongs to a component: half of its variance.
STRONG = 0.7


def correlation_plot(names: Sequence[str], matrix: Floats) -> Plot:
    """Draw the correlation of each pair of inputs as a square."""
    count = len(names)
    # One name per row: smaller ones are not legible.
    side = max(13.0, min(26.0, 640.0 / count))
    left, top = 56 + text_width("m" * min(max(map(len, names)), INPUT_CHARS), 11), 30.0
    strongest = np.abs(np.where(np.eye(count, dtype=bool), 0, np.nan_to_num(matrix)))
    caption = (
        f"{count} selected inputs; darker squares are stronger correlations. The strongest pair "
        f"has |r| = {strongest.max() if count else 0:.2f}. A cross marks a pair that no launch "
        "has, or of which one input is constant."
    )
    title = "Correlation of the inputs"
    svg = figure(left + side * count + 8, top + side * count + 8, title, caption, "corr")
    for i, name in enumerate(names):
        middle = (i + 0.5) * side
        label = f"{cut(name, INPUT_CHARS)} {i + 1}"
        add(svg, "text", label, class_="tiny", x=left - 6, y=top + middle + 4, text_anchor="end")
        if side >= 14 or i % 2 == 0:
            position = {"x": left + middle, "y": top - 7}
            add(svg, "text", str(i + 1), class_="tiny", text_anchor="middle", **position)
        for j in range(count):
            _draw_square(svg, float(matrix[i, j]), left + j * side, top + middle - side / 2, side)
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (name, *map(float, row)) for name, row in zip(names, matrix, strict=True)
    )
    table = Table(("input", *names), rows)
    return Plot(title, caption, svg, table, wide=True, scrolls=True)


def _draw_square(svg: Element, value: float, x: float, y: float, side: float) -> None:
    """Draw a correlation; an unknown one as a cross."""
    if np.isnan(value):
        down = f"M{x + 3:.1f} {y + 3:.1f}l{side - 6:.1f} {side - 6:.1f}"
        up = f"m0 {6 - side:.1f}l{6 - side:.1f} {side - 6:.1f}"
        add(svg, "path", class_="cross", d=down + up)
        return
    kind = "positive" if value >= 0 else "negative"
    box = {"x": x + 0.5, "y": y + 0.5, "width": side - 1, "height": side - 1}
    add(svg, "rect", class_=f"cell {kind}", fill_opacity=abs(value), **box)


def scatter_plot(
    components: Components,
    clusters: Clusters | None,
    ellipses: Sequence[Ellipse | None],
    drawn: npt.NDArray[np.int64],
    markings: Sequence[tuple[Marking, Sequence[int]]],
    described: tuple[Sequence[str], Sequence[tuple[Cell, ...]]],
) -> Plot:
    """Draw launches in the plane of the two components that explain most variance.

    Parameters
    ----------
    components : Components
        Two or more components of the launches.
    clusters : Clusters or None
        Clusters of the same launches.
    ellipses : sequence of Ellipse or None
        Ellipse of each cluster in the plane of the two components.
    drawn : ndarray of int64, shape (n,)
        Rows of the plotted launches.
    markings : sequence of (Marking, sequence of int)
        Colourings, with the number of each launch's key; the first also gives the shapes.
    described : (sequence of str, sequence of tuple)
        Columns of the table, and cells of each launch.

    Returns
    -------
    Plot
        Its table has a row for each point.
    """
    points, count = components.scores[:, :2], len(components.scores)
    outlines = [ellipse.outline() for ellipse in ellipses if ellipse is not None]
    extent = np.vstack([points[drawn], *outlines])
    width, height = 580.0, 440.0
    title, caption = "Groups of launches", _scatter_caption(len(drawn), count, clusters)
    svg = figure(width, height, title, caption, "kinds")
    x = Scale(*padded(extent[:, 0]), 52, width - 10)
    y = Scale(*padded(extent[:, 1]), height - 44, 30)
    shares = [
        f"component {k + 1} ({percent(components.shares[k])} of the variance)" for k in (0, 1)
    ]
    x_axis(svg, x, y.start, shares[0], top=y.end)
    y_axis(svg, y, 52, shares[1], right=x.end)
    for outline in outlines:
        path = polyline([(x(a), y(b)) for a, b in outline], closed=True)
        add(svg, "path", class_="ellipse", d=path)
    group = add(svg, "g", class_="points")
    for row in drawn.tolist():
        keys = [marking.keys[numbers[row]] for marking, numbers in markings]
        classes = " ".join(f"{LETTERS[i]}-{key.colour}" for i, key in enumerate(keys))
        position = {"x": x(float(points[row, 0])), "y": y(float(points[row, 1]))}
        add(group, "use", href=f"#p{keys[0].shape % SHAPES}", class_=classes, **position)
    for index, ellipse in enumerate(ellipses):
        if ellipse is not None:
            position = {"x": x(ellipse.x), "y": y(ellipse.y) + 5}
            add(svg, "text", str(index + 1), class_="cluster", text_anchor="middle", **position)
    columns, cells = described
    rows = tuple(
        (
            *cells[row],
            None if clusters is None else int(clusters.assignment[row]) + 1,
            *map(float, points[row]),
        )
        for row in drawn.tolist()
    )
    table = Table((*columns, "cluster", "component 1", "component 2"), rows)
    kinds = tuple(marking for marking, _ in markings)
    return Plot(title, caption, svg, table, markings=kinds, wide=True)


def _scatter_caption(drawn: int, count: int, clusters: Clusters | None) -> str:
    part = f"{count:,}" if drawn == count else f"a random {drawn:,} of {count:,}"
    text = f"Each point is a launch ({part}). Near points have similar inputs."
    if clusters is None:
        return f"{text} There are too few different launches for clusters."
    text += (
        f" Ellipses enclose 95 % of each of the {clusters.count} k-means clusters. Their mean "
        f"silhouette is {clusters.silhouette:.2f}"
    )
    weak = clusters.silhouette <= NO_STRUCTURE
    return f"{text}, so there is hardly any structure." if weak else f"{text}."


def silhouette_plot(clusters: Clusters) -> Plot:
    """Draw the silhouette of each number of clusters."""
    scores = sorted(clusters.silhouettes.items())
    title = "Number of clusters"
    caption = (
        f"Mean silhouette for each number of clusters; {clusters.count} clusters have the highest."
    )
    width, height = 400.0, 250.0
    svg = figure(width, height, title, caption, "silhouette")
    values = [value for _, value in scores]
    y = Scale(min(0.0, *values), max(0.3, *values) * 1.08, height - 44, 28)
    y_axis(svg, y, 48, "mean silhouette", right=width - 10)
    step = (width - 60) / len(scores)
    group = add(svg, "g", class_="axis x")
    for index, (k, value) in enumerate(scores):
        middle = 48 + step * (index + 0.5)
        kind = "bar c0" if k == clusters.count else "bar other"
        top, bottom = sorted((y(value), y(0)))
        box = {"x": middle - step * 0.35, "y": top, "width": step * 0.7, "height": bottom - top}
        add(svg, "rect", class_=kind, **box)
        add(group, "text", str(k), x=middle, y=y.start + 17, text_anchor="middle")
    _name_axis(group, "number of clusters", 48.0, width, y(0), y.start + 37)
    return Plot(title, caption, svg, Table(("clusters", "silhouette"), tuple(scores)))


def _name_axis(
    group: Element, title: str, left: float, width: float, y: float, below: float
) -> None:
    """Draw the base line of bars and the name of their axis below it."""
    add(group, "line", class_="base", x1=left, x2=width - 10, y1=y, y2=y)
    add(group, "text", title, class_="name", x=width / 2, y=below, text_anchor="middle")


def rotated_plot(components: Components) -> Plot:
    """Draw the contribution of each input to each rotated component as bars."""
    names, rotated = components.names, components.rotated
    r = rotated.shape[1]
    order = segment_order(rotated)
    title = "Rotated components"
    caption = (
        "Each column is a composite feature. A bar is an input's correlation with it, from -1 to "
        "1; strong ones are filled."
    )
    left = 14 + text_width("m" * min(max(map(len, names)), INPUT_CHARS), 11)
    column, step, top = max(96.0, min(150.0, 640.0 / r)), 19.0, 44.0
    height = top + step * len(order) + 10
    svg = figure(left + column * r + 6, height, title, caption, "rotated")
    for k in range(r):
        middle = left + column * (k + 0.5)
        attributes = {"class_": "name", "x": middle, "text_anchor": "middle"}
        add(svg, "text", f"{k + 1}", y=16.0, **attributes)
        add(svg, "text", percent(components.rotated_shares[k]), y=32.0, **attributes)
        add(svg, "line", class_="base", x1=middle, x2=middle, y1=top - 4, y2=height - 4)
    for row, index in enumerate(order):
        y = top + step * row
        name = cut(names[index], INPUT_CHARS)
        add(svg, "text", name, class_="tiny", x=left - 6, y=y + 13, text_anchor="end")
        for k in range(r):
            value = float(rotated[index, k])
            middle, length = left + column * (k + 0.5), abs(value) * (column / 2 - 5)
            kind = "positive" if value >= 0 else "negative"
            kind += "" if abs(value) >= STRONG else " weak"
            x = middle if value >= 0 else middle - length
            box = {"x": x, "y": y + 3, "width": length, "height": step - 6}
            add(svg, "rect", class_=f"segment {kind}", **box)
    columns = ("input", *(f"component {k + 1}" for k in range(r)))
    rows: tuple[tuple[Cell, ...], ...] = tuple((names[i], *map(float, rotated[i])) for i in order)
    text = "\n".join(_composite(components, k) for k in range(r))
    table = Table(columns, rows)
    return Plot(title, caption, svg, table, text=text, wide=True, scrolls=True)


def segment_order(rotated: Floats) -> list[int]:
    """Return the inputs ordered by their strongest component and their loading on it."""
    best = np.abs(rotated).argmax(axis=1)
    strength = np.abs(rotated).max(axis=1)
    return [int(index) for index in np.lexsort((np.arange(len(best)), -strength, best))]


def _composite(components: Components, k: int) -> str:
    """Return the strong inputs of a component with their signs."""
    column = components.rotated[:, k]
    strong = [i for i in np.argsort(-np.abs(column), kind="stable") if abs(column[i]) >= STRONG]
    signed = [f"{'+' if column[i] > 0 else _MINUS}{visible(components.names[i])}" for i in strong]
    share = f"{k + 1} ({percent(components.rotated_shares[k])})"
    return f"{share}: {', '.join(signed) or 'no strong input'}"


# ---- Run times: against block size, and the gain from the block alone ----------------------------

#: Edges of the bins of gains; the last bin is open.
EDGES = (1.0, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0)


def time_plot(times: KernelTimes, index: int) -> Plot:
    """Draw the time divided by the slice's best time over the block size of a kernel and device."""
    width, height = 400.0, 250.0
    sizes = times.sizes
    threads = [size.threads for size in sizes]
    title = f"{cut(times.kernel, KERNEL_CHARS)} on {cut(times.device, KERNEL_CHARS)}"
    slices = "1 slice" if times.slices == 1 else f"{times.slices:,} slices"
    fastest = min(sizes, key=lambda size: (size.median, size.threads))
    caption = (
        f"{times.launches:,} launches in {slices}. Blocks of {fastest.threads:,} threads have the "
        f"lowest median: {fastest.median:.2f} times the best time of the slice."
    )
    svg = figure(width, height, title, caption, f"time{index}")
    x = Scale(min(threads) / 1.15, max(threads) * 1.15, 48, width - 12, logarithmic=True)
    most = max(1.1, *(size.high for size in sizes)) * 1.03
    y = Scale(1.0, most, height - 44, 28, logarithmic=most > 4)
    ticks = [1.0, *[tick for tick in y.ticks(4) if tick > 1.0]]
    y_axis(svg, y, 48, "time / best", right=x.end, ticks=ticks, show=lambda v: significant(v, 3))
    x_axis(svg, x, y.start, "threads of a block", ticks=_thread_ticks(x))
    band = [(x(size.threads), y(size.high)) for size in sizes]
    band += [(x(size.threads), y(size.low)) for size in reversed(sizes)]
    add(svg, "path", class_="band", d=polyline(band, closed=True))
    medians = [(x(size.threads), y(size.median)) for size in sizes]
    add(svg, "path", class_="line", d=polyline(medians))
    for cx, cy in medians:
        add(svg, "circle", class_="median", cx=cx, cy=cy, r=3.0)
    rows = tuple(
        (s.threads, s.launches, s.low, s.median, s.high, s.best, s.best / times.slices)
        for s in sizes
    )
    columns = ("threads", "launches", "10 %", "median", "90 %", "best of slices", "share of them")
    return Plot(title, caption, svg, Table(columns, rows), small=True)


def _thread_ticks(scale: Scale) -> list[float]:
    """Return powers of two, or the ends of the scale if it has fewer than two."""
    powers = scale.ticks(6)
    return powers if len(powers) > 1 else [round(scale.low * 1.15), round(scale.high / 1.15)]


def bins(gains: Floats) -> list[int]:
    """Return the number of gains in each bin; the first also has gains rounded below 1."""
    indices = np.clip(np.searchsorted(EDGES, gains, side="right") - 1, 0, len(EDGES) - 1)
    return [int(count) for count in np.bincount(indices, minlength=len(EDGES))]


def bin_names() -> list[str]:
    """Return the names of the bins."""
    inner = [f"{number(low)}–{number(high)}" for low, high in pairwise(EDGES)]  # noqa: RUF001
    return [*inner, f"over {number(EDGES[-1])}"]


def gain_plot(slices: Sequence[SliceGain], *, base: int = 256) -> Plot:
    """Draw a histogram of the slices' gains from their best block."""
    kernels = [kernel for kernel, _ in Counter(gain.kernel for gain in slices).most_common()]
    shown = kernels[:COLOURS]
    rest = len(kernels) - len(shown)
    names = [*shown, f"{rest} other kernels"] if rest else shown
    groups = [np.array([s.gain for s in slices if s.kernel == name]) for name in shown]
    if rest:
        groups.append(np.array([s.gain for s in slices if s.kernel not in shown]))
    counts = [bins(group) for group in groups]
    gains = np.array([s.gain for s in slices])
    low, median, high = np.quantile(gains, (0.1, 0.5, 0.9))
    worth = int((gains > 1.05).sum())
    title = "Gain from the best block"
    caption = (
        f"Time at the size nearest to {base} threads divided by the best time of the slice. "
        f"Median {median:.3f}, 10 % below {low:.3f}, 10 % above {high:.3f}; {worth:,} of "
        f"{len(gains):,} slices gain more than 5 %."
    )
    keys = tuple(Key(cut(name, KERNEL_CHARS), colour(i)) for i, name in enumerate(names))
    cells = zip(bin_names(), *counts, strict=True)
    rows = tuple((name, *numbers, sum(numbers)) for name, *numbers in cells)
    table = Table(("gain", *(cut(name, KERNEL_CHARS) for name in names), "all"), rows)
    return Plot(title, caption, _stacked_bars(counts, title, caption), table, keys=keys)


def _stacked_bars(counts: list[list[int]], title: str, caption: str) -> Element:
    """Draw the number of slices in each bin as stacked bars."""
    width, height = 560.0, 330.0
    svg = figure(width, height, title, caption, "gains")
    totals = [sum(numbers) for numbers in zip(*counts, strict=True)]
    y = Scale(0, max(*totals, 1) * 1.08, height - 44, 30)
    y_axis(svg, y, 52, "slices", right=width - 10, ticks=[v for v in y.ticks() if v == int(v)])
    step = (width - 62) / len(totals)
    group = add(svg, "g", class_="axis x")
    for i, total in enumerate(totals):
        middle = 52 + step * (i + 0.5)
        below = 0
        for index, numbers in enumerate(counts):
            if numbers[i]:
                top, bottom = y(below + numbers[i]), y(below)
                box = {"x": middle - step * 0.38, "width": step * 0.76}
                box |= {"y": top, "height": bottom - top}
                add(svg, "rect", class_=f"bar {colour(index)}", **box)
            below += numbers[i]
        if total:
            add(svg, "text", f"{total:,}", x=middle, y=y(total) - 5, text_anchor="middle")
        edge = number(EDGES[i])
        add(group, "text", edge, x=middle - step / 2, y=y.start + 17, text_anchor="middle")
    add(group, "text", "more", x=width - 10, y=y.start + 17, text_anchor="end")
    _name_axis(group, "time at the usual size / best time", 52.0, width, y.start, y.start + 37)
    return svg


# ---- Quality of the advice: its errors, and the times after it -----------------------------------

#: Names of the splits, the strictest last.
SPLITS = {"random": "launches at random", "slice": "whole slices", "kernel": "whole kernels"}

_ROW_HEIGHT = 26.0


def confusion_plot(
    method: str, matrix: npt.NDArray[np.int64], classes: Sequence[str], index: int
) -> Plot:
    """Draw the confusion matrix of the advice on held-out kernels."""
    total, right = int(matrix.sum()), int(np.trace(matrix))
    caption = (
        f"{right:,} of {total:,} launches of held-out kernels got the right advice. Percentages "
        "are shares of the launches with the label of the row."
    )
    width, left, top, cell_width, cell_height = 400.0, 96.0, 48.0, 94.0, 46.0
    title = f"Advice of {cut(method, 30)}"
    height = top + cell_height * len(classes) + 8
    svg = figure(width, height, title, caption, f"confusion{index}")
    middle = left + cell_width * 1.5
    add(svg, "text", "advice", class_="name", x=middle, y=16.0, text_anchor="middle")
    add(svg, "text", "label", class_="name", x=left - 10, y=top - 10, text_anchor="end")
    for j, name in enumerate(classes):
        middle = left + cell_width * (j + 0.5)
        add(svg, "text", name, x=middle, y=top - 10, text_anchor="middle")
        add(svg, "text", name, x=left - 10, y=top + cell_height * (j + 0.5) + 4, text_anchor="end")
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    for i in range(len(classes)):
        for j in range(len(classes)):
            x, y, share = left + cell_width * j, top + cell_height * i, float(shares[i, j])
            kind = "cell right" if i == j else "cell wrong"
            box = {"x": x + 1, "y": y + 1, "width": cell_width - 2, "height": cell_height - 2}
            add(svg, "rect", class_=kind, fill_opacity=0.06 + 0.5 * share, **box)
            position = {"x": x + cell_width / 2, "text_anchor": "middle"}
            add(svg, "text", percent(share), class_="strong", y=y + 20, **position)
            add(svg, "text", f"{int(matrix[i, j]):,}", class_="tiny", y=y + 36, **position)
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (name, *map(int, matrix[i]), *map(float, shares[i])) for i, name in enumerate(classes)
    )
    advice = [f"advice {name}" for name in classes]
    columns = ("label", *advice, *(f"share {name}" for name in classes))
    return Plot(title, caption, svg, Table(columns, rows), small=True)


def accuracy_plot(findings: AdvisorFindings) -> Plot | None:
    """Draw the balanced accuracy of each method in each split; None if there is none."""
    methods = list(dict.fromkeys(s.method for s in findings.scores if not s.held_out))
    splits = [name for name in SPLITS if findings.scores_of(name)]
    values = {
        (score.method, score.split): score.balanced
        for name in splits
        for score in findings.scores_of(name)
        if isfinite(score.balanced)
    }
    if not values:
        return None
    chance = 1 / len(findings.classes)
    title = "Balanced accuracy"
    caption = (
        "Mean over the labels of the share of right advice, where advice was given. Only held-out "
        "kernels show what the advisor knows about new ones: launches of one kernel are so "
        f"similar that a random split tests memory. The dashed line ({chance:.2f}) is a constant "
        "answer."
    )
    svg, x, heights = _rows(methods, (0.0, 1.0), "balanced accuracy", caption, "accuracy")
    top, bottom = heights[0] - _ROW_HEIGHT / 2, heights[-1] + _ROW_HEIGHT / 2
    add(svg, "line", class_="reference", x1=x(chance), x2=x(chance), y1=top, y2=bottom)
    for y, method in zip(heights, methods, strict=True):
        for index, split in enumerate(splits):
            value = values.get((method, split))
            if value is not None:
                shape = {"href": f"#p{index}", "class_": f"fixed {colour(index)}"}
                add(svg, "use", x=x(value), y=y, **shape)
    keys = tuple(Key(f"held out: {SPLITS[split]}", colour(i), i) for i, split in enumerate(splits))
    return Plot(title, caption, svg, score_table(findings.scores), keys=keys, wide=True)


def regret_plot(findings: AdvisorFindings) -> Plot | None:
    """Draw the time after each method's advice on held-out kernels; None if it is unknown."""
    scores = [score for score in findings.scores_of("kernel") if score.regret is not None]
    if not scores:
        return None
    methods = [score.method for score in scores]
    caption = (
        "Geometric mean of the time after one step of advice, divided by the best time of the "
        "slice; 1 is perfect. Bars are 95 % bootstrap intervals over slices. The kernels were held "
        "out; a launch without advice keeps its block."
    )
    most = max(1.02, *(end for score in scores for end in _ends(score.regret)))
    span = (1.0, most + 0.03 * (most - 1))
    svg, x, heights = _rows(methods, span, "time after advice / best time", caption, "regret")
    for y, score in zip(heights, scores, strict=True):
        low, value, high = _ends(score.regret)
        add(svg, "line", class_="interval", x1=x(low), x2=x(high), y1=y, y2=y)
        add(svg, "use", href="#p0", class_="fixed c0", x=x(value), y=y)
    columns = ("method", "low", "time / best", "high", "launches", "advised")
    rows = tuple((s.method, *_ends(s.regret), s.rows, s.advised) for s in scores)
    return Plot("Time after advice", caption, svg, Table(columns, rows), wide=True)


def _ends(interval: Interval | None) -> tuple[float, float, float]:
    """Return the low end, value and high end of an interval; NaN if it is unknown."""
    if interval is None:
        return float("nan"), float("nan"), float("nan")
    return interval.low, interval.value, interval.high


def _rows(
    names: Sequence[str], span: tuple[float, float], title: str, caption: str, key: str
) -> tuple[Element, Scale, list[float]]:
    """Return a picture with a row for each name, its scale, and the heights of the rows."""
    width, left = 520.0, 120.0
    bottom = 14 + _ROW_HEIGHT * len(names)
    svg = figure(width, bottom + 46, title, caption, key)
    x = Scale(*span, left, width - 16)
    x_axis(svg, x, bottom, title, top=8.0)
    heights = [14 + _ROW_HEIGHT * (index + 0.5) for index in range(len(names))]
    for name, y in zip(names, heights, strict=True):
        add(svg, "text", cut(name, 14), x=left - 10, y=y + 4, text_anchor="end")
    return svg, x, heights


def score_table(scores: Sequence[Score]) -> Table:
    """Return all scores as a table."""
    columns = (
        *("held out", "kernel", "method", "launches", "advised", "accuracy", "balanced"),
        *("time / best", "low", "high", "time / before", "low", "high", "of the advised"),
    )
    rows = []
    for score in scores:
        regret, gain = _ends(score.regret), _ends(score.against_nothing)
        rows.append(
            (
                SPLITS.get(score.split, score.split),
                score.held_out or "all",
                score.method,
                score.rows,
                score.advised,
                score.accuracy,
                score.balanced,
                *(regret[1], regret[0], regret[2]),
                *(gain[1], gain[0], gain[2]),
                score.advised_regret,
            )
        )
    return Table(columns, tuple(rows))


def verdict(findings: AdvisorFindings) -> str | None:
    """Return a sentence on the method with the best times on held-out kernels."""
    scores = [score for score in findings.scores_of("kernel") if score.regret is not None]
    if not scores:
        return None
    best = min(scores, key=lambda score: (_ends(score.regret)[1], score.method))
    idle = next((score for score in scores if score.method == "nothing"), None)
    text = (
        f"On held-out kernels, {best.method} is best: its advice leads to "
        f"{significant(_ends(best.regret)[1], 3)} times the best time"
    )
    if idle is not None and idle is not best:
        text += f", no change to {significant(_ends(idle.regret)[1], 3)}"
    return f"{text}. It advised {percent(best.coverage)} of the launches."


# ---- The decision tree, its root at the left -----------------------------------------------------

#: Colours of the labels in all plots.
LABEL_COLOURS = dict(zip(LABELS, ("c1", "c2", "c0"), strict=True))

_BOX_WIDTH, _BOX_GAP, _LEAF_HEIGHT = 176.0, 34.0, 46.0

#: Characters of the text of a box.
_BOX_CHARS = 25


@dataclass(frozen=True, slots=True)
class _Placed:
    """A node with the position of its box."""

    node: TreeNode
    x: float
    y: float
    answers: tuple[_Placed, ...]


def tree_plot(root: TreeNode) -> Plot:
    """Draw a tree: questions in boxes, yes above no, and the labels of leaves as bars."""
    leaves = sum(1 for _ in root.leaves())
    title = "Decision tree"
    caption = (
        f"{root.total:,} launches and {leaves} leaves. The upper line of a box is the answer yes, "
        "the lower one no. Bars show the labels of a leaf's launches; a leaf is named after the "
        "label of which it has the largest share. The tree describes these launches and does not "
        "predict others."
    )
    width = (root.depth() + 1) * (_BOX_WIDTH + _BOX_GAP) - _BOX_GAP + 12
    svg = figure(width, leaves * _LEAF_HEIGHT + 12, title, caption, "tree")
    placed, _ = _place(root, 0, 0)
    rows: list[tuple[Cell, ...]] = []
    _draw(svg, placed, rows, "1")
    table = Table(("box", "question or label", "launches", *map(str, LABELS)), tuple(rows))
    keys = tuple(Key(str(label), LABEL_COLOURS[label]) for label in LABELS)
    text = describe(root)
    return Plot(title, caption, svg, table, text=text, keys=keys, wide=True, scrolls=True)


def _place(node: TreeNode, depth: int, leaf: int) -> tuple[_Placed, int]:
    """Return a node with its position, and the number of the next leaf."""
    x = 6 + depth * (_BOX_WIDTH + _BOX_GAP)
    if node.yes is None or node.no is None:
        return _Placed(node, x, 6 + (leaf + 0.5) * _LEAF_HEIGHT, ()), leaf + 1
    yes, leaf = _place(node.yes, depth + 1, leaf)
    no, leaf = _place(node.no, depth + 1, leaf)
    return _Placed(node, x, (yes.y + no.y) / 2, (yes, no)), leaf


def _draw(svg: Element, placed: _Placed, rows: list[tuple[Cell, ...]], path: str) -> None:
    """Draw a node and its descendants; boxes are numbered by the answers on their path."""
    node, y = placed.node, placed.y
    for answer in placed.answers:
        start, end = placed.x + _BOX_WIDTH, answer.x
        middle = (start + end) / 2
        curve = f"M{start:.1f} {y:.1f}C{middle:.1f} {y:.1f} {middle:.1f} {answer.y:.1f}"
        add(svg, "path", class_="branch", d=f"{curve} {end:.1f} {answer.y:.1f}")
    group = add(svg, "g", class_="node" if placed.answers else "leaf")
    text = questions(node)[0] if placed.answers else str(node.label)
    add(group, "title", f"{path}: {text} ({node.total:,} launches)")
    box = {"x": placed.x, "y": y - 18, "width": _BOX_WIDTH, "height": 36.0, "rx": 5.0}
    add(group, "rect", class_="box", **box)
    if placed.answers:
        _write_question(group, placed)
    else:
        _write_answer(group, placed)
    rows.append((path, text, node.total, *node.counts))
    for letter, answer in zip(("y", "n"), placed.answers, strict=False):
        _draw(svg, answer, rows, path + letter)


def _write_question(group: Element, placed: _Placed) -> None:
    node, x = placed.node, placed.x + 9
    add(group, "text", cut(node.name or "", _BOX_CHARS), class_="tiny", x=x, y=placed.y - 4)
    unknown = " or unknown" if node.unknown else ""
    text = f"≤ {significant(node.threshold)}{unknown}?"
    add(group, "text", text, class_="tiny strong", x=x, y=placed.y + 11)
    _write_total(group, placed, placed.y + 11)


def _write_answer(group: Element, placed: _Placed) -> None:
    node, x = placed.node, placed.x + 9
    add(group, "text", str(node.label), class_="tiny strong", x=x, y=placed.y - 2)
    _write_total(group, placed, placed.y - 2)
    for label, count in zip(LABELS, node.counts, strict=True):
        length = (_BOX_WIDTH - 18) * count / max(node.total, 1)
        if count:
            kind = f"bar {LABEL_COLOURS[label]}"
            add(group, "rect", class_=kind, x=x, y=placed.y + 4, width=length, height=8.0)
        x += length


def _write_total(group: Element, placed: _Placed, y: float) -> None:
    """Write the number of launches at the right of a box."""
    position = {"x": placed.x + _BOX_WIDTH - 9, "y": y, "text_anchor": "end"}
    add(group, "text", f"{placed.node.total:,}", class_="tiny muted", **position)


def questions(node: TreeNode) -> tuple[str, str]:
    """Return the criteria of the answers yes and no."""
    threshold = significant(node.threshold)
    unknown = " or not measured"
    yes = f"{node.name} ≤ {threshold}{unknown if node.unknown is True else ''}"
    no = f"{node.name} > {threshold}{unknown if node.unknown is False else ''}"
    return visible(yes), visible(no)


def describe(node: TreeNode, depth: int = 0) -> str:
    """Return a tree as indented lines of text.

    Examples
    --------
    ::

        threads ≤ 96
          → increase (decrease 0, noChange 3, increase 17)
        threads > 96
          → noChange (decrease 8, noChange 50, increase 6)
    """
    indent = "  " * depth
    if node.yes is None or node.no is None:
        counts = ", ".join(f"{name} {n}" for name, n in zip(LABELS, node.counts, strict=True))
        return f"{indent}→ {node.label} ({counts})"
    yes, no = questions(node)
    return "\n".join(
        [indent + yes, describe(node.yes, depth + 1), indent + no, describe(node.no, depth + 1)]
    )

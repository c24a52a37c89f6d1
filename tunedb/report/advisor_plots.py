"""The decision tree as a drawing, its root at the left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from xml.etree.ElementTree import Element

import numpy as np
import numpy.typing as npt

from ..advisor.analysis.clusters import NO_STRUCTURE, Clusters, Ellipse
from ..advisor.analysis.components import Components
from ..advisor.analysis.times import Stake, Times
from ..advisor.analysis.trees import Node
from ..advisor.observations import LABELS
from .plots import COLOURS, SHAPES, Cell, Key, Marking, Plot, Table, colour
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

# ---- Plots of the inputs: how they correlate, what goes together, which kinds of launches are ----

Floats = npt.NDArray[np.float64]

#: Longest name of an input beside a plot.
NAME_CHARS = 34

#: No line ends after it, as one may after a hyphen.
_MINUS = "\u2212"

#: Loading from which an input belongs to a component: half of its variance.
STRONG = 0.7


def correlation_plot(names: Sequence[str], matrix: Floats) -> Plot:
    """Draw the correlation of each pair of inputs as a square."""
    count = len(names)
    # Names stand below one another: less is not legible.
    cell = max(13.0, min(26.0, 640.0 / count))
    left, top = 56 + text_width("m" * min(max(map(len, names)), NAME_CHARS), 11), 30.0
    side = cell * count
    strongest = np.abs(np.where(np.eye(count, dtype=bool), 0, np.nan_to_num(matrix)))
    caption = (
        f"{count} inputs that remain; the darker, the stronger. The strongest pair has "
        f"|r| = {strongest.max() if count else 0:.2f}. A cross: no launch has both, or one is "
        "constant there."
    )
    svg = figure(left + side + 8, top + side + 8, "Correlation of the inputs", caption, "corr")
    for i, name in enumerate(names):
        middle = (i + 0.5) * cell
        label = f"{cut(name, NAME_CHARS)} {i + 1}"
        add(svg, "text", label, class_="tiny", x=left - 6, y=top + middle + 4, text_anchor="end")
        if cell >= 14 or i % 2 == 0:
            attributes = {"class_": "tiny", "x": left + middle, "y": top - 7}
            add(svg, "text", str(i + 1), text_anchor="middle", **attributes)
        for j in range(count):
            _cell(svg, float(matrix[i, j]), left + j * cell, top + middle - cell / 2, cell)
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (name, *(float(one) for one in row)) for name, row in zip(names, matrix, strict=True)
    )
    table = Table(("input", *names), rows)
    return Plot("Correlation of the inputs", caption, svg, table, wide=True, scrolls=True)


def _cell(svg: Element, value: float, x: float, y: float, side: float) -> None:
    """Draw one square; unknown ones as crosses."""
    if np.isnan(value):
        places = f"M{x + 3:.1f} {y + 3:.1f}l{side - 6:.1f} {side - 6:.1f}"
        add(
            svg,
            "path",
            class_="cross",
            d=f"{places}m0 {6 - side:.1f}l{6 - side:.1f} {side - 6:.1f}",
        )
        return
    kind = "positive" if value >= 0 else "negative"
    add(
        svg,
        "rect",
        class_=f"cell {kind}",
        x=x + 0.5,
        y=y + 0.5,
        width=side - 1,
        height=side - 1,
        fill_opacity=abs(value),
    )


def scatter_plot(
    found: Components,
    clusters: Clusters | None,
    ellipses: Sequence[Ellipse | None],
    drawn: npt.NDArray[np.int64],
    markings: Sequence[tuple[Marking, Sequence[int]]],
    describe: tuple[Sequence[str], Sequence[tuple[Cell, ...]]],
) -> Plot:
    """Draw launches on the two components that explain most.

    Parameters
    ----------
    found : Components
        Two at least.
    clusters : Clusters or None
        Of the same launches.
    ellipses : sequence of Ellipse or None
        One for each cluster, in the plane of the two components.
    drawn : ndarray of int64
        Which of the launches are drawn.
    markings : sequence of (Marking, sequence of int)
        Ways to colour, with the key of each launch; the first also gives the shapes.
    describe : (sequence of str, sequence of tuple)
        Titles, and cells of each launch: what the table says of it.

    Returns
    -------
    Plot
        Its table has a row for each point.
    """
    places, count = found.scores[:, :2], len(found.scores)
    outlines = [one.outline() for one in ellipses if one is not None]
    everything = np.vstack([places[drawn], *outlines])
    width, height = 580.0, 440.0
    caption = _scatter_caption(len(drawn), count, clusters)
    svg = figure(width, height, "Kinds of launches", caption, "kinds")
    x = Scale(*padded(everything[:, 0]), 52, width - 10)
    y = Scale(*padded(everything[:, 1]), height - 44, 30)
    titles = [f"component {k + 1} ({percent(found.shares[k])} of the variance)" for k in (0, 1)]
    x_axis(svg, x, y.start, titles[0], top=y.end)
    y_axis(svg, y, 52, titles[1], right=x.end)
    for outline in outlines:
        add(
            svg,
            "path",
            class_="ellipse",
            d=polyline([(x(a), y(b)) for a, b in outline], closed=True),
        )
    group = add(svg, "g", class_="points")
    for row in drawn.tolist():
        keys = [marking.keys[of[row]] for marking, of in markings]
        shown = " ".join(f"{'abcdef'[i]}-{key.colour}" for i, key in enumerate(keys))
        place = {"x": x(float(places[row, 0])), "y": y(float(places[row, 1]))}
        add(group, "use", href=f"#p{keys[0].shape % SHAPES}", class_=shown, **place)
    for index, one in enumerate(ellipses):
        if one is not None:
            attributes = {"x": x(one.x), "y": y(one.y) + 5, "text_anchor": "middle"}
            add(svg, "text", str(index + 1), class_="cluster", **attributes)
    columns, cells = describe
    rows = tuple(
        (*cells[row], *_cluster_of(clusters, row), *(float(one) for one in places[row]))
        for row in drawn.tolist()
    )
    table = Table((*columns, "cluster", "component 1", "component 2"), rows)
    kinds = tuple(marking for marking, _ in markings)
    return Plot("Kinds of launches", caption, svg, table, markings=kinds, wide=True)


def _cluster_of(clusters: Clusters | None, row: int) -> tuple[Cell]:
    return (None if clusters is None else int(clusters.of[row]) + 1,)


def _scatter_caption(drawn: int, count: int, clusters: Clusters | None) -> str:
    part = f"{count:,}" if drawn == count else f"{drawn:,} of {count:,}, drawn by lot"
    text = f"Each point is a launch ({part}). Those near one another behave alike."
    if clusters is None:
        return f"{text} There are too few different ones for clusters."
    text += (
        f" Ellipses hold 95 % of the {clusters.count} clusters of k-means, whose mean silhouette "
        f"is {clusters.silhouette:.2f}"
    )
    weak = clusters.silhouette <= NO_STRUCTURE
    return f"{text}: hardly any structure." if weak else f"{text}."


def silhouette_plot(clusters: Clusters) -> Plot:
    """Draw how well each number of clusters fits."""
    scores = sorted(clusters.silhouettes.items())
    caption = (
        f"Mean silhouette of each number of clusters that was tried; {clusters.count} clusters "
        "have the highest."
    )
    width, height = 400.0, 250.0
    svg = figure(width, height, "How many kinds", caption, "silhouette")
    values = [value for _, value in scores]
    y = Scale(min(0.0, *values), max(0.3, *values) * 1.08, height - 44, 28)
    y_axis(svg, y, 48, "mean silhouette", right=width - 10)
    step = (width - 60) / len(scores)
    group = add(svg, "g", class_="axis x")
    for place, (k, value) in enumerate(scores):
        middle = 48 + step * (place + 0.5)
        kind = "bar c0" if k == clusters.count else "bar other"
        top, bottom = sorted((y(value), y(0)))
        box = {"x": middle - step * 0.35, "y": top, "width": step * 0.7, "height": bottom - top}
        add(svg, "rect", class_=kind, **box)
        add(group, "text", str(k), x=middle, y=y.start + 17, text_anchor="middle")
    add(group, "line", class_="base", x1=48.0, x2=width - 10, y1=y(0), y2=y(0))
    title = "number of clusters"
    add(group, "text", title, class_="name", x=width / 2, y=y.start + 37, text_anchor="middle")
    rows = tuple((k, value) for k, value in scores)
    return Plot("How many kinds", caption, svg, Table(("clusters", "silhouette"), rows))


def rotated_plot(found: Components) -> Plot:
    """Draw what each input contributes to each rotated component, in segments."""
    r = found.rotated.shape[1]
    order = segment_order(found.rotated)
    caption = (
        "Each column is a composite feature; a bar is the correlation of an input with it, from "
        "-1 to 1, strong ones filled. Read a column by its long bars."
    )
    label = 14 + text_width("m" * min(max(map(len, found.names)), NAME_CHARS), 11)
    column, step, top = max(96.0, min(150.0, 640.0 / r)), 19.0, 44.0
    height = top + step * len(order) + 10
    svg = figure(label + column * r + 6, height, "Rotated components", caption, "rotated")
    for k in range(r):
        middle = label + column * (k + 0.5)
        attributes = {"class_": "name", "x": middle, "text_anchor": "middle"}
        add(svg, "text", f"{k + 1}", y=16.0, **attributes)
        add(svg, "text", percent(found.rotated_shares[k]), y=32.0, **attributes)
        add(svg, "line", class_="base", x1=middle, x2=middle, y1=top - 4, y2=height - 4)
    for place, index in enumerate(order):
        y = top + step * place
        name = cut(found.names[index], NAME_CHARS)
        add(svg, "text", name, class_="tiny", x=label - 6, y=y + 13, text_anchor="end")
        for k in range(r):
            value = float(found.rotated[index, k])
            middle, length = label + column * (k + 0.5), abs(value) * (column / 2 - 5)
            kind = "positive" if value >= 0 else "negative"
            kind += "" if abs(value) >= STRONG else " weak"
            x = middle if value >= 0 else middle - length
            place_ = {"x": x, "y": y + 3, "width": length, "height": step - 6}
            add(svg, "rect", class_=f"segment {kind}", **place_)
    columns = ("input", *(f"component {k + 1}" for k in range(r)))
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (found.names[i], *(float(one) for one in found.rotated[i])) for i in order
    )
    text = "\n".join(_composite(found, k) for k in range(r))
    title = "Rotated components"
    table = Table(columns, rows)
    return Plot(title, caption, svg, table, text=text, wide=True, scrolls=True)


def segment_order(rotated: Floats) -> list[int]:
    """Return inputs by the component that they load most, the strongest first."""
    best = np.abs(rotated).argmax(axis=1)
    strength = np.abs(rotated).max(axis=1)
    return [int(one) for one in np.lexsort((np.arange(len(best)), -strength, best))]


def _composite(found: Components, k: int) -> str:
    """Return a component in words: its strong inputs with their signs."""
    column = found.rotated[:, k]
    strong = [i for i in np.argsort(-np.abs(column), kind="stable") if abs(column[i]) >= STRONG]
    parts = [f"{'+' if column[i] > 0 else _MINUS}{visible(found.names[i])}" for i in strong]
    share = f"{k + 1} ({percent(found.rotated_shares[k])})"
    return f"{share}: {', '.join(parts) or 'no input is strong in it'}"


# ---- Plots of run times: against block size, and what block size alone buys ----------------------

#: Edges of the bins of gains; the last bin has no end.
EDGES = (1.0, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0)

_WIDTH, _HEIGHT = 400.0, 250.0
#: Longest name of a kernel in a title.
_NAME_CHARS = 60


def time_plot(times: Times, index: int) -> Plot:
    """Draw the time over the best of the slice against block size, of one kernel and device."""
    sizes = times.sizes
    threads = [one.threads for one in sizes]
    title = f"{cut(times.kernel, _NAME_CHARS)} on {cut(times.device, _NAME_CHARS)}"
    slices = "1 slice" if times.slices == 1 else f"{times.slices:,} slices"
    fastest = min(sizes, key=lambda one: (one.median, one.threads))
    caption = (
        f"{times.launches:,} launches in {slices}. Blocks of {fastest.threads:,} threads have the "
        f"lowest median: {fastest.median:.2f} times the best of the slice."
    )
    svg = figure(_WIDTH, _HEIGHT, title, caption, f"time{index}")
    x = Scale(min(threads) / 1.15, max(threads) * 1.15, 48, _WIDTH - 12, logarithmic=True)
    most = max(1.1, *(one.high for one in sizes)) * 1.03
    y = Scale(1.0, most, _HEIGHT - 44, 28, logarithmic=most > 4)
    ticks = [1.0, *[one for one in y.ticks(4) if one > 1.0]]
    y_axis(svg, y, 48, "time / best", right=x.end, ticks=ticks, show=lambda v: significant(v, 3))
    x_axis(svg, x, y.start, "threads of a block", ticks=_thread_ticks(x))
    band = [(x(one.threads), y(one.high)) for one in sizes]
    band += [(x(one.threads), y(one.low)) for one in reversed(sizes)]
    add(svg, "path", class_="band", d=polyline(band, closed=True))
    medians = [(x(one.threads), y(one.median)) for one in sizes]
    add(svg, "path", class_="line", d=polyline(medians))
    for place in medians:
        add(svg, "circle", class_="median", cx=place[0], cy=place[1], r=3.0)
    rows = tuple(
        (s.threads, s.launches, s.low, s.median, s.high, s.best, s.best / times.slices)
        for s in sizes
    )
    columns = ("threads", "launches", "10 %", "median", "90 %", "best of slices", "share of them")
    return Plot(title, caption, svg, Table(columns, rows), small=True)


def _thread_ticks(scale: Scale) -> list[float]:
    """Return powers of two, or the ends where there are fewer than two of them."""
    powers = scale.ticks(6)
    return powers if len(powers) > 1 else [round(scale.low * 1.15), round(scale.high / 1.15)]


def bins(gains: npt.NDArray[np.float64]) -> list[int]:
    """Return how many gains lie in each bin; what is below 1 by rounding is in the first."""
    places = np.clip(np.searchsorted(EDGES, gains, side="right") - 1, 0, len(EDGES) - 1)
    return [int(one) for one in np.bincount(places, minlength=len(EDGES))]


def bin_names() -> list[str]:
    """Return what the bins are called."""
    inner = [f"{number(low)}–{number(high)}" for low, high in pairwise(EDGES)]  # noqa: RUF001
    return [*inner, f"over {number(EDGES[-1])}"]


def gain_plot(stakes: Sequence[Stake], *, base: int = 256) -> Plot:
    """Draw how many slices gain how much from their best block."""
    kernels = [kernel for kernel, _ in Counter(one.kernel for one in stakes).most_common()]
    shown = kernels[:COLOURS]
    rest = len(kernels) - len(shown)
    names = [*shown, f"{rest} other kernels"] if rest else shown
    groups = [np.array([one.gain for one in stakes if one.kernel == name]) for name in shown]
    if rest:
        groups.append(np.array([one.gain for one in stakes if one.kernel not in shown]))
    counts = [bins(group) for group in groups]
    gains = np.array([one.gain for one in stakes])
    low, half, high = np.quantile(gains, (0.1, 0.5, 0.9))
    worth = int((gains > 1.05).sum())
    caption = (
        f"Time at the size nearest to {base} threads over the best time of the slice, "
        f"all else the same. Median {half:.3f}, 10 % below {low:.3f}, 10 % above {high:.3f}; "
        f"{worth:,} of {len(gains):,} slices gain more than 5 %."
    )
    svg = _stacked(counts, caption)
    keys = tuple(Key(cut(name, _NAME_CHARS), colour(i)) for i, name in enumerate(names))
    cells = zip(bin_names(), *counts, strict=True)
    rows = tuple((name, *held, sum(held)) for name, *held in cells)
    table = Table(("gain", *(cut(name, _NAME_CHARS) for name in names), "all"), rows)
    return Plot("What the block alone buys", caption, svg, table, keys=keys)


def _stacked(counts: list[list[int]], caption: str) -> Element:
    """Draw bars of groups on one another."""
    width, height = 560.0, 330.0
    svg = figure(width, height, "What the block alone buys", caption, "gains")
    totals = [sum(held) for held in zip(*counts, strict=True)]
    y = Scale(0, max(*totals, 1) * 1.08, height - 44, 30)
    y_axis(svg, y, 52, "slices", right=width - 10, ticks=[v for v in y.ticks() if v == int(v)])
    step = (width - 62) / len(totals)
    group = add(svg, "g", class_="axis x")
    for place, total in enumerate(totals):
        middle = 52 + step * (place + 0.5)
        below = 0
        for index, held in enumerate(counts):
            if held[place]:
                top, bottom = y(below + held[place]), y(below)
                add(
                    svg,
                    "rect",
                    class_=f"bar {colour(index)}",
                    x=middle - step * 0.38,
                    width=step * 0.76,
                    y=top,
                    height=bottom - top,
                )
            below += held[place]
        if total:
            add(svg, "text", f"{total:,}", x=middle, y=y(total) - 5, text_anchor="middle")
        edge = number(EDGES[place])
        add(group, "text", edge, x=middle - step / 2, y=y.start + 17, text_anchor="middle")
    add(group, "text", "more", x=width - 10, y=y.start + 17, text_anchor="end")
    add(group, "line", class_="base", x1=52.0, x2=width - 10, y1=y.start, y2=y.start)
    title = "time at the usual size / best time"
    add(group, "text", title, class_="name", x=width / 2, y=y.start + 37, text_anchor="middle")
    return svg


# ---- Decision trees ------------------------------------------------------------------------------

#: Colours of the labels, which all plots share.
LABEL_COLOURS = dict(zip(LABELS, ("c1", "c2", "c0"), strict=True))

_BOX, _GAP, _ROW = 176.0, 34.0, 46.0
#: Letters of the text of a box.
_CHARS = 25


@dataclass(frozen=True, slots=True)
class _Placed:
    """A node and where it stands."""

    node: Node
    x: float
    y: float
    answers: tuple[_Placed, ...]


def tree_plot(root: Node) -> Plot:
    """Draw a tree; a box asks, the upper line is yes, and bars show the labels of a leaf."""
    leaves = sum(1 for _ in root.leaves())
    caption = (
        f"{root.total:,} launches and {leaves} leaves. The upper line of a box is the answer yes, "
        "the lower one no. Bars show how many launches of a leaf have which label; its name is the "
        "label that weighs most where all labels weigh the same. A tree tells what divides these "
        "launches, not what others will do."
    )
    width = (root.depth() + 1) * (_BOX + _GAP) - _GAP + 12
    svg = figure(width, leaves * _ROW + 12, "Decision tree", caption, "tree")
    placed, _ = _place(root, 0, 0)
    rows: list[tuple[Cell, ...]] = []
    _draw(svg, placed, rows, "1")
    table = Table(("box", "asks or says", "launches", *map(str, LABELS)), tuple(rows))
    keys = tuple(Key(str(label), LABEL_COLOURS[label]) for label in LABELS)
    title = "Decision tree"
    text = describe(root)
    return Plot(title, caption, svg, table, text=text, keys=keys, wide=True, scrolls=True)


def _place(node: Node, depth: int, leaf: int) -> tuple[_Placed, int]:
    """Return a node with its place, and the number of the next leaf."""
    x = 6 + depth * (_BOX + _GAP)
    if node.yes is None or node.no is None:
        return _Placed(node, x, 6 + (leaf + 0.5) * _ROW, ()), leaf + 1
    yes, leaf = _place(node.yes, depth + 1, leaf)
    no, leaf = _place(node.no, depth + 1, leaf)
    return _Placed(node, x, (yes.y + no.y) / 2, (yes, no)), leaf


def _draw(svg: Element, placed: _Placed, rows: list[tuple[Cell, ...]], path: str) -> None:
    """Draw a node and those below it; boxes are numbered by the answers that lead to them."""
    node = placed.node
    for one in placed.answers:
        start, end = placed.x + _BOX, one.x
        middle = (start + end) / 2
        path_ = f"M{start:.1f} {placed.y:.1f}C{middle:.1f} {placed.y:.1f} {middle:.1f} {one.y:.1f}"
        add(svg, "path", class_="branch", d=f"{path_} {end:.1f} {one.y:.1f}")
    group = add(svg, "g", class_="node" if placed.answers else "leaf")
    what = questions(node)[0] if placed.answers else str(node.label)
    add(group, "title", f"{path}: {what} ({node.total:,} launches)")
    top = placed.y - 18
    add(group, "rect", class_="box", x=placed.x, y=top, width=_BOX, height=36.0, rx=5.0)
    if placed.answers:
        _ask(group, placed)
    else:
        _say(group, placed)
    rows.append((path, what, node.total, *node.counts))
    for letter, one in zip(("y", "n"), placed.answers, strict=False):
        _draw(svg, one, rows, path + letter)


def _ask(group: Element, placed: _Placed) -> None:
    node, x = placed.node, placed.x + 9
    add(group, "text", cut(node.name or "", _CHARS), class_="tiny", x=x, y=placed.y - 4)
    lack = " or unknown" if node.unknown else ""
    text = f"≤ {significant(node.threshold)}{lack}?"
    add(group, "text", text, class_="tiny strong", x=x, y=placed.y + 11)
    share = f"{node.total:,}"
    right = placed.x + _BOX - 9
    add(group, "text", share, class_="tiny muted", x=right, y=placed.y + 11, text_anchor="end")


def _say(group: Element, placed: _Placed) -> None:
    node, x = placed.node, placed.x + 9
    add(group, "text", str(node.label), class_="tiny strong", x=x, y=placed.y - 2)
    right = placed.x + _BOX - 9
    add(
        group,
        "text",
        f"{node.total:,}",
        class_="tiny muted",
        x=right,
        y=placed.y - 2,
        text_anchor="end",
    )
    for label, count in zip(LABELS, node.counts, strict=True):
        length = (_BOX - 18) * count / max(node.total, 1)
        if count:
            kind = f"bar {LABEL_COLOURS[label]}"
            add(group, "rect", class_=kind, x=x, y=placed.y + 4, width=length, height=8.0)
        x += length


def questions(node: Node) -> tuple[str, str]:
    """Return the criterion of the first answer and that of the second."""
    threshold = significant(node.threshold)
    lack = " or not measured"
    yes = f"{node.name} ≤ {threshold}{lack if node.unknown is True else ''}"
    no = f"{node.name} > {threshold}{lack if node.unknown is False else ''}"
    return visible(yes), visible(no)


def describe(node: Node, depth: int = 0) -> str:
    """Return the criteria as lines of text, deeper ones further in.

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
        counts = ", ".join(f"{one} {n}" for one, n in zip(LABELS, node.counts, strict=True))
        return f"{indent}→ {node.label} ({counts})"
    first, second = questions(node)
    lines = [indent + first, describe(node.yes, depth + 1)]
    return "\n".join([*lines, indent + second, describe(node.no, depth + 1)])

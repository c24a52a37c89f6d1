"""Plots of the inputs: how they correlate, what goes together, which kinds of launches are."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element

import numpy as np
import numpy.typing as npt

from .clusters import NO_STRUCTURE, Clusters, Ellipse
from .components import Components
from .plots import SHAPES, Cell, Marking, Plot, Table
from .svg import (
    Scale,
    add,
    cut,
    figure,
    padded,
    percent,
    polyline,
    text_width,
    visible,
    x_axis,
    y_axis,
)

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

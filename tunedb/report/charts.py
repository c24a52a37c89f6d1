"""Pictures of a page: a chart with two axes, a heat map, and a tree."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Self
from xml.etree.ElementTree import Element

import numpy as np

from ..system.text import clean
from .svg import (
    Floats,
    Scale,
    add,
    figure,
    padded,
    polyline,
    significant,
    text_width,
    visible,
    x_axis,
    y_axis,
)

#: Longest name beside a picture.
NAME_CHARS = 34

#: Largest number of an axis.
_HUGE = 1e250

#: Height of a row of a chart whose vertical axis has names.
_ROW = 24.0

#: Widest text of a box of a tree, in characters, and the sizes of boxes.
_BOX_CHARS, _BOX_WIDTH, _BOX_GAP, _BOX_HEIGHT = 25, 176.0, 34.0, 46.0


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a chart.

    Parameters
    ----------
    title : str
        Quantity, with its unit.
    low, high : float
        Range of the numbers.
    logarithmic : bool
        Whether equal ratios have equal lengths.
    names : tuple of str
        Names of the positions 0, 1, …, instead of numbers.
    ticks : tuple of float or None
        Numbers beside the axis; None for round ones.
    show : callable
        Text of a number.
    """

    title: str
    low: float = -0.5
    high: float = 0.5
    logarithmic: bool = False
    names: tuple[str, ...] = ()
    ticks: tuple[float, ...] | None = None
    show: Callable[[float], str] = significant

    @classmethod
    def named(cls, title: str, names: Sequence[str]) -> Self:
        """Return an axis with a position for each name."""
        return cls(title, high=max(len(names), 1) - 0.5, names=tuple(names))

    @classmethod
    def around(cls, title: str, *values: Any, logarithmic: bool = False, **options: Any) -> Self:
        """Return an axis whose range holds all finite numbers, with some margin."""
        all_ = np.concatenate([np.ravel(np.asarray(each, float)) for each in values])
        finite = all_[np.isfinite(all_) & ((all_ > 0) | (not logarithmic))]
        # Differences and ratios of larger numbers, or of smaller ones, are not finite.
        finite = np.clip(finite, 1 / _HUGE if logarithmic else -_HUGE, _HUGE)
        if not logarithmic:
            return cls(title, *padded(finite), **options)
        options.setdefault("show", lambda value: significant(value, 3))
        logs = np.log2(finite) if len(finite) else np.zeros(1)
        low, high = float(logs.min()), float(logs.max())
        room = 0.04 * (high - low) if high - low > 1e-9 else 1.0
        return cls(title, 2.0 ** (low - room), 2.0 ** (high + room), logarithmic=True, **options)

    @classmethod
    def from_zero(cls, title: str, *values: Any, least: float = 0.0, **options: Any) -> Self:
        """Return an axis from 0 to a little more than the largest finite number."""
        axis = cls.around(title, *values, [0.0], **options)
        return replace(axis, low=0.0, high=max(axis.high, least) or 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class Mark:
    """Shapes of one kind in a chart.

    Parameters
    ----------
    kind : str
        ``line``, ``step`` (a staircase), ``band``, ``dots`` (equal ones), ``points`` (of various
        shapes and colours), ``bars`` (at whole numbers), ``intervals``, ``outline`` (closed),
        ``reference`` (a dashed line) or ``labels`` (texts).
    x, y : sequence of float
        Positions. A bar or an interval ends there.
    to : sequence of float
        Other ends of bars and intervals, along the axis with numbers, or of a band along y; bars
        begin at 0 without it.
    colour : str
        Class of the style sheet.
    name : str
        Name of the shapes in a legend.
    shapes : sequence of int
        Number of each point's shape.
    texts : sequence of str
        Labels, or descriptions of bars and points for a pointer that rests on them.
    classes : sequence of str
        Further classes of each point.
    """

    kind: str
    x: Sequence[float] | Floats
    y: Sequence[float] | Floats
    to: Sequence[float] | Floats = ()
    colour: str = "c0"
    name: str = ""
    shapes: Sequence[int] = ()
    texts: Sequence[str] = ()
    classes: Sequence[str] = ()


def chart(
    key: str,
    title: str,
    description: str,
    axes: tuple[Axis, Axis],
    marks: Sequence[Mark],
    *,
    size: tuple[float, float] = (560.0, 320.0),
) -> Element:
    """Draw shapes in a plane.

    Parameters
    ----------
    key : str
        Identifier of the picture, unique on its page.
    title, description : str
        Title, and content in words.
    axes : (Axis, Axis)
        Horizontal and vertical axis. With names on the vertical one, its first name is at the top,
        and bars and intervals are horizontal.
    marks : sequence of Mark
        Shapes; later ones cover earlier ones. Positions that are not finite, or not positive on a
        logarithmic axis, are left out.
    size : (float, float)
        Width and height; names on the vertical axis decide the height.
    """
    across, up = axes
    width, height = size
    left, top = 52.0, 30.0
    if not up.names:
        scale = Scale(up.low, up.high, 0, 1, up.logarithmic)
        texts = map(up.show, scale.ticks() if up.ticks is None else up.ticks)
        left = max(left, 14 + text_width("m" * max(map(len, texts), default=0)))
    if up.names:
        names = [visible(name, NAME_CHARS) for name in up.names]
        # A telephone draws letters of 14 pixels.
        left, top = 14 + text_width("m" * (max(map(len, names)) + 1), 14), 10.0
        height = top + _ROW * len(names) + 46
    svg = figure(width, height, title, description, key)
    bottom = height - 44
    x = Scale(across.low, across.high, left, width - 26, across.logarithmic)
    ends = (top, bottom) if up.names else (bottom, top)
    y = Scale(up.low, up.high, *ends, up.logarithmic)
    if up.names:
        for place, name in enumerate(names):
            add(svg, "text", name, x=left - 8, y=y(place) + 4, text_anchor="end")
    else:
        y_axis(svg, y, left, up.title, right=x.end, ticks=up.ticks, show=up.show)
    ticks: Sequence[float] | None = range(len(across.names)) if across.names else across.ticks
    show = (lambda place: across.names[int(place)]) if across.names else across.show
    x_axis(svg, x, bottom, across.title, top=None if across.names else top, ticks=ticks, show=show)
    for mark in marks:
        _draw(svg, mark, x, y, is_horizontal=bool(up.names))
    return svg


def _draw(svg: Element, mark: Mark, x: Scale, y: Scale, *, is_horizontal: bool) -> None:
    """Draw the shapes of a mark."""
    kind = f"{mark.kind} {mark.colour}"
    px, py, pto = (_places(each, scale) for each, scale in _scaled(mark, x, y, is_horizontal))
    drawn = [i for i in range(len(px)) if math.isfinite(px[i] + py[i] + pto[i])]
    match mark.kind:
        case "dots":
            path = "".join(f"M{px[i]:.1f} {py[i]:.1f}h0" for i in drawn)
            add(svg, "path", class_=kind, d=path)
        case "points" | "labels":
            group = add(svg, "g", class_=f"{mark.kind}")
            for i in drawn:
                _draw_point(group, mark, i, px[i], py[i])
        case "bars" | "intervals":
            long, across = (px, py) if is_horizontal else (py, px)
            scale = y if is_horizontal else x
            room = abs(scale(1) - scale(0)) if drawn and mark.kind == "bars" else 0.0
            for i in drawn:
                start, end = sorted((pto[i], long[i]))
                _draw_bar(svg, mark, i, (start, end, across[i]), 0.38 * room, is_horizontal)
        case _:
            points = [(px[i], py[i]) for i in drawn]
            if mark.kind == "step":
                corners = [p for a, b in pairwise(points) for p in (a, (b[0], a[1]))]
                points = corners + points[-1:]
            if mark.kind == "band":
                points += [(px[i], pto[i]) for i in reversed(drawn)]
            if points:
                closed = mark.kind in ("band", "outline")
                add(svg, "path", class_=kind, d=polyline(points, closed=closed))


def _scaled(
    mark: Mark, x: Scale, y: Scale, is_horizontal: bool
) -> tuple[tuple[Any, Scale], tuple[Any, Scale], tuple[Any, Scale]]:
    """Return positions and other ends of shapes, each with its scale."""
    along = x if is_horizontal else y
    start = max(along.low, 0.0)
    to = mark.to if len(mark.to) else [start] * len(mark.x)
    return (mark.x, x), (mark.y, y), (to, along)


def _places(values: Any, scale: Scale) -> list[float]:
    """Return coordinates; NaN for numbers without one."""
    return [
        scale(float(value)) if _has_place(value, scale.logarithmic) else math.nan
        for value in values
    ]


def _has_place(value: float, logarithmic: bool) -> bool:
    """Return whether a number has a place on an axis."""
    return math.isfinite(value) and (value > 0 or not logarithmic)


def _draw_point(group: Element, mark: Mark, i: int, x: float, y: float) -> None:
    if mark.kind == "labels":
        add(group, "text", mark.texts[i], class_=mark.colour, x=x, y=y, text_anchor="middle")
        return
    classes = mark.classes[i] if len(mark.classes) else f"fixed {mark.colour}"
    shape = mark.shapes[i] if len(mark.shapes) else 0
    point = add(group, "use", href=f"#p{shape}", class_=classes, x=x, y=y)
    if len(mark.texts):
        add(point, "title", mark.texts[i])


def _draw_bar(
    svg: Element,
    mark: Mark,
    i: int,
    ends: tuple[float, float, float],
    half: float,
    is_horizontal: bool,
) -> None:
    """Draw a bar, or an interval, from its start to its end, at a position across."""
    start, end, across = ends
    if mark.kind == "intervals":
        line = {"x1": start, "x2": end, "y1": across, "y2": across}
        if not is_horizontal:
            line = {"x1": across, "x2": across, "y1": start, "y2": end}
        add(svg, "line", class_=f"interval {mark.colour}", **line)
        return
    box = {"x": start, "width": end - start, "y": across - half, "height": 2 * half}
    if not is_horizontal:
        box = {"x": across - half, "width": 2 * half, "y": start, "height": end - start}
    if start == end:
        return
    bar = add(svg, "rect", class_=f"bar {mark.colour}", **box)
    if len(mark.texts):
        add(bar, "title", mark.texts[i])


def zoomable(axes: tuple[Axis, Axis], marks: Sequence[Mark]) -> dict[str, Any]:
    """Return lines, staircases and dots as data for a chart that people zoom and point at.

    Of several points of a mark with the same x, the last is drawn.
    """
    logs = [axis.logarithmic for axis in axes]
    series = []
    for mark in marks:
        if mark.kind not in ("line", "step", "dots", "reference"):
            continue
        pairs = zip(mark.x, mark.y, strict=True)
        points = [pair for pair in pairs if all(map(_has_place, pair, logs))]
        x, y = ([float(f"{point[axis]:.6g}") for point in points] for axis in (0, 1))
        name = clean(mark.name or axes[1].title)
        series.append({"name": name, "kind": mark.kind, "colour": mark.colour, "x": x, "y": y})
    return {"x": clean(axes[0].title), "y": clean(axes[1].title), "logs": logs, "series": series}


def heat_map(
    key: str,
    title: str,
    description: str,
    names: tuple[Sequence[str], Sequence[str]],
    values: Floats,
    *,
    texts: Sequence[Sequence[str]] = (),
    titles: tuple[str, str] = ("", ""),
) -> Element:
    """Draw a matrix as squares.

    Parameters
    ----------
    key, title, description : str
        As for :func:`chart`.
    names : (sequence of str, sequence of str)
        Names of rows and columns.
    values : ndarray of float64, shape (rows, columns)
        Numbers from -1 to 1: the sign is the colour, the absolute value its strength. NaN is a
        cross.
    texts : sequence of sequence of str
        Texts of the squares, with a line for each line of the text; larger squares have room.
    titles : (str, str)
        Titles of rows and columns.
    """
    rows, columns = ([visible(name, NAME_CHARS) for name in each] for each in names)
    lines = max((text.count("\n") + 1 for row in texts for text in row), default=0)
    widest = text_width("m" * max(map(len, columns), default=0), 11) + 5
    side = 94.0 if lines else max(15.0, widest, min(26.0, 640.0 / max(len(columns), 1)))
    high = 14.0 + 16 * lines if lines else min(side, 26.0)
    left = 20 + text_width("m" * max([*map(len, rows), len(titles[0])]), 12)
    top = 46.0 if titles[1] else 28.0
    right, bottom = left + side * len(columns), top + high * len(rows)
    middle, half = (left + right) / 2, text_width(titles[1], 14) / 2 + 8
    svg = figure(max(right, middle + half) + 8, bottom + 8, title, description, key)
    add(svg, "text", titles[0], class_="name", x=left - 8, y=top - 8, text_anchor="end")
    add(svg, "text", titles[1], class_="name", x=max(middle, half), y=16.0, text_anchor="middle")
    for j, name in enumerate(columns):
        add(svg, "text", name, class_="tiny", x=left + side * (j + 0.5), y=top - 8,
            text_anchor="middle")  # fmt: skip
    for i, name in enumerate(rows):
        y = top + high * i
        add(svg, "text", name, class_="tiny", x=left - 8, y=y + high / 2 + 4, text_anchor="end")
        for j in range(len(columns)):
            x = left + side * j
            _draw_square(svg, float(values[i, j]), x, y, side, high)
            text = texts[i][j] if len(texts) else ""
            for number, line in enumerate(text.split("\n") if text else ()):
                add(svg, "text", line, class_="strong" if number == 0 else "tiny",
                    x=x + side / 2, y=y + 18 + 16 * number, text_anchor="middle")  # fmt: skip
    return svg


def _draw_square(
    svg: Element, value: float, x: float, y: float, width: float, height: float
) -> None:
    if math.isnan(value):
        down = f"M{x + 3:.1f} {y + 3:.1f}l{width - 6:.1f} {height - 6:.1f}"
        up = f"m0 {6 - height:.1f}l{6 - width:.1f} {height - 6:.1f}"
        add(svg, "path", class_="cross", d=down + up)
        return
    kind = "positive" if value >= 0 else "negative"
    box = {"x": x + 0.5, "y": y + 0.5, "width": width - 1, "height": height - 1}
    add(svg, "rect", class_=f"cell {kind}", fill_opacity=abs(value), **box)


@dataclass(frozen=True, slots=True)
class Box:
    """A box of a tree.

    Parameters
    ----------
    lines : tuple of str
        One or two lines of text.
    note : str
        Text at its right.
    shares : tuple of (str, float)
        Colours and lengths of a bar, whose sum is 1 at most.
    children : tuple of Box
        Boxes at its right, the first at the top.
    """

    lines: tuple[str, ...]
    note: str = ""
    shares: tuple[tuple[str, float], ...] = ()
    children: tuple[Box, ...] = ()

    def paths(self, path: str = "1") -> Iterator[tuple[str, Box]]:
        """Yield each box with the numbers of the branches that lead to it."""
        yield path, self
        for number, child in enumerate(self.children, 1):
            yield from child.paths(f"{path}.{number}")


def tree(key: str, title: str, description: str, root: Box) -> Element:
    """Draw boxes from left to right.

    Parameters
    ----------
    key, title, description : str
        As for :func:`chart`.
    root : Box
        Leftmost box.
    """
    boxes = list(root.paths())
    leaves = sum(not box.children for _, box in boxes)
    depth = max(path.count(".") for path, _ in boxes) + 1
    width = depth * (_BOX_WIDTH + _BOX_GAP) - _BOX_GAP + 12
    svg = figure(width, leaves * _BOX_HEIGHT + 12, title, description, key)
    _place(svg, root, 6.0, iter(range(leaves)), "1")
    return svg


def _place(svg: Element, box: Box, x: float, rows: Iterator[int], path: str) -> float:
    """Draw a box behind its children; return its height."""
    next_x = x + _BOX_WIDTH + _BOX_GAP
    places = [
        _place(svg, child, next_x, rows, f"{path}.{number}")
        for number, child in enumerate(box.children, 1)
    ]
    y = (places[0] + places[-1]) / 2 if places else 6 + (next(rows) + 0.5) * _BOX_HEIGHT
    start, end = x + _BOX_WIDTH, next_x
    for place in places:
        middle = (start + end) / 2
        curve = f"M{start:.1f} {y:.1f}C{middle:.1f} {y:.1f} {middle:.1f} {place:.1f}"
        add(svg, "path", class_="branch", d=f"{curve} {end:.1f} {place:.1f}")
    group = add(svg, "g", class_="node" if places else "leaf")
    add(group, "title", f"{path}: {' '.join((*box.lines, box.note))}")
    size = {"x": x, "y": y - 18, "width": _BOX_WIDTH, "height": 36.0, "rx": 5.0}
    add(group, "rect", class_="box", **size)
    for number, line in enumerate(box.lines):
        kind = "tiny" if number == 0 and len(box.lines) > 1 else "tiny strong"
        add(group, "text", visible(line, _BOX_CHARS), class_=kind, x=x + 9, y=y - 4 + 15 * number)
    last = y - 4 + 15 * (len(box.lines) - 1)
    add(group, "text", box.note, class_="tiny muted", x=start - 9, y=last, text_anchor="end")
    left = x + 9
    for kind, share in box.shares:
        length = (_BOX_WIDTH - 18) * share
        add(group, "rect", class_=f"bar {kind}", x=left, y=y + 4, width=length, height=8.0)
        left += length
    return y

"""Plots of how good advice is: where it errs, and what following it costs."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from xml.etree.ElementTree import Element

import numpy as np
import numpy.typing as npt

from ..learning.findings import AdvisorFindings, Interval, Score
from .plots import Cell, Key, Plot, Table, colour
from .svg import Scale, add, cut, figure, percent, significant, x_axis

#: What the splits hold out, in the order of how honest they are.
SPLITS = {"random": "launches at random", "slice": "whole slices", "kernel": "whole kernels"}

_ROW = 26.0


def confusion_plot(
    method: str, matrix: npt.NDArray[np.int64], classes: Sequence[str], index: int
) -> Plot:
    """Draw how often which label got which advice, of kernels that were held out."""
    total, right = int(matrix.sum()), int(np.trace(matrix))
    caption = (
        f"{right:,} of {total:,} launches of held-out kernels got the right advice. Shares are of "
        "a row: all launches that have this label."
    )
    width, left, top, cell_w, cell_h = 400.0, 96.0, 48.0, 94.0, 46.0
    title = f"Advice of {cut(method, 30)}"
    svg = figure(width, top + cell_h * len(classes) + 8, title, caption, f"confusion{index}")
    add(svg, "text", "advice", class_="name", x=left + cell_w * 1.5, y=16.0, text_anchor="middle")
    add(svg, "text", "label", class_="name", x=left - 10, y=top - 10, text_anchor="end")
    for j, name in enumerate(classes):
        middle = left + cell_w * (j + 0.5)
        add(svg, "text", name, x=middle, y=top - 10, text_anchor="middle")
        add(svg, "text", name, x=left - 10, y=top + cell_h * (j + 0.5) + 4, text_anchor="end")
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    for i in range(len(classes)):
        for j in range(len(classes)):
            x, y, share = left + cell_w * j, top + cell_h * i, float(shares[i, j])
            kind = "cell right" if i == j else "cell wrong"
            box = {"x": x + 1, "y": y + 1, "width": cell_w - 2, "height": cell_h - 2}
            add(svg, "rect", class_=kind, fill_opacity=0.06 + 0.5 * share, **box)
            text = {"x": x + cell_w / 2, "text_anchor": "middle"}
            add(svg, "text", percent(share), class_="strong", y=y + 20, **text)
            add(svg, "text", f"{int(matrix[i, j]):,}", class_="tiny", y=y + 36, **text)
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (name, *(int(one) for one in matrix[i]), *(float(one) for one in shares[i]))
        for i, name in enumerate(classes)
    )
    advice = [f"advice {name}" for name in classes]
    columns = ("label", *advice, *(f"share {name}" for name in classes))
    return Plot(title, caption, svg, Table(columns, rows), small=True)


def accuracy_plot(found: AdvisorFindings) -> Plot | None:
    """Draw the balanced accuracy of each method in each split; None where nothing was judged."""
    methods = list(dict.fromkeys(one.method for one in found.scores if not one.held_out))
    splits = [name for name in SPLITS if found.scores_of(name)]
    values = {
        (one.method, one.split): one.balanced
        for name in splits
        for one in found.scores_of(name)
        if isfinite(one.balanced)
    }
    if not values:
        return None
    chance = 1 / len(found.classes)
    caption = (
        "Mean share of right advice over the labels, where advice was given. Held-out kernels are "
        "what counts: launches of one kernel resemble one another, so that a split at random "
        f"mostly tests memory. The dashed line ({chance:.2f}) is a constant answer."
    )
    svg, x, places = _rows(methods, (0.0, 1.0), "balanced accuracy", caption, "accuracy")
    top, bottom = places[0] - _ROW / 2, places[-1] + _ROW / 2
    add(svg, "line", class_="reference", x1=x(chance), x2=x(chance), y1=top, y2=bottom)
    for place, method in zip(places, methods, strict=True):
        for index, split in enumerate(splits):
            value = values.get((method, split))
            if value is not None:
                shape = {"href": f"#p{index}", "class_": f"fixed {colour(index)}"}
                add(svg, "use", x=x(value), y=place, **shape)
    keys = tuple(Key(f"held out: {SPLITS[split]}", colour(i), i) for i, split in enumerate(splits))
    title = "Balanced accuracy"
    return Plot(title, caption, svg, score_table(found.scores), keys=keys, wide=True)


def regret_plot(found: AdvisorFindings) -> Plot | None:
    """Draw what following each method costs on held-out kernels; None where it is not known."""
    scores = [one for one in found.scores_of("kernel") if one.regret is not None]
    if not scores:
        return None
    methods = [one.method for one in scores]
    ends = [end for one in scores for end in _ends(one.regret)]
    caption = (
        "Geometric mean of the time after following the advice one step, over the best time of "
        "the slice; 1 is perfect. Bars are 95 % bootstrap intervals over slices. Kernels were "
        "held out; a launch without advice stays as it is."
    )
    span = (1.0, max(1.02, *ends) + 0.03 * (max(1.02, *ends) - 1))
    svg, x, places = _rows(methods, span, "time after advice / best time", caption, "regret")
    for place, one in zip(places, scores, strict=True):
        low, value, high = _ends(one.regret)
        add(svg, "line", class_="interval", x1=x(low), x2=x(high), y1=place, y2=place)
        add(svg, "use", href="#p0", class_="fixed c0", x=x(value), y=place)
    columns = ("method", "low", "time / best", "high", "launches", "advised")
    rows = tuple((one.method, *_ends(one.regret), one.rows, one.advised) for one in scores)
    return Plot("Time lost", caption, svg, Table(columns, rows), wide=True)


def _ends(one: Interval | None) -> tuple[float, float, float]:
    if one is None:
        return float("nan"), float("nan"), float("nan")
    return one.low, one.value, one.high


def _rows(
    names: Sequence[str], span: tuple[float, float], title: str, caption: str, key: str
) -> tuple[Element, Scale, list[float]]:
    """Return a picture with a row for each name, its scale, and where the rows are."""
    width, left = 520.0, 120.0
    bottom = 14 + _ROW * len(names)
    svg = figure(width, bottom + 46, title, caption, key)
    x = Scale(*span, left, width - 16)
    x_axis(svg, x, bottom, title, top=8.0)
    places = [14 + _ROW * (index + 0.5) for index in range(len(names))]
    for name, place in zip(names, places, strict=True):
        add(svg, "text", cut(name, 14), x=left - 10, y=place + 4, text_anchor="end")
    return svg, x, places


def score_table(scores: Sequence[Score]) -> Table:
    """Return all that was judged."""
    columns = (
        *("held out", "kernel", "method", "launches", "advised", "accuracy", "balanced"),
        *("time / best", "low", "high", "time / before", "low", "high", "of the advised"),
    )
    rows = []
    for one in scores:
        regret, gain = _ends(one.regret), _ends(one.against_nothing)
        rows.append(
            (
                SPLITS.get(one.split, one.split),
                one.held_out or "all",
                one.method,
                one.rows,
                one.advised,
                one.accuracy,
                one.balanced,
                *(regret[1], regret[0], regret[2]),
                *(gain[1], gain[0], gain[2]),
                one.advised_regret,
            )
        )
    return Table(columns, tuple(rows))


def verdict(found: AdvisorFindings) -> str | None:
    """Return in one sentence which method loses least on held-out kernels."""
    scores = [one for one in found.scores_of("kernel") if one.regret is not None]
    if not scores:
        return None
    best = min(scores, key=lambda one: (_ends(one.regret)[1], one.method))
    idle = next((one for one in scores if one.method == "nothing"), None)
    text = (
        f"On kernels that were held out, {best.method} loses least: "
        f"{significant(_ends(best.regret)[1], 3)} times the best time"
    )
    if idle is not None and idle is not best:
        text += f", against {significant(_ends(idle.regret)[1], 3)} when nothing is changed"
    return f"{text}. It advised {percent(best.coverage)} of the launches."

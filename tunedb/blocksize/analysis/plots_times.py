"""Plots of run times: against block size, and what block size alone buys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from xml.etree.ElementTree import Element

import numpy as np
import numpy.typing as npt

from .plots import COLOURS, Key, Plot, Table, colour
from .svg import Scale, add, cut, figure, number, polyline, significant, x_axis, y_axis
from .times import Stake, Times

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

"""SVG for a page: elements, scales and axes.

Matplotlib's SVG has its own colours and fonts, which do not follow the theme or print style of a
page, and needs half a megabyte for 2,000 points. Here the colours of elements are classes of the
page's style sheet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element, SubElement

import numpy as np
import numpy.typing as npt

from ..system.one_line import shorten
from ..system.text import clean

Floats = npt.NDArray[np.float64]

#: Steps between ticks, times a power of ten.
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)

#: Mean width of a character of the page's sans serif font, relative to the font size.
_CHAR = 0.56


def visible(text: str, chars: int) -> str:
    """Return visible text of at most `chars` characters; a longer one loses its middle."""
    return shorten(clean(text), chars, "both")


def add(parent: Element, tag: str, text: str | None = None, /, **attributes: object) -> Element:
    """Append an element.

    Parameters
    ----------
    parent : Element
        Parent of the new element.
    tag : str
        Name of the element.
    text : str or None
        Text of the element, whose control characters are written out.
    **attributes : object
        Attributes of the element. Floats get two decimals; ``class_`` is ``class``, ``font_size``
        is ``font-size``.

    Returns
    -------
    Element
        The new element.
    """
    values = {
        name.rstrip("_").replace("_", "-"): number(value)
        if isinstance(value, float)
        else str(value)
        for name, value in attributes.items()
    }
    element = SubElement(parent, tag, values)
    if text is not None:
        element.text = clean(text)
    return element


def number(value: float) -> str:
    """Return a coordinate with at most two decimals."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def significant(value: float, digits: int = 4) -> str:
    """Return a number with at most `digits` significant digits: ``0.25``, ``1.234e9``."""
    if math.isnan(value):
        return "–"  # noqa: RUF001 - an en dash, as in printed tables
    text = f"{value:.{digits}g}"
    if "e" in text:
        mantissa, _, exponent = text.partition("e")
        return f"{mantissa}e{int(exponent)}"
    return "0" if text == "-0" else text


def percent(share: float) -> str:
    """Return a share as a percentage without decimals."""
    return f"{100 * share:.0f} %"


@dataclass(frozen=True, slots=True)
class Scale:
    """Map from numbers to coordinates.

    Parameters
    ----------
    low, high : float
        Ends of the range of numbers; above 0 if `logarithmic`.
    start, end : float
        Coordinates of the ends.
    logarithmic : bool
        Whether equal ratios, not equal differences, have equal lengths.
    """

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """Return the coordinate of a number."""
        low, high = self._map(self.low), self._map(self.high)
        return self.start + (self._map(value) - low) / (high - low) * (self.end - self.start)

    def _map(self, value: float) -> float:
        return math.log2(value) if self.logarithmic else value

    def ticks(self, count: int = 5) -> list[float]:
        """Return about `count` round numbers between the ends; powers of two on a log scale."""
        if not self.logarithmic:
            return linear_ticks(self.low, self.high, count)
        first, last = math.ceil(math.log2(self.low)), math.floor(math.log2(self.high))
        step = max(1, math.ceil((last - first + 1) / (count + 2)))
        return [2.0**power for power in range(first, last + 1, step)]


def linear_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about `count` multiples of 1, 2, 2.5 or 5 times a power of ten in [low, high]."""
    rough = (high - low) / max(count, 1)
    if not (rough > 0 and math.isfinite(rough)):
        return [low]
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(step for step in _STEPS if step * power >= rough * 0.999999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def padded(values: Floats, share: float = 0.04) -> tuple[float, float]:
    """Return the range of numbers with some margin; [-1, 1] without numbers."""
    if not len(values):
        return -1.0, 1.0
    low, high = float(values.min()), float(values.max())
    room = (high - low) * share or max(abs(low), 1.0) * 0.5
    return low - room, high + room


def figure(width: float, height: float, title: str, description: str, key: str) -> Element:
    """Return an empty picture with a description for screen readers.

    Parameters
    ----------
    width, height : float
        Size in pixels, if there is room.
    title, description : str
        Title, and content in words.
    key : str
        Prefix of its identifiers, unique on the page.
    """
    svg = Element(
        "svg",
        {
            "viewBox": f"0 0 {number(width)} {number(height)}",
            "role": "img",
            "aria-labelledby": f"{key}-title {key}-desc",
            "id": key,
            "style": f"--width:{width:.0f}px",
        },
    )
    add(svg, "title", title, id=f"{key}-title")
    add(svg, "desc", description, id=f"{key}-desc")
    return svg


def text_width(text: str, size: float = 12) -> float:
    """Return an estimate of the width of a text."""
    return len(text) * size * _CHAR


def x_axis(
    svg: Element,
    scale: Scale,
    y: float,
    title: str,
    *,
    top: float | None = None,
    show: Callable[[float], str] = significant,
    ticks: Sequence[float] | None = None,
) -> None:
    """Draw a horizontal axis at `y`, with grid lines up to `top`."""
    group = add(svg, "g", class_="axis x")
    for value in scale.ticks() if ticks is None else ticks:
        x = scale(value)
        if top is not None:
            add(group, "line", class_="grid", x1=x, x2=x, y1=y, y2=top)
        add(group, "text", show(value), x=x, y=y + 17, text_anchor="middle")
    add(group, "line", class_="base", x1=scale.start, x2=scale.end, y1=y, y2=y)
    middle = (scale.start + scale.end) / 2
    add(group, "text", title, class_="name", x=middle, y=y + 36, text_anchor="middle")


def y_axis(
    svg: Element,
    scale: Scale,
    x: float,
    title: str,
    *,
    right: float | None = None,
    show: Callable[[float], str] = significant,
    ticks: Sequence[float] | None = None,
) -> None:
    """Draw a vertical axis at `x`, with grid lines to `right`; its title is above it."""
    group = add(svg, "g", class_="axis y")
    for value in scale.ticks() if ticks is None else ticks:
        y = scale(value)
        if right is not None:
            add(group, "line", class_="grid", x1=x, x2=right, y1=y, y2=y)
        add(group, "text", show(value), x=x - 7, y=y + 4, text_anchor="end")
    add(group, "line", class_="base", x1=x, x2=x, y1=scale.start, y2=scale.end)
    top = min(scale.start, scale.end)
    add(group, "text", title, class_="name", x=max(x - 40, 2.0), y=top - 12)


def polyline(points: Sequence[tuple[float, float]], *, closed: bool = False) -> str:
    """Return the path through points."""
    path = "L".join(f"{number(x)} {number(y)}" for x, y in points)
    return f"M{path}{'Z' if closed else ''}"

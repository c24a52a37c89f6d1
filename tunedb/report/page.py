"""Self-contained HTML pages, rendered from ``templates``."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias
from xml.etree.ElementTree import Element, tostring

from ..errors import PluginError
from ..system import text
from .svg import significant

if TYPE_CHECKING:
    from jinja2 import Environment

# ---- Content of a page: plots, each with its numbers as a table ----------------------------------

#: Number of colours, from ``c0``; further items have the class ``other``.
COLOURS = 8

#: Number of shapes of points, from ``p0``.
SHAPES = 4

#: Letters of the markings of a plot.
LETTERS = "abcd"

#: Most rows of a table; the page says how many more there are.
MOST_ROWS = 200


@dataclass(frozen=True, slots=True)
class Shown:
    """A number of a table with its unit.

    Parameters
    ----------
    value : float or None
        The number, by which the table is sorted.
    text : str
        What people read.
    """

    value: float | None
    text: str


#: Cell of a table; None is an unknown value.
Cell: TypeAlias = str | int | float | Shown | None


def seconds(value: float | None) -> Shown:
    """Return a time with its unit."""
    return Shown(value, text.seconds(value))


def share(value: float | None) -> Shown:
    """Return a share as a percentage."""
    return Shown(value, text.percent(value))


def operations(value: float | None, unit: str = "FLOP/s") -> Shown:
    """Return a number of operations, or another large number, with its unit."""
    shown = text.operations(value)
    return Shown(value, shown if value is None else f"{shown}{'' if ' ' in shown else ' '}{unit}")


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Parameters
    ----------
    columns : tuple of str
        Titles of the columns.
    rows : sequence of sequence of Cell
        Cells of each row.
    most : int
        Rows that the page shows; it says how many more there are.
    more : str
        Command that prints all rows.
    """

    columns: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]
    most: int = MOST_ROWS
    more: str = ""

    @property
    def shown(self) -> Sequence[Sequence[Cell]]:
        """Rows of the page."""
        return self.rows[: self.most]

    @property
    def left(self) -> int:
        """Number of rows that the page leaves out."""
        return max(len(self.rows) - self.most, 0)

    @property
    def numeric(self) -> list[bool]:
        """Whether each column has numbers only, which are right-aligned."""
        return [
            bool(self.rows) and all(not isinstance(row[index], str) for row in self.shown)
            for index in range(len(self.columns))
        ]


@dataclass(frozen=True, slots=True)
class Key:
    """Entry of a legend: its text, the class of its colour, and the number of its shape."""

    text: str
    colour: str
    shape: int = 0


@dataclass(frozen=True, slots=True)
class Marking:
    """One of several colourings of a plot's points, with the entries of its legend."""

    title: str
    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Plot:
    """A picture with its numbers.

    Parameters
    ----------
    title : str
        Title of the plot.
    caption : str
        Explanation and limits of the plot.
    svg : Element
        The picture.
    table : Table or None
        All plotted numbers; None where a table beside the plot has them.
    text : str or None
        The same numbers as lines of text.
    keys : tuple of Key
        Legend of the plot.
    markings : tuple of Marking
        Colourings of the points, each with its legend; the first is shown.
    zoom : dict or None
        :func:`.charts.zoomable` curves.
    wide : bool
        Whether the plot takes the whole width of the page.
    small : bool
        Whether several plots are side by side.
    scrolls : bool
        Whether a narrow screen scrolls the plot, whose text would be too small otherwise.
    """

    title: str
    caption: str
    svg: Element
    table: Table | None
    text: str | None = None
    keys: tuple[Key, ...] = ()
    markings: tuple[Marking, ...] = ()
    zoom: dict[str, Any] | None = None
    wide: bool = False
    small: bool = False
    scrolls: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Section:
    """A section of a page.

    Parameters
    ----------
    title : str
        Title of the section.
    paragraphs : tuple of str
        Text.
    notes : tuple of str
        Text in small letters.
    plots : tuple of list of Plot
        Groups of plots; those of a group are side by side if there is room.
    tables : dict of str to Table
        Title of each table → the table, which is always visible.
    texts : dict of str to str
        Title of each long text → the text, which the reader unfolds.
    parts : tuple of Section
        Sections of this section.
    """

    title: str
    paragraphs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    plots: tuple[list[Plot], ...] = ()
    tables: dict[str, Table] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    parts: tuple[Section, ...] = ()

    def all_plots(self) -> Iterator[Plot]:
        """Yield the plots of the section and of its parts."""
        for plots in self.plots:
            yield from plots
        for part in self.parts:
            yield from part.all_plots()


def colour(index: int) -> str:
    """Return the class of a colour by its number; ``other`` beyond the last."""
    return f"c{index}" if index < COLOURS else "other"


# ---- HTML of the content -------------------------------------------------------------------------


def render(
    title: str,
    lead: str,
    sections: Sequence[Section],
    footer: str,
    *,
    reload_after: int | None = None,
) -> str:
    """Return a page as self-contained HTML.

    The page is whole without scripts. With them people zoom into curves, sort tables and pause a
    page that loads itself again; other pages have no script.

    Parameters
    ----------
    title : str
        Title of the page.
    lead : str
        Summary in a sentence or two.
    sections : sequence of Section
        Sections in their order.
    footer : str
        Last line of the page.
    reload_after : int, optional
        Seconds after which the page loads itself again.

    Raises
    ------
    PluginError
        Jinja is not installed.
    """
    environment = _environment()
    script = ""
    if reload_after or any(plot.zoom for section in sections for plot in section.all_plots()):
        script = environment.get_template("page.js").render()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("page.html").render(
        title=title,
        lead=lead,
        sections=sections,
        footer=footer,
        reload_after=reload_after,
        script=script,
        # A page runs its own script alone; what names and messages of files hold never runs.
        script_source=f" script-src 'sha256-{digest}';" if script else "",
    )


@cache
def _environment() -> Environment:
    """Return the templates of all pages."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError as error:
        raise PluginError(
            f"Jinja does not load ({error}); run: pip install 'tunedb[report]'"
        ) from None
    environment = Environment(
        loader=PackageLoader(__package__ or "tunedb.report"),
        autoescape=True,
        finalize=_visible,
        keep_trailing_newline=True,
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"cell": _cell, "drawing": _drawing, "data": _data, "lines": _lines}
    environment.tests["shown"] = lambda cell: isinstance(cell, Shown)
    environment.globals |= {
        "colours": [*map(colour, range(COLOURS)), "other"],
        "letters": LETTERS,
        "shapes": SHAPES,
    }
    return environment


def _visible(value: Any) -> Any:
    """Return text with its control characters written out, and HTML unchanged."""
    return text.clean(value) if type(value) is str else value


def _drawing(svg: Element) -> Any:
    """Return a picture as HTML."""
    from markupsafe import Markup

    return Markup(tostring(svg, encoding="unicode", method="html"))  # noqa: S704 - escaped there


def _data(value: Any) -> Any:
    """Return JSON that no HTML ends."""
    from markupsafe import Markup

    shown = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Markup(shown.replace("<", "\\u003c"))  # noqa: S704 - no tag begins


def _lines(value: str) -> Any:
    """Return lines of text as HTML."""
    from markupsafe import Markup, escape

    return Markup("\n").join(escape(line) for line in text.clean_lines(value))


def _cell(cell: Cell) -> str:
    """Return the text of a cell."""
    if cell is None:
        return text.NOTHING
    if isinstance(cell, Shown):
        return cell.text
    return significant(cell, 6) if isinstance(cell, float) else str(cell)

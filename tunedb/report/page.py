"""Self-contained HTML pages, rendered from ``templates``."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any
from xml.etree.ElementTree import Element, tostring

from ..errors import PluginError
from .svg import significant, visible

if TYPE_CHECKING:
    from jinja2 import Template

# ---- Content of a page: plots, each with its numbers as a table ----------------------------------

#: Cell of a table; None is an unknown value.
Cell = str | int | float | None

#: Number of colours, from ``c0``; further items have the class ``other``.
COLOURS = 8

#: Number of shapes of points, from ``p0``.
SHAPES = 4

#: Letters of the markings of a plot.
LETTERS = "abcd"


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Parameters
    ----------
    columns : tuple of str
        Titles of the columns.
    rows : tuple of tuple of Cell
        Cells of each row.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    @property
    def numeric(self) -> list[bool]:
        """Whether each column has numbers only, which are right-aligned."""
        return [
            bool(self.rows) and all(not isinstance(row[index], str) for row in self.rows)
            for index in range(len(self.columns))
        ]


@dataclass(frozen=True, slots=True)
class Key:
    """Entry of a legend.

    Parameters
    ----------
    text : str
        Meaning of the colour and shape.
    colour : str
        Class of the style sheet: ``c0``, …, ``other``.
    shape : int
        Number of the shape.
    """

    text: str
    colour: str
    shape: int = 0


@dataclass(frozen=True, slots=True)
class Marking:
    """One of several colourings of a plot's points.

    Parameters
    ----------
    title : str
        Title of the colouring.
    keys : tuple of Key
        Entries of its legend.
    """

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
    table : Table
        All plotted numbers.
    text : str or None
        The same numbers as lines of text.
    keys : tuple of Key
        Legend of the plot.
    markings : tuple of Marking
        Colourings of the points, each with its legend; the first is shown.
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
    table: Table
    text: str | None = None
    keys: tuple[Key, ...] = ()
    markings: tuple[Marking, ...] = ()
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
    """

    title: str
    paragraphs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    plots: tuple[list[Plot], ...] = ()
    tables: dict[str, Table] = field(default_factory=dict)


def colour(index: int) -> str:
    """Return the class of a colour by its number; ``other`` beyond the last."""
    return f"c{index}" if index < COLOURS else "other"


# ---- HTML of the content -------------------------------------------------------------------------


def render(title: str, lead: str, sections: list[Section], footer: str) -> str:
    """Return a page as HTML without scripts or external resources.

    Parameters
    ----------
    title : str
        Title of the page.
    lead : str
        Summary in a sentence or two.
    sections : list of Section
        Sections in their order.
    footer : str
        Last line of the page.

    Raises
    ------
    PluginError
        Jinja is not installed.
    """
    return _template().render(title=title, lead=lead, sections=sections, footer=footer)


@cache
def _template() -> Template:
    """Return the template of all pages."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError as error:
        raise PluginError(
            f"Jinja does not load ({error}); run: pip install 'tunedb[advise]'"
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
    environment.filters |= {"cell": _cell, "drawing": _drawing}
    environment.globals |= {
        "colours": [*map(colour, range(COLOURS)), "other"],
        "letters": LETTERS,
        "shapes": SHAPES,
    }
    return environment.get_template("page.html")


def _visible(value: Any) -> Any:
    """Return text with its control characters written out, and HTML unchanged."""
    return visible(value) if type(value) is str else value


def _drawing(svg: Element) -> Any:
    """Return a picture as HTML."""
    from markupsafe import Markup

    return Markup(tostring(svg, encoding="unicode", method="html"))  # noqa: S704 - escaped there


def _cell(cell: Cell) -> str:
    """Return the text of a cell."""
    if cell is None:
        return "–"  # noqa: RUF001 - an en dash, as in printed tables
    return significant(cell, 6) if isinstance(cell, float) else str(cell)

"""What the page is made of: plots, each with its numbers as a table."""

from __future__ import annotations

from dataclasses import dataclass
from xml.etree.ElementTree import Element

#: A cell of a table; None is what is not known.
Cell = str | int | float | None

#: Colours of the page, from ``c0``: beyond them everything is ``other``.
COLOURS = 8

#: Shapes of points, from ``p0``.
SHAPES = 4


@dataclass(frozen=True, slots=True)
class Table:
    """Numbers as text.

    Parameters
    ----------
    columns : tuple of str
        Titles.
    rows : tuple of tuple
        Cells.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class Key:
    """What a colour, and maybe a shape, stands for.

    Parameters
    ----------
    text : str
        What it stands for.
    colour : str
        A class of the page: ``c0``, …, ``other``.
    shape : int
        Number of the shape.
    """

    text: str
    colour: str
    shape: int = 0


@dataclass(frozen=True, slots=True)
class Marking:
    """One of several ways to colour the points of a plot.

    Parameters
    ----------
    title : str
        What is told apart.
    keys : tuple of Key
        In the order of the legend.
    """

    title: str
    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Plot:
    """A picture with its numbers.

    Parameters
    ----------
    title : str
        Its name.
    caption : str
        What is seen, and what it does not tell.
    svg : Element or None
        The picture; None where there is a table only.
    table : Table or None
        Every plotted number.
    text : str or None
        Lines that say the same.
    keys : tuple of Key
        Its legend.
    markings : tuple of Marking
        Ways to colour its points, the first is shown; each has a legend of its own.
    wide : bool
        Whether it takes the whole width of the page.
    small : bool
        Whether several stand side by side.
    scrolls : bool
        Whether it must not become smaller than the screen is wide: its letters are many.
    """

    title: str
    caption: str
    svg: Element | None = None
    table: Table | None = None
    text: str | None = None
    keys: tuple[Key, ...] = ()
    markings: tuple[Marking, ...] = ()
    wide: bool = False
    small: bool = False
    scrolls: bool = False


def colour(index: int) -> str:
    """Return the class of the n-th colour; beyond the last, of everything else."""
    return f"c{index}" if index < COLOURS else "other"

"""The page: one file of HTML that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element, tostring

from .plots import SHAPES, Cell, Key, Plot, Table
from .style import LETTERS, sheet
from .svg import add, significant

#: Shapes of points, in the order of their numbers.
_SHAPES = (
    ("circle", {"r": "3.6"}),
    ("rect", {"x": "-3.2", "y": "-3.2", "width": "6.4", "height": "6.4"}),
    ("path", {"d": "M0-4.4L4.1 3H-4.1Z"}),
    ("path", {"d": "M0-4.6L4.6 0L0 4.6L-4.6 0Z"}),
)

#: Nothing of another file is loaded, and no script runs, whatever a name may look like.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


class Page:
    """HTML that grows section by section.

    Parameters
    ----------
    title : str
        Its name.
    lead : str
        What it says, in a sentence or two.
    """

    def __init__(self, title: str, lead: str) -> None:
        self._root = Element("html", {"lang": "en"})
        head = add(self._root, "head")
        add(head, "meta", charset="utf-8")
        add(head, "meta", name="viewport", content="width=device-width, initial-scale=1")
        add(head, "meta", http_equiv="Content-Security-Policy", content=_POLICY)
        add(head, "meta", name="color-scheme", content="light dark")
        add(head, "meta", name="generator", content="tunedb")
        add(head, "title", title)
        style = add(head, "style")
        # Not through `add`: line breaks of a style sheet stay.
        style.text = "\n" + sheet()
        self._body = add(self._root, "body")
        self._shapes()
        top = add(self._body, "header")
        add(top, "h1", title)
        add(top, "p", lead, class_="lead")
        self._contents = add(add(top, "nav", aria_label="Contents"), "ul")
        self._main = add(self._body, "main")
        self._section: Element = self._main
        self._sections = self._plots = 0

    def _shapes(self) -> None:
        """Define the shapes that points have."""
        hidden = add(self._body, "svg", class_="aside", aria_hidden="true", focusable="false")
        definitions = add(hidden, "defs")
        for index, (tag, values) in enumerate(_SHAPES):
            add(definitions, tag, id=f"p{index}", **values)

    def section(self, title: str, *paragraphs: str) -> None:
        """Begin a section."""
        self._sections += 1
        key = f"section{self._sections}"
        self._section = add(self._main, "section", aria_labelledby=key)
        add(self._section, "h2", title, id=key)
        add(add(self._contents, "li"), "a", title, href=f"#{key}")
        for text in paragraphs:
            add(self._section, "p", text)

    def note(self, text: str) -> None:
        """Say something in small letters."""
        add(self._section, "p", text, class_="note")

    def table(self, table: Table, title: str) -> None:
        """Append a table that is open."""
        frame = add(
            self._section, "div", class_="scroll", tabindex="0", role="region", aria_label=title
        )
        _write_table(frame, table)

    def plots(self, plots: Sequence[Plot]) -> None:
        """Append plots, side by side where there is room."""
        if not plots:
            return
        small = all(plot.small for plot in plots)
        grid = add(self._section, "div", class_="plots small" if small else "plots")
        for plot in plots:
            self._plots += 1
            _write_plot(grid, plot, f"plot{self._plots}")

    def text(self, footer: str) -> str:
        """Return the page, with a last line."""
        end = add(self._body, "footer")
        add(end, "p", footer)
        body = tostring(self._root, encoding="unicode", method="html")
        self._body.remove(end)
        return f"<!DOCTYPE html>\n{body}\n"


def _write_plot(parent: Element, plot: Plot, key: str) -> None:
    """Append a plot; names of kernels stand in text alone, which is escaped, not in attributes."""
    kind = "wide" if plot.wide else "small" if plot.small else "middle"
    kind += " scrolls" if plot.scrolls else ""
    figure = add(parent, "figure", class_=kind)
    add(figure, "h3", plot.title, id=key)
    for letter, marking in zip(LETTERS, plot.markings, strict=False):
        chosen = {"checked": "checked"} if letter == "a" else {}
        mark = f"mark-{letter}"
        add(figure, "input", type="radio", name="mark", class_="mark", id=mark, **chosen)
        add(figure, "label", marking.title, for_=mark)
    if plot.svg is not None:
        width = float(plot.svg.get("viewBox", "0 0 640 0").split()[2])
        values = {"tabindex": "0", "role": "group", "aria_labelledby": key}
        frame = add(figure, "div", class_="frame", style=f"--width:{width:.0f}px", **values)
        # A picture is not blown up beyond a legible size of its text.
        plot.svg.set("style", f"max-width:{1.25 * width:.0f}px")
        frame.append(plot.svg)
    _write_legend(figure, plot.keys, "legend")
    for letter, marking in zip(LETTERS, plot.markings, strict=False):
        _write_legend(figure, marking.keys, f"legend for-{letter}")
    add(figure, "figcaption", plot.caption)
    if plot.text is not None:
        _write_lines(figure, plot.text)
    if plot.table is not None:
        details = add(figure, "details")
        rows = len(plot.table.rows)
        add(details, "summary", f"Numbers ({rows:,} {'row' if rows == 1 else 'rows'})")
        values = {"tabindex": "0", "role": "region", "aria_labelledby": key}
        _write_table(add(details, "div", class_="scroll", **values), plot.table)


def _write_lines(parent: Element, text: str) -> None:
    """Append lines; only here a line break of a text stays one."""
    made = add(parent, "pre", tabindex="0")
    for index, line in enumerate(text.split("\n")):
        # Elements carry no line breaks through `add`: names may hold some.
        part = add(made, "span", line)
        part.tail = "\n" if index < text.count("\n") else None


def _write_legend(parent: Element, keys: Sequence[Key], kind: str) -> None:
    if not keys:
        return
    legend = add(parent, "ul", class_=kind)
    for key in keys:
        item = add(legend, "li")
        picture = add(item, "svg", viewBox="-6 -6 12 12", aria_hidden="true", focusable="false")
        add(picture, "use", href=f"#p{key.shape % SHAPES}", class_=key.colour)
        add(item, "span", key.text)


def _write_table(parent: Element, table: Table) -> None:
    numeric = [
        bool(table.rows) and all(not isinstance(row[index], str) for row in table.rows)
        for index in range(len(table.columns))
    ]
    made = add(parent, "table")
    top = add(add(made, "thead"), "tr")
    for title, right in zip(table.columns, numeric, strict=True):
        add(top, "th", title, scope="col", class_="n" if right else None)
    body = add(made, "tbody")
    for row in table.rows:
        line = add(body, "tr")
        for cell, right in zip(row, numeric, strict=True):
            add(line, "td", _cell(cell), class_="n" if right else None)


def _cell(cell: Cell) -> str:
    if cell is None:
        return "–"  # noqa: RUF001 - an en dash, as in printed tables
    return significant(cell, 6) if isinstance(cell, float) else str(cell)

"""The page: one file of HTML that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element, tostring

from .plots import SHAPES, Cell, Key, Plot, Table
from .svg import add, significant

# ---- How the page looks: on a screen by day and by night, on paper, on a telephone ---------------

#: Colours that people with any colour vision tell apart (after Okabe and Ito), with a contrast of
#: 3 at least against their background.
_LIGHT = ("#0067a8", "#c44f00", "#007a5a", "#a8468a", "#8a6100", "#3b6fd6", "#b3261e", "#5d6b00")
_DARK = ("#5cb8f0", "#ff9350", "#36c99a", "#e58cc4", "#e3b23c", "#9db4ff", "#ff8a80", "#c0cf5a")

#: Letters of the ways to mark points.
LETTERS = "abcd"

_THEME = """
--paper:{paper};--card:{card};--ink:{ink};--muted:{muted};--rule:{rule};--grid:{grid};
--other:{other};--link:{link};{colours}
"""


def _theme(colours: tuple[str, ...], **values: str) -> str:
    made = "".join(f"--c{index}:{value};" for index, value in enumerate(colours))
    return _THEME.format(colours=made, **values).replace("\n", "")


_BY_DAY = _theme(
    _LIGHT,
    paper="#f6f7f9",
    card="#ffffff",
    ink="#1a1f26",
    muted="#555f6d",
    rule="#d5dae1",
    grid="#e8ebef",
    other="#7b8591",
    link="#0b5cad",
)
_BY_NIGHT = _theme(
    _DARK,
    paper="#12161b",
    card="#1a2027",
    ink="#e6eaef",
    muted="#a3adba",
    rule="#39424d",
    grid="#2a323b",
    other="#8d97a4",
    link="#7cc0ff",
)

_BASE = """
*{box-sizing:border-box}
html{color-scheme:light dark;-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans","DejaVu Sans",sans-serif}
main,header{max-width:1180px;margin:0 auto;padding:0 20px}
header{padding-top:28px}
h1{font-size:1.7rem;line-height:1.2;margin:0 0 .4rem}
h2{font-size:1.25rem;margin:2.2rem 0 .3rem;padding-top:.9rem;border-top:1px solid var(--rule)}
h3{font-size:1rem;margin:0 0 .4rem;overflow-wrap:anywhere}
p{max-width:76ch;margin:.4rem 0 .8rem;overflow-wrap:anywhere}
a{color:var(--link)}
nav ul{display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;list-style:none;padding:0;margin:.6rem 0 0}
.lead{font-size:1.05rem}
.note{color:var(--muted);font-size:.92rem}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));
gap:16px;align-items:start}
.plots.small{grid-template-columns:repeat(auto-fill,minmax(min(100%,330px),1fr))}
figure{margin:0;padding:14px 16px;background:var(--card);border:1px solid var(--rule);
border-radius:8px;min-width:0}
figure.wide{grid-column:1/-1}
figure.middle{max-width:740px}
.plots+.plots,.scroll+.plots,.plots+.scroll{margin-top:16px}
figcaption{color:var(--muted);font-size:.88rem;line-height:1.45;max-width:90ch;
overflow-wrap:anywhere}
.frame{overflow-x:auto}
.frame,.scroll{background:linear-gradient(90deg,var(--card) 30%,transparent) 0 0/36px 100% local,
linear-gradient(270deg,var(--card) 30%,transparent) 100% 0/36px 100% local,
linear-gradient(90deg,var(--rule),transparent) 0 0/9px 100% scroll,
linear-gradient(270deg,var(--rule),transparent) 100% 0/9px 100% scroll,var(--card);
background-repeat:no-repeat}
section>.scroll{border:1px solid var(--rule);border-radius:8px;max-width:max-content}
.frame:focus-visible,summary:focus-visible{outline:2px solid var(--link);outline-offset:2px}
.frame svg{display:block;width:100%;height:auto;margin:0 auto}
figure.scrolls .frame svg{min-width:calc(.85*var(--width))}
svg text{fill:var(--ink);font-size:12px}
svg .tiny{font-size:11px}
svg .axis text,svg .muted{fill:var(--muted)}
svg .name{fill:var(--muted);font-weight:600}
svg .strong{font-weight:600}
svg .grid{stroke:var(--grid)}
svg .base{stroke:var(--other)}
svg .band{fill:var(--c0);fill-opacity:.16}
svg .line{fill:none;stroke:var(--c0);stroke-width:2}
svg .median{fill:var(--c0)}
svg .ellipse{fill:var(--other);fill-opacity:.07;stroke:var(--muted);stroke-width:1.2;
stroke-dasharray:5 3}
svg .cluster{font-size:15px;font-weight:700;paint-order:stroke;stroke:var(--card);stroke-width:4px;
stroke-linejoin:round}
svg .points use{fill:var(--other);fill-opacity:.72}
svg .positive{fill:var(--c0)}
svg .negative{fill:var(--c1)}
svg .weak{fill-opacity:.35}
svg .cross{stroke:var(--other)}
svg .right{fill:var(--c0)}
svg .wrong{fill:var(--c1)}
svg .box{fill:var(--paper);stroke:var(--other)}
svg .leaf .box{stroke:var(--rule)}
svg .branch{fill:none;stroke:var(--other);stroke-width:1.4}
svg .reference{stroke:var(--muted);stroke-dasharray:5 4}
svg .interval{stroke:var(--c0);stroke-width:2.5}
.legend{display:flex;flex-wrap:wrap;gap:.1rem 1.1rem;list-style:none;padding:0;margin:.3rem 0 .5rem;
font-size:.88rem}
.legend li{display:flex;align-items:center;gap:.4rem;overflow-wrap:anywhere}
.legend svg{width:13px;height:13px;flex:none}
.choices{display:inline}
input.mark{accent-color:var(--link);margin:0 .3rem 0 0}
input.mark+label{margin-right:1rem;font-size:.92rem}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--paper);
border:1px solid var(--rule);border-radius:6px;padding:10px 12px;
font:.82rem/1.5 ui-monospace,"Liberation Mono","DejaVu Sans Mono",monospace}
details{margin-top:.5rem;font-size:.88rem}
summary{cursor:pointer;color:var(--link)}
.scroll{overflow:auto;max-height:420px;margin-top:.4rem}
table{border-collapse:collapse;font-size:.84rem;font-variant-numeric:tabular-nums}
th,td{padding:.2rem .6rem;border-bottom:1px solid var(--rule);text-align:left;white-space:nowrap}
td:not(.n){white-space:normal;overflow-wrap:anywhere;min-width:7ch;max-width:46ch}
th{position:sticky;top:0;background:var(--card);font-weight:600}
td.n,th.n{text-align:right}
.aside{position:absolute;width:0;height:0;overflow:hidden}
footer{max-width:1180px;margin:2rem auto;padding:0 20px;color:var(--muted);font-size:.88rem}
"""

#: On a telephone letters of a picture are larger, and large pictures keep a width at which they can
#: be read, and are scrolled.
_NARROW = """
@media (max-width:640px){main,header,footer{padding-left:12px;padding-right:12px}
figure{padding:10px 10px}.frame svg text{font-size:14px}
figure.scrolls .frame svg text{font-size:12px}pre{white-space:pre;overflow-x:auto}}
"""

_PRINT = """
@media print{:root{DAY}body{background:none;font-size:11pt}
figure,section>table{break-inside:avoid}figure.wide{break-inside:auto}
h2,h3{break-after:avoid}nav,details,input.mark,input.mark+label{display:none}
.frame{overflow:visible}main,header,footer{max-width:none;padding:0}}
"""


def sheet() -> str:
    """Return the page's style sheet."""
    colours = [(f"c{index}", f"var(--c{index})") for index in range(len(_LIGHT))]
    colours.append(("other", "var(--other)"))
    rules = [
        f".legend .{name},svg .bar.{name},svg .fixed.{name}{{fill:{value}}}"
        for name, value in colours
    ]
    for letter in LETTERS:
        chosen = f"#mark-{letter}:checked~"
        rules += [f"{chosen}.frame .{letter}-{name}{{fill:{value}}}" for name, value in colours]
        others = ",".join(f"{chosen}.for-{one}" for one in LETTERS if one != letter)
        rules.append(f"{others}{{display:none}}")
    night = f"@media (prefers-color-scheme:dark){{:root{{{_BY_NIGHT}}}}}"
    printed = _PRINT.replace("DAY", _BY_DAY)
    parts = [f":root{{{_BY_DAY}}}", night, _BASE, *rules, _NARROW, printed]
    return "\n".join(part.strip() for part in parts)


# ---- The page ------------------------------------------------------------------------------------

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

"""The decision tree as a drawing, its root at the left."""

from __future__ import annotations

from dataclasses import dataclass
from xml.etree.ElementTree import Element

from ..observations import LABELS
from .plots import Cell, Key, Plot, Table
from .svg import add, cut, figure, significant
from .trees import Node, describe, questions

#: Colours of the labels, which all plots share.
LABEL_COLOURS = dict(zip(LABELS, ("c1", "c2", "c0"), strict=True))

_BOX, _GAP, _ROW = 176.0, 34.0, 46.0
#: Letters of the text of a box.
_CHARS = 25


@dataclass(frozen=True, slots=True)
class _Placed:
    """A node and where it stands."""

    node: Node
    x: float
    y: float
    answers: tuple[_Placed, ...]


def tree_plot(root: Node) -> Plot:
    """Draw a tree; a box asks, the upper line is yes, and bars show the labels of a leaf."""
    leaves = sum(1 for _ in root.leaves())
    caption = (
        f"{root.total:,} launches and {leaves} leaves. The upper line of a box is the answer yes, "
        "the lower one no. Bars show how many launches of a leaf have which label; its name is the "
        "label that weighs most where all labels weigh the same. A tree tells what divides these "
        "launches, not what others will do."
    )
    width = (root.depth() + 1) * (_BOX + _GAP) - _GAP + 12
    svg = figure(width, leaves * _ROW + 12, "Decision tree", caption, "tree")
    placed, _ = _place(root, 0, 0)
    rows: list[tuple[Cell, ...]] = []
    _draw(svg, placed, rows, "1")
    table = Table(("box", "asks or says", "launches", *map(str, LABELS)), tuple(rows))
    keys = tuple(Key(str(label), LABEL_COLOURS[label]) for label in LABELS)
    title = "Decision tree"
    text = describe(root)
    return Plot(title, caption, svg, table, text=text, keys=keys, wide=True, scrolls=True)


def _place(node: Node, depth: int, leaf: int) -> tuple[_Placed, int]:
    """Return a node with its place, and the number of the next leaf."""
    x = 6 + depth * (_BOX + _GAP)
    if node.yes is None or node.no is None:
        return _Placed(node, x, 6 + (leaf + 0.5) * _ROW, ()), leaf + 1
    yes, leaf = _place(node.yes, depth + 1, leaf)
    no, leaf = _place(node.no, depth + 1, leaf)
    return _Placed(node, x, (yes.y + no.y) / 2, (yes, no)), leaf


def _draw(svg: Element, placed: _Placed, rows: list[tuple[Cell, ...]], path: str) -> None:
    """Draw a node and those below it; boxes are numbered by the answers that lead to them."""
    node = placed.node
    for one in placed.answers:
        start, end = placed.x + _BOX, one.x
        middle = (start + end) / 2
        path_ = f"M{start:.1f} {placed.y:.1f}C{middle:.1f} {placed.y:.1f} {middle:.1f} {one.y:.1f}"
        add(svg, "path", class_="branch", d=f"{path_} {end:.1f} {one.y:.1f}")
    group = add(svg, "g", class_="node" if placed.answers else "leaf")
    what = questions(node)[0] if placed.answers else str(node.label)
    add(group, "title", f"{path}: {what} ({node.total:,} launches)")
    top = placed.y - 18
    add(group, "rect", class_="box", x=placed.x, y=top, width=_BOX, height=36.0, rx=5.0)
    if placed.answers:
        _ask(group, placed)
    else:
        _say(group, placed)
    rows.append((path, what, node.total, *node.counts))
    for letter, one in zip(("y", "n"), placed.answers, strict=False):
        _draw(svg, one, rows, path + letter)


def _ask(group: Element, placed: _Placed) -> None:
    node, x = placed.node, placed.x + 9
    add(group, "text", cut(node.name or "", _CHARS), class_="tiny", x=x, y=placed.y - 4)
    lack = " or unknown" if node.unknown else ""
    text = f"≤ {significant(node.threshold)}{lack}?"
    add(group, "text", text, class_="tiny strong", x=x, y=placed.y + 11)
    share = f"{node.total:,}"
    right = placed.x + _BOX - 9
    add(group, "text", share, class_="tiny muted", x=right, y=placed.y + 11, text_anchor="end")


def _say(group: Element, placed: _Placed) -> None:
    node, x = placed.node, placed.x + 9
    add(group, "text", str(node.label), class_="tiny strong", x=x, y=placed.y - 2)
    right = placed.x + _BOX - 9
    add(
        group,
        "text",
        f"{node.total:,}",
        class_="tiny muted",
        x=right,
        y=placed.y - 2,
        text_anchor="end",
    )
    for label, count in zip(LABELS, node.counts, strict=True):
        length = (_BOX - 18) * count / max(node.total, 1)
        if count:
            kind = f"bar {LABEL_COLOURS[label]}"
            add(group, "rect", class_=kind, x=x, y=placed.y + 4, width=length, height=8.0)
        x += length

"""Plots of the advisor's sections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from math import isfinite

import numpy as np
import numpy.typing as npt

from ..advisor.analysis.clusters import NO_STRUCTURE, Clusters, Ellipse
from ..advisor.analysis.components import Components
from ..advisor.analysis.times import KernelTimes, SliceGain
from ..advisor.analysis.trees import TreeNode
from ..advisor.learn.findings import AdvisorFindings, Interval, Score
from ..advisor.observations import LABELS
from ..system import text
from .charts import Axis, Box, Mark, chart, heat_map, tree
from .page import COLOURS, LETTERS, SHAPES, Cell, Key, Marking, Plot, Table, colour
from .svg import Floats, number, percent, significant, visible

#: Longest name of a kernel in a title or legend.
KERNEL_CHARS = 60

#: Minus sign; unlike a hyphen, it never ends a line.
_MINUS = "\u2212"

#: Loading from which an input belongs to a component: half of its variance.
STRONG = 0.7

# ---- Inputs: correlation, components, clusters ---------------------------------------------------


def correlation_plot(names: Sequence[str], matrix: Floats) -> Plot:
    """Draw the correlation of each pair of inputs as a square."""
    strongest = np.abs(np.where(np.eye(len(names), dtype=bool), 0, np.nan_to_num(matrix)))
    caption = (
        f"{len(names)} selected inputs; darker squares are stronger correlations. The strongest "
        f"pair has |r| = {strongest.max() if len(names) else 0:.2f}. A cross marks a pair that no "
        "launch has, or of which one input is constant."
    )
    title = "Correlation of the inputs"
    numbered = [f"{name} {i}" for i, name in enumerate(names, 1)]
    places = list(map(str, range(1, len(names) + 1)))
    svg = heat_map("corr", title, caption, (numbered, places), matrix)
    rows: Sequence[tuple[Cell, ...]] = [
        (name, *map(float, row)) for name, row in zip(names, matrix, strict=True)
    ]
    return Plot(title, caption, svg, Table(("input", *names), rows), wide=True, scrolls=True)


def scatter_plot(
    components: Components,
    clusters: Clusters | None,
    ellipses: Sequence[Ellipse | None],
    drawn: npt.NDArray[np.int64],
    markings: Sequence[tuple[Marking, Sequence[int]]],
    described: tuple[Sequence[str], Sequence[tuple[Cell, ...]]],
) -> Plot:
    """Draw launches in the plane of the two components that explain most variance.

    Parameters
    ----------
    components : Components
        Two or more components of the launches.
    clusters : Clusters or None
        Clusters of the same launches.
    ellipses : sequence of Ellipse or None
        Ellipse of each cluster in the plane of the two components.
    drawn : ndarray of int64, shape (n,)
        Rows of the plotted launches.
    markings : sequence of (Marking, sequence of int)
        Colourings, with the number of each launch's key; the first also gives the shapes.
    described : (sequence of str, sequence of tuple)
        Columns of the table, and cells of each launch.

    Returns
    -------
    Plot
        Its table has a row for each point.
    """
    points, count = components.scores[:, :2], len(components.scores)
    found = [ellipse for ellipse in ellipses if ellipse is not None]
    outlines = [ellipse.outline() for ellipse in found]
    extent = np.vstack([points[drawn], *outlines])
    shares = [
        f"component {k + 1} ({percent(components.shares[k])} of the variance)" for k in (0, 1)
    ]
    keys = [[marking.keys[numbers[row]] for marking, numbers in markings] for row in drawn]
    classes = [
        " ".join(f"{LETTERS[i]}-{key.colour}" for i, key in enumerate(each)) for each in keys
    ]
    names = [str(index) for index, each in enumerate(ellipses, 1) if each is not None]
    marks = [Mark("outline", each[:, 0], each[:, 1], colour="other") for each in outlines]
    marks += [
        Mark(
            "points",
            *(points[drawn, 0], points[drawn, 1]),
            shapes=[each[0].shape % SHAPES for each in keys],
            classes=classes,
        ),
        Mark("labels", [e.x for e in found], [e.y for e in found], colour="cluster", texts=names),
    ]
    title, caption = "Groups of launches", _scatter_caption(len(drawn), count, clusters)
    axes = Axis.around(shares[0], extent[:, 0]), Axis.around(shares[1], extent[:, 1])
    svg = chart("kinds", title, caption, axes, marks, size=(580, 440))
    columns, cells = described
    rows: Sequence[tuple[Cell, ...]] = tuple(
        (
            *cells[row],
            None if clusters is None else int(clusters.assignment[row]) + 1,
            *map(float, points[row]),
        )
        for row in drawn.tolist()
    )
    table = Table((*columns, "cluster", "component 1", "component 2"), rows, most=len(rows))
    kinds = tuple(marking for marking, _ in markings)
    return Plot(title, caption, svg, table, markings=kinds, wide=True)


def _scatter_caption(drawn: int, count: int, clusters: Clusters | None) -> str:
    part = f"{count:,}" if drawn == count else f"a random {drawn:,} of {count:,}"
    text = f"Each point is a launch ({part}). Near points have similar inputs."
    if clusters is None:
        return f"{text} There are too few different launches for clusters."
    text += (
        f" Ellipses enclose 95 % of each of the {clusters.count} k-means clusters. Their mean "
        f"silhouette is {clusters.silhouette:.2f}"
    )
    weak = clusters.silhouette <= NO_STRUCTURE
    return f"{text}, so there is hardly any structure." if weak else f"{text}."


def silhouette_plot(clusters: Clusters) -> Plot:
    """Draw the silhouette of each number of clusters."""
    scores = sorted(clusters.silhouettes.items())
    title = "Number of clusters"
    caption = (
        f"Mean silhouette for each number of clusters; {clusters.count} clusters have the highest."
    )
    values = [value for _, value in scores]
    low = min(0.0, *values)
    axes = (
        Axis.named("number of clusters", [str(k) for k, _ in scores]),
        Axis("mean silhouette", low, max(0.3, *values) * 1.08),
    )
    marks = [
        Mark("bars", [i], [value], [0.0], "c0" if k == clusters.count else "other")
        for i, (k, value) in enumerate(scores)
    ]
    svg = chart("silhouette", title, caption, axes, marks, size=(400, 250))
    return Plot(title, caption, svg, Table(("clusters", "silhouette"), scores))


def rotated_plot(components: Components) -> Plot:
    """Draw the contribution of each input to each rotated component as a square."""
    rotated = components.rotated
    order, places = segment_order(rotated), range(rotated.shape[1])
    title = "Rotated components"
    caption = (
        "Each column is a composite feature with its share of the variance. A square is an "
        "input's correlation with it; darker ones are stronger, and the other colour is negative."
    )
    names = [components.names[i] for i in order]
    heads = [str(k + 1) for k in places]
    svg = heat_map("rotated", title, caption, (names, heads), rotated[order])
    rows: Sequence[tuple[Cell, ...]] = tuple(
        (components.names[i], *map(float, rotated[i])) for i in order
    )
    table = Table(("input", *(f"component {k + 1}" for k in places)), rows)
    composites = "\n".join(_composite(components, k) for k in places)
    return Plot(title, caption, svg, table, text=composites, wide=True, scrolls=True)


def segment_order(rotated: Floats) -> list[int]:
    """Return the inputs ordered by their strongest component and their loading on it."""
    best = np.abs(rotated).argmax(axis=1)
    strength = np.abs(rotated).max(axis=1)
    return [int(index) for index in np.lexsort((np.arange(len(best)), -strength, best))]


def _composite(components: Components, k: int) -> str:
    """Return the strong inputs of a component with their signs."""
    column = components.rotated[:, k]
    strong = [i for i in np.argsort(-np.abs(column), kind="stable") if abs(column[i]) >= STRONG]
    signed = [f"{'+' if column[i] > 0 else _MINUS}{components.names[i]}" for i in strong]
    share = f"{k + 1} ({percent(components.rotated_shares[k])})"
    return f"{share}: {', '.join(signed) or 'no strong input'}"


# ---- Run times: against block size, and the gain from the block alone ----------------------------

#: Edges of the bins of gains; the last bin is open.
EDGES = (1.0, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0)


def time_plot(times: KernelTimes, index: int) -> Plot:
    """Draw the time divided by the slice's best time over the block size of a kernel and device."""
    sizes = times.sizes
    threads = [size.threads for size in sizes]
    title = f"{visible(times.kernel, KERNEL_CHARS)} on {visible(times.device, KERNEL_CHARS)}"
    slices = "1 slice" if times.slices == 1 else f"{times.slices:,} slices"
    fastest = min(sizes, key=lambda size: (size.median, size.threads))
    caption = (
        f"{times.launches:,} launches in {slices}. Blocks of {fastest.threads:,} threads have the "
        f"lowest median: {fastest.median:.2f} times the best time of the slice."
    )
    most = max(1.1, *(size.high for size in sizes)) * 1.03
    medians, high = [s.median for s in sizes], [s.high for s in sizes]
    low, end = min(threads) / 1.15, max(threads) * 1.15
    powers = tuple(2.0**n for n in range(17) if low <= 2**n <= end)
    axes = (
        Axis(
            "threads of a block",
            low,
            end,
            True,
            ticks=powers if len(powers) > 1 else (float(min(threads)), float(max(threads))),
        ),
        Axis("time / best", 1.0, most, most > 4, show=lambda value: significant(value, 3)),
    )
    marks = [
        Mark("band", threads, [s.low for s in sizes], high),
        Mark("line", threads, medians),
        Mark("points", threads, medians),
    ]
    svg = chart(f"time{index}", title, caption, axes, marks, size=(400, 250))
    rows: Sequence[tuple[Cell, ...]] = tuple(
        (s.threads, s.launches, s.low, s.median, s.high, s.best, s.best / times.slices)
        for s in sizes
    )
    columns = ("threads", "launches", "10 %", "median", "90 %", "best of slices", "share of them")
    return Plot(title, caption, svg, Table(columns, rows), small=True)


def bins(gains: Floats) -> list[int]:
    """Return the number of gains in each bin; the first also has gains rounded below 1."""
    indices = np.clip(np.searchsorted(EDGES, gains, side="right") - 1, 0, len(EDGES) - 1)
    return [int(count) for count in np.bincount(indices, minlength=len(EDGES))]


def bin_names() -> list[str]:
    """Return the names of the bins."""
    inner = [f"{number(low)}–{number(high)}" for low, high in pairwise(EDGES)]  # noqa: RUF001
    return [*inner, f"over {number(EDGES[-1])}"]


def gain_plot(slices: Sequence[SliceGain], *, base: int = 256) -> Plot:
    """Draw a histogram of the slices' gains from their best block."""
    kernels = [kernel for kernel, _ in Counter(gain.kernel for gain in slices).most_common()]
    shown = kernels[:COLOURS]
    rest = len(kernels) - len(shown)
    names = [*shown, f"{rest} other kernels"] if rest else shown
    groups = [np.array([s.gain for s in slices if s.kernel == name]) for name in shown]
    if rest:
        groups.append(np.array([s.gain for s in slices if s.kernel not in shown]))
    counts = [bins(group) for group in groups]
    gains = np.array([s.gain for s in slices])
    low, median, high = np.quantile(gains, (0.1, 0.5, 0.9))
    worth = int((gains > 1.05).sum())
    title = "Gain from the best block"
    caption = (
        f"Time at the size nearest to {base} threads divided by the best time of the slice. "
        f"Median {median:.3f}, 10 % below {low:.3f}, 10 % above {high:.3f}; {worth:,} of "
        f"{len(gains):,} slices gain more than 5 %."
    )
    keys = tuple(Key(visible(name, KERNEL_CHARS), colour(i)) for i, name in enumerate(names))
    cells = zip(bin_names(), *counts, strict=True)
    rows: Sequence[tuple[Cell, ...]] = tuple(
        (name, *numbers, sum(numbers)) for name, *numbers in cells
    )
    table = Table(("gain", *(visible(name, KERNEL_CHARS) for name in names), "all"), rows)
    totals = [sum(numbers) for numbers in zip(*counts, strict=True)]
    axes = (
        Axis(
            f"time at the usual size / best time (last: {bin_names()[-1]})",
            high=len(EDGES) - 0.5,
            # Edges stand between the bars.
            ticks=tuple(i - 0.5 for i in range(len(EDGES))),
            show=lambda place: number(EDGES[int(place + 0.5)]),
        ),
        Axis.from_zero("slices", totals, show=lambda value: f"{value:g}"),
    )
    places, ends = range(len(totals)), np.cumsum(counts, axis=0)
    marks = [
        Mark("bars", places, end, end - numbers, colour(i))
        for i, (end, numbers) in enumerate(zip(ends, counts, strict=True))
    ]
    above = [total + 0.02 * max(totals) for total in totals]
    marks.append(Mark("labels", places, above, texts=[f"{n:,}" if n else "" for n in totals]))
    svg = chart("gains", title, caption, axes, marks, size=(560, 330))
    return Plot(title, caption, svg, table, keys=keys)


# ---- Quality of the advice: its errors, and the times after it -----------------------------------

#: Names of the splits, the strictest last.
SPLITS = {
    "random": "launches at random",
    "slice": "whole slices",
    "device": "whole devices",
    "kernel": "whole kernels",
}


def confusion_plot(
    method: str, matrix: npt.NDArray[np.int64], classes: Sequence[str], index: int
) -> Plot:
    """Draw the confusion matrix of the advice on held-out kernels."""
    total, right = int(matrix.sum()), int(np.trace(matrix))
    caption = (
        f"{right:,} of {total:,} launches of held-out kernels got the right advice. Percentages "
        "are shares of the launches with the label of the row."
    )
    title = f"Advice of {visible(method, 30)}"
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    texts = [
        [f"{percent(part)}\n{count:,}" for part, count in zip(*row, strict=True)]
        for row in zip(shares.tolist(), matrix.tolist(), strict=True)
    ]
    signs = np.where(np.eye(len(classes), dtype=bool), 1, -1)
    svg = heat_map(
        f"confusion{index}",
        title,
        caption,
        (classes, classes),
        # On stronger colours the texts would be hard to read.
        signs * (0.06 + 0.44 * shares),
        texts=texts,
        titles=("label", "advice"),
    )
    rows: Sequence[tuple[Cell, ...]] = tuple(
        (name, *map(int, matrix[i]), *map(float, shares[i])) for i, name in enumerate(classes)
    )
    advice = [f"advice {name}" for name in classes]
    columns = ("label", *advice, *(f"share {name}" for name in classes))
    return Plot(title, caption, svg, Table(columns, rows), small=True)


def accuracy_plot(findings: AdvisorFindings) -> Plot | None:
    """Draw the balanced accuracy of each method in each split; None if there is none."""
    methods = list(dict.fromkeys(s.method for s in findings.scores if not s.held_out))
    splits = [name for name in SPLITS if findings.scores_of(name)]
    points = {
        split: [
            (score.balanced, methods.index(score.method))
            for score in findings.scores_of(split)
            if isfinite(score.balanced)
        ]
        for split in splits
    }
    if not any(points.values()):
        return None
    chance = 1 / len(findings.classes)
    title = "Balanced accuracy"
    caption = (
        "Mean over the labels of the share of right advice, where advice was given. Only held-out "
        "kernels show what the advisor knows about new ones: launches of one kernel are so "
        f"similar that a random split tests memory. The dashed line ({chance:.2f}) is a constant "
        "answer."
    )
    axes = Axis("balanced accuracy", 0, 1), Axis.named("method", methods)
    marks = [Mark("reference", [chance, chance], [-0.5, len(methods) - 0.5])]
    for i, each in enumerate(points.values()):
        xs, ys = [x for x, _ in each], [y for _, y in each]
        marks.append(Mark("points", xs, ys, colour=colour(i), shapes=[i] * len(each)))
    keys = tuple(Key(f"held out: {SPLITS[split]}", colour(i), i) for i, split in enumerate(splits))
    svg = chart("accuracy", title, caption, axes, marks, size=(520, 0))
    return Plot(title, caption, svg, score_table(findings.scores), keys=keys, wide=True)


def regret_plot(findings: AdvisorFindings) -> Plot | None:
    """Draw the time after each method's advice on held-out kernels; None if it is unknown."""
    scores = [score for score in findings.scores_of("kernel") if score.regret is not None]
    if not scores:
        return None
    title = "Time after advice"
    caption = (
        "Geometric mean of the time after one step of advice, divided by the best time of the "
        "slice; 1 is perfect. Bars are 95 % bootstrap intervals over slices. The kernels were held "
        "out; a launch without advice keeps its block."
    )
    lows, values, highs = zip(*(_ends(score.regret) for score in scores), strict=True)
    most = max(1.02, *highs)
    axes = (
        Axis("time after advice / best time", 1.0, most + 0.03 * (most - 1)),
        Axis.named("method", [score.method for score in scores]),
    )
    places = range(len(scores))
    marks = [Mark("intervals", highs, places, lows), Mark("points", values, places)]
    svg = chart("regret", title, caption, axes, marks, size=(520, 0))
    columns = ("method", "low", "time / best", "high", "launches", "advised")
    rows: Sequence[tuple[Cell, ...]] = tuple(
        (s.method, *_ends(s.regret), s.rows, s.advised) for s in scores
    )
    return Plot(title, caption, svg, Table(columns, rows), wide=True)


def _ends(interval: Interval | None) -> tuple[float, float, float]:
    """Return the low end, value and high end of an interval; NaN if it is unknown."""
    if interval is None:
        return float("nan"), float("nan"), float("nan")
    return interval.low, interval.value, interval.high


def score_table(scores: Sequence[Score]) -> Table:
    """Return all scores as a table."""
    columns = (
        *("held out", "kernel", "device", "method", "launches", "advised", "accuracy", "balanced"),
        *("time / best", "low", "high", "time / before", "low", "high", "of the advised"),
    )
    rows = []
    for score in scores:
        regret, gain = _ends(score.regret), _ends(score.against_nothing)
        rows.append(
            (
                SPLITS.get(score.split, score.split),
                score.held_out or "all",
                score.device or "all",
                score.method,
                score.rows,
                score.advised,
                score.accuracy,
                score.balanced,
                *(regret[1], regret[0], regret[2]),
                *(gain[1], gain[0], gain[2]),
                score.advised_regret,
            )
        )
    return Table(columns, tuple(rows))


def verdict(findings: AdvisorFindings) -> str | None:
    """Return a sentence on the method with the best times on held-out kernels."""
    scores = [score for score in findings.scores_of("kernel") if score.regret is not None]
    if not scores:
        return None
    best = min(scores, key=lambda score: (_ends(score.regret)[1], score.method))
    idle = next((score for score in scores if score.method == "nothing"), None)
    text = (
        f"On held-out kernels, {best.method} is best: its advice leads to "
        f"{significant(_ends(best.regret)[1], 3)} times the best time"
    )
    if idle is not None and idle is not best:
        text += f", no change to {significant(_ends(idle.regret)[1], 3)}"
    return f"{text}. It advised {percent(best.coverage)} of the launches."


# ---- The decision tree ---------------------------------------------------------------------------

#: Colours of the labels in all plots.
LABEL_COLOURS = dict(zip(LABELS, ("c1", "c2", "c0"), strict=True))


def tree_plot(root: TreeNode) -> Plot:
    """Draw a tree: questions in boxes, yes above no, and the labels of leaves as bars."""
    leaves = sum(1 for _ in root.leaves())
    title = "Decision tree"
    caption = (
        f"{root.total:,} launches and {leaves} leaves. The upper line of a box is the answer yes, "
        "the lower one no. Bars show the labels of a leaf's launches; a leaf is named after the "
        "label of which it has the largest share. The tree describes these launches and does not "
        "predict others."
    )
    svg = tree("tree", title, caption, _box(root))
    rows: Sequence[tuple[Cell, ...]] = tuple(
        (path, " ".join(box.lines) if box.children else str(node.label), node.total, *node.counts)
        for (path, box), node in zip(_box(root).paths(), _nodes(root), strict=True)
    )
    table = Table(("box", "question or label", "launches", *map(str, LABELS)), rows)
    keys = tuple(Key(str(label), LABEL_COLOURS[label]) for label in LABELS)
    return Plot(title, caption, svg, table, text=describe(root), keys=keys, wide=True, scrolls=True)


def _nodes(node: TreeNode) -> list[TreeNode]:
    """Return the nodes of a tree, each before its answers."""
    answers = [answer for answer in (node.yes, node.no) if answer is not None]
    return [node, *(each for answer in answers for each in _nodes(answer))]


def _box(node: TreeNode) -> Box:
    note = f"{node.total:,}"
    if node.yes is None or node.no is None:
        counts = zip(LABELS, node.counts, strict=True)
        shares = [(LABEL_COLOURS[label], count / max(node.total, 1)) for label, count in counts]
        return Box((str(node.label),), note, tuple(each for each in shares if each[1]))
    question = f"≤ {significant(node.threshold)}{' or unknown' if node.unknown else ''}?"
    return Box((node.name or "", question), note, children=(_box(node.yes), _box(node.no)))


def questions(node: TreeNode) -> tuple[str, str]:
    """Return the criteria of the answers yes and no."""
    threshold = significant(node.threshold)
    unknown = " or not measured"
    yes = f"{node.name} ≤ {threshold}{unknown if node.unknown is True else ''}"
    no = f"{node.name} > {threshold}{unknown if node.unknown is False else ''}"
    return text.clean(yes), text.clean(no)


def describe(node: TreeNode, depth: int = 0) -> str:
    """Return a tree as indented lines of text.

    Examples
    --------
    ::

        threads ≤ 96
          → increase (decrease 0, noChange 3, increase 17)
        threads > 96
          → noChange (decrease 8, noChange 50, increase 6)
    """
    indent = "  " * depth
    if node.yes is None or node.no is None:
        counts = ", ".join(f"{name} {n}" for name, n in zip(LABELS, node.counts, strict=True))
        return f"{indent}→ {node.label} ({counts})"
    yes, no = questions(node)
    return "\n".join(
        [indent + yes, describe(node.yes, depth + 1), indent + no, describe(node.no, depth + 1)]
    )

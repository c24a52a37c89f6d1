"""The page about the launches of a database and the advice that they allow."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from math import isfinite
from xml.etree.ElementTree import Element

import numpy as np
import numpy.typing as npt

from .. import limits
from ..advisor.analysis.analyzer import Analysis, draw
from ..advisor.learn.findings import AdvisorFindings, Interval, Score
from ..advisor.observations import LABELS, Label
from .advisor_plots import (
    LABEL_COLOURS,
    correlation_plot,
    gain_plot,
    rotated_plot,
    scatter_plot,
    silhouette_plot,
    time_plot,
    tree_plot,
)
from .page import Page
from .plots import COLOURS, SHAPES, Cell, Key, Marking, Plot, Table, colour
from .svg import Scale, add, cut, figure, percent, significant, x_axis

# ---- Plots of how good advice is: where it errs, and what following it costs ---------------------

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


# ---- The page about launches and advice ----------------------------------------------------------

_TITLE = "Thread-block sizes"

#: Longest name of a kernel in a legend.
_NAME_CHARS = 60


def write(
    analysis: Analysis, findings: AdvisorFindings | str | None = None, *, seed: int = 0
) -> str:
    """Return the page: one file of HTML without scripts that needs no other.

    Equal analyses give equal pages.

    Parameters
    ----------
    analysis : Analysis
        What the launches have in common.
    findings : AdvisorFindings, str or None
        How good advice is, or why that could not be judged; None where nobody asked.
    seed : int
        Of the launches that are drawn, where there are too many.

    Returns
    -------
    str
        The page.
    """
    page = Page(_TITLE, _lead(analysis))
    _write_overview(page, analysis)
    _write_times(page, analysis)
    _write_advice(page, findings)
    _write_selection(page, analysis)
    _write_kinds(page, analysis, seed)
    _write_tree(page, analysis)
    return page.text(
        f"Labels: {_labels_text(analysis)}. Inputs: {analysis.kind}. The same launches and options "
        "give the same page. Written by tunedb report advisor."
    )


def _count(number: int, word: str) -> str:
    plural = word if number == 1 else f"{word}{'es' if word.endswith('ch') else 's'}"
    return f"{number:,} {plural}"


def _lead(analysis: Analysis) -> str:
    """Return what matters most, in a few sentences."""
    held = analysis.observations
    kernels, devices = {one.kernel for one in held}, {one.device for one in held}
    text = (
        f"{_count(len(held), 'launch')} of {_count(len(kernels), 'kernel')} on "
        f"{_count(len(devices), 'device')}."
    )
    if analysis.stakes:
        gains = np.array([one.gain for one in analysis.stakes])
        median = (float(np.median(gains)) - 1) * 100
        worth = float((gains > 1.05).mean())
        text += (
            f" The best block instead of the one nearest to 256 threads gains {median:.1f} % in "
            f"the median slice; {percent(worth)} of {_count(len(gains), 'slice')} gain more "
            "than 5 %."
        )
    return text


def _labels_text(analysis: Analysis) -> str:
    if analysis.method == "slice-best":
        return f"slice-best, {percent(analysis.tolerance)} tolerance"
    return analysis.method


def _write_overview(page: Page, analysis: Analysis) -> None:
    """Say what there is, kernel by kernel."""
    counts = analysis.counts
    labelled = ", ".join(f"{counts[label]:,} {label}" for label in LABELS)
    page.section(
        "What was measured",
        "A slice is a set of launches that differ in the thread block alone. A label says what the "
        "block of a launch should do, as the times of its slice show.",
        f"Labels ({_labels_text(analysis)}): {labelled}; {counts[None]:,} without.",
    )
    missing = [str(label) for label in LABELS if not counts[label]]
    if missing:
        page.note(f"No launch has the label {' or '.join(missing)}: the advisor cannot learn it.")
    page.table(_kernels(analysis), "Kernels")


def _kernels(analysis: Analysis) -> Table:
    """Return what there is of each kernel on each device."""
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, one in enumerate(analysis.observations):
        groups[one.kernel, one.device].append(index)
    gains: dict[tuple[str, str], list[float]] = defaultdict(list)
    for stake in analysis.stakes:
        gains[stake.kernel, stake.device].append(stake.gain)
    rows: list[tuple[Cell, ...]] = []
    for key, held in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        ones = [analysis.observations[index] for index in held]
        found = Counter(analysis.labels[index] for index in held)
        gain = round(float(np.median(gains[key])), 3) if gains[key] else None
        counts = (len(ones), sum(1 for one in ones if one.counters), len(gains[key]))
        rows.append((*key, *counts, *(found[label] for label in (*LABELS, None)), gain))
    columns = ("kernel", "device", "launches", "with counters", "slices")
    return Table((*columns, *map(str, LABELS), "no label", "median gain"), tuple(rows))


def _write_times(page: Page, analysis: Analysis) -> None:
    """Draw what the block alone does."""
    page.section("Time against block size")
    if not analysis.times:
        page.note("No slice holds two block sizes: run a kernel with several, all else the same.")
        return
    shown = analysis.times[: limits.MAX_DRAWN_KERNELS]
    rest = len(analysis.times) - len(shown)
    page.note(
        "The line is the median over slices of the time over the best of the slice, the band its "
        "10th to 90th percentile; lower is better and 1 the best."
        + (f" {rest} more with fewer launches are left out." if rest else "")
    )
    page.plots([time_plot(one, index) for index, one in enumerate(shown)])
    page.section("What is at stake")
    page.plots([gain_plot(analysis.stakes)])


def _write_advice(page: Page, findings: AdvisorFindings | str | None) -> None:
    """Draw how good advice is."""
    page.section("How reliable the advice is")
    if findings is None:
        page.note("Not evaluated for this page. See: tunedb advise evaluate.")
        return
    if isinstance(findings, str):
        page.note(f"Not evaluated: {findings}.")
        return
    for text in (verdict(findings), *findings.notes):
        if text:
            page.note(text)
    matrices = [
        confusion_plot(method, matrix, findings.classes, index)
        for index, (method, matrix) in enumerate(findings.confusion.items())
    ]
    plots = [plot for plot in (accuracy_plot(findings), regret_plot(findings)) if plot is not None]
    if not plots and not matrices:
        page.note("Nothing can be held out.")
    page.plots(matrices)
    page.plots(plots)


def _write_selection(page: Page, analysis: Analysis) -> None:
    """Say which inputs remain, and how they correlate."""
    chosen = analysis.selection
    page.section(
        "Inputs that remain",
        f"{_count(len(chosen.kept), 'input')} of {len(chosen.kept) + _dropped(analysis)}: "
        f"{len(chosen.zero)} are zero everywhere, {len(chosen.constant)} constant or never "
        f"measured, {len(chosen.correlated)} follow another one, and {len(analysis.rare)} are "
        "known for fewer than half of the launches.",
    )
    rows: list[tuple[Cell, ...]] = [(name, "zero", None, None) for name in chosen.zero]
    rows += [(name, "constant", None, None) for name in chosen.constant]
    rows += [(name, "follows", other, float(r)) for name, other, r in chosen.correlated]
    rows += [(name, "rarely measured", None, None) for name in analysis.rare]
    columns = ("left out", "why", "which", "r")
    if len(chosen.kept) > 1:
        page.plots([correlation_plot(chosen.kept, analysis.correlation)])
    else:
        page.note("There are fewer than two inputs that vary: nothing to correlate.")
    if rows:
        page.table(Table(columns, tuple(rows)), "Inputs that were left out")


def _dropped(analysis: Analysis) -> int:
    chosen = analysis.selection
    return sum(map(len, (chosen.zero, chosen.constant, chosen.correlated, analysis.rare)))


def _write_kinds(page: Page, analysis: Analysis, seed: int) -> None:
    """Draw clusters and components."""
    found = analysis.components
    page.section("Kinds of launches and what goes together")
    if found is None or found.scores.shape[1] < 2:
        page.note(
            "There are fewer than three launches or two inputs that vary: no components. Import "
            "runs with counters to have some."
        )
        return
    count = len(analysis.rows)
    left = len(analysis.sample) - count
    without = len(analysis.observations) - analysis.subject
    logs = len(analysis.logarithmic)
    page.note(
        f"Principal components of {_count(count, 'launch')} with {len(found.names)} standardised "
        f"inputs{f', {logs} of which as logarithms' if logs else ''}."
        + (f" {_count(without, 'launch')} without counters take no part." if without else "")
        + (f" {left:,} launches lack more than half of the inputs." if left else "")
        + (
            f" {len(analysis.sample):,} of {analysis.subject:,} launches were drawn by lot for "
            "this."
            if len(analysis.sample) < analysis.subject
            else ""
        )
    )
    drawn = draw(count, limits.MAX_DRAWN_LAUNCHES, seed)
    markings = [_by_kernel(analysis), _by_label(analysis), _by_threshold(analysis)]
    described = _described(analysis)
    scatter = scatter_plot(found, analysis.clusters, analysis.ellipses, drawn, markings, described)
    page.plots([scatter])
    if analysis.clusters is not None:
        page.plots([silhouette_plot(analysis.clusters)])
    page.plots([rotated_plot(found)])


def _by_kernel(analysis: Analysis) -> tuple[Marking, list[int]]:
    """Mark launches by kernel, the most frequent in colours of their own."""
    kernels = [analysis.observations[row].kernel for row in analysis.rows.tolist()]
    names = [name for name, _ in Counter(kernels).most_common()]
    place = {name: min(index, COLOURS) for index, name in enumerate(names)}
    keys = [
        Key(cut(name, _NAME_CHARS), colour(index), index % SHAPES)
        for index, name in enumerate(names[:COLOURS])
    ]
    if len(names) > COLOURS:
        keys.append(Key(f"{len(names) - COLOURS} other kernels", "other"))
    return Marking("by kernel", tuple(keys)), [place[name] for name in kernels]


def _by_label(analysis: Analysis) -> tuple[Marking, list[int]]:
    order: tuple[Label | None, ...] = (*LABELS, None)
    keys = tuple(Key(str(label), LABEL_COLOURS[label]) for label in LABELS)
    of = [order.index(analysis.labels[row]) for row in analysis.rows.tolist()]
    return Marking("by label", (*keys, Key("no label", "other"))), of


def _by_threshold(analysis: Analysis) -> tuple[Marking, list[int]]:
    name, value = analysis.threshold.name, significant(analysis.threshold.value)
    keys = [Key(f"{name} ≤ {value}", "c0"), Key(f"{name} > {value}", "c1")]
    of = [analysis.over[row] for row in analysis.rows.tolist()]
    numbers = [2 if one is None else int(one) for one in of]
    title = f"by {name} over {value}"
    return Marking(title, (*keys, Key("not measured", "other"))), numbers


def _described(analysis: Analysis) -> tuple[Sequence[str], Sequence[tuple[Cell, ...]]]:
    """Return what tables say of the launches of the components."""
    name, value = analysis.threshold.name, significant(analysis.threshold.value)
    columns = ("record", "kernel", "device", "threads", "label", f"{name} > {value}")
    rows: list[tuple[Cell, ...]] = []
    for row in analysis.rows.tolist():
        one, label, over = analysis.observations[row], analysis.labels[row], analysis.over[row]
        said = None if over is None else "yes" if over else "no"
        told = None if label is None else str(label)
        rows.append((one.record, one.kernel, one.device, one.threads, told, said))
    return columns, rows


def _write_tree(page: Page, analysis: Analysis) -> None:
    """Draw the criteria that divide the labels."""
    page.section("What divides the labels")
    if analysis.tree is None:
        page.note("A tree needs launches with two different labels and an input that varies.")
        return
    page.plots([tree_plot(analysis.tree)])

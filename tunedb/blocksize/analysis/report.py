"""The page about the launches of a database and the advice that they allow."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from ... import limits
from ..learning.findings import AdvisorFindings
from ..observations import LABELS, Label
from .analyzer import Analysis, draw
from .page import Page
from .plots import COLOURS, SHAPES, Cell, Key, Marking, Table, colour
from .plots_advice import accuracy_plot, confusion_plot, regret_plot, verdict
from .plots_inputs import correlation_plot, rotated_plot, scatter_plot, silhouette_plot
from .plots_times import gain_plot, time_plot
from .plots_trees import LABEL_COLOURS, tree_plot
from .svg import cut, percent, significant

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
        page.note(f"No launch has the label {' or '.join(missing)}: nothing can be learnt of it.")
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
    page.section("How far advice can be believed")
    if findings is None:
        page.note("Not judged for this page. See: tunedb advise evaluate.")
        return
    if isinstance(findings, str):
        page.note(f"Not judged: {findings}.")
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
        page.note("There is nothing that could be held out.")
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
        "known of fewer than half of the launches.",
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

"""Page about the launches of a database and the quality of the advice."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .. import limits
from ..advisor.analysis.analyzer import Analysis, draw
from ..advisor.analysis.times import KernelTimes, SliceGain, kernel_times, slice_gains
from ..advisor.learn.findings import AdvisorFindings
from ..advisor.loading import load
from ..advisor.observations import LABELS, Label
from .advisor_plots import (
    KERNEL_CHARS,
    LABEL_COLOURS,
    accuracy_plot,
    confusion_plot,
    correlation_plot,
    gain_plot,
    regret_plot,
    rotated_plot,
    scatter_plot,
    silhouette_plot,
    time_plot,
    tree_plot,
    verdict,
)
from .page import COLOURS, SHAPES, Cell, Key, Marking, Section, Table, colour, render
from .svg import percent, significant, visible

if TYPE_CHECKING:
    from ..storage.store import Store


def write(
    analysis: Analysis, findings: AdvisorFindings | str | None = None, *, seed: int = 0
) -> str:
    """Return the page as self-contained HTML without scripts.

    Equal analyses give equal pages.

    Parameters
    ----------
    analysis : Analysis
        Analysis of the launches.
    findings : AdvisorFindings, str or None
        Evaluation of the advice, or the reason why there is none; None if it was skipped.
    seed : int
        Seed of the random choice of plotted launches, if there are too many.

    Raises
    ------
    PluginError
        Jinja is not installed.
    """
    sections = [
        _overview(analysis),
        *_times(analysis.times, analysis.gains),
        _advice(findings),
        _selection(analysis),
        _kinds(analysis, seed),
        _tree(analysis),
    ]
    footer = (
        f"Labels: {_labels_text(analysis)}. Inputs: {analysis.kind}. The same launches and options "
        "give the same page. Written by tunedb report advisor."
    )
    return render("Thread-block sizes", _lead(analysis), sections, footer)


def _count(number: int, word: str) -> str:
    plural = word if number == 1 else f"{word}{'es' if word.endswith('ch') else 's'}"
    return f"{number:,} {plural}"


def _lead(analysis: Analysis) -> str:
    """Return the main results in a few sentences."""
    observations = analysis.observations
    kernels = {observation.kernel for observation in observations}
    devices = {observation.device for observation in observations}
    text = (
        f"{_count(len(observations), 'launch')} of {_count(len(kernels), 'kernel')} on "
        f"{_count(len(devices), 'device')}."
    )
    if analysis.gains:
        gains = np.array([slice_gain.gain for slice_gain in analysis.gains])
        median = (float(np.median(gains)) - 1) * 100
        worth = float((gains > 1.05).mean())
        text += (
            f" The best block gains {median:.1f} % over the one nearest to 256 threads in the "
            f"median slice, and more than 5 % in {percent(worth)} of {_count(len(gains), 'slice')}."
        )
    return text


def _labels_text(analysis: Analysis) -> str:
    if analysis.method == "slice-best":
        return f"slice-best, {percent(analysis.tolerance)} tolerance"
    return analysis.method


def _overview(analysis: Analysis) -> Section:
    """Return the section with the launches of each kernel."""
    counts = analysis.counts
    labelled = ", ".join(f"{counts[label]:,} {label}" for label in LABELS)
    missing = [str(label) for label in LABELS if not counts[label]]
    note = f"No launch has the label {' or '.join(missing)}, so the advisor cannot learn it."
    return Section(
        "Measured launches",
        (
            "The launches of a slice differ only in their thread block. A label says whether a "
            "launch's block should grow, shrink or stay, by the times of its slice.",
            f"Labels ({_labels_text(analysis)}): {labelled}; {counts[None]:,} without a label.",
        ),
        (note,) if missing else (),
        tables={"Kernels": _kernels(analysis)},
    )


def _kernels(analysis: Analysis) -> Table:
    """Return the numbers of launches, slices and labels of each kernel on each device."""
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, observation in enumerate(analysis.observations):
        groups[observation.kernel, observation.device].append(index)
    gains: dict[tuple[str, str], list[float]] = defaultdict(list)
    for slice_gain in analysis.gains:
        gains[slice_gain.kernel, slice_gain.device].append(slice_gain.gain)
    rows: list[tuple[Cell, ...]] = []
    for key, indices in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        counted = sum(bool(analysis.observations[index].counters) for index in indices)
        labels = Counter(analysis.labels[index] for index in indices)
        gain = round(float(np.median(gains[key])), 3) if gains[key] else None
        counts = (len(indices), counted, len(gains[key]))
        rows.append((*key, *counts, *(labels[label] for label in (*LABELS, None)), gain))
    columns = ("kernel", "device", "launches", "with counters", "slices")
    return Table((*columns, *map(str, LABELS), "no label", "median gain"), tuple(rows))


def sections_of(store: Store) -> list[Section]:
    """Return the sections about block sizes for a page about a database; none without launches."""
    launches = load(store)
    if not launches:
        return []
    return _times(kernel_times(launches), slice_gains(launches))


def _times(times: Sequence[KernelTimes], gains: Sequence[SliceGain]) -> list[Section]:
    """Return the sections about the effect of the block size."""
    title = "Time against block size"
    if not times:
        note = "No slice has two block sizes. Run a kernel with several sizes, all else equal."
        return [Section(title, notes=(note,))]
    shown = times[: limits.MAX_DRAWN_KERNELS]
    rest = len(times) - len(shown)
    note = (
        "Lines show the median over slices of the time divided by the slice's best time, bands the "
        "10th to 90th percentile. Lower is better, and 1 is best."
        + (f" {rest} kernels with fewer launches are left out." if rest else "")
    )
    plots = [time_plot(each, index) for index, each in enumerate(shown)]
    return [
        Section(title, notes=(note,), plots=(plots,)),
        Section("Possible gain", plots=([gain_plot(gains)],)),
    ]


def _advice(findings: AdvisorFindings | str | None) -> Section:
    """Return the section about the quality of the advice."""
    title = "Quality of the advice"
    if findings is None:
        return Section(title, notes=("Not evaluated for this page. See: tunedb advise evaluate.",))
    if isinstance(findings, str):
        return Section(title, notes=(f"Not evaluated: {findings}.",))
    notes = [text for text in (verdict(findings), *findings.notes) if text]
    matrices = [
        confusion_plot(method, matrix, findings.classes, index)
        for index, (method, matrix) in enumerate(findings.confusion.items())
    ]
    plots = [plot for plot in (accuracy_plot(findings), regret_plot(findings)) if plot is not None]
    if not plots and not matrices:
        notes.append("The launches cannot be split, so the advice is not evaluated.")
    return Section(title, notes=tuple(notes), plots=(matrices, plots))


def _selection(analysis: Analysis) -> Section:
    """Return the section with the selected inputs, their correlation, and the dropped inputs."""
    selection = analysis.selection
    dropped = (selection.zero, selection.constant, selection.correlated, analysis.rare)
    text = (
        f"{_count(len(selection.kept), 'input')} of "
        f"{len(selection.kept) + sum(map(len, dropped))}: "
        f"{len(selection.zero)} are zero everywhere, {len(selection.constant)} constant or never "
        f"measured, {len(selection.correlated)} correlated with another input, and "
        f"{len(analysis.rare)} missing in more than half of the launches."
    )
    rows: list[tuple[Cell, ...]] = [(name, "zero", None, None) for name in selection.zero]
    rows += [(name, "constant", None, None) for name in selection.constant]
    rows += [(name, "correlated", other, float(r)) for name, other, r in selection.correlated]
    rows += [(name, "rarely measured", None, None) for name in analysis.rare]
    table = Table(("input", "reason", "correlated with", "r"), tuple(rows))
    several = len(selection.kept) > 1
    return Section(
        "Selected inputs",
        (text,),
        () if several else ("Fewer than two inputs vary, so there is no correlation.",),
        ([correlation_plot(selection.kept, analysis.correlation)],) if several else (),
        {"Dropped inputs": table} if rows else {},
    )


def _kinds(analysis: Analysis, seed: int) -> Section:
    """Return the section with clusters and components."""
    title = "Groups of launches and of inputs"
    components = analysis.components
    if components is None or components.scores.shape[1] < 2:
        note = "Components need three launches and two inputs that vary. Import runs with counters."
        return Section(title, notes=(note,))
    drawn = draw(len(analysis.rows), limits.MAX_DRAWN_LAUNCHES, seed)
    markings = [_by_kernel(analysis), _by_label(analysis), _by_threshold(analysis)]
    scatter = scatter_plot(
        components, analysis.clusters, analysis.ellipses, drawn, markings, _described(analysis)
    )
    silhouettes = [] if analysis.clusters is None else [silhouette_plot(analysis.clusters)]
    plots = ([scatter], silhouettes, [rotated_plot(components)])
    return Section(title, notes=(_sample_note(analysis, len(components.names)),), plots=plots)


def _sample_note(analysis: Analysis, inputs: int) -> str:
    """Return the numbers of launches and inputs behind the components."""
    count = len(analysis.rows)
    left = len(analysis.sample) - count
    without = len(analysis.observations) - analysis.subject
    logs = len(analysis.logarithmic)
    return (
        f"Principal components of {_count(count, 'launch')} with {inputs} standardised "
        f"inputs{f', {logs} of which as logarithms' if logs else ''}."
        + (f" {_count(without, 'launch')} without counters are left out." if without else "")
        + (f" {left:,} launches lack more than half of the inputs." if left else "")
        + (
            f" {len(analysis.sample):,} of {analysis.subject:,} launches were sampled at random."
            if len(analysis.sample) < analysis.subject
            else ""
        )
    )


def _by_kernel(analysis: Analysis) -> tuple[Marking, list[int]]:
    """Colour launches by kernel; the most frequent kernels have their own colours."""
    kernels = [analysis.observations[row].kernel for row in analysis.rows.tolist()]
    names = [name for name, _ in Counter(kernels).most_common()]
    number = {name: min(index, COLOURS) for index, name in enumerate(names)}
    keys = [
        Key(visible(name, KERNEL_CHARS), colour(index), index % SHAPES)
        for index, name in enumerate(names[:COLOURS])
    ]
    if len(names) > COLOURS:
        keys.append(Key(f"{len(names) - COLOURS} other kernels", "other"))
    return Marking("by kernel", tuple(keys)), [number[name] for name in kernels]


def _by_label(analysis: Analysis) -> tuple[Marking, list[int]]:
    order: tuple[Label | None, ...] = (*LABELS, None)
    keys = tuple(Key(str(label), LABEL_COLOURS[label]) for label in LABELS)
    numbers = [order.index(analysis.labels[row]) for row in analysis.rows.tolist()]
    return Marking("by label", (*keys, Key("no label", "other"))), numbers


def _by_threshold(analysis: Analysis) -> tuple[Marking, list[int]]:
    name, value = analysis.threshold.name, significant(analysis.threshold.value)
    keys = [Key(f"{name} ≤ {value}", "c0"), Key(f"{name} > {value}", "c1")]
    above = [analysis.over[row] for row in analysis.rows.tolist()]
    numbers = [2 if over is None else int(over) for over in above]
    title = f"by {name} over {value}"
    return Marking(title, (*keys, Key("not measured", "other"))), numbers


def _described(analysis: Analysis) -> tuple[Sequence[str], Sequence[tuple[Cell, ...]]]:
    """Return the columns of a table of launches, and the cells of each launch."""
    name, value = analysis.threshold.name, significant(analysis.threshold.value)
    columns = ("record", "kernel", "device", "threads", "label", f"{name} > {value}")
    rows: list[tuple[Cell, ...]] = []
    for row in analysis.rows.tolist():
        launch, label, over = analysis.observations[row], analysis.labels[row], analysis.over[row]
        rows.append(
            (
                *(launch.record, launch.kernel, launch.device, launch.threads),
                None if label is None else str(label),
                None if over is None else "yes" if over else "no",
            )
        )
    return columns, rows


def _tree(analysis: Analysis) -> Section:
    """Return the section with the decision tree of the labels."""
    title = "Decision tree of the labels"
    if analysis.tree is None:
        note = "A tree needs launches with two labels and an input that varies."
        return Section(title, notes=(note,))
    return Section(title, plots=([tree_plot(analysis.tree)],))

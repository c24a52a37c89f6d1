"""Plots of an evaluation: accuracy, peak scores, and ranks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import PluginError, StorageError, UsageError
from ..models.metrics import FIGURES, PEAK
from ..system.files import new_file

if TYPE_CHECKING:
    from ..models.evaluation import Evaluation, Result

#: Kinds of file.
SUFFIXES = (".png", ".svg", ".pdf")

#: Colours of recipes, by Okabe and Ito, which colour-blind people can distinguish.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
#: Greys of baselines, which differ in lightness.
_GREYS = ("#c8c8c8", "#8c8c8c", "#505050")

#: Figures that are shares, with their titles.
_BARS = {
    "pairwise": "pairs in order",
    "top1": "top-1",
    "top5": "top-5",
    "recall30": "recall@30",
}


def check(path: Path) -> None:
    """Check that a file can be drawn, before hours of evaluation.

    Raises
    ------
    UsageError
        The suffix is not in :data:`SUFFIXES`.
    PluginError
        Matplotlib is not installed.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{path}: a plot's file ends in {', '.join(SUFFIXES)}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise PluginError(
            f"Matplotlib does not load ({error}); run: pip install 'tunedb[plots]'"
        ) from None


def plot(evaluation: Evaluation, path: Path) -> None:
    """Draw an evaluation: a row of three plots for each regime and kind of pool.

    The left plot has the figures of each model with the 95 % interval of the mean, a random order's
    expected figures and, if the noise is known, those of measuring once more. The middle plot has
    the mean peak-score curves. The right plot has the ranks by the first recipe over the measured
    ranks; a perfect model is a diagonal.

    Parameters
    ----------
    evaluation : Evaluation
        Evaluation to draw.
    path : Path
        Path of the file, whose suffix selects the format.

    Raises
    ------
    UsageError, PluginError
        As :func:`check`.
    StorageError
        The file cannot be written.
    """
    check(path)
    from matplotlib import rc_context

    # Names of losses are not TeX; the salt makes files of equal evaluations equal.
    with rc_context({"text.parse_math": False, "svg.hashsalt": "tunedb"}):
        figure = _draw(evaluation)
        try:
            with new_file(path, force=True) as file:
                figure.savefig(file, dpi=150, metadata=_metadata(path))
        except OSError as error:
            raise StorageError(f"{path}: {error.strerror or error}") from None


def _draw(evaluation: Evaluation) -> Any:
    """Return the figure; Matplotlib's current figure stays unchanged."""
    from matplotlib.figure import Figure

    cells = list(dict.fromkeys((result.regime, result.pool) for result in evaluation.results))
    colours = _colours(evaluation)
    figure = Figure(figsize=(13, 1.1 + 3.1 * len(cells)), layout="constrained")
    axes = figure.subplots(len(cells), 3, squeeze=False, width_ratios=(2.1, 1.35, 1))
    for (regime, pool), (bars, curves, ranks) in zip(cells, axes, strict=True):
        drawn = (evaluation.result(regime, pool, name) for name in colours)
        results = [result for result in drawn if result is not None]
        _draw_bars(bars, results, colours)
        _draw_curves(curves, results, colours)
        _draw_ranks(ranks, results[0])
        count = len(results[0].workloads)
        words = "workload" if count == 1 else "workloads"
        title = f"{regime}, {pool} pools ({count} {words})"
        bars.set_title(title, loc="left", fontsize=11, fontweight="bold")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=6, frameon=False)
    return figure


def _colours(evaluation: Evaluation) -> dict[str, str]:
    """Return the colour of each model, recipes first."""
    names = [name for name in evaluation.baselines if name != "random"]
    recipes = {n: _COLOURS[i % len(_COLOURS)] for i, n in enumerate(evaluation.recipes)}
    return recipes | {name: _GREYS[i % len(_GREYS)] for i, name in enumerate(names)}


def _metadata(path: Path) -> dict[str, Any]:
    """Return metadata without dates, so that equal plots are equal files."""
    return {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix.lower(), {})


def _draw_bars(axes: Any, results: list[Result], colours: dict[str, str]) -> None:
    """Draw the figures of :data:`_BARS` side by side."""
    width = 0.84 / len(results)
    places = np.arange(len(_BARS))
    for number, result in enumerate(results):
        summaries = [result.summary(figure) for figure in _BARS]
        means = np.array([summary.mean for summary in summaries])
        bounds = np.array([(summary.low, summary.high) for summary in summaries]).T
        # One workload has no interval.
        errors = np.nan_to_num(np.abs(bounds - means))
        axes.bar(
            places - 0.42 + width * (number + 0.5),
            means,
            width * 0.92,
            yerr=errors,
            color=colours[result.model],
            error_kw={"elinewidth": 1, "capsize": 2, "ecolor": "#202020"},
            label=result.model,
        )
    floor = results[0].floor
    for place, figure in zip(places, _BARS, strict=True):
        random = results[0].summary(figure).random
        label = "random order" if place == 0 else None
        ends = [place - 0.46, place + 0.46]
        axes.plot(ends, [random, random], "k--", lw=1.2, label=label)
        if floor is not None:
            label = "oracle that measures once" if place == 0 else None
            best = floor[:, FIGURES.index(figure)].mean()
            axes.plot(ends, [best, best], "k:", lw=1.2, label=label)
    axes.set_xticks(places, _BARS.values())
    axes.set_ylim(0, 1.02)
    axes.grid(axis="y", color="#e4e4e4")
    _tidy(axes)


def _draw_curves(axes: Any, results: list[Result], colours: dict[str, str]) -> None:
    """Draw peak-score curves."""
    k = np.arange(1, PEAK + 1)
    for result in reversed(results):
        axes.plot(k, result.peak.mean(axis=0), color=colours[result.model], lw=1.8)
    axes.plot(k, results[0].random_peak.mean(axis=0), "k--", lw=1.2)
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 2, 4, 8, 16, 32, 64], ["1", "2", "4", "8", "16", "32", "64"])
    axes.set_xlim(1, PEAK)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("k programs of highest score")
    axes.set_ylabel("average peak@k")
    axes.grid(color="#e4e4e4")
    _tidy(axes)


def _draw_ranks(axes: Any, result: Result) -> None:
    """Draw predicted ranks over measured ranks."""
    # Shares of the programs of each measured rank; each column has the same sum.
    shares = result.ranks / np.maximum(result.ranks.sum(axis=0), 1e-300)
    axes.imshow(shares, origin="upper", extent=(0, 1, 1, 0), cmap="Blues", vmin=0, aspect=1)
    axes.plot([0, 1], [0, 1], color="#D55E00", lw=0.8, ls=":")
    axes.set_xticks([0, 1], ["fastest", "slowest"])
    axes.set_yticks([0, 1], ["first", "last"])
    axes.set_xlabel("measured", labelpad=-8)
    axes.set_ylabel(f"ranked by {result.model}", labelpad=-12)


def _tidy(axes: Any) -> None:
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)

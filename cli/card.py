"""Text form of a model's card."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ..system import text
from .output import Column, bold, print_fields, print_table

if TYPE_CHECKING:
    from ..results import StoredModel


def share(value: float | None) -> str:
    """Format a figure between 0 and 1 with three digits."""
    return text.NOTHING if value is None else f"{value:.3f}"


#: Words for the reasons that leave programs out of the training data (``Fitted.left_out``).
_REASONS = {
    "only failures": "of workloads without a working program",
    "training set": "not in the training set",
}


def show_model(stored: StoredModel, *, whole: bool) -> None:
    """Print a card: its data, recipe and figures, or with `whole` everything."""
    card = stored.card
    features = card["features"]
    heading = (
        f"Model {stored.id}: {stored.kind} on {features['name']} version {features['version']}"
    )
    sections = [(text.clean(heading), [*_data(card), *_recipe(card), *_training_fields(card)])]
    if whole:
        sections[0][1][:0] = [
            ("digest", stored.digest.hex()),
            ("created", text.plain(text.moment(stored.created_at))),
        ]
        sections.append(("Full recipe", _parameters(card)))
        sections.append(("Versions", _versions(card)))
    for number, (title, fields) in enumerate(sections):
        if number:
            click.echo()
        print_fields(fields, heading=title)
    _show_figures(stored, whole=whole)


def _data(card: dict[str, Any]) -> list[tuple[str, str]]:
    data, learnt = card["data"], card["learnt"]
    fields = [
        ("trained on", f"{_programs(learnt)}, {text.count(learnt['rows'], 'row')}"),
        ("data", f"{_programs(data)}{_failures(data)}"),
    ]
    left_out = {**(data.get("left_out") or {}), **(card["training"].get("left_out") or {})}
    reasons = [
        f"{number:,} {text.clean(_REASONS.get(reason, reason))}"
        for reason, number in left_out.items()
        if number
    ]
    if reasons:
        fields.append(("left out", ", ".join(reasons)))
    for kind, names in card["scope"].items():
        if names is not None:
            fields.append((f"only {kind}", listed([entity["name"] for entity in names])))
    return fields


def _programs(data: dict[str, Any]) -> str:
    words = [text.count(data["programs"], "program"), text.count(data["workloads"], "workload")]
    if data["targets"] > 1:
        words.append(text.count(data["targets"], "target"))
    if data["machines"] > data["targets"]:
        words.append(text.count(data["machines"], "machine"))
    return f"{words[0]} of {', '.join(words[1:])}"


def _failures(data: dict[str, Any]) -> str:
    failed = sum(data["failed"].values())
    kinds = sorted(data["failed"].items(), key=lambda item: -item[1])
    causes = ", ".join(f"{number:,} {kind.replace('_', ' ')}" for kind, number in kinds)
    return f"; {failed:,} failed ({causes})" if failed else ""


def listed(names: Sequence[str], most: int = 5) -> str:
    """Return the first names, and the number of the others."""
    rest = len(names) - most
    more = f" and {rest} more" if rest > 0 else ""
    return text.clean(", ".join(names[:most])) + more


def _recipe(card: dict[str, Any]) -> list[tuple[str, str]]:
    recipe = card["recipe"]
    times = " of corrected times" if recipe["corrected"] else ""
    rows = card["training"].get("rows", recipe["rows"])
    words = f"loss {recipe['loss']}, rows {rows}, label {recipe['label']}{times}"
    return [("recipe", text.clean(f"{words}, training set {recipe['training_set']}"))]


def _training_fields(card: dict[str, Any]) -> list[tuple[str, str]]:
    training, cost = card["training"], card["cost"]
    fields = []
    if "rounds" in training:
        limit, held_out = card["recipe"]["rounds"], training.get("held_out")
        stopping = f" (best on {text.count(held_out, 'held-out workload')})" if held_out else ""
        members = f", {training['members']} boosters" if training.get("members", 1) > 1 else ""
        fields.append(("rounds", f"{training['rounds']} of {limit}{stopping}{members}"))
    if "seconds" in cost:
        total = text.span(cost["seconds"])
        fit = f" ({text.span(training['seconds'])} in training)" if "seconds" in training else ""
        peak = f"; peak memory {text.size(cost['peak_bytes'])}"
        method = "; features streamed from disk" if training.get("external") else ""
        fields.append(("time", f"{total}{fit}{peak}{method}"))
    return fields


def _parameters(card: dict[str, Any]) -> list[tuple[str, str]]:
    return [(name, text.plain(value)) for name, value in card["recipe"].items()]


def _versions(card: dict[str, Any]) -> list[tuple[str, str]]:
    training = card["training"]
    threads = [("threads", text.plain(training["threads"]))] if "threads" in training else []
    return [
        *((name, text.clean(version)) for name, version in sorted(card["versions"].items())),
        *threads,
        ("training data", card["data"]["digest"]),
        ("boosters", f"{text.size(card['body']['bytes'])}, {card['body']['digest']}"),
        ("database", text.clean(card["store"])),
    ]


# ---------------------------------------------------------------------- figures

#: Figure → its title.
_FIGURES = {
    "pairwise": "pairwise",
    "top1": "top-1",
    "top5": "top-5",
    "recall30": "recall@30",
    "trials90": "trials to 90 %",
    "trials95": "to 95 %",
    "spearman": "Spearman",
}
_FEW = ("pairwise", "top1", "top5", "trials90")
_NAMES = {
    "model": "this model",
    "nearest": "nearest neighbour",
    "random": "random order",
    "noise floor": "noise floor (measured once)",
}


def _show_figures(stored: StoredModel, *, whole: bool) -> None:
    """Print the model's ranking of unseen workloads beside its baselines."""
    card = stored.card
    if card.get("failures"):
        click.echo()
        print_fields(_failure_fields(card["failures"]), heading="Failures of unseen workloads")
        _print_calibration(card["failures"])
    elif stored.kind == "failures":
        click.echo("\nNot evaluated: failures, or working programs, come from one workload only")
    evaluation = card["evaluation"]
    if evaluation is None:
        return
    click.echo()
    if evaluation.get("impossible"):
        reason = text.clean(evaluation["impossible"])
        click.echo(reason[:1].upper() + reason[1:])
        return
    for number, (pool, values) in enumerate(evaluation.get("pools", {}).items()):
        if number and not whole:
            return
        if number:
            click.echo()
        workloads = text.count(values["workloads"], "workload")
        click.echo(bold(f"Unseen workloads: {_POOLS.get(pool, pool)} of {workloads}"))
        shown = tuple(_FIGURES) if whole else _FEW
        columns = [Column("name", ""), *(Column(f, _FIGURES[f], right=True) for f in shown)]
        rows = [_figure_row(name, figures, shown) for name, figures in values["figures"].items()]
        print_table(columns, rows)
    if whole and card["drift"]["pairwise_p5"] is not None:
        alarm = share(card["drift"]["pairwise_p5"])
        click.echo(f"\nDrift alarm: pairwise accuracy below {alarm}")


def _failure_fields(figures: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the quality of failure predictions (:mod:`tunedb.models.failure_store`)."""
    groups = text.count(figures["groups"], "workload")
    low = figures["auroc_p10"]
    tenth = "" if low is None else f", 10th percentile {share(low)}"
    brier = f"{figures['brier']:.4f}; constant prediction {figures['brier_of_rate']:.4f}"
    return [
        ("AUROC", f"{share(figures['auroc'])} (mean of {groups}{tenth})"),
        ("Brier score", brier),
        ("avoided", f"{text.percent(figures['avoided'])} of failures, for 2 % of working programs"),
        ("failure rate", text.percent(figures["rate"])),
    ]


_RELIABILITY = (
    Column("programs", "programs", text.number, right=True),
    Column("predicted", "predicted", text.percent, right=True),
    Column("failed", "failed", text.percent, right=True),
)


def _print_calibration(figures: dict[str, Any]) -> None:
    """Print how far predictions hold, for unseen workloads and on other hardware."""
    if "reliability" not in figures:
        return
    error = text.percent(figures["calibration_error"])
    click.echo()
    click.echo(bold(f"Predictions and failures of unseen workloads (calibration error {error})"))
    print_table(_RELIABILITY, figures["reliability"])
    click.echo()
    if not figures["elsewhere"]:
        click.echo(
            "On other hardware: unknown, because only one has enough failures; the first trials "
            "there calibrate it"
        )
        return
    click.echo(bold("Predictions and failures on hardware that it did not learn from"))
    trials = figures["elsewhere"][0]["trials"]
    columns = (
        Column("target", "target", lambda digest: str(digest)[:8]),
        Column("machine", "machine"),
        *_RELIABILITY[:2],
        Column("rate", "failed", text.percent, right=True),
        Column("error", "calibration error", text.percent, right=True),
        Column("error_after", f"after {trials} trials", text.percent, right=True),
    )
    print_table(columns, figures["elsewhere"])


_POOLS = {"random": "the first trials", "search": "all trials"}


def _figure_row(
    name: str, figures: dict[str, list[float | None]], shown: Sequence[str]
) -> dict[str, Any]:
    cells = {figure: _with_interval(figure, *figures[figure]) for figure in shown}
    return {"name": _NAMES.get(name, name), **cells}


def _with_interval(figure: str, mean: float | None, low: float | None, high: float | None) -> str:
    """Format a mean with half the width of its interval."""
    if mean is None:
        return text.NOTHING
    digits = 1 if figure.startswith("trials") else 3
    half = "" if low is None or high is None else f" ± {(high - low) / 2:.{digits}f}"
    return f"{mean:.{digits}f}{half}"

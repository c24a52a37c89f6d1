"""``tunedb advise evaluate``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...system import text
from ..card import share
from ..options import Settings, common_options, pass_settings, reading
from ..output import Column, output_options, print_rows
from ..progress import progress_bar
from .train import label_options

if TYPE_CHECKING:
    from ...advisor.learn.findings import AdvisorFindings, Score

#: Keys of tunedb.advisor.learn.evaluation; the help imports no learners.
SPLITS = ("kernel", "device", "slice", "random")
METHODS = ("gain", "svm", "boosted")


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


COLUMNS = (
    Column("split", "split"),
    Column("held_out", "kernel", flexible=True),
    Column("device", "device", flexible=True),
    Column("method", "method"),
    Column("rows", "launches", text.number, right=True),
    Column("right", "right", text.number, right=True),
    Column("wrong", "wrong", text.number, right=True),
    Column("unsure", "unsure", text.number, right=True),
    Column("measured", "measured", text.number, right=True, least=130),
    Column("coverage"),
    Column("accuracy"),
    Column("balanced", "balanced", share, right=True, least=130),
    Column("regret", "regret", _ratio, right=True),
    Column("regret_low", "from", _ratio, right=True, least=150),
    Column("regret_high", "to", _ratio, right=True, least=150),
    Column("against_nothing", "time", _ratio, right=True),
    Column("worst_loss", "worst", _ratio, right=True),
    Column("advised_regret"),
)


@click.command()
@click.option(
    *("--split", "splits"),
    type=click.Choice(SPLITS),
    multiple=True,
    help="Splits to evaluate; may be repeated. Default: kernel and device.",
)
@click.option(
    *("--learner", "methods"),
    type=click.Choice(METHODS),
    multiple=True,
    help="Learners to evaluate; may be repeated. Default: all three.",
)
@label_options
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write all figures to a JSON file.",
)
@output_options
@common_options
@pass_settings
def evaluate(
    settings: Settings,
    splits: tuple[str, ...],
    methods: tuple[str, ...],
    labels: str,
    tolerance: float,
    inputs: str,
    report: Path | None,
) -> None:
    """Evaluate the advice on held-out kernels and devices.

    The baselines are the majority of the training labels, the rule (over 256 threads shrink, under
    128 grow), maximum occupancy and no change. "right" and "wrong" compare advice with the label,
    and a launch without advice is "unsure"; "measured" launches have advice by measurements on
    other devices. "regret" is the time after one advised step over the best time of the slice;
    "time" is that time over the time before, so below 1 is a gain, and "worst" is the largest one
    of a launch. Random splits hold out rows of kernels that are also in the training data, which
    flatters: only --split kernel measures the advice on unseen kernels. Nothing is stored.

    Example:
      tunedb advise evaluate
      tunedb advise evaluate --split kernel --split random --labels paper
      tunedb advise evaluate --json | jq '.[] | select(.held_out == "") | [.method, .regret]'
    """
    from ...advisor.learn.evaluation import evaluate as evaluate_advisor
    from ...advisor.learn.store import label
    from ...advisor.loading import load
    from ...errors import NotFoundError

    if report is not None and not (folder := report.absolute().parent).is_dir():
        raise NotFoundError(f"{report}: folder {folder} does not exist; create it")
    with reading(settings) as store:
        observations = load(store)
    with progress_bar(settings, None) as progress:
        findings = evaluate_advisor(
            observations,
            label(observations, labels, tolerance),
            splits=splits or ("kernel", "device"),
            methods=methods or METHODS,
            inputs=inputs,
            name=labels,
            tolerance=tolerance,
            on_step=progress.describe,
        )
    if report is not None:
        import json

        from ...system.files import write_whole

        write_whole(report, json.dumps(findings.to_json(), indent=1) + "\n")
        settings.note(f"Wrote {report}")
    print_rows(settings, COLUMNS, [_row(score) for score in findings.scores])
    _note_counts(settings, findings)


def _row(score: Score) -> dict[str, Any]:
    regret, against = score.regret, score.against_nothing
    return {
        "split": score.split,
        "held_out": score.held_out,
        "device": score.device,
        "method": score.method,
        "rows": score.rows,
        "right": score.right,
        "wrong": score.advised - score.right,
        "unsure": score.rows - score.advised,
        "measured": score.measured,
        "coverage": score.coverage,
        "accuracy": _number(score.accuracy),
        "balanced": _number(score.balanced),
        "regret": regret and regret.value,
        "regret_low": regret and regret.low,
        "regret_high": regret and regret.high,
        "against_nothing": against and against.value,
        "worst_loss": score.worst_loss,
        "advised_regret": score.advised_regret,
    }


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _note_counts(settings: Settings, findings: AdvisorFindings) -> None:
    counts = ", ".join(
        f"{name} {text.number(number)}"
        for name, number in zip(findings.classes, findings.counts, strict=True)
    )
    settings.note(
        f"{text.number(findings.observations)} launches in "
        f"{text.count(findings.slices, 'slice')}: {counts}; {text.number(findings.unlabelled)} "
        "without label"
    )
    for note in findings.notes:
        settings.note(note)

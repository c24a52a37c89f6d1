"""``tunedb report advisor``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...system.text import clean
from ..options import Settings, common_options, pass_settings, reading
from ..progress import progress_bar
from .page import OUTPUT, OUTPUT_TYPE, check_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...advisor.analysis.analyzer import Analysis, Threshold
    from ...advisor.learn.findings import AdvisorFindings
    from ...advisor.observations import Observation

#: Keys of tunedb.advisor.labels.METHODS, of tunedb.advisor.inputs.INPUTS and of
#: tunedb.advisor.learn.evaluation.SPLITS; the help imports no library.
LABELS = ("slice-best", "paper")
INPUTS = ("ratios", "raw")
SPLITS = ("kernel", "device", "slice", "random")


@click.command()
@click.option(*OUTPUT, required=True, **OUTPUT_TYPE)
@click.option(
    "--kernel",
    "kernels",
    metavar="NAME",
    multiple=True,
    help="Include only this one; may be repeated.",
)
@click.option(
    "--device",
    "devices",
    metavar="NAME",
    multiple=True,
    help="Include only this one; may be repeated.",
)
@click.option(
    "--labels",
    type=click.Choice(LABELS),
    default="slice-best",
    show_default=True,
    help="Method that labels launches.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0, max=1),
    default=0.05,
    show_default=True,
    help="For slice-best: times within this share of the slice's best count as best.",
)
@click.option(
    "--inputs",
    type=click.Choice(INPUTS),
    default="ratios",
    show_default=True,
    help="Counters per instruction with the launch's geometry, or counters as they are.",
)
@click.option(
    "--mark",
    metavar="NAME=VALUE",
    help="Mark launches with more of it: an input, threads, registers, seconds or 'time / best'. "
    "Default: those slower than the best of their slice by twice the tolerance.",
)
@click.option(
    "--split",
    "splits",
    type=click.Choice(SPLITS),
    multiple=True,
    help="Splits to evaluate the advice on; may be repeated. Default: kernel and random.",
)
@click.option(
    "--no-evaluation", is_flag=True, help="Skip the evaluation of the advice, the slowest part."
)
@common_options
@pass_settings
def advisor(
    settings: Settings,
    output: Path,
    kernels: tuple[str, ...],
    devices: tuple[str, ...],
    mark: str | None,
    no_evaluation: bool,
    splits: tuple[str, ...],
    **options: Any,
) -> None:
    """Write a page about the launches and the advice.

    The page is one HTML file without scripts: run time against block size, the gain of the block
    alone, correlations of the inputs, clusters of launches, a decision tree of the labels, and the
    evaluation of the advice on held-out kernels. A table below each plot has its numbers.

    Example:
      tunedb report advisor -o advisor.html
      tunedb report advisor -o conv.html --kernel Convolution --labels paper --no-evaluation
      tunedb report advisor -o advisor.html --mark registers=64
    """
    threshold = None if mark is None else _threshold(mark)
    check_folder(output)
    observations = _load(settings, kernels, devices)
    with progress_bar(settings, None) as progress:
        progress.describe("analysing")
        analysis = _analyse(observations, threshold, options)
        findings: AdvisorFindings | str | None = None
        if not no_evaluation:
            findings = _evaluate(
                observations, analysis, splits or ("kernel", "random"), progress.describe
            )
    from ...report.advisor import write
    from ...system.files import write_whole

    write_whole(output, write(analysis, findings))
    settings.note(f"Wrote {output}")


def _threshold(text: str) -> Threshold:
    """Parse ``NAME=VALUE``; a name may contain an equals sign."""
    from math import isfinite

    from ...advisor.analysis.analyzer import Threshold

    name, _, value = text.rpartition("=")
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not name or not isfinite(number):
        raise click.UsageError(f"--mark {clean(text)}: give NAME=VALUE, such as registers=64")
    return Threshold(name.strip(), number)


def _load(
    settings: Settings, kernels: tuple[str, ...], devices: tuple[str, ...]
) -> list[Observation]:
    """Return the selected launches; raise NotFoundError without any."""
    from ...advisor.loading import load
    from ...errors import NotFoundError

    with reading(settings) as store:
        observations = load(store, kernels=kernels or None, devices=devices or None)
    if not observations:
        names = [*kernels, *devices]
        selection = f" of {', '.join(names)}" if names else ""
        raise NotFoundError(
            f"no launch{selection} has a run time; import profiles or tuning results of GPU "
            "kernels with: tunedb import logs PATH"
        )
    return observations


def _analyse(
    observations: Sequence[Observation], threshold: Threshold | None, options: dict[str, Any]
) -> Analysis:
    from ...advisor.analysis.analyzer import analyse

    return analyse(
        observations,
        kind=options["inputs"],
        method=options["labels"],
        tolerance=options["tolerance"],
        threshold=threshold,
    )


def _evaluate(
    observations: Sequence[Observation], analysis: Analysis, splits: Sequence[str], on_step: Any
) -> AdvisorFindings | str:
    """Return the evaluation of the advice, or the reason why there is none."""
    from ...advisor.learn.evaluation import evaluate
    from ...errors import UsageError

    try:
        return evaluate(
            observations,
            analysis.labels,
            splits=splits,
            inputs=analysis.kind,
            name=analysis.method,
            tolerance=analysis.tolerance,
            on_step=on_step,
        )
    except UsageError as error:
        return str(error)

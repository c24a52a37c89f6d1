"""``tunedb advise train``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ...system import text
from ...system.text import clean
from ..card import listed, share
from ..options import Settings, common_options, pass_settings, updating
from ..output import Column, output_options, print_fields, print_object
from ..progress import progress_bar

if TYPE_CHECKING:
    from ...advisor.learn.store import TrainedAdvisor
    from ...results import StoredModel

F = TypeVar("F", bound=Callable[..., Any])

#: Keys of tunedb.advisor.labels, .inputs and .learn.model; the help imports no learners.
LABELS = ("slice-best", "paper")
LEARNERS = ("auto", "gain", "svm", "boosted")
INPUTS = ("ratios", "raw")

KEYS = (
    "id",
    "digest",
    "learner",
    "labels",
    "inputs",
    "tolerance",
    "launches",
    "unlabelled",
    "trained_on",
    "kernels",
    "balanced_accuracy",
    "margins",
    "notes",
    "was_there",
)


def label_options(function: F) -> F:
    """Add ``--labels``, ``--tolerance`` and ``--inputs`` to a command."""
    options = (
        click.option(
            "--labels",
            type=click.Choice(LABELS),
            default="slice-best",
            show_default=True,
            help="Label toward the best block of the slice, or by Algorithm 1 of the paper.",
        ),
        click.option(
            "--tolerance",
            type=click.FloatRange(0, 1, max_open=True),
            default=0.05,
            show_default=True,
            help="Share of the best time within which a block is as good as the best.",
        ),
        click.option(
            "--inputs",
            type=click.Choice(INPUTS),
            default="ratios",
            show_default=True,
            help="Use ratios that compare between kernels, or the raw counters.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


@click.command()
@label_options
@click.option(
    "--learner",
    type=click.Choice(LEARNERS),
    default="auto",
    show_default=True,
    help="Learner; auto takes the best one on held-out kernels.",
)
@output_options
@common_options
@pass_settings
def train(settings: Settings, labels: str, tolerance: float, inputs: str, learner: str) -> None:
    """Train the advisor on the launches of the database.

    The training data are kernels that were measured with several blocks and everything else equal.
    The model is stored in the database as data; tunedb advise show uses the newest one. "gain"
    predicts run times from the launch alone; "svm" is the paper's learner and "boosted" uses trees,
    both on counters. The figure beside each is its mean balanced accuracy on held-out kernels;
    guessing reaches 0.33. "margins" are what each source of advice needs, found on held-out
    devices and kernels; "silent" is a source that none supports.

    Example:
      tunedb import logs ./profiles && tunedb advise train
      tunedb advise train --learner svm --labels paper --inputs raw
    """
    from ...advisor.learn.store import train_advisor

    with updating(settings) as store, progress_bar(settings, None) as progress:
        trained = train_advisor(
            store,
            labels=labels,
            tolerance=tolerance,
            learner=learner,
            inputs=inputs,
            on_step=progress.describe,
        )
    row = _row(trained)
    print_object(settings, tuple(map(Column, KEYS)), row, lambda: print_fields(advisor_fields(row)))
    for note in trained.training.notes:
        settings.warn(note)


def _row(trained: TrainedAdvisor) -> dict[str, Any]:
    return advisor_row(trained.stored) | {"was_there": trained.was_there}


def advisor_row(stored: StoredModel) -> dict[str, Any]:
    """Return an advisor as JSON, without ``was_there``."""
    card = stored.card
    return {
        "id": stored.id,
        "digest": stored.digest.hex(),
        "learner": card["learner"],
        "labels": card["recipe"]["labels"],
        "inputs": card["recipe"]["inputs"],
        "tolerance": card["recipe"]["tolerance"],
        "launches": card["launches"],
        "unlabelled": card["unlabelled"],
        "trained_on": card["learnt"],
        "kernels": card["kernels"],
        "balanced_accuracy": card["balanced_accuracy"],
        "margins": card.get("margins", {}),
        "notes": card["notes"],
    }


def advisor_fields(row: dict[str, Any]) -> list[tuple[str, str]]:
    """Return an advisor as labelled fields."""
    accuracies = row["balanced_accuracy"]
    figures = ", ".join(f"{clean(name)} {share(value)}" for name, value in accuracies.items())
    margins = ", ".join(
        f"{clean(name)} {'silent' if value is None else f'{value:.3f}'}"
        for name, value in row["margins"].items()
    )
    existed = " (existed already)" if row.get("was_there") else ""
    return [
        ("advisor", f"model {row['id']}{existed}"),
        ("learner", clean(row["learner"])),
        ("labels", clean(row["labels"])),
        ("launches", f"{text.number(row['trained_on'])} of {text.number(row['launches'])}"),
        ("without label", text.number(row["unlabelled"])),
        ("kernels", listed(row["kernels"], 8)),
        ("balanced accuracy", figures or "no second kernel to hold out"),
        ("margins", margins),
    ]

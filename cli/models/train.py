"""``tunedb train``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .. import text
from ..card import show_model
from ..choose import find_scope, scope_options
from ..options import Settings, common_options, pass_settings, updating
from ..output import Column, output_options, print_object
from ..progress import bar
from .recipes import chosen_features, recipe_field
from .registry import KEYS, row_of

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from ...models.failure_store import TrainedFailures
    from ...models.recipe import Recipe
    from ...models.scope import Scope
    from ...models.store import TrainedModel
    from ...storage.store import Store

F = TypeVar("F", bound=Callable[..., Any])

COLUMNS = (*map(Column, KEYS), Column("was_there"), Column("trained"))

_INTERRUPTED = 130

#: What is told of each step while it runs.
_STEPS = {
    "features": "computing features",
    "sessions": "comparing sessions",
    "reading": "reading records",
    "features read": "reading features",
    "training": "training",
    "evaluation": "evaluating on held-out workloads",
}


class _RecipeOption(click.Option):
    """An option for a field of the recipe; its help tells the default."""

    def __init__(self, *args: Any, part: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._part = part

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the option and its help."""
        from ...models.recipe import Recipe

        record = super().get_help_record(ctx)
        default = asdict(Recipe())[str(self.name)]
        return record and (record[0], f"{record[1]} Default: {default}.")

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the names of parts."""
        from click.shell_completion import CompletionItem

        from ...models.base import load_parts

        names = () if self._part is None else load_parts(self._part)[0]
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _recipe_options(function: F) -> F:
    """Give a command the options that make a recipe, all but the feature set."""
    options = (
        _option(
            "--rows",
            "NAME",
            "Row model: how the rows of a program make its score.",
            part="row model",
        ),
        _option("--loss", "NAME", "Loss to minimise: a name, or name:argument.", part="loss"),
        _option("--label", "NAME", "Label: which of a program's run times counts.", part="label"),
        click.option(
            *("--session-corrected", "corrected"),
            is_flag=True,
            help="Divide times by their session's factor (tunedb sessions).",
        ),
        _option(
            "--training-set",
            "NAME",
            "Programs to train on: all, first:64, diverse:2000, origin:random.",
            part="training set",
        ),
        _option("--rounds", None, "Largest number of boosting rounds.", type=click.IntRange(min=1)),
        _option("--members", None, "Number of boosters to average.", type=click.IntRange(min=1)),
        click.option(
            *("-p", "--parameter", "parameters"),
            metavar="NAME=VALUE",
            multiple=True,
            help="Any other field of the recipe, such as eta=0.05; may be repeated.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def _option(name: str, metavar: str | None, help_: str, **kwargs: Any) -> Callable[[F], F]:
    return click.option(name, metavar=metavar, help=help_, cls=_RecipeOption, **kwargs)


@click.command()
@scope_options
@click.option(
    "--features",
    metavar="SET",
    help="Feature set (tunedb features). Default: the most common one.",
)
@_recipe_options
@click.option(
    "--threads", type=click.IntRange(min=1), help="Number of threads. Default: one for each core."
)
@click.option(
    "--external",
    type=click.Choice(["auto", "yes", "no"]),
    default="auto",
    show_default=True,
    help="Stream features from disk; auto does so above 2 GiB.",
)
@click.option("--failures", is_flag=True, help="Train a classifier of failing programs instead.")
@click.option("--no-evaluate", is_flag=True, help="Skip the evaluation on held-out workloads.")
@click.option(
    "--card-only", is_flag=True, help="Store only the card; the model is retrained when needed."
)
@click.option("--force", is_flag=True, help="Train even if the model exists, and compare.")
@output_options
@common_options
@pass_settings
def command(
    settings: Settings,
    target: str | None,
    workloads: tuple[str, ...],
    sources: tuple[str, ...],
    features: str | None,
    threads: int | None,
    external: str,
    failures: bool,
    no_evaluate: bool,
    card_only: bool,
    force: bool,
    **choices: Any,
) -> None:
    """Train a cost model on the measurements, and store it in the database.

    The same options on the same data return the stored model; new records lead to a new one. The
    command first computes missing features of sets that need no module (steps); for others, run
    tunedb extract. The card shows the model's ranking of held-out workloads, beside random order
    and the nearest neighbour. With --failures, the model predicts the probability that a program
    fails; its recipe has defaults of its own.

    Example:
      tunedb train
      tunedb train --target cuda --training-set diverse:2000
      tunedb train --features steps --loss rank --members 5 -p eta=0.05
      tunedb train --json | jq .card.evaluation
    """
    options: dict[str, Any] = {"threads": threads, "force": force}
    if not failures:
        options |= {
            "keep_body": not card_only,
            "evaluate": not no_evaluate,
            "external": {"auto": None, "yes": True, "no": False}[external],
        }
    elif card_only or no_evaluate or external != "auto":
        raise click.UsageError("--failures takes no --external, --no-evaluate or --card-only")
    with updating(settings) as store:
        train, base = _kind(failures=failures)
        scope = find_scope(store, target, workloads, sources)
        recipe = _recipe(settings, store, base, features, scope, choices)
        with _progress(settings) as on_step:
            try:
                made = train(store, recipe, scope=scope, **options, on_step=on_step)
            except KeyboardInterrupt:
                click.echo("Interrupted; no model was stored, and computed features stay", err=True)
                raise click.exceptions.Exit(_INTERRUPTED) from None
        _tell(settings, made)


def _kind(*, failures: bool) -> tuple[Callable[..., TrainedModel | TrainedFailures], Recipe]:
    """Return what trains a kind of model, and its recipe where nothing is chosen."""
    if failures:
        from ...models.failure_store import train_failures
        from ...models.failures import RECIPE

        return train_failures, RECIPE
    from ...models.recipe import Recipe
    from ...models.store import train

    return train, Recipe()


def _tell(settings: Settings, made: TrainedModel | TrainedFailures) -> None:
    """Print the model, and whether it is a new one."""
    row = row_of(made.stored, current=True)
    row |= {"was_there": made.was_there, "trained": made.trained}
    print_object(settings, COLUMNS, row, lambda: show_model(made.stored, whole=False))
    id_ = made.stored.id
    if not made.was_there:
        settings.note(f"Full card: tunedb models show {id_}")
    elif made.trained:
        settings.note(f"Model {id_} existed already; trained again")
    else:
        settings.note(f"Model {id_} existed already: no data changed since")


def _recipe(
    settings: Settings,
    store: Store,
    base: Recipe,
    features: str | None,
    scope: Scope,
    choices: dict[str, Any],
) -> Recipe:
    """Return the recipe that the options make of one."""
    values = dict(map(recipe_field, choices.pop("parameters")))
    values |= {name: value for name, value in choices.items() if value not in (None, False)}
    named = features or values.get("features")
    return replace(base, **{**values, "features": chosen_features(settings, store, named, scope)})


@contextmanager
def _progress(settings: Settings) -> Iterator[Callable[[str, int, int], None]]:
    """Yield what shows each step in a bar; features that are computed are told of."""
    with bar(settings, None) as shown:
        now = ""

        def on_step(step: str, done: int, total: int) -> None:
            nonlocal now
            if step == "features" and not done:
                settings.note(f"Computing the features of {text.count(total, 'program')} first")
            if step != now:
                now = step
                shown.finish(0)
            shown.describe(_STEPS.get(step, step))
            if total:
                shown.resize(total)
            shown.at(done)

        yield on_step

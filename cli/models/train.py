"""``tunedb train``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ...system import text
from ..card import show_model
from ..choose import find_scope, scope_options
from ..interrupt import interrupted
from ..options import Settings, common_options, pass_settings, updating
from ..output import Column, output_options, print_object
from ..progress import progress_bar
from .recipes import recipe_field, resolve_features
from .registry import KEYS, model_row

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from ...models.failure_store import TrainedFailures
    from ...models.recipe import Recipe
    from ...models.scope import Scope
    from ...models.store import TrainedModel
    from ...storage.store import Store

F = TypeVar("F", bound=Callable[..., Any])

COLUMNS = (*map(Column, KEYS), Column("was_there"), Column("trained"))

#: Step of a training → its description beside the progress bar.
_STEPS = {
    "features": "computing features",
    "sessions": "comparing sessions",
    "reading": "reading records",
    "features read": "reading features",
    "training": "training",
    "evaluation": "evaluating on held-out workloads",
}


class _RecipeOption(click.Option):
    """An option for a field of the recipe; its help ends with the default."""

    def __init__(self, *args: Any, component: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._component = component

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the option and its help."""
        from ...models.recipe import Recipe

        record = super().get_help_record(ctx)
        default = asdict(Recipe())[str(self.name)]
        return record and (record[0], f"{record[1]} Default: {default}.")

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the names of model components."""
        from click.shell_completion import CompletionItem

        from ...models.base import load_parts

        names = () if self._component is None else load_parts(self._component)[0]
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _recipe_options(function: F) -> F:
    """Add the options of a recipe to a command, except the feature set."""
    options = (
        _option(
            "--rows",
            "NAME",
            "Row model: how the rows of a program make its score.",
            component="row model",
        ),
        _option("--loss", "NAME", "Loss to minimise: a name, or name:argument.", component="loss"),
        _option("--label", "NAME", "Label: statistic of a program's run times.", component="label"),
        click.option(
            *("--session-corrected", "corrected"),
            is_flag=True,
            help="Divide times by their session's factor (tunedb sessions).",
        ),
        _option(
            "--training-set",
            "NAME",
            "Programs to train on: all, first:64, diverse:2000, origin:random.",
            component="training set",
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
    tunedb extract. The card compares the model's ranking of held-out workloads with random
    order and the nearest neighbour. With --failures, the model predicts the probability that a
    program fails; its recipe has defaults of its own.

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
        train, base = _training(failures=failures)
        scope = find_scope(store, target, workloads, sources)
        recipe = _recipe(settings, store, base, features, scope, choices)
        with _progress(settings) as on_step:
            try:
                model = train(store, recipe, scope=scope, **options, on_step=on_step)
            except KeyboardInterrupt:
                raise interrupted(
                    "Interrupted; no model was stored, and computed features stay"
                ) from None
        _report(settings, model)


def _training(*, failures: bool) -> tuple[Callable[..., TrainedModel | TrainedFailures], Recipe]:
    """Return the training function and the default recipe of a kind of model."""
    if failures:
        from ...models.failure_store import train_failures
        from ...models.failures import RECIPE

        return train_failures, RECIPE
    from ...models.recipe import Recipe
    from ...models.store import train

    return train, Recipe()


def _report(settings: Settings, model: TrainedModel | TrainedFailures) -> None:
    """Print the model, and whether it is new."""
    row = model_row(model.stored, current=True)
    row |= {"was_there": model.was_there, "trained": model.trained}
    print_object(settings, COLUMNS, row, lambda: show_model(model.stored, whole=False))
    id_ = model.stored.id
    if not model.was_there:
        settings.note(f"Full card: tunedb models show {id_}")
    elif model.trained:
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
    """Return the base recipe with the values of the options."""
    values = dict(map(recipe_field, choices.pop("parameters")))
    values |= {name: value for name, value in choices.items() if value not in (None, False)}
    name = features or values.get("features")
    return replace(base, **{**values, "features": resolve_features(settings, store, name, scope)})


@contextmanager
def _progress(settings: Settings) -> Iterator[Callable[[str, int, int], None]]:
    """Yield a callback that shows each step in a progress bar."""
    with progress_bar(settings, None) as progress:
        current = ""

        def on_step(step: str, done: int, total: int) -> None:
            nonlocal current
            if step == "features" and not done:
                settings.note(f"Computing the features of {text.count(total, 'program')} first")
            if step != current:
                current = step
                progress.finish(0)
            progress.describe(_STEPS.get(step, step))
            if total:
                progress.resize(total)
            progress.update(done)

        yield on_step

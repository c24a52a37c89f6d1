"""``tunedb simulate``."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ...system import text
from ..choose import find_scope, scope_options
from ..interrupt import interrupted
from ..options import Settings, common_options, pass_settings, reading
from ..output import Column, output_options, print_rows
from ..progress import progress_bar
from .recipes import recipe_field

if TYPE_CHECKING:
    from ...models.dataset import Dataset
    from ...models.scope import Scope
    from ...models.simulation import SearchSettings, Simulated
    from ...storage.store import Store

F = TypeVar("F", bound=Callable[..., Any])

#: Trials after which the table has the best program.
_EARLY = 16


def _share(value: float) -> str:
    return f"{value:.3f}"


def _signed(value: dict[str, Any] | None) -> str:
    return "" if value is None else text.signed(value["mean"], value["low"], value["high"], 3)


COLUMNS = (
    Column("settings", "settings", flexible=True),
    Column("workloads", "workloads", right=True),
    Column("area", "mean of the curve", _share, right=True),
    Column("early", f"best of {_EARLY}", _share, right=True),
    Column("last", "best of all", _share, right=True),
    Column("found", "trials to 95 %", lambda value: f"{value:.1f}", right=True),
    Column("difference", "to the first", _signed, right=True),
)


def _option(name: str, default: Any, type_: Any, help_: str) -> Callable[[F], F]:
    """Return an option that may be repeated to compare several values."""
    return click.option(
        name, type=type_, multiple=True, default=(default,), show_default=True, help=help_
    )


@click.command()
@click.option(
    "--features",
    metavar="SET[+SET]",
    multiple=True,
    default=("steps",),
    show_default=True,
    help="Feature set of the model, or of the models of finalists and of their order.",
)
@_option("--batch", 16, click.IntRange(min=1), "Trials of a round.")
@_option("--population", 2304, click.IntRange(min=1), "Most programs that a round compares.")
@_option("--finalists", 4, click.IntRange(min=1), "Programs of the second model for each trial.")
@_option("--weight", 0.25, click.FloatRange(min=0), "Weight of the second model's score.")
@_option("--random", 0.05, click.FloatRange(0, 1), "Share of random trials of a round.")
@_option(
    "--learn-from",
    "trials",
    click.Choice(("trials", "all")),
    "Examples of the models: the trials of the search, or the other workloads, too.",
)
@_option(
    "--regression",
    "yes",
    click.Choice(("yes", "no")),
    "Let a regression of the trials join the first model, while few other examples are known.",
)
@click.option(
    *("-p", "--parameter", "parameters"),
    metavar="NAME=VALUE",
    multiple=True,
    help="A field of the recipe, such as rounds=50; may be repeated.",
)
@click.option(
    "--trials",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="Trials of a search.",
)
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Searches of each workload with each setting.",
)
@scope_options
@click.option(
    "--threads", type=click.IntRange(min=1), help="Number of threads. Default: one for each core."
)
@output_options
@common_options
@pass_settings
def command(
    settings: Settings,
    features: tuple[str, ...],
    parameters: tuple[str, ...],
    target: str | None,
    workloads: tuple[str, ...],
    sources: tuple[str, ...],
    trials: int,
    seeds: int,
    threads: int | None,
    **grid: tuple[Any, ...],
) -> None:
    """Compare settings of the search on stored measurements.

    Stored random programs of each workload take the place of a device: a search picks the next
    batch with its models and looks the times up. Repeat an option to compare values; the first of
    each are compared with all others, over the same workloads and seeds. Nothing is stored.

    "best of 16" is the best throughput of the first 16 trials, or of all if there are fewer, / the
    best of the workload's programs, "mean of the curve" its mean over all trials, "trials to 95 %"
    the number of trials until it is 0.95. A difference of means of curves has its 95 % bootstrap
    interval over workloads.

    The programs of a database are too few to breed others, so operators and generations are not
    simulated.

    Example:
      tunedb simulate --batch 4 --batch 16
      tunedb simulate --random 0.05 --random 0.2 --trials 32 --seeds 10
      tunedb simulate --features steps --features steps+tunedb.scheduled --learn-from all
      tunedb simulate -p rounds=50 --json | jq '.[] | [.settings, .area, .found]'
    """
    from ...models.recipe import Recipe

    recipe = Recipe(**dict(map(recipe_field, parameters)))
    choices = _settings(features, grid)
    names = dict.fromkeys(name for one in choices.values() for name in one.features)
    with reading(settings) as store:
        examples = _read(store, list(names), recipe, find_scope(store, target, workloads, sources))
    rows = _rows(
        _simulate(
            settings,
            examples,
            choices,
            recipe=recipe,
            trials=trials,
            seeds=seeds,
            threads=threads,
        )
    )
    print_rows(settings, COLUMNS, rows)


def _settings(
    features: tuple[str, ...], grid: dict[str, tuple[Any, ...]]
) -> dict[str, SearchSettings]:
    """Return all combinations, named by the options that differ."""
    from ...models.simulation import SearchSettings

    values: dict[str, list[Any]] = {"features": [tuple(one.split("+")) for one in features]}
    values |= {name: list(each) for name, each in grid.items()}
    values["stored"] = [name == "all" for name in values.pop("learn_from")]
    values["regression"] = [word == "yes" for word in values["regression"]]
    values = {name: list(dict.fromkeys(each)) for name, each in values.items()}
    varied = [name for name, each in values.items() if len(each) > 1]
    found = {}
    for combination in product(*values.values()):
        fields = dict(zip(values, combination, strict=True))
        found[", ".join(_words(name, fields[name]) for name in varied) or "as given"] = (
            SearchSettings(**fields)
        )
    return found


def _words(name: str, value: Any) -> str:
    if name == "stored":
        return f"learn-from={'all' if value else 'trials'}"
    if name == "regression":
        return f"regression={'yes' if value else 'no'}"
    return f"{name}={'+'.join(value) if name == 'features' else value}"


def _read(store: Store, names: list[str], recipe: Any, scope: Scope) -> dict[str, Dataset]:
    """Return the measured programs with their rows, those that all feature sets have."""
    from ...features.base import feature_set
    from ...models import dataset
    from ...models.simulation import in_common

    options: dict[str, Any] = {"label": recipe.label, "corrected": recipe.corrected, "scope": scope}
    found = {name: dataset.load_or_compute(store, feature_set(name), **options) for name in names}
    return in_common(found)


def _simulate(
    settings: Settings,
    examples: dict[str, Dataset],
    choices: dict[str, SearchSettings],
    **options: Any,
) -> dict[str, Simulated]:
    """Search, with a progress bar."""
    from ...models.simulation import simulate

    with progress_bar(settings, None) as progress:
        progress.describe("searching")
        try:
            found = simulate(examples, list(choices.values()), on_step=progress.show, **options)
        except KeyboardInterrupt:
            raise interrupted("Interrupted; the simulation was discarded") from None
    return dict(zip(choices, found, strict=True))


def _rows(found: dict[str, Simulated]) -> list[dict[str, Any]]:
    """Return a row for each setting, with its difference to the first."""
    from ...models.simulation import difference

    first_name, first = next(iter(found.items()))
    rows = []
    for name, one in found.items():
        paired = None if one is first else difference(one, first, name, first_name)
        early = min(_EARLY, one.curves.shape[1])
        rows.append(
            {
                "settings": name,
                "workloads": len(one.workloads),
                "area": float(one.areas.mean()),
                "early": float(one.curves[:, early - 1].mean()),
                "last": float(one.curves[:, -1].mean()),
                "found": float(one.found.mean()),
                "difference": None
                if paired is None
                else {
                    "mean": paired.mean,
                    "low": paired.low if isfinite(paired.low) else None,
                    "high": paired.high if isfinite(paired.high) else None,
                },
            }
        )
    return rows

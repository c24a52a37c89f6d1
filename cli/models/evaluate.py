"""``tunedb evaluate``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .. import text
from ..choose import find_scope, scope_options
from ..options import Settings, common_options, pass_settings, reading
from ..output import Column, output_options, print_rows, print_table
from ..progress import bar
from .recipes import chosen_features, recipe_field

if TYPE_CHECKING:
    from ...models.baselines import Baseline
    from ...models.dataset import Dataset
    from ...models.evaluation import Difference, Evaluation, FigureSummary
    from ...models.recipe import Recipe
    from ...models.scope import Scope
    from ...storage.store import Store

# ---- What an evaluation found, as people and programs read it ------------------------------------

#: Workloads below which the width of an interval is told: it is then wider than most differences.
_FEW = 20
#: Workloads below which the bootstrap has so few samples that its intervals are far too narrow.
_TOO_FEW = 6

#: Keys of a figure in JSON.
_FIELDS = ("mean", "low", "high", "tenth", "random", "skill")

#: What stands in the row of the noise floor.
_FLOOR = "(measured once)"


def _share(value: dict[str, float | None] | None) -> str:
    return _with_width(value, 3)


def _number(value: dict[str, float | None] | None) -> str:
    return _with_width(value, 1)


def _with_width(value: dict[str, float | None] | None, digits: int) -> str:
    """Return a mean, and half the width of its interval."""
    if value is None or value["mean"] is None:
        return text.NOTHING
    shown = f"{value['mean']:.{digits}f}"
    if value["low"] is None or value["high"] is None:
        return shown
    return f"{shown} ±{(value['high'] - value['low']) / 2:.{digits}f}"


COLUMNS = (
    Column("regime", "held out", fold=True),
    Column("pool", "pool", fold=True),
    Column("model", "model", flexible=True),
    Column("workloads", "workloads", text.number, right=True, least=120),
    Column("pools"),
    Column("programs"),
    Column("pairwise", "pairs", _share, right=True),
    Column("top1", "top-1", _share, right=True, least=90),
    Column("top5", "top-5", _share, right=True),
    Column("recall30", "recall@30", _share, right=True, least=130),
    Column("trials90", "trials to 90 %", _number, right=True),
    Column("trials95", "to 95 %", _number, right=True, least=105),
    Column("spearman", "Spearman", _share, right=True, least=145),
)

#: Columns of the table of paired differences.
_DIFFERENCES = (
    Column("regime", "held out", fold=True),
    Column("pool", "pool", fold=True),
    Column("models", "paired difference", flexible=True),
    Column("pairwise", "pairs", right=True),
    Column("top5", "top-5", right=True),
    Column("trials90", "trials to 90 %", right=True),
)


def print_findings(settings: Settings, found: Evaluation) -> None:
    """Print the figures, and what they do not tell."""
    rows = list(_rows(found))

    def show() -> None:
        print_table(COLUMNS, rows)
        differences = list(_difference_rows(found))
        if differences:
            click.echo()
            print_table(_DIFFERENCES, differences)

    print_rows(settings, COLUMNS, rows, show=show)
    for what, why in found.impossible.items():
        settings.note(f"{what} was left out: {why}")
    few = [row for row in rows if row["workloads"] < _FEW and row["model"] in found.recipes]
    if few:
        least = min(few, key=lambda row: row["workloads"])
        where = f"{least['regime']}, {least['pool']} pools"
        count = text.count(least["workloads"], "workload")
        pairs, top = (_width(least[key]) for key in ("pairwise", "top5"))
        if least["workloads"] < _TOO_FEW:
            settings.warn(f"{where}: with {count}, means and intervals say little about other data")
            return
        settings.warn(
            f"{where}: with {count} the means are uncertain by {pairs} (pairs) and {top} (top-5)"
        )


def _width(value: dict[str, float | None]) -> str:
    """Return half the width of an interval."""
    if value["low"] is None or value["high"] is None:
        return "an unknown amount"
    return f"±{(value['high'] - value['low']) / 2:.3f}"


def _rows(found: Evaluation) -> Iterator[dict[str, Any]]:
    """Yield a row for each model in each regime and kind of pool, and for the noise floor."""
    from ...models.metrics import FIGURES

    for index, one in enumerate(found.results):
        row = {"regime": one.regime, "pool": one.pool, "workloads": len(one.workloads)}
        row |= {"pools": one.pools, "programs": one.programs}
        yield row | {"model": one.model} | {f: _figure(one.summary(f)) for f in FIGURES}
        following = found.results[index + 1 : index + 2]
        last = not following or (following[0].regime, following[0].pool) != (one.regime, one.pool)
        if last and one.floor is not None:
            floor = one.floor.mean(axis=0)
            means = {
                figure: dict.fromkeys(_FIELDS) | {"mean": float(value)}
                for figure, value in zip(FIGURES, floor, strict=True)
            }
            yield row | {"model": _FLOOR} | means


def _figure(summary: FigureSummary) -> dict[str, float | None]:
    """Return a figure for JSON."""
    values = ((key, getattr(summary, key)) for key in _FIELDS)
    return {key: value if isfinite(value) else None for key, value in values}


def _difference_rows(found: Evaluation) -> Iterator[dict[str, Any]]:
    """Yield the differences between recipes, workload by workload."""
    keys = dict.fromkeys((one.regime, one.pool) for one in found.results)
    for regime, pool in keys:
        pairs: dict[str, dict[str, Difference]] = {}
        for one in found.differences(regime, pool):
            if one.other != "random":
                pairs.setdefault(f"{one.one} - {one.other}", {})[one.figure] = one
        for models, figures in pairs.items():
            shown = {
                column.key: _signed(figures[column.key], 1 if "trials" in column.key else 3)
                for column in _DIFFERENCES[3:]
            }
            yield {"regime": regime, "pool": pool, "models": models} | shown


def _signed(one: Difference, digits: int) -> str:
    """Return a difference with its interval: ``+0.012 (-0.003 to 0.028)``."""
    if not isfinite(one.low):
        return f"{one.mean:+.{digits}f}"
    return f"{one.mean:+.{digits}f} ({one.low:.{digits}f} to {one.high:.{digits}f})"


# ---- The command ---------------------------------------------------------------------------------

_INTERRUPTED = 130

#: Keys of tunedb.models.splits.REGIMES and POOLS, and of tunedb.models.baselines.BASELINES: the
#: command line imports no models to print its help.
REGIMES = ("same-workload", "new-workload", "new-family", "new-hardware")
POOLS = ("random", "search")
BASELINES = ("random", "nearest", "tvm")


@click.command()
@click.option(
    "--features",
    metavar="SET",
    help="Feature set (tunedb features). Default: the most common one.",
)
@click.option(
    *("--loss", "losses"),
    metavar="NAME",
    multiple=True,
    help="Loss to minimise: a name, or name:argument; repeat it to compare several.",
)
@click.option("--rows", metavar="NAME", help="Row model: how the rows of a program make its score.")
@click.option(
    *("--training-set", "training_sets"),
    metavar="NAME",
    multiple=True,
    help="Programs to train on: all, first:64, diverse:2000; repeat it to compare several. "
    "Baselines train on the first.",
)
@click.option(
    *("-p", "--parameter", "parameters"),
    metavar="NAME=VALUE",
    multiple=True,
    help="Any other field of the recipe, such as eta=0.05; may be repeated.",
)
@click.option(
    *("--regime", "regimes"),
    type=click.Choice(REGIMES),
    multiple=True,
    help="Regimes to evaluate; may be repeated. Default: all four.",
)
@click.option(
    *("--pool", "pools"),
    type=click.Choice(POOLS),
    multiple=True,
    help="Candidates of a first round, or of a whole search; may be repeated. Default: both.",
)
@click.option(
    *("--baseline", "baselines"),
    type=click.Choice((*BASELINES, "none")),
    multiple=True,
    help="Baselines to compare with; may be repeated. Default: all three.",
)
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Number of splits by program and by workload.",
)
@click.option(
    "--held-out",
    type=click.IntRange(min=1),
    help="Held-out workloads of a split. Default: a fifth.",
)
@click.option("--leave-one-out", is_flag=True, help="Hold out each workload once.")
@scope_options
@click.option(
    "--threads", type=click.IntRange(min=1), help="Number of threads. Default: one for each core."
)
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write everything to a JSON file: each workload's figures, curves, differences, splits.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Plot the figures to a file: .png, .svg or .pdf.",
)
@output_options
@common_options
@pass_settings
def command(
    settings: Settings,
    features: str | None,
    losses: tuple[str, ...],
    rows: str | None,
    training_sets: tuple[str, ...],
    parameters: tuple[str, ...],
    target: str | None,
    workloads: tuple[str, ...],
    sources: tuple[str, ...],
    report: Path | None,
    plot: Path | None,
    **options: Any,
) -> None:
    """Evaluate cost models on held-out data.

    Models train on a part of the records and rank the others: other programs of the same workloads,
    workloads of other shapes, operator families or hardware. Figures are means over workloads with
    half their 95 % bootstrap interval, for pools of unselected candidates (random) and of whole
    searches, where any order does well: compare with the exact line "random". Nothing is stored.

    "pairs" is the share of pairs of programs in measured order; "top-1" and "top-5" are the best
    throughput among the first by score; "recall@30" is the share of the 30 fastest among the first
    30; "trials" is the number of trials until one is within 10 or 5 % of the best.

    Example:
      tunedb evaluate --plot figures.png
      tunedb evaluate --loss squared --loss rank --regime new-workload --pool random
      tunedb evaluate --target cuda --training-set first:64 --seeds 3 --report all.json
      tunedb evaluate --leave-one-out --json | jq '.[] | [.regime, .pool, .model, .top5.mean]'
    """
    _check_files(report, plot)
    with reading(settings) as store:
        scope = find_scope(store, target, workloads, sources)
        values = dict(map(recipe_field, parameters)) | ({"rows": rows} if rows else {})
        recipes = _recipes(settings, store, features, losses, training_sets, values, scope)
        examples, noise = _read(settings, store, next(iter(recipes.values())), scope)
    found = _evaluate(settings, examples, recipes, noise, options)
    _write(settings, found, report, plot)
    print_findings(settings, found)


def _check_files(report: Path | None, plot: Path | None) -> None:
    """Raise for files that cannot be written, before minutes are spent on what they would hold."""
    from ...errors import NotFoundError

    if plot is not None:
        from ...report.evaluation import check

        check(plot)
    for path in (report, plot):
        if path is not None and not path.absolute().parent.is_dir():
            raise NotFoundError(f"{path}: there is no folder {path.absolute().parent}; make it")


def _recipes(
    settings: Settings,
    store: Store,
    features: str | None,
    losses: tuple[str, ...],
    training_sets: tuple[str, ...],
    values: dict[str, Any],
    scope: Scope,
) -> dict[str, Recipe]:
    """Return the recipes that are compared, by what tells them apart."""
    from ...models.recipe import Recipe
    from ...models.training_job import check_recipe

    features = chosen_features(settings, store, features or values.get("features"), scope)
    base = Recipe(**{**values, "features": features})
    choices = {
        "loss": list(dict.fromkeys(losses)) or [base.loss],
        "training_set": list(dict.fromkeys(training_sets)) or [base.training_set],
    }
    several = [key for key, names in choices.items() if len(names) > 1] or ["loss"]
    found = {}
    for chosen in product(*choices.values()):
        made = dict(zip(choices, chosen, strict=True))
        name = ", ".join(made[key] for key in several)
        found[name] = Recipe(**{**values, **made, "features": features})
        check_recipe(found[name])
    return found


def _read(settings: Settings, store: Store, recipe: Recipe, scope: Scope) -> tuple[Dataset, Any]:
    """Return what is judged on, and the noise of its run times."""
    from ...features.base import feature_set
    from ...models.dataset import load
    from ...models.evaluation import repeat_noise

    _warn_of_sessions(settings, store, scope.target_ids)
    chosen = feature_set(recipe.features)
    with bar(settings, None) as shown:
        shown.describe("reading features")

        def on_read(done: int, total: int) -> None:
            shown.resize(total)
            shown.at(done)

        examples = load(
            store,
            chosen,
            label=recipe.label,
            corrected=recipe.corrected,
            on_read=on_read,
            scope=scope,
        )
    noise = repeat_noise(store.training.records(chosen, **scope.ids()))
    if noise is None:
        settings.note("Each record has one run time, so the noise floor is unknown")
    return examples, noise


def _warn_of_sessions(settings: Settings, store: Store, target_ids: Sequence[int] | None) -> None:
    """Say where sessions of a target were never compared: they may be of several machines."""
    for target_id, sessions in store.runs.sessions(target_ids).items():
        if len(sessions) > 1 and not store.runs.factors(target_id):
            settings.warn(
                f"target {target_id}: {len(sessions)} sessions count as one machine until they "
                "are compared; run: tunedb sessions --update"
            )


def _evaluate(
    settings: Settings,
    examples: Dataset,
    recipes: dict[str, Recipe],
    noise: Any,
    options: dict[str, Any],
) -> Evaluation:
    """Train and rank, with a bar."""
    from ...models.evaluation import evaluate

    training_set = next(iter(recipes.values())).training_set
    with bar(settings, None) as shown:

        def on_step(done: int, total: int, what: str) -> None:
            shown.describe(what)
            shown.resize(total)
            shown.at(done)

        try:
            return evaluate(
                examples,
                recipes,
                regimes=options["regimes"] or REGIMES,
                pools=options["pools"] or POOLS,
                seeds=options["seeds"],
                held_out=options["held_out"],
                leave_one_out=options["leave_one_out"],
                baselines=_baselines(options["baselines"] or BASELINES, training_set),
                noise=noise,
                threads=options["threads"],
                on_step=on_step,
            )
        except KeyboardInterrupt:
            click.echo("Interrupted; the evaluation was discarded", err=True)
            raise click.exceptions.Exit(_INTERRUPTED) from None


def _baselines(names: Sequence[str], training_set: str) -> list[Baseline]:
    from ...models.baselines import baseline

    return [baseline(name, training_set) for name in dict.fromkeys(names) if name != "none"]


def _write(settings: Settings, found: Evaluation, report: Path | None, plot: Path | None) -> None:
    """Write the files that were asked for."""
    if report is not None:
        import json

        from ...system.files import write_whole

        write_whole(report, json.dumps(found.to_json(), indent=1) + "\n")
        settings.note(f"Wrote {report}")
    if plot is not None:
        from ...report.evaluation import plot as draw

        draw(found, plot)
        settings.note(f"Drew {plot}")

"""``tunedb evaluate``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...system import text
from ..choose import find_scope, scope_options
from ..databases import open_other
from ..interrupt import interrupted
from ..options import Settings, common_options, pass_settings, reading
from ..output import Column, output_options, print_rows, print_table
from ..progress import progress_bar
from .recipes import recipe_field, resolve_features

if TYPE_CHECKING:
    from ...models.baselines import Baseline
    from ...models.dataset import Dataset
    from ...models.evaluation import Difference, Evaluation, FigureSummary
    from ...models.recipe import Recipe
    from ...models.scope import Scope
    from ...models.splits import Regime
    from ...models.transfer import Transfer
    from ...storage.store import Store

# ---- Report --------------------------------------------------------------------------------------

#: With fewer workloads, intervals are wider than most differences: their width is printed.
_FEW = 20
#: With fewer workloads, bootstrap intervals are far too narrow.
_TOO_FEW = 6

#: Keys of a figure in JSON.
_FIELDS = ("mean", "low", "high", "tenth", "random", "skill")

_NO_NOISE = "Each record has one run time, so the noise floor is unknown"

#: Model name in the row of the noise floor.
_FLOOR = "(measured once)"


def _share(value: dict[str, float | None] | None) -> str:
    return _with_width(value, 3)


def _number(value: dict[str, float | None] | None) -> str:
    return _with_width(value, 1)


def _with_width(value: dict[str, float | None] | None, digits: int) -> str:
    """Format a mean with half the width of its interval."""
    if value is None or value["mean"] is None:
        return text.NOTHING
    mean = f"{value['mean']:.{digits}f}"
    if value["low"] is None or value["high"] is None:
        return mean
    return f"{mean} ±{(value['high'] - value['low']) / 2:.{digits}f}"


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


def print_evaluation(settings: Settings, evaluation: Evaluation) -> None:
    """Print the figures, and warnings about their uncertainty."""
    rows = list(_rows(evaluation))

    def show() -> None:
        print_table(COLUMNS, rows)
        differences = list(_difference_rows(evaluation))
        if differences:
            click.echo()
            print_table(_DIFFERENCES, differences)

    print_rows(settings, COLUMNS, rows, show=show)
    for regime, reason in evaluation.impossible.items():
        settings.note(f"{regime} was left out: {reason}")
    few = [row for row in rows if row["workloads"] < _FEW and row["model"] in evaluation.recipes]
    if few:
        smallest = min(few, key=lambda row: row["workloads"])
        regime = f"{smallest['regime']}, {smallest['pool']} pools"
        count = text.count(smallest["workloads"], "workload")
        pairs, top = (_width(smallest[key]) for key in ("pairwise", "top5"))
        if smallest["workloads"] < _TOO_FEW:
            settings.warn(
                f"{regime}: with {count}, means and intervals say little about other data"
            )
            return
        settings.warn(
            f"{regime}: with {count} the means are uncertain by {pairs} (pairs) and {top} (top-5)"
        )


def _width(value: dict[str, float | None]) -> str:
    """Format half the width of an interval."""
    if value["low"] is None or value["high"] is None:
        return "an unknown amount"
    return f"±{(value['high'] - value['low']) / 2:.3f}"


def _rows(evaluation: Evaluation) -> Iterator[dict[str, Any]]:
    """Yield a row for each model in each regime and kind of pool, and for the noise floor."""
    from ...models.metrics import FIGURES

    results = evaluation.results
    for index, result in enumerate(results):
        key = (result.regime, result.pool)
        row = {"regime": result.regime, "pool": result.pool, "workloads": len(result.workloads)}
        row |= {"pools": result.pools, "programs": result.programs}
        yield row | {"model": result.model} | {f: _figure(result.summary(f)) for f in FIGURES}
        following = results[index + 1 : index + 2]
        is_last = not following or (following[0].regime, following[0].pool) != key
        if is_last and result.floor is not None:
            floor = result.floor.mean(axis=0)
            means = {
                figure: dict.fromkeys(_FIELDS) | {"mean": float(value)}
                for figure, value in zip(FIGURES, floor, strict=True)
            }
            yield row | {"model": _FLOOR} | means


def _figure(summary: FigureSummary) -> dict[str, float | None]:
    """Return a figure for JSON."""
    values = ((key, getattr(summary, key)) for key in _FIELDS)
    return {key: value if isfinite(value) else None for key, value in values}


def _difference_rows(evaluation: Evaluation) -> Iterator[dict[str, Any]]:
    """Yield the paired differences between recipes, over the same workloads."""
    keys = dict.fromkeys((result.regime, result.pool) for result in evaluation.results)
    for regime, pool in keys:
        pairs: dict[str, dict[str, Difference]] = {}
        for difference in evaluation.differences(regime, pool):
            if difference.other != "random":
                models = f"{difference.one} - {difference.other}"
                pairs.setdefault(models, {})[difference.figure] = difference
        for models, figures in pairs.items():
            cells = {
                column.key: _signed(figures[column.key], 1 if "trials" in column.key else 3)
                for column in _DIFFERENCES[3:]
            }
            yield {"regime": regime, "pool": pool, "models": models} | cells


def _signed(difference: Difference, digits: int) -> str:
    return text.signed(difference.mean, difference.low, difference.high, digits)


# ---- Command ------------------------------------------------------------------------------------

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
@click.option(
    "--test-db",
    metavar="OTHER",
    help="Rank the records of this database: a file, a URL, or a bundle.",
)
@click.option(
    "--train-db",
    metavar="OTHER",
    help="With --test-db, train on the records of this one. Default: the database.",
)
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
    test_db: str | None,
    train_db: str | None,
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

    With --test-db, models train on one database and rank another: what are our records worth on
    their machine? Regimes are then the programs of common workloads, the workloads, each family
    and the hardware that only the second one has.

    Example:
      tunedb evaluate --plot figures.png
      tunedb evaluate --loss squared --loss rank --regime new-workload --pool random
      tunedb evaluate --target cuda --training-set first:64 --seeds 3 --report all.json
      tunedb evaluate --leave-one-out --json | jq '.[] | [.regime, .pool, .model, .top5.mean]'
      tunedb evaluate --train-db ours.db --test-db theirs.bundle --baseline tvm
    """
    _check_files(report, plot)
    if train_db is not None and test_db is None:
        raise click.UsageError("give the database to rank too: --test-db OTHER")
    values = dict(map(recipe_field, parameters)) | ({"rows": rows} if rows else {})
    with ExitStack() as stack:
        opened = reading(settings) if train_db is None else open_other(settings, train_db)
        stores = [stack.enter_context(opened)]
        if test_db is not None:
            stores.append(stack.enter_context(open_other(settings, test_db)))
        scopes = [find_scope(store, target, workloads, sources) for store in stores]
        recipes = _recipes(settings, stores[0], features, losses, training_sets, values, scopes[0])
        recipe = next(iter(recipes.values()))
        if test_db is None:
            examples, noise = _read(settings, stores[0], recipe, scopes[0])
            makers = None
        else:
            transfer = _read_both(settings, stores, recipe, scopes)
            examples, noise, makers = transfer.examples, transfer.noise, transfer.regimes
    evaluation = _evaluate(settings, examples, recipes, noise, makers, options)
    _write(settings, evaluation, report, plot)
    print_evaluation(settings, evaluation)


def _check_files(report: Path | None, plot: Path | None) -> None:
    """Raise for files that cannot be written, before the minutes of an evaluation."""
    from ...errors import NotFoundError

    if plot is not None:
        from ...report.evaluation import check

        check(plot)
    for path in (report, plot):
        if path is not None and not path.absolute().parent.is_dir():
            raise NotFoundError(
                f"{path}: folder {path.absolute().parent} does not exist; create it"
            )


def _recipes(
    settings: Settings,
    store: Store,
    features: str | None,
    losses: tuple[str, ...],
    training_sets: tuple[str, ...],
    values: dict[str, Any],
    scope: Scope,
) -> dict[str, Recipe]:
    """Return the recipes to compare, named by the options that differ."""
    from ...models.recipe import Recipe
    from ...models.training_job import check_recipe

    features = resolve_features(settings, store, features or values.get("features"), scope)
    base = Recipe(**{**values, "features": features})
    choices = {
        "loss": list(dict.fromkeys(losses)) or [base.loss],
        "training_set": list(dict.fromkeys(training_sets)) or [base.training_set],
    }
    varied = [key for key, names in choices.items() if len(names) > 1] or ["loss"]
    recipes = {}
    for combination in product(*choices.values()):
        fields = dict(zip(choices, combination, strict=True))
        name = ", ".join(fields[key] for key in varied)
        recipes[name] = Recipe(**{**values, **fields, "features": features})
        check_recipe(recipes[name])
    return recipes


def _read(settings: Settings, store: Store, recipe: Recipe, scope: Scope) -> tuple[Dataset, Any]:
    """Return the dataset, and the noise of its run times."""
    from ...features.base import feature_set
    from ...models.dataset import load
    from ...models.evaluation import repeat_noise

    _warn_of_sessions(settings, store, scope.target_ids)
    features = feature_set(recipe.features)
    with _reading_bar(settings) as on_read:
        examples = load(
            store,
            features,
            label=recipe.label,
            corrected=recipe.corrected,
            on_read=on_read,
            scope=scope,
        )
    noise = repeat_noise(store.training.records(features, **scope.ids()))
    if noise is None:
        settings.note(_NO_NOISE)
    return examples, noise


def _read_both(
    settings: Settings, stores: Sequence[Store], recipe: Recipe, scopes: Sequence[Scope]
) -> Transfer:
    """Return the datasets of two databases as one."""
    from ...features.base import feature_set
    from ...models import transfer

    for store, scope in zip(stores, scopes, strict=True):
        _warn_of_sessions(settings, store, scope.target_ids)
    with _reading_bar(settings) as on_read:
        loaded = transfer.load(
            stores[0],
            stores[1],
            feature_set(recipe.features),
            label=recipe.label,
            corrected=recipe.corrected,
            scopes=(scopes[0], scopes[1]),
            on_read=on_read,
        )
    if loaded.noise is None:
        settings.note(_NO_NOISE)
    return loaded


@contextmanager
def _reading_bar(settings: Settings) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar, and yield the callback for the numbers of programs read and of all."""
    with progress_bar(settings, None) as progress:
        progress.describe("reading features")
        yield progress.show


def _warn_of_sessions(settings: Settings, store: Store, target_ids: Sequence[int] | None) -> None:
    """Warn of targets with uncompared sessions: they may be of several machines."""
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
    makers: Mapping[str, Regime] | None,
    options: dict[str, Any],
) -> Evaluation:
    """Train and rank, with a progress bar."""
    from ...models.evaluation import evaluate
    from ...models.splits import REGIMES as WITHIN

    training_set = next(iter(recipes.values())).training_set
    with progress_bar(settings, None) as progress:
        try:
            return evaluate(
                examples,
                recipes,
                regimes=options["regimes"] or REGIMES,
                makers=makers or WITHIN,
                pools=options["pools"] or POOLS,
                seeds=options["seeds"],
                held_out=options["held_out"],
                leave_one_out=options["leave_one_out"],
                baselines=_baselines(options["baselines"] or BASELINES, training_set),
                noise=noise,
                threads=options["threads"],
                on_step=progress.show,
            )
        except KeyboardInterrupt:
            raise interrupted("Interrupted; the evaluation was discarded") from None


def _baselines(names: Sequence[str], training_set: str) -> list[Baseline]:
    from ...models.baselines import baseline

    return [baseline(name, training_set) for name in dict.fromkeys(names) if name != "none"]


def _write(
    settings: Settings, evaluation: Evaluation, report: Path | None, plot: Path | None
) -> None:
    """Write the files of ``--report`` and ``--plot``."""
    if report is not None:
        import json

        from ...system.files import write_whole

        write_whole(report, json.dumps(evaluation.to_json(), indent=1) + "\n")
        settings.note(f"Wrote {report}")
    if plot is not None:
        from ...report.evaluation import plot as draw

        draw(evaluation, plot)
        settings.note(f"Wrote {plot}")

"""``tunedb models list``, ``show`` and ``drift``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from ...system import text
from ..card import share, show_model
from ..lazy import LazyGroup
from ..options import Settings, common_options, pass_settings, reading
from ..output import Column, output_options, print_fields, print_object, print_rows

if TYPE_CHECKING:
    from ...models.drift import Drift
    from ...results import StoredModel
    from ...storage.store import Store
    from ...storage.training import Trial

#: Keys of one model in JSON.
KEYS = ("id", "digest", "kind", "created_at", "size", "current", "card")


COLUMNS = (
    Column("id", "id", right=True),
    Column("digest"),
    Column("kind", "kind", fold=True),
    Column("features", "features", flexible=True),
    Column("version"),
    Column("target", "target", flexible=True, fold=True),
    Column("targets"),
    Column("programs", "programs", text.number, right=True),
    Column("trained_on", "trained on", text.number, right=True),
    Column("workloads", "workloads", text.number, right=True, least=105),
    Column("loss", "loss"),
    Column("training_set", "training set", least=145),
    Column("pairwise", "pairwise", share, right=True),
    Column("random", "random", share, right=True, least=115),
    Column("predictions", "predicted", text.number, right=True, least=165),
    Column("size", "size", text.size, right=True, least=90),
    Column("created_at", "created", least=155),
    Column("current", "current"),
)

DRIFT_COLUMNS = (
    Column("model", "model", right=True),
    Column("workload_id", "workload", right=True),
    Column("workload", "name", flexible=True),
    Column("family", "family", least=110),
    Column("target_id"),
    Column("target", "target", flexible=True, fold=True),
    Column("trials", "trials", text.number, right=True),
    Column("failed", "failed", text.number, right=True),
    Column("pairwise", "pairwise", share, right=True),
    Column("threshold", "alarm below", share, right=True),
    Column("drifted", "drift"),
)

TRIAL_COLUMNS = (
    Column("model", "model", right=True),
    Column("workload_id", "workload", right=True),
    Column("target_id", "target", right=True, fold=True),
    Column("program", "program", right=True),
    Column("record", "record", right=True),
    Column("score", "score", lambda value: f"{value:.4f}", right=True),
    Column("mean", "mean", text.seconds, right=True),
    Column("predicted_rank", "predicted", text.number, right=True),
    Column("measured_rank", "measured", text.number, right=True),
    Column("predicted_at"),
)

#: Kind of the models of tunedb advise.
ADVISOR = "advisor"

_NO_MODEL = "no model yet; train one: tunedb train"


@click.group(
    cls=LazyGroup,
    lazy={
        "list": ("models.registry", "list_models", "List the models."),
        "show": ("models.registry", "show", "Show the card of a model."),
        "drift": (
            "models.registry",
            "drift",
            "Compare predictions with measurements.",
        ),
        "card": (
            "models.prior_card",
            "card",
            "Show what a prior is worth for functions and machines that it does not have.",
        ),
    },
    name="models",
    invoke_without_command=True,
)
@output_options
@common_options
@pass_settings
def command(settings: Settings) -> None:
    """List the cost models, show their cards and check their predictions.

    Without a command, it lists the models.

    Example:
      tunedb models
      tunedb models show 3
      tunedb models drift
      tunedb models card
    """
    if click.get_current_context().invoked_subcommand is None:
        _list(settings)


@click.command(name="list")
@output_options
@common_options
@pass_settings
def list_models(settings: Settings) -> None:
    """List the models.

    "programs" counts the programs of the data, "trained on" those of the training set; "pairwise"
    is the share of pairs of programs in the right order on held-out workloads, where a random order
    reaches 0.5. A model that is not current was trained on other data than the database has now:
    tunedb train trains a current one. A model without size has only a card, and is retrained when
    needed.

    Example:
      tunedb models list
      tunedb models list --json | jq '.[] | select(.current) | .id'
    """
    _list(settings)


def _list(settings: Settings) -> None:
    from ...models.cards import VERSION
    from ...models.store import are_current

    with reading(settings) as store:
        models = store.models.all()
        predicted = store.training.predictions()
        names = _target_names(store)
        current = are_current(store, models)
        rows = [
            _row_without_card(model)
            if model.card.get("card") != VERSION
            else _summary(model, is_current, predicted.get(model.id, 0), names)
            for model, is_current in zip(models, current, strict=True)
        ]
    print_rows(settings, COLUMNS, rows, empty=_NO_MODEL)


def _row_without_card(stored: StoredModel) -> dict[str, Any]:
    """Return the row of a model whose card has another layout."""
    values = {
        "id": stored.id,
        "digest": stored.digest.hex(),
        "kind": stored.kind,
        "size": stored.size,
        "created_at": text.moment(stored.created_at),
        # The list does not compare an advisor's launches with those of the database.
        "current": None if stored.kind == ADVISOR else False,
    }
    return dict.fromkeys(column.key for column in COLUMNS) | values


def _summary(
    stored: StoredModel, current: bool, predicted: int, names: dict[str, str]
) -> dict[str, Any]:
    card = stored.card
    digests = card["data"]["target_digests"]
    figures = _figures(card)
    return {
        "id": stored.id,
        "digest": stored.digest.hex(),
        "kind": stored.kind,
        "features": card["features"]["name"],
        "version": card["features"]["version"],
        "target": ", ".join(names.get(digest, digest[:8]) for digest in digests),
        "targets": digests,
        "programs": card["data"]["programs"],
        "trained_on": card["learnt"]["programs"],
        "workloads": card["learnt"]["workloads"],
        "loss": card["recipe"]["loss"],
        "training_set": card["recipe"]["training_set"],
        "pairwise": figures.get("model", (None,))[0],
        "random": figures.get("random", (None,))[0],
        "predictions": predicted,
        "size": stored.size,
        "created_at": text.moment(stored.created_at),
        "current": current,
    }


def _figures(card: dict[str, Any]) -> dict[str, list[float | None]]:
    """Return mean and interval of the pairwise accuracy of the model and its baselines."""
    pools = (card["evaluation"] or {}).get("pools") or {}
    first: dict[str, Any] = next(iter(pools.values()), {"figures": {}})
    return {name: figures["pairwise"] for name, figures in first["figures"].items()}


def _target_names(store: Store) -> dict[str, str]:
    from ..choose import target_label

    targets = (summary.target for summary in store.targets.find())
    return {target.digest.hex(): target_label(target) for target in targets}


# ---------------------------------------------------------------------- one model


def find_model(store: Store, words: str) -> StoredModel:
    """Return the model with an id, or with the beginning of a digest.

    Raises
    ------
    NotFoundError
        No model matches.
    UsageError
        Several digests match.
    """
    from ...errors import NotFoundError, UsageError

    models = store.models.all()
    by_id = [model for model in models if words == str(model.id)]
    if by_id:
        return by_id[0]
    matches = [m for m in models if len(words) >= 4 and m.digest.hex().startswith(words)]
    if len(matches) > 1:
        raise UsageError(f"{words!r} matches {len(matches)} models; give an id: tunedb models")
    if not matches:
        ids = ", ".join(str(model.id) for model in models[-8:])
        advice = f"there are: {ids}; see: tunedb models" if models else _NO_MODEL
        raise NotFoundError(f"no model {words!r}; {advice}")
    return matches[0]


@click.command()
@click.argument("model")
@output_options
@common_options
@pass_settings
def show(settings: Settings, model: str) -> None:
    """Show the card of a model.

    MODEL is an id, or the beginning of a digest. The card shows the model's data and recipe, its
    ranking of held-out workloads compared with random order and the nearest neighbour, and the cost
    of training. The card of an advisor (tunedb advise train) shows its accuracy on held-out
    kernels. JSON holds the whole card.

    Example:
      tunedb models show 3
      tunedb models show 3 --json | jq .card.recipe
    """
    from ...advisor.learn.store import CARD
    from ...models import cards
    from ...models.store import is_current

    with reading(settings) as store:
        stored = find_model(store, model)
        if stored.card.get("card") == CARD:
            _show_advisor(settings, stored)
            return
        cards.check(stored)
        row = model_row(stored, current=is_current(store, stored))
    print_object(settings, tuple(map(Column, KEYS)), row, lambda: show_model(stored, whole=True))
    if not row["current"]:
        settings.note(
            "The records changed since the training, or belong to another database; "
            "retrain: tunedb train"
        )


def _show_advisor(settings: Settings, stored: StoredModel) -> None:
    from ..advise.train import advisor_fields, advisor_row

    row = model_row(stored, current=None)
    fields = advisor_fields(advisor_row(stored))
    print_object(settings, tuple(map(Column, KEYS)), row, lambda: print_fields(fields))
    for note in stored.card["notes"]:
        settings.warn(note)


def model_row(stored: StoredModel, *, current: bool | None) -> dict[str, Any]:
    """Return a model as JSON."""
    return {
        "id": stored.id,
        "digest": stored.digest.hex(),
        "kind": stored.kind,
        "created_at": text.moment(stored.created_at),
        "size": stored.size,
        "current": current,
        "card": stored.card,
    }


# ---------------------------------------------------------------------- predictions


@click.command()
@click.argument("model", required=False)
@click.option("--trials", is_flag=True, help="List each trial instead of each workload.")
@output_options
@common_options
@pass_settings
def drift(settings: Settings, model: str | None, trials: bool) -> None:
    """Compare predictions with measurements.

    A tuning run with tunedb's cost model stores its prediction before each measurement. The command
    ranks these predictions against the measured times, for each model, workload and target; failed
    programs count as slower than all others. A model drifted if the share of pairs in the right
    order ("pairwise") is below the 5th percentile of the model's card, with 16 trials or more.

    Example:
      tunedb models drift
      tunedb models drift 3 --trials --csv > trials.csv
      tunedb models drift --json | jq '.[] | select(.drifted)'
    """
    from ...models import drift as drift_

    empty = "no prediction yet; tuning with tunedb.plugins.metaschedule.CostModel stores them"
    with reading(settings) as store:
        id_ = None if model is None else find_model(store, model).id
        if trials:
            ranks = drift_.ranks(store.training.trials(id_))
            print_rows(settings, TRIAL_COLUMNS, map(_trial_row, ranks), empty=empty)
            return
        rows = list(_drift_rows(store, drift_.drift(store, id_)))
    print_rows(settings, DRIFT_COLUMNS, rows, empty=empty)
    drifted = sum(row["drifted"] is True for row in rows)
    if drifted:
        settings.note(f"{text.count(drifted, 'workload')} drifted; retrain: tunedb train")


def _drift_rows(store: Store, drifts: Sequence[Drift]) -> Iterator[dict[str, Any]]:
    from ..choose import target_label

    workloads = {workload.id: workload for workload in store.workloads.find()}
    for drift in drifts:
        workload = workloads[drift.workload_id]
        yield {
            "model": drift.model_id,
            "workload_id": drift.workload_id,
            "workload": workload.name,
            "family": workload.signature.family,
            "target_id": drift.target_id,
            "target": target_label(store.targets.get(drift.target_id)),
            "trials": drift.trials,
            "failed": drift.failed,
            "pairwise": drift.pairwise,
            "threshold": drift.threshold,
            "drifted": drift.drifted,
        }


def _trial_row(ranked: tuple[Trial, int, int | None]) -> dict[str, Any]:
    trial, predicted, measured = ranked
    return {
        "model": trial.model_id,
        "workload_id": trial.workload_id,
        "target_id": trial.target_id,
        "program": trial.program_id,
        "record": trial.record_id,
        "score": trial.score,
        "mean": trial.mean,
        "predicted_rank": predicted,
        "measured_rank": measured,
        "predicted_at": text.moment(trial.predicted_at),
    }

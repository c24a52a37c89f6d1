"""Failure classifiers in a database, stored as :mod:`tunedb.models.store` stores rankers."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UsageError
from ..results import NewModel, StoredModel
from . import cards
from .cards import TrainingCost
from .dataset import FAILURES, with_rows
from .failure_training import FittedFailures, check_recipe, fit_failures
from .failures import RECIPE, FailureModel
from .recipe import Recipe
from .scope import EVERYTHING, Scope
from .store import body_of, unusable
from .training_job import Step, TrainingJob

if TYPE_CHECKING:
    from ..storage.store import Store

KIND = "failures"

_log = logging.getLogger("tunedb")


@dataclass(frozen=True, slots=True, eq=False)
class TrainedFailures:
    """A failure classifier, and its row.

    Parameters
    ----------
    model : FailureModel
        Loaded classifier.
    stored : StoredModel
        Row of the model; ``card["failures"]`` has its evaluation
        (:class:`~tunedb.models.failure_training.FailureEvaluation`, or None).
    was_there : bool
        True if the database had a model of this digest before.
    trained : bool
        True if it was trained in this call.
    """

    model: FailureModel
    stored: StoredModel
    was_there: bool
    trained: bool


def train_failures(
    store: Store,
    recipe: Recipe = RECIPE,
    *,
    scope: Scope = EVERYTHING,
    threads: int | None = None,
    force: bool = False,
    on_step: Step | None = None,
) -> TrainedFailures:
    """Return the failure classifier of a recipe for a database, trained if it is not stored yet.

    Only the rows of the training set are read.

    Parameters
    ----------
    store : Store
        Store of the records and of the model.
    recipe : Recipe
        :data:`~tunedb.models.failures.RECIPE`, with any feature set.
    scope, threads, force, on_step
        As :func:`tunedb.models.store.train`.

    Raises
    ------
    NotFoundError
        No program was measured, or none has features; the message names the command to run.
    UsageError
        No program failed, or all did; or the recipe is not one of a classifier.
    PluginError
        XGBoost is not installed, or a part of the recipe does not load.
    """
    check_recipe(recipe)
    cost = TrainingCost()
    job = TrainingJob.prepared(store, recipe, scope, external=False, threads=threads, step=on_step)
    digest = cards.model_digest(KIND, recipe.to_json(), job.labels.digest, cards.versions())
    known = store.models.find(digest)
    reason = None if known is None else unusable(store, known)
    if reason is not None:
        _log.warning("%s; it is trained again", reason)
    elif known is not None and known.size is not None and not force:
        return TrainedFailures(load_failures(store, known, threads=threads), known, True, False)
    fitted = fit_failures(
        job.labels,
        recipe,
        threads=threads,
        read=partial(with_rows, store),
        on_step=partial(job.step, "training"),
    )
    body = fitted.model.to_bytes()
    new = NewModel(
        digest=digest,
        kind=KIND,
        parameters=recipe.to_json(),
        training_digest=job.labels.digest,
        card=_card(job, fitted, body) | {"cost": cost.to_json()},
        body=body,
    )
    id_ = store.models.add(new, replace=known is not None)
    stored = next(model for model in store.models.all(kind=KIND) if model.id == id_)
    return TrainedFailures(fitted.model, stored, known is not None, True)


def load_failures(store: Store, stored: StoredModel, *, threads: int | None = None) -> FailureModel:
    """Return a stored failure classifier.

    Raises
    ------
    UsageError
        The model is a ranker, another database wrote the row, a newer XGBoost wrote the boosters,
        or only the card is stored.
    IntegrityError
        The boosters do not match the card.
    """
    if stored.kind != KIND:
        raise UsageError(f"model {stored.id} has kind {stored.kind!r}, which predicts no failures")
    body = body_of(store, stored)
    if body is None:
        raise UsageError(
            f"model {stored.id}: only its card is stored; train it again: tunedb train --failures"
        )
    return FailureModel.from_bytes(body, threads=threads)


def _card(job: TrainingJob, fitted: FittedFailures, body: bytes) -> dict[str, Any]:
    """Return the card of the classifier."""
    card = cards.make_card(
        job.recipe,
        job.labels,
        fitted.chosen,
        kind=KIND,
        store_key=job.store.key,
        scope=job.scope.to_json(job.store),
        counts={"records": job.counts.records},
        training=_training_json(job, fitted),
        body=body,
    )
    return card | {"failures": _evaluation_json(fitted)}


def _training_json(job: TrainingJob, fitted: FittedFailures) -> dict[str, Any]:
    """Return facts of the training for the card, with the keys of a ranker's."""
    model, counts = fitted.model.model, job.counts
    return {
        "rounds": model.recipe.rounds,
        "members": model.recipe.members,
        "rows": model.rows,
        "programs": len(fitted.chosen),
        "left_out": {
            "programs without features": counts.without_features,
            "failures of infrastructure": counts.infrastructure,
            "programs outside the training set": fitted.left_out,
        },
        "seconds": fitted.seconds,
        "threads": fitted.threads,
    }


def _evaluation_json(fitted: FittedFailures) -> dict[str, Any] | None:
    """Return the evaluation on held-out workloads for the card, or None."""
    evaluation = fitted.evaluation
    if evaluation is None:
        return None
    areas, model = list(evaluation.aurocs.values()), fitted.model
    return {
        "auroc": evaluation.auroc,
        "auroc_p10": float(np.quantile(areas, 0.1)) if areas else None,
        "groups": len(areas),
        "brier": evaluation.brier,
        "brier_of_rate": evaluation.brier_of_rate,
        "avoided": evaluation.avoided,
        "calibration_error": evaluation.error,
        "reliability": [asdict(each) for each in evaluation.reliability],
        "elsewhere": [
            asdict(each) | {"target": each.target.hex()} for each in evaluation.elsewhere
        ],
        "rate": model.rate,
        # Costs of all kinds of failure, not only of the classes of the last booster.
        "seconds": {"ok": model.costs.ok}
        | {kind.value: model.costs.failed[FAILURES.index(kind)] for kind in model.shares},
    }

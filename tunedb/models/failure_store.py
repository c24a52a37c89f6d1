"""Classifiers of failures in a database, kept as :mod:`tunedb.models.store` keeps rankers."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UsageError
from ..results import NewModel, StoredModel
from . import cards
from .cards import Cost
from .dataset import FAILURES, with_rows
from .failures import RECIPE, FailureModel, FittedFailures, check_recipe, fit_failures
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
    """A classifier, and its row.

    Parameters
    ----------
    model : FailureModel
        Ready to tell probabilities.
    stored : StoredModel
        Its row; how well it does is in ``card["failures"]``
        (:class:`~tunedb.models.failures.Judgement`, or None).
    was_there : bool
        Whether the database knew it by its digest before.
    trained : bool
        Whether it was trained now.
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
    """Return the classifier that a recipe makes of a database, trained where it is not there yet.

    Only the rows of the training set are read.

    Parameters
    ----------
    store : Store
        The database; the model becomes a row of it.
    recipe : Recipe
        :data:`~tunedb.models.failures.RECIPE`, but for the feature set.
    scope, threads, force, on_step
        As :func:`tunedb.models.store.train`.

    Raises
    ------
    NotFoundError
        Nothing was measured, or nothing has features; the message says what to run.
    UsageError
        Nothing failed, or everything did; or a choice that is no classifier's.
    PluginError
        XGBoost is not installed, or a part of the recipe does not load.
    """
    check_recipe(recipe)
    cost = Cost()
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
    stored = next(one for one in store.models.all(kind=KIND) if one.id == id_)
    return TrainedFailures(fitted.model, stored, known is not None, True)


def load_failures(store: Store, stored: StoredModel, *, threads: int | None = None) -> FailureModel:
    """Return a classifier of this database.

    Raises
    ------
    UsageError
        The model ranks, another database wrote the row, or a newer XGBoost the boosters; or only
        its card is kept.
    IntegrityError
        The boosters are not those that the card names.
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
    """Return the classifier's card."""
    card = cards.make_card(
        job.recipe,
        job.labels,
        fitted.chosen,
        kind=KIND,
        store_key=job.store.key,
        scope=job.scope.to_json(job.store),
        counts={"records": job.counts.records},
        training=_course(job, fitted),
        body=body,
    )
    return card | {"failures": _judged(fitted)}


def _course(job: TrainingJob, fitted: FittedFailures) -> dict[str, Any]:
    """Return the course of the training, under the names of a ranker's."""
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


def _judged(fitted: FittedFailures) -> dict[str, Any] | None:
    """Return how well failures of held-out workloads were foreseen; None where that is unknown."""
    found = fitted.judgement
    if found is None:
        return None
    areas, model = list(found.aurocs.values()), fitted.model
    return {
        "auroc": found.auroc,
        "auroc_p10": float(np.quantile(areas, 0.1)) if areas else None,
        "groups": len(areas),
        "brier": found.brier,
        "brier_of_rate": found.brier_of_rate,
        "avoided": found.avoided,
        "rate": model.rate,
        # Which kind costs what: of all that failed, not only of those that are told apart.
        "seconds": {"ok": model.costs.ok}
        | {kind.value: model.costs.failed[FAILURES.index(kind)] for kind in model.shares},
    }

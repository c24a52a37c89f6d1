"""Models in a database: cached, keyed by their inputs, and trained if they are missing.

A model is a row: its card, and its boosters unless only the card is kept. Its digest covers
everything that determines the result of training (:func:`~tunedb.models.cards.model_digest`), so
the same recipe on the same data finds the stored model, and other data give another one. A database
uses only its own models: XGBoost does not validate the bytes that it reads, so a row that another
database wrote is refused, and retrained from records instead.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import identity
from ..errors import IntegrityError, TuneDBError, UsageError
from ..features import base
from ..results import NewModel, StoredModel
from . import cards
from .cards import TrainingCost
from .model import Model
from .recipe import Recipe
from .scope import EVERYTHING, Scope
from .training import select
from .training_job import Step, TrainingJob, check_recipe, digest_of_data

if TYPE_CHECKING:
    from ..features.base import NamedSet
    from ..storage.store import Store
    from .dataset import Dataset

#: Kind of the models that this module trains; those of kind ``failures`` predict failures.
KIND = "ranker"

#: Sets whose coverage is this share of the largest one's count as equally good.
_NEARLY_ALL = 0.95
_PREFERRED, _FALLBACK = "tunedb.scheduled", "steps"

_log = logging.getLogger("tunedb")


@dataclass(frozen=True, slots=True, eq=False)
class TrainedModel:
    """A model, and its row.

    Parameters
    ----------
    model : Model
        The loaded model.
    stored : StoredModel
        Its row, with the card.
    was_there : bool
        Whether the database had the digest before.
    trained : bool
        Whether it was trained now; a stored model is read, or retrained if only its card was kept.
    """

    model: Model
    stored: StoredModel
    was_there: bool
    trained: bool


def train(
    store: Store,
    recipe: Recipe,
    *,
    scope: Scope = EVERYTHING,
    threads: int | None = None,
    keep_body: bool = True,
    evaluate: bool = True,
    force: bool = False,
    external: bool | None = None,
    on_step: Step | None = None,
) -> TrainedModel:
    """Return the model of a recipe for a database, trained if it is not stored.

    Missing features of a set that needs no module are computed first, and the factors of sessions
    are estimated again (:func:`tunedb.models.sessions.update`).

    Parameters
    ----------
    store : Store
        The database; the model becomes a row of it.
    recipe : Recipe
        Recipe of the model.
    scope : Scope
        Selection of the records.
    threads : int or None
        Threads of XGBoost; the model does not depend on it.
    keep_body : bool
        Store the boosters too, also for a model with a card alone. Without them each use retrains
        the model.
    evaluate : bool
        Evaluate the recipe on held-out workloads, for the card.
    force : bool
        Train even if the model is stored, and replace its card and boosters, with a warning if the
        boosters differ from those of its card. A row that cannot be used (:func:`unusable`) is
        replaced without `force`.
    external : bool or None
        Stream feature rows from disk instead of holding them in memory; None does so above
        :data:`tunedb.models.training_job.IN_MEMORY_BYTES`. The model is the same, but it is not
        evaluated.
    on_step : callable or None
        Callback for progress.

    Returns
    -------
    TrainedModel

    Raises
    ------
    NotFoundError
        No program was measured, or none has features; the message names the command to run.
    UsageError
        No training data: one record, or failures only.
    PluginError
        XGBoost is not installed, or a part of the recipe does not load.
    """
    check_recipe(recipe)
    cost = TrainingCost()
    job = TrainingJob.prepared(
        store, recipe, scope, external=external, threads=threads, step=on_step
    )
    versions, parameters = cards.versions(), recipe.to_json()
    digest = cards.model_digest(KIND, parameters, job.labels.digest, versions)
    known = store.models.find(digest)
    reason = None if known is None else unusable(store, known)
    if reason is not None:
        _log.warning("%s; it is trained again", reason)
    elif known is not None and known.size is not None and not force:
        return TrainedModel(load_model(store, known, threads=threads), known, True, False)
    fitted = job.fit()
    body = fitted.model.to_bytes()
    if known is not None and reason is None:
        _compare(known, body)
        if not (force or keep_body):
            return TrainedModel(fitted.model, known, True, True)
    card = job.card(fitted, body, evaluation=job.evaluate() if evaluate else None)
    card["cost"] = cost.to_json()
    new = NewModel(
        digest=digest,
        kind=KIND,
        parameters=parameters,
        training_digest=job.labels.digest,
        card=card,
        body=body if keep_body else None,
    )
    id_ = store.models.add(new, replace=known is not None)
    stored = next(model for model in store.models.all(kind=KIND) if model.id == id_)
    return TrainedModel(fitted.model, stored, known is not None, True)


def load_model(store: Store, stored: StoredModel, *, threads: int | None = None) -> Model:
    """Return a model of this database, retrained if only its card is kept.

    Raises
    ------
    UsageError
        Another database wrote the row, a newer XGBoost wrote the boosters, the model predicts
        failures, or only its card is kept and the data have changed.
    IntegrityError
        The boosters do not match the card.
    """
    if stored.kind != KIND:
        raise UsageError(f"model {stored.id} has kind {stored.kind!r}, which ranks no programs")
    body = body_of(store, stored)
    if body is not None:
        return Model.from_bytes(body, threads=threads)
    recipe = Recipe.from_dict(stored.card["recipe"])
    scope = Scope.from_json(store, stored.card["scope"])
    job = TrainingJob.read(store, recipe, scope, threads=threads)
    if job.labels.digest != stored.training_digest:
        raise UsageError(
            f"model {stored.id}: only its card is stored, and its training data changed; "
            "train it again: tunedb train"
        )
    model = job.fit().model
    _compare(stored, model.to_bytes())
    return model


def training_dataset(store: Store, stored: StoredModel) -> Dataset:
    """Return today's training data of a model's recipe, without feature rows.

    Raises
    ------
    UsageError, NotFoundError
        As :func:`train`.
    """
    recipe = Recipe.from_dict(stored.card["recipe"])
    scope = Scope.from_json(store, stored.card["scope"])
    return select(TrainingJob.read(store, recipe, scope).labels, recipe)


def body_of(store: Store, stored: StoredModel) -> bytes | None:
    """Return the checked bytes of a model of any kind; None if only the card is kept.

    Raises
    ------
    UsageError
        Another database or version of tunedb wrote the row, or a newer XGBoost the boosters.
    ApprovalError
        The user has not approved the database: XGBoost does not validate its input.
    IntegrityError
        The bytes do not match the card.
    """
    card = stored.card
    cards.check(stored)
    store.require_approved()
    if card["store"] != store.key:
        raise UsageError(
            f"model {stored.id} was trained in another database and is not loaded here; "
            "train one on these records: tunedb train"
        )
    written_by, installed = card["versions"]["xgboost"], cards.versions()["xgboost"]
    if cards.numbers(written_by) > cards.numbers(installed):
        raise UsageError(
            f"model {stored.id} was trained with XGBoost {written_by}, but this is {installed}; "
            "rebuild it: tunedb train"
        )
    body = store.models.body(stored.id)
    if body is not None and cards.body_digest(body).hex() != card["body"]["digest"]:
        raise IntegrityError(
            f"model {stored.id}: its boosters do not match its card; "
            "train it again with the same options: tunedb train"
        )
    return body


def unusable(store: Store, stored: StoredModel) -> str | None:
    """Return the reason why :func:`body_of` refuses a row, in a few words; None if it does not."""
    try:
        body_of(store, stored)
    except (UsageError, IntegrityError) as error:
        return str(error).partition(";")[0]
    return None


def find(
    store: Store, *, feature_set: NamedSet | str, target_ids: Sequence[int] | None = None
) -> StoredModel | None:
    """Return the best model for some targets, or None.

    This database trained it on records of all of them, and it can be loaded. Current models
    (:func:`is_current`) come before others; then the number of training programs counts, the
    pairwise accuracy on held-out workloads, and the age.

    Parameters
    ----------
    store : Store
        The database.
    feature_set : NamedSet or str
        Feature set of the model; a set of another version is another set.
    target_ids : sequence of int or None
        Targets of its training programs; None for any.
    """
    chosen = base.feature_set(feature_set) if isinstance(feature_set, str) else feature_set
    targets = [store.targets.get(id_).digest for id_ in target_ids or ()]
    able = [
        model
        for model in store.models.all(kind=KIND)
        if _is_usable(store, model, chosen) and cards.covers(model, targets)
    ]
    if len(able) == 1 and able[0].size is not None:
        return able[0]  # without reading all records
    current = dict(zip((model.id for model in able), are_current(store, able), strict=True))

    def key(model: StoredModel) -> tuple[Any, ...]:
        score = cards.pairwise(model.card) or 0.0
        return current[model.id], model.card["data"]["programs"], score, model.id

    return max(
        (model for model in able if model.size is not None or current[model.id]),
        key=key,
        default=None,
    )


def is_current(store: Store, stored: StoredModel) -> bool:
    """Tell whether the training data of a model's recipe are the same today."""
    return _is_current(store, stored, {})


def are_current(store: Store, models: Sequence[StoredModel]) -> list[bool]:
    """Return :func:`is_current` of many models; common training data are read once."""
    now: dict[bytes, bytes | None] = {}
    return [_is_current(store, stored, now) for stored in models]


def choose_features(store: Store, scope: Scope = EVERYTHING) -> str:
    """Return the feature set that most measured programs have rows of.

    Sets that cover nearly as many count as equal, and ``tunedb.scheduled`` comes first among them.
    If no rows are stored it is ``steps``, which needs only the records.
    """
    workloads, targets = scope.workload_ids, scope.target_ids
    stored = {
        (feature_set.name, feature_set.version)
        for feature_set in store.features.sets()
        if feature_set.programs
    }
    covered = {
        name: store.features.coverage(feature_set, workload_ids=workloads, target_ids=targets).known
        for name, feature_set in base.feature_sets().items()
        if feature_set.columns and (name, feature_set.version) in stored
    }
    most = max(covered.values(), default=0)
    if not most:
        return _FALLBACK
    good = [name for name, number in covered.items() if number >= _NEARLY_ALL * most]
    return _PREFERRED if _PREFERRED in good else max(good, key=lambda name: covered[name])


def _compare(stored: StoredModel, body: bytes) -> None:
    """Warn if a retrained model differs from the stored one."""
    if cards.body_digest(body).hex() != stored.card["body"]["digest"]:
        _log.warning(
            "model %d: the retrained model differs in some bytes; "
            "another processor or library may round differently",
            stored.id,
        )


def _is_usable(store: Store, stored: StoredModel, feature_set: NamedSet) -> bool:
    """Tell whether this database wrote a card that this version of tunedb and XGBoost can use."""
    card = stored.card
    if card.get("card") != cards.VERSION or card["store"] != store.key:
        return False
    features, written_by = card["features"], card["versions"]["xgboost"]
    if cards.numbers(written_by) > cards.numbers(cards.versions()["xgboost"]):
        return False
    return (features["name"], features["version"]) == (feature_set.name, feature_set.version)


def _is_current(store: Store, stored: StoredModel, now: dict[bytes, bytes | None]) -> bool:
    """Tell whether a model is of today's data; `now` caches the digests of read data."""
    card = stored.card
    if card.get("card") != cards.VERSION or card["store"] != store.key:
        return False
    recipe = card["recipe"]
    read = (recipe["features"], recipe["label"], recipe["corrected"])
    key = identity.canonical_json([read, card["scope"]])
    if key not in now:
        scope = Scope.from_json(store, card["scope"])
        try:
            now[key] = digest_of_data(store, *read, scope)
        except TuneDBError:  # nothing is left, or the feature set is not installed any more
            now[key] = None
    return now[key] == stored.training_digest

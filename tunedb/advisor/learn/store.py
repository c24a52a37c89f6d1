"""Advisors in a database: rows of table ``model`` of kind ``advisor``, whose body is JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import __version__, identity
from ...errors import IntegrityError, NotFoundError, UsageError
from ...models.cards import body_digest, model_digest
from ...results import NewModel, StoredModel
from .. import labels as labels_module
from ..labels import NONE, to_codes
from ..loading import load
from ..observations import LABELS, Labels, Observation
from .model import Advisor
from .training import AdvisorTraining, Step, train

if TYPE_CHECKING:
    from ...storage.store import Store

KIND = "advisor"

#: Layout in the cards of advisors; those of cost models have a number.
CARD = "advisor 1"


@dataclass(frozen=True, slots=True, eq=False)
class TrainedAdvisor:
    """An advisor, and its row.

    Parameters
    ----------
    training : AdvisorTraining
        Result of the training.
    stored : StoredModel
        Its row.
    was_there : bool
        Whether the database had an advisor of the same data and choices.
    """

    training: AdvisorTraining
    stored: StoredModel
    was_there: bool


def label(observations: Sequence[Observation], method: str, tolerance: float) -> Labels:
    """Return the labels of a method of :mod:`tunedb.advisor.labels`.

    Raises
    ------
    UsageError
        The method does not exist, or the tolerance is invalid.
    """
    if method not in labels_module.METHODS:
        known = ", ".join(labels_module.METHODS)
        raise UsageError(f"no labels {method!r}; there are: {known}")
    if not 0 <= tolerance < 1:
        raise UsageError(f"a tolerance of {tolerance}; expected a number from 0 to 1: --tolerance")
    if method == "paper":
        return labels_module.paper(observations)
    return labels_module.slice_best(observations, tolerance=tolerance)


def train_advisor(
    store: Store,
    *,
    labels: str = "slice-best",
    tolerance: float = 0.05,
    learner: str = "auto",
    inputs: str = "ratios",
    on_step: Step | None = None,
) -> TrainedAdvisor:
    """Train an advisor on the launches of a database, and store it there.

    Parameters
    ----------
    store : Store
    labels : {"slice-best", "paper"}
    tolerance : float
        Of ``slice-best``.
    learner, inputs : str
        As :func:`tunedb.advisor.learn.training.train`.
    on_step : callable, optional
        Called with the description of each step.

    Raises
    ------
    UsageError
        There are too few training launches.
    PluginError
        scikit-learn is not installed.
    """
    observations = load(store)
    given = label(observations, labels, tolerance)
    training = train(observations, given, learner=learner, inputs=inputs, on_step=on_step)
    body = training.advisor.to_bytes()
    choices = {"labels": labels, "tolerance": tolerance, "learner": learner, "inputs": inputs}
    parameters = identity.canonical_json(choices | {"scikit-learn": _version("scikit-learn")})
    versions = {"numpy": np.__version__, "tunedb": __version__, "xgboost": ""}
    digest = model_digest(KIND, parameters, training_digest(observations, given), versions)
    known = store.models.find(digest)
    new = NewModel(
        digest=digest,
        kind=KIND,
        parameters=parameters,
        training_digest=training_digest(observations, given),
        card=_card(training, observations, given, choices, versions, body),
        body=body,
    )
    id_ = store.models.add(new, replace=known is not None)
    stored = next(one for one in store.models.all(kind=KIND) if one.id == id_)
    return TrainedAdvisor(training, stored, known is not None)


def training_digest(observations: Sequence[Observation], labels: Labels) -> bytes:
    """Return the digest of labelled observations, without local numbers."""
    numbers = [
        value
        for one, code in zip(observations, to_codes(labels).tolist(), strict=True)
        for value in (one.seconds, float(one.threads), float(code), *one.counters.values())
    ]
    return identity.digest(
        "advisor_training",
        b"".join(one.slice for one in observations),
        identity.pack_floats(numbers),
    )


def find(store: Store, id_: int | None = None) -> tuple[Advisor, StoredModel]:
    """Return the advisor of that id, or the newest one.

    Raises
    ------
    NotFoundError
        There is no such advisor.
    IntegrityError
        Its bytes do not match its card.
    FormatError
        The bytes are no advisor of this layout.
    """
    known = [one for one in store.models.all(kind=KIND) if id_ in (None, one.id)]
    if not known:
        which = "no advisor yet" if id_ is None else f"model {id_} is not an advisor, or not there"
        raise NotFoundError(f"{which}; make one: tunedb advise train")
    stored = max(known, key=lambda one: (one.created_at, one.id))
    body = store.models.body(stored.id)
    if body is None or body_digest(body).hex() != stored.card["body"]["digest"]:
        raise IntegrityError(
            f"model {stored.id}: its body does not match its card; "
            "train it again: tunedb advise train"
        )
    return Advisor.from_bytes(body), stored


def _card(
    training: AdvisorTraining,
    observations: Sequence[Observation],
    labels: Labels,
    choices: dict[str, Any],
    versions: dict[str, str],
    body: bytes,
) -> dict[str, Any]:
    codes = to_codes(labels)
    return {
        "card": CARD,
        "kind": KIND,
        "recipe": choices,
        "learner": training.advisor.learner,
        "kernels": list(training.kernels),
        "launches": len(observations),
        "unlabelled": int((codes == NONE).sum()),
        "labels": {str(one): int((codes == i).sum()) for i, one in enumerate(LABELS)},
        "learnt": training.rows,
        "balanced_accuracy": training.marks,
        "margins": {
            "measured": training.advisor.measured.to_json()["least"],
            "learnt": training.advisor.learnt.to_json()["least"],
        },
        "notes": list(training.notes),
        "versions": versions,
        "body": {"digest": body_digest(body).hex(), "bytes": len(body)},
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""

"""Model cards: plain data about a model, stored beside it as JSON.

A card names the recipe, the training data and the evaluation of a model, and makes it
reproducible: equal recipes, training data and versions give equal models (:func:`model_digest`).
Cards are data; ``tunedb models`` formats them for people.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import __version__, identity
from ..errors import FormatError, UsageError
from ..json_checks import parse_json
from ._xgboost import import_xgboost
from .dataset import FAILURES

if TYPE_CHECKING:
    from ..results import StoredModel
    from .dataset import Dataset
    from .recipe import Recipe

#: Version of the layout of cards.
VERSION = 1

#: Packages whose versions decide the result of training.
DECIDING = ("numpy", "tunedb", "xgboost")

#: Maximum number of workloads and of targets that a card names; further ones are only counted.
MOST_NAMED = 1_000

#: Points of the accuracy curve that a card keeps.
_MOST_POINTS = 20

_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


class TrainingCost:
    """A stopwatch for the time and memory of a training; starts when constructed."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._cpu = time.process_time()

    def to_json(self) -> dict[str, Any]:
        """Return seconds, CPU seconds of all threads, and the peak memory in bytes."""
        return {
            "seconds": time.perf_counter() - self._started,
            "cpu_seconds": time.process_time() - self._cpu,
            "peak_bytes": _peak(),
        }


def _peak() -> int | None:
    """Return the peak memory of this process in bytes, or None if the system has no figure."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Kilobytes, except on macOS.
    return peak if sys.platform == "darwin" else 1024 * peak


def versions() -> dict[str, str]:
    """Return the versions of packages for a card, by name."""
    versions_ = {
        "numpy": np.__version__,
        "python": ".".join(map(str, sys.version_info[:3])),
        "tunedb": __version__,
        "xgboost": import_xgboost().__version__,
    }
    with suppress(metadata.PackageNotFoundError):
        versions_["tvm"] = metadata.version("apache-tvm")
    return versions_


def numbers(version: str) -> tuple[int, ...]:
    """Return a version as comparable numbers."""
    return tuple(int(field) for field in version.split(".")[:3] if field.isdigit())


def model_digest(
    kind: str,
    parameters: bytes,
    training_digest: bytes,
    versions_: Mapping[str, str],
) -> bytes:
    """Return the digest of everything that decides the result of training.

    Parameters
    ----------
    kind : str
        ``ranker`` or ``failures``.
    parameters : bytes
        Canonical JSON of the recipe.
    training_digest : bytes
        :attr:`tunedb.models.dataset.Dataset.digest`.
    versions_ : mapping
        Versions of packages; only those of :data:`DECIDING` enter the digest.
    """
    deciding = {name: versions_[name] for name in DECIDING}
    fields = (kind.encode(), parameters, training_digest)
    return identity.digest("model", *fields, identity.canonical_json(deciding))


def body_digest(body: bytes) -> bytes:
    """Return the digest of a model's bytes, as in its card."""
    return identity.digest("body", body)


def digest_of_row(
    kind: str, parameters: bytes, training_digest: bytes, card: bytes, body: bytes | None
) -> bytes:
    """Return the digest that a row of table ``model`` must have, from its other columns.

    Raises
    ------
    FormatError
        The card is malformed, or does not match the body.
    """
    values = parse_json(card)
    parse_json(parameters)
    if not isinstance(values, dict):
        raise FormatError("its card is not an object")
    if body is not None and body_digest(body).hex() != values["body"]["digest"]:
        raise FormatError("its body does not match its card")
    return model_digest(kind, parameters, training_digest, values["versions"])


def make_card(
    recipe: Recipe,
    examples: Dataset,
    training_set: Dataset,
    *,
    kind: str = "ranker",
    store_key: str,
    scope: Mapping[str, Any] | None = None,
    counts: Mapping[str, Any] | None = None,
    training: Mapping[str, Any] | None = None,
    evaluation: Mapping[str, Any] | None = None,
    cost: Mapping[str, Any] | None = None,
    body: bytes,
) -> dict[str, Any]:
    """Return the card of a model.

    Parameters
    ----------
    recipe : Recipe
        Recipe of the model.
    examples : Dataset
        All examples that were read, with or without rows.
    training_set : Dataset
        Examples that the recipe selected for training.
    kind : str
        ``ranker`` or ``failures``.
    store_key : str
        Key of the database of the records; only this database may load the model.
    scope : mapping or None
        :meth:`Scope.to_json`; None for everything.
    counts : mapping or None
        Further counts of the data: records, and records left out by reason.
    training : mapping or None
        Facts of the training (:func:`tunedb.models.training_job.training_json`).
    evaluation : mapping or None
        Evaluation (:func:`tunedb.models.training_job.quick_evaluation`).
    cost : mapping or None
        :meth:`TrainingCost.to_json`.
    body : bytes
        The model (``Model.to_bytes``), stored or not.
    """
    return {
        "card": VERSION,
        "kind": kind,
        "store": store_key,
        "recipe": asdict(recipe),
        "features": {
            "name": examples.feature_set,
            "version": examples.version,
            "columns": len(examples.columns),
        },
        "scope": scope or {"workloads": None, "targets": None, "sources": None},
        "data": describe_data(examples) | {"digest": examples.digest.hex(), **(counts or {})},
        "learnt": describe_data(training_set),
        "training": dict(training or {}),
        "versions": versions(),
        "evaluation": None if evaluation is None else dict(evaluation),
        "drift": {"pairwise_p5": None if evaluation is None else evaluation["pairwise_p5"]},
        "cost": dict(cost or {}),
        "body": {"digest": body_digest(body).hex(), "bytes": len(body)},
    }


def check(stored: StoredModel) -> None:
    """Raise UsageError if the card has another layout."""
    layout = stored.card.get("card")
    if layout != VERSION:
        raise UsageError(
            f"model {stored.id}: its card has layout {layout}, but this tunedb reads {VERSION}; "
            "train it again: tunedb train"
        )


def describe_data(examples: Dataset) -> dict[str, Any]:
    """Return the counts, throughput quantiles and failures of a dataset, for a card."""
    groups = [examples.groups[i] for i in np.unique(examples.group)]
    workloads = sorted({group.workload for group in groups})
    targets = {group.target: group.target_id for group in groups}
    numbers = np.bincount(examples.failures, minlength=len(FAILURES))
    worked = examples.throughput[~examples.failed]
    return {
        "programs": len(examples),
        "rows": int(examples.sizes.sum()),
        "workloads": len(workloads),
        "targets": len(targets),
        "machines": len({(group.target, group.machine) for group in groups}),
        "failed": {
            str(kind): int(number)
            for kind, number in zip(FAILURES, numbers, strict=True)
            if kind is not None and number
        },
        # 10th to 90th percentile; 1 is the best program of a group.
        "throughput": np.quantile(worked, _QUANTILES).tolist() if len(worked) else None,
        "target_digests": [digest.hex() for digest in sorted(targets)][:MOST_NAMED],
        "workload_digests": [examples.workloads[i].digest.hex() for i in workloads][:MOST_NAMED],
    }


def covers(stored: StoredModel, targets: Sequence[bytes]) -> bool:
    """Return whether a model was trained on records of all these targets (digests)."""
    trained_on = set(target_digests(stored))
    return all(digest.hex() in trained_on for digest in targets)


def target_digests(stored: StoredModel) -> Sequence[str]:
    """Return the targets that a model was trained on, as hexadecimal digests."""
    digests: Sequence[str] = stored.card["learnt"]["target_digests"]
    return digests


def pairwise(card: Mapping[str, Any]) -> float | None:
    """Return the pairwise accuracy on held-out workloads; None without an evaluation."""
    evaluation = card["evaluation"]
    accuracy: float | None = None if evaluation is None else evaluation["pairwise"]
    return accuracy


def thinned(history: Sequence[float]) -> list[list[float]]:
    """Return ``[round, figure]`` of at most 20 rounds, the first and the last included."""
    if not history:
        return []
    places = np.unique(np.linspace(0, len(history) - 1, _MOST_POINTS).round().astype(int))
    return [[int(i), float(history[i])] for i in places]

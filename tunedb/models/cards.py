"""What people should know about a model: plain data, stored beside it as JSON.

A card answers from what a model was made and how well it does, and lets anyone make it again:
equal recipes, training data and versions give equal models (:func:`model_digest`). Cards are data;
what people see of them is made by ``tunedb models``.
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

#: Layout of cards.
VERSION = 1

#: Versions that decide what comes out of training.
DECIDING = ("numpy", "tunedb", "xgboost")

#: Workloads and targets that a card names; the others are counted.
MOST_NAMED = 1_000

#: Points of the loss that a card keeps of a training's course.
_MOST_POINTS = 20

_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


class Cost:
    """What making a model takes: begun when it is made, told by :meth:`to_json`."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._cpu = time.process_time()

    def to_json(self) -> dict[str, Any]:
        """Return seconds, processor seconds of all threads, and the process's peak in bytes."""
        return {
            "seconds": time.perf_counter() - self._started,
            "cpu_seconds": time.process_time() - self._cpu,
            "peak_bytes": _peak(),
        }


def _peak() -> int | None:
    """Return the most memory that this process has held; None where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Kilobytes but on macOS.
    return peak if sys.platform == "darwin" else 1024 * peak


def versions() -> dict[str, str]:
    """Return the versions that a card names."""
    found = {
        "numpy": np.__version__,
        "python": ".".join(map(str, sys.version_info[:3])),
        "tunedb": __version__,
        "xgboost": import_xgboost().__version__,
    }
    with suppress(metadata.PackageNotFoundError):
        found["tvm"] = metadata.version("apache-tvm")
    return found


def numbers(version: str) -> tuple[int, ...]:
    """Return a version as numbers that can be compared."""
    return tuple(int(part) for part in version.split(".")[:3] if part.isdigit())


def model_digest(
    kind: str,
    parameters: bytes,
    training_digest: bytes,
    versions_: Mapping[str, str],
) -> bytes:
    """Return the identity of a model: of all that decides what training makes.

    Parameters
    ----------
    kind : str
        ``ranker`` or ``failures``.
    parameters : bytes
        Canonical JSON of its recipe.
    training_digest : bytes
        :attr:`tunedb.models.dataset.Dataset.digest`.
    versions_ : mapping
        Those that :data:`DECIDING` names count.
    """
    deciding = {name: versions_[name] for name in DECIDING}
    fields = (kind.encode(), parameters, training_digest)
    return identity.digest("model", *fields, identity.canonical_json(deciding))


def body_digest(body: bytes) -> bytes:
    """Return the digest by which a card knows the model's bytes."""
    return identity.digest("body", body)


def digest_of_row(
    kind: str, parameters: bytes, training_digest: bytes, card: bytes, body: bytes | None
) -> bytes:
    """Return the digest that a row of table ``model`` must have, from all its other columns.

    Raises
    ------
    FormatError
        The card is none, or says something else of the body.
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
    learnt: Dataset,
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
        How it was made.
    examples : Dataset
        All that was read, with or without rows.
    learnt : Dataset
        What the recipe chose of it.
    kind : str
        ``ranker`` or ``failures``.
    store_key : str
        Which database it was made from: no other one may use it.
    scope : mapping or None
        :meth:`Scope.to_json`; None for everything.
    counts : mapping or None
        Further counts of the data: records, and what was left out.
    training : mapping or None
        Its course (:func:`course`).
    evaluation : mapping or None
        How well it does (:func:`tunedb.models.training_job.judge`).
    cost : mapping or None
        :meth:`Cost.to_json`.
    body : bytes
        The model (``Model.to_bytes``), whether or not it is stored.
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
        "learnt": describe_data(learnt),
        "training": dict(training or {}),
        "versions": versions(),
        "evaluation": None if evaluation is None else dict(evaluation),
        "drift": {"pairwise_p5": None if evaluation is None else evaluation["pairwise_p5"]},
        "cost": dict(cost or {}),
        "body": {"digest": body_digest(body).hex(), "bytes": len(body)},
    }


def check(stored: StoredModel) -> None:
    """Raise UsageError for a card of another layout."""
    layout = stored.card.get("card")
    if layout != VERSION:
        raise UsageError(
            f"model {stored.id}: its card has layout {layout}, but this tunedb reads {VERSION}; "
            "train it again: tunedb train"
        )


def describe_data(examples: Dataset) -> dict[str, Any]:
    """Return how many programs there are, of what, how fast, and what failed."""
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
        # 10th to 90th percentile, of the best of its workload.
        "throughput": np.quantile(worked, _QUANTILES).tolist() if len(worked) else None,
        "target_digests": [digest.hex() for digest in sorted(targets)][:MOST_NAMED],
        "workload_digests": [examples.workloads[i].digest.hex() for i in workloads][:MOST_NAMED],
    }


def covers(stored: StoredModel, targets: Sequence[bytes]) -> bool:
    """Tell whether a model has learnt from records of all of these targets (their digests)."""
    known = set(stored.card["learnt"]["target_digests"])
    return all(digest.hex() in known for digest in targets)


def pairwise(card: Mapping[str, Any]) -> float | None:
    """Return the pairwise accuracy on held-out workloads; None for a model that was not judged."""
    judged = card["evaluation"]
    found: float | None = None if judged is None else judged["pairwise"]
    return found


def thinned(history: Sequence[float]) -> list[list[float]]:
    """Return ``[round, figure]`` of some rounds, the first and the last among them."""
    if not history:
        return []
    places = np.unique(np.linspace(0, len(history) - 1, _MOST_POINTS).round().astype(int))
    return [[int(i), float(history[i])] for i in places]

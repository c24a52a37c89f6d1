"""A prior without the workloads that a benchmark tunes, and its models."""

from __future__ import annotations

from collections.abc import Iterable, Set
from pathlib import Path
from typing import Any

from tunedb.exchange.prior import write_prior
from tunedb.storage.exchange_types import Selection
from tunedb.storage.store import Store


def kind_of(signature: Any) -> tuple[Any, ...]:
    """Return the family and the shapes of a workload."""
    return signature.family, tuple(tuple(shape) for _, shape in signature.arguments or ())


def kinds_of(functions: Iterable[Any]) -> set[tuple[Any, ...]]:
    """Return the families and shapes of modules of one function each."""
    from tunedb.plugins.metaschedule.modules import to_workload
    from tunedb.programs.workload_info import signature_of

    return {kind_of(signature_of(to_workload(function))) for function in functions}


def write_without(kinds: Set[tuple[Any, ...]], database: Path, file: Path) -> Path:
    """Write a prior of a database without workloads of some families and shapes; return the file.

    Raises
    ------
    SystemExit
        No workload is left.
    """
    with Store(database, read_only=True) as store:
        known = store.workloads.find()
    kept = [one for one in known if kind_of(one.signature) not in kinds]
    print(f"prior: {len(known) - len(kept)} of {len(known)} workloads left out")
    if not kept:
        raise SystemExit(f"{database}: no other workloads")
    selection = Selection(workloads=tuple(one.digest.hex() for one in kept))
    write_prior(database, file, selection, "none")
    return file


def use_models_of(prior: Path) -> None:
    """Train the models of a prior, once, and let this process use them as those of the package."""
    from tunedb.models import prior_models
    from tunedb.plugins.metaschedule.search.prior_training import trained_models

    file = prior.with_suffix(".models")
    if not file.exists():
        prior_models.write(dict(trained_models(prior)), prior, file)
    prior_models.FILE = file

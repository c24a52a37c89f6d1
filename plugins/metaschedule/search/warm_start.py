"""Where a search begins: good programs of similar workloads, and what their tiles were like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2
from typing import Any

from ....errors import FormatError
from ....programs.metaschedule.upgrade import upgrade
from ....programs.workload_info import signature_of
from ....search.adaptation import adapt, nearest_template
from ....search.draft import Draft
from ....search.prior import TilePrior, tiles_of
from ....storage.answers import Donor
from ....storage.workloads import Neighbour
from .. import modules
from ..database.handle import Handle
from ..database.layers import donors_of

#: Workloads that are asked, and programs of each that a prior learns from.
_NEIGHBOURS = 16
_PROGRAMS = 32

#: Share of a donor's decisions without which it counts as another kind of program.
_LEAST_KEPT = 0.5

#: What puts a donor off, in octaves of distance: each better one of its workload, so that several
#: workloads have a say early, and the share of its decisions that found no place.
_PER_RANK = 0.25
_PER_LOSS = 4.0


@dataclass(frozen=True, slots=True)
class Warm:
    """A program for a new workload, made of one of a similar workload.

    Parameters
    ----------
    draft : Draft
        The steps; what the donor does not say is undecided.
    donor : bytes
        Digest of the stored program that it was made of.
    distance : float
        Of the donor's workload and target, in octaves.
    seconds : float
        The donor's run time, of its own workload.
    kept : float
        Share of the decisions that were taken over.
    """

    draft: Draft
    donor: bytes
    distance: float
    seconds: float
    kept: float


def warm_drafts(
    handle: Handle, mod: Any, target: Any, templates: Sequence[Draft], most: int
) -> list[Warm]:
    """Return good programs of similar workloads, made to fit a module; the most hopeful first.

    Donors are the best programs of the nearest workloads of the operator family, and of the module
    itself for other targets of the kind; those of the layers too. Each is put on the template that
    is most like it. What comes first: near workloads, fast programs, and those that found a place
    for all decisions; the second best of a workload counts as a quarter of an octave farther than
    the best, and so on.

    Parameters
    ----------
    handle : Handle
        Of the database.
    mod : IRModule
        The module that is tuned; it need not be stored.
    target : tvm Target
        Where it is to run.
    templates : sequence of Draft
        Its design spaces, with the decisions that TVM drew when it made them.
    most : int
        How many at most.

    Returns
    -------
    list of Warm
        All different.
    """
    ranked = []
    for neighbour, donors in _relatives(handle, mod, target, most):
        for rank, donor in enumerate(donors):
            warm = _warm(neighbour, donor, templates)
            if warm is not None and warm.kept >= _LEAST_KEPT:
                slower = log2(max(donor.seconds / donors[0].seconds, 1.0))
                loss = _PER_LOSS * (1 - warm.kept)
                ranked.append((neighbour.far + slower + _PER_RANK * rank + loss, warm))
    ranked.sort(key=lambda pair: pair[0])
    found: dict[bytes, Warm] = {}
    for _, warm in ranked:
        found.setdefault(warm.draft.key, warm)
    return list(found.values())[:most]


def tile_prior(handle: Handle, mod: Any, target: Any) -> TilePrior | None:
    """Return how the tiles of good programs of similar workloads are distributed.

    Those of the module itself count, too. A program counts by the square of its throughput,
    relative to the best of its workload, and half for each octave of distance.

    Parameters
    ----------
    handle : Handle
        Of the database.
    mod : IRModule
        The module that is tuned.
    target : tvm Target
        Where it is to run.

    Returns
    -------
    TilePrior or None
        None where no such program has tiles.
    """
    drafts, weights = [], []
    relatives = _relatives(handle, mod, target, _PROGRAMS, itself=True)
    for neighbour, donors in relatives:
        for donor in donors:
            draft = _draft(donor)
            if draft is not None and any(tiles_of(draft)):
                drafts.append(draft)
                relative = donors[0].seconds / donor.seconds
                weights.append(relative**2 * 0.5**neighbour.far)
    return TilePrior.of(drafts, weights) if drafts else None


def _relatives(
    handle: Handle, mod: Any, target: Any, most: int, *, itself: bool = False
) -> list[tuple[Neighbour, list[Donor]]]:
    """Return the nearest workloads with their best programs, and the module itself if asked.

    Of layers, the module itself always: its records are no trials that the search would repeat.
    """
    store = handle.store
    with handle.lock:
        known = handle.workloads.find(mod)
        same = [] if known is None else handle.workloads.equal_ids(known)
        signature = signature_of(modules.to_workload(mod))
        stored = handle.targets.stored(target)
        near = store.workloads.neighbours(signature, stored, _NEIGHBOURS, exclude=same)
        here = store.targets.id_of(stored.digest)
        if itself and here is not None:
            near = [*(Neighbour(one, (here,), 0.0, "exact") for one in same), *near]
        found = [(one, donors_of(store, one, most, is_layer=False)) for one in near]
        for layer in handle.layers:
            found += layer.relatives(signature, stored, _NEIGHBOURS, most)
        return found


def _draft(donor: Donor) -> Draft | None:
    """Return a stored program in today's instructions, None where they cannot say it."""
    try:
        return Draft.of(upgrade(donor.trace))
    except FormatError:
        return None


def _warm(neighbour: Neighbour, donor: Donor, templates: Sequence[Draft]) -> Warm | None:
    draft = _draft(donor)
    template = None if draft is None else nearest_template(draft, templates)
    if draft is None or template is None:
        return None
    adapted = adapt(draft, template)
    if adapted is None:
        return None
    return Warm(adapted.draft, donor.digest, neighbour.far, donor.seconds, adapted.kept)

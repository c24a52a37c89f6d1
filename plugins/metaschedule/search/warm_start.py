"""Warm start: good programs of similar workloads, adapted, and the distribution of their tiles."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log2
from typing import Any, Self

from ....errors import FormatError
from ....programs.autotvm import join_knobs
from ....programs.metaschedule.upgrade import upgrade
from ....programs.workload_info import signature_of
from ....records import Signature, Target, WorkloadFormat
from ....search.adaptation import adapt, nearest_template
from ....search.draft import Draft
from ....search.knobs import KnobDraft, knob_draft
from ....search.prior import TilePrior, tiles_of
from ....storage.answers import Donor
from ....storage.workloads import TARGET_DISTANCE, Neighbour
from .. import modules
from ..database.handle import Handle
from ..database.layers import donors_of

_log = logging.getLogger("tunedb")

#: Nearest workloads, and programs of each, in a prior.
_NEIGHBOURS = 16
_PROGRAMS = 32

#: Least share of kept decisions of a donor; with fewer it is another kind of program.
_LEAST_KEPT = 0.5

#: Penalties of a donor in octaves of distance: for each better donor of its workload, so that
#: several workloads come early, and for the share of its lost decisions.
_PER_RANK = 0.25
_PER_LOSS = 4.0
#: The same for a configuration of AutoTVM, and most workloads of AutoTVM that give one.
_PER_TOOL = 1.0
_CONFIGURED = 64
#: Most configurations of such a workload that are tried.
_CONFIGURATIONS = 4


@dataclass(frozen=True, slots=True)
class WarmDraft:
    """A program for a new workload, made from one of a similar workload.

    Parameters
    ----------
    draft : Draft
        The program; TVM draws decisions that the donor lacks.
    donor : bytes
        Digest of the stored program that was adapted.
    distance : float
        Distance of the donor's workload and target, in octaves.
    seconds : float
        Run time of the donor on its own workload.
    kept : float
        Share of kept decisions.
    """

    draft: Draft
    donor: bytes
    distance: float
    seconds: float
    kept: float


def warm_drafts(
    handle: Handle, mod: Any, target: Any, templates: Sequence[Draft], most: int
) -> list[WarmDraft]:
    """Return good programs of similar workloads, adapted to a module; the most promising first.

    Donors are the best programs of the nearest workloads of the operator family, and of the module
    itself for other targets of the kind; those of the layers too. Each is adapted to the most
    similar template. Near workloads, fast programs and donors that kept all decisions come first;
    the second best of a workload counts as a quarter of an octave farther than the best, and so on.
    AutoTVM's best configurations of the family are donors, too (:mod:`tunedb.search.knobs`).

    Parameters
    ----------
    handle : Handle
        Handle of the database.
    mod : IRModule
        Module that is tuned; it need not be stored.
    target : tvm Target
        Target of the tuning run.
    templates : sequence of Draft
        Design spaces of the module, with TVM's initial decisions.
    most : int
        Most programs to return.

    Returns
    -------
    list of WarmDraft
        All different.
    """
    ranked = []
    asked = _Question.of(handle, mod, target)
    for neighbour, donors in _relatives(handle, asked, most):
        for rank, donor in enumerate(donors):
            warm = _adapted(neighbour, donor, templates)
            if warm is not None and warm.kept >= _LEAST_KEPT:
                slower = log2(max(donor.seconds / donors[0].seconds, 1.0))
                loss = _PER_LOSS * (1 - warm.kept)
                ranked.append((neighbour.far + slower + _PER_RANK * rank + loss, warm))
    ranked += [(warm.distance, warm) for warm in _configured(handle, asked, templates)]
    ranked.sort(key=lambda pair: pair[0])
    by_key: dict[bytes, WarmDraft] = {}
    for _, warm in ranked:
        by_key.setdefault(warm.draft.key, warm)
    return list(by_key.values())[:most]


@dataclass(frozen=True, slots=True)
class _Question:
    """A module and a target as the store compares them with others."""

    mod: Any
    signature: Signature
    target: Target

    @classmethod
    def of(cls, handle: Handle, mod: Any, target: Any) -> Self:
        with handle.lock:
            stored = handle.targets.stored(target)
        return cls(mod, signature_of(modules.to_workload(mod)), stored)


def _configured(
    handle: Handle, asked: _Question, templates: Sequence[Draft]
) -> Iterator[WarmDraft]:
    """Yield the best configurations of AutoTVM's workloads of the family, on a template."""
    store = handle.store
    with handle.lock:
        for neighbour in store.workloads.neighbours(
            asked.signature, asked.target, _CONFIGURED, formats=(WorkloadFormat.AUTOTVM,)
        ):
            task = store.workloads.get(neighbour.workload_id).name
            # The best one may be of an algorithm with other loops.
            for donor in donors_of(store, neighbour, _CONFIGURATIONS, is_layer=False):
                found = _knob_draft(donor, task, str(asked.signature.family), templates)
                if found is not None:
                    # Tiles of extents are compared, not arguments, whose layout may differ.
                    far = found.distance + TARGET_DISTANCE[neighbour.level] + _PER_TOOL
                    yield WarmDraft(found.draft, donor.digest, far, donor.seconds, found.kept)
                    break


def _knob_draft(
    donor: Donor, task: str, family: str, templates: Sequence[Draft]
) -> KnobDraft | None:
    """Return a configuration on the first template that takes it."""
    try:
        entity, fields = join_knobs(donor.trace)
    except FormatError as error:
        _log.debug("a donor is left out: %s", error)
        return None
    key = fields.get("template_key")
    found = (knob_draft(task, key, family, entity, template) for template in templates)
    return next((each for each in found if each is not None), None)


def tile_prior(handle: Handle, mod: Any, target: Any) -> TilePrior | None:
    """Return the distribution of tiles in good programs of similar workloads.

    Programs of the module itself count, too. A program counts by the square of its throughput,
    relative to the best of its workload, and half for each octave of distance.

    Parameters
    ----------
    handle : Handle
        Handle of the database.
    mod : IRModule
        Module that is tuned.
    target : tvm Target
        Target of the tuning run.

    Returns
    -------
    TilePrior or None
        None if no such program has tiles.
    """
    drafts, weights = [], []
    relatives = _relatives(handle, _Question.of(handle, mod, target), _PROGRAMS, itself=True)
    for neighbour, donors in relatives:
        for donor in donors:
            draft = _draft(donor)
            if draft is not None and any(tiles_of(draft)):
                drafts.append(draft)
                relative = donors[0].seconds / donor.seconds
                weights.append(relative**2 * 0.5**neighbour.far)
    return TilePrior.from_drafts(drafts, weights) if drafts else None


# From layers the module itself always counts: the search does not repeat its records as trials.
def _relatives(
    handle: Handle, asked: _Question, most: int, *, itself: bool = False
) -> list[tuple[Neighbour, list[Donor]]]:
    """Return the nearest workloads, and the module itself on request, with their best programs."""
    store = handle.store
    with handle.lock:
        known = handle.workloads.find(asked.mod)
        same = [] if known is None else handle.workloads.equal_ids(known)
        near = store.workloads.neighbours(asked.signature, asked.target, _NEIGHBOURS, exclude=same)
        here = store.targets.id_of(asked.target.digest)
        if itself and here is not None:
            near = [*(Neighbour(id_, (here,), 0.0, "exact") for id_ in same), *near]
        relatives = [(each, donors_of(store, each, most, is_layer=False)) for each in near]
        others = [*handle.layers, *([] if handle.prior is None else [handle.prior])]
        for layer in others:
            relatives += layer.relatives(asked.signature, asked.target, _NEIGHBOURS, most)
        return relatives


def _draft(donor: Donor) -> Draft | None:
    """Return a stored program in today's instructions; None if they cannot express it."""
    try:
        return Draft.from_trace(upgrade(donor.trace))
    except FormatError:
        return None


def _adapted(neighbour: Neighbour, donor: Donor, templates: Sequence[Draft]) -> WarmDraft | None:
    draft = _draft(donor)
    template = None if draft is None else nearest_template(draft, templates)
    if draft is None or template is None:
        return None
    adapted = adapt(draft, template)
    if adapted is None:
        return None
    return WarmDraft(adapted.draft, donor.digest, neighbour.far, donor.seconds, adapted.kept)

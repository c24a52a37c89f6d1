"""Warm start: good programs of similar workloads, adapted, and the distribution of their tiles."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import log2
from typing import Any, Self

from ....errors import FormatError
from ....programs.autotvm import join_knobs
from ....programs.metaschedule.upgrade import upgrade
from ....programs.workload_info import signature_of
from ....records import Trace, WorkloadFormat
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

#: Nearest workloads, and programs of each in a distribution of tiles.
_NEIGHBOURS = 16
_PROGRAMS = 32

#: Programs of others that are kept as drafts.
_MOST_DRAFTS = 4_096

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


@dataclass(frozen=True, slots=True, eq=False)
class Relatives:
    """Good programs of workloads that are similar to a module's; a worker process can use them.

    Parameters
    ----------
    family : str
        Operator family of the module.
    near : tuple of (Neighbour, list of Donor, bool)
        The nearest workloads with their best programs, and whether it is a row of the module itself
        in the user's own database.
    configured : tuple of (Neighbour, str, list of Donor)
        Workloads of AutoTVM of the family with their task and best configurations.
    """

    family: str
    near: tuple[tuple[Neighbour, list[Donor], bool], ...]
    configured: tuple[tuple[Neighbour, str, list[Donor]], ...]

    @classmethod
    def of(cls, handle: Handle, mod: Any, target: Any, programs: int = _PROGRAMS) -> Self:
        """Read the relatives of a module from the database and its layers.

        Parameters
        ----------
        handle : Handle
            Handle of the database.
        mod : IRModule
            Module that is tuned; it need not be stored.
        target : tvm Target
            Target of the tuning run.
        programs : int
            Most programs of each workload that are adapted.
        """
        store, signature = handle.store, signature_of(modules.to_workload(mod))
        programs = max(programs, _PROGRAMS)
        with handle.lock:
            stored = handle.targets.stored(target)
            known = handle.workloads.find(mod)
            same = [] if known is None else handle.workloads.equal_ids(known)
            others = store.workloads.neighbours(signature, stored, _NEIGHBOURS, exclude=same)
            here = store.targets.id_of(stored.digest)
            itself = [] if here is None else [Neighbour(id_, (here,), 0.0, "exact") for id_ in same]
            near = [
                (each, donors_of(store, each, programs, is_layer=False), each in itself)
                for each in (*itself, *others)
            ]
            for layer in (*handle.layers, *([] if handle.prior is None else [handle.prior])):
                found = layer.relatives(signature, stored, _NEIGHBOURS, programs)
                near += [(neighbour, donors, False) for neighbour, donors in found]
            configured = [
                (
                    each,
                    store.workloads.get(each.workload_id).name,
                    donors_of(store, each, _CONFIGURATIONS, is_layer=False),
                )
                for each in store.workloads.neighbours(
                    signature, stored, _CONFIGURED, formats=(WorkloadFormat.AUTOTVM,)
                )
            ]
        return cls(str(signature.family), tuple(near), tuple(configured))

    def adapted(self, templates: Sequence[Draft], most: int) -> list[WarmDraft]:
        """Return these programs adapted to the module, the most promising first, all different.

        Each is adapted to the most similar template. Near workloads, fast programs and donors that
        kept all decisions come first; the second best of a workload counts as a quarter of an
        octave farther than the best, and so on. AutoTVM's best configurations are donors, too
        (:mod:`tunedb.search.knobs`). Programs of the module itself in the user's own database are
        trials and no donors; those of layers are donors.

        Parameters
        ----------
        templates : sequence of Draft
            Design spaces of the module, with TVM's initial decisions.
        most : int
            Most programs to return.
        """
        ranked = []
        for neighbour, donors, is_itself in self.near:
            for rank, donor in enumerate([] if is_itself else donors[:most]):
                warm = _adapted(neighbour, donor, templates)
                if warm is not None and warm.kept >= _LEAST_KEPT:
                    slower = log2(max(donor.seconds / donors[0].seconds, 1.0))
                    loss = _PER_LOSS * (1 - warm.kept)
                    ranked.append((neighbour.far + slower + _PER_RANK * rank + loss, warm))
        ranked += [(warm.distance, warm) for warm in self._configurations(templates)]
        ranked.sort(key=lambda pair: pair[0])
        by_key: dict[bytes, WarmDraft] = {}
        for _, warm in ranked:
            by_key.setdefault(warm.draft.key, warm)
        return list(by_key.values())[:most]

    def _configurations(self, templates: Sequence[Draft]) -> Iterator[WarmDraft]:
        """Yield the best configuration of each workload of AutoTVM that fits a template."""
        for neighbour, task, donors in self.configured:
            # The best one may be of an algorithm with other loops.
            for donor in donors:
                found = _knob_draft(donor, task, self.family, templates)
                if found is not None:
                    # Tiles of extents are compared, not arguments, whose layout may differ.
                    far = found.distance + TARGET_DISTANCE[neighbour.level] + _PER_TOOL
                    yield WarmDraft(found.draft, donor.digest, far, donor.seconds, found.kept)
                    break

    def tile_prior(self) -> TilePrior | None:
        """Return the distribution of tiles in these programs, the module's own ones included.

        A program counts by the square of its throughput, relative to the best of its workload, and
        half for each octave of distance. None if no program has tiles.
        """
        drafts, weights = [], []
        for neighbour, donors, _ in self.near:
            for donor in donors[:_PROGRAMS]:
                draft = _draft(donor.trace)
                if draft is not None and any(tiles_of(draft)):
                    drafts.append(draft)
                    relative = donors[0].seconds / donor.seconds
                    weights.append(relative**2 * 0.5**neighbour.far)
        return TilePrior.from_drafts(drafts, weights) if drafts else None


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


@lru_cache(_MOST_DRAFTS)  # adapted and counted as tiles, and donors of several tasks of a network
def _draft(trace: Trace) -> Draft | None:
    """Return a stored program in today's instructions; None if they cannot express it."""
    try:
        return Draft.from_trace(upgrade(trace))
    except FormatError:
        return None


def _adapted(neighbour: Neighbour, donor: Donor, templates: Sequence[Draft]) -> WarmDraft | None:
    draft = _draft(donor.trace)
    template = None if draft is None else nearest_template(draft, templates)
    if draft is None or template is None:
        return None
    adapted = adapt(draft, template)
    if adapted is None:
        return None
    return WarmDraft(adapted.draft, donor.digest, neighbour.far, donor.seconds, adapted.kept)

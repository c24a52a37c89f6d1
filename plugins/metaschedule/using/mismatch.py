"""Why a module finds no record in a database, or which one it finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ....records import MODULES, Status, Target, Trust
from ....results import Record, WorkloadSummary
from ....search.distance import distances
from ....signatures import signature_of
from ....store import Store
from .. import modules
from ..handle import Handle
from ..targets import as_target
from ..workloads import WorkloadTable
from .applying import find_record, tasks_of
from .differences import Difference, equal_but_for_attributes, first_difference

__all__ = ["Finding", "Near", "Reason", "explain"]

#: Workloads whose modules are looked at beside the module that is explained.
_MOST_READ = 64


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that keeps records from a module.

    Parameters
    ----------
    code : str
        ``unknown`` (no workload is equal), ``attributes``, ``equality`` (equal under a looser
        equality), ``target``, ``failed``, ``foreign``, ``retracted``, ``empty`` (no record, or
        only such as do nothing), ``broken`` (none replays).
    text : str
        What it is and how to go on, in one line.
    """

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Near:
    """A stored workload that is nearly the module.

    Parameters
    ----------
    workload_id : int
        Its row.
    name : str
        Its name.
    records : int
        How many records it has.
    octaves : float or None
        Distance of the shapes (:mod:`tunedb.search.distance`); None where it is of another kind.
    difference : Difference or None
        The first place where they differ; None where TVM can make no module of it.
    """

    workload_id: int
    name: str
    records: int
    octaves: float | None
    difference: Difference | None


@dataclass(frozen=True, slots=True)
class Finding:
    """What a function of the module finds.

    Parameters
    ----------
    function : str
        Its name.
    record : Record or None
        The record that answers for it.
    workload_ids : tuple of int
        Rows of workloads that are equal to it.
    reasons : tuple of Reason
        Why there is none, what says most first; empty where there is one.
    nearest : tuple of Near
        Nearest first, where no workload is equal.
    """

    function: str
    record: Record | None
    workload_ids: tuple[int, ...] = ()
    reasons: tuple[Reason, ...] = ()
    nearest: tuple[Near, ...] = ()


def explain(
    store: Store,
    mod: Any,
    target: Any,
    *,
    fallback: str = "exact",
    module_equality: str = "structural",
    most: int = 3,
) -> list[Finding]:
    """Say for each function of a module which record answers for it, or why none does.

    Parameters
    ----------
    store : Store
        The database; it is only read where it was opened so.
    mod : tvm.IRModule
        PrimFuncs, or a Relax program, whose fused functions are asked about.
    target : tvm.target.Target or dict
        For which target.
    fallback, module_equality : str
        As for :class:`~tunedb.plugins.metaschedule.Database`.
    most : int
        How many of the nearest workloads to name.

    Returns
    -------
    list of Finding
        By name of the function.

    Raises
    ------
    TargetError
        TVM does not know the target.
    PluginError
        TVM cannot extract the functions of a Relax program.
    """
    target = as_target(target)
    handle = Handle(store, target=target, fallback=fallback, module_equality=module_equality)
    search = _Search(handle, target, most)
    return [search.finding(name, task) for name, task in sorted(tasks_of(mod, target).items())]


class _Search:
    """A database that is asked about one function after another."""

    def __init__(self, handle: Handle, target: Any, most: int) -> None:
        self._handle = handle
        self._query = handle.store.query
        self._target = target
        self._stored = handle.targets.stored(target)
        self._most = most

    def finding(self, name: str, mod: Any) -> Finding:
        """Return what a function finds."""
        found = find_record(self._handle, mod, self._target)
        ids = tuple(self._equal(mod))
        if found is not None:
            return Finding(name, self._query.record(found.id), ids)
        if ids:
            return Finding(name, None, ids, tuple(self._of_known(ids)))
        nearest = self._nearest(mod)
        reasons = tuple(self._of_unknown(mod, nearest))
        return Finding(name, None, (), reasons, nearest)

    def _equal(self, mod: Any) -> list[int]:
        """Return the rows of equal workloads, also of those that TVM never gets."""
        known = self._handle.workloads.find(mod)
        ids = set() if known is None else set(self._handle.workloads.equal_ids(known))
        # One that only foreign sources have is under no name.
        exact = self._query.workload_id(modules.to_workload(mod).digest)
        return sorted(ids if exact is None else ids | {exact})

    # ------------------------------------------------------------------ an equal workload

    def _of_known(self, ids: Sequence[int]) -> Iterator[Reason]:
        """Yield why none of the records of equal workloads answers."""
        for group in self._handle.targets.groups(self._stored):
            yield from self._of_target(ids, group)
        targets = [self._query.target(id_) for id_ in self._query.served_targets(ids)]
        others = [one for one in targets if one.digest != self._stored.digest]
        for other in others:
            yield Reason("target", self._other_target(other))
        if not self._query.targets_of(ids):
            yield Reason("empty", "its workload is stored without any record; tune it")

    def _of_target(self, ids: Sequence[int], target_ids: Sequence[int]) -> Iterator[Reason]:
        """Yield what became of the records for the target."""
        if not target_ids:
            return
        counts: Counter[str] = Counter()
        causes: Counter[str] = Counter()
        for id_ in ids:
            for record in self._query.iterate(id_, target_ids):
                code = _code_of(record)
                counts[code] += 1
                if code == "failed":
                    failure = record.measurement.failure
                    causes[failure.kind.value if failure else "unknown"] += 1
        for code, number in counts.most_common():
            yield Reason(code, _words(code, number, causes))

    def _other_target(self, other: Target) -> str:
        """Return in words that there are records for another target, and how it differs."""
        mine, theirs = self._stored.attributes or {}, other.attributes or {}
        differing = [
            f"{key} {mine.get(key, 'not given')} here, {theirs.get(key, 'not given')} there"
            for key in sorted(mine.keys() | theirs.keys())
            if mine.get(key) != theirs.get(key)
        ]
        words = f"there are records for {other.label}: {'; '.join(differing)}"
        if other.kind != self._stored.kind:
            return f"{words}; programs for another kind of device are never served"
        if other.architecture != self._stored.architecture:
            return words
        return f'{words}; fallback="compatible" (--compatible) serves them'

    # ------------------------------------------------------------------ no equal workload

    def _of_unknown(self, mod: Any, nearest: Sequence[Near]) -> Iterator[Reason]:
        if nearest and nearest[0].difference is not None:
            other = self._handle.workloads.get(nearest[0].workload_id)
            found_in = other and equal_but_for_attributes(mod, other.workload.mod)
            if found_in:
                told = "; ".join(
                    f"{one.where} is {one.here} here, {one.there} there" for one in found_in
                )
                yield Reason(
                    "attributes",
                    f"workload {nearest[0].workload_id} is equal but for attributes of the "
                    f"function, which TVM compares too: {told}",
                )
        for equality in modules.EQUALITIES:
            if (found := WorkloadTable(self._handle.store, equality).find(mod)) is not None:
                yield Reason(
                    "equality",
                    f'workload {found.id} is equal under module_equality="{equality}" only, '
                    "which Database takes as an argument",
                )
                break
        yield Reason("unknown", "no stored workload is equal to it; tune it: tunedb tune")

    def _nearest(self, mod: Any) -> tuple[Near, ...]:
        """Return the workloads that are most like a module, those first that TVM can read."""
        signature = signature_of(modules.to_workload(mod))
        known = [one for one in self._query.workloads() if one.format in MODULES and one.records]
        octaves = distances(signature, [one.signature for one in known])
        order = sorted(range(len(known)), key=lambda i: (octaves[i], known[i].id))[:_MOST_READ]
        near = [self._near(mod, known[i], float(octaves[i])) for i in order]
        return tuple(sorted(near, key=_rank)[: self._most])

    def _near(self, mod: Any, summary: WorkloadSummary, octaves: float) -> Near:
        found = self._handle.workloads.get(summary.id) if summary.best is not None else None
        difference = None if found is None else first_difference(mod, found.workload.mod)
        finite = octaves if octaves != float("inf") else None
        return Near(summary.id, summary.name, summary.records, finite, difference)


def _rank(near: Near) -> tuple[bool, bool, float]:
    """Return what orders the nearest workloads.

    One that differs in nothing but an attribute comes first: shapes and operator are the same.
    """
    difference = near.difference
    only_attribute = difference is not None and difference.where.startswith("attribute")
    octaves = float("inf") if near.octaves is None else near.octaves
    return (difference is None, not (only_attribute and octaves == 0), octaves)


def _code_of(record: Record) -> str:
    """Return why a record does not answer."""
    measurement = record.measurement
    if record.retracted:
        return "retracted"
    if measurement.status is not Status.OK:
        return "failed"
    if record.source.trust < Trust.VERIFIED:
        return "foreign"
    return "empty" if measurement.program.trace.is_empty else "broken"


def _words(code: str, number: int, causes: Counter[str]) -> str:
    """Return in words what became of records, and how to go on."""
    records = f"{number:,} record{'' if number == 1 else 's'} for this target"
    match code:
        case "failed":
            told = ", ".join(f"{count:,} {kind}" for kind, count in causes.most_common())
            return f"{records} failed ({told}); tune it longer"
        case "foreign":
            return (
                f"{records} of foreign sources, which TVM never gets; to try them on this machine: "
                "tunedb revalidate --foreign"
            )
        case "retracted":
            return f"{records} retracted; tunedb show RECORD says so of each"
        case "empty":
            return f"{records} without any step; tune it"
    return f"{records} cannot be replayed by this TVM; see: tunedb quarantine"

"""Targets of a store that a handle serves, and TVM's objects for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import tvm
from cachetools import LRUCache

from ... import limits
from ...errors import TargetError, UsageError
from ...records import CPU_KINDS, MODULES, NO_TARGET, Target
from ...storage.store import Store
from . import modules

FALLBACKS = ("exact", "compatible")


class TargetTable:
    """Targets of a store as one handle sees them.

    Parameters
    ----------
    store : Store
        Store of the targets.
    fallback : {"exact", "compatible"}
        ``compatible`` lets targets of the same kind and architecture answer if the exact one has
        no records.

    Attributes
    ----------
    bound : Target or None
        Target that the handle is bound to.

    Raises
    ------
    UsageError
        The fallback is unknown.
    """

    def __init__(self, store: Store, fallback: str) -> None:
        if fallback not in FALLBACKS:
            raise UsageError(f"fallback must be one of {', '.join(FALLBACKS)}, not {fallback!r}")
        self.bound: Target | None = None
        self._store = store
        self._fallback = fallback
        # Address → (object, stored form): the object is kept so that its address is not reused.
        self._stored: LRUCache[int, tuple[Any, Target]] = LRUCache(limits.BATCH_ROWS)
        self._rows: dict[bytes, int] = {}
        self._objects: dict[int, Any] = {}

    def bind(self, target: Any) -> None:
        """Serve this TVM target from now on."""
        self.bound = self.use_object(target)

    def use_object(self, target: Any) -> Target:
        """Use a TVM target as the object of its row; return its stored form."""
        stored = self.stored(target)
        row = self._row(stored)
        if row is not None:
            self._objects[row] = target
        return stored

    def stored(self, target: Any) -> Target:
        """Return the stored form of a TVM target; each object is exported once."""
        if target is None:
            return NO_TARGET
        known = self._stored.get(target.__chandle__())
        if known is None:
            known = (target, modules.to_target(target))
            self._stored[target.__chandle__()] = known
        return known[1]

    def object_of(self, id_: int) -> Any:
        """Return the TVM target of a row, or None for records without target."""
        if id_ not in self._objects:
            attributes = self._store.targets.get(id_).attributes
            self._objects[id_] = None if attributes is None else as_target(attributes)
        return self._objects[id_]

    def _row(self, target: Target) -> int | None:
        """Return the row of a target; rows never go, so it is remembered."""
        row = self._rows.get(target.digest)
        if row is None:
            row = self._store.targets.id_of(target.digest)
            if row is not None:
                self._rows[target.digest] = row
        return row

    @property
    def levels(self) -> range:
        """Numbers of the groups of rows that may answer: 0 for the target itself, 1 for others."""
        return range(2 if self._fallback == "compatible" else 1)

    def group(self, target: Target, level: int) -> list[int]:
        """Return the row of a target, or with level 1 the rows of those that are compatible."""
        exact = self._row(target)
        if level == 0:
            return [] if exact is None else [exact]
        return [id_ for id_ in self._store.targets.compatible(target) if id_ != exact]

    def groups(self, target: Target) -> list[list[int]]:
        """Return groups of rows for a target; a later one answers only if earlier ones cannot.

        They are the target's own row, and those of compatible targets where the user allows them.
        """
        return [self.group(target, level) for level in self.levels]

    def serving(self, workload_ids: Sequence[int], level: int) -> list[int]:
        """Return the rows of a group that answer for workloads.

        Parameters
        ----------
        workload_ids : sequence of int
            Local numbers of the workloads.
        level : int
            One of :attr:`levels`.

        Raises
        ------
        TargetError
            The handle is not bound and the store holds several kinds for the workloads.
        """
        if self.bound is not None:
            return self.group(self.bound, level)
        if level:
            return []
        ids = self._store.answers.targets(workload_ids)
        return self._one_kind(ids, "of this workload")

    def shown(self) -> list[int] | None:
        """Return the rows whose records the handle shows, or None for all."""
        ids = self._store.lookup.targets()
        if self.bound is not None:
            mine = self._row(self.bound)
            return None if ids == [mine] else [id_ for id_ in ids if id_ == mine]
        kinds = {self._store.targets.get(id_).kind for id_ in ids} - {NO_TARGET.kind}
        if len(kinds) > 1:
            # Logs of other tools, whose programs are never shown, may be for other devices.
            workloads = self._store.workloads.find()
            ids = self._store.programs.targets(w.id for w in workloads if w.format in MODULES)
        shown = self._one_kind(ids, "")
        return None if shown == self._store.lookup.targets() else shown

    def _one_kind(self, ids: list[int], scope: str) -> list[int]:
        """Return rows of one kind, without those of records that name no target."""
        kinds = {id_: self._store.targets.get(id_).kind for id_ in ids}
        named = set(kinds.values()) - {NO_TARGET.kind}
        if len(named) > 1:
            raise TargetError(
                f"{self._store.location}: it holds programs {scope + ' ' if scope else ''}for "
                f"{', '.join(sorted(named))}; choose one with Database(..., target=...)"
            )
        return [id_ for id_ in ids if kinds[id_] in named] if named else ids


def as_target(target: Any) -> Any:
    """Return a TVM target from one, or from a configuration.

    Parameters
    ----------
    target : Target, dict or str
        A target of TVM, or anything that ``tvm.target.Target`` accepts.

    Raises
    ------
    TargetError
        TVM does not know the target.
    """
    if isinstance(target, tvm.target.Target):
        return target
    try:
        return tvm.target.Target(target)
    except Exception as error:  # TVM raises ValueError, TypeError or InternalError
        raise TargetError(
            f"unknown target {target!r} ({first_line(error)}); give one that "
            "tvm.target.Target accepts, e.g. {'kind': 'llvm', 'num-cores': 4}"
        ) from None


#: Attribute of a GPU that TVM's schedule rules demand, and that ``cuda`` alone does not have.
MAX_THREADS = "max_threads_per_block"


def lacks_limits(target: Any) -> bool:
    """Return whether a target is a GPU without the limits that TVM's schedule rules demand."""
    return "gpu" in target.keys and target.attrs.get(MAX_THREADS) is None


def with_limits(target: Any) -> Any:
    """Return the target of a GPU with the limits that its device in this machine reports.

    Raises
    ------
    Exception
        There is no such device; TVM raises several classes.
    """
    device = tvm.target.Target.from_device(tvm.runtime.device(str(target.kind.name)))
    return tvm.target.Target({**modules.plain(device.export()), **modules.plain(target.export())})


#: Instruction sets that widen the vectors of a processor, widest first.
_VECTORS = ("avx512f", "avx2", "sve", "neon")


@cache
def class_of(target: Target) -> tuple[str, str] | None:
    """Return the kind of a processor and its widest vectors; None where they are unknown."""
    if target.kind not in CPU_KINDS:
        return None
    try:
        known = as_target(target.attributes)
        widest = (name for name in _VECTORS if tvm.target.codegen.target_has_features(name, known))
        return next(((target.kind, name) for name in widest), None)
    except Exception:  # TVM raises several classes
        return None


def is_cpu(target: Any) -> bool:
    """Return whether a TVM target is a processor."""
    return str(target.kind.name) in CPU_KINDS


def device_of(target: Any) -> Any:
    """Return the first device of this machine for a target; it may not exist."""
    return tvm.runtime.device(target.get_target_device_type())


def first_line(error: Exception) -> str:
    """Return the line of TVM's message that names the error, at most 300 characters."""
    lines = [line.strip() for line in str(error).splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]  # TVMScript's comments
    named = [line for line in lines if "Error" in line]
    return (named or lines or [type(error).__name__])[-1][:300]

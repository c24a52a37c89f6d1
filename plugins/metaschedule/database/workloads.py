"""Workload table: modules and TVM's Workload objects for the rows of a store.

Only this module decides whether TVM may read the body of a row: an own source must vouch for it. A
row that came from another database is never parsed. It equals a module of the user if a name says
so (a structural hash of this TVM, or the digest of the script) and its structure confirms the name;
TVM then gets the user's module.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import orjson
from cachetools import FIFOCache
from tvm.s_tir import meta_schedule as ms

from ....errors import StorageError
from ....programs.metaschedule.block_names import with_block_names
from ....programs.metaschedule.upgrade import upgrade
from ....programs.workload_info.structure import Structure
from ....records import MODULES, Alias, Trace, Workload
from ....storage.names import AliasTrust
from ....storage.store import Store
from .. import compat, modules
from ..targets import first_line

_log = logging.getLogger("tunedb")

#: Objects remembered by their address; others are found by hash (20 µs).
_MOST_HANDLES = 1024


@dataclass(frozen=True, slots=True)
class StoredWorkload:
    """A row with its Workload object.

    Parameters
    ----------
    id : int
        Local number of the row.
    record : Workload
        Stored form.
    workload : tvm Workload
        The one object of the row, because ``dump_pruned`` groups records by it.
    alias : Alias
        Name of the module under the handle's equality.
    is_exact : bool
        Whether the module is that of the row; otherwise it is an own module, equal by name.
    """

    id: int
    record: Workload
    workload: Any
    alias: Alias
    is_exact: bool = True
    _shield: list[Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_shield", modules.shield(self.workload.mod))


class WorkloadTable:
    """Workloads of a store under one of TVM's module equalities.

    Equal rows are found by alias (a structural hash) or script, and confirmed with TVM's equality
    if TVM may read them, otherwise by structure (:mod:`tunedb.storage.names`). The exact module
    of each row is kept: block names are outside TVM's hash, but traces refer to blocks by name.

    Parameters
    ----------
    store : Store
        Store of the rows.
    equality : str
        One of :data:`~.modules.EQUALITIES`.
    reads : bool
        Whether TVM may read rows of own sources; False for a store of others.

    Raises
    ------
    ApprovalError
        `reads` is set, and the user has not approved the database.

    Attributes
    ----------
    equality : str
        The equality.
    """

    def __init__(self, store: Store, equality: str, *, reads: bool = True) -> None:
        if reads:
            store.require_approved()
        self._store = store
        self._reads = reads
        self.equality = equality
        self._scheme = f"tvm:{modules.tvm_version()}:{equality}"
        self._by_id: dict[int, StoredWorkload] = {}
        # Address → (object, row): the object is kept so that its address is not used again.
        self._by_handle: FIFOCache[int, tuple[Any, StoredWorkload]] = FIFOCache(_MOST_HANDLES)
        self._classes: dict[int, tuple[list[tuple[int, AliasTrust]], list[int]]] = {}
        self._aliased_up_to = -1
        # Names of imported workloads of a read-only store, which cannot be stored.
        self._names: dict[Alias, list[int]] = {}
        # Row without a module for this TVM → reason.
        self._lost: dict[int, str] = {}
        # Digests of the scripts of modules, by the address of their Workload object.
        self._scripts: FIFOCache[int, tuple[Any, str]] = FIFOCache(_MOST_HANDLES)
        # (Foreign row, whether foreign names count) → an equal own row, or the number of rows that
        # were read without finding one.
        self._stand_ins: dict[tuple[int, bool], StoredWorkload | int] = {}
        # Last row when they were looked up, and the rows with records of own sources.
        self._own: tuple[int, set[int]] = (-1, set())

    # ------------------------------------------------------------------ the module of a row

    def get(
        self, id_: int, asker: StoredWorkload | None = None, *, foreign: bool = False
    ) -> StoredWorkload | None:
        """Return the workload of a row with a module that TVM may read; None without one.

        Parameters
        ----------
        id_ : int
            Local number of the row.
        asker : StoredWorkload or None
            An equal workload (:meth:`equal_ids`). Its module replaces a module that TVM must not
            read; without it, an own row under one of the row's names gives the module.
        foreign : bool
            Whether names of foreign sources count too. That is only for programs that are measured
            before they count.
        """
        stored = self._read(id_)
        if stored is not None:
            return stored
        asker = asker or self._stand_in(id_, foreign=foreign)
        if asker is None or asker.id == id_:
            return asker
        record = self._store.workloads.get(id_)
        return StoredWorkload(id_, record, asker.workload, asker.alias, is_exact=False)

    def fitted(self, trace: Trace, known: StoredWorkload) -> Trace:
        """Return a trace of a row in today's instructions, with the block names of its module.

        Raises
        ------
        FormatError
            TVM cannot read the trace any more.
        """
        trace = upgrade(trace)
        if known.is_exact:
            return trace
        stored = self._store.names.structure(known.id)
        own = modules.structure_of_module(known.workload.mod)
        # Without a graph the names are not known; equal anchor blocks do not tell those of others.
        if not (stored.names and own.names) or stored.blocks != own.blocks:
            return trace
        if stored.names == own.names:
            return trace
        return with_block_names(trace, dict(zip(stored.names, own.names, strict=True)))

    def why_lost(self, id_: int) -> str | None:
        """Return the reason why :meth:`get` has no module for a row, in one line."""
        return self._lost.get(id_)

    def _read(self, id_: int) -> StoredWorkload | None:
        """Return the workload of a row with its own module; None if TVM must not read that."""
        known = self._by_id.get(id_)
        if known is None and id_ not in self._lost:
            record = self._store.workloads.get(id_)
            reason = "it is not a module"
            if not self._is_vouched_for(id_, record):
                reason = "it came from others, and no equal own workload is known"
                self._lost[id_] = reason
                return None
            computed, stored = self._store.answers.workload_digests(id_)
            if computed != stored:
                self._lost[id_] = reason = "its digest does not match its body"
                _log.warning(
                    "%s: TVM does not get workload %d: %s", self._store.location, id_, reason
                )
                return None
            for read_module in self._readers(id_, record):
                try:
                    return self._remember(id_, record, ms.database.Workload(read_module()))
                except Exception as error:  # TVM's parsers raise any class
                    reason = first_line(error)
                    _log.warning(
                        "%s: TVM cannot read workload %d: %s", self._store.location, id_, reason
                    )
            self._lost[id_] = reason
        return known

    def _is_vouched_for(self, id_: int, record: Workload) -> bool:
        """Tell whether an own source vouches for a body."""
        if not self._reads:
            return False
        store = self._store
        # Only this plugin stores scripts, with the graphs that it writes; they are never exchanged.
        if record.script is not None or store.provenance.is_own_workload(id_):
            return True
        # An own log whose records all failed: this reads all records.
        last = store.names.last_workload()
        if self._own[0] != last:
            self._own = (last, store.provenance.own_workloads())
        return id_ in self._own[1]

    # TVM reads the graphs of its own release alone: it may crash on another (0.27 on one of 0.26).
    # Constructors make the module of other graphs. A script comes last: it is code, and lacks some
    # types (that of an extent of 1). TVM reads it only if an own source has records.
    def _readers(self, id_: int, record: Workload) -> Iterator[Callable[[], Any]]:
        """Yield functions that build the module of a row, from its graph and from its script."""
        if record.format not in MODULES:
            return
        if modules.is_readable(record):
            yield lambda: modules.to_module(record)
        if compat.release().builds_modules:
            from ..graph_module import module_of

            yield lambda: module_of(orjson.loads(record.body))
        script = record.script
        if script is None or not self._store.provenance.is_own_workload(id_):
            return
        # Tensors among attributes are graphs inside the script.
        if "load_json(" not in script or modules.is_readable(record):
            yield lambda: modules.from_script(script)

    def _stand_in(self, id_: int, *, foreign: bool) -> StoredWorkload | None:
        """Return an own workload that is equal to a foreign row, or None."""
        remembered = self._stand_ins.get((id_, foreign))
        if isinstance(remembered, StoredWorkload):
            return remembered
        if remembered == len(self._by_id):
            return None
        store = self._store

        def stands_in(other: int) -> bool:
            return (
                other != id_
                and self._read(other) is not None
                and self._agrees(other, store.names.structure(id_))
            )

        for name, standing in store.names.aliases(id_):
            counts = foreign or standing >= AliasTrust.TRUSTED
            if counts and name.scheme in (self._scheme, modules.SCRIPT):
                for other in store.names.confirmed([name], stands_in):
                    known = self._read(other)
                    if known is not None:
                        self._stand_ins[id_, foreign] = known
                        return known
        self._stand_ins[id_, foreign] = len(self._by_id)
        return None

    def _agrees(self, id_: int, structure: Structure) -> bool:
        """Tell whether the structure of a row equals another one under the equality."""
        anchor = self.equality == "anchor-block"
        return self._store.names.structure(id_).agrees(structure, anchor=anchor)

    def _remember(self, id_: int, record: Workload, workload: Any) -> StoredWorkload:
        known = StoredWorkload(id_, record, workload, modules.alias(workload.mod, self.equality))
        self._by_id[id_] = known
        self._link(workload, known)
        return known

    def _link(self, handle: Any, known: StoredWorkload) -> None:
        """Remember the row of a Workload or module object."""
        self._by_handle[handle.__chandle__()] = (handle, known)

    # ------------------------------------------------------------------ the row of a module

    def find(self, mod: Any, workload: Any = None) -> StoredWorkload | None:
        """Return the row of a module under the handle's equality, or None.

        An exact copy of the module comes first, because its block names are the module's own; then
        a row that TVM may read. Foreign rows count if they have records to serve.

        Parameters
        ----------
        mod : IRModule
            The module.
        workload : tvm Workload or None
            Workload object of the module, which is used if no row has one of its own.
        """
        self._alias_imported()
        name = modules.alias(mod, self.equality)
        same = self._with_answers(self._named([name], mod))
        if len(same) != 1:
            record = modules.to_workload(mod)
            exact = self._store.workloads.id_of(record.digest)
            if exact is not None and (exact in same or self._with_answers([exact])):
                return self._read(exact) or self._remember(
                    exact, record, workload or ms.database.Workload(mod)
                )
            script = modules.script_alias(record.script or "")
            same = same or self._with_answers(self._named([script], mod))
        if not same:
            return None
        own = next((known for known in map(self._read, same) if known is not None), None)
        return own or self._with_module(same[0], mod, workload, name)

    def _with_module(self, id_: int, mod: Any, workload: Any, name: Alias) -> StoredWorkload:
        """Return a foreign row with the module of the question."""
        handle = mod if workload is None else workload
        linked = self._by_handle.get(handle.__chandle__())
        if linked is not None and linked[1].id == id_ and linked[1].alias == name:
            return linked[1]
        record = self._store.workloads.get(id_)
        own_workload = workload or ms.database.Workload(mod)
        known = StoredWorkload(id_, record, own_workload, name, is_exact=False)
        self._link(handle, known)
        self._link(known.workload, known)
        return known

    def _with_answers(self, ids: list[int]) -> list[int]:
        """Return the rows that TVM may read or that have records to serve."""
        served = self._store.answers.targets
        return [id_ for id_ in ids if self._read(id_) is not None or served([id_])]

    def _named(self, names: Sequence[Alias], mod: Any, *, foreign: bool = False) -> list[int]:
        """Return the rows under a module's names that are equal to it, oldest first."""
        structure = cache(lambda: modules.structure_of_module(mod))

        def confirm(id_: int) -> bool:
            known = self._read(id_)
            if known is not None:
                return modules.modules_equal(known.workload.mod, mod, self.equality)
            return self._agrees(id_, structure())

        ids = self._store.names.confirmed(names, confirm, foreign=foreign)
        more = {id_ for name in names for id_ in self._names.get(name, ())} - {*ids}
        return sorted([*ids, *filter(confirm, more)]) if more else ids

    def commit(self, mod: Any) -> StoredWorkload:
        """Return the row of exactly this module, adding it if it is missing.

        Raises
        ------
        StorageError
            It is missing and the store is read-only.
        """
        linked = self._by_handle.get(mod.__chandle__())
        # A module can be changed in place; its hash then differs.
        if (
            linked is not None
            and linked[1].is_exact
            and linked[1].alias == modules.alias(mod, self.equality)
        ):
            return linked[1]
        self._alias_imported()
        record = modules.to_workload(mod)
        id_ = self._store.workloads.id_of(record.digest)
        if self._store.read_only:
            return self._commit_read_only(mod, id_)
        if id_ is None or id_ not in self._by_id:
            names = modules.aliases(mod, record.script or "")
            id_ = self._store.workloads.add(record, names)
        known = self._by_id.get(id_) or self._remember(id_, record, ms.database.Workload(mod))
        self._link(mod, known)
        return known

    def _commit_read_only(self, mod: Any, id_: int | None) -> StoredWorkload:
        if id_ is None:
            known = self.find(mod)
        else:
            known = self._by_id.get(id_) or self._remember(
                id_, self._store.workloads.get(id_), ms.database.Workload(mod)
            )
        if known is None:
            raise StorageError(f"{self._store.location}: it is read-only and has no such workload")
        return known

    def resolve(self, workload: Any, *, commit: bool = False) -> StoredWorkload | None:
        """Return the row of a Workload object, which need not be one of this table's.

        Parameters
        ----------
        workload : tvm Workload
            Any Workload object.
        commit : bool
            Add its module if it is missing.
        """
        linked = self._by_handle.get(workload.__chandle__())
        if linked is not None and linked[1].is_exact:
            return linked[1]
        known = self.commit(workload.mod) if commit else self.find(workload.mod, workload)
        if known is not None:
            self._link(workload, known)
        return known

    def equal_ids(self, known: StoredWorkload) -> list[int]:
        """Return the rows whose records answer for a workload, itself included.

        They are looked up each time (30 µs), because other processes add rows too.
        """
        names = [known.alias, Alias(modules.SCRIPT, self._script_of(known))]
        standings = self._store.names.workloads(names)
        remembered = self._classes.get(known.id)
        if remembered is not None and remembered[0] == standings:
            return remembered[1]
        equal = self._named(names, known.workload.mod)
        if known.id not in equal:
            equal.append(known.id)
        self._classes[known.id] = (standings, equal)
        return equal

    def proposing_ids(self, known: StoredWorkload) -> list[int]:
        """Return :meth:`equal_ids` with the rows under names of foreign sources alone.

        Their programs may be measured on the workload's module; they never answer for it.
        """
        names = [known.alias, Alias(modules.SCRIPT, self._script_of(known))]
        return sorted({known.id, *self._named(names, known.workload.mod, foreign=True)})

    def _script_of(self, known: StoredWorkload) -> str:
        """Return the digest of a module's script, as the names of workloads have it."""
        address = known.workload.__chandle__()
        remembered = self._scripts.get(address)
        if remembered is None:
            script = modules.script_of(known.record, known.workload.mod)
            key = modules.script_alias(script).key
            remembered = self._scripts[address] = (known.workload, key)
        return remembered[1]

    def _alias_imported(self) -> None:
        """Give names to workloads that were imported without TVM, or are of another release."""
        # Only to those with records to serve: TVM never reads workloads of sources that are not
        # trusted, nor of other databases.
        store = self._store
        last = store.names.last_workload()
        if not self._reads or last == self._aliased_up_to:
            return
        for id_ in store.names.workloads_without(self._scheme, self._aliased_up_to):
            known = self._read(id_)
            if known is None:
                continue
            script = str(known.workload.mod.script(show_meta=True))
            names = modules.aliases(known.workload.mod, script)
            if self._store.read_only:
                for name in names:
                    self._names.setdefault(name, []).append(id_)
            else:
                self._store.workloads.add(replace(known.record, script=script), names)
        self._aliased_up_to = last

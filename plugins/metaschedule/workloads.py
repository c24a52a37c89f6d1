"""Modules and TVM's Workload objects against the rows of a store."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from tvm.s_tir import meta_schedule as ms

from ...errors import StorageError
from ...records import MODULES, Alias, Workload
from ...store import Store
from . import modules
from .targets import first_line

_log = logging.getLogger("tunedb")

#: Objects remembered by their address; more are found by hash (20 µs).
_MOST_HANDLES = 1024


@dataclass(frozen=True, slots=True)
class Known:
    """A workload that a handle has met.

    Parameters
    ----------
    id : int
        Its row.
    record : Workload
        Its stored form.
    workload : tvm Workload
        The one object that stands for the row: ``dump_pruned`` groups records by it.
    alias : Alias
        The name under which the handle's equality knows it.
    """

    id: int
    record: Workload
    workload: Any
    alias: Alias


class WorkloadTable:
    """Finds and adds workloads under one of TVM's module equalities.

    Which rows count as equal is found by alias (a structural hash) and confirmed with TVM's
    equality. The exact module of each row is kept: block names are outside TVM's hash, but traces
    refer to blocks by name.

    Attributes
    ----------
    equality : str
        Which of TVM's equalities it is.
    """

    def __init__(self, store: Store, equality: str) -> None:
        self._store = store
        self.equality = equality
        self._scheme = f"tvm:{modules.tvm_version()}:{equality}"
        self._by_id: dict[int, Known] = {}
        # Address → (object, row): the object is kept so that its address is not used again.
        self._by_handle: OrderedDict[int, tuple[Any, Known]] = OrderedDict()
        self._classes: dict[int, tuple[list[int], list[int]]] = {}
        self._aliased_up_to = -1
        # Names of imported workloads of a read-only store, where they cannot be written down.
        self._names: dict[Alias, list[int]] = {}
        # Rows of which this TVM can make no module, and why.
        self._lost: dict[int, str] = {}

    def get(self, id_: int) -> Known | None:
        """Return the workload of a row, or None where this TVM can make no module of it."""
        found = self._by_id.get(id_)
        if found is None and id_ not in self._lost:
            record = self._store.query.workload(id_)
            reason = "it is of another TVM, and no own source has its script"
            for make in self._ways(id_, record):
                try:
                    return self._remember(id_, record, ms.database.Workload(make()))
                except Exception as error:  # TVM's parsers raise whatever they meet
                    reason = first_line(error)
                    _log.warning(
                        "%s: TVM cannot read workload %d: %s", self._store.location, id_, reason
                    )
            self._lost[id_] = reason
        return found

    def why_lost(self, id_: int) -> str | None:
        """Return why :meth:`get` has no module for a row, in one line."""
        return self._lost.get(id_)

    def _ways(self, id_: int, record: Workload) -> Iterator[Callable[[], Any]]:
        """Yield what may make the module of a row: reading its graph, or its script.

        The graph is for the release that wrote it: another may crash on it (0.27 on one of 0.26).
        The script outlives releases, but it is code: it is read only where an own source has
        records to serve.
        """
        if modules.is_readable(record):
            yield lambda: modules.to_module(record)
        script = record.script
        if script is None or record.format not in MODULES or not self._store.query.is_own(id_):
            return
        # Tensors among attributes are graphs inside of the script.
        if "load_json(" not in script or modules.is_readable(record):
            yield lambda: modules.from_script(script)

    def _remember(self, id_: int, record: Workload, workload: Any) -> Known:
        known = Known(id_, record, workload, modules.alias(workload.mod, self.equality))
        self._by_id[id_] = known
        self._link(workload, known)
        return known

    def _link(self, handle: Any, known: Known) -> None:
        """Remember that a Workload or module object stands for a row."""
        self._by_handle[handle.__chandle__()] = (handle, known)
        if len(self._by_handle) > _MOST_HANDLES:
            self._by_handle.popitem(last=False)

    def find(self, mod: Any) -> Known | None:
        """Return the row that stands for a module under the handle's equality, or None.

        An exact copy of the module is preferred, because its block names are the module's own.
        """
        self._alias_imported()
        same = self._equal_among(self._rows_named(modules.alias(mod, self.equality)), mod)
        if not same:
            return None
        if len(same) > 1:
            exact = self._store.query.workload_id(modules.to_workload(mod).digest)
            if exact in same:
                return self.get(exact)
        return self.get(same[0])

    def _equal_among(self, ids: list[int], mod: Any) -> list[int]:
        """Return those of some rows whose modules are equal to one."""
        rows = [(id_, self.get(id_)) for id_ in ids]
        return [
            id_
            for id_, known in rows
            if known is not None and modules.modules_equal(known.workload.mod, mod, self.equality)
        ]

    def _rows_named(self, alias: Alias) -> list[int]:
        """Return the rows that are known under a name, oldest first."""
        ids = self._store.query.workloads_by_alias(alias)
        more = self._names.get(alias)
        return sorted({*ids, *more}) if more else ids

    def commit(self, mod: Any) -> Known:
        """Return the row of exactly this module, adding it where it is missing.

        Raises
        ------
        StorageError
            It is missing and the store is read-only.
        """
        met = self._by_handle.get(mod.__chandle__())
        # A module can be changed in place; its hash then tells.
        if met is not None and met[1].alias == modules.alias(mod, self.equality):
            return met[1]
        self._alias_imported()
        record = modules.to_workload(mod)
        id_ = self._store.query.workload_id(record.digest)
        if self._store.read_only:
            return self._commit_read_only(mod, id_)
        if id_ is None or id_ not in self._by_id:
            names = modules.aliases(mod, record.script or "")
            id_ = self._store.add_workload(record, names)
        known = self._by_id.get(id_) or self._remember(id_, record, ms.database.Workload(mod))
        self._link(mod, known)
        return known

    def _commit_read_only(self, mod: Any, id_: int | None) -> Known:
        if id_ is None:
            known = self.find(mod)
        else:
            known = self._by_id.get(id_) or self._remember(
                id_, self._store.query.workload(id_), ms.database.Workload(mod)
            )
        if known is None:
            raise StorageError(
                f"{self._store.location}: it was opened read-only and does not know this workload"
            )
        return known

    def resolve(self, workload: Any, *, commit: bool = False) -> Known | None:
        """Return the row of a Workload object, which need not be one of this table's.

        Parameters
        ----------
        workload : tvm Workload
            Any.
        commit : bool
            Add its module where it is missing.
        """
        met = self._by_handle.get(workload.__chandle__())
        if met is not None:
            return met[1]
        known = self.commit(workload.mod) if commit else self.find(workload.mod)
        if known is not None:
            self._link(workload, known)
        return known

    def equal_ids(self, known: Known) -> list[int]:
        """Return the rows whose records answer for a workload, itself included.

        Asked anew each time (20 µs), because other processes add rows too.
        """
        ids = self._rows_named(known.alias)
        remembered = self._classes.get(known.id)
        if remembered is not None and remembered[0] == ids:
            return remembered[1]
        equal = self._equal_among(ids, known.workload.mod)
        if known.id not in equal:
            equal.append(known.id)
        self._classes[known.id] = (ids, equal)
        return equal

    def _alias_imported(self) -> None:
        """Give names to workloads that were imported without TVM, or are of another release.

        Only those with records to serve, which a foreign source's are not: TVM never reads
        anything of a source that is not trusted.
        """
        query = self._store.query
        last = query.last_workload()
        if last == self._aliased_up_to:
            return
        for id_ in query.workloads_without(
            self._scheme, modules.tvm_version(), self._aliased_up_to
        ):
            known = self.get(id_)
            if known is None:
                continue
            script = str(known.workload.mod.script(show_meta=True))
            names = modules.aliases(known.workload.mod, script)
            if self._store.read_only:
                for name in names:
                    self._names.setdefault(name, []).append(id_)
            else:
                self._store.add_workload(replace(known.record, script=script), names)
        self._aliased_up_to = last

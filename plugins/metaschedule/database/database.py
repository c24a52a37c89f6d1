"""MetaSchedule database whose records are stored in tunedb."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from tvm.s_tir.meta_schedule.database.database import _PyDatabase

from .... import limits
from ....storage.store import Store
from ..compat import register_errors
from ..targets import as_target
from .feature_commits import DEFAULT
from .handle import Candidate, Handle

__all__ = ["Database"]

register_errors()


class Database(_PyDatabase):
    """A MetaSchedule database in SQLite or PostgreSQL, bound to a target.

    It is a ``PyDatabase`` to TVM, built on TVM's object class instead of with ``derived_object``,
    because that decorator passes no module equality to C++.

    Parameters
    ----------
    url : str or Path
        A path, ``sqlite:///…``, ``:memory:`` or ``postgresql+psycopg://…``.
    target : tvm.target.Target, dict or None
        Target whose programs are served. Without it the handle serves a store that holds one kind
        of device for the workload, and binds to the target of its first commit.
    fallback : {"exact", "compatible"}
        ``compatible`` answers with programs for targets of the same kind and architecture if there
        are none for the exact target. Another kind is never served.
    module_equality : {"structural", "ignore-tensor", "anchor-block"}
        Equality under which two modules are one workload, here and in C++.
    read_only : bool
        Never write. ``commit_workload`` then works for stored workloads only.
    live_records : int
        Records kept as TVM objects (some 5 KB each).
    features : sequence of str
        Feature sets whose rows ``MeasureCallback`` stores with each batch, so that training never
        replays; ``()`` for none. An error there is logged and stops nothing.
    layers : sequence of str or Path
        Paths or URLs of databases that answer, in this order, if this one has no record to serve
        for a workload and target. They are only read. An unreadable layer is left out for a minute,
        with one warning.
    prior : {"auto", "none"} or path
        Prior below all databases (docs/prior.md): ``TUNEDB_PRIOR`` or that of this release, none,
        or a bundle that ``tunedb bundle --as-prior`` made. One that cannot be read is left out.

    Attributes
    ----------
    store : tunedb.storage.store.Store
        Store behind the handle.
    url : str
        URL or path that opens it again; a handle cannot be copied or pickled.

    Raises
    ------
    tunedb.TuneDBError
        See :func:`tunedb.open`; errors keep their type through TVM's C++.

    Notes
    -----
    ``get_top_k`` never replays a trace; ``query_schedule`` quarantines a record that does not
    replay and takes the next. ``with database:`` makes it TVM's current database and leaves it
    open: call :meth:`close` before you copy its file. An empty database is false (``len`` is 0):
    never write ``database or default``.

    Records that the owner of a layer trusts are served, because the user names the layer. Its
    programs must pass the allow-list (``tunedb.programs.allowlist``) and are put on the user's own
    module: nothing else of a layer reaches TVM. ``len``, ``get_all_tuning_records`` and
    ``dump_pruned`` cover this database alone.

    Examples
    --------
    >>> database = Database("tune.db", target={"kind": "llvm", "num-cores": 4})
    >>> ms.tune_tir(mod, database.tvm_target, work_dir, 64, database=database)
    """

    # TVM's objects lack an instance dictionary.
    __slots__ = ("__dict__", "__weakref__")

    def __init__(
        self,
        url: str | Path,
        *,
        target: Any = None,
        fallback: str = "exact",
        module_equality: str = "structural",
        read_only: bool = False,
        live_records: int = 4096,
        features: Sequence[str] = DEFAULT,
        layers: Sequence[str | Path] = (),
        prior: str | Path = "auto",
    ) -> None:
        store = Store(url, read_only=read_only)
        # A server that restarts ends no tuning run.
        store.set_retry_timeout(limits.RECONNECT_S)
        try:
            handle = Handle(
                store,
                target=target,
                fallback=fallback,
                module_equality=module_equality,
                live_records=live_records,
                features=features,
                layers=[layers] if isinstance(layers, str | Path) else layers,
                prior=prior,
            )
        except BaseException:
            store.close()
            raise
        # TVM's object holds the handle's methods, the handle holds nothing of TVM's object: the
        # last reference to either frees both at once.
        super().__init__(
            handle.has_workload,
            handle.commit_workload,
            handle.commit_tuning_record,
            handle.get_top_k,
            handle.get_all_tuning_records,
            handle.query_tuning_record,
            handle.query_schedule,
            handle.query_ir_module,
            handle.size,
            module_equality,
        )
        self._handle = handle
        self.store = store
        self.url: Final = str(url)
        _handles[self.__chandle__()] = handle
        weakref.finalize(handle, store.close)
        weakref.finalize(handle, handle.layers.close)
        if handle.prior is not None:
            weakref.finalize(handle, handle.prior.close)

    @property
    def tvm_target(self) -> Any:
        """Target that the handle is bound to, as a TVM object; None while it is unbound."""
        target = self._handle.targets.bound
        return None if target is None else as_target(target.attributes)

    def record_batch(self, candidates: list[Candidate]) -> None:
        """Store measured candidates in one transaction, as ``MeasureCallback`` does."""
        self._handle.record_batch(candidates)

    def close(self) -> None:
        """Close the store and its layers. Using the database afterwards is an error."""
        self._handle.close()

    def __enter__(self) -> Any:
        # TVM's own meaning: the database of the scope (Database.current()).
        return super().__enter__()

    def __copy__(self) -> NoReturn:
        raise TypeError(f"a Database cannot be copied; open it again: Database({self.url!r})")

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        self.__copy__()

    def __reduce__(self) -> NoReturn:
        self.__copy__()


#: Address of TVM's object → handle. ``Database.current()`` and ``task_scheduler.database_`` return
#: bare objects without our attributes, but with the same address.
_handles: weakref.WeakValueDictionary[int, Handle] = weakref.WeakValueDictionary()


def handle_of(database: Any) -> Handle | None:
    """Return the handle of any TVM object that is a tunedb database, or None."""
    if isinstance(database, Database):
        return database._handle
    return None if database is None else _handles.get(database.__chandle__())

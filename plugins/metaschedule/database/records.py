"""Record table: TVM's TuningRecord objects of stored records, bounded in number."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

import orjson
from cachetools import LRUCache
from tvm.s_tir import meta_schedule as ms

from .... import limits
from ....errors import BusyError, IntegrityError, StorageError
from ....identity import canonical_json
from ....programs.allowlist import check_trace
from ....records import Quarantined, Source, Trace
from ....results import Answer
from ....storage.store import Store
from ..targets import TargetTable, first_line
from ..trace_codec import TraceBuilder
from .workloads import StoredWorkload, WorkloadTable

_log = logging.getLogger("tunedb")


class RecordTable:
    """TuningRecords that are built without replaying; the last ones used are kept.

    Traces of older releases are upgraded to today's instruction set. Records of workloads that
    are no modules of this TVM are skipped; only models and reports use them.

    A record that cannot be built or does not replay is quarantined, and this table skips it from
    then on. It stays stored: another TVM may be able to use it.

    Parameters
    ----------
    store : Store
        Store of the records.
    workloads : WorkloadTable
        Workload objects of the records.
    targets : TargetTable
        Target objects of the records.
    source : Source
        Source of quarantined records.
    most : int
        Most records to keep.
    is_layer : bool
        Whether the store belongs to others; its own sources are foreign here.

    Notes
    -----
    A record reaches TVM only if its digests match its contents and its source is trusted. A
    program of any source but this store's own ones must pass the allow-list
    (:mod:`tunedb.programs.allowlist`). Kept records are checked once.
    """

    def __init__(
        self,
        store: Store,
        workloads: WorkloadTable,
        targets: TargetTable,
        source: Source,
        most: int,
        *,
        is_layer: bool = False,
    ) -> None:
        self._store = store
        self._workloads = workloads
        self._source = source
        self._most = most
        self._is_layer = is_layer
        self._builder = TraceBuilder()
        # No LRUCache: with it a top-16 of live records takes half as long again.
        self._live: OrderedDict[int, Any] = OrderedDict()
        self._broken: set[int] = set()
        # Records of foreign workloads, which are built on the module of the question: those that
        # are kept, and (record, address of the Workload) → the Workload that it does not replay on.
        self._borrowing: set[int] = set()
        self._misfits: dict[tuple[int, int], Any] = {}
        self._targets = targets
        self._args: LRUCache[bytes, Any] = LRUCache(limits.BATCH_ROWS)

    def __len__(self) -> int:
        return len(self._live)

    def keep(self, id_: int, record: Any) -> None:
        """Keep the TuningRecord of a row, so that it answers without being built.

        It gets the one Workload object of its row, because ``dump_pruned`` groups by that.
        """
        known = self._workloads.resolve(record.workload)
        if known is not None and not known.workload.same_as(record.workload):
            record = ms.database.TuningRecord(
                record.trace, known.workload, record.run_secs, record.target, record.args_info
            )
        self._keep(id_, record)

    def _keep(self, id_: int, record: Any) -> None:
        self._live[id_] = record
        if len(self._live) > self._most:
            oldest, _ = self._live.popitem(last=False)
            self._borrowing.discard(oldest)

    def get(self, id_: int, asker: StoredWorkload | None = None) -> Any:
        """Return the TuningRecord of a row, or None for a broken one.

        Parameters
        ----------
        id_ : int
            Local number of the record.
        asker : StoredWorkload or None
            Workload of the question; its module replaces one that TVM must not read
            (:meth:`WorkloadTable.get`).
        """
        record = self._live.get(id_)
        if record is not None and (
            id_ not in self._borrowing or asker is None or record.workload.same_as(asker.workload)
        ):
            self._live.move_to_end(id_)
            return record
        if id_ in self._broken:
            return None
        if asker is not None and (id_, asker.workload.__chandle__()) in self._misfits:
            return None
        known, record = self._build(self._store.answers.get(id_), asker)
        if record is not None and known is not None:
            self._keep(id_, record)
            (self._borrowing.discard if known.is_exact else self._borrowing.add)(id_)
        return record

    def build_all(self, answers: Iterable[Answer]) -> Iterator[Any]:
        """Yield the TuningRecords of stored records without keeping them.

        Records of workloads without a module for TVM are left out, with one warning.
        """
        lost: dict[int, int] = {}
        for answer in answers:
            record = self._live.get(answer.id)
            if record is None:
                known, record = self._build(answer)
                if known is None and answer.id not in self._broken:
                    lost[answer.workload_id] = lost.get(answer.workload_id, 0) + 1
            if record is not None:
                yield record
        if lost:
            _log.warning(
                "%s: %d records of %d workloads are left out: %s",
                self._store.location,
                sum(lost.values()),
                len(lost),
                self._workloads.why_lost(next(iter(lost))),
            )

    def discard(self, record: Any, error: Exception) -> None:
        """Skip a record that was handed out and does not replay from now on."""
        for id_, live in list(self._live.items()):
            if live.same_as(record):
                self._live.pop(id_)
                if id_ in self._borrowing:
                    # Another module under the same name may have the blocks that it names.
                    self._borrowing.discard(id_)
                    self._misfits[id_, record.workload.__chandle__()] = record.workload
                    self._quarantine(id_, error)
                else:
                    self._give_up(id_, error)
                return

    def _build(
        self, answer: Answer, asker: StoredWorkload | None = None
    ) -> tuple[StoredWorkload | None, Any]:
        """Return the workload and the TuningRecord of a stored record; None without one."""
        known = None
        try:
            known = self._workloads.get(answer.workload_id, asker)
            if known is None:
                return None, None
            self._check(answer, known)
            return known, ms.database.TuningRecord(
                self._trace(answer.trace, known),
                known.workload,
                answer.run_secs,
                self._targets.object_of(answer.target_id),
                self._args_info(answer.args_info),
            )
        except (StorageError, BusyError):
            raise
        except Exception as error:  # TVM raises any class
            self._give_up(answer.id, error)
            return known, None

    def _check(self, answer: Answer, known: StoredWorkload) -> None:
        """Raise unless TVM may get a record (see the notes of the class)."""
        if not self._store.answers.is_whole(answer, known.record.digest):
            raise IntegrityError("its digest does not match its contents; see: tunedb db check")
        if not answer.is_trusted:
            raise IntegrityError("it is marked as served, but its source is foreign")
        if self._is_layer or not answer.is_own:
            check_trace(answer.trace, known.record.format)

    def _give_up(self, id_: int, error: Exception) -> None:
        """Skip a record from now on, for all workloads."""
        self._broken.add(id_)
        self._quarantine(id_, error)

    def _trace(self, trace: Trace, known: StoredWorkload) -> Any:
        """Return TVM's trace, built without a replay if every instruction is known."""
        fitted = self._workloads.fitted(trace, known)
        return self._builder.build_or_replay(fitted, known.workload.mod)

    def _args_info(self, body: bytes | None) -> Any:
        """Return TVM's argument descriptions, or None."""
        if body is None:
            return None
        if body not in self._args:
            self._args[body] = [ms.arg_info.ArgInfo.from_json(a) for a in orjson.loads(body)]
        return self._args[body]

    def _quarantine(self, id_: int, error: Exception) -> None:
        """Quarantine a stored record that this TVM cannot use."""
        reason = f"record {id_} cannot be rebuilt: {first_line(error)}"
        _log.warning("%s: %s", self._store.location, reason)
        # A layer is not read here: it may be unreachable by now.
        if self._store.read_only:
            return
        trace = self._store.answers.get(id_).trace
        fields = (trace.sketch, trace.tail or b"", trace.decisions)
        data = canonical_json([field.decode(errors="backslashreplace") for field in fields])
        self._store.quarantine.add(
            [Quarantined(self._store.location, id_, reason, data)], self._source
        )

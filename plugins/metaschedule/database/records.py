"""TVM's TuningRecord objects from stored records, bounded in number."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

import orjson
from cachetools import LRUCache
from tvm.s_tir import meta_schedule as ms

from .... import limits
from ....errors import BusyError, IntegrityError, StorageError
from ....identity import canonical_json
from ....programs.allowlist import check_trace
from ....programs.metaschedule.upgrade import upgrade
from ....records import Quarantined, Source, Trace
from ....results import Answer
from ....storage.store import Store
from .. import trace_codec
from ..targets import TargetTable, first_line
from ..trace_codec import TraceBuilder
from .workloads import Known, WorkloadTable

_log = logging.getLogger("tunedb")


class RecordTable:
    """Builds TuningRecords without replaying them, and keeps the last ones that were asked for.

    Traces of older releases are upgraded to today's instruction set. Records of workloads that
    are no modules of this TVM are for models and people: they are passed over.

    A record that cannot be built, or that turned out not to replay, is quarantined and passed
    over by this table from then on. It stays stored: another TVM may be able to use it.

    Parameters
    ----------
    store : Store
        Where the records are.
    workloads : WorkloadTable
        The Workload objects that they refer to.
    targets : TargetTable
        The Target objects that they refer to.
    source : Source
        Under which to quarantine.
    most : int
        How many records to keep.
    is_layer : bool
        Whether the store is somebody else's, whose own sources are foreign ones here.

    Notes
    -----
    Before anything of a record reaches TVM, its digests must be those of what is stored, and its
    source a trusted one. A program of any source but this store's own ones holds only what foreign
    programs may (:mod:`tunedb.programs.allowlist`). That is looked at once for each record that is
    kept.
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
        self._is_layer = is_layer
        self._builder = TraceBuilder()
        # Records, and whether each was built on the module that asked, for a workload of others.
        self._live: LRUCache[int, tuple[Any, bool]] = LRUCache(max(1, most))
        self._broken: set[int] = set()
        # (Such a record, address of the Workload) → the Workload on which it does not replay.
        self._misfits: dict[tuple[int, int], Any] = {}
        self._targets = targets
        self._args: LRUCache[bytes, Any] = LRUCache(limits.BATCH_ROWS)

    def __len__(self) -> int:
        return len(self._live)

    def keep(self, id_: int, record: Any) -> None:
        """Remember the TuningRecord of a row, so that it answers without being built.

        It gets the one Workload object of its row, by which ``dump_pruned`` groups.
        """
        known = self._workloads.resolve(record.workload)
        if known is not None and not known.workload.same_as(record.workload):
            record = ms.database.TuningRecord(
                record.trace, known.workload, record.run_secs, record.target, record.args_info
            )
        _, is_lent = self._live.get(id_, (None, False))
        self._live[id_] = (record, is_lent)

    def get(self, id_: int, asker: Known | None = None) -> Any:
        """Return the TuningRecord of a row, or None for a broken one.

        Parameters
        ----------
        id_ : int
            The row.
        asker : Known or None
            The workload that is asked about, whose module stands in for one that TVM must not
            read (:meth:`WorkloadTable.get`).
        """
        record, is_lent = self._live.get(id_, (None, False))
        if record is not None and (
            not is_lent or asker is None or record.workload.same_as(asker.workload)
        ):
            return record
        if id_ in self._broken:
            return None
        if asker is not None and (id_, asker.workload.__chandle__()) in self._misfits:
            return None
        known, record = self._build(self._store.answers.get(id_), asker)
        if record is not None and known is not None:
            self._live[id_] = (record, not known.is_exact)
        return record

    def build_all(self, answers: Iterable[Answer]) -> Iterator[Any]:
        """Yield the TuningRecords of stored records without keeping them.

        Those of workloads without a module that TVM may have are left out, with one warning.
        """
        lost: dict[int, int] = {}
        for answer in answers:
            record, _ = self._live.get(answer.id, (None, False))
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
        """Pass over a record that was handed out and does not replay."""
        for id_, (live, is_lent) in list(self._live.items()):
            if live.same_as(record):
                del self._live[id_]
                if is_lent:
                    # Another module under the same name may have the blocks that it names.
                    self._misfits[id_, record.workload.__chandle__()] = record.workload
                    self._quarantine(id_, error)
                else:
                    self._give_up(id_, error)
                return

    def _build(self, answer: Answer, asker: Known | None = None) -> tuple[Known | None, Any]:
        """Return workload and TuningRecord of a stored record, None for what there is not."""
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
        except Exception as error:  # whatever TVM raises on what it does not understand
            self._give_up(answer.id, error)
            return known, None

    def _check(self, answer: Answer, known: Known) -> None:
        """Raise unless TVM may get a record (see the notes of the class)."""
        if not self._store.answers.is_whole(answer, known.record.digest):
            raise IntegrityError("its digest does not match its contents; see: tunedb db check")
        if not answer.is_trusted:
            raise IntegrityError("it is marked as served, but its source is foreign")
        if self._is_layer or not answer.is_own:
            check_trace(answer.trace, known.record.format)

    def _give_up(self, id_: int, error: Exception) -> None:
        """Pass over a record from now on, whoever asks."""
        self._broken.add(id_)
        self._quarantine(id_, error)

    def _trace(self, trace: Trace, known: Known) -> Any:
        """Return TVM's trace, built without replaying it where every instruction is known."""
        trace = upgrade(trace)
        try:
            return self._builder.build(trace)
        except trace_codec.UnknownInstructionError:
            return trace_codec.replay(trace, known.workload.mod)

    def _args_info(self, body: bytes | None) -> Any:
        """Return TVM's argument descriptions, or None."""
        if body is None:
            return None
        if body not in self._args:
            self._args[body] = [ms.arg_info.ArgInfo.from_json(a) for a in orjson.loads(body)]
        return self._args[body]

    def _quarantine(self, id_: int, error: Exception) -> None:
        """Note that a stored record is of no use to this TVM."""
        reason = f"record {id_} cannot be rebuilt: {first_line(error)}"
        _log.warning("%s: %s", self._store.location, reason)
        # Nothing is asked of a layer here: it may be away by now.
        if self._store.read_only:
            return
        trace = self._store.answers.get(id_).trace
        parts = (trace.sketch, trace.tail or b"", trace.decisions)
        data = canonical_json([part.decode(errors="backslashreplace") for part in parts])
        self._store.quarantine.add(
            [Quarantined(self._store.location, id_, reason, data)], self._source
        )

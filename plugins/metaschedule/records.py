"""TVM's TuningRecord objects from stored records, bounded in number."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

import orjson
from tvm.s_tir import meta_schedule as ms

from ... import limits
from ...errors import BusyError, StorageError
from ...identity import canonical_json
from ...records import Quarantined, Source, Trace
from ...results import Answer
from ...store import Store
from ...upgrades import upgrade
from . import trace_codec
from .targets import TargetTable, first_line
from .trace_codec import TraceBuilder
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
    """

    def __init__(
        self,
        store: Store,
        workloads: WorkloadTable,
        targets: TargetTable,
        source: Source,
        most: int,
    ) -> None:
        self._store = store
        self._workloads = workloads
        self._source = source
        self._most = most
        self._builder = TraceBuilder()
        self._live: OrderedDict[int, Any] = OrderedDict()
        self._broken: set[int] = set()
        self._targets = targets
        self._args: dict[bytes, Any] = {}

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
        self._keep(id_, record)

    def _keep(self, id_: int, record: Any) -> None:
        self._live[id_] = record
        if len(self._live) > self._most:
            self._live.popitem(last=False)

    def get(self, id_: int) -> Any:
        """Return the TuningRecord of a row, or None for a broken one."""
        record = self._live.get(id_)
        if record is not None:
            self._live.move_to_end(id_)
            return record
        if id_ in self._broken:
            return None
        record = self._build(self._store.query.answer(id_))
        if record is not None:
            self._keep(id_, record)
        return record

    def build_all(self, answers: Iterable[Answer]) -> Iterator[Any]:
        """Yield the TuningRecords of stored records without keeping them."""
        for answer in answers:
            record = self._live.get(answer.id) or self._build(answer)
            if record is not None:
                yield record

    def discard(self, record: Any, error: Exception) -> None:
        """Pass over a record that was handed out and does not replay."""
        for id_, live in list(self._live.items()):
            if live.same_as(record):
                self._live.pop(id_)
                self._quarantine(self._store.query.answer(id_), error)
                return

    def _build(self, answer: Answer) -> Any:
        """Return the TuningRecord of a stored record, or None where it cannot be built."""
        try:
            known = self._workloads.get(answer.workload_id)
            if known is None:
                return None
            return ms.database.TuningRecord(
                self._trace(answer.trace, known),
                known.workload,
                answer.run_secs,
                self._targets.object_of(answer.target_id),
                self._args_info(answer.args_info),
            )
        except (StorageError, BusyError):
            raise
        except Exception as error:  # whatever TVM raises on what it does not understand
            self._quarantine(answer, error)
            return None

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
            if len(self._args) > limits.BATCH_ROWS:
                self._args.clear()
            self._args[body] = [ms.arg_info.ArgInfo.from_json(a) for a in orjson.loads(body)]
        return self._args[body]

    def _quarantine(self, answer: Answer, error: Exception) -> None:
        """Note that a stored record is of no use to this TVM."""
        self._broken.add(answer.id)
        reason = f"record {answer.id} cannot be rebuilt: {first_line(error)}"
        _log.warning("%s: %s", self._store.location, reason)
        if self._store.read_only:
            return
        trace = answer.trace
        parts = (trace.sketch, trace.tail or b"", trace.decisions)
        data = canonical_json([part.decode(errors="backslashreplace") for part in parts])
        self._store.quarantine(
            [Quarantined(self._store.location, answer.id, reason, data)], self._source
        )

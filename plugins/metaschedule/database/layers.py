"""Records that answer a handle: those of its own store, then those of its layers.

Layers are databases of others that answer if the own store does not. By naming a layer the user
trusts it: records that its owner serves are served. Still only its programs reach TVM, and they
must pass the allow-list of foreign programs (:mod:`tunedb.programs.allowlist`). Its modules and
scripts are never parsed; an answer has the user's module.
"""

from __future__ import annotations

import logging
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cachetools import LRUCache

from ....errors import FormatError, TargetError, TuneDBError
from ....exchange.peers import check_layer, open_layer, skipped_message
from ....exchange.prior import start_unpacking, unpacked
from ....programs.allowlist import check_trace
from ....records import Signature, Source, Target
from ....storage.answers import Donor
from ....storage.store import Store
from ....storage.workloads import Neighbour
from ..targets import TargetTable, class_of, first_line
from .records import RecordTable
from .workloads import StoredWorkload, WorkloadTable

_log = logging.getLogger("tunedb")

#: Seconds after which a layer that could not be read is opened again.
RETRY_S = 60.0

#: Source of quarantined records, which a layer never gets: it is not written to.
_SOURCE = Source("layer")

#: Records that a query reads at a time while it skips those that do not replay.
_CHUNK = 8

#: Workloads of a prior whose best programs are kept: the tasks of a network have common neighbours.
_MOST_DONORS = 512


@dataclass(frozen=True, slots=True)
class ServedRecord:
    """A record that answers a question.

    Parameters
    ----------
    id : int
        Local number in its store.
    record : tvm TuningRecord
        The record as TVM gets it.
    answers : StoreAnswers
        Store of the record.
    """

    id: int
    record: Any
    answers: StoreAnswers

    def discard(self, error: Exception) -> None:
        """Pass over the record from now on, because it does not replay."""
        self.answers.records.discard(self.record, error)


@dataclass(frozen=True, slots=True)
class StoreAnswers:
    """Answers of one store to a handle.

    Parameters
    ----------
    store : Store
        Store of the records.
    workloads, targets, records : WorkloadTable, TargetTable, RecordTable
        TVM's objects for its rows.
    """

    store: Store
    workloads: WorkloadTable
    targets: TargetTable
    records: RecordTable

    def best(
        self, workload: StoredWorkload, target: Target | None, level: int, chunk: int = 1
    ) -> Iterator[ServedRecord]:
        """Yield the records of a workload for one group of targets, best first.

        Parameters
        ----------
        workload : StoredWorkload
            The workload.
        target : Target or None
            Target of the question; None for that of the handle.
        level : int
            One of :attr:`TargetTable.levels`.
        chunk : int
            Records that are read at first.
        """
        equal = self.workloads.equal_ids(workload)
        if target is None:
            ids = self.targets.serving(equal, level)
        else:
            ids = self.targets.group(target, level)
        if ids:
            yield from self._best(workload, equal, ids, chunk)

    def _best(
        self, workload: StoredWorkload, equal: Sequence[int], targets: Sequence[int], chunk: int
    ) -> Iterator[ServedRecord]:
        """Yield the records of equal workloads, best first, without those that are broken."""
        seen, most = 0, chunk
        while True:
            ids = self.store.answers.best_ids(equal, targets, most)
            for id_ in ids[seen:]:
                record = self.records.get(id_, workload)
                if record is not None:
                    yield ServedRecord(id_, record, self)
            if len(ids) < most:
                return
            seen, most = len(ids), most + max(chunk, _CHUNK)


class Layer:
    """A database of others. An error leaves it out for some time and never ends a run.

    Parameters
    ----------
    url : str or Path
        As for :func:`tunedb.open`.
    own : StoreAnswers
        The handle's own store.
    equality, fallback, most
        As for :class:`.Handle`.

    Attributes
    ----------
    location : str
        The database for messages.

    Raises
    ------
    UsageError
        The URL is invalid.
    """

    def __init__(
        self, url: str | Path, own: StoreAnswers, *, equality: str, fallback: str, most: int
    ) -> None:
        self.location: str = check_layer(url)
        self._url = url
        self._own = own
        self._equality = equality
        self._fallback = fallback
        self._most = most
        self._answers: StoreAnswers | None = None
        self._retry_at = 0.0
        self._last_warning = ""

    def open(self) -> StoreAnswers | None:
        """Return the layer's answers; None, after one warning, where it cannot be read."""
        if self._answers is None and time.monotonic() >= self._retry_at:
            try:
                self._answers = self._opened()
            except Exception as error:  # a foreign database may raise any class
                self.leave_out(error)
        return self._answers

    def _opened(self) -> StoreAnswers | None:
        store = open_layer(self._url, self._own.store)
        if store is None:
            self._retry_at = float("inf")
            _log.info("%s: a layer must not be the database itself", self.location)
            return None
        workloads = WorkloadTable(store, self._equality, reads=False)
        targets = TargetTable(store, self._fallback)
        records = RecordTable(store, workloads, targets, _SOURCE, self._most, is_layer=True)
        if self._last_warning:
            _log.info("%s: this layer answers again", self.location)
        self._last_warning = ""
        return StoreAnswers(store, workloads, targets, records)

    def leave_out(self, error: Exception) -> None:
        """Warn, once for equal errors, and open the layer again after :data:`RETRY_S`."""
        warning = skipped_message(self.location, first_line(error))
        level = logging.DEBUG if warning == self._last_warning else logging.WARNING
        _log.log(level, "%s", warning)
        self._last_warning = warning
        # With a TargetError the database is there; only this question has no answer.
        if not isinstance(error, TargetError):
            self.close()
            self._retry_at = time.monotonic() + RETRY_S

    def close(self) -> None:
        """Close the store; the next question opens it again."""
        answers, self._answers = self._answers, None
        if answers is not None:
            try:
                answers.store.close()
            except Exception as error:  # a connection that was cut
                _log.debug("%s: %s", self.location, error)

    def find(self, mod: Any, workload: Any = None) -> StoredWorkload | None:
        """Return the layer's row for a module; None if it has no records to serve for it."""
        answers = self.open()
        try:
            return None if answers is None else answers.workloads.find(mod, workload)
        except Exception as error:  # as in open
            self.leave_out(error)
            return None

    def best(
        self, mod: Any, workload: Any, target: Any, level: int, chunk: int
    ) -> Iterator[ServedRecord]:
        """Yield the layer's records of a module for a group of targets, best first."""
        known = self.find(mod, workload)
        answers = self._answers
        if known is None or answers is None:
            return
        try:
            stored = self._own.targets.bound
            if target is not None:
                # Records get the user's target object, not a new one made from the row.
                answers.targets.use_object(target)
                stored = self._own.targets.stored(target)
            yield from answers.best(known, stored, level, chunk)
        except Exception as error:  # as in open
            self.leave_out(error)

    def relatives(
        self, signature: Signature, target: Target, workloads: int, programs: int
    ) -> list[tuple[Neighbour, list[Donor]]]:
        """Return the workloads that are most like one, itself too, with their best programs.

        Programs that fail the allow-list are left out.

        Parameters
        ----------
        signature : Signature
            Signature of the workload.
        target : Target
            Target of the tuning run.
        workloads, programs : int
            Most workloads, and most programs of each.
        """
        answers = self.open()
        if answers is None:
            return []
        store = answers.store
        try:
            alike = self._alike(target)
            near = store.workloads.neighbours(signature, target, workloads, compatible=alike)
            return [(each, self._donors_of(store, each, programs)) for each in near]
        except Exception as error:  # as in open
            self.leave_out(error)
            return []

    def _donors_of(self, store: Store, neighbour: Neighbour, most: int) -> list[Donor]:
        return donors_of(store, neighbour, most, is_layer=True)

    def _alike(self, target: Target) -> Sequence[int]:
        """Return the targets that count as compatible beside those of the same architecture."""
        return ()


def donors_of(store: Store, neighbour: Neighbour, most: int, *, is_layer: bool) -> list[Donor]:
    """Return a neighbour's best programs, without foreign ones that fail the allow-list."""
    donors = []
    for donor in store.answers.donors(neighbour, most):
        try:
            if is_layer or not donor.is_own:
                check_trace(donor.trace, store.workloads.get(neighbour.workload_id).format)
        except FormatError as error:
            _log.debug("a donor is left out: %s", error)
            continue
        donors.append(donor)
    return donors


class PriorLayer(Layer):
    """A prior: it answers after all other databases, for any target of similar instructions.

    It is unpacked and opened by the first question that reaches it.

    Parameters
    ----------
    path : Path
        The prior's bundle.
    own, equality, most
        As for :class:`Layer`.

    Attributes
    ----------
    bundle : Path
        The prior's bundle.
    """

    def __init__(self, path: Path, own: StoreAnswers, *, equality: str, most: int) -> None:
        super().__init__(path, own, equality=equality, fallback="compatible", most=most)
        self.bundle: Final = path
        self._unpacking: subprocess.Popen[bytes] | None = None
        # Its database never changes. By digest of a target, and by workload and targets.
        self._levels: dict[bytes, list[list[int]]] = {}
        self._donors: LRUCache[tuple[Any, ...], list[Donor]] = LRUCache(_MOST_DONORS)

    def begin_unpacking(self) -> None:
        """Start a process that unpacks it, where it is not, so that the first question waits less.

        It uses a CPU for seconds: :meth:`finish_unpacking` comes before anything is measured.
        """
        if self._unpacking is None:
            with suppress(TuneDBError, OSError):  # the first question tells the reason
                self._unpacking = start_unpacking(self.bundle)

    def finish_unpacking(self) -> None:
        """Wait for that process."""
        process, self._unpacking = self._unpacking, None
        if process is not None:
            process.wait()

    def close(self) -> None:
        """Close the store; the next question opens it again."""
        if self._unpacking is not None:
            self._unpacking.kill()
        self.finish_unpacking()
        self._levels.clear()
        self._donors.clear()
        super().close()

    def _opened(self) -> StoreAnswers | None:
        self.finish_unpacking()
        self._url = unpacked(self.bundle)
        return super()._opened()

    def levels(self, target: Target | None) -> list[list[int]]:
        """Return its targets for a target: the same one, the same processor, the same class.

        Targets of a class have the same kind, architecture and widest vectors (:func:`class_of`).
        """
        answers = self.open()
        target = target or self._own.targets.bound
        if answers is None or target is None:
            return []
        if target.digest in self._levels:
            return self._levels[target.digest]
        try:
            groups = [answers.targets.group(target, level) for level in (0, 1)]
            wanted = class_of(target)
            found = [
                each.id
                for each in answers.store.targets.find()
                if wanted is not None and class_of(each.target) == wanted
            ]
        except Exception as error:  # as in open
            self.leave_out(error)
            return []
        seen = {id_ for group in groups for id_ in group}
        levels = [*groups, [id_ for id_ in found if id_ not in seen]]
        self._levels[target.digest] = levels
        return levels

    def _donors_of(self, store: Store, neighbour: Neighbour, most: int) -> list[Donor]:
        key = (neighbour.workload_id, neighbour.target_ids, most)
        if key not in self._donors:
            self._donors[key] = super()._donors_of(store, neighbour, most)
        return self._donors[key]

    def _alike(self, target: Target) -> Sequence[int]:
        """Return its targets of equally wide vectors."""
        return [id_ for group in self.levels(target) for id_ in group]

    def answers_of(self, mod: Any, workload: Any, target: Any) -> Iterator[Iterator[ServedRecord]]:
        """Yield its records of a module by group of targets, best first."""
        stored = None if target is None else self._own.targets.stored(target)
        groups = [group for group in self.levels(stored) if group]
        known = self.find(mod, workload) if groups else None
        answers = self._answers
        if known is None or answers is None:
            return
        equal = answers.workloads.equal_ids(known)
        for group in groups:
            yield self._served(answers, known, equal, group)

    def _served(
        self,
        answers: StoreAnswers,
        known: StoredWorkload,
        equal: Sequence[int],
        targets: Sequence[int],
    ) -> Iterator[ServedRecord]:
        try:
            yield from answers._best(known, equal, targets, _CHUNK)
        except Exception as error:  # as in open
            self.leave_out(error)

    @property
    def store(self) -> Store | None:
        """Its database; None where it cannot be read."""
        answers = self.open()
        return None if answers is None else answers.store


class Layers:
    """The layers of a handle, in the order in which they answer.

    Parameters
    ----------
    urls : sequence of str or Path
        Paths or URLs; each is opened at once, so that the warning for a missing one comes at the
        beginning.
    own, equality, fallback, most
        As for :class:`Layer`.
    """

    def __init__(
        self,
        urls: Sequence[str | Path],
        own: StoreAnswers,
        *,
        equality: str,
        fallback: str,
        most: int,
    ) -> None:
        self._layers = [
            Layer(url, own, equality=equality, fallback=fallback, most=most) for url in urls
        ]
        for layer in self._layers:
            layer.open()

    def __iter__(self) -> Iterator[Layer]:
        return iter(self._layers)

    def have(self, mod: Any) -> bool:
        """Tell whether some layer has records to serve for a module."""
        return any(layer.find(mod) is not None for layer in self._layers)

    def best(
        self, mod: Any, workload: Any, target: Any, level: int, chunk: int
    ) -> Iterator[Iterator[ServedRecord]]:
        """Yield the records of each layer, best first.

        Parameters
        ----------
        mod : IRModule
            Module of the question.
        workload : tvm Workload or None
            Workload object of the module, which the records then have.
        target : tvm Target or None
            Target of the question; None for that of the handle.
        level, chunk : int
            As for :meth:`StoreAnswers.best`.
        """
        for layer in self._layers:
            yield layer.best(mod, workload, target, level, chunk)

    def close(self) -> None:
        """Close the stores of all layers."""
        for layer in self._layers:
            layer.close()

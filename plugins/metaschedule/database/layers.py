"""Databases of others that answer where one's own does not.

Naming a layer is the user's trust: what its owner serves is served. Still only programs of it reach
TVM, and of these only what foreign programs may hold (:mod:`tunedb.programs.allowlist`). Its
modules and scripts are never parsed; the module of an answer is the one that was asked about.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ....errors import FormatError, TargetError
from ....exchange.peers import check_layer, open_layer, skipped_message
from ....programs.allowlist import check_trace
from ....records import Signature, Source, Target
from ....storage.answers import Donor
from ....storage.store import Store
from ....storage.workloads import Neighbour
from ..targets import TargetTable, first_line
from .answers import Answers, Found
from .records import RecordTable
from .workloads import Known, WorkloadTable

_log = logging.getLogger("tunedb")

#: Seconds after which a layer that could not be read is asked again.
RETRY_S = 60.0

#: Under which name a layer's records would be quarantined, if it were written to.
_SOURCE = Source("layer")


class Layer:
    """One of them. Nothing that is wrong with it ends a run: it is left out for some time.

    Parameters
    ----------
    url : str or Path
        As for :func:`tunedb.open`.
    own : Answers
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
        The URL is none.
    """

    def __init__(
        self, url: str | Path, own: Answers, *, equality: str, fallback: str, most: int
    ) -> None:
        self.location = check_layer(url)
        self._url = url
        self._own = own
        self._equality = equality
        self._fallback = fallback
        self._most = most
        self._answers: Answers | None = None
        self._again_at = 0.0
        self._told = ""

    def open(self) -> Answers | None:
        """Return what the layer answers; None, after one warning, where it cannot be read."""
        if self._answers is None and time.monotonic() >= self._again_at:
            try:
                self._answers = self._opened()
            except Exception as error:  # whatever somebody else's database raises
                self.leave_out(error)
        return self._answers

    def _opened(self) -> Answers | None:
        store = open_layer(self._url, self._own.store)
        if store is None:
            self._again_at = float("inf")
            _log.info("%s: a layer must not be the database itself", self.location)
            return None
        workloads = WorkloadTable(store, self._equality, reads=False)
        targets = TargetTable(store, self._fallback)
        records = RecordTable(store, workloads, targets, _SOURCE, self._most, is_layer=True)
        if self._told:
            _log.info("%s: this layer answers again", self.location)
        self._told = ""
        return Answers(store, workloads, targets, records)

    def leave_out(self, error: Exception) -> None:
        """Warn, unless that was said before, and ask again after :data:`RETRY_S`."""
        words = skipped_message(self.location, first_line(error))
        _log.log(logging.DEBUG if words == self._told else logging.WARNING, "%s", words)
        self._told = words
        # The database is there; it is the question that it cannot answer.
        if not isinstance(error, TargetError):
            self.close()
            self._again_at = time.monotonic() + RETRY_S

    def close(self) -> None:
        """Close its store. It is opened again when it is asked."""
        answers, self._answers = self._answers, None
        if answers is not None:
            try:
                answers.store.close()
            except Exception as error:  # a connection that was cut
                _log.debug("%s: %s", self.location, error)

    def find(self, mod: Any, workload: Any = None) -> Known | None:
        """Return a module as the layer knows it, None where it serves nothing for it."""
        answers = self.open()
        try:
            return None if answers is None else answers.workloads.find(mod, workload)
        except Exception as error:  # as in open
            self.leave_out(error)
            return None

    def of(self, mod: Any, workload: Any, target: Any, level: int, chunk: int) -> Iterator[Found]:
        """Yield its records of a module for a group of targets, best first."""
        known = self.find(mod, workload)
        answers = self._answers
        if known is None or answers is None:
            return
        try:
            wanted = self._own.targets.bound
            if target is not None:
                wanted = self._own.targets.stored(target)
                # Records for it get the user's object, not one that is made of what is stored.
                answers.targets.meet(target)
            yield from answers.of(known, wanted, level, chunk)
        except Exception as error:  # as in open
            self.leave_out(error)

    def relatives(
        self, signature: Signature, target: Target, workloads: int, programs: int
    ) -> list[tuple[Neighbour, list[Donor]]]:
        """Return the workloads that are most like one, itself too, with their best programs.

        Programs that hold what no foreign program may are left out.

        Parameters
        ----------
        signature : Signature
            Of the workload.
        target : Target
            Where programs are to run.
        workloads, programs : int
            How many workloads, and programs of each, at most.
        """
        answers = self.open()
        if answers is None:
            return []
        store = answers.store
        try:
            near = store.workloads.neighbours(signature, target, workloads)
            return [(one, donors_of(store, one, programs, is_layer=True)) for one in near]
        except Exception as error:  # as in open
            self.leave_out(error)
            return []


def donors_of(store: Store, neighbour: Neighbour, most: int, *, is_layer: bool) -> list[Donor]:
    """Return a neighbour's best programs, without foreign ones that hold what none may."""
    found = []
    for donor in store.answers.donors(neighbour, most):
        try:
            if is_layer or not donor.is_own:
                check_trace(donor.trace, store.workloads.get(neighbour.workload_id).format)
        except FormatError as error:
            _log.debug("a donor is left out: %s", error)
            continue
        found.append(donor)
    return found


class Layers:
    """The layers of a handle, in the order in which they are asked.

    Parameters
    ----------
    urls : sequence of str or Path
        Where they are; each is opened at once, so that one that is away is told at the beginning.
    own, equality, fallback, most
        As for :class:`Layer`.
    """

    def __init__(
        self,
        urls: Sequence[str | Path],
        own: Answers,
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

    def know(self, mod: Any) -> bool:
        """Tell whether some layer has records to serve for a module."""
        return any(layer.find(mod) is not None for layer in self._layers)

    def of(
        self, mod: Any, workload: Any, target: Any, level: int, chunk: int
    ) -> Iterator[Iterator[Found]]:
        """Yield what each layer answers.

        Parameters
        ----------
        mod : IRModule
            What is asked about.
        workload : tvm Workload or None
            The object that stands for it, which the records then have.
        target : tvm Target or None
            The target that is asked for; None for that of the handle.
        level, chunk : int
            As for :meth:`.Answers.of`.
        """
        for layer in self._layers:
            yield layer.of(mod, workload, target, level, chunk)

    def close(self) -> None:
        """Close their stores."""
        for layer in self._layers:
            layer.close()

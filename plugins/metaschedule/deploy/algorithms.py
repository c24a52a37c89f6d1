"""Choice of the algorithm of each operator of a network, by measured time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Self

import numpy as np

from ....run_times import mean_of
from ....search.scheduling import costs_of
from ....system.host import machine_class
from .. import modules
from ..database.handle import Handle
from ..trace_codec import floats_of
from ..winograd import TILES, Convolution
from .network import Lowered, Lowering, lower, lower_algorithms, lower_winograd
from .packing import without_packing

__all__ = ["REACH", "Choices", "key_of", "lower_fastest", "stored_digest"]

#: Ratio to the fastest algorithm's records within which another may be faster in the network.
REACH = 1.5


def key_of(mod: Any) -> int:
    """Return TVM's structural hash of a module: the same for every name of its function."""
    return modules.structural_hash(mod, "structural")


def stored_digest(handle: Handle, mod: Any) -> str:
    """Return the digest of a module's stored workload, or its own, in hexadecimal digits."""
    with handle.lock:
        stored = handle.workloads.find(mod)
    workload = modules.to_workload(mod) if stored is None else stored.record
    return str(workload.digest.hex())


@dataclass(frozen=True, slots=True, eq=False)
class Choices:
    """Algorithms of a network's convolutions.

    Parameters
    ----------
    lowered : Lowered
        The network, lowered with exact operators.
    target : tvm.target.Target
        Its target.
    tasks : mapping of int to tvm.IRModule
        Functions by :func:`key_of`, normalised for the search.
    options : sequence of sequence of mapping of int to int
        For each convolution of `lowered`, the calls of the functions of each algorithm: the exact
        one, then Winograd's with each of :data:`~..winograd.TILES`.
    """

    lowered: Lowered
    target: Any
    tasks: Mapping[int, Any]
    options: Sequence[Sequence[Mapping[int, int]]]

    @classmethod
    def of(cls, lowered: Lowered, target: Any) -> Self:
        """Return the algorithms of a lowered network."""
        tasks: dict[int, Any] = {}

        def calls(lowered: Lowered) -> Counter[int]:
            found: Counter[int] = Counter()
            for task in lowered.tasks(target):
                key = key_of(task.dispatched[0])
                tasks[key] = task.dispatched[0]
                found[key] += int(task.weight)
            return found

        others = lower_algorithms(lowered, target)
        exact = calls(lowered) if others else Counter[int]()
        options = []
        for several in others.values():
            found = [calls(other) for other in several.values()]
            options.append([exact - found[0], *(each - exact for each in found)])
        return cls(lowered, target, tasks, options)

    def fastest(
        self, recorded: Sequence[Mapping[int, float]], in_network: Mapping[int, float]
    ) -> tuple[int, ...]:
        """Return the number of the fastest algorithm of each convolution.

        Parameters
        ----------
        recorded : sequence of mapping of int to float
            As :meth:`recorded` returns them.
        in_network : mapping of int to float
            Seconds of one call in a network. They decide where they are known of all algorithms
            whose records are close to the fastest.
        """
        chosen = []
        for several, near in zip(self.options, self._close(recorded), strict=True):
            costs = costs_of(several, in_network)
            is_known = all(costs[n] < inf for n in near)
            chosen.append(min(near, key=lambda n: costs[n]) if is_known else near[0])
        return tuple(chosen)

    def ranked(self, recorded: Sequence[Mapping[int, float]], rank: int) -> tuple[int, ...]:
        """Return algorithms of a rank, 0 the fastest, or the last that is close to the fastest."""
        return tuple(near[min(rank, len(near) - 1)] for near in self._close(recorded))

    def _close(self, recorded: Sequence[Mapping[int, float]]) -> Iterator[list[int]]:
        """Yield the algorithms of each convolution whose records are close, fastest first.

        The first database with records of a whole algorithm counts; without any, the exact one.
        """
        for several in self.options:
            every = ([*costs_of(several, seconds)] for seconds in recorded)
            costs = next((costs for costs in every if min(costs) < inf), [0.0])
            yield [n for n in np.argsort(costs).tolist() if costs[n] <= REACH * min(costs)]

    def lower(self, chosen: Sequence[int]) -> Lowered:
        """Return the network with an algorithm for each convolution."""
        tiles: dict[Convolution, int] = {
            convolution: TILES[number - 1]
            for convolution, number in zip(self.lowered.convolutions, chosen, strict=True)
            if number
        }
        return lower_winograd(self.lowered, self.target, tiles) if tiles else self.lowered

    def recorded(self, handle: Handle) -> list[dict[int, float]]:
        """Return the times of the best records, of each database: the own one, then layers.

        Times of different databases are not compared.
        """
        stores: dict[int, dict[int, float]] = {}
        for key in self._keys():
            forms = [self.tasks[key], without_packing(self.tasks[key])]
            found = (form and handle.best_schedule(form, self.target) for form in forms)
            served = next((each[0] for each in found if each), None)
            if served is not None:
                times = stores.setdefault(id(served.answers.store), {})
                times[key] = mean_of(floats_of(served.record.run_secs))
        own = stores.pop(id(handle.store), {})
        return [own, *sorted(stores.values(), key=len, reverse=True)]

    def in_networks(self, handle: Handle) -> dict[int, float]:
        """Return the latest times in networks that runs on machines like this one measured."""
        own, seconds = machine_class(handle.session()), dict[str, float]()
        for session, run in handle.store.runs.networks():
            if run.target == str(self.target) and machine_class(session) == own:
                for each in (*run.others, *run.operators):
                    if each.workload is not None and each.calls:
                        seconds[each.workload] = each.seconds / each.calls
        keys = self._keys() if seconds else set()
        digests = {key: stored_digest(handle, self.tasks[key]) for key in keys}
        return {key: seconds[digest] for key, digest in digests.items() if digest in seconds}

    def _keys(self) -> set[int]:
        return {key for several in self.options for option in several for key in option}


def lower_fastest(mod: Any, target: Any, lowering: Lowering, handle: Handle) -> Lowered:
    """Lower a Relax program with the fastest algorithm of each operator.

    The times of the best records decide; among algorithms whose records are close, those that
    tuning runs have measured in networks.

    Parameters
    ----------
    mod : tvm.IRModule
        A Relax program.
    target : tvm.target.Target
        Target of the compilation.
    lowering : Lowering
        Its algorithms are the choice.
    handle : Handle
        Handle of the database.

    Raises
    ------
    UsageError
        A symbolic size has no number, or a number has no symbolic size.
    Exception
        A pass of TVM fails; it may raise any class.
    """
    lowered = lower(mod, target, lowering)
    if not lowered.convolutions:
        return lowered
    choices = Choices.of(lowered, target)
    fastest = choices.fastest(choices.recorded(handle), choices.in_networks(handle))
    return choices.lower(fastest)

"""Measurement of a tuning run's networks, before and after."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Self

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.tune_context import _normalize_mod

from ....errors import TuneDBError
from ....storage.network_runs import NetworkRun, OperatorTime
from ....system.roofline import Roofline
from .. import modules
from ..database.database import Database
from ..deploy.apply import compile_lowered
from ..deploy.network import bind_sizes
from ..deploy.network_times import FunctionTime, NetworkTimer, Times, inputs_of
from ..module_source import prim_funcs
from ..targets import is_cpu
from .scheduler import sizes_of
from .tasks import Network, Task

__all__ = ["MeasuredNetwork", "tuned_networks", "untuned_networks", "untuned_seconds"]

#: What TVM's ``SplitLayoutRewritePreproc`` appends to the name of a function.
_PACKED = "_prepacked"


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredNetwork:
    """A network whose untuned times are known.

    Parameters
    ----------
    network : Network
        The network.
    target : tvm.target.Target
        Its target.
    workloads : mapping of str to str
        Function → digest of its workload.
    measure : callable
        Measures an executable of it.
    untuned : Times
        Its times with TVM's default programs.
    roofline : Roofline or None
        Limits of the machine; None on GPUs.
    """

    network: Network
    target: Any
    workloads: Mapping[str, str]
    measure: Callable[[Any], Times]
    untuned: Times
    roofline: Roofline | None

    @classmethod
    def begin(
        cls, network: Network, target: Any, timer: NetworkTimer, roofline: Roofline | None
    ) -> Self:
        """Measure an untuned network.

        Raises
        ------
        TuneDBError
            It cannot be measured; the message says why.
        """
        inputs = inputs_of(bind_sizes(network.mod, network.sizes))
        if inputs is None:
            raise TuneDBError("an argument is not a tensor of known size")
        untuned = compile_lowered(network.lowered, None, target)
        return cls(
            network,
            target,
            {
                name: _digest(_normalize_mod(function))
                for name, function in prim_funcs(network.lowered.mod).items()
            },
            lambda executable: timer.times(executable, inputs, network.name),
            timer.times(untuned.executable, inputs, network.name),
            roofline,
        )

    def times_of(self, workload: str) -> list[FunctionTime]:
        """Return the untuned times of the functions of a workload."""
        functions = self.untuned.functions.items()
        return [time for name, time in functions if self._key(name) == workload]

    def finish(self, database: Database, threads: int | None, tasks: Sequence[Task]) -> NetworkRun:
        """Compile the network with the best programs of a database and measure it.

        Parameters
        ----------
        database : Database
            Database of the run.
        threads : int or None
            Threads of TVM's runtime.
        tasks : sequence of Task
            Tasks of the run.

        Raises
        ------
        TuneDBError
            It cannot be measured; the message says why.
        """
        lowered, goal = self.network.lowered, self.network.goal
        tuned = self.measure(compile_lowered(lowered, database, self.target).executable)
        return NetworkRun(
            name=self.network.name,
            target=str(self.target),
            threads=threads,
            untuned=self.untuned.latency,
            latency=tuned.latency,
            deviation=tuned.deviation,
            tolerance=tuned.tolerance,
            operators=self._operators(tuned, {_digest(task.mod): task.name for task in tasks}),
            roofline=self.roofline,
            weight=goal.weight,
            latency_target=goal.latency,
        )

    def keep_untuned(self, database: Database, run: NetworkRun, tasks: Sequence[Task]) -> set[str]:
        """Store TVM's default program of each operator whose best program is slower in the network.

        Only for CPUs, where the default program is the function as it is. Its time is that in the
        untuned network.

        Parameters
        ----------
        database : Database
            Database of the run.
        run : NetworkRun
            Times of the tuned network.
        tasks : sequence of Task
            Tasks of the run.

        Returns
        -------
        set of str
            Digests of the workloads whose best program is another one now.
        """
        mods = {_digest(task.mod): task.mod for task in tasks}
        changed = set()
        for operator in run.slower if is_cpu(self.target) else ():
            digest = operator.workload or ""
            mod = mods.get(digest)
            if mod is None:
                continue
            seconds = operator.untuned / operator.calls
            best = database._handle.stored_task(mod, self.target).best
            # Where the runner measured less, both times do not stand beside one another.
            if best is not None and (best.mean or 0.0) > seconds:
                database.commit_tuning_record(_untuned_record(database, mod, seconds, self.target))
                changed.add(digest)
        return changed

    def _operators(self, tuned: Times, names: Mapping[str, str]) -> tuple[OperatorTime, ...]:
        """Return the operators, slowest first; functions of one workload are one operator."""
        untuned: dict[str, float] = defaultdict(float)
        functions: dict[str, list[tuple[str, FunctionTime]]] = defaultdict(list)
        for name, time in self.untuned.functions.items():
            untuned[self._key(name)] += time.seconds
        for name, time in tuned.functions.items():
            functions[self._key(name)].append((name, time))
        operators, mod = [], self.network.lowered.mod
        for key, parts in functions.items():
            name = parts[0][0].removesuffix(_PACKED)
            is_known = name in self.workloads
            flop, size = sizes_of(_normalize_mod(mod[name])) if is_known else (None, None)
            operators.append(
                OperatorTime(
                    name=names.get(key, name),
                    workload=key if is_known else None,
                    calls=sum(time.calls for _, time in parts),
                    untuned=untuned[key],
                    seconds=sum(time.seconds for _, time in parts),
                    flop=flop,
                    size=size,
                )
            )
        return tuple(sorted(operators, key=lambda operator: -operator.seconds))

    def _key(self, function: str) -> str:
        """Return the digest of a function's workload; its name where it is not a PrimFunc."""
        name = function.removesuffix(_PACKED)
        return self.workloads.get(name, name)


def untuned_networks(
    networks: Sequence[Network],
    target: Any,
    roofline: Roofline | None,
    notes: list[str],
    stack: ExitStack,
) -> list[MeasuredNetwork]:
    """Measure untuned networks, and the machine where its limits are unknown.

    Parameters
    ----------
    networks : sequence of Network
        Networks of the run.
    target : tvm.target.Target
        Their target.
    roofline : Roofline or None
        Limits of this machine, if they are known.
    notes : list of str
        Gets a note on each network that cannot be measured.
    stack : ExitStack
        Ends the process that measures.
    """
    device = tvm.runtime.device(target.get_target_device_type())
    if not device.exist:
        notes.append(
            "the network's latency is not measured: this machine has no device for "
            f"{target.kind.name}"
        )
        return []
    timer = stack.enter_context(NetworkTimer(str(device.type)))
    measured = []
    for network in networks:
        try:
            if roofline is None and is_cpu(target):
                roofline = timer.roofline(target)
            measured.append(MeasuredNetwork.begin(network, target, timer, roofline))
        except TuneDBError as error:
            notes.append(f"{network.name}: the network's latency is not measured: {error}")
    return measured


def untuned_seconds(networks: Sequence[MeasuredNetwork], task: Any) -> float | None:
    """Return the seconds of one call of a task's untuned function, or None if unknown."""
    digest = _digest(task)
    times = [time for network in networks for time in network.times_of(digest)]
    calls = sum(time.calls for time in times)
    return sum(time.seconds for time in times) / calls if calls else None


def tuned_networks(
    networks: Sequence[MeasuredNetwork],
    database: Database,
    threads: int | None,
    tasks: Sequence[Task],
    notes: list[str],
) -> Iterator[NetworkRun]:
    """Measure networks with the best programs of a database.

    An operator keeps TVM's default program where that is faster in a network; networks that call
    it are measured again.

    Parameters
    ----------
    networks : sequence of MeasuredNetwork
        Networks of the run.
    database : Database
        Database of the run.
    threads : int or None
        Threads of TVM's runtime.
    tasks : sequence of Task
        Tasks of the run.
    notes : list of str
        Gets a note on each network that cannot be measured.
    """

    def finish(network: MeasuredNetwork) -> NetworkRun | None:
        try:
            return network.finish(database, threads, tasks)
        except TuneDBError as error:
            notes.append(f"{network.network.name}: the tuned network is not measured: {error}")
            return None

    runs = [finish(network) for network in networks]
    changed: set[str] = set()
    for network, run in zip(networks, runs, strict=True):
        if run is not None:
            changed |= network.keep_untuned(database, run, tasks)
    for network, run in zip(networks, runs, strict=True):
        is_stale = run is not None and not changed.isdisjoint(network.workloads.values())
        last = finish(network) if is_stale else run
        if last is not None:
            yield last


def _untuned_record(database: Database, mod: Any, seconds: float, target: Any) -> Any:
    """Return a record of a function as it is."""
    schedule = Schedule(mod)
    (function,) = mod.get_global_vars()
    # TVM takes a trace without an instruction for no program; this one changes nothing.
    schedule.get_sblock("root", function.name_hint)
    return ms.database.TuningRecord(
        schedule.trace,
        database.commit_workload(mod),
        [seconds],
        target,
        ms.arg_info.ArgInfo.from_entry_func(mod, remove_preproc=True),
    )


def _digest(mod: Any) -> str:
    return str(modules.to_workload(mod).digest.hex())

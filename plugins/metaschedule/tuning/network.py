"""Measurement of a tuning run's networks, before and after."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from math import inf
from typing import Any, Self

from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.tune_context import _normalize_mod

from ....errors import PluginError, TuneDBError
from ....storage.network_runs import NetworkRun, OperatorTime
from ....system.roofline import Roofline
from ..database.database import Database
from ..deploy.algorithms import Choices, key_of, stored_digest
from ..deploy.apply import compile_lowered
from ..deploy.network import Lowered, bind_sizes
from ..deploy.network_times import FunctionTime, NetworkTimer, Times, inputs_of
from ..module_source import prim_funcs
from ..targets import device_of, first_line, is_cpu
from ..winograd import TILES
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
    functions : mapping of str to int
        Function of the untuned network → :func:`.algorithms.key_of`.
    measure : callable
        Measures an executable of it.
    untuned : Times
        Its times with TVM's default programs.
    roofline : Roofline or None
        Limits of the machine; None on GPUs.
    """

    network: Network
    target: Any
    functions: Mapping[str, int]
    measure: Callable[[Any], Times]
    untuned: Times
    roofline: Roofline | None

    @classmethod
    def begin(
        cls, network: Network, target: Any, timer: NetworkTimer, roofline: Roofline | None
    ) -> Self:
        """Measure an untuned network, and the limits of a CPU where they are unknown.

        Raises
        ------
        TuneDBError
            It cannot be measured; the message says why.
        """
        inputs = inputs_of(bind_sizes(network.mod, network.sizes))
        if inputs is None:
            raise TuneDBError("it has no function main whose arguments are tensors of known sizes")

        def measure(executable: Any) -> Times:
            return timer.times(executable, inputs, network.name)

        untuned = measure(compile_lowered(network.lowered, None, target, is_timed=True).executable)
        if roofline is None and is_cpu(target):
            roofline = timer.roofline(target)
        return cls(network, target, _keys(network.lowered), measure, untuned, roofline)

    def times_of(self, key: int) -> list[FunctionTime]:
        """Return the untuned times of the functions with a key."""
        functions = self.untuned.functions.items()
        return [time for name, time in functions if _key(name, self.functions) == key]

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
        network, goal = self.network, self.network.goal
        try:
            lowered, tuned, others = self._fastest(database)
        except TuneDBError:
            raise
        except Exception as error:  # TVM raises any class
            raise PluginError(f"TVM cannot lower it: {first_line(error)}") from error
        names = {key_of(task.mod): task.name for task in tasks}
        operators = self._operators(lowered, tuned, names, database)
        own = {operator.workload for operator in operators}
        return NetworkRun(
            name=network.name,
            target=str(self.target),
            threads=threads,
            untuned=self.untuned.latency,
            latency=tuned.latency,
            deviation=tuned.deviation,
            tolerance=tuned.tolerance,
            operators=operators,
            roofline=self.roofline,
            weight=goal.weight,
            latency_target=goal.latency,
            others=tuple(
                operator
                for mod, times in others
                for operator in self._operators(mod, times, names, database)
                if operator.workload not in own
            ),
        )

    def _fastest(self, database: Database) -> tuple[Lowered, Times, list[tuple[Lowered, Times]]]:
        """Measure the network with the fastest algorithms, and with others that come close.

        The times of the records say which come close, those in the network which is the fastest.
        """

        def compiled(lowered: Lowered) -> Any:
            return compile_lowered(lowered, database, self.target, is_timed=True).executable

        if not self.network.lowered.convolutions:
            lowered = self.network.lowered
            return lowered, self.measure(compiled(lowered)), []
        choices = Choices.of(self.network.lowered, self.target)
        records = choices.recorded(database._handle)
        lowerings: dict[tuple[int, ...], Lowered] = {}
        executables: dict[tuple[int, ...], Any] = {}
        times: dict[tuple[int, ...], Times] = {}

        def measure(chosen: tuple[int, ...]) -> None:
            if chosen not in executables:
                lowerings[chosen] = choices.lower(chosen)
                executables[chosen] = compiled(lowerings[chosen])
            new = self.measure(executables[chosen])
            times[chosen] = new.at_most(times[chosen]) if chosen in times else new

        first = choices.ranked(records, 0)
        measure(first)
        others = {choices.ranked(records, rank) for rank in range(1, 1 + len(TILES))}
        others.discard(first)
        # Twice and in turn, so that one disturbance does not decide.
        for chosen in [*sorted(others), *([first, *sorted(others)] if others else ())]:
            with suppress(TuneDBError):  # a network that fails is not the fastest
                measure(chosen)
        seconds: dict[int, float] = {}
        for chosen, each in times.items():
            keys = _keys(lowerings[chosen])
            for name, time in each.functions.items():
                if isinstance(key := _key(name, keys), int):
                    seconds[key] = min(time.seconds / time.calls, seconds.get(key, inf))
        fastest = choices.fastest(records, seconds)
        if fastest not in times:
            with suppress(TuneDBError):
                measure(fastest)
        best = fastest if fastest in times else first
        rest = [(lowerings[chosen], each) for chosen, each in times.items() if chosen != best]
        return lowerings[best], times[best], rest

    def keep_untuned(self, database: Database, run: NetworkRun, tasks: Sequence[Task]) -> set[int]:
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
        set of int
            Keys of the functions whose best program is another one now.
        """
        mods = {stored_digest(database._handle, task.mod): task.mod for task in tasks}
        changed, own = set(), set(self.functions.values())
        for operator in run.slower if is_cpu(self.target) else ():
            mod = mods.get(operator.workload or "")
            if mod is None or key_of(mod) not in own:
                continue
            seconds = operator.untuned / operator.calls
            best = database._handle.stored_task(mod, self.target).best
            # Where the runner measured less, both times do not stand beside one another.
            if best is not None and (best.mean or 0.0) > seconds:
                database.commit_tuning_record(_untuned_record(database, mod, seconds, self.target))
                changed.add(key_of(mod))
        return changed

    def _operators(
        self, lowered: Lowered, tuned: Times, names: Mapping[int, str], database: Database
    ) -> tuple[OperatorTime, ...]:
        """Return the operators, slowest first; functions of one workload are one operator."""
        keys, mods = _keys(lowered), prim_funcs(lowered.mod)
        untuned: dict[int | str, float] = defaultdict(float)
        functions: dict[int | str, list[tuple[str, FunctionTime]]] = defaultdict(list)
        for name, time in self.untuned.functions.items():
            untuned[_key(name, self.functions)] += time.seconds
        for name, time in tuned.functions.items():
            functions[_key(name, keys)].append((name, time))
        replaced = sum(seconds for key, seconds in untuned.items() if key not in functions)
        new = {
            key: sum(time.seconds for _, time in parts)
            for key, parts in functions.items()
            if key not in untuned
        }
        operators = []
        for key, parts in functions.items():
            name, workload = parts[0][0].removesuffix(_PACKED), None
            flop = size = None
            if isinstance(key, int):
                mod = _normalize_mod(mods[name])
                workload = stored_digest(database._handle, mod)
                flop, size = sizes_of(mod)
                name = names.get(key, name)
            operators.append(
                OperatorTime(
                    name=name,
                    workload=workload,
                    calls=sum(time.calls for _, time in parts),
                    untuned=replaced * new[key] / sum(new.values()) if key in new else untuned[key],
                    seconds=sum(time.seconds for _, time in parts),
                    flop=flop,
                    size=size,
                )
            )
        return tuple(sorted(operators, key=lambda operator: -operator.seconds))


def _keys(lowered: Lowered) -> dict[str, int]:
    """Return the key of each function of a program."""
    functions = prim_funcs(lowered.mod).items()
    return {name: key_of(_normalize_mod(function)) for name, function in functions}


def _key(function: str, keys: Mapping[str, int]) -> int | str:
    """Return the key of a compiled function; its name where it is not a PrimFunc."""
    name = function.removesuffix(_PACKED)
    return keys.get(name, name)


def untuned_networks(
    networks: Sequence[Network],
    target: Any,
    roofline: Roofline | None,
    notes: list[str],
    before: Callable[[], None],
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
    before : callable
        Called before each measurement, after the compilation: waits for other work to end.
    stack : ExitStack
        Ends the process that measures.
    """
    device = device_of(target)
    if not device.exist:
        notes.append(
            "the network's latency is not measured: this machine has no device for "
            f"{target.kind.name}"
        )
        return []
    timer = stack.enter_context(NetworkTimer(str(device.type), before))
    measured = []
    for network in networks:
        try:
            measured.append(MeasuredNetwork.begin(network, target, timer, roofline))
            roofline = measured[-1].roofline
        except TuneDBError as error:
            notes.append(f"{network.name}: the network's latency is not measured: {error}")
    return measured


def untuned_seconds(networks: Sequence[MeasuredNetwork], task: Any) -> float | None:
    """Return the seconds of one call of a task's untuned function, or None if unknown."""
    key = key_of(task)
    times = [time for network in networks for time in network.times_of(key)]
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
    changed: set[int] = set()
    for network, run in zip(networks, runs, strict=True):
        if run is not None:
            changed |= network.keep_untuned(database, run, tasks)
    for network, run in zip(networks, runs, strict=True):
        is_stale = run is not None and not changed.isdisjoint(network.functions.values())
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

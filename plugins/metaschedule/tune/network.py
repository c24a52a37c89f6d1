"""Measurement of a tuning run's network, before and after."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Self

import tvm
from tvm.s_tir.meta_schedule.tune_context import _normalize_mod

from ....errors import TuneDBError
from ....storage.network_runs import NetworkRun, OperatorTime
from ....system.roofline import Roofline
from .. import modules
from ..database.database import Database
from ..deploy.apply import compile_lowered
from ..deploy.network import Lowered, Lowering
from ..deploy.network_times import FunctionTime, NetworkTimer, Times, inputs_of
from ..module_source import prim_funcs
from ..targets import is_cpu
from .defaults import Task
from .scheduler import sizes_of

__all__ = ["Network"]

#: What TVM's ``SplitLayoutRewritePreproc`` appends to the name of a function.
_PACKED = "_prepacked"


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """The network of a tuning run, whose untuned times are known.

    Parameters
    ----------
    lowered : Lowered
        The network, lowered.
    target : tvm.target.Target
        Its target.
    packs : bool
        Whether weights are packed.
    workloads : mapping of str to str
        Function → digest of its workload.
    measure : callable
        Measures an executable of it.
    untuned : Times
        Its times with TVM's default programs.
    roofline : Roofline or None
        Limits of the machine; None on GPUs.
    """

    lowered: Lowered
    target: Any
    packs: bool
    workloads: Mapping[str, str]
    measure: Callable[[Any], Times]
    untuned: Times
    roofline: Roofline | None

    @classmethod
    def begin(
        cls,
        mod: Any,
        lowered: Lowered,
        target: Any,
        lowering: Lowering,
        roofline: Roofline | None,
        stack: ExitStack,
    ) -> Self:
        """Measure an untuned network, and the machine where its limits are unknown.

        Parameters
        ----------
        mod : tvm.IRModule
            The network as the user gives it.
        lowered, target, lowering
            The same, lowered, with the target and the way.
        roofline : Roofline or None
            Limits of this machine, if they are known.
        stack : ExitStack
            Ends the process that measures.

        Raises
        ------
        TuneDBError
            It cannot be measured; the message says why.
        """
        inputs = inputs_of(mod)
        if inputs is None:
            raise TuneDBError("an argument is no tensor of known size")
        device = tvm.runtime.device(target.get_target_device_type())
        if not device.exist:
            raise TuneDBError(f"this machine has no device for {target.kind.name}")
        packs = lowering.packs(target)
        untuned = compile_lowered(lowered.mod, None, target, packs=packs)
        timer = stack.enter_context(NetworkTimer(str(device.type)))
        times = timer.times(untuned.executable, inputs)
        if roofline is None and is_cpu(target):
            roofline = timer.roofline(target)
        return cls(
            lowered,
            target,
            packs,
            {
                name: _digest(_normalize_mod(function))
                for name, function in prim_funcs(lowered.mod).items()
            },
            lambda executable: timer.times(executable, inputs),
            times,
            roofline,
        )

    def untuned_seconds(self, task: Any) -> float | None:
        """Return the seconds of one call of a task's untuned function, or None if unknown."""
        digest = _digest(task)
        times = [time for name, time in self.untuned.functions.items() if self._key(name) == digest]
        calls = sum(time.calls for time in times)
        return sum(time.seconds for time in times) / calls if calls else None

    def finish(
        self, database: Database, name: str, threads: int | None, tasks: Sequence[Task]
    ) -> NetworkRun:
        """Compile the network with the best programs of a database and measure it.

        Parameters
        ----------
        database : Database
            Database of the run.
        name : str
            Name of the network.
        threads : int or None
            Threads of TVM's runtime.
        tasks : sequence of Task
            Tasks of the run.

        Raises
        ------
        TuneDBError
            It cannot be measured; the message says why.
        """
        made = compile_lowered(self.lowered.mod, database, self.target, packs=self.packs)
        tuned = self.measure(made.executable)
        return NetworkRun(
            name=name,
            target=str(self.target),
            threads=threads,
            untuned=self.untuned.latency,
            latency=tuned.latency,
            deviation=tuned.deviation,
            tolerance=tuned.tolerance,
            operators=self._operators(tuned, {_digest(task.mod): task.name for task in tasks}),
            roofline=self.roofline,
        )

    def _operators(self, tuned: Times, names: Mapping[str, str]) -> tuple[OperatorTime, ...]:
        """Return the operators, slowest first; functions of one workload are one operator."""
        untuned: dict[str, float] = defaultdict(float)
        functions: dict[str, list[tuple[str, FunctionTime]]] = defaultdict(list)
        for name, time in self.untuned.functions.items():
            untuned[self._key(name)] += time.seconds
        for name, time in tuned.functions.items():
            functions[self._key(name)].append((name, time))
        operators = []
        for key, parts in functions.items():
            name = parts[0][0].removesuffix(_PACKED)
            is_known = name in self.workloads
            flop, size = (
                sizes_of(_normalize_mod(self.lowered.mod[name])) if is_known else (None, None)
            )
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


def _digest(mod: Any) -> str:
    return str(modules.to_workload(mod).digest.hex())

"""Times of a compiled network and of its functions, measured in a process of its own."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Self

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax, tirx
from tvm.support.popen_pool import PopenPoolExecutor

from ....errors import PluginError
from ....system.roofline import Roofline
from ....system.temporary import TemporaryFolder
from ..compat import relax_type
from ..measure.roofline import measure_roofline
from ..targets import first_line
from ..threads import use_threads
from . import numerics

__all__ = ["FunctionTime", "Inputs", "NetworkTimer", "Times", "inputs_of"]

#: Seconds of the timed runs of a network; one that takes longer runs once.
_SECONDS = 1.0
#: Runs at most.
_RUNS = 200
#: Functions of the virtual machine itself.
_BUILTIN = "vm.builtin."


@dataclass(frozen=True, slots=True)
class Inputs:
    """Arguments of a network.

    Parameters
    ----------
    tensors : tuple of (str, str, list of int)
        ``TENSOR``, dtype and shape of each argument.
    count : int
        Number of arguments that are no weights; they come first.
    """

    tensors: tuple[tuple[str, str, list[int]], ...]
    count: int


@dataclass(frozen=True, slots=True)
class FunctionTime:
    """Time of a function in one run of a network.

    Parameters
    ----------
    calls : int
        Number of calls.
    seconds : float
        Seconds of all calls in a run of the network, whose data is in the caches or not as it is
        there: the median of several runs; of one if the network takes a second or more. A call
        includes about a microsecond of the measurement itself.
    """

    calls: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Times:
    """Times of a network.

    Parameters
    ----------
    latency : float
        Median seconds of a run.
    functions : mapping of str to FunctionTime
        Functions that are not the virtual machine's own.
    deviation, tolerance : float
        Largest relative deviation of an output from that of the first executable of the network
        (:func:`.numerics.deviation`), and the largest that is allowed.
    """

    latency: float
    functions: Mapping[str, FunctionTime]
    deviation: float
    tolerance: float

    def at_most(self, other: Times) -> Times:
        """Return the smaller times of two measurements of one executable."""
        functions = {
            name: min(time, other.functions[name], key=lambda each: each.seconds)
            for name, time in self.functions.items()
        }
        return replace(self, latency=min(self.latency, other.latency), functions=functions)


class NetworkTimer:
    """Measures networks with random inputs, one after another, in one process.

    Parameters
    ----------
    device : str
        Kind of the device, in TVM's words.
    before : callable
        Called before each measurement: waits for other work to end.
    seconds : float
        Time limit of one measurement, and of the start of the process.
    """

    def __init__(
        self,
        device: str = "cpu",
        before: Callable[[], object] = lambda: None,
        seconds: float = 60.0,
    ) -> None:
        self._device = device
        self._before = before
        threads = use_threads()
        self._threads = threads.count
        self._folder = TemporaryFolder("network")
        self._numbers = count()
        self._outputs: dict[str, Path] = {}
        self._pool = PopenPoolExecutor(max_workers=1, timeout=seconds, initializer=use_threads)
        self._pool.submit(_start)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._pool.shutdown(wait=False)
        self._folder.close()

    def times(self, executable: Any, inputs: Inputs, name: str = "") -> Times:
        """Measure a network.

        Parameters
        ----------
        executable : tvm.relax.VMExecutable
            The network, compiled by :func:`.apply.compile_lowered` with `is_timed`.
        inputs : Inputs
            Its inputs (:func:`inputs_of`), which get equal random values each time.
        name : str
            Name of the network; outputs are compared among executables of one name.

        Raises
        ------
        PluginError
            The network cannot be linked, or its process fails or exceeds the time limit.
        """
        # A process that loads the same path twice gets the first library again.
        path = self._folder.path / f"network-{next(self._numbers)}.so"
        # A name may be no file's.
        outputs = self._outputs.setdefault(name, path.with_suffix(".npz"))
        try:
            executable.export_library(str(path))
            times: Times = self._call(_times, str(path), self._device, inputs, str(outputs))
            return times
        finally:
            path.unlink(missing_ok=True)

    def roofline(self, target: Any) -> Roofline:
        """Measure the limits of this machine (:func:`~.measure.roofline.measure_roofline`).

        Raises
        ------
        PluginError
            TVM cannot compile for the target.
        """
        limits: Roofline = self._call(_roofline, str(target), self._threads)
        return limits

    def _call(self, function: Any, *arguments: Any) -> Any:
        self._before()
        try:
            return self._pool.submit(function, *arguments).result()
        except TimeoutError:
            raise PluginError("a run exceeds the time limit") from None
        except Exception as error:  # TVM raises any class; the process may also end
            raise PluginError(first_line(error)) from error


def inputs_of(mod: Any) -> Inputs | None:
    """Return the inputs of a program's ``main``; None without one, or with other than tensors.

    All sizes must be known.
    """
    if "main" not in mod:
        return None
    main, tensors = mod["main"], []
    for parameter in main.params:
        type_ = relax_type(parameter)
        shape = getattr(type_, "shape", None)
        extents: list[Any] = list(shape.values) if isinstance(shape, relax.ShapeExpr) else [None]
        if not all(isinstance(extent, tirx.IntImm) for extent in extents):
            return None
        tensors.append(("TENSOR", str(type_.dtype), [int(extent) for extent in extents]))
    weights = main.attrs and "num_input" in main.attrs
    return Inputs(tuple(tensors), int(main.attrs["num_input"]) if weights else len(tensors))


# ---------------------------------------------------------------------- in the process


def _start() -> None:
    """Start the process."""


def _roofline(target: str, threads: int) -> Roofline:
    return measure_roofline(tvm.target.Target(target), threads)


def _times(path: str, kind: str, inputs: Inputs, outputs: str) -> Times:
    """Measure the network of a library."""
    device = tvm.runtime.device(kind)
    library = tvm.runtime.load_module(path)
    machine = relax.VirtualMachine(library, device)
    arrays = numerics.drawn(inputs.tensors, 0, seed=0)
    tensors = [
        numerics.tensor(device, dtype, array)
        for (_, dtype, _), array in zip(inputs.tensors, arrays, strict=True)
    ]
    with suppress(AttributeError):  # the function of a network whose weights are parameters
        pack = machine["main_transform_params"]
        tensors[inputs.count :] = pack(tensors[inputs.count :])

    def run(main: Callable[..., Any]) -> Any:
        result = main(*tensors)
        device.sync()
        return result

    calls: dict[str, list[float]] = defaultdict(list)
    begun: list[float] = []

    def instrument(_function: Any, name: str, before: bool, _result: Any, *_arguments: Any) -> int:
        if before:
            begun.append(time.perf_counter())
        else:
            device.sync()
            calls[str(name)].append(time.perf_counter() - begun.pop())
        return 0

    def own_calls() -> dict[str, list[float]]:
        return {name: times for name, times in calls.items() if not name.startswith(_BUILTIN)}

    def watch() -> None:
        calls.clear()
        run(watched["main"])
        runs.append(own_calls())

    watched = relax.VirtualMachine(library, device)
    watched.set_instrument(instrument)
    begin = time.perf_counter()
    results = _arrays(run(watched["main"]))
    latency = time.perf_counter() - begin
    runs = [own_calls()]
    if latency < _SECONDS:
        latency = median(_seconds(lambda: run(machine["main"])))
        runs.clear()
        _seconds(watch)
    return Times(
        latency,
        {
            name: FunctionTime(len(times), median(sum(run[name]) for run in runs))
            for name, times in runs[0].items()
        },
        _deviation(results, Path(outputs)),
        numerics.tolerance_of([str(array.dtype) for array in results]),
    )


def _seconds(run: Callable[[], object]) -> list[float]:
    """Return the seconds of runs."""
    seconds: list[float] = []
    while not seconds or (sum(seconds) < _SECONDS and len(seconds) < _RUNS):
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return seconds


def _arrays(result: Any) -> list[NDArray[Any]]:
    """Return the tensors of a result, which may be nested."""
    if isinstance(result, tvm.runtime.Tensor):
        return [numerics.plain(result.numpy())]
    return [array for part in result for array in _arrays(part)]


def _deviation(results: Sequence[NDArray[Any]], path: Path) -> float:
    """Return the largest deviation from the results in a file; write the file if it is missing."""
    if not path.exists():
        np.savez(path, *results)
        return 0.0
    with np.load(path) as expected:
        return max(
            numerics.deviation(expected[f"arr_{number}"], array)
            for number, array in enumerate(results)
        )

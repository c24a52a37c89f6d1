"""Comparison of programs with the unscheduled functions, before they go into a library.

A program of the database ran when it was measured, and a predicted one never did. Neither shows
that its results are right: TVM's transformations have errors, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tvm
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.builder import BuilderInput
from tvm.support.popen_pool import PopenPoolExecutor

from ....records import Trace
from ....system.temporary import TemporaryFolder
from ..targets import device_of, first_line
from ..threads import use_threads
from ..workers.warm_builder import WarmBuilder
from . import numerics
from .build_and_run import Evaluator

if TYPE_CHECKING:
    from ....models.evaluation import OnStep

__all__ = ["Doubt", "doubts"]

#: Seconds for one build, and for the runs of one function and its program.
_LIMIT_SEC = 120.0
#: Lists of random arguments (:func:`.numerics.drawn`), and their seed.
_DRAWS, _SEED = 2, 0


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why a program may compute other results than its function.

    Parameters
    ----------
    is_wrong : bool
        Whether its results differ, or it cannot be built or run. Else the unscheduled function
        cannot, and nothing is known.
    reason : str
        The reason, in one line.
    """

    is_wrong: bool
    reason: str


def doubts(
    programs: Mapping[bytes, tuple[Any, Trace]], target: Any, on_step: OnStep
) -> dict[bytes, Doubt]:
    """Run programs and their unscheduled functions with equal arguments; return the doubtful ones.

    Parameters
    ----------
    programs : mapping of bytes to (tvm.IRModule, Trace)
        Modules of one function, and their traces.
    target : tvm.target.Target
        Target of the programs, whose device is in this machine.
    on_step : callable
        Called after each comparison.

    Returns
    -------
    dict of bytes to Doubt
        By the keys of `programs`. Programs are missing whose results are those of the function
        within :data:`.numerics.TOLERANCES`.
    """
    found: dict[bytes, Doubt] = {}
    device = str(device_of(target).type)
    on_step(0, len(programs), "verifying")
    with (
        WarmBuilder(timeout_sec=_LIMIT_SEC, f_build=numerics.build) as builder,
        TemporaryFolder("verification") as folder,
        _one_process() as pool,
    ):
        inputs = []
        for mod, trace in programs.values():
            inputs += [_input(mod, None, tvm.target.Target("llvm")), _input(mod, trace, target)]
        built = iter(builder.build(inputs) if inputs else [])
        for number, (key, (mod, _)) in enumerate(programs.items()):
            reference, program = next(built), next(built)
            doubt = _failed(reference, program)
            if doubt is None:
                run = _Run(_arguments(mod), str(folder.path / f"{number}.npz"))
                libraries = (str(reference.artifact_path), str(program.artifact_path))
                doubt = _compared(pool, run, libraries, device)
            if doubt is not None:
                found[key] = doubt
            on_step(number + 1, len(programs), "verifying")
    return found


@contextmanager
def _one_process() -> Iterator[Any]:
    """Yield a pool of one process, which is replaced if a program ends it."""
    pool = PopenPoolExecutor(max_workers=1, timeout=_LIMIT_SEC, initializer=use_threads)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False)


def _input(mod: Any, trace: Trace | None, target: Any) -> Any:
    """Return what a builder takes for a module, scheduled by a trace or not."""
    order = numerics.order_of(trace, keep_preproc=True)
    return BuilderInput(mod.with_attr(numerics.ORDER, order), target)


def _arguments(mod: Any) -> list[tuple[str, str, list[int]]]:
    """Return the arguments of a function in types of Python, which another process can have."""
    described = [info.as_json() for info in ArgInfo.from_entry_func(mod)]
    return [(str(kind), str(dtype), [int(e) for e in shape]) for kind, dtype, shape in described]


def _failed(reference: Any, program: Any) -> Doubt | None:
    """Return the doubt about a program that cannot be built, or whose function cannot."""
    if reference.error_msg is not None:
        return Doubt(False, f"the unscheduled function: {first_line(reference.error_msg)}")
    if program.error_msg is not None:
        return Doubt(True, first_line(program.error_msg))
    return None


def _compared(pool: Any, run: _Run, libraries: tuple[str, str], device: str) -> Doubt | None:
    """Return the doubt about a program after its function and the program have run."""
    try:
        pool.submit(run, numerics.run_reference, libraries[0], "cpu").result()
    except Exception as error:  # TVM raises any class; the process may also end
        return Doubt(False, f"the unscheduled function: {_reason(error)}")
    try:
        costs = pool.submit(run, numerics.run_compared, libraries[1], device).result()
    except Exception as error:
        return Doubt(True, _reason(error))
    difference = numerics.difference_of(costs)
    return None if difference is None else Doubt(True, difference)


@dataclass(frozen=True, slots=True)
class _Run:
    """Runs a library in another process with equal random arguments."""

    arguments: list[tuple[str, str, list[int]]]
    path: str

    def __call__(self, evaluate: Evaluator, library: str, kind: str) -> list[float]:
        device = tvm.runtime.device(kind)
        arguments = numerics.allocate(device, self.arguments, _DRAWS, seed=_SEED)
        module = tvm.runtime.load_module(library)
        return evaluate(module, device, None, arguments, path=self.path)


def _reason(error: Exception) -> str:
    return "it exceeds the time limit" if isinstance(error, TimeoutError) else first_line(error)

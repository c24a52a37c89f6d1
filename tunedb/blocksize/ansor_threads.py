"""Thread blocks of auto_scheduler's GPU programs, from their steps alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast

from ..features.steps.ansor import read_sketch
from ..launches import Launch
from ..records import Trace
from ..steps.ansor import ANNOTATIONS, join_steps
from .tvm_threads import AXES, Kernel, UnknownError, launches_of_kernels

if TYPE_CHECKING:
    from ..features.steps.formulas import Builder


def launches_of_steps(trace: Trace, name: str) -> tuple[Launch, ...]:
    """Return the kernels that the steps of a program make.

    A kernel is a stage with all that is computed in it.

    Parameters
    ----------
    trace : Trace
        Steps of auto_scheduler in their stored form.
    name : str
        Of the workload; TVM calls the kernels ``<name>_kernel``, ``<name>_kernel_1`` and so on.

    Returns
    -------
    tuple of Launch
        In the order of their stages. Empty where the extent of a bound loop is not among the
        steps.

    Raises
    ------
    FormatError
        The stored steps are damaged.
    """
    steps, _ = join_steps(trace)
    # The reader of the feature set "steps" follows the loops; it is given numbers for symbols.
    schedule = read_sketch(cast("Builder", _Numbers()), {"steps": steps})
    extents: dict[str, Iterator[Any]] = {place: iter(v) for place, v in schedule.bound.items()}
    stages = _Stages()
    kernels: dict[int, Kernel] = {}
    try:
        for code, stage, *fields in steps:
            stages.follow(code, stage, fields)
            place = ANNOTATIONS[fields[1]] if code == "AN" else "none"
            extent = None if place == "none" else next(extents[place])
            if place in AXES:
                kernel = kernels.setdefault(stages.own(stage), Kernel())
                kernel.bind(*AXES[place], None if extent is None else int(extent))
        return launches_of_kernels(_joined(kernels, stages), name)
    except UnknownError:
        return ()


def _joined(kernels: dict[int, Kernel], stages: _Stages) -> list[Kernel]:
    """Return the kernels of stages together that are computed in one."""
    joined: dict[int, Kernel] = {}
    for stage, kernel in kernels.items():
        host = joined.setdefault(stages.host(stage), Kernel())
        for kind, bound in (("blockIdx", kernel.blocks), ("threadIdx", kernel.threads)):
            for axis, extent in bound.items():
                host.bind(kind, axis, extent)
    return [kernel for _, kernel in sorted(joined.items(), key=lambda item: stages.place(item[0]))]


class _Stages:
    """Stages by numbers of their own: their places move when one is inserted."""

    def __init__(self) -> None:
        self._order: list[int] = []
        self._hosts: list[int | None] = []

    def follow(self, code: str, stage: int, fields: list[Any]) -> None:
        """Follow what a step does to stages."""
        self.own(stage)
        if code == "CHR":
            self._order.insert(stage + 1, self._new())
        elif code in ("CHW", "RF"):
            self._order.insert(stage, self._new())
        elif code == "CA":
            self._hosts[self.own(stage)] = self.own(fields[0])
        elif code == "CR":
            self._hosts[self.own(stage)] = None

    def own(self, place: int) -> int:
        """Return the number of the stage at a place."""
        while len(self._order) <= place:
            self._order.append(self._new())
        return self._order[place]

    def host(self, stage: int) -> int:
        """Return the stage in which one is computed in the end."""
        for _ in self._hosts:
            host = self._hosts[stage]
            if host is None:
                return stage
            stage = host
        raise UnknownError  # stages that are computed in each other

    def place(self, stage: int) -> int:
        """Return where a stage stands."""
        return self._order.index(stage)

    def _new(self) -> int:
        self._hosts.append(None)
        return len(self._hosts) - 1


class _Numbers:
    """What a :class:`~tunedb.features.steps.formulas.Builder` does, with numbers at once."""

    def const(self, number: float) -> float:
        return number

    def const_unknown(self) -> None:
        return None

    def product(self, values: Iterable[float | None]) -> float | None:
        found = list(values)
        return None if None in found else math.prod(cast("list[float]", found))

    def ceildiv(self, a: float | None, b: float | None) -> float | None:
        return None if a is None or not b else -(-a // b)

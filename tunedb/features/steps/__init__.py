"""Features of transform steps and decisions alone: no TVM, no replay (``steps``).

One row per program with the columns of :data:`.columns.COLUMNS`, the same for traces of
MetaSchedule, steps of auto_scheduler and knobs of AutoTVM. Each sketch of a workload is compiled
once to a formula (:mod:`.formulas`); a program then costs only arithmetic on its decisions.

* :mod:`.metaschedule`, :mod:`.ansor`, :mod:`.autotvm`: the schedule of a sketch
* :mod:`.targets`, :mod:`.tasks`, :mod:`.operators`: the facts of target and workload
* :mod:`.summary`: the columns of a schedule and of a tail
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray

from ...errors import FormatError, TuneDBError
from ...programs import TOOL_NAMES
from ...records import Workload
from ...results import StoredProgram
from .._steps import Formula, Numbers, evaluate
from ..base import Needs
from . import ansor, autotvm, metaschedule
from .columns import COLUMNS
from .formulas import COMPLAINTS, Builder, Stored
from .schedule import Schedule
from .summary import Summary, read_tail
from .targets import device_of
from .tasks import TaskStructure, read_task

__all__ = ["STEPS", "Steps"]

T = TypeVar("T")

#: Cache limits: formulas (about 15 KB each); tails, targets and workloads; bytes of their keys.
_MOST_FORMULAS = 1024
_MOST = 4096
_MOST_KEY_BYTES = 32 * 2**20

#: Tool → storage form of its decisions, and the reader of its sketches.
_READERS: dict[str, tuple[Stored, Callable[[Builder, Any, TaskStructure, bool], Schedule]]] = {
    "metaschedule": (
        Stored.TRACE,
        lambda builder, sketch, task, _: metaschedule.read_sketch(builder, sketch, task),
    ),
    "ansor": (Stored.VARINTS, lambda builder, sketch, _, __: ansor.read_sketch(builder, sketch)),
    "autotvm": (
        Stored.KNOBS,
        lambda builder, sketch, task, is_gpu: autotvm.read_sketch(
            builder, sketch, task, is_gpu=is_gpu
        ),
    ),
}


class Steps:
    """The feature set ``steps`` (:class:`~tunedb.features.base.StepFeatures`).

    Thread-safe.
    """

    name = "steps"
    version = 5
    columns = COLUMNS
    needs = Needs.STEPS

    def __init__(self) -> None:
        self._formulas: _BoundedCache[Formula] = _BoundedCache(_MOST_FORMULAS)
        self._tails: _BoundedCache[Numbers] = _BoundedCache()
        self._devices: _BoundedCache[Numbers] = _BoundedCache()
        self._tasks: _BoundedCache[tuple[int, TaskStructure, Numbers]] = _BoundedCache()
        self._structures: _BoundedCache[int] = _BoundedCache()
        self._numbers = count()

    def rows(self, programs: Sequence[StoredProgram]) -> list[NDArray[np.float32] | Exception]:
        """Return the features of programs.

        Parameters
        ----------
        programs : sequence of StoredProgram
            Programs in any order; programs of one sketch and workload share a formula.

        Returns
        -------
        list of ndarray of float32 (1, columns), or FormatError
            In the order of the programs; an error for one whose stored steps are damaged.
        """
        results: list[NDArray[np.float32] | Exception | None] = [None] * len(programs)
        good: list[int] = []
        formulas: list[Formula] = []
        tails: list[Numbers] = []
        devices: list[Numbers] = []
        tasks: list[Numbers] = []
        decisions: list[bytes] = []
        for number, program in enumerate(programs):
            try:
                formula, tail, device, task = self._parts_of(program)
            except TuneDBError as error:
                results[number] = error
                continue
            good.append(number)
            formulas.append(formula)
            tails.append(tail)
            devices.append(device)
            tasks.append(task)
            decisions.append(program.trace.decisions)
        rows = np.empty((len(good), len(COLUMNS)), np.float32)
        statuses = evaluate(formulas, decisions, tails, devices, tasks, rows)
        for at, (number, status) in enumerate(zip(good, statuses, strict=True)):
            results[number] = FormatError(COMPLAINTS[status]) if status else rows[at : at + 1]
        return results  # type: ignore[return-value]

    def _parts_of(self, program: StoredProgram) -> tuple[Formula, Numbers, Numbers, Numbers]:
        """Return the formula of a program, and the numbers of its tail, target and workload."""
        trace, target, workload = program.trace, program.target, program.workload
        tail = self._tails.get(trace.tail)
        if tail is None:
            size = len(trace.tail or b"")
            tail = self._tails.put(trace.tail, Numbers(read_tail(trace.tail)), size)
        device = self._devices.get(target.digest)
        if device is None:
            device = self._devices.put(target.digest, Numbers(device_of(target)))
        task = self._tasks.get(workload.digest)
        if task is None:
            structure, numbers = read_task(workload, program.signature, _tool_of(workload))
            number = self._structures.get(structure)
            if number is None:  # numbers are never reused: a cached formula cannot match another
                number = self._structures.put(structure, next(self._numbers))
            task = self._tasks.put(workload.digest, (number, structure, Numbers(numbers)))
        key = (trace.sketch, task[0], target.kind)
        formula = self._formulas.get(key)
        if formula is None:
            formula = _formula_of(trace.sketch, task[1], is_gpu=device_of(target)[0] > 0)
            self._formulas.put(key, formula, len(trace.sketch))
        return formula, tail, device, task[2]


def _tool_of(workload: Workload) -> str:
    tool = TOOL_NAMES.get(workload.format, "")
    if tool not in _READERS:
        raise FormatError(f"steps of {workload.format!r} are unknown; pip install --upgrade tunedb")
    return tool


def _formula_of(sketch: bytes, structure: TaskStructure, *, is_gpu: bool) -> Formula:
    """Compile a sketch to the formula of its columns; FormatError if it is damaged or too large."""
    try:
        steps = orjson.loads(sketch)
    except orjson.JSONDecodeError as error:
        raise FormatError(f"a sketch is not JSON: {error}") from None
    stored, read_sketch = _READERS[structure.tool]
    builder = Builder(stored, structure.n_extents)
    schedule = read_sketch(builder, steps, structure, is_gpu)
    Summary(builder, schedule, structure.tiled_block(schedule)).write()
    return builder.formula()


class _BoundedCache(dict[object, T]):
    """A cache that is cleared when it exceeds its limits."""

    def __init__(self, most: int = _MOST) -> None:
        super().__init__()
        self._most = most
        self._bytes = 0

    def put(self, key: object, value: T, size: int = 0) -> T:
        """Cache a value whose key has `size` bytes, and return it."""
        self._bytes += size
        if len(self) >= self._most or self._bytes > _MOST_KEY_BYTES:
            self.clear()
            self._bytes = size
        self[key] = value
        return value


#: The feature set (entry point ``tunedb.features``).
STEPS = Steps()

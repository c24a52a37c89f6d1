"""The schedule that the knobs of AutoTVM describe (:mod:`tunedb.programs.autotvm`).

The log does not have the template's use of a knob. The name of a knob in topi's templates gives the
axis of a tile, and the number of its parts the depth. The assumed order of loops is the usual one:
all outer tiles, then the reduction, then the innermost tiles.
"""

from __future__ import annotations

from typing import Any

from ...errors import FormatError
from .formulas import Builder, Value
from .operators import AnchorOperator
from .schedule import MAX_LOOPS, REDUCTION, SPATIAL, Axis, Loop, Schedule
from .tasks import TaskStructure

#: Most knobs of a configuration. Real ones have up to 20.
MAX_KNOBS = 1024

#: Letters of :mod:`.operators` by the names of topi's knobs, for convolutions and for products of
#: matrices.
_CONVOLUTION = {
    "tile_f": "c",
    "tile_co": "c",
    "tile_oc": "c",
    "tile_c": "c",
    "tile_k": "c",
    "tile_y": "h",
    "tile_oh": "h",
    "tile_x": "w",
    "tile_ow": "w",
    "tile_n": "n",
    "tile_b": "n",
    "tile_rc": "r",
    "tile_ci": "r",
    "tile_ic": "r",
    "tile_ry": "y",
    "tile_kh": "y",
    "tile_rx": "x",
    "tile_kw": "x",
}
_PRODUCT = {
    "tile_b": "b",
    "tile_y": "i",
    "tile_m": "i",
    "tile_x": "j",
    "tile_n": "j",
    "tile_k": "k",
    "k_factor": "k",
}

#: Parts of a spatial tile on a GPU, as topi's templates bind them: ``bf, vf, tf, fi``.
_GPU_PARTS = ("blockIdx.x", "vthread", "threadIdx.x")

_UNROLL = {"auto_unroll_max_step": "unroll_steps", "unroll_explicit": "unroll_explicit"}


def read_sketch(builder: Builder, sketch: Any, task: TaskStructure, *, is_gpu: bool) -> Schedule:
    """Return the schedule of a configuration's space.

    Raises
    ------
    FormatError
        The sketch is not a list of knobs, or has too many.
    """
    try:
        knobs = sketch["knobs"]
        if type(knobs) is not list or len(knobs) > MAX_KNOBS:
            raise ValueError("no list of knobs, or too long")
        return _read(builder, knobs, task, is_gpu)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise FormatError(f"cannot read knobs: {error!r:.200}") from None


def _read(builder: Builder, knobs: list[Any], task: TaskStructure, is_gpu: bool) -> Schedule:
    schedule = Schedule()
    builder.slots(1)  # the number of the configuration has no meaning
    tiles: dict[str, list[Value]] = {}
    for name, kind, length in knobs:
        count = 1 if length is None else length
        if not 0 <= count <= MAX_LOOPS:
            raise ValueError("a knob of too many values")
        values = builder.slots(count)
        if kind == "sp":
            schedule.counts["tile"] += 1
            tiles[name] = values
        elif kind == "re":
            schedule.counts["reorder"] += 1
        elif kind == "an":
            schedule.counts["annotate"] += 1
            for value in values:
                schedule.bind("annotations", value)
        else:
            schedule.counts["knob"] += 1
            schedule.bind(_UNROLL.get(name, "knob"), values[0])
    _tile(builder, schedule, tiles, task)
    schedule.nest = _usual_order(schedule.axes)
    if is_gpu:
        _bind_gpu(builder, schedule)
    return schedule


def _tile(
    builder: Builder, schedule: Schedule, tiles: dict[str, list[Value]], task: TaskStructure
) -> None:
    """Return the axes, in the operator's order; axes of unknown knobs come first."""
    operator = task.operator
    numbers = {} if operator is None else {one: at for at, one in enumerate(operator.letters)}
    letters = {name: _letter(name, task) for name in tiles}
    axes: dict[str, Axis] = {}
    for name, values in tiles.items():
        letter = letters[name]
        known = numbers.get(letter)
        extent = None if known is None else builder.extent(known)
        kind = AnchorOperator.kind(letter) if letter else SPATIAL
        axis = _axis(builder, values, extent, kind)
        if letter and letter not in axes:
            axes[letter] = axis
        else:
            schedule.axes.append(axis)
    order = "bincjhwrkyx" if operator is None else operator.letters
    for letter in order:
        if letter in axes:
            schedule.axes.append(axes.pop(letter))
        elif letter in numbers:
            whole = builder.extent(numbers[letter])
            schedule.axes.append(Axis(whole, AnchorOperator.kind(letter)))
    schedule.axes += axes.values()


def _letter(knob: str, task: TaskStructure) -> str:
    letter = (_PRODUCT if task.is_product else _CONVOLUTION).get(knob, "")
    if task.is_dense_gpu:
        return {"i": "j", "j": "i"}.get(letter, letter)  # tile_x is the batch there
    return letter


def _axis(builder: Builder, values: list[Value], extent: Value | None, kind: str) -> Axis:
    """Return an axis; an outermost part of -1 in the log follows from the others."""
    if not values:
        return Axis(extent, kind)
    first, rest = values[0], values[1:]
    if extent is not None:
        return Axis(extent, kind, [builder.ceildiv(extent, builder.product(rest)), *rest])
    # -1 / max(-1, 0) is unknown, and so are its products.
    known = builder.mul(first, builder.div(first, builder.greatest([first, builder.const(0)])))
    return Axis(builder.product([known, *rest]), kind, [known, *rest])


def _usual_order(axes: list[Axis]) -> list[Loop]:
    """Return the loops: outer tiles, the reduction, the innermost tiles."""
    nest: list[Loop] = []
    spatial = [axis for axis in axes if axis.kind != REDUCTION]
    reduced = [axis for axis in axes if axis.kind == REDUCTION]

    def level(group: list[Axis], number: int, *, last: bool) -> None:
        for axis in group:
            parts = axis.parts or [axis.extent]
            if number < len(parts) and (number == len(parts) - 1) == last:
                nest.append(Loop(parts[number], ((axis, number, parts[number]),)))

    deepest = max((len(axis.parts or [None]) for axis in axes), default=0)
    for number in range(deepest):
        level(spatial, number, last=False)
    for number in range(deepest):
        level(reduced, number, last=False)
    for number in range(deepest):
        level(reduced, number, last=True)
    for number in range(deepest):
        level(spatial, number, last=True)
    return nest[:MAX_LOOPS]


def _bind_gpu(builder: Builder, schedule: Schedule) -> None:
    """Bind the outer parts of tiles of three or four parts, as topi's templates for GPUs do."""
    for annotation, parts in zip(_GPU_PARTS, _gpu_parts(schedule), strict=True):
        if parts:
            schedule.bind(annotation, builder.product(parts))


def _gpu_parts(schedule: Schedule) -> tuple[list[Value | None], ...]:
    blocks: list[Value | None] = []
    vthreads: list[Value | None] = []
    threads: list[Value | None] = []
    for axis in schedule.axes:
        if axis.kind != REDUCTION and len(axis.parts) in (3, 4):
            blocks.append(axis.parts[0])
            threads.append(axis.parts[-2])
            if len(axis.parts) == 4:
                vthreads.append(axis.parts[1])
    return blocks, vthreads, threads

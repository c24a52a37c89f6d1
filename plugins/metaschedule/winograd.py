"""Convolutions by Winograd's minimal filtering: fewer multiplications, a larger error.

A 3x3 convolution of stride 1 becomes a transform of its input, a batch of matrix products, and a
transform of their results, after Lavin and Gray, "Fast Algorithms for Convolutional Neural
Networks" (arXiv 1509.09308). Its weights are transformed when the program is lowered. F(m, 3)
has tiles of m x m results, for which it multiplies (m + 2)² / (9 m²) times as often as the
definition: a quarter for m = 4.

The matrix products are tuned as any other operator. The transforms get a fixed schedule from the
rules of this module, which MetaSchedule calls by their names; the records apply without them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from .compat import buffer_of, constant_value, register_rule, relax_type
from .modules import call_name, nodes_of

__all__ = ["TILES", "Convolution", "convolutions_of", "with_winograd"]


@dataclass(frozen=True, slots=True)
class _Transforms:
    """Transposed matrices B (of the input) and A (of the results), and G (of the weights)."""

    input: tuple[tuple[float, ...], ...]
    weights: tuple[tuple[float, ...], ...]
    output: tuple[tuple[float, ...], ...]


#: F(m, 3) by m, as sections 4.1 and 4.3 of the paper have them.
_TRANSFORMS = {
    4: _Transforms(
        input=(
            (4, 0, -5, 0, 1, 0),
            (0, -4, -4, 1, 1, 0),
            (0, 4, -4, -1, 1, 0),
            (0, -2, -1, 2, 1, 0),
            (0, 2, -1, -2, 1, 0),
            (0, 4, 0, -5, 0, 1),
        ),
        weights=(
            (1 / 4, 0, 0),
            (-1 / 6, -1 / 6, -1 / 6),
            (-1 / 6, 1 / 6, -1 / 6),
            (1 / 24, 1 / 12, 1 / 6),
            (1 / 24, -1 / 12, 1 / 6),
            (0, 0, 1),
        ),
        output=(
            (1, 1, 1, 1, 1, 0),
            (0, 1, -1, 2, -2, 0),
            (0, 1, 1, 4, 4, 0),
            (0, 1, -1, 8, -8, 1),
        ),
    ),
    2: _Transforms(
        input=((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
        weights=((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)),
        output=((1, 1, 1, 0), (0, 1, -1, -1)),
    ),
}

#: Sizes m of the tiles of results.
TILES = tuple(_TRANSFORMS)

#: Channels of a step of the transforms, which must divide the number of channels: vectors that a
#: processor lacks are split, and the tiles of a step should stay in registers.
_LANES = (16, 8)

#: TVM's ``kOutEWiseFusable``: what follows is fused into the function, as into a convolution.
_PATTERN = {"op_pattern": 4}

_INPUT, _OUTPUT = "tunedb_winograd_input", "tunedb_winograd_output"
_BY_HAND = {"schedule_rule": "None"}


@dataclass(frozen=True, slots=True)
class Convolution:
    """Shape of a 3x3 convolution of stride 1 with channels last.

    Parameters
    ----------
    batch, height, width, inputs : int
        Shape of the input.
    outputs : int
        Channels of the result.
    padding : tuple of int
        Rows above, columns at the left, rows below, and columns at the right.
    """

    batch: int
    height: int
    width: int
    inputs: int
    outputs: int
    padding: tuple[int, int, int, int]

    def label(self, tile: int) -> str:
        """Return a label of the algorithm with tiles of a size."""
        sizes = (self.batch, self.height, self.width, self.inputs, self.outputs)
        padding = "" if self.padding == (1, 1, 1, 1) else "_p" + "".join(map(str, self.padding))
        return f"f{tile}_{'x'.join(map(str, sizes))}{padding}"

    @property
    def result(self) -> tuple[int, int, int, int]:
        """Shape of the result."""
        top, left, bottom, right = self.padding
        height, width = self.height + top + bottom - 2, self.width + left + right - 2
        return self.batch, height, width, self.outputs

    def tiles(self, tile: int) -> tuple[int, int, int]:
        """Return the number of tiles of a size: images, and tiles along height and width."""
        _, height, width, _ = self.result
        return self.batch, -(-height // tile), -(-width // tile)


def convolutions_of(mod: Any) -> list[Convolution]:
    """Return the different convolutions of a Relax program that :func:`with_winograd` can change.

    They are of 32-bit floats, with channels last, constant weights, one group, and numbers of
    channels that eight divides.
    """
    found = (_convolution(node) for node in nodes_of(mod))
    return list(dict.fromkeys(each for each in found if each is not None))


def with_winograd(mod: Any, tiles: Mapping[Convolution, int]) -> Any:
    """Return a Relax program some of whose convolutions are computed by Winograd's algorithm.

    Parameters
    ----------
    mod : tvm.IRModule
        The program, with constants in place.
    tiles : mapping of Convolution to int
        Size of the tiles for each convolution that changes, of :data:`TILES`.
    """
    mutator = _Rewriter(mod, tiles)
    for var, func in mod.functions_items():
        if isinstance(func, relax.Function):
            mutator.builder_.update_func(var, mutator.visit_expr(func))
    return mutator.builder_.get()


def _convolution(node: Any) -> Convolution | None:
    """Return the shape of a call that can change, or None."""
    if call_name(node) != "relax.nn.conv2d":
        return None
    attrs, (data, weights) = node.attrs, node.args
    shapes = [_shape(argument) for argument in (data, weights)]
    is_plain = (
        [str(attrs.data_layout), str(attrs.kernel_layout)] == ["NHWC", "HWIO"]
        and str(attrs.out_layout or "NHWC") == "NHWC"
        and all(int(n) == 1 for n in (*attrs.strides, *attrs.dilation, attrs.groups))
        and str(relax_type(node).dtype) == str(relax_type(data).dtype) == "float32"
        and constant_value(weights) is not None
    )
    if not is_plain or None in shapes:
        return None
    (batch, height, width, inputs), (*kernel, _, outputs) = shapes  # type: ignore[misc]
    if kernel != [3, 3] or inputs % _LANES[-1] or outputs % _LANES[-1]:
        return None
    padding = [int(n) for n in attrs.padding]
    padding *= 4 // len(padding)
    return Convolution(batch, height, width, inputs, outputs, tuple(padding))  # type: ignore[arg-type]


def _shape(argument: Any) -> list[int] | None:
    """Return the shape of a tensor; None where it or an extent is unknown."""
    shape = getattr(relax_type(argument), "shape", None)
    extents: list[Any] = list(shape) if shape is not None else [None]
    if not all(isinstance(extent, tirx.IntImm) for extent in extents):
        return None
    return [int(extent) for extent in extents]


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    """Replaces convolutions."""

    def __init__(self, mod: Any, tiles: Mapping[Convolution, int]) -> None:
        super().__init__(mod)
        self._tiles = tiles

    def visit_call_(self, call: Any) -> Any:
        """Return the three steps of a convolution, or the call itself."""
        call = self.visit_expr_post_order(call)
        convolution = _convolution(call)
        tile = None if convolution is None else self._tiles.get(convolution)
        if convolution is None or tile is None:
            return call
        constant: Any = constant_value(call.args[1])
        weights = _transformed(constant.numpy(), tile)
        emit, call_te = self.builder_.emit, partial(self.builder_.call_te, primfunc_attrs=_PATTERN)
        transform = partial(_transform_input, convolution, tile)
        tiles = emit(call_te(transform, call.args[0], primfunc_name_hint="winograd_input"))
        products = emit(relax.op.matmul(tiles, relax.const(weights)))
        transform = partial(_transform_output, convolution, tile)
        return call_te(transform, products, primfunc_name_hint="winograd_output")


def _transformed(weights: Any, tile: int) -> Any:
    """Return weights of (3, 3, inputs, outputs) as a matrix for each element of a tile."""
    matrix = np.array(_TRANSFORMS[tile].weights)
    products = np.kron(matrix, matrix) @ weights.reshape(9, -1).astype("float64")
    return products.reshape(-1, *weights.shape[2:]).astype("float32")


def _transform_input(convolution: Convolution, tile: int, data: Any) -> Any:
    """Return the transformed tiles of an input: (elements of a tile, tiles, channels)."""
    size, matrix = tile + 2, _TRANSFORMS[tile].input
    images, down, across = convolution.tiles(tile)
    top, left, _, _ = convolution.padding

    def padded(i: Any, j: Any, number: Any, channel: Any) -> Any:
        row = number // across % down * tile + i - top
        column = number % across * tile + j - left
        is_inside = tirx.all(
            row >= 0, row < convolution.height, column >= 0, column < convolution.width
        )
        element = data[number // (down * across), row, column, channel]
        return tirx.if_then_else(is_inside, element, tirx.const(0.0, "float32"))

    shape = (size, size, images * down * across, convolution.inputs)
    tiles = te.compute(shape, padded, "tile", attrs=_BY_HAND)
    columns = te.compute(
        shape,
        lambda i, j, *rest: _product(matrix, i, lambda k: tiles[(k, j, *rest)]),
        "columns",
        attrs=_BY_HAND,
    )
    return te.compute(
        (size * size, *shape[2:]),
        lambda ij, *rest: _product(matrix, ij % size, lambda k: columns[(ij // size, k, *rest)]),
        "winograd_input",
        attrs={"schedule_rule": _INPUT},
    )


def _transform_output(convolution: Convolution, tile: int, products: Any) -> Any:
    """Return the result of a convolution from the products of its tiles."""
    size, matrix = tile + 2, _TRANSFORMS[tile].output
    images, down, across = convolution.tiles(tile)
    shape = (images * down * across, convolution.outputs)
    columns = te.compute(
        (tile, size, *shape),
        lambda i, j, *rest: _product(matrix, i, lambda k: products[(k * size + j, *rest)]),
        "columns",
        attrs=_BY_HAND,
    )
    rows = te.compute(
        (tile, tile, *shape),
        lambda i, j, *rest: _product(matrix, j, lambda k: columns[(i, k, *rest)]),
        "rows",
        attrs=_BY_HAND,
    )

    def element(image: Any, row: Any, column: Any, channel: Any) -> Any:
        number = (image * down + row // tile) * across + column // tile
        return rows[row % tile, column % tile, number, channel]

    return te.compute(
        convolution.result, element, "winograd_output", attrs={"schedule_rule": _OUTPUT}
    )


def _product(matrix: Sequence[Sequence[float]], row: Any, get: Callable[[int], Any]) -> Any:
    """Return the product of a row of a matrix and a vector, without the zeros of the matrix.

    The row is a variable of a loop that is unrolled later, when all but one product vanish.
    """

    def product(factors: Sequence[float]) -> Any:
        total = None
        for number, factor in enumerate(factors):
            if factor:
                value = get(number)
                size = value if abs(factor) == 1 else tirx.const(abs(factor), "float32") * value
                if total is None:
                    total = size if factor > 0 else tirx.const(0.0, "float32") - size
                else:
                    total = total + size if factor > 0 else total - size
        return total

    *first, last = map(product, matrix)
    chosen = last
    for number, value in reversed([*enumerate(first)]):
        chosen = tirx.Select(row == number, value, chosen)
    return chosen


def _schedules(schedule: Any, channels: int, apply: Callable[[Any, int], None]) -> list[Any]:
    """Return a schedule for each number of lanes that divides the channels."""
    schedules = []
    for lanes in _LANES:
        if channels % lanes == 0:
            schedules.append(copy := schedule.copy())
            apply(copy, lanes)
    return schedules


def _schedule_input(schedule: Any, block: Any) -> list[Any]:
    """Schedule the transform of an input: a tile at a time, in registers."""
    channels = int(schedule.get(schedule.get_loops(block)[-1]).extent)

    def apply(sch: Any, lanes: int) -> None:
        columns, tiles = _producers(sch, block, 2)
        element, number, channel = sch.get_loops(block)
        outer, inner = sch.split(channel, [None, lanes])
        sch.reorder(number, outer, element, inner)
        _fill(sch, outer, [tiles, columns], block, depth=2)
        sch.parallel(number)

    return _schedules(schedule, channels, apply)


def _schedule_output(schedule: Any, block: Any) -> list[Any]:
    """Schedule the transform of the products, and what TVM has fused to it: a tile at a time."""
    rows = schedule.get(_producers(schedule, block, 1)[0])
    tile = int(buffer_of(rows.writes[0]).shape[0])
    channels = int(schedule.get(schedule.get_loops(block)[-1]).extent)

    def apply(sch: Any, lanes: int) -> None:
        steps, last = _producers(sch, block, 2), _inline(sch, block)
        image, row, column, channel = sch.get_loops(last)
        (down, row), (across, column) = (sch.split(loop, [None, tile]) for loop in (row, column))
        outer, inner = sch.split(channel, [None, lanes])
        sch.reorder(image, down, across, outer, row, column, inner)
        _fill(sch, outer, steps[::-1], last, depth=4)
        sch.parallel(sch.fuse(image, down, across))

    return _schedules(schedule, channels, apply)


def _inline(schedule: Any, block: Any) -> Any:
    """Inline a block and all that reads it into the last of these blocks, and return that one.

    A result may have several readers: SiLU is x · sigmoid(x).
    """
    pending, inlined, last = [(block, str(schedule.get(block).name_hint))], set[str](), block
    while pending:
        each, name = pending.pop()
        if name in inlined:
            continue
        consumers = schedule.get_consumers(each)
        if not consumers:
            last = each
            continue
        schedule.compute_inline(each)
        inlined.add(name)
        pending += [(reader, str(schedule.get(reader).name_hint)) for reader in consumers]
    return last


def _producers(schedule: Any, block: Any, number: int) -> list[Any]:
    """Return the producer of a block, and the producer of that one, and so on."""
    producers = []
    for _ in range(number):
        (block,) = schedule.get_producers(block)
        producers.append(block)
    return producers


def _fill(schedule: Any, loop: Any, steps: Sequence[Any], last: Any, *, depth: int) -> None:
    """Compute steps in the body of a loop, in registers; vectorize channels, unroll the rest."""
    for step in reversed(steps):
        schedule.compute_at(step, loop)
        schedule.set_scope(step, 0, "local")
    for step in (*steps, last):
        *loops, channel = schedule.get_loops(step)[depth:]
        schedule.vectorize(channel)
        for each in loops:
            schedule.unroll(each)


register_rule(_INPUT, _schedule_input)
register_rule(_OUTPUT, _schedule_output)

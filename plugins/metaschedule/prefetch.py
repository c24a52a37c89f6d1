"""Software prefetch of a large argument, e.g. of the weights of an operator.

A good program reads a block of weights once and reuses it from the caches, e.g. for each row of an
image. The memory is idle meanwhile, and the program then waits for the next block. Here that block
is fetched while the present one is reused, a few cache lines before each innermost loop over the
weights. Fetching within that loop would keep LLVM from holding sums in registers, and more lines
at a time than the processor has fill buffers stop it.

A sum that uses each weight once, as for one row of data, waits for the memory all the time. The
processor fetches ahead by itself in some orders of reading and not in others, so here lines are
fetched at a fixed distance ahead.

Only builds of tunedb prefetch: a stored program has no instructions of it, and TVM builds the same
program without.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
from tvm import s_tir, tirx

from . import compat
from .modules import bytes_of

__all__ = ["with_prefetch"]

#: Least bytes of an argument; smaller ones are read in no time.
_LEAST_BYTES = 1 << 18
#: Least tensors that a function reads.
_LEAST_INPUTS = 2
#: Bytes of a cache line. One fetched twice costs an instruction.
_LINE = 64
#: Least and most bytes of a block: the processor itself fetches the next lines, and a block must
#: stay in the caches of a core until it is used.
_LEAST_BLOCK, _MOST_BLOCK = 1 << 12, 1 << 19
#: Most lines that are fetched at a time.
_MOST_LINES = 20
#: Bytes between a weight that is used once and the one that is fetched meanwhile. Half and twice as
#: many are as good.
_AHEAD = 1 << 14
#: Least iterations of an innermost loop that is split, since sums leave the registers after it.
_LEAST_STEPS = 16
#: Types of elements. TVM 0.25 rewrites addresses of elements of smaller floating types.
_TYPES = re.compile("float(16|32|64)|u?int(8|16|32|64)")
#: Annotation by which TVM marks loops with a `break`.
_IRREGULAR = "irregular_loop_mark"


@dataclass(frozen=True, slots=True)
class _Loop:
    """A loop around a load.

    Parameters
    ----------
    node : tirx.For
        The loop.
    extent : int
        Number of iterations.
    stride : int
        Elements by which an iteration moves the load.
    """

    node: Any
    extent: int
    stride: int


@dataclass(frozen=True, slots=True, eq=False)
class _Fetch:
    """Where and what to fetch.

    Parameters
    ----------
    loop : tirx.For
        Innermost loop over the block.
    parts : int
        Number of loops into which it is split; lines are fetched before each.
    buffer : Buffer
        The argument.
    start : PrimExpr
        Index of the element with which the next block begins, or the next part of a stream.
    part : PrimExpr
        Number of innermost loops over the present block before this one.
    lines : int
        Lines that are fetched before each part.
    enough : int or None
        Number of parts after which the whole block is fetched; None if it takes all of them.
    """

    loop: Any
    parts: int
    buffer: Any
    start: Any
    part: Any
    lines: int
    enough: int | None


def with_prefetch(mod: Any, target: Any) -> Any:
    """Return a module whose functions fetch the next block of their large arguments.

    Parameters
    ----------
    mod : tvm.IRModule
        Functions, scheduled or not. Those that fetch are lowered to loops without blocks.
    target : tvm.target.Target
        Target of the functions. Other ones than ``llvm`` have no such instruction.

    Returns
    -------
    tvm.IRModule
        The functions compute the same, in the same order.
    """
    if target.kind.name != "llvm":
        return mod
    changed = {
        name: fetching
        for name, function in mod.functions_items()
        if isinstance(function, tirx.PrimFunc)
        and (fetching := _fetching(function, target)) is not None
    }
    if not changed:
        return mod
    return tvm.IRModule({**dict(mod.functions_items()), **changed}, attrs=mod.attrs)


def _fetching(function: Any, target: Any) -> Any | None:
    """Return a function that fetches; None where nothing is to fetch."""
    own_target = function.attrs.get("target") if function.attrs else None
    if own_target is not None and own_target.kind.name != "llvm":
        return None
    if not any(map(_is_large, compat.arguments_of(function))):
        return None
    lowered = _lowered(function, target)
    arguments = compat.arguments_of(lowered)
    large = list(filter(_is_large, arguments))
    fetches: list[_Fetch] = []
    read: list[Any] = []
    written: list[Any] = []
    for loops, store in _stores(lowered.body, ()):
        loads: list[Any] = []
        compat.walk(store.value, compat.load_type(), loads.append)
        written.append(store.buffer)
        read += [compat.buffer_of(load) for load in loads]
        is_sum = _is_among(store.buffer, [compat.buffer_of(load) for load in loads])
        for load in loads:
            buffer = compat.buffer_of(load)
            if _is_among(buffer, large):
                fetch = _fetch(buffer, load.indices, loops, is_sum=is_sum)
                if fetch is not None:
                    fetches.append(fetch)
    inputs = [each for each in arguments if _is_among(each, read) and not _is_among(each, written)]
    # A function of one tensor may be a reshape for TVM's `RewriteDataflowReshape`, which aborts
    # where it has no blocks.
    if not fetches or len(inputs) < _LEAST_INPUTS:
        return None
    # Before one loop only the largest block is fetched.
    fetches.sort(key=lambda fetch: -fetch.lines * fetch.parts)
    mod = tvm.IRModule({"main": lowered})
    return compat.map_loops(mod, lambda loop: _with_fetches(loop, fetches))["main"]


def _is_among(buffer: Any, buffers: Sequence[Any]) -> bool:
    return any(each.same_as(buffer) for each in buffers)


def _is_large(argument: Any) -> bool:
    """Return whether an argument is a large tensor of constant shape without gaps."""
    shape = getattr(argument, "shape", ())  # a number has none
    return (
        len(shape) > 0
        and not len(argument.strides)
        and all(isinstance(extent, tirx.IntImm) for extent in shape)
        and _TYPES.fullmatch(str(argument.dtype)) is not None
        and bytes_of(map(int, shape), argument.dtype) >= _LEAST_BYTES
    )


def _lowered(function: Any, target: Any) -> Any:
    """Return a function without blocks, by the passes with which TVM begins to lower it."""
    names = (
        *("CanonicalizeLoop", "LowerCrossThreadReduction", "LowerInitBlock"),
        *("PlanAndUpdateBufferAllocationLocation", "ConvertBlocksToOpaque", "LiftThreadBinding"),
        *("ManifestSharedMemoryLocalStage", "CompactBufferAllocation", "LowerAutoCopy"),
        *("UnifyThreadBinding", "LowerMatchBuffer"),
    )
    last = ("AnnotateIrregularLoop", "InjectSoftwarePipeline", "LowerOpaqueBlock")
    passes = [getattr(s_tir.transform, name)() for name in names]
    passes.append(compat.stmt_simplify())
    passes += [getattr(s_tir.transform, name)() for name in last]
    with target:
        return tvm.transform.Sequential(passes)(tvm.IRModule({"main": function}))["main"]


def _stores(statement: Any, loops: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the stores of a statement with the loops around them, from the outside inwards."""
    if isinstance(statement, tirx.BufferStore):
        yield loops, statement
    if isinstance(statement, tirx.For):
        loops = (*loops, statement)
    parts = [*getattr(statement, "seq", ())]
    parts += [getattr(statement, name, None) for name in ("body", "then_case", "else_case")]
    for part in parts:
        if part is not None:
            yield from _stores(part, loops)


def _fetch(
    buffer: Any, indices: Sequence[Any], nest: Sequence[Any], *, is_sum: bool
) -> _Fetch | None:
    """Return what to fetch for a load in a nest of loops; None if that would not help."""
    loops = _loops_of(buffer, indices, nest)
    if loops is None:
        return None
    fetch = _next_block(buffer, *loops, nest)
    return _stream(buffer, *loops, nest) if fetch is None and is_sum else fetch


def _next_block(
    buffer: Any, start: Any, serial: Sequence[_Loop], nest: Sequence[Any]
) -> _Fetch | None:
    """Return what to fetch for a load that reuses blocks, or None."""
    block = _block(serial, bytes_of((1,), buffer.dtype))
    if block is None:
        return None
    to_next, last, size = block
    around, inner = serial[to_next + 1 : last], serial[last]
    number, total = prod(loop.extent for loop in around), -(-size // _LINE)
    parts = _parts(inner.extent, total, number)
    start = _index_before(inner, start, serial[: to_next + 1], nest)
    if parts is None or start is None:
        return None
    start = start + serial[to_next].stride
    part: Any = 0
    for loop in around:
        part = part * loop.extent + loop.node.loop_var
    lines = -(-total // (number * parts))
    needed = -(-total // lines)
    enough = needed if needed < number * parts else None
    return _Fetch(inner.node, parts, buffer, start, part, lines, enough)


def _stream(buffer: Any, start: Any, serial: Sequence[_Loop], nest: Sequence[Any]) -> _Fetch | None:
    """Return what to fetch for a load that reads neighbouring elements one after the other, once.

    None for another load, or if the lines of one iteration are too many.
    """
    if any(loop.extent > 1 and not loop.stride for loop in serial):
        return None
    element = bytes_of((1,), buffer.dtype)
    found, size = None, 1
    for number in reversed(range(len(serial))):
        loop = serial[number]
        if loop.extent > 1 and (loop.stride != size or size * element > _MOST_LINES * _LINE):
            break
        if loop.extent > 1 and loop.node.kind != tirx.ForKind.VECTORIZED:
            found = number, size * element
        size *= loop.extent
    if found is None:
        return None
    number, step = found
    inner = serial[number]
    most = max(1, _MOST_LINES * _LINE // step)
    steps = max(steps for steps in range(1, most + 1) if inner.extent % steps == 0)
    start = _index_before(inner, start, serial[:number], nest)
    if steps * step % _LINE or start is None:
        return None
    start = start + _AHEAD // element
    lines = steps * step // _LINE
    return _Fetch(inner.node, inner.extent // steps, buffer, start, 0, lines, enough=None)


def _block(serial: Sequence[_Loop], element: int) -> tuple[int, int, int] | None:
    """Return the smallest block that is reused and worth fetching.

    Parameters
    ----------
    serial : sequence of _Loop
        Loops around a load, from the outside inwards.
    element : int
        Bytes of an element.

    Returns
    -------
    tuple of int or None
        Numbers of the loop that goes to the next block and of the innermost loop over a block but
        for the vectorised one, and the bytes of a block.
    """
    moving = [n for n, loop in enumerate(serial) if loop.stride]
    steps = [n for n in moving if serial[n].node.kind != tirx.ForKind.VECTORIZED]
    for reused in range(len(serial) - 1, 0, -1):
        loops = [serial[n] for n in moving if n > reused]
        before = [n for n in moving if n < reused]
        size = element * prod(loop.extent for loop in loops)
        again = serial[reused]
        is_reused = not again.stride and again.extent > 1 and steps and steps[-1] > reused
        if is_reused and size >= _LEAST_BLOCK and before:
            is_fit = size <= _MOST_BLOCK and _is_dense(loops)
            return (before[-1], steps[-1], size) if is_fit else None
    return None


def _index_before(
    inner: _Loop, start: Any, around: Sequence[_Loop], nest: Sequence[Any]
) -> Any | None:
    """Return the index of a load when loops around it reach an inner one.

    None if it is not known there, or the inner loop is irregular.
    """
    for loop in around:
        start = start + loop.node.loop_var * loop.stride
    outside = nest[: [loop.same_as(inner.node) for loop in nest].index(True)]
    is_irregular = _IRREGULAR in (inner.node.annotations or {})
    return start if _is_known_at(start, outside) and not is_irregular else None


def _is_known_at(index: Any, outside: Sequence[Any]) -> bool:
    """Return whether an index has no other variables than those of loops, and no loads."""
    variables: list[Any] = []
    loads: list[Any] = []
    compat.walk(index, tirx.Var, variables.append)
    compat.walk(index, compat.load_type(), loads.append)
    return not loads and all(
        any(variable.same_as(loop.loop_var) for loop in outside) for variable in variables
    )


def _parts(extent: int, lines: int, number: int) -> int | None:
    """Return the parts of a loop before which few enough lines are fetched; None for none."""
    for parts in range(1, extent + 1):
        if extent % parts == 0 and lines <= _MOST_LINES * number * parts:
            return parts if parts == 1 or extent // parts >= _LEAST_STEPS else None
    return None


def _loops_of(
    buffer: Any, indices: Sequence[Any], nest: Sequence[Any]
) -> tuple[Any, list[_Loop]] | None:
    """Return the part of a load's flat index that no serial loop moves, and these loops.

    None where the index is not linear in them, or an extent is no constant.
    """
    serial = [loop for loop in nest if loop.kind != tirx.ForKind.PARALLEL]
    bounds = [bound for loop in serial for bound in (loop.min, loop.extent)]
    if not serial or not all(isinstance(bound, tirx.IntImm) for bound in bounds):
        return None
    if any(int(loop.min) for loop in serial):
        return None
    flat: Any = 0
    for index, extent in zip(indices, buffer.shape, strict=True):
        flat = flat * int(extent) + index
    linear = compat.linear_equation(flat, [loop.loop_var for loop in serial])
    strides = linear[:-1]
    if not linear or not all(isinstance(stride, tirx.IntImm) for stride in strides):
        return None
    return linear[-1], [
        _Loop(loop, int(loop.extent), int(stride) if int(loop.extent) > 1 else 0)
        for loop, stride in zip(serial, strides, strict=True)
    ]


def _is_dense(block: Sequence[_Loop]) -> bool:
    """Return whether loops read neighbouring elements, each once."""
    size = 1
    for loop in sorted(block, key=lambda each: each.stride):
        if loop.stride != size:
            return False
        size *= loop.extent
    return True


def _with_fetches(loop: Any, fetches: Sequence[_Fetch]) -> Any:
    """Return a loop with the lines that are fetched before it or before each of its parts."""
    for fetch in fetches:
        if loop.loop_var.same_as(fetch.loop.loop_var):
            return _with_fetch(loop, fetch)
    return loop


def _with_fetch(loop: Any, fetch: _Fetch) -> Any:
    dtype = compat.dtype_of(loop.loop_var)
    part, steps = tirx.Var("part", dtype), tirx.const(int(loop.extent) // fetch.parts, dtype)
    line = _LINE // bytes_of((1,), fetch.buffer.dtype)
    done = fetch.part * fetch.parts + part
    first = fetch.start + done * (fetch.lines * line)
    statements = [
        tirx.Evaluate(_prefetch(fetch.buffer, first + number * line))
        for number in range(fetch.lines)
    ]
    if fetch.enough is not None:
        statements = [tirx.IfThenElse(done < fetch.enough, _sequence(statements), None)]
    # TVM's `CanonicalizeLoop` lets the loop begin with 0.
    inner = tirx.For(
        loop.loop_var,
        part * steps,
        steps,
        loop.kind,
        loop.body,
        loop.thread_binding,
        loop.annotations,
    )
    first_part, parts = tirx.const(0, dtype), tirx.const(fetch.parts, dtype)
    return tirx.For(
        part, first_part, parts, tirx.ForKind.SERIAL, tirx.SeqStmt([*statements, inner])
    )


def _sequence(statements: Sequence[Any]) -> Any:
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(statements)


def _prefetch(buffer: Any, index: Any) -> Any:
    """Return the instruction that fetches the line of an element for reading, into all caches."""
    zero = tirx.const(0, compat.dtype_of(index))
    indices = [*[zero] * (len(buffer.shape) - 1), index]
    address = tirx.address_of(tirx.BufferLoad(buffer, indices))
    read, all_caches, data = (tirx.const(number, "int32") for number in (0, 3, 1))
    return tirx.call_intrin("void", "tirx.prefetch", address, read, all_caches, data)

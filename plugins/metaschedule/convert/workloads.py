"""Workloads of auto_scheduler as modules of today: their stages in its order, and their blocks."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import te
from tvm.s_tir import Schedule

from ..compat import arguments_of, buffer_of
from .stages import REDUCTION, ReplayError, Stage, stage_of

_SPATIAL = 0  # IterVar.kDataPar


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of a workload.

    Parameters
    ----------
    name : str
        Its name in the definition.
    spatial, reduction : tuple of int
        Extents of its axes.
    block : str or None
        Name of its block in the module; None for an input.
    argument : int
        Position among the module's arguments; -1 for an intermediate result.
    """

    name: str
    spatial: tuple[int, ...]
    reduction: tuple[int, ...]
    block: str | None
    argument: int

    @property
    def is_input(self) -> bool:
        """Whether it is a placeholder."""
        return self.block is None


@dataclass(frozen=True, slots=True)
class DefinedWorkload:
    """A workload that a definition computes.

    Parameters
    ----------
    mod : IRModule
        The untuned module.
    operations : tuple of Operation
        In auto_scheduler's order.
    shapes : tuple of tuple of int
        Shapes of the arguments.
    dtypes : tuple of str
        Their data types.
    """

    mod: Any
    operations: tuple[Operation, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @classmethod
    def from_tensors(cls, tensors: Sequence[Any]) -> DefinedWorkload:
        """Return the workload of te tensors, inputs before outputs.

        Raises
        ------
        ReplayError
            The tensors are no te tensors of constant shapes, or TVM makes no module of them.
        """
        if not tensors or not all(isinstance(tensor, te.Tensor) for tensor in tensors):
            raise ReplayError("the definition returns no te tensors")
        mod = tvm.IRModule({"main": te.create_prim_func(list(tensors))})
        arguments = [tensor.op for tensor in tensors]
        blocks = iter(_block_names(mod))
        names = {op: next(blocks) for op in _in_module(arguments) if not _is_input(op)}
        operations = tuple(
            Operation(
                str(op.name),
                _extents(op.output(0).shape),
                () if _is_input(op) else _extents(axis.dom.extent for axis in op.reduce_axis),
                names.get(op),
                next((i for i, other in enumerate(arguments) if other.same_as(op)), -1),
            )
            for op in _in_log(arguments, _producers)
        )
        shapes = tuple(_extents(tensor.shape) for tensor in tensors)
        return cls(mod, operations, shapes, tuple(str(tensor.dtype) for tensor in tensors))

    @classmethod
    def from_module(cls, mod: Any) -> DefinedWorkload:
        """Return the workload of a module whose blocks compute one buffer each.

        Parameters
        ----------
        mod : IRModule
            A module of one untransformed function.

        Raises
        ------
        ReplayError
            Its blocks are no operations of auto_scheduler.
        """
        arguments = arguments_of(mod["main"])
        positions = {buffer: number for number, buffer in enumerate(arguments)}
        schedule = Schedule(mod, debug_mask="none")
        blocks = {}
        for block in schedule.get_child_blocks(schedule.get_sblock("root")):
            statement = schedule.get(block)
            if len(statement.writes) != 1 or buffer_of(statement.writes[0]) in blocks:
                raise ReplayError(f"block {statement.name_hint} is no operation on one tensor")
            blocks[buffer_of(statement.writes[0])] = statement

        def producers(buffer: Any) -> list[Any]:
            if buffer not in blocks:
                return []
            read = dict.fromkeys(buffer_of(region) for region in blocks[buffer].reads)
            return [other for other in read if not other.same_as(buffer)]

        operations = []
        for buffer in _in_log(arguments, producers):
            block = blocks.get(buffer)
            axes = [] if block is None else list(block.iter_vars)
            if any(int(axis.iter_type) not in (_SPATIAL, REDUCTION) for axis in axes):
                raise ReplayError(f"the block of {buffer.name} has axes of another kind")
            if block is None and buffer not in positions:
                raise ReplayError(f"no block writes {buffer.name}")
            operations.append(
                Operation(
                    str(buffer.name),
                    _extents(buffer.shape) if block is None else _domain(axes, _SPATIAL),
                    _domain(axes, REDUCTION),
                    None if block is None else str(block.name_hint),
                    positions.get(buffer, -1),
                )
            )
        return cls(
            mod,
            tuple(operations),
            tuple(_extents(buffer.shape) for buffer in arguments),
            tuple(str(buffer.dtype) for buffer in arguments),
        )

    def stages(self) -> list[Stage]:
        """Return untransformed stages, for :func:`.stages.plan_of`."""
        return [
            stage_of(op.name, op.spatial, op.reduction, is_input=op.is_input)
            for op in self.operations
        ]


def _is_input(op: Any) -> bool:
    return isinstance(op, te.PlaceholderOp)


def _producers(op: Any) -> list[Any]:
    return [] if _is_input(op) else [tensor.op for tensor in op.input_tensors]


def _domain(axes: Sequence[Any], type_: int) -> tuple[int, ...]:
    """Return the extents of the axes of a block that have a type."""
    return _extents(axis.dom.extent for axis in axes if int(axis.iter_type) == type_)


def _extents(values: Any) -> tuple[int, ...]:
    try:
        return tuple(int(value) for value in values)
    except (TypeError, ValueError):
        raise ReplayError("an extent of the definition is no number") from None


def _block_names(mod: Any) -> list[str]:
    """Return the names of a module's blocks in their order."""
    schedule = Schedule(mod, debug_mask="none")
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    return [str(schedule.get(block).name_hint) for block in blocks]


def _in_module(arguments: Sequence[Any]) -> list[Any]:
    """Return operations in the order of ``te.create_prim_func`` (``PostDFSOrder``)."""
    ordered: list[Any] = []
    seen: set[Any] = set()
    waiting = [(op, False) for op in reversed(arguments)]
    while waiting:
        op, is_finished = waiting.pop()
        if is_finished:
            ordered.append(op)
        elif op not in seen:
            seen.add(op)
            waiting.append((op, True))
            if not _is_input(op):
                waiting += [(tensor.op, False) for tensor in reversed(list(op.input_tensors))]
    return ordered


def _in_log(arguments: Sequence[Any], producers: Callable[[Any], list[Any]]) -> list[Any]:
    """Return operations in auto_scheduler's order (``AccessAnalyzer``, ``compute_dag.cc``).

    Depth first with a stack numbers the operations; then the ready one with the highest number is
    next, as in Kahn's algorithm.
    """
    waiting = list(arguments)
    numbers: dict[Any, int] = {}
    missing: dict[Any, int] = {}
    consumers: dict[Any, list[Any]] = {}
    while waiting:
        op = waiting.pop()
        if op in numbers:
            continue
        numbers[op] = len(numbers)
        inputs = producers(op)
        missing[op] = len(inputs)
        for producer in inputs:
            consumers.setdefault(producer, []).append(op)
            waiting.append(producer)
    ready = [(-numbers[op], op) for op, number in missing.items() if number == 0]
    heapq.heapify(ready)
    ordered: list[Any] = []
    while ready:
        _, op = heapq.heappop(ready)
        ordered.append(op)
        for consumer in consumers.get(op, ()):
            missing[consumer] -= 1
            if missing[consumer] == 0:
                heapq.heappush(ready, (-numbers[consumer], consumer))
    return ordered

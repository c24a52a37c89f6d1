"""Scheduled modules in AutoTVM's form of programs, and AutoTVM's calls on them.

AutoTVM extracted its features from a te schedule after ``ana_lower`` (v0.19
``python/tvm/autotvm/feature.py``): buffers of one dimension, unit loops kept, threads as axes,
nothing vectorized, unrolled or split into virtual threads. `flatten` builds this form from the
modules of today's schedules, with TVM's own passes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tvm import s_tir, tirx
from tvm.ir import IRModule
from tvm.ir.transform import Sequential
from tvm.s_tir import Schedule, ScheduleError

from ....features import itervar
from ..compat import map_loops, sblock_types, stmt_simplify, walk
from .ir import read

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ....features._nest import Nest

#: Annotation that keeps unit and thread loops from ``LowerOpaqueBlock``; it has a thread's binding.
_HIDDEN = "tunedb.flat"

_BLOCK_PASSES = (
    s_tir.transform.LowerCrossThreadReduction,
    s_tir.transform.LowerInitBlock,
    s_tir.transform.PlanAndUpdateBufferAllocationLocation,
    s_tir.transform.ConvertBlocksToOpaque,
    s_tir.transform.CompactBufferAllocation,
    s_tir.transform.LowerMatchBuffer,
    stmt_simplify,  # FlattenBuffer divides by zero in some indices as compacted
)
_BUFFER_PASSES = (
    s_tir.transform.LowerOpaqueBlock,
    tirx.transform.FlattenBuffer,
    tirx.transform.StmtSimplify,
)


def flatten(mod: Any) -> IRModule:
    """Return a scheduled module in the form of AutoTVM's ``ana_lower``.

    Reductions are initialized before their first reduction loop, blocks lowered, allocations
    compacted, buffers flattened and expressions simplified. Unit loops and thread loops stay.

    Parameters
    ----------
    mod : tvm.IRModule
        A scheduled module; it is not changed.

    Raises
    ------
    Exception
        TVM cannot lower the program.
    """
    lowered = Sequential([make() for make in _BLOCK_PASSES])(_decompose(mod))
    lowered = map_loops(lowered, _hide)
    lowered = Sequential([make() for make in _BUFFER_PASSES])(lowered)
    return map_loops(lowered, _reveal)


def read_flat(mod_or_sch: Any) -> Nest:
    """Return the flat form of a scheduled module or of a schedule, flattened.

    Parameters
    ----------
    mod_or_sch : tvm.IRModule or tvm.s_tir.Schedule
        Is not changed.
    """
    return read(flatten(mod_or_sch.mod if isinstance(mod_or_sch, Schedule) else mod_or_sch))


def get_itervar_feature(mod_or_sch: Any, take_log: bool = False) -> list[itervar.Row]:
    """Return AutoTVM's features of every axis of a scheduled program.

    Parameters
    ----------
    mod_or_sch : tvm.IRModule or tvm.s_tir.Schedule
        Is not changed.
    take_log : bool
        As in :func:`tunedb.features.itervar.get_itervar_feature`, like results and errors.
    """
    return itervar.get_itervar_feature(read_flat(mod_or_sch), take_log)


def get_itervar_feature_flatten(mod_or_sch: Any, take_log: bool = True) -> NDArray[np.float64]:
    """Return the features of every axis of a scheduled program in one vector.

    Parameters
    ----------
    mod_or_sch : tvm.IRModule or tvm.s_tir.Schedule
        Is not changed.
    take_log : bool
        As in :func:`tunedb.features.itervar.get_itervar_feature_flatten`, like results and errors.
    """
    return itervar.get_itervar_feature_flatten(read_flat(mod_or_sch), take_log)


def get_buffer_curve_sample_flatten(mod_or_sch: Any, sample_n: int = 30) -> NDArray[np.float64]:
    """Return AutoTVM's curve samples of a scheduled program.

    Parameters
    ----------
    mod_or_sch : tvm.IRModule or tvm.s_tir.Schedule
        Is not changed.
    sample_n : int
        As in :func:`tunedb.features.itervar.get_buffer_curve_sample_flatten`, like results and
        errors.
    """
    return itervar.get_buffer_curve_sample_flatten(read_flat(mod_or_sch), sample_n)


def _hide(loop: Any) -> Any:
    """Return a loop that ``LowerOpaqueBlock`` keeps as a loop."""
    bound = loop.thread_binding
    if bound is None and not _is_one(loop.extent):
        return loop
    annotations = {**loop.annotations, _HIDDEN: tirx.IntImm("int32", 1) if bound is None else bound}
    kind = loop.kind if bound is None else tirx.ForKind.SERIAL
    return tirx.For(loop.loop_var, loop.min, loop.extent, kind, loop.body, None, annotations)


def _reveal(loop: Any) -> Any:
    """Undo `_hide`."""
    annotations = dict(loop.annotations.items())
    hidden = annotations.pop(_HIDDEN, None)
    if hidden is None:
        return loop
    bound = hidden if isinstance(hidden, tirx.IterVar) else None
    kind = loop.kind if bound is None else tirx.ForKind.THREAD_BINDING
    return tirx.For(loop.loop_var, loop.min, loop.extent, kind, loop.body, bound, annotations)


def _is_one(value: Any) -> bool:
    return isinstance(value, tirx.IntImm) and value.value == 1


def _decompose(mod: IRModule) -> IRModule:
    """Return a module whose reductions are initialized before their first reduction loop.

    Reductions over threads, and those that TVM cannot split there, keep their init: TVM's passes
    put it into the block.
    """
    functions = {}
    for name, function in mod.functions.items():
        reducing = _reduction_variables(function)
        if reducing:
            schedule = Schedule(IRModule({name: function}), error_render_level="none")
            root = schedule.get_sblock(function.body.block.name_hint, name.name_hint)
            for block in _blocks(schedule, root):
                _decompose_block(schedule, block, reducing)
            functions[name] = schedule.mod[name.name_hint]
        else:
            functions[name] = function
    return IRModule(functions, attrs=mod.attrs)


def _reduction_variables(function: Any) -> dict[Any, list[Any]]:
    """Return the variables in the bindings of reduction iterators, for blocks with an init.

    The key is the variable of a block's first iterator: it outlives changes around the block.
    """
    found: dict[Any, list[Any]] = {}

    def visit(realize: Any) -> None:
        block = realize.block
        if block.init is None:
            return
        variables: list[Any] = []
        for iterator, value in zip(block.iter_vars, realize.iter_values, strict=True):
            if iterator.iter_type == tirx.IterVar.CommReduce:
                walk(value, tirx.Var, variables.append)
        if variables:
            found[block.iter_vars[0].var] = variables

    walk(function, sblock_types()[1], visit)
    return found


def _blocks(schedule: Schedule, around: Any) -> Iterable[Any]:
    for block in schedule.get_child_blocks(around):
        yield from _blocks(schedule, block)
        yield block


def _decompose_block(schedule: Schedule, block: Any, reducing: dict[Any, list[Any]]) -> None:
    iterators = schedule.get(block).iter_vars
    variables = reducing.get(iterators[0].var, ()) if iterators else ()
    loops = [
        loop
        for loop in schedule.get_loops(block)
        if any(schedule.get(loop).loop_var.same_as(variable) for variable in variables)
    ]
    if not loops or any(schedule.get(loop).thread_binding is not None for loop in loops):
        return
    try:
        schedule.decompose_reduction(block, loops[0])
    except ScheduleError:
        return  # e.g. a loop around it that is neither spatial nor a reduction

"""tunedb's design space for CPUs: the rules of MetaSchedule, and one for reductions of columns.

MetaSchedule vectorises the innermost loop, and the innermost loops of a reduction are those that
reduce. A mean over the pixels of an image whose channels come last, or a pooling of it, then reads
one channel with gathers, or number by number. The rule here moves a tile of the channels inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.schedule_rule import ParallelizeVectorizeUnroll
from tvm.s_tir.meta_schedule.schedule_rule.schedule_rule import _PyScheduleRule
from tvm.tirx import IterVar

from .compat import register_rule, sblock_types

__all__ = ["SPACE", "TileColumns", "space_of"]

#: The word for the design space of this module.
SPACE = "tunedb"

#: Rules that TVM's poolings name, and that it has for GPUs or nowhere.
_POOLINGS = ("adaptive_pool_avg", "adaptive_pool_max", "pool_avg", "pool_max")

#: Largest tile of columns, as the largest extent that ``ParallelizeVectorizeUnroll`` vectorises.
_MOST_COLUMNS = 64


class TileColumns(_PyScheduleRule):
    """A schedule rule that moves a tile of columns into the loops of a reduction.

    It applies to a block that reads and writes neighbouring elements in neighbouring iterations of
    its last spatial axis (XLA's term is column reduction), and whose loops no other rule has
    changed. The block as it was stays in the design space. The programs have TVM's instructions
    only, so they apply without this rule.
    """

    # TVM's objects lack an instance dictionary.
    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(lambda _context: None, _tile_columns, TileColumns)


def space_of(space: Any, target: Any) -> Any:
    """Return a design space as TVM's ``TuneContext`` takes it.

    Parameters
    ----------
    space : Any
        ``"tunedb"``: on CPUs the default rules for the target and that of this module, elsewhere
        ``"post-order-apply"``. Anything else is returned.
    target : tvm.target.Target
        Target of the programs. The intrinsics of its default rules must be there
        (:mod:`.intrinsics`).
    """
    if space != SPACE:
        return space
    if target.kind.name != "llvm":
        return "post-order-apply"
    context = ms.TuneContext(
        tvm.IRModule({}), target=target, space_generator="post-order-apply", num_threads=1
    )
    default = context.space_generator
    rules = list(default.sch_rules)
    place = next(n for n, rule in enumerate(rules) if isinstance(rule, ParallelizeVectorizeUnroll))
    return ms.space_generator.PostOrderApply(
        sch_rules=[*rules[:place], TileColumns(), *rules[place:]],
        postprocs=list(default.postprocs),
        mutator_probs=dict(default.mutator_probs),
    )


def _tile_columns(schedule: Any, block: Any) -> list[Any]:
    """Return a schedule, and where the rule applies to a block a second one that it has changed."""
    node = schedule.get(block)
    spatial = _spatial_axes(node)
    if spatial is None:
        return [schedule]
    tiled = schedule.copy()  # the trace of a schedule notes even a look at its loops
    loops = tiled.get_loops(block)
    if not _is_unchanged([tiled.get(loop) for loop in loops], node):
        return [schedule]
    *others, columns = loops[:spatial]
    outer, inner = tiled.split(columns, tiled.sample_perfect_tile(columns, 2, _MOST_COLUMNS))
    tiled.reorder(*others, outer, *loops[spatial:], inner)
    return [schedule, tiled]


def _spatial_axes(block: Any) -> int | None:
    """Return the number of spatial axes of a reduction of columns; None for other blocks."""
    kinds = [each.iter_type for each in block.iter_vars]
    spatial = kinds.count(IterVar.DataPar)
    expected = [IterVar.DataPar] * spatial + [IterVar.CommReduce] * (len(kinds) - spatial)
    if not 0 < spatial < len(kinds) or kinds != expected or len(block.writes) != 1:
        return None
    columns = block.iter_vars[spatial - 1].var
    is_read = any(_ends_with(region, columns) for region in block.reads)
    return spatial if is_read and _ends_with(block.writes[0], columns) else None


def _is_unchanged(loops: Sequence[Any], block: Any) -> bool:
    """Tell whether the loops over a block are its axes, in their order, and have no other block."""
    realize = loops[-1].body if len(loops) == len(block.iter_vars) else None
    return isinstance(realize, sblock_types()[1]) and all(
        value.same_as(loop.loop_var) for value, loop in zip(realize.iter_values, loops, strict=True)
    )


def _ends_with(region: Any, variable: Any) -> bool:
    """Tell whether the last index of a region is a variable."""
    return bool(region.region) and bool(region.region[-1].min.same_as(variable))


def _default_rules(schedule: Any, block: Any) -> list[Any]:
    """Leave a block to the other rules, as TVM does with a warning where a rule is not there."""
    schedule.unannotate(block, "schedule_rule")
    return [schedule]


for _pooling in _POOLINGS:
    register_rule(f"meta_schedule.{_pooling}", _default_rules)

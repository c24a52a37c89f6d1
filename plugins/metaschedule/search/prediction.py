"""Programs of a function that was never measured: the best of many drafts that TVM accepts.

Drafts of the function's design space, and good programs of similar workloads adapted to it, are
ranked by a model of drafts. No database is read, so worker processes can do it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

from ....errors import PluginError
from ....models._xgboost import import_xgboost, leave_out_sklearn
from ....records import Origin, Trace
from ....search.operators import Operators
from .. import trace_codec
from .. import winograd as _rules  # noqa: F401 - registers them
from ..database.candidates import Lineage
from ..intrinsics import load_cpu_intrinsics, load_intrinsics, without_intrinsics
from ..prefetch import with_prefetch
from ..space import SPACE, space_of
from ..targets import is_cpu
from . import schedule_queries
from .draft_model import DraftTask, TaskModel, can_describe
from .drafts import Drafts, finalists
from .population import WARM, Breeding, Child
from .schedule_queries import DraftReplayer, from_tvm
from .task_search import TuningTask
from .warm_start import Relatives, WarmDraft

if TYPE_CHECKING:
    from ....search.draft import Draft
    from .population import Individual

__all__ = ["Promising", "Question", "prepare", "promising"]

#: Drafts of a population and generations: some seven thousand drafts of a function are compared.
_DRAFTS, _GENERATIONS = 2304, 2
#: New drafts of a generation below which the design space is exhausted; to look for more is slow.
_FEWEST_NEW = 500
#: Most adapted programs of similar workloads.
_ADAPTED = 32
#: Drafts of a function that are replayed at a time, the most times, and the number of programs that
#: suffice.
_REPLAYED, _PASSES, _FEWEST_PROGRAMS = 24, 4, 4
_SEED = 1


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """A function, and what a database knows about programs of it.

    Parameters
    ----------
    mod : tvm.IRModule
        Normalised module of the function.
    target : tvm.target.Target
        Target of the programs.
    task : DraftTask
        The same two in their stored form.
    relatives : Relatives
        Good programs of similar workloads.
    model : TaskModel or None
        Model of drafts; None for adapted programs alone.
    waits : bool
        Whether weights come from memory, and operations are too few to hide that.
    """

    mod: Any
    target: Any
    task: DraftTask
    relatives: Relatives
    model: TaskModel | None
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Promising:
    """A promising program.

    Parameters
    ----------
    trace : Trace
        The program with its post-processing.
    is_ready : bool
        Whether its build prefetches weights (:mod:`..prefetch`) for which it would wait; false for
        a function that does not wait.
    """

    trace: Trace
    is_ready: bool


def prepare() -> None:
    """Import XGBoost without scikit-learn, if it is installed.

    For worker processes, before they get a question: its model would import both.
    """
    leave_out_sklearn()
    with suppress(PluginError):
        import_xgboost()


def promising(question: Question) -> list[Promising]:
    """Return the most promising programs of a function, in any order.

    Without a model they are the adapted programs, the nearest first. The list is empty if TVM
    cannot make the design space, or nothing is known.
    """
    with without_intrinsics():
        (load_cpu_intrinsics if is_cpu(question.target) else load_intrinsics)()
        try:
            context = ms.TuneContext(
                question.mod,
                target=question.target,
                space_generator=space_of(SPACE, question.target),
                num_threads=1,
                rand_state=_SEED,
            )
            spaces = context.generate_design_space()
        except Exception:  # TVM raises any class
            return []
        postprocs = TuningTask.from_context(context).postprocs
        replayer = DraftReplayer(question.mod, postprocs, threads=1, seed=_SEED)
        templates = [from_tvm(space.trace.simplified(remove_postproc=True)) for space in spaces]
        warm = question.relatives.adapted(templates, _ADAPTED)
        if question.model is None or not can_describe(question.task.rows(templates)):
            schedules = replayer.schedules([each.draft for each in warm])
            return _programs(question, schedules)
        return _finalists(question, question.model, replayer, templates, warm)


def _finalists(
    question: Question,
    model: TaskModel,
    replayer: DraftReplayer,
    templates: Sequence[Draft],
    warm: Sequence[WarmDraft],
) -> list[Promising]:
    """Return the best of thousands of drafts as programs."""
    most_parallel = schedule_queries.most_parallel(question.target)
    drafts = Drafts(model, question.task, replayer, most_parallel, threads=1)
    rng = random.Random(_SEED)  # noqa: S311  chance, not security
    operators = Operators.for_target(str(question.target.kind.name))
    tiles = question.relatives.tile_prior()
    breeding = Breeding(drafts, operators, rng, tiles, most_parallel)
    by_skeleton = {template.skeleton: template for template in templates}
    breeding.add(
        [
            Child(
                drafts.completed(each.draft, by_skeleton[each.draft.skeleton], rng),
                Lineage(Origin.WARM, each.donor),
                WARM,
            )
            for each in warm
        ]
    )
    breeding.draw(templates, _DRAFTS - len(breeding.individuals))
    population: Sequence[Individual] = list(breeding.individuals)
    for _ in range(_GENERATIONS):
        known = len(breeding.individuals)
        population = breeding.evolve(population, _DRAFTS)
        if len(breeding.individuals) - known < _FEWEST_NEW:
            break
    individuals: Sequence[Individual] = breeding.individuals
    tried: list[Individual] = []
    programs: list[Promising] = []
    for _ in range(_PASSES):
        new = finalists(individuals, _REPLAYED, (), tried)
        schedules = replayer.schedules([each.draft for each in new])
        tried += new
        programs += _programs(question, schedules)
        is_ready = not question.waits or any(one.is_ready for one in programs)
        if (is_ready and len(programs) >= _FEWEST_PROGRAMS) or not new:
            break
        drafts.replayed([each.draft for each in new], schedules)
        individuals = drafts.scored(individuals)
    return programs


def _programs(question: Question, schedules: Sequence[Any]) -> list[Promising]:
    """Return the programs of the drafts that TVM accepts, in their order."""
    return [
        Promising(trace_codec.encode(one.trace), question.waits and _prefetches(one, question))
        for one in schedules
        if one is not None
    ]


def _prefetches(schedule: Any, question: Question) -> bool:
    """Return whether the build of a program prefetches."""
    mod = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(schedule.mod)
    try:
        return with_prefetch(mod, question.target) is not mod
    except Exception:  # TVM raises any class; the build will say it
        return False

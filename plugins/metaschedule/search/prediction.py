"""Programs of a function that was never measured: the best of many drafts that TVM accepts.

Drafts of the function's design space, and good programs of similar workloads adapted to it, are
ranked by a model of drafts. No database is read, so worker processes can do it.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvm.s_tir import meta_schedule as ms

from ....records import Origin, Trace
from ....search.operators import Operators
from .. import trace_codec
from .. import winograd as _rules  # noqa: F401 - registers them
from ..database.candidates import Lineage
from ..intrinsics import load_cpu_intrinsics, load_intrinsics, without_intrinsics
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

__all__ = ["MOST_PROGRAMS", "Question", "prepare", "promising"]

#: Drafts of a population and generations: some seven thousand drafts of a function are compared.
_DRAFTS, _GENERATIONS = 2304, 2
#: New drafts of a generation below which the design space is exhausted; to look for more is slow.
_FEWEST_NEW = 500
#: Most adapted programs of similar workloads.
_ADAPTED = 32
#: Drafts of a function that are replayed at a time, the most times, and the most programs that are
#: returned.
_REPLAYED, _PASSES, MOST_PROGRAMS = 24, 4, 4
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
    models : tuple of TaskModel and TaskModel, or None
        Models of drafts and of programs that TVM has replayed; None for adapted programs alone.
    """

    mod: Any
    target: Any
    task: DraftTask
    relatives: Relatives
    models: tuple[TaskModel, TaskModel] | None


def prepare() -> None:
    """Keep XGBoost from importing scikit-learn, which takes 2 s and of which nothing is used.

    For worker processes alone, before they get a question.
    """
    sys.modules.setdefault("sklearn", None)  # type: ignore[arg-type]


def promising(question: Question) -> list[Trace]:
    """Return programs of a function, the most promising first.

    Returns
    -------
    list of Trace
        At most :data:`MOST_PROGRAMS`, with their post-processing. Empty if TVM cannot make the
        design space, or nothing is known.
    """
    with without_intrinsics():
        (load_cpu_intrinsics if is_cpu(question.target) else load_intrinsics)()
        try:
            context = ms.TuneContext(
                question.mod,
                target=question.target,
                space_generator="post-order-apply",
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
        if question.models is None or not can_describe(question.task, templates):
            return _replayed(replayer, [each.draft for each in warm])[:MOST_PROGRAMS]
        return _chosen(question, *question.models, replayer, templates, warm)


def _chosen(
    question: Question,
    of_drafts: TaskModel,
    of_programs: TaskModel,
    replayer: DraftReplayer,
    templates: Sequence[Draft],
    warm: Sequence[WarmDraft],
) -> list[Trace]:
    """Return the best programs of thousands of drafts, by their models."""
    most_parallel = schedule_queries.most_parallel(question.target)
    drafts = Drafts(of_drafts, question.task, replayer, most_parallel, threads=1)
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
    programs: list[Trace] = []
    for _ in range(_PASSES):
        new = finalists(individuals, _REPLAYED, (), tried)
        schedules = replayer.schedules([each.draft for each in new])
        tried += new
        programs += [trace_codec.encode(one.trace) for one in schedules if one is not None]
        if len(programs) >= MOST_PROGRAMS or not new:
            break
        drafts.replayed([each.draft for each in new], schedules)
        individuals = drafts.scored(individuals)
    return _best(question.task, of_programs, programs)


def _best(task: DraftTask, model: TaskModel, programs: Sequence[Trace]) -> list[Trace]:
    """Return the programs with the highest scores; those without a row come last."""
    scores = [
        -1.0 if isinstance(own, Exception) else float(model.scores(task, own, 1)[0])
        for own in task.rows(programs)
    ]
    order = sorted(range(len(programs)), key=lambda number: -scores[number])
    return [programs[number] for number in order[:MOST_PROGRAMS]]


def _replayed(replayer: DraftReplayer, drafts: Sequence[Draft]) -> list[Trace]:
    """Return the drafts that TVM accepts as programs, in their order."""
    schedules = replayer.schedules(drafts)
    return [trace_codec.encode(one.trace) for one in schedules if one is not None]

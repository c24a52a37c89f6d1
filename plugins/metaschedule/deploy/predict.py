"""Programs for functions that were never measured, chosen by a model of other functions.

Nothing is run. Drafts of a function's design space, and programs of similar workloads adapted to
it, are ranked by the model of drafts, which learns from the programs that the database has
measured. The best one that replays and builds is the prediction.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Self

from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.builder import BuilderInput

from ....models.share import ExpectedShare
from ....records import Origin
from ....search.operators import Operators
from .. import modules
from ..database.candidates import Lineage
from ..database.handle import Handle
from ..intrinsics import load_cpu_intrinsics, load_intrinsics, without_intrinsics
from ..search import schedule_queries
from ..search.draft_model import DraftModel, DraftTask, can_describe
from ..search.drafts import Drafts, finalists
from ..search.population import WARM, Breeding, Child
from ..search.schedule_queries import DraftReplayer, from_tvm
from ..search.task_search import TuningTask
from ..search.warm_start import tile_prior, warm_drafts
from ..targets import is_cpu
from ..threads import usable_cpus
from ..workers.space_probe import try_spaces
from ..workers.warm_builder import WarmBuilder

if TYPE_CHECKING:
    from ..search.population import Individual

__all__ = ["Predicted", "predict"]

#: Drafts of a population and generations: some seven thousand drafts of a function are compared.
_DRAFTS, _GENERATIONS = 2304, 2
#: Most adapted programs of similar workloads.
_ADAPTED = 32
#: Programs of a function that are replayed at a time, the times, and the most that are built.
_REPLAYED, _PASSES, _BUILT = 8, 4, 4
_SEED = 1


@dataclass(frozen=True, slots=True, eq=False)
class Predicted:
    """The predicted program of a function.

    Parameters
    ----------
    record : tvm TuningRecord
        Its trace, without run times.
    share : float or None
        Share of the best throughput that the model's first choice reached on held-out workloads as
        far away; None where that is unknown.
    """

    record: Any
    share: float | None


def predict(handle: Handle, mods: Mapping[bytes, Any], target: Any) -> dict[bytes, Predicted]:
    """Return the predicted programs of functions.

    Parameters
    ----------
    handle : Handle
        Handle of the database. Nothing is written.
    mods : mapping of bytes to tvm.IRModule
        Normalised modules of one function by any key.
    target : tvm.target.Target
        Target of the programs.

    Returns
    -------
    dict of bytes to Predicted
        By the keys of `mods`. Functions are missing of which nothing is known, whose design space
        cannot be made, or none of whose programs builds.
    """
    has_records = handle.store.records.count() > 0 or any(handle.layers)
    if not mods or not (has_records or handle.prior is not None):
        return {}
    knowledge = _Knowledge.of(handle, target)
    ranked: dict[bytes, list[Any]] = {}
    with WarmBuilder() as builder, without_intrinsics():
        (load_cpu_intrinsics if is_cpu(target) else load_intrinsics)()
        tasks = [(mod, target, "post-order-apply") for mod in mods.values()]
        problem = try_spaces(builder, tasks, _SEED)
        for number, (key, mod) in enumerate(mods.items()):
            if problem(number) is None:
                ranked[key] = knowledge.ranked(mod)
        built = _built(builder, ranked, target)
    return {
        key: Predicted(
            ms.database.TuningRecord(
                schedule.trace, ms.database.Workload(mods[key]), None, target, None
            ),
            knowledge.share(mods[key]),
        )
        for key, schedule in built.items()
    }


def _built(
    builder: WarmBuilder, ranked: Mapping[bytes, Sequence[Any]], target: Any
) -> dict[bytes, Any]:
    """Return the first schedule of each function that builds."""
    built: dict[bytes, Any] = {}
    for place in range(_BUILT):
        turn = {
            key: schedules[place]
            for key, schedules in ranked.items()
            if key not in built and place < len(schedules)
        }
        inputs = [BuilderInput(schedule.mod, target) for schedule in turn.values()]
        results = builder.build(inputs) if inputs else []
        for (key, schedule), result in zip(turn.items(), results, strict=True):
            if result.error_msg is None:
                built[key] = schedule
    return built


@dataclass(slots=True, eq=False)
class _Knowledge:
    """What a database knows about programs for a target."""

    handle: Handle
    target: Any
    threads: int
    model: DraftModel | None
    expected: ExpectedShare | None

    @classmethod
    def of(cls, handle: Handle, target: Any) -> Self:
        threads, model, expected = usable_cpus(), None, None
        if find_spec("xgboost") is not None:
            stored = handle.targets.stored(target)
            groups = [handle.targets.group(stored, level) for level in (0, 1)]
            model = DraftModel(handle, stored, groups)
            expected = model.expected_share(threads)
        return cls(handle, target, threads, model, expected)

    def share(self, mod: Any) -> float | None:
        """Return the expected share of the best for a function."""
        return None if self.expected is None else self.expected.of(self._task(mod).example)

    def _task(self, mod: Any) -> DraftTask:
        return DraftTask.of(self.handle, modules.to_workload(mod), self.target)

    def ranked(self, mod: Any) -> list[Any]:
        """Return schedules of a function, the most promising first; none where nothing is known."""
        try:
            context = ms.TuneContext(
                mod,
                target=self.target,
                space_generator="post-order-apply",
                num_threads=self.threads,
                rand_state=_SEED,
            )
            spaces = context.generate_design_space()
        except Exception:  # TVM raises any class
            return []
        task = TuningTask.from_context(context)
        replayer = DraftReplayer(mod, task.postprocs, threads=self.threads, seed=_SEED)
        templates = [from_tvm(space.trace.simplified(remove_postproc=True)) for space in spaces]
        warm = warm_drafts(self.handle, mod, self.target, templates, _ADAPTED)
        schedules = replayer.schedules([each.draft for each in warm])
        adapted = [
            (Child(from_tvm(schedule.trace), Lineage(Origin.WARM, each.donor), WARM), schedule)
            for each, schedule in zip(warm, schedules, strict=True)
            if schedule is not None
        ]
        drafts = self._drafts(mod, templates, replayer)
        if drafts is None:
            return [schedule for _, schedule in adapted][:_BUILT]
        operators = Operators.for_target(str(self.target.kind.name))
        rng = random.Random(_SEED)  # noqa: S311  chance, not security
        most_parallel = schedule_queries.most_parallel(self.target)
        prior = tile_prior(self.handle, mod, self.target)
        breeding = Breeding(drafts, operators, rng, prior, most_parallel)
        breeding.add([child for child, _ in adapted])
        breeding.draw(templates, _DRAFTS - len(breeding.individuals))
        population: Sequence[Individual] = list(breeding.individuals)
        for _ in range(_GENERATIONS):
            population = breeding.evolve(population, _DRAFTS)
        return _replayed(drafts, breeding.individuals, replayer)

    def _drafts(self, mod: Any, templates: Any, replayer: DraftReplayer) -> Drafts | None:
        """Return the evaluation of drafts; None without a model that can describe them."""
        task = self._task(mod)
        if self.model is None or not can_describe(task, templates):
            return None
        most = schedule_queries.most_parallel(self.target)
        drafts = Drafts(self.model, task, replayer, most, self.threads)
        return drafts if drafts.prepare() else None


def _replayed(
    drafts: Drafts, individuals: Sequence[Individual], replayer: DraftReplayer
) -> list[Any]:
    """Return the schedules of the best drafts that TVM accepts, best first."""
    chosen: list[Individual] = []
    legal: list[Any] = []
    for _ in range(_PASSES):
        new = finalists(individuals, _REPLAYED, (), chosen)
        schedules = replayer.schedules([each.draft for each in new])
        chosen += new
        legal += [schedule for schedule in schedules if schedule is not None]
        if len(legal) >= _BUILT or not new:
            break
        drafts.replayed([each.draft for each in new], schedules)
        individuals = drafts.scored(individuals)
    return legal[:_BUILT]

"""The search of one task: rounds of evolution, and the batches that come out of them."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm.s_tir import meta_schedule as ms

from ....errors import PluginError
from ....records import Origin
from ....run_times import mean_of
from ....search.operators import Operators
from .. import modules, trace_codec
from ..database.candidates import Lineage
from . import schedule_queries
from .draft_replay import Replays
from .population import WARM, Breeding, Individual, Shares
from .search_report import Outcome, Round
from .warm_start import tile_prior, warm_drafts

if TYPE_CHECKING:
    from ..database.handle import Handle
    from ..measure.measured import Known

#: Rounds without a program to propose after which a task is done, as in MetaSchedule.
_EMPTY_ROUNDS = 5
#: Adapted programs of neighbours that the first batch measures as they are: inside of one
#: instruction set the five best of a neighbour are the best first guess.
_FIRST_WARM = 5
#: Stored programs that are looked through for one that need not be measured again.
_SERVED_FROM = 8


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user chose; see :class:`.search_strategy.EvolutionarySearch`."""

    population_size: int
    generations: int
    operators: Operators | None
    shares: Shares
    eps_greedy: float
    known: Known | None
    warm: bool
    crossover: bool
    threads: int | None
    on_round: Callable[[Round], None] | None

    def operators_for(self, target: Any) -> Operators:
        """Return the operators of a task."""
        chosen = self.operators or Operators.for_target(str(target.kind.name))
        return chosen if self.crossover else replace(chosen, crossover=0.0)


class Modules:
    """A set of scheduled modules under one of TVM's equalities."""

    def __init__(self, equality: str) -> None:
        # Two schedules of a module differ although their anchor blocks are equal.
        self._equality = "structural" if equality == "structural" else "ignore-tensor"
        self._by_hash: dict[int, list[Any]] = {}

    def add(self, mod: Any) -> bool:
        """Add a module; return False if an equal one is there."""
        same = self._by_hash.setdefault(modules.structural_hash(mod, self._equality), [])
        if any(modules.modules_equal(one, mod, self._equality) for one in same):
            return False
        same.append(mod)
        return True


@dataclass(frozen=True, slots=True)
class Trials:
    """How many programs a task may propose: in all, and in a batch."""

    most: int
    batch: int


@dataclass(frozen=True, slots=True)
class TuningTask:
    """What is taken of a tuning context, which itself holds the search strategy.

    Parameters
    ----------
    name : str
    mod : tvm IRModule
    target : tvm Target
    postprocs : tuple of tvm Postproc
        Initialised.
    seed, threads : int
        Of the context.
    """

    name: str
    mod: Any
    target: Any
    postprocs: tuple[Any, ...]
    seed: int
    threads: int

    @classmethod
    def of(cls, context: Any) -> TuningTask:
        """Return the task of a context.

        Raises
        ------
        PluginError
            The context lacks its module, target or space generator.
        """
        space = context.space_generator
        if context.mod is None or context.target is None or space is None:
            raise PluginError("the tuning context needs a module, a target and a space generator")
        return cls(
            str(context.task_name),
            context.mod,
            context.target,
            tuple(space.postprocs or ()),
            int(context.rand_state),
            int(context.num_threads),
        )


class TaskSearch:
    """The search of one task, from its first round to its last.

    Parameters
    ----------
    handle : Handle
        The database's.
    settings : Settings
        What the user chose.
    task : TuningTask
        What is searched.
    trials : Trials
        How many programs to propose.
    spaces : sequence of tvm Schedule
        The design spaces.
    cost_model : tvm CostModel
        Scores programs.
    """

    def __init__(
        self,
        handle: Handle,
        settings: Settings,
        task: TuningTask,
        trials: Trials,
        spaces: Sequence[Any],
        cost_model: Any,
    ) -> None:
        self.outcome = Outcome(task.name)
        self._handle = handle
        self._settings = settings
        self._mod, self._target = task.mod, task.target
        self._trials = trials
        self._cost_model = cost_model
        threads = settings.threads or task.threads
        # The task's own context holds the strategy, which holds this.
        self._context = ms.TuneContext(
            task.mod, target=task.target, task_name=task.name, num_threads=threads
        )
        self._rng = random.Random(task.seed)  # noqa: S311  chance, not security
        self._operators = settings.operators_for(task.target)
        self._replays = Replays(task.mod, task.postprocs, threads=threads, seed=task.seed)
        self._templates = [
            schedule_queries.from_tvm(space.trace.simplified(remove_postproc=True))
            for space in spaces
        ]
        self._proposed = Modules(handle.workloads.equality)
        self._waiting: list[Any] = []
        self._rounds = self._empty = 0
        # By record; None for one that does not apply here.
        self._stored: dict[int, Individual | None] = {}
        handle.commit_workload(self._mod)
        if settings.known is not None:
            settings.known.prepare(self._mod, self._target)
        self._prior = tile_prior(handle, self._mod, self._target) if settings.warm else None
        self._neighbours = self._adapted() if settings.warm else []

    # ------------------------------------------------------------------ what TVM asks for

    def generate(self) -> list[Any] | None:
        """Return the next batch of MeasureCandidates, or None when the task is done."""
        self._forget()
        if self.outcome.trials >= self._trials.most or not self._templates:
            return None
        while self._empty < _EMPTY_ROUNDS:
            picked = self._round()
            if picked:
                return self._candidates(picked)
            self._empty += 1
        return None

    def notify(self, candidates: Sequence[Any], results: Sequence[Any]) -> None:
        """Take in what was measured."""
        for candidate, result in zip(candidates, results, strict=True):
            trace = candidate.sch.trace
            descent = self._handle.candidates.lineage_of(trace)
            digest = self._handle.digest_of(self._mod, self._target, trace)
            if descent is None or digest is None:
                continue
            times = () if result.run_secs is None else trace_codec.floats_of(result.run_secs)
            failed = result.error_msg is not None or not times
            self.outcome.note(digest, descent, None if failed else mean_of(times))

    def finish(self) -> None:
        """Forget what was announced."""
        self._forget()

    # ------------------------------------------------------------------ one round

    def _round(self) -> list[Individual]:
        """Evolve a population and return the programs to measure."""
        self._rounds += 1
        breeding = Breeding(
            self._replays,
            self._scores,
            self._operators,
            self._rng,
            self.outcome.tally,
            self._prior,
            schedule_queries.most_parallel(self._target),
        )
        size = self._settings.population_size
        with ms.Profiler.timeit("tunedb/Search/Begin"):
            breeding.enter(self._measured())
            warm = breeding.enter(self._neighbours)
            chance = breeding.draw(self._templates, size - len(breeding.individuals))
        with ms.Profiler.timeit("tunedb/Search/Evolve"):
            population = list(breeding.individuals)
            for _ in range(self._settings.generations):
                population = breeding.evolve(population, size)
        first = [*self._served(), *warm[:_FIRST_WARM]] if self._rounds == 1 else []
        picked = self._pick(first, breeding, chance)
        if self._settings.on_round is not None:
            name = self.outcome.task
            self._settings.on_round(
                Round(name, self._rounds, len(breeding.individuals), len(picked))
            )
        return picked

    def _measured(self) -> list[Individual]:
        """Return the best stored programs of the task; each is replayed once."""
        most = round(self._settings.population_size * self._settings.shares.measured)
        records = dict(self._handle.best_records(self._mod, self._target, most))
        new = [id_ for id_ in records if id_ not in self._stored]
        drafts = [schedule_queries.from_tvm(records[id_].trace) for id_ in new]
        made = self._replays.schedules(drafts)
        for id_, draft, schedule in zip(new, drafts, made, strict=True):
            digest = self._handle.store.records.get(id_).measurement.program.digest
            self._stored[id_] = (
                None
                if schedule is None
                else Individual(draft, schedule, Lineage(Origin.MEASURED, digest))
            )
        self._stored = {id_: self._stored[id_] for id_ in records}
        return [one for one in self._stored.values() if one is not None]

    def _adapted(self) -> list[Individual]:
        """Return programs of other workloads, adapted to this one, best first."""
        most = round(self._settings.population_size * self._settings.shares.warm)
        found = warm_drafts(self._handle, self._mod, self._target, self._templates, most)
        if not found:
            return []
        made = self._replays.schedules([one.draft for one in found])
        tally = self.outcome.tally
        tally.offspring[WARM] += len(found)
        tally.illegal[WARM] += sum(schedule is None for schedule in made)
        return [
            Individual(
                schedule_queries.from_tvm(schedule.trace), schedule, Lineage(Origin.WARM, one.donor)
            )
            for one, schedule in zip(found, made, strict=True)
            if schedule is not None
        ]

    def _served(self) -> list[Individual]:
        """Return the best stored program that need not be measured again, if there is one."""
        known = self._settings.known
        if known is None:
            return []
        records = self._handle.best_records(self._mod, self._target, _SERVED_FROM)
        made = self._replays.again([record.trace for _, record in records])
        for (_, record), schedule in zip(records, made, strict=True):
            found = None if schedule is None else known.find(schedule.mod, self._target)
            if found is not None and not found.failed:
                draft = schedule_queries.from_tvm(record.trace)
                descent = Lineage(Origin.MEASURED, found.digest)
                return [Individual(draft, schedule, descent, is_served=True)]
        return []

    def _scores(self, schedules: Sequence[Any]) -> list[float]:
        """Return what the cost model says, 0 where that is negative or not finite."""
        with ms.Profiler.timeit("tunedb/Search/Predict"):
            candidates = [candidate_of(schedule) for schedule in schedules]
            said = np.asarray(self._cost_model.predict(self._context, candidates), np.float64)
        scores: list[float] = np.where(np.isfinite(said), said, 0.0).clip(min=0).tolist()
        return scores

    # ------------------------------------------------------------------ the batch

    def _pick(
        self, first: Sequence[Individual], breeding: Breeding, chance: Sequence[Individual]
    ) -> list[Individual]:
        """Return the programs to measure: some that are set, the best, and some random ones."""
        number = min(self._trials.batch, self._trials.most - self.outcome.trials)
        wanted = number * self._settings.eps_greedy
        n_lucky = math.floor(wanted) + (self._rng.random() < wanted % 1)
        best = sorted(breeding.individuals, key=lambda one: -one.score)
        lucky = self._rng.sample(chance, len(chance))
        picked: list[Individual] = []
        for some, most in (
            (first, number),
            (best, max(number - n_lucky, 0)),
            (lucky, number),
            (best, number),
        ):
            new = (one for one in some if self._is_new(one))
            picked += itertools.islice(new, max(most - len(picked), 0))
        return picked

    def _is_new(self, one: Individual) -> bool:
        """Tell whether a program is to be measured: neither proposed before nor known."""
        mod = one.schedule.mod
        if not self._proposed.add(mod):
            return False
        known = self._settings.known
        return one.is_served or known is None or known.find(mod, self._target) is None

    def _candidates(self, picked: Sequence[Individual]) -> list[Any]:
        """Return programs as TVM measures them, and announce where they come from."""
        candidates = [candidate_of(one.schedule) for one in picked]
        for one, candidate in zip(picked, candidates, strict=True):
            trace = candidate.sch.trace
            self._handle.candidates.announce(trace, one.lineage)
            self._waiting.append(trace)
            self.outcome.proposals[one.lineage.origin.value] += 1
        self.outcome.trials += len(candidates)
        return candidates

    def _forget(self) -> None:
        """Drop the announcements of the batch before, which is stored by now."""
        for trace in self._waiting:
            self._handle.candidates.forget(trace)
        self._waiting.clear()


def candidate_of(schedule: Any) -> Any:
    """Return the MeasureCandidate of a schedule."""
    args = ms.arg_info.ArgInfo.from_entry_func(schedule.mod, remove_preproc=True)
    return ms.MeasureCandidate(schedule, args)

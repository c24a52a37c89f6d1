"""Search of one task: rounds of evolution and their batches."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from cachetools import FIFOCache
from tvm.s_tir import meta_schedule as ms

from ....errors import PluginError
from ....models.model import joined_scores
from ....records import Origin
from ....run_times import is_cut_short, mean_of
from ....search.operators import Operators
from ....system.gc_pause import paused_gc
from .. import modules, trace_codec
from ..database.candidates import Lineage
from . import schedule_queries
from .descent import Descent, children
from .draft_model import DraftModel, DraftTask, can_describe
from .drafts import Drafts, LearningDrafts, finalists
from .population import RANDOM, WARM, Breeding, Evaluation, Individual, Replays, Shares, completed
from .schedule_queries import DraftReplayer
from .search_report import Round, TaskReport
from .warm_start import Relatives

if TYPE_CHECKING:
    from ....records import Target
    from ....search.prior import TilePrior
    from ..database.handle import Handle
    from ..measure.measured import Known

#: Rounds without a program to propose after which a task is done, as in MetaSchedule.
_EMPTY_ROUNDS = 5
#: Most adapted programs of neighbours for each trial of a batch.
_WARM_PER_TRIAL = 8
#: Adapted programs of neighbours in the first batch, unchanged. With a model of drafts they take
#: turns with the programs that it predicts to be the fastest: for matrix products both are good
#: guesses, and for convolutions the neighbours' may take three times as long.
_FIRST_WARM = 5
#: Most programs of a population that is replayed: in all, and for each trial of a batch.
_REPLAYED, _REPLAYED_PER_TRIAL = 256, 16
#: Most drafts of a population for each trial of a batch, and without a model.
_DRAFTS_PER_TRIAL, _DRAWN = 576, 256
#: Finalists for each trial of a batch, and their least number.
_FINALISTS, _LEAST_FINALISTS = 4, 16
#: Weight of the cost model's score beside that of the model of drafts. Of 0, 1/4, 1/2, 1 and 2 it
#: ordered most pairs of programs of unseen workloads (`benchmarks/drafts.py --data`).
COST_WEIGHT = 0.25
#: Most passes that choose finalists; share of legal ones below which the next pass is small.
_PASSES, _LEGAL = 8, 0.9
#: Finalists that are kept with their schedules for later rounds: 70 KB each.
_MOST_FINALISTS = 256
#: Number of the best stored programs that are searched for a known one.
_SERVED_FROM = 8


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Options of a search; see :class:`.strategy.EvolutionarySearch`."""

    population_size: int
    generations: int
    operators: Operators | None
    shares: Shares
    eps_greedy: float
    known: Known | None
    warm: bool
    crossover: bool
    threads: int | None
    rank_drafts: bool
    on_round: Callable[[Round], None] | None

    def operators_for(self, target: Any) -> Operators:
        """Return the operators of a task."""
        operators = self.operators or Operators.for_target(str(target.kind.name))
        return operators if self.crossover else operators.with_weights(crossover=0.0)


class ModuleSet:
    """A set of scheduled modules under one of TVM's equalities.

    Parameters
    ----------
    equality : str
        ``structural``, ``ignore-tensor`` or ``anchor-block``.
    """

    def __init__(self, equality: str) -> None:
        # Two schedules of a module differ although their anchor blocks are equal.
        self._equality = "structural" if equality == "structural" else "ignore-tensor"
        self._by_hash: dict[int, list[Any]] = {}

    def add(self, mod: Any) -> bool:
        """Add a module; return False if an equal one is there."""
        same_hash = self._by_hash.setdefault(modules.structural_hash(mod, self._equality), [])
        if self._is_among(mod, same_hash):
            return False
        same_hash.append(mod)
        return True

    def __contains__(self, mod: Any) -> bool:
        same_hash = self._by_hash.get(modules.structural_hash(mod, self._equality), [])
        return self._is_among(mod, same_hash)

    def _is_among(self, mod: Any, others: Sequence[Any]) -> bool:
        return any(modules.modules_equal(other, mod, self._equality) for other in others)


@dataclass(frozen=True, slots=True)
class TrialLimits:
    """Most programs that a task may propose: in all, and in a batch."""

    total: int
    batch: int


@dataclass(frozen=True, slots=True)
class TuningTask:
    """Parts of a tuning context, which itself holds the search strategy.

    Parameters
    ----------
    name : str
    mod : tvm IRModule
    target : tvm Target
    postprocs : tuple of tvm Postproc
        Postprocessors, initialised.
    seed, threads : int
        Random state and number of threads of the context.
    """

    name: str
    mod: Any
    target: Any
    postprocs: tuple[Any, ...]
    seed: int
    threads: int

    @classmethod
    def from_context(cls, context: Any) -> TuningTask:
        """Return the task of a tuning context.

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


class _Compared(NamedTuple):
    """What a round compared."""

    #: Number of programs.
    number: int
    #: Adapted programs of neighbours, best first.
    warm: list[Individual]
    #: Programs that may be measured, with their schedules.
    programs: list[Individual]
    #: Random ones, with their schedules.
    drawn: list[Individual]
    #: Neighbours of the best program to be measured, with their schedules.
    near: Sequence[Individual] = ()
    #: Whether a model of drafts chose the programs.
    has_model: bool = False


class TaskSearch:
    """Search of one task, from its first round to its last.

    Parameters
    ----------
    handle : Handle
        Handle of the database.
    options : SearchOptions
        Options of the user.
    task : TuningTask
        Task to search.
    limits : TrialLimits
        Most programs to propose.
    spaces : sequence of tvm Schedule
        Design spaces.
    cost_model : tvm CostModel
        Model that scores programs.
    draft_model : callable
        Returns the model of drafts of a database for a target in its stored form.

    Attributes
    ----------
    report : TaskReport
        Results so far.
    """

    def __init__(
        self,
        handle: Handle,
        options: SearchOptions,
        task: TuningTask,
        limits: TrialLimits,
        spaces: Sequence[Any],
        cost_model: Any,
        draft_model: Callable[[Handle, Target], DraftModel],
    ) -> None:
        self.report: Final = TaskReport(task.name)
        self._handle = handle
        self._options = options
        self._mod, self._target = task.mod, task.target
        self._limits = limits
        self._cost_model = cost_model
        # Size of a population that is replayed, to which the shares refer.
        self._size = min(options.population_size, _REPLAYED)
        threads = options.threads or task.threads
        # The task's own context holds the strategy, which holds this.
        self._context = ms.TuneContext(
            task.mod, target=task.target, task_name=task.name, num_threads=threads
        )
        self._rng = random.Random(task.seed)  # noqa: S311  chance, not security
        self._operators = options.operators_for(task.target)
        self._most_parallel = schedule_queries.most_parallel(task.target)
        self._replayer = DraftReplayer(task.mod, task.postprocs, threads=threads, seed=task.seed)
        self._templates = [
            schedule_queries.from_tvm(space.trace.simplified(remove_postproc=True))
            for space in spaces
        ]
        self._proposed = ModuleSet(handle.workloads.equality)
        self._announced: list[Any] = []
        self._rounds = self._empty_rounds = 0
        self._descent = Descent()
        # By record; None if it does not apply here.
        self._stored: dict[int, Individual | None] = {}
        # By draft: finalists that were not measured yet, and those that need no other replay.
        self._finalists: FIFOCache[bytes, Individual] = FIFOCache(_MOST_FINALISTS)
        self._spent: set[bytes] = set()
        handle.commit_workload(self._mod)
        self._drafts = self._evaluation_of_drafts(draft_model, threads)
        if options.known is not None:
            options.known.prepare(self._mod, self._target)
        self._prior, self._neighbours = self._relatives() if options.warm else (None, [])

    # ------------------------------------------------------------------ calls of TVM

    def generate(self) -> list[Any] | None:
        """Return the next batch of MeasureCandidates, or None when the task is done.

        A round without a new program gives an empty batch, as in MetaSchedule. A first batch is
        never empty: TVM's gradient scheduler needs a time of each task.
        """
        self.finish()
        if self.report.trials >= self._limits.total or not self._templates:
            return None
        while self._empty_rounds < _EMPTY_ROUNDS:
            with paused_gc():
                picked = self._round()
            if picked:
                return self._candidates(picked)
            self._empty_rounds += 1
            if self.report.trials and self._empty_rounds < _EMPTY_ROUNDS:
                return []
        return None

    def notify(self, candidates: Sequence[Any], results: Sequence[Any]) -> None:
        """Report the results of measured candidates."""
        measured = []
        times_of_batch: list[float] = []
        for candidate, result in zip(candidates, results, strict=True):
            trace = candidate.sch.trace
            lineage = self._handle.candidates.lineage_of(trace)
            program = self._handle.program_of(self._mod, self._target, trace)
            if lineage is None or program is None:
                continue
            times = () if result.run_secs is None else trace_codec.floats_of(result.run_secs)
            failed = result.error_msg is not None or not times or is_cut_short(times)
            self.report.add(program.digest, lineage, None if failed else mean_of(times))
            measured.append((program, result))
            if not failed:
                times_of_batch.append(mean_of(times))
        self._descent.add(times_of_batch)
        if self._drafts is not None:
            self._drafts.measured(measured)

    def finish(self) -> None:
        """Forget the lineages of the latest batch, which is stored by now."""
        for trace in self._announced:
            self._handle.candidates.forget(trace)
        self._announced.clear()

    # ------------------------------------------------------------------ one round

    def _round(self) -> list[Individual]:
        """Compare programs and return those to measure."""
        self._rounds += 1
        number = min(self._limits.batch, self._limits.total - self.report.trials)
        share = number * self._options.eps_greedy
        n_random = math.floor(share) + (self._rng.random() < share % 1)
        counts = self.report.counts
        replayed, illegal = counts.offspring.total(), counts.illegal.total()
        if self._drafts is None:
            compared = self._round_of_programs()
        else:
            compared = self._round_of_drafts(self._drafts, number, n_random)
        best = sorted(compared.programs, key=lambda individual: -individual.score)
        first = compared.near if self._rounds > 1 else self._guesses(compared, best)
        picked = self._pick(number, n_random, first, best, compared.drawn)
        if self._options.on_round is not None:
            self._options.on_round(
                Round(
                    self.report.task,
                    self._rounds,
                    compared.number,
                    counts.offspring.total() - replayed,
                    counts.illegal.total() - illegal,
                    len(picked),
                )
            )
        return picked

    def _guesses(self, compared: _Compared, best: Sequence[Individual]) -> list[Individual]:
        """Return the first programs of a run: a known one, then those of neighbours.

        With a model the best predicted ones take turns with these.
        """
        guesses = compared.warm[:_FIRST_WARM]
        if compared.has_model:
            turns = zip(best, guesses, strict=False)
            guesses = [*itertools.chain.from_iterable(turns), *guesses]
        return [*self._served(), *guesses]

    def _round_of_programs(self) -> _Compared:
        """Evolve programs, each of which is replayed."""
        replays = Replays(self._replayer, self._scores, self.report.counts)
        breeding = self._breeding(replays)
        # The search costs as much for each trial, however small the batch.
        size = min(self._size, _REPLAYED_PER_TRIAL * self._limits.batch)
        with ms.Profiler.timeit("tunedb/Search/Begin"):
            breeding.enter(self._measured())
            warm = breeding.enter(self._neighbours)
            drawn = breeding.draw(self._templates, size - len(breeding.individuals))
        self._evolve(breeding, size)
        return _Compared(len(breeding.individuals), warm, breeding.individuals, drawn)

    def _round_of_drafts(self, drafts: LearningDrafts, number: int, n_random: int) -> _Compared:
        """Evolve drafts; replay the finalists and compare them again, by both models."""
        with ms.Profiler.timeit("tunedb/Search/Learn"):
            has_model = drafts.prepare()
        breeding = self._breeding(drafts)
        # The search costs as much for each trial, however small the batch.
        most = _DRAFTS_PER_TRIAL * self._limits.batch if has_model else _DRAWN
        size = min(self._options.population_size, most)
        with ms.Profiler.timeit("tunedb/Search/Begin"):
            measured = breeding.enter(self._measured())
            warm = breeding.enter(self._neighbours)
            drawn = breeding.draw(self._templates, size - len(breeding.individuals))
        left = self._limits.total - self.report.trials
        places = self._descent.places(number, left, self._limits.total)
        around: list[Individual] = []
        if has_model and measured and places:
            around = breeding.add(children(measured[0], drafts, self._most_parallel))
        if has_model:
            self._evolve(breeding, size)
        with ms.Profiler.timeit("tunedb/Search/Finalists"):
            around = [one for one in around if one.draft.key not in self._spent]
            around.sort(key=lambda individual: -individual.score)
            near = self._distinct(self._replayed(drafts, around[: _FINALISTS * places]), places)
            able = [one for one in drawn if one.score > 0] or drawn
            random_ones = self._replayed(drafts, self._rng.sample(able, min(n_random, len(able))))
            programs = self._finalists_of(drafts, breeding, number - len(near), size)
        scores = self._scores([program.schedule for program in programs])
        if has_model:
            scores = joined_scores([program.score for program in programs], scores, COST_WEIGHT)
        programs = [program.scored(score) for program, score in zip(programs, scores, strict=True)]
        return _Compared(len(breeding.individuals), warm, programs, random_ones, near, has_model)

    def _finalists_of(
        self, drafts: Drafts, breeding: Breeding, number: int, size: int
    ) -> list[Individual]:
        """Return the best drafts of a round with their schedules, for a batch of `number`.

        If too few are legal, `size` more are drawn. Drafts of score 0 are replayed where there is
        no other program.
        """
        wanted = max(_FINALISTS * number, _LEAST_FINALISTS)
        pool: Sequence[Individual] = breeding.individuals
        chosen: list[Individual] = []
        programs: list[Individual] = []
        most = _LEAST_FINALISTS
        for _ in range(_PASSES):
            most = min(most, wanted - len(programs))
            new = finalists(pool, most, self._spent, chosen)
            chosen += new
            legal = self._replayed(drafts, new)
            programs += legal
            is_exhausted = len(new) < most
            if len(programs) >= (number if is_exhausted else wanted):
                break
            if is_exhausted:
                breeding.draw(self._templates, size)
            rejects_many = len(legal) < _LEGAL * len(new)
            if rejects_many or is_exhausted:
                pool = drafts.scored(breeding.individuals)
            # If TVM rejects many, the next ones are few, so that it teaches their choice, too.
            most = _LEAST_FINALISTS if rejects_many else wanted
        return programs or self._replayed(drafts, breeding.individuals[:wanted])

    def _breeding(self, evaluation: Evaluation) -> Breeding:
        return Breeding(
            evaluation,
            self._operators,
            self._rng,
            self._prior,
            self._most_parallel,
        )

    def _evolve(self, breeding: Breeding, size: int) -> None:
        with ms.Profiler.timeit("tunedb/Search/Evolve"):
            population = list(breeding.individuals)
            for _ in range(self._options.generations):
                population = breeding.evolve(population, size)

    # ------------------------------------------------------------------ drafts

    def _evaluation_of_drafts(
        self, draft_model: Callable[[Handle, Target], DraftModel], threads: int
    ) -> LearningDrafts | None:
        """Return the evaluation of drafts.

        None without XGBoost, and where ``steps`` cannot describe the programs.
        """
        if not self._options.rank_drafts or find_spec("xgboost") is None:
            return None
        known = self._handle.workloads.commit(self._mod)
        task = DraftTask.of(self._handle, known.record, self._target)
        if not can_describe(task.rows(self._templates)):
            return None
        return LearningDrafts(
            draft_model(self._handle, task.target),
            task,
            self._replayer,
            self._most_parallel,
            threads,
        )

    def _replayed(self, drafts: Drafts, chosen: Sequence[Individual]) -> list[Individual]:
        """Return drafts with their schedules; illegal, proposed and known ones are spent."""
        ready: dict[bytes, Individual | None] = {
            one.draft.key: one if one.schedule is not None else self._finalists.get(one.draft.key)
            for one in chosen
        }
        new = [one for one in chosen if ready[one.draft.key] is None]
        schedules = self._replayer.schedules([one.draft for one in new])
        for one, schedule in zip(new, schedules, strict=True):
            operators = one.lineage.operators
            self.report.counts.add(
                operators[-1] if operators else RANDOM, is_legal=schedule is not None
            )
            if schedule is None or schedule.mod in self._proposed or self._is_known(schedule.mod):
                self._spent.add(one.draft.key)
            else:
                self._finalists[one.draft.key] = ready[one.draft.key] = replace(
                    one, draft=completed(one.draft, schedule), schedule=schedule
                )
        drafts.replayed([one.draft for one in new], schedules)
        return [
            program.scored(one.score)
            for one in chosen
            if (program := ready[one.draft.key]) is not None
        ]

    # ------------------------------------------------------------------ the beginning

    def _measured(self) -> list[Individual]:
        """Return the best stored programs of the task; each is replayed once."""
        most = round(self._size * self._options.shares.measured)
        records = dict(self._handle.best_records(self._mod, self._target, most))
        new = [id_ for id_ in records if id_ not in self._stored]
        drafts = [schedule_queries.from_tvm(records[id_].trace) for id_ in new]
        # Drafts are compared without a schedule.
        is_replayed = self._drafts is None
        schedules = self._replayer.schedules(drafts) if is_replayed else [None] * len(drafts)
        for id_, draft, schedule in zip(new, drafts, schedules, strict=True):
            digest = self._handle.store.records.get(id_).measurement.program.digest
            self._stored[id_] = (
                None
                if is_replayed and schedule is None
                else Individual(draft, schedule, Lineage(Origin.MEASURED, digest))
            )
        self._stored = {id_: self._stored[id_] for id_ in records}
        return [individual for individual in self._stored.values() if individual is not None]

    def _relatives(self) -> tuple[TilePrior | None, list[Individual]]:
        """Return tiles of good programs of other workloads, and these programs, adapted."""
        most = min(
            round(self._size * self._options.shares.warm), _WARM_PER_TRIAL * self._limits.batch
        )
        relatives = Relatives.of(self._handle, self._mod, self._target, most)
        adapted = relatives.adapted(self._templates, most)
        schedules = self._replayer.schedules([warm.draft for warm in adapted])
        counts = self.report.counts
        if adapted:
            counts.offspring[WARM] += len(adapted)
            counts.illegal[WARM] += sum(schedule is None for schedule in schedules)
        return relatives.tile_prior(), [
            Individual(
                schedule_queries.from_tvm(schedule.trace),
                schedule,
                Lineage(Origin.WARM, warm.donor),
            )
            for warm, schedule in zip(adapted, schedules, strict=True)
            if schedule is not None
        ]

    def _served(self) -> list[Individual]:
        """Return the best stored program that need not be measured again, if there is one."""
        known = self._options.known
        if known is None:
            return []
        records = self._handle.best_records(self._mod, self._target, _SERVED_FROM)
        schedules = self._replayer.stored_schedules([record.trace for _, record in records])
        for (_, record), schedule in zip(records, schedules, strict=True):
            measured = None if schedule is None else known.find(schedule.mod, self._target)
            if measured is not None and not measured.failed:
                draft = schedule_queries.from_tvm(record.trace)
                lineage = Lineage(Origin.MEASURED, measured.digest)
                return [Individual(draft, schedule, lineage, is_served=True)]
        return []

    def _scores(self, schedules: Sequence[Any]) -> list[float]:
        """Return the scores of the cost model, 0 where it is negative or not finite."""
        if not schedules:  # TVM cannot pass an empty array
            return []
        with ms.Profiler.timeit("tunedb/Search/Predict"):
            candidates = [candidate_of(schedule) for schedule in schedules]
            predicted = np.asarray(self._cost_model.predict(self._context, candidates), np.float64)
        scores: list[float] = np.where(np.isfinite(predicted), predicted, 0.0).clip(min=0).tolist()
        return scores

    # ------------------------------------------------------------------ the batch

    def _pick(
        self,
        number: int,
        n_random: int,
        first: Sequence[Individual],
        best: Sequence[Individual],
        drawn: Sequence[Individual],
    ) -> list[Individual]:
        """Return the programs to measure: `first`, the best, and some of the random ones."""
        shuffled = self._rng.sample(drawn, len(drawn))
        picked: list[Individual] = []
        for individuals, most in (
            (first, number),
            (best, max(number - n_random, 0)),
            (shuffled, number),
            (best, number),
        ):
            new = (individual for individual in individuals if self._is_new(individual))
            picked += itertools.islice(new, max(most - len(picked), 0))
        self._spent.update(individual.draft.key for individual in picked)
        return picked

    def _is_new(self, individual: Individual) -> bool:
        """Tell whether a program must be measured: neither proposed before nor known."""
        mod = individual.schedule.mod
        return self._proposed.add(mod) and (individual.is_served or not self._is_known(mod))

    def _distinct(self, programs: Sequence[Individual], most: int) -> list[Individual]:
        """Return the first programs whose modules are new and differ."""
        seen = ModuleSet(self._handle.workloads.equality)
        new = (
            program
            for program in programs
            if program.schedule.mod not in self._proposed and seen.add(program.schedule.mod)
        )
        return list(itertools.islice(new, most))

    def _is_known(self, mod: Any) -> bool:
        known = self._options.known
        return known is not None and known.find(mod, self._target) is not None

    def _candidates(self, picked: Sequence[Individual]) -> list[Any]:
        """Return programs as TVM measures them, and announce their lineages."""
        candidates = [candidate_of(individual.schedule) for individual in picked]
        for individual, candidate in zip(picked, candidates, strict=True):
            trace = candidate.sch.trace
            self._handle.candidates.announce(trace, individual.lineage)
            self._announced.append(trace)
            self.report.proposals[individual.lineage.origin.value] += 1
        self.report.trials += len(candidates)
        return candidates


def candidate_of(schedule: Any) -> Any:
    """Return the MeasureCandidate of a schedule."""
    args = ms.arg_info.ArgInfo.from_entry_func(schedule.mod, remove_preproc=True)
    return ms.MeasureCandidate(schedule, args)

"""Search strategy for TVM: evolution that begins with the programs of a database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from tvm.s_tir.meta_schedule.search_strategy.search_strategy import _PySearchStrategy

from ....errors import PluginError, UsageError
from ....search.operators import Operators
from ..compat import register_errors
from ..database.database import Database, handle_of
from ..measure.measured import Known
from .draft_model import DraftModel
from .population import Shares
from .search_report import Round, TaskReport
from .task_search import SearchOptions, TaskSearch, TrialLimits, TuningTask

if TYPE_CHECKING:
    from ....records import Target
    from ..database.handle import Handle

__all__ = ["EvolutionarySearch", "Round", "Shares"]

register_errors()


class EvolutionarySearch(_PySearchStrategy):
    """Evolutionary search that begins with the programs of a database.

    Each round builds a population from the best measured programs of the task, adapted programs of
    its neighbours, and random ones. It evolves for some generations:
    parents are drawn in proportion to their scores, and the operators of
    :mod:`tunedb.search.operators` make offspring. The best programs that were never proposed are
    measured, and some random ones.

    The first batch of a task begins with the best known program, if its times are served, and
    with up to five unchanged programs of neighbours.

    Parameters
    ----------
    database : Database
        Database of the run.
    population_size : int
        Drafts of a population; where each is replayed, at most 256 programs.
    generations : int
        Generations of a round; 0 measures the best of the initial population.
    operators : Operators, optional
        Weights of the operators; by default Ansor's for the kind of target.
    shares : Shares, optional
        Sources of the initial population.
    eps_greedy : float
        Share of random programs in each batch, drawn from those of its round; chance decides on a
        fraction of a program.
    known : Known, optional
        Programs that are not measured again, as ``ReusingBuilder`` and ``ReusingRunner`` take them.
        Only the best of them is proposed, in the first batch.
    warm : bool
        Whether programs and tiles of neighbours are used.
    crossover : bool
        Whether programs are crossed.
    threads : int, optional
        Threads that replay; by default those of the tuning context.
    rank_drafts : bool
        Whether a model of drafts chooses what is replayed. Otherwise, without XGBoost, and where a
        trace has instructions that ``steps`` cannot describe, every program of a population is.
    on_round : callable, optional
        Called with a :class:`Round` before its programs are measured.

    Raises
    ------
    UsageError
        A parameter is out of its range.
    PluginError
        The database is not tunedb's; while tuning, the run has no cost model.

    Notes
    -----
    ``MeasureCallback`` stores the lineage of each candidate with its measurement. Equal seeds,
    databases and cost models give equal candidates, whatever the number of threads. Mutators of
    the space generator are not used.

    Examples
    --------
    >>> search = EvolutionarySearch(database)
    >>> ms.tune_tir(mod, target, work_dir, 64, database=database, strategy=search,
    ...             cost_model=CostModel(database), measure_callbacks=[
    ...                 MeasureCallback(database), ms.measure_callback.RemoveBuildArtifact(),
    ...                 ms.measure_callback.UpdateCostModel()])
    >>> search.report()["main"]["proposals"]
    {'random': 16, 'mutated': 44, 'crossed': 4}
    """

    # TVM's objects lack an instance dictionary.
    __slots__ = ("__dict__", "__weakref__")

    def __init__(
        self,
        database: Database,
        *,
        population_size: int = 2304,
        generations: int = 4,
        operators: Operators | None = None,
        shares: Shares | None = None,
        eps_greedy: float = 0.05,
        known: Known | None = None,
        warm: bool = True,
        crossover: bool = True,
        threads: int | None = None,
        rank_drafts: bool = True,
        on_round: Callable[[Round], None] | None = None,
    ) -> None:
        if population_size < 1 or generations < 0:
            raise UsageError(
                "a population has 1 or more programs and 0 or more generations, not "
                f"{population_size} and {generations}"
            )
        if not 0 <= eps_greedy <= 1:
            raise UsageError(f"eps_greedy must be from 0 to 1, not {eps_greedy}")
        if threads is not None and threads < 1:
            raise UsageError(f"threads must be 1 or more, not {threads}")
        if handle_of(database) is None:
            raise PluginError(
                f"EvolutionarySearch needs a tunedb database, not {type(database).__name__}"
            )
        options = SearchOptions(
            population_size,
            generations,
            operators,
            shares or Shares(),
            eps_greedy,
            known,
            warm,
            crossover,
            threads,
            rank_drafts,
            on_round,
        )
        self._start(_StrategyState(database, options))

    def _start(self, shared: _StrategyState) -> None:
        # TVM's object holds the strategy's methods, which hold nothing of TVM's object: the last
        # reference to either frees both at once.
        strategy = _Strategy(shared)
        super().__init__(
            strategy.initialize,
            strategy.pre_tuning,
            strategy.post_tuning,
            strategy.generate,
            strategy.notify,
            lambda: _clone(shared),
        )
        self._shared = shared

    def report(self) -> dict[str, dict[str, Any]]:
        """Return counts and the best program of each task, by the names of the tasks.

        Returns
        -------
        dict
            For each task: ``trials`` and, by origin, ``proposals``; ``offspring`` of each operator
            and its ``illegal`` part; for the best measured program its digest (``best``),
            ``best_seconds``, its ``descent`` (its own lineage first, then that of its ancestor in
            this run, and so on), and whether that has a crossover (``best_is_crossed``). Tasks of
            equal names get numbers.
        """
        reports: dict[str, dict[str, Any]] = {}
        for report in self._shared.reports:
            name, number = report.task, 2
            while name in reports:
                name, number = f"{report.task} ({number})", number + 1
            reports[name] = report.as_dict()
        return reports

    def __copy__(self) -> NoReturn:
        raise TypeError("an EvolutionarySearch cannot be copied; use clone()")

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        self.__copy__()

    def __reduce__(self) -> NoReturn:
        self.__copy__()


class _StrategyState:
    """State that a strategy and its clones share: TVM clones one for each task."""

    def __init__(self, database: Database, options: SearchOptions) -> None:
        self.database = database
        self.options = options
        self.reports: list[TaskReport] = []
        self._draft_models: dict[bytes, DraftModel] = {}

    def draft_model(self, handle: Handle, target: Target) -> DraftModel:
        """Return the model of drafts for a target, which all tasks of the target share."""
        known = self._draft_models.get(target.digest)
        if known is None:
            known = self._draft_models[target.digest] = DraftModel(handle, target)
        return known


def _clone(shared: _StrategyState) -> EvolutionarySearch:
    clone = EvolutionarySearch.__new__(EvolutionarySearch)
    clone._start(shared)
    return clone


class _Strategy:
    """The work of one clone in plain Python; TVM calls it through function objects."""

    def __init__(self, shared: _StrategyState) -> None:
        self._shared = shared
        self._task: TuningTask | None = None
        self._search: TaskSearch | None = None

    def initialize(self, context: Any) -> None:
        """Take the task from a tuning context."""
        self._task = TuningTask.from_context(context)

    def pre_tuning(
        self, max_trials: int, batch: int, spaces: Sequence[Any], _database: Any, cost_model: Any
    ) -> None:
        """Begin the search of the task."""
        handle = handle_of(self._shared.database)
        if self._task is None or self._search is not None:
            raise UsageError("a search strategy can be initialised only once; clone it")
        if cost_model is None or handle is None:
            raise PluginError("EvolutionarySearch needs a cost model; 'random' is one")
        self._search = TaskSearch(
            handle,
            self._shared.options,
            self._task,
            TrialLimits(max_trials, batch),
            spaces,
            cost_model,
            self._shared.draft_model,
        )
        self._shared.reports.append(self._search.report)

    def post_tuning(self) -> None:
        """End the search and free its memory."""
        if self._search is not None:
            self._search.finish()
            self._search = None

    def generate(self) -> list[Any] | None:
        """Return the next batch, or None at the end."""
        return self._running_search().generate()

    def notify(self, candidates: Sequence[Any], results: Sequence[Any]) -> None:
        """Report the results of measured candidates."""
        self._running_search().notify(candidates, results)

    def _running_search(self) -> TaskSearch:
        if self._search is None:
            raise UsageError("the search has not begun; call pre_tuning first")
        return self._search

"""``tune``: a tuning run with everything that tunedb has, in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tvm.s_tir.meta_schedule.runner import EvaluatorConfig

from ..database.database import Database
from ..deploy.network import Layout
from .options import EVALUATOR, TRIALS_PER_BATCH, TuneOptions
from .progress import Progress
from .results import TuningResult
from .run import Run

__all__ = ["tune"]


def tune(
    mod: Any,
    target: Any = None,
    work_dir: str | Path | None = None,
    max_trials_global: int | None = None,
    *,
    max_trials_per_task: int | None = None,
    minutes: float | None = None,
    num_trials_per_iter: int = TRIALS_PER_BATCH,
    builder: Any = "warm",
    runner: Any = "local",
    database: Database | str | Path | None = None,
    cost_model: Any = "tunedb",
    measure_callbacks: Any = "default",
    task_scheduler: Any = "tunedb",
    space: Any = "post-order-apply",
    strategy: Any = "tunedb",
    num_tuning_cores: int | str = "physical",
    seed: int | None = None,
    module_equality: str = "structural",
    special_space: Mapping[str, Any] | None = None,
    params: Mapping[str, Any] | None = None,
    op_names: Sequence[str] | None = None,
    evaluator: EvaluatorConfig = EVALUATOR,
    warm: bool = True,
    remeasure: bool = False,
    layout: Layout = "auto",
    prepack: bool | None = None,
    network: str | None = None,
    measure_network: bool = True,
    bind: Mapping[str, int | Sequence[int]] | None = None,
    layers: Sequence[str | Path] | None = None,
    server: str | Path | None = None,
    on_progress: Callable[[Progress], object] | None = None,
) -> TuningResult:
    """Tune a module with all that a database knows, and store what is measured.

    The arguments are those of ``ms.tune_tir`` and ``ms.relax_integration.tune_relax`` with other
    defaults: an object is taken as it is, and TVM's own words (``"xgb"``, ``"evolutionary"``) mean
    what they mean there. The search begins with the best programs of this workload and of similar
    ones; what this machine has measured is not measured again; a run that was killed goes on where
    it stopped when it is called again with equal arguments.

    Parameters
    ----------
    mod : tvm.IRModule, tirx.PrimFunc or relax.Function
        What is tuned: each PrimFunc of a module, or the operators of a Relax program.
    target : tvm.target.Target, dict or str, optional
        By default that of a `database` that is bound to one, or this machine's processor, with
        the threads of the runtime as ``num-cores``.
    work_dir : str or Path, optional
        Where TVM's logs are kept; by default they go with the run.
    max_trials_global : int, optional
        Trials of all tasks together; by default 64 for each.
    max_trials_per_task : int, optional
        Trials of one task at most.
    minutes : float, optional
        Time of the search; the batch that runs then is finished. Without `max_trials_global` the
        time is the budget.
    num_trials_per_iter : int
        Trials of a batch at most. The cost model learns after each. Batches of several tasks are
        smaller where the budget is small (:func:`tunedb.search.scheduling.batch_size`).
    builder : {"warm", "local"} or Builder
        ``warm`` is a :class:`WarmBuilder`, which ends with the run.
    runner : {"local", "rpc"}, RPCConfig or Runner
        With an ``RPCConfig``, or ``rpc`` and TVM's ``TVM_TRACKER_…`` in the environment, remote
        devices measure, and the session carries their key and what they say of themselves.
    database : Database, str or Path, optional
        Where records come from and go to. A path or URL is opened, bound to the target, and left
        open in the result. By default ``TUNEDB_URL``, a ``tunedb.toml``, or the user's database.
    cost_model : {"tunedb", "xgb", "mlp", "random"} or CostModel
        ``tunedb`` is a :class:`CostModel` of the database.
    measure_callbacks : "default", MeasureCallback or list of them
        By default what records, removes artifacts and teaches the cost model. Others take their
        place.
    task_scheduler : {"tunedb", "gradient", "round-robin"} or TaskScheduler
        ``tunedb`` is a :class:`~.scheduler.TaskScheduler` of the database.
    space, seed, module_equality, special_space
        As for ``ms.tune_tir``. `module_equality` is that of a database that is opened here.
    num_tuning_cores : {"physical", "logical"} or int
        Threads of the search. The words count the CPUs that this process may use, by affinity and
        container quota.
    strategy : {"tunedb", "evolutionary", "replay-trace", "replay-func"} or SearchStrategy
        ``tunedb`` is :class:`~.search_strategy.EvolutionarySearch`.
    params, op_names
        As for ``tune_relax``.
    evaluator : EvaluatorConfig
        How long each program is measured, by the runners that are made here.
    warm : bool
        Whether the search may begin with programs of similar workloads.
    remeasure : bool
        Whether known programs are measured again.
    layout, prepack
        Of a Relax program, as for :func:`compile`, which must get the same: ``auto`` puts channels
        of ``conv2d`` last on CPUs, and there the search chooses the layout of weights.
    network : str, optional
        Name of a Relax program, under which ``tunedb top --network`` shows what this run came to.
    measure_network : bool
        Whether a Relax program is measured as a whole, before and after, where this machine has its
        device. The untuned times guide the search.
    bind : mapping of str to int or sequence of int, optional
        Number of each symbolic size of a Relax program, e.g. ``{"batch": 1, "length": [128,
        256]}``. Each combination is tuned; an operator that is equal in several is one task.
    layers : sequence of str or Path, optional
        Databases of others that answer behind a database that is opened here, and give donors to
        the search; by default, where no `database` is named, those of a ``tunedb.toml``.
    server : str or Path, optional
        A team's database beside `database`, a path or URL: what is new there is pulled before the
        run (:func:`tunedb.exchange.sync.pull`), and what is measured is delivered in the
        background. One that is away disturbs nothing; the result says what is not delivered yet.
    on_progress : callable, optional
        Called with a :class:`Progress` after each batch, on the thread that called ``tune``.

    Returns
    -------
    TuningResult
        The database, and the best record of each task.

    Raises
    ------
    UsageError
        An argument is none of these, a symbolic size has no number, or there is nothing to tune.
    TargetError
        TVM does not know the target.
    PluginError
        A part cannot work here: XGBoost is missing, a tracker does not answer, no worker starts,
        or TVM ended the run.
    StorageError
        The database could not be written; the message names the file that has what was measured.

    Notes
    -----
    Everything that was measured is in the database when an exception, Ctrl-C too, comes through.

    Programs run on one thread for each whole core that this process may use; ``TVM_NUM_THREADS``
    wins, and after it ``OMP_NUM_THREADS``. Where the environment lacks it, ``TVM_NUM_THREADS`` is
    set for this process and those that it starts (:func:`~.threads.use_threads`).

    Examples
    --------
    >>> result = tune(matmul, database="tune.db", max_trials_global=64)
    >>> result.tasks[0].seconds
    1.2e-05
    >>> with result.target, result.database:
    ...     lib = tvm.compile(relax.transform.MetaScheduleApplyDatabase()(mod))
    """
    options = TuneOptions(**locals())
    with ExitStack() as stack:
        run = Run.begin(options, stack)
        run.tune(stack)
        result = run.result()
        # What follows closes a database that the run has opened.
        run.keeps.pop_all()
    return result

"""``tune``: a whole tuning run in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tvm.s_tir.meta_schedule.runner import EvaluatorConfig

from ..database.database import Database
from ..deploy.network import Algorithms, Layout
from ..space import SPACE
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
    space: Any = SPACE,
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
    racing: bool = True,
    finals: bool = True,
    layout: Layout = "auto",
    prepack: bool | None = None,
    algorithms: Algorithms = "exact",
    weights: Mapping[str, float] | None = None,
    latency_target: float | Mapping[str, float] | None = None,
    least_gain: float = 0.0,
    early_stopping: int | None = None,
    measure_network: bool = True,
    bind: Mapping[str, int | Sequence[int]] | None = None,
    layers: Sequence[str | Path] | None = None,
    prior: str | Path = "auto",
    server: str | Path | None = None,
    on_progress: Callable[[Progress], object] | None = None,
) -> TuningResult:
    """Tune a module, or several networks, and store the measurements in a database.

    The arguments are those of ``ms.tune_tir`` and ``ms.relax_integration.tune_relax`` with other
    defaults. Objects of TVM and its own words (``"xgb"``, ``"evolutionary"``) keep their meaning.
    The search begins with the best stored programs of this workload and of similar ones. Programs
    that this machine has measured are not measured again. A call with equal arguments continues an
    interrupted run.

    Parameters
    ----------
    mod : tvm.IRModule, tirx.PrimFunc, relax.Function, or mapping of str to one of these
        Module whose PrimFuncs are tuned, or a Relax program whose operators are. A mapping names
        it, for ``tunedb top --network``; several Relax programs are tuned in one run, and their
        equal operators are one task.
    target : tvm.target.Target, dict or str, optional
        Target of the programs. By default that of a bound `database`, else this machine's
        processor, with the threads of the runtime as ``num-cores``.
    work_dir : str or Path, optional
        Directory for TVM's logs; by default they are deleted after the run.
    max_trials_global : int, optional
        Maximum number of trials of all tasks; by default 64 for each task of exact operators.
    max_trials_per_task : int, optional
        Maximum number of trials of one task.
    minutes : float, optional
        Time limit of the search; a batch that has begun is finished. Without `max_trials_global`
        the time is the only budget.
    num_trials_per_iter : int
        Maximum number of trials of a batch, after which the cost model learns. Batches of several
        tasks are smaller if the budget is small (:func:`tunedb.search.scheduling.batch_size`).
    builder : {"warm", "local"} or Builder
        ``warm`` is a :class:`WarmBuilder`, which is closed after the run.
    runner : {"local", "rpc"}, RPCConfig or Runner
        With an ``RPCConfig``, or ``rpc`` and TVM's ``TVM_TRACKER_…`` in the environment, programs
        run on remote devices, and the session has the devices' key and facts.
    database : Database, str or Path, optional
        Database of the records. A path or URL is opened, bound to the target, and left open in the
        result. By default ``TUNEDB_URL``, a ``tunedb.toml``, or the user's database.
    cost_model : {"tunedb", "xgb", "mlp", "random"} or CostModel
        ``tunedb`` is a :class:`CostModel` of the database.
    measure_callbacks : "default", MeasureCallback or list of MeasureCallback
        Callbacks after each batch. The default ones store the measurements, remove artifacts and
        update the cost model; others replace them.
    task_scheduler : {"tunedb", "gradient", "round-robin"} or TaskScheduler
        ``tunedb`` is a :class:`~.scheduler.TaskScheduler` of the database.
    space : {"tunedb", "post-order-apply"}, or what TVM takes
        Design space. ``tunedb`` is that of TVM with programs for reductions of columns on CPUs
        (:mod:`~..space`).
    seed, module_equality, special_space
        As for ``ms.tune_tir``. `module_equality` applies to a database that this call opens.
    num_tuning_cores : {"physical", "logical"} or int
        Threads of the search. The words count the CPUs that this process may use, by affinity and
        container quota.
    strategy : {"tunedb", "evolutionary", "replay-trace", "replay-func"} or SearchStrategy
        ``tunedb`` is :class:`~..search.strategy.EvolutionarySearch`.
    params, op_names
        As for ``tune_relax``; where `mod` is a mapping, `params` has those of each name.
    evaluator : EvaluatorConfig
        Settings of each measurement by a ``local`` or ``rpc`` runner. Where racing applies, and
        whether it is on or off, operators of a network whose weights exceed the last cache are
        measured with cold weights (:mod:`~..measure.cold_weights`).
    warm : bool
        Whether the search may begin with programs of similar workloads.
    remeasure : bool
        Whether known programs are measured again.
    racing : bool
        Whether a candidate that is clearly slower than the best of its task gets no more repeats
        (:class:`~..measure.racing.Race`). It applies to the ``local`` runner with the default
        scheduler and callbacks, and an evaluator of three repeats or more.
    finals : bool
        Whether the best programs of each task are measured again, in turn, before one is named
        (:meth:`.finals.Finals.decide`), for about a tenth of the run's time. It applies to the
        ``local`` and ``rpc`` runners with the default callbacks, not to `module_equality`
        ``anchor-block``.
    layout, prepack
        Layout of a Relax program and packing of its weights, as for :func:`compile`, which needs
        equal values: ``auto`` puts channels of convolutions last on CPUs, where the search also
        chooses the layout of weights.
    algorithms : {"exact", "winograd"}
        As for :func:`compile`, which needs the same word. ``winograd`` also tunes the parts of
        Winograd's algorithm for each 3x3 convolution on CPUs that can use it; the scheduler stops
        tuning the slower algorithm.
    weights : mapping of str to float, optional
        Weight of each network in the sum of latencies that the run minimises; 1 by default. A key
        is a name, or a name with sizes as :attr:`.results.NetworkResult.name`.
    latency_target : float or mapping of str to float, optional
        Seconds that suffice, for all networks or by name as in `weights`. A network whose estimated
        latency is within its target gets no more trials; the run ends where all are.
    least_gain : float
        Share of the estimated latency, e.g. 0.001: the run ends where no batch is expected to gain
        as much.
    early_stopping : int, optional
        Trials without a gain of 1 % that end a task.
    measure_network : bool
        Whether a Relax program is measured as a whole before and after the run, if this machine has
        its device. The untuned times guide the search.
    bind : mapping of str to int or sequence of int, optional
        Number of each symbolic size of a Relax program, e.g. ``{"batch": 1, "length": [128,
        256]}``. Each combination is tuned as a network of its own.
    layers : sequence of str or Path, optional
        Databases of others that a database opened by this call reads after its own records, and
        whose programs the search may start from; without a `database`, by default those of a
        ``tunedb.toml``.
    prior : {"auto", "none"} or path
        Prior of a database opened by this call, as for :class:`Database`.
    server : str or Path, optional
        Path or URL of a team's database. Its new records are pulled before the run
        (:func:`tunedb.exchange.sync.pull`), and new measurements are pushed in the background. The
        run continues without an unreachable server; :attr:`TuningResult.delivery` has the number of
        records that are not pushed yet.
    on_progress : callable, optional
        Called with a :class:`Progress` after each batch, on the thread that called ``tune``.

    Returns
    -------
    TuningResult
        The database, the best record of each task, and the latency of each network.

    Raises
    ------
    UsageError
        An argument is invalid, names no network, a symbolic size has no number, or there is nothing
        to tune.
    TargetError
        TVM does not know the target.
    PluginError
        A component does not work: XGBoost is missing, a tracker does not answer, no worker starts,
        or TVM ended the run.
    StorageError
        The database cannot be written; the message names the file with the measurements.

    Notes
    -----
    After an exception, also after Ctrl-C, the database has all measurements.

    Programs run on one thread for each whole core that this process may use, or on
    ``TVM_NUM_THREADS``, or else ``OMP_NUM_THREADS`` threads. If the environment has no
    ``TVM_NUM_THREADS``, this call sets it for this process and its children
    (:func:`~..threads.use_threads`).

    Examples
    --------
    >>> result = tune(matmul, database="tune.db", max_trials_global=64)
    >>> result.tasks[0].seconds
    1.2e-05
    >>> result = tune({"bert": bert, "resnet": resnet}, weights={"bert": 2.0},
    ...               latency_target={"resnet": 5e-3})
    >>> [(network.name, network.progress.latency) for network in result.networks]
    [('bert', 0.012), ('resnet', 0.0049)]
    >>> with result.target, result.database:
    ...     lib = tvm.compile(relax.transform.MetaScheduleApplyDatabase()(mod))
    """
    options = TuneOptions(**locals())
    with ExitStack() as stack:
        run = Run.begin(options, stack)
        run.tune(stack)
        result = run.result()
        run.database_stack.pop_all()  # the caller gets the open database
    return result

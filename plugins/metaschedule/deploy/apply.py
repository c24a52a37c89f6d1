"""Scheduling and compiling of modules with the best programs of a database.

``with database:`` around TVM's ``MetaScheduleApplyDatabase``, ``compile_tir`` and ``compile_relax``
does the same for functions as they are, without a report of the records that they got.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax, tirx
from tvm.relax import pipeline
from tvm.s_tir import dlight as dl
from tvm.s_tir.meta_schedule.database.database import _PyDatabase
from tvm.s_tir.meta_schedule.tune_context import _normalize_mod
from tvm.support.tar import tar

from ....errors import PluginError, StorageError, TuneDBError, UsageError
from ....exchange.prior import SHIPPED
from ....models.share import expected_share
from ....run_times import mean_of
from ....storage.config import locate, locate_layers
from ....storage.engine import parse_url, sqlite_path
from ....system.files import new_file
from ....system.host import threads_of
from .. import modules
from ..database.database import Database
from ..database.handle import Handle
from ..database.layers import ServedRecord
from ..measure.cold_weights import exceed_caches, weight_bytes
from ..module_source import is_relax, prim_funcs
from ..prefetch import with_prefetch
from ..targets import as_target, first_line, lacks_limits, with_limits
from ..threads import use_threads
from ..trace_codec import encode, floats_of
from .algorithms import key_of, lower_fastest
from .network import (
    DEFAULT,
    Algorithms,
    Layout,
    Lowered,
    Lowering,
    bind_sizes,
    lower,
    lower_algorithms,
)
from .packing import pack_weights, packing_functions, without_free_layouts, without_packing
from .predict import Predicted, predict
from .verification import Doubt, doubts

if TYPE_CHECKING:
    from ....models.evaluation import OnStep

__all__ = [
    "LIBRARIES",
    "Compiled",
    "Options",
    "Use",
    "better_lowering",
    "compile",
    "compile_lowered",
    "find_record",
    "notes_of",
    "schedule",
    "tasks_of",
    "write_library",
]

#: Note of a compilation with ``trials=0``.
_NOTHING_KNOWN = (
    "nothing is known of these functions and of similar ones; they are compiled as TVM's default"
)

#: What became of a program that is in doubt, by the kind of program that its function has.
_LEFT_OUT = {
    "default": "its program is left out, and it is compiled as TVM's default",
    "measured": "its program is not verified",
    "predicted": "its program is not verified",
}

#: Most calls that LLVM compiles. It takes longer for more, and the network is no faster for it.
_COMPILED_CALLS = 300

#: File suffixes of libraries.
LIBRARIES = (".so", ".dylib", ".dll", ".tar")


def _nobody(done: int, total: int, work: str) -> None:
    """Receive the steps of a compilation that nobody follows."""


@dataclass(frozen=True, slots=True)
class Options:
    """How the programs of functions are chosen.

    Parameters
    ----------
    predicts : bool
        Whether programs of functions without a record are predicted.
    verifies : bool
        Whether the results of all programs are compared with those of the unscheduled functions.
    on_step : callable
        As for :func:`compile`.
    """

    predicts: bool = False
    verifies: bool = False
    on_step: OnStep = _nobody


@dataclass(frozen=True, slots=True)
class Use:
    """The record that a function of a module uses.

    Parameters
    ----------
    function : str
        Name in the module; in a Relax program after fusion.
    record_id : int or None
        Local number of the record; None where the database has none for the function.
    workload_id : int or None
        Local number of the workload; None for a record of a layer.
    mean : float or None
        Mean time of the record in seconds.
    layer : str or None
        Layer that has the record, ``shipped`` for the prior; `record_id` is a number of that layer
        then.
    threads : int or None
        Threads of TVM's runtime that the record was measured with; None where unknown.
    is_predicted : bool
        Whether the program was never measured, but chosen by a model (``trials=0``).
    share : float or None
        Expected throughput of a predicted program as a share of the best; None where unknown
        (:func:`tunedb.models.share.expected_share`).
    doubt : str or None
        What is wrong with the program, which is left out then, or why it cannot be verified; None
        for a verified one, and without verification.
    """

    function: str
    record_id: int | None = None
    workload_id: int | None = None
    mean: float | None = None
    layer: str | None = None
    threads: int | None = None
    is_predicted: bool = False
    share: float | None = None
    doubt: str | None = None

    @property
    def kind(self) -> str:
        """Kind of the program: ``measured``, ``predicted``, or TVM's ``default``."""
        if self.is_predicted:
            return "predicted"
        return "default" if self.record_id is None else "measured"


def tasks_of(mod: Any, target: Any, lowering: Lowering = DEFAULT) -> dict[str, Any]:
    """Return the tasks of a module: name → module of one function, as TVM looks it up.

    Parameters
    ----------
    mod : tvm.IRModule
        PrimFuncs, or a Relax program, whose fused functions are the tasks, those of all algorithms.
    target : tvm.target.Target or dict
        Target of the compilation.
    lowering : Lowering
        Lowering of a Relax program.

    Returns
    -------
    dict of str to tvm.IRModule

    Raises
    ------
    UsageError
        A symbolic size has no number, or a number has no symbolic size.
    PluginError
        TVM cannot lower the Relax program.
    """
    if not is_relax(mod):
        bind_sizes(mod, lowering.bind)
        return {name: _normalize_mod(func) for name, func in prim_funcs(mod).items()}
    target = as_target(target)
    with _converted_errors("TVM cannot extract the functions of this program"):
        lowered = lower(mod, target, lowering)
        tasks = {str(task.task_name): task.dispatched[0] for task in lowered.tasks(target)}
        known = {key_of(task) for task in tasks.values()}
        for convolution, algorithms in lower_algorithms(lowered, target).items():
            for tile, other in algorithms.items():
                for task in other.tasks(target):
                    function = task.dispatched[0]
                    if (key := key_of(function)) not in known:
                        known.add(key)
                        tasks[f"{task.task_name}_{convolution.label(tile)}"] = function
        return tasks


def find_record(handle: Handle, mod: Any, target: Any) -> ServedRecord | None:
    """Return the best record of a module that replays.

    Others are quarantined and skipped, as :meth:`Handle.query_schedule` does.

    Parameters
    ----------
    handle : Handle
        Handle of the database.
    mod : tvm.IRModule
        Module of one function, normalised as :func:`tasks_of` does.
    target : tvm.target.Target
        Target of the question.

    Returns
    -------
    ServedRecord or None
        None where no record replays.
    """
    best = handle.best_schedule(mod, target)
    return None if best is None else best[0]


def better_lowering(
    mod: Any, database: Database, target: Any, lowering: Lowering
) -> Lowering | None:
    """Return the lowering of a Relax program with which fewest functions lack a record.

    Parameters
    ----------
    mod : tvm.IRModule
        A Relax program.
    database : Database
        Database of the records.
    target : tvm.target.Target, dict or None
        Target of the program; None takes the database's.
    lowering : Lowering
        Lowering that the user chose.

    Returns
    -------
    Lowering or None
        Another layout, packing or choice of algorithms, with which more functions have a record
        and fewer lack one; None for none.

    Raises
    ------
    PluginError
        TVM cannot lower the program.
    """
    target, handle = _target_of(database, target), database._handle

    def lacking(way: Lowering) -> tuple[int, int]:
        with _converted_errors("TVM cannot extract the functions of this program"):
            lowered = lower_fastest(mod, target, way, handle)
            tasks = lowered.tasks(target)
        forms = [(task.dispatched[0], without_packing(task.dispatched[0])) for task in tasks]
        answered = sum(
            any(form and find_record(handle, form, target) for form in each) for each in forms
        )
        return len(forms) - answered, answered

    others = [
        replace(lowering, layout=layout, prepack=prepack)
        for layout in ("auto", "keep")
        for prepack in (None, False)
    ]
    others += [replace(lowering, algorithms=word) for word in ("exact", "winograd")]
    # The first of equals wins: the user's choice.
    missing, answered = lacking(lowering)
    better = [
        (way, found[0])
        for way in others
        if way != lowering and (found := lacking(way))[0] < missing and found[1] > answered
    ]
    return min(better, key=lambda way: way[1])[0] if better else None


class _UseDatabase(_PyDatabase):
    """A database for TVM's pass that notes the uses of its records, all of which replay.

    Parameters
    ----------
    handle : Handle
        Handle of the database.
    predicted : mapping of bytes to Predicted
        Programs of functions without a record, by the digest of the function.
    doubtful : mapping of bytes to Doubt
        What verification found, by the digest of the function; wrong programs are left out.
    """

    __slots__ = ("__dict__", "__weakref__")

    def __init__(
        self, handle: Handle, predicted: Mapping[bytes, Predicted], doubtful: Mapping[bytes, Doubt]
    ) -> None:
        uses: dict[str, Use] = {}

        def query(mod: Any, target: Any, name: str) -> Any:
            use, record = chosen(mod, target, str(name))
            doubt = doubtful.get(_digest(mod)) if doubtful else None
            if doubt is not None and doubt.is_wrong:
                use, record = Use(str(name)), None
            uses[str(name)] = use if doubt is None else replace(use, doubt=doubt.reason)
            return record

        def chosen(mod: Any, target: Any, name: str) -> tuple[Use, Any]:
            served = find_record(handle, mod, target)
            if served is not None:
                return use_of(handle, name, served), served.record
            found = predicted.get(_digest(mod)) if predicted else None
            if found is None:
                return Use(name), None
            share = expected_share(found.family, found.octaves)
            return Use(name, is_predicted=True, share=share), found.record

        super().__init__(
            handle.has_workload,
            handle.commit_workload,
            handle.commit_tuning_record,
            handle.get_top_k,
            handle.get_all_tuning_records,
            query,
            handle.query_schedule,
            handle.query_ir_module,
            handle.size,
            "structural",
        )
        self.uses = uses


def use_of(handle: Handle, name: str, served: ServedRecord) -> Use:
    """Return the use of a record by a function."""
    store = served.answers.store
    if store is handle.store:
        record = store.records.get(served.id)
        threads = threads_of(record.measurement.session)
        return Use(name, record.id, record.workload_id, record.mean, threads=threads)
    # The layer is not read again: it may be gone.
    mean = mean_of(floats_of(served.record.run_secs))
    is_shipped = handle.prior is not None and store is handle.prior.store
    return Use(name, served.id, None, mean, SHIPPED if is_shipped else store.location)


def _digest(mod: Any) -> bytes:
    return modules.to_workload(mod).digest


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """A compiled module (:func:`compile`).

    Parameters
    ----------
    executable : tvm.runtime.Executable or tvm.relax.VMExecutable
        Executable that :func:`write_library` writes.
    uses : tuple of Use
        Record of each function, by name.
    notes : tuple of str
        Notes for the user, in one line each: a layout that TVM rejected, algorithms without an
        operator, a function that packs weights, a database that knows nothing.
    """

    executable: Any
    uses: tuple[Use, ...]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        answered = sum(use.record_id is not None for use in self.uses)
        return f"Compiled(functions={len(self.uses)}, with_record={answered})"


def schedule(
    mod: Any,
    database: Database,
    target: Any = None,
    *,
    trials: int | None = None,
    layout: Layout = "auto",
    prepack: bool | None = None,
    bind: Mapping[str, int] | None = None,
    algorithms: Algorithms = "exact",
    verify: bool = False,
    on_step: OnStep | None = None,
) -> tuple[Any, list[Use]]:
    """Return a module whose functions are scheduled by their best records.

    Parameters
    ----------
    mod : tvm.IRModule
        PrimFuncs, or a Relax program, which is lowered and fused first.
    database : Database
        Database of the records.
    target : tvm.target.Target, dict or None
        Target of the module; None takes the database's.
    trials, layout, prepack, bind, algorithms, verify, on_step
        As for :func:`compile`. Weights are not packed yet.

    Returns
    -------
    mod : tvm.IRModule
        Functions without a program are as they were.
    uses : list of Use
        Program of each function, by name.

    Raises
    ------
    UsageError
        No target is given, and the database is bound to none; or as for :func:`compile`.
    PluginError
        TVM cannot lower the program.
    """
    target, options = _target_of(database, target), _options(trials, verify, on_step)
    _begin(database, options.on_step)
    with _converted_errors("TVM cannot lower it"):
        lowering = Lowering(layout, prepack, bind, algorithms)
        if is_relax(mod):
            mod = lower_fastest(mod, target, lowering, database._handle).mod
        else:
            mod = bind_sizes(mod, bind)
    return _scheduled(mod, database, target, options)


def _options(trials: int | None, verify: bool, on_step: OnStep | None) -> Options:
    """Return the options of a compilation; UsageError for trials that must be measured."""
    if trials:
        raise UsageError(
            f"trials={trials}: compile measures nothing; trials=0 predicts programs, and "
            f"tune(mod, max_trials_per_task={trials}) measures"
        )
    return Options(trials is not None, verify, on_step or _nobody)


def _begin(database: Database, on_step: OnStep) -> None:
    """Set TVM's threads, and begin to unpack the prior, while the program is lowered."""
    use_threads()
    if database._handle.prior is not None:
        database._handle.prior.begin_unpacking()
    on_step(0, 1, "lowering")


def _scheduled(
    mod: Any, database: Database, target: Any, options: Options
) -> tuple[Any, list[Use]]:
    """Return a lowered module with its best programs, and the program of each function."""
    handle, predicted, doubtful = database._handle, dict[bytes, Predicted](), dict[bytes, Doubt]()
    with _converted_errors("TVM cannot lower it"):
        mod = _as_measured(mod, handle, target)
        tasks = _unscheduled(mod) if options.predicts or options.verifies else {}
        served = {digest: find_record(handle, task, target) for digest, task in tasks.items()}
        if options.predicts:
            new = {digest: tasks[digest] for digest, record in served.items() if record is None}
            cold = exceed_caches(_weight_bytes(mod), target)
            predicted = predict(handle, new, target, options.on_step, weights_are_cold=cold)
        if options.verifies:
            records = {digest: one.record for digest, one in served.items() if one is not None}
            records |= {digest: one.record for digest, one in predicted.items()}
            programs = {
                digest: (tasks[digest], encode(record.trace)) for digest, record in records.items()
            }
            doubtful = doubts(programs, target, options.on_step)
        options.on_step(0, 1, "compiling")
        use_database = _UseDatabase(handle, predicted, doubtful)
        with target, use_database, tvm.transform.PassContext(opt_level=3):
            mod = relax.transform.MetaScheduleApplyDatabase()(mod)
    return mod, sorted(use_database.uses.values(), key=lambda use: use.function)


def _unscheduled(mod: Any) -> dict[bytes, Any]:
    """Return the different unscheduled functions of a module, normalised, by their digests."""
    functions = prim_funcs(mod).values()
    tasks = [_normalize_mod(func) for func in functions if not modules.is_scheduled(func)]
    return {_digest(task): task for task in tasks}


def _weight_bytes(mod: Any) -> int:
    """Return the bytes of the weights of all calls of a program."""
    calls = (call for call in modules.calls_of(mod) if call.op.name == "relax.call_tir")
    return sum(weight_bytes(tvm.IRModule({"main": mod[call.args[0]]})) for call in calls)


def _as_measured(mod: Any, handle: Handle, target: Any) -> Any:
    """Return a module without free layouts in functions that were only measured without them."""
    functions = dict(mod.functions_items())
    for var, func in functions.items():
        if not isinstance(func, tirx.PrimFunc):
            continue
        task = _normalize_mod(func)
        plain = without_packing(task)
        if plain is None or find_record(handle, task, target) is not None:
            continue
        if find_record(handle, plain, target) is not None:
            functions[var] = without_free_layouts(func)
    return tvm.IRModule(functions, attrs=mod.attrs)


def compile(
    mod: Any,
    database: Database | str | Path | None = None,
    target: Any = None,
    *,
    trials: int | None = None,
    layout: Layout = "auto",
    prepack: bool | None = None,
    bind: Mapping[str, int] | None = None,
    algorithms: Algorithms = "exact",
    verify: bool = False,
    on_step: OnStep | None = None,
) -> Compiled:
    """Compile a module with its best programs.

    Functions without a record are compiled unscheduled; on a GPU, which cannot run those, with
    TVM's default schedules (``dlight``). In this process, the result runs on as many threads as
    programs are measured with (:func:`~.threads.use_threads`), unless the calling thread has run a
    parallel program of TVM's before.

    Parameters
    ----------
    mod : tvm.IRModule
        PrimFuncs, which the library exports under their names, or a Relax program.
    database : Database, str or Path, optional
        Database of the records, its path or URL; the user's own by default.
    target : tvm.target.Target, dict or None
        Target of the module; None takes the database's.
    trials : int or None
        0 predicts a program for each function without a record: the best of many drafts by a model
        of what the database has measured for this target or compatible ones. Nothing is measured.
        With None, such functions are compiled as above.
    layout : {"auto", "keep"} or mapping
        Layout of activations and weights of a Relax program, as in the tuning run: ``auto`` puts
        channels of convolutions last on CPUs; a mapping is that of TVM's ``ConvertLayout``.
    prepack : bool or None
        Whether weights are packed in the layout of the best programs: constants here, parameters
        by a function of the library, which :attr:`Compiled.notes` names. None: on CPUs. Programs
        that were measured without packing are used without it.
    bind : mapping of str to int, optional
        Number of each symbolic size of a Relax program, e.g. ``{"batch": 1, "length": 128}``.
    algorithms : {"exact", "winograd"}
        ``winograd``: a 3x3 convolution of stride 1 on CPUs is computed by Winograd's algorithm
        where its parts are faster together, by the times of the records or of a tuning run in the
        network. Its outputs deviate more
        (:attr:`tunedb.storage.network_runs.NetworkRun.deviation`).
    verify : bool
        Whether the program of each function is run once more beside the unscheduled function, with
        equal random arguments. A function whose program computes something else is compiled
        without it, and :attr:`Compiled.notes` names it.
    on_step : callable, optional
        Called with the number of steps that are done, of all, and what is being done, from
        ``lowering`` to ``compiling``.

    Returns
    -------
    Compiled
        The executable, and the program of each function.

    Raises
    ------
    UsageError
        There is no target, the layout or the algorithms are unknown, a symbolic size has no
        number, or `trials` is another number than 0: ``tune`` measures.
    PluginError
        TVM cannot compile the module.

    Examples
    --------
    >>> compiled = compile(mod, database)  # doctest: +SKIP
    >>> relax.VirtualMachine(compiled.executable, tvm.cpu())["main"](data)  # doctest: +SKIP
    """
    options = _options(trials, verify, on_step)
    lowering = Lowering(layout, prepack, bind, algorithms)
    with _opened(database, target) as opened:
        target = _target_of(opened, target)
        _begin(opened, options.on_step)
        if is_relax(mod):
            with _converted_errors("TVM cannot compile it"):
                lowered = lower_fastest(mod, target, lowering, opened._handle)
            compiled = compile_lowered(lowered, opened, target, options)
            return replace(compiled, notes=lowered.notes + compiled.notes)
        mod = bind_sizes(mod, bind)
        mod, uses = _scheduled(mod, opened, target, options)
        with _converted_errors("TVM cannot compile it"):
            mod = with_prefetch(_with_symbols(_with_defaults(mod, target)), target)
            notes = notes_of(uses, predicts=options.predicts)
            return Compiled(tvm.compile(mod, target=target), tuple(uses), notes)


@contextmanager
def _opened(database: Database | str | Path | None, target: Any) -> Iterator[Database]:
    """Yield the database that the user gives or names, or else the user's own, for reading."""
    if isinstance(database, Database):
        yield database
        return
    url = locate(None if database is None else str(database)).url
    path = sqlite_path(parse_url(url))
    is_there = path.exists() if database is None and path is not None else url != ":memory:"
    with closing(
        Database(
            url if is_there else ":memory:",
            target=target,
            read_only=is_there,
            layers=locate_layers(),
        )
    ) as opened:
        yield opened


def notes_of(uses: Sequence[Use], *, predicts: bool) -> tuple[str, ...]:
    """Return notes of functions whose programs are in doubt, or that nothing is known of any."""
    notes = tuple(
        f"{use.function}: {use.doubt}; {_LEFT_OUT[use.kind]}" for use in uses if use.doubt
    )
    if predicts and all(use.kind == "default" for use in uses):
        notes += (_NOTHING_KNOWN,)
    return notes


def compile_lowered(
    lowered: Lowered,
    database: Database | None,
    target: Any,
    options: Options | None = None,
    *,
    is_timed: bool = False,
) -> Compiled:
    """Compile a program of :func:`.network.lower` with the best programs of a database.

    Without a database, GPUs get TVM's default schedules, and CPUs unscheduled functions.

    Parameters
    ----------
    lowered : Lowered
        The program.
    database : Database or None
        Database of the records.
    target : tvm.target.Target
        Target of the program.
    options : Options, optional
        Whether programs are predicted and verified; by default they are not.
    is_timed : bool
        Whether the time of each function is to be measured: TVM's virtual machine then interprets
        the calls. Else LLVM compiles them for CPUs, where small networks gain some per cent.

    Raises
    ------
    PluginError
        TVM cannot compile it.
    """
    mod, uses, options = lowered.mod, list[Use](), options or Options()
    if database is not None:
        mod, uses = _scheduled(mod, database, target, options)
    notes = notes_of(uses, predicts=options.predicts)
    with _converted_errors("TVM cannot compile it"):
        if lowered.lowering.packs(target):
            notes += tuple(
                f"weights are parameters: {name} of the library packs them"
                for name in packing_functions(mod)
            )
            with target, tvm.transform.PassContext(opt_level=3):
                mod = pack_weights(mod)
        mod = _with_defaults(mod, target)
        # Compiled calls that TVM writes as C do not link.
        compiles = target.kind.name == "llvm" and not is_timed
        mode = (
            "compiled" if compiles and len(modules.calls_of(mod)) <= _COMPILED_CALLS else "bytecode"
        )
        if database is not None:
            mod = with_prefetch(mod, target)
        # TVM plans the memory of a branch into storage that only the other branch allocates.
        disabled = ["StaticPlanBlockMemory"] if modules.has_branches(mod) else []
        with tvm.transform.PassContext(disabled_pass=disabled):
            executable = relax.build(mod, target, exec_mode=mode)
    return Compiled(executable, tuple(uses), notes)


def write_library(executable: Any, path: str | Path) -> None:
    """Write an executable as a library that ``tvm.runtime.load_module`` reads.

    Parameters
    ----------
    executable : tvm.runtime.Executable or tvm.relax.VMExecutable
        ``Compiled.executable``.
    path : str or Path
        Path of the file, with a suffix of :data:`LIBRARIES`. It appears as a whole or not at all.
        ``.tar`` is linked when it is loaded.

    Raises
    ------
    UsageError
        The suffix is not that of a library.
    PluginError
        The linker fails.
    StorageError
        The file cannot be written.

    Examples
    --------
    >>> write_library(compile(mod, database).executable, "kernels.so")  # doctest: +SKIP
    >>> tvm.runtime.load_module("kernels.so")["matmul"](a, b, c)  # doctest: +SKIP
    """
    path = Path(path)
    require_library(path)
    fcompile = tar if path.suffix == ".tar" else None

    try:
        with new_file(path, force=True) as file, _converted_errors("the library cannot be linked"):
            executable.export_library(str(file), fcompile=fcompile)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error.strerror})") from None


def require_library(path: Path) -> None:
    """Raise UsageError for a path without the suffix of a library."""
    if path.suffix not in LIBRARIES:
        raise UsageError(f"{path}: a library's name ends in one of {', '.join(LIBRARIES)}")


def _with_defaults(mod: Any, target: Any) -> Any:
    """Schedule the functions without a record, if the target cannot run them as they are."""
    if not pipeline.BackendDispatcher.is_gpu_target(target):
        return mod
    rules = (dl.gpu.Matmul, dl.gpu.GEMV, dl.gpu.Reduction, dl.gpu.GeneralReduction, dl.gpu.Fallback)
    with target:
        return dl.ApplyDefaultSchedule(*(rule() for rule in rules))(mod)


def _with_symbols(mod: Any) -> Any:
    """Return a module whose PrimFuncs are all visible from outside, under their names."""
    functions = {}
    for name, func in prim_funcs(mod).items():
        named = func.attrs and "global_symbol" in func.attrs
        functions[name] = func if named else func.with_attr("global_symbol", name)
    return tvm.IRModule(functions, attrs=mod.attrs)


def _target_of(database: Database, target: Any) -> Any:
    if target is None:
        target = database.tvm_target
    if target is None:
        raise UsageError("no target: give one, or open Database(..., target=...)")
    target = as_target(target)
    if lacks_limits(target) and not database._handle.targets.group(modules.to_target(target), 0):
        # Records of this machine's device have its limits (:func:`.tuning.tune`).
        with suppress(Exception):
            return with_limits(target)
    return target


@contextmanager
def _converted_errors(message: str) -> Iterator[None]:
    """Convert errors of TVM to PluginError with one line."""
    try:
        yield
    except TuneDBError:
        raise
    except Exception as error:  # TVM raises any class
        raise PluginError(f"{message}: {first_line(error)}") from error

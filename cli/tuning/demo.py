"""``tunedb demo``."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...system import text
from ..options import Settings, common_options, pass_settings

if TYPE_CHECKING:
    from ...plugins.metaschedule.database.database import Database
    from ...plugins.metaschedule.demo import Operator
    from ...results import WorkloadSummary
    from ...storage.store import Store

FOLDER = Path("demo")
PER_BATCH = 16

#: Where the demo stores, and the database that gets an export of it.
_FIRST, _SECOND = FOLDER / "tune.db", FOLDER / "second.db"


@click.command()
@click.option(
    "--trials",
    type=click.IntRange(min=PER_BATCH),
    default=32,
    show_default=True,
    help="Number of trials of each operator.",
)
@common_options
@pass_settings
def command(settings: Settings, trials: int) -> None:
    """Show the main job: tune, ask, compile, tune again and others, export, import.

    The command tunes a matmul and a convolution on this machine, compares the best programs with
    the untuned ones and with NumPy, tunes again, tunes another shape, exports everything and
    imports it into a second database. It takes about two minutes on two cores, and writes to the
    new folder "demo" only.

    Example:
      tunedb demo
      tunedb demo --trials 16
    """
    from ...errors import UsageError

    if FOLDER.exists():
        raise UsageError(f"{FOLDER}/ exists already; remove it, or run the demo in another folder")
    # XGBoost's threads spin while they wait, which stalls everything on few cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    began = time.perf_counter()
    _tell_of_tuning(trials)
    _tell_of_exchange()
    _rule(f"done in {time.perf_counter() - began:.0f} s")


def _rule(title: str) -> None:
    click.secho(f"--- {title}", bold=True)


def _run(*arguments: str) -> None:
    """Show and run a command of tunedb."""
    from ..app import main

    click.secho(f"\n$ tunedb {' '.join(arguments)}", bold=True)
    main([*arguments], prog_name="tunedb", standalone_mode=False)


def _tell_of_tuning(trials: int) -> None:
    """Tune two operators twice, and another shape of one of them."""
    from ...plugins.metaschedule import Database, WarmBuilder
    from ...plugins.metaschedule.demo import EVALUATOR, conv2d, matmul
    from ...plugins.metaschedule.threads import use_threads
    from ...plugins.metaschedule.tuning.defaults import host_target

    FOLDER.mkdir()
    target, threads = host_target(), use_threads()
    operators = {"matmul": matmul("matmul", 128, 128, 128), "conv2d": conv2d()}
    _rule("tune, ask, compile")
    click.echo(
        f"target {target.kind.name} -mcpu={target.attrs['mcpu']}, {threads.count} threads; "
        f"{trials} trials per operator in batches of {PER_BATCH}; evaluator {EVALUATOR}"
    )
    with WarmBuilder() as builder:
        with Database(_FIRST, target=target, prior="none") as database:
            for operator in operators.values():
                _tune(operator, database, builder, trials, seed=1)
        for name in operators:
            _run("top", name, "-k", "5", "--db", str(_FIRST))
        _compare_with_untuned(operators, target)
        _rule("tune again: the second run starts from what is stored")
        # A new handle, as a new process would have.
        with Database(_FIRST, target=target, prior="none") as database:
            for operator in operators.values():
                _tune(operator, database, builder, trials, seed=2)
            _compare_runs(list(operators))
            _rule("tune another shape: the search starts from its neighbour")
            taller = matmul("taller", 192, 128, 96)
            task = _tune(taller, database, builder, PER_BATCH, seed=1)
            _run("show", str(task.record.id), "--db", str(_FIRST))


def _tune(operator: Operator, database: Database, builder: Any, trials: int, seed: int) -> Any:
    """Tune an operator, and tell what came of it."""
    from ...plugins.metaschedule.demo import tune_operator

    result = tune_operator(
        operator, database, builder, trials=trials, per_batch=PER_BATCH, seed=seed
    )
    (task,) = result.tasks
    known = f", {result.served} of them known" if result.served else ""
    click.echo(
        f"{task.name}: {result.trials} trials{known}, in {result.seconds:.0f} s; best "
        f"{text.seconds(task.seconds)} ({task.origin})"
    )
    return task


def _compare_with_untuned(operators: dict[str, Operator], target: Any) -> None:
    """Tell what the best programs gain over the untuned ones."""
    from ...plugins.metaschedule import Database
    from ...plugins.metaschedule.demo import compare

    click.echo()
    with Database(_FIRST, target=target, read_only=True, prior="none") as database:
        for name, operator in operators.items():
            untuned, best = compare(operator, database, target)
            click.echo(
                f"{name}: untuned {text.seconds(untuned)}, best stored program "
                f"{text.seconds(best)}: {untuned / best:.1f} times faster; equal to NumPy"
            )


def _compare_runs(names: list[str]) -> None:
    """Tell that the second run began where the first had ended."""
    from ...storage.store import Store

    with Store(_FIRST, create=False, read_only=True) as store:
        for name in names:
            (workload,) = store.workloads.find(name)
            first, again = map(statistics.median, _first_batches(store, workload))
            best = store.records.best(workload)
            click.echo(
                f"{name}: median of the first {PER_BATCH} trials {text.seconds(first)} in the "
                f"first run, {text.seconds(again)} in the second; best of all "
                f"{text.seconds(None if best is None else best.mean)}"
            )


def _first_batches(store: Store, workload: WorkloadSummary) -> list[list[float]]:
    """Return the mean times of the first batch of each session, in seconds."""
    sessions: dict[bytes, list[float]] = {}
    for record in store.records.iterate(workload):
        session = record.measurement.session
        if session is not None and record.mean is not None and record.measurement.is_valid:
            sessions.setdefault(session.digest, []).append(record.mean)
    return [means[:PER_BATCH] for means in sessions.values()]


def _tell_of_exchange() -> None:
    """Export everything, import it into a second database, and compare."""
    from ...errors import TuneDBError

    _rule("export as MetaSchedule JSON, import into a second database")
    _run("export", str(FOLDER / "json"), "--db", str(_FIRST))
    _run("import", "logs", str(FOLDER / "json"), "--db", str(_SECOND))
    before, after = _facts(_FIRST), _facts(_SECOND)
    if before != after:
        raise TuneDBError("the second database differs from the first")
    click.echo(
        f"\n{len(after)} records: programs, times and arguments equal in both databases (the JSON "
        "format cannot hold sessions, causes of failure and trials that were cut short, and leaves "
        "out what a final has superseded)"
    )


def _facts(path: Path) -> list[tuple[Any, ...]]:
    """Return what MetaSchedule's JSON can hold of every exported record, sorted."""
    from ...records import Status
    from ...storage.store import Store

    with Store(path, create=False, read_only=True) as store:
        left_out = set(store.pruning.superseded_ids().tolist())
        return sorted(
            (r.measurement.program.digest, r.measurement.run_secs, r.measurement.args_info)
            for r in store.records.iterate()
            if r.measurement.status is not Status.CUT_SHORT
            and not r.retracted
            and r.id not in left_out
        )

"""``tunedb revalidate``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ...system import text
from ..interrupt import interrupted
from ..module import label, lowering_of, lowering_options, one_target
from ..options import Settings, common_options, pass_settings, updating
from ..output import Column, output_options, print_rows
from ..progress import progress_bar

if TYPE_CHECKING:
    from ...plugins.metaschedule.deploy.network import Lowering
    from ...plugins.metaschedule.deploy.revalidation import Revalidation, Verdict
    from ...storage.store import Store


def _ratio(value: float | None) -> str:
    return text.NOTHING if value is None else f"{value:.2f}"


def _deviation(value: float | None) -> str:
    return text.NOTHING if value is None else f"{value:.1e}"


COLUMNS = (
    Column("record", "record", right=True),
    Column("workload_id", "workload", right=True),
    Column("workload", "name", flexible=True),
    Column("target_id"),
    Column("source", "source", flexible=True, least=100),
    Column("before", "before", text.seconds, right=True),
    Column("mean", "now", text.seconds, right=True),
    Column("ratio", "now/before", _ratio, right=True),
    Column("threads_before"),
    Column("threads"),
    Column("deviation", "deviation", _deviation, right=True),
    Column("outcome", "outcome"),
    Column("reason"),
    Column("retracted"),
)


@click.command()
@click.argument("workloads", nargs=-1, metavar="[WORKLOAD]...")
@click.option(
    *("--module", "modules"),
    metavar="MODULE",
    multiple=True,
    help="Revalidate the functions of a TVMScript file or package.module:name; may be repeated.",
)
@click.option(
    "-k",
    "limit",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Number of programs of each workload, best first.",
)
@click.option(
    "--target",
    metavar="TARGET",
    help="Target: its id or kind (tunedb targets). Default: the only one with records.",
)
@click.option(
    "--foreign",
    is_flag=True,
    help="Include programs of foreign sources: THIS RUNS CODE THAT OTHERS WROTE.",
)
@click.option(
    "--converted",
    is_flag=True,
    help="Measure programs of tunedb convert for this machine instead of the log's.",
)
@click.option(
    "--repeat",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Measurements of each program.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=120.0,
    show_default=True,
    help="Time limit of one build and of one run, in seconds.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the inputs."
)
@lowering_options
@output_options
@common_options
@pass_settings
def command(
    settings: Settings,
    workloads: tuple[str, ...],
    modules: tuple[str, ...],
    limit: int,
    target: str | None,
    foreign: bool,
    converted: bool,
    repeat: int,
    timeout: float,
    seed: int,
    layout: str,
    no_prepack: bool,
    bind: dict[str, Any],
    algorithms: str,
) -> None:
    """Measure the best programs again, and check their results.

    Each program gets random inputs, and its results are compared with those of the untuned program:
    integers exactly, floating values within a tolerance of their type, NaN in the same places. New
    times are stored under a new session. A program with wrong results is no longer served; its
    records stay, retracted. Programs are built and run in separate processes. The exit code is 1 if
    a program did not pass.

    --foreign tries programs of foreign sources on this machine, with your rights. Programs that
    pass are served from then on, by their new measurement. A program with instructions or
    annotations that TVM never writes is rejected before it is built. TVM never reads a module that
    only foreign sources have: give your own (--module).

    --converted takes the programs that tunedb convert made of another tuner's records, the best by
    the log first, and measures them for this machine. From then on they are answers here. --target
    is the target of the log; the times of two machines do not compare, so there is no ratio.

    Example:
      tunedb revalidate
      tunedb revalidate matmul -k 10 --target llvm
      tunedb revalidate --module model.py --foreign
      tunedb revalidate --converted -k 3
    """
    from ...errors import NotFoundError, UsageError
    from ...plugins.metaschedule.deploy.network import Lowering
    from ...plugins.metaschedule.deploy.revalidation import Revalidation

    if foreign and converted:
        raise UsageError("--foreign and --converted exclude one another")
    rows: list[dict[str, Any]] = []
    errors: list[NotFoundError] = []
    with (
        updating(settings) as store,
        Revalidation(store, repeat=repeat, seed=seed, timeout_sec=timeout) as revalidation,
    ):
        groups = [store.lookup.workload(words) for words in workloads]
        lowering = Lowering(**lowering_of(layout, no_prepack, bind, algorithms))
        jobs = _jobs(store, groups, modules, target, revalidation, lowering, foreign=foreign)
        # All jobs are for one target.
        here = _here(store, jobs[0][1]) if converted else None
        try:
            with progress_bar(settings, len(jobs)) as progress:
                for done, (group, target_id) in enumerate(jobs):
                    progress.describe(f"workload {group[0]}")
                    progress.update(done)
                    try:
                        verdicts = revalidation.run(
                            group,
                            target_id,
                            limit,
                            foreign=foreign,
                            converted_for=here,
                        )
                    except NotFoundError as error:
                        # Without a program or a module; the other workloads continue.
                        errors.append(error)
                        continue
                    rows += [_row(verdict, converted=converted) for verdict in verdicts]
        except KeyboardInterrupt:
            print_rows(settings, COLUMNS, rows)
            raise interrupted("Interrupted; stored measurements stay") from None
    if errors and not rows:
        raise errors[0]
    print_rows(settings, COLUMNS, rows)
    for reason in errors:
        settings.note(f"left out: {reason}")
    _report(settings, rows, converted=converted)


def _jobs(
    store: Store,
    groups: list[list[int]],
    modules: tuple[str, ...],
    words: str | None,
    revalidation: Revalidation,
    lowering: Lowering,
    *,
    foreign: bool,
) -> list[tuple[list[int], int]]:
    """Return groups of equivalent workloads, each with the target's id.

    Raises
    ------
    NotFoundError
        They have no program for the target.
    """
    from ...errors import NotFoundError

    if not (groups or modules):
        groups = _all_workloads(store)
    ids = {id_ for group in groups for id_ in group} if groups else None
    target = one_target(store, words, ids, foreign=foreign)
    if modules:
        from ...plugins.metaschedule.module_source import load_module

        for spec in modules:
            mod = load_module(spec)
            groups += revalidation.workloads_of(
                mod, target.attributes, foreign=foreign, lowering=lowering
            )
    target_id = store.targets.id_of(target.digest)
    targets = store.programs.targets if foreign else store.answers.targets
    jobs = [(g, target_id) for g in groups if target_id is not None and target_id in targets(g)]
    if not jobs:
        raise NotFoundError(f"no program of these workloads for {label(target)}; see: tunedb top")
    return jobs


def _here(store: Store, target_id: int) -> Any:
    """Return the target of this machine's device of the kind of a stored target."""
    from ...plugins.metaschedule.tuning.defaults import host_target, target_of

    target = store.targets.get(target_id)
    return host_target() if target.is_cpu else target_of({"kind": target.kind}, is_remote=False)


def _all_workloads(store: Store) -> list[list[int]]:
    """Return the ids of all workloads whose modules TVM can load, in equivalence groups."""
    groups = {
        tuple(store.workloads.equivalent(workload.id)): None
        for workload in store.workloads.find()
        if workload.rebuildable
    }
    return [list(group) for group in groups]


def _row(verdict: Verdict, *, converted: bool) -> dict[str, Any]:
    from ...system.host import threads_of

    record, before = verdict.record, verdict.record.mean
    ratio = None
    if verdict.mean is not None and before and not converted:
        ratio = verdict.mean / before
    target = record.measurement.program.target
    failure, reason = verdict.failure, verdict.reason
    if failure is not None and verdict.outcome != "refused":
        reason = f"{failure.kind.value}: {reason}"
    return {
        "record": record.id,
        "workload_id": record.workload_id,
        "workload": record.measurement.program.workload.name,
        "target_id": record.target_id,
        "source": record.source.name,
        "before": before,
        "mean": verdict.mean,
        "ratio": ratio,
        "threads_before": threads_of(record.measurement.session),
        "threads": verdict.threads if target.is_cpu else None,
        "deviation": verdict.deviation,
        "outcome": verdict.outcome,
        "reason": reason,
        "retracted": list(verdict.retracted),
    }


def _report(settings: Settings, rows: list[dict[str, Any]], *, converted: bool) -> None:
    """Print warnings about programs that did not pass; exit with 1 if there are any."""
    for row in rows:
        if not converted and row["threads"] not in (None, row["threads_before"]):
            settings.note(
                f"record {row['record']} was measured with {text.threads(row['threads_before'])} "
                f"before and with {text.threads(row['threads'])} now; the times are not comparable"
            )
    failed = [row for row in rows if row["outcome"] != "passed"]
    for row in failed:
        settings.warn(f"record {row['record']} {row['outcome']}: {row['reason']}")
        if row["retracted"]:
            number = text.count(len(row["retracted"]), "record")
            settings.note(f"{number} of its program will no longer be served")
    if failed:
        raise click.exceptions.Exit(1)

"""``tunedb revalidate``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .. import text
from ..module import label, lowering_of, lowering_options, one_target
from ..options import Settings, common_options, pass_settings, updating
from ..output import Column, output_options, print_rows
from ..progress import progress_bar

if TYPE_CHECKING:
    from ...plugins.metaschedule.deploy.network import Lowering
    from ...plugins.metaschedule.deploy.revalidation import Revalidation, Verdict
    from ...storage.store import Store

_INTERRUPTED = 130


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
    "most",
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
@click.option("--repeat", type=click.IntRange(min=1), default=5, show_default=True, help="Repeats.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=120.0,
    show_default=True,
    help="Time limit of one build and of one run, in seconds.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of inputs.")
@lowering_options
@output_options
@common_options
@pass_settings
def command(
    settings: Settings,
    workloads: tuple[str, ...],
    modules: tuple[str, ...],
    most: int,
    target: str | None,
    foreign: bool,
    repeat: int,
    timeout: float,
    seed: int,
    layout: str,
    no_prepack: bool,
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

    Example:
      tunedb revalidate
      tunedb revalidate matmul -k 10 --target llvm
      tunedb revalidate --module model.py --foreign
    """
    from ...errors import NotFoundError
    from ...plugins.metaschedule.deploy.network import Lowering
    from ...plugins.metaschedule.deploy.revalidation import Revalidation

    rows: list[dict[str, Any]] = []
    lost: list[NotFoundError] = []
    with (
        updating(settings) as store,
        Revalidation(store, repeat=repeat, seed=seed, timeout_sec=timeout) as revalidation,
    ):
        found = [store.lookup.workload(words) for words in workloads]
        lowering = Lowering(**lowering_of(layout, no_prepack))
        jobs = _jobs(store, found, modules, target, revalidation, lowering, foreign=foreign)
        try:
            with progress_bar(settings, len(jobs)) as progress:
                for done, (group, target_id) in enumerate(jobs):
                    progress.describe(f"workload {group[0]}")
                    progress.update(done)
                    try:
                        verdicts = revalidation.run(group, target_id, most, foreign=foreign)
                    except NotFoundError as error:
                        # Nothing to try, or no module: the other workloads are not kept from it.
                        lost.append(error)
                        continue
                    rows += map(_row, verdicts)
        except KeyboardInterrupt:
            print_rows(settings, COLUMNS, rows)
            click.echo("Interrupted; stored measurements stay", err=True)
            raise click.exceptions.Exit(_INTERRUPTED) from None
    if lost and not rows:
        raise lost[0]
    print_rows(settings, COLUMNS, rows)
    for reason in lost:
        settings.note(f"left out: {reason}")
    _tell(settings, rows)


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
    """Return groups of equal workloads, each with the target.

    Raises
    ------
    NotFoundError
        There is no program of them for the target.
    """
    from ...errors import NotFoundError

    if not (groups or modules):
        groups = _all(store)
    named = {id_ for group in groups for id_ in group} if groups else None
    target = one_target(store, words, named, foreign=foreign)
    if modules:
        from ...plugins.metaschedule.module_source import load_module

        for spec in modules:
            mod = load_module(spec)
            groups += revalidation.workloads_of(
                mod, target.attributes, foreign=foreign, lowering=lowering
            )
    target_id = store.targets.id_of(target.digest)
    having = store.programs.targets if foreign else store.answers.targets
    jobs = [(g, target_id) for g in groups if target_id is not None and target_id in having(g)]
    if not jobs:
        raise NotFoundError(f"no program of these workloads for {label(target)}; see: tunedb top")
    return jobs


def _all(store: Store) -> list[list[int]]:
    """Return the ids of all workloads of which TVM can make modules, equal ones together."""
    groups = {
        tuple(store.workloads.equivalent(one.id)): None
        for one in store.workloads.find()
        if one.rebuildable
    }
    return [list(group) for group in groups]


def _row(verdict: Verdict) -> dict[str, Any]:
    from ...system.host import threads_of

    record, before = verdict.record, verdict.record.mean
    ratio = verdict.mean / before if verdict.mean is not None and before else None
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


def _tell(settings: Settings, rows: list[dict[str, Any]]) -> None:
    """Say what did not pass, and end with exit code 1 then."""
    for row in rows:
        if row["threads"] not in (None, row["threads_before"]):
            settings.note(
                f"record {row['record']} was measured with {text.threads(row['threads_before'])} "
                f"before and with {text.threads(row['threads'])} now; the times do not compare"
            )
    bad = [row for row in rows if row["outcome"] != "passed"]
    for row in bad:
        settings.warn(f"record {row['record']} {row['outcome']}: {row['reason']}")
        if row["retracted"]:
            number = text.count(len(row["retracted"]), "record")
            settings.note(f"{number} of its program will no longer be served")
    if bad:
        raise click.exceptions.Exit(1)

"""``tunedb prune``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ...system import text
from ..confirm import confirm
from ..exchange.selection import MAX_RECORDS
from ..options import Settings, common_options, pass_settings, reading, updating
from ..output import Column, output_options, print_object, print_table
from ..progress import progress_bar

if TYPE_CHECKING:
    from ...maintenance.prune import PrunePlan, PruneRules
    from ...storage.pruning import RemovedRows

COLUMNS = tuple(
    map(
        Column,
        (
            *("location", "dry_run", "bytes", "parts", "lasting"),
            *("sources", "exchanged", "removed", "seconds"),
        ),
    )
)

_PART = (
    Column("what", "removed rows", flexible=True),
    Column("rows", "rows", text.number, right=True),
    Column("bytes", "size", text.size, right=True),
    Column("restore", "how to restore"),
)
_SOURCE = (
    Column("name", "source", flexible=True, keep_end=True),
    Column("store", "database"),
    Column("records", "records", text.number, right=True),
)
_REMOVED = (Column("what", "removed"), Column("rows", "rows", text.number, right=True))

_LABELS = {
    "records": "records beyond the best",
    "retracted": "retracted records",
    "failures": "  with their failures",
    "launches": "  with their launches",
    "programs": "  and their programs",
    "models": "models",
    "predictions": "  predictions",
}

#: Largest number of sources in a table; JSON has all.
_MAX_SOURCES = 10


@click.command()
@click.option(
    "--features",
    is_flag=False,
    flag_value="",
    metavar="[SET]",
    help="Features of all sets, or of one (tunedb features).",
)
@click.option("--old-features", is_flag=True, help="Features of sets that are not installed.")
@click.option("--retracted", is_flag=True, help="Retracted records (tunedb retract).")
@click.option(
    "--best",
    metavar="K",
    type=click.IntRange(min=1, max=MAX_RECORDS),
    help="All records but the K fastest of each workload and target, and --rest.",
)
@click.option(
    "--rest",
    metavar="SHARE",
    type=click.FloatRange(min=0, max=1e6),
    help="With --best: also keep this share of K of slow and failed records; models need both. "
    " [default: 1.0]",
)
@click.option(
    "--models",
    metavar="KEEP",
    type=click.IntRange(min=1),
    help="All models but the KEEP newest of each kind, with their predictions.",
)
@click.option(
    *("--workload", "workloads"),
    metavar="WORKLOAD",
    multiple=True,
    help="Records of this workload alone: its name or the beginning of its digest.",
)
@click.option(
    *("--target", "targets"),
    metavar="TARGET",
    multiple=True,
    help="Records of this target alone: its kind (llvm) or label (tunedb targets).",
)
@click.option(
    *("--source", "sources"),
    metavar="SOURCE",
    multiple=True,
    help="Records of this source alone: its name or the beginning of its digest.",
)
@click.option(
    "--dry-run", is_flag=True, help="Show what would be removed, and its cost; remove nothing."
)
@click.option("--yes", is_flag=True, help="Skip the confirmation.")
@output_options
@common_options
@pass_settings
def command(settings: Settings, dry_run: bool, yes: bool, **words: Any) -> None:
    """Remove records, features and models that you no longer need.

    The command first shows what it would remove, and how to restore it. Features can be computed
    again, and models trained again. Removed records come back only with a merge or pull from a
    database that has them; the next merge or pull may therefore undo a removal. A program is
    removed with its last record, together with its features and predictions. The file keeps its
    size until tunedb vacuum.

    Example:
      tunedb prune --old-features --dry-run
      tunedb prune --best 1000 --rest 0.5 --workload matmul
      tunedb prune --retracted --models 3 --yes
    """
    from ...maintenance.prune import plan as make_plan

    wanted = _wanted(**words)
    with reading(settings) as store:
        plan = make_plan(store, wanted)
        row = _row(store.location, plan, dry_run=dry_run)
    if not dry_run and plan.rows:
        if not yes and settings.output == "table":
            _show_plan(settings, plan)
        confirm(_question(plan), yes=yes)
        removed, seconds = _prune(settings, plan)
        row["removed"] = {name: getattr(removed, name) for name in removed.__slots__}
        row["seconds"] = seconds
    print_object(settings, COLUMNS, row, lambda: _show(settings, row, plan))


def _wanted(
    *,
    workloads: tuple[str, ...],
    targets: tuple[str, ...],
    sources: tuple[str, ...],
    best: int | None,
    rest: float | None,
    retracted: bool,
    features: str | None,
    old_features: bool,
    models: int | None,
) -> PruneRules:
    """Return the rows to remove, as the options select them."""
    from ...maintenance.prune import PruneRules
    from ...storage.exchange_types import Selection

    if rest is not None and best is None:
        raise click.UsageError("--rest is a share of --best K; give both")
    if rest is not None and rest != rest:  # noqa: PLR0124 - click takes NaN for a number
        raise click.BadParameter("not a share: expected a number from 0 on", param_hint="'--rest'")
    if not (retracted or old_features) and (best, features, models) == (None, None, None):
        raise click.UsageError(
            "choose what to remove: --features, --old-features, --retracted, --best K or "
            "--models KEEP"
        )
    if (workloads or targets or sources) and best is None and not retracted:
        raise click.UsageError(
            "--workload, --target and --source select records; "
            "give --best K or --retracted with them"
        )
    share = 1.0 if rest is None else rest
    selection = Selection(workloads, targets, sources, best=best, rest=share)
    return PruneRules(selection, retracted, features, old_features, models)


def _prune(settings: Settings, plan: PrunePlan) -> tuple[RemovedRows, float]:
    """Remove the rows of a plan; return their numbers and the seconds spent."""
    import time

    from ...maintenance.prune import prune

    started = time.monotonic()
    with updating(settings) as store, progress_bar(settings, plan.rows) as progress:
        removed = prune(store, plan, on_progress=progress.update)
    return removed, time.monotonic() - started


def _row(location: str, plan: PrunePlan, *, dry_run: bool) -> dict[str, Any]:
    from ...maintenance.prune import total_bytes

    return {
        "location": location,
        "dry_run": dry_run,
        "bytes": total_bytes(plan.parts),
        "parts": [
            {
                "kind": part.kind,
                "of": part.of,
                "rows": part.rows,
                "bytes": part.bytes,
                "seconds": None if part.seconds is None else list(part.seconds),
            }
            for part in plan.parts
        ],
        "lasting": plan.lasting,
        "sources": [
            {"name": origin.name, "store": origin.store, "records": origin.records}
            for origin in plan.origins
        ],
        "exchanged": [
            {"direction": exchange.direction, "peer": exchange.peer, "at": text.moment(exchange.at)}
            for exchange in plan.exchanges
        ],
        "removed": None,
        "seconds": None,
    }


def _question(plan: PrunePlan) -> str:
    from ...maintenance.prune import total_bytes

    records = len(plan.records) + len(plan.retracted)
    rows = f"{text.count(records, 'record')} and their dependent rows" if records else "these rows"
    return f"Remove {rows}, {text.size(total_bytes(plan.parts))}?"


# ---------------------------------------------------------------------- for people


def _show(settings: Settings, row: dict[str, Any], plan: PrunePlan) -> None:
    if row["removed"] is None:
        _show_plan(settings, plan)
        if plan.rows:
            settings.note(f"{text.size(row['bytes'])} would be removed; nothing was changed")
        return
    removed = [{"what": name, "rows": rows} for name, rows in row["removed"].items() if rows]
    print_table(_REMOVED, removed)
    settings.note(f"Removed in {text.span(row['seconds'])}; to free the space: tunedb vacuum")


def _show_plan(settings: Settings, plan: PrunePlan) -> None:
    if not plan.parts:
        settings.note("nothing to remove")
    else:
        print_table(_PART, [_part(part, plan) for part in plan.parts])
    if plan.origins:
        click.echo()
        print_table(_SOURCE, [_origin(origin) for origin in plan.origins[:_MAX_SOURCES]])
        if len(plan.origins) > _MAX_SOURCES:
            settings.note(f"and {len(plan.origins) - _MAX_SOURCES:,} more sources")
    if plan.lasting:
        settings.note(
            f"{text.count(plan.lasting, 'retracted record')} must stay: the newest ones, whose ids "
            "must not be used again"
        )


def _part(part: Any, plan: PrunePlan) -> dict[str, Any]:
    if part.kind == "features":
        label = "  and their features" if part.of is None else f"features {part.of}"
    else:
        label = _LABELS[part.kind]
    return {
        "what": text.clean(label),
        "rows": part.rows,
        "bytes": part.bytes,
        "restore": text.clean(_restoration(part, plan)),
    }


def _restoration(part: Any, plan: PrunePlan) -> str:
    """Return how to restore removed rows."""
    if part.kind == "models":
        return "tunedb train"
    if part.kind in ("records", "retracted"):
        peers = [f"database {exchange.peer[:8]}" for exchange in plan.exchanges[:2]]
        return f"only from {' or '.join(peers) or 'another database'}, if it has them"
    if part.kind != "features" or part.of is None:
        return ""
    if part.seconds is None:
        return "not possible with the installed sets"
    shortest, longest = map(text.span, part.seconds)
    name = part.of.rpartition(" ")[0]
    duration = shortest if shortest == longest else f"{shortest} to {longest}"
    return f"{duration}: tunedb extract --set {name}"


def _origin(origin: Any) -> dict[str, Any]:
    store = "this database" if origin.store is None else f"database {origin.store[:8]}"
    name = text.short_path(origin.name)
    return {"name": name, "store": text.clean(store), "records": origin.records}

"""``tunedb prune``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .. import text
from ..confirm import confirm
from ..exchange.selection import MOST
from ..options import Settings, common_options, pass_settings, reading, updating
from ..output import Column, output_options, print_object, print_table
from ..progress import bar

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
    Column("what", "goes", flexible=True),
    Column("rows", "rows", text.number, right=True),
    Column("bytes", "size", text.size, right=True),
    Column("again", "how to restore"),
)
_SOURCE = (
    Column("name", "of source", flexible=True, keep_end=True),
    Column("store", "of database"),
    Column("records", "records", text.number, right=True),
)
_GONE = (Column("what", "gone"), Column("rows", "rows", text.number, right=True))

_WHAT = {
    "records": "records beyond the best",
    "retracted": "retracted records",
    "failures": "  with their failures",
    "launches": "  with their launches",
    "programs": "  and their programs",
    "models": "models",
    "predictions": "  predictions",
}

#: Sources that are named for people; JSON has all.
_MOST_SOURCES = 10


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
    type=click.IntRange(min=1, max=MOST),
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
    from ...maintenance.prune import plan

    wanted = _wanted(**words)
    with reading(settings) as store:
        chosen = plan(store, wanted)
        row = _row(store.location, chosen, dry_run=dry_run)
    if not dry_run and chosen.rows:
        if not yes and settings.output == "table":
            _show_plan(settings, chosen)
        confirm(_question(chosen), yes=yes)
        removed, seconds = _prune(settings, chosen)
        row["removed"] = {name: getattr(removed, name) for name in removed.__slots__}
        row["seconds"] = seconds
    print_object(settings, COLUMNS, row, lambda: _show(settings, row, chosen))


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
    """Return what the options mean."""
    from ...maintenance.prune import PruneRules
    from ...storage.exchange_types import Selection

    if rest is not None and best is None:
        raise click.UsageError("--rest is a share of --best K; give both")
    if rest is not None and rest != rest:  # noqa: PLR0124 - click takes NaN for a number
        raise click.BadParameter("no number", param_hint="'--rest'")
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


def _prune(settings: Settings, chosen: PrunePlan) -> tuple[RemovedRows, float]:
    """Remove what was chosen; return what went and how long it took."""
    import time

    from ...maintenance.prune import prune

    started = time.monotonic()
    with updating(settings) as store, bar(settings, chosen.rows) as shown:
        removed = prune(store, chosen, on_progress=shown.at)
    return removed, time.monotonic() - started


def _row(location: str, chosen: PrunePlan, *, dry_run: bool) -> dict[str, Any]:
    from ...maintenance.prune import total_bytes

    return {
        "location": location,
        "dry_run": dry_run,
        "bytes": total_bytes(chosen.parts),
        "parts": [
            {
                "kind": part.kind,
                "of": part.of,
                "rows": part.rows,
                "bytes": part.bytes,
                "seconds": None if part.seconds is None else list(part.seconds),
            }
            for part in chosen.parts
        ],
        "lasting": chosen.lasting,
        "sources": [
            {"name": one.name, "store": one.store, "records": one.records} for one in chosen.origins
        ],
        "exchanged": [
            {"direction": one.direction, "peer": one.peer, "at": text.moment(one.at)}
            for one in chosen.exchanges
        ],
        "removed": None,
        "seconds": None,
    }


def _question(chosen: PrunePlan) -> str:
    from ...maintenance.prune import total_bytes

    records = len(chosen.records) + len(chosen.retracted)
    what = f"{text.count(records, 'record')} and their dependent rows" if records else "these rows"
    return f"Remove {what}, {text.size(total_bytes(chosen.parts))}?"


# ---------------------------------------------------------------------- for people


def _show(settings: Settings, row: dict[str, Any], chosen: PrunePlan) -> None:
    if row["removed"] is None:
        _show_plan(settings, chosen)
        if chosen.rows:
            settings.note(f"{text.size(row['bytes'])} would be removed; nothing was changed")
        return
    gone = [{"what": name, "rows": rows} for name, rows in row["removed"].items() if rows]
    print_table(_GONE, gone)
    settings.note(f"in {text.span(row['seconds'])}; to free the space: tunedb vacuum")


def _show_plan(settings: Settings, chosen: PrunePlan) -> None:
    if not chosen.parts:
        settings.note("nothing to remove")
    else:
        print_table(_PART, [_part(part, chosen) for part in chosen.parts])
    if chosen.origins:
        click.echo()
        print_table(_SOURCE, [_origin(one) for one in chosen.origins[:_MOST_SOURCES]])
        if len(chosen.origins) > _MOST_SOURCES:
            settings.note(f"and {len(chosen.origins) - _MOST_SOURCES:,} more sources")
    if chosen.lasting:
        settings.note(
            f"{text.count(chosen.lasting, 'record')} retracted must stay: the newest ones, whose "
            "ids must not be used again"
        )


def _part(part: Any, chosen: PrunePlan) -> dict[str, Any]:
    if part.kind == "features":
        what = "  and their features" if part.of is None else f"features {part.of}"
    else:
        what = _WHAT[part.kind]
    return {
        "what": text.clean(what),
        "rows": part.rows,
        "bytes": part.bytes,
        "again": text.clean(_again(part, chosen)),
    }


def _again(part: Any, chosen: PrunePlan) -> str:
    """Return how to have again what goes."""
    if part.kind == "models":
        return "tunedb train"
    if part.kind in ("records", "retracted"):
        peers = [f"database {one.peer[:8]}" for one in chosen.exchanges[:2]]
        return f"only from {' or '.join(peers) or 'another database'}, if it has them"
    if part.kind != "features" or part.of is None:
        return ""
    if part.seconds is None:
        return "not with the installed sets"
    least, most = map(text.span, part.seconds)
    name = part.of.rpartition(" ")[0]
    return f"{least if least == most else f'{least} to {most}'}: tunedb extract --set {name}"


def _origin(one: Any) -> dict[str, Any]:
    store = "this database" if one.store is None else f"database {one.store[:8]}"
    return {"name": text.short_path(one.name), "store": text.clean(store), "records": one.records}

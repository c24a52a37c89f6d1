"""``tunedb db``: databases as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...system import text
from ..lazy import LazyGroup
from ..options import Settings, common_options, pass_settings, writing
from ..output import Column, bold, output_options, print_fields, print_object, print_table
from ..progress import ProgressBar, progress_bar

if TYPE_CHECKING:
    from ...maintenance.check import CheckReport
    from ...results import Counts
    from ...storage.describe import DatabaseDescription

COMMANDS = {
    "init": ("database.db", "init", "Create an empty database."),
    "upgrade": ("database.db", "upgrade", "Upgrade a database to this version's schema."),
    "check": ("database.db", "check", "Check the integrity of a database."),
    "info": ("database.db", "info", "Describe a database and its contents."),
    "trust": ("database.trust", "command", "Approve a database, so that TVM may use its records."),
}

INIT_COLUMNS = (Column("location"), Column("revision"), Column("created"))

UPGRADE_COLUMNS = tuple(
    map(Column, ("location", "before", "after", "backup", "restored", "dry_run"))
)

CHECK_COLUMNS = tuple(map(Column, ("location", "ok", "rows", "measurements", "found", "problems")))

INFO_COLUMNS = tuple(
    map(
        Column,
        (
            *("location", "state", "advice", "revision", "head", "size"),
            *("created_by", "created_at", "store"),
            *("counts", "failures", "sources"),
        ),
    )
)

_PROBLEM = (
    Column("check", "check"),
    Column("table", "table"),
    Column("id", "id", right=True),
    Column("message", "problem", flexible=True),
)

#: Sources that are listed, those with most records; JSON has all.
_MAX_SOURCES = 20

_SOURCE = (
    Column("name", "source", flexible=True, keep_end=True),
    Column("kind", "kind"),
    Column("trust", "trust"),
    Column("records", "records", right=True),
)


@click.group(cls=LazyGroup, lazy=COMMANDS, name="db")
@common_options
def command() -> None:
    """Create, upgrade, check, describe and approve databases.

    Example:
      tunedb db init tune.db
      tunedb db info
    """


@click.command()
@click.argument("url", required=False)
@output_options
@common_options
@pass_settings
def init(settings: Settings, url: str | None) -> None:
    """Create an empty database.

    URL is a path or postgresql://HOST/NAME; a server's database must exist and be empty. Default:
    the database that --db or TUNEDB_URL names. An existing tunedb database stays unchanged.

    Example:
      tunedb db init tune.db
      tunedb db init postgresql://tuning@server/tunedb
    """
    from ...errors import NotFoundError, TuneDBError
    from ...storage import schema
    from ...storage.describe import describe

    try:
        before = describe(settings.locate(url).url).state
    except NotFoundError:
        before = "missing"
    except TuneDBError:
        before = "unknown"  # opening it raises the error
    with writing(settings, url) as store:
        location = store.location
    created = before in ("missing", "empty")
    message = f"{location}: " + ("created" if created else "exists already; nothing was changed")
    row = {"location": location, "revision": schema.HEAD, "created": created}
    print_object(settings, INIT_COLUMNS, row, lambda: click.echo(text.clean(message)))


@click.command()
@click.argument("url", required=False)
@click.option("--dry-run", is_flag=True, help="Migrate, then roll back.")
@output_options
@common_options
@pass_settings
def upgrade(settings: Settings, url: str | None, dry_run: bool) -> None:
    """Upgrade a database to this version's schema.

    The command first copies a file beside itself. If a step fails, the database stays unchanged. On
    a server, the command restores missing guards (docs/sharing.md).

    Example:
      tunedb db upgrade --dry-run
      tunedb db upgrade tune.db
    """
    from ...storage import versions
    from ...storage.engine import parse_url, show_url

    backups: list[Path] = []
    restored: list[str] = []
    parsed = parse_url(settings.locate(url).url)
    before, after = versions.upgrade(
        parsed, dry_run=dry_run, on_backup=backups.append, on_restored=restored.extend
    )
    location = show_url(parsed)
    row = {
        "location": location,
        "before": before,
        "after": after,
        "backup": str(backups[0]) if backups else None,
        "restored": restored,
        "dry_run": dry_run,
    }

    def show() -> None:
        if before == after:
            click.echo(text.clean(f"{location}: schema {after} is up to date"))
            for guard in restored:
                click.echo(text.clean(f"{'missing' if dry_run else 'restored'}: {guard}"))
            return
        verb = "would be upgraded" if dry_run else "upgraded"
        click.echo(text.clean(f"{location}: {verb} from schema {before} to {after}"))
        for backup in backups:
            click.echo(text.clean(f"backup: {backup}"))

    print_object(settings, UPGRADE_COLUMNS, row, show)


@click.command()
@click.option(
    "--sample",
    type=click.IntRange(min=0),
    metavar="N",
    help="Check a random sample of N measurements instead of all.",
)
@output_options
@common_options
@pass_settings
def check(settings: Settings, sample: int | None) -> None:
    """Check the integrity of a database.

    The command runs SQLite's own checks, and checks the schema, the digest of every row, and every
    derived column. It writes nothing. The exit code is 1 if it finds a problem.

    Example:
      tunedb db check
      tunedb db check --sample 10000 --json
    """
    from ...maintenance.check import check as check_database

    with progress_bar(settings, 0) as progress:
        report = check_database(settings.locate().url, sample=sample, on_row=_follow(progress))
    print_object(settings, CHECK_COLUMNS, _check_row(report), lambda: _show_check(report))
    if report.found:
        raise click.exceptions.Exit(1)


def _follow(progress: ProgressBar) -> Any:
    """Return a callback that moves the bar to a row, given the number of rows."""

    def update(done: int, total: int) -> None:
        progress.resize(total)
        progress.update(done)

    return update


def _check_row(report: CheckReport) -> dict[str, Any]:
    return {
        "location": report.location,
        "ok": not report.found,
        "rows": report.rows,
        "measurements": report.measurements,
        "found": report.found,
        "problems": [
            {"check": p.check, "table": p.table, "id": p.id, "message": p.message}
            for p in report.problems
        ],
    }


def _show_check(report: CheckReport) -> None:
    coverage = (
        f"{text.count(report.rows, 'row')} checked, "
        f"{text.count(report.measurements, 'measurement')} among them"
    )
    if not report.found:
        click.echo(text.clean(f"{report.location}: no problem ({coverage})"))
        return
    print_table(_PROBLEM, _check_row(report)["problems"])
    if report.found > len(report.problems):
        click.echo(f"and {report.found - len(report.problems):,} more")
    total = text.count(report.found, "problem")
    click.echo(
        text.clean(
            f"{report.location}: {total} ({coverage}); restore a copy, or import the logs again"
        )
    )


@click.command()
@click.argument("url", required=False)
@output_options
@common_options
@pass_settings
def info(settings: Settings, url: str | None) -> None:
    """Describe a database and its contents.

    The command also describes databases of other schemas and of other programs.

    Example:
      tunedb db info
      tunedb db info other.db --json
    """
    from ...storage.describe import describe
    from ...storage.store import Store

    location = settings.locate(url).url
    description = describe(location)
    row = _info_row(description)
    if description.state == "current":
        with Store(location, create=False, read_only=True) as store:
            row["counts"] = _counts(store.counts())
            row["failures"] = store.records.failures()
            row["sources"] = [
                {
                    "name": source.name,
                    "kind": source.kind.value,
                    "trust": source.trust.name.lower(),
                    "records": source.records,
                }
                for source in store.sources.summaries()
            ]
    print_object(settings, INFO_COLUMNS, row, lambda: _show_info(row))


def _info_row(description: DatabaseDescription) -> dict[str, Any]:
    from ...storage import schema

    created = description.meta.get("created_at", "")
    return {
        "location": description.location,
        "state": description.state,
        "advice": description.advice,
        "revision": description.revision,
        "head": schema.HEAD,
        "size": description.size,
        "created_by": description.meta.get("created_by"),
        "created_at": text.moment(int(created)) if created.isdecimal() else None,
        "store": description.meta.get("store"),
        "counts": None,
        "failures": None,
        "sources": None,
    }


def _counts(counts: Counts) -> dict[str, int]:
    names = (
        *("workloads", "targets", "programs", "sketches", "tails", "measurements", "failed"),
        *("launches", "sessions", "sources", "quarantined", "retracted"),
    )
    return {name: getattr(counts, name) for name in names}


def _show_info(row: dict[str, Any]) -> None:
    schema = f"{text.plain(row['revision'])} ({row['state']}; this tunedb has {row['head']})"
    fields = [("location", text.clean(row["location"])), ("schema", schema)]
    if row["advice"]:
        fields.append(("", text.clean(row["advice"])))
    fields.append(("size", text.size(row["size"])))
    if row["created_by"]:
        creation = f"by tunedb {row['created_by']} on {text.plain(row['created_at'])}"
        fields.append(("created", text.clean(creation)))
        fields.append(("store", text.plain(row["store"])))
    for name, number in (row["counts"] or {}).items():
        fields.append((name, f"{number:,}"))
    for kind, number in sorted((row["failures"] or {}).items()):
        fields.append((f"  {kind}", f"{number:,}"))
    print_fields(fields)
    if row["sources"]:
        click.echo(f"\n{bold('Sources')}")
        largest = sorted(row["sources"], key=lambda source: -source["records"])
        print_table(_SOURCE, largest[:_MAX_SOURCES])
        if len(largest) > _MAX_SOURCES:
            click.echo(f"and {len(largest) - _MAX_SOURCES:,} more sources; see: tunedb sources")

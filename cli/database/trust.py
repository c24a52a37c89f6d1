"""``tunedb db trust``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from ...system import text
from ..confirm import confirm
from ..options import Settings, common_options, pass_settings
from ..output import Column, output_options, print_object, print_rows

if TYPE_CHECKING:
    from ...storage.approval import Approval
    from ...storage.store import Store

#: Characters of a database's key in a table.
_SHORT = 8

COLUMNS = (
    Column("location", "location", flexible=True, keep_end=True),
    Column("store", "key", lambda key: text.clean(key[:_SHORT])),
    Column("approved_at", "approved"),
)


@click.command()
@click.argument("url", required=False)
@click.option("--dry-run", is_flag=True, help="Show the database; approve nothing.")
@click.option("--yes", is_flag=True, help="Skip the confirmation.")
@click.option("--list", "list_", is_flag=True, help="List the approved databases.")
@click.option("--forget", is_flag=True, help="Revoke the approval of URL.")
@output_options
@common_options
@pass_settings
def command(
    settings: Settings, url: str | None, dry_run: bool, yes: bool, list_: bool, forget: bool
) -> None:
    """Approve a database, so that TVM may use its records.

    URL is a path or postgresql://HOST/NAME. Databases that you create are approved. Databases that
    you received, moved or copied are not: you can read, list and merge them, but TVM gets no
    program or module of them before you approve them. An approval trusts the database's own
    sources as your own, so approve only what you would run. It holds for this location and the
    database that is there now.

    Example:
      tunedb db trust tune.db
      tunedb db trust postgresql://tuning@server/tunedb --yes
      tunedb db trust --list
      tunedb db trust --forget tune.db
    """
    from ...errors import UsageError

    if list_:
        if url is not None or forget or yes or dry_run:
            raise UsageError("--list takes no URL and no other option; run: tunedb db trust --list")
        _list(settings)
    elif url is None:
        raise UsageError("name the database: tunedb db trust tune.db; or give --list")
    elif forget:
        _forget(settings, url)
    else:
        _approve(settings, url, yes=yes, dry_run=dry_run)


def _list(settings: Settings) -> None:
    from ...storage.approval import approvals

    approved, errors = approvals()
    for error in errors:
        settings.warn(str(error))
    rows = [_row(approval) for approval in approved]
    print_rows(
        settings, COLUMNS, rows, empty="no database is approved; see: tunedb db trust --help"
    )


def _forget(settings: Settings, url: str) -> None:
    from ...errors import NotFoundError
    from ...storage.approval import forget
    from ...storage.engine import parse_url, shell_word

    word = shell_word(parse_url(url))
    if not forget(url):
        raise NotFoundError(f"{word} is not approved; see: tunedb db trust --list")
    settings.note(f"{word}: no longer approved")


def _approve(settings: Settings, url: str, *, yes: bool, dry_run: bool) -> None:
    from ...storage.approval import approve
    from ...storage.store import Store

    with Store(url, create=False, read_only=True) as store:
        for line in _description(store):
            if not (yes and settings.quiet):
                click.echo(text.clean(line), err=True)
        if not dry_run:
            confirm("Approve it, so that TVM may use its records?", yes=yes)
            row = _row(approve(store.url, store.key))
            message = f"{row['location']}: approved"
            print_object(settings, COLUMNS, row, lambda: click.echo(text.clean(message)))


def _description(store: Store) -> Iterator[str]:
    """Yield lines that describe the database to approve."""
    from ...storage.approval import owner_of

    owner = owner_of(store.url)
    yield f"{store.location}: store {store.key}{f', file of {owner}' if owner else ''}"
    for row in store.sources.summaries():
        is_its_own = row.store == store.key
        kind = row.trust.name.lower() if is_its_own else f"{row.trust.name.lower()}, merged"
        yield f"  {text.count(row.records, 'record')} of {row.name} ({kind})"


def _row(approval: Approval) -> dict[str, Any]:
    return {
        "location": approval.location,
        "store": approval.store,
        "approved_at": text.moment(approval.approved_at),
    }

"""``tunedb quarantine list``, ``retry`` and ``show``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ...system import text
from ..lazy import LazyGroup
from ..options import Settings, common_options, pass_settings, reading, writing
from ..output import (
    Column,
    bold,
    output_options,
    print_fields,
    print_object,
    print_rows,
    print_table,
)
from ..progress import counter, progress_bar

if TYPE_CHECKING:
    from ...formats.importer import RetryReport
    from ...results import QuarantineRow
    from ...storage.store import Store

F = TypeVar("F", bound=Callable[..., Any])

COLUMNS = (
    Column("id", "id", right=True),
    Column("created_at", "since", least=110),
    Column("source"),
    Column("file", "file", flexible=True, keep_end=True, fold=True),
    Column("line", "line", right=True),
    Column("reason", "reason", flexible=True),
    Column("size", "size", text.size, right=True),
    Column("data"),
)

_RETRIED = tuple(map(Column, ("tried", "recovered", "workloads", "known", "left", "reasons")))
_SUMMARY = (
    Column("what", "result", flexible=True),
    Column("lines", "lines", text.number, right=True),
)

#: Bytes of a line in the list; the database has all of them.
_EXCERPT = 200
_LINE_CHARS = 100

_LIMIT = 100

_EMPTY = "nothing is quarantined"


def _list_options(function: F) -> F:
    """Add the options of the list to a command."""
    function = _file_option(function)
    return click.option(
        "--limit",
        type=click.IntRange(min=1),
        default=_LIMIT,
        show_default=True,
        help="Largest number of lines, newest first.",
    )(function)


def _file_option(function: F) -> F:
    return click.option(
        "--file", metavar="FILE", help="Only lines of this file: its path, or its name in the list."
    )(function)


@click.group(
    cls=LazyGroup,
    lazy={
        "list": (
            "logs.quarantine",
            "list_lines",
            "List the lines that imports could not parse.",
        ),
        "show": ("logs.quarantine", "show_line", "Show one quarantined line."),
        "retry": (
            "logs.quarantine",
            "retry_lines",
            "Parse the lines again with the installed formats.",
        ),
    },
    name="quarantine",
    invoke_without_command=True,
)
@_list_options
@output_options
@common_options
@pass_settings
def command(settings: Settings, limit: int, file: str | None) -> None:
    """List, show and retry the lines that imports could not parse.

    Without a command, it lists the lines.

    Example:
      tunedb quarantine
      tunedb quarantine show 7
      tunedb quarantine retry
    """
    from ...errors import UsageError

    name = click.get_current_context().invoked_subcommand
    if name is None:
        _list(settings, limit, file)
    elif file is not None or limit != _LIMIT:
        raise UsageError(f"--limit and --file belong after the command: tunedb quarantine {name} …")


@click.command(name="list")
@_list_options
@output_options
@common_options
@pass_settings
def list_lines(settings: Settings, limit: int, file: str | None) -> None:
    """List the lines that imports could not parse.

    Each line comes with the reason, newest first. JSON and CSV also hold the line's beginning.

    Example:
      tunedb quarantine list --file ./tuning.json
      tunedb quarantine list --limit 1000 --jsonl | jq -r .reason | sort | uniq -c
    """
    _list(settings, limit, file)


def _list(settings: Settings, limit: int, file: str | None) -> None:
    with reading(settings) as store:
        if file is None:
            total = store.counts().quarantined
            rows = store.quarantine.rows(limit)
        else:
            ids = _ids_of(store, file)
            total = len(ids)
            rows = store.quarantine.rows(ids=ids[-limit:])
    table = [{**_row(row), "data": _excerpt(row)} for row in rows]
    print_rows(settings, COLUMNS, table, empty=_EMPTY)
    if total > len(rows):
        settings.note(f"{len(rows):,} of {total:,} lines; --limit shows more")


def _ids_of(store: Store, file: str) -> list[int]:
    """Return the ids of a file's lines; `file` is its path or its name in the list."""
    from ...errors import NotFoundError
    from ...identity import clean_text

    names = dict.fromkeys((clean_text(file), clean_text(str(Path(file).absolute()))))
    ids = sorted({id_ for name in names for id_ in store.quarantine.ids(name)})
    if not ids:
        raise NotFoundError(f"{file} has no quarantined line; see: tunedb quarantine list")
    return ids


def _row(row: QuarantineRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "created_at": text.moment(row.created_at),
        "source": row.source.name,
        "file": row.item.file,
        "line": row.item.line,
        "reason": row.item.reason,
        "size": len(row.item.data),
    }


def _excerpt(row: QuarantineRow) -> str:
    return row.item.data[:_EXCERPT].decode(errors="backslashreplace")


@click.command(name="show")
@click.argument("id_", type=click.IntRange(min=1, max=2**63 - 1), metavar="ID")
@click.option("--raw", is_flag=True, help="Print only the bytes of the line.")
@output_options
@common_options
@pass_settings
def show_line(settings: Settings, id_: int, raw: bool) -> None:
    """Show one quarantined line.

    ID is an id of the list. Unprintable bytes are escaped; JSON holds the whole escaped line.

    Example:
      tunedb quarantine show 7
      tunedb quarantine show 7 --raw > line.json
    """
    from ...errors import NotFoundError, UsageError

    if raw and settings.output != "table":
        raise UsageError(f"give only one of --raw and --{settings.output}")
    with reading(settings) as store:
        rows = store.quarantine.rows(ids=[id_])
    if not rows:
        raise NotFoundError(f"no quarantined line {id_}; see: tunedb quarantine list")
    (row,) = rows
    if raw:
        click.echo(row.item.data, nl=False)
        return
    data = row.item.data.decode(errors="backslashreplace")
    print_object(settings, COLUMNS, {**_row(row), "data": data}, lambda: _show(row, data))


def _show(row: QuarantineRow, data: str) -> None:
    item = row.item
    fields = [
        ("file", text.clean(item.file)),
        ("line", f"{item.line:,}"),
        ("reason", text.clean(item.reason)),
        ("size", f"{len(item.data):,} bytes"),
        ("since", text.plain(text.moment(row.created_at))),
        ("source", text.clean(f"{row.source.name} ({row.source.trust.name.lower()})")),
    ]
    print_fields(fields, heading=f"Quarantined line {row.id}")
    click.echo(f"\n{bold('Bytes')}")
    escaped = text.clean(data)
    for start in range(0, len(escaped), _LINE_CHARS):
        click.echo(escaped[start : start + _LINE_CHARS])


@click.command(name="retry")
@click.argument("ids", nargs=-1, type=click.IntRange(min=1, max=2**63 - 1), metavar="[ID]...")
@_file_option
@output_options
@common_options
@pass_settings
def retry_lines(settings: Settings, ids: tuple[int, ...], file: str | None) -> None:
    """Parse the lines again with the installed formats.

    Lines that a newer tunedb or another plugin understands become records of the same source and
    leave the quarantine; the others stay. Default: all lines.

    Example:
      tunedb quarantine retry
      tunedb quarantine retry 7 8 9
      tunedb quarantine retry --file ./tuning.json
    """
    from ...errors import NotFoundError, UsageError
    from ...formats.importer import retry_quarantine

    if ids and file is not None:
        raise UsageError("give ids or --file, not both")
    with reading(settings) as store:
        known = store.quarantine.ids() if file is None else _ids_of(store, file)
    missing = sorted(set(ids) - set(known))
    if missing:
        raise NotFoundError(f"no quarantined line {missing[0]}; see: tunedb quarantine list")
    chosen = ids or known
    with writing(settings) as store, progress_bar(settings, len(chosen)) as progress:
        report = retry_quarantine(store, chosen, on_row=counter(progress))
    row = {column.key: getattr(report, column.key) for column in _RETRIED}
    print_object(settings, _RETRIED, row, lambda: _show_retried(settings, report))


def _show_retried(settings: Settings, report: RetryReport) -> None:
    if not report.tried:
        settings.note(_EMPTY)
        return
    rows = [
        {"what": "recovered as new records", "lines": report.recovered},
        {"what": "recovered as new workloads", "lines": report.workloads},
        {"what": "already in the database", "lines": report.known},
        *(
            {"what": f"left: {reason}", "lines": number}
            for reason, number in sorted(report.reasons.items(), key=lambda item: -item[1])
        ),
    ]
    print_table(_SUMMARY, [row for row in rows if row["lines"]])

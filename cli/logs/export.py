"""``tunedb export``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from ...system import text
from .. import choose
from ..options import Settings, common_options, pass_settings, reading
from ..output import Column, output_options, print_object, print_table
from ..progress import counter, progress_bar

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from ...formats.base import LogFormat
    from ...formats.export import ExportReport
    from ...storage.tables import TableName

#: The only format that is a directory.
DIRECTORY = "metaschedule"

#: Formats of tables, as in ``formats/tables.py``, which takes longer to import.
TABLE_FORMATS = ("parquet", "arrow", "csv")

#: Tables of :meth:`tunedb.storage.store.Store.table`.
TABLES = (
    *("records", "best", "failures", "tasks", "workloads", "sessions", "features", "launches"),
)

COLUMNS = tuple(map(Column, ("format", "directories", "file", "workloads", "records", "left_out")))

#: Columns of the report about a table.
TABLE_COLUMNS = tuple(map(Column, ("format", "table", "file", "rows")))

_SUMMARY = (
    Column("what", "export", flexible=True),
    Column("records", "records", text.number, right=True),
)


def is_exportable(name: str, format_: LogFormat) -> bool:
    """Return True if a format can be exported."""
    from ...formats.base import DocumentWriter, LineWriter

    return name == DIRECTORY or isinstance(format_, LineWriter | DocumentWriter)


def _complete_format(
    _: click.Context, __: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    from ...formats.base import formats

    names = [name for name, format_ in formats().items() if is_exportable(name, format_)]
    names += TABLE_FORMATS
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]


@click.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False), required=False)
@click.option(
    "--format",
    "format_",
    metavar="FORMAT",
    default=DIRECTORY,
    show_default=True,
    shell_complete=_complete_format,
    help="Format to write: metaschedule, ansor, autotvm, t4, or one of tunedb plugins; "
    "parquet, arrow or csv for a table.",
)
@click.option(
    "--table",
    metavar="TABLE",
    type=click.Choice(TABLES),
    help="Table to write as parquet, arrow or csv: records (default), best, failures, tasks, "
    "workloads, sessions, features or launches.",
)
@click.option(
    "--feature-set",
    metavar="NAME",
    help="Feature set of the table features; needed if the database has several.",
)
@click.option("--wide", is_flag=True, help="In the table features, one column for each feature.")
@click.option(
    *("-o", "--output", "file"),
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    help="File for other formats, or - for standard output (default).",
)
@choose.target_option()
@click.option(
    "--workload",
    metavar="WORKLOAD",
    shell_complete=choose.complete_workload,
    help="Only this workload: its id, name, or the beginning of its digest.",
)
@click.option("--force", is_flag=True, help="Replace existing files.")
@output_options
@common_options
@pass_settings
def command(
    settings: Settings,
    directory: Path | None,
    format_: str,
    table: str | None,
    feature_set: str | None,
    wide: bool,
    file: Path | None,
    target: str | None,
    workload: str | None,
    force: bool,
) -> None:
    """Export records as logs of other tools.

    metaschedule writes a work directory that TVM's JSONDatabase loads, without sessions, causes of
    failure and times of day, which that format lacks, and without records that a final has
    superseded. ansor and autotvm write one log, each record
    as it was imported. t4 writes the results of one GPU kernel on one device as FAIR T4. Records of
    other tools are left out, and so are records that are foreign, retracted or cut short.

    parquet, arrow and csv write a table for analysis (docs/tables.md), with records of all tools
    and sources; its columns trust, served and retracted tell which ones count.

    Example:
      tunedb export ./work_dir
      tunedb export ./for_llvm --target llvm --workload matmul --force
      tunedb export --format ansor -o tuning.json
      tunedb export --format autotvm | xz > autotvm.log.xz
      tunedb export --format parquet -o records.parquet
      tunedb export --format csv --table best
      tunedb export --format t4 --workload gemm --target 7 -o gemm__A100_T4.json
    """
    from ...errors import NotFoundError, UsageError

    _check(settings, format_, directory, file)
    if format_ in TABLE_FORMATS:
        _export_table(
            settings, format_, table or "records", feature_set, wide, file, target, workload, force
        )
        return
    if table is not None or feature_set is not None or wide:
        raise UsageError(f"{format_} has no tables; give --format {', '.join(TABLE_FORMATS)}")
    to_stdout = directory is None and str(file or "-") == "-"
    with reading(settings) as store:
        selection: dict[str, Any] = {
            "target_ids": choose.find_targets(store, target),
            "workload_ids": None if workload is None else store.lookup.workload(workload),
        }
        with progress_bar(settings, store.records.count(selection["target_ids"])) as progress:
            selection["on_record"] = counter(progress)
            if directory is not None:
                from ...formats.export import export_metaschedule

                report = export_metaschedule(store, directory, force=force, **selection)
            else:
                path = None if to_stdout else file
                report = _export_lines(store, format_, path, force, selection)
        location = store.location
    row = {
        "format": format_,
        "directories": report.directories,
        "file": None if file is None else str(file),
        "workloads": report.workloads,
        "records": report.records,
        "left_out": report.left_out,
    }
    destination = ", ".join(report.directories) or str(file)
    if to_stdout:
        _note_report(settings, report)
    else:
        print_object(settings, COLUMNS, row, lambda: _show(report, destination))
    if not report.records:
        raise NotFoundError(f"{location}: no record to export; nothing was written")


def _check(settings: Settings, format_: str, directory: Path | None, file: Path | None) -> None:
    """Raise UsageError for an unknown or unwritable format, or a wrong destination."""
    from ...errors import UsageError
    from ...formats.base import formats

    known = formats()
    names = [name for name in known if is_exportable(name, known[name])]
    if format_ not in (*names, *TABLE_FORMATS):
        there_are = ", ".join(sorted([*names, *TABLE_FORMATS]))
        raise UsageError(f"cannot write format {format_!r}; there are: {there_are}")
    if format_ == DIRECTORY:
        if directory is None or file is not None:
            raise UsageError(f"{format_} is a directory: tunedb export ./work_dir")
    elif directory is not None:
        raise UsageError(f"{format_} is one file: tunedb export --format {format_} -o {directory}")
    elif settings.output != "table" and str(file or "-") == "-":
        raise UsageError(f"--{settings.output} prints the report; name a file for the log: -o FILE")


def _export_lines(
    store: Any, format_: str, file: Path | None, force: bool, selection: dict[str, Any]
) -> ExportReport:
    """Write a log to a file, or to stdout if `file` is None."""
    from ...formats.base import DocumentWriter, formats
    from ...formats.export import export_document, export_lines

    is_document = isinstance(formats()[format_], DocumentWriter)
    write = export_document if is_document else export_lines
    if file is None:
        report = write(store, format_, sys.stdout.buffer, **selection)
        sys.stdout.buffer.flush()
        return report
    with _new_file(file, force=force) as temporary:
        with temporary.open("wb") as out:
            report = write(store, format_, out, **selection)
        if not report.records:
            temporary.unlink()
    return report


@contextmanager
def _new_file(file: Path, *, force: bool) -> Iterator[Path]:
    """Yield the path of a temporary file, which becomes `file`."""
    from ...errors import StorageError, UsageError
    from ...system.files import new_file

    try:
        with new_file(file, force=force) as temporary:
            yield temporary
    except FileExistsError:
        raise UsageError(f"{file} exists; give --force to replace it") from None
    except OSError as error:
        raise StorageError(f"{file}: cannot be written ({error.strerror})") from None


def _export_table(
    settings: Settings,
    format_: str,
    name: str,
    feature_set: str | None,
    wide: bool,
    file: Path | None,
    target: str | None,
    workload: str | None,
    force: bool,
) -> None:
    """Write a table to a file, or to stdout if `file` is None or "-"."""
    from ...errors import NotFoundError
    from ...formats.tables import require_format, write_table

    require_format(format_)
    with reading(settings) as store:
        table = store.table(
            cast("TableName", name),
            None if workload is None else store.lookup.workload(workload),
            choose.find_targets(store, target),
            feature_set=feature_set,
            wide=wide,
        )
        location = store.location
    if not len(table):
        raise NotFoundError(f"{location}: no row of {name} to export; nothing was written")
    if file is None or str(file) == "-":
        write_table(table, format_, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        settings.note(f"{len(table):,} rows of {name} written to standard output")
        return
    with _new_file(file, force=force) as temporary, temporary.open("wb") as out:
        write_table(table, format_, out)
    row = {"format": format_, "table": name, "file": str(file), "rows": len(table)}
    print_object(
        settings,
        TABLE_COLUMNS,
        row,
        lambda: print_table(
            _SUMMARY, [{"what": f"{name} written to {file}", "records": len(table)}]
        ),
    )


def _rows(report: ExportReport, destination: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    if report.records:
        workloads = text.count(report.workloads, "workload")
        rows.append({"what": f"written to {destination} ({workloads})", "records": report.records})
    left_out = sorted(report.left_out.items(), key=lambda item: -item[1])
    return rows + [
        {"what": f"left out: {reason}", "records": number} for reason, number in left_out
    ]


def _show(report: ExportReport, destination: str) -> None:
    rows = _rows(report, destination)
    if rows:
        print_table(_SUMMARY, rows)


def _note_report(settings: Settings, report: ExportReport) -> None:
    """Print the report on stderr, because stdout has the log."""
    for row in _rows(report, "standard output"):
        settings.note(f"{row['records']:,} records {row['what']}")

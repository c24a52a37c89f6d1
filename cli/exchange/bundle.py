"""``tunedb bundle``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...system import text
from ..options import Settings, common_options, pass_settings, reading
from ..output import Column, output_options, print_fields, print_object
from ..progress import progress_bar
from .selection import selection_options

if TYPE_CHECKING:
    from ...exchange.bundle import BundleInfo, Manifest
    from ...storage.exchange_types import Selection

COLUMNS = tuple(
    map(
        Column,
        (
            *("file", "records", "workloads", "bytes", "bytes_per_record", "digest"),
            *("store", "tunedb", "revision", "created_at", "selection", "counts", "card"),
        ),
    )
)


@click.command()
@click.option(
    *("-o", "--output", "file"),
    metavar="FILE",
    type=click.Path(path_type=Path, allow_dash=True),
    help="File to write, or - for standard output.",
)
@click.option(
    *("--info", "info"),
    metavar="FILE",
    type=click.Path(path_type=Path, allow_dash=True),
    help="Verify and describe a bundle, instead of writing one.",
)
@selection_options
@click.option("--as-prior", is_flag=True, help="Make a prior: a bundle with a card.")
@click.option("--licence", metavar="TEXT", help="With --as-prior: licence of the records.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@output_options
@common_options
@pass_settings
def command(
    settings: Settings,
    file: Path | None,
    info: Path | None,
    selection: Selection,
    as_prior: bool,
    licence: str | None,
    force: bool,
) -> None:
    """Write records into one file that others can merge.

    A bundle holds records with all rows that they refer to, compressed, under one digest; tunedb
    merge reads it. It holds no models, quarantined lines or scripts. tunedb merge rejects a
    truncated or changed bundle as a whole.

    With --as-prior it is a prior, which tunedb tune and apply take with --prior: its card has the
    licence that you give, and the machines, targets and workloads of the records. Its times have
    seven digits, and it does not tell which program a search made from which.

    Example:
      tunedb bundle -o team-a.tunedb
      tunedb bundle -o best.tunedb --target llvm --best 20 --since 2026-11-01
      tunedb bundle -o - | ssh host tunedb merge -
      tunedb bundle -o company.prior --as-prior --licence proprietary
      tunedb bundle --info team-a.tunedb
    """
    from ...errors import UsageError

    if as_prior != (licence is not None):
        raise UsageError("--as-prior and --licence TEXT belong together; give both")
    if info is not None:
        if file is not None or force or as_prior:
            raise UsageError("--info reads a bundle and -o writes one; give one of them")
        _show_info(settings, info)
        return
    if file is None:
        raise UsageError("name the file of the bundle: tunedb bundle -o FILE.tunedb")
    to_stdout = str(file) == "-"
    if to_stdout:
        _check_stdout(settings)
    manifest, bundle = _write(settings, None if to_stdout else file, selection, licence, force)
    row = _row(str(file), manifest, bundle)
    if to_stdout:
        settings.note(_summary(row))
    else:
        print_object(settings, COLUMNS, row, lambda: _show(row))


def _check_stdout(settings: Settings) -> None:
    """Raise UsageError if standard output cannot take a bundle."""
    from ...errors import UsageError

    if settings.output != "table":
        raise UsageError(
            f"--{settings.output} prints the report; name a file for the bundle: -o FILE"
        )
    if sys.stdout.isatty():
        raise UsageError("a bundle is binary; write it to a file (-o FILE) or a pipe")


def _write(
    settings: Settings, file: Path | None, selection: Selection, licence: str | None, force: bool
) -> tuple[Manifest, BundleInfo]:
    """Write a bundle to a file, or to stdout if `file` is None."""
    from ...exchange.bundle import new_manifest, write_bundle
    from ...exchange.database_peer import DatabasePeer
    from ...exchange.prior import card_of, prior_chunks

    with reading(settings) as store:
        peer = DatabasePeer(store.url, own=True)
        try:
            card = None if licence is None else card_of(peer, selection, licence)
            manifest = new_manifest(peer.store_key, selection, card)
            out = sys.stdout.buffer if file is None else file
            with progress_bar(settings, peer.total) as progress:

                def on_progress(done: int) -> None:
                    progress.resize(peer.total)  # known after the records are selected
                    progress.update(done)

                chunks = peer.chunks(selection) if card is None else prior_chunks(peer, selection)
                info = write_bundle(out, chunks, manifest, force=force, on_progress=on_progress)
            if file is None:
                sys.stdout.buffer.flush()
        finally:
            peer.close()
    return manifest, info


def _show_info(settings: Settings, file: Path) -> None:
    """Print the contents of a bundle."""
    from ...exchange.bundle import BundlePeer

    with BundlePeer(file) as peer:
        row = _row(str(file), peer.manifest, peer.info)
    print_object(settings, COLUMNS, row, lambda: _show(row))


def _row(file: str, manifest: Manifest, info: BundleInfo) -> dict[str, Any]:
    records = info.counts["measurement"]
    return {
        "file": file,
        "records": records,
        "workloads": info.counts["workload"],
        "bytes": info.size,
        "bytes_per_record": round(info.size / records, 1) if records else None,
        "digest": info.digest.hex(),
        "store": manifest.store,
        "tunedb": manifest.tunedb,
        "revision": manifest.revision,
        "created_at": text.moment(manifest.created_at),
        "selection": manifest.selection,
        "counts": info.counts,
        "card": manifest.card,
    }


def _summary(row: dict[str, Any]) -> str:
    records, workloads = (
        text.count(row[name], name.removesuffix("s")) for name in ("records", "workloads")
    )
    average = row["bytes_per_record"]
    average = "" if average is None else f", {average:,.1f} bytes per record"
    return f"{records} of {workloads} in {text.size(row['bytes'])}{average}"


def _show(row: dict[str, Any]) -> None:
    """Print a bundle for people."""
    from ...exchange.bundle import selection_fields
    from ...storage.exchange_types import EVERYTHING

    others = (
        f"{name.replace('_', ' ')} {number:,}"
        for name, number in row["counts"].items()
        if number and name not in ("measurement", "workload")
    )
    default = selection_fields(EVERYTHING)
    selection = {
        name: value for name, value in row["selection"].items() if value != default.get(name)
    }
    print_fields(
        [
            ("file", text.clean(row["file"])),
            ("contents", _summary(row)),
            ("also", ", ".join(others) or text.NOTHING),
            ("selection", text.plain(selection) if selection else "everything"),
            ("created", f"{text.plain(row['created_at'])} by tunedb {text.clean(row['tunedb'])}"),
            ("database", text.clean(row["store"])),
            ("digest", row["digest"]),
            *([] if row["card"] is None else [("card", text.clean(text.plain(row["card"])))]),
        ]
    )

"""Giving space back: what a vacuum would give, what it needs, and doing it.

SQLite writes the whole file anew: into a temporary file, from there into the write-ahead log, and
from there back. PostgreSQL marks what dead rows take as free for new ones; the files keep their
size.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import StorageError
from ..storage.engine import sqlite_path

if TYPE_CHECKING:
    from ..storage.store import Store

#: Bytes of the new file in a second, as measured with 311 MB on a busy cloud machine.
BYTES_PER_S = 100e6

#: Where SQLite puts temporary files, the first that is a folder in which it may write.
_TEMPORARY = ("/var/tmp", "/usr/tmp", "/tmp", ".")  # noqa: S108 - SQLite's own list


@dataclass(frozen=True, slots=True)
class Room:
    """Space that a vacuum needs for the time that it takes.

    Parameters
    ----------
    folder : Path
        Where.
    needed, free : int
        Bytes.
    """

    folder: Path
    needed: int
    free: int


@dataclass(frozen=True, slots=True)
class VacuumPlan:
    """What a vacuum would do.

    Parameters
    ----------
    is_file : bool
        Whether it is SQLite, which gives space back to the disk.
    bytes : int
        What the database takes now.
    freed : int
        What would be free then, an estimate for PostgreSQL; half-empty pages come on top.
    seconds : float or None
        About how long it takes; None where nobody knows.
    rooms : tuple of Room
        What it needs, one for each disk.
    """

    is_file: bool
    bytes: int
    freed: int
    seconds: float | None
    rooms: tuple[Room, ...]


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """What a vacuum did: bytes of the database before and after."""

    before: int
    after: int


def plan_vacuum(store: Store) -> VacuumPlan:
    """Find out what a vacuum would do; nothing is written."""
    if not store.pruning.is_file:
        tables = store.pruning.table_spaces()
        dead = sum(one.bytes * one.dead / max(one.rows + one.dead, 1) for one in tables)
        return VacuumPlan(False, sum(one.bytes for one in tables), round(dead), None, ())
    space = store.pruning.file_space()
    left = (space.pages - space.free) * space.page_size
    return VacuumPlan(
        True,
        space.pages * space.page_size,
        space.free * space.page_size,
        left / BYTES_PER_S,
        _rooms(sqlite_path(store.url), left),
    )


def _rooms(file: Path | None, size: int) -> tuple[Room, ...]:
    """Return what a new file of a size needs on each disk."""
    if file is None:
        return ()
    needed: dict[int, Room] = {}
    # The copy is in the temporary folder first, and then in the log beside the file.
    for folder in (file.absolute().parent, temporary_folder()):
        disk = folder.stat().st_dev
        known = needed.get(disk)
        if known is None:
            needed[disk] = Room(folder, size, shutil.disk_usage(folder).free)
        else:
            needed[disk] = Room(known.folder, known.needed + size, known.free)
    return tuple(needed.values())


def temporary_folder() -> Path:
    """Return where SQLite writes temporary files."""
    named = [os.environ.get(name, "") for name in ("SQLITE_TMPDIR", "TMPDIR")]
    for name in (*named, *_TEMPORARY):
        if name and Path(name).is_dir() and os.access(name, os.W_OK | os.X_OK):
            return Path(name).absolute()
    return Path.cwd()


def vacuum(store: Store) -> Vacuumed:
    """Give back what removed rows took.

    Raises
    ------
    StorageError
        A disk has no room for what it takes; nothing was changed.
    BusyError
        Another process is writing.
    """
    before = plan_vacuum(store)
    require_room(store.location, before.rooms)
    store.pruning.vacuum()
    return Vacuumed(before.bytes, plan_vacuum(store).bytes)


def require_room(location: str, rooms: Sequence[Room]) -> None:
    """Raise StorageError where a disk has no room for a vacuum."""
    for room in rooms:
        if room.free < room.needed:
            mega = 1e6
            raise StorageError(
                f"{location}: a vacuum needs {room.needed / mega:,.0f} MB in {room.folder} for a "
                f"while,but {room.free / mega:,.0f} MB are free; free some, or name a "
                "folder with more room in SQLITE_TMPDIR"
            )

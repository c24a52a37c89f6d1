"""Vacuum: estimates of the space that it frees and needs, and the vacuum itself.

SQLite rewrites the whole file: into a temporary file, from there into the write-ahead log, and from
there back. PostgreSQL marks the space of dead rows as reusable; its files keep their size.
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

#: Bytes of the new file per second, measured with 311 MB on a busy cloud machine.
BYTES_PER_S = 100e6

#: SQLite's folders for temporary files; it takes the first writable one.
_TEMPORARY = ("/var/tmp", "/usr/tmp", "/tmp", ".")  # noqa: S108 - SQLite's own list


@dataclass(frozen=True, slots=True)
class Room:
    """Temporary space that a vacuum needs on one disk.

    Parameters
    ----------
    folder : Path
        A folder on the disk.
    needed, free : int
        Needed and free bytes.
    """

    folder: Path
    needed: int
    free: int


@dataclass(frozen=True, slots=True)
class VacuumPlan:
    """Estimates of a vacuum.

    Parameters
    ----------
    is_file : bool
        The database is SQLite, which returns space to the disk.
    bytes : int
        Present size of the database.
    freed : int
        Bytes that the vacuum frees, an estimate for PostgreSQL; half-empty pages add to it.
    seconds : float or None
        Approximate duration; None if unknown.
    rooms : tuple of Room
        Temporary space needed, one item per disk.
    """

    is_file: bool
    bytes: int
    freed: int
    seconds: float | None
    rooms: tuple[Room, ...]


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """Result of a vacuum: bytes of the database before and after."""

    before: int
    after: int


def plan_vacuum(store: Store) -> VacuumPlan:
    """Estimate a vacuum; nothing is written."""
    if not store.pruning.is_file:
        tables = store.pruning.table_spaces()
        dead = sum(table.bytes * table.dead / max(table.rows + table.dead, 1) for table in tables)
        return VacuumPlan(False, sum(table.bytes for table in tables), round(dead), None, ())
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
    """Return the space that a new file of `size` bytes needs on each disk."""
    if file is None:
        return ()
    needed: dict[int, Room] = {}
    # The copy is in the temporary folder first, and then in the log beside the file.
    for folder in (file.absolute().parent, temporary_folder()):
        disk = folder.stat().st_dev
        room = needed.get(disk)
        if room is None:
            needed[disk] = Room(folder, size, shutil.disk_usage(folder).free)
        else:
            needed[disk] = Room(room.folder, room.needed + size, room.free)
    return tuple(needed.values())


def temporary_folder() -> Path:
    """Return SQLite's folder for temporary files."""
    configured = [os.environ.get(name, "") for name in ("SQLITE_TMPDIR", "TMPDIR")]
    for name in (*configured, *_TEMPORARY):
        if name and Path(name).is_dir() and os.access(name, os.W_OK | os.X_OK):
            return Path(name).absolute()
    return Path.cwd()


def vacuum(store: Store) -> Vacuumed:
    """Free the space of removed rows.

    Raises
    ------
    StorageError
        A disk lacks the temporary space; nothing was changed.
    BusyError
        Another process is writing.
    """
    before = plan_vacuum(store)
    require_room(store.location, before.rooms)
    store.pruning.vacuum()
    return Vacuumed(before.bytes, plan_vacuum(store).bytes)


def require_room(location: str, rooms: Sequence[Room]) -> None:
    """Raise StorageError if a disk lacks the temporary space for a vacuum."""
    for room in rooms:
        if room.free < room.needed:
            mega = 1e6
            raise StorageError(
                f"{location}: a vacuum needs {room.needed / mega:,.0f} MB in {room.folder} for a "
                f"while, but {room.free / mega:,.0f} MB are free; free some, or name a "
                "folder with more room in SQLITE_TMPDIR"
            )

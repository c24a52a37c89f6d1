"""Files on network file systems, to which SQLite must not write.

SQLite's log is shared memory, which two hosts do not share, and locks of such file systems are
often no locks (sqlite.org/wal.html, "All processes using a database must be on the same host";
sqlite.org/faq.html, 5). So a database there is read, merged from, and not written.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import StorageError

#: Set to 1, it lets SQLite write there: where one host alone ever opens the file.
VARIABLE = "TUNEDB_ALLOW_NETWORK_FS"

#: As Linux names them (``/proc/filesystems``); the parts after ``fuse.`` are of user programs.
NETWORK = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "ceph", "lustre", "gpfs"),
        *("beegfs", "glusterfs", "orangefs", "pvfs2", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph"),
        *("fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "fuse.cvmfs2"),
    )
)

_MOUNTS = Path("/proc/self/mountinfo")


def refuse_network_file(path: Path | None) -> None:
    """Raise StorageError for a file that SQLite is about to write on a network file system."""
    if path is None or os.environ.get(VARIABLE) == "1":
        return
    kind = file_system_of(path)
    if kind in NETWORK:
        raise StorageError(
            f"{path}: on a network file system ({kind}), where SQLite can lose data; keep it on a "
            f"disk of this machine, share a PostgreSQL, or set {VARIABLE}=1 if no other host ever "
            "opens it"
        )


def file_system_of(path: Path, mounts: Path | None = None) -> str | None:
    """Return the kind of the file system of a path, or None where the system does not say.

    Parameters
    ----------
    path : Path
        It need not exist.
    mounts : Path or None
        Lines as proc(5) describes those of ``/proc/[pid]/mountinfo``, which it is where None.
    """
    try:
        text = (mounts or _MOUNTS).read_text(encoding="utf-8", errors="surrogateescape")
        place = f"{path.resolve()}/"
    except (OSError, RuntimeError):
        return None
    found: tuple[int, str | None] = (-1, None)
    for line in text.splitlines():
        before, dash, after = line.partition(" - ")
        fields = before.split(" ")
        if not dash or len(fields) < 5:
            continue
        point = f"{_unescaped(fields[4]).rstrip('/')}/"
        # A later mount covers an earlier one at the same place.
        if place.startswith(point) and len(point) >= found[0]:
            found = (len(point), after.split(" ")[0])
    return found[1]


def _unescaped(text: str) -> str:
    """Return a path without the octal escapes that the kernel writes for spaces and the like."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text

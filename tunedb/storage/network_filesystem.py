"""Detection of network file systems, on which SQLite must not write.

SQLite's log is shared memory, which two hosts do not share, and locks of such file systems are
often unreliable (sqlite.org/wal.html, "All processes using a database must be on the same host";
sqlite.org/faq.html, 5). A database on such a file system can be read and merged from only.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import StorageError

#: Environment variable; "1" allows writing, for a file that only one host ever opens.
VARIABLE = "TUNEDB_ALLOW_NETWORK_FS"

#: Linux names (``/proc/filesystems``); ``fuse.`` is followed by the name of a user program.
NETWORK = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "ceph", "lustre", "gpfs"),
        *("beegfs", "glusterfs", "orangefs", "pvfs2", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph"),
        *("fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "fuse.cvmfs2"),
    )
)

_MOUNTS = Path("/proc/self/mountinfo")


def refuse_network_file(path: Path | None) -> None:
    """Raise StorageError if SQLite would write this file on a network file system."""
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
    """Return the type of a path's file system, or None if the system does not tell.

    Parameters
    ----------
    path : Path
        A path that need not exist.
    mounts : Path or None
        File in the format of ``/proc/[pid]/mountinfo`` (proc(5)); None for that of this process.
    """
    try:
        text = (mounts or _MOUNTS).read_text(encoding="utf-8", errors="surrogateescape")
        resolved = f"{path.resolve()}/"
    except (OSError, RuntimeError):
        return None
    longest: tuple[int, str | None] = (-1, None)
    for line in text.splitlines():
        before, dash, after = line.partition(" - ")
        fields = before.split(" ")
        if not dash or len(fields) < 5:
            continue
        point = f"{_unescaped(fields[4]).rstrip('/')}/"
        # A later mount hides an earlier one at the same point.
        if resolved.startswith(point) and len(point) >= longest[0]:
            longest = (len(point), after.split(" ")[0])
    return longest[1]


def _unescaped(text: str) -> str:
    """Return a path without the octal escapes of mountinfo."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text

"""What databases tell each other: rows of tables, in chunks, that refer to one another by number.

Numbers are the giving side's own and mean nothing elsewhere. A row comes after all rows that it
refers to. Nothing here is believed: :mod:`tunedb.sharing.verify` looks at every row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from .selection import Selection

#: Table → its columns, in the order of a chunk's rows. Names without ``_id`` that are tables hold
#: the number of a row that came before. A ``digest`` is what the other side says, None where it
#: says nothing (bundles: everybody computes it). Bodies are not compressed; ``run_secs`` are
#: float64, little-endian; ``data`` of a feature is what table ``feature`` holds. A body that could
#: not be unpacked is None. Bundles number the tables in this order: new ones come last.
COLUMNS: dict[str, tuple[str, ...]] = {
    "source": ("id", "digest", "name", "kind", "store"),
    "session": ("id", "digest", "key", "started_at", "fingerprint"),
    "workload": ("id", "digest", "format", "body", "name", "tvm_version"),
    # The source says it; None of a database that did not attribute.
    "workload_alias": ("workload", "scheme", "key", "source"),
    "target": ("id", "digest", "kind", "config", "text"),
    "sketch": ("id", "digest", "body"),
    "tail": ("id", "digest", "body"),
    "args_info": ("id", "digest", "body"),
    "context": ("id", "digest", "body"),
    "feature_set": ("id", "name", "version", "columns"),
    "measurement": (
        *("id", "digest", "program_digest"),
        *("workload", "target", "sketch", "tail", "decisions"),
        *("status", "run_secs", "measured_at", "occurrence", "session", "source"),
        *("args_info", "origin", "donor", "all_cost", "context", "extra"),
    ),
    # Of a measurement of this stream by its number; one that was learnt later by both digests.
    "failure": (
        *("id", "digest", "measurement", "program_digest", "measurement_digest"),
        *("kind", "phase", "message", "seconds"),
        # The source says it; None for that of the measurement.
        "source",
    ),
    # Of the program of a measurement of this stream.
    "feature": ("measurement", "feature_set", "n_rows", "n_columns", "data"),
    "retraction": ("digest", "store", "subject", "reason"),
    "counter_set": ("id", "digest", "tool", "tool_version", "compute_capability", "counters"),
    # As a failure. ``counters`` are float64, little-endian.
    "launch": (
        *("id", "digest", "measurement", "program_digest", "measurement_digest"),
        *("number", "kernel", "threads"),
        *("block_x", "block_y", "block_z", "grid_x", "grid_y", "grid_z"),
        *("registers", "static_shared", "dynamic_shared", "seconds"),
        *("counter_set", "counters", "source"),
    ),
}


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of one table.

    Parameters
    ----------
    table : str
        A key of :data:`COLUMNS`.
    rows : list of tuple
        Values in the order of its columns; at most :data:`tunedb.limits.BATCH_ROWS`.
    """

    table: str
    rows: list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Position:
    """How far the rows of a database go, in its own numbers.

    Parameters
    ----------
    measurement_id, failure_id, launch_id : int
        The last measurement, failure and launch; 0 where there is none.
    measurement_digest : bytes or None
        Of the last measurement: another one under its number is another database.
    retractions : int
        How many there are; they are only ever added.
    """

    measurement_id: int = 0
    failure_id: int = 0
    measurement_digest: bytes | None = None
    retractions: int = 0
    launch_id: int = 0


class Peer(Protocol):
    """Another database that can be read: a file, a server, a bundle.

    Attributes
    ----------
    location : str
        For messages, without a password.
    store_key : str
        Which database it says that it is.
    total : int
        Measurements that it will give, for a progress bar; an estimate where there is a selection.
    """

    location: str
    store_key: str
    total: int

    def chunks(
        self, selection: Selection, since: Position | None = None, until: Position | None = None
    ) -> Iterator[Chunk]:
        """Yield what is selected, each row after those that it refers to.

        Parameters
        ----------
        selection : Selection
            What to give.
        since, until : Position or None
            Only measurements, failures and launches after and up to there. A bundle has no
            positions.
        """
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...

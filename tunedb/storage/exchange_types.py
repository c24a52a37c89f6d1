"""Types of an exchange: selections, chunks of rows, and verified rows to be merged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Protocol

from .. import identity
from ..identity import canonical_json
from ..launches import Launch
from ..records import Alias, Failure, Measurement, SourceKind, Trust
from .columns import MEASUREMENT
from .retractions import Retraction

# ---- Selections ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Selection:
    """Conditions that select records of a database. All must hold; an empty one always holds.

    Parameters
    ----------
    workloads : tuple of str
        Names or parts of names, or beginnings of digests in hexadecimal.
    targets : tuple of str
        Kinds (``llvm``), labels (``llvm skylake-avx512``), or JSON of some attributes.
    sources : tuple of str
        Names or last parts of paths, or beginnings of digests in hexadecimal.
    since : int
        Earliest time of measurement, in microseconds since 1970, UTC; 0 for any. Records without a
        time count as older than all others.
    best : int or None
        Number of the fastest records of each workload and target, to which :attr:`rest` adds
        others.
    rest : float
        With :attr:`best`: number of other records, slow and failed ones, as a share of `best`. A
        cost model trained on fast programs alone cannot recognise slow ones. They are spread evenly
        over the remaining ranks, and are the same on every machine.
    features : bool
        Include stored features.
    """

    workloads: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    since: int = 0
    best: int | None = None
    rest: float = 1.0
    features: bool = False

    @property
    def key(self) -> str:
        """Canonical JSON, which identifies the selection in watermarks."""
        return canonical_json(asdict(self)).decode()


EVERYTHING = Selection()


# ---- Chunks of rows ------------------------------------------------------------------------------
#
# Rows refer to one another by the ids of the sending database, which mean nothing elsewhere. A row
# comes after all rows to which it refers. Nothing is trusted: tunedb.exchange.verify checks all.

#: Columns of each table, in the order of a chunk's rows. A column named like a table has the id of
#: an earlier row. A ``digest`` is stated by the sending side; it is None in bundles, because
#: everybody computes it. Bodies are not compressed, and None if they could not be unpacked;
#: ``run_secs`` are float64, little-endian; ``data`` of a feature is that of table ``feature``.
#: Bundles number the tables in this order: new ones come last.
COLUMNS: dict[str, tuple[str, ...]] = {
    "source": ("id", "digest", "name", "kind", "store"),
    "session": ("id", "digest", "key", "started_at", "fingerprint"),
    "workload": ("id", "digest", "format", "body", "name", "tvm_version"),
    # ``source`` states the alias; None from revisions without attribution.
    "workload_alias": ("workload", "scheme", "key", "source"),
    "target": ("id", "digest", "kind", "config", "text"),
    "sketch": ("id", "digest", "body"),
    "tail": ("id", "digest", "body"),
    "args_info": ("id", "digest", "body"),
    "context": ("id", "digest", "body"),
    "feature_set": ("id", "name", "version", "columns"),
    "measurement": tuple(column.name for column in MEASUREMENT),
    # ``measurement`` is in this stream; a later failure has both digests instead.
    "failure": (
        *("id", "digest", "measurement", "program_digest", "measurement_digest"),
        *("kind", "phase", "message", "seconds"),
        # ``source`` states the failure; None for that of the measurement.
        "source",
    ),
    # Features of the program of ``measurement``, which is in this stream.
    "feature": ("measurement", "feature_set", "n_rows", "n_columns", "data"),
    "retraction": ("digest", "store", "subject", "reason"),
    "counter_set": ("id", "digest", "tool", "tool_version", "compute_capability", "counters"),
    # As for failures. ``counters`` are float64, little-endian.
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
    """Progress through the rows of a database, in its own ids.

    Parameters
    ----------
    measurement_id, failure_id, launch_id : int
        Last measurement, failure and launch; 0 if there is none.
    measurement_digest : bytes or None
        Digest of the last measurement: a different one under its id means a different database.
    retractions : int
        Number of retractions, which only grows.
    """

    measurement_id: int = 0
    failure_id: int = 0
    measurement_digest: bytes | None = None
    retractions: int = 0
    launch_id: int = 0


class Peer(Protocol):
    """Another database to be read: a file, a server, a bundle.

    Attributes
    ----------
    location : str
        Name in messages, without a password.
    store_key : str
        Its stated store key.
    total : int
        Number of measurements to come, for a progress bar; an estimate for a restricted selection.
    """

    location: str
    store_key: str
    total: int

    def chunks(
        self, selection: Selection, since: Position | None = None, until: Position | None = None
    ) -> Iterator[Chunk]:
        """Yield the selected rows, each after the rows to which it refers.

        Parameters
        ----------
        selection : Selection
            Records to send.
        since, until : Position or None
            Only measurements, failures and launches after and up to these. A bundle has no
            positions.
        """
        ...

    def close(self) -> None:
        """Release all resources."""
        ...


# ---- Verified rows -------------------------------------------------------------------------------

#: Databases whose rows are accepted under names that are trusted here: all, none, or these keys.
AcceptedNames = bool | Set[str]


def accepts(names: AcceptedNames, store: str) -> bool:
    """Return true if rows in the name of a database are accepted as its own."""
    return names if isinstance(names, bool) else store in names


@dataclass(frozen=True, slots=True)
class ForeignSource:
    """A source of another database, or of this one as another database has it.

    Parameters
    ----------
    name : str
        Unique name in its database.
    kind : SourceKind
        Way in which its rows came in there.
    store : str
        Key of its database.
    """

    name: str
    kind: SourceKind
    store: str
    digest: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        digest = identity.digest("source", self.store.encode(), self.name.encode())
        object.__setattr__(self, "digest", digest)


class KnownSource(NamedTuple):
    """A source that is stored here: id, digest and trust."""

    id: int
    digest: bytes
    trust: int


def is_rejected(
    source: ForeignSource, known: KnownSource | None, store_key: str, names: AcceptedNames
) -> bool:
    """Return true if new records of a source must not be accepted from others.

    Nothing is signed, so anybody can write another's name into a source. New records of a source
    that is trusted here, or that is own, would be served; they are accepted only if the user
    vouches for them.

    Parameters
    ----------
    source : ForeignSource
        Source of the records.
    known : KnownSource or None
        The same source here.
    store_key : str
        Key of this database.
    names : bool or set of str
        Databases for which the user vouches.
    """
    if accepts(names, source.store):
        return False
    return source.store == store_key or (known is not None and known.trust >= Trust.VERIFIED)


class Claim(NamedTuple):
    """A stored record, and another source that has it too.

    Parameters
    ----------
    program, measurement : bytes
        Digests.
    source : int
        Position in :attr:`MergeBatch.sources`.
    valid : bool
        True if the record may be served once its source is trusted.
    """

    program: bytes
    measurement: bytes
    source: int
    valid: bool


class ForeignFailure(NamedTuple):
    """Cause of the measurement with these digests; `source` is the position of its source."""

    program: bytes
    measurement: bytes
    failure: Failure
    source: int


class ForeignLaunch(NamedTuple):
    """A kernel launched by the measurement with these digests; as :class:`ForeignFailure`."""

    program: bytes
    measurement: bytes
    launch: Launch
    source: int


class ForeignAlias(NamedTuple):
    """An alias of the workload with this digest; as :class:`ForeignFailure`."""

    workload: bytes
    alias: Alias
    source: int


class ForeignFeatures(NamedTuple):
    """Rows of a feature set for the program with this digest.

    ``data`` is one frame (:mod:`tunedb.features.blobs`), `columns` are the names of the set's
    columns, `source` is the position of the source of the record with which they came.
    """

    program: bytes
    name: str
    version: int
    columns: tuple[str, ...]
    n_rows: int
    n_columns: int
    data: bytes
    source: int


@dataclass(frozen=True, slots=True)
class MergeBatch:
    """Verified rows to be written in one transaction.

    Parameters
    ----------
    sources : sequence of ForeignSource
        Sources to which other rows refer by position; those of known records are included.
    measurements : sequence of Measurement
        New measurements, in the order of their insertion.
    source_of : sequence of int
        Position of the source of each measurement.
    claims : sequence of Claim
        Known records that may be assigned to another source.
    failures, launches, aliases, features, retractions : sequence
        Other new rows.
    accept_trusted_names : bool or set of str
        Databases whose rows are accepted under names that are trusted here (:func:`is_rejected`).
    """

    sources: Sequence[ForeignSource] = ()
    measurements: Sequence[Measurement] = ()
    source_of: Sequence[int] = ()
    claims: Sequence[Claim] = ()
    failures: Sequence[ForeignFailure] = ()
    aliases: Sequence[ForeignAlias] = ()
    features: Sequence[ForeignFeatures] = ()
    retractions: Sequence[Retraction] = ()
    launches: Sequence[ForeignLaunch] = ()
    accept_trusted_names: AcceptedNames = False

    @property
    def statements(
        self,
    ) -> Mapping[str, Sequence[ForeignFailure | ForeignLaunch | ForeignAlias | ForeignFeatures]]:
        """Failures, launches, aliases and features by table."""
        return {
            "failure": self.failures,
            "launch": self.launches,
            "workload_alias": self.aliases,
            "feature": self.features,
        }

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to write."""
        parts = (self.sources, self.measurements, self.claims, self.failures, self.aliases)
        return not any((*parts, self.features, self.retractions, self.launches))

    def split_retractions(self, trusted: Set[str]) -> tuple[list[Retraction], list[Retraction]]:
        """Return the accepted retractions, and those of databases that are trusted here.

        Parameters
        ----------
        trusted : set of str
            Keys of the databases that are trusted here.
        """
        accepted: list[Retraction] = []
        rejected: list[Retraction] = []
        for row in self.retractions:
            is_accepted = row.store not in trusted or accepts(self.accept_trusted_names, row.store)
            (accepted if is_accepted else rejected).append(row)
        return accepted, rejected


@dataclass(frozen=True, slots=True)
class MergeResult:
    """Outcome of one transaction of a merge.

    Parameters
    ----------
    new : mapping
        Number of new measurements by position of the source.
    rejected : mapping
        Number of measurements rejected because their source is trusted here, by position of the
        source.
    rejected_statements : mapping
        Number of rejected failures, launches, aliases and features, by table and position of the
        source.
    moved : int
        Number of known records assigned to another source.
    aliases : mapping
        Number of new aliases by position of the source.
    failures, features, retractions, launches : int
        Numbers of new rows.
    rejected_retractions : sequence of Retraction
        Retractions rejected because their database is trusted here.
    relayed_retractions : sequence of Retraction
        Retractions of databases that do not push with this account of a server.
    rejected_sets : mapping
        Number of rejected rows of features by name and version of a set that has other columns
        here.
    """

    new: Mapping[int, int] = field(default_factory=dict)
    rejected: Mapping[int, int] = field(default_factory=dict)
    rejected_statements: Mapping[tuple[str, int], int] = field(default_factory=dict)
    aliases: Mapping[int, int] = field(default_factory=dict)
    moved: int = 0
    failures: int = 0
    features: int = 0
    retractions: int = 0
    launches: int = 0
    rejected_retractions: Sequence[Retraction] = ()
    relayed_retractions: Sequence[Retraction] = ()
    rejected_sets: Mapping[str, int] = field(default_factory=dict)

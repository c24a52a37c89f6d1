"""What an exchange brings, after every row was looked at: from the merge to the store."""

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

# ---- Which records are meant: a part of a database that is merged, bundled, pulled or kept -------


@dataclass(frozen=True, slots=True)
class Selection:
    """Which records are meant. All conditions hold together; an empty one holds for everything.

    Parameters
    ----------
    workloads : tuple of str
        Names, or beginnings of digests in hexadecimal.
    targets : tuple of str
        Kinds (``llvm``) or labels (``llvm skylake-avx512``).
    sources : tuple of str
        Names, or beginnings of digests in hexadecimal.
    since : int
        Measured at this time or later, in microseconds since 1970, UTC; 0 for any time. A record
        without a time is older than everything.
    best : int or None
        Only so many of the fastest records of each workload and target, and beside them
        :attr:`rest`.
    rest : float
        With :attr:`best`: how many of the other records, slow and failed ones, as a share of
        `best`: a cost model that has seen fast programs alone cannot tell slow ones. They are
        spread evenly over the ranks of what is left, and are the same on every machine.
    features : bool
        Give stored features too.
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
        """Canonical JSON, by which a watermark knows which exchange it is of."""
        return canonical_json(asdict(self)).decode()


EVERYTHING = Selection()


# ---- What databases tell each other: rows of tables, in chunks, that refer to one another by -----
# number
#
# Numbers are the giving side's own and mean nothing elsewhere. A row comes after all rows that it
# refers to. Nothing here is believed: :mod:`tunedb.exchange.verify` looks at every row.

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
    "measurement": tuple(column.name for column in MEASUREMENT),
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


# ---- Verified rows -------------------------------------------------------------------------------

#: Whose word counts: everybody's, nobody's, or that of the databases with these keys.
Believe = bool | Set[str]


def believes(believe: Believe, store: str) -> bool:
    """Tell whether what comes in the name of a database is believed to come from it."""
    return believe if isinstance(believe, bool) else store in believe


@dataclass(frozen=True, slots=True)
class ForeignSource:
    """A source of another database, or of this one as another knows it.

    Parameters
    ----------
    name : str
        Unique inside its database.
    kind : SourceKind
        How its rows came in there.
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


class Standing(NamedTuple):
    """What a database makes of a source: its local number, its identity and its trust."""

    id: int
    digest: bytes
    trust: int


def refuses(source: ForeignSource, standing: Standing | None, ours: str, believe: Believe) -> bool:
    """Tell whether new records of a source are not taken from somebody else.

    Nothing is signed, so anybody can write another's name into a source. Records of one that is
    trusted here, or that is ours, would be served; they are taken only where the user says that
    they really come from it.

    Parameters
    ----------
    source : ForeignSource
        Under whose name they come.
    standing : Standing or None
        What is known of it here.
    ours : str
        Key of the database here.
    believe : bool or set of str
        Whose word counts.
    """
    if believes(believe, source.store):
        return False
    return source.store == ours or (standing is not None and standing.trust >= Trust.VERIFIED)


class Claim(NamedTuple):
    """A record that is known, under the source that somebody gives it.

    Parameters
    ----------
    program, measurement : bytes
        Digests.
    source : int
        Which of :attr:`Incoming.sources`.
    valid : bool
        Whether it may be an answer, where its source is trusted.
    """

    program: bytes
    measurement: bytes
    source: int
    valid: bool


class Learnt(NamedTuple):
    """Why a measurement failed; both digests say of which it is.

    The last one is which of :attr:`Incoming.sources` says so.
    """

    program: bytes
    measurement: bytes
    failure: Failure
    source: int


class Launched(NamedTuple):
    """A kernel that a measurement launched; as :class:`Learnt`."""

    program: bytes
    measurement: bytes
    launch: Launch
    source: int


class Named(NamedTuple):
    """A name under which a source knows the workload with a digest; as :class:`Learnt`."""

    workload: bytes
    alias: Alias
    source: int


class FeatureRows(NamedTuple):
    """Rows of a feature set for the program with a digest; `columns` are the set's names.

    The rows are one frame (:mod:`tunedb.features.blobs`). The last one is which of
    :attr:`Incoming.sources` gave the record that they came with.
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
class Incoming:
    """What is written in one transaction. Everything was verified.

    Parameters
    ----------
    sources : sequence of ForeignSource
        To which the others refer by position. One that gives known records alone gets a row too.
    measurements : sequence of Measurement
        That are not known, in the order of their insertion.
    source_of : sequence of int
        The source of each.
    claims : sequence of Claim
        Known records that may belong to another source from now on.
    failures, launches, aliases, features, retractions : sequence
        What else is not known.
    believe : bool or set of str
        Whose records are taken although their source is trusted here (:func:`refuses`).
    """

    sources: Sequence[ForeignSource] = ()
    measurements: Sequence[Measurement] = ()
    source_of: Sequence[int] = ()
    claims: Sequence[Claim] = ()
    failures: Sequence[Learnt] = ()
    aliases: Sequence[Named] = ()
    features: Sequence[FeatureRows] = ()
    retractions: Sequence[Retraction] = ()
    launches: Sequence[Launched] = ()
    believe: Believe = False

    @property
    def words(self) -> Mapping[str, Sequence[Learnt | Launched | Named | FeatureRows]]:
        """What sources say of records, workloads and programs, by table."""
        return {
            "failure": self.failures,
            "launch": self.launches,
            "workload_alias": self.aliases,
            "feature": self.features,
        }

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        parts = (self.sources, self.measurements, self.claims, self.failures, self.aliases)
        return not any((*parts, self.features, self.retractions, self.launches))

    def sorted_out(self, trusted: Set[str]) -> tuple[list[Retraction], list[Retraction]]:
        """Return the retractions that are taken, and those in the name of somebody trusted here.

        Parameters
        ----------
        trusted : set of str
            Keys of the databases that are trusted here.
        """
        taken: list[Retraction] = []
        others: list[Retraction] = []
        for row in self.retractions:
            refused = row.store in trusted and not believes(self.believe, row.store)
            (others if refused else taken).append(row)
        return taken, others


@dataclass(frozen=True, slots=True)
class Merged:
    """What came of a transaction.

    Parameters
    ----------
    new : mapping
        Position of a source → how many of its measurements were new.
    refused : mapping
        Position of a source → how many were not taken, because it is trusted here.
    refused_words : mapping
        Table and position of a source → rows that say something of others' records and workloads
        and were not taken for the same reason.
    moved : int
        Known records that belong to another source now.
    aliases : mapping
        Position of a source → how many names that it gives workloads were new.
    failures, features, retractions, launches : int
        How many were new.
    refused_retractions : sequence of Retraction
        In the name of a database that is trusted here.
    relayed_retractions : sequence of Retraction
        In the name of a database that does not push with this account of a server.
    refused_sets : mapping
        Name and version of a feature set with other columns here → rows that were not taken.
    """

    new: Mapping[int, int] = field(default_factory=dict)
    refused: Mapping[int, int] = field(default_factory=dict)
    refused_words: Mapping[tuple[str, int], int] = field(default_factory=dict)
    aliases: Mapping[int, int] = field(default_factory=dict)
    moved: int = 0
    failures: int = 0
    features: int = 0
    retractions: int = 0
    launches: int = 0
    refused_retractions: Sequence[Retraction] = ()
    relayed_retractions: Sequence[Retraction] = ()
    refused_sets: Mapping[str, int] = field(default_factory=dict)

"""What an exchange brings, after every row was looked at: from the merge to the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from .. import identity
from ..launches import Launch
from ..records import Alias, Failure, Measurement, SourceKind, Trust
from ..retractions import Retraction

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

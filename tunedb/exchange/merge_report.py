"""Report of a merge."""

from __future__ import annotations

from dataclasses import dataclass, field

from .. import limits
from ..identity import clean_text

#: An alias, because a report has a field ``bytes``.
Digest = bytes


@dataclass(slots=True)
class SourceTally:
    """Numbers of records of one source.

    Parameters
    ----------
    name, store : str
        Name of the source, and key of its database.
    new, known, rejected : int
        Numbers of new, known and rejected records.
    aliases : int
        Number of new aliases that it states.
    """

    name: str
    store: str
    new: int = 0
    known: int = 0
    rejected: int = 0
    aliases: int = 0


@dataclass(slots=True)
class RejectionCount:
    """Number of rows rejected for one reason.

    Parameters
    ----------
    count : int
        Number of rows.
    example : str
        The first of them.
    """

    count: int
    example: str


@dataclass(slots=True)
class MergeReport:
    """Numbers of rows read and written by a merge, updated as it proceeds.

    Parameters
    ----------
    location, store_key : str
        The other database without a password, and its stated store key.
    dry_run : bool
        True if nothing was written; all numbers are then expectations.
    total : int
        Number of records to read, if known.
    read : int
        Number of records read.
    sources : dict
        :class:`SourceTally` by digest of the source. Records of rejected sources are under ``b""``.
    reasons : dict
        :class:`RejectionCount` by reason, for rows of all tables.
    workloads, programs, failures, launches, features, retractions : int
        Numbers of new rows.
    moved : int
        Number of known records assigned to another source.
    bytes : int
        Size of all read values.
    seconds : float
        Duration.
    """

    location: str
    store_key: str
    dry_run: bool = False
    total: int = 0
    read: int = 0
    sources: dict[Digest, SourceTally] = field(default_factory=dict)
    reasons: dict[str, RejectionCount] = field(default_factory=dict)
    workloads: int = 0
    programs: int = 0
    failures: int = 0
    launches: int = 0
    features: int = 0
    retractions: int = 0
    moved: int = 0
    bytes: int = 0
    seconds: float = 0.0

    @property
    def new(self) -> int:
        """Number of new records."""
        return sum(tally.new for tally in self.sources.values())

    @property
    def aliases(self) -> int:
        """Number of new aliases."""
        return sum(tally.aliases for tally in self.sources.values())

    @property
    def known(self) -> int:
        """Number of known records."""
        return sum(tally.known for tally in self.sources.values())

    @property
    def rejected(self) -> int:
        """Number of rejected rows of all tables."""
        return sum(reason.count for reason in self.reasons.values())

    def reject(self, reason: str, example: str, count: int = 1) -> None:
        """Count rejected rows."""
        reason = clean_text(reason)
        if reason not in self.reasons and len(self.reasons) >= limits.MAX_REASONS:
            reason = "other reasons"
        if reason in self.reasons:
            self.reasons[reason].count += count
        else:
            self.reasons[reason] = RejectionCount(count, clean_text(example))

    def tally(self, digest: Digest, name: str, store: str) -> SourceTally:
        """Return the counts of a source."""
        if digest not in self.sources:
            if len(self.sources) >= limits.MAX_GROUPS:
                digest, name, store = b"other", "other sources", ""
            self.sources.setdefault(digest, SourceTally(name, store))
        return self.sources[digest]

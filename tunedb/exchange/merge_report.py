"""What a merge came to."""

from __future__ import annotations

from dataclasses import dataclass, field

from .. import limits
from ..identity import clean_text

#: A report has a number of bytes, too.
Digest = bytes


@dataclass(slots=True)
class SourceTally:
    """Records of one source.

    Parameters
    ----------
    name, store : str
        What it is called, and the key of its database.
    new, known, rejected : int
        Those that the database lacked, those it had, and those that were not taken.
    aliases : int
        Names of workloads that it says and the database lacked.
    """

    name: str
    store: str
    new: int = 0
    known: int = 0
    rejected: int = 0
    aliases: int = 0


@dataclass(slots=True)
class Reason:
    """Why rows were not taken.

    Parameters
    ----------
    count : int
        How many.
    example : str
        The first of them.
    """

    count: int
    example: str


@dataclass(slots=True)
class MergeReport:
    """What a merge read and wrote, filled in as it goes on.

    Parameters
    ----------
    location, store_key : str
        The other database, without a password, and which one it says that it is.
    dry_run : bool
        Nothing was written; all numbers are what it would have been.
    total : int
        Records that there are to read, where that is known.
    read : int
        Records that were looked at.
    sources : dict
        Digest of a source → :class:`SourceTally`. Records whose source was not taken stand under
        ``b""``.
    reasons : dict
        Reason → :class:`Reason`, for rows of all tables.
    workloads, programs, failures, launches, features, retractions : int
        How many were new.
    moved : int
        Known records that belong to another source now.
    bytes : int
        Size of the values that were read.
    seconds : float
        How long it took.
    """

    location: str
    store_key: str
    dry_run: bool = False
    total: int = 0
    read: int = 0
    sources: dict[Digest, SourceTally] = field(default_factory=dict)
    reasons: dict[str, Reason] = field(default_factory=dict)
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
        """Records that the database lacked."""
        return sum(tally.new for tally in self.sources.values())

    @property
    def aliases(self) -> int:
        """Names of workloads that it lacked."""
        return sum(tally.aliases for tally in self.sources.values())

    @property
    def known(self) -> int:
        """Records that it had."""
        return sum(tally.known for tally in self.sources.values())

    @property
    def rejected(self) -> int:
        """Rows of any kind that were not taken."""
        return sum(reason.count for reason in self.reasons.values())

    def reject(self, reason: str, example: str, count: int = 1) -> None:
        """Count rows that are not taken."""
        reason = clean_text(reason)
        if reason not in self.reasons and len(self.reasons) >= limits.MAX_REASONS:
            reason = "other reasons"
        known = self.reasons.get(reason)
        if known is None:
            self.reasons[reason] = Reason(count, clean_text(example))
        else:
            known.count += count

    def tally(self, digest: Digest, name: str, store: str) -> SourceTally:
        """Return the numbers of a source."""
        found = self.sources.get(digest)
        if found is None:
            if len(self.sources) >= limits.MAX_GROUPS:
                digest, name, store = b"other", "other sources", ""
            found = self.sources.setdefault(digest, SourceTally(name, store))
        return found

"""Trust: which records are served, by the trust of sources and by retractions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection

from .. import identity
from ..errors import FormatError, StorageError, UsageError
from ..records import Trust
from . import statements
from .answers import Answers
from .batches import Batches
from .database import Database
from .deadlines import long_statements
from .loader import Loader
from .retractions import ALIASES, Retraction, Subject
from .rows import now
from .sources import Sources


class TrustControl:
    """``store.trust``: decides which records are served."""

    def __init__(
        self, db: Database, loader: Loader, batches: Batches, answers: Answers, sources: Sources
    ) -> None:
        self._db = db
        self._loader = loader
        self._batches = batches
        self._answers = answers
        self._sources = sources

    def __repr__(self) -> str:
        return f"<trust of {self._db.location}>"

    # ------------------------------------------------------------------ trust

    def set(self, source_id: int, trust: Trust, *, dry_run: bool = False) -> int:
        """Say how far a source is believed from now on.

        Nothing of its workloads changes: a script that it never gave is not learnt by this, and
        what an own source once gave stays.

        Parameters
        ----------
        source_id : int
            Local number of the source.
        trust : Trust
            How far.
        dry_run : bool
            Change nothing.

        Returns
        -------
        int
            How many records are served now and were not before, or the other way round.

        Raises
        ------
        NotFoundError
            There is no such source.
        FormatError
            Records of a foreign source hold what no trace may (:mod:`tunedb.programs.allowlist`);
            nothing changes.
        """
        before = self._sources.get(source_id)
        rising = before.trust < Trust.VERIFIED <= trust
        last = 0
        if rising:
            # Outside the transaction, because a million traces take minutes.
            last = self._batches.last_id()
            self._require_allowed(source_id, before.name)
        with self._db.transaction() as connection:
            if rising:
                self._require_allowed(source_id, before.name, after=last)
            statements.set_trust(connection, source=source_id, new_trust=int(trust))
            with long_statements(connection):
                changed = statements.serve_source(connection, source=source_id).rowcount
            if dry_run:
                connection.rollback()
        self._loader.forget_sources()
        return changed

    def _require_allowed(self, source_id: int, name: str, after: int = 0) -> None:
        """Raise FormatError where records of a source must not reach TVM."""
        refused = list(self._answers.refused(source_id, after=after))
        if not refused:
            return
        first = refused[0]
        raise FormatError(
            f"source {name!r}: {len(refused):,} of its records must not reach TVM; the first is "
            f"{first.record_id} ({first.reason}); take them back with: "
            f"tunedb retract --source {source_id} --not-allowed --reason TEXT"
        )

    # ------------------------------------------------------------------ retractions

    def retract(self, ids: Iterable[int], reason: str) -> int:
        """Take records back: they stay stored and are never served again.

        Parameters
        ----------
        ids : iterable of int
            Ids of records.
        reason : str
            Why; kept with the retraction.

        Returns
        -------
        int
            How many were not retracted before.

        Raises
        ------
        NotFoundError
            An id that does not exist; nothing is retracted then.
        UsageError
            There is no reason.
        """
        digests = [self._loader.record_by_id(id_).measurement.digest for id_ in ids]
        return self._take_back("measurement", digests, reason)[0]

    def retract_source(self, source_id: int, reason: str) -> int:
        """Take all records and aliases of a source back, those too that come later.

        Returns
        -------
        int
            How many records are no longer served.

        Raises
        ------
        NotFoundError, UsageError
            As :meth:`retract`.
        """
        return self._take_back("source", [self._digest(source_id)], reason)[1]

    def retract_aliases(self, source_id: int, reason: str) -> None:
        """Take back the names that a source gives workloads, those too that come later.

        Its records stay as they are; :meth:`retract_source` takes back both.

        Raises
        ------
        NotFoundError, UsageError
            As :meth:`retract`.
        """
        self._take_back(ALIASES, [self._digest(source_id)], reason)

    def retract_session(self, session_id: int, reason: str) -> int:
        """Take all records of a session back, those too that come later.

        Returns
        -------
        int
            How many records are no longer served.

        Raises
        ------
        NotFoundError, UsageError
            As :meth:`retract`.
        """
        return self._take_back("session", [self._loader.session(session_id).digest], reason)[1]

    def _digest(self, source_id: int) -> bytes:
        return bytes(self._db.row_by_id("source", source_id).digest)

    def _take_back(
        self, subject: Subject, digests: Sequence[bytes], reason: str
    ) -> tuple[int, int]:
        """Retract in this database's name; return what was new and what stopped being served."""
        if not reason:
            raise UsageError("a retraction needs a reason")
        if not self._db.is_owner:
            raise StorageError(
                f"{self._db.location}: only the server's owner retracts records there; "
                "retract your own in your database, and run: tunedb push"
            )
        ours = self._db.key
        rows = [Retraction(digest, ours, subject, reason) for digest in digests]
        with self._db.transaction() as connection:
            return insert_retractions(connection, rows)


def insert_retractions(connection: Connection, rows: Sequence[Retraction]) -> tuple[int, int]:
    """Add retractions inside a transaction, and stop serving what they are of.

    Parameters
    ----------
    connection : Connection
        The writing one, in a transaction.
    rows : sequence of Retraction
        Anybody's. Those of others count for their own sources alone.

    Returns
    -------
    new : int
        How many were not known before.
    stopped : int
        How many records stopped being served.
    """
    moment = now()
    new = statements.insert["retraction"].many(
        connection,
        [
            {
                "digest": row.digest,
                "store": row.store,
                "subject": row.subject,
                "reason": identity.clean_text(row.reason),
                "created_at": moment,
            }
            for row in rows
        ],
    )
    if not new:
        return 0, 0
    with long_statements(connection):
        return new, statements.stop_serving(connection)

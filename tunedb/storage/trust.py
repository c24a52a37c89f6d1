"""Trust: decides by the trust in sources and by retractions which records are served."""

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
        """Set the trust in a source.

        The workloads of the source do not change: neither a script that it could not give before is
        added, nor a script removed that it gave when it was own.

        Parameters
        ----------
        source_id : int
            Id of the source.
        trust : Trust
            The new trust.
        dry_run : bool
            Roll the change back.

        Returns
        -------
        int
            Number of records that started or stopped being served.

        Raises
        ------
        NotFoundError
            The database has no such source.
        FormatError
            Records of a foreign source have content that no trace may have
            (:mod:`tunedb.programs.allowlist`); nothing changes.
        """
        source = self._sources.get(source_id)
        checked = None
        if source.trust < Trust.VERIFIED <= trust:
            # Outside the transaction, because a million traces take minutes.
            checked = self._batches.last_id()
            self._require_allowed(source_id, source.name)
        return self._set(source_id, trust, dry_run, checked)

    def _set(
        self, source_id: int, trust: Trust, dry_run: bool = False, checked: int | None = None
    ) -> int:
        """Set a trust; records after that with the id `checked` are checked."""
        with self._db.transaction() as connection:
            if checked is not None:
                name = self._sources.get(source_id).name
                self._require_allowed(source_id, name, after=checked)
            statements.set_trust(connection, source=source_id, new_trust=int(trust))
            with long_statements(connection):
                changed = statements.serve_source(connection, source=source_id).rowcount
            if dry_run:
                connection.rollback()
        self._loader.forget_sources()
        return changed

    def _require_allowed(self, source_id: int, name: str, after: int = 0) -> None:
        """Raise FormatError if records of a source must not reach TVM."""
        rejected = list(self._answers.rejected(source_id, after=after))
        if not rejected:
            return
        first = rejected[0]
        raise FormatError(
            f"source {name!r}: {len(rejected):,} of its records must not reach TVM; the first is "
            f"{first.record_id} ({first.reason}); retract them with: "
            f"tunedb retract --source {source_id} --not-allowed --reason TEXT"
        )

    # ------------------------------------------------------------------ retractions

    def retract(self, ids: Iterable[int], reason: str) -> int:
        """Retract records: they stay stored and are never served again.

        Parameters
        ----------
        ids : iterable of int
            Ids of the records.
        reason : str
            Reason, kept with the retraction.

        Returns
        -------
        int
            Number of records that were not retracted before.

        Raises
        ------
        NotFoundError
            An id does not exist; nothing is retracted.
        UsageError
            The reason is empty.
        StorageError
            This account does not own the server.
        """
        digests = [self._loader.record_by_id(id_).measurement.digest for id_ in ids]
        return self._retract("measurement", digests, reason)[0]

    def retract_source(self, source_id: int, reason: str) -> int:
        """Retract all records and aliases of a source, including later ones.

        Parameters
        ----------
        source_id : int
            Id of the source.
        reason : str
            Reason, kept with the retraction.

        Returns
        -------
        int
            Number of records that stopped being served.

        Raises
        ------
        NotFoundError, UsageError, StorageError
            As for :meth:`retract`.
        """
        return self._retract("source", [self._digest(source_id)], reason)[1]

    def retract_aliases(self, source_id: int, reason: str) -> None:
        """Retract the aliases that a source gives workloads, including later ones.

        Its records are not affected; :meth:`retract_source` retracts both.

        Parameters
        ----------
        source_id : int
            Id of the source.
        reason : str
            Reason, kept with the retraction.

        Raises
        ------
        NotFoundError, UsageError, StorageError
            As for :meth:`retract`.
        """
        self._retract(ALIASES, [self._digest(source_id)], reason)

    def retract_session(self, session_id: int, reason: str) -> int:
        """Retract all records of a session, including later ones.

        Parameters
        ----------
        session_id : int
            Id of the session.
        reason : str
            Reason, kept with the retraction.

        Returns
        -------
        int
            Number of records that stopped being served.

        Raises
        ------
        NotFoundError, UsageError, StorageError
            As for :meth:`retract`.
        """
        return self._retract("session", [self._loader.session(session_id).digest], reason)[1]

    def _digest(self, source_id: int) -> bytes:
        return bytes(self._db.row_by_id("source", source_id).digest)

    def _retract(self, subject: Subject, digests: Sequence[bytes], reason: str) -> tuple[int, int]:
        """Retract digests in this database's name; return the counts of new and stopped ones."""
        if not reason:
            raise UsageError("a retraction needs a reason")
        if not self._db.is_owner:
            raise StorageError(
                f"{self._db.location}: only the server's owner retracts records there; "
                "retract your own in your database, and run: tunedb push"
            )
        rows = [Retraction(digest, self._db.key, subject, reason) for digest in digests]
        with self._db.transaction() as connection:
            return insert_retractions(connection, rows)


def insert_retractions(connection: Connection, rows: Sequence[Retraction]) -> tuple[int, int]:
    """Insert retractions in a transaction, and stop serving the retracted records.

    Parameters
    ----------
    connection : Connection
        The writing connection, in a transaction.
    rows : sequence of Retraction
        Retractions of any database; those of others count for their own sources only.

    Returns
    -------
    new : int
        Number of retractions that were not stored before.
    stopped : int
        Number of records that stopped being served.
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

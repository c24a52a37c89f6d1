"""Writing what decides which records are served: the trust of sources, and retractions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager

from sqlalchemy import Connection

from .. import identity
from ..errors import FormatError, StorageError, UsageError
from ..records import Trust
from . import statements
from .deadlines import unhurried
from .guards import Guards
from .queries import Query
from .retractions import ALIASES, Retraction, Subject
from .rows import now


class Governing(ABC):
    """The part of :class:`~.store.Store` that decides what is served; its guarantees hold."""

    query: Query
    location: str
    _guards: Guards

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[Connection]:
        """Yield the writer's connection inside one write transaction."""

    # ------------------------------------------------------------------ trust

    def trust_source(self, source_id: int, trust: Trust, *, dry_run: bool = False) -> int:
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
        before = self.query.source(source_id)
        rising = before.trust < Trust.VERIFIED <= trust
        last = 0
        if rising:
            # Outside the transaction, because a million traces take minutes.
            last = self.query.last_record()
            self._require_allowed(source_id, before.name)
        with self._transaction() as connection:
            if rising:
                self._require_allowed(source_id, before.name, after=last)
            statements.set_trust(connection, source=source_id, new_trust=int(trust))
            with unhurried(connection):
                changed = statements.serve_source(connection, source=source_id).rowcount
            if dry_run:
                connection.rollback()
        self.query.forget_sources()
        return changed

    def _require_allowed(self, source_id: int, name: str, after: int = 0) -> None:
        """Raise FormatError where records of a source must not reach TVM."""
        refused = list(self.query.refused_records(source_id, after=after))
        if not refused:
            return
        first = refused[0]
        raise FormatError(
            f"source {name!r}: {len(refused):,} of its records must not reach TVM; the first is "
            f"{first.record_id} ({first.reason}); take them back with: "
            f"tunedb retract --source {source_id} --not-allowed --reason TEXT"
        )

    # ------------------------------------------------------------------ accounts of a server

    def register(self, store_key: str) -> None:
        """Register a database that pushes with this account of a server; the first one counts.

        From then on this account alone speaks for it there. A file has no accounts.

        Parameters
        ----------
        store_key : str
            Key of the database.

        Raises
        ------
        StorageError
            It is registered with another account.
        """
        if self.query.is_file:
            return
        ours, known = self.query.account(store_key)
        if known is None:
            with self._transaction() as connection:
                statements.insert["account"](
                    connection, store=store_key, role=ours, registered_at=now()
                )
            ours, known = self.query.account(store_key)
        if known != ours and not self._guards.is_owner:
            mended = f"account SET role = '{ours}' WHERE store = '{store_key}'"
            raise StorageError(
                f"{self.location}: database {store_key} pushes as {known}, but this account is "
                f"{ours}; use that account, or ask the server's owner to run: UPDATE {mended}"
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
        digests = [self.query.digest_of(id_) for id_ in ids]
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
        return self._take_back("source", [self.query.source_digest(source_id)], reason)[1]

    def retract_aliases(self, source_id: int, reason: str) -> None:
        """Take back the names that a source gives workloads, those too that come later.

        Its records stay as they are; :meth:`retract_source` takes back both.

        Raises
        ------
        NotFoundError, UsageError
            As :meth:`retract`.
        """
        self._take_back(ALIASES, [self.query.source_digest(source_id)], reason)

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
        return self._take_back("session", [self.query.session(session_id).digest], reason)[1]

    def _take_back(
        self, subject: Subject, digests: Sequence[bytes], reason: str
    ) -> tuple[int, int]:
        """Retract in this database's name; return what was new and what stopped being served."""
        if not reason:
            raise UsageError("a retraction needs a reason")
        if not self._guards.is_owner:
            raise StorageError(
                f"{self.location}: only the server's owner retracts records there; retract your "
                "own in your database, and run: tunedb push"
            )
        ours = self.query.store_key
        rows = [Retraction(digest, ours, subject, reason) for digest in digests]
        with self._transaction() as connection:
            return self._add_retractions(connection, rows)

    def add_retractions(self, connection: Connection, rows: Sequence[Retraction]) -> int:
        """Add retractions inside a transaction, and stop serving what they are of.

        Parameters
        ----------
        connection : Connection
            The writer's, of the transaction that is going on.
        rows : sequence of Retraction
            Anybody's. Those of others count for their own sources alone.

        Returns
        -------
        int
            How many were not known before.
        """
        return self._add_retractions(connection, rows)[0]

    def _add_retractions(
        self, connection: Connection, rows: Sequence[Retraction]
    ) -> tuple[int, int]:
        """Return how many were new, and how many records stopped being served."""
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
        with unhurried(connection):
            return new, statements.stop_serving(connection)

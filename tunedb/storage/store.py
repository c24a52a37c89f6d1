"""The store: a database of tuning records.

Guarantees of :class:`Store`, on SQLite and PostgreSQL alike:

Durability
    Rows survive ``kill -9`` of any process once the method that wrote them has returned.
Atomicity
    Readers see all of a batch or nothing of it.
Idempotence
    Rows are identified by digest; adding a row again changes nothing.
Order
    Measurement ids grow in the order of insertion.
Threads and processes
    Any thread may use a store, one at a time; any number of processes may use one database.
"""

from __future__ import annotations

import logging
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from sqlalchemy import func, select
from sqlalchemy.engine import URL

from .. import limits
from ..errors import StorageError
from ..records import Status
from ..results import Counts
from ..system.notebook import facts_html
from . import approval, guards, schema, versions
from .answers import Answers
from .batches import Batches
from .database import Database
from .engine import (
    connect_reader,
    converted_errors,
    ensure_wal,
    make_engine,
    parse_url,
    shell_word,
    show_url,
    sqlite_path,
)
from .exchange import Exchange
from .features import Features
from .launches import Launches
from .loader import Loader
from .lookup import Lookup
from .models import Models
from .names import Names
from .network_filesystem import refuse_network_file
from .programs import Programs
from .pruning import Pruning
from .quarantine import Quarantine
from .records import AnyTargets, AnyWorkloads, Records
from .retractions import is_retracted
from .rows import Rows
from .sessions import Runs, Sessions
from .sources import Provenance, Sources
from .tables import TableName, Tables
from .targets import Targets
from .training import Training
from .trust import TrustControl
from .workloads import Workloads

if TYPE_CHECKING:
    from .arrow import Table

_log = logging.getLogger("tunedb")


class Store:
    """A database of tuning records (see the module for its guarantees).

    Parameters
    ----------
    url : str, Path or URL
        See :func:`tunedb.open`.
    create : bool
        Create a missing database.
    read_only : bool
        Refuse all writes.
    body_limit : int
        Maximum bytes of an unpacked workload or trace; lower for databases of strangers.

    Attributes
    ----------
    records, workloads, targets, sources, sessions, features, models, launches, quarantine, trust
        The public interface; ``tests/test_face.py`` has an example of each method.
    answers, batches, exchange, lookup, names, programs, provenance, pruning, runs, training
        Interfaces of other packages of tunedb; they may change at any time.
    url : URL
        The database.
    location : str
        Name of the database in messages: a path, or a URL without its password.
    read_only : bool
        True if all writes are refused.
    key : str
        Random identity of the database, created with it.
    """

    def __init__(
        self,
        url: str | Path | URL,
        *,
        create: bool = True,
        read_only: bool = False,
        body_limit: int = limits.MAX_BODY_BYTES,
    ) -> None:
        self.url: URL = parse_url(url)
        self.location: str = show_url(self.url)
        self.read_only = read_only
        if not read_only:
            refuse_network_file(sqlite_path(self.url))
        self._is_created_here = False
        if versions.check_file(self.url, create=create and not read_only) and (
            self.url.database != ":memory:"
        ):
            self._is_created_here = versions.create_file(self.url)
        engine = make_engine(self.url, read_only=read_only)
        # One connection for all that is asked here: each parses the schema of a file anew.
        with converted_errors(self.location):
            reader = connect_reader(engine)
        try:
            has_new_schema = versions.prepare(
                reader, self.location, create=create and not read_only
            )
            is_owner = True
            if not read_only:
                ensure_wal(reader, self.location)
                with converted_errors(self.location):
                    is_owner = guards.require(reader, self.location).is_owner
            self._db = Database(
                reader,
                self.location,
                read_only=read_only,
                is_owner=is_owner,
                body_limit=body_limit,
            )
            self.key: str = self._db.key
            # Filling an empty file of another user does not make it ours.
            self._is_created_here |= has_new_schema and approval.is_own_file(self.url)
            if self._is_created_here and self.url.database != ":memory:":
                self._approve()
        except BaseException:
            reader.close()
            engine.dispose()
            raise
        self._compose()

    def _compose(self) -> None:
        """Create the parts of the store."""
        db = self._db
        self._loader = loader = Loader(db)
        rows = Rows(db.key, db.ids, is_owner=db.is_owner)
        self.batches: Batches = Batches(db, rows)
        self.names: Names = Names(db, loader, rows)
        self.lookup: Lookup = Lookup(db, loader, self.names)
        self.answers: Answers = Answers(db, loader, self.names)
        self.programs: Programs = Programs(db, loader)
        self.provenance: Provenance = Provenance(db)
        self.runs: Runs = Runs(db, loader)
        self.training: Training = Training(db, loader, self.programs, self.runs)
        self.exchange: Exchange = Exchange(db, loader, rows, self.batches)
        self.pruning: Pruning = Pruning(db)
        self.workloads: Workloads = Workloads(db, loader, rows, self.names, self.lookup)
        self.targets: Targets = Targets(db, loader, rows, self.lookup)
        self.sources: Sources = Sources(db, loader)
        self.sessions: Sessions = Sessions(db, loader, rows, self.lookup)
        self.features: Features = Features(db, rows, self.programs)
        self.models: Models = Models(db)
        self.launches: Launches = Launches(db, loader, self.batches)
        self._tables = Tables(db, self.lookup, self.programs)
        self.quarantine: Quarantine = Quarantine(db, loader, self.batches)
        self.trust: TrustControl = TrustControl(
            db, loader, self.batches, self.answers, self.sources
        )
        self.records: Records = Records(
            db, loader, self.batches, self.quarantine, self.answers, self.lookup
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Store({self.location!r})"

    def _repr_html_(self) -> str:
        counts = self.counts()
        names = ("workloads", "targets", "programs", "measurements", "failed", "retracted")
        facts = [(name, getattr(counts, name)) for name in (*names, "sessions", "sources")]
        return facts_html(self.location, facts)

    def _approve(self) -> None:
        """Approve the new database."""
        try:
            approval.approve(self.url, self.key)
        except StorageError as error:
            _log.warning(
                "%s: created, but not approved: %s; later run: tunedb db trust %s",
                self.location,
                error,
                shell_word(self.url),
            )

    def require_approved(self) -> None:
        """Check that the user created or approved the database.

        Called before stored data reaches TVM or XGBoost, which trust their input.

        Raises
        ------
        ApprovalError
            The user neither created the database nor approved it.
        """
        if not self._is_created_here:
            approval.require(self.url, self.key)

    def set_retry_timeout(self, seconds: float) -> None:
        """Retry reads and idempotent writes while the server is away.

        A transaction may run twice if the reply to its commit is lost; rows have digests, so the
        second one adds nothing.

        Parameters
        ----------
        seconds : float
            Time after which a call raises :class:`UnreachableError`; 0 (the default) for no
            retries.
        """
        self._db.retry_timeout = seconds

    def close(self) -> None:
        """Close the connections; closing twice does nothing."""
        self._db.close()

    def meta(self) -> dict[str, str]:
        """Return the database's metadata.

        Returns
        -------
        dict
            ``format``, ``store`` (the key), ``created_by`` (version of tunedb) and ``created_at``
            (microseconds since 1970, UTC).
        """
        return self._db.meta()

    def table(
        self,
        name: TableName,
        workload: AnyWorkloads | None = None,
        target: AnyTargets | None = None,
        *,
        feature_set: str | None = None,
        wide: bool = False,
    ) -> Table:
        """Return rows as columns, for pandas, polars, DuckDB and pyarrow.

        docs/tables.md has the columns of each table, with their types and units.

        Parameters
        ----------
        name : str
            ``records``, ``best``, ``failures``, ``tasks``, ``workloads``, ``sessions``,
            ``features`` or ``launches``.
        workload, target
            Only rows of these workloads and targets, as for :meth:`Records.top_k`; None for all.
        feature_set : str or None
            Feature set of the table ``features``, in its latest version; None for the only one.
        wide : bool
            In the table ``features``, one column ``features.NAME`` for each feature.

        Returns
        -------
        Table
            Has ``__arrow_c_stream__``, ``to_pandas()`` and ``to_polars()``.

        Raises
        ------
        NotFoundError
            No workload, target or feature set has that name.
        UsageError
            There is no such table, or it has no such selection.

        Examples
        --------
        >>> records = store.table("records", "matmul")
        >>> records
        <table records: 2 rows, 21 columns>
        >>> records.to_pandas().groupby("status").mean_seconds.min()["ok"].item()
        0.001
        """
        return self._tables.read(name, workload, target, feature_set, wide=wide)

    def counts(self) -> Counts:
        """Return the number of rows of each kind.

        Examples
        --------
        >>> store.counts().measurements
        2
        """
        names = (
            *("workload", "target", "sketch", "tail", "program", "measurement"),
            *("session", "source", "quarantine", "launch"),
        )
        tables = schema.metadata.tables
        parts = [select(func.count()).select_from(tables[n]).scalar_subquery() for n in names]
        measurements = select(func.count()).select_from(schema.measurement)
        failed = measurements.where(
            schema.measurement.c.status == int(Status.FAILED)
        ).scalar_subquery()
        retracted = measurements.where(
            is_retracted(schema.measurement.c, many=True)
        ).scalar_subquery()
        row = self._db.select(select(*parts, failed, retracted))[0]
        values = dict(zip(names, row, strict=False))
        return Counts(
            workloads=values["workload"],
            targets=values["target"],
            sketches=values["sketch"],
            tails=values["tail"],
            programs=values["program"],
            measurements=values["measurement"],
            failed=row[-2],
            sessions=values["session"],
            sources=values["source"],
            quarantined=values["quarantine"],
            retracted=row[-1],
            launches=values["launch"],
        )

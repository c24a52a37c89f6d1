"""The store: a database of tuning records.

Guarantees of :class:`Store`, on SQLite and PostgreSQL alike:

Durability
    When a method that writes returns, its rows survive ``kill -9`` of any process.
Atomicity
    Nobody ever sees part of a batch.
Idempotence
    A row is known by its digest; adding it again changes nothing.
Order
    ``id`` of a measurement grows in the order of insertion.
Threads and processes
    A store may be used from any thread (one at a time goes in); any number of processes may use
    one database.
"""

from __future__ import annotations

import logging
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy import func, select
from sqlalchemy.engine import URL

from .. import limits
from ..errors import StorageError
from ..records import Status
from ..results import Counts
from . import approval, guards, schema, versions
from .answers import Answers
from .batches import Batches
from .database import Database
from .engine import (
    command_word,
    connect_reader,
    converted_errors,
    make_concurrent,
    make_engine,
    parse_url,
    show_url,
    sqlite_path,
)
from .exchange import Exchange
from .features import Features
from .launches import Launches
from .loader import Loader
from .models import Models
from .names import Names
from .network_filesystem import refuse_network_file
from .programs import Programs
from .pruning import Pruning
from .quarantine import Quarantine
from .records import Records
from .retractions import is_retracted
from .rows import Rows
from .runs import Runs
from .sessions import Sessions
from .sources import Provenance, Sources
from .targets import Targets
from .training import Training
from .trust import TrustControl
from .workloads import Workloads

_log = logging.getLogger("tunedb")


class Store:
    """A database of tuning records (see the module for its guarantees).

    Parameters
    ----------
    url : str
        See :func:`tunedb.open`.
    create : bool
        Make what is missing.
    read_only : bool
        Never write.
    body_limit : int
        Bytes to which the body of a workload or trace may unpack; less for somebody else's
        database.

    Attributes
    ----------
    records, workloads, targets, sources, sessions, features, models, launches, quarantine, trust
        What a user reads and writes; ``tests/test_face.py`` has an example of each method.
    answers, batches, exchange, names, programs, provenance, pruning, runs, training
        What other rooms of tunedb ask; no promise to users.
    url : URL
        The database.
    location : str
        The database for messages: a path, or a URL without its password.
    read_only : bool
        Whether nothing is written.
    key : str
        Identity of the database, random and made with it.
    """

    def __init__(
        self,
        url: str | Path | URL,
        *,
        create: bool = True,
        read_only: bool = False,
        body_limit: int = limits.MAX_BODY_BYTES,
    ) -> None:
        self.url = parse_url(url)
        self.location = show_url(self.url)
        self.read_only = read_only
        if not read_only:
            refuse_network_file(sqlite_path(self.url))
        self._is_made_here = False
        if versions.check_file(self.url, create=create and not read_only) and (
            self.url.database != ":memory:"
        ):
            self._is_made_here = versions.create_file(self.url)
        engine = make_engine(self.url, read_only=read_only)
        try:
            made = versions.prepare(engine, self.url, create=create and not read_only)
            is_owner = True
            if not read_only:
                make_concurrent(engine, self.location)
                with converted_errors(self.location), connect_reader(engine) as connection:
                    is_owner = guards.require(connection, self.location).is_owner
            self._db = Database(
                engine,
                self.location,
                read_only=read_only,
                is_owner=is_owner,
                body_limit=body_limit,
            )
            self.key = self._db.key
            # An empty file of somebody else's stays his, whoever fills it.
            self._is_made_here |= made and approval.is_own_file(self.url)
            if self._is_made_here and self.url.database != ":memory:":
                self._approve()
        except BaseException:
            engine.dispose()
            raise
        self._compose()

    def _compose(self) -> None:
        """Make the parts over the one database."""
        db = self._db
        self._loader = loader = Loader(db)
        rows = Rows(db.key, db.ids, is_owner=db.is_owner)
        self.batches = Batches(db, rows)
        self.names = Names(db, loader, rows)
        self.answers = Answers(db, loader, self.names)
        self.programs = Programs(db, loader)
        self.provenance = Provenance(db)
        self.runs = Runs(db, loader)
        self.training = Training(db, loader, self.programs, self.runs)
        self.exchange = Exchange(db, loader, rows, self.batches)
        self.pruning = Pruning(db)
        self.workloads = Workloads(db, loader, rows, self.names)
        self.targets = Targets(db, loader, rows)
        self.sources = Sources(db, loader)
        self.sessions = Sessions(db, loader, rows)
        self.features = Features(db, rows, self.programs)
        self.models = Models(db)
        self.launches = Launches(db, loader, self.batches)
        self.quarantine = Quarantine(db, loader, self.batches)
        self.trust = TrustControl(db, loader, self.batches, self.answers, self.sources)
        self.records = Records(
            db,
            loader,
            self.batches,
            self.quarantine,
            self.answers,
            self.workloads,
            self.targets,
            self.programs,
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

    def _approve(self) -> None:
        """Approve the database that was made just now."""
        try:
            approval.approve(self.url, self.key)
        except StorageError as error:
            word = command_word(self.url)
            _log.warning(
                "%s: created, but not approved: %s; later run: tunedb db trust %s",
                self.location,
                error,
                word,
            )

    def require_approved(self) -> None:
        """Raise unless TVM, or a library that believes its input, may get what is stored.

        Raises
        ------
        ApprovalError
            The user has neither made the database nor approved it.
        """
        if not self._is_made_here:
            approval.require(self.url, self.key)

    def be_patient(self, seconds: float) -> None:
        """Wait for a server that goes away, and carry on when it is back.

        What reads, and what adds records, workloads and sessions, is tried again for so many
        seconds before it raises :class:`UnreachableError`. A transaction whose end nobody heard of
        may thus be made twice, which adds nothing.
        """
        self._db.patience = seconds

    def close(self) -> None:
        """Close the connections. Closing twice is fine."""
        self._db.close()

    def meta(self) -> dict[str, str]:
        """Return what the database says of itself."""
        return self._db.meta()

    def counts(self) -> Counts:
        """Return the number of rows of each kind."""
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

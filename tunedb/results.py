"""Frozen dataclasses of what a database answers; what goes in is in :mod:`tunedb.records`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from .launches import Launch
from .records import (
    Measurement,
    Quarantined,
    Signature,
    Source,
    Status,
    Target,
    Trace,
    Trust,
    Workload,
)
from .system.one_line import one_line, short


@dataclass(frozen=True, slots=True)
class Record:
    """A measurement as it stands in a database.

    Parameters
    ----------
    id : int
        Local number, in order of insertion.
    workload_id, target_id : int
        Local numbers of its workload and target.
    measurement : Measurement
        What was stored.
    source : Source
        Where it came from.
    mean : float or None
        Mean of ``run_secs`` in seconds, which ranks records.
    retracted : bool
        Whether it was taken back.
    """

    id: int
    workload_id: int
    target_id: int
    measurement: Measurement
    source: Source
    mean: float | None
    retracted: bool = False

    def __repr__(self) -> str:
        program = self.measurement.program
        outcome = self.measurement.status.name if self.mean is None else f"{self.mean:.4g} s"
        return (
            f"Record({self.id}, {short(program.workload.name)} for {program.target.kind}, "
            f"{outcome}, from {short(self.source.name)}{', retracted' if self.retracted else ''})"
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tuning loop needs of a record: a fraction of :class:`Record`'s reads.

    Parameters
    ----------
    id, workload_id, target_id : int
        Local numbers.
    trace : Trace
        How to schedule the workload.
    run_secs : tuple of float or None
        All repeats in seconds.
    args_info : bytes or None
        Canonical JSON of the arguments' description.
    program : bytes
        Digest of the program's row.
    is_whole : bool
        Whether the digest of its row and its mean are those of what is stored. The digest of the
        program is another question (:meth:`tunedb.storage.answers.Answers.is_whole`).
    is_trusted, is_own : bool
        Whether its source is trusted; whether it is own, of this database.
    """

    id: int
    workload_id: int
    target_id: int
    trace: Trace
    run_secs: tuple[float, ...] | None
    args_info: bytes | None
    program: bytes
    is_whole: bool
    is_trusted: bool
    is_own: bool

    __repr__ = one_line


@dataclass(frozen=True, slots=True, eq=False)
class LaunchRow:
    """A launch with the measurement that it belongs to.

    Rows of one workload, target, sketch or counter set share the objects.

    Parameters
    ----------
    id, record_id, program_id, workload_id, target_id, source_id : int
        Local numbers of the launch, its measurement, and what that refers to.
    launch : Launch
        The kernel, its geometry and its counters, in the words of the tool.
    digest : bytes
        Digest of the measurement.
    workload : Workload
        What was computed, without the script. Where it is a kernel, its body is the JSON of
        :func:`tunedb.formats.gpu.kernels.kernel_workload`, and `trace` holds tuning parameters
        (:func:`tunedb.programs.kernel.join_parameters`).
    target, trace, status, run_secs, measured_at, context : object
        As of :class:`tunedb.records.Measurement` and its program.
    mean : float or None
        Mean of ``run_secs`` in seconds, which ranks records.
    trust : Trust
        How far the record's source is trusted.
    """

    id: int
    launch: Launch
    record_id: int
    digest: bytes
    program_id: int
    workload_id: int
    workload: Workload
    target_id: int
    target: Target
    trace: Trace
    status: Status
    run_secs: tuple[float, ...] | None
    mean: float | None
    measured_at: int
    context: bytes | None
    source_id: int
    trust: Trust

    __repr__ = one_line


@dataclass(frozen=True, slots=True)
class WorkloadSummary:
    """A workload with what the database knows about it.

    Parameters
    ----------
    rebuildable : bool
        Whether the plugin can make a module of today's TVM from it.
    """

    id: int
    digest: bytes
    name: str
    format: str
    tvm_version: str | None
    signature: Signature
    rebuildable: bool
    records: int
    failed: int
    best: float | None
    targets: int

    __repr__ = one_line


@dataclass(frozen=True, slots=True)
class QuarantineRow:
    """Bytes in quarantine.

    Parameters
    ----------
    id : int
        Local number.
    source : Source
        Where they came from.
    created_at : int
        When they were put there, in microseconds since 1970, UTC.
    item : Quarantined
        The bytes, with file, line and reason.
    """

    id: int
    source: Source
    created_at: int
    item: Quarantined

    __repr__ = one_line


@dataclass(frozen=True, slots=True)
class TargetSummary:
    """A target with what the database knows about it."""

    id: int
    target: Target
    records: int
    workloads: int

    __repr__ = one_line


@dataclass(frozen=True, slots=True)
class Counts:
    """Sizes of a database in rows."""

    workloads: int
    targets: int
    sketches: int
    tails: int
    programs: int
    measurements: int
    failed: int
    sessions: int
    sources: int
    quarantined: int
    retracted: int
    launches: int

    __repr__ = one_line


@dataclass(frozen=True, slots=True)
class AddReport:
    """What an insertion did: rows that were new, and rows that the database knew."""

    new: int
    known: int

    __repr__ = one_line


@dataclass(frozen=True, slots=True, eq=False)
class StoredProgram:
    """A program as a feature set sees it.

    Programs of one workload, target, sketch or tail share the objects.

    Parameters
    ----------
    id : int
        Local number.
    workload, target : Workload, Target
        What is computed, and for which device.
    signature : Signature
        What the database knows about the workload without TVM.
    workload_id, target_id, sketch_id : int
        Local numbers, to remember by.
    tail_id : int or None
        Local number of the tail.
    trace : Trace
        The steps in their stored form.
    """

    id: int
    workload_id: int
    workload: Workload
    signature: Signature
    target_id: int
    target: Target
    sketch_id: int
    tail_id: int | None
    trace: Trace

    __repr__ = one_line


@dataclass(frozen=True, slots=True)
class StoredFeatures:
    """A feature set as a database holds it.

    Parameters
    ----------
    name : str
        The feature set's name.
    version : int
        Its version; another version is another set.
    columns : tuple of str
        Names of its columns; empty where their number depends on the program.
    programs : int
        Programs whose rows are stored.
    rows : int
        Their rows.
    bytes : int
        What the rows take, compressed.
    """

    name: str
    version: int
    columns: tuple[str, ...]
    programs: int
    rows: int
    bytes: int

    __repr__ = one_line


@dataclass(frozen=True, slots=True)
class FeatureCoverage:
    """Which programs have rows of a feature set, and which could get them.

    Parameters
    ----------
    programs : int
        Programs that were asked for.
    able : int
        Those of them whose rows can be computed.
    known : int
        Those of them that have rows.
    """

    programs: int
    able: int
    known: int

    __repr__ = one_line


@dataclass(frozen=True, slots=True, eq=False)
class NewModel:
    """A model as it goes into a database.

    Parameters
    ----------
    digest : bytes
        Its identity: kind, parameters, training set and versions of what trained it.
    kind : str
        ``ranker`` or ``failures``.
    parameters : bytes
        Canonical JSON of its recipe.
    training_digest : bytes
        What it was trained on.
    card : dict
        What people should know about it (:mod:`tunedb.models.cards`).
    body : bytes or None
        The boosters; None where only the card is kept, and the model is rebuilt on demand.
    """

    digest: bytes
    kind: str
    parameters: bytes
    training_digest: bytes
    card: dict[str, Any]
    body: bytes | None

    __repr__ = one_line


@dataclass(frozen=True, slots=True, eq=False)
class StoredModel:
    """A model as it stands in a database; the fields of :class:`NewModel` without its body.

    Parameters
    ----------
    id : int
        Local number, in order of insertion.
    created_at : int
        Microseconds since 1970, UTC.
    size : int or None
        Bytes of the body; None where only the card is kept.
    """

    id: int
    digest: bytes
    kind: str
    parameters: bytes
    training_digest: bytes
    card: dict[str, Any]
    created_at: int
    size: int | None

    __repr__ = one_line


@dataclass(frozen=True, slots=True)
class SessionFactor:
    """How much slower a session measured than the others of its machine.

    Parameters
    ----------
    subject : str
        ``session``, or ``source`` for the records of a source that have no session.
    subject_id : int
        Local number of that session or source.
    machine : int
        Sessions with equal numbers measured up to a factor the same; 0 is the largest such group.
        Those in which only sources have measured that are not trusted count from -1 down.
    factor : float
        Its times divided by this are comparable to those of the machine's first session.
    spread : float or None
        Half of the range from the 10th to the 90th percentile of the logarithms of ratios; None
        where no program was measured elsewhere.
    programs : int
        How many programs it shares with sessions of its machine.
    """

    subject: Literal["session", "source"]
    subject_id: int
    machine: int
    factor: float
    spread: float | None
    programs: int

    __repr__ = one_line


@dataclass(frozen=True, slots=True)
class Exchanged:
    """Another database, and when something came from there or went there last.

    Parameters
    ----------
    direction : str
        ``pull`` or ``push``.
    peer : str
        Which database, as its watermark names it.
    at : int
        Microseconds since 1970, UTC.
    """

    direction: str
    peer: str
    at: int

    __repr__ = one_line


@dataclass(frozen=True, slots=True)
class FileSpace:
    """What a SQLite file holds: bytes of a page, pages, and those of them that are free."""

    page_size: int
    pages: int
    free: int

    __repr__ = one_line


@dataclass(frozen=True, slots=True)
class TableSpace:
    """What PostgreSQL says of a table: rows that are there and that are dead, bytes in all."""

    name: str
    rows: int
    dead: int
    bytes: int

    __repr__ = one_line

"""Results of queries to a database; its input is in :mod:`tunedb.records`."""

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
from .system.notebook import facts_html
from .system.one_line import one_line, printable, short, shorten, tensors


@dataclass(frozen=True, slots=True)
class Record:
    """A stored measurement.

    Parameters
    ----------
    id : int
        Row id, in order of insertion.
    workload_id, target_id : int
        Ids of its workload and target.
    measurement : Measurement
        The measurement.
    source : Source
        Origin of the measurement.
    mean : float or None
        Mean of ``run_secs`` in seconds, by which records are ranked; None without times.
    retracted : bool
        True if it was retracted.
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

    def _repr_html_(self) -> str:
        measurement = self.measurement
        program, failure = measurement.program, measurement.failure
        return facts_html(
            f"Record {self.id}",
            (
                ("workload", f"{program.workload.name} ({self.workload_id})"),
                ("target", f"{program.target.full_label} ({self.target_id})"),
                ("status", measurement.status.name.lower()),
                ("mean (s)", self.mean if measurement.status is Status.OK else None),
                ("repeats (s)", ", ".join(f"{s:.4g}" for s in measurement.run_secs or ()) or None),
                ("failure", failure and f"{failure.kind} ({failure.phase}): {failure.message}"),
                ("origin", measurement.origin.value),
                ("source", f"{self.source.name} ({self.source.trust.name.lower()})"),
                ("retracted", "yes" if self.retracted else None),
                ("decisions", program.trace.decisions.decode(errors="replace")),
            ),
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """A record for a tuning loop, with a fraction of the reads of :class:`Record`.

    Parameters
    ----------
    id, workload_id, target_id : int
        Row ids.
    trace : Trace
        Trace of the program.
    run_secs : tuple of float or None
        All repeats in seconds.
    args_info : bytes or None
        Canonical JSON of the arguments' description.
    program : bytes
        Digest of the program's row.
    is_whole : bool
        True if the digest and the mean of its row match the stored content. The program's digest is
        checked by :meth:`tunedb.storage.answers.Answers.is_whole`.
    is_trusted, is_own : bool
        True if its source is trusted; true if it is an own source of this database.
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
    """A stored launch with its measurement.

    Rows share the objects of their workload, target, sketch and counter set.

    Parameters
    ----------
    id, record_id, program_id, workload_id, target_id, source_id : int
        Ids of the launch, of its measurement, and of the rows to which that refers.
    launch : Launch
        Kernel, geometry and counters, in the tool's terms.
    digest : bytes
        Digest of the measurement.
    workload : Workload
        The workload without its script. The body of a GPU kernel is the JSON of
        :func:`tunedb.formats.gpu.kernels.kernel_workload`, and its `trace` holds tuning parameters
        (:func:`tunedb.programs.kernel.join_parameters`).
    target, trace, status, run_secs, measured_at, context : object
        As for :class:`tunedb.records.Measurement` and its program.
    mean : float or None
        Mean of ``run_secs`` in seconds, by which records are ranked.
    trust : Trust
        Trust in the record's source.
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
    """A workload with its statistics.

    Parameters
    ----------
    id : int
        Row id.
    digest : bytes
        Digest of the workload.
    name : str
        Name for people.
    format : str
        A :class:`tunedb.records.WorkloadFormat`, or a format of a newer tunedb.
    tvm_version : str or None
        Version of TVM that wrote the body; None if unknown.
    signature : Signature
        Function, argument types and shapes, operator family and operations.
    rebuildable : bool
        True if the plugin can load it as a module of this TVM.
    records : int
        Number of its records, including failed ones.
    failed : int
        Number of its failed records.
    best : float or None
        Mean time of its best record in seconds; None if none is served.
    targets : int
        Number of targets with records.
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

    def __repr__(self) -> str:
        family = f", {short(self.signature.family)}" if self.signature.family else ""
        arguments = printable(tensors(self.signature.arguments or ()))
        shapes = f", {shorten(arguments, 40)}" if arguments else ""
        best = "" if self.best is None else f", best {self.best:.4g} s"
        what = f"{self.id}, {short(self.name)}{family}{shapes}"
        return shorten(f"Workload({what}, {self.records:,} records{best})", keep="bracket")

    def _repr_html_(self) -> str:
        return facts_html(
            f"Workload {self.id}",
            (
                ("name", self.name),
                ("family", self.signature.family),
                ("arguments", tensors(self.signature.arguments or ()) or None),
                ("operations", self.signature.flops),
                ("format", str(self.format)),
                ("TVM", self.tvm_version),
                ("records", self.records),
                ("failed", self.failed),
                ("targets", self.targets),
                ("best (s)", self.best),
            ),
        )


@dataclass(frozen=True, slots=True)
class QuarantineRow:
    """Bytes in quarantine.

    Parameters
    ----------
    id : int
        Row id.
    source : Source
        Origin of the bytes.
    created_at : int
        Microseconds since 1970, UTC.
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
    """A target with its statistics.

    Parameters
    ----------
    id : int
        Row id.
    target : Target
        The target.
    records : int
        Number of its records, including failed ones.
    workloads : int
        Number of workloads with records for it.
    """

    id: int
    target: Target
    records: int
    workloads: int

    def __repr__(self) -> str:
        label = printable(shorten(self.target.full_label, 40, "bracket"))
        return (
            f"Target({self.id}, {label!r}, {self.records:,} records, {self.workloads:,} workloads)"
        )


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of rows of a database."""

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
    """Numbers of inserted rows and of rows that were stored already."""

    new: int
    known: int

    __repr__ = one_line


@dataclass(frozen=True, slots=True, eq=False)
class StoredProgram:
    """A stored program, as feature sets read it.

    Programs share the objects of their workload, target, sketch and tail.

    Parameters
    ----------
    id : int
        Row id.
    workload, target : Workload, Target
        The computation and the device.
    signature : Signature
        Signature of the workload.
    workload_id, target_id, sketch_id : int
        Row ids, usable as cache keys.
    tail_id : int or None
        Id of the tail; None without tail.
    trace : Trace
        The trace in its stored form.
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
    """A feature set in a database.

    Parameters
    ----------
    name : str
        Name of the feature set.
    version : int
        Version; each version is a set of its own.
    columns : tuple of str
        Names of its columns; empty if their number depends on the program.
    programs : int
        Number of programs with rows.
    rows : int
        Number of rows.
    bytes : int
        Bytes of the compressed rows.
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
    """Numbers of programs that have rows of a feature set, and that could have them.

    Parameters
    ----------
    programs : int
        Number of chosen programs.
    able : int
        Number of these whose rows can be computed.
    known : int
        Number of these that have rows.
    """

    programs: int
    able: int
    known: int

    __repr__ = one_line


@dataclass(frozen=True, slots=True, eq=False)
class NewModel:
    """A model to be added to a database.

    Parameters
    ----------
    digest : bytes
        Identity: kind, parameters, training set and versions of the libraries.
    kind : str
        ``ranker`` or ``failures``.
    parameters : bytes
        Canonical JSON of its recipe.
    training_digest : bytes
        Digest of the training set.
    card : dict
        Description for people (:mod:`tunedb.models.cards`).
    body : bytes or None
        Boosters; None if only the card is stored and the model is retrained on demand.
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
    """A model in a database; the fields of :class:`NewModel` without its body.

    Parameters
    ----------
    id : int
        Row id, in order of insertion.
    created_at : int
        Microseconds since 1970, UTC.
    size : int or None
        Bytes of the body; None if only the card is stored.
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

    def _repr_html_(self) -> str:
        facts = [
            (f"{part}: {name}", value if isinstance(value, str | int | float) else short(value))
            for part, values in self.card.items()
            if isinstance(values, dict)
            for name, value in values.items()
        ]
        return facts_html(f"Model {self.id} ({self.kind})", facts)


@dataclass(frozen=True, slots=True)
class SessionFactor:
    """Slow-down of a session relative to the first one of its machine.

    Parameters
    ----------
    subject : str
        ``session``, or ``source`` for the records of a source without session.
    subject_id : int
        Id of that session or source.
    machine : int
        Number of a group of sessions whose times differ by factors only; 0 is the largest group.
        Groups in which only untrusted sources measured have negative numbers, from -1 down.
    factor : float
        Its times divided by this are comparable to those of the machine's first session.
    spread : float or None
        Half of the range from the 10th to the 90th percentile of the logarithms of ratios; None if
        no program was measured elsewhere.
    programs : int
        Number of programs shared with sessions of its machine.
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
    """The last exchange with another database.

    Parameters
    ----------
    direction : str
        ``pull`` or ``push``.
    peer : str
        The database, as its watermark names it.
    at : int
        Microseconds since 1970, UTC.
    """

    direction: str
    peer: str
    at: int

    __repr__ = one_line


@dataclass(frozen=True, slots=True)
class FileSpace:
    """Space in a SQLite file: bytes of a page, number of pages, number of free pages."""

    page_size: int
    pages: int
    free: int

    __repr__ = one_line


@dataclass(frozen=True, slots=True)
class TableSpace:
    """PostgreSQL's statistics of a table: live and dead rows, bytes in total."""

    name: str
    rows: int
    dead: int
    bytes: int

    __repr__ = one_line

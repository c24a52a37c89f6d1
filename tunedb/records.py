"""Frozen dataclasses that rooms pass to one another.

Rows of the database never leave :mod:`tunedb.storage`; records do. A class with an identity
computes its ``digest`` once, at construction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

import orjson

from . import identity
from .launches import Launch
from .system.one_line import one_line


class Status(IntEnum):
    """Outcome of a measurement."""

    OK = 0
    FAILED = 1
    #: The log has the program without a run (TenSet's ``to_measure_programs``).
    UNMEASURED = 2
    #: A tuning run stopped it after its first repeats, which were clearly slower than the best
    #: program of the task. Its times count for models alone, as those of a slow program.
    CUT_SHORT = 3


class Phase(StrEnum):
    """Where a measurement failed."""

    BUILD = "build"
    RUN = "run"
    UNKNOWN = "unknown"


class FailureKind(StrEnum):
    """The kind of a failure."""

    COMPILE_ERROR = "compile_error"
    TIMEOUT = "timeout"
    CRASH = "crash"
    WRONG_RESULT = "wrong_result"
    RUNTIME_ERROR = "runtime_error"
    INFRASTRUCTURE = "infrastructure"
    UNKNOWN = "unknown"


class Origin(StrEnum):
    """Origin of a candidate."""

    UNKNOWN = "unknown"
    RANDOM = "random"
    MUTATED = "mutated"
    CROSSED = "crossed"
    WARM = "warm"
    MEASURED = "measured"
    #: Its steps were those of another tool's program.
    REPLAYED = "replayed"


class Trust(IntEnum):
    """Trust in a source's records. Only ``OWN`` and ``VERIFIED`` reach TVM."""

    FOREIGN = 0
    VERIFIED = 1
    OWN = 2


class SourceKind(StrEnum):
    """How rows came into the database."""

    LIVE = "live"
    FILE = "file"
    API = "api"


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of rows, with its trust.

    Parameters
    ----------
    name : str
        Unique among the sources of one database: the user's name for it, or the path of a file.
    kind : SourceKind
        How the rows came in.
    trust : Trust
        Whether the rows may reach TVM. An existing source keeps its trust.
    """

    name: str
    kind: SourceKind = SourceKind.API
    trust: Trust = Trust.OWN

    __repr__ = one_line


#: The source of tuning runs of a database itself.
TUNING = Source("tuning", SourceKind.LIVE)


#: Suffixes of the schemes of TVM's looser equalities: two workloads that share an alias of these
#: are not the same computation.
LOOSE = (":ignore-tensor", ":anchor-block")


@dataclass(frozen=True, slots=True)
class Alias:
    """A name that equal workloads share.

    Parameters
    ----------
    scheme : str
        Kind of the name: ``tvm:<version>:<equality mode>`` for a structural hash, ``script`` for
        the digest of the TVMScript text, ``link`` for a user's statement.
    key : str
        The hash, digest or text.
    """

    scheme: str
    key: str

    __repr__ = one_line


class WorkloadFormat(StrEnum):
    """Format of a workload's body, which also determines the form of its programs' traces."""

    #: tvm-ffi's object graph of an IRModule (TVM >= 0.22); MetaSchedule traces.
    GRAPH = "tvm-graph"
    #: The node list of an IRModule of an earlier TVM; MetaSchedule traces.
    NODES = "tvm-nodes"
    #: ``[index, args_info]`` of records whose workload file is lost; MetaSchedule traces.
    ARGUMENTS = "metaschedule-arguments"
    #: auto_scheduler's workload key, verbatim; transform steps.
    ANSOR = "ansor-key"
    #: AutoTVM's ``[task name, args, kwargs]``; knobs.
    AUTOTVM = "autotvm-task"
    #: ``{"kernel": name, "problem": its size or null}`` of a GPU kernel; tuning parameters.
    KERNEL = "gpu-kernel"
    #: A FAIR T1 input: a kernel's tuning parameters, their defaults and conditions; no programs.
    T1 = "t1-input"


#: Formats of workloads that are modules, whose programs TVM may get.
MODULES = (WorkloadFormat.GRAPH, WorkloadFormat.NODES)


@dataclass(frozen=True, slots=True)
class Signature:
    """Facts of a workload that need no TVM; None for unknown ones.

    Parameters
    ----------
    function : str or None
        Name of the function or task.
    arguments : tuple or None
        ``(dtype, shape)`` of each tensor argument, inputs before outputs; dtype is None if the log
        lacks it.
    family : str or None
        Operator family, e.g. ``conv2d`` (:mod:`tunedb.programs.workload_info.families`).
    flops : float or None
        Floating-point (or integer multiply-add) operations of one run.
    """

    function: str | None = None
    arguments: tuple[tuple[str | None, tuple[int, ...]], ...] | None = None
    family: str | None = None
    flops: float | None = None

    __repr__ = one_line


@dataclass(frozen=True, slots=True)
class Workload:
    """A computation to tune.

    Parameters
    ----------
    format : str
        A :class:`WorkloadFormat`, or a format of a newer tunedb.
    body : bytes
        The workload in canonical form, without its version metadata.
    name : str
        Name for people; not part of the identity.
    tvm_version : str or None
        Version that wrote the body; not part of the identity.
    script : str or None
        TVMScript text, portable between versions of TVM; not part of the identity.
    """

    format: str
    body: bytes
    name: str = "main"
    tvm_version: str | None = None
    script: str | None = None
    digest: bytes = field(init=False, repr=False)

    __repr__ = one_line

    def __post_init__(self) -> None:
        value = identity.digest("workload", self.format.encode(), self.body)
        object.__setattr__(self, "digest", value)


@dataclass(frozen=True, slots=True)
class Target:
    """A target in canonical form.

    Parameters
    ----------
    kind : str
        TVM's target kind, e.g. ``llvm``; ``none`` for a record without target.
    config : bytes
        Canonical JSON of the whole configuration.
    text : str or None
        The original text of the target, if any.
    """

    kind: str
    config: bytes
    text: str | None = None
    digest: bytes = field(init=False, repr=False)

    __repr__ = one_line

    def __post_init__(self) -> None:
        value = identity.digest("target", self.kind.encode(), self.config)
        object.__setattr__(self, "digest", value)

    @classmethod
    def from_config(cls, config: dict[str, Any] | None, text: str | None = None) -> Target:
        """Return the target of a configuration such as ``tvm.target.Target.export()`` gives."""
        if config is None:
            return NO_TARGET
        return cls(str(config.get("kind", "unknown")), identity.canonical_json(config), text)

    @property
    def attributes(self) -> dict[str, Any] | None:
        """The configuration as a dictionary; None for a record without target."""
        value: dict[str, Any] | None = orjson.loads(self.config)
        return value

    @property
    def is_cpu(self) -> bool:
        """Whether its programs run on threads of TVM's runtime."""
        return self.kind in CPU_KINDS

    @property
    def label(self) -> str:
        """The kind and the device, for people: ``llvm skylake-avx512``."""
        attributes = self.attributes or {}
        device = attributes.get("model") or self.architecture
        return f"{self.kind} {device}".rstrip()

    @property
    def full_label(self) -> str:
        """The label and the number of cores, if known: ``llvm skylake-avx512 8 cores``."""
        cores = (self.attributes or {}).get("num-cores")
        return f"{self.label} {cores} cores" if cores else self.label

    @property
    def architecture(self) -> str:
        """The processor or GPU architecture, or an empty string.

        It is the configuration's ``mcpu``, ``arch``, ``march``, or the architecture of ``mtriple``.
        Targets of equal kind and architecture are compatible.
        """
        attributes = self.attributes or {}
        triple = str(attributes.get("mtriple", "")).split("-", maxsplit=1)[0]
        named = (attributes.get(key) for key in ("arch", "mcpu", "march"))
        return next((str(value) for value in named if value), triple)


#: The target of records without a target.
NO_TARGET = Target("none", b"null")

#: Kinds of targets whose programs run on threads of TVM's runtime.
CPU_KINDS = ("llvm", "c")


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace in its three stored parts (``programs.metaschedule.trace``), each canonical JSON."""

    sketch: bytes
    tail: bytes | None
    decisions: bytes

    __repr__ = one_line

    @property
    def is_empty(self) -> bool:
        """Whether the trace has no instruction before ``EnterPostproc``."""
        return self.sketch == b"[]"


@dataclass(frozen=True, slots=True)
class Program:
    """A workload, a target and the trace that schedules it."""

    workload: Workload
    target: Target
    trace: Trace
    sketch_digest: bytes = field(init=False, repr=False)
    tail_digest: bytes | None = field(init=False, repr=False)
    digest: bytes = field(init=False, repr=False)

    __repr__ = one_line

    def __post_init__(self) -> None:
        sketch = identity.shared_digest("sketch", self.trace.sketch)
        tail = None if self.trace.tail is None else identity.shared_digest("tail", self.trace.tail)
        value = identity.program_digest(
            self.workload.digest, self.target.digest, sketch, tail, self.trace.decisions
        )
        object.__setattr__(self, "sketch_digest", sketch)
        object.__setattr__(self, "tail_digest", tail)
        object.__setattr__(self, "digest", value)


@dataclass(frozen=True, slots=True)
class Session:
    """Machine, versions and start of a run; times of one session are comparable.

    Parameters
    ----------
    key : str
        Random, so that two sessions started in the same microsecond differ.
    started_at : int
        Microseconds since 1970, UTC.
    fingerprint : dict
        ``cpu``, ``gpu``, ``cores``, ``os``, ``python`` and the versions of ``tvm``, ``tvm_ffi``,
        ``llvm`` and ``tunedb``; unknown ones are missing.
    """

    key: str
    started_at: int
    fingerprint: bytes
    digest: bytes = field(init=False, repr=False)

    __repr__ = one_line

    def __post_init__(self) -> None:
        value = identity.digest(
            "session", self.key.encode(), identity.pack_int(self.started_at), self.fingerprint
        )
        object.__setattr__(self, "digest", value)


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of a measurement.

    Parameters
    ----------
    kind : FailureKind
        Kind of the failure.
    phase : Phase
        Phase of the failure.
    message : str
        Message of the builder or runner.
    seconds : float or None
        Seconds until the failure, if known.
    """

    kind: FailureKind
    phase: Phase
    message: str
    seconds: float | None = None

    __repr__ = one_line

    def digest(self, measurement: bytes) -> bytes:
        """Return the identity of this statement about the measurement with that digest."""
        seconds = b"" if self.seconds is None else identity.pack_floats([self.seconds])
        return identity.digest(
            "failure",
            measurement,
            self.kind.encode(),
            self.phase.encode(),
            self.message.encode(errors="surrogatepass"),
            seconds,
        )


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run of a program.

    Parameters
    ----------
    program : Program
        The program.
    run_secs : tuple of float or None
        All repeats in seconds, as the runner gave them; None without a list.
    status : Status
        Whether the times count.
    measured_at : int
        Microseconds since 1970, UTC; 0 if unknown.
    occurrence : int
        For a file the ordinal among equal lines of that file; for a live commit the sequence
        number in its session.
    session : Session or None
        Machine and versions; None if the file lacks them.
    args_info : bytes or None
        Canonical JSON of the arguments' description (TVM's ``args_info``).
    origin : Origin
        Origin of the candidate.
    donor : bytes or None
        Digest of the program from which it was made.
    all_cost : float or None
        Wall-clock seconds of the whole trial, build and run, if the log has them.
    context : bytes or None
        Canonical JSON of the values that many lines of a log share: versions, the target's raw
        text, hardware parameters.
    extra : bytes or None
        Canonical JSON of this line's other values, which no other field holds.
    failure : Failure or None
        The cause, if known. Not part of the identity: it may be stored later.
    launches : tuple of Launch
        GPU kernels that the program launched, with their counters. Not part of the identity: more
        may be stored later. Queries return records without launches; see
        ``store.launches.for_record``.
    """

    program: Program
    run_secs: tuple[float, ...] | None
    status: Status = Status.OK
    measured_at: int = 0
    occurrence: int = 0
    session: Session | None = None
    args_info: bytes | None = None
    origin: Origin = Origin.UNKNOWN
    donor: bytes | None = None
    all_cost: float | None = None
    context: bytes | None = None
    extra: bytes | None = None
    failure: Failure | None = None
    launches: tuple[Launch, ...] = ()
    digest: bytes = field(init=False, repr=False)

    __repr__ = one_line

    def __post_init__(self) -> None:
        value = identity.measurement_digest(
            self.program.digest,
            self.status,
            None if self.run_secs is None else identity.pack_floats(self.run_secs),
            self.measured_at,
            self.occurrence,
            None if self.session is None else self.session.digest,
            self.args_info,
            self.origin,
            self.donor,
            self.all_cost,
            self.context,
            self.extra,
        )
        object.__setattr__(self, "digest", value)

    @property
    def is_valid(self) -> bool:
        """Whether the record may answer a query: its times count, and its trace is not empty."""
        return self.status is Status.OK and not self.program.trace.is_empty


@dataclass(frozen=True, slots=True)
class Quarantined:
    """Unreadable bytes with the reason."""

    file: str
    line: int
    reason: str
    data: bytes

    __repr__ = one_line

"""Frozen dataclasses that rooms pass to one another.

Rows of the database never leave :mod:`tunedb.storage`; these do. Each class that has an
identity computes its ``digest`` once, when it is made.
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
    #: The log names the program and says that nobody ran it (TenSet's ``to_measure_programs``).
    UNMEASURED = 2


class Phase(StrEnum):
    """Where a measurement failed."""

    BUILD = "build"
    RUN = "run"
    UNKNOWN = "unknown"


class FailureKind(StrEnum):
    """Why a measurement failed."""

    COMPILE_ERROR = "compile_error"
    TIMEOUT = "timeout"
    CRASH = "crash"
    WRONG_RESULT = "wrong_result"
    RUNTIME_ERROR = "runtime_error"
    INFRASTRUCTURE = "infrastructure"
    UNKNOWN = "unknown"


class Origin(StrEnum):
    """Where a candidate came from."""

    UNKNOWN = "unknown"
    RANDOM = "random"
    MUTATED = "mutated"
    CROSSED = "crossed"
    WARM = "warm"
    MEASURED = "measured"


class Trust(IntEnum):
    """How far a source's records are believed. Only ``OWN`` and ``VERIFIED`` reach TVM."""

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
    """Where rows came from, and how far it is trusted.

    Parameters
    ----------
    name : str
        Unique among the sources of one database: a user's word, or the path of a file.
    kind : SourceKind
        How the rows came in.
    trust : Trust
        Whether the rows may reach TVM. A source that exists keeps its trust.
    """

    name: str
    kind: SourceKind = SourceKind.API
    trust: Trust = Trust.OWN

    __repr__ = one_line


#: The source of tuning runs of a database itself.
TUNING = Source("tuning", SourceKind.LIVE)


#: Ends of the schemes of TVM's looser equalities: two workloads with such an alias in common are
#: not the same computation.
LOOSE = (":ignore-tensor", ":anchor-block")


@dataclass(frozen=True, slots=True)
class Alias:
    """One name under which a workload is known to be equal to others.

    Parameters
    ----------
    scheme : str
        Who says so: ``tvm:<version>:<equality mode>`` for a structural hash, ``script`` for the
        digest of the TVMScript text, ``link`` for a user's word.
    key : str
        The hash, digest or word.
    """

    scheme: str
    key: str

    __repr__ = one_line


class WorkloadFormat(StrEnum):
    """What a workload's body is, which also says how the traces of its programs are stored."""

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
    """What can be told about a workload without TVM; None where it cannot.

    Parameters
    ----------
    function : str or None
        Name of the function or task.
    arguments : tuple or None
        ``(dtype, shape)`` of each tensor argument, inputs before outputs; dtype is None where
        the log does not say it.
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
    """A computation to be tuned.

    Parameters
    ----------
    format : str
        A :class:`WorkloadFormat`, or a format of a newer tunedb.
    body : bytes
        The workload as given, in canonical form and without its version metadata.
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
        The target as it was given, where that was text.
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
        """The kind and what tells devices apart, for people: ``llvm skylake-avx512``."""
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
        """What must be equal, besides the kind, for a program to be worth trying elsewhere.

        The processor or GPU architecture as the configuration names it (``mcpu``, ``arch``,
        ``march``, or the architecture of ``mtriple``), or an empty string.
        """
        attributes = self.attributes or {}
        triple = str(attributes.get("mtriple", "")).split("-", maxsplit=1)[0]
        named = (attributes.get(key) for key in ("arch", "mcpu", "march"))
        return next((str(value) for value in named if value), triple)


#: The target of records that name none.
NO_TARGET = Target("none", b"null")

#: Kinds of targets whose programs TVM splits among threads of its runtime.
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
        """Whether no instruction stands before ``EnterPostproc``."""
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
    """What must be equal for two times to be comparable: machine, versions, start.

    Parameters
    ----------
    key : str
        Random, so that two sessions started in the same microsecond differ.
    started_at : int
        Microseconds since 1970, UTC.
    fingerprint : dict
        ``cpu``, ``gpu``, ``cores``, ``os``, ``python`` and the versions of ``tvm``, ``tvm_ffi``,
        ``llvm`` and ``tunedb``; absent where unknown.
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
    """Why a measurement failed.

    Parameters
    ----------
    kind : FailureKind
        The class of failure.
    phase : Phase
        Where it happened.
    message : str
        What the builder or runner said.
    seconds : float or None
        How long it took until it failed, where that is known.
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
        What ran.
    run_secs : tuple of float or None
        All repeats in seconds, as the runner gave them; None where there is no list at all.
    status : Status
        Whether the times count.
    measured_at : int
        Microseconds since 1970, UTC; 0 where unknown.
    occurrence : int
        For a file the ordinal among equal lines of that file; for a live commit the sequence
        number in its session.
    session : Session or None
        Machine and versions; None for a file that does not say.
    args_info : bytes or None
        Canonical JSON of the arguments' description (TVM's ``args_info``).
    origin : Origin
        Where the candidate came from.
    donor : bytes or None
        Digest of the program it was made from.
    all_cost : float or None
        Wall-clock seconds of the whole trial, build and run, where the log has them.
    context : bytes or None
        Canonical JSON of what many lines of a log say alike: versions, the target's raw text,
        hardware parameters.
    extra : bytes or None
        Canonical JSON of what this line alone says and no other field holds.
    failure : Failure or None
        The cause, where it is known. Not part of the identity: it may be learnt later.
    launches : tuple of Launch
        GPU kernels that the program launched, with their counters. Not part of the identity: more
        may be learnt later. Records that are read have none; see ``store.launches.for_record``.
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
        """Whether the record may be an answer: it counts, and its trace does something."""
        return self.status is Status.OK and not self.program.trace.is_empty


@dataclass(frozen=True, slots=True)
class Quarantined:
    """Bytes that could not be understood, kept with the reason."""

    file: str
    line: int
    reason: str
    data: bytes

    __repr__ = one_line

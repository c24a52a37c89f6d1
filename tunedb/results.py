"""Frozen dataclasses of what a database answers; what goes in is in :mod:`tunedb.records`."""

from __future__ import annotations

from dataclasses import dataclass

from .records import Measurement, Quarantined, Signature, Source, Target, Trace


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
    """

    id: int
    workload_id: int
    target_id: int
    trace: Trace
    run_secs: tuple[float, ...] | None
    args_info: bytes | None


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


@dataclass(frozen=True, slots=True)
class TargetSummary:
    """A target with what the database knows about it."""

    id: int
    target: Target
    records: int
    workloads: int


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


@dataclass(frozen=True, slots=True)
class AddReport:
    """What an insertion did: rows that were new, and rows that the database knew."""

    new: int
    known: int

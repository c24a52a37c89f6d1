"""Finished variants as measurements, and as lines of the state."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ...errors import FormatError
from ...identity import canonical_json
from ...launches import CounterSet, Launch
from ...logs.gpu.kernels import gpu_target, kernel_workload
from ...records import Failure, FailureKind, Measurement, Phase, Session, Status
from ...records import Program as StoredProgram
from ...steps.parameters import split_parameters
from .configuration import AXES, GPU, Program
from .variants import Variant


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one variant.

    Parameters
    ----------
    variant : Variant
        Which.
    run_secs : tuple of float
        Seconds of each timed run; empty where it failed.
    failure : Failure or None
        Why it failed.
    launches : tuple of Launch
        What the profiler saw of the kernels with the variant's block; without a profiler the launch
        that the configuration stands for.
    compared : bool
        Whether its output was compared with the original's.
    notes : tuple of str
        What else is to be said, a line each: groups of counters that could not be read.
    measured_at : int
        Microseconds since 1970, UTC.
    """

    variant: Variant
    run_secs: tuple[float, ...] = ()
    failure: Failure | None = None
    launches: tuple[Launch, ...] = ()
    compared: bool = False
    notes: tuple[str, ...] = ()
    measured_at: int = 0


def measurement(
    outcome: Outcome, program: Program, device: GPU, tool: str, session: Session
) -> Measurement:
    """Return an outcome as a measurement.

    The workload is the kernel, or the whole program where none is named, with program and input;
    the parameters are the block, the limit of registers and the input: variants that differ in the
    block alone are a slice.
    """
    variant = outcome.variant
    extents = zip(AXES[: len(program.block)], variant.block, strict=False)
    parameters: dict[str, Any] = {f"block_{axis}": extent for axis, extent in extents}
    parameters |= {"maxrregcount": variant.registers, "input": variant.input}
    stored = StoredProgram(
        kernel_workload(
            program.kernel or program.name, {"program": program.name, "input": variant.input}
        ),
        gpu_target("cuda", device.name),
        split_parameters(parameters),
    )
    context = {"log": "collect", "profiler": tool, "timing": program.timing.source}
    extra = {"compared": outcome.compared, "original": variant.original}
    return Measurement(
        stored,
        outcome.run_secs or None,
        Status.OK if outcome.failure is None else Status.FAILED,
        measured_at=outcome.measured_at,
        session=session,
        context=canonical_json(context),
        extra=canonical_json(extra),
        failure=outcome.failure,
        launches=outcome.launches,
    )


def to_json(outcome: Outcome, session: Session) -> dict[str, Any]:
    """Return an outcome for a line of the state."""
    failure = outcome.failure
    return {
        "kind": "variant",
        "program": outcome.variant.program,
        "variant": outcome.variant.label,
        "run_secs": list(outcome.run_secs),
        "failure": None
        if failure is None
        else [failure.kind.value, failure.phase.value, failure.message, failure.seconds],
        "launches": [_launch_to_json(launch) for launch in outcome.launches],
        "compared": outcome.compared,
        "notes": list(outcome.notes),
        "measured_at": outcome.measured_at,
        "session": [session.key, session.started_at, session.fingerprint.decode()],
    }


def from_json(row: dict[str, Any], variant: Variant) -> tuple[Outcome, Session]:
    """Return the outcome of a line, and its session; the inverse of :func:`to_json`.

    Raises
    ------
    FormatError
        The line was changed by somebody.
    """
    try:
        failure = row["failure"]
        key, started_at, fingerprint = row["session"]
        outcome = Outcome(
            variant,
            tuple(map(float, row["run_secs"])),
            None
            if failure is None
            else Failure(FailureKind(failure[0]), Phase(failure[1]), failure[2], failure[3]),
            tuple(map(_launch_from_json, row["launches"])),
            bool(row["compared"]),
            tuple(row["notes"]),
            int(row["measured_at"]),
        )
        return outcome, Session(key, int(started_at), fingerprint.encode())
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise FormatError(f"a state that cannot be read ({error}); remove it") from None


_PLAIN = (
    *("kernel", "threads", "number", "registers"),
    *("static_shared", "dynamic_shared", "seconds"),
)


def _launch_to_json(launch: Launch) -> dict[str, Any]:
    told: dict[str, Any] = {name: getattr(launch, name) for name in _PLAIN}
    told |= {"block": launch.block, "grid": launch.grid}
    if launch.counter_set is not None:
        counters = launch.counter_set
        told |= {
            "tool": [counters.tool, counters.tool_version, counters.compute_capability],
            "counters": [list(pair) for pair in counters.counters],
            # JSON has no NaN, which is what was not measured.
            "values": [None if math.isnan(value) else value for value in launch.values],
        }
    return told


def _launch_from_json(row: dict[str, Any]) -> Launch:
    counters = None
    if "tool" in row:
        tool, version, capability = row["tool"]
        names = tuple((name, unit) for name, unit in row["counters"])
        counters = CounterSet(tool, version, capability, names)
    return Launch(
        **{name: row[name] for name in _PLAIN},
        block=None if row["block"] is None else tuple(row["block"]),
        grid=None if row["grid"] is None else tuple(row["grid"]),
        counter_set=counters,
        values=tuple(math.nan if value is None else value for value in row.get("values", ())),
    )

"""Running a plan: each variant built, checked, timed and profiled once."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ...errors import FormatError, TuneDBError, UsageError
from ...formats.gpu.kernels import gpu_target, kernel_workload
from ...identity import canonical_json
from ...launches import CounterSet, Launch
from ...programs.kernel import split_parameters
from ...records import Failure, FailureKind, Measurement, Phase, Session, Status
from ...records import Program as StoredProgram
from .configuration import AXES, GPU, Configuration, Program
from .output_check import difference
from .plan import Plan
from .profiler import (
    complaint,
    counter_command,
    dominant,
    find_tool,
    merge,
    read_launches,
    trace_command,
)
from .runs import Builder, Failed, Runner, digest_of, environment_of
from .state import State
from .variants import Variant, capability

# ---- Finished variants as measurements, and as lines of the state --------------------------------


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
        raise FormatError(f"cannot read a state ({error}); remove it") from None


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


# ---- The collector -------------------------------------------------------------------------------

#: What says which variants there are and not what one of them is; and limits of time, which change
#: nothing about what stayed below them.
_NOT_OF_A_VARIANT = ("sizes", "blocks", "registers", "inputs", "timeout", "build_timeout")


class Collector:
    """Runs the variants of a plan.

    Parameters
    ----------
    configuration : Configuration
        Environment and profiler.
    plan : Plan
        What is run.
    base : Path
        Folder of the configuration, to which its paths are relative.
    work : Path
        Work folder, absolute; it is held by :func:`.state.locked`.
    session : Session
        Of what is run now.
    again : bool
        Whether what failed in an earlier run is tried again.

    Raises
    ------
    UsageError
        The profiler is not found.
    NotFoundError
        A program's folder is not.
    """

    def __init__(
        self,
        configuration: Configuration,
        plan: Plan,
        base: Path,
        work: Path,
        session: Session,
        *,
        again: bool = False,
    ) -> None:
        self._configuration = configuration
        self._plan = plan
        self._work = work.resolve()
        self._session = session
        self._state = State(work)
        if again:
            self._state.forget_failures()
        # One device is visible, so that a program needs no option to choose it.
        chosen = {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": str(plan.device.index),
        }
        self._environment = environment_of(configuration.environment, base, chosen)
        tool = plan.tool
        self._tool = "" if tool == "none" else find_tool(tool, self._environment["PATH"])
        if tool != "nvprof" and any(p.timing.source == "trace" for p in plan.programs):
            raise UsageError(
                'timing from "trace" needs nvprof; let the programs print their time, and write '
                'from = "output" with a pattern'
            )
        self._builders = {
            program.name: Builder(
                program, base, self._work, configuration.environment, chosen, self._state
            )
            for program in plan.programs
        }

    def run(self) -> Iterator[tuple[Outcome, Session, bool]]:
        """Yield each variant's outcome, its session, and whether it was run just now.

        Where the original fails, nothing tells whether the other blocks are right, and its
        outcome alone is yielded of its group.
        """
        programs = {program.name: program for program in self._plan.programs}
        for variant in self._plan.variants:
            program = programs[variant.program]
            original = self._original(program, variant)
            is_base = variant == original
            if not is_base and self._has_failed(program, original):
                continue
            row = self._state.get(self._key(program, variant))
            if row is not None:
                yield *from_json(row, variant), False
                continue
            outcome = self._measure(program, variant, original)
            self._state.finish(self._key(program, variant), to_json(outcome, self._session))
            yield outcome, self._session, True

    @staticmethod
    def _original(program: Program, variant: Variant) -> Variant:
        """Return the variant whose output is right: default block, default registers."""
        return Variant(program.name, program.original, None, variant.input, original=True)

    def _has_failed(self, program: Program, variant: Variant) -> bool:
        row = self._state.get(self._key(program, variant))
        return row is not None and bool(row["failure"])

    def _key(self, program: Program, variant: Variant) -> str:
        profiler = self._configuration.profiler
        told = digest_of(
            {
                name: value
                for name, value in asdict(program).items()
                if name not in _NOT_OF_A_VARIANT
            },
            self._builders[program.name].source,
            [list(variant.block), variant.registers, variant.input],
            asdict(self._configuration.environment),
            asdict(self._plan.device),
            [self._plan.tool, [list(group) for group in self._plan.groups], profiler.options],
        )
        return f"variant {told}"

    # ------------------------------------------------------------------ one variant

    def _measure(self, program: Program, variant: Variant, original: Variant) -> Outcome:
        begun = time.time_ns() // 1000
        folder, failure = self._builders[program.name].build(variant)
        if failure is not None:
            return Outcome(variant, failure=failure, measured_at=begun)
        runner = Runner(program, variant, folder, self._work, self._environment)
        try:
            compared = self._check(program, variant, original, runner)
            times = []
            if program.timing.source != "trace":
                times = [runner.timed(number) for number in range(program.timing.repeats)]
            launches, notes, traced = self._profile(program, variant, runner)
        except Failed as error:
            return Outcome(variant, failure=error.failure, measured_at=begun)
        return Outcome(
            variant, tuple(times or traced), None, tuple(launches), compared, tuple(notes), begun
        )

    def _check(self, program: Program, variant: Variant, original: Variant, runner: Runner) -> bool:
        """Compare a variant's output with the original's; return whether that can be done."""
        found = runner.output("check")
        if program.output.source == "none":
            return False
        name = f"reference-{self._key(program, original).split()[1]}"
        reference = self._work / program.name / name
        if variant == original:
            if difference(found, runner.output("again"), program.output, program.timing):
                reference.unlink(missing_ok=True)
            else:
                reference.write_bytes(found)
            return reference.exists()
        if not reference.exists():
            return False
        told = difference(reference.read_bytes(), found, program.output, program.timing)
        if told is not None:
            raise Failed(FailureKind.WRONG_RESULT, f"its output is not the original's: {told}")
        return True

    def _profile(
        self, program: Program, variant: Variant, runner: Runner
    ) -> tuple[list[Launch], list[str], list[float]]:
        """Return launches with their counters, what could not be read, and times of a trace."""
        tool = self._plan.tool
        if tool == "none":
            name = program.kernel or program.name
            return [Launch(name, variant.threads, variant.block)], [], []
        seen: list[list[Launch]] = []
        notes: list[str] = []
        times: list[float] = []
        trace = None
        traced = program.timing.source == "trace"
        if tool == "nvprof":
            try:
                trace, times = self._trace(program, variant, runner, seen)
            except Failed as error:
                if traced:
                    raise
                notes.append(str(error))
        for number, group in enumerate(self._plan.groups):
            try:
                seen.append(self._read_group(program, runner, number, group, trace))
            except Failed as error:
                # Times and the other groups stand without it.
                notes.append(f"group {number + 1} ({', '.join(group)}): {error}")
        known = capability(self._plan.device)
        launches = dominant(merge(seen, program.kernel, variant.block, known))
        if len(launches) > 1 and launches[0].seconds is None:
            names = ", ".join(launch.kernel for launch in launches[:3])
            notes.append(f"several kernels have the block ({names}); name one with kernel")
        if any(seen) and not launches:
            raise Failed(FailureKind.RUNTIME_ERROR, _other_blocks(seen, variant))
        if not any(seen):
            launches = [Launch(program.kernel or program.name, variant.threads, variant.block)]
            notes.append(f"{tool} saw no launch")
        return launches, notes, times

    def _trace(
        self,
        program: Program,
        variant: Variant,
        runner: Runner,
        seen: list[list[Launch]],
    ) -> tuple[Path, list[float]]:
        """Return nvprof's trace and the kernels' seconds in each run; add launches to `seen`."""
        repeats = program.timing.repeats if program.timing.source == "trace" else 1
        times = []
        for number in range(repeats):
            trace = runner.log(f"trace{number}")
            runner.start(trace_command(self._tool, trace), f"trace{number}")
            rows = _read("nvprof", trace, self._plan.device.name)
            # nvprof measures the durations in a trace without counters, so they are real ones.
            seen.append([replace(launch, seconds=sum(secs) or None) for launch, secs in rows])
            kept = merge(seen[-1:], program.kernel, variant.block)
            names = {(launch.kernel, launch.grid) for launch in kept}
            ours = [
                sum(durations)
                for launch, durations in rows
                if launch.block == variant.block and (launch.kernel, launch.grid) in names
            ]
            times.append(sum(ours))
        return trace, times

    def _read_group(
        self,
        program: Program,
        runner: Runner,
        number: int,
        group: tuple[str, ...],
        trace: Path | None,
    ) -> list[Launch]:
        log = runner.log(f"group{number + 1}")
        before = counter_command(
            self._plan.tool,
            self._tool,
            group,
            log,
            kernel=program.kernel,
            options=self._configuration.profiler.options,
            first=number == 0,
        )
        runner.start(before, f"group{number + 1}")
        return [launch for launch, _ in _read(self._plan.tool, log, self._plan.device.name, trace)]


def _read(
    tool: str, log: Path, device: str, trace: Path | None = None
) -> list[tuple[Launch, tuple[float, ...]]]:
    try:
        return read_launches(tool, log, device=device, trace=trace)
    except TuneDBError as error:
        told = complaint(log) or str(error)
        raise Failed(FailureKind.INFRASTRUCTURE, f"{log.name}: {told}") from None


def _other_blocks(seen: list[list[Launch]], variant: Variant) -> str:
    """Say which blocks were launched instead of the variant's."""
    found = {
        f"{launch.kernel} with {'x'.join(map(str, launch.block))}"
        for run_ in seen
        for launch in run_
        if launch.block is not None
    }
    wanted = "x".join(map(str, variant.block))
    told = ", ".join(sorted(found)[:3]) or "none"
    return f"no kernel was launched with a block of {wanted}; launched: {told}"

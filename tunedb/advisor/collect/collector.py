"""Collector: it builds, checks, times and profiles each variant of a plan once."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from ...errors import FormatError, TuneDBError, UsageError
from ...formats.gpu.kernels import gpu_target, kernel_workload
from ...identity import canonical_json
from ...launches import CounterSet, Launch
from ...programs.kernel import split_parameters
from ...records import Failure, FailureKind, Measurement, Phase, Program, Session, Status
from .configuration import AXES, GPU, Configuration, ProgramConfig
from .output_check import difference
from .plan import CollectPlan
from .profiler import (
    counter_command,
    dominant_launches,
    error_message,
    find_tool,
    merge_launches,
    read_launches,
    trace_command,
)
from .runs import VariantBuilder, VariantError, VariantRunner, digest_of, environment_of
from .state import CollectState
from .variants import Variant, capability

# ---- Outcomes as measurements, and as lines of the state -----------------------------------------


@dataclass(frozen=True, slots=True)
class VariantOutcome:
    """Outcome of one variant.

    Parameters
    ----------
    variant : Variant
        The variant.
    run_secs : tuple of float
        Seconds of each timed run; empty for a failed variant.
    failure : Failure or None
        Cause of its failure.
    launches : tuple of Launch
        Profiled launches of the kernels with the variant's block; without a profiler one launch
        with the kernel and block of the configuration.
    compared : bool
        Its output was compared with the original's.
    notes : tuple of str
        Problems besides, a line each, such as groups of counters that could not be read.
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
    outcome: VariantOutcome, program: ProgramConfig, device: GPU, tool: str, session: Session
) -> Measurement:
    """Return an outcome as a measurement.

    The workload is the kernel (the whole program if none is named) with program and input; the
    parameters are the block, the limit of registers and the input: variants that differ in the
    block alone are a slice.
    """
    variant = outcome.variant
    extents = zip(AXES[: len(program.block)], variant.block, strict=False)
    parameters: dict[str, Any] = {f"block_{axis}": extent for axis, extent in extents}
    parameters |= {"maxrregcount": variant.registers, "input": variant.input}
    stored = Program(
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


def to_json(outcome: VariantOutcome, session: Session) -> dict[str, Any]:
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


def from_json(row: dict[str, Any], variant: Variant) -> tuple[VariantOutcome, Session]:
    """Return the outcome of a line, and its session; the inverse of :func:`to_json`.

    Raises
    ------
    FormatError
        The line was edited.
    """
    try:
        failure = row["failure"]
        key, started_at, fingerprint = row["session"]
        outcome = VariantOutcome(
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


_PLAIN_FIELDS = (
    *("kernel", "threads", "number", "registers"),
    *("static_shared", "dynamic_shared", "seconds"),
)


def _launch_to_json(launch: Launch) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(launch, name) for name in _PLAIN_FIELDS}
    row |= {"block": launch.block, "grid": launch.grid}
    if launch.counter_set is not None:
        counters = launch.counter_set
        row |= {
            "tool": [counters.tool, counters.tool_version, counters.compute_capability],
            "counters": [list(pair) for pair in counters.counters],
            # JSON has no NaN.
            "values": [None if math.isnan(value) else value for value in launch.values],
        }
    return row


def _launch_from_json(row: dict[str, Any]) -> Launch:
    counters = None
    if "tool" in row:
        tool, version, capability = row["tool"]
        names = tuple((name, unit) for name, unit in row["counters"])
        counters = CounterSet(tool, version, capability, names)
    return Launch(
        **{name: row[name] for name in _PLAIN_FIELDS},
        block=None if row["block"] is None else tuple(row["block"]),
        grid=None if row["grid"] is None else tuple(row["grid"]),
        counter_set=counters,
        values=tuple(math.nan if value is None else value for value in row.get("values", ())),
    )


# ---- The collector -------------------------------------------------------------------------------

#: Fields that list the variants and describe none of them; and limits of time, which change no
#: result within them.
_OTHER_FIELDS = ("sizes", "blocks", "registers", "inputs", "timeout", "build_timeout")


class Collector:
    """Collector of the variants of a plan.

    Parameters
    ----------
    configuration : Configuration
        Environment and profiler.
    plan : CollectPlan
        The variants.
    base : Path
        Folder of the configuration, to which its paths are relative.
    work : Path
        Work folder, absolute; :func:`.state.locked` holds it.
    session : Session
        Session of the new runs.
    again : bool
        Try variants again that failed in an earlier run.

    Raises
    ------
    UsageError
        The profiler is not found.
    NotFoundError
        There is no folder of a program.
    """

    def __init__(
        self,
        configuration: Configuration,
        plan: CollectPlan,
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
        self._state = CollectState(work)
        if again:
            self._state.forget_failures()
        # One device is visible, so that a program needs no option to choose it.
        device_variables = {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": str(plan.device.index),
        }
        self._environment = environment_of(configuration.environment, base, device_variables)
        tool = plan.tool
        self._tool = "" if tool == "none" else find_tool(tool, self._environment["PATH"])
        if tool != "nvprof" and any(p.timing.source == "trace" for p in plan.programs):
            raise UsageError(
                'timing from "trace" needs nvprof; let the programs print their time, and write '
                'from = "output" with a pattern'
            )
        self._builders = {
            program.name: VariantBuilder(
                program,
                base,
                self._work,
                configuration.environment,
                device_variables,
                self._state,
            )
            for program in plan.programs
        }

    def run(self) -> Iterator[tuple[VariantOutcome, Session, bool]]:
        """Yield each variant's outcome, its session, and True for a new run.

        If the original fails, no reference tells whether the other blocks are right, so they are
        left out.
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
    def _original(program: ProgramConfig, variant: Variant) -> Variant:
        """Return the reference of a variant: default block, default registers."""
        return Variant(program.name, program.original, None, variant.input, original=True)

    def _has_failed(self, program: ProgramConfig, variant: Variant) -> bool:
        row = self._state.get(self._key(program, variant))
        return row is not None and bool(row["failure"])

    def _key(self, program: ProgramConfig, variant: Variant) -> str:
        profiler = self._configuration.profiler
        fields = asdict(program)
        fields |= {name: asdict(fields[name]) for name in ("output", "timing")}
        digest = digest_of(
            {name: value for name, value in fields.items() if name not in _OTHER_FIELDS},
            self._builders[program.name].source,
            [list(variant.block), variant.registers, variant.input],
            asdict(self._configuration.environment),
            asdict(self._plan.device),
            [self._plan.tool, [list(group) for group in self._plan.groups], profiler.options],
        )
        return f"variant {digest}"

    # ------------------------------------------------------------------ one variant

    def _measure(
        self, program: ProgramConfig, variant: Variant, original: Variant
    ) -> VariantOutcome:
        started = time.time_ns() // 1000
        folder, failure = self._builders[program.name].build(variant)
        if failure is not None:
            return VariantOutcome(variant, failure=failure, measured_at=started)
        runner = VariantRunner(program, variant, folder, self._work, self._environment)
        try:
            compared = self._check(program, variant, original, runner)
            times = []
            if program.timing.source != "trace":
                times = [runner.timed(number) for number in range(program.timing.repeats)]
            launches, notes, traced = self._profile(program, variant, runner)
        except VariantError as error:
            return VariantOutcome(variant, failure=error.failure, measured_at=started)
        return VariantOutcome(
            variant, tuple(times or traced), None, tuple(launches), compared, tuple(notes), started
        )

    def _check(
        self, program: ProgramConfig, variant: Variant, original: Variant, runner: VariantRunner
    ) -> bool:
        """Compare a variant's output with the original's; return False without a reference."""
        output = runner.output("check")
        if program.output.source == "none":
            return False
        name = f"reference-{self._key(program, original).split()[1]}"
        reference = self._work / program.name / name
        if variant == original:
            if difference(output, runner.output("again"), program.output, program.timing):
                reference.unlink(missing_ok=True)
            else:
                reference.write_bytes(output)
            return reference.exists()
        if not reference.exists():
            return False
        found = difference(reference.read_bytes(), output, program.output, program.timing)
        if found is not None:
            message = f"its output is not the original's: {found}"
            raise VariantError(FailureKind.WRONG_RESULT, message)
        return True

    def _profile(
        self, program: ProgramConfig, variant: Variant, runner: VariantRunner
    ) -> tuple[list[Launch], list[str], list[float]]:
        """Return launches with their counters, notes on unread groups, and times of a trace."""
        tool = self._plan.tool
        if tool == "none":
            name = program.kernel or program.name
            return [Launch(name, variant.threads, variant.block)], [], []
        runs: list[list[Launch]] = []
        notes: list[str] = []
        times: list[float] = []
        trace = None
        traced = program.timing.source == "trace"
        if tool == "nvprof":
            try:
                trace, times = self._trace(program, variant, runner, runs)
            except VariantError as error:
                if traced:
                    raise
                notes.append(str(error))
        for number, group in enumerate(self._plan.groups):
            try:
                runs.append(self._read_group(program, runner, number, group, trace))
            except VariantError as error:
                # Times and the other groups are valid without it.
                notes.append(f"group {number + 1} ({', '.join(group)}): {error}")
        known = capability(self._plan.device)
        launches = dominant_launches(merge_launches(runs, program.kernel, variant.block, known))
        if len(launches) > 1 and launches[0].seconds is None:
            names = ", ".join(launch.kernel for launch in launches[:3])
            notes.append(f"several kernels have the block ({names}); name one with kernel")
        if any(runs) and not launches:
            raise VariantError(FailureKind.RUNTIME_ERROR, _other_blocks(runs, variant))
        if not any(runs):
            launches = [Launch(program.kernel or program.name, variant.threads, variant.block)]
            notes.append(f"{tool} saw no launch")
        return launches, notes, times

    def _trace(
        self,
        program: ProgramConfig,
        variant: Variant,
        runner: VariantRunner,
        runs: list[list[Launch]],
    ) -> tuple[Path, list[float]]:
        """Return nvprof's trace and the kernels' seconds in each run; append launches to `runs`."""
        repeats = program.timing.repeats if program.timing.source == "trace" else 1
        times = []
        for number in range(repeats):
            trace = runner.log(f"trace{number}")
            runner.start(trace_command(self._tool, trace), f"trace{number}")
            rows = _read("nvprof", trace, self._plan.device.name)
            # nvprof measures the durations of a trace without counters, so they are run times.
            runs.append([replace(launch, seconds=sum(secs) or None) for launch, secs in rows])
            kept = merge_launches(runs[-1:], program.kernel, variant.block)
            names = {(launch.kernel, launch.grid) for launch in kept}
            seconds = [
                sum(durations)
                for launch, durations in rows
                if launch.block == variant.block and (launch.kernel, launch.grid) in names
            ]
            times.append(sum(seconds))
        return trace, times

    def _read_group(
        self,
        program: ProgramConfig,
        runner: VariantRunner,
        number: int,
        group: tuple[str, ...],
        trace: Path | None,
    ) -> list[Launch]:
        log = runner.log(f"group{number + 1}")
        command = counter_command(
            self._plan.tool,
            self._tool,
            group,
            log,
            kernel=program.kernel,
            options=self._configuration.profiler.options,
            first=number == 0,
        )
        runner.start(command, f"group{number + 1}")
        return [launch for launch, _ in _read(self._plan.tool, log, self._plan.device.name, trace)]


def _read(
    tool: str, log: Path, device: str, trace: Path | None = None
) -> list[tuple[Launch, tuple[float, ...]]]:
    try:
        return read_launches(tool, log, device=device, trace=trace)
    except TuneDBError as error:
        message = error_message(log) or str(error)
        raise VariantError(FailureKind.INFRASTRUCTURE, f"{log.name}: {message}") from None


def _other_blocks(runs: list[list[Launch]], variant: Variant) -> str:
    """Return a message with the blocks that were launched instead of the variant's."""
    launched = {
        f"{launch.kernel} with {'x'.join(map(str, launch.block))}"
        for run in runs
        for launch in run
        if launch.block is not None
    }
    block = "x".join(map(str, variant.block))
    others = ", ".join(sorted(launched)[:3]) or "none"
    return f"no kernel was launched with a block of {block}; launched: {others}"

"""Plan of all runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from ... import limits
from ...errors import LimitError, NotFoundError, UsageError
from .configuration import GPU, Configuration, ProgramConfig
from .counter_groups import default_counters, group_counters
from .variants import IllegalBlock, Variant, capability, illegal_reason, make_variants


@dataclass(frozen=True, slots=True)
class CollectPlan:
    """Variants and their runs.

    Parameters
    ----------
    device : GPU
        The device.
    tool : str
        The profiler: ``ncu``, ``nvprof`` or ``none``.
    groups : tuple of tuple of str
        Counters of each run under the profiler.
    programs : tuple of ProgramConfig
        The chosen programs.
    variants : tuple of Variant
        Program by program, originals first.
    illegal : tuple of IllegalBlock
        Blocks of the configuration that the device cannot run.
    """

    device: GPU
    tool: str
    groups: tuple[tuple[str, ...], ...]
    programs: tuple[ProgramConfig, ...]
    variants: tuple[Variant, ...]
    illegal: tuple[IllegalBlock, ...]

    def runs(self, variant: Variant) -> int:
        """Return the number of runs of a variant's program."""
        program = next(p for p in self.programs if p.name == variant.program)
        # The original runs twice for its output, which may change from run to run.
        outputs = 1 if variant.registers is not None or not variant.original else 2
        trace = 1 if self.tool == "nvprof" and program.timing.source != "trace" else 0
        return outputs + program.timing.repeats + trace + len(self.groups)

    def to_json(self) -> dict[str, Any]:
        """Return the plan for a file."""
        return {
            "device": msgspec.to_builtins(self.device),
            "profiler": self.tool,
            "groups": [list(group) for group in self.groups],
            "variants": [
                {
                    "program": v.program,
                    "block": list(v.block),
                    "registers": v.registers,
                    "input": v.input,
                    "original": v.original,
                    "runs": self.runs(v),
                }
                for v in self.variants
            ],
            "refused": [
                {"program": r.program, "block": list(r.block), "reason": r.reason}
                for r in self.illegal
            ],
        }


def make_plan(
    configuration: Configuration,
    *,
    device: GPU | None = None,
    tool: str | None = None,
    programs: Iterable[str] = (),
) -> CollectPlan:
    """Return the plan of a configuration.

    Parameters
    ----------
    configuration : Configuration
        Programs, devices, profiler.
    device : GPU or None
        The device; None for the first one of the configuration.
    tool : str or None
        The profiler; None for the one that suits the device (:func:`choose_tool`).
    programs : iterable of str
        Names of the programs; none for all.

    Raises
    ------
    UsageError
        Nothing is configured, or an original block is illegal on the device.
    NotFoundError
        A program of that name is not configured.
    LimitError
        There are more variants than :data:`tunedb.limits.MAX_VARIANTS`.
    """
    chosen = _chosen_programs(configuration, programs)
    device = device or _first_device(configuration)
    tool = choose_tool(configuration.profiler.tool, device) if tool is None else tool
    variants: list[Variant] = []
    illegal: list[IllegalBlock] = []
    for program in chosen:
        reason = illegal_reason(program.original, device)
        if reason is not None:
            raise UsageError(f"programs.{program.name}.block: {reason} ({device.name})")
        legal, others = make_variants(program, device)
        variants += legal
        illegal += others
        if len(variants) > limits.MAX_VARIANTS:
            raise LimitError(
                f"more than {limits.MAX_VARIANTS} variants up to programs.{program.name}; "
                "name fewer sizes, registers or inputs"
            )
    counters: tuple[str, ...] = ()
    if tool != "none":
        known = capability(device)
        counters = configuration.profiler.counters or default_counters(tool, known)
        if not counters:
            raise UsageError(
                f"{tool} reads no counters on compute capability {known} ({device.name}); use "
                "another --profiler, or name counters in profiler.counters"
            )
    groups = group_counters(tool, counters, configuration.profiler.per_run or 0)
    return CollectPlan(device, tool, tuple(groups), chosen, tuple(variants), tuple(illegal))


def choose_tool(tool: str, device: GPU) -> str:
    """Return the profiler for a device; for ``auto`` the one that reads its counters.

    nvprof reads none from compute capability 7.5 on, Nsight Compute none before 7.0.
    """
    if tool != "auto":
        return tool
    known = capability(device)
    return "nvprof" if known is not None and int(known.split(".")[0]) < 7 else "ncu"


def _chosen_programs(
    configuration: Configuration, names: Iterable[str]
) -> tuple[ProgramConfig, ...]:
    by_name = {program.name: program for program in configuration.programs}
    for name in (names := list(names)):
        if name not in by_name:
            known = ", ".join(by_name) or "none"
            raise NotFoundError(f"program {name!r} is not configured; there is: {known}")
    if not by_name:
        raise UsageError(
            "no program is configured; add one with: tunedb advise configure --step programs"
        )
    return tuple(p for p in configuration.programs if not names or p.name in names)


def _first_device(configuration: Configuration) -> GPU:
    if not configuration.devices:
        raise UsageError(
            "no device is configured; name one with --device, "
            "or run: tunedb advise configure --step devices"
        )
    return configuration.devices[0]

"""All that is going to be run, before anything is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from ... import limits
from ...errors import LimitError, NotFoundError, UsageError
from .configuration import GPU, Configuration, Program
from .counter_groups import default_counters, groups
from .variants import Refused, Variant, capability, illegal, variants_of


@dataclass(frozen=True, slots=True)
class Plan:
    """Variants and how they are measured.

    Parameters
    ----------
    device : GPU
        What they run on.
    tool : str
        ``ncu``, ``nvprof`` or ``none``.
    groups : tuple of tuple of str
        Counters of each run under the profiler.
    programs : tuple of Program
        Those that are meant.
    variants : tuple of Variant
        Program by program, originals before what is compared with them.
    refused : tuple of Refused
        Blocks that the configuration names and the device cannot run.
    """

    device: GPU
    tool: str
    groups: tuple[tuple[str, ...], ...]
    programs: tuple[Program, ...]
    variants: tuple[Variant, ...]
    refused: tuple[Refused, ...]

    def runs(self, variant: Variant) -> int:
        """Return how often a variant's program is started."""
        program = next(p for p in self.programs if p.name == variant.program)
        # Once for its output; the original twice, to see whether that is always the same.
        once = 1 if variant.registers is not None or not variant.original else 2
        trace = 1 if self.tool == "nvprof" and program.timing.source != "trace" else 0
        return once + program.timing.repeats + trace + len(self.groups)

    def to_json(self) -> dict[str, Any]:
        """Return the plan for a file."""
        return {
            "device": asdict(self.device),
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
                for r in self.refused
            ],
        }


def make_plan(
    configuration: Configuration,
    *,
    device: GPU | None = None,
    tool: str | None = None,
    programs: Iterable[str] = (),
) -> Plan:
    """Return what a configuration asks for.

    Parameters
    ----------
    configuration : Configuration
        Programs, devices, profiler.
    device : GPU or None
        What to run on; None for the first device of the configuration.
    tool : str or None
        The profiler that is used; None for what suits the device (:func:`suitable`).
    programs : iterable of str
        Names of those that are meant; none for all.

    Raises
    ------
    UsageError
        Nothing is configured, or an original block is illegal on the device.
    NotFoundError
        A program of that name is not configured.
    LimitError
        There are more variants than :data:`tunedb.limits.MAX_VARIANTS`.
    """
    chosen = _chosen(configuration, programs)
    device = device or _first(configuration)
    tool = suitable(configuration.profiler.tool, device) if tool is None else tool
    variants: list[Variant] = []
    refused: list[Refused] = []
    for program in chosen:
        reason = illegal(program.original, device)
        if reason is not None:
            raise UsageError(f"programs.{program.name}.block: {reason} ({device.name})")
        made, left_out = variants_of(program, device)
        variants += made
        refused += left_out
        if len(variants) > limits.MAX_VARIANTS:
            raise LimitError(
                f"more than {limits.MAX_VARIANTS} variants up to programs.{program.name}; "
                "name fewer sizes, registers or inputs"
            )
    counters: tuple[str, ...] = ()
    if tool != "none":
        named = configuration.profiler.counters
        known = capability(device)
        counters = named or default_counters(tool, known)
        if not counters:
            raise UsageError(
                f"{tool} reads no counters on compute capability {known} ({device.name}); use "
                "another --profiler, or name counters in profiler.counters"
            )
    parts = groups(tool, counters, configuration.profiler.per_run)
    return Plan(device, tool, tuple(parts), chosen, tuple(variants), tuple(refused))


def suitable(tool: str, device: GPU) -> str:
    """Return the profiler that reads counters of a device.

    nvprof reads none from compute capability 7.5 on, Nsight Compute none before 7.0.
    """
    if tool != "auto":
        return tool
    known = capability(device)
    return "nvprof" if known is not None and int(known.split(".")[0]) < 7 else "ncu"


def _chosen(configuration: Configuration, names: Iterable[str]) -> tuple[Program, ...]:
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


def _first(configuration: Configuration) -> GPU:
    if not configuration.devices:
        raise UsageError(
            "no device is configured; name one with --device, "
            "or run: tunedb advise configure --step devices"
        )
    return configuration.devices[0]

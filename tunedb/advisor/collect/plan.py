"""Plan of all runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ... import limits
from ...errors import LimitError, NotFoundError, UsageError
from ...formats.gpu.profilers import Profiler, parse_capability, profilers
from .configuration import GPU, Configuration, ProgramConfig
from .variants import IllegalBlock, Variant, capability, illegal_reason, make_variants


@dataclass(frozen=True, slots=True)
class CollectPlan:
    """Variants and their runs.

    Parameters
    ----------
    device : GPU
        The device.
    profiler : Profiler or None
        The profiler.
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
    profiler: Profiler | None
    groups: tuple[tuple[str, ...], ...]
    programs: tuple[ProgramConfig, ...]
    variants: tuple[Variant, ...]
    illegal: tuple[IllegalBlock, ...]

    @property
    def tool(self) -> str:
        """Name of the profiler, or ``none``."""
        return "none" if self.profiler is None else self.profiler.name

    def runs(self, variant: Variant) -> int:
        """Return the number of runs of a variant's program."""
        program = next(p for p in self.programs if p.name == variant.program)
        # The original runs twice for its output, which may change from run to run.
        outputs = 1 if variant.registers is not None or not variant.original else 2
        has_trace = self.profiler is not None and self.profiler.has_trace
        traces = 1 if has_trace and program.timing.source != "trace" else 0
        return outputs + program.timing.repeats + traces + len(self.groups)

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
        Name of the profiler; None for the configured one (:func:`choose_profiler`).
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
    profiler = choose_profiler(configuration.profiler.tool if tool is None else tool, device)
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
    groups: list[tuple[str, ...]] = []
    if profiler is not None:
        known = capability(device)
        counters = configuration.profiler.counters
        counters = counters or profiler.default_counters(parse_capability(known))
        if not counters:
            raise UsageError(
                f"{profiler.name} reads no counters on compute capability {known} ({device.name}); "
                "use another --profiler, or name counters in profiler.counters"
            )
        groups = group_counters(profiler, counters, configuration.profiler.per_run or 0)
    return CollectPlan(device, profiler, tuple(groups), chosen, tuple(variants), tuple(illegal))


def choose_profiler(tool: str, device: GPU) -> Profiler | None:
    """Return the profiler of a name: for ``auto`` one that suits the device, for ``none`` None.

    Raises
    ------
    UsageError
        There is no profiler of that name, or none for the device.
    """
    known = profilers()
    if tool == "none":
        return None
    if tool == "auto":
        number = parse_capability(capability(device))
        tool = next((name for name, one in known.items() if one.suits(number)), "auto")
    if tool not in known:
        raise UsageError(f"no profiler {tool!r} for {device.name}; there are: {', '.join(known)}")
    return known[tool]


def group_counters(
    profiler: Profiler, names: Sequence[str], per_run: int = 0
) -> list[tuple[str, ...]]:
    """Return the counters in groups, one for each run, in their order.

    A multiprocessor has few counters, so a profiler replays a kernel for more events than fit. The
    paper partitions the events so that each group fits one run. The device alone knows which fit
    together; the groups here are conservative. A group that does not fit after all costs time, not
    results, since the profiler then replays the kernel.

    Parameters
    ----------
    profiler : Profiler
        The profiler.
    names : sequence of str
        Counters.
    per_run : int
        Counters of one run; 0 for as many as surely fit (:meth:`.Profiler.fits`).
    """
    groups: list[list[str]] = []
    unsure = {row.name for row in profiler.aliases if row.checked == "no"}
    for name in dict.fromkeys(names):
        # A run fails for a name that the profiler does not know, so unsure names share no group
        # with others.
        alike = (group for group in groups if (group[0] in unsure) == (name in unsure))
        group = next(
            (g for g in alike if (len(g) < per_run if per_run else profiler.fits(g, name))), None
        )
        if group is None:
            groups.append([name])
        else:
            group.append(name)
    return [tuple(group) for group in groups]


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

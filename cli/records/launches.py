"""Launches of a record, for ``tunedb show``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ...system import text
from ..output import Column, bold, print_table

if TYPE_CHECKING:
    from ...launches import Extents, Launch

#: Largest number of counters in a table; JSON has all.
_MAX_COUNTERS = 100


def _extents(value: Any) -> str:
    return text.NOTHING if value is None else " x ".join(map(str, value))


_LAUNCH = (
    Column("number", "#", right=True),
    Column("kernel", "kernel", flexible=True),
    Column("threads", "threads", text.number, right=True),
    Column("block", "block", _extents),
    Column("grid", "grid", _extents),
    Column("registers", "registers", text.number, right=True),
    Column("shared", "shared bytes", text.number, right=True),
    Column("seconds", "time", text.seconds, right=True),
)
_COUNTER = (
    Column("name", "counter", flexible=True),
    Column("value", "value", right=True),
    Column("unit", "unit"),
)


def launch_rows(launches: Sequence[Launch]) -> list[dict[str, Any]]:
    """Return launches as JSON; an unmeasured counter is null."""
    return [_row(launch) for launch in launches]


def _row(launch: Launch) -> dict[str, Any]:
    profiler = launch.counter_set
    return {
        "number": launch.number,
        "kernel": launch.kernel,
        "threads": launch.threads,
        "block": _extent_list(launch.block),
        "grid": _extent_list(launch.grid),
        "registers": launch.registers,
        "static_shared": launch.static_shared,
        "dynamic_shared": launch.dynamic_shared,
        "seconds": launch.seconds,
        "profiler": None
        if profiler is None
        else {
            "tool": profiler.tool,
            "version": profiler.tool_version,
            "compute_capability": profiler.compute_capability,
        },
        "counters": []
        if profiler is None
        else [
            {"name": name, "value": value if math.isfinite(value) else None, "unit": unit}
            for (name, unit), value in zip(profiler.counters, launch.values, strict=True)
        ],
    }


def _extent_list(extents: Extents | None) -> list[int] | None:
    return None if extents is None else list(extents)


def print_launches(rows: Sequence[dict[str, Any]]) -> None:
    """Print launches and their counters."""
    if not rows:
        return
    click.echo(f"\n{bold('Launches')}")
    print_table(_LAUNCH, [row | {"shared": _shared(row)} for row in rows])
    for row in rows:
        if not row["counters"]:
            continue
        profiler = row["profiler"]
        words = [profiler["tool"], profiler["version"] or ""]
        if profiler["compute_capability"]:
            words.append(f"(compute capability {profiler['compute_capability']})")
        title = f"Counters of launch {row['number']}, read by {' '.join(filter(None, words))}"
        click.echo(f"\n{bold(text.clean(title))}")
        shown = row["counters"][:_MAX_COUNTERS]
        print_table(_COUNTER, [counter | {"value": _value(counter["value"])} for counter in shown])
        if len(shown) < len(row["counters"]):
            more = len(row["counters"]) - len(shown)
            click.echo(f"… {text.count(more, 'counter')} more (--json)")


def _shared(row: dict[str, Any]) -> int | None:
    """Return the known shared memory of a block, or None."""
    sizes = [row[name] for name in ("static_shared", "dynamic_shared") if row[name] is not None]
    return sum(sizes) if sizes else None


def _value(value: float | None) -> str:
    if value is None:
        return text.NOTHING
    return f"{value:,.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:,.6g}"

"""Counters of profilers under neutral names, which no tool and no generation of GPUs owns.

The neutral name of a counter is that of nvprof's metric, if there is one, else that of the event of
Kepler which Connors and Qasem used (HPCC 2017, Table I). Values have nvprof's scale: utilizations
are levels from 0 to 10, occupancy is 0 to 1, efficiencies and hit rates are percents.

Each profiler has a table of its counters (:mod:`tunedb.formats.gpu.profilers`). ``meanings.csv``
describes the neutral names. A counter without a row keeps its own name.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files

from ..formats.gpu.profilers import CounterAlias, parse_capability, profilers
from ..launches import CounterSet


@dataclass(frozen=True, slots=True)
class CounterMeaning:
    """Description of a neutral counter.

    Parameters
    ----------
    name : str
        The neutral name.
    unit : str
        ``%``, ``byte/s``, ``s``, ``0 to 10``; empty for a count or a ratio.
    kind : str
        ``count`` (grows with the problem), ``percent``, ``level`` (0 to 10), ``ratio``, ``rate``
        (per second), ``time``, or ``unknown``.
    text : str
        The counted event.
    """

    name: str
    unit: str
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class _Term:
    """One neutral counter as a sum over positions in a counter set."""

    canonical: str
    parts: tuple[tuple[int, float], ...]


def neutral(counter_set: CounterSet, values: Sequence[float]) -> dict[str, float]:
    """Return neutral name → value of the measured counters.

    Parameters
    ----------
    counter_set : CounterSet
        The counters, their tool and their device.
    values : sequence of float
        Their values in the set's order and units.

    Returns
    -------
    dict of str to float
        In the order of the tables, then those with names of their own in the set's order. Counters
        that were not measured (NaN, infinite) are left out.

    Raises
    ------
    ValueError
        The numbers of values and counters differ.
    """
    if len(values) != len(counter_set.counters):
        raise ValueError(f"{len(values)} values of {len(counter_set.counters)} counters")
    names = tuple(name for name, _ in counter_set.counters)
    neutral: dict[str, float] = {}
    for term in _terms(counter_set.tool, counter_set.compute_capability, names):
        value = math.fsum(values[position] * scale for position, scale in term.parts)
        if math.isfinite(value):
            neutral[term.canonical] = value
    return neutral


@lru_cache(maxsize=1024)
def _terms(tool: str, capability: str | None, names: tuple[str, ...]) -> tuple[_Term, ...]:
    """Return the neutral counters of a set.

    Each counter of a set is used once, by the first row of the tables that has it: a counter under
    two neutral names would count twice in a model.
    """
    positions = {name: position for position, name in reversed(list(enumerate(names)))}
    known, device = tool in profilers(), parse_capability(capability)
    terms: dict[str, list[tuple[int, float]]] = {}
    used: set[int] = set()
    for group in _groups():
        # The counters of other tools are profilers' too, so their names tell whose they are.
        rows = [row for row in group if row.holds_on(device) and (row.tool == tool or not known)]
        parts = [(positions[row.name], row.scale) for row in rows if row.name in positions]
        parts = [(position, scale) for position, scale in parts if position not in used]
        whole = len(parts) == len(group) if group[0].aggregation == "all" else bool(parts)
        if whole and group[0].canonical not in terms and not _is_plain(group, positions):
            terms[group[0].canonical] = parts
            used.update(position for position, _ in parts)
    for position, name in enumerate(names):
        if position not in used:
            terms.setdefault(name, [(position, 1.0)])
    return tuple(_Term(name, tuple(parts)) for name, parts in terms.items())


def _is_plain(group: tuple[CounterAlias, ...], positions: dict[str, int]) -> bool:
    """Tell whether a set has a counter under the neutral name itself, which then counts."""
    canonical = group[0].canonical
    return canonical in positions and all(row.name != canonical for row in group)


@cache
def aliases() -> tuple[CounterAlias, ...]:
    """Return the rows of all profilers' tables in their order, which is their rank."""
    return tuple(row for profiler in profilers().values() for row in profiler.aliases)


@cache
def _groups() -> tuple[tuple[CounterAlias, ...], ...]:
    """Return the rows with a name, in groups that are summed."""
    groups: dict[tuple[str, ...], list[CounterAlias]] = {}
    for row in aliases():
        if row.name:
            alone = row.name if row.aggregation == "one" else ""
            key = (row.canonical, row.tool, row.aggregation, alone)
            groups.setdefault(key, []).append(row)
    return tuple(map(tuple, groups.values()))


@cache
def _meanings() -> dict[str, CounterMeaning]:
    text = files(__package__).joinpath("meanings.csv").read_text(encoding="utf-8")
    return {
        row["name"]: CounterMeaning(row["name"], row["unit"], row["kind"], row["meaning"])
        for row in csv.DictReader(text.splitlines())
    }


#: Suffixes of the names of Nsight Compute, with the kind and unit of the counter.
_ENDINGS = (
    (".per_second", "rate", "1/s"),
    (".pct_of_peak_sustained_active", "percent", "%"),
    (".pct_of_peak_sustained_elapsed", "percent", "%"),
    (".pct", "percent", "%"),
    (".ratio", "ratio", ""),
    (".per_cycle_active", "ratio", "1/cycle"),
    (".per_cycle_elapsed", "ratio", "1/cycle"),
    (".sum", "count", ""),
)


def describe(name: str) -> CounterMeaning:
    """Return the meaning of a neutral counter; that of an unknown one follows from its name."""
    known = _meanings().get(name)
    if known is not None:
        return known
    for ending, kind, unit in _ENDINGS:
        if name.endswith(ending):
            return CounterMeaning(name, unit, kind, name)
    return CounterMeaning(name, "", "unknown", name)

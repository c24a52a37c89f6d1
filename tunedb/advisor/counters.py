"""Counters of profilers under names that no tool and no generation of GPUs owns.

The neutral name of a counter is that of nvprof's metric, where there is one, else that of the
event of Kepler which Connors and Qasem used (HPCC 2017, Table I). Values have nvprof's scale:
utilizations are levels from 0 to 10, occupancy is 0 to 1, efficiencies and hit rates are percents.

Two tables come with the package. ``aliases.csv`` says under which names a tool has a counter:

``canonical``
    The neutral name.
``tool``, ``cc_min``, ``cc_max``
    Whose name it is, and on which compute capabilities (both included; empty: no end).
``name``
    The tool's name; empty in a row which says that the tool has no such counter there.
``aggregation``
    ``one``: the counter itself. ``parts``: the sum of those that were read (slices of a cache).
    ``all``: the sum, where all were read.
``scale``
    What a value is multiplied by.
``exactness``
    ``exact``: the same thing is counted. ``near``: what comes nearest. ``none``: not comparable,
    kept apart under an own name.
``checked``
    ``data``: seen in files of the tool. ``source``: seen in published programs or lists of names.
    ``no``: from memory, unverified.
``origin``
    ``table1``: Table I of the paper. ``ktt``: KTT's pairs of counters before and after compute
    capability 7.0. ``nvprof``, ``ncu``, ``blackwell``: pairs beyond those.

``meanings.csv`` says what a neutral name counts. A counter that no table knows keeps its own name.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files

from ..launches import CounterSet

#: Tools whose names the table has; a counter of another tool is of one of them by its form.
TOOLS = ("ncu", "nvprof")

#: A compute capability as numbers: "10.0" is above "9.0".
_Capability = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Alias:
    """One row of ``aliases.csv``; see there."""

    canonical: str
    tool: str
    cc_min: _Capability | None
    cc_max: _Capability | None
    name: str
    aggregation: str
    scale: float
    exactness: str
    checked: str
    origin: str

    def holds_on(self, capability: _Capability | None) -> bool:
        """Tell whether the row speaks of a compute capability; all do where it is unknown."""
        if capability is None:
            return True
        above = self.cc_min is None or self.cc_min <= capability
        return above and (self.cc_max is None or capability <= self.cc_max)


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a counter is, for people and for those who make inputs of it.

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
        What is counted.
    """

    name: str
    unit: str
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class _Term:
    """How one neutral counter is made of places in a counter set."""

    canonical: str
    places: tuple[tuple[int, float], ...]


def neutral(counter_set: CounterSet, values: Sequence[float]) -> dict[str, float]:
    """Return neutral name → value of what was measured.

    Parameters
    ----------
    counter_set : CounterSet
        Which counters were read, by which tool, on which device.
    values : sequence of float
        Their values in the set's order and units.

    Returns
    -------
    dict of str to float
        In the order of the table, then those kept under their own names in the set's order.
        Counters that were not measured (NaN, infinite) are left out.

    Raises
    ------
    ValueError
        There are not as many values as counters.
    """
    if len(values) != len(counter_set.counters):
        raise ValueError(f"{len(values)} values of {len(counter_set.counters)} counters")
    found: dict[str, float] = {}
    for term in _terms(
        counter_set.tool, counter_set.compute_capability, tuple(n for n, _ in counter_set.counters)
    ):
        value = math.fsum(values[place] * scale for place, scale in term.places)
        if math.isfinite(value):
            found[term.canonical] = value
    return found


@lru_cache(maxsize=1024)
def _terms(tool: str, capability: str | None, names: tuple[str, ...]) -> tuple[_Term, ...]:
    """Return how the neutral counters of a set are made.

    Each counter of a set is used once, by the first row of the table that wants it: what two
    neutral names shared would count twice in a model.
    """
    places = {name: place for place, name in reversed(list(enumerate(names)))}
    on = parse_capability(capability)
    terms: dict[str, list[tuple[int, float]]] = {}
    used: set[int] = set()
    for group in _groups():
        rows = [row for row in group if row.holds_on(on) and _is_of(row, tool)]
        there = [(places[row.name], row.scale) for row in rows if row.name in places]
        there = [(place, scale) for place, scale in there if place not in used]
        whole = len(there) == len(group) if group[0].aggregation == "all" else bool(there)
        if whole and group[0].canonical not in terms and not _is_plain(group, places):
            terms[group[0].canonical] = there
            used.update(place for place, _ in there)
    for place, name in enumerate(names):
        if place not in used:
            terms.setdefault(name, [(place, 1.0)])
    return tuple(_Term(name, tuple(parts)) for name, parts in terms.items())


def _is_plain(group: tuple[Alias, ...], places: dict[str, int]) -> bool:
    """Tell whether a set has a counter under the neutral name itself, which then counts."""
    canonical = group[0].canonical
    return canonical in places and all(row.name != canonical for row in group)


def _is_of(row: Alias, tool: str) -> bool:
    """Tell whether a row speaks of a tool; those of other tools are known by their form."""
    if tool in TOOLS:
        return row.tool == tool
    return True


@cache
def aliases() -> tuple[Alias, ...]:
    """Return the rows of ``aliases.csv`` in their order, which is their rank."""
    return tuple(
        Alias(
            row["canonical"],
            row["tool"],
            parse_capability(row["cc_min"]),
            parse_capability(row["cc_max"]),
            row["name"],
            row["aggregation"],
            float(row["scale"]),
            row["exactness"],
            row["checked"],
            row["origin"],
        )
        for row in _table("aliases.csv")
    )


@cache
def _groups() -> tuple[tuple[Alias, ...], ...]:
    """Return the rows with a name, those that are summed together."""
    groups: dict[tuple[str, ...], list[Alias]] = {}
    for row in aliases():
        if row.name:
            alone = row.name if row.aggregation == "one" else ""
            key = (row.canonical, row.tool, row.aggregation, alone)
            groups.setdefault(key, []).append(row)
    return tuple(map(tuple, groups.values()))


@cache
def _meanings() -> dict[str, Meaning]:
    return {
        row["name"]: Meaning(row["name"], row["unit"], row["kind"], row["meaning"])
        for row in _table("meanings.csv")
    }


def _table(name: str) -> Iterator[dict[str, str]]:
    """Yield the rows of a table of this package."""
    text = files(__package__).joinpath(name).read_text(encoding="utf-8")
    yield from csv.DictReader(text.splitlines())


#: Ends of the names of Nsight Compute that say what a counter is.
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


def describe(name: str) -> Meaning:
    """Return what a neutral counter is; for an unknown one what its name says."""
    known = _meanings().get(name)
    if known is not None:
        return known
    for ending, kind, unit in _ENDINGS:
        if name.endswith(ending):
            return Meaning(name, unit, kind, name)
    return Meaning(name, "", "unknown", name)


@cache
def known_names() -> frozenset[str]:
    """Return all names that a table has: of tools, and neutral ones.

    Readers of tables whose columns are parameters and counters tell them apart by it.
    """
    return frozenset({row.name for row in aliases() if row.name} | set(_meanings()))


def parse_capability(text: str | None) -> _Capability | None:
    """Return ``"8.6"`` as ``(8, 6)``; None where it is no compute capability."""
    match = re.fullmatch(r"([0-9]{1,3})(?:\.([0-9]{1,2}))?", text or "")
    return None if match is None else (int(match[1]), int(match[2] or 0))

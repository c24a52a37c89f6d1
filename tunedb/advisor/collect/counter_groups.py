"""Groups of counters that one run reads.

A multiprocessor has few counters, and each counts the events of its own domain only, so a profiler
replays a kernel for more events than fit. The paper partitions the events so that each group fits
one run. The device alone knows which events fit together; the groups here are conservative. A group
that does not fit after all costs time, not results, since both tools then replay the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

from .. import counters as aliases

#: Prefixes of nvprof's events that are counted outside the multiprocessors, by their units. Each
#: has a domain of its own in ``nvprof --query-events``.
_DOMAINS = ("fb_subp0", "fb_subp1", "l2_subp0", "l2_subp1", "l2_subp2", "l2_subp3")

#: Events of one domain in one run of nvprof. Multiprocessors of Fermi and Maxwell have eight
#: counters, of Kepler eight in pairs; four are free of conflicts on all of them. Units outside
#: have four counters, of which two are free on all.
_PER_DOMAIN = 4
_PER_UNIT = 2

#: Metrics of one run of Nsight Compute: 8 of one unit fit one pass on Volta and later; more of
#: them are more passes.
_PER_PASS = 8


def default_counters(tool: str, compute_capability: str | None) -> tuple[str, ...]:
    """Return the counters that are read without a choice of the configuration.

    They are those of Table I of the paper, for Nsight Compute also those of KTT, under their names
    on the device (``aliases.csv``).

    Parameters
    ----------
    tool : str
        ``ncu`` or ``nvprof``.
    compute_capability : str or None
        Of the device: names change between architectures.
    """
    return tuple(dict.fromkeys(row.name for row in _rows(tool, compute_capability)))


def _rows(tool: str, compute_capability: str | None) -> list[aliases.Alias]:
    capability = aliases.parse_capability(compute_capability)
    wanted = ("table1", "ktt") if tool == "ncu" else ("table1",)
    return [
        row
        for row in aliases.aliases()
        if row.tool == tool and row.name and row.origin in wanted and row.holds_on(capability)
    ]


def is_event(name: str) -> bool:
    """Tell whether a counter is an event of nvprof; all others are metrics."""
    return any(row.name == name for row in _rows("nvprof", None))


def domain(counter: str) -> str:
    """Return the unit that counts an event of nvprof, by its name."""
    return next((unit for unit in _DOMAINS if counter.startswith(unit)), "multiprocessor")


def group_counters(tool: str, names: Sequence[str], per_run: int = 0) -> list[tuple[str, ...]]:
    """Return the counters in groups, one for each run, in their order.

    Parameters
    ----------
    tool : str
        ``ncu`` or ``nvprof``.
    names : sequence of str
        Counters.
    per_run : int
        Counters of one run; 0 for as many as surely fit: eight metrics of Nsight Compute; of
        nvprof's events four of the multiprocessors and two of each unit of memory.
    """
    groups: list[list[str]] = []
    unsure = {row.name for row in aliases.aliases() if row.tool == tool and row.checked == "no"}
    for name in dict.fromkeys(names):
        # A run fails for a name that the tool does not know, so unsure names share no group with
        # others.
        alike = (g for g in groups if (g[0] in unsure) == (name in unsure))
        group = next((g for g in alike if _fits(tool, g, name, per_run)), None)
        if group is None:
            groups.append([name])
        else:
            group.append(name)
    return [tuple(group) for group in groups]


def _fits(tool: str, group: Sequence[str], name: str, per_run: int) -> bool:
    if per_run:
        return len(group) < per_run
    if tool == "ncu":
        return len(group) < _PER_PASS
    unit = domain(name)
    most = _PER_DOMAIN if unit == "multiprocessor" else _PER_UNIT
    return sum(domain(other) == unit for other in group) < most

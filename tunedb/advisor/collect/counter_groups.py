"""Which counters are read in one run.

A multiprocessor has few counters, and each can count the events of its own domain only, so a
profiler replays a kernel where it is asked for more than fits. The document partitions the events
so that each group fits one run. Which events fit together is known to the device alone; what is
used here is conservative. A group that does not fit after all costs time, not results, since both
tools then replay the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

from .. import counters as aliases

#: Beginnings of nvprof's events that are counted outside the multiprocessors, by their units:
#: ``nvprof --query-events`` lists each under a domain of its own.
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
    """Return what is read where a configuration names no counters.

    Those of Table I of the document, and for Nsight Compute the counters of KTT besides, under the
    names that hold on the device (``aliases.csv``).

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
    """Tell whether nvprof calls a counter an event; it calls all others metrics."""
    return any(row.name == name for row in _rows("nvprof", None))


def domain(counter: str) -> str:
    """Return the unit that counts an event of nvprof, as far as its name tells."""
    return next((unit for unit in _DOMAINS if counter.startswith(unit)), "multiprocessor")


def groups(tool: str, names: Sequence[str], per_run: int = 0) -> list[tuple[str, ...]]:
    """Return the counters in groups for one run each, in their order.

    Parameters
    ----------
    tool : str
        ``ncu`` or ``nvprof``.
    names : sequence of str
        Counters.
    per_run : int
        How many one run takes; 0 for what is known to fit: eight metrics of Nsight Compute; of
        nvprof's events four of the multiprocessors and two of each unit of memory.
    """
    made: list[list[str]] = []
    unsure = {row.name for row in aliases.aliases() if row.tool == tool and row.checked == "no"}
    for name in dict.fromkeys(names):
        # A name that the tool may not know takes no other down with it.
        alike = [g for g in made if (g[0] in unsure) == (name in unsure)]
        place = next((g for g in alike if _fits(tool, g, name, per_run)), None)
        if place is None:
            made.append([name])
        else:
            place.append(name)
    return [tuple(group) for group in made]


def _fits(tool: str, group: Sequence[str], name: str, per_run: int) -> bool:
    if per_run:
        return len(group) < per_run
    if tool == "ncu":
        return len(group) < _PER_PASS
    unit = domain(name)
    most = _PER_DOMAIN if unit == "multiprocessor" else _PER_UNIT
    return sum(domain(other) == unit for other in group) < most

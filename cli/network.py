"""Times of a network and its operators, for ``tunedb tune`` and ``tunedb top --network``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..system import text
from .options import Settings
from .output import Column, print_table

if TYPE_CHECKING:
    from ..storage.network_runs import NetworkRun

#: ``kind`` is operator, runtime (calls and allocations) or network (one run as a whole).
COLUMNS = (
    Column("network"),
    Column("kind"),
    Column("operator", "operator", flexible=True),
    Column("digest"),
    Column("calls", "calls", right=True),
    Column("untuned", "untuned", text.seconds, right=True),
    Column("seconds", "tuned", text.seconds, right=True),
    Column("share", "share", text.percent, right=True),
    Column("flops", "FLOP/s", text.operations, right=True),
    Column("limit", "of the limit", text.percent, right=True),
    Column("weight"),
    Column("target"),
)


def network_rows(network: NetworkRun) -> list[dict[str, Any]]:
    """Return a row for each operator, slowest first, one for the runtime, and one for all."""
    rows: list[dict[str, Any]] = [
        {
            "kind": "operator",
            "operator": operator.name,
            "digest": operator.workload,
            "calls": operator.calls,
            "untuned": operator.untuned,
            "seconds": operator.seconds,
            "share": _ratio(operator.seconds, network.latency),
            "flops": operator.rate,
            "limit": operator.limit_share(network.roofline),
        }
        for operator in network.operators
    ]
    unknown = dict.fromkeys(column.key for column in COLUMNS)
    runtime = {
        "kind": "runtime",
        "operator": "calls and allocations",
        "seconds": network.runtime,
        "share": _ratio(network.runtime, network.latency),
    }
    total = {
        "kind": "network",
        "operator": network.name,
        "untuned": network.untuned,
        "seconds": network.latency,
        "share": 1.0,
        "weight": network.weight,
        "target": network.latency_target,
    }
    return [unknown | {"network": network.name} | row for row in (*rows, runtime, total)]


def print_networks(networks: Iterable[NetworkRun]) -> None:
    """Print a table for each network."""
    for network in networks:
        print_table(COLUMNS, network_rows(network))


def note_network(settings: Settings, network: NetworkRun) -> None:
    """Print the latency before and after, the sum of the operators, and the accuracy."""
    on = f" on {text.threads(network.threads)}" if network.threads else ""
    target = network.latency_target
    settings.note(
        f"{network.name}{on}: {text.seconds(network.untuned)} untuned, "
        f"{text.seconds(network.latency)} tuned ({network.untuned / network.latency:.1f}x"
        f"{'' if target is None else f', target {text.seconds(target)}'}); "
        f"sum of the operators {text.seconds(network.sum_of_operators)}; "
        f"outputs differ by {network.deviation:.1g}"
    )
    if network.roofline is not None:
        settings.note(
            f"Limit of this machine: {text.operations(network.roofline.flops)}FLOP/s, "
            f"{text.operations(network.roofline.bandwidths[-1][1])}B/s from memory"
        )
    if network.slower:
        settings.note(
            f"{text.count(len(network.slower), 'operator')} slower than untuned: "
            "give the run more --trials or --minutes"
        )
    if not network.is_accurate:
        settings.warn(
            f"outputs differ from the untuned network's by {network.deviation:.1e} "
            f"(allowed {network.tolerance:.0e}): find the wrong program with tunedb revalidate"
        )


def _ratio(value: float, of: float) -> float | None:
    return value / of if of > 0 else None

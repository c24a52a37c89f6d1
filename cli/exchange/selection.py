"""Options that select records, for bundle, merge, pull and push."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from ...storage.exchange_types import Selection

F = TypeVar("F", bound=Callable[..., Any])

#: Largest ``--best``: the database's integers have 64 bits.
MAX_RECORDS = 2**62

_OPTIONS = (
    click.option(
        *("--workload", "workloads"),
        metavar="WORKLOAD",
        multiple=True,
        help="Only this workload: its name or the beginning of its digest; may be repeated.",
    ),
    click.option(
        *("--target", "targets"),
        metavar="TARGET",
        multiple=True,
        help="Only this target: its kind (llvm) or label (tunedb targets); may be repeated.",
    ),
    click.option(
        *("--source", "sources"),
        metavar="SOURCE",
        multiple=True,
        help="Only this source: its name or the beginning of its digest; may be repeated.",
    ),
    click.option(
        "--since",
        metavar="DATE",
        help="Only records measured at or after this time: 2026-11-22, or 2026-11-22T08:30; UTC.",
    ),
    click.option(
        "--best",
        metavar="K",
        type=click.IntRange(min=1, max=MAX_RECORDS),
        help="Only the K fastest records of each workload and target, and --rest.",
    ),
    click.option(
        "--rest",
        metavar="SHARE",
        type=click.FloatRange(min=0),
        help="With --best: also this share of K of slow and failed records; models need "
        "both.  [default: 1.0]",
    ),
    click.option(
        "--features", is_flag=True, help="Include stored features; they can be recomputed."
    ),
)


def selection_options(function: F) -> F:
    """Add the options to a command, and pass their value as ``selection=``."""

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        words = {name: kwargs.pop(name) for name in _PARAMETERS}
        return function(*args, selection=_selection(**words), **kwargs)

    for option in reversed(_OPTIONS):
        wrapper = option(wrapper)
    return wrapper  # type: ignore[return-value]


#: Parameters of :data:`_OPTIONS` in click.
_PARAMETERS = ("workloads", "targets", "sources", "since", "best", "rest", "features")


def _selection(
    workloads: tuple[str, ...],
    targets: tuple[str, ...],
    sources: tuple[str, ...],
    since: str | None,
    best: int | None,
    rest: float | None,
    features: bool,
) -> Selection:
    """Return the selection that the options describe."""
    from ...storage.exchange_types import Selection

    if rest is not None and best is None:
        raise click.UsageError("--rest is a share of --best K; give both")
    if rest is not None and not math.isfinite(rest):  # click accepts nan and inf
        raise click.BadParameter("not a share: expected a number from 0 on", param_hint="'--rest'")
    return Selection(
        workloads=workloads,
        targets=targets,
        sources=sources,
        since=0 if since is None else moment(since),
        best=best,
        rest=1.0 if rest is None else rest,
        features=features,
    )


def moment(words: str) -> int:
    """Parse an ISO 8601 date or time to microseconds since 1970; the default zone is UTC.

    Raises
    ------
    click.BadParameter
        The words are neither a date nor a time.
    """
    from datetime import UTC, datetime, timedelta

    try:
        value = datetime.fromisoformat(words)
        if value.tzinfo is None:
            value = value.replace(tzinfo=UTC)
        return (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{words!r} is not a date; write it as 2026-11-22 or 2026-11-22T08:30",
            param_hint="'--since'",
        ) from None

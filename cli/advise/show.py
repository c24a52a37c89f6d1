"""``tunedb advise show``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from .. import text
from ..card import share
from ..options import Settings, common_options, pass_settings, reading
from ..output import Column, output_options, print_rows

if TYPE_CHECKING:
    from ...advisor.learn.advice import Advice, Expected, Reason
    from ...advisor.observations import Observation

#: Launches that are shown without --limit.
_MOST = 20


def _block(value: Sequence[int] | None) -> str:
    return "" if value is None else "x".join(map(str, value))


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x"


def _reasons(value: Sequence[dict[str, Any]]) -> str:
    return ", ".join(text.clean(one["name"]) for one in value)


def _expected(value: dict[str, Any] | None) -> str:
    if value is None:
        return ""
    return f"{value['low']:.2f}-{value['high']:.2f}x ({value['slices']})"


COLUMNS = (
    Column("record", "record", right=True),
    Column("launch"),
    Column("kernel", "kernel", flexible=True, fold=True),
    Column("device", "device", flexible=True, fold=True),
    Column("threads", "threads", text.number, right=True),
    Column("block", "block", _block, right=True),
    Column("seconds", "time", text.seconds, right=True),
    Column("stake", "at stake", _times, right=True),
    Column("label", "advice", lambda value: value or "no advice"),
    Column("probability", "p", share, right=True),
    Column("probabilities"),
    Column("next_block", "next", _block, right=True),
    Column("expected", "gain (slices)", _expected, right=True, least=100),
    Column("reasons", "because of", _reasons, flexible=True),
    Column("model"),
)


@click.command()
@click.argument("kernel")
@click.option("--record", type=int, metavar="N", help="Show only launches of this record.")
@click.option(
    "--device", metavar="DEVICE", help="Show only launches on devices whose name contains this."
)
@click.option("--model", type=int, metavar="ID", help="Advisor to use. Default: the newest.")
@click.option(
    *("-k", "--limit"),
    type=click.IntRange(min=1),
    default=_MOST,
    show_default=True,
    help="Largest number of launches, the fastest first.",
)
@output_options
@common_options
@pass_settings
def show(
    settings: Settings,
    kernel: str,
    record: int | None,
    device: str | None,
    model: int | None,
    limit: int,
) -> None:
    """Advise whether a kernel's block should grow or shrink.

    KERNEL is a name, or a part of one. "p" is the probability that the advice is right, calibrated
    on held-out kernels. "next" is the next legal block in that direction; test it, because a
    kernel's results may depend on its block. "at stake" is the time over the best measured time
    with all else equal; "gain" is the middle half of the gains of such a step elsewhere. Launches
    that are unlike all training data get no advice.

    Example:
      tunedb advise show matrixMul
      tunedb advise show Convolution --record 42 --json | jq '.[0].reasons'
    """
    from ...advisor.learn.advice import advise
    from ...advisor.learn.store import find
    from ...advisor.loading import load, t1_inputs

    with reading(settings) as store:
        advisor, stored = find(store, model)
        known, stated = load(store), t1_inputs(store)
    wanted = _chosen(known, kernel, record, device)
    shown = sorted(wanted, key=lambda i: known[i].seconds)[:limit]
    rows = [_row(one, stored.id) for one in advise(advisor, known, shown, stated=stated)]
    print_rows(settings, COLUMNS, rows)
    if len(shown) < len(wanted):
        settings.note(f"{text.number(len(wanted) - len(shown))} more launches; see: --limit")
    silent = sum(row["label"] is None for row in rows)
    if silent:
        settings.note(f"{silent} without advice: they are unlike all training data of the advisor")


def _chosen(
    known: Sequence[Observation], kernel: str, record: int | None, device: str | None
) -> list[int]:
    """Return the positions of the launches that are meant; one at least."""
    from ...errors import NotFoundError

    names = {one.kernel for one in known}
    fits = {kernel} if kernel in names else {n for n in names if kernel.lower() in n.lower()}
    if not fits:
        listed = ", ".join(sorted(names)[:8]) or "none"
        raise NotFoundError(f"no launch of a kernel {kernel!r}; there are: {listed}")
    found = [
        i
        for i, one in enumerate(known)
        if one.kernel in fits
        and record in (None, one.record)
        and (device or "").lower() in one.device.lower()
    ]
    if not found:
        raise NotFoundError(
            f"no launch of {kernel!r} matches --record and --device; omit them to see all"
        )
    return found


def _row(advice: Advice, model: int) -> dict[str, Any]:
    one = advice.observation
    return {
        "record": one.record,
        "launch": one.launch,
        "kernel": one.kernel,
        "device": one.device,
        "threads": one.threads,
        "block": one.block,
        "seconds": one.seconds,
        "stake": advice.stake,
        "label": None if advice.label is None else str(advice.label),
        "probability": advice.probability,
        "probabilities": list(advice.probabilities),
        "next_block": advice.block,
        "expected": _gain(advice.expected),
        "reasons": [_reason(reason) for reason in advice.reasons],
        "model": model,
    }


def _gain(expected: Expected | None) -> dict[str, Any] | None:
    if expected is None:
        return None
    return {
        "low": expected.low,
        "middle": expected.middle,
        "high": expected.high,
        "slices": expected.slices,
    }


def _reason(reason: Reason) -> dict[str, Any]:
    value = reason.value if reason.value == reason.value else None
    return {"name": reason.name, "value": value, "weight": reason.weight}

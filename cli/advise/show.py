"""``tunedb advise show``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ...system import text
from ..card import share
from ..options import Settings, common_options, pass_settings, reading
from ..output import Column, output_options, print_rows

if TYPE_CHECKING:
    from ...advisor.learn.advice import Advice, Expected, Reason
    from ...advisor.observations import Observation

#: Default of --limit.
_LIMIT = 20


def _block(value: Sequence[int] | None) -> str:
    return "" if value is None else "x".join(map(str, value))


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x"


def _reasons(value: Sequence[dict[str, Any]]) -> str:
    return ", ".join(text.clean(reason["name"]) for reason in value)


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
    Column("source", "from"),
    Column("probability", "p", share, right=True),
    Column("probabilities"),
    Column("next_block", "next", _block, right=True),
    Column("expected", "gain (slices)", _expected, right=True, least=100),
    Column("reasons", "reasons", _reasons, flexible=True),
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
    default=_LIMIT,
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
    with all else equal; "gain" is the middle half of the gains of such a step elsewhere. "from" is
    the source: "measured" (the same program on other devices), "kernel" (the kernel with other
    parameters on other devices) or "learnt" (other kernels). There is no advice where that source
    was no better than doing nothing, at this confidence, on held-out kernels and devices.

    Example:
      tunedb advise show matrixMul
      tunedb advise show Convolution --record 42 --json | jq '.[0].reasons'
    """
    from ...advisor.learn.advice import advise
    from ...advisor.learn.store import find
    from ...advisor.loading import load, t1_inputs

    with reading(settings) as store:
        advisor, stored = find(store, model)
        observations, inputs = load(store), t1_inputs(store)
    matches = _matches(observations, kernel, record, device)
    fastest = sorted(matches, key=lambda i: observations[i].seconds)[:limit]
    advice = advise(advisor, observations, fastest, stated=inputs)
    rows = [_row(item, stored.id) for item in advice]
    print_rows(settings, COLUMNS, rows)
    if len(fastest) < len(matches):
        settings.note(f"{text.number(len(matches) - len(fastest))} more launches; see: --limit")
    without_advice = sum(row["label"] is None for row in rows)
    if without_advice:
        settings.note(
            f"{without_advice} without advice: on held-out kernels and devices the advisor was no "
            "better than doing nothing at this confidence"
        )


def _matches(
    observations: Sequence[Observation], kernel: str, record: int | None, device: str | None
) -> list[int]:
    """Return the positions of the launches that match; raise NotFoundError without any."""
    from ...errors import NotFoundError

    names = {launch.kernel for launch in observations}
    kernels = {kernel} if kernel in names else {n for n in names if kernel.lower() in n.lower()}
    if not kernels:
        listed = ", ".join(sorted(names)[:8]) or "none"
        raise NotFoundError(f"no launch of a kernel {kernel!r}; there are: {listed}")
    matches = [
        i
        for i, launch in enumerate(observations)
        if launch.kernel in kernels
        and record in (None, launch.record)
        and (device or "").lower() in launch.device.lower()
    ]
    if not matches:
        raise NotFoundError(
            f"no launch of {kernel!r} matches --record and --device; omit them to see all"
        )
    return matches


def _row(advice: Advice, model: int) -> dict[str, Any]:
    launch = advice.observation
    return {
        "record": launch.record,
        "launch": launch.launch,
        "kernel": launch.kernel,
        "device": launch.device,
        "threads": launch.threads,
        "block": launch.block,
        "seconds": launch.seconds,
        "stake": advice.stake,
        "label": None if advice.label is None else str(advice.label),
        "source": advice.source,
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

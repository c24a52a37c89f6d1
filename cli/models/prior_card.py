"""``tunedb models card``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...system import text
from ..card import share
from ..layers import measured_on, prior_option
from ..options import Settings, common_options, pass_settings
from ..output import Column, output_options, print_fields, print_object, print_table
from ..progress import progress_bar

if TYPE_CHECKING:
    from ...models.prior_card import HeldOut, PriorCard

COLUMNS = tuple(
    Column(key)
    for key in (
        *("file", "digest", "licence", "records", "workloads", "machines", "targets", "held_out"),
        *("impossible", "right", "wrong", "unsure", "worst_share"),
    )
)

_HELD_OUT = (
    Column("regime", "held out", fold=True),
    Column("workloads", "workloads", text.number, right=True),
    Column("programs", "programs", text.number, right=True, least=100),
    Column("pairwise", "pairs", share, right=True),
    Column("top1", "top-1", share, right=True),
    Column("top5", "top-5", share, right=True),
    Column("trials90", "trials to 90 %", lambda value: f"{value:.1f}", right=True),
    Column("worst_share", "worst top-1", share, right=True),
    Column("worst", "of", flexible=True),
)


@click.command()
@prior_option
@click.option(
    "--threads", type=click.IntRange(min=1), help="Number of threads. Default: one for each core."
)
@output_options
@common_options
@pass_settings
def card(settings: Settings, prior: str | None, threads: int | None) -> None:
    """Show what a prior is worth for functions and machines that it does not have.

    Models train on a part of its programs and rank the others: those of other shapes, of one
    operator family at a time, of one machine at a time. "pairs" is the share of pairs of programs
    in measured order, "top-1" and "top-5" the best throughput among the first by score, "trials"
    the number of trials until one is within 10 % of the best. A search chose the programs, so that
    even a random order finds good ones.

    A choice is right if the first program by score has 90 % of the best throughput. It is unsure
    where no other function is similar, or too few to learn from. Nothing is stored.

    Example:
      tunedb models card
      tunedb models card --prior company.prior --json | jq '.held_out[] | [.regime, .top5.mean]'
    """
    from ...errors import NotFoundError
    from ...exchange.prior import prior_path, read_card, unpacked
    from ...models.prior_card import prior_card
    from ...storage.store import Store

    path = prior_path(prior or "auto")
    if path is None:
        raise NotFoundError("there is no prior; name one: tunedb models card --prior FILE")
    facts = read_card(path)
    with (
        Store(unpacked(path), read_only=True) as store,
        progress_bar(settings, None) as progress,
    ):
        found = prior_card(store, threads=threads, on_step=progress.show)
    row = _row(path, facts, found)
    print_object(settings, COLUMNS, row, lambda: _show(row, found))


def _row(path: Path, facts: dict[str, Any], found: PriorCard) -> dict[str, Any]:
    kept = ("digest", "licence", "records", "workloads", "machines", "targets")
    return {
        "file": str(path),
        **{key: facts[key] for key in kept},
        "held_out": [_held_out(each) for each in found.held_out],
        "impossible": found.impossible,
        "right": found.right,
        "wrong": found.wrong,
        "unsure": found.unsure,
        "worst_share": found.worst_share,
    }


def _held_out(each: HeldOut) -> dict[str, Any]:
    return {
        "regime": each.regime,
        "workloads": each.workloads,
        "programs": each.programs,
        **{
            name: {"mean": figure.mean, "random": figure.random}
            for name, figure in each.figures.items()
        },
        "worst": each.worst,
        "worst_share": each.worst_share,
    }


def _show(row: dict[str, Any], found: PriorCard) -> None:
    """Print a card for people."""
    fields = [
        ("file", row["file"]),
        (
            "contents",
            f"{text.count(row['records'], 'record')}, {text.count(row['workloads'], 'workload')}",
        ),
        ("targets", ", ".join(row["targets"])),
        ("measured on", measured_on(row)),
        ("licence", row["licence"]),
        ("digest", row["digest"]),
    ]
    print_fields([(label, text.clean(value)) for label, value in fields])
    click.echo()
    table = []
    for each, values in zip(found.held_out, row["held_out"], strict=True):
        ours = {name: figure.mean for name, figure in each.figures.items()}
        chance = {name: figure.random for name, figure in each.figures.items()}
        table += [
            values | ours,
            dict.fromkeys(values) | {"regime": "  in random order"} | chance,
        ]
    print_table(_HELD_OUT, table)
    for regime, reason in found.impossible.items():
        click.echo(text.clean(f"{regime} was left out: {reason}"))
    click.echo(
        f"\nFirst choice for functions that are held out: right {found.right:,}, "
        f"wrong {found.wrong:,}, unsure {found.unsure:,}"
        + ("" if found.worst_share is None else f"; worst {found.worst_share:.0%} of the best")
    )

"""What an evaluation found, as people and programs read it."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import TYPE_CHECKING, Any

import click

from . import text
from .options import Settings
from .output import Column, print_rows, print_table

if TYPE_CHECKING:
    from ..models.findings import Difference, Evaluation, Summary

#: Workloads below which the width of an interval is told: it is then wider than most differences.
_FEW = 20
#: Workloads below which the bootstrap has so few samples that its intervals are far too narrow.
_TOO_FEW = 6

#: Keys of a figure in JSON.
_FIELDS = ("mean", "low", "high", "tenth", "random", "skill")

#: What stands in the row of the noise floor.
_FLOOR = "(measured once)"


def _share(value: dict[str, float | None] | None) -> str:
    return _with_width(value, 3)


def _number(value: dict[str, float | None] | None) -> str:
    return _with_width(value, 1)


def _with_width(value: dict[str, float | None] | None, digits: int) -> str:
    """Return a mean, and half the width of its interval."""
    if value is None or value["mean"] is None:
        return text.NOTHING
    shown = f"{value['mean']:.{digits}f}"
    if value["low"] is None or value["high"] is None:
        return shown
    return f"{shown} ±{(value['high'] - value['low']) / 2:.{digits}f}"


COLUMNS = (
    Column("regime", "held out", fold=True),
    Column("pool", "pool", fold=True),
    Column("model", "model", flexible=True),
    Column("workloads", "workloads", text.number, right=True, least=120),
    Column("pools"),
    Column("programs"),
    Column("pairwise", "pairs", _share, right=True),
    Column("top1", "top-1", _share, right=True, least=90),
    Column("top5", "top-5", _share, right=True),
    Column("recall30", "recall@30", _share, right=True, least=130),
    Column("trials90", "trials to 90 %", _number, right=True),
    Column("trials95", "to 95 %", _number, right=True, least=105),
    Column("spearman", "Spearman", _share, right=True, least=145),
)

#: Columns of the table of paired differences.
_DIFFERENCES = (
    Column("regime", "held out", fold=True),
    Column("pool", "pool", fold=True),
    Column("models", "paired difference", flexible=True),
    Column("pairwise", "pairs", right=True),
    Column("top5", "top-5", right=True),
    Column("trials90", "trials to 90 %", right=True),
)


def print_findings(settings: Settings, found: Evaluation) -> None:
    """Print the figures, and what they do not tell."""
    rows = list(_rows(found))

    def show() -> None:
        print_table(COLUMNS, rows)
        differences = list(_difference_rows(found))
        if differences:
            click.echo()
            print_table(_DIFFERENCES, differences)

    print_rows(settings, COLUMNS, rows, show=show)
    for what, why in found.impossible.items():
        settings.note(f"{what} was left out: {why}")
    few = [row for row in rows if row["workloads"] < _FEW and row["model"] in found.recipes]
    if few:
        least = min(few, key=lambda row: row["workloads"])
        where = f"{least['regime']}, {least['pool']} pools"
        count = text.count(least["workloads"], "workload")
        pairs, top = (_width(least[key]) for key in ("pairwise", "top5"))
        if least["workloads"] < _TOO_FEW:
            settings.warn(f"{where}: with {count}, neither means nor intervals say much of others")
            return
        settings.warn(
            f"{where}: with {count} the means are uncertain by {pairs} (pairs) and {top} (top-5)"
        )


def _width(value: dict[str, float | None]) -> str:
    """Return half the width of an interval."""
    if value["low"] is None or value["high"] is None:
        return "an unknown amount"
    return f"±{(value['high'] - value['low']) / 2:.3f}"


def _rows(found: Evaluation) -> Iterator[dict[str, Any]]:
    """Yield a row for each model in each regime and kind of pool, and for the noise floor."""
    from ..models.metrics import FIGURES

    for index, one in enumerate(found.results):
        row = {"regime": one.regime, "pool": one.pool, "workloads": len(one.workloads)}
        row |= {"pools": one.pools, "programs": one.programs}
        yield row | {"model": one.model} | {f: _figure(one.summary(f)) for f in FIGURES}
        following = found.results[index + 1 : index + 2]
        last = not following or (following[0].regime, following[0].pool) != (one.regime, one.pool)
        if last and one.floor is not None:
            floor = one.floor.mean(axis=0)
            means = {
                figure: dict.fromkeys(_FIELDS) | {"mean": float(value)}
                for figure, value in zip(FIGURES, floor, strict=True)
            }
            yield row | {"model": _FLOOR} | means


def _figure(summary: Summary) -> dict[str, float | None]:
    """Return a figure for JSON."""
    values = ((key, getattr(summary, key)) for key in _FIELDS)
    return {key: value if isfinite(value) else None for key, value in values}


def _difference_rows(found: Evaluation) -> Iterator[dict[str, Any]]:
    """Yield the differences between recipes, workload by workload."""
    keys = dict.fromkeys((one.regime, one.pool) for one in found.results)
    for regime, pool in keys:
        pairs: dict[str, dict[str, Difference]] = {}
        for one in found.differences(regime, pool):
            if one.other != "random":
                pairs.setdefault(f"{one.one} - {one.other}", {})[one.figure] = one
        for models, figures in pairs.items():
            shown = {
                column.key: _signed(figures[column.key], 1 if "trials" in column.key else 3)
                for column in _DIFFERENCES[3:]
            }
            yield {"regime": regime, "pool": pool, "models": models} | shown


def _signed(one: Difference, digits: int) -> str:
    """Return a difference with its interval: ``+0.012 (-0.003 to 0.028)``."""
    if not isfinite(one.low):
        return f"{one.mean:+.{digits}f}"
    return f"{one.mean:+.{digits}f} ({one.low:.{digits}f} to {one.high:.{digits}f})"

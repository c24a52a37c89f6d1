"""``tunedb history``."""

from __future__ import annotations

from typing import Any

import click

from ...system import text
from .. import choose
from ..options import Settings, common_options, pass_settings, reading
from ..output import Column, output_options, print_rows

COLUMNS = (
    Column("target_id"),
    Column("target"),
    Column("step"),
    Column("id"),
    Column("mean"),
    Column("best"),
)

_SUMMARY = (
    Column("target", "target", fold=True),
    Column("records", "records", right=True),
    Column("first", "first", text.seconds, right=True),
    Column("best", "best", text.seconds, right=True),
    Column("speedup", "speed-up", right=True),
    Column("step", "best at trial", right=True),
    Column("course", "best so far"),
)


@click.command()
@choose.workload_argument(required=True)
@choose.target_option()
@output_options
@common_options
@pass_settings
def command(settings: Settings, workload: str, target: str | None) -> None:
    """Show how the best time improved with each record.

    The table has one line for each target; JSON and CSV hold every valid record, in the order of
    measurement (or of insertion, if the log has no time of day).

    Example:
      tunedb history matmul
      tunedb history 3 --csv > history.csv
    """
    with reading(settings) as store:
        ids = store.lookup.workload(workload)
        target_ids = choose.find_targets(store, target)
        histories = {}
        for target_id in store.answers.targets(ids):
            if target_ids is None or target_id in target_ids:
                label = choose.target_label(store.targets.get(target_id))
                histories[target_id, label] = store.records.history(ids, [target_id])
    if settings.output == "table":
        print_rows(
            settings,
            _SUMMARY,
            [_summary(label, history) for (_, label), history in histories.items()],
            empty="no valid record",
        )
        return
    rows = (
        {
            "target_id": target_id,
            "target": label,
            "step": step,
            "id": record,
            "mean": mean,
            "best": best,
        }
        for (target_id, label), history in histories.items()
        for step, (record, mean, best) in enumerate(history, start=1)
    )
    print_rows(settings, COLUMNS, rows)


def _summary(label: str, history: list[tuple[int, float, float]]) -> dict[str, Any]:
    bests = [best for _, _, best in history]
    first, last = bests[0], bests[-1]
    return {
        "target": label,
        "records": len(history),
        "first": first,
        "best": last,
        "speedup": f"{first / last:.2f}x" if last > 0 else None,
        "step": bests.index(last) + 1,
        "course": text.sparkline(bests),
    }

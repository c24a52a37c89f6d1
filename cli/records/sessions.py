"""``tunedb sessions``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from ...system import text
from ..choose import find_targets, target_label, target_option
from ..options import Settings, common_options, pass_settings, reading, updating
from ..output import Column, output_options, print_rows

if TYPE_CHECKING:
    from ...models.sessions import Estimate
    from ...storage.sessions import MeasuredSession
    from ...storage.store import Store


def _factor(value: float | None) -> str:
    return text.NOTHING if value is None else f"{value:.3f}"


def _error(value: float | None) -> str:
    return text.NOTHING if value is None else f"± {value:.3f}"


COLUMNS = (
    Column("target_id"),
    Column("target", "target", flexible=True, fold=True),
    Column("subject"),
    Column("subject_id"),
    Column("is_trusted"),
    Column("name", "session", text.short_path, flexible=True),
    Column("hardware", "hardware", flexible=True, least=90),
    Column("started_at", "start", least=110),
    Column("records", "records", text.number, right=True),
    Column("failed"),
    Column("machine", "machine", right=True),
    Column("programs", "shared", text.number, right=True),
    Column("factor", "factor", _factor, right=True),
    Column("error", "", _error),
    Column("spread", "spread", text.percent, right=True),
    Column("drift", "drift"),
    Column("stored"),
)


@click.command()
@target_option()
@click.option("--update", is_flag=True, help="Store the factors for training and tunedb top.")
@output_options
@common_options
@pass_settings
def command(settings: Settings, target: str | None, update: bool) -> None:
    """Compare sessions that measured the same programs.

    A session is one run of a tuner on one machine; records of a log without sessions count as one
    session of their source. "factor" is how much slower a session measured than the first one of
    its machine: the median over the programs that other sessions of the machine measured too
    ("shared"), with its 95 % interval. "drift" shows whether the factor exceeds noise and 1 %.
    Sessions whose ratios scatter by more than 10 % ("spread") count as different machines (0 is the
    largest): no factor makes their times comparable. Foreign sessions, without measurements of a
    trusted source, are compared among themselves, on machines from -1 down; foreign records that
    name another session count as one session of their source. Each call estimates the factors
    again; --update stores them beside the raw times.

    Example:
      tunedb sessions
      tunedb sessions --target llvm --update
      tunedb sessions --json | jq '.[] | select(.drift)'
    """
    with (updating if update else reading)(settings) as store:
        from ...models import sessions

        target_ids = find_targets(store, target)
        estimates = (sessions.update if update else sessions.estimates)(store, target_ids)
        rows = [row for estimate in estimates for row in _rows(store, estimate)]
    print_rows(settings, COLUMNS, rows, empty="no record yet; see: tunedb import --help")
    if rows and len(rows) == len(estimates):
        settings.note("One session for each target: there is nothing to compare.")
    for estimate in estimates:
        _explain(settings, estimate, [r for r in rows if r["target_id"] == estimate.target_id])


def _rows(store: Store, estimate: Estimate) -> Iterator[dict[str, Any]]:
    """Yield a row for each session of a target."""
    target = target_label(store.targets.get(estimate.target_id))
    stored = {
        (factor.subject, factor.subject_id): factor.factor
        for factor in store.runs.factors(estimate.target_id)
    }
    for index, session in enumerate(estimate.sessions):
        factor = stored.get((session.subject, session.subject_id))
        yield _row(estimate, index) | {"target": target, "stored": factor}


def _row(estimate: Estimate, index: int) -> dict[str, Any]:
    factor, error = estimate.factors[index], estimate.errors[index]
    session = estimate.sessions[index]
    return {
        "target_id": session.target_id,
        "subject": session.subject,
        "subject_id": session.subject_id,
        "is_trusted": session.is_trusted,
        "name": _name(session),
        "hardware": " + ".join(name for name in session.hardware if name) or None,
        "started_at": text.moment(session.started_at),
        "records": session.records,
        "failed": session.failed,
        "machine": factor.machine,
        "programs": factor.programs,
        "factor": factor.factor,
        "error": None if error is None else factor.factor * math.expm1(error),
        "spread": factor.spread,
        "drift": estimate.drifted(index),
    }


def _name(session: MeasuredSession) -> str:
    from ...records import Source

    origin = session.origin
    name = origin.name if isinstance(origin, Source) else f"session {session.subject_id}"
    return name if session.is_trusted else f"{name} (foreign)"


def _explain(settings: Settings, estimate: Estimate, rows: list[dict[str, Any]]) -> None:
    """Print why there are several machines, and the next command."""
    target = f"Target {estimate.target_id}"
    different = [pair for pair in estimate.pairs if pair.verdict is False]
    if different:
        largest = max(different, key=lambda pair: pair.programs)
        first, second = (estimate.sessions[index] for index in (largest.first, largest.second))
        settings.note(
            f"{target}: {estimate.machines} machines; {_name(first)} and {_name(second)} share "
            f"{text.count(largest.programs, 'program')}, whose ratios scatter by "
            f"{text.percent(largest.spread)} about {largest.factor:.2f}"
        )
    alone = sum(not row["programs"] for row in rows)
    if len(rows) > 1 and alone and not different:
        settings.note(
            f"{target}: {text.count(alone, 'session')} of {len(rows)} share too few programs with "
            "others for a comparison; their times stay uncorrected"
        )
    if len(rows) > 1 and any(row["stored"] != row["factor"] for row in rows):
        settings.note(f"{target}: store these factors with: tunedb sessions --update")

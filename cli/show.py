"""``tunedb show``."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from . import choose, text
from .options import Settings, common_options, pass_settings, reading
from .output import Column, bold, output_options, print_fields, print_object

if TYPE_CHECKING:
    from ..records import Failure, Record, Session

#: Lines of a script that are printed without ``--script``.
_SCRIPT_LINES = 20

COLUMNS = tuple(
    map(
        Column,
        (
            *("id", "digest", "status", "mean", "median", "minimum", "spread", "run_secs"),
            *("measured_at", "occurrence", "retracted", "failure"),
            *("workload", "target", "program", "origin", "donor", "source", "session"),
            *("decisions", "trace", "script"),
        ),
    )
)


@click.command()
@click.argument("record")
@click.option("--trace", "whole_trace", is_flag=True, help="Print all steps, post-processing too.")
@click.option("--script", "whole_script", is_flag=True, help="Print all of the workload's script.")
@output_options
@common_options
@pass_settings
def command(settings: Settings, record: str, whole_trace: bool, whole_script: bool) -> None:
    """Show everything about one record.

    RECORD is an id, or the beginning of a digest (four digits or more), as tunedb top lists them.
    JSON holds the whole trace and script always.

    Example:
      tunedb show 42
      tunedb show 3f9a1c --trace
      tunedb show 42 --json | jq .trace
    """
    with reading(settings) as store:
        found = store.query.record(choose.find_record(store.query, record))

    def show() -> None:
        _show_record(found)
        _show_steps(found, whole=whole_trace)
        _show_script(found.measurement.program.workload.script, whole=whole_script)

    print_object(settings, COLUMNS, _row(found), show)


def _row(record: Record) -> dict[str, Any]:
    from ..traces import join_trace
    from .steps import decisions_of
    from .top import spread

    measurement = record.measurement
    program, times = measurement.program, measurement.run_secs
    instructions, decisions = join_trace(program.trace)
    return {
        "id": record.id,
        "digest": measurement.digest.hex(),
        "status": measurement.status.name.lower(),
        "mean": record.mean,
        "median": statistics.median(times) if times else None,
        "minimum": min(times) if times else None,
        "spread": spread(times or ()),
        "run_secs": None if times is None else list(times),
        "measured_at": text.moment(measurement.measured_at),
        "occurrence": measurement.occurrence,
        "retracted": record.retracted,
        "failure": _failure(measurement.failure),
        "workload": _workload(record),
        "target": {
            "id": record.target_id,
            "kind": program.target.kind,
            "config": program.target.attributes,
        },
        "program": program.digest.hex(),
        "origin": measurement.origin.value,
        "donor": None if measurement.donor is None else measurement.donor.hex(),
        "source": {
            "name": record.source.name,
            "kind": record.source.kind.value,
            "trust": record.source.trust.name.lower(),
        },
        "session": _session(measurement.session),
        "decisions": decisions_of(measurement),
        "trace": [instructions, decisions],
        "script": program.workload.script,
    }


def _workload(record: Record) -> dict[str, Any]:
    from .steps import arguments_of

    workload = record.measurement.program.workload
    return {
        "id": record.workload_id,
        "name": workload.name,
        "digest": workload.digest.hex(),
        "format": workload.format,
        "tvm_version": workload.tvm_version,
        "arguments": arguments_of(record.measurement),
    }


def _failure(failure: Failure | None) -> dict[str, Any] | None:
    if failure is None:
        return None
    return {
        "kind": failure.kind.value,
        "phase": failure.phase.value,
        "message": failure.message,
        "seconds": failure.seconds,
    }


def _session(session: Session | None) -> dict[str, Any] | None:
    import orjson

    if session is None:
        return None
    return {
        "key": session.key,
        "started_at": text.moment(session.started_at),
        "fingerprint": orjson.loads(session.fingerprint),
    }


def _show_record(record: Record) -> None:
    row = _row(record)
    workload, target, source = row["workload"], row["target"], row["source"]
    measurement = record.measurement
    label = choose.target_label(measurement.program.target)
    version = f", TVM {workload['tvm_version']}" if workload["tvm_version"] else ""
    fields = [
        ("digest", row["digest"]),
        ("workload", text.clean(f"{workload['id']} {workload['name']}{version}")),
        ("arguments", text.arguments(workload["arguments"])),
        ("target", f"{target['id']} {label}"),
        ("", text.plain(target["config"])),
        ("status", row["status"] + (" (retracted)" if record.retracted else "")),
        *_time_fields(row),
        *_failure_fields(measurement.failure),
        ("source", text.clean(f"{source['name']} ({source['kind']}, {source['trust']})")),
        *_session_fields(row["session"]),
        ("origin", row["origin"] + (f" of program {row['donor']}" if row["donor"] else "")),
        ("decisions", text.decisions(row["decisions"])),
    ]
    print_fields(fields, heading=f"Record {record.id}")


def _time_fields(row: dict[str, Any]) -> list[tuple[str, str]]:
    fields = []
    if row["mean"] is not None:
        spread = f" ± {text.percent(row['spread'])}" if row["spread"] is not None else ""
        fields = [
            ("mean", text.seconds(row["mean"]) + spread),
            ("median", text.seconds(row["median"])),
            ("minimum", text.seconds(row["minimum"])),
            ("repeats", ", ".join(map(text.seconds, row["run_secs"]))),
        ]
    if row["measured_at"]:
        fields.append(("measured", row["measured_at"]))
    return fields


def _failure_fields(failure: Failure | None) -> list[tuple[str, str]]:
    if failure is None:
        return []
    after = "" if failure.seconds is None else f" after {text.seconds(failure.seconds)}"
    lines = text.clean_lines(failure.message.strip())
    return [
        ("failure", f"{failure.kind.value} in {failure.phase.value}{after}"),
        *(("", line) for line in lines),
    ]


def _session_fields(session: dict[str, Any] | None) -> list[tuple[str, str]]:
    if session is None:
        return []
    machine = session["fingerprint"]
    known = ", ".join(f"{key} {value}" for key, value in machine.items())
    return [("session", f"started {text.plain(session['started_at'])}"), ("", text.clean(known))]


def _show_steps(record: Record, *, whole: bool) -> None:
    from .steps import steps_of

    lines, before = steps_of(record.measurement)
    shown = lines if whole else lines[:before]
    width = len(str(len(lines)))
    click.echo(f"\n{bold('Steps')}")
    for number, line in enumerate(shown, start=1):
        click.echo(f"{number:>{width}}  {line}")
    if len(shown) < len(lines):
        rest = text.count(len(lines) - len(shown), "step")
        click.echo(f"{'':>{width}}  … {rest} of post-processing (--trace)")


def _show_script(script: str | None, *, whole: bool) -> None:
    if script is None:
        return
    lines: Sequence[str] = text.clean_lines(script.rstrip("\n"))
    shown = lines if whole else lines[:_SCRIPT_LINES]
    click.echo(f"\n{bold('Script')}")
    for line in shown:
        click.echo(line)
    if len(shown) < len(lines):
        click.echo(f"… {text.count(len(lines) - len(shown), 'line')} more (--script)")

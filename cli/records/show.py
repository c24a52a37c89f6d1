"""``tunedb show``."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ...search.lineage import LineageStep, lineage_lines, lineage_of, lineage_rows
from ...system import text
from .. import choose
from ..layers import open_prior
from ..options import Settings, common_options, pass_settings, reading
from ..output import Column, bold, output_options, print_fields, print_object
from .launches import launch_rows, print_launches

if TYPE_CHECKING:
    from ...records import Failure, Session
    from ...results import Record
    from ...storage.records import Statement

#: Largest number of printed statements of untrusted sources; JSON has all.
_MAX_STATEMENTS = 10

#: Printed lines of a script without ``--script``.
_SCRIPT_LINES = 20

COLUMNS = tuple(
    map(
        Column,
        (
            *("id", "digest", "status", "mean", "median", "minimum", "spread", "run_secs"),
            *("measured_at", "all_cost", "occurrence", "retracted", "failure"),
            *("workload", "target", "program", "origin", "donor", "lineage", "source", "session"),
            *("context", "extra", "launches", "others", "decisions", "steps", "trace", "script"),
        ),
    )
)


@click.command()
@click.argument("record")
@click.option("--trace", "whole_trace", is_flag=True, help="Print all steps, with post-processing.")
@click.option("--script", "whole_script", is_flag=True, help="Print the workload's whole script.")
@output_options
@common_options
@pass_settings
def command(settings: Settings, record: str, whole_trace: bool, whole_script: bool) -> None:
    """Show everything about one record.

    RECORD is an id, or the beginning of a digest (four digits or more), as tunedb top lists them.
    Steps have the numbers that the log's own references use, from 0. JSON always holds all steps
    and the whole script.

    Example:
      tunedb show 42
      tunedb show 3f9a1c --trace
      tunedb show 42 --json | jq '.steps[] | select(.name == "split")'
    """
    with reading(settings) as store:
        stored = store.records.get(store.lookup.record(record))
        steps = lineage_of(store, stored)
        if any(step.has_unknown_donor for step in steps):
            with open_prior() as prior:
                steps = lineage_of(store, stored, prior)
        launches = launch_rows(store.launches.for_record(stored.id))
        others = [_statement(statement) for statement in store.records.unaccepted(stored.id)]

    def show() -> None:
        _show_record(stored, steps, others)
        print_launches(launches)
        _show_steps(stored, whole=whole_trace)
        _show_script(stored.measurement.program.workload.script, whole=whole_script)

    row = _row(stored, steps) | {"launches": launches, "others": others}
    print_object(settings, COLUMNS, row, show)


def _row(record: Record, steps: Sequence[LineageStep]) -> dict[str, Any]:
    import orjson

    from ...programs import tool_of
    from ...programs.step_text import decisions_of, row_of
    from ...records import Status
    from .top import spread

    measurement = record.measurement
    program = measurement.program
    # The times of a failed or unmeasured record are sentinels of its tool.
    times = (measurement.run_secs or ()) if measurement.status is Status.OK else ()
    tool = tool_of(program.workload.format)
    transforms = tool.steps(program.trace)
    return {
        "id": record.id,
        "digest": measurement.digest.hex(),
        "status": measurement.status.name.lower(),
        "mean": record.mean if times else None,
        "median": statistics.median(times) if times else None,
        "minimum": min(times) if times else None,
        "spread": spread(times),
        "run_secs": None if measurement.run_secs is None else list(measurement.run_secs),
        "measured_at": text.moment(measurement.measured_at),
        "all_cost": measurement.all_cost,
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
        "lineage": lineage_rows(steps),
        "source": {
            "name": record.source.name,
            "kind": record.source.kind.value,
            "trust": record.source.trust.name.lower(),
        },
        "session": _session(measurement.session),
        "context": {**tool.options(program.trace), **orjson.loads(measurement.context or b"{}")},
        "extra": orjson.loads(measurement.extra or b"null"),
        "decisions": decisions_of(tool, transforms),
        "steps": list(map(row_of, transforms)),
        "trace": None if tool.as_json is None else list(tool.as_json(program.trace)),
        "script": program.workload.script,
    }


def _workload(record: Record) -> dict[str, Any]:
    from ...programs.step_text import arguments_of

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


def _statement(statement: Statement) -> dict[str, Any]:
    """Return a statement of an untrusted source as JSON."""
    from ...records import Failure

    content = statement.content
    return {
        "source": statement.source.name,
        "trust": statement.source.trust.name.lower(),
        "failure": _failure(content) if isinstance(content, Failure) else None,
        "launch": None if isinstance(content, Failure) else launch_rows([content])[0],
    }


def _show_record(
    record: Record, steps: Sequence[LineageStep], others: Sequence[dict[str, Any]]
) -> None:
    row = _row(record, steps)
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
        *(("", text.clean(raw)) for raw in [measurement.program.target.text] if raw),
        ("status", row["status"] + (" (retracted)" if record.retracted else "")),
        *_time_fields(row),
        *_failure_fields(measurement.failure),
        ("source", text.clean(f"{source['name']} ({source['kind']}, {source['trust']})")),
        *_labelled("not trusted", _statement_lines(others)),
        *_session_fields(row["session"]),
        *_labelled("origin", lineage_lines(steps)),
        *_context_fields(row),
        ("decisions", text.decisions(row["decisions"])),
    ]
    print_fields(fields, heading=f"Record {record.id}")


def _labelled(label: str, lines: Sequence[str]) -> list[tuple[str, str]]:
    """Return lines as fields; the first one gets the label."""
    return [("" if number else label, line) for number, line in enumerate(lines)]


def _time_fields(row: dict[str, Any]) -> list[tuple[str, str]]:
    fields = []
    if row["mean"] is not None:
        spread = f" ± {text.percent(row['spread'])}" if row["spread"] is not None else ""
        fields.append(("mean", text.seconds(row["mean"]) + spread))
        if len(row["run_secs"]) > 1:
            fields += [
                ("median", text.seconds(row["median"])),
                ("minimum", text.seconds(row["minimum"])),
                ("repeats", ", ".join(map(text.seconds, row["run_secs"]))),
            ]
    elif row["status"] == "cut_short":
        fields.append(("repeats", ", ".join(map(text.seconds, row["run_secs"]))))
    if row["all_cost"]:
        fields.append(("whole trial", text.seconds(row["all_cost"])))
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


def _statement_lines(others: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line for each statement of an untrusted source."""
    lines = []
    for statement in others[:_MAX_STATEMENTS]:
        failure, launch = statement["failure"], statement["launch"]
        if failure is not None:
            after = (
                "" if failure["seconds"] is None else f" after {text.seconds(failure['seconds'])}"
            )
            claim = f"failure {failure['kind']} in {failure['phase']}{after}"
        else:
            time = "" if launch["seconds"] is None else f", {text.seconds(launch['seconds'])}"
            claim = f"launch {launch['number']} of {launch['kernel']}{time}"
        lines.append(
            text.clean(f"{claim}, according to {statement['source']} ({statement['trust']})")
        )
    if len(others) > _MAX_STATEMENTS:
        lines.append(f"… {len(others) - _MAX_STATEMENTS} more (--json)")
    return lines


def _session_fields(session: dict[str, Any] | None) -> list[tuple[str, str]]:
    if session is None:
        return []
    machine = session["fingerprint"]
    fingerprint = ", ".join(f"{key} {value}" for key, value in machine.items())
    started = f"started {text.plain(session['started_at'])}"
    return [("session", started), ("", text.clean(fingerprint))]


def _context_fields(row: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the other fields of the log; target, time of day and search are printed above."""
    values = {**row["context"], **(row["extra"] or {})}
    version = values.pop("version", None)
    log = " ".join(text.plain(value) for value in (values.pop("log", None), version) if value)
    fields = [("log", log)] if log else []
    for key, value in values.items():
        if key not in ("target", "timestamp", "search") and value not in ("", [], None):
            label = "as logged" if key == "workload" else text.clean(key).replace("_", " ")
            words = _hardware(value, version) if key == "hardware_params" else value
            fields.append((label, text.plain(words)))
    return fields


#: Names of ``hardware_params`` (``HardwareParamsNode``, ``src/auto_scheduler/search_task.cc``).
_HARDWARE = (
    *("cores", "vector bytes", "cache line bytes", "shared memory bytes", "local memory bytes"),
    *("threads per block", "vthread extent", "warp size"),
)


def _hardware(values: Any, version: Any) -> Any:
    """Format hardware parameters with their names, without unset ones."""
    if not (isinstance(values, list) and len(values) == len(_HARDWARE)):
        return values
    names = list(_HARDWARE)
    if version == "v0.3":  # most v0.3 logs predate apache/tvm #7040
        names[4] = "registers or local memory"
    pairs = zip(names, values, strict=True)
    return ", ".join(f"{name} {text.plain(value)}" for name, value in pairs if value not in (0, -1))


def _show_steps(record: Record, *, whole: bool) -> None:
    from ...programs import steps_of
    from ...programs.step_text import before_postproc, line_of

    steps = steps_of(record.measurement.program)
    shown = steps if whole else steps[: before_postproc(steps)]
    width = len(str(len(steps)))
    click.echo(f"\n{bold('Steps')}")
    for step in shown:
        click.echo(f"{step.number:>{width}}  {line_of(step)}")
    if len(shown) < len(steps):
        rest = text.count(len(steps) - len(shown), "step")
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

"""``tunedb advise collect``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...system import text
from ..interrupt import interrupted
from ..options import Settings, common_options, pass_settings, writing
from ..output import Column, output_options, print_rows
from ..progress import progress_bar

if TYPE_CHECKING:
    from ...advisor.collect.collector import VariantOutcome
    from ...advisor.collect.configuration import GPU, Configuration
    from ...advisor.collect.plan import CollectPlan
    from ...records import Session


def _block(value: Any) -> str:
    return "x".join(map(str, value))


_VARIANT = (
    Column("program", "program", fold=True),
    Column("block", "block", _block),
    Column("threads", "threads", text.number, right=True),
    Column("registers", "registers", right=True, least=80),
    Column("input", "input", flexible=True, least=80),
    Column("original"),
)
PLAN_COLUMNS = (*_VARIANT, Column("runs", "runs", text.number, right=True))
COLUMNS = (
    *_VARIANT,
    Column("mean", "mean", text.seconds, right=True),
    Column("speedup", "speed-up", lambda v: text.NOTHING if v is None else f"{v:.2f}", right=True),
    Column("counters", "counters", text.number, right=True),
    Column("compared", "compared"),
    Column("failure", "failure"),
    Column("message"),
    Column("run_secs"),
    Column("notes"),
    Column("new"),
)


@click.command()
@click.argument("file", type=click.Path(path_type=Path), default=Path("advise.toml"))
@click.option("--dry-run", is_flag=True, help="Print the plan and run nothing; this needs no GPU.")
@click.option(
    "--plan",
    "plan_file",
    type=click.Path(path_type=Path),
    help="Write the plan as JSON and run nothing; this needs no GPU.",
)
@click.option(
    "--program",
    "programs",
    multiple=True,
    metavar="NAME",
    help="Only this program; may be repeated.",
)
@click.option(
    "--device",
    metavar="DEVICE",
    help="Number or name of a configured device, or NAME[:CAPABILITY] of another.",
)
@click.option(
    "--profiler",
    metavar="TOOL",
    help="Profiler that reads the counters: ncu, nvprof, none or auto. Default: as configured.",
)
@click.option(
    "--work-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder to build and run variants in. Default: FILE with .work.",
)
@click.option("--again", is_flag=True, help="Retry the variants that failed in an earlier run.")
@click.option("--source", metavar="NAME", default="collect", help="Name of the source.")
@output_options
@common_options
@pass_settings
def collect(settings: Settings, file: Path, **choices: Any) -> None:
    """Build, run and profile variants of programs.

    FILE configures the programs (tunedb advise configure; default: advise.toml). Its commands run
    as your own code. The command builds each variant in a copy of the program's folder, compares
    its output with the original's, times it without a profiler, and then profiles it, a few
    counters in each run. Failed variants are stored with their cause. To continue an interrupted
    run, run the same command again.

    Example:
      tunedb advise collect --dry-run
      tunedb advise collect advise.toml --plan plan.json --device "Tesla K40c"
      tunedb advise collect advise.toml --program matmul --profiler none
    """
    from ...advisor.collect.configuration import read
    from ...advisor.collect.plan import make_plan

    configuration = read(file)
    device = _device(configuration, choices["device"])
    plan = make_plan(
        configuration, device=device, tool=choices["profiler"], programs=choices["programs"]
    )
    for block in plan.illegal:
        settings.warn(f"{block.program}: {_block(block.block)} is left out: {block.reason}")
    if choices["plan_file"] is not None:
        _write_plan(settings, choices["plan_file"], plan)
    if choices["dry_run"] or choices["plan_file"] is not None:
        print_rows(settings, PLAN_COLUMNS, [_plan_row(plan, v) for v in plan.variants])
        runs = sum(map(plan.runs, plan.variants))
        settings.note(
            f"{text.count(len(plan.variants), 'variant')}, {text.count(runs, 'run')}; "
            f"{plan.tool}: {text.count(sum(map(len, plan.groups)), 'counter')} in "
            f"{text.count(len(plan.groups), 'group')}; {plan.device.name}"
        )
        return
    _collect(settings, file, configuration, plan, choices)


def _device(configuration: Configuration, words: str | None) -> GPU | None:
    """Return the device that `words` name; None for the first configured one."""
    from ...advisor.collect.cuda_detection import parse_device

    if words is None:
        return None
    for device in configuration.devices:
        if words in (str(device.index), device.name):
            return device
    return parse_device(words)


def _write_plan(settings: Settings, path: Path, plan: CollectPlan) -> None:
    import json

    from ...system.files import write_whole

    write_whole(path, json.dumps(plan.to_json(), indent=1) + "\n")
    settings.note(f"Wrote {path}")


def _collect(
    settings: Settings,
    file: Path,
    configuration: Configuration,
    plan: CollectPlan,
    choices: dict[str, Any],
) -> None:
    """Run a plan; store and print the outcomes."""
    from ...advisor.collect.collector import Collector
    from ...advisor.collect.state import locked
    from ...system.host import new_session

    folder = choices["work_dir"] or file.with_name(file.name + ".work")
    rows: list[dict[str, Any]] = []
    try:
        with locked(folder):
            collector = Collector(
                configuration,
                plan,
                file.absolute().parent,
                folder.absolute(),
                new_session(gpu=plan.device.name),
                again=choices["again"],
            )
            _store(settings, plan, collector.run(), choices["source"], rows)
    except KeyboardInterrupt:
        raise interrupted(
            f"Interrupted after {len(rows)} of {len(plan.variants)} variants; "
            "run the same command again to continue",
        ) from None
    _report(settings, plan, rows, folder)


def _store(
    settings: Settings,
    plan: CollectPlan,
    outcomes: Iterator[tuple[VariantOutcome, Session, bool]],
    source: str,
    rows: list[dict[str, Any]],
) -> None:
    """Store each outcome when it arrives, and append its row."""
    from ...advisor.collect.collector import measurement
    from ...records import Source, SourceKind

    programs = {program.name: program for program in plan.programs}
    with writing(settings) as store, progress_bar(settings, len(plan.variants)) as progress:
        for outcome, session, is_new in outcomes:
            variant = outcome.variant
            record = measurement(
                outcome, programs[variant.program], plan.device, plan.tool, session
            )
            # Outcomes of an earlier run are stored already, unless it was killed before that.
            store.records.add([record], Source(source, SourceKind.LIVE))
            rows.append(_row(outcome, rows, is_new=is_new))
            progress.describe(f"{variant.program} {variant.label}")
            progress.update(len(rows))
            if settings.verbosity > 0 and is_new:
                result = outcome.failure.message if outcome.failure else "ok"
                settings.note(f"{variant.program} {variant.label}: {result}")


def _plan_row(plan: CollectPlan, variant: Any) -> dict[str, Any]:
    return {**_variant_row(variant), "runs": plan.runs(variant)}


def _variant_row(variant: Any) -> dict[str, Any]:
    return {
        "program": variant.program,
        "block": list(variant.block),
        "threads": variant.threads,
        "registers": variant.registers,
        "input": variant.input,
        "original": variant.original,
    }


def _row(outcome: VariantOutcome, rows: list[dict[str, Any]], *, is_new: bool) -> dict[str, Any]:
    from statistics import fmean

    failure = outcome.failure
    variant = _variant_row(outcome.variant)
    mean = fmean(outcome.run_secs) if outcome.run_secs else None
    keys = ("program", "registers", "input")
    originals = (r for r in rows if r["original"] and all(r[k] == variant[k] for k in keys))
    base = mean if outcome.variant.original else next((r["mean"] for r in originals), None)
    return {
        **variant,
        "mean": mean,
        "speedup": None if mean is None or base is None else base / mean,
        "counters": sum(len(launch.values) for launch in outcome.launches),
        "compared": outcome.compared,
        "failure": None if failure is None else failure.kind.value,
        "message": None if failure is None else failure.message,
        "run_secs": list(outcome.run_secs),
        "notes": list(outcome.notes),
        "new": is_new,
    }


def _report(
    settings: Settings, plan: CollectPlan, rows: list[dict[str, Any]], folder: Path
) -> None:
    """Print the outcomes, then warnings and notes for each program."""
    print_rows(settings, COLUMNS, rows)
    for program in plan.programs:
        variants = [row for row in rows if row["program"] == program.name]
        originals = [row for row in variants if row["original"] and row["registers"] is None]
        for row in originals:
            if row["failure"]:
                settings.warn(
                    f"{program.name}: the original program fails, so no variant was run: "
                    f"{row['message']}"
                )
            elif not row["compared"] and program.output.source != "none":
                settings.warn(
                    f"{program.name}: two runs of the original program differ in their output, so "
                    "no output was compared (programs.output: ignore, tolerance)"
                )
        failed = [row for row in variants if row["failure"] and row not in originals]
        if failed:
            settings.note(f"{program.name}: {text.count(len(failed), 'variant')} failed (--json)")
        notes = [row["notes"][0] for row in variants if row["notes"]]
        if notes:
            settings.warn(f"{program.name}: {text.count(len(notes), 'variant')}: {notes[0]}")
    new = sum(row["new"] for row in rows)
    settings.note(
        f"{text.count(new, 'variant')} run, {len(rows) - new} of an earlier run: {folder}"
    )

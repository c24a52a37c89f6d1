"""``tunedb explain module``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ...system import text
from ..layers import layer_option, prior_of, prior_options, resolve_layers
from ..module import compile_target_option, label, lowering_of, lowering_options, one_target
from ..options import Settings, common_options, pass_settings, reading
from ..output import Column, bold, output_options, print_fields, print_rows

if TYPE_CHECKING:
    from ...plugins.metaschedule.deploy.explain import (
        FunctionFinding,
        ModuleDifference,
        NearWorkload,
    )

COLUMNS = tuple(
    map(
        Column,
        (
            *("function", "target", "record", "workload_id", "mean", "layer"),
            *("equal_workloads", "reasons", "nearest"),
        ),
    )
)


@click.command(name="module")
@click.argument("words", metavar="MODULE")
@compile_target_option
@lowering_options
@layer_option
@prior_options
@output_options
@common_options
@pass_settings
def explain_module(
    settings: Settings,
    words: str,
    target: str | None,
    compatible: bool,
    layout: str,
    no_prepack: bool,
    bind: dict[str, Any],
    algorithms: str,
    layers: tuple[str, ...],
    prior: str | None,
    no_prior: bool,
) -> None:
    """Show the record that each function of a module gets, or why it gets none.

    MODULE is a TVMScript file (which is run), package.module:name, or an .onnx or .pt2 file. The
    reasons name the nearest stored workloads and the first difference, other targets, and records
    that failed or whose source is not trusted. Where the database has no record, layers and the
    prior answer, as for tunedb apply.

    Example:
      tunedb explain module model.py
      tunedb explain module package.kernels:Kernels --target llvm
      tunedb explain module bert.onnx --bind batch=1 --bind length=128
    """
    with reading(settings) as store:
        device = one_target(store, target)
        from ...plugins.metaschedule.deploy.explain import explain
        from ...plugins.metaschedule.module_source import load_module

        fallback = "compatible" if compatible else "exact"
        findings = explain(
            store,
            load_module(words),
            device.attributes,
            fallback=fallback,
            layers=resolve_layers(settings, layers),
            prior=prior_of(prior, no_prior),
            **lowering_of(layout, no_prepack, bind, algorithms),
        )
    name = label(device)
    print_rows(
        settings,
        COLUMNS,
        [_row(finding, name) for finding in findings],
        show=lambda: _show(findings, name),
    )


def _row(finding: FunctionFinding, target: str) -> dict[str, Any]:
    use = finding.use
    return {
        "function": finding.function,
        "target": target,
        "record": None if use is None else use.record_id,
        "workload_id": None if use is None else use.workload_id,
        "mean": None if use is None else use.mean,
        "layer": None if use is None else use.layer,
        "equal_workloads": list(finding.workload_ids),
        "reasons": [{"code": reason.code, "text": reason.text} for reason in finding.reasons],
        "nearest": [_near_row(workload) for workload in finding.nearest],
    }


def _near_row(near: NearWorkload) -> dict[str, Any]:
    difference = near.difference
    return {
        "workload_id": near.workload_id,
        "workload": near.name,
        "records": near.records,
        "octaves": near.octaves,
        "difference": None
        if difference is None
        else {
            "where": difference.where,
            "here": difference.here,
            "there": difference.there,
            "here_line": difference.here_line,
            "there_line": difference.there_line,
        },
    }


def _show(findings: list[FunctionFinding], target: str) -> None:
    for number, finding in enumerate(findings):
        if number:
            click.echo()
        name, use = text.clean(finding.function), finding.use
        if use is not None:
            of = f"workload {use.workload_id}" if use.layer is None else text.clean(use.layer)
            words = f"{name}: record {use.record_id} of {of}, {text.seconds(use.mean)}"
            click.echo(bold(words))
            continue
        click.echo(bold(f"{name}: no record for {target}"))
        fields = [(reason.code, text.clean(reason.text)) for reason in finding.reasons]
        for near in finding.nearest:
            fields += _near_fields(near)
        print_fields(fields)


def _near_fields(near: NearWorkload) -> list[tuple[str, str]]:
    records = text.count(near.records, "record")
    away = "" if near.octaves is None else f", {near.octaves:.1f} octaves away"
    head = f"{near.workload_id} {near.name} ({records}{away})"
    difference = near.difference
    if difference is None:
        return [("nearest", text.clean(f"{head}: TVM cannot load its module"))]
    head = f"{head}: {difference.where} is {difference.here} here, {difference.there} there"
    return [("nearest", text.clean(head)), *_lines(difference)]


def _lines(difference: ModuleDifference) -> list[tuple[str, str]]:
    """Return the lines of TVMScript that differ, if each is a single line."""
    if difference.here_line is None or difference.there_line is None:
        return []
    return [
        ("", text.clean(f"here   {difference.here_line}")),
        ("", text.clean(f"there  {difference.there_line}")),
    ]

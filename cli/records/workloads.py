"""``tunedb workloads``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from ...system import text
from ..options import Settings, common_options, pass_settings, reading
from ..output import Column, output_options, print_rows

if TYPE_CHECKING:
    from ...results import WorkloadSummary
    from ...storage.store import Store

#: Tool → its name, and its formats of workloads.
_TOOLS = {
    "metaschedule": ("MetaSchedule", ("tvm-graph", "tvm-nodes", "metaschedule-arguments")),
    "ansor": ("Ansor", ("ansor-key",)),
    "autotvm": ("AutoTVM", ("autotvm-task",)),
}


def _tool(format_: str) -> str:
    return next((name for name, formats in _TOOLS.values() if format_ in formats), format_)


COLUMNS = (
    Column("id", "id", right=True),
    Column("digest"),
    Column("name", "name", flexible=True),
    Column("function"),
    Column("family", "family", flexible=True, fold=True, least=100),
    Column("arguments", "arguments", text.arguments, flexible=True),
    Column("flops", "flop", text.operations, right=True, least=110),
    Column("format", "format", lambda value: text.clean(_tool(value)), fold=True),
    Column("tvm_version"),
    Column("records", "records", text.number, right=True),
    Column("failed", "failed", text.number, right=True, least=90),
    Column("best", "best", text.seconds, right=True),
    Column("flops_per_second", "flop/s", text.operations, right=True),
    Column("targets"),
    Column("rebuildable", "TVM 0.27", fold=True),
)


@click.command()
@click.option(
    "--format",
    "tool",
    type=click.Choice(list(_TOOLS)),
    help="Only workloads of this log format.",
)
@click.option("--family", metavar="NAME", help="Only one operator family: conv2d, matmul, ….")
@output_options
@common_options
@pass_settings
def command(settings: Settings, tool: str | None, family: str | None) -> None:
    """List the workloads.

    The list shows what each workload computes, as far as tunedb knows without TVM: operator family,
    arguments, and operations of one run (flop; a multiply and an add are two). It also shows the
    number of records and of failures, the best valid mean time, and the resulting operations per
    second. "TVM 0.27" shows whether that TVM can load the workload as a program; records of the
    others serve models and people.

    Example:
      tunedb workloads
      tunedb workloads --format ansor --family conv2d
      tunedb workloads --csv > workloads.csv
    """
    with reading(settings) as store:
        summaries = store.workloads.find()
        selected = [
            summary
            for summary in summaries
            if (tool is None or summary.format in _TOOLS[tool][1])
            and (family is None or summary.signature.family == family.lower())
        ]
        rows = list(_rows(store, selected))
    print_rows(settings, COLUMNS, rows, empty=_why_empty(summaries, family))


def _why_empty(summaries: list[WorkloadSummary], family: str | None) -> str:
    if not summaries:
        return "no workload yet; see: tunedb import --help"
    families = sorted({s.signature.family for s in summaries if s.signature.family})
    if family is None or family.lower() in families:
        return "no such workload"
    return f"no workload of the family {family!r}; there are: {', '.join(families)}"


def _rows(store: Store, summaries: list[WorkloadSummary]) -> Iterator[dict[str, Any]]:
    import orjson

    from ...programs.step_text import args_info_of

    # Records have the arguments that a workload itself lacks.
    is_needed = any(summary.signature.arguments is None for summary in summaries)
    args_info = store.programs.args_info() if is_needed else {}
    for summary in summaries:
        signature, best = summary.signature, summary.best
        arguments = args_info_of(signature) or orjson.loads(args_info.get(summary.id, b"null"))
        yield {
            "id": summary.id,
            "digest": summary.digest.hex(),
            "name": summary.name,
            "function": signature.function,
            "family": signature.family,
            "arguments": arguments,
            "flops": signature.flops,
            "format": summary.format,
            "tvm_version": summary.tvm_version,
            "records": summary.records,
            "failed": summary.failed,
            "best": best,
            "flops_per_second": signature.flops / best if signature.flops and best else None,
            "targets": summary.targets,
            "rebuildable": summary.rebuildable,
        }

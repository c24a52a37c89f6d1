"""``tunedb report``."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import click

from ...system import text
from ..databases import open_other
from ..lazy import LazyGroup
from ..options import Settings, common_options, pass_settings, reading
from ..progress import progress_bar
from .page import OUTPUT, OUTPUT_TYPE, check_folder


@click.group(
    cls=LazyGroup,
    lazy={
        "advisor": (
            "report.advisor",
            "advisor",
            "Write a page about the launches and the advice.",
        ),
    },
    invoke_without_command=True,
)
@click.option(*OUTPUT, **OUTPUT_TYPE)
@click.option("--workload", metavar="WORKLOAD", help="Only these, by id, name or digest.")
@click.option("--network", metavar="NAME", help="Only this network and its operators.")
@click.option("--target", metavar="TARGET", help="Only this target, by id or part of its name.")
@click.option(
    "--against",
    metavar="OTHER",
    help="Compare with this database: a file, a URL, or a bundle.",
)
@click.option(
    "--bundle",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Show the records of a bundle instead of the database.",
)
@common_options
@pass_settings
@click.pass_context
def command(
    context: click.Context,
    settings: Settings,
    output: Path | None,
    workload: str | None,
    network: str | None,
    target: str | None,
    against: str | None,
    bundle: str | None,
) -> None:
    """Write a page about the database: look instead of read.

    The page is one HTML file that needs no server and no network: networks with their operators and
    the limits of the machine, tasks with their searches and best programs, failures, models,
    machines and sessions, launches of GPU kernels. A table below each plot has its numbers. With
    scripts, curves zoom and tables sort; without them everything is still there.

    tunedb tune --report FILE writes the page of a run while it goes on.

    Example:
      tunedb report -o report.html
      tunedb report -o conv.html --workload conv2d --target llvm
      tunedb report -o mobilenet.html --network mobilenet --against last-week.db
      tunedb report -o team.html --bundle team-b.tunedb
    """
    chosen = [output, workload, network, target, against, bundle]
    if context.invoked_subcommand is not None:
        if any(chosen):
            raise click.UsageError(f"give the options to {context.invoked_subcommand}")
        return
    if output is None:
        raise click.UsageError("give the page a file: tunedb report -o report.html")
    from ...report.contents import read
    from ...report.database import write
    from ...system.files import write_whole

    check_folder(output)
    with ExitStack() as stack:
        progress = stack.enter_context(progress_bar(settings, None))
        progress.describe("reading")
        source = reading(settings) if bundle is None else open_other(settings, bundle)
        store = stack.enter_context(source)
        other = None
        if against is not None:
            other = stack.enter_context(open_other(settings, against)), text.short_path(against)
        contents = read(store, workload=workload, target=target, network=network)
        name = text.short_path(bundle or settings.locate().url)
        page = write(contents, name, against=other, on_section=progress.describe)
    write_whole(output, page)
    settings.note(f"Wrote {output}")

"""Options of commands that measure: how much, for which target, and on which device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

_RUN = (
    click.option(
        "--target",
        metavar="TARGET",
        help="A tag of TVM's, a kind, or JSON. Default: this machine's processor.",
    ),
    click.option("--function", metavar="NAME", help="Only this PrimFunc of the module."),
    click.option(
        "--op",
        "op_names",
        metavar="WORD",
        multiple=True,
        help="Only operators of a Relax program with this word in their name; may be repeated.",
    ),
    click.option(
        "--trials",
        "max_trials_global",
        type=click.IntRange(min=1),
        help="Trials of all tasks together. Default: 64 for each task.",
    ),
    click.option(
        "--per-task",
        "max_trials_per_task",
        type=click.IntRange(min=1),
        help="Trials of one task at most.",
    ),
    click.option(
        "--batch",
        "num_trials_per_iter",
        type=click.IntRange(min=1),
        default=16,
        show_default=True,
        help="Trials between two lessons of the cost model.",
    ),
    click.option("--seed", type=click.IntRange(min=0), help="Seed of the search."),
    click.option("--repeat", type=click.IntRange(min=1), help="Times of each program. Default: 3."),
    click.option(
        "--min-repeat-ms",
        type=click.IntRange(min=0),
        help="Milliseconds that each of them takes at least. Default: 30.",
    ),
    click.option("--no-warm", is_flag=True, help="Take nothing from similar workloads."),
    click.option("--remeasure", is_flag=True, help="Measure known programs again."),
    click.option(
        "--server",
        metavar="URL",
        help="A team's database: pull before the run, deliver what is measured while it goes.",
    ),
    click.option("--jobs", type=click.IntRange(min=1), help="Threads and builders at a time."),
    click.option(
        "--work-dir",
        metavar="DIR",
        type=click.Path(file_okay=False),
        help="Keep TVM's logs there.",
    ),
)

_REMOTE = (
    click.option(
        "--runner",
        type=click.Choice(["local", "rpc"]),
        help="Where programs run. Default: local, and rpc with --tracker.",
    ),
    click.option(
        "--tracker",
        metavar="HOST:PORT",
        help="TVM's tracker. Default: TVM_TRACKER_HOST and TVM_TRACKER_PORT.",
    ),
    click.option(
        "--key",
        metavar="KEY",
        help="Key of the devices at the tracker. Default: TVM_TRACKER_KEY.",
    ),
)


def run_options(function: F) -> F:
    """Give a command the options that say what is tuned and how much, by the names of ``tune``."""
    return _with(_RUN, function)


def remote_options(function: F) -> F:
    """Give a command ``--runner``, ``--tracker`` and ``--key``, for :func:`runner_of`."""
    return _with(_REMOTE, function)


def _with(options: tuple[Callable[[F], F], ...], function: F) -> F:
    for option in reversed(options):
        function = option(function)
    return function


def runner_of(choices: dict[str, Any]) -> Any:
    """Take the options of :func:`remote_options` out; return a runner as ``tune`` takes it.

    Raises
    ------
    UsageError
        They contradict one another, or name no tracker.
    """
    runner, tracker, key = (choices.pop(name) for name in ("runner", "tracker", "key"))
    if runner == "local" and (tracker or key):
        raise click.UsageError("--tracker and --key are for --runner rpc")
    if runner != "rpc" and not tracker and not key:
        return "local"
    from ...plugins.metaschedule.tune.remote import rpc_config

    return rpc_config(tracker, key)


def target_of(words: str | None) -> Any:
    """Return a target as ``tune`` takes it: JSON as a mapping, other words as they are.

    Raises
    ------
    UsageError
        It begins like JSON and is none.
    """
    if words is None or not words.lstrip().startswith("{"):
        return words
    import json

    try:
        return json.loads(words)
    except ValueError as error:
        raise click.UsageError(f"--target: {error}") from None

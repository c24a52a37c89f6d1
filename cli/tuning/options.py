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
        help="Target: a TVM tag, a kind, or JSON. Default: this machine's processor.",
    ),
    click.option("--function", metavar="NAME", help="Use only this PrimFunc of the module."),
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
        help="Total number of trials. Default: 64 for each task.",
    ),
    click.option(
        "--per-task",
        "max_trials_per_task",
        type=click.IntRange(min=1),
        help="Largest number of trials of one task.",
    ),
    click.option(
        "--batch",
        "num_trials_per_iter",
        type=click.IntRange(min=1),
        default=16,
        show_default=True,
        help="Trials between two updates of the cost model.",
    ),
    click.option("--seed", type=click.IntRange(min=0), help="Seed of the search."),
    click.option(
        "--repeat", type=click.IntRange(min=1), help="Measurements of each program. Default: 3."
    ),
    click.option(
        "--min-repeat-ms",
        type=click.IntRange(min=0),
        help="Least milliseconds of each measurement. Default: 30.",
    ),
    click.option(
        "--no-warm", is_flag=True, help="Do not start from programs of similar workloads."
    ),
    click.option("--remeasure", is_flag=True, help="Measure known programs again."),
    click.option(
        "--server",
        metavar="URL",
        help="Team database: pull before the run, push new records during it.",
    ),
    click.option(
        "--jobs",
        type=click.IntRange(min=1),
        help="Largest number of parallel threads and builders.",
    ),
    click.option(
        "--work-dir",
        metavar="DIR",
        type=click.Path(file_okay=False),
        help="Directory for TVM's logs.",
    ),
)

_REMOTE = (
    click.option(
        "--runner",
        type=click.Choice(["local", "rpc"]),
        help="Runner of programs. Default: local, or rpc with --tracker.",
    ),
    click.option(
        "--tracker",
        metavar="HOST:PORT",
        help="TVM's RPC tracker. Default: TVM_TRACKER_HOST and TVM_TRACKER_PORT.",
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

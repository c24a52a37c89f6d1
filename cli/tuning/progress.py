"""Progress of a tuning run, on a terminal and in a notebook."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...system import text
from ...system.one_line import shorten

if TYPE_CHECKING:
    from ...plugins.metaschedule.tuning.progress import NetworkProgress, Progress, TaskProgress


@contextmanager
def tuning_progress(
    *, minutes: float | None = None, stderr: bool = False
) -> Iterator[Callable[[Progress], None]]:
    """Show the progress of a tuning run as bars, one for each network, or one for the task.

    In a notebook rich needs ipywidgets.

    Parameters
    ----------
    minutes : float, optional
        Minutes of the run, if they end it; the bars show trials otherwise.
    stderr : bool
        Whether the bars go to the standard error stream.

    Yields
    ------
    callable
        ``on_progress`` of ``tune``.

    Examples
    --------
    ::

        with tuning_progress() as show:
            result = tune(mod, database="tune.db", max_trials_global=64, on_progress=show)
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bars

    columns = (
        *(TextColumn("{task.description}"), BarColumn(None)),
        *(() if minutes else (MofNCompleteColumn(),)),
        *(TextColumn("{task.fields[best]}"), TimeElapsedColumn(), TimeRemainingColumn()),
    )
    # Transient: the report takes the bars' place.
    with Bars(*columns, console=Console(stderr=stderr, highlight=False), transient=True) as bars:
        lines = [bars.add_task("starting", total=None, best="")]

        def show(progress: Progress) -> None:
            done = min(progress.seconds, 60 * minutes) if minutes else progress.trials
            total = 60 * minutes if minutes else progress.max_trials
            for number, (name, state, is_done) in enumerate(states(progress)):
                if number == len(lines):
                    lines.append(bars.add_task("", total=None, best=""))
                bars.update(
                    lines[number],
                    description=escape(shorten(text.clean(name), 30)),
                    total=total,
                    completed=total if is_done else done,
                    best=state,
                )

        yield show


def states(progress: Progress) -> list[tuple[str, str, bool]]:
    """Return name and state of each network, or of the task, and whether it gets no more trials."""
    networks = [(each.name, _state(each), each.is_reached) for each in progress.networks]
    return networks or [(progress.task.name, _forecast(progress.task), False)]


def _state(network: NetworkProgress) -> str:
    """Return the estimated latency of a network, and the operators that have a program."""
    tuned = f"{network.tuned} of {text.count(network.tasks, 'operator')} tuned"
    if network.latency is None:
        return tuned
    faster = "" if network.untuned is None else f" ({network.untuned / network.latency:.1f}x)"
    target = network.goal.latency
    reached = f", target {text.seconds(target)}" if target is not None else ""
    reached += " reached" if network.is_reached else ""
    return f"about {text.seconds(network.latency)}{faster}{reached}, {tuned}"


def _forecast(task: TaskProgress) -> str:
    """Return a task's best time, and the trials at which it should reach 95 % of the best."""
    best = (
        "no working program yet"
        if task.best_seconds is None
        else f"best {text.seconds(task.best_seconds)}"
    )
    if task.forecast is None:
        return best
    bound = "more than " if task.forecast.is_bound else ""
    return f"{best}, 95 % of the expected best at {bound}{task.forecast.trials} trials"

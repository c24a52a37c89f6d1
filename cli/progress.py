"""Progress bars on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..system.one_line import shorten
from ..system.text import clean
from .options import Settings

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

#: Seconds between two updates; readers report every record.
_EVERY = 0.05


class ProgressBar:
    """A progress bar; a no-op without a terminal or with ``-q``."""

    def __init__(self, progress: Progress | None, total: int | None) -> None:
        self._progress = progress
        self._task = None if progress is None else progress.add_task("", total=total, counted=0)
        self._total = total
        self._base = 0
        self._next = 0.0

    def describe(self, text: str) -> None:
        """Show a description of the current work."""
        if self._progress is not None and self._task is not None:
            from rich.markup import escape

            # Escaped: a path may look like rich's markup.
            self._progress.update(self._task, description=escape(shorten(clean(text), 30)))

    def resize(self, total: int) -> None:
        """Set the total, if it was unknown or changed."""
        if self._progress is not None and self._task is not None and total != self._total:
            self._total = total
            self._progress.update(self._task, total=total)

    def count(self, number: int) -> None:
        """Show the number of records so far, on a bar in bytes."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, counted=number)

    def update(self, position: int) -> None:
        """Show the position within the current part."""
        if self._progress is None or self._task is None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _EVERY
        self._progress.update(self._task, completed=self._base + position)

    def show(self, done: int, total: int, description: str | None = None) -> None:
        """Show the position, the total and the current work; a callback of long functions."""
        if description is not None:
            self.describe(description)
        self.resize(total)
        self.update(done)

    def finish(self, amount: int) -> None:
        """End the current part, whose size was `amount`."""
        self._base += amount
        self._next = 0.0
        self.update(0)


@contextmanager
def progress_bar(
    settings: Settings, total: int | None, *, counts: str | None = None
) -> Iterator[ProgressBar]:
    """Show a bar with its rate and the remaining time while the block runs.

    Parameters
    ----------
    settings : Settings
        With ``-q`` there is no bar.
    total : int or None
        Number of steps; None if unknown.
    counts : str or None
        Noun of what :meth:`ProgressBar.count` counts on a bar in bytes; None on a bar in steps.
    """
    if settings.quiet or not sys.stderr.isatty():
        yield ProgressBar(None, total)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    amount: ProgressColumn = MofNCompleteColumn() if counts is None else DownloadColumn()
    columns = (
        *(TextColumn("{task.description}"), BarColumn(None), amount),
        *(_rate_column(counts), TimeRemainingColumn()),
    )
    console = Console(stderr=True, highlight=False)
    # Transient: the report takes the bar's place.
    with Progress(*columns, console=console, transient=True) as progress:
        yield ProgressBar(progress, total)


def _rate_column(counts: str | None) -> ProgressColumn:
    from rich.progress import ProgressColumn, Task
    from rich.text import Text

    class RateColumn(ProgressColumn):
        """Steps, or counted items, per second."""

        def render(self, task: Task) -> Text:
            """Return the rate."""
            if counts is None:
                return Text(f"{task.finished_speed or task.speed or 0:,.0f}/s")
            # Batches arrive in bursts, so the mean rate says more than the current one.
            counted = task.fields["counted"]
            return Text(f"{counted / (task.elapsed or 1):,.0f} {counts}/s" if counted else "")

    return RateColumn()


def counter(progress: ProgressBar) -> Callable[[], None]:
    """Return a function that moves the bar one step at each call."""
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        progress.update(steps)

    return step

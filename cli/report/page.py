"""Files of pages, and the page of a run."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...system import text
from ..options import Settings

if TYPE_CHECKING:
    from ...plugins.metaschedule.tuning.progress import Progress

#: Names and settings of the option for the file of a page.
OUTPUT = ("-o", "--output")
OUTPUT_TYPE: dict[str, Any] = {
    "metavar": "FILE",
    "type": click.Path(dir_okay=False, path_type=Path),
    "help": "HTML file to write; an existing file is replaced.",
}

#: Least seconds between two versions of the page of a run, and most of the run's time for them.
_LEAST_PAUSE, _MOST_SHARE = 5, 0.02


def check_folder(output: Path) -> None:
    """Raise NotFoundError if the folder of a page does not exist, before the work is done."""
    from ...errors import NotFoundError

    folder = output.absolute().parent
    if not folder.is_dir():
        raise NotFoundError(f"{output}: folder {folder} does not exist; create it")


class LivePage:
    """The page of a tuning run, which is written again while the run goes on.

    Parameters
    ----------
    settings : Settings
        Settings of the command.
    path : Path
        File of the page.
    states : callable
        Name of each network, or of the task, of a progress, and what it came to, in words.

    Raises
    ------
    NotFoundError
        The folder does not exist.
    """

    def __init__(
        self,
        settings: Settings,
        path: Path,
        states: Callable[[Progress], list[tuple[str, str, bool]]],
    ) -> None:
        check_folder(path)
        self._settings, self._path, self._states = settings, path, states
        self._courses: dict[str, list[tuple[float, float]]] = {}
        self._last: Progress | None = None
        self._due = 0.0
        self._failed = False

    def update(self, progress: Progress) -> None:
        """Take the progress of a batch, and write the page if it is due."""
        self._last = progress
        times = [(each.name, each.latency) for each in progress.networks]
        for name, seconds in times or [(progress.task.name, progress.task.best_seconds)]:
            if seconds is not None:
                self._courses.setdefault(name, []).append((progress.seconds / 60, seconds))
        if time.monotonic() >= self._due:
            self._write(progress, reload_after=_LEAST_PAUSE)

    def close(self) -> None:
        """Write the page that stays: it no longer loads itself again."""
        if self._last is not None:
            self._write(self._last, reload_after=None)

    def _write(self, progress: Progress, *, reload_after: int | None) -> None:
        """Write the page; a failure is reported once, and the old page stays."""
        from ...errors import TuneDBError
        from ...report.contents import read
        from ...report.database import Running, write
        from ...storage.store import Store
        from ...system.files import write_whole

        began = time.monotonic()
        running = None
        if reload_after is not None:
            done = f"{progress.trials} of {progress.max_trials} trials"
            states = [f"{name}: {state}" for name, state, _ in self._states(progress)]
            running = Running((f"{done}.", *states), self._courses)
        location = self._settings.locate()
        try:
            with Store(location.url, create=False, read_only=True) as store:
                page = write(
                    read(store),
                    text.short_path(str(location.url)),
                    running=running,
                    reload_after=reload_after,
                )
            write_whole(self._path, page)
        except TuneDBError as error:
            if not self._failed:
                self._settings.warn(f"the page of this run is not written: {error}")
            self._failed = True
        now = time.monotonic()
        self._due = now + max(_LEAST_PAUSE, (now - began) / _MOST_SHARE)

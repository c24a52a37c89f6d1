"""Options of every command, and the database that they name."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..system.text import clean

if TYPE_CHECKING:
    from ..storage.config import Location
    from ..storage.store import Store

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Settings:
    """Values of the common options, which may come before or after the command."""

    db: str | None = None
    verbosity: int = 0
    debug: bool = False
    output: str = "table"

    @property
    def quiet(self) -> bool:
        """True with ``-q``: print data and errors only."""
        return self.verbosity < 0

    def locate(self, url: str | None = None) -> Location:
        """Return the location of the database; `url` is a command's own argument."""
        from ..storage.config import locate

        return locate(url if url is not None else self.db)

    def note(self, message: str) -> None:
        """Print a message on stderr, unless ``-q`` is given."""
        if not self.quiet:
            click.echo(clean(message), err=True)

    def warn(self, message: str) -> None:
        """Print a warning on stderr, even with ``-q``."""
        click.echo(f"Warning: {clean(message)}", err=True)


class _StderrHandler(logging.Handler):
    """Handler that prints the library's messages on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one message."""
        click.echo(f"{record.levelname.capitalize()}: {clean(record.getMessage())}", err=True)


def configure_logging(settings: Settings) -> None:
    """Print the library's messages: warnings, with ``-v`` also info, with ``-vv`` all."""
    logger = logging.getLogger("tunedb")
    for handler in [h for h in logger.handlers if isinstance(h, _StderrHandler)]:
        logger.removeHandler(handler)
    handler = _StderrHandler()
    levels = {-1: logging.ERROR, 0: logging.WARNING, 1: logging.INFO}
    handler.setLevel(levels.get(settings.verbosity, logging.DEBUG))
    logger.addHandler(handler)
    logger.setLevel(handler.level)


def settings_of(context: click.Context) -> Settings:
    """Return the settings of this run."""
    return context.find_root().ensure_object(Settings)


def _set_db(context: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        settings_of(context).db = value


def _set_quiet(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        settings_of(context).verbosity = -1


def _set_verbose(context: click.Context, _: click.Parameter, value: int) -> None:
    if value:
        settings_of(context).verbosity += value


def _set_debug(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        settings_of(context).debug = True


_COMMON = (
    click.option(
        "--db",
        metavar="URL",
        expose_value=False,
        callback=_set_db,
        help="Database: a path, sqlite:///PATH or postgresql://HOST/NAME.",
    ),
    click.option(
        *("-q", "--quiet"),
        is_flag=True,
        expose_value=False,
        callback=_set_quiet,
        help="Print data and errors only.",
    ),
    click.option(
        *("-v", "--verbose"),
        count=True,
        expose_value=False,
        callback=_set_verbose,
        help="Print more messages (-vv: all).",
    ),
    click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        callback=_set_debug,
        help="Show the traceback of an error.",
    ),
)


def common_options(function: F) -> F:
    """Add ``--db``, ``-q``, ``-v`` and ``--debug`` to a command or group."""
    # click rewraps every paragraph of a help text that does not begin with \b.
    help_ = inspect.cleandoc(function.__doc__ or "")
    function.__doc__ = help_.replace("Example:\n", "\b\nExample:\n")
    for option in reversed(_COMMON):
        function = option(function)
    return function


def pass_settings(function: F) -> F:
    """Pass the settings of this run as a command's first argument."""
    from functools import update_wrapper

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        context = click.get_current_context()
        settings = settings_of(context)
        configure_logging(settings)
        return function(settings, *args, **kwargs)

    return update_wrapper(wrapper, function)  # type: ignore[return-value]


@contextmanager
def reading(settings: Settings) -> Iterator[Store]:
    """Open the database for reading; raise NotFoundError if it does not exist."""
    with _existing(settings, read_only=True) as store:
        yield store


@contextmanager
def updating(settings: Settings) -> Iterator[Store]:
    """Open the database for writing; raise NotFoundError if it does not exist."""
    with _existing(settings, read_only=False) as store:
        yield store


@contextmanager
def _existing(settings: Settings, *, read_only: bool) -> Iterator[Store]:
    from ..errors import NotFoundError
    from ..storage.engine import parse_url, show_url, sqlite_path
    from ..storage.store import Store

    location = settings.locate()
    url = parse_url(location.url)
    path = sqlite_path(url)
    if path is not None and not path.exists():
        raise NotFoundError(
            f"{show_url(url)}: no such database ({location.origin}); "
            "create it with: tunedb db init, or tunedb import logs PATH"
        )
    with Store(location.url, create=False, read_only=read_only) as store:
        yield store


@contextmanager
def writing(settings: Settings, url: str | None = None) -> Iterator[Store]:
    """Open the database for writing; create it if it does not exist."""
    from ..storage.config import make_folder
    from ..storage.store import Store

    location = settings.locate(url)
    make_folder(location)
    with Store(location.url) as store:
        yield store


@contextmanager
def receiving(settings: Settings, *, dry_run: bool) -> Iterator[Store]:
    """Open the database for new records; a dry run uses an empty one if there is none."""
    from ..storage.engine import parse_url, sqlite_path
    from ..storage.store import Store

    path = sqlite_path(parse_url(settings.locate().url))
    if dry_run and path is not None and not path.exists():
        settings.note(f"{path} does not exist yet: everything is new")
        with Store(":memory:") as store:
            yield store
        return
    with (reading if dry_run else writing)(settings) as store:
        yield store


def prepare_streams() -> None:
    """Escape characters that stdout and stderr cannot encode, instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")

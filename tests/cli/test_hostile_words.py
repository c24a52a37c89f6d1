"""SQL, HTML and terminal codes as an argument, for every parameter of every command."""

import sqlite3
from contextlib import closing

import click
import pytest
from click.testing import CliRunner
from effort import long
from test_help import COMMANDS

from tunedb.cli import main
from tunedb.cli.lazy import LazyGroup

#: SQL, a terminal code and markup.
WORDS = "x'; DROP TABLE program;--\x1b]0;owned\x07<script>"
NUMBERS = (click.types.IntParamType, click.types.FloatParamType, click.types.BoolParamType)
NO_WORDS = (*NUMBERS, click.Choice, click.types.FuncParamType)

#: Options of all commands, which have tests of their own.
LEFT_OUT = {"db", "help", "quiet", "verbose", "debug"}


def takes_words(parameter):
    """Return whether a parameter takes any text."""
    is_flag = isinstance(parameter, click.Option) and (parameter.is_flag or parameter.count)
    return not is_flag and not isinstance(parameter.type, NO_WORDS)


def filling(parameter):
    """Return the words of a parameter on a command line."""
    if isinstance(parameter.type, click.Choice):
        value = [str(next(iter(parameter.type.choices)))]
    else:
        value = [WORDS if takes_words(parameter) else "1"]
    value *= max(1, parameter.nargs)
    return [parameter.opts[0], *value] if isinstance(parameter, click.Option) else value


PLACES = [
    (path, parameter.name)
    for path, command in COMMANDS.items()
    if not isinstance(command, LazyGroup) and path
    for parameter in command.params
    if takes_words(parameter) and parameter.name not in LEFT_OUT
]


def state(connection):
    """Return the definitions of all tables, and the records."""
    queries = ["SELECT sql FROM sqlite_schema ORDER BY name"]
    queries += [f"SELECT digest FROM {one} ORDER BY id" for one in ("measurement", "program")]
    return [connection.execute(query).fetchall() for query in queries]


@pytest.fixture
def connection(filled):
    with closing(sqlite3.connect(filled)) as connection:
        yield connection


@pytest.mark.parametrize("part", [0, long(1), long(2)])
def test_no_hostile_argument_harms_database_or_terminal(filled, connection, part):
    before = state(connection)
    assert len(PLACES) > 150
    for path, name in PLACES[part::3]:
        arguments = []
        for parameter in COMMANDS[path].params:
            if parameter.name == name or (parameter.required and parameter.name not in LEFT_OUT):
                arguments += filling(parameter)
        result = CliRunner().invoke(main, ["--db", str(filled), *path, *arguments], input="")
        problem = f"{' '.join(path)} {name}: {result.output}"
        assert result.exception is None or isinstance(result.exception, SystemExit), problem
        assert result.exit_code in (0, 1, 2, 3, 4, 5), problem
        assert "Traceback" not in result.output, problem
        assert "\x1b" not in result.output and "\x07" not in result.output, problem
        assert state(connection) == before, problem

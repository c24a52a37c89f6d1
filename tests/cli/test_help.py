"""The help of all commands, and a start that imports no heavy module."""

import json
import subprocess
import sys
from importlib import metadata

import click
import pytest

import tunedb
from tunedb.cli import main
from tunedb.cli.app import EXIT_CODES
from tunedb.cli.lazy import LazyGroup
from tunedb.errors import TuneDBError

#: Packages that would at least double the time of a start (benchmarks/start.py).
HEAVY = {
    *("tvm", "xgboost", "sqlalchemy", "alembic", "rich", "orjson", "numpy", "platformdirs"),
    *("jinja2", "msgspec", "sklearn"),
}


def walk(command, path=()):
    """Yield every command with its words."""
    yield path, command
    if isinstance(command, LazyGroup):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from walk(command.get_command(context, name), (*path, name))


COMMANDS = dict(walk(main))


def test_all_commands_exist():
    assert {" ".join(path) for path in COMMANDS} == {
        *("", "import", "import logs", "convert", "export"),
        *("top", "show", "history", "workloads", "targets"),
        *("quarantine", "quarantine list", "quarantine show", "quarantine retry"),
        *("db", "db init", "db upgrade", "db check", "db info", "db trust"),
        *("extract", "features", "plugins", "demo", "doctor", "completion"),
        *("train", "evaluate", "simulate", "explain", "explain model", "explain module"),
        *("tune", "apply", "revalidate", "prune", "vacuum", "sessions"),
        *("sources", "trust", "retract", "bundle", "push", "pull", "merge"),
        *("models", "models list", "models show", "models drift", "models card"),
        *("advise", "advise train", "advise show", "advise evaluate", "advise launches"),
        *("advise configure", "advise collect", "report", "report advisor"),
    }


def test_every_command_has_help_with_an_example(run):
    for path, command in COMMANDS.items():
        text = run(*path, "--help").stdout
        assert run(*path, "-h").stdout == text
        example = text.partition("\n\n  Example:\n    ")[2]
        assert " ".join(("tunedb", *path)) in example, path
        assert command.get_short_help_str(100), path
        for option in ("--db", "--quiet", "--verbose", "--debug"):
            assert option in text, path
        for line in example.split("\n\n")[0].splitlines():
            check_line(line)


def check_line(line):
    """Assert that the command and the options in a line of an example exist."""
    words = line.split("#")[0].split("|")[0].split(">")[0].replace('eval "$(', "").split()
    if "tunedb" not in words:
        return
    words = [word.rstrip(')",') for word in words[words.index("tunedb") + 1 :]]
    named, command = (), main
    while words and (*named, words[0]) in COMMANDS:
        named = (*named, words.pop(0))
        command = COMMANDS[named]
    assert named, line
    known = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in words if word.startswith("-") and word != "-"} <= known, line


def test_lazy_summaries_are_those_of_the_commands():
    for group in COMMANDS.values():
        if isinstance(group, LazyGroup):
            context = click.Context(group)
            for name, (_, _, summary) in group.lazy.items():
                command = group.get_command(context, name)
                assert command.get_short_help_str(100) == summary
                assert command.name in (name, "command")


def test_every_command_that_prints_data_has_all_formats():
    prints_none = {(), ("import",), ("db",), ("completion",), ("advise",), ("explain",), ("demo",)}
    prints_none |= {("report",), ("report", "advisor")}
    for path, command in COMMANDS.items():
        names = {name for parameter in command.params for name in parameter.opts}
        assert ({"--json", "--jsonl", "--csv"} <= names) == (path not in prints_none), path


def test_help_documents_every_exit_code(run):
    text = run("--help").stdout.partition("Exit codes:")[2]
    for code in EXIT_CODES:
        assert f"\n  {code} " in text

    def classes(kind):
        yield kind
        for sub in kind.__subclasses__():
            yield from classes(sub)

    assert {kind.exit_code for kind in classes(TuneDBError)} <= EXIT_CODES.keys()


def test_unknown_command_suggests_one(run):
    assert "Did you mean 'workloads'?" in run("workload", code=2).stderr
    assert "tunedb --help" in run("zzz", code=2, prog_name="tunedb").stderr


def test_version_is_that_of_the_installed_package(run):
    installed = metadata.version("tunedb")
    assert run("--version").stdout == f"tunedb {installed}\n"
    assert tunedb.__version__ == installed
    with pytest.raises(AttributeError, match="module 'tunedb' has no attribute 'verzion'"):
        tunedb.verzion  # noqa: B018 - asking for it is the test


def test_help_imports_nothing_heavy():
    """``--version`` alone needs importlib.metadata."""
    code = (
        "import sys, json\n"
        "from tunedb.cli import main\n"
        "for words in (['--help'], ['top', '--help'], ['--version']):\n"
        "    main(words, standalone_mode=False)\n"
        "    print(json.dumps(sorted(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *helps, version = (set(json.loads(line)) for line in done.stderr.splitlines())
    assert len(helps) == 2 and "tunedb.cli.app" in version
    assert not HEAVY & {name.partition(".")[0] for name in version}
    assert not any("importlib.metadata" in loaded for loaded in helps)

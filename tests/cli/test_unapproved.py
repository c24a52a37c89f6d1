"""A record that passes text to LLVM's parser, in a database that the user has not approved."""

import shutil
from pathlib import Path

import pytest
import tvm
from test_apply import TARGET, commit
from tvm.s_tir import Schedule
from twice import TWICE

from tunedb.plugins.metaschedule.deploy.apply import tasks_of
from tunedb.plugins.metaschedule.module_source import load_module

#: LLVM's parser quotes what it does not understand.
EVIL = "this reached the parser"


@pytest.fixture(autouse=True)
def configuration(tmp_path, monkeypatch):
    """Keep approvals in a folder of the test."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    path = tmp_path_factory.mktemp("kernel") / "kernel.py"
    path.write_text(TWICE)
    return path


@pytest.fixture(scope="module")
def evil_template(kernel):
    """The database that :func:`theirs` copies."""
    path = kernel.with_name("evil.db")
    (task,) = tasks_of(load_module(kernel), TARGET).values()
    schedule = Schedule(task)
    (loop,) = schedule.get_loops(schedule.get_sblock("B"))
    schedule.annotate(loop, "pragma_import_llvm", EVIL)
    commit(path, TARGET, task, schedule, [1e-9])
    return path


@pytest.fixture
def theirs(evil_template):
    """A database of somebody else above the working directory, with the record as its own."""
    return Path(shutil.copyfile(evil_template, Path.cwd().parent / "theirs.db"))


@pytest.fixture
def mine(tmp_path, run):
    run("db", "init", tmp_path / "mine.db")
    return tmp_path / "mine.db"


@pytest.fixture
def no_tvm(monkeypatch):
    """Fail if TVM gets a program or a module of a database."""

    def refuse(*_, **__):
        pytest.fail("TVM must not get this")

    places = ("database.handle.Schedule", "trace_codec.Schedule")
    for name in (*places, "modules.to_module", "modules.from_script"):
        monkeypatch.setattr(f"tunedb.plugins.metaschedule.{name}", refuse)
    monkeypatch.setattr(tvm, "compile", refuse)


def commands(kernel, tmp_path):
    """Return commands that give records to TVM; the first three use layers."""
    return [
        ["apply", kernel, "-o", tmp_path / "kernel.so"],
        ["apply", kernel, "-o", tmp_path / "scheduled.py"],
        ["tune", kernel, "--trials", "1"],
        ["explain", "module", kernel, "--target", "llvm"],
        ["revalidate"],
        ["revalidate", "--foreign", "--module", kernel],
        ["extract", "--set", "tunedb.scheduled"],
    ]


def test_record_of_approved_database_reaches_the_parser_of_llvm(run, theirs, kernel, tmp_path):
    """So the attack works without the check: records of own sources are not verified."""
    run("db", "trust", theirs, "--yes")
    shown = run("--debug", "--db", theirs, "apply", kernel, "-o", tmp_path / "kernel.so", code=1)
    assert EVIL in shown.stderr


@pytest.mark.usefixtures("no_tvm")
def test_commands_reject_unapproved_database_of_configuration(run, theirs, kernel, tmp_path):
    file = theirs.with_name("tunedb.toml")
    file.write_text('url = "theirs.db"\nserver = "theirs.db"\n')
    # They give nothing to TVM, and are rejected all the same.
    others = (["top"], ["workloads"], ["push"], ["pull"], ["db", "info"])
    for words in (*commands(kernel, tmp_path), *others):
        (line,) = run(*words, code=2).stderr.splitlines()
        assert line.startswith(f"Error: {file} names {theirs}: you have not approved it; ")
        assert line.endswith(f"run: tunedb db trust {theirs}")


@pytest.mark.usefixtures("no_tvm")
def test_commands_reject_unapproved_database_of_db_option(run, theirs, kernel, tmp_path):
    for words in commands(kernel, tmp_path):
        line = run("-q", "--db", theirs, *words, code=2).stderr.splitlines()[-1]
        assert line.startswith(f"Error: {theirs}: you have not approved it; ")
        assert line.endswith(f"run: tunedb db trust {theirs}")
    assert not (tmp_path / "kernel.so").exists()
    assert not (tmp_path / "scheduled.py").exists()


@pytest.mark.usefixtures("no_tvm")
def test_commands_reject_unapproved_layer_of_configuration(run, theirs, mine, kernel, tmp_path):
    theirs.with_name("tunedb.toml").write_text('layers = ["theirs.db"]')
    for words in commands(kernel, tmp_path)[:3]:
        (line,) = run("--db", mine, *words, code=2).stderr.splitlines()
        assert line.endswith(f"run: tunedb db trust {theirs}")


def test_layer_of_command_line_does_not_serve_forbidden_trace(run, theirs, mine, kernel, tmp_path):
    """The user names the layer, and its programs outside the lists are left out."""
    words = ["--layer", theirs, "-o", tmp_path / "kernel.so"]
    shown = run("--db", mine, "apply", kernel, *words, "--target", "llvm", code=3)
    assert "pragma_import_llvm" in shown.stderr
    assert EVIL not in shown.stderr


def test_push_and_pull_reject_unapproved_server_of_configuration(run, run_json, theirs, mine):
    file = theirs.with_name("tunedb.toml")
    file.write_text('server = "theirs.db"')
    for command in ("pull", "push"):
        (line,) = run("--db", mine, command, code=2).stderr.splitlines()
        assert line.endswith(f"run: tunedb db trust {theirs}")
    assert run_json("--db", mine, "workloads") == []
    run("--db", mine, "pull", theirs, code=1)  # the user names it; the record is rejected

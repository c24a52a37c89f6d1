"""Pipes, devices and sockets as paths: each command ends with one line of advice.

An earlier release waited for a writer that never came, or read ``/dev/zero`` for ever.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import profiles
import pytest
import workdirs

from tunedb.storage.store import Store

#: Time after which commands count as hanging; each takes about a second.
GUARD_S = 120


@pytest.fixture
def own(sqlite_template, tmp_path):
    path = tmp_path / "own.db"
    path.write_bytes(sqlite_template.read_bytes())
    return path


def pipe(folder):
    os.mkfifo(folder / "feed")
    return folder / "feed"


def link_to_pipe(folder):
    (folder / "link").symlink_to(pipe(folder))
    return folder / "link"


def zeros(folder):
    (folder / "zeros").symlink_to("/dev/zero")
    return folder / "zeros"


def a_socket(folder):
    here = Path.cwd()
    os.chdir(folder)  # the path of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind("socket")
    finally:
        os.chdir(here)
    return folder / "socket"


KINDS = {
    "a named pipe": pipe,
    "a named pipe behind a link": link_to_pipe,
    "a device": zeros,
    "a socket": a_socket,
}


PIPE_IN = "give - and pipe the bundle into standard input"
COPY = "copy its data to a file first"

#: Arguments of each command, and the advice in its message.
COMMANDS = {
    "import logs": (["import", "logs", "PATH"], "pipe its data into: tunedb import logs -"),
    "import logs --trace": (["import", "logs", "METRICS", "--trace", "PATH"], "pipe its data into"),
    "merge": (["merge", "PATH"], PIPE_IN),
    "bundle --info": (["bundle", "--info", "PATH"], PIPE_IN),
    "pull": (["pull", "PATH"], COPY),
    "push": (["push", "PATH"], COPY),
    "db check": (["db", "check", "--db", "PATH"], COPY),
    "db upgrade": (["db", "upgrade", "PATH"], COPY),
    "db info": (["db", "info", "PATH"], COPY),
    "top": (["top", "--db", "PATH"], COPY),
    "advise collect": (["advise", "collect", "PATH"], COPY),
    "advise configure": (["advise", "configure", "PATH"], COPY),
}

#: Runs commands and prints each result at once, so that a hanging command is known.
CHILD = """\
import json, sys
from click.testing import CliRunner
from tunedb.cli import main

for name, words in json.loads(sys.argv[1]):
    done = CliRunner().invoke(main, words)
    print(json.dumps([name, done.exit_code, done.stderr.splitlines()]), flush=True)
"""


def ends(commands):
    """Return exit status and lines of commands by name; fail if one of them hangs."""
    script = [sys.executable, "-c", CHILD, json.dumps(commands)]
    options = {"capture_output": True, "text": True, "check": False}
    try:
        done = subprocess.run(script, stdin=subprocess.DEVNULL, timeout=GUARD_S, **options)
    except subprocess.TimeoutExpired as expired:
        pytest.fail(f"hangs after: {(expired.stdout or b'').decode()}")
    assert done.returncode == 0, done.stderr
    return {name: (code, lines) for name, code, lines in map(json.loads, done.stdout.splitlines())}


def test_attack_7_commands_reject_pipes_devices_and_sockets(own, tmp_path):
    """Every command that reads a file does so; a layer is left out, and a file of a folder."""
    metrics = tmp_path / "metrics.csv"
    metrics.write_text(profiles.metrics(profiles.metric("ipc", "1.3")))
    commands, paths = [], {}
    for kind, make in KINDS.items():
        folder = tmp_path / kind.replace(" ", "")
        folder.mkdir()
        path = paths[kind] = make(folder)
        given = {"PATH": str(path), "METRICS": str(metrics)}
        for name, (words, _) in [*COMMANDS.items(), ("layer", (["top", "--layer", "PATH"], ""))]:
            words = [given.get(word, word) for word in words]
            commands.append((f"{kind}: {name}", ["--db", str(own), *words]))
    folder = tmp_path / "logs"
    workdirs.write(folder, [workdirs.record([1e-3])], [workdirs.graph("matmul")])
    for make in (pipe, zeros, a_socket):
        make(folder)
    commands.append(("folder", ["--db", str(own), "import", "logs", str(folder)]))
    found = ends(commands)
    code, lines = found["folder"]
    assert code == 0
    assert len([line for line in lines if "no regular file" in line]) == 3
    with Store(own) as store:
        assert store.records.count() == 1
    for kind, path in paths.items():
        named = kind.removesuffix(" behind a link")
        for name, (_, advice) in COMMANDS.items():
            code, lines = found[f"{kind}: {name}"]
            assert (code, len(lines)) == (1, 1), (kind, name, lines)
            assert f"{path}: {named}, but tunedb reads only regular files; {advice}" in lines[0]
        # A layer that cannot be read is left out, and the others answer.
        code, lines = found[f"{kind}: layer"]
        assert code == 0
        assert f"{path}: this layer is left out: {named}, but tunedb reads only" in lines[0]


def test_attack_7_commands_reject_pipe_in_place_of_sqlite_log(own, tmp_path):
    """SQLite would open a file of that name, and wait for a writer."""
    commands, pipes = [], {}
    for suffix in ("-journal", "-wal", "-shm"):
        theirs = shutil.copyfile(own, tmp_path / f"theirs{suffix}.db")
        pipes[suffix] = f"{theirs}{suffix}"
        os.mkfifo(pipes[suffix])
        for words in (
            *(["merge", theirs], ["bundle", "--info", theirs], ["db", "info", theirs]),
            *(["top", "--db", theirs], ["top", "--layer", theirs]),
        ):
            name = " ".join([suffix, *words[:-1]])
            commands.append((name, ["--db", str(own), *map(str, words)]))
    found = ends(commands)
    for suffix, path in pipes.items():
        for name in ("merge", "db info", "top --db"):
            code, lines = found[f"{suffix} {name}"]
            assert (code, len(lines)) == (1, 1), (name, lines)
            assert f"{path}: a named pipe" in lines[0]
            assert lines[0].endswith(f"remove it, or copy theirs{suffix}.db alone")
        assert "a database, not a bundle" in found[f"{suffix} bundle --info"][1][0]
        assert "this layer is left out" in found[f"{suffix} top --layer"][1][0]

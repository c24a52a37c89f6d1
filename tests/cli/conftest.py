"""The command line, run in the process and outside."""

import json
import os
import subprocess
from types import SimpleNamespace

import legacy
import pytest
import workdirs
from builders import copied
from click.testing import CliRunner
from small_data import SMALL_STEPS, fill
from twice import KERNELS

from tunedb.cli import main
from tunedb.features import base
from tunedb.models.recipe import Recipe
from tunedb.models.store import train
from tunedb.storage.store import Store


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """Hide the settings of the machine, and work in an empty folder."""
    monkeypatch.delenv("TUNEDB_URL", raising=False)
    monkeypatch.delenv("TUNEDB_PLUGINS", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


@pytest.fixture
def run():
    """A function that runs a command and returns click's result."""

    def run(*args, code=0, **kwargs):
        result = CliRunner().invoke(main, [str(arg) for arg in args], **kwargs)
        assert result.exit_code == code, result.output
        return result

    return run


@pytest.fixture
def run_json(run):
    """A function that runs a command with ``--json`` and returns what it printed."""

    def run_json(*args, **kwargs):
        return json.loads(run(*args, "--json", **kwargs).stdout)

    return run_json


@pytest.fixture
def start():
    """A function that starts a command as a process of its own."""
    started = []

    def start(*args, **kwargs):
        kwargs.setdefault("stdout", subprocess.PIPE)
        kwargs.setdefault("stderr", subprocess.PIPE)
        environment = {**os.environ, **kwargs.pop("env", {})}
        process = subprocess.Popen(
            [*workdirs.PROGRAM, *map(str, args)], env=environment, text=True, **kwargs
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture(scope="session")
def small_template(tmp_path_factory, sqlite_template):
    """The database that :func:`small` copies."""
    path = copied(sqlite_template, tmp_path_factory.mktemp("small") / "small.db")
    with Store(path) as store:
        fill(store)
    return path


@pytest.fixture
def small(small_template, tmp_path):
    """A database with two targets, whose programs have features ``small.steps``."""
    return copied(small_template, tmp_path / "small.db")


@pytest.fixture
def small_sets(monkeypatch):
    """Feature sets by name; ``small.steps`` alone is installed."""
    known = {"small.steps": SMALL_STEPS}
    monkeypatch.setattr(base, "load_feature_sets", lambda: (known, {}))
    return known


@pytest.fixture(scope="session")
def learnt_template(small_template, tmp_path_factory):
    """The database that :func:`learnt` copies."""
    path = copied(small_template, tmp_path_factory.mktemp("learnt") / "learnt.db")
    recipe = Recipe("small.steps", rounds=20, patience=0, max_depth=3, colsample_bytree=1.0)
    with Store(path) as store, pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "load_feature_sets", lambda: ({"small.steps": SMALL_STEPS}, {}))
        train(store, recipe, threads=1)
    return path


@pytest.fixture
def learnt(learnt_template, tmp_path, small_sets):
    """The database :func:`small` with model 1, a ranker."""
    return copied(learnt_template, tmp_path / "learnt.db")


@pytest.fixture
def interrupt(monkeypatch):
    """A function that makes a function raise what Ctrl-C raises."""

    def raises(*_, **__):
        raise KeyboardInterrupt

    return lambda target: monkeypatch.setattr(target, raises)


@pytest.fixture
def terminal(monkeypatch):
    """A standard input where commands ask; `stdin` may be set to something else."""
    fake = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("tunedb.cli.confirm.sys", fake)
    return fake


@pytest.fixture
def kernels(tmp_path):
    """A module with the functions ``twice`` and ``thrice``."""
    path = tmp_path / "kernels.py"
    path.write_text(KERNELS)
    return path


@pytest.fixture(scope="session")
def tuned_template(tmp_path_factory):
    """The database that :func:`tuned` copies."""
    from test_apply import tune

    folder = tmp_path_factory.mktemp("tuned")
    (folder / "kernels.py").write_text(KERNELS)
    tune(folder / "tuned.db", folder / "kernels.py", "twice")
    return folder / "tuned.db"


@pytest.fixture
def tuned(tuned_template, tmp_path):
    """A database with a record of ``twice`` of 1 ms, for two cores."""
    return copied(tuned_template, tmp_path / "tuned.db")


@pytest.fixture
def legacy_file(sqlite_file, tmp_path):
    """A database with records 1 and 2 of auto_scheduler, 3 and 4 of AutoTVM."""
    log = tmp_path / "legacy.log"
    log.write_text("".join(json.dumps(line) + "\n" for line in [*legacy.ANSOR, *legacy.AUTOTVM]))
    arguments = ["--db", str(sqlite_file), "import", "logs", str(log), "--source", "old"]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    return sqlite_file


RECORDS = [
    workdirs.record([3e-3, 3.3e-3], tile=(1, 64)),
    workdirs.record([1e-3, 1.1e-3], tile=(2, 32)),
    workdirs.record([1e-3, 1.1e-3], tile=(2, 32)),
    workdirs.record([1e10], tile=(64, 1)),
    workdirs.record([2e-3], workload=1, tile=(8, 8)),
    workdirs.record([5e-6], target=workdirs.CUDA, tile=(16, 4)),
    workdirs.record([4e-3], target=None, args=None, tile=(32, 2)),
]
GRAPHS = [workdirs.graph("matmul"), workdirs.graph("softmax", 3)]


@pytest.fixture
def log(tmp_path):
    """A work directory with two workloads, three targets and a failed record."""
    return workdirs.write(tmp_path / "log", RECORDS, GRAPHS)


@pytest.fixture(scope="session")
def filled_template(tmp_path_factory, sqlite_template):
    """The database that :func:`filled` copies."""
    folder = tmp_path_factory.mktemp("filled")
    path = copied(sqlite_template, folder / "filled.db")
    log = workdirs.write(folder / "log", [*RECORDS, '[0, "cut'], GRAPHS, end="")
    arguments = ["--db", str(path), "import", "logs", str(log), "--source", "nightly"]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    return path


@pytest.fixture
def filled(filled_template, tmp_path):
    """A database with the records of ``log`` and one quarantined line."""
    return copied(filled_template, tmp_path / "filled.db")

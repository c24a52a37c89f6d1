"""Databases to test on: SQLite files and a PostgreSQL that lives as long as the run."""

import importlib.util
import inspect
import logging
import os
import signal
import subprocess
import tempfile

import pytest
from hypothesis import HealthCheck, settings

# Threads of scikit-learn's OpenMP would burn the cores of the other processes of a run while they
# wait. It is read when the library is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


import leftovers
import quick_schema
from builders import copied
from effort import EFFORT, examples
from leftovers import nothing_is_left_behind  # noqa: F401 - a fixture
from postgres import running_postgres
from server_roles import team_of

from tunedb.models._xgboost import leave_out_sklearn
from tunedb.storage.store import Store

# As in processes of ours.
leave_out_sklearn()

# The user's own configuration is not read, and approves none of the tests' databases; processes
# that tests start have theirs.
_configuration = tempfile.TemporaryDirectory(prefix="tunedb-test-configuration-")
os.environ["XDG_CONFIG_HOME"] = _configuration.name

# The prior of this release would be the donor of every search.
os.environ["TUNEDB_PRIOR"] = "none"

# As in processes of ours; whichever test comes first would set them for the others.
os.environ.setdefault("TVM_NUM_THREADS", "2")
os.environ.setdefault("TVM_BIND_THREADS", "0")
# TVM's threads spin before they sleep, on cores that other processes of a run need.
os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")

# TVM's decorators look at the whole stack, and for each frame whose file belongs to no module,
# inspect goes through all modules: a third of the time in which tests are collected.
for _file in (
    *("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>", "<frozen runpy>"),
    *("<ast>", "<string>"),
    # A process of xdist runs its source under another name.
    importlib.util.find_spec("xdist.remote").origin,
):
    inspect.modulesbyfile[_file] = "importlib"

# How long an example takes says more about the machine than about the code.
settings.register_profile(
    "tunedb",
    deadline=None,
    # A function's fixture serves all examples of a test; each takes workloads of its own.
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    derandomize=EFFORT != "new",
    max_examples=examples(100),
)
settings.load_profile("tunedb")

#: Files that say what any database does; the other ones try PostgreSQL in the long run.
CONFORMANCE = {
    *("test_store.py", "test_query.py", "test_merge.py", "test_migrations.py", "test_guards.py"),
    *("test_engine.py", "test_versions.py", "test_views.py", "test_tables.py"),
    "test_superseded.py",
}

# A script that starts the run in the background has it ignore Ctrl-C, and all that tests start too.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure():
    leftovers.use_own_folder()


def pytest_collection_modifyitems(items):
    """Mark what a long run tries again with more examples, and what it alone tries."""
    for item in items:
        if getattr(item.obj, "is_hypothesis_test", False):
            item.add_marker("examples")
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if parameters.get("store_url") == "postgresql" and item.path.name not in CONFORMANCE:
            item.add_marker("stress")


def pytest_unconfigure():
    _configuration.cleanup()
    leftovers.remove_own_folder()


def pytest_runtest_setup(item):
    quick_schema.use(item.path)


def pytest_runtest_logfinish(nodeid):
    leftovers.note(nodeid)


@pytest.fixture(autouse=True)
def quiet_again():
    """Leave the library's logger as it was: a command sets its level, --quiet to errors alone."""
    logger = logging.getLogger("tunedb")
    level, handlers = logger.level, list(logger.handlers)
    yield
    logger.setLevel(level)
    logger.handlers[:] = handlers


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory):
    """A new SQLite database, to be copied: a migration takes longer than most tests."""
    path = tmp_path_factory.mktemp("template") / "template.db"
    Store(path).close()
    return path


@pytest.fixture
def sqlite_file(sqlite_template, tmp_path):
    """The path of an empty database of the current schema."""
    return copied(sqlite_template, tmp_path / "store.db")


@pytest.fixture(scope="session")
def postgres_server():
    with running_postgres() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server):
    """The URL of an empty PostgreSQL database of the current schema."""
    url = postgres_server.borrow()
    yield url
    postgres_server.give_back(url)


@pytest.fixture
def team(postgres_server):
    """A function that returns the URL of an account; the set-up of docs/sharing.md in a server."""
    with team_of(postgres_server) as url:
        yield url


@pytest.fixture
def bare_postgres_url(postgres_server):
    """The URL of a PostgreSQL database without any table."""
    url = postgres_server.new_database(empty=True)
    yield url
    postgres_server.drop(url)


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request):
    """The URL of an empty database of the current schema, on both kinds of database."""
    if request.param == "sqlite":
        return str(request.getfixturevalue("sqlite_file"))
    return request.getfixturevalue("postgres_url")


@pytest.fixture
def store(store_url):
    with Store(store_url) as store:
        yield store


@pytest.fixture
def mount(tmp_path):
    """A function that mounts a tmpfs of some size: permission bits do not bind root."""
    mounted = []

    def mount(size="2m"):
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder],
            capture_output=True,
            check=False,
        )
        if done.returncode:
            pytest.skip(f"no file system can be mounted here: {done.stderr.decode().strip()}")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", folder], check=True)

"""Deadlines: a command ends with one line of error if a server does not answer."""

import socket
import subprocess
import threading
import time
from contextlib import ExitStack, closing, contextmanager, suppress

import pytest
from builders import OWN, make_measurement
from click.testing import CliRunner
from effort import long
from raising import raises_line
from sqlalchemy.engine import make_url

from tunedb import limits
from tunedb.cli import main
from tunedb.errors import BusyError, UnreachableError, UsageError
from tunedb.exchange.sync import push
from tunedb.plugins.metaschedule.tuning.server_sync import start_outbox
from tunedb.storage import deadlines
from tunedb.storage.store import Store
from tunedb.storage.versions import upgrade

#: Seconds after which a command counts as hanging.
GUARD_S = 300


@pytest.fixture
def hurried(monkeypatch):
    """Deadlines of less than a second, for servers that do not answer."""
    monkeypatch.setenv(deadlines.VARIABLE, "0.3")


@pytest.fixture
def impatient(monkeypatch):
    """A deadline for locks alone: a server that answers may be slow."""
    monkeypatch.setattr(limits, "LOCK_S", 0.15)


@pytest.fixture
def own(sqlite_file):
    """A file with a record."""
    with Store(sqlite_file) as store:
        store.records.add([make_measurement(0)], OWN)
    return sqlite_file


class Proxy:
    """A server on loopback between a client and PostgreSQL, whose socket is in a folder.

    Without a folder it accepts connections and never answers.
    """

    def __init__(self, sockets=None):
        self._sockets = sockets
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open = [self._listener]
        self._passes = threading.Event()
        self._passes.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def swallow(self):
        """Stop forwarding data."""
        self._passes.clear()

    def close(self):
        self._passes.set()
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self):
        with suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                self._open.append(client)
                if self._sockets is None:
                    continue
                server = socket.socket(socket.AF_UNIX)
                server.connect(f"{self._sockets}/.s.PGSQL.5432")
                self._open.append(server)
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, one, other):
        with suppress(OSError):
            while data := one.recv(65536):
                self._passes.wait()
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)


@pytest.fixture
def silent():
    """The URL of a server that accepts connections and never answers."""
    with closing(Proxy()) as proxy:
        yield f"postgresql://me:hush@127.0.0.1:{proxy.port}/none"


@pytest.fixture
def proxy(postgres_url):
    """A server that can fall silent; its ``url`` is that of ``postgres_url``."""
    there = make_url(postgres_url)
    with closing(Proxy(there.query["host"])) as proxy:
        changed = there.set(host="127.0.0.1", port=proxy.port, query={"sslmode": "disable"})
        proxy.url = changed.render_as_string(hide_password=False)
        yield proxy


@contextmanager
def locked(postgres_server, postgres_url):
    """Lock the table of records from an account that may update it, as every writer once could."""
    postgres_server.execute("CREATE ROLE holder LOGIN")
    postgres_server.execute_in(postgres_url, "GRANT UPDATE ON measurement TO holder")
    url = make_url(postgres_url).set(drivername="postgresql", username="holder")
    try:
        with deadlines._watched_connection().connect(url.render_as_string()) as connection:
            connection.execute("LOCK TABLE measurement IN ACCESS EXCLUSIVE MODE")
            yield
            connection.rollback()
    finally:
        postgres_server.execute_in(postgres_url, "DROP OWNED BY holder")
        postgres_server.execute("DROP ROLE holder")


def within_guard(work):
    """Return the result of a call; fail if it hangs."""
    done = []
    thread = threading.Thread(target=lambda: done.append(work()), daemon=True)
    thread.start()
    thread.join(GUARD_S)
    assert done, "it hangs"
    return done[0]


def run_command(own, *words):
    """Run a command; return its exit code and its only line of errors."""
    result = within_guard(lambda: CliRunner().invoke(main, ["-q", "--db", str(own), *words]))
    assert result.stderr.count("\n") == 1, result.output
    assert "hush" not in result.output
    return result.exit_code, result.stderr


COMMANDS = [("pull", "URL"), ("push", "URL"), ("top", "--db", "URL")]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_command_ends_if_another_account_locks_the_table(
    own, postgres_server, postgres_url, impatient, words
):
    with locked(postgres_server, postgres_url):
        command = [word.replace("URL", postgres_url) for word in words]
        code, line = run_command(own, *command)
    assert code == 5 and "another process is writing; try again" in line


@pytest.mark.stress
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_command_ends_if_the_server_accepts_connections_and_never_answers(
    own, silent, hurried, words
):
    code, line = run_command(own, *[word.replace("URL", silent) for word in words])
    assert code == 5 and "the database did not answer" in line


def test_top_leaves_out_a_silent_layer(own, silent, hurried):
    """The user's own file still answers."""
    code, line = run_command(own, "top", "--layer", silent)
    assert code == 0 and "this layer is left out: the database did not answer" in line


def test_top_leaves_out_a_locked_layer(own, postgres_server, postgres_url, impatient):
    with locked(postgres_server, postgres_url):
        code, line = run_command(own, "top", "--layer", postgres_url)
    assert code == 0 and "this layer is left out: another process is writing" in line


@pytest.mark.parametrize("works", [("count", "add"), long(("count", "add", "push"))])
def test_store_raises_unreachable_error_if_the_server_falls_silent(own, proxy, hurried, works):
    """The server answers the handshake, and then no statement of any store."""
    with Store(own) as here, Store(proxy.url) as there:
        assert push(here, proxy.url).new == 1
        assert there.records.count() == 1
        proxy.swallow()
        work = {
            "count": there.records.count,
            "add": lambda: there.records.add([make_measurement(1)], OWN),
            "push": lambda: push(here, proxy.url),
        }
        errors = [within_guard(lambda name=name: caught(work[name])) for name in works]
        for error in errors:
            assert isinstance(error, UnreachableError)
            assert "did not answer" in str(error) and "\n" not in str(error)
        # The others find out when they connect.
        assert f"did not answer for 0.45 s; {deadlines.VARIABLE} sets" in str(errors[0])
        # The connections are closed: no later statement waits for an answer on them.
        assert there._db._reader is None or there._db._reader.invalidated


def caught(work):
    """Return the error that a call raises."""
    try:
        work()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("trouble", ["locked", long("silent"), long("falls silent")])
def test_outbox_keeps_records_in_the_file_if_the_server_does_not_answer(
    own, trouble, postgres_server, postgres_url, silent, proxy, hurried
):
    """As in ``tunedb tune --server``: measured records wait in the user's file."""
    url = {"locked": postgres_url, "silent": silent, "falls silent": proxy.url}[trouble]

    def run(store, stack):
        outbox = start_outbox(store, url, stack)
        store.records.add([make_measurement(1)], OWN)
        outbox.notify()
        return outbox.close()

    with ExitStack() as stack:
        store = stack.enter_context(Store(own))
        if trouble == "locked":
            stack.enter_context(locked(postgres_server, postgres_url))
        if trouble == "falls silent":
            proxy.swallow()
        state = within_guard(lambda: run(store, stack))
    assert state.waiting == 2 and state.error is not None


def test_statement_over_the_time_limit_raises_busy_error(postgres_url, hurried):
    with (
        Store(postgres_url) as store,
        raises_line(BusyError, match=deadlines.VARIABLE),
        store._db.transaction() as connection,
    ):
        connection.exec_driver_sql("SELECT pg_sleep(60)")


def test_a_pipeline_may_take_longer_than_one_statement(postgres_url, monkeypatch):
    """Each answer restarts the time limit: a batch of a merge is many statements in one wait."""
    monkeypatch.setenv(deadlines.VARIABLE, "0.5")
    # The server sends its answers when there are 8 KB of them.
    statement = "SELECT pg_sleep(%s), repeat('x', 10000)"
    with Store(postgres_url) as store, store._db.transaction() as connection:
        driver = connection.connection.driver_connection
        began = time.monotonic()
        driver.cursor().executemany(statement, [(0.1,)] * 9)
        assert time.monotonic() - began > 0.5 * deadlines._SILENCE


def test_long_statements_raises_the_time_limit_temporarily(postgres_url, hurried):
    """LONG_STATEMENT_S is for statements that read all of a database."""

    def shown(connection):
        return connection.exec_driver_sql("SHOW statement_timeout").scalar()

    with Store(postgres_url) as store:
        reader = store._db.reader()
        with store._db.transaction() as writer:
            for connection in (reader, writer):
                driver = connection.connection.driver_connection
                assert (shown(connection), driver.seconds) == ("300ms", 0.3)
                with deadlines.long_statements(connection):
                    assert shown(connection) == "1h"
                    assert driver.seconds == limits.LONG_STATEMENT_S
                    connection.exec_driver_sql("SELECT pg_sleep(0.6)")
                assert (shown(connection), driver.seconds) == ("300ms", 0.3)
        with store._db.transaction() as writer:
            assert shown(writer) == "300ms"


def test_upgrade_may_exceed_the_time_limit_of_statements(bare_postgres_url, hurried, monkeypatch):
    Store(bare_postgres_url).close()
    with Store(bare_postgres_url) as store, store._db.transaction() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0001'")
    monkeypatch.setattr(
        "tunedb.migrations.upgrade", lambda one: one.exec_driver_sql("SELECT pg_sleep(0.6)")
    )
    assert upgrade(make_url(bare_postgres_url).set(drivername="postgresql+psycopg"))[0] == "0001"


def test_invalid_deadlines_are_refused(monkeypatch):
    for text in ("soon", "0", "-1", "nan", "inf", "1e9", "1" * 400):
        monkeypatch.setenv(deadlines.VARIABLE, text)
        with pytest.raises(UsageError, match=deadlines.VARIABLE) as error:
            Store("postgresql://127.0.0.1:9/none", create=False)
        assert len(str(error.value)) < 200


def test_connect_parameters_adds_default_deadlines_and_keeps_options_of_the_url(monkeypatch):
    """The defaults are STATEMENT_S, LOCK_S and CONNECT_S."""
    monkeypatch.delenv(deadlines.VARIABLE, raising=False)
    monkeypatch.delenv("PGOPTIONS", raising=False)
    assert deadlines.statement_seconds() == limits.STATEMENT_S
    assert deadlines.connect_parameters(limits.STATEMENT_S, {}) == {
        "connect_timeout": limits.CONNECT_S,
        "options": f"-c statement_timeout=60000 -c lock_timeout={limits.LOCK_S * 1000}",
    }
    options = {"options": "-c work_mem=1MB", "connect_timeout": "7"}
    parameters = deadlines.connect_parameters(1, options)
    assert parameters["options"].endswith("-c lock_timeout=500 -c work_mem=1MB")
    assert parameters["connect_timeout"] == "7"


def test_store_raises_unreachable_error_if_the_server_process_is_stopped(
    own, postgres_server, postgres_url, hurried
):
    """After SIGSTOP the kernel still accepts what the client sends."""
    with Store(postgres_url) as store:
        pid = store._db.reader().exec_driver_sql("SELECT pg_backend_pid()").scalar()
        subprocess.run(["kill", "-STOP", str(pid)], check=True)
        try:
            assert isinstance(within_guard(lambda: caught(store.records.count)), UnreachableError)
        finally:
            subprocess.run(["kill", "-CONT", str(pid)], check=True)
        # The next statement opens a new connection.
        assert store.records.count() == 0

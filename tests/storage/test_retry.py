"""Retries of a store while its server is away."""

import socket
import time
from contextlib import contextmanager

import pytest
from builders import make_measurement, make_session
from exchanges import OWN, away, fill
from raising import raises_line
from sqlalchemy.engine import make_url

from tunedb import limits
from tunedb.errors import StorageError, UnreachableError
from tunedb.records import Failure, FailureKind, Phase
from tunedb.storage.database import Database
from tunedb.storage.retry import retry
from tunedb.storage.store import Store


@pytest.mark.stress
def test_store_retries_until_the_server_is_back(postgres_server, postgres_url):
    with Store(postgres_url) as store:
        fill(store, 0)
        store.set_retry_timeout(30)
        for work in (
            lambda: fill(store, 1),
            lambda: store.sessions.add(make_session(1)),
            lambda: store.workloads.add(make_measurement(9, workload=9).program.workload),
            lambda: store.records.iterate().__next__(),
            lambda: store.meta(),
        ):
            with away(postgres_server, postgres_url, seconds=0.3):
                work()
        made = make_measurement(2, None)
        store.records.add([made], OWN)
        with away(postgres_server, postgres_url, seconds=0.3):
            store.batches.add_failures([(made, Failure(FailureKind.CRASH, Phase.RUN, "x"))])
        assert store.records.count() == 3
        assert store.records.failures() == {"crash": 1}


def test_retries_end_after_the_retry_timeout(postgres_server, postgres_url, monkeypatch):
    waits, wait = [], time.sleep

    def counted(seconds):
        waits.append(seconds)
        wait(seconds)

    with Store(postgres_url) as store:
        store.set_retry_timeout(0.5)
        with away(postgres_server, postgres_url):
            for work in (lambda: fill(store, 1), store.records.count):
                waits.clear()
                with monkeypatch.context() as patched, raises_line(UnreachableError):
                    patched.setattr(time, "sleep", counted)
                    work()
                assert len(waits) > 1
        assert store.records.count() == 0


def test_store_does_not_retry_by_default(postgres_server, postgres_url, monkeypatch):
    with (
        Store(postgres_url) as store,
        away(postgres_server, postgres_url),
        monkeypatch.context() as patched,
        pytest.raises(UnreachableError),
    ):
        patched.setattr(time, "sleep", pytest.fail)
        store.records.count()


def test_waits_between_retries_grow_up_to_a_limit(monkeypatch):
    waits = []
    clock = iter(range(1_000_000))
    monkeypatch.setattr(time, "sleep", waits.append)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock) * 0.5)

    def fails():
        raise UnreachableError(f"{len(waits)}")

    with pytest.raises(UnreachableError):
        retry(fails, UnreachableError("first"), limits.RECONNECT_S)
    assert waits[0] == limits.FIRST_WAIT_S
    assert max(waits) == limits.LONGEST_WAIT_S
    assert waits == sorted(waits)


def test_connection_to_server_that_is_away_or_never_answers_fails(monkeypatch):
    """Without the limit the test would not end."""
    assert limits.CONNECT_S <= 15
    monkeypatch.setattr(limits, "CONNECT_S", 2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for port in (9, silent.getsockname()[1]):
            with pytest.raises(UnreachableError) as caught:
                Store(f"postgresql://me:secret@127.0.0.1:{port}/none", create=False)
            assert "secret" not in str(caught.value)


def test_options_of_the_url_override_defaults(postgres_url):
    given = {"connect_timeout": "7", "keepalives_idle": "8"}
    options = "".join(f"&{name}={value}" for name, value in given.items())
    with Store(f"{postgres_url}{options}") as store, store._db.engine.connect() as connection:
        parameters = connection.connection.driver_connection.info.get_parameters()
    assert given.items() <= parameters.items()


def test_missing_role_or_database_is_not_reported_as_unreachable(postgres_url):
    for change in ({"username": "nobody_of_that_name"}, {"database": "no_such_database"}):
        url = make_url(postgres_url).set(**change).render_as_string(hide_password=False)
        with pytest.raises(StorageError) as caught:
            Store(url, create=False)
        assert not isinstance(caught.value, UnreachableError)
        assert "the server has no such database or role" in str(caught.value)


def test_retry_after_unconfirmed_commit_adds_no_row_twice(postgres_url, monkeypatch):
    """The store repeats a transaction whose commit was not confirmed."""
    transaction, failed = Database.transaction, []

    @contextmanager
    def cut_after_commit(database):
        with transaction(database) as connection:
            yield connection
        if not failed:
            failed.append(True)
            raise UnreachableError("the connection was cut")

    with Store(postgres_url) as store:
        store.set_retry_timeout(5)
        monkeypatch.setattr(Database, "transaction", cut_after_commit)
        assert store.batches.add([make_measurement(3)], OWN) == ([1], 0)
        assert (failed, store.records.count()) == ([True], 1)

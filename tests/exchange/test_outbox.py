"""The outbox delivers in the background, waits for an absent server, and raises no error."""

import threading
import time

import pytest
from exchanges import away, digests, fill
from sqlalchemy.engine import make_url

from tunedb import limits
from tunedb.errors import UsageError
from tunedb.exchange import outbox as outbox_module
from tunedb.exchange.outbox import Outbox
from tunedb.exchange.sync import push
from tunedb.storage.store import Store


def wait_until(condition, seconds=300):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_outbox_delivers_announced_records_after_those_of_an_earlier_run(here, postgres_url):
    fill(here, 10, 11)
    push(here, postgres_url)
    fill(here, 12)
    with Outbox(here, postgres_url) as outbox:
        wait_until(lambda: outbox.state.delivered == 1)
        assert outbox.state.is_complete
        for number in range(3):
            fill(here, number)
            outbox.notify()
            wait_until(lambda: outbox.state.is_complete)
        # The position is stored a moment before the records are counted.
        wait_until(lambda: outbox.state.delivered == 4)
        assert outbox.state.error is None
    assert digests(here) == digests(postgres_url)


def test_close_delivers_remaining_records(here, postgres_url):
    """It also delivers records that came during the last push."""
    fill(here, *range(10))
    outbox = Outbox(here, postgres_url)
    outbox.start()
    for number in range(10, 20):
        fill(here, number)
        outbox.notify()
    state = outbox.close()
    assert (state.delivered, state.waiting, state.error) == (20, 0, None)
    assert outbox.close() == state
    assert digests(here) == digests(postgres_url)


def test_outbox_delivers_after_the_server_returns(here, postgres_server, postgres_url, monkeypatch):
    monkeypatch.setattr(limits, "OUTBOX_WAIT_S", 0.5)
    with Outbox(here, postgres_url) as outbox:
        fill(here, 1)
        outbox.notify()
        wait_until(lambda: outbox.state.is_complete)
        with away(postgres_server, postgres_url):
            for number in range(2, 5):
                fill(here, number)
                outbox.notify()
            wait_until(lambda: outbox.state.error is not None)
            assert outbox.state.waiting == 3
        wait_until(lambda: outbox.state.delivered == 4)
        assert outbox.state.is_complete
        assert outbox.state.error is None
    assert digests(here) == digests(postgres_url)


def test_the_outbox_keeps_records_while_the_server_is_away(here, postgres_server, postgres_url):
    """Closing does not wait for OUTBOX_CLOSE_S, here an hour."""
    url = make_url(postgres_url).set(password="hush").render_as_string(hide_password=False)
    fill(here, 1, 2)
    with away(postgres_server, postgres_url):
        outbox = Outbox(here, url)
        outbox.start()
        wait_until(lambda: outbox.state.error is not None)
        state = outbox.close(timeout=3600)
    assert (state.delivered, state.waiting) == (0, 2)
    assert "\n" not in state.error
    assert "hush" not in state.error + state.server + repr(state)
    assert push(here, postgres_url).new == 2


def test_server_that_never_answers_blocks_neither_notify_nor_close(here, monkeypatch):
    """The test would not end."""
    stuck = threading.Event()
    monkeypatch.setattr(outbox_module, "push", lambda *_, **__: stuck.wait())
    outbox = Outbox(here, "postgresql://nowhere/x")
    fill(here, 1)
    outbox.start()
    fill(here, 2)
    outbox.notify()
    state = outbox.close(timeout=0.2)
    stuck.set()
    assert state.waiting == 2


def test_close_with_timeout_ends_delivery_between_two_batches(here, postgres_url, monkeypatch):
    monkeypatch.setattr(limits, "BATCH_ROWS", 5)
    monkeypatch.setattr(limits, "IMPORT_ROWS", 5)
    fill(here, *range(100))
    real = outbox_module.push

    def slow(*args, on_progress, **kwargs):
        def show(report):
            time.sleep(0.1)
            on_progress(report)

        return real(*args, on_progress=show, **kwargs)

    monkeypatch.setattr(outbox_module, "push", slow)
    outbox = Outbox(here, postgres_url)
    outbox.start()
    wait_until(lambda: 0 < outbox.state.waiting < 100)
    state = outbox.close(timeout=0.1)
    assert 0 < state.waiting < 100
    assert "before everything was delivered" in state.error
    monkeypatch.undo()
    assert push(here, postgres_url).new == state.waiting
    assert digests(here) == digests(postgres_url)


def test_error_of_a_delivery_is_kept_in_the_state(here, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(outbox_module, "push", fail)
    with Outbox(here, "postgresql://nowhere/x") as outbox:
        wait_until(lambda: outbox.state.error is not None)
    assert outbox.state.error == "ZeroDivisionError: a bug"


def test_waits_grow_up_to_a_bound(here, monkeypatch):
    """A server that is away for hours is asked once a minute."""
    outbox = Outbox(here, "postgresql://nowhere/x")
    waits = []

    def next_(wait):
        waits.append(wait)
        return len(waits) == 20, 1

    monkeypatch.setattr(outbox, "_wait", next_)
    monkeypatch.setattr(outbox, "_deliver", lambda _: False)
    outbox._run()
    assert (waits[0], waits[-1]) == (limits.FIRST_WAIT_S, limits.OUTBOX_WAIT_S)
    assert waits == sorted(waits)


def test_outbox_rejects_database_in_memory():
    with Store(":memory:") as store, pytest.raises(UsageError, match="in memory"):
        Outbox(store, "postgresql://nowhere/x")

"""Killed tuning runs continue; complete ones start again."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
from builders import OWN, make_measurement
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from tunedb.plugins.metaschedule.database.database import handle_of
from tunedb.plugins.metaschedule.database.handle import Candidate
from tunedb.plugins.metaschedule.tuning.resume import (
    end_run,
    run_key,
    session_of_run,
    trials_by_workload,
    trials_done,
)
from tunedb.storage.store import Store
from tunedb.system.host import fingerprint_of, new_session, session_class


def test_run_keys_are_equal_only_for_equal_arguments(tools):
    one, other = (tools.matmul(16), tools.llvm), (tools.matmul(32), tools.llvm)
    arguments = {"max_trials": 64, "seed": 1, "settings": {"repeat": 3}}
    key = run_key([one, other], **arguments)
    again = (tools.matmul(16)["main"], tools.llvm)
    assert run_key([other, again], **arguments) == key
    changes = [{"max_trials": 65}, {"seed": None}, {"settings": None}]
    keys = {run_key([one, other], **(arguments | change)) for change in changes}
    keys |= {run_key([one], **arguments), run_key([one, (other[0], tools.cuda)], **arguments)}
    assert len(keys) == 5
    assert key not in keys


def test_session_of_run_keeps_its_class_unless_the_evaluator_differs():
    before = new_session(tvm="1")
    one, other = (session_of_run(before, key, max_trials=8) for key in "ab")
    assert session_class(one) == session_class(other) == session_class(before)
    assert len({before.digest, one.digest, other.digest}) == 3
    evaluators = [{"repeat": n} for n in (1, 1, 3)]
    measured = [session_of_run(before, "a", max_trials=8, evaluator=one) for one in evaluators]
    assert session_class(measured[0]) == session_class(measured[1]) != session_class(before)
    assert session_class(measured[0]) != session_class(measured[2])
    assert fingerprint_of(measured[0])["cpu"] == fingerprint_of(before)["cpu"]


class Runs:
    """Sessions of one run, with candidates that are measured (m) or served (s)."""

    def __init__(self, trials):
        self.store = Store(":memory:")
        self.handle = SimpleNamespace(store=self.store)
        self.trials = trials

    def run(self, candidates, key="run"):
        session = session_of_run(new_session(), key, max_trials=self.trials)
        measured = [
            make_measurement(number, session=session, occurrence=number)
            for number, what in enumerate(candidates)
            if what == "m"
        ]
        if measured:
            self.store.batches.add(measured, OWN)
        return session

    def done(self, key="run"):
        return trials_done(self.handle, key)


@pytest.fixture
def runs():
    runs = Runs(8)
    yield runs
    runs.store.close()


def test_trials_of_a_killed_run_count_until_it_is_complete(runs):
    def done():
        counts = trials_by_workload(runs.handle, "run")
        assert counts == Counter({1: runs.done()})
        return runs.done()

    assert done() == 0
    runs.run("mmm")
    assert done() == 3
    runs.run("smmm")  # killed once more
    assert done() == 6
    runs.run("mm", key="another")
    assert (done(), runs.done("another")) == (6, 2)
    runs.run("mm")
    assert done() == 0
    runs.run("m")
    assert done() == 1


def test_end_run_completes_a_run_whose_last_trials_were_served(runs):
    session = runs.run("mmmmss")
    runs.handle.session = lambda: session
    assert runs.done() == 4
    end_run(runs.handle)
    assert runs.done() == 0
    runs.run("mm")
    assert runs.done() == 2
    # It stores nothing for a complete run.
    session = runs.run("ssmmmmmm")
    assert runs.done() == 0
    before = len(runs.store.runs.sessions_of_run("run"))
    end_run(runs.handle)
    assert len(runs.store.runs.sessions_of_run("run")) == before


@given(st.lists(st.text("ms", min_size=1, max_size=8), max_size=8))
@settings(max_examples=examples(15))
def test_trials_done_is_less_than_the_trials_of_a_run(candidates):
    runs = Runs(8)
    try:
        for some in candidates:
            runs.run(some)
            assert 0 <= runs.done() < 8
    finally:
        runs.store.close()


def test_handle_numbers_trials_of_each_session_separately(tools, sqlite_file, opened):
    """One process tunes several times."""
    database = opened(sqlite_file, target=tools.llvm)
    handle, mod = handle_of(database), tools.matmul(16)
    workload = handle.commit_workload(mod)

    def run(*tiles):
        handle.use_session(session_of_run(handle.session(), "run", max_trials=3))
        for tile in tiles:
            r = tools.record(mod, workload, [1.0], tile=tile)
            handle.record_batch([Candidate(workload, r.trace, tools.llvm, r.args_info, (0.1,))])
        return trials_done(handle, "run")

    assert run((16, 1), (8, 2), (4, 4)) == 0
    assert run((16, 1), (8, 2)) == 2
    assert run((4, 4)) == 0

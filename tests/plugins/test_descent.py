"""The descent: the last trials of a task go to neighbours of its best program."""

from __future__ import annotations

import pytest
from test_drafts import Run, seconds_of, store_time

from tunedb.plugins.metaschedule.search.descent import Descent
from tunedb.plugins.metaschedule.search.schedule_queries import from_tvm
from tunedb.plugins.metaschedule.search.task_search import TaskSearch
from tunedb.search.operators import neighbours

pytestmark = pytest.mark.usefixtures("intrinsics")

TRIALS, BATCH = 32, 8


def test_descent_takes_half_of_each_batch_in_the_last_quarter():
    descent = Descent()
    assert [descent.places(8, left, 64) for left in (64, 24, 17, 16, 8)] == [0, 0, 0, 4, 4]
    assert descent.places(1, 1, 64) == 0
    # Before, it starts after batches without gain and ends at the next gain.
    places = []
    for times in ([3.0, 2.0], [2.5], [], [1.0], [2.0]):
        descent.add(times)
        places.append(descent.places(8, 50, 64))
    assert places == [0, 0, 4, 0, 0]


def batches(database, mod, target):
    """Search with stored measurements; return the best draft before each batch, and the batch."""
    run = Run(database, mod, target, batch=BATCH, trials=TRIALS, eps_greedy=0.0)
    found, measured = [], []
    for _ in range(TRIALS // BATCH):
        candidates = run.batch()
        found.append((min(measured, default=(0, None), key=lambda one: one[0])[1], candidates))
        for each in candidates:
            store_time(database, mod, target, each)
            measured.append((seconds_of(each), from_tvm(each.sch.trace)))
    return found


def around(best, candidates):
    """Return how many candidates are neighbours of a program."""
    extents = {name: [[2] * 10] for name in ("b0", "b1", "b2", "b3", "b4", "b5", "b6", "b7")}
    near = {draft.key for _, draft in neighbours(best, extents)}
    return sum(from_tvm(each.sch.trace).key in near for each in candidates)


def test_half_of_the_last_batch_are_neighbours_of_the_best_program(tools, opened, monkeypatch):
    def in_last_batch():
        found = batches(opened(":memory:", target=tools.llvm), tools.matmul(64), tools.llvm)
        return around(*found[-1])

    assert in_last_batch() >= BATCH // 2
    monkeypatch.setattr(Descent, "places", lambda *_: 0)
    assert in_last_batch() < BATCH // 2


def test_descent_replays_and_measures_each_neighbour_once(tools, opened, monkeypatch):
    """Neighbours that were measured but not stored, as after failures, take no places again."""
    replayed, spent = TaskSearch._replayed, []

    def replay(search, drafts, chosen):
        spent.append(sum(individual.draft.key in search._spent for individual in chosen))
        return replayed(search, drafts, chosen)

    monkeypatch.setattr(TaskSearch, "_replayed", replay)
    monkeypatch.setattr(Descent, "places", lambda *_: BATCH)
    database, mod = opened(":memory:", target=tools.llvm), tools.matmul(64)
    run = Run(database, mod, tools.llvm, batch=BATCH, trials=TRIALS, eps_greedy=0.0)
    best = min(run.batch(), key=seconds_of)
    store_time(database, mod, tools.llvm, best)
    found = [around(from_tvm(best.sch.trace), run.batch()) for _ in range(3)]
    assert (found[1:], set(spent)) == ([BATCH, BATCH], {0})

from __future__ import annotations

import itertools

import pytest
from fake_measuring import FakeBuilder, FakeRunner, tune
from tvm.s_tir import meta_schedule as ms

import tunedb
from tunedb.plugins.metaschedule import Database, MeasureCallback

TRIALS = 16

#: Outcomes of the fake builder and runner, in turn: (build error, run error, run_secs).
OUTCOMES = [
    (None, None, [0.003, 0.002]),
    ("LocalBuilder: Timeout, killed after 30.0 seconds", None, None),
    ("LocalBuilder: An exception occurred\nLLVM ERROR: broken", None, None),
    (None, "LocalRunner: Timeout, killed after 10.0 seconds", None),
    (None, "LocalRunner: An exception occurred\nSubprocess terminated", None),
    (None, "LocalRunner: An exception occurred\nNot equal to tolerance rtol=1e-05", None),
    (None, "RPCRunner: An exception occurred\nConnection refused", None),
    (None, None, [0.001, 0.001, 0.004]),
]


def _tune(mod, target, database, callbacks, tmp_path, **more):
    """Tune with outcomes in turn; a runner sees only what was built."""
    built = itertools.cycle(OUTCOMES)
    ran = itertools.cycle([one for one in OUTCOMES if one[0] is None])
    current = []

    def run_error(_hash):
        current[:] = [next(ran)]
        return current[0][1]

    options = {
        **{"builder": FakeBuilder(lambda _: next(built)[0]), "measure_callbacks": callbacks},
        "runner": FakeRunner(run_error, seconds=lambda _: current[0][2]),
    }
    return tune(mod, target, database, tmp_path, trials=TRIALS, **(options | more))


@pytest.mark.parametrize("order", ["alone", "before", "after", "tvm"])
def test_each_candidate_is_recorded_once(order, tools, tmp_path, opened):
    database = opened(tmp_path / "tune.db", target=tools.llvm)
    ours = MeasureCallback(database)
    theirs = ms.measure_callback.AddToDatabase()
    orders = {"before": [ours, theirs], "after": [theirs, ours], "tvm": [theirs]}
    callbacks = orders.get(order, [MeasureCallback()])  # finds the database of the run
    returned = _tune(tools.matmul(64), tools.llvm, database, callbacks, tmp_path)
    assert returned is database
    assert len(database) == TRIALS
    counts = database.store.counts()
    assert (counts.measurements, counts.failed, counts.sessions) == (TRIALS, 12, 1)
    records = list(database.store.records.iterate())
    assert [r.measurement.occurrence for r in records] == list(range(TRIALS))
    ok = sorted(r.measurement.run_secs for r in records if r.measurement.status == 0)
    assert ok == sorted(2 * [(0.003, 0.002), (0.001, 0.001, 0.004)])
    kinds = database.store.records.failures()
    if order == "tvm":
        assert kinds == {}
    else:
        others = ("compile_error", "crash", "wrong_result", "infrastructure")
        assert kinds == {"timeout": 4} | dict.fromkeys(others, 2)
        failures = [r.measurement.failure for r in records if r.measurement.failure]
        assert {f.seconds for f in failures if f.kind == "timeout"} == {30.0, 10.0}
        assert {f.phase.value for f in failures} == {"build", "run"}
    fingerprint = records[0].measurement.session.fingerprint
    for key in (b"cpu", b"cores", b"os", b"tvm", b"tvm_ffi", b"llvm", b"tunedb"):
        assert b'"%s"' % key in fingerprint
    assert all(r.measurement.measured_at > 0 for r in records)


def test_second_run_with_default_callbacks_starts_from_the_first(tools, tmp_path, opened):
    """TVM's default callbacks store the records, and its evolution asks for the best ones."""
    mod = tools.matmul(64)
    with Database(tmp_path / "tune.db", target=tools.llvm) as database:
        _tune(mod, tools.llvm, database, "default", tmp_path)
    database = opened(tmp_path / "tune.db", target=tools.llvm)
    asked = []
    original = database.store.answers.best_ids
    database.store.answers.best_ids = lambda *a: asked.append(original(*a)) or asked[-1]
    _tune(mod, tools.llvm, database, "default", tmp_path, seed=2)
    assert asked and len(asked[0]) == 3  # int(population 16 * ratio 0.2), all from the first run
    assert len(database) == 2 * TRIALS
    assert database.store.counts().sessions == 2


def test_callback_rejects_database_of_tvm(tools, tmp_path):
    with pytest.raises(tunedb.PluginError, match=r"MeasureCallback\(database\)"):
        memory = ms.database.MemoryDatabase()
        _tune(tools.matmul(64), tools.llvm, memory, [MeasureCallback()], tmp_path)

"""Racing: what is cut short, what never is, and how it is stored."""

from __future__ import annotations

import math
import random

import pytest
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.runner import EvaluatorConfig

from tunedb.formats.export import export_metaschedule
from tunedb.plugins.metaschedule.cost_model.online import trial_of
from tunedb.plugins.metaschedule.measure import racing
from tunedb.plugins.metaschedule.measure.measured import Known
from tunedb.plugins.metaschedule.measure.racing import Race, RacingRunner, run_race
from tunedb.plugins.metaschedule.tuning import defaults, options, run
from tunedb.plugins.metaschedule.tuning.tune import tune
from tunedb.records import Status
from tunedb.run_times import NO_TIME

CONFIG = EvaluatorConfig(number=1, repeat=3, min_repeat_ms=30)


def raced(monkeypatch, times, bound):
    """Return what the evaluator gives for a program with these times, and its calls."""
    left, calls = list(times), []

    def evaluate(_module, _device, config, _arguments):
        calls.append((config.number, config.repeat, config.min_repeat_ms))
        return [left.pop(0) for _ in range(config.repeat)]

    monkeypatch.setattr(racing, "run_evaluator_common", evaluate)
    return run_race(None, None, CONFIG, [], bound=bound), calls


@pytest.mark.parametrize(
    ("times", "found", "n_calls"),
    [
        ((1.0, 1.1, 1.2), [1.0, 1.1, 1.2], 2),
        # Only the first repeat was disturbed; the short second look does not count as a repeat.
        ((1.9, 1.0, 1.1, 1.2), [1.9, 1.1, 1.2], 3),
        ((1.9, 1.8), [1.9, 1.8, NO_TIME], 2),
        # So far away that no second look is needed.
        ((3.1,), [3.1, NO_TIME, NO_TIME], 1),
    ],
)
def test_run_race_stops_a_program_after_slow_repeats(times, found, n_calls, monkeypatch):
    seconds, calls = raced(monkeypatch, times, bound=1.5)
    assert (seconds, len(calls)) == (found, n_calls)


def test_run_race_takes_repeats_as_long_as_those_of_a_whole_measurement(monkeypatch):
    seconds, calls = raced(monkeypatch, [1e-3] * 3, bound=math.inf)
    assert seconds == [1e-3] * 3
    assert calls == [(1, 1, 30), (30, 2, 15)]
    _, calls = raced(monkeypatch, [1e-3] * 2, bound=0.6e-3)
    assert calls == [(1, 1, 30), (5, 1, 0)]


def test_bound_of_a_race_follows_from_the_spread_of_the_task():
    race = Race()
    assert race.bound() == math.inf
    race.begin(0)
    assert race.bound() == math.inf
    race.add((1.0, 1.0, 1.5))
    # The spread is not known yet.
    assert race.bound() == pytest.approx(2 * 3.5 / 3)
    for _ in range(18):
        race.add((2.0, 3.0, 2.5))
    # A range wider than 19 ranges of 1.5 has a probability of one in twenty.
    assert race.ratio() == pytest.approx(1.5**2)
    race.begin(1)
    assert race.bound() == math.inf
    assert race.ratio() == pytest.approx(1.5**2)
    for _ in range(19):
        race.add((4.0, 4.1, 4.2))
    # The task has little noise, but the machine may drift.
    assert race.bound() == pytest.approx(1.25 * 4.1)
    race.begin(0)
    assert race.ratio() == pytest.approx(1.5**2)


@pytest.mark.parametrize("noise", [0.01, 0.1, 0.3])
def test_race_stops_a_quarter_of_all_programs_but_rarely_the_fastest(noise):
    """Each repeat is slower by an exponential share of its time, as on a shared machine."""
    rng = random.Random(0)
    lost = saved = total = 0
    for _ in range(300):
        race = Race()
        race.begin(0)
        programs = [math.exp(rng.gauss(0, 0.7)) for _ in range(64)]
        for seconds in programs:
            repeats = [seconds * (1 + rng.expovariate(1 / noise)) for _ in range(3)]
            total += 1
            if min(repeats[:2]) > race.bound():
                saved += 1
                lost += seconds == min(programs)
            else:
                race.add(repeats)
    assert lost <= 1
    assert saved > total / 4


def test_race_stops_nothing_before_the_first_batch_in_finals_and_if_told_so():
    race = Race()
    race.add((1.0,))
    race.begin(0)
    race.add((0.0, 1.0, 1.0))  # a time of zero is none
    assert race.bound() == math.inf
    race.add((1.0,))
    assert race.bound() == 2.0
    race.begin(0, is_whole=True)
    race.add((0.1,))
    assert race.bound() == math.inf
    race.begin(0)
    assert race.bound() == 2.0
    race = Race(stops=False)
    race.begin(0)
    for _ in range(19):
        race.add((1.0, 2.0))
    assert race.bound() == math.inf
    assert race.spread(0) == 4.0  # finals ask for it


@pytest.mark.parametrize(
    "changes",
    [
        {"task_scheduler": "gradient"},
        {"measure_callbacks": [ms.measure_callback.AddToDatabase()]},
        {"evaluator": EvaluatorConfig(number=1, repeat=2, min_repeat_ms=1)},
        {"runner": "rpc"},
    ],
)
def test_run_has_no_race_with_parts_that_do_not_support_it(changes, monkeypatch):
    seen = []

    def begin(given, _stack):
        seen.append(given.race())
        raise StopIteration

    monkeypatch.setattr(run.Run, "begin", begin)
    for arguments in ({}, changes):
        with pytest.raises(StopIteration):
            tune(None, **arguments)
    assert isinstance(seen[0], Race)
    assert seen[1] is None


@pytest.mark.stress
def test_run_stores_stopped_programs_as_cut_short_and_never_serves_them(
    tools, tmp_path, monkeypatch
):
    """Every second program of a real run is stopped."""

    class HalfRace(Race):
        def bound(self):
            self.calls = getattr(self, "calls", 0) + 1
            return 1e-12 if self.calls % 2 == 0 else math.inf

    monkeypatch.setattr(options, "Race", HalfRace)
    path = tmp_path / "tune.db"
    evaluator = EvaluatorConfig(number=1, repeat=3, min_repeat_ms=1)
    arguments = {"target": tools.llvm, "database": path, "evaluator": evaluator, "finals": False}
    result = tune(tools.matmul(64), max_trials_global=16, num_trials_per_iter=8, **arguments)
    with result.database as database:
        progress = result.tasks[0].progress
        assert (progress.trials, progress.failed, progress.cut_short) == (16, 0, 8)
        records = list(database.store.records.iterate())
        cut = [r for r in records if r.measurement.status is Status.CUT_SHORT]
        assert [len(r.measurement.run_secs) for r in cut] == [1] * 8
        assert all(r.measurement.run_secs[0] < 1 for r in cut)
        whole = [r.id for r in records if r.measurement.status is Status.OK]
        workload = records[0].workload_id
        assert {r.id for r in database.store.records.top_k([workload], None, 99)} <= set(whole)
        assert result.tasks[0].record.id in whole
        assert progress.best_seconds < 1
        # TVM gets them without a time, in their place in the list of all records.
        times = [tuple(map(float, r.run_secs)) for r in database.get_all_tuning_records()]
        assert times.count((NO_TIME,)) == 8
        # They are not known: another run measures them again.
        database._handle.use_session(records[0].measurement.session)
        known = Known(database._handle)
        assert known.prepare(tools.matmul(64), tools.llvm) == len(whole)
        report = export_metaschedule(database.store, tmp_path / "out")
        assert (report.records, report.left_out) == (len(whole), {"cut short": 8})


def test_trial_of_marks_trials_that_were_cut_short(live):
    _, measurement = live
    run_secs = (0.5, 0.75, NO_TIME)
    result = ms.runner.RunnerResult(run_secs, None)
    trial = trial_of(None, measurement.program, 1, result, "median")
    assert (trial.seconds, trial.cut_short, trial.failure) == (0.625, True, 0)
    whole = trial_of(None, measurement.program, 1, ms.runner.RunnerResult([0.5], None), "median")
    assert not whole.cut_short


def test_runner_of_returns_racing_runner_for_local():
    race = Race()
    runner = defaults.runner_of("local", CONFIG, race)
    assert isinstance(runner, RacingRunner)
    assert runner.evaluator_config == CONFIG

"""Finals: who is the best program after all."""

from __future__ import annotations

import itertools
import json
from contextlib import closing
from dataclasses import replace

import pytest
from fake_measuring import FakeBuilder, FakeRunner, tune
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.runner import EvaluatorConfig

from tunedb import identity
from tunedb.errors import TuneDBError
from tunedb.formats.export import export_metaschedule
from tunedb.plugins.metaschedule import compat
from tunedb.plugins.metaschedule.database.database import Database, handle_of
from tunedb.plugins.metaschedule.database.handle import Candidate
from tunedb.plugins.metaschedule.tuning import finals as finals_module
from tunedb.plugins.metaschedule.tuning import run as tuning_run
from tunedb.plugins.metaschedule.tuning.finals import Finals
from tunedb.plugins.metaschedule.tuning.tune import tune as tune_all
from tunedb.plugins.metaschedule.tuning.tvm_logs import logs_in_files
from tunedb.records import TUNING, Session
from tunedb.storage.workloads import Neighbour

#: Time of the n-th program of a run, in seconds: each is slower than the one before.
STEP = 1e-5


# Times in a final: of the number of a program in the run, and the number of the call.


def as_before(number, _):
    return (1e-3 * (1 + number),)


def gone(*programs):
    """Return a function of errors: those programs fail."""
    return lambda hash_: "gone" if hash_ in programs else None


def first_was_lucky(number, _):
    """The first program is the slowest of the six."""
    return (2e-3 if number == 0 else 1.2e-3 + STEP * number,)


def nearest_to(best):
    """Return a function of times: programs near a number are fast."""
    return lambda number, _: (1.5e-3 + abs(best - number) * 1e-4,) * 3


# ---- a tuned task --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def searched(tools, tmp_path_factory):
    """The candidates of a run in their order, and the hashes of their modules."""
    builder, runner = FakeBuilder(), FakeRunner()
    with logs_in_files(), closing(Database(":memory:", target=tools.llvm)) as database:
        folder = tmp_path_factory.mktemp("searched")
        tune(tools.matmul(32), tools.llvm, database, folder, builder=builder, runner=runner)
        found = database.get_all_tuning_records()
    builder.close()
    return [(record.trace, record.args_info) for record in found], runner.ran


class Tuned:
    """A tuned task; each of its programs was slower than the one before."""

    def __init__(self, database, tools, searched, step=STEP):
        self.database, self.mod, self.target = database, tools.matmul(32), tools.llvm
        self.tools = tools
        self.builder = FakeBuilder()
        candidates, self.programs = searched
        workload = database.commit_workload(self.mod)
        times = [(1e-3 + step * number,) * 2 for number in range(len(candidates))]
        database.record_batch(
            [
                Candidate(workload, trace, self.target, args, seconds)
                for (trace, args), seconds in zip(candidates, times, strict=True)
            ]
        )

    def decide(self, seconds, errors=lambda _: None, spread=None, until=float("inf")):
        """Hold a final, in which programs take `seconds`; return its winner."""
        calls = itertools.count()
        runner = FakeRunner(
            errors, seconds=lambda hash_: seconds(self.programs.index(hash_), next(calls))
        )
        finals = Finals(handle_of(self.database), self.target, self.builder, runner)
        best = finals.decide(self.mod, spread, until)
        self.ran = [self.programs.index(hash_) for hash_ in runner.ran]
        return best

    def records(self):
        return list(self.database.store.records.iterate())

    def top(self):
        record = self.records()[0]
        return self.database.store.records.top_k(record.workload_id, record.target_id, 99)


@pytest.fixture
def tuned(tools, tmp_path, opened, searched):
    one = Tuned(opened(tmp_path / "tune.db", target=tools.llvm), tools, searched)
    yield one
    one.builder.close()


def test_a_lucky_time_does_not_win(tuned, tmp_path):
    before = tuned.top()
    best = tuned.decide(first_was_lucky)
    assert best.id == before[1].id
    # What the final measured is stored with the origins of the programs, the winner's first.
    again = tuned.records()[16:]
    assert [r.measurement.program for r in again] == [
        before[number].measurement.program for number in (1, 0, 2, 3, 4, 5)
    ]
    assert {r.measurement.origin for r in again} == {before[0].measurement.origin}
    assert [json.loads(r.measurement.extra)["final"] for r in again] == ["won", *["lost"] * 5]
    assert again[1].measurement.run_secs == (2e-3,) * 3
    assert len({r.measurement.session for r in tuned.records()}) == 1
    assert len({r.measurement.occurrence for r in tuned.records()}) == 22
    # The losers rank by their times in the final, and their other records are valid.
    top = [record.id for record in tuned.top()]
    assert top[:2] == [before[1].id, before[6].id]
    assert set(top) == {r.id for r in tuned.records()} - {before[n].id for n in (0, 2, 3, 4, 5)}
    assert top[-1] == next(r.id for r in again if r.mean == 2e-3)
    assert not any(record.retracted for record in tuned.records())
    store, workload = tuned.database.store, before[0].workload_id
    assert len(store.records.history(workload)) == 22
    assert store.workloads.find()[0].best == before[1].mean
    # An export ranks as the final did.
    report = export_metaschedule(store, tmp_path / "out")
    reason = "superseded by a final, which measured the program again"
    assert (report.left_out, report.records) == ({reason: 5}, 17)
    (folder,) = report.directories
    assert compat.number() < (0, 27) or folder == str(tmp_path / "out")
    theirs = ms.database.JSONDatabase(work_dir=folder)
    (first,) = theirs.get_top_k(theirs.commit_workload(tuned.mod), 1)
    assert [float(seconds) for seconds in first.run_secs] == list(best.measurement.run_secs)


def test_the_winner_of_the_last_final_ranks_first(tuned):
    """The machine is fast in the first final: its times are the best that were ever measured."""
    first = tuned.decide(lambda number, _: (1e-4 * (1 + number / 20),))
    assert tuned.top()[0].measurement.program == first.measurement.program
    assert tuned.top()[0].mean == 1e-4
    second = tuned.decide(lambda number, _: (1e-2 * (9 - number),), spread=9.0)
    assert second.measurement.program != first.measurement.program
    assert tuned.top()[0].id == second.id


def test_many_records_of_the_others_are_superseded(tuned):
    """A program that won many finals has many records."""
    first = tuned.top()[0].measurement
    again = [replace(first, occurrence=100 + number) for number in range(60)]
    tuned.database.store.batches.add(again, TUNING)
    best = tuned.decide(first_was_lucky)
    assert best.measurement.program != first.program
    assert tuned.top()[0].id == best.id
    assert sum(record.measurement.program == first.program for record in tuned.top()) == 1


def test_a_program_that_does_not_replay_takes_no_part(tuned, monkeypatch):
    broken = tuned.top()[1].id
    records = handle_of(tuned.database).records
    workload = tuned.database.commit_workload(tuned.tools.matmul(32, block="D"))
    trace = records.get(broken).trace
    other = ms.database.TuningRecord(trace, workload, [1.0], tuned.target, None)
    monkeypatch.setitem(records._live, broken, other)
    tuned.decide(as_before)
    assert set(tuned.ran) == {0, 2, 3, 4, 5}


def test_a_record_that_takes_no_part_stays_where_it_is(tuned, monkeypatch):
    """It ranks between two records that lost."""
    before = tuned.top()
    records = handle_of(tuned.database).records
    live = {record.id: records.get(record.id) for record in before if record is not before[1]}
    monkeypatch.setattr(records, "get", live.get)
    best = tuned.decide(lambda number, _: (1.2e-3 if number == 4 else 2e-3 + STEP * number,))
    assert best.id == before[4].id
    assert [record.id for record in tuned.top()][:2] == [before[1].id, before[4].id]


@pytest.mark.parametrize("number", [1, 3])
def test_what_was_built_is_removed(number, tuned):
    """Of one program alone, too, which has no final."""
    built = FakeBuilder(lambda hash_: None if hash_ in tuned.programs[:number] else "no room")
    tuned.builder.close()
    tuned.builder = built
    best = tuned.decide(as_before)
    assert set(tuned.ran) == (set(range(number)) if number > 1 else set())
    assert (best is None) == (number == 1)
    assert not [path for path in built.close.__self__.path.iterdir() if path.is_dir()]


def test_programs_are_measured_in_turn_until_one_is_decided(tuned):
    store, record = tuned.database.store, tuned.records()[0]
    near = [Neighbour(record.workload_id, (record.target_id,), 0.0, "exact")]
    before = store.answers.courses(near)
    tuned.decide(as_before)
    assert tuned.ran == [*range(6), *range(5, -1, -1), *range(6)]
    # What a search is known to have tried is without finals.
    assert store.answers.courses(near) == before
    assert len(before[0]) == 16


@pytest.mark.parametrize(("spread", "number"), [(1.0, 2), (None, 3), (1.2, 5), (9.0, 6)])
def test_programs_out_of_reach_do_not_take_part(spread, number, tools, path, opened, searched):
    """Each program was slower than the one before by 5 % of the first one's time."""
    tuned = Tuned(opened(path, target=tools.llvm), tools, searched, step=4.9e-5)
    tuned.decide(as_before, spread=spread)
    assert set(tuned.ran) == set(range(number))
    tuned.builder.close()


def test_a_slow_machine_changes_nothing(tuned):
    """It is as slow for all: no program ranks before the winner that was not in the final."""
    before = tuned.top()
    best = tuned.decide(lambda number, call: ((2 + call // 6) * (1e-3 + STEP * number),))
    assert best.id == before[0].id == tuned.top()[0].id


def test_a_disturbed_repeat_does_not_hide_the_winner(tuned):
    """Its mean in the final is the worst of all, and those of the others are better than ever."""
    before = tuned.top()

    def seconds(number, call):
        return (1.0,) * (number == 0 and call == 0) + (5e-4 + STEP * number,) * 3

    # The database ranks by means.
    assert tuned.decide(seconds).id == before[1].id
    assert tuned.top()[0].measurement.program == before[1].measurement.program


def test_a_close_final_ends_after_twelve_rounds(tuned):
    tuned.decide(lambda number, call: (1e-3 * (1.2 if call % 3 else 1),))
    assert max(map(tuned.ran.count, set(tuned.ran))) == 12


def test_a_program_that_fails_now_leaves_the_final(tuned):
    before = tuned.top()
    best = tuned.decide(lambda number, _: (1.2e-3 - STEP * number,), gone(tuned.programs[2]))
    assert (best.id, tuned.ran.count(2)) == (before[5].id, 1)
    assert before[2].id in [record.id for record in tuned.top()]
    again = [record.measurement.program for record in tuned.records()[16:]]
    assert before[2].measurement.program not in again


def test_a_final_needs_two_programs_that_run_on_this_machine(tuned):
    before = [record.id for record in tuned.records()]
    others = set(tuned.programs) - {tuned.programs[3]}
    assert tuned.decide(lambda *_: (1.0,), gone(*others)) is None
    assert [record.id for record in tuned.records()] == before
    handle = handle_of(tuned.database)
    # Nor has a task without records a final.
    assert Finals(handle, tuned.target, tuned.builder, None).decide(tuned.tools.matmul(16)) is None
    handle.use_session(Session("other", 1, b'{"cpu":"another"}'))
    assert tuned.decide(lambda *_: (1.0,)) is None
    assert tuned.ran == []


def with_cold_weights(tuned, seconds_of):
    """Let a run of another evaluator measure some programs that have no other valid record.

    Return the programs of the first run.
    """
    records = tuned.top()
    session = records[0].measurement.session
    fingerprint = {**json.loads(session.fingerprint), "evaluator": {"cold_weights": True}}
    cold = Session("cold", session.started_at + 1, identity.canonical_json(fingerprint))
    handle_of(tuned.database).use_session(cold)
    measured = [
        replace(records[n].measurement, session=cold, run_secs=(seconds,) * 3, occurrence=100)
        for n, seconds in seconds_of.items()
    ]
    store = tuned.database.store
    store.trust.retract([records[n].id for n in seconds_of], "warm")
    store.batches.add(measured, TUNING)
    return [record.measurement.program for record in records]


@pytest.mark.parametrize(
    ("fastest", "finals"),
    [
        (0, [[0, 1, 2, 3, 4, 10]]),
        (8, [[0, 1, 2, 3, 4, 10], [5, 6, 7, 8, 9, 10]]),
        (10, [[0, 1, 2, 3, 4, 10], [5, 6, 7, 8, 9, 10], [11, 13, 14, 15, 10]]),
    ],
)
def test_finals_go_on_while_times_of_another_evaluator_rank_first(fastest, finals, tuned):
    """The best program of this evaluator is in each final."""
    programs = with_cold_weights(tuned, {10: 1.5e-3, 12: 1.6e-3})
    near = nearest_to(10)
    best = tuned.decide(lambda n, call: (1.2e-3,) * 3 if n == fastest else near(n, call))
    assert best.measurement.program == tuned.top()[0].measurement.program == programs[fastest]
    assert tuned.ran == [n for one in finals for n in [*one, *one[::-1], *one]]


def test_a_program_that_fails_in_one_final_is_in_no_other(tuned):
    programs = with_cold_weights(tuned, {10: 1.5e-3})
    best = tuned.decide(nearest_to(10), gone(tuned.programs[1]))
    assert (tuned.ran.count(1), set(tuned.ran)) == (1, set(range(16)))
    assert [record.measurement.program for record in tuned.top()][:2] == [programs[1], programs[10]]
    assert best.measurement.program == programs[10]


def test_programs_that_others_displaced_have_a_final_of_their_own(tuned):
    """The best program of this evaluator was lucky, and five others took all other places."""
    seconds = {5: 1.5e-3, 6: 1.51e-3, **dict.fromkeys(range(7, 16), 3e-3)}
    programs = with_cold_weights(tuned, seconds)
    best = tuned.decide(lambda number, _: ({5: 1.5e-3, 6: 1.3e-3}.get(number, 2e-3),) * 3)
    assert tuned.ran == [*range(6), *range(5, -1, -1), *range(6), 5, 6, 6, 5, 5, 6]
    assert best.measurement.program == tuned.top()[0].measurement.program == programs[6]


def test_programs_of_another_evaluator_that_all_fail_leave_their_places(tuned):
    programs = with_cold_weights(tuned, {10: 1.5e-3, 11: 1.6e-3})
    failed = gone(*tuned.programs[:10], *tuned.programs[12:])
    best = tuned.decide(lambda number, _: (1.5e-3 - number * 1e-5,) * 3, failed)
    assert best.measurement.program == programs[11]


@pytest.mark.parametrize(
    ("most", "until", "ran"), [(finals_module._FINALS, 0.0, range(5)), (2, float("inf"), range(10))]
)
def test_finals_end_with_their_time_or_number(most, until, ran, tuned, monkeypatch):
    monkeypatch.setattr(finals_module, "_FINALS", most)
    with_cold_weights(tuned, {15: 1.5e-3})
    tuned.decide(nearest_to(15), until=until)
    assert set(tuned.ran) == {*ran, 15}


def tune_in(path, tools, **options):
    """Tune with an evaluator that has finals; return the notes of the result."""
    evaluator = EvaluatorConfig(number=1, repeat=3, min_repeat_ms=1)
    options |= {"target": tools.llvm, "max_trials_global": 4, "evaluator": evaluator}
    result = tune_all(tools.matmul(32), database=path, **options)
    result.database.close()
    return result.notes


@pytest.mark.stress
@pytest.mark.parametrize("error", [TuneDBError, ValueError])
def test_a_run_holds_finals_and_notes_those_that_fail(error, tools, tmp_path, monkeypatch):
    held = []

    def decide(finals, mod, spread, until):
        assert spread is None
        assert finals.runner.evaluator_config.repeat == 3
        held.append(mod)
        raise error("the disk is full")

    monkeypatch.setattr(tuning_run.Finals, "decide", decide)
    notes = tune_in(tmp_path / "tune.db", tools)
    assert len(held) == 1
    assert notes == ("main: no final decides its best program: the disk is full",)
    for without in ({"finals": False}, {"module_equality": "anchor-block"}):
        tune_in(tmp_path / f"{next(iter(without))}.db", tools, **without)
        assert len(held) == 1


def test_own_runners_have_no_finals(monkeypatch):
    seen = []

    def begin(given, _stack):
        seen.append(given.has_finals())
        raise StopIteration

    monkeypatch.setattr(tuning_run.Run, "begin", begin)
    callbacks = [ms.measure_callback.AddToDatabase()]
    for given in ({}, {"runner": FakeRunner()}, {"measure_callbacks": callbacks}):
        with pytest.raises(StopIteration):
            tune_all(None, **given)
    assert seen == [True, False, False]


@pytest.mark.stress
def test_finals_take_a_share_of_the_time(tools, tmp_path, monkeypatch):
    """Here it has none."""
    held = []
    monkeypatch.setattr(tuning_run.Finals, "decide", lambda _, mod, spread: held.append(mod))
    monkeypatch.setattr(tuning_run, "_FINALS_SHARE", -1.0)
    notes = tune_in(tmp_path / "tune.db", tools)
    assert held == []
    assert notes == (
        "0 of 1 tasks had a final in its share of the time; the best program of the others is that "
        "of the fastest measurement",
    )

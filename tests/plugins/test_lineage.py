"""The lineage of candidates, which is kept until the measurement is stored."""

from __future__ import annotations

from types import SimpleNamespace

import orjson
import pytest
from tvm.s_tir import meta_schedule as ms

from tunedb.plugins.metaschedule.database import candidates
from tunedb.plugins.metaschedule.database.candidates import CandidateRegistry, Lineage
from tunedb.plugins.metaschedule.measure.measure_callback import record
from tunedb.plugins.metaschedule.measure.measured import ARTIFACT
from tunedb.records import Origin

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


@pytest.fixture
def batch(tools):
    """A tuning context, and candidates with results as a measure callback gets them."""
    mod = tools.matmul(16)
    workload = ms.database.Workload(mod)
    made = [
        tools.record(mod, workload, [1e-3 * (tile + 1)], tile=(16 // 2**tile, 2**tile))
        for tile in range(4)
    ]
    return SimpleNamespace(
        context=SimpleNamespace(mod=mod, target=tools.llvm),
        candidates=[
            SimpleNamespace(sch=SimpleNamespace(trace=one.trace, mod=mod), args_info=one.args_info)
            for one in made
        ],
        builds=[ms.builder.BuilderResult("/tmp/x/lib.tar", None) for _ in made],
        runs=[ms.runner.RunnerResult(one.run_secs, None) for one in made],
        records=made,
    )


def test_mutated_lineage_keeps_donor_of_parent_and_lists_operators():
    child = Lineage(Origin.WARM, A).child("tile_size").child("unroll")
    assert child == Lineage(Origin.MUTATED, A, ("tile_size", "unroll"))
    assert not child.is_crossed


@pytest.mark.parametrize(
    ("first", "second", "donor", "other"),
    [
        *((A, B, A, B), (A, None, A, None), (A, A, A, None)),
        *((None, B, B, None), (None, None, None, None)),
    ],
)
def test_crossed_lineage_names_donors_of_both_parents(first, second, donor, other):
    child = Lineage(Origin.MEASURED, first, ("unroll",)).child(
        "crossover", Lineage(Origin.WARM, second)
    )
    assert child == Lineage(Origin.CROSSED, donor, ("unroll", "crossover"), other)
    assert child.is_crossed and child.child("tile_size").is_crossed


def test_second_crossover_replaces_other_donor_only_by_a_known_one():
    crossed = Lineage(Origin.MEASURED, A).child("crossover", Lineage(Origin.MEASURED, B))
    assert crossed.child("crossover", Lineage(Origin.RANDOM)).other == B
    assert crossed.child("crossover", Lineage(Origin.WARM, C)).other == C


def test_extra_contains_only_operators_and_other_donor():
    assert [Lineage(Origin.RANDOM).extra(), Lineage(Origin.WARM, A).extra()] == [None, None]
    child = Lineage(Origin.MEASURED, A).child("crossover", Lineage(Origin.MEASURED, B))
    assert orjson.loads(child.extra()) == {"search": {"operators": ["crossover"], "other": B.hex()}}


@pytest.mark.parametrize("callbacks", ["ours", "AddToDatabase"])
def test_lineage_is_stored_with_the_measurement(callbacks, batch, tools, opened):
    database = opened(":memory:", target=tools.llvm)
    descents = [
        Lineage(Origin.RANDOM),
        Lineage(Origin.WARM, A),
        Lineage(Origin.MEASURED, A).child("crossover", Lineage(Origin.MEASURED, B)).child("unroll"),
    ]
    for candidate, descent in zip(batch.candidates, descents, strict=False):
        database._handle.candidates.announce(candidate.sch.trace, descent)
    if callbacks == "ours":
        record(database._handle, batch.context, batch.candidates, batch.builds, batch.runs)
    else:
        for one in batch.records:
            database.commit_tuning_record(one)
    stored = [one.measurement for one in database.store.records.iterate()]
    origins = [Origin.RANDOM, Origin.WARM, Origin.MUTATED, Origin.UNKNOWN]
    assert [one.origin for one in stored] == origins
    assert [one.donor for one in stored] == [None, A, A, None]
    assert [one.extra for one in stored] == [None, None, descents[2].extra(), None]


def test_served_candidate_takes_a_number_but_is_not_stored(batch, tools, tmp_path, opened):
    database = opened(":memory:", target=tools.llvm)
    batch.builds[1] = ms.builder.BuilderResult(str(tmp_path / ARTIFACT), None)
    record(database._handle, batch.context, batch.candidates, batch.builds, batch.runs)
    # TVM's AddToDatabase comes after tunedb's callback.
    database.commit_tuning_record(batch.records[1])
    stored = [one.measurement for one in database.store.records.iterate()]
    assert [one.run_secs for one in stored] == [(1e-3,), (3e-3,), (4e-3,)]
    assert [one.occurrence for one in stored] == [0, 2, 3]


def test_registry_drops_oldest_and_forgotten_candidates(batch, monkeypatch):
    monkeypatch.setattr(candidates, "_MOST", 2)
    registry = CandidateRegistry()
    first, second, third, _ = (one.sch.trace for one in batch.candidates)
    for trace in (first, second, third):
        registry.announce(trace, Lineage(Origin.RANDOM))
    assert registry.lineage_of(first) is None
    assert registry.lineage_of(third) == Lineage(Origin.RANDOM)
    for trace in (second, third, first):
        registry.forget(trace)
    assert registry.lineage_of(third) is None

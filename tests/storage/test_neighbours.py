"""Similar workloads and their programs, on SQLite and PostgreSQL."""

from math import inf

import pytest
from builders import FOREIGN, OWN, make_target
from small_data import conv2d, make_tiled, matmul, measure, trials
from sqlalchemy import update

from tunedb.errors import NotFoundError
from tunedb.programs.workload_info import signature_of
from tunedb.records import NO_TARGET, FailureKind, Signature, Status, Target
from tunedb.storage import schema
from tunedb.storage.workloads import Neighbour

HERE = make_target(0)
#: Of the same kind and architecture, and of the same kind alone.
LIKE = make_target(1)
OTHER = Target.from_config({"kind": "llvm", "mcpu": "znver4"})
GPU = Target.from_config({"kind": "cuda", "arch": "sm_80"})


def put(store, workload, target=HERE, **fields):
    fields.setdefault("count", 4)
    store.records.add(trials(workload, target=target, **fields), OWN)
    return store.workloads.id_of(workload.digest)


def near(store, asked=None, target=HERE, *limit, **options):
    """Return the neighbours of a workload, those of ``matmul(0)`` by default."""
    asked = signature_of(matmul(0)) if asked is None else asked
    return store.workloads.neighbours(asked, target, *limit, **{"formats": None, **options})


def ids_of(neighbours):
    return [one.workload_id for one in neighbours]


def test_neighbours_returns_workloads_of_the_family_nearest_first(store):
    far, one, middle = (put(store, matmul(n)) for n in (9, 1, 3))
    put(store, conv2d(0))
    found = near(store)
    assert ids_of(found) == [one, middle, far]
    assert [neighbour.level for neighbour in found] == ["exact"] * 3
    # 128 by (128 + 64 n) by 256: of the four extents of two inputs one differs.
    assert found[0].distance == pytest.approx(0.585, abs=1e-3)
    assert near(store, None, HERE, 1) == found[:1]
    assert ids_of(near(store, exclude=[one])) == [middle, far]
    # A workload is not its own neighbour.
    assert ids_of(near(store, middle)) == [one, far]


def test_workload_is_its_own_neighbour_through_another_target(store):
    own = put(store, matmul(0))
    put(store, matmul(0), LIKE)
    (found,) = near(store, own)
    assert found == Neighbour(own, (store.targets.id_of(LIKE.digest),), 0.0, "compatible")
    assert found.far == 0.5


def test_neighbour_names_only_its_targets_of_the_nearest_level(store):
    one = put(store, matmul(1))
    put(store, matmul(1), LIKE)
    alike = (LIKE, make_target(7))
    for target in (OTHER, *alike):
        two = put(store, matmul(2), target)
    three = put(store, matmul(3), OTHER)
    put(store, matmul(4), GPU)
    target_id = store.targets.id_of
    assert {found.workload_id: (found.level, found.target_ids) for found in near(store)} == {
        one: ("exact", (target_id(HERE.digest),)),
        two: ("compatible", tuple(sorted(target_id(target.digest) for target in alike))),
        three: ("kind", (target_id(OTHER.digest),)),
    }


def test_caller_can_declare_further_targets_compatible(store):
    one, two = (put(store, matmul(number), OTHER) for number in (1, 2))
    put(store, matmul(2), LIKE)
    other, like = (store.targets.id_of(target.digest) for target in (OTHER, LIKE))
    asked = near(store, compatible=[other])
    assert [(found.workload_id, found.level, found.target_ids) for found in asked] == [
        (one, "compatible", (other,)),
        (two, "compatible", tuple(sorted((other, like)))),
    ]


def test_neighbours_adds_distances_of_targets_and_shapes(store):
    other, one, far = put(store, matmul(0), OTHER), put(store, matmul(4)), put(store, matmul(40))
    assert ids_of(near(store)) == [one, other, far]


def test_only_workloads_with_served_records_are_neighbours(store):
    store.records.add(trials(matmul(1), count=4), FOREIGN)
    store.records.add([measure(make_tiled(matmul(2), 0), 0, FailureKind.TIMEOUT)], OWN)
    (taken_back,), _ = store.batches.add([measure(make_tiled(matmul(3), 0), 0, (1e-3,))], OWN)
    store.trust.retract([taken_back], "the clock was wrong")
    served = put(store, matmul(4))
    assert ids_of(near(store)) == [served]


def test_unknown_signatures_ids_and_kinds_of_targets_have_no_neighbours(store):
    put(store, matmul(1))
    for asked in (Signature(), Signature("f", None, "matmul"), Signature("f", (), "softmax")):
        assert near(store, asked) == []
    assert (
        near(store, None, HERE, 0) == near(store, None, GPU) == near(store, None, NO_TARGET) == []
    )
    with pytest.raises(NotFoundError):
        store.workloads.neighbours(99, HERE)
    # By default only modules are neighbours.
    assert store.workloads.neighbours(signature_of(matmul(0)), HERE) == []
    assert near(store, formats=["autotvm-task"])


def test_neighbours_computes_signatures_that_are_not_stored(store):
    one = put(store, matmul(1))
    empty = dict.fromkeys(("function", "arguments", "family", "flops"))
    with store._db.transaction() as connection:
        connection.execute(update(schema.workload).values(**empty))
    assert ids_of(near(store)) == [one]


def test_donors_returns_best_programs_without_duplicates(store):
    program = [make_tiled(matmul(1), number) for number in range(4)]
    outcomes = ((0, (3e-3,)), (1, (1e-3,)), (0, (2e-3,)), (2, FailureKind.TIMEOUT), (3, (4e-3,)))
    store.records.add(
        [measure(program[one], at, outcome) for at, (one, outcome) in enumerate(outcomes)], OWN
    )
    (neighbour,) = near(store)
    found = store.answers.donors(neighbour, 3)
    assert [(one.digest, one.trace, one.seconds) for one in found] == [
        (program[i].digest, program[i].trace, seconds)
        for i, seconds in ((1, 1e-3), (0, 2e-3), (3, 4e-3))
    ]
    assert store.answers.donors(neighbour, 1) == found[:1]
    assert store.answers.donors(Neighbour(99, (1,), 0.0, "exact"), 3) == []


def test_donors_of_several_targets_are_ranked_together(store):
    workload = matmul(1)
    fast, slow = make_tiled(workload, 0, LIKE), make_tiled(workload, 1, make_target(7))
    store.records.add([measure(slow, 0, (2e-3,)), measure(fast, 1, (1e-3,))], OWN)
    (neighbour,) = near(store)
    assert [one.digest for one in store.answers.donors(neighbour, 5)] == [fast.digest, slow.digest]


def test_courses_returns_the_time_of_each_trusted_trial_in_order(store):
    workload = matmul(1)
    store.records.add(
        [
            measure(make_tiled(workload, 0), 3, (3e-3,)),
            measure(make_tiled(workload, 1), 1, (1e-3,)),
            measure(make_tiled(workload, 2), 2, FailureKind.TIMEOUT),
            measure(make_tiled(workload, 6), 5, (1e-9,), status=Status.CUT_SHORT),
        ],
        OWN,
    )
    store.records.add([measure(make_tiled(workload, 3), 0, (1e-9,))], FOREIGN)
    store.records.add([measure(make_tiled(workload, 4, GPU), 0, (1e-9,))], OWN)
    (taken_back,), _ = store.batches.add([measure(make_tiled(workload, 5), 4, (1e-9,))], OWN)
    store.trust.retract([taken_back], "the clock was wrong")
    assert store.answers.courses(near(store)) == [[1e-3, inf, 3e-3, inf, inf]]
    assert store.answers.courses([]) == []


def test_neighbours_runs_two_statements(store, monkeypatch):
    for number in range(1, 6):
        put(store, matmul(number))
    asked = []
    select = type(store._db).select
    monkeypatch.setattr(
        type(store._db), "select", lambda self, one: asked.append(one) or select(self, one)
    )
    assert len(near(store)) == 5
    assert len(asked) == 2

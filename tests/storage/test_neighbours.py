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
ANY = {"formats": None}


def put(store, workload, target=HERE, **fields):
    fields.setdefault("count", 4)
    store.records.add(trials(workload, target=target, **fields), OWN)
    return store.workloads.id_of(workload.digest)


def ids_of(neighbours):
    return [one.workload_id for one in neighbours]


def test_neighbours_returns_workloads_of_the_family_nearest_first(store):
    far, near, middle = (put(store, matmul(n)) for n in (9, 1, 3))
    put(store, conv2d(0))
    found = store.workloads.neighbours(signature_of(matmul(0)), HERE, **ANY)
    assert ids_of(found) == [near, middle, far]
    assert [one.level for one in found] == ["exact"] * 3
    # 128 by (128 + 64 n) by 256: of the four extents of two inputs one differs.
    assert found[0].distance == pytest.approx(0.585, abs=1e-3)
    assert ids_of(store.workloads.neighbours(signature_of(matmul(0)), HERE, 1, **ANY)) == [near]


def test_workload_is_not_its_own_neighbour(store):
    own, other = put(store, matmul(0)), put(store, matmul(1))
    assert ids_of(store.workloads.neighbours(own, HERE, **ANY)) == [other]
    assert ids_of(store.workloads.neighbours(signature_of(matmul(0)), HERE, **ANY)) == [own, other]
    without = store.workloads.neighbours(signature_of(matmul(0)), HERE, exclude=[own], **ANY)
    assert ids_of(without) == [other]


def test_workload_is_its_own_neighbour_through_another_target(store):
    own = put(store, matmul(0))
    put(store, matmul(0), LIKE)
    (found,) = store.workloads.neighbours(own, HERE, **ANY)
    like = store.targets.id_of(LIKE.digest)
    assert found == Neighbour(own, (like,), 0.0, "compatible")
    assert found.far == 0.5


def test_neighbour_names_only_its_targets_of_the_nearest_level(store):
    one = put(store, matmul(1))
    put(store, matmul(1), LIKE)
    alike = (LIKE, make_target(7))
    for target in (OTHER, *alike):
        two = put(store, matmul(2), target)
    three = put(store, matmul(3), OTHER)
    put(store, matmul(4), GPU)
    asked = store.workloads.neighbours(signature_of(matmul(0)), HERE, **ANY)
    found = {near.workload_id: (near.level, near.target_ids) for near in asked}
    target_id = store.targets.id_of
    assert found == {
        one: ("exact", (target_id(HERE.digest),)),
        two: ("compatible", tuple(sorted(target_id(target.digest) for target in alike))),
        three: ("kind", (target_id(OTHER.digest),)),
    }


def test_caller_can_declare_further_targets_compatible(store):
    here = [put(store, matmul(number), OTHER) for number in (1, 2)]
    put(store, matmul(2), LIKE)
    other = store.targets.id_of(OTHER.digest)
    asked = store.workloads.neighbours(signature_of(matmul(0)), HERE, compatible=[other], **ANY)
    like = store.targets.id_of(LIKE.digest)
    assert [(near.workload_id, near.level, near.target_ids) for near in asked] == [
        (here[0], "compatible", (other,)),
        (here[1], "compatible", tuple(sorted((other, like)))),
    ]


def test_neighbours_adds_distances_of_targets_and_shapes(store):
    other, near, far = put(store, matmul(0), OTHER), put(store, matmul(4)), put(store, matmul(40))
    found = store.workloads.neighbours(signature_of(matmul(0)), HERE, **ANY)
    assert ids_of(found) == [near, other, far]


def test_only_workloads_with_served_records_are_neighbours(store):
    store.records.add(trials(matmul(1), count=4), FOREIGN)
    store.records.add([measure(make_tiled(matmul(2), 0), 0, FailureKind.TIMEOUT)], OWN)
    (taken_back,), _ = store.batches.add([measure(make_tiled(matmul(3), 0), 0, (1e-3,))], OWN)
    store.trust.retract([taken_back], "the clock was wrong")
    served = put(store, matmul(4))
    assert ids_of(store.workloads.neighbours(signature_of(matmul(0)), HERE, **ANY)) == [served]


def test_by_default_only_modules_are_neighbours(store):
    put(store, matmul(1))
    assert store.workloads.neighbours(signature_of(matmul(0)), HERE) == []
    assert store.workloads.neighbours(signature_of(matmul(0)), HERE, formats=["autotvm-task"])


@pytest.mark.parametrize(
    "asked", [Signature(), Signature("f", None, "matmul"), Signature("f", (), "softmax")]
)
def test_signature_of_unknown_family_or_shapes_has_no_neighbours(store, asked):
    put(store, matmul(1))
    assert store.workloads.neighbours(asked, HERE, **ANY) == []


def test_limit_0_other_kinds_of_targets_and_unknown_ids_have_no_neighbours(store):
    put(store, matmul(1))
    asked = signature_of(matmul(0))
    assert store.workloads.neighbours(asked, HERE, 0, **ANY) == []
    assert store.workloads.neighbours(asked, GPU, **ANY) == []
    assert store.workloads.neighbours(asked, NO_TARGET, **ANY) == []
    with pytest.raises(NotFoundError):
        store.workloads.neighbours(99, HERE)


def test_neighbours_computes_signatures_that_are_not_stored(store):
    near = put(store, matmul(1))
    empty = dict.fromkeys(("function", "arguments", "family", "flops"))
    with store._db.transaction() as connection:
        connection.execute(update(schema.workload).values(**empty))
    assert ids_of(store.workloads.neighbours(signature_of(matmul(0)), HERE, **ANY)) == [near]


def test_donors_returns_best_programs_without_duplicates(store):
    workload = matmul(1)
    program = [make_tiled(workload, number) for number in range(4)]
    store.records.add(
        [
            measure(program[0], 0, (3e-3,)),
            measure(program[1], 1, (1e-3,)),
            measure(program[0], 2, (2e-3,)),
            measure(program[2], 3, FailureKind.TIMEOUT),
            measure(program[3], 4, (4e-3,)),
        ],
        OWN,
    )
    (near,) = store.workloads.neighbours(signature_of(matmul(0)), HERE, **ANY)
    found = store.answers.donors(near, 3)
    assert [one.digest for one in found] == [program[i].digest for i in (1, 0, 3)]
    assert [one.seconds for one in found] == [1e-3, 2e-3, 4e-3]
    assert [one.trace for one in found] == [program[i].trace for i in (1, 0, 3)]
    assert store.answers.donors(near, 1) == found[:1]
    assert store.answers.donors(Neighbour(99, (1,), 0.0, "exact"), 3) == []


def test_donors_of_several_targets_are_ranked_together(store):
    workload = matmul(1)
    fast, slow = make_tiled(workload, 0, LIKE), make_tiled(workload, 1, make_target(7))
    store.records.add([measure(slow, 0, (2e-3,)), measure(fast, 1, (1e-3,))], OWN)
    (near,) = store.workloads.neighbours(signature_of(matmul(0)), HERE, **ANY)
    assert [one.digest for one in store.answers.donors(near, 5)] == [fast.digest, slow.digest]


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
    near = store.workloads.neighbours(signature_of(matmul(0)), HERE, **ANY)
    assert store.answers.courses(near) == [[1e-3, inf, 3e-3, inf, inf]]
    assert store.answers.courses([]) == []


def test_neighbours_runs_two_statements(store, monkeypatch):
    for number in range(1, 6):
        put(store, matmul(number))
    asked = []
    select = type(store._db).select
    monkeypatch.setattr(
        type(store._db), "select", lambda self, one: asked.append(one) or select(self, one)
    )
    assert len(store.workloads.neighbours(signature_of(matmul(0)), HERE, **ANY)) == 5
    assert len(asked) == 2

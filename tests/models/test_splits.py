"""Splits: no model trains on held-out programs, and all databases hold out the same ones."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from judged_data import WORKLOADS, conv_of, digest_of, judged, make_workload, matmul_of

from tunedb.errors import UsageError
from tunedb.models import splits
from tunedb.models.dataset import ORIGINS, ExampleWorkload
from tunedb.models.splits import SplitPlan, shape_class
from tunedb.records import Origin

EXAMPLES = judged()


def make(regime, examples=EXAMPLES, **plan):
    return list(splits.REGIMES[regime](examples, SplitPlan(**plan)))


def held_out(examples, split):
    return set(examples.workload[split.test].tolist())


@pytest.mark.parametrize("regime", [*splits.REGIMES])
def test_train_and_test_share_programs_or_workloads_only_if_regime_allows_it(regime):
    examples = judged(machines=2)
    made = make(regime, examples)
    assert made
    for split in made:
        assert split.regime == regime
        assert len(split.train) and len(split.test)
        assert not set(split.train) & set(split.test)
        assert (np.diff(split.train) > 0).all() and (np.diff(split.test) > 0).all()
        # Only new-hardware ranks programs that were trained on, measured on other hardware.
        for of, sharing in (
            (examples.program_ids, ["new-hardware"]),
            (examples.workload, ["same-workload", "new-hardware"]),
        ):
            assert np.isin(of[split.train], of[split.test]).any() == (regime in sharing)


def test_splits_do_not_depend_on_local_ids():
    moved = replace(
        EXAMPLES,
        program_ids=EXAMPLES.program_ids[::-1] * 7,
        workloads=tuple(replace(one, id=900 - one.id) for one in EXAMPLES.workloads),
    )
    for regime in ("same-workload", "new-workload", "new-family"):
        one, other = make(regime), make(regime, moved)
        assert splits.digest(EXAMPLES, one) == splits.digest(moved, other)
        assert splits.digest(EXAMPLES, one) != splits.digest(EXAMPLES, one[1:])


def test_seed_1_always_holds_out_the_same_workloads():
    """Other workloads would change all published figures."""
    (split,) = make("new-workload", seeds=1, held_out=4)
    random = np.random.default_rng(1)
    expected = set()
    for family in ("conv2d", "matmul"):
        members = [one for one in EXAMPLES.workloads if one.family == family]
        expected |= {members[i].name for i in random.permutation(5)[:2]}
    assert {EXAMPLES.workloads[i].name for i in held_out(EXAMPLES, split)} == expected
    assert expected == {"conv2d_5", "conv2d_6", "matmul_0", "matmul_3"}
    (split,) = make("same-workload", seeds=1)
    drawn = np.random.default_rng(1).permutation(len(EXAMPLES)) < len(EXAMPLES) / 5
    assert split.test.tolist() == np.flatnonzero(drawn).tolist()
    assert len(split.test) == len(EXAMPLES) / 5


def test_workloads_of_similar_shapes_stay_on_one_side_of_a_split():
    alike = [matmul_of(i, size) for i, size in ((20, 1000), (21, 1024), (22, 1100))]
    assert len({shape_class(one) for one in alike}) == 1
    assert shape_class(matmul_of(20, 700)) != shape_class(alike[0])
    assert shape_class(replace(alike[0], family="bmm")) != shape_class(alike[0])
    assert shape_class(make_workload(9, "pool", ((0, 8),))) == ("pool", ((0, 3),))
    assert len({shape_class(make_workload(i, None, ())) for i in range(3)}) == 3  # unknown
    examples = judged((*WORKLOADS, *alike))
    number = {one.id: i for i, one in enumerate(examples.workloads)}
    together = {number[one.id] for one in alike}
    met = set()
    for split in make("new-workload", examples, seeds=40, held_out=6):
        held = held_out(examples, split)
        assert held & together in (set(), together)
        met.add(bool(held & together))
    assert met == {True, False}


def test_workloads_that_are_never_held_out_are_trained_on():
    never = splits.development(EXAMPLES, 4)
    assert never == splits.development(EXAMPLES, 4)
    assert len(never) == 4
    seen = set()
    for split in make("new-workload", seeds=12, held_out=2, never=never):
        seen |= held_out(EXAMPLES, split)
        assert never <= set(EXAMPLES.workload[split.train].tolist())
    assert seen == set(range(10)) - never


def test_leave_one_out_holds_out_each_workload_once_with_its_shape_class():
    examples = judged((*WORKLOADS, matmul_of(20, 1000), matmul_of(21, 1024)))
    held = [held_out(examples, s) for s in make("new-workload", examples, leave_one_out=True)]
    assert len(held) == 11
    assert sorted(i for one in held for i in one) == list(range(12))
    assert sorted(map(len, held))[-2:] == [1, 2]
    # One of the class has too few programs to be held out itself.
    numbers = {one.id: i for i, one in enumerate(examples.workloads)}
    large, small = numbers[20], numbers[21]
    examples = examples.take((examples.workload != small) | (examples.trials < 5))
    for split in make("new-workload", examples, leave_one_out=True):
        learnt = set(examples.workload[split.train].tolist())
        if held_out(examples, split) == {large}:
            assert small not in learnt
            assert small not in held_out(examples, split)
        else:
            assert {small, large} <= learnt


def test_new_family_holds_out_each_family_and_omits_unknown_ones():
    examples = judged((*WORKLOADS, make_workload(30, None)))
    unknown = next(i for i, one in enumerate(examples.workloads) if one.family is None)
    made = make("new-family", examples)
    assert [split.name for split in made] == ["conv2d", "matmul"]
    for split in made:
        assert {examples.workloads[i].family for i in held_out(examples, split)} == {split.name}
        assert unknown not in examples.workload[np.concatenate((split.train, split.test))]


def test_new_hardware_holds_out_each_machine_of_each_target():
    examples = judged(machines=2)
    made = make("new-hardware", examples)
    assert [split.name for split in made] == ["target 1, machine 0", "target 1, machine 1"]
    for number, split in enumerate(made):
        machines = {examples.groups[i].machine for i in examples.group[split.test]}
        assert machines == {str(number)}
        assert len(split.train) == len(split.test) == len(examples) / 2
    groups = tuple(
        replace(group, target=b"u" * 16, target_id=2) if group.machine == "1" else group
        for group in examples.groups
    )
    names = [split.name for split in make("new-hardware", replace(examples, groups=groups))]
    assert names == ["target 1, machine 0", "target 2, machine 1"]


@pytest.mark.parametrize(
    ("regime", "workloads", "programs", "plan", "why"),
    [
        ("same-workload", WORKLOADS, 9, {}, "no workload has 10 measured programs"),
        ("new-workload", WORKLOADS[:1], 20, {}, "two workloads .* are needed; there is one"),
        ("new-workload", WORKLOADS, 9, {}, "two workloads .* are needed; there is none"),
        ("new-workload", (matmul_of(1, 8), matmul_of(2, 8)), 20, {}, "there is one"),
        ("new-workload", WORKLOADS, 20, {"held_out": 10}, "10 of 10 workloads cannot be held out"),
        ("new-workload", WORKLOADS, 20, {"never": frozenset(range(10))}, "0 may be"),
        ("new-family", WORKLOADS[:5], 20, {}, "two families are needed; there is matmul"),
        ("new-family", (make_workload(1, None),), 20, {}, "two families are needed; there is none"),
        ("new-hardware", WORKLOADS, 20, {}, "two targets, .* are needed; there is target 1"),
        ("new-hardware", WORKLOADS, 9, {}, "there is none"),
    ],
)
def test_impossible_splits_raise_an_error_with_the_reason(regime, workloads, programs, plan, why):
    with pytest.raises(UsageError, match=why):
        make(regime, judged(workloads, programs), **plan)


@given(
    st.lists(st.tuples(st.sampled_from([None, "a", "b", "c"]), st.integers(0, 5)), min_size=1),
    st.integers(1, 40),
    st.integers(0, 9),
)
@example([("a", 0), ("a", 0)], 1, 0)
def test_draw_takes_whole_shape_classes_in_any_order_of_workloads(kinds, count, seed):
    workloads = [
        ExampleWorkload(i, digest_of(i), "w", family, ((2**shape,),), None)
        for i, (family, shape) in enumerate(kinds)
    ]
    drawn = splits.draw(workloads, count, seed)
    assert drawn == sorted(set(drawn))
    assert drawn
    classes = splits.shape_classes(workloads)
    assert sorted(i for one in classes for i in one) == list(range(len(workloads)))
    # At most `count` workloads, unless the first class alone has more.
    assert all(set(one) <= set(drawn) or not set(one) & set(drawn) for one in classes)
    taken = [one for one in classes if set(one) <= set(drawn)]
    assert len(drawn) <= count or len(taken) == 1
    last = len(workloads) - 1
    assert drawn == sorted(last - i for i in splits.draw(workloads[::-1], count, seed))


def test_random_trials_are_those_of_origin_random_or_the_first_64():
    examples = judged(programs=100)
    chosen = splits.random_trials(examples)
    assert chosen.tolist() == (examples.trials < 64).tolist()
    # The origins of one group are known; later trials are random too.
    known = examples.group == 3
    random = known & (examples.trials % 3 == 1)
    origins = examples.origins.copy()
    origins[known] = ORIGINS.index(Origin.MUTATED)
    origins[random] = ORIGINS.index(Origin.RANDOM)
    chosen = splits.random_trials(replace(examples, origins=origins))
    assert chosen[known].tolist() == random[known].tolist()
    assert chosen[~known].tolist() == (examples.trials < 64)[~known].tolist()
    # In another group only some are known, so its first trials are taken.
    origins[examples.group == 5] = np.where(examples.trials[examples.group == 5] < 4, 1, 0)
    chosen = splits.random_trials(replace(examples, origins=origins))
    assert chosen[examples.group == 5].sum() == 64
    assert ORIGINS[:2] == (Origin.UNKNOWN, Origin.RANDOM)
    assert splits.all_trials(examples).all()


def test_pools_yields_only_groups_that_can_be_ranked():
    examples = judged((*WORKLOADS, conv_of(11)), machines=2)
    chosen = splits.all_trials(examples)
    assert len(list(splits.pools(examples, chosen, 10))) == 22
    throughput = examples.throughput.copy()
    throughput[examples.group == 4] = 0.0
    failed = replace(examples, throughput=throughput)
    found = list(splits.pools(failed, chosen & (examples.group != 7), 10))
    rankable = [i for i in range(22) if i not in (4, 7)]
    assert [int(examples.group[one[0]]) for one in found] == rankable
    for one in found:
        assert len(set(examples.group[one].tolist())) == 1
    assert not list(splits.pools(examples, chosen, 21))
    assert splits.rankable_workloads(failed, 10) == list(range(11))

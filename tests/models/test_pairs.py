import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunedb.models.pairs import Pairs

groups_of = st.lists(st.lists(st.integers(0, 3), max_size=9), max_size=5)


def flat(groups):
    """Return labels and groups of programs, the groups interleaved."""
    items = [(label, number) for number, labels in enumerate(groups) for label in labels]
    items.sort(key=lambda item: hash((item, 7)) % 11)
    labels = np.array([label for label, _ in items], float)
    return labels, np.array([number for _, number in items], np.int32)


def listed(pairs):
    """Return (better, worse) pairs of programs."""
    found = []
    for ahead, signs in zip(pairs.ahead, pairs.signs, strict=True):
        for place in np.flatnonzero(signs):
            one, other = pairs.order[place], pairs.order[ahead[place]]
            found.append((int(one), int(other)) if signs[place] > 0 else (int(other), int(one)))
    return found


@given(groups_of, st.integers(0, 9))
def test_small_groups_have_all_pairs(groups, seed):
    labels, group = flat(groups)
    pairs = Pairs.from_labels(labels, group, 8, seed)
    expected = {
        (i, j)
        for i, j in itertools.permutations(range(len(labels)), 2)
        if group[i] == group[j] and labels[i] > labels[j]
    }
    assert sorted(listed(pairs)) == sorted(expected)
    assert len(pairs) == len(expected)
    assert set(pairs.compared.tolist()) <= {program for pair in expected for program in pair}
    assert bool(len(pairs.compared)) == bool(expected)
    # The partner ahead of a place has that place behind it.
    for ahead, behind in zip(pairs.ahead, pairs.behind, strict=True):
        assert behind[ahead].tolist() == list(range(len(labels)))


@pytest.mark.parametrize(("partners", "each"), [(1, 2), (2, 2), (6, 6), (7, 8), (48, 48), (60, 48)])
def test_large_groups_pair_each_program_with_the_same_number_of_partners(partners, each):
    group = np.repeat(np.arange(2, dtype=np.int32), 49)
    labels = np.random.default_rng(0).permutation(98).astype(float)
    found = listed(Pairs.from_labels(labels, group, partners, 3))
    assert len(set(map(frozenset, found))) == len(found) == 98 * each // 2
    assert set(np.bincount(np.ravel(found))) == {each}
    assert all(group[i] == group[j] and labels[i] > labels[j] for i, j in found)


def test_seed_decides_the_pairs():
    labels, group = np.arange(30.0), np.zeros(30, np.int32)
    one, same, other = (listed(Pairs.from_labels(labels, group, 4, seed)) for seed in (1, 1, 2))
    assert one == same != other


def test_two_partners_suffice_to_find_a_different_label():
    """Training uses it to find out whether there is anything to learn."""
    for seed in range(20):
        labels = np.zeros(50)
        labels[seed] = 1
        assert len(Pairs.from_labels(labels, np.zeros(50, np.int32), 2, seed)) == 2
    assert len(Pairs.from_labels(np.ones(50), np.zeros(50, np.int32), 2, 0)) == 0
    assert len(Pairs.from_labels(np.arange(5.0), np.arange(5, dtype=np.int32), 2, 0)) == 0


def test_accuracy_is_the_mean_over_groups_and_counts_ties_half():
    labels = np.array([3.0, 2, 1, 5, 5, 4, 9])
    group = np.array([0, 0, 0, 1, 1, 1, 2], np.int32)
    pairs = Pairs.from_labels(labels, group, 8, 0)
    # Group 0: 3 > 2 right, 3 > 1 equal, 2 > 1 wrong: 1.5 of 3. Group 1: both of 5 > 4 right.
    scores = np.array([2.0, 1, 2, 1, 7, 0, 3])
    assert pairs.accuracy(scores) == (0.5 + 1) / 2
    assert pairs.accuracy(np.zeros(7)) == 0.5
    assert pairs.accuracy(labels) == 1
    assert pairs.accuracy(-labels) == 0

"""Labels by Algorithm 1 of the paper, its defects, and labels without these defects."""

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from observing import observe
from public_logs import needs_gpu_logs

from tunedb.advisor.labels import (
    algorithm_1,
    baseline,
    by_slice,
    paper,
    run_paper,
    slice_best,
    verdicts,
)
from tunedb.advisor.observations import Label

UP, STAY, DOWN = Label.INCREASE, Label.NO_CHANGE, Label.DECREASE


@pytest.mark.parametrize(
    ("new_threads", "new_seconds", "labels"),
    [
        # speedup < 1: the variant is slower than the original's 1 s with 256 threads.
        (128, 2.0, (UP, STAY)),
        (512, 2.0, (DOWN, STAY)),
        (256, 2.0, None),
        # speedup > 1
        (128, 0.5, (STAY, DOWN)),
        (512, 0.5, (STAY, UP)),
        (256, 0.5, None),
        # speedup = 1
        (128, 1.0, None),
        (512, 1.0, None),
        (256, 1.0, None),
    ],
)
def test_algorithm_1_follows_its_truth_table(new_threads, new_seconds, labels):
    original = observe(256, 1.0, block=(256, 1, 1))
    new = observe(new_threads, new_seconds, block=(new_threads // 8, 8, 1))
    assert algorithm_1(original, new) == labels
    expected = [None, None] if labels is None else [labels[1], labels[0]]
    assert paper([original, new]) == expected


def test_last_variant_overwrites_the_label_of_the_baseline():
    base, small, large = observe(256, 1.0), observe(128, 0.5), observe(512, 2.0)
    for order in itertools.permutations([base, small, large]):
        # Ascending: 128 says decrease, 512 overwrites it, whatever the order of the rows.
        run = run_paper(order)
        assert run.labels[order.index(base)] == STAY
        assert (run.overwrites, run.unlabelled) == (1, 0)
    given_order = run_paper([base, large, small], order="given")
    assert given_order.labels == [DOWN, DOWN, STAY]
    assert run_paper([base, small, large], order="given").labels == [STAY, STAY, DOWN]
    # An equal label does not count as overwrite.
    assert run_paper([observe(256, 1.0), observe(512, 2.0), observe(1024, 3.0)]).overwrites == 0


def test_paper_labels_compare_only_within_a_slice():
    rows = [observe(256, 1.0), observe(128, 0.1, slice=b"b"), observe(512, 0.5)]
    assert paper(rows) == [UP, None, STAY]
    assert run_paper(rows).bases == (0, 1)


def test_baseline_has_the_number_of_threads_nearest_to_the_given_one():
    rows = [observe(320, 1), observe(192, 1, block=(96, 2, 1)), observe(192, 1, block=(48, 4, 1))]
    assert baseline(rows, range(3), 256) == 2
    assert baseline(rows, [0, 1], 256) == 1
    assert baseline(rows, range(3), 1024) == 0
    same = [observe(256, 1, record=2), observe(256, 2, record=1)]
    assert baseline(same, range(2), 256) == 1


def test_paper_rejects_unknown_order():
    with pytest.raises(ValueError, match="order is 'random'; expected ascending or given"):
        paper([], order="random")


def test_slice_best_compares_observations_with_best_of_slice():
    rows = [observe(64, 2.0), observe(128, 1.0), observe(256, 1.049), observe(512, 1.06)]
    assert slice_best(rows) == [UP, STAY, STAY, DOWN]
    assert slice_best(rows, tolerance=0) == [UP, STAY, DOWN, DOWN]
    assert slice_best(rows, tolerance=0.06) == [UP, STAY, STAY, STAY]
    found = verdicts(rows)
    assert [verdict.best for verdict in found] == [1] * 4
    assert found[0].gain == 2.0
    assert not any(verdict.shape for verdict in found)


def test_better_shape_of_equal_size_is_labelled_no_change():
    rows = [observe(block=(8, 32, 1), seconds=2.0), observe(block=(32, 8, 1), seconds=1.0)]
    assert slice_best(rows) == [STAY, STAY]
    assert [verdict.shape for verdict in verdicts(rows)] == [True, False]
    # Within the tolerance the shape is not worse.
    assert not verdicts(rows, tolerance=1.0)[0].shape


def test_tolerance_of_none_is_twice_the_median_spread():
    rows = [
        observe(128, 1.0, spread=0.10),
        observe(256, 1.19, spread=0.20),
        observe(512, 1.21, spread=0.01),
        observe(1024, 1.30),
    ]
    # Twice the median 0.10 of those that are known.
    assert slice_best(rows, tolerance=None) == [STAY, STAY, DOWN, DOWN]
    assert slice_best([observe(128, 1.0), observe(256, 1.06)], tolerance=None) == [STAY, DOWN]


@pytest.mark.parametrize("tolerance", [-0.1, float("nan"), float("inf")])
def test_slice_best_rejects_invalid_tolerances(tolerance):
    with pytest.raises(ValueError, match="expected a number from 0 on"):
        slice_best([], tolerance=tolerance)


ROWS = st.lists(
    st.builds(
        observe,
        threads=st.sampled_from([32, 64, 128, 256, 512]),
        seconds=st.floats(0.1, 10),
        slice=st.sampled_from([b"a", b"b", b"c"]),
    ),
    max_size=12,
)


@given(ROWS, st.floats(0, 1))
def test_verdicts_point_at_the_best_of_the_slice(rows, tolerance):
    """The test compares them with a plain version of the definition."""
    for row, verdict in zip(rows, verdicts(rows, tolerance=tolerance), strict=True):
        others = [other for other in rows if other.slice == row.slice]
        fastest = min(other.seconds for other in others)
        assert rows[verdict.best].seconds == fastest
        assert verdict.gain >= 1
        if len({other.threads for other in others}) == 1:
            assert verdict.label is None
        elif row.seconds <= (1 + tolerance) * fastest:
            assert verdict.label is STAY
        else:
            best = rows[verdict.best].threads
            assert verdict.label == (
                UP if best > row.threads else DOWN if best < row.threads else STAY
            )
            assert verdict.shape == (best == row.threads)


@given(ROWS, st.randoms(use_true_random=False))
def test_paper_labels_do_not_depend_on_the_order_of_rows(rows, random):
    numbered = [
        observe(row.threads, row.seconds, slice=row.slice, record=i) for i, row in enumerate(rows)
    ]
    shuffled = random.sample(numbered, len(numbered))
    expected = {row.record: label for row, label in zip(numbered, paper(numbered), strict=True)}
    assert {r.record: label for r, label in zip(shuffled, paper(shuffled), strict=True)} == expected
    assert sorted(i for positions in by_slice(rows) for i in positions) == list(range(len(rows)))


@needs_gpu_logs
@pytest.mark.stress
def test_defects_of_algorithm_1_have_measured_counts_on_real_runs(profiled_runs):
    """What ``specs/block-size.md`` 1.5 measured: 9,305 runs in 362 slices."""
    as_stored = run_paper(profiled_runs, order="given")
    assert len(profiled_runs) == 9305
    assert len(as_stored.bases) == 362
    assert as_stored.overwrites == 2248
    assert as_stored.unlabelled == 676
    found = verdicts(profiled_runs)
    variants = [
        i for i, label in enumerate(as_stored.labels) if label is STAY and i not in as_stored.bases
    ]
    assert len(variants) == 3823
    assert sum(found[i].gain > 1.05 for i in variants) == 3128
    assert sum(verdict.shape for verdict in found) == 884
    # The direction of the best variant, where it saves 5 % of the baseline's time.
    wrong = 0
    for i in as_stored.bases:
        base, best = profiled_runs[i], profiled_runs[found[i].best]
        direction = STAY
        if best.seconds < 0.95 * base.seconds:
            further = best.threads - base.threads
            direction = UP if further > 0 else DOWN if further < 0 else STAY
        wrong += as_stored.labels[i] is not direction
    assert wrong == 189
    # The documented order is another one, and gives other labels.
    ascending = run_paper(profiled_runs)
    assert (ascending.overwrites, ascending.unlabelled) == (1513, 676)
    assert Counter(ascending.labels) == {STAY: 3986, DOWN: 2862, UP: 1781, None: 676}
    assert Counter(slice_best(profiled_runs)) == {STAY: 3202, DOWN: 4799, UP: 1304}

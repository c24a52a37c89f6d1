from dataclasses import replace

import numpy as np
import pytest
from effort import spread
from judged_data import judged, make_workload, matmul_of
from learnable import examples_of, learnable

from tunedb.errors import NotFoundError
from tunedb.models import baselines
from tunedb.models.baselines import NearestNeighbour, RandomOrder, TVMModel
from tunedb.models.dataset import Group
from tunedb.models.metrics import measure


def of_workloads(workloads, rows, group, throughput, sizes=None):
    """Return examples of given workloads with one row each."""
    found = examples_of(rows, sizes or [1] * len(group), group, throughput)
    groups = tuple(Group(i, 1, b"t" * 16, "") for i in range(len(workloads)))
    return replace(found, workloads=tuple(workloads), groups=groups)


def nearest(train, test, neighbours=1):
    return NearestNeighbour(neighbours).scores(train, test, None).tolist()


def test_nearest_neighbour_scores_by_nearest_program_of_nearest_workload():
    workloads = [matmul_of(0, 64), matmul_of(1, 128), matmul_of(2, 4096)]
    rows = [[0, 0], [4, 0], [0, 7], [4, 7], [1, 0], [3, 9]]
    examples = of_workloads(workloads, rows, [1, 1, 2, 2, 0, 0], [1.0, 0.2, 0.1, 0.9, 0.5, 1.0])
    train, test = examples.take([0, 1, 2, 3]), examples.take([4, 5])
    # 64 is nearer to 128 than to 4096. The second column is the same in all programs there.
    assert nearest(train, test) == [1.0, 0.2]
    # With two neighbours of two programs all scores are the same.
    assert nearest(train, test, 2) == pytest.approx([0.6, 0.6])


def test_nearest_neighbour_scales_columns_by_their_spread():
    workloads = [matmul_of(0, 64), matmul_of(1, 128)]
    # The first column is a thousand times as wide; 90 there is less than 1.9 in the second.
    rows = [[0, 0], [0, 2], [1000, 0], [1000, 2], [90, 1.9], [910, 0.2]]
    examples = of_workloads(workloads, rows, [1, 1, 1, 1, 0, 0], [0.1, 0.2, 0.3, 1.0, 1.0, 0.5])
    assert nearest(examples.take([0, 1, 2, 3]), examples.take([4, 5])) == [0.2, 0.3]


def test_nearest_neighbour_aggregates_rows_of_each_program():
    workloads = [matmul_of(0, 64), matmul_of(1, 128)]
    rows = [[1], [1], [8], [9], [3], [4], [2]]
    examples = of_workloads(workloads, rows, [1, 1, 0, 0], [1.0, 0.2, 0.5, 1.0], sizes=[2, 1, 2, 2])
    assert set(nearest(examples.take([0, 1]), examples.take([2, 3]))) <= {1.0, 0.2}


def test_nearest_neighbour_prefers_same_workload_and_same_machine():
    unknown = make_workload(0, None, ())
    groups = (Group(0, 1, b"t" * 16, "0"), Group(0, 1, b"t" * 16, "1"))
    examples = of_workloads([unknown], [[0], [0], [0]], [0, 1, 1], [0.3, 0.9, 1.0])
    examples = replace(examples, groups=groups)
    assert nearest(examples.take([0]), examples.take([1, 2])) == [0.3, 0.3]
    assert nearest(examples.take([0, 1]), examples.take([2])) == [0.9]


@pytest.mark.parametrize("seed", spread(range(20), 8))
def test_nearest_workload_equals_that_of_a_plain_loop(seed):
    rng = np.random.default_rng(seed)

    def distance(one, other):
        if not one.shapes or [*map(len, one.shapes)] != [*map(len, other.shapes)]:
            return float("inf")
        ratios = [
            np.log2(max(a, 1) / max(b, 1))
            for first, second in zip(one.shapes, other.shapes, strict=True)
            for a, b in zip(first, second, strict=True)
        ]
        return float(np.square(ratios).sum())

    def drawn(number):
        sizes = [2 ** rng.integers(0, 6, size) - 1 for size in rng.integers(1, 3, 2)]
        shapes = tuple(tuple(size.tolist()) for size in sizes)
        family = ("matmul", "conv2d", None)[rng.integers(0, 3)]
        flops = (None, 2.0 ** rng.integers(1, 9))[rng.integers(0, 2)]
        return make_workload(number, family, shapes if rng.random() < 0.8 else (), flops)

    workloads = [drawn(i) for i in range(20)]
    group = np.arange(20)
    examples = of_workloads(workloads, np.zeros((20, 1)), group, 1 / (1 + group))
    train, asked = examples.take(group[5:]), examples.take(group[:5])
    scores = NearestNeighbour(neighbours=15).scores(train, asked, None)
    for number in range(5):
        one = workloads[number]
        others = [i for i in range(5, 20) if workloads[i].family == one.family is not None]
        distances = {i: distance(one, workloads[i]) for i in others}
        if not np.isfinite([*distances.values()]).any():
            others = others or range(5, 20)
            known = [i for i in others if one.flops and workloads[i].flops]
            distances = {i: abs(np.log2(one.flops / workloads[i].flops)) for i in known}
        least = min(distances.values(), default=None)
        nearest = [i for i, found in distances.items() if found == least]
        expected = np.mean(train.throughput[np.array(nearest) - 5]) if nearest else 0
        assert scores[number] == pytest.approx(expected)


def test_equally_near_programs_share_their_weight_for_any_block_size(monkeypatch):
    workloads = [matmul_of(0, 64), matmul_of(1, 128)]
    rows = [[0], [2], [2], [8], [0], [2], [9]]
    group, throughput = [1, 1, 1, 1, 0, 0, 0], [1.0, 0.2, 0.4, 0.1, 1.0, 0.5, 0.25]
    examples = of_workloads(workloads, rows, group, throughput)
    train, test = examples.take([0, 1, 2, 3]), examples.take([4, 5, 6])
    # Two neighbours of four programs: the second nearest of the first program is one of two.
    expected = [(1 + 0.3) / 2, 0.3, (0.1 + 0.3) / 2]
    for block in (1, 8, 1 << 22):
        monkeypatch.setattr(baselines, "_BLOCK", block)
        assert nearest(train, test, 2) == pytest.approx(expected)


def test_baseline_trains_only_on_its_training_set():
    examples = judged(programs=30)
    train, test = examples.take(examples.group > 0), examples.take(examples.group == 0)
    few = train.take(train.trials < 3)
    for name in ("nearest", "tvm"):
        asked = baselines.baseline(name, "first:3").scores(train, test, 1)
        assert np.array_equal(asked, baselines.baseline(name).scores(few, test, 1))
        assert not np.array_equal(asked, baselines.baseline(name).scores(train, test, 1))
    assert baselines.baseline("random", "first:3") == RandomOrder()
    with pytest.raises(NotFoundError, match="no baseline 'oracle'; there are: random, nearest"):
        baselines.baseline("oracle")


def test_tvm_labels_take_1e10_seconds_for_failures():
    found = examples_of(np.zeros((5, 1)), [1] * 5, [0, 0, 0, 1, 1], [1.0, 0.5, 0.0, 0.0, 0.0])
    labels = baselines.tvm_labels(found)
    assert labels.dtype == np.float32
    # The failure of the first workload is next to 0; a workload of failures alone is perfect.
    assert labels.tolist() == pytest.approx([1.0, 0.5, 1e-13, 1.0, 1.0], abs=1e-12)
    assert labels[2] > 0


def test_tvm_model_ranks_unseen_workloads_and_programs_without_rows():
    examples = learnable(8, 60, rows=(2, 2), seed=1)
    unseen = learnable(2, 60, rows=(2, 2), seed=2)
    scores = TVMModel().scores(examples, unseen, 1)
    for group in range(2):
        mine = unseen.group == group
        assert measure(unseen.throughput[mine], scores[mine]).pairwise > 0.75
    assert np.allclose(scores, TVMModel().scores(examples, unseen, 2), atol=1e-3)
    empty = examples_of(examples.rows[:1], [0, 1, 0], [0, 0, 0], [1.0, 0.5, 0.2])
    scores = TVMModel().scores(examples, empty, 1)
    assert (scores == 0).tolist() == [True, False, True]


@pytest.mark.parametrize("rows", [(1, 1), (1, 4)])
def test_tvm_model_equals_xgb_model_of_tvm(rows):
    pytest.importorskip("tvm")
    from tvm.s_tir.meta_schedule.cost_model import XGBModel
    from tvm.s_tir.meta_schedule.cost_model.xgb_model import XGBConfig

    examples = learnable(4, 50, rows=rows, seed=3)
    labels = baselines.tvm_labels(examples)
    parts = np.split(examples.rows, examples.starts[1:-1])
    tvms = XGBModel(config=XGBConfig(nthread=1))
    tvms._train(xs=parts, ys=labels)
    ours = TVMModel().train(examples.rows, examples.starts, labels, 1)
    assert ours.num_boosted_rounds() == tvms.booster.num_boosted_rounds()
    expected = tvms._predict(xs=parts)
    unseen = learnable(2, 30, rows=rows, seed=4)
    assert np.allclose(TVMModel().scores(examples, examples, 1), expected, rtol=1e-6)
    expected = tvms._predict(xs=np.split(unseen.rows, unseen.starts[1:-1]))
    assert np.allclose(TVMModel().scores(examples, unseen, 1), expected, rtol=1e-6)

import json
from dataclasses import replace

import numpy as np
import pytest
from effort import long
from made_kernels import kernel, kernels

from tunedb.advisor.labels import slice_best, to_codes
from tunedb.advisor.learn import boosted, evaluation, training
from tunedb.advisor.learn.evaluation import evaluate
from tunedb.advisor.learn.regret import StepOutcomes
from tunedb.advisor.learn.splits import families
from tunedb.advisor.learn.ten_splits import ten_splits
from tunedb.advisor.observations import Inputs, Label
from tunedb.errors import UsageError


def score(found, method, split="kernel", held_out=""):
    return next(one for one in found.scores_of(split, held_out) if one.method == method)


@pytest.fixture(scope="module")
def gained():
    """Launches, and the findings about ``gain`` on them."""
    rows = kernels(noise=0.01)
    return rows, evaluate(rows, slice_best(rows), methods=("gain",), splits=("kernel", "slice"))


def test_gain_beats_baselines_on_held_out_kernels(gained):
    rows, found = gained
    ours = score(found, "gain")
    for baseline in ("majority", "rule", "occupancy", "nothing"):
        beside = score(found, baseline)
        assert ours.regret.value < beside.regret.value and ours.balanced > beside.balanced
    assert score(found, "nothing").against_nothing.value == pytest.approx(1)
    assert ours.against_nothing.value < 0.9
    assert ours.rows == len(rows) and found.slices == 18
    assert found.kernels == ("saxpy", "stencil", "reducesum")
    assert {one.held_out for one in found.scores} == {"", *found.kernels}
    assert found.confusion["gain"].sum() == ours.advised
    assert found.confusion["nothing"].sum(axis=1).tolist() == list(found.counts)
    assert found.confusion["nothing"][:, [0, 2]].sum() == 0


def test_findings_can_be_written_as_json(gained):
    _, found = gained
    report = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert report["classes"] == ["decrease", "noChange", "increase"]
    assert len(report["gains"]) == 18 and len(report["correlation"]) == len(report["kept"])


@pytest.mark.parametrize("learner", [long("svm"), "boosted"])
def test_inputs_that_name_the_kernel_do_not_help_on_held_out_kernels(learner, monkeypatch):
    """Such columns explain every label of the kernel, unless it is held out."""
    pytest.importorskip("sklearn")
    monkeypatch.setattr(boosted, "ROUNDS", 10)
    names = [letter * 3 for letter in "abcdef"]
    labels = [label for label in (*Label, *Label) for _ in range(24)]
    rows = []
    for name in names:
        named = {f"is_{other}": float(other == name) for other in names}
        for one in kernel(name, 128, tiles=4):
            rows.append(replace(one, counters=named, seconds=1.0))
    inside = evaluate(rows, labels, methods=(learner,), splits=("slice",), inputs="raw")
    assert score(inside, learner, "slice").accuracy > 0.95
    scores, judged = training.held_out_scores(rows, to_codes(labels), learner, "raw")
    assert judged.all()
    # Chance is a third; the rows of a kernel are all alike, so six draws decide.
    assert np.mean(scores.argmax(axis=1) == to_codes(labels)) <= 0.5


@pytest.mark.parametrize("method", ["gain", long("svm"), long("boosted")])
def test_nothing_is_fitted_to_the_held_out_kernel(method, monkeypatch):
    """Each fit while a kernel is held out gets none of its launches."""
    if method != "gain":
        pytest.importorskip("sklearn")
    rows = kernels(noise=0.02, tiles=3)
    seen = []
    genuine = training.fit

    def fit(observations, truth, *given):
        seen.append(set(families(observations)))
        return genuine(observations, truth, *given)

    monkeypatch.setattr(training, "fit", fit)
    found = evaluate(rows, slice_best(rows), methods=(method,))
    # For each held-out kernel two models that calibrate and one that advises.
    assert [len(one) for one in seen] == [1, 1, 2] * 3
    for i, name in enumerate(found.kernels):
        assert all(name not in one for one in seen[3 * i : 3 * i + 3])


DEVICES = ("NVIDIA TITAN RTX", "NVIDIA GeForce RTX 2080 Ti", "NVIDIA GeForce RTX 3090")


def on_three_devices(rows):
    """Return the same programs on each device."""
    return [
        replace(one, device=device, program=one.slice, slice=one.slice + device.encode())
        for device in DEVICES
        for one in rows
    ]


@pytest.mark.parametrize(("split", "count"), [("kernel", 3), ("device", 2)])
def test_advice_does_not_depend_on_held_out_times(split, count):
    rows = on_three_devices(kernels(bests=[128] * count, noise=0.02, tiles=2))
    labels = slice_best(rows)
    held = [getattr(one, split) in ("Stencil", DEVICES[0]) for one in rows]
    advice = []
    for power in (1, 2):
        changed = [
            replace(one, seconds=one.seconds**power) if out else one
            for one, out in zip(rows, held, strict=True)
        ]
        outcomes, all_of = StepOutcomes.from_observations(changed), np.ones(len(rows), bool)
        given = (to_codes(labels), outcomes, all_of, ["gain"], "ratios", print)
        case = evaluation._Case(changed, *given)
        advice.append(evaluation._SPLITS[split](case).advice["gain"][held])
    assert np.array_equal(*advice) and (advice[0] != -1).any()


def test_advice_for_held_out_device_comes_from_other_devices():
    # Each kernel has its own best block, so kernels teach nothing about one another.
    rows = on_three_devices(kernels(bests=(32, 1024), noise=0.01, tiles=3))
    found = evaluate(rows, slice_best(rows), methods=("gain",), splits=("kernel", "device"))
    ours, nothing = score(found, "gain", "device"), score(found, "nothing", "device")
    assert ours.measured == ours.advised == ours.rows == len(rows)
    assert ours.regret.value < 0.9 * nothing.regret.value and ours.right > 0.8 * ours.rows
    assert ours.worst_loss < 1.05 and nothing.worst_loss == 1
    assert {(one.held_out, one.device) for one in found.scores if one.held_out} == {
        (kernel, device) for kernel in found.kernels for device in evaluation.devices(rows)
    }
    assert score(found, "gain").measured == 0


def test_slice_split_skips_launches_without_counters_beside_others():
    rows = kernels(bests=(128, 128), noise=0.01, tiles=2)
    bare = [replace(one, registers=None, counters={}) for one in kernel("gemm", 128, tiles=2)]
    with_others = rows + bare
    labels = slice_best(with_others)
    found = evaluate(with_others, labels, methods=("gain",), splits=("kernel", "slice"))
    assert score(found, "gain").rows == len(with_others)
    assert score(found, "gain", "slice").rows == len(rows)
    assert "gemm" in training.train(with_others, labels, learner="gain").kernels
    alone = evaluate(bare, slice_best(bare), methods=("gain",), splits=("slice",))
    assert alone.observations == len(bare)


def test_one_kernel_cannot_be_held_out():
    rows = kernel("alone", 128)
    found = evaluate(rows, slice_best(rows), methods=("gain",))
    assert score(found, "gain").advised == 0 and np.isnan(score(found, "gain").accuracy)
    assert any("too few labels" in note for note in found.notes)


def test_evaluate_counts_unlabelled_rows_and_skips_them():
    rows = kernels(bests=(128, 128))
    labeled = zip(rows, slice_best(rows), strict=True)
    labels = [None if one.threads == 32 else label for one, label in labeled]
    found = evaluate(rows, labels, methods=("gain",))
    assert found.unlabelled == 12 and sum(found.counts) == len(rows) - 12
    assert score(found, "rule").rows == len(rows) - 12


@pytest.mark.parametrize("given", [{"splits": ("row",)}, {"methods": ("forest",)}])
def test_evaluate_rejects_unknown_splits_and_methods(given):
    with pytest.raises(UsageError, match=r"no '(row|forest)'; there are"):
        evaluate(kernels(), slice_best(kernels()), **given)


@pytest.mark.stress
def test_ten_splits_predict_labels_and_never_train_on_test_rows():
    pytest.importorskip("sklearn")
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 3, 400).astype(np.int8)
    values = np.column_stack([truth + 0.3 * rng.normal(size=400), rng.normal(size=400)])
    groups = np.array(["k"] * 400)
    found = ten_splits(Inputs(("a", "b"), values), truth, groups, "svm", "ratios", splits=4)
    assert len(found.validation) == 4 and min(found.validation) > 0.8
    assert found.test.sum() == len(found.advice) and 78 <= len(found.advice) <= 82
    assert np.mean(found.advice == truth[found.test]) > 0.8
    # No model saw the test rows: other inputs there change advice, and no validation figure.
    moved = np.where(found.test[:, None], values + 100, values)
    again = ten_splits(Inputs(("a", "b"), moved), truth, groups, "svm", "ratios", splits=4)
    assert again.validation == found.validation
    assert not np.array_equal(again.advice, found.advice)


@pytest.mark.stress
def test_evaluate_reports_random_splits_with_baselines():
    pytest.importorskip("sklearn")
    rows = kernels(noise=0.02, tiles=4)
    found = evaluate(rows, slice_best(rows), methods=("svm",), splits=("random", "kernel"))
    at_random = score(found, "svm", "random")
    assert at_random.rows < len(rows) / 3 and at_random.accuracy > 0.7
    assert any("10 random splits" in note for note in found.notes)
    assert {one.method for one in found.scores_of("random")} == {
        *("svm", "majority", "rule", "occupancy", "nothing")
    }


def test_stakes_are_gains_over_the_block_nearest_to_256_threads():
    rows = kernel("k", 32, tiles=1, strength=0.5)
    gains, kernels = evaluation.stakes(rows)
    assert gains.tolist() == pytest.approx([np.exp(1.5)]) and kernels == ("k",)

import sys
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from effort import long
from made_kernels import SIZES, kernel, kernels, launch
from raising import raises_line

from tunedb.advisor.labels import DECREASE, INCREASE, NO_CHANGE, slice_best, to_codes
from tunedb.advisor.learn import boosted, gain, geometry, training
from tunedb.advisor.learn.evaluation import evaluate
from tunedb.advisor.learn.measured import Measured
from tunedb.advisor.learn.model import Advisor, Confidence, softmax
from tunedb.advisor.learn.regret import StepOutcomes, one_step
from tunedb.advisor.learn.splits import family, stratified, thin, weights
from tunedb.advisor.learn.training import train
from tunedb.advisor.observations import Label
from tunedb.errors import FormatError, PluginError, UsageError

#: Three kernels with counters, each of which has its best block at 128 threads.
ROWS = kernels(noise=0.01, tiles=3)


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch):
    """A model of a few trees learns these kernels."""
    monkeypatch.setattr(boosted, "ROUNDS", 15)


@cache
def trained(learner):
    if learner != "gain":
        pytest.importorskip("sklearn")
    return train(ROWS, slice_best(ROWS), learner=learner)


def test_family_groups_variants_of_a_kernel_and_is_not_empty():
    def families(*names):
        return len(set(map(family, names)))

    assert families("Pnpoly", "cn_pnpoly", "PnPoly_kernel", "cn_pnpoly2") == 1
    assert families("Convolution", "convolution_kernel", "convolution_milo") == 1
    assert families("dedispersion_kernel", "Pnpoly") == families("mergeSort1", "mergeHist") == 2
    assert all(map(family, ["kernel", "cuda_kernel", "k", "42", "کرنل"]))
    assert family("") == ""


def test_columns_describe_geometry_and_occupancy():
    rows = [
        launch("k", 0, 256, 1.0, block=(16, 16, 1), registers=32),
        launch("k", 0, 40, 1.0, block=(40, 1, 1), registers=255),
        launch("k", 0, 256, 1.0, block=None, compute_capability=None),
    ]
    table = dict(zip(geometry.NAMES, geometry.columns(rows).T, strict=True))
    assert table["log2 threads"].tolist() == pytest.approx([8, np.log2(40), 8])
    assert table["log2 threads squared"].tolist() == pytest.approx([1, (np.log2(40) - 7) ** 2, 1])
    assert table["above 64 threads"].tolist() == [2, 0, 2]
    assert table["below 64 threads"][1] == pytest.approx(6 - np.log2(40))
    assert table["unused lanes"].tolist() == pytest.approx([0, np.log2(64 / 40), 0])
    assert table["log2 width"].tolist() == pytest.approx([4, np.log2(40), 8])
    assert table["log2 width within a warp"].tolist() == [4, 5, 5]
    # 7.5: 32 warps; 8 warps of 32 registers fill it; 255 registers leave room for 8 warps.
    assert table["occupancy"][:2].tolist() == pytest.approx([1, 8 / 32])
    assert np.isnan(table["occupancy"][2])


def test_fit_of_gain_recovers_weights():
    # log t = 0.3 log2 threads - 0.5 occupancy exactly, with a constant for each slice.
    rows = []
    for tile, registers in enumerate((16, 64, 128, 200)):
        for threads in SIZES:
            one = launch("k", tile, threads, 1.0, registers=registers)
            size, (full,) = np.log2(threads), geometry.occupancies([one])
            if full != 0:
                rows.append(replace(one, seconds=(tile + 1) * np.exp(0.3 * size - 0.5 * full)))
    comparison = gain.Comparison.from_observations(rows)
    columns = ("log2 threads", "occupancy")
    found = gain.fit(comparison, np.ones(len(rows), bool), columns, scaled=False)
    assert found == pytest.approx([0.3, -0.5], rel=0.1)  # ridge shrinks a little


def test_gain_score_is_the_mean_saving_of_a_step_and_the_best():
    model = gain.Gain(("log2 threads squared",), np.array([0.1]), 0.02)  # best at 128
    rows = [launch("k", 0, threads, 1.0) for threads in (32, 64, 128, 256)]
    found = model.scores(rows)
    # Predicted 0.4, 0.1, 0, 0.1: from 32 a step saves 0.3 and the best 0.4.
    assert found[0, INCREASE] == pytest.approx(0.35)
    assert found[0, DECREASE] < -100
    assert found[2].tolist() == pytest.approx([-0.1, 0.02, -0.1])
    assert found[3, DECREASE] == pytest.approx(0.1) and found[3, INCREASE] < -100
    assert found.argmax(axis=1).tolist() == [INCREASE, INCREASE, NO_CHANGE, DECREASE]


def test_gain_scores_better_shape_of_equal_size_as_no_change():
    model = gain.Gain(("log2 width",), np.array([0.5]), 0.02)
    rows = [launch("k", 0, 64, 1.0), launch("k", 0, 64, 1.0, block=(8, 8, 1))]
    rows += [launch("k", 0, 128, 1.0)]
    assert model.scores(rows)[0].argmax() == NO_CHANGE


def test_scores_of_gain_do_not_depend_on_times():
    rows = kernels(noise=0.05)
    model = gain.choose(rows, to_codes(slice_best(rows)))
    rng = np.random.default_rng(0)
    other = [replace(one, seconds=float(rng.uniform())) for one in rows]
    assert np.array_equal(model.scores(rows), model.scores(other))
    assert np.array_equal(one_step(rows), one_step(other))


@pytest.mark.parametrize("learner", ["gain", "svm", "boosted"])
def test_trained_advisor_is_right_on_an_unseen_kernel_and_survives_a_round_trip(learner):
    found = trained(learner)
    advisor = found.advisor
    assert advisor.learner == learner
    assert found.kernels == ("saxpy", "stencil", "reducesum")
    assert set(found.marks) == {learner}
    new = kernel("another", 128, seed=9, noise=0.01)
    for rows in (ROWS, new):
        advice = advisor.scores(rows).argmax(axis=1)
        assert np.mean(advice == to_codes(slice_best(rows))) > 0.8
    # It was right on held-out kernels, so its confidence is high.
    sure = softmax(advisor.scores(new), advisor.learnt.temperature).max(axis=1)
    assert sure.mean() > 0.6
    body = advisor.to_bytes()
    again = Advisor.from_bytes(body)
    assert np.array_equal(again.scores(ROWS), advisor.scores(ROWS))
    assert np.array_equal(advised(again, ROWS), advised(advisor, ROWS))
    assert (again.measured, again.learnt) == (advisor.measured, advisor.learnt)
    assert again.to_bytes() == body


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[]", b"{}", b'{"advisor":1}', b'{"advisor":2,"learner":"svm"}'),
        b'{"advisor":2,"learner":"os.system","inputs":"raw"}',
    ],
)
def test_from_bytes_rejects_bytes_that_are_no_advisor(body):
    with raises_line(FormatError):
        Advisor.from_bytes(body)


def test_train_chooses_the_learner_best_on_held_out_kernels():
    pytest.importorskip("sklearn")
    labels = slice_best(ROWS)
    found = train(ROWS, labels)
    assert set(found.marks) == {"gain", "svm", "boosted"}
    assert found.marks[found.advisor.learner] == max(found.marks.values())
    # Equal trainings make equal advisors.
    for again in (found, train(ROWS, labels, learner="boosted")):
        advisor = again.advisor
        assert advisor.to_bytes() == trained(advisor.learner).advisor.to_bytes()


def advised(advisor, rows):
    """Return the advice of the model, without measurements of other devices."""
    return advisor.advise(rows, Measured.from_observations([]))[0]


def held_out(names, scores, saved):
    """Return the confidence after 60 held-out slices of each kernel, of 128 and 64 threads."""
    rows = []
    for name in names:
        for tile in range(60):
            rows.append(launch(name, tile, 128, 1.0))
            rows.append(launch(name, tile, 64, np.exp(-saved(name, tile))))
    sets = np.array([one.kernel for one in rows])
    margin = np.array([scores(one.kernel, i // 2 % 60) for i, one in enumerate(rows)])
    found = np.column_stack([margin, 0 * margin, np.full(len(rows), -1e3)])
    large = np.array([one.threads == 128 for one in rows])
    truth = to_codes(slice_best(rows))
    return Confidence.fit(found, truth, StepOutcomes.from_observations(rows), sets, large)


def test_fitted_margin_is_one_at_which_no_held_out_kernel_loses():
    # Of kernel b the smaller half of the predicted savings is wrong, and loses more than it may.
    saved = lambda name, i: -1.5 if name == "b" and i < 30 else 1  # noqa: E731
    half_wrong = held_out("ab", lambda _, i: i / 60, saved)
    assert 9 / 60 <= half_wrong.least <= 12 / 60
    always = held_out("ab", lambda _, i: (1 + i) / 60, lambda *_: 1)
    assert always.least == 0


def test_no_advice_if_held_out_kernels_lose_at_every_margin():
    assert np.isinf(held_out("ab", lambda *_: 0.5, lambda name, _: 1 if name == "a" else -1).least)
    assert np.isinf(held_out("ab", lambda *_: 0.5, lambda *_: 0).least)


def test_kernels_with_one_block_change_nothing_and_are_not_held_out(monkeypatch):
    """Launches of kernels with one block have no label, so nothing to learn or evaluate."""
    rows = kernels(noise=0.02, tiles=3)
    seen = rows[0].counters
    others = [launch(f"one{letter}", 0, 96, 1e-3, counters=seen) for letter in "abcdefgh"]
    fitted = []
    genuine = training.fit

    def fit(observations, *given):
        fitted.append(len(observations))
        return genuine(observations, *given)

    monkeypatch.setattr(training, "fit", fit)
    alone = train(rows, slice_best(rows), learner="gain")
    assert len(fitted) == 4
    both = train(rows + others, slice_best(rows + others), learner="gain")
    assert len(fitted) == 8
    assert (both.kernels, both.rows) == (alone.kernels, alone.rows)
    assert both.advisor.scores(rows) == pytest.approx(alone.advisor.scores(rows))
    found = evaluate(rows + others, slice_best(rows + others), methods=("gain",))
    assert len(fitted) == 17
    assert {one.held_out for one in found.scores} == {"", *alone.kernels}


def test_kernels_of_few_launches_do_not_outvote_others():
    """Five small kernels of equal times are trained with three kernels of different times."""
    rows = kernels(noise=0.01, tiles=3)
    for letter in "abcde":
        quiet = kernel(f"quiet{letter}", 128, tiles=1, sizes=(128, 256, 512, 1024))
        rows += [replace(one, seconds=1.0) for one in quiet]
    advisor = train(rows, slice_best(rows), learner="gain").advisor
    loud = rows[: len(kernels(tiles=3))]
    right = advisor.scores(loud).argmax(axis=1) == to_codes(slice_best(loud))
    assert right.mean() > 0.9


@pytest.mark.parametrize(
    ("count", "given", "words"),
    [
        (2, {"learner": "gain"}, "2 of 2 launches have a label, but training needs 10"),
        (0, {"learner": "gain"}, "tunedb import logs"),
        (6, {"learner": "forest"}, "no learner"),
        (6, {"inputs": "pixels"}, "no learner"),
    ],
)
def test_train_rejects_few_labelled_launches_and_unknown_learners(count, given, words):
    rows = kernel("k", 128, tiles=1)[:count]
    with pytest.raises(UsageError, match=words):
        train(rows, slice_best(rows), **given)


def test_train_rejects_labels_of_one_class():
    rows = kernel("k", 128)
    with pytest.raises(UsageError, match="all 36 labels are noChange"):
        train(rows, [Label.NO_CHANGE] * len(rows), learner="gain")


@pytest.mark.parametrize("learner", ["gain", long("svm"), "boosted"])
def test_one_class_missing_is_reported_and_never_advised(learner):
    if learner != "gain":
        pytest.importorskip("sklearn")
    rows = kernels(bests=(4096, 4096), sizes=SIZES[2:])
    found = train(rows, slice_best(rows), learner=learner)
    assert any("labelled decrease" in note for note in found.notes)
    if learner != "gain":  # it predicts times, and those may rise
        assert DECREASE not in found.advisor.scores(rows).argmax(axis=1)


def test_train_rejects_constant_inputs():
    pytest.importorskip("sklearn")
    rows = [replace(one, counters={"inst_executed": 5.0, "other": 1.0}) for one in kernels()]
    with pytest.raises(UsageError, match="inputs are constant"):
        train(rows, slice_best(rows), learner="svm", inputs="raw")


def test_only_gain_trains_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    rows = kernels()
    with pytest.raises(PluginError, match=r"pip install 'tunedb\[advise\]'"):
        train(rows, slice_best(rows), learner="svm")
    advisor = train(rows, slice_best(rows), learner="gain").advisor
    assert len(advised(advisor, rows)) == len(rows)


def test_training_on_one_kernel_is_reported_and_gives_no_advice():
    rows = kernel("alone", 128)
    found = train(rows, slice_best(rows), learner="gain")
    assert any("one kernel (alone)" in note for note in found.notes)
    # Nothing was held out, so nothing supports advice.
    assert found.marks == {} and np.isinf(found.advisor.learnt.least)
    assert (advised(found.advisor, rows) == -1).all()


def test_weights_are_equal_for_classes_of_families():
    groups = np.array(["a"] * 90 + ["b"] * 60)
    truth = np.array([0] * 60 + [1] * 30 + [0] * 30 + [2] * 30, np.int8)
    found = weights(groups, truth)
    assert found.mean() == pytest.approx(1)
    sums = [found[(groups == g) & (truth == c)].sum() for g, c in (("a", 0), ("a", 1), ("b", 2))]
    assert sums == pytest.approx([sums[0]] * 3)


def test_stratified_share_leaves_rows_of_every_class():
    truth = np.array([0] * 50 + [1] * 10 + [2], np.int8)
    held = stratified(truth, 0.2, np.random.default_rng(0))
    assert [int(held[truth == code].sum()) for code in range(3)] == [10, 2, 0]


def test_thin_keeps_programs_on_all_their_devices():
    rows = [replace(one, program=one.slice) for one in kernel("pnpoly", 128, tiles=5)]
    other = [replace(one, slice=one.slice + b"2", registers=None) for one in rows]
    gemm = kernel("gemm", 128, tiles=3)
    chosen = [(rows + other + gemm)[i] for i in thin(rows + other + gemm, 2)]
    assert len({one.slice for one in chosen if one.kernel == "pnpoly"}) == 4
    assert len({one.program for one in chosen if one.kernel == "pnpoly"}) == 2
    assert len({one.slice for one in chosen if one.kernel == "gemm"}) == 2
    assert any(one.registers is None for one in chosen)

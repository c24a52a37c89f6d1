from dataclasses import replace

import numpy as np
import pytest
from made_kernels import kernel, kernels, launch

from tunedb.advisor.labels import slice_best
from tunedb.advisor.learn import boosted, gain
from tunedb.advisor.learn import store as stored
from tunedb.advisor.learn.advice import advise
from tunedb.advisor.learn.model import Advisor, Confidence
from tunedb.advisor.learn.store import find, label, train_advisor, training_digest
from tunedb.advisor.learn.training import train
from tunedb.advisor.observations import Label
from tunedb.errors import IntegrityError, NotFoundError, UsageError
from tunedb.formats.gpu.t1 import t1_input
from tunedb.maintenance.check import check
from tunedb.storage.store import Store

#: A model with its optimum at 128 threads, and an advisor with high confidence.
MODEL = gain.Gain(("log2 threads squared",), np.array([0.1]), 0.02)
ADVISOR = Advisor("gain", "ratios", None, MODEL, learnt=Confidence(temperature=0.1))


def test_advise_chooses_legal_blocks_without_measured_ones():
    # Nothing else was measured: legal blocks are the candidates.
    small, right, large = (launch("k", i, t, 1.0) for i, t in enumerate((32, 128, 1024)))
    advice = advise(ADVISOR, [small, right, large], [0, 1, 2])
    assert [one.label for one in advice] == [Label.INCREASE, Label.NO_CHANGE, Label.DECREASE]
    assert [one.block for one in advice] == [(64, 1, 1), None, (512, 1, 1)]
    assert [one.stake for one in advice] == [None] * 3
    assert [reason.name for reason in advice[0].reasons] == ["log2 threads squared"]
    assert advice[0].reasons[0].value == 4 and advice[0].reasons[0].weight == pytest.approx(0.3)
    assert advice[0].probability == max(advice[0].probabilities)
    assert sum(advice[0].probabilities) == pytest.approx(1)


def test_advise_prefers_blocks_that_ran_and_stakes_are_at_least_one():
    rows = [launch("k", 0, 32, 2.0), launch("k", 0, 48, 1.0)]
    (advice,) = advise(ADVISOR, rows, [0])
    assert advice.block == (48, 1, 1) and advice.stake == 2.0
    rows = [launch("k", 0, 128, 1.0), launch("k", 0, 256, 3.0)]
    assert advise(ADVISOR, rows, [0])[0].stake == 1.0


def test_advise_takes_legal_blocks_from_t1_input():
    space = {
        "TuningParameters": [{"Name": "x", "Values": "[32, 96, 128]"}],
        "Conditions": [{"Expression": "x != 96"}],
    }
    kernel_ = {"KernelName": "k", "LocalSize": {"X": "x"}}
    allowed = t1_input({"ConfigurationSpace": space, "KernelSpecification": kernel_})
    rows = [launch("k", 0, 32, 1.0, parameters={"x": 32})]
    assert advise(ADVISOR, rows, [0])[0].block == (64, 1, 1)
    assert advise(ADVISOR, rows, [0], stated={"k": allowed})[0].block == (128, 1, 1)
    assert advise(ADVISOR, rows, [0], stated={"other": allowed})[0].block == (64, 1, 1)


def test_expected_gain_comes_from_other_slices():
    # Two other slices, from 64 to 128 threads: 2 times and 4 times as fast.
    rows = [launch("k", 0, 64, 1.0)]
    rows += [launch("k", 1, 64, 2.0), launch("k", 1, 128, 1.0)]
    rows += [launch("k", 2, 64, 4.0), launch("k", 2, 128, 1.0)]
    # Far larger blocks, and slices where no step is possible, do not count.
    rows += [launch("k", 3, 1024, 1.0), launch("k", 4, 64, 1.0)]
    (advice,) = advise(ADVISOR, rows, [0])
    assert advice.expected.slices == 2
    assert (advice.expected.low, advice.expected.middle, advice.expected.high) == (2.5, 3.0, 3.5)
    assert advise(ADVISOR, [launch("k", 0, 128, 1.0)], [0])[0].expected is None


def elsewhere(threads, seconds, device="NVIDIA TITAN RTX", **given):
    return launch("k", device, threads, seconds, device=device, program=b"p", **given)


def test_measurements_on_another_device_come_before_the_model():
    # The model says 128 threads, and other devices say 512; the launch itself ran with one block.
    one = launch("k", 0, 128, 1.0, program=b"p")
    others = [elsewhere(threads, abs(threads - 512) + 1) for threads in (128, 256, 512)]
    (advice,) = advise(ADVISOR, [one, *others], [0])
    assert advice.source == "measured" and advice.label == Label.INCREASE
    assert advice.block == (256, 1, 1) and advice.reasons == ()
    (advice,) = advise(ADVISOR, [replace(one, kernel="new", program=b"q"), *others], [0])
    assert advice.source == "learnt" and advice.label == Label.NO_CHANGE


def test_other_programs_of_the_kernel_come_before_the_model():
    rows = [launch("k", 0, threads, 1.0) for threads in (128, 256)]
    rows += [elsewhere(128, 2.0), elsewhere(256, 1.0)]
    (advice,) = advise(ADVISOR, rows, [0])
    assert advice.source == "kernel" and advice.label == Label.INCREASE


def test_no_advice_below_the_margin():
    one = launch("k", 0, 128, 1.0, program=b"p")
    rows = [one, elsewhere(128, 1.2), elsewhere(256, 1.0)]
    sure = replace(ADVISOR, measured=Confidence(least=0.16))
    assert advise(sure, rows, [0])[0].label == Label.INCREASE
    silent = replace(ADVISOR, measured=Confidence(least=0.17))
    (advice,) = advise(silent, rows, [0])
    assert advice.label is None and advice.block is None and advice.source == "measured"
    assert advice.reasons == () and advice.expected is None
    assert advice.probability == max(advice.probabilities)


def test_no_advice_that_rests_on_an_unknown_occupancy():
    model = gain.Gain(("occupancy",), np.array([-1.0]), 0.02)
    advisor = Advisor("gain", "ratios", None, model)
    for given in (
        {"device": "AMD Radeon PRO W6600", "compute_capability": None},
        {"registers": None},
    ):
        rows = [launch("k", 0, threads, 1.0, **given) for threads in (32, 128)]
        assert [one.label for one in advise(advisor, rows, [0, 1])] == [None, None]
    rows = [launch("k", 0, threads, 1.0) for threads in (32, 128)]
    assert advise(advisor, rows, [0])[0].label == Label.INCREASE


@pytest.mark.parametrize("learner", ["svm", "boosted"])
def test_reasons_name_counters_that_support_the_advice(learner, monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.setattr(boosted, "ROUNDS", 30)
    rows = []
    for one in kernels(noise=0.01, tiles=2):
        # One counter alone tells the label.
        apart = np.log2(one.threads / 128)
        rows.append(replace(one, threads=128, counters={"signal": apart, "noise": one.seconds % 1}))
    codes = {-1: Label.INCREASE, 0: Label.NO_CHANGE, 1: Label.DECREASE}
    labels = [codes[np.sign(one.counters["signal"])] for one in rows]
    advisor = train(rows, labels, learner=learner, inputs="raw").advisor
    advisor = replace(advisor, learnt=Confidence())
    advice = advise(advisor, rows, range(len(rows)))
    assert [one.label for one in advice] == labels
    strongest = [one.reasons[0].name for one in advice if one.label != Label.NO_CHANGE]
    assert strongest.count("signal") > 0.9 * len(strongest)
    assert all(reason.weight > 0 for one in advice for reason in one.reasons)
    # A learner of counters does not advise launches without counters.
    bare = [replace(one, counters={}) for one in rows]
    assert (advisor.scores(bare) == 0).all()
    assert {one.label for one in advise(advisor, bare, range(len(bare)))} == {None}


@pytest.fixture
def made(sqlite_file, monkeypatch):
    """A database whose launches are made up."""
    rows = kernels(noise=0.01, tiles=2)
    monkeypatch.setattr(stored, "load", lambda query: rows)
    with Store(sqlite_file) as store:
        yield store, rows


def test_train_advisor_stores_an_advisor_that_find_returns_and_check_accepts(made, sqlite_file):
    store, rows = made
    found = train_advisor(store, learner="gain")
    assert not found.was_there
    advisor, row = find(store)
    assert row.id == found.stored.id and row.kind == "advisor"
    assert advisor.to_bytes() == found.training.advisor.to_bytes()
    assert row.card["launches"] == len(rows) and row.card["learner"] == "gain"
    again = train_advisor(store, learner="gain")
    assert again.was_there and again.stored.id == found.stored.id
    other = train_advisor(store, learner="gain", tolerance=0.2)
    assert other.stored.id != found.stored.id
    assert find(store)[1].id == other.stored.id
    assert find(store, found.stored.id)[1].id == found.stored.id
    assert check(sqlite_file).problems == []


def test_find_rejects_missing_and_changed_advisors(made, monkeypatch):
    store, _ = made
    with pytest.raises(NotFoundError, match="no advisor yet; make one: tunedb advise train"):
        find(store)
    with pytest.raises(NotFoundError, match="model 7 is not an advisor"):
        find(store, 7)
    train_advisor(store, learner="gain")
    body = store.models.body(1).replace(b'"tolerance":0.0', b'"tolerance":0.9')
    monkeypatch.setattr(type(store.models), "body", lambda self, id_: body)
    with pytest.raises(IntegrityError, match="tunedb advise train"):
        find(store)


def test_training_digest_depends_on_times_labels_and_counters():
    rows = kernel("k", 128)
    labels = slice_best(rows)
    digest = training_digest(rows, labels)
    assert training_digest([replace(one, record=9, launch=9) for one in rows], labels) == digest
    assert training_digest(rows, [None, *labels[1:]]) != digest
    assert training_digest([replace(rows[0], seconds=2.0), *rows[1:]], labels) != digest
    assert training_digest([replace(rows[0], counters={}), *rows[1:]], labels) != digest


@pytest.mark.parametrize("given", [("best", 0.05), ("slice-best", 1.5), ("slice-best", -0.1)])
def test_label_rejects_unknown_methods_and_invalid_tolerances(given):
    with pytest.raises(UsageError):
        label(kernel("k", 128), *given)

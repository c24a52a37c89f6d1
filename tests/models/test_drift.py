import pytest
from builders import OWN, make_measurement

from tunedb.models import drift
from tunedb.records import Failure, FailureKind, Phase, Status
from tunedb.results import NewModel


def add_model(store, marker=0, threshold=None):
    """Add the card of a model that does not exist; return its id."""
    card = {"marker": marker, "drift": {"pairwise_p5": threshold}}
    return store.models.add(NewModel(bytes([marker]) * 16, "ranker", b"{}", b"t" * 16, card, None))


def predict(store, model, scores, measurements):
    """Store measurements, and scores of their programs by a model; return the programs' ids."""
    store.batches.add(measurements, OWN)
    ids = store.programs.ids([one.program.digest for one in measurements])
    store.models.add_predictions(model, dict(zip(ids, scores, strict=True)))
    return ids


def slower(count, **fields):
    """Return measurements of programs, each slower than the one before."""
    return [make_measurement(i, (1e-3 * (i + 1),), **fields) for i in range(count)]


def retract(store, measurement):
    store.trust.retract(store.records.find(measurement.digest.hex()), "the clock was wrong")


def failed(number, kind=FailureKind.CRASH, **fields):
    failure = Failure(kind, Phase.RUN, "it failed")
    return make_measurement(number, None, status=Status.FAILED, failure=failure, **fields)


def test_drift_reports_share_of_pairs_in_right_order(store):
    model = add_model(store, threshold=0.9)
    # Scores 4, 3, 2, 1 of programs that took 1, 3, 2 ms and failed: of six pairs one is wrong.
    batch = [make_measurement(i, (secs,)) for i, secs in enumerate((1e-3, 3e-3, 2e-3))]
    predict(store, model, (4.0, 3.0, 2.0, 1.0), [*batch, failed(3)])
    (found,) = drift.drift(store)
    assert (found.model_id, found.trials, found.failed) == (model, 4, 1)
    assert found.pairwise == pytest.approx(5 / 6)
    assert found.threshold == 0.9
    assert found.drifted is None  # too few to tell


def test_pairwise_is_none_if_all_programs_failed(store):
    predict(store, add_model(store), (1.0, 2.0), [failed(0), failed(1)])
    (found,) = drift.drift(store)
    assert (found.trials, found.failed, found.pairwise, found.drifted) == (2, 2, None, None)


@pytest.mark.parametrize(("threshold", "verdicts"), [(0.6, [True, False]), (None, [None, None])])
def test_drift_is_reported_below_the_cards_threshold(store, threshold, verdicts):
    """A model without evaluation has none."""
    batch, places = slower(drift.FEWEST), range(drift.FEWEST)
    wrong, right = (add_model(store, marker, threshold) for marker in range(2))
    predict(store, wrong, places, batch)  # the slowest one has the highest score
    predict(store, right, [-i for i in places], batch)
    found = drift.drift(store)
    assert [(one.model_id, one.pairwise) for one in found] == [(wrong, 0.0), (right, 1.0)]
    assert [(one.threshold, one.drifted) for one in found] == [(threshold, v) for v in verdicts]
    assert drift.drift(store, right) == found[1:]


def test_drift_ranks_each_workload_and_target_separately(store):
    batch = [*slower(2), *slower(3, workload=1), *slower(4, target=1)]
    predict(store, add_model(store), range(9), batch)
    found = drift.drift(store)
    cells = [(one.workload_id, one.target_id, one.trials) for one in found]
    assert cells == [(1, 1, 2), (1, 2, 4), (2, 1, 3)]
    assert [one.pairwise for one in found] == [0.0, 0.0, 0.0]


def test_trials_omit_unmeasured_retracted_and_infrastructure_records(store):
    model = add_model(store)
    taken_back = make_measurement(4, (1e-9,))
    batch = [
        make_measurement(0, (2e-3,)),
        failed(1, FailureKind.INFRASTRUCTURE),
        make_measurement(2, None, status=Status.UNMEASURED),
        failed(3),
        taken_back,
    ]
    ids = predict(store, model, range(5), batch)
    retract(store, taken_back)
    found = store.training.trials(model)
    assert [one.program_id for one in found] == [ids[0], ids[3]]
    assert [one.mean for one in found] == [2e-3, None]
    assert store.training.predictions() == {model: 5}
    assert store.training.trials(model + 1) == []


def test_trial_has_fastest_time_and_first_record_of_its_program(store):
    model = add_model(store)
    batch = [
        make_measurement(0, (3e-3,), measured_at=1),
        make_measurement(0, (2e-3, 2e-3), measured_at=2),
        failed(0, measured_at=3),
    ]
    store.records.add(batch, OWN)
    store.models.add_predictions(model, {1: 0.5})
    (found,) = store.training.trials()
    assert (found.mean, found.score, found.record_id) == (2e-3, 0.5, 1)


def test_ranks_returns_predicted_and_measured_place_of_each_trial(store):
    batch = [make_measurement(i, (secs,)) for i, secs in enumerate((1e-3, 3e-3, 2e-3))]
    predict(store, add_model(store), (1.0, 3.0, 2.0, 4.0), [*batch, failed(3)])
    found = drift.ranks(store.training.trials())
    assert [(place, real) for _, place, real in found] == [(4, 1), (2, 3), (3, 2), (1, None)]


def test_measured_before_returns_programs_measured_before_a_time(store):
    taken_back = make_measurement(4, (1e-9,), measured_at=10)
    batch = [
        make_measurement(0, measured_at=10),
        make_measurement(1, measured_at=20),
        failed(2, measured_at=10),
        failed(3, FailureKind.INFRASTRUCTURE, measured_at=10),
        taken_back,
        make_measurement(5, measured_at=0),  # without a time
        make_measurement(1, measured_at=30),
    ]
    store.batches.add(batch, OWN)
    ids = store.programs.ids([one.program.digest for one in batch[:6]])
    retract(store, taken_back)
    found = [store.training.measured_before(ids, moment) for moment in (10, 20, 21)]
    assert found == [{ids[5]}, {ids[0], ids[2], ids[5]}, {ids[0], ids[1], ids[2], ids[5]}]
    assert store.training.measured_before([ids[0]], 20) == {ids[0]}
    assert store.training.measured_before([], 20) == set()

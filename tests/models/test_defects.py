"""The nine defects of TVM 0.27's ``XGBModel``, none of which the models here have.

TVM's are in ``python/tvm/s_tir/meta_schedule/cost_model/xgb_model.py``. Those that are of its
interface (4, 5, 6 and a part of 9) have tests in ``tests/plugins/test_cost_model.py``, by the same
numbers. Tests that depend on the loss take ``throughput``, which is TVM's, and the default.
"""

import numpy as np
import orjson
import pytest
from learnable import examples_of, learnable, noisy, quick, untrained

from tunedb.models.boosting import parameters
from tunedb.models.model import Model
from tunedb.models.recipe import Recipe
from tunedb.models.training import best_round, fit, select

of_each_loss = pytest.mark.parametrize("loss", ["throughput", Recipe().loss])


def train(examples, **choices):
    return fit(examples, quick(**choices), threads=1)


def config(model):
    """Return the configuration of a model's first booster."""
    return orjson.loads(model.boosters[0].save_config())["learner"]


def of_shared_leaves(rows, rounds, **choices):
    """Return the loss after some rounds at eta 0.2, as a share of that before.

    Each of eight programs has `rows` equal rows, which no tree can distinguish.
    """
    features = np.repeat(np.arange(8.0), rows)[:, None]
    throughput = np.linspace(0.3, 1, 8)
    examples = examples_of(features, np.full(8, rows), np.zeros(8, int), throughput)
    choices |= {"eta": 0.2, "reg_lambda": 0.0, "min_child_weight": 0.0}
    run, objective = untrained(examples, **choices)
    before = objective.value(run.scores())
    for _ in range(rounds):
        run.step()
    return objective.value(run.scores()) / before


@of_each_loss
@pytest.mark.parametrize(("rows", "rounds"), [(1, 60), (8, 60), (11, 60), (64, 25)])
def test_defect_1_loss_falls_where_many_rows_share_a_leaf(rows, rounds, loss):
    """TVM's Hessian is 1 for each row, as with power 0 here: it diverges from k · eta ≥ 2 on."""
    assert of_shared_leaves(rows, rounds, loss=loss) < 0.1
    if rows >= 11:
        assert of_shared_leaves(rows, rounds, loss=loss, hessian_power=0.0) > 1e3


@of_each_loss
def test_defect_2_workload_with_only_failures_is_left_out(loss):
    """In TVM it gets the perfect label, 1e10 / 1e10; here it does not change the model."""
    examples = learnable(3, 20)
    throughput = np.where(examples.group == 2, 0, examples.throughput)
    dead = examples_of(examples.rows, examples.sizes, examples.group, throughput)
    assert np.unique(select(dead, quick()).group).tolist() == [0, 1]
    alone = dead.take(dead.group != 2)
    fitted = [train(one, loss=loss) for one in (dead, alone)]
    assert fitted[0].left_out == {"only failures": 20, "training set": 0}
    scores = [one.model.score_examples(dead).tolist() for one in fitted]
    assert scores[0] == scores[1]


@pytest.mark.parametrize("loss", ["throughput", "squared", "log", "rank", "relative"])
def test_defect_3_failures_get_the_lowest_scores(loss):
    """In TVM failures have label and weight 0, so the model ignores a region that fails."""
    rows = np.random.default_rng(0).random((200, 2))
    region = rows[:, 0] > 0.5
    throughput = np.where(region, 0, 0.5 + rows[:, 1] / 2)
    examples = examples_of(rows, np.ones(200, int), np.arange(200) % 4, throughput)
    scores = train(examples, loss=loss, rounds=20).model.score_examples(examples)
    assert scores[region].max() < scores[~region].min()


def test_defect_4_tree_method_is_pinned_to_hist():
    """Here it is pinned; the plugin's: test_defects_4_and_6_hist_is_pinned_…."""
    learner = config(train(learnable()).model)
    assert learner["gradient_booster"]["gbtree_train_param"]["tree_method"] == "hist"
    assert learner["gradient_booster"]["gbtree_train_param"]["updater"] == "grow_quantile_histmaker"


def test_defect_5_model_without_trees_loads():
    """The plugin's: test_defect_5_a_model_that_was_saved_before_training_loads."""
    examples = learnable()
    run, objective = untrained(examples)
    model = Model(quick(), "small", 3, examples.columns, (run.booster,))
    again = Model.from_bytes(model.to_bytes(), threads=1)
    expected = objective.base(examples.sizes) * examples.sizes
    assert again.score_examples(examples) == pytest.approx(expected, rel=1e-6)
    assert again.rounds == 0


def test_defect_6_device_selects_a_gpu():
    """``gpu_hist`` is gone from XGBoost 3; ``device`` reaches it.

    The plugin's: test_defects_4_and_6_hist_is_pinned_….
    """
    found = parameters(quick(), seed=0, threads=1, device="cuda")
    assert (found["tree_method"], found["device"]) == ("hist", "cuda")
    assert config(train(learnable()).model)["generic_param"]["device"] == "cpu"


@of_each_loss
def test_defect_7_held_out_workloads_stop_training_at_the_best_round(loss):
    """TVM watches the training set and keeps all trees; these labels are mostly noise."""
    examples = noisy()
    fitted = train(examples, loss=loss, rounds=200, patience=5, max_depth=6)
    assert fitted.held_out
    assert len(fitted.history) == fitted.best_round + 5 < 200
    assert fitted.rounds == fitted.best_round == best_round(fitted.history, 5)
    assert fitted.model.boosters[0].num_boosted_rounds() == fitted.model.rounds == fitted.rounds
    # The booster is trained on all workloads for the rounds that were best.
    direct = train(examples, loss=loss, rounds=fitted.best_round, max_depth=6)
    mine, other = (one.model.score_examples(examples).tolist() for one in (fitted, direct))
    assert mine == other


@pytest.mark.parametrize("loss", ["throughput", "squared", "log", "rank", Recipe().loss])
def test_defect_8_first_scores_are_right_on_average(loss):
    """TVM starts at half the number of rows; here the base is fitted.

    Only differences count in ``rank`` and the default loss, so all scores start at 0.
    """
    for rows in ((1, 1), (4, 4), (1, 4)):
        examples = learnable(rows=rows)
        run, objective = untrained(examples, loss=loss)
        base = objective.base(examples.sizes)
        assert run.scores() == pytest.approx(base * examples.sizes, rel=1e-6)
        if loss in ("rank", Recipe().loss):
            assert set(run.scores()) == {0.0}
        elif rows[0] == rows[1]:
            mean = np.average(objective.labels, weights=objective.weights)
            assert run.scores() == pytest.approx(np.full(len(examples), mean), rel=1e-6)


@of_each_loss
def test_defect_9_training_neither_reads_nor_changes_numpys_generator(loss):
    """TVM draws random scores from NumPy's global generator.

    The plugin's: test_defect_9_random_scores_leave_numpys_generator_alone.
    """
    examples = learnable(10, 20)
    choices = {"subsample": 0.5, "colsample_bytree": 0.5, "patience": 3, "members": 2, "loss": loss}
    found = []
    for seed in (1, 2):
        np.random.seed(seed)
        before = np.random.get_state()[1].tolist()
        found.append(train(examples, **choices).model.to_bytes())
        assert np.random.get_state()[1].tolist() == before
    assert found[0] == found[1]


@of_each_loss
def test_defect_9_model_that_only_distinguishes_workloads_has_accuracy_0_5(loss):
    """TVM's figures mix workloads; here each group has its own, and 0.5 is chance."""
    rows = np.repeat(np.arange(10.0), 8)[:, None]
    group = np.repeat(np.arange(10), 8)
    throughput = np.clip(np.random.default_rng(0).random(80) * (1 + group) / 10, 0.01, 1)
    examples = examples_of(rows, np.ones(80, int), group, throughput)
    fitted = train(examples, loss=loss, patience=2, rounds=3)
    assert fitted.history
    assert set(fitted.history) == {0.5}

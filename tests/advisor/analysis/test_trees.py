import numpy as np
import pytest
from observing import inputs
from pages import EVIL

from tunedb.advisor.analysis.trees import TreeNode, grow
from tunedb.advisor.observations import LABELS, Inputs, Label
from tunedb.report.advisor_plots import describe, questions

tree = pytest.importorskip("sklearn.tree")

NAN = float("nan")
DECREASE, NO_CHANGE, INCREASE = LABELS


def walk(node, row, names):
    """Return the label that a tree gives a launch."""
    while node.yes is not None:
        value = row[names.index(node.name)]
        yes = node.unknown if np.isnan(value) else np.float32(value) <= node.threshold
        node = node.yes if yes else node.no
    return node.label


def test_grow_finds_a_planted_threshold():
    threads = np.array([32, 64, 96, 128, 256, 512.0])
    root = grow(inputs(threads=threads), [INCREASE] * 3 + [DECREASE] * 3)
    assert (root.name, root.threshold) == ("threads", 112)
    assert root.counts == (3, 0, 3)
    assert (root.yes.label, root.yes.counts) == (INCREASE, (0, 0, 3))
    assert (root.no.label, root.no.counts) == (DECREASE, (3, 0, 0))
    assert describe(root) == (
        "threads ≤ 112\n"
        "  → increase (decrease 0, noChange 0, increase 3)\n"
        "threads > 112\n"
        "  → decrease (decrease 3, noChange 0, increase 0)"
    )


@pytest.mark.parametrize("seed", range(4))
def test_tree_predicts_as_scikit_learn_does(seed):
    random = np.random.default_rng(seed)
    values = random.normal(size=(300, 4))
    values[random.random(values.shape) < 0.2] = NAN
    score = np.nan_to_num(values[:, 0]) + 0.5 * np.nan_to_num(values[:, 1])
    codes = np.digitize(score + 0.3 * random.normal(size=300), [-0.4, 0.7])
    data = Inputs(("a", "b", "c", "d"), values)
    root = grow(data, [LABELS[code] for code in codes])
    known = tree.DecisionTreeClassifier(
        max_depth=4, min_samples_leaf=2, class_weight="balanced", random_state=0
    ).fit(values, codes)
    found = [LABELS.index(walk(root, row, data.names)) for row in values]
    assert found == known.predict(values).tolist()
    assert root.depth() <= 4
    leaves = list(root.leaves())
    assert tuple(map(sum, zip(*(leaf.counts for leaf in leaves), strict=True))) == root.counts
    assert root.total == 300


def test_rare_labels_weigh_as_much_as_frequent_ones():
    values = np.concatenate([np.zeros(90), np.ones(10)])
    root = grow(inputs(a=values), [NO_CHANGE] * 94 + [INCREASE] * 6)
    assert root.no.counts == (0, 4, 6)
    assert root.no.label == INCREASE
    shifted = [NO_CHANGE] * 90 + [NO_CHANGE] * 7 + [INCREASE] * 3
    assert grow(inputs(a=values), shifted).no.label == INCREASE


def test_grow_skips_launches_without_a_label():
    assert grow(inputs(a=[0, 0, 1, 1, 5]), [NO_CHANGE] * 2 + [DECREASE] * 2 + [None]).total == 4


def test_questions_say_where_unknown_values_go():
    data, labels = inputs(a=[0, 0, 0, 5, 5, 5, NAN, NAN]), [NO_CHANGE] * 3 + [DECREASE] * 3
    root = grow(data, labels + [DECREASE] * 2)
    assert root.unknown is False
    assert questions(root) == ("a ≤ 2.5", "a > 2.5 or not measured")
    root = grow(data, labels + [NO_CHANGE] * 2)
    assert questions(root) == ("a ≤ 2.5 or not measured", "a > 2.5")


def inner(node):
    if node.yes is not None:
        yield node
        yield from inner(node.yes)
        yield from inner(node.no)


def test_grow_removes_questions_whose_leaves_agree():
    labels = [NO_CHANGE] * 20 + [DECREASE] * 20
    labels[5] = DECREASE
    for node in inner(grow(inputs(a=np.arange(40.0)), labels)):
        if node.yes.yes is None and node.no.yes is None:
            assert node.yes.label != node.no.label


@pytest.mark.parametrize(
    ("data", "labels"),
    [
        (inputs(a=[1, 2, 3]), [DECREASE] * 3),
        (inputs(a=[1, 2, 3]), [None] * 3),
        (inputs(a=[1, 2, 3]), [DECREASE, None, None]),
        (inputs(a=[NAN, NAN]), [DECREASE, INCREASE]),
        (Inputs((), np.zeros((2, 0))), [DECREASE, INCREASE]),
        (Inputs((), np.zeros((0, 0))), []),
    ],
)
def test_grow_returns_none_without_inputs_or_different_labels(data, labels):
    assert grow(data, labels) is None


def test_constant_inputs_leave_one_leaf():
    root = grow(inputs(a=[1, 1, 1]), [DECREASE, INCREASE, INCREASE])
    assert root.yes is None and root.depth() == 0
    assert describe(root).startswith("→ ")


def test_grow_accepts_values_beyond_float32():
    root = grow(inputs(a=[1, 2, 1e300, float("inf")]), [NO_CHANGE] * 2 + [DECREASE] * 2)
    assert root.total == 4


def test_describe_escapes_names():
    node = TreeNode((1, 0, 0), Label.DECREASE)
    root = TreeNode((2, 0, 0), Label.DECREASE, EVIL, 1.0, node, node)
    assert describe(root).count("\n") == 3
    assert "\x1b" not in describe(root)
    assert "\u202e" not in describe(root)

"""Taking some of the examples."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from learnable import examples_of

from tunedb.models.dataset import Group


def make_examples(sizes):
    """Return examples with these numbers of rows; each row names its program."""
    n = len(sizes)
    owner = np.repeat(np.arange(n), sizes)
    rows = np.stack([owner, np.arange(len(owner))], axis=1)
    made = examples_of(rows, sizes, np.arange(n) % 2, 1 / np.linspace(1, 2, n))
    return replace(made, groups=(Group(1, 1, b"t", ""), Group(0, 1, b"t", "")))


@given(st.data())
def test_take_keeps_each_program_with_its_rows(data):
    sizes = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=12))
    examples = make_examples(sizes)
    chosen = data.draw(st.lists(st.sampled_from(range(len(sizes))), unique=True))
    taken = examples.take(np.array(chosen, np.int64))
    assert taken.program_ids.tolist() == [100 + i for i in sorted(chosen)]
    assert taken.sizes.tolist() == [sizes[i] for i in sorted(chosen)]
    parts = np.split(examples.rows, examples.starts[1:-1])
    expected = [examples.rows[:0], *(parts[i] for i in sorted(chosen))]
    assert np.array_equal(taken.rows, np.concatenate(expected))
    mask = np.isin(np.arange(len(sizes)), chosen)
    assert np.array_equal(examples.take(mask).rows, taken.rows)


def test_the_workload_of_a_program_is_that_of_its_group():
    examples = make_examples([1, 1, 1])
    assert examples.workload.tolist() == [1, 0, 1]
    assert examples.take([0, 2]).workload.tolist() == [1, 1]
    assert len(examples.take([])) == 0

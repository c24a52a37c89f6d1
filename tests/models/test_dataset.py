import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from learnable import examples_of


@given(st.data())
def test_take_keeps_each_program_with_its_rows(data):
    sizes = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=12))
    n = len(sizes)
    owner = np.repeat(np.arange(n), sizes)
    rows = np.stack([owner, np.arange(len(owner))], axis=1)
    examples = examples_of(rows, sizes, np.arange(n) % 2, 1 / np.linspace(1, 2, n))
    chosen = data.draw(st.lists(st.sampled_from(range(n)), unique=True))
    taken = examples.take(np.array(chosen, np.int64))
    assert taken.program_ids.tolist() == [100 + i for i in sorted(chosen)]
    assert taken.sizes.tolist() == [sizes[i] for i in sorted(chosen)]
    parts = np.split(examples.rows, examples.starts[1:-1])
    expected = [examples.rows[:0], *(parts[i] for i in sorted(chosen))]
    assert np.array_equal(taken.rows, np.concatenate(expected))
    assert np.array_equal(examples.take(np.isin(np.arange(n), chosen)).rows, taken.rows)

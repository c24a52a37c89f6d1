import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from learnable import examples_of
from raising import raises_line

from tunedb.errors import UsageError
from tunedb.models.base import recipe_part
from tunedb.models.dataset import ORIGINS
from tunedb.records import Origin


def make_examples(groups):
    """Return examples: for each group the throughput of its trials, 0 for failures."""
    sizes = [len(group) for group in groups]
    n = sum(sizes)
    group = np.repeat(np.arange(len(groups)), sizes)
    return examples_of(np.zeros((n, 1)), np.ones(n, int), group, np.concatenate(groups))


def choose(choice, examples, seed=0):
    policy, argument = recipe_part("training set", choice)
    return policy.choose(examples, argument, seed)


def of_group(examples, chosen):
    """Return how many programs of each group were chosen."""
    return np.bincount(examples.group[chosen], minlength=len(examples.groups)).tolist()


EXAMPLES = make_examples([[1.0, 0.5, 0.0], [0.1, 1.0]])


def test_all_chooses_every_program_and_rejects_arguments():
    assert choose("all", EXAMPLES).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(UsageError, match="takes no argument, got '3'"):
        choose("all:3", EXAMPLES)


def test_first_chooses_the_first_trials_of_each_group():
    assert choose("first:2", EXAMPLES).tolist() == [0, 1, 3, 4]
    long = make_examples([np.linspace(0.1, 1, 70), [1.0]])
    assert choose("first", long).tolist() == [*range(64), 70]


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        *(("first", text) for text in ("0", "-1", "x", "1.5", "²", "9" * 30, " 3", "3,4")),
        ("diverse", "0"),
    ],
)
def test_first_and_diverse_reject_invalid_numbers(name, argument):
    with raises_line(UsageError, match=f"training set '{name}:"):
        choose(f"{name}:{argument}", EXAMPLES)


def with_origins(*origins):
    numbers = [ORIGINS.index(origin) for origin in origins]
    return replace(EXAMPLES, origins=np.array(numbers, np.int8))


def test_origin_chooses_programs_by_origin():
    r, m, p, w, u = Origin.RANDOM, Origin.MUTATED, Origin.MEASURED, Origin.WARM, Origin.UNKNOWN
    examples = with_origins(r, m, w, p, u)
    assert choose("origin:random", examples).tolist() == [0]
    assert choose("origin:random,warm", examples).tolist() == [0, 2]
    assert choose("origin:random, unknown", examples).tolist() == [0, 4]
    # The three sources of the document.
    assert choose("origin", examples).tolist() == [0, 1, 3]


def test_origin_rejects_unknown_origins_and_those_without_programs():
    words = "no origin 'chosen'; there are: unknown, random, mutated, crossed, warm, measured"
    with pytest.raises(UsageError, match=words):
        choose("origin:random,chosen", EXAMPLES)
    examples = with_origins(*[Origin.WARM] * 4, Origin.RANDOM)
    with pytest.raises(UsageError, match="has the origin mutated; there are: random, warm"):
        choose("origin:mutated", examples)


THROUGHPUTS = st.sampled_from([0.0, 0.0625, 0.125, 0.25, 0.5, 1.0])
GROUPS = st.lists(st.lists(THROUGHPUTS, min_size=1, max_size=40), min_size=1, max_size=6)


@given(GROUPS, st.integers(1, 120), st.integers(0, 3))
def test_diverse_chooses_equally_many_programs_of_each_group_and_stratum(groups, number, seed):
    """Strata are failures, and levels that are equally wide in the square root of throughput.

    Places are as equal as sizes allow: none has two more than one that has more to give.
    """
    examples = make_examples(groups)
    chosen = choose(f"diverse:{number}", examples, seed)
    assert len(chosen) == min(number, len(examples))
    assert (np.diff(chosen) > 0).all()
    assert np.array_equal(chosen, choose(f"diverse:{number}", examples, seed))
    taken = of_group(examples, chosen)
    assert all(max(taken) <= n + 1 for n, one in zip(taken, groups, strict=True) if n < len(one))
    level = [min(math.floor(8 * math.sqrt(t)), 7) if t else 8 for t in examples.throughput]
    for index in range(len(groups)):
        mine = examples.group == index
        strata = [np.flatnonzero(mine & (np.array(level) == one)) for one in range(9)]
        taken = [np.isin(stratum, chosen).sum() for stratum in strata]
        for count, stratum in zip(taken, strata, strict=True):
            assert count == len(stratum) or max(taken) <= count + 1


def test_diverse_prefers_early_trials():
    """Late in a search nearly all programs are good."""
    early, late = np.linspace(0.01, 0.9, 128), np.full(2000, 0.95)
    examples = make_examples([[*early, *late]] * 3)
    chosen = choose("diverse:300", examples)
    assert of_group(examples, chosen) == [100, 100, 100]
    assert examples.trials[chosen].max() < 128
    # All 128 of each are too few for 400, the first 256 are not.
    chosen = choose("diverse:400", examples)
    assert len(chosen) == 400
    assert 128 <= examples.trials[chosen].max() < 256


def test_diverse_draws_other_programs_for_each_seed():
    examples = make_examples([np.linspace(0.1, 1, 200)] * 3)
    assert len({tuple(choose("diverse:30", examples, seed)) for seed in range(4)}) == 4


def test_diverse_accepts_groups_with_only_late_trials_or_failures():
    examples = make_examples([np.linspace(0.1, 1, 1000)]).take(np.arange(900, 1000))
    assert len(choose("diverse:10", examples)) == 10
    examples = make_examples([[0.0] * 10, [0.0, 1.0]])
    assert of_group(examples, choose("diverse:4", examples)) == [2, 2]
    assert choose("diverse", examples).tolist() == list(range(12))

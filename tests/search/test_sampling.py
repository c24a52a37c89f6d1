"""Random programs that are drawn without TVM."""

import random
from collections import Counter
from math import prod

from hypothesis import given
from hypothesis import strategies as st

from tunedb.search.prior import TilePrior
from tunedb.search.sampling import decide, draw_tiles
from tunedb.search.tilings import MOST_LISTED, draw_tiling, tilings


def drawn(template, seed, locations=None):
    """Return a program of a template with all decisions drawn."""
    return decide(template.with_decisions({}), template, random.Random(seed), locations or {})


def test_every_decision_is_drawn_within_its_bounds_unless_it_is_given(traces):
    template = traces.matmul(i=(8, 4, 2, 2), k=(1, 1))
    programs = [drawn(template, seed) for seed in range(50)]
    for program in programs:
        assert program.decisions.keys() == template.decisions.keys()
        for number, tile in program.tiles.items():
            assert prod(tile) == prod(template.tiles[number])
            assert tile[-1] <= template.instructions[number].attrs[1]
    assert len(set(programs)) > 40
    number = min(template.tiles)
    fixed = template.with_decisions({number: [1, 1, 128, 1]})
    assert decide(fixed, template, random.Random(1), {}).decisions[number] == [1, 1, 128, 1]


def test_categories_are_drawn_with_probabilities_of_sketch(traces):
    template = traces.gpu(fetch=1)
    number = max(template.decisions)
    weights = template.instructions[number].attrs[1]
    counts = Counter(drawn(template, seed).decisions[number] for seed in range(2000))
    for category, weight in enumerate(weights):
        assert abs(counts[category] / 2000 - weight / sum(weights)) < 0.05


def test_compute_locations_are_drawn_from_legal_ones(traces):
    template = traces.conv()
    number = max(template.decisions)
    places = {drawn(template, seed, {number: [-1, 2, 5]}).decisions[number] for seed in range(50)}
    assert places == {-1, 2, 5}
    assert drawn(template, 0).decisions[number] == template.decisions[number]


def test_draw_tiles_prefers_the_tile_that_the_prior_learnt(traces):
    template = traces.matmul(i=(8, 4, 2, 2), k=(1, 1))
    first = min(template.tiles)
    prior = TilePrior.from_drafts([template.with_decision(first, [1, 1, 8, 16])], [1])
    programs = [draw_tiles(template, random.Random(seed), prior) for seed in range(300)]
    counts = Counter(tuple(program.decisions[first]) for program in programs)
    assert counts.most_common(1)[0][0] == (1, 1, 8, 16)


@given(st.integers(1, 2**14), st.integers(1, 5), st.sampled_from([None, 0, 1, 16]), st.randoms())
def test_draw_tiling_returns_one_of_all_tilings(extent, levels, innermost, rng):
    tiling = draw_tiling(extent, levels, innermost, rng)
    every = tilings(extent, levels, innermost, rng)
    if not every:
        assert tiling == (extent,)
    elif len(every) < MOST_LISTED // 2:
        assert tiling in every
    else:
        assert prod(tiling) == extent
        assert len(tiling) == levels
        assert not innermost or tiling[-1] <= innermost

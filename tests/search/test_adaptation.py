"""Adaptation of programs of one workload to another one."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunedb.errors import FormatError
from tunedb.programs.metaschedule.trace import split_trace
from tunedb.search.adaptation import adapt, nearest_template
from tunedb.search.draft import Draft

tiles4 = st.lists(st.sampled_from([1, 2, 3, 4, 7, 8, 16]), min_size=4, max_size=4)
tiles2 = st.lists(st.sampled_from([1, 2, 3, 4, 7, 8, 16]), min_size=2, max_size=2)


def tiles(draft):
    """Return the decided tiles of a draft, in their order."""
    return [one for _, one in sorted(draft.decisions.items()) if isinstance(one, list)]


def category(draft):
    """Return the value of the first decided category."""
    number = min(n for n in draft.decisions if draft.instructions[n].kind == "SampleCategorical")
    return draft.instructions[number].attrs[0][draft.decisions[number]]


@given(tiles4, tiles4, tiles2, tiles4, tiles4, tiles2, st.booleans())
def test_adapt_fits_tiles_to_new_extents_and_keeps_fitting_ones(
    traces, i, j, k, i2, j2, k2, cached
):
    donor = traces.matmul(i, j, k, unroll=2, cached=cached)
    template = traces.matmul(i2, j2, k2, cached=cached)
    made = adapt(donor, template)
    assert made.kept == 1 and made.draft.instructions == template.instructions
    for found, own, of in zip(tiles(made.draft), (i2, j2, k2), (i, j, k), strict=True):
        assert math.prod(found) == math.prod(own)
        if math.prod(own) == math.prod(of):
            assert found == of
    assert category(made.draft) == 64


def test_adapt_keeps_program_on_its_own_template_unchanged(traces):
    for program in (
        traces.matmul(unroll=3, cached=True),
        traces.conv(place=-1, unroll=1),
        traces.softmax((16, 4), (8, 8), places=(-1, 2)),
        traces.gpu(threads=3, fetch=1),
    ):
        made = adapt(program, program)
        assert (made.draft, made.kept) == (program, 1)


def test_adapt_ignores_names_of_blocks_and_additional_stages(traces):
    trace = traces.matmul((8, 4, 2, 2), unroll=1).trace()
    renamed = replace(trace, sketch=trace.sketch.replace(b'"C"', b'"T_matmul_NT"'))
    assert renamed != trace
    for donor in (Draft.from_trace(renamed), traces.matmul((8, 4, 2, 2), cached=True)):
        made = adapt(donor, traces.matmul())
        assert made.kept == 1 and tiles(made.draft)[0] == [4, 4, 2, 2]


def test_adapt_keeps_compute_locations(traces):
    made = adapt(traces.conv(place=-1), traces.conv((8, 8), place=2))
    assert made.kept == 1 and made.draft.decisions[max(made.draft.decisions)] == -1


def test_adapt_keeps_categories_by_value(traces):
    def made(choices, decision):
        maker = traces.Maker()
        root = maker.block("root")
        maker.annotate(root, "unroll_explicit", choices, decision)
        maker.tile(maker.add("GetLoops", [root], (), "l")[0], (4, 4))
        return maker.draft()

    donor = made([0, 16, 64, 512], 2)
    found = adapt(donor, made([0, 64, 1024], 0))
    assert found.kept == 1 and category(found.draft) == 64
    lost = adapt(donor, made([0, 16, 1024], 0))
    assert lost.kept == 0.5 and [*lost.draft.decisions.values()] == [[4, 4]]


def test_adapt_matches_categories_by_their_annotation(traces):
    def made(*keys):
        maker = traces.Maker()
        root = maker.block("root")
        for key in keys:
            choices = {"cooperative_fetch": [1, 2, 4], "unroll_explicit": [0, 2, 64]}[key]
            maker.annotate(root, key, choices, 1)
        return maker.draft()

    fetch, unroll = "cooperative_fetch", "unroll_explicit"
    found = adapt(made(fetch), made(unroll, fetch))
    assert (found.draft.decisions, found.kept) == ({3: 1}, 0.5)
    assert adapt(made(fetch), made(unroll)) is None


def test_adapt_leaves_decisions_without_counterpart_undecided(traces):
    """The donor factors the first reduction alone, the template both."""
    template = traces.softmax((32, 4), (32, 4))
    made = adapt(traces.softmax((16, 4)), template)
    assert 0 < made.kept < 1
    assert set(made.draft.decisions) < set(template.decisions)
    assert tiles(made.draft) == [[32, 4]]


def test_adapt_does_not_transfer_tiles_of_other_loops(traces):
    def made(which):
        maker = traces.Maker()
        loops = maker.add("GetLoops", [maker.block("C")], (), "lll")
        maker.tile(loops[which], (4, 4))
        maker.annotate(maker.block("root"), "unroll_explicit", [0, 1], 0)
        return maker.draft()

    found = adapt(made(0), made(1))
    assert (found.kept, tiles(found.draft)) == (0.5, [])


def test_adapt_leaves_tile_of_unknown_extent_undecided(traces):
    template = traces.matmul()
    bare = template.without_decision(min(template.decisions))
    made = adapt(traces.matmul((8, 8, 1, 1)), bare)
    assert tiles(made.draft) == tiles(template)[1:]


def test_adapt_bounds_innermost_factor_by_template(traces):
    def made(tile, most):
        maker = traces.Maker()
        maker.tile(maker.add("GetLoops", [maker.block("C")], (), "l")[0], tile, most)
        return maker.draft()

    assert tiles(adapt(made((1, 64), 64), made((8, 8), 16)).draft) == [[4, 16]]


def test_nearest_template_returns_the_one_with_the_same_steps(traces):
    plain, cached = traces.matmul(), traces.matmul(cached=True)
    templates = [plain, cached, traces.softmax()]
    assert nearest_template(traces.matmul((1, 1, 8, 8)), templates) is plain
    assert nearest_template(traces.matmul((1, 1, 8, 8), cached=True), templates) is cached
    assert nearest_template(plain, []) is None


def test_adapt_returns_none_for_empty_traces(traces):
    nothing = Draft.from_trace(split_trace([], []))
    assert adapt(nothing, traces.matmul()) is None
    assert adapt(traces.matmul(), nothing) is None
    assert nearest_template(nothing, [nothing]) is nothing


@pytest.mark.parametrize(
    "decision",
    [[0, 4, 4, 4], [-4, 4, 4, 1], [64], [], [2**70, 1, 1, 1], -1, 4, [4.0, 4, 2, 2], None],
)
def test_adapt_repairs_or_drops_invalid_decisions(traces, decision):
    donor = traces.matmul()
    tile, category = min(donor.decisions), max(donor.decisions)
    odd = Draft(donor.instructions, {**donor.decisions, tile: decision})
    found = adapt(odd, donor).draft
    assert found.decisions.get(tile) in (None, [64, 1, 1, 1])
    odd = Draft(donor.instructions, {**donor.decisions, category: decision})
    assert category not in adapt(odd, donor).draft.decisions


@given(st.data())
def test_adapt_returns_none_or_valid_draft_for_shuffled_traces(traces, data):
    makers = [traces.matmul(cached=True), traces.conv(), traces.softmax((16, 4), (8, 8))]
    donor, template = data.draw(st.permutations(makers))[:2]
    steps = list(donor.instructions)
    random.Random(data.draw(st.integers(0, 99))).shuffle(steps)
    steps = steps[: data.draw(st.integers(0, len(steps)))]
    odd = Draft(
        tuple(steps),
        {n: data.draw(st.sampled_from([0, 3, [4, 4], [1, 2, 3, 4]])) for n in range(len(steps))},
    )
    for one, other in ((odd, template), (template, odd)):
        try:
            made = adapt(one, other)
        except FormatError:  # it has no stored form
            continue
        assert made is None or 0 < made.kept <= 1
        assert made is None or made.draft.instructions == other.instructions

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from observing import observe

from tunedb import limits
from tunedb.advisor.legality import fits, legal_blocks, next_block
from tunedb.advisor.observations import Label
from tunedb.formats.gpu.t1 import t1_input
from tunedb.programs.thread_blocks import dimensions

UP, STAY, DOWN = Label.INCREASE, Label.NO_CHANGE, Label.DECREASE


def make_t1(values="[32, 64, 96, 128]", conditions=(), size=None, **more):
    parameters = {"x": values, "tile": "[1, 2]", **more}
    space = {
        "TuningParameters": [{"Name": name, "Values": text} for name, text in parameters.items()],
        "Conditions": [{"Expression": text} for text in conditions],
    }
    kernel = {"KernelName": "k", "LocalSize": size or {"X": "x"}}
    return t1_input({"ConfigurationSpace": space, "KernelSpecification": kernel})


def test_legal_blocks_are_powers_of_two_in_dimensions_of_the_original():
    assert legal_blocks(observe(256)) == [(2**i, 1, 1) for i in range(11)]
    plane = legal_blocks(observe(block=(16, 16, 1)))
    assert (1024, 1, 1) not in plane
    assert (512, 2, 1) in plane
    assert {dimensions(block) for block in plane} == {2}
    assert {dimensions(block) for block in legal_blocks(observe(block=(4, 4, 4)))} == {3}


BLOCKS = st.tuples(st.integers(1, 64), st.integers(1, 16), st.integers(1, 4)).filter(
    lambda block: math.prod(block) <= 1024
)


@given(BLOCKS, st.sampled_from([None, 32, 128, 255]))
def test_legal_blocks_fit_the_device(block, registers):
    run = observe(block=block, registers=registers)
    found = legal_blocks(run)
    assert block in found
    assert found == sorted(found, key=lambda b: (math.prod(b), b))
    for other in found:
        assert other == block or fits(run, other)
        assert math.prod(other) <= 1024
        assert other[2] <= 64
        assert other == block or dimensions(other) == dimensions(block)


def test_registers_and_shared_memory_limit_legal_blocks():
    # 65,536 registers: 128 of each of 512 threads.
    assert legal_blocks(observe(64, registers=128))[-1] == (512, 1, 1)
    assert not fits(observe(64, static_shared=65 * 1024), (32, 1, 1))
    unknown = observe(64, device="Testing", compute_capability=None, registers=255)
    assert legal_blocks(unknown)[-1] == (1024, 1, 1)
    assert not fits(unknown, (2048, 1, 1))
    assert not fits(unknown, (1, 1, 128))


AMD = {"device": "MI250X", "compute_capability": None}


@pytest.mark.parametrize(
    ("block", "label", "fields", "seen", "following"),
    [
        ((64, 1, 1), UP, {}, [], (128, 1, 1)),
        ((64, 1, 1), DOWN, {}, [], (32, 1, 1)),
        ((64, 1, 1), STAY, {}, [], None),
        ((1024, 1, 1), UP, {}, [], None),
        ((1, 1, 1), DOWN, {}, [], None),
        ((96, 1, 1), UP, {}, [], (128, 1, 1)),
        ((96, 1, 1), DOWN, {}, [], (64, 1, 1)),
        # The nearest shape; of two the wider one.
        ((16, 16, 1), UP, {}, [], (32, 16, 1)),
        ((16, 16, 1), DOWN, {}, [], (16, 8, 1)),
        ((8, 8, 4), UP, {}, [], (16, 8, 4)),
        # Measured blocks come first.
        ((64, 1, 1), UP, {}, [(256, 1, 1), (512, 1, 1)], (256, 1, 1)),
        ((64, 1, 1), UP, {}, [(16, 1, 1)], (128, 1, 1)),
        ((64, 1, 1), DOWN, {}, [(16, 1, 1)], (16, 1, 1)),
        # They count whatever their shape and the tables of limits.
        ((64, 1, 1), UP, {"registers": 255}, [(64, 16, 1)], (64, 16, 1)),
        # Near multiples of the warp come before nearer blocks.
        ((64, 1, 1), UP, {}, [(72, 1, 1), (128, 1, 1)], (128, 1, 1)),
        ((64, 1, 1), UP, {}, [(72, 1, 1), (256, 1, 1)], (72, 1, 1)),
        ((64, 1, 1), UP, AMD, [(96, 1, 1), (128, 1, 1)], (128, 1, 1)),
        ((64, 1, 1), UP, {}, [(96, 1, 1), (128, 1, 1)], (96, 1, 1)),
    ],
)
def test_next_block_is_nearest_in_the_direction_of_the_label(block, label, fields, seen, following):
    assert next_block(observe(block=block, **fields), label, seen=seen) == following


def test_unknown_block_is_taken_for_a_one_dimensional_one():
    assert next_block(observe(64, block=None), UP) == (128, 1, 1)


def test_t1_input_determines_legal_blocks_unless_its_parameters_are_others():
    run = observe(64, parameters={"x": 64, "tile": 2})
    t1 = make_t1()
    assert legal_blocks(run, t1=t1) == [(32, 1, 1), (64, 1, 1), (96, 1, 1), (128, 1, 1)]
    assert next_block(run, UP, t1=t1) == (96, 1, 1)
    odd = make_t1(conditions=["x % 64 == 0 or tile == 1"])
    assert next_block(run, UP, t1=odd) == (128, 1, 1)
    assert next_block(run, DOWN, t1=odd) is None
    # A measured block is legal too.
    assert next_block(run, DOWN, t1=odd, seen=[(32, 1, 1)]) == (32, 1, 1)
    other = observe(64, parameters={"other": 64})
    assert legal_blocks(other, t1=t1) == legal_blocks(other)


def test_blocks_of_t1_input_are_computed_from_expressions():
    run = observe(block=(32, 4, 1), parameters={"x": 2, "tile": 1, "y": 4})
    t1 = make_t1("[1, 2]", size={"X": "16 * x", "Y": "y"}, y="[2, 4]")
    found = legal_blocks(run, t1=t1)
    assert found == [(16, 2, 1), (16, 4, 1), (32, 2, 1), (32, 4, 1)]


def test_device_and_conditions_limit_blocks_of_t1_input():
    run = observe(512, parameters={"x": 512, "tile": 1})
    assert legal_blocks(run, t1=make_t1("[512, 1024, 2048]")) == [(512, 1, 1), (1024, 1, 1)]
    # A condition that divides by zero does not hold.
    run = observe(64, parameters={"x": 64, "tile": 1})
    t1 = make_t1("[32, 64, 128]", ["128 // (x - 128) < 0"])
    assert legal_blocks(run, t1=t1) == [(32, 1, 1), (64, 1, 1)]


def test_t1_input_with_too_many_blocks_is_ignored():
    run = observe(64, parameters={"x": 64, "tile": 1, "y": 1})
    assert limits.MAX_STATED_BLOCKS == 64 * 256

    def blocks(y):
        t1 = make_t1("list(range(1, 65))", size={"X": "x", "Y": "y"}, y=f"list(range(1, {y + 1}))")
        return legal_blocks(run, t1=t1)

    assert (63, 3, 1) in blocks(256)
    assert blocks(257) == legal_blocks(run)


@given(BLOCKS, st.sampled_from([UP, DOWN]), st.lists(BLOCKS, max_size=4))
def test_next_block_is_legal_and_lies_in_its_direction(block, label, seen):
    run = observe(block=block)
    found = next_block(run, label, seen=seen)
    if found is None:
        others = [math.prod(other) for other in legal_blocks(run, seen=seen)]
        extreme = max(others) if label == UP else min(others)
        assert extreme == run.threads
    else:
        assert found in legal_blocks(run, seen=seen)
        assert (math.prod(found) > run.threads) == (label == UP)
        assert math.prod(found) != run.threads

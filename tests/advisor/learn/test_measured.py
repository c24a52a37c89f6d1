import numpy as np
import pytest
from made_kernels import launch

from tunedb.advisor.labels import DECREASE, INCREASE, NO_CHANGE
from tunedb.advisor.learn.measured import NEVER, TOLERANCE, Measured
from tunedb.advisor.learn.regret import one_step

CAPABILITIES = {"NVIDIA TITAN RTX": "7.5", "V100": "7.0", "A100": "8.0", "MI250X": None}


def pair(device, ratio, tile=0, kernel="k"):
    """Return a slice of two blocks: 64 threads are `ratio` times as fast as 128."""
    program = f"{kernel} {tile}".encode()
    given = {"device": device, "compute_capability": CAPABILITIES.get(device, "7.5")}
    given |= {"program": program, "slice": program + device.encode()}
    return [launch(kernel, tile, n, s, **given) for n, s in ((64, 1.0), (128, ratio))]


def scores(rows, other):
    return Measured.from_observations([*rows, *other]).scores(rows, one_step(rows))


@pytest.mark.parametrize(
    ("devices", "weights"),
    [
        (["NVIDIA TITAN RTX"], [1]),
        (["NVIDIA TITAN RTX", "V100"], [1, 0.5]),
        (["V100", "A100", "MI250X"], [0.5, 0.25, 0.1]),
    ],
)
def test_similar_devices_weigh_more(devices, weights):
    own = pair("NVIDIA GeForce RTX 2080 Ti", 9.0)
    ratios = [2.0, 3.0, 5.0][: len(devices)]
    pairs = [pair(device, ratio) for device, ratio in zip(devices, ratios, strict=True)]
    found, table = scores(own, [one for several in pairs for one in several])
    saved = np.average(np.log(ratios), weights=weights)
    assert found[1, DECREASE] == pytest.approx(saved)
    assert found[0, INCREASE] == pytest.approx(-saved)
    assert found[0, DECREASE] == found[1, INCREASE] == NEVER
    assert (found[:, NO_CHANGE] == TOLERANCE).all() and table.tolist() == [0, 0]


def test_the_same_program_comes_before_others_of_the_kernel():
    own = pair("NVIDIA GeForce RTX 2080 Ti", 1.0)
    others = [*pair("V100", 4.0, tile=1), *pair("V100", 9.0, tile=2)]
    found, table = scores(own, others)
    assert found[1, DECREASE] == pytest.approx(np.log(36) / 2) and table.tolist() == [1, 1]
    found, table = scores(own, [*others, *pair("V100", 2.0)])
    assert found[1, DECREASE] == pytest.approx(np.log(2)) and table.tolist() == [0, 0]
    # Neither another kernel counts, nor the same device by another name.
    for others in (pair("V100", 4.0, kernel="other"), pair("RTX_2080_Ti", 2.0)):
        assert scores(own, others)[1].tolist() == [-1, -1]


def test_blocks_returns_blocks_that_ran_on_other_devices():
    (one, _) = pair("NVIDIA GeForce RTX 2080 Ti", 1.0)
    known = Measured.from_observations([one, *pair("V100", 4.0), *pair("V100", 4.0, tile=1)])
    assert known.blocks(one) == [(64, 1, 1), (128, 1, 1)]
    assert Measured.from_observations([one]).blocks(one) == []

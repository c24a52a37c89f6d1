"""Made-up kernels whose best block is known."""

import hashlib
import math

import numpy as np
from observing import observe

SIZES = (32, 64, 128, 256, 512, 1024)


def launch(kernel, tile, threads, seconds, *, block=None, counters=None, **given):
    """Return an observation; each tile is a slice of its own."""
    known = {
        "kernel": kernel,
        "workload": kernel,
        "slice": hashlib.blake2b(f"{kernel} {tile}".encode(), digest_size=16).digest(),
        "block": block or (threads, 1, 1),
        "grid": (2**20 // threads, 1, 1),
        "registers": 32,
        "static_shared": 0,
        "dynamic_shared": 0,
        "counters": counters or {},
    }
    return observe(threads, seconds, **(known | given))


def kernel(name, best, *, tiles=6, strength=0.2, noise=0.0, sizes=SIZES, seed=0, counters=True):
    """Return a kernel whose run time grows with the distance from its best number of threads."""
    rng = np.random.default_rng(seed)
    found = []
    for tile in range(tiles):
        for threads in sizes:
            apart = abs(math.log2(threads / best))
            seconds = 1e-3 * (1 + tile) * math.exp(strength * apart + noise * rng.normal())
            values = {
                "inst_executed": 1e6 * (1 + tile),
                "issue_utilization": 90 - 10 * apart + rng.normal(),
                "dram_utilization": float(rng.uniform(5, 60)),
                "useless": 1.0,
            }
            counted = values if counters else None
            found.append(launch(name, tile, threads, seconds, counters=counted))
    return found


def kernels(*, bests=(128, 128, 128), **given):
    """Return as many kernels as best blocks, at most three."""
    named = zip(("saxpy_kernel", "Stencil", "reduceSum"), bests, strict=False)
    made = [kernel(name, best, seed=i, **given) for i, (name, best) in enumerate(named)]
    return [one for several in made for one in several]

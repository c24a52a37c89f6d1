"""A dataset with families, shapes and machines, for splits and evaluations."""

from dataclasses import replace

import numpy as np
from learnable import digest_of, learnable

from tunedb.models.dataset import ExampleWorkload, Group


def make_workload(number, family="matmul", shapes=((64, 64), (64, 64)), flops=None):
    return ExampleWorkload(
        number, digest_of(number), f"{family}_{number}", family, tuple(shapes), flops
    )


def matmul_of(number, size=None):
    """Return a matmul of a shape of its own; workloads of equal size are of one class."""
    size = 2 ** (number + 1) if size is None else size
    return make_workload(number, "matmul", ((size, 128), (128, 32)), flops=float(size) * 4096)


def conv_of(number):
    return make_workload(number, "conv2d", ((1, 2 ** (number + 1), 28, 28), (64, 8, 3, 3)))


#: Five workloads of each of two families, no two alike.
WORKLOADS = tuple(matmul_of(i) for i in range(5)) + tuple(conv_of(i) for i in range(5, 10))


def judged(workloads=WORKLOADS, programs=20, *, machines=1, seed=0, **options):
    """Return learnable examples of some workloads, in the order of their digests.

    On several machines each workload has the same programs, so that ids are shared.
    """
    order = sorted(range(len(workloads)), key=lambda i: workloads[i].digest)
    count = len(order)
    found = learnable(count * machines, programs, seed=seed, **options)
    groups = tuple(
        Group(number // machines, 1, b"t" * 16, str(number % machines) if machines > 1 else "")
        for number in range(count * machines)
    )
    place = (
        np.arange(programs)[None] + programs * (np.arange(count * machines) // machines)[:, None]
    )
    return replace(
        found,
        groups=groups,
        workloads=tuple(workloads[i] for i in order),
        program_ids=1000 + place.ravel(),
    )

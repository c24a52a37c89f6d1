"""A dataset without a database, whose features determine how fast programs are."""

import hashlib
from dataclasses import replace

import numpy as np

from tunedb.models.base import recipe_part
from tunedb.models.boosting import Boosting, Matrix, ObjectiveGradients, parameters
from tunedb.models.dataset import FAILURES, Dataset, ExampleWorkload, Group
from tunedb.models.recipe import Recipe
from tunedb.records import FailureKind

TIMEOUT = FAILURES.index(FailureKind.TIMEOUT)


def digest_of(number):
    return hashlib.blake2b(b"%d" % number, digest_size=16).digest()


def examples_of(rows, sizes, group, throughput, *, columns=None, digests=None):
    """Return examples of one target with given rows; a throughput of 0 is a timeout.

    Workload i is that of group i.
    """
    rows = np.asarray(rows, np.float32)
    throughput, group = np.asarray(throughput, float), np.asarray(group, np.int32)
    count, groups = len(throughput), int(group.max(initial=-1)) + 1
    digests = digests or list(map(digest_of, range(groups)))
    failed = throughput == 0
    trials = np.zeros(count, np.int32)
    for one in range(groups):
        trials[group == one] = np.arange((group == one).sum())
    return Dataset(
        feature_set="small",
        version=3,
        columns=columns or tuple(f"c{i}" for i in range(rows.shape[1])),
        rows=rows,
        starts=np.concatenate(([0], np.cumsum(sizes))).astype(np.int64),
        program_ids=np.arange(count) + 100,
        group=group,
        seconds=np.divide(1e-3, throughput, out=np.full(count, np.nan), where=~failed),
        throughput=throughput,
        failures=np.where(failed, TIMEOUT, 0).astype(np.int8),
        trials=trials,
        origins=np.zeros(count, np.int8),
        costs=np.full(count, np.nan),
        cut_short=np.zeros(count, bool),
        groups=tuple(Group(i, 1, b"t" * 16, "") for i in range(groups)),
        workloads=tuple(
            ExampleWorkload(i, d, f"w{i}", None, (), None) for i, d in enumerate(digests)
        ),
        label="median",
        digest=b"d" * 16,
    )


def learnable(workloads=6, programs=40, *, columns=6, rows=(1, 3), failing=8, seed=0):
    """Return examples where the sum of the first two columns over the rows decides.

    Each program has from ``rows[0]`` to ``rows[1]`` rows; every `failing`-th one failed (0: none).
    """
    rng = np.random.default_rng(seed)
    count = workloads * programs
    sizes = rng.integers(rows[0], rows[1], count, endpoint=True)
    features = rng.random((sizes.sum(), columns)).astype(np.float32)
    group = np.repeat(np.arange(workloads), programs)
    owner = np.repeat(np.arange(count), sizes)
    speed = np.exp(2 * np.bincount(owner, features[:, 0] - features[:, 1], count))
    speed *= 1 + rng.random(workloads)[group]
    if failing:
        speed[::failing] = 0
    best = np.zeros(workloads)
    np.maximum.at(best, group, speed)
    return examples_of(features, sizes, group, speed / best[group])


def noisy():
    """Return examples whose labels are mostly noise, so that only the first rounds generalise."""
    examples = learnable(10, 40, failing=0, seed=4)
    noise = np.random.default_rng(5).random(len(examples))
    return replace(examples, throughput=0.2 * examples.throughput + 0.8 * noise)


def quick(**choices):
    """Return a recipe that trains quickly: loss ``throughput``, few rounds, all examples."""
    plain = {"features": "small", "loss": "throughput", "training_set": "all", "rounds": 10}
    plain |= {"patience": 0, "max_depth": 3, "eta": 0.3, "min_child_weight": 1.0}
    return Recipe(**(plain | {"colsample_bytree": 1.0} | choices))


def untrained(examples, *, counts=None, **choices):
    """Return boosting before its first tree, by a quick recipe, and its objective."""
    recipe = quick(**choices)
    loss, argument = recipe_part("loss", recipe.loss)
    objective = loss.objective(examples, argument, 0)
    power = recipe.hessian_power
    gradients = ObjectiveGradients(objective, examples.sizes, hessian_power=power, counts=counts)
    matrix = Matrix.from_rows(examples.rows, examples.starts, threads=1, seed=0)
    return Boosting(matrix, gradients, parameters(recipe, seed=0, threads=1)), objective

"""A small database of programs, with a feature set whose columns determine how fast they are."""

from dataclasses import dataclass

import numpy as np
import orjson
from builders import FOREIGN, OWN, make_session, make_target

from tunedb.features.base import Needs
from tunedb.records import (
    Failure,
    FailureKind,
    Measurement,
    Origin,
    Phase,
    Program,
    Status,
    Trace,
    Workload,
)

#: Programs of each workload that `fill` makes unless told otherwise.
PROGRAMS = 24
_START = 1_700_000_000_000_000
_KINDS = (FailureKind.COMPILE_ERROR, FailureKind.TIMEOUT, FailureKind.RUNTIME_ERROR)
_ORIGINS = (Origin.RANDOM, Origin.MUTATED, Origin.MEASURED)


@dataclass(frozen=True)
class SmallSteps:
    """One to three rows for each program, of its workload's size and its decisions."""

    name: str = "small.steps"
    version: int = 1
    columns: tuple[str, ...] = ("size", "tile", "vector", "noise")
    needs: Needs = Needs.STEPS

    def rows(self, programs):
        return [_rows(program) for program in programs]


SMALL_STEPS = SmallSteps()


def _rows(program):
    """Return the rows of a StoredProgram; the i-th of k is i / k of the last one."""
    tile, vector = orjson.loads(program.trace.decisions)[0][1]
    last = [np.log2(program.signature.flops), tile, vector, (tile * 7 + vector) % 5]
    count = 1 + tile % 3
    parts = np.arange(1, count + 1) / count
    return np.outer(parts, last).astype(np.float32)


def matmul(number):
    """Return a workload of family matmul, 128 x (128 + 64 number) x 256."""
    tensors = [["TENSOR", [128, 256], "float32"], ["TENSOR", [128 + 64 * number, 256], "float32"]]
    body = orjson.dumps(["dense_nopack.x86", [*tensors, None, "float32"], {}])
    return Workload("autotvm-task", body, "dense_nopack.x86")


def conv2d(number):
    """Return a workload of family conv2d, of 16 (number + 1) channels."""
    channels = 16 * (number + 1)
    data = ["TENSOR", [1, channels, 28, 28], "float32"]
    kernel = ["TENSOR", [64, channels, 3, 3], "float32"]
    steps = [[1, 1], [1, 1, 1, 1], [1, 1], "NCHW", "NCHW", "float32"]
    body = orjson.dumps(["conv2d_NCHWc.x86", [data, kernel, *steps], {}])
    return Workload("autotvm-task", body, "conv2d_NCHWc.x86")


#: Six workloads of two families.
WORKLOADS = (*map(matmul, range(3)), *map(conv2d, range(3)))


def make_tiled(workload, number, target=0):
    """Return a program of a workload: tile `number`, vectors of 1, 4, 8 or 16."""
    trace = Trace(b'[["Tile",[],[],["b0"]]]', None, b"[[0,[%d,%d]]]" % (number, _vector(number)))
    return Program(workload, make_target(target) if isinstance(target, int) else target, trace)


def _vector(number):
    return (1, 4, 8, 16)[number % 4]


def seconds_of(number, size=1.0):
    """Return the time of the program with that number: wide vectors and tiles near 12 are fast."""
    return 1e-3 * size * (1 + abs(number - 12) / 4 + 4 / _vector(number))


def measure(program, number, secs, **fields):
    """Return a measurement, the `number`-th of its log; ``secs`` is a FailureKind of a failed one.

    Failed trials took 2 s, others 0.5 s.
    """
    fields.setdefault("measured_at", _START + 1_000_000 * number)
    fields.setdefault("origin", _ORIGINS[number % 3])
    fields.setdefault("occurrence", 0)
    if isinstance(secs, FailureKind):
        failure = Failure(secs, Phase.UNKNOWN, f"it failed: {secs}")
        fields |= {"status": Status.FAILED, "failure": failure, "all_cost": 2.0}
        return Measurement(program, None, **fields)
    fields.setdefault("all_cost", 0.5)
    return Measurement(program, secs, **fields)


def trials(workload, *, count=PROGRAMS, target=0, size=1.0, failing=8, **fields):
    """Return a measurement of each of `count` programs of a workload.

    Every `failing`-th one failed (0 for none), of compile_error, timeout and runtime_error in turn;
    the others have three times, of which the median is :func:`seconds_of`.
    """
    found = []
    for number in range(count):
        program = make_tiled(workload, number, target)
        if failing and number % failing == failing - 1:
            secs = _KINDS[number // failing % 3]
        else:
            time = seconds_of(number, size)
            secs = (time, 0.9 * time, 1.4 * time)
        found.append(measure(program, number, secs, **fields))
    return found


def fill(store, features=SMALL_STEPS):
    """Put into a store the records and rows that fixture `stored` describes."""
    batch = [m for i, one in enumerate(WORKLOADS) for m in trials(one, size=1 + i)]
    # A workload that never worked.
    for number in range(4):
        batch.append(measure(make_tiled(matmul(9), number), number, FailureKind.COMPILE_ERROR))
    first = WORKLOADS[0]
    # Measured again, twice as slow: number 0. Failed after it had worked: number 1. Worked after
    # it had failed: number 7.
    batch += [
        measure(make_tiled(first, 0), 100, (2 * seconds_of(0),)),
        measure(make_tiled(first, 1), 101, FailureKind.TIMEOUT),
        measure(make_tiled(first, 7), 102, (seconds_of(7),)),
    ]
    # A failure of the infrastructure; never run; the sentinel for no time.
    batch += [
        measure(make_tiled(first, 30), 103, FailureKind.INFRASTRUCTURE),
        measure(make_tiled(first, 31), 104, None, status=Status.UNMEASURED, all_cost=None),
        measure(make_tiled(first, 32), 105, (1e10,), status=Status.FAILED),
    ]
    store.records.add(batch, OWN)
    # Two workloads on another target, half as fast; and a record of a foreign source.
    elsewhere = [m for w in (WORKLOADS[0], WORKLOADS[3]) for m in trials(w, target=1, size=2.0)]
    store.records.add(elsewhere, OWN)
    store.records.add([measure(make_tiled(first, 33), 106, (1e-3,))], FOREIGN)
    (taken_back,), _ = store.batches.add([measure(make_tiled(first, 34), 107, (1e-9,))], OWN)
    store.trust.retract([taken_back], "the clock was wrong")
    add_rows(store, features, without={make_tiled(first, 5).digest})


def add_rows(store, features=SMALL_STEPS, without=()):
    """Compute the rows of all programs, but for those with some digests."""
    programs = store.programs.without_features(features)
    able = [p for p in programs if Program(p.workload, p.target, p.trace).digest not in without]
    rows = features.rows(able)
    store.features.add(features, [(p.id, r) for p, r in zip(able, rows, strict=True)])


def sessions_of(workload, factor=1.3, count=PROGRAMS):
    """Return measurements of the same programs in two sessions; the second is slower by a factor.

    Every eighth program failed in both.
    """
    first, second = make_session(0), make_session(1)
    return [
        *trials(workload, count=count, session=first),
        *trials(workload, count=count, session=second, size=factor),
    ]

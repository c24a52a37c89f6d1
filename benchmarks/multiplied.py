"""Measured records of MetaSchedule, multiplied into databases of any size.

The records are random candidates of 24 workloads for a CPU that were measured; each is repeated
with other tile sizes of the same product, so that every program is new and as long as a real one,
and with times that differ by as much as a schedule's do. TVM could not replay all of them. As a
tuning run commits them: with a session, a time of measurement and an origin, one in twenty failed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from tunedb import limits
from tunedb.formats.find import find_logs
from tunedb.formats.importer import import_log
from tunedb.records import (
    Failure,
    FailureKind,
    Measurement,
    Origin,
    Phase,
    Program,
    Session,
    Source,
    Status,
    Trace,
)
from tunedb.storage.store import Store

#: One record in so many failed.
FAILED = 20

#: Tiled loops of programs that are repeated: with fewer there are not enough others.
TILES = 3

#: Records of one session.
PER_SESSION = 10_000

START = 1_700_000_000_000_000
FAILURE = Failure(FailureKind.TIMEOUT, Phase.RUN, "TimeoutError: timed out after 30 s", 30.0)
SOURCE = Source("benchmark")


def measured(folder: Path) -> list[Measurement]:
    """Return the records below a folder that say how long a program of many tiles ran."""
    with Store(":memory:") as store:
        for log in find_logs([folder]):
            import_log(store, log, source=log.name)
        found = [record.measurement for record in store.records.iterate()]
    return [one for one in found if one.run_secs and _tiles(one) >= TILES]


def _tiles(one: Measurement) -> int:
    """Return how many loops of a program are tiled."""
    choices = orjson.loads(one.program.trace.decisions)[0]
    return sum(isinstance(choice[1], list) for choice in choices)


def multiply(
    known: list[Measurement], number: int, seed: int, *, start: int = START
) -> Iterator[Measurement]:
    """Yield records of as many programs, none of which comes twice.

    Parameters
    ----------
    known : list of Measurement
        What is repeated.
    number : int
        How many.
    seed : int
        Others for another one, but for a few.
    start : int
        When the first was measured, in microseconds since 1970; one came each 10 ms.
    """
    rng = random.Random(seed)
    factors: dict[int, list[int]] = {}
    seen: set[int] = set()
    session = Session(f"benchmark-{seed}-0", start, b'{"cores":2,"cpu":"benchmark"}')
    made = 0
    while made < number:
        base = known[rng.randrange(len(known))]
        program = _varied(base.program, rng, factors)
        key = hash((program.workload.digest, program.trace))
        if key in seen:
            continue
        seen.add(key)
        if made % PER_SESSION == 0:
            session = replace(session, key=f"benchmark-{seed}-{made}", started_at=start + made)
        failed = made % FAILED == FAILED - 1
        times = tuple(t * rng.uniform(0.5, 4.0) for t in base.run_secs or ())
        yield Measurement(
            program,
            None if failed else times,
            status=Status.FAILED if failed else Status.OK,
            measured_at=start + made * 10_000,
            session=session,
            origin=Origin.MUTATED,
            args_info=base.args_info,
            failure=FAILURE if failed else None,
        )
        made += 1


def _varied(program: Program, rng: random.Random, factors: dict[int, list[int]]) -> Program:
    """Return a program with other tile sizes of the same products."""
    decisions = orjson.loads(program.trace.decisions)
    for choice in decisions[0]:
        if isinstance(choice[1], list):
            choice[1] = split(choice[1], rng, factors)
    trace = Trace(program.trace.sketch, program.trace.tail, orjson.dumps(decisions))
    return Program(program.workload, program.target, trace)


def split(sizes: list[Any], rng: random.Random, factors: dict[int, list[int]]) -> list[Any]:
    """Return as many numbers with the same product."""
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return sizes
    product = 1
    for size in sizes:
        product *= size
    if product not in factors:
        factors[product] = _primes(product)
    parts = [1] * len(sizes)
    for prime in factors[product]:
        parts[rng.randrange(len(parts))] *= prime
    return parts


def _primes(number: int) -> list[int]:
    found, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            found.append(divisor)
            number //= divisor
        divisor += 1
    return found


def fill(database: Path, records: Iterator[Measurement]) -> int:
    """Add records to a database in batches as an import's; return how many were new."""
    new = 0
    with Store(database) as store:
        while batch := list(islice(records, limits.IMPORT_ROWS)):
            new += sum(store.batches.load(batch, SOURCE))
    return new

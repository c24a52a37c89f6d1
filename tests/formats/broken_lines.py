"""Mutated lines of logs, and a check that a format reads or rejects each of them."""

import random
from collections import Counter

import orjson

from tunedb.errors import FormatError
from tunedb.formats.base import Line, LogFile
from tunedb.records import Source
from tunedb.results import Record

BYTES = b'0123456789-.eE[]{},:"$\\ SPR\x01\xff'
PIECES = (b"0", b"1", b"2", b"-", b"[", b"null", b"9" * 20, b"1e9")


def mutated(rng, line):
    """Return a line with some bytes changed, removed, doubled or inserted."""
    data = bytearray(line)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(data))
        kind = rng.randrange(4)
        if kind == 0:
            data[at] = rng.choice(BYTES)
        elif kind == 1 and len(data) > 10:
            del data[at : at + rng.choice((1, 1, 8))]
        elif kind == 2:
            other = rng.randrange(len(data))
            data[at:at] = data[other : other + rng.choice((1, 3, 12))]
        else:
            data[at:at] = rng.choice(PIECES)
    return bytes(data)


def read_mutations(line_format, values, rounds=6_000):
    """Count the lines that a format reads and rejects; assert that it writes back what it reads."""
    rng = random.Random(7)
    reader = line_format.reader(LogFile(None, "<stdin>"))
    outcomes = Counter()
    for number in range(rounds):
        data = mutated(rng, orjson.dumps(rng.choice(values)))
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError:
            continue
        if not line_format.matches(value):
            continue
        try:
            measurement = reader.parse(value, Line(number, data, 0))
        except FormatError:
            outcomes["refused"] += 1
        else:
            outcomes["read"] += 1
            written = line_format.write_line(Record(1, 1, 1, measurement, Source("x"), None))
            assert orjson.loads(written) == value
    return outcomes

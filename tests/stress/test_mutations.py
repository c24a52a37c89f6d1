"""Hostile logs: for any bytes, a line becomes a record or is quarantined."""

from __future__ import annotations

import base64
import io
import json
import random
import re

import orjson
import pytest
import small_logs
from effort import examples, long

from tunedb.errors import FormatError
from tunedb.formats.base import Line, LogFile, formats
from tunedb.formats.export import export_lines, export_metaschedule
from tunedb.formats.importer import import_log
from tunedb.formats.metaschedule import parse_workload
from tunedb.formats.reading import read_log
from tunedb.json_checks import parse_json
from tunedb.maintenance.check import check
from tunedb.programs.workload_info import signature_of
from tunedb.records import Measurement, Source
from tunedb.storage.store import Store

#: How many bytes or values a test changes in all.
amounts = pytest.mark.parametrize("amount", [240, long(100_000)])

#: Changes to one log before it is read: about one for each line.
PER_LOG = 24

#: What is put among the bytes.
PIECES = [b"[", b"]", b"{}", b'"', b"-", b"1e999", b"NaN", b"\x00", b"null", b"\n", b"\xff", b"\\u"]

#: What is put in the place of a value: JSON that is well formed and not what is expected.
VALUES = [
    *(b"null", b"true", b"false", b"[]", b"{}", b'""', b"[[]]", b'{"a":1}', b'"x"', b'"None"'),
    *(b"0", b"1", b"-1", b"2", b"7", b"0.5", b"-0.0", b"1e-320", b"1e308", b"-1e308", b"0.0"),
    *(b"1e9", b"1e10", b"10000000000", b"1000000000", b"4294967296", b"1e999", b"NaN"),
    *(b"9223372036854775807", b"9223372036854775808", b"-9223372036854775809"),
    *(b"9" * 30, b"9" * 5000, b"18446744073709551615", b"9007199254740993"),
    *(b'"\\u0000"', b'"\\ud800"', b'"\xc3\xa9\xe2\x80\xae"', b'"' + b"y" * 20_000 + b'"'),
    *(b"[" * 40 + b"]" * 40, b"[" * 2000 + b"]" * 2000, b'{"a":' * 40 + b"1" + b"}" * 40),
    *(b"[" + b"1," * 3000 + b"1]", b'{"root_index":0,"nodes":[]}', b'"[\\"hash\\", 1]"'),
]

#: A JSON value without parts.
VALUE = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|null|true|false')


def change_bytes(rng, data):
    """Change, remove, double, insert or exchange a few bytes."""
    at, kind = rng.randrange(len(data)), rng.randrange(5)
    if kind == 0:
        data[at] = rng.randrange(256)
    elif kind == 1:
        del data[at : at + rng.randint(1, 20)]
    elif kind == 2:
        data[at:at] = data[at : at + rng.randint(1, 40)]
    elif kind == 3:
        data[at:at] = rng.choice(PIECES)
    else:
        other = rng.randrange(len(data))
        data[at], data[other] = data[other], data[at]


def change_value(rng, data):
    """Put another value, foreign or from elsewhere in the file, in the place of one."""
    found = VALUE.search(data, rng.randrange(len(data)))
    other = VALUE.search(data, rng.randrange(len(data))) if rng.random() < 0.3 else None
    if found is not None:
        data[found.start() : found.end()] = rng.choice(VALUES) if other is None else other[0]


def overwrite(rng, data):
    """Change bytes so that all others stay where they are, as the pages of a database must."""
    at, size = rng.randrange(len(data)), rng.choice([1, 1, 2, 4, 30])
    other = rng.randrange(len(data))
    new = rng.choice([rng.randbytes(size), bytes(size), b"\xff" * size, data[other : other + size]])
    data[at : at + size] = new[: len(data) - at]


def mutated(rng, seed, times, changes=(change_bytes, change_value)):
    """Return bytes that were changed so many times, as bytes or as JSON."""
    data = bytearray(seed)
    for _ in range(times):
        if data:
            rng.choice(changes)(rng, data)
    return bytes(data)


def mutated_workloads(rng, lines, times):
    """Return workload lines whose graphs were changed; base64 would hide them from changes."""
    changed = []
    for line in lines.splitlines():
        text = base64.b64decode(json.loads(line)[1])[8:]
        changed.append(json.dumps(small_logs.workload_line(mutated(rng, text, times))).encode())
    return b"\n".join(changed) + b"\n"


def mutated_files(rng, files):
    """Return the files of a log, changed in all places together :data:`PER_LOG` times."""
    records, *workloads = files
    if records == "database.sqlite":
        changes = [overwrite] * 20 + [change_bytes]
        return {records: mutated(rng, files[records], rng.randint(1, 2 * PER_LOG), changes)}
    if not workloads:
        # In a stream, records are lost together with the first workload.
        times = rng.randint(1, 3) if records == "both.json" else PER_LOG
        return {records: mutated(rng, files[records], times)}
    (workloads,) = workloads
    times = rng.choice([0, 1, 3])
    return {
        records: mutated(rng, files[records], PER_LOG - 2 * times),
        workloads: rng.choice([mutated, mutated_workloads])(rng, files[workloads], times),
    }


def canonical(line):
    """Return a line so that equal values have equal texts; 2.0**63 is the integer 2**63."""
    return json.dumps(whole_numbers(orjson.loads(line)), sort_keys=True)


def whole_numbers(value):
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, list):
        return [whole_numbers(item) for item in value]
    if isinstance(value, dict):
        return {key: whole_numbers(item) for key, item in value.items()}
    return value


def understood(name, data):
    """Yield the lines that a format's reader understands, as they are written back."""
    kind = formats()[name]
    reader = kind.reader(LogFile(None, "log"))
    for line in data.split(b"\n"):
        try:
            value = parse_json(line)
            item = reader.parse(value, Line(1, line, len(line))) if kind.matches(value) else None
        except FormatError:
            continue
        if isinstance(item, Measurement):
            yield canonical(line)


def check_store(store, folder):
    """Assert that stored rows can be read, and that all checks of the database pass."""
    for _ in store.records.iterate():
        pass
    store.workloads.find()
    export_metaschedule(store, folder / "exported")
    if store.location != ":memory:":
        assert check(store.url).problems == []


@amounts
@pytest.mark.parametrize("name", small_logs.LOGS)
def test_import_stores_quarantines_or_rejects_mutated_logs(name, amount, tmp_path):
    rng = random.Random(f"{name} {amount}")
    rounds, kind = amount // PER_LOG, name.split()[0]
    lines = set()
    read = quarantined = refused = 0
    with Store(tmp_path / "store.db") as store:
        for _ in range(rounds):
            changed = mutated_files(rng, small_logs.LOGS[name])
            path = small_logs.write(tmp_path, changed)
            report = import_log(store, LogFile(path, "log"), source="mutated")
            read += report.total.read
            quarantined += report.quarantined
            refused += report.refused is not None
            if kind != "metaschedule":
                lines.update(understood(kind, changed[path.name]))
        check_store(store, tmp_path)
        if kind != "metaschedule":
            out = io.BytesIO()
            assert export_lines(store, kind, out).left_out == {}
            assert {canonical(line) for line in out.getvalue().splitlines()} == lines
    assert read > (rounds if name == "metaschedule sqlite" else 3 * rounds)
    assert quarantined + refused > rounds


@amounts
@pytest.mark.parametrize("encoding", [small_logs.OLD, small_logs.NEW])
def test_mutated_graphs_are_stored_or_rejected(encoding, amount):
    rng = random.Random(f"{encoding} {amount}")
    text = json.dumps(small_logs.matmul(encoding, 64)).encode()
    batch, known, told = [], 0, 0
    with Store(":memory:") as store:
        for number in range(amount):
            value = small_logs.workload_line(mutated(rng, text, 1))
            try:
                workload = parse_workload(value)
            except FormatError:
                continue
            known += 1
            told += signature_of(workload).flops is not None
            batch.append(workload)
            if len(batch) == 500 or number == amount - 1:
                store.batches.load([], Source("mutated"), batch)
                batch = []
    assert known > amount / 5
    assert 0 < told < known


@pytest.mark.stress
def test_import_of_mutated_logs_leaves_postgresql_consistent(postgres_url, tmp_path):
    """PostgreSQL rejects other texts and numbers than SQLite does."""
    rng = random.Random(5)
    with Store(postgres_url) as store:
        for name, files in small_logs.LOGS.items():
            for number in range(6):
                path = small_logs.write(tmp_path / name / str(number), mutated_files(rng, files))
                import_log(store, LogFile(path, f"{name} {number}"), source="mutated")
        check_store(store, tmp_path)


@pytest.mark.examples
def test_reader_of_binary_junk_raises_only_format_error(tmp_path):
    """Junk alone, in front of a log and behind it."""
    rng = random.Random(6)
    path = tmp_path / "junk"
    for name, files in small_logs.LOGS.items():
        whole = next(iter(files.values()))
        for _ in range(examples(10)):
            junk = rng.randbytes(rng.randint(1, 3000))
            for data in (junk, junk + whole, junk + b"\n" + whole, whole + junk):
                path.write_bytes(data)
                try:
                    found = list(read_log(LogFile(path, "junk")))
                except FormatError:
                    continue
                if name not in ("metaschedule sqlite", "metaschedule stream"):
                    assert any(isinstance(one.item, Measurement) for one in found)

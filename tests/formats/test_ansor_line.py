"""The compiled kernel cuts lines of auto_scheduler as a reference in plain Python does."""

import json
import lzma
import random
import re
from itertools import islice

import orjson
import pytest
from builders import leb128
from effort import examples, long
from hypothesis import given
from hypothesis import strategies as st
from public_logs import DATA, needs_logs

from tunedb.errors import FormatError
from tunedb.formats._ansor_line import cut_line
from tunedb.formats.ansor import AnsorFormat
from tunedb.formats.base import Line, LogFile, TextReader

TASK = ['["matmul", 64, 64, "float32"]', "llvm -keys=cpu", [8, 64, 64, 0, 0, 0, 0, 0], "", 0, []]
STEPS = [
    ["CHW", 3, "local"],
    ["SP", 2, 0, 512, [1, 300, 4], 1],
    ["SP", 2, 4, 7, [], 0],
    ["RE", 2, [0, 4, 1, 5]],
    ["FFSP", 4, 0, [4, 3], 1, 1],
    ["AN", 2, 9, 2],
    ["PR", 2, 0, "auto_unroll_max_step$512"],
    ["PR", 2, 0, "debug_skip_region"],
]


def text(steps=STEPS, task=TASK, result=([0.5, 0.25], 0, 1.5, 1637575039), version="v0.6"):
    """Return a line as TVM writes it."""
    line = {"i": [task, [[], steps]], "r": list(result), "v": version}
    return json.dumps(line, ensure_ascii=False).encode()


NUMBER = rb"(0|[1-9][0-9]{0,17})(?![0-9])"
SPLIT = re.compile(
    rb'\["SP", [0-9]+, [0-9]+, ' + NUMBER + rb", \[((?:[0-9]+(?:, [0-9]+)*)?)\], [0-9]+\]"
)


def list_end(line, at):
    """Return where the list that begins at `at` ends, or None."""
    depth, inside, escaped = 0, False, False
    if line[at : at + 1] != b"[":
        return None
    for i in range(at, len(line)):
        c = line[i : i + 1]
        if inside:
            inside = escaped or c != b'"'
            escaped = not escaped and c == b"\\"
        elif c == b'"':
            inside = True
        elif c in b"[]":
            depth += 1 if c == b"[" else -1
            if not depth:
                return i + 1
    return None


def cut_step(step):
    """Return the template of a step and its numbers, or None."""
    if step.startswith(b'["SP"'):
        found = SPLIT.fullmatch(step)
        if found is None:
            return None
        lengths = found[2].split(b", ") if found[2] else []
        if not all(re.fullmatch(NUMBER, n) for n in lengths):
            return None
        head, tail = step[: found.start(1)], step[found.end(2) :]
        template = head + b"\1, [" + b", ".join([b"\1"] * len(lengths)) + tail
        return template, [int(found[1]), *map(int, lengths)]
    if re.search(rb"[\\\x00-\x1f]", step):
        return None
    if not step.startswith(b'["PR"'):
        return step, []
    inside, depth = False, 0
    for at in range(len(step)):
        c = step[at : at + 1]
        if c == b'"':
            inside = not inside
        elif not inside:
            depth += {b"[": 1, b"]": -1}.get(c, 0)
        elif c == b"$":
            # Only at the end of the step is it a pragma's value.
            found = re.fullmatch(NUMBER + rb'"\]', step[at + 1 :])
            if found is None or depth != 1:
                return None
            return step[:at] + b'$\1"]', [int(found[1])]
    return step, []


def reference(line):
    """Return what cut_line returns, in plain Python."""
    head = b'{"i": ['
    end = list_end(line, len(head)) if line.startswith(head) else None
    middle = b", [[], ["
    if end is None or not line.startswith(middle, end):
        return None
    task, at = line[len(head) : end], end + len(middle)
    templates, numbers = [], []
    if line.startswith(b"]", at):
        at += 1
    else:
        while True:
            end = list_end(line, at) if line.startswith(b'["', at) else None
            step = None if end is None else cut_step(line[at:end])
            if step is None:
                return None
            templates.append(step[0])
            numbers += step[1]
            at = end + 2
            if line.startswith(b"]", end):
                at = end + 1
                break
            if not line.startswith(b", ", end):
                return None
    found = re.fullmatch(rb'\]\], "r": (\[.*\]), "v": "([^"\\\x00-\x1f]*)"\}', line[at:], re.S)
    if found is None or list_end(found[1], 0) != len(found[1]):
        return None
    packed = b"".join(map(leb128, numbers))
    return task, b"[" + b", ".join(templates) + b"]", packed, found[1], found[2]


def test_cut_line_returns_task_template_numbers_result_and_version():
    task, template, numbers, result, version = cut_line(text())
    assert json.loads(task) == TASK
    assert template == (
        b'[["CHW", 3, "local"], ["SP", 2, 0, \1, [\1, \1, \1], 1], ["SP", 2, 4, \1, [], 0], '
        b'["RE", 2, [0, 4, 1, 5]], ["FFSP", 4, 0, [4, 3], 1, 1], ["AN", 2, 9, 2], '
        b'["PR", 2, 0, "auto_unroll_max_step$\1"], ["PR", 2, 0, "debug_skip_region"]]'
    )
    assert numbers == bytes([0x80, 4, 1, 0xAC, 2, 4, 7, 0x80, 4])
    assert (result, version) == (b"[[0.5, 0.25], 0, 1.5, 1637575039]", b"v0.6")
    assert cut_line(text([])) == (task, b"[]", b"", result, version)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b'{"i": [',
        b'{"i": [[]',
        b" " + text(),
        text() + b" ",
        text()[:-1],
        text().replace(b"], [[], [", b"],[[], ["),
        text([["SP", 2, 0, None, [1], 1]]),
        text([["SP", 2, 0, -1, [1], 1]]),
        text([["SP", 2, 0, 1.5, [1], 1]]),
        text([["SP", 2, 0, 10**18, [1], 1]]),
        text([["SP", 2, 0, 1, [1], 1, 1]]),
        text([["SP", 2, 0, 64, [1], 1]]).replace(b"64, [1]", b"064, [1]"),
        text([["PR", 2, 0, "auto_unroll_max_step$"]]),
        text([["PR", 2, 0, "auto_unroll_max_step$-1"]]),
        text([["PR", 2, 0, "auto_unroll_max_step$1x"]]),
        text([["CHW", 3, 'lo"cal']]),
        text([[3, "CHW"]]),
        text([[["CHW"]]]),
        text(version='v"6'),
    ],
)
def test_cut_line_returns_none_for_lines_of_another_form(line):
    assert cut_line(line) is None
    assert reference(line) is None


def test_cut_line_accepts_numbers_below_10_to_the_18():
    assert cut_line(text([["SP", 1, 0, 10**18 - 1, [], 1]]))[2] == leb128(10**18 - 1)


scalars = st.one_of(
    st.integers(0, 300),
    st.integers(-5, 10**19),
    st.none(),
    st.booleans(),
    st.text('ab$01[]",\\ \né', max_size=6),
    st.lists(st.integers(0, 9), max_size=3),
)
splits = st.tuples(
    st.just("SP"),
    st.integers(0, 9),
    st.integers(0, 99),
    st.integers(0, 2000),
    st.lists(st.integers(0, 700), max_size=4),
    st.integers(0, 1),
).map(list)
pragmas = st.integers(0, 2000).map(lambda n: ["PR", 1, 0, f"auto_unroll_max_step${n}"])
others = st.tuples(
    st.sampled_from(["SP", "PR", "AN", "RE", "CHW", "S"]), st.lists(scalars, max_size=4)
).map(lambda pair: [pair[0], *pair[1]])


@given(st.lists(st.one_of(splits, pragmas, others), max_size=6), scalars, st.text(max_size=3))
def test_kernel_equals_reference(steps, item, version):
    line = text(steps, [*TASK, item], ([0.5, item], 0, item, 1), version)
    assert cut_line(line) == reference(line)


def parse_both_ways(reader, line):
    """Return what the fast parser and the JSON parser read of a line; None for nothing."""
    fast = reader.parse_text(line)
    try:
        value = orjson.loads(line)
        slow = FORMAT.reader(LogFile(None, "log")).parse(value, Line(1, line, len(line)))
    except (ValueError, KeyError, FormatError):
        slow = None
    return fast, slow


FORMAT = AnsorFormat()


def reader_after(line):
    """Return a reader that has read a line."""
    reader = FORMAT.reader(LogFile(None, "log"))
    assert isinstance(reader, TextReader)
    assert reader.parse_text(line) is None
    reader.parse(orjson.loads(line), Line(1, line, len(line)))
    return reader


def test_parse_text_reads_only_lines_with_known_task_and_steps():
    reader = reader_after(text())
    other = text(
        [["SP", 2, 0, 256, [9, 9, 9], 1] if step[:3] == ["SP", 2, 0] else step for step in STEPS],
        result=([1e10], 4, 2, 1637575040),
    )
    fast, slow = parse_both_ways(reader, other)
    assert fast == slow
    assert fast.failure.message == "RUNTIME_DEVICE"
    results = [([0.5], 0, 1.5, 1637575039.5), ([-0.5], 0, 1.5, 1637575039), ([0.5], 0, 1.5)]
    unknown = [text(result=result) for result in (*results, ([0.5], 9, 1.5, 1637575039))]
    unknown += [text(version="v0.5"), text(task=[*TASK[:4], 1, []]), text(STEPS[:-1])]
    assert [reader.parse_text(line) for line in unknown] == [None] * 7


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


@pytest.mark.examples
def test_kernel_equals_reference_and_json_parser_for_mutated_lines():
    rng = random.Random(2)
    reader = reader_after(text())
    cut = understood = 0
    count = examples(8000)
    for _ in range(count):
        line = mutated(rng, text())
        assert cut_line(line) == reference(line), line
        cut += cut_line(line) is not None
        fast, slow = parse_both_ways(reader, line)
        assert fast is None or fast == slow, line
        understood += fast is not None
    assert cut > count / 20
    assert understood > count * 70 / 4000


@needs_logs
@pytest.mark.parametrize("name", ["v100", long("k80")])
def test_parse_text_equals_json_parser_for_real_lines(name):
    path = DATA / "costmodel" / "roller_ansor" / f"{name}.jsonl.xz"
    reader = FORMAT.reader(LogFile(None, "log"))
    understood = 0
    with lzma.open(path) as file:
        for line in islice(file, 0, None, 200):
            line = line.rstrip(b"\n")
            assert cut_line(line) == reference(line)
            fast, slow = parse_both_ways(reader, line)
            if fast is None:
                reader.parse(orjson.loads(line), Line(1, line, 0))
            else:
                assert fast == slow
                understood += 1
    assert understood > 300

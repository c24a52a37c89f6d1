"""Reading files: the format of each line, and quarantine of lines without one."""

import base64
import gzip
import json
import pickle
from types import SimpleNamespace

import pytest
import workdirs
from workdirs import items_and_error
from workdirs import write_lines as write

from tunedb import extensions, limits
from tunedb.errors import FormatError, PluginError
from tunedb.formats import base, reading
from tunedb.formats.base import LogFile
from tunedb.formats.reading import read_log
from tunedb.records import Measurement, Quarantined, Workload, WorkloadFormat

ARGS = [["TENSOR", [64, 64], "float32"], None]
CONFIG = {"i": 1, "t": "d", "c": None, "e": [["tile_x", "sp", [-1, 8]], ["unroll", "ot", 0]]}
V1 = json.dumps(
    {"i": ["llvm", "dense", ARGS, {}, ["dense", 64], CONFIG]}
    | {"r": [[0.001], 0, 1.0, 1500000000.5], "v": 0.1}
)
V2 = workdirs.autotvm(0.002)
ANSOR = workdirs.ansor(0.003)
WORKLOAD = workdirs.workload_line(workdirs.graph())
RECORD = json.dumps(workdirs.record([0.004]))


def read(path, **options):
    return list(read_log(LogFile(path, "name"), **options))


def quarantined(found):
    return [f.item for f in found if isinstance(f.item, Quarantined)]


def kinds(found):
    """Return the format and the type of each line."""
    return [(f.format, type(f.item).__name__) for f in found]


@pytest.fixture
def forget_formats():
    """Clear the cache of formats before and after the test."""
    base.load_formats.cache_clear()
    yield
    base.load_formats.cache_clear()


def test_reader_detects_the_format_of_each_line(tmp_path, monkeypatch):
    lines = [
        *("# a comment", V1, "", ANSOR, V2, WORKLOAD, RECORD, "{}", "   ", V1, "not JSON", RECORD),
        *("[1]", "#", V2, "nul", ANSOR[:-9]),
    ]
    path = write(tmp_path / "log", *lines, end=b"")
    found = read(path)
    nothing, bad = ("", "NoneType"), ("", "Quarantined")
    v1 = v2 = ("autotvm", "Measurement")
    ansor, record = ("ansor", "Measurement"), ("metaschedule", "Measurement")
    assert kinds(found) == [
        *(nothing, v1, nothing, ansor, v2, ("metaschedule", "Workload"), record, bad, nothing),
        *(v1, bad, record, bad, nothing, v2, bad, bad),
    ]
    times = [f.item.run_secs[0] for f in found if isinstance(f.item, Measurement)]
    assert times == [0.001, 0.003, 0.002, 0.004, 0.001, 0.004, 0.002]
    rows = quarantined(found)
    assert [row.line for row in rows] == [8, 11, 13, 16, 17]
    assert {row.file for row in rows} == {"name"}
    assert [row.data for row in rows] == [b"{}", b"not JSON", b"[1]", b"nul", ANSOR[:-9].encode()]
    unknown = "its JSON is not a record of a known format"
    reasons = [row.reason.split(":")[0] for row in rows]
    assert reasons == [unknown, "not JSON", unknown, "not JSON", "not JSON"]
    cut = "(the line is truncated: its writer was killed)"
    assert [row.reason.endswith(cut) for row in rows] == [False] * 4 + [True]
    # The order of formats does not matter.
    turned = dict(reversed(base.formats().items()))
    monkeypatch.setattr(reading, "formats", lambda: turned)
    assert read(path) == found


def test_reader_returns_the_same_items_for_windows_line_ends_and_compressed_log(tmp_path):
    lines = ["# comment", V1, "", ANSOR, WORKLOAD, RECORD, "junk", V2]
    unix = read(write(tmp_path / "unix", *lines, end=b""))  # a whole last line without its end
    windows = write(tmp_path / "windows", "\r\n".join(lines), end=b"\r\n")
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(windows.read_bytes()))
    assert unix == read(windows) == read(packed)
    assert [row.line for row in quarantined(unix)] == [7]
    assert isinstance(unix[-1].item, Measurement)


def test_leading_space_is_a_comment_only_for_ansor(tmp_path):
    found = read(write(tmp_path / "log", " " + ANSOR, "\t" + V1, "  " + V2, ANSOR + "  "))
    assert kinds(found) == [
        *(("ansor", "NoneType"), ("autotvm", "Measurement"), ("autotvm", "Measurement")),
        ("ansor", "Measurement"),
    ]


def test_reader_yields_workload_file_only_before_first_record(tmp_path):
    """The first record reads the workload file; later ones do not."""
    folder = workdirs.write(tmp_path / "a", [RECORD, "junk", V1, RECORD])
    found = read(folder / "database_tuning_record.json")
    assert kinds(found) == [
        *(("metaschedule", "Workload"), ("metaschedule", "Measurement"), ("", "Quarantined")),
        *(("autotvm", "Measurement"), ("metaschedule", "Measurement")),
    ]
    for place in (1, 4):
        assert found[place].item.program.workload.format == WorkloadFormat.GRAPH


def test_reader_reports_position_after_each_progress_interval(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "PROGRESS_LINES", 2)
    positions = []
    path = write(tmp_path / "log", *[V1] * 5)
    read(path, on_position=positions.append)
    assert len(positions) == 2
    assert 0 < positions[0] <= positions[1] <= path.stat().st_size


def test_reader_quarantines_junk_before_first_known_line(tmp_path):
    path = write(tmp_path / "log", "Begin tuning...", "# no", "", "[7]", b"\xff\xfe", ANSOR, "junk")
    found = read(path)
    rows = [(row.line, row.data) for row in quarantined(found)]
    assert rows == [(1, b"Begin tuning..."), (4, b"[7]"), (5, b"\xff\xfe"), (7, b"junk")]
    assert [one.format for one in found if isinstance(one.item, Measurement)] == ["ansor"]


@pytest.mark.parametrize(
    ("line", "number"),
    [(V1, "64"), (V2, "64"), (ANSOR, " 64, [8]"), (RECORD, "64")],
    ids=["v0.1", "v0.2", "ansor", "record"],
)
def test_reader_quarantines_integers_beyond_64_bits_in_every_format(line, number, tmp_path):
    """orjson makes them floats, so a knob, an argument or an unknown key would be changed."""
    changed = line.replace(number, number.replace("64", str(2**64 + 1)), 1)
    assert changed != line
    (bad,) = quarantined(read(write(tmp_path / "log", line, changed, line)))
    assert bad.line == 2
    assert "a number that 64 bits cannot hold" in bad.reason


def test_damaged_line_of_known_format_makes_file_a_log(tmp_path):
    """Every line of the file is then quarantined or read, and none is dropped."""
    broken = V2.replace("[0.002]", '["fast"]')
    found = read(write(tmp_path / "log", "junk", broken))
    assert [f.item.line for f in found] == [1, 2]
    assert [f.format for f in found] == ["", "autotvm"]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([], r"\(empty\)"),
        (["# only", "", "# comments"], r"\(empty\)"),
        (["# a table", "elapsed\tlatency", "1\t2"], r"\(line 2: not JSON: .*\)"),
        (['{"a": 1}', "junk"], r"\(line 1: its JSON is not a record of a known format\)"),
        ([b"\x7fELF\2\1\1\0"], r"\(line 1: not JSON: .*\)"),
        (["{", '  "a": 1', "}"], r"\(line 1: its JSON, of several lines, has no known format\)"),
        (['{"a": 1', "", "junk"], r"\(line 1: not JSON: unexpected end of data.*\)"),
    ],
)
def test_reader_rejects_file_that_is_not_a_log(lines, reason, tmp_path):
    found, message = items_and_error(write(tmp_path / "file", *lines))
    assert [f for f in found if f.item is not None] == []
    assert pytest.RaisesExc(FormatError, match=reason).matches(FormatError(message))
    assert message.startswith("no tuning log that tunedb knows")


@pytest.mark.parametrize(
    ("limit", "most", "few", "many", "numbers"),
    [
        ("MAX_LEADING_LINES", 4, ["a", "", "b", "# c", "d"], ["a", "b", "c", "d"], [1, 3, 5]),
        ("MAX_LINE_BYTES", 1000, ["a" * 400] * 2, ["a" * 400] * 3, [1, 2]),
    ],
)
def test_reader_rejects_file_with_too_much_leading_junk(
    limit, most, few, many, numbers, tmp_path, monkeypatch
):
    monkeypatch.setattr(limits, limit, most)
    found = read(write(tmp_path / "few", *few, V1))
    assert [row.line for row in quarantined(found)] == numbers
    found, message = items_and_error(write(tmp_path / "many", *many, V1))
    assert found == []
    assert "line 1" in message


def test_reader_quarantines_and_truncates_too_long_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "MAX_LINE_BYTES", 1000)
    monkeypatch.setattr(limits, "MAX_QUARANTINE_BYTES", 50)
    long = json.dumps({**json.loads(V1), "more": "x" * 2000})
    lines = (V1, long, V2, "x" * 60, long)
    row, short, last = quarantined(read(write(tmp_path / "log", *lines, end=b"")))
    assert (row.line, row.data) == (2, long[:50].encode())
    assert row.reason == last.reason == "longer than 1000 bytes"
    assert short.data == b"x" * 50


BAD = {
    "deep lists": ("[" * 100_000 + "]" * 100_000, "not JSON"),
    "deep objects": ('{"i":' * 5_000 + "1" + "}" * 5_000, "not JSON"),
    "deep knobs": (V2.replace("[-1, 8]", "[" * 500 + "]" * 500), "tile_x"),
    "deep arguments": (V1.replace("null]", "[" * 500 + "]" * 500 + "]"), "no JSON form"),
    "deep steps": (ANSOR.replace("[8]", "[" * 500 + "]" * 500), "its lengths is"),
    "deep trace": (RECORD.replace("[0.004]", "[" * 500 + "]" * 500), "run_secs holds"),
    "NaN": (ANSOR.replace("0.003", "NaN"), "not JSON"),
    "infinity": (V1.replace("0.001", "-Infinity"), "not JSON"),
    "overflow": (V2.replace("0.002", "1e999"), "not JSON: number is infinity"),
    "no UTF-8": (ANSOR.encode().replace(b"llvm", b"\xff\xfe"), "not JSON"),
    "a lone surrogate": (ANSOR.replace("llvm", r"\ud800"), "not JSON: no low surrogate"),
    "an unknown step": (ANSOR.replace('"SP"', '"ZZ"'), "ZZ"),
    "two lines in one": (V1 + V2, "not JSON"),
    "binary": (bytes(range(11, 256)), "not JSON"),
    "a byte order mark": (b"\xef\xbb\xbf" + V1.encode(), "not JSON"),
}


@pytest.mark.parametrize("name", BAD)
def test_reader_quarantines_only_the_bad_line(name, tmp_path):
    line, reason = BAD[name]
    found = read(write(tmp_path / "log", V1, ANSOR, RECORD, line, V2, ANSOR))
    row = found.pop(3).item
    assert [kind for _, kind in kinds(found)] == ["Measurement"] * 5
    assert (row.line, row.data) == (4, workdirs.encode(line))
    assert reason in row.reason
    assert "\n" not in row.reason
    assert len(row.reason) < 500


def test_reader_explains_why_it_rejects_lines_of_the_pickle_protocol(tmp_path):
    """A line as AutoTVM wrote it with ``protocol='pickle'``."""
    parts = (("dense", [1]), [1, 2], ([0.1], 0, 1.0, 2.0))
    fields = [base64.b64encode(pickle.dumps(part, 2)).decode() for part in parts]
    line = "\t".join(["llvm", *fields])
    (row,) = quarantined(read(write(tmp_path / "log", V1, line)))
    found, message = items_and_error(write(tmp_path / "log", *[line] * 3))
    assert (row.data, found) == (line.encode(), [])
    for text in (row.reason, message):
        assert "autotvm.record.encode(inp, res, 'json')" in text


class _Bomb:
    def __reduce__(self):
        return pytest.fail, ("it was unpickled",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_reader_rejects_pickle_files_without_unpickling(protocol, pack, tmp_path):
    path = tmp_path / "dataset.pkl"
    path.write_bytes(pack(pickle.dumps([_Bomb(), {"a": 1}], protocol)))
    found, message = items_and_error(path)
    assert found == []
    assert "a pickle, which is refused because unpickling runs code" in message


class Whole:
    """A format of files that begin with ``WHOLE``."""

    name = "whole"

    def matches_file(self, head, path):
        return head.startswith(b"WHOLE")

    def read_file(self, file):
        yield Workload("tvm-graph", b"{}", name=file.path.name)
        yield Quarantined(file.name, 1, "why", b"WHOLE")


class Lines:
    """A format of lines ``{"mine": number}``."""

    name = "mine"

    def matches(self, value):
        return isinstance(value, dict) and "mine" in value

    def companions(self, path):
        return []

    def reader(self, file):
        return self

    def begin(self):
        yield Workload("tvm-graph", b"{}", name="begun")

    def parse(self, value, line):
        if value["mine"] < 0:
            raise FormatError("below zero")
        return None if value["mine"] == 0 else Workload("tvm-graph", b"%d" % value["mine"])


@pytest.fixture
def register(monkeypatch, forget_formats):
    """A function that registers formats of another package beside ours."""

    def register(**loads):
        ours = list(extensions.entry_points(group=base.GROUP))
        others = [
            SimpleNamespace(name=name, value=f"other:{name}", load=load)
            for name, load in loads.items()
        ]
        monkeypatch.setattr(extensions, "entry_points", lambda group: [*others, *ours])

    return register


def test_reader_uses_registered_file_format_except_for_standard_input(
    register, monkeypatch, tmp_path
):
    """The file of standard input cannot be opened a second time."""
    register(whole=lambda: Whole)
    path = write(tmp_path / "file", "WHOLE", V1)
    assert kinds(read(path)) == [("whole", "Workload"), ("whole", "Quarantined")]
    assert kinds(read(write(tmp_path / "other", V1))) == [("autotvm", "Measurement")]
    with path.open("rb") as stream:
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=stream))
        found = list(read_log(LogFile(None, "<stdin>")))
    assert kinds(found) == [("", "Quarantined"), ("autotvm", "Measurement")]


def test_reader_uses_line_format_of_another_package(register, tmp_path):
    register(mine=lambda: Lines)
    found = read(write(tmp_path / "log", '{"mine": 1}', V1, '{"mine": 0}', '{"mine": -1}', ANSOR))
    assert kinds(found) == [
        *(("mine", "Workload"), ("mine", "Workload"), ("autotvm", "Measurement")),
        *(("mine", "NoneType"), ("mine", "Quarantined"), ("ansor", "Measurement")),
    ]
    assert found[4].item == Quarantined("name", 4, "below zero", b'{"mine": -1}')


class Nothing:
    """A class that is no format."""

    name = "nothing"


class Choosy(Lines):
    def __init__(self):
        raise SystemError("not on this machine")


#: The formats of this package.
OWN = {
    *("ansor", "autotvm", "metaschedule", "metaschedule-sqlite"),
    *("kernel-tuner", "t1", "t4", "cltune", "triton"),
    *("ktt", "ktt-csv", "ktt-xml", "nvprof", "ncu"),
}


def broken():
    raise ImportError("libfoo is missing")


def test_load_formats_reports_formats_that_do_not_load(register, tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(
        extensions._log, "warning", lambda text, *values: said.append(text % values)
    )
    others = {"nothing": Nothing, "choosy": Choosy, "text": "text", "mine": Lines}
    register(broken=broken, **{name: lambda found=found: found for name, found in others.items()})
    found, failed = base.load_formats()
    assert {"mine", *OWN} == set(found)
    assert failed.pop("broken") == "ImportError: libfoo is missing"
    assert failed.pop("choosy") == "SystemError: not on this machine"
    assert failed.pop("nothing").startswith("TypeError: it is neither a LineFormat nor")
    assert failed.pop("text").startswith("TypeError: ")
    assert failed == {}
    assert len(said) == 4
    assert all("does not load" in line for line in said)
    assert len(read(write(tmp_path / "log", V1, '{"mine": 0}'))) == 3


def test_formats_are_loaded_once(register, monkeypatch):
    loads = []
    register(mine=lambda: loads.append(1) or Lines)
    assert base.formats() is base.formats()
    assert len(loads) == 1


def test_empty_tunedb_plugins_disables_formats_of_other_packages(register, monkeypatch):
    register(mine=lambda: Lines, broken=broken)
    monkeypatch.setenv("TUNEDB_PLUGINS", "")
    found, failed = base.load_formats()
    assert (set(found), failed) == (OWN, {})


def test_formats_raises_plugin_error_if_there_are_none(monkeypatch, forget_formats):
    monkeypatch.setattr(extensions, "entry_points", lambda group: [])
    with pytest.raises(PluginError, match="reinstall"):
        base.formats()

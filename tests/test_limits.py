"""A test names every limit; some limits are tested here."""

import re
from pathlib import Path

import pytest

from tunedb import identity, limits
from tunedb.errors import FormatError
from tunedb.formats.ansor import AnsorFormat
from tunedb.formats.base import Line, LogFile
from tunedb.formats.importer import import_log
from tunedb.json_checks import parse_json
from tunedb.storage.store import Store

HERE = Path(__file__).parent

#: A line of a log, with a place for options of the target.
LINE = '{"i": [["[\\"f\\"]", "llvm{}"], [[], []]], "r": [[0.5], 0, 1, 2], "v": "v0.2"}\n'


def test_every_limit_is_named_by_a_test():
    tests = "".join(path.read_text(encoding="utf-8") for path in HERE.rglob("*.py"))
    names = {name for name in vars(limits) if name.isupper()}
    assert names - set(re.findall(r"\b[A-Z_]+\b", tests)) == set()


def parse(key, version="v0.6"):
    line = {"i": [[key, "llvm"], [[], []]], "r": [[0.5], 0, 1, 2], "v": version}
    return AnsorFormat().reader(LogFile(None, "log")).parse(line, Line(1, b"{", 0))


def test_long_workload_names_are_truncated():
    name = "f" * (limits.MAX_NAME_CHARS + 1)
    workload = parse(f'["{name}"]').program.workload
    assert len(workload.name) == limits.MAX_NAME_CHARS
    assert workload.body == f'["{name}"]'.encode()


def test_reader_rejects_long_versions():
    parse('["f"]', "v" * limits.MAX_VERSION_CHARS)
    with pytest.raises(FormatError, match="a version of 65 characters"):
        parse('["f"]', "v" * (limits.MAX_VERSION_CHARS + 1))


def test_parse_json_rejects_too_many_values():
    """A megabyte of empty lists would take 30 megabytes as objects."""
    fits = b"[" + b"0," * (limits.MAX_VALUES - 1) + b"0]"
    assert len(parse_json(fits)) == limits.MAX_VALUES
    for more in (b"[0," + fits[1:], b"[" + fits + b"]", b"[" * 2**21, b'{"a":' * 2**18 * 4):
        with pytest.raises(FormatError, match="more than 1000000 values"):
            parse_json(more)
    assert parse_json(b'"' + b" " * 2**21 + b'"') == " " * 2**21


def test_digests_of_long_bodies_are_not_cached():
    before = identity._remembered_digest.cache_info().currsize
    body = b"x" * (limits.MAX_REMEMBERED_BYTES + 1)
    assert identity.shared_digest("sketch", body) == identity.digest("sketch", body)
    assert identity._remembered_digest.cache_info().currsize == before


def test_import_stops_after_too_many_quarantined_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "MAX_QUARANTINED_LINES", 5)
    good = LINE.replace("{}", "").encode()
    path = tmp_path / "log"
    path.write_bytes(good + b"junk\n" * 7 + good.replace(b"0.5", b"0.25"))
    with Store(":memory:") as store:
        report = import_log(store, LogFile(path, "log"), source="x")
        assert (report.total.new, report.quarantined) == (1, 5)
        assert report.refused == "5 lines not understood; repair it"
        assert store.counts().quarantined == 5


def test_import_report_counts_excess_targets_together(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "MAX_GROUPS", 2)
    path = tmp_path / "log"
    path.write_text("".join(LINE.replace("{}", f" -mcpu=c{number}") for number in range(5)))
    with Store(":memory:") as store:
        report = import_log(store, LogFile(path, "log"), source="x")
    groups = {key: tally.read for key, tally in report.groups.items()}
    expected = {"llvm c0": 1, "llvm c1": 1, "other targets": 3}
    assert groups == {("ansor", target): read for target, read in expected.items()}

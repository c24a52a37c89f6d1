"""Files are recognised by their first bytes, and lines by their shape, each by one format."""

import json

import ktt_files
import pytest
import workdirs
from profiles import DETAILS, EVENTS_HEADER, METRICS_HEADER, NSYS_HEADER, TRACE_HEADER
from test_cltune import TABLE
from test_hostile_documents import DOCUMENTS
from test_kernel_tuner import TEXT
from test_ktt_csv import HEAD

from tunedb.formats.base import formats

#: First bytes → format, or None for those of JSON schemas and of other tools.
HEADS = {
    **{json.dumps(document): name for name, document in DOCUMENTS.items()},
    **{json.dumps(document, indent=4): name for name, document in DOCUMENTS.items()},
    '{"results": [], "schema_version": "1.0.0"}': "t4",
    **{'{"results": [{"configuration"': "t4", TEXT: "kernel-tuner", TABLE: "cltune"},
    '{"schema_version": "1.0.0", "results": [], "metadata": {"timeunit": "KttVersion"}}': "t4",
    **{f"{HEAD},A": "ktt-csv", "name;time;threads;": "cltune", DETAILS + ",": "ncu"},
    **{"SQLite format 3\0\x10\0": "metaschedule-sqlite", "SQLite format 2\0": None},
    **dict.fromkeys((METRICS_HEADER, EVENTS_HEADER, TRACE_HEADER, NSYS_HEADER), "nvprof"),
    **dict.fromkeys(
        (
            '{"$schema": "", "results": [], "configuration"',
            '{"results": {"type": "array"}, "configuration": 1',
            '{"device_core_clock": "1", "results": [{"kernel": "a"',
            '{"Results": [{"Configuration": [',
            '{"$schema": "", "tune_params_keys": [',
            '{"tune_params_keys": {"type": "array"}',
            '{"schema_version": "1.0.0", "field1": ""}',
            '{"ConfigurationSpace": {"type": "object"}}',
            json.dumps({"$schema": "x", **DOCUMENTS["t1"]}),
            json.dumps([DOCUMENTS["t1"]["KernelSpecification"]]),
            *('{"configs_timings": {}', '{"tp": [], "rows": 5}', '{"General": {}}', '{"a": 1}', ""),
            *("name;time;cost;\n", "Kernel name,Global size", '"ID","Name"\n'),
        )
    ),
}


IDS = [f"{name} {number}" for number, name in enumerate(HEADS.values())]


@pytest.mark.parametrize("head", [*HEADS, None], ids=[*IDS, "ktt-xml"])
def test_one_format_recognises_each_file(head, tmp_path):
    name = HEADS.get(head, "ktt-xml")
    if head is None:
        head = ktt_files.write_xml(tmp_path / "a.xml", ktt_files.failed()).read_text()
    data = head.encode()[:4096]
    files = {name: one for name, one in formats().items() if hasattr(one, "matches_file")}
    found = [name for name, one in files.items() if one.matches_file(data, tmp_path / "a")]
    assert found == ([] if name is None else [name])


#: Format → JSON values of its lines; "" for those of no format.
LINES = {
    "ansor": [json.loads(workdirs.ansor()), {"v": "v0.6", "r": 1, "i": 2}],
    "autotvm": [
        {"i": ["llvm", "conv2d", [], {}, None, {}], "r": [[1], 0, 1, 1], "v": 0.1},
        *(json.loads(workdirs.autotvm()), {"input": 0, "config": 0, "result": 0}),
    ],
    "metaschedule": [["123", "AAAA"], [0, [[[], []], [1.0], None, None]], [0, []]],
    "": [
        *({"i": [], "v": "v0.6"}, {"i": [], "r": [], "v": True}, {"i": [], "r": []}, {}),
        *({"input": [], "result": []}, ["x", "AAAA"], ["", "AAAA"], ["\u0661", "AAAA"], ["123"]),
        *(["123", 5], [True, []], [0.0, []], [0, {}], [0, [], []], [], None, 1, "text", "v"),
    ],
}


@pytest.mark.parametrize("name", LINES)
def test_one_format_matches_each_line(name):
    lines = {other: one for other, one in formats().items() if hasattr(one, "matches")}
    for value in LINES[name]:
        found = [other for other, one in lines.items() if one.matches(value)]
        assert (value, found) == (value, [name] if name else [])

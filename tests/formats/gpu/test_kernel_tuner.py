import gzip
import json
import math

import gpu_logs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunedb import limits
from tunedb.errors import FormatError
from tunedb.formats.base import Remark
from tunedb.formats.gpu import json_documents
from tunedb.formats.gpu.kernel_tuner import KernelTunerFormat
from tunedb.formats.importer import import_log
from tunedb.programs.kernel import join_parameters
from tunedb.records import FailureKind, Measurement, Phase, Quarantined, Status

HEAD = {
    "device_name": "NVIDIA RTX A4000",
    "kernel_name": "vector_add",
    "problem_size": [100, 2],
    "tune_params_keys": ["block_size_x", "kind"],
    "tune_params": {"block_size_x": [32, 64, 128], "kind": ["a", "a,b"]},
    "objective": "time",
}
COSTS = {"compile_time": 400.0, "verification_time": 0, "benchmark_time": 100.0}
OVERHEAD = {"strategy_time": 0, "framework_time": 1.5}
A = {"block_size_x": 32, "kind": "a"}
ENTRIES = {
    "32,a": {
        **{**A, "time": 2.0, "times": [3.0, 1.0, 2.0]},
        **{**COSTS, "GFLOP/s": 12.5, "nvml_energy": 3, **OVERHEAD},
        "timestamp": "2022-12-23 12:11:26.411558+00:00",
    },
    "64,a,b": {
        **{"block_size_x": 64, "kind": "a,b", "time": "RuntimeFailedConfig"},
        **{**COSTS, **OVERHEAD},
    },
    "128,a": {"block_size_x": 128, "kind": "a", "time": "CompilationFailedConfig", **OVERHEAD},
    "128,a,b": {"block_size_x": 128, "kind": "a,b", "time": 0.5},
}


def text_of(entries=ENTRIES, **head):
    """Return a cache as Kernel Tuner writes it: an entry has a line."""
    lines = [f"{json.dumps(key)}: {json.dumps(entry)}" for key, entry in entries.items()]
    start = json.dumps({**HEAD, **head}, indent="")[:-2]
    return start + ',\n"cache": {\n' + ",\n".join(lines) + "}\n}"


def write(folder, text, name="cache.json", **words):
    return gpu_logs.write(folder, text, name, **words)


def read(file):
    return list(KernelTunerFormat().read_file(file))


def test_reader_converts_cache_entries_to_measurements(tmp_path):
    ok, failed, unbuilt, single = read(write(tmp_path, text_of()))
    assert join_parameters(ok.program.trace) == A
    assert ok.program.workload.body == b'{"kernel":"vector_add","problem":[100,2]}'
    assert ok.program.target.attributes == {"kind": "unknown", "model": "NVIDIA RTX A4000"}
    assert ok.run_secs == (0.003, 0.001, 0.002)
    assert (ok.status, ok.failure, ok.all_cost) == (Status.OK, None, 0.5)
    assert ok.measured_at == 1671797486411558
    context = {"log": "kernel-tuner", "objective": "time", "space": HEAD["tune_params"]}
    assert orjson.loads(ok.context) == context
    assert orjson.loads(ok.extra) == {**COSTS, **OVERHEAD}
    (launch,) = ok.launches
    assert (launch.kernel, launch.threads, launch.block) == ("vector_add", 32, (32, 1, 1))
    assert launch.grid is None
    assert launch.counter_set.tool == "kernel_tuner"
    assert launch.counter_set.counters == (("GFLOP/s", ""), ("nvml_energy", "J"))
    assert launch.values == (12.5, 3.0)
    assert (failed.status, failed.run_secs) == (Status.FAILED, None)
    assert (failed.failure.kind, failed.failure.phase) == (FailureKind.RUNTIME_ERROR, Phase.RUN)
    assert failed.failure.message == "RuntimeFailedConfig"
    assert join_parameters(failed.program.trace)["kind"] == "a,b"
    assert failed.launches[0].threads == 64
    assert (unbuilt.failure.kind, unbuilt.launches) == (FailureKind.COMPILE_ERROR, ())
    assert (single.run_secs, single.status, single.all_cost) == ((0.0005,), Status.OK, None)


def test_reader_stores_counters_in_extra_if_block_is_unknown(tmp_path):
    entry = {"P": 3, "time": 1.0, "energy": 2.5, "readings": [1.0, math.nan]}
    (found,) = read(write(tmp_path, text_of({"3": entry}, tune_params_keys=["P"])))
    assert found.launches == ()
    assert orjson.loads(found.extra) == {"energy": 2.5, "readings": [1.0, "nan"]}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"time": "TimeoutExpired"}, "TimeoutExpired"),
        ({"time": 1.0, "__error__": "InvalidConfig"}, "InvalidConfig"),
        # Early versions of Kernel Tuner wrote 1e20 for a configuration without a time.
        *(({"time": time}, f"time is {time}") for time in (math.nan, math.inf, 1e20)),
    ],
)
def test_reader_gives_failed_entries_no_run_times(tmp_path, entry, message):
    (found,) = read(write(tmp_path, text_of({"k": A | entry})))
    assert (found.status, found.run_secs, found.launches) == (Status.FAILED, None, ())
    assert found.failure.message == message


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"time": 1.0}, "without the parameter 'block_size_x'"),
        ({"block_size_x": 32, "time": 1.0}, "without the parameter 'kind'"),
        (A, "the time is None, which is not a number"),
        (A | {"time": -1.0}, "finite and not negative"),
        (A | {"time": True}, "which is not a number"),
        # A time of 0 would beat all others.
        *((A | {"time": time}, "not measured") for time in (0, 5e-324)),
        (A | {"time": 0.0, "times": [0.0, 0]}, "not measured"),
        (A | {"time": 1, "times": [1, "x"]}, "not a number"),
        (A | {"time": 1, "times": [1.0, -1.0]}, "not negative"),
        *(
            (A | {"time": 1, "times": times}, "not finite")
            for times in ([1.0, math.nan], [1e308] * 9)
        ),
        (A | {"time": 1, "times": {"a": 1}}, "a list of 1 to"),
        (A | {"block_size_x": [32], "time": 1}, "expected a number or text"),
        (A | {"block_size_x": math.inf, "time": 1}, "not finite"),
        ([], "not an object"),
    ],
)
def test_reader_quarantines_only_the_bad_entry(tmp_path, entry, reason):
    items = read(write(tmp_path, text_of({"bad": entry, **ENTRIES})))
    assert [type(item) for item in items] == [Quarantined, *[Measurement] * 4]
    assert reason in items[0].reason
    assert items[0].line == 1
    assert b'"bad"' in items[0].data


TEXT = text_of()
WHOLE = TEXT.removesuffix("}\n}")
UNFINISHED = {
    "no brackets": (WHOLE + ",\n", 4),
    "no comma": (WHOLE, 4),
    "in the last entry": (WHOLE[:-20], 3),
    "document": (TEXT.removesuffix("\n}"), 4),
    "nothing yet": (text_of({}).removesuffix("}\n}"), 0),
}


@pytest.mark.parametrize("cut", UNFINISHED)
def test_reader_reads_unfinished_cache_without_changing_it(tmp_path, cut):
    """A killed run leaves a file that ends after its last entry, or within it."""
    text, records = UNFINISHED[cut]
    file = write(tmp_path, text)
    before = file.path.stat()
    remark, *items = read(file)
    assert isinstance(remark, Remark)
    assert remark.text.startswith("its run did not end: its entries were read")
    assert ("the truncated last entry" in remark.text) == (cut == "in the last entry")
    assert items == read(write(tmp_path, text_of(), "whole.json"))[:records]
    after = file.path.stat()
    assert file.path.read_bytes() == text.encode()
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)
    assert {path.name for path in tmp_path.iterdir()} == {"cache.json", "whole.json"}


def test_reader_accepts_windows_line_ends_and_byte_order_mark(tmp_path):
    text = UNFINISHED["in the last entry"][0].replace("\n", "\r\n").encode()
    assert len(read(write(tmp_path, text))) == 4
    assert len(read(write(tmp_path, b"\xef\xbb\xbf" + text_of().encode()))) == 4


def test_repeated_import_adds_only_new_entries_of_grown_cache(tmp_path, memory):
    cut, whole = UNFINISHED["in the last entry"][0], text_of()
    for text, new, known in ((cut, 3, 0), (whole, 1, 3), (gzip.compress(whole.encode()), 0, 4)):
        report = import_log(memory, write(tmp_path, text), source="x")
        assert (report.total.new, report.total.known, report.quarantined) == (new, known, 0)
        assert len(report.remarks) == (text == cut)
    assert [summary.best for summary in memory.workloads.find()] == [0.0005]


@given(st.integers(0, len(text_of()) - 1))
def test_reader_returns_whole_entries_of_truncated_cache_or_rejects_it(tmp_path_factory, length):
    """The error has one line."""
    folder = tmp_path_factory.mktemp("cut")
    whole = read(write(folder, text_of(), "whole.json"))
    try:
        items = read(write(folder, text_of()[:length]))
    except FormatError as error:
        assert "\n" not in str(error)
        return
    found = [item for item in items if isinstance(item, Measurement)]
    assert found == whole[: len(found)]


def test_reader_rejects_schema_versions_other_than_1_x(tmp_path):
    known = read(write(tmp_path, text_of()))
    assert read(write(tmp_path, text_of(schema_version="1.2.0"))) == known
    for version in ("2.0.0", 1):
        with pytest.raises(FormatError, match=r"tunedb knows 1\.x"):
            read(write(tmp_path, text_of(schema_version=version)))


def test_reader_accepts_infinite_counter_values(tmp_path):
    entry = A | {"time": 1.0, "GB/s": math.inf, "note": -math.inf}
    (found,) = read(write(tmp_path, text_of({"32,a": entry})))
    assert found.run_secs == (0.001,)
    assert found.launches[0].values == (math.inf, -math.inf)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (text_of(kernel_name=3), "kernel_name and device_name of a cache must be texts"),
        (text_of(device_name=None), "kernel_name and device_name of a cache must be texts"),
        (text_of(tune_params_keys=[]), "tune_params_keys of a cache must be a list of names"),
        (text_of()[:300] + "]" + text_of()[300:], "not JSON"),
        ('{"cache": []}', "expected an object with a cache"),
        (text_of(problem_size=10**30), "64 bits"),
    ],
)
def test_reader_rejects_invalid_caches(tmp_path, text, reason):
    with pytest.raises(FormatError, match=reason) as caught:
        read(write(tmp_path, text))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("head", "name", "words", "kernel", "device"),
    [
        ({"device_name": ""}, "conv__MI250X.json", {}, "vector_add", "MI250X"),
        ({"device_name": ""}, "conv__MI250X.json", {"device": "AMD"}, "vector_add", "AMD"),
        ({"device_name": ""}, "cache.json", {}, "vector_add", None),
        ({"kernel_name": ""}, "a__MI250X.json", {"kernel": "mine"}, "mine", "NVIDIA RTX A4000"),
        # An option for a folder of files must not merge different devices into one.
        ({}, "a.json", {"kernel": "mine", "device": "x"}, "vector_add", "NVIDIA RTX A4000"),
    ],
)
def test_reader_takes_only_empty_names_from_options_or_file_name(
    tmp_path, head, name, words, kernel, device
):
    item = read(write(tmp_path, text_of(**head), name, **words))[0]
    assert item.program.target.attributes.get("model") == device
    assert item.program.workload.name == item.launches[0].kernel == kernel


def test_reader_omits_large_parameter_space_from_context(tmp_path):
    """MAX_SPACE_BYTES"""
    space = {"block_size_x": list(range(limits.MAX_SPACE_BYTES))}
    item = read(write(tmp_path, text_of(tune_params=space)))[0]
    assert "space" not in orjson.loads(item.context)


def test_reader_rejects_documents_over_the_limits(tmp_path, monkeypatch):
    """MAX_DOCUMENT_BYTES, MAX_DOCUMENT_VALUES"""
    text = text_of()
    monkeypatch.setattr(limits, "MAX_DOCUMENT_BYTES", len(text))
    assert len(read(write(tmp_path, text))) == 4
    with pytest.raises(FormatError, match="a document of more than"):
        read(write(tmp_path, gzip.compress(text.encode() + b" ")))
    monkeypatch.setattr(limits, "MAX_DOCUMENT_BYTES", 2**24)
    monkeypatch.setattr(limits, "MAX_DOCUMENT_VALUES", 100)
    for data in (b"[" + b"0," * 2**20 + b"0]", b"[NaN," + b"0," * 2**20 + b"0]"):
        with pytest.raises(FormatError, match="more than 100 values"):
            json_documents.parse_document(data)


@pytest.mark.parametrize("name", ["device_name", "problem_size"])
def test_import_rejects_cache_with_lone_surrogate(tmp_path, memory, name):
    """No database stores it; only Python's JSON parser accepts it, which reads files with NaN."""
    entries = {"32,a": A | {"time": 1.0, "x": math.nan}}
    file = write(tmp_path, text_of(entries, **{name: "a\ud800"}))
    report = import_log(memory, file, source="s")
    assert report.refused.startswith("not JSON")
    assert "\n" not in report.refused
    file = write(tmp_path, text_of(entries, **{name: "a\U0001f600"}))
    assert import_log(memory, file, source="s").total.read == 1


def test_import_quarantines_deep_entry_and_rejects_deep_parameter_space(tmp_path, memory):
    """orjson does not write such nesting."""
    deep = json.loads("[" * 300 + "1" + "]" * 300)
    file = write(tmp_path, text_of({"32,a": {**ENTRIES["32,a"], "x": deep}}))
    report = import_log(memory, file, source="s")
    assert (report.refused, report.quarantined) == (None, 1)
    file = write(tmp_path, text_of(tune_params={"block_size_x": deep}))
    assert "nested deeper" in import_log(memory, file, source="s").refused


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2023-12-22 09:54:05.502007+00:00", 1703238845502007),
        ("2024-08-12 11:26:23 UTC", 1723461983000000),
        ("2024-08-12T11:26:23", 1723461983000000),
        ("2024-08-12 13:26:23+02:00", 1723461983000000),
        ("1969-01-01", 0),
        ("yesterday", 0),
        (None, 0),
    ],
)
def test_microseconds_parses_timestamps_and_returns_0_for_others(text, expected):
    assert json_documents.microseconds(text) == expected

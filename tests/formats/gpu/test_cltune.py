import json

import gpu_logs
import pytest

from tunedb.errors import FormatError
from tunedb.formats.gpu.cltune import CLTuneFormat
from tunedb.programs.kernel import join_parameters
from tunedb.records import Measurement, Quarantined, Status

TABLE = """name;time;threads;MWG;MDIMC;NDIMC;
gemm_fast;12.50;64;32;8;8;
gemm_fast;3.25;256;64;16;16;
name;time;threads;WPT;
copy;0.75;128;2;

gemm_fast;9.00;128;64;16;16;
"""

DOCUMENT = {
    **{"sample": "conv", "arg_m": "1024", "best_time": "0.5", "clblast_device_name": "RTX"},
    **{"device": "NVIDIA TITAN RTX", "platform_version": "OpenCL 1.2 CUDA 9.1"},
    **{"device_vendor": "NVIDIA Corporation", "device_type": "GPU"},
    **{"device_core_clock": "1770", "device_compute_units": "72"},
    "results": [
        {"kernel": "conv", "time": 0.5, "parameters": {"block_size_x": 32, "block_size_y": 8}},
        {"kernel": "conv", "time": 1, "parameters": {"TBX": 32, "TBY": 8}},
    ],
}


def write(folder, content, name="out.txt", **words):
    return gpu_logs.write(folder, content, name, **words)


def read(file):
    return list(CLTuneFormat().read_file(file))


def test_reader_reads_table_and_quarantines_row_under_wrong_header(tmp_path):
    one, two, copy, wrong = read(write(tmp_path, TABLE, device="Mali"))
    assert join_parameters(one.program.trace) == {"MWG": 32, "MDIMC": 8, "NDIMC": 8}
    assert (one.run_secs, one.status) == ((0.0125,), Status.OK)
    assert one.program.target.label == "unknown Mali"
    assert (one.launches[0].threads, one.launches[0].block) == (64, (8, 8, 1))
    assert two.launches[0].block == (16, 16, 1)
    assert (copy.program.workload.name, join_parameters(copy.program.trace)) == ("copy", {"WPT": 2})
    assert (copy.launches[0].threads, copy.launches[0].block) == (128, None)
    # A row under the header of another kernel.
    assert isinstance(wrong, Quarantined)
    assert (wrong.line, wrong.data) == (7, b"gemm_fast;9.00;128;64;16;16;")
    assert wrong.reason == "a row with 3 parameters under a header with 1"


def test_reader_leaves_block_unknown_if_threads_column_differs(tmp_path):
    text = "name;time;threads;block_size_x;\nk;1.00;64;32;\n"
    (found,) = read(write(tmp_path, text, "k__GPU.txt"))
    assert (found.launches[0].threads, found.launches[0].block) == (64, None)
    assert found.program.target.label == "unknown GPU"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("k;0.00;32;1;", "a time of 0 is below the digits"),
        ("k;nan;32;1;", "finite and not negative"),
        ("k;-1;32;1;", "finite and not negative"),
        ("k;x;32;1;", "the time is 'x'"),
        ("k;1.0;32;a;", "'a' is not an integer"),
        ("k;1.0;;1;", "'' is not an integer"),
        (";1.0;32;1;", "which is not a name"),
        ("k;1.0;32;", "a row with 0 parameters"),
        ("k", "a row with -2 parameters"),
    ],
)
def test_reader_quarantines_only_the_bad_row(tmp_path, row, reason):
    text = f"name;time;threads;P;\n{row}\nk;1.00;32;1;\n"
    items = read(write(tmp_path, text, device="d"))
    assert [type(item) for item in items] == [Quarantined, Measurement]
    assert reason in items[0].reason


def test_reader_reads_json_results_and_quarantines_bad_ones(tmp_path):
    first, second = read(write(tmp_path, DOCUMENT))
    assert first.run_secs == (0.0005,)
    assert first.program.target.attributes == {"kind": "opencl", "model": "NVIDIA TITAN RTX"}
    body = json.loads(first.program.workload.body)
    assert body == {"kernel": "conv", "problem": {"sample": "conv", "arg_m": "1024"}}
    assert first.launches[0].block == (32, 8, 1)
    assert second.launches == ()
    bad = {**DOCUMENT, "results": [[], {"parameters": {}}, *DOCUMENT["results"]]}
    kinds = [type(item) for item in read(write(tmp_path, bad))]
    assert kinds == [Quarantined, Quarantined, Measurement, Measurement]


def test_reader_rejects_files_without_device_or_results(tmp_path):
    for content, reason in (
        (TABLE, r"^the file does not say its device; give --device$"),
        ({**DOCUMENT, "results": {}}, "without results"),
        ({**DOCUMENT, "device": 7}, "give --device"),
    ):
        with pytest.raises(FormatError, match=reason):
            read(write(tmp_path, content))

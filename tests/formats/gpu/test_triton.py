import json
import math

import gpu_logs
import pytest

from tunedb import limits
from tunedb.errors import FormatError
from tunedb.formats.gpu.triton import TritonFormat
from tunedb.programs.kernel import join_parameters
from tunedb.records import Measurement, Quarantined, Status

PARAMETERS = {
    **{"BLOCK_M": 64, "EVEN": True},
    **{"num_warps": 4, "num_ctas": 1, "num_stages": 3, "maxnreg": None},
}


def config(warps=4, **others):
    beside = {name: PARAMETERS[name] for name in ("num_ctas", "num_stages", "maxnreg")}
    return {
        "kwargs": {"BLOCK_M": 64, "EVEN": True},
        **{"num_warps": warps, **beside, "pre_hook": None, "ir_override": None},
        **others,
    }


CACHE = {
    "key": [512, 64, "torch.float16", True],
    "configs_timings": [
        [config(), 0.5],
        [config(8), [0.25, 0.24, 0.3]],
        [config(16), math.inf],
        [config(2), [math.inf, math.inf, math.inf]],
    ],
}


def write(folder, rows=None, name="_attn_fwd.autotune.json", device="A100", **words):
    content = CACHE if rows is None else {**CACHE, "configs_timings": rows}
    return gpu_logs.write(folder, content, name, device=device, **words)


def read(file):
    return list(TritonFormat().read_file(file))


def test_reader_converts_rows_to_measurements(tmp_path):
    one, two, *failed = read(write(tmp_path))
    assert list(join_parameters(one.program.trace).items()) == list(PARAMETERS.items())
    body = json.loads(one.program.workload.body)
    assert body == {"kernel": "_attn_fwd", "problem": [512, 64, "torch.float16", True]}
    assert (one.run_secs, one.extra) == ((0.0005,), None)
    assert (one.launches[0].threads, one.launches[0].block) == (128, (128, 1, 1))
    assert two.run_secs == (0.00025,)
    assert json.loads(two.extra) == {"p20": 0.24, "p80": 0.3}
    assert one.program.sketch_digest == two.program.sketch_digest
    for found in failed:
        assert (found.status, found.run_secs, found.launches) == (Status.FAILED, None, ())
        assert found.failure.message == "its time is Infinity"


@pytest.mark.parametrize(
    ("devices", "warp"),
    [
        (("NVIDIA H100", "gfx1100", "Radeon W6600"), 32),
        (("AMD Instinct MI250X", "gfx942", "MI300"), 64),
    ],
)
def test_launch_threads_follow_warp_size_of_device(tmp_path, devices, warp):
    for device in devices:
        assert read(write(tmp_path, device=device))[0].launches[0].threads == 4 * warp


def test_reader_parses_configuration_written_as_text(tmp_path):
    text = (
        "BLOCK_M: 64, EVEN: True, num_warps: 4, num_ctas: 1, num_stages: 3, maxnreg: None, "
        "pre_hook: None"
    )
    first, second = read(write(tmp_path, [[text, 0.5], ["a: 1.5, b: x, num_warps: 1", 1]]))
    assert first == read(write(tmp_path))[0]
    assert join_parameters(second.program.trace) == {"a": 1.5, "b": "x", "num_warps": 1}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ([config()], "a result must be [configuration, timing]"),
        ([7, 1.0], "expected an object with kwargs"),
        ([{"kwargs": 1}, 1.0], "expected an object with kwargs"),
        ([config(BLOCK_M=1), 1.0], "'BLOCK_M' occurs in kwargs and beside them"),
        ([config(pre_hook=[1]), 1.0], "expected a number or text"),
        (["BLOCK 64", 1.0], "expected 'name: value, …'"),
        (["a: 1, a: 2", 1.0], "expected 'name: value, …'"),
        ([config(), "fast"], "a timing is 'fast'"),
        ([config(), []], "expected [median, p20, p80]"),
        ([config(), [1, 2, 3, 4]], "expected [median, p20, p80]"),
        ([config(), math.nan], "finite and not negative"),
        ([config(), -math.inf], "finite and not negative"),
    ],
)
def test_reader_quarantines_only_the_bad_row(tmp_path, row, reason):
    items = read(write(tmp_path, [row, [config(), 1.0]]))
    assert [type(item) for item in items] == [Quarantined, Measurement]
    assert reason in items[0].reason


def test_reader_returns_no_launch_for_invalid_number_of_warps(tmp_path):
    """MAX_WARPS"""
    most = limits.MAX_WARPS
    rows = [[config(warps), 1.0] for warps in (most, most + 1, 0, -1, True, None)]
    assert [len(found.launches) for found in read(write(tmp_path, rows))] == [1, 0, 0, 0, 0, 0]


def test_reader_accepts_any_key_but_deeply_nested_ones(tmp_path):
    def read_with_key(key):
        content = {**CACHE, "key": key}
        return read(gpu_logs.write(tmp_path, content, "f.autotune.json", device="d"))

    for key in (None, [], "x", [math.inf]):
        assert len(read_with_key(key)) == 4
    with pytest.raises(FormatError, match="nested deeper"):
        read_with_key(json.loads("[" * 300 + "1" + "]" * 300))


def test_reader_rejects_caches_without_device_kernel_or_timings(tmp_path):
    for words, reason in (
        ({"device": None}, r"does not say its device; give --device$"),
        ({"name": "cache.json"}, r"does not say its kernel; give --kernel$"),
        ({"rows": {}}, "without configs_timings"),
    ):
        with pytest.raises(FormatError, match=reason):
            read(write(tmp_path, **words))
    assert read(write(tmp_path, name="c.json", kernel="k"))[0].program.workload.name == "k"

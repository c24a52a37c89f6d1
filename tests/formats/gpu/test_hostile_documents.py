"""Documents of GPU tuners with an odd value give records, quarantined rows or one clear error."""

import copy
import json
import math

import gpu_logs
import ktt_files
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tunedb.errors import FormatError
from tunedb.formats.base import LogFile, formats
from tunedb.formats.importer import import_log

COMPUTATION = ktt_files.computation(
    counters=ktt_files.COUNTERS, CompilationData={"RegistersCount": 8}
)
DOCUMENTS = {
    "kernel-tuner": {
        **{"device_name": "A", "kernel_name": "k", "problem_size": [1], "objective": "time"},
        **{"tune_params_keys": ["block_size_x"], "tune_params": {"block_size_x": [32]}},
        "cache": {"32": {"block_size_x": 32, "time": 1.0, "times": [1.0], "GFLOP/s": 2.0}},
    },
    "t4": {
        "schema_version": "1.0.0",
        "metadata": {"timeunit": "ms", "kernel_name": "k", "device_name": "d", "target": "cuda"},
        "results": [
            {
                **{"timestamp": "2024-01-01", "configuration": {"block_size_x": 32}},
                **{"times": {"runtimes": [1.0], "compilation": 1.0}, "invalidity": "correct"},
                **{"correctness": 1, "objectives": ["time"]},
                "measurements": [{"name": "time", "value": 1.0, "unit": "ms"}],
            }
        ],
    },
    "t1": {
        "ConfigurationSpace": {
            "TuningParameters": [{"Name": "x", "Type": "int", "Values": "[1, 2]", "Default": 1}],
            "Conditions": [{"Parameters": ["x"], "Expression": "x < 3"}],
        },
        "KernelSpecification": {"KernelName": "k", "LocalSize": {"X": "x"}, "ProblemSize": [1]},
    },
    "triton": {
        "key": [512],
        "configs_timings": [[{"kwargs": {"B": 64}, "num_warps": 4}, [0.5, 0.4, 0.6]]],
    },
    "cltune": {
        **{"device": "d", "device_compute_units": "8", "device_core_clock": "1"},
        **{"platform_version": "OpenCL 1", "arg_m": "4"},
        "results": [{"kernel": "k", "time": 1.5, "parameters": {"MDIMC": 8, "NDIMC": 8}}],
    },
    "ktt": {"Metadata": ktt_files.METADATA, "Results": [ktt_files.result(COMPUTATION)]},
}

DEEP = json.loads("[" * 300 + "]" * 300)

ODD = st.sampled_from(
    [
        *(None, True, 0, -1, 2**64, 1e300, math.nan, math.inf, "", "x", "\0", "\ud800", [], {}),
        *(DEEP, [None], [math.nan], {"x": {}}, "x" * 70_000, "__import__('os')"),
    ]
)


def places(value, path=()):
    """Yield the path of each value in a document."""
    yield path
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(item, (*path, key))


def put(document, path, value):
    """Replace the value at a path that is not empty."""
    *above, last = path
    for key in above:
        document = document[key]
    document[last] = value


@pytest.mark.parametrize("name", DOCUMENTS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_reader_reads_quarantines_or_rejects_document_with_odd_value(name, tmp_path, data):
    document = copy.deepcopy(DOCUMENTS[name])
    put(document, data.draw(st.sampled_from([*places(document)][1:])), data.draw(ODD))
    beside = data.draw(st.sampled_from([{}, {"note": math.nan}]))
    path = tmp_path / "a.autotune.json"
    path.write_text(json.dumps({**document, **beside}))
    try:
        found = list(formats()[name].read_file(LogFile(path, path.name, device="d")))
    except FormatError as error:
        assert "\n" not in str(error)
        return
    for item in found:
        # Each record can be stored: it has its digests.
        if hasattr(item, "run_secs"):
            assert item.digest
            assert item.run_secs is None or sum(item.run_secs) > 0
            assert all(one.digest(item.digest) for one in item.launches)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_second_import_adds_nothing(name, tmp_path, memory):
    document = DOCUMENTS[name]
    file = gpu_logs.write(tmp_path, document, "f.autotune.json", device="d")
    first, second = (import_log(memory, file, source="x") for _ in range(2))
    assert (first.refused, first.quarantined, second.total.new) == (None, 0, 0)
    assert first.total.new == second.total.known == (name != "t1")
    bests = [workload.best for workload in memory.workloads.find()]
    assert all(best is not None for best in bests) == (name != "t1")

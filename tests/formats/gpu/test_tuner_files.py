"""Public files of GPU tuners: the import reads as many rows as ``SOURCES.md`` lists."""

import gzip
import io
import json
from collections import Counter

import pytest
from effort import EFFORT
from gpu_logs import counters_of, read
from public_logs import GPU, needs_gpu_logs, sources

from tunedb.formats.base import LogFile
from tunedb.formats.export import export_document
from tunedb.formats.find import find_logs
from tunedb.formats.gpu.kernel_tuner import KernelTunerFormat
from tunedb.formats.gpu.t1 import read_t1
from tunedb.formats.importer import Tally, import_log
from tunedb.programs.kernel import join_parameters
from tunedb.records import FailureKind, Measurement, Status
from tunedb.storage.store import Store

SECTIONS = {"1.": "kernel_tuner_cache", "2.": "kernel_tuner_t4", "3.": "ktt", "5.": "bat"}

#: The file whose times stand in the wrong column.
CONTRADICTORY = "kernel_tuner_t4/pnpoly__RTX_3090_T4.json.gz"

pytestmark = [needs_gpu_logs, pytest.mark.examples]


def read_sources():
    """Return the numbers of rows in the tables by file; None for files without results."""
    found = {}
    for section, subsection, cells in sources():
        folder = SECTIONS.get(subsection[:2])
        if section == "gpu" and folder and cells[0] != "file":
            rows = cells[-1].split()[0]
            found[f"{folder}/{cells[0]}"] = int(rows) if rows != "-" else None
    return found


SOURCES = read_sources() if GPU.is_dir() else {}
#: Of the files of KTT only those that were converted are results of T4. A short run reads the small
#: ones.
OURS = {
    name: rows
    for name, rows in SOURCES.items()
    if not name.startswith("ktt/") or "_converted" in name
    if name != "bat/ktt_triad_TuningOutput.json"
    if EFFORT != "few" or (rows or 0) < 1000
}
ROWS = sum(rows or 0 for rows in OURS.values())


def import_file(store, name):
    (file,) = find_logs([GPU / name])
    return import_log(store, file, source=file.name)


@pytest.fixture(scope="module")
def everything():
    with Store(":memory:") as store:
        yield store, {name: import_file(store, name) for name in OURS}


def test_import_reads_the_listed_rows_of_each_file(everything):
    _, reports = everything
    assert (len(OURS), ROWS) == ((27, 275) if EFFORT == "few" else (42, 86_385))
    for name, rows in OURS.items():
        report = reports[name]
        is_input = "T1" in name.replace("T1_1.0.0", "") or "CAFF" in name
        if rows is None and not is_input:
            assert report.refused.startswith("no tuning log that tunedb knows"), name
            assert "\n" not in report.refused
        else:
            found = report.refused, report.quarantined, report.total.read, report.workloads
            assert (name, *found) == (name, None, 0, rows or 0, int(is_input))
    assert sum(report.workloads for report in reports.values()) == 12


@pytest.mark.stress
def test_a_second_import_adds_nothing(everything):
    store, reports = everything
    before = store.counts()
    total = Tally()
    for name in OURS:
        total += import_file(store, name).total
    assert (total.read, total.new, total.known) == (ROWS, 0, ROWS)
    assert store.counts() == before
    # Two files repeat rows of other files.
    twice = 2 if EFFORT == "few" else 2 + 6_768
    assert sum(report.total.new for report in reports.values()) == ROWS - twice


def test_import_counts_failed_configurations_of_each_file(everything):
    _, reports = everything
    failed = {name: report.total.failed for name, report in reports.items() if report.total.failed}
    expected = {
        "kernel_tuner_cache/convolution__RTX_2080_Ti.json.gz": 1512,
        "kernel_tuner_cache/convolution__RTX_3060_laptop.json.gz": 1548,
        "kernel_tuner_cache/convolution__RTX_Titan.json.gz": 1512,
        "kernel_tuner_cache/convolution_milo__A4000.json.gz": 161,
        "kernel_tuner_cache/mock_gpu_convolution.json.gz": 1512,
        "kernel_tuner_cache/pnpoly__RTX_2080_Ti.json.gz": 358,
        "kernel_tuner_cache/pnpoly__RTX_3060_laptop.json.gz": 318,
        "kernel_tuner_cache/pnpoly__RTX_3090.json.gz": 318,
        "kernel_tuner_cache/pnpoly__RTX_Titan.json.gz": 342,
        "kernel_tuner_t4/convolution_milo__A100_T4.json.gz": 161,
        "kernel_tuner_t4/kt_cache_files_branch/t4_cache_invalids.json": 1,
        CONTRADICTORY: 3285,
    }
    assert failed == {name: number for name, number in expected.items() if name in OURS}
    assert {name for name in OURS if reports[name].remarks} == {CONTRADICTORY} & OURS.keys()


@pytest.mark.stress
def test_cache_has_means_of_run_times_and_configurations_that_the_t1_input_allows():
    path = GPU / "kernel_tuner_cache" / "convolution_milo__A4000.json.gz"
    beside = GPU / "kernel_tuner_t4" / "convolution_milo__T1.json"
    input_ = read_t1(beside.read_bytes())
    cache = json.loads(gzip.decompress(path.read_bytes()))["cache"].values()
    found = list(KernelTunerFormat().read_file(LogFile(path, path.name)))
    for entry, item in zip(cache, found, strict=True):
        configuration = join_parameters(item.program.trace)
        assert input_.is_legal(configuration)
        assert not input_.is_legal(configuration | {"block_size_x": 17})
        assert entry.items() >= configuration.items()
        if isinstance(entry["time"], str):
            assert (item.run_secs, item.failure.message) == (None, entry["time"])
        else:
            mean = sum(item.run_secs) / len(item.run_secs)
            assert mean == pytest.approx(entry["time"] / 1000, rel=1e-9)
            assert len(item.run_secs) == len(entry["times"])
            assert item.launches[0].threads == entry["block_size_x"] * entry["block_size_y"]


@pytest.mark.stress
def test_import_marks_inconsistent_rows_of_pnpoly_file_as_failed():
    """KTT's times stand over Kernel Tuner's run times: 2,955 of 3,762 rows."""
    with Store(":memory:") as store:
        (remark,) = import_file(store, CONTRADICTORY).remarks
        records = [record.measurement for record in store.records.iterate()]
    assert remark.startswith("inconsistent: 2,955 of 3,762 rows")
    kinds = Counter(m.failure.kind if m.failure else None for m in records)
    assert kinds == {FailureKind.INFRASTRUCTURE: 2955, FailureKind.RUNTIME_ERROR: 330, None: 807}
    assert all(m.run_secs is None for m in records if m.status is not Status.OK)


def test_t4_conversion_matches_original_ktt_file():
    found = []
    for name in ("coulomb_2080_full_search_space", "coulomb_2080_full_search_space_converted"):
        items = [i for i in read(GPU / "ktt" / f"{name}.json.gz") if isinstance(i, Measurement)]
        rows = {}
        for item in items:
            key = tuple(sorted(join_parameters(item.program.trace).items()))
            program, (launch,) = item.program, item.launches
            said = (program.workload.digest, program.target.digest, launch.threads, item.run_secs)
            rows[key] = said, counters_of(item)
        found.append(rows)
        assert len(items) == 210
    assert found[0].keys() == found[1].keys()
    for key, (one, counters) in found[0].items():
        two, others = found[1][key]
        assert one == two
        assert others.keys() >= counters.keys()
        assert all(others[name] == pytest.approx(value) for name, value in counters.items())


def test_inputs_say_which_parameters_form_the_block(everything):
    store, _ = everything
    found = {(name, read_t1(body).block_parameters) for name, body in store.training.t1_inputs()}
    assert found == {
        ("convolution_kernel", ("block_size_x", "block_size_y")),
        ("dedispersion_kernel", ("block_size_x", "block_size_y")),
        ("Xgemm", ()),
        ("calculate_temp", ("block_size_x", "block_size_y")),
        ("calculate_temp", ("BLOCK_SIZE_X", "BLOCK_SIZE_Y")),
        ("gemm_fast", ("MDIMC", "NDIMC")),
        ("FindKeyWithDigest_Kernel", ("BLOCK_SIZE",)),
        ("triad", ("BLOCK_SIZE",)),
        ("nbody_kernel", ("BLOCK_SIZE",)),
        ("cn_pnpoly", ("block_size_x",)),
    }


#: Types of JSON schemas.
KINDS = {"object": dict, "array": list, "string": str, "number": int | float, "integer": int}


def schema_errors(value, schema, path="results"):
    """Yield the places where a value violates a JSON schema, by the keywords of T4's schema."""
    if "type" in schema:
        allowed = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if not any(isinstance(value, KINDS[kind]) for kind in allowed):
            yield f"{path} is no {allowed}"
            return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path} is {value}"
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{path} has no {name}"
    if isinstance(value, dict):
        for name, part in schema.get("properties", {}).items():
            if name in value:
                yield from schema_errors(value[name], part, f"{path}.{name}")
    if isinstance(value, list) and "items" in schema:
        for number, item in enumerate(value):
            yield from schema_errors(item, schema["items"], f"{path}[{number}]")


def test_exports_fit_the_schema(everything):
    store, _ = everything
    (schema,) = (GPU / "kernel_tuner_t4").glob("*T4_1.0.0_results-schema.json")
    schema = json.loads(schema.read_text())
    assert list(schema_errors({"results": [{"times": 1, "invalidity": "x"}]}, schema))
    names = ("vector_add", "directCoulombSum_kernel", "dedispersion_kernel")
    for summary in store.workloads.find():
        if summary.name in names and summary.format == "gpu-kernel":
            record = next(store.records.iterate(summary.id))
            chosen = {"workload_ids": [record.workload_id], "target_ids": [record.target_id]}
            out = io.BytesIO()
            report = export_document(store, "t4", out, **chosen)
            document = json.loads(out.getvalue())
            assert len(document["results"]) == report.records > 0
            assert list(schema_errors(document, schema)) == []

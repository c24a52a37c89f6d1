"""``tunedb report advisor``: one file, and one clear line where there can be none."""

import json

import pytest

pytest.importorskip("sklearn")


def ktt(path, blocks=(32, 64, 128, 256), kernels=("sum", "blur")):
    """Write a file of KTT with counters for each block size and unrolling."""
    results = []
    for number, kernel in enumerate(kernels):
        for unroll in (1, 2, 4):
            for block in blocks:
                duration = 100.0 * (1 + abs(block - 64 * (number + 1)) / 256) + unroll
                counters = {
                    "smsp__inst_executed.sum": 1e6 * (number + 1) + 10 * block + unroll,
                    "dram__throughput.avg.pct_of_peak_sustained_elapsed": 20.0
                    + 30 * number
                    + unroll,
                }
                results.append(
                    result(kernel, {"BLOCK_SIZE_X": block, "U": unroll}, duration, counters)
                )
    metadata = {
        "ComputeApi": "CUDA",
        "Device": "NVIDIA GeForce RTX 2080 Ti",
        "GlobalSizeType": "CUDA",
        "KttVersion": "2.1.0",
        "Platform": "NVIDIA CUDA",
        "TimeUnit": "Microseconds",
        "Timestamp": "2022-06-01 13:55:7 UTC",
    }
    path.write_text(json.dumps({"Metadata": metadata, "Results": results}))
    return path


def result(kernel, parameters, duration, counters):
    size = {"X": parameters["BLOCK_SIZE_X"], "Y": 1, "Z": 1}
    rows = [{"Name": k, "Type": "Double", "Value": v} for k, v in counters.items()]
    compiled = {
        "ConstantMemorySize": 0,
        "LocalMemorySize": 0,
        "MaxWorkGroupSize": 1024,
        "PrivateMemorySize": 0,
        "RegistersCount": 32,
    }
    names = ("DataMovementOverhead", "ExtraDuration", "SearcherOverhead", "TotalOverhead")
    return {
        "KernelName": kernel,
        "Status": "Ok",
        "TotalDuration": duration,
        "ValidationOverhead": 0.0,
        **dict.fromkeys(names, 0.0),
        "Configuration": [
            {"Name": k, "Value": v, "ValueType": "UnsignedInt"} for k, v in parameters.items()
        ],
        "ComputationResults": [
            {
                "KernelFunction": kernel,
                "Duration": duration,
                "Overhead": 0.0,
                "GlobalSize": {"X": 100, "Y": 1, "Z": 1},
                "LocalSize": size,
                "CompilationData": compiled,
                "ProfilingData": {"Counters": rows, "RemainingProfilingRuns": 0},
            }
        ],
    }


@pytest.fixture
def database(run, sqlite_file, tmp_path):
    """A database with 24 launches of two kernels."""
    run("--db", sqlite_file, "import", "logs", ktt(tmp_path / "ktt.json"))
    return sqlite_file


def test_a_page_is_written_and_again_the_same(run, database, tmp_path):
    path = tmp_path / "advisor.html"
    done = run("--db", database, "report", "advisor", "-o", path, "--no-evaluation")
    assert done.stdout == ""
    assert f"Wrote {path}" in done.stderr
    page = path.read_text()
    assert "24 launches of 2 kernels on 1 device." in page
    assert "Not evaluated for this page" in page
    run("--db", database, "report", "advisor", "-o", path, "--no-evaluation", "-q")
    assert path.read_text() == page


def test_advice_is_judged_on_held_out_kernels(run, database, tmp_path):
    path = tmp_path / "advisor.html"
    run("--db", database, "report", "advisor", "-o", path, "--split", "kernel")
    page = path.read_text()
    assert "held out: whole kernels" in page and "Not evaluated" not in page
    for method in ("gain", "svm", "boosted", "majority", "rule", "occupancy", "nothing"):
        assert f">{method}<" in page


def test_one_kernel_with_labels_of_the_paper_and_a_mark(run, database, tmp_path):
    path = tmp_path / "one.html"
    options = ["--kernel", "blur", "--labels", "paper", "--mark", "threads=64", "--inputs", "raw"]
    run("--db", database, "report", "advisor", "-o", path, *options, "--no-evaluation")
    page = path.read_text()
    assert "12 launches of 1 kernel" in page
    assert "Labels (paper)" in page
    assert "by threads over 64" in page


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--kernel", "nothing"], 3, "no launch of nothing has a run time"),
        (["--device", "nothing"], 3, "tunedb import logs PATH"),
        (["--mark", "threads"], 2, "give NAME=VALUE, such as registers=64"),
        (["--mark", "threads=nan"], 2, "give NAME=VALUE"),
        (["--mark", "wings=2"], 2, "'wings' is not an input that could be marked"),
    ],
)
def test_one_clear_line_and_no_file(run, database, tmp_path, options, code, says):
    path = tmp_path / "advisor.html"
    words = ["report", "advisor", "-o", path, "--no-evaluation", *options]
    done = run("--db", database, *words, code=code)
    assert says in done.stderr
    assert not path.exists()


def test_folders_that_are_missing_are_told_first(run, database, tmp_path):
    path = tmp_path / "missing" / "advisor.html"
    done = run("--db", database, "report", "advisor", "-o", path, code=3)
    assert "does not exist; create it" in done.stderr


def test_an_empty_database_is_one_clear_line(run, sqlite_file, tmp_path):
    done = run("--db", sqlite_file, "report", "advisor", "-o", tmp_path / "a.html", code=3)
    assert "no launch has a run time; import profiles" in done.stderr

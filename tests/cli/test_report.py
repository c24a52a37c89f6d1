"""``tunedb report advisor``: one file, and one clear line where there can be none."""

from itertools import product

import ktt_files as ktt
import pytest

pytest.importorskip("sklearn")

DRAM = "dram__throughput.avg.pct_of_peak_sustained_elapsed"


def write_profiles(path, blocks=(32, 64, 128, 256), kernels=("sum", "blur")):
    """Write a file of KTT with counters for each block size and unrolling."""
    results = []
    for (number, kernel), unroll, block in product(enumerate(kernels), (1, 2, 4), blocks):
        counters = (
            ("smsp__inst_executed.sum", "Double", 1e6 * (number + 1) + 10 * block + unroll),
            (DRAM, "Double", 20.0 + 30 * number + unroll),
        )
        computed = ktt.computation(
            *(100.0 * (1 + abs(block - 64 * (number + 1)) / 256) + unroll, (block, 1, 1)),
            counters=counters,
            KernelFunction=kernel,
        )
        parameters = [ktt.pair("BLOCK_SIZE_X", block), ktt.pair("U", unroll)]
        results.append(ktt.result(computed, parameters=parameters, KernelName=kernel))
    return ktt.write_json(path, *results)


@pytest.fixture
def database(run, sqlite_file, tmp_path):
    """A database with 24 launches of two kernels."""
    run("--db", sqlite_file, "import", "logs", write_profiles(tmp_path / "ktt.json"))
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


def test_folders_that_are_missing_are_reported_first(run, database, tmp_path):
    path = tmp_path / "missing" / "advisor.html"
    done = run("--db", database, "report", "advisor", "-o", path, code=3)
    assert "does not exist; create it" in done.stderr


def test_an_empty_database_is_one_clear_line(run, sqlite_file, tmp_path):
    done = run("--db", sqlite_file, "report", "advisor", "-o", tmp_path / "a.html", code=3)
    assert "no launch has a run time; import profiles" in done.stderr

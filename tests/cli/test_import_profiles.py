"""``tunedb import logs`` of GPU profiles: its options and its report."""

import json
from itertools import product

import profiles
import pytest
from checks import has, row_has
from profiles import detail, launch, metric, ncu, nsys, nsys_launch

import tunedb


@pytest.fixture
def folder(tmp_path):
    """A folder with counters, and a trace whose name does not fit them."""
    found = tmp_path / "profile"
    found.mkdir()
    (found / "counters.csv").write_text(profiles.metrics(metric("ipc", "1.3")))
    (found / "times.csv").write_text(profiles.trace(launch()))
    return found


def stored(path):
    """Return the launches of a database, each with its workload."""
    with tunedb.open(path, create=False, read_only=True) as store:
        return list(store.launches.iterate(statuses=None))


@pytest.fixture
def import_counters(run, sqlite_file, folder):
    """A function that imports the counters with the trace."""
    words = ("--db", sqlite_file, "import", "logs", folder / "counters.csv")
    return lambda *options: run(*words, "--trace", folder / "times.csv", *options)


def test_trace_option_adds_times_to_counters(import_counters, sqlite_file):
    (row,) = json.loads(import_counters("--json").stdout)
    row_has(row, read=1, new=1, launches=1, remarks=[])
    (found,) = stored(sqlite_file)
    assert found.run_secs == pytest.approx((4.512e-6,))
    assert (found.launch.counter_set.counters, found.launch.values) == ((("ipc", ""),), (1.3,))


def test_trace_option_needs_counters_and_exactly_one_file(run, sqlite_file, folder):
    words = ("--db", sqlite_file, "import", "logs")
    (line,) = run(*words, folder / "counters.csv", code=1).stderr.splitlines()
    has(line, "metrics need a GPU trace", "--trace")
    result = run(*words, folder, "--trace", folder / "times.csv", code=2)
    assert "holds 2 files" in result.stderr


def test_device_and_kernel_options_name_what_the_file_lacks(run_json, sqlite_file, tmp_path):
    path = tmp_path / "ncu.csv"
    path.write_text(ncu(detail("a__b.sum", "1.5")))
    words = ("--db", sqlite_file, "import", "logs")
    (row,) = run_json(*words, path, "--device", "NVIDIA A100", "--kernel", "other")
    assert [group["target"] for group in row["groups"]] == ["cuda NVIDIA A100"]
    row_has(row, unmeasured=1, launches=1)
    # The file names its program, so --kernel is ignored.
    (found,) = stored(sqlite_file)
    assert b'"application":"app"' in found.workload.body
    path.write_text(nsys(nsys_launch()))
    run_json(*words, path, "--kernel", "train.py")
    assert b'"application":"train.py"' in stored(sqlite_file)[1].workload.body


def test_device_and_kernel_options_take_1_to_200_characters(run, sqlite_file, folder):
    for option, word in product(("--device", "--kernel"), ("", "  ", "x" * 201)):
        words = ("import", "logs", folder / "times.csv", option, word)
        message = run("--db", sqlite_file, *words, code=2).stderr
        assert "expected a name of 1 to 200 characters" in message


def test_launches_and_remarks_are_reported(run, sqlite_file, import_counters, folder, log):
    rows = [launch(grid=(grid, 1, 1)) for grid in (10, 20)]
    (folder / "times.csv").write_text(profiles.trace(*rows))
    result = import_counters()
    header, row = result.stdout.splitlines()[:2]
    assert (header.split()[-1], row.split()[-1]) == ("launches", "2")
    has(result.stderr, "1 remark on imported files", "counters of 1 kernel left out")
    # Without launches there is no column for them.
    header = run("--db", sqlite_file, "import", "logs", log).stdout.splitlines()[0]
    assert "known" in header and "launches" not in header


def test_import_escapes_names_of_a_profile(import_counters, folder):
    counters = profiles.metrics(metric("ipc", "1.3", kernel="\x1b[31mred(int)"))
    (folder / "counters.csv").write_text(counters)
    message = import_counters().stderr
    assert "left out" in message and "\x1b" not in message

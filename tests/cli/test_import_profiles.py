"""``tunedb import logs`` of GPU profiles: its options and its report."""

import profiles
import pytest
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


def test_trace_option_adds_times_to_counters(run_json, sqlite_file, folder):
    options = ("--trace", folder / "times.csv")
    (row,) = run_json("--db", sqlite_file, "import", "logs", folder / "counters.csv", *options)
    assert (row["read"], row["new"], row["launches"], row["remarks"]) == (1, 1, 1, [])
    (found,) = stored(sqlite_file)
    assert found.run_secs == pytest.approx((4.512e-6,))
    assert found.launch.counter_set.counters == (("ipc", ""),)
    assert found.launch.values == (1.3,)


def test_import_of_counters_without_trace_advises_in_one_line(run, sqlite_file, folder):
    result = run("--db", sqlite_file, "import", "logs", folder / "counters.csv", code=1)
    (line,) = result.stderr.splitlines()
    assert "metrics need a GPU trace" in line
    assert "--trace" in line


def test_trace_option_needs_exactly_one_file(run, sqlite_file, folder):
    arguments = ("import", "logs", folder, "--trace", folder / "times.csv")
    result = run("--db", sqlite_file, *arguments, code=2)
    assert "holds 2 files" in result.stderr


def test_device_option_names_device_that_the_file_lacks(run, run_json, sqlite_file, tmp_path):
    path = tmp_path / "ncu.csv"
    path.write_text(ncu(detail("a__b.sum", "1.5")))
    arguments = ("import", "logs", path, "--device", "NVIDIA A100", "--kernel", "other")
    (row,) = run_json("--db", sqlite_file, *arguments)
    assert [group["target"] for group in row["groups"]] == ["cuda NVIDIA A100"]
    assert (row["unmeasured"], row["launches"]) == (1, 1)
    # The file names its program, so --kernel is ignored.
    (found,) = stored(sqlite_file)
    assert b'"application":"app"' in found.workload.body


def test_kernel_option_names_program_that_the_file_lacks(run_json, sqlite_file, tmp_path):
    path = tmp_path / "gpu.csv"
    path.write_text(nsys(nsys_launch()))
    run_json("--db", sqlite_file, "import", "logs", path, "--kernel", "train.py")
    (found,) = stored(sqlite_file)
    assert b'"application":"train.py"' in found.workload.body


@pytest.mark.parametrize("option", ["--device", "--kernel"])
@pytest.mark.parametrize("word", ["", "  ", "x" * 201])
def test_device_and_kernel_options_take_1_to_200_characters(run, sqlite_file, folder, option, word):
    arguments = ("import", "logs", folder / "times.csv", option, word)
    result = run("--db", sqlite_file, *arguments, code=2)
    assert "expected a name of 1 to 200 characters" in result.stderr


def test_launches_and_remarks_are_reported(run, sqlite_file, folder):
    rows = [launch(grid=(grid, 1, 1)) for grid in (10, 20)]
    (folder / "times.csv").write_text(profiles.trace(*rows))
    options = ("--trace", folder / "times.csv")
    result = run("--db", sqlite_file, "import", "logs", folder / "counters.csv", *options)
    header, row = result.stdout.splitlines()[:2]
    assert header.split()[-1] == "launches"
    assert row.split()[-1] == "2"
    assert "1 remark on imported files" in result.stderr
    assert "counters of 1 kernel left out" in result.stderr


def test_report_without_launches_has_no_column_for_them(run, sqlite_file, log):
    header = run("--db", sqlite_file, "import", "logs", log).stdout.splitlines()[0]
    assert "known" in header
    assert "launches" not in header


def test_import_escapes_names_of_a_profile(run, sqlite_file, folder):
    evil = "\x1b[31mred(int)"
    (folder / "counters.csv").write_text(profiles.metrics(metric("ipc", "1.3", kernel=evil)))
    options = ("--trace", folder / "times.csv")
    result = run("--db", sqlite_file, "import", "logs", folder / "counters.csv", *options)
    assert "left out" in result.stderr
    assert "\x1b" not in result.stderr

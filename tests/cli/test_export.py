"""``tunedb export`` in all formats; exported records are imported again without loss."""

import csv
import errno
import io
import json
import os
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import workdirs
from builders import OWN, make_measurement, make_workload
from checks import has, one_line, row_has

import tunedb
from tunedb.cli.logs import export
from tunedb.formats.tables import TABLE_FORMATS, write_table
from tunedb.storage.tables import COLUMNS


def lines(folder, name="database_tuning_record.json"):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_export_and_import_preserve_all_records(run, run_json, log, tmp_path):
    first, second, out = tmp_path / "first.db", tmp_path / "second.db", tmp_path / "out"
    run("--db", first, "import", "logs", log)
    report = run_json("--db", first, "export", out)
    row_has(report, records=7, left_out={}, directories=[str(out)])
    run("--db", second, "import", "logs", out)
    assert workdirs.contents(second) == workdirs.contents(first)
    assert len(workdirs.contents(first)) == 7
    assert lines(out) == lines(log)
    # The export of the copy equals the first export.
    again = tmp_path / "again"
    run("--db", second, "export", again)
    for file in out.iterdir():
        assert (again / file.name).read_bytes() == file.read_bytes()


def test_omitted_records_are_reported(run, run_json, sqlite_file, tmp_path):
    own = workdirs.write(tmp_path / "own", [workdirs.record([1e-3]), workdirs.record([2e-3])])
    foreign = workdirs.write(tmp_path / "foreign", [workdirs.record([3e-3])])
    run("--db", sqlite_file, "import", "logs", own)
    run("--db", sqlite_file, "import", "logs", foreign, "--trust", "foreign")
    run("--db", sqlite_file, "retract", 1, "--reason", "measured under load", "--yes")
    report = run_json("--db", sqlite_file, "export", tmp_path / "out")
    row_has(report, records=1, left_out={"retracted": 1, "foreign source": 1})
    text = run("--db", sqlite_file, "export", tmp_path / "out2").stdout
    has(text, "left out: foreign source", "left out: retracted")


def test_export_replaces_a_work_directory_only_by_force(run, filled, tmp_path):
    out = tmp_path / "out"
    run("--db", filled, "export", out)
    before = lines(out)
    assert "--force" in run("--db", filled, "export", out, "--target", "cuda", code=2).stderr
    assert lines(out) == before
    run("--db", filled, "export", out, "--target", "cuda", "--force")
    assert len(lines(out)) == 1
    files = {path.name for path in out.iterdir()}
    assert files == {"database_tuning_record.json", "database_workload.json"}


def test_export_rejects_outputs_that_cannot_be_written(run, filled, tmp_path):
    (tmp_path / "file").write_text("")
    one_line(run("--db", filled, "export", tmp_path / "file" / "out", code=1))
    run("--db", filled, "export", tmp_path / "file", code=2)


def t4(folder, name):
    """Write two results of FAIR T4."""
    rows = [
        {
            **{"configuration": {"block_size_x": size}, "times": {"runtimes": [time, time]}},
            **{"invalidity": "correct", "correctness": 1},
            "measurements": [{"name": "time", "value": time, "unit": "ms"}],
        }
        for size, time in [(32, 2.0), (64, 1.0)]
    ]
    path = folder / name
    path.write_text(json.dumps({"schema_version": "1.0.0", "results": rows}))
    return path


def test_t4_export_needs_one_kernel_on_one_device(run, run_json, sqlite_file, tmp_path):
    a100, v100 = t4(tmp_path, "gemm__A100_T4.json"), t4(tmp_path, "gemm__V100_T4.json")
    run("--db", sqlite_file, "import", "logs", a100, v100)
    result = run("--db", sqlite_file, "export", "--format", "t4", code=2)
    assert result.stdout == ""
    assert "one kernel on one device; choose with --workload and --target" in result.stderr
    out = tmp_path / "out.json"
    chosen = ("--format", "t4", "--target", '{"model": "V100"}')
    report = run_json("--db", sqlite_file, "export", *chosen, "-o", out)
    row_has(report, records=2, file=str(out))
    document = json.loads(out.read_text())
    assert document["metadata"]["device_name"] == "V100"
    printed = json.loads(run("--db", sqlite_file, "export", *chosen).stdout)
    assert document["results"] == printed["results"]
    (again,) = run_json("--db", tmp_path / "again.db", "import", "logs", out)
    assert again["new"] == 2


def read_table(path, format_):
    """Return the rows of an exported table as dictionaries."""
    if format_ == "parquet":
        return pq.read_table(path).to_pylist()
    if format_ == "arrow":
        return pa.ipc.open_stream(path.read_bytes()).read_all().to_pylist()
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("format_", ["parquet", "arrow", "csv"])
def test_export_writes_tables_in_each_format(run, run_json, filled, tmp_path, format_):
    out = tmp_path / f"records.{format_}"
    report = run_json("--db", filled, "export", "--format", format_, "-o", out)
    with tunedb.open(filled) as store:
        expected = pa.table(store.table("records")).to_pylist()
        best = len(store.table("best", None, store.targets.find("cuda")))
    assert report == {"format": format_, "table": "records", "file": str(out), "rows": 7}
    rows = read_table(out, format_)
    if format_ == "csv":
        assert [(int(row["record_id"]), json.loads(row["run_seconds"])) for row in rows] == [
            (row["record_id"], row["run_seconds"]) for row in expected
        ]
        assert {row["measured_at"] for row in rows} == {""}
    else:
        assert rows == expected
    chosen = ("--format", format_, "--table", "best", "--target", "cuda")
    result = run("--db", filled, "export", *chosen, "-o", "-")
    (tmp_path / "best").write_bytes(result.stdout_bytes)
    assert len(read_table(tmp_path / "best", format_)) == best == 1
    assert "1 rows of best written to standard output" in result.stderr
    assert "--force" in run("--db", filled, "export", *chosen, "-o", out, code=2).stderr
    run("--db", filled, "export", *chosen, "-o", out, "--force")
    assert len(read_table(out, format_)) == 1


def test_export_rejects_empty_tables_and_missing_pyarrow(
    run, filled, sqlite_file, tmp_path, monkeypatch
):
    out = tmp_path / "out.csv"
    message = run("--db", sqlite_file, "export", "--format", "csv", "-o", out, code=3).stderr
    assert "no row of records to export" in message
    run("--db", sqlite_file, "export", tmp_path / "out", code=3)
    run("--db", filled, "export", "--format", "t4", "-o", out, code=3)
    assert not out.exists() and not (tmp_path / "out").exists()
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    result = run("--db", filled, "export", "--format", "parquet", "-o", out, code=2)
    assert result.stderr == "Error: Parquet needs PyArrow; run: pip install pyarrow\n"


class Full(io.RawIOBase):
    """A file on a full disk."""

    def writable(self):
        return True

    def write(self, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_write_table_raises_os_error_on_a_full_disk(filled):
    with tunedb.open(filled) as store:
        for format_ in TABLE_FORMATS:
            with pytest.raises(OSError, match="No space left") as caught:
                write_table(store.table("records"), format_, Full())
            assert caught.value.errno == errno.ENOSPC


def test_csv_export_escapes_control_characters(run, sqlite_file):
    with tunedb.open(sqlite_file) as store:
        store.records.add([make_measurement(workload=make_workload(name="\x1b[31m\nred"))], OWN)
    text = run("--db", sqlite_file, "export", "--format", "csv", "--table", "best").stdout
    assert text.count("\n") == 2 and "\\x1b[31m\\nred" in text


def test_table_choices_match_the_library():
    assert set(export.TABLES) == set(COLUMNS)
    assert export.TABLE_FORMATS == TABLE_FORMATS

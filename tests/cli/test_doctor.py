"""``tunedb doctor`` reports what would fail, and the command that repairs it."""

import shutil
from importlib import metadata
from pathlib import Path

import pytest
from builders import sql
from checks import row_has

from tunedb.cli import doctor
from tunedb.storage import approval

FROZEN = Path(__file__).parents[1] / "migrations" / "frozen"
CHECK_TVM = doctor._tvm


@pytest.fixture(autouse=True)
def without_tvm(monkeypatch):
    """Skip the check of TVM, which takes two seconds."""
    monkeypatch.setattr(doctor, "_tvm", lambda: ())


@pytest.fixture
def with_tvm(monkeypatch, without_tvm):
    """Do not skip it."""
    monkeypatch.setattr(doctor, "_tvm", CHECK_TVM)


@pytest.fixture
def examine(run_json):
    """A function that runs the command and returns the findings of one check."""

    def examine(*words, code=0, check):
        rows = run_json("doctor", *words, code=code)
        return [row for row in rows if row["check"] == check]

    return examine


@pytest.fixture
def versions(monkeypatch):
    """A function that sets the installed versions of distributions; None removes one."""
    installed = metadata.version

    def use(**chosen):
        def version(name):
            answer = chosen.get(name.replace("-", "_"), installed)
            if answer is None:
                raise metadata.PackageNotFoundError(name)
            return installed(name) if answer is installed else answer

        monkeypatch.setattr(metadata, "version", version)

    return use


def test_this_machine_has_no_problem(with_tvm, run, filled):
    """A file of the working directory that is called like TVM is no TVM."""
    Path("tvm.py").write_text("raise SystemExit('another tvm')")
    lines = run("doctor", "--db", filled).stdout.splitlines()
    assert lines[-1].startswith("0 problems, ")
    assert {"tunedb", "TVM", "threads", "compiler", "XGBoost", "database", "integrity"} <= {
        line.split()[1] for line in lines[:-1]
    }
    assert f"{filled} (--db): schema" in "\n".join(lines)


def test_a_compiler_that_fails_and_too_many_threads_are_found(with_tvm, run_json, monkeypatch):
    monkeypatch.setenv("CXX", "false")
    monkeypatch.setenv("TVM_NUM_THREADS", "4096")
    rows = {row["check"]: row for row in run_json("doctor", code=1)}
    row_has(rows["compiler"], status="problem", command="unset CXX")
    assert rows["threads"]["status"] == "warning"
    assert rows["threads"]["command"].startswith("export TVM_NUM_THREADS=")


def test_a_tvm_that_crashes_does_not_end_the_doctor(with_tvm, examine, monkeypatch, tmp_path):
    (tmp_path / "tvm").mkdir()
    (tmp_path / "tvm" / "__init__.py").write_text("import os\nos.kill(os.getpid(), 11)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    (row,) = examine(code=1, check="TVM")
    assert "signal 11" in row["message"]
    assert row["command"] == "pip install --force-reinstall 'tunedb[tvm]'"


def test_doctor_does_not_load_tvm_with_mismatched_ffi(with_tvm, examine, versions, monkeypatch):
    versions(apache_tvm_ffi="0.1.99")
    monkeypatch.setattr(doctor, "_self_check", None)
    (row,) = examine(code=1, check="TVM")
    assert row["status"] == "problem" and row["command"].startswith("pip install 'apache-tvm")


def test_two_xgboost_packages_are_a_problem(examine, versions):
    versions(xgboost="3.1.0", xgboost_cpu="3.1.0")
    (row,) = examine(code=1, check="XGBoost")
    assert row["status"] == "problem"
    assert row["command"].startswith("pip uninstall -y xgboost xgboost-cpu && ")


def test_missing_optional_packages_are_warnings(run_json, versions):
    versions(xgboost=None, xgboost_cpu=None, onnx=None, jinja2=None, scikit_learn=None)
    rows = [row for row in run_json("doctor") if row["status"] == "warning"]
    extras = {"XGBoost": "train", "onnx": "onnx", "jinja2": "report", "scikit-learn": "advise"}
    assert {row["check"]: row["command"] for row in rows} == {
        check: f"pip install 'tunedb[{extra}]'" for check, extra in extras.items()
    }


def test_the_prior_is_verified(run, examine, filled, tmp_path, monkeypatch):
    made = tmp_path / "team.prior"
    run("bundle", "--as-prior", "--licence", "MIT", "-o", made, "--db", filled)
    monkeypatch.setenv("TUNEDB_PRIOR", str(made))
    (row,) = examine(check="prior")
    assert row["status"] == "ok" and "digest verified" in row["message"]
    made.write_bytes(made.read_bytes()[:-1])
    (row,) = examine(code=1, check="prior")
    assert row["status"] == "problem" and str(made) in row["message"]
    assert row["command"] == "export TUNEDB_PRIOR=none"


def test_doctor_reports_old_empty_other_and_newer_databases(examine, filled, tmp_path):
    old = Path(shutil.copy(FROZEN / "0009.db", tmp_path / "old.db"))
    empty, other, newer = (tmp_path / f"{name}.db" for name in ("empty", "other", "newer"))
    empty.touch()
    other.write_bytes(b"no database" * 100)
    shutil.copy(filled, newer)
    sql(newer, "UPDATE alembic_version SET version_num = '9999'")
    commands = {}
    for path in (old, empty, other, newer):
        (row,) = examine("--db", path, code=1, check="database")
        assert row["status"] == "problem" and str(path) in row["message"]
        commands[path.stem] = row["command"]
    assert commands == {
        "old": f"tunedb db upgrade --db {old}",
        "empty": f"tunedb db init {empty}",
        "other": None,
        "newer": "pip install --upgrade tunedb",
    }


def test_a_missing_database_is_fine_and_a_missing_folder_is_not(examine, tmp_path):
    (row,) = examine(check="database")
    assert row["status"] == "ok" and "(default) does not exist" in row["message"]
    (row,) = examine("--db", tmp_path / "no" / "tune.db", code=1, check="folder")
    assert row["command"] == f"mkdir -p {tmp_path / 'no'}"


def test_a_damaged_database_is_a_problem(examine, filled):
    sql(filled, "PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(filled.read_bytes())
    page = int.from_bytes(data[16:18], "big")
    (root,) = sql(filled, "SELECT rootpage FROM sqlite_schema WHERE name = 'measurement'")[0]
    data[(root - 1) * page + 8 : (root - 1) * page + 64] = b"\xff" * 56
    filled.write_bytes(data)
    (row,) = examine("--db", filled, code=1, check="integrity")
    assert row["command"] == f"tunedb db check --db {filled}"
    assert "\n" not in row["message"]


def test_unapproved_database_is_a_warning(examine, filled):
    assert examine("--db", filled, check="approval") == []
    approval.forget(filled)
    (row,) = examine("--db", filled, check="approval")
    row_has(row, status="warning", command=f"tunedb db trust {filled}")


def test_a_server_that_does_not_answer_is_a_problem(examine, monkeypatch):
    url = "postgresql://alice:secret@127.0.0.1:1/tunedb"
    (row,) = examine("--db", url, code=1, check="database")
    assert "secret" not in row["message"] and "127.0.0.1:1" in row["message"]
    monkeypatch.setenv("TUNEDB_SERVER", url)
    (row,) = examine(code=1, check="server")
    assert row["status"] == "problem" and "secret" not in row["message"]


def test_little_disk_space_is_reported(examine, monkeypatch):
    for free, status in ((1 << 20, "problem"), (1 << 30, "warning")):
        usage = shutil.disk_usage("/")._replace(free=free)
        monkeypatch.setattr(shutil, "disk_usage", lambda folder, usage=usage: usage)
        rows = examine(code=int(status == "problem"), check="disk")
        assert [row["status"] for row in rows] == [status] * 2

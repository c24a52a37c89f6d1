"""The wheel: its contents, and its use in a fresh environment without the source tree."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from tunedb.storage import schema

#: A wheel is built and installed anew: a minute and a half.
pytestmark = pytest.mark.stress

ROOT = Path(__file__).resolve().parent.parent
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())
MAPPED = CONFIG["tool"]["setuptools"]["package-dir"]


def _run(*command, cwd, **options):
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel from a copy of the tree, as an installer would."""
    source = tmp_path_factory.mktemp("source") / "tunedb"
    listed = _run("git", "ls-files", "-co", "--exclude-standard", "-z", cwd=ROOT)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    out = tmp_path_factory.mktemp("wheel")
    _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", out, cwd=source)
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def names(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def _modules(names):
    found = set()
    for name in names:
        if name.endswith((".py", ".so")) and "dist-info" not in name:
            *folders, file = name.split("/")
            stem = file.partition(".")[0]
            found.add(".".join(folders if stem == "__init__" else [*folders, stem]))
    # Alembic runs the migrations; nobody imports them.
    return sorted(m for m in found if not m.startswith("tunedb.migrations.versions.0"))


def test_wheel_contains_only_the_package_tunedb(names):
    assert {name.split("/")[0].split("-")[0] for name in names} == {"tunedb"}
    assert len(names) == len(set(names))


def test_wheel_contains_all_source_files(names):
    """Each file of the mapped directories is in it under its mapped name."""
    expected = set()
    for package, folder in MAPPED.items():
        for path in (ROOT / folder).rglob("*"):
            relative = path.relative_to(ROOT / folder)
            linked = folder == "tunedb" and relative.parts[0] in ("cli", "plugins", "migrations")
            if path.suffix in (".py", ".pyi", ".pyx", ".mako", ".csv") and not linked:
                expected.add("/".join([*package.split("."), *relative.parts]))
    assert expected <= set(names)
    assert "tunedb/py.typed" in names
    assert any("_encode" in name and name.endswith(".so") for name in names)


def test_the_wheel_is_small_and_has_the_prior(wheel, names):
    assert "tunedb/prior/cpu.bundle" in names
    assert wheel.stat().st_size < 8_000_000
    assert (ROOT / "tunedb" / "prior" / "cpu.bundle").stat().st_size <= 3_000_000


def test_auditwheel_accepts_the_wheel_as_manylinux(wheel):
    """The wheel links only to libraries that manylinux allows."""
    shown = _run(sys.executable, "-m", "auditwheel", "show", wheel, cwd=ROOT)
    assert '"manylinux_2_' in shown


def test_pyright_knows_98_percent_of_public_types(fresh, tmp_path):
    """Type checkers of users know the types of the names in the installed package."""
    command = (sys.executable, "-m", "pyright", "--verifytypes", "tunedb", "--ignoreexternal")
    path = f"{fresh / 'bin'}:{os.environ['PATH']}"
    environment = os.environ | {"VIRTUAL_ENV": str(fresh), "PATH": path}
    options = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    # It exits with 1 unless all are known.
    done = subprocess.run((*command, "--outputjson"), **options)
    found = json.loads(done.stdout)["typeCompleteness"]
    exported = [symbol for symbol in found["symbols"] if symbol["isExported"]]
    assert len(exported) > 1000
    unknown = [symbol["name"] for symbol in exported if not symbol["isTypeKnown"]]
    assert found["completenessScore"] >= 0.98, unknown[:20]


@pytest.fixture(scope="module")
def fresh(wheel, tmp_path_factory):
    """A new environment with the wheel and the extras tvm, train and postgres."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, with_pip=True)
    command = [folder / "bin" / "python", "-m", "pip", "install", "--quiet"]
    _run(*command, f"{wheel}[tvm,train,postgres]", cwd=folder)
    return folder


@pytest.fixture
def environment():
    return {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}


def test_installed_command_works_in_another_directory(fresh, environment, tmp_path):
    program = fresh / "bin" / "tunedb"
    assert "Usage: tunedb" in _run(program, "--help", cwd=tmp_path, env=environment)
    _run(program, "db", "init", tmp_path / "new.db", cwd=tmp_path, env=environment)
    info = _run(program, "db", "info", "--json", "--db", "new.db", cwd=tmp_path, env=environment)
    assert f'"{schema.HEAD}"' in info


def test_the_doctor_and_the_demo_need_no_checkout(fresh, environment, tmp_path):
    program = fresh / "bin" / "tunedb"
    with_prior = {name: value for name, value in environment.items() if name != "TUNEDB_PRIOR"}
    doctor = _run(program, "doctor", cwd=tmp_path, env=with_prior)
    assert "0 problems" in doctor and "digest verified" in doctor
    for extra in ("onnx", "report", "advise"):
        assert f"pip install 'tunedb[{extra}]'" in doctor
    shown = _run(program, "demo", "--trials", "16", cwd=tmp_path, env=environment)
    assert shown.count("times faster; equal to NumPy") == 2
    assert "programs, times and arguments equal in both databases" in shown
    assert {path.name for path in tmp_path.iterdir()} == {"demo"}


def test_every_module_can_be_imported(fresh, names, tmp_path):
    """Only those that read ONNX need another extra; `module_source` imports them when it does."""
    modules = [m for m in _modules(names) if m != "tunedb.migrations.env"]
    assert len(modules) > 30
    code = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        print(name, "needs", error.name)
"""
    needs = _run(fresh / "bin" / "python", "-c", code, *modules, cwd=tmp_path)
    package = "tunedb.plugins.metaschedule.frontends"
    readers = [m for m in modules if m.startswith(f"{package}.onnx_")]
    assert len(readers) > 3
    assert needs.splitlines() == [f"{reader} needs onnx" for reader in readers]


def test_exactly_one_xgboost_package_is_installed_and_required():
    """xgboost and xgboost-cpu own the same module; `train` takes the small one."""
    installed = {d.metadata["Name"] for d in metadata.distributions()}
    assert len({"xgboost", "xgboost-cpu"} & installed) == 1
    extras = CONFIG["project"]["optional-dependencies"]
    assert [d for d in extras["train"] if d.startswith("xgboost")] == ["xgboost-cpu>=3.0,<4"]
    both = [name for name, needs in extras.items() if sum("xgboost" in n for n in needs) > 1]
    assert both == []
    assert "train-gpu" not in str(extras["all"])

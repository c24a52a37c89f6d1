"""Loading TVM's tensor intrinsics."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
import types

import pytest

from tunedb.plugins.metaschedule import intrinsics
from tunedb.plugins.metaschedule.intrinsics import load_intrinsics, needs_intrinsics
from tunedb.records import Trace

PACKAGE = "tvm.s_tir.tensor_intrin"


def frozen(stack):
    return [frame for frame in stack if frame.filename.startswith("<frozen importlib")]


def test_inspect_finds_frames_of_an_import_without_a_search(tmp_path, monkeypatch):
    """The frames equal those that inspect finds by its search."""
    (tmp_path / "asks.py").write_text("import inspect\nSTACK = inspect.stack()\n")
    monkeypatch.syspath_prepend(tmp_path)
    frozen_files = [f"<frozen importlib.{name}>" for name in ("_bootstrap", "_bootstrap_external")]
    for name in (*frozen_files, "<ast>"):
        monkeypatch.delitem(inspect.modulesbyfile, name, raising=False)
    searched = frozen(importlib.import_module("asks").STACK)
    monkeypatch.delitem(sys.modules, "asks")

    monkeypatch.delitem(sys.modules, PACKAGE, raising=False)
    monkeypatch.setattr(intrinsics, "import_module", lambda name: None)
    load_intrinsics()
    frames = frozen(importlib.import_module("asks").STACK)
    monkeypatch.delitem(sys.modules, "asks")

    assert {*frozen_files, "<ast>"} <= inspect.modulesbyfile.keys()
    assert {frame.filename for frame in frames} == set(frozen_files)
    assert [frame[1:] for frame in frames] == [frame[1:] for frame in searched]
    modules = {inspect.getmodule(frame.frame, frame.filename) for frame in frames}
    assert modules == {importlib._bootstrap, importlib._bootstrap_external}


def test_load_intrinsics_imports_without_frames_of_the_caller(monkeypatch):
    asked = []

    def import_module(name):
        asked.append((name, {frame.filename for frame in inspect.stack()[1:]}))
        raise ImportError("half of it")

    monkeypatch.delitem(sys.modules, PACKAGE, raising=False)
    monkeypatch.setattr(intrinsics, "import_module", import_module)
    with pytest.raises(ImportError, match="half of it"):
        load_intrinsics()
    ((name, files),) = asked
    assert name == PACKAGE
    assert __file__ not in files


def test_load_intrinsics_starts_no_thread_if_they_are_loaded(monkeypatch):
    """A replay calls it for each program that tensorizes."""
    monkeypatch.setitem(sys.modules, PACKAGE, types.ModuleType(PACKAGE))
    monkeypatch.setattr(intrinsics, "ThreadPoolExecutor", None)
    load_intrinsics()


def test_only_traces_that_tensorize_need_intrinsics():
    plain = b'[["GetSBlock",[],["C","main"],["b0"]]]'
    tensorizes = b'[["Tensorize",["b0"],["dot_16x4_vnni",0],[]]]'
    assert not needs_intrinsics(Trace(plain, tail=None, decisions=b"[]"))
    assert not needs_intrinsics(Trace(plain, tail=plain, decisions=b"[]"))
    assert needs_intrinsics(Trace(tensorizes, tail=None, decisions=b"[]"))
    assert needs_intrinsics(Trace(plain, tail=tensorizes, decisions=b"[]"))


@pytest.mark.stress
def test_load_intrinsics_adds_those_of_gpus_after_those_of_cpus():
    """It runs in a process of its own because TVM registers an intrinsic once."""
    program = """
from tvm.s_tir import TensorIntrin
from tunedb.plugins.metaschedule.intrinsics import *

def missing(name):
    return TensorIntrin.get(name, allow_missing=True) is None

with without_intrinsics():
    load_cpu_intrinsics()
    assert not missing("dot_16x4_vnni") and missing("wmma_fill_16x16x16_f32")
    load_intrinsics()
    assert not missing("wmma_fill_16x16x16_f32")
import tvm.s_tir.tensor_intrin as package
assert package.__file__
"""
    subprocess.run([sys.executable, "-c", program], check=True)

"""Which pairs of apache-tvm and apache-tvm-ffi the import accepts."""

from __future__ import annotations

import subprocess
import sys

import pytest
from raising import raises_line

from tunedb.errors import PluginError
from tunedb.plugins.metaschedule import compat
from tunedb.plugins.metaschedule.compat import check_pair


@pytest.mark.parametrize(
    ("tvm", "ffi"),
    [
        *((tvm, "0.1.14.post0") for tvm in ("0.26.0", "0.27.0", "0.27.0.post1", "0.27.1")),
        *(("0.27.0.post1", "0.1.14.post1"), ("0.26.0", "0.1.13.post3")),
        *(("0.25.0", "0.1.12"), ("0.25.0.post1", "0.1.12")),
        *(("0.28.dev0", "0.1.16"), ("0.29.0+g1234", None)),  # built from source
    ],
)
def test_check_pair_accepts_matching_releases(tvm, ffi):
    check_pair(tvm, ffi)


@pytest.mark.parametrize(
    ("tvm", "ffi"),
    [
        *(("0.27.0.post1", "0.1.15.post2"), ("0.27.0", "0.1.13.post3"), ("0.27.0", None)),
        *(("0.26.0", "0.1.12"), ("0.26.0", "0.1.15.post2"), ("0.25.0.post1", "0.1.14.post1")),
        *(("0.24.0", "0.1.12"), ("0.24.dev0", "0.1.12")),
        *((tvm, "0.1.14.post0") for tvm in ("0.28.0", "1.0", "nonsense")),
    ],
)
def test_check_pair_rejects_other_pairs_and_names_pip_command(tvm, ffi):
    with raises_line(PluginError, match="run: pip install 'apache-tvm") as caught:
        check_pair(tvm, ffi)
    assert tvm in str(caught.value)
    wanted = compat.RELEASES.get(compat._numbers(tvm)[:2], compat.RELEASES[compat.NEWEST])
    assert str(caught.value).endswith(wanted.requirements)


PRELUDE = """
import sys
from importlib import metadata, util

def missing(name):
    raise metadata.PackageNotFoundError(name)

version, find = metadata.version, util.find_spec
"""
IMPORT = """
try:
    import tunedb.plugins.metaschedule
except Exception as error:
    print(type(error).__name__, "tvm" in sys.modules, error)
"""


def printed(*changes):
    """Return what an import prints in a process where packages are changed."""
    code = "\n".join([PRELUDE, *changes, IMPORT])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_import_rejects_mismatched_ffi_before_loading_tvm():
    """The import of the plugin fails before TVM is loaded and can crash."""
    found = printed(
        'metadata.version = lambda of: "0.1.15.post2" if of == "apache-tvm-ffi" else version(of)'
    )
    assert found.startswith("PluginError False apache-tvm ") and "pip install" in found


def test_import_reports_missing_tvm_with_pip_command():
    found = printed(
        'metadata.version = lambda of: missing(of) if of == "apache-tvm" else version(of)',
        'util.find_spec = lambda of, *rest: None if of == "tvm" else find(of, *rest)',
    )
    assert found == "PluginError False TVM is not installed; run: pip install 'tunedb[tvm]'"

"""The compiled kernels under the address and undefined-behavior sanitizers, and for a long time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from memory import resident_bytes
from nests import with_array

from tunedb.features._nest import ForKind, NestBuilder, Op, Tag
from tunedb.features.base import NestFeatures, feature_sets

ROOT = Path(__file__).parents[2]
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")

pytestmark = pytest.mark.stress

#: Settings of the slow run under sanitizers, and a check that it imports the sanitized build.
PLUGIN = """
import tunedb.features._nest
from hypothesis import settings
from pathlib import Path

assert Path(tunedb.features._nest.__file__).is_relative_to(Path(__file__).parent)
settings.register_profile("sanitized", deadline=None, max_examples=50)
settings.load_profile("sanitized")
"""

#: Errors that the sanitizers must find, so that a run without findings means something.
BROKEN = """
from libc.stdint cimport int32_t
from libc.stdlib cimport free, malloc

def read(int n):
    cdef int32_t* data = <int32_t*>malloc(4 * sizeof(int32_t))
    free(data)
    return data[n]

def add(int32_t n):
    return n + <int32_t>0x7fffffff

def item(double[::1] values, int n):
    return values[n]
"""

CHECKS = ("boundscheck=True", "initializedcheck=True")


def library(name):
    """Return the path of a library that belongs to gcc."""
    command = ["gcc", f"-print-file-name={name}"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    path = Path(found.stdout.strip())
    if not path.is_absolute():
        pytest.skip(f"gcc has no {name} here")
    return str(path)


def compile_checked(source, folder):
    """Build a kernel in place with Cython's bounds checks and both sanitizers."""
    checks = [part for check in CHECKS for part in ("-X", check)]
    c = source.with_suffix(".c")
    run([sys.executable, "-m", "cython", "-3", *checks, source, "-o", c], folder)
    includes = [f"-I{sysconfig.get_path(name)}" for name in ("include", "platinclude")]
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    options = ["-O1", "-g", "-w", "-fPIC", "-shared", *sanitizers, *includes]
    run(["gcc", *options, c, "-o", source.with_suffix("").with_suffix(SUFFIX)], folder)


def start(command, folder, **environment):
    environment = {**os.environ, **environment}
    command = [str(part) for part in command]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def run(command, folder, **environment):
    done = start(command, folder, **environment)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory):
    """A copy of the package with other builds of its kernels, and how to run Python on it."""
    if not shutil.which("gcc"):
        pytest.skip("there is no gcc here")
    preload = library("libasan.so")
    folder = tmp_path_factory.mktemp("sanitized")
    ignore = shutil.ignore_patterns("__pycache__", "*.c")
    shutil.copytree(ROOT / "tunedb", folder / "tunedb", ignore=ignore)
    (folder / "sanitized_run.py").write_text(PLUGIN)
    (folder / "broken.pyx").write_text(BROKEN)
    sources = [*(folder / "tunedb" / "features").glob("*.pyx"), folder / "broken.pyx"]
    for source in sources:
        source.with_suffix("").with_suffix(SUFFIX).unlink(missing_ok=True)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda source: compile_checked(source, folder), sources))
    environment = {
        "PYTHONPATH": str(folder),
        "LD_PRELOAD": preload,
        "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter's own
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
    }
    return folder, environment


@pytest.mark.parametrize(
    ("call", "found"),
    [
        ("broken.read(1)", "heap-use-after-free"),
        ("broken.add(1)", "signed integer overflow"),
        ("broken.item(memoryview(bytearray(16)).cast('d'), 2)", "IndexError"),
    ],
)
def test_sanitizers_find_planted_errors(sanitized, call, found):
    folder, environment = sanitized
    done = start([sys.executable, "-c", f"import broken; {call}"], folder, **environment)
    assert done.returncode != 0
    assert found in done.stderr


def test_tests_of_kernels_pass_under_sanitizers(sanitized):
    folder, environment = sanitized
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not stress"]
    command += ["-p", "sanitized_run", "-p", "no:cacheprovider", "-p", "no:faulthandler"]
    # pytest must not capture what a sanitizer prints before it ends the process.
    command += ["--capture=sys"]
    # Errors in a kernel that cannot raise exceptions are only printed; they must fail the run.
    command += ["-W", "error::pytest.PytestUnraisableExceptionWarning"]
    # The run is not in the repository, where python -m would find the other package first.
    command += ["-c", ROOT / "pyproject.toml", "--rootdir", ROOT]
    tests = [ROOT / "tests" / "features", f"--ignore={__file__}"]
    assert "passed" in run([*command, *tests], folder, **environment)


def program(number):
    """Return a small program of its own: a tiled product, a thread and a condition."""
    build = NestBuilder()
    n = 4 + number % 5
    a, c = build.buffer("A", [n * n], kind=1), build.buffer(f"C{number % 7}", [n], kind=1)
    thread = {"kind": ForKind.THREAD_BINDING, "tag": Tag.THREAD_X} if number % 2 else {}
    at = build.loop_var(build.open_loop("i", n, **thread))
    k = build.loop_var(build.open_loop("k", n))
    place = build.node(Op.OP_ADD, [build.node(Op.OP_MUL, [at, build.int_(n)]), k])
    build.open_condition(build.node(Op.OP_LT, [place, build.int_(n)], code=6, bits=8))
    total = build.node(Op.OP_ADD, [build.load(c, [at]), build.load(a, [place])], code=2)
    build.store(c, [at], total)
    build.close_condition()
    for _ in range(2):
        build.close_loop()
    return build.nest


NEST_SETS = sorted(name for name, one in feature_sets().items() if isinstance(one, NestFeatures))


def assert_no_leak(repeat, first, then, most):
    """Check that `repeat(then)`, after `repeat(first)`, keeps fewer bytes than `most`."""
    repeat(first)
    before = resident_bytes()
    repeat(then)
    assert resident_bytes() - before < most


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
@pytest.mark.parametrize("name", NEST_SETS)
def test_nest_features_do_not_leak_over_a_million_programs(name):
    features = feature_sets()[name]
    programs = [program(number) for number in range(35)]

    def extract(count):
        for number in range(count):
            features.nest_rows(programs[number % 35], gpu=bool(number % 2))

    assert_no_leak(extract, 20_000, 1_000_000, 8 * 2**20)  # 8 bytes for each program


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_nest_builder_does_not_leak_over_a_million_nests():
    def build(count):
        for number in range(count):
            program(number)

    assert_no_leak(build, 20_000, 1_000_000, 8 * 2**20)


def rejected_program():
    """Return a program with several indices and a division by zero."""
    build, a = with_array(4, 4)
    i = build.loop("i", 4)
    a[i // 0, i] = a[i // 0, i] + 1.0
    return build.done()


@pytest.mark.parametrize("name", ["autotvm.itervar", "ansor.per_store/ansor"])
def test_rejected_programs_do_not_leak(name):
    """The code frees its memory on errors."""
    features, nest = feature_sets()[name], rejected_program()

    def refuse(count):
        for _ in range(count):
            with pytest.raises(Exception, match=r"several indices|divides by zero"):
                features.nest_rows(nest, gpu=False)

    assert_no_leak(refuse, 5_000, 100_000, 4 * 2**20)

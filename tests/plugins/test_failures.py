"""The texts are those of apache-tvm 0.27, quoted from its sources or from real runs."""

import doctest

import pytest

from tunedb.limits import MAX_MESSAGE_CHARS
from tunedb.plugins.metaschedule import failures
from tunedb.plugins.metaschedule.failures import classify, headline, tidy
from tunedb.records import FailureKind, Phase

TRACEBACK = """An exception occurred
Traceback (most recent call last):
  File "/site-packages/tvm/exec/popen_worker.py", line 96, in main
    result = fn(*args, **kwargs)
             ^^^^^^^^^^^^^^^^^^^
  File "/site-packages/tvm/s_tir/meta_schedule/runner/local_runner.py", line 125, in _worker_func
    raise SomeError("of this line only the last one counts")
"""

TRACKER = (
    "ValueError: Unable to connect to the tracker using the following configuration:\n"
    "    tracker host: 127.0.0.1\n    tracker port: 9190\n    timeout (sec): 10\n"
    "Please check the tracker status via the following command:\n"
)

CASES = [
    # LocalBuilder
    ("build", "LocalBuilder: Timeout, killed after 30.0 seconds", "timeout", 30.0),
    ("build", "LocalBuilder: An exception occurred\nSubprocess terminated", "crash", None),
    (
        "build",
        f"LocalBuilder: {TRACEBACK}tvm.error.InternalError: Check failed: (buffer) is false: no",
        "compile_error",
        None,
    ),
    (
        "build",
        f"LocalBuilder: {TRACEBACK}OSError: [Errno 28] No space left on device: '/tmp/x'",
        "infrastructure",
        None,
    ),
    (
        "build",
        f"LocalBuilder: {TRACEBACK}RuntimeError: Check failed: (bf) is false: "
        "target.build.cuda is not enabled",
        "infrastructure",
        None,
    ),
    ("build", f"LocalBuilder: {TRACEBACK}MemoryError", "infrastructure", None),
    (
        "build",
        f"LocalBuilder: {TRACEBACK}RuntimeError: Compilation error:\nx.cu(3)",
        "compile_error",
        None,
    ),
    # LocalRunner
    ("run", "LocalRunner: Timeout, killed after 7.5 seconds\n", "timeout", 7.5),
    ("run", "LocalRunner: An exception occurred\nSubprocess terminated", "crash", None),
    (
        "run",
        "LocalRunner: An exception occurred\nunpack requires a buffer of 4 bytes",
        "crash",
        None,
    ),
    (
        "run",
        f"LocalRunner: {TRACEBACK}AssertionError: \nNot equal to tolerance rtol=1e-05, atol=0\n",
        "wrong_result",
        None,
    ),
    (
        "run",
        f"LocalRunner: {TRACEBACK}AssertionError: \nArrays are not almost equal to 6 decimals",
        "wrong_result",
        None,
    ),
    ("run", "my runner: wrong answer in 3 of 16 elements", "wrong_result", None),
    (
        "run",
        f"LocalRunner: {TRACEBACK}RuntimeError: CUDA: an illegal memory access was encountered",
        "runtime_error",
        None,
    ),
    (
        "run",
        "LocalRunner: An exception occurred\n'Traceback\\nKeyError: 3\\n'",
        "runtime_error",
        None,
    ),
    (
        "run",
        "LocalRunner: An exception occurred\n'Traceback\\nTimeoutError: by the device\\n'",
        "timeout",
        None,
    ),
    (
        "run",
        f"LocalRunner: {TRACEBACK}OSError: /tmp/x.so: cannot open shared object file: No such file",
        "infrastructure",
        None,
    ),
    (
        "run",
        f"LocalRunner: {TRACEBACK}RuntimeError: Compilation error:\nld: no",
        "infrastructure",
        None,
    ),
    (
        "run",
        f"LocalRunner: {TRACEBACK}tvm.error.InternalError: Device API cuda is not enabled.",
        "infrastructure",
        None,
    ),
    (
        "run",
        f"LocalRunner: {TRACEBACK}tvm.error.InternalError: CUDAError: "
        "no CUDA-capable device is detected",
        "infrastructure",
        None,
    ),
    # RPCRunner
    ("run", "RPCRunner: Timeout, killed after 10 seconds", "timeout", 10.0),
    (
        "run",
        f"RPCRunner: {TRACEBACK}tvm.error.RPCSessionTimeoutError: "
        "RPCSessionTimeoutError: Your 10s session has expired, try",
        "timeout",
        10.0,
    ),
    ("run", f"RPCRunner: {TRACEBACK}{TRACKER}", "infrastructure", None),
    (
        "run",
        f"RPCRunner: {TRACEBACK}ConnectionRefusedError: [Errno 111] Connection refused",
        "infrastructure",
        None,
    ),
    (
        "run",
        f"RPCRunner: {TRACEBACK}RuntimeError: Cannot request android after 5 retry, last_error:x",
        "infrastructure",
        None,
    ),
    (
        "run",
        f"RPCRunner: {TRACEBACK}AttributeError: Unable to find function "
        '"tvm.contrib.random.random_fill_for_measure" on the remote RPC server.',
        "infrastructure",
        None,
    ),
    (
        "run",
        f"RPCRunner: {TRACEBACK}tvm.error.RPCError: Error caught from RPC call:\n"
        "ValueError: the kernel's argument 3 is misaligned",
        "runtime_error",
        None,
    ),
    (
        "run",
        f"RPCRunner: {TRACEBACK}tvm.error.InternalError: Channel closes before we get needed bytes",
        "crash",
        None,
    ),
    # others
    ("run", "", "unknown", None),
    ("unknown", "something", "unknown", None),
    ("build", "something", "compile_error", None),
    ("run", "something", "runtime_error", None),
]


@pytest.mark.parametrize(("phase", "message", "kind", "seconds"), CASES)
def test_texts_of_tvm(phase, message, kind, seconds):
    failure = classify(Phase(phase), message)
    assert (failure.kind, failure.seconds) == (FailureKind(kind), seconds)
    assert failure.phase == phase or phase == "unknown"
    assert failure.message == message


@pytest.mark.parametrize(
    "kind",
    [
        FailureKind.TIMEOUT,
        FailureKind.CRASH,
        FailureKind.COMPILE_ERROR,
        FailureKind.INFRASTRUCTURE,
    ],
)
@pytest.mark.parametrize("detail", ["", "signal 11, SIGSEGV"])
def test_headlines_are_read_back(kind, detail):
    text = (
        headline(kind, 10.0021, detail) + "\nTraceback ...\nValueError: TimeoutError: wrong result"
    )
    failure = classify(Phase.BUILD, text)
    assert (failure.kind, failure.seconds) == (kind, 10.002)


def test_a_full_disk_is_not_the_candidates_fault():
    text = headline(FailureKind.COMPILE_ERROR, 0.3)
    assert classify(Phase.BUILD, f"{text}\nValueError: bad loop").kind is FailureKind.COMPILE_ERROR
    full = classify(Phase.BUILD, f"{text}\nOSError: [Errno 28] No space left on device")
    assert full.kind is FailureKind.INFRASTRUCTURE


@pytest.mark.parametrize(
    ("message", "phase"),
    [
        (headline(FailureKind.CRASH, 1.0), Phase.BUILD),
        ("LocalBuilder: An exception occurred\nx", Phase.BUILD),
        ("LocalRunner: An exception occurred\nx", Phase.RUN),
        ("RPCRunner: An exception occurred\nx", Phase.RUN),
        ("somebody else: LocalRunner: x", Phase.UNKNOWN),
    ],
)
def test_the_speaker_tells_an_unknown_phase(message, phase):
    assert classify(Phase.UNKNOWN, message).phase is phase


def test_the_middle_of_a_long_message_is_cut_out():
    text = headline(FailureKind.COMPILE_ERROR, 0.5) + "\n" + "x" * 10**6 + "\nthe cause"
    failure = classify(Phase.BUILD, text)
    assert len(failure.message) <= MAX_MESSAGE_CHARS
    assert failure.message.startswith(failures.SPEAKER)
    assert failure.message.endswith("x\nthe cause")
    assert "characters cut out" in failure.message
    assert failure.seconds == 0.5


@pytest.mark.parametrize("length", [0, 1, 99, 100, 101, 102, 150, 10_000])
def test_tidy_keeps_the_limit_and_what_fits(length):
    text = "ab" * (length // 2) + "c" * (length % 2)
    tidied = tidy(text, 100)
    assert tidied == text if length <= 100 else 90 <= len(tidied) <= 100


def test_tidy_makes_text_storable():
    assert tidy("a\0b\udc80c") == "a\N{REPLACEMENT CHARACTER}b?c"


def test_examples():
    assert doctest.testmod(failures).attempted > 0
    assert doctest.testmod(failures).failed == 0

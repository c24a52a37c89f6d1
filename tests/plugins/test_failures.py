"""Classification of failures; the messages are quoted from apache-tvm 0.27 or from real runs."""

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

BUILDER, RUNNER, RPC = (
    f"{name}: {TRACEBACK}" for name in ("LocalBuilder", "LocalRunner", "RPCRunner")
)

#: (phase, kind, seconds) and the messages that `classify` maps to them.
MESSAGES = {
    ("build", "timeout", 30.0): ["LocalBuilder: Timeout, killed after 30.0 seconds"],
    ("build", "crash", None): ["LocalBuilder: An exception occurred\nSubprocess terminated"],
    ("build", "compile_error", None): [
        f"{BUILDER}tvm.error.InternalError: Check failed: (buffer) is false: no",
        f"{BUILDER}RuntimeError: Compilation error:\nx.cu(3)",
        "something",
    ],
    ("build", "infrastructure", None): [
        f"{BUILDER}OSError: [Errno 28] No space left on device: '/tmp/x'",
        f"{BUILDER}RuntimeError: Check failed: (bf) is false: target.build.cuda is not enabled",
        f"{BUILDER}MemoryError",
    ],
    ("run", "timeout", 7.5): ["LocalRunner: Timeout, killed after 7.5 seconds\n"],
    ("run", "timeout", None): [
        "LocalRunner: An exception occurred\n'Traceback\\nTimeoutError: by the device\\n'"
    ],
    ("run", "timeout", 10.0): [
        "RPCRunner: Timeout, killed after 10 seconds",
        f"{RPC}tvm.error.RPCSessionTimeoutError: "
        "RPCSessionTimeoutError: Your 10s session has expired, try",
    ],
    ("run", "crash", None): [
        "LocalRunner: An exception occurred\nSubprocess terminated",
        "LocalRunner: An exception occurred\nunpack requires a buffer of 4 bytes",
        f"{RPC}tvm.error.InternalError: Channel closes before we get needed bytes",
    ],
    ("run", "wrong_result", None): [
        f"{RUNNER}AssertionError: \nNot equal to tolerance rtol=1e-05, atol=0\n",
        f"{RUNNER}AssertionError: \nArrays are not almost equal to 6 decimals",
        "my runner: wrong answer in 3 of 16 elements",
    ],
    ("run", "runtime_error", None): [
        f"{RUNNER}RuntimeError: CUDA: an illegal memory access was encountered",
        "LocalRunner: An exception occurred\n'Traceback\\nKeyError: 3\\n'",
        f"{RPC}tvm.error.RPCError: Error caught from RPC call:\n"
        "ValueError: the kernel's argument 3 is misaligned",
        "something",
    ],
    ("run", "infrastructure", None): [
        f"{RUNNER}OSError: /tmp/x.so: cannot open shared object file: No such file",
        f"{RUNNER}RuntimeError: Compilation error:\nld: no",
        f"{RUNNER}tvm.error.InternalError: Device API cuda is not enabled.",
        f"{RUNNER}tvm.error.InternalError: CUDAError: no CUDA-capable device is detected",
        f"{RPC}{TRACKER}",
        f"{RPC}ConnectionRefusedError: [Errno 111] Connection refused",
        f"{RPC}RuntimeError: Cannot request android after 5 retry, last_error:x",
        f"{RPC}AttributeError: Unable to find function "
        '"tvm.contrib.random.random_fill_for_measure" on the remote RPC server.',
    ],
    ("run", "unknown", None): [""],
    ("unknown", "unknown", None): ["something"],
}
CASES = [(*key, message) for key, messages in MESSAGES.items() for message in messages]


@pytest.mark.parametrize(("phase", "kind", "seconds", "message"), CASES)
def test_classify_reads_kind_and_seconds_from_messages_of_tvm(phase, kind, seconds, message):
    failure = classify(Phase(phase), message)
    assert (failure.kind, failure.seconds) == (FailureKind(kind), seconds)
    assert failure.phase == phase or phase == "unknown"
    assert failure.message == message


@pytest.mark.parametrize("kind", ["timeout", "crash", "compile_error", "infrastructure"])
@pytest.mark.parametrize("detail", ["", "signal 11, SIGSEGV"])
def test_classify_reads_headlines_of_tunedb(kind, detail):
    text = headline(FailureKind(kind), 10.0021, detail)
    text += "\nTraceback ...\nValueError: TimeoutError: wrong result"
    failure = classify(Phase.BUILD, text)
    assert (failure.kind, failure.seconds) == (kind, 10.002)


def test_classify_maps_full_disk_to_infrastructure():
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
def test_classify_derives_unknown_phase_from_speaker_of_message(message, phase):
    assert classify(Phase.UNKNOWN, message).phase is phase


def test_classify_cuts_out_middle_of_long_messages():
    text = headline(FailureKind.COMPILE_ERROR, 0.5) + "\n" + "x" * 10**6 + "\nthe cause"
    failure = classify(Phase.BUILD, text)
    assert len(failure.message) <= MAX_MESSAGE_CHARS
    assert failure.message.startswith(failures.SPEAKER)
    assert failure.message.endswith("x\nthe cause")
    assert "characters cut out" in failure.message
    assert failure.seconds == 0.5


@pytest.mark.parametrize("length", [0, 100, 101, 10_000])
def test_tidy_shortens_text_over_the_limit_and_replaces_what_cannot_be_stored(length):
    text = "ab" * (length // 2) + "c" * (length % 2)
    tidied = tidy(text, 100)
    assert tidied == text if length <= 100 else 90 <= len(tidied) <= 100
    assert tidy("a\0b\udc80c") == "a\N{REPLACEMENT CHARACTER}b?c"


def test_doctest_examples_pass():
    assert doctest.testmod(failures).attempted > 0
    assert doctest.testmod(failures).failed == 0

"""From the error messages of TVM's builders and runners to causes of failure.

TVM hands on a text and nothing else. The texts are those of apache-tvm 0.27:
``s_tir/meta_schedule/builder/local_builder.py``, ``runner/local_runner.py``,
``runner/rpc_runner.py``, ``runner/config.py``, ``rpc/client.py`` and ``support/popen_pool.py``.
This module imports no TVM, so that logs can be classified without it.
"""

from __future__ import annotations

import re
from typing import Final

from ...limits import MAX_MESSAGE_CHARS
from ...records import Failure, FailureKind, Phase

#: First words of every message of :class:`~.warm_builder.WarmBuilder`.
SPEAKER: Final = "tunedb WarmBuilder"

_WORDS: Final = {
    FailureKind.TIMEOUT: "timeout",
    FailureKind.CRASH: "crash",
    FailureKind.COMPILE_ERROR: "compile error",
    FailureKind.INFRASTRUCTURE: "infrastructure error",
}
_KINDS: Final = {word: kind for kind, word in _WORDS.items()}
_HEADLINE: Final = re.compile(rf"{SPEAKER}: ([a-z ]+?) after (\d+(?:\.\d+)?) s\b")

# Where an exception's name may stand: at the beginning of a line, or after an escaped line break
# (str(KeyError(text)) is a repr, and the workers of TVM wrap a traceback in the type they caught).
_LINE: Final = r"(?:^|\\n)(?:[A-Za-z_][\w.]*\.)?"

_KILLED: Final = re.compile(
    r"\A(?:LocalBuilder|LocalRunner|RPCRunner): Timeout, killed after (\d+(?:\.\d+)?) seconds"
)
_TIMEOUTS: Final = re.compile(
    r"(?:RPCSessionTimeoutError(?:: )?)+(?:Your (\d+(?:\.\d+)?)s session has expired)?"
    r"|Session timeout when running"
    rf"|{_LINE}TimeoutError\b",
    re.MULTILINE,
)
_WRONG_RESULTS: Final = re.compile(
    r"Not equal to tolerance"
    r"|(?:Arrays|Items) are not (?:almost )?equal"
    r"|\b(?:wrong|incorrect) (?:results?|answers?|outputs?)\b"
    r"|\b(?:results?|outputs?) (?:mismatch|do(?:es)? not match)",
    re.IGNORECASE,
)
# The last two: a process that died in the middle of its answer, as popen_pool.py reads it.
_CRASHES: Final = re.compile(
    r"Subprocess terminated|Segmentation fault|encountered a Segfault"
    r"|\bSIG(?:SEGV|ABRT|BUS|ILL|FPE|KILL)\b"
    r"|Channel closes before we get needed bytes"
    rf"|{_LINE}(?:ChildProcessError|BrokenProcessPool)\b"
    r"|An exception occurred\n(?:unpack requires a buffer|Ran out of input|pickle data was trunc)",
    re.MULTILINE,
)
_INFRASTRUCTURE: Final = re.compile(
    # this machine
    r"No space left on device|Disk quota exceeded|Too many open files|Read-only file system"
    r"|Cannot allocate memory|std::bad_alloc|Permission denied"
    rf"|{_LINE}(?:MemoryError|ImportError|ModuleNotFoundError|FileNotFoundError|PermissionError)\b"
    # the way to another machine
    r"|Connection (?:refused|reset by peer|timed out)|No route to host|Network is unreachable"
    r"|Name or service not known|Temporary failure in name resolution"
    r"|Unable to connect to the tracker|Unable to find servers with the specific key"
    r"|Cannot request .{1,200} after \d+ retry|Failed to run on .{1,200} after \d+ retry"
    r"|is not RPC Tracker|is not TVM RPC server|RPCConfig\.\w+ is not provided"
    rf"|{_LINE}(?:RPCServerError|Connection\w*Error)\b"
    # a device, library or function that is missing
    r"|no CUDA-capable device|driver version is insufficient|CUDA_ERROR_(?:NO_DEVICE|NOT_FOUND)"
    r"|\w is not enabled\b|[Nn]o (?:\w+ )?device (?:was )?found|cannot open shared object file"
    r"|[Cc]annot load (?:library|module)|Failed to load dynamic shared library"
    r"|is not registered (?:on|in) the worker|on the remote RPC server"
    r"|[Ww]orker could not (?:be )?start|because the `cuda-bindings` package",
    re.MULTILINE,
)
_PATTERNS: Final = (
    (_WRONG_RESULTS, FailureKind.WRONG_RESULT),
    (_CRASHES, FailureKind.CRASH),
    (_INFRASTRUCTURE, FailureKind.INFRASTRUCTURE),
)
_DEFAULTS: Final = {
    Phase.BUILD: FailureKind.COMPILE_ERROR,
    Phase.RUN: FailureKind.RUNTIME_ERROR,
    Phase.UNKNOWN: FailureKind.UNKNOWN,
}
_PHASES: Final = (
    (re.compile(rf"\A(?:{SPEAKER}|LocalBuilder):"), Phase.BUILD),
    (re.compile(r"\A(?:LocalRunner|RPCRunner):"), Phase.RUN),
)
_CUT: Final = "\n[... {} characters cut out ...]\n"
# Linking a .tar artifact happens when a runner loads it: the candidate did compile.
_LINKING: Final = re.compile(r"Compilation error:")


def classify(phase: Phase, error_msg: str) -> Failure:
    """Return the cause that the message of a builder or runner tells.

    Parameters
    ----------
    phase : Phase
        Phase of the failure. The writer of the message replaces ``UNKNOWN``.
    error_msg : str
        ``BuilderResult.error_msg`` or ``RunnerResult.error_msg``.

    Returns
    -------
    Failure
        With the message made storable by :func:`tidy`, and the seconds where the message has them.
    """
    if phase is Phase.UNKNOWN:
        phase = next((known for writer, known in _PHASES if writer.match(error_msg)), phase)
    message = tidy(error_msg)
    kind, seconds = _kind(phase, message)
    return Failure(kind, phase, message, seconds)


def headline(kind: FailureKind, seconds: float, detail: str = "") -> str:
    """Return the first line of a message, which :func:`classify` reads back.

    Examples
    --------
    >>> headline(FailureKind.CRASH, 0.31, "signal 11, SIGSEGV")
    'tunedb WarmBuilder: crash after 0.310 s (signal 11, SIGSEGV)'
    """
    return f"{SPEAKER}: {_WORDS[kind]} after {seconds:.3f} s" + (f" ({detail})" if detail else "")


def tidy(text: str, limit: int = MAX_MESSAGE_CHARS) -> str:
    """Return the text as every layer can carry it: bounded, without NUL and lone surrogates.

    The middle of a longer text is cut out: the beginning names the failure, and the end of a
    chain of tracebacks has its cause. PostgreSQL refuses NUL, UTF-8 refuses surrogates.
    """
    # Cut first: a text of gigabytes must not be copied three times.
    if len(text) > limit:
        room = limit - len(_CUT.format(len(text)))
        head, tail = text[: room // 2], text[len(text) - (room - room // 2) :]
        text = head + _CUT.format(len(text) - room) + tail
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()


def _kind(phase: Phase, message: str) -> tuple[FailureKind, float | None]:
    if found := _HEADLINE.match(message):
        kind = _KINDS.get(found[1], FailureKind.UNKNOWN)
        # A worker reports every exception as a compile error; a full disk is not the candidate's.
        if kind is FailureKind.COMPILE_ERROR and _INFRASTRUCTURE.search(message):
            kind = FailureKind.INFRASTRUCTURE
        return kind, float(found[2])
    if found := _KILLED.match(message) or _TIMEOUTS.search(message):
        return FailureKind.TIMEOUT, float(found[1]) if found[1] else None
    return _kind_without_seconds(phase, message), None


def _kind_without_seconds(phase: Phase, message: str) -> FailureKind:
    for pattern, kind in _PATTERNS:
        if pattern.search(message):
            return kind
    if not message.strip():
        return FailureKind.UNKNOWN
    if phase is Phase.RUN and _LINKING.search(message):
        return FailureKind.INFRASTRUCTURE
    return _DEFAULTS[phase]

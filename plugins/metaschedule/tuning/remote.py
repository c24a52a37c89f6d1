"""Remote devices behind TVM's tracker: connections and descriptions."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from tvm import rpc
from tvm.s_tir.meta_schedule.runner import EvaluatorConfig, RPCConfig, RPCRunner

from ....errors import PluginError, UsageError
from ....identity import canonical_json
from ....records import Session
from ....system.host import fingerprint_of
from ..targets import first_line

__all__ = ["describe", "rpc_config", "rpc_runner", "servers"]

T = TypeVar("T")

#: Seconds to wait for the facts of a device that others use.
BUSY_SEC = 60.0

#: Facts of the compiling machine in a session, which those of the remote device replace.
_LOCAL = ("cpu", "cores", "threads", "gpu", "os", "python")


def rpc_config(tracker: str | None, key: str | None, *, timeout_sec: float = 10.0) -> RPCConfig:
    """Return TVM's configuration of a tracker.

    Parameters
    ----------
    tracker : str or None
        ``HOST:PORT``; None for the values of ``TVM_TRACKER_HOST`` and ``TVM_TRACKER_PORT``.
    key : str or None
        Key of the devices; None for ``TVM_TRACKER_KEY``.
    timeout_sec : float
        Seconds for one candidate on a device.

    Raises
    ------
    UsageError
        `tracker` has another form, or a tracker or key is missing.
    """
    host = port = None
    if tracker is not None:
        host, _, number = tracker.rpartition(":")
        if not host or not number.isdigit() or not 0 < int(number) < 1 << 16:
            raise UsageError(f"tracker {tracker!r} is not HOST:PORT, e.g. 192.168.0.2:9190")
        host, port = host.strip("[]"), int(number)
    return _complete(
        RPCConfig(
            tracker_host=host, tracker_port=port, tracker_key=key, session_timeout_sec=timeout_sec
        )
    )


def servers(config: RPCConfig) -> int:
    """Return the number of devices that a tracker has under a key.

    Raises
    ------
    UsageError
        Neither the configuration nor the environment names a tracker and a key.
    PluginError
        The tracker does not answer, or has no such device; the message has the command that starts
        one.
    """
    config = _complete(config)
    keys = [item["key"].removeprefix("server:") for item in _summary(config)["server_info"]]
    number = keys.count(config.tracker_key)
    if not number:
        others = ", ".join(sorted(set(keys))) or "none"
        raise PluginError(
            f"tracker {_address(config)} has no device {config.tracker_key!r} (it has: {others}); "
            f"start one: python -m tvm.exec.rpc_server --tracker {_address(config)} "
            f"--key {config.tracker_key}"
        )
    return number


def rpc_runner(config: RPCConfig, evaluator: EvaluatorConfig) -> Any:
    """Return TVM's runner for the devices of a tracker, with one worker for each.

    Raises
    ------
    UsageError, PluginError
        As :func:`servers`.
    """
    number = servers(config)
    return RPCRunner(rpc_config=_complete(config), evaluator_config=evaluator, max_workers=number)


def describe(config: RPCConfig, device_type: str, session: Session) -> Session:
    """Return a session whose programs run on a remote device.

    The device reports its processor, its cores and, unless it is a CPU, its name, if its runtime
    has the functions for that. Devices of one key count as one machine.

    Parameters
    ----------
    config : RPCConfig
        The tracker and the key.
    device_type : str
        Kind of the device: ``cpu``, ``cuda``, ``opencl``, ….
    session : Session
        Session of this machine, which compiles.

    Returns
    -------
    Session
        Its fingerprint has ``remote`` (key and device) and the facts of the device.

    Raises
    ------
    UsageError, PluginError
        As :func:`servers`, or the device is busy for longer than :data:`BUSY_SEC`.
    """
    config = _complete(config)
    servers(config)
    facts = _within(
        BUSY_SEC,
        lambda: _ask(config, device_type),
        f"device {config.tracker_key!r} of tracker {_address(config)}",
        f"has been busy for {BUSY_SEC:.0f} s; try again later",
    )
    compiling = {k: v for k, v in fingerprint_of(session).items() if k not in _LOCAL}
    remote = {"key": config.tracker_key, "device": device_type}
    return replace(session, fingerprint=canonical_json({**compiling, **facts, "remote": remote}))


def _ask(config: RPCConfig, device_type: str) -> dict[str, Any]:
    """Return the facts of a device."""
    server = rpc.connect_tracker(config.tracker_host, config.tracker_port).request(
        config.tracker_key,
        priority=config.session_priority,
        session_timeout=config.session_timeout_sec,
    )
    return dict(_answers(server, device_type))


def _answers(server: Any, device_type: str) -> Iterator[tuple[str, Any]]:
    """Yield the facts that a device reports."""
    device = server.device(device_type, 0)
    if not device.exist:
        raise PluginError(f"it has no {device_type}; give the target of a device that it has")
    facts: dict[str, Callable[[], Any]] = {
        "cpu": lambda: str(server.get_function("target.llvm_get_system_cpu")()),
        "cores": lambda: int(server.get_function("runtime.NumThreads")()),
    }
    if device_type != "cpu":
        facts["gpu"] = lambda: str(device.device_name)
        facts["gpu_arch"] = lambda: str(device.compute_version)
    for name, read in facts.items():
        try:
            value = read()
        except Exception:  # noqa: S112 - its runtime has no such function
            continue
        if value not in ("", "None", 0):
            yield name, value


def _complete(config: RPCConfig) -> RPCConfig:
    """Return a configuration with missing values from the environment."""
    try:
        return RPCConfig._normalized(config)
    except ValueError as error:
        raise UsageError(" ".join(str(error).split())) from None


def _summary(config: RPCConfig) -> dict[str, Any]:
    """Return a tracker's summary of its devices."""
    place = (config.tracker_host, config.tracker_port)
    timeout = max(1.0, float(config.session_timeout_sec))
    subject, silent = f"tracker {_address(config)}", "does not answer"
    try:
        # TVM's client retries for a minute and logs each failure.
        socket.create_connection(place, timeout=timeout).close()
    except OSError as error:
        raise PluginError(
            f"{subject} {silent} ({error.strerror or error}); start one: "
            f"python -m tvm.exec.rpc_tracker --host 0.0.0.0 --port {config.tracker_port}"
        ) from None
    summary: dict[str, Any] = _within(
        timeout, lambda: rpc.connect_tracker(*place).summary(), subject, silent
    )
    return summary


def _within(seconds: float, work: Callable[[], T], subject: str, late: str) -> T:
    """Return a function's result; raise PluginError if it takes too long or fails."""
    results: list[T] = []
    errors: list[str] = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:
            # The traceback of the error itself would keep the device busy.
            errors.append(first_line(error))

    # TVM's sockets have no other time limit.
    thread = threading.Thread(target=run, name="tunedb-rpc", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise PluginError(f"{subject}: {errors[0]}")
    if not results:
        raise PluginError(f"{subject} {late}")
    return results[0]


def _address(config: RPCConfig) -> str:
    return f"{config.tracker_host}:{config.tracker_port}"

"""Remote devices, behind TVM's tracker and server on this machine."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time

import psutil
import pytest
from fake_measuring import FakeBuilder
from tvm import rpc
from tvm.s_tir.meta_schedule.runner import EvaluatorConfig, RPCConfig

from tunedb import PluginError, UsageError
from tunedb.plugins.metaschedule.tuning import remote
from tunedb.plugins.metaschedule.tuning.defaults import evaluator_of, remote_of
from tunedb.plugins.metaschedule.tuning.tune import tune
from tunedb.system.host import fingerprint_of, new_session, session_class

QUICK = EvaluatorConfig(number=1, repeat=2, min_repeat_ms=0)
LLVM = {"kind": "llvm", "num-cores": 2, "mcpu": "x86-64-v2"}


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def start(module, port, *arguments):
    command = [sys.executable, "-m", f"tvm.exec.{module}", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--port-end", str(port + 1), *arguments]
    nowhere = subprocess.DEVNULL
    return subprocess.Popen(command, stdout=nowhere, stderr=nowhere)


@pytest.fixture(scope="module")
def tracker():
    """Address of a tracker that has one device, ``board``."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    board = ("--tracker", address, "--key", "board")
    started = [start("rpc_tracker", port), start("rpc_server", free_port(), *board)]
    try:
        until = time.monotonic() + 300
        while True:
            try:
                remote.servers(remote.rpc_config(address, "board"))
                break
            except PluginError:
                assert time.monotonic() < until
                time.sleep(0.2)
        yield address
    finally:
        for process in reversed(started):
            # The listener is a process of its own, which TVM does not end.
            family = psutil.Process(process.pid).children(recursive=True)
            process.terminate()
            process.wait()
            for child in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()


def test_describe_returns_session_of_the_device(tracker):
    config = remote.rpc_config(tracker, "board")
    here = new_session(tvm="0.27.0", llvm="22")
    session = remote.describe(config, "cpu", here)
    fingerprint = fingerprint_of(session)
    assert fingerprint["remote"] == {"key": "board", "device": "cpu"}
    assert fingerprint["cpu"]
    assert fingerprint["cores"] >= 1
    # Versions of the compilers stay; other properties of this machine do not.
    assert (fingerprint["tvm"], fingerprint["llvm"]) == ("0.27.0", "22")
    assert not fingerprint.keys() & {"os", "python", "gpu"}
    assert session_class(session) != session_class(here)
    again = remote.describe(config, "cpu", new_session(tvm="0.27.0", llvm="22"))
    assert session_class(session) == session_class(again)


def test_describe_names_a_device_that_lacks_the_kind_or_stays_busy(tracker, monkeypatch):
    config = remote.rpc_config(tracker, "board")
    with pytest.raises(PluginError, match=r"device 'board' of tracker .*: it has no cuda"):
        remote.describe(config, "cuda", new_session())
    held = rpc.connect_tracker(config.tracker_host, config.tracker_port).request("board")
    monkeypatch.setattr(remote, "BUSY_SEC", 0.3)
    with pytest.raises(PluginError, match=r"device 'board' of tracker .* has been busy for 0 s"):
        remote.describe(config, "cpu", new_session())
    del held


def test_servers_counts_devices_and_rejects_unknown_key(tracker):
    assert remote.servers(remote.rpc_config(tracker, "board")) == 1
    start = f"start one: .*--tracker {tracker} --key phone"
    with pytest.raises(PluginError, match=rf"has no device 'phone' \(it has: board\); {start}"):
        remote.servers(remote.rpc_config(tracker, "phone"))


def test_servers_names_tracker_that_does_not_answer_and_server_that_is_none():
    port = free_port()
    words = rf"tracker 127.0.0.1:{port} does not answer .*--port {port}"
    with pytest.raises(PluginError, match=words):
        remote.servers(remote.rpc_config(f"127.0.0.1:{port}", "board"))
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(PluginError, match=f"tracker {address} does not answer$"):
            remote.servers(remote.rpc_config(address, "board", timeout_sec=0.2))


@pytest.mark.parametrize("address", ["localhost", ":9190", "localhost:", "localhost:x", "a:99999"])
def test_rpc_config_rejects_invalid_addresses(address):
    with pytest.raises(UsageError, match="is not HOST:PORT"):
        remote.rpc_config(address, "board")


def test_rpc_config_takes_missing_options_from_the_environment(monkeypatch):
    for name in ("HOST", "PORT", "KEY"):
        monkeypatch.delenv(f"TVM_TRACKER_{name}", raising=False)
    with pytest.raises(UsageError, match="TVM_TRACKER_KEY"):
        remote.rpc_config("[::1]:9190", None)
    monkeypatch.setenv("TVM_TRACKER_KEY", "board")
    config = remote.rpc_config("[::1]:9190", None)
    assert (config.tracker_host, config.tracker_port, config.tracker_key) == ("::1", 9190, "board")
    with pytest.raises(UsageError, match="TVM_TRACKER_HOST"):
        remote.rpc_config(None, "board")


def test_tune_rejects_remote_device_without_target(tools):
    with pytest.raises(UsageError, match="describe the remote device: target="):
        tune(tools.matmul(16), runner=RPCConfig("127.0.0.1", 9190, "board"))


@pytest.mark.stress
def test_tune_measures_on_remote_device_and_stores_its_session(tracker, tools, tmp_path):
    """Programs are built here and measured on the device."""
    config = remote.rpc_config(tracker, "board", timeout_sec=60)
    options = {
        **{"database": tmp_path / "tune.db", "runner": config, "evaluator": QUICK, "seed": 1},
        **{"cost_model": "random", "strategy": "replay-trace", "num_tuning_cores": 1},
        "finals": False,
    }
    mod = tools.matmul(32)
    result = tune(mod, LLVM, None, 4, **options)
    (task,) = result.tasks
    assert (task.progress.trials, task.progress.failed) == (4, 0)
    measurement = task.record.measurement
    fingerprint = fingerprint_of(measurement.session)
    assert fingerprint["remote"] == {"key": "board", "device": "cpu"}
    assert fingerprint["evaluator"]["repeat"] == len(measurement.run_secs) == 2
    result.database.close()
    # The next run serves what the device has measured.
    builder = FakeBuilder()
    again = tune(mod, LLVM, None, 4, **options, builder=builder)
    assert (again.served, builder.built) == (4, [])
    again.database.close()
    builder.close()


def test_remote_of_reads_configuration_from_runner_of_the_user(tracker):
    config = remote.rpc_config(tracker, "board")
    runner = remote.rpc_runner(config, QUICK)
    assert remote_of(runner) == config
    assert evaluator_of(runner, EvaluatorConfig()) == QUICK
    assert remote_of(object()) is None
    assert remote_of("local") is None

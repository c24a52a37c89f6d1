import orjson

from tunedb import __version__
from tunedb.identity import canonical_json
from tunedb.records import Session
from tunedb.system import host


def test_sessions_differ_even_in_the_same_microsecond(monkeypatch):
    monkeypatch.setattr("time.time_ns", lambda: 1_700_000_000_000_000_000)
    one, other = host.new_session(), host.new_session()
    assert one.started_at == other.started_at == 1_700_000_000_000_000
    assert one.digest != other.digest
    assert one.fingerprint == other.fingerprint


def test_fingerprint_sorts_its_keys_and_omits_unknown_values():
    found = orjson.loads(host.new_session(tvm="0.27", llvm=None, gpu="H200").fingerprint)
    assert (found["tvm"], found["gpu"], found["tunedb"]) == ("0.27", "H200", __version__)
    assert "llvm" not in found
    assert {"cpu", "os", "python", "cores"} <= found.keys()
    assert list(found) == sorted(found)


def test_cpu_model_returns_first_name_of_cpuinfo_or_machine_type(monkeypatch, tmp_path):
    for model in (host.cpu_model(), host.gpu_model()):
        assert model is None or (model.strip() == model and model and "\n" not in model)
    listing = tmp_path / "cpuinfo"
    monkeypatch.setattr(host, "Path", lambda _: listing)
    monkeypatch.setattr("platform.processor", lambda: "")
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert host.cpu_model() == "riscv64"
    listing.write_bytes(b"processor\t: 0\nmodel name\t: Test \xff CPU\nmodel name\t: Other\n")
    assert host.cpu_model() == "Test � CPU"


def test_gpu_model_reads_files_of_the_nvidia_driver(monkeypatch, tmp_path):
    for number, text in enumerate(["Bus Type: PCIe\n", "Model: \t NVIDIA H200\nIRQ: 1\n"]):
        folder = tmp_path / f"0000:0{number}:00.0"
        folder.mkdir()
        (folder / "information").write_text(text)
    monkeypatch.setattr(host, "Path", lambda _: tmp_path)
    assert host.gpu_model() == "NVIDIA H200"


def test_session_class_depends_on_evaluator_and_machine_class_does_not():
    def session(**fingerprint):
        content = {"cpu": "Test CPU", "threads": {"count": 2}, **fingerprint}
        return Session("a", 1, canonical_json(content))

    one, other = session(evaluator={"repeat": 3}), session(evaluator={"repeat": 1})
    assert host.session_class(one) != host.session_class(other)
    assert host.machine_class(one) == host.machine_class(other) == host.session_class(session())
    assert host.machine_class(session(threads={"count": 1})) != host.machine_class(one)


def test_last_cache_returns_size_of_highest_readable_level(monkeypatch, tmp_path):
    caches = {"index0": ("1", "48K"), "index2": ("2", "1024K"), "index3": ("3", "32768K")}
    for name, (level, size) in {**caches, "index4": ("4", "much")}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "level").write_text(f"{level}\n")
        (tmp_path / name / "size").write_text(f"{size}\n")
    monkeypatch.setattr(host, "Path", lambda _: tmp_path)
    assert host.last_cache() == 32 << 20
    monkeypatch.setattr(host, "Path", lambda _: tmp_path / "missing")
    assert host.last_cache() is None

"""``tunedb advise configure``: options, questions, single steps and the check."""

import json
import tomllib
from pathlib import Path

import pytest
import toy_gpu
from checks import one_line, row_has

from tunedb.advisor.collect import cuda_detection

PROGRAM = (
    *("--program", "mm", "--block", "16x16", "--run", "python3 app.py {block_x} {block_y} {input}"),
    *("--input", "1024", "--input", "two words"),
)
DEVICE = ("--device", "Tesla K40c", "--profiler", "none")


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch, tmp_path):
    """Hide the folders, programs and devices of CUDA that the machine has."""
    monkeypatch.setattr(cuda_detection, "_FOLDERS", ())
    monkeypatch.setattr(cuda_detection, "_PROGRAMS", ())
    monkeypatch.setattr(cuda_detection, "detect_devices", lambda path: ())


def content():
    """Return the configuration in ``advise.toml``."""
    return tomllib.loads(Path("advise.toml").read_text())


@pytest.fixture
def configure(run):
    """A function that runs the command."""
    return lambda *words, **options: run("advise", "configure", *words, **options)


@pytest.fixture
def check(configure):
    """A function that returns what the check found."""

    def check(code=0):
        return json.loads(configure("--step", "check", "--json", code=code).stdout)

    return check


def test_configure_writes_all_options_to_the_file(configure):
    done = configure(
        *DEVICE, *PROGRAM,
        *("--build", "nvcc {register_flag} 'my file.cu'", "--registers", "64,32", "--kernel", "k"),
        *("--sizes", "x=32,16", "--sizes", "y=8"),
        *("--output", "out.bin", "--output-type", "float32"),
        *("--tolerance", "1e-5", "--time", "took ([0-9.]+)", "--unit", "us", "--repeats", "3"),
        *("--timeout", "5", "--variable", "A=b=c", "--path", "tools", "--counter", "inst_executed"),
        code=1,
    )  # fmt: skip
    assert "Wrote advise.toml" in done.stderr
    document = content()
    assert document["devices"] == [{"index": 0, "name": "Tesla K40c", "compute_capability": "3.5"}]
    assert document["environment"] == {"path": ["tools"], "variables": {"A": "b=c"}}
    assert document["profiler"] == {"tool": "none", "counters": ["inst_executed"]}
    (program,) = document["programs"]
    timing = {"from": "output", "pattern": "took ([0-9.]+)", "unit": "us", "repeats": 3}
    expected = {
        **{"build": ["nvcc", "{register_flag}", "my file.cu"], "registers": ["default", 32, 64]},
        **{"run": ["python3", "app.py", "{block_x}", "{block_y}", "{input}"], "timing": timing},
        **{"sizes": {"x": [16, 32], "y": [8]}, "inputs": ["1024", "two words"]},
        **{"output": {"from": "out.bin", "type": "float32", "tolerance": 1e-5}},
        **{"timeout": 5, "kernel": "k"},
    }
    row_has(program, **expected)


def test_configure_keeps_other_settings_and_writes_a_backup(configure):
    configure(*DEVICE, *PROGRAM)
    before = content()
    configure("--program", "mm", "--blocks", "8x8,16x16")
    after = content()
    assert after["programs"][0].pop("blocks") == [[8, 8], [16, 16]]
    assert after == before
    assert tomllib.loads(Path("advise.toml.bak").read_text()) == before
    done = configure("--program", "mm", "--blocks", "8x8,16x16")
    assert "advise.toml is unchanged" in done.stderr
    configure("--program", "mm", "--sizes", "x=4")
    assert "blocks" not in content()["programs"][0]


def test_configure_runs_single_steps(configure, check):
    configure("--step", "devices", *DEVICE)
    assert content().keys() == {"environment", "profiler", "devices"}
    assert content()["profiler"] == {"tool": "auto"}
    configure("--step", "environment", "--profiler", "none")
    configure("--step", "programs", *PROGRAM)
    device, program = check()
    row_has(device, step="devices", name="Tesla K40c", ok=True)
    row_has(program, step="programs", name="mm", ok=True)
    # 39 shapes of two dimensions, two inputs.
    assert program["message"].startswith("78 variants, ")


def test_check_reports_missing_folders_programs_and_profiler(configure, check):
    configure(*DEVICE, *PROGRAM, "--run", "./mm {block_x} {block_y}{input}", code=1)
    configure("--step", "environment", "--path", "gone")
    arguments = ("--step", "programs", "--program", "nn", "--directory", "none", "--block", "32")
    configure(*arguments, "--run", "python3 {threads}")
    messages = {row["name"]: row["message"] for row in check(1) if not row["ok"]}
    row_has(messages, gone="no such folder", mm="run: ./mm is not found")
    assert "none is not a folder" in messages["nn"]
    configure("--step", "environment", "--profiler", "ncu")
    assert any("ncu is not on the PATH" in row["message"] for row in check(1))


def test_configure_reports_missing_device_and_program(configure):
    done = configure("--step", "devices")
    assert "Warning: no device found; name one with --device" in done.stderr
    assert "none; name one with --device" in configure("--no-interactive", code=1).stdout
    configure("--step", "devices", *DEVICE)
    assert "none; add one with --program" in configure("--step", "check", code=1).stdout


def test_remove_deletes_program_and_rejects_unknown_one(configure):
    configure(*DEVICE, *PROGRAM)
    assert "program 'nn' is not configured" in configure("--remove", "nn", code=3).stderr
    configure("--remove", "mm", code=1)
    assert "programs" not in content()


def test_configure_asks_for_settings_and_offers_stored_ones(configure):
    answers = [
        "none",  # profiler
        "Tesla K40c",  # no device is found
        "y", "mm", ".", "16x16", "", "python3 app.py {block_x} {block_y} {input}",
        "step", "", "512, 1024", "stdout", "0.001", "took (.*) ms",
        "n",  # another one
    ]  # fmt: skip
    configure("--interactive", input="\n".join(answers) + "\n")
    (program,) = content()["programs"]
    assert (program["name"], program["inputs"]) == ("mm", ["512", "1024"])
    assert program["run"] == ["python3", "app.py", "{block_x}", "{block_y}", "{input}"]
    assert (program["output"]["tolerance"], program["timing"]["from"]) == (0.001, "output")
    assert "build" not in program
    assert content()["devices"][0]["compute_capability"] == "3.5"
    # The questions about a stored program offer its values.
    kept = "\n".join(["none", "y", "mm", *[""] * 10, "n", ""])
    configure("--interactive", input=kept)
    assert content()["programs"] == [program]
    # With --shell the command stays one string.
    line = "cd . && python3 app.py {block_x}"
    Path("advise.toml").unlink()
    configure(*DEVICE, "--program", "mm", "--block", "32", "--run", line, "--shell")
    assert content()["programs"][0]["run"] == line
    configure("--interactive", input=kept)
    assert content()["programs"][0]["run"] == line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--program", "mm"), "--program mm is new: give its --run"),
        (("--program", "mm", "--run", "x"), "--program mm is new: give its --block"),
        ((*PROGRAM, "--block", "16,16"), "--block 16,16: expected numbers with 'x' between them"),
        ((*PROGRAM, "--registers", "many"), "--registers many: expected numbers with ','"),
        ((*PROGRAM, "--sizes", "x"), "--sizes x : expected numbers with ','"),
        ((*PROGRAM, "--run", "it's"), "--run it's: No closing quotation"),
        (("--variable", "A"), "--variable A: write NAME=VALUE"),
        (("--device", "My GPU"), "'My GPU' is not a device that tunedb knows"),
    ],
)
def test_configure_rejects_bad_options_in_one_line(configure, arguments, message):
    assert message in one_line(configure("--no-interactive", *arguments, code=2))
    assert not Path("advise.toml").exists()


def test_invalid_configuration_is_not_written(configure):
    done = configure(*DEVICE, *PROGRAM, "--output", "../x", code=1)
    where = "advise.toml: programs.mm.output.from"
    assert done.stderr == f"Error: {where}: expected a file inside the program's folder\n"
    assert not Path("advise.toml").exists()


def test_configure_escapes_names_of_devices(configure):
    configure("--step", "devices", "--device", "a\x1b[31mb:7.5")
    assert "\x1b" not in configure("--step", "check", code=1).output


def test_check_accepts_configuration_of_toy_gpu(configure, tmp_path):
    path = toy_gpu.configuration(tmp_path, tool="ncu")
    assert "4 variants" in configure(path, "--step", "check").stdout

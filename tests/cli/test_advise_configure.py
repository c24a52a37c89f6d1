"""``tunedb advise configure``: options, questions, single steps and the check."""

import json
import tomllib
from pathlib import Path

import pytest
import toy_gpu

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


def test_configure_writes_all_options_to_the_file(run):
    done = run(
        "advise", "configure", *DEVICE, *PROGRAM,
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
    assert program["build"] == ["nvcc", "{register_flag}", "my file.cu"]
    assert program["run"] == ["python3", "app.py", "{block_x}", "{block_y}", "{input}"]
    assert program["registers"] == ["default", 32, 64]
    assert program["sizes"] == {"x": [16, 32], "y": [8]}
    assert program["inputs"] == ["1024", "two words"]
    assert program["output"] == {"from": "out.bin", "type": "float32", "tolerance": 1e-5}
    assert program["timing"] == {
        "from": "output", "pattern": "took ([0-9.]+)", "unit": "us", "repeats": 3,
    }  # fmt: skip
    assert (program["timeout"], program["kernel"]) == (5, "k")


def test_configure_keeps_other_settings_and_writes_a_backup(run):
    run("advise", "configure", *DEVICE, *PROGRAM)
    before = content()
    run("advise", "configure", "--program", "mm", "--blocks", "8x8,16x16")
    after = content()
    assert after["programs"][0].pop("blocks") == [[8, 8], [16, 16]]
    assert after == before
    assert tomllib.loads(Path("advise.toml.bak").read_text()) == before
    done = run("advise", "configure", "--program", "mm", "--blocks", "8x8,16x16")
    assert "advise.toml is unchanged" in done.stderr
    run("advise", "configure", "--program", "mm", "--sizes", "x=4")
    assert "blocks" not in content()["programs"][0]


def test_configure_runs_single_steps(run):
    run("advise", "configure", "--step", "devices", *DEVICE)
    assert content().keys() == {"environment", "profiler", "devices"}
    assert content()["profiler"] == {"tool": "auto"}
    run("advise", "configure", "--step", "environment", "--profiler", "none")
    run("advise", "configure", "--step", "programs", *PROGRAM)
    found = json.loads(run("advise", "configure", "--step", "check", "--json").stdout)
    assert [(row["step"], row["name"], row["ok"]) for row in found] == [
        ("devices", "Tesla K40c", True), ("programs", "mm", True),
    ]  # fmt: skip
    # 39 shapes of two dimensions, two inputs.
    assert found[1]["message"].startswith("78 variants, ")


def test_check_reports_missing_folders_programs_and_profiler(run):
    run(
        "advise", "configure", *DEVICE, *PROGRAM, "--run", "./mm {block_x} {block_y}{input}", code=1
    )
    run("advise", "configure", "--step", "environment", "--path", "gone")
    arguments = ("--step", "programs", "--program", "nn", "--directory", "none", "--block", "32")
    run("advise", "configure", *arguments, "--run", "python3 {threads}")
    found = json.loads(run("advise", "configure", "--step", "check", "--json", code=1).stdout)
    messages = {row["name"]: row["message"] for row in found if not row["ok"]}
    assert messages["gone"] == "no such folder"
    assert messages["mm"] == "run: ./mm is not found"
    assert "none is not a folder" in messages["nn"]
    run("advise", "configure", "--step", "environment", "--profiler", "ncu")
    found = json.loads(run("advise", "configure", "--step", "check", "--json", code=1).stdout)
    assert any("ncu is not on the PATH" in row["message"] for row in found)


def test_configure_reports_missing_device_and_program(run):
    done = run("advise", "configure", "--step", "devices")
    assert "Warning: no device found; name one with --device" in done.stderr
    done = run("advise", "configure", "--no-interactive", code=1)
    assert "none; name one with --device" in done.stdout
    done = run("advise", "configure", "--step", "devices", *DEVICE)
    done = run("advise", "configure", "--step", "check", code=1)
    assert "none; add one with --program" in done.stdout


def test_remove_deletes_program_and_rejects_unknown_one(run):
    run("advise", "configure", *DEVICE, *PROGRAM)
    done = run("advise", "configure", "--remove", "nn", code=3)
    assert "program 'nn' is not configured" in done.stderr
    run("advise", "configure", "--remove", "mm", code=1)
    assert "programs" not in content()


def test_configure_asks_for_settings_and_offers_stored_ones(run):
    answers = [
        "none",  # profiler
        "Tesla K40c",  # no device is found
        "y", "mm", ".", "16x16", "", "python3 app.py {block_x} {block_y} {input}",
        "step", "", "512, 1024", "stdout", "0.001", "took (.*) ms",
        "n",  # another one
    ]  # fmt: skip
    run("advise", "configure", "--interactive", input="\n".join(answers) + "\n")
    (program,) = content()["programs"]
    assert program["name"] == "mm"
    assert program["run"] == ["python3", "app.py", "{block_x}", "{block_y}", "{input}"]
    assert program["inputs"] == ["512", "1024"]
    assert program["output"]["tolerance"] == 0.001
    assert program["timing"]["from"] == "output"
    assert "build" not in program
    assert content()["devices"][0]["compute_capability"] == "3.5"
    # The questions about a stored program offer its values.
    kept = ["none", "y", "mm", *[""] * 4, *[""] * 6, "n"]
    run("advise", "configure", "--interactive", input="\n".join(kept) + "\n")
    assert content()["programs"] == [program]


def test_shell_option_keeps_run_command_as_one_string(run):
    line = "cd . && python3 app.py {block_x}"
    run(
        "advise", "configure", *DEVICE, "--program", "mm", "--block", "32", "--run", line, "--shell"
    )
    assert content()["programs"][0]["run"] == line
    kept = ["none", "y", "mm", *[""] * 10, "n"]
    run("advise", "configure", "--interactive", input="\n".join(kept) + "\n")
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
def test_configure_rejects_bad_options_in_one_line(run, arguments, message):
    done = run("advise", "configure", "--no-interactive", *arguments, code=2)
    assert message in done.stderr
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    assert not Path("advise.toml").exists()


def test_invalid_configuration_is_not_written(run):
    done = run("advise", "configure", *DEVICE, *PROGRAM, "--output", "../x", code=1)
    assert done.stderr == (
        "Error: advise.toml: programs.mm.output.from: expected a file inside the program's folder\n"
    )
    assert not Path("advise.toml").exists()


def test_configure_escapes_names_of_devices(run):
    run("advise", "configure", "--step", "devices", "--device", "a\x1b[31mb:7.5")
    done = run("advise", "configure", "--step", "check", code=1)
    assert "\x1b" not in done.output


def test_check_accepts_configuration_of_toy_gpu(run, tmp_path):
    path = toy_gpu.configuration(tmp_path, tool="ncu")
    assert "4 variants" in run("advise", "configure", path, "--step", "check").stdout

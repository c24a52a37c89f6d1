"""A program and profilers that behave as CUDA's do, for machines without a GPU.

The program "launches" a kernel by writing it to the file that the stub profiler names; the stubs
understand the arguments that tunedb gives, and write what the tools write. They import no more than
they need: a test starts dozens of them.
"""

import json
import sys
import time
from pathlib import Path

#: ``app.py X Y INPUT [WHAT]``: computes with a block of X x Y.
APP = """
import os, sys
x, y, size, *rest = sys.argv[1:]
x, y, size = int(x), int(y), int(size)
limit = open("limit").read().strip() if os.path.exists("limit") else ""
with open(os.environ.get("TOY_RUNS", os.devnull), "a") as file:
    file.write(f"{x}x{y} {size} {limit}\\n")
if "hang" in rest and (x, y) == (64, 2):
    import subprocess
    import time
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    open(os.environ["TOY_CHILD"], "w").write(str(child.pid))
    time.sleep(600)
if "crash" in rest and (x, y) == (32, 4):
    os.kill(os.getpid(), 11)
if "slow" in rest:
    import time
    time.sleep(0.05)
if (launches := os.environ.get("TOY_LAUNCHES")):
    import json
    block = [32, 2, 1] if "ignore" in rest else [x, y, 1]
    launched = [("clear", [512, 1, 1], 1, 5e-6), ("step", block, size // x + 1, 1e-3 / x)]
    if "twice" in rest:
        launched.append(("step", block, 2, 1e-5))
    with open(launches, "a") as file:
        for kernel, block, blocks, seconds in launched:
            file.write(json.dumps({"kernel": kernel, "block": block, "grid": [blocks, 1, 1],
                                   "seconds": seconds}) + "\\n")
value = size * (1 + 1e-9 * x)
if "wrong" in rest and (x, y) == (16, 4):
    value += 1
if "random" in rest:
    import random
    value += random.random()
print(f"result {value!r}")
print(f"kernel time: {1000 / x + y} us")
if "file" in rest:
    import array
    open("out.bin", "wb").write(array.array("f", [value, x * 1e-7]).tobytes())
"""

BUILD = """
import sys
words = [word for word in sys.argv[1:] if word.startswith("-maxrregcount=")]
if "-maxrregcount=16" in words:
    sys.exit("ptxas fatal: too few registers")
open("limit", "w").write(words[0] if words else "default")
open("built", "a").write("once\\n")
"""

_STUB = """#!{python} -IS
import csv, json, os, subprocess, sys
tool = {tool!r}
words = sys.argv[1:]
takes = {{"--log-file", "--metrics", "--events", "--page", "--print-units", "--kernel-name",
          "--kernels", "--target-processes", "--options"}}
given = {{}}
while words and words[0].startswith("--"):
    word = words.pop(0)
    given[word] = words.pop(0) if word in takes else True
with open(os.environ.get("TOY_PROFILED", os.devnull), "a") as file:
    file.write(json.dumps([tool, given]) + "\\n")
path = given["--log-file"] + ".launches"
code = subprocess.call(words, env={{**os.environ, "TOY_LAUNCHES": path}})
launches = [json.loads(line) for line in open(path)] if os.path.exists(path) else []
if code:
    sys.exit(code)
asked = [n for key in ("--events", "--metrics") for n in str(given.get(key, "")).split(",") if n]
if "unknown_counter" in asked:
    sys.exit("==ERROR== Failed to find metric unknown_counter")
def value(name, launch):
    block = launch["block"][0] * launch["block"][1]
    return {{"launch__registers_per_thread": 24, "launch__shared_mem_per_block_static": 1024,
             "launch__shared_mem_per_block_dynamic": 0}}.get(name, block * (len(name) + 1))
"""

_NCU = (
    _STUB
    + """
wanted = given.get("--kernel-name")
launches = [l for l in launches if wanted in (None, l["kernel"])]
units = {{"launch__registers_per_thread": "register/thread",
          "launch__shared_mem_per_block_static": "byte/block",
          "launch__shared_mem_per_block_dynamic": "byte/block"}}
with open(given["--log-file"], "w") as file:
    file.write("==PROF== Connected to process 7\\n")
    rows = csv.writer(file, quoting=csv.QUOTE_ALL)
    head = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream",
            "Block Size", "Grid Size", "Device", "CC"]
    rows.writerow(head + asked)
    rows.writerow([""] * len(head) + [units.get(name, "") for name in asked])
    for number, launch in enumerate(launches):
        sizes = ["(" + ", ".join(map(str, launch[k])) + ")" for k in ("block", "grid")]
        rows.writerow([number, 7, "app", "127.0.0.1", launch["kernel"] + "(float *, int)", 1, 7]
                      + sizes + [0, "7.5"] + [format(value(n, launch), ",") for n in asked])
    file.write("==PROF== Disconnected from process 7\\n")
"""
)

_NVPROF = (
    _STUB
    + """
with open(given["--log-file"], "w") as file:
    file.write("==7== NVPROF is profiling process 7, command: app\\n==7== Profiling result:\\n")
    rows = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC)
    if "--print-gpu-trace" in given:
        rows.writerow(["Start", "Duration", "Grid X", "Grid Y", "Grid Z", "Block X", "Block Y",
                       "Block Z", "Registers Per Thread", "Static SMem", "Dynamic SMem", "Size",
                       "Throughput", "Device", "Context", "Stream", "Name"])
        file.write("ms,us,,,,,,,,B,B,KB,GB/s,,,,\\n")
        for number, launch in enumerate(launches):
            cells = [1.5 + number, launch["seconds"] * 1e6, *launch["grid"], *launch["block"], 24,
                     1024, 0]
            file.write(",".join(map(str, cells)) + ',,,"Tesla K40c (0)","1","7","'
                       + launch["kernel"] + '(float*, int) [' + str(200 + number) + ']"\\n')
    for kind, title in (("--events", "Event"), ("--metrics", "Metric")):
        names = [n for n in str(given.get(kind, "")).split(",") if n]
        if not names:
            continue
        file.write("==7== " + title + " result:\\n")
        described = ["Metric Description"] if title == "Metric" else []
        total = ["Total"] if title == "Event" else []
        rows.writerow(["Device", "Kernel", "Invocations", title + " Name", *described, "Min", "Max",
                       "Avg", *total])
        for name in names:
            for launch in launches:
                cells = [value(name, launch)] * (3 + len(total))
                rows.writerow(["Tesla K40c (0)", launch["kernel"] + "(float*, int)", 1, name]
                              + ["text"] * len(described) + cells)
"""
)


def install(folder):
    """Write stub profilers into a folder that is to be put before PATH."""
    folder.mkdir()
    for tool, text in (("ncu", _NCU), ("nvprof", _NVPROF)):
        path = folder / tool
        path.write_text(text.format(python=sys.executable, tool=tool))
        path.chmod(0o755)
    return folder


def program(folder):
    """Write the toy program into a folder."""
    folder.mkdir()
    (folder / "app.py").write_text(APP)
    (folder / "build.py").write_text(BUILD)
    return folder


#: Blocks of the configuration; each of them costs a test some ten processes.
BLOCKS = ("32x2", "16x4", "64x2", "32x4")


def configuration(
    tmp_path, *, rest="", tool="none", counters=(), per_run=30, blocks=BLOCKS,
    registers='["default"]', clock="output", **timing,
):  # fmt: skip
    """Write a configuration with the toy program, whose original is 32x2; return its path."""
    device, capability = ("GeForce RTX 2080 Ti", "7.5") if tool == "ncu" else ("Tesla K40c", "3.5")
    program(tmp_path / "toy")
    install(tmp_path / "bin")
    python = sys.executable
    times = {"from": f'"{clock}"', "pattern": '"kernel time: ([0-9.]+) us"', "unit": '"us"'}
    times |= {"repeats": "2", **timing}
    timed = "\n".join(f"{key} = {value}" for key, value in times.items())
    named = f"counters = {json.dumps(counters)}" if counters else ""
    listed = ", ".join(f"[{block.replace('x', ', ')}]" for block in blocks)
    path = tmp_path / "advise.toml"
    path.write_text(
        f"""
[environment]
path = ["bin"]
[environment.variables]
TOY_RUNS = "{tmp_path}/runs"
TOY_PROFILED = "{tmp_path}/profiled"
TOY_CHILD = "{tmp_path}/child"
[profiler]
tool = "{tool}"
per_run = {per_run}
{named}
[[devices]]
name = "{device}"
compute_capability = "{capability}"
[[programs]]
name = "toy"
directory = "toy"
kernel = "step"
build = ["{python}", "-IS", "build.py", "{{register_flag}}"]
run = "{python} -IS app.py {{block_x}} {{block_y}} {{input}} {rest}"
block = [32, 2]
blocks = [{listed}]
registers = {registers}
inputs = ["1000"]
timeout = 20
[programs.output]
tolerance = 1e-6
[programs.timing]
{timed}
"""
    )
    return path


def lines(path):
    """Return the lines of a file, none where there is no file."""
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def wait_for_end(pids):
    """Wait until processes have ended; a zombie has."""
    assert pids
    for _ in range(1200):
        if not any(map(_is_alive, pids)):
            return
        time.sleep(0.05)
    raise AssertionError(f"{pids} live on")


def _is_alive(pid):
    try:
        stat = Path("/proc", pid, "stat").read_text()
        return stat.rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

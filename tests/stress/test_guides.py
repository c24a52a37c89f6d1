"""The guides do what they say: their commands and their Python run here, in the order of the page.

Small files stand in for the reader's: models, networks, logs, profiles and the databases of a team.
Searches get few trials; a command that needs what no test has is left out below, with the reason.
"""

import json
import lzma
import random
import re
import shlex
import shutil
import sys
import tomllib
from functools import partial
from pathlib import Path

import ansor_programs
import networks
import onnx
import profiles
import pytest
import small_logs
import toy_gpu
import tvm
from builders import OWN
from click.testing import CliRunner
from exchanges import fill
from observing import blocks_of_kernels
from tvm import relax, te
from tvm.s_tir import meta_schedule as ms

from tunedb.cli import main
from tunedb.models.base import load_parts
from tunedb.plugins.metaschedule.search import schedule_queries
from tunedb.plugins.metaschedule.tuning.defaults import host_target
from tunedb.records import Source
from tunedb.storage.store import Store

pytestmark = pytest.mark.stress

ROOT = Path(__file__).parents[2]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(    |\$ )?(tunedb [a-z].*)")

#: Pages of docs/ whose shell commands run; README.md is one of them.
PAGES = ("README", "start", "search", "using", "prior", "logs", "report", "tables", "sharing")
PAGES += ("advisor", "plugins")
#: Pages whose Python runs; that of the others is part of a package, a cluster or a migration.
PYTHON = ("start", "search", "using", "features", "tables")

#: Beginnings of commands that do not run here, as patterns.
LEFT_OUT = {
    "tunedb doctor": "it fails where the machine lacks something; tests/cli/test_doctor.py",
    "tunedb demo": "it takes minutes; tests/test_packaging.py",
    "tunedb tune conv.py": "it needs a device; tests/plugins/test_remote.py",
    "tunedb simulate": "it needs pools of random programs; tests/cli/test_simulate.py",
    "tunedb advise configure": "it asks, and checks CUDA; tests/cli/test_advise_configure.py",
}
#: Modules of the reader.
READERS = ("my", "model", "my_package")
#: Numbers in commands on the page about public logs, and those of the small logs here.
NUMBERS = {"70259": "40", "141": "1", "42": "1", "64": "2"}

MODEL = """
from tvm import te

def dense_layer(n=32, m=32, l=32):
    a, b = te.placeholder((n, l), name="A"), te.placeholder((m, l), name="B")
    k = te.reduce_axis((0, l), name="k")
    return [a, b, te.compute((n, m), lambda i, j: te.sum(a[i, k] * b[j, k], axis=k), name="matmul")]

matmul = te.create_prim_func(dense_layer())
"""
#: Module, limit of trials and database of the searches of the reader's past.
TUNED = [("model.py", ("--trials", "6"), "tune.db")]
TUNED += [("mobilenet.onnx", ("--per-task", "2"), "networks.db")]
TUNED += [("conv.py", ("--trials", "2"), "networks.db")]
CONV = """
from tvm import te, topi

data, kernel = te.placeholder((1, 8, 8, 4), name="A"), te.placeholder((3, 3, 4, 4), name="B")
conv = te.create_prim_func([data, kernel, topi.nn.conv2d_nhwc(data, kernel, 1, 1, 1)])
"""


def text_of(page):
    path = ROOT / "README.md" if page == "README" else ROOT / "docs" / f"{page}.md"
    return path.read_text(encoding="utf-8")


def commands(page):
    """Return the commands of a page, without comments, in order."""
    found, fence = [], None
    for line in text_of(page).replace("\\\n", " ").splitlines():
        if line.startswith("```"):
            fence = None if fence is not None else line.removeprefix("```")
        elif (match := COMMAND.match(line)) and (match[1] or fence in ("", "console")):
            found.append(re.sub(r"\s+#.*", "", match[2]))
    return found


def blocks(page):
    return [code for language, code in FENCED.findall(text_of(page)) if language == "python"]


def test_guides_contain_commands_and_python():
    assert all(commands(page) for page in PAGES) and all(map(blocks, PYTHON))
    lines = [line for page in PAGES for line in commands(page)]
    assert len(lines) > 70
    assert all(any(re.match(start, line) for line in lines) for start in LEFT_OUT)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """A folder with a model, networks, and a database that was tuned for them."""
    folder = tmp_path_factory.mktemp("tuned")
    (folder / "model.py").write_text(MODEL)
    (folder / "conv.py").write_text(CONV)
    for package, name in (("my", "kernels"), ("my", "operators")):
        (folder / package).mkdir(exist_ok=True)
        (folder / package / f"{name}.py").write_text(MODEL)
    for name in ("net", "network", "mobilenet", "resnet"):
        onnx.save(networks.symbolic(1, 8), folder / f"{name}.onnx")
    onnx.save(networks.symbolic("batch", "length"), folder / "bert.onnx")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for module, limit, database in TUNED:
            invoke("tune", module, *limit, "--db", database, "--no-prior")
    return folder


def invoke(*words):
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, f"tunedb {shlex.join(words)}\n{result.output}"
    return result


@pytest.fixture
def folder(tuned, tmp_path, monkeypatch):
    """A copy of that folder, as the working directory."""
    made = tmp_path / "folder"
    shutil.copytree(tuned, made)
    monkeypatch.chdir(made)
    for name in ("tune.db", "networks.db"):
        invoke("db", "trust", name, "--yes")
    monkeypatch.setenv("TUNEDB_URL", "tune.db")
    monkeypatch.syspath_prepend(str(made))
    yield made
    for name in [name for name in sys.modules if name.split(".")[0] in READERS]:
        del sys.modules[name]
    load_parts.cache_clear()


def prepare(page, folder):
    """Write the files that a page requires."""
    if page == "plugins":
        install(folder)
    if page in ("logs", "advisor"):
        for path in folder.glob("tune.db*"):
            path.unlink()
    if page == "logs":
        logs = {name: small_logs.LOGS[name] for name in ("ansor v0.6", "autotvm v0.2")}
        ansor, autotvm = (next(iter(files.values())) for files in logs.values())
        for name in ("tophub", "old_logs", "work_dirs"):
            (folder / name).mkdir()
        (folder / "v100.jsonl.xz").write_bytes(lzma.compress(ansor))
        (folder / "tophub" / "cuda_v0.10.log").write_bytes(autotvm)
        (folder / "old_logs" / "a.log").write_bytes(autotvm)
        for name in ("web-llm", "work_dirs/one"):
            small_logs.write(folder / name, small_logs.LOGS["metaschedule new"])
        (folder / "measurements.json.xz").write_bytes(lzma.compress(ansor))
        (folder / "matmul.json").write_text(json.dumps(ansor_programs.matmul_add()) + "\n")
        (folder / "conv2d.json").write_bytes(ansor)
        onnx.save(networks.mobile(), folder / "resnet50.onnx")
        write_profiles(folder)
        (folder / "ncu.csv").write_text(profiles.ncu(profiles.detail("a__b.sum", "1.5")))
        (folder / "gpu.csv").write_text(profiles.nsys(profiles.nsys_launch()))
    elif page == "start":
        (folder / "demo").mkdir()
        (folder / "tune.db").rename(folder / "demo" / "tune.db")
    elif page == "report":
        shutil.copy(folder / "networks.db", folder / "last-week.db")
        invoke("bundle", "-o", "team-b.tunedb")
    elif page == "sharing":
        team_databases(folder)
    elif page == "advisor":
        (folder / "mm").mkdir()
        kernels = ("cn_pnpoly", "directCoulombSum", "reduce")
        with Store(folder / "tune.db") as store:
            rows = blocks_of_kernels(*kernels, device="NVIDIA GeForce RTX 3090")
            store.records.add(rows, OWN)
        (folder / "profiles").mkdir()
        write_profiles(folder / "profiles")


def write_profiles(folder):
    (folder / "metrics.csv").write_text(profiles.metrics(profiles.metric("ipc", "1.3")))
    (folder / "trace.csv").write_text(profiles.trace(profiles.launch()))


def install(folder):
    """Put the package of the page on plugins on the path, as an installed one lies there."""
    fenced = dict(FENCED.findall(text_of("plugins")))
    (folder / "my_package.py").write_text(fenced["python"])
    info = folder / "my_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    with (info / "entry_points.txt").open("w") as file:
        for group, points in tomllib.loads(fenced["toml"])["project"]["entry-points"].items():
            lines = (f"{name} = {value}" for name, value in points.items())
            print(f"[{group}]", *lines, sep="\n", file=file)
    load_parts.cache_clear()


def team_databases(folder):
    """Make the databases of Alice, of Bob, and of other teams."""
    for name in ("alice.db", "team-b.db", "team.db"):
        with Store(folder / name) as store:
            fill(store, *range(6), source=Source("dolly"))
    Store(folder / "bob.db").close()
    for name in "ab":
        invoke("bundle", "-o", f"{name}.tunedb", "--db", f"team{'-b' * (name == 'b')}.db")


def before(command, folder, monkeypatch):
    """Choose the reader's database for a command, and write what it needs."""
    about_networks = "onnx" in command or "report" in command
    monkeypatch.setenv("TUNEDB_URL", "networks.db" if about_networks else "tune.db")
    if command.startswith("tunedb advise collect --dry-run"):
        toy_gpu.configuration(folder)


def words_of(command, team):
    """Return the words of a command, with numbers and addresses of here."""
    words = []
    for word in shlex.split(command)[1:]:
        if (found := re.fullmatch(r"postgresql://(\w+)@db.example.org/tunedb", word)) is not None:
            words.append(team(found[1]))
        elif "*" in word:
            words += sorted(map(str, Path().glob(word)))
        else:
            words.append(NUMBERS.get(word, word))
    # The last one counts.
    return [*words, "--trials", "2"] if words[0] == "tune" else words


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_guide_run(page, folder, team, monkeypatch):
    prepare(page, folder)
    for command in commands(page):
        if not any(re.match(start, command) for start in LEFT_OUT):
            before(command, folder, monkeypatch)
            invoke(*words_of(command, team))


def fewer(code):
    """Return code with few trials and little time."""
    trials = re.compile(r"(max_trials_global=|^ {4}|_dir, )(64|512)\b", re.MULTILINE)
    code = trials.sub(r"\g<1>2", code)
    return re.sub(r"minutes=\d+", "minutes=0.1", code)


def reader_names(page):
    """Return the names that the reader's own code gives to the blocks of a page."""
    scope = {}
    exec(MODEL, scope)
    function = scope["matmul"]
    if page == "search":  # about a workload that is similar to the stored one
        function = te.create_prim_func(scope["dense_layer"](64, 64, 64))
    mod = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    target = host_target()
    schedule = tvm.s_tir.Schedule(mod)
    context = ms.TuneContext(mod, target=target, space_generator="post-order-apply", num_threads=1)
    templates = [
        schedule_queries.from_tvm(space.trace.simplified(remove_postproc=True))
        for space in context.generate_design_space()
    ]
    network = relax.frontend.onnx.from_onnx(networks.symbolic(1, 8))
    names = {"mod": mod, "target": target, "schedule": schedule, "network": network}
    names |= {"mobilenet": network, "resnet": network, "rng": random.Random(0)}
    return names | {"templates": templates, "work_dir": "work"}


@pytest.mark.parametrize("page", PYTHON)
def test_python_of_guide_runs(page, folder, monkeypatch):
    """The blocks of a page share their names; each finds the reader's own, as they were."""
    few = {"population_size": 16, "init_measured_ratio": 0.0, "genetic_num_iters": 1}
    tvm_search = partial(ms.search_strategy.EvolutionarySearch, **few, init_min_unmeasured=4)
    monkeypatch.setattr(ms.search_strategy, "EvolutionarySearch", tvm_search)
    names = {}
    shutil.copy("tune.db", "tuning.db")
    for code in blocks(page):
        names |= reader_names(page)
        exec(compile(fewer(code), f"{page}.md", "exec"), names)

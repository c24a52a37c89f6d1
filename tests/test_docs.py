"""README.md is short; links, figures and commands of it and of the pages of docs/ exist."""

import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import click
import pytest
import yaml

from tunedb.cli import main
from tunedb.exchange.prior import read_card

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
PAGES += sorted((ROOT / "docs").glob("*.md"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
BENCHMARKS = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")

FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
NUMBER = re.compile(r"\d[\d,]*\.?\d*")

#: Pages of the documentation site alone.
OF_THE_SITE = ("changelog", "commands", "index", "python")


@cache
def prose(path):
    """Return a page without its fenced blocks."""
    return FENCED.sub("", path.read_text(encoding="utf-8"))


@cache
def anchors(path):
    """Return the anchors that GitHub makes of a page's headings."""
    made = set()
    for heading in re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE):
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number = 0
        while (unique := f"{anchor}-{number}" if number else anchor) in made:
            number += 1
        made.add(unique)
    return made


def sections():
    """Return heading → text of the sections of docs/benchmarks.md."""
    parts = re.split(r"^## (.+)\n", BENCHMARKS, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def rows(text):
    """Return the cells of the rows of tables in a text."""
    lines = [line.strip("| ").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in cells] for cells in lines]


def commands_of(path):
    """Return the commands of tunedb that a page shows, fenced or indented."""
    text = path.read_text(encoding="utf-8")
    shown = "\n".join(code for _, code in FENCED.findall(text))
    indented = re.findall(r"^ {4,}(tunedb [a-z].*)$", prose(path), re.MULTILINE)
    return re.findall(r"^(?:\$ )?(tunedb [a-z].*)$", shown, re.MULTILINE) + indented


def require_command(line):
    """Fail unless a line's command and its options exist."""
    words = re.split(r"[#|>&]", line)[0].split()[1:]
    command = main
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name = words.pop(0)
        command = command.get_command(click.Context(command), name)
        assert command is not None, f"{line}: there is no {name}"
    known = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in words if re.match(r"--?[a-z]", word)} <= known, line


def require_target(name):
    assert re.search(rf"^{name}:", MAKEFILE, re.MULTILINE), name


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_links_lead_to_existing_files_and_headings(path):
    for link in LINK.findall(prose(path)):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def test_the_readme_is_short_and_links_every_page():
    assert len(README.read_bytes()) <= 9_000
    linked = {link.partition("#")[0] for link in LINK.findall(prose(README))}
    pages = {f"docs/{path.name}" for path in PAGES if path.parent.name == "docs"}
    assert pages - {f"docs/{name}.md" for name in OF_THE_SITE} <= linked


@pytest.mark.stress
def test_site_builds_without_warnings_and_loads_nothing_from_elsewhere(tmp_path):
    """MkDocs warns about a page outside the navigation, and a link or anchor that leads nowhere."""
    command = (sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path)
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "tunedb tune [OPTIONS]" in (tmp_path / "commands.html").read_text()
    python = (tmp_path / "python.html").read_text()
    assert "top_k" in python and ":meth:" not in python
    # No page loads anything from elsewhere.
    for path in tmp_path.glob("*.html"):
        assert not re.search(r"<(script|link|img)[^>]+(src|href)=\"https?:", path.read_text()), path


def test_pictures_are_shown_and_load_nothing_from_elsewhere():
    pages = "".join(path.read_text(encoding="utf-8") for path in PAGES)
    pictures = sorted((ROOT / "docs" / "pictures").iterdir())
    assert [path.name for path in pictures] == ["network.svg", "report.png", "session.svg"]
    for path in pictures:
        assert f"pictures/{path.name})" in pages
        if path.suffix == ".svg":
            assert not re.search(r'@import|@font-face|url\(h|href="[^#]', path.read_text("utf-8"))


def test_code_of_the_readme_compiles():
    blocks = [code for language, code in FENCED.findall(README.read_text("utf-8")) if language]
    assert blocks
    for code in blocks:
        compile(code, "README.md", "exec")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_commands_shown_in_pages_exist(path):
    for line in commands_of(path):
        require_command(line)


@pytest.mark.parametrize("text", sections().values(), ids=sections())
def test_sections_of_benchmarks_name_a_command_and_a_machine(text):
    """Each section names at least one script, make target or command, and all of them exist."""
    assert re.search(r"^Machine: |\| machine \|", text, re.MULTILINE)
    named = "\n".join(code for _, code in FENCED.findall(text)) + "\n".join(
        re.findall(r"`([^`\n]+)`", text)
    )
    scripts = re.findall(r"python (benchmarks/\w+\.py)", named)
    targets = re.findall(r"^make ([\w-]+)", named, re.MULTILINE)
    commands = re.findall(r"^(tunedb [a-z].*)$", named, re.MULTILINE)
    assert scripts or targets or commands
    for script in scripts:
        assert (ROOT / script).is_file(), script
    for target in targets:
        require_target(target)
    for command in commands:
        require_command(command)


def test_page_of_benchmarks_lists_all_its_sections():
    head = BENCHMARKS.partition("\n## ")[0]
    assert re.findall(r"^\| \[([^\]]+)\]", head, re.MULTILINE) == list(sections())


def digits(number):
    """Return a number without its unit's power of ten, and how many digits it has."""
    plain = number.replace(",", "")
    return float(plain), len(plain.replace(".", "").lstrip("0")) or 1


def is_rounded(short, exact):
    """Return whether a number is another one rounded, except for a power of ten."""
    value, count = digits(short)
    one, other = (f"{each:.{count - 1}e}".split("e")[0] for each in (value, digits(exact)[0]))
    return one == other


def test_figures_of_the_readme_match_the_page_of_benchmarks():
    """All figures of a row are in one row of docs/benchmarks.md, there with all digits."""
    text = README.read_text("utf-8").partition("\n## Figures\n")[2].partition("\n## ")[0]
    figures = [row for row in rows(text) if any(map(NUMBER.search, row[1:]))]
    assert 1 <= len(figures) <= 10
    known = [[n for cell in row[1:] for n in NUMBER.findall(cell)] for row in rows(BENCHMARKS)]
    for name, *values in figures:
        wanted = [NUMBER.search(value)[0] for value in values]
        found = (all(any(is_rounded(w, n) for n in row) for w in wanted) for row in known)
        assert any(found), name


@pytest.mark.stress
def test_tour_notebook_runs(tmp_path, monkeypatch):
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    notebook = nbformat.read(ROOT / "docs" / "tour.ipynb", as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)
    NotebookClient(notebook, timeout=1200, kernel_name="python3").execute()
    shown = [
        "".join(str(part.get("text") or part.get("data")) for part in cell.outputs)
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]
    assert "<table" in shown[3] and "Record(" in shown[4]
    assert "cold: " in shown[9] and "warm: " in shown[9]


def test_workflows_run_existing_make_targets():
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    commands = [
        step["run"]
        for path in workflows
        for job in yaml.safe_load(path.read_text("utf-8"))["jobs"].values()
        for step in job["steps"]
        if "run" in step
    ]
    targets = [words[1] for words in map(str.split, commands) if words[0] == "make"]
    assert {"test", "docs"} <= set(targets)
    for target in targets:
        require_target(target)


def test_a_citation_has_the_version_of_the_package():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert citation["version"] == project["version"]


def test_pages_state_the_numbers_on_the_card_of_the_prior():
    card = read_card(ROOT / "tunedb" / "prior" / "cpu.bundle")
    told = f"{card['records']:,} measurements of {card['workloads']:,} operators"
    for page in (README, ROOT / "docs" / "prior.md"):
        assert told in " ".join(page.read_text("utf-8").split()), page


@pytest.mark.stress
def test_the_readme_runs_from_top_to_bottom(tmp_path):
    """Its code and commands run unchanged in one folder, but with a quarter of the trials."""
    blocks = FENCED.findall(README.read_text("utf-8"))
    model, tuning = (code for language, code in blocks if language == "python")
    (commands,) = (code for _, code in blocks if code.startswith("export TUNEDB_URL="))
    assert "=64)" in tuning and "--trials 64 " in commands
    (tmp_path / "model.py").write_text(model)
    (tmp_path / "tuning.py").write_text(tuning.replace("=64)", "=16)"))
    folder = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    script = f"python tuning.py\n{commands.replace('--trials 64 ', '--trials 16 ')}"
    done = subprocess.run(
        ["sh", "-ec", script], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "µs after 16 trials" in done.stdout
    made = {"matmul.so", "tune.db", "report.html", "lib.so", "work_dir", "copy.db", "best.tunedb"}
    assert made <= {path.name for path in tmp_path.iterdir()}

"""Draw the pictures of the documentation: a session on a terminal, and the page of its database.

    make pictures

The commands run in a new folder, on the model of README.md. The session becomes
``docs/pictures/session.svg``. The page becomes ``docs/pictures/report.png``, where Chromium is
installed.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
SESSION = (
    "tunedb tune model.py --trials 64",
    "tunedb top matmul -k 5",
    "tunedb report -o report.html",
)
#: Characters of a line.
WIDTH = 160
#: The fonts of rich's template are loaded from a server.
FONTS = re.compile(r"@font-face \{\{.*?\}\}\s*", re.DOTALL)


def model() -> str:
    """Return ``model.py`` of README.md."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]


def run(command: str, folder: Path) -> str:
    """Return what a command prints."""
    environment = os.environ | {"TUNEDB_URL": "tune.db", "COLUMNS": str(WIDTH)}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    done = subprocess.run(  # noqa: S603 - the commands above
        command.split(),
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    return done.stdout


def draw(shown: list[tuple[str, str]], path: Path) -> None:
    """Write commands and their output as SVG."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), highlight=False)
    for command, output in shown:
        console.print(Text(f"$ {command}", style="bold"))
        console.print(Text(output))
    template = FONTS.sub("", CONSOLE_SVG_FORMAT).replace("Fira Code", "ui-monospace")
    console.save_svg(str(path), title="tunedb", code_format=template, unique_id="session")


def photograph(page: Path, path: Path) -> None:
    """Write the top of a page as PNG, where Chromium is installed."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    if program is None:
        print("no Chromium: docs/pictures/report.png stays as it is")
        return
    options = ("--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=1100,1900")
    subprocess.run(  # noqa: S603 - a browser that is installed
        (program, *options, f"--screenshot={path}", page.as_uri()), check=True, capture_output=True
    )


def main() -> None:
    """Draw all pictures."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tunedb-pictures-") as name:
        folder = Path(name)
        (folder / "model.py").write_text(model(), encoding="utf-8")
        draw([(command, run(command, folder)) for command in SESSION], PICTURES / "session.svg")
        photograph(folder / "report.html", PICTURES / "report.png")


if __name__ == "__main__":
    main()
